"""A page as events: what has changed of it is sent again, as long as somebody looks at it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shardq.errors import ShardqError
from shardq.server.pages.page import NotShown
from shardq.server.web import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from shardq.server.pages.page import Page
    from shardq.server.site import Site

MEDIA = "text/event-stream"
_EVERY_S = 1.5
_QUIET_S = 15.0
_STREAMS_MAX = 200
_open: dict[int, int] = {}
"""Site -> its open streams."""


def stream(page: Page, render: Callable[[], Awaitable[str]]) -> Answer:
    """The answer that is a page's changes.

    Args:
        page: The page.
        render: Makes what changes of it, as HTML.

    Raises:
        NotShown: If as many streams are open as may be; the page is still readable.
    """
    if _open.get(id(page.site), 0) >= _STREAMS_MAX:
        raise NotShown(503, f"{_STREAMS_MAX} pages are followed already; reload this one.")
    headers = [("content-type", MEDIA), ("cache-control", "no-store"), ("x-accel-buffering", "no")]
    return Answer(200, _events(page, render), headers)


async def _events(page: Page, render: Callable[[], Awaitable[str]]) -> AsyncIterator[bytes]:
    site, name = page.site, id(page.site)
    _open[name] = _open.get(name, 0) + 1
    try:
        yield b"retry: 3000\n: connected\n\n"
        before, quiet_s = "", 0.0
        while not site.leaving.is_set() and await site.admits(page.session.caller):
            with suppress(ShardqError):
                html = await render()
                if html != before:
                    before, quiet_s = html, 0.0
                    yield b"data: %s\n\n" % json.dumps(html).encode()
            await _pause(site)
            quiet_s += _EVERY_S
            if quiet_s >= _QUIET_S:
                quiet_s = 0.0
                yield b": still here\n\n"
    finally:
        _open[name] -= 1
        if not _open[name]:
            del _open[name]


async def _pause(site: Site) -> Any:
    with suppress(TimeoutError):
        async with asyncio.timeout(_EVERY_S):
            await site.leaving.wait()
