"""Rebuild: state table and queues from the redo log and the commit log, as one command.

The work is `JobStore(rebuild=True)`. The edge's side is opened first. That takes its lock, so that nothing is written meanwhile,
and recovers it: after a power failure the op queue has zeros where entries were not flushed, which a rebuild would take for holes.
"""

from __future__ import annotations

from pathlib import Path

from store.directory import StoreDirectory
from store.edge.store import EdgeStore
from store.errors import NotAStore
from store.io.pages import EDGE_PUBLISHED
from store.job.store import JobStore
from store.progress import Progress, no_progress
from store.tables.dedup import EVERY_KEY_S


def rebuild(path: Path, progress: Progress = no_progress) -> dict[str, object]:
    """Build the derived files of the store in `path` again, in a new generation. Figures of the result."""
    StoreDirectory(path)
    if not (path / EDGE_PUBLISHED).exists():
        raise NotAStore(
            f"{path}: the edge has never been opened here, so nothing was ever stored and there is nothing to rebuild; "
            "in a store that was copied by hand, open the edge once first: it rewrites edge.published"
        )
    # The edge's windows are not known here: keep every dedup key, and every name.
    edge = EdgeStore(path, dedup_window_s=EVERY_KEY_S, name_window_s=EVERY_KEY_S, progress=progress)
    with edge, JobStore(path, rebuild=True, progress=progress) as job:
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
