"""How fast a queue is worked at present, by what its processes have stored of the last minutes."""

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
"""Fewer deliveries say too little of a rate: then those of all recent minutes are taken.

Nor do they tell a limit."""
_YOUNG_MS = 10_000
"""A minute that began less long ago says too little."""
_LATE_MS = 1_000
"""Consumers that begin half of their deliveries later than this have more to do than they can."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What was delivered and put in the last minutes.

    Attributes:
        done: Deliveries a second, the mean of `over_ms` up to now.
        over_ms: Milliseconds.
        put: Messages put a second in the middle one of the recent minutes: thousands that are put
            at once do not come in again and again.
        best: Deliveries a second in the best of the recent minutes; `done` at least.
        is_limit: Whether `best` is all that consumers can do: half of its deliveries were late, and
            so they were in a minute beside it. What is late in one minute alone was due while
            nobody was there or the queue was paused, and may have been done in a moment.
    """

    done: float
    over_ms: int
    put: float
    best: float
    is_limit: bool


def pace_of(stored: Stored, now_ms: int, made_ms: int) -> Pace | None:
    """The pace of a queue: of this minute and the one before; of few deliveries, of five minutes.

    Args:
        stored: Its totals.
        now_ms: Epoch milliseconds.
        made_ms: When it was made, epoch milliseconds.

    Returns:
        None where nothing was delivered in the last five minutes.
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
    # The present minute has just begun, so it may be the best one only as a part of `done`.
    best = max(delivered.keys() - {this}, key=lambda one: (delivered[one], one), default=this)
    return Pace(
        done=done,
        over_ms=over_ms,
        put=_put_rate(stored.recent_put(now_ms), now_ms, made_ms),
        best=max(delivered[best] * 1_000 / _MINUTE_MS, done),
        is_limit=_is_limit(late, best),
    )


def _is_limit(late: Mapping[int, Lateness], best: int) -> bool:
    """Whether consumers were busy all through a minute, by what they were late in it and beside."""
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
