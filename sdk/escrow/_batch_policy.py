"""The batch policy: which parcels share a request, when it is sent, how a refused one is divided, and which parcels are late.

It is pure: no threads, no event loop, no sockets, and time is an argument. `escrow._batching` applies it for threads,
`escrow._loop_batching` for the tasks of an event loop.

A caller hands in a **parcel**: items that belong together, all or none. Parcels with different keys never share a request.

    together   A request takes the parcels that wait for one key, up to `batch_max` items and BATCH_BYTES_MAX bytes. A parcel
               that is larger than that goes alone.
    when       A parcel that finds nothing under way is sent at once: a single caller never waits for company. Parcels that come
               during a request share the next one, after `linger_s`. Callers that were answered together often come back
               together: after a request of n parcels the next one waits for n, at most a quarter of the time that the last
               request took, and at most `reunion_max_s`. A full request waits for nothing. Where several requests may be under
               way, another one begins only when it is full.
    divided    A server takes a request whole or not at all. One that is refused for its content (4xx) is divided in two and sent
               again, until the cause is alone. A parcel is never divided.
    late       A parcel that could not be sent within `retry_for_s` + `timeout_s` is not sent any more.

    parcel:  waiting → taken → answered | failed            waiting → dropped (its caller cancelled it)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from escrow.errors import Refused, Unreachable

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")
_Future = TypeVar("_Future")

#: Refusals that are about the caller, the moment or the server, not about one item among others.
_OF_ALL: Final = frozenset({401, 408, 429})
#: A request is closed near this size, so that one large body does not delay its neighbours.
BATCH_BYTES_MAX: Final = 1 << 20
#: Nothing is due before a parcel comes or a request ends.
NEVER: Final = math.inf


@dataclass(frozen=True, slots=True)
class Limits:
    """Of every batch; `Producer` says what they mean."""

    linger_s: float = 0.0
    batch_max: int = 256
    retry_for_s: float = 30.0
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.batch_max < 1:
            raise ValueError(f"batch_max: is {self.batch_max}, must be at least 1 (1 sends everything alone)")
        if self.linger_s < 0:
            raise ValueError(f"linger_s: is {self.linger_s}, must not be negative")


class Parcel(Generic[_Item, _Future]):
    """Items of one caller. `future` is what the caller waits for."""

    __slots__ = ("at_once", "came_at", "future", "items", "size_bytes")

    def __init__(self, items: Sequence[_Item], size_bytes: int, came_at: float, at_once: bool, future: _Future) -> None:
        self.items, self.size_bytes, self.came_at = items, size_bytes, came_at
        #: Nothing was under way when it came: it does not linger.
        self.at_once = at_once
        self.future = future


#: What to tell a caller: (its future, its answers, None), or (its future, [], the error).
Settled = tuple[_Future, list[_Answer], Exception | None]


class BatchPolicy(Generic[_Item, _Future]):
    """What waits, and what is under way. Not safe for threads: its owner has a lock, or an event loop.

    claim(future)   called when a parcel is taken: False if its caller does not want it any more
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        claim: Callable[[_Future], bool],
        *,
        under_way_max: int = 1,
        reunion_max_s: float = 0.0,
    ) -> None:
        self._name, self._limits, self._claim = name, limits, claim
        self._under_way_max, self._reunion_max_s = under_way_max, reunion_max_s
        self._waiting: dict[Hashable, deque[Parcel[_Item, _Future]]] = {}
        #: Of all keys.
        self._parcels = self._items = self._bytes = 0
        self._under_way = 0
        #: How many parcels the last request had, and until when as many are waited for.
        self._reunion_count, self._reunion_until = 0, 0.0
        self.closing = False

    @property
    def waiting_count(self) -> int:
        """Parcels that wait."""
        return self._parcels

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and nothing is under way."""
        return not (self._parcels or self._under_way)

    def add(self, items: Sequence[_Item], future: _Future, now: float, *, size_bytes: int = 0, key: Hashable = None) -> None:
        parcel = Parcel(items, size_bytes, now, not (self._parcels or self._under_way), future)
        queue = self._waiting.get(key)
        if queue is None:
            queue = self._waiting[key] = deque()
        queue.append(parcel)
        self._parcels += 1
        self._items += len(items)
        self._bytes += size_bytes

    def due_at(self) -> float:
        """When the next request is to be sent; NEVER: not before something changes."""
        if not self._parcels or self._under_way >= self._under_way_max:
            return NEVER
        if self.closing or self._is_full():
            return 0.0
        if self._under_way:
            return NEVER
        oldest = next(iter(self._waiting.values()))[0]
        lingers_until = 0.0 if oldest.at_once else oldest.came_at + self._limits.linger_s
        return max(lingers_until, self._reunion_until) if self._parcels < self._reunion_count else lingers_until

    def _is_full(self) -> bool:
        """What waits is enough for a request."""
        return self._items >= self._limits.batch_max or self._bytes >= BATCH_BYTES_MAX

    def take(self) -> Batch[_Item, _Future]:
        """A request with the parcels of the key that has waited longest. What is left of them goes behind the other keys."""
        key = next(iter(self._waiting), None)
        queue = self._waiting.pop(key, deque())
        taken: list[Parcel[_Item, _Future]] = []
        count = size_bytes = 0
        while queue:
            parcel = queue[0]
            items, parcel_bytes = len(parcel.items), parcel.size_bytes
            if taken and (count + items > self._limits.batch_max or size_bytes + parcel_bytes > BATCH_BYTES_MAX):
                self._waiting[key] = queue
                break
            queue.popleft()
            self._parcels, self._items, self._bytes = self._parcels - 1, self._items - items, self._bytes - parcel_bytes
            if self._claim(parcel.future):
                taken.append(parcel)
                count, size_bytes = count + items, size_bytes + parcel_bytes
        self._under_way += 1
        return Batch(self._name, self._limits, key, taken)

    def over(self, batch: Batch[_Item, _Future], took_s: float, now: float) -> None:
        """A batch that was taken is settled, after this long."""
        self._under_way -= 1
        self._reunion_count = batch.count
        self._reunion_until = now + min(took_s / 4, self._reunion_max_s)

    def abandon(self) -> list[_Future]:
        """Everything that waits leaves, unsent."""
        left = [parcel.future for queue in self._waiting.values() for parcel in queue]
        self._waiting.clear()
        self._parcels = self._items = self._bytes = 0
        return left


class Request(NamedTuple, Generic[_Item]):
    """What to send now. No attempt begins after `give_up_at` but the first."""

    key: Hashable
    items: list[_Item]
    give_up_at: float


@dataclass(slots=True)
class Batch(Generic[_Item, _Future]):
    """Parcels that were taken together, from the first request until each of them is settled:

    while (request := batch.next(now)) is not None:     # then tell batch.late
        send it, and tell what batch.answered(answers) or batch.failed(error) says
    """

    name: str
    limits: Limits
    key: Hashable
    parcels: list[Parcel[_Item, _Future]]
    #: Set by `next`: those that it left out.
    late: list[Settled[_Future, Any]] = field(default_factory=list)
    count: int = 0
    #: What is still to be sent; the last is next.
    _parts: list[list[Parcel[_Item, _Future]]] = field(default_factory=list)
    _sent: list[Parcel[_Item, _Future]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = len(self.parcels)
        self._parts = [self.parcels]

    @property
    def futures(self) -> list[_Future]:
        return [parcel.future for parcel in self.parcels]

    def next(self, now: float) -> Request[_Item] | None:
        """The next request; None: everything is settled, apart from what is late."""
        self.late = []
        while self._parts:
            self._sent = self._without_late(self._parts.pop(), now)
            if self._sent:
                items = [item for parcel in self._sent for item in parcel.items]
                return Request(self.key, items, self._sent[-1].came_at + self.limits.retry_for_s)
        return None

    def _without_late(self, parcels: list[Parcel[_Item, _Future]], now: float) -> list[Parcel[_Item, _Future]]:
        late_after_s = self.limits.retry_for_s + self.limits.timeout_s
        if parcels and now < parcels[0].came_at + late_after_s:  # they are in the order that they came
            return parcels
        for parcel in parcels:
            if now >= parcel.came_at + late_after_s:
                error = Unreachable(f"{self.name}: could not be sent within {late_after_s} s", maybe_done=False)
                self.late.append((parcel.future, [], error))
        return [parcel for parcel in parcels if now < parcel.came_at + late_after_s]

    def answered(self, answers: list[_Answer]) -> list[Settled[_Future, _Answer]]:
        """Each parcel with its own answers."""
        settled: list[Settled[_Future, _Answer]] = []
        at = 0
        for parcel in self._sent:
            end = at + len(parcel.items)
            settled.append((parcel.future, answers[at:end], None))
            at = end
        return settled

    def failed(self, error: Exception) -> list[Settled[_Future, Any]]:
        """Those to tell; none while the cause is looked for."""
        if len(self._sent) > 1 and may_be_of_one(error):
            middle = len(self._sent) // 2
            self._parts += [self._sent[middle:], self._sent[:middle]]
            return []
        return [(parcel.future, [], error) for parcel in self._sent]


def may_be_of_one(error: Exception) -> bool:
    """The refusal may be about one parcel only."""
    return isinstance(error, Refused) and 400 <= error.status < 500 and error.status not in _OF_ALL
