"""Verify, the edge's side: one walk over the commit log, and everything else of the edge against what the walk finds.

The log is walked frame by frame up to its published end; everything else is compared in columns, some hundred thousand frames at
a time. A running edge is no problem: op end, half end and log end are read in this order, so each covers the one before, and
nothing behind them is judged. An exit in order leaves the checkpoint `clean`; then every byte is judged.
"""

from __future__ import annotations

from store.arrays import Ints
from store.inspect.verify.edge.ends import EndsReplay
from store.inspect.verify.edge.halves import Halves
from store.inspect.verify.edge.log_order import BatchOrder, NumberOrder, PlaceOrder
from store.inspect.verify.edge.ops import Ops
from store.inspect.verify.edge.releases import Releases
from store.inspect.verify.edge.suspects import SuspectOps
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.log_walk import LogWalk
from store.io.pages import EdgeSlot
from store.records import topic_of_key
from store.tables.frames import HALF_HEAD, HEAD, FrameKind
from store.tables.queue_files import topic_queue_name


class EdgeSide:
    """Puts the checks of the edge's side together."""

    def __init__(self, files: EdgeFiles, job: JobFiles) -> None:
        self.files, self._job = files, job
        self.walk = walk = LogWalk(files.log, files.quick)
        noted_log_end = files.checkpoint["log_end"] if files.checkpoint else 0
        suspects = SuspectOps(files, job, walk)
        self._batches = BatchOrder(walk)
        self._halves = Halves(files, job, walk, NumberOrder("half", walk, noted_log_end))
        self._ends = EndsReplay(files, job, walk, self._halves, suspects)
        self._releases = Releases(files, job, walk, suspects)
        self._ops = Ops(
            files,
            self._halves,
            self._ends,
            self._releases,
            numbers=NumberOrder("op", walk, noted_log_end),
            places=PlaceOrder(walk, noted_log_end),
        )

    def check(self) -> None:
        """The whole log against queues, rows and names; then what is left over."""
        files = self.files
        if files.log_end > files.log.begin or not files.log.starts:
            for offsets in self.walk.blocks(files.log.begin, files.log_end):
                self._check_block(offsets)
        elif files.log_end < files.log.begin:
            reason = f"the log ends at {files.log_end}, before its first segment"
            files.findings.add(files.page_path, EdgeSlot.LOG_END * 8, reason)
        self._halves.check_entries_left()
        self._ops.check_entries_left(self.walk)
        self._ends.check(self._ops.seen)
        self._check_noted()
        self._releases.check_left()
        files.check_behind_ends()

    def _check_block(self, offsets: Ints) -> None:
        heads = self.files.gather(offsets, HEAD)
        self._batches.check(offsets, heads)
        of_half = heads["kind"] == FrameKind.HALF
        if of_half.any():
            self._halves.check(offsets[of_half], self.files.gather(offsets[of_half], HALF_HEAD))
        if not of_half.all():
            self._ops.check(offsets[~of_half], heads[~of_half])

    def _check_noted(self) -> None:
        """The checkpoint: what it says of log_end must be what the walk found there."""
        state = self.files.checkpoint
        if state is None or self.walk.damaged:
            return
        for what, found in (("half", self._halves.numbers.noted), ("op", self._ops.numbers.noted)):
            if found is not None and state[f"{what}_end"] != found:
                reason = f"{what}_end is {state[f'{what}_end']}, the log up to {state['log_end']} says {found}"
                self.files.findings.add(self.files.checkpoint_path, 0, reason)
        positions = {int(key): int(value) for key, value in state["positions"]}
        for key, value in self._ops.places.noted.items():
            if positions.get(key) != value:
                reason = f"the next place of queue {key} is {positions.get(key)}, the log says {value}"
                self.files.findings.add(self.files.checkpoint_path, 0, reason)
        if not self.files.log.begin and set(positions) - set(self._ops.places.noted):
            self.files.findings.add(self.files.checkpoint_path, 0, "positions of queues that never had a commit")
        if self.files.clean and self._job.present and self._job.comparable:
            self._check_extents(positions)

    def _check_extents(self, positions: dict[int, int]) -> None:
        """Ends of the topic queues against the places that the edge gave out: never beyond, and equal when all ops are settled."""
        replay = self._job.replay
        assert replay is not None
        settled = self._job.clean and not replay.places["quarantine"].of_op.any()
        settled = settled and int(replay.marker["op_cursor"]) == self.files.op_end
        for key in sorted(set(positions) | set(self._job.extents)):
            _, end, slot = self._job.extents.get(key, (0, 0, 0))
            given = positions.get(key, 0)
            if end > given or (settled and end < given):
                reason = f"queue {topic_queue_name(*topic_of_key(key))} ends at {end}, but the edge gave places up to {given}"
                self._job.catalogue.add(slot + 16, reason)
