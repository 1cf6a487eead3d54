"""Three in the morning: an operator finds culprit and cause of each trouble within three clicks, at three sizes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.console_pages import DESKTOP, LAPTOP, PHONE, Console
from tests.support.console_service import console_service
from tests.support.mount import mounted
from tests.support.night import ALONE, CONTRADICTING, GUESS, POISONED, REMARK, UNKNOWING, be_online, make_trouble
from tests.support.tools import missing

SIZES = {"1440": {"width": 1440, "height": 900}, "1024": LAPTOP, "390": PHONE}
AXE = Path(__file__).parents[2] / ".clients" / "axe.min.js"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with console_service(tmp_path_factory.mktemp("night") / "data", "maxDeliveries=2", "visibilityTime=1s") as made:
        made.tokens["reader"] = made.token("reader", consume=["*"])
        yield made


@pytest.fixture(scope="module")
def night(service):
    return make_trouble(service)


@pytest.fixture(params=sorted(SIZES))
def operator(request, open_console, service, night):
    be_online(service)
    return Clicking(open_console(SIZES[request.param]).log_in(), request)


class Clicking:
    """Counts what the operator clicks; a picture is kept at the end."""

    def __init__(self, console: Console, request) -> None:
        self.console, self.page, self.clicks, self._name = console, console.page, 0, request.node.name

    def click(self, locator) -> None:
        self.clicks += 1
        locator.click()

    def finding(self, subject: str):
        return self.page.locator(".findings li", has=self.page.locator("strong", has_text=re.compile(f"^{subject}$")))

    def found(self) -> None:
        """Three clicks at most; what was seen is kept where NIGHT_PICTURES says."""
        assert self.clicks <= 3
        if where := os.environ.get("NIGHT_PICTURES"):
            self.page.screenshot(path=Path(where) / f"{re.sub(r'[^a-z0-9]+', '-', self._name)}.png", full_page=True)


def test_nobody_is_online(operator, service):
    first = operator.page.locator(".findings li").first
    expect(first).to_contain_text(f"{ALONE} 300 in doubt, nobody online")
    expect(first).to_be_in_viewport()
    operator.click(first.get_by_role("link", name="Show"))
    expect(operator.page.locator(".facts")).to_contain_text("nobody online")
    operator.click(operator.page.locator(".causes a").first)
    expect(operator.page.locator(".matched")).to_have_text("300 transactions")
    operator.click(operator.page.locator("tbody a.key").first)
    expect(operator.page.locator(".why-card")).to_contain_text(f"No member of {ALONE} is online")
    operator.found()


def test_a_listener_always_says_unknown(operator):
    finding = operator.finding(UNKNOWING)
    expect(finding).to_contain_text("its producer answers UNKNOWN")
    expect(finding).to_contain_text("no row for order # yet")
    operator.click(finding.get_by_role("link", name="Show"))
    expect(operator.page.locator("td", has_text=REMARK).first).to_be_visible()
    operator.found()


def test_ends_contradict_each_other(operator):
    finding = operator.finding(CONTRADICTING)
    expect(finding).to_contain_text("1 contradicting end")
    operator.click(finding.get_by_role("link", name="Show"))
    row = operator.page.locator("tbody tr", has_text=GUESS)
    expect(row).to_contain_text("rollback, conflict")
    operator.click(row.locator("a.mono"))
    expect(operator.page.locator(".timeline .conflict")).to_contain_text(f"rollback conflict: it is committed. {GUESS}")
    operator.found()


def test_a_consumer_is_poisoned(operator):
    finding = operator.finding(POISONED)
    expect(finding).to_contain_text("1 dead letter")
    operator.click(finding.get_by_role("link", name="Show"))
    operator.click(operator.page.locator(".letters summary", has_text="bad-1"))
    expect(operator.page.get_by_label("Body of the message")).to_have_text("poison")
    operator.found()


def test_the_job_is_down(operator, service):
    service.stop_job()
    try:
        finding = operator.finding("Streaming job")
        expect(finding).to_contain_text("The streaming job is down")
        expect(finding).to_contain_text("no check goes out")
        expect(operator.page.locator(".health")).to_contain_text("The streaming job is down")
        operator.found()
    finally:
        service.start_job()


@pytest.mark.parametrize("size", sorted(SIZES))
def test_the_disk_is_nearly_full(tmp_path, chromium, size):
    with mounted(tmp_path / "disk", "120m") as disk, console_service(disk.path / "data") as service:
        console = Console(chromium.new_context(viewport=SIZES[size]), service).log_in()
        free = os.statvfs(disk.path).f_bavail * os.statvfs(disk.path).f_frsize
        with (disk.path / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free - (3 << 20))
        finding = console.page.locator(".findings li", has_text="The disk is nearly full")
        expect(finding).to_contain_text("GiB free of")
        console.leave()


# --- what must not be said if it is not so -------------------------------------------------------------------------
def test_a_body_is_shown_as_it_is(operator, night):
    page = operator.console.go(f"transaction/{night.unknowing}")
    body = page.get_by_label("Body of the message")
    for token in ('"id": 9007199254740993,', '"price": 10.10,', '"a": 1,', '"a": 2,', '"empty": []', '"who": "x\\u202ey"'):
        expect(body).to_contain_text(token)
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download").click()
    assert b'"price":10.10,"a":1,"a":2' in Path(saved.value.path()).read_bytes()


def test_an_edge_that_hangs_is_not_green(tmp_path_factory, chromium):
    with console_service(tmp_path_factory.mktemp("hung") / "data") as service:
        console = Console(chromium.new_context(viewport=DESKTOP), service).log_in()
        page = console.page
        expect(page.locator(".health")).to_have_class("health good")
        expect(page.locator(".parts .good").first).to_be_visible()
        console.meant = ["."]  # the browser reports requests that were given up
        os.kill(service.endpoint.process.pid, signal.SIGSTOP)
        try:
            expect(page.locator(".health")).to_have_class("health unknown")
            expect(page.locator(".health")).to_contain_text("no answer since")
            expect(page.locator(".as-of")).to_have_class("as-of tone-bad")
            expect(page.locator(".parts .icon").first).to_be_hidden()
        finally:
            os.kill(service.endpoint.process.pid, signal.SIGCONT)
        expect(page.locator(".health")).to_have_class("health good")
        console.leave()


# --- barriers --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", sorted(SIZES))
def test_axe_finds_nothing_serious(open_console, service, night, size, theme):
    if not AXE.exists():
        missing("axe-core is not there: run scripts/axe.sh")
    be_online(service)
    console = open_console(SIZES[size], color_scheme=theme).log_in()
    paths = (
        "overview", "pending", "discarded", "conflicts", "dead-letters", f"dead-letters/{POISONED}", "history?state=any", "groups",
        f"group/{UNKNOWING}", "topics", "topic/order-paid", "audit", f"transaction/{night.unknowing}",
    )  # fmt: skip
    source, wrong = AXE.read_text(), []
    for path in paths:
        page = console.go(path)
        expect(page.locator("#main .card:not(.skeleton)").first).to_be_visible()
        width, screen = console.width()
        assert width <= screen, path
        page.evaluate(source)
        for each in page.evaluate("axe.run(document).then((found) => found.violations)"):
            if each["impact"] in ("serious", "critical"):
                wrong.append((path, each["id"], [node["target"] for node in each["nodes"]][:3]))
    assert wrong == []
