"""What became readable, and the polls that wait for it: flushed ops go into the tail, settled ones leave it, waiting polls wake."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from ingest.consuming.reading.poll_waiters import Waiting
from ingest.consuming.reading.tail import Tail
from store.errors import StoreError
from store.records import topic_of_key
from store.tables.journals.names import Dictionary


class News:
    """Lives in the event loop. `trouble`: why the files could not be read at the last look; "" if they could."""

    def __init__(self, tail: Tail, names: Dictionary, waiting: Waiting, queue_keys: Callable[[str], list[int]]) -> None:
        self._tail, self._names, self._waiting, self._queue_keys = tail, names, waiting, queue_keys
        self._loop = asyncio.get_running_loop()
        self._ends_seen: dict[str, int] = {}
        self._polls_open = 0
        self._closing = self._called = self._reading = False
        self.trouble = ""

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """Around a poll: what is flushed meanwhile is looked at. Counted before the first look, so that nothing falls between."""
        self._polls_open += 1
        try:
            self.read_ops()
            yield
        finally:
            self._polls_open -= 1

    def published(self) -> None:
        """In the committer's thread or in the loop: something new is flushed. Calls that come before the event loop looked are one.
        Without an open poll it does not look: the next poll looks first."""
        if self._polls_open and not self._called and not self._closing:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self.read_ops)

    def read_ops(self) -> None:
        """Take the ops that were flushed into the tail, and wake the polls that wait for their topics."""
        self._called = self._reading = False
        if self._closing:
            return
        try:
            grown, more = self._tail.look_at_ops()
            self.trouble = ""
        except (StoreError, IndexError) as error:  # files are just changing: the next look tries again
            self.trouble = str(error)
            return
        topics = self._names.topics
        for topic_no in {topic_of_key(queue_key)[0] for queue_key in grown}:
            self._waiting.wake_topic(topics[topic_no])
        if more and not self._reading:
            self._reading = True
            self._loop.call_soon(self.read_ops)

    def look(self) -> None:
        """The job may have settled something: follow it, and wake the polls that wait for what only the settlement could show."""
        self._tail.look_at_job()
        self.read_ops()
        for topic in self._waiting.topics():
            end = sum(self._tail.extent(queue_key)[1] for queue_key in self._queue_keys(topic))
            if self._ends_seen.get(topic) != end:
                self._waiting.wake_topic(topic)
            self._ends_seen[topic] = end
        for topic in self._ends_seen.keys() - set(self._waiting.topics()):
            del self._ends_seen[topic]

    def stop(self) -> None:
        """Polls that wait come back."""
        self._closing = True
        self._waiting.wake_all()
