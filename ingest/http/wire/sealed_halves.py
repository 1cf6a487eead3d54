"""The answer to stored halves. Halves that were stored together are encoded in columns.

The bytes are those that msgspec would write. Making an object for each half would take half the time of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ingest.ids import ID_CHARACTERS, Sealed


class HalfOut(Struct):
    id: str
    half_offset: int


class HalvesOut(Struct):
    halves: list[HalfOut]


_LAST_DIGITS: Final = np.array([b"%04d" % number for number in range(10_000)])


@lru_cache
def _row(before: int, between: int, number: str, after: int) -> np.dtype[np.void]:
    """A half in an answer: so many bytes before the id, between it and what differs of the half_offset, and behind that."""
    names, id = ("before", "id", "between", "number", "after"), f"S{ID_CHARACTERS}"
    return np.dtype(list(zip(names, (f"V{before}", id, f"V{between}", number, f"V{after}"), strict=True)))


def _rows(sealed: Sealed, before: bytes, between: bytes, numbers: npt.NDArray[Any], after: bytes) -> bytes:
    row = _row(len(before), len(between), numbers.dtype.str, len(after))
    template = before + bytes(ID_CHARACTERS) + between + bytes(numbers.dtype.itemsize) + after
    rows = np.frombuffer(bytearray(template * len(sealed)), row)
    rows["id"], rows["number"] = sealed.ids, numbers
    return rows.tobytes()


def _sealed(answer: Any) -> Sealed:
    """The only thing in an answer that the encoders do not know."""
    if type(answer) is not Sealed:
        raise NotImplementedError(f"{type(answer).__name__} is not for an answer")
    return answer


def as_json(given: Any) -> Any:
    answer = _sealed(given)
    high, low = divmod(answer.first, len(_LAST_DIGITS))
    if not high or low + len(answer) > len(_LAST_DIGITS):  # they differ in more than their last digits
        return [HalfOut(*half) for half in answer]
    rows = _rows(answer, b'{"id":"', b'","half_offset":%d' % high, _LAST_DIGITS[low : low + len(answer)], b"},")
    return msgspec.Raw(b"[%b]" % rows[:-1])


def as_msgpack(given: Any) -> Any:
    answer = _sealed(given)
    first, stop = answer.first, answer.first + len(answer)
    if first <= 0xFFFF or stop > 1 << 32 or not 16 <= len(answer) <= 0xFFFF:  # other lengths of numbers
        return [HalfOut(*half) for half in answer]
    numbers = np.arange(first, stop).astype(">u4")
    rows = _rows(answer, b"\x82\xa2id\xd9%c" % ID_CHARACTERS, b"\xabhalf_offset\xce", numbers, b"")
    return msgspec.Raw(b"\xdc%b%b" % (len(answer).to_bytes(2, "big"), rows))


def halves(stored: Sequence[tuple[str, int]]) -> HalvesOut:
    if type(stored) is Sealed:
        return HalvesOut(stored)  # type: ignore[arg-type]  # encoded by `as_json` or `as_msgpack`
    return HalvesOut([HalfOut(*half) for half in stored])
