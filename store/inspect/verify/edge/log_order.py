"""Verify, the order of the log: batches whole, numbers of halves and ops consecutive, places of topic queues consecutive.

A gap is a problem unless the log is damaged before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.log_walk import LogWalk
from store.records import queue_key_of, queue_offset_of


class BatchOrder:
    """Frames of a batch follow each other."""

    def __init__(self, walk: LogWalk) -> None:
        self._walk = walk
        self._open = (0, 0)

    def check(self, offsets: Ints, heads: Array) -> None:
        """Batches whole: indexes run from 0 to length - 1, one frame right behind the other."""
        length, index = heads["batch_length"].astype(np.int64), heads["batch_index"].astype(np.int64)
        before_length = np.concatenate([[self._open[0]], length[:-1]])
        before_index = np.concatenate([[self._open[1] - 1], index[:-1]])
        # What the frame before leaves to come: the next index of its batch, or a new batch.
        expected = np.where(before_index + 1 < before_length, before_index + 1, 0)
        wrong = (index != expected) | ((expected > 0) & (length != before_length))
        for at in np.flatnonzero(wrong).tolist():
            if not self._walk.near_damage(int(offsets[at])):
                reason = f"frame {int(index[at])} of a batch of {int(length[at])} where frame {int(expected[at])} belongs"
                self._walk.files.add(int(offsets[at]), reason)
        self._open = (int(length[-1]), int(index[-1]) + 1)


class NumberOrder:
    """Numbers of halves, or of ops. `noted`: the next number at `noted_log_end`, where the checkpoint says what it should be."""

    def __init__(self, what: str, walk: LogWalk, noted_log_end: int) -> None:
        self._what, self._walk, self._noted_log_end = what, walk, noted_log_end
        self.following = None if walk.files.begin else 0
        self.noted = self.following

    def check(self, offsets: Ints, numbers: Ints, counts: Any = 1) -> None:
        """Queue offsets of one kind of frame, consecutive over the whole log; a gap needs damage before it. `counts`: how many
        numbers each frame takes."""
        following, last = self.following, numbers + counts - 1
        before = np.concatenate([[numbers[0] - 1 if following is None else following - 1], last[:-1]])
        for at in np.flatnonzero(numbers != before + 1).tolist():
            if int(numbers[at]) <= int(before[at]) or not self._walk.near_damage(int(offsets[at])):
                self._walk.files.add(int(offsets[at]) + 16, f"{self._what} {int(numbers[at])} where {int(before[at]) + 1} belongs")
        self.following = int(last[-1]) + 1
        if (early := offsets < self._noted_log_end).any():
            self.noted = int(last[early][-1]) + 1


class PlaceOrder:
    """Places in topic queues. `noted`: the next place of each queue at `noted_log_end`."""

    def __init__(self, walk: LogWalk, noted_log_end: int) -> None:
        self._walk, self._noted_log_end = walk, noted_log_end
        self._next: dict[int, int] = {}
        self.noted: dict[int, int] = {}

    def check(self, offsets: Ints, positions: Ints, of_message: Any) -> None:
        """Places of every topic queue, consecutive in log order; a gap needs damage before it."""
        if not len(positions):
            return
        keys, places = queue_key_of(positions), queue_offset_of(positions)
        order = np.argsort(keys, kind="stable")
        keys, places, offsets, of_message = keys[order], places[order], offsets[order], of_message[order]
        firsts = np.concatenate([[True], np.diff(keys) != 0])
        before = np.concatenate([[-1], places[:-1]])
        starts = np.flatnonzero(firsts)
        before[starts] = [
            self._next.get(key, 0 if not self._walk.files.begin else int(places[at])) - 1
            for at, key in zip(starts.tolist(), keys[starts].tolist(), strict=True)
        ]
        for at in np.flatnonzero(places != before + 1).tolist():
            if places[at] <= before[at] or not self._walk.near_damage(int(offsets[at])):
                reason = f"place {int(places[at])} of its topic queue where {int(before[at]) + 1} belongs"
                self._walk.files.add(int(offsets[at]) + (112 if of_message[at] else 40), reason)
        ends = np.flatnonzero(np.concatenate([np.diff(keys) != 0, [True]]))
        self._next.update(zip(keys[ends].tolist(), (places[ends] + 1).tolist(), strict=True))
        early = np.flatnonzero(offsets < self._noted_log_end)
        self.noted.update(zip(keys[early].tolist(), (places[early] + 1).tolist(), strict=True))
