"""The check loop: waits for Escrow's questions about halves, has the listener answer them, says the answers.

    poller    long-polls, which makes the group live; takes no more than the workers can soon answer: few at first, more while
              they answer all of it at once
    workers   call the listener, one check at a time each. While they are quick, a worker takes a handful and says its answers
              together; one that turns out to be slow says what it knows and gives back the rest

Only an `Outcome` that the listener returns settles anything. An exception, None, or anything else is UNKNOWN with a remark, so
that the half's history tells what went wrong. A check that is not answered is asked again in the next round: nothing here needs to
survive a crash.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from escrow._transport import Aborted, Backoff
from escrow.api import Api
from escrow.errors import EscrowError, Refused
from escrow.messages import Check, End, EndAnswer, Outcome, outcome_of, remark_of

log: Final = logging.getLogger("escrow.checks")

#: Checks that one worker may have before it, as long as it is not known how quick it is.
HELD_PER_WORKER: Final = 8
#: Checks in hand, at most: what workers have before them that answer at once.
HELD_MOST: Final = 512
#: There was room again within this: twice as much may be in hand, next time. Slower than the other: only the first amount.
QUICK_S, SLOW_S = 0.1, 1.0
#: Checks in a handful, at most, and how long a worker may be at it.
HANDFUL: Final = 64
HANDFUL_S: Final = 0.02
#: An empty answer sooner than this was no long poll: the server is stopping, or does not wait.
TOO_SOON_S: Final = 0.05


class CheckLoop:
    """Runs from `start` to `stop`."""

    def __init__(
        self,
        api: Api,
        group: str,
        member: str,
        listener: Callable[[Check], object],
        end: Callable[[Sequence[End]], Future[list[EndAnswer]]],
        *,
        workers: int = 4,
        wait_s: float = 30.0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"check_threads: is {workers}, must be at least 1")
        self._api, self._group, self._member = api, group, member
        self._listener, self._end, self._wait_s = listener, end, wait_s
        lock = threading.Lock()
        self._came, self._room = threading.Condition(lock), threading.Condition(lock)
        self._inbox: deque[Check] = deque()
        self._workers, self._held, self._held_min = workers, 0, workers * HELD_PER_WORKER
        self._held_max, self._full_at = self._held_min, 0.0
        self._stopping = threading.Event()
        self._no_more = False
        self._backoff = Backoff(first_s=0.1, most_s=5.0)
        self._failing = ""
        names = [("escrow-checks", self._poll_forever)]
        names += [(f"escrow-check-{number}", self._work) for number in range(workers)]
        self._threads = [threading.Thread(target=target, name=name, daemon=True) for name, target in names]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, give_up_at: float) -> bool:
        """No more questions; those in hand are answered. True when all of that was done before this monotonic time."""
        self._stopping.set()
        self._api.transport.abort_polls()
        with self._room:
            self._room.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():  # a listener may close its own producer
                thread.join(max(0.0, give_up_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads if thread is not threading.current_thread())

    # --- the poller -------------------------------------------------------------------------------------------------------
    def _poll_forever(self) -> None:
        try:
            while room := self._wait_for_room():
                self._poll(room)
        finally:
            with self._came:
                self._no_more = True
                self._came.notify_all()

    def _poll(self, room: int) -> None:
        begun_at = time.monotonic()
        try:
            checks = self._api.poll_checks(self._group, self._member, max=room, wait_s=self._wait_s)
        except Aborted:
            return
        except EscrowError as error:
            self._failed(error)
            return
        with self._came:
            self._inbox.extend(checks)
            self._held += len(checks)
            self._full_at = 0.0 if self._has_room() else time.monotonic()
            self._came.notify(len(checks))
        self._worked(bool(checks) or time.monotonic() - begun_at >= TOO_SOON_S)

    def _wait_for_room(self) -> int:
        """How many checks may be taken; 0 when the loop stops. Quick workers are left alone until they have answered half of what
        they have: few large polls."""
        with self._room:
            while not self._has_room() and not self._stopping.is_set():
                self._room.wait()
            if self._full_at:
                self._adapt(time.monotonic() - self._full_at)
            return 0 if self._stopping.is_set() else self._held_max - self._held

    def _has_room(self) -> bool:
        wanted = self._held_max // 2 if self._quick else 1
        return self._held_max - self._held >= wanted

    @property
    def _quick(self) -> bool:
        return self._held_max > self._held_min

    def _adapt(self, took_s: float) -> None:
        """So long it took from a poll that filled the hands until there was room again."""
        if took_s < QUICK_S:
            self._held_max = max(self._held_min, min(2 * self._held_max, HELD_MOST))
        elif took_s > SLOW_S:
            self._held_max = self._held_min

    def _failed(self, error: EscrowError) -> None:
        """Says so once, however long it lasts, and pauses."""
        if self._stopping.is_set():
            return
        if str(error) != self._failing:
            log.warning("no check requests for group %s: %s; trying again", self._group, error)
            self._failing = str(error)
        retry_after_s = error.retry_after_s if isinstance(error, Refused) else None
        self._stopping.wait(self._backoff.next_s(retry_after_s or 0.0))

    def _worked(self, waited: bool) -> None:
        if self._failing:
            log.info("check requests for group %s come again", self._group)
            self._failing = ""
        if waited:
            self._backoff.reset()
        else:
            self._stopping.wait(self._backoff.next_s())

    # --- the workers ------------------------------------------------------------------------------------------------------
    def _work(self) -> None:
        while checks := self._next():
            done = self._answer(checks)
            with self._room:
                self._held -= done
                if self._has_room():
                    self._room.notify()
                if done < len(checks):
                    self._inbox.extendleft(reversed(checks[done:]))
                    self._came.notify(len(checks) - done)

    def _next(self) -> list[Check]:
        """What a worker does next; nothing when the loop stops."""
        with self._came:
            while not self._inbox:
                if self._no_more:
                    return []
                self._came.wait()
            count = min(HANDFUL, -(-len(self._inbox) // self._workers)) if self._quick else 1
            return [self._inbox.popleft() for _ in range(count)]

    def _answer(self, checks: Sequence[Check]) -> int:
        """How many of them; at least one."""
        ends: list[End] = []
        until = time.monotonic() + HANDFUL_S
        for check in checks:
            ends.append(self._asked(check))
            if time.monotonic() >= until:
                break
        self._say(ends)
        return len(ends)

    def _asked(self, check: Check) -> End:
        try:
            outcome, remark = outcome_of(_plain(self._listener(check)), "on_check")
        except BaseException as error:  # sys.exit() in a listener included: it must not end this thread silently
            log.warning("on_check failed for %s: it is answered UNKNOWN", check.id, exc_info=error)
            outcome, remark = Outcome.UNKNOWN, remark_of(error)
        return End(check.id, outcome, remark, from_check=True)

    def _say(self, ends: Sequence[End]) -> None:
        try:
            said = self._end(ends)
        except EscrowError as error:
            _not_taken(ends, error)
            return
        said.add_done_callback(lambda done: self._note(done, ends))

    def _note(self, said: Future[list[EndAnswer]], ends: Sequence[End]) -> None:
        if said.cancelled():
            return
        error = said.exception()
        if error is None:
            for end, answer in zip(ends, said.result(), strict=True):
                _noted(end, answer)
        elif len(ends) > 1 and isinstance(error, Refused):  # perhaps for one of them: the others must not fail with it
            for end in ends:
                self._say([end])
        else:
            _not_taken(ends, error)


def _plain(returned: object) -> object:
    """What a listener returned, unless it must be awaited: these threads have no event loop."""
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError("on_check returned a coroutine: use an escrow.AsyncProducer, or connections that are not awaited")
    return returned


def _not_taken(ends: Sequence[End], error: BaseException) -> None:
    for end in ends:
        log.warning("the answer %s for %s was not taken (%s): it will be asked again", end.outcome, end.id, error)


def _noted(end: End, answer: EndAnswer) -> None:
    """COMMIT is the usual answer. That a message will never be seen, or is asked about again, is worth a line."""
    if answer.stands or end.outcome is Outcome.UNKNOWN:
        level = logging.DEBUG if end.outcome is Outcome.COMMIT else logging.INFO
        log.log(level, "the check of %s was answered %s%s", end.id, end.outcome.name, f" ({end.remark})" if end.remark else "")
    else:
        log.error(
            "the answer %s for %s came to nothing: %s %s %s", end.outcome, end.id, answer.verdict, answer.reason, answer.state
        )
