"""What one run does, drawn from its seed: orders, where the producer is killed, which requests the network breaks.

A run has one producer group and one database. Its producer lives one or more **lives**: each works on some of the orders and may be
killed at a named **point**; the last one is never killed, and stays to answer check-backs.

    point          the producer is killed …
    before_half    … before it sends the half
    half_sent      … when the half has left it and the answer has not come (by the proxy)
    after_half     … when the half is acknowledged, before the local transaction begins
    in_local       … inside the local transaction, before its COMMIT
    after_commit   … after the local COMMIT, before it has said so
    end_sent       … when the end has left it and the answer has not come (by the proxy)
    after_end      … when the end is acknowledged
    any            … at any moment, from outside

    habit          the local transaction …
    commit         … commits
    rollback       … is rolled back on purpose, and says so
    raise          … raises before its COMMIT
    raise_late     … raises after its COMMIT: the message must be released nevertheless
    unknown        … commits, and does not know it
    slow_held      … lasts until a check-back has come, with its barrier row inserted: the check finds it running
    slow_open      … lasts until a check-back has come, before its barrier row: the check ends it
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

HABITS = {"commit": 8, "rollback": 4, "raise": 3, "raise_late": 3, "unknown": 3, "slow_held": 2, "slow_open": 2}
SLOW = ("slow_held", "slow_open")
COMMITTING = ("commit", "raise_late", "unknown", "slow_held")
ENDING = ("commit", "rollback")
#: Points, and the habits with which they can be reached; () is every habit.
POINTS: dict[str, tuple[str, ...]] = {
    "before_half": (),
    "half_sent": (),
    "after_half": (),
    "in_local": ("commit", "rollback", "raise", "raise_late", "unknown", "slow_held"),
    "after_commit": COMMITTING,
    "end_sent": ENDING,
    "after_end": ENDING,
    "any": (),
}
#: Those at which the proxy kills.
BY_PROXY = ("half_sent", "end_sent")
#: Cards beside the points: a producer that is not killed.
SPARED = ("none", "none")
#: What the network does to a request: proxy.py says how.
CUTS = ("cut_request", "cut_forwarded", "cut_unanswered", "cut_answer", "stall_request", "stall_answer")
ROUTES = ("halves", "ends", "checks")
TOPICS = ("order-paid", "order-packed", "order-sent")


@dataclass(frozen=True, slots=True)
class Order:
    """One transaction. Its id is the message's key."""

    ident: str
    topic: str
    habit: str
    size: int
    #: As a `with` block, or by send_in_transaction.
    block: bool

    @property
    def body(self) -> str:
        return f"{self.ident} {'x' * self.size}"


@dataclass(frozen=True, slots=True)
class Life:
    """One process: what it works on, and where it dies ("none": it does not). `any_after_s` belongs to the point `any`."""

    orders: tuple[Order, ...]
    point: str = "none"
    victim: str = ""
    threads: int = 1
    any_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    number: int
    lives: tuple[Life, ...]
    #: (route, how many requests of it came before) → what happens to it
    cuts: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return f"run-{self.number}"

    @property
    def orders(self) -> list[Order]:
        return [order for life in self.lives for order in life.orders]

    @property
    def through_proxy(self) -> bool:
        """Others talk to the endpoint itself, over connections that are kept."""
        return bool(self.cuts) or any(life.point in BY_PROXY for life in self.lives)


class Planner:
    """Plans of a campaign, one after another. Points and cuts come from decks, so that every kind is played about equally often."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rng = random.Random(f"{seed}")
        self._points: list[str] = []
        self._cuts: list[tuple[str, str]] = []

    def plan(self, number: int) -> Plan:
        rng = random.Random(f"{self._seed}:{number}")
        lives = [self._life(rng, number, 0, self._next_point())]
        if lives[0].point != "none" and rng.random() < 0.35:
            lives.append(self._life(rng, number, 1, self._next_point()))
        if lives[-1].point != "none":
            lives.append(Life(()))
        cuts: dict[tuple[str, int], str] = {}
        for _ in range(rng.choice((0, 0, 1, 3, 4, 4))):
            route, cut = self._next_cut()
            cuts[route, rng.randrange(3)] = cut
        return Plan(number, tuple(lives), cuts)

    def _next_point(self) -> str:
        if not self._points:
            self._points = [*POINTS, *SPARED]
            self._rng.shuffle(self._points)
        return self._points.pop()

    def _next_cut(self) -> tuple[str, str]:
        if not self._cuts:
            self._cuts = [(route, cut) for route in ROUTES for cut in CUTS]
            self._rng.shuffle(self._cuts)
        return self._cuts.pop()

    def _life(self, rng: random.Random, number: int, life: int, point: str) -> Life:
        orders = [self._order(rng, f"{number}-{life}-{at}") for at in range(rng.randint(2, 5))]
        victim = rng.randrange(len(orders))
        habits = POINTS.get(point, ())
        while habits and orders[victim].habit not in habits:
            orders[victim] = self._order(rng, orders[victim].ident)
        # What is slow lasts for seconds, and one of it is enough.
        slow = [at for at, order in enumerate(orders) if order.habit in SLOW and at != victim]
        dropped = set(slow[(0 if orders[victim].habit in SLOW else 1) :])
        left = tuple(order for at, order in enumerate(orders) if at not in dropped)
        named = orders[victim].ident if point not in ("none", "any") else ""
        return Life(left, point, named, rng.choice((1, 1, 1, 3)), rng.uniform(0.2, 4.0))

    @staticmethod
    def _order(rng: random.Random, ident: str) -> Order:
        [habit] = rng.choices(list(HABITS), list(HABITS.values()))
        return Order(ident, rng.choice(TOPICS), habit, rng.choice((0, 10, 300, 3000)), rng.random() < 0.5)
