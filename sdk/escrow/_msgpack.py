"""MessagePack, as far as messages need it: a body goes over the wire as it is, not a third larger as text in JSON, and neither side
has to look at each of its bytes. (A library for this would be the SDK's only dependency.)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

MEDIA: Final = "application/msgpack"


def text(value: str) -> bytes:
    # Half a surrogate pair goes on its way: Escrow refuses it, and only its sender gets the error.
    content = value.encode("utf-8", "surrogatepass")
    size = len(content)
    if size < 32:
        return b"%c%b" % (0xA0 | size, content)
    return b"\xdb%b%b" % (size.to_bytes(4, "big"), content)


def size_of(value: bytes) -> bytes:
    """What goes before bytes as they are."""
    return b"\xc6%b" % len(value).to_bytes(4, "big")


def anything(value: object) -> bytes:
    """A text, a number or a mapping of them. What is none of these goes as a text: Escrow names the field that it does not fit."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int) and 0 <= value < 1 << 64:
        return b"\xcf%b" % value.to_bytes(8, "big")
    if isinstance(value, int) and -(1 << 63) <= value < 0:
        return b"\xd3%b" % value.to_bytes(8, "big", signed=True)
    if isinstance(value, Mapping):
        pairs = [anything(name) + anything(content) for name, content in value.items()]
        return b"\xdf%b%b" % (len(pairs).to_bytes(4, "big"), b"".join(pairs))
    return text(repr(value))


def count_of(items: Sequence[object]) -> bytes:
    """What goes before the items of a list."""
    return b"\xdd%b" % len(items).to_bytes(4, "big")
