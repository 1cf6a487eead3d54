"""The queues of one generation: topic queues, check, proposal, discard and quarantine queue. As many as there are names, so
neither their files nor what is known of them stays open: a bounded number of each, the most recently used.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Final

from store.io import disk
from store.io.growing_files import GrowingFile
from store.io.handles import Handles
from store.io.pages import JobSlot
from store.records import ENTRY
from store.tables.consume_queue import GrowingQueue

#: Queues whose entries are numbered in the marker, and the page's slot for their end. After a rebuild they may begin with
#: holes (size 0).
NUMBERED_QUEUES: Final = {
    "check": JobSlot.CHECK_END,
    "proposal": JobSlot.PROPOSAL_END,
    "discard": JobSlot.DISCARD_END,
    "quarantine": JobSlot.QUARANTINE_END,
}
#: At most this many queues are remembered (a listing of their directory each): some 30 MB of a writer's memory at most.
QUEUES_MAX: Final = 65_536
POINT: Final = "queue"


def topic_queue_name(topic_no: int, queue_id: int) -> str:
    """The name of a topic queue under its generation's directory."""
    return f"topics/{topic_no}/{queue_id}"


class QueueFiles:
    """Queues by name, `topics/<topic_no>/<queue_id>` or a numbered queue's, under one directory."""

    def __init__(self, root: Path, entries_per_file: int, *, writable: bool = False, descriptors_max: int | None = None) -> None:
        self.root, self._root = root, str(root)
        self.segment_bytes = entries_per_file * ENTRY.itemsize
        self.handles = Handles(writable=writable, descriptors_max=descriptors_max)
        self._queues: OrderedDict[str, GrowingQueue] = OrderedDict()
        #: Writer: files that it finds may have been made by a process that died before their names were durable.
        self.doubtful = False

    def queue(self, name: str) -> GrowingQueue:
        queue = self._queues.get(name)
        if queue is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues.popitem(last=False)
            queue = self._queues[name] = GrowingQueue(GrowingFile(f"{self._root}/{name}", self.segment_bytes, POINT, self.handles))
            if self.doubtful and queue.file.starts():
                self.handles.doubt_name(f"{self._root}/{name}", self._root)
        else:
            self._queues.move_to_end(name)
        return queue

    def remove_topic(self, topic_no: int) -> int:
        """Writer: remove the files of a topic's queues, which are all empty; how many there were."""
        directory = self.root / "topics" / str(topic_no)
        if not directory.is_dir():
            return 0
        found = 0
        for queue in sorted(directory.iterdir()):
            for path in sorted(queue.iterdir()):
                disk.remove(path, POINT)
                self.handles.forget(str(path))
                found += 1
            self._queues.pop(f"topics/{topic_no}/{queue.name}", None)
            self.handles.forget_directory(str(queue))
        self.handles.forget_directory(str(directory))
        return found

    def refresh(self) -> None:
        """Let go of files that were removed."""
        self.handles.drop_removed()
        self._queues.clear()  # the next access looks at its directory again

    def flush(self) -> None:
        self.handles.flush(POINT, self.root)

    def close(self) -> None:
        self.handles.close()
        self._queues.clear()
