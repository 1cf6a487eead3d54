"""Why a transaction is still in doubt: who could be asked, what was answered, what comes next, what an operator could do now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ingest.checks.delivery import Member
from ingest.operating.contradictions import Contradiction
from ingest.operating.history import Event, Inspected
from runtime.settings import Settings

_ENDED: Final = {"COMMITTED": "committed", "ROLLED_BACK": "rolled back"}
_DISCARDED: Final = {
    "DISCARDED_MAX": "it was asked about too often without an answer that ended it",
    "DISCARDED_EXPIRED": "it was older than fileReservedTime",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """`why`: sentences, the most important first. Times are None where nothing is due. `queued_check`: an operator's request waits
    for a member; `outstanding`: one of this round waits for its answer. `commit`, `rollback`: what they would do now."""

    state: str
    group: str
    why: list[str]
    members: list[str]
    last_seen_ms: int | None
    last_asked_ms: int | None
    last_answer: Event | None
    attempts: int
    attempts_max: int
    next_check_ms: int | None
    discard_ms: int | None
    queued_check: bool
    outstanding: bool
    commit: str
    rollback: str
    contradictions: list[Contradiction] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Around:
    """What is known besides the transaction itself."""

    members: list[Member]
    last_seen_ms: int | None
    queued_check: bool
    job_runs: bool
    commit: tuple[str, str]
    rollback: tuple[str, str]
    contradictions: list[Contradiction]


def explain(found: Inspected, around: Around, settings: Settings) -> Explained:
    tx = found.transaction
    asked = [event for event in tx.history if event.event == "asked"]
    answers = [event for event in tx.history if event.event == "unknown"]
    pending = tx.state == "PREPARED"
    last_asked_ms = asked[-1].at_ms if asked else None
    explained = Explained(
        tx.state, tx.group, [], [each.member for each in around.members], around.last_seen_ms, last_asked_ms,
        answers[-1] if answers else None, tx.attempts, settings.check_count_max,
        _next_check_ms(found, last_asked_ms, settings) if pending and around.members else None,
        tx.stored_at_ms + settings.retention_ms if pending else None,
        around.queued_check, found.outstanding,
        _would("commit", around.commit, f"releases the message to {tx.topic}; final"),
        _would("rollback", around.rollback, "drops the message, it is never delivered; final"),
        around.contradictions,
    )  # fmt: skip
    explained.why.extend(_why(explained, around))
    return explained


def _next_check_ms(found: Inspected, last_asked_ms: int | None, settings: Settings) -> int:
    """Not before this; then at the next round, within transactionCheckInterval."""
    immunity_ms = found.immunity_s * 1000 or settings.transaction_timeout_ms
    after_ms = last_asked_ms + settings.check_interval_ms if last_asked_ms is not None else 0
    return max(found.transaction.stored_at_ms + immunity_ms, after_ms)


def _would(action: str, foreseen: tuple[str, str], effect: str) -> str:
    result, detail = foreseen
    if result == "accepted":
        return f"{effect}{f' ({detail})' if detail else ''}"
    return f"nothing: {action} would be {result}{f', {detail}' if detail else ''}"


def _why(found: Explained, around: Around) -> list[str]:
    if found.state in _ENDED:
        return [f"It is not in doubt: it was {_ENDED[found.state]}."]
    if found.state in _DISCARDED:
        return [f"It was discarded: {_DISCARDED[found.state]}. Nobody is asked any more: commit, roll back or resume it."]
    if found.state != "PREPARED":
        return [f"It is {found.state.lower()}: nothing can be said about it."]
    sentences = _job(around), _who(found), _answered(found), _queued(found), _conflicts(found)
    return [sentence for sentence in sentences if sentence]


def _job(around: Around) -> str:
    return "" if around.job_runs else "The streaming job is not running: no check request goes out."


def _who(found: Explained) -> str:
    if not found.members:
        return f"No member of {found.group} is online, so nobody can be asked. That costs no attempt."
    return f"{len(found.members)} of {found.group} online: {', '.join(found.members[:3])}{'…' if len(found.members) > 3 else ''}."


def _answered(found: Explained) -> str:
    if found.last_answer is not None:
        remark = f": {found.last_answer.remark}" if found.last_answer.remark else ", without a remark"
        return f"The last answer was UNKNOWN{remark}. Attempt {found.attempts} of {found.attempts_max}."
    if found.last_asked_ms is not None:
        return f"It was asked about {found.attempts} of {found.attempts_max} times, and no answer came."
    return "Nobody has been asked yet." if found.members else ""


def _queued(found: Explained) -> str:
    return "An operator's check request is queued: the first member that comes gets it." if found.queued_check else ""


def _conflicts(found: Explained) -> str:
    count = len(found.contradictions)
    return f"{count} {'end was' if count == 1 else 'ends were'} not taken: see its history." if count else ""
