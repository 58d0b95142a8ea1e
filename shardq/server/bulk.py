"""Bulk actions: dead messages put back or deleted, as many as match, at a rate, with progress.

```
 begin ─► the dead that match: their places ─► batches: still there? ─► put back, or deleted
```

They are in the memory of one process. If it ends in between, the same action again does the rest:
a message that was put back is not among the dead any more.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardq.clock import pause
from shardq.errors import KeyTaken
from shardq.inspection.scan import forget_empty
from shardq.lifecycle.forwarding import Forwarder
from shardq.model.message import Message, died_in
from shardq.model.shard import spans
from shardq.server import choice as choosing
from shardq.server.jobs import ServerJob, ServerJobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.queue import Queue
    from shardq.server.choice import Choice
    from shardq.server.hub import ServedQueue
    from shardq.server.site import Site

What = Literal["redrive", "delete"]

RATE_MAX = 500
FOUND_MAX = 100_000
"""Messages of one action; the same action again takes the next ones."""
_BATCH = 100
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Wish:
    """The messages of a bulk action, and what it does with them.

    Attributes:
        what: `redrive` or `delete`.
        queues: The queues in which they died.
        choice: The messages of these queues that it takes.
        ids: Queue -> the ids of the messages that are chosen one by one; None: all that match.
        rate: The most messages a second; 0: no bound.
    """

    what: What
    queues: tuple[str, ...]
    choice: Choice
    ids: Mapping[str, frozenset[str]] | None
    rate: int


@dataclass(slots=True)
class BulkJob(ServerJob[Wish]):
    """A bulk action. Its error may also tell why some messages stay.

    Attributes:
        looked: Dead messages looked at.
        found: Messages that match.
        done: Messages that were put back, or deleted.
        gone: Messages that matched and then were gone: another caller was quicker.
        kept: Messages that stay because other messages have their keys.
        is_more: True if there may be more that match than one action takes.
    """

    looked: int = 0
    found: int = 0
    done: int = 0
    gone: int = 0
    kept: int = 0
    is_more: bool = False


class BulkJobs(ServerJobs[Wish, BulkJob]):
    """The bulk actions of a server process.

    Args:
        site: Where they work.
    """

    kind = BulkJob

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lock(self, queue: str) -> asyncio.Lock:
        """The lock under which dead messages of a queue are put back, by one caller at a time."""
        return self._locks[queue]

    def told(self, job: BulkJob) -> str:
        """See `ServerJobs.told`."""
        return f"{job.wish.what}: {job.done} of {job.found} are done"

    async def carry_out(self, job: BulkJob) -> None:
        """See `ServerJobs.carry_out`."""
        for name in job.wish.queues:
            if job.state == "stopped":
                return
            queue = await self.site.served.queue(name)
            async with self.lock(name):
                places = await self._find(job, queue)
                # Put the messages that died first back first.
                places.reverse()
                for part in spans(range(len(places)), min(job.wish.rate or _BATCH, _BATCH)):
                    await self._batch(job, queue, places[part.start : part.stop])
                    if job.state == "stopped":
                        return

    async def _find(self, bulk: BulkJob, queue: ServedQueue) -> list[Position]:
        """The places of the dead messages of a queue that match, the last one first."""
        if await queue.call(lambda opened: opened._home.register.dead_if_made()) is None:
            return []
        wanted = None if bulk.wish.ids is None else bulk.wish.ids.get(queue.name, frozenset())
        places: list[Position] = []
        after = None
        while bulk.state != "stopped":

            def look(opened: Queue, after: choosing.Place | None = after) -> choosing.Chosen:
                home, which = opened.dead._home, bulk.wish.choice
                return choosing.page(home, which, _PAGE, is_newest=True, after=after, bodies=False)

            found = await queue.call(look, is_long=True)
            rows = [row for row in found.rows if wanted is None or row.message_id in wanted]
            rows = rows[: FOUND_MAX - bulk.found]
            places += [row.position for row in rows]
            bulk.looked += found.looked
            bulk.found += len(rows)
            after = found.end
            if after is None or (wanted is not None and len(places) >= len(wanted)):
                break
            if bulk.found >= FOUND_MAX:
                bulk.is_more = True
                break
        return places

    async def _batch(self, bulk: BulkJob, queue: ServedQueue, places: Sequence[Position]) -> None:
        """Carry one batch out, and repeat it while the store is away."""
        begun_us = self.site.clock.boot_us()
        work = _redrive if bulk.wish.what == "redrive" else _delete

        async def carry_out() -> _Said:
            if work is _redrive:
                await self.site.check_depth(bulk.caller, queue, len(places))
            return await queue.call(lambda opened: work(opened, places), is_long=True)

        said = await self.outlast(bulk, carry_out)
        if said is not None:
            bulk.done += said.done
            bulk.kept += said.kept
            bulk.gone += len(places) - said.done - said.kept
            bulk.error = said.error or (bulk.error if bulk.kept else "")
        if bulk.wish.rate and bulk.done + bulk.kept + bulk.gone < bulk.found:
            spent_s = (self.site.clock.boot_us() - begun_us) / 1_000_000
            await pause(max(0.0, len(places) / bulk.wish.rate - spent_s))


@dataclass(frozen=True, slots=True)
class _Said:
    """The result of a batch: how many messages were done, how many stay, and why."""

    done: int
    kept: int = 0
    error: str = ""


def redrive_rows(opened: Queue, rows: Sequence[Row]) -> int:
    """Put dead messages of a queue back, as `redrive` of the queue does.

    Args:
        opened: The queue in which they died.
        rows: The messages, as read a moment ago. A changed body is put back as it is here.

    Returns:
        How many were put back.

    Raises:
        KeyTaken: If other messages have the keys of some by now; those stay.
    """
    home, dead = opened._home, opened.dead._home
    dead.register.refresh(force=True)
    dead.register.know(home.register)
    # Others may die into that queue as well.
    is_own = home.register.has_own_dead
    count = Forwarder(dead).run(
        [rows], None, lambda row: home if is_own or died_in(row) == opened.name else None
    )
    forget_empty(dead.store, dead.register, dead.clock.now_ms())
    return count


def redrive_edited(opened: Queue, message_id: str, body: bytes | None) -> bool:
    """Put one dead message back, under its id; False if there is none.

    Args:
        opened: The queue in which it died.
        message_id: Its id.
        body: Its new body; None: as it was.

    Raises:
        KeyTaken: If another message has its key by now: it stays.
    """
    found = opened.dead.find(message_id)
    if found is None:
        return False
    row = found._row if body is None else found._row._replace(body=body)
    return redrive_rows(opened, [row]) > 0


def _redrive(opened: Queue, places: Sequence[Position]) -> _Said:
    store = opened._home.store
    rows = [row.checked() for row in store.find(list(places))]
    if not rows:
        return _Said(0)
    try:
        return _Said(redrive_rows(opened, rows))
    except KeyTaken as error:
        kept = len(list(store.find([row.position for row in rows])))
        return _Said(len(rows) - kept, kept, str(error))


def _delete(opened: Queue, places: Sequence[Position]) -> _Said:
    dead = opened.dead
    home = dead._home
    rows = [row.checked() for row in home.store.find(list(places))]
    return _Said(sum(dead.cancel(Message(row, 0, home.register.signer)) for row in rows))
