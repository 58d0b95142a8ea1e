"""A stage: several processes of one thread, a clock moved by hand, a store that fails."""

from __future__ import annotations

import heapq
import statistics
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from shardq.connection import Connection
from shardq.errors import ClockError, StoreTimeout, StoreUnavailable
from shardq.ids import birth_us, row_ids
from shardq.stores.sqlite import SqliteStore
from shardq.times import Duration, duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from shardq.clock import Reference
    from shardq.consumer import Consumer
    from shardq.errors import StoreError
    from shardq.message import Message
    from shardq.queue import Queue
    from shardq.store import Store

START_US = 1_800_000_000_000_000
"""15 January 2027, 08:00 UTC: the first moment of the first stage."""

_HOUR_US = 3_600_000_000
_MEASURE_EVERY_US = 60_000_000
_STEP_US = 1_000
_TICK_S = 0.001
_GLANCE_S = 0.02
"""How long a thread really waits before it looks at the hands again, should a notice be missed."""


class _Hands:
    """What all clocks of a stage show, and who waits for it to move."""

    def __init__(self, start_us: int, *, threaded: bool) -> None:
        self.start_us = self.us = start_us
        self.threaded = threaded
        self.lock = threading.Lock()
        self.waiting: list[threading.Condition] = []

    def advance(self, by_us: int) -> None:
        with self.lock:
            self.us += by_us
            waiting = list(self.waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()


class ManualClock:
    """A `shardq.clock.Clock` that stands still until it is moved.

    Args:
        start_us: Epoch microseconds that it shows first; where None, `START_US`, or the next hour
            after all row ids of this process, which never go backwards.
        threaded: False: a wait or sleep moves the hands itself, for programs of one thread. True:
            it lasts until another thread has moved them.

    Attributes:
        shift_us: How wrong this process's wall clock is.
        slept: Seconds of each sleep and wait that was asked for; None for an endless one.
    """

    def __init__(self, start_us: int | None = None, *, threaded: bool = False) -> None:
        if start_us is None:
            start_us = max(START_US, (birth_us(row_ids.next(0)) // _HOUR_US + 1) * _HOUR_US)
        self._hands = _Hands(start_us, threaded=threaded)
        self._corrected = True
        self._correction_us = 0
        self._deviation_us = 0
        self._measured_us: int | None = None
        self.shift_us = 0
        self.slept: list[float | None] = []

    def shifted(self, seconds: float, *, corrected: bool = True) -> ManualClock:
        """The clock of another process of the same world, wrong by so many seconds.

        Args:
            seconds: Positive is ahead.
            corrected: Whether it measures its error and makes it good.
        """
        other = ManualClock(0)
        other._hands = self._hands
        other._corrected = corrected
        other.shift_us = round(seconds * 1e6)
        return other

    def advance(self, seconds: float) -> None:
        """Move now and boot, of all clocks of this world, and wake who waits for it."""
        self._hands.advance(round(seconds * 1e6))

    def true_us(self) -> int:
        """The time that a right clock shows, epoch microseconds."""
        return self._hands.us

    def true_ms(self) -> int:
        """The time that a right clock shows, epoch milliseconds."""
        return self._hands.us // 1_000

    @property
    def deviation_us(self) -> int:
        """Wall clock less reference at the last measurement."""
        return self._deviation_us

    def now_us(self) -> int:
        """Corrected epoch microseconds."""
        return self._hands.us + self.shift_us - self._correction_us

    def now_ms(self) -> int:
        """Corrected epoch milliseconds, rounded down."""
        return self.now_us() // 1_000

    def boot_us(self) -> int:
        """Microseconds since a boot that was 1,000 s before the start."""
        return self._hands.us - self._hands.start_us + 1_000_000_000

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on a held condition: by moving the hands, or until another thread has moved them."""
        hands = self._hands
        if not hands.threaded:
            self.sleep(seconds or 0.0)
            return
        with hands.lock:
            hands.waiting.append(condition)
        try:
            condition.wait(_GLANCE_S)
        finally:
            with hands.lock:
                hands.waiting.remove(condition)

    def sleep(self, seconds: float) -> None:
        """Sleep: by moving the hands, or until another thread has moved them so far."""
        # Before it is told: whoever sees that it sleeps may move the hands.
        until_us = self._hands.us + round(seconds * 1e6)
        self.slept.append(seconds)
        if not self._hands.threaded:
            self.advance(seconds)
            return
        condition = threading.Condition()
        with condition:
            while self._hands.us < until_us:
                self.wait(condition, None)

    def measure(self, reference: Reference) -> None:
        """Measure the error against the median of the nodes, where a minute has passed."""
        boot = self.boot_us()
        if self._measured_us is not None and boot - self._measured_us < _MEASURE_EVERY_US:
            return
        self._measured_us = boot
        true_us = statistics.median(reference.time_us(node) for node in reference.nodes())
        self._deviation_us = round(self._hands.us + self.shift_us - true_us)
        if self._corrected:
            self._correction_us = self._deviation_us

    def check(self, offset_ms: int) -> None:
        """Raise `ClockError` where the wall clock is wrong by more than a queue's offset."""
        if abs(self._deviation_us) > offset_ms * 1_000:
            raise ClockError(f"this process's clock is {self._deviation_us / 1e6:+.1f} s off.")


class Faults:
    """What goes wrong in a store, and when. Verbs are the methods of `shardq.store.Store`.

    Attributes:
        calls: How often each verb was called.
    """

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self._plans: dict[str, list[_Plan]] = {}

    def around(self, store: Store) -> Store:
        """The same store, with these faults."""
        return cast("Store", _FaultyStore(store, self))

    def fail(
        self,
        verb: str,
        *,
        nth: int = 1,
        times: int = 1,
        applied: bool = False,
        error: StoreError | None = None,
    ) -> None:
        """Let calls of a verb fail.

        Args:
            verb: Such as `move`.
            nth: The first call to fail, counted from now; 1 is the next.
            times: How many fail, one after another.
            applied: Whether the call takes effect before it fails.
            error: What it raises: `StoreTimeout` where None and applied, else `StoreUnavailable`.
        """
        if error is None:
            failed = "the answer was lost" if applied else "the store is away"
            error = (StoreTimeout if applied else StoreUnavailable)(failed)
        self._plan(verb, nth, times, before=not applied, act=_raising(error))

    def call(
        self, verb: str, act: Callable[[], object], *, nth: int = 1, after: bool = True
    ) -> None:
        """Do something just after (or before) a call of a verb takes effect, such as to move time.

        Args:
            verb: Such as `insert`.
            act: What to do.
            nth: Which call, counted from now.
            after: False does it before.
        """
        self._plan(verb, nth, 1, before=not after, act=act)

    def heal(self) -> None:
        """Let nothing fail any more."""
        self._plans.clear()

    def _plan(
        self, verb: str, nth: int, times: int, *, before: bool, act: Callable[[], object]
    ) -> None:
        first = self.calls.get(verb, 0) + nth
        self._plans.setdefault(verb, []).append(_Plan(first, first + times, before, act))

    def run(self, verb: str, work: Callable[[], Any]) -> Any:
        """Do a call's work, with what is planned for it."""
        number = self.calls[verb] = self.calls.get(verb, 0) + 1
        plans = [p for p in self._plans.get(verb, ()) if p.first <= number < p.stop]
        for plan in plans:
            if plan.before:
                plan.act()
        result = work()
        for plan in plans:
            if not plan.before:
                plan.act()
        return result


class _Plan:
    """An act at some calls of a verb."""

    def __init__(self, first: int, stop: int, before: bool, act: Callable[[], object]) -> None:
        self.first = first
        self.stop = stop
        self.before = before
        self.act = act


def _raising(error: StoreError) -> Callable[[], object]:
    def act() -> object:
        # A fresh one each time: an error that is raised twice drags its first traceback along.
        raise type(error)(str(error), error.messages)

    return act


class _FaultyStore:
    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def close(self) -> None:
        """Nothing: one of several processes that share it has ended."""

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb):
            return verb
        return lambda *args, **named: self._faults.run(name, lambda: verb(*args, **named))


class Recorder:
    """A handler that keeps what it was given.

    Args:
        clock: The clock by which hand-outs are timed.
        act: What else to do with each message; what it raises, the handler raises.

    Attributes:
        messages: The messages, in the order in which they were handed out.
        at_us: When each was, epoch microseconds.
    """

    def __init__(self, clock: ManualClock, act: Callable[[Message], object] | None = None) -> None:
        self._clock = clock
        self._act = act
        self.messages: list[Message] = []
        self.at_us: list[int] = []

    def __call__(self, message: Message) -> None:
        """Keep a message, then act."""
        self.messages.append(message)
        self.at_us.append(self._clock.true_us())
        if self._act is not None:
            self._act(message)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def texts(self) -> list[str]:
        """The bodies as text."""
        return [message.text for message in self.messages]

    @property
    def late_ms(self) -> list[float]:
        """How late each was, in milliseconds; below 0 is early."""
        return [
            at_us / 1e3 - message.due_ms
            for at_us, message in zip(self.at_us, self.messages, strict=True)
        ]


class Stage:
    """A world of several processes in one thread: a clock, a store in memory, and its faults.

    Args:
        threaded: Whether consumers will run their own threads; then move time with `ticking`.
        history: How long queues made here keep their history, for `Queue.audit`; or `off`.

    Attributes:
        clock: The right clock.
        faults: What is to go wrong in the store.
        store: The store, with these faults.
    """

    def __init__(self, *, threaded: bool = False, history: Duration = "7d") -> None:
        self.clock = ManualClock(threaded=threaded)
        self._history = history
        self.faults = Faults()
        self._sqlite = SqliteStore(machine_us=self.clock.true_us)
        self._sqlite.open()
        self.store: Store = self.faults.around(self._sqlite)
        self._connections: list[Connection] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def connect(
        self, *, shift: float = 0.0, corrected: bool = True, faults: Faults | None = None
    ) -> Connection:
        """A process of its own.

        Args:
            shift: Seconds by which its wall clock is ahead.
            corrected: Whether it makes that good.
            faults: Of its own calls alone, before those of the stage.
        """
        clock = self.clock.shifted(shift, corrected=corrected)
        store = self.store if faults is None else faults.around(self.store)
        connection = Connection(store, clock, background=False, defaults={"history": self._history})
        self._connections.append(connection)
        return connection

    def drive(
        self,
        *consumers: Consumer,
        seconds: float,
        until: Callable[[], bool] | None = None,
        stride: float = 0.001,
    ) -> bool:
        """Step consumers in turn, each when it asked to be, while time passes from step to step.

        A consumer that is driven no more has crashed, as far as the others can tell. One whose step
        meets a store in trouble backs off and goes on.

        Args:
            consumers: What to step.
            seconds: How much time passes at most.
            until: Asked after each step; True ends it.
            stride: The least seconds between two steps of one consumer.

        Returns:
            Whether `until` came true.
        """
        clock = self.clock
        end_us = clock.boot_us() + round(seconds * 1e6)
        turns = [(clock.boot_us(), place) for place in range(len(consumers))]
        while turns and turns[0][0] <= end_us:
            at_us, place = turns[0]
            clock.advance(max(at_us - clock.boot_us(), 0) / 1e6)
            delay = max(_turn(consumers[place]), stride)
            if until is not None and until():
                return True
            heapq.heapreplace(turns, (clock.boot_us() + max(round(delay * 1e6), _STEP_US), place))
        clock.advance(max(end_us - clock.boot_us(), 0) / 1e6)
        return False

    def drain(
        self, queue: Queue, *consumers: Consumer, within: Duration = "10m", stride: float = 0.001
    ) -> None:
        """Step consumers until a queue holds nothing, near or far.

        Raises:
            AssertionError: If it still holds something when the time is over.
        """
        seconds = duration_ms(within, name="within") / 1e3
        done = self.drive(
            *consumers, seconds=seconds, until=lambda: self.is_empty(queue), stride=stride
        )
        if not done:
            left = list(self.store.shards(queue.name))
            raise AssertionError(f"after {within} queue {queue.name!r} still has rows in {left}")

    def is_empty(self, queue: Queue) -> bool:
        """Whether a queue has no row."""
        return next(iter(self.store.shards(queue.name)), None) is None

    @contextmanager
    def ticking(self, seconds: float = 0.01) -> Iterator[None]:
        """Let time pass beside running threads, so many seconds each millisecond or so."""
        over = threading.Event()

        def tick() -> None:
            while not over.wait(_TICK_S):
                self.clock.advance(seconds)

        thread = threading.Thread(target=tick, name="shardq-ticking", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        """Close all connections and the store."""
        self.faults.heal()
        for connection in self._connections:
            connection.close()
        self._sqlite.close()


def _turn(consumer: Consumer) -> float:
    try:
        return consumer.step()
    except (StoreUnavailable, StoreTimeout) as error:
        return consumer.engine.back_off(error)
