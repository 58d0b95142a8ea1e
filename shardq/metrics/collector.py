"""A collector for a registry of Prometheus: depths and totals of a store, times of this process."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector as Collecting

from shardq.metrics.named import METRICS, Named
from shardq.metrics.reading import Process, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardq.connection import Connection
    from shardq.metrics.reading import Gauges
    from shardq.records.meter import Counted


Read: TypeAlias = "Callable[[], tuple[Gauges, Counted]]"
"""Returns gauges with totals, and the counts of meters."""


def reader(db: Connection, names: Sequence[str] | None = None) -> Read:
    """A function that reads a store and this process, which is measured from now on.

    Args:
        db: The connection.
        names: The queues to look at; None: all.
    """
    reading, process = Reading(db, names), Process(db)
    return lambda: (reading.gauges() | process.gauges(), process.counted())


class Families(Collecting):
    """The metrics of a function that reads them.

    Args:
        read: The function.
    """

    def __init__(self, read: Read) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """The metrics without values; a registry learns their names without a read of the store."""
        for name, named in METRICS.items():
            yield _family(name, named)

    def collect(self) -> Iterator[Metric]:
        """The metrics, as they are now."""
        yield from families(*self._read())


class Collector(Families):
    """Collects the metrics of a store, and of this process, for a registry of yours.

    Depths, ages and totals are of the whole store. Totals are the store's own, read at each scrape,
    so a restart does not reset them. Depths and ages are read by one look at all queues, every 5 s
    at most. If a look takes longer than a scrape waits, the look before is shown. Lateness, runs of
    handlers and calls of the store are of this process, in seconds, from when the collector is
    made.

    A scrape never raises because of the store. If the store does not answer within 3 s,
    `shardq_store_up` is 0 and the metrics of the store are missing. Queues and tasks beyond the
    first 500 are counted together as `other`.

    Args:
        db: The connection. Consumers of this connection, and workers of an app that has it, are
            measured.
        queues: The queues to look at; None: all of the store, as they are made and dropped.

    Raises:
        MissingExtra: At the import, if prometheus-client is not installed.
    """

    def __init__(self, db: Connection, queues: Sequence[str] | None = None) -> None:
        super().__init__(reader(db, queues))


def families(gauges: Gauges, counted: Counted) -> Iterator[Metric]:
    """The metrics as Prometheus's own objects; metrics without a value are left out.

    Args:
        gauges: Gauges of the store and of processes.
        counted: The counts of processes.
    """
    for name, named in METRICS.items():
        family = _family(name, named)
        rows = counted.get(named.of, ()) if named.of else ()
        if isinstance(family, HistogramMetricFamily):
            for labels, counts in rows:
                family.add_metric(labels, _buckets(named, counts), counts[-1] / named.unit)
        else:
            for labels, value in [*gauges.get(name, ()), *((one, sums[0]) for one, sums in rows)]:
                family.add_metric(labels, value)
        if family.samples:
            yield family


def _family(
    name: str, named: Named
) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    if named.kind == "histogram":
        return HistogramMetricFamily(name, named.text, labels=named.labels)
    made = CounterMetricFamily if named.kind == "counter" else GaugeMetricFamily
    return made(name, named.text, labels=named.labels)


def _buckets(named: Named, counts: Sequence[float]) -> list[tuple[str, float]]:
    """Each bound as text, with the number of values up to it."""
    bounds = [*(str(bound / named.unit) for bound in named.bounds), "+Inf"]
    return list(zip(bounds, accumulate(counts[:-1]), strict=True))
