"""Dedup keys: a half with a key that was used within dedupWindow is the same half. Kept in mapped files of this endpoint
(`store.tables.dedup`), so they survive its restart, and are forgotten with its directory; other endpoints know nothing of them."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ingest.kafka.records.places import Place
from store.errors import DuplicateKey
from store.messages import Message
from store.tables.dedup import Dedup, Known

Write = Callable[[Sequence[Message]], Awaitable[Sequence[Place]]]


class _Underway(NamedTuple):
    place: asyncio.Future[Place]
    body_crc: int


class SendOnce:
    """Lives in the event loop."""

    def __init__(self, directory: Path, window_s: int) -> None:
        self._known = Dedup(directory, window_s, writable=True)
        self._underway: dict[bytes, _Underway] = {}

    async def store(self, messages: Sequence[Message], now_s: int, write: Write) -> list[Place]:
        """Places of all; those that are new are written. A duplicate of one that is on its way waits for it."""
        digests = [_digest(message) if message.dedup_key else b"" for message in messages]
        places: list[Place | asyncio.Future[Place] | None] = [
            self._find(message, digest, now_s, number) if digest else None
            for number, (message, digest) in enumerate(zip(messages, digests, strict=True))
        ]
        new: list[int] = []
        mine: dict[bytes, asyncio.Future[Place]] = {}
        for number, digest in enumerate(digests):
            if places[number] is None and digest in mine:
                places[number] = mine[digest]
            elif places[number] is None:
                new.append(number)
                if digest:
                    mine[digest] = asyncio.get_running_loop().create_future()
                    self._underway[digest] = _Underway(mine[digest], zlib.crc32(messages[number].body))
        written = await self._write([messages[number] for number in new], [digests[number] for number in new], mine, now_s, write)
        for number, place in zip(new, written, strict=True):
            places[number] = place
        return [await each if isinstance(each, asyncio.Future) else each for each in places if each is not None]

    def _find(self, message: Message, digest: bytes, now_s: int, number: int) -> Place | asyncio.Future[Place] | None:
        underway, known = self._underway.get(digest), self._known.get(digest, now_s)
        body_crc = underway.body_crc if underway is not None else known.body_crc if known is not None else None
        if body_crc is not None and body_crc != zlib.crc32(message.body):
            error = DuplicateKey(f"dedup_key: {message.dedup_key[:80]!r} was used with another body: choose a new key")
            error.number = number
            raise error
        if underway is not None:
            return underway.place
        return Place.of(known.half_offset) if known is not None else None

    async def _write(
        self, new: list[Message], digests: list[bytes], mine: dict[bytes, asyncio.Future[Place]], now_s: int, write: Write
    ) -> Sequence[Place]:
        try:
            written = await write(new) if new else []
            self._known.ensure(len(mine), now_s)
            for message, digest, place in zip(new, digests, written, strict=True):
                if digest:
                    self._known.put_all({digest: Known(place.number, now_s, zlib.crc32(message.body))})
                    mine[digest].set_result(place)
            return written
        except BaseException as error:
            for future in mine.values():
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else ConnectionError("its sender went away"))
                    future.exception()  # nobody may wait for it
            raise
        finally:
            for digest in mine:
                self._underway.pop(digest, None)

    def close(self) -> None:
        self._known.flush()
        self._known.close()


def _digest(message: Message) -> bytes:
    return blake2b(f"{message.group}\0{message.dedup_key}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
