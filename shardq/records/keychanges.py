"""Changes of a queue's key rows: how names are taken, moved and freed. Builds them, writes nothing.

```
 put ────────► nobody's      ─► (F, 1) waiting at P    then the row at P is written
 begin ──────► (F, n)        ─► begun, where it is     give back: waiting again
 command ────► (F, n) waiting ─► (F, n + 1) waiting at Q    then the row at Q, the old one deleted
 cancel ─────► (F, n) waiting ─► nobody's              then the row is deleted
 doom ───────► (F, n) begun  ─► (F, n)!                it never begins again
 end ────────► (F, n), (F, n)! ─► nobody's, or held
```

Each is one conditional write of one row: who was refused reads again. The name comes first, then
the message's row.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from shardq.model import ids, names
from shardq.model.key import BUCKETS, bucket_of
from shardq.model.message import moved
from shardq.model.times import ceil_ms
from shardq.records import keyrow
from shardq.records.keyrow import Before, KeyRow, first_of, own_key
from shardq.stores.tables import Change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.records.register import Register
    from shardq.records.standing import Standing
    from shardq.stores.store import Store

_PROOF_MS = 600_000
"""How long a cancel's state stays: longer than any cancel takes to learn that it was applied."""
_SLACK_MS = 60_000
"""How much longer than a name is held its row stays: the state says until when, by our clock."""


class Command(NamedTuple):
    """A row that is to replace another by key.

    Attributes:
        change: Takes the key, and writes the new row.
        old: Where the row is that it replaces: deleted once the new one is sure to stand.
        key: The key's row as it was read.
    """

    change: Change
    old: Position
    key: KeyRow


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

    def put(self, row: Row, over: KeyRow | None = None) -> Change:
        """Take a name, and write its message's row: a put, a redrive.

        Args:
            row: With its key.
            over: The key's row of a standing that `is_absent`; None: nobody's, as far as is known.
        """
        seen: dict[str, str | None] = {"live": None}
        if over is not None and over.live is not None:
            seen = {"live": over.live, "state": over.state}
        return self._placed(row, seen, before=None)

    def command(self, key: KeyRow, old: Row, new: Row) -> Command:
        """Replace the row of a message that waits: a move, an edit, a replace, a debounce.

        Args:
            key: Its key's row, as it was read.
            old: Its row.
            new: What is to be there, with a fresh id. Its message and generation are set here.
        """
        named = own_key(new)._replace(name=key.name, generation=key.generation + 1)
        before = Before(own_key(old).generation, old.position)
        change = self._placed(
            new._replace(first=key.first, key=named.text()),
            {"live": key.live, "state": key.state},
            before=before,
        )
        if not self._store.write_timeout_ms:
            change = change._replace(delete=(old.position,))
        return Command(change, old.position, key)

    def re_place(self, key: KeyRow, row: Row) -> Command:
        """Bring back the row of a message that a command by key was to replace, and has not.

        Under the next generation, due as it is, or now: where the command is under way after all,
        it is refused when it confirms, and whatever it wrote never runs.

        Args:
            key: Its key's row, as it was read.
            row: The row, which was found `STRANDED`.
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

    def confirm(self, change: Change) -> Change:
        """See that a name is still as a put or command has written it; what was seen of it is void.

        Whoever has looked for the row before it was written, and not found it, is refused.
        """
        new = dict(change.new or {})
        return change._replace(
            seen=new,
            new=new | {"state": keyrow.renewed(str(new["state"]), _nonce())},
            insert=(),
            delete=(),
        )

    def renew(self, key: KeyRow) -> Change:
        """Confirm a name as it was read, as `confirm` does."""
        read = {"live": key.live, "state": key.state}
        return self._change(
            key.name, read, read | {"state": keyrow.renewed(str(key.state), _nonce())}
        )

    def undo(self, change: Change) -> Change:
        """Give back a name that a put has taken, and whose row was refused for good."""
        new = dict(change.new or {})
        return change._replace(seen=new, new=None, insert=(), delete=())

    def begin(self, row: Row) -> Change:
        """Let a row's delivery begin, before it is handed out or claimed."""
        key = own_key(row)
        state = keyrow.begun(row.position, _nonce(), row.serial)
        live = keyrow.message_in(first_of(row), key.generation)
        return self._change(key.name, {"live": live}, {"live": live, "state": state})

    def give_back(self, change: Change) -> Change:
        """Say that a delivery that was let begin has not begun. Refused, it has been cancelled."""
        new = dict(change.new or {})
        state = keyrow.given_back(str(new["state"]), _nonce())
        return change._replace(seen=new, new=new | {"state": state})

    def cancel(self, found: Standing) -> Change:
        """Free the name of a message that waits, is pending or dead: it never begins.

        Its row, where there is one, is the caller's to end after that.
        """
        key, row = found.key, found.row
        unique_ms = key.unique_ms if row is None else own_key(row).unique_ms
        new, ttl_ms = self._freed(unique_ms)
        if new is None:
            # Not deleted: that it was this cancel that freed it can be proved by its state alone.
            new, ttl_ms = {"live": None, "state": keyrow.cancelled(_nonce())}, _PROOF_MS
        return self._change(key.name, {"live": key.live, "state": key.state}, new, ttl_ms)

    def doom(self, found: Standing) -> Change:
        """Cancel a message as it runs: it never begins again."""
        key = found.key
        return self._change(
            key.name,
            {"live": key.live, "state": key.state},
            {
                "live": keyrow.doomed(str(key.live)),
                "state": keyrow.renewed(str(key.state), _nonce()),
            },
        )

    def free(self, row: Row, *, is_doomed: bool = False) -> Change:
        """Free the name of a message that has ended, or hold it as it was put to be held."""
        key = own_key(row)
        live = keyrow.message_in(first_of(row), key.generation)
        seen = {"live": keyrow.doomed(live) if is_doomed else live}
        return self._change(key.name, seen, *self._freed(key.unique_ms))

    def clear(self, key: KeyRow) -> Change:
        """Free the name of a message that is not there any more, as it was read."""
        return self._change(key.name, {"live": key.live, "state": key.state}, None)

    def _placed(self, row: Row, seen: Mapping[str, str | None], *, before: Before | None) -> Change:
        key = own_key(row)
        state = keyrow.waiting(row.position, _nonce(), before=before, unique_ms=key.unique_ms)
        new = {"live": keyrow.live_of(row), "state": state}
        return self._change(key.name, seen, new, insert=(row,))

    def _freed(self, unique_ms: int | None) -> tuple[dict[str, str | None] | None, int | None]:
        """What a name's row becomes when its message has ended, and for how long."""
        if unique_ms is None:
            return None, None
        now_us = self._clock.now_us()
        live, state = keyrow.held(now_us // 1_000 + unique_ms, now_us, _nonce())
        return {"live": live, "state": state}, unique_ms + _SLACK_MS

    def _change(
        self,
        name: str,
        seen: Mapping[str, str | None],
        new: Mapping[str, str | None] | None,
        ttl_ms: int | None = None,
        insert: tuple[Row, ...] = (),
    ) -> Change:
        # Without a call in Python, as each put, begin and end has one.
        change = (self._partition(name), (name,), seen, new, insert, (), ttl_ms)
        return tuple.__new__(Change, change)

    def _partition(self, name: str) -> tuple[str, int]:
        return self._partitions[bucket_of(name)]


def _nonce() -> str:
    return secrets.token_hex(8)
