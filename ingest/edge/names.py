"""Who may make names. A topic or a group that is not there yet takes a number of the store, and numbers end.

    names.admit(principal, groups, topics)      # before the messages go to the store; NoSuchTopic, TooManyNames

- `autoCreateTopics = false`: only an operator makes topics, by asking for it.
- A token makes `topicsPerTokenMax` topics and `groupsPerTokenMax` groups. The dictionary notes who made a name, so the count
  outlives a restart. Operators are not counted.
- A topic that an operator removes (`topic_removal.py`) counts no more for who made it.
- The last `topicsReserved` numbers are for operators, and for the topics of dead letters, which Escrow makes by itself.

What was admitted and is not in the dictionary yet counts too, for a while: requests that come together cannot pass the limit
together, and one that fails later does not use up the limit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from ingest.auth.access import Principal
from ingest.errors import NoSuchTopic, TooManyNames
from runtime.settings import Settings
from store.tables.journals.names import TOPICS_MAX, Dictionary, NameKind

#: A request is through, or has failed, within this time.
ON_THE_WAY_S: Final = 60.0
_WORD: Final = {NameKind.TOPIC: "topic", NameKind.GROUP: "group"}


class Names:
    """Lives in the event loop; `maker_of` may be called from any thread."""

    def __init__(self, settings: Settings, dictionary: Dictionary, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._dictionary, self._clock_s = settings, dictionary, clock_s
        self._most = {NameKind.TOPIC: settings.topics_per_token_max, NameKind.GROUP: settings.groups_per_token_max}
        #: Admitted and not in the dictionary yet: by whom, and until when that counts.
        self._on_the_way: dict[tuple[NameKind, str], tuple[str, float]] = {}
        self.refused: Counter[str] = Counter()

    def admit(self, principal: Principal, groups: Collection[str], topics: Collection[str]) -> None:
        """All of them, or none."""
        new_topics = [topic for topic in topics if self._dictionary.topic_no(topic) is None]
        new_groups = [group for group in groups if self._dictionary.group_no(group) is None]
        if not new_topics and not new_groups:  # nearly always
            return
        if new_topics and not self._settings.auto_create_topics:
            self.refused["no_such_topic"] += 1
            raise NoSuchTopic(
                f"topic: {new_topics[0][:80]}: no such topic, and only operators create topics "
                f"(autoCreateTopics = false): escrow topic create {new_topics[0][:80]}"
            )
        if principal.operator:
            return
        self._let_go()
        self._check_reserve(new_topics)
        self._check_count(principal.name, NameKind.TOPIC, new_topics)
        self._check_count(principal.name, NameKind.GROUP, new_groups)
        until_s = self._clock_s() + ON_THE_WAY_S
        self._on_the_way |= {(NameKind.TOPIC, name): (principal.name, until_s) for name in new_topics}
        self._on_the_way |= {(NameKind.GROUP, name): (principal.name, until_s) for name in new_groups}

    def _let_go(self) -> None:
        now_s, known = self._clock_s(), (self._dictionary.topic_no, self._dictionary.group_no)
        for (kind, name), (_, until_s) in list(self._on_the_way.items()):
            if until_s < now_s or known[kind == NameKind.GROUP](name) is not None:
                del self._on_the_way[kind, name]

    def _check_reserve(self, new_topics: list[str]) -> None:
        on_the_way = sum(kind == NameKind.TOPIC and name not in new_topics for kind, name in self._on_the_way)
        used = self._dictionary.topic_numbers_used
        room = TOPICS_MAX - self._settings.topics_reserved - used - on_the_way
        if new_topics and len(new_topics) > room:
            self.refused["reserve"] += 1
            raise TooManyNames(
                f"topic: {new_topics[0][:80]}: {used} of {TOPICS_MAX} numbers of topics are used, and the last "
                f"{self._settings.topics_reserved} (topicsReserved) are for operators: have one make it (escrow topic create) or "
                "remove unused ones (escrow topic remove), or use fewer topics and message keys or tags instead",
                "topic",
            )

    def _check_count(self, token: str, kind: NameKind, names: list[str]) -> None:
        if not names:
            return
        on_the_way = sum(of == kind and by == token and name not in names for (of, name), (by, _) in self._on_the_way.items())
        have, most = self._dictionary.made[kind, token] + on_the_way, self._most[kind]
        if have + len(names) > most:
            word = _WORD[kind]
            self.refused[f"{word}s_per_token"] += 1
            remedy = "escrow topic create" if kind == NameKind.TOPIC else "an operator's token"
            raise TooManyNames(
                f"{word}: {names[0][:80]}: token {token} has made {have} {word}s and may make {most} ({word}sPerTokenMax), not "
                f"{len(names)} more: use those that are there, have an operator make it ({remedy}), or raise {word}sPerTokenMax",
                word,
            )

    def maker_of(self, kind: NameKind, name: str) -> str:
        """The token that makes this name, as the dictionary notes it."""
        return self._on_the_way.get((kind, name), ("", 0.0))[0]

    def figures(self) -> dict[str, Any]:
        return {
            "topics": self._dictionary.topic_count,
            "topic_numbers_used": self._dictionary.topic_numbers_used,
            "topics_max": TOPICS_MAX,
            "groups": len(self._dictionary.groups),
            "refused": dict(self.refused),
        }
