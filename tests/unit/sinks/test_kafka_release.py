"""What a release task writes, without a broker. (tests/kafka/test_release_task.py runs tasks against one.)"""

from __future__ import annotations

from typing import Any

import numpy as np

from sinks.kafka import contract, release
from store.records import OpKind
from store.redo_log import Marker, RedoKind, make_entries

TOPICS = contract.Topics("half", "op", "redo", "check", "discard", "lease")
TARGET = release.Target(TOPICS, 3, "escrow-half-3", {}, 60_000)


class Written:
    """A producer that takes everything."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes, contract.Headers]] = []

    def produce(self, topic: str, value: bytes, _key: Any, _partition: int, _report: Any, _: Any, _at: int, headers: Any) -> None:
        self.records.append((topic, value, headers))


def attempt(refused: dict[int, str] | None = None) -> tuple[Any, Written]:
    producer = Written()
    owner: Any = release._Owner(producer, None, 0)  # type: ignore[arg-type]
    task = release.Task(TARGET, 1, Marker(sequence=1), b"", [])
    return release._Attempt(owner, task, refused or {}, set(), release._Known()), producer


def test_very_many_checks_are_counted_by_several_ops_that_fit() -> None:
    trying, producer = attempt(refused={5: "the half is no longer in its partition"})
    trying._asked(np.arange(200_000))
    assert {topic for topic, *_ in producer.records} == {"op"}
    assert all(len(value) < 1 << 20 for _, value, _ in producer.records)
    asked = np.concatenate([np.frombuffer(value, "<i8") for _, value, _ in producer.records])
    assert asked.tolist() == [at for at in range(200_000) if at != 5]
    for _, _, headers in producer.records:
        assert contract.first_header(headers, contract.OP) == OpKind.ASKED.name.encode()


def test_who_is_not_asked_is_not_counted() -> None:
    trying, producer = attempt()
    trying.effects(make_entries(RedoKind.ROW, [1], [0], [0]))
    assert producer.records == []
