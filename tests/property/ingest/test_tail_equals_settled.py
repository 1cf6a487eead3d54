"""The unsettled tail against the settled queues, over random histories of edge and job.

Held at every look: what is served continues without a gap where it stopped, each offset with the message that its commit was
promised. Held in the end, when all is settled: the same offsets hold the same messages in the settled queues. A place whose op was
damaged before anybody read it is served by nobody.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ingest.consuming.reading import tail as tail_module
from ingest.consuming.reading.settled_queues import Settled
from ingest.consuming.reading.tail import Tail
from store.edge.store import EdgeStore, End
from store.job.store import JobStore
from store.messages import Message
from store.read.readers import LogReader
from store.records import OpKind, Via, queue_key_of, queue_offset_of
from store.tables import delivery_cursors
from store.tables.delivery_cursors import Cursors
from store.tables.ends import Verdict
from streaming.settlement.settle import Settler
from tests.support.service import Service, drop, read_topic

TOPICS = ("paid", "else", "Aa")
GROUP = "orders"
BOOT = 7


class TailAndQueues(RuleBasedStateMachine):
    @initialize(queues=st.sampled_from([1, 2]))
    def begin(self, queues: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.root = Path(self.directory.name) / "store"
        self.options: dict[str, Any] = {"default_queues": queues}
        self.service = Service(self.root, edge_options=self.options)
        self.cursors = Cursors(self.root / "edge.cursors", writable=True)
        self.cursors[delivery_cursors.BOOT] = BOOT
        self.numbered = 0
        self.damaged = -1
        self.pending: list[int] = []
        self.discarded: list[int] = []
        self.half_bodies: dict[int, bytes] = {}
        self.promised: dict[tuple[int, int], bytes] = {}
        self.lost: set[tuple[int, int]] = set()
        self.served: dict[tuple[int, int], bytes] = {}
        self.next: dict[int, int] = {}
        self.read_up_to = 0
        self.quarantine_seen = 0
        self.open_tail()

    def open_tail(self) -> None:
        self.tail = Tail(LogReader(self.service.edge.directory), Settled(self.service.edge.directory, self.cursors, BOOT))

    def teardown(self) -> None:
        if not hasattr(self, "service"):
            return
        try:
            self.settle_all()
            self.look_and_serve()
            self.compare_with_settled()
            assert set(self.served) == set(self.promised)
        finally:
            self.tail.close()
            self.service.crash()
            self.directory.cleanup()

    # --- producers ---
    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def halves(self, topic: str, count: int) -> None:
        bodies = [self.body() for _ in range(count)]
        for half, body in zip(self.service.send(*bodies, topic=topic), bodies, strict=True):
            self.half_bodies[half] = body
            self.pending.append(half)

    def body(self) -> bytes:
        self.numbered += 1
        return b"message %d" % self.numbered

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 5))
    def messages(self, topic: str, count: int) -> None:
        edge, bodies = self.service.edge, [self.body() for _ in range(count)]
        appended = edge.append_messages([Message(GROUP, topic, body) for body in bodies], self.service.now_ms)
        edge.wait(appended.ticket)
        for op, body in zip(appended.offsets, bodies, strict=True):
            self.promise(edge.log.read(*edge.op_queue.entry(op)[:2]).fields["position"], body)

    def promise(self, position: int, body: bytes) -> None:
        place = (int(queue_key_of(position)), int(queue_offset_of(position)))
        assert place not in self.served, f"{place} was given twice"
        self.promised[place] = body

    @rule(data=st.data(), kind=st.sampled_from([OpKind.COMMIT, OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.UNKNOWN]))
    def end_some(self, data: Any, kind: OpKind) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.pending), max_size=6, unique=True)) if self.pending else []
        self.end(chosen, kind)

    def end(self, halves: list[int], kind: OpKind) -> None:
        via = Via.CHECK if kind == OpKind.UNKNOWN else Via.PRODUCER
        answers = self.service.edge.end([End(half, kind, None, via) for half in halves], self.service.now_ms)
        for half, answer in zip(halves, answers, strict=True):
            if answer.verdict is not Verdict.ACCEPTED or kind == OpKind.UNKNOWN:
                continue
            if half in self.pending:
                self.pending.remove(half)
            if kind == OpKind.COMMIT:
                self.promise(answer.position, self.half_bodies[half])
            elif kind == OpKind.DISCARD_MAX:
                self.discarded.append(half)

    @precondition(lambda self: self.discarded)
    @rule(commit=st.booleans())
    def resume(self, commit: bool) -> None:
        half = self.discarded.pop()
        kinds = [OpKind.RESUME, OpKind.COMMIT] if commit else [OpKind.RESUME]
        answers = self.service.operate(half, *kinds)
        if commit and answers[-1].verdict is Verdict.ACCEPTED:
            self.promise(answers[-1].position, self.half_bodies[half])
        elif not commit:
            self.pending.append(half)

    @rule(half_count=st.integers(1, 3))
    def asked(self, half_count: int) -> None:
        ticket = self.service.edge.append_asked(self.pending[:half_count], "m", self.service.now_ms)
        self.service.edge.wait(ticket)

    # --- damage ---
    @rule()
    def corrupt_the_last_op(self) -> None:
        """Only one that nobody has read: what was read cannot be taken back."""
        edge = self.service.edge
        op = edge.op_end - 1
        if op < max(self.read_up_to, self.service.job.marker.op_cursor, self.damaged + 1):
            return
        self.damaged = op
        at, size, _ = edge.op_queue.entry(op)
        frame = edge.log.read(at, size)
        position = frame.fields["position"]
        if position >= 0:
            place = (int(queue_key_of(position)), int(queue_offset_of(position)))
            self.lost.add(place)
            self.promised.pop(place)
        segment = at - at % edge.log.segment_bytes
        with (edge.directory.commit_log / f"{segment:020d}").open("r+b") as file:
            file.seek(at - segment + 20)
            file.write(b"\xff\xff")

    # --- the job ---
    @rule(records_max=st.sampled_from([1, 2, 3, 5, 1000]))
    def settle_some(self, records_max: int) -> None:
        self.service.settler.settle(self.service.feed(records_max), self.service.now_ms)
        self.reopen_quarantined()

    def reopen_quarantined(self) -> None:
        """As the edge's followers do: the half of a lost op is open again."""
        stop = self.service.job.marker.quarantine_end
        for tag in self.service.queue("quarantine", self.quarantine_seen, stop)["tags_code"].tolist():
            half = self.service.edge.reopen(-1 - tag) if tag < 0 else -1
            if half >= 0 and half in self.half_bodies and not self.service.edge.end_of(half) and half not in self.pending:
                self.pending.append(half)
        self.quarantine_seen = stop

    def settle_all(self) -> None:
        self.service.settle()
        self.reopen_quarantined()

    @rule(clean=st.booleans(), rebuild=st.booleans())
    def restart_job(self, clean: bool, rebuild: bool) -> None:
        if clean:
            self.service.job.close()
        else:
            drop(self.service.job)
        self.service.job = JobStore(self.root, rebuild=rebuild)
        self.service.settler = Settler(self.service.job, self.service.policy)

    @rule(clean=st.booleans())
    def restart_edge(self, clean: bool) -> None:
        self.tail.close()
        if clean:
            self.service.edge.close()
        else:
            drop(self.service.edge)
        self.service.edge = EdgeStore(self.root, geometry=self.service.geometry, **self.options)
        self.open_tail()
        # What damage ate, recovery may have opened again.
        for half in self.half_bodies:
            ended = self.service.edge.end_of(half)
            if not ended and half not in self.pending and half not in self.discarded:
                self.pending.append(half)

    # --- consumers ---
    @rule(at_once=st.sampled_from([1, 2, 7, 2048]), whole=st.booleans())
    def look_at_ops(self, at_once: int, whole: bool) -> None:
        before, tail_module.OPS_AT_ONCE = tail_module.OPS_AT_ONCE, at_once  # type: ignore[misc]
        try:
            while self.tail.look_at_ops()[1] and whole:
                pass
        finally:
            tail_module.OPS_AT_ONCE = before  # type: ignore[misc]
        self.read_up_to = max(self.read_up_to, self.tail._next)
        self.serve()

    @rule()
    def look_at_job(self) -> None:
        self.tail.look_at_job()
        self.serve()

    @rule()
    def look_and_serve(self) -> None:
        self.tail.look_at_job()
        while self.tail.look_at_ops()[1]:
            pass
        self.read_up_to = max(self.read_up_to, self.tail._next)
        self.serve()

    @rule()
    def serve(self) -> None:
        dictionary = self.service.edge.dictionary
        for topic_no, queues in enumerate(dictionary.queues):
            for queue_id in range(queues):
                self.serve_queue(topic_no << 6 | queue_id)

    def serve_queue(self, key: int) -> None:
        begin, end = self.tail.extent(key)
        first = self.next.get(key, 0)
        # Nothing is deleted here: a queue begins later only where its first places were lost.
        assert not any((key, offset) in self.promised for offset in range(first, begin))
        first = max(first, begin)
        if first >= end:
            return
        entries: list[tuple[int, int, int]] = []
        while first + len(entries) < end:
            found = self.tail.entries(key, first + len(entries), end)
            assert found, "entries within the extent can be read"
            entries += found
        for offset, (at, size, _) in enumerate(entries, first):
            frame = self.tail.frame(key, at, size) if size else None
            if frame is None:
                assert (key, offset) not in self.promised, f"{key}, {offset} is not there"
            else:
                assert frame.body == self.promised[key, offset]
                self.served[key, offset] = frame.body
        self.next[key] = end

    @rule()
    def compare_with_settled(self) -> None:
        """Whatever is settled by now is what was served."""
        dictionary = self.service.edge.dictionary
        for topic in dictionary.topics:
            for found in read_topic(self.root, topic):
                key = (dictionary.topic_no(topic) or 0) << 6 | found.queue_id
                assert self.promised[key, found.queue_offset] == found.body
                assert self.served.get((key, found.queue_offset), found.body) == found.body


TailAndQueues.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
test_tail_equals_settled = TailAndQueues.TestCase
