"""The records of one queue's schedules in the store.

```
 queue ─► 16 buckets ─► name ─► definition │ state │ next
      └─► `_NEWS`    ─► bucket ─► drawn anew before the bucket's schedules are changed by a command
```

A record is written by compare and set: its state, which changes with each write, must be as read.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import StoreCorrupt
from shardq.model.key import BUCKETS, bucket_of
from shardq.schedules.stored import StoredSchedule
from shardq.stores.tables import NEXTS, SCHEDULES, Change, ScheduleRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.records.register import Register
    from shardq.stores.store import Store

_NEWS = BUCKETS
"""The partition after those of the buckets. It holds a number for each bucket, drawn anew before
each command."""
_NUMBER_BITS = 62
_ENDED = -1
"""The stored next fire time of a schedule that never fires again."""


class ScheduleWrite(NamedTuple):
    """A write of a schedule's record.

    Attributes:
        name: The schedule's name.
        before: The record as it was read; None: there was none.
        after: The record as it is to be; None: it is removed.
        jobs: Rows that are written in the same transaction, on SQLite alone.
    """

    name: str
    before: StoredSchedule | None
    after: StoredSchedule | None
    jobs: tuple[Row, ...] = ()


class ScheduleTable:
    """The records of one queue's schedules; a later queue of the same name has others.

    Args:
        register: The queue's record.
    """

    def __init__(self, store: Store, register: Register) -> None:
        self._store = store
        self._register = register

    @property
    def _queue(self) -> str:
        return self._register.totals_key

    def read(
        self, asked: Iterable[str], damaged: dict[str, str] | None = None
    ) -> dict[str, StoredSchedule]:
        """The newest records of these names: a read for each bucket.

        Args:
            asked: The names.
            damaged: Receives a sentence for each damaged record; None: the first damaged record
                raises.

        Raises:
            StoreCorrupt: If one is damaged.
        """
        found: dict[str, ScheduleRecord] = {}
        for bucket, names in _by_bucket(asked).items():
            found |= self._store.records(SCHEDULES, (self._queue, bucket), names)
        return self._read(found, damaged)

    def all(self, damaged: dict[str, str] | None = None) -> dict[str, StoredSchedule]:
        """All records, by name; for the arguments see `read`."""
        found: dict[str, ScheduleRecord] = {}
        for some in self._store.notes_of(SCHEDULES, self._buckets).values():
            found |= some
        return self._read(dict(sorted(found.items())), damaged)

    def names(self, *, ended: bool = False) -> list[str]:
        """The names of all schedules, even damaged ones; with `ended` also of ended schedules.

        A schedule that has ended keeps its record if code has declared it.
        """
        return sorted(self.times(ended=ended))

    def times(self, *, ended: bool = False) -> dict[str, int | None]:
        """The name of each schedule, even if damaged -> its next fire time, epoch milliseconds.

        With `ended` also for ended schedules, whose time means nothing.
        """
        return {
            name: next_ms
            for some in self._store.notes_of(NEXTS, self._buckets).values()
            for name, next_ms in some.items()
            if ended or next_ms != _ENDED
        }

    def nexts(self, bucket: int) -> dict[str, int | None]:
        """The name of each schedule of a bucket -> its next fire time, epoch milliseconds."""
        nexts = self._store.notes(NEXTS, (self._queue, bucket))
        return {name: None if next_ms == _ENDED else next_ms for name, next_ms in nexts.items()}

    def write(self, writes: Sequence[ScheduleWrite]) -> set[str]:
        """Write each record that has not changed since it was read; returns the other names.

        Raises:
            StoreTimeout: Some may be written; reread them.
            StoreUnavailable: None is written.
        """
        changes = [self._change(one) for one in writes]
        refused = self._store.write_records(SCHEDULES, changes) if changes else {}
        return {str(key[0]) for _, key in refused}

    def remove(self, name: str) -> bool:
        """Remove a record, even a damaged one; False if there was none, or it had ended.

        Raises:
            StoreTimeout: The schedule may be removed, and another process may have made one of the
                same name since.
        """
        partition = self._queue, bucket_of(name)
        while (there := self._store.records(SCHEDULES, partition, [name]).get(name)) is not None:
            change = Change(partition, (name,), {"state": there.state}, None, is_decisive=True)
            if not self._store.write_records(SCHEDULES, [change]):
                return there.next != _ENDED
        return False

    def announce(self, name: str) -> None:
        """Let all members reread a schedule's bucket: call this before a command writes it.

        If a process dies between the announcement and the write, each member rereads for nothing.
        """
        number = secrets.randbits(_NUMBER_BITS)
        note = {str(bucket_of(name)): ScheduleRecord("", "", number)}
        self._store.note(SCHEDULES, (self._queue, _NEWS), note)

    def announced(self) -> Mapping[str, int | None]:
        """Bucket -> the number of its last announcement: one read."""
        return self._store.notes(NEXTS, (self._queue, _NEWS))

    @property
    def _buckets(self) -> list[tuple[str, int]]:
        return [(self._queue, bucket) for bucket in range(BUCKETS)]

    def _read(
        self, found: Mapping[str, ScheduleRecord], damaged: dict[str, str] | None
    ) -> dict[str, StoredSchedule]:
        made: dict[str, StoredSchedule] = {}
        for name, one in found.items():
            whose = f"schedule {name!r} of queue {self._register.name!r}"
            next_ms = None if one.next == _ENDED else one.next
            columns = one.definition or "", one.state or "", next_ms
            try:
                made[name] = StoredSchedule.read(*columns, whose)
            except StoreCorrupt as error:
                if damaged is None:
                    raise
                damaged[name] = str(error)
        return made

    def _change(self, one: ScheduleWrite) -> Change:
        seen = {"state": None if one.before is None else one.before.stored}
        new = None
        if one.after is not None:
            next_ms = _ENDED if one.after.has_ended else one.after.next_ms
            new = {"state": one.after.state(), "next": next_ms}
            if one.before is None or one.before.definition is not one.after.definition:
                new["definition"] = one.after.definition.text()
        partition = self._queue, bucket_of(one.name)
        return Change(partition, (one.name,), seen, new, insert=one.jobs)


def _by_bucket(names: Iterable[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in names:
        found.setdefault(bucket_of(name), []).append(name)
    return found
