"""One small store with a record of every kind in every file, the same bytes each time (but for its random store id).

    half  0 committed · 1 rolled back · 2 asked, UNKNOWN, proposed for discard
          3 committed by the answer to a check, with dedup key · 4 discarded (max) and resumed · 5 discarded (expired)
          6 quarantined, its commit a hole · 7 its first commit was corrupt: committed again
          8, 9 pending · 10 … 12 pending, large: the log rolls, a PAD closes its first segment

Frames of half 6 and of the first commit of half 7 are corrupt while they are settled. `mend` puts the bytes right afterwards, so
that nothing is wrong with the store any more.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

import numpy as np

from checker.decisions import Tick
from checker.policy import Policy
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind, Via
from store.tables.delivery_cursors import CHECK, PROPOSAL, QUARANTINE, Cursors
from store.tables.frames import HALF_HEAD, HEAD
from store.tables.journals.audit import Audit, AuditRecord
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers
from store.tables.presence import Presence
from streaming.settlement.settle import Settler, read_feed

T0_MS = 1_800_000_000_000
GEOMETRY = Geometry(
    commit_log_segment_bytes=64 << 10,
    state_rows_per_file=64,
    redo_entries_per_file=64,
    log_queue_entries_per_file=64,
    topic_queue_entries_per_file=64,
)
POLICY = Policy(transaction_timeout_s=6, check_count_max=1, check_interval_s=30)
HOST = ipaddress.ip_address("::ffff:10.1.2.3").packed


class Sample:
    """The store while it is being made: edge, job, and a time that only goes forward."""

    def __init__(self, root: Path, geometry: Geometry = GEOMETRY) -> None:
        self.root, self.now_ms = root, T0_MS
        self.edge = EdgeStore(root, geometry=geometry, default_queues=2, store_host=HOST, store_port=10911)
        self.job = JobStore(root)

    def sleep(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    def end(self, half_offset: int, kind: OpKind, **more: object) -> None:
        self.edge.end([End(half_offset, kind, **more)], self.now_ms)  # type: ignore[arg-type]

    def settle(self) -> None:
        marker = self.job.marker
        Settler(self.job, POLICY).settle(read_feed(self.job.log, marker.half_cursor, marker.op_cursor), self.now_ms)

    def check_round(self, round_no: int) -> None:
        tick = Tick(self.now_ms, round_no, self.now_ms, ops_caught_up=True)
        for _ in Settler(self.job, POLICY).check_round(tick, np.ones(len(self.edge.dictionary.groups), bool)):
            pass

    def flip(self, commit_log_offset: int) -> None:
        """Flip the bits of one byte of the log, behind everybody's back."""
        size = self.edge.log.segment_bytes
        path = self.edge.directory.commit_log / f"{commit_log_offset - commit_log_offset % size:020d}"
        with path.open("r+b") as file:
            file.seek(commit_log_offset % size)
            byte = file.read(1)[0]
            file.seek(commit_log_offset % size)
            file.write(bytes([byte ^ 0xFF]))

    def close(self) -> None:
        self.job.close()
        self.edge.close()


def build_sample(root: Path, *, mend: bool = True) -> None:
    """Make the sample store in `root`, closed in order."""
    sample = Sample(root)
    _take_halves(sample)
    corrupt = [_end_some(sample)]
    _ask_and_discard(sample)
    corrupt.append(_lose_an_op(sample))
    _write_small_files(sample)
    if mend:
        for offset in corrupt:
            sample.flip(offset)
    sample.close()


def _take_halves(sample: Sample) -> None:
    edge, now_ms = sample.edge, sample.now_ms
    first = Message("orders", "paid", b"half 0", {"TAGS": "blue", "KEYS": "k0"}, None, now_ms - 77, HOST, 4711, 20, 7)
    edge.prepare([first, Message("orders", "paid", b"half 1"), Message("orders", "paid", b"half 2", queue_id=1)], now_ms)
    once = Message("orders", "paid", b"half 3", dedup_key="once")
    assert list(edge.prepare([once], now_ms)) == list(edge.prepare([once], now_ms)) == [3]
    edge.prepare([Message("Aa", "shipped", b"half %d" % number) for number in range(4, 10)], now_ms)
    for number in (10, 11, 12):
        edge.prepare([Message("Aa", "shipped", b"%d" % (number % 10) * 30_000)], now_ms)
    ticket = edge.append_messages(
        [Message("BB", "shipped", b"ordinary", {"TAGS": "red"}), Message("BB", "shipped", b"")], now_ms
    ).ticket
    edge.wait(ticket)


def _end_some(sample: Sample) -> int:
    """The first ends and the first settlement, to which half 6 is corrupt. The byte that was flipped."""
    sample.sleep(2)
    sample.end(0, OpKind.COMMIT, group="orders")
    sample.end(1, OpKind.ROLLBACK, group="orders")
    sample.end(2, OpKind.UNKNOWN, group="orders", remark="still thinking")
    sample.end(6, OpKind.COMMIT, group="Aa")
    body_at = int(sample.edge.half_queue.read(6, 7)["commit_log_offset"][0]) + HALF_HEAD.itemsize
    sample.flip(body_at)
    sample.settle()
    return body_at


def _ask_and_discard(sample: Sample) -> None:
    sample.sleep(38)
    sample.check_round(1)
    sample.edge.wait(sample.edge.append_asked([2, 3, 4], "member-1", sample.now_ms))
    sample.end(2, OpKind.UNKNOWN, group="orders", via=Via.CHECK)
    sample.end(3, OpKind.COMMIT, group="orders", via=Via.CHECK)
    sample.settle()
    sample.sleep(60)
    sample.check_round(3)
    sample.end(4, OpKind.DISCARD_MAX, via=Via.CHECKER)
    sample.end(5, OpKind.DISCARD_EXPIRED, via=Via.CHECKER)
    sample.settle()
    sample.end(4, OpKind.RESUME, via=Via.OPERATOR, actor="ann", remark="look again")
    sample.settle()


def _lose_an_op(sample: Sample) -> int:
    """The commit of half 7 is corrupt when it is settled; reported to the edge, the half is committed again. The byte."""
    edge = sample.edge
    sample.end(7, OpKind.COMMIT, group="Aa")
    lost = edge.op_end - 1
    half_offset_at = int(edge.op_queue.read(lost, lost + 1)["commit_log_offset"][0]) + HEAD.itemsize
    sample.flip(half_offset_at)
    sample.settle()
    edge.reopen(lost)
    sample.end(7, OpKind.COMMIT, group="Aa")
    sample.settle()
    return half_offset_at


def _write_small_files(sample: Sample) -> None:
    root = sample.root
    presence = Presence(root / "presence", writable=True)
    presence.seen(0, sample.now_ms)
    presence.seen(1, sample.now_ms - 5)
    presence.close()
    cursors = Cursors(root / "edge.cursors", writable=True)
    cursors[CHECK], cursors[PROPOSAL], cursors[QUARANTINE] = 3, 1, 1
    audit = Audit(root / "audit", writable=True)
    audit.append(AuditRecord(sample.now_ms, "ann", "resume", "half 4", "customer called", "accepted"))
    audit.append(AuditRecord(sample.now_ms + 1, "bob", "force-commit", "half 5", "", "refused"))
    audit.close()
    consumers = Consumers(root / "consumers", writable=True)
    consumers.append(
        [ConsumerRecord(ConsumerKind.OFFSET, 0, 1, 1), ConsumerRecord(ConsumerKind.RECEIPT, 0, 65, 0, 1, sample.now_ms + 30_000)]
    )
    consumers.append([ConsumerRecord(ConsumerKind.DONE, 0, 65, 0), ConsumerRecord(ConsumerKind.SEEK, 0, 1, 0)])
    consumers.close()
