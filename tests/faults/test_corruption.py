"""Flipped bytes: never served as good, never in the way of the rest, and found by `verify` with their place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.errors import Corrupt, StoreError
from store.inspect.verify.store import verify
from store.records import OpKind, State
from store.tables.ends import Verdict
from store.tables.frames import HALF_HEAD
from tests.support.seeds import SEED
from tests.support.service import SMALLEST, Service, read_topic

SEGMENT = SMALLEST.commit_log_segment_bytes


def flip(root: Path, directory: str, offset: int, size_bytes: int, mask: int = 0xFF) -> Path:
    """Flip a byte of a segmented file by its logical offset."""
    path = root / directory / f"{offset - offset % size_bytes:020d}"
    content = bytearray(path.read_bytes())
    content[offset % size_bytes] ^= mask
    path.write_bytes(content)
    return path


def flip_log(root: Path, offset: int) -> Path:
    return flip(root, "commitlog", offset, SEGMENT)


def place_of(service: Service, half: int) -> tuple[int, int]:
    entry = service.edge.half_queue.read(half, half + 1)[0]
    return int(entry["commit_log_offset"]), int(entry["size_bytes"])


def place_of_op(service: Service, op: int) -> tuple[int, int]:
    entry = service.edge.op_queue.read(op, op + 1)[0]
    return int(entry["commit_log_offset"]), int(entry["size_bytes"])


# --- halves ---------------------------------------------------------------------------------------------------------------
def test_every_byte_of_a_half(fast_path: Path) -> None:
    """Wherever the byte lies: the half is quarantined under its own number, its neighbours settle and are visible."""
    root = fast_path / "store"
    with Service(root) as service:
        service.send(b"before", b"the poisoned one", b"behind")
        place, size = place_of(service, 1)
        for at in range(place, place + size):
            flip_log(root, at)
            with pytest.raises(Corrupt):
                service.edge.read_half(1)
            records = service.job.log.halves(0, 3)
            assert records["corrupt"].tolist() == [0, 1, 0], f"byte {at - place} of {size}"
            flip_log(root, at)
        assert service.job.log.halves(0, 3)["corrupt"].tolist() == [0, 0, 0]


def test_corrupt_half_is_quarantined(fast_path: Path) -> None:
    root = fast_path / "store"
    service = Service(root)
    service.send(b"before", b"the poisoned one", b"behind")
    service.commit(0, 2)
    place, _ = place_of(service, 1)
    flip_log(root, place + HALF_HEAD.itemsize + 2)
    service.settle()
    assert [service.state(half) for half in range(3)] == [State.COMMITTED, State.QUARANTINED, State.COMMITTED]
    assert service.bodies() == [b"before", b"behind"]
    assert service.pending == 0
    answer = service.commit(1)[0]
    assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "quarantined")
    service.restart(clean=False, rebuild=True)
    assert service.state(1) == State.QUARANTINED
    assert service.bodies() == [b"before", b"behind"]
    problems = verify(root).problems
    assert any(str(problem.file).endswith("commitlog/" + "0" * 20) and problem.offset == place for problem in problems), problems
    service.close()


def test_commit_of_a_half_that_went_bad_leaves_a_hole(fast_path: Path) -> None:
    """Its place was promised to it: the next message keeps its own."""
    root = fast_path / "store"
    service = Service(root)
    service.send(b"one", b"two", b"three", queue_id=0)
    answers = service.commit(0, 1, 2)
    flip_log(root, place_of(service, 1)[0] + HALF_HEAD.itemsize)
    service.settle()
    assert service.state(1) == State.QUARANTINED
    visible = {message.queue_offset: message.body for message in service.consume()}
    assert visible == {0: b"one", 2: b"three"}
    assert [answer.position & 0xFF for answer in answers] == [0, 1, 2]
    service.restart(clean=False, rebuild=True)
    assert {message.queue_offset: message.body for message in service.consume()} == visible
    service.close()


def test_a_half_that_goes_bad_after_its_release_is_not_served(fast_path: Path) -> None:
    root = fast_path / "store"
    service = Service(root)
    service.send(b"one", b"two")
    service.commit(0, 1)
    service.settle()
    flip_log(root, place_of(service, 0)[0] + HALF_HEAD.itemsize)
    with pytest.raises(Corrupt) as raised:
        service.bodies()
    assert raised.value.offset == place_of(service, 0)[0]
    service.close()
    assert verify(root).problems


# --- ops ------------------------------------------------------------------------------------------------------------------
def test_every_byte_of_an_op(fast_path: Path) -> None:
    root = fast_path / "store"
    with Service(root) as service:
        service.send(b"one", b"two", b"three")
        for half in range(3):
            service.commit(half)
        place, size = place_of_op(service, 1)
        for at in range(place, place + size):
            flip_log(root, at)
            assert service.job.log.ops(0, 3)["corrupt"].tolist() == [0, 1, 0], f"byte {at - place} of {size}"
            flip_log(root, at)


@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_corrupt_op_lets_check_back_settle_the_half(fast_path: Path, kind: OpKind) -> None:
    """The op is reported, its half opens again at the edge, and is released once, by the second commit."""
    root = fast_path / "store"
    service = Service(root)
    service.send(b"one", b"two", b"three", queue_id=0)
    service.commit(0)
    service.end(1, kind)
    service.commit(2)
    flip_log(root, place_of_op(service, 1)[0] + 40)
    service.settle()
    assert [service.state(half) for half in range(3)] == [State.COMMITTED, State.PREPARED, State.COMMITTED]
    assert service.bodies() == [b"one", b"three"]
    (reported,) = service.queue("quarantine", 0, service.job.marker.quarantine_end)["tags_code"].tolist()
    assert reported == -1 - 1
    for _ in range(2):
        assert service.edge.reopen(-1 - reported) == 1
    assert service.commit(1)[0].verdict is Verdict.ACCEPTED
    service.settle()
    assert service.bodies() == [b"one", b"three", b"two"]
    assert service.edge.reopen(-1 - reported) == 1, "reported again after a power failure: nothing changes"
    assert service.commit(1)[0].verdict is Verdict.ALREADY
    service.restart(clean=False)
    service.settle()
    assert service.bodies() == [b"one", b"three", b"two"]
    service.close()


# --- damage and recovery --------------------------------------------------------------------------------------------------
def damaged_store(root: Path, spoil: Callable[[Service], tuple[int, int]]) -> tuple[Service, int]:
    """Acknowledged, never checkpointed; a crash, and a byte that went bad meanwhile. The byte's frame."""
    service = Service(root)
    for number in range(8):
        service.send(b"half %d" % number, queue_id=0)
        service.commit(number)
    place, _ = spoil(service)
    service.crash()
    flip_log(root, place + 33)
    return service, place


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "settled"])
@pytest.mark.parametrize("number", [0, 3, 7], ids=["first", "middle", "last"])
@pytest.mark.parametrize("what", ["half", "op"])
def test_recovery_keeps_everything_behind_the_damage(fast_path: Path, what: str, number: int, settled: bool) -> None:
    root = fast_path / "store"

    def spoil(service: Service) -> tuple[int, int]:
        if settled:
            service.settle()
        return place_of(service, number) if what == "half" else place_of_op(service, number)

    service, place = damaged_store(root, spoil)
    service.open()
    assert [damage[0] for damage in service.edge.recovery.damage] == [place]
    assert (service.edge.half_end, service.edge.op_end) == (8, 8), "numbers that were acknowledged are not given again"
    new = service.send(b"new", queue_id=0)[0]
    assert new == 8
    position = service.commit(new)[0].position & 0xFFFF
    assert position >= 8, "a place that was promised is not given again"
    service.settle()
    visible = {}
    for queue_offset in range(position + 1):
        visible.update(_visible(root, queue_offset))
    rest = {n: b"half %d" % n for n in range(8) if n != number}
    assert rest.items() <= visible.items(), visible
    assert visible[position] == b"new"
    if not settled:
        assert number not in visible
    service.close()


def _visible(root: Path, queue_offset: int) -> dict[int, bytes]:
    """The body at one place of the topic's first queue, if it can be read."""
    from store.read.readers import open_readers

    _, log, topics, _ = open_readers(root)
    assert topics is not None
    first, entries = topics.topic_entries(0, 0, queue_offset, 1)
    try:
        return {number: log.frame(entry).body for number, entry in enumerate(entries, first) if entry["size_bytes"]}
    except Corrupt:
        return {}
    finally:
        log.close()
        topics.close()


# --- everything -----------------------------------------------------------------------------------------------------------
#: Where each kind of file keeps what counts: (directory, width of a record, number of records that are written).
def places(service: Service) -> dict[str, tuple[str, int, int]]:
    generation = f"transaction/generation-{service.job.generation:06d}"
    redo = "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0"
    return {
        "commit log": ("commitlog", SEGMENT, service.edge.log.end),
        "half queue": ("half/0", SMALLEST.log_queue_entries_per_file * 20, service.edge.half_end * 20),
        "op queue": ("op/0", SMALLEST.log_queue_entries_per_file * 20, service.edge.op_end * 20),
        "redo log": (redo, SMALLEST.redo_segment_bytes, service.job.redo.end),
        "state table": (f"{generation}/statetable/0", SMALLEST.state_segment_bytes, service.edge.half_end * 24),
        "topic queue": (f"{generation}/topics/0/0", SMALLEST.topic_queue_entries_per_file * 20, 60 * 20),
    }


FLIPS = 40


@pytest.mark.parametrize("kind", ["commit log", "half queue", "op queue", "redo log", "state table", "topic queue"])
def test_a_flipped_byte_anywhere(fast_path: Path, kind: str) -> None:
    """`verify` names file and place; opening works or says what is wrong; nothing is served that was not sent, nothing twice,
    nothing that was rolled back."""
    root = fast_path / "store"
    service = Service(root)
    service.send(*[b"half %d" % number for number in range(150)], queue_id=0)
    service.commit(*range(60))
    service.roll_back(*range(60, 100))
    service.settle()
    directory, size_bytes, written = places(service)[kind]
    service.close()
    assert verify(root).problems == []
    kept = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    committed = {b"half %d" % number for number in range(60)}
    rng = Random(SEED)
    for _ in range(FLIPS):
        at, mask = rng.randrange(written), 1 << rng.randrange(8)
        hint = f"ESCROW_SEED={SEED}: {kind}, byte {at}, mask {mask:#x}"
        path = flip(root, directory, at, size_bytes, mask)
        problems = verify(root).problems
        assert problems, f"{hint}: not found"
        # A redo batch is named by its beginning, which may lie in the file before.
        named = {Path(problem.file).parent if kind == "redo log" else Path(problem.file) for problem in problems}
        assert (path.parent if kind == "redo log" else path) in named, f"{hint}: {problems[:2]} do not name {path}"
        _nothing_bad_is_served(service, committed, hint)
        for other in [other for other in root.rglob("*") if other.is_file() and other not in kept]:
            other.unlink()
        for known, content in kept.items():
            known.parent.mkdir(parents=True, exist_ok=True)
            known.write_bytes(content)


def _nothing_bad_is_served(service: Service, committed: set[bytes], hint: str) -> None:
    try:
        served = [message.body for message in read_topic(service.root, "paid")]
    except StoreError:
        served = []
    assert set(served) <= committed, f"{hint}: {set(served) - committed}"
    assert len(set(served)) == len(served), f"{hint}: twice"
    try:
        service.open()
    except StoreError:
        return
    try:
        service.settle()
        served = [message.body for message in read_topic(service.root, "paid")]
        assert set(served) <= committed, f"{hint}: {set(served) - committed}"
        assert len(set(served)) == len(served), f"{hint}: twice"
    except StoreError:
        pass  # said clearly what is wrong, and served nothing
    finally:
        service.crash()


@pytest.mark.parametrize("name", ["edge.checkpoint", "job.checkpoint"])
def test_damaged_checkpoint(fast_path: Path, name: str) -> None:
    """At any byte, or gone: found out, and everything is worked out anew from the truth."""
    root = fast_path / "store"
    service = Service(root)
    service.send(*[b"half %d" % number for number in range(20)])
    service.commit(*range(10))
    service.roll_back(*range(10, 15))
    service.settle()
    service.close()
    whole = (root / name).read_bytes()
    for at in range(0, len(whole) - 1, 5):
        (root / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        service.open()
        assert service.edge.recovery.damage or service.job.recovery.rebuilt, f"byte {at}"
        assert (service.pending, len(service.bodies())) == (5, 10), f"byte {at}"
        assert service.commit(3)[0].verdict is Verdict.ALREADY
        assert service.commit(12)[0].verdict is Verdict.CONFLICT
        service.close()
    (root / name).unlink()
    service.open()
    assert (service.pending, len(service.bodies())) == (5, 10)
    service.close()
    assert verify(root).problems == []
