"""Balances a queue's books: every put message has ended, or is still stored.

```
 all rows ──► ids by minute of entry ─┐
                                      ├─► minute by minute: put = ended
 ledger ── minute by minute ──────────┘                         + waiting + in flight   (+ lost)
                                      └─► misfits ──► reread, twice
```

Messages end and move while rows and ledger are read one after the other. So a message is a misfit
only if it fails to fit in the same way three times, with pauses between.

Memory: 17 bytes for each row of the queue, a table of the rows of `SPAN_MINUTES` of entry, and the
misfits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from shardq.inspection import scan
from shardq.model import ids
from shardq.model.shard import spans
from shardq.model.times import iso, moment_of
from shardq.records.ledger import (
    CLOCK_AHEAD_MS,
    SPAN_MINUTES,
    End,
    entry_of,
    kept_for,
    span_of,
)
from shardq.stores.store import MINUTE_US, Entry, Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.times import Due, Duration
    from shardq.records.register import Register
    from shardq.stores.store import Progress

_PROBE_MINUTES = 1_440
_NEAR_MS = 3_600_000
LOOKS = 3
"""How many looks in a row must find a message out of place in the same way."""
LOOKS_MAX = 8
"""Enough looks: ends and puts are recorded once, so that a message's misfit changes rarely."""
PAUSE_S = 1.0
"""Seconds from one look to the next."""
_SLACK_MS = 60_000
"""Messages near the end of their retention are ignored: the record of their put may go first."""
_MINUTE_MS = MINUTE_US // 1_000
_ID_BYTES = 16
_ITEM_BYTES = _ID_BYTES + 1


class MisfitKind(StrEnum):
    """How a message does not fit."""

    LOST = "lost"
    """The message's put is recorded, but no end, and it has no row."""
    RESURRECTED = "resurrected"
    """The message's end is recorded, but it has a row. A consumer that finds the row drops it."""
    UNKNOWN = "unknown"
    """The message's end is recorded by a word that this shardq does not know."""
    UNRECORDED = "unrecorded"
    """The message has a row or an end, but no recorded put: a producer crashed. No fault."""
    DOUBLED = "doubled"
    """The message has two rows: a crash interrupted a move. Only an audit by Spark finds this."""


class Misfit(NamedTuple):
    """A message that does not fit the books.

    Attributes:
        kind: The kind.
        id: The message's id.
        entered: When it entered the queue.
        fate: Its end in the ledger's word; None if the ledger has none.
    """

    kind: MisfitKind
    id: str
    entered: datetime
    fate: str | None


@dataclass(slots=True)
class Balance:
    """The fates of the messages that entered a queue in some time.

    `put` is the sum of all others except `resurrected`, which are also counted as ended, and
    `unrecorded`.

    Attributes:
        put: Recorded puts, including those of `unknown` messages.
        acked: Acked.
        dead: Moved to the dead-letter queue.
        forwarded: Moved to another queue, or put back from the dead letters.
        cancelled: Cancelled.
        expired: Too old to be delivered.
        purged: Reached by a purge, deleted already or not.
        waiting: Stored: to be delivered, or being delivered by a consumer.
        in_flight: Stored: claimed by a caller of `receive`, or parked.
        lost: Not ended, and not stored.
        unknown: Ended in a way that this release does not know: recorded by a newer one, or
            damaged.
        resurrected: Ended, but still stored.
        unrecorded: Stored or ended, but without a record of their put.
    """

    put: int = 0
    acked: int = 0
    dead: int = 0
    forwarded: int = 0
    cancelled: int = 0
    expired: int = 0
    purged: int = 0
    waiting: int = 0
    in_flight: int = 0
    lost: int = 0
    unknown: int = 0
    resurrected: int = 0
    unrecorded: int = 0

    @property
    def is_even(self) -> bool:
        """True if each put message has ended or is stored, and none is both."""
        return not (self.lost or self.unknown or self.resurrected)

    def count(self, *names: str, messages: int = 1) -> None:
        """Count a message, or several alike, under each of these names."""
        for name in names:
            setattr(self, name, getattr(self, name) + messages)

    def sum_of(self, names: Iterable[str]) -> str:
        """The counts of these names that are above 0, as `2 acked + 1 in flight`; else `0`."""
        counts = ((getattr(self, name), name.replace("_", " ")) for name in names)
        return " + ".join(f"{count:,} {name}" for count, name in counts if count) or "0"

    def merge(self, other: Balance) -> None:
        """Add another's counts."""
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


NAMES = tuple(f.name for f in fields(Balance))
OUTCOMES = NAMES[1 : NAMES.index("lost")]
ENDS = frozenset(end.value for end in End)


@dataclass(slots=True)
class Audit:
    """The findings of an audit.

    Attributes:
        queue: The queue's name.
        since: The audited messages entered from this time on.
        until: The audited messages entered before this time.
        whole_from: Since when the history is complete; in the future if it was just turned on.
        total: The balance of all these messages.
        minutes: The balance of each minute in which a message entered, in order.
        misfits: The messages that do not fit.
    """

    queue: str
    since: datetime
    until: datetime
    whole_from: datetime
    total: Balance = field(default_factory=Balance)
    minutes: list[tuple[datetime, Balance]] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)

    @property
    def is_even(self) -> bool:
        """True if the books balance, or nothing was put."""
        return self.total.is_even

    @property
    def is_empty(self) -> bool:
        """True if the history records no message of that time, so that nothing was audited."""
        return self.is_even and not self.total.put

    def line(self) -> str:
        """The outcome in a sentence.

        Examples:
            >>> begin, end = moment_of(0), moment_of(1)
            >>> Audit("mail", begin, end, begin, Balance(put=3, acked=2, waiting=1)).line()
            'mail balances: 3 put = 2 acked + 1 waiting.'
        """
        total = self.total
        if self.is_empty:
            return f"{self.queue}: {self._emptiness()}; there is nothing that could be audited."
        sum_of = total.sum_of(OUTCOMES)
        if self.is_even:
            said = f"{self.queue} balances: {total.put:,} put = {sum_of}"
        else:
            lost = f" + {total.lost:,} lost" if total.lost else ""
            unknown = f" + {total.unknown:,} of an unknown end" if total.unknown else ""
            said = f"{self.queue} does not balance: {total.put:,} put = {sum_of}{lost}{unknown}"
        if total.resurrected:
            said += f"; {total.resurrected:,} ended and yet there"
        if total.unrecorded:
            said += f"; {total.unrecorded:,} without a record of the put, which is no fault"
        return said + "."

    def _emptiness(self) -> str:
        if self.whole_from > self.until:
            return f"its history is whole only for what enters from {iso(self.whole_from)} on"
        if self.total.unrecorded:
            return f"{self.total.unrecorded:,} without a record of the put, and none with one"
        return "nothing has entered in this time"


class Span(NamedTuple):
    """The time that an audit covers, by the messages' entry; epoch milliseconds.

    Attributes:
        since_ms: The start.
        until_ms: The end, exclusive.
        whole_ms: Since when the history is complete.
        ahead_ms: Entries this much after `until_ms` are audited too: producers' clocks differ.
    """

    since_ms: int
    until_ms: int
    whole_ms: int
    ahead_ms: int

    @property
    def since_us(self) -> int:
        """The start in epoch microseconds."""
        return self.since_ms * 1_000

    @property
    def until_us(self) -> int:
        """The end in epoch microseconds, exclusive."""
        return (self.until_ms + self.ahead_ms) * 1_000

    def audit(self, queue: str) -> Audit:
        """An audit of this span, with zero counts."""
        since, until = moment_of(self.since_ms), moment_of(self.until_ms)
        return Audit(queue, since, until, moment_of(self.whole_ms))


def span_audited(
    register: Register, now_ms: int, since: Due | Duration | None, until: Due | Duration | None
) -> Span:
    """The part of the requested time that can be audited.

    Raises:
        HistoryOff: If the queue keeps no history.
        BadTime: If nothing lies between `since` and `until`.
    """
    kept_ms = kept_for(register.settings, register.name)
    whole_ms = max(register.settings.history_from_ms, now_ms - kept_ms + _SLACK_MS)
    since_ms, until_ms = span_of(since, until, first_ms=whole_ms, now_ms=now_ms)
    return Span(since_ms, until_ms, whole_ms, CLOCK_AHEAD_MS if until is None else 0)


@dataclass(slots=True)
class _Suspect:
    """A message that did not fit at the last look: its misfit, and at how many looks in a row."""

    kind: MisfitKind
    looks: int = 1
    name: str | None = None


class Auditor:
    """Audits one queue.

    Args:
        home: The queue's home.
        on_progress: Called with the progress.
    """

    def __init__(self, home: QueueHome, on_progress: Progress | None = None) -> None:
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._tell = on_progress or _untold
        self._balances: dict[int, Balance] = {}
        self._suspects: dict[Entry, _Suspect] = {}
        self._since_us = self._until_us = 0

    def run(self, since: Due | Duration | None, until: Due | Duration | None) -> Audit:
        """Read all rows and the ledger, and reread misfits; `Queue.audit` describes it."""
        self._register.refresh(force=True)
        span = span_audited(self._register, self._clock.now_ms(), since, until)
        self._since_us, self._until_us = span.since_us, span.until_us
        self._look()
        for _ in range(LOOKS_MAX):
            if not self._is_in_doubt():
                break
            self._clock.sleep(PAUSE_S)
            self._look_again()
        audit = span.audit(self._register.name)
        known = {mark.entry: mark for mark in self._store.recorded(list(self._suspects))}
        for entry, suspect in self._suspects.items():
            mark = known.get(entry, Mark(entry))
            # A message that has ended or was recorded meanwhile fits now.
            if suspect.kind is not MisfitKind.LOST or mark.fate is None:
                audit.misfits.append(self._convict(mark, suspect))
            elif mark.fate in ENDS:
                self._count(mark, None)
            else:
                suspect.kind = MisfitKind.UNKNOWN
                audit.misfits.append(self._convict(mark, suspect))
        audit.misfits.sort(key=lambda misfit: (misfit.kind, misfit.entered, misfit.id))
        for minute, balance in sorted(self._balances.items()):
            audit.minutes.append((moment_of(minute * _MINUTE_MS), balance))
            audit.total.merge(balance)
        return audit

    # The first look -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Judge every message of the audited time."""
        there = self._ids_of_rows()
        first = self._since_us // MINUTE_US
        minutes = range(first, max(-(-self._until_us // MINUTE_US), first))
        for part in spans(minutes, SPAN_MINUTES):
            self._tell("minutes of the ledger", part.start - first, len(minutes))
            tables = {minute: _unpacked(there.pop(minute)) for minute in part if minute in there}
            for mark in self._store.history(self._register.name, part):
                if self._is_audited(mark.entry.id):
                    rows = tables.get(mark.entry.minute, {})
                    # Rows that remain in the table at the end are missing in the ledger.
                    self._judge(mark, rows.pop(mark.entry.id, None))
            for rows in tables.values():
                for row_id, is_claim in rows.items():
                    self._judge(Mark(Entry(self._register.name, row_id)), is_claim)

    def _ids_of_rows(self) -> dict[int, bytearray]:
        """Minute of entry -> packed ids of its rows."""
        there: dict[int, bytearray] = {}
        count = 0
        for page in self._rows():
            for row in page:
                entry = entry_of(row)
                if self._is_audited(entry.id):
                    packed = there.setdefault(entry.minute, bytearray())
                    packed += entry.id
                    packed.append(row.claim is not None)
            count += len(page)
            self._tell("rows of the queue", count, None)
        return there

    def _is_audited(self, row_id: bytes) -> bool:
        return self._since_us <= ids.birth_us(row_id) < self._until_us

    def _judge(self, mark: Mark, is_claim: bool | None) -> None:
        """Count a message that fits; note a message that does not fit as a suspect.

        Args:
            is_claim: True if the message's row is a claim; None without a row.
        """
        is_put = mark.checked().due_ms is not None
        kind = kind_of(is_put=is_put, fate=mark.fate, is_there=is_claim is not None)
        if kind is None:
            self._count(mark, is_claim)
            self._suspects.pop(mark.entry, None)
            return
        suspect = self._suspects.get(mark.entry)
        if suspect is None:
            suspect = self._suspects[mark.entry] = _Suspect(kind)
        elif suspect.kind is kind:
            suspect.looks += 1
        else:
            suspect.kind, suspect.looks = kind, 1
        suspect.name = mark.name or suspect.name

    def _count(self, mark: Mark, is_claim: bool | None) -> None:
        self._balance_of(mark.entry).count(*self._names_of(mark, is_claim, None))

    def _names_of(
        self, mark: Mark, is_claim: bool | None, kind: MisfitKind | None
    ) -> tuple[str, ...]:
        return names_of(
            kind,
            is_put=mark.due_ms is not None,
            fate=mark.fate,
            is_purged=ids.birth_us(mark.entry.id) < self._register.settings.purged_before_us,
            is_claim=bool(is_claim),
        )

    def _balance_of(self, entry: Entry) -> Balance:
        found = self._balances.get(entry.minute)
        if found is None:
            found = self._balances[entry.minute] = Balance()
        return found

    # Looking again --------------------------------------------------------------------------------

    def _is_in_doubt(self) -> bool:
        return any(suspect.looks < LOOKS for suspect in self._suspects.values())

    def _look_again(self) -> None:
        """Judge the suspects again: rows first, since an end is recorded before its delete."""
        there: dict[Entry, bool] = {}
        names: dict[Entry, str] = {}
        count = 0
        for page in self._rows():
            for row in page:
                entry = entry_of(row)
                if entry in self._suspects:
                    there[entry] = row.claim is not None
                    if row.name is not None:
                        names[entry] = row.name
            count += len(page)
            self._tell("rows, looked at again", count, None)
        known = {mark.entry: mark for mark in self._store.recorded(list(self._suspects))}
        for entry in list(self._suspects):
            mark = known.get(entry, Mark(entry))
            if entry in there or entry in known:
                self._judge(mark._replace(name=mark.name or names.get(entry)), there.get(entry))
            else:
                # Row and record are gone: the record in the ledger has expired.
                del self._suspects[entry]

    def _convict(self, mark: Mark, suspect: _Suspect) -> Misfit:
        entry = mark.entry
        self._balance_of(entry).count(*self._names_of(mark, None, suspect.kind))
        message_id = mark.name or suspect.name or ids.text(entry.id)
        return Misfit(
            suspect.kind, message_id, moment_of(ids.birth_us(entry.id) // 1_000), mark.fate
        )

    # Rows -----------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[list[Row]]:
        """All rows, and then those due soon once more.

        A message that moves meanwhile moves to now or later. If it moves to a place that was
        already read, the second reading finds it, unless it is due far ahead. Then the next look
        finds it.
        """
        layout = self._register.layout
        first = max(layout.minute_of(self._clock.now_ms()) - 1, 0)
        yield from scan.pages(
            self._store, layout, self._store.shards(layout.queue), purpose="audit", bodies=False
        )
        last = layout.minute_of(self._clock.now_ms() + _NEAR_MS)
        for minutes in spans(range(first, last + 1), _PROBE_MINUTES):
            occupied = self._store.occupied(layout.queue, minutes, layout.all_lanes())
            yield from scan.pages(self._store, layout, occupied, purpose="audit", bodies=False)


def kind_of(*, is_put: bool, fate: str | None, is_there: bool) -> MisfitKind | None:
    """The way in which a message does not fit; None if it fits.

    Args:
        is_put: True if its put is recorded.
        fate: Its end in the ledger; None if no end is recorded.
        is_there: True if it has a row.
    """
    if fate is not None and is_there:
        return MisfitKind.RESURRECTED
    if fate is not None and fate not in ENDS:
        return MisfitKind.UNKNOWN
    if not is_put:
        return MisfitKind.UNRECORDED
    return MisfitKind.LOST if fate is None and not is_there else None


def names_of(
    kind: MisfitKind | None, *, is_put: bool, fate: str | None, is_purged: bool, is_claim: bool
) -> tuple[str, ...]:
    """The names under which a `Balance` counts a message.

    Args:
        kind: The way in which the message does not fit; None if it fits.
        is_put: True if its put is recorded.
        fate: Its end in the ledger; None if no end is recorded.
        is_purged: True if a purge has reached it. A row is deleted when it comes due.
        is_claim: True if its row is a claim.
    """
    if kind in (MisfitKind.LOST, MisfitKind.UNKNOWN):
        return "put", kind.value
    if kind is not None and (fate is None or not is_put):
        return (kind.value,)
    if fate is not None:
        known = fate if fate in ENDS else MisfitKind.UNKNOWN.value
        return ("put", known) if kind is None else ("put", known, kind.value)
    if is_purged:
        return "put", End.PURGED.value
    return "put", "in_flight" if is_claim else "waiting"


def _unpacked(packed: bytearray) -> dict[bytes, bool]:
    """Id of a stored row -> True if it is a claim."""
    data = bytes(packed)
    rows = {}
    for start in range(0, len(data), _ITEM_BYTES):
        end = start + _ID_BYTES
        rows[data[start:end]] = bool(data[end])
    return rows


def _untold(_what: str, _done: int, _total: int | None) -> None:
    """Ignore the progress."""
