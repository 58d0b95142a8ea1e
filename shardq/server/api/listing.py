"""Messages looked at, without receiving them: a page of the first ones due, or the state of one."""

from __future__ import annotations

from dataclasses import replace as with_parts
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from shardq.inspection.state import Where
from shardq.model.message import Message as StoredMessage
from shardq.model.times import moment_or_ago_ms
from shardq.server import choice
from shardq.server.api.problem import Refused
from shardq.server.api.rights import allows
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import (
    MANY_MAX,
    Message,
    MessagePage,
    Time,
    message_of,
    struct_of,
)
from shardq.server.choice import Choice, Place
from shardq.server.grants import Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.inspection.state import State as FoundState
    from shardq.model.message import Row
    from shardq.queue import Queue as SyncQueue
    from shardq.server.choice import Chosen
    from shardq.server.hub import ServedQueue


_CHARACTER_BYTES_MAX = 4
_SHOWN_BYTES_MAX = 8 << 20


class Filter(Struct, kw_only=True, forbid_unknown_fields=True):
    """A filter of messages; the case of texts does not matter.

    Attributes:
        text: A text in the id, the key, the group, a header or the body.
        body: A text in the body.
        error: A text in the last error.
        task: The name of the task whose job it is.
        header: The name of a header; or `name=text`, with a text in its value.
        group: The group.
        since: Only messages that were due, or died, from this time on, or at most so long ago.
        until: Only messages that were due, or died, up to this time, or at least so long ago.
    """

    text: str = ""
    body: str = ""
    error: str = ""
    task: str = ""
    header: str = ""
    group: str = ""
    since: str = ""
    until: str = ""

    def choice(self, now_ms: int) -> Choice:
        """The choice of messages that it makes.

        Raises:
            BadTime: If a time cannot be read.
        """
        return Choice(
            text=self.text,
            body=self.body,
            error=self.error,
            task=self.task,
            header=self.header,
            group=self.group,
            since_ms=moment_or_ago_ms(self.since, now_ms, name="since") if self.since else 0,
            until_ms=moment_or_ago_ms(self.until, now_ms, name="until") if self.until else 0,
        )


class ListQuery(Filter, kw_only=True, forbid_unknown_fields=True):
    """A page of the messages that are chosen.

    Attributes:
        limit: The most to return; less if they have more than 8 MiB together.
        after: `next` of the page before.
        look: The most messages to look at.
        cut: How many bytes of each body to return; all unless given.
    """

    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 10
    after: str = ""
    look: Annotated[int, Meta(ge=1, le=choice.LOOKED_MAX)] = choice.LOOKED_MAX
    cut: Annotated[int, Meta(ge=1)] | None = None


class PeekQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """The messages to look at.

    Attributes:
        key: Only the message that has this key.
    """

    key: str | None = None


class EnvelopesQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """The messages to look at.

    Attributes:
        dead: True for dead messages, the last one first.
    """

    dead: bool = False


class StateQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How far to look for a message.

    Attributes:
        near: True to look only at the places that cost little, and among all the dead. Else the
            whole queue is searched last.
    """

    near: bool = False


class State(Struct, kw_only=True, omit_defaults=True):
    """Where a message is, and why it does not run.

    Attributes:
        id: The message's id.
        where: Its place, in a word.
        text: The same in a sentence.
        until: When its place changes by itself.
        since: When it arrived there.
        attempts: Deliveries that it has had.
        ended: True if it is not delivered again unless it is put back.
        error: Why its last delivery failed, or why it died.
        behind: The id of the message of its group that it waits for.
        ahead: How many due messages are before it, if known.
        member: The consumer that runs or holds it.
        limit: The limits that hold it back, if it is `limited`; if its group, task or key is
            paused, the name or pattern by which it is.
        limit_of: Whose limit this is: `group`, `task`, `key` or `queue`.
        message: The message, also a dead one, unless it has ended.
    """

    id: str
    where: str
    text: str
    until: Time | None = None
    since: Time | None = None
    attempts: int = 0
    ended: bool = False
    error: str | None = None
    behind: str | None = None
    ahead: int | None = None
    member: str | None = None
    limit: str | None = None
    limit_of: Literal["group", "queue"] | None = None
    message: Message | None = None


@route("GET", QUEUE + "/messages", Level.READ)
async def peek_messages(call: RouteCall[PeekQuery, None]) -> MessagePage:
    """The messages that are due first, those in flight included; none is taken.

    With `key`: the message that has the key. With the other fields: the messages that match them,
    among as many as `look` says.
    """
    query, queue = call.query, await call.queue()
    if query.key is not None:
        found = await queue.queue.find(key=query.key)
        return MessagePage(messages=[] if found is None else [message_of(found)])
    return await page_of(call, queue, query)


@route("GET", QUEUE + "/envelopes", Level.GET)
async def list_envelopes(call: RouteCall[EnvelopesQuery, None]) -> MessagePage:
    """The messages that are due first, or died last, without their bodies; none is taken.

    Bodies are not looked into either.
    """
    query = call.query
    if query.text or query.body:
        raise Refused(400, "text and body look into bodies: use /messages, or /dead.", field="text")
    dead: Literal["newest"] | None = "newest" if query.dead else None
    return await page_of(call, await call.queue(), query, bodies=False, dead=dead)


@route("GET", QUEUE + "/messages/{message}", Level.READ)
async def get_message(call: RouteCall[StateQuery, None]) -> State:
    """Where a message is, and why it does not run.

    Its id or its receipt names it. Only a queue with a history knows a message that has ended.
    """
    return await _state(call)


@route("GET", QUEUE + "/envelopes/{message}", Level.GET)
async def get_envelope(call: RouteCall[StateQuery, None]) -> State:
    """Where a message is, and why it does not run; the message without its body."""
    state = await _state(call)
    if state.message is not None:
        state.message = replace(state.message, body=None, body_base64=None)
    return state


async def page_of(
    call: RouteCall[Any, Any],
    queue: ServedQueue,
    query: ListQuery,
    *,
    bodies: bool = True,
    dead: Literal["oldest", "newest"] | None = None,
) -> MessagePage:
    """A page of the messages of a queue, the first ones due first.

    Args:
        call: The call.
        queue: The queue.
        query: The filter and the place of the page.
        bodies: False to leave bodies out.
        dead: The order of dead messages, which are listed instead; None: live ones.
    """
    chosen = query.choice(call.site.clock.now_ms())
    after = Place.read(query.after) if query.after else None

    def read(opened: SyncQueue) -> tuple[Chosen, list[StoredMessage]]:
        of = opened if dead is None else opened.dead
        found = choice.page(
            of._home,
            chosen,
            query.limit,
            is_newest=dead == "newest",
            after=after,
            looked_max=query.look,
            bodies=bodies,
        )
        signer = of._home.register.signer
        rows = [row._replace(body=cut(row.body, query.cut)) for row in found.rows]
        rows = list(fitting(rows)) if bodies else rows
        if (count := len(rows)) < len(found.rows):
            found = with_parts(found, rows=found.rows[:count], end=Place.of(rows[-1]))
        return found, [StoredMessage(row, 0, signer) for row in rows]

    if dead is not None and not await has_died(call, queue):
        return MessagePage(messages=[])
    found, messages = await queue.call(read, is_long=chosen.needs_bodies)
    listed = [_looked_at(one, call, bodies=bodies) for one in messages]
    for made, row in zip(listed, found.rows, strict=True):
        made.place = Place.of(row).text()
        if bodies and query.cut is not None and len(row.body) > query.cut:
            made.body_bytes = len(row.body)
    return MessagePage(
        messages=listed,
        next=None if found.end is None else found.end.text(),
        looked=found.looked,
    )


async def has_died(call: RouteCall[Any, Any], queue: ServedQueue) -> bool:
    """True if a queue has a dead-letter queue by now.

    Raises:
        AccessDenied: If that is not its own one, and the caller may not do this there.
    """
    made = await queue.call(lambda opened: opened._home.register.dead_if_made())
    if made is not None:
        call.check_dead(queue, made.name)
    return made is not None and not made.settings.dropped


async def _state(call: RouteCall[StateQuery, None]) -> State:
    name, queue, level = call.place["message"], await call.queue(), call.route.level

    def look(opened: SyncQueue, near: bool) -> tuple[FoundState, StoredMessage | None] | None:
        found = opened._whereabouts().seen(name, near=near)  # noqa: SLF001 - both at once
        if found is None:
            return None
        state, row = found
        register = opened._home.register
        if row is not None and row.shard.queue != register.name:
            # A dead message; its dead-letter queue may be another queue.
            kept = register.dead_if_made()
            if (
                kept is None
                or level is None
                or not allows(call.caller, level, kept.name, call.site)
            ):
                return state, None
            register = kept
        if row is None or (state.has_ended and state.where is not Where.DEAD):
            return state, None
        return state, StoredMessage(row, 0, register.signer)

    # Near places are looked at first; the whole queue is searched last.
    for near in (True,) if call.query.near else (True, False):
        found = await queue.call(partial(look, near=near), is_long=not near)
        if found is not None:
            state, message = found
            return state_of(state, None if message is None else _looked_at(message, call))
    where = " near, nor among the dead" if call.query.near else ""
    raise Refused(404, f"nothing is known of message {name!r} in queue {queue.name!r}{where}.")


def _looked_at(found: StoredMessage, call: RouteCall[Any, Any], *, bodies: bool = True) -> Message:
    """A message as JSON has it, with its holder."""
    made, row = message_of(found), found._row
    if row.holder is not None and row.ready_ms > call.site.clock.now_ms():
        made.held_by = row.holder
    if not bodies:
        made.body = made.body_base64 = None
    return made


def fitting(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows for which an answer has room: one at least, if there are any."""
    sizes = accumulate(row.size_bytes for row in rows)
    return rows[: max(sum(size <= _SHOWN_BYTES_MAX for size in sizes), min(len(rows), 1))]


def cut(body: bytes, bytes_max: int | None) -> bytes:
    """The beginning of a body; of text, no part of a character."""
    if bytes_max is None or len(body) <= bytes_max:
        return body
    head = body[:bytes_max]
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return head[: error.start] if error.start > bytes_max - _CHARACTER_BYTES_MAX else head
    return head


def state_of(state: FoundState, message: Message | None) -> State:
    """A state as JSON has it."""
    return struct_of(
        State,
        state,
        where=state.where.value,
        text=f"{state}.",
        ended=state.has_ended,
        error=state.error or state.reason,
        message=message,
    )
