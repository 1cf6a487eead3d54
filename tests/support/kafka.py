"""A real Kafka for tests: brokers (KRaft, each its own controller) from Maven jars, on free loopback ports.

`kafka_cluster(3)` starts three. A broker is killed and started again by itself; its data and its ports stay. Jars are kept in the
user's cache directory, so that only the first run downloads.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sinks.kafka.redo import take
from streaming.spark import jars
from tests.support.certificates import Pair
from tests.support.tools import require_tool

DEADLINE_S = 120.0
CLUSTER_ID = "ZXNjcm93LXRlc3RzLWthZg"
BROKER_POM = Path(__file__).with_name("kafka-broker-pom.xml")
SASL_USER, SASL_PASSWORD = "escrow", "a secret"
#: Small heaps and the first compiler only: the machine has little of everything, and a test is short.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
JAVA = ("-Xms128m", "-Xmx400m", "-XX:+UseSerialGC", FIRST_COMPILER)

#: A broker that was killed is let in again when the one that it was is given up: after nine seconds by default.
ALONE = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}


def cached_jars(pom: Path) -> Path:
    """The directory with a pom's jars, resolved at the first use."""
    require_tool("mvn")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "escrow-jars" / f"{pom.stem}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    jars.resolve(pom.read_bytes(), pom.with_suffix(".lock").read_bytes(), directory)
    return directory


def connector_dir() -> Path:
    """kafkaJarsDir for jobs of tests."""
    return cached_jars(Path(jars.__file__).with_name("kafka-pom.xml"))


@dataclass(frozen=True, slots=True)
class Security:
    """A listener with SASL_SSL (SCRAM-SHA-512) beside the others, and ACLs: who logs in there may do what he was given, no more.
    Who comes by the plain listener, the tests themselves, may do everything."""

    users: Mapping[str, str]  # passwords
    authority: Path
    server: Pair


@dataclass(slots=True)
class Broker:
    node_id: int
    port: int
    sasl_port: int
    tls_port: int
    directory: Path
    jars: Path
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Begin to start; `Cluster.wait` waits until it serves."""
        assert self.process is None or self.process.poll() is not None
        if self.log is None:
            self.log = (self.directory / "log").open("ab")
        command = [require_tool("java"), *JAVA, "-cp", f"{self.jars}/*", "kafka.Kafka", str(self.directory / "server.properties")]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)

    def pause(self) -> None:
        """Out of reach: connections stay, nobody answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(DEADLINE_S)
        if self.log is not None:
            self.log.close()
            self.log = None


@dataclass(slots=True)
class Cluster:
    directory: Path
    brokers: list[Broker]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def sasl_bootstrap(self) -> str:
        """The same brokers where they ask for SASL_USER and SASL_PASSWORD (mechanism PLAIN)."""
        return ",".join(f"127.0.0.1:{broker.sasl_port}" for broker in self.brokers)

    @property
    def tls_bootstrap(self) -> str:
        """The same brokers where `Security` reigns."""
        return ",".join(f"127.0.0.1:{broker.tls_port}" for broker in self.brokers)

    def wait(self, count: int | None = None) -> None:
        """Until all brokers (or `count`) are there and lead what they should."""
        wanted, end = count or len(self.brokers), time.monotonic() + DEADLINE_S
        admin = self.admin()
        while True:
            try:
                found = admin.list_topics(timeout=5)
                leaderless = [p for topic in found.topics.values() for p in topic.partitions.values() if p.leader < 0]
                if len(found.brokers) >= wanted and not leaderless:
                    return
            except KafkaException:
                pass
            assert time.monotonic() < end, (self.brokers[0].directory / "log").read_text()[-4000:]
            time.sleep(0.1)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        copies = min(3, len(self.brokers))
        admin = self.admin()  # must live until the answer is there
        admin.create_topics([NewTopic(name, partitions, copies, config=settings)])[name].result(DEADLINE_S)

    def delete_topic(self, name: str) -> None:
        """Back when its name is free again."""
        admin = self.admin()
        admin.delete_topics([name])[name].result(DEADLINE_S)
        end = time.monotonic() + DEADLINE_S
        while name in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < end, f"topic {name} is still there"
            time.sleep(0.1)

    def read_all(self, topic: str, *, isolation: str = "read_committed") -> list[Any]:
        """Every message that is in a topic now, by partition and offset."""
        options = {"bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": "false", "log_level": 2}
        # The end is told when the broker has waited for more in vain: half a second by default, and tests look often.
        options |= {"isolation.level": isolation, "enable.partition.eof": "true", "fetch.wait.max.ms": 10}
        consumer = Consumer(options)
        try:
            partitions = sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            left, messages = set(partitions), []
            while left:
                for message in take(consumer, 1000, timeout_s=1.0):
                    if message.error() is None:
                        messages.append(message)
                    else:
                        left.discard(message.partition())
            return sorted(messages, key=lambda message: (message.partition(), message.offset()))
        finally:
            consumer.close()


@contextmanager
def kafka_cluster(count: int = 1, *, security: Security | None = None) -> Iterator[Cluster]:
    """A running cluster; skips the test, or fails it in CI, where Java or Maven are not installed."""
    classes = cached_jars(BROKER_POM)
    directory = Path(tempfile.mkdtemp(prefix="escrow-kafka-"))
    ports = free_ports(4 * count)
    ours, sasl, tls, controllers = (ports[at::4] for at in range(4))
    brokers = [Broker(at + 1, ours[at], sasl[at], tls[at], directory / f"broker{at + 1}", classes) for at in range(count)]
    voters = ",".join(f"{broker.node_id}@127.0.0.1:{port}" for broker, port in zip(brokers, controllers, strict=True))
    cluster = Cluster(directory, brokers)
    try:
        for broker, controller_port in zip(brokers, controllers, strict=True):
            secured = _secured(broker, security) if security is not None else {}
            _format(broker, _properties(broker, controller_port, voters, count, secured), security)
            broker.start()
        cluster.wait()
        yield cluster
    finally:
        for broker in brokers:
            broker.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _properties(broker: Broker, controller_port: int, voters: str, count: int, extra: Mapping[str, str]) -> dict[str, str]:
    copies = str(min(3, count))
    listeners = {"PLAINTEXT": broker.port, "SASL_PLAINTEXT": broker.sasl_port}
    if "authorizer.class.name" in extra:
        listeners["SASL_SSL"] = broker.tls_port
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker.node_id),
        "controller.quorum.voters": voters,
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in [*listeners.items(), ("CONTROLLER", controller_port)]),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'user_{SASL_USER}="{SASL_PASSWORD}";',
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": ",".join(["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in listeners)]),
        "log.dirs": str(broker.directory / "data"),
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": str(max(1, int(copies) - 1)),
        "transaction.state.log.num.partitions": "4",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "log.flush.interval.messages": "9223372036854775807",
        "log.segment.delete.delay.ms": "100",  # files of a deleted topic: a minute otherwise
        **(ALONE if count == 1 else {}),
        **extra,
    }


def _secured(broker: Broker, security: Security) -> dict[str, str]:
    listener = "listener.name.sasl_ssl"
    return {
        f"{listener}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        f"{listener}.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.certificate.chain": _one_line(security.server.cert),
        f"{listener}.ssl.keystore.key": _one_line(security.server.key),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }


def _one_line(pem: Path) -> str:
    """As a value in a properties file."""
    return pem.read_text().replace("\n", "\\n")


def _format(broker: Broker, properties: Mapping[str, str], security: Security | None) -> None:
    broker.directory.mkdir()
    file = broker.directory / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    tool = [require_tool("java"), *JAVA, "-cp", f"{broker.jars}/*", "kafka.tools.StorageTool"]
    command = [*tool, "format", "--cluster-id", CLUSTER_ID, "--config", str(file)]
    for user, password in security.users.items() if security is not None else ():
        command += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={password}]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now; all at once, so that they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
