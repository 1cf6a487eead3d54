"""Repair: keep what can be read of damaged `consumers` and `audit` journals, with which the edge refuses to start.

The lost records exist nowhere else, so an operator must decide this. The original file is kept under `lost+found`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from store.directory import EDGE_CHECKPOINT, Lock, StoreDirectory
from store.edge.recovery import journal_heads
from store.errors import Corrupt
from store.io import disk, journal
from store.io.journal_marks import MarkWriter

KEPT_IN: Final = "lost+found"


def repair(path: Path) -> dict[str, dict[str, Any]]:
    """Repair the journals of the store in `path` that are damaged or missing. By name: what was wrong, how many records are left,
    and where the original file is."""
    StoreDirectory(path)
    with Lock(path / "edge.lock", "the edge of this store"):
        try:
            checkpoint = disk.read_json(path / EDGE_CHECKPOINT, journal_heads.CHECKPOINT_KEYS)
        except Corrupt:
            checkpoint = None
        found = journal_heads.problems(path, checkpoint)
        done = {name: _mend(path, name, problem) for name, problem in found.items()}
        if done and checkpoint is not None:
            noted = checkpoint.get(journal_heads.KEY) or {}
            checkpoint[journal_heads.KEY] = {name: extent for name, extent in noted.items() if name not in done}
            disk.write_json(path / EDGE_CHECKPOINT, checkpoint, EDGE_CHECKPOINT)
        return done


def _mend(root: Path, name: str, problem: Corrupt) -> dict[str, Any]:
    """The original is copied first: a crash at any step leaves it, and the next repair does the same again."""
    path = root / name
    found = journal.survey(path)
    told: dict[str, Any] = {"problem": problem.reason, "damaged_at": problem.offset, "records_left": len(found.payloads)}
    if found.content:
        disk.make_directory(root / KEPT_IN)
        number = next(n for n in range(1 << 20) if not (root / KEPT_IN / f"{name}.{n}").exists())
        disk.replace_file(root / KEPT_IN / f"{name}.{number}", found.content, "repair")
        told["original"] = str(root / KEPT_IN / f"{name}.{number}")
    MarkWriter(root, journal_heads.TRUTH[name]).clear()
    disk.replace_file(path, journal.encode_all(found.payloads), name)
    return told
