"""`job.checkpoint` (JSON and its CRC, replaced as a whole) says what recovery may rely on:

generation   whose files it speaks of
redo_end     everything before it is applied to them, durably
marker       of the last batch before redo_end
clean        true when the job closed in order: redo_end is then the end of the redo log
ledger       what retention knows, see `retention.py`
queues       [queue key, begin, end] of the topic queues: after retention the redo log alone does not tell them
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from store.directory import JOB_CHECKPOINT
from store.io import disk
from store.job.derived import DerivedFiles
from store.tables import redo_log

_KEYS: Final = ("generation", "redo_end", "marker", "ledger", "clean")


def read_checkpoint(root: Path) -> dict[str, Any] | None:
    """None where there is none; Corrupt where it cannot be trusted."""
    return disk.read_json(root / JOB_CHECKPOINT, _KEYS)


def write_checkpoint(root: Path, files: DerivedFiles, redo_end: int, *, clean: bool) -> None:
    state = {
        "generation": files.generation,
        "redo_end": redo_end,
        "marker": redo_log.marker_to_dict(files.marker),
        "ledger": files.ledger.to_dict(),
        "queues": [(key, *files.catalogue.extent(key)) for key in files.catalogue.queue_keys()],
        "clean": clean,
    }
    disk.write_json(root / JOB_CHECKPOINT, state, JOB_CHECKPOINT)
