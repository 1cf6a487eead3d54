"""What a token may not do over HTTP it may not do over gRPC either: every call that names a topic or a group asks for the role."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any

import pytest

from ingest.auth import access_keys, token_file
from ingest.rocketmq import messaging_pb2 as pb
from tests.support.edge_world import SMALL
from tests.support.endpoint import Endpoint
from tests.support.grpc_caller import ID, PREFIX, Caller

MADE_AT = "2026-01-02T03:04:05Z"
OWN, FOREIGN = ("orders", "mine"), [("orders", "theirs"), ("salaries", "mine"), ("%DLQ%theirs", "mine"), ("%SYS%audit", "mine")]


def signed(key, secret):
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    sign = hmac.new(secret.encode(), at.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={sign}"
    return (*ID, ("authorization", text), ("x-mq-date-time", at))


@pytest.fixture(scope="module")
def tenant(tmp_path_factory):
    """Calls as a token that may send to `orders` and read it as `mine`; (name, request) → the code of the answer."""
    data = tmp_path_factory.mktemp("roles") / "data"
    rules = ["orders:orders"], ["orders:mine"]
    made = token_file.add(data / "keys" / "tokens.toml", "tenant", *rules, operator=False, metrics=False, made_at=MADE_AT)
    metadata = signed(*access_keys.add(data / "keys" / "rocketmq.toml", "tenant", made.split("_")[1]))
    with Endpoint(data, *SMALL, "grpcPort=0") as endpoint:
        call = Caller(endpoint.said[-1]["grpc_port"])

        def code(name, request):
            if name != "ReceiveMessage":
                return call(name, request, metadata).status.code
            opened = call.channel.unary_stream(
                PREFIX + name, pb.ReceiveMessageRequest.SerializeToString, pb.ReceiveMessageResponse.FromString
            )
            return next(opened(request, metadata=metadata, timeout=30)).status.code

        yield code
        call.channel.close()


def requests(topic, group):
    named: dict[str, Any] = {"topic": {"name": topic}, "group": {"name": group}}
    receive = pb.ReceiveMessageRequest(group={"name": group}, batch_size=1)
    receive.message_queue.topic.name = topic
    receive.invisible_duration.FromSeconds(30)
    receive.long_polling_timeout.FromSeconds(0)
    longer = pb.ChangeInvisibleDurationRequest(**named, receipt_handle="0-0-0-1-1")
    longer.invisible_duration.FromSeconds(60)
    address = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)])
    return {
        "ReceiveMessage": receive,
        "AckMessage": pb.AckMessageRequest(**named, entries=[{"message_id": "m", "receipt_handle": "0-0-0-1-1"}]),
        "ChangeInvisibleDuration": longer,
        "ForwardMessageToDeadLetterQueue": pb.ForwardMessageToDeadLetterQueueRequest(**named, receipt_handle="0-0-0-1-1"),
        "QueryAssignment": pb.QueryAssignmentRequest(**named, endpoints=address),
    }


@pytest.mark.parametrize(("topic", "group"), FOREIGN)
def test_nobody_reads_or_settles_what_his_rules_do_not_name(tenant, topic, group):
    found = {name: tenant(name, request) for name, request in requests(topic, group).items()}
    assert found == dict.fromkeys(found, pb.FORBIDDEN)


def test_his_own_is_his(tenant):
    assert pb.FORBIDDEN not in {tenant(name, request) for name, request in requests(*OWN).items()}


@pytest.mark.parametrize("topic", ["salaries", "%DLQ%mine", "%SYS%audit", "Orders"])
@pytest.mark.parametrize("kind", [pb.NORMAL, pb.TRANSACTION])
def test_nobody_sends_to_a_topic_that_his_rules_do_not_name(tenant, topic, kind):
    message = pb.Message(topic={"name": topic}, body=b"x")
    message.system_properties.message_id, message.system_properties.message_type = "m", kind
    assert tenant("SendMessage", pb.SendMessageRequest(messages=[message])) == pb.FORBIDDEN
