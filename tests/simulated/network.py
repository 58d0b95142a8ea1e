"""The way between a process and the tables: slow, lossy, late.

```
 call ─┬─ done: takes effect at its beginning or at its end
       ├─ refused ─────────────────────────────────────► StoreUnavailable
       ├─ lost ────────────────────────────────────────► StoreTimeout
       ├─ unanswered: takes effect ────────────────────► StoreTimeout
       ├─ late: takes effect seconds to minutes later ─► StoreTimeout
       └─ twice: lost, sent again by the driver; the first one arrives as well, later
```
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.stores.store import RowMove
    from shardq.stores.tables import Partition, Table
    from simulated.cells import Cells
    from simulated.scheduler import Process, Scheduler

_HEALED_US = 5_000_000

DONE, REFUSED, LOST, UNANSWERED, LATE, TWICE = range(6)


@dataclass(slots=True)
class Weather:
    """How a network behaves; shares are of all calls.

    Attributes:
        least_us: The shortest call.
        spread_us: How much longer others are, the cube of a uniform number's share of it.
        slow: Share of calls that take up to `slow_us` longer.
        slow_us: How long these may take.
        refused: Share that is refused.
        lost: Share that is lost on the way.
        unanswered: Share that takes effect without an answer.
        late: Share that takes effect up to `late_us` later, without an answer.
        late_us: How late that may be.
        lingers: True if what is late by then stays so when all is healed.
        slow_lwt: Share of LWTs that take up to `slow_us` longer, as contended ones do.
        twice: Share of writes of which a second copy arrives up to `late_us` later.
        parted: Share of calls of several rows that go out as several requests.
        timeout_us: After how long an answer is no longer waited for.
        move_bytes: A row larger than this is moved by an insert, then a delete.
    """

    least_us: int = 300
    spread_us: int = 4_000
    slow: float = 0.0
    slow_us: int = 3_000_000
    refused: float = 0.0
    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    late_us: int = 30_000_000
    lingers: bool = False
    slow_lwt: float = 0.0
    twice: float = 0.0
    parted: float = 0.0
    timeout_us: int = 2_000_000
    move_bytes: int = 1 << 20

    @property
    def faulty(self) -> float:
        """The share of calls that are not done at once and told so."""
        return self.refused + self.lost + self.unanswered + self.late + self.twice

    def heal(self) -> None:
        """Let every call be done from now on."""
        self.slow = self.slow_lwt = self.refused = self.lost = self.unanswered = self.late = (
            self.twice
        ) = 0.0


class Network:
    """What all simulated stores of a world share.

    Args:
        scheduler: Who lets time pass.
        cells: The tables.
        weather: How calls fare.

    Attributes:
        calls: How many verbs were called.
        met: What calls have met with, by the names of its shares in `Weather`.
        on_call: Told process, verb, fate and what it was about, of every call.
        on_unknown: Told process, verb and row ids of each write of which its caller cannot know
            whether it took effect.
        on_lease: Told process, what was done, shard and lock, of each lease that changed.
        on_found: Told process, purpose and rows of each read or look that found any.
        on_answer: Told process, verb, shard and answer of each LWT that was decided.
        on_note: Told process, table, partition and values by key of the notes that are asked for,
            before anything comes of them.
        on_move: Told the moves that are asked for, before anything comes of them.
        on_moved: Told process and moves of which it knows that they are done.
        late_until_us: When the last of what is late takes effect.
        on_told: Told process, table, partition and values by key of the records that it was told.
        sender: Whose write takes effect right now, long after it was sent; None: none does.
        on_trouble: Told a process whose call was refused, lost, or slower than a second; and how
            long it waits from now on, in microseconds.
    """

    def __init__(self, scheduler: Scheduler, cells: Cells, weather: Weather) -> None:
        self.scheduler = scheduler
        self.cells = cells
        self.weather = weather
        self.calls = 0
        self.met: set[str] = set()
        self.on_call: Callable[[Process, str, int, object], None] = _silent
        self.on_unknown: Callable[[Process, str, list[bytes]], None] = _silent
        self.on_lease: Callable[[Process, str, Shard, str], None] = _silent
        self.on_trouble: Callable[[Process, int], None] = _silent
        self.on_found: Callable[[Process, str, list[Row]], None] = _silent
        self.on_answer: Callable[[Process, str, Any, Any], None] = _silent
        self.on_note: Callable[[Process, Table[Any, Any], Partition, Mapping[Any, Any]], None] = (
            _silent
        )
        self.on_move: Callable[[Sequence[RowMove]], None] = _silent
        self.on_moved: Callable[[Process, Sequence[RowMove]], None] = _silent
        self.on_told: Callable[[Process, Table[Any, Any], Partition, Mapping[Any, Any]], None] = (
            _silent
        )
        self.lwts: dict[object, int] = {}
        self.late_until_us = 0
        self.sender: Process | None = None
        self._late: dict[Callable[[], None], Process] = {}
        self._healed = False

    def later(self, act: Callable[[], None], chance: random.Random) -> None:
        """Let a write take effect much later, and only then."""
        weather = self.weather
        lateness_us = min(weather.timeout_us + chance.randrange(weather.late_us), weather.late_us)
        if self._healed:
            lateness_us = chance.randrange(_HEALED_US)
        self._late[act] = self.scheduler.here()
        at_us = self.scheduler.now_us + lateness_us
        self.late_until_us = max(self.late_until_us, at_us)
        self.scheduler.at(at_us, lambda: self._arrive(act))

    def heal(self) -> None:
        """End all faults; what is still on its way arrives within seconds, unless it lingers."""
        self.weather.heal()
        self._healed = True
        if self.weather.lingers:
            return
        step_us = _HEALED_US // (len(self._late) + 1)
        for place, act in enumerate(list(self._late)):
            us = self.scheduler.now_us + place * step_us
            self.scheduler.at(us, partial(self._arrive, act))

    def _arrive(self, act: Callable[[], None]) -> None:
        if act in self._late:
            self.sender = self._late.pop(act)
            act()
            self.sender = None


def _silent(*_: object) -> None:
    pass
