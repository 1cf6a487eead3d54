"""The transactional flow and consuming, by RocketMQ's own clients, unmodified, in processes of their own."""

from __future__ import annotations

import pytest

from tests.support.edge_client import body_of
from tests.support.players import PlayerError


def test_a_committed_half_is_consumed_once_under_the_clients_own_id(client, topic):
    client.do("producer", topic)
    id, *_ = client.do("half", topic, "paid", "unknown", "commit")
    client.do("simple", f"g-{topic}", topic, "*")
    (message,) = client.receive_all(1)
    assert (message.body, message.message_id, message.attempt) == ("paid", id, 1)
    assert client.receive(1) == []


def test_a_rolled_back_half_is_never_seen(client, topic):
    client.do("producer", topic)
    client.do("half", topic, "gone", "unknown", "rollback")
    client.do("half", topic, "stays", "unknown", "commit")
    client.do("simple", f"g-{topic}", topic, "*")
    assert [message.body for message in client.receive_all(1)] == ["stays"]
    assert client.receive(1) == []


def test_silent_halves_are_asked_about_until_the_answer_is_final(client, topic):
    client.do("producer", topic)
    client.do("half", topic, "a", "commit", "silent")
    client.do("half", topic, "b", "rollback", "silent")
    client.do("half", topic, "c", "unknown,unknown,commit", "silent")
    client.until("check", "a", "commit")
    client.until("check", "b", "rollback")
    client.until("check", "c", "commit")
    client.do("simple", f"g-{topic}", topic, "*")
    assert sorted(message.body for message in client.receive_all(2)) == ["a", "c"]
    assert len(client.heard("check", "c", "unknown")) == 2
    assert client.receive(1) == []
    assert len(client.heard("check", "a")) == len(client.heard("check", "b")) == 1


def test_a_check_shows_the_half_with_the_clients_own_id(client, topic):
    client.do("producer", topic)
    id, *_ = client.do("half", topic, "whole", "commit", "silent")
    assert client.until("check", "whole").words[3] == id


def test_a_check_reaches_a_producer_that_did_not_name_the_topic(client, topic):
    client.do("producer", f"{topic}-other")
    client.do("half", topic, "unnamed", "commit", "silent")
    client.until("check", "unnamed", "commit")


def test_the_opposite_end_is_refused_and_the_first_one_stays(client, topic):
    """Stricter than RocketMQ, which delivers after a rollback."""
    client.do("producer", topic)
    *_, number = client.do("half", topic, "first", "unknown", "rollback")
    with pytest.raises(PlayerError) as refused:
        client.do("end", number, "commit")
    assert "already ended" in refused.value.text or refused.value.kind == "IllegalStateException"


def test_tags_keys_and_properties_come_through(client, topic):
    client.do("producer", topic)
    id, *_ = client.do("send", topic, "tagged", "red", "k1")
    client.do("send", topic, "other", "blue", "k2")
    client.do("simple", f"g-{topic}", topic, "red||green")
    (message,) = client.receive_all(1)
    assert message == ("tagged", id, 1, "red", "k1")
    assert client.receive(1) == []


def test_what_is_not_acknowledged_comes_again_with_the_next_attempt(client, topic):
    client.do("producer", topic)
    client.do("send", topic, "again", "", "")
    client.do("simple", f"g-{topic}", topic, "*")
    (first,) = client.receive_all(1, invisible_s=2, ack=False)
    (second,) = client.receive_all(1)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.message_id == second.message_id
    assert client.receive(1) == []


def test_a_shorter_invisible_time_brings_it_back_sooner(client, topic):
    client.do("producer", topic)
    client.do("send", topic, "soon", "", "")
    client.do("simple", f"g-{topic}", topic, "*")
    client.receive_all(1, invisible_s=600, ack=False)
    client.do("invisible", 0, 1)
    assert client.receive_all(1)[0].attempt == 2


def test_an_acknowledgement_after_the_time_is_refused(client, topic):
    client.do("producer", topic)
    client.do("send", topic, "late", "", "")
    client.do("simple", f"g-{topic}", topic, "*")
    client.receive_all(1, invisible_s=600, ack=False)
    client.do("invisible", 0, 1)
    held = client.receive_all(1, ack=False)
    assert held[0].attempt == 2
    client.do("ack", 0)
    assert client.receive(1) == []


def test_a_push_consumer_gets_everything_and_failures_again(client, topic):
    client.do("producer", topic)
    client.do("push", f"g-{topic}", topic, "*")
    client.do("send", topic, f"plain-{topic}", "", "")
    client.do("half", topic, f"fail1-{topic}", "unknown", "commit")
    client.until("push", f"plain-{topic}")
    again = client.until("push", f"fail1-{topic}", times=2)
    assert [event.words[3] for event in client.heard("push", f"fail1-{topic}")] == ["1", "2"]
    assert again.words[2] == client.heard("push", f"fail1-{topic}")[0].words[2]
    assert len(client.heard("push", f"plain-{topic}")) == 1


@pytest.mark.parametrize("kind", ["fifo", "delay"])
def test_ordered_and_delayed_messages_are_refused_in_words(client, topic, kind):
    client.do("producer", topic)
    with pytest.raises(PlayerError) as refused:
        client.do(kind, topic, "x")
    assert "message type" in refused.value.text.lower()
    assert refused.value.kind == "IllegalArgumentException"


def test_nobody_sends_to_escrows_own_topics(client, topic):
    client.do("producer", topic)
    with pytest.raises(PlayerError):
        client.do("send", "RMQ_SYS_TRANS_HALF_TOPIC", "x", "", "")


# --- with HTTP beside -----------------------------------------------------------------------------------------------------------
def test_sent_over_http_consumed_by_the_client(client, topic, world):
    with world.http() as http:
        http.send([{"group": "orders", "topic": topic, "text": "plain", "key": "k", "tags": "red"}])
        (id,) = http.prepare([{"group": "orders", "topic": topic, "text": "half"}])
        assert http.end("orders", id, "commit")["verdict"] == "accepted"
    client.do("simple", f"g-{topic}", topic, "*")
    found = {message.body: message for message in client.receive_all(2)}
    assert found.keys() == {"plain", "half"}
    assert (found["plain"].tag, found["plain"].keys) == ("red", "k")


def test_sent_by_the_client_consumed_over_http(client, topic, world):
    client.do("producer", topic)
    id, *_ = client.do("half", topic, "by client", "unknown", "commit")
    with world.http() as http:
        (message,) = http.consume(topic, wait_s=10)
        assert (message["body"], message["properties"]["UNIQ_KEY"]) == (b"by client", id)
        assert http.ack(topic, [message["receipt"]]) == ["done"]


def test_one_group_by_both_doors_gets_each_message_once(client, topic, world):
    client.do("producer", topic)
    for number in range(20):
        client.do("send", topic, str(number), "", "")
    client.do("simple", "both", topic, "*")
    by_client = client.receive_all(8)
    with world.http() as http:
        by_http = http.consume(topic, "both", max=32, wait_s=10)
        http.ack(topic, [message["receipt"] for message in by_http], "both")
    bodies = [message.body for message in by_client] + [message["body"].decode() for message in by_http]
    assert sorted(bodies, key=int) == [str(number) for number in range(20)]


def test_a_half_sent_over_http_is_asked_about_down_the_stream(client, topic, world):
    """The group of a RocketMQ producer is its topic's name."""
    client.do("producer", topic)
    client.do("half", topic, "to be known", "unknown", "commit")  # its stream is open
    with world.http() as http:
        (id,) = http.prepare([{"group": topic, "topic": topic, "body": body_of(b"by http"), "properties": {"answer": "commit"}}])
        client.until("check", "by http", "commit")
        client.do("simple", f"g-{topic}", topic, "*")
        assert {message.body for message in client.receive_all(2)} == {"to be known", "by http"}
        history = http.transaction(id)
    assert [(each["event"], each.get("by", "")) for each in history["history"]][-1] == ("committed", "check")
