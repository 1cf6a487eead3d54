"""Handles: files of many queues under a bounded number of descriptors, read and written in place.

A store may have tens of thousands of topic queues; a process has a thousand descriptors, or a few thousand, and its clients need
most of them. The least recently used descriptor is closed when another is needed; the next use of its file opens it again.
That costs a few microseconds, so the bound is low. Nothing is mapped: a file may grow while another process reads it.

What was written is remembered by path until `flush`, which opens a file again where it has to: fdatasync(2) writes the file's
pages, whichever descriptor wrote them. If very many files are dirty, one syncfs(2) replaces one fdatasync(2) each.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from store.io import disk
from store.io.descriptors import descriptors_allowed

#: Up to this many dirty files and directories are flushed one by one.
ONE_BY_ONE_MAX: Final = 256


class Handles:
    """Descriptors by path, the most recently used last. Its methods may be called from many threads."""

    def __init__(self, *, writable: bool = False, descriptors_max: int | None = None) -> None:
        self.writable = writable
        self.descriptors_max = descriptors_max or descriptors_allowed()
        self._fds: OrderedDict[str, int] = OrderedDict()
        #: Held while a descriptor is in use: it must not be closed, and its number become another file's, meanwhile.
        self._lock = threading.Lock()
        self._dirty: set[str] = set()
        self._dirty_directories: set[str] = set()

    def __len__(self) -> int:
        return len(self._fds)

    def _fd(self, path: str) -> int:
        fd = self._fds.get(path)
        if fd is None:
            while len(self._fds) >= self.descriptors_max:
                os.close(self._fds.popitem(last=False)[1])
            fd = self._fds[path] = disk.open_file(path, self.writable)
        else:
            self._fds.move_to_end(path)
        return fd

    def read(self, path: str, size_bytes: int, at: int) -> bytes:
        """Bytes of a file; fewer where it ends before them."""
        with self._lock:
            fd = self._fd(path)
            try:
                return os.pread(fd, size_bytes, at)
            except OSError as error:
                raise disk.unusable(error, path) from error

    def size_bytes(self, path: str) -> int:
        with self._lock:
            return os.fstat(self._fd(path)).st_size

    # --- writing ------------------------------------------------------------------------------------------------------------
    def create(self, path: str, point: str) -> None:
        """An empty file, and the directories that lead to it. Their names are durable after the next `flush`."""
        self._make_directory(os.path.dirname(path))
        disk.create_empty(path, point)
        with self._lock:
            self._dirty.add(path)
            self._dirty_directories.add(os.path.dirname(path))

    def _make_directory(self, path: str) -> None:
        if os.path.isdir(path):
            return
        self._make_directory(os.path.dirname(path))
        with disk.step("directory.create", path):
            os.mkdir(path)
        with self._lock:
            self._dirty_directories.add(os.path.dirname(path))

    def write(self, path: str, data: bytes | bytearray | memoryview, at: int, point: str) -> None:
        with self._lock:
            self._dirty.add(path)
            disk.write(self._fd(path), data, at, point, path)

    def extend(self, path: str, size_bytes: int, point: str) -> None:
        """Give a file this size; what is new reads as zeros."""
        with self._lock:
            self._dirty.add(path)
            with disk.step(f"{point}.extend", path):
                os.ftruncate(self._fd(path), size_bytes)

    def doubt_name(self, directory: str, root: str) -> None:
        """Names from this directory up to `root` may not be durable: they were made by a process that died."""
        with self._lock:
            while directory.startswith(root) and directory not in self._dirty_directories:
                self._dirty_directories.add(directory)
                directory = os.path.dirname(directory)

    def forget(self, path: str) -> None:
        """The file is gone."""
        with self._lock:
            self._dirty.discard(path)
            fd = self._fds.pop(path, None)
            if fd is not None:
                os.close(fd)

    def forget_directory(self, path: str) -> None:
        """Writer: remove a directory that is empty."""
        with self._lock, disk.step("directory.remove", path):
            os.rmdir(path)
            self._dirty_directories.discard(path)

    def drop_removed(self) -> None:
        """Close files that another process has removed: they take room on the disk as long as they are open."""
        with self._lock:
            for path in [path for path, fd in self._fds.items() if not os.fstat(fd).st_nlink]:
                os.close(self._fds.pop(path))

    def flush(self, point: str, root: Path) -> None:
        """Make everything that was written durable, names included. `root` holds all the files."""
        with self._lock:
            if len(self._dirty) + len(self._dirty_directories) > ONE_BY_ONE_MAX:
                disk.flush_filesystem(root, point)
            else:
                for path in sorted(self._dirty):
                    disk.flush(self._fd(path), point, path)
                for directory in sorted(self._dirty_directories, reverse=True):
                    disk.flush_directory(directory, point)
            self._dirty.clear()
            self._dirty_directories.clear()

    def close(self) -> None:
        with self._lock:
            while self._fds:
                os.close(self._fds.popitem()[1])
