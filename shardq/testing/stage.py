"""A stage: several processes in one thread, a clock moved by hand, a store that fails."""

from __future__ import annotations

import heapq
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardq.clock import BootTime
from shardq.connection import Connection
from shardq.engine.handing.handler import check_function
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.times import Duration, duration_ms
from shardq.stores.sqlite import SqliteStore
from shardq.testing.clock import ManualClock
from shardq.testing.faults import Faults, faulty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from shardq.consumer import Consumer
    from shardq.model.message import Message
    from shardq.queue import Queue
    from shardq.stores.store import Store


_STEP_US = 1_000
_TICK_S = 0.001


class Recorder:
    """A handler that keeps its messages.

    Args:
        clock: The clock that times deliveries.
        act: An action for each message; the handler raises its errors and returns its results.

    Attributes:
        messages: The messages, in the order of their deliveries.
        at_us: The time of each delivery, epoch microseconds.
    """

    def __init__(self, clock: ManualClock, act: Callable[[Message], object] | None = None) -> None:
        if act is not None:
            check_function(act, "act")
        self._clock = clock
        self._act = act
        self.messages: list[Message] = []
        self.at_us: list[int] = []

    def __call__(self, message: Message) -> object:
        """Keep a message, then act."""
        self.messages.append(message)
        self.at_us.append(self._clock.true_us())
        return None if self._act is None else self._act(message)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def texts(self) -> list[str]:
        """The bodies as text."""
        return [message.text for message in self.messages]

    @property
    def late_ms(self) -> list[float]:
        """How late each delivery was, in milliseconds; below 0 is early."""
        return [
            at_us / 1e3 - message.due_ms
            for at_us, message in zip(self.at_us, self.messages, strict=True)
        ]


class _ElsewhereStore(SqliteStore):
    """SQLite in memory that behaves like a database on other machines."""

    is_local = False

    def next_minute(self, *_: object, **__: object) -> None:
        """None: there is no index. Each shard is read or counted by itself."""

    total = rows_in = seek = next_minute


class Stage:
    """A clock, a store in memory, and several processes that share them, in one thread.

    Args:
        threaded: True if consumers run threads of their own; move time with `ticking` then.
        history: How long queues made here keep their history, for `Queue.audit`; or `off`.
        local: True if the store is on this machine, like a SQLite file: its clock is the time, and
            `clock.set` sets it. Else it is on other machines.

    Attributes:
        clock: The right clock.
        faults: The faults of the store.
    """

    def __init__(
        self, *, threaded: bool = False, history: Duration = "7d", local: bool = False
    ) -> None:
        self.clock: ManualClock = ManualClock(threaded=threaded)
        self._history = history
        self.faults: Faults = Faults()
        make = SqliteStore if local else _ElsewhereStore
        self._sqlite = make(
            machine_us=self.clock.true_us, boot_time=lambda: BootTime(self.clock.boot_us(), "stage")
        )
        self._sqlite.open()
        self._store: Store = faulty(self._sqlite, self.faults)
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
        """Connect as a process of its own.

        Args:
            shift: How many seconds the process's wall clock is ahead.
            corrected: True if the process measures this error and corrects it.
            faults: Faults of the process's own calls; they precede the faults of the stage.
        """
        clock = self.clock.shifted(shift, corrected=corrected)
        store = self._store if faults is None else faulty(self._store, faults)
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
        """Step consumers in turn, each when it asked for it; time passes from step to step.

        A consumer that is no longer driven looks crashed to others. If a step fails because of the
        store, the consumer backs off and is stepped again.

        Args:
            consumers: The consumers to step.
            seconds: How many seconds of the stage's clock may pass.
            until: Called after each step; ends the drive by returning True.
            stride: The least seconds between two steps of one consumer.

        Returns:
            True if `until` returned True.
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
        """Step consumers until a queue is empty, near and far.

        Args:
            queue: The queue.
            consumers: The consumers to step.
            within: How much time of the stage's clock may pass.
            stride: The least seconds between two steps of one consumer.

        Raises:
            AssertionError: If the queue is not empty when that time has passed.
        """
        seconds = duration_ms(within, name="within") / 1e3
        done = self.drive(
            *consumers, seconds=seconds, until=lambda: self.is_empty(queue), stride=stride
        )
        if not done:
            left = list(self._store.shards(queue.name))
            raise AssertionError(f"after {within} queue {queue.name!r} still has rows in {left}")

    def is_empty(self, queue: Queue) -> bool:
        """True if a queue has no row."""
        return next(iter(self._store.shards(queue.name)), None) is None

    @contextmanager
    def ticking(self, seconds: float = 0.01) -> Iterator[None]:
        """Let time pass beside running threads: about `seconds` in each real millisecond."""
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
        return consumer._engine.news.back_off(error)
