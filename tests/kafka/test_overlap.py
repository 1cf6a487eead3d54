"""A batch is collected while the one before it is settled: what this may not change. Broker, Spark and job are real, in this
process; the tests stand between the job and its release tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from runtime.settings import Settings
from runtime.settings import load as load_settings
from sinks.kafka.redo import unpack_entries
from sinks.kafka.task import Done, Task
from store.tables.redo_log import RedoKind, kinds_of
from streaming.kafka.executors import Executors
from streaming.kafka.service import KafkaJobService
from streaming.spark.session import make_run_directory
from tests.support.kafka import Cluster
from tests.support.kafka_world import DEADLINE_S, KafkaWorld
from tests.support.spark import own_spark

pytestmark = pytest.mark.timeout(900)

PER_BATCH, MESSAGES = 100, 600
#: Called with the number of a task that releases something.
Gate = Callable[[int], None]


def open_gate(_number: int) -> None:
    return None


class GatedExecutors(Executors):
    def __init__(self, before: Gate, after: Gate) -> None:
        super().__init__()
        self.before, self.after, self.tasks = before, after, 0

    def run(self, task: Task) -> Done | str:
        # One without entries: a shard that had no batch for a while says where it stands.
        if not task.packed_entries or RedoKind.RELEASE not in kinds_of(unpack_entries(task.packed_entries)):
            return super().run(task)
        self.tasks += 1
        number = self.tasks
        self.before(number)
        done = super().run(task)
        self.after(number)
        return done


class GatedJob(KafkaJobService):
    def __init__(self, settings: Settings, before: Gate, after: Gate) -> None:
        self.gates = GatedExecutors(before, after)
        super().__init__(settings, executors=self.gates)

    @property
    def collected(self) -> int:
        """Batches that Spark has brought."""
        name, labels = "escrow_batch_phase_seconds_count", {"phase": "collect"}
        return int(self.metrics.registry.get_sample_value(name, labels) or 0)

    @property
    def query_runs(self) -> bool:
        query = self.lifecycle.query
        return query is not None and query.isActive


class World(KafkaWorld):
    """One shard; a backlog of committed halves, several batches long."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(cluster, flags=[f"maxRecordsPerBatch={PER_BATCH}"])
        self.topic = topic
        for name in (self.half, self.op):
            cluster.create_topic(name, message_timestamp_type="LogAppendTime")
        cluster.create_topic(topic)
        for sent in [self.send_half(b"%d" % number, topic) for number in range(MESSAGES)]:
            self.send_op((0, sent.get(60).offset), "COMMIT")
        self.producer.flush(60)

    def __enter__(self) -> World:
        return self

    @contextmanager
    def job(self, spark: SparkSession, before: Gate = open_gate, after: Gate = open_gate) -> Iterator[GatedJob]:
        settings = load_settings(None, [f"dataDir={self.root / 'data'}", *self.flags], {})
        service = GatedJob(settings, before, after)
        try:
            assert service.take_over(timeout_s=DEADLINE_S)
            service.start(spark, make_run_directory(settings) / "checkpoint")
            yield service
        finally:
            service.stop()

    def numbers(self) -> list[int]:
        return [int(message.value()) for message in self.released(self.topic)]

    def settle_the_rest(self, spark: SparkSession) -> None:
        """The next job: all are released then, once each, in order."""
        with self.job(spark) as service:
            await_that(lambda: len(self.numbers()) >= MESSAGES or service.failure())
            assert service.failure() is None
            assert self.numbers() == list(range(MESSAGES))


def await_that(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.fixture(scope="module")
def spark(kafka: Cluster) -> Iterator[SparkSession]:
    with KafkaWorld(kafka) as world:
        settings = load_settings(None, [f"dataDir={world.root / 'spark'}", *world.flags], {})
        with own_spark(settings) as session:
            yield session


def test_the_next_batch_is_collected_meanwhile_and_settled_after_it(kafka: Cluster, spark: SparkSession) -> None:
    released_at: list[int] = []

    def before(number: int) -> None:
        if number <= 3:
            await_that(lambda: service.collected > number)
        released_at.append(len(world.numbers()))

    with World(kafka, "overlap") as world, world.job(spark, before) as service:
        await_that(lambda: len(world.numbers()) >= MESSAGES or service.failure())
        assert service.failure() is None
        assert world.numbers() == list(range(MESSAGES))
        assert service.collected <= service.gates.tasks + 1, "one batch waits, not more"
    assert released_at == sorted(set(released_at)), "each began when the one before was visible"


@pytest.mark.parametrize("written", [False, True])
def test_a_batch_that_fails_ends_the_job_and_the_one_that_waits_is_not_settled(
    kafka: Cluster, spark: SparkSession, written: bool
) -> None:
    def fail(number: int) -> None:
        if number == 2:
            await_that(lambda: service.collected > 2)  # the next one is there and waits
            raise RuntimeError("the test's own")

    with World(kafka, f"fails-{'after' if written else 'before'}-it-is-written") as world:
        with world.job(spark, open_gate if written else fail, fail if written else open_gate) as service:
            await_that(lambda: service.failure() is not None)
            assert service.failure() == "RuntimeError: the test's own"
            await_that(lambda: not service.query_runs)
            assert service.gates.tasks == 2
            seen = world.numbers()
            assert seen == list(range(len(seen)))
            assert 0 < len(seen) <= (2 if written else 1) * PER_BATCH
        world.settle_the_rest(spark)


def test_the_last_batch_that_fails_ends_the_job_too(kafka: Cluster, spark: SparkSession) -> None:
    """Nothing comes behind it that could be told."""

    def after(_number: int) -> None:
        if len(world.numbers()) == MESSAGES:
            raise RuntimeError("the test's own")

    with World(kafka, "fails-last") as world:
        with world.job(spark, after=after) as service:
            await_that(lambda: service.failure() is not None)
            assert service.failure() == "RuntimeError: the test's own"
        world.settle_the_rest(spark)


@pytest.mark.parametrize("waits", [False, True])
def test_a_stop_while_one_is_settled_and_one_waits(kafka: Cluster, spark: SparkSession, waits: bool) -> None:
    """`waits`: the task does not come back before the stop has given up waiting for it."""
    at_work, over = threading.Event(), threading.Event()

    def before(number: int) -> None:
        if number == 2:
            await_that(lambda: service.collected > 2)
            at_work.set()
            await_that(over.is_set if waits else service.lifecycle.stopping.is_set)

    with World(kafka, f"stops-{waits}") as world:
        with world.job(spark, before) as service:
            await_that(at_work.is_set)
            service.stop()
            over.set()
            await_that(lambda: all(done.done() for part in service.parts.values() for done, _ in part.at_work))
            assert service.lifecycle.error is None
            assert service.gates.tasks == 2, "the one that waited was dropped"
            if waits:
                service.parts[0].shard.close(clean=False)  # in this process nobody else would
        world.settle_the_rest(spark)


def test_kills_of_the_whole_job_while_one_is_settled_and_one_waits(kafka: Cluster) -> None:
    with World(kafka, "killed") as world:
        for part in (1, 2):
            job = world.start()
            world.await_released(world.topic, part * MESSAGES // 4)
            job.kill()
            seen = world.numbers()
            assert seen == list(range(len(seen)))
        world.start()
        assert [int(m.value()) for m in world.await_released(world.topic, MESSAGES)] == list(range(MESSAGES))
