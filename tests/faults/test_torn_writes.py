"""Torn writes: whatever a crash leaves of the last, unacknowledged bytes, what was acknowledged is there and nothing else.

Each test makes a store whose last write was never flushed, then truncates it (to zeros: files are preallocated) and corrupts it at
every single byte, and opens it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.edge.store import EdgeStore
from store.errors import FlushFailed
from store.io import disk
from store.io.pages import PAGE_BYTES
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind, State
from tests.support.service import SMALLEST, T0_MS, Service, drop
from tests.support.world import settle_all

TORN = ("cut", "flipped")


def halves(*bodies: bytes, group: str = "orders") -> list[Message]:
    return [Message(group, "paid", body) for body in bodies]


def open_edge(root: Path) -> EdgeStore:
    return EdgeStore(root, geometry=SMALLEST)


def bodies(edge: EdgeStore) -> list[bytes]:
    return [edge.read_half(offset).body for offset in range(edge.half_end)]


class Template:
    """A store as a crash left it; each byte of one range of one file can be torn in a fresh copy."""

    def __init__(self, root: Path, name: str, first: int, stop: int) -> None:
        self._kept, self._root, self._name = root.with_name("kept"), root, name
        self._first, self._stop = first, stop
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(root, self._kept)

    def renew(self) -> None:
        shutil.rmtree(self._root)
        shutil.copytree(self._kept, self._root)

    def torn(self, how: str) -> Iterator[int]:
        """Tear at every byte, one after another; the byte's offset."""
        whole = (self._kept / self._name).read_bytes()
        for at in range(self._first, self._stop):
            content = bytearray(whole)
            if how == "cut":
                content[at:] = bytes(len(whole) - at)
            else:
                content[at] ^= 0x41
            if content != whole:  # a tail of zeros is not torn by cutting it
                self.renew()
                (self._root / self._name).write_bytes(content)
                yield at


def one_file(root: Path, directory: str) -> str:
    (path,) = [path for path in (root / directory).iterdir() if path.is_file()]
    return str(path.relative_to(root))


@pytest.mark.parametrize("page", ["page kept", "page lost"])
@pytest.mark.parametrize("how", TORN)
def test_tail_of_the_commit_log(fast_path: Path, how: str, page: str) -> None:
    """Two batches of halves and one of ends, none of them acknowledged, behind acknowledged ones."""
    root = fast_path / "store"
    edge = open_edge(root)
    edge.prepare(halves(b"one", b"two"), T0_MS)
    acknowledged = edge.log.end
    tails = [edge.append_halves(halves(b"three", b"four"), T0_MS).ticket, edge.append_halves(halves(b"five"), T0_MS).ticket]
    tails.append(edge.append_messages(halves(b"a message"), T0_MS).ticket)
    drop(edge)
    template = Template(root, one_file(root, "commitlog"), acknowledged, tails[-1])
    everything = [b"one", b"two", b"three", b"four", b"five"]
    for at in template.torn(how):
        if page == "page lost":
            (root / "edge.published").write_bytes(bytes(PAGE_BYTES))
        edge = open_edge(root)
        whole = sum(end <= at for end in tails)
        assert bodies(edge) == everything[: (2, 4, 5, 5)[whole]], f"{how} at byte {at}"
        assert (edge.op_end, edge.recovery.damage) == (0, []), f"{how} at byte {at}"
        assert edge.log.end == [acknowledged, *tails][whole], f"{how} at byte {at}"
        drop(edge)


@pytest.mark.parametrize("how", TORN)
def test_tail_of_ends(fast_path: Path, how: str) -> None:
    """A batch of a commit and a roll-back, torn: both halves are open, or, untouched, both have ended."""
    root = fast_path / "store"
    with Service(root) as service:
        service.send(b"one", b"two", b"three")
        service.commit(2)
        service.settle()
    service.open()
    acknowledged = service.edge.log.end
    service.edge.append_ends(
        [_end(0, OpKind.COMMIT), _end(1, OpKind.ROLLBACK)],
        T0_MS,
    )
    stop = service.edge.log.end
    service.crash()
    template = Template(root, one_file(root, "commitlog"), acknowledged, stop)
    for at in template.torn(how):
        service.open()
        assert service.edge.op_end == 1, f"{how} at byte {at}"
        assert [service.edge.end_of(half) for half in range(3)] == [0, 0, State.COMMITTED], f"{how} at byte {at}"
        assert service.edge.next_offset == {2: 1}, f"{how} at byte {at}"
        service.crash()
    template.renew()
    service.open()
    assert [service.edge.end_of(half) for half in range(3)] == [State.COMMITTED, State.ROLLED_BACK, State.COMMITTED]
    service.settle()
    assert service.bodies() == [b"one", b"three"]
    service.close()


def _end(half_offset: int, kind: OpKind) -> Any:
    from store.edge.store import End

    return End(half_offset, kind, "orders")


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("many", [False, True], ids=["in one file", "over two files"])
def test_last_redo_batch(fast_path: Path, how: str, many: bool) -> None:
    """A settlement batch whose flush never came: settled again from the logs, to the same result."""
    root = fast_path / "store"
    service = Service(root)
    service.send(*[b"%d" % number for number in range(24 if many else 3)])
    service.settle()
    before = service.job.redo.end
    service.send(b"new")
    service.commit(0, 2)
    service.roll_back(1)
    disk.arm("redo.flush", "EIO", 1)
    with pytest.raises(FlushFailed):
        service.settle()
    disk.arm(None)
    files = sorted((root / "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0").iterdir())
    # 2 entries for the new half, 3 ends, 8 for the marker.
    stop = before + 13 * 20
    size = SMALLEST.redo_segment_bytes
    assert (before // size != (stop - 1) // size) == many, "the batch lies where this test wants it"
    drop(service.job)
    service.edge.close()
    expected = [State.COMMITTED, State.ROLLED_BACK, State.COMMITTED]
    for number, file in enumerate(files):
        first, last = max(before - number * size, 0), min(stop - number * size, size)
        template = Template(root, str(file.relative_to(root)), first, max(first, last))
        for at in template.torn(how):
            job = service.job = JobStore(root)
            assert job.marker.half_cursor == (24 if many else 3), f"{how} at byte {at} of {file.name}"
            assert job.redo.end == before, f"{how} at byte {at} of {file.name}"
            settle_all(job, 1 << 20, T0_MS)
            assert [service.state(half) for half in range(3)] == expected, f"{how} at byte {at} of {file.name}"
            drop(job)
        template.renew()
    service.open()
    service.settle()
    assert service.bodies() == [b"0", b"2"]
    service.close()


@pytest.mark.parametrize("how", TORN)
def test_last_name_of_the_dictionary(fast_path: Path, how: str) -> None:
    root = fast_path / "store"
    edge = open_edge(root)
    edge.prepare(halves(b"one"), T0_MS)
    before = (root / "dictionary").stat().st_size
    disk.arm("dictionary.flush", "EIO")
    with pytest.raises(FlushFailed):
        edge.prepare(halves(b"two", group="another"), T0_MS)
    disk.arm(None)
    stop = (root / "dictionary").stat().st_size
    drop(edge)
    for at in Template(root, "dictionary", before, stop).torn(how):
        edge = open_edge(root)
        assert edge.dictionary.groups == ["orders"], f"{how} at byte {at}"
        assert (root / "dictionary").stat().st_size == before, f"{how} at byte {at}"
        edge.prepare(halves(b"two", group="third"), T0_MS)
        assert edge.dictionary.group_no("third") == 1, f"{how} at byte {at}"
        drop(edge)


def test_stale_frames_behind_the_cut_never_come_back(fast_path: Path) -> None:
    """A is torn and B whole behind it; the cut goes before A. A' of the same length takes A's place: B must not follow it."""
    edge = open_edge(fast_path / "store")
    edge.prepare(halves(b"acknowledged"), T0_MS)
    start = edge.log.end
    edge.append_halves(halves(b"AAAA"), T0_MS)
    behind = edge.log.end
    edge.append_halves(halves(b"BBBB"), T0_MS)
    file = fast_path / "store" / one_file(fast_path / "store", "commitlog")
    drop(edge)
    content = bytearray(file.read_bytes())
    content[behind - 1] ^= 1
    file.write_bytes(content)
    edge = open_edge(fast_path / "store")
    assert bodies(edge) == [b"acknowledged"]
    assert edge.append_halves(halves(b"A'A'"), T0_MS).ticket == behind
    drop(edge)
    edge = open_edge(fast_path / "store")
    assert bodies(edge) == [b"acknowledged", b"A'A'"]
    assert (edge.log.end, start) == (behind, edge.recovery.cut_at - (behind - start))
    edge.close()


def test_stale_segments_behind_the_cut_never_come_back(fast_path: Path) -> None:
    """The same where B lies in the next segment: the whole file goes."""
    root = fast_path / "store"
    edge = open_edge(root)
    edge.prepare(halves(b"acknowledged"), T0_MS)
    large = b"L" * 30_000
    edge.append_halves(halves(large), T0_MS)
    edge.append_halves(halves(b"torn" + large), T0_MS)
    torn_at, size = edge.log.end - 1, SMALLEST.commit_log_segment_bytes
    edge.append_halves(halves(b"B" + large), T0_MS)
    assert torn_at // size < (edge.log.end - 1) // size
    drop(edge)
    file = root / "commitlog" / f"{torn_at - torn_at % size:020d}"
    content = bytearray(file.read_bytes())
    content[torn_at % size] ^= 1
    file.write_bytes(content)
    edge = open_edge(root)
    assert bodies(edge) == [b"acknowledged", large]
    edge.append_halves(halves(b"torn" + large[:-1] + b"'"), T0_MS)
    drop(edge)
    edge = open_edge(root)
    assert bodies(edge)[2:] == [b"torn" + large[:-1] + b"'"]
    edge.close()


def test_a_torn_half_of_a_batch_is_none_of_it(fast_path: Path) -> None:
    """Of a batch of five, four are whole: none is there afterwards."""
    root = fast_path / "store"
    edge = open_edge(root)
    edge.append_halves(halves(b"1", b"2", b"3", b"4", b"5"), T0_MS)
    end = edge.log.end
    drop(edge)
    file = root / one_file(root, "commitlog")
    content = bytearray(file.read_bytes())
    content[end - 1] ^= 1
    file.write_bytes(content)
    edge = open_edge(root)
    assert (bodies(edge), edge.log.end, edge.half_end) == ([], 0, 0)
    with JobStore(root) as job:
        assert job.log.ends() == (0, 0)
    edge.close()
