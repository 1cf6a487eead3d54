"""The edge's cursors into the job's queues: how far it has handed over checks, taken proposals and looked at quarantined records.

`edge.cursors` is a published page (`published.py`, magic "CURS"): slot 1 check_cursor, 2 proposal_cursor, 3
quarantine_cursor, entry numbers.
Written through the mapping: a power failure may set a cursor back. That is harmless: lapsed check requests are passed over by their
round, and taking a proposal or a quarantined op again changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from store.published import PublishedPage

CURSOR_MAGIC: Final = 0x43_55_52_53_E5C0
CHECK, PROPOSAL, QUARANTINE = 1, 2, 3


class Cursors(PublishedPage):
    """page[CHECK], page[PROPOSAL], page[QUARANTINE]."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        super().__init__(path, CURSOR_MAGIC, writable=writable)
