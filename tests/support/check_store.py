"""Open a store after a crash and compare it with its history: everything that must be true then, in one place.

    1  every acknowledged half is where it was, byte for byte; a batch in doubt is there whole or not at all
    2  the job opens, settles to the end, and its cursors reach the log's
    3  every state is that of the first acknowledged end; ends in doubt happened all or none
    4  every committed half and every message is visible exactly once, at the place that the answer named, and nothing else is
    5  check counts, discard records and the gauge agree with the history
    6  ids from before the crash are answered as before: already, conflict, wrong group, gone; a dedup key leads to its half
    7  `verify` finds nothing

Afterwards nothing is in doubt any more: what was found is a fact.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from store.edge.store import EdgeStore, End
from store.errors import Corrupt
from store.inspect.verify.store import verify
from store.io.pages import EdgeSlot
from store.job.store import JobStore
from store.read.readers import TopicReader
from store.records import OpKind, State, check_count_of, pack_position, state_of, topic_of_key
from store.tables.consume_queue import REASON_SHIFT
from store.tables.ends import Verdict
from store.tables.frames import Frame, FrameKind
from store.tables.queue_files import topic_queue_name
from tests.support.history import Ask, EndMany, History, Prepare, Send, Sent, Wish, ident_of
from tests.support.world import drop, open_edge, open_job, settle_all, tags_from

_REASON_MASK = (1 << REASON_SHIFT) - 1
_UNFINISHED = ("there is no checkpoint", "the checkpoint speaks of generation")


@dataclass(slots=True)
class Found:
    """What lies in a store."""

    half_begin: int = 0
    halves: dict[int, Frame] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    messages: set[int] = field(default_factory=set)
    ops: set[tuple[int, int, int]] = field(default_factory=set)
    asked: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    positions: dict[int, int] = field(default_factory=dict)
    rows: dict[int, Any] = field(default_factory=dict)
    released: dict[int, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    discards: Counter[int] = field(default_factory=Counter)
    all_discards: bool = True
    checks: list[int] = field(default_factory=list)


def check_store(root: Path, history: History, rng: Random, *, clean_exit: bool | None = None, harmed: str = "") -> None:
    """Steps 1 to 7. Leaves the store closed in order or dropped, by chance unless told. `harmed`: this file was lost or damaged, so
    recovery may speak of it, and of nothing else; what it makes must be as right as ever."""
    clean = rng.random() < 0.5 if clean_exit is None else clean_exit
    edge = open_edge(root)
    try:
        strange = [reason for _, _, reason in edge.recovery.damage if not is_about(reason, harmed)]
        assert strange == [], f"damage where there is none: {strange}"
        job = open_job(root)
    except BaseException:
        drop(edge)
        raise
    try:
        # Rebuilding is for damage and for a rebuild or a making that was interrupted: a checkpoint must hold after any crash.
        needless = job.recovery.rebuilt and not job.recovery.reason.startswith(_UNFINISHED)
        assert not needless or is_about(job.recovery.reason, harmed), f"rebuilt: {job.recovery.reason}"
        settle_all(job, rng.choice((1, 3, 1 << 20)), history.now_ms)
        check_open(edge, job, history)
    except BaseException:
        clean = False
        raise
    finally:
        if clean:
            job.close()
            edge.close()
        else:
            drop(job)
            drop(edge)
    check_verify(root)


def is_about(reason: str, harmed: str) -> bool:
    """Whether a word of damage is about this file: it names the file, or the directory that its segments lie in."""
    path = Path(harmed)
    return bool(harmed) and (harmed in reason or (path.name.isdecimal() and str(path.parent) in reason))


def check_open(edge: EdgeStore, job: JobStore, history: History) -> None:
    """Steps 1 to 6 on open and settled stores."""
    assert (job.marker.half_cursor, job.marker.op_cursor) == (edge.half_end, edge.op_end) == job.log.ends()  # 2
    found = _look(edge, job, history)
    history.forget_before(found.half_begin)
    _check_halves(found, history)  # 1
    _check_messages(found, history)
    _check_states(found, history)  # 3
    _check_released(found, history)  # 4
    _check_counts(found, job, history)  # 5
    _check_answers(edge, history)  # 6
    _check_dedup(edge, history)


def check_verify(root: Path) -> None:
    problems = verify(root).problems
    assert not problems, f"verify: {problems[:3]}"


# --- looking --------------------------------------------------------------------------------------------------------------
def _look(edge: EdgeStore, job: JobStore, history: History) -> Found:
    found = Found(half_begin=max(edge.page[EdgeSlot.HALF_BEGIN], edge.half_queue.begin))
    _look_at_halves(edge, history, found)
    _look_at_ops(edge, found)
    offsets = np.arange(found.half_begin, edge.half_end)
    found.rows = dict(zip(offsets.tolist(), job.table.get(offsets), strict=True))
    topics = TopicReader(job.directory)
    _look_at_topics(edge, topics, history, found)
    discard = topics.queue("discard")
    found.all_discards = discard.begin == 0
    entries = discard.read(discard.begin, job.marker.discard_end)
    # Holes at the front: a rebuild after retention took the redo entries that told.
    found.all_discards &= bool((entries["size_bytes"] > 0).all())
    found.discards = Counter((entries["tags_code"][entries["size_bytes"] > 0] & _REASON_MASK).tolist())
    found.checks = tags_from(topics, "check", job.marker.round_check_start, job.marker.check_end)
    topics.close()
    return found


def _look_at_halves(edge: EdgeStore, history: History, found: Found) -> None:
    for offset in range(found.half_begin, edge.half_end):
        try:
            found.halves[offset] = edge.read_half(offset)
        except (Corrupt, IndexError):
            history.assert_old(offset)
            found.unreadable.add(offset)


def _look_at_ops(edge: EdgeStore, found: Found) -> None:
    for entry in edge.op_queue.read(edge.op_queue.begin, edge.op_end):
        try:
            frame = edge.log.read(int(entry["commit_log_offset"]), int(entry["size_bytes"]))
        except Corrupt:
            assert entry["commit_log_offset"] < edge.log.file.begin, "an op cannot be read"
            continue
        if frame.kind == FrameKind.MESSAGE:
            ident = ident_of(frame.body)
            assert ident not in found.messages, f"message {ident} is in the log twice"
            found.messages.add(ident)
            continue
        half_offset, kind = frame.fields["half_offset"], frame.fields["op_kind"]
        found.ops.add((frame.stored_at_ms, half_offset, kind))
        if kind == OpKind.ASKED:
            found.asked.add((frame.stored_at_ms, frame.asked))
        elif kind == OpKind.COMMIT:
            found.positions[half_offset] = frame.fields["position"]


def _look_at_topics(edge: EdgeStore, topics: TopicReader, history: History, found: Found) -> None:
    for key in topics.catalogue.queue_keys():
        begin, end = topics.catalogue.extent(key)
        found.begins[key] = begin
        assert end == edge.next_offset[key], f"queue {topic_of_key(key)} ends at {end}, the edge gave out {edge.next_offset[key]}"
        entries = topics.queue(topic_queue_name(*topic_of_key(key))).read(begin, end)
        for number, entry in enumerate(entries, begin):
            position = pack_position(*topic_of_key(key), number)
            try:
                frame = edge.log.read(int(entry["commit_log_offset"]), int(entry["size_bytes"]))
            except Corrupt:
                # Retention took the frame, or (a hole after a rebuild) the row that tells where it lay.
                assert entry["commit_log_offset"] < edge.log.file.begin, f"entry {number} of {topic_of_key(key)}: {entry}"
                continue
            ident = ident_of(frame.body)
            assert ident not in found.released, f"message {ident} is released twice, at {found.released[ident]} and {position}"
            assert frame.fields["tags_code"] == entry["tags_code"], f"tags of {ident}"
            found.released[ident] = position


# --- comparing ------------------------------------------------------------------------------------------------------------
def _check_halves(found: Found, history: History) -> None:
    idents = {ident_of(frame.body): offset for offset, frame in found.halves.items()}
    assert len(idents) == len(found.halves), "a half is stored twice"
    for doubt in [doubt for doubt in history.doubts if isinstance(doubt, Prepare)]:
        _resolve_prepare(doubt, idents, history)
    for offset, half in history.halves.items():
        if offset < history.half_begin:
            continue
        if offset in found.unreadable:
            history.assert_old(offset)
            continue
        assert offset in found.halves, f"acknowledged half {offset} is lost"
        _same(found.halves[offset], half.sent)
    strangers = found.halves.keys() - history.halves.keys()
    assert not strangers, f"halves that nobody sent: {sorted(strangers)}"


def _resolve_prepare(doubt: Prepare, idents: dict[int, int], history: History) -> None:
    known = history.by_key
    fresh = [sent for sent in doubt.messages if not sent.dedup_key or (sent.group, sent.dedup_key) not in known]
    stored = [sent for sent in fresh if sent.ident in idents]
    assert stored in ([], fresh), f"half a batch: {[sent.ident for sent in stored]} of {[sent.ident for sent in fresh]}"
    offsets = [idents[sent.ident] for sent in stored]
    assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True, f"batch at {offsets}"
    for sent in stored:
        history.adopt(idents[sent.ident], sent, doubt.now_ms)
    history.doubts.remove(doubt)


def _same(frame: Frame, sent: Sent) -> None:
    assert frame.body == sent.body, f"body of {sent.ident}"
    properties = frame.properties
    assert (properties["PGROUP"], properties["REAL_TOPIC"]) == (sent.group, sent.topic), f"group or topic of {sent.ident}"
    assert frame.fields["immunity_s"] == sent.immunity_s


def _check_messages(found: Found, history: History) -> None:
    for doubt in [doubt for doubt in history.doubts if isinstance(doubt, Send)]:
        stored = [sent for sent in doubt.messages if sent.ident in found.messages]
        assert stored in ([], list(doubt.messages)), f"half a batch of messages: {stored} of {doubt.messages}"
        history.messages.update({sent.ident: (sent, doubt.now_ms) for sent in stored})
        history.doubts.remove(doubt)
    for ident, (_, sent_ms) in history.messages.items():
        assert ident in found.messages or history.may_be_gone(sent_ms), f"acknowledged message {ident} is lost"
    strangers = found.messages - history.messages.keys()
    assert not strangers, f"messages that nobody sent: {strangers}"


def _check_states(found: Found, history: History) -> None:
    states = {offset: State(int(state_of(row["word"]))) for offset, row in found.rows.items()}
    _resolve_ends(found, history)
    for offset, state in states.items():
        half = history.halves[offset]
        assert state == half.state, f"half {offset} is {state.name}, should be {half.state.name}"
    history.doubts = []


def _resolve_ends(found: Found, history: History) -> None:
    """Ends and hand-overs in doubt: all or none of a batch."""
    for doubt in history.doubts:
        if isinstance(doubt, EndMany):
            _resolve_end(doubt, found, history)
        elif isinstance(doubt, Ask) and (doubt.now_ms, doubt.half_offsets) in found.asked:
            history.apply_asked(doubt)


def _resolve_end(doubt: EndMany, found: Found, history: History) -> None:
    """The ops of a batch are in the log, or none of them is. That the states are theirs is checked afterwards."""
    trial, wanted = history.trial(doubt), []
    # About a half whose frame retention took it was told "gone", though its row may still be there.
    wishes = [wish for wish in doubt.wishes if wish.half_offset not in found.unreadable]
    for wish in wishes:
        if trial.expected(wish)[0] is Verdict.ACCEPTED:
            trial.apply_wish(wish, doubt.now_ms)
            if wish.leaves_op:
                wanted.append((doubt.now_ms, wish.half_offset, int(wish.kind)))
    there = [op for op in wanted if op in found.ops]
    assert there in ([], wanted), f"half of a batch of ends: {there} of {wanted}"
    for wish in wishes if there else ():
        if history.expected(wish)[0] is Verdict.ACCEPTED:
            history.apply_wish(wish, doubt.now_ms, found.positions[wish.half_offset] if wish.kind == OpKind.COMMIT else -1)


def resolve(edge: EdgeStore, history: History) -> None:
    """What the edge alone can tell about what was in doubt: for a restart while the job goes on."""
    found = Found(half_begin=max(edge.page[EdgeSlot.HALF_BEGIN], edge.half_queue.begin))
    _look_at_halves(edge, history, found)
    _look_at_ops(edge, found)
    history.forget_before(found.half_begin)
    _check_halves(found, history)
    _check_messages(found, history)
    states = {offset: State(edge.end_of(offset) or State.PREPARED) for offset in range(found.half_begin, edge.half_end)}
    _resolve_ends(found, history)
    for offset, state in states.items():
        assert state == history.halves[offset].state, f"the edge takes half {offset} for {state.name}"
    history.doubts = []


def _check_released(found: Found, history: History) -> None:
    expected: dict[int, int] = {}
    for offset, half in history.halves.items():
        if half.state == State.COMMITTED:
            expected[half.sent.ident] = half.position
        else:
            assert half.sent.ident not in found.released, f"half {offset} is {half.state.name} and visible"
    for ident, position in expected.items():
        _check_place(ident, position, found, history)
    for ident in history.messages:
        _check_place(ident, None, found, history)
    strangers = found.released.keys() - expected.keys() - history.messages.keys()
    assert not strangers, f"visible, and nobody committed them: {strangers}"


def _check_place(ident: int, position: int | None, found: Found, history: History) -> None:
    if ident in found.released:
        assert position in (None, found.released[ident]), (
            f"message {ident} lies at {found.released[ident]}, promised was {position}"
        )
        return
    released_ms = [half.changed_ms for half in history.halves.values() if half.sent.ident == ident]
    released_ms += [history.messages[ident][1]] if ident in history.messages else []
    assert history.may_be_gone(released_ms[0]), f"message {ident} was committed (to {position}) and is not visible"


def _check_counts(found: Found, job: JobStore, history: History) -> None:
    pending = len(history.pending())
    counted = job.table.pending
    assert job.marker.pending == counted == pending, f"pending: {job.marker.pending} by totals, {counted} by rows, {pending} are"
    job.table.count_pending()
    assert job.table.pending == counted, "the table miscounts its pending rows"
    for offset, row in found.rows.items():
        half = history.halves[offset]
        assert check_count_of(row["word"]) == half.asked, f"half {offset} was asked {half.asked} times, its row says otherwise"
        discards = found.discards[offset]
        assert discards <= half.discards, f"half {offset} was discarded {half.discards} times and is listed {discards} times"
        assert discards == half.discards or not found.all_discards, f"a discard record of half {offset} is lost"
    twice = [half for half, times in Counter(found.checks).items() if times > 1]
    # A resume begins a new life: in a round that goes on it may be asked once more.
    resumed = [half for half in twice if any(op.fields["op_kind"] == OpKind.RESUME for op in job.log.history(half))]
    assert twice == resumed, "a half was asked twice in one round"


def _check_answers(edge: EdgeStore, history: History) -> None:
    """The same ends again: nothing changes, so the op log must not grow."""
    before = edge.op_end
    wishes = []
    for offset, half in history.halves.items():
        if half.state in (State.COMMITTED, State.ROLLED_BACK):
            wishes += [Wish(offset, kind, half.sent.group) for kind in (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN)]
        wishes.append(Wish(offset, OpKind.COMMIT, "nobody"))
    answers = edge.end([End(wish.half_offset, wish.kind, wish.group) for wish in wishes], history.now_ms)
    for wish, answer in zip(wishes, answers, strict=True):
        expected = history.expected(wish)
        if answer.reason == "gone" and expected[1] != "gone":
            history.assert_old(wish.half_offset)
            continue
        assert (answer.verdict, answer.reason, answer.state) == expected, f"{wish} is answered {answer}, not {expected}"
    assert edge.op_end == before, "asking again left ops"
    for offset, half in history.halves.items():
        if offset >= history.half_begin:
            state = State(edge.end_of(offset) or State.PREPARED)
            assert state == half.state, f"the edge takes half {offset} for {state.name}, it is {half.state.name}"


def _check_dedup(edge: EdgeStore, history: History) -> None:
    """A producer that was not sure sends again with the same key: it is led to its half, and nothing is stored."""
    before = edge.half_end
    for (_, _), offset in list(history.by_key.items())[-8:]:
        half = history.halves[offset]
        if history.keys_made_anew and half.state != State.PREPARED and history.may_be_gone(half.changed_ms):
            continue  # retention may have taken the frame that the key would be learnt from
        again = edge.prepare([history.halves[offset].sent.message], history.now_ms)
        assert list(again) == [offset], f"dedup key of half {offset} leads to {list(again)}"
    assert edge.half_end == before, "sending again stored halves"
