"""The system refuses: I/O errors and a full disk at every step, failing flushes, waiters, and going on without reopening."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from store.edge.store import End
from store.errors import FlushFailed, NoRoom, StoreUnusable
from store.io import disk
from store.messages import Message
from store.records import OpKind, Via
from tests.support.check_store import check_store
from tests.support.history import History
from tests.support.points import OPENING, RECOVERING, failpoints
from tests.support.seeds import SEED
from tests.support.service import T0_MS, Service, contents
from tests.support.world import World, ageing

ACTIONS = 150
SHARDS = 4
ATTEMPTS = 4


@pytest.fixture(autouse=True)
def _disarmed() -> object:
    yield
    disk.arm(None)


# --- every step -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("code", ["EIO", "ENOSPC"])
def test_error_at_every_step(fast_path: Path, code: str, shard: int) -> None:
    """A clear error, nothing acknowledged on its strength, and after reopening everything is well."""
    # The steps of applying have no call of their own that could fail.
    points = [(point, during) for point, during in sorted(failpoints().items()) if not point.startswith("apply.")]
    for number, (point, during) in enumerate(points[shard::SHARDS]):
        seed = SEED * 1000 + number
        try:
            _fail_once(fast_path / f"{number}", point, code, frozenset(during), seed)
        except Exception as error:
            raise AssertionError(f"ESCROW_SEED={SEED}, shard {shard}, {point} fails with {code}: {error}") from error


def _fail_once(root: Path, point: str, code: str, during: frozenset[str], seed: int) -> None:
    rng, history = Random(seed), History()
    failure = None
    for attempt in range(ATTEMPTS):
        if OPENING in during or (RECOVERING in during and attempt):
            disk.arm(point, code)
        failure = _play(root, rng, history, (point, code), during)
        if failure is not None:
            break
    assert failure is not None, "never reached"
    assert str(failure), "an error says what is wrong"
    if point.endswith(".flush"):
        assert isinstance(failure, FlushFailed)
    check_store(root, history, rng)


def _play(root: Path, rng: Random, history: History, armed: tuple[str, str], during: frozenset[str]) -> StoreUnusable | None:
    world = None
    try:
        world = World(root)
        if during == {"Retain"}:
            disk.arm(*armed)
            for ahead in ageing(history):
                history.intend(ahead)
                history.acknowledge(ahead, world.perform(ahead))
        for number in range(ACTIONS):
            if number == 20:
                disk.arm(*armed)
            action = world.choose(rng, history, during)
            if action is not None:
                history.intend(action)
                history.acknowledge(action, world.perform(action))
    except StoreUnusable as error:
        return error
    finally:
        disk.arm(None)
        if world is not None:
            world.drop()
    return None


# --- failing flushes ------------------------------------------------------------------------------------------------------
def halves(*bodies: bytes) -> list[Message]:
    return [Message("orders", "paid", body) for body in bodies]


@pytest.mark.parametrize("point", ["commitlog.flush", "commitlog.write", "half.write"])
def test_nothing_is_acknowledged_after_a_failure(fast_path: Path, point: str) -> None:
    """A second flush that succeeds proves nothing: everybody is refused until the store is opened again."""
    service = Service(fast_path / "store")
    service.send(b"acknowledged")
    disk.arm(point, "EIO")
    with pytest.raises(StoreUnusable):
        service.send(b"in doubt")
    for refused in (lambda: service.send(b"later"), lambda: service.commit(0), service.edge.checkpoint):
        with pytest.raises(FlushFailed, match="refused since an earlier failure"):
            refused()
    with pytest.raises(FlushFailed):
        service.edge.wait(service.edge.append_asked([0], "member", T0_MS))
    with pytest.raises(StoreUnusable):
        service.edge.close()
    service.job.close()
    service.open()
    found = [service.edge.read_half(offset).body for offset in range(service.edge.half_end)]
    assert found in ([b"acknowledged"], [b"acknowledged", b"in doubt"])
    assert not service.edge.recovery.clean
    service.send(b"later")
    service.close()


def test_ends_after_a_failed_flush_are_open_or_durable(fast_path: Path) -> None:
    """The answer was never given, so either is right; but both sides must agree on which it is."""
    service = Service(fast_path / "store")
    service.send(b"one")
    disk.arm("commitlog.flush", "EIO")
    with pytest.raises(FlushFailed):
        service.commit(0)
    service.crash()
    service.open()
    ended = service.edge.end_of(0) != 0
    service.settle()
    assert service.bodies() == ([b"one"] if ended else [])
    service.close()


def test_all_waiters_are_refused_when_their_flush_fails(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One leads the flush, two wait for him; it fails for all three, and for the one who comes afterwards."""
    service = Service(fast_path / "store")
    service.send(b"acknowledged")
    store = service.edge
    leading, fail = threading.Event(), threading.Event()
    real = disk.flush

    def failing(fd: int, point: str, path: Path) -> None:
        if point == "commitlog":
            leading.set()
            assert fail.wait(30)
            disk.arm("commitlog.flush", "EIO")
        real(fd, point, path)

    monkeypatch.setattr(disk, "flush", failing)
    outcomes: dict[str, str] = {}

    def producer(name: str, ticket: int) -> None:
        try:
            store.wait(ticket)
            outcomes[name] = "acknowledged"
        except FlushFailed:
            outcomes[name] = "refused"

    def start(name: str) -> threading.Thread:
        ticket = store.append_halves(halves(name.encode()), T0_MS).ticket
        thread = threading.Thread(target=producer, args=(name, ticket))
        thread.start()
        return thread

    threads = [start("leader")]
    assert leading.wait(30)
    threads += [start("second"), start("third")]
    fail.set()
    for thread in threads:
        thread.join(30)
    assert outcomes == dict.fromkeys(("leader", "second", "third"), "refused")
    monkeypatch.undo()
    with pytest.raises(FlushFailed):
        service.send(b"late")
    service.crash()
    service.open()
    assert service.edge.read_half(0).body == b"acknowledged"
    service.close()


@pytest.mark.parametrize("point", ["half.flush", "op.flush", "ends.flush", "edge.checkpoint.replace"])
def test_a_failed_checkpoint_is_not_forgotten(fast_path: Path, point: str) -> None:
    """What could not be flushed looks clean afterwards: no later checkpoint may vouch for it."""
    root = fast_path / "store"
    service = Service(root)
    service.send(b"one", b"two")
    service.commit(0)
    before = (root / "edge.checkpoint").read_bytes()
    disk.arm(point, "EIO")
    with pytest.raises(StoreUnusable):
        service.edge.checkpoint()
    disk.arm(None)
    if point.endswith(".flush"):
        with pytest.raises(StoreUnusable):
            service.edge.checkpoint()
        assert (root / "edge.checkpoint").read_bytes() == before
    service.crash()
    service.open()
    service.settle()
    assert service.bodies() == [b"one"]
    service.close()


@pytest.mark.parametrize("point", ["state.flush", "queue.flush", "catalogue.flush"])
def test_a_failed_checkpoint_of_the_job_is_not_forgotten(fast_path: Path, point: str) -> None:
    root = fast_path / "store"
    service = Service(root)
    service.send(b"one", b"two")
    service.commit(0)
    service.settle()
    before = (root / "job.checkpoint").read_bytes()
    disk.arm(point, "EIO")
    with pytest.raises(FlushFailed):
        service.job.checkpoint()
    disk.arm(None)
    with pytest.raises(StoreUnusable):
        service.job.checkpoint()
    assert (root / "job.checkpoint").read_bytes() == before
    service.roll_back(1)
    with pytest.raises(StoreUnusable):
        service.settle()
    service.crash()
    service.open()
    service.settle()
    assert (service.bodies(), service.pending) == ([b"one"], 0)
    service.close()


# --- a full disk ----------------------------------------------------------------------------------------------------------
def _prepare(service: Service) -> None:
    service.send(b"x" * 3000)


def _end(service: Service) -> None:
    service.end(0, OpKind.UNKNOWN, remark="still thinking")


@pytest.mark.parametrize(
    ("point", "act"),
    [("commitlog.create", _prepare), ("half.create", _prepare), ("ends.create", _prepare), ("op.create", _end)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_room_for_a_new_file_is_no_failure(fast_path: Path, point: str, act: Callable[[Service], None]) -> None:
    """Nothing was written: the same call succeeds when there is room again, without reopening."""
    service = Service(fast_path / "store")
    service.send(b"first")
    refused = None
    while refused is None:
        disk.arm(point, "ENOSPC")
        before = service.edge.half_end, service.edge.op_end
        try:
            act(service)
        except StoreUnusable as error:
            refused = str(error)
    assert "disk is full" in refused
    assert (service.edge.half_end, service.edge.op_end) == before
    disk.arm(None)
    act(service)
    service.send(b"last")
    service.commit(0)
    service.settle()
    assert service.bodies() == [b"first"]
    service.restart(clean=False)
    assert service.edge.read_half(service.edge.half_end - 1).body == b"last"
    assert service.edge.recovery.damage == []
    service.close()


def _work(service: Service) -> None:
    for number in range(12):
        halves = service.send(*[b"%d" % number] * 20, topic=f"t{number % 3}")
        service.settle()
        service.commit(*halves[:10])
        service.roll_back(*halves[10:15])
        service.edge.end([End(half, OpKind.DISCARD_MAX, None, Via.CHECKER) for half in halves[15:]], service.now_ms)
        service.settle()


@pytest.mark.parametrize("nth", range(1, 12))
@pytest.mark.parametrize("point", ["redo.create", "redo.write", "state.create", "queue.create", "queue.write", "catalogue.create"])
def test_the_job_tries_again_when_there_is_room(fast_path: Path, point: str, nth: int) -> None:
    """Wherever in a batch it was: the same rows, queues and numbers as with room from the beginning."""
    with Service(fast_path / "roomy") as roomy:
        _work(roomy)
    waited = []
    service = Service(fast_path / "store")

    def no_room(error: NoRoom) -> bool:
        waited.append(error)
        if len(waited) == 3:
            disk.arm(None)
        else:
            disk.arm(point, "ENOSPC", disk.EVERY_PASS)
        return True

    service.job.no_room = no_room
    disk.arm(point, "ENOSPC", nth)
    _work(service)
    disk.arm(None)
    assert len(waited) in ((3,) if nth == 1 and point != "catalogue.create" else (0, 3))
    service.close()
    derived = "transaction"
    assert contents(service.root, derived) == contents(fast_path / "roomy", derived)


def test_a_checkpoint_without_room_is_put_off(fast_path: Path) -> None:
    service = Service(fast_path / "store")
    service.job.checkpoint_entries = 64
    disk.arm("job.checkpoint.replace", "ENOSPC", disk.EVERY_PASS)
    _work(service)
    with pytest.raises(NoRoom):
        service.job.retain(service.now_ms + (10 << 30), 1)
    assert service.job.ledger.low_water == (0, 0, 0), "marks that no checkpoint knows would be published by the next batch"
    disk.arm(None)
    service.send(b"last")
    service.settle()
    service.restart(clean=False)
    assert service.pending == 1
    service.close()


def test_a_short_write_of_a_small_file_is_finished(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """write(2) may take less than it was given, on a nearly full disk for one; the rest must follow."""
    import os

    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    disk.write_json(fast_path / "small", {"answer": 42}, "small")
    monkeypatch.undo()
    assert disk.read_json(fast_path / "small") == {"answer": 42}
