"""Plug-ins of the edge, from really installed distributions: transports, listeners, the transaction service."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from datetime import datetime
from types import SimpleNamespace

import pytest

from ingest.assembly import assemble, plugin_notices
from ingest.checks import breaker, couriers, plugin_couriers, transports
from ingest.errors import CannotStart, QuotaExceeded, RefusedByService, ServiceFailed
from ingest.plugged import PluggedHalves
from store.records import OpKind, State
from store.tables.presence import Presence
from tests.support.distributions import example, installer
from tests.support.edge_world import settings_for

TRANSPORTS, LISTENERS, SERVICE = "escrow.check_transports", "escrow.check_listeners", "escrow.transaction_service"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(couriers, "POLL_S", 0.05)
    monkeypatch.setattr(couriers, "PAUSE_S", 0.02)
    monkeypatch.setattr(transports, "LOOK_S", 0.02)
    monkeypatch.setattr(breaker, "PAUSE_S", 0.2)


@pytest.fixture
def install(tmp_path, monkeypatch):
    return installer(tmp_path / "site", monkeypatch)


async def ask(w, group="g"):
    """A round in which the group is live."""
    w.now_ms += 9_000
    presence = Presence(w.settings.store_dir / "presence")
    number, groups = w.edge.store.dictionary.group_no(group), len(w.edge.store.dictionary.groups)
    await w.until(lambda: presence.live(w.now_ms, 1, groups).tolist()[number])
    w.round(after_ms=1_000)


async def due(w, group="g", **rest):
    id = await w.half(group, **rest)
    await ask(w, group)
    return id


async def ops(w, *kinds):
    await w.until(lambda: [kind for kind, _ in w.ops()] == list(kinds))


def courier(w):
    (found,) = w.edge.parts[-1]._couriers.values()
    return found


def test_without_plug_ins_it_is_the_plain_edge(tmp_path):
    edge = assemble(settings_for(tmp_path))
    assert {edge.halves, edge.ends, edge.polls, edge.messages} == {edge.core}
    assert edge.waits_plainly
    assert [part.name for part in edge.parts] == ["transports"]


def test_a_plug_in_that_is_not_named_is_left_alone_and_told(tmp_path, install):
    install("hours", f"[{SERVICE}]\nhours = theirs:Made\n", theirs="raise SystemExit('it ran')")
    settings = settings_for(tmp_path, "plugins=")
    edge = assemble(settings)
    assert {edge.halves, edge.ends, edge.polls, edge.messages} == {edge.core}
    assert [told.partition(":")[0] for told in plugin_notices(settings)] == ["plug-in hours (escrow.transaction_service"]
    with pytest.raises(CannotStart, match="plugins: nothing: no such plug-in is installed"):
        assemble(settings_for(tmp_path, "plugins=hours,nothing"))


def test_what_kafka_mode_does_with_plug_ins(tmp_path, install):
    install("tellers", "[escrow.sinks]\nteller = theirs:Made\n", theirs="")
    kafka = ("mode=kafka", "kafkaBootstrapServers=127.0.0.1:1")
    assert plugin_notices(settings_for(tmp_path, *kafka)) == [
        "plug-in teller (escrow.sinks) is not used: Kafka mode calls no sinks"
    ]
    installed(install)
    assert isinstance(assemble(settings_for(tmp_path, *kafka)).halves, PluggedHalves)


# --- listeners ---
def listener(body, groups='["g"]'):
    return f"""
        import time
        from sinks.interfaces import Outcome
        class Made:
            def groups(self): return {groups}
            def check(self, request):
                {body}
    """


def test_the_listener_of_the_docs(tmp_path, play, install, monkeypatch):
    install("orders", f"[{LISTENERS}]\norders = orders_listener:OrdersListener\n", orders_listener=example("orders_listener"))
    monkeypatch.setenv("ORDERS_DB", str(tmp_path / "orders.db"))
    with sqlite3.connect(tmp_path / "orders.db") as database:
        database.execute("CREATE TABLE orders (id TEXT, state TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", [("1", "paid"), ("2", "cancelled")])
    database.close()

    async def story(w):
        for key in ("1", "2", "3"):
            await w.half("orders", properties={"KEYS": key})
        await ask(w, "orders")
        await w.until(lambda: len(w.ops()) == 6)
        assert [w.row(number)[0] for number in range(3)] == [State.COMMITTED, State.ROLLED_BACK, State.PREPARED]
        assert w.row(2) == (State.PREPARED, 1), "asked, and it counts"
        assert (await w.edge.status())["transports"]["couriers"][0]["by"] == "listener orders"

    play(story)


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        ("raise OSError('no database')", "listener mine: raised OSError"),
        ("return None", "listener mine: answered NoneType, not an Outcome"),
        ("return 'COMMIT'", "listener mine: answered str, not an Outcome"),
    ],
)
def test_whatever_else_a_listener_does_is_unknown(play, install, body, remark):
    install("mine", f"[{LISTENERS}]\nmine = their_listener:Made\n", their_listener=listener(body))

    async def story(w):
        id = await due(w)
        await ops(w, OpKind.ASKED, OpKind.UNKNOWN)
        (event,) = [event for event in (await w.edge.transaction(id)).history if event.event == "unknown"]
        assert (event.remark, event.by) == (remark, "check")

    play(story)


def test_a_listener_that_hangs_holds_up_nobody(play, install):
    install("mine", f"[{LISTENERS}]\nmine = their_listener:Made\n", their_listener=listener("time.sleep(3)", '["*"]'))

    async def story(w):
        id = await due(w)
        await ops(w, OpKind.ASKED)
        began_s = time.monotonic()
        assert await w.end(id, "commit") == "accepted"
        for _ in range(20):
            await w.half("other")
        assert time.monotonic() - began_s < 2.5

    began_s = time.monotonic()
    play(story)
    assert time.monotonic() - began_s < 20, "nor the end"


# --- transports ---
def transport(body, groups='["g"]'):
    return f"""
        import time
        calls, closed = [], []
        class Made:
            def __init__(self, root): self.root = root
            def groups(self): return {groups}
            def hand_over(self, requests):
                calls.append(requests)
                {body}
            def close(self): closed.append(1)
    """


def test_the_transport_of_the_docs(tmp_path, play, install, monkeypatch):
    install("spool", f"[{TRANSPORTS}]\nspool = spool_transport:Spool\n", spool_transport=example("spool_transport"))
    monkeypatch.setenv("SPOOL", str(tmp_path / "spool"))
    (tmp_path / "spool" / "batch-a").mkdir(parents=True)

    async def story(w):
        first, second = await w.half("batch-a", properties={"KEYS": "k"}), await w.half("batch-b")
        await ask(w, "batch-a")
        await ops(w, OpKind.ASKED)
        assert json.loads((tmp_path / "spool" / "batch-a" / f"{first}.json").read_text()) == {
            "id": first, "key": "k", "attempt": 1,
        }  # fmt: skip
        assert await w.end(first, "commit", "batch-a", from_check=True) == "accepted"
        assert w.row(1) == (State.PREPARED, 0), "its group has no directory: nobody was asked"
        (tmp_path / "spool" / "batch-b").mkdir()
        w.now_ms += 30_000
        await ask(w, "batch-b")
        await w.until((tmp_path / "spool" / "batch-b" / f"{second}.json").exists)

    play(story)


def test_what_did_not_reach_a_member_goes_to_another(play, install):
    body = "return [request.key != 'odd' for request in requests]"
    install("mine", f"[{TRANSPORTS}]\nmine = their_transport:Made\n", their_transport=transport(body))

    async def story(w):
        ids = [await w.half(properties={"KEYS": key}) for key in ("even", "odd", "even")]
        await ask(w)
        await w.until(lambda: courier(w).handed_over == 2)
        await asyncio.sleep(0.2)
        assert await w.poll(member="another") == [ids[1]]
        import their_transport  # type: ignore[import-not-found]

        asked = [request.key for requests in their_transport.calls for request in requests]
        assert asked.count("odd") == 1, "once a round"
        await w.until(lambda: [w.row(number)[1] for number in range(3)] == [1, 1, 1])

    play(story)
    import their_transport

    assert their_transport.closed == [1]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise OSError('no bus')", "raised OSError: no bus"),
        ("return []", "answered for 0 requests of 1"),
        ("return None", "raised TypeError"),
        ("return [False]", "reached no member"),
        ("return [1]", "reached no member"),
        ("time.sleep(1)", "did not return within 0.1 s"),
    ],
)
def test_a_transport_that_fails_has_handed_nothing_over(play, install, monkeypatch, body, says):
    monkeypatch.setattr(plugin_couriers, "PLUGIN_TIMEOUT_S", 0.1)
    install("mine", f"[{TRANSPORTS}]\nmine = their_transport:Made\n", their_transport=transport(body))

    async def story(w):
        id = await due(w)
        await w.until(lambda: courier(w).failures == 1)
        assert says in courier(w).last_failure
        assert w.ops() == []
        assert await w.poll(member="another") == [id]

    play(story)


def test_groups_may_change(play, install, monkeypatch):
    monkeypatch.setattr(transports, "GROUPS_LOOKS", 2)
    text = transport("return [True] * len(requests)", "NAMES") + "\n        NAMES = ['g']\n"
    install("mine", f"[{TRANSPORTS}]\nmine = their_transport:Made\n", their_transport=text)

    async def story(w):
        await w.half("g")
        await w.half("h")
        await w.until(lambda: w.edge.parts[-1]._couriers)
        import their_transport

        assert courier(w).group == "g"
        their_transport.NAMES[:] = ["h"]
        await w.until(lambda: [each.group for each in w.edge.parts[-1]._couriers.values()] == ["h"])
        their_transport.NAMES[:] = [3]
        await w.until(lambda: w.edge.parts[-1].figures()["plugins"][0]["problem"])
        assert courier(w).group == "h", "what was known stays"

    play(story)


# --- broken ones ---
@pytest.mark.parametrize(
    ("group", "module", "says"),
    [
        (
            TRANSPORTS,
            "raise OSError('no bus')",
            "plug-in mine = theirs:Made (escrow.check_transports) of mine 1.2: cannot be imported",
        ),
        (LISTENERS, "class Made: pass", "is no CheckListener: it has no check() and no groups()"),
        (LISTENERS, "class Made:\n  def groups(self): return 'g'\n  def check(self, r): pass", "groups(): TypeError"),
        (LISTENERS, "class Made:\n  def groups(self): 1/0\n  def check(self, r): pass", "groups(): ZeroDivisionError"),
        (SERVICE, "class Made:\n  def __init__(self, root, inner): pass", "is no TransactionService"),
        (SERVICE, "def Made(root): pass", "could not be made: TypeError"),
    ],
)
def test_a_broken_plug_in_keeps_the_edge_from_starting(tmp_path, install, group, module, says):
    install("mine", f"[{group}]\nmine = theirs:Made\n", theirs=module)

    async def run():
        with pytest.raises(CannotStart) as caught:
            await assemble(settings_for(tmp_path / "data")).open()
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)

    asyncio.run(run())


# --- the transaction service ---
def service(**methods):
    """A service that passes everything on, but for these methods."""
    plain = {
        "open": "(self): calls.append('open')",
        "prepare": "(self, halves): calls.append('prepare'); return inner_of[0].prepare(halves)",
        "commit": "(self, ends): calls.append(('commit', len(ends))); return inner_of[0].commit(ends)",
        "rollback": "(self, ends): calls.append(('rollback', len(ends))); return inner_of[0].rollback(ends)",
        "check": "(self, group, member, requests): return inner_of[0].check(group, member, requests)",
        "close": "(self): calls.append('close')",
    }
    lines = [f"    def {name}{text}" for name, text in {**plain, **methods}.items()]
    made = "    def __init__(self, root, inner): inner_of.append(inner)"
    return "\n".join(["from sinks.errors import Refused", "calls, inner_of = [], []", "class Made:", made, *lines]) + "\n"


def installed(install, **methods):
    install("mine", f"[{SERVICE}]\nmine = their_service:Made\n", their_service=service(**methods))


def test_the_service_of_the_docs(play, install):
    install("hours", f"[{SERVICE}]\nhours = business_hours:BusinessHours\n", business_hours=example("business_hours"))

    async def story(w):
        import business_hours  # type: ignore[import-not-found]

        at = SimpleNamespace(now=datetime(2026, 3, 4, 12))
        business_hours.BusinessHours.now = staticmethod(lambda: at.now)
        id = await w.half("billing")
        at.now = datetime(2026, 3, 7, 12)
        with pytest.raises(RefusedByService, match="weekdays from 8 to 18") as caught:
            await w.half("billing")
        assert caught.value.status == 403
        await w.half("other")
        assert await w.end(id, "commit", "billing") == "accepted"
        assert w.edge.store.half_end == 2

    play(story)


def test_everything_goes_through_the_service(play, install):
    installed(install)

    async def story(w):
        import their_service  # type: ignore[import-not-found]

        from ingest.capabilities import EndRequest

        assert isinstance(w.asked.halves, PluggedHalves)
        assert not w.asked.waits_plainly
        ids = [id for id, _ in await w.asked.halves.store_halves([w.message(), w.message()])]
        outcomes = [("commit", ids[0]), ("commit", ids[0]), ("unknown", ids[1]), ("rollback", ids[1]), ("commit", ids[1])]
        answers = await w.asked.ends.end([EndRequest("g", id, outcome) for outcome, id in outcomes])
        assert [answer.verdict for answer in answers] == ["accepted", "already", "accepted", "accepted", "conflict"]
        assert answers[-1].state == "ROLLED_BACK"
        assert their_service.calls == ["open", "prepare", ("commit", 2), ("rollback", 1), ("commit", 1)]

    play(story)
    import their_service

    assert their_service.calls[-1] == "close"


def test_many_at_once_share_flushes(play, install):
    installed(install)

    async def story(w):
        before = w.edge.store.flushes
        ids = await asyncio.gather(*[w.half() for _ in range(200)])
        assert len(set(ids)) == 200
        assert w.edge.store.flushes - before < 200

    play(story)


def test_what_the_service_holds_back_is_not_counted(play, install):
    installed(install, check="(self, group, member, requests): return [r for r in requests if member != 'night']")

    async def story(w):
        id = await w.half()
        await w.poll()
        w.round(after_ms=10_000)
        await w.waiting(1)
        began_s = time.monotonic()
        assert await w.poll(member="night", wait_s=0.3) == []
        assert time.monotonic() - began_s >= 0.29, "the poll waits on: no client asks in a loop"
        assert w.ops() == []
        assert await w.poll(member="day") == [id]
        await ops(w, OpKind.ASKED)

    play(story)


@pytest.mark.parametrize(
    ("method", "text", "says"),
    [
        ("prepare", "(self, halves): 1/0", "failed at prepare"),
        ("prepare", "(self, halves): return []", "failed at prepare"),
        ("prepare", "(self, halves): return [5]", "failed at prepare"),
        ("commit", "(self, ends): return ['accepted']", "failed at commit"),
    ],
)
def test_a_service_that_fails(play, install, method, text, says):
    installed(install, **{method: text})

    async def story(w):
        id = "" if method == "prepare" else await w.half()
        with pytest.raises(ServiceFailed, match=says) as caught:
            await (w.half() if method == "prepare" else w.end(id, "commit"))
        assert caught.value.status == 500
        assert (await w.edge.status())["transaction_service"] == {"failures": 1}

    play(story)


def test_what_the_edge_refuses_comes_through(play, install):
    installed(install)

    async def story(w):
        await w.half()
        await w.until(lambda: w.edge.quotas.figures()["pending_counted"])
        with pytest.raises(QuotaExceeded):
            await w.half()

    play(story, "groupPendingMax=1")


def test_answers_of_listeners_go_through_the_service_too(play, install):
    installed(install)
    install("ears", f"[{LISTENERS}]\nears = their_listener:Made\n", their_listener=listener("return Outcome.COMMIT"))

    async def story(w):
        import their_service

        await due(w)
        await ops(w, OpKind.ASKED, OpKind.COMMIT)
        assert ("commit", 1) in their_service.calls

    play(story)
