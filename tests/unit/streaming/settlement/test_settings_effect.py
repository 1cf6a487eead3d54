"""RocketMQ's settings (docs/configuration.md), key by key: from a value, through Policy, Geometry and the edge core, to its effect.

No Spark. Time is injected: a test says which second it is, and nothing else moves the clock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ingest.errors import Standby, TransactionsRejected
from ingest.http.wire import codec, producers
from store.io.pages import JobSlot
from store.records import State
from tests.support.clockwork import Clockwork
from tests.support.edge_world import world

HOUR_S = 3600


@dataclass
class Life:
    """What became of one half that nobody ends: when a member was asked about it, and when it was discarded."""

    asked_at_s: list[int] = field(default_factory=list)
    discarded_at_s: int = -1
    state: State = State.PREPARED


def live_through(root: Path, *flags: str, seconds: int, step_s: int = 1, member: bool = True, **message: object) -> Life:
    """One half, sent over the wire format, that is answered UNKNOWN whenever a member is asked."""
    life = Life()

    async def play():
        async with world(root, *flags) as w:
            clockwork = Clockwork(w, member=member)
            item = {"group": "g", "topic": "t", "text": "hello", **message}
            (id,) = await w.edge.prepare(producers.messages(codec.convert({"messages": [item]}, producers.MessagesIn).messages))
            for _ in range(seconds // step_s):
                for asked in await clockwork.second(step_s):
                    life.asked_at_s.append(clockwork.now_s)
                    assert await w.end(asked, "unknown", from_check=True) == "accepted"
                life.state = State(w.row(0)[0])
                if life.state != State.PREPARED:
                    life.discarded_at_s = clockwork.now_s
                    assert (await w.edge.transaction(id)).state == life.state.name
                    return

    asyncio.run(play())
    return life


EVERY_SECOND = "transactionCheckInterval=1s"


# --- when a half is asked about -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "first_s"), [("6s", 7), ("20s", 21), ("12000", 13), ("2500ms", 4), ("500", 2)])
def test_transaction_time_out_is_the_age_to_exceed(tmp_path, value, first_s):
    """A bare integer is milliseconds; parts of a second are rounded up: never sooner than configured."""
    life = live_through(tmp_path, f"transactionTimeOut={value}", EVERY_SECOND, seconds=first_s)
    assert life.asked_at_s == [first_s]


@pytest.mark.parametrize(("interval", "between_s"), [("5s", 5), ("30s", 30), ("60000", 60), ("900", 1)])
def test_transaction_check_interval_is_the_time_between_two_rounds(tmp_path, interval, between_s):
    life = live_through(tmp_path, f"transactionCheckInterval={interval}", seconds=200)
    pauses = [later - earlier for earlier, later in zip(life.asked_at_s, life.asked_at_s[1:], strict=False)]
    assert pauses
    assert set(pauses) == {between_s}


@pytest.mark.parametrize("most", [1, 2, 15])
def test_transaction_check_max_hand_overs_then_one_discard(tmp_path, most):
    life = live_through(tmp_path, f"transactionCheckMax={most}", EVERY_SECOND, seconds=60)
    assert len(life.asked_at_s) == most
    assert life.state == State.DISCARDED_MAX
    assert life.discarded_at_s > life.asked_at_s[-1] + 1, "a whole interval after the last hand-over"


@pytest.mark.parametrize(
    ("immunity", "first_s"),
    [("15", 16), ("30", 31), ("3", 7), ("-1", 7), ("abc", 7), (None, 7)],
)
def test_check_immunity_time_of_one_message(tmp_path, immunity, first_s):
    """The larger of the message's own grace and transactionTimeOut; it costs no attempt."""
    properties = {} if immunity is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": immunity}
    life = live_through(tmp_path, EVERY_SECOND, "transactionCheckMax=1", seconds=first_s, properties=properties)
    assert life.asked_at_s == [first_s]


def test_check_immunity_time_is_for_that_message_only(tmp_path):
    async def play():
        async with world(tmp_path, EVERY_SECOND) as w:
            clockwork = Clockwork(w)
            patient, other = await w.half(immunity_s=60), await w.half()
            first_asked: dict[str, int] = {}
            for _ in range(70):
                for id in await clockwork.second():
                    first_asked.setdefault(id, clockwork.now_s)
            assert first_asked == {other: 7, patient: 61}

    asyncio.run(play())


@pytest.mark.parametrize(("at_least", "first_s"), [("0ms", 7), ("3s", 7), ("20s", 21), ("60000", 61)])
def test_check_transaction_message_atleast_interval_is_an_age_to_exceed_too(tmp_path, at_least, first_s):
    life = live_through(tmp_path, f"checkTransactionMessageAtleastInterval={at_least}", EVERY_SECOND, seconds=first_s)
    assert life.asked_at_s == [first_s]


def test_check_transaction_message_enable_false_asks_nobody_and_retention_still_holds(tmp_path):
    off = live_through(
        tmp_path / "off", "checkTransactionMessageEnable=false", "fileReservedTime=1", seconds=2 * HOUR_S, step_s=300
    )
    assert (off.asked_at_s, off.state) == ([], State.DISCARDED_EXPIRED)
    on = live_through(tmp_path / "on", "checkTransactionMessageEnable=true", "fileReservedTime=1", seconds=60)
    assert on.asked_at_s


# --- how long anything is kept --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "kept_s"), [("1", HOUR_S), ("2h", 2 * HOUR_S), ("90m", 5400)])
def test_file_reserved_time_discards_a_pending_half_as_expired(tmp_path, value, kept_s):
    """A bare integer is hours. Nobody of the group is there to be asked, so the half is held until then."""
    life = live_through(tmp_path, f"fileReservedTime={value}", seconds=kept_s + 600, step_s=300, member=False)
    assert (life.asked_at_s, life.state) == ([], State.DISCARDED_EXPIRED)
    assert kept_s < life.discarded_at_s <= kept_s + 300, "at the first look behind it"


def test_file_reserved_time_keeps_files_of_ended_halves_that_long(tmp_path):
    async def play():
        async with world(tmp_path, "fileReservedTime=2", "commitLogSegmentSize=64KiB", "maxBodySize=4KiB") as w:
            for _ in range(100):
                await w.end(await w.half(body=b"x" * 4000), "commit")
            w.settle()
            assert await both_retain(w, 2 * HOUR_S) == 0
            removed = await both_retain(w, 2)
            assert removed > 0
            assert first_segment(w) > 0, "the front of the commit log went"

    async def both_retain(w, seconds):
        w.now_ms += seconds * 1000
        w.job.retain(w.now_ms, w.settings.retention_ms)
        return (await w.edge.retain()).get("commitlog", 0) + first_segment(w)

    def first_segment(w):
        return min(int(path.name) for path in w.edge.store.directory.commit_log.iterdir())

    asyncio.run(play())


# --- what is refused ------------------------------------------------------------------------------------------------------
def test_reject_transaction_message_refuses_halves_and_nothing_else(tmp_path):
    async def before():
        async with world(tmp_path) as w:
            return await w.half(), await w.half()

    async def after(ended, asked_about):
        async with world(tmp_path, "rejectTransactionMessage=true", EVERY_SECOND) as w:
            with pytest.raises(TransactionsRejected, match="rejectTransactionMessage"):
                await w.half()
            assert await w.edge.send([w.message("plain")]) == [(0, 0)]
            assert await w.end(ended, "commit") == "accepted"
            clockwork = Clockwork(w)
            asked = [id for _ in range(8) for id in await clockwork.second()]
            assert set(asked) == {asked_about}, "checks go on"
            assert [w.row(number)[0] for number in (0, 1)] == [State.COMMITTED, State.PREPARED]

    asyncio.run(after(*asyncio.run(before())))


def test_role_standby_refuses_halves_and_ends_and_asks_nobody(tmp_path):
    async def as_master():
        async with world(tmp_path, "role=master") as w:
            return await w.half()

    async def as_standby(id):
        async with world(tmp_path, "role=standby", EVERY_SECOND, "fileReservedTime=1") as w:
            clockwork = Clockwork(w, member=False)
            for work in (w.half(), w.edge.send([w.message()]), w.end(id, "commit"), w.poll()):
                with pytest.raises(Standby, match="role = standby"):
                    await work
            for seconds in (10, 60, 2 * HOUR_S):
                await clockwork.second(seconds)
            assert not clockwork.rounds.wanted(w.now_ms)
            ends = [w.job.page[slot] for slot in (JobSlot.CHECK_END, JobSlot.PROPOSAL_END)]
            assert (ends, w.row(0)[0]) == ([0, 0], State.PREPARED)

    async def as_master_again(id):
        async with world(tmp_path, "role=master") as w:
            assert await w.end(id, "commit") == "accepted"

    id = asyncio.run(as_master())
    asyncio.run(as_standby(id))
    asyncio.run(as_master_again(id))


# --- sizes of files -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [64, 100])
def test_tran_state_table_maped_file_size_is_the_size_of_one_file(tmp_path, rows):
    async def play():
        async with world(tmp_path, f"tranStateTableMapedFileSize={rows * 24}") as w:
            await w.edge.prepare([w.message() for _ in range(rows)])
            w.settle()
            assert files(w) == {"0".zfill(20): rows * 24}
            await w.half()
            w.settle()
            assert files(w) == {"0".zfill(20): rows * 24, str(rows * 24).zfill(20): rows * 24}

    def files(w):
        (table,) = (path for path in w.settings.store_dir.rglob("statetable/0") if path.is_dir())
        return {path.name: path.stat().st_size for path in sorted(table.iterdir()) if path.name.isdecimal()}

    asyncio.run(play())


@pytest.mark.parametrize("entries", [64, 1000])
def test_tran_redo_log_maped_file_size_is_the_size_of_one_file(tmp_path, entries):
    async def play():
        async with world(tmp_path, f"tranRedoLogMapedFileSize={entries * 20}") as w:
            await w.half()
            w.settle()
            assert files(w) == {"0".zfill(20): entries * 20}
            await w.edge.prepare([w.message() for _ in range(entries)])  # two entries a half
            w.settle()
            found = files(w)
            assert len(found) >= 3
            assert set(found.values()) == {entries * 20}
            assert list(found)[1] == str(entries * 20).zfill(20)

    def files(w):
        log = w.job.directory.redo_log()
        return {path.name: path.stat().st_size for path in sorted(log.iterdir()) if path.name.isdecimal()}

    asyncio.run(play())
