"""Seeds of tests that play random histories, and places of the fault tests."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: In continuous integration: so many kills by campaign, besides those at every failpoint.
KILLS = 240
KILLS_PER_LIFE = 8
KILLS_PER_STORM = 20
KILLS_PER_PAIR = 30
REPLAY = "ESCROW_SEED" in os.environ
SEED = int(os.environ.get("ESCROW_SEED", "20270115"))


def seeds(count: int) -> list[int]:
    """1 … count, and one that is new in every run; with ESCROW_SEED that one alone."""
    if REPLAY:
        return [SEED]
    # Processes that share a run's tests (pytest-xdist) must collect the same ones.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return [*range(1, count + 1), random.Random(run).randrange(1 << 32)]


@contextlib.contextmanager
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: what a killed process leaves behind does not depend on the disk."""
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="escrow-faults-", dir=place))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
