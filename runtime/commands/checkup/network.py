"""Ports of the service, and Kafka's brokers."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.commands.checkup.finding import ANSWER_S, Finding, Level
from runtime.settings import Settings


def check_ports(settings: Settings, running: dict[str, Any] | None) -> Iterator[Finding]:
    wanted = [("listenPort", settings.listen_address, settings.listen_port)]
    if settings.metrics_enabled:
        wanted.append(("jobMetricsPort", settings.metrics_address, settings.job_metrics_port))
    if settings.spark_ui_port:
        wanted.append(("sparkUiPort", "127.0.0.1", settings.spark_ui_port))
    own = {int(part.get("pid") or 0) for part in (running or {}).values() if isinstance(part, dict)} - {0}
    for key, address, port in wanted:
        yield _port(key, address, port, own)


def _port(key: str, address: str, port: int, own: set[int]) -> Finding:
    if not port:
        return Finding(Level.OK, "port", f"{key} is 0: a free one is taken")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        who = listener_of(port)
        if who is not None and who[0] in own:
            return Finding(Level.OK, "port", f"{key} {port}: Escrow itself (process {who[0]})")
        taken = f"taken by process {who[0]} ({who[1]})" if who else (error.strerror or str(error)).lower()
        remedy = (
            f"stop it, or choose another: --set {key}=PORT" if port >= 1024 else f"ports below 1024 need rights; --set {key}=PORT"
        )
        return Finding(Level.FAIL, "port", f"{key} {address}:{port}: {taken}", remedy)
    return Finding(Level.OK, "port", f"{key} {port}: free")


def listener_of(port: int) -> tuple[int, str] | None:
    """(process, its command) that listens on a port; None if unknown."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{words[9]}]")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return int(process.name), command[:60]
    return None


def check_kafka(settings: Settings) -> Iterator[Finding]:
    """Each broker that is named, in Kafka mode."""
    if getattr(settings, "mode", "embedded") != "kafka":
        return
    if importlib.util.find_spec("confluent_kafka") is None:
        yield Finding(Level.FAIL, "Kafka", "the package confluent-kafka is missing", "in a checkout: pip install ./sdk '.[kafka]'")
    servers = [name.strip() for name in str(getattr(settings, "kafka_bootstrap_servers", "")).split(",") if name.strip()]
    if not servers:
        yield Finding(Level.FAIL, "Kafka", "kafkaBootstrapServers is empty", "name brokers: host:9092,host:9092")
    found = [broker(server) for server in servers]
    good = sum(each.level is not Level.FAIL for each in found)
    for each in found:
        # One broker of several may be away: the others know the cluster.
        yield Finding(Level.WARN, each.what, each.says, each.remedy) if each.level is Level.FAIL and good else each


def broker(server: str) -> Finding:
    """Is there a Kafka broker? Sends the smallest request: ApiVersions."""
    host, _, port = server.rpartition(":")
    remedy = "check that it runs, that the name is right and that no firewall blocks it"
    if not host or not port.isdigit():
        return Finding(Level.FAIL, "Kafka", f"{server!r} is not host:port", "correct kafkaBootstrapServers")
    body = b"\x00\x12\x00\x00" + b"ESCR" + b"\x00\x06" + b"escrow"  # ApiVersions, version 0, our mark, our name
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as connection:
            connection.sendall(len(body).to_bytes(4, "big") + body)
            answer = connection.recv(8)
    except OSError as error:
        return Finding(Level.FAIL, "Kafka", f"{server}: {error.strerror or error}", remedy)
    if answer[4:8] != b"ESCR":
        says = f"{server}: something listens, but does not answer a plain-text Kafka request"
        return Finding(Level.WARN, "Kafka", says, "if it needs TLS or SASL, set them for Kafka; otherwise it is not a broker")
    return Finding(Level.OK, "Kafka", f"{server}: answers")
