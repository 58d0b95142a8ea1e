"""How much is measured: enough for a figure, or enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """The messages and seconds of each measurement.

    Attributes:
        repetitions: Repetitions of each comparison with the bare driver.
        put: Messages of one `put_many`.
        put_each: Messages of one run of single puts.
        drain: Messages of one drain.
        far: Far timers that wait while near timers are measured.
        timers_s: Seconds of timers.
        load_s: Seconds of load under which LWTs are counted.
        idle_s: Seconds in which an idle consumer's use of the processor is counted.
        trips: Messages whose time from put to handler is measured.
        settle_s: Seconds of load before tombstones are counted, so that every rung of the sweeps
            reads rows.
        tombstones_s: Seconds in which tombstones are counted.
        jobs: Jobs around a crash.
        schedules: Schedules that fire each minute.
    """

    repetitions: int = 5
    put: int = 20_000
    put_each: int = 1_000
    drain: int = 20_000
    far: int = 1_000_000
    timers_s: int = 12
    load_s: int = 32
    idle_s: int = 16
    trips: int = 60
    settle_s: int = 62
    tombstones_s: int = 60
    jobs: int = 400
    schedules: int = 10_000


FULL = Sizes()
QUICK = Sizes(
    repetitions=3,
    put=5_000,
    put_each=300,
    drain=10_000,
    far=20_000,
    timers_s=4,
    load_s=8,
    idle_s=5,
    trips=15,
    settle_s=5,
    tombstones_s=15,
    jobs=100,
    schedules=500,
)
