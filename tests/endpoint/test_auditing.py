"""What the audit of a running endpoint tells."""

from __future__ import annotations

import json

from ingest.auth import token_file
from tests.support.edge_client import EdgeClient
from tests.support.edge_process import HALF, edge

MADE_AT = "2026-01-02T03:04:05Z"


def test_logins_seeks_and_denials_of_a_real_endpoint(tmp_path):
    data = tmp_path / "data"
    file = data / "keys" / "tokens.toml"
    ops = token_file.add(file, "ops", [], [], operator=True, metrics=False, made_at=MADE_AT)
    shop = token_file.add(file, "shop", ["g:t"], ["t:c", "%DLQ%c:c"], operator=False, metrics=False, made_at=MADE_AT)
    with edge(data) as (process, port):
        with EdgeClient(port, token=shop) as client:
            client.raw("POST", "/v1/messages", {"messages": [{**HALF, "group": "g", "topic": "t"}]})
            assert client.raw("POST", "/v1/topics/t/seek", {"group": "c", "to": "latest"})[0] == 200
            assert client.raw("POST", "/v1/groups/c/dead-letters/replay", {"ids": ["0-0"]})[0] == 200
            assert client.raw("POST", "/v1/topics/t/seek", {"group": "other", "to": "latest"})[0] == 403
        with EdgeClient(port) as client:
            assert client.raw("POST", "/console/session", {"token": ops})[0] == 200
            assert client.raw("POST", "/console/session", {"token": shop})[0] == 403
        with EdgeClient(port, token=ops) as client:
            records = json.loads(client.raw("GET", "/v1/operator/audit")[2])["records"]
        process.terminate()
        assert process.wait(30) == 0
    assert [(each["who"], each["action"], each["target"], each["result"]) for each in reversed(records)] == [
        ("tokens file", "tokens", "added ops, shop", "done"),
        ("shop", "seek", "t as c to latest", "done"),
        ("shop", "replay", "1 dead letters of c", "done"),
        ("ops", "login", "console", "done"),
    ]
    with edge(data) as (_, port), EdgeClient(port, token=ops) as client:
        records = json.loads(client.raw("GET", "/v1/operator/audit")[2])["records"]
    (denied,) = [(each["who"], each["counts"]) for each in records if each["action"] == "denied"]
    assert denied == ("shop", {"denied": 2, "POST /v1/topics/{topic}/seek": 1, "POST /console/session": 1})
