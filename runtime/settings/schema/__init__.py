"""The keys, one dataclass per section of conf/escrow.toml; `SECTIONS` has their titles and order."""

from typing import Final

from runtime.settings.schema.edge import Console, Consumers, Edge, Groups, RocketMQClients, Tls, Tokens
from runtime.settings.schema.kafka import Kafka
from runtime.settings.schema.operation import MetricsAndLogs, Plugins, Supervisor
from runtime.settings.schema.service import Job, Store, Transactions

__all__ = [
    "SECTIONS",
    "Console",
    "Consumers",
    "Edge",
    "Groups",
    "Job",
    "Kafka",
    "MetricsAndLogs",
    "Plugins",
    "RocketMQClients",
    "Store",
    "Supervisor",
    "Tls",
    "Tokens",
    "Transactions",
]

SECTIONS: Final[dict[str, type]] = {
    "Transactions. Names and units are RocketMQ's.": Transactions,
    "The store. File sizes are fixed when a store is created.": Store,
    "The edge: accepts halves and ends.": Edge,
    "RocketMQ 5's own clients (docs/rocketmq-clients.md). Off unless a port is set.": RocketMQClients,
    "Tokens: who may do what.": Tokens,
    "Producer groups: quotas, and the file with settings of single groups. 0 = no limit.": Groups,
    "TLS of the edge.": Tls,
    "Consumers.": Consumers,
    "The streaming job.": Job,
    "Kafka mode (docs/kafka.md). Two Escrows on one cluster need distinct topics, groups and ids.": Kafka,
    "The console.": Console,
    "Metrics and logs.": MetricsAndLogs,
    "Plug-ins. See docs/plugins.md.": Plugins,
    "The supervisor: escrow run.": Supervisor,
}
