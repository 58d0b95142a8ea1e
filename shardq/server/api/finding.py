"""Messages found over all queues: by id, by key, or by a text.

```
 name ─► the key of each queue ─► the history, then what is near, of each queue     as time allows
 text ─► the dead, and the next 1,000 due, of each queue                            likewise
```
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from shardq.errors import ReceiptError, StoreCorrupt, UnknownQueue, UsageError
from shardq.inspection import choice
from shardq.inspection.choice import Choice
from shardq.inspection.state import Where
from shardq.model import names
from shardq.model.grants import Level
from shardq.model.message import Message as StoredMessage
from shardq.server.api.listing import State, state_of
from shardq.server.api.rights import allows
from shardq.server.api.route import Call, Route
from shardq.server.api.shapes import Message, message_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.inspection.state import State as FoundState
    from shardq.queue import Queue as SyncQueue
    from shardq.server.hub import ServedQueue

DUE_MAX = 1_000
"""Messages of a queue that are due first, in which a text is looked for."""
_HITS_MAX = 100
_SPENT_US_MAX = 1_500_000
"""After this no further queue is looked into."""


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

    By id it looks into the history, into what is due by now or within the hour, and into the dead
    of the last day; `/messages/ID` of a queue searches all of it. A text is looked for among the
    dead and the next 1,000 due of each queue, at most 10,000 of each kind. It takes 2 s about, and
    says where it ended.
    """
    query, site = call.query, call.site
    begun_us = site.clock.boot_us()
    level = Level.READ if query.by == "text" else Level.GET
    every = await site.threads.call(site.connection.queues)
    some = [
        name
        for name in every
        if not names.is_dead_queue(name) and allows(call.caller, level, name, site)
    ]
    left = some[bisect_right(some, query.after) :] if query.after else some
    made = Hits(hits=[], queues=0)
    for name in left:
        if made.queues and (
            len(made.hits) >= _HITS_MAX or site.clock.boot_us() - begun_us > _SPENT_US_MAX
        ):
            made.next = left[made.queues - 1]
            break
        made.queues += 1
        try:
            queue = await call.queue(name)
            if query.by == "text":
                await _by_text(call, queue, made)
            else:
                await _by_name(call, queue, made)
        except StoreCorrupt as error:
            made.passed_over[name] = str(error)
        except UnknownQueue:
            # It was dropped meanwhile.
            continue
    return made


async def _by_name(call: Call[FindQuery, None], queue: ServedQueue, made: Hits) -> None:
    name = call.query.q

    def look(opened: SyncQueue) -> list[tuple[str, FoundState, StoredMessage | None]]:
        found = []
        with suppress(UsageError, ReceiptError):
            # Not every text can be a key.
            state = opened.state_of(key=name)
            if state is not None:
                found.append(("key", state, _message(opened, state)))
        with suppress(UsageError, ReceiptError):
            state = opened.state_of(name, near=True)
            if state is not None and state.id not in {one.id for _, one, _ in found}:
                found.append(("id", state, _message(opened, state)))
        return found

    for by, state, message in await queue.call(look):
        where = "dead" if state.where is Where.DEAD else "ended" if state.has_ended else "live"
        made.hits.append(
            Hit(
                queue=queue.name,
                by=by,
                id=state.id,
                where=where,
                state=state_of(state, None),
                message=_shown(call, queue, message),
            )
        )


def _message(opened: SyncQueue, state: FoundState) -> StoredMessage | None:
    """The message of a state, near where it was found."""
    if state.where is Where.DEAD:
        kept = opened._home.register.dead_if_made()
        is_own = kept is not None and kept.name == names.dead_queue(opened.name)
        return opened.dead.find(state.id, near=True) if is_own else None
    return None if state.has_ended else opened.find(state.id, near=True)


async def _by_text(call: Call[FindQuery, None], queue: ServedQueue, made: Hits) -> None:
    wanted = Choice(text=call.query.q)

    def look(opened: SyncQueue) -> Iterator[tuple[str, choice.Chosen, list[StoredMessage]]]:
        live = choice.due_first(opened._home, wanted, _HITS_MAX, looked_max=DUE_MAX)
        yield "live", live, _messages(opened, live)
        kept = opened._home.register.dead_if_made()
        if kept is not None and allows(call.caller, Level.READ, kept.name, call.site):
            dead = choice.last_died(opened.dead._home, wanted, _HITS_MAX)
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
