"""The edge as a process: `python -m ingest.server [--config FILE] [--data DIR] [--set KEY=VALUE]`, started by `escrow run`.

HTTP in front (listener.py, app.py, routes.py), gRPC for RocketMQ's clients (rocketmq/), the edge core behind them (embedded.py).

stdout: one JSON line {"ready": true, "port": …, "url": …, "grpc_port": …} when it accepts, and {"notice": …} for what an operator
should read.
stderr: why it could not start or had to stop, in one line. Exit code 0 after SIGTERM or SIGINT, 2 when starting again is of no
use before something was changed, 1 otherwise.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import json
import logging
import logging.handlers
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import uvloop
from prometheus_client import CollectorRegistry

from ingest.assembly import assemble, plugin_notices
from ingest.auth import tls
from ingest.auth.access import Access, check_listening
from ingest.capabilities import Capabilities
from ingest.edge.background import HEARTBEAT_S
from ingest.errors import CannotStart, EdgeError
from ingest.http.app import App, Route
from ingest.http.connections.listener import Door
from ingest.http.connections.room import Room, grpc_ports, make_room
from ingest.http.metrics import Figures
from ingest.http.routes import make_routes
from ingest.rocketmq.front import Front
from runtime.metrics import EdgeMetrics, Figure
from runtime.settings import PRIVATE_UMASK, Settings, SettingsError, from_arguments
from store.errors import GeometryMismatch, StoreError, StoreUnusable
from store.progress import no_progress

#: How long accepted requests may take after the signal to stop.
DRAIN_S: Final = 2.5
#: How often a start that takes long tells how far it is.
TELL_S: Final = 5.0
OK, FAILED, USELESS = 0, 1, 2

_SETTING_OF: Final = {
    "commit_log_segment_bytes": "commitLogSegmentSize",
    "state_rows_per_file": "rows of tranStateTableMapedFileSize",
    "redo_entries_per_file": "entries of tranRedoLogMapedFileSize",
    "log_queue_entries_per_file": "logQueueEntriesPerFile",
    "topic_queue_entries_per_file": "topicQueueEntriesPerFile",
}


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


class Endpoint:
    """Door, application and metrics over one edge."""

    def __init__(self, edge: Capabilities, settings: Settings, access: Access, room: Room) -> None:
        self.edge = edge
        self.metrics = EdgeMetrics(CollectorRegistry(), self._look, self._look_at_files)
        self.app = App(edge, self._routes(settings), self._observe, access)
        self.door = Door(self.app, settings, room)
        self._figures = Figures(edge, self.door, self.app)
        edge.core.observe_flush = self.metrics.flush_s.observe

    def _look(self) -> Iterator[Figure]:
        return self._figures.look()

    def _look_at_files(self) -> Iterator[Figure]:
        return self._figures.files()

    def _routes(self, settings: Settings) -> tuple[Route, ...]:
        metrics = self.metrics if settings.metrics_enabled else None
        return make_routes(metrics, self.edge.offers, with_console=settings.console_enabled)

    def _observe(self, route: Route | None, status: int, seconds: float) -> None:
        self.metrics.observe(route.operation if route is not None else "none", status, seconds)

    async def beat(self) -> None:
        while True:
            self.door.beat()
            await asyncio.sleep(HEARTBEAT_S)


def make_front(settings: Settings, access: Access, edge: Capabilities, connections_max: int) -> Front | None:
    """What serves RocketMQ's clients, as a part of the edge, where a port is set for them."""
    if not grpc_ports(settings):
        return None
    front = Front(settings, access, edge, connections_max)
    edge.parts.append(front)
    return front


async def serve(settings: Settings) -> int:
    """1 addresses · 2 store · 3 accept · 4 until a signal or a failure · 5 stop accepting, answer what was accepted, close."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    access, context = Access(settings), tls.server_context(settings)
    room = make_room(settings)
    listening = bind(settings, access)  # 1
    edge = assemble(settings)
    front = make_front(settings, access, edge, room.grpc)
    await edge.open(Telling() if settings.mode == "kafka" else no_progress)  # 2
    access.follow(lambda: edge.now_ms() / 1000)
    await edge.offers.audit.tokens(access.tokens)
    access.on_read = edge.offers.audit.tokens_read
    endpoint = Endpoint(edge, settings, access, room)
    if front is not None:
        front.service.observe_with(endpoint.metrics.observe_call)
    await endpoint.door.open(listening, context)  # 3
    tune_collector()
    beside = [asyncio.create_task(work) for work in (endpoint.beat(), tls.Renewal(context, settings).watch())]
    for notice in filter(None, (edge.core.notice, access.notice, tls.notice(settings), room.notice, *plugin_notices(settings))):
        say({"notice": notice})
    port = listening.getsockname()[1]
    say({"ready": True, "port": port, "url": url_of(settings, port), **(front.told() if front is not None else {})})
    edge.core.failed.add_done_callback(lambda _: stopped.set())
    await stopped.wait()  # 4
    failure = edge.core.failed.result() if edge.core.failed.done() else ""
    if failure:
        complain(f"the store failed: {failure}")
    for task in beside:
        task.cancel()
    edge.stop()  # 5
    await endpoint.door.close(DRAIN_S)
    try:
        await edge.close()
    except StoreUnusable as error:
        if not failure:
            complain(str(error))
        return FAILED
    return FAILED if failure else OK


class Telling:
    """Progress of a start that takes long, for operators; the supervisor does not count the time meanwhile."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        if time.monotonic() >= self._told_s + TELL_S:
            self._told_s = time.monotonic()
            say({"waiting": True, "notice": f"not ready yet: {done:,} of {total:,} {what}"})


def tune_collector() -> None:
    """Requests leave next to no cycles behind: what lives from the start is looked at no more, and the rest seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def url_of(settings: Settings, port: int) -> str:
    host = f"[{settings.listen_address}]" if ":" in settings.listen_address else settings.listen_address
    return f"{'https' if settings.tls_cert_file else 'http'}://{host}:{port}"


def log_to(settings: Settings) -> None:
    """What went wrong inside, with its trace; never a body or a token."""
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        settings.log_dir / "edge-events.log", maxBytes=settings.log_file_bytes, backupCount=settings.log_files, delay=True
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("grpc").setLevel(logging.CRITICAL)


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def complain(text: str) -> None:
    print(f"escrow edge: {' '.join(text.split())}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    os.umask(PRIVATE_UMASK)
    try:
        settings = from_arguments(argv, prog="python -m ingest.server")
        log_to(settings)
        return uvloop.run(serve(settings))
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
