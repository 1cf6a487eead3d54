"""RocketMQ's own clients against the whole service, with Spark: a half that fell silent is asked about, and consumed."""

from __future__ import annotations

import pytest

from tests.support.players import KINDS, player


@pytest.mark.parametrize("kind", KINDS)
def test_a_silent_half_is_asked_about_and_consumed(kind, run, tmp_path):
    run.until(lambda: run.state["ready"])
    port, topic = run.state["edge"]["grpc_port"], f"rocketmq-{kind}"
    assert f"RocketMQ clients on 127.0.0.1:{port}" in run.log.read_text()
    with player(kind, f"127.0.0.1:{port}", tmp_path / kind) as it:
        it.do("producer", topic)
        it.do("half", topic, "committed", "unknown", "commit")
        it.do("half", topic, "gone", "unknown", "rollback")
        it.do("half", topic, "asked", "unknown,commit", "silent")
        it.until("check", "asked", "commit", patience_s=120)
        it.do("simple", "g", topic, "*")
        assert sorted(message.body for message in it.receive_all(2)) == ["asked", "committed"]
        assert it.receive(1) == []
