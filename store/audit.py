"""The audit: what operators did, append-only. A journal (`journal.py`) of UTF-8 JSON objects, made durable before the action
is answered.

Keys: at_ms, actor, action, target, reason, result. Writer: the edge. Truth: rebuilt from nothing; never shortened.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from store.journal import Journal


@dataclass(frozen=True, slots=True)
class AuditRecord:
    at_ms: int
    actor: str
    action: str
    target: str
    reason: str
    result: str


class Audit:
    """Append and read."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self._journal = Journal(path, "audit", writable=writable)
        self._records = [_decode(payload) for payload in (self._journal.recover() if writable else self._journal.read_new())]

    def append(self, record: AuditRecord) -> None:
        self._journal.append([json.dumps(asdict(record), sort_keys=True).encode()])
        self._records.append(record)

    def records(self) -> list[AuditRecord]:
        """All records, those of other processes too."""
        self._records += [_decode(payload) for payload in self._journal.read_new()]
        return list(self._records)

    def close(self) -> None:
        self._journal.close()


def _decode(payload: bytes) -> AuditRecord:
    return AuditRecord(**json.loads(payload))
