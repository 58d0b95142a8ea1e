"""Queues, as users call them: they put, receive and settle messages, look, and change settings.

`model/message.py` draws the life of a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial as partial_of
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, Unpack, overload

from shardq import locks
from shardq.engine.handing.handler import check_function, undone
from shardq.engine.receiver import Receiver
from shardq.errors import (
    BadReceipt,
    BadSetting,
    BadTime,
    StaleReceipt,
    UsageError,
    begun,
    not_pickled,
    shown,
)
from shardq.inspection.audit import Auditor
from shardq.inspection.calendar import begins, forecast, forecast_ms
from shardq.inspection.census import Census
from shardq.inspection.depth import DepthCounter
from shardq.inspection.mend import Mender
from shardq.inspection.scan import forget_empty, postponed
from shardq.inspection.state import Where
from shardq.inspection.whereabouts import Whereabouts
from shardq.lifecycle.fate import Fate, Outcome
from shardq.lifecycle.forwarding import Forwarder
from shardq.lifecycle.keyed import Answer, KeyedCommands, Snapshot
from shardq.lifecycle.receipts import Receipts
from shardq.lifecycle.settle import CLAIM_MARGIN_MS
from shardq.model import names, settings
from shardq.model.limits import queue_limit_of, with_pause, with_pause_of, with_rule, with_task
from shardq.model.message import Message, died_in
from shardq.model.times import due_ms, duration_ms, moment_of
from shardq.records.ledger import Record
from shardq.records.register import check_dead
from shardq.schedules.face import Scheduled
from shardq.schedules.firing.firer import Firer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from shardq.engine.stepper import Stepper
    from shardq.errors import KeyTaken, ReceiptError, ShardqError
    from shardq.inspection.audit import Audit
    from shardq.inspection.census import Check
    from shardq.inspection.depth import Depth
    from shardq.inspection.state import Found, State
    from shardq.lifecycle.batch import Item
    from shardq.lifecycle.home import Home, QueueHome
    from shardq.model.limits import GroupOptions, TaskLimitOptions
    from shardq.model.message import Row
    from shardq.model.settings import QueueOptions, Settings
    from shardq.model.times import Due, Duration
    from shardq.records.membership import Membership
    from shardq.records.register import Register
    from shardq.records.stats import Totals
    from shardq.stores.store import Progress

RECEIVE_MAX = 1_000
WAIT_MS_MAX = 3_600_000
_PEEK_MAX = 10_000

Several: TypeAlias = Message | str | Iterable[Message | str]
"""One delivery, given as a received message or as its receipt; or several deliveries."""


class Queue(Scheduled):
    """A queue. Made by `Connection.queue`; every method may be called from any thread.

    Attributes:
        name: The queue's name.
    """

    def __init__(self, home: Home, register: Register, *, stepper: Stepper | None) -> None:
        store, clock = home.store, home.clock
        self.name: str = register.name
        self._home = home.of_queue(register)
        self._home.fold_hourly()
        self._stepper = stepper
        self._dead: Queue | None = None
        self._settler = self._home.settler
        self._producer = self._home.producer
        self._keyed = KeyedCommands(self._home, self._cancel_dead)
        self._receipts = Receipts(self._home, self._keyed)
        self._census = Census(self._home)
        self._depth = DepthCounter(store, clock, register)
        self._mender = Mender(
            store, clock, register, store_own=self._store_totals, own=self._home.stats
        )
        self._receiver = Receiver(
            self._home, stepper=stepper, make_firer=self._firer, put_back=self._put_back
        )
        self._home.lookers.append(self._receiver.looks_at)
        self._home.listeners.append(self._receiver.on_put)

    def __reduce__(self) -> NoReturn:
        raise not_pickled(f"queue {self.name!r}", f"shardq.connect(url).queue({self.name!r})")

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} in {self._home.store.shown}>"

    @property
    def settings(self) -> Settings:
        """The settings, as last read."""
        return self._home.register.settings

    @property
    def dead(self) -> Queue:
        """The queue that keeps this queue's dead messages: `<name>.dead`, or as the settings say.

        `dead.peek()` and `dead.find(id)` show dead messages, `dead.cancel(message)` deletes one,
        and `dead.purge()` deletes all. This queue's `redrive()` puts them back.

        Raises:
            UsageError: If the queue keeps no dead messages.
        """
        register = self._home.register
        if not register.has_own_dead:
            dead: Queue = self._home.open_one(register.dead().name)
            return dead
        if self._dead is None:
            self._dead = Queue(self._home, register.dead(), stepper=self._stepper)
        return self._dead

    # Putting --------------------------------------------------------------------------------------

    def put(
        self,
        body: bytes | str | Message,
        *,
        due: Due | None = None,
        delay: Duration | None = None,
        spread: Duration | None = None,
        priority: int = 0,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002 - the word that users expect
        expires: Duration | None = None,
        key: str | None = None,
        on_conflict: Literal["keep", "replace", "reject", "debounce"] = "keep",
        max_wait: Duration | None = None,
        unique_for: Duration | None = None,
    ) -> Message:
        """Put one message; when this returns, the store has it.

        Args:
            body: Bytes or text, to 1 MiB. Or a message that `StoreTimeout` carried: then the same
                write is repeated.
            due: When to deliver it: an aware datetime, or ISO 8601 text with a zone. A time in the
                past means now.
            delay: Instead of `due`: how long from now, as a timedelta, `90s`, `1h30m` or `PT1H30M`.
                Without either, the queue's `delay`.
            spread: How much later it may be due: at the first time within this tolerance for which
                the `budget` of the queue's `limits` has room, else at the end of the tolerance.
                Without a budget at random within the tolerance.
            priority: 0 is first; below the queue's `bands`.
            group: Messages of one group are delivered one at a time, in order of their due.
            headers: Names and texts that travel with the body. The body and the headers as JSON
                have 1,064,960 bytes together at most (1 MiB and 16 KiB).
            id: The message's id, 1 to 256 printable characters; made up if None. It need not be
                unique.
            expires: How long after its due the message is of use. After that it is not delivered,
                and ends as expired. The header `shardq-expires` keeps the time, in milliseconds.
            key: A name that no other live message of the queue has, 1 to 256 printable characters.
                It is free again once this message has ended or died. In a queue made with
                `keyed=True`, the id if None.
            on_conflict: What to do if another message has the key. `keep` leaves that message as it
                is. `reject` raises `KeyTaken`. `replace` gives it this body, due, headers, priority
                and group; it keeps its id. `debounce` does the same, but its due is no later than
                `max_wait` after it was first put. If that message runs, `replace` raises `KeyTaken`
                and `debounce` puts one message that follows it.
            max_wait: The longest wait of a debounced message; None: no bound.
            unique_for: How long the key is held after the message's end.

        Returns:
            The message, with `id` and a `receipt` that can cancel it. If the key was taken, the
            message that has it.

        Raises:
            UsageError: If an argument cannot be used; nothing was written.
            QueueFull: The queue has as many messages as its `depth_max`. Nothing was written.
            KeyTaken: Another message has the key, and it runs or was not to be replaced; or the key
                is held. Nothing was written.
            StoreTimeout: Maybe stored. The error carries the message, to be put again.
            StoreUnavailable: Not stored.
        """
        return self._producer.put(
            body,
            due=due,
            delay=delay,
            spread=spread,
            priority=priority,
            group=group,
            headers=headers,
            id=id,
            expires=expires,
            key=key,
            on_conflict=on_conflict,
            max_wait=max_wait,
            unique_for=unique_for,
        )

    @overload
    def put_many(self, items: Iterable[Item], *, ids: Literal[False] = False) -> int: ...
    @overload
    def put_many(self, items: Iterable[Item], *, ids: Literal[True]) -> list[str]: ...
    @overload
    def put_many(self, items: Iterable[Item], *, ids: bool) -> int | list[str]: ...
    @overload
    def put_many(
        self, items: Iterable[Item], *, partial: Literal[True]
    ) -> list[Message | ShardqError]: ...
    def put_many(
        self, items: Iterable[Item], *, ids: bool = False, partial: bool = False
    ) -> int | list[str] | list[Message | ShardqError]:
        """Put messages from an iterable, lazily, in full batches: ten times the speed of `put`.

        If the iterable is slow, messages wait for their batch to fill. Once they have waited for a
        second, messages of groups for 0.1 s, the batch is stored when the iterable yields the next
        one. A message of a group that has waited longer becomes due when it is stored.

        An error of the iterable is raised here, once all messages that it yielded before are
        stored; a note of the error says how many they are.

        Args:
            items: Bodies (bytes or text), mappings of `put`'s arguments with `body` among them, or
                messages.
            ids: True to return the messages' ids, which take some 100 bytes of memory each.
            partial: True to put all items that can be put, even if others cannot. All items are
                read first, and stored in one batch. A mapping may then have `once`, a name. If a
                message was put under this name in the last five minutes, nothing is put: the answer
                is that message, whatever became of it.

        Returns:
            How many were put, or their ids in order; if `partial`, for each item its message or
            error. When this returns, the store has all of them. If an item's key was taken, the
            message that has the key is not counted, but its id is returned. If two items have one
            key, the second finds the message of the first.

        Raises:
            UsageError: If an item cannot be used. Items before it are stored, and a note says how
                many. No error carries ids: give your own if you must know which were stored.
            KeyTaken: As `put` raises it, for the first such key. Other items that were read by
                then, for 1 s or 20,000 at most, are stored, and the error's `put` says how many.
            StoreTimeout, StoreUnavailable: Some are maybe stored. The error carries them, to be put
                again, and a note says how many were put before them. Items after them were not
                read: if `items` is an iterator, put `itertools.chain(error.messages, items)`.
        """
        if partial:
            return self._producer.put_each(items)
        if not ids:
            return self._producer.put_many(items)
        made: list[str] = []
        self._producer.put_many(items, made.append)
        return made

    # Receiving ------------------------------------------------------------------------------------

    def receive(
        self,
        max: int = 10,  # noqa: A002 - the word that users expect
        visibility: Duration = "30s",
        wait: Duration = "0s",
        *,
        per_group: int = 1,
        lasting: bool = False,
    ) -> list[Message]:
        """Take messages that are due; the caller settles them.

        Each is claimed durably: unless it is settled within `visibility`, it is delivered again.

        Args:
            max: The most to return, 1 to 1,000.
            visibility: How long they are the caller's, from 0 s. `ack` is possible to its end;
                `retry`, `snooze`, `bury` and `extend` until 1 s before it.
            wait: How long to wait for the first one, to 1 h.
            per_group: The most messages of one group, 1 to 1,000. They are claimed together, in
                order, and may be settled in any order. Later messages of the group wait until all
                of them are settled.
            lasting: True for receipts that last: `ack` and `extend` with `redelivered=True` take
                them even after the message was delivered again, extended or retried. Each later
                move of such a message writes a note of its place, and its end erases the note.

        Returns:
            The messages, first due first, those of a group one after another; none if none was due
            within `wait`.
        """
        asked = received(max, visibility, wait, per_group)
        return self._receiver.receive(*asked, is_lasting=lasting)

    @overload
    def ack(
        self,
        *deliveries: Message | str,
        partial: Literal[False] = False,
        redelivered: bool = False,
    ) -> None: ...
    @overload
    def ack(
        self, *deliveries: Message | str, partial: Literal[True], redelivered: bool = False
    ) -> list[ReceiptError | None]: ...
    @overload
    def ack(
        self, *deliveries: Message | str, partial: bool, redelivered: bool = False
    ) -> list[ReceiptError | None] | None: ...
    def ack(
        self, *deliveries: Message | str, partial: bool = False, redelivered: bool = False
    ) -> list[ReceiptError | None] | None:
        """End deliveries as done: the messages are removed.

        Args:
            deliveries: Messages that were received, or their receipts.
            partial: True to end all that can be ended, even if others cannot.
            redelivered: True to end a message even if its time is up, or it was delivered again or
                waits for that. If it has ended or died, that is a success. This needs receipts of
                `receive(.., lasting=True)`; for any other, the message must not have moved. A
                message that was changed by its key meanwhile counts as another one.

        Returns:
            None; if `partial`, for each delivery its error, or None if it has ended.

        Raises:
            BadReceipt: If one is damaged or of another queue; nothing was written. Not if
                `partial`.
            StaleReceipt: If one was settled before, or its time is up; nothing was written. Not if
                `partial`, and not for a lasting receipt if `redelivered`.
        """
        if partial:
            return self._receipts.ack_each(deliveries, is_followed=redelivered)
        self._receipts.ack(deliveries, is_followed=redelivered)
        return None

    @overload
    def retry(
        self, delivery: Message | str, delay: Duration | None = None, *, reason: str = ""
    ) -> None: ...
    @overload
    def retry(
        self,
        delivery: Several,
        delay: Duration | None = None,
        *,
        reason: str = "",
        partial: Literal[True],
    ) -> list[ReceiptError | None]: ...
    def retry(
        self,
        delivery: Several,
        delay: Duration | None = None,
        *,
        reason: str = "",
        partial: bool = False,
    ) -> list[ReceiptError | None] | None:
        """End a delivery as failed: it is delivered again, or buried if it was the last attempt.

        Args:
            delivery: The message or its receipt; if `partial`, a list of them.
            delay: How long to wait; None takes the queue's back-off.
            reason: Why it failed, for the message's `last_error` and, if it dies, its dead message.
            partial: True to end all that can be ended, even if others cannot.

        Returns:
            None; if `partial`, for each delivery its error, or None if it has ended.
        """
        _check_reason(reason)
        delay_ms = None if delay is None else duration_ms(delay, name="delay")
        return self._settle(delivery, Outcome(Fate.RETRY, delay_ms, reason), partial)

    @overload
    def snooze(
        self, delivery: Message | str, delay: Duration, *, limited: bool = False
    ) -> None: ...
    @overload
    def snooze(
        self, delivery: Several, delay: Duration, *, limited: bool = False, partial: Literal[True]
    ) -> list[ReceiptError | None]: ...
    def snooze(
        self, delivery: Several, delay: Duration, *, limited: bool = False, partial: bool = False
    ) -> list[ReceiptError | None] | None:
        """Deliver a message again later, without the use of an attempt.

        Args:
            delivery: The message or its receipt; if `partial`, a list of them.
            delay: How long to wait.
            limited: True to deliver nothing of the message's group until then, as `Limited` does.
            partial: True to end all that can be ended, even if others cannot.

        Returns:
            None; if `partial`, for each delivery its error, or None if it has ended.
        """
        delay_ms = duration_ms(delay, name="delay")
        return self._settle(delivery, Outcome(Fate.SNOOZE, delay_ms, is_limit=limited), partial)

    @overload
    def extend(
        self, delivery: Message | str, visibility: Duration = "30s", *, redelivered: bool = False
    ) -> str: ...
    @overload
    def extend(
        self,
        delivery: Several,
        visibility: Duration = "30s",
        *,
        partial: Literal[True],
        redelivered: bool = False,
    ) -> list[str | ReceiptError]: ...
    def extend(
        self,
        delivery: Several,
        visibility: Duration = "30s",
        *,
        partial: bool = False,
        redelivered: bool = False,
    ) -> str | list[str | ReceiptError]:
        """Keep a received message for longer.

        Args:
            delivery: The message or its receipt; if `partial`, a list of them.
            visibility: How long from now, from 0 s. With 0 s the message is delivered again at
                once, and this delivery has used its attempt.
            partial: True to keep all that can be kept, even if others cannot.
            redelivered: True to take a lasting receipt (see `receive`) even after the message was
                extended or received again: then its present delivery is kept for longer.

        Returns:
            The new receipt. The old one is stale, unless the message has a group. If `partial`, for
            each delivery its new receipt or its error.
        """
        visibility_ms = duration_ms(visibility, name="visibility")
        many = _each_delivery(delivery, partial)
        answers = self._receipts.extend(
            many, visibility_ms, is_partial=partial, is_followed=redelivered
        )
        return answers if partial else str(answers[0])

    @overload
    def bury(self, delivery: Message | str, reason: str = "buried") -> None: ...
    @overload
    def bury(
        self, delivery: Several, reason: str = "buried", *, partial: Literal[True]
    ) -> list[ReceiptError | None]: ...
    def bury(
        self, delivery: Several, reason: str = "buried", *, partial: bool = False
    ) -> list[ReceiptError | None] | None:
        """Move a message to the dead-letter queue, under the same id.

        Args:
            delivery: The message or its receipt; if `partial`, a list of them.
            reason: Why it is buried; the header `shardq-reason` keeps it.
            partial: True to end all that can be ended, even if others cannot.

        Returns:
            None; if `partial`, for each delivery its error, or None if it has ended.
        """
        _check_reason(reason)
        return self._settle(delivery, Outcome(Fate.BURY, None, reason), partial)

    @overload
    def forward(self, delivery: Message | str, *, to: Queue | str) -> None: ...
    @overload
    def forward(
        self, delivery: Several, *, to: Queue | str, partial: Literal[True]
    ) -> list[ReceiptError | KeyTaken | None]: ...
    @overload
    def forward(self, *, to: Queue | str, ids: Iterable[str]) -> dict[str, Answer]: ...
    @overload
    def forward(
        self,
        *,
        to: Queue | str | None = None,
        limit: int,
        where: Callable[[Message], bool] | None = None,
    ) -> int: ...
    def forward(
        self,
        delivery: Several | None = None,
        *,
        to: Queue | str | None = None,
        ids: Iterable[str] | None = None,
        limit: int | None = None,
        where: Callable[[Message], bool] | None = None,
        partial: bool = False,
    ) -> list[ReceiptError | KeyTaken | None] | dict[str, Answer] | int | None:
        """Move messages into another queue, under their ids and with all attempts there.

        A message that was received, or has died, is due there at once, any other one at the same
        time as here. It takes its key along, but not into a dead-letter queue.

        Args:
            delivery: A message that was received or looked up, or its receipt; if `partial`, a list
                of them.
            to: The other queue, or its name. None with `limit`: each dead message goes back to the
                queue that it died in, and all others stay.
            ids: Instead of `delivery`: the ids or receipts of messages that wait, as `find` takes
                and searches them. For messages without a key this is best effort, because a
                consumer may hold them already.
            limit: Instead: the most to move, from 1; those due first are moved first. Messages that
                are claimed now, by callers of `receive` or by long runs, stay. For messages without
                a key this is best effort while consumers run: if none may run in both queues,
                receive and forward them.
            where: With `limit`: called with each message, returns True to move it; None moves all.
            partial: With `delivery`: True to move all that can be moved, even if others cannot.

        Returns:
            For deliveries None; if `partial`, for each its error, or None if it was moved. For ids
            an answer for each, by id. With `limit` how many were moved; 0 once none is left.

        Raises:
            UsageError: If a queue is forwarded to itself, or to another store.
            UnknownQueue: If there is no such queue.
            StaleReceipt: If a delivery was settled before, or its time is up. Not if `partial`.
            KeyTaken: If other messages of that queue have the keys of some: these stay, and all
                others are moved. Not if `partial`.
            StoreTimeout: Maybe moved. Call again: no message is left in both queues then.
        """
        _check_one(delivery, ids, limit, "a message, its receipt, ids= or limit=")
        if limit is None and where is not None:
            raise UsageError("where= chooses among many: give limit= too.")
        if limit is None and to is None:
            raise UsageError("give to=: the queue that the messages go to.")
        target = self._home if to is None else self._target(to)
        if delivery is not None:
            many = _each_delivery(delivery, partial)
            answers = self._receipts.forward(many, target, is_partial=partial)
            return answers if partial else None
        if ids is not None:
            return _each(ids, lambda name: self._forward_found(name, target))
        chosen = None if to is None else target
        return self._forward_all(partial_of(self._target_of, chosen), limit, where)

    # By key ---------------------------------------------------------------------------------------

    @overload
    def cancel(self, delivery: Message | str) -> bool: ...
    @overload
    def cancel(self, *, key: str) -> Answer: ...
    @overload
    def cancel(
        self, *, keys: Iterable[str] | None = None, ids: Iterable[str] | None = None
    ) -> dict[str, Answer]: ...
    def cancel(
        self,
        delivery: Message | str | None = None,
        *,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        ids: Iterable[str] | None = None,
    ) -> bool | Answer | dict[str, Answer]:
        """Remove a message that has not been delivered, or one that is dead from `dead`.

        For a message with a key it is exact: if the answer is `done`, the message never runs,
        whatever crashes. For any other it is best effort, because a consumer may hold it already.
        The totals and the history count it as cancelled.

        Args:
            delivery: The message that `put`, `peek` or `find` returned, or its receipt.
            key: Instead: its key; a dead message may have it.
            keys: Instead: the keys of several messages.
            ids: Instead: the ids or receipts of several, as `find` takes and searches them.

        Returns:
            By key, the answer. A running message is asked to stop, and is not delivered again. For
            several, an answer for each, by its name; they are cancelled one after another. By
            message or receipt, True if the message existed; False if it was cancelled, delivered
            or, without a key, moved. A running message with a key is asked to stop all the same.

        Raises:
            StoreTimeout: If there are several, some may be cancelled.
        """
        _check_one(delivery, key, keys, ids, "a message, its receipt, key=, keys= or ids=")
        if delivery is not None:
            return self._receipts.cancel(delivery)
        if key is not None:
            return self._keyed.cancel(key)
        return _each(keys, self._keyed.cancel) | _each(ids, self._cancel_found)

    def get(self, key: str) -> Snapshot | None:
        """The message that has a key, as it is now; None if there is none. It is not taken.

        Costs two or three reads, however many messages there are.

        Args:
            key: The message's key; in a queue made with `keyed=True`, its id.
        """
        return self._keyed.get(key)

    @overload
    def move(
        self, key: str, *, due: Due | None = None, delay: Duration | None = None
    ) -> Answer: ...
    @overload
    def move(
        self,
        *,
        keys: Iterable[str] | None = None,
        ids: Iterable[str] | None = None,
        due: Due | None = None,
        delay: Duration | None = None,
    ) -> dict[str, Answer]: ...
    def move(
        self,
        key: str | None = None,
        *,
        keys: Iterable[str] | None = None,
        ids: Iterable[str] | None = None,
        due: Due | None = None,
        delay: Duration | None = None,
    ) -> Answer | dict[str, Answer]:
        """Let a message that waits be due at another time; with `delay="0s"` it runs now.

        A message that waits for a retry keeps its attempts and its last error.

        Args:
            key: Its key.
            keys: Instead: the keys of several messages.
            ids: Instead: the ids or receipts of several, as `find` takes and searches them. For
                messages without a key this is best effort, because a consumer may hold them.
            due: When it is to be due, as for `put`.
            delay: Instead of `due`: how long from now.

        Returns:
            The answer. If it is `done`, the message does not run at its old time. For several, an
            answer for each, by its name; they are moved one after another.

        Raises:
            StoreTimeout: If there are several, some may be moved.
        """
        _check_one(key, keys, ids, "key, keys= or ids=")
        if key is not None:
            return self._keyed.move(key, due, delay)
        wanted = moment_of(self._keyed.wanted_ms(due, delay))
        return _each(keys, lambda name: self._keyed.move(name, wanted, None)) | _each(
            ids, lambda name: self._move_found(name, wanted)
        )

    def edit(
        self,
        key: str,
        *,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Change a message that waits, by its key; its due and its id stay.

        Args:
            key: Its key.
            body: The new body; None keeps the present one.
            headers: All of the new headers; None keeps the present ones.

        Returns:
            The answer. If it is `done`, the message does not run as it was before.

        Raises:
            BadName: If it cannot be a key.
        """
        return self._keyed.edit(key, body, headers)

    # Looking --------------------------------------------------------------------------------------

    def peek(self, limit: int = 10) -> list[Message]:
        """The messages that are due first, including those in flight. None is taken.

        Args:
            limit: The most to return, 1 to 10,000.
        """
        if type(limit) is not int or not 1 <= limit <= _PEEK_MAX:
            raise BadSetting(f"limit must be 1 to {_PEEK_MAX:,}, not {shown(limit)}.")
        return [Message(row, 0, self._home.register.signer) for row in self._census.first(limit)]

    def find(
        self, message_id: Message | str | None = None, *, key: str | None = None, near: bool = False
    ) -> Found | None:
        """A message, with where it is now and why it does not run. It is not taken.

        By a receipt that is not stale this costs two reads, four if the message is due; by a key
        two more. Any other id is looked for at the place that the history has, then from the oldest
        unsealed minute to an hour ahead: the rows there are read, without bodies. At last the whole
        queue is searched. A message that moves meanwhile may be missed then.

        Args:
            message_id: The id of a message, its receipt, or the message itself.
            key: Instead: its key. In a queue made with `keyed=True` a message's id is its key.
            near: True to search only near minutes, and never the whole queue.

        Returns:
            The message with its `state`; it can be settled or cancelled like one that `peek`
            returned. If several were given this id, the one that is due first. None if there is
            none, or none near.

        Raises:
            BadName: If it cannot be a message's id.
            BadReceipt: If it is a receipt that is damaged, or of another queue.
        """
        return self._whereabouts().find(message_id, key, near=near)

    def state_of(
        self, message_id: Message | str | None = None, *, key: str | None = None, near: bool = False
    ) -> State | None:
        """The state of a message, even if it has died or ended: where it is, why it does not run.

        It looks where `find` does, then among the dead, then in the history, which alone has
        messages that have ended. There an id that `put` made is found at once, while an id that
        was given to `put` must be searched.

        Args:
            message_id: The id of a message, its receipt, or the message itself.
            key: Instead: its key, while it has it.
            near: True to search neither the whole queue nor the whole history.

        Returns:
            The state: `str()` makes a sentence of it. None if the message is not known.

        Raises:
            BadName: If it cannot be a message's id.
            BadReceipt: If it is a receipt that is damaged, or of another queue.
        """
        return self._whereabouts().state_of(message_id, key, near=near)

    def depth(self, *, exact: bool = False) -> Depth:
        """How many messages the queue has.

        Stored rows are counted near now: all due rows, and of the waiting rows the next 20,000
        (SQLite) or those of the next hour (Cassandra). Totals give the number of later rows.
        Totals are up to 2 s behind; after a crash they may miss 2 s of counts until a consumer or
        `check_all` mends them. The number in flight comes from the consumers, every 3 s.

        Args:
            exact: True to count every row instead, which reads the whole queue.

        Raises:
            StoreCorrupt: If totals are damaged; `check_all` mends them.
        """
        return self._depth.exact() if exact else self._depth.depth(self._mender.read)

    def forecast(
        self, horizon: Duration = "1h", *, begin: bool = False
    ) -> list[tuple[datetime, int]]:
        """Messages and firings due in each of the coming minutes, the current one included.

        Args:
            horizon: How far ahead, to a day.
            begin: True to count each message in the minute in which it begins by the queue's rate,
                also those that are due now. Handlers are taken to keep up with the rate; limits of
                groups and tasks, pauses, and what is put meanwhile do not count.

        Returns:
            (start of the minute, messages due in it from now on) for every minute, also for those
            without any.
        """
        horizon_ms = forecast_ms(horizon)
        home, register = self._home, self._home.register
        register.refresh(force=register.has_unused_lanes)
        stored, firings = self._mender.read(), self.schedules._home.firings
        due = forecast(home, horizon_ms, stored, firings)
        if not begin:
            return due
        allowed = queue_limit_of(self.settings.queue_limit).a_second
        ready = self._depth.depth(lambda: stored).ready
        return begins(due, ready, allowed, home.clock.now_ms(), self.settings.minute_ms)

    def audit(
        self,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
        *,
        on_progress: Progress | None = None,
    ) -> Audit:
        """Check that put = acked + dead + cancelled + purged + waiting + in flight.

        The queue must keep a `history`, and may run meanwhile: messages that move or end during the
        audit are looked at again. It visits every partition with rows, and the history.

        Args:
            since: Look at messages that entered since then, a time or a duration until now; None:
                as far back as the history is complete.
            until: Look at messages that entered before then; None: now.
            on_progress: Called with the kind of things that are read, their count, and how many
                there are.

        Returns:
            The balance of each minute and of all, and the messages that do not fit.

        Raises:
            HistoryOff: If the queue keeps no history.
            BadTime: If nothing lies between `since` and `until`.
            StoreCorrupt: If a record of the history is damaged.
        """
        return Auditor(self._home, on_progress).run(since, until)

    def history(
        self,
        message_id: str | None = None,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
    ) -> Iterator[Record]:
        """The records of a message, or of all messages that entered in a span.

        The queue must keep a `history`. A message that died is also in the history of `dead`.

        Args:
            message_id: The message's id; None: all messages of the span. An id that `put` made is
                found at once; an id that was given to `put` is searched in the span. If no message
                has that id, it is taken for the key of a message that lives or is dead.
            since: The begin of the span, a time or a duration until now; None: as far back as the
                history goes.
            until: The end of the span; None: now.

        Returns:
            The records, minute of entry by minute.

        Raises:
            HistoryOff: If the queue keeps no history.
            BadName: If it cannot be an id.
            BadTime: If nothing lies between `since` and `until`.
        """
        self._home.register.refresh(force=True)
        records = self._settler.ledger.asked(message_id, since, until)
        if message_id is None or names.is_dead_queue(self.name):
            return records
        return self._by_id_or_key(records, message_id, since, until)

    def totals(self) -> Totals:
        """The totals of this queue since it was made, over all processes."""
        return self._mender.read().totals

    # Steering -------------------------------------------------------------------------------------

    def alter(self, **given: Unpack[QueueOptions]) -> None:
        """Change settings while the queue runs; every process follows within 5 s.

        Args:
            given: The settings, as `QueueOptions` describes them, without those that are fixed.
                Offset and history are changed in its own dead-letter queue as well.

        Raises:
            BadSetting: If one is unknown, out of bounds, or fixed at creation (`minute`, `bands`,
                `group_lanes`, `keyed`), or if dead messages would come back to this queue.
            StoreTimeout: Maybe changed, or changed in this queue and not in its dead-letter queue.
        """
        if "dead" in given:
            check_dead(self._home.store, self.name, settings.read_choices(given)["dead"])
        self._home.register.change(
            lambda now: settings.alter(now, given, self._home.clock.now_ms())
        )
        shared = {name: value for name, value in given.items() if name in settings.SHARED}
        if not shared:
            return
        with begun(f"the settings of queue {self.name!r} are changed"):
            register = self._home.register
            dead = register.dead_if_made() if register.has_own_dead else None
            if dead is not None:
                dead.change(lambda now: settings.alter(now, shared, self._home.clock.now_ms()))

    @overload
    def limit(self, groups: str, **options: Unpack[GroupOptions]) -> None: ...
    @overload
    def limit(self, *, task: str, **options: Unpack[TaskLimitOptions]) -> None: ...
    def limit(self, groups: str | None = None, *, task: str | None = None, **options: Any) -> None:
        """Set the limits of groups or tasks, in place of those that they had.

        Every process follows within 5 s.

        Args:
            groups: The name of a group, or the beginning of names and a `*`; `*`: each group that
                no other rule names.
            task: Instead: the name of a task, or the beginning of names and a `*`.
            **options: The limits; without any the rule is removed.

        Raises:
            BadSetting: If a limit is unknown, out of bounds, or contradicts another.
        """
        _check_one(groups, task, "groups or a task")

        def changed(now: settings.Settings) -> settings.Settings:
            if task is not None:
                return replace(now, queue_limit=with_task(now.queue_limit, task, options))
            return replace(now, group_limits=with_rule(now.group_limits, groups or "", options))

        self._home.register.change(lambda now: [changed(now)])

    def pause(
        self, group: str | None = None, *, task: str | None = None, key: str | None = None
    ) -> None:
        """Stop deliveries; every process follows within 5 s. Messages can still be put.

        Without a name the whole queue is paused. A name is exact, or the beginning of names and a
        `*`.

        Args:
            group: Only the messages of these groups.
            task: Only the jobs of these tasks.
            key: Only the messages with these keys.

        Raises:
            UsageError: If more than one is given.
            BadSetting: If that is no name or beginning of names.
        """
        self._pause(group=group, task=task, key=key, paused=True)

    def resume(
        self, group: str | None = None, *, task: str | None = None, key: str | None = None
    ) -> None:
        """Deliver again; messages that came due meanwhile come first.

        Jobs of a task, and messages with keys, that were moved meanwhile return within 10 minutes.

        Args:
            group: As `pause` was given it; or the exact name of a group that is not paused, but
                held back by messages of it that are limited, snoozed or retried: these are
                delivered at once.
            task: As `pause` was given it.
            key: As `pause` was given it.

        Raises:
            UsageError: If more than one is given.
            BadSetting: If nothing was paused by that name, and no message holds that group back.
        """
        try:
            self._pause(group=group, task=task, key=key, paused=False)
        except BadSetting:
            if not isinstance(group, str) or not self._end_holds(group):
                raise

    def purge(self) -> None:
        """Delete all messages that have entered the queue until now.

        Every process follows once it has reread the settings, within 5 s unless the store fails.
        A purge costs two writes: rows are not delivered, and are deleted when they come due. In a
        dead-letter queue, where all rows are due and no consumer reads them, they are deleted at
        once, page by page.

        Raises:
            StoreTimeout: Some rows of dead messages may be left; none is shown or put back.
        """
        before_us = self._home.clock.now_us()
        self._home.register.change(
            lambda now: [replace(now, purged_before_us=max(before_us, now.purged_before_us))]
        )
        self._mender.doom()
        if names.is_dead_queue(self.name):
            with begun(f"queue {self.name!r} is purged"):
                self._census.remove_purged()

    def drop(self) -> None:
        """Purge the queue and take it off the list; its consumers end with `UnknownQueue`.

        A queue made again under its name is a different queue, with settings, totals and history of
        its own. For up to 5 s processes that have not reread the settings may put into it; if its
        `minute` is another, these messages wait until `check_all` finds them. The rows of the
        dropped queue are deleted once a queue is made again: by `check_all` or, if `minute` is the
        same, as they come due. Its schedules are dropped too. Its dead-letter queue stays;
        `dead.drop()` drops it.
        """
        before_us = self._home.clock.now_us()
        self._home.register.change(lambda now: settings.drop(now, before_us))
        self.schedules._home.drop()
        # End the receiver at once: a queue made again under this name starts a receiver of its own.
        self._receiver.drop()

    def redrive(
        self, limit: int | None = None, *, where: Callable[[Message], bool] | None = None
    ) -> int:
        """Put this queue's dead messages back, under their ids and with all attempts again.

        Run one redrive at a time: each of two may put back messages that the other has just read.

        Args:
            limit: The most to put back, from 1; None for all.
            where: Called with each dead message, first died first; returns True to put it back.
                None puts all back. `where=lambda message: message.id in ids` chooses by ids. An
                error that it raises ends the redrive: the messages that it chose last, 1,000 at
                most, are still among the dead then.

        Returns:
            How many were put back.

        Raises:
            UsageError: If this is a dead-letter queue itself.
            BadSetting: If the limit is below 1, or `where` is not a function that answers when it
                is called.
            KeyTaken: If other messages have the keys of some by now, or the keys are held: these
                stay dead, and all others are put back. A note says how many.
            StoreTimeout, StoreUnavailable: A note says how many were put back before it.
        """
        if names.is_dead_queue(self.name):
            served = names.served_queue(self.name)
            raise UsageError(
                f"queue {self.name!r} keeps the dead messages of {served!r}, whose redrive() puts "
                f"them back: queue.redrive(), not queue.dead.redrive()."
            )
        dead: Queue = self.dead
        # Messages of other queues may die into that queue as well.
        is_own = self._home.register.has_own_dead
        dead._home.register.know(self._home.register)
        return dead._forward_all(
            lambda row: self._home if is_own or died_in(row) == self.name else None, limit, where
        )

    def check_all(self, on_progress: Callable[[int], None] | None = None) -> Check:
        """Visit every partition, near and far, and move messages behind a seal to now.

        The check deletes purged messages, however far their due, and messages whose end the history
        records, and frees keys without messages. It corrects the totals, which may miss counts of
        processes that crashed. While other processes count, it waits for their totals, 3 s at most,
        and counts again, twice at most. If a node was away for longer than gc_grace, connect with
        `consistency=all` first.

        Args:
            on_progress: Called with the count of partitions that were visited so far.
        """
        return self._mender.check(lambda: self._census.visit(on_progress))

    def close(self) -> None:
        """Release the leases of `receive`, and store the totals. Idempotent."""
        locks.refuse_within()
        if self._dead is not None:
            self._dead.close()
        self._receiver.close()
        self._home.close()

    # Details --------------------------------------------------------------------------------------

    def _pause(self, *, paused: bool, **names_of: str | None) -> None:
        given = {of: named for of, named in names_of.items() if named is not None}
        if len(given) > 1:
            raise UsageError(f"give {' or '.join(names_of)}, one of them.")

        def changed(now: settings.Settings) -> settings.Settings:
            if not given:
                return replace(now, paused=paused)
            [(of, named)] = given.items()
            if of == "group":
                groups = with_pause(now.group_limits, named, paused=paused)
                return replace(now, group_limits=groups)
            now_ms = self._home.clock.now_ms()
            limit = with_pause_of(now.queue_limit, of, named, now_ms, paused=paused)
            return replace(now, queue_limit=limit)

        self._home.register.change(lambda now: [changed(now)])

    def _end_holds(self, group: str) -> bool:
        """Let the messages that hold a group back be delivered at once; False if none does."""
        home = self._home
        found = [
            row
            for row in postponed(home.store, home.register, home.clock.now_ms(), group)
            if row.claim is None and not home.register.is_purged(row)
        ]
        now_ms = home.clock.now_ms()
        # What is delivered soon anyway may have begun by the time of the edit.
        long = [row for row in found if row.ready_ms >= now_ms + CLAIM_MARGIN_MS]
        self._settler.edit([(row, row._replace(not_before_ms=now_ms)) for row in long])
        return bool(found)

    def _by_id_or_key(
        self,
        records: Iterator[Record],
        name: str,
        since: Due | Duration | None,
        until: Due | Duration | None,
    ) -> Iterator[Record]:
        """The records of an id; if there are none, those of the message that has it as its key."""
        first = next(records, None)
        if first is not None:
            yield first
            yield from records
        elif (now := self.get(name)) is not None and now.id != name:
            yield from self._settler.ledger.asked(now.id, since, until)

    def _cancel_dead(self, row: Row) -> None:
        dead: Queue = self.dead
        dead.cancel(Message(row, 0, dead._home.register.signer))

    def _cancel_found(self, message_id: str) -> Answer:
        found = self.find(message_id)
        if found is None:
            return Answer.NOT_THERE
        if found.key is not None and not names.is_dead_queue(self.name):
            return self._keyed.cancel(found.key, found._row)
        return Answer.DONE if self._receipts.cancel(found) else Answer.NOT_THERE

    def _move_found(self, message_id: str, wanted: datetime) -> Answer:
        found = self.find(message_id)
        if found is None:
            return Answer.NOT_THERE
        if found.key is not None and not names.is_dead_queue(self.name):
            return self._keyed.move(found.key, wanted, None, found._row)
        if found.state.where is Where.RUNNING:
            return Answer.RUNNING
        try:
            self._receipts.move(found, due_ms(wanted))
        except StaleReceipt:
            return Answer.NOT_THERE
        return Answer.DONE

    def _target(self, to: Queue | str) -> QueueHome:
        """The home of a queue to which messages are forwarded."""
        if isinstance(to, Queue) and to._home.store is not self._home.store:
            raise UsageError(f"queue {to.name!r} is of another connection; give its name.")
        name = to.name if isinstance(to, Queue) else names.queue_name(to)
        if name == self.name:
            raise UsageError(
                f"messages of queue {name!r} cannot be forwarded to itself: give another queue, or "
                f"let them be due at another time by move()."
            )
        return self._home.target(name)

    def _target_of(self, target: QueueHome | None, row: Row) -> QueueHome | None:
        """The queue that a row moves to; without a target, the queue that its message died in."""
        if row.claim is not None and not self._receipts.is_over(row, margin_ms=0):
            return None
        if target is not None:
            return target
        name = died_in(row)
        return None if name is None or name == self.name else self._home.target(name)

    def _forward_found(self, message_id: str, target: QueueHome) -> Answer:
        found = self.find(message_id)
        if found is None:
            return Answer.NOT_THERE
        if found.state.where is Where.RUNNING:
            return Answer.RUNNING
        forwarder = Forwarder(self._home)
        moved = forwarder.move([found._row], target)
        if moved.taken:
            raise forwarder.key_taken(list(moved.taken.values()), target)
        return Answer.DONE if moved.done else Answer.NOT_THERE

    def _forward_all(
        self,
        target_of: Callable[[Row], QueueHome | None],
        limit: int | None,
        where: Callable[[Message], bool] | None,
    ) -> int:
        """Move messages to the queues that `target_of` names, as `forward` and `redrive` do."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise BadSetting(f"limit must be 1 or more, or None for all, not {shown(limit)}.")
        if where is not None:
            check_function(where, "where")
        register = self._home.register
        register.refresh(force=True)

        def wanted(row: Row) -> QueueHome | None:
            target = target_of(row)
            if target is None or where is None:
                return target
            return target if _is_wanted(Message(row, 0, register.signer), where) else None

        count = Forwarder(self._home).run(self._rows(), limit, wanted)
        if names.is_dead_queue(self.name):
            # Consumers do this for the lanes that they read, but no consumer reads dead letters.
            forget_empty(self._home.store, register, self._home.clock.now_ms())
        return count

    def _whereabouts(self) -> Whereabouts:
        return Whereabouts(self._home)

    def _settle(
        self, delivery: Several, outcome: Outcome, partial: bool
    ) -> list[ReceiptError | None] | None:
        many = _each_delivery(delivery, partial)
        answers = self._receipts.settle(many, outcome, is_partial=partial)
        return answers if partial else None

    def _put_back(self, message: Message) -> None:
        """Let a message whose caller has gone be delivered at once, without a used attempt."""
        # Settle without a margin: a claim that is nearly over must not cost an attempt either.
        self._receipts.settle([message], Outcome(Fate.SNOOZE, 0), margin_ms=0)

    def _firer(self, members: Callable[[], Membership | None]) -> Firer:
        return Firer(self._home, members, self._receiver.on_put)

    def _store_totals(self) -> None:
        self._home.stats.store()
        self._receiver.store_stats()

    def _rows(self) -> Iterator[list[Row]]:
        """All rows of the queue, oldest minute first, in pages."""
        return self._census.pages()


def _check_one(*given: object) -> None:
    """Raise unless exactly one value is given; the last argument names them for the error."""
    *some, names_of = given
    if sum(one is not None for one in some) != 1:
        raise UsageError(f"give {names_of}, one of them.")


def _each(named: Iterable[str] | None, command: Callable[[str], Answer]) -> dict[str, Answer]:
    """The answers to a command for each name; a name that is given twice has one answer."""
    answers: dict[str, Answer] = {}
    if isinstance(named, str):
        raise UsageError(f"give a list of names, not {shown(named)}.")
    for name in dict.fromkeys(named or ()):
        said = begun(f"{len(answers):,} of the messages are answered for")
        with said if answers else nullcontext():
            answers[name] = command(name)
    return answers


def received(
    count: int, visibility: Duration, wait: Duration, per_group: int
) -> tuple[int, int, int, int]:
    """The arguments of `receive`, checked, and with times in milliseconds.

    Raises:
        BadSetting, BadTime: If an argument cannot be used.
    """
    if type(count) is not int or not 1 <= count <= RECEIVE_MAX:
        raise BadSetting(f"max must be 1 to {RECEIVE_MAX}, not {shown(count)}.")
    if type(per_group) is not int or not 1 <= per_group <= RECEIVE_MAX:
        raise BadSetting(f"per_group must be 1 to {RECEIVE_MAX:,}, not {shown(per_group)}.")
    wait_ms = duration_ms(wait, name="wait")
    if wait_ms > WAIT_MS_MAX:
        raise BadTime(f"wait must be at most 1h, not {shown(wait)}.")
    return count, duration_ms(visibility, name="visibility"), wait_ms, per_group


def _each_delivery(given: Several, partial: bool) -> list[Message | str]:
    """The given deliveries as a list: one delivery or, if `partial`, any number."""
    if isinstance(given, Message | str | bytes) or not isinstance(given, Iterable):
        return [given]
    if not partial:
        raise BadReceipt("give one message or its receipt; several only with partial=True.")
    return list(given)


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str):
        raise UsageError(f"reason must be text, not {type(reason).__name__}.")


def _is_wanted(message: Message, where: Callable[[Message], bool]) -> bool:
    """True if `where` chooses a message. A coroutine, which is true in Python, is an error."""
    answer = where(message)
    if left := undone(answer):
        raise BadSetting(f"where returned {left}.")
    return bool(answer)
