"""A run of a job: its name, its time, and the lines that say what of it is done.

Each try of a run, also a twin's or a resumed one, makes the same ids by its time, and skips the
parts that have a line. Lines are puts in the ledger of a pseudo queue, `mail#runs`, whose name no
queue has: no table of their own.

```
 20261125T212532.123456Z-7f3a/plan       the header: what was asked for; written first, read back
                             /3/0        the first piece of bin 3, by `pieces.py`
                             /undone     it was undone, and is not to be resumed
```
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.errors import BadTime, StoreCorrupt, UsageError, shown
from shardq.model import ids
from shardq.model.times import LATEST_MS, moment_of
from shardq.records.folded import stored_totals
from shardq.records.stats import StatsRow
from shardq.stores.store import Entry, Mark, WriteOnce
from shardq.stores.tables import STATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.model.settings import Settings
    from shardq.records.register import Register
    from shardq.records.stats import Totals
    from shardq.stores.store import Logs, Registers, Store

SUFFIX = "#runs"
"""The suffix of the pseudo queue that has the lines of a queue's runs; no name has its sign."""
LINE_TTL_MS = 30 * 86_400_000
PLAN = "plan"
UNDONE = "undone"
BEGUN = "begun"
"""The fate of a line of which a process has begun to write the piece."""

DOUBT_MS = 3_600_000
"""A part that was begun so long ago may have ended, and a repeat could bring it back: deleted rows
stay deleted for gc_grace, 3 h."""
_AHEAD_US = 1_000_000

_ID = re.compile(r"(\d{8}T\d{6}\.\d{6})Z(?:-[0-9a-f]{4})?\Z", re.ASCII)
_FORM = "%Y%m%dT%H%M%S.%f"


class SparkRun(NamedTuple):
    """A run.

    Attributes:
        id: Its name, `20261125T212532.123456Z-7f3a`: its time, and four random digits where the
            user did not name it.
        as_of_us: Its time, epoch microseconds: all that it writes is as of then.
    """

    id: str
    as_of_us: int

    @classmethod
    def new(cls, as_of_us: int) -> SparkRun:
        """A run like no other."""
        return cls(f"{cls.at(as_of_us).id}-{secrets.token_hex(2)}", as_of_us)

    @classmethod
    def at(cls, as_of_us: int) -> SparkRun:
        """The run of a time: the same time gives the same run."""
        moment = moment_of(as_of_us // 1_000).replace(microsecond=as_of_us % 1_000_000)
        return cls(moment.strftime(_FORM) + "Z", as_of_us)

    @classmethod
    def read(cls, text: str) -> SparkRun:
        """A run by its name.

        Raises:
            UsageError: If no run has such a name.

        >>> SparkRun.read("20261125T212532.123456Z-7f3a").as_of_us
        1795641932123456
        """
        found = _ID.match(text)
        try:
            moment = datetime.strptime(found[1], _FORM).replace(tzinfo=UTC) if found else None
        except ValueError:
            moment = None
        if moment is None:
            raise UsageError(
                f"{shown(text)} names no run; take the name that the run's report gives, such as "
                f"20261125T212532.123456Z-7f3a."
            )
        since = moment - _EPOCH
        return cls(text, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)

    def entry(self, queue: str, part: str) -> Entry:
        """The entry of the ledger under which a part has its line."""
        return Entry(queue + SUFFIX, ids.fixed(self.as_of_us, f"{self.id}/{part}"))

    @property
    def is_made_up(self) -> bool:
        """True if its name was drawn, so that it is unknown before the run begins."""
        return "-" in self.id

    def check_begun(self, store: Logs, queue: str) -> None:
        """Raise if a run that is to be resumed has never begun: its name may have a slip.

        Raises:
            UsageError: If nothing was planned under a name that was made up.
        """
        if self.is_made_up and line_of(store, self.entry(queue, PLAN)).says is None:
            raise UsageError(
                f"no run {self.id} has begun in queue {queue!r} in the last 30 days; check its "
                f"name, or leave it out to begin one."
            )

    def check_time(self, now_us: int) -> None:
        """Raise where the run is ahead of now, or so old that its lines are gone.

        Raises:
            UsageError: If it is.
        """
        if self.as_of_us > now_us + _AHEAD_US:
            raise BadTime(f"run {self.id} is ahead of now; what enters a queue has entered by now.")
        if self.as_of_us < now_us - LINE_TTL_MS * 1_000:
            raise UsageError(
                f"run {self.id} began over 30 days ago, and what it did is not known any more; do "
                f"what is left as a new run."
            )

    def check(self, queue: str, settings: Settings) -> None:
        """Raise where what the run writes would be taken for what a purge or a drop has reached.

        Raises:
            UsageError: If the queue was purged or dropped since.
        """
        if self.as_of_us < max(settings.purged_before_us, settings.former_until_us):
            raise UsageError(
                f"queue {queue!r} has been purged or dropped since run {self.id} began; what it "
                f"would write now counts as purged: schedule it as a new run."
            )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PartLine:
    """The record of a part of a run.

    Attributes:
        says: What its line says; None: it has none.
        begun_ms: When it was begun, epoch milliseconds; None: never, or it was not recorded.
    """

    says: dict[str, Any] | None = None
    begun_ms: int | None = None

    @classmethod
    def of(cls, mark: Mark) -> PartLine:
        """The line of a mark.

        Raises:
            StoreCorrupt: If it is damaged.
        """
        mark.checked()
        begun_ms = None if mark.fate is None else mark.ended_ms
        if mark.due_ms is None:
            return cls(None, begun_ms)
        try:
            says = json.loads(mark.name or "")
        except (ValueError, RecursionError):
            says = None
        if not isinstance(says, dict):
            raise StoreCorrupt(
                f"a line of a run in {mark.entry.queue!r} is damaged: {shown(mark.name)}; schedule "
                f"what is left as a new run, or restore the store from a copy."
            )
        return cls(says, begun_ms)


def lines(store: Logs, entries: Iterable[Entry]) -> dict[Entry, PartLine]:
    """The records of parts of runs, of those that have one."""
    return {mark.entry: PartLine.of(mark) for mark in store.recorded(entries)}


def line_of(store: Logs, entry: Entry) -> PartLine:
    """The record of a part of a run."""
    return lines(store, [entry]).get(entry, PartLine())


def mark_of(entry: Entry, says: Mapping[str, Any]) -> Mark:
    """A line, as the ledger keeps it."""
    text = json.dumps(says, separators=(",", ":"), sort_keys=True)
    return Mark(entry, ids.birth_us(entry.id) // 1_000, text)


def agreed(store: Store, entry: Entry, says: Mapping[str, Any]) -> dict[str, Any]:
    """Write a line unless there is one; returns the content of the stored line."""
    store.insert((), WriteOnce(mark_of(entry, says), LINE_TTL_MS))
    found = line_of(store, entry).says
    return dict(says) if found is None else found


def begin(store: Logs, entry: Entry, now_ms: int) -> None:
    """Record that somebody began a part; of several times the earliest stands."""
    store.record([Mark(entry, fate=BEGUN, ended_ms=now_ms)], LINE_TTL_MS)


def write_totals(
    store: Registers, register: Register, run: SparkRun, totals: Totals, *, suffix: str = ""
) -> None:
    """Store the totals of a run. Idempotent: every try stores the same.

    Args:
        register: The queue's register.
        suffix: Distinguishes these totals from others of the same run.
    """
    as_of_ms = run.as_of_us // 1_000
    # No line has the due of the last row, so counts read as far as there may be rows.
    farthest_ms = LATEST_MS if totals.put else 0
    try:
        mended_ms = stored_totals(store, register.totals_key).folded.mended_ms
    except StoreCorrupt:
        # A repair of damaged totals counts every row.
        mended_ms = 0
    # A full count that began after the run may have counted some of its rows already. Mark these
    # totals as late, so that another full count is made.
    late_ms = mended_ms if mended_ms >= as_of_ms else 0
    row = StatsRow(farthest_ms=farthest_ms, late_ms=late_ms)
    row.merge(totals)
    minute = register.layout.hour_of(as_of_ms)
    store.note(STATS, (register.totals_key,), {(minute, f"spark-{run.id}{suffix}"): row.to_json()})
