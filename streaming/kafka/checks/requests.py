"""Check requests that no member has taken yet, and who has taken one since: what makes a request count in Kafka mode.

A request lies in the check topic. It is taken when the producer group's consumer group has committed an offset behind it: a direct
member by its own commit, an endpoint when it has handed the request over. An answer of UNKNOWN says the same. Then the driver
writes an ASKED op, which counts it.

Until then the half is neither counted nor asked about again, however long a member lags: the request waits for it in Kafka
(`carried`). Where a group has committed nothing at all, or its offsets are not known, the half is asked about again in the next
round, as a member may have begun behind the request; the newer request then takes the older one's place.

Where a request lies is found by a look at the check topic that runs beside the shard (locating.py): until then it is `_sought`.

All of this is in memory. A driver that takes over asks once more, and what the earlier one had not counted is not counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from sinks.kafka.clients import Connection
from sinks.kafka.committed import CommittedReader, Lane, Unanswered
from store.arrays import Array, Ints

LOG: Final = logging.getLogger("escrow.kafka")
LOOK_EVERY_S: Final = 0.5

#: Lane → the offset that the group has committed there; -1: none. A lane that is not in it is not known.
Committed = Mapping[Lane, int]


class Requests:
    """Of one shard; used under its lock. `lanes` and `found` may be called from any thread."""

    def __init__(self, committed: Callable[[], Committed] = dict) -> None:
        self._committed = committed
        self._waiting: dict[Lane, dict[int, int]] = {}  # half offset → offset of its request
        self._looked: dict[Lane, int] = {}  # up to which committed offset a lane was gone through
        self._answered: set[int] = set()
        self._sought: set[int] = set()
        self._found: deque[tuple[Mapping[int, str], Array]] = deque()

    def sent(self, half_offsets: Iterable[int]) -> None:
        """Requests about these halves were written; `found` will tell where."""
        self._sought.update(half_offsets)

    def found(self, groups: Mapping[int, str], placed: Array) -> None:
        """Where requests lie (asking.PLACED), and the group of each half that was looked for. Those without a place were not
        found: they are asked about again, and not counted."""
        self._found.append((groups, placed))

    @property
    def wait(self) -> bool:
        """Whether some were written and not taken."""
        self._note_found()
        return bool(self._waiting or self._sought)

    def _note_found(self) -> None:
        while self._found:
            groups, placed = self._found.popleft()
            self._sought.difference_update(groups)
            for half_offset, partition, offset in zip(*(placed[name].tolist() for name in placed.dtype.names or ()), strict=True):
                lane = groups[half_offset], partition
                waiting = self._waiting.setdefault(lane, {})
                waiting[half_offset] = max(offset, waiting.get(half_offset, offset))
                self._looked.pop(lane, None)

    def lanes(self) -> list[Lane]:
        return list(self._waiting)

    def answered(self, half_offsets: Ints) -> None:
        """A member has answered that it does not know: it has taken the request, whatever is committed."""
        if self.wait:
            self._answered.update(half_offsets.tolist())

    def take(self) -> Ints:
        """The halves whose requests were taken since the last call."""
        self._note_found()
        committed, answered, found = self._committed(), self._answered, set[int]()
        self._answered = answered & self._sought
        for lane, waiting in list(self._waiting.items()):
            behind = committed.get(lane, -1)
            if answered:
                found |= self._let_go(lane, answered.intersection(waiting))
            if self._looked.get(lane) != behind:
                self._looked[lane] = behind
                found |= self._let_go(lane, {half_offset for half_offset, offset in waiting.items() if offset < behind})
        return np.array(sorted(found), np.int64)

    def _let_go(self, lane: Lane, half_offsets: set[int]) -> set[int]:
        waiting = self._waiting.get(lane, {})
        for half_offset in half_offsets:
            del waiting[half_offset]
        if not waiting:
            self._waiting.pop(lane, None)
            self._looked.pop(lane, None)
        return half_offsets

    def carried(self) -> Ints:
        """The halves whose requests wait in Kafka for a member that will come to them."""
        self._note_found()
        committed = self._committed()
        found = [half for lane, waiting in self._waiting.items() if committed.get(lane, -1) >= 0 for half in waiting]
        return np.array(sorted(found), np.int64)

    def forget_but(self, is_open: Callable[[Ints], npt.NDArray[np.bool_]]) -> None:
        """Requests about halves that have ended are not looked for any more."""
        for lane, waiting in list(self._waiting.items()):
            half_offsets = np.array(list(waiting), np.int64)
            self._let_go(lane, set(half_offsets[~is_open(half_offsets)].tolist()))


class CommittedOffsets:
    """What consumer groups have committed in the check topic, asked for by a thread of its own: a round never waits for it."""

    def __init__(self, connection: Connection, topic: str, prefix: str, wanted: Callable[[], set[Lane]]) -> None:
        self._connection, self._topic, self._prefix, self._wanted = connection, topic, prefix, wanted
        self._known: dict[Lane, int] = {}
        self._stopping = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="committed-offsets", daemon=True)
        self._thread.start()

    def known(self) -> Committed:
        return self._known

    def _run(self) -> None:
        reader = CommittedReader(self._connection, self._topic, self._prefix)
        while not self._stopping.wait(LOOK_EVERY_S):
            lanes = self._wanted()
            try:
                self._known = reader.read(lanes) if lanes else {}
                self._tell(reader.trouble if lanes else "")
            except Unanswered as error:
                self._known = {}  # who is not known is asked again, and not counted
                self._tell(str(error))
            except Exception:  # a defect must not go unheard, nor end the thread: nothing would be counted any more
                LOG.exception("committed offsets of check requests")
                self._known = {}
                self._stopping.wait(1.0)
        reader.close()

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._told:
            LOG.warning(
                "what members have taken of the check topic is not known of all groups; their checks do not count: %s", trouble
            )
        self._told = trouble

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)
