"""Dump: the records of one file family, decoded, one at a time. Reads only, takes no lock, may run beside the writers.

Numbers become names where a dictionary knows them, words and positions are split into their fields. A record that fails its check
is dumped with what is known of it and `corrupt`: the reason; the dump continues behind it.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.directory import StoreDirectory
from store.errors import Corrupt, IllegalName, InvalidRecord
from store.inspect.verify.files import Findings, SegmentFiles, map_bytes
from store.inspect.verify.redo import RedoScan
from store.io.journal import decode as decode_journal
from store.io.pages import EDGE_PUBLISHED, JOB_PUBLISHED, EdgeSlot, JobSlot
from store.records import (
    ENTRY,
    NO_POSITION,
    ROW,
    OpKind,
    State,
    Via,
    ask_round_of,
    check_count_of,
    immunity_of,
    outstanding_of,
    queue_key_of,
    queue_offset_of,
    state_of,
    topic_of_key,
)
from store.tables import ends, frames, queue_extents
from store.tables.consume_queue import REASON_SHIFT
from store.tables.frames import Frame, FrameKind
from store.tables.journals.consumers import decode as decode_consumer
from store.tables.journals.names import Dictionary
from store.tables.queue_files import NUMBERED_QUEUES, topic_queue_name
from store.tables.redo_log import KIND_SHIFT, MARKER, NUMBER_MASK, TOTALS, RedoKind

Record = dict[str, object]
_REASON_MASK: Final = (1 << REASON_SHIFT) - 1
_CHUNK: Final = 4096


def dump(path: Path, what: str, topic: str | None = None, start: int = 0, limit: int | None = None) -> Iterator[Record]:
    """Records of `what`, from number `start` on, at most `limit`.

    `what`: half, op, state, redo, topic (with `topic`), check, proposal, discard, quarantine, ends, dictionary, audit, consumers.
    """
    source = _Source(path)
    makers: dict[str, Callable[[int], Iterator[Record]]] = {
        "half": source.halves,
        "op": source.ops,
        "state": source.rows,
        "redo": source.redo,
        "topic": lambda first: source.topic(topic, first),
        "ends": source.ends,
        "dictionary": source.dictionary_records,
        "audit": source.audit,
        "consumers": source.consumers,
    }
    makers |= {name: lambda first, name=name: source.numbered(name, first) for name in NUMBERED_QUEUES}  # type: ignore[misc]
    if what not in makers:
        raise InvalidRecord(f"dump: {what!r} is not one of {', '.join(makers)}")
    records = makers[what](start)
    if limit is None:
        yield from records
    else:
        for _, record in zip(range(limit), records, strict=False):
            yield record


class _Source:
    """A store opened for dumping. What is missing or damaged is left out."""

    def __init__(self, path: Path) -> None:
        self.directory = StoreDirectory(path)
        shape, ignore = self.directory.geometry, Findings()
        self.edge_page, self.job_page = _page(path / EDGE_PUBLISHED), _page(path / JOB_PUBLISHED)
        self.dictionary = Dictionary(path / "dictionary")
        queue_bytes = shape.log_queue_entries_per_file * ENTRY.itemsize
        self.log = SegmentFiles(self.directory.commit_log, shape.commit_log_segment_bytes, ignore)
        self.half_queue = SegmentFiles(self.directory.half_queue(), queue_bytes, ignore)
        self.op_queue = SegmentFiles(self.directory.op_queue(), queue_bytes, ignore)
        self.root = self.directory.generation(int(self.job_page[JobSlot.GENERATION]))

    # --- names ---
    def group(self, number: int) -> object:
        groups = self.dictionary.groups
        return groups[number] if 0 <= number < len(groups) else number

    def topic_name(self, number: int) -> object:
        topics = self.dictionary.topics
        return topics[number] if 0 <= number < len(topics) else number

    def position(self, position: int) -> object:
        """A topic position as topic/queue_id@queue_offset."""
        if position == NO_POSITION:
            return None
        topic_no, queue_id = topic_of_key(int(queue_key_of(position)))
        return f"{self.topic_name(topic_no)}/{queue_id}@{int(queue_offset_of(position))}"

    # --- frames ---
    def frame(self, offset: int, size: int) -> Frame:
        """The checked frame at a place; Corrupt if there is none."""
        if (
            size <= 0
            or offset < self.log.begin
            or offset + size > self.log.end
            or offset % self.log.segment_bytes + size > self.log.segment_bytes
        ):
            gone = 0 <= offset < self.log.begin and size > 0
            raise Corrupt(
                self.log.directory, offset, "the log no longer reaches back to its frame" if gone else "points at no frame"
            )
        try:
            return frames.decode_frame(memoryview(self.log.read(offset, size).data), offset, str(self.log.directory))
        except ValueError as error:
            raise Corrupt(self.log.directory, offset, str(error)) from error

    def _entries(self, files: SegmentFiles, first: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """(number, commit_log_offset, size, tags_code) of entries that are there."""
        first, stop = max(first, files.begin // ENTRY.itemsize), min(stop, files.end // ENTRY.itemsize)
        for low in range(first, stop, _CHUNK):
            entries = files.records(ENTRY, low, min(low + _CHUNK, stop)).tolist()
            yield from ((low + at, *entry) for at, entry in enumerate(entries))

    def halves(self, start: int) -> Iterator[Record]:
        for number, offset, size, _ in self._entries(self.half_queue, start, int(self.edge_page[EdgeSlot.HALF_END])):
            record: Record = {"half_offset": number, "commit_log_offset": offset, "size_bytes": size}
            yield self._with_frame(record, offset, size, FrameKind.HALF, number)

    def ops(self, start: int) -> Iterator[Record]:
        for number, offset, size, _ in self._entries(self.op_queue, start, int(self.edge_page[EdgeSlot.OP_END])):
            record: Record = {"op_offset": number, "commit_log_offset": offset, "size_bytes": size}
            yield self._with_frame(record, offset, size, None, number)

    def _with_frame(self, record: Record, offset: int, size: int, kind: FrameKind | None, number: int) -> Record:
        try:
            frame = self.frame(offset, size)
        except Corrupt as error:
            return {**record, "corrupt": error.reason}
        if (kind is not None and frame.kind != kind) or frame.queue_offset != number:
            return {**record, "corrupt": f"the frame there is {frame.kind.name} {frame.queue_offset}"}
        return {**record, **(self._op(frame) if frame.kind == FrameKind.OP else self._message(frame))}

    def _common(self, frame: Frame) -> Record:
        batch = f"{frame.batch_index + 1}/{frame.batch_length}"
        return {"kind": frame.kind.name, "stored_at_ms": frame.stored_at_ms, "batch": batch}

    def _message(self, frame: Frame) -> Record:
        fields = frame.fields
        raw = self.log.read(frame.commit_log_offset, frames.HALF_HEAD.itemsize).view(frames.HALF_HEAD)[0]
        return {
            **self._common(frame),
            "born_at_ms": fields["born_at_ms"],
            "group": self.group(fields["group_no"]),
            "topic": self.topic_name(fields["topic_no"]),
            "queue_id": fields["queue_id"],
            "position": self.position(fields["position"]),
            "immunity_s": fields["immunity_s"],
            "tags_code": fields["tags_code"],
            "sys_flag": fields["sys_flag"],
            "flag": fields["flag"],
            "born_host": _host(raw["born_host"], fields["born_port"]),
            "store_host": _host(raw["store_host"], fields["store_port"]),
            "properties": frame.properties,
            "body": frame.body,
        }

    def _op(self, frame: Frame) -> Record:
        fields = frame.fields
        record: Record = {
            **self._common(frame),
            "op": _name(OpKind, fields["op_kind"]),
            "half_offset": fields["half_offset"] if fields["half_offset"] >= 0 else None,
            "group": self.group(fields["group_no"]) if fields["group_no"] >= 0 else None,
            "via": _name(Via, fields["via"]),
            "position": self.position(fields["position"]),
        }
        record |= frame.detail
        if frame.items:
            items = [
                {"half_offset": item.half_offset, "position": self.position(item.position), "member": item.member}
                for item in frame.items
            ]
            return {**record, "joint": frame.joint, "items": items}
        return {**record, "asked": list(frame.asked)} if frame.asked else record

    # --- state table and redo log ---
    def rows(self, start: int) -> Iterator[Record]:
        table = SegmentFiles(self.root / "statetable" / "0", self.directory.geometry.state_segment_bytes, Findings())
        stop = min(int(self.job_page[JobSlot.HALF_CURSOR]), table.end // ROW.itemsize)
        first = max(start, table.begin // ROW.itemsize)
        for low in range(first, stop, _CHUNK):
            rows = table.records(ROW, low, min(low + _CHUNK, stop)).tolist()
            for number, (offset, size, stored_at_s, group_no, word) in enumerate(rows, low):
                record: Record = {"half_offset": number, **_word(word), "stored_at_s": stored_at_s, "group": self.group(group_no)}
                record |= {"commit_log_offset": offset, "size_bytes": size}
                if state_of(word) in (0, 7):
                    record["corrupt"] = "a row before the cursor that has no state"
                yield record

    def redo(self, start: int) -> Iterator[Record]:
        """Entries and markers; the number is that of the 20-byte slot."""
        files = SegmentFiles(self.directory.redo_log(), self.directory.geometry.redo_segment_bytes, Findings())
        scan = RedoScan(files)
        damage = list(scan.damage)
        for number in range(len(scan.starts)):
            first, count = int(scan.starts[number]), int(scan.counts[number])
            while damage and damage[0][0] < first:
                at, reason = damage.pop(0)
                if at >= start:
                    yield {"redo_entry": at, "corrupt": reason}
            if first + count < start:
                continue
            sequence = int(scan.markers["sequence"][number])
            for at, entry in enumerate(scan.entries(number, number + 1).tolist(), first):
                if at >= start:
                    yield self._redo_entry(at, sequence, entry)
            if first + count >= start:
                yield _marker(first + count, count, scan.markers[number])

    def _redo_entry(self, at: int, sequence: int, entry: tuple[int, int, int]) -> Record:
        tag, word, position = entry
        kind, number = tag >> KIND_SHIFT, tag & NUMBER_MASK
        record: Record = {"redo_entry": at, "batch": sequence, "kind": _name(RedoKind, kind)}
        if kind in (RedoKind.MESSAGE, RedoKind.QUARANTINE_OP):
            record["op_offset"] = number
        else:
            record["half_offset"] = number
        if kind == RedoKind.IMAGE_REST:
            group_no = (position & 0xFFFFFFFF) - ((position & 0x80000000) << 1)
            return {**record, "size_bytes": word, "stored_at_s": position >> 32, "group": self.group(group_no)}
        if kind == RedoKind.MESSAGE:
            return {**record, "size_bytes": word, "position": self.position(position)}
        if kind != RedoKind.QUARANTINE_OP:
            record |= _word(word)
        if kind == RedoKind.IMAGE:
            record["commit_log_offset"] = position
        elif kind in (RedoKind.RELEASE, RedoKind.HOLE):
            record["position"] = self.position(position)
        elif kind in (RedoKind.PROPOSE, RedoKind.DISCARD):
            record |= {"entry": position & _REASON_MASK, "reason": _name(State, position >> REASON_SHIFT)}
        elif kind in (RedoKind.CHECK, RedoKind.QUARANTINE, RedoKind.QUARANTINE_OP):
            record["entry"] = position
        return record

    # --- queues of the job ---
    def _queue(self, name: str) -> SegmentFiles:
        segment_bytes = self.directory.geometry.topic_queue_entries_per_file * ENTRY.itemsize
        return SegmentFiles(self.root / name, segment_bytes, Findings(), growing=True)

    def topic(self, name: str | None, start: int) -> Iterator[Record]:
        topic_no = self.dictionary.topic_no(name or "")
        if topic_no is None:
            known = ", ".join(name for _, name in islice(self.dictionary.living_topics(), 10)) or "none yet"
            raise IllegalName(f"topic: {name!r} is not a topic of this store (topics: {known})")
        slots = SegmentFiles(self.root / "catalogue", queue_extents.SLOTS_PER_FILE * queue_extents.SLOT.itemsize, Findings())
        extents = slots.records(queue_extents.SLOT, 0, slots.end // queue_extents.SLOT.itemsize)
        for key_plus_1, begin, end in sorted(extents[extents["key_plus_1"] > 0].tolist()):
            if topic_of_key(key_plus_1 - 1)[0] == topic_no:
                yield from self._topic_queue(str(name), topic_no, topic_of_key(key_plus_1 - 1)[1], range(max(begin, start), end))

    def _topic_queue(self, name: str, topic_no: int, queue_id: int, numbers: range) -> Iterator[Record]:
        files = self._queue(topic_queue_name(topic_no, queue_id))
        for number, offset, size, tags_code in self._entries(files, numbers.start, numbers.stop):
            record: Record = {"topic": name, "queue_id": queue_id, "queue_offset": number}
            record |= {"commit_log_offset": offset, "size_bytes": size, "tags_code": tags_code}
            yield {**record, "hole": True} if size == 0 else self._released(record, offset, size)

    def _released(self, record: Record, offset: int, size: int) -> Record:
        try:
            frame = self.frame(offset, size)
        except Corrupt as error:
            return {**record, "corrupt": error.reason}
        if frame.kind not in (FrameKind.HALF, FrameKind.MESSAGE):
            return {**record, "corrupt": f"the frame there is {frame.kind.name}"}
        number = {"half_offset" if frame.kind == FrameKind.HALF else "op_offset": frame.queue_offset}
        message = self._message(frame)
        return {
            **record,
            **number,
            **{name: message[name] for name in ("stored_at_ms", "born_at_ms", "group", "properties", "body")},
        }

    def numbered(self, name: str, start: int) -> Iterator[Record]:
        """Check, proposal, discard or quarantine queue."""
        for number, offset, size, tag in self._entries(self._queue(name), start, int(self.job_page[NUMBERED_QUEUES[name]])):
            record: Record = {"entry": number}
            if name == "quarantine":
                record |= {"half_offset": tag} if tag >= 0 else {"op_offset": -1 - tag}
            else:
                record["half_offset"] = tag & _REASON_MASK
            if name in ("proposal", "discard"):
                record["reason"] = _name(State, tag >> REASON_SHIFT)
            yield {**record, "commit_log_offset": offset, "size_bytes": size}

    # --- small files ---
    def ends(self, start: int) -> Iterator[Record]:
        table = SegmentFiles(self.directory.ends(), ends.SEGMENT_BYTES, Findings())
        first = max(start, table.begin, int(self.edge_page[EdgeSlot.HALF_BEGIN]))
        stop = min(int(self.edge_page[EdgeSlot.HALF_END]), table.end)
        for low in range(first, stop, _CHUNK):
            for number, mark in enumerate(table.read(low, min(_CHUNK, stop - low)).tolist(), low):
                yield {"half_offset": number, "end": "OPEN" if mark == 0 else _name(State, mark)}

    def dictionary_records(self, start: int) -> Iterator[Record]:
        for number, name in list(enumerate(self.dictionary.groups))[start:]:
            yield {"kind": "GROUP", "number": number, "name": name}
        for number, name in list(enumerate(self.dictionary.topics))[start:]:
            record: Record = {"kind": "TOPIC", "number": number, "name": name, "queues": self.dictionary.queues[number]}
            if edition := self.dictionary.editions[number]:
                record["edition"] = edition
            if number in self.dictionary.removed:
                record["removed_at"] = self.dictionary.removed[number]
            yield record

    def audit(self, start: int) -> Iterator[Record]:
        for number, (offset, payload) in enumerate(_journal(self.directory.root / "audit")):
            if number >= start:
                yield {"record": number, **_decoded(offset, payload, json.loads)}

    def consumers(self, start: int) -> Iterator[Record]:
        for number, (offset, payload) in enumerate(_journal(self.directory.root / "consumers")):
            if number >= start:
                yield {"record": number, **_decoded(offset, payload, self._consumer)}

    def _consumer(self, payload: bytes) -> Record:
        record = decode_consumer(payload)
        topic_no, queue_id = topic_of_key(record.queue_key)
        found: Record = {"kind": record.kind.name, "group": self.group(record.group_no), "topic": self.topic_name(topic_no)}
        found |= {"queue_id": queue_id, "queue_offset": record.queue_offset}
        return {**found, "attempts": record.attempts, "visible_at_ms": record.visible_at_ms} if record.attempts else found


def _page(path: Path) -> Any:
    content = map_bytes(path)
    return content.view("<i8").copy() if content is not None and len(content) == 4096 else np.zeros(512, np.int64)


def _name(kind: Any, value: int) -> object:
    """The name of a number, or the number where it has none."""
    try:
        return str(kind(value).name)
    except ValueError:
        return value


def _host(raw: bytes, port: int) -> object:
    """Address and port; None where nothing was given. An IPv4 address is written as one."""
    address = ipaddress.IPv6Address(bytes(raw).ljust(16, b"\0"))
    if not int(address) and not port:
        return None
    return f"{address.ipv4_mapped}:{port}" if address.ipv4_mapped else f"[{address}]:{port}"


def _word(word: int) -> Record:
    return {
        "state": _name(State, int(state_of(word))),
        "check_count": int(check_count_of(word)),
        "immunity_s": int(immunity_of(word)),
        "ask_round": int(ask_round_of(word)),
        "outstanding": bool(outstanding_of(word)),
    }


def _marker(at: int, count: int, marker: Any) -> Record:
    names = [name for name in MARKER.names or () if name not in ("tag", "crc", "reserved", "totals", "sequence")]
    record: Record = {"redo_entry": at, "batch": int(marker["sequence"]), "kind": "MARKER", "entries": count}
    record |= {name: int(marker[name]) for name in names}
    return {**record, "totals": dict(zip(TOTALS, marker["totals"].tolist(), strict=True))}


def _journal(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """(offset, payload) of each record; payload None if bytes follow that are not a record."""
    content = path.read_bytes() if path.exists() else b""
    at = 0
    for end, payload in decode_journal(content):
        yield at, payload
        at = end
    if at < len(content):
        yield at, None


def _decoded(offset: int, payload: bytes | None, decode: Callable[[bytes], Any]) -> Record:
    if payload is None:
        return {"offset": offset, "corrupt": "not a whole valid record"}
    try:
        decoded: Record = decode(payload)
    except (ValueError, TypeError) as error:
        return {"offset": offset, "corrupt": str(error)}
    return decoded
