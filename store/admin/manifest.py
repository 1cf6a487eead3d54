"""The manifest of a backup, `backup.json`: what was copied, and what the store knew besides.

    backup_format  1 · escrow_format · store_id · geometry
    log_end        everything acknowledged before it is in the copy
    half_end, op_end   numbers of the next half and op at log_end: retention may have taken every frame that tells
    half_begin     ids of halves before it are gone
    positions      [queue key, next queue_offset] of the topic queues, for the same reason
    files          [path, size_bytes, bytes copied, CRC-32 of them]

Earlier releases wrote no half_end, op_end and half_begin. A manifest comes from a disk that may be anybody's: nothing is
written, and no file is opened, before every part of it has been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from store.directory import FORMAT_FILE, FORMAT_VERSION, REDO_TOPIC, Geometry
from store.errors import Corrupt, FormatTooNew, NotAStore
from store.incarnations import INCARNATIONS
from store.io import disk
from store.io.segments import NAME_DIGITS
from store.records import QUEUE_ID_BITS, QUEUE_OFFSET_MASK
from store.tables.journals.names import TOPICS_MAX

MANIFEST: Final = "backup.json"
BACKUP_FORMAT: Final = 1
#: Files that are copied whole. Each may be missing but the first.
SINGLE_FILES: Final = (FORMAT_FILE, "dictionary", "consumers", "audit", "job.checkpoint", INCARNATIONS)
LOG_DIRECTORY: Final = "commitlog"
REDO_DIRECTORY: Final = f"transaction/redolog/{REDO_TOPIC}/0"
_NUMBER_MAX: Final = (1 << 63) - 1


class CopiedFile(NamedTuple):
    """One file of a backup. `size_bytes` is that of the original; zeros behind `copied_bytes` were left out."""

    name: str
    size_bytes: int
    copied_bytes: int
    crc: int


@dataclass(slots=True)
class Manifest:
    """`half_end` and `op_end` are None in manifests of earlier releases."""

    store_id: str
    geometry: Geometry
    log_end: int
    positions: list[tuple[int, int]]
    files: list[CopiedFile]
    half_end: int | None = None
    op_end: int | None = None
    half_begin: int = 0
    format: int = 1
    #: Set by `read`, for error messages.
    path: Path = field(default_factory=Path)

    def write(self, dest: Path) -> None:
        """Written last: a directory without it is not a backup."""
        state = {
            "backup_format": BACKUP_FORMAT,
            "escrow_format": self.format,
            "store_id": self.store_id,
            "geometry": asdict(self.geometry),
            "log_end": self.log_end,
            "half_end": self.half_end,
            "op_end": self.op_end,
            "half_begin": self.half_begin,
            "positions": self.positions,
            "files": self.files,
        }
        disk.write_json(dest / MANIFEST, state, "backup")

    @property
    def log_begin(self) -> int:
        return min((int(name) for name in self._names(LOG_DIRECTORY)), default=0)

    def _names(self, directory: str) -> list[str]:
        return sorted(PurePosixPath(each.name).name for each in self.files if each.name.startswith(directory + "/"))

    @staticmethod
    def read(source: Path) -> Manifest:
        """What `write` wrote, checked; NotAStore, FormatTooNew or Corrupt says what is wrong with it."""
        path = source / MANIFEST
        state = disk.read_json(path)
        if state is None:
            raise NotAStore(f"{source}: no {MANIFEST}: not a backup, or one that was interrupted")
        return _Parser(path, state).manifest()


class _Parser:
    def __init__(self, path: Path, state: dict[str, Any]) -> None:
        self._path, self._state = path, state

    def manifest(self) -> Manifest:
        for name, known in (("backup_format", BACKUP_FORMAT), ("escrow_format", FORMAT_VERSION)):
            if self._number(name) > known:
                raise FormatTooNew(f"{self._path}: {name} {self._state[name]}, this release knows up to {known}; use a later one")
        geometry = self._geometry()
        files = [self._file(entry) for entry in self._list("files")]
        found = Manifest(
            self._store_id(), geometry, self._number("log_end"), self._positions(), files, self._optional("half_end"),
            self._optional("op_end"), self._optional("half_begin") or 0, self._number("escrow_format"),
            self._path,
        )  # fmt: skip
        if found.half_end is not None and found.half_begin > found.half_end:
            raise self._wrong(f"half_begin is {found.half_begin}, behind the last half {found.half_end}")
        self._check_names(found)
        for directory, size_bytes in (
            (LOG_DIRECTORY, geometry.commit_log_segment_bytes),
            (REDO_DIRECTORY, geometry.redo_segment_bytes),
        ):
            self._check_segments(found, directory, size_bytes)
        return found

    def _wrong(self, what: str) -> Corrupt:
        return Corrupt(self._path, 0, f"{what}: the backup is damaged, or was not written by escrow store backup")

    def _number(self, name: str) -> int:
        return self._whole(self._state.get(name), name)

    def _optional(self, name: str) -> int | None:
        return None if self._state.get(name) is None else self._number(name)

    def _whole(self, value: object, what: str) -> int:
        if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
            raise self._wrong(f"{what} is {_short(value)}, not a whole number from 0 on")
        return value

    def _list(self, name: str) -> list[Any]:
        value = self._state.get(name)
        if not isinstance(value, list):
            raise self._wrong(f"{name} is {_short(value)}, not a list")
        return value

    def _geometry(self) -> Geometry:
        given = self._state.get("geometry")
        try:
            if not isinstance(given, dict) or not all(type(value) is int for value in given.values()):
                raise ValueError("not five whole numbers")
            return Geometry(**given)
        except (ValueError, TypeError) as error:
            raise self._wrong(f"geometry is {_short(given)} ({error})") from error

    def _store_id(self) -> str:
        value = self._state.get("store_id")
        if not isinstance(value, str) or len(value) != 16 or not set(value) <= set("0123456789abcdef"):
            raise self._wrong(f"store_id is {_short(value)}, not 16 hexadecimal digits")
        return value

    def _positions(self) -> list[tuple[int, int]]:
        found = []
        for entry in self._list("positions"):
            if not isinstance(entry, list) or len(entry) != 2:
                raise self._wrong(f"positions holds {_short(entry)}, not [queue key, queue_offset]")
            key, following = self._whole(entry[0], "a queue key"), self._whole(entry[1], "a queue_offset")
            if not is_place(key, following):
                raise self._wrong(f"positions holds {_short(entry)}, which no queue has")
            found.append((key, following))
        return found

    def _file(self, entry: object) -> CopiedFile:
        if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[0], str):
            raise self._wrong(f"files holds {_short(entry)}, not [path, size_bytes, bytes copied, CRC]")
        name = entry[0]
        size_bytes, copied_bytes, crc = (self._whole(value, f"a number of {_short(name)}") for value in entry[1:])
        if copied_bytes > size_bytes:
            raise self._wrong(f"{_short(name)} has {copied_bytes} of {size_bytes} bytes")
        return CopiedFile(name, size_bytes, copied_bytes, crc)

    def _check_names(self, found: Manifest) -> None:
        """Only names that a backup writes: never a path that leads elsewhere."""
        names = [each.name for each in found.files]
        allowed: list[Callable[[str], bool]] = [
            SINGLE_FILES.__contains__,
            lambda name: _is_segment(name, LOG_DIRECTORY),
            lambda name: _is_segment(name, REDO_DIRECTORY),
        ]
        for name in names:
            if not any(test(name) for test in allowed):
                raise self._wrong(f"files names {_short(name)}, which no backup holds")
        if len(set(names)) != len(names) or FORMAT_FILE not in names:
            raise self._wrong(f"files names a file twice, or lacks {FORMAT_FILE}")

    def _check_segments(self, found: Manifest, directory: str, size_bytes: int) -> None:
        prefix = directory + "/"
        starts = sorted(int(name.removeprefix(prefix)) for name in _under(found.files, prefix))
        if any(each.size_bytes != size_bytes for each in found.files if each.name.startswith(prefix)):
            raise self._wrong(f"a file of {directory} has not the {size_bytes} bytes that the geometry gives")
        if any(start != starts[0] + number * size_bytes for number, start in enumerate(starts)) or (
            starts and starts[0] % size_bytes
        ):
            raise self._wrong(f"the files of {directory} are not consecutive")
        if directory == LOG_DIRECTORY and found.log_end > (starts[-1] + size_bytes if starts else 0):
            raise self._wrong(f"log_end is {found.log_end}, behind the last file of {directory}")


def is_place(queue_key: int, queue_offset: int) -> bool:
    """Whether a topic's queue can reach so far."""
    return 0 <= queue_key < TOPICS_MAX << QUEUE_ID_BITS and 0 <= queue_offset <= QUEUE_OFFSET_MASK


def _under(files: Iterable[CopiedFile], prefix: str) -> list[str]:
    return [each.name for each in files if each.name.startswith(prefix)]


def _is_segment(name: str, directory: str) -> bool:
    rest = name.removeprefix(directory + "/")
    return rest != name and len(rest) == NAME_DIGITS and rest.isascii() and rest.isdecimal()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
