"""Group commit: one flush of the log makes durable what many callers appended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from store.errors import FlushFailed, StoreUnusable


class GroupCommit:
    """The first caller who waits flushes for all; the others wait for that flush.

    A failed flush is final. The kernel may have dropped the pages that it could not write, so a second
    flush that succeeds proves nothing. Every later call is refused until the store is opened again and
    recovery has read the disk.
    """

    def __init__(self, flush: Callable[[], None], end: Callable[[], Any], publish: Callable[[Any], None]) -> None:
        self._flush, self._end, self._publish = flush, end, publish
        self._changed = threading.Condition()
        self._leading = False
        self._failure: StoreUnusable | None = None
        self.flushed = -1
        #: Number of flushes: fewer than waits, when callers share them.
        self.flushes = 0

    def wait(self, ticket: int) -> None:
        """Return when everything up to `ticket` (a log end) is durable and published."""
        with self._changed:
            while self.flushed < ticket:
                self.check()
                if self._leading:
                    self._changed.wait()
                    continue
                self._leading = True
                break
            else:
                return
        self._lead()

    def begin(self, start: Callable[[Callable[[StoreUnusable | None], None]], bool]) -> bool:
        """For a caller that cannot wait: `start(done)` begins a flush, which calls `done` at its end. False if
        another caller flushes now, or if `start` returns False."""
        with self._changed:
            self.check()
            if self._leading:
                return False
            self._leading = True
        mark = self._end()
        try:
            begun = start(partial(self._finish, mark))
        except BaseException as error:
            self._finish(mark, doubt(error))
            raise
        if not begun:
            with self._changed:
                self._leading = False
                self._changed.notify_all()
        return begun

    def _lead(self) -> None:
        mark: Any = None
        try:
            mark = self._end()
            self._flush()
        except BaseException as error:
            self._finish(mark, doubt(error))
            raise
        self._finish(mark, None)

    def _finish(self, mark: Any, failure: StoreUnusable | None) -> None:
        """The flush has ended or failed: publish, and wake the other callers."""
        try:
            if failure is None:
                self._publish(mark)
        except BaseException as error:
            failure = doubt(error)
            raise
        finally:
            with self._changed:
                self._leading = False
                self._failure = self._failure or failure
                self.flushes += 1
                if failure is None:
                    self.flushed = max(self.flushed, mark[0])
                self._changed.notify_all()

    def fail(self, failure: StoreUnusable) -> None:
        """Refuse from now on: something else (a failed write) made the log's tail doubtful."""
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def check(self) -> None:
        if self._failure is not None:
            raise FlushFailed(f"refused since an earlier failure: {self._failure}") from self._failure


class FailsCommit:
    """Around steps that follow the write to the log: if one fails, log and memory differ, so the store is
    refused until recovery has read the log."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StoreUnusable):
            self._commit.fail(error)


def doubt(error: BaseException) -> StoreUnusable:
    """The error as a StoreUnusable: it is not known whether the log's tail is durable."""
    return error if isinstance(error, StoreUnusable) else StoreUnusable(f"interrupted while flushing: {error!r}")
