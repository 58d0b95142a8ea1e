"""Searches for a message by its id through all messages of queues, with progress.

```
 begin ─► queue by queue: the live rows, part by part ─► the dead ones, likewise ─► hits
```

Rows have no index by id. A message that is near, or in a history, is found without a search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from shardq.errors import StoreCorrupt, UnknownQueue
from shardq.model.message import Message
from shardq.server import choice as choosing
from shardq.server.choice import Choice
from shardq.server.everywhere import has_own_dead
from shardq.server.jobs import ServerJob, ServerJobs

if TYPE_CHECKING:
    from shardq.lifecycle.home import QueueHome
    from shardq.queue import Queue

_PART = 5_000
"""Messages of one call, which takes half a second; then other calls have their turn."""


@dataclass(frozen=True, slots=True)
class Sought:
    """The message that a search looks for.

    Attributes:
        id: The message's id.
        queues: The queues that are searched.
    """

    id: str
    queues: tuple[str, ...]


@dataclass(slots=True)
class SearchJob(ServerJob[Sought]):
    """A search.

    Attributes:
        done: Queues that were searched.
        looked: Messages that were looked at.
        hits: Queue that has the message -> `live` or `dead`, and the receipt that names its place.
        passed_over: Queue -> why it could not be searched.
    """

    done: int = 0
    looked: int = 0
    hits: dict[str, tuple[str, str]] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)


class SearchJobs(ServerJobs[Sought, SearchJob]):
    """The searches of a server process."""

    kind = SearchJob

    def told(self, job: SearchJob) -> str:
        """See `ServerJobs.told`."""
        return f"{job.looked:,} messages of {job.done} queues were looked at for {job.wish.id!r}"

    async def carry_out(self, job: SearchJob) -> None:
        """See `ServerJobs.carry_out`."""
        for name in job.wish.queues:
            if job.state == "stopped":
                return
            try:
                await self._look_into(job, name)
            except StoreCorrupt as error:
                job.passed_over[name] = str(error)
            except UnknownQueue:
                # The queue was dropped meanwhile.
                pass
            job.done += 1

    async def _look_into(self, job: SearchJob, name: str) -> None:
        queue = await self.site.served.queue(name)
        for where in ("live", "dead"):
            after: choosing.Place | None = None
            while job.state != "stopped":
                look = partial(_part, wanted=job.wish.id, where=where, after=after)
                found = await self.outlast(job, partial(queue.call, look, is_long=True))
                if found is None:
                    break
                job.looked += found.looked
                for row in found.rows:
                    signer = (await queue.call(partial(_home, where=where))).register.signer
                    job.hits[name] = where, Message(row, 0, signer).receipt
                    return
                after = found.end
                if after is None:
                    break


def _home(opened: Queue, *, where: str) -> QueueHome:
    return opened.dead._home if where == "dead" else opened._home


def _part(
    opened: Queue, *, wanted: str, where: str, after: choosing.Place | None
) -> choosing.Chosen | None:
    """Look at the next messages of the queue, or of its dead ones; None if it has no dead ones."""
    is_dead = where == "dead"
    if is_dead and not has_own_dead(opened):
        return None
    return choosing.page(
        _home(opened, where=where),
        Choice(id=wanted),
        1,
        is_newest=is_dead,
        after=after,
        looked_max=_PART,
        bodies=False,
    )
