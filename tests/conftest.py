"""Options of all tests."""

from __future__ import annotations

import signal

import pytest


def pytest_configure() -> None:
    """A shell that runs us in the background has told us to ignore Ctrl-C; the processes that tests start must not inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate-golden", action="store_true", help="write what the code gives now into tests/golden and FORMAT.md's example"
    )


@pytest.fixture
def regenerate_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--regenerate-golden"))
