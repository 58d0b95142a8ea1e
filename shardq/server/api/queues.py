"""Queues: listed, made, changed, dropped, paused, purged and redriven."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct
from msgspec.structs import asdict

from shardq.errors import UnknownQueue
from shardq.model import names, settings
from shardq.model.settings import QueueOptions
from shardq.model.times import Duration
from shardq.records.actions import What
from shardq.server.api.problem import Refused
from shardq.server.api.route import QUEUE, RouteCall, json_of, route
from shardq.server.api.shapes import MANY_MAX, Span
from shardq.server.bulk import BulkJobs
from shardq.server.grants import Level
from shardq.server.web import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.model.settings import Settings as QueueSettings
    from shardq.server.hub import ServedQueue


def _settings() -> type[Struct]:
    """The struct of a queue's settings: those that `Connection.queue` takes."""
    hints = get_type_hints(QueueOptions)
    fields: list[tuple[str, Any, Any]] = [
        (name, (Span if kind == Duration else kind) | UnsetType, UNSET)
        for name, kind in hints.items()
    ]
    return defstruct(
        "Settings",
        fields,
        kw_only=True,
        forbid_unknown_fields=True,
        namespace={"__doc__": "Settings of a queue, as the page of settings describes them."},
    )


Settings: Any = _settings()


class QueuesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The queues to list.

    Attributes:
        prefix: Only queues whose names begin with it.
        after: Only queues whose names are after this one: `next` of the page before.
        limit: The most of a page.
    """

    prefix: str = ""
    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 100


class Queues(Struct, omit_defaults=True):
    """A page of queues.

    Attributes:
        queues: Their names, in order.
        next: The `after` of the next page, if there is one.
    """

    queues: list[str]
    next: str | None = None


class Queue(Struct):
    """A queue.

    Attributes:
        name: Its name.
        paused: True if its deliveries are held back.
        settings: Its settings.
    """

    name: str
    paused: bool
    settings: Settings


class Redrive(Struct, kw_only=True, forbid_unknown_fields=True):
    """The dead messages to put back.

    Attributes:
        limit: The most; all unless given.
        ids: Only messages with these ids.
    """

    limit: Annotated[int, Meta(ge=1)] | None = None
    ids: Annotated[list[str], Meta(min_length=1, max_length=MANY_MAX)] | None = None


class PauseQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The part of a queue to pause or resume, one of these; none: the queue.

    Attributes:
        group: The name of a group, or the beginning of names and a `*`.
        task: The name of a task, or the beginning of names and a `*`.
        key: A key, or the beginning of keys and a `*`.
    """

    group: str | None = None
    task: str | None = None
    key: str | None = None


class Count(Struct):
    """A number.

    Attributes:
        count: The number.
    """

    count: int


@route("GET", "/v1/queues", Level.GET)
async def list_queues(call: RouteCall[QueuesQuery, None]) -> Queues:
    """The queues, by name, a page at a time."""
    query, site = call.query, call.site
    every = await site.threads.call(site.connection.queues)
    some = [name for name in every if name.startswith(query.prefix) and call.allows(name)]
    page = some[bisect_right(some, query.after) :]
    found = page[: query.limit]
    return Queues(found, found[-1] if len(page) > len(found) else None)


@route("GET", QUEUE, Level.GET)
async def get_queue(call: RouteCall[None, None]) -> Queue:
    """A queue and its settings."""
    return await _queue_of(await call.queue())


@route("PUT", QUEUE, Level.CREATE, body=Settings, answer=Queue, also=(201,), what=What.CREATE)
async def put_queue(call: RouteCall[None, Any]) -> Response:
    """Make a queue, or bring one that exists to these settings.

    Settings that are not given stay, and are the defaults of a new one.
    """
    name, given = call.place["queue"], _given(call.body)
    _check_dead(call, given)
    fixed = {one: value for one, value in given.items() if _stored(one) in settings.FIXED}
    others = {one: value for one, value in given.items() if one not in fixed}
    try:
        queue = await call.site.served.queue(name)
        is_made = False
    except UnknownQueue:
        queue = await call.site.served.queue(name, create=True, **given)
        # Another caller may have made it first, with other settings.
        is_made = _has(await queue.queue.settings(), given)
    if not is_made:
        call.what = What.ALTER if others else None
        if others:
            call.check(Level.MANAGE, name)
        # This refuses fixed settings other than its own.
        await call.site.served.queue(name, create=True, **fixed)
        if others:
            await queue.queue.alter(**others)
    return json_of(await _queue_of(queue), 201 if is_made else 200)


@route("PATCH", QUEUE, Level.MANAGE, body=Settings, what=What.ALTER)
async def change_queue(call: RouteCall[None, Any]) -> Queue:
    """Change settings of a queue; every process follows within 5 seconds."""
    queue, given = await call.queue(), _given(call.body)
    if not given:
        raise Refused(400, "give a setting to change.")
    _check_dead(call, given)
    await queue.queue.alter(**given)
    return await _queue_of(queue)


@route("DELETE", QUEUE, Level.DELETE, status=204, what=What.DROP)
async def drop_queue(call: RouteCall[None, None]) -> None:
    """Remove a queue and all that is in it; its dead messages stay."""
    queue = await call.queue()
    await queue.queue.drop()
    call.site.served.forget(queue.name)


@route("POST", QUEUE + "/pause", Level.MANAGE, what=What.PAUSE)
async def pause_queue(call: RouteCall[PauseQuery, None]) -> Queue:
    """Hold deliveries back, all or a part of them; messages can still be put."""
    queue = await call.queue()
    await queue.queue.pause(**_part(call))
    return await _queue_of(queue)


@route("POST", QUEUE + "/resume", Level.MANAGE, what=What.RESUME)
async def resume_queue(call: RouteCall[PauseQuery, None]) -> Queue:
    """Deliver again what was paused."""
    queue = await call.queue()
    await queue.queue.resume(**_part(call))
    return await _queue_of(queue)


def _part(call: RouteCall[PauseQuery, None]) -> dict[str, str]:
    """The part of a queue to pause or resume; a call is recorded with it."""
    given = {of: name for of, name in asdict(call.query).items() if name is not None}
    call.about = " ".join([call.place["queue"], *(f"{of} {name}" for of, name in given.items())])
    return given


@route("POST", QUEUE + "/purge", Level.DELETE, status=204, what=What.PURGE)
async def purge_queue(call: RouteCall[None, None]) -> None:
    """Delete all that has entered the queue until now."""
    await (await call.queue()).queue.purge()


@route("POST", QUEUE + "/redrive", Level.MANAGE, what=What.REDRIVE)
async def redrive_queue(call: RouteCall[None, Redrive]) -> Count:
    """Put dead messages back, under their ids and with all attempts again."""
    body, queue = call.body, await call.queue()
    if call.caller.depth:
        there = (await queue.queue.dead.depth()).total
        count = len(body.ids) if body.ids is not None else min(body.limit or there, there)
        await call.site.check_depth(call.caller, queue, count)
    # Without the lock, two calls at once might put back the same messages.
    async with call.site.own(BulkJobs).lock(queue.name):
        if body.ids is None:
            return Count(await queue.queue.redrive(body.limit))
        wanted = frozenset(body.ids)
        return Count(await queue.queue.redrive(body.limit, where=lambda one: one.id in wanted))


async def _queue_of(queue: ServedQueue) -> Queue:
    now: QueueSettings = await queue.queue.settings()
    shown = {name: _shown(now, name) for name in settings.CHOICES}
    return Queue(queue.name, now.paused, Settings(**shown))


def _shown(now: QueueSettings, name: str) -> Any:
    """A setting's value as a call gives it."""
    value = getattr(now, _stored(name))
    text = settings.text_of(now, name)
    return value if type(value) in {int, bool} and text in {str(value), "yes", "no"} else text


def _stored(name: str) -> str:
    return settings.CHOICES[name].stored


def _has(now: QueueSettings, given: Mapping[str, Any]) -> bool:
    """True if a queue has all settings that are given."""
    asked = replace(now, **settings.read_choices(given))
    return all(settings.text_of(now, name) == settings.text_of(asked, name) for name in given)


def _check_dead(call: RouteCall[Any, Any], given: Mapping[str, Any]) -> None:
    """Refuse another dead-letter queue into which the caller may not put.

    Raises:
        AccessDenied: If the caller may not put there.
    """
    dead = given.get("dead", "off")
    if dead not in ("", "off", names.dead_queue(call.place["queue"])):
        call.check(Level.PUT, dead)


def _given(body: Struct) -> dict[str, Any]:
    return {name: value for name, value in asdict(body).items() if value is not UNSET}
