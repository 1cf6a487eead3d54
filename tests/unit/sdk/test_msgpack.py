"""Messages in MessagePack: what the server's own decoder reads is what was given."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrow import Message, _calls, _msgpack
from ingest.errors import InvalidRequest
from ingest.http.wire import codec, producers

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1)


@given(
    body=st.binary(max_size=300) | TEXTS,
    rest=st.fixed_dictionaries(
        {},
        optional={
            "key": TEXTS, "tags": TEXTS, "properties": st.dictionaries(TEXTS, TEXTS, max_size=20), "check_immunity_s": NUMBERS,
            "queue_id": NUMBERS, "born_at_ms": NUMBERS,
        },
    ),
    own_key=TEXTS,
    given_key=TEXTS,
)  # fmt: skip
def test_what_is_packed_is_what_was_given(body, rest, own_key, given_key):
    found = msgspec.msgpack.decode(Message("paid", body, dedup_key=own_key, **rest).pack("orders", given_key))
    assert isinstance(found.pop("born_at_ms"), int) or "born_at_ms" in rest
    expected = {name: value for name, value in rest.items() if value not in ("", {}) and name != "born_at_ms"}
    expected |= {"group": "orders", "topic": "paid", "text" if isinstance(body, str) else "body": body}
    assert found == expected | ({"dedup_key": own_key or given_key} if own_key or given_key else {})


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536, 1_000_000])
def test_sizes(size):
    message = Message("paid", bytes(size), key="k" * size, properties={str(number): "v" for number in range(min(size, 70_000))})
    found = msgspec.msgpack.decode(message.pack("orders"))
    assert (len(found["body"]), len(found.get("key", "")), len(found.get("properties", ()))) == (size, size, min(size, 70_000))
    assert msgspec.msgpack.decode(b"".join([_msgpack.count_of(range(size)), *map(_msgpack.anything, range(size))])) == list(
        range(size)
    )


def test_the_server_takes_a_request():
    messages = [Message("paid", b"\xff\0"), Message("paid", "zwölf", key="k", tags="t", properties={"a": "b"}, queue_id=0)]
    for call in (_calls.halves("orders", messages, ["1", "2"]), _calls.messages("orders", messages)):
        assert isinstance(call.content, bytes)
        found = codec.decode(call.content, call.media, producers.MessagesIn).messages
        assert (found[0].body, found[1].text, found[1].key, found[1].tags) == (b"\xff\0", "zwölf", "k", "t")
        assert (found[1].properties, found[1].queue_id, found[1].check_immunity_s) == ({"a": "b"}, 0, None)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("key", "\ud800", "body"),
        ("key", 7, "messages[0].key"),
        ("topic", 7, "messages[0].topic"),
        ("dedup_key", 7, "messages[0].dedup_key"),
        ("properties", {"a": 1}, "messages[0].properties"),
        ("check_immunity_s", 1.5, "messages[0].check_immunity_s"),
        ("check_immunity_s", 1 << 64, "messages[0].check_immunity_s"),
        ("born_at_ms", -1, "messages[0].born_at_ms"),
        ("queue_id", 64, "messages[0].queue_id"),
    ],
)
def test_what_escrow_does_not_take_it_refuses_itself(field, value, named):
    """Not the SDK, in the middle of a batch that others share: there the refusal finds its message."""
    call = _calls.halves("orders", [Message(**{"topic": "paid", "body": b"", field: value})], [])
    assert isinstance(call.content, bytes)
    with pytest.raises(InvalidRequest) as refused:
        codec.decode(call.content, call.media, producers.MessagesIn)
    assert refused.value.field == named
