"""What befalls a store between two kills: a restored backup, a rebuild, files that are lost or damaged.

Nothing of it may cost anything that was acknowledged. Files that can be made anew from others are lost or changed here; what
happens to the others is the matter of `make fuzz-store`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from store.admin.backup import backup, restore
from store.admin.rebuild import rebuild
from store.errors import StoreError
from tests.support.check_store import check_store, is_about
from tests.support.history import History

#: Rebuilt, or volatile: FORMAT.md's table of the directory says so.
_DERIVED = (
    "half/0/*", "op/0/*", "ends/0/*", "dictionary", "dedup/*", "presence/*", "edge.cursors", "edge.checkpoint", "edge.published",
    "job.checkpoint", "job.published", "job.round", "transaction/CURRENT", "transaction/generation-*/statetable/0/*",
    "transaction/generation-*/topics/*/*/*", "transaction/generation-*/check/*", "transaction/generation-*/proposal/*",
    "transaction/generation-*/discard/*", "transaction/generation-*/quarantine/*", "transaction/generation-*/catalogue/*",
)  # fmt: skip
#: Those whose every bit is checked when they are opened. (Of the others `verify` tells, and `rebuild` makes them anew.)
_CHECKED = (
    "dictionary", "edge.checkpoint", "edge.published", "job.checkpoint", "job.published", "transaction/CURRENT",
    "transaction/generation-*/topics/*/*/*", "transaction/generation-*/check/*", "transaction/generation-*/proposal/*",
    "transaction/generation-*/discard/*", "transaction/generation-*/quarantine/*",
)  # fmt: skip


def trouble(root: Path, history: History, rng: Random) -> tuple[str, Callable[[], None]]:
    """What it will be, and what does it and looks at the store behind it."""
    kind = rng.choice(("restored", "rebuilt", "lost", "lost", "damaged"))
    if kind == "restored":
        history.keys_made_anew = True
        return kind, lambda: _restore(root, history, rng)
    if kind == "rebuilt":
        return kind, lambda: _rebuild(root, history, rng)
    path = _any_of(_DERIVED if kind == "lost" else _CHECKED, root, rng)
    at, bit = rng.randrange(max(1, path.stat().st_size)), 1 << rng.randrange(8)
    harm = path.unlink if kind == "lost" else partial(_flip, path, at, bit)
    name = str(path.relative_to(root))
    history.keys_made_anew |= name.startswith("dedup/")
    return f"{kind} {name}" + (f" at {at} by {bit}" if kind == "damaged" else ""), lambda: _harm(root, name, harm, history, rng)


def _restore(root: Path, history: History, rng: Random) -> None:
    """The store is taken from a backup; the old one is gone."""
    kept, made = root.with_name("backup"), root.with_name("restored")
    backup(root, kept)
    shutil.rmtree(root)
    restore(kept, made)
    made.rename(root)
    shutil.rmtree(kept)
    check_store(root, history, rng)


def _rebuild(root: Path, history: History, rng: Random) -> None:
    rebuild(root)
    check_store(root, history, rng)


def _flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[at] ^= bit
        path.write_bytes(content)


def _harm(root: Path, name: str, harm: Callable[[], None], history: History, rng: Random) -> None:
    """The store goes on with what it made anew. Where it refuses, it names the file, and the whole one comes back."""
    kept = root.with_name("kept")
    shutil.copytree(root, kept, ignore=shutil.ignore_patterns("*.wake"))
    harm()
    try:
        check_store(root, history, rng, harmed=name)
    except StoreError as error:
        if not is_about(str(error), name):
            raise AssertionError(f"refused, and {name} is not named: {error}") from error
        logging.getLogger(__name__).info("refused: %s", error)
        shutil.rmtree(root)
        kept.rename(root)
        check_store(root, history, rng)
    else:
        shutil.rmtree(kept)


def _any_of(patterns: tuple[str, ...], root: Path, rng: Random) -> Path:
    kinds = [found for found in (sorted(root.glob(pattern)) for pattern in patterns) if found]
    return rng.choice(rng.choice(kinds))
