"""Quotas: what is refused and until when, what never is, and the file about groups."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ingest import groups
from ingest.errors import GroupsUnusable, QuotaExceeded
from ingest.groups import Limits
from runtime.settings import load
from store.edge.pending_counts import NEVER_S
from store.records import OpKind


@pytest.fixture
def play(play, tmp_path):
    """With this groups file; the story begins when all that is pending is counted."""

    def run(story, *flags, file="", place=""):
        if file:
            write(tmp_path, file)

        async def counted(w):
            await w.until(lambda: w.edge.quotas.figures()["pending_counted"])
            await story(w)

        play(counted, *flags, place=place)

    return run


def write(tmp_path, text):
    path = tmp_path / "data" / "groups.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


class Clock:
    def __init__(self, w):
        self.now_s = 1000.0
        w.edge.quotas._clock_s = self

    def __call__(self):
        return self.now_s


async def refused(doing):
    with pytest.raises(QuotaExceeded) as caught:
        await doing
    assert caught.value.status == 429
    assert "ends are taken meanwhile" in str(caught.value)
    return caught.value


# --- rate ---
def test_rate(play):
    async def story(w):
        clock = Clock(w)
        await w.edge.prepare([w.message()] * 6)
        assert len(await w.edge.send([w.message()] * 4)) == 4, "messages and halves share it"
        error = await refused(w.edge.prepare([w.message()] * 2))
        assert "group g: more than 10 messages a second (groupRateMax)" in str(error)
        assert error.retry_after_s == pytest.approx(0.2)
        clock.now_s += 0.1
        assert (await refused(w.edge.send([w.message()] * 2))).retry_after_s == pytest.approx(0.1)
        clock.now_s += 0.101
        await w.edge.prepare([w.message()] * 2)
        await w.edge.prepare([w.message("other")] * 10)
        assert w.edge.quotas.figures()["refused"] == {"rate": 2}
        assert w.edge.store.half_end == 18

    play(story, "groupRateMax=10")


def test_a_batch_larger_than_the_bucket_passes_and_is_paid_for(play):
    async def story(w):
        clock = Clock(w)
        await w.edge.prepare([w.message()] * 50)
        assert (await refused(w.half())).retry_after_s == pytest.approx(4.1)
        clock.now_s += 4.11
        await w.half()

    play(story, "groupRateMax=10")


def test_a_request_for_several_groups_is_taken_whole_or_not(play):
    async def story(w):
        Clock(w)
        await w.edge.prepare([w.message("b")] * 10)
        await refused(w.edge.prepare([w.message("a"), w.message("b")]))
        await w.edge.prepare([w.message("a")] * 10), "nothing was taken from a"

    play(story, "groupRateMax=10")


def test_ends_are_never_refused(play):
    async def story(w):
        Clock(w)
        ids = [await w.half() for _ in range(5)]
        await refused(w.half())
        for id in ids:
            assert await w.end(id, "commit") == "accepted"

    play(story, "groupRateMax=5", "groupPendingMax=5")


# --- pending ---
def test_pending(play):
    async def story(w):
        clock = Clock(w)
        ids = await w.edge.prepare([w.message()] * 3)
        error = await refused(w.half())
        assert "group g: 3 halves are pending, at most 3 may be (groupPendingMax)" in str(error)
        assert error.retry_after_s == 30, "nothing ends: when the producer will have been asked again"
        assert len(await w.edge.send([w.message()])) == 1, "ordinary messages are never pending"
        await w.half("other")
        clock.now_s += 2
        await w.end(ids[0], "rollback")
        await w.half()
        assert (await refused(w.edge.prepare([w.message()] * 2))).retry_after_s == 4, "one ended in two seconds, two must"
        assert w.edge.quotas.pending_by_group() == {"g": 3, "other": 1}
        assert (await w.edge.status())["quotas"]["pending"] == 4

    play(story, "groupPendingMax=3")


def test_requests_on_their_way_count(play):
    async def story(w):
        results = await asyncio.gather(*[w.half() for _ in range(20)], return_exceptions=True)
        assert sum(isinstance(result, str) for result in results) == 7
        assert w.edge.quotas.pending_by_group() == {"g": 7}
        assert not w.edge.quotas._on_the_way
        with pytest.raises(Exception, match="queue_id"):
            await w.edge.prepare([w.message("z", queue_id=99)])
        assert not w.edge.quotas._on_the_way, "what failed is not on its way any more"

    play(story, "groupPendingMax=7")


def test_discards_make_room_and_resumes_take_it(play):
    async def story(w):
        id = await w.half()
        w.round(after_ms=3 * 3_600_000)
        await w.until(lambda: w.ops() == [(OpKind.DISCARD_EXPIRED, 0)])
        assert w.edge.quotas.pending_by_group() == {}
        await w.act("resume", id)
        assert w.edge.quotas.pending_by_group() == {"g": 1}
        await refused(w.half())

    play(story, "groupPendingMax=1", "fileReservedTime=2")


def test_counted_again_after_a_restart(play):
    async def story(w):
        await w.edge.prepare([w.message()] * 3)
        w.settle()
        ids = await w.edge.prepare([w.message()] * 2)
        await w.end(ids[0], "commit")
        await w.restart_edge()
        await w.until(lambda: w.edge.quotas.figures()["pending_counted"])
        assert w.edge.quotas.pending_by_group() == {"g": 4}
        await w.half()
        await refused(w.half())

    play(story, "groupPendingMax=5")


def test_not_enforced_before_the_first_count(play):
    async def story(w):
        await w.edge.prepare([w.message()] * 3)
        w.edge.store.pending.known = False
        await w.half()
        assert not (await w.edge.status())["quotas"]["pending_counted"]

    play(story, "groupPendingMax=3")


# --- age ---
def test_age(play):
    async def story(w):
        id = await w.half()
        w.now_ms += 60_000
        w.edge.quotas.look_at_ages()
        await w.half("other")
        await w.half()
        w.now_ms += 1_000
        error = await refused(w.half())
        assert "group g: its oldest pending half is 61 s old, at most 60 s are allowed (groupPendingAgeMax)" in str(error)
        assert error.retry_after_s == 30
        assert w.edge.quotas.oldest_age_s()["g"] == 61
        assert len(await w.edge.send([w.message()])) == 1
        await w.end(id, "commit")
        w.edge.quotas.look_at_ages()
        await w.half()
        assert w.edge.quotas.figures()["refused"] == {"pending_age": 1}

    play(story, "groupPendingAgeMax=60s")


def test_ages_are_looked_at_by_themselves_and_only_if_needed(play, monkeypatch):
    monkeypatch.setattr("ingest.edge.quotas.LOOK_S", 0.01)

    async def looks(w):
        await w.half()
        await w.until(lambda: len(w.edge.quotas._oldest) and w.edge.quotas._oldest[0] != NEVER_S)

    async def looks_not(w):
        await w.half()
        await asyncio.sleep(0.1)
        assert w.edge.quotas._ages is None
        assert not len(w.edge.quotas._oldest)
        assert w.edge.quotas.oldest_age_s() == {"g": 0}, "whoever asks makes it look"

    play(looks, "groupPendingAgeMax=60s", place="a")
    play(looks_not, "groupPendingMax=9", place="b")


# --- the file ---
def test_groups_of_the_file(play):
    async def story(w):
        Clock(w)
        await w.edge.prepare([w.message("free")] * 100)
        await w.edge.prepare([w.message("orders")] * 20)
        await refused(w.half("orders"))
        await w.edge.prepare([w.message("slow")] * 3)
        await refused(w.half("slow"))

    file = """
        [groups.free]
        rate_max = 0
        [groups."orders"]
        rate_max = 20
        [groups.slow]
        pending_max = 3
    """
    play(story, "groupRateMax=10", file=file)


def test_a_changed_file_counts_and_a_broken_one_does_not(tmp_path, play):
    async def story(w):
        clock = Clock(w)
        w.edge.groups._clock_s, w.edge.groups._looked_at_s = clock, clock.now_s
        await w.edge.prepare([w.message()] * 5)
        path = write(tmp_path, "[groups.g]\nrate_max = 1\npending_max = 6\n")
        clock.now_s += 1
        await w.half()
        await refused(w.half())
        path.write_text("[groups.g]\nrate_max = -1\n")
        os.utime(path, (1, 1))
        clock.now_s += 10
        await refused(w.half())
        assert "rate_max: -1 is less than 0" in w.edge.quotas.figures()["groups_file_problem"]

    play(story)


def test_groups_file_elsewhere(tmp_path, play):
    async def story(w):
        await w.half()
        await refused(w.half())

    (tmp_path / "g.toml").write_text("[groups.g]\npending_max = 1\n")
    play(story, f"groupsFile={tmp_path / 'g.toml'}")


FREE = Limits()


def parsed(text, default=FREE):
    return groups.parse(text, Path("/etc/escrow/groups.toml"), default)


def test_what_the_file_leaves_out_is_as_in_the_settings():
    found = parsed('[groups.a]\npending_age_max = "10m"\n', Limits(5, 6, 7))
    assert found.limits("a") == Limits(5, 6, 600_000)
    assert found.limits("b") == Limits(5, 6, 7)
    assert parsed("").any_limit is False
    settings = load(None, ["groupRateMax=1", "groupPendingMax=2", "groupPendingAgeMax=3s"], {})
    assert groups.watch(settings).get().default == Limits(1, 2, 3000)


def test_a_webhook():
    hook = parsed('[groups.a.webhook]\nurl = "https://x.example:8443/y?z"\nsecret_file = "s"\n').webhooks["a"]
    assert (hook.secret_file, hook.timeout_s, hook.concurrency, hook.ca_file) == (Path("/etc/escrow/s"), 5.0, 4, None)
    hook = parsed('[groups.a.webhook]\nurl = "http://x"\nsecret_env = "S"\ntimeout = "1s"\nconcurrency = 9\n').webhooks["a"]
    assert (hook.secret_env, hook.timeout_s, hook.concurrency) == ("S", 1.0, 9)


HOOK = '[groups.a.webhook]\nsecret_env = "S"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[groups", "not valid TOML"),
        ("x = 1", "x: no such field; there are groups"),
        ("groups = 1", "groups: must be a table"),
        ("[groups]\na = 1", "groups.a: must be a table"),
        ("[groups.a]\nrate = 1", 'groups."a": rate: no such field; there are pending_age_max'),
        ('[groups.a]\nrate_max = "x"', "rate_max: 'x' is not a whole number"),
        ('[groups.a]\npending_age_max = "x"', "pending_age_max: 'x' cannot be read: write a time"),
        ('[groups."a b"]\nrate_max = 1', "has characters other than"),
        (HOOK, "webhook.url: must be http"),
        (HOOK + 'url = "ftp://x/"', "webhook.url: must be http"),
        (HOOK + 'url = "file:///etc/passwd"', "webhook.url: must be http"),
        (HOOK + 'url = "https:///x"', "webhook.url: must be http"),
        (HOOK + 'url = "http://x:99999/"', "webhook.url: must be http"),
        (HOOK + 'url = "http://u:p@x/"', "holds a name or a password"),
        (HOOK + 'url = "http://x/"\nsecret_file = "s"', "give either secret_file or secret_env"),
        ('[groups.a.webhook]\nurl = "http://x/"', "give either secret_file or secret_env"),
        ('[groups.a.webhook]\nurl = "http://x/"\nsecret_env = "a b"', "not the name of a variable"),
        (HOOK + 'url = "http://x/"\nconcurrency = 0', "concurrency: 0 is less than 1"),
        (HOOK + 'url = "http://x/"\ntimeout = 5', "timeout: 5 has no unit: write a time"),
        ("[groups.a]\npending_age_max = 10", "pending_age_max: 10 has no unit"),
        (HOOK + 'url = "http://x/"\nsecret = "abc"', "secret: no such field"),
    ],
)
def test_what_is_wrong_is_named(text, says):
    with pytest.raises(GroupsUnusable) as caught:
        parsed(text)
    assert says in str(caught.value)
    assert str(caught.value).startswith("/etc/escrow/groups.toml: ")
    assert "abc" not in str(caught.value)
    assert "u:p@" not in str(caught.value)


def test_variables_with_secrets_are_no_settings():
    load(None, [], {"ESCROW_SECRET_ORDERS": "x"})
