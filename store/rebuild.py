"""Rebuild: state table and queues anew from the redo log and the commit log, as one command.

The work is `JobStore(rebuild=True)`; this module holds both locks around it, so that nobody writes meanwhile, and says what came of
it.
"""

from __future__ import annotations

from pathlib import Path

from store.directory import Lock, StoreDirectory
from store.errors import NotAStore
from store.job import JobStore
from store.progress import Progress, no_progress


def rebuild(path: Path, progress: Progress = no_progress) -> dict[str, object]:
    """Build the derived files of the store in `path` again, in a new generation. Figures of the result."""
    StoreDirectory(path)
    if not (path / "edge.published").exists():
        raise NotAStore(
            f"{path}: the edge has never been opened here, so nothing was ever stored and there is nothing to rebuild; "
            "in a store that was copied by hand, open the edge once first: it writes edge.published anew"
        )
    with Lock(path / "edge.lock", "the edge of this store"), JobStore(path, rebuild=True, progress=progress) as job:
        marker = job.marker
        return {
            "generation": job.generation,
            "batches": marker.sequence,
            "entries_replayed": job.recovery.entries_replayed,
            "rows": max(0, marker.half_cursor - job.table.begin),
            "pending": marker.pending,
            "topic_queues": len(job.catalogue.queue_keys()),
            "redo_end": job.redo.end,
        }
