"""Check delivery, discards and quarantine: what the edge makes of the job's queues."""

from __future__ import annotations

import asyncio

import pytest

from ingest.capabilities import EndRequest
from ingest.errors import InvalidRequest
from store.errors import Corrupt
from store.records import OpKind, State
from store.tables.presence import Presence


async def due(w, count=1, group="g"):
    """Halves that are asked about in a round that has just begun; their ids."""
    ids = [await w.half(group) for _ in range(count)]
    await w.poll(group)
    w.now_ms += 10_000
    await w.poll(group)
    w.round(after_ms=1_000)
    await w.waiting(count)
    return ids


def test_a_request_carries_the_half(play):
    async def story(w):
        id = await w.half(body=b"hello", properties={"KEYS": "order-1", "x": "y"}, topic="orders")
        await w.poll()
        w.round(after_ms=10_000)
        await w.waiting(1)
        async with w.edge.poll_checks("g", "m") as handover:
            (request,) = handover.requests
            assert w.edge.id_of(request) == id
            assert request.frame.body == b"hello"
            assert request.frame.properties["x"] == "y"
            assert request.attempt == 1
        assert await w.end(id, "commit", from_check=True) == "accepted"

    play(story)


def test_asked_is_recorded_when_the_answer_was_written(play):
    async def story(w):
        await due(w)
        async with w.edge.poll_checks("g", "m") as handover:
            assert len(handover.requests) == 1
            await asyncio.sleep(0)
            assert w.ops() == []
        await w.until(lambda: w.ops() == [(OpKind.ASKED, 0)])
        assert w.row(0) == (State.PREPARED, 1)

    play(story)


def test_a_failed_answer_goes_to_another_member_and_counts_once(play):
    async def story(w):
        (id,) = await due(w)
        with pytest.raises(ConnectionResetError):
            async with w.edge.poll_checks("g", "first"):
                raise ConnectionResetError
        assert await w.poll(member="second") == [id]
        await w.until(lambda: w.ops() == [(OpKind.ASKED, 0)])
        assert w.row(0) == (State.PREPARED, 1)

    play(story)


def test_one_member_in_a_round(play):
    async def story(w):
        ids = await due(w, 50)
        polls = await asyncio.gather(*[w.poll(member=f"m{number}", count=7) for number in range(20)])
        assert sorted(id for poll in polls for id in poll) == sorted(ids)
        assert await w.poll() == []

    play(story)


def test_a_request_goes_to_its_own_group(play):
    async def story(w):
        a, b = await w.half("Aa"), await w.half("BB")
        for group in ("Aa", "BB"):
            await w.poll(group)
        w.round(after_ms=10_000)
        await w.waiting(2)
        assert await w.poll("BB") == [b]
        assert await w.poll("Aa") == [a]
        assert await w.poll("stranger") == []

    play(story)


def test_a_long_poll_is_woken(play):
    async def story(w):
        id = await w.half()
        polling = asyncio.ensure_future(w.poll(wait_s=20))
        other = asyncio.ensure_future(w.poll(member="other", wait_s=20))
        await w.until(lambda: w.edge._checks.figures()["polls_waiting"] == 2)
        w.round(after_ms=10_000)
        assert await asyncio.wait_for(polling, 5) == [id], "who waited longest"
        assert not other.done()
        w.edge.stop()
        assert await asyncio.wait_for(other, 5) == []

    play(story)


def test_what_is_left_wakes_the_next(play):
    async def story(w):
        ids = [await w.half() for _ in range(4)]
        polls = [asyncio.ensure_future(w.poll(member=f"m{n}", count=2, wait_s=20)) for n in range(2)]
        await w.until(lambda: w.edge._checks.figures()["polls_waiting"] == 2)
        w.round(after_ms=10_000)
        assert await asyncio.wait_for(asyncio.gather(*polls), 5) == [ids[:2], ids[2:]]

    play(story)


def test_a_member_that_hung_up_is_passed_over(play):
    async def story(w):
        id = await w.half()
        gone = asyncio.ensure_future(w.poll(wait_s=20))
        stays = asyncio.ensure_future(w.poll(member="stays", wait_s=20))
        await w.until(lambda: w.edge._checks.figures()["polls_waiting"] == 2)
        gone.cancel()
        w.round(after_ms=10_000)
        assert await asyncio.wait_for(stays, 5) == [id]

    play(story)


def test_lapsed_requests_are_not_handed_over(play):
    async def story(w):
        (id,) = await due(w)
        w.now_ms += 30_000
        await w.poll("nobody")
        w.edge._checks.seen("g", "m", "poll")
        w.round(after_ms=0)
        w.round(after_ms=0)
        await w.until(lambda: w.edge._checks.lapsed >= 1)
        w.edge._checks.seen("g", "m", "poll")
        w.round()
        await w.waiting(1)
        assert await w.poll() == [id]
        await w.until(lambda: len(w.ops()) == 1)

    play(story)


def test_a_half_that_ended_meanwhile_is_not_asked_about(play):
    async def story(w):
        ended, open_ = await due(w, 2)
        assert await w.end(ended, "commit") == "accepted"
        assert await w.poll() == [open_]

    play(story)


def test_an_unreadable_half_does_not_stop_the_rest(play):
    async def story(w):
        _, good = await due(w, 2)
        read = w.edge._checks._log.log.read
        bad = int(w.edge.store.half_queue.read(0, 1)["commit_log_offset"][0])

        def fail(offset, size):
            if offset == bad:
                raise Corrupt("f", offset, "rotten")
            return read(offset, size)

        w.edge._checks._log.log.read = fail
        assert await w.poll() == [good]
        assert w.edge._checks.unreadable == 1

    play(story)


@pytest.mark.parametrize("handed", [0, 1, 3])
def test_a_restarted_edge_asks_nobody_twice_in_a_round(play, handed):
    async def story(w):
        ids = await due(w, 3)
        got = await w.poll(count=handed) if handed else []
        await w.until(lambda: len(w.ops()) == len(got))
        await w.restart_edge()
        await w.waiting(3 - handed)
        assert got + await w.poll() == ids

    play(story)


def test_the_bytes_of_an_answer_are_bounded(play):
    async def story(w):
        ids = [await w.half(body=b"x" * 30_000) for _ in range(5)]
        await w.poll()
        w.round(after_ms=10_000)
        await w.waiting(5)
        assert await w.poll(count=5) == ids[:2]

    play(story, "maxRequestSize=130KiB")


def test_limits_of_a_poll(play):
    async def story(w):
        ids = await due(w, 5)
        assert await w.poll(count=100) == ids[:3]
        began = asyncio.get_running_loop().time()
        assert await w.poll("nobody", wait_s=1000) == []
        assert asyncio.get_running_loop().time() - began < 5
        for bad in ({"member": ""}, {"member": "x" * 200}, {"count": 0}, {"wait_s": -1}):
            with pytest.raises(InvalidRequest):
                await w.poll(**bad)

    play(story, "checksPerPollMax=3", "pollWaitMax=50ms")


# --- presence ---
def test_polling_makes_a_group_live_and_silence_ends_it(play):
    async def story(w):
        await w.half()
        presence = Presence(w.settings.store_dir / "presence")
        assert presence.live(w.now_ms, 5_000, 1).tolist() == [False]
        await w.poll()
        assert presence.live(w.now_ms, 5_000, 1).tolist() == [True]
        w.now_ms += 5_001
        assert presence.live(w.now_ms, 5_000, 1).tolist() == [False]
        w.round(after_ms=10_000)
        assert w.job.marker.check_end == 0, "nobody live: held"

    play(story, "presenceTtl=5s")


def test_a_waiting_poll_keeps_its_group_live(play):
    async def story(w):
        await w.half()
        polling = asyncio.ensure_future(w.poll(wait_s=20))
        presence = Presence(w.settings.store_dir / "presence")
        await w.until(lambda: presence.live(w.now_ms, 1_000, 1)[0])
        w.now_ms += 10_000
        await w.until(lambda: presence.live(w.now_ms, 1_000, 1)[0])
        polling.cancel()

    play(story, "presenceTtl=1s")


def test_a_group_without_halves_gets_no_number(play):
    async def story(w):
        assert await w.poll("stranger") == []
        assert w.edge.store.dictionary.groups == []

    play(story)


# --- settings (docs/configuration.md) ---
def test_check_transaction_message_enable(play):
    async def story(w):
        await w.half()
        await w.poll()
        w.round(after_ms=10_000)
        assert w.job.marker.check_end == 0

    async def leftovers(w):
        """Requests that were written before checks were switched off are not handed over either."""
        await due(w)

    async def off(w):
        w.wake()
        assert await w.poll(wait_s=0.05) == []

    play(story, "checkTransactionMessageEnable=false", place="1")
    play(leftovers, place="2")
    play(off, "checkTransactionMessageEnable=false", place="2")


def test_transaction_timeout_and_immunity(play):
    async def story(w):
        await w.half()
        longer = await w.half(immunity_s=100)
        await w.poll()
        w.round(after_ms=20_000)
        assert w.job.marker.check_end == 0, "age = timeout: not yet"
        w.edge._checks.seen("g", "m", "poll")
        w.round(after_ms=1_000)
        await w.waiting(1)
        await w.poll()
        w.now_ms += 79_000
        w.edge._checks.seen("g", "m", "poll")
        w.round(after_ms=1_000)
        await w.until(lambda: w.edge._checks.figures()["requests_waiting"] == 2)
        assert longer in await w.poll()

    play(story, "transactionTimeOut=20s")


def test_unknown_for_ever_is_asked_check_max_times_then_discarded(play):
    async def story(w):
        id = await w.half()
        asked = 0
        for _ in range(12):
            w.edge._checks.seen("g", "m", "poll")
            w.round()
            await asyncio.sleep(0.01)
            for each in await w.poll():
                asked += 1
                assert await w.end(each, "unknown", from_check=True) == "accepted"
            w.settle()
        assert asked == 3
        await w.until(lambda: w.edge._followers.discarded == 1)
        assert w.row(0)[0] == State.DISCARDED_MAX
        (answer,) = await w.edge.end([EndRequest("g", id, "commit")])
        assert (answer.verdict, answer.reason) == ("refused", "discarded")

    play(story, "transactionCheckMax=3")


def test_file_reserved_time_discards_as_expired(play):
    async def story(w):
        await w.half()
        w.round(after_ms=2 * 3_600_000)
        assert w.row(0)[0] == State.PREPARED
        w.round(after_ms=2_000)
        await w.until(lambda: w.edge._followers.discarded == 1)
        assert w.row(0)[0] == State.DISCARDED_EXPIRED

    play(story, "fileReservedTime=2")


# --- proposals ---
def test_a_half_that_ended_before_the_proposal_came_is_not_discarded(play):
    async def story(w):
        id = await w.half()
        assert await w.end(id, "commit") == "accepted"
        w.now_ms += 3 * 3_600_000
        w.settler.settle(_only_halves(w), w.now_ms)
        _round_only(w)
        await w.until(lambda: w.edge._followers.passed_over == 1)
        assert w.row(0)[0] == State.COMMITTED

    play(story, "fileReservedTime=2")


def test_a_proposal_older_than_a_resume_is_passed_over(play):
    async def story(w):
        id = await w.half()
        w.settle()
        w.now_ms += 3 * 3_600_000
        # The operator resumes; the job has not read that yet and proposes on what it knows.
        assert await w.act("resume", id) == ["accepted"]
        _round_only(w)
        await w.until(lambda: w.edge._followers.passed_over == 1)
        assert w.row(0) == (State.PREPARED, 0)
        # Once the job has read it, and the half is old again, a proposal counts.
        w.round(after_ms=0)
        await w.until(lambda: not w.edge._followers._resumed)
        w.round(after_ms=3 * 3_600_000)
        w.round()
        await w.until(lambda: w.edge._followers.discarded == 1)
        assert w.row(0)[0] == State.DISCARDED_EXPIRED

    play(story, "fileReservedTime=2")


def test_a_restarted_edge_remembers_the_resume(play):
    async def story(w):
        id = await w.half()
        w.settle()
        w.now_ms += 3 * 3_600_000
        await w.act("resume", id)
        await w.edge.close()
        _round_only(w)
        await w.open_edge()
        await w.until(lambda: w.edge._followers.passed_over == 1)
        assert w.row(0) == (State.PREPARED, 0)

    play(story, "fileReservedTime=2")


def test_resume_after_discard(play):
    async def story(w):
        id = await w.half()
        w.round(after_ms=2 * 3_600_000 + 2_000)
        await w.until(lambda: w.edge._followers.discarded == 1)
        w.settle()
        assert sorted(await w.act("resume", id, "junk")) == ["accepted", "refused"]
        assert w.row(0) == (State.PREPARED, 0)
        assert await w.end(id, "commit") == "accepted"
        assert w.row(0)[0] == State.COMMITTED

    play(story, "fileReservedTime=2")


def test_a_corrupt_op_reopens_its_half(play):
    async def story(w):
        a, b = await w.half(), await w.half()
        assert await w.end(a, "commit") == "accepted"
        assert await w.end(b, "rollback") == "accepted"
        entry = w.edge.store.op_queue.read(0, 1)[0]
        segment = w.edge.store.log.file.segment(0)
        with open(segment.path, "r+b") as file:
            file.seek(int(entry["commit_log_offset"]) + 40)
            file.write(b"\xff\xff")
        w.settle()
        w.wake()
        await w.until(lambda: w.edge._followers.reopened == 1)
        assert w.edge.store.end_of(0) == 0
        assert w.edge.store.end_of(1) == State.ROLLED_BACK
        assert await w.end(a, "commit") == "accepted", "check-back may settle it"
        assert w.row(0)[0] == State.COMMITTED

    play(story)


def test_retention_deletes_behind_the_jobs_mark(play):
    async def story(w):
        for _ in range(60):
            id = await w.half(body=b"x" * 60_000)
            await w.end(id, "rollback")
        w.settle()
        w.now_ms += 3 * 3_600_000
        assert not any((await w.edge.retain()).values())
        w.settle()
        w.job.retain(w.now_ms, w.settings.retention_ms)
        removed = await w.edge.retain()
        assert removed["commitlog"] >= 2
        assert await w.half()

    play(story, "fileReservedTime=2")


def _only_halves(w):
    from streaming.settlement.settle import Feed

    log, marker = w.job.log, w.job.marker
    stop = log.ends()[0]
    return Feed(marker.half_cursor, stop, marker.op_cursor, marker.op_cursor, log.halves(marker.half_cursor, stop))


def _round_only(w):
    """A round of a job that has not read the newest ops."""
    import numpy as np

    from checker.decisions import Tick

    tick = Tick(w.now_ms, w.job.marker.round_no + 1, w.now_ms, ops_caught_up=True)
    for _ in w.settler.check_round(tick, np.zeros(8, bool)):
        pass
    w.wake()


def test_an_edge_that_is_older_than_the_first_state_file_sees_it(play):
    """The edge opens the job's files while there are none yet; those made later must be found."""

    async def story(w):
        w.wake()
        await w.until(lambda: w.edge._checks._topics is not None)
        id = await w.half()
        await w.poll()
        w.round(after_ms=10_000)
        assert await asyncio.wait_for(w.poll(wait_s=10), 10) == [id]
        for _ in range(1_200):  # and the next state file too
            await w.half()
        w.edge._checks.seen("g", "m", "poll")
        w.round()
        await w.waiting(1_201)

    play(story)


def test_a_loop_that_breaks_ends_the_edge(play):
    async def story(w):
        def broken():
            raise RuntimeError("a defect")

        w.edge._checks.look = broken
        w.wake()
        assert await asyncio.wait_for(w.edge.failed, 5) == "RuntimeError: a defect"

    play(story)


def test_a_discard_that_cannot_be_stored_leaves_the_half_pending_and_is_tried_again(play):
    from store.io import disk

    async def story(w):
        await w.half()
        for _ in range(16):  # up to the brink of a segment, so that the op needs a new one
            await w.half(body=b"x" * 62_000)
        left = w.edge.store.log.segment_bytes - w.edge.store.log.end % w.edge.store.log.segment_bytes
        await w.half(body=b"x" * (left - 240))
        disk.arm("commitlog.create", "ENOSPC")
        w.round(after_ms=2 * 3_600_000 + 2_000)
        await w.until(lambda: "No space left" in w.edge.trouble)
        assert not w.edge.failed.done()
        assert w.row(0)[0] == State.PREPARED
        disk.arm(None)
        await w.until(lambda: w.edge._followers.discarded == 18)
        await w.until(lambda: w.edge.trouble == "")
        assert w.row(0)[0] == State.DISCARDED_EXPIRED

    play(story, "fileReservedTime=2")
