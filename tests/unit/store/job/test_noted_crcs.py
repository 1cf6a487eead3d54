"""The checkpoint notes the CRCs of queues and redo log: what damage makes of them is found at the next opening."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from store.errors import Corrupt
from store.io.file_crcs import FileCrcs
from store.tables import queue_extents
from tests.support.service import SMALLEST, Service

BODIES = [b"%02d" % number for number in range(30)]
DAY_S = 86_400


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """Halves of one size in one queue, settled and in a checkpoint."""
    service = Service(tmp_path / "store", SMALLEST, edge_options={"default_queues": 1})
    for body in BODIES:
        service.commit(service.send_one(body))
        service.settle()
    service.job.checkpoint()
    return service


def end(service: Service, *, clean: bool) -> None:
    if clean:
        service.close()
    else:
        service.crash()


def redo_files(service: Service) -> list[Path]:
    return sorted(service.root.glob("transaction/redolog/*/0/*"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("clean", [True, False])
def test_an_entry_that_leads_to_another_message_of_its_queue_is_made_anew(service: Service, clean: bool) -> None:
    (path,) = service.root.glob("transaction/generation-*/topics/0/0/*")
    end(service, clean=clean)
    content = bytearray(path.read_bytes())
    struct.pack_into("<q", content, 20, *struct.unpack_from("<q", content, 0))  # same size: only the place differs
    path.write_bytes(content)
    service.open()
    assert service.job.recovery.rebuilt
    assert str(path) in service.job.recovery.reason
    assert [message.body for message in service.consume()] == BODIES
    service.close()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def change(path: Path) -> None:
    flip(path, 100)


@pytest.mark.parametrize("which", [0, 1])
def test_a_lost_file_of_the_redo_log_with_others_behind_it_is_refused(service: Service, which: int) -> None:
    path = redo_files(service)[which]
    service.close()
    path.unlink()
    with pytest.raises(Corrupt, match="escrow store restore") as refusal:
        service.open()
    service.edge.close()
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("which", "harm"), [(0, cut), (1, cut), (-1, cut), (0, change), (1, change), (-1, change), (-1, Path.unlink)]
)
@pytest.mark.parametrize("clean", [True, False])
def test_damage_to_the_redo_log_is_named_and_settled_again(service: Service, clean: bool, which: int, harm) -> None:
    path = redo_files(service)[which]
    assert len(redo_files(service)) > 2
    end(service, clean=clean)
    harm(path)
    service.open()
    recovery = service.job.recovery
    assert recovery.rebuilt
    assert str(path) in recovery.reason or str(path.parent) in recovery.reason
    service.settle()
    assert [message.body for message in service.consume()] == BODIES
    recovery = service.restart().job.recovery
    assert not recovery.rebuilt
    service.close()


def test_a_redo_log_that_nothing_can_tell_again_is_refused_and_left_as_it_is(service: Service) -> None:
    for days in (0, 3):
        service.sleep(days * DAY_S)
        for number in range(300):
            service.commit(service.send_one(b"%03d" % number * 300))
        service.settle(records_max=50)
    for _ in range(3):
        service.retain(DAY_S)
    assert service.edge.op_queue.begin > 0
    paths = redo_files(service)
    service.close()
    kept = {path: path.read_bytes() for path in paths}
    flip(paths[0], len(kept[paths[0]]) // 2)
    with pytest.raises(Corrupt, match="escrow store restore") as refusal:
        service.open()
    service.edge.close()
    assert str(paths[0]) in str(refusal.value)
    paths[0].write_bytes(kept[paths[0]])
    assert {path: path.read_bytes() for path in redo_files(service)} == kept
    service.open()
    assert len(service.consume()) >= 200
    service.close()


def test_a_lost_first_file_of_the_catalogue_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_extents, "SLOTS_PER_FILE", 3)
    service = Service(tmp_path / "store", SMALLEST, edge_options={"default_queues": 1})
    for number in range(8):
        service.commit(service.send_one(b"x", topic=f"topic{number}"))
    service.settle()
    service.crash()
    sorted(service.root.glob("transaction/generation-*/catalogue/*"))[0].unlink()
    service.open()
    assert [service.bodies(f"topic{number}") for number in range(8)] == [[b"x"]] * 8
    service.close()


def test_crcs_follow_what_grows_and_forget_what_goes() -> None:
    content = bytearray(range(50))
    crcs = FileCrcs(20)
    read = lambda at, size: bytes(content[at : at + size])  # noqa: E731
    crcs.follow(0, 30, read)
    crcs.follow(0, 50, read)
    assert FileCrcs(20, crcs.noted()).first_wrong(0, read) is None
    content[45] ^= 1
    assert FileCrcs(20, crcs.noted()).first_wrong(0, read) == 40
    content[5] ^= 1
    assert FileCrcs(20, crcs.noted()).first_wrong(0, read) == 0
    crcs.follow(40, 50, read)
    assert crcs.noted()[:2] == [50, 40]
    crcs.follow(60, 61, lambda at, size: bytes(size))
    assert crcs.noted()[:2] == [61, 60]
