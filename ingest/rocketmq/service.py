"""The calls of apache.rocketmq.v2.MessagingService, and what each does with the edge.

Every answer carries a status; gRPC's own status stays OK, or the clients would not show the text. A call is measured by its method
and its code (escrow_grpc_requests). Who calls is known before the call's message is received (`ingest.rocketmq.receiving`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from ingest.auth.access import Principal
from ingest.auth.access_keys import Signatures
from ingest.capabilities import Capabilities, Consuming, EndRequest
from ingest.checks.webhooks import NotHandedOver
from ingest.errors import BadId, Forbidden, Unauthorized
from ingest.parts import MEMBER_MAX_CHARACTERS
from ingest.rocketmq import codes, wire
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.clients import PUSH_VISIBILITY_S, Client, Clients
from ingest.rocketmq.codes import OK, Refused
from ingest.rocketmq.receiving import Receiving
from store.naming import check_name
from store.properties import UNIQ_KEY

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
ADDRESSES_MAX: Final = 16
#: A long poll ends so much before the client's own deadline.
BEFORE_DEADLINE_S: Final = 1.0
LONG_POLL_S: Final = 20.0
RECEIVE_BATCH: Final = 32
#: What a push consumer waits between its attempts at a message, in seconds: RocketMQ's own steps.
CONSUME_BACKOFF_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_OUTCOMES: Final = {pb.COMMIT: "commit", pb.ROLLBACK: "rollback", pb.TRANSACTION_RESOLUTION_UNSPECIFIED: "unknown"}
#: Methods that need the embedded store's ids, or its consumers' side.
_ISSUED: Final = ("QueryRoute", "EndTransaction")
_CONSUMING: Final = (
    "QueryAssignment", "ReceiveMessage", "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue",
)  # fmt: skip
_CONSUMERS: Final = frozenset({pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER})

Observe = Callable[[str, str, float], None]


@dataclass(slots=True)
class Caller:
    """Who calls, and from which client."""

    principal: Principal
    client: Client


class Service:
    """One service over one edge. `observe(method, code, seconds)` hears of every call, once somebody sets it."""

    def __init__(self, edge: Capabilities, signatures: Signatures, clients: Clients) -> None:
        self._edge, self._signatures, self._clients = edge, signatures, clients
        self.observe: Observe = lambda method, code, seconds: None
        settings = edge.settings
        self._receiving = Receiving(settings.request_timeout_ms / 1000, settings.token_in_flight_max, signatures.shares)
        self._accepted = [pb.NORMAL] if settings.reject_transactions else [pb.NORMAL, pb.TRANSACTION]

    def handler(self) -> Any:
        """For grpc.Server.add_generic_rpc_handlers."""
        unary: dict[str, tuple[Any, Any, Any]] = {
            "QueryRoute": (self.query_route, pb.QueryRouteRequest, pb.QueryRouteResponse),
            "QueryAssignment": (self.query_assignment, pb.QueryAssignmentRequest, pb.QueryAssignmentResponse),
            "Heartbeat": (self.heartbeat, pb.HeartbeatRequest, pb.HeartbeatResponse),
            "NotifyClientTermination": (
                self.notify_client_termination, pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse,
            ),
            "SendMessage": (self.send_message, pb.SendMessageRequest, pb.SendMessageResponse),
            "EndTransaction": (self.end_transaction, pb.EndTransactionRequest, pb.EndTransactionResponse),
            "AckMessage": (self.ack_message, pb.AckMessageRequest, pb.AckMessageResponse),
            "ChangeInvisibleDuration": (
                self.change_invisible_duration, pb.ChangeInvisibleDurationRequest, pb.ChangeInvisibleDurationResponse,
            ),
            "ForwardMessageToDeadLetterQueue": (
                self.forward_to_dead_letters,
                pb.ForwardMessageToDeadLetterQueueRequest, pb.ForwardMessageToDeadLetterQueueResponse,
            ),
        }  # fmt: skip
        unary = {name: found for name, found in unary.items() if self._has(name)}
        methods = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(name, call, answer), _decoder(asked), answer.SerializeToString)
            for name, (call, asked, answer) in unary.items()
        }
        if self._has("ReceiveMessage"):
            methods["ReceiveMessage"] = grpc.stream_stream_rpc_method_handler(
                self.receive_message, _decoder(pb.ReceiveMessageRequest), pb.ReceiveMessageResponse.SerializeToString
            )
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self.telemetry, _decoder(pb.TelemetryCommand), pb.TelemetryCommand.SerializeToString
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _has(self, method: str) -> bool:
        """Whether this edge has what a method needs; gRPC answers UNIMPLEMENTED to the others."""
        needed = {
            **dict.fromkeys(_ISSUED, self._edge.offers.issued),
            **dict.fromkeys(_CONSUMING, self._edge.offers.consuming),
        }
        return needed.get(method, self) is not None

    @property
    def _consuming(self) -> Consuming:
        found = self._edge.offers.consuming
        assert found is not None, "these methods are mounted where it is there"
        return found

    def _group_of(self, id: str) -> str:
        issued = self._edge.offers.issued
        assert issued is not None, "this method is mounted where it is there"
        return issued.group_of(id)

    def _unary(self, name: str, call: Callable[[Caller, Any], Awaitable[Any]], answer: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        """A call as gRPC wants it: identified, received, answered whatever happens, measured."""

        async def handle(_: Any, context: Any) -> Any:
            began_s, caller = perf_counter(), None
            try:
                caller = self._caller(context)
                request = await self._receiving.message(caller.principal, context)
                async with self._held(caller, request, patient=name == "EndTransaction"):
                    made = await call(caller, request)
            except Exception as error:
                self._note_denial(caller, name, error)
                made = answer(status=codes.of_error(error))
            self.observe(name, _name(made.status.code), perf_counter() - began_s)
            return made

        return handle

    def _note_denial(self, caller: Caller | None, name: str, error: Exception) -> None:
        if isinstance(error, Forbidden | Unauthorized):
            who = "nobody" if caller is None else caller.principal.name
            self._edge.offers.audit.denied(who, f"gRPC {name}", str(error))

    def _held(self, caller: Caller, request: Any, *, patient: bool = False) -> AbstractAsyncContextManager[None]:
        """Around a call: its token keeps to its share."""
        if not caller.principal.is_limited:
            return nullcontext()
        return self._signatures.shares.held(caller.principal.name, request.ByteSize(), patient=patient)

    def _caller(self, context: Any) -> Caller:
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        principal = self._signatures.principal(metadata, self._edge.now_ms() / 1000)
        id = metadata.get("x-mq-client-id", "")
        if not id or len(id) > MEMBER_MAX_CHARACTERS:
            text = f"x-mq-client-id: name the client in 1 to {MEMBER_MAX_CHARACTERS} characters"
            raise Refused(pb.CLIENT_ID_REQUIRED, text)
        return Caller(principal, self._clients.seen(principal, id))

    # --- where to -------------------------------------------------------------------------------------------------------------
    async def query_route(self, caller: Caller, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        check_name(wire.name_of(request.topic), "topic")
        return pb.QueryRouteResponse(status=OK, message_queues=[self._queue(caller, request.topic, request.endpoints)])

    async def query_assignment(self, caller: Caller, request: pb.QueryAssignmentRequest) -> pb.QueryAssignmentResponse:
        """Everybody has the one queue that there is to see: who gets which message is decided when he polls."""
        topic, group = wire.name_of(request.topic), wire.name_of(request.group)
        check_name(topic, "topic")
        check_name(group, "group")
        caller.principal.require_consume(topic, group)
        queue = self._queue(caller, request.topic, request.endpoints, respell=False)
        return pb.QueryAssignmentResponse(status=OK, assignments=[pb.Assignment(message_queue=queue)])

    def _queue(self, caller: Caller, topic: pb.Resource, asked: pb.Endpoints, *, respell: bool = True) -> pb.MessageQueue:
        """A topic is one queue to a client: a poll takes from all queues of the topic. The address is the one that it called:
        whatever lies between, it led here."""
        if not 1 <= len(asked.addresses) <= ADDRESSES_MAX:
            raise Refused(pb.BAD_REQUEST, f"endpoints: name 1 to {ADDRESSES_MAX} addresses")
        endpoints = self._clients.endpoints_for(caller.client, asked) if respell else asked
        broker = pb.Broker(name="escrow", id=0, endpoints=endpoints)
        return pb.MessageQueue(
            topic=topic, id=0, permission=pb.READ_WRITE, broker=broker, accept_message_types=self._accepted
        )  # fmt: skip

    # --- being there ----------------------------------------------------------------------------------------------------------
    async def heartbeat(self, caller: Caller, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        _check_client_type(request.client_type)
        return pb.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, caller: Caller, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        await self._clients.gone(caller.client)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def telemetry(self, _: Any, context: Any) -> None:
        """Until the client or the edge ends it. Whatever is wrong is told in a command, and ends it."""
        began_s, code, caller = perf_counter(), "OK", None
        try:
            caller = self._caller(context)
            with self._receiving.stream(caller.principal):
                code = await self._serve_stream(caller, context)
        except Exception as error:
            self._note_denial(caller, "Telemetry", error)
            status = codes.of_error(error)
            code = _name(status.code)
            await context.write(pb.TelemetryCommand(status=status))
        finally:
            self.observe("Telemetry", code, perf_counter() - began_s)

    async def _serve_stream(self, caller: Caller, context: Any) -> str:
        """The code that it ended with."""
        stream = self._clients.open(caller.client, caller.principal, context.write)
        reading = asyncio.ensure_future(self._read(stream, caller, self._receiving.commands(caller.principal, context)))
        ending = asyncio.ensure_future(stream.ended.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not reading.cancelled() and (failure := reading.exception()) is not None:
                return _name(codes.of_error(failure).code)  # type: ignore[arg-type]
            return "OK"
        finally:
            reading.cancel()
            ending.cancel()
            await self._clients.ended(stream)

    async def _read(self, stream: Any, caller: Caller, commands: AsyncIterator[pb.TelemetryCommand]) -> None:
        """What is wrong is told here, in turn with what couriers write."""
        try:
            async for command in commands:
                self._clients.seen(caller.principal, caller.client.id)
                await self._take(stream, command)
        except NotHandedOver:
            raise
        except Exception as error:
            await stream.write(pb.TelemetryCommand(status=codes.of_error(error)))
            raise

    async def _take(self, stream: Any, command: pb.TelemetryCommand | None) -> None:
        if command is None:
            raise Refused(pb.BAD_REQUEST, "these bytes are no command")
        if not command.HasField("settings"):
            return  # an answer to a question that Escrow does not ask
        made = self._settings(command.settings)
        topics = command.settings.publishing.topics
        groups = [wire.name_of(topic) for topic in topics]
        stream.check(groups)
        await stream.write(pb.TelemetryCommand(status=OK, settings=made))
        if command.settings.HasField("publishing"):
            stream.namespace = topics[0].resource_namespace if topics else ""
            stream.serve(groups)

    def _settings(self, given: pb.Settings) -> pb.Settings:
        """What the client said, and what Escrow wants of it."""
        made = pb.Settings(client_type=given.client_type, metric=pb.Metric(on=False))
        if given.HasField("access_point"):
            made.access_point.CopyFrom(given.access_point)
        if given.HasField("request_timeout"):
            made.request_timeout.CopyFrom(given.request_timeout)
        _check_client_type(given.client_type)
        if given.HasField("publishing"):
            self._publishing(made, given)
        elif given.HasField("subscription"):
            self._subscription(made, given)
        else:
            raise Refused(pb.BAD_REQUEST, "settings: neither publishing nor subscription")
        return made

    def _publishing(self, made: pb.Settings, given: pb.Settings) -> None:
        for topic in given.publishing.topics:
            check_name(wire.name_of(topic), "topic")
        made.publishing.topics.extend(given.publishing.topics)
        made.publishing.max_body_size = min(self._edge.settings.max_body_bytes, 0x7FFF_FFFF)
        made.publishing.validate_message_type = True
        policy = made.backoff_policy
        policy.max_attempts = given.backoff_policy.max_attempts or 3
        policy.exponential_backoff.initial.FromMilliseconds(100)
        policy.exponential_backoff.max.FromSeconds(3)
        policy.exponential_backoff.multiplier = 2.0

    def _subscription(self, made: pb.Settings, given: pb.Settings) -> None:
        check_name(wire.name_of(given.subscription.group), "group")
        for entry in given.subscription.subscriptions:
            check_name(wire.name_of(entry.topic), "topic")
            _tags(entry.expression)
        made.subscription.CopyFrom(given.subscription)
        made.subscription.fifo = False
        made.subscription.receive_batch_size = min(RECEIVE_BATCH, self._edge.settings.messages_per_poll_max)
        poll_ms = min(round(LONG_POLL_S * 1000), self._edge.settings.poll_wait_max_ms)
        made.subscription.long_polling_timeout.FromSeconds(max(poll_ms // 1000, 1))
        made.backoff_policy.max_attempts = self._edge.settings.max_deliveries
        for seconds in CONSUME_BACKOFF_S:
            made.backoff_policy.customized_backoff.next.add().FromSeconds(seconds)

    # --- producers --------------------------------------------------------------------------------------------------------------
    async def send_message(self, caller: Caller, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        given, most_bytes = list(request.messages), self._edge.settings.max_body_bytes
        kind = wire.type_of(given)
        messages = [wire.to_message(message, most_bytes) for message in given]
        groups = {message.group for message in messages}
        for group in groups:
            check_name(group, "topic")
        for group, topic in {(message.group, message.topic) for message in messages}:
            caller.principal.require_send(group, topic)
        self._edge.offers.naming.admit(caller.principal, groups, {message.topic for message in messages})
        if kind == pb.TRANSACTION:
            stored = await self._edge.halves.store_halves(messages)
            for group in groups:
                self._clients.sent_half(caller.client, group)
        else:
            stored = [("", offset) for _, offset in await self._edge.messages.send(messages)]
        entries = [
            pb.SendResultEntry(status=OK, message_id=message.properties[UNIQ_KEY], transaction_id=id, offset=offset)
            for message, (id, offset) in zip(messages, stored, strict=True)
        ]
        return pb.SendMessageResponse(status=OK, entries=entries)

    async def end_transaction(self, caller: Caller, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """The id says whose transaction it is; the topic that the client adds cannot change that."""
        id, outcome = request.transaction_id, _OUTCOMES.get(request.resolution)
        if outcome is None:
            raise Refused(pb.BAD_REQUEST, f"resolution: {request.resolution} is none that is known here")
        try:
            group = self._group_of(id)
        except BadId:  # or one that a plug-in made
            group = wire.name_of(request.topic)
        caller.principal.require_produce(group)
        from_check = request.source == pb.SOURCE_SERVER_CHECK
        (answer,) = await self._edge.ends.end([EndRequest(group, id, outcome, from_check)])
        self._clients.heard(caller.client, id)
        return pb.EndTransactionResponse(status=codes.of_end(answer))

    # --- consumers --------------------------------------------------------------------------------------------------------------
    async def receive_message(self, _: Any, context: Any) -> None:
        """The status, the messages, the time of delivery. What could not be written goes to another consumer at once."""
        began_s, code, caller = perf_counter(), "OK", None
        try:
            caller = self._caller(context)
            request = await self._receiving.message(caller.principal, context)
            async with self._held(caller, request), self._holding(caller) as hold:
                code = await self._receive(caller, request, context, hold)
        except Exception as error:
            self._note_denial(caller, "ReceiveMessage", error)
            status = codes.of_error(error)
            code = _name(status.code)
            await context.write(pb.ReceiveMessageResponse(status=status))
        except BaseException:
            code = "cancelled"
            raise
        finally:
            self.observe("ReceiveMessage", code, perf_counter() - began_s)

    @asynccontextmanager
    async def _holding(self, caller: Caller) -> AsyncIterator[Callable[[int], None] | None]:
        """Messages that were taken are held until the client has taken them."""
        if not caller.principal.is_limited:
            yield None
            return
        shares, name, held = self._signatures.shares, caller.principal.name, 0

        def hold(size_bytes: int) -> None:
            nonlocal held
            shares.hold(name, size_bytes)
            held += size_bytes

        try:
            yield hold
        finally:
            shares.let_go(name, held)

    async def _receive(
        self, caller: Caller, request: pb.ReceiveMessageRequest, context: Any, hold: Callable[[int], None] | None = None
    ) -> str:
        resource = request.message_queue.topic
        topic, group = wire.name_of(resource), wire.name_of(request.group)
        caller.principal.require_consume(topic, group)
        self._edge.offers.naming.admit(caller.principal, (group,), ())
        consuming, deliveries = self._consuming, self._edge.offers.deliveries
        assert deliveries is not None
        found = await deliveries.poll(
            topic, group, caller.client.id,
            max_messages=request.batch_size, wait_s=_wait_s(request, context), visibility_s=self._visibility_s(request),
            tags=_tags(request.filter_expression), hold=hold,
        )  # fmt: skip
        if not found:
            text = "no message within the time of the long poll"
            await context.write(pb.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message=text)))
            return "MESSAGE_NOT_FOUND"
        try:
            self._signatures.again(caller.principal).require_consume(topic, group)
            now_ms, elapsed_ms = self._edge.now_ms(), self._edge.core.clock.elapsed_ms()
            await context.write(pb.ReceiveMessageResponse(status=OK))
            for each in found:
                await context.write(pb.ReceiveMessageResponse(message=wire.delivery(each, resource, elapsed_ms)))
            last = pb.ReceiveMessageResponse()
            last.delivery_timestamp.FromMilliseconds(now_ms)
            await context.write(last)
        except BaseException:
            consuming.put_back(found)
            raise
        if request.auto_renew:
            self._clients.handed(caller.client, topic, group, [each.receipt for each in found])
        return "OK"

    def _visibility_s(self, request: pb.ReceiveMessageRequest) -> float | None:
        if request.auto_renew:
            return min(PUSH_VISIBILITY_S, self._edge.settings.visibility_max_ms / 1000)
        given = request.invisible_duration
        return given.ToMilliseconds() / 1000 if request.HasField("invisible_duration") else None

    async def ack_message(self, caller: Caller, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
        topic, group = wire.name_of(request.topic), wire.name_of(request.group)
        caller.principal.require_consume(topic, group)
        receipts = [entry.receipt_handle for entry in request.entries]
        verdicts = await self._consuming.ack(topic, group, receipts)
        self._clients.done_with(caller.client, receipts)
        statuses = [OK if verdict == "done" else _STALE for verdict in verdicts]
        entries = [
            pb.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
            for entry, status in zip(request.entries, statuses, strict=True)
        ]
        same = all(status is statuses[0] for status in statuses)
        return pb.AckMessageResponse(status=statuses[0] if same else _MIXED, entries=entries)

    async def change_invisible_duration(
        self, caller: Caller, request: pb.ChangeInvisibleDurationRequest
    ) -> pb.ChangeInvisibleDurationResponse:
        topic, group = wire.name_of(request.topic), wire.name_of(request.group)
        caller.principal.require_consume(topic, group)
        old, seconds = request.receipt_handle, request.invisible_duration.ToMilliseconds() / 1000
        (receipt,) = await self._consuming.change_visibility(topic, group, [old], seconds)
        self._clients.done_with(caller.client, [old])
        if receipt is None:
            return pb.ChangeInvisibleDurationResponse(status=_STALE)
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=receipt)

    async def forward_to_dead_letters(
        self, caller: Caller, request: pb.ForwardMessageToDeadLetterQueueRequest
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        topic, group = wire.name_of(request.topic), wire.name_of(request.group)
        caller.principal.require_consume(topic, group)
        dead = await self._consuming.condemn(topic, group, request.receipt_handle)
        self._clients.done_with(caller.client, [request.receipt_handle])
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK if dead else _STALE)


_STALE: Final = pb.Status(
    code=pb.INVALID_RECEIPT_HANDLE, message="receipt_handle: is not the last one of its message, which is another consumer's now"
)
_MIXED: Final = pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have answers of their own")


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """Bytes that are no such message become None: gRPC would write each of them down with a trace, and anybody can send them."""
    decode = kind.FromString

    def decoded(content: bytes) -> Any:
        try:
            return decode(content)
        except DecodeError:
            return None

    return decoded


def _name(code: int) -> str:
    return str(pb.Code.Name(code))


def _check_client_type(kind: int) -> None:
    if kind != pb.PRODUCER and kind not in _CONSUMERS:
        name = pb.ClientType.Name(kind) if kind in pb.ClientType.values() else str(kind)
        text = f"client_type: {name} is not served here; producers, push consumers and simple consumers are"
        raise Refused(pb.UNRECOGNIZED_CLIENT_TYPE, text)


def _tags(given: pb.FilterExpression) -> str:
    if given.type not in (pb.TAG, pb.FILTER_TYPE_UNSPECIFIED):
        raise Refused(pb.ILLEGAL_FILTER_EXPRESSION, "filter_expression: only tags are understood (a||b, or * for all), no SQL")
    return given.expression


def _wait_s(request: pb.ReceiveMessageRequest, context: Any) -> float:
    """As long as the client asked for, and not up to its deadline."""
    asked = request.long_polling_timeout.ToMilliseconds() / 1000 if request.HasField("long_polling_timeout") else LONG_POLL_S
    left_s = context.time_remaining()
    return max(min(asked, left_s - BEFORE_DEADLINE_S) if left_s is not None else asked, 0.0)
