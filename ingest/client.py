"""A small client of the socket server, for tests and the command line. One request at a time; not for many threads."""

from __future__ import annotations

import json
import socket
from base64 import b64decode, b64encode
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from ingest.errors import EdgeError

LENGTH_BYTES: Final = 4


class RemoteError(EdgeError):
    """The edge refused; `code` says what kind of refusal it is."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EdgeClient:
    """`with EdgeClient(port) as edge: ids = edge.prepare([{"group": …, "topic": …, "text": …}])`"""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 40.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One request and its answer; RemoteError where it was refused."""
        self._number += 1
        self.write(json.dumps({"id": self._number, "method": method, "params": params}).encode())
        answer = self.read()
        if "error" in answer:
            raise RemoteError(answer["error"]["code"], answer["error"]["message"])
        result: dict[str, Any] = answer["result"]
        return result

    def write(self, content: bytes) -> None:
        self._socket.sendall(len(content).to_bytes(LENGTH_BYTES, "big") + content)

    def read(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._exactly(int.from_bytes(self._exactly(LENGTH_BYTES), "big")))
        return answer

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            piece = self._socket.recv(min(size - len(content), 1 << 20))
            if not piece:
                raise ConnectionResetError("the edge has closed the connection")
            content += piece
        return bytes(content)

    def prepare(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        ids: list[str] = self.call("prepare", messages=list(messages))["ids"]
        return ids

    def send(self, messages: Sequence[dict[str, Any]]) -> int:
        return int(self.call("send", messages=list(messages))["count"])

    def end(self, group: str, id: str, outcome: str, *, from_check: bool = False, remark: str = "") -> dict[str, Any]:
        ends = [{"group": group, "id": id, "outcome": outcome, "from_check": from_check, "remark": remark}]
        answer: dict[str, Any] = self.call("end", ends=ends)["answers"][0]
        return answer

    def poll_checks(self, group: str, member: str, max: int = 32, wait_s: float = 0.0) -> list[dict[str, Any]]:
        """Check requests, their bodies decoded."""
        checks: list[dict[str, Any]] = self.call("poll_checks", group=group, member=member, max=max, wait_s=wait_s)["checks"]
        for check in checks:
            check["body"] = b64decode(check["body"])
        return checks

    def resume(self, ids: Sequence[str], actor: str = "", remark: str = "") -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = self.call("resume", ids=list(ids), actor=actor, remark=remark)["answers"]
        return answers

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def transaction(self, id: str) -> dict[str, Any]:
        return self.call("status", id=id)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def body_of(content: bytes) -> str:
    """A body as a message's `body` wants it."""
    return b64encode(content).decode()
