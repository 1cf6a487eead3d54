"""Parts of the job in Kafka mode, without Kafka."""

from __future__ import annotations

from typing import Any

import numpy as np

from store.records import ROW
from store.shard import Undeliverable
from streaming import kafka_service


# --- undeliverable messages ---------------------------------------------------------------------------------------------
class Rows:
    """A table whose rows all have one size."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def get(self, half_offsets: Any) -> Any:
        rows = np.zeros(len(half_offsets), ROW)
        rows["size_bytes"] = self._size_bytes
        return rows


def test_everybody_on_the_undeliverable_list_has_a_turn(monkeypatch):
    monkeypatch.setattr(kafka_service, "RETRY_MESSAGES_MAX", 10)
    undeliverable = {at: Undeliverable("too large", 0) for at in range(25)}
    tried: list[int] = []
    for _ in range(3):
        turn = kafka_service.next_tries(undeliverable, Rows(100)).tolist()
        assert turn == sorted(turn)
        tried += turn
        for at in turn:
            undeliverable[at].attempts += 1
    assert sorted(tried) == sorted([*range(25), *range(5)])


def test_large_undeliverable_messages_are_tried_a_few_at_a_time_and_one_at_least():
    undeliverable = {at: Undeliverable("too large", 0) for at in range(100)}
    assert kafka_service.next_tries(undeliverable, Rows(kafka_service.RELEASE_BYTES_MAX // 4)).tolist() == [0, 1, 2, 3]
    assert kafka_service.next_tries(undeliverable, Rows(kafka_service.RELEASE_BYTES_MAX + 1)).tolist() == [0]
