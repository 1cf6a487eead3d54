"""The campaign: kill -9 of driver, executor, broker at random, under load; then read_committed consumers see exactly the commits.

    python -m tests.kafka.campaign --kills 100 --seed 7         (make chaos-kafka KILLS=100 SEED=7)

The long form runs three brokers and a standalone Spark cluster of two workers. Kinds of kills:
    driver     the job's process with its Java side
    jvm        its Java side alone
    worker     a Python worker of Spark: where release tasks run
    executor   the Java side of an executor (standalone cluster)
    broker     a broker, the leader of a random half partition; it is started again
    store      as driver, and the job's data directory is emptied: the next start rebuilds it from Kafka
Only a kill of a living process counts. Dead parts are started again at once, while the load goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer

from escrow.processes import session_members
from tests.support.kafka import Cluster, kafka_cluster
from tests.support.kafka_world import Job, KafkaWorld
from tests.support.spark_cluster import SparkCluster, spark_cluster

SETTLE_S = 900.0
KEYS = 12
REAL_PARTITIONS = 3
REAL_TOPIC = "paid"


class Load:
    """A producer that never stops: halves with keys, and what became of each. Retries are the client's, idempotent."""

    def __init__(self, world: KafkaWorld, partitions: int, seed: int) -> None:
        self._world, self._partitions, self._rng = world, partitions, random.Random(seed)
        options = {"bootstrap.servers": world.cluster.bootstrap, "enable.idempotence": True, "log_level": 2, "linger.ms": 2}
        self._producer = Producer({**options, "delivery.timeout.ms": 1_800_000, "message.timeout.ms": 1_800_000})
        self.committed: list[int] = []
        self.rolled_back = self.undecided = self.sent = self.ops_acknowledged = self.ops_sent = 0
        self.problems: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for _ in range(self._rng.randrange(1, 20)):
                self._half()
            # About 300 a second: kills should meet a job that settles, not a backlog that nobody could work off.
            self._producer.poll(0)
            self._stopping.wait(self._rng.uniform(0.0, 0.06))
        self._producer.flush(SETTLE_S)

    def _half(self) -> None:
        number, self.sent = self.sent, self.sent + 1
        key = number % KEYS
        outcome = self._rng.choices(("COMMIT", "ROLLBACK", None), (7, 2, 1))[0]
        headers = [("escrow-group", b"orders"), ("escrow-topic", REAL_TOPIC.encode()), ("escrow-immunity", b"86400")]
        self._produce(
            self._world.half, b"%d" % number, key=b"key-%d" % key, partition=key % self._partitions, headers=headers,
            on_delivery=lambda error, message: self._stored(error, message, number, outcome),
        )  # fmt: skip

    def _produce(self, topic: str, value: bytes, **options: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, value, **options)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _stored(self, error: Any, message: Message, number: int, outcome: str | None) -> None:
        if error is not None:
            self.problems.append(f"half {number}: {error}")
            return
        if outcome is None:
            self.undecided += 1
            return
        self.ops_sent += 1
        headers = [
            ("escrow-op", outcome.encode()),
            ("escrow-half-offset", b"%d" % (message.offset() or 0)),
            ("escrow-group", b"orders"),
        ]
        times = 2 if self._rng.random() < 0.05 else 1  # said twice: still one delivery
        for _ in range(times):
            self._produce(
                self._world.op, b"", partition=message.partition(), headers=headers,
                on_delivery=lambda error, _message: self._ended(error, number, outcome),
            )  # fmt: skip
        if outcome == "COMMIT":
            self.committed.append(number)
        else:
            self.rolled_back += 1

    def _ended(self, error: Any, number: int, outcome: str) -> None:
        if error is not None:
            self.problems.append(f"{outcome} of {number}: {error}")
        self.ops_acknowledged += 1

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive(), "Kafka does not take the load's last records"


def audit(messages: Sequence[Any], committed: Sequence[int]) -> None:
    """Exactly the commits, once each, in order by key."""
    counts = Counter(int(message.value()) for message in messages)
    twice = [number for number, count in counts.items() if count > 1]
    assert not twice, f"released more than once: {sorted(twice)[:10]}"
    strange = set(counts) - set(committed)
    assert not strange, f"released although nobody committed it: {sorted(strange)[:10]}"
    missing = set(committed) - set(counts)
    assert not missing, f"committed and not released: {sorted(missing)[:10]}"
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for message in sorted(messages, key=lambda message: (message.partition(), message.offset())):
        by_key[message.key()].append(int(message.value()))
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"{key!r} is out of order"


class Campaign:
    def __init__(self, cluster: Cluster, seed: int, partitions: int = 2, spark: SparkCluster | None = None) -> None:
        self.rng, self.spark, self.partitions = random.Random(seed), spark, partitions
        flags = ["sparkDriverMemory=512MiB", "kafkaTransactionTimeout=30s"]
        if spark is not None:
            flags += [f"sparkMaster={spark.url}", "sparkExecutorMemory=512MiB"]
        self.world = KafkaWorld(cluster, partitions, flags)
        self.cluster = cluster
        self.kills: Counter[str] = Counter()
        self.load: Load | None = None
        self._job: Job | None = None

    # --- the job ---
    def keep_alive(self) -> Job:
        if self._job is None or not self._job.alive:
            self._job = self.world.start(wait=False)
        return self._job

    def pause(self, seconds: float) -> None:
        """Let it work for a while; what died by itself (a driver that lost its Java) is started again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.keep_alive()
            time.sleep(0.1)

    def until_it_releases(self) -> None:
        """Until the job is ready and a message has come out since."""
        job = self.keep_alive()
        end, seen = time.monotonic() + SETTLE_S, self._released()
        while not job.ready or self._released() == seen:
            job = self.keep_alive()
            assert time.monotonic() < end, job.tail()
            time.sleep(0.2)

    def _released(self) -> int:
        admin = self.cluster.admin()
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(REAL_TOPIC, partition): OffsetSpec.latest() for partition in range(REAL_PARTITIONS)}
        with contextlib.suppress(Exception):  # a broker is down: nothing is known now
            return sum(future.result(10).offset for future in admin.list_offsets(wanted).values())
        return -1

    # --- kills ---
    def kill(self, kind: str) -> bool:
        """False where nobody of that kind lives."""
        job = self.keep_alive()
        if kind in ("driver", "store"):
            job.kill()
            if kind == "store":
                shutil.rmtree(job.directory / "store")
        elif kind == "broker":
            broker = self.rng.choice(self.cluster.brokers)
            broker.kill()
            self.pause(self.rng.uniform(0, 3))
            broker.start()
            self.cluster.wait()
        else:
            victims = self._victims(kind, job)
            if not victims:
                return False
            try:
                os.kill(self.rng.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                return False
        self.kills[kind] += 1
        print(f"{time.strftime('%H:%M:%S')} killed {kind} ({sum(self.kills.values())})", flush=True)
        return True

    def _victims(self, kind: str, job: Job) -> list[int]:
        sessions = [job.process.pid, *(self.spark.sessions if self.spark is not None else [])]
        mark = {
            "jvm": "org.apache.spark.deploy.SparkSubmit",
            "worker": "pyspark.daemon",
            "executor": "CoarseGrainedExecutorBackend",
        }[kind]
        found = [pid for session in sessions for pid in session_members(session) if mark in _command(pid)]
        # The daemon forks the workers that run tasks; they have its command line.
        return [pid for pid in found if kind != "worker" or _parent(pid) in found] or found

    def run(self, kinds: Sequence[str]) -> None:
        self.cluster.create_topic(REAL_TOPIC, REAL_PARTITIONS)
        self.keep_alive().wait_ready()
        self.load = Load(self.world, self.partitions, self.rng.randrange(1 << 32))
        try:
            self.until_it_releases()
            for kind in kinds:
                while not self.kill(kind):  # nobody of that kind lives yet
                    self.pause(0.5)
                if self.rng.random() < 0.7:
                    self.until_it_releases()
                self.pause(self.rng.uniform(0, 2))
        finally:
            self.load.stop()
        self.settle()

    def settle(self) -> None:
        load = self.load
        assert load is not None
        assert not load.problems, load.problems[:5]
        end = time.monotonic() + SETTLE_S
        while len(self.world.released(REAL_TOPIC)) < len(load.committed):
            job = self.keep_alive()
            assert time.monotonic() < end, job.tail()
            time.sleep(0.5)
        assert self._job is not None
        self._job.wait_ready()
        self._job.stop()
        audit(self.world.released(REAL_TOPIC), load.committed)

    def close(self) -> None:
        self.world.__exit__()


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1


def report(campaign: Campaign) -> None:
    load = campaign.load
    assert load is not None
    print(f"kills {sum(campaign.kills.values())}: {dict(campaign.kills)}")
    print(f"halves {load.sent}, committed {len(load.committed)}, rolled back {load.rolled_back}, undecided {load.undecided}")
    print("read_committed consumers saw exactly the commits, once each, in order by key")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.campaign")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    print(f"SEED={args.seed}", flush=True)
    rng = random.Random(args.seed)
    kinds = rng.choices(("driver", "jvm", "worker", "executor", "broker", "store"), (2, 1, 2, 2, 2, 1), k=args.kills)
    with kafka_cluster(3) as cluster, spark_cluster(2) as spark:
        campaign = Campaign(cluster, args.seed, partitions=4, spark=spark)
        try:
            campaign.run(kinds)
        finally:
            campaign.close()
        report(campaign)
    return 0


if __name__ == "__main__":
    sys.exit(main())
