"""What an operator sees first: how much is in doubt, how fast things go, what is wrong; and who is there, by group and by topic.

Rates are sampled here, so that a page that is opened has the last ten minutes at once. `health` judges.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from ingest.consuming.dead_letters import has_dead_letters
from ingest.operating.health import Health
from ingest.operating.parts_health import Seen, clock_alert
from store.edge.listing.summary import Summary
from store.io.pages import JobSlot
from store.records import OpKind
from store.tables.redo_log import TOTALS

STEP_S: Final = 2.0
POINTS: Final = 300
_COUNTED: Final = ("halves", "commits", "rollbacks", "checks")


class Overview:
    """Lives in the event loop."""

    def __init__(self, edge: Seen) -> None:
        self._edge = edge
        self._points: deque[tuple[int, ...]] = deque(maxlen=POINTS)
        self._last = self._counters()
        self._health = Health(edge, self.topics)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            self.sample()

    def sample(self) -> None:
        counters, pending = self._counters(), self._edge.store.pending
        steps = [now - before for now, before in zip(counters, self._last, strict=True)]
        self._points.append((self._edge.now_ms(), *steps, sum(pending.counts)))
        self._last = counters

    def _counters(self) -> tuple[int, int, int, int]:
        ended = self._edge.store.ended
        return self._edge.store.half_end, ended[OpKind.COMMIT], ended[OpKind.ROLLBACK], self._edge.counts()["asked"]

    # --- answers ------------------------------------------------------------------------------------------------------------------
    async def answer(self) -> dict[str, Any]:
        edge, now_ms = self._edge, self._edge.now_ms()
        summary = await edge.listings.summary()
        pending = edge.store.pending
        judged = await self._health.judge()
        oldest_ms = summary.oldest_pending_ms
        return {
            "now_ms": now_ms,
            "started_at_ms": edge.started_at_ms,
            "role": edge.settings.role,
            "pending": sum(pending.counts) if pending.known else int(summary.pending.sum()),
            "oldest_pending_age_s": None if oldest_ms is None else max(0, now_ms - oldest_ms) // 1000,
            "discarded": summary.discarded,
            "totals": self._totals(),
            "health": judged.level,
            "judged_at_ms": judged.at_ms,
            "findings": judged.findings,
            "parts": judged.parts,
            "clock_alert": clock_alert(edge),
            "series": self._series(),
        }

    def _totals(self) -> dict[str, int]:
        """Since the store was made, as far as the job has settled; checks and conflicts since the edge was started."""
        topics, counts = self._edge.job_files(), self._edge.counts()
        settled = {name: topics.page[JobSlot.TOTALS + at] if topics is not None else 0 for at, name in enumerate(TOTALS)}
        return {
            "halves": self._edge.store.half_end,
            "commits": settled["commits"],
            "rollbacks": settled["rollbacks"],
            "discards": settled["discards_max"] + settled["discards_expired"],
            "checks": counts["asked"],
            "conflicts": counts["answers"].get("conflict", 0),
            "messages": settled["messages"],
        }

    def _series(self) -> dict[str, Any]:
        columns = list(zip(*self._points, strict=True)) or [()] * (len(_COUNTED) + 2)
        names = ("at_ms", *_COUNTED, "pending")
        return {"step_s": STEP_S, **{name: list(column) for name, column in zip(names, columns, strict=True)}}

    async def groups(self) -> list[dict[str, Any]]:
        """Producer groups that have something in doubt or discarded, or a member."""
        edge, now_ms = self._edge, self._edge.now_ms()
        summary = await edge.listings.summary()
        names, found = edge.store.dictionary.groups, []
        for group_no in range(len(summary.pending)):
            told = self._group(group_no, names[group_no], summary, now_ms)
            if told["pending"] or told["members"] or told["discarded"]:
                found.append(told)
        return found

    async def group(self, group: str) -> dict[str, Any] | None:
        """One of them; None where nobody ever sent anything as this group."""
        summary, group_no = await self._edge.listings.summary(), self._edge.store.dictionary.group_no(group)
        if group_no is None:
            return None
        return self._group(group_no, group, summary, self._edge.now_ms())

    def _group(self, group_no: int, group: str, summary: Summary, now_ms: int) -> dict[str, Any]:
        edge, is_counted = self._edge, group_no < len(summary.pending)
        oldest_ms = int(summary.oldest_ms[group_no]) if is_counted else 0
        return {
            "group": group,
            "pending": int(summary.pending[group_no]) if is_counted else 0,
            "oldest_age_s": max(0, now_ms - oldest_ms) // 1000 if oldest_ms else None,
            "outstanding": int(summary.outstanding[group_no]) if is_counted else 0,
            "discarded": int(summary.discarded_of[group_no]) if is_counted else 0,
            "conflicts": edge.contradictions.by_group[group],
            "last_seen_ms": edge.last_seen_ms(group),
            "members": [
                {"member": each.member, "last_seen_ms": each.last_seen_ms, "via": each.via} for each in edge.members(group)
            ],
        }

    def dead_letters(self) -> list[dict[str, Any]]:
        """Consumer groups that have dead letters, those with the most first."""
        topics: dict[str, list[str]] = {}
        for topic in self.topics():
            for reader in topic["consumers"]:
                if reader["dead_letters"]:
                    topics.setdefault(reader["group"], []).append(topic["topic"])
        count = self._edge.consumption.dead_letter_count
        found = [{"group": group, "dead_letters": count(group), "topics": read} for group, read in topics.items()]
        return sorted(found, key=lambda each: (-each["dead_letters"], each["group"]))

    def topics(self) -> list[dict[str, Any]]:
        """Topics, and the consumer groups that read them; dead letters are told with the group whose they are."""
        consumption = self._edge.consumption
        return [
            {
                "topic": each["topic"],
                "queues": len(each["queues"]),
                "messages": sum(queue["end"] - queue["begin"] for queue in each["queues"]),
                "consumers": [
                    {
                        "group": group["group"],
                        "lag": group["lag"],
                        "in_hand": group["in_hand"],
                        "deleted_unread": group["deleted_unread"],
                        "dead_letters": consumption.dead_letter_count(group["group"]),
                    }
                    for group in each["groups"]
                ],
            }
            for each in consumption.topics_and_lag()
            if has_dead_letters(each["topic"])
        ]
