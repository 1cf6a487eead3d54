"""What operators do with the embedded edge: lists, actions, history, the audit, and the topics of the store."""

from __future__ import annotations

import asyncio
from functools import partial

from ingest.checks.delivery import CheckDelivery
from ingest.committing.committer import Committer
from ingest.edge.job_view import JobView
from ingest.errors import InvalidRequest
from ingest.ids import Sealer
from ingest.operating.auditing import Audited, Auditor
from ingest.operating.contradictions import Contradictions
from ingest.operating.explaining import Around, Explained, explain
from ingest.operating.history import Histories, Inspected, Transaction, contradicted
from ingest.operating.listings import Listings
from ingest.operating.operator import Action, Done, Operator
from ingest.operating.overview import Overview
from ingest.operating.tables import TablePages
from ingest.operating.topic_removal import Removing, Wanted
from ingest.parts import Gate
from runtime.settings import Settings
from store.edge.removal import Removal
from store.edge.store import EdgeStore
from store.naming import DLQ_PREFIX


class Operations:
    """The capability `Operating`, and the part of `Transactions` that reads or ends a transaction."""

    def __init__(
        self,
        settings: Settings,
        gate: Gate,
        store: EdgeStore,
        committer: Committer,
        sealer: Sealer,
        *,
        operator: Operator,
        listings: Listings,
        auditor: Auditor,
        removing: Removing,
        overview: Overview,
        contradictions: Contradictions,
        checks: CheckDelivery,
        job: JobView,
    ) -> None:
        self._settings, self._gate, self._store, self._committer, self._sealer = settings, gate, store, committer, sealer
        self._operator, self._auditor, self._removing = operator, auditor, removing
        self.listings, self.overview, self._histories = listings, overview, Histories(store)
        self.tables = TablePages(store, sealer)
        self.contradictions, self._checks, self._job = contradictions, checks, job

    async def act(self, action: Action) -> Done:
        """Check now, commit, roll back or resume, as `ingest.operating.operator` says."""
        self._gate.require_master("actions")
        return await self._operator.act(action, self._settings.max_messages_per_request)

    async def create_topic(self, topic: str, queues: int | None) -> tuple[int, bool]:
        """(how many queues it has, whether it is new). `autoCreateTopics` and limits of tokens do not apply."""
        self._gate.require_master("topics")
        if topic.startswith(DLQ_PREFIX):
            raise InvalidRequest(f"topic: {topic[:80]}: only Escrow creates dead-letter topics")
        names = self._store.dictionary
        made = names.topic_no(topic) is None
        wanted = queues or self._settings.queues_per_topic
        topic_no: int = await self._committer.call(partial(self._store.add_topic, topic, wanted))
        found = names.queues[topic_no]
        if queues is not None and queues != found:
            raise InvalidRequest(f"queues: topic {topic} has {found} queues, fixed when it was made, not {queues}")
        return found, made

    async def remove_topics(self, wanted: Wanted) -> Removal:
        """Remove topics that are not in use."""
        self._gate.require_master("topics")
        return await self._removing.remove(wanted)

    async def audited(self, limit: int, before: int | None = None) -> tuple[list[Audited], int | None]:
        """What operators did, the newest first."""
        return await self._auditor.audited(limit, before)

    async def inspect(self, id: str) -> Inspected:
        """One transaction with its message."""
        place = self._sealer.open(id)
        found = await asyncio.get_running_loop().run_in_executor(None, self._histories.inspect, place.half_offset)
        self._with_contradictions(found.transaction)
        return found

    async def body(self, id: str) -> bytes | None:
        """The whole body of a half; None where it is gone or cannot be read."""
        place = self._sealer.open(id)
        return await asyncio.get_running_loop().run_in_executor(None, self._histories.body, place.half_offset)

    async def explain(self, id: str) -> Explained:
        """Why a transaction is in doubt."""
        found = await self.inspect(id)
        half_offset, group = found.transaction.half_offset, found.transaction.group
        around = Around(
            self._checks.members(group), self._checks.last_seen_ms(group), self._checks.asked_now(half_offset),
            self._job.state().state == "running",
            self._operator.foreseen("commit", half_offset), self._operator.foreseen("rollback", half_offset),
            self.contradictions.of(half_offset),
        )  # fmt: skip
        return explain(found, around, self._settings)

    async def transaction(self, id: str) -> Transaction:
        """What is known of one transaction, with its history; BadId unless this store issued the id."""
        place = self._sealer.open(id)
        found = await asyncio.get_running_loop().run_in_executor(None, self._histories.of, place.half_offset)
        return self._with_contradictions(found)

    def _with_contradictions(self, found: Transaction) -> Transaction:
        """Ends that were not taken stand in the history, too."""
        told = [contradicted(each) for each in self.contradictions.of(found.half_offset)] if found.history else []
        if told:
            found.history = sorted([*found.history, *told], key=lambda event: event.at_ms)
        return found

    def close(self) -> None:
        self._histories.close()
        self.tables.close()
