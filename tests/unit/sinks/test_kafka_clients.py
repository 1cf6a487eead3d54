"""Where a partition ends, asked of a client that knows leaders of yesterday: librdkafka 2.16 looks for others only when told to."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sinks.kafka.clients import bounds_of


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
