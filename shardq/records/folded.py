"""The totals of a queue summed over all its processes, and the one row for ended processes.

```
 web:1 {put 6, at, open} ──┐                     counting   open, and at most 5 s old
 web:2 {put 3, at}         ├─► Stored: the sum   crashed    open, and older: a gap of up to 2 s
 #     {put 90, acked 80,  │                     late       was frozen, and continued
        mended 2, folded} ─┘
   ▲
   └ fold: rows of ended processes are added to it, by compare and set; the next fold deletes them
```

Two kinds of numbers are counted in two ways. Only the process that did something knows what a queue
has done: `put`, `acked` and so on. Each process adds up its own numbers, and stores the sum within
2 s (`stats.py`). A killed process loses up to 2 s of them, and nothing shows which. The rows of a
queue show what it holds. `depth` counts the near ones where they lie. Far ones would take 0.2 ms a
shard on Cassandra, so they are taken from `present`, the puts less the ends. A queue's `depth_max`
is checked by `present` too. A count of every row corrects `present` after a crash
(`inspection/mend.py`): the difference is added to `mended`, and to no other number.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import field
from msgspec.structs import replace

from shardq.errors import StoreCorrupt
from shardq.records.stats import RECENT_MINUTES, Count, Lateness, StatsRow, Totals
from shardq.stores.tables import STATS, Change

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.clock import Clock
    from shardq.model.shard import Layout
    from shardq.records.register import Register
    from shardq.records.together import Noted
    from shardq.stores.store import Registers

log = logging.getLogger(__name__)

MINUTE, MEMBER = 0, "#"
"""The key of the folded row, which no process has."""
OPEN_MS = 5_000
"""How old the stored totals of a counting process are at most. A row that is further ahead than
this is from before the clock was set back."""
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_STRETCH_MS = 4 * _HOUR_MS
_AGE_MS = 600_000
"""Rows younger than this are not folded: their processes may add to them, and their last minutes
are read."""
_KEPT_HOURS = 7 * 24
"""For how long a process that seemed crashed may have been frozen, and continue after all."""
_ROWS_MAX = 150
"""How many rows one fold takes. Twice as many digests of earlier rows are kept, 16 bytes each in
the folded row."""
_ROUNDS = 25


class Folded(Totals):
    """The row with the totals of ended processes; written by compare and set alone.

    Its counts are the sum of those processes' counts, without lateness, and with `mended`.

    Attributes:
        at_ms: When the row was stored, epoch milliseconds.
        mended_ms: When the last full count whose result is in `mended` began; 0: never. It has
            settled rows that were open or late before.
        doomed: Messages in the queue when it was purged last.
        purged_then: Messages purged in all before that purge.
        former: Rows of a dropped queue of this name that the last full count has found.
        rough: 1 if others put or settled during the last full count, which then has mended only
            proven differences.
        stretches: 4 h since the epoch -> lateness, for about a day.
        hours: First minute of this hour and the last -> messages put, and gone.
        digests: Digest of a folded row -> hour since the epoch until which it is remembered, in
            case the row is written again; 0: until the row is deleted.
    """

    at_ms: Count = 0
    mended_ms: Count = 0
    doomed: Count = 0
    purged_then: Count = 0
    former: Count = 0
    rough: Count = 0
    stretches: dict[Count, Lateness] = field(default_factory=dict)
    hours: dict[Count, tuple[Count, Count]] = field(default_factory=dict)
    digests: dict[str, Count] = field(default_factory=dict)

    def with_rows(self, rows: Iterable[StatsRow], layout: Layout, now_ms: int) -> Folded:
        """This row with other rows added, and without lateness that is more than a day old.

        Args:
            rows: Rows that were not added before.
            layout: The queue's layout.
            now_ms: Epoch milliseconds.
        """
        stretches = {
            one: Lateness(dict(late.buckets))
            for one, late in self.stretches.items()
            if abs(now_ms - one * _STRETCH_MS) < _DAY_MS + _STRETCH_MS
        }
        since = layout.hour_of(now_ms - _HOUR_MS)
        hours = {minute: counts for minute, counts in self.hours.items() if minute >= since}
        digests = dict(self.digests)
        made = replace(self, stretches=stretches, hours=hours, digests=digests)
        for row in rows:
            if row.minute >= since:
                put, gone = hours.get(row.minute, (0, 0))
                hours[row.minute] = put + row.put, gone + row.gone
            made.count(row)
            if row.lateness.buckets:
                one = layout.start_ms(row.minute) // _STRETCH_MS
                stretches.setdefault(one, Lateness()).merge(row.lateness)
            digests[row.digest] = now_ms // _HOUR_MS + _KEPT_HOURS if row.is_open else 0
        return made


@dataclass(frozen=True, slots=True)
class Stored:
    """The totals that a queue's processes have stored, by one read.

    Attributes:
        queue: The name under which the totals are stored, `Register.totals_key`.
        totals: The sum over all processes.
        rows: Rows of processes that are not folded yet.
        left_out: Folded rows that still exist, because they are not deleted yet, or were written
            again by a process that was frozen.
        folded: The folded row; an empty row if there is none.
        text: The folded row's stored form; None if there is none.
    """

    queue: str
    totals: Totals
    rows: tuple[StatsRow, ...]
    left_out: tuple[StatsRow, ...]
    folded: Folded
    text: str | None

    @property
    def doomed(self) -> int:
        """Messages that the last purge covers and nobody has deleted yet."""
        folded = self.folded
        return max(folded.doomed - (self.totals.purged - folded.purged_then), 0)

    def since(self, minute: int) -> tuple[int, int]:
        """How many messages entered, and left, in rows that began at a minute or later.

        Args:
            minute: The first minute of this hour or of the last one.
        """
        counted = [(row.put, row.gone) for row in self.rows if row.minute >= minute]
        counted += [counts for began, counts in self.folded.hours.items() if began >= minute]
        return sum(put for put, _ in counted), sum(gone for _, gone in counted)

    def counting(self, now_ms: int) -> list[StatsRow]:
        """Rows of processes that count now: counts of their last 2 s may not be stored yet."""
        return [row for row in self.rows if row.is_open and abs(now_ms - row.at_ms) <= OPEN_MS]

    def gaps(self, now_ms: int) -> list[StatsRow]:
        """Rows whose counts may be missing, or counted twice, since the last full count.

        Their processes were counting and have stored nothing for 5 s, because they crashed, were
        frozen, or were cut off from the store. Some may have continued since.
        """
        return [row for row in (*self.rows, *self.left_out) if self.is_gap(row, now_ms)]

    def lateness(self, now_ms: int) -> Lateness:
        """Lateness of the deliveries of this minute and the four minutes before."""
        found = Lateness()
        for late in self.recent(now_ms).values():
            found.merge(late)
        return found

    def recent(self, now_ms: int) -> dict[int, Lateness]:
        """Minute since the epoch -> lateness of its deliveries, for the last five minutes."""
        found: dict[int, Lateness] = {}
        for row in self.rows:
            for minute, late in row.recent.items():
                if 0 <= now_ms // _MINUTE_MS - minute < RECENT_MINUTES:
                    found.setdefault(minute, Lateness()).merge(late)
        return found

    def recent_put(self, now_ms: int) -> Counter[int]:
        """Minute since the epoch -> messages put in it, for the last five minutes."""
        found: Counter[int] = Counter()
        for row in self.rows:
            found.update(row.recent_put)
        this = now_ms // _MINUTE_MS
        return Counter({m: n for m, n in found.items() if 0 <= this - m < RECENT_MINUTES})

    def recent_producers(self, now_ms: int) -> Counter[str]:
        """Process -> how many messages it put in the last five minutes, if it put any."""
        this = now_ms // _MINUTE_MS
        found: Counter[str] = Counter()
        for row in self.rows:
            put = (n for m, n in row.recent_put.items() if 0 <= this - m < RECENT_MINUTES)
            found[row.process] += sum(put)
        return +found

    def lateness_of_day(self, now_ms: int, layout: Layout) -> Lateness:
        """Lateness of the deliveries of the last 24 h, and of up to 4 h before."""
        found = Lateness()
        for row in self.rows:
            if abs(now_ms - layout.start_ms(row.minute)) <= _DAY_MS:
                found.merge(row.lateness)
        for one, late in self.folded.stretches.items():
            if abs(now_ms - one * _STRETCH_MS) < _DAY_MS + _STRETCH_MS:
                found.merge(late)
        return found

    def settled(self, layout: Layout, now_ms: int) -> Folded:
        """The folded row after a full count, still without the count's result.

        Rows from before the clock was set back are folded, because no later count could settle
        them.

        Args:
            layout: The queue's layout.
            now_ms: Epoch milliseconds.
        """
        ahead = [row for row in self.rows if self.is_gap(row, now_ms) and _is_ahead(row, now_ms)]
        return self.folded.with_rows(ahead, layout, now_ms)

    def is_gap(self, row: StatsRow, now_ms: int) -> bool:
        """True if counts of a row may be missing, or be counted twice."""
        # A folded row was settled before; its process may have written the row again.
        is_folded = row.digest in self.folded.digests
        is_stale = row.is_open and not is_folded and abs(now_ms - row.at_ms) > OPEN_MS
        return (is_stale or row.late_ms > 0) and not self.is_settled(row, now_ms)

    def is_settled(self, row: StatsRow, now_ms: int) -> bool:
        """True if a later full count has found the messages that a row lacks."""
        mended_ms = self.folded.mended_ms
        if _is_ahead(row, now_ms):
            # `mended_ms` proves nothing about a row from the future: only a count that has folded
            # the row has settled it.
            return row.digest in self.folded.digests
        # A full count that is ahead was made before the clock was set back, and proves nothing.
        if mended_ms > now_ms + OPEN_MS:
            return False
        stored_ms = row.at_ms + OPEN_MS if row.is_open else 0
        return mended_ms > max(row.late_ms, stored_ms)


def stored_totals(store: Noted, queue: str) -> Stored:
    """The totals that a queue's processes have stored since the queue was made.

    Args:
        store: The store.
        queue: The name under which the queue's totals are stored, `Register.totals_key`.

    Raises:
        StoreCorrupt: If a row cannot be read; the error names the row.
    """
    return _read(store, queue, None)


def write_folded(store: Registers, stored: Stored, folded: Folded, now_ms: int) -> bool:
    """Store a folded row in place of the one in `stored`; False if that one has changed since.

    Raises:
        StoreTimeout: The row may be stored; reread the totals.
    """
    text = replace(folded, at_ms=now_ms).to_json()
    seen, new = {"totals": stored.text}, {"totals": text}
    return not store.write_records(STATS, [Change((stored.queue,), (MINUTE, MEMBER), seen, new)])


def drop_damaged(store: Registers, queue: str, now_ms: int) -> list[str]:
    """Delete rows of totals that cannot be read; a full count then makes up for them.

    Returns:
        A sentence about each damaged row.
    """
    wrong: dict[tuple[int, str], str] = {}
    stored = _read(store, queue, wrong)
    rows = list(wrong)
    folded = [row for row in rows if row == (MINUTE, MEMBER)]
    if folded:
        # The folded row is written by compare and set alone, so an empty one replaces it.
        write_folded(store, stored, Folded(), now_ms)
    store.erase(STATS, (queue,), [row for row in rows if row not in folded])
    return list(wrong.values())


def fold(store: Registers, clock: Clock, register: Register) -> int:
    """Fold the totals of ended processes into one row; many processes may do so at the same time.

    Old rows are folded if they are closed, or if a full count has settled them. Costs a read of all
    rows and, if there are any to fold, an LWT and a batch of deletes.

    Returns:
        How many rows were folded.

    Raises:
        StoreUnavailable, StoreTimeout: Even then every row counts once.
    """
    queue, layout = register.totals_key, register.layout
    count = 0
    for _ in range(_ROUNDS):
        now_ms = clock.now_ms()
        stored = stored_totals(store, queue)
        # Delete rows a round after they were folded, so that readers of the older folded row still
        # find them.
        gone = [row for row in stored.left_out if not stored.is_gap(row, now_ms)]
        if gone:
            store.erase(STATS, (queue,), [(row.minute, row.member) for row in gone])
        rows = [row for row in stored.rows if _is_foldable(stored, row, layout, now_ms)]
        if not rows:
            break
        made = _forgetting(stored, now_ms).with_rows(rows[:_ROWS_MAX], layout, now_ms)
        if write_folded(store, stored, made, now_ms):
            count += len(rows[:_ROWS_MAX])
    if count:
        log.info("queue %s: folded the totals of %d ended processes", register.name, count)
    return count


def _forgetting(stored: Stored, now_ms: int) -> Folded:
    """The folded row without digests that are no longer needed."""
    there = {row.digest for row in stored.left_out}
    hour = now_ms // _HOUR_MS
    digests = stored.folded.digests
    kept = {one: until for one, until in digests.items() if one in there or until > hour}
    # Keep the digests that are to be remembered longest.
    last = sorted(kept, key=lambda one: (one in there, kept[one]))[-2 * _ROWS_MAX :]
    return replace(stored.folded, digests={one: kept[one] for one in last})


def _is_foldable(stored: Stored, row: StatsRow, layout: Layout, now_ms: int) -> bool:
    # A row ahead of now, from before the clock was set back, counts as old too.
    is_old = abs(now_ms - row.at_ms) >= max(_AGE_MS, 2 * layout.offset_ms)
    needs_count = row.is_open or row.late_ms > 0
    return is_old and (not needs_count or stored.is_settled(row, now_ms))


def _is_ahead(row: StatsRow, now_ms: int) -> bool:
    """True if a row is from the future, because the clock was set back since."""
    return max(row.at_ms, row.late_ms) > now_ms + OPEN_MS


def _read(store: Noted, queue: str, wrong: dict[tuple[int, str], str] | None) -> Stored:
    """The rows of a queue; damaged rows are added to `wrong`, or raise if that is None."""
    folded, text = Folded(), None
    found: list[StatsRow] = []
    for key, stored in sorted(store.notes(STATS, (queue,)).items()):
        try:
            if key == (MINUTE, MEMBER):
                text = stored
                folded = Folded.from_json(stored, queue, key)
            else:
                row = StatsRow.from_json(stored, queue, key)
                row.minute, row.member = key
                found.append(row)
        except StoreCorrupt as error:
            if wrong is None:
                raise
            wrong[key] = str(error)
    rows, left_out = [], []
    totals = Totals()
    totals.count(folded)
    for late in folded.stretches.values():
        totals.lateness.merge(late)
    for row in found:
        if folded.digests and row.digest in folded.digests:
            left_out.append(row)
        else:
            rows.append(row)
            totals.merge(row)
    return Stored(queue, totals, tuple(rows), tuple(left_out), folded, text)
