"""Every metric: its name, kind, help text and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from shardq.records import meter

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Named:
    """A metric.

    Attributes:
        kind: Its type in Prometheus.
        text: Its help text, a sentence.
        labels: The names of its labels.
        of: The part of a process's meter that the metric shows; empty: the store's data.
        bounds: For a histogram: the upper bounds of its buckets, as the meter has them.
        unit: How many units of the meter are one unit of the metric: 1,000,000 us are a second.
    """

    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    of: str = ""
    bounds: tuple[int, ...] = ()
    unit: int = 1


def _times(of: str, text: str, *labels: str) -> Named:
    return Named("histogram", text, labels, of, meter.BOUNDS_US, 1_000_000)


_QUEUE = ("queue",)
TOTALS = {
    "put": "Messages that entered the queue.",
    "delivered": "Deliveries begun.",
    "acked": "Messages done.",
    "retried": "Deliveries that failed and were placed again.",
    "snoozed": "Deliveries postponed without an attempt.",
    "buried": "Messages that died.",
    "forwarded": "Messages moved to another queue.",
    "cancelled": "Messages cancelled.",
    "expired": "Messages too old to be delivered.",
    "purged": "Messages deleted by a purge.",
}
"""Name in `shardq.Totals` of each total of a queue that is a counter -> its meaning."""

METRICS: dict[str, Named] = {
    "shardq_store_up": Named("gauge", "1 if the store was read in time for this scrape, else 0."),
    "shardq_look_seconds": Named("gauge", "How long the look took that the gauges are of."),
    "shardq_queues_unread": Named(
        "gauge", "Queues left out: damaged, or of a newer shardq; `shardq check` names them."
    ),
    "shardq_messages": Named(
        "gauge", "Messages by state: ready, waiting, in_flight, dead.", ("queue", "state")
    ),
    "shardq_oldest_due_seconds": Named(
        "gauge", "How long the oldest due message has waited to be settled.", _QUEUE
    ),
    "shardq_due_next_hour": Named(
        "gauge", "Messages and firings that come due within an hour.", _QUEUE
    ),
    "shardq_paused": Named("gauge", "1 if the queue is paused.", _QUEUE),
    "shardq_paused_names": Named(
        "gauge",
        "Names and beginnings of names that are paused: group, task, key.",
        ("queue", "of"),
    ),
    "shardq_limited_messages": Named(
        "gauge",
        "Due messages in consumers' memory that a limit holds back, by the kind of limit.",
        ("queue", "limit"),
    ),
    "shardq_workers": Named("gauge", "Workers and consumers of the queue.", _QUEUE),
    "shardq_threads": Named(
        "gauge", "Threads that may run the queue's messages: busy, idle.", ("queue", "state")
    ),
    "shardq_leases": Named("gauge", "Lanes of the queue that a worker reads.", _QUEUE),
    "shardq_clock_offset_max_seconds": Named(
        "gauge", "The queue's `offset`: a clock further off is refused.", _QUEUE
    ),
    "shardq_schedule_last_fired_timestamp_seconds": Named(
        "gauge", "The last fire time for which a schedule has put a message.", ("queue", "schedule")
    ),
    "shardq_schedule_next_timestamp_seconds": Named(
        "gauge", "The next fire time of a schedule that is not paused.", ("queue", "schedule")
    ),
    **{f"shardq_{name}": Named("counter", text, _QUEUE) for name, text in TOTALS.items()},
    "shardq_lateness_seconds": _times(
        meter.LATE, "From due to the beginning of the delivery, in these processes.", "queue"
    ),
    "shardq_run_seconds": _times(
        meter.RUN, "How long handlers ran, in these processes.", "queue", "task", "outcome"
    ),
    "shardq_store_seconds": _times(
        meter.STORE, "How long calls of the store took, in these processes.", "operation"
    ),
    "shardq_store_errors": Named(
        "counter", "Calls of the store that failed, in these processes.", ("kind",), meter.ERRORS
    ),
    "shardq_clock_offset_seconds": Named(
        "gauge", "How far this machine's clock is ahead of the store's; of several the largest."
    ),
    "shardq_tombstones_read": Named(
        "counter",
        "Deleted rows that reads have passed, where the store's url has trace=tombstones.",
    ),
    "shardq_http_seconds": _times(
        meter.HTTP,
        "How long the server took for a request, waits for messages included.",
        "api",
        "action",
        "code",
    ),
    "shardq_polls_open": Named("gauge", "Requests to the server that wait for messages."),
    "shardq_batch_size": Named(
        "histogram",
        "Calls that the server has carried out as one.",
        ("kind",),
        meter.BATCH,
        meter.SIZES,
    ),
}
"""Name -> the metric. A counter is scraped with `_total` behind its name."""


def scraped(name: str) -> list[str]:
    """The names of a metric's series, as Prometheus stores them.

    >>> scraped("shardq_put")
    ['shardq_put_total']
    """
    kind = METRICS[name].kind
    if kind == "histogram":
        return [f"{name}_{end}" for end in ("bucket", "sum", "count")]
    return [f"{name}_total"] if kind == "counter" else [name]
