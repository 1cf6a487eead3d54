"""Backup while everything runs; restore into a store that goes on where the copy was made."""

from __future__ import annotations

import json
import os
import zlib

import pytest

from store.admin.backup import MANIFEST, backup, restore
from store.errors import Corrupt, FormatTooNew, NotAStore, StoreError, StoreUnusable
from store.inspect.verify.store import verify
from store.messages import Message
from store.read.readers import open_readers
from store.records import OpKind, State, topic_of_key
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers
from tests.support.service import Service, segment_files, verdicts

DAY = 86_400


def busy(service):
    halves = service.send(*[b"%02d" % number * 300 for number in range(40)])
    halves += service.send(*[b"%02d" % number * 300 for number in range(40, 80)])
    service.commit(*halves[:30])
    service.roll_back(*halves[30:35])
    service.operate(halves[35], OpKind.DISCARD_MAX)
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"plain")], service.now_ms).ticket)
    service.settle(records_max=25)
    return halves


def test_a_copy_of_a_running_store_goes_on_where_it_was_made(service, tmp_path):
    halves = busy(service)
    service.commit(halves[50])  # acknowledged, not settled
    backup(service.root, tmp_path / "backup")
    service.commit(halves[51])
    service.settle()
    found = restore(tmp_path / "backup", tmp_path / "restored")
    assert (found["halves"], found["pending"]) == (80, 44)
    with Service(tmp_path / "restored") as restored:
        restored.now_ms = service.now_ms
        assert restored.edge.directory.store_id == found["store_id"] != service.edge.directory.store_id
        restored.settle()
        assert len(restored.consume()) == 32
        assert restored.consume()[:5] == service.consume()[:5]
        assert restored.state(halves[35]) == State.DISCARDED_MAX
        assert [str(verdict.value) for verdict in verdicts(restored.commit(halves[0], halves[30], halves[51], halves[79]))] == [
            "already",
            "conflict",
            "accepted",
            "accepted",
        ]
        restored.settle()
        assert restored.pending == 41


def test_a_store_after_retention_can_be_copied_and_restored(service, tmp_path):
    for _ in range(3):
        busy(service)
    (held,) = service.send(b"held", group="silent")
    service.roll_back(*[half for half in range(held) if service.state(half) == State.PREPARED])
    service.settle()
    service.sleep(4 * DAY)
    busy(service)
    for _ in range(2):
        service.retain(DAY)
    places, end = dict(service.edge.next_offset), service.edge.half_end
    assert service.edge.log.file.begin > 0
    backup(service.root, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    with Service(tmp_path / "restored") as restored:
        assert (restored.edge.next_offset, restored.edge.half_end) == (places, end)
        assert restored.pending == service.pending
        assert restored.edge.read_half(held).body == b"held"
        assert restored.commit(0)[0].reason == "gone"
        assert restored.bodies()[-5:] == service.bodies()[-5:]


@pytest.mark.parametrize("directory", ["commitlog", "transaction/redolog"])
def test_files_that_retention_takes_during_the_copy_leave_no_gap(service, tmp_path, directory):
    for _ in range(6):
        busy(service)
    service.roll_back(*[half for half in range(service.edge.half_end) if service.state(half) == State.PREPARED])
    service.settle()
    service.retain(DAY)
    service.sleep(4 * DAY)
    busy(service)
    taken: list[dict[str, int]] = []

    def progress(done, total, what):
        """The first file is copied: retention takes it and the next ones."""
        if f"copying {directory}" in what and not taken:
            taken.extend(service.retain(DAY) for _ in range(2))

    done = backup(service.root, tmp_path / "backup", progress)
    removed = {"commitlog": "commitlog", "transaction/redolog": "redo"}[directory]
    assert sum(each[removed] for each in taken) > 1
    assert done["files"] == len(segment_files(tmp_path / "backup")) - 1
    restore(tmp_path / "backup", tmp_path / "restored")
    with Service(tmp_path / "restored") as restored:
        assert (restored.edge.next_offset, restored.edge.half_end) == (service.edge.next_offset, service.edge.half_end)
        assert (restored.pending, restored.bodies()) == (service.pending, service.bodies())


def test_a_copy_leaves_the_store_as_it_was_and_needs_an_empty_place(service, tmp_path):
    busy(service)
    before = segment_files(service.root)
    backup(service.root, tmp_path / "backup")
    assert segment_files(service.root) == before
    with pytest.raises(StoreUnusable, match="not an empty directory"):
        backup(service.root, tmp_path / "backup")
    with pytest.raises(StoreUnusable, match="not an empty directory"):
        restore(tmp_path / "backup", service.root)


def test_a_damaged_or_unfinished_copy_is_refused(service, tmp_path):
    busy(service)
    backup(service.root, tmp_path / "backup")
    (tmp_path / "unfinished").mkdir()
    with pytest.raises(NotAStore, match="interrupted"):
        restore(tmp_path / "unfinished", tmp_path / "restored")
    path = tmp_path / "backup" / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with pytest.raises(Corrupt, match="the backup is damaged"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_an_empty_store_can_be_copied(service, tmp_path):
    backup(service.root, tmp_path / "backup")
    assert restore(tmp_path / "backup", tmp_path / "restored")["halves"] == 0
    with Service(tmp_path / "restored") as restored:
        assert restored.send_one() == 0


def damage(root, offset):
    """One bit of the commit log."""
    path = root / "commitlog" / f"{offset - offset % (64 << 10):020d}"
    with path.open("r+b") as file:
        file.seek(offset % (64 << 10))
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def readable(service):
    """Bodies by place; None where the frame is damaged."""
    _, log, topics, _ = open_readers(service.root)
    assert topics is not None
    found: dict[tuple[int, int], bytes | None] = {}
    for key in topics.catalogue.queue_keys():
        begin, end = topics.catalogue.extent(key)
        first, entries = topics.topic_entries(*topic_of_key(key), begin, end - begin)
        for number, entry in enumerate(entries, first):
            try:
                found[key, number] = log.frame(entry).body if entry["size_bytes"] else None
            except Corrupt:
                found[key, number] = None
    return found


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_damage_in_the_log_costs_a_restored_store_what_it_costs_in_place(service, tmp_path, settled, number):
    halves = [service.send_one(b"%d" % each) for each in range(5)]
    service.settle()
    for each in range(5, 55):
        halves.append(service.send_one(b"%d" % each))
        assert service.commit(halves[-1])[0].verdict.value == "accepted"
    if settled:
        service.settle()
    damage(service.root, service.edge.half_queue.entry(number)[0] + 122)
    backup(service.root, tmp_path / "backup")
    service.restart(clean=False)
    found = restore(tmp_path / "backup", tmp_path / "restored")
    assert (found["halves"], found["ops"], found["damaged_places"]) == (55, 50, 1)
    assert (service.edge.half_end, service.edge.op_end) == (55, 50)
    with Service(tmp_path / "restored") as restored:
        restored.now_ms = service.now_ms
        service.settle()
        restored.settle()
        assert restored.pending == service.pending
        assert [restored.state(half) for half in halves] == [service.state(half) for half in halves]
        assert readable(restored) == readable(service)
        assert restored.edge.half_begin == service.edge.half_begin == 0
        assert restored.send_one() == service.send_one() == 55


@pytest.mark.parametrize("rare", ["halves", "ops"])
def test_a_store_whose_log_holds_only_one_kind_can_be_restored(service, tmp_path, rare):
    for _ in range(4):
        service.commit(*service.send(*[b"m" * 1000] * 20))
        service.settle()
    for _ in range(8):
        service.sleep(DAY)
        for _ in range(4):
            messages = [Message("orders", "paid", b"o" * 1000)] * 20
            if rare == "halves":
                service.edge.wait(service.edge.append_messages(messages, service.now_ms).ticket)
            else:
                service.edge.prepare(messages, service.now_ms)
            service.settle()
        for _ in range(2):
            service.retain(3 * DAY)
    assert service.edge.log.file.begin > 0
    backup(service.root, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    assert verify(tmp_path / "restored").problems == []
    with Service(tmp_path / "restored") as restored:
        assert (restored.edge.half_end, restored.edge.op_end) == (service.edge.half_end, service.edge.op_end)
        assert restored.edge.next_offset == service.edge.next_offset
        assert (restored.pending, restored.bodies()) == (service.pending, service.bodies())
        restored.now_ms = service.now_ms
        (half,) = restored.send(b"new")
        assert half == service.edge.half_end
        restored.commit(half)
        restored.settle()
        assert b"new" in restored.bodies()
    assert verify(tmp_path / "restored").problems == []


def test_a_topic_whose_messages_are_all_gone_goes_on_at_its_offset(service, tmp_path):
    service.commit(*service.send(*[b"x" * 900] * 50, topic="rare"))
    service.settle()
    for _ in range(6):
        service.sleep(DAY)
        service.commit(*service.send(*[b"o" * 900] * 50))
        service.settle()
        service.retain(2 * DAY)
    places = service.edge.next_offset
    backup(service.root, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    with Service(tmp_path / "restored") as restored:
        assert restored.edge.next_offset == places
        for key in service.job.catalogue.queue_keys():
            assert restored.job.catalogue.extent(key) == service.job.catalogue.extent(key)


def test_a_restored_store_knows_every_dedup_key_of_its_log(tmp_path):
    window = {"dedup_window_s": DAY}
    with Service(tmp_path / "store", edge_options=window) as service:
        first = service.send_one(b"pay", dedup_key="order-1")
        for number in range(12):
            service.sleep(1000)
            service.send_one(b"x", dedup_key=f"k{number}")
        backup(service.root, tmp_path / "backup")
        now_ms = service.now_ms
    restore(tmp_path / "backup", tmp_path / "restored")
    with Service(tmp_path / "restored", edge_options=window, now_ms=now_ms) as restored:
        assert restored.send_one(b"pay", dedup_key="order-1") == first


def test_batches_behind_the_published_end_of_a_dead_store_are_copied(service, tmp_path):
    """After a power failure the page may be older than what was acknowledged."""
    service.send_one(b"before")
    page = (service.root / "edge.published").read_bytes()
    service.send_one(b"acknowledged")
    service.crash()
    (service.root / "edge.published").write_bytes(page)
    backup(service.root, tmp_path / "backup")
    assert restore(tmp_path / "backup", tmp_path / "restored")["halves"] == 2
    service.open()


def consumed(root):
    found = Consumers(root / "consumers")
    progress = {where: (each.offset, sorted(each.ahead)) for where, each in found.progress.items()}
    found.close()
    return progress


def test_consumers_never_stand_behind_what_was_copied(service, tmp_path):
    """The group reads on while the log is copied: what it read then is not in the copy."""
    halves = service.send(*[b"m"] * 10)
    service.commit(*halves[:5])
    service.settle()
    key = next(iter(service.edge.next_offset))
    consumers = Consumers(service.root / "consumers", writable=True)
    group_no = service.edge.add_group("readers")
    end = service.edge.next_offset[key]
    consumers.append([ConsumerRecord(ConsumerKind.OFFSET, group_no, key, end)])

    def progress(done, total, what):
        if "commitlog" in what:
            consumers.append([ConsumerRecord(ConsumerKind.OFFSET, group_no, key, end + 3)])

    backup(service.root, tmp_path / "backup", progress)
    restore(tmp_path / "backup", tmp_path / "restored")
    assert consumed(tmp_path / "restored") == {(group_no, key): (end, [])}
    assert verify(tmp_path / "restored").problems == []


def test_a_group_that_read_beyond_an_old_backup_is_put_at_its_end(service, tmp_path):
    service.commit(*service.send(*[b"m"] * 10))
    service.settle()
    key, end = next(iter(service.edge.next_offset.items()))
    consumers = Consumers(service.root / "consumers", writable=True)
    group_no = service.edge.add_group("readers")
    beyond = [ConsumerRecord(ConsumerKind.DONE, group_no, key, end - 1), ConsumerRecord(ConsumerKind.DONE, group_no, key, end + 2)]
    consumers.append([*beyond, ConsumerRecord(ConsumerKind.OFFSET, group_no + 1, key, end + 3)])
    service.edge.add_group("others")
    backup(service.root, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    assert consumed(tmp_path / "restored") == {(group_no, key): (0, [end - 1]), (group_no + 1, key): (end, [])}


def change_manifest(dest, change):
    path = dest / MANIFEST
    state = json.loads(path.read_bytes().partition(b"\n")[0])
    state = change(state) or state
    text = json.dumps(state, sort_keys=True).encode()
    path.write_bytes(text + b"\n%08x\n" % zlib.crc32(text))


def test_a_backup_of_an_earlier_release_can_be_restored(service, tmp_path):
    halves = busy(service)
    backup(service.root, tmp_path / "backup")

    def earlier(state):
        for name in ("half_end", "op_end", "half_begin"):
            del state[name]
        state["files"] = [file for file in state["files"] if file[0] != "job.checkpoint"]

    change_manifest(tmp_path / "backup", earlier)
    assert restore(tmp_path / "backup", tmp_path / "restored")["halves"] == len(halves)
    assert verify(tmp_path / "restored").problems == []


HOSTILE = {
    "outside": lambda state: state["files"].append(["../x", 4, 4, 0]),
    "absolute": lambda state: state["files"].append(["/tmp/x", 4, 4, 0]),
    "inside the log": lambda state: state["files"].append(["commitlog/../../x", 4, 4, 0]),
    "a lock": lambda state: state["files"].append(["edge.lock", 4, 4, 0]),
    "twice": lambda state: state["files"].append(state["files"][0]),
    "no name": lambda state: state["files"].append([None, 4, 4, 0]),
    "a short entry": lambda state: state["files"].append(["audit"]),
    "a negative size": lambda state: state["files"].__setitem__(0, [state["files"][0][0], -1, -1, 0]),
    "more than there is": lambda state: state["files"].__setitem__(0, [state["files"][0][0], 4, 5, 0]),
    "files": lambda state: state.update(files={"audit": 1}),
    "no files": lambda state: state.update(files=[]),
    "positions": lambda state: state.update(positions=[["a", 1]]),
    "pairs": lambda state: state.update(positions=[1]),
    "a queue that cannot be": lambda state: state.update(positions=[[1 << 22, 1]]),
    "a place that cannot be": lambda state: state.update(positions=[[0, 1 << 42]]),
    "ids that were never given": lambda state: state.update(half_begin=state["half_end"] + 1),
    "log_end": lambda state: state.update(log_end="7"),
    "a log that is not there": lambda state: state.update(log_end=1 << 40),
    "half_end": lambda state: state.update(half_end=-1),
    "geometry": lambda state: state.update(geometry={"commit_log_segment_bytes": 1}),
    "another geometry": lambda state: state["geometry"].update(state_rows_per_file=128),
    "store_id": lambda state: state.update(store_id="../../../../../x"),
    "a gap": lambda state: state.update(files=[file for file in state["files"] if file[0] != f"commitlog/{64 << 10:020d}"]),
    "a list": lambda state: [state],
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_malformed_manifest_is_refused_before_anything_is_written(service, tmp_path, change):
    for _ in range(6):
        busy(service)
    backup(service.root, tmp_path / "backup")
    (tmp_path / "x").write_bytes(b"mine")
    change_manifest(tmp_path / "backup", change)
    with pytest.raises(Corrupt, match=MANIFEST):
        restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    assert (tmp_path / "x").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["backup_format", "escrow_format"])
def test_a_backup_of_a_later_release_is_refused_by_name(service, tmp_path, name):
    backup(service.root, tmp_path / "backup")
    change_manifest(tmp_path / "backup", lambda state: state.update({name: 99}))
    with pytest.raises(FormatTooNew, match=f"{name} 99"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_files_of_two_backups_are_not_mixed(service, tmp_path):
    backup(service.root, tmp_path / "backup")
    with Service(tmp_path / "other") as other:
        backup(other.root, tmp_path / "second")
    (tmp_path / "backup" / "format.json").write_bytes((tmp_path / "second" / "format.json").read_bytes())
    with pytest.raises(StoreError, match="mixed"):
        restore(tmp_path / "backup", tmp_path / "restored")
