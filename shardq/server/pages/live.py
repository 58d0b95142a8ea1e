"""A page as events: its changes are sent as long as somebody looks at it."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shardq.errors import ShardqError
from shardq.server.api.problem import Refused
from shardq.server.pages.looks import Looks
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from shardq.server.pages.page import Page

MEDIA = "text/event-stream"
_EVERY_S = 1.0
_QUIET_S = 15.0
_ADMITTED_US = 1_500_000
"""How often the server checks that a viewer is still admitted."""
_STREAMS_MAX = 200
_TOKEN = secrets.token_hex(12)
"""The token in the forms of the shared page; each viewer is sent its own in its place."""
_open: dict[int, int] = {}
"""Site -> its open streams."""


def stream(page: Page, render: Callable[[Page], Awaitable[str]]) -> Response:
    """The answer that streams a page's changes.

    Args:
        page: The page.
        render: Makes the changing part of a page, as HTML.

    Raises:
        Refused: If too many streams are open; the page itself is still readable.
    """
    if _open.get(id(page.site), 0) >= _STREAMS_MAX:
        raise Refused(503, f"{_STREAMS_MAX} pages are followed already; reload this one.")
    headers = [("content-type", MEDIA), ("cache-control", "no-store"), ("x-accel-buffering", "no")]
    return Response(200, _events(page, render), headers)


async def _events(page: Page, render: Callable[[Page], Awaitable[str]]) -> AsyncIterator[bytes]:
    site, name = page.site, id(page.site)
    looks, boot_us = site.own(Looks), site.clock.boot_us
    token = json.dumps(page.session.token)[1:-1].encode()
    shared = replace(page, session=replace(page.session, token=_TOKEN, name=""))

    async def event() -> bytes:
        return b"data: %s\n\n" % json.dumps(await render(shared)).encode()

    _open[name] = _open.get(name, 0) + 1
    try:
        yield b"retry: 3000\n: connected\n\n"
        before, sent_us, admitted_us = b"", boot_us(), 0
        while not site.leaving.is_set():
            if boot_us() >= admitted_us + _ADMITTED_US:
                if not await site.admits(page.session.caller):
                    break
                admitted_us = boot_us()
            with suppress(ShardqError):
                # All viewers with the same rights share it.
                made = await site.answers.of(
                    (*page.rights, "live", page.url), event, since_us=looks.ended_us
                )
                if made is not before:
                    before, sent_us = made, boot_us()
                    yield made.replace(_TOKEN.encode(), token)
            await site.unless_leaving(looks.ended(_EVERY_S))
            if boot_us() >= sent_us + _QUIET_S * 1e6:
                sent_us = boot_us()
                yield b": still here\n\n"
    finally:
        _open[name] -= 1
        if not _open[name]:
            del _open[name]
