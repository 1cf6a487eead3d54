"""What ``escrow doctor`` looks at. Each function looks at one thing and returns findings, with the remedy.

machine       what needs no settings: Python, packages, Java, memory, limits, temporary files
installation  what the settings name: data directory, store, keys, tokens, TLS, clock, ports, Kafka, the service
plugins       which plug-ins are loaded
"""

from __future__ import annotations

from collections.abc import Iterator

from runtime.commands.checkup import access, clock, data, network, service
from runtime.commands.checkup.finding import Finding, Level
from runtime.commands.checkup.machine import machine
from runtime.commands.checkup.plugins import plugins
from runtime.settings import Settings

__all__ = ["Finding", "Level", "installation", "machine", "plugins"]


def installation(settings: Settings) -> Iterator[Finding]:
    """Everything that the settings name."""
    running = service.supervised(settings)
    yield from data.check_data_directory(settings)
    yield from data.check_store(settings)
    yield from access.check_keys(settings)
    yield from access.check_tokens(settings)
    yield from access.check_tls(settings)
    yield from clock.check_clock(settings)
    yield from network.check_ports(settings, running)
    yield from network.check_kafka(settings)
    yield from service.check_service(running)
