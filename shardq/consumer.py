"""Consumers: handler threads around an engine, and a graceful end.

```
 run, for each consumer:
  ├─ engine thread: step, wait, step ..         crew of handler threads: wait, handle, finish
  │    or the stepper's turns, if consumers share a crew
  └─ SIGTERM, SIGINT, SIGHUP: hand out no more ─► let handlers finish, until the deadline
     ─► park the other deliveries, uncounted
```
"""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from shardq import locks
from shardq.child import handled
from shardq.engine.deliverer import Deliverer
from shardq.engine.engine import Engine
from shardq.engine.handing.crew import Crew, Work
from shardq.engine.handing.handler import check_function, finished
from shardq.engine.handing.outcome import outcome_of
from shardq.engine.storing.deaths import Deaths
from shardq.errors import (
    BadSetting,
    SchemaError,
    ShardqError,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    UsageError,
    shown,
)
from shardq.inspection import scan
from shardq.inspection.mend import Upkeep
from shardq.model.times import Duration, duration_ms, duration_text
from shardq.queue import Queue
from shardq.records.membership import name_in_child
from shardq.schedules.firing.firer import Firer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from shardq.engine.news import Awaited
    from shardq.engine.storing.ending import Ending
    from shardq.lifecycle.fate import Outcome
    from shardq.model.message import Message, Row
    from shardq.records.together import Together
    from shardq.tracing import Traces

log = logging.getLogger(__name__)

THREADS = 8
THREADS_MAX = 512
PREFETCH = 12_000
"""Enough rows that reads, handlers and deletes of a full drain never wait for one another."""
PREFETCH_MAX = 100_000
DEADLINE = "25s"
_EMPTY_EVERY_US = 1_000_000
_SETTLE_EVERY_US = 1_000_000
"""How long one `step` delivers before it stores the outcomes, and how long it then calls `on_dead`.
Leases are renewed between steps."""
_LEAST_US = 1_000_000
"""How long a firing of schedules may take to end, even past the deadline."""
_POLL_S = 0.05
_HAND_OVER_US = 3_500_000
"""How long an end waits for the other members to take note of it. Each member that steps does so
within a second."""
_LAST_TRIES = 3
"""How often outcomes are offered to a store that has failed for good."""


class Consumer:
    """Delivers a queue's messages to a handler, each on time and at least once.

    Args:
        queue: The queue.
        handler: Called with each message, in one of the threads. When it returns, the message is
            acked. When it raises an error, the message is retried after a back-off, and buried
            after its last attempt; it may raise `Retry`, `Snooze` or `Bury` to choose otherwise.
            Each failure is logged as a warning with its traceback, but 10 in any second at most;
            the others are counted by kind. If the handler returns a future, the consumer waits for
            it. A handler that returns a coroutine or a generator, or returns `Snooze` instead of
            raising it, has not done its work: the attempt fails, and is logged as an error.
        threads: Handler threads, 1 to 512; 8 unless given.
        prefetch: The most rows that are read and not settled, 1 to 100,000; 12,000 unless given.
            After a crash, as many are delivered with care. Rows of groups do not count.
        isolated: True to deliver only from minutes that ended at least the queue's offset ago, so
            that producers and consumers never touch the same shard.
        deadline: How long a stop waits for running handlers before it parks their messages; 25 s
            unless given.
        member: A name for this consumer; made up if None.
        on_dead: Called with each message that dies in this consumer, as it is stored in the
            dead-letter queue: with its id, body, headers and attempts. The calls follow one another
            in a thread of their own; if `step` drives the consumer, at the end of a step. Each
            message is reported once at most: a crash, the deadline, or 10,000 waiting messages
            leave some unreported. The dead-letter queue has them all. Errors of `on_dead` are
            logged.

    Raises:
        BadSetting: If a number is out of bounds, or a function does not do its work when it is
            called, because it is async, a generator or a class.
    """

    _shared_crew: Crew | None = None
    """The handlers' threads, if consumers of several queues share them."""
    _is_traced_by_handler = False
    """True if the handler makes the spans of its runs, which may end after it returns."""

    def __init__(
        self,
        queue: Queue,
        handler: Callable[[Message], object],
        *,
        threads: int = THREADS,
        prefetch: int = PREFETCH,
        isolated: bool = False,
        deadline: Duration = DEADLINE,
        member: str | None = None,
        on_dead: Callable[[Message], object] | None = None,
    ) -> None:
        if not isinstance(queue, Queue):
            raise BadSetting(f"queue must be what db.queue(name) returns, not {shown(queue)}.")
        check_function(handler, "handler")
        if on_dead is not None:
            check_function(on_dead, "on_dead")
        check_threads(threads)
        if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
            raise BadSetting(f"prefetch must be 1 to {PREFETCH_MAX:,}, not {shown(prefetch)}.")
        self._queue = queue
        self._handler = handler
        self._deadline_us = duration_ms(deadline, name="deadline") * 1_000
        home = queue._home
        crew = self._shared_crew
        self._stepper = crew.stepper if crew else None
        self._clock = home.clock
        self._store = home.store
        self._register = home.register
        own = home.of_member(member)
        self._upkeep = Upkeep(home, own.member)
        self._firer = Firer(home, lambda: self._engine.membership, self._on_put)
        self._fire = self._firer.step
        self._engine = Engine(
            own,
            prefetch=prefetch,
            threads=threads,
            isolated=isolated,
            on_wake=None if self._stepper is None else self._wake_stepper,
            on_dead=None if on_dead is None else self._note_dead,
            put_rate=self._upkeep.put_rate,
            along=self._firer,
            waiters=None if crew is None else crew.waiters,
        )
        self._crew = crew or Crew(
            home.clock, threads, f"shardq-{queue.name}", waiters=self._engine.ready.waiters
        )
        self._begin_again = partial(
            Consumer.__init__,
            threads=threads,
            prefetch=prefetch,
            isolated=isolated,
            deadline=deadline,
            on_dead=on_dead,
        )
        self._given_member = member
        self._is_parents = False
        locks.in_child(self, Consumer._begin_child)
        # If several consumers share a crew, the stepper steps this engine, and this thread only
        # ends it.
        self._engine_thread = threading.Thread(
            target=self._run_engine if self._stepper is None else self._end_engine,
            name=f"shardq-{queue.name}",
            daemon=True,
        )
        self._ended, self._turns = threading.Event(), _Turns(self)
        self._due_us = 0
        """Time since boot at which the stepper's next step is due."""
        self._turned_us, self._turner = self._clock.boot_us(), 0
        """When the last turn began or ended, time since boot, and the thread that takes turns."""
        self._started = self._stepped = self._closed = self._is_begun = self._is_ending = False
        self._stopping = False
        """A plain flag, not an event of Python's: two handlers of signals that set an event could
        wait for each other."""
        self._deliverer = Deliverer(
            self._engine,
            handler if self._is_traced_by_handler else _traced(handler, home.traces),
            is_stopping=self._is_stopping,
            judge=self._judge,
        )
        self._deliver = self._deliverer.deliver
        self._crew.add(Work(self._engine.ready, self._deliver, self._end_by))
        self._deaths: Deaths | None = None
        if on_dead is not None:
            self._deaths = Deaths(self._clock, self._register, self._engine.failures, on_dead)
        self._was_empty = False
        self._hurried = threading.Event()
        self._error: ShardqError | None = None
        self._company: Sequence[Consumer] = ()
        """The consumers, this one included, that run until the queues of all of them are empty."""
        self._empty_checked_us = 0
        self._empty_after: int | None = None
        """How many deliveries of the company had begun when this queue was last found empty."""

    @property
    def member(self) -> str:
        """This consumer's name among the queue's members."""
        return self._engine.home.member

    def start(self) -> None:
        """Start the threads and return.

        Raises:
            UsageError: If the consumer was started or stepped before.
            ShardqError: If this process may not start so many threads; those that have started end.
        """
        self._check_unused()
        self._started = self._deliverer.is_threaded = True
        self._turned_us = self._clock.boot_us()
        try:
            self._engine.courier.start()
            if self._deaths is not None:
                self._deaths.start()
            if self._stepper is None:
                self._engine_thread.start()
            else:
                self._stepper.add(self._turns)
            self._is_begun = True
            self._crew.start()
        except RuntimeError as error:
            self.stop()
            if not self._is_begun:
                self._engine.courier.stop()
                if self._deaths is not None:
                    self._deaths.end(0, self._is_stopping)
            raise ShardqError(
                f"{self._said} cannot start its {len(self._crew.threads)} threads: {error}; lower "
                f"`threads`, or raise what limits this process (ulimit -u, ulimit -v)."
            ) from error
        # Add the listener last, because only `join` removes it, and a failed start is not joined.
        self._queue._home.listeners.append(self._engine.news.on_put)
        self._upkeep.start()

    def stop(self) -> None:
        """Ask for a graceful end and return; `join` waits for it. A signal handler may call it."""
        if self._is_parents:
            return
        self._stopping = True
        self._firer.stop()
        self._engine.ready.refuse()
        self._engine.news.wake()
        if self._stepper is not None and self._is_running and not self._is_ending:
            try:
                # Add it even if it is not stepped any more: its next turn begins its end.
                self._stepper.add(self._turns)
            except RuntimeError:
                self._begin_to_end()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the consumer has ended.

        Args:
            timeout: How many seconds to wait at most; None for as long as it takes.

        Raises:
            ShardqError: The error that ended the consumer, if it was not asked to end.
            UsageError: If the consumer was not started; if its own handler calls this, or a signal
                handler that has interrupted another call.
        """
        locks.refuse_within()
        if self._is_parents:
            return
        if not self._started:
            raise UsageError(f"{self._said} was not started; call start() or run() first.")
        if not self._is_begun:
            # `start` has raised the reason why the consumer could not be started.
            return
        is_on_dead = self._deaths is not None and self._deaths.is_here
        if is_on_dead or threading.current_thread() in self._crew.threads:
            caller = "on_dead" if is_on_dead else "a handler"
            raise UsageError(
                f"{caller} of {self._said} cannot wait for its end; let it call stop() alone."
            )
        if self._ended.wait(timeout):
            self._engine_thread.join()
            listeners = self._queue._home.listeners
            if self._engine.news.on_put in listeners:
                listeners.remove(self._engine.news.on_put)
            if self._error is not None:
                raise self._error

    def run(self, *, until_empty: bool = False) -> None:
        """Consume until SIGTERM, SIGINT, SIGHUP or `stop()`. `shardq.run` runs several consumers.

        A second signal ends the wait for running handlers.

        Args:
            until_empty: True to return also once the queue has no message, near or far. A paused
                queue that has messages must be resumed first.

        Raises:
            UsageError: If the consumer was started or stepped before.
            UnknownQueue: If the queue is dropped.
            ClockError: If the clock turns out to be too far off.
        """
        run(self, until_empty=until_empty)

    def step(self) -> float:
        """Run one turn in the calling thread: read, deliver for a second at most, settle.

        If a read fails, messages that were read before are delivered first.

        Returns:
            Seconds until the next turn is needed.

        Raises:
            StoreUnavailable, StoreTimeout: Nothing is lost; step again after a while.
            UnknownQueue: If the queue has been dropped.
            ClockError: If the clock is too far off.
            UsageError: If the consumer was started, or closed.
            KeyboardInterrupt: On Ctrl-C, if the main thread steps the consumer. The message whose
                handler was interrupted keeps its attempt.
        """
        self._check_own()
        if self._started:
            raise UsageError(f"{self._said} has threads of its own, which step it.")
        if self._closed:
            raise UsageError(f"{self._said} was closed; make another one.")
        self._stepped = True
        fired_s = self._fire()
        failure: StoreUnavailable | StoreTimeout | None = None
        delay = 0.0
        try:
            delay = self._engine.step()
        except (StoreUnavailable, StoreTimeout) as error:
            failure = error
        until_us = self._clock.boot_us() + _SETTLE_EVERY_US
        while (one := self._engine.ready.take()) is not None:
            self._deliver(one)
            if self._clock.boot_us() >= until_us:
                # Stop after a second: the handlers of all rows in memory may take longer than the
                # leases last, and rows whose acks are not stored by then would be delivered again.
                break
        if (finish := self._engine.outbox.endings.finish) is not None:
            finish()
        self._engine.flush()
        if self._deaths is not None:
            self._deaths.run(self._clock.boot_us() + _SETTLE_EVERY_US)
            if self._deaths.is_busy:
                delay = 0.0
        if failure is not None:
            raise failure
        delay = min(delay, fired_s)
        due_ms = self._engine.ready.next_due_ms()
        if due_ms is None:
            return delay
        return max(0.0, min(delay, (due_ms * 1_000 - self._clock.now_us()) / 1e6))

    def close(self) -> None:
        """End a consumer that was driven by `step`.

        Raises:
            UsageError: If the consumer's threads run, which `stop` and `join` end; or if a signal
                handler calls this that has interrupted another call.
        """
        locks.refuse_within()
        if self._is_parents:
            return
        if self._is_running:
            raise UsageError(f"{self._said} has threads of its own; end it by stop() and join().")
        self._closed = True
        if not self._started:
            deadline_us = self._clock.boot_us() + self._deadline_us
            try:
                self._engine.close()
            finally:
                if self._deaths is not None:
                    self._deaths.run(deadline_us)
                    self._deaths.end(0, self._is_stopping)
                self._engine.log_rest()

    def _is_stopping(self) -> bool:
        return self._stopping

    def _hung_us(self) -> int:
        """How long this consumer's loop has been stuck, microseconds; 0 if it is not stuck.

        Time in a call of the store does not count, because the store is at fault then, and a new
        process would wait for it as well. A consumer that has not begun, or is about to end, is not
        stuck.
        """
        if not self._is_running or self._stopping:
            return 0
        since_us, ended_us = self._queue._home.meter.store_calls_us(self._turner)
        now_us = self._clock.boot_us() if since_us is None else since_us
        return max(now_us - max(self._turned_us, ended_us), 0)

    def _judge(self, _message: Message, error: BaseException) -> Outcome:
        """The outcome of a delivery whose handler raised this error, or that ended with it."""
        return outcome_of(error)

    def _note_dead(self, row: Row) -> None:
        if self._deaths is not None:
            self._deaths.tell(row)

    def _on_put(self, due_ms: int) -> None:
        """Wake the engine for a message that a schedule has put."""
        self._engine.news.on_put(due_ms)

    def _hold(self) -> Ending:
        """See `Deliverer.hold`."""
        return self._deliverer.hold()

    @property
    def _said(self) -> str:
        """This consumer's name in errors and in the log."""
        return f"this consumer of queue {self._queue.name!r}"

    def _begin_child(self) -> None:
        """In a forked child, make a consumer that was not used anew; a used one is the parent's."""
        if self._started or self._stepped or self._closed:
            self._is_parents = True
            # Let a wait for the consumer's end return in the child: the parent's threads do not
            # exist there.
            self._stopping = True
            return
        member = self._given_member
        if member is not None:
            member = name_in_child(member)
        self._begin_again(self, self._queue, self._handler, member=member)

    def _check_own(self) -> None:
        if self._is_parents:
            raise UsageError(
                f"{self._said} is of the process that this one was forked from; make another one."
            )

    def _check_unused(self) -> None:
        """Raise `UsageError` if the consumer cannot be started."""
        self._check_own()
        if self._started:
            raise UsageError(f"{self._said} was started before; make another one to run again.")
        if self._closed:
            raise UsageError(f"{self._said} was closed; make another one.")
        if self._stepped:
            raise UsageError(f"{self._said} is driven by step(); make another one to start.")

    # Threads --------------------------------------------------------------------------------------

    @property
    def _is_running(self) -> bool:
        return self._is_begun and not self._ended.is_set()

    def _run_engine(self) -> None:
        try:
            while not self._stopping:
                if delay := self._turn():
                    self._engine.news.wait(delay)
        except ShardqError as error:
            self._error = self._error or error
        except BaseException as error:
            self._end_by(error)
            raise
        finally:
            self._end_engine()

    def _turn_by_stepper(self) -> float | None:
        """Step an engine that has no thread; returns None once it needs no more steps."""
        try:
            if not self._stopping:
                if self._stepper is not None:
                    news, due_us = self._engine.news, self._due_us
                    self._stepper.prepare(self._turns, news, is_regular=True, due_us=due_us)
                delay = self._turn()
                self._due_us = self._clock.boot_us() + round(delay * 1e6)
                if not self._stopping:
                    return delay
        except ShardqError as error:
            self._error = self._error or error
        except BaseException as error:
            self._end_by(error)
            self._begin_to_end()
            raise
        self._begin_to_end()
        return None

    def _turn(self) -> float:
        """Step the engine; returns seconds until the next step is needed."""
        self._turner = threading.get_ident()
        try:
            return self._one_turn()
        finally:
            self._turned_us = self._clock.boot_us()

    def _one_turn(self) -> float:
        if self._deaths is not None:
            self._deaths.watch()
        self._firer.follow()
        try:
            delay = self._engine.step()
            if self._company and self._are_empty():
                self._was_empty = self._stopping = True
        except (StoreUnavailable, StoreTimeout) as error:
            return self._engine.news.back_off(error)
        return delay

    def _begin_to_end(self) -> None:
        """End the consumer in a thread, because the stepper steps other consumers meanwhile."""
        self._stopping = True
        if self._is_ending:
            # A turn was asked for again after the end had begun.
            return
        self._is_ending = True
        try:
            self._engine_thread.start()
        except RuntimeError:
            self._end_engine()

    def _wake_stepper(self, seconds: float) -> None:
        if self._stepper is not None:
            self._stepper.within(self._turns, seconds)

    def _end_engine(self) -> None:
        engine = self._engine
        self._stopping = True
        self._upkeep.stop()
        self._firer.stop()
        engine.ready.stop()
        deadline_us = self._clock.boot_us() + self._deadline_us
        try:
            self._wind_up(deadline_us)
        except BaseException as error:
            self._end_by(error)
            raise
        finally:
            self._firer.join(max(deadline_us - self._clock.boot_us(), _LEAST_US) / 1e6)
            engine.courier.stop()
            if self._deaths is not None:
                self._deaths.end(deadline_us, self._hurried.is_set)
            engine.log_rest()
            self._ended.set()

    def _wind_up(self, deadline_us: int) -> None:
        """Let handlers finish, until the deadline; then settle, park and release."""
        engine = self._engine
        is_broken = isinstance(self._error, (StoreError, SchemaError))
        tries = _LAST_TRIES
        is_told = False
        if is_broken:
            log.info("%s ends once its handlers have ended: %s", self._said, self._error)
        if self._error is None and not self._was_empty:
            self._hand_over(min(deadline_us, self._clock.boot_us() + _HAND_OVER_US))
        engine.retire()
        while True:
            late = self._clock.boot_us() >= deadline_us or self._hurried.is_set()
            try:
                if engine.outbox.unended and not late:
                    engine.watch()
                    engine.leases.renew()
                    engine.outbox.park_overdue()
                    engine.flush(everything=True)
                    engine.release_idle()
                    engine.news.wait(_POLL_S)
                    continue
                if (left := engine.outbox.unended) and not is_told:
                    is_told = True
                    log.warning(
                        "%s ends, though %d of its deliveries still run: they are delivered again "
                        "in %s, without an attempt used",
                        self._said,
                        left,
                        duration_text(self._queue.settings.visibility_ms),
                    )
                engine.close()
            except ShardqError as error:
                if not isinstance(error, (StoreUnavailable, StoreTimeout)):
                    self._error, is_broken = self._error or error, True
                if is_broken:
                    # Wait for handlers even so: the store may accept their outcomes by then.
                    tries -= not engine.outbox.unended
                    if late or not tries:
                        self._give_up(self._error or error)
                        return
                    self._clock.sleep(_POLL_S)
                elif late:
                    log.warning("the end was not clean, some messages are redelivered: %s", error)
                    return
                else:
                    self._clock.sleep(engine.news.back_off(error))
            else:
                return

    def _hand_over(self, until_us: int) -> None:
        """Read on, and give due rows to other members, until all know that this member ends."""
        engine = self._engine
        if not engine.is_relied_on:
            return
        engine.begin_to_leave()
        try:
            while engine.is_relied_on and self._clock.boot_us() < until_us:
                try:
                    delay = engine.step()
                except (StoreUnavailable, StoreTimeout) as error:
                    # Moves of rows to other members that failed are repeated.
                    delay = engine.news.back_off(error)
                if self._hurried.is_set():
                    return
                engine.news.wait(min(delay, _POLL_S))
        except ShardqError as error:
            log.info("%s leaves its messages to others a little later: %s", self._said, error)

    def _give_up(self, error: ShardqError) -> None:
        """Release leases once the store has failed for good, without waiting for handlers."""
        if unstored := self._engine.let_go():
            error.add_note(f"Deliveries here whose outcome could not be stored: {unstored}.")

    def _are_empty(self) -> bool:
        """True if the queues of the whole company have no message, near or far.

        A handler may put into the queue of another consumer. So a queue that was found empty counts
        as empty only while no handler runs, and until the next delivery of any consumer begins.
        """
        outboxes = [one._engine.outbox for one in self._company]
        begun = sum(outbox.begun for outbox in outboxes)
        # Check this after the count: a delivery that began before the count either runs now, or has
        # made its puts.
        if any(outbox.running for outbox in outboxes) or not self._engine.is_quiet():
            return False
        # An `on_dead` may put too. The deliveries of the messages that it is called for have begun
        # before.
        if any(one._deaths is not None and one._deaths.is_busy for one in self._company):
            return False
        now_us = self._clock.boot_us()
        if now_us - self._empty_checked_us >= _EMPTY_EVERY_US:
            self._empty_checked_us = now_us
            self._empty_after = begun if self._is_empty() else None
        return all(one._empty_after == begun for one in self._company)

    def _is_empty(self) -> bool:
        now_ms = self._clock.now_ms()
        shards = scan.every_shard(self._store, self._register, now_ms)
        # Read the rows too: a shard with too many deleted rows counts as a shard with rows.
        pages = scan.pages(
            self._store,
            self._register.layout,
            scan.with_rows(self._store, shards),
            purpose="until empty",
            bodies=False,
        )
        if next(pages, None) is None:
            return True
        # Purged messages are deleted when they come due, which may be in years.
        is_purged = self._register.settings.purged_before_us > 0
        return is_purged and self._queue.depth(exact=True).total == 0

    def _end_by(self, fault: BaseException) -> None:
        """End because of an unforeseen error of a thread, which Python's threading prints."""
        error = ShardqError(f"{self._said} ended by a fault of its own, {shown(fault)}.")
        error.__cause__ = fault
        self._error = self._error or error
        self.stop()
        log.error("%s", error)


class _Turns:
    """The turns of a consumer that a stepper steps."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def turn(self) -> float | None:
        """Step; returns seconds until the next step is needed, None if none is needed any more."""
        return self._consumer._turn_by_stepper()

    def on_change(self) -> bool:
        """Note that another process has written; a step always follows."""
        self._consumer._engine.news.on_change()
        return True

    def awaited(self) -> Awaited | None:
        """The place of the news of a queue at rest; None if only a step finds its news."""
        return self._consumer._engine.awaited()

    def take_in(self, noted: Together) -> bool:
        """Take in the queue's record and heartbeats, just read; True if a turn must follow."""
        return self._consumer._engine.take_in(noted)

    def wake(self) -> None:
        """Let the next step begin at once, because rows were found at the awaited place."""
        self._consumer._engine.news.wake()


def _traced(
    handler: Callable[[Message], object], traces: Traces | None
) -> Callable[[Message], object]:
    """The handler with a span around each run; the handler itself if nothing is traced."""
    if traces is None:
        return handler

    def traced(message: Message) -> object:
        with traces.run(message):
            # The span of a future ends with the future's work.
            return finished(handler(message))

    return traced


def check_threads(threads: object) -> None:
    """Raise `BadSetting` if the value is no possible number of handler threads."""
    if type(threads) is not int or not 1 <= threads <= THREADS_MAX:
        raise BadSetting(f"threads must be 1 to {THREADS_MAX}, not {shown(threads)}.")


def run(*consumers: Consumer, until_empty: bool = False) -> None:
    """Run consumers in this process until SIGTERM, SIGINT, SIGHUP, or until one of them ends.

    The consumers end together. The first signal lets running handlers finish, until each consumer's
    deadline; a second signal ends that wait. Signals are caught only if the main thread calls this.
    The `stop()` of one consumer ends all, and so does an error that ends one; the error is raised
    once the others have ended.

    Args:
        consumers: One or more consumers that were not started, of different queues or of the same.
        until_empty: True to return also once their queues have no message, near or far. A paused
            queue that has messages must be resumed first.

    Raises:
        UsageError: If no consumer is given, or one was used before or is given twice; none was
            started.
        UnknownQueue: If a queue is dropped.
        ClockError: If the clock turns out to be too far off.
    """
    run_company(consumers, until_empty=until_empty)


def run_company(
    consumers: Sequence[Consumer],
    *,
    until_empty: bool,
    on_stop: Callable[[int], object] | None = None,
) -> None:
    """Run like `run`; call `on_stop` with how many deliveries the end waits for."""
    _check_company(consumers)
    for one in consumers:
        one._company = consumers if until_empty else ()
    with _caught_signals() as caught:
        try:
            for one in consumers:
                one.start()
            while not (caught or any(one._stopping for one in consumers)):
                # Wait for a bounded time, because a signal's handler runs only between two waits of
                # the main thread.
                consumers[0]._ended.wait(_POLL_S)
        finally:
            failures = _end(consumers, caught, on_stop)
    if failures:
        raise failures[0]


def _end(
    consumers: Sequence[Consumer],
    caught: Sequence[int],
    on_stop: Callable[[int], object] | None,
) -> list[ShardqError]:
    """Stop consumers and wait for them; returns the errors that ended them, earliest first."""
    first_ended = sorted(consumers, key=lambda one: not one._stopping)
    for one in consumers:
        one.stop()
    running = sum(one._engine.outbox.unended for one in consumers)
    if on_stop is not None and running:
        on_stop(running)
    while any(one._is_running for one in consumers):
        if len(caught) > 1:
            for one in consumers:
                one._hurried.set()
        for one in consumers:
            if one._is_running:
                one._ended.wait(_POLL_S)
    failures = []
    for one in first_ended:
        if not one._is_begun:
            # This consumer was not started: `start` has raised the reason.
            continue
        try:
            one.join()
        except ShardqError as error:
            failures.append(error)
    for failure in failures[1:]:
        # A store that fails ends all its consumers by the same error: log it once as an error.
        is_same = str(failure) == str(failures[0])
        log.log(
            logging.INFO if is_same else logging.ERROR,
            "another consumer ended as well: %s",
            failure,
        )
    return failures


def _check_company(consumers: Sequence[Consumer]) -> None:
    if not consumers:
        raise UsageError("run needs one consumer or more.")
    for place, one in enumerate(consumers):
        if not isinstance(one, Consumer):
            raise UsageError(f"run takes consumers, not {shown(one)}.")
        if one in consumers[:place]:
            raise UsageError(f"{one._said} is given twice; make one for each, or raise `threads`.")
        one._check_unused()


@contextmanager
def _caught_signals() -> Iterator[list[int]]:
    """Catch the signals that ask for an end; yields a list that gets the number of each.

    The handler of these signals does nothing else, because it may interrupt the main thread while
    that thread holds a lock. A closed terminal may send several SIGHUPs, so only the first signal
    may be one. A SIGHUP that `nohup` ignores, or that the user handles, is left alone.
    """
    caught: list[int] = []

    def catch(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGHUP or not caught:
            caught.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    with handled(dict.fromkeys(numbers, catch)):
        yield caught
