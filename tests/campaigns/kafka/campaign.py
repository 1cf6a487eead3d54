"""The campaign: kill -9 of driver, executor, broker leader and endpoint at random, under load; then read_committed consumers see
exactly the commits.

    python -m tests.campaigns.kafka.campaign --kills 100 --seed 7         (make chaos-kafka KAFKA_KILLS=100 SEED=7)

The long form runs three brokers and a standalone Spark cluster of two workers. Kinds of kills:
    driver     the job's process with its Java side
    jvm        its Java side alone
    worker     a Python worker of Spark: where release tasks run
    executor   the Java side of an executor (standalone cluster)
    broker     the leader of a random half partition; it is started again
    endpoint   the HTTP endpoint; it is started again, one time in four in an empty directory
    store      as driver, and the job's data directory is emptied: the next start rebuilds it from Kafka
and, not counted among the kills:
    outage     no broker answers for a minute
Only a kill of a living process counts. Dead parts are started again at once, while the load goes on. A kill is recovered from when
a message comes out that was written after it (of an endpoint: when an end is acknowledged).
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.campaigns.kafka.load import SETTLE_S, DirectLoad, EndpointLoad, Promised, Seen, audit, audit_halves, both, numbers_of
from tests.support.endpoint import Endpoint, quiet_port
from tests.support.kafka import Cluster, kafka_cluster
from tests.support.kafka_world import Job, KafkaWorld, processes
from tests.support.spark_cluster import SparkCluster, spark_cluster

REAL_PARTITIONS = 3
OUTAGE_S = 60.0
#: Kinds and how often each; an outage comes once in fifty kills.
WEIGHTS = {"driver": 3, "jvm": 1, "worker": 5, "executor": 4, "broker": 4, "endpoint": 4, "store": 1}
FLAGS = (
    f"idKeys={'5e' * 32}",
    "sparkDriverMemory=512MiB",
    "kafkaTransactionTimeout=30s",
    # Checks soon and often; nobody is given up because his endpoint was killed fifteen times.
    "transactionTimeOut=2s",
    "transactionCheckInterval=3s",
    "transactionCheckMax=255",
)


@dataclass(slots=True)
class Kill:
    """`reached`: where the real topic ended when it was done, and how many ends the endpoint had acknowledged."""

    kind: str
    at_s: float
    reached: dict[int, int]
    acknowledged: int
    recovered_s: float | None = None


class Watch:
    """A read_committed consumer that follows the real topic all the time, and sees when the system goes on after a kill."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        options = {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 2}
        options |= {"isolation.level": "read_committed", "auto.offset.reset": "error", "reconnect.backoff.max.ms": 1000}
        self._consumer = Consumer(options)
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(REAL_PARTITIONS)])
        self.seen: list[Seen] = []
        self._reached: dict[int, int] = {}
        self.kills: list[Kill] = []
        self.load: EndpointLoad | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, timeout=0.1):
                if message.error() is None:
                    self.seen.append(Seen.of(message))
                    self._reached[self.seen[-1].partition] = self.seen[-1].offset + 1
            for kill in self.kills:
                if kill.recovered_s is None and self._goes_on_after(kill):
                    kill.recovered_s = time.monotonic() - kill.at_s
                    _say(f"goes on {kill.recovered_s:.1f} s after {kill.kind}")
        self._consumer.close()

    def _goes_on_after(self, kill: Kill) -> bool:
        if kill.kind == "endpoint":
            return self.load is not None and self.load.acknowledged > kill.acknowledged
        return any(offset > kill.reached.get(partition, 0) for partition, offset in self._reached.items())

    def ends(self) -> dict[int, int]:
        """Where the real topic ends, with what is not committed yet."""
        wanted = {TopicPartition(self._topic, partition): OffsetSpec.latest() for partition in range(REAL_PARTITIONS)}
        while True:
            with contextlib.suppress(KafkaException):  # a broker was killed a moment ago
                admin = self._cluster.admin()  # a new one: an old one keeps to leaders that were
                return {at.partition: future.result(60).offset for at, future in admin.list_offsets(wanted).items()}
            time.sleep(0.2)

    def killed(self, kind: str, reached: dict[int, int] | None = None) -> None:
        at_s, acknowledged = time.monotonic(), self.load.acknowledged if self.load is not None else 0
        self.kills.append(Kill(kind, at_s, self.ends() if reached is None else reached, acknowledged))
        _say(f"killed {kind} ({len(self.kills)})")

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(60)


class Campaign:
    """`run`, then `report`; `close` whatever happens."""

    def __init__(self, cluster: Cluster, seed: int, partitions: int = 2, spark: SparkCluster | None = None) -> None:
        self.rng, self.spark, self.partitions = random.Random(seed), spark, partitions
        flags = [*FLAGS, *([*spark.flags, "sparkExecutorMemory=512MiB"] if spark is not None else [])]
        self.world, self.cluster = KafkaWorld(cluster, partitions, flags), cluster
        self.topic = f"{self.world.name}.paid"
        cluster.create_topic(self.topic, REAL_PARTITIONS)
        self.watch = Watch(cluster, self.topic)
        self.outages = 0
        self.stored_twice = 0
        self.began_s = time.monotonic()
        self._job: Job | None = None
        self.endpoint: Endpoint | None = None

    # --- the parts ---
    def keep_alive(self) -> Job:
        if self._job is None or not self._job.alive:
            self._job = self.world.start(wait=False)
        assert self.endpoint is None or self.endpoint.process.poll() is None, (
            f"the endpoint ended by itself: {self.endpoint.stop()}"
        )
        return self._job

    def pause(self, seconds: float) -> None:
        """Let it work for a while; what died by itself (a driver that lost its Java) is started again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.keep_alive()
            time.sleep(0.1)

    def until_it_works(self) -> None:
        """Until the last kill is recovered from and the job is ready."""
        end = time.monotonic() + SETTLE_S
        while not self.keep_alive().ready or any(kill.recovered_s is None for kill in self.watch.kills):
            assert time.monotonic() < end, self.keep_alive().tail()
            time.sleep(0.1)

    # --- kills ---
    def kill(self, kind: str) -> bool:
        """False where nobody of that kind lives."""
        job = self.keep_alive()
        if kind in ("driver", "store"):
            job.kill()
            self.watch.killed(kind)
            if kind == "store":
                shutil.rmtree(job.directory / "store")
        elif kind == "broker":
            self._kill_broker()
        elif kind == "endpoint":
            self._kill_endpoint()
        elif kind == "outage":
            self._outage()
        else:
            return self._kill_one_of(self._victims(kind, job), kind)
        return True

    def _kill_broker(self) -> None:
        found = self.cluster.admin().list_topics(self.world.half, timeout=60).topics[self.world.half].partitions
        leader = found[self.rng.randrange(self.partitions)].leader
        broker = next((broker for broker in self.cluster.brokers if broker.node_id == leader), self.cluster.brokers[0])
        reached = self.watch.ends()  # now: later nobody may answer
        broker.kill()
        self.watch.killed("broker", reached)
        self.pause(self.rng.uniform(0, 3))
        broker.start()
        self.cluster.wait()

    def _kill_endpoint(self) -> None:
        assert self.endpoint is not None
        self.endpoint.kill()
        self.watch.killed("endpoint")
        if self.rng.random() < 0.25:
            shutil.rmtree(self.endpoint.data)
        self.endpoint.start()

    def _outage(self) -> None:
        for broker in self.cluster.brokers:
            broker.pause()
        before = len(self.watch.seen)
        _say("no broker answers")
        try:
            self.pause(OUTAGE_S)
        finally:
            for broker in self.cluster.brokers:
                broker.resume()
        self.cluster.wait()
        self.outages += 1
        meanwhile = len(self.watch.seen) - before
        _say(f"the brokers answer again; {meanwhile} messages meanwhile")

    def _kill_one_of(self, victims: list[int], kind: str) -> bool:
        with contextlib.suppress(ProcessLookupError, IndexError):
            os.kill(self.rng.choice(victims), signal.SIGKILL)
            self.watch.killed(kind)
            return True
        return False

    def _victims(self, kind: str, job: Job) -> list[int]:
        sessions = [job.process.pid, *(self.spark.sessions if self.spark is not None else [])]
        mark = {
            "jvm": "org.apache.spark.deploy.SparkSubmit",
            "worker": "daemon pyspark.worker",
            "executor": "CoarseGrainedExecutorBackend",
        }[kind]
        found = [pid for session in sessions for pid in processes(session, mark)]
        # The daemon forks the workers that run tasks; they have its command line.
        return [pid for pid in found if kind != "worker" or _parent(pid) in found] or found

    # --- from beginning to end ---
    def run(self, kinds: Sequence[str], at_most_s: float = math.inf) -> None:
        """Kills of these kinds, one after another, for as long as there is time; then what must be true is true."""
        job = self.keep_alive()
        self.endpoint = Endpoint(self.world.root / "edge", *self.world.flags, port=quiet_port())
        job.wait_ready()
        with self._loads():
            for kind in kinds:
                if time.monotonic() > self.began_s + at_most_s:
                    break
                while not self.kill(kind):  # nobody of that kind lives yet
                    self.pause(0.5)
                if self.rng.random() < 0.7:
                    self.until_it_works()
                self.pause(self.rng.uniform(0, 2))
            self.until_it_works()
        self.settle()

    @contextlib.contextmanager
    def _loads(self) -> Iterator[None]:
        assert self.endpoint is not None
        self.direct = DirectLoad(self.world, self.topic, self.partitions, self.rng.randrange(1 << 32))
        self.over_http = self.watch.load = EndpointLoad(self.topic, self.endpoint.port, self.rng.randrange(1 << 32))
        try:
            self.pause(1.0)
            yield
        finally:
            self.direct.stop()
            self.over_http.stop()

    @property
    def promised(self) -> Promised:
        return both(self.direct.promised, self.over_http.promised)

    def settle(self) -> None:
        """Until every check is answered and every commit is out; then no part runs any more, and the books are compared."""
        end = time.monotonic() + SETTLE_S
        while self.over_http.left_open or self.promised.committed - {message.number for message in self.watch.seen}:
            assert time.monotonic() < end, self.keep_alive().tail()
            self.pause(0.5)
        self.over_http.close()
        problems = [*self.direct.problems, *self.over_http.problems]
        assert not problems, problems[:5]
        self.keep_alive().wait_ready().stop()
        assert self.endpoint is not None
        self.endpoint.stop()
        promised = self.promised
        audit([Seen.of(message) for message in self.world.released(self.topic)], promised)  # who comes after it all
        audit(self.watch.seen, promised)  # who was there all the time
        self.stored_twice = audit_halves(numbers_of(self.cluster.read_all(self.world.half)), promised)

    def close(self) -> None:
        self.watch.close()
        if self.endpoint is not None:
            self.endpoint.kill()
        self.world.__exit__()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1


def report(campaign: Campaign) -> None:
    direct, http = campaign.direct, campaign.over_http
    print(f"{'kind':10} kills  recovered after, median and longest")
    for kind, count in sorted(Counter(kill.kind for kill in campaign.watch.kills).items()):
        times = [kill.recovered_s for kill in campaign.watch.kills if kill.kind == kind and kill.recovered_s is not None]
        print(f"{kind:10} {count:5}  {statistics.median(times):.1f} s, {max(times):.1f} s")
    took_s = time.monotonic() - campaign.began_s
    print(f"kills {len(campaign.watch.kills)}, outages of {OUTAGE_S:.0f} s: {campaign.outages}, in {took_s:.0f} s")
    print(
        f"straight to Kafka: {direct.sent} halves, {len(direct.promised.committed)} committed, {direct.rolled_back} rolled back, "
        f"{direct.undecided} never ended"
    )
    print(
        f"by the endpoint: {http.sent} halves, {len(http.promised.committed)} committed, {http.rolled_back} rolled back "
        f"({http.answered_checks} of both by check-back), {http.given_up} given up by their producer, "
        f"{len(http.promised.unknown)} commits of unknown fate; {http.repeated} requests repeated ({_told(http.refused)}); "
        f"{campaign.stored_twice} halves stored again by a repetition, none of them released"
    )
    print(f"VERDICT: read_committed consumers saw exactly the commits ({len(campaign.watch.seen)}), once each, in order by key")


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"


def chosen(kills: int, rng: random.Random) -> list[str]:
    """Kinds in random order, each about as often as its weight says, and every fiftieth time an outage."""
    kinds = [*WEIGHTS, *rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=max(0, kills - len(WEIGHTS)))][:kills]
    kinds += ["outage"] * (kills // 50)
    rng.shuffle(kinds)
    return kinds


def main(argv: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.kafka.campaign")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no kills after that")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args(None if argv is None else list(argv))
    print(f"SEED={args.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # and nothing is left behind
    with kafka_cluster(3) as cluster, spark_cluster(2) as spark:
        campaign = Campaign(cluster, args.seed, partitions=4, spark=spark)
        try:
            campaign.run(chosen(args.kills, random.Random(args.seed)), 60 * args.minutes)
            report(campaign)
        finally:
            campaign.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
