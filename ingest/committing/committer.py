"""The committer: everything goes into the store through it, one cycle after another, so that many callers share one flush.

Callers hand their work in, in the event loop, and await a future. A cycle takes all that waits:
    1  ends (and what else is said about halves), in the order they came
    2  calls: small procedures of the edge itself
    3  ordinary messages and halves, as many as fit into a cycle; those of several callers go into one batch of the log
    4  one flush
    5  all futures of the cycle at once
While a cycle flushes, the next one gathers. Ends come first and are never refused while halves are accepted.

The event loop never waits for the disk: a thread does steps 2 and 4, and steps 1 and 3, too, when the cycle is large or needs new
files or names. A small cycle that needs none only writes a few pages into the system's cache. That is done in the event loop, and
its flush by the kernel alone (flusher.py): to hand it to a thread costs more than to do it, because loop and thread fight
for the interpreter's lock.

A batch of several callers is refused as a whole when one of their messages breaks a rule. Each caller's messages are then
tried alone, so that only the caller at fault is refused.

A caller gets its result only after the flush that covers its work has returned; without that flush, its future fails. Any
unexpected error, in the thread or in the loop, ends the edge.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final

from ingest.committing.appender import END_BYTES, REMARK_BYTES, Appender
from ingest.committing.cycle import Asked, Counters, Cycle, Queues, Work, reason
from ingest.committing.flusher import make_flusher
from ingest.errors import Closing, EdgeFailed, Overloaded
from store.edge.store import EdgeStore, End
from store.errors import StoreError
from store.messages import Message, content_bytes_of, joined
from store.tables.ends import Answer

#: Ends that may wait. Far more than halves can bring about; beyond it halves are refused too.
ENDS_MAX: Final = 1 << 20
#: What a message costs beside its body and its properties while it waits.
MESSAGE_BYTES: Final = 512
#: Of a remark, at most.
REMARK_CHARACTERS: Final = 1024
#: A cycle of up to so many bytes and ends may be appended in the event loop: well under a millisecond.
SMALL_BYTES: Final = 256 << 10
SMALL_ENDS: Final = 128


class Committer:
    """Made and used in the event loop. One cycle at a time writes to the store."""

    def __init__(self, store: EdgeStore, now_ms: Callable[[], int], queued_bytes_max: int = 64 << 20) -> None:
        self._store, self._now_ms, self._queued_bytes_max = store, now_ms, queued_bytes_max
        self._loop = asyncio.get_running_loop()
        self._queues = Queues()
        self._ends_waiting = self.queued_bytes = 0
        self._closing = self._busy = False
        self.counters = Counters()
        #: Told how long each flush took, in the thread or in the loop.
        self.observe_flush: Callable[[float], None] | None = None
        #: Set when the store has failed for good: the process must be started again.
        self.failed: asyncio.Future[str] = self._loop.create_future()
        self._appender = Appender(store, self._queues, self.counters, self._give_up)
        self._ended = asyncio.Event()
        self._cycles: SimpleQueue[Cycle | None] = SimpleQueue()
        self._flusher = make_flusher()
        if self._flusher is not None:
            self._loop.add_reader(self._flusher.fileno, self._flusher.collect)
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    # --- in the event loop ------------------------------------------------------------------------------------------------
    def prepare(self, messages: Sequence[Message], appended: Callable[[], None] | None = None) -> asyncio.Future[Sequence[int]]:
        """Halves, all or none; their half_offsets once they are durable. `appended` is called when they are in the log."""
        return self._put_messages(self._queues.halves, messages, appended)

    def send(self, messages: Sequence[Message]) -> asyncio.Future[Sequence[int]]:
        """Ordinary messages, all or none; their topic positions once they are durable."""
        return self._put_messages(self._queues.messages, messages)

    def _put_messages(
        self, queue: deque[Work], messages: Sequence[Message], appended: Callable[[], None] | None = None
    ) -> asyncio.Future[Sequence[int]]:
        size_bytes = MESSAGE_BYTES * len(messages) + content_bytes_of(messages)
        full = self.queued_bytes > 0 and self.queued_bytes + size_bytes > self._queued_bytes_max
        if full or self._ends_waiting >= ENDS_MAX:
            self.counters.refused_for_load += 1
            raise Overloaded(
                f"write queue is full ({self.queued_bytes} bytes; maxQueuedSize = {self._queued_bytes_max}): try again later"
            )
        self.queued_bytes += size_bytes
        return self._put(queue, Work(self._loop.create_future(), messages, size_bytes, appended))

    def end(self, ends: Sequence[End]) -> asyncio.Future[list[Answer]]:
        """Ends, judged in order; the answers once what they rest on is durable."""
        if self._ends_waiting + len(ends) > 2 * ENDS_MAX:
            self.counters.refused_for_load += 1
            raise Overloaded(f"{self._ends_waiting} ends wait for a flush: try again")
        self._ends_waiting += len(ends)
        return self._put(self._queues.ends, Work(self._loop.create_future(), ends))

    def asked(self, half_offsets: Sequence[int], member: str) -> asyncio.Future[None]:
        """Check requests were handed to a member."""
        return self._put(self._queues.ends, Work(self._loop.create_future(), Asked(half_offsets, member)))

    def call(self, procedure: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a procedure in the committer's thread; whatever it appends it must `wait` for itself."""
        return self._put(self._queues.calls, Work(self._loop.create_future(), procedure))

    def _put(self, queue: deque[Work], work: Work) -> asyncio.Future[Any]:
        if self._closing:
            raise Closing("the edge is stopping: try again later")
        if self.failed.done():
            raise EdgeFailed(f"the store failed: {self.failed.result()}")
        queue.append(work)
        if not self._busy:
            self._busy = True
            # Not now: others that came with it, in this turn of the loop, share its cycle.
            self._loop.call_soon(self._begin)
        return work.future

    async def close(self) -> None:
        """Everything handed in is done; then the thread ends."""
        self._closing = True
        if not self._busy:
            self._ended.set()
        await self._ended.wait()
        if self._flusher is not None:
            self._loop.remove_reader(self._flusher.fileno)
        self._cycles.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _begin(self) -> None:
        """A cycle with all that waits; the thread does what may wait for the disk."""
        cycle = Cycle(0)
        try:
            cycle.now_ms = self._now_ms()
            if self._is_small(cycle.now_ms):
                self._appender.append(cycle)
                if self._begin_flush(cycle):
                    return
        except BaseException as error:
            cycle.lose(error)
            self._finish(cycle)
            raise
        self._cycles.put(cycle)

    def _begin_flush(self, cycle: Cycle) -> bool:
        """The flush without the thread; False where it cannot be had."""
        if self._flusher is None or cycle.ticket < 0 or cycle.lost is not None:
            return False
        try:
            return self._store.begin_wait(self._flusher, partial(self._flushed, cycle, perf_counter()))
        except StoreError as error:
            cycle.lose(error)
            return False  # the thread has nothing to wait for, and ends the cycle

    def _flushed(self, cycle: Cycle, began_s: float, failure: StoreError | None) -> None:
        try:
            if failure is not None:
                cycle.lose(failure)
            else:
                self._covered(cycle, began_s)
        finally:
            self._finish(cycle)

    def _covered(self, cycle: Cycle, began_s: float) -> None:
        """The flush has returned."""
        cycle.flushed = True
        if self.observe_flush is not None:
            self.observe_flush(perf_counter() - began_s)

    def _is_small(self, now_ms: int) -> bool:
        if self._queues.calls or self._ends_waiting > SMALL_ENDS or self.queued_bytes > SMALL_BYTES:
            return False
        halves, messages = (joined([work.content for work in queue]) for queue in (self._queues.halves, self._queues.messages))
        ops = self._ends_waiting + len(self._queues.ends)
        size_bytes = self.queued_bytes + (END_BYTES + REMARK_BYTES * REMARK_CHARACTERS) * ops
        return self._store.has_room(halves, messages, ops, size_bytes, now_ms)

    def _finish(self, cycle: Cycle) -> None:
        """Answer all callers, and go on with what came meanwhile."""
        self.counters.cycles += 1
        self.queued_bytes -= cycle.released_bytes
        self._ends_waiting -= cycle.ended
        cycle.resolve()
        if cycle.lost is not None:
            self.fail(cycle.lost)
        if self.failed.done():
            self._refuse_waiting()
        if self._queues:
            self._begin()
            return
        self._busy = False
        if self._closing:
            self._ended.set()

    def fail(self, reason: str) -> None:
        """Nothing is taken any more, and the process must be started again."""
        if not self.failed.done():
            self.failed.set_result(reason)

    def _refuse_waiting(self) -> None:
        """What no cycle has taken was not stored, and never will be."""
        queues = self._queues
        for queue in (queues.ends, queues.calls, queues.messages, queues.halves):
            while queue:
                future = queue.popleft().future
                if not future.done():
                    future.set_exception(EdgeFailed(f"the store failed: {self.failed.result()}"))

    # --- in the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (cycle := self._cycles.get()) is not None:
            try:
                if not cycle.appended:
                    self._appender.append(cycle)
                self._flush(cycle)  # 4
            except BaseException as error:
                cycle.lose(error)
            self._loop.call_soon_threadsafe(self._finish, cycle)  # 5

    # --- in the one or the other --------------------------------------------------------------------------------------------
    def _flush(self, cycle: Cycle) -> None:
        if cycle.lost is not None:
            return
        if cycle.ticket < 0:
            cycle.flushed = True
            return
        began_s = perf_counter()
        self._store.wait(cycle.ticket)
        self._covered(cycle, began_s)

    def _give_up(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self.fail, reason(error))
