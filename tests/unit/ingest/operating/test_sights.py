"""What an operator is told: one judgement of health, causes, why a transaction is in doubt, ends that were not taken."""

from __future__ import annotations

import asyncio
import threading

from ingest.operating.listings import Listings, Query
from ingest.operating.operator import Action
from ingest.recent import Recent
from store.messages import Message
from tests.support.edge_world import world


def play(tmp_path, story, *flags):
    async def run():
        async with world(tmp_path / "data", *flags) as w:
            await story(w)

    asyncio.run(run())


async def sent(w, group, *keys):
    messages = [Message(group, "t", b"body", {"KEYS": key}) for key in keys]
    return dict(zip(keys, await w.edge.prepare(messages), strict=True))


async def judged(w):
    return {(each.kind, each.subject): each for each in (await w.edge.operations.overview.answer())["findings"]}


# --- shared findings -------------------------------------------------------------------------------------------------------
def test_whoever_asks_while_it_is_found_out_gets_that_finding():
    async def story():
        started, count, go_on = asyncio.Event(), 0, asyncio.Event()

        async def find():
            nonlocal count
            count += 1
            started.set()
            await go_on.wait()
            return count

        recent = Recent(find, lambda: 0.0, 1.0)
        first = asyncio.create_task(recent.get())
        await started.wait()
        second, third = asyncio.create_task(recent.get()), asyncio.create_task(recent.get())
        await asyncio.sleep(0)
        third.cancel()
        go_on.set()
        assert [await first, await second, await recent.get()] == [1, 1, 1]

    asyncio.run(story())


def test_an_error_is_told_to_all_who_wait_and_the_next_one_tries_again():
    async def story():
        answers = iter([ValueError("no"), 7])

        async def find():
            await asyncio.sleep(0)
            if isinstance(found := next(answers), ValueError):
                raise found
            return found

        recent = Recent(find, lambda: 0.0, 1.0)
        told = await asyncio.gather(recent.get(), recent.get(), return_exceptions=True)
        assert [str(each) for each in told] == ["no", "no"]
        assert await recent.get() == 7

    asyncio.run(story())


def test_a_summary_under_way_is_what_the_next_caller_gets(tmp_path, monkeypatch):
    """It was stamped before it was counted: a caller in between got the one of long ago."""

    async def story(w):
        clock, gate, counting = [100.0], threading.Event(), threading.Event()
        listings = Listings(w.edge.store, w.edge._sealer, lambda: w.now_ms, lambda: clock[0])
        real = listings._count

        def slow():
            counting.set()
            assert gate.wait(30)
            return real()

        try:
            old = await listings.summary()
            await w.half()
            clock[0] += 3600
            monkeypatch.setattr(listings, "_count", slow)
            first = asyncio.create_task(listings.summary())
            await asyncio.to_thread(counting.wait, 30)
            second = asyncio.create_task(listings.summary())
            await asyncio.sleep(0)
            gate.set()
            assert await second is await first is not old
            assert (await second).pending.sum() == 1
        finally:
            gate.set()
            await listings.close()

    play(tmp_path, story)


# --- health ----------------------------------------------------------------------------------------------------------------
def test_a_group_that_nobody_can_be_asked_for_is_not_well(tmp_path):
    async def story(w):
        await sent(w, "payments-eu", "a", "b", "c")
        w.now_ms += w.settings.transaction_timeout_ms + 1
        found = (await judged(w))["nobody_online", "payments-eu"]
        assert (found.severity, found.count, found.text) == ("bad", 3, "3 in doubt, nobody online")
        assert (found.runbook, found.page) == ("EscrowGroupWithoutMember", "group/payments-eu")
        assert (await w.edge.operations.overview.answer())["health"] == "bad"

    play(tmp_path, story)


def test_check_now_with_nobody_online_is_queued_and_says_why(tmp_path):
    async def story(w):
        ids = await sent(w, "g", "a", "b")
        w.settle()
        done = await w.edge.act(Action("check", "ada", "r", filter=Query(group="g"), expect=2))
        assert (done.counts["queued"], done.counts["accepted"]) == (2, 0)
        assert [(each.result, each.count, each.detail) for each in done.reasons] == [
            ("queued", 2, "no member of g is online: the first one that comes is asked")
        ]
        explained = await w.edge.operations.explain(ids["a"])
        assert explained.queued_check
        assert "queued" in " ".join(explained.why)
        await w.poll("g", "worker-1")
        assert not (await w.edge.operations.explain(ids["a"])).queued_check

    play(tmp_path, story)


# --- causes ----------------------------------------------------------------------------------------------------------------
def test_halves_in_doubt_are_folded_by_cause_and_acted_on_as_one(tmp_path):
    async def story(w):
        ids = await sent(w, "g", "a", "b", "c")
        await sent(w, "alone", "z")
        await w.poll("g", "worker-1")
        w.settle()
        for number, key in enumerate("ab"):
            await w.end(ids[key], "unknown", from_check=True, remark=f"row {number} is missing")
        w.settle()
        await w.until(lambda: w.edge.listings._answers is not None and w.edge.listings._answers.last(0) is not None)
        w.edge.listings._summary = Recent(w.edge.listings._counted_now, lambda: 0.0, 0.0)
        causes = {(each.group, each.cause): each.count for each in await w.edge.listings.causes("pending")}
        assert causes == {("g", "unknown:row # is missing"): 2, ("g", "unasked"): 1, ("alone", "unasked"): 1}
        page = await w.edge.listings.page(Query(cause="unknown:row # is missing"), 10, False, "")
        assert [(each.key, each.remark) for each in page.transactions] == [("a", "row 0 is missing"), ("b", "row 1 is missing")]
        alone = await w.edge.listings.page(Query(online=False), 10, False, "")
        assert [each.key for each in alone.transactions] == ["z"]
        done = await w.edge.act(Action("rollback", "ada", "r", filter=Query(cause="unknown:row # is missing"), expect=2))
        assert done.counts["accepted"] == 2

    play(tmp_path, story)


# --- why -------------------------------------------------------------------------------------------------------------------
def test_why_it_is_still_in_doubt(tmp_path):
    async def story(w):
        id = await w.half()
        w.settle()
        found = await w.edge.operations.explain(id)
        assert found.members == []
        assert "No member of g is online" in " ".join(found.why)
        assert found.next_check_ms is None
        await w.poll("g", "worker-1")
        await w.end(id, "unknown", from_check=True, remark="the bank is closed")
        found = await w.edge.operations.explain(id)
        assert found.members == ["worker-1"]
        assert found.last_answer is not None
        assert (found.last_answer.remark, found.attempts_max) == ("the bank is closed", w.settings.check_count_max)
        assert found.commit.startswith("releases the message to")
        await w.end(id, "commit")
        found = await w.edge.operations.explain(id)
        assert found.why == ["It is not in doubt: it was committed."]
        assert found.rollback.startswith("nothing: rollback would be conflict")

    play(tmp_path, story)


# --- ends that were not taken -----------------------------------------------------------------------------------------------
def test_a_contradicting_end_is_kept_listed_and_survives_a_restart(tmp_path):
    async def first(w):
        id = await w.half()
        assert await w.end(id, "commit") == "accepted"
        assert await w.end(id, "rollback", from_check=True, remark="I guessed") == "conflict"
        await w.act("rollback", id)
        await look(w, id)
        kept.append(id)

    async def look(w, id):
        history = (await w.edge.transaction(id)).history
        said = [(each.event, each.by, each.remark) for each in history if each.event == "conflict"]
        assert said == [
            ("conflict", "check", "rollback conflict: it is committed. I guessed"),
            ("conflict", "operator", "rollback conflict: it is committed. a test"),
        ]
        (by_producer,) = w.edge.contradictions.page(10, group="g", by="producer")
        assert (by_producer.said, by_producer.state, by_producer.remark) == ("rollback", "COMMITTED", "I guessed")
        (by_operator,) = w.edge.contradictions.page(10, by="operator")
        assert by_operator.who == "ada"
        assert (await judged(w))["conflicts", "g"].count == 1, "the operator's own is not counted"

    async def again(w):
        await w.until(lambda: len(w.edge.contradictions.page(10)) == 2)
        await look(w, kept[0])

    kept: list[str] = []
    play(tmp_path, first)
    play(tmp_path, again)


def test_a_storm_of_conflicts_does_not_fill_the_audit(tmp_path):
    async def story(w):
        id = await w.half()
        await w.end(id, "commit")
        for _ in range(100):
            assert await w.end(id, "rollback") == "conflict"
        await w.edge.contradictions.write(minute_over=True)
        records, _ = await w.edge.operations.audited(1000)
        assert len(records) == 21
        assert records[0].counts == {"conflict": 80}
        assert len(w.edge.contradictions.of(0)) == 16

    play(tmp_path, story)
