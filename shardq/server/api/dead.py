"""Dead messages: listed, put back and removed, one by one or by a bulk action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from shardq.errors import ShardqError
from shardq.model import names
from shardq.model.message import Message as StoredMessage
from shardq.model.message import died_in
from shardq.model.times import iso
from shardq.records.actions import What
from shardq.server import choice as choosing
from shardq.server.api import jobs
from shardq.server.api.listing import Filter, ListQuery, cut, fitting, has_died, page_of
from shardq.server.api.messages import Told
from shardq.server.api.problem import Refused
from shardq.server.api.rights import allows
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import (
    MANY_MAX,
    Message,
    MessagePage,
    NewBody,
    Time,
    message_of,
    struct_of,
)
from shardq.server.bulk import RATE_MAX, BulkJobs, Wish, redrive_edited
from shardq.server.choice import Choice
from shardq.server.grants import Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.server.bulk import BulkJob


_DEAD = QUEUE + "/dead"


class DeadQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """The dead messages to return.

    Attributes:
        limit: The most to return; less if they have more than 8 MiB together.
        newest: True to list the last one that died first.
    """

    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 100
    newest: bool = False


class AllDeadQuery(ListQuery, kw_only=True, forbid_unknown_fields=True):
    """The dead messages of all queues to return.

    Attributes:
        queue: Only dead messages of this queue.
        limit: The most to return; less if they have more than 8 MiB together.
    """

    queue: str = ""
    limit: Annotated[int, Meta(ge=1, le=MANY_MAX)] = 100


class DeadMessage(Struct):
    """A dead message.

    Attributes:
        queue: The queue in which it died.
        message: The message; without its body if the key lacks the level `read`.
    """

    queue: str
    message: Message


class AllDead(Struct, kw_only=True, omit_defaults=True):
    """A page of the dead messages of all queues.

    Attributes:
        dead: The messages, the last one that died first.
        queues: The queues that have a dead-letter queue.
        next: The `after` of the next page, if there is one.
        looked: How many messages were looked at for the page.
        passed_over: Queue -> why it could not be read.
    """

    dead: list[DeadMessage]
    queues: list[str]
    next: str | None = None
    looked: int = 0
    passed_over: dict[str, str] = {}


class Edited(NewBody, kw_only=True, forbid_unknown_fields=True):
    """The new body of a message that is put back; unchanged unless given."""


class DeadId(Struct, forbid_unknown_fields=True):
    """A dead message.

    Attributes:
        queue: The queue in which it died.
        id: Its id.
    """

    queue: str
    id: str


class BulkWish(Filter, kw_only=True, forbid_unknown_fields=True):
    """The dead messages of a bulk action, and how fast it is.

    Attributes:
        queue: The queue in which they died; all queues unless given.
        rate: The most messages a second; no bound unless given.
        messages: Only these.
    """

    queue: str = ""
    rate: Annotated[int, Meta(ge=1, le=RATE_MAX)] | None = None
    messages: Annotated[list[DeadId], Meta(min_length=1, max_length=MANY_MAX)] | None = None


class Bulk(Struct, kw_only=True, omit_defaults=True):
    """A bulk action.

    Attributes:
        id: Its id.
        what: `redrive` or `delete`.
        queues: The queues in which its messages died.
        filter: The filter of their dead messages.
        chosen: How many messages were named one by one.
        rate: The most messages a second, if there is a bound.
        who: The caller that began it.
        begun: When it began.
        state: `looking`, `running`, `waiting` for the store, `done`, `stopped` or `failed`.
        looked: Dead messages looked at.
        found: Messages that match.
        done: Messages that were put back, or deleted.
        gone: Messages that matched and then were gone.
        kept: Messages that stay because other messages have their keys.
        ended: When it ended.
        error: Why it waits, why it failed, or why some messages stay.
        more: True if more messages may match: the same action again takes them.
    """

    id: str
    what: str
    queues: list[str]
    filter: Filter
    chosen: int = 0
    rate: int | None = None
    who: str
    begun: Time
    state: str
    looked: int
    found: int
    done: int
    gone: int = 0
    kept: int = 0
    ended: Time | None = None
    error: str = ""
    more: bool = False


class Bulks(Struct):
    """Bulk actions.

    Attributes:
        bulks: The actions, the last one first.
    """

    bulks: list[Bulk]


@route("GET", _DEAD, Level.READ)
async def list_dead(call: RouteCall[DeadQuery, None]) -> MessagePage:
    """The dead messages, first died first, or the last one first."""
    order: Literal["newest", "oldest"] = "newest" if call.query.newest else "oldest"
    return await page_of(call, await call.queue(), call.query, dead=order)


@route("GET", "/v1/dead", Level.GET)
async def list_all_dead(call: RouteCall[AllDeadQuery, None]) -> AllDead:
    """The dead messages of all queues, the last one first.

    A text is looked for in bodies only of queues whose bodies the caller may read.
    """
    query, site = call.query, call.site
    chosen = query.choice(site.clock.now_ms())
    after = choosing.Place.read(query.after) if query.after else None
    if query.queue:
        call.check(Level.GET, query.queue)
        await has_died(call, await call.queue(query.queue))

    def is_readable(name: str) -> bool:
        return allows(call.caller, Level.READ, name, site)

    def read() -> AllDead:
        kept = _kept(call, query.queue)
        some = {dead: one for dead, one in kept.items() if is_readable(one.of[0])}
        asked = some if chosen.needs_bodies else kept
        damaged: dict[str, str] = {}
        found = choosing.last_died(
            [one.home for one in asked.values()],
            chosen,
            query.limit,
            after=after,
            looked_max=query.look,
            damaged=damaged,
        )
        rows = fitting([row._replace(body=cut(row.body, query.cut)) for row in found.rows])
        end = found.end if len(rows) == len(found.rows) else choosing.Place.of(rows[-1])
        return AllDead(
            dead=[
                _shown(row, whole, kept[row.shard.queue], is_readable)
                for row, whole in zip(rows, found.rows, strict=False)
            ],
            queues=sorted({name for one in kept.values() for name in one.of}),
            next=None if end is None else end.text(),
            looked=found.looked,
            passed_over={kept[name].of[0]: text for name, text in damaged.items()},
        )

    return await site.threads.call(read, is_long=True)


@dataclass(frozen=True, slots=True)
class _DeadLetterQueue:
    """A dead-letter queue, and the queues that it is one of."""

    home: QueueHome
    of: list[str]


def _kept(call: RouteCall[Any, Any], wanted: str) -> dict[str, _DeadLetterQueue]:
    """The dead-letter queues that the caller may see by their names; with one read."""
    opened = call.site.connection._home.open_all()
    kept: dict[str, _DeadLetterQueue] = {}
    for name, queue in opened.items():
        is_asked = name == wanted if wanted else not names.is_dead_queue(name)
        if not is_asked or isinstance(queue, ShardqError) or not call.allows(name):
            continue
        dead = queue._home.register.dead_name
        found = None if dead is None else opened.get(dead)
        if found is None or isinstance(found, ShardqError):
            continue
        if dead != names.dead_queue(name) and not call.allows(dead):
            continue
        kept.setdefault(dead, _DeadLetterQueue(found._home, [])).of.append(name)
    return kept


def _shown(
    row: Row, whole: Row, kept: _DeadLetterQueue, is_readable: Callable[[str], bool]
) -> DeadMessage:
    """A dead message as JSON has it, with the queue in which it died, if known."""
    died = died_in(row)
    queue = died if died in kept.of else kept.of[0]
    made = message_of(StoredMessage(row, 0, kept.home.register.signer))
    made.place = choosing.Place.of(row).text()
    if len(whole.body) > len(row.body):
        made.body_bytes = len(whole.body)
    if not is_readable(queue):
        made.body = made.body_base64 = made.body_bytes = None
    return DeadMessage(queue, made)


@route("DELETE", _DEAD + "/{message}", Level.ACK, what=What.DELETE_DEAD)
async def remove_dead(call: RouteCall[None, None]) -> Told:
    """Remove a dead message for good."""
    name, dead = call.place["message"], await call.dead()
    answers = await dead.cancel(ids=[name])
    if not answers[name]:
        raise Refused(404, f"there is no dead message {name!r} of queue {call.place['queue']!r}.")
    return Told(answers[name].value)


@route("DELETE", _DEAD, Level.DELETE, status=204, what=What.PURGE_DEAD)
async def purge_dead(call: RouteCall[None, None]) -> None:
    """Remove all dead messages for good."""
    await (await call.dead()).purge()


@route("POST", _DEAD + "/{message}/redrive", Level.MANAGE, what=What.REDRIVE)
async def redrive_one(call: RouteCall[None, Edited]) -> Told:
    """Put one dead message back, under its id and with all attempts again; maybe edited.

    Another body needs the level `update` too.
    """
    name, queue = call.place["message"], await call.queue()
    content = call.body.content
    if content is not None:
        call.check(Level.UPDATE, queue.name)
    await call.site.check_depth(call.caller, queue)
    async with call.site.own(BulkJobs).lock(queue.name):
        is_done = await queue.call(lambda opened: redrive_edited(opened, name, content))
    if not is_done:
        raise Refused(404, f"there is no dead message {name!r} of queue {queue.name!r}.")
    return Told("done")


@route("POST", "/v1/dead/redrive", Level.MANAGE, what=What.REDRIVE)
async def redrive_dead(call: RouteCall[None, BulkWish]) -> Bulk:
    """Put back dead messages that match a filter, or named ones, by a bulk action.

    While such an action runs, the same call returns it.
    """
    return await _begun(call, "redrive")


@route("POST", "/v1/dead/delete", Level.DELETE, what=What.DELETE_DEAD)
async def delete_dead(call: RouteCall[None, BulkWish]) -> Bulk:
    """Remove for good dead messages that match a filter, or named ones, by a bulk action.

    While such an action runs, the same call returns it.
    """
    return await _begun(call, "delete")


@route("GET", "/v1/dead/bulks", Level.GET)
async def list_bulks(call: RouteCall[None, None]) -> Bulks:
    """The bulk actions of this server process: all that run, and the last ones that have ended."""
    shown = [one for one in call.site.own(BulkJobs).every() if jobs.is_seen(call, one)]
    return Bulks([_bulk_of(one) for one in shown])


@route("GET", "/v1/dead/bulks/{job}", Level.GET)
async def get_bulk(call: RouteCall[None, None]) -> Bulk:
    """A bulk action and its progress."""
    return _bulk_of(_found(call))


@route("POST", "/v1/dead/bulks/{job}/stop", Level.GET)
async def stop_bulk(call: RouteCall[None, None]) -> Bulk:
    """Stop a bulk action after the batch under way; it needs the level that beginning it needs."""
    found = _found(call)
    level = Level.MANAGE if found.wish.what == "redrive" else Level.DELETE
    for queue in found.wish.queues:
        call.check(level, queue)
    call.site.own(BulkJobs).stop(found)
    return _bulk_of(found)


async def _begun(call: RouteCall[None, BulkWish], what: Any) -> Bulk:
    body, site = call.body, call.site
    chosen = body.choice(site.clock.now_ms())
    ids: dict[str, frozenset[str]] | None = None
    if body.messages is not None:
        ids = {}
        for one in body.messages:
            ids[one.queue] = ids.get(one.queue, frozenset()) | {one.id}
        queues, chosen = sorted(ids), Choice()
    elif body.queue:
        queues = [body.queue]
    else:
        every = await site.threads.call(site.connection.queues)
        served = {names.served_queue(one) for one in every if names.is_dead_queue(one)}
        queues = sorted(one for one in served & set(every) if call.allows(one))
    for name in queues:
        await _check(call, name, bodies=chosen.needs_bodies)
    call.about = _about(body)
    wish = Wish(what, tuple(queues), chosen, ids, body.rate or 0)
    return _bulk_of(await jobs.begun(call, site.own(BulkJobs), wish))


async def _check(call: RouteCall[Any, Any], name: str, *, bodies: bool) -> None:
    """Refuse a bulk action of a queue that does not exist, or that the caller may not use.

    Raises:
        AccessDenied: If the caller lacks the route's level for the queue or its dead-letter queue,
            or may not read the bodies in which a text is looked for.
        UnknownQueue: If there is no such queue.
    """
    level = call.route.level or Level.MANAGE
    call.check(level, name)
    if bodies:
        call.check(Level.READ, name)
    await has_died(call, await call.queue(name))


def _about(body: BulkWish) -> str:
    """The object of a bulk action, for its record."""
    where = body.queue or "all queues"
    if body.messages is not None:
        return f"{len(body.messages)} messages of {', '.join({one.queue for one in body.messages})}"
    given = [f"{name} {getattr(body, name)!r}" for name in _FIELDS if getattr(body, name)]
    return f"{where}: {', '.join(given) or 'all'}"


def _found(call: RouteCall[None, None]) -> BulkJob:
    more = "; the same action again does what is left"
    return jobs.known(call, call.site.own(BulkJobs), call.place["job"], "bulk action", more)


_FIELDS = Filter.__struct_fields__


def _bulk_of(found: BulkJob) -> Bulk:
    wish = found.wish
    filters = asdict(Filter()) | {
        name: getattr(wish.choice, name) for name in _FIELDS if hasattr(wish.choice, name)
    }
    for name in ("since", "until"):
        at_ms = getattr(wish.choice, f"{name}_ms")
        filters[name] = iso(at_ms) if at_ms else ""
    return struct_of(
        Bulk,
        found,
        wish,
        queues=list(wish.queues),
        filter=Filter(**filters),
        chosen=0 if wish.ids is None else sum(map(len, wish.ids.values())),
        rate=wish.rate or None,
        who=found.caller.who,
        begun=iso(found.begun_ms),
        ended=iso(found.ended_ms) if found.ended_ms else None,
        more=found.is_more,
    )
