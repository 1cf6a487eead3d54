"""Tokens and messages for tests of names through the endpoint."""

from __future__ import annotations

from ingest.auth import token_file
from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_process import HALF


def new(data, name, produce=(), consume=(), **roles):
    given = {"operator": False, "metrics": False, **roles}
    return token_file.add(data / "keys" / "tokens.toml", name, produce, consume, made_at="2026-01-02T03:04:05Z", **given)


def sent(port, token, *topics, group="g"):
    """200, or the code of the refusal."""
    with EdgeClient(port, token=token) as client:
        try:
            client.call("POST", "/v1/messages", {"messages": [{**HALF, "group": group, "topic": topic} for topic in topics]})
        except RemoteError as error:
            return error.code
    return 200
