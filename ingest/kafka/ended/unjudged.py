"""Ops that cannot be judged yet, because their half cannot be read now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ingest.kafka.records.places import Place


class Unjudged:
    """Ops in their order. Once an op about a half waits, all later ops about that half wait behind it."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._places: set[Place] = set()
        self._why = ""
        self.tried_s = 0.0

    @property
    def count(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def partitions(self) -> set[int]:
        """Partitions whose ops wait."""
        return {place.partition for place in self._places}

    @property
    def trouble(self) -> str:
        if not self._places:
            return ""
        place = min(self._places)
        return (
            f"{self.count} ops wait, first about half {place.half_offset} of partition {place.partition}: "
            f"it cannot be read now ({self._why})"
        )

    def wait_for(self, places: Iterable[Place], *, why: str) -> None:
        """Ops about these halves wait from now on."""
        before = len(self._places)
        self._places.update(places)
        if len(self._places) > before:
            self._why = why

    def keeps(self, place: Place, message: Any) -> bool:
        """Whether an op about this half has to wait; if so, it is kept."""
        if place in self._places:
            self._waiting.append(message)
            return True
        return False

    def take(self) -> list[Any]:
        """All of them, to be judged again."""
        waiting, self._waiting, self._places = self._waiting, [], set()
        return waiting
