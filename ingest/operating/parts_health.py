"""Whether each part is well: edge, job, check delivery, disk, clock."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final, Protocol

import msgspec

from ingest.capabilities import JobState
from ingest.checks.delivery import Member
from ingest.operating.contradictions import Contradictions
from ingest.operating.listings import Listings
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.read.readers import TopicReader

#: The job writes it into the data directory (`store.guarded_clock`) when the wall clock jumped.
CLOCK_ALERT: Final = "clock.alert"
#: A disk with less is not well: a twentieth of it, but 10 GiB are enough of any disk.
DISK_FREE_ENOUGH_BYTES: Final = 10 << 30
DISK_FREE_MIN_SHARE: Final = 0.05
#: The alert's section in docs/operators.md, and what to type.
PART_RUNBOOKS: Final = {
    "edge": ("EscrowEdgeUnhealthy", "escrow doctor"),
    "job": ("EscrowJobSilent", "escrow doctor"),
    "checks": ("EscrowCourierBroken", "escrow groups --members"),
    "disk": ("EscrowDiskFilling", "escrow store stats data/store"),
    "clock": ("EscrowClockAlert", "escrow clock"),
}


class Consumed(Protocol):
    """Topics and their consumer groups."""

    def topics_and_lag(self) -> list[dict[str, Any]]: ...
    def dead_letter_count(self, group: str) -> int: ...


class Seen(Protocol):
    """What the overview reads of an edge. `trouble`: what goes wrong at the moment; "" if nothing does."""

    settings: Settings
    store: EdgeStore
    listings: Listings
    contradictions: Contradictions
    started_at_ms: int

    @property
    def trouble(self) -> str: ...

    @property
    def consumption(self) -> Consumed: ...

    @property
    def failed(self) -> asyncio.Future[str]: ...

    def now_ms(self) -> int: ...
    def elapsed_ms(self) -> int: ...
    def counts(self) -> dict[str, Any]: ...
    def job_files(self) -> TopicReader | None: ...
    def job_state(self) -> JobState: ...
    def members(self, group: str) -> list[Member]: ...
    def last_seen_ms(self, group: str) -> int | None: ...


class Part(msgspec.Struct, frozen=True):
    """`text`: what is wrong, in few words; `detail`: what is to be known about it."""

    part: str
    healthy: bool
    detail: str
    text: str = ""
    remedy: str = ""
    since_ms: int | None = None


def parts_of(edge: Seen) -> list[Part]:
    return [_edge(edge), _job(edge), _delivery(edge), _disk(edge), _clock(edge)]


def clock_alert(edge: Seen) -> bool:
    return (edge.settings.data_dir / CLOCK_ALERT).exists()


def _edge(edge: Seen) -> Part:
    trouble = edge.failed.result() if edge.failed.done() else edge.trouble or edge.listings.trouble
    if trouble:
        return Part("edge", False, trouble, "The edge has a problem", "make room on the disk, or give it the right to the file")
    return Part("edge", True, "takes halves and ends")


def _job(edge: Seen) -> Part:
    job = edge.job_state()
    behind = f"{job.halves_behind:,} halves and {job.ops_behind:,} ops behind"
    if job.state == "running":
        return Part("job", True, f"round {job.round_no:,}, {behind}")
    text, detail, remedy = {
        "absent": (
            "The streaming job has never run", "no streaming job has opened this store", "start it: escrow run starts both parts",
        ),
        "silent": (
            "The streaming job is down", f"no sign of life: no check goes out and nothing is settled; {behind}",
            "the supervisor restarts it; logs/job.log and logs/job-events.log say why it ended",
        ),
        "no_room": (
            "The streaming job waits for disk space", f"the disk is full: nothing is settled; {behind}",
            "make room: it continues by itself",
        ),
    }[job.state]  # fmt: skip
    since_ms = edge.now_ms() - (edge.elapsed_ms() - job.heartbeat_ms) if job.state == "silent" and job.heartbeat_ms else None
    return Part("job", False, detail, text, remedy, since_ms)


def _delivery(edge: Seen) -> Part:
    counts = edge.counts()
    broken = [each for each in counts.get("transports", {}).get("couriers", []) if each["state"] != "closed"]
    if broken:
        first = broken[0]
        detail = f"{first['by']} of group {first['group']}: {first['last_failure']}"
        return Part("checks", False, detail, f"Check delivery fails for {len(broken)}", "mend the receiver: it is tried again")
    checks = counts["checks"]
    return Part("checks", True, f"{checks['requests_waiting']:,} requests wait, {checks['polls_waiting']:,} polls wait")


def _disk(edge: Seen) -> Part:
    found = os.statvfs(edge.settings.store_dir)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    detail = f"{free / (1 << 30):,.1f} GiB free of {size / (1 << 30):,.1f} GiB"
    if free >= min(DISK_FREE_ENOUGH_BYTES, size * DISK_FREE_MIN_SHARE):
        return Part("disk", True, detail)
    return Part("disk", False, detail, "The disk is nearly full", "make room, or shorten fileReservedTime; decide what is pending")


def _clock(edge: Seen) -> Part:
    if not clock_alert(edge):
        return Part("clock", True, "steady")
    return Part(
        "clock", False, "nothing is discarded or deleted until it is right, or confirmed", "The wall clock jumped",
        "set the clock right, or run escrow clock confirm",
    )  # fmt: skip
