from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from runtime.settings import load
from store.io import disk
from tests.support.core_world import CoreWorld
from tests.support.job_world import JobWorld
from tests.support.spark import own_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One Spark for all tests of this directory."""
    with own_spark(load(None, [f"dataDir={tmp_path_factory.mktemp('spark')}"], {})) as session:
        yield session


@pytest.fixture
def make_world(tmp_path: Path, spark):
    """Worlds that are closed when the test ends."""
    made: list[JobWorld] = []

    def make(*flags: str, name: str = "data", start: bool = True, kind: type[JobWorld] = JobWorld) -> JobWorld:
        made.append(kind(tmp_path / name, spark, flags, start=start))
        return made[-1]

    yield make
    disk.arm(None)
    for world in made:
        world.close()


@pytest.fixture
def world(make_world) -> JobWorld:
    return make_world()


@pytest.fixture
def make_core(make_world):
    """Worlds whose edge is the real edge core."""
    return partial(make_world, kind=CoreWorld)


@pytest.fixture
def core(make_core) -> CoreWorld:
    return make_core()
