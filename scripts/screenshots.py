"""Takes the pictures of the console in docs/images anew: `make screenshots`. A real endpoint, a little shop that keeps it busy, and
Debian's Chromium."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from tests.support.console_service import ConsoleService, console_service

IMAGES = Path(__file__).parents[1] / "docs" / "images"
DESKTOP, PHONE = (1360, 880), (390, 844)
BUSY_S = 45.0
ORDER = '{"order": %d, "customer": "c-%d", "total": "129.90", "items": [{"sku": "K-7", "count": 2}, {"sku": "B-12", "count": 1}]}'


class Shop(threading.Thread):
    """Producers: most commit, some roll back, some fall silent; one group is gone for good."""

    def __init__(self, service: ConsoleService) -> None:
        super().__init__(daemon=True)
        self._service, self._closed, self._number = service, threading.Event(), 20_400

    def run(self) -> None:
        while not self._closed.wait(0.4):
            self.turn(20 + 12 * (int(time.monotonic()) // 6 % 3))

    def turn(self, count: int) -> None:
        service, self._number = self._service, self._number + count
        numbers = range(self._number, self._number + count)
        items = [{"key": f"order-{n}", "text": ORDER % (n, n % 97), "tags": "web"} for n in numbers]
        for number, id in enumerate(service.halves("orders", "order-placed", *items)):
            if number % 9 != 8:
                service.end("orders", id, "rollback" if number % 7 == 6 else "commit")

    def stop(self) -> None:
        self._closed.set()
        self.join()


@contextmanager
def busy_service() -> Iterator[tuple[ConsoleService, dict[str, str]]]:
    """A service with something on every page; the ids of those that are shown."""
    root = Path(tempfile.mkdtemp(prefix="escrow-screenshots-"))
    try:
        with console_service(root / "data", "transactionCheckMax=15") as service:
            shown = furnish(service)
            shop = Shop(service)
            shop.start()
            yield service, shown
            shop.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def furnish(service: ConsoleService) -> dict[str, str]:
    mails = [{"key": f"newsletter-{n}", "text": "Dear reader, …"} for n in range(3)]
    discarded = service.discard("mailing", "mail-sent", *mails)
    card = {"text": '{"amount": "18.00", "currency": "EUR", "method": "card"}', "properties": {"trace": "4bf92f"}}
    payments = service.halves("payments", "payment-captured", *[{"key": f"pay-{n}", **card} for n in range(812, 830)])
    service.halves("stock", "stock-moved", *[{"key": f"sku-{n}"} for n in range(5)])
    service.ask("payments", "payments-1")
    service.ask("payments", "payments-2")
    service.end("payments", payments[0], "unknown", from_check=True, remark="the bank has not answered yet")
    service.tokens["reader"] = service.token("reader", consume=["*"])
    with service.client("ada") as client:
        client.act("rollback", payments[-2:], "customers called, ticket 4711")
        client.act("resume", discarded[:1], "the mail server was down all night")
        client.act("check", payments[1:3], "the bank says that they are booked")
    return {"payment": payments[0], "discarded": discarded[1]}


def open_page(browser: Browser, service: ConsoleService, size: tuple[int, int], dark: bool) -> Page:
    viewport: ViewportSize = {"width": size[0], "height": size[1]}
    page = browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light").new_page()
    page.goto(service.url)
    page.get_by_label("Operator’s token").fill(service.tokens["ada"])
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector(".tile")
    return page


def take(page: Page, service: ConsoleService, path: str, name: str) -> None:
    page.goto(f"{service.url}/#/{path}")
    page.wait_for_selector("#main .card:not(.skeleton)")
    page.mouse.move(2, 2)
    page.wait_for_timeout(1500)  # a picture, not a test: let the page come to rest
    page.screenshot(path=IMAGES / f"console-{name}.png")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with busy_service() as (service, shown), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        page = open_page(browser, service, DESKTOP, dark=False)
        until_s = time.monotonic() + BUSY_S
        with service.client("reader") as client:
            while time.monotonic() < until_s:
                for topic, group in (("order-placed", "invoices"), ("order-placed", "shipping"), ("payment-captured", "ledger")):
                    client.consume(topic, group)
                with service.client() as member:
                    for group in ("orders", "payments", "mailing"):
                        member.poll_checks(group, f"{group}-1")
                    member.poll_checks("orders", "orders-2", max=1)
        for name in ("overview", "pending", "discarded", "history", "groups", "topics", "audit"):
            take(page, service, name, name)
        take(page, service, f"transaction/{shown['payment']}", "transaction")
        page.get_by_role("button", name="Roll back").click()
        page.get_by_label("Reason").fill("the bank has refused it, ticket 4712")
        page.screenshot(path=IMAGES / "console-action.png")
        dark = open_page(browser, service, DESKTOP, dark=True)
        take(dark, service, "overview", "overview-dark")
        phone = open_page(browser, service, PHONE, dark=True)
        for path, name in (("overview", "overview"), ("pending", "pending"), (f"transaction/{shown['discarded']}", "transaction")):
            take(phone, service, path, f"phone-{name}")
        browser.close()


if __name__ == "__main__":
    main()
