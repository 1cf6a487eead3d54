"""Rules between keys: what cannot be set together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from runtime.settings.units import duration_text, size_text
from runtime.settings.values import DEFAULT, KEYS, Origin, Settings

#: A frame's head and properties beside the body (store.edge.append.encode has the same figures).
_FRAME_ROOM_BYTES: Final = 120 + (32 << 10)
#: A problem: the keys involved and the sentence.
Problem = tuple[tuple[str, ...], str]


def check_together(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> list[str]:
    """A sentence for each broken rule. It names the place of the key that was set last: the strongest origin,
    the first named among equals."""
    value = {key.name: values.get(key.field, getattr(Settings, key.field)) for key in KEYS.values()}
    problems = []
    for rule in (_check_ages, _check_sizes, _check_tls, _check_kafka, _check_grpc, _check_restarts):
        for names, sentence in rule(value):
            name = max(names, key=lambda each: origins.get(each, DEFAULT).rank)
            problems.append(f"{origins.get(name, DEFAULT)}: {name}: {sentence}")
    return problems


def _check_ages(value: Mapping[str, Any]) -> Iterator[Problem]:
    retention = value["fileReservedTime"]
    for name in ("transactionTimeOut", "checkTransactionMessageAtleastInterval"):
        if value[name] >= retention:
            yield (
                (name, "fileReservedTime"),
                f"{name} ({duration_text(value[name])}) reaches fileReservedTime ({duration_text(retention)}), so "
                f"every half would be discarded without a check: lower {name} or raise fileReservedTime",
            )


def _check_sizes(value: Mapping[str, Any]) -> Iterator[Problem]:
    body, segment = value["maxBodySize"], value["commitLogSegmentSize"]
    room = segment - _FRAME_ROOM_BYTES
    if body > room:
        yield (
            ("maxBodySize", "commitLogSegmentSize"),
            f"maxBodySize ({size_text(body)}) does not fit into a commit log segment ({size_text(segment)}): "
            f"lower it to {room} or raise commitLogSegmentSize",
        )


def _check_tls(value: Mapping[str, Any]) -> Iterator[Problem]:
    needs = (
        ("tlsCertFile", "tlsKeyFile"), ("tlsKeyFile", "tlsCertFile"), ("tlsClientCaFile", "tlsCertFile"),
        ("kafkaTlsCertFile", "kafkaTlsKeyFile"), ("kafkaTlsKeyFile", "kafkaTlsCertFile"),
    )  # fmt: skip
    for name, needed in needs:
        if value[name] and not value[needed]:
            yield (name,), f"is set and {needed} is not: set both or neither"


def _check_grpc(value: Mapping[str, Any]) -> Iterator[Problem]:
    if value["grpcTlsPort"] >= 0 and not value["tlsCertFile"]:
        yield ("grpcTlsPort",), "is set and tlsCertFile is not: set tlsCertFile and tlsKeyFile too"
    if value["tlsClientCaFile"] and value["grpcPort"] >= 0:
        yield (
            ("grpcPort", "tlsClientCaFile"),
            "grpcPort serves clients without a certificate while tlsClientCaFile requires one of every client: "
            "set grpcPort to -1 and use grpcTlsPort, or leave tlsClientCaFile empty",
        )
    if value["grpcTlsPort"] >= 0 and value["tlsMinVersion"] != "1.2":
        yield (
            ("grpcTlsPort", "tlsMinVersion"),
            "gRPC always accepts TLS 1.2: set tlsMinVersion to 1.2, or grpcTlsPort to -1",
        )


def _check_kafka(value: Mapping[str, Any]) -> Iterator[Problem]:
    if value["mode"] == "kafka" and not value["kafkaBootstrapServers"]:
        yield ("mode",), "is kafka and kafkaBootstrapServers is empty: name the brokers, host:port,host:port"
    if value["kafkaSaslPassword"] and value["kafkaSaslPasswordFile"]:
        yield ("kafkaSaslPasswordFile",), "is set and kafkaSaslPassword is too: set only one of them"
    if value["kafkaSecurityProtocol"].startswith("SASL") and not value["kafkaSaslUsername"]:
        yield ("kafkaSecurityProtocol",), "uses SASL and kafkaSaslUsername is empty: set kafkaSaslUsername"
    topics = [name for name in value if name.startswith("kafka") and name.endswith("Topic")]
    for name in topics:
        if [value[other] for other in topics].count(value[name]) > 1:
            yield (name,), f"{value[name]!r} is also the name of another topic of Escrow: use different names"
    if value["kafkaMinInsync"] > value["kafkaReplication"]:
        yield (
            ("kafkaMinInsync", "kafkaReplication"),
            f"kafkaMinInsync ({value['kafkaMinInsync']}) is more than kafkaReplication "
            f"({value['kafkaReplication']}): lower it or raise kafkaReplication",
        )


def _check_restarts(value: Mapping[str, Any]) -> Iterator[Problem]:
    first, longest = value["restartBackoff"], value["restartBackoffMax"]
    if first > longest:
        yield (
            ("restartBackoff", "restartBackoffMax"),
            f"restartBackoff ({duration_text(first)}) is longer than restartBackoffMax "
            f"({duration_text(longest)}): lower it or raise restartBackoffMax",
        )
