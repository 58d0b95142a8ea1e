"""Builds the changes of key rows by which names are taken, moved and freed. Writes nothing.

```
 put ────────► nobody's      ─► (F, 1) waiting at P    then the row at P is written
 begin ──────► (F, n)        ─► begun at its place     give back: waiting again
 command ────► (F, n) waiting ─► (F, n + 1) waiting at Q    then the row at Q, the old one deleted
 cancel ─────► (F, n) waiting ─► nobody's              then the row is deleted
 doom ───────► (F, n) begun  ─► (F, n)!                it never begins again
 end ────────► (F, n), (F, n)! ─► nobody's, or held
 follow ─────► (F, n) begun  ─► (G, 1)+ waiting at Q   then the row at Q; (F, n) never begins again
 unfollow ───► (G, n)+       ─► (F, n) begun           then the row of (G, n) is deleted
 begin ──────► (G, n)+       ─► (G, n) begun           once the run of (F, n) has ended
```

Each change is one conditional write of one row; a caller whose change is refused rereads the row.
The name is written first, then the message's row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from shardq.model import ids, names
from shardq.model.key import BUCKETS, bucket_of
from shardq.model.message import moved
from shardq.model.times import ceil_ms
from shardq.records import keyrow
from shardq.records.keyrow import Before, Does, KeyRow, KeyState, first_of, own_key
from shardq.stores.tables import Change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.records.register import Register
    from shardq.records.standing import Standing
    from shardq.stores.store import Store

Seen: TypeAlias = "Mapping[str, str | None]"
"""Values of the columns of a key's row."""
_PROOF_MS = 600_000
"""How long the state that a cancel leaves stays: longer than the cancel takes to learn that it was
applied."""
_SLACK_MS = 60_000
"""How much longer the row of a held name stays in the store: its state has the end of the hold, by
our clock."""


class Placing(NamedTuple):
    """The placement of a message's row under its name, by a put, a command or a redrive.

    Attributes:
        change: Takes the name, and writes the row.
        old: The place of the row that is replaced, which is deleted once the new row is certain to
            stay; None if no row is replaced.
        left: The place of a row that an earlier command has replaced and left, which is deleted
            too; None if there is none.
        over: The key's row as it was read, of the message or generation that the placement ends;
            None if there is none.
    """

    change: Change
    old: Position | None = None
    over: KeyRow | None = None
    left: Position | None = None

    @property
    def name(self) -> str:
        """The key."""
        return str(self.change.key[0])

    @property
    def row(self) -> Row:
        """The row to write."""
        return self.change.insert[0]


class KeyChanges:
    """The changes of the names of one queue's messages.

    Args:
        register: The queue's record.
    """

    def __init__(self, store: Store, clock: Clock, register: Register) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._queue = names.served_queue(register.name)
        self._partitions = [(self._queue, bucket) for bucket in range(BUCKETS)]

    def put(self, row: Row, over: Standing | None = None) -> Change:
        """Take a name, and write its message's row, for a put or a redrive.

        Args:
            row: The row, with its key.
            over: A standing that `is_absent`; or whose message runs, so that the row follows that
                message. If None, assume that no message has the name.
        """
        seen: Seen = {"live": None}
        if over is not None and over.key.live is not None:
            seen = over.key.stored
        return self._placed(row, seen, before=None, behind=over.running if over else None)

    def placing(self, row: Row, over: Standing | None = None) -> Placing:
        """Take a name as `put` does; the notes of a message that had it before are erased."""
        is_over = over is not None and over.state.is_absent
        return Placing(self.put(row, over), None, over.key if is_over and over else None)

    def again(self, found: Standing, row: Row) -> Placing | None:
        """Repeat the placement of a row whose name is taken; None if the row was surely written.

        Args:
            found: The standing of the name, which has the row's message.
            row: The same row that the placement was to write.
        """
        key, before = found.key, found.key.before
        # On a store whose outcomes are known, a row is written together with its name.
        is_placed = key.place == row.position and key.does is Does.WAITING and key.at is None
        if not (is_placed and self._store.write_timeout_ms):
            return None
        if before is None and found.row is not None:
            return None
        change = self.renew(key)._replace(insert=(row,))
        return Placing(change, None if before is None else before.place, key)

    def command(self, key: KeyRow, old: Row, new: Row, left: Row | None = None) -> Placing:
        """Replace the row of a waiting message, for a move, an edit, a replace or a debounce.

        Args:
            key: The key's row, as it was read.
            old: The message's row.
            new: The row that replaces it, with a fresh id; this method sets its message and
                generation.
            left: The row that an earlier command has replaced and left.
        """
        named = own_key(new)._replace(name=key.name, generation=key.generation + 1)
        before = Before(own_key(old).generation, old.position)
        change = self._placed(
            new._replace(first=key.first, key=named.text()),
            key.stored,
            before=before,
            behind=key.behind,
        )
        if not self._store.write_timeout_ms:
            change = change._replace(delete=(old.position,))
        return Placing(change, old.position, key, None if left is None else left.position)

    def re_place(self, key: KeyRow, row: Row) -> Placing:
        """Place a `STRANDED` row anew, which a command by key was to replace and did not.

        The new row has the next generation, and is due when the old one is, or now. If the command
        is still under way, it is refused when it confirms its name, and the row that it wrote never
        runs.

        Args:
            key: The key's row, as it was read.
            row: The stranded row.
        """
        now_us = self._clock.now_us()
        layout = self._register.layout
        due_ms = max(row.due_ms, ceil_ms(now_us))
        lane = (
            layout.written_lane(row.shard.lane)
            if row.group is None
            else layout.group_lane(row.group)
        )
        new = moved(
            row,
            layout.shard(due_ms, lane),
            due_ms,
            ids.after(row.id, now_us),
            attempt=row.attempt,
            claim=None,
            since_ms=row.wanted_ms,
        )
        return self.command(key, row, new)

    def renew(self, key: KeyRow) -> Change:
        """Change the nonce of a name that is still as it was read.

        So later changes are refused to callers that read the name before, and did not find the row.
        """
        return self._renewed(key.name, key.stored)

    def confirm(self, change: Change) -> Change:
        """Renew a name that is still as a put or command wrote it."""
        return self._renewed(change.key[0], dict(change.new or {}))

    def _renewed(self, name: str, stored: Seen) -> Change:
        state = KeyState.read(stored["state"]).renewed().text()
        return self._change(name, stored, {**stored, "state": state})

    def undo(self, change: Change) -> Change:
        """Give back a name that a put has taken, because its row was refused for good.

        If another message had the name before, that message gets the name back.
        """
        new, before = dict(change.new or {}), change.seen
        is_others = before["live"] not in (None, new["live"])
        return change._replace(seen=new, new=before if is_others else None, insert=(), delete=())

    def begin(self, row: Row, over: KeyRow | None = None) -> Change:
        """Record that a row's delivery begins, before it is handed out or claimed.

        Args:
            row: The row, with its key.
            over: The key's row as it was read, if the message follows a run that has ended, or if
                the message that was to follow this one was never written; None if this message has
                its name.
        """
        key = own_key(row)
        state = keyrow.begun(row.position, row.serial).text()
        live = keyrow.message_in(first_of(row), key.generation)
        seen: Seen = {"live": live} if over is None else over.stored
        return self._change(key.name, seen, {"live": live, "state": state})

    def give_back(self, change: Change) -> Change:
        """Take back the record that a delivery began. Refused if its message was cancelled."""
        new = dict(change.new or {})
        state = KeyState("waiting", KeyState.read(new["state"]).place)
        return change._replace(seen=new, new=new | {"state": state.text()})

    def cancel(self, found: Standing) -> Change:
        """Free the name of a message that waits, is pending or dead, so that it never begins.

        The caller then ends the message's row, if there is one.
        """
        key, row = found.key, found.row
        unique_ms = key.unique_ms if row is None else own_key(row).unique_ms
        new, ttl_ms = self._freed(unique_ms, key.first)
        if new is None:
            # Keep the row of the name: only its state proves that this cancel has freed the name.
            new, ttl_ms = (
                {"live": None, "state": KeyState("cancelled", of=key.first).text()},
                _PROOF_MS,
            )
        return self._change(key.name, key.stored, new, ttl_ms, is_decisive=True)

    def doom(self, key: KeyRow) -> Change:
        """Cancel a message while it runs, so that it never begins again.

        Args:
            key: The key's row. If another message follows the running one, the running one gets the
                name back, which cancels the other.
        """
        return self._runs_on(key, keyrow.doomed(str(key.message)))

    def unfollow(self, key: KeyRow) -> Change:
        """Cancel a message that waits behind a running message of the same key.

        The running message has the key alone again.

        Args:
            key: The row of the key, as it was before the second message was put (`KeyRow.behind`).
        """
        return self._runs_on(key, keyrow.followed(key))

    def _runs_on(self, key: KeyRow, live: str) -> Change:
        """Give a running message its name again, in the state that the message's begin wrote."""
        state = keyrow.begun(key.place, key.serial).text()
        return self._change(key.name, key.stored, {"live": live, "state": state}, is_decisive=True)

    def free(self, row: Row, *, is_doomed: bool = False) -> Change:
        """Free the name of a message that has ended, or hold it for as long as the put asked."""
        key = own_key(row)
        live = keyrow.message_in(first_of(row), key.generation)
        seen = {"live": keyrow.doomed(live) if is_doomed else live}
        return self._change(key.name, seen, *self._freed(key.unique_ms, first_of(row)))

    def clear(self, key: KeyRow) -> Change:
        """Free the name of a message that does not exist, if the name's row is as it was read."""
        return self._change(key.name, key.stored, None)

    def _placed(
        self,
        row: Row,
        seen: Seen,
        *,
        before: Before | None,
        behind: KeyRow | None,
    ) -> Change:
        key, live = own_key(row), keyrow.live_of(row)
        state = keyrow.waiting(
            row.position, before=before, unique_ms=key.unique_ms, behind=behind
        ).text()
        new = {"live": live if behind is None else keyrow.following(live), "state": state}
        return self._change(key.name, seen, new, insert=(row,))

    def _freed(
        self, unique_ms: int | None, first: bytes | None
    ) -> tuple[dict[str, str | None] | None, int | None]:
        """The new values of a name's row when its message has ended, and their time to live."""
        if unique_ms is None:
            return None, None
        now_us = self._clock.now_us()
        state = KeyState("held", until=now_us // 1_000 + unique_ms, since=now_us, of=first)
        return {"live": keyrow.FREE, "state": state.text()}, unique_ms + _SLACK_MS

    def _change(
        self,
        name: str,
        seen: Seen,
        new: Seen | None,
        ttl_ms: int | None = None,
        insert: tuple[Row, ...] = (),
        *,
        is_decisive: bool = False,
    ) -> Change:
        # The constructor of `tuple` is faster, and each put, begin and end calls this.
        change = (self._partition(name), (name,), seen, new, insert, (), is_decisive, ttl_ms)
        return tuple.__new__(Change, change)

    def _partition(self, name: str) -> tuple[str, int]:
        return self._partitions[bucket_of(name)]
