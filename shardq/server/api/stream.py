"""A stream of messages: server-sent events, at most a window of them unsettled.

```
 receive ──► unsettled: receipt ──► event ──► client
   ▲             │ settled here: told at once        client gone, server stops:
   └── room ◄────┘ settled elsewhere: read each second    all that is unsettled is released
```
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from shardq.errors import ShardqError
from shardq.model.times import duration_ms, duration_text
from shardq.server.api.deliveries import release
from shardq.server.api.route import QUEUE, RouteCall, json_bytes, route
from shardq.server.api.shapes import MANY_MAX, Span, message_of
from shardq.server.grants import Level
from shardq.server.web import Response, TooMany

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from shardq.server.access import Caller
    from shardq.server.hub import ServedQueue
    from shardq.server.site import Site

log = logging.getLogger(__name__)

MEDIA = "text/event-stream"
_HEARTBEAT = b": heartbeat\n\n"
_HEARTBEAT_MS = 15_000
_ELSEWHERE_S = 1.0
"""How often receipts are read while the window is full: other processes may have settled them."""


class StreamQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The messages to stream.

    Attributes:
        window: How many messages may be unsettled at once.
        visibility: How long each belongs to the client. One not settled by then is delivered again.
        per_group: The most messages of one group.
    """

    window: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 10
    visibility: Span = "30s"
    per_group: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 1


class Stream:
    """The messages of one client.

    Args:
        site: The site that answers it.
        queue: The queue.
        wanted: The query of the client.
        caller: The client, as it was admitted.
    """

    def __init__(self, site: Site, queue: ServedQueue, wanted: StreamQuery, caller: Caller) -> None:
        self._site = site
        self._queue = queue
        self._wanted = wanted
        self._caller = caller
        self._unsettled: set[str] = set()
        self._has_room = asyncio.Event()

    async def events(self) -> AsyncIterator[bytes]:
        """An event for each message, and comments while there is none."""
        self._queue.on_settled.add(self._on_settled)
        try:
            # Sent at once, so that the client knows that it is connected.
            yield b": connected\n\n"
            while not self._site.leaving.is_set() and await self._site.admits(self._caller):
                room = self._wanted.window - len(self._unsettled)
                if room <= 0:
                    if not await self._is_told_of_room():
                        yield _HEARTBEAT
                    continue
                for event in await self._receive(room):
                    yield event
        except (ShardqError, TooMany) as error:
            # The status is sent already. The answer to the client's next request names the error.
            log.info("a stream of queue %s has ended: %s", self._queue.name, error)
        finally:
            self._queue.on_settled.discard(self._on_settled)
            await self._release()

    async def _release(self) -> None:
        """Release unsettled messages; those that the store does not release are delivered later."""
        if self._unsettled:
            try:
                await release(self._queue, list(self._unsettled))
            except ShardqError as error:
                log.info("deliveries of queue %s are not released: %s", self._queue.name, error)

    async def _receive(self, room: int) -> list[bytes]:
        """The next messages as events; a comment if there are none."""
        wanted = self._wanted
        taking = self._queue.queue.receive(
            room, wanted.visibility, duration_text(_HEARTBEAT_MS), per_group=wanted.per_group
        )
        found = await self._site.poll(taking, self._caller)
        if found is None:
            return []
        if not found:
            return [_HEARTBEAT]
        events = []
        for one in found:
            made = message_of(one)
            self._unsettled.add(made.receipt)
            data = json_bytes(made)
            events.append(b"event: message\nid: %s\ndata: %s\n\n" % (made.id.encode(), data))
        return events

    async def _is_told_of_room(self) -> bool:
        """Wait until a delivery is settled here; after a second, read ones settled elsewhere."""
        self._has_room.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ELSEWHERE_S):
                await self._site.unless_leaving(self._has_room.wait())
                return True
        asked = list(self._unsettled)
        left = await self._queue.unsettled(asked)
        # Not `= left`: an extension may have put another receipt there meanwhile.
        self._unsettled -= set(asked).difference(left)
        return False

    def _on_settled(self, settled: Mapping[str, str | None]) -> None:
        for old, new in settled.items():
            if old in self._unsettled:
                self._unsettled.discard(old)
                if new is not None:
                    self._unsettled.add(new)
                self._has_room.set()


@route("GET", QUEUE + "/stream", Level.READ, media=MEDIA)
async def stream_messages(call: RouteCall[StreamQuery, None]) -> Response:
    """A stream of messages as server-sent events, each with its receipt.

    At most `window` messages are unsettled. Without messages there is a comment every 15 seconds.
    The stream ends when the server stops, its key is revoked, the queue is dropped, or the store
    fails. Unsettled messages are released then, which costs no attempt.
    """
    duration_ms(call.query.visibility, name="visibility")
    queue = await call.queue()
    call.site.check_polls(call.caller)
    stream = Stream(call.site, queue, call.query, call.caller)
    headers = [("content-type", MEDIA), ("cache-control", "no-store"), ("x-accel-buffering", "no")]
    return Response(200, stream.events(), headers)
