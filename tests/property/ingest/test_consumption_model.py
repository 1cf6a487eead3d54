"""Consumption against a plain model: random sends, polls, acknowledgements, visibility changes, time, settlements and restarts.

Held at every poll: exactly what the model says may go out, in order by key, with the exact attempt; what is acknowledged never
comes back; what was given too often is a dead letter, once. In the end everything that was sent was handed out and is done or dead.
A crash is a copy of the directory under a running edge: what a killed process leaves behind.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ingest.consuming.deliveries import Delivery
from store.inspect.verify.store import verify
from tests.support.edge_world import World

DELIVERIES_MAX = 4
GROUP, TOPIC = "c", "t"


@dataclass
class Sent:
    """One message as the model knows it."""

    body: bytes
    key: str
    queue_id: int
    queue_offset: int
    attempts: int = 0
    visible_at_ms: int = 0
    receipt: str = ""
    is_done: bool = False
    is_dead: bool = False

    def in_hand(self, now_ms: int) -> bool:
        return not self.is_done and self.attempts > 0 and self.visible_at_ms > now_ms


@dataclass
class Model:
    sent: list[Sent] = field(default_factory=list)

    def lanes(self) -> dict[Any, list[Sent]]:
        """Undone messages that must keep their order, oldest first; a message without a key is a lane of its own."""
        lanes: dict[Any, list[Sent]] = {}
        for message in sorted(self.sent, key=lambda message: (message.queue_id, message.queue_offset)):
            if not message.is_done:
                own = (message.queue_id, message.key or message.queue_offset)
                lanes.setdefault(own, []).append(message)
        return lanes

    def due(self, now_ms: int) -> tuple[list[Sent], list[Sent]]:
        """(what may go out now, what dies instead) if a poll asks for all there is."""
        out: list[Sent] = []
        dying: list[Sent] = []
        for lane in self.lanes().values():
            if any(message.in_hand(now_ms) for message in lane):
                continue
            for message in lane:
                if message.attempts >= DELIVERIES_MAX:
                    dying.append(message)
                    break
                out.append(message)
        return out, dying


class ConsumptionModel(RuleBasedStateMachine):
    @initialize(queues=st.sampled_from([1, 3]))
    def begin(self, queues: int) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.lives = 0
        self.loop = asyncio.new_event_loop()
        self.world = World(Path(self.directory.name) / "0", (f"queuesPerTopic={queues}", f"maxDeliveries={DELIVERIES_MAX}"))
        self.run(self.world.open())
        self.model = Model()
        self.old_receipts: list[tuple[Sent, str]] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.drain()
        finally:
            self.run(self.world.close())
            self.loop.close()
            problems = verify(self.world.settings.store_dir).problems
            self.directory.cleanup()
        assert not problems, problems

    def drain(self) -> None:
        """Everything is handed out, then acknowledged."""
        while any(not message.is_done for message in self.model.sent):
            self.time_passes(100_000)
            self.acknowledge_all(self.poll(1024, 10))
        assert all(message.attempts > 0 for message in self.model.sent)
        letters, _ = self.run(self.world.edge.consumption.dead_letters(GROUP, max_letters=1024))
        assert sorted(letter.body for letter in letters) == sorted(m.body for m in self.model.sent if m.is_dead)
        assert all(letter.attempts == DELIVERIES_MAX for letter in letters)

    def acknowledge_all(self, messages: list[Delivery]) -> None:
        if messages:
            assert self.run(self.world.ack(*messages)) == ["done"] * len(messages)
            for message in messages:
                self.find(message).is_done = True

    def find(self, delivery: Delivery) -> Sent:
        return next(m for m in self.model.sent if (m.queue_id, m.queue_offset) == (delivery.queue_id, delivery.queue_offset))

    # --- producers and the job ---
    @rule(keys=st.lists(st.sampled_from(["", "", "a", "b"]), min_size=1, max_size=6), as_halves=st.booleans())
    def send(self, keys: list[str], as_halves: bool) -> None:
        for key in keys:
            body = b"message %d" % len(self.model.sent)
            message = self.world.message(topic=TOPIC, body=body, properties={"KEYS": key} if key else {})
            before = dict(self.world.edge.store.next_offset)
            if as_halves:
                (id,) = self.run(self.world.edge.prepare([message]))
                assert self.run(self.world.end(id, "commit")) == "accepted"
            else:
                self.run(self.world.edge.send([message]))
            ((queue_key, following),) = set(self.world.edge.store.next_offset.items()) - set(before.items())
            self.model.sent.append(Sent(body, key, queue_key & 63, following - 1))

    @rule()
    def settle(self) -> None:
        self.world.settle()
        self.world.edge.consumption.look()

    @rule(ms=st.sampled_from([1, 999, 5_000, 100_000]))
    def time_passes(self, ms: int) -> None:
        self.world.now_ms += ms

    # --- consumers ---
    @rule(count=st.sampled_from([1, 2, 3, 1024]), visibility_s=st.sampled_from([0.5, 5, 10]))
    def poll_once(self, count: int, visibility_s: float) -> None:
        self.poll(count, visibility_s)

    def poll(self, count: int, visibility_s: float) -> list[Delivery]:
        now_ms = self.world.now_ms
        out, dying = self.model.due(now_ms)
        got: list[Delivery] = self.run(self.world.pull(GROUP, TOPIC, count, visibility_s=visibility_s))
        found = [self.find(delivery) for delivery in got]
        assert all(message in out for message in found)
        for (queue_id, _), lane in self.model.lanes().items():
            taken = [message for message in found if message in lane]
            assert taken == lane[: len(taken)], f"order by key in queue {queue_id}"
        if count == 1024:
            assert len(got) == len(out)
        self.handed_out(got, found, now_ms + round(visibility_s * 1000))
        self.run(self.world.until(lambda: not self.world.edge.consumption._burials.under_way))
        self.bury(dying, whole=count == 1024)
        return got

    def handed_out(self, got: list[Delivery], found: list[Sent], visible_at_ms: int) -> None:
        for delivery, message in zip(got, found, strict=True):
            assert delivery.body == message.body
            message.attempts += 1
            assert delivery.attempt == message.attempts
            message.visible_at_ms, message.receipt = visible_at_ms, delivery.receipt
            self.old_receipts.append((message, delivery.receipt))

    def bury(self, dying: list[Sent], whole: bool) -> None:
        letters, _ = self.run(self.world.edge.consumption.dead_letters(GROUP, max_letters=1024))
        dead = {letter.body for letter in letters}
        for message in dying:
            assert not whole or message.body in dead
            message.is_dead = message.is_done = message.body in dead
        assert dead == {message.body for message in self.model.sent if message.is_dead}

    @precondition(lambda self: self.old_receipts)
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        chosen = data.draw(st.lists(st.sampled_from(range(len(self.old_receipts))), min_size=1, max_size=5, unique=True))
        pairs = [self.old_receipts[at] for at in chosen]
        verdicts = self.run(self.world.edge.consumption.ack(TOPIC, GROUP, [receipt for _, receipt in pairs]))
        for (message, receipt), verdict in zip(pairs, verdicts, strict=True):
            is_done = message.is_done or message.receipt == receipt
            assert verdict == ("done" if is_done else "stale")
            message.is_done = is_done

    @precondition(lambda self: self.old_receipts)
    @rule(data=st.data(), visibility_s=st.sampled_from([0, 3, 20]))
    def change_visibility(self, data: Any, visibility_s: float) -> None:
        message, receipt = data.draw(st.sampled_from(self.old_receipts))
        now_ms = self.world.now_ms
        (new,) = self.run(self.world.edge.consumption.change_visibility(TOPIC, GROUP, [receipt], visibility_s))
        assert (new is not None) == (message.in_hand(now_ms) and message.receipt == receipt)
        if new is not None:
            message.visible_at_ms, message.receipt = now_ms + round(visibility_s * 1000), new
            self.old_receipts.append((message, new))

    # --- restarts ---
    @rule()
    def restart_edge(self) -> None:
        self.run(self.world.restart_edge())

    @rule()
    def crash(self) -> None:
        """Edge and job are killed; the next life finds what they left."""
        self.lives += 1
        old, new = self.world, World(Path(self.directory.name) / str(self.lives), self.world.flags, self.world.now_ms)
        shutil.copytree(old.root, new.root, ignore=shutil.ignore_patterns("*.wake"))
        self.run(old.close())
        shutil.rmtree(old.root)
        self.run(new.open())
        self.world = new


ConsumptionModel.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
test_consumption_model = ConsumptionModel.TestCase
