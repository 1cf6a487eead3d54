"""Options and places of the fault tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world import small_tables

#: In continuous integration: 240 kills by campaign, besides those at every failpoint.
KILLS = 240
KILLS_PER_LIFE = 8
SEED = int(os.environ.get("ESCROW_SEED", "20270115"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=KILLS, help=f"SIGKILLs of the crash campaign (default {KILLS})")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `life_seed` runs once for each life of a store: KILLS_PER_LIFE kills each."""
    if "life_seed" in metafunc.fixturenames:
        kills = metafunc.config.getoption("--kills", default=KILLS)
        share = getattr(metafunc.function, "share", 1.0)
        lives = 1 if "ESCROW_SEED" in os.environ else max(1, round(kills * share / KILLS_PER_LIFE))
        metafunc.parametrize("life_seed", [SEED + number for number in range(lives)])


@pytest.fixture
def fast_path() -> Iterator[Path]:
    """A directory in memory where there is one: what a killed process leaves behind does not depend on the disk."""
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="escrow-faults-", dir=place))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _small_tables() -> Iterator[None]:
    with small_tables():
        yield
