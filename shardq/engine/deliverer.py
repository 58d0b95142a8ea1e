"""Gives deliveries to the handler, one after another in each thread, and decides their outcomes.

```
 delivery ──► lease over? ─────────────────► given up
          ──► attempts spent? ─────────────► buried, not handed out
          ──► suspect? ── waits until no other suspect runs
          ──► key? ── refused to begin ────► cancelled, given up, or left
          ──► doubtful? ── care says no ───► given up, or left
          ──► handler ──┬─ returns ────────► acked
                        ├─ raises ─────────► retried, snoozed, buried; logged once
                        └─ holds it ───────► decided by the end of its `Ending`, now or later
```
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.handing.call import HandlerCall, passes
from shardq.engine.handing.care import Care
from shardq.engine.handing.outcome import ACKED, GIVEN_UP, outcome_of
from shardq.errors import StoreCorrupt, UsageError
from shardq.lifecycle.fate import Fate, Outcome
from shardq.logs import handled
from shardq.model.message import Message, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.engine.engine import Engine
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.handing.starts import Start
    from shardq.engine.storing.ending import Ending
    from shardq.model.message import Row

log = logging.getLogger(__name__)

_POLL_S = 0.05
_TURN_US = 30_000_000
"""How long a suspect waits for another suspect, which may be innocent and run for long."""
_INTERRUPTED = Outcome(Fate.SNOOZE, 0)
_CUT_OFF = Outcome(Fate.RETRY, None, "its consumer ended by a fault of its own")
"""The outcome of a delivery whose consumer ended by a fault of its own.

The delivery counts as an attempt, so that a message that ends every consumer is buried at last.
"""


class Deliverer:
    """Delivers to one handler. From any thread.

    Args:
        engine: The engine that hands out rows and stores outcomes.
        handler: The user's handler.
        is_stopping: Returns True once no delivery is to begin any more.
        judge: Returns the outcome of a delivery whose handler raised, or that ended with an error.

    Attributes:
        is_threaded: True if a thread steps the engine; False if a caller does.
    """

    def __init__(
        self,
        engine: Engine,
        handler: Callable[[Message], object],
        *,
        is_stopping: Callable[[], bool],
        judge: Callable[[Message, BaseException], Outcome],
    ) -> None:
        self._clock = engine.home.clock
        self._register = engine.home.register
        self._engine = engine
        self._call = HandlerCall(handler)
        self._judge = judge
        self._endings = engine.outbox.endings
        self._held = self._endings.held
        self._here: dict[int, Delivery] = {}
        """Thread -> the delivery whose handler the thread called last."""
        self._is_stopping = is_stopping
        self._care = Care(engine.home, engine.memory, is_stopping=is_stopping)
        self._lock = locks.new()
        self._suspect: Delivery | None = None
        """The suspect that runs now: a delivery of a message that may have killed a process
        before."""
        self.is_threaded = False

    def deliver(self, one: Delivery) -> None:
        """Call the handler for a delivery that may begin; the outcome goes to the outbox."""
        engine, row = self._engine, one.row
        try:
            if one.begun_us >= one.lease.deadline_us:
                engine.outbox.finish(one, GIVEN_UP)
                return
            if engine.outbox.is_over(row):
                # A message that was cancelled by its key must not become a dead one.
                if row.key is None or engine.starts.begin(one) is not None:
                    engine.outbox.end(one)
                return
            if one.careful and _is_suspect(row):
                self._wait_for_turn(one)
            is_sure = not one.careful and row.claim is None and row.key is None
            if not (one.run(one.begun_us) if is_sure else self._may_begin(one)):
                return
            outcome = self._handle(one)
            if outcome is None:
                self._await_end(one)
            elif one.careful:
                self._settle_carefully(one, outcome)
            else:
                engine.outbox.finish(one, outcome)
        except BaseException as error:
            self._cut_off(one, _INTERRUPTED if passes(error) else _CUT_OFF)
            raise
        finally:
            if self._suspect is one:
                self._suspect = None

    def hold(self) -> Ending:
        """Hold the delivery that this thread's handler runs: the caller ends it, from any thread.

        The handler's return does not end the delivery any more; an error that the handler raises
        before the caller's end still does. Once the handler has returned, its thread takes the next
        delivery. In two cases the thread waits for the end of the held one first: after another
        member's crash, and if a caller steps the consumer and `Endings.finish` is not set.

        Raises:
            UsageError: If no handler of the consumer runs in this thread.
        """
        one = self._here.get(threading.get_ident())
        ending = None if one is None else self._held.get(one)
        if one is None or one.has_ended or (ending is not None and ending.has_returned):
            raise UsageError("a delivery is held by its handler, in the thread that runs that.")
        return self._endings.hold(one, self._conclude)

    def _wait_for_turn(self, one: Delivery) -> None:
        """Wait until no other suspect runs: if this one kills the process, no other dies with it.

        Wait for half a minute at most, never for a parked suspect, and not once the consumer stops.
        """
        until_us = self._clock.boot_us() + _TURN_US
        while not self._is_stopping() and self._clock.boot_us() < until_us:
            with self._lock:
                other = self._suspect
                if other is None or other.is_claim:
                    self._suspect = one
                    return
            self._clock.sleep(_POLL_S)

    def _may_begin(self, one: Delivery) -> bool:
        """True if a delivery may begin: its row has a key, or another member may have settled it.

        If the delivery is careful, its attempt is recorded.
        """
        engine, row = self._engine, one.row
        start: Start | None = None
        if row.key is not None:
            start = engine.starts.begin(one)
            if start is None:
                return False
        not_begun = self._care.begin(one) if one.doubtful else None
        now_us = self._clock.boot_us()
        if not_begun is None and now_us >= one.lease.deadline_us:
            # Recording the attempt may take long: another member may have leased the shard
            # meanwhile.
            not_begun = GIVEN_UP
        if not_begun is None and one.run(now_us):
            return True
        if start is not None:
            engine.starts.give_back([start])
        engine.outbox.finish(one, not_begun or GIVEN_UP)
        return False

    def _settle_carefully(self, one: Delivery, outcome: Outcome) -> None:
        """After another member's crash, store the outcome before the next row is handed out."""
        engine = self._engine
        # The engine's next step would store the outcome ten times as late, and many rows may have
        # come due while the lease of the crashed member ran out.
        is_stored = outcome.fate is Fate.ACK and engine.outbox.store_ack(one)
        engine.outbox.finish(one, outcome)
        if not is_stored or not self.is_threaded:
            self._await_settled(one)

    def _await_settled(self, one: Delivery) -> None:
        if not self.is_threaded:
            self._engine.flush()
            return
        settled = one.settled
        while settled is not None and not settled.wait(_POLL_S) and not self._is_stopping():
            pass

    def _handle(self, one: Delivery) -> Outcome | None:
        """Call the handler; returns the outcome, or None if the handler holds the delivery."""
        row = one.row
        watch = None if row.key is None else self._engine.starts.watch(row)
        message = Message(row, one.attempt, self._register.signer, watch)
        self._here[one.thread_id] = one
        left, error = self._call(message)
        if self._held and (ending := self._held.get(one)) is not None:
            if error is not None and not ending.end(error):
                kind = type(error).__name__
                log.info("message %s had ended when its handler raised %s", row.message_id, kind)
            ending.note_return()
            return None
        if error is not None:
            return self._judged(one, message, error)
        if left:
            outcome = Outcome(Fate.RETRY, None, f"the handler returned {left}.")
            self._engine.failures.note(one, outcome, level=logging.ERROR)
            return self._told(one, outcome)
        return ACKED if self._endings.on_end is None else self._told(one, ACKED)

    def _told(self, one: Delivery, outcome: Outcome, error: BaseException | None = None) -> Outcome:
        if (on_end := self._endings.on_end) is not None:
            on_end(one, outcome, error)
        return outcome

    def _judged(self, one: Delivery, message: Message, error: BaseException) -> Outcome:
        """The outcome of a delivery that ended with an error, or a request; logs a failure."""
        try:
            outcome = self._judge(message, error)
        except BaseException as fault:
            if passes(fault):
                raise
            if fault is not error:
                fault.__context__ = fault.__context__ or error
            outcome, error = outcome_of(fault), fault
        token = handled.set(message)
        try:
            self._engine.failures.note(one, outcome, error)
        finally:
            handled.reset(token)
        return self._told(one, outcome, error)

    # Held deliveries ------------------------------------------------------------------------------

    def _conclude(self, ending: Ending, error: BaseException | None) -> None:
        """Give the outcome of a held delivery that has ended to the outbox. From any thread."""
        one, outcome = ending.one, ACKED
        try:
            if error is not None:
                message = Message(one.row, one.attempt, self._register.signer)
                outcome = self._judged(one, message, error)
            else:
                self._told(one, outcome)
        except BaseException as fault:
            outcome = _INTERRUPTED if passes(fault) else _CUT_OFF
            raise
        finally:
            self._engine.outbox.finish(one, outcome)
            ending.conclude()

    def _await_end(self, one: Delivery) -> None:
        """Wait for the end of a held delivery, if this thread may not begin another before that."""
        if not one.careful and (self.is_threaded or self._endings.finish is not None):
            return
        ending = self._held.get(one)
        if ending is not None:
            ending.wait()
        if one.careful:
            self._await_settled(one)

    def _cut_off(self, one: Delivery, outcome: Outcome) -> None:
        """End a delivery whose thread was interrupted; otherwise it would seem to run for ever."""
        ending = self._held.get(one)
        if ending is None:
            if not one.has_ended:
                self._engine.outbox.finish(one, outcome)
            return
        ending.note_return()
        if ending.take():
            self._engine.outbox.finish(one, outcome)
            ending.conclude()


def _is_suspect(row: Row) -> bool:
    """True if a recorded attempt left no error, as when its process died during the attempt.

    A failed attempt leaves its error. A claim is no suspect: its handler may only have run for
    long.
    """
    if row.attempt == 0 or row.claim is not None:
        return False
    try:
        return failure_of(row) is None
    except StoreCorrupt:
        return True
