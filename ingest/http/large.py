"""Large bodies: decoded in a thread, item by item, and no further than the limits go.

What msgspec decodes in one call holds up every other request meanwhile: 16 MiB of tiny messages take half a second, one message
with a million properties takes longer. So a body beyond LARGE_BYTES is decoded in a thread; and since that thread keeps the
interpreter to itself between two lines of Python, each item has one (`__post_init__`), which also counts:

    items           more than maxMessagesPerRequest: TooLarge, at the first one too many
    properties      are looked into only where they are short enough to be right

Bodies with other lists (receipts, ids) have a limit in bytes instead (`Route.body_max_bytes`).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from ingest.errors import InvalidRequest, TooLarge
from ingest.http.wire import codec, fields, producers
from ingest.threads import Threads

LARGE_BYTES: Final = 256 << 10
#: The store takes 30 KiB of properties. In JSON a character may have six, and every property has quotes, colon and comma.
PROPERTIES_MAX_BYTES: Final = 256 << 10

T = TypeVar("T")


class _Items:
    """Counts the items of the body that is being decoded. There is one thread that decodes."""

    count = most = 0

    def next(self) -> None:
        self.count += 1
        if self.count > self.most:
            raise ValueError("too many")


_ITEMS: Final = _Items()
_JSON_PROPERTIES: Final = msgspec.json.Decoder(fields.Properties)
_MSGPACK_PROPERTIES: Final = msgspec.msgpack.Decoder(fields.Properties)


def _properties(given: Raw, decoder: Any) -> dict[str, str]:
    size = memoryview(given).nbytes
    if not size:
        return {}  # none were given
    if size > PROPERTIES_MAX_BYTES:
        raise ValueError(f"properties: have more than {PROPERTIES_MAX_BYTES} bytes")
    try:
        found: dict[str, str] = decoder.decode(given)
    except msgspec.DecodeError as error:  # as it is, it would not tell of which message
        raise ValueError(f"properties: {error}") from None
    return found


# The same fields as their bases, so that what comes out can be used in their place.
class _JsonMessage(producers.MessageIn, forbid_unknown_fields=True):
    properties: Raw = Raw()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _ITEMS.next()
        self.properties = _properties(self.properties, _JSON_PROPERTIES)  # type: ignore[assignment]


class _MsgpackMessage(producers.MessageIn, forbid_unknown_fields=True):
    properties: Raw = Raw()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _ITEMS.next()
        self.properties = _properties(self.properties, _MSGPACK_PROPERTIES)  # type: ignore[assignment]


class _End(producers.EndIn, forbid_unknown_fields=True):
    def __post_init__(self) -> None:
        _ITEMS.next()


class _JsonMessages(Struct, forbid_unknown_fields=True):
    messages: fields.Items[_JsonMessage]


class _MsgpackMessages(Struct, forbid_unknown_fields=True):
    messages: fields.Items[_MsgpackMessage]


class _Ends(Struct, forbid_unknown_fields=True):
    ends: fields.Items[_End]


_COUNTED: Final[dict[tuple[Any, str], Any]] = {
    (producers.MessagesIn, codec.JSON): _JsonMessages,
    (producers.MessagesIn, codec.MSGPACK): _MsgpackMessages,
    (producers.EndsIn, codec.JSON): _Ends,
    (producers.EndsIn, codec.MSGPACK): _Ends,
}


class LargeBodies:
    """For one event loop."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._threads = Threads("decode", 1)

    async def decode(self, content: bytes, media: str, shape: type[T]) -> T:
        """As `codec.decode`."""
        return await self._threads.call(decode, content, media, shape, self._items_max)

    def close(self) -> None:
        self._threads.close()


def decode(content: bytes, media: str, shape: type[T], items_max: int) -> T:
    """In the thread; what comes out has the fields of `shape`."""
    _ITEMS.count, _ITEMS.most = 0, items_max
    try:
        found: T = codec.decode(content, media, _COUNTED.get((shape, media), shape))
        return found
    except InvalidRequest as error:
        if _ITEMS.count > items_max:
            raise TooLarge(f"more than {items_max} in one request (maxMessagesPerRequest): send smaller batches") from None
        raise error from None
