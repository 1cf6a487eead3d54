"""What a token may do on one side, producing or consuming: rules over pairs of a group and a topic.

A rule is written as text, in the token file and on the command line:

    produce  GROUP:TOPIC    a producer group, and the topics it may write to
    consume  TOPIC:GROUP    a topic, and the consumer groups that may read it

A * may end a name and stands for any rest. The second name may be left out and stands for all; such a rule is *wide* when it allows
something. What a `deny` rule covers is refused, whatever else allows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_NAME: Final = r"[A-Za-z0-9_%|.-]*\*?"
RULE: Final = re.compile(rf"(?=[^:])({_NAME})(?::(?=.)({_NAME}))?")


@dataclass(frozen=True, slots=True)
class Names:
    """A list of names; one with * at its end stands for all that begin so."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        patterns = list(patterns)
        return cls(
            frozenset(each for each in patterns if not each.endswith("*")),
            tuple(each[:-1] for each in patterns if each.endswith("*")),
        )

    def __contains__(self, name: str) -> bool:
        return name in self.exact or name.startswith(self.prefixes)

    def is_within(self, others: Names) -> bool:
        """Every name that these stand for is one of the others."""
        return all(name in others for name in self.exact) and all(each.startswith(others.prefixes) for each in self.prefixes)


ALL: Final = Names.of(["*"])


class Rule(NamedTuple):
    """Both names of a rule, in the order in which they are written."""

    first: Names
    second: Names

    @classmethod
    def of(cls, text: str) -> Rule:
        found = RULE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text[:80]!r}: write NAME or NAME:NAME, with * only at the end of a name")
        return cls(Names.of([found[1]]), ALL if found[2] is None else Names.of([found[2]]))


def wide_rules(entry: Mapping[str, Any]) -> list[str]:
    """Advice for each rule of a token that leaves the other side open."""
    return [
        f'{side} "{text}" allows every {other}: write "{text}:NAME", or "{text}:*" if all are meant'
        for side, other in (("produce", "topic"), ("consume", "consumer group"))
        for text in entry.get(side, [])
        if ":" not in text
    ]


@dataclass(frozen=True, slots=True)
class Grants:
    """What is allowed less what is denied. `first` and `second` are in the order of the rules."""

    allowed: tuple[Rule, ...] = ()
    denied: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, allow: Iterable[str], deny: Iterable[str] = ()) -> Grants:
        """ValueError says which rule cannot be read."""
        return cls(tuple(map(Rule.of, allow)), tuple(map(Rule.of, deny)))

    def covers(self, first: str, second: str) -> bool:
        for rule in self.denied:  # loops, not `any`: asked for every message
            if first in rule.first and second in rule.second:
                return False
        for rule in self.allowed:  # noqa: SIM110
            if first in rule.first and second in rule.second:
                return True
        return False

    def covers_some(self, first: str) -> bool:
        """Something is allowed under this first name, and not denied as a whole."""
        denied = [rule.second for rule in self.denied if first in rule.first]
        return any(first in rule.first and not any(map(rule.second.is_within, denied)) for rule in self.allowed)


EVERYTHING: Final = Grants((Rule(ALL, ALL),))
