"""A whole Escrow without Spark, HTTP and a clock: edge, settling job and members of the producer groups in one process.

Time stands still unless `sleep` moves it, and nothing happens unless a test asks for it, so that every order of events can be
played. `Service` opens the real stores in a real directory; `crash` drops them as SIGKILL would, `restart` opens them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from checker.decisions import Decision, Tick
from checker.policy import Policy
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.errors import Corrupt
from store.job.store import JobStore
from store.messages import Message
from store.read.readers import TopicReader, open_readers
from store.records import OpKind, State, Via, check_count_of, queue_key_of, queue_offset_of, state_of, topic_of_key
from store.tables.consume_queue import REASON_SHIFT
from store.tables.ends import Answer, Verdict
from store.tables.frames import Frame
from streaming.settlement.settle import Feed, Settler, read_feed

T0_S = 1_800_000_000
T0_MS = T0_S * 1000
#: The smallest files there are: a few dozen messages roll every one of them.
SMALLEST = Geometry(
    commit_log_segment_bytes=64 << 10,
    state_rows_per_file=64,
    redo_entries_per_file=64,
    log_queue_entries_per_file=64,
    topic_queue_entries_per_file=64,
)
#: Files that a test of a few thousand messages does not roll: opening them costs little.
ROOMY = Geometry(
    commit_log_segment_bytes=1 << 20,
    state_rows_per_file=4096,
    redo_entries_per_file=16_384,
    log_queue_entries_per_file=4096,
    topic_queue_entries_per_file=1024,
)
DISCARD_OP = {State.DISCARDED_MAX: OpKind.DISCARD_MAX, State.DISCARDED_EXPIRED: OpKind.DISCARD_EXPIRED}
_REASON_MASK = (1 << REASON_SHIFT) - 1

#: What a member of a producer group answers when it is asked about a half; None: it says nothing.
Listener = Callable[[int], OpKind | None]


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as a consumer sees it."""

    topic: str
    queue_id: int
    queue_offset: int
    frame: Frame

    @property
    def body(self) -> bytes:
        return self.frame.body


@dataclass(slots=True)
class Service:
    """Edge + job + members. Half offsets stand for transaction ids."""

    root: Path
    geometry: Geometry = SMALLEST
    policy: Policy = field(default_factory=Policy)
    now_ms: int = T0_MS
    edge_options: dict[str, Any] = field(default_factory=dict)
    #: Live members by group; a group that is not in here has nobody who could be asked.
    members: dict[str, Listener] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    round_no: int = 0
    check_cursor: int = 0
    proposal_cursor: int = 0
    edge: EdgeStore = field(init=False)
    job: JobStore = field(init=False)
    settler: Settler = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.crash()

    # --- life ---------------------------------------------------------------------------------------------------------
    def open(self, *, rebuild: bool = False) -> Service:
        self.edge = EdgeStore(self.root, geometry=self.geometry, **self.edge_options)
        self.job = JobStore(self.root, rebuild=rebuild)
        self.settler = Settler(self.job, self.policy)
        return self

    def close(self) -> None:
        self.job.close()
        self.edge.close()

    def crash(self) -> None:
        """Drop both sides as a killed process would: nothing is flushed, noted or published on the way out."""
        drop(self.job)
        drop(self.edge)

    def restart(self, *, clean: bool = True, rebuild: bool = False) -> Service:
        if clean:
            self.close()
        else:
            self.crash()
        return self.open(rebuild=rebuild)

    def sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def use(self, **settings: Any) -> None:
        """Another policy from now on."""
        self.policy = replace(self.policy, **settings)
        self.settler = Settler(self.job, self.policy)

    # --- producers ----------------------------------------------------------------------------------------------------
    def send(self, *bodies: bytes, group: str = "orders", topic: str = "paid", **fields: Any) -> list[int]:
        """Halves, stored as one batch."""
        messages = [Message(group, topic, body, **fields) for body in bodies]
        return [int(offset) for offset in self.edge.prepare(messages, self.now_ms)]

    def send_one(self, body: bytes = b"body", **fields: Any) -> int:
        return self.send(body, **fields)[0]

    def end(self, half_offset: int, kind: OpKind, *, group: str | None = "orders", via: Via = Via.PRODUCER, **rest: Any) -> Answer:
        return self.edge.end([End(half_offset, kind, group, via, **rest)], self.now_ms)[0]

    def commit(self, *half_offsets: int, group: str | None = "orders") -> list[Answer]:
        return self.edge.end([End(half_offset, OpKind.COMMIT, group) for half_offset in half_offsets], self.now_ms)

    def roll_back(self, *half_offsets: int, group: str | None = "orders") -> list[Answer]:
        return self.edge.end([End(half_offset, OpKind.ROLLBACK, group) for half_offset in half_offsets], self.now_ms)

    def operate(self, half_offset: int, *kinds: OpKind) -> list[Answer]:
        """What an operator does to a half, one op after another in one batch."""
        ends = [End(half_offset, kind, None, Via.OPERATOR, "ada") for kind in kinds]
        return self.edge.end(ends, self.now_ms)

    # --- settlement ---------------------------------------------------------------------------------------------------
    def feed(self, records_max: int = 1 << 20) -> Feed:
        marker = self.job.marker
        return read_feed(self.job.log, marker.half_cursor, marker.op_cursor, records_max)

    def settle(self, records_max: int = 1 << 20) -> list[Feed]:
        """Settle everything that is durable, in feeds of at most `records_max` records of each queue."""
        feeds = []
        while not self.is_caught_up():
            feed = self.feed(records_max)
            self.settler.settle(feed, self.now_ms)
            feeds.append(feed)
        return feeds

    def is_caught_up(self) -> bool:
        return (self.job.marker.half_cursor, self.job.marker.op_cursor) == self.job.log.ends()

    def live(self) -> np.ndarray[Any, Any]:
        return np.array([name in self.members for name in self.edge.dictionary.groups], bool)

    def round(self, *, new: bool = True, **tick: Any) -> dict[Decision, int]:
        """One check round at this instant; `new=False` goes on with the one before (after a crash)."""
        self.round_no += new
        given: dict[str, Any] = {"round_start_ms": self.now_ms, "ops_caught_up": self.is_caught_up(), **tick}
        counts = dict.fromkeys(Decision, 0)
        for part in self.settler.check_round(Tick(self.now_ms, self.round_no, **given), self.live()):
            for decision, count in part.items():
                counts[decision] += count
        return counts

    def deliver(self) -> list[int]:
        """Hand the check requests that have not lapsed to members, then take their answers. The halves asked."""
        marker = self.job.marker
        first = max(self.check_cursor, marker.round_check_start)
        requests = self.queue("check", first, marker.check_end)["tags_code"].tolist()
        self.check_cursor = marker.check_end
        open_ones = [half for half in requests if self.edge.ends_table[half] == 0 and self.group_of(half) in self.members]
        self.edge.wait(self.edge.append_asked(open_ones, "member-1", self.now_ms))
        self.asked += open_ones
        for half in open_ones:
            answer = self.members[self.group_of(half)](half)
            if answer is not None:
                self.end(half, answer, group=self.group_of(half), via=Via.CHECK)
        return open_ones

    def take_proposals(self) -> list[Answer]:
        """The edge turns discard proposals into ops."""
        stop = self.job.marker.proposal_end
        tags = self.queue("proposal", self.proposal_cursor, stop)["tags_code"].tolist()
        ends = [End(tag & _REASON_MASK, DISCARD_OP[State(tag >> REASON_SHIFT)], None, Via.CHECKER) for tag in tags]
        answers = self.edge.end(ends, self.now_ms) if ends else []
        self.proposal_cursor = stop
        return answers

    def beat(self, seconds: float = 30) -> dict[Decision, int]:
        """Time passes; then settle, one round, requests to members and answers back, proposals, settle."""
        self.sleep(seconds)
        self.settle()
        counts = self.round()
        self.deliver()
        self.take_proposals()
        self.settle()
        return counts

    def retain(self, seconds: float) -> dict[str, int]:
        """Both sides delete what they may."""
        removed = self.job.retain(self.now_ms, round(seconds * 1000))
        return {**removed, **self.edge.retain()}

    # --- looking ------------------------------------------------------------------------------------------------------
    def queue(self, name: str, first: int, stop: int) -> np.ndarray[Any, Any]:
        """Entries of check, proposal, discard or quarantine queue."""
        topics = TopicReader(self.job.directory)
        entries = topics.queue(name).read(first, stop).copy()
        topics.close()
        return entries

    def group_of(self, half_offset: int) -> str:
        """The producer group of a half; nobody's where it cannot be read."""
        try:
            return self.edge.read_half(half_offset).properties["PGROUP"]
        except (Corrupt, IndexError):
            return ""

    def row(self, half_offset: int) -> Any:
        return self.job.table.get(np.array([half_offset]))[0]

    def state(self, half_offset: int) -> State:
        return State(int(state_of(self.row(half_offset)["word"])))

    def check_count(self, half_offset: int) -> int:
        return int(check_count_of(self.row(half_offset)["word"]))

    @property
    def pending(self) -> int:
        """The gauge, after making sure that counting the rows gives the same."""
        totals = self.job.marker.totals
        counted = self.job.table.pending
        ended = sum(totals[name] for name in ("commits", "rollbacks", "discards_max", "discards_expired", "quarantined"))
        assert counted == self.job.marker.pending == totals["prepares"] + totals["resumes"] - ended
        self.job.table.count_pending()
        assert self.job.table.pending == counted
        return counted

    def discards(self) -> list[tuple[int, State]]:
        """(half_offset, reason) of every discard record, in order."""
        tags = self.queue("discard", 0, self.job.marker.discard_end)["tags_code"].tolist()
        return [(tag & _REASON_MASK, State(tag >> REASON_SHIFT)) for tag in tags]

    def consume(self, topic: str = "paid") -> list[Delivered]:
        """Everything that is visible in a topic, queue by queue, read as another process would."""
        return read_topic(self.root, topic)

    def bodies(self, topic: str = "paid") -> list[bytes]:
        return sorted(message.body for message in self.consume(topic))


def drop(store: EdgeStore | JobStore) -> None:
    """What the end of a killed process does to its files and locks, and no more."""
    store.__exit__(RuntimeError)


def read_topic(root: Path, topic: str) -> list[Delivered]:
    _, log, topics, dictionary = open_readers(root)
    topic_no = dictionary.topic_no(topic)
    if topics is None or topic_no is None:
        return []
    found = []
    for queue_id in range(dictionary.queues[topic_no]):
        begin, end = topics.catalogue.extent(topic_no << 6 | queue_id)
        first, entries = topics.topic_entries(topic_no, queue_id, begin, end - begin)
        for number, entry in enumerate(entries, first):
            if entry["size_bytes"]:
                found.append(Delivered(topic, queue_id, number, log.frame(entry)))
    topics.close()
    log.close()
    return found


def place(position: int) -> tuple[int, int, int]:
    """(topic_no, queue_id, queue_offset) of a packed position."""
    return *topic_of_key(int(queue_key_of(position))), int(queue_offset_of(position))


def verdicts(answers: Iterable[Answer]) -> list[Verdict]:
    return [answer.verdict for answer in answers]


def segment_files(root: Path) -> dict[str, int]:
    """Bytes of every file under a store, by its path within it."""
    return {str(path.relative_to(root)): path.stat().st_size for path in sorted(root.rglob("*")) if path.is_file()}


def contents(root: Path, *under: str) -> dict[str, bytes]:
    """Content of every file under some directories of a store."""
    files: Sequence[Path] = [path for name in under for path in sorted((root / name).rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}
