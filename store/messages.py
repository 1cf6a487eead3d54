"""Messages as producers hand them in: one at a time, or many alike in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, final, overload

NO_HOST: Final = bytes(16)
NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Membership(NamedTuple):
    """Of a half that belongs to another one's transaction. `head` is the half_offset of that one; -n says that it is the
    message n places before this one in the same batch. `ordinal` is 1 for the first member, and so on."""

    head: int
    ordinal: int


class Message(NamedTuple):
    """What a producer hands in: a half, or an ordinary message."""

    group: str
    topic: str
    body: bytes
    properties: Mapping[str, str] = NO_PROPERTIES
    queue_id: int | None = None
    born_at_ms: int = 0
    born_host: bytes = NO_HOST
    born_port: int = 0
    immunity_s: int = 0
    flag: int = 0
    dedup_key: str = ""
    #: Properties that Escrow sets itself and that no producer may give: of dead letters and their replay.
    own: Mapping[str, str] = NO_PROPERTIES
    #: Of a half: the transaction that it belongs to, if that is another's; and the name of its own.
    member: Membership | None = None
    name: str = ""


#: From this many messages, or ends, of a batch on, it pays to look whether they are alike.
ALIKE_MIN: Final = 8


@final
class AlikeMessages(Sequence[Message]):
    """Messages of one group for one topic that ask for nothing special, in columns: nearly all that come many at a time.

    Ask for `type(…) is AlikeMessages`: `isinstance` is slow to say no of an abstract class's heir (half a microsecond)."""

    __slots__ = ("bodies", "born_at_ms", "born_host", "dedup_keys", "group", "topic")

    def __init__(
        self,
        group: str,
        topic: str,
        bodies: Sequence[bytes],
        dedup_keys: Sequence[str],
        born_at_ms: Sequence[int],
        *,
        born_host: bytes = NO_HOST,
    ) -> None:
        self.group, self.topic, self.born_host = group, topic, born_host
        self.bodies, self.dedup_keys, self.born_at_ms = bodies, dedup_keys, born_at_ms

    @staticmethod
    def of(messages: Sequence[Message]) -> AlikeMessages | None:
        """The same messages; None where they are not alike."""
        if type(messages) is AlikeMessages:
            return messages
        groups, topics, bodies, properties, queue_ids, born, hosts, *special = zip(*messages, strict=True)
        ports, immunities, flags, keys, own, members, names = special
        same = all(are_same(values) for values in (groups, topics, queue_ids, hosts))
        plain = not any(map(any, (properties, ports, immunities, flags, own, members, names)))
        if not same or not plain or queue_ids[0] is not None:
            return None
        return AlikeMessages(groups[0], topics[0], bodies, keys, born, born_host=hosts[0])

    def goes_with(self, other: Sequence[Message]) -> bool:
        """Whether both together are alike, too."""
        return type(other) is AlikeMessages and (self.group, self.topic, self.born_host) == (
            other.group, other.topic, other.born_host
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> list[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | list[Message]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        message = Message(self.group, self.topic, self.bodies[at])
        return message._replace(born_at_ms=self.born_at_ms[at], born_host=self.born_host, dedup_key=self.dedup_keys[at])


def are_same(values: Sequence[object]) -> bool:
    return values.count(values[0]) == len(values)


def joined(parts: Sequence[Sequence[Message]]) -> Sequence[Message]:
    """All of them as one, in columns where they are alike."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0] if parts else ()
    if type(first) is not AlikeMessages or not all(map(first.goes_with, parts)):
        return [message for part in parts for message in part]
    bodies, keys, born = (
        list(chain.from_iterable(map(attrgetter(name), parts))) for name in ("bodies", "dedup_keys", "born_at_ms")
    )
    return AlikeMessages(first.group, first.topic, bodies, keys, born, born_host=first.born_host)


def routes_of(messages: Sequence[Message]) -> set[tuple[str, str]]:
    """(group, topic) of messages."""
    if type(messages) is AlikeMessages:
        return {(messages.group, messages.topic)}
    return {(message.group, message.topic) for message in messages}


def groups_of(messages: Sequence[Message]) -> Sequence[str]:
    return [messages.group] * len(messages) if type(messages) is AlikeMessages else [message.group for message in messages]


def bodies_of(messages: Sequence[Message]) -> Sequence[bytes]:
    return messages.bodies if type(messages) is AlikeMessages else [message.body for message in messages]


def content_bytes_of(messages: Sequence[Message]) -> int:
    """How long their bodies and properties are together."""
    if type(messages) is AlikeMessages:
        return sum(map(len, messages.bodies))
    size_bytes = 0
    for message in messages:
        size_bytes += len(message.body)
        if message.properties:
            size_bytes += sum([len(name) + len(text) for name, text in message.properties.items()])
    return size_bytes


def dedup_keys_of(messages: Sequence[Message]) -> Sequence[str]:
    return messages.dedup_keys if type(messages) is AlikeMessages else [message.dedup_key for message in messages]
