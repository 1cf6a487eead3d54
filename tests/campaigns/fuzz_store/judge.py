"""What must hold of a damaged store, whatever was damaged.

typed       nothing is raised that is not a StoreError
there       what was acknowledged, and whose bytes are whole, is there: halves, ends, releases (unless the files that lead to it are
            damaged and the store was only opened: then it may be refused by name, never be something else)
nobody's    at a place lies the message that was acknowledged there, or none; no number, place or name is given a second time
named       verify finds damage in the files that it can judge
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from checker.policy import Policy
from store.directory import StoreDirectory
from store.edge.store import EdgeStore, End
from store.errors import StoreError
from store.inspect.verify.store import verify
from store.job.store import JobStore
from store.messages import Message
from store.read.readers import LogReader, TopicReader
from store.records import OpKind, State, queue_key_of, queue_offset_of, topic_of_key
from store.tables.frames import FrameKind
from streaming.settlement.settle import Settler, read_feed
from tests.campaigns.fuzz_store.damage import Damage, category
from tests.campaigns.fuzz_store.history import DAY_S, Facts, Place, Span

#: Made anew from the logs by a restore: what is damaged there costs nothing.
DERIVED = frozenset(
    {
        "half", "op", "ends", "dedup", "names", "presence", "edge.cursors", "job.round", "statetable", "topics",
        "check", "proposal", "discard", "quarantine", "catalogue",
    }
)  # fmt: skip
#: What the edge finds its records by.
EDGE_FILES = frozenset({"half", "op", "ends", "edge.checkpoint", "edge.published", "dictionary"})
#: What readers find messages by.
JOB_FILES = frozenset({"statetable", "topics", "catalogue", "redolog", "CURRENT", "job.checkpoint", "job.published"})
#: Of these verify judges every byte of a store that was closed in order.
JUDGED = frozenset({"commitlog", "half", "op", "ends", "statetable", "topics", "catalogue", "redolog", "check", "discard"})

#: What the edge calls a number whose name is lost.
LOST_NAME = "%lost-"


class Wrong(Exception):
    """An invariant that does not hold."""


@dataclass(slots=True)
class Case:
    """One damaged store."""

    root: Path
    facts: Facts
    damages: Sequence[Damage]
    #: The log's segments before the damage.
    log: dict[int, bytes]
    intact: Callable[[Span], bool] = field(init=False)

    def __post_init__(self) -> None:
        now = read_log(self.root)
        size = 64 << 10

        def intact(span: Span) -> bool:
            at, length = span
            start = at - at % size
            found, expected = now.get(start, b""), self.log.get(start, b"")
            part = slice(at - start, at - start + length)
            return start in now and len(found) == size and found[part] == expected[part]

        self.intact = intact

    @property
    def categories(self) -> set[str]:
        return {category(name) for damage in self.damages for name in damage.names}

    @property
    def derived_only(self) -> bool:
        return self.categories <= DERIVED


def read_log(root: Path) -> dict[int, bytes]:
    directory = root / "commitlog"
    paths = directory.iterdir() if directory.is_dir() else []
    return {int(path.name): path.read_bytes() for path in paths if path.name.isdecimal()}


def check_verify(case: Case) -> None:
    """Damage is named."""
    problems = verify(case.root).problems
    if not case.damages and problems:
        raise Wrong(f"verify finds {problems[0]} in a sound store")
    (damage, *more) = case.damages or (None,)
    if damage is None or more or problems or not case.facts.clean or case.facts.retained:
        return
    if damage.kind == "flip" and case.categories <= JUDGED:
        raise Wrong("verify does not find the damage")
    if damage.kind == "delete all" and case.categories <= JUDGED - {"check", "discard"} and case.facts.halves:
        raise Wrong("verify does not miss the files")


def check_store(case: Case, root: Path, *, restored: bool = False) -> None:
    """Open what there is, settle it, look at all that was acknowledged, then go on with it."""
    facts, categories = case.facts, case.categories
    whole = case.derived_only and restored
    with EdgeStore(root, dedup_window_s=DAY_S) as edge, JobStore(root) as job:
        settler = Settler(job, Policy())
        _settle(settler, job, facts.now_ms)
        _check_names(facts, edge)
        _check_halves(case, edge, strict=whole or not categories & EDGE_FILES)
        _check_releases(case, root, strict=whole or not categories & (EDGE_FILES | JOB_FILES))
        if whole or not categories & (EDGE_FILES | {"names", "commitlog"}):
            _check_taken_names(facts, edge)
        _check_new(case, root, edge, lambda: _settle(settler, job, facts.now_ms))


def _settle(settler: Settler, job: JobStore, now_ms: int) -> None:
    while job.log.ends() != (job.marker.half_cursor, job.marker.op_cursor):
        before = job.marker.half_cursor, job.marker.op_cursor
        settler.settle(read_feed(job.log, *before), now_ms)
        if (job.marker.half_cursor, job.marker.op_cursor) == before:
            raise Wrong(f"the settlement stands at {before}, the log ends at {job.log.ends()}")


def _check_names(facts: Facts, edge: EdgeStore) -> None:
    for known, found in ((facts.groups, edge.dictionary.groups), (facts.topics, edge.dictionary.topics)):
        for number, name in enumerate(found):
            if name.startswith(LOST_NAME):  # named: nobody else gets the number
                continue
            if known.get(name, number) != number or (name not in known and number in known.values()):
                raise Wrong(f"number {number} is {name!r} now")


def _check_halves(case: Case, edge: EdgeStore, *, strict: bool) -> None:
    for number, half in case.facts.halves.items():
        if number < case.facts.half_begin:
            continue
        try:
            found = edge.read_half(number)
        except (StoreError, IndexError) as error:
            if strict and case.intact(half.frame):
                raise Wrong(f"half {number} is lost: {error}") from error
            continue
        if found.body != half.body or found.queue_offset != number:
            raise Wrong(f"half {number} is another one's: {found.body[:20]!r}, not {half.body[:20]!r}")
        expected = 0 if half.state == State.PREPARED else int(half.state)
        if strict and all(map(case.intact, (half.frame, *half.ops))) and edge.end_of(number) != expected:
            raise Wrong(f"half {number} ended as {edge.end_of(number)}, acknowledged was {expected}")


def _check_taken_names(facts: Facts, edge: EdgeStore) -> None:
    """Nothing else is committed under a name."""
    for (group, name), winner in facts.names.items():
        if winner < facts.half_begin or facts.retained:
            continue
        (number,) = edge.prepare([Message(group, "paid", b"too late", name=name)], facts.now_ms)
        (answer,) = edge.end([End(number, OpKind.COMMIT, group)], facts.now_ms)
        if (answer.verdict.value, answer.other) != ("already", winner):
            raise Wrong(f"{name} of {group} is taken by {winner}, its COMMIT by {number} is answered {answer}")


def _visible(root: Path) -> dict[Place, bytes]:
    """What consumers get: entries that lead to a whole frame of that very queue."""
    log, topics = LogReader(StoreDirectory(root)), TopicReader(StoreDirectory(root))
    found: dict[Place, bytes] = {}
    try:
        for key in topics.catalogue.queue_keys():
            begin, end = topics.catalogue.extent(key)
            topic_no, queue_id = topic_of_key(key)
            first, entries = topics.topic_entries(topic_no, queue_id, begin, end - begin)
            for number, entry in enumerate(entries, first):
                if not entry["size_bytes"]:
                    continue
                try:
                    frame = log.frame(entry)
                except (StoreError, IndexError, ValueError):
                    continue
                here = frame.kind in (FrameKind.HALF, FrameKind.MESSAGE)
                if here and (frame.fields["topic_no"], frame.fields["queue_id"]) == (topic_no, queue_id):
                    found[key, number] = frame.body
    finally:
        topics.close()
        log.close()
    return found


def _check_releases(case: Case, root: Path, *, strict: bool) -> None:
    visible, facts = _visible(root), case.facts
    for place, body in visible.items():
        release = facts.releases.get(place)
        if release is None or release.body != body:
            expected = None if release is None else release.body[:20]
            raise Wrong(f"place {place} holds {body[:20]!r}, acknowledged was {expected!r}")
    for (key, offset), release in facts.releases.items():
        gone = offset < facts.begins.get(key, 0) or facts.retained
        if strict and not gone and (key, offset) not in visible and all(map(case.intact, release.frames)):
            raise Wrong(f"place {(key, offset)} is empty: {release.body[:20]!r} was acknowledged there")


def _check_new(case: Case, root: Path, edge: EdgeStore, settle: Callable[[], None]) -> None:
    """It goes on: nothing new gets the number, the place or the name of something that was acknowledged."""
    facts = case.facts
    (number,) = edge.prepare([Message("newcomers", "paid", b"new")], facts.now_ms)
    ends_known = not (case.categories & {"commitlog"} and case.categories & EDGE_FILES)
    if ends_known and number in facts.halves:
        raise Wrong(f"half {number} is given a second time")
    (answer,) = edge.end([End(number, OpKind.COMMIT, "newcomers")], facts.now_ms)
    if answer.verdict.value != "accepted":
        raise Wrong(f"the commit of a new half is {answer}")
    place = int(queue_key_of(answer.position)), int(queue_offset_of(answer.position))
    if ends_known and place in facts.releases:
        raise Wrong(f"place {place} is given a second time")
    settle()
    found = _visible(root).get(place)
    if found != b"new":
        raise Wrong(f"a new message is not at its place {place}: {found!r}")
