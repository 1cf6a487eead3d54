"""The endpoint's view of the op topic, without a broker."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ingest.kafka.ended import follower as ends
from ingest.kafka.ended.beginning import Beginning
from ingest.kafka.ended.follower import OpFollower, Unjudged
from ingest.kafka.ended.table import Ends
from sinks.kafka.contract import Topics


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


def test_op_partitions_beyond_those_of_the_half_topic_are_passed_over_until_there_are_halves() -> None:
    follower: Any = OpFollower.__new__(OpFollower)
    follower._topics = Topics("half", "op", "redo", "check", "discard", "lease", "ends")
    follower._consumer = follower._watcher = client = Client(half=2, op=4)
    follower._ends, follower._half_ends, follower._half_lows, follower._behind = {}, {}, {}, {}
    follower._positions, follower._bindings, follower._saved, follower._gaps, follower._beginning = {}, {}, {}, {}, None
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
    assert follower._half_ends == {0: 10, 1: 10, 2: 10}


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


class Following(OpFollower):
    """Two half partitions that end at 10; what lies at 5 and beyond in partition 0 is behind an open transaction."""

    def __init__(self) -> None:
        self._topics = Topics("half", "op", "redo", "check", "discard", "lease", "ends")
        self._ends, self._half_ends = {0: Ends(), 1: Ends()}, {0: 5, 1: 10}
        self._gaps, self._half_lows = {}, {}
        self._unjudged, self.counts, self.trouble = Unjudged(), Counter[str](), ""
        self._token, self.answers, self.fails = b"12345678", dict[int, str](), False
        self._loop: Any = SimpleNamespace(is_closed=lambda: False, call_soon_threadsafe=self._note)
        self._sealer: Any = None
        self._watcher = self._half_watcher = None  # type: ignore[assignment]
        half = SimpleNamespace(headers=lambda: [("escrow-group", b"g"), ("escrow-topic", b"t")])
        self._halves: Any = SimpleNamespace(read=lambda partition, offsets: self._read(half, partition, offsets))

    def _read(self, half: Any, partition: int, offsets: list[int]) -> dict[int, Any]:
        if self.fails and partition == 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return dict.fromkeys(offsets, half)

    def _note(self, _tell: Any, answered: list[tuple[int, Any]]) -> None:
        self.answers.update({number: answer.verdict.value for number, answer in answered})

    def mine(self, partition: int, half_offset: int, kind: str, number: int) -> Any:
        return Record(partition, half_offset, kind, self._token + number.to_bytes(8, "big"))


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Following:
    made = Following()
    monkeypatch.setattr(ends, "bounds_of", lambda _watcher, _topic, partition, _timeout_s: (0, made._half_ends[partition]))
    monkeypatch.setattr(made, "_unstable", lambda p, offsets: {at for at in offsets if made._half_ends[p] <= at < 10})
    return made


def test_an_op_behind_an_open_transaction_waits_with_those_about_its_half_and_nobody_else_does(following: Following) -> None:
    said: list[Any] = [
        following.mine(0, 7, "COMMIT", 1),
        following.mine(0, 2, "COMMIT", 2),
        following.mine(1, 7, "ROLLBACK", 3),
        following.mine(0, 7, "ROLLBACK", 4),
    ]
    following._apply(said[:3])
    following._apply(said[3:])
    assert following.answers == {2: "accepted", 3: "accepted"}
    assert "half 7 of partition 0" in following._unjudged.trouble
    following._judge_again()
    assert set(following.answers) == {2, 3}
    following._half_ends[0], following._unjudged.tried_s = 10, 0.0
    following._judge_again()
    assert (following.answers[1], following.answers[4]) == ("accepted", "conflict"), "in the order of the op partition"
    assert (following._unjudged.count, following._unjudged.trouble) == (0, "")


def test_a_half_partition_that_does_not_answer_holds_its_own_ops_only(following: Following) -> None:
    following.fails = True
    following._apply([following.mine(0, 2, "COMMIT", 1), following.mine(1, 2, "COMMIT", 2)])
    assert following.answers == {2: "accepted"}
    following.fails, following._unjudged.tried_s = False, 0.0
    following._judge_again()
    assert following.answers == {1: "accepted", 2: "accepted"}
