"""Keys of the edge: HTTP, gRPC, tokens, quotas, TLS, consumers, console."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings.declare import DAY_MS, PORT, key


@dataclass(frozen=True)
class Edge:
    """The HTTP endpoint: address, limits, timeouts, keys of transaction ids."""

    listen_address: str = key(
        "listenAddress", "text", '"127.0.0.1"',
        "Address that the edge listens on. An address other than loopback needs tokens (escrow token "
        "new).",
    )  # fmt: skip
    listen_port: int = key(
        "listenPort", "count", "7480", "Port of the edge. 0 takes a free port and prints it.",
        **PORT,
    )  # fmt: skip
    max_body_bytes: int = key(
        "maxBodySize", "size", '"4MiB"', "Largest message body.",
        least=1, most=1 << 30,
    )  # fmt: skip
    max_request_bytes: int = key(
        "maxRequestSize", "size", '"16MiB"', "Largest request, including all messages of a batch.",
        least=1 << 10, most=1 << 30,
    )  # fmt: skip
    max_messages_per_request: int = key(
        "maxMessagesPerRequest", "count", "4096", "Most messages or ends in one request.",
        least=1, most=65_535,
    )  # fmt: skip
    max_queued_bytes: int = key(
        "maxQueuedSize", "size", '"64MiB"',
        "Size of the write queue. When it is full, halves and messages are refused; ends are still "
        "accepted.",
        least=64 << 10, most=16 << 30,
    )  # fmt: skip
    max_receiving_bytes: int = key(
        "maxReceivingSize", "size", '"256MiB"',
        "Total size of the requests that are being received. Ends have a separate budget of the same "
        "size.",
        least=1 << 20, most=64 << 30,
    )  # fmt: skip
    header_timeout_ms: int = key(
        "headerTimeout", "duration", '"10s"', "Time to receive the head of a request.",
        least=10, most=600_000,
    )  # fmt: skip
    request_timeout_ms: int = key(
        "requestTimeout", "duration", '"30s"',
        "Time to receive the body of a request, and time for the client to read the response.",
        least=10, most=3_600_000,
    )  # fmt: skip
    keep_alive_ms: int = key(
        "keepAliveTimeout", "duration", '"75s"', "Close a connection after this time without a request.",
        least=1_000, most=DAY_MS,
    )  # fmt: skip
    max_connections: int = key(
        "maxConnections", "count", "4096",
        "Open connections to the edge. When the limit is reached, the longest idle one is closed.",
        least=1, most=1 << 20,
    )  # fmt: skip
    poll_wait_max_ms: int = key(
        "pollWaitMax", "duration", '"30s"', "Longest wait of a poll for check requests or messages.",
        least=0, most=600_000,
    )  # fmt: skip
    checks_per_poll_max: int = key(
        "checksPerPollMax", "count", "256", "Most check requests in one response.",
        least=1, most=4096,
    )  # fmt: skip
    dedup_window_ms: int = key(
        "dedupWindow", "duration", '"1h"',
        "A send that repeats a dedup_key within this time is the same send.",
        least=0, most=30 * DAY_MS,
    )  # fmt: skip
    id_keys_file: str = key(
        "idKeysFile", "path", '""',
        "File with the keys that seal transaction ids, one per line; the first one seals new ids. "
        "Empty: keys/ids.keys in dataDir.",
    )  # fmt: skip
    id_keys: str = key(
        "idKeys", "text", '""',
        "The same keys as text, separated by commas, instead of a file. Prefer the environment "
        "variable.",
        secret=True,
    )  # fmt: skip


@dataclass(frozen=True)
class RocketMQClients:
    """The gRPC ports for RocketMQ 5's clients."""

    grpc_port: int = key(
        "grpcPort", "count", "-1",
        "Port without TLS, on listenAddress (RocketMQ's default is 8081). 0 takes a free port, -1 = "
        "off.",
        least=-1, most=65_535,
    )  # fmt: skip
    grpc_tls_port: int = key(
        "grpcTlsPort", "count", "-1",
        "Port with TLS; uses tlsCertFile and tlsKeyFile. 0 takes a free port, -1 = off.",
        least=-1, most=65_535,
    )  # fmt: skip
    grpc_calls_max: int = key(
        "grpcMaxCalls", "count", "4096",
        "Concurrent calls, and connections per port. Each client holds one stream; each consumer also "
        "holds one long poll per topic.",
        least=16, most=1 << 20,
    )  # fmt: skip
    access_keys_file_text: str = key(
        "accessKeysFile", "path", '""',
        "File with access keys and their secrets, written by escrow token access-key. Empty: "
        "keys/rocketmq.toml in dataDir.",
    )  # fmt: skip


@dataclass(frozen=True)
class Tokens:
    """Who may do what, and how much one token may use."""

    tokens_file_text: str = key(
        "tokensFile", "path", '""',
        "File with tokens and their roles, written by escrow token. Without it every client on "
        "loopback has all rights. Empty: keys/tokens.toml in dataDir.",
    )  # fmt: skip
    token_requests_max: int = key(
        "tokenRequestsMax", "count", "0",
        "Average requests per second and token. Faster requests are delayed. 0 = no limit.",
        least=0, most=1 << 20,
    )  # fmt: skip
    token_bytes_max: int = key(
        "tokenBytesMax", "size", '"0"',
        "Average request bytes per second and token. Faster requests are delayed. 0 = no limit.",
        least=0, most=1 << 40,
    )  # fmt: skip
    token_in_flight_max: int = key(
        "tokenInFlightMax", "count", "1024",
        "Concurrent requests per token, long polls included. More are refused. 0 = no limit.",
        least=0, most=1 << 20,
    )  # fmt: skip
    token_held_bytes_max: int = key(
        "tokenHeldBytesMax", "size", '"128MiB"',
        "Memory per token: request bodies, gRPC messages, polls and responses that the client has not "
        "read. More is refused. Set it to several times maxRequestSize. 0 = no limit.",
        least=0, most=64 << 30,
    )  # fmt: skip


@dataclass(frozen=True)
class Groups:
    """Quotas of producer groups."""

    groups_file_text: str = key(
        "groupsFile", "path", '""',
        "File with quotas and webhooks of single groups (docs/security.md, TOML). Empty: groups.toml "
        "in dataDir.",
    )  # fmt: skip
    group_rate_max: int = key(
        "groupRateMax", "count", "0", "Average halves and messages per second and group.",
        least=0, most=1 << 40,
    )  # fmt: skip
    group_pending_max: int = key(
        "groupPendingMax", "count", "0", "Pending halves per group.",
        least=0, most=1 << 40,
    )  # fmt: skip
    group_pending_age_max_ms: int = key(
        "groupPendingAgeMax", "duration", '"0ms"',
        "Refuse new halves of a group while its oldest pending half is older than this.",
        least=0, most=3650 * DAY_MS, sub_second=False,
    )  # fmt: skip


@dataclass(frozen=True)
class Tls:
    """Certificates of the edge."""

    tls_cert_file: str = key(
        "tlsCertFile", "path", '""',
        "Certificate chain of the edge (PEM). Empty: plain HTTP. A changed file is reloaded "
        "automatically.",
    )  # fmt: skip
    tls_key_file: str = key(
        "tlsKeyFile", "path", '""', "Private key of the certificate (PEM, without a passphrase).",
    )  # fmt: skip
    tls_client_ca_file: str = key(
        "tlsClientCaFile", "path", '""',
        "CA certificates for client certificates (PEM). If set, every client must present one (mutual "
        "TLS).",
    )  # fmt: skip
    tls_min_version: str = key(
        "tlsMinVersion", "choice", '"1.2"', "Oldest TLS version that is accepted.",
        choices=("1.2", "1.3"), remedy="older versions are insecure",
    )  # fmt: skip


@dataclass(frozen=True)
class Consumers:
    """Deliveries to consumers."""

    max_deliveries: int = key(
        "maxDeliveries", "count", "16",
        "Deliveries of a message to a consumer group before it becomes a dead letter.",
        least=1, most=65_535,
    )  # fmt: skip
    visibility_ms: int = key(
        "visibilityTime", "duration", '"30s"',
        "A message that is not acknowledged within this time is delivered again.",
        least=1, most=DAY_MS, sub_second=False,
    )  # fmt: skip
    visibility_max_ms: int = key(
        "maxVisibilityTime", "duration", '"12h"', "Longest visibility time that a consumer may ask for.",
        least=1, most=30 * DAY_MS,
    )  # fmt: skip
    messages_per_poll_max: int = key(
        "messagesPerPollMax", "count", "1024", "Most messages in one response.",
        least=1, most=65_535,
    )  # fmt: skip
    look_ahead: int = key(
        "lookAheadWindow", "count", "4096",
        "How far a consumer group may read past its oldest unacknowledged message, per queue.",
        least=64, most=1 << 20,
    )  # fmt: skip


@dataclass(frozen=True)
class Console:
    """The operators' pages."""

    console_enabled: bool = key("consoleEnable", "switch", "true", "Serve the operators' console at /.")
    runbook_base_url: str = key(
        "runbookBaseUrl", "text", '""',
        "Where your copy of docs/operators.md is: the console links to its sections. Empty: it names the command instead.",
    )  # fmt: skip
    trace_link_template: str = key(
        "traceLinkTemplate", "text", '""',
        "A link to your traces, with {trace_id} in it, for messages that carry a traceparent. Empty: no link.",
    )  # fmt: skip
    console_session_ms: int = key(
        "consoleSessionTime", "duration", '"12h"',
        "Console session lifetime. An idle session ends after a quarter of it.",
        least=60_000, most=30 * DAY_MS,
    )  # fmt: skip
