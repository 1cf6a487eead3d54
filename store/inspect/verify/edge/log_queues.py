"""Verify, half queue and op queue: every entry against its frame, every frame against its entry."""

from __future__ import annotations

from typing import Any

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.files import SegmentFiles
from store.inspect.verify.log_walk import LogWalk
from store.records import ENTRY


def compare_queue(queue: SegmentFiles, what: str, offsets: Ints, heads: Array, tags: Any) -> None:
    """Entries of the half or op queue against the frames they stand for."""
    numbers = heads["queue_offset"]
    if not len(numbers):
        return
    assert ENTRY.fields is not None
    if queue.end < (int(numbers.max()) + 1) * ENTRY.itemsize:
        queue.add(queue.end, f"missing, or too short: the {what} queue ends before {what} {int(numbers.max())}")
        return
    first = int(numbers.min())
    entries = queue.records(ENTRY, first, int(numbers.max()) + 1)[numbers - first]
    wanted = (("commit_log_offset", offsets), ("size_bytes", heads["size_bytes"]), ("tags_code", tags))
    for name, values in wanted:
        for at in np.flatnonzero(entries[name] != values).tolist():
            number = int(numbers[at])
            reason = f"{what} {number}: {name} is {int(entries[name][at])}, the log says {int(values[at])}"
            queue.add(number * ENTRY.itemsize + ENTRY.fields[name][1], reason)


def check_entries_left(queue: SegmentFiles, what: str, begin: int, seen: Any, walk: LogWalk) -> None:
    """Entries from `begin` on whose frame the walk did not see."""
    missing = np.flatnonzero(~seen)
    if not len(missing):
        return
    if not queue.starts:
        queue.add(0, f"the {what} queue is missing")
        return
    entries = queue.records(ENTRY, begin, begin + int(missing[-1]) + 1)[missing]
    front = front_before_log(seen, walk) + begin
    for at, (offset, size, _) in zip((missing + begin).tolist(), entries.tolist(), strict=True):
        if 0 <= offset < walk.files.begin and (size > 0 or at < front):
            continue
        if walk.touched_by_damage(offset) and size > 0:
            if not walk.damage_begins(offset):
                walk.files.add(offset, f"the frame of {what} {at} is not valid")
        else:
            queue.add(at * ENTRY.itemsize, f"{what} {at}: no such frame at {offset}")


def front_before_log(seen: Any, walk: LogWalk) -> int:
    """How many entries at the front of a queue are of frames before the log's begin. A restored store has holes there."""
    if not walk.files.begin:
        return 0
    return int(np.argmax(seen)) if seen.any() else len(seen)
