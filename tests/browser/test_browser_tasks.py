"""Ten tasks of an operator, each in at most four clicks from the front page."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from browser.shop import Shop, opened, served
from browser.viewer import Viewer, looking
from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.nightly]
CLICKS_MAX = 4
_TRIES = 600


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(f"sqlite:///{tmp_path}/shop.db?synchronous=normal") as made:
        yield made


@contextmanager
def task(browser: Browser, shop: Shop) -> Iterator[Viewer]:
    """An operator at the front page, who has a few clicks."""
    with looking(browser, shop) as operator:
        operator.open("/")
        yield operator
        assert operator.clicks <= CLICKS_MAX
        assert not operator.problems


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    clock = SystemClock()
    for _ in range(_TRIES):
        if is_so():
            return
        clock.sleep(0.1)
    raise AssertionError("it never was so")


def test_why_a_message_is_late(browser: Browser, shop: Shop) -> None:
    with task(browser, shop) as operator:
        operator.click("40", operator.row("thumbnails"))
        operator.click_on(operator.page.locator("th.id a").first)
        operator.expect("nobody consumes queue 'thumbnails' now")


def test_what_died_and_why(browser: Browser, shop: Shop) -> None:
    with task(browser, shop) as operator:
        operator.click("4", operator.row("orders"))
        operator.expect("PaymentDeclined: order 1072: the bank declined the card")
        operator.click(shop.ids["dead"])
        operator.expect("raise PaymentDeclined")


def test_redrive_what_died_by_an_error(browser: Browser, tmp_path: Path) -> None:
    with served(f"sqlite:///{tmp_path}/shop.db?synchronous=normal") as shop:
        queue = shop.db.queue("imports")
        queue.put_many({"body": f"page {number}"} for number in range(420))
        while some := queue.receive(max=100, visibility="60s"):
            for one in some:
                is_refused = int(one.text.split()[1]) < 300
                queue.bury(one, "ConnectionRefusedError: db" if is_refused else "KeyError: 'id'")
        with task(browser, shop) as operator:
            operator.click("420", operator.row("imports"))
            operator.fill("Error", "ConnectionRefused", enter=True)
            operator.expect("All that match:")
            operator.click(
                "Redrive", operator.page.locator(".chosen > .buttons", has_text="All that match")
            )
            operator.expect("300 of 300", within=".bulk")
        assert sorted(int(one.text.split()[1]) for one in queue.peek(500)) == [*range(300)]
        assert queue.dead.depth(exact=True).ready == 120


def test_pause_and_resume_a_queue(browser: Browser, shop: Shop) -> None:
    orders = shop.db.queue("orders")
    with task(browser, shop) as operator:
        operator.click("Pause", operator.row("orders"))
        operator.expect("orders is paused.")
        until(lambda: orders.settings.paused)
        operator.click("Resume", operator.row("orders"))
        operator.expect("orders goes on.")
        until(lambda: not orders.settings.paused)


def test_find_a_message_by_its_key_and_run_it_now(browser: Browser, shop: Shop) -> None:
    with task(browser, shop) as operator:
        operator.fill("Find by id, key or text", "order-2001", enter=True)
        operator.click(shop.ids["waiting"])
        operator.click("Run now")
        operator.expect("It is due now.")
    found = shop.db.queue("orders").get("order-2001")
    assert found is not None
    assert found.due.timestamp() * 1e3 <= SystemClock().now_ms()


def test_cancel_a_waiting_message(browser: Browser, shop: Shop) -> None:
    orders = shop.db.queue("orders")
    first = orders.peek(1)[0].id
    with task(browser, shop) as operator:
        operator.click_on(operator.row("orders").get_by_role("link").nth(1))
        operator.click(first)
        operator.click("Cancel", asks=True)
        operator.expect("It is cancelled.")
    assert orders.find(first) is None


def test_see_what_runs_where_and_cancel_a_run(browser: Browser, shop: Shop) -> None:
    with task(browser, shop) as operator:
        operator.click("Workers")
        row = operator.row(shop.ids["running"])
        shown = row.inner_text()
        assert "shop.resize" in shown
        # The page asks back also where it was put in place anew.
        until(lambda: row.inner_text() != shown)
        operator.click("Cancel", row, asks=True)
        operator.expect("It is running: it is asked to stop")
        until(lambda: shop.stopped == [shop.ids["running"]])


def test_see_what_a_schedule_does_next_and_pause_and_run_it(browser: Browser, shop: Shop) -> None:
    reports = shop.db.queue("reports")
    before = reports.depth(exact=True).ready
    with task(browser, shop) as operator:
        operator.click("Schedules")
        operator.click("nightly")
        operator.expect("By the clocks of America/New_York")
        operator.click("Pause")
        operator.expect("nightly is paused.")
        operator.click("Run now")
        operator.expect("nightly was run")
    nightly = reports.schedules.get("nightly")
    assert nightly is not None
    assert nightly.state == "paused"
    assert reports.depth(exact=True).ready == before + 1


def test_edit_a_dead_message_and_redrive_it(browser: Browser, shop: Shop) -> None:
    with task(browser, shop) as operator:
        operator.click("4", operator.row("orders"))
        operator.click(shop.ids["dead"])
        operator.fill("New body", '{"order": 1072, "outcome": "", "note": "by hand"}')
        operator.click("Redrive with this body")
        operator.expect("It is put back.")
    found = shop.db.queue("orders").find(shop.ids["dead"])
    assert found is not None
    assert "by hand" in found.text


def test_who_paused_a_queue(browser: Browser, shop: Shop) -> None:
    with task(browser, shop) as operator:
        operator.click("Who did what")
        operator.fill("About", "invoices", enter=True)
        operator.expect("pause", within="tr:has-text('(ada)')")
        assert "orders" not in operator.facts()
