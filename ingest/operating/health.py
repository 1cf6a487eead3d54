"""One judgement of health, for the console's light and overview, `escrow top` and `escrow doctor`.

It consists of findings: each names what is wrong, how many, since when, why, and what to do. Nothing found means well. `bad` needs
somebody now, `warn` today. Findings are ranked: bad before warn, then by kind, then by count.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from ingest.operating.listings import UNANSWERED, UNKNOWN, Cause
from ingest.operating.parts_health import PART_RUNBOOKS, Part, Seen, parts_of
from ingest.recent import Recent

KEEP_S: Final = 2.0
#: Findings of one kind that are told one by one; the rest is summed up.
OF_A_KIND_MAX: Final = 10
#: Conflicts older than this are history.
CONFLICTS_MS: Final = 3_600_000
#: A half that was asked about so often without an answer is said to be unanswered.
UNANSWERED_ATTEMPTS: Final = 2
#: In this order they are shown, among those of a severity.
KINDS: Final = (
    "part", "retention", "nobody_online", "unanswered", "unknown_answers", "conflicts", "dead_letters", "discarded",
)  # fmt: skip

Level = Literal["good", "warn", "bad"]


class Finding(msgspec.Struct, frozen=True):
    """`subject`: the part, group or topic. `text`: what is wrong, `cause`: why, `remedy`: what to do. `since_ms`: since
    when, where that is known. `page`: where the console shows it; `runbook`: the alert's section in docs/operators.md;
    `command`: for a terminal."""

    kind: str
    severity: Literal["bad", "warn"]
    subject: str
    text: str
    cause: str = ""
    remedy: str = ""
    count: int = 0
    since_ms: int | None = None
    page: str = ""
    runbook: str = ""
    command: str = ""


class Judgement(msgspec.Struct, frozen=True):
    """`at_ms`: when it was made. `parts`: edge, job, check delivery, disk, clock."""

    level: Level
    at_ms: int
    findings: list[Finding]
    parts: list[Part]


class Health:
    """Lives in the event loop. Looking is shared, and takes a twentieth of the time at most."""

    def __init__(self, edge: Seen, topics: Callable[[], list[dict[str, Any]]]) -> None:
        self._edge, self._topics = edge, topics
        self._recent = Recent(self._look, time.perf_counter, KEEP_S)

    async def judge(self) -> Judgement:
        return await self._recent.get()

    async def _look(self) -> Judgement:
        parts = parts_of(self._edge)
        found = [
            *_parts(parts),
            *await self._doubts(),
            *self._conflicts(),
            *self._consumers(),
        ]
        ranked = _ranked(found)
        level: Level = "good" if not ranked else "bad" if any(each.severity == "bad" for each in ranked) else "warn"
        return Judgement(level, self._edge.now_ms(), ranked, parts)

    # --- halves in doubt --------------------------------------------------------------------------------------------------------
    async def _doubts(self) -> list[Finding]:
        edge = self._edge
        summary = await edge.listings.summary()
        names, overdue_ms = edge.store.dictionary.groups, edge.now_ms() - edge.settings.transaction_timeout_ms
        causes: dict[str, list[Cause]] = {}
        for each in await edge.listings.causes("pending"):
            causes.setdefault(each.group, []).append(each)
        found: list[Finding] = []
        for group_no in summary.pending.nonzero()[0].tolist():
            group, count, oldest_ms = names[group_no], int(summary.pending[group_no]), int(summary.oldest_ms[group_no])
            if oldest_ms and oldest_ms < overdue_ms:
                found += self._doubt(group, count, oldest_ms, causes.get(group, []))
        return found + [
            self._discarded(names[group_no], int(summary.discarded_of[group_no]))
            for group_no in summary.discarded_of.nonzero()[0].tolist()
        ]

    def _doubt(self, group: str, count: int, oldest_ms: int, causes: list[Cause]) -> Iterator[Finding]:
        if not self._edge.members(group):
            yield self._alone(group, count)
            return
        unknown = [each for each in causes if each.cause.startswith(UNKNOWN)]
        if unknown:
            remark, total = unknown[0].cause.removeprefix(UNKNOWN), sum(each.count for each in unknown)
            yield Finding(
                "unknown_answers", "warn", group, f"{total:,} in doubt, its producer answers UNKNOWN",
                f"last remark: {remark}" if remark else "it gives no remark: ask its owners",
                "ask its owners what became of the local transactions, then commit or roll back",
                total, min(each.oldest_ms for each in unknown),
                f"group/{quoted(group)}", "EscrowOldestInDoubt", f"escrow tx list --group {group}",
            )  # fmt: skip
        silent = [each for each in causes if each.cause == UNANSWERED and each.attempts_max >= UNANSWERED_ATTEMPTS]
        if silent:
            total = sum(each.count for each in silent)
            yield Finding(
                "unanswered", "warn", group, f"{total:,} in doubt, asked {silent[0].attempts_max} times and not answered",
                "its check listener hangs or fails: its log has the reason", "restart the producer, or mend its listener",
                total, min(each.oldest_ms for each in silent),
                f"group/{quoted(group)}", "EscrowOldestInDoubt", f"escrow tx list --group {group}",
            )  # fmt: skip

    def _alone(self, group: str, count: int) -> Finding:
        seen_ms = self._edge.last_seen_ms(group)
        cause = "no process of this group asks for check requests, so nobody can say how these ended"
        if seen_ms is None:
            cause += "; none has since the edge started"
        return Finding(
            "nobody_online", "bad", group, f"{count:,} in doubt, nobody online", cause,
            "start a process of the group; if it is gone for good, commit or roll back by hand",
            count, seen_ms if seen_ms is not None else self._edge.started_at_ms,
            f"group/{quoted(group)}", "EscrowGroupWithoutMember", "escrow groups --alone",
        )  # fmt: skip

    @staticmethod
    def _discarded(group: str, count: int) -> Finding:
        return Finding(
            "discarded", "warn", group, f"{count:,} discarded, waiting for a decision",
            "asked too often without an answer, or older than fileReservedTime",
            "ask its owners, then commit, roll back or resume", count, None,
            f"discarded?group={quoted(group)}", "EscrowDiscards", f"escrow tx list --state discarded --group {group}",
        )  # fmt: skip

    # --- conflicts and consumers ------------------------------------------------------------------------------------------------
    def _conflicts(self) -> Iterator[Finding]:
        counts: Counter[str] = Counter()
        newest: dict[str, Any] = {}
        for each in self._edge.contradictions.since(self._edge.now_ms() - CONFLICTS_MS):
            counts[each.group] += 1
            newest.setdefault(each.group, each)
        for group, count in counts.items():
            last = newest[group]
            said = f"it said {last.said} of a transaction that was {last.state.lower()}"
            yield Finding(
                "conflicts", "warn", group, f"{_plural(count, 'contradicting end')} within the last hour",
                f"{said}{f': {last.remark}' if last.remark else ''}",
                "the first outcome stands; find the process that decides twice, or guesses", count, last.at_ms,
                f"conflicts?group={quoted(group)}", "EscrowConflicts", f"escrow tx conflicts --group {group}",
            )  # fmt: skip

    def _consumers(self) -> Iterator[Finding]:
        dead: dict[str, int] = {}
        for topic in self._topics():
            for reader in topic["consumers"]:
                dead[reader["group"]] = reader["dead_letters"]
                if reader["deleted_unread"]:
                    yield self._outrun(topic["topic"], reader)
        for group, count in dead.items():
            if count:
                yield Finding(
                    "dead_letters", "warn", group, _plural(count, "dead letter"),
                    "handed out maxDeliveries times and never acknowledged: its handler fails or hangs",
                    "mend the consumer, then replay them", count, None,
                    f"dead-letters/{quoted(group)}", "EscrowDeadLetters", f"escrow dead-letters list {group}",
                )  # fmt: skip

    @staticmethod
    def _outrun(topic: str, reader: dict[str, Any]) -> Finding:
        count = reader["deleted_unread"]
        return Finding(
            "retention", "bad", reader["group"], f"{_plural(count, 'message')} of {topic} deleted before it read them",
            "the group is slower than fileReservedTime allows", "start its consumers; raise fileReservedTime", count, None,
            f"topic/{quoted(topic)}", "EscrowConsumerLag", "escrow topics",
        )  # fmt: skip


def _parts(parts: list[Part]) -> Iterator[Finding]:
    for part in parts:
        if not part.healthy:
            runbook, command = PART_RUNBOOKS[part.part]
            yield Finding(
                "part", "bad", part.part, part.text, part.detail, part.remedy, 1, part.since_ms, "overview", runbook, command
            )


def _ranked(found: list[Finding]) -> list[Finding]:
    """Bad ones first; of one kind the largest ones, and how many more there are."""
    ranked: list[Finding] = []
    for severity in ("bad", "warn"):
        for kind in KINDS:
            same = sorted((each for each in found if (each.severity, each.kind) == (severity, kind)), key=lambda each: -each.count)
            ranked += same[:OF_A_KIND_MAX]
            rest = same[OF_A_KIND_MAX:]
            if rest:
                ranked.append(_rest(rest))
    return ranked


def _rest(rest: list[Finding]) -> Finding:
    total, first = sum(each.count for each in rest), rest[0]
    text = f"{len(rest):,} more like this, {total:,} in all"
    page = {"nobody_online": "groups?online=no", "discarded": "discarded", "dead_letters": "dead-letters"}.get(first.kind, "groups")
    return msgspec.structs.replace(
        first, subject=f"{len(rest):,} more groups", text=text, count=total, since_ms=None, page=page, cause="", remedy=""
    )


def quoted(name: str) -> str:
    """A name in an address of the console."""
    return quote(name, safe="")


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
