"""What all couriers share. A courier takes check requests to a group that does not poll: it polls in the group's place.

Its polls make the group live. It has several hand-overs under way at a time. A request that reached no member is not
counted and goes back to the queue; this courier skips it for the rest of the round, another member may take it. After
FAILURES_MAX failures in a row (`ingest.checks.breaker`) the courier stops polling, and the group is not live by it any
more. After a pause it polls for one request, which decides whether it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from ingest.capabilities import Capabilities, EndRequest
from ingest.checks.breaker import Breaker
from ingest.checks.delivery import CheckRequest, Handover
from ingest.checks.webhooks import NotHandedOver, Verdict
from ingest.errors import Closing, EdgeError
from store.errors import StoreError

LOG: Final = logging.getLogger("escrow.edge")
#: One poll waits this long. A courier that is told to stop has stopped by then.
POLL_S: Final = 5.0
#: Pause after an error of the edge.
PAUSE_S: Final = 1.0
#: What is under way when the edge stops may take this long.
GRACE_S: Final = 1.0


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
        await cancel_all([self._task] if self._task is not None else [])
        if self._under_way:
            await asyncio.wait(list(self._under_way), timeout=GRACE_S)
        await cancel_all(self._under_way)

    async def _run(self) -> None:
        while not self._stopping:
            try:
                await self._pull()
            except Closing:
                return
            except (EdgeError, StoreError) as error:
                self._note(str(error))
                await asyncio.sleep(PAUSE_S)
            except Exception as error:  # a defect of ours must not end check delivery for the group
                self._note(f"{type(error).__name__}: {error}")
                LOG.exception("check delivery to group %s", self.group)
                await asyncio.sleep(PAUSE_S)

    async def _pull(self) -> None:
        if self.breaker.state == "open":
            await asyncio.sleep(min(self.breaker.wait_s + 0.001, PAUSE_S))
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
        """The answer to a check, by the same way as every producer's."""
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


async def cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
