"""Retention against a plain model: whatever is sent, ended, slept, deleted and reopened in whatever order,

- a pending half is never lost: it can be read, and its end is accepted;
- a message that became visible less than fileReservedTime ago is visible, at the place that it always had;
- an id is answered `gone` only if its half ended longer ago than that, and then nothing is executed;
- a queue's beginning and end never go back, and everything between them can be read, after a rebuild too;
- verify finds nothing wrong.

A failure names its seed; `ESCROW_SEED=n` plays that one alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from checker.policy import Policy
from store.edge.store import End
from store.inspect.verify.store import verify
from store.messages import Message
from store.records import OpKind, State, Via, topic_of_key
from store.tables.ends import Answer, Verdict
from tests.support.seeds import seeds
from tests.support.service import SMALLEST, Service, place, read_topic

SEEDS = seeds(8)
STEPS = 60
HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
STATE_OF = {
    OpKind.COMMIT: State.COMMITTED,
    OpKind.ROLLBACK: State.ROLLED_BACK,
    OpKind.DISCARD_MAX: State.DISCARDED_MAX,
}


@dataclass
class ModelHalf:
    body: bytes
    state: State = State.PREPARED
    ended_at_ms: int = 0


@dataclass
class Model:
    halves: list[ModelHalf] = field(default_factory=list)
    #: (topic_no, queue_id) → (body, when it was said to be visible) by offset
    queues: dict[tuple[int, int], list[tuple[bytes, int]]] = field(default_factory=dict)
    extents: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def release(self, position: int, body: bytes, now_ms: int) -> None:
        topic_no, queue_id, queue_offset = place(position)
        queue = self.queues.setdefault((topic_no, queue_id), [])
        assert queue_offset == len(queue)
        queue.append((body, now_ms))


class Play:
    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = Model()
        self.service = Service(directory / "store", geometry=SMALLEST, policy=Policy(retention_s=RETENTION_MS // 1000))
        self.steps = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("step_")]
        self.log: list[str] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choice(self.steps)
            self.log.append(step.__name__)
            step()
            self.check_pending()
        self.step_settle()
        self.check_topics()
        assert verify(self.service.root).problems == []

    def step_send(self) -> None:
        count, size = self.random.randint(1, 40), self.random.choice([1, 300, 900])
        bodies = [b"%d " % (len(self.model.halves) + number) + b"x" * size for number in range(count)]
        self.service.send(*bodies, topic=self.random.choice(["paid", "rare"]), queue_id=self.random.choice([None, 0]))
        self.model.halves += [ModelHalf(body) for body in bodies]

    step_send_more = step_send

    def step_send_ordinary(self) -> None:
        body = b"plain " + b"y" * 500
        first = self.service.edge.op_end
        self.service.edge.wait(
            self.service.edge.append_messages([Message("orders", "paid", body)] * 20, self.service.now_ms).ticket
        )
        for op in self.service.job.log.ops(first, first + 20):
            self.model.release(int(op["position"]), body, self.service.now_ms)

    def step_end_most(self) -> None:
        kinds = [OpKind.COMMIT] * 6 + [OpKind.ROLLBACK, OpKind.DISCARD_MAX]
        pending = [number for number, half in enumerate(self.model.halves) if half.state == State.PREPARED]
        for number in pending:
            if self.random.random() < 0.9:
                self.end(number, self.random.choice(kinds))

    def step_end_any(self) -> None:
        for _ in range(5):
            if self.model.halves:
                kind = self.random.choice([*STATE_OF, OpKind.RESUME])
                self.end(self.random.randrange(len(self.model.halves)), kind)

    def end(self, number: int, kind: OpKind) -> None:
        op_end, half = self.service.edge.op_end, self.model.halves[number]
        (answer,) = self.service.edge.end([End(number, kind, None, Via.OPERATOR)], self.service.now_ms)
        if answer.reason == "gone":
            assert half.state != State.PREPARED
            assert half.ended_at_ms < self.service.now_ms - RETENTION_MS
            assert self.service.edge.op_end == op_end
            return
        assert answer.verdict is self.expected(half, kind), (number, kind, answer)
        if answer.verdict is Verdict.ACCEPTED:
            self.accept(half, kind, answer)

    def accept(self, half: ModelHalf, kind: OpKind, answer: Answer) -> None:
        half.state, half.ended_at_ms = STATE_OF.get(kind, State.PREPARED), self.service.now_ms
        if kind == OpKind.COMMIT:
            self.model.release(answer.position, half.body, self.service.now_ms)

    @staticmethod
    def expected(half: ModelHalf, kind: OpKind) -> Verdict:
        if half.state == State.PREPARED:
            return Verdict.ACCEPTED
        if kind == OpKind.RESUME:
            return Verdict.ACCEPTED if half.state == State.DISCARDED_MAX else Verdict.CONFLICT
        if STATE_OF[kind] == half.state:
            return Verdict.ALREADY
        return Verdict.REFUSED if half.state == State.DISCARDED_MAX else Verdict.CONFLICT

    def step_settle(self) -> None:
        self.service.settle(self.random.choice([16, 100, 1 << 20]))

    step_settle_again = step_settle

    def step_sleep(self) -> None:
        self.service.sleep(self.random.randint(1, 20) * 3600)

    def step_sleep_long(self) -> None:
        self.service.sleep(self.random.choice([0, 3, 10]) * 24 * 3600)

    def step_retain(self) -> None:
        for _ in range(self.random.randint(1, 2)):
            self.service.retain(RETENTION_MS / 1000)
        self.check_topics()

    step_retain_again = step_retain

    def step_only_one_side_retains(self) -> None:
        if self.random.random() < 0.5:
            self.service.job.retain(self.service.now_ms, RETENTION_MS)
        else:
            self.service.edge.retain()

    def step_restart(self) -> None:
        rebuild, marker = self.random.random() < 0.5, self.service.job.marker
        self.service.restart(clean=self.random.random() < 0.5, rebuild=rebuild)
        assert self.service.edge.recovery.damage == []
        assert self.service.job.recovery.rebuilt is rebuild, self.service.job.recovery.reason
        assert self.service.job.marker == marker
        self.check_topics()

    # --- what must hold -------------------------------------------------------------------------------------------------
    def check_pending(self) -> None:
        for number, half in enumerate(self.model.halves):
            if half.state == State.PREPARED:
                assert self.service.edge.read_half(number).body == half.body
        assert self.service.pending >= 0
        if self.service.is_caught_up():
            assert self.service.pending == sum(half.state == State.PREPARED for half in self.model.halves)

    def check_topics(self) -> None:
        catalogue, names = self.service.job.catalogue, self.service.edge.dictionary.topics
        found = {
            (topic_no, message.queue_id, message.queue_offset): message.body
            for topic_no, topic in enumerate(names)
            for message in read_topic(self.service.root, topic)
        }
        assert {topic_of_key(key) for key in catalogue.queue_keys()} >= set(self.model.extents)
        for key in catalogue.queue_keys():
            (begin, end), queue = catalogue.extent(key), topic_of_key(key)
            before = self.model.extents.get(queue, (0, 0))
            assert begin >= before[0]
            assert end >= before[1]
            self.model.extents[queue] = (begin, end)
            assert end <= len(self.model.queues[queue])
        for (topic_no, queue_id, queue_offset), body in found.items():
            assert body == self.model.queues[topic_no, queue_id][queue_offset][0]
        if self.service.is_caught_up():
            young = self.service.now_ms - RETENTION_MS
            for (topic_no, queue_id), queued in self.model.queues.items():
                for queue_offset, (_, visible_at_ms) in enumerate(queued):
                    assert visible_at_ms < young or (topic_no, queue_id, queue_offset) in found


@pytest.mark.parametrize("seed", SEEDS)
def test_retention_loses_nothing_that_is_needed(tmp_path, seed):
    play = Play(tmp_path, seed)
    try:
        play.run(STEPS)
    except BaseException:
        print(f"ESCROW_SEED={seed}; steps: {', '.join(play.log)}")
        raise
    play.service.crash()
