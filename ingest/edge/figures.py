"""What the embedded edge tells of itself, for status, metrics and the overview."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ingest.capabilities import JobState
from ingest.checks.delivery import CheckDelivery
from ingest.committing.committer import Committer
from ingest.consuming.consumption import Consumption
from ingest.edge.job_feedback import Followers
from ingest.edge.names import Names
from ingest.edge.quotas import Quotas
from ingest.operating.contradictions import Contradictions
from ingest.parts import Parts
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.io.pages import EdgeSlot


class EdgeFigures:
    """`ends_refused`: ends whose id was never issued, or for another group: refused before they reach the log."""

    def __init__(
        self,
        settings: Settings,
        store: EdgeStore,
        committer: Committer,
        followers: Followers,
        checks: CheckDelivery,
        *,
        quotas: Quotas,
        names: Names,
        consumption: Consumption,
        parts: Parts,
        started_at_ms: int,
        contradictions: Contradictions,
    ) -> None:
        self._settings, self._store, self._committer, self._followers = settings, store, committer, followers
        self._checks, self._quotas, self._names, self._consumption = checks, quotas, names, consumption
        self._parts, self._started_at_ms, self._contradictions = parts, started_at_ms, contradictions
        self.ends_refused = 0

    def status(self, job: JobState, trouble: str, failed: str) -> dict[str, Any]:
        """How the edge is, and what it sees of the job."""
        store = self._store
        return {
            "role": self._settings.role,
            "store_id": store.directory.store_id,
            "started_at_ms": self._started_at_ms,
            "half_end": store.half_end,
            "op_end": store.op_end,
            "log_end": store.log.end,
            "log_flushed": store.page[EdgeSlot.LOG_END],
            **self.counts(trouble, failed),
            "job": asdict(job),
            "trouble": trouble,
            "failed": failed,
        }

    def counts(self, trouble: str, failed: str) -> dict[str, Any]:
        """What was done since the start."""
        counters = self._committer.counters
        return {
            "queued_bytes": self._committer.queued_bytes,
            "cycles": counters.cycles,
            "flushes": self._store.flushes,
            "halves": counters.halves,
            "messages": counters.messages,
            "ends": counters.ends,
            "answers": {**counters.answers, "refused": counters.answers.get("refused", 0) + self.ends_refused},
            "operator_answers": dict(counters.operator_answers),
            "conflicts_by_group": dict(self._contradictions.by_group),
            "asked": counters.asked,
            "refused_for_load": counters.refused_for_load,
            "discarded": self._followers.discarded,
            "proposals_passed_over": self._followers.passed_over,
            "reopened": self._followers.reopened,
            "checks": self._checks.figures(),
            "quotas": self._quotas.figures(),
            "names": self._names.figures(),
            "consumption": self._consumption.figures(),
            **self._parts.figures(),
            "healthy": not trouble and not failed,
        }
