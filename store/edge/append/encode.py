"""Encoding messages into frames: checks what a producer sent and fills in the heads, but for their places."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np

from store.edge.append.log_writer import QUEUE_OPEN, Tails
from store.edge.append.routes import Routes
from store.errors import BodyTooLarge, IllegalProperty, InvalidRecord
from store.messages import ALIKE_MIN, AlikeMessages, Message
from store.naming import check_name
from store.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DEDUP_KEY,
    KEYS,
    TAGS,
    TX_NAME,
    encode_dedup_keys,
    encode_given_properties,
    encode_properties,
    tags_code,
)
from store.records import IMMUNITY_MAX_S, NO_POSITION, parse_immunity_s
from store.tables import frames
from store.tables.frames import FrameKind

MAX_BODY_BYTES: Final = 4 << 20
PROPERTIES_ROOM_BYTES: Final = 32 << 10
#: What a producer may use of that, with key, tags and dedup key. The rest is for what a dead letter adds.
PROPERTIES_MAX_BYTES: Final = 30 << 10


class _NewNames(Exception):
    """A message names a group or a topic that has no number yet, or whose route is not known."""


def body_limits(segment_bytes: int, max_body_bytes: int | None) -> tuple[int, int]:
    """(limit for producers, bytes that fit into a segment)."""
    room = segment_bytes - frames.HALF_HEAD.itemsize - PROPERTIES_ROOM_BYTES
    limit = min(MAX_BODY_BYTES, room) if max_body_bytes is None else max_body_bytes
    if limit > room:
        raise InvalidRecord(
            f"maxBodySize: {max_body_bytes} does not fit into a commit log segment of {segment_bytes} bytes: at most {room}"
        )
    return limit, room


def _of_transaction(message: Message, kind: FrameKind, immunity_s: int) -> tuple[int, int, int, bytes]:
    """(sys_flag, position, immunity_s, encoded name) of a half that is a member, or has a name."""
    if kind != FrameKind.HALF:
        raise InvalidRecord("transaction, name: an ordinary message has none; send it as a half")
    sys_flag, position, name = frames.SYS_FLAG_PREPARED, NO_POSITION, b""
    if message.name:
        sys_flag |= frames.SYS_FLAG_NAMED
        name = encode_properties({TX_NAME: message.name})
    if message.member is not None:
        sys_flag |= frames.SYS_FLAG_MEMBER
        position, immunity_s = message.member
    return sys_flag, position, immunity_s, name


class MessageEncoder:
    """Encodes halves and ordinary messages. Needs no lock; makes new names where it meets them. The head of a member stands
    in `position` as the message says it: `members.py` puts its half_offset there."""

    def __init__(self, routes: Routes, limits: tuple[int, int], host: bytes, port: int) -> None:
        self._routes = routes
        self._max_body_bytes, self._body_room_bytes = limits
        self._host, self._port = host, port

    def encode(self, messages: Sequence[Message], kind: FrameKind, now_ms: int) -> tuple[Any, Tails]:
        """(heads without places, tails) of messages. InvalidRecord for the first one that the store refuses."""
        if not messages:
            raise InvalidRecord("messages: the batch is empty; send at least one")
        try:
            while True:
                try:
                    return self._encode_known(messages, kind, now_ms)
                except _NewNames:
                    self._routes.make(messages)
        except InvalidRecord as error:
            error.number = self._first_refused(messages, kind, now_ms)
            raise

    def _encode_known(self, messages: Sequence[Message], kind: FrameKind, now_ms: int) -> tuple[Any, Tails]:
        """`encode` under names that are known; _NewNames where one is not."""
        alike = AlikeMessages.of(messages) if len(messages) >= ALIKE_MIN else None
        if alike is not None and (found := self.encode_alike(alike, kind, now_ms)) is not None:
            return found
        encoded = [self.encode_one(message, kind, now_ms) for message in messages]
        heads = np.frombuffer(bytearray(b"".join([head for head, _ in encoded])), frames.HALF_HEAD)
        return heads, list(zip(*[tail for _, tail in encoded], strict=True))

    def encode_alike(self, messages: AlikeMessages, kind: FrameKind, now_ms: int) -> tuple[Any, Tails] | None:
        """`encode` for messages that are alike: their heads differ in a few numbers, which are set for all at
        once. None if one must be refused: then encode one by one, to find it."""
        first = messages[0]._replace(body=b"", dedup_key="", born_at_ms=0)
        head, (_, encoded) = self.encode_one(first, kind, now_ms)
        tails = [encoded + key for key in encode_dedup_keys(messages.dedup_keys)]
        body_sizes, tail_sizes = list(map(len, messages.bodies)), list(map(len, tails))
        if max(body_sizes) > self._max_body_bytes or max(tail_sizes) > PROPERTIES_MAX_BYTES:
            return None
        heads = np.frombuffer(bytearray(head * len(messages)), frames.HALF_HEAD)
        if any(messages.born_at_ms):
            try:
                heads["born_at_ms"] = [time_ms or now_ms for time_ms in messages.born_at_ms]
            except OverflowError:
                return None
        heads["body_bytes"], heads["properties_bytes"] = body_sizes, tail_sizes
        return heads, (messages.bodies, tails)

    def _first_refused(self, messages: Sequence[Message], kind: FrameKind, now_ms: int) -> int:
        unmade = -1
        for number, message in enumerate(messages):
            try:
                check_name(message.group, "group")
                check_name(message.topic, "topic")
                self.encode_one(message, kind, now_ms)
            except InvalidRecord:
                return number
            except _NewNames:  # a valid name: refused only if no invalid one follows
                unmade = number if unmade < 0 else unmade
        return unmade

    def encode_one(self, message: Message, kind: FrameKind, now_ms: int) -> tuple[bytes, tuple[bytes, bytes]]:
        """(head, (body, properties)) of one message."""
        route = self._routes.known.get((message.group, message.topic))
        if route is None:
            raise _NewNames
        group_no, topic_no, queues, encoded = route
        body, queue_id, code, immunity_s = message.body, message.queue_id, 0, message.immunity_s
        immunity_s = immunity_s and min(max(immunity_s, 0), IMMUNITY_MAX_S)
        # The store accepted once what it moves itself (a dead letter, a replay): a limit that was lowered since
        # does not apply to it.
        limit_bytes = self._body_room_bytes if message.own else self._max_body_bytes
        if len(body) > limit_bytes:
            raise BodyTooLarge(f"body: {len(body)} bytes; at most {limit_bytes} (maxBodySize) are taken")
        if queue_id is not None and not 0 <= queue_id < queues:
            raise InvalidRecord(f"queue_id: {queue_id}; {message.topic} has queues 0 to {queues - 1}")
        if properties := message.properties:
            encoded += encode_given_properties(properties)
            if TAGS in properties:
                code = tags_code(properties[TAGS])
            if not immunity_s and CHECK_IMMUNITY_TIME_IN_SECONDS in properties:
                immunity_s = parse_immunity_s(properties[CHECK_IMMUNITY_TIME_IN_SECONDS])
            if queue_id is None and (key := properties.get(KEYS)):
                queue_id = crc32(key.encode()) % queues
        sys_flag, position = frames.SYS_FLAG_PREPARED if kind == FrameKind.HALF else 0, NO_POSITION
        if message.name or message.member is not None:
            sys_flag, position, immunity_s, name = _of_transaction(message, kind, immunity_s)
            encoded += name
        if message.dedup_key:
            encoded += encode_properties({DEDUP_KEY: message.dedup_key})
        if message.own:
            encoded += encode_properties(message.own)
        elif len(encoded) > PROPERTIES_MAX_BYTES:
            raise IllegalProperty(
                f"properties: {len(encoded)} bytes with key, tags and dedup_key; at most {PROPERTIES_MAX_BYTES} are taken"
            )
        place = QUEUE_OPEN + queues if queue_id is None else queue_id
        born, born_host, born_port, flag = (
            message.born_at_ms or now_ms, message.born_host, message.born_port, message.flag
        )  # fmt: skip
        try:
            # fmt: off
            head = frames.HALF_STRUCT.pack(
                0, 0, 0, kind, 0, 0, 0, 0, now_ms, born, code, group_no, topic_no, place, sys_flag, immunity_s,
                born_host, self._host, born_port, self._port, flag, len(body), len(encoded), position,
            )
            # fmt: on
        except struct.error as error:
            raise InvalidRecord(f"born_at_ms, born_host, born_port or flag: {error}") from error
        return head, (body, encoded)
