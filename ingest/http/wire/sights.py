"""Shapes for what operators look into: why a transaction is in doubt, causes, conflicts, one group, dead letters, settings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from ingest.http.wire.consumers import LetterOut
from ingest.http.wire.fields import ITEMS_MAX, Text
from ingest.http.wire.operators import GroupOut
from ingest.operating.contradictions import Contradiction
from ingest.operating.explaining import Explained
from ingest.operating.listings import Cause
from store.naming import NAME_MAX_BYTES

Name = Annotated[str, Meta(max_length=NAME_MAX_BYTES)]


class CausesQuery(Struct, forbid_unknown_fields=True):
    state: Annotated[Literal["pending", "discarded"], Meta(description="which halves are folded")] = "pending"
    limit: Annotated[int, Meta(ge=1, le=1000, description="the most causes in the answer")] = 200


class ConflictsQuery(Struct, forbid_unknown_fields=True):
    group: Annotated[Name, Meta(description="of this producer group")] | None = None
    by: Annotated[Literal["producer", "operator"], Meta(description="who said it")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="the most conflicts in the answer")] = 100
    before_ms: Annotated[int, Meta(ge=0, description="only earlier ones")] | None = None


class DeadLettersQuery(Struct, forbid_unknown_fields=True):
    max: Annotated[int, Meta(ge=1, le=256, description="the most letters in the answer")] = 50
    after: Annotated[str, Meta(max_length=64, description="`next` of the answer before")] = ""


class ReplayAsOperatorIn(Struct, forbid_unknown_fields=True):
    """Dead letters of a group that are delivered to it again, and why. Without ids: all; then `expect` is the number that a dry run
    has matched."""

    reason: Annotated[str, Meta(min_length=1, max_length=500)]
    ids: Annotated[list[Text], Meta(max_length=ITEMS_MAX)] = []
    dry_run: bool = False
    expect: Annotated[int, Meta(ge=0)] | None = None


class CauseOut(Struct):
    """Halves in doubt of one group that wait for the same reason; `cause` is what the filter of the same name takes."""

    state: str
    group: str
    cause: str
    count: int
    oldest_ms: int
    newest_ms: int
    attempts_max: int


class CausesOut(Struct):
    """The largest first. `groups_and_causes`: how many there are in all."""

    causes: list[CauseOut]
    groups_and_causes: int


class ConflictOut(Struct):
    """An end that was not taken. `said`: commit or rollback; `state`: what the transaction was; `by`: producer, check (in
    answer to a check request) or operator; `who`: the producer group, or the operator."""

    at_ms: int
    id: str
    group: str
    verdict: Literal["conflict", "refused"]
    by: str
    who: str
    said: str
    state: str
    remark: str


class ConflictsOut(Struct):
    conflicts: list[ConflictOut]


class AnswerOut(Struct):
    """An answer that did not end the transaction: UNKNOWN."""

    at_ms: int
    id: str
    remark: str
    by: str


class GroupSightOut(Struct):
    """`answers`: the last 20 that said UNKNOWN, the newest first. `conflicts`: the last 20 ends that were not taken."""

    group: GroupOut
    causes: list[CauseOut]
    answers: list[AnswerOut]
    conflicts: list[ConflictOut]


class LastAnswerOut(Struct):
    at_ms: int
    by: str
    actor: str
    remark: str


class ExplainedOut(Struct):
    """Why a transaction is in doubt. `why`: sentences, the most important first. `next_check_ms`: not before; null: nobody can be
    asked. `discard_ms`: when it expires. `commit`, `rollback`: what they would do now."""

    id: str
    state: str
    group: str
    why: list[str]
    members: list[str]
    last_seen_ms: int | None
    last_asked_ms: int | None
    last_answer: LastAnswerOut | None
    attempts: int
    attempts_max: int
    next_check_ms: int | None
    discard_ms: int | None
    queued_check: bool
    outstanding: bool
    commit: str
    rollback: str
    conflicts: list[ConflictOut]


class DeadGroupOut(Struct):
    group: str
    dead_letters: int
    topics: list[str]


class DeadGroupsOut(Struct):
    groups: list[DeadGroupOut]


class DeadLettersOut(Struct):
    """`count`: of the whole group."""

    dead_letters: list[LetterOut]
    next: str | None
    count: int


class ReplayedOut(Struct):
    """`matched`: open letters among those named. A dry run replays none."""

    dry_run: bool
    matched: int
    replayed: int


class SettingOut(Struct, rename={"origin": "from"}):
    """`from`: default, or where the value came from. Secrets are masked."""

    key: str
    value: str | int | float | bool | list[str]
    origin: str
    variable: str


class SettingsOut(Struct):
    """What the running edge uses. `file`: its settings file."""

    file: str | None
    settings: list[SettingOut]


def cause(found: Cause) -> CauseOut:
    return msgspec.convert(found, CauseOut, from_attributes=True)


def conflict(found: Contradiction) -> ConflictOut:
    return msgspec.convert(found, ConflictOut, from_attributes=True)


def explained(id: str, found: Explained) -> ExplainedOut:
    last = found.last_answer
    return ExplainedOut(
        id, found.state, found.group, found.why, found.members, found.last_seen_ms, found.last_asked_ms,
        None if last is None else LastAnswerOut(last.at_ms, last.by, last.actor, last.remark),
        found.attempts, found.attempts_max, found.next_check_ms, found.discard_ms, found.queued_check, found.outstanding,
        found.commit, found.rollback, [conflict(each) for each in found.contradictions],
    )  # fmt: skip
