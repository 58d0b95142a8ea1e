"""Commands by key, from any process: they look at a message, cancel, move or edit it.

```
 key ──► what it stands for ─┬─ nothing, held ──► not there
                             ├─ runs ───────────► running; a cancel asks its handler to stop
                             ├─ dead ───────────► a cancel removes it; else not there
                             ├─ being written ──► a cancel is done, other commands wait for its row
                             └─ waits ──► its key's row first, by LWT ──► its own ──► done
                                            └─ refused: another was quicker; reread
```

`records/standing.py` judges what a name stands for, and `records/keys.py` writes keys.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from shardq.errors import (
    BadTime,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
    begun,
)
from shardq.lifecycle.pauses import Pauses
from shardq.model import names
from shardq.model.message import (
    Message,
    body_bytes,
    check_size,
    expires_ms_of,
    expiring,
    headers_json,
)
from shardq.model.times import asked_ms, ceil_ms
from shardq.records.ledger import End
from shardq.records.standing import Is

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.times import Due, Duration
    from shardq.records.register import Register
    from shardq.records.standing import Standing

log = logging.getLogger(__name__)

_SLACK_US = 1_000_000
"""A command waits for a row that is about to be written: three times the keys' patience, and this
much longer."""

Doing: TypeAlias = Literal["waiting", "running", "dead"]
"""What a message is doing."""


class Answer(StrEnum):
    """The result of a command by key. It is true (`bool`) if the command was done."""

    DONE = "done"
    """The command was done, and stays done whatever crashes from now on."""
    NOT_THERE = "not there"
    """No message has the key, or a dead message has it, which can only be cancelled."""
    RUNNING = "running"
    """A handler, or a caller of `receive`, has the message. A cancel has asked it to stop, and the
    message never runs again; a move or an edit has changed nothing."""

    def __bool__(self) -> bool:
        return self is Answer.DONE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A message as it was when it was looked up by its key.

    Attributes:
        key: The message's key.
        id: The message's id.
        state: `waiting` for its due, a retry or a consumer; `running` in a handler, or at a caller
            of `receive`; or `dead`.
        due: When the message is due, UTC; if a caller of `receive` has it, when the claim ends.
        first_due: The due that its put or the last move asked for, UTC.
        attempt: How many deliveries the message has had, without one that runs now.
        body: The message's body.
        headers: The message's headers; in a dead message `shardq-reason` and others say why it
            died.
        group: The message's group; None without a group.
        priority: The message's priority; 0 is first.
    """

    key: str
    id: str
    state: Doing
    due: datetime
    first_due: datetime
    attempt: int
    body: bytes
    headers: dict[str, str]
    group: str | None
    priority: int

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()


class KeyedCommands:
    """Carries out and counts commands by key on messages of one queue.

    Args:
        home: The queue's home.
        remove_dead: Removes a row from the dead-letter queue, as cancelled; None if dead rows stay.
    """

    def __init__(
        self,
        home: QueueHome,
        remove_dead: Callable[[Row], object] | None = None,
    ) -> None:
        self._home = home
        self._clock = home.clock
        self._register = home.register
        self._settler = home.settler
        self._remove_dead = remove_dead
        self._keys = home.settler.keys

    def get(self, name: str) -> Snapshot | None:
        """See `Queue.get`."""
        self._keep_up(name)
        found = self._keys.seek([name])[name]
        # A message whose row is not written yet does not exist, as its put has not returned.
        return None if found.row is None else self._snapshot(found, found.row.checked())

    def cancel(self, name: str, of: Row | None = None) -> Answer:
        """See `Queue.cancel`.

        Args:
            name: The key.
            of: A row of the message to cancel; None for any message that has the key, even a dead
                one.
        """
        self._keep_up(name)
        removed: str | None = None
        with ExitStack() as stack:
            for _ in Pauses(self._clock):
                found = self._keys.seek([name])[name]
                row, state = found.row, found.state
                is_meant = of is None or (found.key.is_of(of) and state is not Is.DEAD)
                if removed is not None and row is not None:
                    # A redrive may have put back meanwhile the message that was just removed.
                    is_meant = row.message_id == removed
                if state is Is.DEAD and row is not None and is_meant:
                    if self._remove_dead is not None:
                        self._remove_dead(row)
                    removed = row.message_id
                    stack.enter_context(begun("the dead message is removed"))
                elif not is_meant or state is Is.HELD or state.is_absent:
                    return Answer.NOT_THERE if removed is None else Answer.DONE
                elif (running := found.running) is not None:
                    is_one = state is Is.RUNNING
                    # Else the message found is to follow the running message. A command for that
                    # message alone leaves the running message as it is: it may be retried.
                    is_alone = not is_one and of is not None
                    change = self._keys.unfollow(running) if is_alone else self._keys.doom(running)
                    if (is_one and running.is_doomed) or not self._keys.write([change]):
                        if not is_one:
                            self._end(found)
                        return Answer.DONE if is_alone else Answer.RUNNING
                elif not self._keys.write([self._keys.cancel(found)]):
                    self._end(found)
                    return Answer.DONE
            raise self._outrun(name)

    def move(
        self, name: str, due: Due | None, delay: Duration | None, of: Row | None = None
    ) -> Answer:
        """See `Queue.move`.

        Args:
            name: The key.
            due: The new due.
            delay: How long from now the message becomes due.
            of: A row of the message to move; None for any message that has the key.
        """
        wanted_ms = self.wanted_ms(due, delay)
        return self.replace(name, lambda row: self._settler.planner.asked(row, wanted_ms), of)

    def wanted_ms(self, due: Due | None, delay: Duration | None) -> int:
        """The due that a move asks for, epoch milliseconds.

        Raises:
            BadTime: Unless one of `due` and `delay` is given, and can be read.
        """
        if due is None and delay is None:
            raise BadTime("give due or delay: when the message is to be due.")
        return asked_ms(ceil_ms(self._clock.now_us()), due, delay)

    def edit(
        self, name: str, body: bytes | str | None, headers: Mapping[str, str] | None
    ) -> Answer:
        """See `Queue.edit`."""
        if body is None and headers is None:
            raise UsageError("give a body or headers: what of the message is to change.")
        content = None if body is None else body_bytes(body)
        text = None if headers is None else headers_json(headers)

        def edited(row: Row) -> Row:
            new = self._settler.planner.kept(row)
            if content is not None:
                new = new._replace(body=content)
            if headers is not None:
                expires_ms = expires_ms_of(row)
                kept = text if expires_ms is None else expiring(text, expires_ms)
                new = new._replace(headers=kept)
            check_size(new.body, new.headers)
            return new

        return self.replace(name, edited)

    def replace(self, name: str, plan: Callable[[Row], Row], of: Row | None = None) -> Answer:
        """Replace the row of a waiting message by another row of the same message.

        Args:
            name: The key.
            plan: Given the present row, returns the new one, with a fresh id; called again if the
                present row has changed meanwhile.
            of: A row of the message to replace; None for any message that has the key.
        """
        self._keep_up(name)
        for _ in Pauses(self._clock):
            found = self._seek(name)
            if found.state is Is.RUNNING:
                return Answer.RUNNING
            if of is not None and not found.key.is_of(of):
                is_running = found.running is not None and found.running.is_of(of)
                return Answer.RUNNING if is_running else Answer.NOT_THERE
            if found.state is not Is.WAITING or found.row is None:
                return Answer.NOT_THERE
            new = plan(found.row.checked())
            command = self._keys.command(found.key, found.row, new, found.left)
            if not any(self._settler.place([command])):
                self._follow(found.row, command.change.insert[0])
                return Answer.DONE
        raise self._outrun(name)

    def _seek(self, name: str) -> Standing:
        """The standing of a name, once no row is about to be written under it."""
        found = self._keys.await_row(name, 3_000 * self._keys.patience_ms + _SLACK_US)
        if found is None:
            raise self._outrun(name)
        return found

    def _follow(self, old: Row, new: Row) -> None:
        """Count, record, repair and announce the replacement of a row."""
        self._home.stats.add(replaced=1)
        layout = self._register.layout
        with begun("the message is replaced"):
            self._settler.ledger.make_up([new])
            if new.shard != old.shard or not layout.is_of_groups(new.shard.lane):
                self._settler.repair([new])
        self._settler.tell([old, new])
        self._home.on_put(new.due_ms)

    def _end(self, found: Standing) -> None:
        """End a message whose name was freed, so that it never begins."""
        if found.row is not None:
            # Without its key, because the name is free already.
            rows = [row._replace(key=None) for row in (found.row, found.left) if row is not None]
            try:
                self._settler.end(rows, End.CANCELLED)
                self._keys.forget(found.key)
            except (StoreTimeout, StoreUnavailable) as error:
                # The reader that later finds the row due drops it, and records its end.
                log.warning("the row of %s is left, and never runs: %s", rows[0].message_id, error)
        self._home.stats.add(cancelled=1)

    def _snapshot(self, found: Standing, row: Row) -> Snapshot:
        register = self._register
        is_dead = found.state is Is.DEAD
        dead = register.dead_if_made() if is_dead else None
        message = Message(row, 0, (dead or register).signer)
        headers = message.headers
        doing: Doing = "dead" if is_dead else "waiting"
        return Snapshot(
            key=found.key.name,
            id=message.id,
            state="running" if found.state is Is.RUNNING else doing,
            due=message.due,
            first_due=message.first_due,
            attempt=message.attempt,
            body=message.body,
            headers=headers,
            group=message.group,
            priority=int(headers["shardq-priority"]) if is_dead else message.priority,
        )

    def _keep_up(self, name: str) -> None:
        check_key(name, self._register)
        self._clock.measure(self._home.store)
        self._register.refresh()
        if self._register.settings.dropped:
            raise UnknownQueue(f"queue {self._register.name!r} has been dropped.")

    def _outrun(self, name: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"key {name!r} of queue {self._register.name!r} could not be changed: other processes "
            f"kept changing it; try again."
        )


def check_key(name: object, register: Register) -> None:
    """Refuse a name that cannot be a key of a queue.

    Raises:
        BadName: If the name is not 1 to 256 printable characters.
        UsageError: If the queue is a dead-letter queue.
    """
    names.label(name, what="key")
    if names.is_dead_queue(register.name):
        served = names.served_queue(register.name)
        raise UsageError(
            f"queue {register.name!r} keeps the dead of {served!r}, whose keys they have; ask "
            f"that queue by key."
        )
