"""The job's metrics over HTTP: GET /metrics, and nothing else. The edge's rules say who may read them (`ingest.auth.access`): with
tokens, one with the role `metrics` or an operator's; without tokens, every client on loopback, except for browsers and proxies.

    too many          more than CONNECTIONS_MAX at a time: closed
    too slow          not done within DEADLINE_S, reading or writing: closed

Every connection is one request. (prometheus_client's own server has none of this: a silent client holds a thread forever.)
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from ingest.auth.access import Access, is_loopback
from ingest.auth.callers import check_page
from ingest.errors import EdgeError, InvalidRequest
from runtime.settings import Settings
from streaming.errors import JobError

PATHS: Final = ("/metrics", "/")
CONNECTIONS_MAX: Final = 16
DEADLINE_S: Final = 10.0


class MetricsPage(ThreadingHTTPServer):
    """Serves in threads of its own, from when it is made until `close`. OSError if it cannot listen on its port."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, address: str, port: int, registry: CollectorRegistry, access: Access) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.registry, self._access, self._asking = registry, access, threading.Lock()
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__((address, port), _Handler)
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def check(self, headers: dict[bytes, bytes], hosts: int) -> None:
        """EdgeError says why not. Tokens are kept for one thread at a time."""
        with self._asking:
            if hosts > 1:
                raise InvalidRequest("Host: is there more than once", "host")
            check_page(headers, has_tokens=self._access.wants_tokens)
            shown = headers.get(b"authorization")
            self._access.principal(None if shown is None else shown.decode("latin-1")).require_metrics()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(DEADLINE_S, _hang_up, [request])
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Not logged: the client went away."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):  # it may have gone
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsPage
    server_version, sys_version = "escrow", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in PATHS:
            self._answer(HTTPStatus.NOT_FOUND, b"there is nothing here; /metrics has the metrics\n")
            return
        headers = {name.lower().encode("latin-1"): value.encode("latin-1", "replace") for name, value in self.headers.items()}
        try:
            self.server.check(headers, len(self.headers.get_all("host", [])))
        except EdgeError as error:
            self._answer(HTTPStatus(error.status), f"{error}\n".encode())
            return
        try:
            encode, media = choose_encoder(self.headers.get("accept") or "")
        except (TypeError, ValueError):  # not a version
            encode, media = choose_encoder("")
        self._answer(HTTPStatus.OK, encode(self.server.registry), media)

    def _answer(self, status: HTTPStatus, content: bytes, media: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(content)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("www-authenticate", 'Bearer realm="escrow"')
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Not logged: clients could fill the log."""


def serve_metrics(settings: Settings, registry: CollectorRegistry) -> int:
    """The port; JobError says why it cannot be served."""
    address, port = settings.metrics_address, settings.job_metrics_port
    access = Access(settings, listen_address=address)
    if not is_loopback(address) and not access.has_tokens:
        raise JobError(
            f"metricsAddress: {address} is reachable from elsewhere, and there are no tokens in {settings.tokens_file}: make one "
            "(escrow token new prometheus --metrics), listen on 127.0.0.1, or set metricsEnable to false"
        )
    try:
        return MetricsPage("127.0.0.1" if address == "localhost" else address, port, registry, access).server_port
    except OSError as error:
        remedy = "set jobMetricsPort to another port, or metricsEnable to false"
        raise JobError(f"metrics on {address}:{port}: {error.strerror or error}: {remedy}") from error
