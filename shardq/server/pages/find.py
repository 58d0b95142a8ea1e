"""Messages found over all queues, from every page: by id, by key, or by a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq.server.pages.messages import row_of
from shardq.server.pages.page import Template

if TYPE_CHECKING:
    from shardq.server.pages.page import Page

_WORD_MAX = 1_000
_UNSAID: dict[str, Any] = {"ended": None, "error": "", "passed_over": {}}
"""The defaults that `/v1` leaves out of a search."""


async def found(page: Page) -> Template:
    """The messages found by an id or a key; if there are none, by a text."""
    wanted = page.query.get("q", "").strip()[:_WORD_MAX]
    by, after = page.query.get("by", ""), page.query.get("after", "")
    hits: dict[str, Any] = {"hits": [], "queues": 0}
    searches = (await page.read("find", "searches"))["searches"] if wanted else []
    search = next((_UNSAID | one for one in searches if one["q"] == wanted), None)
    reads = page.allows("r")
    shown = by
    if search is not None and not by:
        hits, shown = {**hits, "hits": search["hits"], "queues": search["done"]}, "name"
    elif wanted and by != "text":
        hits, shown = await page.read("find", q=wanted, after=after), "name"
    is_nowhere = not (by or search or hits["hits"] or "next" in hits)
    if wanted and reads and (by == "text" or is_nowhere):
        hits, shown = await page.read("find", q=wanted, by="text", after=after), "text"
    return Template(
        "find",
        {
            "wanted": wanted,
            "search": search,
            "by": shown,
            "reads": reads,
            "rows": [_row(page, one) for one in hits["hits"]],
            "queues": hits["queues"],
            "looked": hits.get("looked", 0),
            "next": hits.get("next"),
            "passed_over": hits.get("passed_over", {}),
        },
    )


def _row(page: Page, hit: dict[str, Any]) -> dict[str, Any]:
    queue = hit["queue"]
    row = row_of(page, queue, hit.get("message") or {"id": hit["id"]})
    if hit["where"] == "live" and "receipt" in hit:
        # A far message is found by its place.
        row["url"] = page.url_of("queues", queue, "messages", hit["receipt"])
    return row | {"where": hit["where"], "by": hit["by"], "state": hit.get("state")}
