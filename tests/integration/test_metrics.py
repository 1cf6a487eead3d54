"""What the driver tells Prometheus: every figure is scraped over HTTP, and each is seen to move for the right reason."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families

from store.records import OpKind, Via
from streaming.spark.listener import PHASES
from tests.support.job_world import JobWorld, spoil


class Scraper:
    """Reads the metrics as Prometheus would."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def look(self) -> Scraper:
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            text = answer.read().decode()
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return self

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples.get((name, tuple(sorted(labels.items()))), 0.0)

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for found, labels in self.samples if found == name}


@contextmanager
def scraping(world: JobWorld) -> Iterator[Scraper]:
    server, thread = start_http_server(0, "127.0.0.1", world.job.metrics.registry)
    try:
        yield Scraper(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _until(true, what: str) -> None:
    give_up_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.02)


def test_settlement_and_checks(make_world):
    """Pending, oldest pending age, settled by outcome and via, checks emitted and held, discards by reason, both histograms."""
    world = make_world("transactionCheckMax=1", "fileReservedTime=1")
    with scraping(world) as metric:
        assert metric.look()("escrow_pending") == 0
        halves = [world.half(b"%d" % n) for n in range(6)]
        away = world.half(group="away")
        world.settle()
        world.clock.advance(5)
        assert metric.look()("escrow_pending") == 7
        assert metric("escrow_oldest_pending_age_seconds") == 5

        world.commit(halves[0])
        world.rollback(halves[1])
        world.commit(halves[2], group=None, via=Via.OPERATOR)
        world.clock.advance(3)  # the ends lie there for three seconds before a batch comes
        world.settle()
        metric.look()
        assert metric("escrow_pending") == 4
        assert metric("escrow_settled_total", outcome="commit", via="producer") == 1
        assert metric("escrow_settled_total", outcome="rollback", via="producer") == 1
        assert metric("escrow_settled_total", outcome="commit", via="operator") == 1
        assert (metric("escrow_decision_seconds_count"), metric("escrow_decision_seconds_sum")) == (3, 15)
        assert (metric("escrow_release_seconds_count"), metric("escrow_release_seconds_sum")) == (2, 6)

        world.online()
        requests = world.round()
        assert requests == halves[3:]
        world.hand_over(requests)
        world.commit(halves[3], via=Via.CHECK)
        world.rollback(halves[4], via=Via.CHECK)
        world.settle()
        metric.look()
        assert metric("escrow_checks_emitted_total") == 3
        assert metric("escrow_checks_held") == 1  # nobody of the group away is there
        assert metric("escrow_settled_total", outcome="commit", via="check") == 1
        assert metric("escrow_settled_total", outcome="rollback", via="check") == 1
        assert metric("escrow_check_rounds_total") >= 2

        world.round()
        world.round()
        assert world.turn_proposals()[0] == (halves[5], "ACCEPTED")
        world.round(3_600)
        assert world.turn_proposals()[0] == (away, "ACCEPTED")
        world.settle()
        metric.look()
        assert metric("escrow_discard_proposals_total", reason="check_max") >= 1
        assert metric("escrow_discard_proposals_total", reason="expired") >= 1
        assert metric("escrow_discards_total", reason="check_max") == 1
        assert metric("escrow_discards_total", reason="expired") == 1
        assert metric("escrow_settled_total", outcome="discard_max", via="checker") == 1
        assert metric("escrow_settled_total", outcome="discard_expired", via="checker") == 1
        assert (metric("escrow_pending"), metric("escrow_oldest_pending_age_seconds")) == (0, 0)
        assert metric("escrow_transactions_total", event="prepares") == 7
        assert metric("escrow_transactions_total", event="commits") == 3


def test_batches_store_and_spark(make_world, monkeypatch):
    """Batch phases, records behind, redo flush time, store sizes, quarantined records, and Spark's own progress."""
    monkeypatch.setattr("streaming.metrics_feed._SIZES_EVERY_S", 0.0)
    world = make_world("retentionInterval=1h", start=False)
    halves = world.halves(b"%d" % n for n in range(4))
    world.end_all(halves[:3], OpKind.COMMIT)
    spoil(world, world.edge.half_queue.read(3, 4)[0])
    spoil(world, world.edge.op_queue.read(2, 3)[0])
    world.start_job()
    with scraping(world) as metric:
        world.settle()
        metric.look()
        assert metric("escrow_quarantined_total", queue="half") == 1
        assert metric("escrow_quarantined_total", queue="op") == 1
        assert (metric("escrow_records_read_total", queue="half"), metric("escrow_records_read_total", queue="op")) == (4, 3)
        flushes, log_bytes = metric("escrow_redo_flush_seconds_count"), metric("escrow_store_bytes", part="commitlog")
        assert flushes >= 1
        assert metric("escrow_redo_flush_seconds_sum") > 0
        for part in ("commitlog", "half", "op", "ends", "transaction"):
            assert metric("escrow_store_bytes", part=part) > 0, part

        with world.job._lock:  # no batch can be settled
            world.end_all(world.halves(b"x" * 8_000 for _ in range(30)), OpKind.ROLLBACK)
            world.end_all(world.halves(b"x" * 8_000 for _ in range(30)), OpKind.ROLLBACK)
            metric.look()
            assert (metric("escrow_records_behind", queue="half"), metric("escrow_records_behind", queue="op")) == (60, 60)
        world.clock.advance(3_601)
        world.settle()
        metric.look()
        assert (metric("escrow_records_behind", queue="half"), metric("escrow_records_behind", queue="op")) == (0, 0)
        assert metric("escrow_redo_flush_seconds_count") > flushes
        assert metric("escrow_store_bytes", part="commitlog") > log_bytes
        phases = {"collect", "settle", "round", "notify", "retention"}
        assert metric.labels("escrow_batch_phase_seconds_count", "phase") == phases
        for phase in phases:
            assert metric("escrow_batch_phase_seconds_count", phase=phase) >= 1
            assert metric("escrow_batch_phase_seconds_sum", phase=phase) > 0

        _until(lambda: metric.look()("escrow_spark_batches_total") >= 2, "Spark reports its batches")
        _until(lambda: metric.look()("escrow_query_up") == 1, "the query is up")
        batch = metric("escrow_spark_batch_id")
        told = metric.labels("escrow_spark_phase_seconds_count", "phase")
        assert {"addBatch", "triggerExecution", "latestOffset"} <= told <= PHASES
        assert metric("escrow_spark_phase_seconds_sum", phase="triggerExecution") > 0
        time.sleep(1.1)  # the listener takes a sample a second
        world.settle()
        _until(lambda: metric.look()("escrow_spark_batch_id") > batch, "the batch id moves on")
        registry = world.job.metrics.registry
        world.stop_job()
        _until(lambda: registry.get_sample_value("escrow_query_up") == 0, "the query is down")
