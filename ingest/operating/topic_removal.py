"""Removing topics that nobody uses, for operators: by name, or all unused ones, or all unused ones that a token made.

    found = await removing.remove(Wanted(unused=True, made_by="tenant"))

What is unused, the store decides (`store/edge/removal.py`), in a thread: it looks through halves and queues. Then what
consumer groups
did in these topics is forgotten, whether or not the operator still waits for the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ingest.consuming.consumption import Consumption
from ingest.errors import InvalidRequest
from store.edge.removal import Removal, remove_topics
from store.edge.store import EdgeStore
from store.naming import SYSTEM_PREFIX


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which topics shall go: these, or all that are unused (made by this token)."""

    topics: Sequence[str] = ()
    unused: bool = False
    made_by: str | None = None
    dry_run: bool = False

    def check(self) -> None:
        if bool(self.topics) == self.unused:
            raise InvalidRequest("topics: name the topics, or say unused for all that nobody uses; one of the two", "topics")
        if self.made_by is not None and not self.unused:
            raise InvalidRequest("made_by: goes with unused: all unused topics that this token made", "made_by")

    def told(self) -> str:
        """For the audit."""
        if self.unused:
            return "unused topics" + (f" made by {self.made_by}" if self.made_by is not None else "")
        return ", ".join(self.topics[:10]) + (f" and {len(self.topics) - 10} more" if len(self.topics) > 10 else "")


class Removing:
    """Lives in the event loop."""

    def __init__(self, store: EdgeStore, consumption: Consumption) -> None:
        self._store, self._consumption = store, consumption
        self._one_at_a_time = asyncio.Lock()

    async def remove(self, wanted: Wanted) -> Removal:
        """What was removed, and why the others stay. Of unused ones only those that could go are told of."""
        wanted.check()
        found = await asyncio.shield(asyncio.ensure_future(self._remove(wanted)))
        if wanted.unused:
            found.kept.clear()
        return found

    async def _remove(self, wanted: Wanted) -> Removal:
        async with self._one_at_a_time:
            names = list(wanted.topics) or self._candidates(wanted.made_by)
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(None, partial(remove_topics, self._store, names, dry_run=wanted.dry_run))
            self._consumption.forget_removed()
            return found

    def _candidates(self, made_by: str | None) -> list[str]:
        known = self._store.dictionary
        return [
            name
            for number, name in known.living_topics()
            if not name.startswith(SYSTEM_PREFIX) and (made_by is None or known.maker_of_topic(number) == made_by)
        ]
