"""Work that outlasts its request: a caller begins it, watches it, and may stop it.

```
 begin ─► running ─► done          stop ─► stopped, after the part under way
             │ └───► failed        the server leaves ─► stopped
             └─ the store stops: waiting ─► running
```

A job is in the memory of one process. `bulk.py` puts dead messages back, `searches.py` finds one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from shardq.clock import pause
from shardq.errors import ShardqError, StoreFull, StoreTimeout, StoreUnavailable
from shardq.server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shardq.server.access import Caller
    from shardq.server.site import Site

log = logging.getLogger(__name__)

T = TypeVar("T")
W = TypeVar("W")
J = TypeVar("J", bound="ServerJob[Any]")

_KEPT_MAX = 20
"""Jobs that have ended and are still shown."""

_PAUSE_S_MIN, _PAUSE_S_MAX = 0.5, 8.0
STOPPED: Final = (StoreUnavailable, StoreTimeout, StoreFull)
"""The errors of a store that may answer again soon."""


class Patience:
    """Pauses between tries: each is twice the last one, to 8 s.

    Each is short enough that no other server takes the mover of a task for dead.

    Attributes:
        pause_s: How long the next one is.
    """

    def __init__(self) -> None:
        self.pause_s = _PAUSE_S_MIN

    async def wait(self) -> None:
        """Wait until the next try."""
        await pause(self.pause_s)
        self.pause_s = min(2 * self.pause_s, _PAUSE_S_MAX)


@dataclass(slots=True)
class ServerJob(Generic[W]):
    """A job that runs in a server process.

    Attributes:
        id: Its id.
        wish: Its task.
        caller: The caller that began it.
        begun_ms: When it began, epoch milliseconds.
        state: `looking`, `running`, `waiting` for the store, `done`, `stopped` or `failed`.
        ended_ms: When it ended, epoch milliseconds; 0 while it has not.
        error: Why it waits or failed.
        task: The task of asyncio that carries it out.
    """

    id: str
    wish: W
    caller: Caller
    begun_ms: int
    state: str = "looking"
    ended_ms: int = 0
    error: str = ""
    task: asyncio.Task[None] | None = None


class ServerJobs(ABC, Generic[W, J]):
    """The jobs of one kind of a server process. One event loop uses it.

    Args:
        site: The site whose queues they work on.

    Attributes:
        kind: The class of the jobs.
    """

    kind: type[J]

    def __init__(self, site: Site) -> None:
        self.site = site
        self._all: dict[str, J] = {}

    def every(self) -> list[J]:
        """The jobs of this process, the last one first."""
        return list(reversed(self._all.values()))

    def get(self, name: str) -> J | None:
        """A job by its id; None if this process does not know it."""
        return self._all.get(name)

    def begin(self, wish: W, caller: Caller) -> J:
        """Begin a job, or return the running one with the same wish."""
        for one in self._all.values():
            if not one.ended_ms and one.wish == wish:
                return one
        ended = [one.id for one in self._all.values() if one.ended_ms]
        for name in ended[: max(0, len(self._all) - _KEPT_MAX)]:
            del self._all[name]
        made = self.kind(secrets.token_hex(6), wish, caller, self.site.clock.now_ms())
        self._all[made.id] = made
        made.task = asyncio.create_task(self._run(made))
        return made

    def stop(self, job: J) -> None:
        """Stop a job after the part under way."""
        if not job.ended_ms:
            job.state = "stopped"

    @abstractmethod
    async def carry_out(self, job: J) -> None:
        """Carry a job out to its end, or until its state is `stopped`."""

    @abstractmethod
    def told(self, job: J) -> str:
        """The log line of a job that has ended."""

    async def outlast(self, job: J, part: Callable[[], Awaitable[T]]) -> T | None:
        """Do a part, and repeat it while the store is away; None if the job was stopped meanwhile.

        Args:
            job: The job.
            part: The part; safe to repeat.
        """
        patience = Patience()
        while job.state != "stopped":
            job.state = "running"
            try:
                return await part()
            except STOPPED as error:
                if job.state == "running":
                    job.state = "waiting"
                job.error = str(error)
                await patience.wait()
        return None

    async def _run(self, job: J) -> None:
        try:
            await self.site.unless_leaving(self.carry_out(job))
            if job.state not in {"stopped", "failed"}:
                job.state = "stopped" if self.site.leaving.is_set() else "done"
        except Exception as error:
            # The job shows its error, because nobody awaits it.
            job.state, job.error = "failed", str(error)
            if not isinstance(error, (ShardqError, Refusal)):
                log.exception("job %s has failed", job.id)
        finally:
            job.ended_ms = self.site.clock.now_ms()
            log.info("job %s: %s", job.id, self.told(job))
