"""Messages by key: put, looked up, moved, edited and cancelled, exact despite any crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType

from shardq.model.times import asked_ms
from shardq.records.actions import What
from shardq.server.api.messages import Told, told
from shardq.server.api.problem import Refused
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import (
    KeyedMessage,
    NewBody,
    Put,
    Span,
    Time,
    put_of,
    struct_of,
    text_or_bytes,
)
from shardq.server.grants import Level

if TYPE_CHECKING:
    from shardq.lifecycle.keyed import Snapshot


_KEY = QUEUE + "/keys/{key}"


class Keyed(Struct, kw_only=True, omit_defaults=True):
    """The message that has a key.

    Attributes:
        key: The key.
        id: The message's id.
        state: `waiting`, `running` or `dead`.
        body: Its body, where that is text.
        body_base64: Its body in base64, where it is not.
        due: When it is due.
        first_due: The due that its put or the last move asked for.
        attempt: How many deliveries it has had.
        priority: 0 is first.
        group: Its group.
        headers: Its headers.
    """

    key: str
    id: str
    state: str
    body: str | None = None
    body_base64: bytes | None = None
    due: Time
    first_due: Time
    attempt: int
    priority: int = 0
    group: str | None = None
    headers: dict[str, str] = {}


class Edit(NewBody, kw_only=True, forbid_unknown_fields=True):
    """The changes of a message that waits.

    Attributes:
        due: Its new due.
        delay: Instead of `due`: how long from now.
        headers: All of its new headers.
    """

    due: Time | UnsetType = UNSET
    delay: Span | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET


@route("PUT", _KEY, Level.PUT)
async def put_key(call: RouteCall[None, KeyedMessage]) -> Put:
    """Put a message under a key, which no other live message of the queue has.

    Where a message has it, `on_conflict` says what to do.
    """
    queue = await call.queue()
    await call.site.check_depth(call.caller, queue)
    return put_of(await queue.put(call.traced({**call.body.item, "key": call.place["key"]})))


@route("GET", _KEY, Level.READ)
async def get_key(call: RouteCall[None, None]) -> Keyed:
    """The message that has a key."""
    name, queue = call.place["key"], await call.queue()
    found = await queue.queue.get(name)
    if found is None:
        raise _no_such(name)
    return _keyed_of(found)


@route("PATCH", _KEY, Level.UPDATE, what=What.EDIT)
async def change_key(call: RouteCall[None, Edit]) -> Told:
    """Edit or move the message that has a key, while it waits.

    Where body or headers and a due are given, the message is edited first and then moved: two
    changes.
    """
    name, body, queue = call.place["key"], call.body, await call.queue()
    given: dict[str, Any] = body.options
    headers, content = given.pop("headers", None), body.content
    if content is None and headers is None and not given:
        raise Refused(400, "give a body, headers, due or delay.")
    # A bad due must be refused before the edit, which would stay.
    asked_ms(call.site.clock.now_ms(), given.get("due"), given.get("delay"))
    made = None
    if content is not None or headers is not None:
        made = told(await queue.queue.edit(name, body=content, headers=headers), name)
    if given:
        made = told(await queue.queue.move(name, **given), name)
    if made is None:
        raise _no_such(name)
    return made


@route("DELETE", _KEY, Level.ACK, what=What.CANCEL)
async def cancel_key(call: RouteCall[None, None]) -> Told:
    """Cancel the message that has a key, also a dead one.

    One that is running is asked to stop, and never runs again.
    """
    name, queue = call.place["key"], await call.queue()
    return told(await queue.queue.cancel(key=name), name, is_cancel=True)


def _no_such(name: str) -> Refused:
    return Refused(404, f"no message has the key {name!r}.")


def _keyed_of(found: Snapshot) -> Keyed:
    text, content = text_or_bytes(found.body)
    return struct_of(Keyed, found, body=text, body_base64=content)
