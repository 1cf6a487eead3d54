"""Quotas in Kafka mode: rates. How many halves are pending, and how old they are, is the job's to know; here nobody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escrow.settings import Settings
from ingest.groups import Groups, Limits
from ingest.quotas import Quotas
from ingest.watched import Watched


class RateQuotas(Quotas):
    """groupRateMax of this endpoint; two endpoints let a group send twice as much."""

    def __init__(self, settings: Settings, groups: Watched[Groups], now_ms: Callable[[], int]) -> None:
        super().__init__(settings, groups, None, now_ms)  # type: ignore[arg-type]
        pending = settings.group_pending_max or settings.group_pending_age_max_ms
        self.notice = "groupPendingMax and groupPendingAgeMax are not enforced in Kafka mode: set groupRateMax" if pending else ""

    def _check_pending(self, group: str, count: int, limits: Limits, now_s: float) -> None:
        """Not known."""

    def _check_age(self, group: str, limits: Limits) -> None:
        """Not known."""

    def close(self) -> None:
        """Holds nothing."""

    def pending_by_group(self) -> dict[str, int]:
        return {}

    def ended_by_group(self) -> dict[str, int]:
        return {}

    def oldest_age_s(self) -> dict[str, int]:
        return {}

    def figures(self) -> dict[str, Any]:
        return {"refused": dict(self.refused), "groups_file_problem": self._groups.problem}
