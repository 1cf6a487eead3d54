"""`import escrow` is cheap: nothing but the standard library, no asyncio before it is used, and every public name is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import escrow


def loaded_by(program):
    """The modules that a program has loaded."""
    code = f"import sys; before = set(sys.modules); {program}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import escrow", {"asyncio", "ssl", "escrow.producer", "importlib.metadata"}),
        ("import escrow; escrow.Producer, escrow.Consumer, escrow.Barrier", {"asyncio", "importlib.metadata"}),
    ],
)
def test_what_is_not_used_is_not_loaded(program, absent):
    assert loaded_by(program) & absent == set()


def test_every_public_name_is_there():
    for name in escrow.__all__:
        assert getattr(escrow, name) is not None
    assert set(escrow.__all__) <= set(dir(escrow))
    assert escrow.errors.EscrowError is escrow.EscrowError
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = escrow.Nothing
