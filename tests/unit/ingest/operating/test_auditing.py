"""What goes into the audit besides operators' actions, and that it fails closed."""

from __future__ import annotations

import asyncio
import functools
import json
from contextlib import suppress

import pytest

from escrow.cli import exits, main
from ingest.auth import token_file
from ingest.auth.access import Access
from ingest.errors import QuotaExceeded
from ingest.operating.auditing import ACTIONS_PER_MINUTE, DENIALS_MAX, DETAILED, SUMMED
from store.errors import StoreUnusable
from store.io import disk
from store.tables.journals.audit import ANCHOR_TOPIC, Head
from tests.support.edge_world import settings_for, world

MADE_AT = "2026-01-02T03:04:05Z"


def in_a_loop(test):
    @functools.wraps(test)
    def run(*arguments, **named):
        asyncio.run(test(*arguments, **named))

    return run


def auditor_of(w):
    return w.edge.auditor


async def told(w):
    """(who, action, target, result) of all records, the oldest first."""
    found, following = await w.edge.operations.audited(1000)
    assert following is None
    return [(each.who, each.action, each.target, each.result) for each in reversed(found)]


@in_a_loop
async def test_an_action_is_written_before_and_after(tmp_path):
    async with world(tmp_path) as w:
        async with w.asked.offers.audit.action("billing", "seek", "orders as billing to latest"):
            assert await told(w) == [("billing", "seek", "orders as billing to latest", "begun")]
        with pytest.raises(ZeroDivisionError):
            async with w.asked.offers.audit.action("billing", "replay", "1 dead letters of billing"):
                raise ZeroDivisionError
        assert [each[1::2] for each in await told(w)] == [("seek", "done"), ("replay", "failed")]


@in_a_loop
async def test_what_cannot_be_written_is_not_done(tmp_path):
    async with world(tmp_path) as w:
        done = False
        disk.arm("audit.write", "ENOSPC", 1)
        with pytest.raises(StoreUnusable):
            async with w.asked.offers.audit.action("billing", "seek", "orders"):
                done = True
        assert not done
        assert await told(w) == []


@in_a_loop
async def test_nobody_fills_the_audit_by_actions(tmp_path):
    async with world(tmp_path) as w:
        for _ in range(ACTIONS_PER_MINUTE):
            async with w.asked.offers.audit.action("eve", "seek", "t"):
                pass
        with pytest.raises(QuotaExceeded, match="eve has done 120 audited actions"):
            async with w.asked.offers.audit.action("eve", "seek", "t"):
                pass
        async with w.asked.offers.audit.action("ada", "seek", "t"):
            pass


@in_a_loop
async def test_repeated_actions_are_counted_and_every_kind_is_recorded(tmp_path, capsys):
    """74 MB a day were one token's."""
    path = settings_for(tmp_path).store_dir / "audit"
    async with world(tmp_path) as w:
        for who in ("eve", "ada"):
            for number in range(ACTIONS_PER_MINUTE - 2):
                with suppress(ZeroDivisionError):
                    async with w.asked.offers.audit.action(who, "seek", f"t{number % 40} as c to latest"):
                        assert number % 2 == 0 or 1 / 0
            async with w.asked.offers.audit.action(who, "replay", "1 dead letters of c"):
                pass
            async with w.asked.offers.audit.action(who, "replay", "1 dead letters of c"):
                pass
            with pytest.raises(QuotaExceeded):
                async with w.asked.offers.audit.action(who, "seek", "t"):
                    pass
        sums = [each for each in await told(w) if each[2] == SUMMED]
        assert {each[3] for each in sums} == {"begun"}, "it is durable that there are some"
        size = path.stat().st_size
        assert size < 2 * 8000
        await auditor_of(w).round()
        found, _ = await w.edge.operations.audited(1000)
        for who in ("eve", "ada"):
            mine = [each for each in found if each.who == who]
            assert len([each for each in mine if each.action == "seek"]) == DETAILED + 1
            counted = {each.action: each.counts for each in mine if each.target == SUMMED}
            rest = ACTIONS_PER_MINUTE - 2 - DETAILED
            assert counted == {"seek": {"done": rest // 2, "failed": rest // 2, "refused": 1}, "replay": {"done": 1}}
        async with w.asked.offers.audit.action("eve", "seek", "t0 as c to latest"):
            pass
        assert (await told(w))[-1] == ("eve", "seek", "t0 as c to latest", "done"), "a new minute"
    assert main(["audit", "verify", "--data", str(tmp_path)]) == exits.OK
    capsys.readouterr()


@in_a_loop
async def test_repeats_are_not_done_where_their_sum_cannot_be_begun(tmp_path):
    async with world(tmp_path) as w:
        async with w.asked.offers.audit.action("eve", "seek", "t"):
            pass
        disk.arm("audit.write", "ENOSPC", 1)
        done = False
        with pytest.raises(StoreUnusable):
            async with w.asked.offers.audit.action("eve", "seek", "t"):
                done = True
        assert not done
        async with w.asked.offers.audit.action("eve", "seek", "t"):
            pass
        assert [each[2:] for each in await told(w)] == [("t", "done"), (SUMMED, "begun")]


@in_a_loop
async def test_denials_are_summed_up(tmp_path):
    async with world(tmp_path) as w:
        for number in range(1000):
            w.asked.offers.audit.denied("eve", "POST /v1/halves", f"token eve: may not {number}")
        await auditor_of(w).round()
        found, _ = await w.edge.operations.audited(10)
        (one,) = found
        assert (one.who, one.action, one.target, one.counts) == ("eve", "denied", "POST /v1/halves", {"denied": 1000})
        assert one.reason == "token eve: may not 0"
        for number in range(100):
            w.asked.offers.audit.denied("ada", f"GET /{number % 3}", "no")
        await auditor_of(w).round()
        (one, _), _ = await w.edge.operations.audited(10)
        assert (one.who, one.target) == ("ada", "several operations")
        assert one.counts == {"denied": 100, "GET /0": 34, "GET /1": 33, "GET /2": 33}
        for number in range(10 * DENIALS_MAX):
            w.asked.offers.audit.denied(f"eve{number}", "GET /metrics", "no")
        await auditor_of(w).round()
        found, _ = await w.edge.operations.audited(10 * DENIALS_MAX)
        assert len(found) == 2 + DENIALS_MAX + 1
        assert sum((each.counts or {})["denied"] for each in found) == 1100 + 10 * DENIALS_MAX


@in_a_loop
async def test_tokens_that_came_and_went_are_told_also_after_a_restart(tmp_path):
    settings = settings_for(tmp_path)
    file = settings.tokens_file

    def new(name, *rules):
        token_file.add(file, name, rules, [], operator=False, metrics=False, made_at=MADE_AT)

    new("a", "g:t")
    new("b")
    async with world(tmp_path) as w:
        await auditor_of(w).tokens(Access(settings).tokens)
        await auditor_of(w).tokens(Access(settings).tokens)
        assert [each[2] for each in await told(w)] == ["added a, b"]
    token_file.revoke(file, "b")
    file.write_text(file.read_text().replace("g:t", "g:*"))
    new("c")
    async with world(tmp_path) as w:
        await auditor_of(w).tokens(Access(settings).tokens)
        assert [each[2] for each in await told(w)] == ["added a, b", "added c; removed b; changed a"]


@in_a_loop
async def test_anchors_are_messages_that_the_command_holds_the_audit_against(tmp_path, capsys):
    async with world(tmp_path) as w:
        async with w.asked.offers.audit.action("ada", "login", "console"):
            pass
        await auditor_of(w).round()
        await auditor_of(w).round()
        w.settle()
        bodies = [each.body for each in await w.pull(topic=ANCHOR_TOPIC)]
        assert [Head.decode(body).records for body in bodies] == [2], "nothing new: no anchor"
    command = ["audit", "verify", "--data", str(tmp_path)]
    assert main(command) == exits.OK
    said = capsys.readouterr().out
    assert said.startswith("2 records, all linked; 1 anchors in the commit log agree")
    head = said.splitlines()[-1]
    assert main([*command, "--expect", head]) == exits.OK
    assert json.loads((main([*command, "--json"]), capsys.readouterr().out.splitlines()[-1])[1])["records"] == 2
    (settings_for(tmp_path).store_dir / "audit").write_bytes(b"")
    assert main(command) == exits.ERROR
    assert "an anchor for 2 records: the last ones were removed" in capsys.readouterr().err


@pytest.mark.parametrize("harm", ["gone", "empty", "a record less", "cut off"])
@in_a_loop
async def test_the_command_knows_how_long_the_audit_was_when_the_edge_stopped(tmp_path, capsys, harm):
    """No anchor tells of the last minute."""
    path = settings_for(tmp_path).store_dir / "audit"
    async with world(tmp_path) as w:
        for _ in range(3):
            await auditor_of(w).note("ada", "login", "console")
            sizes = path.stat().st_size
        await auditor_of(w).note("eve", "login", "console")
    command = ["audit", "verify", "--data", str(tmp_path)]
    assert main(command) == exits.OK
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "a record less": content[:sizes], "cut off": content[:-7]}[harm])
    assert main(command) == exits.ERROR
    assert "escrow store repair" in capsys.readouterr().err
