"""An edge, put together: one core, the wrappers that are configured, the parts beside it.

edge = assemble(settings)
await edge.open()
await edge.halves.store_halves(messages)
"""

from __future__ import annotations

from ingest.capabilities import Capabilities, Core
from ingest.checks.transports import Transports
from ingest.edge.embedded import Edge
from ingest.errors import CannotStart
from ingest.plugged import GROUP, plug_in
from ingest.traced import trace
from runtime.clock import Clock
from runtime.settings import Settings
from runtime.tracing import TracingError
from sinks.errors import BrokenPlugin
from sinks.plugins import check_named, find, left_out


def assemble(settings: Settings, *, clock: Clock | None = None) -> Capabilities:
    """1 the core · 2 a transaction service, if one is installed · 3 tracing, if it is on · 4 check transports."""
    try:
        check_named(settings.plugins)
        edge = Capabilities(make_core(settings, clock))  # 1
        if find(GROUP, settings.plugins):
            plug_in(edge)  # 2
        if settings.otlp_endpoint:
            trace(edge)  # 3
    except (BrokenPlugin, TracingError) as error:
        raise CannotStart(str(error)) from error
    edge.parts.append(Transports(edge))  # 4
    return edge


def make_core(settings: Settings, clock: Clock | None = None) -> Core:
    if settings.mode != "kafka":
        return Edge(settings, clock=clock)
    try:
        from ingest.kafka.edge import KafkaEdge  # noqa: PLC0415  (its client library is an extra)
    except ModuleNotFoundError as error:
        raise CannotStart(
            f"mode = kafka needs the Python package {error.name}: in a checkout of Escrow, pip install ./sdk '.[kafka]'"
        ) from error
    return KafkaEdge(settings, clock=clock)


def plugin_notices(settings: Settings) -> list[str]:
    """What an operator should know at the start: plug-ins that are installed and not used."""
    told = left_out(settings.plugins)
    if settings.mode == "kafka":
        unused = find("escrow.sinks", settings.plugins)
        told += [f"plug-in {point.name} (escrow.sinks) is not used: Kafka mode calls no sinks" for point in unused]
    return told
