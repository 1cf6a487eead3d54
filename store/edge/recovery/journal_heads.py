"""What the edge's checkpoint knows of journals, so that one that is gone, old or changed is noticed at the next start.

`journals` in edge.checkpoint: {name: [size_bytes, CRC of them] or null}. The dictionary only grows and is flushed with each name,
so its size is noted at every checkpoint. Consumers and audit have other owners, and consumers is rewritten now and then: null
says that the file is there; size and CRC are noted when the edge closes in order, and their writers mark in the page how far each
flush reached (`journal_marks.py`): that counts after a kill. Checkpoints of earlier releases have no such key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from store.directory import EDGE_CHECKPOINT
from store.errors import Corrupt
from store.incarnations import INCARNATIONS
from store.io import disk, journal
from store.tables.journals import audit, consumers
from store.tables.journals import names as dictionary

#: Those that nothing can tell again.
TRUTH: Final = {consumers.NAME: consumers.MARK_SLOT, audit.NAME: audit.MARK_SLOT}
KEY: Final = "journals"
#: Every edge.checkpoint has these.
CHECKPOINT_KEYS: Final = ("log_end", "half_end", "op_end", "positions", "clean")


def extents(root: Path, names: tuple[int, int], *, clean: bool) -> dict[str, list[int] | None]:
    """What a checkpoint notes. `names`: how far the dictionary reaches, and its CRC."""
    noted: dict[str, list[int] | None] = {dictionary.NAME: list(names)}
    for name in TRUTH:
        if (root / name).exists():
            noted[name] = _extent(root / name) if clean else None
    if (root / INCARNATIONS).exists():
        noted[INCARNATIONS] = None
    return noted


def _extent(path: Path) -> list[int]:
    # Not the whole file: a torn tail that its owner has not cut yet was never flushed.
    found = journal.survey(path)
    return [found.end, found.crc(found.end)]


def problems(root: Path, checkpoint: dict[str, Any] | None) -> dict[str, Corrupt]:
    """By name: journals that are not what they were, and that nothing can tell again."""
    noted = (checkpoint or {}).get(KEY) or {}
    found = {}
    for name, slot in TRUTH.items():
        path, extent = root / name, noted.get(name)
        survey, problem = journal.survey_marked(path, slot, extent[0] if extent else 0)
        if name in noted and not path.exists():
            found[name] = _problem(path, 0, "is missing")
        elif problem:
            found[name] = _problem(path, min(survey.end, survey.size_bytes), problem)
        elif survey.damaged:
            found[name] = _problem(path, survey.end, "damaged or cut off here: nothing is cut")
        elif extent and survey.crc(extent[0]) != extent[1]:
            found[name] = _problem(path, 0, "is not the file that was here: an older copy, or another store's")
    return found


def check(root: Path, checkpoint: dict[str, Any] | None) -> None:
    """Refuse what `problems` finds."""
    for problem in problems(root, checkpoint).values():
        raise problem
    if INCARNATIONS in ((checkpoint or {}).get(KEY) or {}) and not (root / INCARNATIONS).exists():
        raise Corrupt(root / INCARNATIONS, 0, "is missing: ids of before the restore would be refused. Put it back from a backup")


def check_one(root: Path, name: str) -> None:
    """Refuse this journal if `problems` finds something, by the checkpoint that lies there; also beside a running edge."""
    try:
        checkpoint = disk.read_json(root / EDGE_CHECKPOINT, CHECKPOINT_KEYS)
    except Corrupt:  # `escrow store verify` is about damage of the checkpoint
        checkpoint = None
    problem = problems(root, checkpoint).get(name)
    if problem is not None:
        raise problem


def _problem(path: Path, offset: int, what: str) -> Corrupt:
    return Corrupt(path, offset, f"{what}. {journal.REMEDY}")
