"""Keys of Kafka mode."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings.declare import DAY_MS, key


@dataclass(frozen=True)
class Kafka:
    """Topics, groups, limits and security of Kafka mode."""

    mode: str = key(
        "mode", "choice", '"embedded"', "Where halves and ops are stored: in dataDir, or in Kafka.",
        choices=("embedded", "kafka"),
    )  # fmt: skip
    kafka_bootstrap_servers: str = key(
        "kafkaBootstrapServers", "text", '""', "Bootstrap brokers: host:port,host:port.",
    )  # fmt: skip
    kafka_half_topic: str = key(
        "kafkaHalfTopic", "text", '"RMQ_SYS_TRANS_HALF_TOPIC"', "Topic of the halves.",
    )  # fmt: skip
    kafka_op_topic: str = key(
        "kafkaOpTopic", "text", '"RMQ_SYS_TRANS_OP_HALF_TOPIC"',
        "Topic of the ops, which end transactions.",
    )  # fmt: skip
    kafka_redo_topic: str = key(
        "kafkaRedoTopic", "text", '"TRANSACTION_REDOLOG_TOPIC"',
        "Topic of the redo log. Only the job writes to it.",
    )  # fmt: skip
    kafka_check_topic: str = key(
        "kafkaCheckTopic", "text", '"ESCROW_CHECK_TOPIC"',
        "Topic of the check requests, keyed by producer group.",
    )  # fmt: skip
    kafka_discard_topic: str = key(
        "kafkaDiscardTopic", "text", '"TRANS_CHECK_MAX_TIME_TOPIC"', "Topic of the discarded halves.",
    )  # fmt: skip
    kafka_lease_topic: str = key(
        "kafkaLeaseTopic", "text", '"ESCROW_LEASE_TOPIC"',
        "Topic with one partition; the driver that holds the partition is the master.",
    )  # fmt: skip
    kafka_ends_topic: str = key(
        "kafkaEndsTopic", "text", '"ESCROW_ENDS_TOPIC"',
        "Topic of the outcomes of halves. An edge reads it at start.",
    )  # fmt: skip
    kafka_keys_topic: str = key(
        "kafkaKeysTopic", "text", '"ESCROW_KEYS_TOPIC"',
        "Topic of the dedup keys. It keeps the partitions that it was made with.",
    )  # fmt: skip
    kafka_partitions: int = key(
        "kafkaPartitions", "count", "4", "Partitions of topics that Escrow creates.",
        least=1, most=65_535,
    )  # fmt: skip
    kafka_replication: int = key(
        "kafkaReplication", "count", "3", "Replicas of topics that Escrow creates.",
        least=1, most=32_767,
    )  # fmt: skip
    kafka_min_insync: int = key(
        "kafkaMinInsync", "count", "2", "min.insync.replicas of topics that Escrow creates.",
        least=1, most=32_767,
    )  # fmt: skip
    kafka_repair_topics: bool = key(
        "kafkaRepairTopics", "switch", "false",
        "true: correct retention, cleanup policy and timestamp type of existing topics that would "
        "lose records. false: refuse to start with such a topic.",
    )  # fmt: skip
    kafka_transactional_id_prefix: str = key(
        "kafkaTransactionalIdPrefix", "text", '"escrow-"', "Prefix of each shard's transactional id.",
    )  # fmt: skip
    kafka_check_group_prefix: str = key(
        "kafkaCheckGroupPrefix", "text", '"escrow-check-"',
        "Prefix of the consumer group in which members of a producer group read check requests; the "
        "producer group follows.",
    )  # fmt: skip
    kafka_check_bodies: bool = key(
        "kafkaCheckBodies", "switch", "true",
        "Whether check requests in kafkaCheckTopic carry body and headers of their half. Every client "
        "that may read that topic sees them, whatever its producer group. false: endpoints read them "
        "from the half topic; other members get topic, key and place of the half.",
    )  # fmt: skip
    kafka_lease_group: str = key(
        "kafkaLeaseGroup", "text", '"escrow-lease"', "Consumer group of the drivers.",
    )  # fmt: skip
    kafka_lease_timeout_ms: int = key(
        "kafkaLeaseTimeout", "duration", '"6s"', "A master that is silent for this long loses the lease.",
        least=6_000, most=300_000,
    )  # fmt: skip
    kafka_retry_interval_ms: int = key(
        "kafkaRetryInterval", "duration", '"30s"',
        "Longest time between two attempts to deliver an undeliverable message. The first attempts "
        "follow sooner.",
        least=100, most=DAY_MS,
    )  # fmt: skip
    kafka_undeliverable_max: int = key(
        "kafkaUndeliverableMax", "count", "100000",
        "Undeliverable messages that a shard sets aside (300 bytes of driver memory each). At the "
        "limit the shard stops releasing messages.",
        least=1, most=1 << 24,
    )  # fmt: skip
    kafka_checkpoint_interval_ms: int = key(
        "kafkaCheckpointInterval", "duration", '"30s"',
        "How often an edge writes outcomes to kafkaEndsTopic. A start reads the ops written since.",
        least=1_000,
    )  # fmt: skip
    kafka_transaction_timeout_ms: int = key(
        "kafkaTransactionTimeout", "duration", '"60s"',
        "Kafka aborts a transaction that stays open for this long.",
        least=1_000, most=900_000,
    )  # fmt: skip
    kafka_jars_dir_text: str = key(
        "kafkaJarsDir", "path", '""',
        "Jars of Spark's Kafka connector. Maven downloads them if they are missing. Empty: jars/ in "
        "dataDir.",
    )  # fmt: skip
    kafka_security_protocol: str = key(
        "kafkaSecurityProtocol", "choice", '"PLAINTEXT"', "Security protocol of the brokers.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    kafka_sasl_mechanism: str = key(
        "kafkaSaslMechanism", "choice", '"SCRAM-SHA-512"', "SASL mechanism.",
        choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    )  # fmt: skip
    kafka_sasl_username: str = key("kafkaSaslUsername", "text", '""', "SASL user name.")
    kafka_sasl_password: str = key(
        "kafkaSaslPassword", "text", '""', "SASL password. Prefer the environment variable.",
        secret=True,
    )  # fmt: skip
    kafka_sasl_password_file: str = key(
        "kafkaSaslPasswordFile", "path", '""', "File with the SASL password, instead of kafkaSaslPassword.",
    )  # fmt: skip
    kafka_tls_ca_file: str = key("kafkaTlsCaFile", "path", '""', "CA certificates of the brokers (PEM).")
    kafka_tls_cert_file: str = key("kafkaTlsCertFile", "path", '""', "Client certificate chain (PEM).")
    kafka_tls_key_file: str = key(
        "kafkaTlsKeyFile", "path", '""',
        "Private key of the client certificate (PEM, without a passphrase).",
    )  # fmt: skip
