"""Quotas of producer groups: how fast, how many pending, how old. Halves and messages are refused before they queue; ends never.

    storing = Limited(committer, quotas)      # in front of what stores halves and messages
    await storing.prepare(messages)           # QuotaExceeded: 429, with the seconds after which to try again

Rate: a bucket that holds one second's worth and fills steadily. A request takes all it needs once the bucket holds as much, or is
full: so a batch that is larger than the bucket passes too, and is paid for afterwards.

Pending: `store.edge.pending_counts` counts, exactly; what was admitted and is not yet in the log counts as well, so that many
requests at once
do not pass the limit together. Not enforced until the first count is through (`figures()["pending_counted"]`).

Age: the oldest pending half of each group, looked at about once a second in a thread, if any group has such a limit; seldomer where
a look takes long, so that it never takes more than a twentieth of a core.

When to try again: for a rate, when the bucket will hold enough; for pending halves, when as many will have ended at the pace of
late; where none end, and for age, after a check interval: by then their producers will have been asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from ingest.auth.reloading_file import Watched
from ingest.errors import QuotaExceeded
from ingest.groups import Groups, Limits
from runtime.settings import Settings
from store.edge.pending_counts import NEVER_S, OldestPending
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.messages import Message, groups_of

LOOK_S: Final = 1.0
#: A look at ages may take this share of the time.
SHARE: Final = 0.05
#: Buckets kept; beyond it, those that are full are forgotten, which changes nothing.
BUCKETS_MAX: Final = 65_536
H_co = TypeVar("H_co", covariant=True)
M_co = TypeVar("M_co", covariant=True)
H = TypeVar("H")
M = TypeVar("M")


@dataclass(slots=True)
class _Bucket:
    level: float
    at_s: float

    def fill(self, rate: int, now_s: float) -> None:
        self.level = min(float(rate), self.level + (now_s - self.at_s) * rate)
        self.at_s = now_s


class Releasing(Protocol):
    def release(self, counts: dict[str, int]) -> None: ...


class Admitted:
    """What was admitted and is on its way into the log. A context; `appended` is called when it has arrived, in any thread."""

    __slots__ = ("_counts", "_quotas")

    def __init__(self, quotas: Releasing | None = None, counts: dict[str, int] | None = None) -> None:
        self._quotas, self._counts = quotas, counts

    def appended(self) -> None:
        if self._quotas is not None and self._counts:
            counts, self._counts = self._counts, None
            self._quotas.release(counts)

    def __enter__(self) -> Admitted:
        return self

    def __exit__(self, *_: object) -> None:
        self.appended()


FREE: Final = Admitted()


class Admitting(Protocol):
    def admit(self, messages: Sequence[Message], *, halves: bool) -> Admitted:
        """All of them or QuotaExceeded; FREE where nothing is counted."""


class Storing(Protocol[H_co, M_co]):
    """What stores halves and messages, and says where."""

    def prepare(self, messages: Sequence[Message], appended: Callable[[], None] | None = None, /) -> Awaitable[H_co]: ...
    def send(self, messages: Sequence[Message], /) -> Awaitable[M_co]: ...


class Limited(Generic[H, M]):
    """A wrapper: `next` stores what the quotas admit."""

    def __init__(self, next: Storing[H, M], quotas: Admitting) -> None:
        self.next, self._quotas = next, quotas

    def prepare(self, messages: Sequence[Message], _appended: Callable[[], None] | None = None, /) -> Awaitable[H]:
        admitted = self._quotas.admit(messages, halves=True)
        if admitted is FREE:
            return self.next.prepare(messages)
        return self._prepare(messages, admitted)

    async def _prepare(self, messages: Sequence[Message], admitted: Admitted) -> H:
        with admitted:
            stored = self.next.prepare(messages, admitted.appended)
            del messages  # the committer lets go of them before the flush
            return await stored

    def send(self, messages: Sequence[Message], /) -> Awaitable[M]:
        self._quotas.admit(messages, halves=False)
        return self.next.send(messages)


class Rates:
    """A bucket for each group that has a rate."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self.refused: Counter[str] = Counter()

    def check(self, group: str, count: int, limits: Limits, now_s: float) -> None:
        rate = limits.rate_max
        if not rate:
            self._buckets.pop(group, None)
            return
        bucket = self._buckets.get(group)
        if bucket is None:
            self._make_room(now_s)
            bucket = self._buckets[group] = _Bucket(float(rate), now_s)
        bucket.fill(rate, now_s)
        missing = min(count, rate) - bucket.level
        if missing > 0:
            self.refuse("rate", f"group {group}: more than {rate} messages a second (groupRateMax)", missing / rate)

    def _make_room(self, now_s: float) -> None:
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets = {group: bucket for group, bucket in self._buckets.items() if now_s - bucket.at_s < 10}

    def take(self, counts: dict[str, int]) -> None:
        """Once every group of a request has passed."""
        for group, count in counts.items():
            if bucket := self._buckets.get(group):
                bucket.level -= count

    def refuse(self, what: str, text: str, retry_after_s: float) -> None:
        """Whatever the quota: counted here."""
        self.refused[what] += 1
        raise QuotaExceeded(f"{text}: try again in {max(retry_after_s, 0.001):.3g} s; ends are taken meanwhile", retry_after_s)


class Quotas:
    """Lives in the event loop; `release` may be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        groups: Watched[Groups],
        store: EdgeStore,
        now_ms: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = settings.check_interval_ms / 1000
        self._groups, self._store, self._now_ms, self._clock_s = groups, store, now_ms, clock_s
        self._rates = Rates()
        self._on_the_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        #: stored_at_s of the oldest pending half, by group_no: as last seen, and as limits go by (empty while there are none).
        self._seen: Any = ()
        self._oldest: Any = ()
        self._ages: OldestPending | None = None
        self._ages_lock = threading.Lock()
        self._looked_at_s = 0.0
        self._paces: dict[int, tuple[float, int, float]] = {}
        self.look_s = 0.0

    # --- in the event loop ------------------------------------------------------------------------------------------------
    def admit(self, messages: Sequence[Message], *, halves: bool) -> Admitted:
        """All of them or QuotaExceeded."""
        groups = self._groups.get()
        if not groups.any_limit:
            return FREE
        counts = Counter(groups_of(messages))
        now_s = self._clock_s()
        for group, count in counts.items():
            limits = groups.limits(group)
            if halves:
                self._check_pending(group, count, limits, now_s)
                self._check_age(group, limits)
            self._rates.check(group, count, limits, now_s)
        self._rates.take(counts)
        limited = {group: count for group, count in counts.items() if halves and groups.limits(group).pending_max}
        if not limited:
            return FREE
        with self._lock:
            self._on_the_way.update(limited)
        return Admitted(self, limited)

    def release(self, counts: dict[str, int]) -> None:
        """They are in the log and counted there, or never will be."""
        with self._lock:
            self._on_the_way.subtract(counts)
            for group in counts:
                if not self._on_the_way[group]:
                    del self._on_the_way[group]

    def _check_pending(self, group: str, count: int, limits: Limits, now_s: float) -> None:
        most, pending = limits.pending_max, self._store.pending
        group_no = self._store.dictionary.group_no(group)
        if not most or not pending.known:
            return
        have = self._on_the_way[group] + (pending.of(group_no) if group_no is not None else 0)
        if have + count > most:
            retry_after_s = self._until_ended(group_no, have + count - most, now_s)
            self._rates.refuse(
                "pending", f"group {group}: {have} halves are pending, at most {most} may be (groupPendingMax)", retry_after_s
            )

    def _until_ended(self, group_no: int | None, count: int, now_s: float) -> float:
        """Seconds until so many will have ended, at the pace of late; a check interval where none end."""
        if group_no is None:
            return self._interval_s
        ended = self._store.pending.ended_of(group_no)
        since_s, before, pace = self._paces.get(group_no, (now_s, ended, 0.0))
        if now_s - since_s >= 1 or group_no not in self._paces:
            pace = (ended - before) / (now_s - since_s) if now_s > since_s else 0.0
            self._paces[group_no] = (now_s, ended, pace)
        return min(count / pace, self._interval_s) if pace else self._interval_s

    def _check_age(self, group: str, limits: Limits) -> None:
        group_no = self._store.dictionary.group_no(group)
        if not limits.pending_age_max_ms or group_no is None or group_no >= len(self._oldest):
            return
        oldest_s = int(self._oldest[group_no])
        age_ms = self._now_ms() - oldest_s * 1000
        if oldest_s != NEVER_S and age_ms > limits.pending_age_max_ms:
            allowed_s = limits.pending_age_max_ms / 1000
            text = f"group {group}: its oldest pending half is {age_ms // 1000} s old, at most {allowed_s:g} s are allowed"
            self._rates.refuse("pending_age", f"{text} (groupPendingAgeMax)", self._interval_s)

    # --- what runs beside ---------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Count at the start and when a count is asked for; look at ages."""
        while True:
            if self._store.pending.stale:
                # Files that change under our hands: at the next look.
                with contextlib.suppress(StoreError, IndexError):
                    await asyncio.to_thread(self._store.pending.count)
            if self._groups.get().any_age_limit:
                await asyncio.to_thread(self.look_at_ages)
            else:
                self._oldest = ()
            await asyncio.sleep(max(LOOK_S, self.look_s / SHARE))

    def look_at_ages(self) -> None:
        """In a thread."""
        self._look()
        self._oldest = self._seen

    def _look(self) -> None:
        """What cannot be read now is read at the next look."""
        with self._ages_lock:
            began_s = self._clock_s()
            try:
                if self._ages is None:
                    self._ages = OldestPending(self._store.directory)
                self._seen = self._ages.sample(len(self._store.dictionary.groups))
            except (StoreError, IndexError):
                self._close_ages()
            self._looked_at_s = self._clock_s()
            self.look_s = self._looked_at_s - began_s

    def _close_ages(self) -> None:
        if self._ages is not None:
            self._ages.close()
            self._ages = None

    def close(self) -> None:
        """Waits for what is under way in threads: not in the event loop."""
        self._store.pending.close()
        with self._ages_lock:
            self._close_ages()

    # --- for status, metrics and the console ---------------------------------------------------------------------------------
    def pending_by_group(self) -> dict[str, int]:
        """Groups with pending halves; exact once `pending_counted` is true."""
        names = self._store.dictionary.groups
        return {names[group_no]: count for group_no, count in enumerate(list(self._store.pending.counts)) if count}

    def ended_by_group(self) -> dict[str, int]:
        """Halves of each group that have ended since the edge was opened."""
        names = self._store.dictionary.groups
        return {names[group_no]: count for group_no, count in enumerate(list(self._store.pending.ended)) if count}

    def oldest_age_s(self) -> dict[str, int]:
        """Age of the oldest pending half of each group, looked at now, or lately where a look takes long. In a thread."""
        if self._clock_s() - self._looked_at_s >= max(LOOK_S, self.look_s / SHARE):
            self._look()
        now_s, names, oldest = self._now_ms() // 1000, self._store.dictionary.groups, self._seen
        return {names[number]: max(now_s - int(at_s), 0) for number, at_s in enumerate(oldest) if int(at_s) != NEVER_S}

    def figures(self) -> dict[str, Any]:
        return {
            "pending_counted": self._store.pending.known,
            "pending": sum(self._store.pending.counts),
            "refused": dict(self._rates.refused),
            "age_look_s": round(self.look_s, 6),
            "groups_file_problem": self._groups.problem,
        }
