"""What a release task writes, without a broker. (tests/kafka/test_release_task.py runs tasks against one.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException

from sinks.kafka import contract, ownership, redo, refusals, release, sender
from sinks.kafka.ownership import Owner
from sinks.kafka.task import Target, Task
from sinks.kafka.transaction import Attempt
from store.job.undeliverable import Refusal
from store.records import OpKind, State
from store.tables.consume_queue import REASON_SHIFT
from store.tables.redo_log import Marker, RedoKind, make_entries

NOW_MS = 1_900_000_000_000
TOPICS = contract.Topics("half", "op", "redo", "check", "discard", "lease", "ends", "keys")
TARGET = Target(TOPICS, 3, "escrow-half-3", {}, 60_000)


class Written:
    """A producer that takes everything."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes, contract.Headers]] = []

    def produce(self, topic: str, value: bytes, _key: Any, _partition: int, _report: Any, _: Any, _at: int, headers: Any) -> None:
        self.records.append((topic, value, headers))


def attempt(refused: dict[int, str] | None = None, producer: Any = None) -> tuple[Any, Any]:
    producer = Written() if producer is None else producer
    owner = Owner(producer, None, 0)  # type: ignore[arg-type]
    task = Task(TARGET, 1, Marker(sequence=1), b"", [])
    return Attempt(owner, task, refused or {}, set(), refusals.Known(NOW_MS)), producer


def test_very_many_checks_are_counted_by_several_ops_that_fit() -> None:
    trying, producer = attempt()
    trying._asked(np.arange(200_000))
    assert {topic for topic, *_ in producer.records} == {"op"}
    assert all(len(value) < 1 << 20 for _, value, _ in producer.records)
    asked = np.concatenate([np.frombuffer(value, "<i8") for _, value, _ in producer.records])
    assert asked.tolist() == list(range(200_000))
    for _, _, headers in producer.records:
        assert contract.first_header(headers, contract.OP) == OpKind.ASKED.name.encode()


def test_a_request_that_could_not_be_sent_is_not_looked_for_and_so_never_counted() -> None:
    trying, _ = attempt(refused={5: "the half is no longer in its partition"})
    assert trying.requested(make_entries(RedoKind.CHECK, [5], [0], [0])) is None
    assert trying.requested(make_entries(RedoKind.CHECK, [5, 6], [0, 0], [0, 0])).half_offsets == {6}


def test_who_is_not_asked_is_not_counted() -> None:
    trying, producer = attempt()
    trying.effects(make_entries(RedoKind.ROW, [1], [0], [0]))
    assert producer.records == []


# --- refusals -----------------------------------------------------------------------------------------------------------
class Message:
    """A half as it is read, or a message in a delivery report."""

    def __init__(self, topic: str, value: bytes, key: bytes | None, at_ms: int, headers: Any = ()) -> None:
        self.topic, self.value, self.key = (lambda: topic), (lambda: value), (lambda: key)
        self.timestamp, self.headers = (lambda: (1, at_ms)), (lambda: list(headers))


class Kafka:
    """A broker and its client, as far as a release task can tell: messages of a topic that are sent together are taken or refused
    together, and after a refusal nothing goes out any more."""

    def __init__(
        self, refuses: Callable[[Message], int | None], missing: tuple[str, ...] = (), silent: tuple[str, ...] = (), leader: int = 1
    ) -> None:
        """`silent`: topics that never answer. `leader`: of all topics, -1 for none."""
        self.refuses, self.missing, self.silent, self.leader = refuses, missing, silent, leader
        self.left: list[tuple[Message, Any]] = []
        self.transactions, self.looks = 0, Counter[str]()
        self.committed: list[tuple[str, bytes]] = []
        self._queue: list[tuple[Message, Any]] = []
        self._taken: list[tuple[str, bytes]] = []
        self._broken = False

    def begin_transaction(self) -> None:
        self.transactions += 1
        self._queue, self._taken, self._broken, self.left = [], [], False, []

    def list_topics(self, topic: str, _timeout_s: float) -> Any:
        self.looks[topic] += 1
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if topic in self.missing else None
        partition = SimpleNamespace(id=0, leader=self.leader, isrs=[1], replicas=[1])
        return SimpleNamespace(topics={topic: SimpleNamespace(topic=topic, error=error, partitions={0: partition})})

    def produce(self, topic: str, value: bytes, key: Any, _partition: int, report: Any, _: Any, at_ms: int, _headers: Any) -> None:
        if self._broken:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._queue.append((Message(topic, value, key, at_ms), report))

    def poll(self, _timeout_s: float) -> None:
        pass

    def flush(self, _timeout_s: float) -> int:
        """By the names of topics, each in one piece."""
        queue, self._queue = self._queue, []
        self.left += [each for each in queue if each[0].topic() in self.silent]
        queue = [each for each in queue if each[0].topic() not in self.silent]
        for topic in sorted({message.topic() for message, _ in queue}):
            together = [(message, report) for message, report in queue if message.topic() == topic]
            codes = [KafkaError._PURGE_QUEUE] if self._broken else [self.refuses(message) for message, _ in together]
            code = next((code for code in codes if code is not None), None)
            self._broken |= code is not None
            self._taken += [(topic, message.value()) for message, _ in together]
            for message, report in together:
                if code is not None:
                    innocent = code == KafkaError.INVALID_RECORD and self.refuses(message) is None
                    error = KafkaError(KafkaError._INVALID_DIFFERENT_RECORD if innocent else code)
                    report(error, Message(topic, message.value(), message.key(), -1))
        return len(self.left)

    def purge(self, **_: bool) -> None:
        for message, report in self.left:
            report(KafkaError(KafkaError._PURGE_INFLIGHT), message)
        self.left = []

    def __len__(self) -> int:
        return len(self.left)

    def abort_transaction(self, _timeout_s: float) -> None:
        self._taken = []

    def commit_transaction(self, _timeout_s: float) -> None:
        self.flush(0)
        self.committed += self._taken


def released(
    kafka: Any, halves: dict[int, Message], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[list[bytes], dict[int, Refusal]]:
    """Bodies that came out, and what was refused why. `more` of the task."""
    entries = make_entries(RedoKind.RELEASE, list(halves), 0, -1)
    marker = Marker(sequence=1, now_ms=NOW_MS)
    monkeypatch.setattr(ownership, "fence", lambda _task, **_: (kafka, 0))
    monkeypatch.setattr(Attempt, "_halves", lambda _self, wanted: {at: halves[at] for at in wanted.tolist()})
    kept: list[dict[int, Refusal]] = []
    batch_records = redo.batch_records

    def noted(entries: Any, marker: Any, term: int, groups: Any, refused: Mapping[int, Refusal], **more: Any) -> Any:
        kept.append(dict(refused))
        return batch_records(entries, marker, term, groups, refused, **more)

    monkeypatch.setattr(redo, "batch_records", noted)
    owner: Any = Owner(kafka, None, 0)  # type: ignore[arg-type]
    release._write(owner, Task(TARGET, 1, marker, redo.pack_entries(entries), [], **more))
    return [body for topic, body in kafka.committed if topic != TOPICS.redo], kept[-1]


def half(body: bytes, *, topic: str = "real", key: bytes | None = b"k", at_ms: int = NOW_MS) -> Message:
    named = [(contract.TOPIC, topic.encode()), (contract.GROUP, b"g"), (contract.BORN_TIME, b"%d" % at_ms)]
    return Message("half", body, key, NOW_MS, named)


BAD = {
    "too large": (
        half(b"badbad" + bytes(range(256))),
        lambda m: KafkaError.MSG_SIZE_TOO_LARGE if m.value().startswith(b"badbad") else None,
    ),
    "too late": (
        half(b"bad", at_ms=NOW_MS * 1000),
        lambda m: KafkaError.INVALID_TIMESTAMP if m.timestamp()[1] > 2 * NOW_MS else None,
    ),
    "too early": (half(b"bad", at_ms=9), lambda m: KafkaError.INVALID_TIMESTAMP if 0 < m.timestamp()[1] < NOW_MS else None),
    "no key": (half(b"bad", key=None), lambda m: KafkaError.INVALID_RECORD if m.topic() == "real" and m.key() is None else None),
}


@pytest.mark.parametrize("why", BAD)
def test_many_refusals_for_one_reason_cost_few_transactions_and_nobody_else(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, refuses = BAD[why]
    halves = {at: bad if at % 3 == 0 else half(b"%d" % at, key=b"%d" % at) for at in range(300)}
    halves |= {300: half(b"300", topic="other", at_ms=NOW_MS + 5)}
    kafka = Kafka(refuses)
    bodies, refused = released(kafka, halves, monkeypatch)
    assert sorted(refused) == list(range(0, 300, 3))
    assert sorted(bodies, key=int) == [b"%d" % at for at in range(301) if at == 300 or at % 3]
    assert kafka.transactions == 3, "in company, the first alone, without any"


def test_who_is_tried_alone_is_not_refused_with_what_was_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message 100 is refused first, and who shares its report is suspected. Message 0, bad too, is not: it was not sent."""
    bodies_of = {at: b"bad" if at in (0, 100) else b"%d" % at for at in range(128)}
    halves = {at: half(body, topic="a" if at == 100 else "b", key=b"%d" % at) for at, body in bodies_of.items()}
    kafka = Kafka(lambda message: KafkaError.POLICY_VIOLATION if message.value() == b"bad" else None)
    bodies, refused = released(kafka, halves, monkeypatch)
    assert sorted(refused) == [0, 100]
    assert len(bodies) == 126


def test_a_topic_that_is_not_there_is_asked_for_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(lambda _: None, missing=("gone",))
    bodies, refused = released(kafka, {at: half(b"%d" % at, topic="gone" if at % 2 else "real") for at in range(40)}, monkeypatch)
    assert (len(bodies), len(refused), kafka.transactions) == (20, 20, 1)
    assert kafka.looks == {"gone": 1, "real": 1}


# --- what is set aside, and what stays behind it ------------------------------------------------------------------------------
@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "STALL_S", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_topic_that_does_not_answer_is_set_aside_and_the_rest_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(lambda _: None, silent=("sick",))
    halves = {at: half(b"%d" % at, topic="sick" if at % 2 else "real") for at in range(40)}
    bodies, refused = released(kafka, halves, monkeypatch)
    assert sorted(bodies, key=int) == [b"%d" % at for at in range(0, 40, 2)]
    assert list(refused) == list(range(1, 40, 2)), "in the order of their ends"
    assert {each.topic for each in refused.values()} == {"sick"}
    assert kafka.transactions == 2


@pytest.mark.usefixtures("impatient")
def test_where_escrows_own_topics_do_not_answer_nothing_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    discarded = make_entries(RedoKind.DISCARD, [1], 0, int(State.DISCARDED_MAX) << REASON_SHIFT)
    trying, kafka = attempt(producer=Kafka(lambda _: None, silent=("discard", "real")))
    halves = {0: half(b"0"), 1: half(b"1")}
    monkeypatch.setattr(Attempt, "_halves", lambda _self, _wanted: halves)
    kafka.begin_transaction()
    trying.effects(np.concatenate([make_entries(RedoKind.RELEASE, [0], 0, -1), discarded]))
    with pytest.raises(KafkaException, match="does not take"):
        trying.sender.flush()
    assert trying.refused == {}


def test_a_topic_without_a_leader_never_becomes_part_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(lambda _: None, leader=-1)
    bodies, refused = released(kafka, {0: half(b"0"), 1: half(b"1")}, monkeypatch)
    assert (bodies, kafka.transactions) == ([], 1)
    assert "no leader" in refused[0].reason


def test_who_comes_behind_a_refused_message_of_its_key_is_set_aside_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = {
        0: half(b"0", key=b"a"),
        1: half(b"bad" * 100, key=b"a"),
        2: half(b"2", key=b"b"),
        3: half(b"3", key=b"a"),
        4: half(b"4", key=b"a", topic="other"),
        5: half(b"5", key=None),
    }
    bodies, refused = released(Kafka(BAD["too large"][1]), halves, monkeypatch)
    assert sorted(bodies) == [b"0", b"2", b"4", b"5"]
    assert list(refused) == [1, 3]
    assert refused[1].lane == refused[3].lane != 0
    assert refused[3].reason == refusals.BEHIND


def test_nobody_overtakes_what_was_set_aside_by_an_earlier_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = np.array([refusals.lane_of("real", b"a", -1)], "<u8").tobytes()
    halves = {0: half(b"0", key=b"a"), 1: half(b"1", key=b"b"), 2: half(b"2", key=b"a")}
    bodies, refused = released(Kafka(lambda _: None), halves, monkeypatch, lanes=lanes)
    assert (bodies, list(refused)) == ([b"1"], [0, 2])


def test_a_topic_that_the_driver_knows_to_be_out_of_reach_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = Kafka(lambda _: None)
    bodies, refused = released(kafka, {0: half(b"0"), 1: half(b"1", topic="other")}, monkeypatch, barred={"real": "no answer"})
    assert (bodies, refused[0].reason, kafka.looks["real"]) == ([b"1"], "no answer", 0)


def test_a_message_whose_body_is_gone_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = make_entries(RedoKind.RELEASE, [0, 1], 0, -1)
    trying, producer = attempt()
    monkeypatch.setattr(Attempt, "_halves", lambda _self, _wanted: {1: half(b"1")})
    monkeypatch.setattr(Attempt, "_topic", lambda *_: "real")
    producer.poll = lambda _: None
    trying.effects(entries)
    assert [value for _, value, _ in producer.records] == [b"1"]
    assert list(trying.refused) == [0]


@pytest.mark.parametrize(("key", "partition", "same"), [(b"k", -1, True), (b"k", 3, True), (b"j", -1, False), (None, -1, False)])
def test_a_lane_is_a_key_of_a_topic(key: bytes | None, partition: int, same: bool) -> None:
    assert (refusals.lane_of("t", key, partition) == refusals.lane_of("t", b"k", -1)) is same
    assert refusals.lane_of("t", None, 3) not in (0, refusals.lane_of("t", None, 4), refusals.lane_of("u", None, 3))
