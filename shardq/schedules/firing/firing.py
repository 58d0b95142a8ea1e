"""Fires schedules: writes the jobs of their next fire times, and the times after these.

```
 fresh read ─┬─ missed ─► `aim` is written, and the record is reread
            └─ due ────► jobs' rows ─► record: next, IF as read
                                         └─ refused: another member has fired it
```

On SQLite jobs and record are one transaction. On Cassandra the jobs are written first: a member
that repeats that, after a crash or at the same time, writes exactly the same rows.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import (
    ShardqError,
    StoreTimeout,
    StoreUnavailable,
    TriggerError,
    UnknownQueue,
)
from shardq.lifecycle.keyed import KeyedCommands
from shardq.lifecycle.keyedputs import Asked, KeyedPuts, conflict_of, key_text
from shardq.model import ids
from shardq.model.message import moved, write_headers
from shardq.records.ledger import End
from shardq.schedules.stored import headers_of, id_of
from shardq.schedules.table import ScheduleTable, ScheduleWrite
from shardq.stores.store import RowMove

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.shard import Layout, Position
    from shardq.schedules.stored import PlannedFiring, StoredSchedule

log = logging.getLogger(__name__)

_SWEPT_MS = 5_000
"""A job that is less late than this needs no help: a sweep finds it within 2.5 s, and may have
delivered it by now."""
_FRESH_US = 500_000
"""Jobs are written no later than this after the fresh read, because a command may change the record
after that."""
_AGAIN_MS = 10_000
"""A trigger that has failed, or a record that is damaged, is tried again after this time."""
_HELD = "1h"
"""A run's key is held this long after its end, longer than a firing can be repeated."""


class _Fired(NamedTuple):
    """A firing, planned.

    Attributes:
        name: The schedule's name.
        before: The record as it was read.
        after: The record after the firing.
        rows: The rows of its jobs, for a plain schedule.
    """

    name: str
    before: StoredSchedule
    after: StoredSchedule
    rows: tuple[Row, ...] = ()


class ScheduleFiring:
    """Fires the schedules of one queue.

    Args:
        home: The queue's home.
        on_put: Called with the first and the last due of the jobs put, epoch milliseconds.
        on_ask: Called with the name of a schedule before its trigger is asked, and with None
            afterwards.

    Attributes:
        was_slow: True if the last call took so long to plan that the records were outdated: it has
            fired nothing on Cassandra, and should be given fewer schedules.
    """

    def __init__(
        self,
        home: QueueHome,
        on_put: Callable[[int], object] | None = None,
        on_ask: Callable[[str | None], object] | None = None,
    ) -> None:
        self._home = home
        self._on_put = on_put
        self._on_ask = on_ask
        self._clock = home.clock
        self._register = home.register
        self._is_local = home.store.is_local
        self._stored = ScheduleTable(home.store, home.register)
        self._keyed = KeyedCommands(home)
        self._puts = KeyedPuts(home.store, home.clock, home.register, home.settler, home.stats)
        self._damaged: dict[str, str] = {}
        self.was_slow = False

    def fire(self, names: Sequence[str], *, ahead_ms: int = 0) -> dict[str, int | None]:
        """Fire those of these schedules whose next firing has begun.

        Args:
            names: The schedules.
            ahead_ms: Fire also those whose next firing begins within this time.

        Returns:
            Name -> when to look at it again, epoch milliseconds; None: never, as far as is known.

        Raises:
            StoreTimeout, StoreUnavailable: Some may have fired; repeating is safe.
        """
        read_us = self._clock.boot_us()
        damaged: dict[str, str] = {}
        found = self._stored.read(names, damaged)
        now_ms = self._clock.now_ms()
        self._warn_of(damaged)
        when: dict[str, int | None] = dict.fromkeys(names)
        when |= dict.fromkeys(damaged, now_ms + _AGAIN_MS)
        due: list[StoredSchedule] = []
        for name, record in found.items():
            when[name] = begin_ms = record.begin_ms(is_local=self._is_local)
            if begin_ms is not None and begin_ms <= now_ms + ahead_ms:
                when[name] = now_ms
                due.append(record)
        ready = self._ready(due, now_ms)
        planned = [self._guarded(one, self._plan, when) for one in ready if one.is_plain]
        self.was_slow = self._clock.boot_us() - read_us > _FRESH_US
        fired = [one for one in planned if one is not None]
        if self.was_slow and not self._is_local:
            # A single schedule cannot be planned any faster: it is written if it is as it was read.
            is_single = len(names) == 1
            fired = [one for one in fired if is_single and self._is_stored(one.name, one.before)]
        self._write(fired, when)
        for record in ready:
            if not record.is_plain:
                one = self._guarded(record, self._put_next, when)
                self._write([] if one is None else [one], when)
        return when

    def _ready(self, due: Sequence[StoredSchedule], now_ms: int) -> list[StoredSchedule]:
        """The schedules that can be fired as stored; the others' `aim` is written first."""
        lanes = self._register.settings.lanes_agreed
        begun = self._begun([one for one in due if one.lanes != lanes or one.is_missed(now_ms)])
        ready: list[StoredSchedule] = []
        writes: list[ScheduleWrite] = []
        for record in due:
            name, made = record.definition.name, record
            if name not in begun:
                made = record if record.lanes == lanes else record._replace(lanes=lanes)
                made = made.aimed_at(now_ms) if made.is_missed(now_ms) else made
            if made is record:
                ready.append(record)
            else:
                writes.append(ScheduleWrite(name, record, made))
        self._stored.write(writes)
        return ready

    def _begun(self, records: Sequence[StoredSchedule]) -> set[str]:
        """The names of schedules whose next firing already has a job: a member died during it."""
        if self._is_local:
            return set()
        begun = {one.definition.name for one in records if one.late_ms}
        names: dict[Position, str] = {}
        for record in records:
            if record.is_plain:
                with suppress(TriggerError):
                    for firing in self._fire(record)[0]:
                        job = record.job(firing, self._register.layout, "")
                        names[job.position] = record.definition.name
        there = self._home.settler.still_there(names) if names else ()
        return begun | {names[place] for place in there}

    def _guarded(
        self,
        record: StoredSchedule,
        work: Callable[[StoredSchedule], _Fired | None],
        when: dict[str, int | None],
    ) -> _Fired | None:
        """Do a step of a firing; None if it failed: the record keeps the error until a success."""
        name = record.definition.name
        try:
            return work(record)
        except (StoreTimeout, StoreUnavailable, UnknownQueue):
            raise
        except ShardqError as error:
            log.warning("schedule %s of queue %s: %s", name, self._register.name, error)
            when[name] = self._clock.now_ms() + _AGAIN_MS
            if record.error != str(error):
                failed = record._replace(error=str(error))
                self._stored.write([ScheduleWrite(name, record, failed)])
            return None

    def _fire(self, record: StoredSchedule) -> tuple[list[PlannedFiring], StoredSchedule]:
        """The next firing's jobs, and the record after it. A user's trigger may never return."""
        if self._on_ask is None:
            return record.fire()
        self._on_ask(record.definition.name)
        try:
            return record.fire()
        finally:
            self._on_ask(None)

    def _plan(self, record: StoredSchedule) -> _Fired:
        """Plan the firing of a plain schedule."""
        firings, after = self._fire(record)
        layout, now_ms = self._register.layout, self._clock.now_ms()
        if self._is_local:
            # No other member repeats a transaction, so the dues of late jobs may depend on the
            # present time.
            firings = [
                one._replace(at_ms=max(one.at_ms, now_ms + place))
                for place, one in enumerate(firings)
            ]
            if after.aim_ms is not None and firings:
                after = after._replace(aim_ms=max(after.aim_ms, firings[-1].at_ms + 1))
        rows = [record.job(one, layout, self._headers(record, one)) for one in firings]
        return _Fired(record.definition.name, record, after, tuple(rows))

    def _headers(self, record: StoredSchedule, firing: PlannedFiring) -> str:
        """The headers of a firing's job, the same in each repeat except for the trace."""
        headers, traces = headers_of(record, firing), self._home.traces
        if traces is not None:
            name = id_of(record.definition.name, firing.time_ms)
            headers = traces.created(self._register.name, name, headers)
        return write_headers(headers)

    def _write(self, fired: Sequence[_Fired], when: dict[str, int | None]) -> None:
        """Write jobs and records; notes when to look at each schedule again."""
        ledger, planned = self._home.settler.ledger, [row for one in fired for row in one.rows]
        sent_ms = self._clock.now_ms()
        if not self._is_local:
            self._home.store.insert(planned)
            ledger.enter(planned)
            self._point_to_late([row for row in planned if row.group is not None])
            fired = self._move_late(fired)
        refused = self._stored.write(
            [
                ScheduleWrite(
                    one.name, one.before, _kept(one.after), one.rows if self._is_local else ()
                )
                for one in fired
            ]
        )
        done = [one for one in fired if one.name not in refused]
        for one in done:
            when[one.name] = one.after.begin_ms(is_local=self._is_local)
        if rows := [row for one in done for row in one.rows]:
            if self._is_local:
                ledger.enter(rows)
            self._count(rows, sent_ms)
        if refused and not self._is_local:
            self._take_back([one for one in fired if one.name in refused])

    def _move_late(self, fired: Sequence[_Fired]) -> list[_Fired]:
        """Move jobs that were written too late for their readers; returns the firings to record.

        The record stores the time before the move, so all members write the same rows. If it is too
        late for readers of that minute as well, a member adds a later time, and jobs are moved
        there from all their earlier places. A firing whose move took so long is repeated instead of
        recorded.
        """
        layout, now_ms = self._register.layout, self._clock.now_ms()
        late: dict[str, list[Row]] = {}
        for one in fired:
            for row in one.rows:
                if row.group is None and layout.is_late(row.shard.minute, now_ms):
                    late.setdefault(one.name, []).append(row)
        if not late:
            return list(fired)
        self._stored.write(
            [
                ScheduleWrite(one.name, one.before, one.before.moved_to(now_ms))
                for one in fired
                if one.name in late and one.before.is_moved_late(layout, now_ms)
            ]
        )
        found = self._stored.read(list(late), {})
        made: dict[str, _Fired] = {}
        moves: list[list[RowMove]] = []
        for one in fired:
            now = found.get(one.name)
            # Otherwise other members have fired the schedule, or a command has changed or removed
            # it. Then the store refuses the record of this firing.
            if one.name in late and now is not None and now.fires_as(one.before):
                places = {row: _places(row, now, layout) for row in late[one.name]}
                rows = tuple(places.get(row, [row])[-1] for row in one.rows)
                made[one.name] = one._replace(before=now, rows=rows)
                moves += [
                    [RowMove(place.position, new) for place in earlier]
                    for *earlier, new in places.values()
                ]
        self._home.settler.carry_out_all(moves)
        now_ms = self._clock.now_ms()
        return [
            made.get(one.name, one)
            for one in fired
            if one.name not in made or not made[one.name].before.is_moved_late(layout, now_ms)
        ]

    def _take_back(self, refused: Sequence[_Fired]) -> None:
        """Cancel jobs of fire times that a command has changed since the record was read."""
        found = self._stored.read([one.name for one in refused], {})
        unwanted: list[Row] = []
        for one in refused:
            now, before = found.get(one.name), one.before
            if now is not None and now.generation != before.generation:
                # The changed schedule fires times from its next one on by itself, so these jobs are
                # unwanted.
                is_ahead = now.next_ms is not None and (before.next_ms or 0) >= now.next_ms
                unwanted += one.rows if is_ahead else ()
        if unwanted:
            self._home.settler.end(unwanted, End.CANCELLED)

    def _enter(self, rows: Sequence[Row]) -> None:
        """Record jobs just written, and let readers find those that were written late."""
        self._home.settler.ledger.enter(rows)
        self._home.settler.repair([row for row in rows if row.group is None])
        self._point_to_late([row for row in rows if row.group is not None])

    def _count(self, rows: Sequence[Row], sent_ms: int) -> None:
        """Count jobs, and let polls find those whose write began late."""
        self._home.stats.add(put=len(rows))
        self._to_now(rows, sent_ms)
        self._announce(rows)

    def _announce(self, rows: Sequence[Row]) -> None:
        """Let the consumers and waiting callers of this process look for jobs."""
        dues_ms = [row.due_ms for row in rows]
        for due_ms in {min(dues_ms), max(dues_ms)}:
            self._home.on_put(due_ms)
            if self._on_put is not None:
                self._on_put(due_ms)

    def _point_to_late(self, rows: Sequence[Row]) -> None:
        """Let the owners of group lanes look for rows that were written late, which are not moved.

        A later row of the group must not go before a row that a firing before this one wrote in
        time. The record is written after this, so a crash loses no note.
        """
        layout, now_ms = self._register.layout, self._clock.now_ms()
        self._home.settler.point_to(
            [
                row
                for row in rows
                if row.due_ms < now_ms - _SWEPT_MS or layout.is_late(row.shard.minute, now_ms)
            ]
        )

    def _to_now(self, rows: Sequence[Row], sent_ms: int) -> None:
        """Move rows whose write began late to now, without those of groups.

        If the write began in time and took long, consumers may have the row in memory.
        """
        settler = self._home.settler
        late = [row for row in rows if row.due_ms < sent_ms - _SWEPT_MS]
        share = settler.planner.share
        settler.carry_out(
            [share(row, row.shard.lane, after_ms=0) for row in late if row.group is None]
        )

    # Jobs with keys -------------------------------------------------------------------------------

    def _put_next(self, record: StoredSchedule) -> _Fired | None:
        """Put the next job unless an existing message forbids it; None: the record has changed.

        If the end of the last run matters, the decision to put the next job is first stored in the
        record, so that all members put it. A repeat meets its own message under its key, and
        changes nothing.
        """
        name = record.definition.name
        # Others were put meanwhile: a command may have changed this one, whose run must then stay.
        if not self._is_stored(name, record):
            return None
        firings, after = self._fire(record)
        if not firings:
            return _Fired(name, record, after)
        [firing] = firings
        key = id_of(name, firing.time_ms)
        if record.last_key in (None, key):
            decided = record
        elif self._is_in_the_way(record.definition.policies.overlap, str(record.last_key)):
            return _Fired(name, record, record.without(firing, after))
        else:
            decided = record._replace(last_key=key)
            self._stored.write([ScheduleWrite(name, record, decided)])
        # Reread the record: a command may have changed it meanwhile, or another member has decided.
        found = self._stored.read([name], {}).get(name)
        if found is None or found != decided._replace(stored=found.stored):
            return None
        self._put(found, firing, key)
        last_key = key if record.definition.job.key is None else None
        return _Fired(name, found, after._replace(last_key=last_key))

    def _is_stored(self, name: str, record: StoredSchedule) -> bool:
        """True if a schedule's stored record has not changed since it was read into `record`."""
        found = self._stored.read([name], {}).get(name)
        return found is not None and found.stored == record.stored

    def _is_in_the_way(self, overlap: str, last_key: str) -> bool:
        """True if the last run exists, so that the next is skipped; or cancels the last run."""
        last = self._keyed.get(last_key) if overlap in ("skip", "cancel") else None
        if last is None or last.state == "dead":
            return False
        if overlap == "cancel":
            self._keyed.cancel(last_key)
        return overlap == "skip"

    def _put(self, record: StoredSchedule, firing: PlannedFiring, name: str) -> None:
        """Put the job of a firing under a key.

        A repeat meets its own message, or the hold that the message has left. The key of a dead
        message is free, so the message is looked up first.
        """
        job = record.definition.job
        if job.key is None and self._keyed.get(name) is not None:
            return
        if self._is_local:
            firing = firing._replace(at_ms=max(firing.at_ms, self._clock.now_ms()))
        unique_for = _HELD if job.key is None else job.unique_for_ms and f"{job.unique_for_ms}ms"
        row = record.job(firing, self._register.layout, self._headers(record, firing))
        asked = Asked(
            row._replace(key=key_text(job.key or name, unique_for or None)),
            conflict_of(job.on_conflict, None, is_timed=True),
            is_fixed=True,
        )
        sent_ms = self._clock.now_ms()
        self._puts.put([asked])
        if asked.found is None:
            return
        if asked.is_new:
            self._enter([asked.found])
            self._count([asked.found], sent_ms)
        elif asked.has_replaced:
            self._home.stats.add(replaced=1)
            self._announce([asked.found])

    def _warn_of(self, damaged: Mapping[str, str]) -> None:
        """Log each damaged record once."""
        for name, text in damaged.items():
            if self._damaged.get(name) != text:
                log.warning("schedule %s of queue %s: %s", name, self._register.name, text)
        self._damaged |= damaged


def _kept(after: StoredSchedule) -> StoredSchedule | None:
    """The record to keep; None: it has ended, and no code has declared it."""
    return None if after.has_ended and not after.definition.revision else after


def _places(row: Row, record: StoredSchedule, layout: Layout) -> list[Row]:
    """A job's row, and the rows of the times to which it was moved: the same in each repeat."""
    name = f"{layout.queue}/{record.generation}/{row.name}"
    return [
        row,
        *(
            moved(
                row,
                layout.shard(late_ms, row.shard.lane),
                late_ms,
                ids.named(late_ms * 1_000, name),
                attempt=row.attempt,
                claim=None,
                since_ms=row.since_ms,
            )
            for late_ms in record.late_ms
        ),
    ]
