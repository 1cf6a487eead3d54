"""The endpoint as a child process with small files, and what tests say to it over HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_world import SMALL

ROOT = Path(__file__).parents[2]
HALF = {"group": "g", "topic": "t", "text": "hello"}


def start(data, *flags, **environ):
    sets = [word for flag in (*SMALL, "listenPort=0", *flags) for word in ("--set", flag)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ESCROW_")}
    return subprocess.Popen(
        [sys.executable, "-m", "ingest.server", "--data", str(data), *sets],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**environment, **environ},
    )  # fmt: skip


def ready(process):
    for line in process.stdout:
        told = json.loads(line)
        if told.get("ready"):
            return told["port"]
    raise AssertionError(process.stderr.read())


def finish(process):
    with process:
        process.kill()


@contextmanager
def edge(data, *flags):
    process = start(data, *flags)
    try:
        yield process, ready(process)
    finally:
        finish(process)


def refused(client, method, path, content=None, **query):
    with pytest.raises(RemoteError) as caught:
        client.call(method, path, content, **query)
    return caught.value


def refused_half(client, *messages):
    return refused(client, "POST", "/v1/halves", {"messages": list(messages)})


def talk(port, *pieces, timeout_s=20.0):
    """Send pieces; everything that comes back until the other side hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def problem_in(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    return json.loads(body.partition(b"HTTP/1.1")[0])


def served(port):
    with EdgeClient(port) as client:
        return client.call("GET", "/livez") == {"status": "ok"}


def post(path, content, *more):
    head = [b"POST %s HTTP/1.1" % path, b"host: localhost", b"content-length: %d" % len(content), *more]
    return b"\r\n".join([*head, b"", content])


def figure(client, name):
    """A metric's value."""
    lines = client.raw("GET", "/metrics")[2].decode().splitlines()
    return float(next((line for line in lines if line.startswith(name + " ")), "none 0").rsplit(" ", 1)[1])


def cannot_start(data, *flags, **environ):
    process = start(data, *flags, **environ)
    out, err = process.communicate(timeout=30)
    assert "ready" not in out
    assert err.count("\n") == 1, err
    assert err.startswith("escrow edge: ")
    return process.returncode, err
