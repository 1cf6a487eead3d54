"""Verify, the small files: delivery cursors, consumers, audit, presence, dedup, the last round."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.directory import StoreDirectory
from store.errors import Corrupt
from store.incarnations import INCARNATIONS, Lineage
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.files import Findings, SegmentFiles, first_nonzero, list_directory, map_bytes
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.journals import check_journal
from store.inspect.verify.log_walk import LogWalk
from store.io import disk, journal, journal_marks
from store.io.segments import NAME_DIGITS
from store.properties import DEDUP_KEY, TX_NAME, PropertyFinder
from store.records import ENTRY, topic_of_key
from store.tables import dedup
from store.tables.dedup import DEDUP, NAMES, SLOT, SLOT_DTYPE, digest_of
from store.tables.delivery_cursors import CURSOR_MAGIC, CURSORS
from store.tables.frames import HALF_HEAD
from store.tables.journals import audit, consumers
from store.tables.journals.audit import AuditRecord, hash_of
from store.tables.journals.consumers import ConsumerKind, decode
from store.tables.presence import SEGMENT_BYTES as PRESENCE_SEGMENT_BYTES

_CURSORS: Final = ("check", "proposal", "quarantine")
_CURSOR_SLOTS: Final = 8


def check_small_files(directory: StoreDirectory, edge: EdgeFiles, walk: LogWalk, job: JobFiles, findings: Findings) -> None:
    """All of them; each may be missing."""
    root = directory.root
    for path, slot in ((root / consumers.NAME, consumers.MARK_SLOT), (root / audit.NAME, audit.MARK_SLOT)):
        _check_mark(path, slot, edge, findings)
    _check_cursors(root / CURSORS, job, findings)
    _check_consumers(root / "consumers", edge, findings)
    _check_audit(root / "audit", edge, findings)
    _check_presence(root / "presence", edge, findings)
    for name, prop in ((DEDUP, DEDUP_KEY), (NAMES, TX_NAME)):
        _check_dedup(root / name, PropertyFinder(prop), edge, walk, findings)
    _check_round(root / "job.round", findings)
    _check_lineage(directory, edge, findings)


def _check_mark(path: Path, slot: int, edge: EdgeFiles, findings: Findings) -> None:
    """A journal against what the page says of its last flush."""
    survey, problem = journal.survey_marked(path, slot)
    if problem:
        findings.add(path, min(survey.end, survey.size_bytes), problem)
    end, seal = (int(value) for value in edge.page[slot : slot + 2])
    if edge.clean and (end or seal) and journal_marks.decode(end, seal) is None:
        findings.add(edge.page_path, slot * 8, f"the mark of {path.name}: its seal does not fit")


def _check_lineage(directory: StoreDirectory, edge: EdgeFiles, findings: Findings) -> None:
    path = directory.root / INCARNATIONS
    try:
        lineage = Lineage.read(directory.root, directory.store_id)
    except Corrupt as error:
        findings.add(path, error.offset, error.reason)
        return
    ids = [each.store_id for each in lineage.ancestors]
    cuts = [each.half_end for each in lineage.ancestors if each.half_end is not None]
    if len({*ids, directory.store_id}) != len(ids) + 1:
        findings.add(path, 0, "the store is listed as its own ancestor")
    if sorted(cuts) != cuts or any(not 0 <= cut <= edge.half_end for cut in cuts):
        findings.add(path, 0, f"the ancestors' halves end at {cuts}, this store's at {edge.half_end}")


def _check_round(path: Path, findings: Findings) -> None:
    try:
        found = disk.read_json(path)
    except Corrupt as error:
        findings.add(path, error.offset, error.reason)
        return
    if found is not None and not all(isinstance(found.get(name), int) for name in ("round_no", "begun_ms")):
        findings.add(path, 0, "round_no or begun_ms is missing")


def _check_cursors(path: Path, job: JobFiles, findings: Findings) -> None:
    content = map_bytes(path)
    if content is None:
        return
    if len(content) != 4096:
        findings.add(path, min(len(content), 4096), f"has {len(content)} bytes, not 4096")
        return
    slots = content.view("<i8").copy()
    if slots[0] != CURSOR_MAGIC:
        findings.add(path, 0, "not a page of cursors: wrong magic")
    for number, name in enumerate(_CURSORS, 1):
        end = int(job.replay.marker[f"{name}_end"]) if job.replay is not None else 0
        if not 0 <= slots[number] <= end and (job.comparable or not job.present):
            findings.add(path, number * 8, f"the {name} cursor {int(slots[number])} lies beyond the queue's end {end}")
    for slot in np.flatnonzero(slots[_CURSOR_SLOTS:]).tolist():
        findings.add(path, (slot + _CURSOR_SLOTS) * 8, "an unused slot is not zero")


def _check_consumers(path: Path, edge: EdgeFiles, findings: Findings) -> None:
    given = {int(key): int(following) for key, following in (edge.checkpoint or {}).get("positions", [])}
    for at, payload in check_journal(path, findings, edge.clean):
        try:
            record = decode(payload)
        except (struct.error, ValueError) as error:
            findings.add(path, at, f"not a consumer's record: {error}")
            continue
        topic_no, queue_id = topic_of_key(record.queue_key)
        edition = edge.editions[topic_no] if 0 <= topic_no < len(edge.editions) else 0
        if record.edition > edition or record.queue_offset < 0 or (record.kind != ConsumerKind.RECEIPT and record.visible_at_ms):
            findings.add(path, at, "a record that no writer makes")
        elif not 0 <= topic_no < len(edge.topics) or (record.edition == edition and queue_id >= edge.queues[topic_no]):
            findings.add(path, at, f"a queue that does not exist: topic {topic_no}, queue {queue_id}")
        elif not 0 <= record.group_no < len(edge.groups):
            findings.add(path, at, f"a group that has no name: {record.group_no}")
        elif edge.clean and record.queue_offset > given.get(record.queue_key, 0):
            findings.add(path, at, f"has read up to {record.queue_offset}, where no message was ever placed")


def _check_audit(path: Path, edge: EdgeFiles, findings: Findings) -> None:
    intents: set[int] = set()
    before = b""
    for number, (at, payload) in enumerate(check_journal(path, findings, edge.clean)):
        try:
            record = AuditRecord(**json.loads(payload))
        except (ValueError, TypeError) as error:
            findings.add(path, at, f"not an audit record: {error}")
            continue
        if record.prev and record.prev != hash_of(before):
            findings.add(path, at, "does not follow the record before it: one was changed, removed or put in")
        before = payload
        if record.about is None:
            intents.add(number)
        elif record.about not in intents:
            findings.add(path, at, f"the outcome of record {record.about}, which is not an intent, or has an outcome already")
        else:
            intents.discard(record.about)


def _check_presence(path: Path, edge: EdgeFiles, findings: Findings) -> None:
    files = SegmentFiles(path, PRESENCE_SEGMENT_BYTES, findings)
    seen = files.records(np.dtype("<i8"), 0, files.end // 8)
    for group_no in np.flatnonzero(seen[: len(edge.groups)] < 0).tolist():
        files.add(group_no * 8, f"group {group_no} was seen before time began")
    if edge.clean:
        files.check_zero_from(len(edge.groups) * 8, "a group that has no name was seen")


def _check_dedup(path: Path, finder: PropertyFinder, edge: EdgeFiles, walk: LogWalk, findings: Findings) -> None:
    for name in sorted(list_directory(path, findings)):
        content = map_bytes(path / name)
        if len(name) != NAME_DIGITS or not (name.isascii() and name.isdecimal()):
            findings.add(path / name, 0, f"foreign file: names here are {NAME_DIGITS} digits")
            continue
        if content is None:
            continue
        slots = len(content) // SLOT.size
        if len(content) != slots * SLOT.size or slots & (slots - 1) or slots < dedup.SLOTS_MIN:
            findings.add(path / name, len(content), f"{len(content)} bytes are not a table of dedup slots")
            continue
        _check_dedup_table(path / name, content, finder, edge, walk)


def _check_dedup_table(path: Path, content: Any, finder: PropertyFinder, edge: EdgeFiles, walk: LogWalk) -> None:
    findings = edge.findings
    slots = content.view(SLOT_DTYPE)
    half = slots["half_plus_1"] - 1
    for at in np.flatnonzero((half < -1) | ((half >= edge.half_end) & edge.clean)).tolist():
        findings.add(path, at * SLOT.size + 16, f"half {int(half[at])} does not exist")
    free = content.reshape(-1, SLOT.size)[half == -1]
    if edge.clean and free.any():
        at = int(np.flatnonzero(half == -1)[np.argmax(free.any(axis=1))])
        findings.add(path, first_nonzero(content, at * SLOT.size), "a free slot that is not zero")
    used = np.flatnonzero((half >= edge.half_begin) & (half < edge.half_end))
    if not edge.quick:
        for at in used.tolist():
            _check_slot(path, slots, at, finder, edge=edge, walk=walk)


def _check_slot(path: Path, slots: Any, at: int, finder: PropertyFinder, *, edge: EdgeFiles, walk: LogWalk) -> None:
    """A used slot against the half it leads to, and whether a search finds it."""
    half = int(slots["half_plus_1"][at]) - 1
    digest = slots["digest"][at].tobytes()
    entry = edge.half_queue.records(ENTRY, half, half + 1)[0]
    offset, size = int(entry["commit_log_offset"]), int(entry["size_bytes"])
    # The entry may be damaged, which is reported elsewhere: do not read gigabytes because of it.
    fits = edge.log.begin <= offset and offset + size <= edge.log_end and HALF_HEAD.itemsize <= size <= edge.log.segment_bytes
    if fits and not walk.touched_by_damage(offset):
        content = edge.log.read(offset, size).tobytes()
        head = np.frombuffer(content, HALF_HEAD, 1)[0]
        body_end = HALF_HEAD.itemsize + int(head["body_bytes"])
        key = finder.find(content[body_end:])
        if key is None or digest != digest_of(int(head["group_no"]), key.decode(errors="replace")):
            edge.findings.add(path, at * SLOT.size, f"the digest is not that of the key of half {half}")
        at_s, stored_at_s = int(slots["stored_at_s"][at]), int(head["stored_at_ms"]) // 1000
        if at_s < stored_at_s if path.parent.name == NAMES else at_s != stored_at_s:  # a name has the time of its COMMIT
            edge.findings.add(path, at * SLOT.size + 24, f"stored_at_s is not that of half {half}")
        if int(slots["body_crc"][at]) != zlib.crc32(content[HALF_HEAD.itemsize : body_end]):
            edge.findings.add(path, at * SLOT.size + 28, f"the CRC is not that of the body of half {half}")
    probe = int.from_bytes(digest[:8], "little") % len(slots)
    while probe != at:
        if slots["half_plus_1"][probe] == 0 or slots["digest"][probe].tobytes() == digest:
            edge.findings.add(path, at * SLOT.size, "a search for this key does not come here")
            return
        probe = (probe + 1) % len(slots)
