"""What `job.checkpoint` notes of the queues' bytes: an entry does not prove itself, and one that damage changed may lead to
another message's whole frame. See `store/io/file_crcs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from store.errors import StoreError
from store.io.file_crcs import FileCrcs
from store.job.derived import DerivedFiles
from store.records import ENTRY, topic_of_key
from store.tables.queue_files import NUMBERED_QUEUES, topic_queue_name


class QueueCrcs:
    """The CRCs of one generation's queues, by name."""

    def __init__(self, noted: Mapping[str, Sequence[int]], segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._queues = {name: FileCrcs(segment_bytes, crcs) for name, crcs in noted.items()}

    def follow(self, files: DerivedFiles) -> dict[str, list[int]]:
        """For the next checkpoint: read what was added to each queue since the last one."""
        found: dict[str, list[int]] = {}
        for name, begin, end in _extents(files):
            if begin >= end:  # and its files may be removed, and made anew for another topic
                self._queues.pop(name, None)
                continue
            crcs = self._queues.setdefault(name, FileCrcs(self._segment_bytes))
            try:
                queue = files.queue(name).file
                crcs.follow(max(begin * ENTRY.itemsize, queue.begin), end * ENTRY.itemsize, queue.view)
            except StoreError:  # it cannot be read: those who need it say so
                self._queues.pop(name)
                continue
            found[name] = crcs.noted()
        return found

    def first_wrong(self, files: DerivedFiles) -> str:
        """The first file that is not what was noted; "" where all are."""
        for name, begin, _ in _extents(files):
            crcs, queue = self._queues.get(name), files.queue(name).file
            wrong = crcs.first_wrong(max(begin * ENTRY.itemsize, queue.begin), queue.view) if crcs is not None else None
            if wrong is not None:
                return queue.path(wrong)
        return ""


def _extents(files: DerivedFiles) -> Iterator[tuple[str, int, int]]:
    """(name, begin, end) of each queue."""
    for key, (begin, end) in files.catalogue.extents().items():
        yield topic_queue_name(*topic_of_key(key)), begin, end
    for name in NUMBERED_QUEUES:
        yield name, 0, getattr(files.marker, f"{name}_end")
