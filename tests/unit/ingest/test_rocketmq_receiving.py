"""A call's message is received once it is known who calls, a few of one signer at a time, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import grpc
import grpc.aio
import pytest

from ingest import token_file
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.codes import Refused
from ingest.rocketmq.receiving import RECEIVED_AT_ONCE, Receiving
from tests.support.edge_world import SMALL
from tests.support.endpoint import Endpoint
from tests.unit.ingest.test_rocketmq_front import ID, METHODS, PREFIX

MADE_AT = "2026-01-02T03:04:05Z"
ANSWERS = {name: answer for name, (_, answer) in METHODS.items()} | {"ReceiveMessage": pb.ReceiveMessageResponse}


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
        tasks = [asyncio.create_task(receiving.message("me", context)) for context in mine]
        another = asyncio.create_task(receiving.message("another", other))
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
            await receiving.message("me", context)
        late = Receiving(0.0)
        with pytest.raises(Refused, match="requestTimeout"):
            await late.message("me", Context())
        assert (receiving.signers, late.signers) == (0, 0)

    asyncio.run(play())
