"""An Escrow in memory: the HTTP contract of docs/http-api.md, faithful enough to hold the SDK to it, and obedient to tests.

    with FakeEscrow() as escrow:
        escrow.fail("/v1/halves", reset_after=True)     # the next call is carried out, its answer lost
        escrow.ask(id)                                  # a check request for this half
        with escrow.holding("/v1/halves") as hold:      # calls wait until `hold.release()`
            hold.until(1)                               # … one of them has come
        escrow.advance(31)                              # time passes: visibility runs out

It has no durability, no settlement and no check rounds: checks are asked when a test says so.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

QUEUES = 4


class Problem(Exception):
    """Becomes problem+json."""

    def __init__(self, status: int, code: str, detail: str = "", field: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.field, self.retry_after_s = status, code, detail, field, retry_after_s


@dataclass
class Fault:
    """What happens to one call instead of, or after, what it asks for."""

    path: str
    problem: Problem | None = None
    reset_before: bool = False
    reset_after: bool = False
    raw: bytes | None = None


@dataclass
class StoredHalf:
    id: str
    half_offset: int
    message: dict[str, Any]
    state: str = "PREPARED"
    ends: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 0


@dataclass
class Placed:
    """A message in a topic, and where each consumer group is with it."""

    message: dict[str, Any]
    queue_id: int
    queue_offset: int


@dataclass
class Lease:
    receipt: str = ""
    until: float = 0.0
    attempt: int = 0
    done: bool = False


class Hold:
    """Calls to a path that wait."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._waiting, self._released = 0, False

    def wait(self) -> None:
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._released, 60), f"{self.path}: held, and never released"

    def until(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= count, 60), f"{self.path}: {self._waiting} of {count} came"

    def release(self) -> None:
        with self._changed:
            self._released = True
            self._changed.notify_all()


class FakeEscrow:
    def __init__(self, *, token: str | None = None, tls: ssl.SSLContext | None = None, port: int = 0, flush_s: float = 0.0) -> None:
        self.token, self.flush_s = token, flush_s
        self.changed = threading.Condition(threading.RLock())
        self.halves: dict[str, StoredHalf] = {}
        self.dedup: dict[tuple[str, str], str] = {}
        self.topics: dict[str, list[Placed]] = defaultdict(list)
        self.leases: dict[tuple[str, str], dict[tuple[int, int], Lease]] = defaultdict(dict)
        self.dead: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.checks: dict[str, deque[str]] = defaultdict(deque)
        self.calls: list[tuple[str, str, Any]] = []
        self.polling = 0
        self.connections = 0
        self.faults: list[Fault] = []
        self.holds: list[Hold] = []
        #: Returns a Problem for messages that make their whole batch fail.
        self.judge: Callable[[dict[str, Any]], Problem | None] = lambda message: None
        self._ahead_s, self._numbers, self._closing = 0.0, 0, False
        self._sockets: set[socket.socket] = set()
        #: The handler that serves in this thread.
        self.here: Any = threading.local()
        self._server = _Server(("127.0.0.1", port), self)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> FakeEscrow:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Gone at once, with every connection: as a killed server."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        for hold in self.holds:
            hold.release()
        self._server.shutdown()
        self._server.server_close()
        self.hang_up()
        self._thread.join()

    # --- what tests say ---------------------------------------------------------------------------------------------------
    def fail(self, path: str, problem: Problem | None = None, *, times: int = 1, **how: Any) -> None:
        with self.changed:
            self.faults += [Fault(path, problem, **how) for _ in range(times)]

    @contextmanager
    def holding(self, path: str) -> Iterator[Hold]:
        hold = Hold(path)
        self.holds.append(hold)
        try:
            yield hold
        finally:
            self.holds.remove(hold)
            hold.release()

    def hang_up(self) -> None:
        """Every open connection breaks."""
        with self.changed:
            for sock in list(self._sockets):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def ask(self, id: str) -> None:
        with self.changed:
            self.checks[self.halves[id].message["group"]].append(id)
            self.changed.notify_all()

    def advance(self, seconds: float) -> None:
        with self.changed:
            self._ahead_s += seconds
            self.changed.notify_all()

    def until(self, true: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        """Wait until this holds; looked at whenever something happens."""
        with self.changed:
            assert self.changed.wait_for(true, timeout_s), "waited in vain"
            return true()

    def calls_to(self, path: str) -> list[Any]:
        """Contents of the calls to this path, in the order in which they came."""
        with self.changed:
            return [content for _, called, content in self.calls if called == path]

    def bodies(self, topic: str) -> list[bytes]:
        with self.changed:
            return [_body(placed.message) for placed in self.topics[topic]]

    # --- calls ------------------------------------------------------------------------------------------------------------
    def serve(self, method: str, path: str, query: dict[str, str], content: Any) -> dict[str, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match method, parts:
            case "POST", ["v1", "halves"]:
                return {"halves": self._halves(content["messages"])}
            case "POST", ["v1", "messages"]:
                return {"messages": [self._place(message) for message in self._judged(content["messages"])]}
            case "POST", ["v1", "ends"]:
                return {"answers": [self._end(end) for end in content["ends"]]}
            case "GET", ["v1", "groups", group, "checks"]:
                return {"checks": self._poll_checks(group, int(query["max"]), float(query["wait_s"]))}
            case "GET", ["v1", "transactions", id]:
                return self._transaction(id)
            case "GET", ["v1", "topics", topic, "messages"]:
                return {"messages": self._poll_messages(topic, query)}
            case "POST", ["v1", "topics", topic, "acks"]:
                return {"answers": [{"verdict": self._ack(topic, content["group"], receipt)} for receipt in content["receipts"]]}
            case "POST", ["v1", "topics", topic, "visibility"]:
                return {"receipts": [self._visibility(topic, content, receipt) for receipt in content["receipts"]]}
            case "POST", ["v1", "topics", topic, "seek"]:
                return {"queues": self._seek(topic, content["group"], content["to"])}
            case "GET", ["v1", "groups", group, "dead-letters"]:
                return self._dead_letters(group, int(query["max"]), query.get("after", ""))
            case "POST", ["v1", "groups", group, "dead-letters", "replay"]:
                return {"replayed": sum(self.dead[group].pop(id, None) is not None for id in content["ids"])}
            case "GET", ["v1", "status"]:
                return {"pending": sum(half.state == "PREPARED" for half in self.halves.values())}
        raise Problem(404, "not_found", f"{method} {path}: no such call")

    def _judged(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """All or none: one bad message refuses them all."""
        for number, message in enumerate(messages):
            for name in ("group", "topic"):
                if not message.get(name):
                    raise Problem(400, "invalid_request", "is missing", f"messages[{number}].{name}")
            if ("body" in message) == ("text" in message):
                raise Problem(400, "invalid_request", "give either body or text", f"messages[{number}].body")
            problem = self.judge(message)
            if problem is not None:
                problem.field = problem.field or f"messages[{number}]"
                raise problem
        return messages

    def _halves(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for number, message in enumerate(self._judged(messages)):
            known = self.dedup.get((message["group"], message.get("dedup_key", "")))
            if known is not None and _body(self.halves[known].message) != _body(message):
                raise Problem(409, "duplicate_key", "was used for another body", f"messages[{number}].dedup_key")
        return [self._half(message) for message in messages]

    def _half(self, message: dict[str, Any]) -> dict[str, Any]:
        key = (message["group"], message.get("dedup_key", ""))
        id = self.dedup.get(key) if key[1] else None
        if id is None:
            id = f"id-{len(self.halves)}"
            self.halves[id] = StoredHalf(id, len(self.halves), message)
            if key[1]:
                self.dedup[key] = id
        return {"id": id, "half_offset": self.halves[id].half_offset}

    def _place(self, message: dict[str, Any]) -> dict[str, Any]:
        placed = self.topics[message["topic"]]
        queue_id = message.get("queue_id", sum(message.get("key", "").encode()) % QUEUES)
        queue_offset = sum(other.queue_id == queue_id for other in placed)
        placed.append(Placed(message, queue_id, queue_offset))
        self.changed.notify_all()
        return {"queue_id": queue_id, "queue_offset": queue_offset}

    def _end(self, end: dict[str, Any]) -> dict[str, Any]:
        half = self.halves.get(end["id"])
        if half is None:
            return {"verdict": "refused", "reason": "unknown id", "state": ""}
        if half.message["group"] != end["group"]:
            return {"verdict": "refused", "reason": "wrong group", "state": half.state}
        half.ends.append(end)
        self.changed.notify_all()
        wanted = {"commit": "COMMITTED", "rollback": "ROLLED_BACK"}.get(end["outcome"])
        if wanted is None:
            return {"verdict": "accepted", "reason": "", "state": half.state}
        if half.state == "PREPARED":
            half.state = wanted
            if wanted == "COMMITTED":
                self._place(half.message)
            return {"verdict": "accepted", "reason": "", "state": wanted}
        return {"verdict": "already" if half.state == wanted else "conflict", "reason": "", "state": half.state}

    def _transaction(self, id: str) -> dict[str, Any]:
        if id not in self.halves:
            raise Problem(404, "unknown_id", f"{id}: no such transaction")
        return {"id": id, "state": self.halves[id].state, "history": self.halves[id].ends}

    def _poll_checks(self, group: str, count: int, wait_s: float) -> list[dict[str, Any]]:
        queue = self.checks[group]
        self._wait(lambda: bool(queue), wait_s)
        return [self._check(self.halves[queue.popleft()]) for _ in range(min(count, len(queue)))]

    def _check(self, half: StoredHalf) -> dict[str, Any]:
        half.attempts += 1
        return {"id": half.id, "topic": half.message["topic"], "attempt": half.attempts, **_content(half.message)}

    # --- consuming --------------------------------------------------------------------------------------------------------
    def _poll_messages(self, topic: str, query: dict[str, str]) -> list[dict[str, Any]]:
        tags = set(query["tags"].split("||")) if "tags" in query else None
        leases = self._joined(topic, query["group"], query.get("from", "earliest"))

        def ready() -> list[Placed]:
            found = []
            for placed in self.topics[topic]:
                lease = leases.setdefault((placed.queue_id, placed.queue_offset), Lease())
                wanted = tags is None or placed.message.get("tags", "") in tags
                if wanted and not lease.done and lease.until <= self._now():
                    found.append(placed)
            return found

        self._wait(ready, float(query["wait_s"]))
        taken = ready()[: int(query["max"])]
        return [self._lend(placed, leases, float(query["visibility_s"])) for placed in taken]

    def _joined(self, topic: str, group: str, start: str) -> dict[tuple[int, int], Lease]:
        leases = self.leases[topic, group]
        if not leases and start == "latest":
            for placed in self.topics[topic]:
                leases[placed.queue_id, placed.queue_offset] = Lease(done=True)
        return leases

    def _lend(self, placed: Placed, leases: dict[tuple[int, int], Lease], visibility_s: float) -> dict[str, Any]:
        lease = leases[placed.queue_id, placed.queue_offset]
        lease.receipt, lease.until, lease.attempt = self._receipt(), self._now() + visibility_s, lease.attempt + 1
        return {
            "receipt": lease.receipt,
            "queue_id": placed.queue_id,
            "queue_offset": placed.queue_offset,
            "attempt": lease.attempt,
            **_content(placed.message),
        }

    def _receipt(self) -> str:
        self._numbers += 1
        return f"receipt-{self._numbers}"

    def _lease(self, topic: str, group: str, receipt: str) -> Lease | None:
        for lease in self.leases[topic, group].values():
            if lease.receipt == receipt and not lease.done and lease.until > self._now():
                return lease
        return None

    def _ack(self, topic: str, group: str, receipt: str) -> str:
        lease = self._lease(topic, group, receipt)
        if lease is None:
            return "stale"
        lease.done = True
        self.changed.notify_all()
        return "done"

    def _visibility(self, topic: str, content: dict[str, Any], receipt: str) -> str | None:
        lease = self._lease(topic, content["group"], receipt)
        if lease is None:
            return None
        lease.receipt, lease.until = self._receipt(), self._now() + content["visibility_s"]
        self.changed.notify_all()
        return lease.receipt

    def _seek(self, topic: str, group: str, to: str | int) -> list[dict[str, Any]]:
        for placed in self.topics[topic]:
            self.leases[topic, group][placed.queue_id, placed.queue_offset] = Lease(done=to == "latest")
        self.changed.notify_all()
        return [{"queue_id": queue_id, "queue_offset": 0} for queue_id in range(QUEUES)]

    def _dead_letters(self, group: str, count: int, after: str) -> dict[str, Any]:
        letters = [letter for id, letter in sorted(self.dead[group].items()) if id > after]
        return {"dead_letters": letters[:count], "next": letters[count - 1]["id"] if len(letters) > count else None}

    # --- within -----------------------------------------------------------------------------------------------------------
    def _wait(self, ready: Callable[[], Any], wait_s: float) -> None:
        """A long poll. One whose client has gone takes nothing with it."""
        deadline = time.monotonic() + wait_s
        self.polling += 1
        self.changed.notify_all()
        try:
            while not self._closing and not ready() and (left_s := deadline - time.monotonic()) > 0:
                self.changed.wait(min(left_s, 0.02))
                if self.here.has_gone():
                    raise ConnectionResetError
            if self.here.has_gone():
                raise ConnectionResetError
        finally:
            self.polling -= 1
            self.changed.notify_all()

    def _now(self) -> float:
        return time.monotonic() + self._ahead_s

    def take_fault(self, path: str) -> Fault | None:
        with self.changed:
            for fault in self.faults:
                if fault.path == path:
                    self.faults.remove(fault)
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], fake: FakeEscrow) -> None:
        self.fake = fake
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave in the middle are part of the game."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        with self.server.fake.changed:
            self.server.fake.connections += 1
            self.server.fake._sockets.add(self.connection)
        self.server.fake.here.has_gone = self._has_gone

    def _has_gone(self) -> bool:
        return bool(select.select([self.connection], [], [], 0)[0])

    def finish(self) -> None:
        with self.server.fake.changed:
            self.server.fake._sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _content(self, raw: bytes) -> Any:
        """As JSON would have it, whatever it came as."""
        if self.headers["Content-Type"] == "application/json":
            return json.loads(raw)
        content = msgspec.msgpack.decode(raw)
        for message in content["messages"]:
            if "body" in message:
                message["body"] = b64encode(message["body"]).decode()
        return content

    def _serve(self, method: str) -> None:
        fake = self.server.fake
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        content = self._content(self.rfile.read(size)) if size else None
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        with fake.changed:
            fake.calls.append((method, parts.path, content if content is not None else query))
            fake.changed.notify_all()
        for hold in list(fake.holds):
            if hold.path == parts.path:
                hold.wait()
        fault = fake.take_fault(parts.path) or Fault(parts.path)
        if fault.reset_before:
            self._hang_up()
            return
        status, answer, retry_after_s = self._answer(method, parts.path, query, content, fault)
        if fault.reset_after:
            self._hang_up()
            return
        self._write(status, fault.raw or json.dumps(answer).encode(), retry_after_s)

    def _answer(
        self, method: str, path: str, query: dict[str, str], content: Any, fault: Fault
    ) -> tuple[int, dict[str, Any], int | None]:
        fake = self.server.fake
        try:
            if fault.problem is not None:
                raise fault.problem
            if fault.raw is not None:
                return 200, {}, None
            if fake.token is not None and self.headers.get("Authorization") != f"Bearer {fake.token}":
                raise Problem(401, "unauthorized", "send Authorization: Bearer with a token of this Escrow")
            if fake.flush_s and method == "POST":
                time.sleep(fake.flush_s)  # what a flush costs, for benchmarks
            with fake.changed:
                return 200, fake.serve(method, path, query, content), None
        except Problem as problem:
            body = {"status": problem.status, "code": problem.code, "title": problem.code, "detail": problem.detail}
            return problem.status, {**body, "field": problem.field or None}, problem.retry_after_s

    def _write(self, status: int, answer: bytes, retry_after_s: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status == 200 else "application/problem+json")
        self.send_header("Content-Length", str(len(answer)))
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.end_headers()
        self.wfile.write(answer)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _body(message: dict[str, Any]) -> bytes:
    return message["text"].encode() if "text" in message else b64decode(message["body"])


def _content(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "body": b64encode(_body(message)).decode(),
        "key": message.get("key", ""),
        "tags": message.get("tags", ""),
        "properties": message.get("properties", {}),
        "born_at_ms": message.get("born_at_ms", 0),
        "stored_at_ms": 1_700_000_000_000,
    }


def eventually(true: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Wait until this holds: for what happens on the SDK's side, where nobody notifies."""
    end = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return found
