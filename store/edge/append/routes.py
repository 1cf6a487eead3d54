"""Routes: what every message of one producer group for one topic has in common, learned once."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from store.messages import Message, routes_of
from store.properties import encode_route
from store.tables.journals.names import Dictionary, MakerOf, no_maker

#: Beyond this many pairs of group and topic, all are learned again.
ROUTES_MAX: Final = 1 << 16


class Route(NamedTuple):
    group_no: int
    topic_no: int
    queues: int
    #: The properties that every message of this group for this topic carries, encoded.
    properties: bytes


class Routes:
    """The known routes. They are made and dropped under the append lock, and read without it."""

    def __init__(self, dictionary: Dictionary, lock: threading.Lock) -> None:
        self._dictionary, self._lock = dictionary, lock
        self.known: dict[tuple[str, str], Route] = {}
        #: How often topics were removed. A message encoded before a removal may have a number that is free now.
        self.removals = 0
        #: Returns who makes a new name; set by the owner of name quotas.
        self.maker_of: MakerOf = no_maker

    def make(self, messages: Sequence[Message]) -> None:
        """Learn the routes of messages. All names that are new are made together, or none."""
        names = self._dictionary
        unknown: Collection[tuple[str, str]] = routes_of(messages)
        if len(unknown) > 1:  # numbers follow the order of the messages, not of a set
            unknown = list(dict.fromkeys((message.group, message.topic) for message in messages))
        with self._lock:
            names.add_names([group for group, _ in unknown], [topic for _, topic in unknown], self.maker_of)
            if len(self.known) + len(unknown) > ROUTES_MAX:
                self.known.clear()
            for group, topic in unknown:  # under the lock: a topic removed now leaves no route behind
                group_no, topic_no = names.group_no(group), names.topic_no(topic)
                assert group_no is not None
                assert topic_no is not None
                common = encode_route(group, topic)
                self.known[group, topic] = Route(group_no, topic_no, names.queues[topic_no], common)

    def drop(self, topic_nos: Collection[int]) -> None:
        """These topics are being removed. Under the append lock."""
        self.removals += 1
        self.known = {names: route for names, route in self.known.items() if route.topic_no not in topic_nos}
