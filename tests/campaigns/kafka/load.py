"""The campaign's load, and what must have come of it.

`DirectLoad` writes halves and ops straight to Kafka. `EndpointLoad` are producers of the HTTP endpoint: whatever is not answered
they say again with the same dedup key, as the SDK does, or, one in ten, they give up and do not know what became of it. One half
in ten is left for check-back, which a poller answers. Bodies are numbers, a load's own, growing with time.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import Message, Producer

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.kafka_world import KafkaWorld, Place

SETTLE_S = 900.0
KEYS = 12
GROUP = "payments"
#: Bodies of the endpoint's n-th producer begin at n times this.
EACH = 1_000_000_000
STATE_OF = {"commit": "COMMITTED", "rollback": "ROLLED_BACK"}


class Seen(NamedTuple):
    """A message of the real topic, as a read_committed consumer sees it."""

    partition: int
    offset: int
    key: bytes
    number: int
    place: Place

    @classmethod
    def of(cls, message: Any) -> Seen:
        partition, _, half_offset = dict(message.headers())["escrow-transaction-id"].decode().partition("-")
        place = int(partition), int(half_offset)
        return cls(message.partition(), message.offset(), message.key(), int(message.value()), place)


@dataclass(slots=True)
class Promised:
    """What a load was promised: commits that were acknowledged, and of which nobody knows; the places of halves."""

    committed: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    places: dict[int, Place] = field(default_factory=dict)


def audit(seen: Sequence[Seen], promised: Promised) -> None:
    """Exactly the commits, once each, from the half that was acknowledged, in order by key. Where nobody knows: once or never."""
    counts = Counter(message.number for message in seen)
    twice = [number for number, count in counts.items() if count > 1]
    assert not twice, f"released more than once: {sorted(twice)[:10]}"
    strange = set(counts) - promised.committed - promised.unknown
    assert not strange, f"released although nobody committed it: {sorted(strange)[:10]}"
    missing = promised.committed - set(counts)
    assert not missing, f"committed and not released: {sorted(missing)[:10]}"
    others = [message for message in seen if promised.places[message.number] != message.place]
    assert not others, f"released from another half than the one that was committed: {others[:10]}"
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for message in sorted(seen):
        by_key[message.key].append(message.number)
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"{key!r} is out of order"


def audit_halves(stored: dict[Place, int], promised: Promised) -> int:
    """Every half that was acknowledged is where its acknowledgement says; how many were stored once more (and never committed)."""
    lost = [number for number, place in promised.places.items() if stored.get(place) != number]
    assert not lost, f"halves that were acknowledged and are not in Kafka: {sorted(lost)[:10]}"
    return len(stored) - len(set(stored.values()))


class DirectLoad:
    """A Kafka producer that never stops. Retries are the client's, idempotent."""

    def __init__(self, world: KafkaWorld, topic: str, partitions: int, seed: int) -> None:
        self._world, self._topic, self._partitions, self._rng = world, topic, partitions, random.Random(seed)
        options = {"bootstrap.servers": world.cluster.bootstrap, "enable.idempotence": True, "log_level": 2, "linger.ms": 2}
        options["reconnect.backoff.max.ms"] = 1000
        self._producer = Producer({**options, "delivery.timeout.ms": 1_800_000, "message.timeout.ms": 1_800_000})
        self.promised = Promised()
        self.sent = self.rolled_back = self.undecided = 0
        self.problems: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for _ in range(self._rng.randrange(1, 20)):
                self._half()
            # About 100 a second: kills should meet a job that settles, not a backlog that nobody could work off.
            self._producer.poll(0)
            self._stopping.wait(self._rng.uniform(0.0, 0.2))
        self._producer.flush(SETTLE_S)

    def _half(self) -> None:
        number, self.sent = self.sent, self.sent + 1
        key = number % KEYS
        outcome = self._rng.choices(("COMMIT", "ROLLBACK", None), (7, 2, 1))[0]
        headers = [("escrow-group", b"orders"), ("escrow-topic", self._topic.encode()), ("escrow-immunity", b"86400")]
        self._produce(
            self._world.half, b"%d" % number, key=b"key-%d" % key, partition=key % self._partitions, headers=headers,
            on_delivery=lambda error, message: self._stored(error, message, number, outcome),
        )  # fmt: skip

    def _produce(self, topic: str, value: bytes, **options: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, value, **options)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _stored(self, error: Any, message: Message, number: int, outcome: str | None) -> None:
        if error is not None:
            self.problems.append(f"half {number}: {error}")
            return
        self.promised.places[number] = message.partition() or 0, message.offset() or 0
        if outcome is None:
            self.undecided += 1
            return
        headers = [
            ("escrow-op", outcome.encode()),
            ("escrow-half-offset", b"%d" % (message.offset() or 0)),
            ("escrow-group", b"orders"),
        ]
        times = 2 if self._rng.random() < 0.05 else 1  # said twice: still one delivery
        for _ in range(times):
            self._produce(
                self._world.op, b"", partition=message.partition(), headers=headers,
                on_delivery=lambda error, _message: self._ended(error, number, outcome),
            )  # fmt: skip
        if outcome == "COMMIT":
            self.promised.committed.add(number)
        else:
            self.rolled_back += 1

    def _ended(self, error: Any, number: int, outcome: str) -> None:
        if error is not None:
            self.problems.append(f"{outcome} of {number}: {error}")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive(), "Kafka does not take the load's last records"


class _GaveUp(Exception):
    """The request was not answered, and will not be said again."""


class EndpointLoad:
    """Producers and a poller of checks. `acknowledged` grows with every end that was answered."""

    def __init__(self, topic: str, port: int, seed: int, producers: int = 2) -> None:
        self._topic, self._port = topic, port
        self.promised = Promised()
        self.sent = self.acknowledged = self.rolled_back = self.repeated = self.given_up = self.answered_checks = 0
        self.refused: Counter[str] = Counter()
        self.problems: list[str] = []
        self._left_open: dict[int, str] = {}  # what the check will be answered
        self._lock, self._stopping, self._closing = threading.Lock(), threading.Event(), threading.Event()
        works = [partial(self._produce, number, random.Random(seed + number)) for number in range(1, producers + 1)]
        self._producers = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]
        self._poller = threading.Thread(target=self._guarded, args=(self._answer_checks,), daemon=True)
        for thread in (*self._producers, self._poller):
            thread.start()

    def _guarded(self, work: Callable[[_Client], None]) -> None:
        try:
            with closing(_Client(self)) as client:
                work(client)
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    # --- producers ---
    def _produce(self, producer: int, rng: random.Random, client: _Client) -> None:
        number = producer * EACH
        while not self._stopping.wait(rng.uniform(0.0, 0.4)):
            count = rng.randrange(1, 10)
            numbers = range(number, number + count)
            number, self.sent = number + count, self.sent + count
            outcomes = {each: rng.choices(("commit", "rollback", None), (7, 2, 1))[0] for each in numbers}
            patient = rng.random() < 0.9
            try:
                self._transactions(client, producer, outcomes, patient, rng)
            except _GaveUp:
                self.given_up += count

    def _transactions(
        self, client: _Client, producer: int, outcomes: dict[int, str | None], patient: bool, rng: random.Random
    ) -> None:
        halves = [self._half(producer, number, outcome) for number, outcome in outcomes.items()]
        ids, _ = client.say(lambda edge: edge.prepare(halves), patient)
        said = {number: id for (number, outcome), id in zip(outcomes.items(), ids, strict=True) if outcome is not None}
        with self._lock:
            self.promised.places.update({number: _place(id) for number, id in zip(outcomes, ids, strict=True)})
            for number in outcomes.keys() - said.keys():
                self._left_open[number] = rng.choice(("commit", "rollback"))
        if said:
            self._end(client, {number: (id, str(outcomes[number])) for number, id in said.items()}, patient)

    def _half(self, producer: int, number: int, outcome: str | None) -> dict[str, Any]:
        """What is left to the check has a key of its own: nobody knows when it will come out."""
        half = {"group": GROUP, "topic": self._topic, "text": str(number), "dedup_key": str(number)}
        if outcome is None:
            return {**half, "key": f"open-{number}"}
        return {**half, "key": f"http-{producer}-{number % KEYS}", "check_immunity_s": 86400}

    def _end(self, client: _Client, said: dict[int, tuple[str, str]], patient: bool, *, from_check: bool = False) -> None:
        ends = [{"group": GROUP, "id": id, "outcome": outcome, "from_check": from_check} for id, outcome in said.values()]
        commits = {number for number, (_, outcome) in said.items() if outcome == "commit"}
        with self._lock:
            self.promised.unknown |= commits
        answers, repeated = client.say(lambda edge: edge.ends(ends), patient)
        for answer, (number, (_, outcome)) in zip(answers, said.items(), strict=True):
            fine = ("accepted", "already") if repeated or from_check else ("accepted",)
            if answer["verdict"] not in fine or answer["state"] != STATE_OF[outcome]:
                self.problems.append(f"{outcome} of {number} was answered {answer}")
        with self._lock:
            self.promised.unknown -= commits
            self.promised.committed |= commits
            self.acknowledged += len(said)
            self.rolled_back += len(said) - len(commits)

    # --- the poller ---
    def _answer_checks(self, client: _Client) -> None:
        while not self._closing.is_set():
            try:
                checks, _ = client.say(lambda edge: edge.poll_checks(GROUP, "campaign", wait_s=2.0), patient=False)
                said = {int(check["body"]): (check["id"], self._answer(int(check["body"]), check["id"])) for check in checks}
                said = {number: (id, outcome) for number, (id, outcome) in said.items() if outcome}
                if said:
                    self._end(client, said, patient=True, from_check=True)
                    with self._lock:
                        self.answered_checks += len(said)
                        for number, (id, _) in said.items():
                            if self.promised.places.get(number) == _place(id):
                                self._left_open.pop(number, None)
            except _GaveUp:
                self._closing.wait(0.2)

    def _answer(self, number: int, id: str) -> str:
        """By the half that was acknowledged; another with its dedup key was stored by an endpoint that died before it answered."""
        with self._lock:
            if self.promised.places.get(number) == _place(id):
                return self._left_open.get(number, "")
            return "rollback" if number in self.promised.places else ""

    @property
    def left_open(self) -> int:
        with self._lock:
            return len(self._left_open)

    # --- the end ---
    def stop(self) -> None:
        """No new halves; checks are still answered."""
        self._stopping.set()
        for thread in self._producers:
            thread.join(SETTLE_S)
            assert not thread.is_alive(), "the endpoint does not take the load's last requests"

    def close(self) -> None:
        self._closing.set()
        self._poller.join(SETTLE_S)


class _Client:
    """One connection to an endpoint that may be killed at any time."""

    def __init__(self, load: EndpointLoad) -> None:
        self._load = load
        self._edge: EdgeClient | None = None

    def say(self, call: Callable[[EdgeClient], Any], patient: bool) -> tuple[Any, bool]:
        """(answer, whether it was said before without an answer). Impatient: _GaveUp where it was not answered."""
        repeated = False
        while True:
            try:
                if self._edge is None:
                    self._edge = EdgeClient(self._load._port)
                return call(self._edge), repeated
            except RemoteError as error:
                self._refused(error)
            except (OSError, http.client.HTTPException) as error:
                self._load.refused[type(error).__name__] += 1
                self.close()
            if not patient or self._load._closing.is_set():
                raise _GaveUp
            repeated = True
            self._load.repeated += 1
            self._load._closing.wait(0.2)

    def _refused(self, error: RemoteError) -> None:
        self._load.refused[f"{error.status} {error.code}"] += 1
        if error.status != 503 or int(error.headers.get("retry-after") or 0) < 1:
            self._load.problems.append(f"{error.status} {error.code}: {error}")

    def close(self) -> None:
        if self._edge is not None:
            self._edge.close()
        self._edge = None


def _place(id: str) -> Place:
    partition, half_offset, _ = id.split("-", 2)
    return int(partition), int(half_offset)


def both(*promises: Promised) -> Promised:
    """All that was promised to several loads."""
    whole = Promised()
    for each in promises:
        whole.committed |= each.committed
        whole.unknown |= each.unknown
        whole.places |= each.places
    return whole


def numbers_of(messages: Iterable[Any]) -> dict[Place, int]:
    return {(message.partition(), message.offset()): int(message.value()) for message in messages}
