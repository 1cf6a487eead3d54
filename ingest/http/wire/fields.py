"""Kinds of fields that several requests and answers share."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct

from ingest.errors import InvalidRequest
from store.naming import NAME_MAX_BYTES

PROPERTIES_MAX: Final = 256
TEXT_MAX_CHARACTERS: Final = 4096

T = TypeVar("T")
_NAME_PATTERN: Final = {"pattern": r"^[A-Za-z0-9_%|.\-]+$"}
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES, extra_json_schema=_NAME_PATTERN)]
Text = Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS)]
PropertyName = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX_CHARACTERS)]
I63 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
#: maxMessagesPerRequest cannot be more.
ITEMS_MAX: Final = 65_535
Items = Annotated[list[T], Meta(min_length=1, max_length=ITEMS_MAX)]
Properties = Annotated[dict[PropertyName, str], Meta(max_length=PROPERTIES_MAX)]


class PlaceOut(Struct):
    queue_id: int
    queue_offset: int


def number(text: str, field: str) -> int:
    """A number in a path."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidRequest(f"{field}: {text[:40]!r} is not a number", field)
    return int(text)
