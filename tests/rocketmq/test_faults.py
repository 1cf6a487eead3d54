"""RocketMQ's own clients while the edge dies, answers get lost, and clients vanish."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from tests.support.endpoint import quiet_port
from tests.support.live import live
from tests.support.players import KINDS, PATIENCE_S, Player, PlayerError

#: A Python client asks for its routes every 30 seconds, and opens its stream again when they have changed.
PYTHON_S, JAVA_S = 40.0, 20.0


class Held:
    """A TCP proxy that can hold back what the server answers, and lets it through later."""

    def __init__(self, port: int) -> None:
        self._to, self.flowing = port, threading.Event()
        self.flowing.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                for source, target, gate in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=(source, target, gate), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, gate: bool) -> None:
        with suppress(OSError), source, target:
            while piece := source.recv(65536):
                if gate:
                    self.flowing.wait()
                target.sendall(piece)

    def close(self) -> None:
        self.flowing.set()
        self._listening.close()


@pytest.fixture
def own(tmp_path):
    """An Escrow of this test's own, to be killed."""
    port = quiet_port()
    with live(tmp_path / "data", f"grpcPort={port}") as escrow:
        yield escrow, f"127.0.0.1:{port}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_half_that_was_sent_again_because_its_answer_was_lost_is_one_half(kind, world, topic, start):
    """The client's own retry, under the same message id."""
    held = Held(int(world.endpoints.rpartition(":")[2]))
    it = start(kind, f"127.0.0.1:{held.port}")
    it.do("producer", topic)
    it.do("half", topic, "first", "unknown", "commit")
    held.flowing.clear()
    threading.Timer(4.5, held.flowing.set).start()  # beyond the client's three seconds, so that it tries again
    id, *_ = it.do("half", topic, "twice", "unknown", "commit")
    held.close()
    with world.http() as http:
        found = http.consume(topic, max=10, wait_s=5)
        again = http.consume(topic, max=10, wait_s=1)
    assert [(each["body"], each["properties"]["UNIQ_KEY"]) for each in found if each["body"] == b"twice"] == [(b"twice", id)]
    assert again == []
    with world.http() as http:
        sends = sum(
            value for name, value in _metrics(http).items() if name.startswith("escrow_grpc_requests_total") and "Send" in name
        )
    assert sends >= 3


def _metrics(http):
    lines = http.raw("GET", "/metrics")[2].decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


@pytest.mark.parametrize("kind", KINDS)
def test_an_edge_killed_between_half_and_end_takes_the_end_afterwards_and_asks_again(kind, own, start, topic):
    """kill -9, the same ports and data. The client ends what it began, and is asked about what it left open."""
    escrow, endpoints = own
    it = start(kind, endpoints)
    it.do("producer", topic)
    *_, number = it.do("half", topic, "ended later", "unknown", "silent")
    it.do("half", topic, "left open", "unknown", "silent")
    escrow.kill_edge()
    escrow.start_edge()
    _end(it, number)
    asked_before = len(it.heard("check", "left open"))
    it.until("check", "left open", times=asked_before + 1, patience_s=PYTHON_S if kind == "python" else JAVA_S)
    it.do("half", topic, "after", "commit", "silent")
    it.until("check", "after")
    it.do("simple", "g", topic, "*")
    assert {message.body for message in it.receive_all(2)} == {"ended later", "after"}


def _end(it: Player, number: str) -> None:
    """Again until it works: the client needs a moment to find that the edge is back."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            it.do("end", number, "commit")
            return
        except PlayerError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)


def test_a_python_client_is_asked_again_after_the_second_restart_too(own, start, topic):
    escrow, endpoints = own
    it = start("python", endpoints)
    it.do("producer", topic)
    it.do("half", topic, "open", "unknown", "silent")
    it.until("check", "open")
    for _ in range(2):
        escrow.kill_edge()
        escrow.start_edge()
        before = len(it.heard("check", "open"))
        it.until("check", "open", times=before + 1, patience_s=PYTHON_S)


def test_what_a_killed_push_consumer_had_in_hand_goes_to_another(world, topic, start):
    """It asked for no visibility time: it is missed when its heartbeats stay away."""
    first, second = start("java"), start("java")
    first.do("producer", topic)
    first.do("push", "g", topic, "*")
    first.do("send", topic, "hang", "", "")
    first.until("push", "hang")
    first.kill()
    second.do("push", "g", topic, "*")
    assert second.until("push", "hang").words[3] == "2"


@pytest.mark.parametrize("kind", KINDS)
def test_a_producer_that_died_is_answered_for_by_another(kind, world, topic, start):
    first, second = start(kind), start(kind)
    first.do("producer", topic)
    first.do("half", topic, "orphan", "unknown,unknown,unknown,commit", "silent")
    first.kill()
    second.do("producer", topic)
    second.until("check", "orphan", "commit")
    second.do("simple", "g", topic, "*")
    assert [message.body for message in second.receive_all(1)] == ["orphan"]


def test_an_edge_that_stops_in_order_does_so_with_streams_and_polls_open(own, start, topic):
    escrow, endpoints = own
    it = start("java", endpoints)
    it.do("producer", topic)
    it.do("push", "g", topic, "*")
    it.do("half", topic, "seen", "unknown", "commit")
    it.until("push", "seen")
    escrow.stop_edge()
    assert escrow.edge_exit_code == 0
    escrow.start_edge()
