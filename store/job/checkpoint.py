"""`job.checkpoint` (JSON and its CRC, replaced as a whole) says what recovery may rely on:

generation   whose files it speaks of
redo_end     everything before it is applied to them, durably
marker       of the last batch before redo_end
clean        true when the job closed in order: redo_end is then the end of the redo log
ledger       what retention knows, see `retention.py`
queues       [queue key, begin, end] of the topic queues: after retention the redo log alone does not tell them
queue_crcs   optional: by name of a queue, the CRCs of its files up to its end, see `store/io/file_crcs.py`
redo_crcs    optional: the CRCs of the redo log's files up to redo_end
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from store.directory import JOB_CHECKPOINT
from store.io import disk
from store.io.file_crcs import FileCrcs
from store.job.derived import DerivedFiles
from store.job.queue_crcs import QueueCrcs
from store.tables import redo_log
from store.tables.redo_log import RedoLog

_KEYS: Final = ("generation", "redo_end", "marker", "ledger", "clean")


def read_checkpoint(root: Path) -> dict[str, Any] | None:
    """None if there is none; Corrupt if it cannot be trusted."""
    return disk.read_json(root / JOB_CHECKPOINT, _KEYS)


class CheckpointWriter:
    """Writes checkpoints of a redo log and the files that are derived from it. Their CRCs follow from one to the next."""

    def __init__(self, root: Path, files: DerivedFiles, redo: RedoLog) -> None:
        self._root, self._files, self._redo = root, files, redo
        self._redo_crcs = FileCrcs(redo.file.segment_bytes)
        self._queue_crcs = QueueCrcs({}, files.queues.segment_bytes)

    def write(self, *, clean: bool, redo_begin: int) -> None:
        """Flush what is derived and note how far recovery may rely on it. `redo_begin`: the redo log's files before it are there
        no more, or are to be removed next."""
        files, redo = self._files, self._redo
        files.flush()
        self._redo_crcs.follow(redo_begin, redo.end, redo.file.view)
        state = {
            "generation": files.generation,
            "redo_end": redo.end,
            "marker": redo_log.marker_to_dict(files.marker),
            "ledger": files.ledger.to_dict(),
            "queues": [(key, *extent) for key, extent in sorted(files.catalogue.extents().items())],
            "queue_crcs": self._queue_crcs.follow(files),
            "redo_crcs": self._redo_crcs.noted(),
            "clean": clean,
        }
        disk.write_json(self._root / JOB_CHECKPOINT, state, JOB_CHECKPOINT)
