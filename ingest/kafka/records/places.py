"""A half's place, and the same as one number: the partition in 16 bits, the half_offset in the 47 below them."""

from __future__ import annotations

from typing import Final, NamedTuple

_BITS: Final = 47
PARTITION_MAX: Final = (1 << 16) - 1
HALF_OFFSET_MAX: Final = (1 << _BITS) - 1


class Place(NamedTuple):
    """Where a half is: what Kafka answered when it took it."""

    partition: int
    half_offset: int

    @property
    def number(self) -> int:
        return self.partition << _BITS | self.half_offset

    @staticmethod
    def of(number: int) -> Place:
        return Place(number >> _BITS, number & HALF_OFFSET_MAX)
