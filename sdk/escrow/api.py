"""The HTTP API, one method a call: what docs/http-api.md says, in Python. Nothing here batches, polls in a loop or keeps state.

Most programs want `Producer` and `Consumer`, which stand on this. `Api` is for tools, tests, and whoever wants it plain.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from escrow import _msgpack
from escrow._transport import JSON, Repeat, Server, Transport, path_of
from escrow.errors import BadAnswer
from escrow.messages import Check, DeadLetter, Delivered, End, EndAnswer, Half, Message, Position

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Posting(Generic[_T]):
    """What a producer sends: a list of items, each of which is answered. For `Api`, and for the event loop's own calls."""

    path: str
    content: bytes
    media: str
    repeat: Repeat
    #: The list in the answer, how an item of it is read, and how many there must be.
    name: str
    read: Callable[[Any], _T]
    count: int

    def answers(self, answer: dict[str, Any]) -> list[_T]:
        return _answers(answer, self.name, self.read, self.count)


def posting_halves(group: str, messages: Sequence[Message], dedup_keys: Sequence[str]) -> Posting[Half]:
    keys = dedup_keys or [""] * len(messages)
    content = _packed_messages([message.pack(group, key) for message, key in zip(messages, keys, strict=True)])
    keyed = all(key or message.dedup_key for message, key in zip(messages, keys, strict=True))
    repeat = Repeat.ALWAYS if keyed else Repeat.IF_NOT_DONE
    return Posting("/v1/halves", content, _msgpack.MEDIA, repeat, "halves", Half.from_json, len(messages))


def posting_messages(group: str, messages: Sequence[Message]) -> Posting[Position]:
    content = _packed_messages([message.pack(group) for message in messages])
    return Posting("/v1/messages", content, _msgpack.MEDIA, Repeat.IF_NOT_DONE, "messages", Position.from_json, len(messages))


def posting_ends(group: str, ends: Sequence[End]) -> Posting[EndAnswer]:
    content = b"".join([b'{"ends":[', b",".join([end.to_json(group) for end in ends]), b"]}"])
    return Posting("/v1/ends", content, JSON, Repeat.ALWAYS, "answers", EndAnswer.from_json, len(ends))


class Api:
    """Calls to one Escrow, for any number of threads.

    url          http://127.0.0.1:7480, or https://… with a path where a proxy adds one
    token        for `Authorization: Bearer`; a function is called for each request, so that a token can be renewed
    tls          an SSL context: `escrow.tls_context` makes one with your own authority and a client certificate
    timeout_s    how long one attempt may take (a long poll: in addition to its wait)
    retry_for_s  how long a call may be repeated in all; only calls that may be repeated are
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
    ) -> None:
        self.transport = Transport(Server(url, token=token, tls=tls, timeout_s=timeout_s, retry_for_s=retry_for_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    # --- producers --------------------------------------------------------------------------------------------------------
    def send_halves(
        self, group: str, messages: Sequence[Message], *, dedup_keys: Sequence[str] = (), give_up_at: float | None = None
    ) -> list[Half]:
        """Store halves, all or none. Repeated where every one has a dedup_key, its own or one given here."""
        return self._post(posting_halves(group, messages, dedup_keys), give_up_at)

    def send_messages(self, group: str, messages: Sequence[Message], *, give_up_at: float | None = None) -> list[Position]:
        """Store ordinary messages, all or none. Not repeated after an answer was lost: they might be there twice."""
        return self._post(posting_messages(group, messages), give_up_at)

    def end(self, group: str, ends: Sequence[End], *, give_up_at: float | None = None) -> list[EndAnswer]:
        """Say how halves ended. Saying it again is harmless: the second time the answer is "already"."""
        return self._post(posting_ends(group, ends), give_up_at)

    def poll_checks(self, group: str, member: str, *, max: int = 32, wait_s: float = 30.0) -> list[Check]:
        """Wait for check requests. While somebody does, the group is live. Not repeated: whoever polls has a loop."""
        query = {"member": member, "max": max, "wait_s": wait_s}
        path = path_of("v1", "groups", group, "checks")
        answer = self.transport.call("GET", path, query=query, repeat=Repeat.NEVER, wait_s=wait_s)
        return _answers(answer, "checks", lambda wire: Check.from_json(wire, group))

    def transaction(self, id: str) -> dict[str, Any]:
        """State and history of one transaction."""
        return self._object("GET", path_of("v1", "transactions", id))

    # --- consumers --------------------------------------------------------------------------------------------------------
    def poll_messages(
        self,
        topic: str,
        group: str,
        consumer: str,
        *,
        max: int = 32,
        wait_s: float = 30.0,
        visibility_s: float = 30.0,
        tags: str | None = None,
        start: str | int | None = None,
    ) -> list[Delivered]:
        """Wait for messages. `start` counts for a group that has not read the topic before. Not repeated."""
        query = {"group": group, "consumer": consumer, "max": max, "wait_s": wait_s, "visibility_s": _plain(visibility_s)}
        query |= {"tags": tags or None, "from": start}
        path = path_of("v1", "topics", topic, "messages")
        answer = self.transport.call("GET", path, query=query, repeat=Repeat.NEVER, wait_s=wait_s)
        return _answers(answer, "messages", lambda wire: Delivered.from_json(wire, topic))

    def ack(self, topic: str, group: str, receipts: Sequence[str], *, give_up_at: float | None = None) -> list[bool]:
        """Messages are done. False: the receipt was stale, and the message is or will be somebody else's.

        After a lost answer the repeated call finds its receipts stale, though they were done: nothing is left to do either way."""
        content = {"group": group, "receipts": list(receipts)}
        answer = self.transport.call("POST", path_of("v1", "topics", topic, "acks"), content=content, give_up_at=give_up_at)
        return _answers(answer, "answers", lambda wire: bool(wire["verdict"] == "done"), len(receipts))

    def set_visibility(
        self, topic: str, group: str, receipts: Sequence[str], visibility_s: float, *, give_up_at: float | None = None
    ) -> list[str | None]:
        """More time for messages in hand, or 0: give them back. The new receipts; None where the old one was stale."""
        content = {"group": group, "receipts": list(receipts), "visibility_s": _plain(visibility_s)}
        path = path_of("v1", "topics", topic, "visibility")
        answer = self.transport.call("POST", path, content=content, give_up_at=give_up_at)
        return _answers(answer, "receipts", lambda receipt: receipt, len(receipts))

    def seek(self, topic: str, group: str, to: str | int) -> list[Position]:
        """Put a consumer group to "earliest", "latest" or a time (milliseconds, or RFC 3339)."""
        answer = self.transport.call("POST", path_of("v1", "topics", topic, "seek"), content={"group": group, "to": str(to)})
        return _answers(answer, "queues", Position.from_json)

    def dead_letters(self, group: str, *, max: int = 32, after: str | None = None) -> tuple[list[DeadLetter], str | None]:
        """(letters, what to give as `after` for the next ones; None at the end)."""
        path = path_of("v1", "groups", group, "dead-letters")
        answer = self._object("GET", path, query={"max": max, "after": after})
        return _answers(answer, "dead_letters", DeadLetter.from_json), answer.get("next")

    def replay_dead_letters(self, group: str, ids: Sequence[str]) -> int:
        """Deliver them to the group again; how many will be."""
        if not ids:
            return 0  # Escrow takes no empty list
        path = path_of("v1", "groups", group, "dead-letters", "replay")
        answer = self.transport.call("POST", path, content={"ids": list(ids)}, repeat=Repeat.IF_NOT_DONE)
        return int(_field(answer, "replayed"))

    # --- everybody ----------------------------------------------------------------------------------------------------------
    def ready(self) -> dict[str, Any]:
        """Whether it accepts, and how the streaming job is."""
        return self._object("GET", "/readyz")

    # --- operators --------------------------------------------------------------------------------------------------------
    def status(self) -> dict[str, Any]:
        """What the edge sees."""
        return self._object("GET", "/v1/status")

    def overview(self) -> dict[str, Any]:
        """What an operator looks at first: pending, totals, health of the parts, the last minutes."""
        return self._object("GET", "/v1/operator/overview")

    def transactions(self, filter: Mapping[str, object], **rest: object) -> dict[str, Any]:
        """Transactions that fit a filter, a page at a time: `rest` is order, limit and cursor."""
        return self._object("GET", "/v1/operator/transactions", query={**filter, **rest})

    def inspect(self, id: str) -> dict[str, Any]:
        """One transaction with its message: `transaction` as `transaction(id)` gives it, of `body` the first 16 KiB in base64."""
        return self._object("GET", path_of("v1", "operator", "transactions", id))

    def act(
        self,
        action: str,
        reason: str,
        *,
        ids: Sequence[str] | None = None,
        filter: Mapping[str, object] | None = None,
        dry_run: bool = False,
        expect: int | None = None,
    ) -> dict[str, Any]:
        """An operator's check, commit, rollback or resume, on ids or on what fits a filter. It goes into the audit log.

        By a filter: a dry run tells how many fit, and the call itself must say that number as `expect`. Not repeated after an
        answer was lost: the audit log tells whether it was done."""
        content: dict[str, Any] = {"action": action, "reason": reason, "dry_run": dry_run}
        content |= {"ids": list(ids)} if ids is not None else {"filter": dict(filter or {})}
        if expect is not None:
            content["expect"] = expect
        return self._object("POST", "/v1/operator/actions", content=content, repeat=Repeat.IF_NOT_DONE)

    def audit(self, *, limit: int = 100, before: int | None = None) -> dict[str, Any]:
        """What operators did, newest first."""
        return self._object("GET", "/v1/operator/audit", query={"limit": limit, "before": before})

    def groups(self) -> list[dict[str, Any]]:
        """Producer groups: what is pending, who is live."""
        return _answers(self._object("GET", "/v1/operator/groups"), "groups", dict)

    def topics(self) -> list[dict[str, Any]]:
        """Topics, and how far their consumer groups have read."""
        return _answers(self._object("GET", "/v1/operator/topics"), "topics", dict)

    def create_topic(self, topic: str, queues: int | None = None) -> dict[str, Any]:
        """Makes a topic; one that is there stays as it is. What it is now, and whether it was made."""
        given = {"topic": topic, **({} if queues is None else {"queues": queues})}
        return self._object("POST", "/v1/operator/topics", content=given)

    def remove_topics(
        self, topics: Sequence[str] = (), *, unused: bool = False, made_by: str | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Removes topics that nobody uses: these, or all of them. How many went, and why the others stay."""
        content: dict[str, Any] = {"topics": list(topics), "unused": unused, "dry_run": dry_run}
        content |= {} if made_by is None else {"made_by": made_by}
        return self._object("POST", "/v1/operator/topics/remove", content=content, repeat=Repeat.IF_NOT_DONE)

    def _post(self, posting: Posting[_T], give_up_at: float | None) -> list[_T]:
        answer = self.transport.call(
            "POST", posting.path, content=posting.content, media=posting.media, repeat=posting.repeat, give_up_at=give_up_at
        )
        return posting.answers(answer)

    def _object(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.transport.call(method, path, **rest)
        return answer


def _packed_messages(messages: Sequence[bytes]) -> bytes:
    return b"".join([b"\x81", _msgpack.text("messages"), _msgpack.count_of(messages), *messages])


def _answers(answer: dict[str, Any], name: str, read: Callable[[Any], _T], count: int | None = None) -> list[_T]:
    """The list under `name`, each item read; as many as were asked for."""
    found = _field(answer, name)
    try:
        items = [read(item) for item in found]
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"{name}: cannot be read ({type(error).__name__}: {error})") from error
    if count is not None and len(items) != count:
        raise BadAnswer(f"{name}: has {len(items)} items for {count} that were sent")
    return items


def _field(answer: dict[str, Any], name: str) -> Any:
    if name not in answer:
        raise BadAnswer(f"the answer has no field {name}: is this URL an Escrow of this version?")
    return answer[name]


def _plain(seconds: float) -> float | int:
    """5.0 as 5: a server may take whole numbers only."""
    return int(seconds) if float(seconds).is_integer() else seconds
