"""What a page shows of its halves: frames, ends, attempts, when they ended; and the quarantined ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from store.arrays import Array, Ints
from store.edge.listing.half_files import HalfFiles
from store.errors import Corrupt
from store.io.pages import JobSlot
from store.records import OpKind, check_count_of
from store.tables.frames import Frame

#: Ops looked at, from either end, for the time at which halves of a page ended.
ENDED_OPS: Final = 1 << 19
#: Bytes of frames read, and so checked, for one page.
PAGE_BYTES: Final = 16 << 20
_SETTLING: Final = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED)


class Shown:
    def __init__(self, files: HalfFiles) -> None:
        self._files, self._log = files, files.log

    def frames(self, half_offsets: Sequence[int]) -> tuple[list[Frame], int]:
        """The readable ones among these halves, and how many were looked at: a page of large bodies ends early."""
        found: list[Frame] = []
        read_bytes = 0
        for looked, half_offset in enumerate(half_offsets):
            entry = self._log.half_queue.entry(half_offset)
            if looked and read_bytes + entry[1] > PAGE_BYTES:
                return found, looked
            read_bytes += entry[1]
            try:
                found.append(self._log.log.read(entry[0], entry[1]))
            except Corrupt:
                continue  # the job quarantines it
        return found, len(half_offsets)

    def end_of(self, half_offset: int) -> int:
        return self._files.ends[half_offset]

    def group_nos(self, half_offsets: Ints) -> list[int]:
        """In the order given."""
        found: list[int] = self._log.half_heads(half_offsets)[1]["group_no"].tolist()
        return found

    def groups_and_times(self, half_offsets: Ints) -> tuple[Array, Ints]:
        """(group_no, stored_at_ms) of halves, in the order given."""
        heads = self._log.half_heads(half_offsets)[1]
        return heads["group_no"].copy(), heads["stored_at_ms"].copy()

    def states(self, half_offsets: Ints) -> tuple[list[int], list[int], list[bool]]:
        """(how they ended, attempts, whether a request is under way) of halves, in any order."""
        words = self._files.words(half_offsets)
        ends = [self._files.ends[half_offset] for half_offset in half_offsets.tolist()]
        return ends, check_count_of(words).tolist(), self._files.under_way(words).tolist()

    def ended_at_ms(self, frames: Sequence[Frame]) -> dict[int, int]:
        """When halves ended, if that is found among the ops behind the oldest of them or among the newest ops."""
        if not frames:
            return {}
        wanted = np.sort(np.array([frame.queue_offset for frame in frames], np.int64))
        since_ms = min(frame.stored_at_ms for frame in frames)
        first, stop = self._log.ops_since(since_ms)
        found = self._settling_ops(first, min(stop, first + ENDED_OPS), wanted)
        if len(found) < len(wanted) and stop > first + ENDED_OPS:
            found |= self._settling_ops(max(first + ENDED_OPS, stop - ENDED_OPS), stop, wanted)
        return found

    def _settling_ops(self, first: int, stop: int, wanted: Ints) -> dict[int, int]:
        entries = self._log.op_queue.read(first, stop)
        at = np.minimum(np.searchsorted(wanted, entries["tags_code"]), len(wanted) - 1)
        found: dict[int, int] = {}
        for entry in entries[wanted[at] == entries["tags_code"]]:
            try:
                op = self._log.frame(entry)
            except Corrupt:
                continue
            if op.fields["op_kind"] in _SETTLING:
                found[int(entry["tags_code"])] = op.stored_at_ms
        return found

    def quarantined(self, limit: int, at: int | None = None) -> tuple[list[int], int | None]:
        """Halves that could not be read, from place `at` of their queue on, and the place to go on from."""
        topics = self._files.rows.topics()
        if topics is None:
            return [], None
        queue, end = topics.queue("quarantine"), topics.page[JobSlot.QUARANTINE_END]
        first = max(queue.begin, at or 0)
        stop = min(end, first + limit)
        tags = queue.read(first, stop)["tags_code"].tolist() if first < stop else []
        return [tag for tag in tags if tag >= self._files.begin], stop if stop < end else None
