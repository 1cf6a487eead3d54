"""Backup and restore of a store, the backup while it runs.

Only truth is copied: redo log, commit log, dictionary, consumers, audit. What is derived is made anew by the restore. The redo log
is copied first and the commit log after it, so that the copy's cursor never lies beyond its log; a batch that was being written
then is cut by the recovery, as after a crash.

A backup is a directory with the same relative paths, zeros behind the content left out, and `backup.json`, written last:
    backup_format  1 · escrow_format · store_id · geometry
    log_end        everything acknowledged before it is in the copy
    positions      of the topic queues, as in edge.checkpoint: retention may have taken the ops that tell
    files          [path, size_bytes, bytes copied, CRC-32 of them]
"""

from __future__ import annotations

import os
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from store import disk
from store.directory import FORMAT_FILE, StoreDirectory
from store.edge import EdgeStore
from store.edge_recovery import CHECKPOINT
from store.errors import Corrupt, NotAStore, StoreUnusable
from store.job import JobStore
from store.progress import Progress, no_progress
from store.published import EDGE_MAGIC, EdgeSlot, PublishedPage

MANIFEST: Final = "backup.json"
BACKUP_FORMAT: Final = 1
_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)


def backup(path: Path, dest: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Copy a store, running or not, into a new or empty directory. What was copied."""
    directory = StoreDirectory(path)
    _require_empty(dest)
    disk.make_directory(dest)
    page = PublishedPage(path / "edge.published", EDGE_MAGIC) if (path / "edge.published").exists() else None
    files: list[tuple[str, int, int, int]] = []
    copier = _Copier(path, dest, progress, files)
    copier.segments(directory.redo_log(), directory.geometry.redo_segment_bytes, None)
    checkpoint = disk.read_json(path / CHECKPOINT) or {}
    log_end = page[EdgeSlot.LOG_END] if page is not None else int(checkpoint.get("log_end", 0))
    copier.segments(directory.commit_log, directory.geometry.commit_log_segment_bytes, log_end)
    for name in ("dictionary", "consumers", "audit"):
        copier.file(path / name, None)
    manifest = {
        "backup_format": BACKUP_FORMAT,
        "escrow_format": 1,
        "store_id": directory.store_id,
        "geometry": asdict(directory.geometry),
        "log_end": log_end,
        "positions": checkpoint.get("positions", []),
        "files": files,
    }
    copier.file(path / FORMAT_FILE, None)
    disk.write_json(dest / MANIFEST, manifest, "backup")
    return {"files": len(files), "bytes": sum(copied for _, _, copied, _ in files), "log_end": log_end}


def restore(source: Path, path: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Make a store from a backup in a new or empty directory: check, copy, recover, rebuild what is derived."""
    manifest = disk.read_json(source / MANIFEST)
    if manifest is None:
        raise NotAStore(f"{source}: no {MANIFEST}: not a backup, or one that was interrupted")
    _require_empty(path)
    disk.make_directory(path)
    files: list[tuple[str, int, int, int]] = []
    copier = _Copier(source, path, progress, files)
    # format.json makes it a store: it comes last, behind the checkpoint too, so that an interrupted restore is no store.
    for name, size_bytes, copied, crc in sorted(manifest["files"], key=lambda file: file[0] == FORMAT_FILE):
        if name == FORMAT_FILE:
            begin = min((int(Path(n).name) for n, *_ in manifest["files"] if n.startswith("commitlog/")), default=0)
            state = {"log_end": begin, "half_end": 0, "op_end": 0, "positions": manifest["positions"], "clean": False}
            disk.write_json(path / CHECKPOINT, state, CHECKPOINT)
        copier.file(source / name, size_bytes, whole=True)
        if not files or files[-1][0] != name or (copied, crc) != files[-1][2:]:
            raise Corrupt(source / name, 0, "differs from what backup.json says of it, or is missing: the backup is damaged")
    with EdgeStore(path, progress=progress) as edge, JobStore(path, progress=progress) as job:
        return {"halves": edge.half_end, "ops": edge.op_end, "pending": job.marker.pending, "settled_half": job.marker.half_cursor}


def _require_empty(path: Path) -> None:
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreUnusable(f"{path}: exists and is not an empty directory; choose a new one")
    except OSError as error:
        raise disk.unusable(error, path) from error


class _Copier:
    """Copies files, leaving out zeros, and notes what it copied."""

    def __init__(self, source: Path, dest: Path, progress: Progress, files: list[tuple[str, int, int, int]]) -> None:
        self._source, self._dest, self._progress, self._files = source, dest, progress, files
        self._done = 0

    def segments(self, directory: Path, segment_bytes: int, end: int | None) -> None:
        """All segments of a directory, oldest first; bytes from `end` on are not copied."""
        copied: list[Path] = []
        paths = [path for path in sorted(directory.iterdir() if directory.is_dir() else []) if path.name.isdecimal()]
        wanted = [path for path in paths if end is None or int(path.name) < end]
        for path in wanted:
            if self.file(path, segment_bytes, None if end is None else min(segment_bytes, end - int(path.name))):
                copied.append(path)
            else:  # retention takes from the front: what lies before it is gone, too, and its copies would leave a gap
                self._forget(copied)
                copied = []
        if wanted and not copied:
            raise StoreUnusable(f"{directory}: retention removed every file while it was copied; make the backup again")

    def _forget(self, paths: list[Path]) -> None:
        names = {path.relative_to(self._source).as_posix() for path in paths}
        for name in names:
            disk.remove(self._dest / name, "backup")
        self._files[:] = [file for file in self._files if file[0] not in names]

    def file(self, path: Path, size_bytes: int | None, limit: int | None = None, *, whole: bool = False) -> bool:
        """One file, which may be growing; False: it is gone by now (retention). `whole`: give the copy its full size and blocks."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk.unusable(error, path) from error
        try:
            self._copy(fd, path, size_bytes, limit, whole)
        finally:
            os.close(fd)
        return True

    def _copy(self, fd: int, path: Path, size_bytes: int | None, limit: int | None, whole: bool) -> None:
        name = path.relative_to(self._source).as_posix()
        target = self._dest / name
        disk.make_directory(target.parent)
        size = os.fstat(fd).st_size
        stop = size if limit is None else min(limit, size)
        copied = crc = 0
        with disk.step("backup.copy", target), target.open("wb") as out:
            for at in range(0, stop, _CHUNK):
                piece = os.pread(fd, min(_CHUNK, stop - at), at)
                if piece == _ZEROS[: len(piece)]:
                    continue
                out.seek(at)
                out.write(piece)
                copied, crc = at + len(piece), zlib.crc32(piece, zlib.crc32(at.to_bytes(8, "little"), crc))
            out.flush()
            if whole and size_bytes:
                # Its blocks too: a full disk must show now, not as a fault on a mapped page later.
                os.posix_fallocate(out.fileno(), 0, size_bytes)
            os.fsync(out.fileno())
        self._files.append((name, size if size_bytes is None else size_bytes, copied, crc))
        self._done += stop
        self._progress(self._done, self._done, f"copying {name}")
