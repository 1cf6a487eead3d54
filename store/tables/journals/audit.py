"""The audit: who did what, append-only. A journal (`journal.py`) of UTF-8 JSON objects, made durable before the action is
answered.

Two records for each action: the intent, durable before anything is done, and the outcome, which names the intent by its number
(`about`). An intent without an outcome: the process died in between, and the transactions' own histories tell how far it came.
What is only noted (logins, denials, changed tokens) has one record.

Keys: at_ms, actor, action, target, reason, result; where there is something to say also ids (the first IDS_MAX), filter, matched,
counts, about, tokens (of an action `tokens`: id → name and a digest of its entry). Writer: the edge. Truth: rebuilt from nothing;
never shortened.

The records are a chain: `prev` of each is the SHA-256 of the payload before it, in hexadecimal digits. Records of before the chain
have no `prev`; the first one that has covers the last of them. An *anchor* is a message of topic ANCHOR_TOPIC in the commit log:
its body is the JSON object {"records": n, "sha256": hash of record n - 1's payload}. A record that was changed, removed or put in
breaks the chain; an audit that was rewritten as a whole does not fit the anchors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from store.errors import Corrupt
from store.io.journal import HEAD, Journal
from store.io.pages import EdgeSlot
from store.naming import SYSTEM_PREFIX

NAME: Final = "audit"
#: Where the page says how far it was flushed.
MARK_SLOT: Final = EdgeSlot.AUDIT_END
#: Ids of one action that are written down; `matched` says how many there were.
IDS_MAX: Final = 100
ANCHOR_TOPIC: Final = f"{SYSTEM_PREFIX}audit"
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
    tokens: dict[str, list[str]] | None = None
    prev: str = ""


class Head(NamedTuple):
    """How many records there are, and the hash of the last one's payload; what an anchor tells."""

    records: int
    sha256: str

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, body: bytes) -> Head:
        """ValueError if it is not an anchor."""
        try:
            found = json.loads(body)
            return cls(int(found["records"]), str(found["sha256"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no anchor: {body[:80]!r}") from error


class Audit:
    """Append and read. Records are numbered from 0 on; in memory is only where each begins."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self._journal = Journal(path, NAME, writable=writable, mark_slot=MARK_SLOT)
        self._forget()
        self._note(self._journal.recover() if writable else self._journal.read_new())

    def _forget(self) -> None:
        self._starts: list[int] = []
        self._end = 0
        #: The outcome of each intent, by number.
        self._outcomes: dict[int, int] = {}
        self._last_hash = ""
        self._last: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def _note(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            try:
                said = json.loads(payload)
                about = said.get("about")
            except (ValueError, AttributeError) as error:
                reason = f"not an audit record ({error}): another file was put here. Put it back from a backup"
                raise Corrupt(self._journal.path, self._end, reason) from error
            self._last[said.get("action", "")] = len(self._starts)
            if about is not None:
                self._outcomes[about] = len(self._starts)
            self._starts.append(self._end)
            self._end += HEAD.size + len(payload)
            self._last_hash = hash_of(payload)

    def append(self, record: AuditRecord) -> int:
        """Its number, once it is durable."""
        said = {name: value for name, value in asdict(record).items() if name in _ALWAYS or value not in (None, [], "")}
        said["prev"] = self._last_hash
        payload = json.dumps(said, sort_keys=True).encode()
        self._journal.append([payload])
        self._note([payload])
        return len(self._starts) - 1

    @property
    def head(self) -> Head:
        return Head(len(self._starts), self._last_hash)

    def last(self, action: str) -> AuditRecord | None:
        """The newest record of an action."""
        number = self._last.get(action)
        return None if number is None else self[number]

    def __getitem__(self, number: int) -> AuditRecord:
        return _decode(self._journal.read_at(self._starts[number]))

    def outcome_of(self, number: int) -> AuditRecord | None:
        """What became of the action whose intent has this number."""
        found = self._outcomes.get(number)
        return None if found is None else self[found]

    def records(self) -> list[AuditRecord]:
        """All records, those of other processes too."""
        payloads = self._journal.read_new()
        if self._journal.began_anew:
            self._forget()
        self._note(payloads)
        return [self[number] for number in range(len(self._starts))]

    def close(self) -> None:
        self._journal.close()


def _decode(payload: bytes) -> AuditRecord:
    return AuditRecord(**json.loads(payload))


def hash_of(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def check_chain(path: Path, anchors: Iterable[Head] = ()) -> Head:
    """Read the whole audit and hold it against its own chain and these anchors; its head. Corrupt names the first record at which
    they part."""
    hashes: list[str] = []
    chained = False
    for number, payload in enumerate(Journal(path, "audit").read_new()):
        prev = json.loads(payload).get("prev")
        if prev is None and chained:
            raise Corrupt("audit", number, "the record has no hash of the one before it: it was put in or changed")
        if prev is not None and prev != (hashes[-1] if hashes else ""):
            raise Corrupt("audit", number, "the record does not follow the one before it: one was changed, removed or put in")
        chained = chained or prev is not None
        hashes.append(hash_of(payload))
    for anchor in anchors:
        if anchor.records > len(hashes):
            raise Corrupt(
                "audit", len(hashes), f"the commit log has an anchor for {anchor.records} records: the last ones were removed"
            )
        if anchor.records and hashes[anchor.records - 1] != anchor.sha256:
            raise Corrupt("audit", anchor.records - 1, "the commit log has an anchor for another record: the audit was rewritten")
    return Head(len(hashes), hashes[-1] if hashes else "")
