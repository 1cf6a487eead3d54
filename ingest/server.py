"""The edge as a process, over a loopback socket: `python -m ingest.server [--config FILE] [--data DIR] [--set KEY=VALUE]`.

It stands in until the HTTP endpoint is put on the same core.

Wire: a request is a 4-byte big-endian length and that many bytes of JSON, {"id": n, "method": …, "params": {…}}; an answer is
framed the same way, {"id": n, "result": …} or {"id": n, "error": {"code": …, "message": …}}. Requests of one connection are
served side by side, so answers may come in another order: `id` tells which is which.

    prepare      {messages: […]}                            → {ids: […]}
    send         {messages: […]}                            → {count}
    end          {ends: […]}                                → {answers: [{verdict, reason, state}, …]}
    poll_checks  {group, member, max, wait_s}               → {checks: […]}
    resume       {ids: […], actor, remark}                  → {answers: […]}
    status       {} or {id}                                 → {…}

stdout: one JSON line {"ready": true, "port": …} when it accepts, and {"notice": …} for what an operator should read.
stderr: why it could not start or had to stop, in one line. Exit code 0 after SIGTERM or SIGINT, 2 when starting again is of no
use before somebody has changed something, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from escrow.settings import Settings, SettingsError, from_arguments
from ingest import tls, wire
from ingest.access import Access, check_listening
from ingest.core import Edge
from ingest.errors import CannotStart, EdgeError, InvalidRequest, UnknownMethod
from store.errors import DuplicateKey, GeometryMismatch, InvalidRecord, StoreError, StoreUnusable

LENGTH: Final = struct.Struct(">I")
#: Requests of one connection that are served at the same time; the next is read when one is done.
IN_FLIGHT_MAX: Final = 128
#: JSON this large is decoded and encoded in a thread, so that others are served meanwhile.
LARGE_BYTES: Final = 256 << 10
#: How long accepted requests may take after the signal to stop.
DRAIN_S: Final = 5.0
OK, FAILED, USELESS = 0, 1, 2

_SETTING_OF: Final = {
    "commit_log_segment_bytes": "commitLogSegmentSize",
    "state_rows_per_file": "rows of tranStateTableMapedFileSize",
    "redo_entries_per_file": "entries of tranRedoLogMapedFileSize",
    "log_queue_entries_per_file": "logQueueEntriesPerFile",
    "topic_queue_entries_per_file": "topicQueueEntriesPerFile",
}

Method = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Server:
    """Connections on one side, the edge core on the other."""

    def __init__(self, edge: Edge, access: Access) -> None:
        self._edge, self._settings, self.access = edge, edge.settings, access
        self._connections: set[Connection] = set()
        self.methods: dict[str, Method] = {
            "prepare": self._prepare,
            "send": self._send,
            "end": self._end,
            "resume": self._resume,
            "status": self._status,
        }

    async def _prepare(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"ids": await self._edge.prepare(wire.items(params, "messages", wire.message))}

    async def _send(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"count": await self._edge.send(wire.items(params, "messages", wire.message))}

    async def _end(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"answers": [asdict(answer) for answer in await self._edge.end(wire.items(params, "ends", wire.end))]}

    async def _resume(self, params: Mapping[str, Any]) -> dict[str, Any]:
        ids = params.get("ids")
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise InvalidRequest("ids: must be a list of ids")
        answers = await self._edge.resume(ids, wire.text(params, "actor"), wire.text(params, "remark"))
        return {"answers": [asdict(answer) for answer in answers]}

    async def _status(self, params: Mapping[str, Any]) -> dict[str, Any]:
        if "id" in params:
            return await self._edge.transaction(wire.text(params, "id"))
        return await self._edge.status()

    async def poll(self, params: Mapping[str, Any], write: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """The hand-over is recorded after the answer was written."""
        group, member = wire.text(params, "group", required=True), wire.text(params, "member", required=True)
        count, wait_s = int(wire.number(params, "max", 32)), wire.number(params, "wait_s", 0.0)
        async with self._edge.poll_checks(group, member, count, wait_s) as handover:
            await write({"checks": [wire.check(request, self._edge.id_of(request)) for request in handover.requests]})

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer, self._settings.max_request_bytes)
        if len(self._connections) >= self._settings.max_connections:
            text = f"{len(self._connections)} connections are open, the most there may be (maxConnections)"
            with contextlib.suppress(OSError):
                await connection.answer_error(None, "overloaded", text)
            writer.close()
            return
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)

    async def drain(self) -> None:
        """No connection is served any further once its accepted requests are answered."""
        await asyncio.gather(*[connection.drain() for connection in self._connections])


class Connection:
    """One client: reads requests, serves them side by side, writes answers whole."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request_bytes_max: int) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        self._request_bytes_max = request_bytes_max
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def serve(self) -> None:
        try:
            while True:
                content = await self._read()
                if content is None:
                    break
                await self._room.acquire()
                task = asyncio.get_running_loop().create_task(self._serve_one(content))
                self._tasks.add(task)
                task.add_done_callback(self._served)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass  # the client has gone
        finally:
            await self._hang_up()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._room.release()
        self._tasks.discard(task)

    async def _hang_up(self) -> None:
        """Who has gone cannot be handed anything: polls that wait are given up, the rest runs to its end unheard."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._writer.wait_closed()

    async def drain(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=DRAIN_S)
        self._writer.close()

    async def _read(self) -> bytes | None:
        """The next request; None when the connection must be closed."""
        try:
            (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        if size > self._request_bytes_max:
            text = f"the request has {size} bytes; at most {self._request_bytes_max} (maxRequestSize) are taken"
            await self.answer_error(None, "too_large", text)
            return None
        return await self._reader.readexactly(size)

    async def _serve_one(self, content: bytes) -> None:
        request_id: Any = None
        try:
            request = await _decode(content)
            request_id, method, params = request.get("id"), request.get("method"), request.get("params", {})
            if not isinstance(params, dict):
                raise InvalidRequest("params: must be an object")
            # Once there are tokens this door is for operators: the endpoint knows the finer roles.
            shown = request.get("authorization")
            self._server.access.principal(shown if isinstance(shown, str) else None).require_operator()
            if method == "poll_checks":
                await self._server.poll(params, lambda result: self.answer(request_id, result))
                return
            known = self._server.methods.get(method) if isinstance(method, str) else None
            if known is None:
                names = ", ".join(sorted([*self._server.methods, "poll_checks"]))
                raise UnknownMethod(f"method: {str(method)[:64]!r} is none of {names}")
            await self.answer(request_id, await known(params))
        except (ConnectionError, TimeoutError):
            self._writer.close()
        except Exception as error:
            code, text = explain(error)
            with contextlib.suppress(ConnectionError):
                await self.answer_error(request_id, code, text)

    async def answer(self, request_id: Any, result: dict[str, Any]) -> None:
        await self._write({"id": request_id, "result": result})

    async def answer_error(self, request_id: Any, code: str, text: str) -> None:
        await self._write({"id": request_id, "error": {"code": code, "message": text}})

    async def _write(self, answer: dict[str, Any]) -> None:
        content = json.dumps(answer, separators=(",", ":")).encode()
        async with self._writing:
            self._writer.write(LENGTH.pack(len(content)) + content)
            await self._writer.drain()
            if self._writer.is_closing():
                raise ConnectionResetError("the client has gone")


async def _decode(content: bytes) -> dict[str, Any]:
    try:
        decoded = await asyncio.to_thread(json.loads, content) if len(content) > LARGE_BYTES else json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidRequest("the request is not JSON in UTF-8") from None
    if not isinstance(decoded, dict):
        raise InvalidRequest("the request must be a JSON object with id, method and params")
    return decoded


def explain(error: Exception) -> tuple[str, str]:
    """(code, one line) of an error."""
    if isinstance(error, EdgeError):
        return error.code, str(error)
    if isinstance(error, DuplicateKey):
        return "duplicate_key", str(error)
    if isinstance(error, InvalidRecord):
        return "invalid", str(error)
    if isinstance(error, StoreError):
        return "store", str(error)
    return "internal", f"{type(error).__name__}: {error}"


# --- the process -----------------------------------------------------------------------------------------------------------
def bind(settings: Settings, access: Access) -> socket.socket:
    """The listening address, taken before the store is opened: who cannot have it has changed nothing."""
    address, port = settings.listen_address, settings.listen_port
    try:
        ip = ipaddress.ip_address("127.0.0.1" if address == "localhost" else address)
    except ValueError:
        raise CannotStart(f"listenAddress: {address!r} is no IP address: write 127.0.0.1 or ::1") from None
    check_listening(settings, access)
    listening = socket.socket(socket.AF_INET6 if ip.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((str(ip), port))
    except OSError as error:
        listening.close()
        remedy = "stop the process that has it, or set listenPort to another port"
        raise CannotStart(f"{address}:{port}: {error.strerror}: {remedy}") from None
    return listening


async def serve(settings: Settings) -> int:
    """1 address · 2 store · 3 accept · 4 until a signal or a failure · 5 stop accepting, answer what was accepted, close."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    access, context = Access(settings), tls.server_context(settings)
    listening = bind(settings, access)  # 1
    edge = Edge(settings)
    await edge.open()  # 2
    server = Server(edge, access)
    accepting = await asyncio.start_server(server.accept, sock=listening, backlog=1024, limit=1 << 20, ssl=context)  # 3
    renewing = asyncio.get_running_loop().create_task(tls.Renewal(context, settings).watch())
    for notice in filter(None, (edge.notice, tls.notice(settings))):
        say({"notice": notice})
    say({"ready": True, "port": listening.getsockname()[1]})
    edge.failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()  # 4
    failure = edge.failed.result() if edge.failed.done() else ""
    if failure:
        complain(f"the store failed: {failure}")
    accepting.close()  # 5
    renewing.cancel()
    edge.stop()
    await server.drain()
    try:
        await edge.close()
    except StoreUnusable as error:
        if not failure:
            complain(str(error))
        return FAILED
    return FAILED if failure else OK


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def complain(text: str) -> None:
    print(f"escrow edge: {' '.join(text.split())}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    try:
        return asyncio.run(serve(from_arguments(argv, prog="python -m ingest.server")))
    except SettingsError as error:
        for problem in error.problems:
            complain(problem)
    except GeometryMismatch as error:
        text = str(error)
        for name, setting in _SETTING_OF.items():
            text = text.replace(name, setting)
        complain(text)
    except StoreUnusable as error:
        complain(str(error))
        return FAILED
    except (EdgeError, StoreError) as error:
        complain(str(error))
    except OSError as error:
        complain(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        return FAILED
    return USELESS


if __name__ == "__main__":
    sys.exit(main())
