"""Topics and their partitions, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sinks.kafka import clients, topic_settings
from sinks.kafka.clients import bounds_of
from sinks.kafka.contract import Topics


# --- where a partition ends: librdkafka 2.16 looks for other leaders only when told to -----------------------------------
class StaleClient:
    """As a consumer of three brokers, one of them killed, was seen to behave (make chaos-kafka)."""

    def __init__(self, *, cured_by_looking: bool) -> None:
        self._cured_by_looking, self._knows = cured_by_looking, False

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        if not self._knows:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return 3, 7

    def list_topics(self, *_: Any, **__: Any) -> None:
        if not self._cured_by_looking:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        self._knows = True


def test_a_client_that_lost_a_leader_is_told_to_look_for_the_new_one() -> None:
    stale: Any = StaleClient(cured_by_looking=True)
    assert bounds_of(stale, "half", 2) == (3, 7)


def test_who_finds_nobody_says_so_when_time_is_up() -> None:
    stale: Any = StaleClient(cured_by_looking=False)
    with pytest.raises(KafkaException, match="Unknown partition"):
        bounds_of(stale, "half", 2, timeout_s=0.2)


# --- topics that are made -----------------------------------------------------------------------------------------------
def test_half_op_and_redo_topic_are_made_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    admin = SimpleNamespace(list_topics=lambda **_: SimpleNamespace(topics={}))
    connection: Any = SimpleNamespace(require_login=lambda _: None, admin=lambda: admin)
    monkeypatch.setattr(clients, "_create", lambda _, missing: made.update({topic.topic: topic for topic in missing}))
    monkeypatch.setattr(topic_settings, "require", lambda *_, **__: None)
    topics = Topics("half", "op", "redo", "check", "discard", "lease", "ends", "keys")
    assert clients.ensure_topics(connection, topics, partitions=3, replication=1, min_insync=1, retention_ms=1000) == 3
    assert made["half"].config == made["op"].config == made["redo"].config
    assert made["redo"].config["message.timestamp.type"] == "LogAppendTime"
    assert [made[name].num_partitions for name in ("half", "op", "redo", "lease")] == [3, 3, 3, 1]
