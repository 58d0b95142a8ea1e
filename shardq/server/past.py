"""The last firings of a schedule, and the fates of their messages, by its queue's history.

```
 fire times, back from now ─► the minutes in which their messages entered ─► records with their ids
```
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import UsageError
from shardq.model.times import due_ms
from shardq.schedules.policy import MISSED_MS
from shardq.schedules.stored import id_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.records.ledger import Ledger, Record
    from shardq.schedules.stored import StoredSchedule

_EARLY_MS = 3_000
"""A message may enter up to this long before its fire time; longer than a schedule's lead."""
_SPAN_MS = 60_000
_WIDER = 8
RECORDS_MAX = 20_000
"""Most records to read, because other messages of the queue enter at the same time."""


class PastFiring(NamedTuple):
    """A fire time that has passed, or another time for which the schedule has put a message.

    Attributes:
        time_ms: The time, epoch milliseconds.
        record: The record of its message; None: there is none.
    """

    time_ms: int
    record: Record | None


def past_times(schedule: StoredSchedule, first_ms: int, now_ms: int, count: int) -> list[int]:
    """The last fire times until now, the last one first.

    Args:
        schedule: The schedule.
        first_ms: The earliest one, epoch milliseconds.
        now_ms: Now.
        count: The most to return.
    """
    policies, span_ms = schedule.definition.policies, _SPAN_MS
    while True:
        from_ms = max(first_ms, now_ms - span_ms)
        fires = schedule.definition.trigger.fires(
            from_ms - 1, now_ms, twice=policies.twice, gap=policies.gap
        )
        found = deque((fire.at_ms for fire in fires), maxlen=count)
        if len(found) == count or from_ms == first_ms:
            return sorted(found, reverse=True)
        span_ms *= _WIDER


def past_firings(
    schedule: StoredSchedule, ledger: Ledger, now_ms: int, count: int
) -> list[PastFiring]:
    """The last firings, the last one first.

    Args:
        schedule: The schedule.
        ledger: The ledger of its queue.
        now_ms: Now, epoch milliseconds.
        count: The most to return.

    Raises:
        HistoryOff: If the queue keeps no history.
        TriggerError: If a user's trigger fails.
    """
    first_ms = ledger.first_ms()
    times = past_times(schedule, max(first_ms, schedule.definition.made_ms), now_ms, count)
    found: dict[int, Record | None] = dict.fromkeys(times)
    left = RECORDS_MAX
    for from_ms, until_ms in _spans(times, schedule.definition.policies.latest_ms):
        for record in ledger.records(None, from_ms, until_ms):
            time_ms = _time_of(record.id, schedule.definition.name)
            if time_ms is not None:
                found[time_ms] = record
            left -= 1
            if not left:
                break
        if not left:
            break
    return [PastFiring(time_ms, found[time_ms]) for time_ms in sorted(found, reverse=True)][:count]


def _spans(times: list[int], latest_ms: int) -> Iterator[tuple[int, int]]:
    """The spans in which messages of fire times have entered, the last ones first."""
    begin_ms = end_ms = None
    for time_ms in times:
        first_ms, last_ms = time_ms - _EARLY_MS, time_ms + latest_ms + MISSED_MS
        if begin_ms is None or end_ms is None:
            begin_ms, end_ms = first_ms, last_ms
        elif last_ms >= begin_ms:
            begin_ms = first_ms
        else:
            yield begin_ms, end_ms
            begin_ms, end_ms = first_ms, last_ms
    if begin_ms is not None and end_ms is not None:
        yield begin_ms, end_ms


def _time_of(message_id: str, name: str) -> int | None:
    """The time for which a schedule has put a message; None for other messages."""
    if not message_id.startswith(f"{name}@"):
        return None
    try:
        time_ms = due_ms(message_id[len(name) + 1 :])
    except UsageError:
        return None
    return time_ms if message_id == id_of(name, time_ms) else None
