"""Writes the audit: what operators and consumers changed, who logged in, who was denied, which tokens came and went.

It fails closed: what cannot be written down is not done (503, with the reason). Denials are the exception, since nothing is done:
they are counted and written once a minute, one record for each caller with a count for each operation.

The audit is never shortened, so nobody may fill the disk with it. Of one kind of action of one caller
the first DETAILED actions of a minute, each with another target, have records of their own; all others are summed up in one more:
its intent is durable before the first of them is done, its outcome has the counts and follows at the end of the minute. An intent
without an outcome tells that there were some, and that the edge died before it could count them.
Every minute in which something was written the head of the chain goes into the commit log as an anchor
(`store.tables.journals.audit`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ingest.auth.access import Token
from ingest.errors import EdgeError, QuotaExceeded
from ingest.threads import Threads
from store.errors import StoreError
from store.tables.journals.audit import Audit, AuditRecord, Head

ROUND_S: Final = 60.0
#: Actions of one caller a minute, operators excepted: the audit is never shortened.
ACTIONS_PER_MINUTE: Final = 120
#: Callers and operations of denials that are told apart in one minute; the rest is summed up.
DENIALS_MAX: Final = 256
#: Actions of one kind and caller that have records of their own, a minute.
DETAILED: Final = 4
#: Records that are looked through for the newest of an action.
LOOK_BACK: Final = 20_000
SUMMED: Final = "repeated, or more targets: counted"
_REST: Final = "others"
_SEVERAL: Final = "several operations"
LOG: Final = logging.getLogger("escrow.edge")


@dataclass(frozen=True, slots=True)
class Audited:
    """An action and its result. `result` begun and `counts` null: the edge died before it was done. `ids`: the first 100."""

    no: int
    at_ms: int
    who: str
    action: str
    target: str
    reason: str
    filter: dict[str, Any] | None
    ids: list[str]
    matched: int
    counts: dict[str, int] | None
    result: str


@dataclass(slots=True)
class _Denied:
    """Of one caller, in a minute."""

    reason: str
    operations: Counter[str] = field(default_factory=Counter)

    def record(self, now_ms: int, who: str) -> AuditRecord:
        (first, *others), total = self.operations, self.operations.total()
        counts = {"denied": total, **(self.operations if others else {})}
        return AuditRecord(now_ms, who, "denied", _SEVERAL if others else first, self.reason, "done", counts=counts)


@dataclass(slots=True)
class _Kind:
    """One kind of action of one caller, in a minute: the targets that have records, and the sum of the rest once it has begun."""

    targets: set[str] = field(default_factory=set)
    intent: AuditRecord | None = None
    number: int = -1
    counts: Counter[str] = field(default_factory=Counter)
    running: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class Auditor:
    """For one event loop; its thread alone touches the file."""

    def __init__(self, path: Path, now_ms: Callable[[], int], anchor: Callable[[Head], Awaitable[object]]) -> None:
        self._audit, self._now_ms, self._anchor = Audit(path, writable=True), now_ms, anchor
        self._threads = Threads("audit", 1)
        self._denied: dict[str, _Denied] = {}
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._acted: Counter[str] = Counter()
        self._anchored = 0
        self._reading: asyncio.Task[None] | None = None

    # --- writing ----------------------------------------------------------------------------------------------------------------
    async def write(self, record: AuditRecord) -> int:
        """Its number, once it is durable."""
        return await self._threads.call(self._audit.append, record)

    async def note(self, who: str, action: str, target: str) -> None:
        await self.write(AuditRecord(self._now_ms(), who, action, target, "", "done"))

    @asynccontextmanager
    async def action(self, who: str, action: str, target: str) -> AsyncIterator[None]:
        """Around an action that has no reason of its own: the intent before it, the outcome after it."""
        kind = self._kinds.setdefault((who, action), _Kind())
        self._acted[who] += 1
        if self._acted[who] > ACTIONS_PER_MINUTE:
            kind.counts["refused"] += 1
            text = f"{action}: {who} has done {ACTIONS_PER_MINUTE} audited actions within a minute; wait a minute"
            raise QuotaExceeded(text, ROUND_S)
        is_detailed = target not in kind.targets and len(kind.targets) < DETAILED
        if is_detailed:
            kind.targets.add(target)
        async with self._detailed(who, action, target) if is_detailed else self._summed(kind, who, action):
            yield

    @asynccontextmanager
    async def _detailed(self, who: str, action: str, target: str) -> AsyncIterator[None]:
        intent = AuditRecord(self._now_ms(), who, action, target, "", "begun")
        number, result = await self.write(intent), "failed"
        try:
            yield
            result = "done"
        finally:
            await self.outcome(intent, number, result)

    @asynccontextmanager
    async def _summed(self, kind: _Kind, who: str, action: str) -> AsyncIterator[None]:
        kind.running += 1  # its outcome is written when all are through
        result = "failed"
        try:
            async with kind.opening:
                if kind.intent is None:
                    intent = AuditRecord(self._now_ms(), who, action, SUMMED, "", "begun")
                    kind.number = await self.write(intent)
                    kind.intent = intent
            yield
            result = "done"
        finally:
            kind.running -= 1
            if kind.intent is not None:
                kind.counts[result] += 1

    async def outcome(self, intent: AuditRecord, number: int, result: str, counts: dict[str, int] | None = None) -> None:
        """What became of the intent with this number; written even if the caller is cancelled."""
        outcome = replace(intent, at_ms=self._now_ms(), ids=[], result=result, counts=counts, about=number)
        await asyncio.shield(self.write(outcome))

    def denied(self, who: str, operation: str, reason: str) -> None:
        """Count a denial; the next round writes it, with the first reason."""
        key = who if who in self._denied or len(self._denied) < DENIALS_MAX else _REST
        self._denied.setdefault(key, _Denied(reason)).operations[operation] += 1

    def tokens_read(self, tokens: Iterable[Token]) -> None:
        """The same, from where nothing can be awaited."""
        self._reading = asyncio.get_running_loop().create_task(self._tokens_soon(list(tokens)))

    async def _tokens_soon(self, tokens: list[Token]) -> None:
        try:
            await self.tokens(tokens)
        except StoreError as error:
            LOG.warning("audit: a change of tokens could not be written: %s", error)

    async def tokens(self, tokens: Iterable[Token]) -> None:
        """Write down which tokens came, went or changed since the last time, also while no edge ran."""
        entries = {token.id: [token.principal.name, _digest(token)] for token in tokens}
        last = await self._threads.call(self._audit.last, "tokens")
        known = {} if last is None else last.tokens or {}
        changed = {
            "added": sorted(name for id, (name, _) in entries.items() if id not in known),
            "removed": sorted(name for id, (name, _) in known.items() if id not in entries),
            "changed": sorted(name for id, (name, digest) in entries.items() if id in known and known[id][1] != digest),
        }
        if any(changed.values()):
            target = "; ".join(f"{what} {', '.join(names)}" for what, names in changed.items() if names)
            await self.write(AuditRecord(self._now_ms(), "tokens file", "tokens", target, "", "done", tokens=entries))

    # --- reading ----------------------------------------------------------------------------------------------------------------
    async def audited(self, limit: int, before: int | None) -> tuple[list[Audited], int | None]:
        """Actions, the newest first, and the number to go on before."""
        return await self._threads.call(self._audited, limit, before)

    async def last_of(self, actions: tuple[str, ...], most: int) -> list[AuditRecord]:
        """The newest records of these actions, in their order; no further back than LOOK_BACK records."""
        return await self._threads.call(self._last_of, actions, most)

    def _last_of(self, actions: tuple[str, ...], most: int) -> list[AuditRecord]:
        found: deque[AuditRecord] = deque(maxlen=most)
        for number in range(max(0, len(self._audit) - LOOK_BACK), len(self._audit)):
            if (record := self._audit[number]).action in actions:
                found.append(record)
        return list(found)

    def _audited(self, limit: int, before: int | None) -> tuple[list[Audited], int | None]:
        number = len(self._audit) if before is None else min(before, len(self._audit))
        found: list[Audited] = []
        while number > 0 and len(found) < limit:
            number -= 1
            record = self._audit[number]
            if record.about is None:
                found.append(_audited(number, record, self._audit.outcome_of(number)))
        return found, number if number > 0 else None

    # --- every minute ------------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.round()
            except (StoreError, EdgeError) as error:
                LOG.warning("audit: %s", error)

    async def round(self) -> None:
        """Write the denials and the sums, then the anchor; a new minute begins."""
        self._acted.clear()
        await self._write_denials()
        await self._write_sums()
        head = self._audit.head
        if head.records != self._anchored:
            await self._anchor(head)
            self._anchored = head.records

    async def _write_denials(self) -> None:
        while self._denied:
            who, denied = self._denied.popitem()
            await self.write(denied.record(self._now_ms(), who))

    async def _write_sums(self) -> None:
        """Those whose actions are all through; the others go on into the next minute."""
        for key in [key for key, kind in self._kinds.items() if not kind.running]:
            kind = self._kinds.pop(key)
            if kind.intent is not None:
                result = "done" if kind.counts["done"] else "failed"
                await self.outcome(kind.intent, kind.number, result, dict(kind.counts))

    async def close(self) -> None:
        """No anchor: the job may have stopped, and nothing would settle it. The next start makes one within a minute."""
        with contextlib.suppress(StoreError, EdgeError):
            await self._write_denials()
            await self._write_sums()
        await self._threads.call(self._audit.close)
        self._threads.close()


def _digest(token: Token) -> str:
    entry = json.dumps(token.entry, sort_keys=True, default=str)
    return hashlib.sha256(entry.encode()).hexdigest()[:16]


def _audited(number: int, record: AuditRecord, outcome: AuditRecord | None) -> Audited:
    last = record if outcome is None else outcome
    return Audited(
        number, record.at_ms, record.actor, record.action, record.target, record.reason, record.filter, record.ids,
        record.matched or 0, last.counts, last.result,
    )  # fmt: skip
