"""The dead messages of a queue, or of all: why they died, and bulk actions on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardq.server.api.problem import Refused
from shardq.server.pages.deeds import FILTERS
from shardq.server.pages.messages import CUT_BYTES, LOOKED_MAX, ROWS, row_of
from shardq.server.pages.page import Template
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from shardq.server.pages.page import Page

_EXPORTED = 100
"""Messages that are read at a time for a file: each may have 1 MiB."""
_NAMED = tuple(one for one in FILTERS if one != "queue")
_UNSAID_OF_BULK: dict[str, Any] = {
    "chosen": 0,
    "gone": 0,
    "kept": 0,
    "rate": None,
    "ended": None,
    "error": "",
    "more": False,
}
"""The defaults that `/v1` leaves out of a bulk action."""
_LINES = "application/x-ndjson"


async def dead_messages(page: Page) -> Template:
    """The dead messages that match, the last one first, and the bulk actions."""
    filters = {one: page.query.get(one, "") for one in FILTERS}
    asked = {**filters, "after": page.query.get("after", ""), "limit": ROWS, "look": LOOKED_MAX}
    found = await page.read("dead", cut=CUT_BYTES, **asked)
    return Template(
        "dead",
        {
            "rows": [row_of(page, one["queue"], one["message"]) for one in found["dead"]],
            "filters": filters,
            "queues": found["queues"],
            "reads": all(page.allows("r", one) for one in found["queues"]),
            "next": found.get("next"),
            "problems": found.get("passed_over", {}),
            "looked": found.get("looked", 0),
            "is_filtered": any(filters[one] for one in _NAMED),
            "bulks": [_UNSAID_OF_BULK | one for one in (await page.read("dead", "bulks"))["bulks"]],
        },
    )


async def export(page: Page) -> Response:
    """The dead messages that match as a file, a JSON object a line, the last one first."""
    queues = await _queues(page)
    _check_reads(page, queues)
    return _file(_lines(page, queues))


async def export_chosen(page: Page, chosen: Sequence[str]) -> Response:
    """The chosen dead messages, each given as `QUEUE/ID`, as a file."""
    pairs = [(queue, name) for queue, _, name in (one.partition("/") for one in chosen)]
    _check_reads(page, [queue for queue, _ in pairs])
    lines = []
    for queue, name in pairs:
        state = await page.call("GET", "queues", queue, "messages", name)
        if message := state.get("message"):
            lines.append(_line(queue, message))
    return _file(_every(lines))


def _check_reads(page: Page, queues: Sequence[str]) -> None:
    """Refuse a file with bodies to a person who may not read them.

    Raises:
        Refused: If the person may not read one of the queues.
    """
    for one in queues:
        if not page.allows("r", one):
            raise Refused(403, f"you may not read the bodies of {one}.")


def _file(lines: AsyncIterator[bytes]) -> Response:
    named = ("content-disposition", 'attachment; filename="dead.jsonl"')
    return Response(200, lines, [("content-type", _LINES), named])


async def _lines(page: Page, queues: Sequence[str]) -> AsyncIterator[bytes]:
    for queue in queues:
        after = ""
        while True:
            given = {**_asked(page), "newest": "true", "limit": str(_EXPORTED), "after": after}
            query = {name: value for name, value in given.items() if value}
            found = await page.call("GET", "queues", queue, "dead", query=query)
            for one in found["messages"]:
                yield _line(queue, one)
            after = found.get("next", "")
            if not after:
                break


async def _every(lines: Sequence[bytes]) -> AsyncIterator[bytes]:
    for one in lines:
        yield one


def _line(queue: str, message: dict[str, Any]) -> bytes:
    shown = {name: one for name, one in message.items() if name not in {"receipt", "place"}}
    return json.dumps({"queue": queue, **shown}).encode() + b"\n"


def _asked(page: Page) -> dict[str, str]:
    """The filters, as calls of `/v1` have them."""
    return {one: page.query.get(one, "") for one in _NAMED}


async def _queues(page: Page) -> list[str]:
    """The queues whose dead messages are written to a file."""
    queue = page.query.get("queue", "")
    found = await page.read("dead", queue=queue, limit=1, look=1)
    return list(found["queues"])
