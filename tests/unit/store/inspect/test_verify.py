"""Verify: a healthy store is sound in every condition it can be in; each planted defect is named with its file and its place."""

from __future__ import annotations

import itertools
import re
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

import store as store_package
from store.directory import FORMAT_FILE
from store.edge.store import EdgeStore, End
from store.errors import FormatTooNew, NotAStore
from store.inspect.verify.store import Problem, verify
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind, State, pack_position, pack_word
from store.tables.commit_log import NAME as COMMIT_LOG
from store.tables.frames import Op
from tests.support.history import History, Retain
from tests.support.sample_store import GEOMETRY, T0_MS, Sample, build_sample
from tests.support.world import World, open_edge, open_job, small_tables

REDO = "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0"
GENERATION = "transaction/generation-000001"
ZERO = "0" * 20
SECOND = f"{64 << 10:020d}"
FLIPS = 1000
SEED = 20_261_116


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pristine") / "store"
    build_sample(root)
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """A copy of the sample store, to be damaged."""
    shutil.copytree(pristine, tmp_path / "store")
    return tmp_path / "store"


def named(root: Path) -> list[tuple[str, int, str]]:
    return [(problem.file.relative_to(root).as_posix(), problem.offset, problem.reason) for problem in verify(root).problems]


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def flip(path: Path, at: int, mask: int = 0xFF) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ mask]))


# --- sound ----------------------------------------------------------------------------------------------------------------
def test_sample_is_sound(pristine: Path) -> None:
    report = verify(pristine)
    assert report.problems == []
    assert report.summary["states"] == {
        "PREPARED": 7,
        "COMMITTED": 3,
        "ROLLED_BACK": 1,
        "DISCARDED_EXPIRED": 1,
        "QUARANTINED": 1,
    }
    assert (report.summary["frames"], report.summary["pending"], report.summary["topic_entries"]) == (27, 7, 7)
    assert "notes" not in report.summary


def test_verify_changes_nothing(pristine: Path) -> None:
    def look() -> dict[str, tuple[int, bytes]]:
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in pristine.rglob("*") if path.is_file()}

    before = look()
    verify(pristine)
    verify(pristine, quick=True)
    assert look() == before


def test_quick_is_sound_and_computes_no_frame_crc(root: Path) -> None:
    assert verify(root, quick=True).problems == []
    flip(root / COMMIT_LOG / ZERO, 1591 + 200)  # in a body
    assert verify(root, quick=True).problems == []
    assert named(root) == [(f"{COMMIT_LOG}/{ZERO}", 1591, "the frame's CRC does not match its bytes")]


def test_sound_after_rebuild(root: Path) -> None:
    JobStore(root, rebuild=True).close()
    report = verify(root)
    assert (report.problems, report.summary["generation"]) == ([], 2)


def test_sound_while_open_and_after_a_crash(root: Path) -> None:
    edge, job = EdgeStore(root), JobStore(root)
    edge.prepare([Message("orders", "paid", b"more")], T0_MS)
    edge.append_halves([Message("orders", "paid", b"not flushed")], T0_MS)
    assert verify(root).problems == []
    job.__exit__(RuntimeError)
    edge.__exit__(RuntimeError)
    report = verify(root)
    assert report.problems == []
    assert (report.summary["edge_closed_in_order"], report.summary["job_closed_in_order"]) == (False, False)
    EdgeStore(root).close()
    JobStore(root).close()
    assert verify(root).problems == []


def test_sound_without_a_job(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with EdgeStore(root, geometry=GEOMETRY) as edge:
        assert verify(root).problems == []
        edge.prepare([Message("g", "t", b"1")], T0_MS)
        assert verify(root).problems == []
    assert verify(root).problems == []


@pytest.mark.parametrize("seed", [2, 5, 11, 12])
def test_sound_through_histories_with_retention(tmp_path: Path, seed: int) -> None:
    """Random actions with retention, rebuilds and unclean exits: sound at every tenth step, when dropped and when closed."""
    with small_tables():
        rng, history, world, removed = Random(seed), History(), World(tmp_path / "store"), 0
        for step in range(220):
            action = world.choose(rng, history)
            if action is None:
                continue
            history.intend(action)
            history.acknowledge(action, world.perform(action))
            removed += isinstance(action, Retain) and not (tmp_path / "store" / COMMIT_LOG / ZERO).exists()
            if step % 20 == 0:
                assert verify(tmp_path / "store").problems == []
        world.drop()
        assert verify(tmp_path / "store").problems == []
        open_edge(tmp_path / "store").close()
        open_job(tmp_path / "store").close()
        assert verify(tmp_path / "store").problems == []


def test_sound_after_retention_of_everything_old(tmp_path: Path) -> None:
    root, now_ms = tmp_path / "store", T0_MS
    sample = Sample(root)
    for number in range(6):
        halves = sample.edge.prepare([Message("g", "t", b"x" * 500) for _ in range(40)], now_ms)
        sample.edge.end([End(half, OpKind.COMMIT if half % 3 else OpKind.ROLLBACK, "g") for half in halves if half > 2], now_ms)
        sample.settle()
        now_ms += 1000 * number
    for _ in range(3):
        sample.now_ms = now_ms + 10_000_000
        sample.edge.end([End(half, OpKind.COMMIT, "g") for half in range(3)], now_ms)
        sample.settle()
        sample.job.retain(sample.now_ms + 10_000_000, 1000)
        sample.edge.retain()
    assert not (root / COMMIT_LOG / ZERO).exists()
    assert not (root / REDO / ZERO).exists()
    assert verify(root).problems == []
    sample.close()
    assert verify(root).problems == []


def test_sound_beside_busy_writers(tmp_path: Path) -> None:
    root, stop = tmp_path / "store", threading.Event()
    sample = Sample(root)

    def work() -> None:
        """Halves, ends, settlements, check rounds, and a retention that removes files of every kind."""
        for number in itertools.count(1):
            if stop.is_set():
                return
            halves = sample.edge.prepare([Message("g", "t", b"x" * 400) for _ in range(5)], sample.now_ms)
            sample.edge.end([End(half, OpKind.COMMIT if half % 2 else OpKind.ROLLBACK, "g") for half in halves], sample.now_ms)
            sample.settle()
            if number % 20 == 0:
                sample.check_round(number)
                sample.sleep(5)
                sample.job.retain(sample.now_ms, 6000)
                sample.edge.retain()

    writer = threading.Thread(target=work)
    writer.start()
    try:
        for _ in range(60):
            assert verify(root).problems == []
    finally:
        stop.set()
        writer.join()
    sample.close()
    assert verify(root).problems == []


def test_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        verify(tmp_path)


def test_newer_format_is_refused(root: Path) -> None:
    text = (root / FORMAT_FILE).read_text()
    (root / FORMAT_FILE).write_text(text.replace('"escrow_format": 1', '"escrow_format": 3'))
    with pytest.raises(FormatTooNew):
        verify(root)


# --- one planted defect for each kind of file -----------------------------------------------------------------------------
def half_at(number: int) -> int:
    return (0, 174, 330, 486, 661, 816, 971, 1126, 1281, 1436, 1591, 31740)[number]


DEFECTS: list[tuple[str, str, int, bytes | None, int, str]] = [
    # name, file, byte to change, new bytes (None: flip), offset to be named, words of the reason
    ("body", f"commitlog/{ZERO}", half_at(4) + 121, None, half_at(4), "CRC"),
    ("frame size", f"commitlog/{ZERO}", half_at(5) + 6, None, half_at(5), "cannot have"),
    ("frame kind", f"commitlog/{ZERO}", half_at(5) + 10, b"\x03", half_at(5), "CRC"),
    ("frame magic", f"commitlog/{ZERO}", half_at(5) + 8, None, half_at(5), "not a frame"),
    ("wiped frame", f"commitlog/{ZERO}", half_at(5), bytes(155), half_at(5), "zeros where a frame belongs"),
    ("PAD head", f"commitlog/{ZERO}", 61_889 + 20, None, 61_889, "CRC"),
    ("PAD rest", f"commitlog/{ZERO}", 65_000, b"\x01", 65_000, "padding"),
    ("op frame", f"commitlog/{SECOND}", 30_464 + 52, None, 30_464, "CRC"),
    ("behind the log", f"commitlog/{SECOND}", 40_000, b"\x01", 40_000, "behind the end of the log"),
    ("half queue", f"half/0/{ZERO}", 20 * 3 + 1, None, 20 * 3, "half 3: commit_log_offset"),
    ("half queue size", f"half/0/{ZERO}", 20 * 3 + 8, None, 20 * 3 + 8, "half 3: size_bytes"),
    ("behind the half queue", f"half/0/{ZERO}", 20 * 20, b"\x01", 20 * 20, "behind the end of the half queue"),
    ("op queue", f"op/0/{ZERO}", 20 * 4 + 12, None, 20 * 4 + 12, "op 4: tags_code"),
    ("behind the op queue", f"op/0/{ZERO}", 20 * 15, b"\x01", 20 * 15, "behind the end of the op queue"),
    ("ends", f"ends/0/{ZERO}", 1, b"\x02", 1, "half 1 is marked 2, the op log says 3"),
    ("behind ends", f"ends/0/{ZERO}", 99, b"\x02", 99, "behind the last half"),
    ("dictionary", "dictionary", 16, b"X", 0, "not a whole valid record"),
    ("edge checkpoint", "edge.checkpoint", 12, b"0", 0, "CRC"),
    ("job checkpoint", "job.checkpoint", 40, b"#", 0, "CRC"),
    ("edge page magic", "edge.published", 0, None, 0, "magic"),
    ("edge page end", "edge.published", 40, b"\x05", 40, "half_end is 5, the checkpoint says 13"),
    ("edge page unused", "edge.published", 800, b"\x01", 800, "unused slot"),
    ("job page cursor", "job.published", 24, b"\x05", 24, "half_cursor is 5, the redo log says 13"),
    ("job page total", "job.published", 8 * 22, b"\x09", 8 * 22, "commits is 9, the redo log says 3"),
    ("job page generation", "job.published", 16, b"\x09", 16, "generation in force"),
    ("cursors", "edge.cursors", 8, b"\xff", 8, "beyond the queue's end"),
    ("cursors unused", "edge.cursors", 400, b"\xff", 400, "unused slot"),
    ("consumers", "consumers", 20, None, 0, "not a whole valid record"),
    ("audit", "audit", 20, None, 0, "not a whole valid record"),
    ("presence", f"presence/{ZERO}", 8 * 77, b"\x01", 8 * 77, "has no name was seen"),
    ("redo entry", f"{REDO}/{ZERO}", 20 * 50 + 9, None, 20 * 49, "CRC"),
    ("redo marker", f"{REDO}/{ZERO}", 20 * 41 + 30, None, 20 * 41, "CRC"),
    ("last redo batch", f"{REDO}/{2 * 64 * 20:020d}", 20 * 5 + 3, None, 20 * 5, "CRC"),
    ("behind the redo log", f"{REDO}/{2 * 64 * 20:020d}", 20 * 60, b"\x01", 20 * 60, "behind the last batch"),
    ("row offset", f"{GENERATION}/statetable/0/{ZERO}", 24 * 4, None, 24 * 4, "row 4: commit_log_offset"),
    ("row word", f"{GENERATION}/statetable/0/{ZERO}", 24 * 4 + 20, b"\x02", 24 * 4 + 20, "row 4: word is 2"),
    ("row behind the cursor", f"{GENERATION}/statetable/0/{ZERO}", 24 * 30, b"\x02", 24 * 30, "not NONE"),
    ("topic entry", f"{GENERATION}/topics/0/1/{ZERO}", 20, None, 20, "entry 1: commit_log_offset"),
    ("topic tags", f"{GENERATION}/topics/0/1/{ZERO}", 12, None, 12, "entry 0: tags_code"),
    ("hole filled", f"{GENERATION}/topics/1/1/{ZERO}", 28, b"\x09", 20, "entry 1: the redo log knows nothing"),
    ("entry emptied", f"{GENERATION}/topics/1/1/{ZERO}", 0, bytes(20), 0, "entry 0: commit_log_offset is 0"),
    ("behind the topic queue", f"{GENERATION}/topics/0/1/{ZERO}", 300, b"\x09", 300, "behind the end of the topic queue"),
    ("check entry", f"{GENERATION}/check/{ZERO}", 20 * 4 + 12, None, 20 * 4 + 12, "entry 4: tags_code"),
    ("proposal reason", f"{GENERATION}/proposal/{ZERO}", 19, b"\x05", 12, "entry 0: tags_code"),
    ("discard entry", f"{GENERATION}/discard/{ZERO}", 20 + 8, None, 20 + 8, "entry 1: size_bytes"),
    ("quarantine entry", f"{GENERATION}/quarantine/{ZERO}", 20 + 12, None, 20 + 12, "entry 1: tags_code"),
    ("catalogue end", f"{GENERATION}/catalogue/{ZERO}", 16, b"\x01", 16, "the queue ends at 1, the redo log says 2"),
    ("catalogue begin", f"{GENERATION}/catalogue/{ZERO}", 8, b"\x01", 8, "the queue begins at 1"),
    ("catalogue key", f"{GENERATION}/catalogue/{ZERO}", 24, b"\x00", 40, "not zero"),
    ("CURRENT", "transaction/CURRENT", 13, b"7", 0, "generation"),
]


@pytest.mark.parametrize("defect", DEFECTS, ids=[row[0] for row in DEFECTS])
def test_defect_is_named(root: Path, defect: tuple[str, str, int, bytes | None, int, str]) -> None:
    _, file, at, content, offset, words = defect
    if content is None:
        flip(root / file, at)
    else:
        assert (root / file).read_bytes()[at : at + len(content)] != content
        overwrite(root / file, at, content)
    found = named(root)
    assert any(name == file and place == offset and words in reason for name, place, reason in found), found


def test_broken_format_file(root: Path) -> None:
    overwrite(root / FORMAT_FILE, 50, b"0" if (root / FORMAT_FILE).read_bytes()[50:51] != b"0" else b"1")
    assert named(root) == [(FORMAT_FILE, 0, "its crc does not match the rest of it: restore it, for example from a backup")]
    (root / FORMAT_FILE).write_text("{")
    with pytest.raises(NotAStore):
        verify(root)


def test_dedup_slot_is_held_against_its_half(root: Path) -> None:
    path = root / "dedup" / ZERO
    (slot,) = np.flatnonzero(np.frombuffer(path.read_bytes(), "<i8")[2::4])
    for at, words in ((0, "digest"), (16, "digest"), (24, "stored_at_s"), (28, "body")):
        flip(path, int(slot) * 32 + at, 0x01)
        assert any(name == f"dedup/{ZERO}" and words in reason for name, _, reason in named(root))
        flip(path, int(slot) * 32 + at, 0x01)
    overwrite(path, 32 * 7 + 24, b"\x01")
    assert named(root) == [(f"dedup/{ZERO}", 32 * 7 + 24, "a free slot that is not zero")]


def test_corrupt_frames_are_named_where_they_lie(tmp_path: Path) -> None:
    """Quarantined or not: what is corrupt is a problem, and only that."""
    root = tmp_path / "store"
    build_sample(root, mend=False)
    assert named(root) == [
        (f"commitlog/{ZERO}", half_at(6), "the frame's CRC does not match its bytes"),
        (f"commitlog/{SECOND}", 31_137, "the frame's CRC does not match its bytes"),
    ]


def test_two_corrupt_neighbours_are_both_named(root: Path) -> None:
    for number in (4, 5):
        flip(root / COMMIT_LOG / ZERO, half_at(number) + 100)
    places = {place for name, place, _ in named(root) if name == f"commitlog/{ZERO}"}
    assert places == {half_at(4), half_at(5)}


@pytest.mark.parametrize(
    ("file", "offset", "words"),
    [
        (f"commitlog/{SECOND}", 0, "missing"),
        (f"half/0/{ZERO}", 0, "missing"),
        (f"{REDO}/{64 * 20:020d}", 0, "missing between its neighbours"),
        (f"{GENERATION}/statetable/0/{ZERO}", 0, "the table ends here"),
        (f"{GENERATION}/topics/1/0/{ZERO}", 0, "the queue ends here"),
        (f"{GENERATION}/check/{ZERO}", 0, "ends here"),
        ("edge.published", 0, "missing"),
        ("job.published", 0, "missing"),
        ("transaction/CURRENT", 0, "missing"),
        ("dictionary", 0, ""),
    ],
)
def test_missing_files_are_named(root: Path, file: str, offset: int, words: str) -> None:
    (root / file).unlink()
    found = named(root)
    assert found
    if file != "dictionary":  # without it every frame's names are unknown: the frames are named
        assert any(name == file and place == offset and words in reason for name, place, reason in found), found


def test_short_segment_is_named(root: Path) -> None:
    with (root / COMMIT_LOG / SECOND).open("r+b") as file:
        file.truncate(50_000)
    assert (f"commitlog/{SECOND}", 50_000, "the file has 50000 bytes, a segment here has 65536") in named(root)


PLACES = (
    *("", "commitlog", "half", "half/0", "op/0", "ends/0", "dedup", "presence"),
    *("transaction", "transaction/redolog", REDO, GENERATION),
    *(f"{GENERATION}/{name}" for name in ("topics", "topics/0", "topics/0/1", "check", "statetable", "statetable/0", "catalogue")),
)


@pytest.mark.parametrize("place", PLACES)
def test_foreign_files_are_named(root: Path, place: str) -> None:
    (root / place / "notes.txt").write_text("hello")
    (problem,) = verify(root).problems
    assert problem.file == root / place / "notes.txt"
    assert "foreign file" in problem.reason


def test_leftovers_are_noted(root: Path) -> None:
    (root / "edge.checkpoint.new").write_bytes(b"{")
    (root / COMMIT_LOG / f"{128 << 10:020d}.new").write_bytes(b"")
    report = verify(root)
    assert report.problems == []
    assert len(report.summary["notes"]) == 2  # type: ignore[arg-type]
    (root / "transaction" / "generation-000002").mkdir()
    (problem,) = verify(root).problems
    assert problem == Problem(
        root / "transaction" / "generation-000002", 0, "a generation that is not in force: the job removes it when it opens"
    )


# --- defects that no CRC shows ----------------------------------------------------------------------------------------------
def _release(half_offset: int, position: int) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        with JobStore(root) as job:
            batch = job.batch(half_cursor=13, op_cursor=14, now_ms=T0_MS)
            batch.release([half_offset], [pack_word(State.COMMITTED)], [position])
            job.commit(batch)

    return plant


def _append_op(op: Op) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        with EdgeStore(root) as edge:
            edge.wait(edge._writer.ops([op], T0_MS, {}).ticket)

    return plant


PAID_2 = pack_position(0, 1, 2)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (_release(0, PAID_2), "the half is released a second time"),
        (_release(1, PAID_2), "a release that no op in the log asks for"),
        (_release(8, pack_position(0, 1, 0)), "the second message at one place of a topic queue"),
        (_append_op(Op(OpKind.COMMIT, 1, 0, position=PAID_2)), "COMMIT of a half that has ended before"),
        (_append_op(Op(OpKind.ROLLBACK, 0, 0)), "ROLLBACK of a half that has ended before"),
        (_append_op(Op(OpKind.RESUME, 0, 0)), "RESUME of a half that has ended before"),
        (_append_op(Op(OpKind.ROLLBACK, 2, 1)), "another group than its half's"),
        (_append_op(Op(OpKind.COMMIT, 2, 0, position=pack_position(0, 0, 0))), "a place in another queue than its half's"),
        (_append_op(Op(OpKind.COMMIT, 2, 0, position=pack_position(0, 1, 9))), "place 9 of its topic queue where 2 belongs"),
        (_append_op(Op(OpKind.ROLLBACK, 99, 0)), "speaks of a half that is not before it"),
        (_append_op(Op(OpKind.ROLLBACK, 2, 0, detail=b"[]")), "detail is not a JSON object"),
    ],
)
def test_contradictions_are_named(root: Path, plant: Callable[[Path], None], words: str) -> None:
    plant(root)
    assert any(words in problem.reason for problem in verify(root).problems), verify(root).problems


def test_a_log_behind_the_cursor_is_named(pristine: Path, root: Path) -> None:
    """An older copy of the edge's files under a newer redo log."""
    with EdgeStore(root) as edge, JobStore(root) as job:
        edge.prepare([Message("orders", "paid", b"late")], T0_MS)
        batch = job.batch(half_cursor=14, op_cursor=14, now_ms=T0_MS)
        batch.prepare(job.log.halves(13, 14))
        job.commit(batch)
    for name in ("commitlog", "half", "op", "ends", "edge.checkpoint", "edge.published"):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        copy = shutil.copytree if (pristine / name).is_dir() else shutil.copy
        copy(pristine / name, path)
    assert any("settled up to half 14 and op 14, but the log ends at 13 and 14" in reason for _, _, reason in named(root))


# --- bytes flipped anywhere -----------------------------------------------------------------------------------------------
def unjudged() -> dict[str, list[tuple[int, int]]]:
    """The table of FORMAT.md: which bytes verify does not judge."""
    text = Path(store_package.__file__).with_name("FORMAT.md").read_text()
    table = text.partition("<!-- unjudged -->\n")[2]
    found = {}
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, ranges, _ = (cell.strip() for cell in line.split("|")[1:-1])
        pairs = re.findall(r"(\d+)-(\d+)", ranges) if ranges != "all" else [("0", "4096")]
        found[name.strip("`")] = [(int(low), int(high)) for low, high in pairs]
    return found


def flips(root: Path, rng: Random) -> Iterator[tuple[Path, int, int]]:
    """(file, byte, mask): every file in turn, more often where something is written."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    for number in range(FLIPS):
        path = files[number % len(files)]
        content = np.frombuffer(path.read_bytes(), np.uint8)
        written = np.flatnonzero(content)
        at = int(rng.choice(written.tolist())) if rng.random() < 0.7 and len(written) < 100_000 else rng.randrange(len(content))
        yield path, at, 1 << rng.randrange(8)


def test_every_flipped_bit_is_found(root: Path) -> None:
    """… in the file where it is, at or before its place; but for the bytes that FORMAT.md lists."""
    exceptions, rng = unjudged(), Random(SEED)
    for path, at, mask in flips(root, rng):
        name = path.relative_to(root).as_posix()
        key = f"{name.split('/')[0]}/*" if name.startswith("presence") else name
        if any(low <= at <= high for low, high in exceptions.get(key, ())):
            continue
        flip(path, at, mask)
        where = f"seed {SEED}: {name} at {at}, mask {mask}"
        try:
            problems = verify(root).problems
        except (NotAStore, FormatTooNew):
            assert name == FORMAT_FILE, where
            problems = [Problem(path, 0, "")]
        # A redo batch runs over from file to file and is named by its beginning.
        same = [p for p in problems if p.file == path or (REDO in name and REDO in p.file.as_posix() and p.file < path)]
        assert same, f"{where}: {problems or 'nothing found'}"
        assert any(p.offset <= at or p.file != path for p in same) or _is_page(name), f"{where}: {same}"
        flip(path, at, mask)
    assert verify(root).problems == []


def _is_page(name: str) -> bool:
    return name.endswith(".published")


def test_flips_of_the_catalogue_key(root: Path) -> None:
    """A key changed to another: one queue is unknown, another missing."""
    overwrite(root / GENERATION / "catalogue" / ZERO, 0, struct.pack("<q", 65 * 64))
    assert {place for name, place, _ in named(root) if "catalogue" in name} >= {0}
