"""Records of the redo topic as a reader gets them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sinks.kafka import redo


class Read:
    """A record as a consumer returns it."""

    def __init__(self, redo_offset: int, record: redo.Record) -> None:
        self._offset, (self._headers, self._value) = redo_offset, record

    def offset(self) -> int:
        return self._offset

    def headers(self) -> Any:
        return list(self._headers)

    def value(self) -> bytes:
        return self._value


def as_read(records: Iterable[redo.Record]) -> list[Any]:
    return [Read(at, record) for at, record in enumerate(records)]
