"""How the halves of one partition have ended: one byte a half offset, as in `store.tables.ends`, in chunks of 65,536.

Written by one thread, read by any. Which chunks have changed since the last checkpoint is kept beside them (checkpoints.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from store.tables.ends import OPEN

CHUNK_BITS: Final = 16
CHUNK: Final = 1 << CHUNK_BITS


class Ends:
    """`through`: by chunk, the op offset below which every op is in it already, where a checkpoint is ahead of its mark."""

    def __init__(self, chunks: Mapping[int, bytes] | None = None, through: Mapping[int, int] | None = None) -> None:
        self._chunks = {number: bytearray(chunk) for number, chunk in (chunks or {}).items()}
        self._through = dict(through or {})
        self._changed: set[int] = set()

    def __getitem__(self, half_offset: int) -> int:
        chunk = self._chunks.get(half_offset >> CHUNK_BITS)
        return chunk[half_offset & (CHUNK - 1)] if chunk is not None else OPEN

    def __setitem__(self, half_offset: int, value: int) -> None:
        number = half_offset >> CHUNK_BITS
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = bytearray(CHUNK)
        chunk[half_offset & (CHUNK - 1)] = value
        self._changed.add(number)

    def first(self, half_offset: int, value: int) -> bool:
        """Set it where it is open; False where it is not, or that cannot be told here (`has`)."""
        number, at = half_offset >> CHUNK_BITS, half_offset & (CHUNK - 1)
        chunk = self._chunks.get(number)
        if self._through or chunk is None or chunk[at]:
            return False
        chunk[at] = value
        self._changed.add(number)
        return True

    def has(self, half_offset: int, op_offset: int) -> bool:
        """Whether this op about this half is in the table already."""
        return bool(self._through) and op_offset < self._through.get(half_offset >> CHUNK_BITS, 0)

    def forget(self, below: int) -> None:
        """Halves below this offset are gone."""
        for number in [number for number in self._chunks if (number + 1) << CHUNK_BITS <= below]:
            del self._chunks[number]
            self._changed.add(number)

    @property
    def numbers(self) -> list[int]:
        """The chunks that there are."""
        return sorted(self._chunks)

    def take(self, *, all_of_them: bool) -> dict[int, bytes | None]:
        """Chunks that have changed since this was last called, or all; None: it is gone."""
        changed, self._changed = self._changed, set()
        wanted = changed | set(self._chunks) if all_of_them else changed
        return {number: bytes(self._chunks[number]) if number in self._chunks else None for number in wanted}

    def changed_again(self, numbers: Iterable[int]) -> None:
        """These have to be kept with the next checkpoint: what was taken could not be, or they lie about and are nobody's."""
        self._changed.update(numbers)
