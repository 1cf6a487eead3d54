"""The calls of the HTTP API as values: what is sent, how the answer is read, and whether the call may be repeated.

Nothing is sent here. `Api` makes these calls with threads (`escrow._transport`), `AsyncProducer` and `AsyncConsumer` in an event
loop (`escrow._loop`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from escrow import _msgpack
from escrow.errors import BadAnswer
from escrow.messages import Check, DeadLetter, Delivered, End, EndAnswer, Half, Message, Position

_T = TypeVar("_T")

JSON: Final = "application/json"


class Repeat(Enum):
    """When a failed attempt may be followed by another."""

    #: Carrying it out twice does no harm: it has a dedup_key, or it only says again what was said.
    ALWAYS = "always"
    #: Only where it was certainly not carried out: no connection, or Escrow said so.
    IF_NOT_DONE = "if not done"
    #: The caller has a loop of its own.
    NEVER = "never"


@dataclass(slots=True)
class Call(Generic[_T]):
    method: str
    path: str
    #: Reads the decoded answer.
    read: Callable[[dict[str, Any]], _T]
    query: Mapping[str, object] | None = None
    #: Bytes as they are, or something for JSON; None: no body.
    content: object = None
    media: str = JSON
    #: What the answer should be in: JSON, or MessagePack where it has many bytes.
    accept: str = JSON
    repeat: Repeat = Repeat.ALWAYS
    #: How long Escrow may hold the answer back; None: it is no long poll.
    wait_s: float | None = None


def path_of(*parts: str) -> str:
    """A path whose parts are quoted: names of groups and topics come from users."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def an_object(method: str, path: str, **rest: Any) -> Call[dict[str, Any]]:
    """A call whose answer is taken as it is."""
    return Call(method, path, dict, **rest)


# --- producers ------------------------------------------------------------------------------------------------------------
def halves(group: str, messages: Sequence[Message], dedup_keys: Sequence[str] = ()) -> Call[list[Half]]:
    keys = dedup_keys or [""] * len(messages)
    content = _packed_messages([message.pack(group, key) for message, key in zip(messages, keys, strict=True)])
    keyed = all(key or message.dedup_key for message, key in zip(messages, keys, strict=True))
    repeat = Repeat.ALWAYS if keyed else Repeat.IF_NOT_DONE
    read = _list("halves", Half.from_json, len(messages))
    return Call("POST", "/v1/halves", read, content=content, media=_msgpack.MEDIA, repeat=repeat)


def messages(group: str, messages: Sequence[Message]) -> Call[list[Position]]:
    content = _packed_messages([message.pack(group) for message in messages])
    read = _list("messages", Position.from_json, len(messages))
    return Call("POST", "/v1/messages", read, content=content, media=_msgpack.MEDIA, repeat=Repeat.IF_NOT_DONE)


def ends(group: str, ends: Sequence[End]) -> Call[list[EndAnswer]]:
    content = b"".join([b'{"ends":[', b",".join([end.to_json(group) for end in ends]), b"]}"])
    return Call("POST", "/v1/ends", _list("answers", EndAnswer.from_json, len(ends)), content=content)


def poll_checks(group: str, member: str, *, max: int, wait_s: float) -> Call[list[Check]]:
    query = {"member": member, "max": max, "wait_s": wait_s}
    read = _list("checks", lambda wire: Check.from_json(wire, group))
    return Call("GET", path_of("v1", "groups", group, "checks"), read, query=query, repeat=Repeat.NEVER, wait_s=wait_s)


def transaction(id: str) -> Call[dict[str, Any]]:
    return an_object("GET", path_of("v1", "transactions", id))


# --- consumers ------------------------------------------------------------------------------------------------------------
def poll_messages(
    topic: str,
    group: str,
    consumer: str,
    *,
    max: int,
    wait_s: float,
    visibility_s: float,
    tags: str | None = None,
    start: str | int | None = None,
) -> Call[list[Delivered]]:
    query = {"group": group, "consumer": consumer, "max": max, "wait_s": wait_s, "visibility_s": _plain(visibility_s)}
    query |= {"tags": tags or None, "from": start}
    read = _list("messages", lambda wire: Delivered.from_json(wire, topic))
    return Call("GET", path_of("v1", "topics", topic, "messages"), read, query=query, repeat=Repeat.NEVER, wait_s=wait_s)


def ack(topic: str, group: str, receipts: Sequence[str]) -> Call[list[bool]]:
    read = _list("answers", lambda wire: bool(wire["verdict"] == "done"), len(receipts))
    return Call("POST", path_of("v1", "topics", topic, "acks"), read, content={"group": group, "receipts": list(receipts)})


def set_visibility(topic: str, group: str, receipts: Sequence[str], visibility_s: float) -> Call[list[str | None]]:
    content = {"group": group, "receipts": list(receipts), "visibility_s": _plain(visibility_s)}
    read = _list("receipts", lambda receipt: receipt, len(receipts))
    return Call("POST", path_of("v1", "topics", topic, "visibility"), read, content=content)


def seek(topic: str, group: str, to: str | int) -> Call[list[Position]]:
    content = {"group": group, "to": str(to)}
    return Call("POST", path_of("v1", "topics", topic, "seek"), _list("queues", Position.from_json), content=content)


def dead_letters(group: str, *, max: int = 32, after: str | None = None) -> Call[tuple[list[DeadLetter], str | None]]:
    letters = _list("dead_letters", DeadLetter.from_json)
    path = path_of("v1", "groups", group, "dead-letters")
    return Call("GET", path, lambda answer: (letters(answer), answer.get("next")), query={"max": max, "after": after})


def replay_dead_letters(group: str, ids: Sequence[str]) -> Call[int]:
    path = path_of("v1", "groups", group, "dead-letters", "replay")
    content = {"ids": list(ids)}
    return Call("POST", path, lambda answer: int(_field(answer, "replayed")), content=content, repeat=Repeat.IF_NOT_DONE)


# --- answers --------------------------------------------------------------------------------------------------------------
def a_list(name: str) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """Reads the list of objects under `name`."""
    return _list(name, dict)


def _list(name: str, read: Callable[[Any], _T], count: int | None = None) -> Callable[[dict[str, Any]], list[_T]]:
    """Reads the list under `name`, item by item; as many as were asked for."""

    def items(answer: dict[str, Any]) -> list[_T]:
        found = _field(answer, name)
        try:
            items = [read(item) for item in found]
        except (KeyError, TypeError, ValueError) as error:
            raise BadAnswer(f"{name}: cannot be read ({type(error).__name__}: {error})") from error
        if count is not None and len(items) != count:
            raise BadAnswer(f"{name}: has {len(items)} items for {count} that were sent")
        return items

    return items


def _field(answer: dict[str, Any], name: str) -> Any:
    if name not in answer:
        raise BadAnswer(f"the answer has no field {name}: is this URL an Escrow of this version?")
    return answer[name]


def _packed_messages(messages: Sequence[bytes]) -> bytes:
    return b"".join([b"\x81", _msgpack.text("messages"), _msgpack.count_of(messages), *messages])


def _plain(seconds: float) -> float | int:
    """5.0 as 5: a server may take whole numbers only."""
    return int(seconds) if float(seconds).is_integer() else seconds
