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

A batch of several callers is refused as a whole when one of their messages breaks a rule; each caller's are then tried alone,
so that only he hears of it.

Nobody hears "done" unless the flush that covers his work has returned: a cycle counts as flushed only when somebody says so, and
what it took is told a failure otherwise. Any error that nobody foresaw, in the thread or in the loop, ends the edge.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final

from ingest.committing.flusher import make_flusher
from ingest.errors import Closing, EdgeFailed, Overloaded
from ingest.threads import tellable
from store.edge.store import EdgeStore, End
from store.errors import FlushFailed, InvalidRecord, StoreError
from store.tables.ends import Answer
from store.tables.frames import BATCH_MAX, AlikeMessages, Message, joined

#: Bodies taken into one cycle, and into one batch of the log; the rest waits for the next, behind the ends that came meanwhile.
CYCLE_BYTES: Final = 8 << 20
BATCH_BYTES: Final = 1 << 20
BATCH_MESSAGES: Final = 4096
#: Ends that may wait. Far more than halves can bring about; beyond it halves are refused too.
ENDS_MAX: Final = 1 << 20
#: What a message costs beside its body and its properties while it waits.
MESSAGE_BYTES: Final = 512
#: What an end takes in the log at most, beside its remark; and a character of that, written as JSON.
END_BYTES: Final = 128
REMARK_BYTES: Final = 12
REMARK_CHARACTERS: Final = 1024
#: A cycle of up to so many bytes and ends may be appended in the event loop: well under a millisecond.
SMALL_BYTES: Final = 256 << 10
SMALL_ENDS: Final = 128
assert BATCH_BYTES // END_BYTES <= BATCH_MAX


@dataclass(slots=True)
class _Work:
    """What one caller handed in."""

    future: asyncio.Future[Any]
    content: Any
    size_bytes: int = 0
    #: Called when it is in the log.
    appended: Callable[[], None] | None = None


@dataclass(slots=True)
class Counters:
    """What the committer did, for status and metrics."""

    cycles: int = 0
    halves: int = 0
    messages: int = 0
    ends: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    refused_for_load: int = 0


@dataclass(frozen=True, slots=True)
class _Asked:
    half_offsets: Sequence[int]
    member: str


@dataclass(slots=True)
class _Cycle:
    """One cycle under way: what to tell whom when the flush is through."""

    now_ms: int
    ticket: int = -1
    appended: bool = False
    #: The flush that covers it has returned, or nothing in it needs one.
    flushed: bool = False
    #: Why it never will.
    lost: str | None = None
    ended: int = 0
    released_bytes: int = 0
    #: Whoever handed in what this cycle took out of a queue.
    taken: list[asyncio.Future[Any]] = field(default_factory=list)
    done: list[tuple[asyncio.Future[Any], Any, Exception | None]] = field(default_factory=list)

    def take(self, queue: deque[_Work]) -> _Work:
        self.taken.append(queue[0].future)
        return queue.popleft()

    def tell(self, work: _Work, result: Any, ticket: int) -> None:
        self.ticket = max(self.ticket, ticket)
        self.done.append((work.future, result, None))

    def fail(self, work: _Work, error: BaseException) -> None:
        self.done.append((work.future, None, tellable(error)))

    def resolve(self) -> None:
        """Tell everybody. A refusal stays a refusal; a result counts only when it is flushed, and whoever was forgotten fails."""
        lost = EdgeFailed(f"nothing is known of what was sent just now: {self.lost or 'it was not flushed'}")
        for future, result, error in self.done:
            if future.done():
                continue  # the caller went away; what he sent stays
            if error is None and self.flushed:
                future.set_result(result)
            else:
                future.set_exception(error or lost)
        for future in self.taken:
            if not future.done():
                future.set_exception(lost)


class Committer:
    """Made and used in the event loop. One cycle at a time writes to the store."""

    def __init__(self, store: EdgeStore, now_ms: Callable[[], int], queued_bytes_max: int = 64 << 20) -> None:
        self._store, self._now_ms, self._queued_bytes_max = store, now_ms, queued_bytes_max
        self._loop = asyncio.get_running_loop()
        self._ends: deque[_Work] = deque()
        self._calls: deque[_Work] = deque()
        self._messages: deque[_Work] = deque()
        self._halves: deque[_Work] = deque()
        self._ends_waiting = self.queued_bytes = 0
        self._closing = self._busy = False
        self.counters = Counters()
        #: Told how long each flush took, in the thread or in the loop.
        self.observe_flush: Callable[[float], None] | None = None
        #: Set when the store has failed for good: the process must be started again.
        self.failed: asyncio.Future[str] = self._loop.create_future()
        self._batch_bytes = min(BATCH_BYTES, store.directory.geometry.commit_log_segment_bytes // 4)
        self._ended = asyncio.Event()
        self._cycles: SimpleQueue[_Cycle | None] = SimpleQueue()
        self._flusher = make_flusher()
        if self._flusher is not None:
            self._loop.add_reader(self._flusher.fileno, self._flusher.collect)
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    # --- in the event loop ------------------------------------------------------------------------------------------------
    def prepare(self, messages: Sequence[Message], appended: Callable[[], None] | None = None) -> asyncio.Future[Sequence[int]]:
        """Halves, all or none; their half_offsets once they are durable. `appended` is called when they are in the log."""
        return self._put_messages(self._halves, messages, appended)

    def send(self, messages: Sequence[Message]) -> asyncio.Future[Sequence[int]]:
        """Ordinary messages, all or none; their topic positions once they are durable."""
        return self._put_messages(self._messages, messages)

    def _put_messages(
        self, queue: deque[_Work], messages: Sequence[Message], appended: Callable[[], None] | None = None
    ) -> asyncio.Future[Sequence[int]]:
        size_bytes = _size_bytes(messages)
        full = self.queued_bytes > 0 and self.queued_bytes + size_bytes > self._queued_bytes_max
        if full or self._ends_waiting >= ENDS_MAX:
            self.counters.refused_for_load += 1
            raise Overloaded(
                f"{self.queued_bytes} bytes wait for a flush, at most {self._queued_bytes_max} may (maxQueuedSize): try again"
            )
        self.queued_bytes += size_bytes
        return self._put(queue, _Work(self._loop.create_future(), messages, size_bytes, appended))

    def end(self, ends: Sequence[End]) -> asyncio.Future[list[Answer]]:
        """Ends, judged in order; the answers once what they rest on is durable."""
        if self._ends_waiting + len(ends) > 2 * ENDS_MAX:
            self.counters.refused_for_load += 1
            raise Overloaded(f"{self._ends_waiting} ends wait for a flush: try again")
        self._ends_waiting += len(ends)
        return self._put(self._ends, _Work(self._loop.create_future(), ends))

    def asked(self, half_offsets: Sequence[int], member: str) -> asyncio.Future[None]:
        """Check requests were handed to a member."""
        return self._put(self._ends, _Work(self._loop.create_future(), _Asked(half_offsets, member)))

    def call(self, procedure: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run a procedure in the committer's thread; whatever it appends it must `wait` for itself."""
        return self._put(self._calls, _Work(self._loop.create_future(), procedure))

    def _put(self, queue: deque[_Work], work: _Work) -> asyncio.Future[Any]:
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
        cycle = _Cycle(0)
        try:
            cycle.now_ms = self._now_ms()
            if self._is_small(cycle.now_ms):
                self._append(cycle)
                if self._begin_flush(cycle):
                    return
        except BaseException as error:
            self._lose(cycle, error)
            self._finish(cycle)
            raise
        self._cycles.put(cycle)

    def _begin_flush(self, cycle: _Cycle) -> bool:
        """The flush without the thread; False where it cannot be had."""
        if self._flusher is None or cycle.ticket < 0 or cycle.lost is not None:
            return False
        try:
            return self._store.begin_wait(self._flusher, partial(self._flushed, cycle, perf_counter()))
        except StoreError as error:
            self._lose(cycle, error)
            return False  # the thread has nothing to wait for, and ends the cycle

    def _flushed(self, cycle: _Cycle, began_s: float, failure: StoreError | None) -> None:
        try:
            if failure is not None:
                self._lose(cycle, failure)
            else:
                self._covered(cycle, began_s)
        finally:
            self._finish(cycle)

    def _covered(self, cycle: _Cycle, began_s: float) -> None:
        """The flush has returned."""
        cycle.flushed = True
        if self.observe_flush is not None:
            self.observe_flush(perf_counter() - began_s)

    def _is_small(self, now_ms: int) -> bool:
        if self._calls or self._ends_waiting > SMALL_ENDS or self.queued_bytes > SMALL_BYTES:
            return False
        halves, messages = (joined([work.content for work in queue]) for queue in (self._halves, self._messages))
        ops = self._ends_waiting + len(self._ends)
        size_bytes = self.queued_bytes + (END_BYTES + REMARK_BYTES * REMARK_CHARACTERS) * ops
        return self._store.has_room(halves, messages, ops, size_bytes, now_ms)

    def _finish(self, cycle: _Cycle) -> None:
        """Tell everybody, and go on with what came meanwhile."""
        self.counters.cycles += 1
        self.queued_bytes -= cycle.released_bytes
        self._ends_waiting -= cycle.ended
        cycle.resolve()
        if cycle.lost is not None:
            self.fail(cycle.lost)
        if self.failed.done():
            self._refuse_waiting()
        if self._ends or self._calls or self._messages or self._halves:
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
        for queue in (self._ends, self._calls, self._messages, self._halves):
            while queue:
                future = queue.popleft().future
                if not future.done():
                    future.set_exception(EdgeFailed(f"the store failed: {self.failed.result()}"))

    # --- in the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (cycle := self._cycles.get()) is not None:
            try:
                if not cycle.appended:
                    self._append(cycle)
                self._flush(cycle)  # 4
            except BaseException as error:
                self._lose(cycle, error)
            self._loop.call_soon_threadsafe(self._finish, cycle)  # 5

    # --- in the one or the other --------------------------------------------------------------------------------------------
    def _append(self, cycle: _Cycle) -> None:
        """While it runs, and until its cycle is finished, nobody else writes to the store."""
        cycle.appended = True
        try:
            cycle.ended = self._cycle_ends(cycle)  # 1
            self._cycle_calls(cycle)  # 2
            cycle.released_bytes = self._cycle_messages(cycle)  # 3
        except BaseException as error:  # whoever was not told yet hears that it failed, and the edge ends
            self._lose(cycle, error)

    def _cycle_ends(self, cycle: _Cycle) -> int:
        """All ends that wait; hand-overs before them."""
        count, run, asked = 0, list[_Work](), list[_Work]()
        while self._ends:
            work = cycle.take(self._ends)
            if isinstance(work.content, _Asked):
                asked.append(work)
            else:
                run.append(work)
                count += len(work.content)
        # A request goes out before its answer comes back: hand-overs first.
        for work in asked:
            self._append_asked(work, cycle)
        if run:
            self._append_ends(run, cycle)
        return count

    def _append_ends(self, run: list[_Work], cycle: _Cycle) -> None:
        """In batches that fit into the log, whoever they came from. Where one fails, those who have an end in it or behind it hear
        of it; to say an end again does no harm."""
        answers: list[Answer] = []
        ticket = -1
        failure: Exception | None = None
        for batch in _end_batches([end for work in run for end in work.content], self._batch_bytes):
            try:
                answered, ticket = self._store.append_ends(batch, cycle.now_ms)
            except Exception as error:
                failure = error
                break
            answers += answered
        at, told = 0, 0
        for work in run:
            at += len(work.content)
            if at > len(answers):
                break
            cycle.tell(work, answers[at - len(work.content) : at], ticket)
            told += 1
        if failure is not None:
            self._failed(run[told:], cycle, failure)
        self.count_answers(answers)

    def count_answers(self, answers: Sequence[Answer]) -> None:
        """Ends that were answered; those of a call count themselves."""
        self.counters.ends += len(answers)
        for verdict, count in Counter([answer.verdict for answer in answers]).items():
            self.counters.answers[verdict.value] = self.counters.answers.get(verdict.value, 0) + count

    def _append_asked(self, work: _Work, cycle: _Cycle) -> None:
        asked: _Asked = work.content
        try:
            cycle.tell(work, None, self._store.append_asked(asked.half_offsets, asked.member, cycle.now_ms))
        except Exception as error:
            self._failed([work], cycle, error)
        else:
            self.counters.asked += len(asked.half_offsets)

    def _cycle_calls(self, cycle: _Cycle) -> None:
        for _ in range(len(self._calls)):
            work = cycle.take(self._calls)
            try:
                cycle.tell(work, work.content(), -1)
            except Exception as error:
                self._failed([work], cycle, error)

    def _cycle_messages(self, cycle: _Cycle) -> int:
        """Messages first: they are visible at once and mostly few. The bytes that no longer wait."""
        taken_bytes = 0
        for queue, append, counted in (
            (self._messages, self._store.append_messages, "messages"),
            (self._halves, self._store.append_halves, "halves"),
        ):
            while queue and taken_bytes < CYCLE_BYTES:
                group = _take_batch(cycle, queue, self._batch_bytes)
                taken_bytes += sum(work.size_bytes for work in group)
                stored = self._append_together(group, append, cycle)
                setattr(self.counters, counted, getattr(self.counters, counted) + stored)
        return taken_bytes

    def _append_together(self, group: list[_Work], append: Callable[..., Any], cycle: _Cycle) -> int:
        """One batch for several callers; alone when that is refused. How many messages went in."""
        try:
            appended = append(joined([work.content for work in group]), cycle.now_ms)
        except InvalidRecord as error:
            if len(group) > 1:
                return sum(self._append_together([work], append, cycle) for work in group)
            cycle.fail(group[0], error)
            return 0
        except Exception as error:
            self._failed(group, cycle, error)
            return 0
        at, found = 0, appended.positions or appended.offsets
        for work in group:
            if work.appended is not None:
                work.appended()
            count = len(work.content)
            cycle.tell(work, found[at : at + count], appended.ticket)
            work.content = None
            at += count
        return at

    def _flush(self, cycle: _Cycle) -> None:
        if cycle.lost is not None:
            return
        if cycle.ticket < 0:
            cycle.flushed = True
            return
        began_s = perf_counter()
        self._store.wait(cycle.ticket)
        self._covered(cycle, began_s)

    def _lose(self, cycle: _Cycle, error: BaseException) -> None:
        """The flush failed, or something before it: nobody knows what is durable. The edge ends when the cycle does."""
        cycle.lost = cycle.lost or _reason(error)

    def _failed(self, works: list[_Work], cycle: _Cycle, error: Exception) -> None:
        """A refusal for lack of room is the caller's to repeat. A failed flush, or an error that nobody foresaw, ends the edge:
        what is in the log and what is in memory may disagree, and only recovery can tell."""
        if isinstance(error, FlushFailed) or not isinstance(error, StoreError):
            self._give_up(error)
        for work in works:
            cycle.fail(work, error)

    def _give_up(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self.fail, _reason(error))


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"


def _size_bytes(messages: Sequence[Message]) -> int:
    """What messages take while they wait."""
    size_bytes = MESSAGE_BYTES * len(messages)
    if type(messages) is AlikeMessages:
        return size_bytes + sum(map(len, messages.bodies))
    for message in messages:
        size_bytes += len(message.body)
        if message.properties:
            size_bytes += sum([len(name) + len(text) for name, text in message.properties.items()])
    return size_bytes


def _end_batches(ends: list[End], batch_bytes: int) -> Iterator[list[End]]:
    """Ends, in order, in pieces of which each goes into one batch of the log: by their bytes, and so by their number too."""
    begin, size_bytes = 0, 0
    for at, end in enumerate(ends):
        size = END_BYTES + REMARK_BYTES * len(end.remark)
        if at > begin and size_bytes + size > batch_bytes:
            yield ends[begin:at]
            begin, size_bytes = at, 0
        size_bytes += size
    yield ends[begin:]


def _take_batch(cycle: _Cycle, queue: deque[_Work], batch_bytes: int) -> list[_Work]:
    """Callers whose messages go into one batch: at least one, then as long as they fit."""
    group = [cycle.take(queue)]
    size_bytes, count = group[0].size_bytes, len(group[0].content)
    while queue and size_bytes + queue[0].size_bytes <= batch_bytes and count + len(queue[0].content) <= BATCH_MESSAGES:
        work = cycle.take(queue)
        size_bytes, count = size_bytes + work.size_bytes, count + len(work.content)
        group.append(work)
    return group
