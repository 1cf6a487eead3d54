"""A client that sends SendMessage over gRPC and does next to nothing else: HTTP/2 frames written by hand over one blocking socket.

A client of grpcio costs as much processor time as the server that it measures, and then both servers look alike. This one takes a
few microseconds a call. It knows just enough of HTTP/2: it sends with a fixed set of headers, keeps to the server's window, answers
SETTINGS and PING, and takes a call for done when its stream ends.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from typing import Final

from ingest.rocketmq import messaging_pb2 as pb

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 0x1, 0x4, 0x1
HEAD: Final = struct.Struct("!BHBBI")
ID_CHARACTERS: Final = 34
MARK: Final = b"#" * ID_CHARACTERS
PATH: Final = "/apache.rocketmq.v2.MessagingService/SendMessage"
#: status { code: OK } at the begin of an answer, behind gRPC's five bytes and the field's own two.
OK: Final = b"\x08\xa0\x9c\x01"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _literal(name: bytes, value: str) -> bytes:
    """A header that is not to be remembered; `name` is an index of the static table, or a name with its length."""
    return name + bytes([len(value)]) + value.encode()


def _named(name: str, value: str) -> bytes:
    return _literal(b"\0" + bytes([len(name)]) + name.encode(), value)


def headers(authority: str) -> bytes:
    """What RocketMQ's Python client sends, in HPACK without a dynamic table."""
    own = {
        "te": "trailers",
        "x-mq-client-id": "bench@1@0@abcdef",
        "x-mq-language": "PYTHON",
        "x-mq-protocol": "GRPC_V2",
        "x-mq-date-time": "20260101T000000Z",
    }
    block = b"\x83\x86" + _literal(b"\x04", PATH) + _literal(b"\x01", authority) + _literal(b"\x0f\x10", "application/grpc")
    return block + b"".join(_named(name, value) for name, value in own.items())


def half(size_bytes: int) -> tuple[bytes, int]:
    """A call's bytes, and where in them its message id stands."""
    system = pb.SystemProperties(message_id=MARK.decode(), message_type=pb.TRANSACTION, body_encoding=pb.IDENTITY)
    message = pb.Message(topic=pb.Resource(name="bench"), body=b"x" * size_bytes, system_properties=system)
    content = pb.SendMessageRequest(messages=[message]).SerializeToString()
    content = b"\0" + len(content).to_bytes(4, "big") + content
    return content, content.index(MARK)


class Load:
    """One connection. `run(calls, in_flight)` → calls a second."""

    _ids = itertools.count(time.time_ns())

    def __init__(self, port: int, size_bytes: int = 1024) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = headers(f"127.0.0.1:{port}")
        self._content, self._id_at = half(size_bytes)
        self._streams, self._buffer = itertools.count(1, 2), b""
        self._window, self._done = 65_535, 0
        setting = struct.pack("!HIHI", 2, 0, 4, 0x7FFF_FFFF)  # no push; every answer fits
        grown = struct.pack("!I", 0x7FFF_FFFF - 65_535)
        self._socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, setting) + frame(WINDOW_UPDATE, 0, 0, grown)
        )

    def run(self, calls: int, in_flight: int) -> float:
        begun_s, self._done, sent = time.perf_counter(), 0, 0
        while self._done < calls:
            pieces = []
            while sent < calls and sent - self._done < in_flight and self._window >= len(self._content):
                pieces.append(self._call())
                sent += 1
            if pieces:
                self._socket.sendall(b"".join(pieces))
            self._read()
        return calls / (time.perf_counter() - begun_s)

    def _call(self) -> bytes:
        stream, at = next(self._streams), self._id_at
        id = b"%034d" % next(self._ids)
        self._window -= len(self._content)
        content = self._content[:at] + id + self._content[at + ID_CHARACTERS :]
        return frame(HEADERS, END_HEADERS, stream, self._headers) + frame(DATA, END_STREAM, stream, content)

    def _read(self) -> None:
        piece = self._socket.recv(1 << 18)
        assert piece, "the server hung up"
        data, at = self._buffer + piece, 0
        while len(data) - at >= HEAD.size:
            high, low, kind, flags, _ = HEAD.unpack_from(data, at)
            end = at + HEAD.size + (high << 16 | low)
            if end > len(data):
                break
            self._take(kind, flags, data[at + HEAD.size : end])
            at = end
        self._buffer = data[at:]

    def _take(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._done += flags & END_STREAM
        elif kind == DATA:
            assert payload[7:11] == OK or not payload, payload[:200]
        elif kind == WINDOW_UPDATE:
            self._window += int.from_bytes(payload, "big")  # of a stream, too: those are few, and the server's own window is larger
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self._socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
        else:
            assert kind not in (RST_STREAM, GOAWAY), payload

    def close(self) -> None:
        self._socket.close()
