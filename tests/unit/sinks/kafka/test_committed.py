"""Committed offsets of many groups, some of whose coordinators do not answer. (tests/kafka/test_taken.py asks a real broker.)"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from kafka import TopicPartition
from kafka.errors import CoordinatorNotAvailableError

from sinks.kafka import committed
from sinks.kafka.clients import Connection
from sinks.kafka.committed import CommittedReader, Unanswered, home_of

LANES = {(f"group-{number}", 0) for number in range(200)}


class Admin:
    """Fails, as kafka-python's does, if the coordinator of one of the groups that are asked for is dead."""

    dead: ClassVar[set[int]] = set()
    asked: ClassVar[list[set[str]]] = []

    def __init__(self, **_: Any) -> None:
        pass

    def list_group_offsets(self, groups: dict[str, list[TopicPartition]]) -> dict[str, Any]:
        self.asked.append(set(groups))
        if any(home_of(group) in self.dead for group in groups):
            raise CoordinatorNotAvailableError
        return {group: {place: SimpleNamespace(offset=7) for place in places} for group, places in groups.items()}

    def close(self) -> None:
        pass


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> CommittedReader:
    monkeypatch.setattr(committed, "KafkaAdminClient", Admin)
    Admin.dead, Admin.asked = set(), []
    return CommittedReader(Connection("unused:9092"), "check", "p-")


def at_dead(lane: tuple[str, int]) -> bool:
    return home_of(f"p-{lane[0]}") in Admin.dead


def test_groups_of_other_coordinators_are_answered_while_one_does_not(reader: CommittedReader) -> None:
    Admin.dead = {home_of("p-group-1"), home_of("p-group-2")}
    lost = {lane for lane in LANES if at_dead(lane)}
    assert reader.read(LANES) == dict.fromkeys(LANES - lost, 7)
    assert "CoordinatorNotAvailable" in reader.trouble


def test_sets_that_failed_are_asked_one_a_call_and_found_again(reader: CommittedReader, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(committed, "time", SimpleNamespace(monotonic=lambda: now_s))
    Admin.dead = {home_of("p-group-1"), home_of("p-group-2")}
    lost = {lane for lane in LANES if at_dead(lane)}
    reader.read(LANES)
    Admin.asked = []
    assert reader.read(LANES) == dict.fromkeys(LANES - lost, 7), "not yet asked again"
    assert len(Admin.asked) == 1
    now_s += committed.AGAIN_S
    assert len(reader.read(LANES)) == len(LANES - lost)
    assert len(Admin.asked) == 3, "one of the two"
    Admin.dead = set()
    for _ in range(2):
        now_s += committed.AGAIN_MAX_S
        found = reader.read(LANES)
    assert found == dict.fromkeys(LANES, 7)
    assert reader.trouble == ""


def test_where_nothing_is_known_of_any_group_it_says_so(reader: CommittedReader) -> None:
    Admin.dead = set(range(committed.COORDINATORS))
    with pytest.raises(Unanswered, match="CoordinatorNotAvailable"):
        reader.read(LANES)


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("hello", 99162322), ("Aa", 2112), ("escrow-check-orders", -1590924334), ("polygenelubricants", 0)],
)
def test_a_groups_home_is_found_as_the_brokers_do(text: str, hashed: int) -> None:
    """`hashed`: Java's hashCode; of the smallest number the brokers take 0."""
    assert home_of(text) == abs(hashed) % committed.COORDINATORS
