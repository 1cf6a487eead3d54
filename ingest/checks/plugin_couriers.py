"""Couriers over plug-ins.

    TransportCourier    a plug-in of escrow.check_transports takes batches      sinks.interfaces.CheckTransport
    ListenerCourier     a plug-in of escrow.check_listeners answers at once     sinks.interfaces.CheckListener

Plug-ins run in threads of their own (`ingest.threads`). What they raise is counted and logged; other couriers go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from ingest.auth.grants import Names
from ingest.capabilities import Capabilities
from ingest.checks import wire
from ingest.checks.couriers import GRACE_S, Courier
from ingest.checks.delivery import CheckRequest, Handover
from ingest.checks.webhooks import NotHandedOver, Verdict
from ingest.threads import Threads
from sinks import interfaces
from store.properties import PGROUP

LOG: Final = logging.getLogger("escrow.edge")
#: Threads of a plug-in, and requests in one call of a transport.
PLUGIN_THREADS: Final = 4
PLUGIN_BATCH: Final = 32
PLUGIN_TIMEOUT_S: Final = 30.0


def public_request(request: CheckRequest, id: str) -> interfaces.CheckRequest:
    """A check request as plug-ins see it."""
    shown = wire.check(request, id)
    group = request.frame.properties.get(PGROUP, "")
    return interfaces.CheckRequest(
        id, group, shown.topic, shown.key, shown.tags, shown.body, shown.properties, shown.attempt, shown.born_at_ms,
        shown.stored_at_ms,
    )  # fmt: skip


class Plugin:
    """A transport or a listener, and the groups that it serves."""

    def __init__(self, kind: str, name: str, made: Any) -> None:
        self.kind, self.name, self.made = kind, name, made
        self.threads = Threads(f"plug-in {name}", PLUGIN_THREADS)
        #: Apart from the others: a plug-in whose threads all hang is still asked.
        self._asking = Threads(f"plug-in {name} groups", 1)
        self.groups = Names()
        self.problem = ""

    async def ask_groups(self) -> None:
        """An exception or something else than names leaves what was known."""
        try:
            found = await self._asking.call(self.made.groups, timeout_s=PLUGIN_TIMEOUT_S)
            if isinstance(found, str) or not all(isinstance(name, str) for name in found):
                raise TypeError("groups() must return a list of names")
            self.groups = Names.of(list(found))
            self.problem = ""
        except Exception as error:  # whatever it does
            problem = f"plug-in {self.name} ({self.kind}): groups(): {type(error).__name__}: {error}"
            if problem != self.problem:
                LOG.warning("%s", problem)
            self.problem = problem

    async def close(self) -> None:
        close: Callable[[], None] | None = getattr(self.made, "close", None)
        if close is not None:
            try:
                await self._asking.call(close, timeout_s=GRACE_S)
            except Exception as error:  # whatever it does: the edge ends all the same
                LOG.warning("plug-in %s: close(): %s: %s", self.name, type(error).__name__, error)
        self.threads.close()
        self._asking.close()


class TransportCourier(Courier):
    """Gives batches to a plug-in that takes them to a member."""

    via = "plug-in"
    slots, batch = PLUGIN_THREADS, PLUGIN_BATCH

    def __init__(self, edge: Capabilities, group: str, plugin: Plugin) -> None:
        super().__init__(edge, group, f"plug-in {plugin.name}")
        self._plugin = plugin

    async def hand_over(self, handover: Handover) -> None:
        requests = [public_request(request, self._edge.checks.id_of(request)) for request in handover.requests]
        try:
            flags = await self._plugin.threads.call(self._plugin.made.hand_over, requests, timeout_s=PLUGIN_TIMEOUT_S)
            good = [flag is True for flag in flags]
        except TimeoutError:
            raise NotHandedOver(f"did not return within {PLUGIN_TIMEOUT_S:g} s") from None
        except Exception as error:  # whatever it does
            raise NotHandedOver(f"raised {type(error).__name__}: {error}") from None
        if len(good) != len(requests):
            raise NotHandedOver(f"answered for {len(good)} requests of {len(requests)}")
        if not any(good):
            raise NotHandedOver("reached no member")
        rest = handover.keep(good)
        self._declined.add(rest.round_start, rest.half_offsets)
        self._edge.checks.put_back(rest)


class ListenerCourier(Courier):
    """Asks a plug-in that knows the answer. It is handed over once the plug-in is called, whatever it answers."""

    via = "listener"
    slots = PLUGIN_THREADS

    def __init__(self, edge: Capabilities, group: str, plugin: Plugin) -> None:
        super().__init__(edge, group, f"listener {plugin.name}")
        self._plugin = plugin

    async def hand_over(self, handover: Handover) -> None:
        """Nothing: leaving the poll in order counts."""

    async def answer(self, handover: Handover) -> None:
        (request,) = handover.requests
        asked = public_request(request, self._edge.checks.id_of(request))
        try:
            outcome = await self._plugin.threads.call(self._plugin.made.check, asked)
        except Exception as error:  # whatever it does
            self._note(f"raised {type(error).__name__}: {error}")
            verdict = Verdict("unknown", f"listener {self._plugin.name}: raised {type(error).__name__}")
        else:
            verdict = _verdict_of(self._plugin.name, outcome)
        await self._say(request, verdict)


def _verdict_of(name: str, outcome: object) -> Verdict:
    if isinstance(outcome, interfaces.Outcome):
        return Verdict(outcome.value.lower())
    return Verdict("unknown", f"listener {name}: answered {type(outcome).__name__}, not an Outcome")
