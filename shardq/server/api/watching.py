"""Statistics, forecast and history of a queue."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from shardq.model.times import iso
from shardq.observer import Observer
from shardq.server.answers import Of
from shardq.server.api.route import QUEUE, RouteCall, route
from shardq.server.api.shapes import Span, Time, struct_of
from shardq.server.grants import Level

if TYPE_CHECKING:
    from shardq.observer import QueueView
    from shardq.queue import Queue as SyncQueue
    from shardq.records.ledger import Record as HistoryRecord

_RECORDS_MAX = 10_000


class Lateness(Struct):
    """How late deliveries begin, in milliseconds.

    Attributes:
        p50_ms: Half of them are no later.
        p99_ms: 99 of 100 are no later.
    """

    p50_ms: float
    p99_ms: float


class Statistics(Struct, kw_only=True, omit_defaults=True):
    """A queue at one moment.

    Attributes:
        queue: Its name.
        at: The moment.
        paused: True if its deliveries are held back.
        ready: Messages that are due and not in flight.
        waiting: Messages that are due later.
        in_flight: Messages that are received and not settled.
        dead: Dead messages.
        put: Messages that were put since the queue was made.
        delivered: Deliveries begun since then.
        acked: Messages done.
        retried: Deliveries that failed and were placed again.
        snoozed: Deliveries that were postponed without an attempt.
        buried: Messages that died.
        cancelled: Messages that were cancelled.
        purged: Messages deleted by a purge.
        put_rate: Messages put a second, over the last `rate_s`.
        delivered_rate: Deliveries a second, likewise.
        rate_s: Over how many seconds.
        lag_ms: How long the oldest ready message has waited; 0 without any.
        late: Lateness of the deliveries of the last five minutes; absent without any.
        consumers: How many processes consume it.
        busy: How many of their handlers run.
    """

    queue: str
    at: Time
    paused: bool
    ready: int
    waiting: int
    in_flight: int
    dead: int
    put: int
    delivered: int
    acked: int
    retried: int
    snoozed: int
    buried: int
    cancelled: int
    purged: int
    put_rate: float
    delivered_rate: float
    rate_s: float
    lag_ms: int
    late: Lateness | None = None
    consumers: int
    busy: int


class ForecastQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """How far to look ahead.

    Attributes:
        horizon: To a day.
        begin: True to count each message in the minute in which it begins by the queue's rate, also
            those that are due now.
    """

    horizon: Span = "1h"
    begin: bool = False


class Minute(Struct):
    """A minute ahead.

    Attributes:
        minute: Its start.
        count: Messages and firings of schedules that are due in it, or begin.
    """

    minute: Time
    count: int


class Forecast(Struct):
    """The load ahead.

    Attributes:
        minutes: Every minute of the horizon, from the current one on.
    """

    minutes: list[Minute]


class HistoryQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """The records of the history to return.

    Attributes:
        message: Only records of the message with this id or key.
        since: The first time, or how long ago.
        until: The last time, or how long ago.
        limit: The most records to return.
    """

    message: str | None = None
    since: str | None = None
    until: str | None = None
    limit: Annotated[int, Meta(ge=1, le=_RECORDS_MAX)] = 100


class Failed(Struct, kw_only=True, omit_defaults=True):
    """An attempt that failed.

    Attributes:
        attempt: Its number, from 1.
        began: When its handler was called; absent if unknown, as for a delivery that was settled
            by its receipt.
        ended: When it failed.
        run_ms: How long it ran; absent likewise.
        error: Why.
    """

    attempt: int
    began: Time | None = None
    ended: Time
    run_ms: int | None = None
    error: str


class Record(Struct, kw_only=True, omit_defaults=True):
    """The record of a message in the history.

    Attributes:
        id: Its id.
        entered: When it entered the queue.
        due: The due first asked for.
        fate: `acked`, `dead`, `cancelled` or `purged`; absent while it has not ended.
        ended: When it ended.
        attempt: Deliveries until then.
        member: The process that recorded the end.
        task: The task whose job it is.
        failed: Its attempts that failed, the last 100.
    """

    id: str
    entered: Time
    due: Time | None = None
    fate: str | None = None
    ended: Time | None = None
    attempt: int = 0
    member: str = ""
    task: str | None = None
    failed: list[Failed] = []


class History(Struct):
    """Records of the history.

    Attributes:
        records: The records, by minute of entry.
        more: True if there are more than the limit.
    """

    records: list[Record]
    more: bool


@route("GET", QUEUE + "/statistics", Level.GET)
async def get_statistics(call: RouteCall[None, None]) -> Statistics:
    """Counts, rates and lateness of a queue, at most a second old."""
    queue, site = await call.queue(), call.site

    async def look() -> Statistics:
        observer = Observer(site.connection, [queue.name], horizon=None)
        [view] = await site.threads.call(observer.look)
        return _statistics_of(view)

    # Programs that scale workers ask all the time.
    return await site.answers.of(Of("statistics", queue.name), look)


@route("GET", QUEUE + "/forecast", Level.GET)
async def get_forecast(call: RouteCall[ForecastQuery, None]) -> Forecast:
    """Messages and firings due in each of the coming minutes."""
    query = call.query
    found = await (await call.queue()).queue.forecast(query.horizon, begin=query.begin)
    return Forecast([Minute(iso(minute), count) for minute, count in found])


@route("GET", QUEUE + "/history", Level.GET)
async def get_history(call: RouteCall[HistoryQuery, None]) -> History:
    """The fate of a message, or of all messages that entered in a span.

    The queue needs the setting `history`.
    """
    query, queue = call.query, await call.queue()

    def read(opened: SyncQueue) -> list[HistoryRecord]:
        records = opened.history(query.message, query.since, query.until)
        return list(islice(records, query.limit + 1))

    found = await queue.call(read, is_long=True)
    some = found[: query.limit]
    return History([_record_of(one) for one in some], len(found) > len(some))


def _statistics_of(view: QueueView) -> Statistics:
    return struct_of(
        Statistics,
        view,
        view.depth,
        view.totals,
        queue=view.name,
        at=iso(view.at_ms),
        paused=view.settings.paused,
        late=None if view.late_ms is None else Lateness(*view.late_ms),
        consumers=len(view.members),
    )


def _record_of(record: HistoryRecord) -> Record:
    return struct_of(Record, record, failed=[struct_of(Failed, one) for one in record.failed])
