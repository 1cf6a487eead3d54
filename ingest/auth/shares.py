"""What one token may take of the edge: requests and bytes a second, requests at a time, and bytes that are held for it
(tokenRequestsMax, tokenBytesMax, tokenInFlightMax, tokenHeldBytesMax). Without tokens, and where all are 0, nothing is counted.

A token that sends faster is slowed down, not refused: a request waits until its token's rate allows it, which also
keeps its connection from sending the next one. A request that would wait longer than WAIT_MAX_S is refused with 429.
Ends are never refused, since a refused end becomes a check. A burst of one second's worth is allowed.

Held bytes are one account for each token, over HTTP and gRPC:

    a request           REQUEST_BYTES while it is under way, also one that waits (a long poll), and an open gRPC stream
    its body            as long as it says it is, from its head on; what is longer as it arrives
    a gRPC message      maxRequestSize while it is received (its size is not known yet), its size afterwards
    messages of a poll  from when they are taken until the answer has been taken
    an answer           until the client has taken it, where it is too large for the connection's buffer

What does not fit is refused with 429; a gRPC message is left with its sender until there is room. A token that holds nothing may
always hold one thing, so that no setting shuts a token out. The last part of the account (ENDS_PART) is for ends, acknowledgements
and the like alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NoReturn

from ingest.errors import Overloaded, QuotaExceeded
from runtime.settings import Settings

WAIT_MAX_S: Final = 5.0
WAIT_MIN_S: Final = 0.001
#: Tokens that are remembered; those that asked least lately are forgotten, once nothing of theirs is under way.
TOKENS_MAX: Final = 4096
#: What a request takes besides its body: its head (at most 32 KiB), its connection's buffers, its task.
REQUEST_BYTES: Final = 32 << 10
#: One of so many parts of the account is for ends.
ENDS_PART: Final = 8
#: So many messages of a token are received at a time over gRPC, and so many of its streams are listened to, if they fit.
AT_ONCE_MAX: Final = 16


class Share:
    """Of one token. `debt`s are in seconds of its rate: what was taken beyond it."""

    __slots__ = ("_at_s", "_bytes_debt_s", "_requests_debt_s", "held_bytes", "in_flight", "waiting")

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._requests_debt_s = self._bytes_debt_s = 0.0
        self.in_flight = self.held_bytes = 0
        #: Who waits for room, and for how much.
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self.in_flight or self.held_bytes or self.waiting)

    def take(self, now_s: float, requests_s: float, bytes_s: float) -> float:
        """Take so many seconds' worth of either rate; how long to wait for it."""
        passed_s, self._at_s = now_s - self._at_s, now_s
        self._requests_debt_s = max(0.0, self._requests_debt_s - passed_s) + requests_s
        self._bytes_debt_s = max(0.0, self._bytes_debt_s - passed_s) + bytes_s
        return max(self._requests_debt_s, self._bytes_debt_s) - 1.0

    def forgive(self) -> None:
        """No request waits longer than WAIT_MAX_S, so no token owes more, whatever patient requests took beyond it."""
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
        self._held_max, self._request_max = settings.token_held_bytes_max, settings.max_request_bytes
        self._rated = bool(self._requests_max or self._bytes_max)
        self._shares: OrderedDict[str, Share] = OrderedDict()
        self.delayed = self.refused = 0

    def begin(self, name: str, size_bytes: int, *, patient: bool) -> asyncio.Future[None] | None:
        """A request of this many bytes begins, and they are held; `end` follows unless this raises. What to wait for before it is
        worked on; None: nothing. Overloaded or QuotaExceeded where it is refused; `patient`: never for its rate."""
        share = self._of(name)
        if self._in_flight_max and share.in_flight >= self._in_flight_max:
            self.refused += 1
            raise Overloaded(f"token {name}: {share.in_flight} requests under way (tokenInFlightMax): wait for some of them")
        held_bytes = REQUEST_BYTES + size_bytes
        if not self._fits(share, held_bytes, is_end=patient):
            self._refuse_to_hold(name, share)
        waiting = self._wait_for(share, name, size_bytes, patient) if self._rated else None
        share.in_flight += 1
        share.held_bytes += held_bytes
        return waiting

    def end(self, name: str, size_bytes: int, more_bytes: int = 0) -> None:
        """It is through, and what `begin` held is let go. `more_bytes`: those that it had not told of at its beginning."""
        share = self._of(name)
        share.in_flight -= 1
        self._let_go(share, REQUEST_BYTES + size_bytes)
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
            self.end(name, size_bytes)

    # --- held bytes -----------------------------------------------------------------------------------------------------------
    def hold(self, name: str, size_bytes: int, *, is_end: bool = False, must: bool = False) -> None:
        """So many bytes more; `let_go` follows unless this raises Overloaded. `must`: it is too late to refuse."""
        share = self._of(name)
        if not must and not self._fits(share, size_bytes, is_end=is_end):
            self._refuse_to_hold(name, share)
        share.held_bytes += size_bytes

    def let_go(self, name: str, size_bytes: int) -> None:
        self._let_go(self._of(name), size_bytes)

    @asynccontextmanager
    async def room(self, name: str) -> AsyncIterator[None]:
        """Around the receipt of a message of unknown size; waits, in turn, until there is room for the largest."""
        share, size_bytes = self._of(name), self._request_max
        if share.waiting or not self._fits(share, size_bytes, is_end=False):
            await self._wait_for_room(share, size_bytes)
        else:
            share.held_bytes += size_bytes
        try:
            yield
        finally:
            self._let_go(share, size_bytes)

    @property
    def listened_max(self) -> int:
        """Streams of one token that are listened to at a time. Each may take in a whole message at any moment: together a quarter
        of the account, besides it, since a stream may be listened to for hours."""
        if not self._held_max:
            return AT_ONCE_MAX
        return max(1, min(AT_ONCE_MAX, self._held_max // (4 * self._request_max)))

    def _fits(self, share: Share, size_bytes: int, *, is_end: bool) -> bool:
        if not self._held_max or not share.held_bytes:
            return True
        most = self._held_max if is_end else self._held_max - self._held_max // ENDS_PART
        return share.held_bytes + size_bytes <= most

    def _refuse_to_hold(self, name: str, share: Share) -> NoReturn:
        self.refused += 1
        text = f"token {name}: {share.held_bytes} bytes of its requests and answers are held (tokenHeldBytesMax)"
        raise Overloaded(f"{text}: send less at a time, and read the answers")

    def _let_go(self, share: Share, size_bytes: int) -> None:
        share.held_bytes -= size_bytes
        self._admit(share)

    def _admit(self, share: Share) -> None:
        while share.waiting and self._fits(share, share.waiting[0][0], is_end=False):
            size_bytes, turn = share.waiting.popleft()
            if not turn.done():
                share.held_bytes += size_bytes
                turn.set_result(None)

    async def _wait_for_room(self, share: Share, size_bytes: int) -> None:
        """The one who lets go takes the room for us."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._let_go(share, size_bytes)
            else:
                share.waiting.remove((size_bytes, turn))
                self._admit(share)
            raise

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
            self._forget()
            share = self._shares[name] = Share(self._clock_s())
        self._shares.move_to_end(name)
        return share

    def _forget(self) -> None:
        if len(self._shares) >= TOKENS_MAX:
            idle = next((name for name, share in self._shares.items() if share.is_idle), None)
            if idle is not None:
                del self._shares[idle]


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
