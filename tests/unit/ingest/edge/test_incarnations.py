"""A restored store is a new incarnation: what was given out before counts as far as the backup holds it, and names nothing else."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from ingest.capabilities import EndRequest
from ingest.consuming.receipts import ReceiptSealer
from ingest.errors import InvalidRequest
from store.admin.backup import backup, restore
from store.errors import Corrupt
from store.incarnations import INCARNATIONS, Ancestor, Lineage
from store.inspect.verify.store import verify
from store.io import disk
from tests.support.edge_world import World

ONE_QUEUE = "queuesPerTopic=1"
LOST = "issued after the backup that this store was restored from"


async def restored(w: World, data, number: int, source: str = "backup") -> World:
    """The store of a backup, with the same keys, in a data directory of its own."""
    place = data / f"life-{number}"
    restore(data / source, place / "store")
    shutil.copytree(w.root / "keys", place / "keys")
    found = World(place, (ONE_QUEUE,), w.now_ms)
    await found.open()
    found.edge.consumption.look()  # the job lives: what it shows is of this boot
    return found


@pytest.fixture
def play(play):
    """The story gets a list for the edges that it opens besides; all stores are whole afterwards."""

    def run(story):
        async def lived(w):
            lives = [w]
            await story(w, lives)
            for life in lives[1:]:
                await life.close()
            return [life.settings.store_dir for life in lives]

        for store in play(lived, ONE_QUEUE):
            problems = verify(store).problems
            assert not problems, problems

    return run


async def end(w, id, outcome="commit"):
    (answer,) = await w.edge.end([EndRequest("g", id, outcome)])
    return answer.verdict, answer.reason


def test_a_late_commit_for_a_lost_half_never_releases_another(tmp_path, play):
    async def story(w, lives):
        before = await w.half(body=b"before")
        backup(w.settings.store_dir, tmp_path / "backup")
        lost = await w.half(body=b"lost")
        r = await restored(w, tmp_path, 1)
        lives.append(r)
        other = await r.half(body=b"of somebody else")
        assert other != lost
        assert len(other) == len(lost)
        verdict, reason = await end(r, lost)
        assert (verdict, LOST in reason) == ("refused", True)
        r.settle()
        assert await r.pull_bodies() == []
        assert await end(r, other, "rollback") == ("accepted", "")
        assert await end(r, before) == ("accepted", "")
        assert await end(r, before) == ("already", "")
        assert await r.pull_bodies() == [b"before"]

    play(story)


def test_many_ids_at_once_are_judged_one_by_one(tmp_path, play):
    async def story(w, lives):
        before = [await w.half() for _ in range(10)]
        backup(w.settings.store_dir, tmp_path / "backup")
        lost = [await w.half() for _ in range(10)]
        r = await restored(w, tmp_path, 1)
        lives.append(r)
        new = [await r.half() for _ in range(10)]
        answers = await r.edge.end([EndRequest("g", id, "commit") for id in (*before, *lost, *new)])
        assert [answer.verdict for answer in answers] == ["accepted"] * 10 + ["refused"] * 10 + ["accepted"] * 10

    play(story)


def test_a_chain_of_restores_honours_each_ancestor_up_to_its_cut(tmp_path, play):
    async def story(w, lives):
        first = await w.half(body=b"1")
        backup(w.settings.store_dir, tmp_path / "backup")
        first_lost = await w.half(body=b"1 lost")
        a = await restored(w, tmp_path, 1)
        second = await a.half(body=b"2")
        backup(a.settings.store_dir, tmp_path / "second")
        second_lost = await a.half(body=b"2 lost")
        b = await restored(w, tmp_path, 2, "second")
        third = await b.half(body=b"3")
        lives += [a, b]
        assert [(await end(b, id))[0] for id in (first, second, third)] == ["accepted"] * 3
        for id in (first_lost, second_lost):
            verdict, reason = await end(b, id)
            assert (verdict, LOST in reason) == ("refused", True)
        # Another restore of the first backup is another branch: neither knows the other's.
        c = await restored(w, tmp_path, 3)
        lives.append(c)
        fourth = await c.half(body=b"4")
        assert "another store" in (await end(c, second))[1]
        assert "another store" in (await end(b, fourth))[1]
        assert (await end(c, first))[0] == "accepted"
        # And the cuts stay what they were after a restart.
        await b.restart_edge()
        assert LOST in (await end(b, second_lost))[1]
        assert (await end(b, third))[0] == "already"

    play(story)


def test_receipts_count_for_messages_that_the_backup_holds(tmp_path, play):
    async def story(w, lives):
        await w.send(b"0", b"1")
        held = await w.pull(visibility_s=1000)
        backup(w.settings.store_dir, tmp_path / "backup")
        await w.send(b"lost")
        (lost,) = await w.pull(visibility_s=1000)
        r = await restored(w, tmp_path, 1)
        lives.append(r)
        await r.send(b"new")
        (new,) = await r.pull(visibility_s=1000)
        # The same place, handed out for the first time at the same instant: only the incarnation differs.
        assert (new.body, new.queue_offset, new.attempt) == (b"new", lost.queue_offset, lost.attempt)
        sealer = ReceiptSealer([b"any"])
        told, lost_told = sealer.open(new.receipt, "receipt")[0], sealer.open(lost.receipt, "receipt")[0]
        assert told._replace(tag="") == lost_told
        assert await r.ack(lost) == ["stale"]
        assert await r.ack(held[0]) == ["done"]
        (longer,) = await r.edge.consumption.change_visibility("t", "c", [held[1].receipt], 2000)
        assert longer is not None
        assert await r.edge.consumption.ack("t", "c", [longer, new.receipt]) == ["done", "done"]
        assert await w.ack(new) == ["stale"]

    play(story)


def test_dead_letters_are_named_by_incarnation(tmp_path, play):
    async def story(w, lives):
        async def bury(life, body):
            await life.send(body)
            (got,) = await life.pull()
            assert await life.edge.consumption.condemn("t", "c", got.receipt)

        await bury(w, b"before")
        backup(w.settings.store_dir, tmp_path / "backup")
        await bury(w, b"lost")
        ((before, lost), _) = await w.edge.consumption.dead_letters("c")
        r = await restored(w, tmp_path, 1)
        lives.append(r)
        await bury(r, b"new")
        ((_, new), _) = await r.edge.consumption.dead_letters("c")
        assert new.id != lost.id
        with pytest.raises(InvalidRequest, match="after the backup"):
            await r.edge.consumption.replay("c", [lost.id])
        assert await r.edge.consumption.replay("c", [before.id, new.id]) == 2
        assert await r.pull_bodies() == [b"before", b"new"]

    play(story)


def test_a_damaged_list_of_ancestors_is_named(tmp_path):
    lineage = Lineage("00" * 8).restored(tmp_path)
    assert Lineage.read(tmp_path, lineage.store_id).ancestors == (Ancestor("00" * 8, None, None),)
    settled = lineage.settled(tmp_path, 7, {3: 4})
    assert Lineage.read(tmp_path, lineage.store_id) == settled
    assert settled.settled(tmp_path, 9, {}) is settled
    assert [settled.holds("", 3, at) for at in (3, 4)] == [True, False]
    assert not settled.holds("ffffffff", 3, 0)
    path = tmp_path / INCARNATIONS
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"half_end"', b'"half-end"'))
    with pytest.raises(Corrupt, match="CRC"):
        Lineage.read(tmp_path, lineage.store_id)
    wrongs: list[dict[str, Any]] = [{}, {"ancestors": 1}, {"ancestors": [1]}]
    for wrong in [*wrongs, {"ancestors": [{"store_id": "x", "half_end": 1, "places": []}]}]:
        disk.write_json(path, wrong, "test")
        with pytest.raises(Corrupt, match="ancestors"):
            Lineage.read(tmp_path, lineage.store_id)
