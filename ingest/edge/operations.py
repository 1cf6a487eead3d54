"""What operators do with the embedded edge: lists, actions, history, the audit, and the topics of the store."""

from __future__ import annotations

import asyncio
from functools import partial

from ingest.committing.committer import Committer
from ingest.errors import InvalidRequest
from ingest.ids import Sealer
from ingest.operating.auditing import Audited, Auditor
from ingest.operating.history import Histories, Inspected, Transaction
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
    ) -> None:
        self._settings, self._gate, self._store, self._committer, self._sealer = settings, gate, store, committer, sealer
        self._operator, self._auditor, self._removing = operator, auditor, removing
        self.listings, self.overview, self._histories = listings, overview, Histories(store)
        self.tables = TablePages(store, sealer)

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
        return await asyncio.get_running_loop().run_in_executor(None, self._histories.inspect, place.half_offset)

    async def transaction(self, id: str) -> Transaction:
        """What is known of one transaction, with its history; BadId unless this store issued the id."""
        place = self._sealer.open(id)
        return await asyncio.get_running_loop().run_in_executor(None, self._histories.of, place.half_offset)

    def close(self) -> None:
        self._histories.close()
        self.tables.close()
