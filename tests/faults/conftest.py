"""Options and places of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.seeds import KILLS, KILLS_PER_LIFE, KILLS_PER_PAIR, KILLS_PER_STORM, REPLAY, SEED, fast_directory
from tests.support.world import small_tables


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=KILLS, help=f"SIGKILLs of the crash campaign (default {KILLS})")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Seeds by the number of kills asked for: a `life_seed` for each KILLS_PER_LIFE, a `storm_seed` for each KILLS_PER_STORM."""
    kills = metafunc.config.getoption("--kills", default=KILLS)
    for name, share in (("life_seed", KILLS_PER_LIFE), ("storm_seed", KILLS_PER_STORM), ("pair_seed", KILLS_PER_PAIR)):
        if name in metafunc.fixturenames:
            count = 1 if REPLAY else max(1, kills // share)
            metafunc.parametrize(name, range(SEED, SEED + count))


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


@pytest.fixture(autouse=True)
def _small_tables() -> Iterator[None]:
    with small_tables():
        yield
