"""The speed of a store, beside that of the bare driver at the same row work in the same run.

```
 puts drains tasks timers schedules leases idle crash ── each a list of lines ──► the table
   └─ place (where) sizes (how much) member, child (a consumer process) load (a steady rate)
```

The bare driver's work is in the stores: `stores/cassandra/bare.py`, `stores/sqlite/bare.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from shardq.bench import crash, drains, idle, leases, puts, schedules, tasks, timers
from shardq.bench.line import Line
from shardq.bench.place import BenchPlace
from shardq.bench.sizes import Sizes
from shardq.clock import SystemClock
from shardq.model.times import span

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shardq.clock import Clock

__all__ = ["MEASUREMENTS", "Line", "Measurement", "names", "run"]

S = TypeVar("S", bound=Sizes)


@dataclass(frozen=True, slots=True)
class Measurement(Generic[S]):
    """A measurement, on both stores or on one.

    Attributes:
        name: Its name on the command line.
        take: Does the measurement.
        cassandra: True if it is made on Cassandra.
        sqlite: True if it is made on SQLite.
    """

    name: str
    take: Callable[[BenchPlace, S], list[Line]]
    cassandra: bool = True
    sqlite: bool = True


MEASUREMENTS: tuple[Measurement[Sizes], ...] = (
    Measurement("put", puts.near, sqlite=False),
    Measurement("far", puts.far, sqlite=False),
    Measurement("put", puts.each, cassandra=False),
    Measurement("put-many", puts.mixed, cassandra=False),
    Measurement("drain", drains.near, sqlite=False),
    Measurement("drain", drains.file, cassandra=False),
    Measurement("tasks", tasks.cost),
    Measurement("lwt", leases.lwts, sqlite=False),
    Measurement("tombstones", leases.tombstones, sqlite=False),
    Measurement("timers", timers.known),
    Measurement("schedules", schedules.firings),
    Measurement("idle", idle.consumer),
    Measurement("crash", crash.restart),
)


def names(measurements: Collection[Measurement[S]]) -> list[str]:
    """The names of measurements, each once."""
    return list(dict.fromkeys(one.name for one in measurements))


def run(
    url: str,
    measurements: Collection[Measurement[S]],
    sizes: S,
    *,
    only: Collection[str] = (),
    tell: Callable[[str], None],
    clock: Clock | None = None,
) -> list[Line]:
    """Measure a store, in a place of its own beside it that is removed at the end.

    Args:
        url: The store. A Cassandra user must be allowed to make and drop a keyspace.
        measurements: The measurements.
        sizes: How much is measured.
        only: The names of the wanted measurements; empty: all.
        tell: Called with a sentence before and after each measurement.
        clock: Measures and waits; None: the system's.

    Returns:
        The lines of the table.

    Raises:
        ShardqError: If a message was not delivered, or a store or consumer failed.
    """
    lines: list[Line] = []
    with BenchPlace(url, clock or SystemClock()) as place:
        for one in measurements:
            if not (one.cassandra if place.is_cassandra else one.sqlite):
                continue
            if only and one.name not in only:
                continue
            tell(f"measuring {one.name}")
            start_us = place.clock.boot_us()
            lines += one.take(place, sizes)
            took = span((place.clock.boot_us() - start_us) / 1_000)
            tell(f"measured {one.name} in {took}")
    return lines
