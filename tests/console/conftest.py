"""Real Chromium (Debian's, driven by Playwright) in front of a real endpoint. Whatever a test does, at its end the page must not
have reported an error on its console, and its policy must not have been broken."""

from __future__ import annotations

import pytest
from playwright.sync_api import sync_playwright

from tests.support.console_pages import PHONE, SIZES, Console
from tests.support.console_service import console_service
from tests.support.tools import require_tool


# Of the module, not of the session: Playwright keeps an event loop running in this thread, and others want to run theirs.
@pytest.fixture(scope="module")
def chromium():
    program = require_tool("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with console_service(tmp_path_factory.mktemp("console") / "data") as made:
        yield made


@pytest.fixture
def open_console(chromium, service):
    """open_console(size): somebody at the console, not logged in."""
    opened = []

    def open_one(size=SIZES["desktop"], **rest):
        opened.append(Console(chromium.new_context(viewport=size, has_touch=size == PHONE, **rest), service))
        return opened[-1]

    yield open_one
    for console in opened:
        console.leave()


@pytest.fixture(params=sorted(SIZES))
def console(request, open_console):
    """An operator who has logged in, at a desk and at a phone."""
    return open_console(SIZES[request.param]).log_in()
