"""Putting messages under keys: the name is taken first, then the row is written.

```
 put ──► name taken ──► row written ──► slow? still ours? ──► stored
          └─ refused: the name has ─┬─ no message any more ──► taken over
                                    ├─ a row about to be written ──► watched, 2 write timeouts
                                    └─ a message ──► keep | reject | replace | debounce
                                            └─ it runs: a debounce follows it
```

Names are taken in bulk, and conflicts with existing messages are settled in bulk. All other
refusals are resolved one by one. `records/keys.py` reads and changes names.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from shardq.errors import (
    KeyTaken,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
    begun,
    shown,
)
from shardq.lifecycle.pauses import Pauses
from shardq.lifecycle.taker import Taker
from shardq.model import ids, names
from shardq.model.key import NEVER, Key
from shardq.model.message import Message
from shardq.model.receipt import Signed
from shardq.model.times import ceil_ms, duration_ms, iso
from shardq.records.keychanges import Command
from shardq.records.keyrow import own_key
from shardq.records.ledger import End
from shardq.records.standing import Is

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.clock import Clock
    from shardq.lifecycle.settle import Settler
    from shardq.model.message import Row
    from shardq.model.receipt import Signer
    from shardq.model.times import Duration
    from shardq.records.keyrow import KeyRow
    from shardq.records.keys import Keys
    from shardq.records.register import Register
    from shardq.records.standing import Standing
    from shardq.records.stats import StatsLog
    from shardq.stores.store import Store

OnConflict: TypeAlias = Literal["keep", "replace", "reject", "debounce"]
"""What a put does if a message has its key already."""
CHOICES: tuple[OnConflict, ...] = ("keep", "replace", "reject", "debounce")
"""All choices, the default first."""
_TRIES = 40
_WITHIN_US = 100_000_000
"""A put waits this long for a row about to be written, while others keep changing its key."""


class Conflict(NamedTuple):
    """What a put does if a message has its key already.

    Attributes:
        choice: One of `OnConflict`.
        max_wait_ms: How long after its entry a debounced message is due at the latest.
    """

    choice: OnConflict = "keep"
    max_wait_ms: int | None = None


KEEP = Conflict()


class KeyedPut(Message):
    """A message whose put under a key failed. Put again, it settles a conflict in the same way."""

    __slots__ = ("_conflict",)

    def __init__(self, row: Row, signer: Signer | Signed, conflict: Conflict) -> None:
        super().__init__(row, 0, signer)
        self._conflict = conflict

    def __reduce__(self) -> tuple[object, ...]:
        signed = Signed(self.receipt, self._signer.layout)
        return KeyedPut, (self._row, signed, self._conflict)

    @property
    def conflict(self) -> Conflict:
        """What the put was to do in a conflict."""
        return self._conflict


@dataclass(slots=True)
class Asked:
    """A put under a key, and its result.

    Attributes:
        row: The row to put, with its key; once carried out, the row that was written.
        conflict: What to do if a message has the key.
        is_again: True if it was tried before, so that its row may exist.
        found: The row of the message that has the key after this put; None before.
        is_new: True if this put that message.
        has_replaced: True if this replaced another message.
        error: Why it is refused, set in a batch only; None if it is not.
    """

    row: Row
    conflict: Conflict
    is_again: bool = False
    found: Row | None = None
    is_new: bool = False
    has_replaced: bool = False
    error: KeyTaken | None = None

    @property
    def is_over(self) -> bool:
        """True if it was carried out or refused."""
        return self.found is not None or self.error is not None

    @property
    def name(self) -> str:
        """The key."""
        return own_key(self.row).name


class _Planned(NamedTuple):
    """A put that replaces another message.

    Attributes:
        asked: The put.
        before: The row that it was to put at first.
        old: The row to replace.
        command: Replaces the row.
    """

    asked: Asked
    before: Row
    old: Row
    command: Command


def conflict_of(choice: object, max_wait: Duration | None, *, is_timed: bool) -> Conflict:
    """What a put is to do if a message has its key.

    Args:
        choice: One of `OnConflict`.
        max_wait: The longest wait of a debounced message.
        is_timed: True if a due or delay is given.

    Raises:
        UsageError: If these do not go together.
    """
    if choice not in CHOICES:
        raise UsageError(
            f"on_conflict must be {', '.join(CHOICES[:-1])} or {CHOICES[-1]}, not {shown(choice)}."
        )
    if choice != "debounce":
        if max_wait is not None:
            raise UsageError(f"max_wait needs on_conflict='debounce', not {choice!r}.")
        return KEEP if choice == "keep" else Conflict(choice)
    if not is_timed:
        raise UsageError(
            "on_conflict='debounce' pushes the due out with each put; give a delay or due."
        )
    return Conflict(
        "debounce", None if max_wait is None else duration_ms(max_wait, name="max_wait")
    )


def key_text(key: object, unique_for: Duration | None) -> str:
    """The form of a key in a row.

    Raises:
        BadName: If it is not 1 to 256 printable characters.
        BadTime: If `unique_for` cannot be read.
    """
    unique_ms = None if unique_for is None else duration_ms(unique_for, name="unique_for")
    return Key(names.label(key, what="key"), 1, unique_ms or None).text()


def check_unkeyed(given: Mapping[str, Any]) -> None:
    """Refuse options of a put that need a key.

    Raises:
        UsageError: If one is given.
    """
    usual = {"on_conflict": "keep"}
    for option in ("on_conflict", "max_wait", "unique_for"):
        if given.get(option) not in (None, usual.get(option)):
            raise UsageError(
                f"{option}={shown(given[option])} needs a key: give one, or make the queue keyed."
            )


def _untimely(row: Row) -> str:
    """The row's key with a generation that never begins."""
    return own_key(row)._replace(generation=NEVER).text()


class KeyedPuts:
    """Puts messages under keys into one queue.

    Args:
        settler: The queue's settler.
        stats: Counts cancelled messages that a put has removed.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        settler: Settler,
        stats: StatsLog,
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._settler = settler
        self._keys: Keys = settler.keys
        self._taker = Taker(store, settler.keys)
        self._stats = stats

    def put(self, asked: Asked) -> None:
        """Carry out one put; `asked` has the result.

        Raises:
            KeyTaken: If another message has the key, and is not to be replaced, or runs.
        """
        self._register.use_keys()
        if asked.is_again and self._is_done(asked, self._keys.seek([asked.name])[asked.name]):
            return
        self._resolve(asked)

    def put_all(self, many: Iterable[Asked]) -> KeyTaken | None:
        """Carry out many puts; each has its result. Puts of one key follow each other.

        Returns:
            The error of the first that was refused; the others are put.
        """
        self._register.use_keys()
        asked_all = list(many)
        self._end_again([asked for asked in asked_all if asked.is_again and not asked.is_over])
        of: dict[str, deque[Asked]] = {}
        for asked in asked_all:
            if not asked.is_over:
                of.setdefault(asked.name, deque()).append(asked)
        self._take_all([self._within(asked[0]) for asked in of.values()])
        while of:
            turn = [asked.popleft() for asked in of.values()]
            self._settle_all([asked for asked in turn if not asked.is_over])
            for asked in turn:
                self._put_rest(asked)
                # The next puts that keep it get the same message, until a put changes it.
                behind = of[asked.name]
                while behind and behind[0].conflict == KEEP and not behind[0].is_again:
                    if asked.found is None:
                        break
                    behind.popleft().found = asked.found
                if not behind:
                    del of[asked.name]
        return next((asked.error for asked in asked_all if asked.error is not None), None)

    def _put_rest(self, asked: Asked) -> None:
        if not asked.is_over:
            try:
                self.put(asked)
            except KeyTaken as error:
                asked.error = error

    def _end_again(self, many: Sequence[Asked]) -> None:
        """Finish repeated puts that were begun before."""
        found = self._keys.seek(asked.name for asked in many)
        for asked in many:
            self._is_done(asked, found[asked.name])

    def _is_done(self, asked: Asked, found: Standing) -> bool:
        """Finish a repeated put whose first try had taken the key; True if it had.

        The put has the very row that the first try was to write. If nothing shows that the row was
        written, it is put as if for the first time, a replacing row with an id of its own.
        """
        row, generation = asked.row, own_key(asked.row).generation
        key = found.key
        if key.is_of(row) and generation == 1:
            return self._has_taken(asked, found)
        if generation == 1:
            if key.live is None and self._has_ended(row):
                # Taken again, its name would lead later puts to a message that readers drop.
                asked.found, asked.is_new = row, True
                return True
            if not self._may_have_ended(asked, key):
                return False
        elif generation != NEVER and key.is_of(row) and self._has_replaced(asked, found):
            return True
        is_known = key.is_of(row) and key.generation < generation
        if not is_known and self._was_written(asked, key):
            with begun("the message is stored"):
                repaired = self._settler.repair([row])
            asked.row, asked.found = row, repaired.get(row.id, row)
            asked.is_new, asked.has_replaced = generation == 1, generation != 1
            return True
        if not is_known and self._store.write_timeout_ms:
            # Deletes the row of the first try. If this fails, the next try deletes it.
            self._settler.delete([row.position])
        asked.is_again = False
        asked.row = row._replace(first=None, key=own_key(row)._replace(generation=1).text())
        self._renew(asked)
        return False

    def _has_taken(self, asked: Asked, found: Standing) -> bool:
        """True if a put still has the name that its first try took; writes its row if missing."""
        refused, displaced = self._taker.again(found, asked.row)
        if displaced:
            self._start_again([asked])
            return False
        if refused:
            # The message has gone on, or another has its name by now.
            return self._is_done(asked, self._keys.seek([asked.name])[asked.name])
        is_elsewhere = found.row is None or found.state is Is.DEAD
        asked.found, asked.is_new = asked.row if is_elsewhere else found.row, True
        return True

    def _has_replaced(self, asked: Asked, found: Standing) -> bool:
        """Finish a repeated put whose first try had replaced a message; True if it had.

        The place decides, because others may have taken the same generation.
        """
        row, key, before = asked.row, found.key, found.key.before
        if key.place == row.position:
            is_written = before is None or key.at is not None or not self._store.write_timeout_ms
            if not is_written and before is not None:
                change = self._keys.renew(key)._replace(insert=(row,))
                if any(self._settler.replace([Command(change, before.place, key)])):
                    return False
            self._after_commands([asked])
            if is_written and found.row is not None:
                asked.found = found.row
            return True
        if before is not None and before.place == row.position:
            asked.found, asked.has_replaced = found.row or row, True
            return True
        return False

    def _has_ended(self, row: Row) -> bool:
        """True if the queue's history has the end of a row's message."""
        ledger = self._settler.ledger
        return ledger.covers(row.shard.queue) and bool(ledger.finished([row]))

    def _may_have_ended(self, asked: Asked, key: KeyRow) -> bool:
        """True if an earlier try's message may have ended: its row is missing, its name taken.

        A free name is taken again for the same row: if that was deleted, it stays deleted. A taken
        name is left alone if the put is to keep it. If others took the name over and freed it
        again, the row may have been dropped, which looks the same as a row that has run.
        """
        is_taken = key.live is not None and asked.conflict.choice != "keep"
        is_unknown = is_taken and self._store.write_timeout_ms > 0
        return is_unknown and not self._store.find([asked.row.position])

    def _was_written(self, asked: Asked, key: KeyRow) -> bool:
        """True if a row that no key leads to existed before: then its message has ended.

        It tries to write the row, because a deleted row cannot be written again. On SQLite, where
        every outcome is known, the row did not exist.

        Args:
            asked: The put. If its row did not exist, it does now, and never begins.
            key: The key's row, as it was read.
        """
        if not self._store.write_timeout_ms:
            return False
        row = asked.row
        there = self._store.find([row.position])
        if not there:
            if own_key(row).generation == NEVER:
                # An earlier try has failed, and its row may have been dropped: put twice rather
                # than never.
                return False
            # Readers leave a row of a later generation alone. Set first: an error then carries it.
            asked.row = row._replace(key=_untimely(row))
            self._store.insert([asked.row._replace(first=key.first)])
            there = self._store.find([row.position])
        return not there or own_key(there[0]).generation != NEVER

    def _take_all(self, many: Sequence[Asked]) -> None:
        refused, displaced = self._taker.take([self._keys.put(asked.row) for asked in many])
        left = refused | displaced
        for asked in many:
            if not left or asked.name not in left:
                asked.found, asked.is_new = asked.row, True
        if displaced:
            self._start_again([asked for asked in many if asked.name in displaced])

    def _settle_all(self, many: Sequence[Asked]) -> None:
        """Settle conflicts with messages that have these keys, or with held keys.

        Puts in which another process was quicker are left for `put`.
        """
        new = [asked for asked in many if not asked.is_again]
        if not new:
            return
        self._reread()
        found = self._keys.seek(asked.name for asked in new)
        planned: list[_Planned] = []
        for asked in new:
            there = found[asked.name]
            try:
                if there.state is Is.HELD:
                    raise KeyTaken(self._held(asked.name, there.key))
                if there.row is not None and there.state in {Is.WAITING, Is.RUNNING}:
                    planned += self._plan(asked, there, there.row)
            except KeyTaken as error:
                asked.error = error
        self._replace(planned)

    def _resolve(self, asked: Asked) -> None:
        """Take a key, or settle the conflict with the message that has it."""
        name = asked.name
        over: Standing | None = None
        is_free = True
        pauses = Pauses(self._clock)
        for _ in range(_TRIES):
            if is_free:
                change = self._keys.put(self._within(asked).row, over)
                refused, displaced = self._taker.take([change])
                if displaced:
                    self._start_again([asked])
                    over = None
                    continue
                if not refused:
                    asked.found, asked.is_new = asked.row, True
                    if over is not None and over.state.is_absent:
                        self._keys.forget(over.key)
                    return
                if over is not None:
                    pauses.wait()
            self._reread()
            found = self._standing(name)
            if asked.is_again and self._is_done(asked, found):
                return
            # A debounce follows a running message.
            follows = found.state is Is.RUNNING and asked.conflict.choice == "debounce"
            is_free = found.state.is_absent or follows
            if (doomed := self._keys.doomed_row(found.key)) is not None:
                # Ended here: without its name nobody would count its end.
                self._settler.end([doomed], End.CANCELLED)
                self._stats.add(cancelled=1)
                is_free, over = True, None
            elif is_free:
                over = found
                self._renew(asked)
            elif found.state is Is.HELD or found.row is None:
                raise KeyTaken(self._held(name, found.key))
            elif self._settle(asked, found, found.row):
                return
            else:
                pauses.wait()
        raise self._contended(name)

    def _settle(self, asked: Asked, found: Standing, row: Row) -> bool:
        """Settle the conflict with a message that has the key; False if another was quicker."""
        self._replace(self._plan(asked, found, row))
        return asked.found is not None

    def _plan(self, asked: Asked, found: Standing, row: Row) -> list[_Planned]:
        """The replacement of a message that has the key; empty if the message is kept.

        Raises:
            KeyTaken: If the message is not to be replaced, or runs.
        """
        choice = asked.conflict.choice
        if choice == "keep":
            asked.found = row
            return []
        is_running = found.state is Is.RUNNING
        if is_running and choice == "debounce":
            # `put` lets it follow.
            return []
        if choice == "reject" or is_running:
            raise KeyTaken(self._taken(found, row), Message(row, 0, self._register.signer))
        command = self._keys.command(found.key, row, self._successor(asked, row))
        return [_Planned(asked, asked.row, row, command)]

    def _replace(self, planned: Sequence[_Planned]) -> None:
        """Carry out replacements, but for those in which another process was quicker."""
        for one in planned:
            # From here on an error carries this row.
            one.asked.row = one.command.change.insert[0]
        refused, displaced = self._settler.replace([one.command for one in planned])
        left = [one for one in planned if one.asked.name in refused | displaced]
        done = [one for one in planned if one.asked.name not in refused | displaced]
        self._after_commands([one.asked for one in done])
        for one in done:
            self._settler.tell([one.old])
        found = self._keys.look(displaced)
        # If the message is the same, the command that displaced this one may use its row.
        late = [
            one.asked.row
            for one in left
            if one.asked.name in displaced and not found[one.asked.name].is_of(one.asked.row)
        ]
        if late:
            self._take_back(late)
        for one in left:
            one.asked.row = one.before

    def _successor(self, asked: Asked, old: Row) -> Row:
        """The row that replaces a message: due as asked, with the message's id."""
        now_us = self._clock.now_us()
        due_ms = asked.row.due_ms
        if asked.conflict.max_wait_ms is not None:
            due_ms = min(due_ms, old.entered_us // 1_000 + asked.conflict.max_wait_ms)
        due_ms = max(due_ms, ceil_ms(now_us))
        return asked.row._replace(
            shard=self._register.layout.shard(due_ms, asked.row.shard.lane),
            due_ms=due_ms,
            id=ids.after(old.id, now_us),
            name=old.name,
        )

    def _after_commands(self, many: Sequence[Asked]) -> None:
        rows = [asked.row for asked in many]
        with begun("some of the messages are replaced"):
            self._settler.ledger.make_up(rows)
            repaired = self._settler.repair(rows)
        for asked in many:
            asked.found, asked.has_replaced = repaired.get(asked.row.id, asked.row), True

    def _standing(self, name: str) -> Standing:
        """What a name stands for, once it is not pending.

        Raises:
            StoreUnavailable: If others keep changing the key.
        """
        found = self._keys.await_row(name, _WITHIN_US)
        if found is None:
            raise self._contended(name)
        return found

    def _start_again(self, many: Sequence[Asked]) -> None:
        """Take back the rows of puts that took so long that others have their keys, and renew them.

        The puts are renewed first, so that an error carries rows that can be stored. A message that
        has run meanwhile may run twice, under the same id.

        Raises:
            StoreTimeout: If a row is gone: its message has run, or was dropped.
        """
        rows = [asked.row for asked in many]
        for asked in many:
            asked.is_again = False
            asked.row = asked.row._replace(name=asked.row.message_id)
            self._renew(asked)
        self._take_back(rows)

    def _take_back(self, rows: Sequence[Row]) -> None:
        """Delete the rows of puts whose keys other messages have.

        Raises:
            StoreTimeout: If a row is gone: its message has run, or was dropped.
        """
        with begun("messages were written whose keys others have taken over"):
            there = {row.position for row in self._store.find([row.position for row in rows])}
            self._settler.delete(there)
        for row in rows:
            if row.position not in there:
                raise StoreTimeout(
                    f"key {own_key(row).name!r} of queue {self._register.name!r} was taken over "
                    f"while its put was slow; whether its message ran meanwhile is not known."
                )

    def _renew(self, asked: Asked) -> None:
        """Give a put that took a while a row as of now, with the same given id, if any.

        A repeated put keeps its row, which may exist.
        """
        if asked.is_again:
            return
        row, key = asked.row, own_key(asked.row)
        now_us = self._clock.now_us()
        due_ms = max(row.due_ms, ceil_ms(now_us))
        asked.row = row._replace(
            shard=self._register.layout.shard(due_ms, row.shard.lane),
            due_ms=due_ms,
            id=ids.row_ids.next(max(now_us, self._register.settings.purged_before_us)),
            name=row.message_id if key.name == row.message_id else row.name,
        )

    def _within(self, asked: Asked) -> Asked:
        """Limit the due of a debounced put that is the first to `max_wait` after its entry."""
        row, max_wait_ms = asked.row, asked.conflict.max_wait_ms
        if max_wait_ms is not None and not asked.is_again:
            latest_ms = ceil_ms(row.entered_us) + max_wait_ms
            if row.due_ms > latest_ms:
                shard = self._register.layout.shard(latest_ms, row.shard.lane)
                asked.row = row._replace(shard=shard, due_ms=latest_ms)
        return asked

    def _reread(self) -> None:
        """Reread the settings, because purged messages do not exist for a put."""
        self._register.refresh(force=True)
        if self._register.settings.dropped:
            raise UnknownQueue(f"queue {self._register.name!r} has been dropped.")

    def _contended(self, name: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"key {name!r} of queue {self._register.name!r} could not be put: other processes kept "
            f"changing it; put it again."
        )

    def _taken(self, found: Standing, row: Row) -> str:
        is_running = found.state is Is.RUNNING
        state = "runs now" if is_running else f"is due {iso(row.wanted_ms)}"
        advice = "put it when that has ended" if is_running else "cancel that, or take another key"
        return (
            f"key {found.key.name!r} of queue {self._register.name!r} is taken by message "
            f"{row.message_id}, which {state}; {advice}."
        )

    def _held(self, name: str, key: KeyRow) -> str:
        until = iso(key.until_ms or 0)
        return (
            f"key {name!r} of queue {self._register.name!r} is held until {until}, by unique_for "
            f"of the message that had it; put it then, or take another key."
        )
