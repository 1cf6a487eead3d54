"""MessagePack, as far as messages need it: a body goes over the wire as it is, not a third larger as text in JSON, and neither side
has to look at each of its bytes. (A library for this would be the SDK's only dependency.)"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

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


# --- reading ------------------------------------------------------------------------------------------------------------------
_NUMBERS: Final = {
    0xCC: struct.Struct(">B"), 0xCD: struct.Struct(">H"), 0xCE: struct.Struct(">I"), 0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"), 0xD1: struct.Struct(">h"), 0xD2: struct.Struct(">i"), 0xD3: struct.Struct(">q"),
    0xCA: struct.Struct(">f"), 0xCB: struct.Struct(">d"),
}  # fmt: skip
#: Width of the length that follows, by first byte.
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXTS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_DEPTH_MAX: Final = 64


def unpack(content: bytes) -> Any:
    """What these bytes say; ValueError where they are no MessagePack, or more than one value."""
    try:
        value, end = _value(content, 0, 0)
    except (IndexError, struct.error):
        raise ValueError("MessagePack that is cut off") from None
    except TypeError:
        raise ValueError("MessagePack with a list or a map as the name in a map") from None
    if end != len(content):
        raise ValueError(f"{len(content) - end} bytes behind the value")
    return value


def _value(content: bytes, at: int, depth: int) -> tuple[Any, int]:
    """(the value at a place, the place behind it)."""
    first = content[at]
    if first < 0x80:
        return first, at + 1
    if first >= 0xE0:
        return first - 256, at + 1
    if 0xA0 <= first < 0xC0:
        return _text(content, at + 1, first & 31)
    number = _NUMBERS.get(first)
    if number is not None:
        return number.unpack_from(content, at + 1)[0], at + 1 + number.size
    if first in _CONSTANTS:
        return _CONSTANTS[first], at + 1
    if first in _BYTES:
        width = _BYTES[first]
        return _slice(content, at + 1 + width, int.from_bytes(content[at + 1 : at + 1 + width]))
    if first in _TEXTS:
        width = _TEXTS[first]
        return _text(content, at + 1 + width, int.from_bytes(content[at + 1 : at + 1 + width]))
    return _container(content, at, first, depth)


def _container(content: bytes, at: int, first: int, depth: int) -> tuple[Any, int]:
    if depth > _DEPTH_MAX:
        raise ValueError("MessagePack that is nested too deeply")
    is_list = 0x90 <= first < 0xA0 or first in _LISTS
    if not is_list and not 0x80 <= first < 0x90 and first not in _MAPS:
        raise ValueError(f"MessagePack with byte {first:#x}, which is not understood")
    width = _LISTS.get(first) or _MAPS.get(first) or 0
    count = int.from_bytes(content[at + 1 : at + 1 + width]) if width else first & 15
    at += 1 + width
    if count > len(content):
        raise ValueError("MessagePack that is cut off")
    if is_list:
        items = []
        for _ in range(count):
            item, at = _value(content, at, depth + 1)
            items.append(item)
        return items, at
    found = {}
    for _ in range(count):
        name, at = _value(content, at, depth + 1)
        found[name], at = _value(content, at, depth + 1)
    return found, at


def _slice(content: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(content):
        raise ValueError("MessagePack that is cut off")
    return content[at : at + size], at + size


def _text(content: bytes, at: int, size: int) -> tuple[str, int]:
    value, end = _slice(content, at, size)
    return value.decode(), end
