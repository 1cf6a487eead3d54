"""Writes the audit: what operators and consumers changed, who logged in, who was denied, which tokens came and went.

It fails closed: what cannot be written down is not done (503, with the reason). Denials are the exception, since nothing is done:
they are counted and written once a minute, one record for each caller and operation, so that nobody can fill the disk by asking.
Every minute in which something was written the head of the chain goes into the commit log as an anchor (`store.audit`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ingest.access import Token
from ingest.errors import EdgeError, QuotaExceeded
from ingest.threads import Threads
from store.audit import Audit, AuditRecord, Head
from store.errors import StoreError

ROUND_S: Final = 60.0
#: Actions of one caller a minute, operators excepted: the audit is never shortened.
ACTIONS_PER_MINUTE: Final = 120
#: Callers and operations of denials that are told apart in one minute; the rest is summed up.
DENIALS_MAX: Final = 256
_REST: Final = ("others", "several operations")
LOG: Final = logging.getLogger("escrow.edge")


@dataclass(frozen=True, slots=True)
class Audited:
    """An action, and what became of it. `result` begun: the edge died before it was through."""

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
    reason: str
    count: int = 0


class Auditor:
    """For one event loop; its thread alone touches the file."""

    def __init__(self, path: Path, now_ms: Callable[[], int], anchor: Callable[[Head], Awaitable[object]]) -> None:
        self._audit, self._now_ms, self._anchor = Audit(path, writable=True), now_ms, anchor
        self._threads = Threads("audit", 1)
        self._denied: dict[tuple[str, str], _Denied] = {}
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
        self._acted[who] += 1
        if self._acted[who] > ACTIONS_PER_MINUTE:
            text = f"{action}: {who} has done {ACTIONS_PER_MINUTE} audited actions within a minute; wait a minute"
            raise QuotaExceeded(text, ROUND_S)
        intent = AuditRecord(self._now_ms(), who, action, target, "", "begun")
        number, result = await self.write(intent), "failed"
        try:
            yield
            result = "done"
        finally:
            await self.outcome(intent, number, result)

    async def outcome(self, intent: AuditRecord, number: int, result: str, counts: dict[str, int] | None = None) -> None:
        """What became of the intent with this number; written even if the caller is cancelled."""
        outcome = replace(intent, at_ms=self._now_ms(), ids=[], result=result, counts=counts, about=number)
        await asyncio.shield(self.write(outcome))

    def denied(self, who: str, operation: str, reason: str) -> None:
        """Count a denial; the next round writes it, with the first reason."""
        key = who, operation
        if key not in self._denied and len(self._denied) >= DENIALS_MAX:
            key = _REST
        self._denied.setdefault(key, _Denied(reason)).count += 1

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
            self._acted.clear()
            try:
                await self.round()
            except (StoreError, EdgeError) as error:
                LOG.warning("audit: %s", error)

    async def round(self) -> None:
        """Write the denials, then the anchor."""
        await self._write_denials()
        head = self._audit.head
        if head.records != self._anchored:
            await self._anchor(head)
            self._anchored = head.records

    async def _write_denials(self) -> None:
        while self._denied:
            (who, operation), denied = self._denied.popitem()
            counts = {"denied": denied.count}
            await self.write(AuditRecord(self._now_ms(), who, "denied", operation, denied.reason, "done", counts=counts))

    async def close(self) -> None:
        """No anchor: the job may have stopped, and nothing would settle it. The next start makes one within a minute."""
        with contextlib.suppress(StoreError, EdgeError):
            await self._write_denials()
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
