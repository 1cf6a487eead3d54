"""One service in a directory of its own for each test, and no waiting for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.io import disk
from tests.support.service import ROOMY, SMALLEST, Service


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing here outlives its process, so what the system holds is enough. (tests/faults kills and tears for real.)"""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    yield
    disk.arm(None)


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
