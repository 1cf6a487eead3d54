"""What the keys topic says of dedup keys, and who waits to hear it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ingest.kafka.keys.record import KeyRecord
from ingest.kafka.records.places import Place
from store.tables.dedup import Dedup, Known

#: Partition and offset of a record in the keys topic.
KeyPlace = tuple[int, int]


class First(NamedTuple):
    """The half that counts for a key."""

    place: Place
    body_crc: int


class KnownKeys:
    """Lives in the event loop, but for `expect` and `forget`, which any thread may call."""

    def __init__(self, directory: Path, window_s: int) -> None:
        shutil.rmtree(directory, ignore_errors=True)  # filled from Kafka
        self._table = Dedup(directory, window_s, writable=True)
        self._waiting: dict[KeyPlace, asyncio.Future[First]] = {}
        self._loop = asyncio.get_running_loop()

    def get(self, digest: bytes, now_s: int) -> Known | None:
        return self._table.get(digest, now_s)

    def learn(self, records: Sequence[KeyRecord]) -> None:
        """Records in the order of their partitions: the first of a key within the window counts."""
        for record in records:
            known = self._table.get(record.digest, record.at_s)
            if known is None:
                self._table.ensure(1, record.at_s)
                self._table.put_all({record.digest: Known(record.place.number, record.at_s, record.body_crc)})
            waiter = self._waiting.get((record.partition, record.offset))
            if waiter is not None and not waiter.done():
                first = First(Place.of(known.half_offset), known.body_crc) if known is not None else None
                waiter.set_result(first or First(record.place, record.body_crc))

    def expect(self, key_places: Iterable[KeyPlace]) -> None:
        """Own records are about to become readable there."""
        for place in key_places:
            self._waiting[place] = self._loop.create_future()

    def first_of(self, key_place: KeyPlace) -> asyncio.Future[First]:
        """The half that counts for the key of an own record, once that was read back."""
        return self._waiting[key_place]

    def forget(self, key_places: Iterable[KeyPlace]) -> None:
        for place in key_places:
            self._waiting.pop(place, None)

    def close(self) -> None:
        self._table.close()
