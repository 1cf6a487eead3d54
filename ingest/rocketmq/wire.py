"""Messages from and to the wire.

    client's message_id       property UNIQ_KEY, and the dedup key of a half: sent again, it leads to the same transaction
    tag, keys                 TAGS; KEYS, with blanks between several
    producer group            the topic's name: the protocol knows no producer group, and RocketMQ's own proxy does the same
    namespace                 `namespace%name`, for topics and consumer groups, as RocketMQ keeps it

A gzipped body is stored as it was before: every reader, by whatever port, gets what the producer gave.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from typing import Final

from ingest.checks.delivery import CheckRequest
from ingest.consuming.deliveries import Delivery, shown_properties
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.codes import Refused
from store.messages import Message
from store.properties import KEYS, REAL_TOPIC, TAGS, UNIQ_KEY
from store.records import IMMUNITY_MAX_S
from store.tables.frames import Frame, FrameKind

TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_HOST: Final = "BORN_HOST"
HOST_MAX_CHARACTERS: Final = 255
MESSAGE_ID_MAX_CHARACTERS: Final = 128
USER_PROPERTIES_MAX: Final = 256
#: Have a field of their own in this protocol, so no user property may be called so.
_RESERVED: Final = frozenset({KEYS, TAGS, UNIQ_KEY, TRACE_CONTEXT, BORN_HOST})
_GZIP_WBITS: Final = 31
_TYPES: Final = "NORMAL and TRANSACTION are"


def name_of(resource: pb.Resource) -> str:
    """`namespace%name`, or the name alone."""
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name


def resource_of(name: str, namespace: str) -> pb.Resource:
    """The name as a client of this namespace knows it."""
    if namespace and name.startswith(f"{namespace}%"):
        return pb.Resource(resource_namespace=namespace, name=name[len(namespace) + 1 :])
    return pb.Resource(name=name)


# --- in ------------------------------------------------------------------------------------------------------------------------
def type_of(messages: list[pb.Message]) -> pb.MessageType:
    """NORMAL or TRANSACTION, the same for the whole batch; anything else is refused in words."""
    kinds = {message.system_properties.message_type for message in messages}
    if len(kinds) != 1:
        raise Refused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "messages: of several types, or none; send one type in one batch")
    kind: pb.MessageType = kinds.pop()
    if kind not in (pb.NORMAL, pb.TRANSACTION):
        name = pb.MessageType.Name(kind) if kind in pb.MessageType.values() else str(kind)
        raise Refused(pb.UNSUPPORTED, f"message_type: {name} messages are not supported here; {_TYPES}")
    return kind


def to_message(given: pb.Message, body_max_bytes: int) -> Message:
    """What the edge stores of a message."""
    system = given.system_properties
    _refuse_other_kinds(system)
    id = system.message_id
    if not id or len(id) > MESSAGE_ID_MAX_CHARACTERS:
        raise Refused(pb.ILLEGAL_MESSAGE_ID, f"message_id: must have 1 to {MESSAGE_ID_MAX_CHARACTERS} characters")
    properties = dict(given.user_properties)
    if len(properties) > USER_PROPERTIES_MAX:
        raise Refused(pb.MESSAGE_PROPERTIES_TOO_LARGE, f"user_properties: more than {USER_PROPERTIES_MAX} of them")
    if taken := _RESERVED & properties.keys():
        text = f"user_properties: {min(taken)} has a field of its own; take another name"
        raise Refused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, text)
    properties[UNIQ_KEY] = id
    if system.tag:
        properties[TAGS] = system.tag
    if system.keys:
        properties[KEYS] = " ".join(system.keys)
    if system.trace_context:
        properties[TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        properties[BORN_HOST] = system.born_host[:HOST_MAX_CHARACTERS]
    topic = name_of(given.topic)
    return Message(
        topic, topic, body_of(given, body_max_bytes), properties,
        born_at_ms=max(system.born_timestamp.ToMilliseconds(), 0),
        immunity_s=_immunity_s(system), dedup_key=id if system.message_type == pb.TRANSACTION else "",
    )  # fmt: skip


def _refuse_other_kinds(system: pb.SystemProperties) -> None:
    """What makes a message delayed or ordered contradicts its type."""
    for field in ("delivery_timestamp", "message_group"):
        if system.HasField(field):
            text = f"{field}: delayed and ordered (FIFO) messages are not supported here; {_TYPES}, without it"
            raise Refused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def _immunity_s(system: pb.SystemProperties) -> int:
    """Whole seconds, rounded up."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return 0
    given = system.orphaned_transaction_recovery_duration
    seconds: int = given.seconds + (given.nanos > 0)
    return min(max(seconds, 0), IMMUNITY_MAX_S)


def body_of(given: pb.Message, most_bytes: int) -> bytes:
    """The body as the producer gave it to its client. Its digest is of what went over the wire; CRC32 is not compared: clients
    write it in different ways."""
    system, body = given.system_properties, given.body
    digest = system.body_digest
    if digest.checksum and digest.type in (pb.MD5, pb.SHA1):
        algorithm = "md5" if digest.type == pb.MD5 else "sha1"
        found = hashlib.new(algorithm, body, usedforsecurity=False).hexdigest()
        if not hmac.compare_digest(found.encode(), digest.checksum.lower().encode()):
            raise Refused(pb.MESSAGE_CORRUPTED, "body_digest: is not that of the body: send it again")
    return _unzip(body, most_bytes) if system.body_encoding == pb.GZIP else body


def _unzip(body: bytes, most_bytes: int) -> bytes:
    """Never more than a body may have, whatever it says of itself."""
    unzip = zlib.decompressobj(wbits=_GZIP_WBITS)
    try:
        whole = unzip.decompress(body, most_bytes + 1)
    except zlib.error:
        whole, unzip = b"", zlib.decompressobj()
    if len(whole) > most_bytes:
        raise Refused(pb.MESSAGE_BODY_TOO_LARGE, f"body: has more than {most_bytes} bytes (maxBodySize) when it is unzipped")
    if not unzip.eof:
        raise Refused(pb.MESSAGE_CORRUPTED, "body: is said to be gzip, and is not whole gzip: send it again")
    return whole


# --- out -----------------------------------------------------------------------------------------------------------------------
def check(request: CheckRequest, namespace: str) -> pb.Message:
    """The half that a producer is asked about."""
    topic = request.frame.properties.get(REAL_TOPIC, "")
    return _message(request.frame, resource_of(topic, namespace))


def delivery(found: Delivery, topic: pb.Resource, handed_at_ms: int) -> pb.Message:
    """A message for a consumer."""
    made = _message(found.frame, topic)
    system = made.system_properties
    system.receipt_handle = found.receipt
    system.delivery_attempt = found.attempt
    system.queue_id, system.queue_offset = found.queue_id, found.queue_offset
    system.invisible_duration.FromMilliseconds(max(found.handed.visible_at_ms - handed_at_ms, 0))
    return made


def _message(frame: Frame, topic: pb.Resource) -> pb.Message:
    properties = frame.properties
    user = shown_properties(properties)
    system = pb.SystemProperties(
        message_id=user.pop(UNIQ_KEY, "") or f"{frame.stored_at_ms:016X}{frame.commit_log_offset:016X}",
        keys=properties[KEYS].split(" ") if properties.get(KEYS) else [],
        body_digest=pb.Digest(type=pb.MD5, checksum=hashlib.md5(frame.body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=pb.IDENTITY,
        message_type=pb.TRANSACTION if frame.kind == FrameKind.HALF else pb.NORMAL,
        born_host=user.pop(BORN_HOST, "") or "0.0.0.0",
        store_host="0.0.0.0",
    )
    system.born_timestamp.FromMilliseconds(frame.fields["born_at_ms"])
    system.store_timestamp.FromMilliseconds(frame.stored_at_ms)
    if properties.get(TAGS):
        system.tag = properties[TAGS]
    if trace := user.pop(TRACE_CONTEXT, ""):
        system.trace_context = trace
    return pb.Message(topic=topic, user_properties=user, system_properties=system, body=frame.body)
