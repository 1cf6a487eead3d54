"""What consumers call: receive, acknowledge, hold longer, give up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ingest.auth.access_keys import Signatures
from ingest.capabilities import Capabilities, Consuming
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq import wire
from ingest.rocketmq.calls import Caller
from ingest.rocketmq.clients import PUSH_VISIBILITY_S, Clients
from ingest.rocketmq.codes import OK
from ingest.rocketmq.routing import require_consuming
from ingest.rocketmq.telemetry import LONG_POLL_S, tags_of

#: A long poll ends so much before the client's own deadline.
BEFORE_DEADLINE_S: Final = 1.0
_STALE: Final = pb.Status(
    code=pb.INVALID_RECEIPT_HANDLE, message="receipt_handle: not the last one of its message, which another consumer has now"
)
_MIXED: Final = pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have answers of their own")


class ConsumerCalls:
    """ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

    def __init__(self, edge: Capabilities, signatures: Signatures, clients: Clients) -> None:
        self._edge, self._signatures, self._clients = edge, signatures, clients

    @property
    def _consuming(self) -> Consuming:
        return require_consuming(self._edge)

    async def receive(
        self, caller: Caller, request: pb.ReceiveMessageRequest, context: Any, hold: Callable[[int], None] | None = None
    ) -> str:
        """Write the status, the messages, the time of delivery. What could not be written goes to another consumer at once."""
        resource = request.message_queue.topic
        topic, group = wire.name_of(resource), wire.name_of(request.group)
        caller.principal.require_consume(topic, group)
        self._edge.offers.naming.admit(caller.principal, (group,), ())
        consuming, deliveries = self._consuming, self._edge.offers.deliveries
        assert deliveries is not None
        found = await deliveries.poll(
            topic, group, caller.client.id,
            max_messages=request.batch_size, wait_s=_wait_s(request, context), visibility_s=self._visibility_s(request),
            tags=tags_of(request.filter_expression), hold=hold,
        )  # fmt: skip
        if not found:
            text = "no message within the long-polling timeout"
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


def _wait_s(request: pb.ReceiveMessageRequest, context: Any) -> float:
    """As long as the client asked for, and not up to its deadline."""
    asked = request.long_polling_timeout.ToMilliseconds() / 1000 if request.HasField("long_polling_timeout") else LONG_POLL_S
    left_s = context.time_remaining()
    return max(min(asked, left_s - BEFORE_DEADLINE_S) if left_s is not None else asked, 0.0)
