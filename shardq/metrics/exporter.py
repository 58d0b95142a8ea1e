"""The page of metrics: what Prometheus scrapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector as Collecting
from prometheus_client.registry import CollectorRegistry

from shardq.health.page import HealthResponse
from shardq.metrics.collector import families
from shardq.metrics.reading import Process, Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prometheus_client.core import Metric

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


def page_of(read: Read) -> Callable[[], HealthResponse]:
    """The route of `/metrics`."""
    registry = CollectorRegistry()
    registry.register(_Read(read))
    return lambda: HealthResponse(200, CONTENT_TYPE_LATEST, generate_latest(registry))


class _Read(Collecting):
    def __init__(self, read: Read) -> None:
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """No metrics: the names of these are known to differ."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape."""
        gauges, counted = self._read()
        yield from families(gauges, counted)
