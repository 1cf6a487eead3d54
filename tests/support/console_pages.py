"""The console as somebody sees it who sits before it."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import BrowserContext, Dialog, Locator, Page, expect

from tests.support.console_service import ConsoleService

DESKTOP = {"width": 1360, "height": 860}
LAPTOP = {"width": 1024, "height": 768}
PHONE = {"width": 390, "height": 844}
SIZES = {"desktop": DESKTOP, "phone": PHONE}
#: How long anything may take that is only waited for. No goal: this machine may be busy.
PATIENCE_MS = 60_000.0
_WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
  (event) => window.violations.push(event.violatedDirective + " " + event.blockedURI));
"""


class Console:
    """One browser of one operator."""

    def __init__(self, context: BrowserContext, service: ConsoleService) -> None:
        self.context, self.service = context, service
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        context.add_init_script(_WATCH_POLICY)
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        #: Errors that a test brings about: the browser reports every refused request.
        self.meant: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", self._on_dialog)
        self.page.goto(service.url)

    def _on_dialog(self, dialog: Dialog) -> None:
        self.errors.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def log_in(self, who: str = "ada") -> Console:
        self.page.get_by_label("Operator’s token").fill(self.service.tokens[who])
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.locator(".tile").first).to_be_visible()
        return self

    def go(self, path: str) -> Page:
        self.page.goto(f"{self.service.url}/#/{path}")
        return self.page

    def row(self, key: str) -> Locator:
        return self.page.locator("tbody tr", has=self.page.get_by_role("link", name=key, exact=True))

    def keys(self) -> list[str]:
        """Keys of the list that is shown."""
        return self.page.locator("tbody a.key").all_text_contents()

    def act(self, reason: str, number: int | None = None) -> None:
        """Go through the dialog that is open."""
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill(reason)
        if number is not None:
            dialog.get_by_label("Confirm").fill(str(number))
        dialog.locator("button[type=submit]").click()
        expect(dialog.get_by_text(re.compile(r"Done|Queued|Nothing was changed"))).to_be_visible()
        dialog.get_by_role("button", name="Close").click()

    def width(self) -> tuple[int, int]:
        """(how wide the page is, how wide the screen is)."""
        found: Any = self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        return found[0], found[1]

    def leave(self) -> None:
        """Nothing went wrong on the page, whatever was done."""
        violations = [] if self.page.is_closed() else self.page.evaluate("window.violations ?? []")
        self.context.close()
        assert violations == []
        assert [text for text in self.errors if not any(re.search(each, text) for each in self.meant)] == []
