"""The messages of a queue, and the story of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardq.model.message import TASK_HEADER
from shardq.server.api.problem import Refused
from shardq.server.pages import markup
from shardq.server.pages.page import Template

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.server.pages.page import Page

ROWS = 50
"""Messages of a page."""
LOOKED_MAX = 2_000
"""Messages that a page looks at; the page shows the number, and the next page continues."""
CUT_BYTES = 4_096
"""How much of each body is read for a list."""
_BEGINNING = 120
_FILTERS = ("text", "header", "group", "error", "task")
_TRACEBACK = "shardq-traceback"
_UNSAID: dict[str, Any] = {
    **dict.fromkeys(("key", "group", "error", "error_at", "held_by", "due", "first_due")),
    "attempt": 0,
    "priority": 0,
    "receipt": "",
}
"""The defaults that `/v1` leaves out of a message."""
_UNSAID_OF_STATE: dict[str, Any] = {
    **dict.fromkeys(("until", "since", "error", "behind", "member", "limit")),
    "attempts": 0,
    "ended": False,
}


async def of_queue(page: Page) -> Template:
    """The messages of a queue that are due first, those in flight included."""
    name = page.place["queue"]
    queue = await page.read("queues", name)
    reads = page.allows("r", name)
    filters = {one: page.query.get(one, "") for one in _FILTERS if reads or one != "text"}
    asked: dict[str, Any] = {**filters, "limit": ROWS, "look": LOOKED_MAX}
    asked["after"] = page.query.get("after", "")
    if reads:
        asked["cut"] = CUT_BYTES
    found = await page.read("queues", name, "messages" if reads else "envelopes", **asked)
    rows = [row_of(page, name, one) for one in found["messages"]]
    return Template(
        "messages",
        {
            "queue": queue,
            "rows": rows,
            "reads": reads,
            "filters": filters,
            "looked": found.get("looked", 0),
            "next": found.get("next"),
            "is_filtered": any(filters.values()),
        },
    )


def row_of(page: Page, queue: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as a list shows it.

    Args:
        page: The page.
        queue: The queue that it is in, or in which it died.
        message: The message, as `/v1` has it.
    """
    return {
        **_UNSAID,
        **message,
        "queue": queue,
        "task": (message.get("headers") or {}).get(TASK_HEADER),
        "beginning": beginning(message, page.site.options.hidden),
        "url": page.url_of("queues", queue, "messages", message["id"]),
    }


def beginning(message: Mapping[str, Any], hidden: tuple[str, ...]) -> str:
    """The beginning of a body, in a line; empty if the body is not shown."""
    size = message.get("body_bytes")
    if size is not None and hidden:
        # Only a whole body tells which values are to be hidden.
        return f"({size:,} bytes)"
    text, kind = markup.shown_body(message, hidden)
    if kind.startswith("bytes"):
        return f"({size or markup.size_of(message):,} bytes) {text[:40]}"
    line = " ".join(text[: 4 * _BEGINNING].split())
    return line if len(line) <= _BEGINNING and size is None else f"{line[:_BEGINNING]} …"


async def one_message(page: Page) -> Template:
    """A message: where it is, why it does not run, and its history."""
    queue, name = page.place["queue"], page.place["message"]
    reads = page.allows("r", queue)
    # An unknown queue is another answer than a message that has ended.
    await page.read("queues", queue)
    try:
        kind = "messages" if reads else "envelopes"
        state = await page.read("queues", queue, kind, name, near="true")
    except Refused as error:
        if error.status != 404:
            raise
        # Most messages end like this, also one that was cancelled just now.
        return Template("gone", {"queue": queue, "name": name, "detail": error.detail})
    message = state.get("message")
    headers: dict[str, str] = {} if message is None else message.get("headers", {})
    hidden = page.site.options.hidden
    records, no_history = await _history(page, queue, state["id"])
    task = headers.get(TASK_HEADER) or next((one["task"] for one in records if "task" in one), None)
    job = await _job(page, queue, state["id"]) if task and reads else None
    body, kind = ("", "") if message is None or not reads else markup.shown_body(message, hidden)
    values = {
        "queue": queue,
        "state": _UNSAID_OF_STATE | state,
        "said_of_state": _without(state["text"], state["where"]),
        "message": None if message is None else row_of(page, queue, message),
        "reads": reads,
        "is_dead": state["where"] == "dead",
        "task": task,
        "headers": markup.without(headers, hidden),
        "traceback": headers.get(_TRACEBACK),
        "records": records,
        "no_history": no_history,
        "job": job,
        "result": _result(job, hidden),
        "body": body,
        "kind": kind,
        "size": 0 if message is None else markup.size_of(message),
        "editable": editable(message, hidden) if message is not None and reads else None,
    }
    return Template("message", values)


def _without(text: str, where: str) -> str:
    """The text of a message's state, without the state itself, which is shown before it.

    >>> _without("waiting: due in 2h", "waiting"), _without("dead since 9:00", "dead")
    ('due in 2h', 'since 9:00')
    """
    return text.removeprefix(f"{where}: ").removeprefix(f"{where} ")


def editable(message: Mapping[str, Any], hidden: tuple[str, ...]) -> str | None:
    """The body for a form that changes it; None if a form would damage it.

    A form cannot hold bytes, invisible characters, or hidden values.
    """
    text = message.get("body")
    if text is None:
        text = "" if "body_base64" not in message else None
    if text is None or len(text) > markup.BODY_CHARS_MAX:
        return None
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return None
    if hidden and markup.shown_body(message, hidden) != markup.shown_body(message, ()):
        return None
    return str(text)


async def _history(page: Page, queue: str, name: str) -> tuple[list[dict[str, Any]], str]:
    """The records of a message in the history; and why there are none."""
    try:
        found = await page.read("queues", queue, "history", message=name)
    except Refused as error:
        return [], error.detail
    return found["records"], ""


async def _job(page: Page, queue: str, name: str) -> Any:
    """The job of a task; None if it is unknown."""
    try:
        return await page.read("queues", queue, "jobs", name)
    except Refused:
        return None


def _result(job: Mapping[str, Any] | None, hidden: tuple[str, ...]) -> str | None:
    if job is None or job.get("state") != "done" or "result" not in job:
        return None
    text = json.dumps(markup.without(job["result"], hidden), indent=2, ensure_ascii=False)
    return text[: markup.BODY_CHARS_MAX]
