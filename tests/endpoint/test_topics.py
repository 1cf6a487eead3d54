"""Who may make topics and groups, and who removes them, through the endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.edge_process import HALF, edge
from tests.support.named import new, sent


def test_limits_hold_through_the_endpoint_and_outlive_a_restart(tmp_path):
    data = tmp_path / "data"
    team, ops = new(data, "team", ["g*:*"], ["*:*"]), new(data, "ops", operator=True)
    flags = ("topicsPerTokenMax=3", "groupsPerTokenMax=2")
    with edge(data, *flags) as (_, port):
        assert sent(port, team, "a", "b") == 200
        assert sent(port, team, "c", "d") == "too_many_names"
        assert sent(port, team, "c") == 200
    with edge(data, *flags) as (_, port):
        assert sent(port, team, "d") == "too_many_names"
        assert sent(port, team, "a", "b", "c") == 200
        with EdgeClient(port, token=ops) as client:
            made = {"topic": "d", "queues": 2, "made": True}
            assert client.call("POST", "/v1/operator/topics", {"topic": "d", "queues": 2}) == made
            assert client.call("POST", "/v1/operator/topics", {"topic": "d"}) == {**made, "made": False}
            with pytest.raises(RemoteError) as caught:
                client.call("POST", "/v1/operator/topics", {"topic": "d", "queues": 3})
            assert caught.value.code == "invalid"
            actions = [(each["action"], each["target"]) for each in client.call("GET", "/v1/operator/audit")["records"]]
            assert ("create topic", "d") in actions
        assert sent(port, team, "d") == 200
        with EdgeClient(port, token=team) as client:
            client.call("GET", "/v1/topics/a/messages", group="reader", consumer="c")
            with pytest.raises(RemoteError) as caught:
                client.call("GET", "/v1/topics/a/messages", group="another", consumer="c")
            assert caught.value.code == "too_many_names"


def test_without_auto_create_an_operator_makes_topics(tmp_path):
    with edge(tmp_path / "data", "autoCreateTopics=false") as (_, port):
        assert sent(port, "", "a") == "no_such_topic"
        with EdgeClient(port) as client:
            client.call("POST", "/v1/operator/topics", {"topic": "a"})
        assert sent(port, "", "a") == 200


def test_an_operator_removes_all_that_a_token_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    team, ops = new(data, "team", ["g*:*"], ["*:*"]), new(data, "ops", operator=True)
    made = [f"hostile-{number}" for number in range(20)]
    with edge(data, "topicsPerTokenMax=20") as (_, port), EdgeClient(port, token=ops) as client:
        with EdgeClient(port, token=team) as tenant:
            halves = [{**HALF, "group": "g", "topic": topic} for topic in made]
            ids = [each["id"] for each in tenant.call("POST", "/v1/halves", {"messages": halves})["halves"]]
            ends = [{"group": "g", "id": id, "outcome": "rollback"} for id in ids[1:]]
            tenant.call("POST", "/v1/ends", {"ends": ends})
        client.call("POST", "/v1/operator/topics", {"topic": "mine"})
        assert sent(port, team, "more") == "too_many_names"
        wanted = {"unused": True, "made_by": "team"}
        dry = client.call("POST", "/v1/operator/topics/remove", {**wanted, "dry_run": True})
        assert (dry["removed"], dry["dry_run"]) == (19, True)
        answer = client.call("POST", "/v1/operator/topics/remove", wanted)
        assert (answer["removed"], answer["kept"], sorted(answer["topics"])) == (19, 0, sorted(made[1:]))
        assert {each["topic"] for each in client.call("GET", "/v1/operator/topics")["topics"]} >= {"mine", made[0]}
        assert sent(port, team, "more") == 200
        answer = client.call("POST", "/v1/operator/topics/remove", {"topics": [made[0], "nobody"]})
        assert (answer["removed"], answer["kept"]) == (0, 2)
        reasons = {each["topic"]: each["reason"] for each in answer["in_the_way"]}
        assert "1 halves for it are in doubt" in reasons[made[0]]
        assert "no such topic" in reasons["nobody"]
        audit = client.call("GET", "/v1/operator/audit")["records"]
        assert ("remove topics", "unused topics made by team") in [(each["action"], each["target"]) for each in audit]
        with pytest.raises(RemoteError) as caught:
            client.call("POST", "/v1/operator/topics/remove", {"topics": ["a"], "unused": True})
        assert caught.value.code == "invalid"
