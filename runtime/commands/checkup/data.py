"""The data directory: rights, file system, space, flush time; and the store in it."""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from runtime.commands.checkup.finding import Finding, Level, free_bytes, size_text, user_name
from runtime.settings import Settings

#: Slower flushes make every acknowledgement slow. An SSD, or a disk with a protected write cache, takes 0.1 to 5 ms.
FLUSH_SLOW_MS: Final = 20.0
FLUSHES: Final = 15
SPACE_BESIDE_BYTES: Final = 256 << 20
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
_REMOTE: Final = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "afs")


def check_data_directory(settings: Settings) -> Iterator[Finding]:
    place = settings.data_dir
    there = place
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        flush_ms = _flush_ms(there)
    except OSError as error:
        yield Finding(
            Level.FAIL,
            "data directory",
            f"{there}: {error.strerror}",
            f"make it and give it to this user: chown {user_name()} {place}",
        )
        return
    note = "" if there == place else f" (will be made in {there})"
    yield Finding(Level.OK, "data directory", f"{place}: writable{note}")
    yield _file_system(place, there)
    yield _space(settings, there)
    if flush_ms > FLUSH_SLOW_MS:
        says = f"{flush_ms:.1f} ms for a flush of 4 KiB (median of {FLUSHES}): every acknowledgement waits for one"
        yield Finding(
            Level.WARN,
            "flush",
            says,
            "use a local SSD, or a controller with a protected cache; look for other writers (iostat -x 1)",
        )
    else:
        yield Finding(Level.OK, "flush", f"{flush_ms:.2f} ms for 4 KiB (median of {FLUSHES})")


def _flush_ms(directory: Path) -> float:
    """The median time of a write with fdatasync, in a file that is removed again."""
    took = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(FLUSHES):
            begun_s = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun_s) * 1000)
    return statistics.median(took)


def _file_system(place: Path, there: Path) -> Finding:
    kind, options = mount_of(there)
    if kind in _VOLATILE:
        return Finding(Level.WARN, "file system", f"{kind}: the data is gone after a reboot", "put dataDir on a disk")
    if kind.startswith(_REMOTE):
        return Finding(
            Level.WARN,
            "file system",
            f"{kind}: flushes and locks over a network may be unreliable",
            "use a local disk",
        )
    if kind == "overlay":
        return Finding(
            Level.WARN, "file system", "overlay: the data is gone with this container", "mount a volume and put dataDir on it"
        )
    if "noexec" in options:
        says = f"{place} is mounted noexec: Java cannot load its native libraries from there"
        return Finding(Level.WARN, "file system", says, "mount it without noexec, or put dataDir elsewhere")
    return Finding(Level.OK, "file system", kind or "unknown")


def mount_of(path: Path) -> tuple[str, str]:
    """(kind, options) of the file system that a path lies on; empty if unknown."""
    best, found = -1, ("", "")
    with suppress(OSError):
        real = str(path.resolve())
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            words, _, behind = line.partition(" - ")
            point = words.split()[4].replace("\\040", " ")
            if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= best:
                best, found = len(point), (behind.split()[0], words.split()[5])
    return found


def _space(settings: Settings, there: Path) -> Finding:
    """Files are made full-size: the next one of each kind must fit."""
    free = free_bytes(there)
    needed = settings.commit_log_segment_bytes + settings.state_table_file_bytes + settings.redo_log_file_bytes + SPACE_BESIDE_BYTES
    says = f"{size_text(free)} free; the next files may take {size_text(needed)}"
    if free < needed:
        return Finding(Level.FAIL, "disk space", says, "make room, or lower commitLogSegmentSize before the store is made")
    level = Level.WARN if free < 3 * needed else Level.OK
    return Finding(level, "disk space", says, "make room before it runs out: a full disk refuses halves")


def check_store(settings: Settings) -> Iterator[Finding]:
    if importlib.util.find_spec("numpy") is None or not settings.store_dir.exists():
        return
    from store.directory import Geometry, StoreDirectory
    from store.errors import GeometryMismatch, StoreError

    try:
        directory = StoreDirectory(settings.store_dir, Geometry(**settings.geometry_values()))
    except GeometryMismatch as error:
        yield Finding(Level.FAIL, "store", str(error), "set the sizes back to what the store was made with")
    except StoreError as error:
        yield Finding(Level.FAIL, "store", str(error), f"escrow store verify {settings.store_dir}")
    except OSError as error:
        yield Finding(
            Level.FAIL,
            "store",
            f"{error.filename}: {error.strerror}",
            f"give it to this user: chown -R {user_name()} {settings.data_dir}",
        )
    else:
        yield Finding(Level.OK, "store", f"{settings.store_dir}: store {directory.store_id} (escrow store verify looks deeper)")
