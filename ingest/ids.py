"""Transaction ids: the place of a half, sealed, so that a client can name only halves that it was given.

id = base64url without padding of 43 bytes
      0  u8   version        3
      1  4s   key id         first 4 bytes of SHA-256 of the key: tells which key sealed it
      5  8s   store id       format.json's store_id; each restore gives the store another
     13  u16  shard          0 in an embedded store
     15  i64  half_offset
     23  i32  group_no
     27  16s  seal           quarter half_offset % 4 of the keyed BLAKE2b (RFC 7693), 64 bytes, over bytes 0..27 with
                              half_offset // 4 in the place of half_offset: halves in a row share one computation of it
                              (which takes a quarter of HMAC-SHA-256's time)

All numbers little-endian. A half has exactly one id under each key: spellings that decode to the same bytes are refused.

Key file: one key a line, at least 32 hexadecimal digits; # begins a comment. The first key seals, all of them open: to
change keys, put the new one first and keep the old ones until the last id that they sealed is of no use any more
(fileReservedTime). Made at the first start, readable by its owner only. Truth: rebuilt from nothing. Without it no
transaction that is under way can be ended by its producer.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final, overload

import numpy as np
import numpy.typing as npt

from ingest.auth import secret_files
from ingest.errors import BadId, KeysUnusable

LAYOUT: Final = struct.Struct("<B4s8sHqi")
assert LAYOUT.size == 27
VERSION: Final = 3
SEAL_BYTES: Final = 16
SEALS: Final = 4
KEY_MIN_BYTES: Final = 16
KEY_BYTES: Final = 32
ID_CHARACTERS: Final = -(-(LAYOUT.size + SEAL_BYTES) * 4 // 3)
assert ID_CHARACTERS == 58

_TO_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")
_PADDING: Final = b"=" * (-ID_CHARACTERS % 4)
#: An id, filled up so that those of many can be written as one text.
_ID: Final = np.dtype([("head", "V15"), ("half_offset", "<i8"), ("group_no", "<i4"), ("seal", "V16"), ("padding", "V2")])
_ID_STRIDE: Final = _ID.itemsize * 4 // 3
assert _ID.itemsize % 3 == 0
_TEXT: Final = np.dtype([("id", f"S{ID_CHARACTERS}"), ("filled", f"S{_ID_STRIDE - ID_CHARACTERS}")])
_FILLED: Final = "A" * (_ID_STRIDE - ID_CHARACTERS)
#: Fewer are sealed one by one: arrays cost more than they save.
MANY: Final = 8
_NOT_OURS: Final = f"id: not an id of ours ({ID_CHARACTERS} letters, digits, - and _); use it exactly as it was answered"

BACK_UP: Final = "back it up: without it no producer can end a transaction whose id it sealed"


NO_ANCESTORS: Final[Mapping[str, int]] = MappingProxyType({})


class Place(NamedTuple):
    """What an id says."""

    shard: int
    half_offset: int
    group_no: int


@final
class Sealed(Sequence[tuple[str, int]]):
    """(id, half_offset) of halves in a row: the ids as one text, for writing many of them at once."""

    __slots__ = ("_text", "first")

    def __init__(self, text: bytes, first: int) -> None:
        self._text, self.first = text, first

    @property
    def ids(self) -> npt.NDArray[np.bytes_]:
        ids: npt.NDArray[np.bytes_] = np.frombuffer(self._text, _TEXT)["id"]
        return ids

    def __len__(self) -> int:
        return len(self._text) // _ID_STRIDE

    @overload
    def __getitem__(self, at: int) -> tuple[str, int]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[str, int]]: ...
    def __getitem__(self, at: int | slice) -> tuple[str, int] | list[tuple[str, int]]:
        number = range(len(self))[at]
        if isinstance(number, range):
            return [self[each] for each in number]
        begin = number * _ID_STRIDE
        return self._text[begin : begin + ID_CHARACTERS].decode("ascii"), self.first + number


class Sealer:
    """Seals and opens ids of one store. The first key seals, every key opens."""

    def __init__(self, keys: Sequence[bytes], store_id: str, ancestors: Mapping[str, int] = NO_ANCESTORS) -> None:
        """`ancestors`: ids of the stores that this one was restored from count for halves before these."""
        if not keys:
            raise KeysUnusable("there is no key to seal ids with")
        self._store = bytes.fromhex(store_id)
        self._ancestors = {bytes.fromhex(ancestor): half_end for ancestor, half_end in ancestors.items()}
        if len(self._store) != 8:
            raise KeysUnusable(f"store id {store_id!r} must have 16 hexadecimal digits")
        #: The key is mixed in once; each seal goes on from a copy.
        self._keyed = {key_id(key): keyed(key, SEALS * SEAL_BYTES) for key in reversed(keys)}
        self._key_id = key_id(keys[0])
        #: Of the last block that was sealed: halves that came one by one are mostly answered in their order.
        self._last: tuple[tuple[int, int, int], bytes] = (-1, 0, 0), b""

    def seal(self, half_offset: int, group_no: int, shard: int = 0) -> str:
        content, block = LAYOUT.pack(VERSION, self._key_id, self._store, shard, half_offset, group_no), half_offset // SEALS
        last, seals = self._last
        if last != (block, group_no, shard):
            seals = _seals(self._keyed[self._key_id], content, block)
            self._last = (block, group_no, shard), seals
        return _text(content, seals, half_offset).decode("ascii")

    def seal_all(self, half_offsets: Sequence[int], group_no: int) -> Sequence[tuple[str, int]]:
        """(id, half_offset) of many of one group."""
        if not isinstance(half_offsets, range) or half_offsets.step != 1 or len(half_offsets) < MANY:
            return [(self.seal(half_offset, group_no), half_offset) for half_offset in half_offsets]
        first, stop = half_offsets.start, half_offsets.stop
        head, keyed = self._head(group_no), self._keyed[self._key_id]
        seals = [_seals(keyed, head, block) for block in range(first // SEALS, (stop - 1) // SEALS + 1)]
        return Sealed(_texts(head, np.arange(first, stop), b"".join(seals)[first % SEALS * SEAL_BYTES :]), first)

    def seal_rows(self, half_offsets: npt.NDArray[np.int64], group_nos: npt.NDArray[Any]) -> npt.NDArray[np.bytes_]:
        """Ids of many halves of any groups, as texts of one width."""
        found = np.zeros(len(half_offsets), f"S{_ID_STRIDE}")
        for group_no in np.unique(group_nos).tolist():
            mine = np.flatnonzero(group_nos == group_no)
            offsets = half_offsets[mine]
            blocks, block_of = np.unique(offsets // SEALS, return_inverse=True)
            head, keyed = self._head(group_no), self._keyed[self._key_id]
            seals = np.frombuffer(b"".join([_seals(keyed, head, block) for block in blocks.tolist()]), "V16").reshape(-1, SEALS)
            texts = _texts(head, offsets, seals[block_of, offsets % SEALS].tobytes())
            found[mine] = np.frombuffer(texts, f"S{_ID_STRIDE}")
        return found.astype(f"S{ID_CHARACTERS}")

    def _head(self, group_no: int) -> bytes:
        """The content of an id of this group under the first key, whatever its half_offset."""
        return LAYOUT.pack(VERSION, self._key_id, self._store, 0, 0, group_no)

    def open_all(self, texts: Sequence[str]) -> list[Place | BadId]:
        """What each id says, or why it is not valid."""
        if len(texts) >= MANY and (places := self._open_alike(texts)) is not None:
            return list[Place | BadId](places)
        return [self._opened(text) for text in texts]

    def _opened(self, text: str) -> Place | BadId:
        try:
            return self.open(text)
        except BadId as error:
            return error

    def _open_alike(self, texts: Sequence[str]) -> list[Place] | None:
        """The same for ids of one group under the first key, which all are good: they are what it would seal for the places they
        name. None where it is not so."""
        if set(map(len, texts)) != {ID_CHARACTERS}:
            return None
        try:
            given = _FILLED.join([*texts, ""]).encode("ascii")
            ids = np.frombuffer(a2b_base64(given.translate(_FROM_URLSAFE)), _ID)
        except ValueError:  # neither ASCII nor base64
            return None
        half_offsets, group_no = ids["half_offset"].tolist(), int(ids["group_no"][0])
        head, keyed = self._head(group_no), self._keyed[self._key_id]
        blocks = {block: _seals(keyed, head, block) for block in {half_offset // SEALS for half_offset in half_offsets}}
        seals = [_seal_of(blocks[half_offset // SEALS], half_offset) for half_offset in half_offsets]
        if not hmac.compare_digest(_texts(head, ids["half_offset"], b"".join(seals)), given):
            return None
        return [Place(0, half_offset, group_no) for half_offset in half_offsets]

    def open(self, text: str) -> Place:
        """What the id says; BadId unless this store issued it."""
        try:
            given = text.encode("ascii")
            content = a2b_base64(given.translate(_FROM_URLSAFE) + _PADDING)[: LAYOUT.size]
            version, key, store, shard, half_offset, group_no = LAYOUT.unpack(content)
        except (UnicodeEncodeError, Base64Error, struct.error):
            raise BadId(_NOT_OURS) from None
        if len(given) != ID_CHARACTERS:
            raise BadId(_NOT_OURS)
        if version != VERSION:
            raise BadId("id: of a version that this release does not know")
        # The whole text is compared: it has one spelling only. An unknown key is tried with one of ours all the same: the answer
        # takes as long for every id that is not good.
        seals = _seals(self._keyed.get(key, self._keyed[self._key_id]), content, half_offset // SEALS)
        good = hmac.compare_digest(_text(content, seals, half_offset), given)
        half_end = self._ancestors.get(store)
        if store != self._store and half_end is None:
            raise BadId("id: of another store; ends go to the store that took the half")
        if key not in self._keyed:
            raise BadId(
                "id: sealed with a key that this edge does not have; was the key file replaced? "
                "Put the old key back as a further line"
            )
        if not good:
            raise BadId("id: its seal is broken; use the id exactly as it was answered")
        if half_end is not None and half_offset >= half_end:
            raise BadId("id: issued after the backup that this store was restored from; its half is lost: send the message again")
        return Place(shard, half_offset, group_no)


def keyed(key: bytes, size: int = SEAL_BYTES) -> hashlib.blake2b:
    """BLAKE2b takes keys of up to 64 bytes; ours may be of any length."""
    return hashlib.blake2b(key=hashlib.sha256(b"escrow id seal\0" + key).digest(), digest_size=size)


def _text(content: bytes, seals: bytes, half_offset: int) -> bytes:
    """The id with this content; `seals` are those of its block."""
    return b2a_base64(content + _seal_of(seals, half_offset), newline=False).translate(_TO_URLSAFE)[:ID_CHARACTERS]


def _texts(head: bytes, half_offsets: npt.NDArray[np.int64], seals: bytes) -> bytes:
    """The ids of these halves, which differ in nothing else and have these seals: one text, _ID_STRIDE characters each."""
    ids = np.zeros(len(half_offsets), _ID)
    ids["head"], ids["group_no"] = np.void(head[:15]), np.frombuffer(head[23:], "<i4")
    ids["half_offset"], ids["seal"] = half_offsets, np.frombuffer(seals, "V16", len(ids))
    return b2a_base64(ids.tobytes(), newline=False).translate(_TO_URLSAFE)


def _seal_of(seals: bytes, half_offset: int) -> bytes:
    """The half's own among those of its block."""
    at = half_offset % SEALS * SEAL_BYTES
    return seals[at : at + SEAL_BYTES]


def _seals(keyed: hashlib.blake2b, content: bytes, block: int) -> bytes:
    """Those of the four halves of a block."""
    found = keyed.copy()
    found.update(content[:15] + block.to_bytes(8, "little", signed=True) + content[23:])
    return found.digest()


def key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"escrow id key\0" + key).digest()[:4]


# --- keys ----------------------------------------------------------------------------------------------------------------
def load_keys(file: Path, text: str = "") -> tuple[list[bytes], str]:
    """(keys, a notice for the operator or ""): from `text` if there is any, otherwise from the file, which is made if missing."""
    if text:
        return _parse(text.replace(",", "\n").splitlines(), "idKeys"), ""
    try:
        content = file.read_text()
        mode = file.stat().st_mode & 0o077
    except FileNotFoundError:
        return [_make(file)], f"made a new key for transaction ids in {file}; {BACK_UP}"
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise KeysUnusable(f"{file}: {reason}: give this user access to it, or restore it from its backup") from error
    notice = f"{file} can be read by others: chmod 600 {file}" if mode else ""
    return _parse(content.splitlines(), str(file)), notice


def _parse(lines: Iterable[str], where: str) -> list[bytes]:
    keys = []
    for number, line in enumerate(lines, 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        try:
            key = bytes.fromhex(word)
        except ValueError:
            key = b""
        if len(key) < KEY_MIN_BYTES:
            raise KeysUnusable(
                f"{where}: key {number} has not {2 * KEY_MIN_BYTES} or more hexadecimal digits: restore it from its backup"
            )
        keys.append(key)
    if not keys:
        raise KeysUnusable(f"{where}: holds no key: restore it from its backup, or remove it to have a new one made")
    return keys


def _make(file: Path) -> bytes:
    key = secrets.token_bytes(KEY_BYTES)
    _write(file, f"# Seals Escrow's transaction ids. Keep it secret, and {BACK_UP}.\n{key.hex()}\n")
    return key


def rotate(file: Path) -> None:
    """Put a new key first; the old ones go on opening what they sealed."""
    load_keys(file)
    _write(file, f"{secrets.token_bytes(KEY_BYTES).hex()}\n{file.read_text()}")


def _write(file: Path, content: str) -> None:
    try:
        secret_files.write(file, content)
    except OSError as error:
        raise KeysUnusable(f"{file}: {error.strerror}: a key for transaction ids cannot be written there") from error
