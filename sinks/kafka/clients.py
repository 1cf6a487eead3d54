"""Options of Kafka clients, from plain values (runtime.settings.Settings.kafka_values), and the topics that must be there.

Two families of clients with two dialects: librdkafka (confluent-kafka, for the data) and Java (Spark's source). Secrets are read
from their files when the options are made, never logged, and reach executors inside the task that needs them.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from sinks.errors import KafkaUnfit
from sinks.kafka import topic_settings
from sinks.kafka.contract import Topics

LOG: Final = logging.getLogger("escrow.kafka")
ADMIN_S: Final = 60.0
LOOK_S: Final = 3.0
RECONNECT_MS: Final = 1_000
#: Half, op, redo and discard topic keep records for so many times fileReservedTime.
HALVES_KEPT: Final = 2
#: The active segment of a compacted topic is not compacted, and a start reads it all.
ENDS_SEGMENT_BYTES: Final = 16 << 20
#: librdkafka wants a group of whoever reads, and asks the brokers for it. Nobody joins this one, and no offset is committed in it.
NO_GROUP: Final = "escrow-reads-only"

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the brokers."""

    bootstrap_servers: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: str = ""
    sasl_password_file: str = ""
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""

    @property
    def password(self) -> str:
        return _text(self.sasl_password_file).strip() if self.sasl_password_file else self.sasl_password

    def librdkafka(self, **more: Any) -> Options:
        """Options of a confluent-kafka client. Files are passed as their content: an executor need not have them."""
        options: Options = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            # What fails is told by whoever uses the client; one level more, and every connection that fails writes to stderr.
            "log_level": 2,
            # By default a client that found no broker for a while looks again after ten seconds only.
            "reconnect.backoff.max.ms": RECONNECT_MS,
        }
        if self.security_protocol.startswith("SASL"):
            options |= {"sasl.mechanism": self.sasl_mechanism, "sasl.username": self.sasl_username, "sasl.password": self.password}
        for name, file in (
            ("ssl.ca.pem", self.tls_ca_file),
            ("ssl.certificate.pem", self.tls_cert_file),
            ("ssl.key.pem", self.tls_key_file),
        ):
            if file:
                options[name] = _text(file)
        return {**options, **{name.replace("_", "."): value for name, value in more.items()}}

    def java(self) -> dict[str, str]:
        """The same for Java's clients."""
        options = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.security_protocol}
        if self.security_protocol.startswith("SASL"):
            module = "plain.PlainLoginModule" if self.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
            login = f'username="{_escaped(self.sasl_username)}" password="{_escaped(self.password)}"'
            options["sasl.mechanism"] = self.sasl_mechanism
            options["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {login};"
        if self.tls_ca_file:
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(self.tls_ca_file)}
        if self.tls_cert_file:
            options |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": _text(self.tls_cert_file)}
            options["ssl.keystore.key"] = _text(self.tls_key_file)
        return options

    def kafka_python(self) -> dict[str, Any]:
        """The same for kafka-python, which reads the files itself."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "security_protocol": self.security_protocol,
            "request_timeout_ms": int(1000 * LOOK_S),
        }
        if self.security_protocol.startswith("SASL"):
            options |= {"sasl_mechanism": self.sasl_mechanism, "sasl_plain_username": self.sasl_username}
            options["sasl_plain_password"] = self.password
        files = {"ssl_cafile": self.tls_ca_file, "ssl_certfile": self.tls_cert_file, "ssl_keyfile": self.tls_key_file}
        return options | {name: file for name, file in files.items() if file}

    def admin(self) -> AdminClient:
        return AdminClient(self.librdkafka())

    def require_login(self, timeout_s: float) -> None:
        """Until a broker has let us in. KafkaUnfit where it will not; KafkaException where none answers."""
        heard: list[KafkaError] = []
        admin, give_up_s = AdminClient(self.librdkafka() | {"error_cb": heard.append}), time.monotonic() + timeout_s
        while True:
            try:
                admin.list_topics(timeout=LOOK_S)
                return
            except KafkaException:
                admin.poll(0)
                problem = next((problem for error in heard if (problem := self._login_problem(error))), "")
                if problem:
                    raise KafkaUnfit(f"Kafka at {self.bootstrap_servers}: {problem}") from None
                if time.monotonic() > give_up_s:
                    raise

    def _login_problem(self, error: KafkaError) -> str:
        """What to change, in the words of the settings; "" where waiting may help."""
        if error.code() == KafkaError._AUTHENTICATION:
            secret = "the file of kafkaSaslPasswordFile" if self.sasl_password_file else "kafkaSaslPassword"
            return (
                f"it does not let kafkaSaslUsername {self.sasl_username!r} in ({error.str()}): set kafkaSaslUsername, {secret} and "
                f"kafkaSaslMechanism (now {self.sasl_mechanism}) as the brokers know them"
            )
        if error.code() == KafkaError._SSL:
            return (
                f"no TLS with it ({error.str()}): kafkaTlsCaFile must hold the certificates that sign the brokers' ones, and "
                "kafkaBootstrapServers the names in these; brokers that ask for a client's certificate want kafkaTlsCertFile"
            )
        return ""


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError as error:
        raise KafkaUnfit(f"{file}: {error.strerror}: give this user access to it") from error


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


# --- topics ---------------------------------------------------------------------------------------------------------------
def ensure_topics(
    connection: Connection,
    topics: Topics,
    *,
    partitions: int,
    replication: int,
    min_insync: int,
    retention_ms: int,
    repair: bool = False,
) -> int:
    """Make the topics that are missing, look at those that are there; the number of shards. `repair`: those that would lose what is
    needed are changed, not refused."""
    connection.require_login(ADMIN_S)
    admin = connection.admin()
    there = admin.list_topics(timeout=ADMIN_S).topics
    shards = len(there[topics.half].partitions) if topics.half in there else partitions
    logged = {topic_settings.TIMESTAMP_TYPE: topic_settings.LOG_APPEND}
    kept = topic_settings.kept(HALVES_KEPT * retention_ms)
    wanted = {
        topics.half: (shards, logged | kept),
        topics.op: (shards, logged | kept),
        topics.redo: (shards, logged | kept),
        topics.check: (partitions, topic_settings.kept(retention_ms)),
        topics.discard: (shards, kept),
        topics.lease: (1, logged),  # drivers ask for the brokers' time there
        topics.ends: (shards, {topic_settings.CLEANUP: "compact"}),
        topics.keys: (partitions, logged | topic_settings.kept(retention_ms)),
    }
    common = {"min.insync.replicas": str(min_insync)}
    made_with = {topics.ends: {"segment.bytes": str(ENDS_SEGMENT_BYTES)}}
    missing = [
        NewTopic(name, count, replication, config=common | config | made_with.get(name, {}))
        for name, (count, config) in wanted.items()
        if name not in there
    ]
    _create(admin, missing)
    add_partitions(connection, topics, shards)
    topic_settings.require(
        admin, {name: config for name, (_, config) in wanted.items()}, repair=repair, told=LOG.warning
    )  # fmt: skip
    return shards


def _create(admin: AdminClient, missing: list[NewTopic]) -> None:
    if not missing:
        return
    for name, made in admin.create_topics(missing, operation_timeout=ADMIN_S).items():
        try:
            made.result(ADMIN_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody else was faster
                raise KafkaUnfit(f"topic {name} cannot be made: {error.args[0].str()}") from error


def add_partitions(connection: Connection, topics: Topics, shards: int) -> None:
    """Op, redo, discard and ends topic get as many partitions as there are shards; more is left as it is."""
    admin = connection.admin()
    there = admin.list_topics(timeout=ADMIN_S).topics
    short = [
        name
        for name in (topics.op, topics.redo, topics.discard, topics.ends)
        if name in there and len(there[name].partitions) < shards
    ]
    if not short:
        return
    for name, made in admin.create_partitions([NewPartitions(name, shards) for name in short]).items():
        try:
            made.result(ADMIN_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_PARTITIONS:  # somebody else was faster
                reason = f"it has fewer partitions than the half topic, {shards}, and none can be added: {error.args[0].str()}"
                raise KafkaUnfit(f"topic {name}: {reason}") from error


def topic_ids(admin: AdminClient, names: list[str]) -> dict[str, str]:
    """What Kafka calls a topic of this name, for good: one that is made anew has another id. "" of brokers that give none."""
    found = admin.describe_topics(TopicCollection(names), request_timeout=ADMIN_S)
    ids = {name: str(described.result(ADMIN_S).topic_id) for name, described in found.items()}
    return {name: "" if set(id) <= {"A", "="} else id for name, id in ids.items()}


def shard_count(admin: AdminClient, topics: Topics) -> int:
    """Partitions of the half topic now."""
    return len(admin.list_topics(topics.half, timeout=ADMIN_S).topics[topics.half].partitions)


def end_watcher(connection: Connection) -> Consumer:
    """For `bounds_of`: the end of a partition with what stands behind an open transaction, which nobody may read yet."""
    options = {"group.id": NO_GROUP, "isolation.level": "read_uncommitted", "enable.auto.commit": False}
    return Consumer({**connection.librdkafka(), **options})


def bounds_of(consumer: Consumer, topic: str, partition: int, timeout_s: float = 30.0) -> tuple[int, int]:
    """(begin, end) of a partition. Asked again while its leader is being found: a topic that was just made has none yet, one
    whose broker died neither. A client that reads nothing of a topic does not look for its new leaders by itself: it is told to."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            asking_s = min(LOOK_S, timeout_s)
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=asking_s, cached=False)
            return int(low), int(high)
        except KafkaException:
            if time.monotonic() > give_up_s:
                raise
            with suppress(KafkaException):
                consumer.list_topics(topic, timeout=asking_s)
            time.sleep(0.1)
