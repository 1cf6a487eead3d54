"""The gRPC front, called without a client: what is refused and how, and that nothing that comes in can break it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import random
import socket
import threading
import uuid

import grpc
import pytest

from ingest.rocketmq import messaging_pb2 as pb
from tests.support.edge_client import EdgeClient
from tests.support.edge_process import cannot_start
from tests.support.edge_world import SMALL
from tests.support.endpoint import Endpoint, figures
from tests.support.grpc_caller import ID, METHODS, PREFIX, Caller

_topics = itertools.count()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory):
    with Endpoint(tmp_path_factory.mktemp("front") / "data", *SMALL, "grpcPort=0", "maxDeliveries=2") as made:
        yield made


@pytest.fixture(scope="module")
def call(endpoint):
    made = Caller(endpoint.said[-1]["grpc_port"])
    yield made
    made.channel.close()


@pytest.fixture
def topic():
    return f"topic{next(_topics)}"


def message(topic, body=b"body", kind=pb.TRANSACTION, **system):
    given = {"message_id": uuid.uuid4().hex, "message_type": kind, "body_encoding": pb.IDENTITY, **system}
    return pb.Message(topic={"name": topic}, body=body, system_properties=pb.SystemProperties(**given))


def send(call, *messages):
    return call("SendMessage", pb.SendMessageRequest(messages=messages))


# --- sending --------------------------------------------------------------------------------------------------------------------
def test_a_batch_is_answered_one_by_one_under_the_clients_ids(call, topic):
    batch = [message(topic, b"%d" % number) for number in range(3)]
    answer = send(call, *batch)
    assert answer.status.code == pb.OK
    assert [entry.message_id for entry in answer.entries] == [each.system_properties.message_id for each in batch]
    assert len({entry.transaction_id for entry in answer.entries}) == 3


def test_the_same_message_id_again_is_the_same_half(call, topic):
    half = message(topic)
    first, second = send(call, half), send(call, half)
    assert first.entries == second.entries
    half.body = b"another"
    assert send(call, half).status.code == pb.ILLEGAL_MESSAGE_ID


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"message_type": pb.FIFO, "message_group": "g"}, pb.UNSUPPORTED),
        ({"message_type": pb.DELAY, "delivery_timestamp": {"seconds": 1 << 33}}, pb.UNSUPPORTED),
        ({"message_type": pb.LITE}, pb.UNSUPPORTED),
        ({"message_type": pb.PRIORITY}, pb.UNSUPPORTED),
        ({"message_type": pb.MESSAGE_TYPE_UNSPECIFIED}, pb.UNSUPPORTED),
        ({"delivery_timestamp": {"seconds": 1 << 33}}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_group": "g"}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"message_id": ""}, pb.ILLEGAL_MESSAGE_ID),
        ({"message_id": "x" * 129}, pb.ILLEGAL_MESSAGE_ID),
        ({"body_digest": {"type": pb.MD5, "checksum": "00" * 16}}, pb.MESSAGE_CORRUPTED),
        ({"body_encoding": pb.GZIP}, pb.MESSAGE_CORRUPTED),
        ({"tag": "a\x01b"}, pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ],
)
def test_what_cannot_be_taken_is_refused_with_its_code(call, topic, change, code):
    answer = send(call, message(topic, **change))
    assert answer.status.code == code, answer
    assert answer.status.message
    assert not answer.entries


def test_types_are_not_mixed_in_a_batch(call, topic):
    answer = send(call, message(topic), message(topic, kind=pb.NORMAL))
    assert answer.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_names_properties_and_sizes_have_codes_of_their_own(call, topic):
    assert send(call, message("no such name!")).status.code == pb.ILLEGAL_TOPIC
    assert send(call, message("RMQ_SYS_TRANS_HALF_TOPIC")).status.code == pb.ILLEGAL_TOPIC
    assert send(call, message(topic, b"x" * 70_000)).status.code == pb.MESSAGE_BODY_TOO_LARGE
    assert send(call).status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    own = message(topic)
    own.user_properties["PGROUP"] = "another's"
    assert send(call, own).status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY
    own = message(topic)
    own.user_properties["KEYS"] = "k"
    assert send(call, own).status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_a_gzipped_body_is_stored_as_it_was(call, endpoint, topic):
    zipped = gzip.compress(b"long " * 100)
    digest = {"type": pb.MD5, "checksum": hashlib.md5(zipped).hexdigest().upper()}
    sent = message(topic, zipped, pb.NORMAL, body_encoding=pb.GZIP, body_digest=digest)
    assert send(call, sent).status.code == pb.OK
    (found,) = call.messages(topic)
    assert (found.body, found.system_properties.body_encoding) == (b"long " * 100, pb.IDENTITY)
    assert found.system_properties.body_digest.checksum == hashlib.md5(b"long " * 100).hexdigest().upper()
    with EdgeClient(endpoint.port) as http:
        assert [each["body"] for each in http.consume(topic)] == [b"long " * 100]


def test_a_body_that_unzips_beyond_all_bounds_is_refused(call, topic):
    bomb = gzip.compress(bytes(50 << 20))
    assert send(call, message(topic, bomb, body_encoding=pb.GZIP)).status.code == pb.MESSAGE_BODY_TOO_LARGE


def test_what_a_producer_says_comes_back_to_the_consumer(call, topic):
    sent = message(topic, kind=pb.NORMAL, tag="red", keys=["k1", "k2"], born_host="host", trace_context="00-ab-cd-01")
    sent.system_properties.born_timestamp.FromSeconds(1_700_000_000)
    sent.user_properties["colour"] = "blue"
    send(call, sent)
    (found,) = call.messages(topic)
    system = found.system_properties
    assert (system.tag, list(system.keys), system.born_host, system.trace_context) == ("red", ["k1", "k2"], "host", "00-ab-cd-01")
    assert dict(found.user_properties) == {"colour": "blue"}
    assert (system.message_id, system.born_timestamp.seconds) == (sent.system_properties.message_id, 1_700_000_000)
    assert (system.delivery_attempt, system.message_type, system.store_timestamp.seconds > 0) == (1, pb.NORMAL, True)


# --- ends -----------------------------------------------------------------------------------------------------------------------
def end(call, entry, resolution, topic="whatever"):
    request = pb.EndTransactionRequest(
        topic={"name": topic}, transaction_id=entry.transaction_id, message_id=entry.message_id, resolution=resolution
    )
    return call("EndTransaction", request).status.code


def test_ends_are_final_and_may_be_said_again(call, topic):
    (entry,) = send(call, message(topic)).entries
    assert end(call, entry, pb.TRANSACTION_RESOLUTION_UNSPECIFIED) == pb.OK
    assert end(call, entry, pb.COMMIT) == end(call, entry, pb.COMMIT) == pb.OK
    assert end(call, entry, pb.ROLLBACK) == pb.PRECONDITION_FAILED
    assert [each.body for each in call.messages(topic)] == [b"body"]


def test_an_id_that_is_none_is_refused(call, topic):
    assert end(call, pb.SendResultEntry(transaction_id="made up"), pb.COMMIT, topic) == pb.INVALID_TRANSACTION_ID
    (entry,) = send(call, message(topic)).entries
    entry.transaction_id = entry.transaction_id[:-2] + ("AA" if not entry.transaction_id.endswith("AA") else "BA")
    assert end(call, entry, pb.COMMIT, topic) == pb.INVALID_TRANSACTION_ID


# --- consuming ------------------------------------------------------------------------------------------------------------------
def test_nothing_to_read_is_told_and_no_error(call, topic):
    (only,) = call.receive(topic)
    assert only.status.code == pb.MESSAGE_NOT_FOUND


def test_acks_are_answered_one_by_one(call, topic):
    send(call, message(topic, b"1", pb.NORMAL), message(topic, b"2", pb.NORMAL))
    found = call.messages(topic)
    entries = [{"message_id": "m", "receipt_handle": each.system_properties.receipt_handle} for each in found]
    request = pb.AckMessageRequest(group={"name": "g"}, topic={"name": topic}, entries=entries)
    assert call("AckMessage", request).status.code == pb.OK
    request.entries[0].receipt_handle = request.entries[0].receipt_handle[:-1] + "f"
    stale = call("AckMessage", pb.AckMessageRequest(group={"name": "g"}, topic={"name": "elsewhere"}, entries=request.entries))
    assert stale.status.code == pb.INVALID_RECEIPT_HANDLE
    request.entries[1].receipt_handle = "no receipt"
    assert call("AckMessage", request).status.code == pb.INVALID_RECEIPT_HANDLE


def test_another_invisible_time_gives_another_receipt(call, topic):
    send(call, message(topic, kind=pb.NORMAL))
    (found,) = call.messages(topic, invisible_duration={"seconds": 600})
    request = pb.ChangeInvisibleDurationRequest(
        group={"name": "g"}, topic={"name": topic}, receipt_handle=found.system_properties.receipt_handle
    )
    answer = call("ChangeInvisibleDuration", request)
    assert answer.status.code == pb.OK
    assert answer.receipt_handle != request.receipt_handle
    assert call("ChangeInvisibleDuration", request).status.code == pb.INVALID_RECEIPT_HANDLE
    (again,) = call.messages(topic)
    assert again.system_properties.delivery_attempt == 2


def test_a_message_is_forwarded_to_the_dead_letters(call, endpoint, topic):
    send(call, message(topic, kind=pb.NORMAL))
    (found,) = call.messages(topic, group="mourners")
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group={"name": "mourners"}, topic={"name": topic}, receipt_handle=found.system_properties.receipt_handle
    )
    assert call("ForwardMessageToDeadLetterQueue", request).status.code == pb.OK
    assert call("ForwardMessageToDeadLetterQueue", request).status.code == pb.OK  # done is done
    assert call.messages(topic, group="mourners") == []
    with EdgeClient(endpoint.port) as http:
        letters = http.call("GET", "/v1/groups/mourners/dead-letters")["dead_letters"]
    assert [(each["topic"], each["attempts"]) for each in letters] == [(topic, 1)]


def test_a_filter_that_is_not_of_tags_is_refused(call, topic):
    (answer,) = call.receive(topic, filter_expression={"type": pb.SQL, "expression": "a > 1"})
    assert answer.status.code == pb.ILLEGAL_FILTER_EXPRESSION
    (answer,) = call.receive(topic, filter_expression={"type": pb.TAG, "expression": "a||*"})
    assert answer.status.code == pb.ILLEGAL_FILTER_EXPRESSION


def test_a_poll_that_was_given_up_takes_nothing_with_it(call, topic):
    """The client hangs up while it waits; what comes then goes to the next one."""
    request = pb.ReceiveMessageRequest(group={"name": "g"}, batch_size=8)
    request.message_queue.topic.name = topic
    request.long_polling_timeout.FromSeconds(20)
    opened = call.channel.unary_stream(
        PREFIX + "ReceiveMessage", pb.ReceiveMessageRequest.SerializeToString, pb.ReceiveMessageResponse.FromString
    )
    waiting = opened(request, metadata=ID, timeout=30)
    waiting.cancel()
    send(call, message(topic, kind=pb.NORMAL))
    (found,) = call.messages(topic, wait_s=10)
    assert found.system_properties.delivery_attempt == 1


# --- being there ----------------------------------------------------------------------------------------------------------------
def telemetry(call, *commands, metadata=ID):
    """What is answered to these commands; then the stream ends."""
    opened = call.channel.stream_stream(PREFIX + "Telemetry", pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString)
    return list(opened(iter(commands), metadata=metadata, timeout=30))


def test_settings_are_answered_with_what_clients_need(call, topic):
    (answer,) = telemetry(
        call, pb.TelemetryCommand(settings={"client_type": pb.PRODUCER, "publishing": {"topics": [{"name": topic}]}})
    )
    settings = answer.settings
    assert (answer.status.code, settings.publishing.validate_message_type) == (pb.OK, True)
    assert settings.publishing.max_body_size == 64 << 10
    assert settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert settings.HasField("metric")
    subscription = {"group": {"name": "g"}, "subscriptions": [{"topic": {"name": topic}}]}
    (answer,) = telemetry(call, pb.TelemetryCommand(settings={"client_type": pb.PUSH_CONSUMER, "subscription": subscription}))
    assert answer.settings.backoff_policy.max_attempts == 2
    assert answer.settings.subscription.long_polling_timeout.seconds > 0


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"client_type": pb.PRODUCER}, pb.BAD_REQUEST),
        ({"client_type": pb.LITE_PUSH_CONSUMER, "subscription": {}}, pb.UNRECOGNIZED_CLIENT_TYPE),
        ({"client_type": pb.PRODUCER, "publishing": {"topics": [{"name": "no!"}]}}, pb.ILLEGAL_TOPIC),
        ({"client_type": pb.PRODUCER, "publishing": {"topics": [{"name": f"t{n}"} for n in range(1025)]}}, pb.BAD_REQUEST),
        ({"client_type": pb.PUSH_CONSUMER, "subscription": {"group": {"name": "no!"}}}, pb.ILLEGAL_CONSUMER_GROUP),
    ],
)
def test_settings_that_cannot_be_are_refused_and_the_stream_ends(call, settings, code):
    (answer,) = telemetry(call, pb.TelemetryCommand(settings=settings))
    assert answer.status.code == code


def test_a_client_without_an_id_is_told_so(call, topic):
    request = pb.QueryRouteRequest(topic={"name": topic})
    assert call("QueryRoute", request, metadata=()).status.code == pb.CLIENT_ID_REQUIRED
    assert call("QueryRoute", request, metadata=(("x-mq-client-id", "x" * 129),)).status.code == pb.CLIENT_ID_REQUIRED
    (answer,) = telemetry(call, metadata=())
    assert answer.status.code == pb.CLIENT_ID_REQUIRED


def test_a_route_names_the_address_that_was_called(call, topic):
    asked = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[{"host": "mq.example", "port": 1234}])
    answer = call("QueryRoute", pb.QueryRouteRequest(topic={"name": topic, "resource_namespace": "n"}, endpoints=asked))
    (queue,) = answer.message_queues
    assert (queue.topic.name, queue.topic.resource_namespace, queue.permission) == (topic, "n", pb.READ_WRITE)
    assert [(each.host.lower(), each.port) for each in queue.broker.endpoints.addresses] == [("mq.example", 1234)]
    assert list(queue.accept_message_types) == [pb.NORMAL, pb.TRANSACTION]
    assert call("QueryRoute", pb.QueryRouteRequest(topic={"name": topic})).status.code == pb.BAD_REQUEST


# --- whatever comes ---------------------------------------------------------------------------------------------------------------
def test_bytes_that_are_no_message_break_nothing(call, endpoint, topic):
    """Every method, with noise and with messages that were cut or had bytes changed."""
    seed = random.randrange(1 << 32)
    print(f"SEED={seed}")
    dice = random.Random(seed)
    whole = pb.SendMessageRequest(messages=[message(topic)]).SerializeToString()
    for number in range(400):
        content = bytearray(whole if number % 2 else dice.randbytes(dice.randrange(200)))
        for _ in range(dice.randrange(1, 6)):
            if content:
                content[dice.randrange(len(content))] = dice.randrange(256)
        cut = bytes(content[: dice.randrange(len(content) + 1)])
        with contextlib.suppress(grpc.RpcError):
            call.raw(dice.choice([*METHODS, "ReceiveMessage", "Telemetry", "NoSuchCall"]), cut)
    assert endpoint.process.poll() is None
    assert send(call, message(topic)).status.code == pb.OK
    assert endpoint.log() == ""


def test_a_connection_that_speaks_no_http2_is_let_go(call, endpoint, topic):
    with socket.create_connection(("127.0.0.1", endpoint.said[-1]["grpc_port"])) as wire:
        wire.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        wire.settimeout(30)
        with contextlib.suppress(ConnectionError):
            while wire.recv(4096):
                pass
    assert send(call, message(topic)).status.code == pb.OK


def test_calls_are_counted_by_method_and_code(call, endpoint, topic):
    call("Heartbeat", pb.HeartbeatRequest(client_type=pb.PRODUCER))
    call("Heartbeat", pb.HeartbeatRequest(client_type=pb.PULL_CONSUMER))
    with EdgeClient(endpoint.port) as http:
        found = figures(http)
        status = http.status()["rocketmq"]
    assert found['escrow_grpc_requests_total{code="OK",method="Heartbeat"}'] >= 1
    assert found['escrow_grpc_requests_total{code="UNRECOGNIZED_CLIENT_TYPE",method="Heartbeat"}'] >= 1
    assert status["clients"] >= 1
    assert status["in_hand"] == 0


def test_a_taken_port_is_told_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = cannot_start(tmp_path / "data", f"grpcPort={port}", "listenPort=0")
    assert code == 2
    assert f"grpcPort: 127.0.0.1:{port} cannot be listened on: stop the process that has it" in said


def test_it_stops_in_order_with_streams_and_polls_open(tmp_path, topic):
    made = Endpoint(tmp_path / "data", *SMALL, "grpcPort=0")
    caller = Caller(made.said[-1]["grpc_port"])
    opened = caller.channel.stream_stream(
        PREFIX + "Telemetry", pb.TelemetryCommand.SerializeToString, pb.TelemetryCommand.FromString
    )
    settings = pb.TelemetryCommand(settings={"client_type": pb.PRODUCER, "publishing": {"topics": [{"name": topic}]}})
    answers = opened(itertools.chain([settings], _never()), metadata=ID, timeout=60)
    assert next(answers).status.code == pb.OK
    assert made.stop() == (0, "")
    assert list(answers) == []
    caller.channel.close()


def _never():
    """Nothing more to say, and the stream stays open."""
    threading.Event().wait(30)
    yield from ()
