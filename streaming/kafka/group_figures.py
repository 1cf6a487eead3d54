"""Producer groups in the driver's metrics: what is pending, how old, and whether a member is there to be asked.

Counted at ticks, under each shard's lock; a scrape only adds up. What is not known is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from runtime.metrics import OTHER

COUNT_EVERY_S: Final = 5.0


class Pending(NamedTuple):
    """Of one producer group: how many halves, and when the oldest was stored."""

    halves: int
    oldest_s: int

    def __add__(self, other: object) -> Pending:
        assert isinstance(other, Pending)
        return Pending(self.halves + other.halves, min(self.oldest_s, other.oldest_s))


#: By producer group. None: not counted yet.
Counted = Mapping[str, Pending] | None


class GroupFigures(Collector):
    """`counted`: of each shard. `live`: for each group that is asked for whether it has a member; None: not known."""

    def __init__(
        self,
        registry: CollectorRegistry,
        counted: Callable[[], list[Counted]],
        live: Callable[[], Callable[[str], bool] | None],
        now_s: Callable[[], int],
        *,
        names_max: int,
        timeout_s: float,
    ) -> None:
        self._counted, self._live, self._now_s = counted, live, now_s
        self._names_max, self._timeout_s = names_max, timeout_s
        self._seen: set[str] = set()
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        counted = self._counted()
        if not counted or any(each is None for each in counted):
            return
        pending: dict[str, Pending] = {}
        for shard in counted:
            for group, found in (shard or {}).items():
                pending[group] = pending[group] + found if group in pending else found
        yield from self._families(pending)

    def _families(self, pending: dict[str, Pending]) -> Iterator[GaugeMetricFamily]:
        live, now_s = self._live(), self._now_s()
        self._seen.update(pending)  # a group whose last half has ended is told with 0, once it was told
        names = sorted(self._seen, key=lambda group: (-pending[group].halves if group in pending else 0, group))
        named, rest = names[: self._names_max], names[self._names_max :]
        self._seen = set(named)
        counts = {group: pending[group].halves if group in pending else 0 for group in names}
        ages = {group: max(0, now_s - pending[group].oldest_s) if group in pending else 0 for group in names}
        yield _family("escrow_group_pending", "Pending halves of a producer group", _told(named, rest, counts, sum))
        text = "Age of the oldest pending half of a producer group; 0 = none"
        yield _family("escrow_group_oldest_pending_age_seconds", text, _told(named, rest, ages, max))
        if live is None:
            return
        alone = {group for group in pending if not live(group) and ages[group] > self._timeout_s}
        lives = {group: int(live(group)) for group in named} | {group: int(group not in alone) for group in rest}
        yield _family("escrow_group_live", "1 = the producer group has a live member", _told(named, rest, lives, min))
        unattended = GaugeMetricFamily("escrow_groups_unattended", "Groups with halves past transactionTimeOut and no live member")
        unattended.add_metric([], len(alone))
        yield unattended


def _told(
    named: list[str], rest: list[str], values: Mapping[str, int], together: Callable[[list[int]], int]
) -> dict[str, int]:  # fmt: skip
    told = {group: values[group] for group in named}
    return told | ({OTHER: together([values[group] for group in rest])} if rest else {})


def _family(name: str, text: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["group"])
    for group, value in values.items():
        family.add_metric([group], value)
    return family
