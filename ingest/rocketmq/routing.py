"""Where a client finds the queues of a topic: a topic is one queue to it, at the address that it called."""

from __future__ import annotations

from typing import Final

from ingest.capabilities import Capabilities, Consuming
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq import wire
from ingest.rocketmq.calls import Caller
from ingest.rocketmq.clients import Clients
from ingest.rocketmq.codes import OK, Refused
from store.naming import check_name

ADDRESSES_MAX: Final = 16


def require_consuming(edge: Capabilities) -> Consuming:
    """Refused, in words, if this mode hands nothing to consumers."""
    if edge.offers.consuming is None:
        raise Refused(pb.UNSUPPORTED, edge.offers.absent["consuming"])
    return edge.offers.consuming


class Routes:
    """QueryRoute and QueryAssignment."""

    def __init__(self, edge: Capabilities, clients: Clients) -> None:
        self._edge, self._clients = edge, clients
        self._accepted = [pb.NORMAL] if edge.settings.reject_transactions else [pb.NORMAL, pb.TRANSACTION]

    async def query_route(self, caller: Caller, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        check_name(wire.name_of(request.topic), "topic")
        return pb.QueryRouteResponse(status=OK, message_queues=[self._queue(caller, request.topic, request.endpoints)])

    async def query_assignment(self, caller: Caller, request: pb.QueryAssignmentRequest) -> pb.QueryAssignmentResponse:
        """Every consumer has the one queue that there is to see: a poll decides who gets which message."""
        topic, group = wire.name_of(request.topic), wire.name_of(request.group)
        check_name(topic, "topic")
        check_name(group, "group")
        caller.principal.require_consume(topic, group)
        require_consuming(self._edge)
        queue = self._queue(caller, request.topic, request.endpoints, respell=False)
        return pb.QueryAssignmentResponse(status=OK, assignments=[pb.Assignment(message_queue=queue)])

    def _queue(self, caller: Caller, topic: pb.Resource, asked: pb.Endpoints, *, respell: bool = True) -> pb.MessageQueue:
        """A topic is one queue to a client: a poll takes from all queues of the topic. The address is the one that it called:
        whatever lies between, it led here."""
        if not 1 <= len(asked.addresses) <= ADDRESSES_MAX:
            raise Refused(pb.BAD_REQUEST, f"endpoints: name 1 to {ADDRESSES_MAX} addresses")
        endpoints = self._clients.endpoints_for(caller.client, asked) if respell else asked
        broker = pb.Broker(name="escrow", id=0, endpoints=endpoints)
        permission = pb.WRITE if self._edge.offers.consuming is None else pb.READ_WRITE
        return pb.MessageQueue(
            topic=topic, id=0, permission=permission, broker=broker, accept_message_types=self._accepted
        )  # fmt: skip
