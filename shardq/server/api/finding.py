"""Messages found over all queues: by id, by key, or by a text.

```
 name ─► the key in all queues ─► none? ─► histories, and what is near     ─► none? a search, a job
 text ─► what is due first, and what died last, of each queue, as time allows
```
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from shardq.errors import ReceiptError, ShardqError, StoreCorrupt, UnknownQueue, UsageError
from shardq.inspection import choice
from shardq.inspection.choice import Choice
from shardq.inspection.state import Where
from shardq.model import names
from shardq.model.grants import Level
from shardq.model.message import Message as StoredMessage
from shardq.model.times import iso
from shardq.server import everywhere
from shardq.server.api import jobs
from shardq.server.api.listing import State, state_of
from shardq.server.api.rights import allows
from shardq.server.api.route import RouteCall, route
from shardq.server.api.shapes import Message, Time, message_of
from shardq.server.searches import Sought, searches_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from shardq.inspection.state import State as FoundState
    from shardq.queue import Queue as SyncQueue
    from shardq.server.hub import ServedQueue
    from shardq.server.searches import SearchJob

LOOKED_MAX = 1_000
"""Messages of a queue that are due first, or died last, in which a text is looked for."""
_HITS_MAX = 100
_SPENT_US_MAX = 250_000
"""After this no further queue is looked into for a text."""
_NEAR_US_MAX = 200_000
"""Likewise for an id, of a store that is asked queue by queue."""


_SEARCHES = "/v1/find/searches"


class FindQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to look for.

    Attributes:
        q: An id, a receipt or a key; or a text.
        by: `name`: the whole id, receipt or key. `text`: a text in the id, the key, the group, a
            header or the body.
        after: `next` of the answer before: only the queues after this one.
    """

    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    by: Literal["name", "text"] = "name"
    after: str = ""


class Hit(Struct, kw_only=True, omit_defaults=True):
    """A message that was found.

    Attributes:
        queue: The queue that it is in, or in which it died.
        by: `id`, `key` or `text`.
        id: Its id.
        where: `live`, `dead`, or `ended`.
        state: Where it is, and why it does not run, if it was found by its id.
        message: The message, unless it has ended; without the level `read` without its body.
        receipt: Names its place, if a search has found it: what is far is not found by its id.
    """

    queue: str
    by: str
    id: str
    where: str
    state: State | None = None
    message: Message | None = None
    receipt: str | None = None


class Hits(Struct, kw_only=True, omit_defaults=True):
    """What was found.

    Attributes:
        hits: The messages.
        queues: How many queues were looked into.
        looked: How many messages were looked at for a text.
        next: The `after` that goes on where time or space has ended; absent if all is done.
        passed_over: Queue -> why it could not be looked into.
    """

    hits: list[Hit]
    queues: int
    looked: int = 0
    next: str | None = None
    passed_over: dict[str, str] = {}


class SearchWish(Struct, kw_only=True, forbid_unknown_fields=True):
    """What to search for.

    Attributes:
        q: The id of a message.
        queue: The queue in which to search; all unless given.
    """

    q: Annotated[str, Meta(min_length=1, max_length=256)]
    queue: str = ""


class Search(Struct, kw_only=True, omit_defaults=True):
    """A search.

    Attributes:
        id: Its id.
        q: The id of the message that it looks for.
        queues: In how many queues.
        who: Who has begun it.
        begun: When.
        state: `looking`, `running`, `waiting` for the store, `done`, `stopped` or `failed`.
        done: Queues that were looked into.
        looked: Messages that were looked at.
        hits: Where it was found.
        ended: When it ended.
        error: Why it waits, or why it has failed.
        passed_over: Queue -> why it could not be looked into.
    """

    id: str
    q: str
    queues: int
    who: str
    begun: Time
    state: str
    done: int
    looked: int
    hits: list[Hit]
    ended: Time | None = None
    error: str = ""
    passed_over: dict[str, str] = {}


class Searches(Struct):
    """Searches.

    Attributes:
        searches: They, the last one first.
    """

    searches: list[Search]


@route("GET", "/v1/find", Level.GET)
async def find_messages(call: RouteCall[FindQuery, None]) -> Hits:
    """Find messages over all queues, by id or key, or by a text.

    By key all queues are asked. By id it asks the histories, and looks where the message is near:
    in a SQLite store everywhere, on Cassandra where a message without a delay was put, and, as time
    allows, among the 1,000 of each queue that are due first, and those that died last. What is not
    found so, a search finds: `POST /v1/find/searches`. A text is looked for among the 1,000 that
    are due first or died last. It takes a second at most, and says where it ended.
    """
    query, site = call.query, call.site
    level = Level.READ if query.by == "text" else Level.GET
    if query.by == "text":
        some = await call.queues(level)
        left = some[bisect_right(some, query.after) :] if query.after else some
        return await _each(call, left, _by_text, spent_us_max=_SPENT_US_MAX)

    def look() -> tuple[dict[str, str], list[str], str]:
        def is_shown(name: str) -> bool:
            return not names.is_dead_queue(name)

        opened = {
            name: one
            for name, one in site.connection._home.open_all(is_shown).items()
            if is_shown(name) and allows(call.caller, level, name, site)
        }
        damaged = {name: str(one) for name, one in opened.items() if isinstance(one, ShardqError)}
        known = {name: one for name, one in opened.items() if name not in damaged}
        if found := everywhere.by_key(known, query.q):
            return damaged, found, "key"
        found_by_id = everywhere.by_id(known, query.q)
        return (damaged, list(known), "") if found_by_id is None else (damaged, found_by_id, "id")

    passed_over, left, known_by = await site.threads.call(look)
    left = left[bisect_right(left, query.after) :] if query.after else left
    made = await _each(call, left, partial(_by_name, known_by=known_by), spent_us_max=_NEAR_US_MAX)
    made.passed_over |= passed_over
    return made


@route("POST", _SEARCHES, Level.GET)
async def begin_search(call: RouteCall[None, SearchWish]) -> Search:
    """Search all that queues have for a message, by its id.

    The same call while one runs returns that one.
    """
    wish, site = call.body, call.site
    if wish.queue:
        call.check(Level.GET, wish.queue)
        await call.queue(wish.queue)
    queues = [wish.queue] if wish.queue else await call.queues()
    sought = Sought(wish.q, tuple(queues))
    return _search_of(await jobs.begun(call, searches_of(site), sought))


@route("GET", _SEARCHES, Level.GET)
async def list_searches(call: RouteCall[None, None]) -> Searches:
    """The searches of this server process: those that run, and the last that have ended."""
    every = searches_of(call.site).every()
    return Searches([_search_of(one) for one in every if jobs.is_seen(call, one)])


@route("GET", _SEARCHES + "/{search}", Level.GET)
async def get_search(call: RouteCall[None, None]) -> Search:
    """A search and how far it is."""
    return _search_of(_search(call))


@route("POST", _SEARCHES + "/{search}/stop", Level.GET)
async def stop_search(call: RouteCall[None, None]) -> Search:
    """Stop a search after the part under way."""
    found = _search(call)
    searches_of(call.site).stop(found)
    return _search_of(found)


def _search(call: RouteCall[None, None]) -> SearchJob:
    return jobs.known(call, searches_of(call.site), call.place["search"], "search")


def _search_of(found: SearchJob) -> Search:
    return Search(
        id=found.id,
        q=found.wish.id,
        queues=len(found.wish.queues),
        who=found.caller.who,
        begun=iso(found.begun_ms),
        state=found.state,
        done=found.done,
        looked=found.looked,
        hits=[
            Hit(queue=name, by="id", id=found.wish.id, where=where, receipt=receipt)
            for name, (where, receipt) in found.hits.items()
        ],
        ended=iso(found.ended_ms) if found.ended_ms else None,
        error=found.error,
        passed_over=found.passed_over,
    )


async def _each(
    call: RouteCall[FindQuery, None],
    left: list[str],
    look: Callable[[RouteCall[FindQuery, None], ServedQueue, Hits], Awaitable[None]],
    *,
    spent_us_max: int,
) -> Hits:
    """What is found in queues, one after another, as time allows."""
    clock = call.site.clock
    begun_us = clock.boot_us()
    made = Hits(hits=[], queues=0)
    for name in left:
        is_late = clock.boot_us() - begun_us > spent_us_max
        if made.queues and (is_late or len(made.hits) >= _HITS_MAX):
            made.next = left[made.queues - 1]
            break
        made.queues += 1
        try:
            await look(call, await call.queue(name), made)
        except StoreCorrupt as error:
            made.passed_over[name] = str(error)
        except UnknownQueue:
            # It was dropped meanwhile.
            continue
    return made


async def _by_name(
    call: RouteCall[FindQuery, None], queue: ServedQueue, made: Hits, *, known_by: str
) -> None:
    """Find a message of a queue.

    Args:
        known_by: `key` or `id`, by which the queue is known to have the message; empty: unknown.
    """
    name, by = call.query.q, known_by or "id"

    def look(opened: SyncQueue) -> tuple[str, FoundState, StoredMessage | None] | None:
        message, key = (None, name) if by == "key" else (name, None)
        with suppress(UsageError, ReceiptError):
            if not (known_by or everywhere.is_near(opened, name, LOOKED_MAX)):
                return None
            if (found := opened.find(message, key=key, near=True)) is not None:
                return by, found.state, found
            state = opened.state_of(message, key=key, near=True)
            return None if state is None else (by, state, _message(opened, state))
        return None

    found = await queue.call(look)
    if found is not None:
        made.hits.append(_hit(call, queue, *found))


def _hit(
    call: RouteCall[FindQuery, None],
    queue: ServedQueue,
    by: str,
    state: FoundState,
    message: StoredMessage | None,
) -> Hit:
    return Hit(
        queue=queue.name,
        by=by,
        id=state.id,
        where="dead" if state.where is Where.DEAD else "ended" if state.has_ended else "live",
        state=state_of(state, None),
        message=_shown(call, queue, message),
    )


def _message(opened: SyncQueue, state: FoundState) -> StoredMessage | None:
    """The message of the state of one that is not live: a dead one in a queue of its own."""
    if state.where is not Where.DEAD or not everywhere.has_own_dead(opened):
        return None
    return opened.dead.find(state.id, near=True)


async def _by_text(call: RouteCall[FindQuery, None], queue: ServedQueue, made: Hits) -> None:
    wanted = Choice(text=call.query.q)

    def look(opened: SyncQueue) -> Iterator[tuple[str, choice.Chosen, list[StoredMessage]]]:
        live = choice.page(opened._home, wanted, _HITS_MAX, looked_max=LOOKED_MAX)
        yield "live", live, _messages(opened, live)
        kept = opened._home.register.dead_if_made()
        if kept is not None and allows(call.caller, Level.READ, kept.name, call.site):
            dead = choice.page(
                opened.dead._home, wanted, _HITS_MAX, is_newest=True, looked_max=LOOKED_MAX
            )
            yield "dead", dead, _messages(opened.dead, dead)

    for where, found, messages in await queue.call(lambda opened: list(look(opened)), is_long=True):
        made.looked += found.looked
        made.hits += [
            Hit(
                queue=queue.name,
                by="text",
                id=one.id,
                where=where,
                message=_shown(call, queue, one),
            )
            for one in messages
        ]


def _messages(of: SyncQueue, found: choice.Chosen) -> list[StoredMessage]:
    signer = of._home.register.signer
    return [StoredMessage(row, 0, signer) for row in found.rows]


def _shown(
    call: RouteCall[FindQuery, None], queue: ServedQueue, message: StoredMessage | None
) -> Message | None:
    """A message as JSON has it, with its body only for those who may read it."""
    if message is None:
        return None
    made = message_of(message)
    if not allows(call.caller, Level.READ, queue.name, call.site):
        made.body = made.body_base64 = None
    return made
