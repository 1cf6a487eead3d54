"""Each flow of the console, at a desk and at a phone."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from tests.support.console_pages import DESKTOP, PHONE, SIZES, Console
from tests.support.console_service import console_service
from tests.support.endpoint import quiet_port, until

PAGES = ("overview", "pending", "discarded", "conflicts", "dead-letters", "history", "groups", "topics", "audit")
HOSTILE = '"><img src=x onerror="window.hit=1"><script>window.hit=1</script>'


@pytest.fixture(scope="module")
def sample(service):
    """Something of everything: halves that wait, that ended, that were put aside."""
    ids = service.halves("orders", "order-placed", *[{"key": f"order-{number}"} for number in range(6)])
    service.end("orders", ids[0], "commit")
    service.end("orders", ids[1], "rollback")
    (discarded,) = service.discard("mailing", "mail-sent", {"key": "letter-1"})
    service.halves(
        "stock", "stock-moved", {"key": "sku-7", "text": '{"sku": 7}', "tags": "moved", "properties": {"colour": "blue"}}
    )
    with service.client() as client:
        client.poll_checks("orders", "orders-1")
    return {**{f"order-{number}": id for number, id in enumerate(ids)}, "letter-1": discarded}


def state_of(service, id):
    with service.client("ada") as client:
        return client.transaction(id)["state"]


# --- logging in ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES)
def test_log_in_and_out(open_console, service, size):
    console = open_console(SIZES[size])
    console.meant = ["40[13]"]
    page = console.page
    page.get_by_label("Operator’s token").fill("escrow_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not a bearer token")
    page.get_by_label("Operator’s token").fill(service.tokens["shop"])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("may not act as operator")
    console.log_in()
    (cookie,) = console.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.reload()
    expect(page.locator(".tile").first).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_text("You are logged out.")).to_be_visible()
    assert console.context.cookies() == []


def test_a_revoked_token_ends_the_session(open_console, service):
    service.tokens["bob"] = service.token("bob", operator=True)
    console = open_console()

    def known():
        with service.client("bob") as client:
            return client.raw("GET", "/v1/status")[0] == 200

    until(known)
    console.log_in("bob")
    console.meant = ["401"]
    file = service.data / "keys" / "tokens.toml"
    content = file.read_text()
    file.write_text(content[: content.index("[[token]]", content.index('name = "shop"'))])
    expect(console.page.get_by_text("Your session is over")).to_be_visible()


# --- pages --------------------------------------------------------------------------------------------------------------------
def test_the_overview_shows_figures_charts_and_parts(console, sample):
    page = console.page
    expect(page.locator(".tile.lead .tile-value")).to_contain_text(re.compile(r"[1-9]"))
    expect(page.locator("figure svg path.stroke").first).to_be_attached()
    expect(page.get_by_role("img", name=re.compile("Throughput, each second: Halves"))).to_be_visible()
    for part in ("Edge", "Streaming job", "Check delivery", "Disk", "Clock"):
        expect(page.locator(".parts li", has_text=part)).to_have_class("good")
    expect(page.locator(".findings li", has_text="stock")).to_contain_text("1 in doubt, nobody online")
    expect(page.locator(".health")).to_have_class("health bad")
    expect(page.locator(".as-of")).to_have_text(re.compile(r"as of \d\d:\d\d:\d\d"))
    expect(page.locator(".bars")).to_contain_text("orders")
    page.locator(".bars").get_by_role("link", name="stock", exact=True).click()
    expect(page.get_by_role("heading", name="stock")).to_be_visible()


def test_every_page_fits_the_screen(console, sample):
    for path in (*PAGES, f"transaction/{sample['letter-1']}"):
        page = console.go(path)
        expect(page.locator("#main .card:not(.skeleton)").first).to_be_visible()
        width, screen = console.width()
        assert width <= screen, path
        assert page.locator("h1").count() == 1, path


def test_a_search_by_key_group_age_and_attempts(console, sample):
    page = console.go("pending")
    expect(console.row("order-2")).to_be_visible()
    search = page.get_by_label("Search id, key, group, topic")
    search.fill("order-3")
    search.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert console.keys() == ["order-3"]
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Group", exact=True).fill("stock")
    page.get_by_label("Group", exact=True).press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert console.keys() == ["sku-7"]
    page.get_by_label("Age", exact=True).select_option("86400")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.get_by_role("link", name="Show all").click()
    expect(console.row("order-2")).to_be_visible()
    page.get_by_label("Order", exact=True).select_option("newest")
    expect(page.locator("tbody a.key").first).not_to_have_text("order-2")
    page.get_by_label("Attempts", exact=True).select_option("10")
    expect(page.get_by_text("Nothing matches")).to_be_visible()


def test_one_transaction_with_its_message_and_timeline(console, sample):
    page = console.go("pending?group=stock")
    console.row("sku-7").click()
    expect(page.get_by_role("heading", name=re.compile("sku-7"))).to_be_visible()
    expect(page.locator(".timeline")).to_contain_text("Stored by its producer")
    expect(page.get_by_label("Body of the message")).to_have_text(re.compile(r'^\{\s+"sku": 7\s+\}$'))
    expect(page.locator(".message")).to_contain_text("blue")
    expect(page.locator(".facts.two").filter(has_text="stock-moved")).to_contain_text("moved")
    page.get_by_role("button", name="Hex").click()
    expect(page.get_by_label("Body of the message")).to_contain_text("000000  7b 22 73 6b 75")
    page.get_by_role("link", name="Pending", exact=True).last.click()
    expect(console.row("sku-7")).to_be_visible()


def test_check_now_then_commit_with_a_reason(console, service, sample):
    group = f"payments-{time.monotonic_ns()}"
    (id,) = service.halves(group, "payment-captured", {"key": "pay-1"})
    page = console.go(f"transaction/{id}")
    page.get_by_role("button", name="Check now").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 would be queued")
    console.act("the bank called")
    expect(page.locator(".why-card")).to_contain_text("queued: the first member that comes is asked")
    with service.client() as client:
        assert [each["id"] for each in client.poll_checks(group, "payments-1", wait_s=20)] == [id]
    expect(page.locator(".timeline")).to_contain_text("payments-1")
    page.get_by_role("button", name="Commit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 would be accepted")
    dialog.locator("button[type=submit]").click()
    expect(dialog.get_by_label("Reason")).to_be_focused()
    console.act("ticket 4711")
    expect(page.locator(".timeline")).to_contain_text("Committed by an operator")
    expect(page.locator(".timeline")).to_contain_text("ticket 4711")
    expect(page.get_by_role("group", name="Actions")).to_be_empty()
    assert state_of(service, id) == "COMMITTED"


def test_selected_rows_are_rolled_back_and_the_audit_says_who(console, service, sample):
    group = f"bulk-{time.monotonic_ns()}"
    ids = service.halves(group, "bulk-topic", *[{"key": f"b-{number}"} for number in range(4)])
    page = console.go(f"pending?group={group}")
    for key in ("b-0", "b-2"):
        page.get_by_label(f"Select {key}").check()
    expect(page.get_by_role("toolbar")).to_contain_text("2 selected")
    page.get_by_role("toolbar").get_by_role("button", name="Roll back").click()
    console.act("they were test orders", 2)
    expect(page.locator("tbody tr")).to_have_count(2)
    assert [state_of(service, id) for id in ids] == ["ROLLED_BACK", "PREPARED", "ROLLED_BACK", "PREPARED"]
    page.goto(f"{service.url}/#/audit")
    first = page.locator(".audit > li").first
    for text in ("ada", "Roll back", "2 transactions", "they were test orders", "2 accepted"):
        expect(first).to_contain_text(text)
    first.get_by_text("2 ids").click()
    first.locator(".ids a").first.click()
    expect(page.get_by_role("heading", name=re.compile("b-0"))).to_be_visible()


def test_all_that_match_need_their_number(console, service, sample):
    group = f"all-{time.monotonic_ns()}"
    ids = service.halves(group, "all-topic", *[{"key": f"a-{number}"} for number in range(5)])
    page = console.go(f"pending?group={group}")
    page.get_by_text("All 5 that match").click()
    page.locator(".menu").get_by_role("button", name="Commit").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 would be accepted")
    dialog.get_by_label("Reason").fill("the batch job says all is booked")
    dialog.get_by_label("Confirm").fill("4")
    dialog.locator("button[type=submit]").click()
    expect(dialog.get_by_role("alert")).to_have_text("Type 5 to confirm.")
    assert state_of(service, ids[0]) == "PREPARED"
    console.act("the batch job says all is booked", 5)
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    assert {state_of(service, id) for id in ids} == {"COMMITTED"}


def test_more_than_was_seen_is_not_touched(open_console, service):
    console = open_console().log_in()
    console.meant = ["409"]
    (id,) = service.halves("growing", "t", {"key": "one"})
    page = console.go("pending?group=growing")
    page.get_by_text("All 1 that match").click()
    page.locator(".menu").get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("one only")
    service.halves("growing", "t", {"key": "two"})
    dialog.locator("button[type=submit]").click()
    expect(dialog.get_by_role("alert")).to_contain_text("matches 2 now, 1 were expected")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_attached()
    assert state_of(service, id) == "PREPARED"


def test_a_discarded_half_is_resumed(console, service, sample):
    page = console.go("discarded")
    expect(console.row("letter-1")).to_contain_text("asked too often")
    console.row("letter-1").click()
    page.get_by_role("button", name="Resume").click()
    console.act("the mailer is up again")
    expect(page.locator(".timeline")).to_contain_text("Resumed by an operator")
    assert state_of(service, sample["letter-1"]) == "PREPARED"
    page.goto(f"{service.url}/#/discarded")
    expect(page.get_by_text("Nothing is discarded")).to_be_visible()
    for _ in range(2):  # for the next size
        service.ask("mailing", "deaf-1")
    until(lambda: service.round() or state_of(service, sample["letter-1"]) == "DISCARDED_MAX")


def test_groups_with_members_and_topics_with_lag(console, service, sample):
    with service.client() as client:
        client.poll_checks("orders", "orders-1")
    page = console.go("groups")
    expect(page.locator("tr", has_text="orders")).to_contain_text("orders-1")
    expect(page.locator("tr", has_text="stock")).to_contain_text("nobody online")
    if "reader" not in service.tokens:
        service.tokens["reader"] = service.token("reader", consume=["*"])
    with service.client("reader") as client:
        until(lambda: client.raw("GET", "/v1/topics/order-placed/messages?group=invoices&consumer=me")[0] == 200)
    page.goto(f"{service.url}/#/topics")
    expect(page.locator("tr", has_text="order-placed")).to_contain_text("invoices")
    expect(page.locator("tr", has_text="mail-sent")).to_contain_text("nobody reads it")


def test_history_by_state_key_and_time(console, service, sample):
    page = console.go("history?group=orders")
    expect(console.row("order-0")).to_contain_text("committed")
    expect(console.row("order-1")).to_contain_text("rolled back")
    page.get_by_label("State", exact=True).select_option("rolled_back")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{service.url}/#/history?key=order-0")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{service.url}/#/history?until=2020-01-01T00:00:00")
    expect(page.get_by_text("Nothing matches")).to_be_visible()
    page.get_by_label("Find a transaction by id or key").fill(sample["order-0"])
    page.get_by_label("Find a transaction by id or key").press("Enter")
    expect(page.get_by_role("heading", name=re.compile("order-0"))).to_be_visible()


# --- what messages hold -----------------------------------------------------------------------------------------------------------
def test_nothing_in_a_message_is_run(console, service):
    with service.client() as client:
        item = {"key": HOSTILE, "text": HOSTILE, "tags": HOSTILE, "properties": {HOSTILE: HOSTILE}}
        (id,) = client.prepare([{"group": "evil", "topic": "evil", **item}])
        client.end("evil", id, "unknown", remark=HOSTILE)
        client.poll_checks("evil", HOSTILE)
    with service.client("ada") as client:
        client.act("check", [id], HOSTILE)
    page = console.go("pending?group=evil")
    expect(page.locator("tbody a.key").first).to_have_attribute("title", HOSTILE)
    for path in (f"transaction/{id}", "audit", "groups", "overview", f"pending?q={HOSTILE}"):
        page.goto(f"{service.url}/#/{path}")
        expect(page.locator("#main .card").first).to_be_visible()
    page.goto(f"{service.url}/#/transaction/{id}")
    expect(page.get_by_label("Body of the message")).to_have_text(HOSTILE)
    expect(page.locator(".timeline")).to_contain_text(HOSTILE)
    assert page.evaluate("window.hit") is None
    assert page.locator("#main img, #main script").count() == 0
    with service.client("ada") as client:
        client.act("rollback", [id], "tidy up")


def test_a_binary_body_is_shown_in_hex_and_a_large_one_is_cut(open_console, service):
    console = open_console().log_in()
    with service.client() as client:
        binary, large = client.prepare(
            [{"group": "odd", "topic": "t", "body": "AAH/"}, {"group": "odd", "topic": "t", "text": "ä" * 40_000}]
        )
    page = console.go(f"transaction/{binary}")
    expect(page.get_by_label("Body of the message")).to_have_text("000000  00 01 ff" + " " * 41 + "···")
    page.goto(f"{service.url}/#/transaction/{large}")
    expect(page.locator(".message-head")).to_contain_text("78.1 KiB, the first 16.0 KiB shown")
    expect(page.get_by_label("Body of the message")).to_contain_text("äää")


# --- keys, themes, troubles ----------------------------------------------------------------------------------------------------
def test_by_keyboard_alone(open_console, service, sample):
    console = open_console().log_in()
    page = console.page
    page.reload()
    expect(page.locator(".tile").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Find a transaction by id or key")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator("tbody tr").first).to_be_focused()
    page.keyboard.press("x")
    expect(page.get_by_role("toolbar")).to_contain_text("1 selected")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.locator("tbody tr").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".timeline")).to_be_visible()


def test_dark_and_light(open_console):
    console = open_console(DESKTOP, color_scheme="dark").log_in()
    back = "getComputedStyle(document.body).backgroundColor"
    dark = console.page.evaluate(back)
    console.page.get_by_role("button", name="Light theme").click()
    light = console.page.evaluate(back)
    assert dark != light
    console.page.reload()
    expect(console.page.locator(".tile").first).to_be_visible()
    assert console.page.evaluate(back) == light


def test_a_silent_job_is_shown_on_every_page(open_console, service):
    console = open_console(PHONE).log_in()
    console.go("audit")
    service.stop_job()
    try:
        expect(console.page.get_by_role("alert").filter(has_text="The streaming job is down")).to_be_visible()
        expect(console.page.locator(".health")).to_contain_text("Streaming job: The streaming job is down")
    finally:
        service.start_job()
    expect(console.page.locator(".health")).not_to_contain_text("Streaming job")


def test_an_edge_that_has_gone_and_is_back(tmp_path_factory, chromium):
    with console_service(tmp_path_factory.mktemp("restart") / "data", port=quiet_port()) as service:
        console = Console(chromium.new_context(viewport=DESKTOP), service).log_in()
        console.meant = ["ERR_CONNECTION", "ERR_EMPTY", "401", "Failed to fetch"]
        service.endpoint.kill()
        expect(console.page.get_by_text("The edge does not answer")).to_be_visible()
        service.endpoint.start()
        expect(console.page.get_by_text("Your session is over")).to_be_visible()
        console.log_in()
        console.leave()


def test_pages_that_are_not_there(open_console, service):
    console = open_console().log_in()
    console.meant = ["404"]
    expect(console.go("nonsense").get_by_text("There is no such page")).to_be_visible()
    expect(console.go("transaction/nonsense").get_by_text("No such transaction")).to_be_visible()
