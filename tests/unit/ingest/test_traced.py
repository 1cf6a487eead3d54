"""The edge with tracing, on its core: which spans there are, whose children, and what tracing may not do."""

from __future__ import annotations

import asyncio

import pytest

from ingest.plugged import PluggedEnds, PluggedHalves, PluggedPolls
from ingest.traced import TracedEnds, TracedHalves, TracedPolls
from store.edge.append.encode import PROPERTIES_MAX_BYTES
from store.errors import InvalidRecord
from tests.support.distributions import example, installer
from tests.support.edge_world import world
from tests.support.otlp import Receiver

GIVEN = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@pytest.fixture
def traces():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def play(play, traces):
    """The edge sends its spans to `traces`."""
    return lambda story: play(story, f"otlpEndpoint={traces.url}")


async def until_told(w, traces, count):
    await w.until(lambda: len(traces.spans) >= count)


def test_a_transaction_and_who_consumed_it(play, traces):
    async def story(w):
        id = await w.half()
        await w.end(id, "commit")
        assert await w.pull_bodies() == [b"body"]
        await until_told(w, traces, 3)

    play(story)
    half = next(span for span in traces.spans if span.name == "half t")
    others = {span.name: span for span in traces.spans if span is not half}
    assert half.parent_id == ""
    assert others.keys() == {"end t", "consume t"}
    assert {(span.trace_id, span.parent_id) for span in others.values()} == {(half.trace_id, half.span_id)}
    assert others["end t"].attributes["escrow.outcome"] == "commit"
    assert others["consume t"].attributes["messaging.consumer.group.name"] == "c"


def test_after_a_restart_the_frame_tells_the_trace(play, traces):
    async def story(w):
        id = await w.half(properties=GIVEN)
        await w.restart_edge()
        await w.end(id, "rollback", remark="sold out")
        await until_told(w, traces, 2)

    play(story)
    spans = {span.name: span for span in traces.spans}
    assert {span.trace_id for span in spans.values()} == {GIVEN["traceparent"].split("-")[1]}
    assert {span.parent_id for span in spans.values()} == {GIVEN["traceparent"].split("-")[2]}, "both are the producer's children"
    assert spans["end t"].attributes["escrow.remark"] == "sold out"


def test_checks_and_answers(play, traces):
    async def story(w):
        id = await w.half()
        await w.poll()
        w.round()
        await w.waiting(1)
        assert await w.poll() == [id]
        await w.end(id, "unknown", from_check=True)
        await until_told(w, traces, 3)

    play(story)
    assert {span.name for span in traces.spans} == {"half t", "check t", "answer t"}
    assert len({span.trace_id for span in traces.spans}) == 1


def test_a_message_that_is_full_goes_without_a_trace(play, traces):
    """Tracing may not be why a half is refused."""

    async def story(w):
        full = {"x": "y" * (PROPERTIES_MAX_BYTES - 64)}
        await w.end(await w.half(properties=full), "commit")
        (message,) = await w.pull()
        assert message.properties == full

    play(story)


def test_a_half_that_is_refused_and_an_id_that_is_none(play, traces):
    async def story(w):
        with pytest.raises(InvalidRecord):
            await w.half(topic="no/name")
        assert await w.end("no-such-id", "commit") == "refused"
        await until_told(w, traces, 1)

    play(story)
    assert [span.name for span in traces.spans] == ["half no/name"]


def test_with_a_transaction_service_that_is_plugged_in(tmp_path, play, traces, monkeypatch):
    install = installer(tmp_path / "site", monkeypatch)
    points = "[escrow.transaction_service]\nhours = business_hours:BusinessHours\n"
    install("hours", points, business_hours=example("business_hours"))

    async def story(w):
        asked = w.asked
        assert [type(each) for each in (asked.halves, asked.ends, asked.polls)] == [TracedHalves, TracedEnds, TracedPolls]
        inside = [type(each.next) for each in (asked.halves, asked.ends, asked.polls)]
        assert inside == [PluggedHalves, PluggedEnds, PluggedPolls]
        await w.end(await w.half(), "commit")
        await until_told(w, traces, 2)

    play(story)
    assert {span.name for span in traces.spans} == {"half t", "end t"}


def test_without_an_endpoint_it_is_the_plain_edge(tmp_path):
    async def story():
        async with world(tmp_path / "data") as w:
            assert {w.asked.halves, w.asked.ends, w.asked.polls, w.asked.messages} == {w.edge}
            assert w.asked.offers.deliveries is w.edge.consumption

    asyncio.run(story())
