"""Who may make topics and groups, and how many."""

from __future__ import annotations

import pytest

from ingest.auth.access import Principal
from ingest.edge.names import ON_THE_WAY_S, Names
from ingest.errors import NoSuchTopic, TooManyNames
from runtime.settings import load
from store.tables.journals.names import TOPICS_MAX, Dictionary, NameKind

TEAM, OTHER, OPERATOR = Principal("team"), Principal("other"), Principal("ops", operator=True)


class World:
    def __init__(self, path, *flags):
        self.now_s = 0.0
        self.dictionary = Dictionary(path / "dictionary", writable=True)
        self.names = Names(load(None, list(flags), {}), self.dictionary, lambda: self.now_s)

    def send(self, who, groups, topics):
        self.names.admit(who, groups, topics)
        self.dictionary.add_names(groups, topics, self.names.maker_of)


@pytest.fixture
def world(tmp_path):
    return lambda *flags: World(tmp_path, *flags)


def test_a_token_makes_so_many_topics_and_uses_those_that_are_there(world):
    w = world("topicsPerTokenMax=3")
    w.send(TEAM, ["g"], ["a", "b"])
    with pytest.raises(TooManyNames, match="topicsPerTokenMax") as caught:
        w.send(TEAM, ["g"], ["c", "d"])
    assert (caught.value.code, caught.value.field) == ("too_many_names", "topic")
    w.send(TEAM, ["g"], ["c"])
    w.send(TEAM, ["g"], ["a", "b", "c"])
    w.send(OTHER, ["g"], ["d", "e", "f"])
    w.send(OPERATOR, ["g"], [f"t{number}" for number in range(10)])
    assert w.dictionary.made == {(NameKind.GROUP, "team"): 1, (NameKind.TOPIC, "team"): 3, (NameKind.TOPIC, "other"): 3}


def test_groups_are_counted_by_themselves(world):
    w = world("groupsPerTokenMax=2")
    w.send(TEAM, ["g", "h"], [f"t{number}" for number in range(5)])
    with pytest.raises(TooManyNames, match="groupsPerTokenMax") as caught:
        w.send(TEAM, ["i"], [])
    assert caught.value.field == "group"
    w.send(TEAM, ["g"], [])


def test_requests_that_come_together_do_not_pass_the_limit_together(world):
    w = world("topicsPerTokenMax=3")
    w.names.admit(TEAM, (), ["a", "b"])
    w.names.admit(TEAM, (), ["a", "b"])
    with pytest.raises(TooManyNames):
        w.names.admit(TEAM, (), ["c", "d"])
    w.now_s += ON_THE_WAY_S + 1  # the first request failed
    w.names.admit(TEAM, (), ["c", "d"])


def test_the_last_numbers_are_for_operators(world):
    w = world("topicsReserved=10", "topicsPerTokenMax=32768")
    w.send(TEAM, [], [f"t{number}" for number in range(TOPICS_MAX - 12)])
    w.names.admit(TEAM, (), ["on-the-way"])
    with pytest.raises(TooManyNames, match="topicsReserved"):
        w.send(OTHER, [], ["a", "b"])
    w.send(OTHER, [], ["a"])
    with pytest.raises(TooManyNames, match="topicsReserved"):
        w.send(TEAM, [], ["b"])
    w.send(OPERATOR, [], ["b"])


def test_without_auto_create_nobody_makes_a_topic_by_sending(world):
    w = world("autoCreateTopics=false")
    w.dictionary.add_topic("there")
    for who in (TEAM, OPERATOR):
        with pytest.raises(NoSuchTopic, match="escrow topic create new"):
            w.send(who, ["g"], ["there", "new"])
        w.send(who, ["g"], ["there"])
