"""Surroundings that are not as they should be: a clear error that names what is wrong and what to do, and nothing damaged."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.edge.store import EdgeStore
from store.errors import (
    Corrupt,
    CursorBeyondLog,
    ForeignFile,
    FormatTooNew,
    GeometryMismatch,
    NoRoom,
    NotAStore,
    StoreError,
    StoreLocked,
    StoreUnusable,
)
from store.io import disk
from store.job.store import JobStore
from store.records import OpKind
from tests.support.check_store import check_verify
from tests.support.children import Child, Teller
from tests.support.history import History
from tests.support.mount import Mount, mounted
from tests.support.service import SMALLEST, Service, contents, drop

NOBODY = 65534
_VOLATILE = ("edge.lock", "job.lock", "edge.published", "job.published", "edge.checkpoint", "job.checkpoint")


def filled(root: Path) -> None:
    """A store with something in every kind of file, closed in order."""
    with Service(root) as service:
        service.send(*[b"%d" % number for number in range(150)])
        service.commit(*range(0, 100, 2))
        service.roll_back(*range(1, 100, 2))
        service.settle()


def truth(root: Path) -> dict[str, bytes]:
    """Everything that must not change because of a refused start."""
    return {name: content for name, content in contents(root, "").items() if name not in _VOLATILE}


@pytest.fixture
def root(fast_path: Path) -> Path:
    filled(fast_path / "store")
    return fast_path / "store"


def in_child(act: Callable[[], None]) -> str:
    """Do something in another process; the error that it met, as "Type: text"."""
    history, said = History(), [""]

    def main(teller: Teller) -> None:
        try:
            act()
        except StoreError as error:
            teller.tell("error", f"{type(error).__name__}: {error}")

    with Child(history, main) as child:
        for kind, *rest in child.events():
            assert kind == "error"
            said[0] = rest[0]
        assert os.WIFEXITED(child.wait())
    return said[0]


# --- permissions ----------------------------------------------------------------------------------------------------------
def as_nobody(act: Callable[[], None]) -> Callable[[], None]:
    def changed() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        act()

    return changed


@pytest.mark.parametrize("closed", ["", "commitlog", "edge.lock", "format.json", "edge.checkpoint", "ends/0", "dictionary"])
def test_wrong_permissions(root: Path, closed: str) -> None:
    for path in [root.parent, root, *root.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    (root / closed).chmod(0)
    before = truth(root) if os.geteuid() == 0 else {}
    said = in_child(as_nobody(lambda: EdgeStore(root).close()))
    assert said.startswith("StoreUnusable: "), said
    assert "ermission denied" in said
    assert "give this user" in said
    (root / closed).chmod(0o777)
    assert not before or truth(root) == before


def test_wrong_permissions_for_the_job(root: Path) -> None:
    for path in [root.parent, root, *root.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    (root / "transaction").chmod(0o555)
    (root / "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0").chmod(0)
    said = in_child(as_nobody(lambda: JobStore(root).close()))
    assert said.startswith("StoreUnusable: "), said
    assert "ermission denied" in said
    (root / "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0").chmod(0o777)


@pytest.mark.parametrize("code", ["EROFS", "EACCES", "EDQUOT", "EMFILE"])
def test_refusals_name_their_remedy(root: Path, code: str) -> None:
    disk.arm("commitlog.flush_directory", code)
    try:
        with pytest.raises(StoreUnusable, match=r"\(.*: .*\)"):
            EdgeStore(root)
    finally:
        disk.arm(None)


# --- file systems of our own ----------------------------------------------------------------------------------------------
@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    with mounted(tmp_path / "mounted", "2m") as made:
        yield made


def test_read_only_file_system(mount: Mount) -> None:
    root = mount.path / "store"
    filled(root)
    gc.collect()  # no writable mapping may be left when it becomes read-only
    before = contents(root, "")
    mount.remount("ro")
    for open_side in (lambda: EdgeStore(root), lambda: JobStore(root), lambda: EdgeStore(mount.path / "new")):
        with pytest.raises(StoreUnusable, match="read-only"):
            open_side()
    check_verify(root)
    assert contents(root, "") == before
    mount.remount("rw")
    with Service(root) as service:
        assert len(service.bodies()) == 50


def test_full_disk(mount: Mount) -> None:
    """Really full: what was acknowledged stays; with room again both sides go on, the edge without reopening."""
    root, ballast = mount.path / "store", mount.path / "ballast"
    service = Service(root)
    stored = service.send(b"first")
    ballast.write_bytes(bytes(256 << 10))
    refused = None
    while refused is None:
        try:
            stored += service.send(b"x" * 20_000)
        except StoreUnusable as error:
            refused = str(error)
    assert "disk is full" in refused
    assert service.edge.half_end == len(stored), "what was refused has no number"
    for half in stored[:10]:
        assert service.end(half, OpKind.COMMIT).verdict.value == "accepted", "ends need no room that is not there already"
    ballast.unlink()
    stored += service.send(b"last")
    service.commit(*stored[10:])
    service.settle()
    assert len(service.bodies()) == len(stored)
    service.restart(clean=False)
    assert [service.edge.read_half(half).body[:1] for half in stored] == [b"f", *[b"x"] * (len(stored) - 2), b"l"]
    service.close()
    check_verify(root)


def test_full_disk_for_the_job(mount: Mount) -> None:
    """The settlement stops with a clear error and goes on after reopening, from where it was."""
    root, ballast = mount.path / "store", mount.path / "ballast"
    service = Service(root)
    service.send(*[b"%d" % number for number in range(300)])
    service.commit(*range(300))
    room = shutil.disk_usage(mount.path).free
    ballast.write_bytes(bytes(room - 8192))
    with pytest.raises(StoreUnusable, match="disk is full"):
        service.settle(10)
    with pytest.raises(StoreUnusable):
        service.settle(10)
    ballast.unlink()
    drop(service.job)
    service.job = JobStore(root)
    from streaming.settlement.settle import Settler

    service.settler = Settler(service.job, service.policy)
    service.settle(10)
    assert len(service.bodies()) == 300
    service.close()
    check_verify(root)


def test_the_job_waits_for_room_and_goes_on(mount: Mount) -> None:
    """Without reopening: whichever file it was that could not be made."""
    root, ballast = mount.path / "store", mount.path / "ballast"
    service = Service(root)
    service.send(*[b"%d" % number for number in range(300)])
    service.commit(*range(300))
    waited: list[str] = []

    def no_room(error: NoRoom) -> bool:
        waited.append(str(error))
        ballast.unlink()
        return True

    service.job.no_room = no_room
    for free_bytes in range(0, 40_960, 4096):  # each time the disk is full at another file
        service.send(*[b"more"] * 70)
        ballast.write_bytes(bytes(shutil.disk_usage(mount.path).free - free_bytes))
        service.settle(10)
        ballast.unlink(missing_ok=True)
    assert waited, "the disk was never full"
    assert all("disk is full" in text for text in waited)
    assert len(service.bodies()) == 300
    service.restart(clean=False)
    assert (len(service.bodies()), service.pending) == (300, 700)
    service.close()
    check_verify(root)


# --- a second writer ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("side", [EdgeStore, JobStore])
def test_second_writer(root: Path, side: type[EdgeStore] | type[JobStore]) -> None:
    """Refused in another process, and with the pid of the one that is there; afterwards the first goes on."""
    with side(root):
        before = truth(root)
        said = in_child(lambda: side(root).close())
        assert said.startswith("StoreLocked: "), said
        assert str(os.getpid()) in said
        assert truth(root) == before
        with pytest.raises(StoreLocked):
            side(root)
    assert in_child(lambda: side(root).close()) == ""


def test_the_lock_of_a_killed_writer_is_free(root: Path) -> None:
    def main(teller: Teller) -> None:
        stores = EdgeStore(root), JobStore(root)
        teller.tell("open", len(stores))
        disk.die()

    with Child(History(), main) as child:
        child.finish()
        assert child.was_killed
    with EdgeStore(root) as edge, JobStore(root) as job:
        assert not edge.recovery.clean
        assert not job.recovery.clean


# --- foreign files --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["notes.txt", "00000000000000000007", "0" * 19, "00000000000000065536.bak"])
@pytest.mark.parametrize("place", ["commitlog", "half/0", "op/0", "ends/0", "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0"])
def test_foreign_file_among_segments(root: Path, place: str, name: str) -> None:
    (root / place / name).write_bytes(b"mine")
    before = truth(root)
    with pytest.raises(ForeignFile, match="move it elsewhere") as raised:
        (JobStore if "redolog" in place else EdgeStore)(root)
    assert name in str(raised.value)
    assert truth(root) == before
    (root / place / name).unlink()
    with Service(root) as service:
        assert len(service.bodies()) == 50


def test_foreign_files_in_the_root_are_left_alone(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    (root / "backups").mkdir()
    with Service(root) as service:
        service.send(b"new")
    assert (root / "notes.txt").read_text() == "mine"
    assert (root / "backups").is_dir()


def test_a_directory_of_something_else_is_no_store(fast_path: Path) -> None:
    (fast_path / "thesis.txt").write_text("mine")
    with pytest.raises(NotAStore, match="choose an empty directory"):
        EdgeStore(fast_path)
    with pytest.raises(NotAStore):
        JobStore(fast_path)
    assert (fast_path / "thesis.txt").read_text() == "mine"
    assert not (fast_path / "format.json").exists()


# --- versions -------------------------------------------------------------------------------------------------------------
def test_newer_format(root: Path) -> None:
    path = root / "format.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "escrow_format": 999}))
    before = truth(root)
    for side in (EdgeStore, JobStore):
        with pytest.raises(FormatTooNew, match="999"):
            side(root)
    assert truth(root) == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"escrow_format": "one"}', bytes(300)])
def test_damaged_format_file(root: Path, content: bytes) -> None:
    (root / "format.json").write_bytes(content)
    for side in (EdgeStore, JobStore):
        with pytest.raises(NotAStore):
            side(root)


def test_other_geometry(root: Path) -> None:
    from dataclasses import replace

    with pytest.raises(GeometryMismatch, match="fixed when a store is made"):
        EdgeStore(root, geometry=replace(SMALLEST, state_rows_per_file=128))


# --- files that were put back or are missing -------------------------------------------------------------------------------
def test_older_commit_log_was_restored(fast_path: Path) -> None:
    """The settlement has read further than the log reaches: explained, and nothing is settled twice or cut."""
    root, older = fast_path / "store", fast_path / "older"
    service = Service(root)
    service.send(*[b"x" * 900] * 20)
    service.settle()
    service.close()
    shutil.copytree(root / "commitlog", older)
    service.open()
    service.send(*[b"y" * 900] * 20)
    service.commit(*range(20))
    service.settle()
    service.crash()
    shutil.rmtree(root / "commitlog")
    shutil.copytree(older, root / "commitlog")
    before = truth(root)
    with pytest.raises(CursorBeyondLog, match="escrow store restore"):
        EdgeStore(root)
    assert truth(root) == before


def test_whole_edge_of_an_older_copy_was_restored(fast_path: Path) -> None:
    """Log, queues and checkpoint of the edge, all old and in agreement: the job notices."""
    root, older = fast_path / "store", fast_path / "older"
    service = Service(root)
    service.send(b"one", b"two")
    service.settle()
    service.close()
    shutil.copytree(root, older)
    service.open()
    service.send(b"three")
    service.commit(0)
    service.settle()
    service.close()
    for name in ("commitlog", "half", "op", "ends", "dedup"):
        shutil.rmtree(root / name, ignore_errors=True)
        if (older / name).exists():
            shutil.copytree(older / name, root / name)
    for name in ("edge.checkpoint", "edge.published", "dictionary"):
        shutil.copy(older / name, root / name)
    with EdgeStore(root) as edge:
        with pytest.raises(CursorBeyondLog, match="restore a whole backup"):
            JobStore(root)
        assert edge.half_end == 2


@pytest.mark.parametrize("directory", ["commitlog", "half/0", "op/0"])
def test_missing_segment_in_the_middle(fast_path: Path, directory: str) -> None:
    root = fast_path / "store"
    with Service(root) as service:
        for _ in range(200):
            service.commit(*service.send(b"x" * 1500))
    names = sorted(path.name for path in (root / directory).iterdir())
    assert len(names) >= 3
    (root / directory / names[1]).unlink()
    before = truth(root)
    with pytest.raises(Corrupt, match="missing between its neighbours") as raised:
        EdgeStore(root)
    assert names[1] in str(raised.value)
    assert truth(root) == before
