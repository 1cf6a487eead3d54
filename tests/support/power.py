"""A disk that forgets: what a power failure leaves of a directory.

SIGKILL keeps the page cache, so it never shows a missing flush. `PowerDisk` does: while it is active it watches the system calls
that the store makes (through `os`, whoever calls them) and keeps for every file what has been flushed. A *crash image* is then a
directory as it could look after the power failed at this instant:

- a file holds its last flushed content; of what came since, any 512-byte sectors may be there or not (`Keep`). Writes through
  a mapping count as unflushed too: they are found by reading the file.
- names follow a journal: creating, renaming and removing become durable in the order in which they were done, at the latest when
  their directory is flushed; a crash keeps any beginning of what was not.
- after a flush that failed (`fail_sync`) the system counts the pages as clean: flushing again succeeds and writes nothing, until
  they are written again.

The files themselves are real and live in the watched directory. Every watched call is an instant at which `on_step` may take an
image, or raise `Killed` to stop the process there; `forget_process` then closes what it had open.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from store.io.segments import SegmentedFile, segment_name
from store.tables.dedup import Known, _Table

SECTOR = 512
_VOLATILE = (".lock", ".wake")
_CALLS = (
    *("open", "close", "pwrite", "write", "ftruncate", "posix_fallocate", "fsync", "fdatasync"),
    *("rename", "replace", "unlink", "remove", "mkdir", "rmdir"),
)


class Killed(BaseException):
    """The process ends here."""


class Keep(Enum):
    """Which of the unflushed sectors survive."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    SOME = "some"


@dataclass(eq=False, slots=True)
class _File:
    """One inode."""

    durable: bytes = b""
    #: Content when its last name went, for images in which the removal is not durable.
    last: bytes | None = None
    #: Sectors that a failed flush left clean but unwritten: number → content that was not written.
    stuck: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Change:
    """A change of names."""

    kind: str  # "create", "rename", "remove", "mkdir", "rmdir"
    path: str
    file: _File | None = None
    target: str = ""


class PowerDisk:
    """Watches one directory, from empty (or from what is in it, taken as durable)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = str(root)
        self._files: dict[str, _File] = {}
        self._durable_files: dict[str, _File] = {}
        self._durable_directories: set[str] = set()
        self._changes: list[_Change] = []
        self._open: set[int] = set()
        self._depth = 0
        self.steps = 0
        self.on_step: Callable[[str, str], None] = lambda _call, _path: None
        self._fail_sync: Callable[[str], bool] | None = None
        for path in sorted(root.rglob("*")) if root.exists() else []:
            if path.is_dir():
                self._durable_directories.add(str(path))
            else:
                self._files[str(path)] = _File(path.read_bytes())
        if root.exists():
            self._durable_directories.add(self._prefix)
        self._durable_files = dict(self._files)

    # --- watching ---------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def active(self) -> Iterator[PowerDisk]:
        """Watch all calls of this process until the block ends."""
        kept = {name: getattr(os, name) for name in _CALLS}
        self._real = kept
        mark_dirty, put_all = SegmentedFile.mark_dirty, _Table.put_all
        for name, call in kept.items():
            setattr(os, name, self._watch(name, call))
        setattr(SegmentedFile, "mark_dirty", self._watch_mapping(mark_dirty))  # noqa: B010
        setattr(_Table, "put_all", self._watch_dedup(put_all))  # noqa: B010
        try:
            yield self
        finally:
            setattr(SegmentedFile, "mark_dirty", mark_dirty)  # noqa: B010
            setattr(_Table, "put_all", put_all)  # noqa: B010
            for name, call in kept.items():
                setattr(os, name, call)

    def _watch_mapping(self, mark_dirty: Callable[[SegmentedFile, int], None]) -> Callable[[SegmentedFile, int], None]:
        """A store through a mapping makes its page dirty again, even if it changes nothing; nothing but this call shows it."""

        def watched(file: SegmentedFile, start: int) -> None:
            found = self._files.get(str(file.directory / segment_name(start)))
            if found is not None:
                found.stuck.clear()
            mark_dirty(file, start)

        return watched

    def _watch_dedup(self, put_all: Callable[..., None]) -> Callable[..., None]:
        """The same for a table of dedup keys, which is mapped as a whole."""

        def watched(table: _Table, keys: Mapping[bytes, Known]) -> None:
            found = self._files.get(str(table.path))
            if found is not None and keys:
                found.stuck.clear()
            put_all(table, keys)

        return watched

    def _watch(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        if name == "close":
            return self._on_close
        handler = getattr(self, f"_on_{'unlink' if name == 'remove' else 'rename' if name == 'replace' else name}")

        def watched(*args: Any, **kwargs: Any) -> Any:
            path = self._path(args[0], kwargs.get("dir_fd"))
            if self._depth or path is None or not self._within(path) or path.endswith(_VOLATILE):
                if name == "open" and path is not None and self._within(path):
                    return self._track(call(*args, **kwargs))
                return call(*args, **kwargs)
            if name != "open":
                self._step(name, path)
            self._depth += 1
            try:
                return handler(call, path, args, kwargs)
            finally:
                self._depth -= 1

        return watched

    def _within(self, path: str) -> bool:
        return path == self._prefix or path.startswith(self._prefix + os.sep)

    def _track(self, fd: int) -> int:
        self._open.add(fd)
        return fd

    def _step(self, call: str, path: str) -> None:
        self.steps += 1
        self.on_step(call, path)

    def _path(self, target: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(target, int):
            try:
                return os.readlink(f"/proc/self/fd/{target}")
            except OSError:
                return None
        path = os.fspath(target)
        if isinstance(path, bytes):
            path = path.decode()
        if dir_fd is not None:
            return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        return os.path.abspath(path)

    # --- calls ------------------------------------------------------------------------------------------------------------
    def _on_open(self, call: Any, path: str, args: Any, kwargs: Any) -> int:
        flags = args[1]
        fresh = bool(flags & os.O_CREAT) and not os.path.exists(path)
        fd: int = self._track(call(*args, **kwargs))
        if fresh:
            self._files[path] = _File()
            self._changes.append(_Change("create", path, self._files[path]))
        elif flags & os.O_TRUNC:
            self._files[path].stuck.clear()
        return fd

    def _on_close(self, fd: int) -> None:
        self._open.discard(fd)
        self._real["close"](fd)

    def _on_pwrite(self, call: Any, path: str, args: Any, _kwargs: Any) -> int:
        written: int = call(*args)
        file = self._files.get(path)
        if file is not None and file.stuck:
            for number in range(args[2] // SECTOR, (args[2] + written - 1) // SECTOR + 1):
                file.stuck.pop(number, None)
        return written

    def _on_write(self, call: Any, path: str, args: Any, kwargs: Any) -> Any:
        self._files[path].stuck.clear()
        return call(*args, **kwargs)

    _on_ftruncate = _on_posix_fallocate = _on_write

    def _on_fsync(self, call: Any, path: str, args: Any, _kwargs: Any) -> None:
        if os.path.isdir(path):
            self._names_durable(path)
        elif path in self._files:
            self._sync(path)
        call(*args)

    _on_fdatasync = _on_fsync

    def _sync(self, path: str) -> None:
        file, content = self._files[path], Path(path).read_bytes()
        if self._fail_sync is not None and self._fail_sync(path):
            self._fail_sync = None
            file.stuck.update(_differing(file.durable, content))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        still = {number: old for number, old in file.stuck.items() if _sector(content, number) == old}
        durable = bytearray(content)
        for number in still:
            at = number * SECTOR
            durable[at : at + SECTOR] = _sector(file.durable, number).ljust(len(durable[at : at + SECTOR]), b"\0")
        file.durable, file.stuck = bytes(durable), still

    def _names_durable(self, directory: str) -> None:
        concerned = [
            at for at, change in enumerate(self._changes) if directory in map(os.path.dirname, (change.path, change.target))
        ]
        if concerned:
            self._apply(self._changes[: concerned[-1] + 1], self._durable_files, self._durable_directories)
            del self._changes[: concerned[-1] + 1]

    def _on_rename(self, call: Any, path: str, args: Any, _kwargs: Any) -> None:
        target = self._path(args[1])
        assert target is not None
        self._remember(target)
        call(*args)
        file = self._files.pop(path)
        self._files[target] = file
        self._changes.append(_Change("rename", path, file, target))

    def _on_unlink(self, call: Any, path: str, args: Any, kwargs: Any) -> None:
        self._remember(path)
        call(*args, **kwargs)
        if self._files.pop(path, None) is not None:
            self._changes.append(_Change("remove", path))

    def _on_mkdir(self, call: Any, path: str, args: Any, kwargs: Any) -> None:
        call(*args, **kwargs)
        self._changes.append(_Change("mkdir", path))

    def _on_rmdir(self, call: Any, path: str, args: Any, kwargs: Any) -> None:
        call(*args, **kwargs)
        self._changes.append(_Change("rmdir", path))

    def _remember(self, path: str) -> None:
        if path in self._files:
            self._files[path].last = Path(path).read_bytes()

    # --- what a test does -------------------------------------------------------------------------------------------------
    def fail_sync(self, which: Callable[[str], bool]) -> None:
        """The next flush of such a file fails with EIO."""
        self._fail_sync = which

    def forget_process(self) -> None:
        """Close everything that the process had open here, as its end would."""
        gc.collect()
        for fd in sorted(self._open):
            with contextlib.suppress(OSError):
                self._real["close"](fd)
        self._open.clear()

    def image(self, target: Path, rng: Random, keep: Keep) -> None:
        """Make `target` what the directory would be after a power failure now."""
        self._depth += 1
        try:
            files, directories = dict(self._durable_files), set(self._durable_directories)
            kept = {Keep.NOTHING: 0, Keep.EVERYTHING: len(self._changes), Keep.SOME: rng.randint(0, len(self._changes))}[keep]
            self._apply(self._changes[:kept], files, directories)
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            for directory in sorted(directories):
                (target / os.path.relpath(directory, self._prefix)).mkdir(exist_ok=True, parents=True)
            places = {id(file): Path(path) for path, file in self._files.items()}
            for path, file in sorted(files.items()):
                content = _mix(file.durable, _current(file, places.get(id(file))), rng, keep)
                (target / os.path.relpath(path, self._prefix)).write_bytes(content)
        finally:
            self._depth -= 1

    @staticmethod
    def _apply(changes: list[_Change], files: dict[str, _File], directories: set[str]) -> None:
        for change in changes:
            if change.kind in ("remove", "rename"):
                files.pop(change.path, None)
            if change.kind in ("create", "rename"):
                assert change.file is not None
                files[change.target or change.path] = change.file
            elif change.kind == "mkdir":
                directories.add(change.path)
            elif change.kind == "rmdir":
                directories.discard(change.path)


def _current(file: _File, place: Path | None) -> bytes:
    if place is not None:
        return place.read_bytes()
    return file.durable if file.last is None else file.last


def _sector(content: bytes, number: int) -> bytes:
    return content[number * SECTOR : (number + 1) * SECTOR]


def _differing(durable: bytes, current: bytes) -> dict[int, bytes]:
    count = -(-len(current) // SECTOR)
    return {n: _sector(current, n) for n in range(count) if _sector(current, n) != _sector(durable, n)}


def _mix(durable: bytes, current: bytes, rng: Random, keep: Keep) -> bytes:
    if keep is Keep.NOTHING or durable == current:
        return durable
    if keep is Keep.EVERYTHING:
        return current
    size = rng.choice((len(durable), len(current)))
    mixed = bytearray(durable[:size].ljust(size, b"\0"))
    chance = rng.choice((0.1, 0.5, 0.9))
    for number, sector in _differing(durable, current).items():
        at = number * SECTOR
        if at < size and rng.random() < chance:
            mixed[at : at + SECTOR] = sector[: size - at].ljust(len(mixed[at : at + SECTOR]), b"\0")
    return bytes(mixed)
