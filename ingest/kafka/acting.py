"""What an operator does by ids: commit, roll back, resume. The op records are the audit: they say who and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from ingest.errors import BadId, NotInKafkaMode
from ingest.kafka.ended.follower import OpFollower
from ingest.kafka.ending import Ending
from ingest.kafka.records.sealing import place_in
from ingest.operating.history import Transaction
from ingest.operating.operator import KIND_OF, RESULTS, Action, Done, Result
from store.records import OpKind, Via
from store.tables.ends import OPEN, Answer, Verdict, judge


class Acting:
    """`find`: what is known of a transaction; BadId of an id that is not ours."""

    def __init__(self, ending: Ending, follower: OpFollower, find: Callable[[str], Awaitable[Transaction]]) -> None:
        self._ending, self._follower, self._find = ending, follower, find

    def require_possible(self, action: Action) -> None:
        if action.filter is not None or action.action not in KIND_OF:
            what = "a filter" if action.filter else "this"
            raise NotInKafkaMode(f"{action.action}: {what} needs the embedded store: name ids")

    async def act(self, action: Action) -> Done:
        """Each op bears `escrow-via: operator`."""
        remark = f"{action.who}: {action.reason}"
        results, counts = list[Result](), Counter[str]()
        for id in action.ids:
            answer = await self._act_on(id, KIND_OF[action.action], remark, dry_run=action.dry_run)
            counts[answer.verdict.value] += 1
            results.append(Result(id, answer.verdict.value, answer.reason))
        return Done(action.dry_run, len(action.ids), results, {name: counts[name] for name in RESULTS})

    async def _act_on(self, id: str, kind: OpKind, remark: str, *, dry_run: bool) -> Answer:
        """An operator need not name the group: the half does. A discarded half is resumed first."""
        try:
            found = await self._find(id)
        except BadId as error:
            return Answer(Verdict.REFUSED, str(error))
        if found.state == "GONE":
            return Answer(Verdict.REFUSED, "gone")
        place, answer = place_in(id), Answer(Verdict.REFUSED)
        resumed = kind is not OpKind.RESUME and found.state.startswith("DISCARDED")
        if dry_run:
            return judge(kind, OPEN if resumed else self._follower.end_of(place))
        for each in (OpKind.RESUME, kind) if resumed else (kind,):
            [answer] = await self._ending.say([self._ending.op(place, each, None, via=Via.OPERATOR, remark=remark)])
        return answer
