"""The pages by their paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from shardq.server.pages import people, queues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from shardq.server.pages.page import Page, Template


@dataclass(frozen=True, slots=True)
class Shown:
    """A page.

    Attributes:
        path: Its path, with parameters in braces.
        handler: Reads what it shows.
    """

    path: str
    handler: Callable[[Page], Awaitable[Template]]


PAGES = (
    Shown("/", queues.all_queues),
    Shown("/queues/{queue}", queues.one_queue),
    Shown("/workers", people.workers),
    Shown("/actions", people.actions),
)


def found(path: str) -> tuple[Shown, Mapping[str, str]] | None:
    """The page of a path and its parameters; None if there is no such page."""
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
