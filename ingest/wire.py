"""What goes over the wire as JSON, and what it becomes. Every field is checked here and named when it is wrong.

message   group, topic, body (base64) or text; key, tags, properties, check_immunity_s, born_at_ms, dedup_key, queue_id, flag
end       group, id, outcome (commit | rollback | unknown), from_check, remark
check     id, topic, body (base64), key, tags, properties, attempt, born_at_ms, stored_at_ms: what a member is asked
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from math import isnan
from typing import Any, Final

from ingest.checks import CheckRequest
from ingest.core import EndRequest
from ingest.errors import InvalidRequest
from store.frames import CHECK_IMMUNITY_TIME_IN_SECONDS, DEDUP_KEY, KEYS, OWN_PROPERTIES, REAL_TOPIC, TAGS, Message
from store.records import parse_immunity_s

PROPERTIES_MAX: Final = 256
TEXT_MAX_CHARACTERS: Final = 4096
_MESSAGE_FIELDS: Final = frozenset(
    {
        "group",
        "topic",
        "body",
        "text",
        "key",
        "tags",
        "properties",
        "check_immunity_s",
        "born_at_ms",
        "dedup_key",
        "queue_id",
        "flag",
    }
)
_END_FIELDS: Final = frozenset({"group", "id", "outcome", "from_check", "remark"})
_HIDDEN: Final = OWN_PROPERTIES | {KEYS, TAGS, DEDUP_KEY}


def items(params: Mapping[str, Any], name: str, read: Callable[[Mapping[str, Any], str], Any]) -> list[Any]:
    """The list `name`, each item read and named by its number."""
    found = params.get(name)
    if not isinstance(found, list):
        raise InvalidRequest(f"{name}: must be a list")
    return [read(_object(item, f"{name}[{number}]"), f"{name}[{number}]") for number, item in enumerate(found)]


def message(item: Mapping[str, Any], at: str) -> Message:
    _only(item, _MESSAGE_FIELDS, at)
    properties = _properties(item, at)
    immunity = item.get("check_immunity_s", properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS))
    return Message(
        text(item, "group", at, required=True),
        text(item, "topic", at, required=True),
        _body(item, at),
        properties,
        queue_id=_number(item, "queue_id", at, 0xFFFF, None),
        born_at_ms=_number(item, "born_at_ms", at, (1 << 63) - 1, 0) or 0,
        flag=_number(item, "flag", at, 0xFFFF_FFFF, 0) or 0,
        immunity_s=parse_immunity_s(None if immunity is None or isinstance(immunity, bool) else str(immunity)),
        dedup_key=text(item, "dedup_key", at),
    )


def end(item: Mapping[str, Any], at: str) -> EndRequest:
    _only(item, _END_FIELDS, at)
    from_check = item.get("from_check", False)
    if not isinstance(from_check, bool):
        raise InvalidRequest(f"{at}.from_check: must be true or false")
    return EndRequest(
        text(item, "group", at, required=True),
        text(item, "id", at, required=True),
        text(item, "outcome", at, required=True),
        from_check,
        text(item, "remark", at),
    )


def check(request: CheckRequest, id: str) -> dict[str, Any]:
    frame = request.frame
    return {
        "id": id,
        "topic": frame.properties.get(REAL_TOPIC, ""),
        "body": b64encode(frame.body).decode(),
        "key": frame.properties.get(KEYS, ""),
        "tags": frame.properties.get(TAGS, ""),
        "properties": {name: value for name, value in frame.properties.items() if name not in _HIDDEN},
        "attempt": request.attempt,
        "born_at_ms": frame.fields["born_at_ms"],
        "stored_at_ms": frame.stored_at_ms,
    }


def text(item: Mapping[str, Any], name: str, at: str = "", *, required: bool = False, default: str = "") -> str:
    """A text field that is UTF-8 all through (JSON can spell half a character)."""
    where = f"{at}.{name}" if at else name
    value = item.get(name, default)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}: must be text")
    if required and not value:
        raise InvalidRequest(f"{where}: is missing")
    if len(value) > TEXT_MAX_CHARACTERS:
        raise InvalidRequest(f"{where}: has {len(value)} characters; at most {TEXT_MAX_CHARACTERS} are taken")
    _utf8(value, where)
    return value


def number(item: Mapping[str, Any], name: str, default: float) -> float:
    value = item.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or isnan(value):
        raise InvalidRequest(f"{name}: must be a number")
    return value


def _object(item: object, at: str) -> Mapping[str, Any]:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{at}: must be an object")
    return item


def _only(item: Mapping[str, Any], known: frozenset[str], at: str) -> None:
    unknown = sorted(set(item) - known)
    if unknown:
        raise InvalidRequest(f"{at}.{unknown[0][:64]}: no such field; there are {', '.join(sorted(known))}")


def _utf8(value: str, where: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{where}: is not valid Unicode (half a surrogate pair)") from None


def _body(item: Mapping[str, Any], at: str) -> bytes:
    if ("body" in item) == ("text" in item):
        raise InvalidRequest(f"{at}.body: give either body (base64) or text")
    if "text" in item:
        if not isinstance(item["text"], str):
            raise InvalidRequest(f"{at}.text: must be text")
        return _utf8(item["text"], f"{at}.text")
    try:
        return b64decode(item["body"], validate=True)
    except (Base64Error, TypeError, ValueError):
        raise InvalidRequest(f"{at}.body: is not base64; send plain text as text") from None


def _properties(item: Mapping[str, Any], at: str) -> dict[str, str]:
    given = item.get("properties", {})
    if not isinstance(given, dict) or len(given) > PROPERTIES_MAX:
        raise InvalidRequest(f"{at}.properties: must be an object of at most {PROPERTIES_MAX} texts")
    properties = {}
    for name, value in given.items():
        if not isinstance(value, str):
            raise InvalidRequest(f"{at}.properties.{name[:64]}: must be text")
        _utf8(name + value, f"{at}.properties")
        properties[name] = value
    for field, property_name in (("key", KEYS), ("tags", TAGS)):
        value = text(item, field, at)
        if value:
            properties[property_name] = value
    return properties


def _number(item: Mapping[str, Any], name: str, at: str, most: int, default: int | None) -> int | None:
    value = item.get(name, default)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidRequest(f"{at}.{name}: must be a whole number from 0 to {most}")
    return value
