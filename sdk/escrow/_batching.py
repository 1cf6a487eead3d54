"""Batching: callers who come at the same time share a request, and no one hears of another's mistake.

A caller hands in a **parcel**: items that belong together, all or none. A thread takes what waits and sends it as one
request; what comes meanwhile is the next one. So one caller alone never waits for company, and many are batched by the time
that a request takes anyway. Two things make the batches fuller:

    linger_s     who came while a request was under way waits this long for more
    reunion      those who were answered together often come back together: after a request of n parcels the next waits for n, but
                 no longer than a quarter of the time that the last one took. After a request of one it waits for nobody

Where nothing is to be shared (`batch_max` 1) who waits for the answer makes the request himself.

A request that is refused because of its content (4xx) is cut in two and sent again, until the culprit stands alone: a server
takes a batch whole or not at all, so nothing was stored. A parcel is never cut.

    parcel:  waiting → taken → answered | failed            waiting → cancelled (its future was)

Callers who are answered together wake one another (`_Turn`): a thread that wakes them all holds the interpreter's lock
meanwhile, and they queue up for it. (64 threads, measured: 22 instead of 41 µs of processor time for a wake-up.)
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from escrow._forks import Home
from escrow.errors import Closed, Refused, Unreachable

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")
_T = TypeVar("_T")

#: Refusals that are about the caller, the moment or the server, not about one item among others.
_OF_ALL: Final = frozenset({401, 408, 429})
#: The longest that a request waits for those who were answered with the last one.
REUNION_MAX_S: Final = 0.005
#: A request is cut off near this size, so that one large body does not make its neighbours wait.
BATCH_BYTES_MAX: Final = 1 << 20
#: The longest that one waits for the thread before it to open the gate, when the answer is there.
_GATE_S: Final = 0.25


class _Turn(Future[_T]):
    """A future on which a thread waits at a gate of its own. Whoever passes his opens the next one's."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Lock()
        self._gate.acquire()
        self._waits = False
        self._next: _Turn[Any] | None = None

    def result(self, timeout: float | None = None) -> _T:
        if timeout is None and not self.done():
            self._wait()
        return super().result(timeout)

    def _wait(self) -> None:
        self._waits = True
        # A thread that was interrupted opens no gate: those behind it find out by themselves.
        while not self._gate.acquire(timeout=_GATE_S):
            if self.done():
                return
        if self._next is not None:
            self._next._gate.release()
            self._next = None

    @staticmethod
    def wake(turns: Iterable[_Turn[Any]]) -> None:
        """All of them are done: wake the first one that waits. The gates of others are open when they come."""
        waiting = []
        for turn in turns:
            if turn._waits:
                waiting.append(turn)
            else:
                turn._gate.release()
        for turn, following in itertools.pairwise(waiting):
            turn._next = following
        if waiting:
            waiting[0]._gate.release()


@dataclass(slots=True)
class _Parcel(Generic[_Item, _Answer]):
    items: Sequence[_Item]
    size_bytes: int
    came_at: float
    #: Nothing was under way when it came: it does not linger.
    at_once: bool
    future: _Turn[list[_Answer]] = field(default_factory=_Turn)


class Batcher(Generic[_Item, _Answer]):
    """`submit(items).result()` are the answers, in order. Parcels with different keys never share a request.

    send(key, items, give_up_at) makes one request; its time ends at the monotonic time `give_up_at`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Hashable, Sequence[_Item], float], Sequence[_Answer]],
        *,
        linger_s: float = 0.0,
        batch_max: int = 256,
        retry_for_s: float = 30.0,
        timeout_s: float = 10.0,
    ) -> None:
        check_limits(linger_s, batch_max)
        self._name, self._send = name, send
        self._linger_s, self._batch_max = linger_s, batch_max
        self._retry_for_s, self._late_after_s = retry_for_s, retry_for_s + timeout_s
        self._changed = threading.Condition()  # reentrant: close() may come from a signal handler
        self._waiting: dict[Hashable, deque[_Parcel[_Item, _Answer]]] = {}
        self._waiting_count = 0
        self._busy = self._closing = False
        #: Threads that are making a request of their own.
        self._alone: list[int] = []
        #: How many parcels the last request had, and until when as many are waited for.
        self._reunion_count, self._reunion_until = 0, 0.0
        #: The thread sleeps until so many parcels wait.
        self._wake_at = 1
        self._home = Home()
        self._thread: threading.Thread | None = None

    # --- callers ----------------------------------------------------------------------------------------------------------
    def submit(self, items: Sequence[_Item], *, size_bytes: int = 0, key: Hashable = None) -> Future[list[_Answer]]:
        """Answers to these items. Cancelling the future helps until they are taken."""
        self._home.refuse_elsewhere()  # before the lock: in a forked child it may be held by a thread that is not there
        with self._changed:
            if self._closing:
                raise Closed(f"{self._name}: closed")
            idle = not self._busy and not self._waiting
            parcel: _Parcel[_Item, _Answer] = _Parcel(items, size_bytes, time.monotonic(), idle)
            if not items:
                parcel.future.set_result([])
                return parcel.future
            self._waiting.setdefault(key, deque()).append(parcel)
            self._waiting_count += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"escrow-{self._name}", daemon=True)
                self._thread.start()
            if self._waiting_count >= self._wake_at:
                self._changed.notify()
        return parcel.future

    def answers(self, items: Sequence[_Item], *, size_bytes: int = 0, key: Hashable = None) -> list[_Answer]:
        """`submit(items).result()`. Where no request is shared, this thread makes it: nobody needs to be woken for that."""
        if self._batch_max > 1:
            return self.submit(items, size_bytes=size_bytes, key=key).result()
        self._home.refuse_elsewhere()
        with self._changed:
            if self._closing:
                raise Closed(f"{self._name}: closed")
            self._alone.append(threading.get_ident())
        try:
            return list(self._send(key, items, time.monotonic() + self._retry_for_s)) if items else []
        finally:
            with self._changed:
                self._alone.remove(threading.get_ident())
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """What was handed in is still sent. True when everything was in this time. What this very thread is in the middle of, where
        it is a signal handler's, is not waited for."""
        give_up_at = time.monotonic() + timeout_s
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            alone_through = self._changed.wait_for(lambda: not set(self._alone) - {threading.get_ident()}, timeout_s)
        if self._thread is None:
            return alone_through
        self._thread.join(max(0.0, give_up_at - time.monotonic()))
        return alone_through and not self._thread.is_alive()

    def abandon(self) -> None:
        """What waits is not sent any more; those who handed it in hear `Closed`."""
        with self._changed:
            parcels = [parcel for queue in self._waiting.values() for parcel in queue]
            self._waiting.clear()
            self._waiting_count = 0
        told = [parcel.future for parcel in parcels if parcel.future.set_running_or_notify_cancel()]
        for future in told:
            future.set_exception(Closed(f"{self._name}: closed before this was sent"))
        _Turn.wake(told)

    # --- the thread -------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                self._busy = True
                self._wait_for_company()
                key, parcels = self._take()
            begun_at = time.monotonic()
            self._deliver(key, parcels)
            ended_at = time.monotonic()
            self._reunion_count = len(parcels)
            self._reunion_until = ended_at + min((ended_at - begun_at) / 4, REUNION_MAX_S)

    def _wait_for_company(self) -> None:
        """Until the oldest parcel has lingered and the reunion is over, or a request is full."""
        oldest = next(iter(self._waiting.values()))[0]
        lingers_until = 0.0 if oldest.at_once else oldest.came_at + self._linger_s
        while not self._closing and self._waiting_count < self._batch_max:
            now = time.monotonic()
            if now < lingers_until:
                self._wake_at, until = self._batch_max, lingers_until
            elif now < self._reunion_until and self._waiting_count < self._reunion_count:
                self._wake_at, until = self._reunion_count, self._reunion_until
            else:
                break
            self._changed.wait(until - now)
        self._wake_at = 1

    def _take(self) -> tuple[Hashable, list[_Parcel[_Item, _Answer]]]:
        """The oldest key's parcels, as many as make one request; what is left of them goes behind the other keys."""
        key = next(iter(self._waiting), None)
        queue = self._waiting.pop(key, deque())
        taken: list[_Parcel[_Item, _Answer]] = []
        count = size_bytes = 0
        while queue and (not taken or self._fits(count + len(queue[0].items), size_bytes + queue[0].size_bytes)):
            parcel = queue.popleft()
            self._waiting_count -= 1
            if parcel.future.set_running_or_notify_cancel():
                taken.append(parcel)
                count, size_bytes = count + len(parcel.items), size_bytes + parcel.size_bytes
        if queue:
            self._waiting[key] = queue
        return key, taken

    def _fits(self, count: int, size_bytes: int) -> bool:
        return count <= self._batch_max and size_bytes <= BATCH_BYTES_MAX

    def _deliver(self, key: Hashable, parcels: list[_Parcel[_Item, _Answer]]) -> None:
        """Send parcels as one request, or as few as the culprits among them allow."""
        patient = self._without_late(parcels)
        if not patient:
            return
        try:
            items = [item for parcel in patient for item in parcel.items]
            answers = self._send(key, items, patient[-1].came_at + self._retry_for_s)
        except Exception as error:
            if len(patient) > 1 and is_of_one(error):
                middle = len(patient) // 2
                self._deliver(key, patient[:middle])
                self._deliver(key, patient[middle:])
                return
            for parcel in patient:
                parcel.future.set_exception(error)
        else:
            at = 0
            for parcel in patient:
                parcel.future.set_result(list(answers[at : at + len(parcel.items)]))
                at += len(parcel.items)
        _Turn.wake([parcel.future for parcel in patient])

    def _without_late(self, parcels: list[_Parcel[_Item, _Answer]]) -> list[_Parcel[_Item, _Answer]]:
        """A caller whose time went by while others were being served is told so, and nothing of his is sent."""
        now = time.monotonic()
        late = [parcel for parcel in parcels if now >= parcel.came_at + self._late_after_s]
        for parcel in late:
            error = Unreachable(f"{self._name}: could not be sent within {self._late_after_s} s", maybe_done=False)
            parcel.future.set_exception(error)
        _Turn.wake([parcel.future for parcel in late])
        return [parcel for parcel in parcels if not parcel.future.done()] if late else parcels


def check_limits(linger_s: float, batch_max: int) -> None:
    if batch_max < 1:
        raise ValueError(f"batch_max: is {batch_max}, must be at least 1 (1 sends everything alone)")
    if linger_s < 0:
        raise ValueError(f"linger_s: is {linger_s}, must not be negative")


def is_of_one(error: Exception) -> bool:
    """The refusal may be about one parcel only."""
    return isinstance(error, Refused) and 400 <= error.status < 500 and error.status not in _OF_ALL
