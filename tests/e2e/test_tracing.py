"""One trace from half to release and to the consumer, through real processes, as a collector receives it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.edge_client import EdgeClient

GROUP = "traced"

#: An application with an OpenTelemetry of its own. It prints its trace, and what it told of itself.
APPLICATION = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import escrow

told = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(told))
trace.set_tracer_provider(provider)
with escrow.Producer(sys.argv[1], "traced-app") as producer, trace.get_tracer("shop").start_as_current_span("pay") as span:
    producer.send_in_transaction(escrow.Message("traced-app", "paid"), lambda message, arg: escrow.Outcome.COMMIT)
    trace_id = span.get_span_context().trace_id
names = [each.name for each in told.get_finished_spans() if each.context.trace_id == trace_id]
print(json.dumps({"trace_id": f"{trace_id:032x}", "names": names}))
"""


@pytest.fixture
def client(run):
    with EdgeClient(run.port) as made:
        yield made


def names(run, trace_id):
    return {span.name: span for span in run.traces.of_trace(trace_id)}


def test_from_the_half_over_a_check_to_the_release_and_the_consumer(run, client):
    (id,) = client.prepare([{"group": GROUP, "topic": "traced", "text": "silent"}])
    (check,) = run.until(lambda: [each for each in client.poll_checks(GROUP, "m", wait_s=5) if each["id"] == id])
    _, trace_id, span_id, flags = check["properties"]["traceparent"].split("-")
    assert int(flags, 16) & 1, "sampled"
    assert client.end(GROUP, id, "commit", from_check=True)["verdict"] == "accepted"
    (message,) = client.consume("traced", wait_s=10)
    assert message["properties"] == check["properties"], "the consumer gets the same"
    expected = {"half traced", "check traced", "answer traced", "release traced", "consume traced"}
    run.until(lambda: names(run, trace_id).keys() >= expected)
    found = names(run, trace_id)
    assert found.keys() == expected
    assert (found["half traced"].parent_id, found["half traced"].span_id) == ("", span_id), "the half is the root"
    assert {span.parent_id for name, span in found.items() if name != "half traced"} == {span_id}
    assert {name: span.service for name, span in found.items() if span.service != "escrow-edge"} == {"release traced": "escrow-job"}
    assert {span.attributes["escrow.transaction_id"] for span in found.values() if span.service == "escrow-edge"} == {id}
    assert found["answer traced"].attributes["escrow.verdict"] == "accepted"
    assert all(span.start_ns <= span.end_ns for span in found.values())


def test_an_application_with_a_trace_of_its_own(run, client):
    """What its OpenTelemetry began goes on in Escrow; the SDK adds the local transaction and the end."""
    words = [sys.executable, "-c", APPLICATION, f"http://127.0.0.1:{run.port}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env=run.environ)
    told = json.loads(done.stdout)
    assert told["names"] == ["local transaction", "end", "pay"]
    (message,) = client.consume("traced-app", wait_s=10)
    assert message["properties"]["traceparent"].split("-")[1] == told["trace_id"]
    expected = {"half traced-app", "end traced-app", "release traced-app", "consume traced-app"}
    run.until(lambda: names(run, told["trace_id"]).keys() >= expected)
    assert names(run, told["trace_id"]).keys() == expected


def test_who_is_not_sampled_is_left_alone(run, client):
    """A producer that decided against a trace is not traced; its message keeps what it said."""
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
    (id,) = client.prepare([{"group": GROUP, "topic": "untraced", "text": "x", "properties": {"traceparent": given}}])
    client.end(GROUP, id, "commit")
    (message,) = client.consume("untraced", wait_s=10)
    assert message["properties"] == {"traceparent": given}
    run.until(lambda: client.transaction(id)["settled"])
    assert run.traces.of_trace("0af7651916cd43dd8448eb211c80319c") == []
