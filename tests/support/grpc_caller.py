"""Calls of RocketMQ's protocol by name, over one channel."""

from __future__ import annotations

from typing import Any

import grpc

from ingest.rocketmq import messaging_pb2 as pb

METHODS: dict[str, tuple[Any, Any]] = {
    "QueryRoute": (pb.QueryRouteRequest, pb.QueryRouteResponse),
    "QueryAssignment": (pb.QueryAssignmentRequest, pb.QueryAssignmentResponse),
    "Heartbeat": (pb.HeartbeatRequest, pb.HeartbeatResponse),
    "NotifyClientTermination": (pb.NotifyClientTerminationRequest, pb.NotifyClientTerminationResponse),
    "SendMessage": (pb.SendMessageRequest, pb.SendMessageResponse),
    "EndTransaction": (pb.EndTransactionRequest, pb.EndTransactionResponse),
    "AckMessage": (pb.AckMessageRequest, pb.AckMessageResponse),
    "ChangeInvisibleDuration": (pb.ChangeInvisibleDurationRequest, pb.ChangeInvisibleDurationResponse),
    "ForwardMessageToDeadLetterQueue": (
        pb.ForwardMessageToDeadLetterQueueRequest,
        pb.ForwardMessageToDeadLetterQueueResponse,
    ),
}
PREFIX = "/apache.rocketmq.v2.MessagingService/"
ID = (("x-mq-client-id", "tester@1@0@abc"),)


class Caller:
    """Calls by name, over one channel."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")

    def __call__(self, name, request, metadata=ID):
        asked, answer = METHODS[name]
        call = self.channel.unary_unary(PREFIX + name, asked.SerializeToString, answer.FromString)
        return call(request, metadata=metadata, timeout=30)

    def raw(self, name, content, metadata=ID):
        """Bytes that are no message, maybe."""
        return self.channel.unary_unary(PREFIX + name)(content, metadata=metadata, timeout=30)

    def receive(self, topic, group="g", count=8, wait_s=0, **rest):
        request = pb.ReceiveMessageRequest(group={"name": group}, batch_size=count, **rest)
        request.message_queue.topic.name = topic
        request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
        call = self.channel.unary_stream(
            PREFIX + "ReceiveMessage", pb.ReceiveMessageRequest.SerializeToString, pb.ReceiveMessageResponse.FromString
        )
        return list(call(request, metadata=ID, timeout=30))

    def messages(self, topic, **rest):
        return [each.message for each in self.receive(topic, **rest) if each.HasField("message")]
