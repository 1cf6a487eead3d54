"""Frames: encode and decode, and the rules for what a producer may hand in."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import properties
from store.errors import Corrupt, DelayedHalf, IllegalName, IllegalProperty, InvalidRecord
from store.naming import RESERVED_TOPICS, check_name
from store.properties import (
    DELAY_PROPERTIES,
    OWN_PROPERTIES,
    PropertyFinder,
    decode_properties,
    encode_given_properties,
    encode_properties,
    tags_code,
)
from store.records import OpKind, Via
from store.tables import frames
from store.tables.frames import FrameKind, Op


def half_frame(body=b"body", properties=None, at=0, **fields):
    head = np.zeros(1, frames.HALF_HEAD)
    encoded = encode_properties(properties or {})
    head["kind"], head["body_bytes"], head["properties_bytes"] = FrameKind.HALF, len(body), len(encoded)
    for name, value in fields.items():
        head[name] = value
    return bytes(frames.encode_batch(head, [[body], [encoded]], at))


def test_head_widths():
    assert (frames.HEAD.itemsize, frames.HALF_HEAD.itemsize, frames.OP_HEAD.itemsize) == (32, 120, 56)


@given(
    st.binary(max_size=300),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=10),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=20),
        max_size=4,
    ),
    st.integers(0, 1 << 50),
)
def test_a_half_comes_back_as_it_was_encoded(body, properties, at):
    content = half_frame(body, properties, at, queue_offset=7, stored_at_ms=9, group_no=3, immunity_s=5, flag=0xFFFFFFFF)
    frame = frames.decode_frame(memoryview(content), at)
    assert (frame.kind, frame.queue_offset, frame.stored_at_ms, frame.size_bytes) == (FrameKind.HALF, 7, 9, len(content))
    assert (frame.body, frame.properties) == (body, properties)
    assert (frame.fields["group_no"], frame.fields["immunity_s"], frame.fields["flag"]) == (3, 5, 0xFFFFFFFF)


def test_an_op_comes_back_as_it_was_encoded():
    ops = [
        Op(OpKind.COMMIT, 5, 2, Via.OPERATOR, 99, frames.encode_detail("ada", "ünd")),
        Op(OpKind.ASKED, -1, detail=frames.encode_detail("m"), asked=[4, 1 << 40, 9]),
        Op(OpKind.UNKNOWN, 6),
    ]
    content = memoryview(frames.encode_batch(frames.op_heads(ops, 10, 77), frames.op_tails(ops), 1000))
    at, found = 0, []
    while at < len(content):
        size = frames.read_head(content, at)[1]
        found.append(frames.decode_frame(content[at : at + size], 1000 + at))
        at += size
    assert [(frame.queue_offset, frame.batch_index, frame.batch_length) for frame in found] == [(10, 0, 3), (11, 1, 3), (12, 2, 3)]
    assert [frame.fields["op_kind"] for frame in found] == [OpKind.COMMIT, OpKind.ASKED, OpKind.UNKNOWN]
    assert found[0].detail == {"actor": "ada", "remark": "ünd"}
    assert (found[0].fields["position"], found[0].fields["via"], found[0].fields["group_no"]) == (99, Via.OPERATOR, 2)
    assert (found[1].asked, found[1].detail, found[2].detail) == ((4, 1 << 40, 9), {"actor": "m"}, {})


def test_every_flipped_bit_of_a_frame_is_found():
    content = half_frame(b"0123", {"KEYS": "k"}, 4096, queue_offset=3)
    frames.check_frame(memoryview(content), 4096, "log")
    for at in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt) as raised:
                frames.check_frame(memoryview(damaged), 4096, "log")
            assert (raised.value.file, raised.value.offset) == ("log", 4096)


def test_a_frame_is_valid_only_where_it_was_written():
    content = memoryview(half_frame(at=640))
    frames.check_frame(content, 640, "log")
    with pytest.raises(Corrupt, match="CRC"):
        frames.check_frame(content, 1280, "log")


def test_a_frame_cut_short_is_corrupt():
    content = half_frame()
    for size in (0, 4, 31, 32, len(content) - 1):
        with pytest.raises(Corrupt):
            frames.decode_frame(memoryview(content)[:size], 0)


def test_a_pad_counts_by_its_head_only():
    content = bytearray(frames.encode_pad(200, 64)) + bytes(168)
    frames.check_frame(memoryview(content), 64, "log")
    content[150] = 1
    assert frames.decode_frame(memoryview(content), 64).kind == FrameKind.PAD


# --- names and properties -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["orders", "A-b_c.d%|9", "x" * 127])
def test_legal_names(name):
    assert check_name(name, "topic") == name


@pytest.mark.parametrize("what", ["topic", "group"])
@pytest.mark.parametrize("name", ["", "x" * 128, "a b", "ä", "a/b", "a\0", ".", "..", "\ud800", "é" * 64])
def test_illegal_names_are_refused_with_the_field_named(name, what):
    with pytest.raises(IllegalName, match=f"^{what}: ") as raised:
        check_name(name, what)
    assert isinstance(raised.value, InvalidRecord)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("name", sorted(RESERVED_TOPICS))
def test_producers_may_not_send_to_the_reserved_topics(name):
    with pytest.raises(IllegalName, match="Escrow's own"):
        check_name(name, "topic")
    assert check_name(name, "group") == name


def test_the_reserved_topics_are_rocketmqs():
    assert {
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    } == RESERVED_TOPICS


@pytest.mark.parametrize("name", sorted(OWN_PROPERTIES))
def test_a_producer_may_not_set_escrows_own_properties(name):
    with pytest.raises(IllegalProperty, match=name):
        encode_given_properties({"fine": "x", name: "1"})


@pytest.mark.parametrize("name", sorted(DELAY_PROPERTIES))
def test_a_delay_is_refused(name):
    with pytest.raises(DelayedHalf, match="cannot be delayed"):
        encode_given_properties({name: "1"})


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("a\x01b", "x"), ("a", "\x02"), ("a\x02", ""), ("a", "x\x01")])
def test_properties_that_could_not_be_told_apart_are_refused(name, value):
    with pytest.raises(IllegalProperty):
        encode_given_properties({name: value})


def test_a_property_that_is_no_utf8_is_refused():
    with pytest.raises(IllegalProperty, match="UTF-8"):
        encode_properties({"a": "\ud800"})


def test_properties_may_be_empty_and_hold_anything_else():
    properties = {"a": "", "b": "=;\n\0", "c": "日本"}
    assert decode_properties(encode_properties(properties)) == properties
    assert decode_properties(b"") == {}


@pytest.mark.parametrize(
    ("properties", "value"),
    [
        ({"k": "1"}, b"1"),
        ({"a": "", "k": "1", "b": "2"}, b"1"),
        ({"a": "", "k": ""}, b""),
        ({"kk": "1", "K": "2", "a": "k"}, None),
        ({"xk": "1", "k": "2"}, b"2"),
        ({}, None),
    ],
)
def test_a_property_is_found_by_its_whole_name(properties, value):
    assert PropertyFinder("k").find(encode_properties(properties)) == value


@pytest.mark.parametrize("content", [b"k", b"k\x01", b"a\x02k\x01v"])
def test_a_property_that_does_not_end_is_not_found(content):
    assert PropertyFinder("k").find(content) is None


@pytest.mark.parametrize("content", [b"no separator\x02", b"\xff\x01\x02"])
def test_a_frame_whose_properties_cannot_be_read_is_corrupt(content):
    head = np.zeros(1, frames.HALF_HEAD)
    head["kind"], head["properties_bytes"] = FrameKind.HALF, len(content)
    frame = bytes(frames.encode_batch(head, [[content]], 0))
    with pytest.raises(Corrupt, match="properties that cannot be read"):
        frames.decode_frame(memoryview(frame), 0)


@pytest.mark.parametrize(
    ("tags", "java"),
    [  # String.hashCode() of a JVM
        ("", 0),
        ("a", 97),
        ("TagA", 2_598_919),
        ("Aa", 2112),
        ("BB", 2112),
        ("hello world", 1_794_106_052),
        ("polygenelubricants", -2_147_483_648),
        ("日本語", 25_921_943),
        ("😀", 1_772_899),
    ],
)
def test_tags_code_is_javas_hash_code(tags, java):
    assert tags_code(tags) == java


def test_long_tags_are_not_kept():
    before = properties._cached_hash_code.cache_info().currsize
    for number in range(50):
        tags_code(f"{number}" + "x" * 1000)
    assert properties._cached_hash_code.cache_info().currsize == before
    assert tags_code("x" * 1000) == properties._hash_code("x" * 1000)


def test_a_remark_that_is_too_long_is_cut_and_never_refused():
    detail = frames.encode_detail("a" * 1000, "\U0001f600" * 5000)
    assert len(detail) < 0xFFFF
    assert len(json.loads(detail)["remark"]) == 1024
    assert frames.encode_detail() == b""
