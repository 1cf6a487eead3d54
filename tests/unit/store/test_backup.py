"""Backup while everything runs; restore into a store that goes on where the copy was made."""

from __future__ import annotations

import pytest

from store.backup import backup, restore
from store.errors import Corrupt, NotAStore, StoreUnusable
from store.frames import Message
from store.records import OpKind, State
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
        assert restored.edge.directory.store_id == service.edge.directory.store_id
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
