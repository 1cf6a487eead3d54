"""Transaction ids: the place of a half, sealed, so that nobody can name a half that he was not given.

id = base64url without padding of 43 bytes
      0  u8   version        1
      1  4s   key id         first 4 bytes of SHA-256 of the key: tells which key sealed it
      5  8s   store id       format.json's store_id
     13  u16  shard          0 in an embedded store
     15  i64  half_offset
     23  i32  group_no
     27  16s  seal           first 16 bytes of HMAC-SHA-256 over bytes 0..27

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
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingest import secret_files
from ingest.errors import BadId, KeysUnusable

LAYOUT: Final = struct.Struct("<B4s8sHqi")
assert LAYOUT.size == 27
VERSION: Final = 1
SEAL_BYTES: Final = 16
KEY_MIN_BYTES: Final = 16
KEY_BYTES: Final = 32
ID_CHARACTERS: Final = -(-(LAYOUT.size + SEAL_BYTES) * 4 // 3)
assert ID_CHARACTERS == 58

_TO_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URLSAFE: Final = bytes.maketrans(b"-_", b"+/")

BACK_UP: Final = "back it up: without it no producer can end a transaction whose id it sealed"


@dataclass(frozen=True, slots=True)
class Place:
    """What an id says."""

    shard: int
    half_offset: int
    group_no: int


class Sealer:
    """Seals and opens ids of one store. The first key seals, every key opens."""

    def __init__(self, keys: Sequence[bytes], store_id: str) -> None:
        if not keys:
            raise KeysUnusable("there is no key to seal ids with")
        self._store = bytes.fromhex(store_id)
        if len(self._store) != 8:
            raise KeysUnusable(f"store id {store_id!r} has not 16 hexadecimal digits")
        self._keys = {key_id(key): key for key in reversed(keys)}
        self._key, self._key_id = keys[0], key_id(keys[0])

    def seal(self, half_offset: int, group_no: int, shard: int = 0) -> str:
        content = LAYOUT.pack(VERSION, self._key_id, self._store, shard, half_offset, group_no)
        sealed = b2a_base64(content + hmac.digest(self._key, content, "sha256")[:SEAL_BYTES], newline=False)
        return sealed.translate(_TO_URLSAFE)[:ID_CHARACTERS].decode("ascii")

    @staticmethod
    def half_offset_of(id: str) -> int:
        """Of an id that was sealed just now: its seal is not looked at. -1 where a plug-in made the id."""
        if len(id) != ID_CHARACTERS:
            return -1
        # Nine bytes from the fifteenth on are twelve characters from the twentieth on.
        place = a2b_base64(id[20:32].encode().translate(_FROM_URLSAFE))
        return int.from_bytes(place[:8], "little", signed=True)

    def open(self, text: str) -> Place:
        """What the id says; BadId unless this store issued it."""
        raw = _decode(text)
        content, seal = raw[: LAYOUT.size], raw[LAYOUT.size :]
        version, key, store, shard, half_offset, group_no = LAYOUT.unpack(content)
        if version != VERSION:
            raise BadId("id: of a version that this release does not know")
        # An unknown key is tried with one of ours all the same: the answer takes as long for every id that is not good.
        good = hmac.compare_digest(_seal(self._keys.get(key, self._key), content), seal)
        if store != self._store:
            raise BadId("id: of another store; ends go to the store that took the half")
        if key not in self._keys:
            raise BadId("id: sealed with a key that is not here; was the key file replaced? Put the old key back as a further line")
        if not good:
            raise BadId("id: its seal is broken; use the id exactly as it was answered")
        return Place(shard, half_offset, group_no)


def _decode(text: str) -> bytes:
    if len(text) != ID_CHARACTERS or not text.isascii():
        raise BadId(f"id: not an id of ours ({ID_CHARACTERS} letters, digits, - and _); use it exactly as it was answered")
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Base64Error, ValueError):
        raw = b""
    if len(raw) != LAYOUT.size + SEAL_BYTES or urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
        raise BadId("id: not an id of ours; use it exactly as it was answered")
    return raw


def _seal(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")[:SEAL_BYTES]


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
