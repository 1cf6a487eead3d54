"""Dedup: which half a producer's dedup key led to, for the length of dedupWindow. Mapped hash files, written by the edge.

`names/` is the same for the names of transactions: which half was committed under a name, for the length of fileReservedTime, with
the time of its COMMIT. The directory is made with its first name. Rebuilt from: COMMIT ops whose halves are NAMED.

`dedup/<20-digit number>`, each a table of 32-byte slots; the number of slots is the file's size / 32, a power of two
      0  16s  digest           BLAKE2b-128 of group_no (i32, little-endian) and the key (UTF-8)
     16  i64  half_offset + 1  0 = free
     24  u32  stored_at_s
     28  u32  body_crc         CRC-32 of the body: the same key with another body is an error

A key's slot: the digest's first 8 bytes (little-endian, unsigned) mod slots, or the next free one behind it, round the end.
New keys go into the file with the highest number; when it is half full or a quarter of the window old, a new file is begun.
A key cannot be younger than the oldest one of a later file: if its time says so, the clock was put back meanwhile, and the
later file's time counts. A file goes when its newest key is older than the window.
Rebuilt from: the halves in the log, which carry their key as property `__DEDUP_KEY__`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from store.errors import Corrupt
from store.io import disk
from store.io.segments import NAME_DIGITS, Segment

SLOT: Final = struct.Struct("<16sqII")
SLOT_DTYPE: Final = np.dtype([("digest", "V16"), ("half_plus_1", "<i8"), ("stored_at_s", "<u4"), ("body_crc", "<u4")])
assert SLOT.size == SLOT_DTYPE.itemsize == 32
SLOTS_MIN: Final = 1 << 14
#: A table that was filled within the window is followed by one this many times as large: few tables, and so few lookups for a key.
GROWTH: Final = 8
SLOTS_MAX: Final = 1 << 22
DEDUP: Final = "dedup"
NAMES: Final = "names"
#: As the window: no key is ever too old. For tools, which do not know the edge's own setting.
EVERY_KEY_S: Final = 1 << 31
#: Fewer keys are looked for one by one: arrays cost more than they save.
MANY: Final = 8


def _content(directory: Path) -> str:
    return "names" if directory.name == NAMES else "dedup keys"


class Known(NamedTuple):
    half_offset: int
    stored_at_s: int
    body_crc: int


def digest_of(group_no: int, key: str) -> bytes:
    return blake2b(group_no.to_bytes(4, "little", signed=True) + key.encode(), digest_size=16).digest()


class _Table:
    """One file: open addressing, linear probing."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self.path = path
        size = path.stat().st_size
        if size < SLOT.size or size % SLOT.size or size & (size - 1):
            raise Corrupt(
                path,
                size,
                f"not a table of {_content(path.parent)} (its size is not a power of two): remove it; the log tells it again",
            )
        self._segment = Segment(path, 0, size, writable, writable)
        self.slots = len(self._segment.buffer) // SLOT.size
        slots = np.frombuffer(self._segment.buffer, SLOT_DTYPE)
        times = slots["stored_at_s"][slots["half_plus_1"] != 0]
        self.used = len(times)
        self.oldest_s, self.newest_s = (int(times.min()), int(times.max())) if self.used else (0, 0)

    def _probe(self, digest: bytes) -> tuple[int, tuple[bytes, int, int, int]]:
        """(where in the file, content) of the key's slot, or of the free one where it would go. A table is never full."""
        buffer, size, unpack = self._segment.buffer, len(self._segment.buffer), SLOT.unpack_from
        at = int.from_bytes(digest[:8], "little") * SLOT.size % size
        while True:
            slot = unpack(buffer, at)
            if not slot[1] or slot[0] == digest:
                return at, slot
            at = (at + SLOT.size) % size

    def get(self, digest: bytes) -> Known | None:
        _, (_, half, stored_at_s, body_crc) = self._probe(digest)
        return Known(half - 1, stored_at_s, body_crc) if half else None

    def taken(self, homes: npt.NDArray[np.uint64]) -> list[int]:
        """Which of some keys may be here, by number: the slots at which the others would begin are free. `homes` are the first 8
        bytes of each digest."""
        slots = np.frombuffer(self._segment.buffer, SLOT_DTYPE)
        return np.flatnonzero(slots["half_plus_1"][homes & np.uint64(self.slots - 1)]).tolist()

    def put_all(self, keys: Mapping[bytes, Known]) -> None:
        fresh = 0
        for digest, (half_offset, stored_at_s, body_crc) in keys.items():
            at, (_, half, _, _) = self._probe(digest)
            SLOT.pack_into(self._segment.buffer, at, digest, half_offset + 1, stored_at_s, body_crc)
            fresh += not half
        times = [known.stored_at_s for known in keys.values()]
        if fresh:
            self.oldest_s = min(times) if not self.used else min(self.oldest_s, *times)
            self.newest_s = max(self.newest_s, *times)
            self.used += fresh

    def is_full(self, count: int) -> bool:
        """Whether `count` more keys are too many: half of the slots stay free, so that probing is short."""
        return (self.used + count) * 2 > self.slots

    def flush(self) -> None:
        disk.flush(self._segment.fd, self.path.parent.name, self.path)

    def close(self) -> None:
        self._segment.close()


class Dedup:
    """Keys of the last window."""

    def __init__(self, directory: Path, window_s: int, *, writable: bool = False, made_late: bool = False) -> None:
        """`made_late`: the directory is made with the first key."""
        self._directory, self._window_s = directory, window_s
        #: How much of the last window was a leap of the clock (`clock.py`) and so is not age. Set by the owner of the clock and
        #: called each time: a number that is set a moment after the leap would drop keys in between.
        self.leapt_s: Callable[[], int] = lambda: 0
        self._tables: list[_Table] = []
        self._removed: list[_Table] = []
        if writable and not made_late:
            disk.make_directory(directory)
        if writable and directory.is_dir():
            for leftover in directory.glob("*" + disk.TEMPORARY_SUFFIX):
                disk.remove(leftover, directory.name)
        if directory.is_dir():
            self._tables = [_Table(path, writable=writable) for path in sorted(directory.iterdir())]

    def get(self, digest: bytes, now_s: int) -> Known | None:
        """What this key (`digest_of`) led to within the window."""
        latest_s = now_s
        for table in reversed(self._tables):
            known = table.get(digest)
            if known is not None:
                return known if min(known.stored_at_s, latest_s) + self._window_s >= now_s - self.leapt_s() else None
            latest_s = min(latest_s, table.oldest_s) if table.used else latest_s
        return None

    def find(self, digests: Sequence[bytes], now_s: int) -> dict[bytes, Known]:
        """`get` for many keys; unknown ones are left out."""
        found: dict[bytes, Known] = {}
        if len(digests) < MANY:
            wanted: Iterable[bytes] = digests
        else:
            homes = np.frombuffer(b"".join(digests), "<u8")[::2]
            wanted = {digests[number] for table in self._tables for number in table.taken(homes)}
        for digest in wanted:
            known = self.get(digest, now_s)
            if known is not None:
                found[digest] = known
        return found

    def put_all(self, keys: Mapping[bytes, Known]) -> None:
        """Remember keys, for which `ensure` made room; the newest half of a key counts."""
        if keys:
            self._tables[-1].put_all(keys)

    def has_room(self, count: int, now_s: int) -> bool:
        """Whether `count` new keys fit without a new table."""
        if not count:
            return True
        last = self._tables[-1] if self._tables else None
        aged = last is not None and last.used and not 0 <= now_s - last.oldest_s <= max(self._window_s // 4, 1)
        return last is not None and not aged and not last.is_full(count)

    def ensure(self, count: int, now_s: int, *, keep: bool = False) -> None:
        """Make room for `count` new keys, before they are in the log, so that storing them cannot meet a full disk.
        `keep`: forget none meanwhile."""
        if self.has_room(count, now_s):
            return
        last = self._tables[-1] if self._tables else None
        slots = min(last.slots * GROWTH, SLOTS_MAX) if last is not None and last.is_full(count) else SLOTS_MIN
        while slots < count * 2:
            slots *= 2
        disk.make_directory(self._directory)
        number = int(last.path.name) + 1 if last is not None else 0
        path = self._directory / f"{number:0{NAME_DIGITS}d}"
        disk.create_segment(path, slots * SLOT.size, self._directory.name)
        self._tables.append(_Table(path, writable=True))
        if not keep:
            self._forget(now_s)

    def _forget(self, now_s: int) -> None:
        while len(self._tables) > 1:
            latest_s = min([self._tables[0].newest_s, *(table.oldest_s for table in self._tables[1:] if table.used)])
            if latest_s + self._window_s >= now_s - self.leapt_s():
                return
            table = self._tables.pop(0)
            self._removed.append(table)  # a flush in another thread may have it in hand: the next one closes it
            disk.remove(table.path, self._directory.name)

    def extents(self) -> list[list[Any]]:
        """What a checkpoint notes: name and number of keys of each table."""
        return [[table.path.name, table.used] for table in self._tables]

    def why_doubted(self, checkpoint: Mapping[str, Any]) -> str:
        """Why keys may be lost; "" where none are. After a kill the last table may have grown, and where a later one was begun
        the oldest may have been removed for their age."""
        noted, found = checkpoint.get(self._directory.name) or [], self.extents()
        if checkpoint["clean"]:
            known = found == noted
        else:
            names, there = [name for name, _ in noted], {name for name, _ in found}
            gone = [name for name in names if name not in there]
            known = not gone or (gone == names[: len(gone)] and max(there, default="") > names[-1])
        if known or not noted:
            return ""
        return f"{self._directory}: a table of {_content(self._directory)} is missing, or is not the one that was here"

    def flush(self) -> None:
        """One thread at a time; others may add and remove tables meanwhile."""
        removed = list(self._removed)
        for table in list(self._tables):
            table.flush()
        for table in removed:
            table.close()
            self._removed.remove(table)

    def close(self) -> None:
        for table in (*self._tables, *self._removed):
            table.close()
