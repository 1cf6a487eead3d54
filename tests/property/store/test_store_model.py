"""A whole service against a plain dictionary: random sends, ends, settlements with random batch boundaries, check rounds, resumes,
crashes in the middle of a settlement, replays of old feeds, and reopenings of every kind.

Held at every step: answers are those of the model; what is visible is a prefix of what the model says, each message at the place
that its answer promised; the gauge equals the count of rows; a reopening or a rebuild changes no byte of what is derived; a feed
that was settled before changes nothing; in the end verify finds nothing wrong. A failure names its seed and its steps;
`ESCROW_SEED=n` plays that one alone.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checker.policy import Policy
from store.edge.store import End
from store.errors import StoreUnusable
from store.inspect.verify.store import verify
from store.io import disk
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind, State, Via, check_count_of, state_of
from store.tables.ends import Verdict
from store.tables.redo_log import RedoLog
from streaming.settlement.settle import Settler
from tests.support.seeds import seeds
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
SEEDS = seeds(14)
STEPS = 45
DERIVED = ("statetable", "topics", "check", "proposal", "discard", "quarantine")


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


def derived(service: Service) -> dict[str, Any]:
    """Every byte of what is derived; of the catalogue what it says, for the order of its slots says nothing."""
    catalogue = service.job.catalogue
    extents = {str(key): catalogue.extent(key) for key in catalogue.queue_keys()}
    return {**extents, **{name: content for part in DERIVED for name, content in contents(service.job.root, part).items()}}


class Play:
    """One random history. Every method that begins with `step_` is something that may happen next."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = Model()
        self.feeds: list[Any] = []
        self.numbers = 0
        policy = Policy(check_count_max=self.random.randint(1, 3), outstanding_per_group_max=20)
        self.service = Service(directory / "store", geometry=SMALLEST, policy=policy)
        self.steps = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("step_")]
        self.log: list[str] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choice(self.steps)
            self.log.append(step.__name__)
            step()
            assert self.service.pending >= 0
        self.log.append("the end")
        self.settle_all()
        assert verify(self.service.root).problems == []

    def coin(self) -> bool:
        return self.random.random() < 0.5

    # --- producers and operators ----------------------------------------------------------------------------------------
    def step_send(self) -> None:
        group, topic, queue_id = self.random.choice(GROUPS), self.random.choice(TOPICS), self.random.choice([None, 0, 1, 3])
        messages = []
        for _ in range(self.random.randint(1, 40)):
            self.numbers += 1
            messages.append(Message(group, topic, b"%d" % self.numbers * 20, queue_id=queue_id))
        appended = self.service.edge.append_halves(messages, self.service.now_ms)
        assert list(appended.offsets) == list(range(len(self.model.halves), len(self.model.halves) + len(messages)))
        if self.coin():
            self.service.edge.wait(appended.ticket)
        for number, message in enumerate(messages, len(self.model.halves)):
            self.model.halves.append(ModelHalf(group, topic, number % 4 if queue_id is None else queue_id, message.body))

    def step_send_ordinary(self) -> None:
        topic, queue_id, count = self.random.choice(TOPICS), self.random.randrange(4), self.random.randint(1, 10)
        bodies = [b"plain %d" % (self.numbers + number) for number in range(count)]
        self.numbers += count
        messages = [Message("orders", topic, body, queue_id=queue_id) for body in bodies]
        self.service.edge.wait(self.service.edge.append_messages(messages, self.service.now_ms).ticket)
        self.model.queues.setdefault((topic, queue_id), []).extend(bodies)

    def step_end(self) -> None:
        kinds = [*ENDED, OpKind.COMMIT, OpKind.COMMIT, OpKind.UNKNOWN, OpKind.RESUME]
        wanted = [self._wanted(kinds) for _ in range(self.random.randint(1, 30))]
        before = {key: len(queue) for key, queue in self.model.queues.items()}
        ends = [End(half_offset, kind, group, Via.CHECK) for half_offset, kind, group in wanted]
        answers, ticket = self.service.edge.append_ends(ends, self.service.now_ms)
        assert [answer.verdict for answer in answers] == [self.model.judge(*end) for end in wanted]
        if self.coin():
            self.service.edge.wait(ticket)
        for (half_offset, kind, _), answer in zip(wanted, answers, strict=True):
            if kind == OpKind.COMMIT and answer.verdict is Verdict.ACCEPTED:
                half = self.model.halves[half_offset]
                topic_no, key = self.service.edge.dictionary.topic_no(half.topic), (half.topic, half.queue_id)
                assert place(answer.position) == (topic_no, half.queue_id, before.get(key, 0))
                before[key] = before.get(key, 0) + 1

    def _wanted(self, kinds: list[OpKind]) -> tuple[int, OpKind, str | None]:
        """Usually somebody who may end a half that exists."""
        half_offset = self.random.randint(-1, len(self.model.halves))
        known = 0 <= half_offset < len(self.model.halves)
        groups = [*GROUPS, None, *([self.model.halves[half_offset].group] * 4 if known else [])]
        return half_offset, self.random.choice(kinds), self.random.choice(groups)

    # --- settlement -----------------------------------------------------------------------------------------------------
    def step_settle_one_feed(self) -> None:
        feed = self.service.feed(self.random.randint(1, 100))
        self.service.settler.settle(feed, self.service.now_ms)
        self.feeds.append(feed)

    def step_settle_all(self) -> None:
        self.settle_all()

    def settle_all(self) -> None:
        self.service.edge.wait(self.service.edge.log.end)
        self.feeds += self.service.settle(self.random.choice([7, 64, 1 << 20]))
        self.compare()

    def step_settle_an_old_feed_again(self) -> None:
        before = self.service.job.marker
        for feed in self.random.sample(self.feeds, min(3, len(self.feeds))):
            self.service.settler.settle(feed, self.service.now_ms + 10_000)
        assert self.service.job.marker is before

    def step_check(self) -> None:
        answer = self.random.choice([None, None, OpKind.UNKNOWN, OpKind.UNKNOWN, OpKind.COMMIT, OpKind.ROLLBACK])
        self.service.members = dict.fromkeys(self.random.sample(GROUPS, self.random.randint(0, 3)), lambda _half: answer)
        self.service.sleep(self.random.randint(1, 90))
        self.service.edge.wait(self.service.edge.log.end)
        self.service.settle()
        self.service.round()
        for half in self.service.deliver():
            model = self.model.halves[half]
            model.checks += 1
            if answer is not None:
                self.model.judge(half, answer, model.group)

    def step_take_proposals(self) -> None:
        tags = self.service.queue("proposal", self.service.proposal_cursor, self.service.job.marker.proposal_end)["tags_code"]
        kinds = {int(State.DISCARDED_MAX): OpKind.DISCARD_MAX, int(State.DISCARDED_EXPIRED): OpKind.DISCARD_EXPIRED}
        expected = [self.model.judge(tag & (1 << 56) - 1, kinds[tag >> 56], None) for tag in tags.tolist()]
        assert [answer.verdict for answer in self.service.take_proposals()] == expected

    # --- reopening ------------------------------------------------------------------------------------------------------
    def step_restart(self) -> None:
        before, marker, rebuild = derived(self.service), self.service.job.marker, self.coin()
        self.service.restart(clean=self.coin(), rebuild=rebuild)
        assert self.service.edge.recovery.damage == []
        assert self.service.job.recovery.rebuilt is rebuild, self.service.job.recovery.reason
        assert self.service.job.marker == marker
        assert derived(self.service) == before

    def step_restart_the_edge_only(self) -> None:
        self.service.edge.close() if self.coin() else drop(self.service.edge)
        self.service.edge = type(self.service.edge)(self.service.root)

    def step_crash_while_settling(self) -> None:
        point = self.random.choice(["redo.write", "redo.flush", "apply.rows", "apply.queues", "queue.write"])
        self.service.edge.wait(self.service.edge.log.end)
        disk.arm(point, "EIO", self.random.randint(1, 3))
        try:
            self.service.settle(records_max=20)
        except (OSError, StoreUnusable) as error:
            self.log.append(f"failed at {point}: {error}")
        finally:
            disk.arm(None)
        drop(self.service.job)
        self.service.job = JobStore(self.service.root)
        self.service.settler = Settler(self.service.job, self.service.policy)
        assert not self.service.job.recovery.rebuilt, self.service.job.recovery.reason

    # --- what must hold -------------------------------------------------------------------------------------------------
    def compare(self) -> None:
        """Everything is settled: the store says what the model says."""
        service, model = self.service, self.model
        assert service.is_caught_up()
        assert service.edge.half_end == len(model.halves)
        assert service.pending == model.pending
        words = service.job.table.get(np.arange(len(model.halves)))["word"]
        assert state_of(words).tolist() == [half.state for half in model.halves]
        assert check_count_of(words).tolist() == [half.checks for half in model.halves]
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


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_gives_what_the_model_says(tmp_path, monkeypatch, seed):
    # Replays apply many batches at a time; here a few entries already make a window, so that windows are exercised too.
    monkeypatch.setattr(RedoLog, "WINDOW_ENTRIES", 150)
    play = Play(tmp_path, seed)
    try:
        play.run(STEPS)
    except BaseException:
        print(f"ESCROW_SEED={seed}; steps: {', '.join(play.log)}")
        raise
    play.service.crash()


@pytest.mark.parametrize("seed", SEEDS[-3:])
def test_batch_boundaries_and_reopenings_change_no_byte(tmp_path, seed):
    """One history of sends and ends, settled in different pieces: the same rows, the same queues, the same totals."""
    print(f"ESCROW_SEED={seed}")
    chance = random.Random(seed)
    play = Play(tmp_path / "play", seed)
    for _ in range(25):
        chance.choice([play.step_send, play.step_send, play.step_end, play.step_end, play.step_send_ordinary])()
    play.service.edge.wait(play.service.edge.log.end)
    play.service.close()
    seen = []
    for number in range(3):
        root = tmp_path / str(number)
        shutil.copytree(play.service.root, root)
        service = Service(root, geometry=SMALLEST, now_ms=play.service.now_ms)
        while not service.is_caught_up():
            service.settler.settle(service.feed(1 << 20 if number == 0 else chance.randint(3, 80)), service.now_ms)
            if number == 2 and chance.random() < 0.4:
                service.restart(clean=chance.random() < 0.5, rebuild=chance.random() < 0.3)
        service.job.checkpoint()
        seen.append((derived(service), service.job.marker.totals, service.pending))
        service.close()
    assert seen[0] == seen[1] == seen[2]
