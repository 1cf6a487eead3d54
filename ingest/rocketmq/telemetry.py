"""The stream that each client keeps open (its telemetry), heartbeats and farewells; what Escrow wants of a client's settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from ingest.capabilities import Capabilities
from ingest.checks.webhooks import NotHandedOver
from ingest.rocketmq import codes, wire
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.calls import Caller
from ingest.rocketmq.clients import Clients
from ingest.rocketmq.codes import OK, Refused
from store.naming import check_name

LONG_POLL_S: Final = 20.0
RECEIVE_BATCH: Final = 32
#: What a push consumer waits between its attempts at a message, in seconds: RocketMQ's own steps.
CONSUME_BACKOFF_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_CONSUMERS: Final = frozenset({pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER})


class Telemetry:
    """Heartbeat, NotifyClientTermination and Telemetry."""

    def __init__(self, edge: Capabilities, clients: Clients) -> None:
        self._settings, self._clients = edge.settings, clients

    async def heartbeat(self, caller: Caller, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        _check_client_type(request.client_type)
        return pb.HeartbeatResponse(status=OK)

    async def notify_client_termination(
        self, caller: Caller, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        await self._clients.gone(caller.client)
        return pb.NotifyClientTerminationResponse(status=OK)

    async def serve(self, caller: Caller, context: Any, commands: AsyncIterator[pb.TelemetryCommand | None]) -> str:
        """Until the client or the edge ends it; the code that it ended with."""
        stream = self._clients.open(caller.client, caller.principal, context.write)
        reading = asyncio.ensure_future(self._read(stream, caller, commands))
        ending = asyncio.ensure_future(stream.ended.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not reading.cancelled() and (failure := reading.exception()) is not None:
                return codes.name(codes.of_error(failure).code)  # type: ignore[arg-type]
            return "OK"
        finally:
            reading.cancel()
            ending.cancel()
            await self._clients.ended(stream)

    async def _read(self, stream: Any, caller: Caller, commands: AsyncIterator[pb.TelemetryCommand | None]) -> None:
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
            raise Refused(pb.BAD_REQUEST, "not a TelemetryCommand")
        if not command.HasField("settings"):
            return  # an answer to a question that Escrow does not ask
        made = self._wanted(command.settings)
        topics = command.settings.publishing.topics
        groups = [wire.name_of(topic) for topic in topics]
        stream.check(groups)
        await stream.write(pb.TelemetryCommand(status=OK, settings=made))
        if command.settings.HasField("publishing"):
            stream.namespace = topics[0].resource_namespace if topics else ""
            stream.serve(groups)

    def _wanted(self, given: pb.Settings) -> pb.Settings:
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
        made.publishing.max_body_size = min(self._settings.max_body_bytes, 0x7FFF_FFFF)
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
            tags_of(entry.expression)
        made.subscription.CopyFrom(given.subscription)
        made.subscription.fifo = False
        made.subscription.receive_batch_size = min(RECEIVE_BATCH, self._settings.messages_per_poll_max)
        poll_ms = min(round(LONG_POLL_S * 1000), self._settings.poll_wait_max_ms)
        made.subscription.long_polling_timeout.FromSeconds(max(poll_ms // 1000, 1))
        made.backoff_policy.max_attempts = self._settings.max_deliveries
        for seconds in CONSUME_BACKOFF_S:
            made.backoff_policy.customized_backoff.next.add().FromSeconds(seconds)


def _check_client_type(kind: int) -> None:
    if kind != pb.PRODUCER and kind not in _CONSUMERS:
        name = pb.ClientType.Name(kind) if kind in pb.ClientType.values() else str(kind)
        text = f"client_type: {name} is not supported; use PRODUCER, PUSH_CONSUMER or SIMPLE_CONSUMER"
        raise Refused(pb.UNRECOGNIZED_CLIENT_TYPE, text)


def tags_of(given: pb.FilterExpression) -> str:
    if given.type not in (pb.TAG, pb.FILTER_TYPE_UNSPECIFIED):
        raise Refused(pb.ILLEGAL_FILTER_EXPRESSION, "filter_expression: only tags are supported (a||b, or * for all), not SQL")
    return given.expression
