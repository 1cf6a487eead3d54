"""The job's side of the store: cursors, repeated batches, recovery, rebuild."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from store.errors import BatchBeyondCursor, CursorBeyondLog, FlushFailed, NotAStore, StoreUnusable
from store.io import disk
from store.io.pages import JobSlot
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind, State, pack_word
from store.tables.redo_log import TOTALS, RedoKind, RedoLog, kinds_of
from streaming.settlement.settle import Feed, Settler
from tests.support.service import ROOMY, Service, contents, drop


def everything(service):
    """A store with some of everything, settled in several batches."""
    service.use(check_count_max=1)
    service.members["orders"] = lambda half: OpKind.UNKNOWN if half % 2 else None
    halves = service.send(*[b"%02d" % number for number in range(70)], properties={"TAGS": "t"})
    service.settle(records_max=30)
    service.commit(*halves[:20])
    service.roll_back(*halves[20:30])
    service.settle(records_max=7)
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"plain")] * 3, service.now_ms).ticket)
    service.send(b"x", b"y", group="others", topic="else")
    service.edge.log.file.write(service.edge.half_queue.entry(71)[0] + 125, b"!")
    for _ in range(4):
        service.beat()
    service.operate(halves[40], OpKind.RESUME)
    service.operate(halves[41], OpKind.RESUME, OpKind.COMMIT)
    service.settle()
    return halves


DERIVED = ("statetable", "topics", "check", "proposal", "discard", "quarantine", "catalogue")


def derived(service):
    root = service.job.root
    return {name: content for part in DERIVED for name, content in contents(root, part).items()}


# --- cursors ------------------------------------------------------------------------------------------------------------
def test_the_cursors_are_those_of_the_last_batch_and_published_with_it(service):
    service.commit(*service.send(b"a", b"b"))
    service.settle()
    marker, page = service.job.marker, service.job.page
    assert (marker.half_cursor, marker.op_cursor, marker.now_ms) == (2, 2, service.now_ms)
    assert (page[JobSlot.HALF_CURSOR], page[JobSlot.OP_CURSOR], page[JobSlot.NOW_MS]) == (2, 2, service.now_ms)
    assert [page[JobSlot.TOTALS + number] for number, _ in enumerate(TOTALS)] == [marker.totals[name] for name in TOTALS]
    assert marker.sequence == 1


@pytest.mark.parametrize(("half_cursor", "op_cursor"), [(1, 2), (2, 1), (0, 0)])
def test_cursors_go_forward_only(service, half_cursor, op_cursor):
    service.commit(*service.send(b"a", b"b"))
    service.settle()
    with pytest.raises(BatchBeyondCursor, match="cannot go back"):
        service.job.batch(half_cursor=half_cursor, op_cursor=op_cursor, now_ms=1)


def test_a_batch_begun_before_another_was_committed_is_refused(service):
    first, second = (service.job.batch(half_cursor=0, op_cursor=0, now_ms=1) for _ in range(2))
    service.job.commit(first)
    with pytest.raises(BatchBeyondCursor, match="another batch was committed after"):
        service.job.commit(second)
    assert service.job.marker.sequence == 1


def test_a_batch_that_begins_beyond_the_cursor_is_never_settled(service):
    service.commit(*service.send(b"a", b"b"))
    for half_start, op_start in ((1, 0), (0, 1)):
        with pytest.raises(BatchBeyondCursor, match="would be lost"):
            service.settler.settle(Feed(half_start, 2, op_start, 2), service.now_ms)
    assert service.job.marker.sequence == 0
    service.settle()
    assert service.bodies() == [b"a", b"b"]


def test_a_repeated_batch_changes_nothing_whatever_its_range(service):
    halves = service.send(*[b"%d" % number for number in range(20)])
    service.commit(*halves[:10])
    feeds = service.settle(records_max=6)
    before, marker = derived(service), service.job.marker
    for feed in [*feeds, *reversed(feeds)]:
        service.settler.settle(feed, service.now_ms + 1000)
    assert (derived(service), service.job.marker) == (before, marker)


def test_a_batch_that_overlaps_the_cursor_settles_only_what_is_new(service):
    halves = service.send(*[b"%d" % number for number in range(10)])
    service.commit(*halves[:3])
    service.settle()
    service.send(b"10", b"11")
    service.commit(*halves[3:5], 10)
    log = service.job.log
    whole = Feed(0, 12, 0, 6, log.halves(0, 12), log.ops(0, 6))
    done = service.settler.settle(whole, service.now_ms)
    assert done.prepared == 2
    assert service.bodies() == sorted([b"0", b"1", b"2", b"3", b"4", b"10"])
    assert (service.pending, service.job.marker.totals["prepares"]) == (6, 12)


def test_ops_under_the_cursor_are_not_counted_again(service):
    """A hand-over, a resume and an ordinary message would each leave a mark if they were settled twice."""
    asked, resumed = service.send(b"a", b"b")
    service.edge.append_asked([asked], "m", service.now_ms)
    service.operate(resumed, OpKind.DISCARD_MAX, OpKind.RESUME)
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"m")], service.now_ms).ticket)
    service.settle()
    service.edge.wait(service.edge.append_asked([resumed], "m", service.now_ms))
    log = service.job.log
    service.settler.settle(Feed(0, 2, 0, 5, log.halves(0, 2), log.ops(0, 5)), service.now_ms)
    assert [service.check_count(half) for half in (asked, resumed)] == [1, 1]
    totals = service.job.marker.totals
    assert [totals[name] for name in ("prepares", "resumes", "discards_max", "messages")] == [2, 1, 1, 1]
    assert (service.discards(), service.pending) == ([(resumed, State.DISCARDED_MAX)], 2)


def test_one_flush_of_the_redo_log_makes_a_batch_durable(roomy):
    roomy.commit(*roomy.send(*[b"x"] * 100))
    with disk.recording() as passed:
        roomy.settle()
    assert (passed["redo.write"], passed["redo.flush"]) == (1, 1)
    assert "state.flush" not in passed


def test_the_redo_log_comes_first(service):
    """Nothing derived may change before the batch is durable."""
    half = service.send_one()
    service.settle()
    service.commit(half)
    before = derived(service)
    disk.arm("redo.flush", "EIO")
    with pytest.raises(FlushFailed):
        service.settle()
    disk.arm(None)
    assert derived(service) == before


# --- recovery -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["clean", "unclean", "rebuild"])
def test_everything_is_found_again_byte_for_byte(service, how):
    everything(service)
    before, marker, visible, discards = derived(service), service.job.marker, service.consume(), service.discards()
    service.restart(clean=how == "clean", rebuild=how == "rebuild")
    assert service.job.recovery.clean is (how == "clean")
    assert service.job.recovery.rebuilt is (how == "rebuild")
    assert derived(service) == before
    assert (service.job.marker, service.consume(), service.discards()) == (marker, visible, discards)
    assert service.pending == marker.pending


def test_a_clean_exit_replays_nothing_and_an_unclean_one_only_what_came_since_the_checkpoint(service):
    everything(service)
    service.restart()
    assert service.job.recovery.entries_replayed == 0
    service.send_one()
    service.settle()
    service.restart(clean=False)
    assert service.job.recovery.entries_replayed == 2


def test_checkpoints_bound_the_replay(tmp_path):
    service = Service(tmp_path / "store", geometry=ROOMY)
    service.job.checkpoint_entries = 100
    for _ in range(30):
        service.send(*[b"x"] * 10)
        service.settle()
    service.restart(clean=False)
    assert service.job.recovery.entries_replayed <= 100
    assert service.pending == 300
    service.close()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("checkpoint missing", "no checkpoint"),
        ("checkpoint corrupt", "CRC"),
        ("rows changed", "should be"),
        ("table gone", "before the cursor"),
        ("table short", "missing between"),
        ("other generation", "generation"),
        ("CURRENT damaged", "does not name a generation"),
        ("CURRENT gone", "generation"),
    ],
)
def test_derived_files_that_cannot_be_trusted_are_made_anew(service, damage, reason):
    everything(service)
    visible, marker, rows = service.consume(), service.job.marker, service.job.table.get(np.arange(72)).tolist()
    root = service.job.root
    service.close()
    match damage:
        case "checkpoint missing":
            (service.root / "job.checkpoint").unlink()
        case "checkpoint corrupt":
            (service.root / "job.checkpoint").write_bytes(b"{}\nffffffff\n")
        case "rows changed":
            path = root / "statetable" / "0" / f"{0:020d}"
            content = bytearray(path.read_bytes())
            content[24 * 5 + 20] = pack_word(State.PREPARED)
            path.write_bytes(content)
        case "table gone":
            shutil.rmtree(root / "statetable")
        case "table short":
            service.open()
            service.send(*[b"x"] * 130)
            service.settle()
            marker = service.job.marker
            service.close()
            (root / "statetable" / "0" / f"{64 * 24:020d}").unlink()
        case "other generation":
            (service.root / "transaction" / "CURRENT").write_text("generation-000009\n")
        case "CURRENT damaged":
            (service.root / "transaction" / "CURRENT").write_bytes(b"generati\xefn-000001\n")
        case "CURRENT gone":
            (service.root / "transaction" / "CURRENT").unlink()
    service.open()
    assert service.job.recovery.rebuilt
    assert reason in service.job.recovery.reason
    assert (service.job.marker, service.consume()) == (marker, visible)
    assert service.job.table.get(np.arange(72)).tolist() == rows


def test_a_rebuild_is_a_new_generation_and_the_old_one_goes_afterwards(service):
    everything(service)
    assert service.job.generation == 1
    service.restart(rebuild=True)
    assert service.job.generation == 2
    assert (service.root / "transaction" / "CURRENT").read_text() == "generation-000002\n"
    assert sorted(path.name for path in (service.root / "transaction").glob("generation-*")) == ["generation-000002"]
    assert service.job.page[JobSlot.GENERATION] == 2


@pytest.mark.parametrize("point", ["current.replace", "state.flush", "queue.write", "state.create", "catalogue.flush"])
def test_a_rebuild_that_was_interrupted_leaves_the_old_generation_in_force(service, point):
    everything(service)
    before, visible = derived(service), service.consume()
    service.job.close()
    disk.arm(point, "EIO")
    with pytest.raises(StoreUnusable):
        JobStore(service.root, rebuild=True)
    disk.arm(None)
    assert (service.root / "transaction" / "CURRENT").read_text() == "generation-000001\n"
    service.job = JobStore(service.root)
    assert service.job.recovery.rebuilt is False
    assert (derived(service), service.consume()) == (before, visible)


def test_a_torn_redo_tail_is_cut_and_settled_again(service):
    halves = service.send(b"a", b"b")
    service.settle()
    end = service.job.redo.end
    service.commit(*halves)
    service.settle()
    positions = [(message.queue_id, message.queue_offset) for message in service.consume()]
    service.job.checkpoint_entries = 1 << 60
    drop(service.job)
    path = service.job.directory.redo_log() / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[end + 30 :] = bytes(len(content) - end - 30)
    path.write_bytes(content)
    service.job = JobStore(service.root)
    service.settler = Settler(service.job, service.policy)
    assert (service.job.redo.end, service.job.marker.op_cursor) == (end, 0)
    assert service.job.recovery.rebuilt  # the table had already seen the batch that is gone
    service.settle()
    assert [(message.queue_id, message.queue_offset) for message in service.consume()] == positions
    assert service.pending == 0


def test_half_a_batch_is_never_applied(service):
    halves = service.send(*[b"%d" % number for number in range(40)])
    service.settle()
    service.commit(*halves)
    disk.arm("redo.write", "EIO", nth=2)  # the batch runs over into a second file
    with pytest.raises(StoreUnusable):
        service.settle()
    disk.arm(None)
    service.restart(clean=False)
    assert (service.bodies(), service.pending, service.job.marker.op_cursor) == ([], 40, 0)
    service.settle()
    assert (len(service.bodies()), service.pending) == (40, 0)


def test_an_older_log_under_a_newer_settlement_is_a_fatal_explained_error(tmp_path):
    with Service(tmp_path / "store") as service:
        service.send(b"a", b"b")
        service.settle()
    with Service(tmp_path / "other"):
        pass
    for name in ("commitlog", "half", "op", "ends", "dedup"):
        shutil.rmtree(tmp_path / "store" / name)
        shutil.copytree(tmp_path / "other" / name, tmp_path / "store" / name)
    for name in ("edge.checkpoint", "edge.published"):
        shutil.copy(tmp_path / "other" / name, tmp_path / "store" / name)
    with pytest.raises(CursorBeyondLog, match="settled up to half 2"):
        JobStore(tmp_path / "store")


def test_a_damaged_redo_log_stops_the_rebuild_at_the_damage(service):
    halves = service.send(*[b"%d" % number for number in range(10)])
    service.settle()
    service.commit(*halves)
    service.settle()
    service.crash()
    path = service.job.directory.redo_log() / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[45] ^= 1
    path.write_bytes(content)
    (service.root / "job.checkpoint").unlink()
    service.open()
    # Nothing of the redo log can be used, but the logs still hold all: they are settled again, at the same places.
    assert service.job.marker.half_cursor == 0
    service.settle()
    assert (len(service.bodies()), service.pending) == (10, 0)


def test_progress_of_a_rebuild_is_shown(service, monkeypatch):
    everything(service)
    service.job.close()
    monkeypatch.setattr(RedoLog, "WINDOW_ENTRIES", 50)
    seen = []
    before = service.consume()
    service.job = JobStore(service.root, rebuild=True, progress=lambda *what: seen.append(what))
    assert len(seen) > 3
    assert service.consume() == before


def test_a_failed_checkpoint_is_never_followed_by_one_that_vouches_for_it(service):
    service.send_one()
    service.settle()
    before = json.loads((service.root / "job.checkpoint").read_bytes().split(b"\n")[0])
    disk.arm("state.flush", "EIO")
    with pytest.raises(FlushFailed):
        service.job.checkpoint()
    disk.arm(None)
    for attempt in (service.job.checkpoint, lambda: service.job.retain(service.now_ms, 1)):
        with pytest.raises(StoreUnusable, match="earlier failure"):
            attempt()
    service.job.close()
    assert json.loads((service.root / "job.checkpoint").read_bytes().split(b"\n")[0]) == before
    service.job = JobStore(service.root)
    assert service.job.recovery.clean is False
    assert service.pending == 1


def test_a_full_disk_stops_the_job_and_nothing_is_lost(service):
    halves = service.send(*[b"%d" % number for number in range(40)])
    service.commit(*halves)
    disk.arm("redo.create", "ENOSPC", nth=1)
    with pytest.raises(StoreUnusable, match="disk is full"):
        service.settle()
    disk.arm(None)
    with pytest.raises(StoreUnusable, match="earlier failure"):
        service.settle()
    service.restart(clean=False)
    service.settle()
    assert (len(service.bodies()), service.pending) == (40, 0)


# --- what a batch writes ------------------------------------------------------------------------------------------------
def test_the_bytes_of_a_release_and_of_a_check(roomy):
    halves = roomy.send(*[b"x" * 500] * 100)
    roomy.settle()
    log_end, redo_end = roomy.edge.log.end, roomy.job.redo.end
    roomy.members["orders"] = lambda half: None
    roomy.sleep(30)
    roomy.round()
    assert roomy.edge.log.end == log_end
    assert roomy.job.redo.end - redo_end == 100 * 20 + 2 * 160  # a round's beginning, and its requests
    redo_end = roomy.job.redo.end
    roomy.commit(*halves)
    roomy.settle()
    assert roomy.job.redo.end - redo_end == 100 * 20 + 160


def test_every_kind_of_redo_entry_is_used_and_replayed(service):
    halves = everything(service)
    damaged = service.edge.append_halves([Message("orders", "paid", b"hole")], service.now_ms)
    service.edge.wait(damaged.ticket)
    service.commit(*damaged.offsets, halves[40])
    service.edge.log.file.write(service.edge.half_queue.entry(damaged.offsets[0])[0] + 125, b"!")
    op_offset = service.edge.op_end - 1
    service.edge.log.file.write(service.edge.op_queue.entry(op_offset)[0] + 45, b"!")
    service.settle()
    kinds = {RedoKind(int(kind)) for batch in service.job.redo.batches(0, 0) for kind in np.unique(kinds_of(batch.entries))}
    assert kinds == set(RedoKind)
    before = derived(service)
    service.restart(clean=False, rebuild=True)
    assert derived(service) == before


def test_rows_keep_the_order_of_what_happened_to_them_in_one_batch(service):
    """Prepared, discarded, resumed and committed between two settlements: one batch, the last word counts."""
    half = service.send_one(b"x")
    service.sleep(10)
    service.operate(half, OpKind.DISCARD_MAX, OpKind.RESUME, OpKind.COMMIT)
    service.settle()
    assert service.job.marker.sequence == 1
    assert service.state(half) == State.COMMITTED
    assert int(service.row(half)["stored_at_s"]) == service.now_ms // 1000
    totals = service.job.marker.totals
    assert [totals[name] for name in ("prepares", "resumes", "commits", "discards_max")] == [1, 1, 1, 1]
    service.restart(rebuild=True)
    assert (service.state(half), service.bodies(), service.pending) == (State.COMMITTED, [b"x"], 0)


def test_the_second_state_file_has_the_name_of_its_first_row(service):
    service.send(*[b"x"] * 65)
    service.settle()
    names = sorted(path.name for path in (service.job.root / "statetable" / "0").iterdir())
    assert names == [f"{0:020d}", f"{64 * 24:020d}"]
    assert service.job.table.pending_by_file == {0: 64, 1: 1}


def test_a_job_may_be_opened_only_where_an_edge_was(tmp_path):
    with Service(tmp_path / "store"):
        pass
    (tmp_path / "store" / "edge.published").unlink()
    with pytest.raises(NotAStore, match="start the edge first"):
        JobStore(tmp_path / "store")
