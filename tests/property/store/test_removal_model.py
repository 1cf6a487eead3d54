"""Removed topics against a plain model: made, sent, ended, removed, aged out, killed, rebuilt and restored in whatever order,

- a topic goes exactly when the model says that nobody can read anything under its name any more;
- a name leads to the messages that were sent under it since it was made last, in the order of their places, and to no others;
- a place never means two messages: the queues of a number only ever go on;
- verify finds nothing wrong.

A failure names its seed; `ESCROW_SEED=n` plays that one alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from store.admin.backup import backup, restore
from store.edge.removal import remove_topics
from store.edge.store import End
from store.errors import Corrupt
from store.inspect.verify.store import verify
from store.messages import Message
from store.records import OpKind, State, Via
from store.tables.ends import Verdict
from tests.support.seeds import seeds
from tests.support.service import SMALLEST, Service, place, read_topic

SEEDS = seeds(6)
STEPS = 70
NAMES = ("a", "b", "c", "d", "e", "f")
DAY_S = 86_400
END = {OpKind.COMMIT: State.COMMITTED, OpKind.ROLLBACK: State.ROLLED_BACK, OpKind.DISCARD_MAX: State.DISCARDED_MAX}


@dataclass
class Topic:
    """One life of a name: bodies that may be read under it, by place, and halves that could still come."""

    messages: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    halves: dict[int, State] = field(default_factory=dict)


class Play:
    def __init__(self, directory: Path, seed: int) -> None:
        self.random, self.directory, self.restored = random.Random(seed), directory, 0
        self.service = Service(directory / "store", geometry=SMALLEST, edge_options={"default_queues": 2})
        self.topics: dict[str, Topic] = {}
        self.bodies: dict[int, tuple[str, bytes]] = {}
        #: Every place that was ever given, whoever has its topic's number now.
        self.places: dict[tuple[int, int, int], bytes] = {}
        self.steps = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("step_")]

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choice(self.steps)()
            self.check()
        self.service.close()
        assert verify(self.service.root).problems == []

    def body(self, topic: str) -> bytes:
        return f"{topic} {self.random.random()} ".encode() + b"x" * self.random.choice([1, 200, 4000])

    def release(self, topic: str, position: int, body: bytes) -> None:
        at = place(position)
        assert at not in self.places, "a place means two messages"
        self.places[at] = self.topics[topic].messages[at] = body

    # --- what is done -----------------------------------------------------------------------------------------------------
    def step_send(self) -> None:
        topic = self.random.choice(NAMES)
        self.topics.setdefault(topic, Topic())
        messages = [Message("g", topic, self.body(topic)) for _ in range(self.random.randint(1, 6))]
        appended = self.service.edge.append_messages(messages, self.service.now_ms)
        self.service.edge.wait(appended.ticket)
        for message, position in zip(messages, appended.positions, strict=True):
            self.release(topic, position, message.body)

    def step_prepare(self) -> None:
        topic = self.random.choice(NAMES)
        self.topics.setdefault(topic, Topic())
        for body in [self.body(topic) for _ in range(self.random.randint(1, 3))]:
            (half,) = self.service.send(body, topic=topic)
            self.topics[topic].halves[half], self.bodies[half] = State.PREPARED, (topic, body)

    def step_end(self) -> None:
        for topic, known in self.topics.items():
            for half, state in known.halves.items():
                if state == State.PREPARED and self.random.random() < 0.7:
                    kind = self.random.choice([OpKind.COMMIT, OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX])
                    (answer,) = self.service.edge.end([End(half, kind, None, Via.OPERATOR)], self.service.now_ms)
                    assert answer.verdict is Verdict.ACCEPTED
                    known.halves[half] = END[kind]
                    if kind == OpKind.COMMIT:
                        self.release(topic, answer.position, self.bodies[half][1])

    step_end_more = step_end

    def step_resume(self) -> None:
        for known in self.topics.values():
            for half, state in known.halves.items():
                if state == State.DISCARDED_MAX and self.random.random() < 0.5:
                    (answer,) = self.service.edge.end([End(half, OpKind.RESUME, None, Via.OPERATOR)], self.service.now_ms)
                    if answer.verdict is Verdict.ACCEPTED:
                        known.halves[half] = State.PREPARED

    def step_make(self) -> None:
        topic = self.random.choice(NAMES)
        self.service.edge.add_topic(topic, self.random.randint(1, 4))
        self.topics.setdefault(topic, Topic())

    def step_settle(self) -> None:
        self.service.settle()

    def step_age(self) -> None:
        """All that has ended goes with retention; what is pending stays."""
        self.service.sleep(3 * DAY_S)
        filler = [Message("g", "filler", b"x" * 30_000)]
        for _ in range(4):
            self.service.edge.wait(self.service.edge.append_messages(filler, self.service.now_ms).ticket)
        self.service.settle()
        for _ in range(3):
            self.service.retain(DAY_S)

    step_age_more = step_age

    def step_remove(self) -> None:
        if self.random.random() < 0.7:
            self.service.settle()
        extents, topics = self.extents(), self.random.sample(NAMES, 3)
        expected = {topic for topic in topics if topic in self.topics and self.is_unused(topic, extents)}
        found = remove_topics(self.service.edge, topics)
        assert set(found.removed) == expected, (found, extents)
        for topic in found.removed:
            del self.topics[topic]

    step_remove_more = step_remove

    def extents(self) -> dict[int, tuple[int, int]]:
        self.service.job.catalogue.refresh()
        return self.service.job.catalogue.extents()

    def is_unused(self, topic: str, extents: dict[int, tuple[int, int]]) -> bool:
        number, edge = self.service.edge.dictionary.topic_no(topic), self.service.edge
        assert number is not None
        if any(state == State.PREPARED for state in self.topics[topic].halves.values()):
            return False
        discarded = [half for half, state in self.topics[topic].halves.items() if state == State.DISCARDED_MAX]
        if any(self.is_there(half) for half in discarded):
            return False
        keys = range(number << 6, (number << 6) + edge.dictionary.queues[number])
        return all(extents.get(key, (0, 0))[0] == extents.get(key, (0, 0))[1] == edge.next_offset.get(key, 0) for key in keys)

    def is_there(self, half: int) -> bool:
        try:
            self.service.edge.read_half(half)
        except (IndexError, Corrupt):  # a restored store has zeros where frames are gone
            return False
        return half >= self.service.edge.half_begin

    def step_restart(self) -> None:
        self.service.restart(clean=self.random.random() < 0.5, rebuild=self.random.random() < 0.3)

    def step_restore(self) -> None:
        self.service.settle()
        self.restored += 1
        copy, root = self.directory / f"backup-{self.restored}", self.directory / f"restored-{self.restored}"
        backup(self.service.root, copy)
        self.service.close()
        restore(copy, root)
        self.service.root = root
        self.service.open()

    # --- what must hold ---------------------------------------------------------------------------------------------------
    def check(self) -> None:
        known = self.service.edge.dictionary
        there = {name for _, name in known.living_topics()} - {"filler"}
        assert there == set(self.topics)
        for topic, life in self.topics.items():
            number = known.topic_no(topic)
            assert number is not None
            for each in read_topic(self.service.root, topic):
                assert life.messages.get((number, each.queue_id, each.queue_offset)) == each.body
        if self.random.random() < 0.3:
            self.service.settle()
            self.check_nothing_is_missing()

    def check_nothing_is_missing(self) -> None:
        extents = self.extents()
        for topic, life in self.topics.items():
            found = {(each.queue_id, each.queue_offset) for each in read_topic(self.service.root, topic)}
            for topic_no, queue_id, queue_offset in life.messages:
                begin, end = extents[topic_no << 6 | queue_id]
                assert queue_offset < end
                assert queue_offset < begin or (queue_id, queue_offset) in found


@pytest.mark.parametrize("seed", SEEDS)
def test_removed_topics(tmp_path: Path, seed: int) -> None:
    Play(tmp_path, seed).run()
