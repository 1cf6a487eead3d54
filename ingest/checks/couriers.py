"""Check transports: check requests to groups that do not poll. Each works like a member that polls, in the edge itself.

    WebhookCourier      a signed POST for each request, to the URL in the groups file       ingest.checks.webhooks
    TransportCourier    a plug-in of escrow.check_transports takes batches                  sinks.interfaces.CheckTransport
    ListenerCourier     a plug-in of escrow.check_listeners answers at once                 sinks.interfaces.CheckListener

A courier polls for its group, which makes the group live, and has several hand-overs under way at a time. A request that reached
nobody is not counted and goes back to the queue; this courier leaves it alone for the rest of the round, another member may take
it. After FAILURES_MAX failures in a row (`ingest.checks.breaker`) the courier stops polling: the group is not live by it any
more, so that
nobody is asked for nothing; after a pause it polls again for one request, which decides.

Plug-ins run in threads of their own (`ingest.threads`). Whatever they raise is counted and logged, and holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from ingest.auth.grants import Names
from ingest.capabilities import Capabilities, EndRequest
from ingest.checks import wire
from ingest.checks.breaker import Breaker
from ingest.checks.delivery import CheckRequest, Handover
from ingest.checks.webhooks import NotHandedOver, Verdict, WebhookClient, encode
from ingest.edge.groups import Webhook
from ingest.errors import CannotStart, Closing, EdgeError
from ingest.threads import Threads
from sinks import interfaces
from sinks.errors import BrokenPlugin
from sinks.plugins import load_all
from store.errors import StoreError
from store.tables.frames import PGROUP

if TYPE_CHECKING:
    from collections.abc import Coroutine

LOG: Final = logging.getLogger("escrow.edge")
#: One poll of a courier waits this long: so soon a courier that shall stop polling has stopped.
POLL_S: Final = 5.0
#: Waits between the attempts at one request.
BACKOFF_S: Final = (0.5, 2.0)
#: How often the groups file and the store's groups are looked at.
LOOK_S: Final = 1.0
#: How often a plug-in is asked for its groups again, in looks.
GROUPS_LOOKS: Final = 10
#: Threads of a plug-in, and requests in one call of a transport.
PLUGIN_THREADS: Final = 4
PLUGIN_BATCH: Final = 32
PLUGIN_TIMEOUT_S: Final = 30.0
#: What is under way when the edge stops may take this long.
GRACE_S: Final = 1.0


def public_request(request: CheckRequest, id: str) -> interfaces.CheckRequest:
    """A check request as plug-ins see it."""
    shown = wire.check(request, id)
    group = request.frame.properties.get(PGROUP, "")
    return interfaces.CheckRequest(
        id, group, shown.topic, shown.key, shown.tags, shown.body, shown.properties, shown.attempt, shown.born_at_ms,
        shown.stored_at_ms,
    )  # fmt: skip


class Declined:
    """Halves that a courier has failed at in this round: it passes them over until the next one begins."""

    def __init__(self, edge: Capabilities) -> None:
        self._edge, self._round = edge, -1
        self._half_offsets: set[int] = set()

    def add(self, check_round: int, half_offsets: Iterable[int]) -> None:
        if check_round != self._round:
            self._round = check_round
            self._half_offsets.clear()
        self._half_offsets.update(half_offsets)

    def __contains__(self, half_offset: object) -> bool:
        return half_offset in self._half_offsets and self._round == self._edge.checks.check_round


class Courier:
    """Polls for one group and hands over. A subclass says how."""

    slots = 1
    batch = 1
    via = ""

    def __init__(self, edge: Capabilities, group: str, member: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._edge, self.group, self._member = edge, group, member
        self.breaker = Breaker(clock_s)
        self._declined = Declined(edge)
        self._under_way: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.handed_over = self.failures = self.unclear = self.answers_lost = 0
        self.last_failure = ""

    async def hand_over(self, handover: Handover) -> None:
        """Inside the poll: NotHandedOver gives the requests back; leaving in order counts those that it still holds."""
        raise NotImplementedError

    async def answer(self, handover: Handover) -> None:
        """Behind the poll: what was answered at once, if anything."""

    # --- life ---------------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        self._stopping = True

    async def close(self) -> None:
        self._stopping = True
        await _cancel([self._task] if self._task is not None else [])
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=GRACE_S)
        await _cancel(self._under_way)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._pull()
            except Closing:
                return
            except (EdgeError, StoreError) as error:
                self._note(str(error))
                await asyncio.sleep(LOOK_S)
            except Exception as error:  # a defect of ours must not end check delivery for the group
                self._note(f"{type(error).__name__}: {error}")
                LOG.exception("check delivery to group %s", self.group)
                await asyncio.sleep(LOOK_S)

    async def _pull(self) -> None:
        if self.breaker.state == "open":
            await asyncio.sleep(min(self.breaker.wait_s + 0.001, LOOK_S))
            return
        most = 1 if self.breaker.state == "half-open" else self.slots
        if len(self._under_way) >= most:
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            return
        polled = AsyncExitStack()
        handover = await polled.enter_async_context(
            self._edge.polls.poll_checks(self.group, self._member, self.batch, POLL_S, passing_over=self._declined, via=self.via)
        )
        task = asyncio.get_running_loop().create_task(self._deliver(polled, handover))
        if handover.requests:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        else:
            await task

    async def _deliver(self, polled: AsyncExitStack, handover: Handover) -> None:
        taken = handover.half_offsets
        try:
            async with polled:
                if handover.requests:
                    await self.hand_over(handover)
        except Exception as error:  # NotHandedOver, or a defect of ours: the requests are back in the queue either way
            self._declined.add(handover.round_start, taken)
            self._note(str(error) if isinstance(error, NotHandedOver) else f"{type(error).__name__}: {error}")
            self.breaker.failed()
            return
        if handover.requests:
            self.handed_over += len(handover.requests)
            self.breaker.succeeded()
            await self.answer(handover)

    def _note(self, failure: str) -> None:
        self.failures += 1
        if failure != self.last_failure:
            LOG.warning("check delivery to group %s by %s: %s", self.group, self._member, failure)
        self.last_failure = failure

    async def _say(self, request: CheckRequest, verdict: Verdict) -> None:
        """The answer to a check, through the same door as everybody's."""
        self.unclear += bool(verdict.remark)
        end = EndRequest(self.group, self._edge.checks.id_of(request), verdict.outcome, True, verdict.remark)
        try:
            await self._edge.ends.end([end])
        except (EdgeError, StoreError) as error:  # it will be asked again
            self.answers_lost += 1
            self._note(f"the answer could not be recorded: {error}")

    def figures(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "by": self._member,
            "state": self.breaker.state,
            "under_way": len(self._under_way),
            "handed_over": self.handed_over,
            "failures": self.failures,
            "unclear": self.unclear,
            "answers_lost": self.answers_lost,
            "last_failure": self.last_failure,
        }


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


class WebhookCourier(Courier):
    """Posts each request, and again after a pause where that may help."""

    via = "webhook"

    def __init__(self, edge: Capabilities, client: WebhookClient, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(edge, client.group, f"webhook {client.shown}", clock_s)
        self.client, self.slots = client, client.webhook.concurrency
        self._verdicts: dict[int, Verdict] = {}

    async def hand_over(self, handover: Handover) -> None:
        (request,) = handover.requests
        id = self._edge.checks.id_of(request)
        body = encode(self.group, request, id)
        for wait_s in (*BACKOFF_S, None):
            try:
                async with asyncio.timeout(self.client.webhook.timeout_s):
                    verdict = await self.client.post(f"{id}.{request.attempt}", body, self._edge.now_ms() // 1000)
            except TimeoutError:
                failure = NotHandedOver(f"no answer within {self.client.webhook.timeout_s:g} s (timeout)", again=True)
            except NotHandedOver as error:
                failure = error
            else:
                self._verdicts[request.half_offset] = verdict
                return
            if wait_s is None or not failure.again or self._stopping:
                raise failure
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
            if not self._edge.checks.still_asked(handover):
                raise failure
        raise AssertionError("the last attempt returns or raises")

    async def answer(self, handover: Handover) -> None:
        (request,) = handover.requests
        await self._say(request, self._verdicts.pop(request.half_offset))

    async def close(self) -> None:
        await super().close()
        await self.client.close()


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


class Plugin:
    """A transport or a listener, and for whom it stands."""

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


class Transports:
    """A part of the edge: all couriers, kept in step with the groups file, the plug-ins and the groups that there are."""

    name = "transports"

    def __init__(self, edge: Capabilities) -> None:
        self._edge = edge
        self._couriers: dict[tuple[str, str], Courier] = {}
        self._plugins: list[Plugin] = []
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._broken: dict[str, tuple[Webhook, str]] = {}

    async def open(self) -> None:
        """1 load the plug-ins; a broken one keeps the edge from starting · 2 ask them for their groups · 3 begin."""
        root, named = self._edge.settings.store_dir, self._edge.settings.plugins
        try:
            transports = await asyncio.to_thread(load_all, "escrow.check_transports", named, root)  # 1
            listeners = await asyncio.to_thread(load_all, "escrow.check_listeners", named)
        except BrokenPlugin as error:
            raise CannotStart(str(error)) from error
        for kind, found in (("escrow.check_transports", transports), ("escrow.check_listeners", listeners)):
            self._plugins += [Plugin(kind, name, made) for name, made in found]
        for plugin in self._plugins:  # 2
            await plugin.ask_groups()
            if plugin.problem:
                raise CannotStart(plugin.problem)
        if not self._edge.settings.standby:
            self._task = asyncio.get_running_loop().create_task(self._run())  # 3

    async def _run(self) -> None:
        looks = 0
        while True:
            try:
                await self._look()
                looks += 1
                if looks % GROUPS_LOOKS == 0:
                    await asyncio.gather(*[plugin.ask_groups() for plugin in self._plugins])
            except Exception:  # a defect of ours must not end all check delivery
                LOG.exception("check transports")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        await self._keep_webhooks(self._edge.core.groups.get().webhooks)
        for plugin in self._plugins:
            make = TransportCourier if plugin.kind == "escrow.check_transports" else ListenerCourier
            for group in [group for group in self._edge.checks.known_groups() if group in plugin.groups]:
                if (plugin.kind + plugin.name, group) not in self._couriers:
                    self._add((plugin.kind + plugin.name, group), make(self._edge, group, plugin))
            await self._remove(
                [key for key in self._couriers if key[0] == plugin.kind + plugin.name and key[1] not in plugin.groups]
            )

    async def _keep_webhooks(self, wanted: dict[str, Webhook]) -> None:
        have = {key[1]: courier.client.webhook for key, courier in self._couriers.items() if isinstance(courier, WebhookCourier)}
        await self._remove([("webhook", group) for group, webhook in have.items() if wanted.get(group) != webhook])
        self._broken = {group: found for group, found in self._broken.items() if wanted.get(group) == found[0]}
        for group, webhook in wanted.items():
            if ("webhook", group) in self._couriers or group in self._broken:
                continue
            try:
                client = await asyncio.to_thread(WebhookClient, group, webhook)
            except NotHandedOver as error:
                LOG.warning("webhook of group %s: %s", group, error)
                self._broken[group] = (webhook, str(error))
            else:
                self._add(("webhook", group), WebhookCourier(self._edge, client))

    def _add(self, key: tuple[str, str], courier: Courier) -> None:
        self._couriers[key] = courier
        courier.start()

    async def _remove(self, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            await self._couriers.pop(key).close()

    def stop(self) -> None:
        self._stopping = True
        for courier in self._couriers.values():
            courier.stop()

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await _cancel([self._task])
            self._task = None
        closing: list[Coroutine[Any, Any, None]] = [courier.close() for courier in self._couriers.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        self._couriers.clear()
        await asyncio.gather(*[plugin.close() for plugin in self._plugins], return_exceptions=True)
        self._plugins.clear()

    def figures(self) -> dict[str, Any]:
        return {
            "couriers": [courier.figures() for courier in self._couriers.values()],
            "broken": {group: text for group, (_, text) in self._broken.items()},
            "plugins": [{"kind": plugin.kind, "name": plugin.name, "problem": plugin.problem} for plugin in self._plugins],
        }
