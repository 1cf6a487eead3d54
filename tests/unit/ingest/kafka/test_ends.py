"""The endpoint's view of the op topic, without a broker."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ingest.kafka.ended import judging
from ingest.kafka.ended.beginning import Beginning
from ingest.kafka.ended.checkpointing import Checkpointing
from ingest.kafka.ended.follower import OpFollower
from ingest.kafka.ended.judging import OpJudge
from ingest.kafka.ended.table import Ends
from ingest.kafka.ended.unjudged import Unjudged
from sinks.kafka.contract import Topics

TOPICS = Topics("half", "op", "redo", "check", "discard", "lease", "ends", "keys")


class Client:
    """Knows topics by their number of partitions, each with ten records."""

    def __init__(self, **topics: int) -> None:
        self.topics, self.assigned = topics, list[int]()

    def list_topics(self, name: str, timeout: float) -> Any:
        assert timeout > 0
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=dict.fromkeys(range(self.topics[name])))})

    def get_watermark_offsets(self, place: Any, **_: Any) -> tuple[int, int]:
        if place.partition >= self.topics[place.topic]:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return 0, 10

    def incremental_assign(self, places: list[Any]) -> None:
        self.assigned += [place.partition for place in places]


def judge_of(client: Any, **parts: Any) -> Any:
    """A judge that has no connection."""
    made: Any = OpJudge.__new__(OpJudge)
    made._topics, made._now_ms, made._sealer = TOPICS, (lambda: 0), None
    made._watcher = made._half_watcher = client
    made.ends, made._gaps, made._half_lows, made._half_ends = {}, {}, {}, {}
    made.unjudged, made.counts = Unjudged(), Counter[str]()
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def test_op_partitions_beyond_those_of_the_half_topic_are_passed_over_until_there_are_halves() -> None:
    follower: Any = OpFollower.__new__(OpFollower)
    follower._topics = TOPICS
    follower._consumer = client = Client(half=2, op=4)
    follower._judge = judge_of(client)
    follower._checkpointing = Checkpointing(SimpleNamespace(done=[]), 30.0)  # type: ignore[arg-type]
    follower._behind, follower._positions, follower._beginning = {}, {}, None
    follower._ids, follower.caught_up = None, Future[None]()
    follower.caught_up.set_result(None)
    follower._beginner = SimpleNamespace(
        ids=lambda: ("a", "b"), begin=lambda new: [Beginning(each, 0, 10, Ends(), b"") for each in new]
    )
    follower._beginnings = AtOnce()
    follower._look()
    follower._begin()
    assert client.assigned == [0, 1]
    client.topics["half"] = 3
    follower._look()
    follower._begin()
    follower._look()
    assert client.assigned == [0, 1, 2]
    assert follower._judge._half_ends == {0: 10, 1: 10, 2: 10}


class AtOnce:
    """An executor that has done it when it is asked."""

    def submit(self, work: Any, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments))
        return done


# --- halves that cannot be read now -------------------------------------------------------------------------------------
class Record:
    """An op record as it is read."""

    def __init__(self, partition: int, half_offset: int, kind: str, key: bytes | None = None) -> None:
        named = {"escrow-op": kind, "escrow-half-offset": str(half_offset), "escrow-group": "g"}
        self.headers = lambda: [(name, value.encode()) for name, value in named.items()]
        self.partition, self.key, self.value = (lambda: partition), (lambda: key), (lambda: b"")
        self.offset = lambda: 0


class Following:
    """Two half partitions that end at 10; what lies at 5 and beyond in partition 0 is behind an open transaction."""

    def __init__(self) -> None:
        self.half_ends, self.fails, self.answers = {0: 5, 1: 10}, False, dict[int, str]()
        half = SimpleNamespace(headers=lambda: [("escrow-group", b"g"), ("escrow-topic", b"t")])
        reader = SimpleNamespace(read=lambda partition, offsets: self._read(half, partition, offsets))
        self.judge = judge_of(None, ends={0: Ends(), 1: Ends()}, _half_ends=self.half_ends, _halves=reader)

    def _read(self, half: Any, partition: int, offsets: list[int]) -> dict[int, Any]:
        if self.fails and partition == 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return dict.fromkeys(offsets, half)

    def mine(self, partition: int, half_offset: int, kind: str, number: int) -> Any:
        return Record(partition, half_offset, kind, number.to_bytes(8, "big"))

    def apply(self, messages: list[Any]) -> None:
        self._note(self.judge.judge(messages))

    def apply_again(self) -> None:
        self._note(self.judge.judge_again())

    def _note(self, judged: list[tuple[Any, Any]]) -> None:
        self.answers.update({int.from_bytes(message.key(), "big"): answer.verdict.value for message, answer in judged})


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Following:
    made = Following()
    monkeypatch.setattr(judging, "bounds_of", lambda _watcher, _topic, partition, _timeout_s: (0, made.half_ends[partition]))
    monkeypatch.setattr(made.judge, "_unstable", lambda p, offsets: {at for at in offsets if made.half_ends[p] <= at < 10})
    return made


def test_an_op_behind_an_open_transaction_waits_with_those_about_its_half_and_nobody_else_does(following: Following) -> None:
    said: list[Any] = [
        following.mine(0, 7, "COMMIT", 1),
        following.mine(0, 2, "COMMIT", 2),
        following.mine(1, 7, "ROLLBACK", 3),
        following.mine(0, 7, "ROLLBACK", 4),
    ]
    unjudged = following.judge.unjudged
    following.apply(said[:3])
    following.apply(said[3:])
    assert following.answers == {2: "accepted", 3: "accepted"}
    assert "half 7 of partition 0" in unjudged.trouble
    assert "a transaction is open before it" in unjudged.trouble
    following.apply_again()
    assert set(following.answers) == {2, 3}
    following.half_ends[0], unjudged.tried_s = 10, 0.0
    following.apply_again()
    assert (following.answers[1], following.answers[4]) == ("accepted", "conflict"), "in the order of the op partition"
    assert (unjudged.count, unjudged.trouble) == (0, "")


def test_a_half_partition_that_does_not_answer_holds_its_own_ops_only(following: Following) -> None:
    following.fails = True
    following.apply([following.mine(0, 2, "COMMIT", 1), following.mine(1, 2, "COMMIT", 2)])
    assert following.answers == {2: "accepted"}
    following.fails, following.judge.unjudged.tried_s = False, 0.0
    following.apply_again()
    assert following.answers == {1: "accepted", 2: "accepted"}
