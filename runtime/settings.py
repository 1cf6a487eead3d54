"""Settings: one TOML file, then the environment, then flags; each stronger than the one before it.

Every key is declared once, as a field of `Settings`: its name in the file, its kind and unit, its default, its bounds and
its sentence. Everything else follows from that: the variable (`transactionTimeOut` → `ESCROW_TRANSACTION_TIME_OUT`), the
flag (`--set transactionTimeOut=6s`), `conf/escrow.toml` (which is `template()`), the errors and `escrow config show`.

Names are RocketMQ's where it has one. A bare integer has RocketMQ's unit: milliseconds, and hours for fileReservedTime. Where
milliseconds are rounded up to whole seconds, a bare integer below 1,000 is legal, and `warnings` asks whether seconds were meant.

Here are plain values only, no room is imported: `policy_values()` is for `checker.policy.Policy.from_ms`,
`geometry_values()` for `store.directory.Geometry`.

SettingsError           all that is wrong, one sentence each: where it stands, the key, what is wrong, what to do
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

__all__ = [
    "KEYS",
    "Key",
    "Origin",
    "Settings",
    "SettingsError",
    "add_arguments",
    "from_arguments",
    "load",
    "load_arguments",
    "template",
]

DEFAULT_FILE: Final = Path("conf/escrow.toml")
CONFIG_VARIABLE: Final = "ESCROW_CONFIG"
PREFIX: Final = "ESCROW_"
#: What processes of ours create is for their user alone: messages, logs, backups, exports.
PRIVATE_UMASK: Final = 0o077
#: Where the command line finds Escrow, and what it shows there (`escrow.cli.remote`).
CLIENT_VARIABLES: Final = frozenset({"ESCROW_URL", "ESCROW_TOKEN", "ESCROW_TOKEN_FILE", "ESCROW_CA_FILE"})
#: Variables with our prefix that are no keys: the file's own, the command line's, and the failpoint of the crash tests.
OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "ESCROW_FAILPOINT"}) | CLIENT_VARIABLES
#: What Kubernetes adds for a service that is called escrow…: not ours to refuse.
_SERVICE_LINK: Final = re.compile(r"ESCROW_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
#: Variables that an operator keeps secrets in (groupsFile names them): not keys, and never shown.
SECRET_PREFIX: Final = "ESCROW_SECRET_"
MASK: Final = "(set, not shown)"

DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
SIZE_BYTES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")

#: Names that somebody who knows RocketMQ (or an older one of ours) may try, and what they are called here.
_KNOWN_ELSEWHERE: Final = {
    "brokerRole": "role",
    "storePathRootDir": "dataDir",
    "maxMessageSize": "maxBodySize",
    "defaultTopicQueueNums": "queuesPerTopic",
    "mapedFileSizeCommitLog": "commitLogSegmentSize",
    "mappedFileSizeCommitLog": "commitLogSegmentSize",
    "transactionTimeout": "transactionTimeOut",
    "checkTransactionMessageTimerInterval": "transactionCheckInterval",
    "tranStateTableMappedFileSize": "tranStateTableMapedFileSize",
    "tranRedoLogMappedFileSize": "tranRedoLogMapedFileSize",
    "maxReconsumeTimes": "maxDeliveries",
    "invisibleTime": "visibilityTime",
    "pullBatchSize": "messagesPerPollMax",
    "grpcServerPort": "grpcPort",
    "checkImmunityTime": "CHECK_IMMUNITY_TIME_IN_SECONDS, a property of each message",
}


class SettingsError(ValueError):
    """The settings are wrong; `problems` has a sentence for each thing that is."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `where` is for people, `rank` orders default < file < environment < flag."""

    rank: int
    where: str

    def __str__(self) -> str:
        return self.where


DEFAULT: Final = Origin(0, "default")
FLAG_RANK: Final = 3


@dataclass(frozen=True, slots=True)
class Key:
    """One key: everything that is known about it but its value."""

    name: str
    kind: str  # duration, size, count, switch, choice, text, path, names
    default: str  # as it stands in the file: TOML
    doc: str
    section: str
    unit_ms: int = 1  # duration: what a bare integer counts
    least: int | None = None
    most: int | None = None
    multiple: int = 1
    choices: tuple[str, ...] = ()
    sub_second: bool = True  # duration: False = counted in whole seconds; a bare integer below 1,000 ms gets a warning
    secret: bool = False
    remedy: str = ""
    field: str = ""

    @property
    def variable(self) -> str:
        return PREFIX + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).upper()

    @property
    def unit(self) -> str:
        if self.kind == "duration":
            bare = next(unit for unit, ms in DURATION_MS.items() if ms == self.unit_ms)
            example = _duration_text(6_000 if self.unit_ms == 1 else 72 * self.unit_ms)
            return f'a time such as "{example}"; a bare integer is in {_UNIT_NAMES[bare]}'
        if self.kind == "size":
            return 'a size such as "64MiB"; a bare integer is in bytes'
        if self.kind == "choice":
            return " | ".join(self.choices)
        if self.kind == "names":
            return 'a list of names, ["one", "two"]; in a variable or flag: one,two'
        return {"count": "a whole number", "switch": "true | false", "text": "text", "path": "a path"}[self.kind]


_UNIT_NAMES: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class _Wrong(ValueError):
    """A value that does not fit its key: the sentence without the place."""


def _key(name: str, kind: str, default: str, doc: str, **rest: Any) -> Any:
    """A field of `Settings` and its key, in one."""
    key = Key(name, kind, default, doc, _section[0], **rest)
    value = parse(key, tomllib.loads(f"v = {default}")["v"])
    return field(default=value, metadata={"key": key})


_section: list[str] = [""]


def _begin(section: str) -> None:
    _section[0] = section


# --- values -----------------------------------------------------------------------------------------------------------
def parse(key: Key, raw: object) -> Any:
    """The value of a key from what stood in the file (TOML's types), a variable or a flag (text); _Wrong says why not."""
    value = _PARSERS[key.kind](key, raw)
    if isinstance(value, int) and not isinstance(value, bool):
        _check_bounds(key, value, raw)
    return value


def _check_bounds(key: Key, value: int, raw: object) -> None:
    shown = _shower(key)
    if key.least is not None and value < key.least:
        raise _Wrong(f"{_said(raw)} is less than {shown(key.least)}: {_remedy(key)}")
    if key.most is not None and value > key.most:
        raise _Wrong(f"{_said(raw)} is more than {shown(key.most)}: {_remedy(key)}")
    if value % key.multiple:
        raise _Wrong(f"{_said(raw)} is no multiple of {key.multiple}: {_remedy(key)}")


def _remedy(key: Key) -> str:
    if key.remedy:
        return key.remedy
    shown = _shower(key)
    if key.least is not None and key.most is not None:
        return f"set it between {shown(key.least)} and {shown(key.most)}"
    return f"set it to {shown(key.least)} or more" if key.least is not None else f"write {key.unit}"


def _shower(key: Key) -> Any:
    return {"duration": _duration_text, "size": _size_text}.get(key.kind, str)


def _said(raw: object) -> str:
    return repr(raw) if isinstance(raw, str) else str(raw).lower() if isinstance(raw, bool) else str(raw)


def _amount(key: Key, raw: object, units: Mapping[str, int], bare: int) -> int:
    """A number with a unit as a whole number of the smallest one; a bare integer counts `bare` of it."""
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise _Wrong(f"{_said(raw)} is not what belongs here: write {key.unit}")
    text = str(raw).strip()
    found = _AMOUNT.fullmatch(text.replace("_", ""))
    if found is None:
        raise _Wrong(f"{_said(raw)} cannot be read: write {key.unit}")
    number, unit = found.groups()
    if not unit and "." in number:
        raise _Wrong(f"{_said(raw)} has no unit: write {key.unit}")
    if unit and unit not in units:
        close = next((known for known in units if known.lower() == unit.lower()), "")
        hint = f"did you mean {number}{close}?" if close else f"units here are {', '.join(units)}"
        raise _Wrong(f"{_said(raw)} has the unknown unit {unit!r}: {hint}")
    value = Decimal(number) * (units[unit] if unit else bare)
    if value != value.to_integral_value():
        raise _Wrong(f"{_said(raw)} is finer than the smallest unit, {next(iter(units))}: round it")
    return int(value)


def _parse_duration(key: Key, raw: object) -> int:
    return _amount(key, raw, DURATION_MS, key.unit_ms)


def _warning(key: Key, raw: object, value: int) -> str:
    """A value that is legal and probably not what was meant; "" if it is not."""
    bare = isinstance(raw, int) or str(raw).strip().replace("_", "").isdigit()
    if key.kind != "duration" or key.sub_second or not bare or not 0 < value < 1_000:
        return ""
    return (
        f'{_said(raw)} is {value} milliseconds (a bare integer has RocketMQ\'s unit) and counts as 1s: write "{value}s" if seconds '
        f'were meant, "{value}ms" if not'
    )


def _parse_size(key: Key, raw: object) -> int:
    return _amount(key, raw, SIZE_BYTES, 1)


def _parse_count(key: Key, raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise _Wrong(f"{_said(raw)} is not a whole number: {_remedy(key)}")
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9_]+", raw.strip()) is None:
        raise _Wrong(f"{_said(raw)} is not a whole number: {_remedy(key)}")
    return int(raw)


def _parse_switch(_key: Key, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.strip().lower() in ("true", "false"):
        return raw.strip().lower() == "true"
    raise _Wrong(f"{_said(raw)} is neither true nor false: write true or false")


def _parse_choice(key: Key, raw: object) -> str:
    if isinstance(raw, str) and raw in key.choices:
        return raw
    raise _Wrong(f"{_said(raw)} is none of {', '.join(key.choices)}: {key.remedy or 'choose one of them'}")


def _parse_text(key: Key, raw: object) -> str:
    if not isinstance(raw, str):
        raise _Wrong(f"{_said(raw)} is not text: put it in quotes")
    return raw


def _parse_names(_key: Key, raw: object) -> tuple[str, ...]:
    """The file has a list; a variable or a flag has the names with commas between them."""
    names = [name.strip() for name in raw.split(",") if name.strip()] if isinstance(raw, str) else raw
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise _Wrong(f'{_said(raw)} is no list of names: write ["one", "two"]')
    return tuple(dict.fromkeys(names))


_PARSERS: Final = {
    "duration": _parse_duration,
    "size": _parse_size,
    "count": _parse_count,
    "switch": _parse_switch,
    "choice": _parse_choice,
    "text": _parse_text,
    "path": _parse_text,
    "names": _parse_names,
}


def _duration_text(value_ms: int) -> str:
    for unit in ("h", "m", "s"):
        if value_ms and value_ms % DURATION_MS[unit] == 0:
            return f"{value_ms // DURATION_MS[unit]}{unit}"
    return f"{value_ms}ms"


def _size_text(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % SIZE_BYTES[unit] == 0 and (unit != "KiB" or value < SIZE_BYTES["MiB"]):
            return f"{value // SIZE_BYTES[unit]}{unit}"
    return str(value)


# --- the keys ---------------------------------------------------------------------------------------------------------
_PORT: Final = {"least": 0, "most": 65_535}
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class Settings:
    """Every setting, as a plain value in the unit that its name ends with. `load` makes it; `origins` says where from."""

    _begin("Transactions. RocketMQ's names and units.")
    transaction_timeout_ms: int = _key(
        "transactionTimeOut", "duration", '"6s"', "A half is checked once its age exceeds this; whole seconds, rounded up.",
        least=0, most=365 * _DAY_MS, sub_second=False,
    )  # fmt: skip
    check_count_max: int = _key(
        "transactionCheckMax", "count", "15", "Hand-overs of a check request before a half is discarded.",
        least=1, most=255, remedy="set it between 1 and 255; to ask nobody, set checkTransactionMessageEnable to false",
    )  # fmt: skip
    check_interval_ms: int = _key(
        "transactionCheckInterval", "duration", '"30s"', "A check round begins this often; a half is asked at most once a round.",
        least=1, most=365 * _DAY_MS, sub_second=False,
    )  # fmt: skip
    check_at_least_interval_ms: int = _key(
        "checkTransactionMessageAtleastInterval", "duration", '"0ms"',
        "3.x: a half is checked once its age exceeds this too (60s there). 0 leaves it to transactionTimeOut.",
        least=0, most=365 * _DAY_MS, sub_second=False,
    )  # fmt: skip
    checks_enabled: bool = _key("checkTransactionMessageEnable", "switch", "true", "false: nobody is asked; retention still holds.")
    retention_ms: int = _key(
        "fileReservedTime", "duration", '"72h"', "A half older than this is discarded as expired; ended ones are kept this long.",
        unit_ms=3_600_000, least=1_000, most=3650 * _DAY_MS,
    )  # fmt: skip
    reject_transactions: bool = _key(
        "rejectTransactionMessage", "switch", "false", "true: halves are refused; ends, checks and the rest go on."
    )
    role: str = _key(
        "role", "choice", '"master"', "A standby refuses halves and ends and sends no checks.",
        choices=("master", "standby"), remedy="RocketMQ's SYNC_MASTER and ASYNC_MASTER are master here, SLAVE is standby",
    )  # fmt: skip
    outstanding_per_group_max: int = _key(
        "outstandingPerGroupMax", "count", "10000", "Check requests of one round that a producer group may have unanswered.",
        least=1, most=0x7FFF_FFFF,
    )  # fmt: skip
    presence_ttl_ms: int = _key(
        "presenceTtl", "duration", '"30s"', "A producer group counts as live for this long after its last poll for checks.",
        least=1_000, most=_DAY_MS,
    )  # fmt: skip

    _begin("The store. The sizes of files are fixed when a store is made.")
    data_dir_text: str = _key(
        "dataDir", "path", '"data"', "Everything Escrow keeps: store/, keys/, spark/ and, unless logDir says otherwise, logs/."
    )
    commit_log_segment_bytes: int = _key(
        "commitLogSegmentSize", "size", '"1GiB"', "One file of the commit log.", least=64 << 10, most=16 << 30
    )
    state_table_file_bytes: int = _key(
        "tranStateTableMapedFileSize", "size", "48000000", "One file of the state table: rows of 24 bytes.",
        least=64 * 24, most=1 << 40, multiple=24, remedy="take a multiple of 24, such as 48000000 (2,000,000 rows)",
    )  # fmt: skip
    redo_log_file_bytes: int = _key(
        "tranRedoLogMapedFileSize", "size", "40000000", "One file of the redo log: entries of 20 bytes.",
        least=64 * 20, most=1 << 40, multiple=20, remedy="take a multiple of 20, such as 40000000 (2,000,000 entries)",
    )  # fmt: skip
    log_queue_entries: int = _key(
        "logQueueEntriesPerFile", "count", "1000000", "Entries in one file of the half and op queues.", least=64, most=1 << 32
    )
    topic_queue_entries: int = _key(
        "topicQueueEntriesPerFile", "count", "65536", "Entries in one file of a topic's queue.", least=64, most=1 << 32
    )
    auto_create_topics: bool = _key(
        "autoCreateTopics", "switch", "true",
        "true: the first message makes its topic. false: an operator makes topics (escrow topic create); others are refused.",
    )  # fmt: skip
    topics_per_token_max: int = _key(
        "topicsPerTokenMax", "count", "10000", "Topics that one token may make; operators may make more.", least=0, most=32_768
    )
    groups_per_token_max: int = _key(
        "groupsPerTokenMax", "count", "10000", "Producer and consumer groups that one token may make; operators may make more.",
        least=0, most=1_000_000,
    )  # fmt: skip
    topics_reserved: int = _key(
        "topicsReserved", "count", "4096",
        "Of the 32,768 topics that a store can have, so many are left for operators and dead letters.", least=0, most=32_767,
    )  # fmt: skip
    queues_per_topic: int = _key("queuesPerTopic", "count", "4", "Queues of a topic, fixed at its first use.", least=1, most=64)
    retention_interval_ms: int = _key(
        "retentionInterval", "duration", '"10m"', "How often files that nobody needs any more are deleted.",
        least=1_000, most=_DAY_MS,
    )  # fmt: skip

    _begin("The edge: what takes halves and ends.")
    listen_address: str = _key(
        "listenAddress",
        "text",
        '"127.0.0.1"',
        "Where the edge listens. Beyond loopback only once there are tokens (escrow token new).",
    )
    listen_port: int = _key("listenPort", "count", "7480", "Its port; 0 takes a free one and says which.", **_PORT)
    max_body_bytes: int = _key("maxBodySize", "size", '"4MiB"', "The largest body of a message.", least=1, most=1 << 30)
    max_request_bytes: int = _key(
        "maxRequestSize", "size", '"16MiB"', "The largest request, whole batch included.", least=1 << 10, most=1 << 30
    )
    max_messages_per_request: int = _key(
        "maxMessagesPerRequest", "count", "4096", "The most messages or ends in one request.", least=1, most=65_535
    )
    max_queued_bytes: int = _key(
        "maxQueuedSize", "size", '"64MiB"', "What may wait for a flush; beyond it halves and messages are refused, ends are not.",
        least=64 << 10, most=16 << 30,
    )  # fmt: skip
    max_receiving_bytes: int = _key(
        "maxReceivingSize", "size", '"256MiB"', "Requests being received at one time, together; ends have as much for themselves.",
        least=1 << 20, most=64 << 30,
    )  # fmt: skip
    header_timeout_ms: int = _key(
        "headerTimeout", "duration", '"10s"', "A request's head must arrive within this.", least=10, most=600_000
    )
    request_timeout_ms: int = _key(
        "requestTimeout", "duration", '"30s"', "A request's body must arrive, and an answer be taken, within this.",
        least=10, most=3_600_000,
    )  # fmt: skip
    keep_alive_ms: int = _key(
        "keepAliveTimeout", "duration", '"75s"', "A connection without requests is closed after this.", least=1_000, most=_DAY_MS
    )
    max_connections: int = _key(
        "maxConnections", "count", "4096", "Open connections to the edge; when full, it closes the one that was idle longest.",
        least=1, most=1 << 20,
    )  # fmt: skip
    poll_wait_max_ms: int = _key(
        "pollWaitMax", "duration", '"30s"', "The longest that a poll for checks or messages may wait.", least=0, most=600_000
    )
    checks_per_poll_max: int = _key("checksPerPollMax", "count", "256", "The most requests in one answer.", least=1, most=4096)
    dedup_window_ms: int = _key(
        "dedupWindow", "duration", '"1h"', "A send with a dedup_key that was used this recently is the same send.",
        least=0, most=30 * _DAY_MS,
    )  # fmt: skip
    id_keys_file: str = _key(
        "idKeysFile",
        "path",
        '""',
        "Keys that seal transaction ids, one a line, the first one seals. Empty: keys/ids.keys in dataDir.",
    )
    id_keys: str = _key(
        "idKeys", "text", '""', "The same keys as text, separated by commas, instead of a file. Best set by its variable.",
        secret=True,
    )  # fmt: skip

    _begin("RocketMQ 5's own clients (docs/rocketmq-clients.md). They are served where a port is set.")
    grpc_port: int = _key(
        "grpcPort", "count", "-1", "Port without TLS, on listenAddress; RocketMQ's own is 8081. 0 takes a free one, -1 = off.",
        least=-1, most=65_535,
    )  # fmt: skip
    grpc_tls_port: int = _key(
        "grpcTlsPort", "count", "-1", "Port with TLS, with tlsCertFile and tlsKeyFile. 0 takes a free one, -1 = off.",
        least=-1, most=65_535,
    )  # fmt: skip
    grpc_calls_max: int = _key(
        "grpcMaxCalls", "count", "4096",
        "Calls at a time, and connections to each port; every client has a stream, and a consumer a long poll for each topic.",
        least=16, most=1 << 20,
    )  # fmt: skip
    access_keys_file_text: str = _key(
        "accessKeysFile", "path", '""',
        "Access keys and their secrets, as escrow token access-key writes them. Empty: keys/rocketmq.toml in dataDir.",
    )  # fmt: skip

    _begin("Who may: tokens.")
    tokens_file_text: str = _key(
        "tokensFile", "path", '""',
        "Tokens and their roles, as escrow token writes them; without the file everybody on loopback may do everything. "
        "Empty: keys/tokens.toml in dataDir.",
    )  # fmt: skip

    token_requests_max: int = _key(
        "tokenRequestsMax", "count", "0",
        "Requests a second of one token, in the long run; faster ones wait. 0 = no limit.", least=0, most=1 << 20,
    )  # fmt: skip
    token_bytes_max: int = _key(
        "tokenBytesMax", "size", '"0"', "Bytes of requests a second of one token, likewise. 0 = no limit.", least=0, most=1 << 40
    )
    token_in_flight_max: int = _key(
        "tokenInFlightMax", "count", "1024",
        "Requests of one token at a time, long polls included; more are refused. 0 = no limit.", least=0, most=1 << 20,
    )  # fmt: skip
    token_held_bytes_max: int = _key(
        "tokenHeldBytesMax", "size", '"128MiB"',
        "Memory for one token: bodies on the way, gRPC messages, polls, answers that are not read; more is refused. "
        "Several times maxRequestSize. 0 = no limit.",
        least=0, most=64 << 30,
    )  # fmt: skip

    _begin("Producer groups: quotas, and the file with what is said of each group. 0 = no limit.")
    groups_file_text: str = _key(
        "groupsFile", "path", '""', "Quotas and webhooks of single groups (docs/security.md, TOML). Empty: groups.toml in dataDir."
    )
    group_rate_max: int = _key(
        "groupRateMax", "count", "0", "Halves and messages that a group may send a second, in the long run.", least=0, most=1 << 40
    )
    group_pending_max: int = _key("groupPendingMax", "count", "0", "Halves of a group that may be pending.", least=0, most=1 << 40)
    group_pending_age_max_ms: int = _key(
        "groupPendingAgeMax", "duration", '"0ms"', "No new halves for a group whose oldest pending one is older than this.",
        least=0, most=3650 * _DAY_MS, sub_second=False,
    )  # fmt: skip

    _begin("TLS of the edge.")
    tls_cert_file: str = _key(
        "tlsCertFile",
        "path",
        '""',
        "The edge's certificate and its chain (PEM). Empty: plain HTTP. A renewed one is taken up by itself.",
    )
    tls_key_file: str = _key("tlsKeyFile", "path", '""', "Its private key (PEM, without a passphrase).")
    tls_client_ca_file: str = _key(
        "tlsClientCaFile", "path", '""', "Certificates that sign clients' ones (PEM). Set: every client must show one (mutual TLS)."
    )
    tls_min_version: str = _key(
        "tlsMinVersion", "choice", '"1.2"', "The oldest version of TLS that is spoken.", choices=("1.2", "1.3"),
        remedy="older versions are broken and not spoken",
    )  # fmt: skip

    _begin("Consumers.")
    max_deliveries: int = _key(
        "maxDeliveries", "count", "16", "Hand-outs of a message to a consumer group before it becomes a dead letter.",
        least=1, most=65_535,
    )  # fmt: skip
    visibility_ms: int = _key(
        "visibilityTime", "duration", '"30s"', "A message that is not acknowledged within this time is handed out again.",
        least=1, most=_DAY_MS, sub_second=False,
    )  # fmt: skip
    visibility_max_ms: int = _key(
        "maxVisibilityTime", "duration", '"12h"', "The longest time that a consumer may ask for.", least=1, most=30 * _DAY_MS
    )
    messages_per_poll_max: int = _key(
        "messagesPerPollMax", "count", "1024", "The most messages in one answer.", least=1, most=65_535
    )
    look_ahead: int = _key(
        "lookAheadWindow", "count", "4096",
        "How far a consumer group may be ahead of its oldest message that is not done, in each queue.",
        least=64, most=1 << 20,
    )  # fmt: skip

    _begin("The streaming job.")
    settle_interval_ms: int = _key(
        "settleInterval", "duration", '"1s"',
        "Embedded mode: micro-batches follow one another no sooner than this; 0 = at once, for several times the processor time "
        "at low rates. Consumers do not wait for it, nor does anything that falls due.",
        least=0, most=10_000, sub_second=True,
    )  # fmt: skip
    max_records_per_batch: int = _key(
        "maxRecordsPerBatch", "count", "262144", "The most halves, and the most ops, in one micro-batch.", least=1, most=1 << 26
    )
    spark_master: str = _key("sparkMaster", "text", '"local[2]"', "Where Spark runs: local[n], local[*] or spark://host:port.")
    spark_driver_memory_bytes: int = _key(
        "sparkDriverMemory", "size", '"1GiB"', "Heap of the Spark driver.", least=256 << 20, most=1 << 40
    )
    spark_driver_host: str = _key(
        "sparkDriverHost", "text", '"127.0.0.1"', "Where executors reach the driver; another machine's need its address."
    )
    spark_executor_memory_bytes: int = _key(
        "sparkExecutorMemory", "size", '"1GiB"', "Heap of each executor of a cluster.", least=256 << 20, most=1 << 40
    )
    spark_auth_secret: str = _key(
        "sparkAuthSecret", "text", '""',
        "Secret of a standalone cluster (spark.authenticate.secret of its master and workers). Best set by its variable.",
        secret=True,
    )  # fmt: skip
    spark_conf_file: str = _key(
        "sparkConfFile", "path", '""', "More of Spark's own settings for a cluster, as in spark-defaults.conf (Kafka mode)."
    )
    spark_ui_port: int = _key("sparkUiPort", "count", "0", "Port of Spark's own pages; 0 = they are off.", **_PORT)
    clock_drift_max_ms: int = _key(
        "clockDriftMax", "duration", '"60s"',
        "Nothing is discarded or deleted while the wall clock differs by more than this from the time that elapsed.",
        least=1_000, most=_DAY_MS,
    )  # fmt: skip
    clock_grace_ms: int = _key(
        "clockGrace", "duration", '"1h"',
        "Nothing is discarded or deleted for this long after a start of the machine: time for its clock to be set right.",
        least=0, most=30 * _DAY_MS,
    )  # fmt: skip

    _begin("Kafka mode (docs/kafka.md). Two Escrows on one cluster need topics, groups and transactional ids of their own.")
    mode: str = _key(
        "mode", "choice", '"embedded"', "Where halves and ops live: in dataDir, or in Kafka.", choices=("embedded", "kafka"),
    )  # fmt: skip
    kafka_bootstrap_servers: str = _key("kafkaBootstrapServers", "text", '""', "Brokers to begin with: host:port,host:port.")
    kafka_half_topic: str = _key("kafkaHalfTopic", "text", '"RMQ_SYS_TRANS_HALF_TOPIC"', "Where halves wait.")
    kafka_op_topic: str = _key("kafkaOpTopic", "text", '"RMQ_SYS_TRANS_OP_HALF_TOPIC"', "Where they are decided.")
    kafka_redo_topic: str = _key(
        "kafkaRedoTopic", "text", '"TRANSACTION_REDOLOG_TOPIC"', "The truth of settlement; the job's alone."
    )
    kafka_check_topic: str = _key("kafkaCheckTopic", "text", '"ESCROW_CHECK_TOPIC"', "Check requests, keyed by producer group.")
    kafka_discard_topic: str = _key("kafkaDiscardTopic", "text", '"TRANS_CHECK_MAX_TIME_TOPIC"', "Where discarded halves go.")
    kafka_lease_topic: str = _key("kafkaLeaseTopic", "text", '"ESCROW_LEASE_TOPIC"', "Its one partition goes to the master.")
    kafka_ends_topic: str = _key(
        "kafkaEndsTopic", "text", '"ESCROW_ENDS_TOPIC"', "How halves have ended: what an endpoint starts from."
    )
    kafka_partitions: int = _key("kafkaPartitions", "count", "4", "Partitions of topics that are made.", least=1, most=65_535)
    kafka_replication: int = _key("kafkaReplication", "count", "3", "Copies of topics that are made.", least=1, most=32_767)
    kafka_min_insync: int = _key(
        "kafkaMinInsync", "count", "2", "Copies that must have a record before it is acknowledged, of topics that are made.",
        least=1, most=32_767,
    )  # fmt: skip
    kafka_repair_topics: bool = _key(
        "kafkaRepairTopics", "switch", "false",
        "true: of existing topics the retention, cleanup policy and kind of timestamp are changed where records would be lost; "
        "false: Escrow does not start with such a topic.",
    )  # fmt: skip
    kafka_transactional_id_prefix: str = _key(
        "kafkaTransactionalIdPrefix", "text", '"escrow-"', "Begins the transactional id of every shard."
    )
    kafka_check_group_prefix: str = _key(
        "kafkaCheckGroupPrefix", "text", '"escrow-check-"', "Prefix and producer group: the consumer group that its members join."
    )
    kafka_lease_group: str = _key("kafkaLeaseGroup", "text", '"escrow-lease"', "The consumer group of the drivers.")
    kafka_lease_timeout_ms: int = _key(
        "kafkaLeaseTimeout",
        "duration",
        '"6s"',
        "A master that is silent for this long loses the lease.",
        least=6_000,
        most=300_000,
    )
    kafka_retry_interval_ms: int = _key(
        "kafkaRetryInterval", "duration", '"30s"',
        "The longest time between two attempts at undeliverable messages; the first come sooner.", least=100, most=_DAY_MS,
    )  # fmt: skip
    kafka_undeliverable_max: int = _key(
        "kafkaUndeliverableMax", "count", "100000",
        "The most messages that a shard sets aside (300 bytes of the driver's memory each). Beyond that it releases nothing.",
        least=1, most=1 << 24,
    )  # fmt: skip
    kafka_checkpoint_interval_ms: int = _key(
        "kafkaCheckpointInterval", "duration", '"30s"',
        "How often an endpoint writes to kafkaEndsTopic how halves have ended. A start reads the ops since.", least=1_000,
    )  # fmt: skip
    kafka_transaction_timeout_ms: int = _key(
        "kafkaTransactionTimeout", "duration", '"60s"', "Kafka aborts a transaction that was left open for this long.",
        least=1_000, most=900_000,
    )  # fmt: skip
    kafka_jars_dir_text: str = _key(
        "kafkaJarsDir", "path", '""', "Jars of Spark's Kafka connector; resolved by Maven if missing. Empty: jars/ in dataDir."
    )
    kafka_security_protocol: str = _key(
        "kafkaSecurityProtocol", "choice", '"PLAINTEXT"', "How to speak to the brokers.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    )  # fmt: skip
    kafka_sasl_mechanism: str = _key(
        "kafkaSaslMechanism", "choice", '"SCRAM-SHA-512"', "How to log in.", choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    )
    kafka_sasl_username: str = _key("kafkaSaslUsername", "text", '""', "As whom.")
    kafka_sasl_password: str = _key("kafkaSaslPassword", "text", '""', "The password. Best set by its variable.", secret=True)
    kafka_sasl_password_file: str = _key("kafkaSaslPasswordFile", "path", '""', "A file that holds the password, instead.")
    kafka_tls_ca_file: str = _key("kafkaTlsCaFile", "path", '""', "Certificates that sign the brokers' ones (PEM).")
    kafka_tls_cert_file: str = _key("kafkaTlsCertFile", "path", '""', "This client's own certificate and its chain (PEM).")
    kafka_tls_key_file: str = _key("kafkaTlsKeyFile", "path", '""', "Its private key (PEM, without a passphrase).")

    _begin("The console.")
    console_enabled: bool = _key("consoleEnable", "switch", "true", "Whether the endpoint serves the operators' console at /.")
    console_session_ms: int = _key(
        "consoleSessionTime", "duration", '"12h"', "Who has logged in at the console stays so this long; a quarter of it if idle.",
        least=60_000, most=30 * _DAY_MS,
    )  # fmt: skip

    _begin("Metrics and logs.")
    metrics_enabled: bool = _key(
        "metricsEnable", "switch", "true", "Whether the parts serve Prometheus metrics; the edge does at /metrics of its own port."
    )
    metrics_address: str = _key("metricsAddress", "text", '"127.0.0.1"', "Where the job serves its metrics.")
    job_metrics_port: int = _key("jobMetricsPort", "count", "7482", "Port of the job's metrics; 0 takes a free one.", **_PORT)
    metrics_names_max: int = _key(
        "metricsNamesMax", "count", "100",
        "Producer groups, and pairs of topic and consumer group, that metrics name; the rest is summed up under (other).",
        least=0, most=100_000,
    )  # fmt: skip
    otlp_endpoint: str = _key(
        "otlpEndpoint", "text", '""',
        "Where traces go: the base of an OTLP receiver over HTTP, such as http://127.0.0.1:4318. Empty: there is no tracing. "
        "Needs escrow-mq-server[tracing].",
    )  # fmt: skip
    trace_one_in: int = _key(
        "traceOneIn", "count", "1",
        "Of transactions whose producer sends no trace along, one in so many is traced; the others follow their producer.",
        least=1, most=1_000_000_000,
    )  # fmt: skip
    log_dir_text: str = _key("logDir", "path", '""', "Where the parts' output goes. Empty: logs/ in dataDir.")
    log_file_bytes: int = _key("logFileSize", "size", '"16MiB"', "A log file is rotated at this size.", least=4 << 10, most=1 << 34)
    log_files: int = _key("logFiles", "count", "5", "Rotated log files kept of each part.", least=1, most=1_000)

    _begin("Plug-ins. See docs/plugins.md.")
    plugins: tuple[str, ...] = _key(
        "plugins", "names", "[]",
        "Distributions whose plug-ins are loaded: DISTRIBUTION, or DISTRIBUTION:ENTRY-POINT for one of them. No others are.",
    )  # fmt: skip

    _begin("The supervisor: escrow run.")
    start_timeout_ms: int = _key(
        "startTimeout", "duration", '"180s"', "A part that is not ready by then is stopped and started again.",
        least=1_000, most=_DAY_MS,
    )  # fmt: skip
    stop_timeout_ms: int = _key(
        "stopTimeout", "duration", '"10s"', "From the signal to stop until nothing is left.", least=2_000, most=600_000
    )
    restart_backoff_ms: int = _key(
        "restartBackoff", "duration", '"500ms"', "Wait before a dead part is started again; doubles with each quick death.",
        least=1, most=600_000,
    )  # fmt: skip
    restart_backoff_max_ms: int = _key("restartBackoffMax", "duration", '"30s"', "The longest such wait.", least=1, most=3_600_000)
    restart_quick_ms: int = _key(
        "restartQuickDeath",
        "duration",
        '"60s"',
        "A part that was ready for less has died quickly.",
        least=1,
        most=_DAY_MS,
    )
    restart_deaths_max: int = _key(
        "restartDeathsMax", "count", "6", "Quick deaths in a row after which the supervisor gives up.", least=1, most=1_000_000
    )

    file: Path | None = field(default=None, compare=False)
    origins: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    flags: tuple[str, ...] = field(default=(), compare=False)
    #: Sentences about values that are legal and probably not meant; for whoever speaks to the operator.
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
        """Spark's checkpoint, warehouse and scratch files; nothing in it is truth."""
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
        return Path(self.access_keys_file_text) if self.access_keys_file_text else self.data_dir / "keys" / "rocketmq.toml"

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
        names = ("bootstrap_servers", "security_protocol", "sasl_mechanism", "sasl_username", "sasl_password", "sasl_password_file")
        return {name: getattr(self, f"kafka_{name}") for name in (*names, "tls_ca_file", "tls_cert_file", "tls_key_file")}

    def kafka_topics(self) -> dict[str, str]:
        """Arguments of sinks.kafka.contract.Topics."""
        return {name: getattr(self, f"kafka_{name}_topic") for name in ("half", "op", "redo", "check", "discard", "lease", "ends")}

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
            yield key, MASK if key.secret and value else written(key, value), self.origins.get(key.name, DEFAULT)

    def arguments(self) -> list[str]:
        """The flags that give another process of ours the same settings (the environment is inherited). Everybody on the machine
        can read them: what is secret goes by `environment`."""
        config = ["--config", str(self.file)] if self.file is not None else []
        return config + [word for flag in self.flags if not _is_secret(flag) for word in ("--set", flag)]

    def environment(self) -> dict[str, str]:
        """What another process of ours needs in its environment besides: flags that are secret."""
        secret = (flag.partition("=") for flag in self.flags if _is_secret(flag))
        return {KEYS[name].variable: value for name, _, value in secret}


def _is_secret(flag: str) -> bool:
    return KEYS[flag.partition("=")[0]].secret


def written(key: Key, value: Any) -> object:
    """A value as the file would have it: times and sizes with their unit."""
    if key.kind == "duration":
        return _duration_text(value)
    if key.kind == "size":
        text = _size_text(value)
        return value if text.isdigit() else text
    if key.kind == "names":
        return list(value)
    return str(value) if key.kind == "path" else value


KEYS: Final[dict[str, Key]] = {}
for _field in fields(Settings):
    if "key" in _field.metadata:
        _found: Key = _field.metadata["key"]
        object.__setattr__(_found, "field", _field.name)
        KEYS[_found.name] = _found


# --- loading ----------------------------------------------------------------------------------------------------------
def load(file: Path | None = None, flags: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from defaults < file < environment < flags ("key=value"); SettingsError with all that is wrong.

    Without a file: the one that ESCROW_CONFIG names, or conf/escrow.toml here if there is one, or none.
    """
    environ = os.environ if environ is None else environ
    flags = tuple(flags)
    problems: list[str] = []
    path = _choose_file(file, environ)
    found: dict[str, tuple[object, Origin]] = {}
    for source in (_from_file(path, problems), _from_environment(environ, problems), _from_flags(flags, problems)):
        found.update(source)
    values, origins, warnings = _parse_all(found, problems)
    if not problems:
        problems += _check_together(values, origins)
    if problems:
        raise SettingsError(problems)
    values.setdefault("data_dir_text", Settings.data_dir_text)
    for name in (key.field for key in KEYS.values() if key.kind == "path"):
        if values.get(name):
            values[name] = str(Path(values[name]).absolute())
    return Settings(**values, file=path.absolute() if path else None, origins=origins, flags=flags, warnings=tuple(warnings))


def _choose_file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _from_file(path: Path | None, problems: list[str]) -> dict[str, tuple[object, Origin]]:
    if path is None:
        return {}
    try:
        text = path.read_bytes().decode()
        content = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{path}: {error.strerror}: name a file that can be read, with --config or {CONFIG_VARIABLE}")
        return {}
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both
        problems.append(f"{path}: not valid TOML: {error}")
        return {}
    found: dict[str, tuple[object, Origin]] = {}
    for name, value in content.items():
        origin = Origin(1, f"{path}:{_line_of(text, name)}")
        if name in KEYS:
            found[name] = (value, origin)
        elif isinstance(value, dict):
            problems.append(f"{origin}: [{name}] is a table; keys stand at the top of the file: remove the line")
        else:
            problems.append(f"{origin}: {_unknown(name)}")
    return found


def _line_of(text: str, name: str) -> int:
    """The line of a top-level key; TOML readers do not tell."""
    pattern = re.compile(rf"""\s*(\[\s*)*["']?{re.escape(name)}["']?\s*[=.\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, tuple[object, Origin]]:
    known = {key.variable: key for key in KEYS.values()}
    found: dict[str, tuple[object, Origin]] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or variable.startswith(SECRET_PREFIX):
            continue
        if variable in known:
            found[known[variable].name] = (environ[variable], Origin(2, f"variable {variable}"))
        elif not _SERVICE_LINK.fullmatch(variable):
            close = difflib.get_close_matches(variable, known, 1, 0.8)
            hint = f"did you mean {close[0]}?" if close else "unset it; escrow config show lists the keys"
            problems.append(f"variable {variable}: no such setting: {hint}")
    return found


def _from_flags(flags: Iterable[str], problems: list[str]) -> dict[str, tuple[object, Origin]]:
    found: dict[str, tuple[object, Origin]] = {}
    for flag in flags:
        name, sign, value = flag.partition("=")
        if not sign:
            problems.append(f"flag --set: {flag}: has no value: write --set {name}=VALUE")
        elif name in KEYS:
            found[name] = (value, Origin(FLAG_RANK, "flag --data" if name == "dataDir" else "flag --set"))
        else:
            problems.append(f"flag --set: {_unknown(name)}")
    return found


def _unknown(name: str) -> str:
    if name in _KNOWN_ELSEWHERE:
        return f"{name}: no such key: it is called {_KNOWN_ELSEWHERE[name]} here"
    folded = {known.lower(): known for known in KEYS}
    close = difflib.get_close_matches(name.lower(), folded, 1, 0.7)
    hint = f"did you mean {folded[close[0]]}?" if close else "escrow config show lists the keys"
    return f"{name}: no such key: {hint}"


def _parse_all(
    found: Mapping[str, tuple[object, Origin]], problems: list[str]
) -> tuple[dict[str, Any], dict[str, Origin], list[str]]:
    """(values by field, origins by name, warnings)"""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    warnings: list[str] = []
    for name, (raw, origin) in found.items():
        key = KEYS[name]
        try:
            values[key.field] = parse(key, raw)
            if warning := _warning(key, raw, values[key.field]):
                warnings.append(f"{origin}: {name}: {warning}")
            if key.secret and origin.rank == FLAG_RANK and raw:
                seen = "everybody on this machine can read it in the list of processes"
                warnings.append(f"{origin}: {name}: {seen}: set {key.variable} instead")
        except _Wrong as error:
            problems.append(f"{origin}: {name}: {'its value cannot be used' if key.secret else error}")
        origins[name] = origin
    return values, origins, warnings


def _check_together(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> list[str]:
    """Rules between keys."""
    value = {key.name: values.get(key.field, getattr(Settings, key.field)) for key in KEYS.values()}
    problems = []

    def blame(*names: str) -> str:
        """The key that was set last wins the blame: the strongest origin, the first named among equals."""
        name = max(names, key=lambda each: origins.get(each, DEFAULT).rank)
        return f"{origins.get(name, DEFAULT)}: {name}"

    for name in ("transactionTimeOut", "checkTransactionMessageAtleastInterval"):
        if value[name] >= value["fileReservedTime"]:
            problems.append(
                f"{blame(name, 'fileReservedTime')}: {name} ({_duration_text(value[name])}) reaches fileReservedTime "
                f"({_duration_text(value['fileReservedTime'])}), so every half would be discarded unasked: lower {name} or "
                "raise fileReservedTime"
            )
    room = value["commitLogSegmentSize"] - _FRAME_ROOM_BYTES
    if value["maxBodySize"] > room:
        problems.append(
            f"{blame('maxBodySize', 'commitLogSegmentSize')}: maxBodySize ({_size_text(value['maxBodySize'])}) does not fit into "
            f"a commit log segment ({_size_text(value['commitLogSegmentSize'])}): lower it to {room} or raise commitLogSegmentSize"
        )
    needs = (
        ("tlsCertFile", "tlsKeyFile"), ("tlsKeyFile", "tlsCertFile"), ("tlsClientCaFile", "tlsCertFile"),
        ("kafkaTlsCertFile", "kafkaTlsKeyFile"), ("kafkaTlsKeyFile", "kafkaTlsCertFile"),
    )  # fmt: skip
    for name, needed in needs:
        if value[name] and not value[needed]:
            problems.append(f"{blame(name)}: is set and {needed} is not: set {needed} too, or neither")
    problems += _check_kafka(value, blame)
    if value["grpcTlsPort"] >= 0 and not value["tlsCertFile"]:
        problems.append(f"{blame('grpcTlsPort')}: is set and tlsCertFile is not: set tlsCertFile and tlsKeyFile too")
    if value["tlsClientCaFile"] and value["grpcPort"] >= 0:
        problems.append(
            f"{blame('grpcPort', 'tlsClientCaFile')}: grpcPort serves clients without a certificate while tlsClientCaFile asks "
            "every client for one: set grpcPort to -1 and use grpcTlsPort, or empty tlsClientCaFile"
        )
    if value["grpcTlsPort"] >= 0 and value["tlsMinVersion"] != "1.2":
        problems.append(
            f"{blame('grpcTlsPort', 'tlsMinVersion')}: gRPC speaks TLS 1.2 too and cannot be told otherwise: set tlsMinVersion to "
            "1.2, or grpcTlsPort to -1"
        )
    if value["restartBackoff"] > value["restartBackoffMax"]:
        problems.append(
            f"{blame('restartBackoff', 'restartBackoffMax')}: restartBackoff ({_duration_text(value['restartBackoff'])}) is longer "
            f"than restartBackoffMax ({_duration_text(value['restartBackoffMax'])}): lower it or raise restartBackoffMax"
        )
    return problems


def _check_kafka(value: Mapping[str, Any], blame: Callable[..., str]) -> list[str]:
    problems = []
    if value["mode"] == "kafka" and not value["kafkaBootstrapServers"]:
        problems.append(f"{blame('mode')}: is kafka and kafkaBootstrapServers is empty: name the brokers, host:port,host:port")
    if value["kafkaSaslPassword"] and value["kafkaSaslPasswordFile"]:
        problems.append(f"{blame('kafkaSaslPasswordFile')}: is set and kafkaSaslPassword is too: set one of them")
    if value["kafkaSecurityProtocol"].startswith("SASL") and not value["kafkaSaslUsername"]:
        problems.append(f"{blame('kafkaSecurityProtocol')}: logs in and kafkaSaslUsername is empty: set it")
    topics = [name for name in value if name.startswith("kafka") and name.endswith("Topic")]
    for name in topics:
        if [value[other] for other in topics].count(value[name]) > 1:
            problems.append(f"{blame(name)}: {value[name]!r} is the name of another of Escrow's topics too: give each its own")
    if value["kafkaMinInsync"] > value["kafkaReplication"]:
        problems.append(
            f"{blame('kafkaMinInsync', 'kafkaReplication')}: kafkaMinInsync ({value['kafkaMinInsync']}) is more than "
            f"kafkaReplication ({value['kafkaReplication']}): lower it or raise kafkaReplication"
        )
    return problems


#: Head and properties of a frame have their room beside the body (store.edge.encode has the same figures).
_FRAME_ROOM_BYTES: Final = 120 + (32 << 10)


# --- flags, for every command that takes settings ----------------------------------------------------------------------
def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--config, --data and --set: the flags of every process that takes settings."""
    parser.add_argument("--config", metavar="FILE", type=Path, help=f"the settings (default: ${CONFIG_VARIABLE} or {DEFAULT_FILE})")
    parser.add_argument("--data", metavar="DIR", help="the data directory; the same as --set dataDir=DIR")
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting",
    )


def load_arguments(args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings as the flags of `add_arguments` say."""
    flags = [*args.settings, *([f"dataDir={args.data}"] if args.data is not None else [])]
    return load(args.config, flags, environ)


def from_arguments(argv: Sequence[str] | None = None, prog: str | None = None) -> Settings:
    """Settings of a process that takes nothing else."""
    parser = argparse.ArgumentParser(prog=prog)
    add_arguments(parser)
    return load_arguments(parser.parse_args(argv))


# --- the file with every default ---------------------------------------------------------------------------------------
def template() -> str:
    """conf/escrow.toml: every key with its default, its unit and its sentence."""
    lines = [
        "# Escrow's settings, each with its default. A key that is left out has the same default.",
        "# Stronger than this file: the variable named beside each key, and the flag --set KEY=VALUE.",
        "# `escrow config show` prints what is in force and where it came from; `escrow config check` only checks.",
    ]
    section = ""
    for key in KEYS.values():
        if key.section != section:
            section = key.section
            lines += ["", f"# --- {section} ---"]
        lines += ["", f"# {key.doc}", f"# {_bounded(key)} · {key.variable}"]
        lines += [f"# {key.name} = …" if key.secret else f"{key.name} = {key.default}"]
    return "\n".join(lines) + "\n"


def _bounded(key: Key) -> str:
    if key.kind != "count" or key.most is None:
        return key.unit
    return f"{key.unit} from {key.least} to {key.most}"
