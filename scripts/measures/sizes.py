"""How much is measured: enough for a figure, or enough to see that it works."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from shardq.bench import sizes


@dataclass(frozen=True, slots=True)
class Sizes(sizes.Sizes):
    """How many messages and seconds each measurement takes.

    Attributes:
        grouped: Messages of one drain of groups.
        received: Messages of a backlog that callers receive.
        cycles: Cycles of a put, a receipt and an ack.
        slow_jobs: Jobs of half a second that a fleet shares; of short jobs it shares 20 times as
            many.
        naps: Coroutines that sleep.
        worker_jobs: Jobs after which a worker's memory is read; it is read again after ten times as
            many.
        requests: Requests of one run against a server; in batches, the messages.
        warm_s: Seconds of requests that are not counted, at the start.
        peers: Name and url of other servers of SQS.
    """

    grouped: int = 20_000
    received: int = 10_000
    cycles: int = 4_000
    slow_jobs: int = 80
    naps: int = 10_000
    worker_jobs: int = 20_000
    requests: int = 10_000
    warm_s: float = 30
    peers: tuple[tuple[str, str], ...] = ()


FULL = Sizes()
QUICK = Sizes(
    **asdict(sizes.QUICK),
    grouped=2_000,
    received=3_000,
    cycles=1_000,
    slow_jobs=16,
    naps=2_000,
    worker_jobs=2_000,
    requests=1_000,
    warm_s=2,
)
