"""After a campaign and a clean stop: everything that must be true of the store, held against what its clients heard.

1  every acknowledged half exists, once, byte for byte; an unacknowledged batch is there whole or not at all
2  the ops in log order give each half one end, and it is the one that the clients were told
3  every committed half is released exactly once, at the place that its op names; nothing else is but ordinary messages
4  what a consumer saw during the campaign is still there, at the same place
5  the rows say what the ops say; prepares + resumes − commits − rollbacks − discards − quarantined = pending rows (case 66)
6  `verify` finds nothing
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from store.inspect.verify.store import verify
from store.job.store import JobStore
from store.read.readers import LogReader, TopicReader, open_readers
from store.records import OpKind, State, queue_key_of, queue_offset_of, state_of, topic_of_key
from tests.campaigns.chaos.load import FOR_EVER, Ledger

_STATES = {
    OpKind.COMMIT: State.COMMITTED,
    OpKind.ROLLBACK: State.ROLLED_BACK,
    OpKind.DISCARD_MAX: State.DISCARDED_MAX,
    OpKind.DISCARD_EXPIRED: State.DISCARDED_EXPIRED,
}
_DISCARDED = (State.DISCARDED_MAX, State.DISCARDED_EXPIRED)


@dataclass(slots=True)
class Found:
    """What lies in the store. Halves by their number in the ledger."""

    half_offsets: dict[int, int] = field(default_factory=dict)
    states: dict[int, State] = field(default_factory=dict)  # by half_offset, from the ops alone
    positions: dict[int, int] = field(default_factory=dict)
    released: dict[tuple[int, int], str] = field(default_factory=dict)
    resumes: int = 0


def audit(store: Path, ledger: Ledger, seen: dict[tuple[int, int], str]) -> dict[str, int]:
    """Steps 1 to 6; figures of the store. AssertionError says what is not true."""
    assert not ledger.problems, f"{len(ledger.problems)} contradictions, the first: {ledger.problems[0]}"
    _, log, topics, _ = open_readers(store)
    assert topics is not None
    found = Found()
    _check_halves(log, ledger, found)  # 1
    _check_ends(log, ledger, found)  # 2
    _check_released(log, topics, ledger, found)  # 3
    for place, body in seen.items():  # 4
        assert found.released.get(place) == body, f"a consumer saw {body[:60]} at {place}, now it is {found.released.get(place)}"
    log.close()
    topics.close()
    figures = _check_rows(store, found)  # 5
    report = verify(store)  # 6
    assert not report.problems, f"verify: {len(report.problems)} problems, the first: {report.problems[0]}"
    return {**figures, "seen_by_consumer": len(seen)}


def _check_halves(log: LogReader, ledger: Ledger, found: Found) -> None:
    half_end, _ = log.ends()
    for half_offset, entry in enumerate(log.half_queue.read(0, half_end)):
        body = log.frame(entry).body.decode()
        ident = int(json.loads(body)["i"])
        tx = ledger.txs[ident]
        assert ident not in found.half_offsets, f"stored twice: {tx}"
        assert body == tx.body, f"stored otherwise than sent: {tx}"
        found.half_offsets[ident] = half_offset
    batches: dict[int, set[bool]] = {}
    for tx in ledger.txs:
        there = tx.ident in found.half_offsets
        assert there or not tx.id, f"an acknowledged half is lost: {tx}"
        batches.setdefault(tx.batch, set()).add(there)
    torn = [batch for batch, there in batches.items() if len(there) > 1]
    assert not torn, f"batches that are there in part: {torn[:5]}"


def _check_ends(log: LogReader, ledger: Ledger, found: Found) -> None:
    _, op_end = log.ends()
    for op in log.ops(0, op_end):
        kind, half_offset = OpKind(int(op["kind"])), int(op["half_offset"])
        state = found.states.get(half_offset, State.PREPARED)
        if kind == OpKind.RESUME and state in _DISCARDED:
            found.states[half_offset] = State.PREPARED
            found.resumes += 1
        elif kind in _STATES:
            assert state == State.PREPARED, f"half {half_offset} was {state.name} when {kind.name} was written"
            found.states[half_offset] = _STATES[kind]
            if kind == OpKind.COMMIT:
                found.positions[half_offset] = int(op["position"])
    for tx in ledger.txs:
        if tx.final:
            state = found.states.get(found.half_offsets[tx.ident], State.PREPARED)
            fine = state.name == tx.final or (tx.final not in FOR_EVER and tx.resumed)
            assert fine, f"the log says {state.name}: {tx}"


def _check_released(log: LogReader, topics: TopicReader, ledger: Ledger, found: Found) -> None:
    for key in topics.catalogue.queue_keys():
        begin, end = topics.catalogue.extent(key)
        assert begin == 0
        first, entries = topics.topic_entries(*topic_of_key(key), begin, end)
        assert len(entries) == end
        for number, entry in enumerate(entries, first):
            assert entry["size_bytes"] > 0, f"a hole in queue {topic_of_key(key)} at {number}"
            found.released[key, number] = log.frame(entry).body.decode()
    expected = {}
    for tx in ledger.txs:
        half_offset = found.half_offsets.get(tx.ident)
        if half_offset is not None and found.states.get(half_offset) == State.COMMITTED:
            position = found.positions[half_offset]
            expected[int(queue_key_of(position)), int(queue_offset_of(position))] = tx.body
    assert len(expected) == len(found.positions), "two commits have one place"
    plain = Counter(body for place, body in found.released.items() if place not in expected)
    for place, body in expected.items():
        assert found.released.get(place) == body, f"at {place} there should be {body[:60]}, not {found.released.get(place)}"
    for body, count in plain.items():
        assert body in ledger.messages, f"released although nobody committed it: {body[:60]}"
        assert count == 1, f"released {count} times: {body}"
    lost = [body for body, acknowledged in ledger.messages.items() if acknowledged and body not in plain]
    assert not lost, f"acknowledged messages that are not visible: {lost[:3]}"


def _check_rows(store: Path, found: Found) -> dict[str, int]:
    job = JobStore(store)
    try:
        totals, marker = job.marker.totals, job.marker
        offsets = np.arange(len(found.half_offsets))
        words = job.table.get(offsets)["word"]
        wrong = [at for at in offsets.tolist() if state_of(int(words[at])) != found.states.get(at, State.PREPARED)]
        assert not wrong, f"rows that say something else than the ops: {wrong[:5]}"
        states = Counter(State(int(state_of(int(word)))) for word in words)
        ended = sum(totals[name] for name in ("commits", "rollbacks", "discards_max", "discards_expired", "quarantined"))
        gauge = totals["prepares"] + totals["resumes"] - ended
        job.table.count_pending()
        assert gauge == marker.pending == job.table.pending == states[State.PREPARED], (gauge, marker.pending, job.table.pending)
        assert (totals["prepares"], totals["resumes"]) == (len(offsets), found.resumes)
        assert (totals["commits"], totals["quarantined"]) == (states[State.COMMITTED], 0)
        assert totals["rollbacks"] == states[State.ROLLED_BACK]
        assert (marker.half_cursor, marker.op_cursor) == job.log.ends(), "not everything is settled"
        return {**totals, "pending": gauge, "redo_batches": marker.sequence}
    finally:
        job.close()
