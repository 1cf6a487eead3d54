"""Writing `edge.checkpoint`: what recovery may rely on. JSON and its CRC, replaced as a whole:

log_end      queues and ends reflect the log up to here, durably
half_end, op_end   the queues' ends at log_end
half_begin   halves before it are gone
log_begin    segments of the log before it are gone, or were to be removed next
positions    [queue key, next queue_offset] of every topic queue that has had a commit
clean        true when the edge closed in order: log_end is then the end of the log
dedup        extents of the dedup tables
names        extents of the tables of names, where there are any
journals     see `journal_heads.py`
ends         if clean: CRC of the ends table, see `recovery/ends.py`
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from store.directory import EDGE_CHECKPOINT
from store.edge.append.group_commit import GroupCommit
from store.edge.append.unflushed import Unflushed
from store.edge.files import EdgeFiles, EdgeState
from store.edge.recovery import ends as ends_recovery
from store.edge.recovery import journal_heads
from store.edge.recovery.journal_heads import CHECKPOINT_KEYS
from store.errors import Corrupt, FlushFailed, StoreUnusable
from store.io import disk
from store.io.pages import EdgeSlot
from store.tables.dedup import DEDUP, NAMES


def read_checkpoint(root: Path) -> dict[str, Any] | None:
    """The checkpoint; None if it is missing or cannot be read: recovery reports that."""
    try:
        return disk.read_json(root / EDGE_CHECKPOINT, CHECKPOINT_KEYS)
    except Corrupt:
        return None


class CheckpointWriter:
    """Writes checkpoints, one thread at a time. `lock` is the append lock."""

    def __init__(
        self,
        files: EdgeFiles,
        state: EdgeState,
        unflushed: Unflushed,
        commit: GroupCommit,
        lock: threading.Lock,
        *,
        every_bytes: int,
    ) -> None:
        self._files, self._state, self._unflushed, self._commit = files, state, unflushed, commit
        self._append_lock, self._lock = lock, threading.Lock()
        self.every_bytes = every_bytes
        #: log_end of the last checkpoint.
        self.log_end = 0

    def is_due(self, log_end: int) -> bool:
        return log_end - self.log_end >= self.every_bytes

    def try_write(self, log_end: int) -> None:
        """Write one that is due. Without room for it the log is still whole: only the next recovery takes
        longer. Then try again after another quarter of `every_bytes`."""
        try:
            self.write(clean=False)
        except FlushFailed:
            raise
        except StoreUnusable:
            self.log_end = log_end - self.every_bytes * 3 // 4

    def write(self, *, clean: bool) -> None:
        """Flush everything, then write how far recovery may rely on it."""
        files = self._files
        with self._lock:
            with self._append_lock:
                content = self._content(clean=clean)
            content["positions"].sort()  # there may be very many, and producers wait for the lock
            self._commit.check()
            try:
                files.log.flush()
                with self._append_lock:
                    self._unflushed.settle(content["log_end"])
                for part in (files.half_queue, files.op_queue, files.ends_table.file, files.dedup, files.names):
                    part.flush()
            except FlushFailed as error:
                # The pages may be lost while they look clean: no later checkpoint may rely on them.
                self._commit.fail(error)
                raise
            if clean:
                content["ends"] = ends_recovery.crc_of(files.ends_table, content["half_end"])
            disk.write_json(files.directory.root / EDGE_CHECKPOINT, content, EDGE_CHECKPOINT)
            # The job removes rows behind it: after a power failure this side must not accept ops about them again.
            files.page[EdgeSlot.HALF_BEGIN] = content["half_begin"]
            self.log_end = int(content["log_end"])

    def _content(self, *, clean: bool) -> dict[str, Any]:
        files, state = self._files, self._state
        return {
            "log_end": files.log.end,
            "half_end": state.half_end,
            "op_end": state.op_end,
            "half_begin": state.half_begin,
            "log_begin": state.log_begin,
            "positions": list(state.next_offset.items()),
            "clean": clean,
            DEDUP: files.dedup.extents(),
            **({NAMES: extents} if (extents := files.names.extents()) else {}),
            journal_heads.KEY: journal_heads.extents(files.directory.root, files.dictionary.extent, clean=clean),
        }
