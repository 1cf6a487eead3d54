"""Ends that were not taken: the opposite of what a transaction had become (conflict), or refused.

The newest KEPT_MAX are held in memory and written to the audit (`action` conflict or refused, `ids` the transaction, `filter`
what was said), so they are there after a restart. Both are bounded: a group has DETAILED_MAX records a minute, and one more that
counts the rest; a transaction shows its newest OF_ONE_MAX. What operators said is kept apart from what producers said.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from ingest.errors import EdgeError
from ingest.operating.auditing import Auditor
from store.errors import StoreError
from store.tables.journals.audit import AuditRecord

KEPT_MAX: Final = 10_000
OF_ONE_MAX: Final = 16
DETAILED_MAX: Final = 20
REMARK_MAX: Final = 500
#: What the audit calls them.
ACTIONS: Final = {"conflict": "conflict", "refused": "refused end"}
_VERDICTS: Final = {action: verdict for verdict, action in ACTIONS.items()}
CONTRADICTED: Final = frozenset(ACTIONS)
OPERATOR: Final = "operator"
WRITE_S: Final = 1
LOG: Final = logging.getLogger("escrow.edge")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Somebody said something about a transaction that was not taken. `by`: producer, check or operator; `who`: the
    operator, or the producer group; `said`: commit or rollback; `state`: what the transaction was."""

    at_ms: int
    id: str
    half_offset: int
    group: str
    verdict: str
    by: str
    who: str
    said: str
    state: str
    remark: str

    def record(self) -> AuditRecord:
        said = {"group": self.group, "by": self.by, "said": self.said, "state": self.state}
        target = f"{self.said} of a transaction that is {self.state.lower()}"
        return AuditRecord(
            self.at_ms, self.who, ACTIONS[self.verdict], target, self.remark, "done", [self.id], said, 1, {self.verdict: 1}
        )


class Contradictions:
    """Lives in the event loop."""

    def __init__(self, auditor: Auditor, half_offset_of: Callable[[str], int | None], now_ms: Callable[[], int]) -> None:
        self._auditor, self._half_offset_of, self._now_ms = auditor, half_offset_of, now_ms
        self._kept: deque[Contradiction] = deque(maxlen=KEPT_MAX)
        self._unwritten: list[Contradiction] = []
        self._detailed: Counter[tuple[str, str]] = Counter()
        self._rest: Counter[tuple[str, str, str]] = Counter()
        #: Conflicts that producers caused since the edge started, by group.
        self.by_group: Counter[str] = Counter()

    async def recover(self) -> None:
        """What the audit tells of earlier ones."""
        records = await self._auditor.last_of(tuple(_VERDICTS), KEPT_MAX)
        earlier = [found for record in records if (found := self._read(record)) is not None]
        self._kept.extendleft(reversed(earlier))

    def _read(self, record: AuditRecord) -> Contradiction | None:
        said: dict[str, Any] = record.filter or {}
        half_offset = self._half_offset_of(record.ids[0]) if record.ids else None
        if half_offset is None or not {"group", "by", "said", "state"} <= said.keys():
            return None
        return Contradiction(
            record.at_ms, record.ids[0], half_offset, said["group"], _VERDICTS[record.action], said["by"], record.actor,
            said["said"], said["state"], record.reason,
        )  # fmt: skip

    def note(self, found: Contradiction) -> None:
        self._kept.append(found)
        if found.verdict == "conflict" and found.by != OPERATOR:
            self.by_group[found.group] += 1
        self._detailed[found.group, found.by] += 1
        if self._detailed[found.group, found.by] <= DETAILED_MAX:
            self._unwritten.append(found)
        else:
            self._rest[found.group, found.by, found.verdict] += 1

    async def run(self) -> None:
        """Recover, then write what comes: each WRITE_S the records, each minute how many more there were."""
        await self.recover()
        for turn in count(1):
            await asyncio.sleep(WRITE_S)
            try:
                await self.write(minute_over=not turn % (60 // WRITE_S))
            except (StoreError, EdgeError) as error:
                LOG.warning("conflicts could not be written to the audit: %s", error)

    async def write(self, *, minute_over: bool) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for each in unwritten:
            await self._auditor.write(each.record())
        if minute_over:
            self._detailed.clear()
            rest, self._rest = self._rest, Counter()
            for (group, by, verdict), number in rest.items():
                text, counts = f"{number:,} more of group {group}, by {by}: counted", {verdict: number}
                await self._auditor.write(AuditRecord(self._now_ms(), group, ACTIONS[verdict], text, "", "done", counts=counts))

    async def close(self) -> None:
        with suppress(StoreError, EdgeError):
            await self.write(minute_over=True)

    # --- questions ------------------------------------------------------------------------------------------------------------
    def of(self, half_offset: int) -> list[Contradiction]:
        """Of one transaction, in the order in which they came."""
        return [each for each in self._kept if each.half_offset == half_offset][-OF_ONE_MAX:]

    def page(
        self, limit: int, *, group: str | None = None, by: str | None = None, before_ms: int | None = None
    ) -> list[Contradiction]:
        """The newest first."""
        wanted = (
            each
            for each in reversed(self._kept)
            if (group is None or each.group == group)
            and (by is None or (each.by == OPERATOR) == (by == OPERATOR))
            and (before_ms is None or each.at_ms < before_ms)
        )
        return [each for each, _ in zip(wanted, range(limit), strict=False)]

    def since(self, at_ms: int) -> Iterable[Contradiction]:
        """Conflicts by producers, the newest first."""
        for each in reversed(self._kept):
            if each.at_ms < at_ms:
                return
            if each.by != OPERATOR and each.verdict == "conflict":
                yield each
