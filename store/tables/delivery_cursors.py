"""The edge's cursors into the job's queues: how far it has handed over checks, taken proposals and looked at quarantined records.

`edge.cursors` is a published page (`pages.py`, magic "CURS"): slot 1 check_cursor, 2 proposal_cursor, 3
quarantine_cursor, entry numbers; 4 round_start + 1: the round_check_start that was seen last, 5 round_ops: the op end when it was
first seen (asked ops behind it are of that round), 6 proposal_ops: resumes from this op on may be younger than a proposal that
was not taken; 7 boot: in which boot of the machine the job's files were last seen recovered (after another boot consumers wait for
the job). Written through the mapping: a power failure may set a cursor back. That is harmless: lapsed check requests are
skipped by their round, taking a quarantined op again changes nothing, and a proposal older than a resume is skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from store.io.pages import PublishedPage

CURSORS: Final = "edge.cursors"
CURSOR_MAGIC: Final = 0x43_55_52_53_E5C0
CHECK, PROPOSAL, QUARANTINE, ROUND_START, ROUND_OPS, PROPOSAL_OPS, BOOT = range(1, 8)


class Cursors(PublishedPage):
    """page[CHECK], page[PROPOSAL], page[QUARANTINE]."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        super().__init__(path, CURSOR_MAGIC, writable=writable)
