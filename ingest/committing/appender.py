"""Appends the work of a cycle to the log: 1 ends and hand-overs, 2 calls, 3 messages and halves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from ingest.committing.cycle import Asked, Counters, Cycle, Queues, Work
from store.edge.store import EdgeStore, End
from store.errors import FlushFailed, InvalidRecord, StoreError
from store.messages import joined
from store.tables.ends import Answer
from store.tables.frames import BATCH_MAX

#: Bodies taken into one cycle, and into one batch of the log; the rest waits for the next cycle, behind new ends.
CYCLE_BYTES: Final = 8 << 20
BATCH_BYTES: Final = 1 << 20
BATCH_MESSAGES: Final = 4096
#: What an end takes in the log at most, beside its remark; and a character of that, written as JSON.
END_BYTES: Final = 128
REMARK_BYTES: Final = 12
assert BATCH_BYTES // END_BYTES <= BATCH_MAX


class Appender:
    """Runs in the committer's thread or in the event loop, for one cycle at a time. `give_up` ends the edge."""

    def __init__(self, store: EdgeStore, queues: Queues, counters: Counters, give_up: Callable[[BaseException], None]) -> None:
        self._store, self._queues, self._counters, self._give_up = store, queues, counters, give_up
        self._batch_bytes = min(BATCH_BYTES, store.directory.geometry.commit_log_segment_bytes // 4)

    def append(self, cycle: Cycle) -> None:
        """Until the cycle is finished, nothing else writes to the store."""
        cycle.appended = True
        try:
            cycle.ended = self._cycle_ends(cycle)  # 1
            self._cycle_calls(cycle)  # 2
            cycle.released_bytes = self._cycle_messages(cycle)  # 3
        except BaseException as error:  # all futures without a result fail, and the edge ends
            cycle.lose(error)

    def _cycle_ends(self, cycle: Cycle) -> int:
        """All ends that wait; hand-overs before them."""
        count, run, asked = 0, list[Work](), list[Work]()
        while self._queues.ends:
            work = cycle.take(self._queues.ends)
            if isinstance(work.content, Asked):
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

    def _append_ends(self, run: list[Work], cycle: Cycle) -> None:
        """In batches that fit into the log, across callers. If a batch fails, so do the callers with an end in it or behind it;
        they may send it again."""
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
        self._counters.count_answers(answers)

    def _append_asked(self, work: Work, cycle: Cycle) -> None:
        asked: Asked = work.content
        try:
            cycle.tell(work, None, self._store.append_asked(asked.half_offsets, asked.member, cycle.now_ms))
        except Exception as error:
            self._failed([work], cycle, error)
        else:
            self._counters.asked += len(asked.half_offsets)

    def _cycle_calls(self, cycle: Cycle) -> None:
        for _ in range(len(self._queues.calls)):
            work = cycle.take(self._queues.calls)
            try:
                cycle.tell(work, work.content(), -1)
            except Exception as error:
                self._failed([work], cycle, error)

    def _cycle_messages(self, cycle: Cycle) -> int:
        """Messages first: they are visible at once and mostly few. The bytes that no longer wait."""
        taken_bytes = 0
        for queue, append, counted in (
            (self._queues.messages, self._store.append_messages, "messages"),
            (self._queues.halves, self._store.append_halves, "halves"),
        ):
            while queue and taken_bytes < CYCLE_BYTES:
                group = _take_batch(cycle, queue, self._batch_bytes)
                taken_bytes += sum(work.size_bytes for work in group)
                stored = self._append_together(group, append, cycle)
                setattr(self._counters, counted, getattr(self._counters, counted) + stored)
        return taken_bytes

    def _append_together(self, group: list[Work], append: Callable[..., Any], cycle: Cycle) -> int:
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

    def _failed(self, works: list[Work], cycle: Cycle, error: Exception) -> None:
        """A caller may repeat what was refused for lack of room. A failed flush or an unexpected error ends the edge: the log
        and the memory may disagree, and only recovery can tell."""
        if isinstance(error, FlushFailed) or not isinstance(error, StoreError):
            self._give_up(error)
        for work in works:
            cycle.fail(work, error)


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


def _take_batch(cycle: Cycle, queue: deque[Work], batch_bytes: int) -> list[Work]:
    """Callers whose messages go into one batch: at least one, then as long as they fit."""
    group = [cycle.take(queue)]
    size_bytes, count = group[0].size_bytes, len(group[0].content)
    while queue and size_bytes + queue[0].size_bytes <= batch_bytes and count + len(queue[0].content) <= BATCH_MESSAGES:
        work = cycle.take(queue)
        size_bytes, count = size_bytes + work.size_bytes, count + len(work.content)
        group.append(work)
    return group
