"""Decisions: the decision table of docs/cases.md over all pending rows at once.

`decide` walks a state table, usually a mapped file, in chunks small enough for the processor's cache, so that its
private memory does not grow with the table. For each chunk it finds the PREPARED rows, gathers their three fields that
matter, and evaluates the rules as boolean arrays. `reference.py` says the same one row at a time, rule by rule.

A request lives for one round. Rows remember the round of the last ask in two bits, hence `distance`, the rounds since
then mod 4:
    0   asked in this round: not asked again
    1   the request has lapsed and may be repeated; but less than one whole interval may have passed, so no discard
    2+  at least one whole interval has passed: a discard may be proposed
A row last asked exactly four rounds ago (held, or over the bound, in between) looks as if asked in this round. That
costs a check one round of delay and a discard two; it never makes a check or a discard come too early.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from checker.policy import Policy, effective_immunities_s
from store.arrays import Array, Bools, Ints
from store.records import (
    ASK_ROUND_MASK,
    ASK_ROUND_SHIFT,
    OUTSTANDING_BIT,
    STATE_MASK,
    State,
    ask_round_of,
    check_count_of,
    immunity_of,
)

#: Rows looked at in one go: small enough for the cache, large enough to hide numpy's cost of a call. Fastest of 2^14 to
#: 2^18 over 10 million mapped rows.
CHUNK_ROWS = 1 << 17


class Decision(IntEnum):
    """What the checker says about a PREPARED row. (Release and Rollback follow from an op: see store.transitions.Effect.)"""

    WAIT = 0  # not yet due, or an op may still be on its way
    HOLD = 1  # due, but no member of the producer group is live
    CHECK = 2  # emit a check request
    DISCARD_MAX = 3  # propose a discard, reason check_max
    DISCARD_EXPIRED = 4  # propose a discard, reason expired


@dataclass(frozen=True, slots=True)
class Tick:
    """The instant for which a round's decisions are made; fixed once per batch by the caller, which reads the clock."""

    now_ms: int
    round_no: int
    round_start_ms: int
    ops_caught_up: bool  # the op cursor has reached the op end seen at the tick
    discards_allowed: bool = True  # False while the clock is not believed
    leapt_s: int = 0  # this part of now_ms was a leap of the clock and does not count as age

    @property
    def now_s(self) -> int:
        return self.now_ms // 1000

    @property
    def round_start_s(self) -> int:
        """Floored, like stored_at_s. Flooring keeps order, so a half stored at or after the round's start always has
        stored_at_s >= round_start_s and is never checked in that round. One stored in the same second, but before the
        start, waits a round longer; comparing stored_at_s * 1000 with round_start_ms would check some halves too early.
        """
        return self.round_start_ms // 1000


@dataclass(frozen=True, slots=True)
class Decisions:
    """What to do now. Rows that wait or are held are counted, not listed: there may be millions."""

    index: Ints  # positions in the given rows, ascending
    decision: npt.NDArray[np.uint8]  # CHECK, DISCARD_MAX or DISCARD_EXPIRED for each of `index`
    counts: Ints  # rows by Decision; their sum is the number of PREPARED rows
    outstanding_by_group: Ints  # after these decisions; hand it to the call for the next rows of the same table
    looked: bool = True  # False: standby or ops not caught up, so all rows wait and none was even read


#: The members as plain ints: comparing an array with an IntEnum makes numpy probe the enum's attributes every time.
_HOLD, _CHECK = int(Decision.HOLD), int(Decision.CHECK)


@dataclass(slots=True)
class _Round:
    """One evaluation under way. All arrays are one longer than the groups given: their last element stands for every
    group beyond, which is never live."""

    policy: Policy
    tick: Tick
    live: Bools
    outstanding: Ints  # known at the start, plus the checks decided since
    found: Ints | None  # outstanding in the rows read so far; None when the caller has counted them


def decide(rows: Array, policy: Policy, live: Bools, tick: Tick, outstanding_by_group: Ints | None = None) -> Decisions:
    """Decide for every PREPARED row of `rows` (dtype records.ROW); lowest row first where a bound applies.

    `live[group_no]` tells whether a member can be asked now; groups out of its range have none.
    `outstanding_by_group` counts the requests of this round still unanswered in the *whole* table; None: `rows` are the
    whole table and are counted here. Listing takes 9 bytes a row to act on, so give big tables file by file.
    """
    if policy.standby or not tick.ops_caught_up:
        return _all_wait(live, outstanding_by_group)
    this = _begin(policy, tick, live, outstanding_by_group)
    counts = np.zeros(len(Decision), np.int64)
    indexes, decisions = [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
    for position, code in _decided_chunks(np.asarray(rows), this):
        counts += [np.count_nonzero(code == decision) for decision in range(len(Decision))]
        acting = code >= _CHECK
        indexes.append(position[acting])
        decisions.append(code[acting])
    decided = Decisions(np.concatenate(indexes), np.concatenate(decisions), counts, this.outstanding[:-1])
    return decided if this.found is None else _make_room(decided, rows, this, this.found)


def count_outstanding(rows: Array, round_no: int, group_count: int) -> Ints:
    """Requests and proposals of round `round_no` still under way, by group_no; groups beyond group_count are left out.

    A proposal looks like a request here and counts as one; the edge soon turns it into an op.
    """
    counted = np.zeros(group_count + 1, np.int64)
    for start, position in _positions(rows["word"], _UNDER_WAY_MASK, _under_way(round_no)):
        groups = rows["group_no"][start : start + CHUNK_ROWS][position]
        counted += np.bincount(_slots(groups, group_count), minlength=group_count + 1)
    return counted[:-1]


def check_words(words: npt.NDArray[np.uint32], round_no: int) -> npt.NDArray[np.uint32]:
    """New state words of rows to be checked or proposed for discard: under way since this round.

    The count stays: it counts hand-overs (op ASKED), not decisions. A proposal is marked like a request, so that it is
    repeated only after it lapsed.
    """
    kept = words & np.uint32(~(ASK_ROUND_MASK << ASK_ROUND_SHIFT) & 0xFFFFFFFF)
    return kept | np.uint32((round_no & ASK_ROUND_MASK) << ASK_ROUND_SHIFT | OUTSTANDING_BIT)


def _begin(policy: Policy, tick: Tick, live: Bools, outstanding_by_group: Ints | None) -> _Round:
    """Pad the arrays with the element that stands for all unknown groups."""
    outstanding = np.zeros(len(live) + 1, np.int64)
    if outstanding_by_group is None:
        return _Round(policy, tick, np.append(live, False), outstanding, found=np.zeros_like(outstanding))
    known = min(len(live), len(outstanding_by_group))
    outstanding[:known] = outstanding_by_group[:known]
    return _Round(policy, tick, np.append(live, False), outstanding, found=None)


def _all_wait(live: Bools, outstanding_by_group: Ints | None) -> Decisions:
    """No decision possible: say so without reading a row."""
    outstanding = np.zeros(len(live), np.int64) if outstanding_by_group is None else outstanding_by_group
    counts = np.zeros(len(Decision), np.int64)
    return Decisions(np.empty(0, np.int64), np.empty(0, np.uint8), counts, outstanding, looked=False)


_UNDER_WAY_MASK: Final = np.uint32(STATE_MASK | ASK_ROUND_MASK << ASK_ROUND_SHIFT | OUTSTANDING_BIT)


def _under_way(round_no: int) -> np.uint32:
    """What a word masked with _UNDER_WAY_MASK is when a request of that round is under way."""
    return np.uint32(State.PREPARED | (round_no & ASK_ROUND_MASK) << ASK_ROUND_SHIFT | OUTSTANDING_BIT)


def _positions(words: Array, mask: np.uint32, wanted: np.uint32) -> Iterator[tuple[int, Ints]]:
    """(start of chunk, positions in it) where words & mask == wanted; chunks without any are skipped."""
    masked = np.empty(CHUNK_ROWS, np.uint32)
    hits = np.empty(CHUNK_ROWS, np.bool_)
    for start in range(0, len(words), CHUNK_ROWS):
        chunk = words[start : start + CHUNK_ROWS]
        np.bitwise_and(chunk, mask, out=masked[: len(chunk)])
        np.equal(masked[: len(chunk)], wanted, out=hits[: len(chunk)])
        position = np.flatnonzero(hits[: len(chunk)])
        if len(position):
            yield start, position


def _decided_chunks(rows: Array, this: _Round) -> Iterator[tuple[Ints, npt.NDArray[np.uint8]]]:
    """(position, decision) of the PREPARED rows, chunk after chunk; uses up the groups' room on its way."""
    under_way = _under_way(this.tick.round_no)
    for start, position in _positions(rows["word"], np.uint32(STATE_MASK), np.uint32(State.PREPARED)):
        pending = rows[start : start + CHUNK_ROWS].take(position)  # whole rows at once: faster than field by field
        words, stored_at_s = np.ascontiguousarray(pending["word"]), pending["stored_at_s"].astype(np.int64)
        slot = _slots(pending["group_no"], len(this.live) - 1)
        if this.found is not None and (asked := (words & _UNDER_WAY_MASK) == under_way).any():
            this.found += np.bincount(slot[asked], minlength=len(this.found))
        code = _decide_unbounded(words, stored_at_s, this.live.take(slot), this)
        _bound(code, slot, this)
        yield position + start, code


def _slots(groups: npt.NDArray[np.int32], group_count: int) -> npt.NDArray[np.uint32]:
    """Group numbers with everything out of range, negative too (huge when read unsigned), mapped to group_count."""
    return np.minimum(groups.view(np.uint32), np.uint32(group_count))


def _decide_unbounded(words: Array, stored_at_s: Ints, is_live: Bools, this: _Round) -> npt.NDArray[np.uint8]:
    """Rules 2 to 7 without the bound, later rules first: each one overrules those above it."""
    policy, tick = this.policy, this.tick
    count = check_count_of(words)
    distance = (np.uint32(tick.round_no & ASK_ROUND_MASK) - ask_round_of(words)) & np.uint32(ASK_ROUND_MASK)
    asked_before = words >= np.uint32(OUTSTANDING_BIT)
    asked_before |= count > 0
    age_s = tick.now_s - stored_at_s

    code = is_live + np.uint8(_HOLD)  # rules 6, 7: HOLD + 1 = CHECK
    waits = age_s <= effective_immunities_s(immunity_of(words), policy)  # rule 5
    waits |= stored_at_s >= tick.round_start_s  # rule 4
    waits |= asked_before & (distance == 0)  # at most once a round
    code *= ~waits  # WAIT = 0
    if not policy.checks_enabled:
        code[:] = Decision.WAIT
    may_discard = ~(asked_before & (distance < 2)) & np.bool_(tick.discards_allowed)
    _overrule(code, age_s - tick.leapt_s > policy.retention_s, may_discard, Decision.DISCARD_EXPIRED)  # rule 3
    if policy.checks_enabled:
        _overrule(code, count >= np.uint32(policy.check_count_max), may_discard, Decision.DISCARD_MAX)  # rule 2
    return code


def _overrule(code: npt.NDArray[np.uint8], where: Bools, may_discard: Bools, discard: Decision) -> None:
    """Rows `where` a discard is due get it, or wait until it may be made; never anything else."""
    if where.any():
        code[where] = may_discard[where] * np.uint8(discard)  # WAIT = 0


def _bound(code: npt.NDArray[np.uint8], slot: npt.NDArray[np.uint32], this: _Round) -> None:
    """Turn CHECK into WAIT where the group has no room left, and count the rest as outstanding.

    A group gets into the middle branch (some rows admitted, some not) once a round at most, so sorting is rare.
    """
    is_check = code == _CHECK
    groups = slot if is_check.all() else slot[is_check]
    if not len(groups):
        return
    room = np.maximum(this.policy.outstanding_per_group_max - this.outstanding, 0)
    wanted = np.bincount(groups, minlength=len(room))
    over = wanted > room
    if over.any():
        refused = over.take(groups)
        partly = np.flatnonzero((over & (room > 0)).take(groups))
        refused[partly] = _rank_in_group(groups[partly]) >= room[groups[partly]]
        code[np.flatnonzero(is_check)[refused]] = Decision.WAIT
    this.outstanding += np.minimum(wanted, room)


def _make_room(decided: Decisions, rows: Array, this: _Round, found: Ints) -> Decisions:
    """Count what was found outstanding against the bound, now that all of it is known: the last checks become WAIT.

    Doing this afterwards saves a pass over the table; usually there is room for all of them.
    """
    this.outstanding += found
    if (this.outstanding <= this.policy.outstanding_per_group_max).all():
        return decided
    checks = np.flatnonzero(decided.decision == _CHECK)
    slot = _slots(rows["group_no"][decided.index[checks]], len(found) - 1)
    room = np.maximum(this.policy.outstanding_per_group_max - found, 0)
    refused = checks[_rank_in_group(slot) >= room[slot]]
    decided.counts[_CHECK] -= len(refused)
    decided.counts[Decision.WAIT] += len(refused)
    this.outstanding -= np.bincount(slot[np.searchsorted(checks, refused)], minlength=len(found))
    return replace(decided, index=np.delete(decided.index, refused), decision=np.delete(decided.decision, refused))


def _rank_in_group(groups: npt.NDArray[np.uint32]) -> Ints:
    """For each element, how many earlier elements are of the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered, side="left")
    return rank
