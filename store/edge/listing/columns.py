"""Halves as columns, with their keys in one string of bytes, and the search in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints

#: What the columns keep of a key to search texts in. A whole key is found by its hash, however long it is.
KEY_BYTES: Final = 256
#: A text search collects hits one by one up to this many, and as columns beyond.
FEW_HITS: Final = 256
SEPARATOR: Final = b"\x02"


@dataclass(frozen=True, slots=True)
class Columns:
    """Halves between two offsets, as columns. Key n: keys[key_at[n] : key_at[n + 1] - 1]; key_at is None = keys were not
    read. Different hashes mean different keys."""

    first: int
    stop: int
    half_offset: Ints
    stored_at_ms: Ints
    group_no: Array
    topic_no: Array
    key_hash: Array | None = None
    key_at: Ints | None = None
    keys: bytes = b""

    def __len__(self) -> int:
        return len(self.half_offset)

    def keep(self, kept: Array) -> Columns:
        """Only the rows where `kept` is true."""
        assert self.key_at is not None
        assert self.key_hash is not None
        lengths = np.diff(self.key_at)
        content = np.frombuffer(self.keys, np.uint8)[1:][np.repeat(kept, lengths)]
        return Columns(
            self.first, self.stop, self.half_offset[kept], self.stored_at_ms[kept],
            self.group_no[kept], self.topic_no[kept],
            self.key_hash[kept], starts(lengths[kept]), SEPARATOR + content.tobytes(),
        )  # fmt: skip

    def behind(self, before: Columns) -> Columns:
        """`before` and these as one."""
        assert self.key_at is not None
        assert self.key_hash is not None
        assert before.key_at is not None
        assert before.key_hash is not None
        both = np.concatenate
        return Columns(
            before.first, self.stop,
            both([before.half_offset, self.half_offset]), both([before.stored_at_ms, self.stored_at_ms]),
            both([before.group_no, self.group_no]), both([before.topic_no, self.topic_no]),
            both([before.key_hash, self.key_hash]),
            both([before.key_at, self.key_at[1:] + (len(before.keys) - 1)]), before.keys + self.keys[1:],
        )  # fmt: skip


def with_keys(columns: tuple[int, int, Ints, Ints, Array, Array], keys: dict[int, bytes]) -> Columns:
    """Columns with their keys, of those rows that have one, by row number."""
    count = len(columns[2])
    hashes, lengths = np.full(count, key_hash(b""), np.uint32), np.ones(count, np.int64)
    texts = [SEPARATOR] * count
    for number, key in keys.items():
        hashes[number], texts[number] = key_hash(key), key[:KEY_BYTES] + SEPARATOR
        lengths[number] = len(texts[number])
    return Columns(*columns, hashes, starts(lengths), b"".join([SEPARATOR, *texts]))


def key_hash(key: bytes) -> int:
    """Of this process: the index does not outlive it."""
    return hash(key) & 0xFFFFFFFF


def starts(lengths: Any) -> Ints:
    """Where keys begin, separators counted, and where the last one ends: a separator stands before the first."""
    return np.concatenate([[1], 1 + np.cumsum(lengths, dtype=np.int64)])


def hits(content: bytes, text: bytes) -> Ints:
    """Where the text occurs in the content."""
    few: list[int] = []
    find, at = content.find, content.find(text)
    while at >= 0:
        few.append(at)
        if len(few) > FEW_HITS:
            return _many_hits(content, text)
        at = find(text, at + 1)
    return np.array(few, np.int64)


def _many_hits(content: bytes, text: bytes) -> Ints:
    """As columns: look for the byte of the text that is rarest here first, then for the others beside what was found."""
    letters, found = np.frombuffer(content, np.uint8), np.frombuffer(text, np.uint8)
    sample = np.bincount(letters[:: max(1, len(letters) >> 12)], minlength=256)
    order = np.argsort(sample[found], kind="stable").tolist()
    last = len(letters) - len(found) + 1
    at: Ints = np.flatnonzero(letters[order[0] : order[0] + last] == found[order[0]])
    for number in order[1:]:
        if not len(at):
            break
        at = at[letters[at + number] == found[number]]
    return at
