"""Incarnations: a restored store is a new store that honours what its ancestors gave out, as far as the backup holds it.

After a restore, numbers behind the backup are given again: to other halves, and to other messages. So a restore gives the store
a new store_id, under which it seals ids from then on, and notes in the file `incarnations` from which stores it descends. An
id, a receipt or the name of a dead letter that an ancestor gave out counts if what it names lies before the ancestor's cut.
Behind the cut it names something that is not here, whatever has that number now.

`incarnations` is a small JSON file with one key, `ancestors`: a list, the store that was made first, of
    store_id   of the ancestor
    half_end   ids of halves before it count; null: not known before the first recovery, which notes it
    places     [queue key, next queue_offset] of the topic queues: places before it count; null as above

Writer: the restore; the edge, at its first opening, before it takes anything. Truth: rebuilt from nothing. A store that was never
restored has no such file. Without it, ids of ancestors are those of another store.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from store.errors import Corrupt
from store.io import disk

INCARNATIONS: Final = "incarnations"
TAG_DIGITS: Final = 8
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


def new_store_id() -> str:
    return secrets.token_hex(8)


class Ancestor(NamedTuple):
    """A store that this one descends from, and what of it came along."""

    store_id: str
    half_end: int | None
    places: Mapping[int, int] | None


class Lineage(NamedTuple):
    """A store and its ancestors, the oldest first."""

    store_id: str
    ancestors: tuple[Ancestor, ...] = ()

    @staticmethod
    def read(root: Path, store_id: str) -> Lineage:
        path = root / INCARNATIONS
        try:
            state = disk.read_json(path)
        except Corrupt as error:
            raise Corrupt(path, error.offset, f"{error.reason}; restore a copy of it, for example from the backup") from error
        if state is None:
            return Lineage(store_id)
        try:
            return Lineage(store_id, tuple(_parse(each) for each in state["ancestors"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(
                path, 0, f"not a list of ancestors ({error!r}); restore a copy of it, for example from the backup"
            ) from error

    def restored(self, path: Path) -> Lineage:
        """The lineage of a store that is restored from this one's backup, durable in its directory."""
        lineage = Lineage(new_store_id(), (*self.ancestors, Ancestor(self.store_id, None, None)))
        lineage._write(path)
        return lineage

    def settled(self, path: Path, half_end: int, places: Mapping[int, int]) -> Lineage:
        """With the cut of the last ancestor, which the first recovery finds; durable before anything new is taken."""
        if not self.ancestors or self.ancestors[-1].half_end is not None:
            return self
        last = Ancestor(self.ancestors[-1].store_id, half_end, dict(places))
        lineage = Lineage(self.store_id, (*self.ancestors[:-1], last))
        lineage._write(path)
        return lineage

    def _write(self, root: Path) -> None:
        ancestors = [
            {**each._asdict(), "places": None if each.places is None else sorted(each.places.items())} for each in self.ancestors
        ]
        disk.write_json(root / INCARNATIONS, {"ancestors": ancestors}, INCARNATIONS)

    @property
    def tag(self) -> str:
        """What names of places carry; "" as long as the store was never restored, as in earlier releases."""
        return self.store_id[:TAG_DIGITS] if self.ancestors else ""

    @property
    def half_ends(self) -> dict[str, int]:
        """Cut of each ancestor by its store id."""
        return {each.store_id: each.half_end or 0 for each in self.ancestors}

    def holds(self, tag: str, queue_key: int, queue_offset: int) -> bool:
        """Whether the message at a place that was named under this tag is at that place here."""
        if tag == self.tag:
            return True
        for number, each in enumerate(self.ancestors):
            if tag == (each.store_id[:TAG_DIGITS] if number else ""):
                return queue_offset < (each.places or {}).get(queue_key, 0)
        return False


def _parse(state: dict[str, Any]) -> Ancestor:
    store_id, half_end, places = state["store_id"], state["half_end"], state["places"]
    if not isinstance(store_id, str) or len(store_id) != 16 or not set(store_id) <= _HEXADECIMAL:
        raise ValueError(f"store_id {store_id!r}")
    if half_end is None or places is None:
        return Ancestor(store_id, None, None)
    return Ancestor(store_id, int(half_end), {int(key): int(following) for key, following in places})
