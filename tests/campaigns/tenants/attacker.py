"""A hostile tenant with a token of its own: everything that it may send, as much as it can, until the time is up.

python -m tests.campaigns.tenants.attacker PORT GRPC_PORT TOKEN SECONDS SEED     prints one JSON object: answers by kind and status

Its token is good for its own groups and topics (`evil*`); it does its worst within and beyond them. Refusals and broken connections
are what it should get; it goes on.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

MIB = 1 << 20
IDLE_CONNECTIONS = 400


class Attacker:
    """Each kind of attack is a thread; `answers` counts what came back."""

    def __init__(self, port: int, grpc_port: int, token: str, seconds: float, seed: int) -> None:
        self._port, self._grpc_port, self._token = port, grpc_port, token
        self._stop_s = time.monotonic() + seconds
        self._random = random.Random(seed)
        self.answers: Counter[str] = Counter()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._stop_s

    def run(self) -> None:
        kinds = (
            self.topics, self.groups, self.large, self.bomb, self.pending, self.foreign, self.seeks, self.readers, self.polls,
            self.checks, self.idle, self.slow_heads, self.telemetry, self.unfinished_calls, self.slow_bodies,
            self.unread, self.wide,
        )  # fmt: skip
        threads = [threading.Thread(target=self._repeat, args=(kind,), daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self._stop_s - time.monotonic()) + 30)

    def _repeat(self, kind: Callable[[], None]) -> None:
        while self.goes_on:
            try:
                kind()
            except (OSError, http.client.HTTPException) as error:
                self.answers[f"{kind.__name__} {type(error).__name__}"] += 1
                time.sleep(0.05)

    def _asks(self, kind: str, method: str, path: str, content: object = None, *, times: int = 50) -> None:
        """The same over one connection, many times; `content` may be a function."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            for _ in range(times):
                if not self.goes_on:
                    return
                given = content() if callable(content) else content
                body = given if given is None or isinstance(given, bytes) else json.dumps(given).encode()
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                response.read()
                self.answers[f"{kind} {response.status}"] += 1
        finally:
            connection.close()

    def _name(self) -> str:
        return f"evil-{self._random.randrange(1 << 48):x}"

    # --- names, sizes, numbers ------------------------------------------------------------------------------------------------
    def topics(self) -> None:
        """As many new topics as fit into a request."""
        self._asks("topics", "POST", "/v1/messages", lambda: {
            "messages": [{"group": "evil", "topic": self._name(), "text": ""} for _ in range(1000)]
        })  # fmt: skip

    def groups(self) -> None:
        self._asks("groups", "POST", "/v1/halves", lambda: {
            "messages": [{"group": self._name(), "topic": "evil-t", "text": ""} for _ in range(1000)]
        })  # fmt: skip

    def large(self) -> None:
        body = "x" * MIB
        self._asks("large", "POST", "/v1/messages", {"messages": [{"group": "evil", "topic": "evil-t", "text": body}] * 12})

    def bomb(self) -> None:
        """Small JSON values in a large body: much to build for nothing."""
        self._asks("bomb", "POST", "/v1/ends", b'{"ends": [' + b"{}," * (5 * MIB) + b"{}]}", times=5)

    def pending(self) -> None:
        self._asks("pending", "POST", "/v1/halves", {"messages": [{"group": "evil", "topic": "evil-t", "text": "y" * 100}] * 1000})

    def wide(self) -> None:
        """Long keys, many properties, a new dedup key each; halves that never end."""
        half = {"group": "evil", "topic": "evil-t", "text": "", "properties": {f"p{number}": "v" * 80 for number in range(200)}}
        self._asks("wide", "POST", "/v1/halves", lambda: {"messages": [
            {**half, "key": self._name() * 10, "dedup_key": self._name()} for _ in range(100)
        ]})  # fmt: skip

    def slow_bodies(self) -> None:
        """Bodies of which most never comes."""
        lines = "POST /v1/messages HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {self._token}", f"Content-Length: {MIB}"
        head = "\r\n".join((*lines, "", ""))
        self._held(lambda connection: connection.sendall(head.encode() + b"[" * 100_000), 100, 20.0)

    def unread(self) -> None:
        """Large answers that nobody reads."""
        line = f"GET /v1/topics/evil-t/messages?group={self._name()}&consumer=c&max=1000 HTTP/1.1\r\n"
        self._hold(line)

    # --- what is not its own --------------------------------------------------------------------------------------------------
    def foreign(self) -> None:
        for method, path, content in (
            ("POST", "/v1/halves", {"messages": [{"group": "orders", "topic": "order-paid", "text": "forged"}]}),
            ("POST", "/v1/messages", {"messages": [{"group": "evil", "topic": "order-paid", "text": "forged"}]}),
            ("GET", "/v1/topics/order-paid/messages?group=billing&consumer=evil&max=100&visibility_s=600", None),
            ("POST", "/v1/topics/order-paid/seek", {"group": "billing", "to": "latest"}),
            ("GET", "/v1/groups/orders/checks?member=evil", None),
            ("GET", "/v1/operator/transactions", None),
        ):
            self._asks("foreign", method, path, content, times=20)

    # --- consumers ------------------------------------------------------------------------------------------------------------
    def seeks(self) -> None:
        self._asks("seeks", "POST", "/v1/topics/evil-t/seek", {"group": "evil", "to": "earliest"})

    def readers(self) -> None:
        """A new consumer group with each poll."""
        for _ in range(50):
            path = f"/v1/topics/evil-t/messages?group={self._name()}&consumer=c&max=1000&visibility_s=1"
            self._asks("readers", "GET", path, times=1)

    def polls(self) -> None:
        """Long polls, many at once, which nobody reads."""
        self._hold(f"GET /v1/topics/evil-none/messages?group={self._name()}&consumer=c&wait_s=30 HTTP/1.1\r\n")

    def checks(self) -> None:
        self._hold(f"GET /v1/groups/{self._name()}/checks?member=m&wait_s=30 HTTP/1.1\r\n")

    def _hold(self, line: str) -> None:
        request = f"{line}Host: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\n\r\n".encode()
        self._held(lambda connection: connection.sendall(request), 100, 20.0)

    # --- connections ----------------------------------------------------------------------------------------------------------
    def idle(self) -> None:
        self._held(lambda _: None, IDLE_CONNECTIONS, 20.0)

    def slow_heads(self) -> None:
        self._held(lambda connection: connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "), 100, 20.0)

    def _held(self, begin: Callable[[socket.socket], None], count: int, seconds: float, port: int = 0) -> None:
        connections: list[socket.socket] = []
        stop_s = min(time.monotonic() + seconds, self._stop_s)
        try:
            while time.monotonic() < stop_s:
                if len(connections) < count:
                    connection = socket.create_connection(("127.0.0.1", port or self._port), timeout=5)
                    connections.append(connection)
                    with suppress(OSError):
                        begin(connection)
                else:
                    time.sleep(0.1)
        finally:
            for connection in connections:
                connection.close()

    # --- gRPC -----------------------------------------------------------------------------------------------------------------
    def telemetry(self) -> None:
        """Idle HTTP/2 connections: each has said hello and nothing else."""
        hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
        self._held(lambda connection: connection.sendall(hello), 200, 20.0, self._grpc_port)

    def unfinished_calls(self) -> None:
        """Calls without credentials whose message never ends."""
        fields = (
            (b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b"te", b"trailers"),
            (b":path", b"/apache.rocketmq.v2.MessagingService/SendMessage"), (b"content-type", b"application/grpc"),
        )  # fmt: skip
        head = b"".join(b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)
        begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"")
        for stream in range(1, 41, 2):
            begin += _frame(1, 4, stream, head) + _frame(0, 0, stream, b"\x00\x00\xff\xff\xff" + bytes(2000))
        self._held(lambda connection: connection.sendall(begin), 20, 10.0, self._grpc_port)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


if __name__ == "__main__":
    attacker = Attacker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
    attacker.run()
    print(json.dumps(dict(sorted(attacker.answers.items()))))
