"""Pending halves by group: exact after every kind of op, counted anew from the files while the edge goes on."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import numpy as np
import pytest

from checker.policy import Policy
from store.directory import Geometry
from store.edge import pending_counts
from store.edge.pending_counts import NEVER_S, OldestPending
from store.edge.store import EdgeStore, End
from store.job.store import JobStore
from store.messages import Message
from store.read.rows import Rows
from store.records import OpKind, Via
from streaming.settlement.settle import Settler, read_feed

T0_MS = 1_800_000_000_000
SMALL = Geometry(1 << 20, 64, 4096, 256, 256)


@pytest.fixture
def store(tmp_path):
    made = EdgeStore(tmp_path / "store", geometry=SMALL, max_body_bytes=4096)
    yield made
    made._release()


@pytest.fixture
def settle(tmp_path, store):
    """What the job does, up to the end of the log."""
    jobs: list[tuple[JobStore, Settler]] = []

    def run(now_ms=T0_MS):
        if not jobs:
            job = JobStore(tmp_path / "store")
            jobs.append((job, Settler(job, Policy())))
        job, settler = jobs[0]
        settler.settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), now_ms)

    yield run
    for job, _ in jobs:
        job.close()


def halves(store, *groups, now_ms=T0_MS, **rest):
    return store.prepare([Message(group, "t", b"x", **rest) for group in groups], now_ms)


def end(store, half_offset, kind, **rest):
    (answer,) = store.end([End(half_offset, kind, **rest)], T0_MS)
    return answer.verdict.value


def by_name(store):
    names = store.dictionary.groups
    return {names[number]: count for number, count in enumerate(store.pending.counts) if count}


def counted(store):
    store.pending.count()
    return by_name(store)


def test_every_kind_of_op(store, settle):
    store.pending.count()
    halves(store, "a", "a", "b")
    assert by_name(store) == {"a": 2, "b": 1}
    for half_offset, kind, verdict, left in (
        (0, OpKind.COMMIT, "accepted", {"a": 1, "b": 1}),
        (0, OpKind.COMMIT, "already", {"a": 1, "b": 1}),
        (0, OpKind.ROLLBACK, "conflict", {"a": 1, "b": 1}),
        (1, OpKind.RESUME, "accepted", {"a": 1, "b": 1}),
        (1, OpKind.DISCARD_MAX, "accepted", {"b": 1}),
        (1, OpKind.RESUME, "accepted", {"a": 1, "b": 1}),
        (1, OpKind.ROLLBACK, "accepted", {"b": 1}),
        (2, OpKind.DISCARD_EXPIRED, "accepted", {}),
        (9, OpKind.COMMIT, "refused", {}),
    ):
        assert end(store, half_offset, kind) == verdict
        assert by_name(store) == left
        assert counted(store) == left, "and the files say the same"
        settle()
        assert counted(store) == left, "and the job's rows too"


def test_several_words_about_one_half_in_one_batch(store):
    halves(store, "a", "a")
    store.end([End(0, OpKind.UNKNOWN, via=Via.CHECK), End(0, OpKind.COMMIT), End(0, OpKind.ROLLBACK)], T0_MS)
    assert by_name(store) == {"a": 1}
    store.end([End(1, OpKind.DISCARD_MAX), End(1, OpKind.RESUME), End(1, OpKind.COMMIT)], T0_MS)
    assert by_name(store) == {}
    assert store.pending.ended_of(0) == 2


def test_the_same_dedup_key_is_the_same_half(store):
    halves(store, "a", "a", dedup_key="k")
    halves(store, "a", dedup_key="k")
    assert by_name(store) == {"a": 1} == counted(store)


def test_ends_that_wait_for_their_flush_count(store):
    halves(store, "a", "a")
    store.append_ends([End(0, OpKind.COMMIT)], T0_MS)
    assert by_name(store) == {"a": 1} == counted(store)


def test_after_a_restart(tmp_path, store, settle):
    halves(store, *"aab" * 100)
    settle()
    halves(store, *"ccab")
    end(store, 0, OpKind.COMMIT)
    end(store, 300, OpKind.ROLLBACK)
    store._release()
    with EdgeStore(tmp_path / "store", geometry=SMALL) as again:
        assert (again.pending.known, again.pending.stale) == (False, True)
        assert counted(again) == {"a": 200, "b": 101, "c": 1}
        assert (again.pending.known, again.pending.stale) == (True, False)


def test_a_corrupt_half_is_not_pending(tmp_path, store, settle):
    halves(store, "a", "b")
    offset, _, _ = store.half_queue.entry(1)
    store.log.file.write(offset + 130, b"\xff")
    assert counted(store) == {"a": 1}
    settle()
    assert counted(store) == {"a": 1}


def test_discarding_a_half_that_has_become_unreadable_asks_for_a_count(store, settle):
    halves(store, "a", "b")
    settle()
    counted(store)
    offset, _, _ = store.half_queue.entry(1)
    store.log.file.write(offset + 130, b"\xff")
    assert by_name(store) == {"a": 1, "b": 1}
    assert end(store, 1, OpKind.DISCARD_EXPIRED) == "accepted"
    assert store.pending.stale
    assert counted(store) == {"a": 1}


@pytest.mark.parametrize("seed", range(6))
def test_counting_while_the_edge_goes_on(store, settle, monkeypatch, seed):
    print("seed", seed)
    chance = random.Random(seed)
    monkeypatch.setattr(pending_counts, "PIECE", 17)
    groups = ["a", "b", "c"]
    truth = []
    for _ in range(40):
        truth += chance.choices(groups, k=10)
        halves(store, *truth[-10:])
    if seed % 2:
        settle()
    state = [0] * len(truth)

    def act():
        kind = chance.choice([OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.RESUME, None])
        if kind is None:
            group = chance.choice(groups)
            halves(store, group)
            truth.append(group)
            state.append(0)
            return
        half_offset = chance.randrange(len(state))
        if end(store, half_offset, kind) == "accepted":
            state[half_offset] = 0 if kind == OpKind.RESUME else int(kind)

    real = Rows.groups_of

    def slow(self, half_offsets):
        time.sleep(0.002)
        return real(self, half_offsets)

    monkeypatch.setattr(Rows, "groups_of", slow)
    for _ in range(3):
        thread = threading.Thread(target=store.pending.count)
        thread.start()
        actions = 0
        while thread.is_alive():
            act()
            actions += 1
        thread.join()
        assert actions > 10
        assert by_name(store) == Counter(group for group, ended in zip(truth, state, strict=True) if not ended)


def test_closing_ends_a_count(store, monkeypatch):
    monkeypatch.setattr(pending_counts, "PIECE", 1)
    halves(store, *"a" * 200)
    thread = threading.Thread(target=store.pending.count)
    thread.start()
    store.pending.close()
    thread.join(10)
    assert not thread.is_alive()


# --- ages ---
def oldest(store, looker):
    names = store.dictionary.groups
    found = looker.sample(len(names))
    return {names[number]: int(at_s) - T0_MS // 1000 for number, at_s in enumerate(found.tolist()) if at_s != NEVER_S}


def test_the_oldest_of_each_group(store, settle):
    looker = OldestPending(store.directory)
    assert oldest(store, looker) == {}
    for number in range(200):
        halves(store, "ab"[number % 2], now_ms=T0_MS + number * 1000)
    assert oldest(store, looker) == {"a": 0, "b": 1}, "the job has read nothing yet"
    end(store, 0, OpKind.COMMIT)
    assert oldest(store, looker) == {"a": 2, "b": 1}
    settle()
    assert oldest(store, looker) == {"a": 2, "b": 1}
    for half_offset in range(2, 200, 2):
        end(store, half_offset, OpKind.COMMIT)
    assert oldest(store, looker) == {"b": 1}, "ended, and the job has not read it"
    for half_offset in range(1, 150, 2):
        end(store, half_offset, OpKind.ROLLBACK)
    settle()
    assert oldest(store, looker) == {"b": 151}
    assert looker._empty == {0, 1}, "files without anything pending are not looked at again"
    halves(store, "c", now_ms=T0_MS + 999_000)
    assert oldest(store, looker) == {"b": 151, "c": 999}
    looker.close()


def test_a_resumed_half_is_found_again(store, settle):
    looker = OldestPending(store.directory)
    halves(store, *"a" * 64)
    store.end([End(half_offset, OpKind.DISCARD_MAX) for half_offset in range(64)], T0_MS)
    settle()
    assert oldest(store, looker) == {}
    assert looker._empty == {0}
    end(store, 5, OpKind.RESUME)
    settle(T0_MS + 5_000)
    assert set(oldest(store, looker)) == {"a"}
    looker.close()


def test_many_are_looked_at_fast(store, monkeypatch):
    """The shape of ten million rows: one pass of numpy over 24 bytes a row, no object a half."""
    from store.records import ROW, State, pack_word

    rows = np.zeros(1 << 18, ROW)
    rows["word"], rows["group_no"], rows["stored_at_s"] = pack_word(State.PREPARED), np.arange(len(rows)) % 50, 7
    looker = OldestPending(store.directory)
    halves(store, *"a" * 64)
    found = np.full(50, NEVER_S, np.uint32)
    monkeypatch.setattr(looker._ends.file, "view", lambda first, size: bytes(size))
    began_s = time.perf_counter()
    assert looker._note(rows, 0, len(rows), found)
    assert time.perf_counter() - began_s < 2
    assert set(found.tolist()) == {7}
    looker.close()
