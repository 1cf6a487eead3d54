"""What one token may take of the edge: requests and bytes a second, and requests at a time (tokenRequestsMax, tokenBytesMax,
tokenInFlightMax). Without tokens, and where all are 0, nothing is counted.

Whoever sends faster is slowed down, not refused: a request waits until its token's rate allows it, which also keeps its connection
from sending the next one. Only what would have to wait longer than WAIT_MAX_S is refused, with 429; ends never are, since an
end that is refused becomes a check. A second's worth may come at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from escrow.settings import Settings
from ingest.errors import Overloaded, QuotaExceeded

WAIT_MAX_S: Final = 5.0
WAIT_MIN_S: Final = 0.001
#: Tokens that are remembered; those that asked least lately are forgotten, once nothing of theirs is under way.
TOKENS_MAX: Final = 4096


class Share:
    """Of one token. `debt`s are in seconds of its rate: what was taken beyond it."""

    __slots__ = ("_at_s", "_bytes_debt_s", "_requests_debt_s", "in_flight")

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._requests_debt_s = self._bytes_debt_s = 0.0
        self.in_flight = 0

    def take(self, now_s: float, requests_s: float, bytes_s: float) -> float:
        """Take so many seconds' worth of either rate; how long to wait for it."""
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._requests_debt_s = max(0.0, self._requests_debt_s - passed_s) + requests_s
        self._bytes_debt_s = max(0.0, self._bytes_debt_s - passed_s) + bytes_s
        return max(self._requests_debt_s, self._bytes_debt_s) - 1.0

    def forgive(self) -> None:
        """Nobody waits longer than WAIT_MAX_S, and so nobody owes more: not what patient requests took beyond it."""
        self._requests_debt_s = min(self._requests_debt_s, 1.0 + WAIT_MAX_S)
        self._bytes_debt_s = min(self._bytes_debt_s, 1.0 + WAIT_MAX_S)

    def give_back(self, requests_s: float, bytes_s: float) -> None:
        self._requests_debt_s -= requests_s
        self._bytes_debt_s -= bytes_s


class Shares:
    """For one event loop."""

    def __init__(self, settings: Settings, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._requests_max, self._bytes_max = settings.token_requests_max, settings.token_bytes_max
        self._in_flight_max, self._clock_s = settings.token_in_flight_max, clock_s
        self._rated = bool(self._requests_max or self._bytes_max)
        self._shares: OrderedDict[str, Share] = OrderedDict()
        self.delayed = self.refused = 0

    def begin(self, name: str, size_bytes: int, *, patient: bool) -> asyncio.Future[None] | None:
        """A request of this many bytes begins; `end` follows unless this raises. What to wait for before it is worked on; None:
        nothing. Overloaded or QuotaExceeded where it is refused; `patient`: never for its rate."""
        share = self._of(name)
        if self._in_flight_max and share.in_flight >= self._in_flight_max:
            self.refused += 1
            raise Overloaded(f"token {name}: {share.in_flight} requests under way (tokenInFlightMax): wait for some of them")
        waiting = self._wait_for(share, name, size_bytes, patient) if self._rated else None
        share.in_flight += 1
        return waiting

    def end(self, name: str, more_bytes: int = 0) -> None:
        """It is through. `more_bytes`: those that it had not told of at its beginning."""
        share = self._of(name)
        share.in_flight -= 1
        if more_bytes and self._bytes_max:
            share.take(self._clock_s(), 0.0, more_bytes / self._bytes_max)

    @asynccontextmanager
    async def held(self, name: str, size_bytes: int, *, patient: bool) -> AsyncIterator[None]:
        """Around a request."""
        waiting = self.begin(name, size_bytes, patient=patient)
        try:
            if waiting is not None:
                await waiting
            yield
        finally:
            self.end(name)

    def _wait_for(self, share: Share, name: str, size_bytes: int, patient: bool) -> asyncio.Future[None] | None:
        requests_s = 1 / self._requests_max if self._requests_max else 0.0
        bytes_s = size_bytes / self._bytes_max if self._bytes_max else 0.0
        wait_s = share.take(self._clock_s(), requests_s, bytes_s)
        if wait_s < WAIT_MIN_S:
            return None
        if wait_s > WAIT_MAX_S and not patient:
            share.give_back(requests_s, bytes_s)
            self.refused += 1
            text = f"token {name}: more than its rate (tokenRequestsMax, tokenBytesMax): send less, or ask for more"
            raise QuotaExceeded(text, wait_s)
        share.forgive()
        self.delayed += 1
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        loop.call_later(min(wait_s, WAIT_MAX_S), _resolve, waiting)
        return waiting

    def _of(self, name: str) -> Share:
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = Share(self._clock_s())
            self._forget()
        self._shares.move_to_end(name)
        return share

    def _forget(self) -> None:
        if len(self._shares) > TOKENS_MAX:
            idle = next((name for name, share in self._shares.items() if not share.in_flight), None)
            if idle is not None:
                del self._shares[idle]


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
