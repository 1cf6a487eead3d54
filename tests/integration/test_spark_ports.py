"""Spark's own ports beside the job: whoever has no secret is not heard, and no command line tells one."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from runtime.settings import load
from tests.support.spark import own_spark

RPC_REQUEST = 3
LISTENS = "0A"


def listening(pid):
    """(address, port) of every socket that a process listens on."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}")
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and words[9] in inodes:
                address, _, port = words[1].partition(":")
                found.add((address, int(port, 16)))
    return found


def text(value):
    return struct.pack(">H", len(value)) + value


def rpc(port, name=b"evil.Gadget"):
    """A message to an endpoint of Spark's with a Java object of a class that nobody has."""
    sender = b"\x01" + text(b"127.0.0.1") + struct.pack(">i", 1)
    receiver = b"\x01" + text(b"127.0.0.1") + struct.pack(">i", port) + text(b"HeartbeatReceiver")
    given = b"\xac\xed\x00\x05sr" + text(name) + struct.pack(">q", 1) + b"\x02\x00\x00xp"
    payload = sender + receiver + given
    return frame(bytes([RPC_REQUEST]) + struct.pack(">qi", 77, len(payload)), payload)


def frame(head, payload=b""):
    return struct.pack(">q", 8 + len(head) + len(payload)) + head + payload


def answer(port, sent):
    with socket.create_connection(("127.0.0.1", port), timeout=3) as wire:
        wire.sendall(sent)
        said = b""
        try:
            while piece := wire.recv(65_536):
                said += piece
        except (TimeoutError, ConnectionError):
            pass
        return said


def command_lines():
    """Of every process of this user's that can be read."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue


@pytest.fixture
def spark(tmp_path):
    settings = load(None, [f"dataDir={tmp_path}", "sparkDriverMemory=512MiB"], {})
    with own_spark(settings):
        gateway: Any = SparkContext._gateway
        yield tmp_path, gateway.proc.pid


def test_nobody_without_the_secret_is_heard(spark):
    data, pid = spark
    places = listening(pid)
    assert len(places) >= 2
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    assert all(address in loopback for address, _ in places), places
    for _, port in places:
        said = answer(port, rpc(port))
        assert b"evil.Gadget" not in said, said[:400]
        assert b"ObjectInputStream" not in said, said[:400]
    properties = next(data.glob("spark/run-*/spark.properties"))
    assert properties.stat().st_mode & 0o077 == 0
    mine = [line for line in command_lines() if str(data).encode() in line]
    assert mine
    assert not any(b"--conf" in line or b"spark.authenticate" in line for line in mine)
