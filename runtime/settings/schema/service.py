"""Keys of transactions, the store and the streaming job."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings.declare import DAY_MS, PORT, key


@dataclass(frozen=True)
class Transactions:
    """When a half is checked, how often, and when it is discarded."""

    transaction_timeout_ms: int = key(
        "transactionTimeOut", "duration", '"6s"',
        "Check a half when it is older than this. Rounded up to whole seconds.",
        least=0, most=365 * DAY_MS, sub_second=False,
    )  # fmt: skip
    check_count_max: int = key(
        "transactionCheckMax", "count", "15", "Delivered check requests after which a half is discarded.",
        least=1, most=255,
        remedy="set it between 1 and 255; to send no checks, set checkTransactionMessageEnable to false",
    )  # fmt: skip
    check_interval_ms: int = key(
        "transactionCheckInterval", "duration", '"30s"',
        "Time between two check rounds. A half is checked at most once per round.",
        least=1, most=365 * DAY_MS, sub_second=False,
    )  # fmt: skip
    check_at_least_interval_ms: int = key(
        "checkTransactionMessageAtleastInterval", "duration", '"0ms"',
        "RocketMQ 3.x: a second minimum age for checks (60s there). 0 = only transactionTimeOut "
        "applies.",
        least=0, most=365 * DAY_MS, sub_second=False,
    )  # fmt: skip
    checks_enabled: bool = key(
        "checkTransactionMessageEnable", "switch", "true",
        "false: send no check requests. Halves still expire.",
    )  # fmt: skip
    retention_ms: int = key(
        "fileReservedTime", "duration", '"72h"',
        "Discard a pending half when it is older than this. Finished transactions are kept for the "
        "same time.",
        unit_ms=3_600_000, least=1_000, most=3650 * DAY_MS,
    )  # fmt: skip
    reject_transactions: bool = key(
        "rejectTransactionMessage", "switch", "false",
        "true: refuse new halves. Ends, checks and consumers work as usual.",
    )  # fmt: skip
    role: str = key(
        "role", "choice", '"master"', "A standby refuses halves and ends and sends no check requests.",
        choices=("master", "standby"),
        remedy="RocketMQ's SYNC_MASTER and ASYNC_MASTER are master here, SLAVE is standby",
    )  # fmt: skip
    outstanding_per_group_max: int = key(
        "outstandingPerGroupMax", "count", "10000",
        "Unanswered check requests per producer group and round.",
        least=1, most=0x7FFF_FFFF,
    )  # fmt: skip
    presence_ttl_ms: int = key(
        "presenceTtl", "duration", '"30s"',
        "A producer group is live for this long after its last poll for check requests.",
        least=1_000, most=DAY_MS,
    )  # fmt: skip


@dataclass(frozen=True)
class Store:
    """Where data lies, the sizes of its files, and how many topics and groups it may hold."""

    data_dir_text: str = key(
        "dataDir", "path", '"data"',
        "Data directory: store/, keys/, spark/ and, unless logDir is set, logs/.",
    )  # fmt: skip
    commit_log_segment_bytes: int = key(
        "commitLogSegmentSize", "size", '"1GiB"', "Size of one commit log file.",
        least=64 << 10, most=16 << 30,
    )  # fmt: skip
    state_table_file_bytes: int = key(
        "tranStateTableMapedFileSize", "size", "48000000",
        "Size of one state table file. A row has 24 bytes.",
        least=64 * 24, most=1 << 40, multiple=24,
        remedy="use a multiple of 24, such as 48000000 (2,000,000 rows)",
    )  # fmt: skip
    redo_log_file_bytes: int = key(
        "tranRedoLogMapedFileSize", "size", "40000000", "Size of one redo log file. An entry has 20 bytes.",
        least=64 * 20, most=1 << 40, multiple=20,
        remedy="use a multiple of 20, such as 40000000 (2,000,000 entries)",
    )  # fmt: skip
    log_queue_entries: int = key(
        "logQueueEntriesPerFile", "count", "1000000",
        "Entries per file of the half queue and the op queue.",
        least=64, most=1 << 32,
    )  # fmt: skip
    topic_queue_entries: int = key(
        "topicQueueEntriesPerFile", "count", "65536", "Entries per file of a topic queue.",
        least=64, most=1 << 32,
    )  # fmt: skip
    auto_create_topics: bool = key(
        "autoCreateTopics", "switch", "true",
        "true: the first message to a topic creates it. false: only operators create topics (escrow "
        "topic create); messages to unknown topics are refused.",
    )  # fmt: skip
    topics_per_token_max: int = key(
        "topicsPerTokenMax", "count", "10000",
        "Topics that one token may create. Operators may create more.",
        least=0, most=32_768,
    )  # fmt: skip
    groups_per_token_max: int = key(
        "groupsPerTokenMax", "count", "10000",
        "Producer and consumer groups that one token may create. Operators may create more.",
        least=0, most=1_000_000,
    )  # fmt: skip
    topics_reserved: int = key(
        "topicsReserved", "count", "4096",
        "Topics kept free for operators and dead letters, of the 32,768 that a store can hold.",
        least=0, most=32_767,
    )  # fmt: skip
    queues_per_topic: int = key(
        "queuesPerTopic", "count", "4", "Queues per topic, fixed when the topic is first used.",
        least=1, most=64,
    )  # fmt: skip
    retention_interval_ms: int = key(
        "retentionInterval", "duration", '"10m"', "How often files that are no longer needed are deleted.",
        least=1_000, most=DAY_MS,
    )  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Micro-batches, Spark and the clock's limits."""

    settle_interval_ms: int = key(
        "settleInterval", "duration", '"1s"',
        "Embedded mode: shortest time between two micro-batches. 0 = no pause; uses several times the "
        "CPU at low rates. Neither consumers nor due checks wait for it.",
        least=0, most=10_000, sub_second=True,
    )  # fmt: skip
    max_records_per_batch: int = key(
        "maxRecordsPerBatch", "count", "262144", "Most halves, and most ops, in one micro-batch.",
        least=1, most=1 << 26,
    )  # fmt: skip
    spark_master: str = key(
        "sparkMaster", "text", '"local[2]"', "Spark master: local[n], local[*] or spark://host:port.",
    )  # fmt: skip
    spark_driver_memory_bytes: int = key(
        "sparkDriverMemory", "size", '"1GiB"', "Heap of the Spark driver.",
        least=256 << 20, most=1 << 40,
    )  # fmt: skip
    spark_driver_host: str = key(
        "sparkDriverHost", "text", '"127.0.0.1"',
        "Address at which executors reach the driver. Set it if executors run on other machines.",
    )  # fmt: skip
    spark_executor_memory_bytes: int = key(
        "sparkExecutorMemory", "size", '"1GiB"', "Heap of each executor in a cluster.",
        least=256 << 20, most=1 << 40,
    )  # fmt: skip
    spark_auth_secret: str = key(
        "sparkAuthSecret", "text", '""',
        "Secret of a standalone cluster (spark.authenticate.secret of its master and workers). Prefer "
        "the environment variable.",
        secret=True,
    )  # fmt: skip
    spark_conf_file: str = key(
        "sparkConfFile", "path", '""',
        "File with further Spark settings for a cluster, as in spark-defaults.conf (Kafka mode).",
    )  # fmt: skip
    spark_ui_port: int = key(
        "sparkUiPort", "count", "0",
        "Port of Spark's web UI, on sparkDriverHost (loopback unless set); it has no login. 0 = off.",
        **PORT,
    )  # fmt: skip
    clock_drift_max_ms: int = key(
        "clockDriftMax", "duration", '"60s"',
        "Stop discarding and deleting while the wall clock differs from elapsed time by more than "
        "this.",
        least=1_000, most=DAY_MS,
    )  # fmt: skip
    clock_grace_ms: int = key(
        "clockGrace", "duration", '"1h"',
        "Discard and delete nothing for this long after the machine boots, so that its clock can be "
        "set.",
        least=0, most=30 * DAY_MS,
    )  # fmt: skip
