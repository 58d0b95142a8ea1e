"""The list of queues, and the page of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.model import settings
from shardq.server.api.problem import Refused
from shardq.server.pages.page import Template

if TYPE_CHECKING:
    from shardq.server.pages.page import Page

_ORDERS = {
    "name": lambda one: one.name,
    "ready": lambda one: -one.depth.ready,
    "waiting": lambda one: -one.depth.waiting,
    "dead": lambda one: -one.dead,
    "late": lambda one: -one.lag_ms,
    "rate": lambda one: -one.delivered_rate,
}


async def all_queues(page: Page) -> Template:
    """All queues, with their depths and lateness."""
    look = await page.look()
    wanted, order = page.query.get("q", ""), page.query.get("order", "name")
    shown = [one for one in look.views.values() if wanted in one.name]
    return Template(
        "queues",
        {
            "look": look,
            "queues": sorted(shown, key=_ORDERS.get(order, _ORDERS["name"])),
            "order": order,
            "wanted": wanted,
            "orders": list(_ORDERS),
        },
    )


async def one_queue(page: Page) -> Template:
    """One queue."""
    name = page.place["queue"]
    queue = await page.read("queues", name)
    look = await page.look_at(name)
    view = look.views.get(name)
    if view is None and look.away:
        raise Refused(503, look.away)
    if view is None and not look.passed_over.get(name):
        raise Refused(404, f"there is no queue {name!r}.")
    fixed = [name for name, one in settings.CHOICES.items() if one.stored in settings.FIXED]
    pauses = [] if view is None else settings.pauses_of(view.settings, view.at_ms)
    return Template(
        "queue",
        {"queue": queue, "view": view, "look": look, "fixed": fixed, "pauses": pauses},
    )
