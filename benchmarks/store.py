"""Benchmarks of the store and of deciding over it: `make bench-store`.

Every figure is a ratio of two things measured in this run, or a count of bytes; machines are noisy, their disks most of all.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.support import alternate, load, private_mib, ratio, report, scratch, seconds, spread
from checker.decisions import Decision, Tick, decide
from checker.policy import Policy
from store.edge.store import EdgeStore, End
from store.job.batch import rows_of_halves
from store.job.store import JobStore
from store.messages import Message
from store.records import HALF, ROW, OpKind, State, pack_word
from store.tables.redo_log import Marker, RedoLog, make_images
from store.tables.state_table import StateTable
from streaming.settlement.settle import Settler, read_feed

BODY = os.urandom(1024)
NOW_MS = 1_700_000_000_000


# --- appends -----------------------------------------------------------------------------------------------------------
def append_over_raw(root: Path) -> dict[str, float]:
    """Batches of 1 KiB halves from four threads, each waiting until its batch is durable, against a bare loop that writes and
    flushes batches of the same size. Beside it, stricter: a loop that is allowed to flush as seldom as the group commit did."""
    batch, batches, threads = 64, 400, 4
    messages = [Message("orders", "paid", BODY, {"KEYS": f"order-{number}"}) for number in range(batch)]
    edge = EdgeStore(root / "append")
    raw_fd = os.open(root / "raw", os.O_RDWR | os.O_CREAT)
    written = flushes = raw_at = 0

    def callers() -> None:
        def caller() -> None:
            for _ in range(batches // threads):
                edge.prepare(messages, NOW_MS)

        crowd = [threading.Thread(target=caller) for _ in range(threads)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()

    def ours() -> float:
        nonlocal written, flushes
        log_end, before = edge.log.end, edge.flushes
        taken = seconds(callers)
        written, flushes = edge.log.end - log_end, edge.flushes - before
        return written / taken

    def raw(pieces: int) -> float:
        content = os.urandom(written // pieces)

        def loop() -> None:
            nonlocal raw_at
            for _ in range(pieces):
                os.pwrite(raw_fd, content, raw_at)
                os.fdatasync(raw_fd)
                raw_at += len(content)

        return written / seconds(loop)

    ours(), raw(batches)
    runs = [(ours(), raw(batches), raw(flushes)) for _ in range(7)]
    edge.close()
    os.close(raw_fd)
    mine, bare, grouped = ([x / 1e6 for x in column] for column in zip(*runs, strict=True))
    rate = statistics.median(mine) * 1e6 / written * batch * batches
    print(f"append: ours {spread(mine)} MB/s ({rate:,.0f} messages/s, {batches / flushes:.1f} batches a flush)")
    print(f"        bare loop {spread(bare)} MB/s; with as few flushes {spread(grouped)} MB/s")
    return {
        "store.append_over_raw": statistics.median(a / b for a, b, _ in runs),
        "store.append_over_raw_same_flushes": statistics.median(a / c for a, _, c in runs),
    }


# --- deciding ------------------------------------------------------------------------------------------------------------
def _table(directory: Path, count: int, pending_every: int) -> StateTable:
    """A real state table of `count` rows; every so-manieth is pending and due, the others are committed."""
    table = StateTable(directory, 2_000_000, writable=True)
    rows = np.zeros(count, ROW)
    rows["commit_log_offset"] = np.arange(count, dtype=np.int64) * 1200
    rows["size_bytes"], rows["stored_at_s"] = 1200, NOW_MS // 1000 - 3600
    rows["group_no"] = np.arange(count) % 50
    rows["word"] = pack_word(State.COMMITTED, 1)
    rows["word"][::pending_every] = pack_word(State.PREPARED)
    table.ensure(0, count)
    for start in range(0, count, 500_000):
        stop = min(start + 500_000, count)
        table.put(np.arange(start, stop), rows[start:stop])
    return table


def decide_over_scan(root: Path) -> float:
    """Deciding over 10 million rows, 1 million of them pending and due, against one bare pass that counts the pending."""
    table = _table(root / "decide", 10_000_000, 10)
    policy, live = Policy(outstanding_per_group_max=1_000_000), np.ones(50, bool)
    tick = Tick(now_ms=NOW_MS, round_no=1, round_start_ms=NOW_MS, ops_caught_up=True)

    def bare() -> float:
        def scan() -> int:
            words = (table.rows_of(number)["word"] for number in table.file_numbers())
            return sum(int(np.count_nonzero((word & 7) == State.PREPARED)) for word in words)

        return seconds(scan)

    def ours() -> float:
        def decide_all() -> None:
            outstanding, checks = np.zeros(50, np.int64), 0
            for number in table.scannable():
                decided = decide(table.rows_of(number), policy, live, tick, outstanding)
                outstanding, checks = decided.outstanding_by_group, checks + int(decided.counts[Decision.CHECK])
            assert checks == 1_000_000, checks

        return seconds(decide_all)

    bare(), ours()
    mine, scans = alternate(9, ours, bare)
    print(f"decide 10 M rows: {spread([x * 1e3 for x in mine])} ms; bare pass {spread([x * 1e3 for x in scans])} ms")
    return ratio(mine, scans)


# --- rebuild ---------------------------------------------------------------------------------------------------------------
def rebuild_entries_per_s(root: Path) -> float:
    """A store whose redo log prepares 10 million rows and ends most of them, rebuilt from nothing but that log."""
    store = root / "rebuild"
    EdgeStore(store).close()
    count, step = 10_000_000, 250_000
    directory_job = JobStore(store)
    redo: RedoLog = directory_job.redo
    marker = Marker()
    entries_total = 0
    for start in range(0, count, step):
        halves = np.zeros(step, HALF)
        halves["half_offset"] = np.arange(start, start + step)
        halves["commit_log_offset"], halves["size_bytes"] = halves["half_offset"] * 1200, 1200
        halves["stored_at_s"] = NOW_MS // 1000
        rows = rows_of_halves(halves)
        rows["word"][1::2] = pack_word(State.ROLLED_BACK)
        entries = make_images(halves["half_offset"], rows)
        marker = marker.copy()
        marker.sequence += 1
        marker.totals["prepares"] += step
        marker.totals["rollbacks"] += step // 2
        redo.append(entries, marker)
        entries_total += len(entries)
    directory_job._release_files()
    directory_job._lock.release()
    (store / "job.checkpoint").unlink()
    times = []
    for _ in range(3):
        started = time.perf_counter()
        job = JobStore(store, rebuild=True)
        times.append(time.perf_counter() - started)
        assert job.recovery.entries_replayed == entries_total
        assert job.table.pending == count // 2
        job.close()
    print(f"rebuild of {count:,} rows from {entries_total:,} entries: {spread(times)} s")
    return entries_total / statistics.median(times)


# --- bytes -----------------------------------------------------------------------------------------------------------------
def _written(edge: EdgeStore, job: JobStore) -> int:
    """Bytes appended to logs and queues so far, by their ends: whole records, also where a byte of them happens to be zero."""
    marker = job.marker
    queues = marker.check_end + marker.proposal_end + marker.discard_end + edge.half_end + edge.op_end
    topics = sum(job.catalogue.extent(key)[1] for key in job.catalogue.queue_keys())
    return edge.log.end + job.redo.end + 20 * (queues + topics)


def bytes_per_action(root: Path) -> dict[str, float]:
    """All bytes written from END to released, and for a whole check (request, hand-over, count), frames and markers included."""
    count = 20_000
    with EdgeStore(root / "bytes") as edge, JobStore(root / "bytes") as job:
        settler = Settler(job, Policy(outstanding_per_group_max=count))

        def settle() -> None:
            settler.settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), NOW_MS)

        for start in range(0, count, 1000):
            edge.prepare([Message("orders", "paid", BODY)] * 1000, NOW_MS - 60_000 + start // 1000)
        settle()
        before = _written(edge, job)
        tick = Tick(now_ms=NOW_MS, round_no=1, round_start_ms=NOW_MS, ops_caught_up=True)
        for _ in settler.check_round(tick, np.ones(1, bool)):
            pass
        assert job.marker.check_end == count
        for start in range(0, count, 1000):
            edge.append_asked(range(start, start + 1000), "member", NOW_MS)
        edge.wait(edge.log.end)
        settle()
        # A request and its count each change the row's 4-byte word in place.
        check = (_written(edge, job) - before) / count + 8
        before = _written(edge, job)
        for start in range(0, count, 1000):
            edge.end([End(number, OpKind.COMMIT, "orders") for number in range(start, start + 1000)], NOW_MS)
        settle()
        # The ends table's byte and the row's word.
        release = (_written(edge, job) - before) / count + 1 + 4
        assert job.marker.totals["commits"] == count
    return {"store.bytes_per_check": check, "store.bytes_per_release": release}


# --- memory ----------------------------------------------------------------------------------------------------------------
def rss_10m_pending(root: Path) -> float:
    """Private memory of a process that settles 10 million halves, all pending, and decides over them."""
    pid = os.fork()
    if pid == 0:
        try:
            peak = _settle_10m(root / "memory")
            (root / "memory.txt").write_text(str(peak))
            os._exit(0)
        except BaseException as error:
            print(f"memory: {error!r}", file=sys.stderr)
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError("the settling process failed")
    return float((root / "memory.txt").read_text())


def _settle_10m(store: Path) -> float:
    EdgeStore(store).close()
    job = JobStore(store)
    step, count, peak = 500_000, 10_000_000, 0.0
    for start in range(0, count, step):
        halves = np.zeros(step, HALF)
        halves["half_offset"] = np.arange(start, start + step)
        halves["commit_log_offset"], halves["size_bytes"] = halves["half_offset"] * 1200, 1200
        halves["stored_at_s"] = NOW_MS // 1000 - 3600
        batch = job.batch(half_cursor=0, op_cursor=0, now_ms=NOW_MS)
        batch.prepare(halves)
        job.commit(batch)
        peak = max(peak, private_mib())
    settler = Settler(job, Policy(outstanding_per_group_max=count))
    tick = Tick(now_ms=NOW_MS, round_no=1, round_start_ms=NOW_MS, ops_caught_up=True)
    for _ in settler.check_round(tick, np.ones(1, bool)):
        peak = max(peak, private_mib())
    assert job.marker.check_end == count
    job.close()
    return peak


def main() -> None:
    print(load())
    figures: dict[str, float] = {}
    with scratch() as root:
        figures["store.rss_mib_10m_pending"] = rss_10m_pending(root)
    with scratch() as root:
        figures.update(append_over_raw(root))
    with scratch() as root:
        figures["store.decide_over_scan"] = decide_over_scan(root)
    with scratch() as root:
        figures["store.rebuild_entries_per_s"] = rebuild_entries_per_s(root)
    with scratch() as root:
        figures.update(bytes_per_action(root))
    report(figures)


if __name__ == "__main__":
    main()
