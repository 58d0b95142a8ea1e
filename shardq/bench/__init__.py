"""The speed of a store, measured beside the bare driver doing the same row work in the same run.

```
 puts drains keys tasks timers schedules idle callers .. ── each a list of lines ──► the table
   └─ place (where) sizes (how much) member, child (a consumer process) load (a steady rate)
```

What the bare driver does is in the stores: `stores/cassandra/bare.py`, `stores/sqlite/bare.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardq.bench import (
    callers,
    crash,
    drains,
    groups,
    history,
    idle,
    keys,
    leases,
    puts,
    schedules,
    tasks,
    timers,
    traces,
    workers,
)
from shardq.bench.line import Line
from shardq.bench.place import Place
from shardq.bench.sizes import FULL, QUICK, Sizes
from shardq.clock import SystemClock
from shardq.model.times import span

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from shardq.clock import Clock

__all__ = ["NAMES", "Line", "run"]


@dataclass(frozen=True, slots=True)
class _Measurement:
    name: str
    take: Callable[[Place, Sizes], list[Line]]
    cassandra: bool
    sqlite: bool
    by_name: bool = False
    """True if it is taken only where it is named."""


def _of_server(place: Place, sizes: Sizes) -> list[Line]:
    # Imported here: it needs the extra `server`.
    from shardq.bench import server

    return server.requests(place, sizes)


def _of_metrics(place: Place, sizes: Sizes) -> list[Line]:
    # Imported here: it needs the extra `metrics`.
    from shardq.bench import metrics

    return metrics.cost(place, sizes)


_MEASUREMENTS = (
    _Measurement("put", puts.near, cassandra=True, sqlite=False),
    _Measurement("far", puts.far, cassandra=True, sqlite=False),
    _Measurement("put", puts.each, cassandra=False, sqlite=True),
    _Measurement("put-many", puts.mixed, cassandra=False, sqlite=True),
    _Measurement("drain", drains.near, cassandra=True, sqlite=False),
    _Measurement("drain", drains.file, cassandra=False, sqlite=True),
    _Measurement("groups", groups.drained, cassandra=True, sqlite=True),
    _Measurement("keys", keys.cost, cassandra=True, sqlite=True),
    _Measurement("tasks", tasks.cost, cassandra=True, sqlite=True),
    _Measurement("lwt", leases.lwts, cassandra=True, sqlite=False),
    _Measurement("tombstones", leases.tombstones, cassandra=True, sqlite=False),
    _Measurement("timers", timers.known, cassandra=True, sqlite=True),
    _Measurement("schedules", schedules.firings, cassandra=True, sqlite=True),
    _Measurement("idle", idle.consumer, cassandra=True, sqlite=True),
    _Measurement("callers", callers.taken, cassandra=True, sqlite=True),
    _Measurement("waiting", callers.waiting, cassandra=True, sqlite=True),
    _Measurement("history", history.cost, cassandra=True, sqlite=True),
    _Measurement("crash", crash.restart, cassandra=True, sqlite=True),
    _Measurement("workers", workers.shared, cassandra=True, sqlite=True),
    _Measurement("metrics", _of_metrics, cassandra=True, sqlite=True, by_name=True),
    _Measurement("traces", traces.cost, cassandra=True, sqlite=True, by_name=True),
    _Measurement("server", _of_server, cassandra=True, sqlite=True, by_name=True),
)

NAMES = tuple(dict.fromkeys(one.name for one in _MEASUREMENTS))
"""What can be measured alone."""


def run(
    url: str,
    *,
    quick: bool = False,
    only: Collection[str] = (),
    tell: Callable[[str], None],
    peers: Collection[tuple[str, str]] = (),
    sizes: Sizes | None = None,
    clock: Clock | None = None,
) -> list[Line]:
    """Measure a store, in a place of its own beside it that is removed at the end.

    Args:
        url: The store. A Cassandra user must be allowed to make and drop a keyspace.
        quick: Few messages and seconds: enough to see that it works.
        only: Some of `NAMES`; all where empty.
        tell: Told what is being measured.
        peers: Name and url of other servers of SQS, to be measured beside ours.
        sizes: Instead of those that `quick` chooses.
        clock: The system's where None.

    Returns:
        The lines of the table.

    Raises:
        ShardqError: If a message was not delivered, or a store or consumer failed.
    """
    chosen = replace(sizes or (QUICK if quick else FULL), peers=tuple(peers))
    lines: list[Line] = []
    with Place(url, clock or SystemClock()) as place:
        for one in _MEASUREMENTS:
            if not (one.cassandra if place.is_cassandra else one.sqlite):
                continue
            if one.name not in only if only else one.by_name:
                continue
            tell(f"measuring {one.name}")
            start_us = place.clock.boot_us()
            lines += one.take(place, chosen)
            took = span((place.clock.boot_us() - start_us) / 1_000)
            tell(f"measured {one.name} in {took}")
    return lines
