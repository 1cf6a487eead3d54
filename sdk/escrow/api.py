"""The HTTP API, one method a call: what docs/http-api.md says, in Python. Nothing here batches, polls in a loop or keeps state.

Most programs want `Producer` and `Consumer`, which are built on this. `Api` is for tools and tests.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from escrow import _calls
from escrow._calls import Repeat
from escrow._transport import Server, Transport
from escrow.messages import Check, DeadLetter, Delivered, End, EndAnswer, Half, Message, Position


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

    @classmethod
    def of(cls, server: Server) -> Self:
        """Calls to a server that is described already."""
        made = cls.__new__(cls)
        made.transport = Transport(server)
        return made

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
        return self.transport.perform(_calls.halves(group, messages, dedup_keys), give_up_at)

    def send_messages(self, group: str, messages: Sequence[Message], *, give_up_at: float | None = None) -> list[Position]:
        """Store ordinary messages, all or none. Not repeated after an answer was lost: they might be there twice."""
        return self.transport.perform(_calls.messages(group, messages), give_up_at)

    def end(self, group: str, ends: Sequence[End], *, give_up_at: float | None = None) -> list[EndAnswer]:
        """Say how halves ended. Saying it again is harmless: the second time the answer is "already"."""
        return self.transport.perform(_calls.ends(group, ends), give_up_at)

    def poll_checks(self, group: str, member: str, *, max: int = 32, wait_s: float = 30.0) -> list[Check]:
        """Wait for check requests. While a member does, its group is live. Not repeated: the caller has a loop."""
        return self.transport.perform(_calls.poll_checks(group, member, max=max, wait_s=wait_s))

    def transaction(self, id: str) -> dict[str, Any]:
        """State and history of one transaction."""
        return self.transport.perform(_calls.transaction(id))

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
        call = _calls.poll_messages(
            topic, group, consumer, max=max, wait_s=wait_s, visibility_s=visibility_s, tags=tags, start=start
        )
        return self.transport.perform(call)

    def ack(self, topic: str, group: str, receipts: Sequence[str], *, give_up_at: float | None = None) -> list[bool]:
        """Messages are done. False: the receipt was stale, and another consumer has or will get the message.

        After a lost answer the repeated call finds its receipts stale, though they were done: nothing is left to do either way."""
        return self.transport.perform(_calls.ack(topic, group, receipts), give_up_at)

    def set_visibility(
        self, topic: str, group: str, receipts: Sequence[str], visibility_s: float, *, give_up_at: float | None = None
    ) -> list[str | None]:
        """More time for messages in hand, or 0: give them back. The new receipts; None where the old one was stale."""
        return self.transport.perform(_calls.set_visibility(topic, group, receipts, visibility_s), give_up_at)

    def seek(self, topic: str, group: str, to: str | int) -> list[Position]:
        """Put a consumer group to "earliest", "latest" or a time (milliseconds, or RFC 3339)."""
        return self.transport.perform(_calls.seek(topic, group, to))

    def dead_letters(self, group: str, *, max: int = 32, after: str | None = None) -> tuple[list[DeadLetter], str | None]:
        """(letters, what to give as `after` for the next ones; None at the end)."""
        return self.transport.perform(_calls.dead_letters(group, max=max, after=after))

    def replay_dead_letters(self, group: str, ids: Sequence[str]) -> int:
        """Deliver them to the group again; how many will be."""
        if not ids:
            return 0  # Escrow takes no empty list
        return self.transport.perform(_calls.replay_dead_letters(group, ids))

    # --- all roles ----------------------------------------------------------------------------------------------------------
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
        return self._object("GET", _calls.path_of("v1", "operator", "transactions", id))

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

    def explain(self, id: str) -> dict[str, Any]:
        """Why a transaction is in doubt, and what can be done about it now."""
        return self._object("GET", _calls.path_of("v1", "operator", "transactions", id, "explain"))

    def causes(self, state: str = "pending", *, limit: int = 1000) -> list[dict[str, Any]]:
        """Pending or discarded transactions folded by group and cause, the largest first."""
        query = {"state": state, "limit": limit}
        return self.transport.perform(_calls.Call("GET", "/v1/operator/causes", _calls.a_list("causes"), query=query))

    def conflicts(self, *, group: str | None = None, by: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Ends that were not taken, the newest first."""
        query = {"group": group, "by": by, "limit": limit}
        return self.transport.perform(_calls.Call("GET", "/v1/operator/conflicts", _calls.a_list("conflicts"), query=query))

    def settings(self) -> dict[str, Any]:
        """The effective settings of the running edge, and where each came from."""
        return self._object("GET", "/v1/operator/settings")

    def groups(self) -> list[dict[str, Any]]:
        """Producer groups: what is pending, which are live."""
        return self.transport.perform(_calls.Call("GET", "/v1/operator/groups", _calls.a_list("groups")))

    def topics(self) -> list[dict[str, Any]]:
        """Topics, and how far their consumer groups have read."""
        return self.transport.perform(_calls.Call("GET", "/v1/operator/topics", _calls.a_list("topics")))

    def create_topic(self, topic: str, queues: int | None = None) -> dict[str, Any]:
        """Makes a topic; one that is there stays as it is. What it is now, and whether it was made."""
        given = {"topic": topic, **({} if queues is None else {"queues": queues})}
        return self._object("POST", "/v1/operator/topics", content=given)

    def remove_topics(
        self, topics: Sequence[str] = (), *, unused: bool = False, made_by: str | None = None, dry_run: bool = False
    ) -> dict[str, Any]:
        """Removes unused topics: these, or all of them. How many went, and why the others stay."""
        content: dict[str, Any] = {"topics": list(topics), "unused": unused, "dry_run": dry_run}
        content |= {} if made_by is None else {"made_by": made_by}
        return self._object("POST", "/v1/operator/topics/remove", content=content, repeat=Repeat.IF_NOT_DONE)

    def _object(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
        return self.transport.perform(_calls.an_object(method, path, **rest))
