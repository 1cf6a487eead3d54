"""The edge core: acknowledged means flushed, one flush for many, refusals by role and load, ends by one rule."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ingest.capabilities import EndRequest
from ingest.errors import Closing, EdgeFailed, InvalidRequest, Overloaded, Standby, TransactionsRejected
from store.errors import BodyTooLarge, DuplicateKey, IllegalName, SegmentGone, StoreUnusable
from store.io import disk
from store.io.pages import EdgeSlot
from store.io.prefault import Runway
from store.read.readers import LogReader
from store.records import OpKind, State
from tests.support.edge_world import world


class Gate:
    """Holds every flush of the edge until it is opened: those of the thread, and those that the kernel does."""

    def __init__(self, w):
        self._open, self._flush, self._commit = threading.Event(), w.edge.store._commit._flush, w.edge.store._commit
        self.flushes = 0
        self._commit._flush = self._wait
        flusher = w.edge._committer._flusher
        self._begin, self._held = flusher and flusher.begin, []
        if flusher is not None:
            flusher.begin = self._hold

    def _wait(self):
        self._open.wait(10)
        self.flushes += 1
        self._flush()

    def _hold(self, *flush):
        self._held.append(flush)
        if self._open.is_set():
            self.open()
        return True

    def open(self):
        self._open.set()
        while self._held:
            self.flushes += 1
            self._begin(*self._held.pop(0))

    def shut(self):
        self._open.clear()


def test_an_id_is_answered_when_the_half_is_flushed(play):
    async def story(w):
        gate = Gate(w)
        sending = asyncio.ensure_future(w.half())
        await w.until(lambda: w.edge.store.half_end == 1)
        assert w.edge.store.page[EdgeSlot.HALF_END] == 0
        assert not sending.done()
        gate.open()
        id = await sending
        assert w.edge.store.page[EdgeSlot.HALF_END] == 1
        assert (await w.edge.transaction(id)).state == "PREPARED"

    play(story)


def test_the_loop_never_waits_for_the_disk(play):
    async def story(w):
        gate = Gate(w)
        sending = asyncio.ensure_future(w.half())
        await w.until(lambda: w.edge.store.half_end == 1)
        # Everything that needs no flush is served while one hangs.
        assert await w.poll(wait_s=0.01) == []
        assert (await w.edge.status())["half_end"] == 1
        gate.open()
        await sending

    play(story)


def test_many_callers_share_one_flush(play):
    async def story(w):
        gate = Gate(w)
        first = asyncio.ensure_future(w.half())
        await w.until(lambda: w.edge.store.half_end == 1)
        rest = [asyncio.ensure_future(w.half(body=b"%d" % number)) for number in range(500)]
        await asyncio.sleep(0)
        gate.open()
        ids = await asyncio.gather(first, *rest)
        assert len(set(ids)) == 501
        assert gate.flushes == 2
        gate.shut()
        ended = asyncio.ensure_future(w.end(ids[0], "commit"))
        await w.until(lambda: w.edge.store.op_end == 1)
        others = [asyncio.ensure_future(w.end(id, "commit")) for id in ids[1:]]
        await asyncio.sleep(0)
        gate.open()
        assert set(await asyncio.gather(ended, *others)) == {"accepted"}
        assert gate.flushes == 4

    play(story)


def test_answers_go_to_who_asked(play):
    """Batches of several callers are cut apart again as they came, refused ones between them."""

    async def story(w):
        gate = Gate(w)
        first = asyncio.ensure_future(w.half())
        await w.until(lambda: w.edge.store.half_end == 1)
        callers = [
            asyncio.ensure_future(w.edge.prepare([w.message(body=b"%d.%d" % (a, b)) for b in range(a % 5 + 1)])) for a in range(40)
        ]
        bad = [
            asyncio.ensure_future(w.edge.prepare([w.message(), w.message(topic="RMQ_SYS_TRANS_HALF_TOPIC")])),
            asyncio.ensure_future(w.edge.prepare([w.message(body=b"x" * 70_000)])),
        ]
        await asyncio.sleep(0)
        gate.open()
        await first
        for a, caller in enumerate(callers):
            for b, id in enumerate(await caller):
                half_offset = w.edge._sealer.open(id).half_offset
                assert w.edge.store.read_half(half_offset).body == b"%d.%d" % (a, b)
        with pytest.raises(IllegalName):
            await bad[0]
        with pytest.raises(BodyTooLarge):
            await bad[1]
        assert w.edge.store.half_end == 1 + sum(a % 5 + 1 for a in range(40)), "all or none"

    play(story)


def test_ends_go_before_halves_and_are_taken_when_halves_are_refused(play):
    async def story(w):
        id = await w.half()
        gate = Gate(w)
        held = asyncio.ensure_future(w.half())
        await w.until(lambda: w.edge.store.half_end == 2)
        halves = [asyncio.ensure_future(w.half(body=b"x" * 10_000)) for _ in range(6)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="maxQueuedSize"):
            await w.half(body=b"x" * 10_000)
        end = asyncio.ensure_future(w.end(id, "commit"))
        await asyncio.sleep(0)
        gate.open()
        assert await end == "accepted"
        await asyncio.gather(held, *halves)
        log = LogReader(w.edge.store.directory)
        op_at = int(log.op_queue.read(0, 1)["commit_log_offset"][0])
        halves_at = log.half_queue.read(2, 8)["commit_log_offset"].tolist()
        log.close()
        assert op_at < min(halves_at), "the end came last and was appended first"
        assert w.edge._committer.counters.refused_for_load == 1

    play(story, "maxQueuedSize=64KiB")


# --- settings (docs/configuration.md) at this level ---
def test_a_standby_refuses_halves_messages_ends_and_polls(play):
    async def master(w):
        ids.append(await w.half())

    async def standby(w):
        for refused in (w.half(), w.edge.send([w.message()]), w.end(ids[0], "commit"), w.poll(), w.act("resume", *ids)):
            with pytest.raises(Standby, match="role = standby"):
                await refused
        assert (await w.edge.status())["half_end"] == 1
        assert (await w.edge.transaction(ids[0])).state == "PREPARED"

    ids: list[str] = []
    play(master)
    play(standby, "role=standby")


def test_reject_transaction_message_refuses_halves_only(play):
    async def before(w):
        ids.append(await w.half())

    async def story(w):
        with pytest.raises(TransactionsRejected, match="rejectTransactionMessage"):
            await w.half()
        assert len(await w.edge.send([w.message()])) == 1
        assert await w.end(ids[0], "commit") == "accepted"
        assert await w.poll() == []

    ids: list[str] = []
    play(before)
    play(story, "rejectTransactionMessage=true")


def test_file_sizes_reach_the_store(play):
    async def story(w):
        shape = w.edge.store.directory.geometry
        assert (shape.state_segment_bytes, shape.redo_segment_bytes) == (2_400, 2_000)
        await w.half()
        w.settle()
        files = list((w.settings.store_dir / "transaction").rglob("statetable/0/*"))
        assert [file.stat().st_size for file in files] == [2_400]

    play(story, "tranStateTableMapedFileSize=2400", "tranRedoLogMapedFileSize=2000")


def test_pages_for_the_log_are_made_ready_ahead_of_it(play):
    async def story(w):
        store = w.edge.store
        for _ in range(2):  # at the beginning, and when it is used up
            store.runway.ready = 0
            await w.half()
            await w.until(lambda: not store.runway.is_short(store.log.end))
            assert store.runway.ready > store.log.end

    play(story)


def test_pages_that_cannot_be_made_ready_harm_nobody(play, monkeypatch):
    tried = []

    def extend(self, end):
        tried.append(end())
        raise RuntimeError("no")

    monkeypatch.setattr(Runway, "extend", extend)

    async def story(w):
        await w.half()
        await w.until(lambda: tried)
        await w.half()
        assert not w.edge.failed.done()
        assert len(tried) == 1

    play(story)


def test_queues_body_size_and_batch_size(play):
    async def story(w):
        await w.half(topic="new", queue_id=1)
        with pytest.raises(ValueError, match="queues 0 to 1"):
            await w.half(topic="new", queue_id=2)
        with pytest.raises(BodyTooLarge, match="maxBodySize"):
            await w.half(body=b"x" * 1025)
        with pytest.raises(InvalidRequest, match="maxMessagesPerRequest"):
            await w.edge.prepare([w.message()] * 4)
        with pytest.raises(InvalidRequest, match="at least one"):
            await w.edge.prepare([])

    play(story, "queuesPerTopic=2", "maxBodySize=1KiB", "maxMessagesPerRequest=3")


def test_dedup_window(play):
    async def story(w):
        id = await w.half(dedup_key="k")
        assert await w.half(dedup_key="k") == id
        with pytest.raises(DuplicateKey):
            await w.half(dedup_key="k", body=b"other")
        both = await asyncio.gather(w.half(dedup_key="k2"), w.half(dedup_key="k2"))
        assert both[0] == both[1]
        w.now_ms += 62_000
        assert await w.half(dedup_key="k") != id

    play(story, "dedupWindow=60s")


# --- ends ---
def test_the_rule_of_ends(play):
    async def story(w):
        a, b, c = [await w.half() for _ in range(3)]
        assert await w.end(a, "commit") == "accepted"
        assert await w.end(a, "commit") == "already"
        assert await w.end(a, "rollback") == "conflict"
        assert await w.end(b, "rollback") == "accepted"
        assert await w.end(b, "commit") == "conflict"
        assert await w.end(c, "unknown") == "accepted"
        assert await w.end(c, "unknown", from_check=True, remark="busy") == "accepted"
        w.settle()
        assert [w.row(n)[0] for n in range(3)] == [State.COMMITTED, State.ROLLED_BACK, State.PREPARED]
        assert [kind for kind, _ in w.ops()] == [OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN]

    play(story)


def test_wrong_group_forged_and_foreign_ids_change_nothing(play):
    async def story(w):
        id, _ = await w.half("Aa"), await w.half("BB")
        answers = await w.edge.end(
            [
                EndRequest(group, each, "commit")
                for group, each in (("BB", id), ("nobody", id), ("Aa", id[:-6] + "AAAAAA"), ("Aa", "x"))
            ]
        )
        assert [answer.verdict for answer in answers] == ["refused"] * 4
        assert [answer.reason.partition(":")[0] for answer in answers] == ["wrong group", "wrong group", "unknown id", "unknown id"]
        assert w.ops() == []
        with pytest.raises(InvalidRequest, match="outcome"):
            await w.end(id, "maybe", "Aa")
        assert await w.end(id, "commit", "Aa") == "accepted"

    play(story)


def test_concurrent_opposite_ends_have_one_winner(play):
    async def story(w):
        ids = [await w.half() for _ in range(20)]
        verdicts = await asyncio.gather(*[w.end(id, outcome) for id in ids for outcome in ("commit", "rollback", "commit")])
        for at in range(0, len(verdicts), 3):
            assert verdicts[at : at + 3] == ["accepted", "conflict", "already"]

    play(story)


def test_ids_of_before_a_restart_still_work(play):
    async def story(w):
        id = await w.half()
        await w.restart_edge()
        assert await w.end(id, "commit") == "accepted"
        await w.restart_edge()
        assert await w.end(id, "rollback") == "conflict"

    play(story)


# --- failure ---
def test_a_full_disk_refuses_the_caller_and_the_edge_goes_on(play):
    async def story(w):
        id = await w.half()
        disk.arm("commitlog.create", "ENOSPC")
        body = b"x" * 60_000
        sends = [w.half(body=body) for _ in range(40)]
        with pytest.raises(StoreUnusable, match="No space left"):
            await asyncio.gather(*sends)
        disk.arm(None)
        assert not w.edge.failed.done()
        assert await w.end(id, "commit") == "accepted"

    play(story)


def test_ends_with_long_remarks_are_taken_and_harm_nobody(play):
    """Together they are larger than a segment of the log, and more than go into one batch."""

    async def story(w):
        gate, long = Gate(w), "é" * 1024
        gate.open()
        chatty, quiet, many = await w.half(), await w.half(), await w.half()
        gate.shut()
        first = asyncio.ensure_future(w.end(quiet, "unknown", remark="holds the flush"))
        await w.until(lambda: w.edge.store.op_end == 1)
        told = [EndRequest("g", chatty, "unknown", remark=long)] * 400
        counted = [EndRequest("g", many, "unknown", remark="x")] * 4096
        ends = [w.edge.end(told), *[w.edge.end(counted) for _ in range(17)], w.edge.end([EndRequest("g", quiet, "commit")])]
        waiting = asyncio.gather(*ends)
        await asyncio.sleep(0)
        gate.open()
        answers = await waiting
        assert await first == "accepted"
        assert [len(each) for each in answers] == [400, *[4096] * 17, 1]
        assert {answer.verdict for each in answers for answer in each} == {"accepted"}
        assert answers[-1][0].state == "COMMITTED"

    play(story)


def test_properties_count_as_waiting(play):
    async def story(w):
        gate = Gate(w)
        heavy = asyncio.ensure_future(w.half(body=b"", properties={"a": "x" * 30_000}))
        await asyncio.sleep(0)
        assert w.edge.counts()["queued_bytes"] > 30_000
        gate.open()
        await heavy
        assert w.edge.counts()["queued_bytes"] == 0

    play(story)


def test_a_file_that_retention_took_does_not_end_the_edge(play):
    async def story(w):
        await w.half()
        log = LogReader(w.edge.store.directory)
        with pytest.raises(SegmentGone, match="does not exist"):
            await w.edge._committer.call(lambda: log.op_queue.entry(1 << 30))
        log.close()
        await w.half()
        assert not w.edge.failed.done()

    play(story)


def test_a_failed_flush_ends_the_edge(tmp_path):
    async def story(w):
        id = await w.half()
        disk.arm("commitlog.flush", "EIO")
        with pytest.raises(EdgeFailed, match="nothing is known"):
            await w.half()
        disk.arm(None)
        assert "Input/output error" in await w.edge.failed
        with pytest.raises(EdgeFailed):
            await w.end(id, "commit")

    async def run():
        made = world(tmp_path / "data")
        w = await made.__aenter__()
        await story(w)
        w.job.close()
        with pytest.raises(StoreUnusable):
            await w.edge.close()
        # Opened again, it recovers: what was acknowledged is there.
        await w.open_edge()
        assert w.edge.store.half_end >= 1
        await w.edge.close()

    asyncio.run(run())


def test_a_caller_that_goes_away_harms_nobody(play):
    async def story(w):
        gate = Gate(w)
        gone = asyncio.ensure_future(w.half())
        await w.until(lambda: w.edge.store.half_end == 1)
        gone.cancel()
        stays = asyncio.ensure_future(w.half())
        gate.open()
        await stays
        assert w.edge.store.half_end == 2

    play(story)


def test_closing_finishes_what_was_accepted(tmp_path):
    async def run():
        made = world(tmp_path / "data")
        w = await made.__aenter__()
        gate = Gate(w)
        sending = [asyncio.ensure_future(w.half()) for _ in range(10)]
        await asyncio.sleep(0)
        w.edge.stop()
        with pytest.raises(Closing):
            await w.half()
        w.job.close()
        closing = asyncio.ensure_future(w.edge.close())
        gate.open()
        await closing
        assert len(set(await asyncio.gather(*sending))) == 10
        await w.open_edge()
        assert w.edge.store.recovery.clean
        assert w.edge.store.half_end == 10
        await w.edge.close()

    asyncio.run(run())


def test_heartbeat_and_the_job_is_woken(play):
    from store.io.wakeup import JOB_WAKE, Sleeper

    async def story(w):
        sleeper = Sleeper(w.settings.store_dir / JOB_WAKE)
        await w.half()
        assert sleeper.wait(5)
        sleeper.close()
        assert w.edge.store.page[EdgeSlot.HEARTBEAT_MS] == w.now_ms

    play(story)
