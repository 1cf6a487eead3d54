"""The dictionary: a number for each name, never given twice, durable before it is used."""

from __future__ import annotations

import pytest

from store.errors import IllegalName, InvalidRecord, StoreUnusable
from store.io import disk
from store.io.journal import encode_all
from store.tables.journals.names import TOPICS_MAX, Dictionary, NameKind, encode


@pytest.fixture
def path(tmp_path):
    return tmp_path / "dictionary"


def test_numbers_grow_from_0_for_each_kind_and_survive(path):
    dictionary = Dictionary(path, writable=True)
    assert [dictionary.add_group(name) for name in ("a", "b", "a")] == [0, 1, 0]
    assert [dictionary.add_topic(name) for name in ("x", "a")] == [0, 1]
    dictionary.close()
    again = Dictionary(path, writable=True)
    assert (again.groups, again.topics, again.queues) == (["a", "b"], ["x", "a"], [4, 4])
    assert (again.group_no("b"), again.topic_no("a"), again.group_no("x"), again.topic_no("b")) == (1, 1, None, None)
    assert again.add_group("c") == 2


def test_case_65_aa_and_bb_have_numbers_of_their_own(path):
    dictionary = Dictionary(path, writable=True)
    assert (dictionary.add_group("Aa"), dictionary.add_group("BB")) == (0, 1)
    assert (dictionary.add_topic("Aa"), dictionary.add_topic("BB")) == (0, 1)


def test_a_name_is_durable_before_its_number_is_known(path):
    dictionary = Dictionary(path, writable=True)
    with disk.recording() as passed:
        dictionary.add_group("a")
    assert passed == {"dictionary.write": 1, "dictionary.flush": 1}
    disk.arm("dictionary.flush", "EIO")
    with pytest.raises(StoreUnusable):
        dictionary.add_group("b")
    disk.arm(None)
    assert dictionary.group_no("b") is None


def test_a_reader_notices_that_the_dictionary_was_written_anew(path):
    """As the edge does when it learns lost names again from the log: other records, in another order."""
    dictionary = Dictionary(path, writable=True)
    dictionary.add_names(["a", "b"], ["x"], lambda _kind, _name: "token")
    reader = Dictionary(path)
    dictionary.close()
    records = [encode(NameKind.TOPIC, 2, 0, "x"), *(encode(NameKind.GROUP, 0, number, name) for number, name in enumerate("abc"))]
    disk.replace_file(path, encode_all(records), "dictionary")
    reader.refresh()
    assert (reader.groups, reader.topics, reader.queues, reader.made.total()) == (["a", "b", "c"], ["x"], [2], 0)
    assert (reader.group_no("c"), reader.topic_no("x")) == (2, 0)
    dictionary = Dictionary(path, writable=True)
    dictionary.add_group("d")
    reader.refresh()
    assert reader.groups == ["a", "b", "c", "d"]


def test_a_reader_learns_names_that_were_added(path):
    dictionary = Dictionary(path, writable=True)
    reader = Dictionary(path)
    dictionary.add_topic("t", 7)
    assert reader.topics == []
    reader.refresh()
    assert (reader.topics, reader.queues) == (["t"], [7])


@pytest.mark.parametrize("queues", [0, 65, -1])
def test_a_topic_has_1_to_64_queues(path, queues):
    dictionary = Dictionary(path, writable=True)
    with pytest.raises(InvalidRecord, match="between 1 and 64"):
        dictionary.add_topic("t", queues)
    assert dictionary.topics == []
    assert dictionary.add_topic("most", 64) == 0


def test_the_number_of_queues_is_fixed_when_the_topic_is_made(path):
    dictionary = Dictionary(path, writable=True, default_queues=3)
    dictionary.add_topic("t")
    dictionary.add_topic("t", 9)
    assert dictionary.queues == [3]


def test_illegal_names_get_no_number(path):
    dictionary = Dictionary(path, writable=True)
    for add in (dictionary.add_group, dictionary.add_topic):
        with pytest.raises(IllegalName):
            add("a b")
    with pytest.raises(IllegalName):
        dictionary.add_topic("RMQ_SYS_TRANS_HALF_TOPIC")
    assert (dictionary.groups, dictionary.topics) == ([], [])


def test_a_torn_name_is_cut_and_its_number_given_to_the_next(path):
    dictionary = Dictionary(path, writable=True)
    dictionary.add_group("kept")
    size = path.stat().st_size
    dictionary.add_group("torn")
    dictionary.close()
    with path.open("r+b") as file:
        file.truncate(size + 5)
    again = Dictionary(path, writable=True)
    assert again.groups == ["kept"]
    assert again.add_group("other") == 1


def test_many_names_are_made_with_one_write_and_one_flush(path):
    dictionary = Dictionary(path, writable=True)
    with disk.recording() as passed:
        dictionary.add_names(["g", "h", "g"], [f"t{number}" for number in range(1000)])
        dictionary.add_names(["g"], ["t7"])
    assert passed == {"dictionary.write": 1, "dictionary.flush": 1}
    dictionary.close()
    again = Dictionary(path)
    assert again.groups == ["g", "h"]
    assert [again.topic_no(f"t{number}") for number in range(1000)] == list(range(1000))


def test_none_is_made_where_one_cannot_be(path):
    dictionary = Dictionary(path, writable=True)
    with disk.recording() as passed, pytest.raises(IllegalName):
        dictionary.add_names(["g"], ["good", "b a d"])
    assert (passed, dictionary.groups, dictionary.topics) == ({}, [], [])


def test_all_numbers_of_topics_can_be_given_and_not_one_more(path):
    dictionary = Dictionary(path, writable=True)
    dictionary.add_names([], [f"t{number}" for number in range(TOPICS_MAX - 1)])
    with pytest.raises(IllegalName, match="32768"):
        dictionary.add_names([], ["a", "b"])
    assert dictionary.add_topic("last") == TOPICS_MAX - 1
    assert dictionary.add_topic("t5") == 5


def test_who_made_a_name_is_counted_and_survives(path):
    dictionary = Dictionary(path, writable=True)
    dictionary.add_names(["g"], ["a", "b"], lambda kind, name: "team" if name != "b" else "")
    dictionary.add_names(["g"], ["a"], lambda kind, name: "other")
    for found in (dictionary, Dictionary(path)):
        assert dict(found.made) == {(NameKind.GROUP, "team"): 1, (NameKind.TOPIC, "team"): 1}
