"""Check rounds: when one begins, and how it is worked off in slices between the batches of the stream.

One round every transactionCheckInterval, counted from the beginning of the last one, so that two of them are never closer together:
"one whole interval since the last hand-over" rests on that. Life of a round:

    due       an interval has passed and something is pending; the end of the op queue is noted
    begun     the op cursor has reached that end: no op is on its way that could settle what is about to be asked; and it is known
              which groups have a live member
    at work   parts are decided and made durable, for at most a second at a time, and less when the stream has news
    done      every file with something pending has been looked at
    again     a group that had as many requests as outstandingPerGroupMax allows has answered half of them: the same round runs
              once more for the halves that had to wait. So a storm is settled as fast as its group answers, not once an
              interval; and still no half is asked about twice in a round

`job.round` (JSON and its CRC) in the store's directory holds number and beginning of the last round. After a restart the
interval is counted from there, and the round runs once more: what was asked in it is not asked again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from checker.decisions import Decision, Tick
from store.arrays import Bools
from store.errors import Corrupt
from store.io import disk
from streaming.settlement.settle import Settler

ROUND_FILE: Final = "job.round"
SLICE_S: Final = 1.0

#: now_ms → which groups have a live member, by group_no. None: not known now, and the round waits.
LiveGroups = Callable[[int], Bools | None]


class Rounds:
    """The schedule of rounds and the one at work. Used by one thread; `wanted` may be asked from any."""

    def __init__(
        self,
        settler: Settler,
        live: LiveGroups,
        discards_allowed: Callable[[], bool],
        now_ms: int,
        *,
        root: Path,
        op_end: Callable[[], int],
        leapt_ms: Callable[[int], int] = lambda _horizon_ms: 0,
    ) -> None:
        """`root`: where the round file lies; `op_end`: where the op queue ends now; `leapt_ms`: how much of a horizon,
        in milliseconds, was a leap of the clock."""
        self._settler, self._live, self._discards_allowed = settler, live, discards_allowed
        self._job, self._end_of_ops, self._leapt_ms = settler.job, op_end, leapt_ms
        self._interval_ms = settler.policy.check_interval_s * 1000
        self._path = root / ROUND_FILE
        self._op_end = -1  # noted when a round fell due; -1 = none waits to begin
        self._parts: Iterator[dict[Decision, int]] | None = None
        self._resume_from_ms = -1
        self._begun_ms = -1  # the round that was begun last here
        self._again = False
        self._is_first_pass = True
        self._due_ms = self._first_due(now_ms)
        self.counts: Counter[Decision] = Counter()  # of the round at work
        self.finished: Counter[Decision] = Counter()  # of the last whole round
        self.rounds_done = 0

    def _first_due(self, now_ms: int) -> int:
        marker = self._job.marker
        found = _read(self._path)
        if found is not None and found[0] >= marker.round_no and found[1] <= now_ms:
            self._resume_from_ms = found[1] if found[0] == marker.round_no else -1
            return found[1] + self._interval_ms
        return min(marker.now_ms, now_ms) + self._interval_ms if marker.round_no else now_ms

    @property
    def at_work(self) -> bool:
        return self._parts is not None

    def wanted(self, now_ms: int) -> bool:
        """Whether a batch should be made for the sake of rounds alone."""
        if self._settler.policy.standby:
            return False
        if self.at_work or self._again:
            return True
        return (self._is_due(now_ms) or self._resume_from_ms >= 0) and self._job.marker.pending > 0

    def _is_due(self, now_ms: int) -> bool:
        """An interval has passed; or the clock was put back to before the last round, and the time since is unknown."""
        return not self._due_ms - self._interval_ms <= now_ms < self._due_ms

    def work(self, now_ms: int, has_news: Callable[[], bool]) -> Counter[Decision]:
        """Go on with the round at work, or begin one that is due; what was decided meanwhile."""
        if not self.at_work:
            self._again = self._begun_ms >= 0 and self._settler.has_room_again(self._job.marker.round_no)
            if self.wanted(now_ms):
                self._begin(now_ms)
        decided: Counter[Decision] = Counter()
        stop_s = time.monotonic() + SLICE_S
        while self._parts is not None:
            part = next(self._parts, None)
            if part is None:
                self._finish()
                break
            decided.update(part)
            self.counts.update(part)
            if time.monotonic() >= stop_s or has_news():
                break
        return decided

    def _begin(self, now_ms: int) -> None:
        if self._op_end < 0:
            self._op_end = self._end_of_ops()
        if self._job.marker.op_cursor < self._op_end:
            return
        live = self._live(now_ms)
        if live is None:
            return
        again = self._again and not self._is_due(now_ms)
        if again:
            round_no, begun_ms = self._job.marker.round_no, self._begun_ms
        elif self._resume_from_ms >= 0 and not self._is_due(now_ms):
            round_no, begun_ms = self._job.marker.round_no, self._resume_from_ms
        else:
            round_no, begun_ms = self._job.marker.round_no + 1, now_ms
            disk.write_json(self._path, {"round_no": round_no, "begun_ms": begun_ms}, ROUND_FILE)
        self._op_end = self._resume_from_ms = -1
        self._due_ms, self._begun_ms = begun_ms + self._interval_ms, begun_ms
        leapt_s = -(-self._leapt_ms(self._settler.policy.retention_s * 1000) // 1000)
        allowed = self._discards_allowed()
        tick = Tick(now_ms, round_no, begun_ms, ops_caught_up=True, discards_allowed=allowed, leapt_s=leapt_s)
        self.counts = Counter()
        self._parts = self._settler.check_round(tick, live)
        self._is_first_pass = not again

    def _finish(self) -> None:
        self._parts = None
        self.finished = self.counts
        self.rounds_done += self._is_first_pass


def _read(path: Path) -> tuple[int, int] | None:
    try:
        found = disk.read_json(path)
    except Corrupt:
        return None
    return (int(found["round_no"]), int(found["begun_ms"])) if found else None
