"""How the edge finds its state again after any kind of exit.

    1  start from the checkpoint (without one: from the beginning of the log)
    2  replay what is known to have been durable, around damage: up to the end that was published
    3  find the whole batches behind it, cut the torn tail, write the kept batches again and flush them: the process that wrote them
       may have died before its flush, or of a failed one, after which the kernel calls pages clean that never reached the disk
    4  replay those batches: only now, because a mark must never reach the disk before its op
    5  write it all into a new checkpoint, then publish (both: the caller)

Every step may be interrupted and done again: frames give the same entries, marks and positions each time.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

from store.directory import EDGE_CHECKPOINT, JOB_CHECKPOINT, TRANSACTIONS, StoreDirectory
from store.edge.files import EdgeFiles, EdgeState
from store.edge.recovery import ends as ends_recovery
from store.edge.recovery import ends_by_rows, journal_heads
from store.edge.recovery import names as names_recovery
from store.errors import Corrupt, CursorBeyondLog
from store.io import disk
from store.io.pages import EdgeSlot
from store.io.segments import segment_name
from store.progress import Progress
from store.properties import DEDUP_KEY, TX_NAME, PropertyFinder
from store.records import ENTRY, NO_POSITION, OpKind, State, queue_key, queue_key_of, queue_offset_of
from store.tables import frames
from store.tables.consume_queue import ASKED_TAG, ConsumeQueue
from store.tables.dedup import Known, digest_of
from store.tables.ends import byte_after
from store.tables.frames import FrameKind
from store.tables.queue_extents import Catalogue

_DEDUP_KEY = PropertyFinder(DEDUP_KEY)
_NO_HALF = -1


@dataclass(slots=True)
class EdgeRecovery:
    """What opening had to do."""

    clean: bool = False
    frames_replayed: int = 0
    cut_at: int = 0
    cut_reason: str = ""
    damage: list[tuple[int, int, str]] = field(default_factory=list)


def recover(files: EdgeFiles, progress: Progress) -> tuple[EdgeState, EdgeRecovery]:
    """Steps 1 to 4."""
    recovery = EdgeRecovery()
    for path, size in files.log.file.cut_off():  # read it before opening fills it with zeros
        what = f"{path}: cut off at {size}; what lay behind reads as damage. Put the file back, or restore a backup"
        recovery.damage.append((0, 0, f"{what} (escrow store restore)"))
    # 1
    checkpoint = _read_checkpoint(files, recovery)
    state = _state_of(files, checkpoint)
    ends_known = ends_recovery.is_known(checkpoint)
    ends_doubted = ends_recovery.why_doubted(files, state.half_begin, checkpoint) if ends_known else ""
    start = files.log.end = int(checkpoint["log_end"])
    # The page has its end twice: one flipped bit must not make the log end inside a frame.
    told = max(files.page[EdgeSlot.LOG_END], files.page[EdgeSlot.VISIBLE_END])
    published = max(told, int(checkpoint.get("durable_end", 0)))
    recovery.clean = bool(checkpoint["clean"])
    if max(start, published) > files.log.file.end:
        raise CursorBeyondLog(_beyond(files, files.log.file.end, max(start, published)))
    if recovery.clean and published > start:
        raise CursorBeyondLog(_beyond(files, start, published))
    if not recovery.clean:
        _replay(files, state, max(start, published), recovery, progress)
    if state.half_begin > state.half_end:
        what = f"half_begin is {state.half_begin}, behind the last half {state.half_end}; ignored"
        recovery.damage.append((0, 0, what))
        state.half_begin = files.half_queue.begin
    if files.ends_table.file.starts():  # after a clean exit too: a mark there would be taken for that of a later half
        files.ends_table.file.cut(state.half_end)
    if ends_doubted or not ends_known:
        ends_recovery.work_out(files, state)
    elif not recovery.clean and (mended := ends_by_rows.mend(files, state)):
        what = f"{files.directory.ends()}: {len(mended)} marks were damaged, the first of half {mended[0]}; told anew by the ops"
        recovery.damage.append((0, 0, what))
    if ends_doubted:
        recovery.damage.append((0, 0, f"{ends_doubted}; rebuilt"))
    return state, recovery


def _state_of(files: EdgeFiles, checkpoint: dict[str, Any]) -> EdgeState:
    # The page is raised after the checkpoint has recorded it: it knows more only if there is no checkpoint.
    half_begin = int(checkpoint.get("half_begin", files.page[EdgeSlot.HALF_BEGIN]))
    return EdgeState(
        half_begin=max(half_begin, files.half_queue.begin),
        half_end=int(checkpoint["half_end"]),
        op_end=int(checkpoint["op_end"]),
        next_offset={int(key): int(value) for key, value in checkpoint["positions"]},
        log_begin=files.log.file.begin,
    )


def _read_checkpoint(files: EdgeFiles, recovery: EdgeRecovery) -> dict[str, Any]:
    try:
        state = disk.read_json(files.directory.root / EDGE_CHECKPOINT, journal_heads.CHECKPOINT_KEYS)
    except Corrupt as error:
        recovery.damage.append((0, 0, str(error)))
        state = None
    fresh: dict[str, Any] = {"log_end": files.log.file.begin, "half_end": 0, "op_end": 0, "positions": [], "clean": False}
    if state is None:
        return fresh
    _refuse_lost_front(files, int(state.get("log_begin", files.log.file.begin)))
    doubts = [_queue_doubt(files, files.half_queue, int(state["half_end"]), int(state.get("half_begin", 0)))]
    doubts += [_queue_doubt(files, files.op_queue, int(state["op_end"]), files.op_queue.begin)]
    doubts += [table.why_doubted(state) for table in (files.dedup, files.names)]
    for queue, doubt in zip((files.half_queue, files.op_queue), doubts, strict=False):
        if doubt:
            queue.file.clear()
    if not any(doubts):
        return state
    recovery.damage += [(0, 0, f"{doubt}; rebuilt from the log") for doubt in doubts if doubt]
    kept: dict[str, Any] = {name: state[name] for name in ("positions", "half_begin") if name in state}
    return {**fresh, **kept, "durable_end": int(state["log_end"])}


def _refuse_lost_front(files: EdgeFiles, log_begin: int) -> None:
    """A log that lost its first segments looks like one whose beginning retention took."""
    log = files.log.file
    if log.starts() and log.begin > log_begin:
        reason = "is missing. Put the file back, or restore a backup (escrow store restore)"
        raise Corrupt(log.directory / segment_name(log_begin), 0, reason)


def _queue_doubt(files: EdgeFiles, queue: ConsumeQueue, end: int, begin: int) -> str:
    """Why a queue cannot be used as it is: its files are not all there in full, or are not in their places. "" where it can."""
    file, width = queue.file, ENTRY.itemsize
    if file.end < end * width or (begin < end and file.begin > begin * width):
        return f"{file.directory}: files are missing before entry {end}"
    if file.is_cut_off():
        return f"{file.directory}: a file was cut off"
    for start in file.starts():
        number = start // width
        if begin <= number < end and not _leads_home(files, queue, number):
            return f"{file.directory}: entry {number} leads to the frame of another one"
    return ""


def _leads_home(files: EdgeFiles, queue: ConsumeQueue, number: int) -> bool:
    """Whether an entry leads to its own frame. True if it leads to no valid frame: its readers get Corrupt."""
    at, size, _ = queue.entry(number)
    try:
        if not size:
            return True
        frame = files.log.read(at, size)
        here = frame.queue_offset <= number < frame.queue_offset + frame.numbers
        return here and (frame.kind == FrameKind.HALF) == (queue is files.half_queue)
    except (Corrupt, IndexError, ValueError):
        return True


def settled_ends(directory: StoreDirectory) -> dict[int, int]:
    """End of each topic queue by queue key, as far as the job has settled it."""
    generation = directory.likely_generation()
    ends: dict[int, int] = {}
    if generation is None:
        return ends
    try:
        catalogue = Catalogue(directory.generation(generation) / "catalogue")
        ends = {key: catalogue.extent(key)[1] for key in catalogue.queue_keys()}
        catalogue.close()
    except Corrupt:  # the job rebuilds it; its checkpoint knows nearly as much
        with contextlib.suppress(Corrupt):
            ends = {int(key): int(end) for key, _, end in (disk.read_json(directory.root / JOB_CHECKPOINT) or {}).get("queues", [])}
    return ends


def _respect_settled(files: EdgeFiles, state: EdgeState, recovery: EdgeRecovery) -> None:
    """No place that is settled is given out again: the op that took it may be damaged, or, without a checkpoint, gone with
    retention."""
    for key, end in settled_ends(files.directory).items():
        before = state.next_offset.get(key, 0)
        # An op gives one place, and each queue skips the place of a lost op. A catalogue that says more is damaged.
        if key >= 0 and end <= before + state.op_end:
            state.next_offset[key] = max(before, end)
        else:
            where = files.directory.transaction
            reason = f"{where}: a catalogue ends queue {key} at {end}, of {state.op_end} ops; ignored"
            recovery.damage.append((0, 0, reason))


def _replay(files: EdgeFiles, state: EdgeState, durable: int, recovery: EdgeRecovery, progress: Progress) -> None:
    replay, start = _Replay(files, state, progress), files.log.end
    total = max(files.log.file.end - start, 1)

    def damaged(first: int, stop: int, reason: str) -> None:
        recovery.damage.append((first, stop, reason))

    def watch(at: int) -> None:
        progress(at - start, total, "reading the commit log")

    # 2
    for at, size in files.log.salvage(start, durable, damaged):
        replay.frame(at, size)
        watch(at)
    lost = recovery.damage[-1] if recovery.damage else (0, 0, "")
    if durable > start and lost[1] == durable and _all_zero(files, lost[0], durable):
        raise CursorBeyondLog(_beyond(files, lost[0], durable))
    # Numbers that were acknowledged are not given again, even if the last frames are damaged.
    replay.reach(*_published_ends(files, state, recovery))
    # 3
    kept = list(files.log.scan(durable))
    recovery.cut_at, recovery.cut_reason = files.log.scan_stop, files.log.scan_reason
    files.log.end = files.log.scan_stop
    files.log.file.cut(files.log.end)
    files.log.file.rewrite(durable, files.log.end)
    files.log.flush()
    # 4
    for batch in kept:
        for at, size in batch.frames:
            replay.frame(at, size)
        watch(batch.end)
    replay.finish()
    _respect_settled(files, state, recovery)
    recovery.frames_replayed = replay.frames


def _published_ends(files: EdgeFiles, state: EdgeState, recovery: EdgeRecovery) -> tuple[int, int]:
    """(half_end, op_end) of the page, if the damaged part of the log can have held that many: the page has no checksum, and
    a wrong number would create files without end."""
    lost_bytes = sum(stop - first for first, stop, _ in recovery.damage)
    op_bytes = frames.ITEM if TRANSACTIONS in files.directory.needs else frames.OP_HEAD
    found = []
    for name, slot, end, least_bytes in (
        ("half_end", EdgeSlot.HALF_END, state.half_end, frames.HALF_HEAD_BYTES),
        ("op_end", EdgeSlot.OP_END, state.op_end, op_bytes.itemsize),
    ):
        known = files.page[slot]
        # A restored store whose log has no frame of a kind has the number from its backup alone.
        if (end or not files.log.file.begin) and known > end + lost_bytes // least_bytes:
            recovery.damage.append((0, 0, f"edge.published: {name} is {known}, the log ends with {end}; ignored"))
            known = end
        found.append(known)
    return found[0], found[1]


def _all_zero(files: EdgeFiles, start: int, stop: int) -> bool:
    try:
        return not any(files.log.file.view(start, stop - start))
    except IndexError:
        return True


def _beyond(files: EdgeFiles, end: int, known: int) -> str:
    return (
        f"{files.directory.commit_log}: the log ends at {end}, but {known} was acknowledged: an older copy of the log was put "
        "here. Put the right one back, or restore a whole backup (escrow store restore)"
    )


class _Replay:
    """Rebuilds queues, ends, positions and names from frames, in log order."""

    FLUSH_EVERY = 8192

    def __init__(self, files: EdgeFiles, state: EdgeState, progress: Progress) -> None:
        self._files, self._state, self._progress = files, state, progress
        self.frames = 0
        self._halves: list[tuple[int, int, int]] = []
        self._ops: list[tuple[int, int, int]] = []
        self._half_first, self._op_first = state.half_end, state.op_end
        self._lost_ops: list[range] = []
        #: (group_no, topic_no) whose names were held against the dictionary.
        self._taught: set[tuple[int, int]] = set()
        #: (half_offset, when) of COMMITs, where one of them may be of a named half.
        self._commits: list[tuple[int, int]] = []
        self._may_have_names = TRANSACTIONS in files.directory.needs

    def frame(self, at: int, size: int) -> None:
        content = self._files.log.frame_bytes(at, size)
        kind = content[frames.KIND_AT]
        self.frames += 1
        if kind == FrameKind.HALF:
            self._half(at, size, content)
        elif kind == FrameKind.MESSAGE:
            self._message(at, size, content)
        elif kind == FrameKind.OP:
            self._op(at, size, content)

    def _half(self, at: int, size: int, content: memoryview) -> None:
        head = frames.HALF_STRUCT.unpack_from(content)
        if head[7] != self._state.half_end:
            self._skip_halves(head[7])
        self._learn_names(head, content)
        key = _DEDUP_KEY.find(bytes(content[frames.HALF_HEAD.itemsize + head[21] :]))
        if key:
            body_crc = crc32(content[frames.HALF_HEAD.itemsize : frames.HALF_HEAD.itemsize + head[21]])
            digest, stored_at_s = digest_of(head[11], key.decode(errors="replace")), head[8] // 1000
            # The clock may have jumped between this half and those before it: drop no key for its age yet.
            self._files.dedup.ensure(1, stored_at_s, keep=True)
            self._files.dedup.put_all({digest: Known(head[7], stored_at_s, body_crc)})
        if head[14] & frames.SYS_FLAG_MEMBER:
            self._mark(head[7], int(State.MEMBER))
        self._halves.append((at, size, head[10]))
        self._state.half_end = head[7] + 1
        if len(self._halves) >= self.FLUSH_EVERY:
            self._put_halves()

    def _message(self, at: int, size: int, content: memoryview) -> None:
        head = frames.HALF_STRUCT.unpack_from(content)
        self._learn_names(head, content)
        self._place(head[23])
        self._put_op(at, size, head[7], _NO_HALF)

    def _op(self, at: int, size: int, content: memoryview) -> None:
        head = frames.OP_STRUCT.unpack_from(content)
        half_offset, position, kind = head[9], head[10], OpKind(head[12])
        items = [(half_offset, position)]
        if head[4] & frames.OP_ITEMS:
            found = frames.items_in(content)
            items = list(zip(frames.halves_of_items(found)[0].tolist(), found["position"].tolist(), strict=True))
        for number, (half_offset, position) in enumerate(items):
            if position != NO_POSITION:
                self._place(position)
            if half_offset >= 0:
                self._mark(half_offset, kind)
            if kind == OpKind.COMMIT and self._may_have_names:
                self._commits.append((half_offset, head[8]))
            self._put_op(at, size, head[7] + number, ASKED_TAG if kind == OpKind.ASKED else half_offset)

    def _mark(self, half_offset: int, said: OpKind | int) -> None:
        """The mark that an op leaves behind, or a member's own."""
        table = self._files.ends_table
        if half_offset >= table.file.begin:  # retention may have taken the table's beginning
            table.ensure(half_offset, half_offset + 1)
            table[half_offset] = byte_after(said, table[half_offset]) if isinstance(said, OpKind) else said

    def _put_op(self, at: int, size: int, op_offset: int, tag: int) -> None:
        if op_offset != self._state.op_end:
            self._skip_ops(op_offset)
        self._ops.append((at, size, tag))
        self._state.op_end = op_offset + 1
        if len(self._ops) >= self.FLUSH_EVERY:
            self._put_ops()

    def _place(self, position: int) -> None:
        key, following = int(queue_key_of(position)), int(queue_offset_of(position)) + 1
        self._state.next_offset[key] = max(self._state.next_offset.get(key, 0), following)

    def _learn_names(self, head: tuple[Any, ...], content: memoryview) -> None:
        """Names are durable before their first frame: a number that the dictionary does not know, or knows by another name, means
        that it is not the one that was here."""
        numbers = head[11], head[12]
        if numbers not in self._taught:
            if not names_recovery.teach(self._files.dictionary, content, *numbers, head[21]):
                self._files.learn_names_again(self._state.next_offset, self._progress)
            self._taught.add(numbers)

    # Some frames are damaged. Their entries may still be in the queue; if not, a hole keeps their numbers.
    # A queue without files begins here where the log does not begin at 0 (a restored store): what came before is gone.
    def reach(self, half_end: int, op_end: int) -> None:
        if half_end > self._state.half_end:
            self._skip_halves(half_end)
        if op_end > self._state.op_end:
            self._skip_ops(op_end)

    def _skip_halves(self, following: int) -> None:
        self._put_halves()
        if not self._files.half_queue.file.starts():
            if self._files.log.file.begin:
                self._state.half_begin = max(self._state.half_begin, following)
            else:
                self._files.half_queue.reach(self._state.half_end)
        self._files.half_queue.reach(following)
        self._state.half_end = self._half_first = following

    def _skip_ops(self, following: int) -> None:
        self._put_ops()
        if self._state.op_end or not self._files.log.file.begin:
            self._lost_ops.append(range(self._state.op_end, following))
            self._files.op_queue.reach(self._state.op_end)
        self._files.op_queue.reach(following)
        self._state.op_end = self._op_first = following

    def _put_halves(self) -> None:
        if self._halves:
            _put(self._files.half_queue, self._half_first, self._halves)
            self._half_first += len(self._halves)
            self._halves = []
        self._files.ends_table.ensure(self._half_first, self._half_first)

    def _put_ops(self) -> None:
        if self._ops:
            _put(self._files.op_queue, self._op_first, self._ops)
            self._op_first += len(self._ops)
            self._ops = []

    def _pass_over_lost_places(self) -> None:
        """A lost op may have been a commit, and a consumer may have read at the place that it named: no place may be given
        again. Which queue it was is not known for certain, so each passes over as many as were lost."""
        places = self._state.next_offset
        if self._lost_ops:  # also in queues of which nothing else is left
            for topic_no, queues in enumerate(self._files.dictionary.queues):
                for queue_id in range(queues):
                    places.setdefault(queue_key(topic_no, queue_id), 0)
        for op_offset in (number for lost in self._lost_ops for number in lost):
            half_offset = self._files.op_queue.entry(op_offset)[2]
            if 0 <= half_offset < self._state.half_end:
                with contextlib.suppress(Corrupt, IndexError):
                    half = self._files.read_half(half_offset).fields
                    places.setdefault(queue_key(half["topic_no"], half["queue_id"]), 0)
        for key in places:
            places[key] += sum(map(len, self._lost_ops))

    def _learn_taken_names(self) -> None:
        """Names under which halves were committed: the op says when, the half which."""
        names = self._files.names
        for half_offset, at_ms in self._commits:
            with contextlib.suppress(Corrupt, IndexError):
                half = self._files.read_half(half_offset)
                if half.fields["sys_flag"] & frames.SYS_FLAG_NAMED:
                    digest = digest_of(half.fields["group_no"], half.properties.get(TX_NAME, ""))
                    names.ensure(1, at_ms // 1000, keep=True)
                    names.put_all({digest: Known(half_offset, at_ms // 1000, crc32(half.body))})

    def finish(self) -> None:
        """Write what is left and cut the queues behind it: an entry there would point at a frame that was cut."""
        self._put_halves()
        self._put_ops()
        self._learn_taken_names()
        self._pass_over_lost_places()
        for queue, end in ((self._files.half_queue, self._state.half_end), (self._files.op_queue, self._state.op_end)):
            if queue.file.starts():
                queue.cut(end)


def _put(queue: ConsumeQueue, first: int, rows: list[tuple[int, int, int]]) -> None:
    """Entries that retention has taken from a queue already (the log may reach further back) are left out."""
    gone = max(0, queue.begin - first)
    queue.put(first + gone, np.array(rows[gone:], ENTRY))
