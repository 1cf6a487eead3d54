"""A call's message is received once it is known who calls, a few of one signer at a time, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import grpc
import grpc.aio
import pytest

from ingest.auth import token_file
from ingest.auth.access import Principal
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.codes import Refused
from ingest.rocketmq.front import WINDOW_BYTES
from ingest.rocketmq.receiving import RECEIVED_AT_ONCE, Receiving
from tests.support.edge_world import SMALL
from tests.support.endpoint import Endpoint
from tests.support.grpc_caller import ID, METHODS, PREFIX
from tests.support.raw_http2 import RawHttp2

ME, ANOTHER = (Principal(name, token_id=name * 4) for name in ("me", "another"))
MADE_AT = "2026-01-02T03:04:05Z"
ANSWERS = {name: answer for name, (_, answer) in METHODS.items()} | {
    "ReceiveMessage": pb.ReceiveMessageResponse,
    "Telemetry": pb.TelemetryCommand,
}


@contextmanager
def silent(endpoint):
    """Calls whose message never comes: (name) → the first answer."""
    over = threading.Event()

    def never():
        over.wait(60)
        yield from ()

    def call(name):
        opened = channel.stream_stream(PREFIX + name, lambda content: content, ANSWERS[name].FromString)
        return next(opened(never(), metadata=ID, timeout=30))

    with grpc.insecure_channel(f"127.0.0.1:{endpoint.said[-1]['grpc_port']}") as channel:
        try:
            yield call
        finally:
            over.set()


def test_nobody_is_refused_before_his_message_is_received(tmp_path):
    token_file.add(tmp_path / "keys" / "tokens.toml", "t", ["g"], [], operator=False, metrics=False, made_at=MADE_AT)
    with Endpoint(tmp_path, *SMALL, "grpcPort=0") as endpoint, silent(endpoint) as call:
        assert {name: call(name).status.code for name in ANSWERS} == dict.fromkeys(ANSWERS, pb.UNAUTHORIZED)


def test_a_message_that_does_not_come_is_told_so(tmp_path):
    with Endpoint(tmp_path, *SMALL, "grpcPort=0", "requestTimeout=100ms") as endpoint, silent(endpoint) as call:
        for name in ("SendMessage", "ReceiveMessage"):
            status = call(name).status
            assert (status.code, "requestTimeout" in status.message) == (pb.REQUEST_TIMEOUT, True)


class Context:
    """The part of gRPC's that is used; its message comes once somebody says so."""

    def __init__(self, found: object = "message") -> None:
        self.reading, self.come, self._found = False, asyncio.Event(), found

    async def read(self) -> object:
        self.reading = True
        await self.come.wait()
        return self._found


def test_one_signer_has_a_few_messages_on_the_way_and_holds_up_nobody_else():
    async def play():
        receiving = Receiving(60.0)
        mine, other = [Context() for _ in range(RECEIVED_AT_ONCE + 4)], Context()
        tasks = [asyncio.create_task(receiving.message(ME, context)) for context in mine]
        another = asyncio.create_task(receiving.message(ANOTHER, other))
        while not other.reading:
            await asyncio.sleep(0)
        assert sum(context.reading for context in mine) == RECEIVED_AT_ONCE
        for context in (*mine, other):
            context.come.set()
        assert set(await asyncio.gather(*tasks, another)) == {"message"}
        assert receiving.signers == 0

    asyncio.run(play())


@pytest.mark.parametrize("found", [None, grpc.aio.EOF])
def test_a_call_without_its_message_is_refused_and_leaves_nothing(found):
    async def play():
        receiving, context = Receiving(60.0), Context(found)
        context.come.set()
        with pytest.raises(Refused, match="not the message"):
            await receiving.message(ME, context)
        late = Receiving(0.0)
        with pytest.raises(Refused, match="requestTimeout"):
            await late.message(ME, Context())
        assert (receiving.signers, late.signers) == (0, 0)

    asyncio.run(play())


class Stream:
    """The part of gRPC's that is used; it has as many commands as somebody puts in."""

    def __init__(self) -> None:
        self.reads, self.come = 0, asyncio.Queue[object]()

    async def read(self) -> object:
        self.reads += 1
        return await self.come.get()


def test_a_few_streams_of_a_signer_are_listened_to_at_a_time_and_each_gets_its_turn():
    """A pending read lets gRPC take a whole message in."""

    async def listen(receiving, stream, taken):
        with receiving.stream(ME):
            async for command in receiving.commands(ME, stream):
                taken.append((stream, command))

    async def play():
        receiving, streams = Receiving(60.0), [Stream() for _ in range(RECEIVED_AT_ONCE + 4)]
        taken: list[tuple[Stream, object]] = []
        for stream in streams:
            stream.come.put_nowait("settings")
        tasks = [asyncio.create_task(listen(receiving, stream, taken)) for stream in streams]
        while len(taken) < len(streams):
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        waiting = [stream for stream in streams if stream.reads == 1]
        assert len(waiting) == 4
        for stream in waiting:
            stream.come.put_nowait("later")
        assert len(taken) == len(streams)
        for stream in streams:
            if stream not in waiting:
                stream.come.put_nowait("again")
        while len(taken) < 2 * len(streams):
            await asyncio.sleep(0)
        for stream in streams:
            stream.come.put_nowait(grpc.aio.EOF)
        await asyncio.gather(*tasks)
        assert receiving.signers == 0

    asyncio.run(play())


def test_a_token_has_so_many_streams_and_calls_that_wait_for_their_message():
    async def play():
        receiving, operator = Receiving(60.0, 2), Principal("ops", operator=True, token_id="a")
        waiting = [asyncio.create_task(receiving.message(ME, Context())) for _ in range(2)]
        await asyncio.sleep(0)
        with receiving.stream(ME), receiving.stream(ME), receiving.stream(ANOTHER):
            with pytest.raises(Refused, match="tokenInFlightMax"), receiving.stream(ME):
                pass
            with pytest.raises(Refused, match="tokenInFlightMax"):
                await receiving.message(ME, Context())
            with receiving.stream(operator), receiving.stream(operator), receiving.stream(operator):
                pass
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert receiving.signers == 0

    asyncio.run(play())


def test_a_stream_that_says_nothing_is_ended(tmp_path):
    with Endpoint(tmp_path, *SMALL, "grpcPort=0", "requestTimeout=100ms") as endpoint, silent(endpoint) as call:
        assert call("Telemetry").status.code == pb.REQUEST_TIMEOUT


@pytest.mark.parametrize("name", ["SendMessage", "Telemetry"])
def test_what_nobody_waits_for_stays_with_its_sender(tmp_path, name):
    """Also behind a message that came fast: windows do not grow."""
    size, more = 2 << 20, 6
    with (
        Endpoint(tmp_path, *SMALL, "grpcPort=0", "requestTimeout=60s", f"maxRequestSize={size}") as endpoint,
        RawHttp2(endpoint.said[-1]["grpc_port"]) as client,
    ):
        taken = []
        for number in range(RECEIVED_AT_ONCE + more):
            client.begin(1 + 2 * number, PREFIX + name, {"x-mq-client-id": f"c{number}"}, size)
            taken.append(client.push(1 + 2 * number, size - 1, patience_s=0.5))
        assert taken[:RECEIVED_AT_ONCE] == [size - 1] * RECEIVED_AT_ONCE
        assert max(taken[RECEIVED_AT_ONCE:]) <= 2 * WINDOW_BYTES
        assert not client.ended
