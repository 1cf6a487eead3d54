"""Many at a time: what is read and written in columns is what would be read and written one by one."""

from __future__ import annotations

import msgspec
import pytest

from ingest.errors import InvalidRequest
from ingest.http.wire import codec, producers, sealed_halves
from ingest.ids import Sealer
from store.messages import ALIKE_MIN, AlikeMessages, Message

PLAIN = {"group": "orders", "topic": "paid", "text": "é"}


def read(items):
    return producers.messages(codec.convert({"messages": items}, producers.MessagesIn).messages)


@pytest.mark.parametrize("count", [1, 7, 8, 40])
@pytest.mark.parametrize("content", [{"text": "é"}, {"body": "AAE="}])
def test_messages_that_are_alike_are_read_as_they_would_be_one_by_one(count, content):
    items = [
        {"group": "orders", "topic": "paid", **content, "dedup_key": f"{number}", "born_at_ms": number} for number in range(count)
    ]
    found = read(items)
    assert isinstance(found, AlikeMessages) == (count >= ALIKE_MIN)
    assert list(found) == [message for item in items for message in read([item])]
    body = b"\x00\x01" if "body" in content else "é".encode()
    assert found[-1] == Message("orders", "paid", body, born_at_ms=count - 1, dedup_key=f"{count - 1}")


@pytest.mark.parametrize(
    "odd",
    [
        {"group": "shop"},
        {"topic": "sent"},
        {"key": "k"},
        {"tags": "t"},
        {"properties": {"a": "b"}},
        {"check_immunity_s": 7},
        {"check_immunity_s": -1},
        {"queue_id": 0},
        {"flag": 1},
        {"text": msgspec.UNSET, "body": "AAE="},
    ],
)
def test_one_odd_message_among_many_is_read_as_it_would_be_alone(odd):
    other = {name: value for name, value in {**PLAIN, **odd}.items() if value is not msgspec.UNSET}
    items = [PLAIN, *[PLAIN] * 10, other, PLAIN]
    found = read(items)
    assert not isinstance(found, AlikeMessages)
    assert found == [message for item in items for message in read([item])]


@pytest.mark.parametrize(("bad", "field"), [({"body": "AA=="}, "text"), ({"text": msgspec.UNSET}, "body")])
def test_of_many_messages_the_one_that_is_wrong_is_named(bad, field):
    wrong = {name: value for name, value in {**PLAIN, **bad}.items() if value is not msgspec.UNSET}
    for items in ([*[PLAIN] * 11, wrong, PLAIN], [wrong] * 12):
        with pytest.raises(InvalidRequest, match=rf"^messages\[{items.index(wrong)}\]\.{field}: "):
            read(items)


@pytest.mark.parametrize("first", [0, 70, 9_990, 10_000, 65_500, 65_536, 99_950, 1_234_567, 2**32 - 50, 2**32 + 7, 10**12 + 9_950])
@pytest.mark.parametrize("count", [1, 8, 15, 16, 37, 300])
def test_answers_in_columns_are_what_the_encoders_write(first, count):
    stored = Sealer([b"k" * 32], "00112233445566ff").seal_all(range(first, first + count), 7)
    plain = sealed_halves.HalvesOut([sealed_halves.HalfOut(id, half_offset) for id, half_offset in stored])
    assert codec.encode(sealed_halves.halves(stored), codec.JSON) == msgspec.json.encode(plain)
    assert codec.encode(sealed_halves.halves(stored), codec.MSGPACK) == msgspec.msgpack.encode(plain)


@pytest.mark.parametrize("media", [codec.JSON, codec.MSGPACK])
def test_what_is_no_answer_is_not_written(media):
    with pytest.raises(NotImplementedError, match="object is not for an answer"):
        codec.encode({"x": object()}, media)
