"""Stories that are played against an edge of their own, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge_world import Play, World, world

#: Of one story. No goal: this machine may be busy.
PATIENCE_S = 120.0


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """play(story, *flags): run the story with an edge that has these settings; what it returns. `place`: another data directory
    below tmp_path; the same one again is the same store."""

    def run(story: Callable[[World], Awaitable[Any]], *flags: str, place: str = "") -> Any:
        async def live() -> Any:
            async with world(tmp_path / place / "data", *flags) as w, asyncio.timeout(PATIENCE_S):
                return await story(w)

        return asyncio.run(live())

    return run
