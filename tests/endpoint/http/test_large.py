"""Large bodies: the same as small ones where they are right, and given up early where they are not."""

from __future__ import annotations

import json
import threading

import msgspec
import pytest

from ingest.auth import token_file
from ingest.errors import InvalidRequest, TooLarge
from ingest.http import large
from ingest.http.wire import codec, producers
from tests.support.edge_client import EdgeClient
from tests.support.edge_process import edge

HALF = {"group": "g", "topic": "t", "text": "x"}
MESSAGES = [
    {**HALF, "key": "k", "tags": "a", "properties": {"colour": "blue", "ü": "\u2603"}, "queue_id": 3, "dedup_key": "d"},
    {"group": "g", "topic": "t", "text": "", "check_immunity_s": 7, "born_at_ms": 5, "flag": 1},
    HALF,
]


def encoded(content, media):
    return json.dumps(content).encode() if media == codec.JSON else msgspec.msgpack.encode(content)


@pytest.mark.parametrize("media", [codec.JSON, codec.MSGPACK])
def test_the_same_comes_out(media):
    body = encoded({"messages": MESSAGES}, media)
    small, big = codec.decode(body, media, producers.MessagesIn), large.decode(body, media, producers.MessagesIn, 10)
    assert list(producers.messages(big.messages)) == list(producers.messages(small.messages))
    body = encoded({"ends": [{"group": "g", "id": "i", "outcome": "commit"}]}, media)
    assert producers.ends(large.decode(body, media, producers.EndsIn, 10).ends) == producers.ends(
        codec.decode(body, media, producers.EndsIn).ends
    )


@pytest.mark.parametrize("media", [codec.JSON, codec.MSGPACK])
def test_what_is_wrong_is_named_in_the_same_words(media):
    for wrong in ({**HALF, "group": ""}, {**HALF, "colour": 1}, {"group": "g"}, {**HALF, "flag": -1}, 7):
        body = encoded({"messages": [HALF, wrong]}, media)
        with pytest.raises(InvalidRequest) as small:
            codec.decode(body, media, producers.MessagesIn)
        with pytest.raises(InvalidRequest) as big:
            large.decode(body, media, producers.MessagesIn, 10)
        assert str(big.value) == str(small.value)
    body = encoded({"messages": [{**HALF, "properties": {"a": 1}}]}, media)
    with pytest.raises(InvalidRequest, match=r"^messages\[0\]"):
        large.decode(body, media, producers.MessagesIn, 10)


@pytest.mark.parametrize("media", [codec.JSON, codec.MSGPACK])
def test_items_beyond_the_limit_are_not_read(media, monkeypatch):
    body = encoded({"messages": [HALF] * 11}, media)
    with pytest.raises(TooLarge, match="maxMessagesPerRequest"):
        large.decode(body, media, producers.MessagesIn, 10)
    seen = large._ITEMS.count
    assert seen == 11
    assert len(large.decode(body, media, producers.MessagesIn, 11).messages) == 11


def test_properties_that_are_too_many_are_not_read():
    many = {"messages": [{**HALF, "properties": {f"{number:x}": "" for number in range(40_000)}}]}
    with pytest.raises(InvalidRequest, match="have more than"):
        large.decode(json.dumps(many).encode(), codec.JSON, producers.MessagesIn, 10)


def new(data, name, **roles):
    given = {"operator": False, "metrics": False, **roles}
    produce, consume = given.pop("produce", []), given.pop("consume", [])
    return token_file.add(data / "keys" / "tokens.toml", name, produce, consume, made_at="2026-01-02T03:04:05Z", **given)


def test_large_bodies_through_the_endpoint(tmp_path):
    """Whoever has no role for it is refused by the head, and a body that is right is stored, large or small."""
    data = tmp_path / "data"
    tokens = {
        "metrics": new(data, "prometheus", metrics=True),
        "consumer": new(data, "c", consume=["t:*"]),
        "producer": new(data, "p", produce=["g:*"]),
    }
    one = json.dumps(HALF).encode()
    tiny = b'{"messages":[' + b",".join([one] * ((8 << 20) // len(one))) + b"]}"
    with edge(data) as (_, port):
        for who, status in (("metrics", 403), ("consumer", 403), ("producer", 413)):
            with EdgeClient(port, token=tokens[who]) as client:
                assert client.raw("POST", "/v1/messages", tiny)[0] == status, who
        with EdgeClient(port, token=tokens["producer"]) as client:
            messages = [{**HALF, "text": "y" * 1000, "properties": {"n": str(number)}} for number in range(600)]
            assert client.send(messages) == 600
            ids = client.prepare(messages)
            assert len(ids) == 600
            ends = [{"group": "g", "id": id, "outcome": "commit", "remark": "z" * 200} for id in ids]
            assert {each["verdict"] for each in client.ends(ends)} == {"accepted"}
            assert client.raw("POST", "/v1/topics/t/seek", b" " * (65 << 10))[0] == 403
        with EdgeClient(port, token=tokens["consumer"]) as client:
            assert client.raw("POST", "/v1/topics/t/seek", b" " * (65 << 10))[0] == 413
            assert client.raw("POST", "/v1/topics/t/acks", b" " * (5 << 20))[0] == 413


def test_others_are_served_while_a_large_body_is_decoded(tmp_path):
    """A large body is decoded in steps: requests that come meanwhile need not wait for its end."""
    data = tmp_path / "data"
    with edge(data, "maxMessagesPerRequest=65535") as (_, port):
        one = json.dumps({"group": "g", "topic": "t", "text": ""}).encode()
        body = b'{"messages":[' + b",".join([one] * 65_536) + b"]}"  # one too many: refused when all of it was read
        through = threading.Event()
        statuses = []

        def send():
            with EdgeClient(port) as client:
                statuses.append(client.raw("POST", "/v1/halves", body)[0])
            through.set()

        served = 0
        sender = threading.Thread(target=send)
        sender.start()
        with EdgeClient(port) as client:
            while not through.is_set():
                assert client.raw("GET", "/livez")[0] == 200
                served += 1
        sender.join()
        assert statuses == [413]
        assert served > 1
