"""`Settings`: the sections of the schema as one frozen object, and what is derived from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from runtime.settings import schema
from runtime.settings.key import Key

MASK: Final = "(set, not shown)"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `where` is for people, `rank` orders default < file < environment < flag."""

    rank: int
    where: str

    def __str__(self) -> str:
        return self.where


DEFAULT: Final = Origin(0, "default")


def _collect_keys() -> dict[str, Key]:
    """Every key by name, in the order of the file."""
    declared = ((title, each) for title, section in schema.SECTIONS.items() for each in fields(section))
    keys = (replace(each.metadata["key"], section=title, field=each.name) for title, each in declared)
    return {key.name: key for key in keys}


KEYS: Final = _collect_keys()


@dataclass(frozen=True)
class Settings(
    schema.Transactions, schema.Store, schema.Edge, schema.RocketMQClients, schema.Tokens, schema.Groups,
    schema.Tls, schema.Consumers, schema.Job, schema.Kafka, schema.Console, schema.MetricsAndLogs, schema.Plugins,
    schema.Supervisor,
):  # fmt: skip
    """Every setting, as a plain value in the unit that its name ends with. `load` makes it."""

    file: Path | None = field(default=None, compare=False)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    flags: tuple[str, ...] = field(default=(), compare=False)
    #: Sentences about values that are legal but probably not meant, to show to the operator.
    warnings: tuple[str, ...] = field(default=(), compare=False)

    # --- places ---
    @property
    def data_dir(self) -> Path:
        return Path(self.data_dir_text)

    @property
    def store_dir(self) -> Path:
        """The root of the store: what `escrow store verify` takes."""
        return self.data_dir / "store"

    @property
    def spark_dir(self) -> Path:
        """Spark's checkpoint, warehouse and scratch files; all of it can be rebuilt."""
        return self.data_dir / "spark"

    @property
    def log_dir(self) -> Path:
        return Path(self.log_dir_text) if self.log_dir_text else self.data_dir / "logs"

    @property
    def keys_file(self) -> Path:
        return Path(self.id_keys_file) if self.id_keys_file else self.data_dir / "keys" / "ids.keys"

    @property
    def tokens_file(self) -> Path:
        return Path(self.tokens_file_text) if self.tokens_file_text else self.data_dir / "keys" / "tokens.toml"

    @property
    def access_keys_file(self) -> Path:
        text = self.access_keys_file_text
        return Path(text) if text else self.data_dir / "keys" / "rocketmq.toml"

    @property
    def groups_file(self) -> Path:
        return Path(self.groups_file_text) if self.groups_file_text else self.data_dir / "groups.toml"

    @property
    def kafka_jars_dir(self) -> Path:
        return Path(self.kafka_jars_dir_text) if self.kafka_jars_dir_text else self.data_dir / "jars"

    @property
    def standby(self) -> bool:
        return self.role == "standby"

    # --- for the rooms ---
    def policy_values(self) -> dict[str, Any]:
        """Arguments of checker.policy.Policy.from_ms."""
        return {
            "transaction_timeout_ms": self.transaction_timeout_ms,
            "check_interval_ms": self.check_interval_ms,
            "retention_ms": self.retention_ms,
            "check_at_least_interval_ms": self.check_at_least_interval_ms,
            "check_count_max": self.check_count_max,
            "checks_enabled": self.checks_enabled,
            "standby": self.standby,
            "outstanding_per_group_max": self.outstanding_per_group_max,
        }

    def clock_values(self) -> dict[str, int]:
        """Arguments of store.clock.Rules."""
        return {
            "drift_max_ms": self.clock_drift_max_ms,
            "grace_ms": self.clock_grace_ms,
            "horizon_ms": max(self.retention_ms, self.dedup_window_ms),
        }

    def kafka_values(self) -> dict[str, str]:
        """Arguments of sinks.kafka.clients.Connection."""
        names = (
            "bootstrap_servers", "security_protocol",
            "sasl_mechanism", "sasl_username", "sasl_password", "sasl_password_file",
            "tls_ca_file", "tls_cert_file", "tls_key_file",
        )  # fmt: skip
        return {name: getattr(self, f"kafka_{name}") for name in names}

    def kafka_topics(self) -> dict[str, str]:
        """Arguments of sinks.kafka.contract.Topics."""
        names = ("half", "op", "redo", "check", "discard", "lease", "ends", "keys")
        return {name: getattr(self, f"kafka_{name}_topic") for name in names}

    def geometry_values(self) -> dict[str, int]:
        """Arguments of store.directory.Geometry."""
        return {
            "commit_log_segment_bytes": self.commit_log_segment_bytes,
            "state_rows_per_file": self.state_table_file_bytes // 24,
            "redo_entries_per_file": self.redo_log_file_bytes // 20,
            "log_queue_entries_per_file": self.log_queue_entries,
            "topic_queue_entries_per_file": self.topic_queue_entries,
        }

    # --- showing and passing on ---
    def effective(self) -> Iterator[tuple[Key, object, Origin]]:
        """(key, value as it would be written, where it came from) of every key; secrets masked."""
        for key in KEYS.values():
            value = getattr(self, key.field)
            yield key, MASK if key.secret and value else key.written(value), self.origins.get(key.name, DEFAULT)

    def arguments(self) -> list[str]:
        """Flags that give a child process the same settings; it inherits the environment too. Other users of
        the machine can read them, so secrets go through `environment`."""
        config = ["--config", str(self.file)] if self.file is not None else []
        return config + [word for flag in self.flags if not _is_secret(flag) for word in ("--set", flag)]

    def environment(self) -> dict[str, str]:
        """Secret flags as variables, to add to a child's environment."""
        secret = (flag.partition("=") for flag in self.flags if _is_secret(flag))
        return {KEYS[name].variable: value for name, _, value in secret}


def _is_secret(flag: str) -> bool:
    return KEYS[flag.partition("=")[0]].secret
