"""Metrics of the edge that depend on what is pending and on who is there, over HTTP."""

from __future__ import annotations

import time

from tests.support.edge_client import EdgeClient
from tests.support.endpoint import figures, running, until


def test_groups_are_named_up_to_a_bound(tmp_path):
    """The busiest are named, the rest summed up; a group is live while a member polls."""
    with running(tmp_path / "data", "metricsNamesMax=2", "transactionTimeOut=0ms") as endpoint, EdgeClient(endpoint.port) as client:
        for number, group in enumerate(("one", "two", "three", "four"), 1):
            client.prepare([{"group": group, "topic": "t", "text": "x"}] * number)
        client.poll_checks("four", "member-1", wait_s=0)
        time.sleep(1.1)  # ages are whole seconds, and older than 0 counts
        until(lambda: figures(client)["escrow_groups_unattended"] == 3)
        found = figures(client)
        assert {name: value for name, value in found.items() if name.startswith("escrow_group_pending")} == {
            'escrow_group_pending{group="four"}': 4,
            'escrow_group_pending{group="three"}': 3,
            'escrow_group_pending{group="(other)"}': 3,
        }
        live = {name: value for name, value in found.items() if name.startswith("escrow_group_live")}
        assert sorted(live.values()) == [0, 0, 1]
        assert live['escrow_group_live{group="four"}'] == 1
        assert found['escrow_group_oldest_pending_age_seconds{group="(other)"}'] >= 1
        for member in ("one", "two", "three"):
            client.poll_checks(member, "member-1", wait_s=0)
        found = figures(client)
        assert (found["escrow_groups_unattended"], found['escrow_group_live{group="(other)"}']) == (0, 1)


def test_a_group_without_pending_halves_stays_named(tmp_path):
    with running(tmp_path / "data") as endpoint, EdgeClient(endpoint.port) as client:
        (id,) = client.prepare([{"group": "g", "topic": "t", "text": "x"}])
        client.end("g", id, "rollback")
        assert figures(client)['escrow_group_pending{group="g"}'] == 0


def test_lag_and_what_is_in_hand(tmp_path):
    with running(tmp_path / "data", "metricsNamesMax=1") as endpoint, EdgeClient(endpoint.port) as client:
        for topic, count in (("busy", 5), ("quiet", 2)):
            ids = client.prepare([{"group": "g", "topic": topic, "text": "x"}] * count)
            for id in ids:
                client.end("g", id, "commit")
            client.consume(topic, group="readers", max=1, wait_s=5)
        found = figures(client)
        assert found['escrow_consumer_lag{group="readers",topic="busy"}'] == 5
        assert found['escrow_consumer_in_hand{group="readers",topic="busy"}'] == 1
        assert found['escrow_consumer_lag{group="(other)",topic="(other)"}'] == 2


def test_what_the_job_has_not_settled_is_seen_without_it(tmp_path):
    """Nobody settles here: the edge tells how much waits, and since when."""
    with running(tmp_path / "data") as endpoint, EdgeClient(endpoint.port) as client:
        found = figures(client)
        assert (found["escrow_job_up"], found["escrow_unsettled_age_seconds"]) == (0, 0)
        (id,) = client.prepare([{"group": "g", "topic": "t", "text": "x"}])
        client.end("g", id, "commit")
        until(lambda: figures(client)["escrow_unsettled_age_seconds"] > 1)
        found = figures(client)
        assert found['escrow_unsettled_records{queue="half"}'] == found['escrow_unsettled_records{queue="op"}'] == 1
        assert found["escrow_flush_seconds_count"] == 2
        assert 0 < found["escrow_disk_free_bytes"] < found["escrow_disk_size_bytes"]


def test_ends_that_never_reach_the_log_are_counted_too(tmp_path):
    with running(tmp_path / "data") as endpoint, EdgeClient(endpoint.port) as client:
        (id,) = client.prepare([{"group": "g", "topic": "t", "text": "x"}])
        assert client.end("other", id, "commit")["verdict"] == "refused"
        assert client.end("g", "no-such-id", "commit")["verdict"] == "refused"
        assert figures(client)['escrow_ends_total{verdict="refused"}'] == 2
