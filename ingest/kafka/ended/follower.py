"""Follows all op partitions, `read_committed`, from their checkpoints on, and answers the ends of this endpoint.

The order of the op partition decides. An end of this endpoint is answered when its own record was read back here: the answer
is what the rule says at that very place of the partition (judging.py), so it is final, and every endpoint that reads the same
partition says the same.

Own records are known by their key: 8 bytes that this process chose at its start, then a number. How halves ended is in memory
only. Every kafkaCheckpointInterval it is written to the ends topic (checkpointing.py, checkpoints.py), and a start goes on from
there (beginning.py): it reads the ops since, not all of them.

Most ops are ends that other endpoints took. Following them must cost little, or a second endpoint would add nothing: they are
read by a short way (`ops.read_sealed`), and gathered: the next reading waits for GATHER_S, unless an own record is in Kafka and
was not read yet.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.kafka.ended.beginning import Beginner, Beginning
from ingest.kafka.ended.checkpointing import Checkpointing
from ingest.kafka.ended.checkpoints import Saver
from ingest.kafka.ended.judging import AGAIN_S, ASK_S, Judged, OpJudge
from ingest.kafka.records.halves import reading
from ingest.kafka.records.places import Place
from ingest.kafka.records.sealing import PlaceSealer
from sinks.kafka.clients import Connection
from sinks.kafka.contract import Topics
from store.tables.ends import Answer

POLL_S: Final = 0.2
#: How long ops of others may lie unread once some were read; an own one is read at once.
GATHER_S: Final = 0.02
#: How often to look for new partitions and for halves that are gone.
LOOK_S: Final = 5.0
_AT_ONCE: Final = 4096
_TOKEN_BYTES: Final = 8
LOG: Final = logging.getLogger("escrow.edge")


class TopicsChanged(Exception):
    """What was read is of no use any more; the text says why."""


class OpFollower:
    """Made in the event loop, runs in a thread."""

    def __init__(
        self,
        connection: Connection,
        topics: Topics,
        sealer: PlaceSealer,
        fail: Callable[[str], None],
        now_ms: Callable[[], int],
        *,
        reserved_ms: int,
        checkpoint_s: float,
        transactional_id_prefix: str,
    ) -> None:
        self._topics, self._fail = topics, fail
        self._loop = asyncio.get_running_loop()
        # A lost position must be an error: answers would be wrong if ops were passed over.
        self._consumer = Consumer(reading(connection, auto_offset_reset="error"))
        self._judge = OpJudge(connection, topics, sealer, now_ms)
        self._checkpointing = Checkpointing(Saver(connection, topics.ends, transactional_id_prefix), checkpoint_s)
        self._beginner = Beginner(connection, topics, reserved_ms, now_ms)
        self._beginnings = ThreadPoolExecutor(1, "kafka-beginnings")
        self._beginning: Future[list[Beginning]] | None = None
        self._positions: dict[int, int] = {}  # partition: the op to be read next
        self._ids: tuple[str, str] | None = None
        self._behind: dict[int, int] = {}  # partition: where it ended when we began
        self._wanted: dict[int, int] = {}  # partition: own records lie below this offset
        self._due = threading.Event()
        self._gathering = False
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._number = 0
        self._waiters: dict[int, asyncio.Future[Answer]] = {}
        self._stopping = threading.Event()
        self.caught_up: asyncio.Future[None] = self._loop.create_future()
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="kafka-ops", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --- in the event loop ------------------------------------------------------------------------------------------------
    def end_of(self, place: Place) -> int:
        """A half's byte, as far as the op partition has been read."""
        return self._judge.end_of(place)

    def require_known(self, place: Place) -> None:
        """OpsMissing if ops about this half may be gone from Kafka."""
        self._judge.require_known(place)

    def expect(self) -> tuple[bytes, asyncio.Future[Answer]]:
        """(the key of an op record that is about to be written, what it will be answered)."""
        self._number += 1
        future: asyncio.Future[Answer] = self._loop.create_future()
        number = self._number
        self._waiters[number] = future
        future.add_done_callback(lambda _: self._waiters.pop(number, None))
        return self._token + number.to_bytes(8, "big"), future

    def read_to(self, places: Iterable[tuple[int, int]]) -> None:
        """Own records are in Kafka at these places: read them now, with all that lies before them."""
        for partition, offset in places:
            if offset >= self._wanted.get(partition, 0):
                self._wanted[partition] = offset + 1
        self._due.set()

    @property
    def partitions(self) -> int:
        return len(self._judge.ends)

    @property
    def gap(self) -> str:
        """Why ends of some halves cannot be answered; "" if all can."""
        return self._judge.gap

    @property
    def counts(self) -> Counter[str]:
        """Ops that were read, by what became of them."""
        return self._judge.counts

    @property
    def to_read(self) -> int:
        """Ops that have to be read before all that were there at the start are known."""
        return sum(max(0, end - self._positions.get(partition, 0)) for partition, end in list(self._behind.items()))

    def checkpoints(self) -> dict[str, Any]:
        """Figures of the checkpoints."""
        return self._checkpointing.figures(self._positions)

    def _tell(self, answered: Sequence[tuple[int, Answer]]) -> None:
        for number, answer in answered:
            waiter = self._waiters.get(number)
            if waiter is not None and not waiter.done():
                waiter.set_result(answer)

    def _is_caught_up(self) -> None:
        if not self.caught_up.done():
            self.caught_up.set_result(None)

    async def close(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._checkpointing.close)
        self._beginnings.shutdown(wait=False)
        await asyncio.to_thread(self._consumer.close)
        await asyncio.to_thread(self._judge.close)

    # --- in the thread ----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        looked_s, judge = -LOOK_S, self._judge
        while not self._stopping.is_set():
            try:
                self._gather()
                self._follow()
                self._answer(judge.judge_again())
                self._begin()
                self._checkpointing.order_due(self._positions, judge.ends, judge.unjudged)
                if time.monotonic() - looked_s >= LOOK_S:
                    self._look()
                    looked_s = time.monotonic()
                self.trouble = judge.unjudged.trouble or judge.gap
            except KafkaException as error:
                self.trouble = f"ops cannot be read: {error.args[0].str()}"
                self._stopping.wait(AGAIN_S)
            except TopicsChanged as error:
                self._loop.call_soon_threadsafe(self._fail, str(error))
                return
            except BaseException as error:  # a defect: an op that is passed over would make later answers wrong
                LOG.exception("following %s", self._topics.op)
                self._loop.call_soon_threadsafe(self._fail, f"{type(error).__name__}: {error}")
                return
        self._checkpointing.order_all(self._positions, judge.ends, judge.unjudged)

    def _look(self) -> None:
        """Begin new partitions. An op partition that has no half partition is passed over: its ops are about nothing."""
        op, half = (self._consumer.list_topics(name, timeout=ASK_S).topics[name] for name in (self._topics.op, self._topics.half))
        new = sorted(set(op.partitions) & set(half.partitions) - set(self._judge.ends))
        if new and self._beginning is None:
            self._beginning = self._beginnings.submit(self._beginner.begin, new)
        self._check_ids()
        self._judge.look_at_halves()

    def _check_ids(self) -> None:
        """Topics that were made anew have no record that is known here."""
        ids = self._beginner.ids()
        self._ids = self._ids or ids
        if ids != self._ids:
            raise TopicsChanged(f"{self._topics.half} or {self._topics.op} was made anew: its ids in Kafka are others now")

    def _begin(self) -> None:
        """Follow the partitions whose beginning was found."""
        if self._beginning is not None and self._beginning.done():
            found, self._beginning = self._beginning, None
            for each in found.result():
                self._add(each)
        if self._judge.ends and self._beginning is None and not self._behind:
            self._note_caught_up()

    def _add(self, found: Beginning) -> None:
        partition = found.partition
        self._positions[partition] = found.op_offset
        self._checkpointing.add(partition, found.binding, found.op_offset)
        if found.op_offset < found.op_end:
            self._behind[partition] = found.op_end
        if found.gap is not None:
            LOG.warning("%s", found.gap.text)
        self._judge.add(partition, found.ends, found.gap)
        self._consumer.incremental_assign([TopicPartition(self._topics.op, partition, found.op_offset)])

    def _note_caught_up(self) -> None:
        if not self.caught_up.done() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_caught_up)

    def _gather(self) -> None:
        """Let what others wrote gather until an own record is in Kafka. A start that has to catch up does not wait."""
        if self._gathering and not self._behind:
            self._due.clear()
            if all(self._positions.get(partition, 0) >= end for partition, end in list(self._wanted.items())):
                self._due.wait(GATHER_S)

    def _follow(self) -> None:
        first = self._consumer.poll(POLL_S)
        self._gathering = first is not None
        if first is None:
            return
        messages = [first, *self._consumer.consume(_AT_ONCE, 0)]
        good: list[Any] = [message for message in messages if message.error() is None]
        self._answer(self._judge.judge(good))
        self._positions.update({message.partition(): message.offset() + 1 for message in good})
        while self._judge.is_full and not self._stopping.is_set():  # read no more, so that memory is bounded
            self._stopping.wait(AGAIN_S)
            self._answer(self._judge.judge_again())
        self._note_ends(good, [message for message in messages if message.error() is not None])

    def _note_ends(self, good: list[Any], events: list[Any]) -> None:
        """A partition that others write to all the time may never report its end: then passing its old end is enough."""
        for message in good if self._behind else ():
            if message.offset() + 1 >= self._behind.get(message.partition(), math.inf):
                del self._behind[message.partition()]
        for event in events:
            code = event.error().code()
            if code == KafkaError._PARTITION_EOF:
                self._behind.pop(event.partition(), None)
            elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                at = self._positions.get(event.partition())
                raise TopicsChanged(
                    f"op partition {event.partition()} has no op {at} any more: it was read too late, or Kafka has lost records"
                )
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:  # a partition that is just being made
                self.trouble = f"ops cannot be read: {event.error().str()}"

    def _answer(self, judged: Sequence[Judged]) -> None:
        """Pass on the answers to own records."""
        answered: list[tuple[int, Answer]] = []
        for message, answer in judged:
            key = message.key()
            if key is not None and len(key) == _TOKEN_BYTES + 8 and key.startswith(self._token):
                answered.append((int.from_bytes(key[_TOKEN_BYTES:], "big"), answer))
        if answered and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, answered)
