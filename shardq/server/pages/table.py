"""The pages by their paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from shardq.server.pages import calendar, dead, find, messages, people, queues, schedules

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shardq.server.pages.page import Page, Template
    from shardq.server.web import Response


@dataclass(frozen=True, slots=True)
class Shown:
    """A page.

    Attributes:
        path: Its path, with parameters in braces.
        handler: Reads what it shows; or answers with what is no page, a file say.
    """

    path: str
    handler: Callable[[Page], Awaitable[Template | Response]]


PAGES = (
    Shown("/", queues.all_queues),
    Shown("/queues/{queue}", queues.one_queue),
    Shown("/queues/{queue}/messages", messages.of_queue),
    Shown("/queues/{queue}/messages/{message}", messages.one_message),
    Shown("/dead", dead.dead_messages),
    Shown("/dead/export", dead.export),
    Shown("/find", find.found),
    Shown("/workers", people.workers),
    Shown("/actions", people.actions),
    Shown("/calendar", calendar.calendar),
    Shown("/schedules", schedules.all_schedules),
    Shown("/queues/{queue}/schedules/{schedule}", schedules.one_schedule),
)


def found(path: str) -> tuple[Shown, Mapping[str, str]] | None:
    """The page of a path and its parameters; None if there is no such page.

    Args:
        path: Encoded part by part.
    """
    parts = path.split("/")
    for page in PAGES:
        wanted = page.path.split("/")
        if len(wanted) == len(parts) and all(
            bool(part) if name.startswith("{") else name == part
            for name, part in zip(wanted, parts, strict=True)
        ):
            place = {
                name[1:-1]: unquote(part)
                for name, part in zip(wanted, parts, strict=True)
                if name.startswith("{")
            }
            return page, place
    return None
