"""A plain client of the endpoint, without the SDK's batching and retries: every call is one request, every refusal is raised."""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode


class RemoteError(Exception):
    """A problem; `code` says what kind."""

    def __init__(self, problem: dict[str, Any], headers: Any) -> None:
        super().__init__(problem["detail"])
        self.code, self.status, self.field = problem["code"], problem["status"], problem.get("field", "")
        self.problem, self.headers = problem, headers


class EdgeClient:
    """`with EdgeClient(port) as edge: ids = edge.prepare([{"group": …, "topic": …, "text": …}])`"""

    def __init__(
        self, port: int, host: str = "127.0.0.1", timeout_s: float = 40.0, token: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        self.connection = (
            http.client.HTTPConnection(host, port, timeout=timeout_s)
            if tls is None
            else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
        )
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.connection.connect()

    def call(self, method: str, path: str, content: Any = None, **query: Any) -> Any:
        """One request and its answer; RemoteError where it was refused."""
        status, headers, body = self.raw(method, path + ("?" + urlencode(query) if query else ""), content)
        found = json.loads(body)
        if status != 200:
            assert headers["content-type"] == "application/problem+json", headers["content-type"]
            assert found["status"] == status
            raise RemoteError(found, headers)
        return found

    def raw(self, method: str, path: str, content: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
        body = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        given = {**self._headers, **({"Content-Type": "application/json"} if body is not None else {}), **(headers or {})}
        self.connection.request(method, path, body, given)
        response = self.connection.getresponse()
        return response.status, response.headers, response.read()

    def prepare(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        return [half["id"] for half in self.call("POST", "/v1/halves", {"messages": list(messages)})["halves"]]

    def send(self, messages: Sequence[dict[str, Any]]) -> int:
        return len(self.call("POST", "/v1/messages", {"messages": list(messages)})["messages"])

    def ends(self, ends: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("POST", "/v1/ends", {"ends": list(ends)})["answers"]
        return found

    def end(self, group: str, id: str, outcome: str, *, from_check: bool = False, remark: str = "") -> dict[str, Any]:
        return self.ends([{"group": group, "id": id, "outcome": outcome, "from_check": from_check, "remark": remark}])[0]

    def poll_checks(self, group: str, member: str, max: int = 32, wait_s: float = 0.0) -> list[dict[str, Any]]:
        """Check requests, their bodies decoded."""
        found = self.call("GET", f"/v1/groups/{quote(group, safe='')}/checks", member=member, max=max, wait_s=wait_s)["checks"]
        return [{**check, "body": b64decode(check["body"])} for check in found]

    def act(self, action: str, ids: Sequence[str], reason: str = "a test") -> list[dict[str, Any]]:
        """As operator: check, commit, rollback or resume."""
        given = {"action": action, "ids": list(ids), "reason": reason}
        found: list[dict[str, Any]] = self.call("POST", "/v1/operator/actions", given)["results"]
        return found

    def consume(self, topic: str, group: str = "readers", consumer: str = "me", **query: Any) -> list[dict[str, Any]]:
        """Messages, their bodies decoded."""
        path = f"/v1/topics/{quote(topic, safe='')}/messages"
        found = self.call("GET", path, group=group, consumer=consumer, **query)["messages"]
        return [{**message, "body": b64decode(message["body"])} for message in found]

    def ack(self, topic: str, receipts: Sequence[str], group: str = "readers") -> list[str]:
        content = {"group": group, "receipts": list(receipts)}
        return [each["verdict"] for each in self.call("POST", f"/v1/topics/{quote(topic, safe='')}/acks", content)["answers"]]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", "/v1/status")
        return found

    def transaction(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/v1/transactions/{id}")
        return found

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def body_of(content: bytes) -> str:
    """A body as a message's `body` wants it."""
    return b64encode(content).decode()
