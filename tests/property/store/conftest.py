"""No waiting for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from store.io import disk


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing here outlives its process, so what the system holds is enough. (tests/faults kills and tears for real.)"""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    yield
    disk.arm(None)
