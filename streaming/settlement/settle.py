"""Settlement: what is done with one batch of halves and ops, in numbered steps, on columns. No Spark in here.

    1  drop what lies under the store's own cursor (a repeated batch changes nothing)
    2  match the ops with the rows (checker.matcher)
    3  write all of it and the new cursors to the redo log, one flush (store.job.store)
    4  apply: rows, topic queues, discard queue (store.job.apply)

Check rounds are batches of their own over the applied table, in parts, so that releases never wait behind a round:

    5  decide for every pending row (checker.decisions)
    6  write requests and proposals to the redo log, one flush a part, and apply them

Nothing here ends a transaction: a discard is a proposal, which the edge turns into an op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from checker.decisions import Decision, Tick, check_words, count_outstanding, decide
from checker.matcher import Matched, match, mentioned_halves
from checker.policy import Policy
from store.arrays import Array, Bools, Ints, how_many_fit
from store.errors import BatchBeyondCursor
from store.job.batch import Batch
from store.read.readers import LogReader
from store.records import HALF, OP, ROW, OpKind, State, state_of
from store.tables.redo_log import Marker
from store.tables.state_table import StateTable
from store.transitions import DISCARD_OF_STATE, Effect, Together

#: Rows decided between two flushes of a round: about 50 ms of work.
ROUND_PART_ROWS: Final = 1 << 18
#: A stored time may be this much ahead: edge and job, or driver and brokers, do not look at the clock at the same moment.
AHEAD_S: Final = 120
_DISCARDS: Final = {Decision[kind.name]: state for state, kind in DISCARD_OF_STATE.items()}


@dataclass(frozen=True, slots=True)
class Feed:
    """A range of both queues: halves half_start … half_stop - 1 and ops op_start … op_stop - 1, in order, none missing (in Kafka
    mode offsets have holes)."""

    half_start: int
    half_stop: int
    op_start: int
    op_stop: int
    halves: Array = field(default_factory=lambda: np.empty(0, HALF))
    ops: Array = field(default_factory=lambda: np.empty(0, OP))


@dataclass(frozen=True, slots=True)
class Ended:
    """The ops of a batch that ended a half, as columns, in log order."""

    effect: Array  # store.transitions.Effect
    via: Array  # store.records.Via
    said_at_ms: Array  # when the op was stored
    half_stored_at_s: Array  # when its half was
    half_offset: Array


@dataclass(frozen=True, slots=True)
class Settled:
    """What a batch did, for the metrics and the sinks."""

    effects: dict[Effect, int] = field(default_factory=dict)
    prepared: int = 0
    quarantined: int = 0
    ended: Ended | None = None  # None: the batch brought nothing new


def read_feed(log: LogReader, half_start: int, op_start: int, records_max: int = 1 << 20) -> Feed:
    """The next range of both queues, at most `records_max` of each. No op overtakes its half: where a half lies beyond the range,
    the ops stop before the first that speaks of it. An op that ends several halves is not cut: one at least is taken whole."""
    half_end, op_end = log.ends()
    half_stop, op_stop = min(half_end, half_start + records_max), min(op_end, op_start + records_max)
    op_stop = log.whole_ops(op_start, op_stop, op_end)
    if half_stop < half_end and op_stop > op_start:
        beyond = np.flatnonzero(log.op_queue.read(op_start, op_stop)["tags_code"] >= half_stop)
        op_stop = log.frame_start(op_start, op_start + int(beyond[0])) if len(beyond) else op_stop
    halves, ops = log.halves(half_start, half_stop), log.ops(op_start, op_stop)
    return Feed(half_start, half_stop, op_start, op_stop, halves, ops)


class SettlingStore(Protocol):
    """What the settlement needs of a store: JobStore, or a shard in Kafka mode."""

    @property
    def marker(self) -> Marker: ...
    @property
    def table(self) -> StateTable: ...
    def batch(self, *, half_cursor: int, op_cursor: int, now_ms: int) -> Batch: ...
    def commit(self, batch: Batch) -> None: ...


class Settler:
    """Settles feeds into the store and runs check rounds over it. `part_bytes_max`: what the pending halves of a round's part have
    together, where requests take their bodies along (Kafka mode). `carried`: halves whose requests outlive their round, because
    they wait where a member will come to them (Kafka mode)."""

    def __init__(
        self, job: SettlingStore, policy: Policy, part_bytes_max: int | None = None,
        *, carried: Callable[[], Array] | None = None,
    ) -> None:  # fmt: skip
        self.job, self.policy, self._part_bytes_max, self._carried = job, policy, part_bytes_max, carried
        #: Groups that had no room for more requests at the end of the last round.
        self._full_groups: Ints = np.empty(0, np.int64)

    def settle(self, feed: Feed, now_ms: int) -> Settled:
        """Steps 1 to 4 for one feed."""
        marker = self.job.marker
        if feed.half_start > marker.half_cursor or feed.op_start > marker.op_cursor:
            raise BatchBeyondCursor(
                f"the batch begins at half {feed.half_start} and op {feed.op_start}, the cursor stands at {marker.half_cursor} and "
                f"{marker.op_cursor}: what lies between would be lost"
            )
        # 1
        halves = feed.halves[feed.halves["half_offset"] >= marker.half_cursor]
        ops = feed.ops[feed.ops["op_offset"] >= marker.op_cursor]
        half_cursor, op_cursor = max(feed.half_stop, marker.half_cursor), max(feed.op_stop, marker.op_cursor)
        if half_cursor == marker.half_cursor and op_cursor == marker.op_cursor:
            return Settled()
        batch = self.job.batch(half_cursor=half_cursor, op_cursor=op_cursor, now_ms=now_ms)
        new_rows = batch.prepare(halves)
        # 2
        mentioned = mentioned_halves(ops)
        rows = self._rows(mentioned, halves["half_offset"], new_rows)
        matched = match(ops, mentioned, rows["word"], rows["group_no"], marker.round_no)
        _write_effects(batch, ops, mentioned, rows, matched)
        # 3, 4
        self.job.commit(batch)
        quarantined = int(np.count_nonzero(halves["corrupt"]))
        return Settled(matched.counts(), len(halves), quarantined, _ended(ops, mentioned, rows, matched))

    def _rows(self, half_offsets: Ints, new_offsets: Ints, new_rows: Array) -> Array:
        """Current rows of halves: of this batch where they are new, of the table otherwise."""
        rows = self.job.table.get(half_offsets)
        if len(new_offsets):
            is_new = half_offsets >= new_offsets[0]
            rows[is_new] = np.zeros(1, ROW)
            known = is_new & (half_offsets <= new_offsets[-1])
            if int(new_offsets[-1] - new_offsets[0]) + 1 == len(new_offsets):
                rows[known] = new_rows[half_offsets[known] - new_offsets[0]]
            else:  # Kafka's offsets have holes
                at = np.searchsorted(new_offsets, half_offsets[known])
                there = new_offsets[at] == half_offsets[known]
                rows[np.flatnonzero(known)[there]] = new_rows[at[there]]
        return rows

    # --- check rounds -------------------------------------------------------------------------------------------------
    def check_round(self, tick: Tick, live: Bools) -> Iterator[dict[Decision, int]]:
        """Steps 5 and 6 in parts: one item of decision counts for each. Between two parts other batches may be settled;
        a row that they end is simply not pending any more when its part comes."""
        if self.job.marker.round_no != tick.round_no:
            batch = self._batch(tick.now_ms)
            batch.begin_round(tick.round_no)
            self._carry_over(batch, tick)
            self.job.commit(batch)
        outstanding = self._outstanding(tick.round_no, len(live))
        for file_no in self.job.table.scannable():
            start = 0
            while start < self.job.table.rows_per_file:
                stop = self._part_stop(file_no, start)
                rows, first = self.job.table.rows_of(file_no)[start:stop], file_no * self.job.table.rows_per_file + start
                self._count_from_now(rows, first, tick)
                counts, outstanding = self._round_part(rows, first, tick, live, outstanding)
                yield counts
                start = stop
        self._full_groups = np.flatnonzero(outstanding >= self.policy.outstanding_per_group_max)

    def _carry_over(self, batch: Batch, tick: Tick) -> None:
        """Requests that still wait to be taken are this round's, too: their halves are not asked about a second time. Beyond
        retention they may lapse, so that the half can be discarded."""
        half_offsets = self._carried() if self._carried is not None else np.empty(0, np.int64)
        rows = self.job.table.get(half_offsets)
        young = tick.now_s - rows["stored_at_s"].astype(np.int64) - tick.leapt_s <= self.policy.retention_s
        chosen = np.flatnonzero(young & (state_of(rows["word"]) == int(State.PREPARED)))
        if len(chosen):
            batch.set_words(half_offsets[chosen], check_words(rows["word"][chosen], tick.round_no))

    @property
    def waits_for_answers(self) -> bool:
        """Whether a group had as many requests as it may have: its answers make room for more."""
        return len(self._full_groups) > 0

    def has_room_again(self, round_no: int) -> bool:
        """Whether a group that had as many requests of this round as it may have has answered half of them."""
        if not len(self._full_groups):
            return False
        outstanding = self._outstanding(round_no, int(self._full_groups[-1]) + 1)[self._full_groups]
        return bool((2 * outstanding <= self.policy.outstanding_per_group_max).any())

    def _outstanding(self, round_no: int, group_count: int) -> Ints:
        table = self.job.table
        found = np.zeros(group_count, np.int64)
        for file_no in table.scannable():
            found += count_outstanding(table.rows_of(file_no), round_no, group_count)
        return found

    def _part_stop(self, file_no: int, start: int) -> int:
        """Where the part that begins at this row of a file ends: one row has to fit, however large."""
        stop = min(start + ROUND_PART_ROWS, self.job.table.rows_per_file)
        if self._part_bytes_max is None:
            return stop
        rows = self.job.table.rows_of(file_no)[start:stop]
        pending = state_of(rows["word"]) == int(State.PREPARED)
        return min(stop, start + how_many_fit(np.where(pending, rows["size_bytes"], 0), self._part_bytes_max))

    def _count_from_now(self, rows: Array, first: int, tick: Tick) -> None:
        """Pending halves with a stored time in the future: the clock was put back since. They count from now on; otherwise no
        check would be sent until that time comes."""
        if not tick.discards_allowed:  # the clock is not believed
            return
        ahead = np.flatnonzero(rows["stored_at_s"] > tick.now_s + AHEAD_S)
        ahead = ahead[state_of(rows["word"][ahead]) == int(State.PREPARED)]
        if len(ahead):
            batch, anew = self._batch(tick.now_ms), rows[ahead]
            anew["stored_at_s"] = tick.now_s
            batch.resume(ahead + first, anew, reopened=0)
            self.job.commit(batch)

    def _round_part(self, rows: Array, first: int, tick: Tick, live: Bools, outstanding: Ints) -> tuple[dict[Decision, int], Ints]:
        decided = decide(rows, self.policy, live, tick, outstanding)  # 5
        if len(decided.index):  # 6
            batch = self._batch(tick.now_ms)
            words = check_words(rows["word"][decided.index], tick.round_no)
            half_offsets = decided.index + first
            checks = decided.decision == int(Decision.CHECK)
            batch.check(half_offsets[checks], words[checks])
            for decision, state in _DISCARDS.items():
                chosen = decided.decision == int(decision)
                batch.propose_discard(half_offsets[chosen], words[chosen], int(state))
            self.job.commit(batch)
        counts = {decision: int(decided.counts[decision]) for decision in Decision}
        return counts, decided.outstanding_by_group

    def _batch(self, now_ms: int) -> Batch:
        marker = self.job.marker
        return self.job.batch(half_cursor=marker.half_cursor, op_cursor=marker.op_cursor, now_ms=now_ms)


def _ended(ops: Array, half_offsets: Ints, rows: Array, matched: Matched) -> Ended:
    at = matched.where(Effect.RELEASE, Effect.ROLLBACK, Effect.DISCARD_MAX, Effect.DISCARD_EXPIRED)
    chosen = ops[at]
    stored_at_s = rows["stored_at_s"][np.searchsorted(half_offsets, chosen["half_offset"])]
    return Ended(matched.effect[at], chosen["via"], chosen["stored_at_ms"], stored_at_s, chosen["half_offset"])


def _write_effects(batch: Batch, ops: Array, half_offsets: Ints, rows: Array, matched: Matched) -> None:
    """Effects of a batch's ops as redo entries. Every entry of a half carries its *final* word, so their order does not matter."""

    def of(*effects: Effect) -> tuple[Array, Array]:
        chosen = ops[matched.where(*effects)]
        return chosen, matched.words[np.searchsorted(half_offsets, chosen["half_offset"])]

    released, words = of(Effect.RELEASE)
    batch.release(released["half_offset"], words, released["position"])
    rolled_back, words = of(Effect.ROLLBACK)
    batch.roll_back(rolled_back["half_offset"], words)
    followed, words = of(Effect.FOLLOWED)
    batch.follow(followed["half_offset"], words, followed["position"])
    lost, words = of(Effect.SET_ASIDE)
    batch.set_aside(lost["half_offset"], words)
    holes, words = of(Effect.HOLE)
    batch.hole(holes["half_offset"], words, holes["position"])
    _write_discards(batch, of)
    _write_resumes(batch, half_offsets, rows, matched)
    asked, words = of(Effect.ASKED, Effect.ANSWERED)
    offsets, first = np.unique(asked["half_offset"], return_index=True)
    batch.set_words(offsets, words[first])
    corrupt = (ops["corrupt"] != 0) & (ops["together"] != int(Together.OTHER))  # a frame is listed once
    batch.quarantine_ops(ops["op_offset"][corrupt])
    messages = ops[matched.where(Effect.MESSAGE)]
    batch.messages(messages["op_offset"], messages["size_bytes"], messages["position"])


def _write_discards(batch: Batch, of: Any) -> None:
    """A discarded half that was resumed in the same batch is listed as discarded too: it was."""
    discarded, words = of(Effect.DISCARD_MAX, Effect.DISCARD_EXPIRED)
    is_max = discarded["kind"] == int(OpKind.DISCARD_MAX)
    states = np.where(is_max, np.int64(State.DISCARDED_MAX), np.int64(State.DISCARDED_EXPIRED))
    batch.discard(discarded["half_offset"], words, states)


def _write_resumes(batch: Batch, half_offsets: Ints, rows: Array, matched: Matched) -> None:
    chosen = np.flatnonzero(matched.stored_at_s >= 0)
    if len(chosen):
        resumed = rows[chosen]
        resumed["stored_at_s"], resumed["word"] = matched.stored_at_s[chosen], matched.words[chosen]
        batch.resume(half_offsets[chosen], resumed, reopened=len(matched.where(Effect.RESUME)))
