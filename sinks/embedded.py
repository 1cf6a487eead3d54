"""The embedded deployment's sinks. Releases, check requests, proposals and discards are entries of the store's own queues, written
when a batch is applied (store.job.apply); what is left to do is to tell the edge that there is something new to deliver."""

from __future__ import annotations

from pathlib import Path

from sinks.interfaces import Applied
from store.io.wakeup import EDGE_WAKE, Waker


class EdgeWake:
    """Wakes the edge when a batch brought anything that it delivers: messages, check requests, proposals, damage."""

    def __init__(self, root: Path) -> None:
        self._waker = Waker(root / EDGE_WAKE)
        self._seen = (-1, -1, -1, -1)

    def applied(self, batch: Applied) -> None:
        ends = (batch.check_end, batch.proposal_end, batch.discard_end, batch.quarantine_end)
        if batch.released or ends != self._seen:
            self._seen = ends
            self._waker.wake()

    def close(self) -> None:
        self._waker.close()
