"""One service in a directory of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import disk
from tests.support.service import ROOMY, SMALLEST, Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Small files: a few dozen messages roll every one of them."""
    service = Service(tmp_path / "store", geometry=SMALLEST)
    yield service
    disk.arm(None)
    service.crash()


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Service]:
    """Files that a few thousand messages do not roll."""
    service = Service(tmp_path / "store", geometry=ROOMY)
    yield service
    disk.arm(None)
    service.crash()
