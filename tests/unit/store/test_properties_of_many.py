"""One property of many messages at once: the same as looking for it in each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.properties import PropertiesOfMany, PropertyFinder, encode_properties

NAMES = st.sampled_from(["KEYS", "TAGS", "myKEYS", "KEYSx", "K", "€"])
VALUES = st.text(st.characters(blacklist_characters="\x01\x02", blacklist_categories=["Cs"]), max_size=8)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=12), NAMES)
def test_the_same_as_one_by_one(messages, name):
    encoded = [encode_properties(each) for each in messages]
    expected = [PropertyFinder(name).find(each) for each in encoded]
    found = PropertiesOfMany(encoded).values(name).tolist()
    assert found == [None if value is None else value.decode() for value in expected] == [each.get(name) for each in messages]
