"""A message as a Kafka record, and back. What Kafka would refuse when the message is released is refused when it comes.

A message's key (KEYS) is the record's key; all its other properties, TAGS among them, are headers of the same name.

`RealTopics` knows of each real topic whether it is there, how many partitions it has, the largest record that it takes and
whether we may write to it. Asked for at the first use and again after LOOK_S: a topic that is made while a producer waits is
found within FRESH_S.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, ResourceType

from ingest.errors import EdgeError, KafkaRefused
from ingest.kafka.writer import ANY_PARTITION, Record
from sinks.kafka.contract import BORN_TIME, OURS, Headers, half_headers
from store.errors import BodyTooLarge, IllegalProperty, InvalidRecord
from store.messages import Message
from store.naming import check_name
from store.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, KEYS, encode_given_properties

#: How long is believed what was found of a topic, and that there is none.
LOOK_S: Final = 60.0
FRESH_S: Final = 1.0
ASK_S: Final = 10.0
TOPICS_MAX: Final = 10_000
PROPERTIES_MAX_BYTES: Final = 32 << 10
#: What a record has besides key, value and headers, with room to spare.
RECORD_BYTES: Final = 512
UNKNOWN_BYTES: Final = 1 << 40
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class RealTopic:
    """What Kafka says of a topic. `partitions` 0: there is none of this name."""

    partitions: int
    max_bytes: int = 0
    may_write: bool = True
    at_s: float = 0.0


class RealTopics:
    """Lives in the event loop; asks Kafka in threads, at most once at a time for each topic."""

    def __init__(self, admin: AdminClient, own: Sequence[str], on_failure: Callable[[Exception], EdgeError]) -> None:
        self._admin, self._own, self._on_failure = admin, frozenset(own), on_failure
        self._found: dict[str, RealTopic] = {}
        self._asking: dict[str, asyncio.Task[RealTopic]] = {}

    async def get(self, name: str) -> RealTopic:
        """InvalidRecord or KafkaRefused where nobody could send to it."""
        check_name(name, "topic")
        if name in self._own:
            raise InvalidRecord(f"topic: {name} is Escrow's own; producers may not send to it")
        if not _TOPIC.fullmatch(name):
            raise InvalidRecord(f"topic: {name[:40]!r} has characters other than letters, digits and . _ -, which Kafka refuses")
        found = await self.look_at(name)
        if not found.partitions:
            raise InvalidRecord(f"topic: {name} is not there in Kafka: make it first (kafka-topics --create --topic {name})")
        if not found.may_write:
            raise KafkaRefused(f"topic: Escrow may not write to {name} in Kafka: give its Kafka user the right to")
        return found

    async def look_at(self, name: str) -> RealTopic:
        """What Kafka says, or said a moment ago, of any topic."""
        found = self._found.get(name)
        if found is None or time.monotonic() - found.at_s > (LOOK_S if found.partitions and found.may_write else FRESH_S):
            found = await self._ask(name)
        return found

    async def _ask(self, name: str) -> RealTopic:
        task = self._asking.get(name)
        if task is None:
            task = self._asking[name] = asyncio.create_task(asyncio.to_thread(self._look, name))
            task.add_done_callback(lambda _: self._asking.pop(name, None))
        try:
            found = await asyncio.shield(task)
        except (KafkaException, TimeoutError) as error:
            raise self._on_failure(error) from error
        if len(self._found) >= TOPICS_MAX:
            self._found.clear()
        self._found[name] = found
        return found

    def _look(self, name: str) -> RealTopic:
        described = self._admin.describe_topics(TopicCollection([name]), include_authorized_operations=True, request_timeout=ASK_S)[
            name
        ]
        try:
            topic = described.result(ASK_S)
        except KafkaException as error:
            if error.args[0].retriable() or error.args[0].code() < 0:
                raise
            hidden = error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            return RealTopic(int(hidden), may_write=not hidden, at_s=time.monotonic())
        allowed = topic.authorized_operations
        return RealTopic(
            len(topic.partitions), self._max_bytes(name), not allowed or AclOperation.WRITE in allowed, time.monotonic()
        )  # fmt: skip

    def _max_bytes(self, name: str) -> int:
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            return int(self._admin.describe_configs([resource])[resource].result(ASK_S)["max.message.bytes"].value)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
            return UNKNOWN_BYTES  # who may write to a topic need not see its settings: the release finds out


# --- out ----------------------------------------------------------------------------------------------------------------------
def half_record(message: Message, half_topic: str, now_ms: int) -> Record:
    headers = half_headers(
        message.group, message.topic, partition=message.queue_id, born_at_ms=message.born_at_ms or now_ms,
        immunity=str(message.immunity_s) if message.immunity_s else None,
    )  # fmt: skip
    return Record(half_topic, message.body, _key(message), _own_headers(message.properties) + headers)


def message_record(message: Message, now_ms: int) -> Record:
    """An ordinary message: straight to its real topic."""
    partition = ANY_PARTITION if message.queue_id is None else message.queue_id
    return Record(
        message.topic, message.body, _key(message), _own_headers(message.properties), partition, message.born_at_ms or now_ms
    )


def _key(message: Message) -> bytes | None:
    key = message.properties.get(KEYS, "")
    return key.encode() if key else None


def _own_headers(properties: Mapping[str, str]) -> Headers:
    return [(name, value.encode()) for name, value in properties.items() if name not in (KEYS, CHECK_IMMUNITY_TIME_IN_SECONDS)]


def check_message(message: Message, topic: RealTopic, half: RealTopic, max_body_bytes: int) -> None:
    """InvalidRecord where the message could not be stored now or released later."""
    check_name(message.group, "group")
    encoded_bytes = len(encode_given_properties(message.properties)) if message.properties else 0
    if any(name.startswith(OURS) for name in message.properties):
        raise IllegalProperty(f"properties: names that begin with {OURS} are Escrow's own: choose others")
    if encoded_bytes > PROPERTIES_MAX_BYTES:
        raise IllegalProperty(f"properties: {encoded_bytes} bytes with key and tags; at most {PROPERTIES_MAX_BYTES} are taken")
    if message.flag:
        raise InvalidRecord("flag: messages in Kafka have none: leave it out, or put it into a property")
    if len(message.body) > max_body_bytes:
        raise BodyTooLarge(f"body: {len(message.body)} bytes; at most {max_body_bytes} (maxBodySize) are taken")
    size_bytes = len(message.body) + encoded_bytes + RECORD_BYTES
    for kind, max_bytes in ((message.topic, topic.max_bytes), ("the half topic", half.max_bytes)):
        if size_bytes > max_bytes:
            raise BodyTooLarge(f"body: about {size_bytes} bytes with headers; {kind} takes {max_bytes} (max.message.bytes)")
    if message.queue_id is not None and message.queue_id >= topic.partitions:
        raise InvalidRecord(f"queue_id: {message.queue_id}; {message.topic} has partitions 0 to {topic.partitions - 1}")


# --- in -----------------------------------------------------------------------------------------------------------------------
def properties_of(message: Any) -> dict[str, str]:
    """The message's own headers as properties; what is no UTF-8 is shown as good as it can be."""
    try:
        headers = message.headers() or []
    except UnicodeDecodeError:
        return {}
    return {name: (value or b"").decode("utf-8", "replace") for name, value in headers if not name.startswith(OURS)}


def born_at_ms_of(headers: Mapping[str, bytes]) -> int:
    text = headers.get(BORN_TIME, b"")
    return int(text) if text.isdigit() and len(text) < 19 else 0
