"""What operators do: check now, commit, roll back, resume; one transaction, many, or all that a filter finds.

An action, in this order:
    1  find the transactions: ids, or what the filter finds now. More than the operator expects: nothing is done
    2  a dry run ends here, with what would happen and to whom
    3  write the intent to the audit log and flush it
    4  do it, in pieces of PIECE, so that producers never wait long behind an operator
    5  write the outcome to the audit log

Commit and rollback are ends like any other, said by the operator: the first in log order wins. A discarded half is
resumed first, in the same batch. Only the edge acts; the job reads of it in the op log.

A check request is `accepted` when a member of the group is online and is asked next, and `queued` when none is.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from ingest.checks.delivery import CheckDelivery, nobody_online
from ingest.committing.appender import BATCH_BYTES, END_BYTES, REMARK_BYTES
from ingest.committing.committer import Committer
from ingest.errors import BadId, InvalidRequest, MatchedMore, TooLarge
from ingest.ids import Sealer
from ingest.operating.auditing import Auditor
from ingest.operating.contradictions import CONTRADICTED, OPERATOR, Contradiction, Contradictions
from ingest.operating.listings import IN_DOUBT, Listings, Query
from store.edge.store import EdgeStore, End
from store.records import OpKind, State, Via
from store.tables.ends import Verdict, judge
from store.tables.journals.audit import IDS_MAX, AuditRecord

ACTIONS: Final = ("check", "commit", "rollback", "resume")
KIND_OF: Final = {"commit": OpKind.COMMIT, "rollback": OpKind.ROLLBACK, "resume": OpKind.RESUME}
RESULTS: Final = ("accepted", "queued", "already", "conflict", "refused")
PIECE: Final = 256
#: Results that are told one by one; the rest is counted.
RESULTS_MAX: Final = 1000
#: Different reasons, and groups, that are told with their counts; the rest is summed up.
REASONS_MAX: Final = 50
_DISCARDED: Final = (State.DISCARDED_MAX, State.DISCARDED_EXPIRED)


@dataclass(frozen=True, slots=True)
class Action:
    """What an operator wants. Either ids or a filter."""

    action: str
    who: str
    reason: str
    ids: Sequence[str] = ()
    filter: Query | None = None
    dry_run: bool = False
    expect: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    id: str
    result: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """What happened to how many, and why."""

    result: str
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class Affected:
    """A group that an action is about. `online`: members that can be asked."""

    group: str
    count: int
    online: int


@dataclass(frozen=True, slots=True)
class Preview:
    """Whom an action is about: groups, the largest first, and when the oldest and the newest half was stored."""

    groups: list[Affected]
    groups_more: int
    oldest_ms: int | None
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class Done:
    """What became of an action: all counted, the first RESULTS_MAX told. `audit_no` None: a dry run."""

    dry_run: bool
    matched: int
    results: list[Result]
    counts: dict[str, int]
    audit_no: int | None = None
    reasons: list[Reason] = field(default_factory=list)
    preview: Preview | None = None


@dataclass(slots=True)
class _Work:
    """An action under way."""

    action: Action
    targets: list[int]
    #: As they were given; what a filter found gets its ids when they are told.
    ids: dict[int, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note(self, result: Result) -> None:
        self.count(result.result, result.detail, 1)
        if len(self.results) < RESULTS_MAX:
            self.results.append(result)

    def count(self, result: str, detail: str, count: int) -> None:
        key = result, detail
        if key not in self.reasons and len(self.reasons) >= REASONS_MAX:
            key = result, "other reasons"
        self.reasons[key] += count
        self.counts[result] += count

    def counted(self) -> dict[str, int]:
        return {name: self.counts[name] for name in RESULTS}

    def by_reason(self) -> list[Reason]:
        return [Reason(result, detail, count) for (result, detail), count in self.reasons.most_common()]


class Operator:
    """Lives in the event loop."""

    def __init__(
        self,
        store: EdgeStore,
        committer: Committer,
        checks: CheckDelivery,
        on_resumed: Callable[[list[int]], None],
        *,
        listings: Listings,
        sealer: Sealer,
        auditor: Auditor,
        contradictions: Contradictions,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._committer, self._checks, self._on_resumed = store, committer, checks, on_resumed
        self._contradictions = contradictions
        self._listings, self._sealer, self._auditor, self._now_ms = listings, sealer, auditor, now_ms

    # --- actions ----------------------------------------------------------------------------------------------------------------
    async def act(self, action: Action, ids_max: int) -> Done:
        """Steps 1 to 5."""
        self._check(action, ids_max)
        work = await self._begin(action)  # 1
        matched = len(work.targets) + len(work.results)
        if action.dry_run:  # 2
            preview = await self._foresee(work)
            return Done(True, matched, work.results, work.counted(), None, work.by_reason(), preview)
        first = list(action.ids) or await self._listings.ids(work.targets[:IDS_MAX])
        intent = self._record(action, matched, first)
        number = await self._auditor.write(intent)  # 3
        result = "failed"
        try:
            await self._do(work)  # 4
            result = "done"
        finally:
            await self._auditor.outcome(intent, number, result, work.counted())  # 5
        return Done(False, matched, work.results, work.counted(), number, work.by_reason())

    @staticmethod
    def _check(action: Action, ids_max: int) -> None:
        if bool(action.ids) == (action.filter is not None):
            raise InvalidRequest("ids: name the transactions, or give a filter; one of the two")
        if len(action.ids) > ids_max:
            raise TooLarge(f"ids: {len(action.ids)} in one request; at most {ids_max} (maxMessagesPerRequest) are taken")
        if action.filter is not None and action.filter.state not in IN_DOUBT:
            raise InvalidRequest(f"filter.state: actions are for {' or '.join(IN_DOUBT)} transactions", "filter.state")
        if action.filter is not None and action.expect is None and not action.dry_run:
            raise InvalidRequest("expect: is missing; make a dry run first and send the number that it matched", "expect")

    async def _begin(self, action: Action) -> _Work:
        if action.filter is None:
            return self._opened(action)
        targets = (await self._listings.every(action.filter)).tolist()
        if action.expect is not None and len(targets) > action.expect:
            raise MatchedMore(
                f"expect: the filter matches {len(targets)} now, {action.expect} were expected: make a dry run and look again"
            )
        return _Work(action, targets)

    def _opened(self, action: Action) -> _Work:
        work = _Work(action, [])
        texts = list(dict.fromkeys(action.ids))
        for text, place in zip(texts, self._sealer.open_all(texts), strict=True):
            if isinstance(place, BadId):
                work.note(Result(text, "refused", f"unknown id: {place}"))
            else:
                work.ids[place.half_offset] = text
        work.targets = list(work.ids)
        return work

    async def _foresee(self, work: _Work) -> Preview:
        """What would be answered, as things stand, and whom it is about. What a filter finds is all in one state: beyond
        the first that is not looked up for each, only the group decides."""
        group_nos, stored_ms = await self._listings.groups_and_times(work.targets)
        by_filter = work.action.filter is not None
        looked_at = len(work.targets[:RESULTS_MAX] if by_filter else work.targets)
        for first in range(0, looked_at, PIECE):
            piece = work.targets[first : min(first + PIECE, looked_at)]
            shown = await self._shown(work, piece)
            for at, (id, half_offset) in enumerate(zip(shown, piece, strict=True), first):
                work.note(Result(id, *self._foreseen(work.action.action, half_offset, int(group_nos[at]))))
        for group_no, (at, count) in _by_group(group_nos[looked_at:]).items():
            work.count(*self._foreseen(work.action.action, work.targets[looked_at + at], group_no), count)
        return self._preview(group_nos, stored_ms)

    def _preview(self, group_nos: npt.NDArray[np.integer], stored_ms: npt.NDArray[np.int64]) -> Preview:
        counts = Counter({self._group(number): count for number, (_, count) in _by_group(group_nos).items()})
        groups = [Affected(group, count, len(self._checks.members(group))) for group, count in counts.most_common(REASONS_MAX)]
        oldest, newest = (int(stored_ms.min()), int(stored_ms.max())) if len(stored_ms) else (None, None)
        return Preview(groups, max(0, len(counts) - REASONS_MAX), oldest, newest)

    def _group(self, group_no: int) -> str:
        names = self._store.dictionary.groups
        return names[group_no] if 0 <= group_no < len(names) else ""

    def foreseen(self, action: str, half_offset: int) -> tuple[str, str]:
        """What a commit or rollback of this half would be answered now."""
        return self._foreseen(action, half_offset, -1)

    def _foreseen(self, action: str, half_offset: int, group_no: int) -> tuple[str, str]:
        ended = self._store.durable_end_of(half_offset)
        if action == "check":
            group = self._group(group_no)
            if ended:
                return "refused", f"it is {State(ended).name.lower()}"
            return ("accepted", "") if self._checks.members(group) else ("queued", nobody_online(group))
        if ended in _DISCARDED and action != "resume":
            return "accepted", "it is discarded: resumed first"
        answer = judge(KIND_OF[action], ended)
        return answer.verdict.value, answer.reason

    async def _shown(self, work: _Work, piece: list[int]) -> list[str]:
        """Ids, as long as they will be told."""
        if work.action.filter is None:
            return [work.ids[half_offset] for half_offset in piece]
        return await self._listings.ids(piece) if len(work.results) < RESULTS_MAX else [""] * len(piece)

    async def _do(self, work: _Work) -> None:
        action = work.action
        for piece in _pieces(work.targets, self._piece_size(action.reason)):
            shown = await self._shown(work, piece)
            if action.action == "check":
                answers = self._checks.ask_now(piece)
            else:
                answers = await self._committer.call(lambda piece=piece: self._end(action, piece))  # type: ignore[misc]
                await self._keep_contradictions(action, piece, answers)
            for id, (result, detail) in zip(shown, answers, strict=True):
                work.note(Result(id, result, detail))
            await asyncio.sleep(0)

    async def _keep_contradictions(self, action: Action, piece: list[int], answers: list[tuple[str, str]]) -> None:
        """An operator said the opposite of what a transaction had become: its history tells, the producers' alert does not."""
        refused = [(half, answer) for half, answer in zip(piece, answers, strict=True) if answer[0] in CONTRADICTED]
        if not refused:
            return
        halves = [half for half, _ in refused]
        ids, (group_nos, _) = await self._listings.ids(halves), await self._listings.groups_and_times(halves)
        for id, group_no, (half, (verdict, _)) in zip(ids, group_nos.tolist(), refused, strict=True):
            state = State(self._store.durable_end_of(half) or State.PREPARED).name
            self._contradictions.note(
                Contradiction(
                    self._now_ms(), id, half, self._group(group_no), verdict, OPERATOR, action.who, action.action, state,
                    action.reason,
                )
            )  # fmt: skip

    def _piece_size(self, reason: str) -> int:
        """Twice as many ops, each with the reason, must go into one batch of the log."""
        room = min(BATCH_BYTES, self._store.directory.geometry.commit_log_segment_bytes // 4)
        return max(1, min(PIECE, room // (2 * (END_BYTES + REMARK_BYTES * len(reason)))))

    def _end(self, action: Action, half_offsets: list[int]) -> list[tuple[str, str]]:
        """In the committer's thread, so that no op comes between a look at the end and ours, nor a proposal between a resume and
        the note of it."""
        kind, ends, last = KIND_OF[action.action], list[End](), list[int]()
        for half_offset in half_offsets:
            if kind != OpKind.RESUME and self._store.end_of(half_offset) in _DISCARDED:
                ends.append(End(half_offset, OpKind.RESUME, via=Via.OPERATOR, actor=action.who, remark=action.reason))
            last.append(len(ends))
            ends.append(End(half_offset, kind, via=Via.OPERATOR, actor=action.who, remark=action.reason))
        answers, ticket = self._store.append_ends(ends, self._now_ms())
        accepted = [each.verdict is Verdict.ACCEPTED for each in answers]
        resumed = [end.half_offset for end, yes in zip(ends, accepted, strict=True) if yes and end.kind == OpKind.RESUME]
        self._on_resumed(resumed)
        self._store.wait(ticket)
        self._committer.counters.count_operator([answers[at] for at in last])
        return [(answers[at].verdict.value, answers[at].reason) for at in last]

    # --- the audit log ----------------------------------------------------------------------------------------------------------
    def _record(self, action: Action, matched: int, ids: list[str]) -> AuditRecord:
        found = None if action.filter is None else action.filter.given()
        target = f"{matched} transaction{'' if matched == 1 else 's'}" + (" by a filter" if found is not None else "")
        return AuditRecord(self._now_ms(), action.who, action.action, target, action.reason, "begun", ids[:IDS_MAX], found, matched)


def _by_group(group_nos: npt.NDArray[np.integer]) -> dict[int, tuple[int, int]]:
    """(where its first is, how many) by group_no."""
    found = np.unique(group_nos, return_index=True, return_counts=True)
    return {group_no: (at, count) for group_no, at, count in zip(*(each.tolist() for each in found), strict=True)}


def _pieces(items: list[int], size: int) -> Iterator[list[int]]:
    return (items[at : at + size] for at in range(0, len(items), size))
