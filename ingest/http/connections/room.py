"""Room for connections: how many clients may have so that the store never lacks a descriptor.

The store comes first: OTHER_FILES descriptors, or half of what the process may have where that is little. What is left is divided
among the ports as maxConnections and grpcMaxCalls are to each other; both count every connection, also before its first request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from runtime.settings import Settings
from store.io.descriptors import FILES_WANTED, few_files, raise_file_limit

#: Not connections of clients: five readers of topic queues (`store.io.descriptors`), segments, logs, webhooks; with room to spare.
OTHER_FILES: Final = 1536
#: Connections beyond maxConnections that may be told so at one time; others are hung up on.
LINGERING_MAX: Final = 64


class Room(NamedTuple):
    """Connections over HTTP, those beyond that are told so, and connections to each port for RocketMQ's clients."""

    http: int
    lingering: int
    grpc: int
    notice: str = ""


def grpc_ports(settings: Settings) -> int:
    return (settings.grpc_port >= 0) + (settings.grpc_tls_port >= 0)


def make_room(settings: Settings) -> Room:
    """Raise the limit of open files as far as may be. What can be taken, and what an operator should read where it is less than
    the settings say."""
    http, grpc, ports = settings.max_connections, settings.grpc_calls_max, grpc_ports(settings)
    wanted = http + LINGERING_MAX + ports * grpc
    allowed = raise_file_limit(max(wanted + OTHER_FILES, FILES_WANTED))
    if allowed >= wanted + OTHER_FILES:
        return Room(http, LINGERING_MAX, grpc, few_files(allowed))
    left = min(wanted, max(allowed - OTHER_FILES, allowed // 2))
    each = max(left * grpc // wanted, 1)
    share = left - ports * each
    lingering = min(LINGERING_MAX, share // 8)
    taken = max(min(share - lingering, http), 1)
    if (taken, each) == (http, grpc):
        return Room(taken, lingering, each, few_files(allowed))
    of_grpc = f", and {each} of RocketMQ's clients to each port" if ports else ""
    return Room(taken, lingering, each, (
        f"maxConnections, grpcMaxCalls: so many connections need {wanted + OTHER_FILES} open files and this process may have "
        f"{allowed}: {taken} are taken{of_grpc}; raise the limit (ulimit -n, LimitNOFILE) for more"
    ))  # fmt: skip
