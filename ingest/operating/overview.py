"""What an operator sees first: how much is in doubt, how fast things go, whether every part is well; and who is there, by group and
by topic. Rates are sampled here, so that a page that is opened has the last ten minutes at once.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Any, Final, Protocol

from ingest.capabilities import JobState
from ingest.checks.delivery import Member
from ingest.consuming.dead_letters import has_dead_letters
from ingest.operating.listings import Listings
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.io.pages import JobSlot
from store.read.readers import TopicReader
from store.records import OpKind
from store.tables.redo_log import TOTALS

STEP_S: Final = 2.0
POINTS: Final = 300
_COUNTED: Final = ("halves", "commits", "rollbacks", "checks")
#: The job writes it into the data directory (`store.guarded_clock`) when the wall clock jumped.
CLOCK_ALERT: Final = "clock.alert"
#: A disk with less is not well.
DISK_FREE_MIN_BYTES: Final = 1 << 30
DISK_FREE_MIN_SHARE: Final = 0.05


class Consumed(Protocol):
    """Topics and their consumer groups."""

    def topics_and_lag(self) -> list[dict[str, Any]]: ...
    def dead_letter_count(self, group: str) -> int: ...


class Seen(Protocol):
    """What the overview reads of an edge. `trouble`: what goes wrong at the moment; "" if nothing does."""

    settings: Settings
    store: EdgeStore
    listings: Listings
    started_at_ms: int

    @property
    def trouble(self) -> str: ...

    @property
    def consumption(self) -> Consumed: ...

    @property
    def failed(self) -> asyncio.Future[str]: ...

    def now_ms(self) -> int: ...
    def counts(self) -> dict[str, Any]: ...
    def job_files(self) -> TopicReader | None: ...
    def job_state(self) -> JobState: ...
    def members(self, group: str) -> list[Member]: ...


class Overview:
    """Lives in the event loop."""

    def __init__(self, edge: Seen) -> None:
        self._edge = edge
        self._points: deque[tuple[int, ...]] = deque(maxlen=POINTS)
        self._last = self._counters()

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
        parts = self.parts()
        oldest_ms = summary.oldest_pending_ms
        return {
            "now_ms": now_ms,
            "started_at_ms": edge.started_at_ms,
            "role": edge.settings.role,
            "pending": sum(pending.counts) if pending.known else int(summary.pending.sum()),
            "oldest_pending_age_s": None if oldest_ms is None else max(0, now_ms - oldest_ms) // 1000,
            "discarded": summary.discarded,
            "totals": self._totals(),
            "parts": parts,
            "clock_alert": self._clock_alert(),
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

    def _clock_alert(self) -> bool:
        return (self._edge.settings.data_dir / CLOCK_ALERT).exists()

    def parts(self) -> list[dict[str, Any]]:
        """Each part, whether it is well, and what is to be known about it."""
        return [self._edge_part(), self._job_part(), self._delivery_part(), self._disk_part(), self._clock_part()]

    def _edge_part(self) -> dict[str, Any]:
        edge = self._edge
        trouble = edge.failed.result() if edge.failed.done() else edge.trouble or edge.listings.trouble
        return _part("edge", not trouble, trouble or "takes halves and ends")

    def _job_part(self) -> dict[str, Any]:
        job = self._edge.job_state()
        behind = f"{job.halves_behind:,} halves and {job.ops_behind:,} ops behind"
        text = {
            "absent": "no streaming job has ever opened this store: start one (escrow run)",
            "silent": f"no sign of life from the streaming job: {behind}; its log tells why",
            "no_room": f"the disk is full: nothing is settled, {behind}; it goes on by itself when there is room",
            "running": f"round {job.round_no:,}, {behind}",
        }[job.state]
        return _part("job", job.state == "running", text)

    def _delivery_part(self) -> dict[str, Any]:
        counts = self._edge.counts()
        broken = [each for each in counts.get("transports", {}).get("couriers", []) if each["state"] != "closed"]
        if broken:
            first = broken[0]
            return _part(
                "checks", False, f"{len(broken)} couriers fail; {first['by']} of group {first['group']}: {first['last_failure']}"
            )
        checks = counts["checks"]
        return _part("checks", True, f"{checks['requests_waiting']:,} requests wait, {checks['polls_waiting']:,} polls wait")

    def _disk_part(self) -> dict[str, Any]:
        found = os.statvfs(self._edge.settings.store_dir)
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        good = free >= min(DISK_FREE_MIN_BYTES, size * DISK_FREE_MIN_SHARE)
        return _part("disk", good, f"{free / (1 << 30):,.1f} GiB free of {size / (1 << 30):,.1f} GiB")

    def _clock_part(self) -> dict[str, Any]:
        alert = self._clock_alert()
        text = "the wall clock jumped: nothing is discarded or deleted; see escrow clock" if alert else "steady"
        return _part("clock", not alert, text)

    async def groups(self) -> list[dict[str, Any]]:
        """Producer groups that have something in doubt, or a member."""
        edge, now_ms = self._edge, self._edge.now_ms()
        summary = await edge.listings.summary()
        names, found = edge.store.dictionary.groups, []
        for group_no, pending in enumerate(summary.pending.tolist()):
            members = edge.members(names[group_no])
            if not pending and not members:
                continue
            oldest_ms = int(summary.oldest_ms[group_no])
            found.append(
                {
                    "group": names[group_no],
                    "pending": pending,
                    "oldest_age_s": max(0, now_ms - oldest_ms) // 1000 if oldest_ms else None,
                    "outstanding": int(summary.outstanding[group_no]),
                    "members": [{"member": each.member, "last_seen_ms": each.last_seen_ms, "via": each.via} for each in members],
                }
            )
        return found

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
                        "dead_letters": consumption.dead_letter_count(group["group"]),
                    }
                    for group in each["groups"]
                ],
            }
            for each in consumption.topics_and_lag()
            if has_dead_letters(each["topic"])
        ]


def _part(part: str, healthy: bool, detail: str) -> dict[str, Any]:
    return {"part": part, "healthy": healthy, "detail": detail}
