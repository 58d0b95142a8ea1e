"""The pages by their paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from shardq.server.api.route import place_of
from shardq.server.pages import calendar, dead, find, messages, people, queues, schedules

if TYPE_CHECKING:
    from shardq.server.pages.page import Page, Template
    from shardq.server.web import Response

Handler: TypeAlias = "Callable[[Page], Awaitable[Template | Response]]"
"""Reads what a page shows; or answers with a response that is no page, such as a file."""

PAGES: dict[str, Handler] = {
    "/": queues.all_queues,
    "/queues/{queue}": queues.one_queue,
    "/queues/{queue}/messages": messages.of_queue,
    "/queues/{queue}/messages/{message}": messages.one_message,
    "/dead": dead.dead_messages,
    "/dead/export": dead.export,
    "/find": find.found,
    "/workers": people.workers,
    "/actions": people.actions,
    "/calendar": calendar.calendar,
    "/schedules": schedules.all_schedules,
    "/queues/{queue}/schedules/{schedule}": schedules.one_schedule,
}
"""Path, with parameters in braces -> the handler of the page."""


def found(path: str) -> tuple[Handler, dict[str, str]] | None:
    """The handler of a path and its parameters; None if there is no such page.

    Args:
        path: Encoded part by part.
    """
    parts = [unquote(part) for part in path.split("/")]
    for page, handler in PAGES.items():
        wanted = page.split("/")
        if len(wanted) == len(parts) and (place := place_of(wanted, parts)) is not None:
            return handler, place
    return None
