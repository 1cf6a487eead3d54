"""Load: many producers, many polls that wait, ten times too much. Nothing is lost, refused wrongly or left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from store.inspect.verify.store import verify
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import allow_files, figures, running, until_idle
from tests.support.load_clients import Line, Peak, lines, together, until
from tests.support.load_store import GEOMETRY, halves_in
from tests.support.standin import Standin

PRODUCERS, ROUNDS = 1_000, 3
POLLS = 2_000
GROWTH_MAX_BYTES = 300 << 20


def half(group, topic, text):
    return {"group": group, "topic": topic, "text": text}


async def ended(line, group, id, outcome):
    answer = await line.ask("POST", "/v1/ends", {"ends": [{"group": group, "id": id, "outcome": outcome}]})
    assert answer.status == 200, answer
    assert answer.content["answers"][0]["verdict"] == "accepted", answer


# --- producers -------------------------------------------------------------------------------------------------------------------
async def produce(line, number):
    """A producer's life: halves, each committed or rolled back; the bodies of what it committed."""
    committed = []
    for at in range(ROUNDS):
        texts = [f"{number} {at} {each}" for each in "ab"]
        answer = await line.ask("POST", "/v1/halves", {"messages": [half(f"g{number % 50}", "t", text) for text in texts]})
        assert answer.status == 200, answer
        (first, second) = answer.content["halves"]
        await ended(line, f"g{number % 50}", first["id"], "commit")
        await ended(line, f"g{number % 50}", second["id"], "rollback")
        committed.append(texts[0].encode())
    return committed


def test_a_thousand_producers(tmp_path):
    allow_files(4096)
    with running(tmp_path / "data", *GEOMETRY) as endpoint, EdgeClient(endpoint.port) as client:
        client.prepare([half("g0", "t", "the first one makes the files")])

        async def story():
            async with Peak(endpoint) as peak, lines(endpoint.port, PRODUCERS) as made:
                bodies = await together(produce(line, number) for number, line in enumerate(made))
            return [body for each in bodies for body in each], peak.growth

        committed, growth = asyncio.run(story())
        print(f"{PRODUCERS} producers: private memory grew by {growth / (1 << 20):.1f} MiB at most")
        assert growth < GROWTH_MAX_BYTES
        until_idle(client)
        assert client.status()["half_end"] == 1 + 2 * PRODUCERS * ROUNDS
        seen: Counter[bytes] = Counter()
        while seen.total() < len(committed):
            found = client.consume("t", max=1000, wait_s=5)
            seen.update(message["body"] for message in found)
            client.ack("t", [message["receipt"] for message in found])
        assert seen == Counter(committed), "each that was acknowledged is there, once"
        assert endpoint.stop() == (0, "")
    assert halves_in(tmp_path / "data" / "store") == 1 + 2 * PRODUCERS * ROUNDS
    assert verify(tmp_path / "data" / "store").problems == []


# --- polls -----------------------------------------------------------------------------------------------------------------------
def test_two_thousand_polls_that_wait(tmp_path):
    """Half of them for checks, half for messages; each of a group and topic of its own."""
    allow_files(8192)
    flags = (*GEOMETRY, "pollWaitMax=600s", "transactionTimeOut=1s", "transactionCheckInterval=1s", "presenceTtl=6s")
    with (
        running(tmp_path / "data", *flags) as endpoint,
        Standin(tmp_path / "data", *flags),
        EdgeClient(endpoint.port) as client,
    ):
        (asked,) = client.prepare([half("g7", "t", "asked about")])
        until_idle(client)
        files = endpoint.files()
        asyncio.run(_hold_polls(endpoint, client, asked))
        until_idle(client)
        assert endpoint.files() == files
        assert endpoint.stop() == (0, "")


async def _hold_polls(endpoint, client, asked):
    def waiting():
        return client.status()["checks"]["polls_waiting"], client.status()["consumption"]["polls_waiting"]

    async with Peak(endpoint) as peak, lines(endpoint.port, POLLS) as made:
        checks, messages = made[: POLLS // 2], made[POLLS // 2 :]
        connected = endpoint.private_bytes()
        for number, line in enumerate(checks):
            await line.send("GET", f"/v1/groups/g{number}/checks?member=m&wait_s=600")
        for number, line in enumerate(messages):
            await line.send("GET", f"/v1/topics/t{number}/messages?group=c&consumer=m&wait_s=600")
        # One of them is answered as soon as the job asks about its half.
        await until(lambda: sum(waiting()) >= POLLS - 1)
        answer = await checks[7].answer()
        assert [check["id"] for check in answer.content["checks"]] == [asked]
        # Others are served, and what they do wakes the right one.
        id, other = await asyncio.to_thread(client.prepare, [half("h", "t11", "for 11"), half("h", "t12", "for nobody")])
        await asyncio.to_thread(client.end, "h", other, "rollback")
        await asyncio.to_thread(client.end, "h", id, "commit")
        (message,) = (await messages[11].answer()).content["messages"]
        assert message["transaction_id"] == id
        await asyncio.to_thread(client.end, "g7", asked, "commit", from_check=True)
        await until(lambda: waiting() == (POLLS // 2 - 1, POLLS // 2 - 1))
        answered = {checks[7], messages[11]}
        assert all(line.silent for line in made if line not in answered), "nobody else was woken for nothing"
        await _poll_again(checks[7], messages[11])
        await until(lambda: waiting() == (POLLS // 2, POLLS // 2))
        held = endpoint.private_bytes()
    grew, idle = held - peak.before, connected - peak.before
    each = f"{grew / POLLS / 1024:.1f} KiB each, of which the connection {idle / POLLS / 1024:.1f}"
    print(f"{POLLS} polls held: {grew / (1 << 20):.1f} MiB, {each}")
    assert peak.growth < GROWTH_MAX_BYTES


async def _poll_again(checks, messages):
    await checks.send("GET", "/v1/groups/g7/checks?member=m&wait_s=600")
    await messages.send("GET", "/v1/topics/t11/messages?group=c&consumer=m&wait_s=600&max=1")


# --- too much ---------------------------------------------------------------------------------------------------------------------
OFFERERS, OFFERS = 64, 40
OVERLOADS = {
    "queue": (("maxQueuedSize=64KiB",), "overloaded", 60_000),
    "rate": (("groupRateMax=20",), "quota", 100),
    "pending": (("groupPendingMax=50",), "quota", 100),
    "receiving": (("maxReceivingSize=1MiB", "maxRequestSize=512KiB"), "overloaded", 200_000),
}


@pytest.mark.parametrize("limit", OVERLOADS)
def test_far_more_than_is_taken(tmp_path, limit):
    """Every answer is 200 or 429, what was accepted is ended and durable, ends go through all the while; then it is as before."""
    flags, code, size = OVERLOADS[limit]
    counts: Counter[int] = Counter()
    ids: list[str] = []

    async def offer(line):
        for _ in range(OFFERS):
            answer = await line.ask("POST", "/v1/halves", {"messages": [half("g", "t", "x" * size)]})
            counts[answer.status] += 1
            if answer.status == 200:
                ids.append(answer.content["halves"][0]["id"])
                if limit != "pending":
                    await ended(line, "g", ids[-1], "commit")
                continue
            assert (answer.status, answer.content["code"]) == (429, code), answer
            assert int(answer.headers["retry-after"]) >= 1

    async def story():
        async with Peak(endpoint) as peak, lines(endpoint.port, OFFERERS) as made:
            await together(offer(line) for line in made)
        return peak.growth

    with running(tmp_path / "data", *GEOMETRY, *flags) as endpoint, EdgeClient(endpoint.port) as client:
        if limit == "pending":  # the limit holds from the first count on
            while not client.status()["quotas"]["pending_counted"]:
                pass
        growth = asyncio.run(story())
        print(f"{limit}: {counts.total()} offered, {counts[200]} taken; private memory grew by {growth / (1 << 20):.1f} MiB")
        assert min(counts[200], counts[429]) > 0
        assert growth < GROWTH_MAX_BYTES
        if limit == "pending":
            assert len(ids) == 50
            assert {client.end("g", id, "commit")["verdict"] for id in ids} == {"accepted"}
        until_idle(client)
        assert client.status()["half_end"] == len(ids) == counts[200]
        _takes_again(client, wait=limit == "rate")
        endpoint.kill()
    assert halves_in(tmp_path / "data" / "store") == len(ids) + 1
    assert verify(tmp_path / "data" / "store").problems == []


def _takes_again(client, *, wait):
    """At once; with a rate when the bucket has filled a little."""
    body = {"messages": [half("g", "t", "again")]}
    while (status := client.raw("POST", "/v1/halves", body)[0]) != 200:
        assert wait
        assert status == 429


def test_a_crowd_that_only_connects(tmp_path):
    """Beyond maxConnections the connections that say nothing make room for others; then there is room again."""
    allow_files(4096)
    with running(tmp_path / "data", *GEOMETRY, "maxConnections=100") as endpoint:

        async def story():
            async def knock(line):
                with suppress(EOFError, ConnectionError):
                    answer = await line.ask("GET", "/livez")
                    assert (answer.status, answer.content.get("code")) in ((200, None), (503, "overloaded")), answer
                    return answer.status
                return 0

            async with lines(endpoint.port, 600) as made:
                return Counter(await together(knock(line) for line in made))

        counts = asyncio.run(story())
        assert counts[200] >= 99
        assert counts[0] > 0, "some were hung up on"
        with EdgeClient(endpoint.port) as client:
            until_idle(client)
            assert figures(client)["escrow_connections_refused_total"] > 0
        assert asyncio.run(_one(endpoint.port)) == 200


async def _one(port):
    line = await Line.open(port)
    try:
        return (await line.ask("GET", "/livez")).status
    finally:
        await line.close()
