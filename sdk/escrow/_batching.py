"""Batches for threads: `escrow._batch_policy` behind a lock, and one thread that sends.

While that thread sends a request, what comes waits for the next one. Where nothing is shared (`batch_max` 1), the calling thread
makes the request itself.

Callers that are answered together wake one another (`_Turn`). A thread that wakes all of them holds the interpreter's lock
meanwhile, and they queue up for it. (64 threads, measured: 22 instead of 41 µs of processor time for a wake-up.)
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from escrow._batch_policy import NEVER, Batch, BatchPolicy, Limits, Settled
from escrow._forks import Home
from escrow.errors import Closed

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")
_T = TypeVar("_T")

#: The longest that a request waits for callers that were answered with the last one.
REUNION_MAX_S: Final = 0.005
#: The longest that a thread waits for the one before it to open the gate, when the answer is there.
_GATE_S: Final = 0.25


class _Turn(Future[_T]):
    """A future on which a thread waits at a gate of its own. A thread that has passed its gate opens the next one."""

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


class Batcher(Generic[_Item, _Answer]):
    """`submit(items).result()` are the answers, in order.

    send(key, items, give_up_at) makes one request; its time ends at the monotonic time `give_up_at`.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Hashable, Sequence[_Item], float], list[_Answer]],
        limits: Limits | None = None,
    ) -> None:
        self._name, self._send, self._limits = name, send, limits or Limits()
        self._changed = threading.Condition()  # reentrant: close() may come from a signal handler
        self._policy: BatchPolicy[_Item, _Turn[list[_Answer]]] = BatchPolicy(
            name, self._limits, _Turn.set_running_or_notify_cancel, reunion_max_s=REUNION_MAX_S
        )
        #: The thread sleeps until this monotonic time; it is woken where something is due sooner.
        self._sleeps_until = 0.0
        #: Threads that are making a request of their own.
        self._alone: list[int] = []
        self._home = Home()
        self._thread: threading.Thread | None = None

    @property
    def waiting_count(self) -> int:
        """Parcels that no request has taken yet."""
        return self._policy.waiting_count

    # --- callers ----------------------------------------------------------------------------------------------------------
    def submit(self, items: Sequence[_Item], *, size_bytes: int = 0, key: Hashable = None) -> Future[list[_Answer]]:
        """Answers to these items. Cancelling the future helps until they are taken."""
        self._home.refuse_elsewhere()  # before the lock: in a forked child it may be held by a thread that is not there
        turn: _Turn[list[_Answer]] = _Turn()
        with self._changed:
            self._refuse_closed()
            if not items:
                turn.set_result([])
                return turn
            self._policy.add(items, turn, time.monotonic(), size_bytes=size_bytes, key=key)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"escrow-{self._name}", daemon=True)
                self._thread.start()
            elif self._policy.due_at() < self._sleeps_until:
                self._sleeps_until = 0.0
                self._changed.notify()
        return turn

    def answers(self, items: Sequence[_Item], *, size_bytes: int = 0, key: Hashable = None) -> list[_Answer]:
        """`submit(items).result()`. Where no request is shared, this thread makes it, and no other one has to wake up."""
        if self._limits.batch_max > 1:
            return self.submit(items, size_bytes=size_bytes, key=key).result()
        self._home.refuse_elsewhere()
        with self._changed:
            self._refuse_closed()
            self._alone.append(threading.get_ident())
        try:
            return self._send(key, items, time.monotonic() + self._limits.retry_for_s) if items else []
        finally:
            with self._changed:
                self._alone.remove(threading.get_ident())
                self._changed.notify_all()

    def _refuse_closed(self) -> None:
        if self._policy.closing:
            raise Closed(f"{self._name}: closed")

    def close(self, timeout_s: float) -> bool:
        """What was handed in is still sent. True when everything was in this time. A request that this very thread is making, where
        a signal handler closes, is not waited for."""
        give_up_at = time.monotonic() + timeout_s
        with self._changed:
            self._policy.closing = True
            self._changed.notify_all()
            alone_through = self._changed.wait_for(lambda: not set(self._alone) - {threading.get_ident()}, timeout_s)
        if self._thread is None:
            return alone_through
        self._thread.join(max(0.0, give_up_at - time.monotonic()))
        return alone_through and not self._thread.is_alive()

    def abandon(self) -> None:
        """What waits is not sent any more; its callers get `Closed`."""
        with self._changed:
            left = self._policy.abandon()
        told = [turn for turn in left if turn.set_running_or_notify_cancel()]
        for turn in told:
            turn.set_exception(Closed(f"{self._name}: closed before this was sent"))
        _Turn.wake(told)

    # --- the thread -------------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (batch := self._next()) is not None:
            begun_at = time.monotonic()
            self._deliver(batch)
            now = time.monotonic()
            with self._changed:
                self._policy.over(batch, now - begun_at, now)

    def _next(self) -> Batch[_Item, _Turn[list[_Answer]]] | None:
        """Wait until a request is due; None when the batcher is closed and everything was sent."""
        with self._changed:
            while (due_at := self._policy.due_at()) > (now := time.monotonic()):
                if self._policy.closing and self._policy.is_idle:
                    return None
                self._sleeps_until = due_at
                self._changed.wait(None if due_at == NEVER else due_at - now)
            self._sleeps_until = 0.0
            return self._policy.take()

    def _deliver(self, batch: Batch[_Item, _Turn[list[_Answer]]]) -> None:
        while (request := batch.next(time.monotonic())) is not None:
            _tell(batch.late)
            try:
                answers = self._send(request.key, request.items, request.give_up_at)
            except Exception as error:
                _tell(batch.failed(error))
            else:
                _tell(batch.answered(answers))
        _tell(batch.late)


def _tell(settled: Iterable[Settled[_Turn[Any], Any]]) -> None:
    told = []
    for turn, answers, error in settled:
        if error is None:
            turn.set_result(answers)
        else:
            turn.set_exception(error)
        told.append(turn)
    if told:
        _Turn.wake(told)
