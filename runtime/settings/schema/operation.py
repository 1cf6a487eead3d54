"""Keys of metrics, logs, plug-ins and the supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings.declare import DAY_MS, PORT, key


@dataclass(frozen=True)
class MetricsAndLogs:
    """Metrics, traces and log files."""

    metrics_enabled: bool = key(
        "metricsEnable", "switch", "true",
        "Serve Prometheus metrics. The edge serves them at /metrics on its own port.",
    )  # fmt: skip
    metrics_address: str = key("metricsAddress", "text", '"127.0.0.1"', "Address of the job's metrics.")
    job_metrics_port: int = key(
        "jobMetricsPort", "count", "7482", "Port of the job's metrics. 0 takes a free port.",
        **PORT,
    )  # fmt: skip
    metrics_names_max: int = key(
        "metricsNamesMax", "count", "100",
        "Producer groups, and pairs of topic and consumer group, with metrics of their own. The rest "
        "is summed as (other).",
        least=0, most=100_000,
    )  # fmt: skip
    otlp_endpoint: str = key(
        "otlpEndpoint", "text", '""',
        "Base URL of an OTLP receiver over HTTP, such as http://127.0.0.1:4318. Empty: no tracing. "
        "Needs escrow-mq-server[tracing].",
    )  # fmt: skip
    trace_one_in: int = key(
        "traceOneIn", "count", "1",
        "Sampling: trace one in this many transactions that arrive without a trace. The others follow "
        "their producer's decision.",
        least=1, most=1_000_000_000,
    )  # fmt: skip
    log_dir_text: str = key("logDir", "path", '""', "Directory of the log files. Empty: logs/ in dataDir.")
    log_file_bytes: int = key(
        "logFileSize", "size", '"16MiB"', "Rotate a log file at this size.",
        least=4 << 10, most=1 << 34,
    )  # fmt: skip
    log_files: int = key(
        "logFiles", "count", "5", "Rotated log files to keep per process.",
        least=1, most=1_000,
    )  # fmt: skip


@dataclass(frozen=True)
class Plugins:
    """Which plug-ins are loaded."""

    plugins: tuple[str, ...] = key(
        "plugins", "names", "[]",
        "Distributions whose plug-ins are loaded: DISTRIBUTION, or DISTRIBUTION:ENTRY-POINT for a "
        "single one. No other plug-ins are loaded.",
    )  # fmt: skip


@dataclass(frozen=True)
class Supervisor:
    """How `escrow run` starts, stops and restarts processes."""

    start_timeout_ms: int = key(
        "startTimeout", "duration", '"180s"', "Restart a process that is not ready within this time.",
        least=1_000, most=DAY_MS,
    )  # fmt: skip
    stop_timeout_ms: int = key(
        "stopTimeout", "duration", '"10s"', "Time from the stop signal until every process has ended.",
        least=2_000, most=600_000,
    )  # fmt: skip
    restart_backoff_ms: int = key(
        "restartBackoff", "duration", '"500ms"',
        "Wait before a process that exited is restarted. Doubles with each quick exit.",
        least=1, most=600_000,
    )  # fmt: skip
    restart_backoff_max_ms: int = key(
        "restartBackoffMax", "duration", '"30s"', "Longest wait before a restart.",
        least=1, most=3_600_000,
    )  # fmt: skip
    restart_quick_ms: int = key(
        "restartQuickDeath", "duration", '"60s"',
        "An exit is quick if the process was ready for less than this.",
        least=1, most=DAY_MS,
    )  # fmt: skip
    restart_deaths_max: int = key(
        "restartDeathsMax", "count", "6", "Quick exits in a row after which the supervisor gives up.",
        least=1, most=1_000_000,
    )  # fmt: skip
