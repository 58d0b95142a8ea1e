"""The part of a view that its options and Spark's pushed filters ask for.

Bounds only exclude rows that need not be read. Spark applies every filter again, so a bound may be
too wide, but never too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter

    from shardq.model.shard import Layout

FAR_MS = 1 << 52
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A part of a view.

    Attributes:
        first_ms: The first millisecond asked for: of due, or of entry for the history.
        last_ms: The last one.
        minutes: The minutes asked for; None: all.
        lanes: The lanes asked for; None: all.
        queues: The queues asked for; None: all.
    """

    first_ms: int = 0
    last_ms: int = FAR_MS
    minutes: frozenset[int] | None = None
    lanes: frozenset[int] | None = None
    queues: frozenset[str] | None = None

    def within(self, first_ms: int, last_ms: int) -> Bounds:
        """These bounds, narrowed to a time."""
        return replace(
            self, first_ms=max(self.first_ms, first_ms), last_ms=min(self.last_ms, last_ms)
        )

    def span(self, layout: Layout) -> range:
        """The minutes that may have rows within these bounds."""
        first, last = layout.minute_of(self.first_ms), layout.minute_of(self.last_ms)
        if self.minutes is not None:
            first = max(first, min(self.minutes, default=last + 1))
            last = min(last, max(self.minutes, default=first - 1))
        return range(max(first, 0), last + 1)

    def has(self, minute: int, lane: int) -> bool:
        """True if minute and lane of a shard are asked for, whatever is due when."""
        return (self.minutes is None or minute in self.minutes) and (
            self.lanes is None or lane in self.lanes
        )

    def is_of(self, queue: str) -> bool:
        """True if a queue is asked for."""
        return self.queues is None or queue in self.queues


def narrowed(bounds: Bounds, filters: Iterable[Filter], layout: Layout, *, time: str) -> Bounds:
    """Bounds, as far as all filters hold.

    Args:
        layout: Of the queue: how long its minutes are.
        time: The column that bounds the time, `due` or `entered`.
    """
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if len(path) != 1 or value is None:
            continue
        name = path[0]
        if name == time:
            bounds = bounds.within(*_times(one, value))
        elif name == "minute":
            bounds = _in_minutes(bounds, one, value, layout)
        elif name == "lane":
            bounds = replace(bounds, lanes=_both(bounds.lanes, _values(one, value)))
        elif name == "queue":
            bounds = replace(bounds, queues=_both(bounds.queues, _values(one, value)))
    return bounds


def _values(one: Filter, value: Any) -> frozenset[Any] | None:
    """The values that a filter lets pass; None if it does not list them."""
    if isinstance(one, (EqualTo, EqualNullSafe)):
        return frozenset((value,))
    return frozenset(value) - {None} if isinstance(one, In) else None


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    """The intersection, where None stands for everything."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _in_minutes(bounds: Bounds, one: Filter, value: Any, layout: Layout) -> Bounds:
    wanted = _values(one, value)
    if wanted is not None:
        return replace(bounds, minutes=_both(bounds.minutes, wanted))
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return bounds.within(layout.start_ms(value), FAR_MS)
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return bounds.within(0, layout.end_ms(value) - 1)
    return bounds


def _times(one: Filter, value: Any) -> tuple[int, int]:
    """The first and the last millisecond of what a filter on a time lets pass, or more."""
    values = value if isinstance(one, In) else (value,)
    moments = [moment for moment in values if moment is not None]
    if not all(isinstance(m, datetime) and m.tzinfo is not None for m in moments):
        return 0, FAR_MS
    millis = [(moment - _EPOCH) // _MILLISECOND for moment in moments]
    if isinstance(one, (EqualTo, EqualNullSafe, In)):
        return min(millis, default=FAR_MS), max(millis, default=-1) + 1
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return millis[0], FAR_MS
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return 0, millis[0] + 1
    return 0, FAR_MS
