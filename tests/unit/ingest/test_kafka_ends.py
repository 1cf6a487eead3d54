"""The endpoint's view of the op topic, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from ingest.kafka.ends import OpFollower
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
    follower._topics = Topics("half", "op", "redo", "check", "discard", "lease")
    follower._consumer = follower._watcher = client = Client(half=2, op=4)
    follower._ends, follower._half_ends, follower._behind = {}, {}, {}
    follower._look()
    assert client.assigned == [0, 1]
    client.topics["half"] = 3
    follower._look()
    assert client.assigned == [0, 1, 2]
    assert follower._half_ends == {0: 10, 1: 10, 2: 10}
