"""Messages found over all queues, from every page: by id, by key, or by a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.model.names import is_dead_queue
from shardq.server.pages.messages import row_of
from shardq.server.pages.page import Template

if TYPE_CHECKING:
    from shardq.server.pages.page import Page

_WORD_MAX = 1_000


async def found(page: Page) -> Template:
    """What is found by an id or a key; where nothing is, by a text."""
    wanted = page.query.get("q", "").strip()[:_WORD_MAX]
    by, after = page.query.get("by", ""), page.query.get("after", "")
    hits: dict[str, Any] = {"hits": [], "queues": 0}
    reads = page.allows("r")
    shown = by
    if wanted and by != "text":
        hits, shown = await page.read("find", q=wanted, after=after), "name"
    if wanted and reads and (by == "text" or (not by and not hits["hits"] and "next" not in hits)):
        hits, shown = await page.read("find", q=wanted, by="text", after=after), "text"
    look = await page.look()
    return Template(
        "find",
        {
            "wanted": wanted,
            "by": shown,
            "reads": reads,
            "rows": [
                row_of(page, one["queue"], one.get("message") or {"id": one["id"]})
                | {"where": one["where"], "by": one["by"], "state": one.get("state")}
                for one in hits["hits"]
            ],
            "queues": hits["queues"],
            "looked": hits.get("looked", 0),
            "next": hits.get("next"),
            "passed_over": hits.get("passed_over", {}),
            "names": sorted(one for one in look.views if not is_dead_queue(one)),
        },
    )
