"""The methods of apache.rocketmq.v2.MessagingService. What a mode does not have is refused in words.

`calls.py` is what surrounds each call; what they do: `routing.py`, `telemetry.py`, `producing.py`, `consuming.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from ingest.auth.access_keys import Signatures
from ingest.capabilities import Capabilities
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.calls import Calls, Observe
from ingest.rocketmq.clients import Clients
from ingest.rocketmq.consuming import ConsumerCalls
from ingest.rocketmq.producing import Producing
from ingest.rocketmq.routing import Routes
from ingest.rocketmq.telemetry import Telemetry

SERVICE: Final = "apache.rocketmq.v2.MessagingService"


class Service:
    """One service over one edge."""

    def __init__(self, edge: Capabilities, signatures: Signatures, clients: Clients) -> None:
        self._calls = Calls(edge, signatures, clients)
        self._routes, self._telemetry = Routes(edge, clients), Telemetry(edge, clients)
        self._producing, self._consuming = Producing(edge, clients), ConsumerCalls(edge, signatures, clients)

    def observe_with(self, observe: Observe) -> None:
        """`observe(method, code, seconds)` hears of every call."""
        self._calls.observe = observe

    def handler(self) -> Any:
        """For grpc.Server.add_generic_rpc_handlers."""
        unary: dict[str, tuple[Any, Any, Any]] = {
            "QueryRoute": (self._routes.query_route, pb.QueryRouteRequest, pb.QueryRouteResponse),
            "QueryAssignment": (self._routes.query_assignment, pb.QueryAssignmentRequest, pb.QueryAssignmentResponse),
            "Heartbeat": (self._telemetry.heartbeat, pb.HeartbeatRequest, pb.HeartbeatResponse),
            "NotifyClientTermination": (
                self._telemetry.notify_client_termination, pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse,
            ),
            "SendMessage": (self._producing.send_message, pb.SendMessageRequest, pb.SendMessageResponse),
            "EndTransaction": (self._producing.end_transaction, pb.EndTransactionRequest, pb.EndTransactionResponse),
            "AckMessage": (self._consuming.ack_message, pb.AckMessageRequest, pb.AckMessageResponse),
            "ChangeInvisibleDuration": (
                self._consuming.change_invisible_duration, pb.ChangeInvisibleDurationRequest, pb.ChangeInvisibleDurationResponse,
            ),
            "ForwardMessageToDeadLetterQueue": (
                self._consuming.forward_to_dead_letters,
                pb.ForwardMessageToDeadLetterQueueRequest, pb.ForwardMessageToDeadLetterQueueResponse,
            ),
        }  # fmt: skip
        methods = {
            name: grpc.stream_unary_rpc_method_handler(
                self._calls.unary(name, call, answer), _decoder(asked), answer.SerializeToString
            )
            for name, (call, asked, answer) in unary.items()
        }
        methods["ReceiveMessage"] = grpc.stream_stream_rpc_method_handler(
            self._calls.streamed("ReceiveMessage", self._consuming.receive, pb.ReceiveMessageResponse),
            _decoder(pb.ReceiveMessageRequest),
            pb.ReceiveMessageResponse.SerializeToString,
        )
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._calls.stream("Telemetry", self._telemetry.serve, pb.TelemetryCommand),
            _decoder(pb.TelemetryCommand),
            pb.TelemetryCommand.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    """Bytes that are no such message become None: gRPC would log each of them with a trace, and any client can send them."""
    decode = kind.FromString

    def decoded(content: bytes) -> Any:
        try:
            return decode(content)
        except DecodeError:
            return None

    return decoded
