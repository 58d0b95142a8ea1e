"""Putting messages under keys: the name is taken first, then the row is written.

```
 put ──► name free? taken, row written, slow? confirmed ──► stored
          └─ no ──► what it stands for ─┬─ the message of this put ──► the same write again
                                        ├─ no message any more ──► taken over
                                        ├─ a row about to be written ──► watched, 2 write timeouts
                                        └─ a message ──► keep | reject | replace | debounce
                                                └─ it runs: a debounce follows it
```

A single put is carried out like many: each turn reads and writes the names of all puts that are
left. A repeat begins with a read of the name, and knows its message by the id of the row that it
tried to write. `Settler.place` writes names and rows.
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
from shardq.model import ids, names
from shardq.model.key import NEVER, MessageKey
from shardq.model.message import Message
from shardq.model.receipt import Signed
from shardq.model.times import ceil_ms, duration_ms, iso
from shardq.records.keyrow import first_of, own_key
from shardq.records.ledger import End
from shardq.records.standing import Is

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.clock import Clock
    from shardq.lifecycle.settle import Settler
    from shardq.model.message import Row
    from shardq.model.receipt import Signer
    from shardq.model.times import Duration
    from shardq.records.keychanges import Placing
    from shardq.records.keyrow import KeyRow
    from shardq.records.keys import MessageKeys
    from shardq.records.register import Register
    from shardq.records.standing import Standing
    from shardq.records.stats import StatsLog
    from shardq.stores.store import Store

OnConflict: TypeAlias = Literal["keep", "replace", "reject", "debounce"]
"""The choices of a put for the case that a message has its key already."""
CHOICES: tuple[OnConflict, ...] = ("keep", "replace", "reject", "debounce")
"""All choices, the default first."""
_OPTIONS = {"key": None, "on_conflict": "keep", "max_wait": None, "unique_for": None}
"""The options of a put that belong to a key, each with its default."""
_WITHIN_US = 100_000_000
"""How long a put waits for a row that is about to be written, while others keep changing its
key."""


class Conflict(NamedTuple):
    """The choice of a put for the case that a message has its key already.

    Attributes:
        choice: One of `OnConflict`.
        max_wait_ms: How long after its entry a debounced message is due at the latest.
    """

    choice: OnConflict = "keep"
    max_wait_ms: int | None = None


KEEP = Conflict()


class KeyedPut(Message):
    """A message whose put under a key failed. Put again, it settles a conflict as that put did."""

    __slots__ = ("_conflict",)

    def __init__(self, row: Row, signer: Signer | Signed, conflict: Conflict) -> None:
        super().__init__(row, 0, signer)
        self._conflict = conflict

    def __reduce__(self) -> tuple[object, ...]:
        signed = Signed(self.receipt, self._signer.layout)
        return KeyedPut, (self._row, signed, self._conflict)

    @property
    def conflict(self) -> Conflict:
        """The choice of the failed put for a conflict."""
        return self._conflict


@dataclass(slots=True)
class Asked:
    """A put under a key, and its result.

    Attributes:
        row: The row to put, which has the key.
        conflict: What to do if a message has the key.
        is_fixed: True if other processes put the very same row: it takes a free name unchanged.
        tried: The row of the last try, which may be written, and which a repeat finds by its id;
            None if surely no row is written.
        found: The row of the message that has the key after this put; None before the put is over.
        is_new: True if this put made that message.
        has_replaced: True if this put replaced another message.
        error: Why the put is refused; None if it is not.
    """

    row: Row
    conflict: Conflict
    is_fixed: bool = False
    tried: Row | None = None
    found: Row | None = None
    is_new: bool = False
    has_replaced: bool = False
    error: KeyTaken | None = None

    @property
    def carried(self) -> Row:
        """The row that an error carries, so that the caller can put it again."""
        return self.tried or self.row

    @property
    def is_over(self) -> bool:
        """True if the put was carried out or refused."""
        return self.found is not None or self.error is not None

    @property
    def name(self) -> str:
        """The key."""
        return own_key(self.row).name

    def end(self, row: Row) -> None:
        """Record that the put is carried out, by the row that it has written."""
        self.found = row
        self.is_new = own_key(row).generation == 1
        self.has_replaced = not self.is_new


class _Planned(NamedTuple):
    """The next write of a put.

    Attributes:
        asked: The put.
        placing: Writes the put's row.
        old: The row that the put replaces; None if it replaces no row.
    """

    asked: Asked
    placing: Placing
    old: Row | None = None


def conflict_of(choice: object, max_wait: Duration | None, *, is_timed: bool) -> Conflict:
    """The choice of a put for a conflict, from its options.

    Args:
        choice: One of `OnConflict`.
        max_wait: The longest wait of a debounced message.
        is_timed: True if a due or delay is given.

    Raises:
        UsageError: If the options do not go together.
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
        BadName: If the key is not 1 to 256 printable characters.
        BadTime: If `unique_for` cannot be read.
    """
    unique_ms = None if unique_for is None else duration_ms(unique_for, name="unique_for")
    return MessageKey(names.label(key, what="key"), 1, unique_ms or None).text()


def keyed_options(given: Mapping[str, Any]) -> list[str]:
    """The given options of a put that belong to a key, the key first."""
    if _OPTIONS.keys().isdisjoint(given):
        return []
    return [name for name, usual in _OPTIONS.items() if given.get(name) not in (None, usual)]


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
        self._keys: MessageKeys = settler.keys
        self._stats = stats

    def put(self, many: Iterable[Asked]) -> KeyTaken | None:
        """Carry out puts, and set each one's result. Puts of one key follow each other.

        Returns:
            The error of the first put that was refused, if any; the others are carried out.
        """
        self._register.use_keys()
        asked_all = list(many)
        of: dict[str, deque[Asked]] = {}
        for asked in asked_all:
            if not asked.is_over:
                of.setdefault(asked.name, deque()).append(asked)
        # Most names are free: take them without a look.
        firsts = [behind[0] for behind in of.values() if behind[0].tried is None]
        self._place([_Planned(asked, self._keys.placing(self._within(asked))) for asked in firsts])
        while of:
            self._carry_out([behind[0] for behind in of.values()])
            for name, behind in [*of.items()]:
                found = behind.popleft().found
                # The next puts with "keep" get the same message, until a put changes it.
                while found and behind and behind[0].conflict == KEEP and not behind[0].tried:
                    behind.popleft().found = found
                if not behind:
                    del of[name]
        return next((asked.error for asked in asked_all if asked.error is not None), None)

    def _carry_out(self, many: Sequence[Asked]) -> None:
        """Carry out puts under different keys: look, write, look again if others were faster."""
        left = [asked for asked in many if not asked.is_over]
        for _ in Pauses(self._clock) if left else ():
            self._register.refresh(force=True)  # Purged messages do not exist for a put.
            if self._register.settings.dropped:
                raise UnknownQueue(f"queue {self._register.name!r} has been dropped.")
            standings = self._keys.seek(asked.name for asked in left)
            for name, found in standings.items():
                if found.state is Is.PENDING:
                    awaited = self._keys.await_row(name, _WITHIN_US)
                    if awaited is None:
                        raise self._contended(name)
                    standings[name] = awaited
            plans = [self._plan(asked, standings[asked.name]) for asked in left]
            self._place([plan for plan in plans if plan is not None])
            left = [asked for asked in left if not asked.is_over]
            if not left:
                return
        if left:
            raise self._contended(left[0].name)

    def _plan(self, asked: Asked, found: Standing) -> _Planned | None:
        """The next write of a put, by what its key stands for; None if no write is needed."""
        if (tried := asked.tried) is not None:
            if _is_placed(tried, found.key):
                if again := self._keys.again(found, tried):
                    return _Planned(asked, again)
                if not found.key.is_of(tried):
                    # The message may have been cancelled before its row was written. A second
                    # record of its end changes nothing.
                    self._settler.end([tried._replace(key=None)], End.CANCELLED)
                asked.end(tried)
                if asked.has_replaced:
                    self._after_replacing([(asked, None)])
                if found.row is not None and found.state is not Is.DEAD:
                    asked.found = found.row
                return None
            if self._was_written(asked, tried, found):
                asked.end(tried)
                return None
        if (doomed := self._keys.doomed_row(found.key)) is not None:
            # End the cancelled message here: once it has lost its name, nobody would count its end.
            self._settler.end([doomed], End.CANCELLED)
            self._stats.add(cancelled=1)
            return self._put(asked)
        follows = found.state is Is.RUNNING and asked.conflict.choice == "debounce"
        if found.state.is_absent or follows:
            return self._put(asked, found)
        return self._settle(asked, found)

    def _settle(self, asked: Asked, found: Standing) -> _Planned | None:
        """Settle a put's conflict with a message that has the key, or with a key that is held."""
        row, choice = found.row, asked.conflict.choice
        if found.state is Is.HELD or row is None:
            asked.error = KeyTaken(self._held(found.key))
        elif choice == "keep":
            asked.found = row
        elif choice == "reject" or found.state is Is.RUNNING:
            message = Message(row, 0, self._register.signer)
            asked.error = KeyTaken(self._taken(found, row), message)
        else:
            command = self._keys.command(found.key, row, self._successor(asked, row), found.left)
            return _Planned(asked, command, row)
        return None

    def _put(self, asked: Asked, over: Standing | None = None) -> _Planned:
        """Put the message of a name that is free, or let it follow a message that runs."""
        if (row := asked.tried) is None:
            if not asked.is_fixed:
                self._renew(asked, asked.row)
            row = self._within(asked)
        return _Planned(asked, self._keys.placing(row, over))

    def _place(self, planned: Sequence[_Planned]) -> None:
        """Write rows and take their names, except names that another process has changed first."""
        before = [asked.tried for asked, _, _ in planned]
        for asked, placing, _ in planned:
            asked.tried = placing.row
        refused, displaced = self._settler.place([placing for _, placing, _ in planned])
        replaced = []
        lost = refused | displaced
        for (asked, placing, old), tried in zip(planned, before, strict=True):
            if not lost or placing.name not in lost:
                asked.end(placing.row)
                if asked.has_replaced:
                    replaced.append((asked, old))
            elif placing.name in refused:
                asked.tried = tried
        if replaced:
            self._after_replacing(replaced)
        if displaced:
            self._give_way([one for one in planned if one.placing.name in displaced])

    def _after_replacing(self, replaced: Sequence[tuple[Asked, Row | None]]) -> None:
        """Record and repair rows that replaced others; let readers of the others reread them."""
        rows = [asked.found for asked, _ in replaced if asked.found is not None]
        with begun("some of the messages are replaced"):
            self._settler.ledger.make_up(rows)
            repaired = self._settler.repair(rows)
        for (asked, _), row in zip(replaced, rows, strict=True):
            asked.found = repaired.get(row.id, row)
        for _, old in replaced:
            if old is not None:
                self._settler.tell([old])

    def _give_way(self, many: Sequence[_Planned]) -> None:
        """Take back the rows of puts that took so long that other messages have their keys.

        A new message is put anew under the same id, and may run twice if it has run meanwhile.

        Raises:
            StoreTimeout: A row is gone: its message has run, or was dropped.
        """
        keys = self._keys.look(asked.name for asked, _, _ in many)
        # If the key still names the same message, the command that displaced this put may use its
        # row.
        late = {
            row: old
            for asked, _, old in many
            if (row := asked.tried) and not keys[asked.name].is_of(row)
        }
        for asked, _, _ in many:
            # Renew before the rows are deleted, so that an error carries rows that can be stored.
            if asked.tried is not None and own_key(asked.tried).generation == 1:
                self._renew(asked, asked.tried, keeps_id=True)
        with begun("messages were written whose keys others have taken over"):
            # Repeat what fails, because the rows in an error are not these rows.
            settler = self._settler
            there = settler.repeated(lambda: settler.still_there(row.position for row in late))
            found = [row for row in late if row.position in there]
            over = [row for row in found if own_key(row).generation > 1]
            settler.repeated(settler.delete, [row.position for row in found if row not in over])
            self._end_nameless([*over, *(old for row in over if (old := late[row]))])
        for row in late:
            if row.position not in there:
                raise StoreTimeout(
                    f"key {own_key(row).name!r} of queue {self._register.name!r} was taken over "
                    f"while its put was slow; whether its message ran meanwhile is not known."
                )
        for asked, _, _ in many:
            asked.tried = None

    def _was_written(self, asked: Asked, tried: Row, found: Standing) -> bool:
        """True if an earlier try of a put was written, though its key does not show it.

        Its message has ended, or it runs and another message follows it. If the result is False,
        the caller makes the put again. Under a free name it can repeat the same row: if the row was
        deleted, it stays deleted.
        """
        ledger, generation = self._settler.ledger, own_key(tried).generation
        if found.key.behind is not None and _is_placed(tried, found.key.behind):
            # The message of this put runs, and another message follows it.
            return True
        if generation == 1:
            if ledger.covers(tried.shard.queue) and ledger.finished([tried]):
                return True
            # "keep" keeps whichever message has the name, whatever happened to the message of this
            # put.
            if found.state.is_absent or asked.conflict.choice == "keep":
                return False
        is_known = found.key.is_of(tried) and found.key.generation < generation
        if self._store.write_timeout_ms and not is_known:
            last = tried
            if generation != NEVER and not self._store.find([tried.position]):
                # If this fails, the next try deletes the row, and puts the message.
                last = tried._replace(key=own_key(tried)._replace(generation=NEVER).text())
                asked.tried = last
                if self._was_deleted(last):
                    return True
            if 1 < own_key(last).generation < NEVER and not found.key.is_of(last):
                # Its message has ended. A reader may have recorded that; if not, nobody else would.
                self._end_nameless([last])
            else:
                self._settler.delete([last.position])
        self._renew(asked, tried, keeps_id=generation == 1 or tried.first is None)
        return False

    def _was_deleted(self, trial: Row) -> bool:
        """True if a row was written and deleted before: then it cannot be written again.

        Writes the row, to see if it stays. By its generation it never begins, and readers leave it
        alone for two write timeouts. False if this takes longer than one: a reader may have deleted
        the row.
        """
        begun_us = self._clock.boot_us()
        left_until_ms = self._clock.now_ms() + self._keys.patience_ms
        self._store.insert([trial._replace(first=None, not_before_ms=left_until_ms)])
        is_there = bool(self._store.find([trial.position]))
        took_us = self._clock.boot_us() - begun_us
        return not is_there and took_us < self._store.write_timeout_ms * 1_000

    def _end_nameless(self, rows: Sequence[Row]) -> None:
        """End messages that have lost their names, by all their rows.

        Args:
            rows: The rows, which exist.
        """
        before_us = self._register.settings.purged_before_us
        bare = [row._replace(key=None) for row in rows]
        purged = [row for row in bare if row.entered_us < before_us]
        self._settler.end(purged, End.PURGED)
        self._settler.end([row for row in bare if row not in purged], End.CANCELLED)
        self._stats.add(purged=len({row.message_id for row in purged}))

    def _successor(self, asked: Asked, old: Row) -> Row:
        """The row that replaces a message: due as asked, with the message's id."""
        now_us = self._clock.now_us()
        due_ms = asked.row.due_ms
        if asked.conflict.max_wait_ms is not None:
            due_ms = min(due_ms, old.entered_us // 1_000 + asked.conflict.max_wait_ms)
        row_id = ids.after(old.id, now_us)
        return self._at(asked.row, max(due_ms, ceil_ms(now_us)))._replace(id=row_id, name=old.name)

    def _renew(self, asked: Asked, row: Row, *, keeps_id: bool = False) -> None:
        """Let a put that took a while put a row as of now, with the same given id, if any."""
        now_us = self._clock.now_us()
        key = own_key(row)._replace(generation=1)
        asked.tried = None
        asked.row = self._at(row, max(row.due_ms, ceil_ms(now_us)))._replace(
            id=ids.row_ids.next(max(now_us, self._register.settings.purged_before_us)),
            name=row.message_id if keeps_id or key.name == row.message_id else row.name,
            first=None,
            key=key.text(),
        )

    def _within(self, asked: Asked) -> Row:
        """The row of a first put; if debounced, due no later than `max_wait` after its entry."""
        row, max_wait_ms = asked.row, asked.conflict.max_wait_ms
        if max_wait_ms is None:
            return row
        return self._at(row, min(row.due_ms, ceil_ms(row.entered_us) + max_wait_ms))

    def _at(self, row: Row, due_ms: int) -> Row:
        """The same row, but due at another time."""
        shard = self._register.layout.shard(due_ms, row.shard.lane)
        return row._replace(shard=shard, due_ms=due_ms)

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

    def _held(self, key: KeyRow) -> str:
        until = iso(key.until_ms or 0)
        return (
            f"key {key.name!r} of queue {self._register.name!r} is held until {until}, by "
            f"unique_for of the message that had it; put it then, or take another key."
        )


def _is_placed(row: Row, key: KeyRow) -> bool:
    """True if a key shows that a row has been placed, by its put or by its command.

    For a command the place decides, because another command may have taken the same generation.
    """
    if own_key(row).generation == 1:
        return key.is_of(row) or key.ended == first_of(row)
    return key.is_of(row) and row.position in (key.place, key.before and key.before.place)
