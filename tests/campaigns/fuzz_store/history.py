"""Random histories of a store, and what was acknowledged in them: the only thing that a judge may believe.

A history plays sends, transactions of many messages, names, ends, joint ends, ordinary messages, settlements,
discards, resumes, retention and restarts of both kinds against the
real stores, and notes for everything that was acknowledged what it was and where its frames lie. It ends closed in order, or
killed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from store.edge.store import Head
from store.messages import Membership, Message
from store.records import STATE_OF_OP, OpKind, State, Via, queue_key_of, queue_offset_of
from store.tables.frames import Item
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers
from tests.support.service import SMALLEST, T0_MS, Service

GROUPS = ("orders", "Aa", "BB")
TOPICS = ("paid", "else", "%DLQ%Aa")
DAY_S = 86_400
PROPERTIES: tuple[dict[str, str], ...] = (
    {}, {"KEYS": "k"}, {"TAGS": "a"}, {"my__DEDUP_KEY__": "1"}, {"n": ""}, {"PGROUPX": "orders", "é": "日本"},
)  # fmt: skip
Place = tuple[int, int]
#: Where a frame lies: (commit_log_offset, size_bytes).
Span = tuple[int, int]


@dataclass(slots=True)
class Half:
    """An acknowledged half: what it is, how it ended, and the frames that say so."""

    group: str
    topic: str
    body: bytes
    frame: Span
    state: State = State.PREPARED
    ops: list[Span] = field(default_factory=list)
    dedup_key: str = ""
    name: str = ""
    #: half_offsets of its members, in order.
    members: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Release:
    """An acknowledged message at its place, and the frames that put it there."""

    body: bytes
    frames: list[Span]


@dataclass(slots=True)
class Facts:
    """Everything that was acknowledged."""

    halves: dict[int, Half] = field(default_factory=dict)
    releases: dict[Place, Release] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    ops: int = 0
    #: The half that was committed under a name, by group and name.
    names: dict[tuple[str, str], int] = field(default_factory=dict)
    retained: bool = False
    clean: bool = False
    now_ms: int = T0_MS
    #: Halves and releases before these may be gone with retention.
    half_begin: int = 0
    begins: dict[int, int] = field(default_factory=dict)

    @property
    def spans(self) -> Iterator[Span]:
        for half in self.halves.values():
            yield half.frame
            yield from half.ops
        for release in self.releases.values():
            yield from release.frames


class History:
    """One random history in `root`; `snapshot` is a copy from the middle of it, for old files."""

    def __init__(self, root: Path, snapshot: Path, seed: int) -> None:
        self.root, self.snapshot, self._random = root, snapshot, random.Random(seed)
        self.facts = Facts()

    def play(self) -> Facts:
        pick, facts = self._random, self.facts
        queues = pick.choice((1, 2))
        self._service = Service(self.root, SMALLEST, edge_options={"default_queues": queues, "dedup_window_s": DAY_S})
        steps = [self._send] * 5 + [self._end] * 5 + [self._message] * 3 + [self._settle] * 3
        if pick.random() < 0.7:
            steps += [self._transaction] * 4 + [self._add] * 2 + [self._joint] * 3
        steps += [self._discard, self._restart, self._consume]
        if pick.random() < 0.25:
            steps += [self._retain] * 2
        count = pick.randrange(4, 30)
        taken = pick.randrange(count)
        for number in range(count):
            pick.choice(steps)()
            if number == taken:
                shutil.copytree(self.root, self.snapshot, ignore=shutil.ignore_patterns("*.lock", "*.wake"))
        edge = self._service.edge
        facts.groups = {name: number for number, name in enumerate(edge.dictionary.groups)}
        facts.topics = {name: number for number, name in enumerate(edge.dictionary.topics)}
        facts.ops, facts.now_ms, facts.half_begin = edge.op_end, self._service.now_ms, edge.half_begin
        catalogue = self._service.job.catalogue
        facts.begins = {key: catalogue.extent(key)[0] for key in catalogue.queue_keys()}
        facts.clean = pick.random() < 0.5
        if facts.clean:
            self._service.close()
        else:
            self._service.crash()
        return facts

    # --- steps ------------------------------------------------------------------------------------------------------------
    def _body(self) -> bytes:
        pick = self._random
        return b"%016x" % pick.getrandbits(64) + pick.randbytes(pick.choice((0, 3, 100, 700)))

    def _send(self) -> None:
        pick, service = self._random, self._service
        group, topic = pick.choice(GROUPS), pick.choice(TOPICS)
        messages = []
        for number in range(pick.choice((1, 1, 3, 12))):
            key = f"{len(self.facts.halves)}-{number}" if pick.random() < 0.3 else ""
            messages.append(Message(group, topic, self._body(), pick.choice(PROPERTIES), dedup_key=key))
        for offset, message in zip(service.edge.prepare(messages, service.now_ms), messages, strict=True):
            frame = service.edge.half_queue.entry(offset)[:2]
            self.facts.halves[offset] = Half(group, topic, message.body, frame, dedup_key=message.dedup_key)

    def _transaction(self) -> None:
        """A head and its members in one batch, for any topics; some have a name."""
        pick, group = self._random, self._random.choice(GROUPS)
        name = pick.choice(("", "", "daily", "nightly"))
        messages = [Message(group, pick.choice(TOPICS), self._body(), pick.choice(PROPERTIES), name=name)]
        for ordinal in range(1, pick.choice((1, 2, 5))):
            message = Message(group, pick.choice(TOPICS), self._body(), pick.choice(PROPERTIES))
            messages.append(message._replace(member=Membership(-ordinal, ordinal)))
        self._stored(messages, name)

    def _add(self) -> None:
        if (chosen := self._open()) and (head := self._random.choice(chosen)) >= self._service.edge.half_begin:
            half = self.facts.halves[head]
            member = Membership(head, len(half.members) + 1)
            self._stored([Message(half.group, self._random.choice(TOPICS), self._body(), member=member)])

    def _stored(self, messages: list[Message], name: str = "") -> None:
        service = self._service
        offsets = service.edge.prepare(messages, service.now_ms)
        for offset, message in zip(offsets, messages, strict=True):
            half = Half(message.group, message.topic, message.body, service.edge.half_queue.entry(offset)[:2])
            self.facts.halves[offset] = half
            if message.member is None:
                half.name = name
            else:
                half.state = State.MEMBER
                head = message.member.head if message.member.head >= 0 else offsets[0]
                self.facts.halves[head].members.append(offset)

    def _joint(self) -> None:
        pick, service = self._random, self._service
        group = pick.choice(GROUPS)
        open_now = [number for number in self._open() if self.facts.halves[number].group == group]
        chosen = pick.sample([n for n in open_now if n >= service.edge.half_begin], min(len(open_now), pick.choice((2, 3))))
        names = [self.facts.halves[number].name for number in chosen if self.facts.halves[number].name]
        if len(chosen) > 1 and len(set(names)) == len(names):
            self._say(chosen[0], pick.choice((OpKind.COMMIT, OpKind.ROLLBACK)), others=chosen[1:])

    def _open(self) -> list[int]:
        return [number for number, half in self.facts.halves.items() if half.state == State.PREPARED]

    def _end(self) -> None:
        pick = self._random
        chosen = self._open()
        for number in pick.sample(chosen, min(len(chosen), pick.choice((1, 2, 8)))):
            self._say(number, pick.choice((OpKind.COMMIT, OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN)))

    def _say(self, number: int, kind: OpKind, via: Via = Via.CHECK, others: Sequence[int] = ()) -> None:
        service, halves = self._service, self.facts.halves
        group = halves[number].group if via == Via.CHECK else None
        joint = tuple(Head(other, len(halves[other].members)) for other in others)
        answer = service.end(number, kind, group=group, via=via, members=len(halves[number].members), joint=joint)
        if answer.verdict.value == "refused":  # retention has taken it
            return
        ended = {one: halves[one] for one in (number, *others)}
        if answer.reason == "name_taken":
            kind = OpKind.ROLLBACK
        else:
            assert answer.verdict.value == "accepted", answer
        op = service.edge.op_queue.entry(service.edge.op_end - 1)[:2]
        for one, half in ended.items():
            half.ops.append(op)
            half.state = State.PREPARED if kind == OpKind.RESUME else STATE_OF_OP.get(kind, half.state)
            if kind == OpKind.COMMIT and half.name:
                self.facts.names[half.group, half.name] = one
        if kind == OpKind.COMMIT:
            self._released(op, answer.position)

    def _released(self, op: Span, position: int) -> None:
        """What a COMMIT put where: the head alone, or what its items say."""
        frame, head = self._service.edge.log.read(*op), None
        for item in frame.items or (Item(frame.fields["half_offset"], position),):
            half = self.facts.halves[item.half_offset]
            head = head if item.member else half
            assert head is not None
            place = int(queue_key_of(item.position)), int(queue_offset_of(item.position))
            self.facts.releases[place] = Release(half.body, [half.frame, head.frame, op])

    def _message(self) -> None:
        pick, service = self._random, self._service
        messages = [Message(pick.choice(GROUPS), pick.choice(TOPICS), self._body()) for _ in range(pick.choice((1, 4)))]
        appended = service.edge.append_messages(messages, service.now_ms)
        service.edge.wait(appended.ticket)
        for message, op_offset, position in zip(messages, appended.offsets, appended.positions, strict=True):
            place = int(queue_key_of(position)), int(queue_offset_of(position))
            self.facts.releases[place] = Release(message.body, [service.edge.op_queue.entry(op_offset)[:2]])

    def _settle(self) -> None:
        self._service.settle(records_max=self._random.choice((3, 1000)))

    def _discard(self) -> None:
        for number in self._open()[:2]:
            self._say(number, OpKind.DISCARD_MAX, Via.CHECKER)
            if self._random.random() < 0.4:
                self._say(number, OpKind.RESUME, Via.OPERATOR)

    def _restart(self) -> None:
        self._service.restart(clean=self._random.random() < 0.5)

    def _consume(self) -> None:
        edge = self._service.edge
        if not edge.next_offset:
            return
        key, end = self._random.choice(sorted(edge.next_offset.items()))
        consumers = Consumers(self.root / "consumers", writable=True)
        group_no = edge.add_group("readers")
        consumers.append([ConsumerRecord(ConsumerKind.OFFSET, group_no, key, self._random.randrange(end + 1))])
        consumers.close()

    def _retain(self) -> None:
        self.facts.retained = True
        self._service.settle()
        self._service.sleep(2 * DAY_S)
        for _ in range(2):
            self._service.retain(DAY_S)
