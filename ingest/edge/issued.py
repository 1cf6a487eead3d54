"""What the embedded store knows of the transaction ids that it issued."""

from __future__ import annotations

from collections.abc import Mapping

from ingest.consuming.deliveries import Delivery
from ingest.errors import BadId
from ingest.ids import Sealer
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.io.pages import EdgeSlot
from store.read.readers import LogReader


class IssuedIds:
    """The capability `Issued`, and what an id tells of its half."""

    def __init__(self, store: EdgeStore, sealer: Sealer) -> None:
        self._store, self._sealer = store, sealer

    @property
    def epoch(self) -> int:
        return self._store.page[EdgeSlot.EPOCH]

    def group_of(self, id: str) -> str:
        """The producer group of the half that an id names; BadId unless this store issued it."""
        return self._store.dictionary.groups[self._sealer.open(id).group_no]

    def transaction_id_of(self, delivery: Delivery) -> str | None:
        """Of a message that a transaction released; None for an ordinary one."""
        half_offset = delivery.half_offset
        return self._sealer.seal(half_offset, delivery.frame.fields["group_no"]) if half_offset >= 0 else None

    def half_offset_of(self, id: str) -> int:
        return self._sealer.open(id).half_offset

    def properties_of(self, id: str) -> Mapping[str, str]:
        """In a thread. It opens the log anew: for what is asked for now and then."""
        try:
            log = LogReader(self._store.directory)
            try:
                return log.frame(log.half_queue.read(at := self.half_offset_of(id), at + 1)[0]).properties
            finally:
                log.close()
        except (BadId, StoreError, IndexError):
            return {}
