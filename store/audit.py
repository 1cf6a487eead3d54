"""The audit: what operators did, append-only. A journal (`journal.py`) of UTF-8 JSON objects, made durable before the action
is answered.

Two records for each action: the intent, durable before anything is done, and the outcome, which names the intent by its number
(`about`). An intent without an outcome: the process died in between, and the transactions' own histories tell how far it came.

Keys: at_ms, actor, action, target, reason, result; where there is something to say also ids (the first IDS_MAX), filter, matched,
counts, about. Writer: the edge. Truth: rebuilt from nothing; never shortened.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from store.journal import HEAD, Journal

#: Ids of one action that are written down; `matched` says how many there were.
IDS_MAX: Final = 100
_ALWAYS: Final = frozenset({"at_ms", "actor", "action", "target", "reason", "result"})


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """`result`: begun (an intent), done or failed. `about` of an outcome: the number of its intent."""

    at_ms: int
    actor: str
    action: str
    target: str
    reason: str
    result: str
    ids: list[str] = field(default_factory=list)
    filter: dict[str, Any] | None = None
    matched: int | None = None
    counts: dict[str, int] | None = None
    about: int | None = None


class Audit:
    """Append and read. Records are numbered from 0 on; in memory is only where each begins."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self._journal = Journal(path, "audit", writable=writable)
        self._starts: list[int] = []
        self._end = 0
        #: The outcome of each intent, by number.
        self._outcomes: dict[int, int] = {}
        self._note(self._journal.recover() if writable else self._journal.read_new())

    def __len__(self) -> int:
        return len(self._starts)

    def _note(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            about = json.loads(payload).get("about")
            if about is not None:
                self._outcomes[about] = len(self._starts)
            self._starts.append(self._end)
            self._end += HEAD.size + len(payload)

    def append(self, record: AuditRecord) -> int:
        """Its number, once it is durable."""
        said = {name: value for name, value in asdict(record).items() if name in _ALWAYS or value not in (None, [])}
        payload = json.dumps(said, sort_keys=True).encode()
        self._journal.append([payload])
        self._note([payload])
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> AuditRecord:
        return _decode(self._journal.read_at(self._starts[number]))

    def outcome_of(self, number: int) -> AuditRecord | None:
        """What became of the action whose intent has this number."""
        found = self._outcomes.get(number)
        return None if found is None else self[found]

    def records(self) -> list[AuditRecord]:
        """All records, those of other processes too."""
        self._note(self._journal.read_new())
        return [self[number] for number in range(len(self._starts))]

    def close(self) -> None:
        self._journal.close()


def _decode(payload: bytes) -> AuditRecord:
    return AuditRecord(**json.loads(payload))
