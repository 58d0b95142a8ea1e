"""The cost of metrics: a scrape of many queues, and a drain with metrics beside a drain without."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import shardq
from shardq.bench.drains import drain
from shardq.bench.line import Line, interleaved
from shardq.bench.puts import body_of

if TYPE_CHECKING:
    from measures.sizes import Sizes
    from shardq.bench.place import BenchPlace

_QUEUES = 200
_EACH = 20
_SCRAPES = 5
_LOOK_S = 6
"""The seconds between scrapes, so that each scrape begins a new look at the store."""
_SCRAPE_MS, _SCRAPE_FAR_MS = 300, 1_000
_RATIO = 0.9


def cost(place: BenchPlace, sizes: Sizes) -> list[Line]:
    """Scrapes of 200 queues, and a drain with and without metrics."""
    return [*_scrapes(place), _drains(place, sizes)]


def _scrapes(place: BenchPlace) -> list[Line]:
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    from shardq.metrics import Collector

    clock, url = place.clock, place.url()
    with shardq.connect(url) as db:
        for number in range(_QUEUES):
            queue = place.queue(db, f"scraped{number}")
            queue.put_many([b"x"] * _EACH)
            queue.put_many([{"body": b"x", "delay": "30m"}] * _EACH)
    with shardq.connect(url) as db:
        registry = CollectorRegistry()
        registry.register(Collector(db))
        took_ms = []
        for _ in range(1 + _SCRAPES):
            begun_us = clock.boot_us()
            size = len(generate_latest(registry))
            took_ms.append((clock.boot_us() - begun_us) / 1e3)
            clock.sleep(_LOOK_S)
        look_s = registry.get_sample_value("shardq_look_seconds") or 0
    most_ms = _SCRAPE_FAR_MS if place.is_cassandra else _SCRAPE_MS
    first_ms, *later_ms = took_ms
    median_ms = statistics.median(later_ms)
    return [
        Line(
            f"a scrape of {_QUEUES} queues",
            median_ms,
            "ms",
            f"{most_ms:,} ms",
            median_ms <= most_ms,
            note=f"median of {_SCRAPES}, {size / 1e3:,.0f} KB; the first {first_ms:,.0f} ms",
        ),
        Line("the look behind it", look_s * 1e3, "ms", note="a scrape does not wait for it"),
    ]


def _drains(place: BenchPlace, sizes: Sizes) -> Line:
    from shardq.metrics import Collector

    bodies = [body_of(number) for number in range(sizes.drain)]

    def drained(*, is_measured: bool) -> float:
        with shardq.connect(place.url()) as db:
            queue = place.queue(db, "drain")
            queue.put_many(bodies)
            if is_measured:
                Collector(db)
            return drain(place, queue, len(bodies))

    pair = interleaved(
        sizes.repetitions,
        lambda _turn: drained(is_measured=True),
        lambda _turn: drained(is_measured=False),
    )
    return Line(
        "drain with metrics: no-op handler",
        pair.reached,
        "rows/s",
        f"{_RATIO} of that without",
        pair.ratio >= _RATIO,
        pair.bare,
        pair.ratio,
        f"{sizes.drain:,} rows, one process; beside it: the same without metrics",
    )
