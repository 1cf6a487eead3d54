"""Quotas in Kafka mode: rates. How many halves are pending, and how old they are, is the job's to know; here nobody does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ingest.auth.reloading_file import Watched
from ingest.edge.quotas import FREE, Admitted, Rates
from ingest.groups import Groups
from runtime.settings import Settings
from store.messages import Message, groups_of


class RateQuotas:
    """groupRateMax of this endpoint; two endpoints let a group send twice as much."""

    def __init__(self, settings: Settings, groups: Watched[Groups], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._groups, self._clock_s, self._rates = groups, clock_s, Rates()
        pending = settings.group_pending_max or settings.group_pending_age_max_ms
        self.notice = "groupPendingMax and groupPendingAgeMax are not enforced in Kafka mode: set groupRateMax" if pending else ""

    def admit(self, messages: Sequence[Message], *, halves: bool) -> Admitted:
        groups = self._groups.get()
        if groups.any_limit:
            counts, now_s = Counter(groups_of(messages)), self._clock_s()
            for group, count in counts.items():
                self._rates.check(group, count, groups.limits(group), now_s)
            self._rates.take(counts)
        return FREE

    def figures(self) -> dict[str, Any]:
        return {"refused": dict(self._rates.refused), "groups_file_problem": self._groups.problem}
