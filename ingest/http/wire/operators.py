"""Shapes for operators: lists, actions, audit, topics, overview, console sessions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ingest.http.wire.fields import I63, ITEMS_MAX, TEXT_MAX_CHARACTERS, Text
from ingest.http.wire.producers import TransactionOut, transaction
from ingest.operating.auditing import Audited
from ingest.operating.health import Finding, Level
from ingest.operating.history import Inspected
from ingest.operating.listings import Listed, ListPage, Query
from ingest.operating.operator import Action, Done
from ingest.operating.parts_health import Part
from ingest.operating.tables import HALVES_MAX
from store.edge.removal import Removal
from store.naming import NAME_MAX_BYTES

#: Topics that an answer names; the rest is counted.
TOPICS_TOLD_MAX: Final = 1_000
State = Literal["pending", "discarded", "committed", "rolled_back", "quarantined", "settled", "any"]
Seconds = Annotated[int, Meta(ge=0, le=1 << 40)]
Attempts = Annotated[int, Meta(ge=0, le=255)]


class FilterIn(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which transactions. What is left out is not looked at."""

    state: Annotated[State, Meta(description="settled: committed or rolled back")] = "pending"
    group: Annotated[str, Meta(max_length=NAME_MAX_BYTES, description="the producer group")] | None = None
    topic: Annotated[str, Meta(max_length=NAME_MAX_BYTES)] | None = None
    key: Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS, description="the whole key")] | None = None
    q: Annotated[str, Meta(max_length=TEXT_MAX_CHARACTERS, description="a whole id, or a part of group, topic or key")] | None = (
        None
    )
    age_min_s: Annotated[Seconds, Meta(description="age of at least this many seconds")] | None = None
    age_max_s: Annotated[Seconds, Meta(description="age of at most this many seconds")] | None = None
    attempts_min: Annotated[Attempts, Meta(description="checked at least this many times")] | None = None
    attempts_max: Annotated[Attempts, Meta(description="checked at most this many times")] | None = None
    since_ms: Annotated[I63, Meta(description="stored at this time or later")] | None = None
    until_ms: Annotated[I63, Meta(description="stored at this time or before")] | None = None
    cause: (
        Annotated[
            str,
            Meta(
                max_length=TEXT_MAX_CHARACTERS,
                description="unasked, unanswered, or `unknown:` and the last remark with # for numbers; as /causes tells it",
            ),
        ]
        | None
    ) = None
    online: Annotated[bool, Meta(description="whether a member of the group is online")] | None = None


class TransactionsQuery(FilterIn, forbid_unknown_fields=True):
    order: Annotated[Literal["oldest", "newest"], Meta(description="what comes first")] = "oldest"
    limit: Annotated[int, Meta(ge=1, le=1000, description="the most transactions in the answer")] = 100
    cursor: Annotated[str, Meta(max_length=32, description="`next` of the answer before")] = ""


class ActionIn(Struct, forbid_unknown_fields=True):
    """What to do, and why. Give either `ids` or `filter`; with a filter, `expect` is the number that a dry run has matched."""

    action: Literal["check", "commit", "rollback", "resume"]
    reason: Annotated[str, Meta(min_length=1, max_length=500)]
    ids: Annotated[list[Text], Meta(max_length=ITEMS_MAX)] = []
    filter: FilterIn | None = None
    dry_run: bool = False
    expect: I63 | None = None


class TopicIn(Struct, forbid_unknown_fields=True):
    """A topic to make. `queues`: as many as queuesPerTopic says, if nothing is said."""

    topic: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)]
    queues: Annotated[int, Meta(ge=1, le=64)] | None = None


class TopicsRemoveIn(Struct, forbid_unknown_fields=True):
    """Topics to remove: these, or with `unused` all that are not in use, with `made_by` only those that this token made."""

    topics: Annotated[list[Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)]], Meta(max_length=32_768)] = []
    unused: bool = False
    made_by: Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)] | None = None
    dry_run: bool = False


class AuditQuery(Struct, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000, description="the most records in the answer")] = 100
    before: Annotated[I63, Meta(description="`next` of the answer before")] | None = None


class TableQuery(Struct, forbid_unknown_fields=True):
    half_offset: Annotated[I63, Meta(description="the half to begin with")] = 0
    stop: Annotated[I63, Meta(description="halves before this one")] | None = None
    max: Annotated[int, Meta(ge=1, le=HALVES_MAX, description="the most halves that one answer covers")] = 1024
    since_ms: Annotated[I63, Meta(description="halves stored at this time or later")] = 0
    until_ms: Annotated[I63, Meta(description="halves stored before this time")] | None = None
    group: Annotated[str, Meta(max_length=NAME_MAX_BYTES, description="the producer group")] | None = None
    topic: Annotated[str, Meta(max_length=NAME_MAX_BYTES)] | None = None
    state: Annotated[str, Meta(max_length=32, description="as in the column state")] | None = None


class LoginIn(Struct, forbid_unknown_fields=True):
    token: Text


class TransactionsOut(Struct):
    """`next` null: everything was looked at (`scanned_all`). `matched`: how many there are, where that was counted."""

    transactions: list[Listed]
    next: str | None
    matched: int | None
    scanned_all: bool


class InspectedOut(Struct):
    """One transaction with its message. `body`: its first bytes; `body_bytes`: how many there are."""

    transaction: TransactionOut
    reason: str | None
    tags: str
    properties: dict[str, str]
    body: bytes
    body_bytes: int
    immunity_s: int
    outstanding: bool


ActionResult = Literal["accepted", "queued", "already", "conflict", "refused"]


class ResultOut(Struct):
    """`queued`: a check request that waits, because no member of the group is online."""

    id: str
    result: ActionResult
    detail: str


class ReasonOut(Struct):
    """What happened to how many, and why."""

    result: ActionResult
    detail: str
    count: int


class AffectedOut(Struct):
    """A group that an action is about. `online`: members that can be asked."""

    group: str
    count: int
    online: int


class PreviewOut(Struct):
    """Whom an action is about: the 50 largest groups, how many more there are, and the oldest and newest half."""

    groups: list[AffectedOut]
    groups_more: int
    oldest_ms: int | None
    newest_ms: int | None


class ActionOut(Struct):
    """All are counted, by result and by reason; the first 1,000 are told one by one. `audit_no` null: a dry run, which
    has a `preview`."""

    dry_run: bool
    matched: int
    results: list[ResultOut]
    counts: dict[str, int]
    audit_no: int | None
    reasons: list[ReasonOut]
    preview: PreviewOut | None


class AuditsOut(Struct):
    records: list[Audited]
    next: int | None


class SeriesOut(Struct):
    """What was counted in each step; pending: at its end."""

    step_s: float
    at_ms: list[int]
    halves: list[int]
    commits: list[int]
    rollbacks: list[int]
    checks: list[int]
    pending: list[int]


class OverviewOut(Struct):
    """`health`, with the `findings` that it rests on, the worst first: what the console, `escrow top` and `escrow doctor` show.
    `totals` since the store was made, as far as the job has settled; checks and conflicts since the edge started."""

    now_ms: int
    started_at_ms: int
    role: str
    pending: int
    oldest_pending_age_s: int | None
    discarded: int
    totals: dict[str, int]
    health: Level
    judged_at_ms: int
    findings: list[Finding]
    parts: list[Part]
    clock_alert: bool
    series: SeriesOut


class MemberOut(Struct):
    member: str
    last_seen_ms: int
    via: str


class GroupOut(Struct):
    """`conflicts`: contradicting ends of its producers since the edge started. `last_seen_ms`: of any member, null: none since
    the edge started."""

    group: str
    pending: int
    oldest_age_s: int | None
    outstanding: int
    discarded: int
    conflicts: int
    last_seen_ms: int | None
    members: list[MemberOut]


class GroupsOut(Struct):
    groups: list[GroupOut]


class ConsumerOut(Struct):
    """`deleted_unread`: messages that retention took before the group read them."""

    group: str
    lag: int
    in_hand: int
    dead_letters: int
    deleted_unread: int


class TopicOut(Struct):
    topic: str
    queues: int
    messages: int
    consumers: list[ConsumerOut]


class TopicMadeOut(Struct):
    """`made`: false where it was there before."""

    topic: str
    queues: int
    made: bool


class TopicKeptOut(Struct):
    """A topic that stays, and why."""

    topic: str
    reason: str


class TopicsRemovedOut(Struct):
    """How many topics were removed (in a dry run: would be) and how many stay; the first 1,000 of each by name."""

    dry_run: bool
    removed: int
    kept: int
    topics: list[str]
    in_the_way: list[TopicKeptOut]


class TopicsOut(Struct):
    topics: list[TopicOut]


class SessionOut(Struct):
    """Who is logged in at the console. `csrf` goes into the header X-Escrow-CSRF of every action; `open`: no token is needed."""

    name: str
    csrf: str
    open: bool
    left_s: float
    version: str
    check_max: int
    runbook_base_url: str
    trace_link_template: str


def query_of(given: FilterIn) -> Query:
    return Query.of({name: getattr(given, name) for name in FilterIn.__struct_fields__})


def transactions(page: ListPage) -> TransactionsOut:
    return TransactionsOut(page.transactions, page.following, page.matched, page.following is None)


def action(given: ActionIn, who: str) -> Action:
    wanted = None if given.filter is None else query_of(given.filter)
    return Action(given.action, who, given.reason, given.ids, wanted, given.dry_run, given.expect)


def done(found: Done) -> ActionOut:
    return msgspec.convert(found, ActionOut, from_attributes=True)


def audits(found: Sequence[Audited], following: int | None) -> AuditsOut:
    return AuditsOut(list(found), following)


def inspected(id: str, found: Inspected) -> InspectedOut:
    return InspectedOut(
        transaction(id, found.transaction), found.reason, found.tags, found.properties, found.body, found.body_bytes,
        found.immunity_s, found.outstanding,
    )  # fmt: skip


def topics_removed(found: Removal, dry_run: bool) -> TopicsRemovedOut:
    kept = [TopicKeptOut(topic, reason) for topic, reason in islice(found.kept.items(), TOPICS_TOLD_MAX)]
    return TopicsRemovedOut(dry_run, len(found.removed), len(found.kept), found.removed[:TOPICS_TOLD_MAX], kept)
