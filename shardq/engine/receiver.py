"""`receive` for callers elsewhere: rows are claimed durably before they are returned.

```
 callers ──► line ─► step the engine ─► claim due rows, for all in line together (`claims.py`)
               ▲          │           ─► answer each with its own messages
               └── wait ◄─┘ nothing due: the stepper serves them later
```

The engine takes leases on demand. The stepper keeps them between calls, and releases them 5 s after
the last call. Without a stepper each caller steps, and waits for the next step.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from shardq import locks
from shardq.engine.engine import Engine
from shardq.engine.handing.caller import ReceiveCall
from shardq.engine.handing.claims import Claims
from shardq.errors import (
    ReceiptError,
    ShardqError,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
    shown,
)
from shardq.lifecycle.hub import BATCH_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.news import Awaited
    from shardq.engine.stepper import Stepper
    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Message
    from shardq.model.shard import Position
    from shardq.records.membership import Membership
    from shardq.records.together import Together

_PREFETCH = 1_000
_LINGER_US = 5_000_000
"""How long leases are kept for the next caller; a lease that lapses is taken over with care."""
_CATCH_UP_US = 1_000_000
"""How long a call continues to step while lanes are left unread and too few rows are ready for
it."""
_KEEP_S = 0.5
_JOIN_S = 1.0
"""How long to wait for the thread that fires schedules to end."""
_NEAR_S = 0.005
_NEXT_S, _NEXT_US = 0.001, 2_000
"""A message that is put without a delay is due in the next millisecond; a call without a wait still
waits for that."""
_REST_S = 10.0
"""How long until the next turn of a queue at rest, at most."""
_SHARE_S = 0.05
"""How often the stepper steps while rows wait that other members may take."""
_GONE_S = 0.05
"""How soon after an error of the store the next try puts back messages of callers that have
gone."""

log = logging.getLogger(__name__)


class QueueFirer(Protocol):
    """Fires the queue's schedules while there are callers."""

    def follow(self) -> None:
        """Fire in a thread until `stop`."""

    def step(self) -> float:
        """Fire the schedules that are due; returns seconds until the next step is needed."""

    def stop(self) -> None:
        """Ask the firing thread to end."""

    def join(self, seconds: float) -> None:
        """Wait for the firing thread to end, for some seconds at most."""


class Receiver:
    """Receives messages of one queue for the callers of this process.

    Args:
        stepper: Steps the engine while callers wait, and keeps and releases the leases between
            calls; None if each caller steps, and `close` must be called.
        make_firer: Makes the object that fires the queue's schedules, once the queue has some.
            Called with a function that returns the queue's members, or None while there is no
            engine.
        put_back: Puts a claimed message back at once, without the use of an attempt.
    """

    def __init__(
        self,
        home: QueueHome,
        *,
        stepper: Stepper | None,
        make_firer: Callable[[Callable[[], Membership | None]], QueueFirer],
        put_back: Callable[[Message], object],
    ) -> None:
        self._home = home
        self._clock = home.clock
        self._register = home.register
        self._stepper = stepper
        self._put_back = put_back
        self._lock = locks.new()
        self._make_firer = make_firer
        self._firer: QueueFirer | None = None
        self._engine: Engine | None = None
        self._was_interrupted = False
        self._called_us = 0
        self._step_us = 0
        self._fired_s = _KEEP_S
        """Seconds from a step of the firer to its next one."""
        self._line: dict[ReceiveCall, None] = {}
        """The waiting callers, in order. Two threads may take a caller out of the line: the thread
        that claims for it, and its own thread when it leaves. `pop` decides which thread was
        first."""
        self._claiming = False
        self._unwanted: list[Message] = []
        """Messages that were claimed for callers that have gone."""
        locks.in_child(self, Receiver._begin_child)

    # Calls ----------------------------------------------------------------------------------------

    @property
    def has_stepper(self) -> bool:
        """True if a stepper steps the engine, so that callers need not."""
        return self._stepper is not None

    def receive(
        self,
        count: int,
        visibility_ms: int,
        wait_ms: int,
        per_group: int = 1,
        *,
        is_lasting: bool = False,
    ) -> list[Message]:
        """Claim up to `count` due messages for `visibility_ms`; wait for the first one.

        Args:
            count: The most messages.
            visibility_ms: How long the messages are the caller's.
            wait_ms: How long to wait.
            per_group: The most messages of one group.
            is_lasting: True if the receipts of the messages are to last.
        """
        clock = self._clock
        caller = ReceiveCall(
            count, visibility_ms, clock.boot_us(), per_group=per_group, is_lasting=is_lasting
        )
        until_us = caller.since_us + wait_ms * 1_000
        delay = 0.0
        locks.refuse_to_wait(self._lock)
        self._line[caller] = None
        try:
            while not (caller.is_over or caller.is_looked):
                with self._lock:
                    # Another thread may have looked for this caller meanwhile.
                    if not (caller.is_over or caller.is_looked):
                        delay = self._serve()
            if not caller.is_over and self._due_s() <= _NEXT_S:
                until_us = max(until_us, clock.boot_us() + _NEXT_US)
            while not caller.is_over and (left_us := until_us - clock.boot_us()) > 0:
                if self._stepper is None:
                    self._wait_for_step(min(delay, left_us / 1e6))
                    locks.refuse_to_wait(self._lock)
                    with self._lock:
                        if not caller.is_over:
                            delay = self._serve()
                elif (near_s := self._due_s()) < _NEAR_S:
                    # The row comes due before the stepper's thread would wake, as after a put that
                    # is due now.
                    caller.wait(clock, min(near_s, left_us / 1e6))
                    with self._lock:
                        if not caller.is_over:
                            self._serve(is_due=True)
                else:
                    caller.wait(clock, left_us / 1e6)
            # A claim for the caller may be under way: it answers the caller even if it claims no
            # row.
            caller.is_brief = True
            if not caller.is_over and not self.leave(caller):
                caller.wait(clock, None)
        except BaseException:
            self.abandon(caller)
            raise
        return caller.answer()

    def ask(self, caller: ReceiveCall, *, is_patient: bool = False) -> None:
        """Put a caller in line; its `on_over` is called with the answer, unless it leaves before.

        Args:
            caller: The caller.
            is_patient: True if the caller waits for longer than the pause between two reads for all
                queues at rest.

        Raises:
            ShardqError: If no thread can be started.
        """
        # Copy the line, as another thread may take callers out meanwhile.
        first = list(self._line)[:1]
        # If a look found no rows for a caller that still waits, the next turn is set already. Reads
        # for all queues at rest, or else the next turn, look for this caller too.
        is_at_rest = caller.is_looked = is_patient and any(one.is_looked for one in first)
        self._line[caller] = None
        self._called_us = self._clock.boot_us()
        self._add_to_stepper(_REST_S if is_at_rest else 0.0)

    def leave(self, caller: ReceiveCall) -> bool:
        """Take a caller out of line; False if the caller has its answer, or is about to get it."""
        return self._line.pop(caller, caller) is None

    def abandon(self, caller: ReceiveCall) -> None:
        """Take a caller out that has gone, and put back the messages that it got or still gets."""
        if not self.leave(caller):
            self._unwanted += caller.abandon()
            if self._unwanted:
                with suppress(ShardqError):
                    # If this fails, the messages are due again when their visibility ends.
                    self._add_to_stepper(0.0)

    def on_put(self, due_ms: int) -> None:
        """Called after this process has put a message with this due."""
        engine = self._engine
        if engine is None:
            return
        if self._line or self._stepper is None:
            engine.news.on_put(due_ms)
        else:
            # Nobody waits for the message: the next caller steps.
            engine.news.note_put(due_ms)

    def looks_at(self, position: Position, is_gone: bool) -> bool:
        """Have the next step reread a row of a group that was settled or edited just now.

        Args:
            position: Where the row is.
            is_gone: True if the row was deleted.

        Returns:
            True if this receiver owns the row's lane; False if the lane's owner needs a note.
        """
        engine = self._engine
        if engine is None or not engine.groups.look_at(position, is_gone=is_gone):
            return False
        if self._line or self._stepper is None:
            engine.news.wake()
        else:
            # The process that has settled the row is likely to receive at once, which steps the
            # engine.
            self._stepper.within(self, _SHARE_S)
        return True

    def store_stats(self) -> None:
        """Store the counts since the last turn.

        Raises:
            StoreUnavailable, StoreTimeout: These counts are stored with the next ones.
        """
        engine = self._engine
        if engine is not None:
            engine.home.stats.store()

    def close(self) -> None:
        """Answer waiting callers with no messages, and release the leases. Idempotent."""
        locks.refuse_within()
        with self._lock:
            self._close()

    def drop(self) -> None:
        """End at once, as the next step would, because this process has dropped the queue."""
        locks.refuse_within()
        with self._lock:
            self._end(UnknownQueue(f"queue {self._register.name!r} has been dropped."))

    # Steps ----------------------------------------------------------------------------------------

    def turn(self) -> float | None:
        """Serve the callers in line, and keep the leases; release them 5 s after the last call."""
        with self._lock:
            engine = self._engine
            try:
                if self._line:
                    return self._next_s(self._serve(is_due=True))
                self._return_unwanted()
                if engine is None:
                    return None
                if self._clock.boot_us() - self._called_us > _LINGER_US:
                    # A caller that arrives from now on makes another engine.
                    self._release()
                    return None
                self._step(engine)
                return _SHARE_S if engine.sharing.is_awake else min(self._fired_s, _KEEP_S)
            except (StoreUnavailable, StoreTimeout) as error:
                return self._back_off(error)
            except ShardqError as error:
                if engine is not None and engine.leases.held():
                    name = self._register.name
                    log.warning("queue %s: leases are no longer kept: %s", name, error)
                self._end(error)
                return None
            except BaseException as fault:
                self._end_by(fault)
                raise

    def on_change(self) -> bool:
        """Note that another process has written to the store; True if callers wait."""
        engine = self._engine
        if engine is not None:
            engine.news.on_change()
        return bool(self._line)

    def awaited(self) -> Awaited | None:
        """The place of the rows that callers wait for, if the queue is at rest; else None."""
        engine = self._engine
        return engine.awaited() if engine is not None and self._line else None

    def take_in(self, noted: Together) -> bool:
        """Take in the queue's record and heartbeats, just read; True if a turn must follow."""
        if not locks.is_free(self._lock):
            # Do not wait for the caller that steps now: it may take long, and this thread serves
            # other queues too.
            return True
        with self._lock:
            engine = self._engine
            return engine is None or engine.take_in(noted)

    def wake(self) -> None:
        """Let the next turn step at once, because a read for parts at rest has found rows."""
        engine = self._engine
        if engine is not None:
            engine.news.wake()

    def _serve(self, *, is_due: bool = False) -> float:
        """Step, and claim due rows for the callers in line; returns seconds until the next step.

        If the step fails, all callers in line get its error as their answer.

        Args:
            is_due: True when a turn is taken or a row comes due; False when a caller steps.
        """
        looking = list(self._line)
        try:
            engine, delay = self._look(looking, is_due=is_due)
        except (StoreUnavailable, StoreTimeout) as error:
            self._fail(error)
            # The next caller tries again at once, but the stepper later.
            return self._back_off(error) if is_due else _KEEP_S
        except ShardqError as error:
            self._fail(error)
            return 0.0
        except BaseException:
            # For example by Ctrl-C. Nobody has the rows that were taken, so the next call makes
            # another engine.
            self._was_interrupted = True
            raise
        if not engine.reader.is_lagging():
            is_near = self._due_s() <= _NEXT_S
            for caller in looking:
                may_end = caller.is_brief and (caller.is_looked or not is_near)
                caller.is_looked = True
                if may_end and self.leave(caller):
                    caller.give([])
        if self._stepper is not None and not is_due:
            if engine.sharing.is_awake:
                # Rows that are left go to other members, unless another call takes them.
                self._stepper.within(self, _SHARE_S)
            if self._line:
                self._stepper.within(self, min(delay, self._due_s()))
        return delay

    def _look(self, looking: Sequence[ReceiveCall], *, is_due: bool) -> tuple[Engine, float]:
        """Step if needed, and claim; returns the engine, which may be a new one, and its delay."""
        while True:
            engine = self._wake_engine()
            try:
                delay = self._step_where_needed(engine, looking, is_due=is_due)
                self._claim_for_line(engine)
            except UnknownQueue:
                self._discard(engine)
                if self._register.settings.dropped:
                    raise
                # The queue was made anew since: receive from the new one.
                continue
            finally:
                # A claim may take seconds: the time without a call counts from its end.
                self._called_us = self._clock.boot_us()
            return engine, delay

    def _claim_for_line(self, engine: Engine) -> None:
        """Claim due rows, batch by batch, while there are both rows and waiting callers."""
        claims = Claims(engine)
        while self._line and engine.ready.has(1):
            taken: dict[ReceiveCall, list[Delivery]] = {}
            self._claiming = True
            try:
                claims.take(self._line, taken)
                if not taken:
                    return
                self._unwanted += claims.claim(taken)
            finally:
                self._claiming = False
                for caller in taken:
                    # The claim was interrupted, or other members had its rows: the caller still
                    # waits.
                    if not (caller.is_over or caller.is_gone):
                        self._line[caller] = None

    def _step_where_needed(
        self, engine: Engine, looking: Sequence[ReceiveCall], *, is_due: bool
    ) -> float:
        """Step, unless no step is due and enough rows are ready; returns seconds to the next."""
        self._return_unwanted()
        left_us = self._step_us - self._clock.boot_us()
        wanted = min(sum(caller.count for caller in looking), BATCH_ROWS)
        has_enough = engine.ready.has(wanted)
        is_regular = is_due and all(one.is_looked for one in looking)
        # No step is needed if enough rows are ready, or if a put woke this turn and another thread
        # has stepped for it meanwhile.
        if left_us > 0 and (has_enough or (is_regular and not engine.news.is_there)):
            return left_us / 1e6
        until_us = self._clock.boot_us() + _CATCH_UP_US
        delay = self._step(engine, is_regular=is_regular)
        # Step on: a call without a wait would miss the rows of lanes that this step had no time
        # for.
        while (
            engine.reader.is_lagging()
            and not engine.ready.has(wanted)
            and self._clock.boot_us() < until_us
        ):
            delay = self._step(engine)
        return delay

    def _step(self, engine: Engine, *, is_regular: bool = False) -> float:
        if self._stepper is None:
            engine.news.take()
        else:
            self._stepper.prepare(self, engine.news, is_regular=is_regular)
        self._fired_s = self._fire()
        delay = min(self._fired_s, engine.step())
        self._step_us = self._clock.boot_us() + round(delay * 1e6)
        return delay

    def _next_s(self, delay: float) -> float:
        """Seconds until the next turn: until the next step, or the next due if that is sooner."""
        return min(delay, self._due_s()) if self._line else delay

    def _due_s(self) -> float:
        """Seconds until the next row in memory comes due; infinite without rows."""
        engine = self._engine
        next_ms = None if engine is None else engine.ready.next_due_ms()
        if next_ms is None:
            return math.inf
        return max(0.0, next_ms / 1e3 - self._clock.now_us() / 1e6)

    def _wait_for_step(self, seconds: float) -> None:
        engine = self._engine
        if engine is not None and (delay := self._next_s(seconds)):
            engine.news.wait(delay)

    def _fire(self) -> float:
        """Fire the queue's schedules, if it has any; returns the firer's delay in seconds."""
        if self._firer is None:
            if not self._register.settings.schedules_used:
                return math.inf
            self._firer = self._make_firer(self._members)
        if self._stepper is None:
            return self._firer.step()
        # Fire in another thread: a user's trigger may hang, and the stepper serves other queues.
        self._firer.follow()
        return math.inf

    def _members(self) -> Membership | None:
        return None if self._engine is None else self._engine.membership

    def _return_unwanted(self) -> None:
        """Put back the messages that were claimed for callers that have gone."""
        while self._unwanted:
            message = self._unwanted.pop()
            try:
                self._put_back(message)
            except ReceiptError:
                # The message was settled, or will be delivered again anyway.
                continue
            except (StoreUnavailable, StoreTimeout):
                self._unwanted.append(message)
                raise

    def _back_off(self, error: StoreUnavailable | StoreTimeout) -> float:
        return _GONE_S if self._engine is None else self._engine.news.back_off(error)

    def _fail(self, error: ShardqError) -> None:
        for caller in list(self._line):
            if self.leave(caller):
                caller.fail(error)

    def _end(self, error: ShardqError) -> None:
        """Fail the callers in line by a permanent error; the next caller makes a new engine."""
        self._fail(error)
        engine = self._engine
        self._was_interrupted = False
        if isinstance(error, UnknownQueue) and engine is not None:
            self._discard(engine)
        elif engine is not None:
            self._engine = None
            engine.let_go()

    def _end_by(self, fault: BaseException) -> None:
        """End a turn by an unforeseen error, which Python's threading prints."""
        error = ShardqError(
            f"receiving from queue {self._register.name!r} ended by a fault of its own, "
            f"{shown(fault)}; call receive() again."
        )
        error.__cause__ = fault
        log.error("%s", error)
        self._end(error)

    def _close(self) -> None:
        if self._stepper is not None:
            # Remove it first: a caller already in line is answered below; a later caller adds the
            # stepper again.
            self._stepper.remove(self)
        for caller in list(self._line):
            if self.leave(caller):
                caller.give([])
        with suppress(StoreUnavailable, StoreTimeout):
            self._return_unwanted()
        self._release()

    def _release(self) -> None:
        """Release the leases, and stop firing schedules, until the next call."""
        engine, self._engine = self._engine, None
        firer, self._firer = self._firer, None
        if firer is not None:
            firer.stop()
            firer.join(_JOIN_S)
        if engine is not None:
            engine.close()

    def _discard(self, engine: Engine) -> None:
        """Close an engine that is not used any more; the next call makes a new one."""
        self._engine = None
        try:
            engine.close()
        except (StoreUnavailable, StoreTimeout) as error:
            log.warning("queue %s: leases are not released: %s", self._register.name, error)

    def _begin_child(self) -> None:
        """Leave the engine and its leases to the parent, and fail the child's waiting callers."""
        self._engine, self._was_interrupted = None, False
        self._firer = None
        line, self._line = self._line, {}
        self._unwanted = []
        for caller in line:
            caller.fail(
                UsageError(
                    f"this call waited for queue {self._register.name!r} when its process was "
                    f"forked; in the child, call receive() again."
                )
            )

    def _wake_engine(self) -> Engine:
        self._called_us = self._clock.boot_us()
        if self._engine is not None and self._was_interrupted:
            self._was_interrupted = False
            self._discard(self._engine)
        if self._engine is None:
            self._engine = Engine(
                self._home.of_member(),
                prefetch=_PREFETCH,
                threads=0,
                caller_away_us=self._caller_away_us,
                callers_since=self._callers_since,
                on_wake=None if self._stepper is None else self._wake_stepper,
            )
            self._step_us = 0
            try:
                self._add_to_stepper(_KEEP_S)
            except ShardqError:
                # Without the stepper, leases would lapse between calls, unreleased. The next call
                # tries again.
                self._engine = None
                raise
        return self._engine

    def _add_to_stepper(self, seconds: float) -> None:
        """Let the stepper take a turn of this receiver within some seconds."""
        if self._stepper is None:
            return
        try:
            self._stepper.add(self, seconds)
        except RuntimeError as error:
            raise ShardqError(
                f"queue {self._register.name!r} cannot be read: {error}; raise what limits this "
                f"process (ulimit -u, ulimit -v), and try again."
            ) from error

    def _wake_stepper(self, seconds: float) -> None:
        if self._stepper is not None:
            self._stepper.within(self, seconds)

    def _caller_away_us(self) -> int:
        # Return at least 1, as 0 means that a caller waits: a call may have ended in this very
        # microsecond.
        is_there = self._line or self._claiming
        return 0 if is_there else max(self._clock.boot_us() - self._called_us, 1)

    def _callers_since(self) -> list[int]:
        return [caller.since_us for caller in list(self._line)]
