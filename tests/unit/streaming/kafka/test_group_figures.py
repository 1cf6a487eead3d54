"""Producer groups in the driver's metrics: real or absent, never a false zero."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from streaming.kafka.group_figures import Counted, GroupFigures, Pending

NOW_S = 1_900_000_000


class World:
    def __init__(self, names_max: int = 10) -> None:
        self.shards: list[Counted] = [None, None]
        self.live: Callable[[str], bool] | None = None
        self.registry = CollectorRegistry()
        GroupFigures(
            self.registry, lambda: self.shards, lambda: self.live, lambda: NOW_S, names_max=names_max, timeout_s=60
        )  # fmt: skip

    def told(self) -> dict[tuple[str, str], float]:
        return {
            (sample.name.removeprefix("escrow_"), sample.labels.get("group", "")): sample.value
            for family in self.registry.collect()
            for sample in family.samples
        }


def test_nothing_is_told_before_every_shard_was_counted() -> None:
    world = World()
    assert world.told() == {}
    world.shards[0] = {"g": Pending(3, NOW_S - 5)}
    assert world.told() == {}


def test_shards_are_added_up_and_who_is_live_is_told_only_when_it_is_known() -> None:
    world = World()
    world.shards = [{"a": Pending(3, NOW_S - 5), "b": Pending(1, NOW_S - 100)}, {"a": Pending(4, NOW_S - 50)}]
    counts = {
        ("group_pending", "a"): 7, ("group_pending", "b"): 1,
        ("group_oldest_pending_age_seconds", "a"): 50, ("group_oldest_pending_age_seconds", "b"): 100,
    }  # fmt: skip
    assert world.told() == counts
    world.live = lambda group: group == "a"
    assert world.told() == {**counts, ("group_live", "a"): 1, ("group_live", "b"): 0, ("groups_unattended", ""): 1}


def test_a_group_whose_halves_have_all_ended_is_told_with_none_and_the_smaller_ones_together() -> None:
    world = World(names_max=2)
    world.shards, world.live = [{name: Pending(count, NOW_S) for name, count in (("a", 9), ("b", 5), ("c", 2), ("d", 1))}], bool
    told = world.told()
    assert {group: value for (name, group), value in told.items() if name == "group_pending"} == {"a": 9, "b": 5, "(other)": 3}
    world.shards = [{}]
    assert {group: value for (name, group), value in world.told().items() if name == "group_pending"} == {"a": 0, "b": 0}
