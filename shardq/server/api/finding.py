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
from shardq.inspection.state import Where
from shardq.model import names
from shardq.model.message import Message as StoredMessage
from shardq.model.times import iso
from shardq.server import choice, everywhere
from shardq.server.api import jobs
from shardq.server.api.listing import State, state_of
from shardq.server.api.rights import allows
from shardq.server.api.route import RouteCall, route
from shardq.server.api.shapes import Message, Time, message_of, struct_of
from shardq.server.choice import Choice
from shardq.server.grants import Level
from shardq.server.searches import SearchJobs, Sought

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from shardq.inspection.state import State as FoundState
    from shardq.queue import Queue as SyncQueue
    from shardq.server.hub import ServedQueue
    from shardq.server.searches import SearchJob

LOOKED_MAX = 1_000
"""Messages of a queue that are searched for a text: the first ones due, the last ones that died."""
_HITS_MAX = 100
_SPENT_US_MAX = 250_000
"""After this time no further queue is searched for a text."""
_NEAR_US_MAX = 200_000
"""Likewise for an id, in a store that is read queue by queue."""


_SEARCHES = "/v1/find/searches"


class FindQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The id, key or text to find.

    Attributes:
        q: An id, a receipt or a key; or a text.
        by: `name`: the whole id, receipt or key. `text`: a text in the id, the key, the group, a
            header or the body.
        after: `next` of the answer before: only queues after this one.
    """

    q: Annotated[str, Meta(min_length=1, max_length=1_000)]
    by: Literal["name", "text"] = "name"
    after: str = ""


class Hit(Struct, kw_only=True, omit_defaults=True):
    """A message that was found.

    Attributes:
        queue: The queue of the message, or the one in which it died.
        by: `id`, `key` or `text`.
        id: Its id.
        where: `live`, `dead`, or `ended`.
        state: Where it is, and why it does not run, if it was found by its id.
        message: The message, unless it has ended; without its body if the key lacks the level
            `read`.
        receipt: Names its place, if a search found it; its id alone does not find a far message.
    """

    queue: str
    by: str
    id: str
    where: str
    state: State | None = None
    message: Message | None = None
    receipt: str | None = None


class Hits(Struct, kw_only=True, omit_defaults=True):
    """The messages that were found.

    Attributes:
        hits: The messages.
        queues: How many queues were searched.
        looked: How many messages were looked at for a text.
        next: The `after` of the next call, if time or space ran out; absent if all is done.
        passed_over: Queue -> why it could not be searched.
    """

    hits: list[Hit]
    queues: int
    looked: int = 0
    next: str | None = None
    passed_over: dict[str, str] = {}


class SearchWish(Struct, kw_only=True, forbid_unknown_fields=True):
    """The message to search for.

    Attributes:
        q: The id of a message.
        queue: The queue to search; all unless given.
    """

    q: Annotated[str, Meta(min_length=1, max_length=256)]
    queue: str = ""


class Search(Struct, kw_only=True, omit_defaults=True):
    """A search.

    Attributes:
        id: Its id.
        q: The id of the message that it looks for.
        queues: How many queues it searches.
        who: The caller that began it.
        begun: When it began.
        state: `looking`, `running`, `waiting` for the store, `done`, `stopped` or `failed`.
        done: Queues that were searched.
        looked: Messages that were looked at.
        hits: The places in which it was found.
        ended: When it ended.
        error: Why it waits or failed.
        passed_over: Queue -> why it could not be searched.
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
        searches: The searches, the last one first.
    """

    searches: list[Search]


@route("GET", "/v1/find", Level.GET)
async def find_messages(call: RouteCall[FindQuery, None]) -> Hits:
    """Find messages over all queues, by id or key, or by a text.

    A key is looked up in all queues. An id is looked up in the histories, and then in places that
    cost little: in a SQLite store everywhere; on Cassandra where a message without a delay was put,
    and, as time allows, among the 1,000 messages of each queue that are due first, and the 1,000
    that died last. A search finds all others: `POST /v1/find/searches`. A text is looked for among
    the 1,000 messages that are due first or died last. The call takes a second at most, and returns
    the queue at which it ended.
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
    """Search all messages of queues for one, by its id.

    While such a search runs, the same call returns it.
    """
    wish, site = call.body, call.site
    if wish.queue:
        call.check(Level.GET, wish.queue)
        await call.queue(wish.queue)
    queues = [wish.queue] if wish.queue else await call.queues()
    sought = Sought(wish.q, tuple(queues))
    return _search_of(await jobs.begun(call, site.own(SearchJobs), sought))


@route("GET", _SEARCHES, Level.GET)
async def list_searches(call: RouteCall[None, None]) -> Searches:
    """The searches of this server process: all that run, and the last ones that have ended."""
    every = call.site.own(SearchJobs).every()
    return Searches([_search_of(one) for one in every if jobs.is_seen(call, one)])


@route("GET", _SEARCHES + "/{search}", Level.GET)
async def get_search(call: RouteCall[None, None]) -> Search:
    """A search and its progress."""
    return _search_of(_search(call))


@route("POST", _SEARCHES + "/{search}/stop", Level.GET)
async def stop_search(call: RouteCall[None, None]) -> Search:
    """Stop a search after the part under way."""
    found = _search(call)
    call.site.own(SearchJobs).stop(found)
    return _search_of(found)


def _search(call: RouteCall[None, None]) -> SearchJob:
    return jobs.known(call, call.site.own(SearchJobs), call.place["search"], "search")


def _search_of(found: SearchJob) -> Search:
    return struct_of(
        Search,
        found,
        q=found.wish.id,
        queues=len(found.wish.queues),
        who=found.caller.who,
        begun=iso(found.begun_ms),
        hits=[
            Hit(queue=name, by="id", id=found.wish.id, where=where, receipt=receipt)
            for name, (where, receipt) in found.hits.items()
        ],
        ended=iso(found.ended_ms) if found.ended_ms else None,
    )


async def _each(
    call: RouteCall[FindQuery, None],
    left: list[str],
    look: Callable[[RouteCall[FindQuery, None], ServedQueue, Hits], Awaitable[None]],
    *,
    spent_us_max: int,
) -> Hits:
    """The messages found in queues, which are searched one after another, as time allows."""
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
            # The queue was dropped meanwhile.
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
    """The message of a state, if it is dead in the queue's own dead-letter queue."""
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
    """A message as JSON has it; its body only for callers that may read it."""
    if message is None:
        return None
    made = message_of(message)
    if not allows(call.caller, Level.READ, queue.name, call.site):
        made.body = made.body_base64 = None
    return made
