"""The ledger: writes what consumers were given and what they have done into the journal `consumers`, for many callers at once.

Two threads, so that the event loop never waits for the disk and a hand-out never waits for the flush of another request:

    pen        takes all records that wait, writes them with one write; hand-outs are told now: they survive `kill -9`
    flusher    one flush for all that was written before it began; acknowledgements are told then: they survive the machine

Records keep the order in which they were handed in. When the journal has grown far beyond what is in force, the pen writes it anew;
meanwhile records wait, the event loop does not. A write that finds no room is the caller's to repeat. What it was to say is
written before anything else, so that a repetition is answered from the journal. A failed flush ends the edge.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ingest.errors import Closing, EdgeFailed
from ingest.threads import tellable
from store.errors import FlushFailed, StoreError
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers


@dataclass(frozen=True, slots=True)
class _Note:
    """Records of one caller, and whom to tell."""

    records: Sequence[ConsumerRecord]
    durable: bool
    future: asyncio.Future[None]


class Owed:
    """Records that met a full disk. Their callers were told so, but what they did in memory stands: said again, it is
    "done" at once, and that must be true in the journal first. Hand-outs are not owed: their poll has given them back."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], list[ConsumerRecord]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, records: Sequence[ConsumerRecord]) -> None:
        """Only what still counts is kept, so that callers who try again and again use no memory."""
        for record in records:
            place, at = (record.group_no, record.queue_key), record.queue_offset
            kept = self._of.get(place, [])
            if record.kind == ConsumerKind.SEEK:
                self._of[place] = [record]
            elif record.kind == ConsumerKind.OFFSET:
                still = [each for each in kept if each.kind == ConsumerKind.SEEK or _is_ahead(each, at)]
                self._of[place] = [*still, record]
            elif record.kind == ConsumerKind.DONE:
                self._of[place] = [*kept, record]

    def records(self) -> list[ConsumerRecord]:
        return [record for records in self._of.values() for record in records]

    def clear(self) -> None:
        self._of.clear()


def _is_ahead(record: ConsumerRecord, queue_offset: int) -> bool:
    return record.kind == ConsumerKind.DONE and record.queue_offset >= queue_offset


class Ledger:
    """Made and used in the event loop."""

    def __init__(self, consumers: Consumers, fail: Callable[[str], None]) -> None:
        self._consumers, self._fail = consumers, fail
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition(threading.Lock())
        self._notes: deque[_Note] = deque()
        self._unflushed: list[_Note] = []
        #: Held while the journal is flushed or replaced.
        self._file = threading.Lock()
        self._closing = self._pen_ended = False
        self._failed = ""
        #: What callers' memory says and the journal does not, for lack of room: written before anything else is.
        self._owed = Owed()
        self.writes = self.flushes = 0
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"consumers-{name}", daemon=True)
            for name, work in (("pen", self._write_all), ("flusher", self._flush_all))
        ]
        for thread in self._threads:
            thread.start()

    # --- in the event loop --------------------------------------------------------------------------------------------------------
    def note(self, records: Sequence[ConsumerRecord], *, durable: bool) -> asyncio.Future[None]:
        """Write records; done when they (and all before them) are written, or with `durable` flushed."""
        if self._failed:
            raise EdgeFailed(f"the store failed: {self._failed}")
        if self._closing:
            raise Closing("the edge is stopping: try again later")
        note = _Note(records, durable, self._loop.create_future())
        with self._changed:
            self._notes.append(note)
            self._changed.notify_all()
        return note.future

    async def close(self) -> None:
        """Everything handed in is written and flushed; then the threads end."""
        self._closing = True
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            await self._loop.run_in_executor(None, thread.join)
        self._consumers.close()

    def _tell(self, notes: Sequence[_Note], failure: BaseException | None) -> None:
        error = None if failure is None else tellable(failure)
        for note in notes:
            if note.future.done():
                continue  # the caller went away
            if error is None:
                note.future.set_result(None)
            else:
                note.future.set_exception(error)
                note.future.exception()  # perhaps no caller waits for it

    # --- in the threads -----------------------------------------------------------------------------------------------------------
    def _run(self, work: Callable[[], None]) -> None:
        """A thread that ends before its time ends the edge; callers do not wait for it."""
        try:
            work()
        except BaseException as error:
            self._give_up(error)
            with self._changed:
                notes, self._unflushed = [*self._unflushed, *self._notes], []
                self._notes.clear()
                self._closing = self._pen_ended = True  # the other one ends too
                self._changed.notify_all()
            self._loop.call_soon_threadsafe(self._tell, notes, EdgeFailed(f"the store failed: {self._failed}"))

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._notes and not self._closing:
                    self._changed.wait()
                notes = list(self._notes)
                self._notes.clear()
                if not notes:
                    self._pen_ended = True
                    self._changed.notify_all()
                    return
            self._write(notes)
            self._compact()

    def _write(self, notes: list[_Note]) -> None:
        records = [record for note in notes for record in note.records]
        try:
            self._refuse_after_failure()
            if records or self._owed:
                self._consumers.write([*self._owed.records(), *records])
                self._owed.clear()
                self.writes += 1
        except BaseException as error:
            self._owed.add(records)
            self._give_up_unless_room(error)
            self._loop.call_soon_threadsafe(self._tell, notes, error)
            return
        written = [note for note in notes if not note.durable]
        if len(written) < len(notes):
            with self._changed:
                self._unflushed += [note for note in notes if note.durable]
                self._changed.notify_all()
        if written:
            self._loop.call_soon_threadsafe(self._tell, written, None)

    def _flush_all(self) -> None:
        while True:
            with self._changed:
                while not self._unflushed and not self._pen_ended:
                    self._changed.wait()
                notes, self._unflushed = self._unflushed, []
                ended = self._pen_ended
            if notes or ended:
                self._flush(notes)
            if ended and not self._unflushed:
                return

    def _flush(self, notes: list[_Note]) -> None:
        failure: BaseException | None = None
        try:
            self._refuse_after_failure()
            with self._file:
                self._consumers.flush()
            self.flushes += 1
        except BaseException as error:
            failure = error
            self._give_up(error)
        self._loop.call_soon_threadsafe(self._tell, notes, failure)

    def _compact(self) -> None:
        """Without room for it the journal only stays long."""
        if self._failed or not self._consumers.is_long():
            return
        try:
            with self._file:
                self._consumers.compact()
        except BaseException as error:
            self._give_up_unless_room(error)

    def _give_up_unless_room(self, error: BaseException) -> None:
        if isinstance(error, FlushFailed) or not isinstance(error, StoreError):
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """A flush that failed is never tried again: the system may have dropped the pages, and a second one would prove nothing."""
        if not self._failed:
            self._failed = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
            self._loop.call_soon_threadsafe(self._fail, self._failed)

    def _refuse_after_failure(self) -> None:
        if self._failed:
            raise FlushFailed(f"refused since an earlier failure: {self._failed}")
