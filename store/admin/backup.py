"""Backup and restore of a store, the backup while it runs.

Only truth is copied: redo log, consumers, commit log, dictionary, audit; and from the job's checkpoint how far topic queues reach.
The restore rebuilds what is derived. The order makes the copy of a running store consistent:

    1  the job's checkpoint and the redo log, so that no cursor lies beyond the log
    2  consumers, so that no group has read beyond it
    3  the ends that the edge has published, then the commit log: it reaches at least that far
    4  names and audit, which are durable before the frames that use them

A backup is a directory with the same relative paths, zeros behind the content left out, and a manifest (see `manifest.py`), written
last. A batch that was being written is cut by the recovery, as after a crash. A restored store recovers exactly as one whose
process was killed: its manifest says how far the log was durable, damage before that is walked around, never cut.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from store.admin.manifest import MANIFEST, REDO_DIRECTORY, CopiedFile, Manifest, is_place
from store.directory import EDGE_CHECKPOINT, FORMAT_FILE, JOB_CHECKPOINT, StoreDirectory, write_format
from store.edge.recovery.journal_heads import CHECKPOINT_KEYS
from store.edge.recovery.recover import settled_ends
from store.edge.store import EdgeStore
from store.errors import Corrupt, StoreUnusable
from store.incarnations import INCARNATIONS, Lineage
from store.io import disk
from store.io.file_crcs import FileCrcs
from store.io.pages import EDGE_MAGIC, EDGE_PUBLISHED, PAGE_BYTES, EdgeSlot, PublishedPage
from store.io.segments import list_segments
from store.job.checkpoint import read_checkpoint
from store.job.store import JobStore
from store.progress import Progress, no_progress
from store.tables.dedup import EVERY_KEY_S
from store.tables.journals import names as dictionary
from store.tables.journals.consumers import Consumers
from store.tables.journals.names import Dictionary

__all__ = ["MANIFEST", "backup", "restore"]

_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)


def backup(path: Path, dest: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Copy a store, running or not, into a new or empty directory. Returns what was copied."""
    directory = StoreDirectory(path)
    _require_empty(dest)
    disk.make_directory(dest)
    files: list[CopiedFile] = []
    copier = _Copier(path, dest, progress, files)
    editions = _editions(path)
    # 1
    copier.file(path / JOB_CHECKPOINT, None)
    copier.segments(directory.redo_log(), directory.geometry.redo_segment_bytes)
    # 2
    copier.file(path / "consumers", None)
    # 3
    noted = _Noted(directory)
    copier.segments(directory.commit_log, directory.geometry.commit_log_segment_bytes, noted.copied_end)
    # 4
    for name in ("dictionary", "audit", INCARNATIONS, FORMAT_FILE):
        copier.file(path / name, None)
    _refuse_if_reused(path, editions, _editions(dest))
    manifest = Manifest(
        directory.store_id, directory.geometry, noted.log_end, sorted(noted.positions.items()), files, noted.half_end,
        noted.op_end, noted.half_begin, StoreDirectory(dest).format,
    )  # fmt: skip
    manifest.write(dest)
    return {"files": len(files), "bytes": sum(each.copied_bytes for each in files), "log_end": noted.log_end}


def _editions(root: Path) -> list[int]:
    names = Dictionary(root / dictionary.NAME)
    names.close()
    return names.editions


def _refuse_if_reused(path: Path, before: list[int], after: list[int]) -> None:
    """The log was copied before the dictionary: it may have frames of a topic whose number has another name by now."""
    if before != after[: len(before)]:
        raise StoreUnusable(f"{path}: a topic got the number of a removed one while the store was copied; make the backup again")


class _Noted:
    """What the edge's page and checkpoint say: whichever knows more, since a power failure may have set the page back."""

    def __init__(self, directory: StoreDirectory) -> None:
        root = directory.root
        try:
            checkpoint = disk.read_json(root / EDGE_CHECKPOINT, CHECKPOINT_KEYS) or {}
        except Corrupt:  # the restore finds it all in the log, as the edge would
            checkpoint = {}
        page = PublishedPage(root / EDGE_PUBLISHED, EDGE_MAGIC) if (root / EDGE_PUBLISHED).exists() else None

        def larger(name: str, slot: int) -> int:
            return max(int(checkpoint.get(name, 0)), 0 if page is None else page[slot])

        # Ops before halves before the log: what these ends cover lies before log_end.
        self.op_end = larger("op_end", EdgeSlot.OP_END)
        self.half_end = larger("half_end", EdgeSlot.HALF_END)
        self.log_end = larger("log_end", EdgeSlot.LOG_END)
        half_begin = larger("half_begin", EdgeSlot.HALF_BEGIN)
        self.half_begin = half_begin if half_begin <= self.half_end else 0  # a damaged page; the edge ignores it, too
        #: Behind log_end there may be batches that a dead process wrote and perhaps acknowledged: recovery judges them.
        self.copied_end = self.log_end if checkpoint.get("clean") else None
        self.positions = {int(key): int(following) for key, following in checkpoint.get("positions", [])}
        for key, end in settled_ends(directory).items():
            # A higher end comes from a damaged catalogue: an op gives one place.
            if is_place(key, end) and end <= self.positions.get(key, 0) + self.op_end:
                self.positions[key] = max(self.positions.get(key, 0), end)


def restore(source: Path, path: Path, progress: Progress = no_progress) -> dict[str, Any]:
    """Make a store from a backup in a new or empty directory: check, copy, recover, rebuild what is derived.

    It is a new incarnation (see `incarnations.py`): numbers behind the backup are given again, ids are not."""
    manifest = Manifest.read(source)
    needs = _check_format(source, manifest)
    _require_empty(path)
    disk.make_directory(path)
    copier = _Copier(source, path, progress, [])
    for each in manifest.files:
        if each.name != FORMAT_FILE:
            copier.checked(each)
    _note_ends(path, manifest)
    _forget_removed(path, manifest)
    lineage = Lineage.read(path, manifest.store_id).restored(path)
    # format.json makes the directory a store. It comes last, so that an interrupted restore leaves no store.
    write_format(path, lineage.store_id, manifest.geometry, needs)
    # The edge's windows are not known here: keep every dedup key, and every name.
    store = EdgeStore(path, dedup_window_s=EVERY_KEY_S, name_window_s=EVERY_KEY_S, progress=progress)
    with store as edge, JobStore(path, progress=progress) as job:
        # Only now: rows before it are no longer made, but messages may lie there that can still be read.
        edge.drop_halves_before(manifest.half_begin)
        _clip_consumers(path, edge.next_offset)
        return {
            "store_id": edge.directory.store_id,
            "halves": edge.half_end,
            "ops": edge.op_end,
            "pending": job.marker.pending,
            "settled_half": job.marker.half_cursor,
            "damaged_places": len(edge.recovery.damage),
        }


def _check_format(source: Path, manifest: Manifest) -> frozenset[str]:
    """What a reader of the store must know."""
    try:
        found = StoreDirectory(source)
    except (TypeError, ValueError, KeyError) as error:
        raise Corrupt(source / FORMAT_FILE, 0, f"not what a store has there ({error})") from error
    if (found.store_id, found.geometry) != (manifest.store_id, manifest.geometry):
        raise Corrupt(source / FORMAT_FILE, 0, f"not the store that {MANIFEST} speaks of: files of two backups were mixed")
    return found.needs


def _note_ends(path: Path, manifest: Manifest) -> None:
    """Checkpoint and page as a killed edge would have left them: the whole log is read again, and known to be durable up to the
    manifest's end. Both durable before the directory is a store."""
    state = {
        "log_end": manifest.log_begin,
        "half_end": 0,
        "op_end": 0,
        "positions": manifest.positions,
        "clean": False,
    }
    disk.write_json(path / EDGE_CHECKPOINT, state, EDGE_CHECKPOINT)
    page = np.zeros(PAGE_BYTES // 8, "<i8")
    page[0], page[EdgeSlot.LOG_END] = EDGE_MAGIC, manifest.log_end
    page[EdgeSlot.HALF_END], page[EdgeSlot.OP_END] = manifest.half_end or 0, manifest.op_end or 0
    disk.replace_file(path / EDGE_PUBLISHED, page.tobytes(), "published")


def _forget_removed(path: Path, manifest: Manifest) -> None:
    """The job's checkpoint was copied first: files of the redo log that retention removed before they were copied are not lost."""
    try:
        state = read_checkpoint(path)
    except Corrupt:  # then all is made anew
        return
    if state is None or not state.get("redo_crcs"):
        return
    size = manifest.geometry.redo_segment_bytes
    crcs = FileCrcs(size, state["redo_crcs"])
    crcs.forget_before(min(list_segments(path / REDO_DIRECTORY, size), default=0))
    disk.write_json(path / JOB_CHECKPOINT, {**state, "redo_crcs": crcs.noted()}, JOB_CHECKPOINT)


def _clip_consumers(path: Path, places: dict[int, int]) -> None:
    """Earlier releases copied consumers behind the log: a group that had read beyond it would skip what is stored there now."""
    consumers = Consumers(path / "consumers", writable=True)
    try:
        if consumers.clip(places):
            consumers.compact()
    finally:
        consumers.close()


def _require_empty(path: Path) -> None:
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreUnusable(f"{path}: exists and is not an empty directory; choose a new one")
    except OSError as error:
        raise disk.unusable(error, path) from error


class _Copier:
    """Copies files, leaving out zeros, and notes what it copied."""

    def __init__(self, source: Path, dest: Path, progress: Progress, files: list[CopiedFile]) -> None:
        self._source, self._dest, self._progress, self._files = source, dest, progress, files
        self._done = 0

    def segments(self, directory: Path, segment_bytes: int, end: int | None = None) -> None:
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
        self._files[:] = [each for each in self._files if each.name not in names]

    def checked(self, expected: CopiedFile) -> None:
        """One file of a backup, with its full size and blocks; Corrupt unless it is what the manifest says of it."""
        found = self.file(self._source / expected.name, expected.size_bytes, whole=True)
        if not found or self._files[-1] != expected:
            reason = f"differs from what {MANIFEST} says of it, or is missing: the backup is damaged"
            raise Corrupt(self._source / expected.name, 0, reason)

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
        with disk.step("backup.copy", target), open(target, "wb", opener=_private) as out:
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
        self._files.append(CopiedFile(name, size if size_bytes is None else size_bytes, copied, crc))
        self._done += stop
        self._progress(self._done, self._done, f"copying {name}")


def _private(path: str, flags: int) -> int:
    """For this user alone, as the store is."""
    return os.open(path, flags | os.O_CLOEXEC, disk.FILE_MODE)
