"""The gRPC server for RocketMQ's clients: ports, limits, life. A part of the edge, in its event loop.

    front = Front(settings, access, edge, room.grpc)     # takes its ports; CannotStart says why it cannot
    edge.parts.append(front)                  # opened and closed with the edge
    front.service.observe_with(metrics.observe_call)

grpc.aio in the edge's own loop, measured against the alternatives (docs/performance.md): a synchronous server answers a constant
a little sooner, and loses more than that when each call has to be handed to the loop; a process of its own would add a hop to that.

Limits: a message of maxRequestSize; grpcMaxCalls calls at a time, streams and long polls included, beyond which gRPC answers
RESOURCE_EXHAUSTED; half of them in one connection. A client that does not answer a ping is hung up on. As many connections to each
port as calls, or fewer where descriptors are few (`ingest.http.connections.room`): more are hung up on. A connection begins
HTTP/2 within
headerTimeout, and ends after keepAliveTimeout without a call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what clients do wrong is counted, not written down: they could fill the log

import grpc
import grpc.aio

from ingest.auth import tls
from ingest.auth.access import Access
from ingest.auth.access_keys import Signatures
from ingest.capabilities import Capabilities
from ingest.errors import CannotStart, TlsUnusable
from ingest.rocketmq.clients import Clients
from ingest.rocketmq.service import Service
from runtime.settings import Settings

#: How long accepted calls may take when the edge stops.
DRAIN_S: Final = 2.0
METADATA_MAX_BYTES: Final = 16 << 10
#: Of a call that is not read from; a message that is waited for gets a window of its size.
WINDOW_BYTES: Final = 64 << 10


class Front:
    """Listens on grpcPort and grpcTlsPort; ports are -1 where they are off."""

    name = "rocketmq"

    def __init__(
        self,
        settings: Settings,
        access: Access,
        edge: Capabilities,
        connections_max: int,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        signatures = Signatures(settings, access)
        self._signatures, self._clients = signatures, Clients(edge, signatures, clock_s)
        self._server: Any = grpc.aio.server(
            options=server_options(settings, connections_max), maximum_concurrent_rpcs=settings.grpc_calls_max
        )
        self.service = Service(edge, signatures, self._clients)
        self.port = self._bind("grpcPort", settings.grpc_port, None)
        credentials = _credentials(settings) if settings.grpc_tls_port >= 0 else None
        self.tls_port = self._bind("grpcTlsPort", settings.grpc_tls_port, credentials)
        self._open = False

    def _bind(self, key: str, port: int, credentials: Any) -> int:
        if port < 0:
            return -1
        host = self._settings.listen_address
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError:
            remedy = f"stop the process that has it, or set {key} to another port"
            raise CannotStart(f"{key}: {address} cannot be listened on: {remedy}") from None

    async def open(self) -> None:
        self._clients.start()
        self._server.add_generic_rpc_handlers((self.service.handler(),))
        await self._server.start()
        self._open = True

    def stop(self) -> None:
        """Streams end, so that the calls which are left do so too."""
        self._clients.stop()

    async def close(self) -> None:
        await self._server.stop(DRAIN_S if self._open else 0)
        await self._clients.close()

    def told(self) -> dict[str, int]:
        """Ports, for the line that says ready."""
        ports = {"grpc_port": self.port, "grpc_tls_port": self.tls_port}
        return {name: port for name, port in ports.items() if port >= 0}

    def figures(self) -> dict[str, Any]:
        return {**self._clients.figures(), "keys_problem": self._signatures.problem}


def server_options(settings: Settings, connections_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, and must not share its clients
        ("grpc.max_receive_message_length", settings.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        # Windows that do not grow by themselves: what is not waited for stays with its sender (`ingest.rocketmq.receiving`).
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.max_metadata_size", METADATA_MAX_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_MAX_BYTES),
        ("grpc.max_allowed_incoming_connections", connections_max),  # to each port
        ("grpc.server_handshake_timeout_ms", settings.header_timeout_ms),
        ("grpc.max_connection_idle_ms", settings.keep_alive_ms),
        ("grpc.max_concurrent_streams", max(settings.grpc_calls_max // 2, 1)),
        ("grpc.keepalive_time_ms", settings.keep_alive_ms),
        ("grpc.keepalive_timeout_ms", settings.request_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


# --- TLS -----------------------------------------------------------------------------------------------------------------------
def _credentials(settings: Settings) -> Any:
    """The edge's certificate; a renewed one is taken up at the next handshake, one that cannot be used leaves the old one."""
    stamps = [_stamp(settings)]

    def renewed() -> Any:
        stamp = _stamp(settings)
        if stamp == stamps[0]:
            return None
        stamps[0] = stamp
        try:
            tls.server_context(settings)  # says whether the two belong together
            return _configuration(settings)
        except (TlsUnusable, OSError):  # `ingest.auth.tls` says so, once
            return None

    return grpc.dynamic_ssl_server_credentials(
        _configuration(settings), renewed, require_client_authentication=bool(settings.tls_client_ca_file)
    )


def _configuration(settings: Settings) -> Any:
    pair = Path(settings.tls_key_file).read_bytes(), Path(settings.tls_cert_file).read_bytes()
    authorities = Path(settings.tls_client_ca_file).read_bytes() if settings.tls_client_ca_file else None
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _stamp(settings: Settings) -> tuple[object, ...]:
    found: list[object] = []
    for path in (settings.tls_cert_file, settings.tls_key_file):
        try:
            status = os.stat(path)
            found += [status.st_mtime_ns, status.st_size, status.st_ino]
        except OSError:
            found.append(None)
    return tuple(found)
