"""A job under test: real Spark, a real store, the edge played by the test, and a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runtime.settings import load
from store.directory import Geometry
from store.edge.store import EdgeStore, End
from store.io.pages import JobSlot
from store.messages import Message
from store.read.readers import LogReader, TopicReader
from store.records import OpKind, State, Via, parse_immunity_s
from store.tables.consume_queue import REASON_SHIFT
from store.tables.ends import Answer
from store.tables.frames import Frame
from store.tables.presence import Presence
from store.tables.queue_files import topic_queue_name
from streaming.service import JobService
from tests.support.hand_clock import HandClock

#: Small files, so that every test crosses their borders.
SMALL = (
    "commitLogSegmentSize=256KiB",
    "maxBodySize=16KiB",
    "tranStateTableMapedFileSize=24000",
    "tranRedoLogMapedFileSize=20000",
    "logQueueEntriesPerFile=1000",
    "topicQueueEntriesPerFile=64",
    "presenceTtl=1h",
    "settleInterval=0",
)
HALF_MASK = (1 << REASON_SHIFT) - 1


class JobWorld:
    """Producer, edge, consumer and operator in one, around a JobService."""

    edge: EdgeStore
    presence: Presence

    def __init__(self, root: Path, spark: Any, flags: Iterable[str] = (), *, start: bool = True) -> None:
        self.settings = load(None, [f"dataDir={root}", *SMALL, *flags], {})
        self.settings.store_dir.mkdir(parents=True, exist_ok=True)
        self.clock = HandClock()
        self.spark = spark
        self.open_edge()
        self._check_cursor = self._proposal_cursor = self._starts = 0
        self.job: Any = None
        self._closed = False
        if start:
            self.start_job()

    # --- the edge ---
    def open_edge(self) -> None:
        self.edge = EdgeStore(
            self.settings.store_dir,
            geometry=Geometry(**self.settings.geometry_values()),
            max_body_bytes=self.settings.max_body_bytes,
        )
        self.presence = Presence(self.settings.store_dir / "presence", writable=True)

    def _close_edge(self) -> None:
        self.presence.close()
        self.edge.close()

    def crash_edge(self) -> None:
        """Drop the edge as SIGKILL would: nothing is flushed, noted or published on the way out. `open_edge` recovers."""
        self.presence.close()
        self.edge.__exit__(RuntimeError)

    # --- the job ---
    def start_job(self, before: Callable[[], None] | None = None) -> JobService:
        """Open the store, which recovers it, then start the query; `before` may look at what recovery alone has made of it."""
        self._starts += 1
        self.job = JobService(self.settings, self.clock)
        if before is not None:
            before()
        self.job.start(self.spark, self.settings.spark_dir / f"checkpoint-{self._starts}")
        return self.job

    def stop_job(self) -> None:
        self.job.stop()
        self.job = None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.job is not None:
            self.stop_job()
        self._close_edge()

    def settle(self) -> None:
        """Until everything published is settled and no round is at work."""
        for _ in range(200):
            self.job.run_batch()
            marker = self.job.store.marker
            if (marker.half_cursor, marker.op_cursor) == self.job.store.log.ends() and not self.job.rounds.at_work:
                return
        raise AssertionError("never caught up")

    def round(self, advance_s: float | None = None) -> list[int]:
        """Let a round fall due, and work it off. The halves that it asked about, as the edge sees them."""
        self.clock.advance(self.settings.check_interval_ms / 1000 if advance_s is None else advance_s)
        self.settle()
        return self.requests()

    # --- producers ---
    def half(self, body: bytes = b"x", group: str = "g", topic: str = "t", **rest: Any) -> int:
        """`immunity` as the property has it, `born_at_ms` as the producer says."""
        immunity_s = parse_immunity_s(rest.pop("immunity", None))
        message = Message(group, topic, body, {"KEYS": "k"}, immunity_s=immunity_s, **rest)
        return self.edge.prepare([message], self.clock.now_ms())[0]

    def halves(self, bodies: Iterable[bytes], group: str = "g", topic: str = "t") -> Sequence[int]:
        """Many at once, spread over the topic's queues."""
        return self.edge.prepare([Message(group, topic, body) for body in bodies], self.clock.now_ms())

    def end_all(self, half_offsets: Iterable[int], kind: OpKind) -> list[Answer]:
        return self.edge.end([End(half, kind, "g") for half in half_offsets], self.clock.now_ms())

    def end(self, half_offset: int, kind: OpKind, group: str | None = "g", via: Via = Via.PRODUCER) -> Answer:
        return self.edge.end([End(half_offset, kind, group, via)], self.clock.now_ms())[0]

    def commit(self, half_offset: int, **rest: Any) -> Answer:
        return self.end(half_offset, OpKind.COMMIT, **rest)

    def rollback(self, half_offset: int, **rest: Any) -> Answer:
        return self.end(half_offset, OpKind.ROLLBACK, **rest)

    def online(self, *groups: str) -> None:
        for group in groups or ("g",):
            self.presence.seen(self.edge.dictionary.add_group(group), self.clock.now_ms())

    # --- the edge's deliveries ---
    def requests(self) -> list[int]:
        """New entries of the check queue."""
        return self._new("check", JobSlot.CHECK_END, "_check_cursor")

    def hand_over(self, half_offsets: Iterable[int]) -> None:
        self.edge.wait(self.edge.append_asked(list(half_offsets), "member", self.clock.now_ms()))

    def turn_proposals(self) -> list[tuple[int, str]]:
        """Turn new proposals into discard ops; (half, how the edge answered)."""
        found = []
        for tag in self._new("proposal", JobSlot.PROPOSAL_END, "_proposal_cursor"):
            kind = OpKind.DISCARD_MAX if tag >> REASON_SHIFT == State.DISCARDED_MAX else OpKind.DISCARD_EXPIRED
            answer = self.end(tag & HALF_MASK, kind, group=None, via=Via.CHECKER)
            found.append((tag & HALF_MASK, answer.verdict.name))
        return found

    def _new(self, name: str, slot: int, cursor: str) -> list[int]:
        topics = self.topics()
        first, stop = getattr(self, cursor), topics.page[slot]
        setattr(self, cursor, stop)
        return [int(tag) for tag in topics.queue(name).read(first, stop)["tags_code"]]

    # --- consumers and operators ---
    def topics(self) -> TopicReader:
        return TopicReader(self.edge.directory)

    def released(self, topic: str = "t") -> list[bytes]:
        """Bodies in all queues of a topic, by queue and offset."""
        return [bytes(frame.body) for frame in self.released_frames(topic)]

    def released_frames(self, topic: str = "t") -> list[Frame]:
        topic_no = self.edge.dictionary.topic_no(topic)
        if topic_no is None:
            return []
        topics, log, found = self.topics(), LogReader(self.edge.directory), []
        for queue_id in range(self.edge.dictionary.queues[topic_no]):
            _, entries = topics.topic_entries(topic_no, queue_id, 0, 1 << 20)
            found += [log.frame(entry) for entry in entries if entry["size_bytes"] > 0]
        return found

    def queue_bytes(self, topic: str = "t") -> list[bytes]:
        """The very entries of a topic's queues: places and all."""
        topic_no = self.edge.dictionary.topic_no(topic)
        assert topic_no is not None
        topics = self.topics()
        found = []
        for queue_id in range(self.edge.dictionary.queues[topic_no]):
            begin, end = topics.catalogue.extent(topic_no << 6 | queue_id)
            found.append(topics.queue(topic_queue_name(topic_no, queue_id)).read(begin, end).tobytes() if end > begin else b"")
        return found

    def discards(self) -> list[tuple[int, State]]:
        topics = self.topics()
        tags = topics.queue("discard").read(0, topics.page[JobSlot.DISCARD_END])["tags_code"]
        return [(int(tag) & HALF_MASK, State(int(tag) >> REASON_SHIFT)) for tag in tags]

    def state(self, half_offset: int) -> State:
        return State(int(self.job.store.table.get(np.array([half_offset]))["word"][0]) & 7)

    def check_count(self, half_offset: int) -> int:
        return int(self.job.store.table.get(np.array([half_offset]))["word"][0]) >> 3 & 255

    def metric(self, name: str, **labels: str) -> float:
        return self.job.metrics.registry.get_sample_value(name, labels) or 0.0

    def assert_gauge(self) -> None:
        """Case 66: the gauge is what the totals say, and what the table holds."""
        marker = self.job.store.marker
        totals, pending = marker.totals, self.job.store.table.pending
        ended = sum(totals[name] for name in ("commits", "rollbacks", "discards_max", "discards_expired", "quarantined"))
        assert pending == totals["prepares"] + totals["resumes"] - ended
        assert marker.pending == pending == self.job.store.table.count_pending() == self.metric("escrow_pending")


def spoil(world: JobWorld, entry: Any) -> None:
    """Spoil a byte of the frame that an entry points at, behind everybody's back."""
    at = int(entry["commit_log_offset"]) + int(entry["size_bytes"]) - 3
    size = world.edge.directory.geometry.commit_log_segment_bytes
    with open(world.edge.directory.commit_log / f"{at - at % size:020d}", "r+b") as segment:
        segment.seek(at % size)
        byte = segment.read(1)[0]
        segment.seek(at % size)
        segment.write(bytes([byte ^ 0xFF]))
