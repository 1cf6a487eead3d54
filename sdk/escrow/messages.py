"""What goes to Escrow and what comes back, as plain values. How each looks on the wire is written beside it.

Message              what a producer sends; Half and Position say where it lies
Outcome, End         what a producer says of a half; EndAnswer is what it hears, TransactionResult the whole story
Check                the question about a half
Delivered            what a consumer gets
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

from escrow import _msgpack
from escrow.errors import EscrowError

#: Escrow takes texts of at most 4096 characters; a remark is a hint for people, and this much is enough.
REMARK_MAX_CHARACTERS: Final = 500

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
#: A text in JSON. An object of a few texts is put together from these: a whole encoder for each costs three times as much.
_text: Final = encode_basestring_ascii


def to_json(content: object) -> bytes:
    """As it goes over the wire."""
    return _encode(content).encode()


class Outcome(StrEnum):
    """How a local transaction went, as far as its producer knows."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: Not known yet: Escrow asks again.
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """What Escrow says to an outcome."""

    ACCEPTED = "accepted"
    ALREADY = "already"
    CONFLICT = "conflict"
    REFUSED = "refused"


_BODY: Final = _msgpack.text("body")
_TEXT: Final = _msgpack.text("text")
_DEDUP_KEY: Final = _msgpack.text("dedup_key")


@lru_cache(256)
def _begin(group: str, topic: str) -> bytes:
    """What most messages have in common."""
    names = {"group": group, "topic": topic}
    return b"".join([_msgpack.text(name) + _msgpack.anything(value) for name, value in names.items()]) + _msgpack.text("born_at_ms")


@dataclass(frozen=True)
class Message:
    """A message for a topic. A `str` body travels as UTF-8; consumers always get bytes."""

    topic: str
    body: bytes | str
    #: Messages with the same key keep their order.
    key: str = ""
    #: For the consumers' filter.
    tags: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    #: Grace before the first check; None: Escrow's transactionTimeOut.
    check_immunity_s: int | None = None
    #: The same key again within Escrow's dedupWindow is the same half. Empty: the producer makes one for each half.
    dedup_key: str = ""
    #: A queue of the topic instead of the key's.
    queue_id: int | None = None
    #: The producer's clock: shown, never used. None: the time of sending.
    born_at_ms: int | None = None
    #: Filled in by the producer, for the local transaction: the id of this message's half.
    transaction_id: str = field(default="", compare=False)

    def pack(self, group: str, dedup_key: str = "") -> bytes:
        """As the HTTP API takes it, in MessagePack. A key given here counts where the message has none."""
        born_at_ms = time.time_ns() // 1_000_000 if self.born_at_ms is None else self.born_at_ms
        parts, count = [b"", _begin(group, self.topic), _msgpack.anything(born_at_ms)], 4
        if isinstance(self.body, str):
            parts += (_TEXT, _msgpack.text(self.body))
        else:
            parts += (_BODY, _msgpack.size_of(self.body), self.body)
        if self.dedup_key or dedup_key:
            parts += (_DEDUP_KEY, _msgpack.anything(self.dedup_key or dedup_key))
            count += 1
        if self.key or self.tags or self.properties or self.check_immunity_s is not None or self.queue_id is not None:
            given = {
                "key": self.key or None, "tags": self.tags or None, "properties": self.properties or None,
                "check_immunity_s": self.check_immunity_s, "queue_id": self.queue_id,
            }  # fmt: skip
            rest = [_msgpack.text(name) + _msgpack.anything(value) for name, value in given.items() if value is not None]
            parts += rest
            count += len(rest)
        parts[0] = b"%c" % (0x80 | count)
        return b"".join(parts)

    def with_id(self, transaction_id: str) -> Message:
        """The same for the local transaction. (By its dict: to set ten attributes of a frozen class takes four times as long.)"""
        found = object.__new__(Message)
        found.__dict__.update(self.__dict__, transaction_id=transaction_id)
        return found


class Half(NamedTuple):
    """A stored half. `id` is the transaction's: what ends it, what a check-back names, what a barrier row is about."""

    id: str
    half_offset: int

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> Half:
        return tuple.__new__(cls, (wire["id"], wire["half_offset"]))  # there are many: `cls(…)` takes twice as long


class Position(NamedTuple):
    """Where a message lies in its topic."""

    queue_id: int
    queue_offset: int

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> Position:
        return cls(wire["queue_id"], wire["queue_offset"])


class End(NamedTuple):
    """What a producer says of a half."""

    id: str
    outcome: Outcome
    remark: str = ""
    from_check: bool = False

    def to_json(self, group: str) -> bytes:
        wire = f'{{"group":{_text(group)},"id":{_text(self.id)},"outcome":{_text(self.outcome)}'
        if self.from_check:
            wire += ',"from_check":true'
        if self.remark:
            # An exception's text may hold half a surrogate pair (file names do): Escrow would refuse the whole end.
            wire += f',"remark":{_text(self.remark[:REMARK_MAX_CHARACTERS].encode("utf-8", "replace").decode())}'
        return f"{wire}}}".encode()


_STANDING: Final = (Verdict.ACCEPTED, Verdict.ALREADY)


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """What Escrow said to an end. `state` is the half's, `reason` tells why it was refused."""

    verdict: Verdict
    reason: str = ""
    state: str = ""

    @property
    def stands(self) -> bool:
        """It has ended so, now or before. (UNKNOWN ends nothing: then it was noted.)"""
        return self.verdict in _STANDING

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> EndAnswer:
        return _end_answer(wire["verdict"], wire.get("reason") or "", wire.get("state") or "")


@lru_cache(256)
def _end_answer(verdict: str, reason: str, state: str) -> EndAnswer:
    """There are few different ones."""
    return EndAnswer(Verdict(verdict), reason, state)


class TransactionResult(NamedTuple):
    """A transaction after its local part. `answer` is None where the end could not be delivered: `error` says why, and
    check-back settles it. With `end="background"` it is None, too: the end is on its way (`in_background`)."""

    id: str
    half_offset: int
    outcome: Outcome
    answer: EndAnswer | None = None
    remark: str = ""
    error: EscrowError | None = None
    in_background: bool = False

    @property
    def committed(self) -> bool:
        """The outcome was COMMIT, and Escrow has it: the message is on its way."""
        return self.outcome is Outcome.COMMIT and self.answer is not None and self.answer.stands


@dataclass(frozen=True, slots=True)
class Check:
    """A check-back: what became of this half? Compare what you have stored under `id`, or look into the message itself."""

    id: str
    group: str
    topic: str
    body: bytes
    key: str
    tags: str
    properties: Mapping[str, str]
    #: How often this half has been asked about, this time included.
    attempt: int
    born_at_ms: int
    stored_at_ms: int

    @property
    def text(self) -> str:
        return self.body.decode()

    @classmethod
    def from_json(cls, wire: Mapping[str, Any], group: str) -> Check:
        return cls(id=wire["id"], group=group, attempt=wire["attempt"], **_content(wire))


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as a consumer group gets it. `receipt` stands for this delivery: it is what an ack names."""

    topic: str
    receipt: str
    queue_id: int
    queue_offset: int
    attempt: int
    body: bytes
    key: str
    tags: str
    properties: Mapping[str, str]
    born_at_ms: int
    stored_at_ms: int
    #: Of the half that it was; empty for an ordinary message.
    transaction_id: str = ""

    @classmethod
    def from_json(cls, wire: Mapping[str, Any], topic: str) -> Delivered:
        return cls(
            transaction_id=wire.get("transaction_id") or "",
            receipt=wire["receipt"],
            queue_id=wire["queue_id"],
            queue_offset=wire["queue_offset"],
            attempt=wire["attempt"],
            **{**_content(wire), "topic": topic},
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a consumer group was given too often."""

    id: str
    topic: str
    attempts: int
    dead_at_ms: int
    body: bytes
    key: str
    tags: str
    properties: Mapping[str, str]
    born_at_ms: int
    stored_at_ms: int

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> DeadLetter:
        return cls(id=wire["id"], attempts=wire["attempts"], dead_at_ms=wire["dead_at_ms"], **_content(wire))


def _content(wire: Mapping[str, Any]) -> dict[str, Any]:
    """What every message that comes back has."""
    return {
        "topic": wire.get("topic") or "",
        "body": b64decode(wire["body"]),
        "key": wire.get("key") or "",
        "tags": wire.get("tags") or "",
        "properties": wire.get("properties") or {},
        "born_at_ms": wire.get("born_at_ms") or 0,
        "stored_at_ms": wire.get("stored_at_ms") or 0,
    }


# --- how a local transaction or a listener is understood ------------------------------------------------------------------
def outcome_of(returned: object, source: str) -> tuple[Outcome, str]:
    """(outcome, remark) of what a function returned. Only an Outcome counts: None, True or "commit" settle nothing."""
    if isinstance(returned, Outcome):
        return returned, ""
    return Outcome.UNKNOWN, f"{source} returned {shortened(repr(returned))}, not an escrow.Outcome"


def remark_of(error: BaseException) -> str:
    """An exception in one line."""
    return shortened(f"{type(error).__name__}: {error}".removesuffix(": "))


def shortened(text: str) -> str:
    return text if len(text) <= REMARK_MAX_CHARACTERS else text[: REMARK_MAX_CHARACTERS - 1] + "…"
