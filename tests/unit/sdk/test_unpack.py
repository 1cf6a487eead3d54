"""MessagePack of answers: what the server's encoder writes is read back, and what is broken is refused."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrow._msgpack import unpack

LEAVES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@given(VALUES)
def test_reads_what_the_server_writes(value):
    assert unpack(msgspec.msgpack.encode(value)) == value


@pytest.mark.parametrize("size", [0, 31, 32, 255, 256, 65_535, 65_536])
def test_every_length_of_texts_bytes_lists_and_maps(size):
    for value in ("x" * size, b"x" * size, [1] * size, {str(n): n for n in range(size)}):
        assert unpack(msgspec.msgpack.encode(value)) == value


@given(VALUES, st.data())
def test_a_cut_is_a_value_error(value, data):
    encoded = msgspec.msgpack.encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ValueError, match=r"MessagePack|behind"):
        unpack(encoded[:cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content):
    with suppress(ValueError):
        unpack(content)


def test_deep_nesting_is_refused():
    with pytest.raises(ValueError, match="nested"):
        unpack(b"\x91" * 1000 + b"\xc0")
