"""All disk access of the store goes through here, so that one place can fail, tear and kill on purpose.

Every durable step has a name, `<file kind>.<step>` ("commitlog.write", "redo.flush", …), which is a *failpoint*: tests arm
it to die before the step (`kill`), after it (`kill-after`), in the middle of a write (`torn`) or to fail as the operating
system would
(`EIO`, `ENOSPC`, …). Disarmed, a failpoint costs one comparison. `ESCROW_FAILPOINT="redo.flush=kill@3"` arms the third
pass through that step in a child process, `=ENOSPC@0` every pass: a disk that stays full.

Writes go through pwrite(2) into preallocated files rather than through the mapping: a full or failing disk is then an
exception and not a SIGBUS. Reads go through the mapping; Linux keeps both coherent.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from store.errors import Corrupt, FlushFailed, NoRoom, StoreUnusable

FAILPOINT_VARIABLE: Final = "ESCROW_FAILPOINT"
#: Messages are for this user alone.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
TEMPORARY_SUFFIX: Final = ".new"
EVERY_PASS: Final = 0
#: `touch` works in pieces of this size.
TOUCH_BYTES: Final = 64 << 10
_libc: Final = ctypes.CDLL(None, use_errno=True)
_ZEROS: Final = bytes(1 << 20)

#: There may be room later.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_REMEDY: Final = {
    errno.ENOSPC: "the disk is full: free space there, or lower fileReservedTime",
    errno.EDQUOT: "the disk quota is used up: raise it or free space",
    errno.EROFS: "the file system is read-only: mount it writable or choose another directory",
    errno.EACCES: "permission denied: give this user read and write access to the directory and its files",
    errno.EPERM: "permission denied: give this user read and write access to the directory and its files",
    errno.EIO: "the device failed: look at the kernel log, replace the disk, restore the last backup",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine: raise fs.file-max",
}


class _Failpoints:
    """The armed failpoint of this process, and the names passed while recording."""

    def __init__(self) -> None:
        self.point: str | None = None
        self.action = ""
        self.countdown = 0
        self.passed: dict[str, int] | None = None
        armed = os.environ.get(FAILPOINT_VARIABLE)
        if armed:
            point, _, rest = armed.partition("=")
            action, _, nth = rest.partition("@")
            self.arm(point, action, int(nth or 1))

    def arm(self, point: str | None, action: str = "kill", nth: int = 1) -> None:
        self.point, self.action, self.countdown = point, action, nth

    def hit(self, point: str) -> str:
        """The action to take now at this point, "" for none."""
        if self.passed is not None:
            self.passed[point] = self.passed.get(point, 0) + 1
        if self.point != point:
            return ""
        if self.countdown == EVERY_PASS:
            return self.action
        self.countdown -= 1
        if self.countdown == 0:
            self.point = None
            return self.action
        return ""


_failpoints = _Failpoints()


def arm(point: str | None, action: str = "kill", nth: int = 1) -> None:
    """Arm the nth pass through a failpoint from now on, or EVERY_PASS; None disarms."""
    _failpoints.arm(point, action, nth)


@contextmanager
def recording() -> Iterator[dict[str, int]]:
    """Collect every failpoint passed, with its number of passes: how the crash tests learn what there is to kill at."""
    _failpoints.passed = {}
    try:
        yield _failpoints.passed
    finally:
        _failpoints.passed = None


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def failpoint(point: str) -> Iterator[None]:
    """A named step that is not a system call of its own (such as applying rows through a mapping)."""
    action = _failpoints.hit(point)
    if action == "kill":
        die()
    elif action and action != "kill-after":
        raise OSError(getattr(errno, action), os.strerror(getattr(errno, action)))
    yield
    if action == "kill-after":
        die()


@contextmanager
def step(point: str, path: Path | str) -> Iterator[str]:
    """A durable step: passes its failpoint and turns the system's refusal into an error that names the remedy."""
    action = _failpoints.hit(point)
    if action == "kill":
        die()
    try:
        if action and action not in ("torn", "kill-after"):
            raise OSError(getattr(errno, action), os.strerror(getattr(errno, action)))
        yield action
    except OSError as error:
        raise unusable(error, path) from error
    if action == "kill-after":
        die()


def unusable(error: OSError, path: Path | str) -> StoreUnusable:
    remedy = _REMEDY.get(error.errno or 0, "")
    kind = NoRoom if error.errno in NO_ROOM else StoreUnusable
    return kind(f"{path}: {error.strerror or error}" + (f" ({remedy})" if remedy else ""))


def write(fd: int, data: bytes | bytearray | memoryview, offset: int, point: str, path: Path | str) -> None:
    if _failpoints.point is None and _failpoints.passed is None:  # there may be very many small writes
        try:
            _write_all(fd, data, offset)
        except OSError as error:
            raise unusable(error, path) from error
        return
    with step(f"{point}.write", path) as action:
        if action == "torn":
            os.pwrite(fd, memoryview(data)[: len(data) // 2], offset)
            die()
        _write_all(fd, data, offset)


def _write_all(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    written = os.pwrite(fd, data, offset)
    while written < len(data):
        written += os.pwrite(fd, memoryview(data)[written:], offset + written)


def flush(fd: int, point: str, path: Path | str) -> None:
    """Make a file's content durable. After a failure the kernel may have dropped the dirty pages: never try again."""
    try:
        with step(f"{point}.flush", path):
            os.fdatasync(fd)
    except StoreUnusable as error:
        raise _flush_failed(error) from error


def _flush_failed(error: StoreUnusable) -> FlushFailed:
    return FlushFailed(f"{error}; reopen the store to find out what is durable")


class Flusher(Protocol):
    """Flushes in the background, while the caller goes on."""

    def begin(self, fd: int, done: Callable[[int], None]) -> bool:
        """Begin an fdatasync; `done` is told its errno, 0 if all is well. False where it cannot: nothing has happened then."""


def begin_flush(flusher: Flusher, fd: int, point: str, path: Path, done: Callable[[FlushFailed | None], None]) -> bool:
    """`flush`, begun: `done` is told how it ended. False where it must be waited for."""

    def through(code: int) -> None:
        done(_flush_failed(unusable(OSError(code, os.strerror(code)), path)) if code else None)

    try:
        with step(f"{point}.flush", path) as action:
            if action:  # it is to die behind the flush
                os.fdatasync(fd)
            return flusher.begin(fd, through)
    except StoreUnusable as error:
        raise _flush_failed(error) from error


def flush_directory(path: Path | str, point: str) -> None:
    with step(f"{point}.flush_directory", path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def flush_filesystem(path: Path, point: str) -> None:
    """Make everything durable that was written to the file system that holds `path`: one call for very many files."""
    try:
        with step(f"{point}.flush", path):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if _libc.syncfs(fd):
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code))
            finally:
                os.close(fd)
    except StoreUnusable as error:
        raise _flush_failed(error) from error


def make_directory(path: Path) -> None:
    """Create a directory and its parents, durably."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with step("directory.create", path):
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    flush_directory(path.parent, "directory")


def create_segment(path: Path, size_bytes: int, point: str) -> None:
    """Create a zeroed, fully allocated file under its name in one step: a reader never sees it short."""
    with step(f"{point}.create", path):
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            os.fsync(fd)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        temporary.rename(path)
    flush_directory(path.parent, point)


def create_empty(path: Path | str, point: str) -> None:
    """An empty file, which stays as it is where it is there already. Not durable before its directory is flushed."""
    with step(f"{point}.create", path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))


def cut(fd: int, keep_bytes: int, size_bytes: int, point: str, path: Path) -> None:
    """Zero everything behind keep_bytes, durably, and keep the file's size.

    Stale bytes behind a cut must go before anything new is written: a whole old frame there would be taken for a new one later.
    The file is never shorter meanwhile: the other process may open it at any moment.
    """
    with step(f"{point}.cut", path):
        os.posix_fallocate(fd, 0, size_bytes)
        for begin, end in _written(fd, keep_bytes, size_bytes):
            for start in range(begin, end, len(_ZEROS)):
                zeros = _ZEROS[: end - start]
                if os.pread(fd, len(zeros), start) != zeros:
                    _write_all(fd, zeros, start)
        os.fsync(fd)


def _written(fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of begin … end that were ever written to, as far as the file system knows, or that lie in its cache (`touch`): the
    rest is zero and is not read."""
    while begin < end:
        try:
            begin = os.lseek(fd, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole until the end
                return
            raise
        stop = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
        if begin < stop:
            yield begin, stop
        begin = stop


def remove(path: Path, point: str) -> None:
    with step(f"{point}.remove", path):
        path.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, point: str) -> None:
    """Replace a small file as a whole: the old content or the new, never a mixture."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with step(f"{point}.replace", path) as action:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            if action == "torn":
                os.write(fd, content[: len(content) // 2])
                die()
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(fd, rest) :]  # a nearly full disk may take less than it is given
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
    flush_directory(path.parent, point)


def write_json(path: Path, value: dict[str, Any], point: str) -> None:
    """A small file of one JSON object and its CRC on a line of its own, replaced as a whole."""
    text = json.dumps(value, sort_keys=True).encode()
    replace_file(path, text + b"\n%08x\n" % zlib.crc32(text), point)


def read_json(path: Path, keys: Collection[str] = ()) -> dict[str, Any] | None:
    """What `write_json` wrote; None where there is no such file; Corrupt where it fails its CRC, or lacks one of the keys: another
    file was put in its place."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unusable(error, path) from error
    text, _, crc = content.partition(b"\n")
    if crc.strip() != b"%08x" % zlib.crc32(text):
        raise Corrupt(path, 0, "the CRC on its second line does not match its first line")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Corrupt(path, 0, f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Corrupt(path, 0, "not a JSON object")
    if lacking := sorted(set(keys) - set(value)):
        raise Corrupt(path, 0, f"has no {lacking[0]}: another file was put in its place")
    return value


def open_file(path: Path | str, writable: bool) -> int:
    try:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        raise unusable(error, path) from error


def map_file(fd: int, size_bytes: int, writable: bool, path: Path) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size_bytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise StoreUnusable(f"{path}: cannot be mapped ({error})") from error


def touch(fd: int, offset: int, size_bytes: int, path: Path) -> int:
    """Have these bytes in the system's memory, as many as are there; how many. One call, during which other threads run."""
    # All is read into the same place, which stays in the processor's cache.
    piece = bytearray(TOUCH_BYTES)
    try:
        return os.preadv(fd, [piece] * (size_bytes // TOUCH_BYTES), offset)
    except OSError as error:
        raise unusable(error, path) from error


def close_file(fd: int) -> None:
    os.close(fd)
