"""Seeds of tests that play random histories: some that are always the same, and one that is new in every run."""

from __future__ import annotations

import os
import random


def seeds(count: int) -> list[int]:
    """1 … count and a new one. ESCROW_SEED=… plays one of them alone."""
    if "ESCROW_SEED" in os.environ:
        return [int(os.environ["ESCROW_SEED"])]
    # Processes that share a run's tests (pytest-xdist) must collect the same ones.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return [*range(1, count + 1), random.Random(run).randrange(1 << 32)]
