"""Transactions of many messages, joint ends and names against a simple model: over adds and ends in any order, kills, clean exits,
settlement in any pieces, and corrupt ops. At the end every file agrees with every other."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checker.policy import Policy
from store.directory import TRANSACTIONS, Geometry, StoreDirectory
from store.edge.store import EdgeStore, End, Head
from store.errors import InvalidRecord
from store.inspect.verify.store import verify
from store.io.pages import JobSlot
from store.job.store import JobStore
from store.messages import Membership, Message
from store.read.readers import LogReader, TopicReader
from store.records import OpKind, State, Via, topic_of_key
from store.tables.ends import Verdict
from streaming.settlement.settle import Settler, read_feed

GROUPS, TOPICS, NAMES = ("ga", "gb"), ("ta", "tb"), ("", "n1", "n2")
GEOMETRY = Geometry(1 << 16, 64, 64, 64, 64)
NOW_MS = 1_700_000_000_000

numbers = st.integers(0, 1 << 30)
commands = st.lists(st.tuples(st.integers(0, 11), numbers, numbers, numbers), min_size=5, max_size=40)


@dataclass
class Tx:
    group: str
    offset: int
    name: str
    bodies: list[bytes]
    members: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    state: str = "open"
    #: States before each op about it.
    before: list[str] = field(default_factory=list)

    def become(self, state: str) -> None:
        self.before.append(self.state)
        self.state = state

    def contiguous(self) -> int:
        count = 0
        while count + 1 in self.members:
            count += 1
        return count


class World:
    """Store and model, side by side."""

    def __init__(self, root: Path) -> None:
        self.root, self.body = root, 0
        self.txs: list[Tx] = []
        self.released: dict[int, bytes] = {}
        self.names: dict[tuple[str, str], Tx] = {}
        self.edge = self.open()
        self.job = JobStore(root, geometry=GEOMETRY)
        self.seen_quarantine = 0

    def open(self) -> EdgeStore:
        return EdgeStore(self.root, geometry=GEOMETRY, default_queues=2, checkpoint_bytes=4096)

    def fresh_body(self) -> bytes:
        self.body += 1
        return b"%06d" % self.body

    def pick(self, number: int, state: str | None = None) -> Tx | None:
        chosen = [tx for tx in self.txs if state is None or tx.state == state]
        return chosen[number % len(chosen)] if chosen else None

    # --- commands -----------------------------------------------------------------------------------------
    def begin(self, a: int, b: int, c: int) -> None:
        group, name, count = GROUPS[a % 2], NAMES[b % 3], c % 4
        bodies = [self.fresh_body() for _ in range(count + 1)]
        keys = [{"KEYS": str((a + at) % 3)} if a % 5 else {} for at in range(count + 1)]
        batch = [Message(group, TOPICS[b % 2], bodies[0], keys[0], name=name)]
        for at in range(1, count + 1):
            batch.append(Message(group, TOPICS[(b + at) % 2], bodies[at], keys[at], member=Membership(-at, at)))
        appended = self.edge.append_halves(batch, NOW_MS)
        self.edge.wait(appended.ticket)
        offsets = list(appended.offsets)
        members = {at: (offsets[at], bodies[at]) for at in range(1, count + 1)}
        self.txs.append(Tx(group, offsets[0], name, bodies[:1], members))

    def add(self, a: int, b: int, c: int) -> None:
        tx = self.pick(a)
        if tx is None:
            return
        ordinal = 1 + b % 5
        known = tx.members.get(ordinal)
        body = known[1] if known and c % 2 else self.fresh_body()
        message = Message(tx.group, TOPICS[c % 2 if known is None else 0], body, member=Membership(tx.offset, ordinal))
        if known and c % 2:  # exactly as it was
            frame = self.edge.read_half(known[0])
            names = self.edge.dictionary.topics
            own = {name: text for name, text in frame.properties.items() if name == "KEYS"}
            message = message._replace(topic=names[frame.fields["topic_no"]], properties=own)
        try:
            appended = self.edge.append_halves([message], NOW_MS)
        except InvalidRecord:
            assert tx.state != "open" or (known is not None and not c % 2)
            return
        assert tx.state == "open"
        self.edge.wait(appended.ticket)
        if known is not None:
            assert c % 2
            assert list(appended.offsets) == [known[0]]
        else:
            tx.members[ordinal] = (appended.offsets[0], body)

    def end(self, a: int, b: int, c: int) -> None:
        tx = self.pick(a)
        if tx is None:
            return
        kind = OpKind.ROLLBACK if b % 4 == 0 else OpKind.COMMIT
        count = [None, 0, tx.contiguous(), tx.contiguous(), tx.contiguous() + 1][c % 5]
        via = Via.OPERATOR if c % 7 == 0 else Via.PRODUCER
        answer = self.edge.end([End(tx.offset, kind, tx.group, via, members=count)], NOW_MS)[0]
        self.expect([(tx, count)], kind, via, answer)

    def joint(self, a: int, b: int, c: int) -> None:
        first = self.pick(a)
        if first is None:
            return
        others = [tx for tx in self.txs if tx.group == first.group and tx is not first and (b >> tx.offset % 20) & 1][:3]
        if not others:
            return
        kind = OpKind.ROLLBACK if c % 5 == 0 else OpKind.COMMIT
        listed = [(tx, tx.contiguous()) for tx in (first, *others)]
        heads = tuple(Head(tx.offset, count) for tx, count in listed[1:])
        end = End(first.offset, kind, first.group, members=listed[0][1], joint=heads)
        answer = self.edge.end([end], NOW_MS)[0]
        self.expect(listed, kind, Via.PRODUCER, answer, joint=True)

    def member_alone(self, a: int, b: int, c: int) -> None:
        tx = self.pick(a)
        if tx is None or not tx.members:
            return
        offset, _ = tx.members[sorted(tx.members)[b % len(tx.members)]]
        answer = self.edge.end([End(offset, OpKind.COMMIT, tx.group)], NOW_MS)[0]
        assert (answer.verdict, answer.reason, answer.other) == (Verdict.REFUSED, "member", tx.offset)

    def discard(self, a: int, b: int, c: int) -> None:
        tx = self.pick(a, "open")
        if tx is not None:
            answer = self.edge.end([End(tx.offset, OpKind.DISCARD_MAX, via=Via.CHECKER)], NOW_MS)[0]
            assert answer.verdict is Verdict.ACCEPTED
            tx.become("discarded")

    def resume(self, a: int, b: int, c: int) -> None:
        tx = self.pick(a, "discarded")
        if tx is not None:
            answer = self.edge.end([End(tx.offset, OpKind.RESUME, via=Via.OPERATOR)], NOW_MS)[0]
            assert answer.verdict is Verdict.ACCEPTED
            tx.become("open")

    def settle(self, a: int, b: int, c: int) -> None:
        settler, limit = Settler(self.job, Policy()), 1 + a % 7
        for _ in range(1 + b % 4):
            marker = self.job.marker
            settler.settle(read_feed(self.job.log, marker.half_cursor, marker.op_cursor, limit), NOW_MS)

    def settle_all(self) -> None:
        settler, before = Settler(self.job, Policy()), None
        while before != (before := (self.job.marker.half_cursor, self.job.marker.op_cursor)):
            settler.settle(read_feed(self.job.log, *before, 5), NOW_MS)
        assert before == (self.edge.half_end, self.edge.op_end)

    def kill_edge(self, a: int, b: int, c: int) -> None:
        if b % 2:
            self.edge.close()
        else:
            self.edge.__exit__(RuntimeError)
        self.edge = self.open()

    def kill_job(self, a: int, b: int, c: int) -> None:
        if b % 2:
            self.job.close()
        else:
            self.job.__exit__(RuntimeError)
        self.job = JobStore(self.root, geometry=GEOMETRY, rebuild=a % 3 == 0)

    def corrupt(self, a: int, b: int, c: int) -> None:
        """Damage an op that the job has not read, and do as the edge does when the job reports it."""
        first, stop = self.job.marker.op_cursor, self.edge.op_end
        if first == stop or self.edge.half_end == 0:
            return
        entry = self.edge.op_queue.entry(first + a % (stop - first))
        offset, size, _ = entry
        buffer, at = self.edge.log.file.locate(offset, size)
        entries = self.edge.op_queue.read(first, stop)
        halves = entries["tags_code"][entries["commit_log_offset"] == offset].tolist()
        about = [tx for tx in self.txs if tx.offset in halves]
        later = entries["tags_code"][entries["commit_log_offset"] > offset].tolist()
        if any(tx.offset in later for tx in about):
            return  # what a lost op means for later ones of the same half is another test's
        self.edge.log.file.write(offset + 40, bytes([buffer[at + 40] ^ 0xFF]))
        self.settle_all()
        self.take_quarantine()
        for tx in about:
            for half in [tx.offset, *(half for half, _ in tx.members.values())]:
                self.released.pop(half, None)
            if len(about) > 1:
                tx.state = "lost"
            else:
                tx.state = tx.before.pop()
                if self.names.get((tx.group, tx.name)) is tx:
                    del self.names[tx.group, tx.name]

    def take_quarantine(self) -> None:
        topics = TopicReader(self.job.directory)
        queue, end = topics.queue("quarantine"), topics.page[JobSlot.QUARANTINE_END]
        for tag in queue.read(self.seen_quarantine, end)["tags_code"].tolist():
            if tag < 0:
                self.edge.reopen(-1 - tag)
        self.seen_quarantine = end
        self.edge.checkpoint()
        topics.close()

    # --- the model ----------------------------------------------------------------------------------------
    def expect(self, listed, kind, via, answer, *, joint=False) -> None:
        txs = [tx for tx, _ in listed]
        winner = next((self.names[tx.group, tx.name] for tx in txs if tx.name and self._taken(tx)), None)
        if kind is OpKind.COMMIT and winner is not None:
            assert (answer.verdict, answer.reason, answer.other) == (Verdict.ALREADY, "name_taken", winner.offset)
            if all(tx.state == "open" for tx in txs):
                for tx in txs:
                    tx.become("rolled_back")
            return
        wanted = "committed" if kind is OpKind.COMMIT else "rolled_back"
        states = {tx.state for tx in txs}
        if states == {wanted}:
            assert answer.verdict is Verdict.ALREADY
            return
        if states != {"open"}:
            assert answer.verdict in (Verdict.CONFLICT, Verdict.REFUSED, Verdict.ALREADY)
            assert answer.verdict is not Verdict.ALREADY or "lost" in states
            return
        names = [(tx.group, tx.name) for tx in txs if tx.name]
        plans = [self._listed(tx, count, via) for tx, count in listed]
        if kind is OpKind.COMMIT and (None in plans or len(set(names)) < len(names)):
            assert answer.verdict is Verdict.REFUSED
            return
        assert answer.verdict is Verdict.ACCEPTED, answer
        for (tx, _), plan in zip(listed, plans, strict=True):
            tx.become(wanted)
            if kind is OpKind.COMMIT:
                self.released[tx.offset] = tx.bodies[0]
                assert plan is not None
                self.released.update(plan)
                if tx.name:
                    self.names[tx.group, tx.name] = tx

    def _taken(self, tx: Tx) -> bool:
        winner = self.names.get((tx.group, tx.name))
        return winner is not None and winner is not tx

    @staticmethod
    def _listed(tx: Tx, count: int | None, via: Via) -> dict[int, bytes] | None:
        if count is None and via is not Via.OPERATOR:
            return None if tx.members else {}
        chosen = sorted(tx.members) if count is None else range(1, count + 1)
        if any(ordinal not in tx.members for ordinal in chosen):
            return None
        return {tx.members[ordinal][0]: tx.members[ordinal][1] for ordinal in chosen}

    def check(self) -> None:
        self.settle_all()
        self.take_quarantine()
        pending = sum(tx.state == "open" for tx in self.txs)
        assert self.job.marker.pending == pending
        self.edge.pending.count()
        assert sum(self.edge.pending.counts) == pending
        topics, log = TopicReader(self.job.directory), LogReader(self.job.directory)
        found = defaultdict(list)
        for key, (begin, end) in topics.catalogue.extents().items():
            for offset, size, _ in topics.topic_entries(*topic_of_key(key), begin, end - begin)[1].tolist():
                if size:
                    frame = log.log.read(offset, size)
                    found[frame.queue_offset].append(frame.body)
        assert dict(found) == {half: [body] for half, body in self.released.items()}
        for tx in self.txs:
            word = int(topics.words(np.array([tx.offset]))[0])
            assert State(word & 7).name.split("_")[0].lower().startswith(WORD[tx.state])
        topics.close()
        log.close()


WORD = {"open": "prepared", "committed": "committed", "rolled_back": "rolled", "discarded": "discarded", "lost": "quarantined"}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(commands)
def test_transactions_end_whole(todo):
    with TemporaryDirectory() as directory:
        world = World(Path(directory))
        steps = (
            world.begin, world.begin, world.add, world.end, world.end, world.joint, world.member_alone, world.discard,
            world.resume, world.settle, world.kill_edge, world.kill_job,
        )  # fmt: skip
        world.begin(1, 0, 2)
        for which, a, b, c in todo:
            (world.corrupt if which == 9 and a % 3 == 0 else steps[which])(a, b, c)
        world.check()
        world.edge.close()
        world.job.close()
        assert TRANSACTIONS in StoreDirectory(world.root).needs
        report = verify(world.root)
        damaged = {tx.state for tx in world.txs} & {"lost"} or world.seen_quarantine
        assert damaged or not report.problems, report.problems
