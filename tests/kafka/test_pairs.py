"""Every kind of edge with every wrapper: it starts, takes a half, ends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.distributions import installer
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import Endpoint, until
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld
from tests.support.otlp import Receiver

KEYS = f"idKeys={'5e' * 32}"
SMALL = ("commitLogSegmentSize=1MiB", "maxBodySize=64KiB", "tranStateTableMapedFileSize=24000")
POINTS = "[escrow.transaction_service]\nnoting = noting_service:Noting\n"
#: Passes everything on, and writes down what it was asked.
NOTING = """
import os
class Noting:
    def __init__(self, root, inner): self.inner = inner
    def _note(self, what):
        with open(os.environ["NOTED_IN"], "a") as file: file.write(what + "\\n")
    def open(self): pass
    def prepare(self, halves): self._note("prepare"); return self.inner.prepare(halves)
    def commit(self, ends): self._note("commit"); return self.inner.commit(ends)
    def rollback(self, ends): self._note("rollback"); return self.inner.rollback(ends)
    def check(self, group, member, requests): return requests
    def close(self): pass
"""


@pytest.fixture(scope="module")
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(kafka, flags=[KEYS]) as made:
        kafka.create_topic("paid-in-pairs", 1)
        yield made


@pytest.fixture
def traces() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.mark.parametrize("mode", ["embedded", "kafka"])
@pytest.mark.parametrize("wrapped", ["plain", "traced", "plugged", "traced and plugged"])
def test_it_starts_takes_a_half_and_ends_it(
    *, mode: str, wrapped: str, tmp_path: Path, world: KafkaWorld, traces: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, noted = list(world.flags if mode == "kafka" else SMALL), tmp_path / "noted"
    environment = {"NOTED_IN": str(noted)}
    if "traced" in wrapped:
        flags.append(f"otlpEndpoint={traces.url}")
    if "plugged" in wrapped:
        installer(tmp_path / "site", monkeypatch)("noting", POINTS, noting_service=NOTING)
        environment |= {"PYTHONPATH": str(tmp_path / "site"), "ESCROW_PLUGINS": os.environ["ESCROW_PLUGINS"]}
    half = {"group": "orders", "topic": "paid-in-pairs", "text": "hello"}
    with Endpoint(tmp_path / "data", *flags, environment=environment) as endpoint, EdgeClient(endpoint.port) as client:
        one, other = client.prepare([half, half])
        assert client.end("orders", one, "commit")["verdict"] == "accepted"
        assert client.end("orders", one, "commit")["verdict"] == "already"
        assert client.end("orders", other, "rollback")["verdict"] == "accepted"
        assert client.transaction(one)["state"] == "COMMITTED"
        if "traced" in wrapped:
            until(lambda: len(traces.spans) >= 5, lambda: traces.spans)
            halves = {span.span_id for span in traces.spans if span.name == "half paid-in-pairs"}
            ends = [span.parent_id for span in traces.spans if span.name == "end paid-in-pairs"]
            assert (len(halves), len(ends), set(ends)) == (2, 3, halves)
        assert endpoint.stop() == (0, "")
    assert (noted.read_text().split() if noted.exists() else []) == (
        ["prepare", "commit", "commit", "rollback"] if "plugged" in wrapped else []
    )


def test_after_a_restart_kafka_tells_the_trace(tmp_path: Path, world: KafkaWorld, traces: Receiver) -> None:
    flags = [*world.flags, f"otlpEndpoint={traces.url}"]
    with Endpoint(tmp_path / "one", *flags) as endpoint, EdgeClient(endpoint.port) as client:
        (id,) = client.prepare([{"group": "orders", "topic": "paid-in-pairs", "text": "hello"}])
        until(lambda: traces.spans)
    with Endpoint(tmp_path / "other", *flags) as endpoint, EdgeClient(endpoint.port) as client:
        client.end("orders", id, "commit")
        until(lambda: len(traces.spans) == 2, lambda: traces.spans)
    half, end = traces.spans
    assert (end.name, end.parent_id) == ("end paid-in-pairs", half.span_id)


def test_what_kafka_mode_does_not_offer_is_not_in_its_openapi(tmp_path: Path, world: KafkaWorld) -> None:
    with Endpoint(tmp_path, *world.flags) as endpoint, EdgeClient(endpoint.port) as client:
        paths = client.call("GET", "/openapi.json")["paths"]
    assert {"/v1/halves", "/v1/ends", "/v1/transactions/{id}", "/v1/operator/actions"} <= paths.keys()
    absent = {"/v1/topics/{topic}/messages", "/v1/operator/transactions", "/v1/operator/audit", "/v1/operator/topics"}
    assert not absent & paths.keys()
