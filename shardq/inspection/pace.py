"""The present pace of a queue, by the stored totals of the last minutes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from shardq.records.stats import RECENT_MINUTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.records.folded import Stored
    from shardq.records.stats import Lateness

_MINUTE_MS = 60_000
_FEW = 20
"""Fewer deliveries than this prove no limit; with fewer in two minutes, the rate is over five."""
_YOUNG_MS = 10_000
"""A minute that began more recently than this proves too little."""
_LATE_MS = 1_000
"""Consumers are overloaded if half of their deliveries begin later than this."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The deliveries and puts of the last minutes.

    Attributes:
        done: Deliveries per second, the mean of `over_ms` up to now.
        over_ms: The span, milliseconds.
        put: Messages put per second in the median recent minute: thousands that are put at once do
            not arrive again and again.
        best: Deliveries per second in the best recent minute; at least `done`.
        is_limit: True if `best` is the consumers' limit: half of its deliveries were late, and so
            were those of a minute beside it. Messages that are late in one minute alone were due
            while the queue had no consumers or was paused, and may have been done in a moment.
    """

    done: float
    over_ms: int
    put: float
    best: float
    is_limit: bool


def pace_of(stored: Stored, now_ms: int, made_ms: int) -> Pace | None:
    """The pace of a queue in this minute and the last; with few deliveries, in five minutes.

    Args:
        stored: The queue's totals.
        now_ms: Epoch milliseconds.
        made_ms: When the queue was made, epoch milliseconds.

    Returns:
        None if nothing was delivered in the last five minutes.
    """
    late = stored.recent(now_ms)
    delivered = Counter({minute: one.count for minute, one in late.items()})
    if not delivered.total():
        return None
    this = now_ms // _MINUTE_MS
    first = this - 1
    if delivered[this] + delivered[first] < _FEW:
        first = this - RECENT_MINUTES + 1
    over_ms = max(now_ms - max(first * _MINUTE_MS, made_ms), 1_000)
    done = sum(count for minute, count in delivered.items() if minute >= first) * 1_000 / over_ms
    # The present minute has just begun: it can be the best one only as a part of `done`.
    best = max(delivered.keys() - {this}, key=lambda one: (delivered[one], one), default=this)
    return Pace(
        done=done,
        over_ms=over_ms,
        put=_put_rate(stored.recent_put(now_ms), now_ms, made_ms),
        best=max(delivered[best] * 1_000 / _MINUTE_MS, done),
        is_limit=_is_limit(late, best),
    )


def _is_limit(late: Mapping[int, Lateness], best: int) -> bool:
    """True if consumers were busy all through a minute, by the lateness in it and beside it."""
    slow = {one for one, of in late.items() if (of.quantile(0.5) or 0) > _LATE_MS}
    if best not in slow:
        return False
    first = last = best
    while first - 1 in slow:
        first -= 1
    while last + 1 in slow:
        last += 1
    return last > first and sum(late[one].count for one in range(first, last + 1)) >= _FEW


def _put_rate(put: Mapping[int, int], now_ms: int, made_ms: int) -> float:
    this, elapsed_ms = divmod(now_ms, _MINUTE_MS)
    whole = range(max(this - RECENT_MINUTES + 1, made_ms // _MINUTE_MS + 1), this)
    rates = [put.get(minute, 0) * 1_000 / _MINUTE_MS for minute in whole]
    if elapsed_ms >= _YOUNG_MS:
        rates.append(put.get(this, 0) * 1_000 / elapsed_ms)
    return median_low(rates) if rates else 0.0
