"""Operators: lists by any filter, actions by ids and by filter, check now, the audit log, groups and topics."""

from __future__ import annotations

from contextlib import closing

import pytest

from ingest.errors import InvalidRequest, MatchedMore, Standby
from ingest.operating.listings import Listings, Query
from ingest.operating.operator import Action
from store.errors import StoreError
from store.inspect.verify.store import verify
from store.io import disk
from store.messages import Message
from store.records import OpKind, State
from store.tables.journals.audit import Audit, AuditRecord


async def listed(w, limit=1000, newest=False, **query):
    """Keys of all that is found, page by page."""
    found, at = [], ""
    while True:
        page = await w.edge.listings.page(Query(**query), limit, newest, at)
        found += [each.key for each in page.transactions]
        if page.following is None:
            return found
        at = page.following


async def sent(w, group, topic, *keys):
    messages = [Message(group, topic, b"body", {"KEYS": key} if key else {}) for key in keys]
    return dict(zip(keys, await w.edge.prepare(messages), strict=True))


async def discarded(w, *keys, group="g"):
    """Halves that nobody was asked about until they were too old."""
    ids = await sent(w, group, "t", *keys)
    before = w.edge._followers.discarded
    w.round(after_ms=3 * 3_600_000)
    await w.until(lambda: w.edge._followers.discarded == before + len(keys))
    w.settle()
    return ids


SHORT = "fileReservedTime=2"


# --- lists ------------------------------------------------------------------------------------------------------------------
def test_a_list_by_state_group_topic_key_and_text(play):
    async def story(w):
        ids = await sent(w, "orders", "order-placed", "a-1", "a-2", "b-1", "")
        ids |= await sent(w, "stock", "stock-moved", "c-1")
        assert await listed(w) == ["a-1", "a-2", "b-1", "", "c-1"]
        assert await listed(w, newest=True) == ["c-1", "", "b-1", "a-2", "a-1"]
        assert await listed(w, group="orders", limit=1) == ["a-1", "a-2", "b-1", ""]
        assert await listed(w, topic="stock-moved") == ["c-1"]
        assert await listed(w, group="nobody") == await listed(w, topic="nowhere") == []
        assert await listed(w, key="a-2") == ["a-2"]
        assert await listed(w, key="") == [""]
        assert await listed(w, q="a-") == ["a-1", "a-2"]
        assert await listed(w, q="stock") == ["c-1"]
        assert await listed(w, q=ids["b-1"]) == ["b-1"]
        await w.end(ids["a-1"], "commit", group="orders")
        await w.end(ids["c-1"], "rollback", group="stock")
        assert await listed(w) == ["a-2", "b-1", ""]
        assert await listed(w, q=ids["a-1"]) == []
        assert await listed(w, state="committed") == ["a-1"]
        assert await listed(w, state="rolled_back") == ["c-1"]
        assert await listed(w, state="settled", newest=True) == ["c-1", "a-1"]
        assert await listed(w, state="settled", key="c-1") == await listed(w, state="any", q="stock") == ["c-1"]
        assert await listed(w, state="any", limit=2) == ["a-1", "a-2", "b-1", "", "c-1"]

    play(story)


def test_a_list_by_age_time_and_attempts(play):
    async def story(w):
        began_ms = w.now_ms
        await sent(w, "g", "t", "old")
        w.now_ms += 60_000
        await sent(w, "g", "t", "young")
        assert await listed(w, age_min_s=60) == await listed(w, until_ms=began_ms) == ["old"]
        assert await listed(w, age_max_s=59) == await listed(w, since_ms=began_ms + 1) == ["young"]
        assert await listed(w, state="any", since_ms=began_ms + 1) == ["young"]
        await w.poll()
        w.round(after_ms=1_000)
        await w.waiting(1)
        await w.poll()
        await w.until(lambda: len(w.ops()) == 1)
        assert w.row(0) == (State.PREPARED, 1)
        assert await listed(w, attempts_min=1) == ["old"]
        assert await listed(w, attempts_max=0) == ["young"]
        page = await w.edge.listings.page(Query(), 10, False, "")
        assert [(each.attempts, each.outstanding) for each in page.transactions] == [(1, True), (0, False)]
        assert [each.age_s for each in page.transactions] == [61, 1]

    play(story)


def test_the_row_of_a_list(play):
    async def story(w):
        (id,) = await w.edge.prepare([Message("g", "t", b"x", {"KEYS": "k", "TAGS": "a"}, born_at_ms=5, immunity_s=60)])
        w.now_ms += 1500
        await w.end(id, "commit")
        w.now_ms += 9000
        (found,) = (await w.edge.listings.page(Query(state="any"), 10, False, "")).transactions
        assert (found.id, found.group, found.topic, found.key, found.tags) == (id, "g", "t", "k", "a")
        assert (found.state, found.reason, found.born_at_ms, found.immunity_s) == ("committed", None, 5, 60)
        assert (found.stored_at_ms, found.settled_at_ms, found.age_s) == (w.now_ms - 10_500, w.now_ms - 9000, 1)

    play(story)


def test_discards_are_listed_with_their_reason(play):
    async def story(w):
        await discarded(w, "a", "b")
        page = await w.edge.listings.page(Query(state="discarded"), 10, False, "")
        assert [(each.key, each.state, each.reason) for each in page.transactions] == [
            ("a", "discarded", "expired"),
            ("b", "discarded", "expired"),
        ]
        assert (page.matched, page.following) == (2, None)
        assert await listed(w) == []

    play(story, SHORT)


def test_keys_that_are_longer_than_the_index_keeps(play):
    async def story(w):
        long = "ö" * 200
        await sent(w, "g", "t", long + "1", long + "2", long)
        await w.edge.listings._threads.call(w.edge.listings._follow)
        assert await listed(w, key=long + "1") == [long + "1"]
        assert await listed(w, key=long) == [long]
        assert await listed(w, q="ööö") == [long + "1", long + "2", long]

    play(story)


def test_a_page_that_has_worked_long_enough_says_where_to_go_on(play, monkeypatch):
    monkeypatch.setattr("ingest.operating.listings.SCAN_S", 0.0)
    monkeypatch.setattr("store.edge.listing.half_files.SCAN_OFFSETS", 16)

    async def story(w):
        keys = [f"k{number}" for number in range(100)]
        ids = await sent(w, "g", "t", *keys)
        for key in keys[::2]:
            await w.end(ids[key], "commit")
        for newest in (False, True):
            page = await w.edge.listings.page(Query(state="settled", key="k50"), 10, newest, "")
            assert (page.transactions, page.matched) == ([], None)
            assert page.following is not None
            assert await listed(w, state="settled", key="k50", newest=newest) == ["k50"]
            assert sorted(await listed(w, newest=newest, limit=7)) == sorted(keys[1::2])

    play(story)


def test_the_index_is_there_again_after_a_restart_and_the_count_is_exact(play):
    async def story(w):
        ids = await sent(w, "g", "t", *[f"k{number}" for number in range(50)])
        await w.end(ids["k7"], "rollback")
        await w.restart_edge()
        await w.edge.listings._threads.call(w.edge.listings._follow)
        assert len(w.edge.listings._open().index) == 49
        page = await w.edge.listings.page(Query(q="k"), 3, False, "")
        assert ([each.key for each in page.transactions], page.matched) == (["k0", "k1", "k2"], 49)

    play(story)


def test_an_end_that_was_taken_back_is_listed_again(play):
    async def story(w):
        ids = await sent(w, "g", "t", "a")
        await w.end(ids["a"], "commit")
        await w.edge.listings._threads.call(w.edge.listings._follow)
        assert len(w.edge.listings._open().index) == 0
        offset, _, _ = w.edge.store.op_queue.entry(0)
        with open(w.edge.store.log.file.segment(0).path, "r+b") as file:
            file.seek(offset + 40)
            file.write(b"\xff\xff")
        w.settle()
        w.wake()
        await w.until(lambda: w.edge._followers.reopened == 1)
        await w.edge.listings._threads.call(w.edge.listings._follow)
        assert await listed(w) == ["a"]

    play(story)


def test_large_bodies_end_a_page_early(play, monkeypatch):
    monkeypatch.setattr("store.edge.listing.shown.PAGE_BYTES", 100_000)

    async def story(w):
        keys = [f"k{number}" for number in range(9)]
        await w.edge.prepare([Message("g", "t", bytes(40_000), {"KEYS": key}) for key in keys])
        page = await w.edge.listings.page(Query(), 9, False, "")
        assert [each.key for each in page.transactions] == ["k0", "k1"]
        assert await listed(w) == keys
        assert await listed(w, newest=True) == keys[::-1]

    play(story)


# --- actions ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("action", "state"), [("commit", State.COMMITTED), ("rollback", State.ROLLED_BACK)])
def test_an_operator_ends_a_pending_half_and_stands_in_its_history(play, action, state):
    async def story(w):
        id = await w.half()
        assert await w.act(action, id) == ["accepted"]
        assert await w.act(action, id) == ["already"]
        assert await w.act("rollback" if action == "commit" else "commit", id) == ["conflict"]
        assert w.row(0)[0] == state
        event, conflict = (await w.edge.transaction(id)).history[1:]
        assert (event.event, event.by, event.actor, event.remark) == (state.name.lower(), "operator", "ada", "a test")
        assert (conflict.event, conflict.by, conflict.actor) == ("conflict", "operator", "ada")
        status = await w.edge.status()
        assert status["operator_answers"] == {"accepted": 1, "already": 1, "conflict": 1}
        assert status["answers"] == {"refused": 0}, "the producers said nothing"

    play(story)


def test_the_first_in_the_log_wins_against_an_operator_too(play):
    async def story(w):
        id = await w.half()
        assert await w.end(id, "rollback") == "accepted"
        assert await w.act("commit", id) == ["conflict"]
        assert w.row(0)[0] == State.ROLLED_BACK

    play(story)


@pytest.mark.parametrize("action", ["commit", "rollback"])
def test_a_discarded_half_is_resumed_and_ended_in_one_breath(play, action):
    async def story(w):
        ids = await discarded(w, "a")
        assert await w.act(action, ids["a"]) == ["accepted"]
        ended = OpKind.COMMIT if action == "commit" else OpKind.ROLLBACK
        assert [kind for kind, _ in w.ops()] == [OpKind.DISCARD_EXPIRED, OpKind.RESUME, ended]
        assert w.row(0)[0] == (State.COMMITTED if action == "commit" else State.ROLLED_BACK)
        assert w.edge.quotas.pending_by_group() == {}
        assert w.job.marker.pending == 0
        assert await w.pull_bodies(wait_s=10.0 if action == "commit" else 0.0) == ([b"body"] if action == "commit" else [])

    play(story, SHORT)


def test_ids_that_are_not_ours_are_refused_one_by_one(play):
    async def story(w):
        id = await w.half()
        done = await w.edge.act(Action("commit", "ada", "r", ids=["junk", id, id]))
        assert [(each.id, each.result) for each in done.results] == [("junk", "refused"), (id, "accepted")]
        assert (done.matched, done.counts) == (2, {"accepted": 1, "queued": 0, "already": 0, "conflict": 0, "refused": 1})

    play(story)


def test_a_dry_run_changes_nothing_and_foresees(play):
    async def story(w):
        ids = await sent(w, "g", "t", "a", "b")
        await w.end(ids["a"], "commit")
        op_end = w.edge.store.op_end
        for action, foreseen in {"commit": "already", "rollback": "conflict", "resume": "conflict", "check": "refused"}.items():
            done = await w.edge.act(Action(action, "ada", "r", ids=list(ids.values()), dry_run=True))
            assert [each.result for each in done.results] == [foreseen, "queued" if action == "check" else "accepted"]
            assert done.audit_no is None
            assert done.preview is not None
            assert [(each.group, each.count, each.online) for each in done.preview.groups] == [("g", 2, 0)]
        assert w.edge.store.op_end == op_end
        assert await w.edge.operations.audited(10) == ([], None)

    play(story)


def test_an_action_by_filter_needs_the_number_that_was_seen(play):
    async def story(w):
        await sent(w, "g", "t", *[f"k{number}" for number in range(700)])
        await sent(w, "other", "t", "x")
        query = Query(group="g")
        with pytest.raises(InvalidRequest, match="dry run"):
            await w.edge.act(Action("rollback", "ada", "r", filter=query))
        dry = await w.edge.act(Action("rollback", "ada", "r", filter=query, dry_run=True))
        assert (dry.matched, dry.counts["accepted"], len(dry.results)) == (700, 700, 700)
        await sent(w, "g", "t", "one more")
        with pytest.raises(MatchedMore, match="701 now, 700"):
            await w.edge.act(Action("rollback", "ada", "r", filter=query, expect=dry.matched))
        assert w.edge.store.op_end == 0
        done = await w.edge.act(Action("rollback", "ada", "r", filter=query, expect=701))
        assert (done.matched, done.counts["accepted"]) == (701, 701)
        assert await listed(w) == ["x"]

    play(story)


def test_what_is_settled_cannot_be_acted_on_by_filter(play):
    async def story(w):
        with pytest.raises(InvalidRequest, match=r"filter\.state"):
            await w.edge.act(Action("commit", "ada", "r", filter=Query(state="any"), dry_run=True))

    play(story)


def test_a_standby_does_not_act(play):
    async def story(w):
        with pytest.raises(Standby):
            await w.act("commit", "x")

    play(story, "role=standby")


# --- check now ------------------------------------------------------------------------------------------------------------------
def test_check_now_asks_at_once_and_counts_one_attempt(play):
    async def story(w):
        id = await w.half(immunity_s=3600)
        w.settle()
        assert await w.act("check", id) == ["queued"]
        assert await w.act("check", id) == ["already"]
        assert await w.poll() == [id]
        await w.until(lambda: w.ops() == [(OpKind.ASKED, 0)])
        assert w.row(0) == (State.PREPARED, 1)
        assert await w.poll() == []
        assert await w.act("check", id) == ["accepted"], "once more, whatever the round says"
        assert await w.poll() == [id]
        await w.until(lambda: len(w.ops()) == 2)
        assert w.row(0) == (State.PREPARED, 2)

    play(story)


def test_the_jobs_own_request_is_not_handed_over_as_well(play):
    async def story(w):
        id = await w.half()
        await w.poll()
        w.now_ms += 10_000
        await w.poll()
        w.round(after_ms=1_000)
        await w.waiting(1)
        assert await w.act("check", id) == ["accepted"]
        assert await w.poll() == [id]
        assert await w.poll() == []
        await w.until(lambda: len(w.ops()) == 1)
        assert w.row(0) == (State.PREPARED, 1)

    play(story)


def test_a_request_that_nobody_took_outlives_the_round_and_is_asked_once(play):
    async def story(w):
        id = await w.half()
        w.settle()
        done = await w.edge.act(Action("check", "ada", "r", ids=[id]))
        assert "no member" in done.results[0].detail
        w.round(after_ms=60_000)
        await w.until(lambda: w.edge._checks.round_start >= 0)
        await w.waiting(1)
        w.edge._checks.seen("g", "m", "poll")
        w.round(after_ms=60_000)  # now the job asks as well
        await w.until(lambda: w.edge._checks._at == w.job.marker.check_end)
        assert await w.poll() == [id]
        assert await w.poll() == []
        await w.until(lambda: len(w.ops()) == 1)
        assert w.row(0) == (State.PREPARED, 1)

    play(story)


def test_check_now_refuses_what_cannot_be_asked(play):
    async def story(w):
        unread = await w.half()
        done = await w.edge.act(Action("check", "ada", "r", ids=[unread]))
        assert "not read it yet" in done.results[0].detail
        w.settle()
        await w.end(unread, "commit")
        done = await w.edge.act(Action("check", "ada", "r", ids=[unread]))
        assert (done.results[0].result, done.results[0].detail) == ("refused", "it is committed")

    play(story)


def test_check_now_of_a_discarded_half_says_what_to_do(play):
    async def story(w):
        ids = await discarded(w, "a")
        done = await w.edge.act(Action("check", "ada", "r", ids=[ids["a"]]))
        assert "resume it first" in done.results[0].detail

    play(story, SHORT)


def test_requests_of_operators_have_a_bound(play):
    async def story(w):
        ids = await sent(w, "g", "t", "a", "b", "c")
        w.settle()
        assert await w.act("check", *ids.values()) == ["queued", "queued", "refused"]

    play(story, "outstandingPerGroupMax=2")


# --- the audit log --------------------------------------------------------------------------------------------------------
def test_the_audit_has_intent_and_outcome_and_survives(tmp_path, play):
    async def story(w):
        ids = await sent(w, "g", "t", "a", "b")
        first = await w.edge.act(Action("commit", "ada", "ticket 7", ids=[ids["a"]]))
        second = await w.edge.act(Action("rollback", "bob", "cleaning up", filter=Query(group="g"), expect=1))
        assert (first.audit_no, second.audit_no) == (0, 2)
        await w.restart_edge()
        (newest, oldest), following = await w.edge.operations.audited(10)
        assert (oldest.no, oldest.who, oldest.action, oldest.reason, oldest.ids) == (0, "ada", "commit", "ticket 7", [ids["a"]])
        assert (oldest.matched, oldest.counts["accepted"], oldest.filter, oldest.result) == (1, 1, None, "done")
        assert (newest.filter, newest.ids) == ({"state": "pending", "group": "g"}, [ids["b"]])
        assert following is None
        page, following = await w.edge.operations.audited(1)
        assert ([each.no for each in page], following) == ([2], 2)
        assert [each.no for each in (await w.edge.operations.audited(5, following))[0]] == [0]
        assert [(each.result, each.about) for each in Audit(w.settings.store_dir / "audit").records()] == [
            ("begun", None), ("done", 0), ("begun", None), ("done", 2),
        ]  # fmt: skip

    play(story)
    assert verify(tmp_path / "data" / "store").problems == []


def test_an_action_that_the_edge_did_not_survive_is_shown_as_begun(play):
    async def story(w):
        id = await w.half()

        def dies(*_):
            raise RuntimeError("killed")

        w.edge.operations._operator._end = dies
        with pytest.raises(RuntimeError):
            await w.edge.act(Action("commit", "ada", "r", ids=[id]))
        ((found,), _) = await w.edge.operations.audited(10)
        assert (found.result, found.counts["accepted"]) == ("failed", 0)

    play(story)


def test_without_room_for_the_intent_nothing_is_done(play):
    async def story(w):
        id = await w.half()
        disk.arm("audit.write", "ENOSPC")
        with pytest.raises(StoreError):
            await w.act("commit", id)
        disk.arm(None)
        assert (await w.edge.transaction(id)).state == "PREPARED"
        assert await w.act("commit", id) == ["accepted"]

    play(story)


def test_verify_finds_an_outcome_without_its_intent(tmp_path, play):
    async def story(w):
        await w.act("commit", await w.half())

    play(story)
    store = tmp_path / "data" / "store"
    with closing(Audit(store / "audit", writable=True)) as audit:
        audit.append(AuditRecord(1, "eve", "commit", "", "", "done", about=0))
    assert "the outcome of record 0" in verify(store).problems[0].reason


# --- overview, groups, topics ---------------------------------------------------------------------------------------------
def test_overview_groups_and_topics(play):
    async def story(w):
        ids = await sent(w, "g", "t", "a", "b")
        await w.poll("g", "worker-1")
        w.now_ms += 5_000
        w.settle()
        await w.act("commit", ids["a"])
        w.settle()
        w.edge.operations.overview.sample()
        found = await w.edge.operations.overview.answer()
        assert (found["pending"], found["oldest_pending_age_s"], found["discarded"]) == (1, 5, 0)
        assert (found["totals"]["halves"], found["totals"]["commits"]) == (2, 1)
        assert {each.part: each.healthy for each in found["parts"]} == {
            "edge": True, "job": False, "checks": True, "disk": True, "clock": True,
        }  # fmt: skip
        assert (found["series"]["commits"][-1], found["series"]["pending"][-1]) == (1, 1)
        (group,) = await w.edge.operations.overview.groups()
        assert (group["group"], group["pending"], group["oldest_age_s"], group["outstanding"]) == ("g", 1, 5, 0)
        assert [(each["member"], each["via"]) for each in group["members"]] == [("worker-1", "poll")]
        (message,) = await w.pull(wait_s=30)
        (topic,) = w.edge.operations.overview.topics()
        assert (topic["topic"], topic["messages"]) == ("t", 1)
        assert topic["consumers"] == [{"group": "c", "lag": 1, "in_hand": 1, "deleted_unread": 0, "dead_letters": 0}]
        await w.ack(message)
        assert w.edge.operations.overview.topics()[0]["consumers"][0]["lag"] == 0

    play(story)


def test_a_member_that_has_gone_is_not_shown(play):
    async def story(w):
        await w.half()
        await w.poll("g", "worker-1")
        assert len(w.edge.members("g")) == 1
        w.now_ms += w.settings.presence_ttl_ms + 1
        assert w.edge.members("g") == []

    play(story)


def test_the_summary_is_not_counted_anew_at_every_request(play):
    async def story(w):
        clock = [100.0]
        listings = Listings(w.edge.store, w.edge._sealer, lambda: w.now_ms, lambda: clock[0])
        try:
            first = await listings.summary()
            assert await listings.summary() is first
            clock[0] += 2
            assert await listings.summary() is not first
        finally:
            await listings.close()

    play(story)
