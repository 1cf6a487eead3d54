"""The directory of a store: format, geometry, paths and locks.

    format.json                  format version, store id, geometry, what a reader must know, CRC of these
    edge.lock  job.lock          held (flock) by the writer of each side
    edge.published  job.published  see pages.py
    edge.checkpoint  job.checkpoint  see edge/checkpoint.py, job/checkpoint.py
    dictionary  consumers  audit journals
    incarnations                 see incarnations.py; only in a restored store
    presence  checks.cursor  dedup/  names/
    commitlog/                   see commit_log.py
    half/0/  op/0/               queues over it
    ends/0/                      see ends.py
    transaction/CURRENT          name of the generation in force, switched by rename
    transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0/
    transaction/generation-000001/
        statetable/0/  topics/<topic_no>/<queue_id>/  check/  proposal/  discard/  quarantine/  catalogue/

`0` is the shard: one for each half queue.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from store.errors import Corrupt, FormatTooNew, GeometryMismatch, NotAStore, StoreLocked
from store.incarnations import new_store_id
from store.io import disk
from store.records import ENTRY, ROW

#: The highest format that this release reads. A store is made in format 1; one that needs a feature is of format 2.
FORMAT_VERSION: Final = 2
#: Removed topics, and numbers that other names got: the dictionary has REMOVED records and editions, `consumers` has editions.
TOPIC_REMOVAL: Final = "topic-removal"
#: Transactions of many messages, joint ends and named transactions: flags of halves, items of ops, MEMBER rows, `names/`.
TRANSACTIONS: Final = "transactions"
#: What this release knows of what a format 2 store may need.
FEATURES: Final = frozenset({TOPIC_REMOVAL, TRANSACTIONS})
FORMAT_FILE: Final = "format.json"
EDGE_CHECKPOINT: Final = "edge.checkpoint"
JOB_CHECKPOINT: Final = "job.checkpoint"
REDO_TOPIC: Final = "TRANSACTION_REDOLOG_TOPIC_XXXX"
SEGMENT_MIN_BYTES: Final = 64 * 1024
_GENERATION: Final = re.compile(rb"generation-([0-9]{6,})")
_TOLERATED: Final = {"lost+found"}


@dataclass(frozen=True, slots=True)
class Geometry:
    """File sizes, fixed when the store is made. RocketMQ 3.x's where it has them."""

    commit_log_segment_bytes: int = 1 << 30
    state_rows_per_file: int = 2_000_000
    redo_entries_per_file: int = 2_000_000
    log_queue_entries_per_file: int = 1_000_000
    topic_queue_entries_per_file: int = 65_536

    def __post_init__(self) -> None:
        if not SEGMENT_MIN_BYTES <= self.commit_log_segment_bytes <= 1 << 34:
            raise ValueError(f"commit_log_segment_bytes: {self.commit_log_segment_bytes} is not between 64 KiB and 16 GiB")
        for name in (
            "state_rows_per_file",
            "redo_entries_per_file",
            "log_queue_entries_per_file",
            "topic_queue_entries_per_file",
        ):
            if getattr(self, name) < 64:
                raise ValueError(f"{name}: {getattr(self, name)} is less than 64")

    @property
    def state_segment_bytes(self) -> int:
        return self.state_rows_per_file * ROW.itemsize

    @property
    def redo_segment_bytes(self) -> int:
        return self.redo_entries_per_file * ENTRY.itemsize


class StoreDirectory:
    """Opens or makes the directory and knows the path of everything in it."""

    def __init__(self, root: Path, geometry: Geometry | None = None, *, create: bool = False) -> None:
        self.root = root
        found = self._read_format()
        if found is None:
            if not create:
                raise NotAStore(f"{root}: no {FORMAT_FILE}: not an Escrow store")
            found = self._make(geometry or Geometry())
        self.store_id: str = found["store_id"]
        self.format: int = found["escrow_format"]
        self.needs = frozenset[str](found.get("needs", ()))
        self.geometry = Geometry(**found["geometry"])
        if geometry is not None and geometry != self.geometry:
            raise GeometryMismatch(self._mismatch(geometry))

    def _read_format(self) -> dict[str, Any] | None:
        path = self.root / FORMAT_FILE
        try:
            read = json.loads(path.read_bytes())
            found: dict[str, Any] = read if isinstance(read, dict) else {}
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk.unusable(error, path) from error
        except ValueError as error:
            raise NotAStore(f"{path}: not readable as the format file of an Escrow store ({error})") from error
        if not isinstance(found.get("escrow_format"), int):
            raise NotAStore(f"{path}: has no escrow_format: not an Escrow store")
        if found["escrow_format"] > FORMAT_VERSION:
            raise FormatTooNew(
                f"{self.root}: format {found['escrow_format']}, this release knows up to {FORMAT_VERSION}; use the release "
                "that wrote it, or a later one"
            )
        if found.get("crc") != format_crc(found):
            raise Corrupt(path, 0, "its crc does not match the rest of it: restore it, for example from a backup")
        if unknown := sorted(set(found.get("needs", ())) - FEATURES):
            raise FormatTooNew(
                f"{self.root}: needs {', '.join(unknown)}, which this release does not know; use the release that wrote it, or a "
                "later one"
            )
        return found

    def require(self, feature: str) -> None:
        """Require readers of this store to know a feature. Durable on return: call it before writing the first record that another
        release would misread."""
        if feature not in self.needs:
            found = write_format(self.root, self.store_id, self.geometry, self.needs | {feature})
            self.format, self.needs = found["escrow_format"], frozenset(found["needs"])

    def _make(self, geometry: Geometry) -> dict[str, Any]:
        disk.make_directory(self.root)
        with Lock(self.root / "make.lock", "the maker of this store", wait=True):
            found = self._read_format()
            if found is not None:
                return found
            foreign = sorted(set(os.listdir(self.root)) - _TOLERATED - {"make.lock", FORMAT_FILE + disk.TEMPORARY_SUFFIX})
            if foreign:
                raise NotAStore(f"{self.root}: is not empty ({foreign[0]}, …) and not an Escrow store; choose an empty directory")
            return write_format(self.root, new_store_id(), geometry)

    def _mismatch(self, asked: Geometry) -> str:
        mine, theirs = asdict(self.geometry), asdict(asked)
        differs = [f"{name} is {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]
        return f"{self.root}: {'; '.join(differs)}: file sizes are fixed when a store is made; keep them or make a new store"

    # --- paths ---
    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    def half_queue(self, shard: int = 0) -> Path:
        return self.root / "half" / str(shard)

    def op_queue(self, shard: int = 0) -> Path:
        return self.root / "op" / str(shard)

    def ends(self, shard: int = 0) -> Path:
        return self.root / "ends" / str(shard)

    def redo_log(self, shard: int = 0) -> Path:
        return self.root / "transaction" / "redolog" / REDO_TOPIC / str(shard)

    @property
    def transaction(self) -> Path:
        return self.root / "transaction"

    def generation(self, number: int) -> Path:
        return self.transaction / f"generation-{number:06d}"

    def current_generation(self) -> int | None:
        """The generation in force; None before the first. Corrupt where CURRENT does not name one."""
        path = self.transaction / "CURRENT"
        try:
            found = _GENERATION.fullmatch(path.read_bytes().rstrip(b"\n"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk.unusable(error, path) from error
        if found is None:
            raise Corrupt(path, 0, "does not name a generation: the settling job makes a new one from the redo log when it starts")
        return int(found[1])

    def generations(self) -> list[int]:
        """Numbers of the generations whose directories are there."""
        try:
            names = os.listdir(self.transaction)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise disk.unusable(error, self.transaction) from error
        return sorted(int(found[1]) for name in names if (found := _GENERATION.fullmatch(name.encode())))

    def likely_generation(self) -> int | None:
        """The generation in force; the newest one if CURRENT does not name one; None if there are none."""
        there = self.generations()
        with contextlib.suppress(Corrupt):
            named = self.current_generation()
            if named in there:
                return named
        return there[-1] if there else None

    def switch_generation(self, number: int) -> None:
        disk.replace_file(self.transaction / "CURRENT", self.generation(number).name.encode() + b"\n", "current")


def write_format(root: Path, store_id: str, geometry: Geometry, needs: Iterable[str] = ()) -> dict[str, Any]:
    """Make a directory a store, or one that needs more, in one step."""
    made = format_of(store_id, geometry, needs)
    disk.replace_file(root / FORMAT_FILE, json.dumps(made, indent=2).encode() + b"\n", "format")
    return made


def format_of(store_id: str, geometry: Geometry, needs: Iterable[str] = ()) -> dict[str, Any]:
    """The content of format.json. A store that needs nothing is of format 1, which every release reads."""
    made: dict[str, Any] = {"escrow_format": 1, "store_id": store_id, "geometry": asdict(geometry)}
    if features := sorted(needs):
        made |= {"escrow_format": 2, "needs": features}
    made["crc"] = format_crc(made)
    return made


def format_crc(found: dict[str, Any]) -> str:
    """CRC-32 of all of format.json but `crc` itself: as JSON with sorted keys and one blank behind each comma and colon."""
    rest = {name: value for name, value in found.items() if name != "crc"}
    return f"{zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"


class Lock:
    """An exclusive lock on a file, with the holder's pid in it. Released by the system when its process ends."""

    def __init__(self, path: Path, what: str, *, wait: bool = False) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, disk.FILE_MODE)
        except OSError as error:
            raise disk.unusable(error, path) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLocked(f"{path}: process {holder} is {what}; stop it first, or use another directory") from None
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except OSError as error:
            os.close(self._fd)
            raise disk.unusable(error, path) from error

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
