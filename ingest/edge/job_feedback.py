"""What the edge does on the job's word: discard proposals become ops, corrupt ops are forgotten. Runs in the committer's thread.

Proposals: the job proposes, the edge makes it an op unless the half has ended meanwhile. One trap: a half that was resumed
after the job had decided must not be discarded on the old decision. The job has seen a resume once its op cursor is behind it;
what it proposed before that is passed over. `edge.cursors` keeps, beside the place in the queue, the op from which on resumes
may be unseen, so that a restarted edge knows them again.

Quarantine: an op that the job could not read has not ended its half. The edge works that half's end out anew from the ops that
can be read, and checkpoints before it moves on: a crash must not bring the lost end back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from store.edge.store import EdgeStore, End
from store.io.pages import JobSlot
from store.read.readers import LogReader, TopicReader
from store.records import OpKind, State, Via
from store.tables import delivery_cursors
from store.tables.consume_queue import REASON_SHIFT
from store.tables.delivery_cursors import Cursors

ENTRIES_AT_ONCE: Final = 4096
_OPS_AT_ONCE: Final = 1 << 18
#: The op cursor is noted at least this often, so that a restart has few ops to read.
_NOTE_OPS: Final = 1 << 18
_NEVER: Final = 1 << 62
_REASON_MASK: Final = (1 << REASON_SHIFT) - 1
_OP_OF_STATE: Final = {State.DISCARDED_MAX: OpKind.DISCARD_MAX, State.DISCARDED_EXPIRED: OpKind.DISCARD_EXPIRED}


class Followers:
    """Follows the proposal and the quarantine queue. `news` and `resumed` aside, only the committer's thread calls it."""

    def __init__(self, store: EdgeStore, cursors: Cursors, now_ms: Callable[[], int]) -> None:
        self._store, self._cursors, self._now_ms = store, cursors, now_ms
        self._topics: TopicReader | None = None
        #: Halves that were resumed, and the op end behind the resume.
        self._resumed: dict[int, int] = {}
        self._resumes_seen_at = _NEVER
        self.discarded = self.passed_over = self.reopened = 0

    def recover(self) -> None:
        """Before anything else: resumes that the job may not have seen when it proposed."""
        log = LogReader(self._store.directory)
        first, stop = max(self._cursors[delivery_cursors.PROPOSAL_OPS], log.op_queue.begin), log.ends()[1]
        while first < stop:
            until = min(stop, first + _OPS_AT_ONCE)
            ops = log.ops(first, until)
            resumes = ops[ops["kind"] == int(OpKind.RESUME)]
            self._remember(dict(zip(resumes["half_offset"].tolist(), (resumes["op_offset"] + 1).tolist(), strict=True)))
            first = until
        log.close()

    def news(self, page_of: TopicReader) -> bool:
        """Is there anything to do? Cheap: asked at every look."""
        page = page_of.page
        op_cursor = page[JobSlot.OP_CURSOR]
        return (
            op_cursor >= min(self._resumes_seen_at, self._cursors[delivery_cursors.PROPOSAL_OPS] + _NOTE_OPS)
            or page[JobSlot.PROPOSAL_END] > self._cursors[delivery_cursors.PROPOSAL]
            or page[JobSlot.QUARANTINE_END] > self._cursors[delivery_cursors.QUARANTINE]
        )

    def resumed(self, half_offsets: list[int]) -> None:
        """These were resumed just now; their ops are in the log."""
        self._remember(dict.fromkeys(half_offsets, self._store.op_end))

    def _remember(self, resumed: dict[int, int]) -> None:
        self._resumed.update(resumed)
        self._resumes_seen_at = min(self._resumed.values(), default=_NEVER)

    def take(self) -> None:
        """Everything that is there."""
        if self._topics is None:
            self._topics = TopicReader(self._store.directory)
        self._topics.follow()
        self._take_proposals(self._topics)
        self._take_quarantined(self._topics)

    def _take_proposals(self, topics: TopicReader) -> None:
        # The op cursor first: proposals that come later were made by a job that had read up to it.
        op_cursor = topics.page[JobSlot.OP_CURSOR]
        end = topics.page[JobSlot.PROPOSAL_END]
        queue = topics.queue("proposal")
        first = max(self._cursors[delivery_cursors.PROPOSAL], queue.begin)
        while first < end:
            stop = min(end, first + ENTRIES_AT_ONCE)
            entries = queue.read(first, stop)
            self._propose(entries["tags_code"][entries["size_bytes"] > 0].tolist())  # a rebuild after retention leaves holes
            self._cursors[delivery_cursors.PROPOSAL] = first = stop
        self._resumed = {half: behind for half, behind in self._resumed.items() if behind > op_cursor}
        self._remember({})
        self._cursors[delivery_cursors.PROPOSAL_OPS] = max(self._cursors[delivery_cursors.PROPOSAL_OPS], op_cursor)

    def _propose(self, tags: list[int]) -> None:
        ends = []
        for tag in tags:
            half_offset, state = tag & _REASON_MASK, State(tag >> REASON_SHIFT)
            if half_offset in self._resumed:
                self.passed_over += 1
            else:
                ends.append(End(half_offset, _OP_OF_STATE[state], via=Via.CHECKER))
        if ends:
            answers, ticket = self._store.append_ends(ends, self._now_ms())
            self._store.wait(ticket)
            accepted = sum(answer.verdict.value == "accepted" for answer in answers)
            self.discarded += accepted
            self.passed_over += len(answers) - accepted

    def _take_quarantined(self, topics: TopicReader) -> None:
        queue, end = topics.queue("quarantine"), topics.page[JobSlot.QUARANTINE_END]
        first = max(self._cursors[delivery_cursors.QUARANTINE], queue.begin)
        if first >= end:
            return
        for tag in queue.read(first, end)["tags_code"].tolist():
            if tag < 0:
                try:
                    self.reopened += self._store.reopen(-1 - tag) >= 0
                except IndexError:
                    continue  # retention has removed the op or the half: it is gone anyway
            else:
                self._store.pending.stale = True  # a half that is quarantined is not pending; its group cannot be read
        self._store.checkpoint()
        self._cursors[delivery_cursors.QUARANTINE] = end
