"""Ends that nothing waits for (`end="background"`): how many there are, and what has become of them.

An end is sent at once and shares requests. It is retried until Escrow answers or the producer is closed. The answer that a
waiting caller would have got as an exception goes to a callback. Check-back is the net under all of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from escrow._batch_policy import Limits
from escrow.errors import EndConflict, EndRefused, NotEnded
from escrow.messages import EndAnswer, Outcome, TransactionResult, Verdict

log: Final = logging.getLogger("escrow.producer")

#: So many may wait to be sent. Beyond that a call waits for its own end, for `retry_for_s` at most.
WAITING_MAX: Final = 10_000


class EndCounts(NamedTuple):
    """Background ends of one producer since it was made."""

    #: Handed in and not answered yet.
    waiting: int
    #: Ended as the caller said.
    ended: int
    #: Had ended the other way before: an operator, or a check-back that was answered otherwise.
    conflicts: int
    #: Cannot be ended by this group, or not any more.
    refused: int
    #: Not answered before the producer was closed, or failed for good. Check-back settles these.
    undelivered: int


def patient(limits: Limits) -> Limits:
    """The limits of background ends: they are retried for as long as the producer is open."""
    return replace(limits, retry_for_s=inf)


class BackgroundEnds:
    """Counts them, and tells what went wrong. For any number of threads."""

    def __init__(self, on_not_ended: Callable[[NotEnded], object] | None) -> None:
        self._on_not_ended = on_not_ended
        self._lock = threading.Lock()
        self._begun = self._ended = self._conflicts = self._refused = self._undelivered = 0

    @property
    def counts(self) -> EndCounts:
        with self._lock:
            settled = self._ended + self._conflicts + self._refused + self._undelivered
            return EndCounts(self._begun - settled, self._ended, self._conflicts, self._refused, self._undelivered)

    def begin(self) -> None:
        with self._lock:
            self._begun += 1

    def settle(self, result: TransactionResult, answers: list[EndAnswer] | None, error: BaseException | None) -> None:
        """What came of an end that was begun: an answer, or an error."""
        if answers is None:
            with self._lock:
                self._undelivered += 1
            log.warning("%s: %s was not delivered (%s); check-back settles it", result.id, result.outcome.name, error)
            return
        [answer] = answers
        not_ended = refusal_of(result._replace(answer=answer))
        with self._lock:
            if not_ended is None:
                self._ended += 1
            elif isinstance(not_ended, EndConflict):
                self._conflicts += 1
            else:
                self._refused += 1
        if not_ended is not None:
            self._tell(not_ended)

    def _tell(self, error: NotEnded) -> None:
        log.error("%s", error)
        if self._on_not_ended is None:
            return
        try:
            self._on_not_ended(error)
        except Exception:
            log.exception("on_not_ended failed for %s", error.result.id)


def refusal_of(result: TransactionResult) -> NotEnded | None:
    """What Escrow's answer means for the caller; None: it ended as it was said, or nothing was to end."""
    answer = result.answer
    if answer is None or answer.stands or result.outcome is Outcome.UNKNOWN:
        return None
    if answer.verdict is Verdict.CONFLICT:
        return EndConflict(f"{result.id}: {result.outcome.name} was said, but it had ended before as {answer.state}", result)
    return EndRefused(f"{result.id}: {result.outcome.name} was refused: {answer.reason}", result)
