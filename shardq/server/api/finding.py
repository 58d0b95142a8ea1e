"""Messages found over all queues: by id, by key, or by a text.

```
 name ─► the key of each queue ─► none? ─► the history, what is due first, what died last  as time
 text ─► what is due first, and what died last, of each queue                              allows
```
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from shardq.errors import HistoryOff, ReceiptError, StoreCorrupt, UnknownQueue, UsageError
from shardq.inspection import choice
from shardq.inspection.choice import Choice
from shardq.inspection.state import Where
from shardq.model import ids, names
from shardq.model.grants import Level
from shardq.model.message import Message as StoredMessage
from shardq.server.api.listing import State, state_of
from shardq.server.api.rights import allows
from shardq.server.api.route import Call, Route
from shardq.server.api.shapes import Message, message_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from shardq.inspection.state import State as FoundState
    from shardq.queue import Queue as SyncQueue
    from shardq.server.hub import ServedQueue

DUE_MAX = 1_000
"""Messages of a queue that are due first, in which a text is looked for."""
_HITS_MAX = 100
_SPENT_US_MAX = 1_500_000
"""After this no further queue is looked into."""
_KEYS_US_MAX = 5_000_000


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
    """

    queue: str
    by: str
    id: str
    where: str
    state: State | None = None
    message: Message | None = None


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


async def find_messages(call: Call[FindQuery, None]) -> Hits:
    """Find messages over all queues, by id or key, or by a text.

    By key each queue is asked. By id it looks into the history, and of each queue into the 1,000
    messages that are due first and the 10,000 that died last; `/messages/ID` of a queue searches
    all of it. A text is looked for among the same. It takes 2 s about, and says where it ended.
    """
    query, site = call.query, call.site
    level = Level.READ if query.by == "text" else Level.GET
    every = await site.threads.call(site.connection.queues)
    some = [
        name
        for name in every
        if not names.is_dead_queue(name) and allows(call.caller, level, name, site)
    ]
    left = some[bisect_right(some, query.after) :] if query.after else some
    if query.by == "text":
        return await _each(call, left, _by_text)
    # A read or two of each: nothing is left for the next call.
    made = await _each(call, left, _by_key, spent_us_max=_KEYS_US_MAX)
    return made if made.hits or made.next else await _each(call, left, _by_id)


async def _each(
    call: Call[FindQuery, None],
    left: list[str],
    look: Callable[[Call[FindQuery, None], ServedQueue, Hits], Awaitable[None]],
    *,
    spent_us_max: int = _SPENT_US_MAX,
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


async def _by_key(call: Call[FindQuery, None], queue: ServedQueue, made: Hits) -> None:
    name = call.query.q

    def look(opened: SyncQueue) -> tuple[FoundState, StoredMessage | None] | None:
        with suppress(UsageError, ReceiptError):
            # Not every text can be a key.
            if (found := opened.find(key=name)) is not None:
                return found.state, found
            state = opened.state_of(key=name)
            return None if state is None else (state, _message(opened, state))
        return None

    found = await queue.call(look)
    if found is not None:
        made.hits.append(_hit(call, queue, "key", *found))


async def _by_id(call: Call[FindQuery, None], queue: ServedQueue, made: Hits) -> None:
    name = call.query.q

    def look(opened: SyncQueue) -> tuple[FoundState, StoredMessage | None] | None:
        with suppress(UsageError, ReceiptError):
            if not (opened._home.register.signer.is_meant(name) or _is_near(opened, name)):
                return None
            if (found := opened.find(name, near=True)) is not None:
                return found.state, found
            state = opened.state_of(name, near=True)
            return None if state is None else (state, _message(opened, state))
        return None

    found = await queue.call(look)
    if found is not None:
        made.hits.append(_hit(call, queue, "id", *found))


def _is_near(opened: SyncQueue, name: str) -> bool:
    """True if the history has an id, or it is among the first that are due or the last that died.

    That costs so much at most, however many messages there are.
    """
    with suppress(HistoryOff):
        if ids.from_text(name) and next(opened.history(name), None) is not None:
            return True
    wanted = Choice(id=name)
    if choice.page(opened._home, wanted, 1, looked_max=DUE_MAX, bodies=False).rows:
        return True
    if not _has_own_dead(opened):
        return False
    return bool(choice.page(opened.dead._home, wanted, 1, is_newest=True, bodies=False).rows)


def _has_own_dead(opened: SyncQueue) -> bool:
    """True if messages have died into a queue of its own: another one may be of others."""
    register = opened._home.register
    return register.has_own_dead and register.dead_if_made() is not None


def _hit(
    call: Call[FindQuery, None],
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
    if state.where is not Where.DEAD or not _has_own_dead(opened):
        return None
    return opened.dead.find(state.id, near=True)


async def _by_text(call: Call[FindQuery, None], queue: ServedQueue, made: Hits) -> None:
    wanted = Choice(text=call.query.q)

    def look(opened: SyncQueue) -> Iterator[tuple[str, choice.Chosen, list[StoredMessage]]]:
        live = choice.page(opened._home, wanted, _HITS_MAX, looked_max=DUE_MAX)
        yield "live", live, _messages(opened, live)
        kept = opened._home.register.dead_if_made()
        if kept is not None and allows(call.caller, Level.READ, kept.name, call.site):
            dead = choice.page(opened.dead._home, wanted, _HITS_MAX, is_newest=True)
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
    call: Call[FindQuery, None], queue: ServedQueue, message: StoredMessage | None
) -> Message | None:
    """A message as JSON has it, with its body only for those who may read it."""
    if message is None:
        return None
    made = message_of(message)
    if not allows(call.caller, Level.READ, queue.name, call.site):
        made.body = made.body_base64 = None
    return made


ROUTES = [Route("GET", "/v1/find", Level.GET, find_messages, query=FindQuery, answer=Hits)]
