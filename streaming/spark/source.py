"""The source: the store's half and op queues as a Spark streaming source, in packed chunks (packed_rows.py).

Offset, a JSON object of three whole numbers that only grow:
    half    halves before it have been offered
    op      ops before it have been offered
    tick    as in job.published: the driver counts it up when it wants a batch although there is nothing to read (a round begins)

Spark runs the reader in a Python process of its own, so it reads the mapped files itself, checks CRCs there, and offers nothing
beyond the published (flushed) ends. `read` returns when there is news: it sleeps until the edge or the driver wakes it
(store/io/wakeup.py), so an idle stream costs nothing and a record is picked up at once. It also returns after `WAIT_S` without
news.

Batches follow one another no sooner than `settle_interval_s`: a batch costs Spark the same whether it has one record or thousands,
and one right after the other would take a whole core at twenty transactions a second. Consumers do not wait for it, since the edge
serves them from the unsettled tail. What comes after a pause does not wait, nor does a tick (a round or a retention is due), nor a
backlog.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from store.directory import StoreDirectory
from store.io.pages import JOB_MAGIC, JOB_PUBLISHED, JobSlot, PublishedPage
from store.io.wakeup import JOB_WAKE, Sleeper
from store.read.readers import LogReader
from streaming.settlement.settle import Feed, read_feed
from streaming.spark.packed_rows import CHUNK_RECORDS, SCHEMA, Row, pack

FORMAT: Final = "escrow"
#: The longest sleep in one call. Waking ends it; this only bounds what a lost wake, or a dead driver, may cost.
WAIT_S: Final = 2.0
#: While records gather: how often to look whether the driver wants a batch now.
GLANCE_S: Final = 0.02

Offset = dict[str, int]


class _ReadAhead(threading.Thread):
    """Reads the next feed of a backlog while the last one is being settled in the driver: two processes, two cores."""

    def __init__(self, log: LogReader, after: Feed, records_max: int) -> None:
        super().__init__(name="read-ahead", daemon=True)
        self.place = (after.half_stop, after.op_stop)
        self._log, self._records_max = log, records_max
        self._feed: Feed | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._feed = read_feed(self._log, *self.place, self._records_max)
        except BaseException as error:
            self._error = error

    def feed(self) -> Feed:
        self.join()
        if self._feed is None:
            raise self._error or RuntimeError("the read-ahead ended without a feed")
        return self._feed


class EscrowSource(DataSource):
    """`spark.readStream.format("escrow")`. Options: root, half and op (where to start), records_max, settle_interval_s."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return EscrowReader(self.options)


class EscrowReader(SimpleDataSourceStreamReader):
    """Lives in the source's process; Spark calls it from one thread."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        root = Path(options["root"])
        self._start: Offset = {"half": int(options["half"]), "op": int(options["op"]), "tick": 0}
        self._records_max = int(options["records_max"])
        self._log = LogReader(StoreDirectory(root))
        self._job = PublishedPage(root / JOB_PUBLISHED, JOB_MAGIC)
        self._sleeper: Sleeper | None = None
        self._wake_path = root / JOB_WAKE
        self._parent = os.getppid()
        self._offered: list[Row] = []
        self._ahead: _ReadAhead | None = None
        self._interval_s = float(options["settle_interval_s"])
        #: When the last batch was handed out.
        self._handed_s = time.monotonic() - self._interval_s

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles the reader into every plan, for tasks that must read a range again: they open the files anew.
        return EscrowReader, (self._options,)

    def initialOffset(self) -> Offset:
        return self._start

    def read(self, start: Offset) -> tuple[Iterator[Row], Offset]:
        """News behind `start`, and the offset behind it; nothing and `start` itself when none came in time."""
        # Spark keeps what it was given until it commits, and commits late. It asks for more only when the batch is done.
        self._offered.clear()
        if not self._news(start):
            return iter(()), start
        self._gather(start)
        tick = self._job[JobSlot.TICK]
        feed = self._next_feed((start["half"], start["op"]))
        self._offered = pack(feed, tick)
        self._handed_s = time.monotonic()
        return iter(self._offered), {"half": feed.half_stop, "op": feed.op_stop, "tick": max(tick, start["tick"])}

    def _gather(self, start: Offset) -> None:
        """Let more of it come until the interval is over."""
        until_s = self._handed_s + self._interval_s
        while (left_s := until_s - time.monotonic()) > 0 and self._job[JobSlot.TICK] <= start["tick"]:
            half_end, op_end = self._log.ends()
            if max(half_end - start["half"], op_end - start["op"]) >= CHUNK_RECORDS or os.getppid() != self._parent:
                return
            time.sleep(min(left_s, GLANCE_S))

    def _next_feed(self, place: tuple[int, int]) -> Feed:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.join()  # one thread at a time reads the log
        feed = ahead.feed() if ahead is not None and ahead.place == place else read_feed(self._log, *place, self._records_max)
        half_end, op_end = self._log.ends()
        if half_end - feed.half_stop >= CHUNK_RECORDS or op_end - feed.op_stop >= CHUNK_RECORDS:
            self._ahead = _ReadAhead(self._log, feed, self._records_max)
        return feed

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[Row]:
        """The same records again, where Spark has lost them."""
        halves, ops = self._log.halves(start["half"], end["half"]), self._log.ops(start["op"], end["op"])
        feed = Feed(start["half"], end["half"], start["op"], end["op"], halves, ops)
        return iter(pack(feed, end["tick"]))

    def _news(self, start: Offset) -> bool:
        """Wait for news, at most WAIT_S."""
        if self._is_new(start):
            return True
        if self._sleeper is None:
            # Bound at the first wait and not before: tasks that only read a range again must not take the place over.
            self._sleeper = Sleeper(self._wake_path)
            if self._is_new(start):
                return True
        while self._sleeper.wait(WAIT_S):
            if self._is_new(start):
                return True
        if os.getppid() != self._parent:
            raise SystemExit("the driver is gone")
        return self._is_new(start)

    def _is_new(self, start: Offset) -> bool:
        half_end, op_end = self._log.ends()
        return half_end > start["half"] or op_end > start["op"] or self._job[JobSlot.TICK] > start["tick"]
