"""The way between a process and the tables: slow, lossy, late.

```
 call ─┬─ done: takes effect at its beginning or at its end
       ├─ refused ─────────────────────────────────────► StoreUnavailable
       ├─ lost ────────────────────────────────────────► StoreTimeout
       ├─ unanswered: takes effect ────────────────────► StoreTimeout
       ├─ late: takes effect seconds to minutes later ─► StoreTimeout
       └─ twice: the driver sends it again, and the first copy arrives too, later
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
    """The behaviour of a network. Shares are shares of all calls.

    Attributes:
        least_us: The duration of the shortest call.
        spread_us: The most that a call takes longer; each takes this times a random number cubed.
        slow: Share of calls that take up to `slow_us` longer.
        slow_us: The most that slow calls take longer.
        refused: Share of calls that are refused.
        lost: Share of calls that are lost on the way.
        unanswered: Share of calls that take effect without an answer.
        late: Share of calls that take effect up to `late_us` later, without an answer.
        late_us: The most that a call is late.
        lingers: True if writes on their way stay late after all faults have ended.
        slow_lwt: Share of LWTs that take up to `slow_us` longer, as contended ones do.
        twice: Share of writes of which a second copy arrives up to `late_us` later.
        parted: Share of calls with several rows that are sent as several requests.
        timeout_us: How long a caller waits for an answer.
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
        """The share of calls that fail, or of which the caller does not learn the outcome."""
        return self.refused + self.lost + self.unanswered + self.late + self.twice

    def heal(self) -> None:
        """Let every call succeed from now on."""
        self.slow = self.slow_lwt = self.refused = self.lost = self.unanswered = self.late = (
            self.twice
        ) = 0.0


class Network:
    """The network of a world, which all its simulated stores share.

    Args:
        scheduler: Lets time pass.
        cells: The tables.
        weather: Decides the fates of calls.

    Attributes:
        calls: How many verbs were called.
        met: The faults that calls have met, by the names of their shares in `Weather`.
        on_call: Called with process, verb, fate and object of every call.
        on_unknown: Called with process, verb and row ids of each write whose outcome the process
            cannot know.
        on_lease: Called with process, change, shard and lock of each lease that changed.
        on_found: Called with process, purpose and rows of each read that found any.
        on_answer: Called with process, verb, shard and answer of each LWT that was decided.
        on_note: Called with process, table, partition and values by key of notes to write, before
            they are written.
        on_move: Called with the moves of a call, before it is carried out.
        on_moved: Called with a process, and moves that it knows to be done.
        late_until_us: When the last late write takes effect.
        on_told: Called with process, table, partition and values by key of records that it read.
        sender: The process whose late write takes effect right now; None: none does.
        on_trouble: Called with a process whose call was refused, lost, or slower than a second, and
            how long the process waits from now on, microseconds.
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
        """Let a write take effect much later."""
        weather = self.weather
        lateness_us = min(weather.timeout_us + chance.randrange(weather.late_us), weather.late_us)
        if self._healed:
            lateness_us = chance.randrange(_HEALED_US)
        self._late[act] = self.scheduler.here()
        at_us = self.scheduler.now_us + lateness_us
        self.late_until_us = max(self.late_until_us, at_us)
        self.scheduler.at(at_us, lambda: self._arrive(act))

    def heal(self) -> None:
        """End all faults. Writes on their way arrive within seconds, unless `lingers`."""
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
