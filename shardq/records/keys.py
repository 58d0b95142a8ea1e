"""Keys: reads and writes the names of a queue's messages.

`standing.py` judges the rows read, and `keychanges.py` builds the changes to write. Callers that
put, hand out and settle decide when to do which.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardq.errors import StoreUnavailable, begun
from shardq.model import ids, names
from shardq.model.key import bucket_of
from shardq.records import keyrow
from shardq.records.keychanges import KeyChanges
from shardq.records.keyrow import KeyRow, KeyState, own_key
from shardq.records.standing import Is, Standing, StartRefusal, View, judge, refusal_of
from shardq.stores.tables import KEYS, PLACES, Change, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.model.message import Row
    from shardq.model.receipt import Receipt
    from shardq.model.shard import Position

K = TypeVar("K")
_LOOKS_MAX = 10
"""How often a name and its message's row are read. A message that moved between every two reads
counts as pending."""
_POLL_S = 0.02
"""Pause between two reads of a row that is about to be written."""


class RefusedStart(NamedTuple):
    """Why a row may not begin.

    Attributes:
        why: The reason.
        key: The key's row, as it was read.
        superseded: For a row that may begin now: the row of the message that it follows, if that
            message still waits for another delivery, which it never gets.
    """

    why: StartRefusal
    key: KeyRow
    superseded: Row | None = None


class MessageKeys(KeyChanges):
    """The names of one queue's messages: looks up, takes, moves and frees keys.

    Args:
        register: The queue's record. Names of a dead-letter queue can only be ended and noted.
    """

    @property
    def patience_ms(self) -> int:
        """A row still missing this long after its name was taken is never written; 0 on SQLite.

        It is two write timeouts. A put that took longer than one confirms its name (`displaced`);
        the second one allows for clocks that differ.
        """
        return 2 * self._store.write_timeout_ms

    # Reading --------------------------------------------------------------------------------------

    def look(self, asked: Iterable[str]) -> dict[str, KeyRow]:
        """The rows of names, by SERIAL reads, with the notes of their messages.

        Costs up to three reads of each bucket, of which the first is SERIAL.

        Returns:
            Name -> its key row, for each name asked for.

        Raises:
            StoreCorrupt: If a row is damaged.
        """
        rows: dict[str, KeyRow] = {}
        for bucket, of_bucket in _by_bucket(asked, bucket_of).items():
            stored = self._store.records(KEYS, (self._queue, bucket), of_bucket)
            for name in of_bucket:
                rows[name] = KeyRow.read(self._queue, name, *stored.get(name, (None, None)))
        places = self._places((name, one) for name, key in rows.items() for one in key.messages)
        rows = {name: key.noted(places) for name, key in rows.items()}
        # A dead message may have moved since it died.
        buried = self._places((name, key.buried) for name, key in rows.items() if key.buried)
        dead_at = {name: place for (name, _), place in buried.items()}
        return rows | {name: replace(rows[name], dead_at=at) for name, at in dead_at.items()}

    def _places(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Position]:
        """(name, message) -> the place in its note, for messages that have a note."""
        found: dict[tuple[str, str], Position] = {}
        for bucket, keys in _by_bucket(wanted, _place_bucket).items():
            for key, (text, _) in self._store.notes(PLACES, (self._queue, bucket), keys).items():
                found[key] = keyrow.noted_place(text, self._queue, key)
        return found

    def followed(self, receipts: Iterable[Receipt]) -> dict[Position, Row]:
        """The rows of messages that have moved since their lasting receipts were given.

        Costs a read of notes and a read of rows, and both again while the messages move. Notes
        without rows are erased. A message that is dead, or in another queue, counts as ended.

        Args:
            receipts: Receipts at whose positions no row was found; a receipt that does not last is
                passed over.

        Returns:
            Position of a receipt -> the message's present row, for each message that has not ended.

        Raises:
            StoreUnavailable: If a message moves faster than it is read.
        """
        left = {
            one.position: keyrow.place_key(one.key or None, one.first)
            for one in receipts
            if one.first is not None
        }
        found: dict[Position, Row] = {}
        seen: dict[tuple[str, str], Position] = {}
        for _ in range(_LOOKS_MAX):
            noted = self._places(left.values()) if left else {}
            # A message has ended if its row is gone and its note is unchanged.
            self._erase(
                [key for key, place in noted.items() if not key[0] and seen.get(key) == place]
            )
            left = {
                at: key
                for at, key in left.items()
                if key in noted
                and noted[key] != seen.get(key)
                and noted[key].shard.queue == self._register.name
            }
            if not left:
                return found
            rows = {
                row.position: row for row in self._store.find({noted[key] for key in left.values()})
            }
            found |= {at: rows[noted[key]] for at, key in left.items() if noted[key] in rows}
            left = {at: key for at, key in left.items() if at not in found}
            seen = noted
        raise StoreUnavailable(
            f"a message of queue {self._queue!r} moved each time it was looked for; try again."
        )

    def erase_ended(self, keys: Iterable[tuple[str, str]]) -> None:
        """Erase notes without a name whose rows are gone.

        Args:
            keys: The keys of such notes.
        """
        noted = self._places(keys)
        there = {row.position for row in self._store.find(noted.values())}
        missed = [key for key, place in noted.items() if place not in there]
        # A row that was moved meanwhile has another note by now.
        again = self._places(missed)
        self._erase([key for key in missed if again.get(key) == noted[key]])

    def forget_places(self, rows: Iterable[Row]) -> None:
        """Erase the notes of rows without a key that have lasting receipts. Idempotent."""
        self._erase(
            [
                keyrow.place_key(None, keyrow.first_of(row))
                for row in rows
                if row.key is None and row.has_place
            ]
        )

    def seek(self, asked: Iterable[str], *, watched_ms: int = 0) -> dict[str, Standing]:
        """The standings of names, with their messages' rows. A `look`, and a read of each shard.

        A row that is not found may have moved between the two reads: both are repeated until the
        key's row is unchanged.

        Args:
            asked: The names.
            watched_ms: For how long the caller has seen these names pending.

        Returns:
            Name -> its standing, for each name asked for.
        """
        standings: dict[str, Standing] = {}
        left = self.look(asked)
        for _ in range(_LOOKS_MAX):
            found = self._found(left.values(), before=True)
            view = self._view(left.values(), watched_ms)
            judged = {name: judge(key, found, view) for name, key in left.items()}
            unsure = [
                name
                for name, one in judged.items()
                # Or the row of a message that is to follow another was not found, and the standing
                # is that of the other message.
                if key_misses_row(one) or one.key is not left[name]
            ]
            again = self.look(unsure)
            left = {name: key for name, key in again.items() if key != left[name]}
            standings |= {name: one for name, one in judged.items() if name not in left}
            if not left:
                return standings
        return standings | {name: Standing(key, None, Is.PENDING) for name, key in left.items()}

    def await_row(self, name: str, within_us: int) -> Standing | None:
        """The standing of a name, once it is not pending.

        Args:
            name: The name.
            within_us: How long to wait.

        Returns:
            The standing; None if other processes have kept changing the key for that long.
        """
        since_us = begun_us = self._clock.boot_us()
        state: str | None = None
        while True:
            watched_ms = (self._clock.boot_us() - since_us) // 1_000
            found = self.seek([name], watched_ms=watched_ms)[name]
            if found.state is not Is.PENDING:
                return found
            now_us = self._clock.boot_us()
            if found.key.state != state:
                # Another put or command has changed the key: the time to watch it begins now.
                state, since_us = found.key.state, now_us
            if now_us - begun_us > within_us:
                return None
            self._clock.sleep(_POLL_S)

    def doomed_row(self, key: KeyRow) -> Row | None:
        """The row of a message that was cancelled while it ran, if it waits to be dropped.

        Args:
            key: The key's row.
        """
        if not key.is_doomed:
            return None
        kept = replace(key, is_doomed=False)
        found = judge(kept, self._found([key], before=False), self._view([key]))
        return found.row if found.state is Is.WAITING else None

    def _found(self, keys: Iterable[KeyRow], *, before: bool) -> dict[Position, Row]:
        places = {
            place
            for key in keys
            for place in (
                *key.places,
                *(key.places_before if before else ()),
                *(key.behind.places if key.behind and before else ()),
            )
        }
        return {row.position: row for row in self._store.find(places)} if places else {}

    def _view(self, keys: Iterable[KeyRow], watched_ms: int = 0) -> View:
        settings = self._register.settings
        dead_purged_before_us = 0
        if any(key.at is not None and keyrow.is_dead(key.at) for key in keys):
            dead = self._register.dead_if_made()
            dead_purged_before_us = dead.settings.purged_before_us if dead else 0
        return View(
            self._clock.now_us(),
            settings.purged_before_us,
            settings.former_until_us,
            dead_purged_before_us,
            self.patience_ms,
            watched_ms,
        )

    def is_cancelled(self, row: Row) -> bool:
        """True if a running message must stop, because it has lost its name.

        A message that another message follows runs on.
        """
        name = own_key(row).name
        stored = self._store.records(KEYS, self._partition(name), [name])
        key = KeyRow.read(self._queue, name, *stored.get(name, (None, None)))
        return not keyrow.may_run_on(row, key)

    # Doing ----------------------------------------------------------------------------------------

    def write(self, changes: Sequence[Change]) -> dict[str, str | None]:
        """Apply each change whose name is as it was seen.

        Returns:
            Each refused name -> its present `live`.

        Raises:
            StoreTimeout: Some changes may be applied.
        """
        refused = self._store.write_records(KEYS, changes) if changes else {}
        return {key[0]: present["live"] for (_, key), present in refused.items()}

    def displaced(self, changes: Sequence[Change]) -> dict[str, KeyRow]:
        """The names that puts and commands have lost again, though their rows are written.

        Call this before you report success. Nothing is read or written if no change took long.

        Returns:
            Name -> its present key row.
        """
        timeout_us = self._store.write_timeout_ms * 1_000
        if not timeout_us:
            return {}
        # Count from the birth of the row id, as callers do that wait for the row.
        oldest_us = self._clock.now_us() - timeout_us
        slow = {
            str(change.key[0]): change
            for change in changes
            if ids.birth_us(change.insert[0].id) < oldest_us
        }
        refused = self.write([self.confirm(change) for change in slow.values()])
        found = self.look(refused)
        return {name: key for name, key in found.items() if not _is_own(slow[name], key)}

    def refusals(self, rows: Sequence[Row]) -> dict[Position, RefusedStart]:
        """The place of each row -> why the row may not begin."""
        standings = self.seek({own_key(row).name for row in rows})
        view = self._view(())
        refusals: dict[Position, RefusedStart] = {}
        replaced: dict[str, Change] = {}
        for row in rows:
            standing = standings[own_key(row).name]
            key, behind, superseded = standing.key, standing.behind, None
            why = refusal_of(row, standing, view)
            if why is StartRefusal.AGAIN and behind is not None:
                waits = behind.state is Is.WAITING
                superseded = behind.row if waits else self.doomed_row(behind.key)
            if why is StartRefusal.REPLACED:
                replaced[key.name] = self.renew(key)
                why = StartRefusal.COPY if key.is_of(row) else StartRefusal.CANCELLED
            refusals[row.position] = RefusedStart(why, key, superseded)
        if replaced:
            changed = self.write([*replaced.values()])
            for row in rows:
                if own_key(row).name in changed:
                    refusals[row.position] = RefusedStart(
                        StartRefusal.LATER, refusals[row.position].key
                    )
        return refusals

    def end(self, rows: Iterable[Row]) -> None:
        """Free the names of messages that have ended, doomed ones too, and erase their notes.

        The name of a dead message is freed if it still leads to that message. Rows without a key
        are skipped. Idempotent.

        Args:
            rows: Rows of one queue.
        """
        keyed = [row for row in rows if row.key is not None]
        if not keyed:
            return
        is_dead = names.is_dead_queue(keyed[0].shard.queue)
        refused = {} if is_dead else self.write([self.free(row) for row in keyed])
        with begun("the names are free"):
            if refused:
                doomed = [
                    row
                    for row in keyed
                    if refused.get(own_key(row).name) == keyrow.doomed(keyrow.live_of(row))
                ]
                self.write([self.free(row, is_doomed=True) for row in doomed])
            # A message that never moved has no note.
            notes = [(own_key(row).name, keyrow.live_of(row)) for row in keyed if row.first]
            if is_dead:
                notes += self._end_dead(keyed)
            self._erase(notes)

    def _end_dead(self, rows: Sequence[Row]) -> list[tuple[str, str]]:
        keys = self.look({own_key(row).name for row in rows})
        changes, notes = [], []
        for row in rows:
            key = keys[own_key(row).name]
            if key.leads_to(row) and key.message is not None:
                new, ttl_ms = self._freed(own_key(row).unique_ms, key.first)
                seen = {"live": key.live, "state": key.state}
                changes.append(self._change(key.name, seen, new, ttl_ms))
                notes.append((key.name, key.message))
        self.write(changes)
        return notes

    def forget(self, key: KeyRow) -> None:
        """Erase the notes of replaced generations, once the replacing row is written."""
        noted = ((key.message, key.at), (key.message_before, key.before_at))
        self._erase([(key.name, message) for message, place in noted if message and place])

    def _erase(self, notes: Sequence[tuple[str, str]]) -> None:
        for bucket, keys in _by_bucket(notes, _place_bucket).items():
            self._store.erase(PLACES, (self._queue, bucket), keys)


def note_of(new: Row, first: bytes | None = None) -> Note | None:
    """The note of a move, to be written after the new row and before the old one is deleted.

    Args:
        new: The row after the move.
        first: For a burial, the row id of the message's first placement in the queue that it
            leaves; None for a move within a queue.

    Returns:
        The note; None for a row that has neither a key nor a lasting receipt.
    """
    if new.key is None and not new.has_place:
        return None
    key = keyrow.place_key(new.key, first or keyrow.first_of(new))
    return Note(
        PLACES,
        (names.served_queue(new.shard.queue), _place_bucket(key)),
        key,
        (keyrow.place_text(new.position), ids.birth_us(new.id)),
    )


def key_misses_row(standing: Standing) -> bool:
    """True if a name has a message, and its row, or that of a message it follows, is missing."""
    is_missed = standing.row is None or standing.state is Is.PENDING
    behind = standing.behind
    return standing.key.first is not None and (
        is_missed or (behind is not None and key_misses_row(behind))
    )


def _is_own(change: Change, key: KeyRow) -> bool:
    """True if a name is as a change has made it, or as the change's message has left it.

    That message may run by now, and another message may follow it.
    """
    row = change.insert[0]
    if not key.is_of(row):
        is_followed = key.behind is not None and _is_own(change, key.behind)
        return is_followed or key.ended == keyrow.first_of(row)
    new = dict(change.new or {})
    # Another generation shows that a later command has replaced the row. A put is in force all the
    # same, as the name is still its message's. A command may be undone, by `re_place` for example,
    # which replaces the row before it.
    is_command = KeyState.read(new["state"]).before is not None
    is_replaced = key.before is not None and key.before.place == row.position
    return not is_command or is_replaced or key.generation == own_key(row).generation


def _place_bucket(key: tuple[str, str]) -> int:
    """The bucket of a note: by its name or, without a name, by its message."""
    name, message = key
    return bucket_of(name or message)


def _by_bucket(keys: Iterable[K], of: Callable[[K], int]) -> dict[int, list[K]]:
    found: dict[int, list[K]] = {}
    for key in dict.fromkeys(keys):
        found.setdefault(of(key), []).append(key)
    return found
