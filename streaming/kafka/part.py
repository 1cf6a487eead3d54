"""A shard of the job in Kafka mode, with what settles it: its rounds, its batches at work, its timers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

from checker.policy import Policy
from streaming.kafka.group_figures import COUNT_EVERY_S, Counted
from streaming.kafka.shard import Shard
from streaming.settlement.rounds import Rounds
from streaming.settlement.settle import Settler

#: By topic and partition: where the ranges of a batch end.
Ends = dict[str, dict[int, int]]


class Part:
    """A shard with what settles it and its rounds."""

    def __init__(self, shard: Shard, policy: Policy, release_bytes_max: int) -> None:
        self.shard = shard
        self.settler = Settler(shard, policy, release_bytes_max, carried=shard.carried)
        self.rounds: Rounds | None = None
        self.claimed_ms = 0
        self.tell_again_ms = 0
        self.retained_ms = 0
        self.counted: Counted = None  # pending halves by group, as of `counted_s`
        self.counted_s = -COUNT_EVERY_S
        self.telling: Iterator[npt.NDArray[np.int64]] = iter(())
        self.at_work: list[tuple[Future[None], int]] = []  # batches in their order, with their records
        self.ends: Ends | None = None  # of the batch that was settled last
        self.tick: Future[None] | None = None
        self.slow_told_s: float | None = None  # the task that was reported as slow, by its start

    def unfinished(self) -> list[tuple[Future[None], int]]:
        """Batches that are settled or wait; raises the error of one that failed."""
        for done, _ in self.at_work:
            if done.done():
                done.result()
        self.at_work = [(each, records) for each, records in self.at_work if not each.done()]
        return self.at_work
