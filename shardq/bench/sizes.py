"""How much is measured: enough to tell, or enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many messages and seconds each measurement takes.

    Attributes:
        repetitions: Of what is compared with the bare driver.
        put: Messages of one `put_many`.
        put_each: Messages of one run of single puts.
        drain: Messages of one drain.
        grouped: Messages of one drain of groups.
        far: Timers that wait while others are measured.
        timers_s: Seconds of timers.
        load_s: Seconds of load under which LWTs are counted.
        idle_s: Seconds in which an idle consumer's use of the processor is counted.
        trips: Messages whose way from put to handler is timed.
        settle_s: Seconds of load before tombstones are counted: until every rung reads its depth.
        tombstones_s: Seconds in which they are counted.
        received: Messages of a backlog that callers receive.
        cycles: Cycles of a put, a receipt and an ack.
        jobs: Jobs around a crash.
        slow_jobs: Jobs of half a second that a fleet shares; of short ones 20 times as many.
        naps: Coroutines that sleep.
        schedules: Schedules that fire each minute.
        worker_jobs: Jobs after which a worker's memory is read, and again after ten times as many.
        requests: Requests of one run against a server, or messages of it in batches.
        warm_s: Seconds of requests before the first that count.
        peers: Name and url of other servers of SQS.
    """

    repetitions: int = 5
    put: int = 20_000
    put_each: int = 1_000
    drain: int = 20_000
    grouped: int = 20_000
    far: int = 1_000_000
    timers_s: int = 12
    load_s: int = 32
    idle_s: int = 16
    trips: int = 60
    settle_s: int = 62
    tombstones_s: int = 60
    received: int = 10_000
    cycles: int = 4_000
    jobs: int = 400
    slow_jobs: int = 80
    naps: int = 10_000
    schedules: int = 10_000
    worker_jobs: int = 20_000
    requests: int = 10_000
    warm_s: float = 30
    peers: tuple[tuple[str, str], ...] = ()


FULL = Sizes()
QUICK = Sizes(
    repetitions=3,
    put=5_000,
    put_each=300,
    drain=10_000,
    grouped=2_000,
    far=20_000,
    timers_s=4,
    load_s=8,
    idle_s=5,
    trips=15,
    settle_s=5,
    tombstones_s=15,
    received=3_000,
    cycles=1_000,
    jobs=100,
    slow_jobs=16,
    naps=2_000,
    schedules=500,
    worker_jobs=2_000,
    requests=1_000,
    warm_s=2,
)
