"""An HTTP/2 client that begins gRPC messages and never ends them: how much of them does a server take?"""

from __future__ import annotations

import socket
import struct
import time
from collections import defaultdict
from collections.abc import Mapping

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_INITIAL_WINDOW_BYTES = 65_535
_FRAME_BYTES = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _text(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value


class RawHttp2:
    """One connection. Calls are streams 1, 3, 5 …"""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b""))
        self._received, self._connection_window, self._initial = b"", _INITIAL_WINDOW_BYTES, _INITIAL_WINDOW_BYTES
        self._granted: dict[int, int] = defaultdict(int)
        self._sent: dict[int, int] = defaultdict(int)
        self.ended: set[int] = set()

    def __enter__(self) -> RawHttp2:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def begin(self, stream: int, path: str, metadata: Mapping[str, str], message_bytes: int) -> None:
        """The head of a call, and the length of its message."""
        head = {
            ":method": "POST", ":scheme": "http", ":path": path, ":authority": "x",
            "content-type": "application/grpc", "te": "trailers", **metadata,
        }  # fmt: skip
        block = b"".join(b"\0" + _text(name.encode()) + _text(value.encode()) for name, value in head.items())
        self._socket.settimeout(10)
        self._socket.sendall(_frame(HEADERS, 4, stream, block))
        self._send(stream, b"\0" + struct.pack(">I", message_bytes))

    def push(self, stream: int, most_bytes: int, patience_s: float) -> int:
        """Send as much of the message as the server takes; how much that was. It has had enough when it grants nothing for so
        long."""
        granted_s = time.monotonic()
        while (left := most_bytes - self._sent[stream]) > 0 and stream not in self.ended:
            size = min(left, self._connection_window, self._initial + self._granted[stream] - self._sent[stream], _FRAME_BYTES)
            if size > 0:
                self._send(stream, bytes(size))
                granted_s = time.monotonic()
            elif time.monotonic() - granted_s > patience_s:
                break
            self._read(0.0 if size > 0 else 0.02)
        return self._sent[stream]

    def _send(self, stream: int, data: bytes) -> None:
        self._socket.settimeout(10)
        self._socket.sendall(_frame(DATA, 0, stream, data))
        self._sent[stream] += len(data)
        self._connection_window -= len(data)

    def _read(self, wait_s: float) -> None:
        self._socket.settimeout(wait_s or 0.0001)
        try:
            self._received += self._socket.recv(1 << 16)
        except TimeoutError:
            return
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            head, payload = self._received[3:9], self._received[9 : 9 + size]
            self._received = self._received[9 + size :]
            self._take(head[0], head[1], int.from_bytes(head[2:], "big"), payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and stream:
            self._granted[stream] += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._connection_window += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                self._initial = value if name == 4 else self._initial
            self._socket.sendall(_frame(SETTINGS, 1, 0, b""))
        elif kind == PING and not flags & 1:
            self._socket.sendall(_frame(PING, 1, 0, payload))
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self.ended.add(stream)
        assert kind != GOAWAY, payload
