"""A whole service against a plain dictionary: random sends, ends, settlements with random batch boundaries, check rounds, resumes,
crashes in the middle of a settlement, replays of old feeds, and reopenings of every kind.

Held at every step: answers are those of the model; what is visible is a prefix of what the model says, each message at the place
that its answer promised; the gauge equals the count of rows; a reopening or a rebuild changes no byte of what is derived; a feed
that was settled before changes nothing. Hypothesis prints how to reproduce a failure.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checker.policy import Policy
from store import disk
from store.edge import End
from store.ends import Verdict
from store.frames import Message
from store.job import JobStore
from store.records import OpKind, State, Via
from store.redo_log import RedoLog
from streaming.settle import Settler
from tests.support.service import SMALLEST, Service, contents, drop, place

GROUPS = ("orders", "Aa", "BB")
TOPICS = ("paid", "else")
ENDED = {
    OpKind.COMMIT: State.COMMITTED,
    OpKind.ROLLBACK: State.ROLLED_BACK,
    OpKind.DISCARD_MAX: State.DISCARDED_MAX,
    OpKind.DISCARD_EXPIRED: State.DISCARDED_EXPIRED,
}
DISCARDS = (OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED)
DERIVED = ("statetable", "topics", "check", "proposal", "discard", "quarantine", "catalogue")


@dataclass
class ModelHalf:
    group: str
    topic: str
    queue_id: int
    body: bytes
    state: State = State.PREPARED
    checks: int = 0


@dataclass
class Model:
    """What should be: halves by number, topic queues by (topic, queue), discards in order."""

    halves: list[ModelHalf] = field(default_factory=list)
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    discards: list[tuple[int, State]] = field(default_factory=list)
    resumes: int = 0

    def judge(self, half_offset: int, kind: OpKind, group: str | None) -> Verdict:
        """The rule of ends once more, as an if ladder; changes the model where the end is accepted."""
        if not 0 <= half_offset < len(self.halves):
            return Verdict.REFUSED
        half = self.halves[half_offset]
        if group is not None and group != half.group:
            return Verdict.REFUSED
        if kind == OpKind.UNKNOWN:
            return Verdict.ACCEPTED if half.state == State.PREPARED else Verdict.ALREADY
        if kind == OpKind.RESUME:
            return self._resume(half)
        if half.state == State.PREPARED:
            return self._end(half_offset, half, kind)
        if half.state == ENDED[kind]:
            return Verdict.ALREADY
        if half.state in (State.DISCARDED_MAX, State.DISCARDED_EXPIRED):
            return Verdict.ALREADY if kind in DISCARDS else Verdict.REFUSED
        return Verdict.CONFLICT

    def _resume(self, half: ModelHalf) -> Verdict:
        if half.state in (State.COMMITTED, State.ROLLED_BACK):
            return Verdict.CONFLICT
        self.resumes += half.state != State.PREPARED
        half.state, half.checks = State.PREPARED, 0
        return Verdict.ACCEPTED

    def _end(self, half_offset: int, half: ModelHalf, kind: OpKind) -> Verdict:
        half.state = ENDED[kind]
        if kind == OpKind.COMMIT:
            self.queues.setdefault((half.topic, half.queue_id), []).append(half.body)
        elif kind in DISCARDS:
            self.discards.append((half_offset, half.state))
        return Verdict.ACCEPTED

    @property
    def pending(self) -> int:
        return sum(half.state == State.PREPARED for half in self.halves)


def derived(service: Service) -> dict[str, bytes]:
    return {name: content for part in DERIVED for name, content in contents(service.job.root, part).items()}


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="escrow-model-"))
        self.model = Model()
        self.feeds: list[Any] = []
        self.numbers = 0

    @initialize(check_count_max=st.integers(1, 3))
    def begin(self, check_count_max: int) -> None:
        policy = Policy(check_count_max=check_count_max, outstanding_per_group_max=20)
        self.service = Service(self.directory / "store", geometry=SMALLEST, policy=policy)

    def teardown(self) -> None:
        disk.arm(None)
        if hasattr(self, "service"):
            self.service.settle()
            self.compare()
            self.service.crash()
        shutil.rmtree(self.directory)

    # --- producers and operators ----------------------------------------------------------------------------------------
    @rule(count=st.integers(1, 40), group=st.sampled_from(GROUPS), topic=st.sampled_from(TOPICS), wait=st.booleans(), data=st.data())
    def send(self, count: int, group: str, topic: str, wait: bool, data: st.DataObject) -> None:
        queue_id = data.draw(st.one_of(st.none(), st.integers(0, 3)))
        messages = []
        for _ in range(count):
            self.numbers += 1
            messages.append(Message(group, topic, b"%d" % self.numbers * 20, queue_id=queue_id))
        appended = self.service.edge.append_halves(messages, self.service.now_ms)
        assert list(appended.offsets) == list(range(len(self.model.halves), len(self.model.halves) + count))
        if wait:
            self.service.edge.wait(appended.ticket)
        for number, message in enumerate(messages, len(self.model.halves)):
            chosen = number % 4 if queue_id is None else queue_id
            self.model.halves.append(ModelHalf(group, topic, chosen, message.body))

    @rule(count=st.integers(1, 10), topic=st.sampled_from(TOPICS), queue_id=st.integers(0, 3))
    def send_ordinary(self, count: int, topic: str, queue_id: int) -> None:
        bodies = [b"plain %d" % (self.numbers + number) for number in range(count)]
        self.numbers += count
        messages = [Message("orders", topic, body, queue_id=queue_id) for body in bodies]
        self.service.edge.wait(self.service.edge.append_messages(messages, self.service.now_ms).ticket)
        self.model.queues.setdefault((topic, queue_id), []).extend(bodies)

    @precondition(lambda self: self.model.halves)
    @rule(data=st.data(), wait=st.booleans())
    def end(self, data: st.DataObject, wait: bool) -> None:
        half_offsets = st.one_of(st.integers(0, len(self.model.halves) - 1), st.integers(-1, len(self.model.halves)))
        kinds = st.sampled_from([*ENDED, OpKind.COMMIT, OpKind.COMMIT, OpKind.UNKNOWN, OpKind.RESUME])
        wanted = data.draw(st.lists(st.tuples(half_offsets, kinds, st.sampled_from([*GROUPS, None, None])), min_size=1, max_size=30))
        before = {key: len(queue) for key, queue in self.model.queues.items()}
        ends = [End(half_offset, kind, group, Via.CHECK) for half_offset, kind, group in wanted]
        answers, ticket = self.service.edge.append_ends(ends, self.service.now_ms)
        expected = [self.model.judge(*end) for end in wanted]
        assert [answer.verdict for answer in answers] == expected
        if wait:
            self.service.edge.wait(ticket)
        for (half_offset, kind, _), answer in zip(wanted, answers, strict=True):
            if kind == OpKind.COMMIT and answer.verdict is Verdict.ACCEPTED:
                half = self.model.halves[half_offset]
                key = (half.topic, half.queue_id)
                topic_no = self.service.edge.dictionary.topic_no(half.topic)
                assert place(answer.position) == (topic_no, half.queue_id, before.get(key, 0))
                before[key] = before.get(key, 0) + 1

    # --- settlement -----------------------------------------------------------------------------------------------------
    @rule(records_max=st.integers(1, 100))
    def settle_one_feed(self, records_max: int) -> None:
        feed = self.service.feed(records_max)
        self.service.settler.settle(feed, self.service.now_ms)
        self.feeds.append(feed)

    @rule(records_max=st.sampled_from([1, 5, 64, 1 << 20]))
    def settle(self, records_max: int) -> None:
        self.service.edge.wait(self.service.edge.log.end)
        self.feeds += self.service.settle(max(records_max, self.service.edge.op_end // 20))
        self.compare()

    @precondition(lambda self: self.feeds)
    @rule(data=st.data())
    def settle_an_old_feed_again(self, data: st.DataObject) -> None:
        feed = self.feeds[data.draw(st.integers(0, len(self.feeds) - 1))]
        before = self.service.job.marker
        self.service.settler.settle(feed, self.service.now_ms + 10_000)
        assert self.service.job.marker is before

    @rule(seconds=st.integers(1, 90), live=st.sets(st.sampled_from(GROUPS)), answer=st.sampled_from([None, *ENDED, OpKind.UNKNOWN]))
    def check(self, seconds: int, live: set[str], answer: OpKind | None) -> None:
        self.service.members = dict.fromkeys(live, lambda _half: answer)
        self.service.sleep(seconds)
        self.service.settle()
        self.service.round()
        for half in self.service.deliver():
            model = self.model.halves[half]
            model.checks += 1
            if answer is not None:
                self.model.judge(half, answer, model.group)

    @rule()
    def take_proposals(self) -> None:
        tags = self.service.queue("proposal", self.service.proposal_cursor, self.service.job.marker.proposal_end)["tags_code"]
        answers = self.service.take_proposals()
        kinds = {int(State.DISCARDED_MAX): OpKind.DISCARD_MAX, int(State.DISCARDED_EXPIRED): OpKind.DISCARD_EXPIRED}
        expected = [self.model.judge(tag & (1 << 56) - 1, kinds[tag >> 56], None) for tag in tags.tolist()]
        assert [answer.verdict for answer in answers] == expected

    # --- reopening ------------------------------------------------------------------------------------------------------
    @rule(clean=st.booleans(), rebuild=st.booleans())
    def restart(self, clean: bool, rebuild: bool) -> None:
        before, marker = derived(self.service), self.service.job.marker
        self.service.restart(clean=clean, rebuild=rebuild)
        assert self.service.edge.recovery.damage == []
        assert self.service.job.recovery.rebuilt is rebuild, self.service.job.recovery.reason
        assert self.service.job.marker == marker
        assert derived(self.service) == before

    @rule(clean=st.booleans())
    def restart_the_edge_only(self, clean: bool) -> None:
        self.service.edge.close() if clean else drop(self.service.edge)
        self.service.edge = type(self.service.edge)(self.service.root)

    @rule(point=st.sampled_from(["redo.write", "redo.flush", "apply.rows", "apply.queues", "queue.write"]), nth=st.integers(1, 3))
    def crash_while_settling(self, point: str, nth: int) -> None:
        self.service.edge.wait(self.service.edge.log.end)
        disk.arm(point, "EIO", nth)
        try:
            self.service.settle(records_max=200)
        except OSError as error:
            note(f"failed at {point}: {error}")
        except Exception as error:
            assert "Input/output" in str(error), error
        finally:
            disk.arm(None)
        drop(self.service.job)
        self.service.job = JobStore(self.service.root)
        self.service.settler = Settler(self.service.job, self.service.policy)
        assert not self.service.job.recovery.rebuilt, self.service.job.recovery.reason

    # --- what must hold -------------------------------------------------------------------------------------------------
    @invariant()
    def the_gauge_is_the_count_of_rows(self) -> None:
        if hasattr(self, "service"):
            assert self.service.pending >= 0

    def compare(self) -> None:
        """Everything is settled: the store says what the model says."""
        service, model = self.service, self.model
        assert service.is_caught_up()
        assert service.edge.half_end == len(model.halves)
        assert service.pending == model.pending
        assert [service.state(number) for number in range(len(model.halves))] == [half.state for half in model.halves]
        assert [service.check_count(number) for number in range(len(model.halves))] == [half.checks for half in model.halves]
        assert service.discards() == model.discards
        found: dict[tuple[str, int], list[bytes]] = {}
        for topic in TOPICS:
            for message in service.consume(topic):
                queue = found.setdefault((topic, message.queue_id), [])
                assert message.queue_offset == len(queue)
                queue.append(message.body)
        assert found == model.queues
        totals = service.job.marker.totals
        assert (totals["prepares"], totals["resumes"]) == (len(model.halves), model.resumes)


TestStoreAgainstModel = StoreMachine.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch):
    """Replays apply many batches at a time; here a few entries already make a window, so that windows are exercised too."""
    monkeypatch.setattr(RedoLog, "WINDOW_ENTRIES", 150)
