"""Options and places of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.seeds import KILLS, KILLS_PER_LIFE, REPLAY, SEED, fast_directory
from tests.support.world import small_tables


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=KILLS, help=f"SIGKILLs of the crash campaign (default {KILLS})")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `life_seed` runs once for each life of a store: KILLS_PER_LIFE kills each."""
    if "life_seed" in metafunc.fixturenames:
        kills = metafunc.config.getoption("--kills", default=KILLS)
        lives = 1 if REPLAY else max(1, round(kills / KILLS_PER_LIFE))
        metafunc.parametrize("life_seed", [SEED + number for number in range(lives)])


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


@pytest.fixture(autouse=True)
def _small_tables() -> Iterator[None]:
    with small_tables():
        yield
