"""Halves that have a dedup key are stored once, whichever endpoint they come to, and however often.

    1  a key that is known here within dedupWindow is that half: nothing is written
    2  otherwise the half and its key are written in one transaction (writer.py)
    3  the keys topic is read up to that record (follower.py). If another endpoint's record of the same key comes first there,
       that one is the half: ours is rolled back, and nobody was told of it

A table of mapped files (`store.tables.dedup`) holds the keys. It is filled from the keys topic at every start, so an endpoint's
directory may be lost.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from ingest.errors import KafkaUnreachable
from ingest.kafka.keys.known import First, KnownKeys
from ingest.kafka.keys.record import digest_of
from ingest.kafka.keys.writer import Keyed, KeyedWriter, Written
from ingest.kafka.records.places import Place
from ingest.kafka.writer import Record
from store.errors import DuplicateKey
from store.messages import Message

#: When a rollback that did not reach Kafka is said again.
AGAIN_S: Final = 1.0
LOG: Final = logging.getLogger("escrow.edge")

Write = Callable[[Sequence[Message]], Awaitable[Sequence[Place]]]
#: By digest: which message of the request.
New = dict[bytes, tuple[int, Message]]
#: Rolls back a half that nobody was told of.
RollBack = Callable[[Place, str], Awaitable[None]]


class _Underway(NamedTuple):
    place: asyncio.Future[Place]
    body_crc: int


class SendOnce:
    """Lives in the event loop."""

    def __init__(
        self, keys: KnownKeys, writer: KeyedWriter, to_record: Callable[[Message], Record], roll_back: RollBack, timeout_s: float
    ) -> None:
        self._keys, self._writer, self._to_record = keys, writer, to_record
        self._roll_back, self._timeout_s = roll_back, timeout_s
        self._underway: dict[bytes, _Underway] = {}
        self._judging: set[asyncio.Task[list[First]]] = set()
        #: Halves with a key that were written.
        self.written = 0

    async def store(self, messages: Sequence[Message], now_s: int, write: Write) -> list[Place]:
        """Places of all; those that are new are written. A duplicate of one that is on its way waits for it."""
        if not any(message.dedup_key for message in messages):
            return list(await write(messages))
        digests = [digest_of(message) if message.dedup_key else b"" for message in messages]
        places: list[Place | asyncio.Future[Place] | None] = [
            self._find(message, digest, now_s, number) if digest else None
            for number, (message, digest) in enumerate(zip(messages, digests, strict=True))
        ]
        plain = [number for number, digest in enumerate(digests) if not digest]
        new: dict[bytes, int] = {}
        for number, digest in enumerate(digests):
            if digest and places[number] is None:
                if digest not in new:
                    new[digest] = number
                    future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
                    self._underway[digest] = _Underway(future, zlib.crc32(messages[number].body))
                places[number] = self._underway[digest].place
        keyed = self._write({digest: (number, messages[number]) for digest, number in new.items()})
        unkeyed = write([messages[number] for number in plain]) if plain else _nothing()
        _, written = await asyncio.gather(keyed, unkeyed)
        for number, place in zip(plain, written, strict=True):
            places[number] = place
        return [await each if isinstance(each, asyncio.Future) else each for each in places if each is not None]

    def _find(self, message: Message, digest: bytes, now_s: int, number: int) -> Place | asyncio.Future[Place] | None:
        underway, known = self._underway.get(digest), self._keys.get(digest, now_s)
        body_crc = underway.body_crc if underway is not None else known.body_crc if known is not None else None
        if body_crc is not None and body_crc != zlib.crc32(message.body):
            raise _duplicate(message, number)
        if underway is not None:
            return underway.place
        return Place.of(known.half_offset) if known is not None else None

    async def _write(self, new: New) -> None:
        """Steps 2 and 3; who waits for these keys hears what came of it."""
        futures = {digest: self._underway[digest].place for digest in new}
        try:
            if new:
                for digest, place in zip(new, await self._write_all(new), strict=True):
                    futures[digest].set_result(place)
        except BaseException as error:
            for future in futures.values():
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else ConnectionError("its sender went away"))
                    future.exception()  # it may be that none waits for it
            raise
        finally:
            for digest in new:
                self._underway.pop(digest, None)

    async def _write_all(self, new: New) -> list[Place]:
        halves = [Keyed(self._to_record(each), digest, zlib.crc32(each.body)) for digest, (_, each) in new.items()]
        written = await self._writer.write(halves)  # 2
        self.written += len(written)
        groups = [message.group for _, message in new.values()]
        self._judging.add(judging := asyncio.create_task(self._judge(groups, written)))
        judging.add_done_callback(self._judged)
        try:
            async with asyncio.timeout(self._timeout_s):
                first = await asyncio.shield(judging)  # 3
        except TimeoutError:
            text = "it is in Kafka, and whether another endpoint was first is not known yet: try again, that does no harm"
            raise KafkaUnreachable(text) from None
        for (number, message), half, counts in zip(new.values(), halves, first, strict=True):
            if half.body_crc != counts.body_crc:
                raise _duplicate(message, number)
        return [counts.place for counts in first]

    async def _judge(self, groups: Sequence[str], written: Sequence[Written]) -> list[First]:
        """Step 3. It goes on when its caller was told to try again: a half that does not count and is not rolled back would be
        asked about, and released beside the one that does."""
        key_places = [each.key_place for each in written]
        try:
            first = [await self._keys.first_of(place) for place in key_places]
        finally:
            self._keys.forget(key_places)
        for group, ours, counts in zip(groups, written, first, strict=True):
            while ours.place != counts.place:
                try:
                    await self._roll_back(ours.place, group)
                    break
                except KafkaUnreachable:
                    await asyncio.sleep(AGAIN_S)
        return first

    def _judged(self, judging: asyncio.Task[list[First]]) -> None:
        self._judging.discard(judging)
        if not judging.cancelled() and (error := judging.exception()) is not None:
            LOG.warning("a half whose dedup key another endpoint has used first may be asked about: %s", error)

    def close(self) -> None:
        for judging in self._judging:
            judging.cancel()


def _duplicate(message: Message, number: int) -> DuplicateKey:
    error = DuplicateKey(f"dedup_key: {message.dedup_key[:80]!r} was used with another body: choose a new key")
    error.number = number
    return error


async def _nothing() -> Sequence[Place]:
    return []
