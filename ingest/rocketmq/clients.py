"""Who is there: RocketMQ clients, by their id and by who signed for them.

    Telemetry   a client's stream. A producer's makes its topics' groups live, and check requests go down it.
    Client      what is known of one client: its streams, the routes it was told, what it has in hand as a push consumer
    Clients     all of them, a part of the edge's life

**Check requests** are handed over when the command is written to the stream, by a courier like any other
(`ingest.checks.couriers`), a
few at a time: Python's client checks on one thread.

**In hand.** A push consumer asks for no visibility time: it expects a message to stay its own while it works, and to be given to
another when it dies. Here such a message is handed out for PUSH_VISIBILITY_S, and given back once nothing was heard of the client
for SILENT_S (it sends a heartbeat every ten seconds), or when it says that it goes. Receipts do not change meanwhile, so they
survive a restart of the edge.

**Routes.** Python's client (5.1.2) does not open its stream again when it breaks, unless the route of a topic has changed. So a
client without a stream is told the same address in another spelling: IPv4 as a name, a name in the other case. The first spelling
changes with every start of the edge, since a client asks for its routes every 30 seconds and must not be told the same after a
restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ingest.auth.access import Principal
from ingest.auth.access_keys import Signatures
from ingest.capabilities import Capabilities
from ingest.checks.couriers import Courier
from ingest.checks.delivery import Handover
from ingest.checks.webhooks import NotHandedOver
from ingest.errors import EdgeError
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq import wire
from ingest.rocketmq.named import GROUPS_PER_STREAM_MAX, Named
from store.errors import StoreError

PUSH_VISIBILITY_S: Final = 900.0
SILENT_S: Final = 30.0
FORGET_S: Final = 120.0
#: From so many messages in hand on it is looked whether some of them have lapsed.
IN_HAND_LOOK: Final = 4096
LOOK_S: Final = 1.0
#: A client without a stream for so long is told another spelling at its next question.
RESPELL_AFTER_S: Final = 5.0
#: An answer is waited for this long before the next check requests go down the same stream.
ANSWER_S: Final = 2.0
WRITE_S: Final = 10.0
CLIENTS_MAX: Final = 65_536
STREAMS_PER_CLIENT_MAX: Final = 8


class TelemetryCourier(Courier):
    """Hands a group's check requests to one client: a command for each, down its stream."""

    via = "stream"
    slots, batch = 4, 8

    def __init__(self, edge: Capabilities, group: str, stream: Telemetry) -> None:
        super().__init__(edge, group, stream.client.id)
        self._stream = stream

    async def hand_over(self, handover: Handover) -> None:
        for request in handover.requests:
            command = pb.TelemetryCommand(
                status=pb.Status(code=pb.OK),
                recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                    message=wire.check(request, self._stream.namespace), transaction_id=self._edge.checks.id_of(request)
                ),
            )
            await self._stream.write(command, self.group)

    async def answer(self, handover: Handover) -> None:
        """Not an answer, but its time: the next requests wait for it, or for ANSWER_S. UNKNOWN is never said."""
        await self._stream.answered([self._edge.checks.id_of(request) for request in handover.requests])


class Telemetry:
    """One stream of one client, and the couriers that write to it."""

    def __init__(self, clients: Clients, client: Client, principal: Principal, write: Callable[[Any], Awaitable[None]]) -> None:
        self._edge, self._signatures, self._named = clients.edge, clients.signatures, clients.named
        self.client, self._principal, self._write, self.signer = client, principal, write, principal.name
        #: Groups that it named, whether they exist or not.
        self.named: set[str] = set()
        self.namespace = ""
        self.ended = asyncio.Event()
        self._writing = asyncio.Lock()
        self._written: asyncio.Future[None] | None = None
        self._couriers: dict[str, TelemetryCourier] = {}
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._present: set[str] = set()

    async def write(self, command: pb.TelemetryCommand, group: str = "") -> None:
        """One at a time. `group`: whose message it shows; the caller's role is looked up again, since a stream outlives
        a revoked token."""
        async with self._writing:
            if self.ended.is_set():
                raise NotHandedOver("the client's stream has ended")
            if group:
                try:
                    self._signatures.again(self._principal).require_produce(group)
                except EdgeError as error:
                    self.ended.set()
                    raise NotHandedOver(str(error)) from None
            # Never cancelled: gRPC would send the head of the stream a second time, and with it never the stream's end.
            self._written = asyncio.ensure_future(self._write(command))
            try:
                async with asyncio.timeout(WRITE_S):
                    await asyncio.shield(self._written)
            except Exception as error:  # gRPC's own, of many kinds, or a timeout: the client has gone
                self.ended.set()
                raise NotHandedOver(f"the client's stream broke: {type(error).__name__}") from None

    def check(self, groups: Sequence[str]) -> None:
        """Refused where it may not name so many groups."""
        self._named.check(self, groups)

    def serve(self, groups: Iterable[str]) -> None:
        """Its producer answers for these groups; what its signer may not produce for is left out, and told when it sends."""
        if self._edge.settings.standby or self.ended.is_set():
            return
        for group in groups:
            if self._principal.may_produce(group):
                self._named.add(self, group, is_known=self._edge.checks.knows_group(group))

    def begin(self, group: str) -> None:
        """The group exists: from now on this client is asked for it."""
        if group not in self._couriers and len(self._couriers) < GROUPS_PER_STREAM_MAX and not self.ended.is_set():
            self._couriers[group] = TelemetryCourier(self._edge, group, self)
            self._couriers[group].start()

    def sent_half(self, group: str) -> None:
        """Its producer has sent a half of this group, and is there to be asked about it. Said once: its poll says so afterwards."""
        if group not in self._present:
            self.serve((group,))
            if group in self.named:
                self.begin(group)
            if group in self._couriers:
                self._present.add(group)
                self._edge.checks.present(group, self.client.id, TelemetryCourier.via)

    async def answered(self, ids: list[str]) -> None:
        loop = asyncio.get_running_loop()
        waiting = {id: self._asked.setdefault(id, loop.create_future()) for id in ids}
        try:
            await asyncio.wait(waiting.values(), timeout=ANSWER_S)
        finally:
            for id in waiting:
                self._asked.pop(id, None)

    def heard(self, id: str) -> None:
        """An end came in for this transaction."""
        future = self._asked.get(id)
        if future is not None and not future.done():
            future.set_result(None)

    async def close(self) -> None:
        self.ended.set()
        self._named.drop(self)
        for id in list(self._asked):
            self.heard(id)
        await asyncio.gather(*[courier.close() for courier in self._couriers.values()], return_exceptions=True)
        if self._written is not None:
            await asyncio.wait({self._written}, timeout=WRITE_S)

    @property
    def handed_over(self) -> int:
        return sum(courier.handed_over for courier in self._couriers.values())

    @property
    def failures(self) -> int:
        return sum(courier.failures for courier in self._couriers.values())


@dataclass(slots=True)
class Client:
    """One client, of one signer."""

    id: str
    seen_s: float
    streams: list[Telemetry] = field(default_factory=list)
    #: Spelling of the routes that it was told last, and when; None before the first.
    spelling: int | None = None
    told_s: float = 0.0
    #: What a push consumer has in hand: receipt → (topic, group, given back at the latest then).
    in_hand: dict[str, tuple[str, str, float]] = field(default_factory=dict)


class Clients:
    """All clients. Lives in the event loop."""

    def __init__(self, edge: Capabilities, signatures: Signatures, clock_s: Callable[[], float]) -> None:
        self.edge, self.signatures, self._clock_s = edge, signatures, clock_s
        self._clients: dict[tuple[str, str], Client] = {}
        self.named = Named(edge.checks.known_groups)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        #: Of streams that have ended.
        self._handed_over = self._failures = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Streams end; their clients open others at another server."""
        self._stopping = True
        for client in self._clients.values():
            for stream in client.streams:
                stream.ended.set()

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        streams = [stream for client in self._clients.values() for stream in client.streams]
        await asyncio.gather(*[stream.close() for stream in streams], return_exceptions=True)

    def seen(self, principal: Principal, id: str) -> Client:
        """A sign of life. The one that was silent for longest is forgotten where there are too many."""
        key, now_s = (principal.name, id), self._clock_s()
        client = self._clients.pop(key, None)
        if client is None:
            client = Client(id, now_s)
            if len(self._clients) >= CLIENTS_MAX:
                idle = next((other for other, found in self._clients.items() if not found.streams and not found.in_hand), None)
                if idle is not None:
                    del self._clients[idle]
        client.seen_s = now_s
        self._clients[key] = client
        return client

    # --- streams ------------------------------------------------------------------------------------------------------------------
    def open(self, client: Client, principal: Principal, write: Callable[[Any], Awaitable[None]]) -> Telemetry:
        stream = Telemetry(self, client, principal, write)
        client.streams.append(stream)
        if len(client.streams) > STREAMS_PER_CLIENT_MAX:
            client.streams[0].ended.set()
        if self._stopping:
            stream.ended.set()
        return stream

    async def ended(self, stream: Telemetry) -> None:
        with contextlib.suppress(ValueError):
            stream.client.streams.remove(stream)
        stream.client.told_s = self._clock_s()
        await stream.close()
        self._handed_over += stream.handed_over
        self._failures += stream.failures

    def sent_half(self, client: Client, group: str) -> None:
        """A producer that did not name the topic when it started is asked about it all the same."""
        for stream in client.streams:
            stream.sent_half(group)

    def heard(self, client: Client, id: str) -> None:
        for stream in client.streams:
            stream.heard(id)

    # --- routes -------------------------------------------------------------------------------------------------------------------
    def endpoints_for(self, client: Client, asked: pb.Endpoints) -> pb.Endpoints:
        """The address that the client called, in the spelling that is its turn."""
        now_s = self._clock_s()
        if client.spelling is None:
            issued = self.edge.offers.issued
            assert issued is not None, "routes are told where ids are the store's"
            client.spelling = issued.epoch & 1
        elif not client.streams and now_s - client.told_s >= RESPELL_AFTER_S:
            client.spelling ^= 1
        client.told_s = now_s
        return spell(asked, client.spelling)

    # --- what push consumers have in hand ----------------------------------------------------------------------------------------
    def handed(self, client: Client, topic: str, group: str, receipts: Iterable[str]) -> None:
        now_s = self._clock_s()
        until_s = now_s + PUSH_VISIBILITY_S
        if len(client.in_hand) >= IN_HAND_LOOK:  # what lapsed is not this client's any more
            client.in_hand = {receipt: found for receipt, found in client.in_hand.items() if found[2] > now_s}
        client.in_hand.update((receipt, (topic, group, until_s)) for receipt in receipts)

    @staticmethod
    def done_with(client: Client, receipts: Iterable[str]) -> None:
        for receipt in receipts:
            client.in_hand.pop(receipt, None)

    async def gone(self, client: Client) -> None:
        """Give back what it has in hand."""
        places: dict[tuple[str, str], list[str]] = {}
        for receipt, (topic, group, _) in client.in_hand.items():
            places.setdefault((topic, group), []).append(receipt)
        client.in_hand.clear()
        consuming, most = self.edge.offers.consuming, self.edge.settings.max_messages_per_request
        if consuming is None:
            return
        for (topic, group), receipts in places.items():
            for first in range(0, len(receipts), most):
                with contextlib.suppress(EdgeError, StoreError):  # they lapse by themselves
                    await consuming.change_visibility(topic, group, receipts[first : first + most], 0.0)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.named.look()
            now_s = self._clock_s()
            # The one that was heard of last stands last.
            silent = itertools.takewhile(lambda found: now_s - found[1].seen_s >= SILENT_S, self._clients.items())  # noqa: B023
            for key, client in list(silent):
                await self.gone(client)
                if not client.streams and now_s - client.seen_s >= FORGET_S:
                    self._clients.pop(key, None)

    def figures(self) -> dict[str, Any]:
        clients = self._clients.values()
        streams = [stream for client in clients for stream in client.streams]
        return {
            "clients": len(clients),
            "streams": len(streams),
            "groups_awaited": self.named.awaited,
            "in_hand": sum(len(client.in_hand) for client in clients),
            "checks_handed_over": self._handed_over + sum(stream.handed_over for stream in streams),
            "checks_failed": self._failures + sum(stream.failures for stream in streams),
        }


def spell(endpoints: pb.Endpoints, spelling: int) -> pb.Endpoints:
    """The same addresses; spelling 1 is the other way to write them. IPv6 and several names have no other."""
    if not spelling:
        return endpoints
    made = pb.Endpoints()
    made.CopyFrom(endpoints)
    if len(made.addresses) == 1 and made.scheme == pb.IPv4:
        made.scheme = pb.DOMAIN_NAME
    elif len(made.addresses) == 1 and made.scheme == pb.DOMAIN_NAME:
        host = made.addresses[0].host
        if host.replace(".", "").isdigit():
            made.scheme = pb.IPv4
        else:
            made.addresses[0].host = host.swapcase()
    return made
