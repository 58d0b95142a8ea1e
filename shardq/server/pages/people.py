"""Consumers with their runs, and the log of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.server.pages.page import Template

if TYPE_CHECKING:
    from shardq.server.pages.page import Page

_ACTIONS_MAX = 200


async def workers(page: Page) -> Template:
    """The consumers of all queues, or of one, and the messages that their handlers run."""
    look, queue = await page.look(), page.query.get("queue", "")
    found = [
        (view.name, member)
        for view in look.views.values()
        if not queue or view.name == queue
        for member in view.members
    ]
    runs = [
        (name, member.name, message, task, run_ms)
        for name, member in found
        for message, run_ms, task in member.runs
    ]
    idle = [
        view
        for view in look.views.values()
        if view.depth.ready and not view.members and not view.settings.paused
        if not queue or view.name == queue
    ]
    return Template(
        "workers",
        {
            "look": look,
            "queue": queue,
            "members": sorted(found, key=lambda one: (one[0], one[1].name)),
            "runs": sorted(runs, key=lambda one: -one[4]),
            "idle": idle,
        },
    )


async def actions(page: Page) -> Template:
    """Commands that changed or removed something, the last one first."""
    wanted, who = page.query.get("object", ""), page.query.get("who", "")
    found = await page.read("actions", limit=1_000, object=wanted)
    shown = [one for one in found["actions"] if who in one["who"]][:_ACTIONS_MAX]
    return Template("actions", {"actions": shown, "wanted": wanted, "who": who})
