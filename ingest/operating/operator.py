"""What operators do: check now, commit, roll back, resume; one transaction, many, or all that a filter finds.

An action, in this order:
    1  whom it is about: ids, or what the filter finds now. More than the operator expects: nothing is done
    2  a dry run ends here
    3  the intent goes to the audit log and is flushed
    4  it is done, in pieces of PIECE, so that producers never wait long behind an operator
    5  the outcome goes to the audit log

Commit and rollback are ends like any other, said by the operator: the first in log order wins. A discarded half is resumed first,
in the same breath. Only the edge acts; the job reads of it in the op log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ingest.checks.delivery import CheckDelivery
from ingest.committing.appender import BATCH_BYTES, END_BYTES, REMARK_BYTES
from ingest.committing.committer import Committer
from ingest.errors import BadId, InvalidRequest, MatchedMore, TooLarge
from ingest.ids import Sealer
from ingest.operating.auditing import Auditor
from ingest.operating.listings import IN_DOUBT, Listings, Query
from store.edge.store import EdgeStore, End
from store.records import OpKind, State, Via
from store.tables.ends import Verdict, judge
from store.tables.journals.audit import IDS_MAX, AuditRecord

ACTIONS: Final = ("check", "commit", "rollback", "resume")
KIND_OF: Final = {"commit": OpKind.COMMIT, "rollback": OpKind.ROLLBACK, "resume": OpKind.RESUME}
RESULTS: Final = ("accepted", "already", "conflict", "refused")
PIECE: Final = 256
#: Results that are told one by one; the rest is counted.
RESULTS_MAX: Final = 1000
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
class Done:
    """What became of an action: all counted, the first RESULTS_MAX told. `audit_no` None: a dry run."""

    dry_run: bool
    matched: int
    results: list[Result]
    counts: dict[str, int]
    audit_no: int | None = None


@dataclass(slots=True)
class _Work:
    """An action under way."""

    action: Action
    targets: list[int]
    #: As they were given; what a filter found gets its ids when they are told.
    ids: dict[int, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def note(self, result: Result) -> None:
        self.counts[result.result] += 1
        if len(self.results) < RESULTS_MAX:
            self.results.append(result)

    def counted(self) -> dict[str, int]:
        return {name: self.counts[name] for name in RESULTS}


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
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._committer, self._checks, self._on_resumed = store, committer, checks, on_resumed
        self._listings, self._sealer, self._auditor, self._now_ms = listings, sealer, auditor, now_ms

    # --- actions ----------------------------------------------------------------------------------------------------------------
    async def act(self, action: Action, ids_max: int) -> Done:
        """Steps 1 to 5."""
        self._check(action, ids_max)
        work = await self._begin(action)  # 1
        matched = len(work.targets) + len(work.results)
        if action.dry_run:  # 2
            await self._foresee(work)
            return Done(True, matched, work.results, work.counted())
        first = list(action.ids) or await self._listings.ids(work.targets[:IDS_MAX])
        intent = self._record(action, matched, first)
        number = await self._auditor.write(intent)  # 3
        result = "failed"
        try:
            await self._do(work)  # 4
            result = "done"
        finally:
            await self._auditor.outcome(intent, number, result, work.counted())  # 5
        return Done(False, matched, work.results, work.counted(), number)

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

    async def _foresee(self, work: _Work) -> None:
        """What would be answered, as things stand. What a filter finds is all in one state: that is not looked up for each."""
        by_filter = work.action.filter is not None
        looked_at = work.targets[:RESULTS_MAX] if by_filter else work.targets
        for piece in _pieces(looked_at, PIECE):
            shown = await self._shown(work, piece)
            for id, half_offset in zip(shown, piece, strict=True):
                work.note(Result(id, *self._foreseen(work.action.action, half_offset)))
        rest = len(work.targets) - len(looked_at)
        if rest:
            work.counts[work.results[-1].result] += rest

    def _foreseen(self, action: str, half_offset: int) -> tuple[str, str]:
        ended = self._store.durable_end_of(half_offset)
        if action == "check":
            return ("refused", f"it is {State(ended).name.lower()}") if ended else ("accepted", "")
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
            for id, (result, detail) in zip(shown, answers, strict=True):
                work.note(Result(id, result, detail))
            await asyncio.sleep(0)

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
        self._committer.counters.count_answers([answers[at] for at in last])
        return [(answers[at].verdict.value, answers[at].reason) for at in last]

    # --- the audit log ----------------------------------------------------------------------------------------------------------
    def _record(self, action: Action, matched: int, ids: list[str]) -> AuditRecord:
        found = None if action.filter is None else action.filter.given()
        target = f"{matched} transaction{'' if matched == 1 else 's'}" + (" by a filter" if found is not None else "")
        return AuditRecord(self._now_ms(), action.who, action.action, target, action.reason, "begun", ids[:IDS_MAX], found, matched)


def _pieces(items: list[int], size: int) -> Iterator[list[int]]:
    return (items[at : at + size] for at in range(0, len(items), size))
