"""A small store in which every file of FORMAT.md has something to lose, and what must hold of it whatever is damaged."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from checker.policy import Policy
from store.admin.backup import backup, restore
from store.clock import Rules
from store.errors import StoreError
from store.guarded_clock import GuardedClock
from store.incarnations import Lineage
from store.inspect.verify.store import verify
from store.io import disk
from store.messages import Message
from store.records import OpKind, State, queue_key_of, queue_offset_of
from store.tables.delivery_cursors import CHECK, Cursors
from store.tables.ends import Verdict
from store.tables.journals.audit import Audit, AuditRecord
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers
from store.tables.presence import Presence
from tests.support.service import SMALLEST, T0_MS, Service, read_topic

GROUPS, TOPICS = ("orders", "payroll"), ("public", "salaries")
OPTIONS = {"default_queues": 1, "dedup_window_s": 86_400}
Place = tuple[int, int]


class Source:
    """A clock that stands still."""

    def now_ms(self) -> int:
        return T0_MS

    def steady_ms(self) -> int:
        return 1_000


@dataclass(slots=True)
class Facts:
    """What was acknowledged."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    named: dict[tuple[str, str], int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    releases: dict[Place, bytes] = field(default_factory=dict)
    names: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    op_end: int = 0
    offsets: dict[Place, int] = field(default_factory=dict)
    audit: list[str] = field(default_factory=list)
    lineage: Lineage = field(default_factory=lambda: Lineage(""))
    pending: int = 0
    discards: list[tuple[int, State]] = field(default_factory=list)


class Store:
    """Plays into a data directory: `store`, and beside it the clock's files."""

    def __init__(self, data: Path) -> None:
        self.data, self.root, self.facts = data, data / "store", Facts()
        self.clock()
        self.service = Service(data / "first", SMALLEST, Policy(), edge_options=OPTIONS)

    def clock(self) -> GuardedClock:
        return GuardedClock(Source(), self.data, Rules(), boot=7)

    def restored(self) -> None:
        """From here on it is a restored store: it has ancestors."""
        self.service.close()
        backup(self.data / "first", self.data / "backup")
        restore(self.data / "backup", self.root)
        shutil.rmtree(self.data / "first")
        shutil.rmtree(self.data / "backup")
        self.service.root = self.root
        self.service.open()

    def play(self, part: int) -> None:
        """Sends, ends, messages, checks, discards, in two groups and topics."""
        service, facts = self.service, self.facts
        for group, topic in zip(GROUPS, TOPICS, strict=True):
            mine = []
            for number in range(4):
                keys = [f"{topic}-{part}-{number}-{n}" for n in range(6)]
                messages = [Message(group, topic, f"{key} of {group} ".encode() + b"." * 900, dedup_key=key) for key in keys]
                halves = [int(offset) for offset in service.edge.prepare(messages, service.now_ms)]
                mine += halves
                for half, message in zip(halves, messages, strict=True):
                    facts.bodies[half], facts.groups[half], facts.keys[message.dedup_key] = message.body, group, half
            for half, answer in zip(mine[:10], service.commit(*mine[:10], group=group), strict=True):
                self._note(answer.position, facts.bodies[half])
            service.roll_back(*mine[10:18], group=group)
            self._named(group, topic, f"nightly-{part}")
            service.operate(mine[18], OpKind.DISCARD_MAX)
            messages = [Message(group, topic, f"message {part} {n} of {group}".encode()) for n in range(5)]
            appended = service.edge.append_messages(messages, service.now_ms)
            service.edge.wait(appended.ticket)
            for message, position in zip(messages, appended.positions, strict=True):
                self._note(position, message.body)
        service.members = {"orders": lambda _: None}
        service.beat(60)
        self._small_files(part)

    def _named(self, group: str, topic: str, name: str) -> None:
        """A half that is committed under a name."""
        message = Message(group, topic, f"{name} of {group}".encode(), name=name)
        (half,) = self.service.edge.prepare([message], self.service.now_ms)
        (answer,) = self.service.commit(half, group=group)
        self._note(answer.position, message.body)
        self.facts.bodies[half], self.facts.groups[half], self.facts.named[group, name] = message.body, group, half

    def _note(self, position: int, body: bytes) -> None:
        self.facts.releases[int(queue_key_of(position)), int(queue_offset_of(position))] = body

    def _small_files(self, part: int) -> None:
        root, edge = self.service.root, self.service.edge
        consumers, audit, presence = open_small(root)
        key = (edge.dictionary.topic_no("salaries") or 0) << 6
        for number in range(3):
            record = ConsumerRecord(ConsumerKind.OFFSET, edge.add_group(f"readers{number}"), key, part * 4 + number + 1)
            consumers.append([record])
            self.facts.offsets[record.group_no, key] = record.queue_offset
            audit.append(AuditRecord(1, "ada", "resume", f"{part}-{number}", "", "done"))
            self.facts.audit.append(f"{part}-{number}")
            presence.seen(number, T0_MS)
        Cursors(root / "edge.cursors", writable=True)[CHECK] = 1 + part
        disk.write_json(root / "job.round", {"round_no": 1 + part, "begun_ms": T0_MS}, "job.round")
        for each in (consumers, audit, presence):
            each.close()

    def finish(self, *, clean: bool) -> Facts:
        service, facts, edge = self.service, self.facts, self.service.edge
        service.send(b"at the end", topic="public")
        facts.bodies[edge.half_end - 1], facts.groups[edge.half_end - 1] = b"at the end", "orders"
        facts.ends = {half: edge.end_of(half) for half in facts.bodies}
        facts.names = list(edge.dictionary.groups), list(edge.dictionary.topics)
        facts.op_end, facts.lineage = edge.op_end, edge.lineage
        service.settle()
        facts.pending, facts.discards = service.pending, service.discards()
        if clean:
            service.close()
        else:
            service.crash()
        return facts


def open_small(root: Path, *, writable: bool = True) -> tuple[Consumers, Audit, Presence]:
    return (
        Consumers(root / "consumers", writable=writable),
        Audit(root / "audit", writable=writable),
        Presence(root / "presence", writable=writable),
    )


def make(data: Path, *, clean: bool) -> Facts:
    """The store, and under `older` a copy of it from before its last part."""
    made = Store(data)
    made.play(0)
    made.restored()
    made.play(1)
    made.service.restart()
    shutil.copytree(data, data.with_name(data.name + "-older"), ignore=shutil.ignore_patterns("*.lock", "*.wake"))
    made.play(2)
    return made.finish(clean=clean)


class Wrong(AssertionError):
    """What must not be."""


@dataclass(slots=True)
class Opened:
    """What was found when a damaged store was opened: what differs from the facts, and what was said of damage."""

    lost: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def look(data: Path, facts: Facts) -> Opened:
    """Open everything and hold it against the facts. Wrong where somebody gets another's; a StoreError is the store's refusal."""
    found, root = Opened(), data / "store"
    with contextlib.closing(_Eyes(data)) as eyes:
        service = eyes.service
        found.said = [reason for _, _, reason in service.edge.recovery.damage]
        if service.job.recovery.rebuilt:
            found.said.append(service.job.recovery.reason)
        service.settle()
        found.lost += _halves(service, facts) + _names(service, facts) + _releases(root, facts) + _dedup(service, facts)
        found.lost += _named(service, facts)
        progress = eyes.consumers.progress
        for at, offset in facts.offsets.items():
            if at not in progress or progress[at].offset != offset:
                found.lost.append(f"offset of {at}")
        if [record.target for record in eyes.audit.records()] != facts.audit:
            found.lost.append("audit")
        if service.edge.lineage != facts.lineage:
            found.lost.append("lineage")
        if service.pending != facts.pending:
            found.lost.append(f"{service.pending} pending, not {facts.pending}")
        if service.discards() != facts.discards:
            found.lost.append("discards")
        eyes.presence.live(T0_MS, 1000, 5)
        _goes_on(service, facts)
    return found


class _Eyes:
    """Everything that opens files of a data directory."""

    def __init__(self, data: Path) -> None:
        GuardedClock(Source(), data, Rules(), boot=7).look()
        self.service = Service(data / "store", SMALLEST, edge_options=OPTIONS)
        try:
            self.consumers, self.audit, self.presence = open_small(data / "store")
            Cursors(data / "store" / "edge.cursors", writable=True)
        except BaseException:
            self.service.crash()
            raise

    def close(self) -> None:
        for each in (self.consumers, self.audit, self.presence):
            each.close()
        self.service.crash()


def _halves(service: Service, facts: Facts) -> list[str]:
    lost: list[str] = []
    for half, body in facts.bodies.items():
        try:
            frame = service.edge.read_half(half)
        except (StoreError, IndexError) as error:
            lost.append(f"half {half}: {error}")
            continue
        if frame.body != body or frame.properties["PGROUP"] != facts.groups[half]:
            raise Wrong(f"half {half} is {frame.body[:30]!r}, not {body[:30]!r}")
        if half < service.edge.half_begin:
            lost.append(f"half {half} is gone")
        elif service.edge.end_of(half) != facts.ends[half]:
            lost.append(f"half {half} ended as {service.edge.end_of(half)}, not {facts.ends[half]}")
    return lost


def _names(service: Service, facts: Facts) -> list[str]:
    lost = []
    known = service.edge.dictionary.groups, service.edge.dictionary.topics
    for before, now in zip(facts.names, known, strict=True):
        for number, name in enumerate(now):
            other = before[number] if number < len(before) else None
            if other is None or other == name:
                continue
            if not name.startswith("%lost-"):
                raise Wrong(f"{other!r} is {name!r} now")
            lost.append(f"the name {other}")
        lost += before[len(now) :]
    return lost


def _releases(root: Path, facts: Facts) -> list[str]:
    visible: dict[Place, bytes] = {}
    for topic_no, topic in enumerate(facts.names[1]):
        if topic in TOPICS:
            for each in read_topic(root, topic):
                # As the edge hands out (ingest/consuming/reading/tail.py): an entry that leads to another queue's frame is skipped.
                if (each.frame.fields["topic_no"], each.frame.fields["queue_id"]) == (topic_no, each.queue_id):
                    visible[topic_no << 6 | each.queue_id, each.queue_offset] = each.body
    for place, body in visible.items():
        if facts.releases.get(place) != body:
            raise Wrong(f"{place} holds {body[:30]!r}, not {facts.releases.get(place, b'')[:30]!r}")
    return [f"release {place}" for place in facts.releases if place not in visible]


def _dedup(service: Service, facts: Facts) -> list[str]:
    lost, end = [], service.edge.half_end
    for key, half in facts.keys.items():
        if key.endswith("-0"):
            message = Message(facts.groups[half], key.partition("-")[0], facts.bodies[half], dedup_key=key)
            (found,) = service.edge.prepare([message], service.now_ms)
            if found != half and found < end:
                raise Wrong(f"dedup key {key} leads to half {found}, not {half}")
            if found != half:
                lost.append(f"dedup key {key}")
    return lost


def _named(service: Service, facts: Facts) -> list[str]:
    """A second transaction of a name that was committed is told of the first."""
    lost = []
    for (group, name), half in facts.named.items():
        (second,) = service.edge.prepare([Message(group, "salaries", b"second", name=name)], service.now_ms)
        (answer,) = service.commit(int(second), group=group)
        if answer.verdict is Verdict.ALREADY and answer.other != half:
            raise Wrong(f"the name {name} leads to half {answer.other}, not {half}")
        if answer.verdict is not Verdict.ALREADY:
            lost.append(f"the name {name} of {group}")
    return lost


def _goes_on(service: Service, facts: Facts) -> None:
    """Nothing new gets the number or the place of something that was acknowledged."""
    (half,) = service.send(b"new", group="newcomers", topic="salaries")
    if half in facts.bodies:
        raise Wrong(f"half {half} is given a second time")
    (answer,) = service.commit(half, group="newcomers")
    place = int(queue_key_of(answer.position)), int(queue_offset_of(answer.position))
    if answer.verdict.value != "accepted" or place in facts.releases:
        raise Wrong(f"the new half is {answer.verdict}, its place {place}")
    service.settle()
    if b"new" not in service.bodies("salaries"):
        raise Wrong("a new message is not at its place")


def verify_says(data: Path) -> list[str]:
    """What verify finds; nobody has opened the store since it was damaged."""
    return [str(problem) for problem in verify(data / "store").problems]
