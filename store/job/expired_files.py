"""Remove the job's files that retention no longer keeps. `retention.py` says which those are."""

from __future__ import annotations

from pathlib import Path

from store.job.derived import DerivedFiles
from store.tables import redo_log
from store.tables.journals import names
from store.tables.journals.names import Dictionary
from store.tables.queue_files import NUMBERED_QUEUES, QueueFiles
from store.tables.redo_log import RedoLog


def raise_begins(files: DerivedFiles) -> None:
    """Let each topic queue begin behind the messages whose frames may go."""
    for queue_key in files.catalogue.queue_keys():
        begin, end = files.catalogue.extent(queue_key)
        files.catalogue.raise_begin(queue_key, files.ledger.first_readable(files.topic_queue(queue_key), begin, end))


def remove_topic_files(files: DerivedFiles) -> int:
    """Files of topic queues before their begins; how many."""
    catalogue = files.catalogue
    return sum(files.topic_queue(key).remove_before(catalogue.extent(key)[0]) for key in catalogue.queue_keys())


def remove_numbered_files(files: DerivedFiles) -> int:
    """Files of the numbered queues whose entries all point at frames that may go; how many."""
    removed = 0
    for name in NUMBERED_QUEUES:
        queue = files.queue(name)
        end = getattr(files.marker, f"{name}_end")
        if queue.file.starts() and end > queue.begin:
            removed += queue.remove_before(files.ledger.first_kept(queue, queue.begin, end))
    return removed


def redo_kept_from(redo: RedoLog, first_row: int, op_low_water: int) -> int:
    """Where the first batch begins that must stay. A redo file goes when a rebuild without it gives the same: no batch begins in
    it, or none that speaks of a row (from first_row on) or an ordinary message that is still there. The last batch stays, for its
    marker."""
    keep = redo.end
    for batch in redo.batches(redo.first_batch(), None):
        keep = batch.redo_offset
        if redo_log.speaks_of(batch.entries, first_row, op_low_water):
            break
    return keep


class RemovedTopics:
    """Topics that were removed, and whose files are still to go."""

    def __init__(self, root: Path) -> None:
        self._names = Dictionary(root / names.NAME)
        #: Numbers of removed topics whose files are gone.
        self._dropped: set[int] = set()

    def drop_files(self, queues: QueueFiles) -> int:
        """Remove the files of the queues of removed topics; how many. Their extents stay: the next topic with the number
        continues behind them."""
        self._names.refresh()
        found = sum(queues.remove_topic(topic_no) for topic_no in self._names.removed.keys() - self._dropped)
        self._dropped = set(self._names.removed)
        return found

    def close(self) -> None:
        self._names.close()
