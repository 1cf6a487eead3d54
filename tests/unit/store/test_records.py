"""Record layouts: what is packed comes back, and numbers too large stay within their bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import records
from store.records import (
    CHECK_COUNT_MAX,
    IMMUNITY_MAX_S,
    QUEUE_OFFSET_MASK,
    TOPIC_NO_MAX,
    State,
    ask_round_of,
    check_count_of,
    immunity_of,
    outstanding_of,
    pack_position,
    pack_word,
    pack_words,
    queue_key_of,
    queue_offset_of,
    state_of,
    topic_of_key,
)

words = st.tuples(st.sampled_from(State), st.integers(0, 1000), st.integers(0, 1 << 20), st.integers(0, 1 << 40), st.booleans())


def test_widths_are_those_of_the_format_document():
    assert records.ROW.itemsize == 24
    assert records.ENTRY.itemsize == 20
    assert [field[1] for field in dict(records.ROW.fields or {}).values()] == [0, 8, 12, 16, 20]
    assert [field[1] for field in dict(records.ENTRY.fields or {}).values()] == [0, 8, 12]


@given(words)
def test_a_state_word_comes_back_as_it_was_packed(fields):
    state, count, immunity_s, ask_round, outstanding = fields
    word = pack_word(*fields)
    assert 0 <= word < 1 << 32
    assert state_of(word) == state
    assert check_count_of(word) == min(count, CHECK_COUNT_MAX)
    assert immunity_of(word) == min(immunity_s, IMMUNITY_MAX_S)
    assert ask_round_of(word) == ask_round % 4
    assert bool(outstanding_of(word)) is outstanding


@given(st.lists(words, min_size=1, max_size=20))
def test_packing_many_equals_packing_each(many):
    columns = [list(column) for column in zip(*many, strict=True)]
    assert pack_words(*columns).tolist() == [pack_word(*fields) for fields in many]


def test_a_negative_immunity_is_none():
    assert immunity_of(pack_word(State.PREPARED, immunity_s=-1)) == 0


@given(st.integers(0, TOPIC_NO_MAX), st.integers(0, 63), st.integers(0, QUEUE_OFFSET_MASK))
def test_a_topic_position_comes_back_as_it_was_packed(topic_no, queue_id, queue_offset):
    position = pack_position(topic_no, queue_id, queue_offset)
    assert 0 <= position < 1 << 63
    assert topic_of_key(queue_key_of(position)) == (topic_no, queue_id)
    assert queue_offset_of(position) == queue_offset
    assert queue_key_of(np.array([position])).tolist() == [topic_no << 6 | queue_id]


@pytest.mark.parametrize("state", State)
def test_states_fit_into_three_bits(state):
    assert state_of(pack_word(state, 255, IMMUNITY_MAX_S, 3, True)) == state
