"""Columns: what their types are called, and small operations that numpy has no fast form of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]


def distinct(values: npt.NDArray[Any]) -> list[int]:
    """The distinct values, ascending: the few files or queues that many places lie in. np.unique would hash every place."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1024:
        return [int(value) for value in np.unique(values)]
    return (np.flatnonzero(np.bincount(values - low)) + low).tolist()


def how_many_fit(sizes: npt.NDArray[Any], most: int) -> int:
    """How many from the front have at most `most` together; one at least, however large it is."""
    return max(1, int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), most, "right")))


def last_of_each(numbers: Ints) -> Ints:
    """Where each number stands last. numpy promises no order when an index repeats, so repeats are taken out first."""
    if len(numbers) < 2 or bool((np.diff(numbers) > 0).all()):
        return np.arange(len(numbers))
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    return order[np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))]
