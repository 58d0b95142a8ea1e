"""Homes: the objects that all parts of a connection, or of a queue, share; hidden from users.

```
 Connection ─► Home: store, clock, keepers
 Queue, Engine, Spark ─► QueueHome: all of Home, the queue's record, counts, settler and producer
```

A connection and a queue have their homes as `_home`; `Queue.schedules` has its book under the same
name. With `Consumer._engine`, `Queue._receiver`, `Message._row` and `Message._delivery` these are
the only private names that another module reads (`pyproject.toml`, flake8-self).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from shardq.lifecycle.producer import Producer
from shardq.lifecycle.settle import Settler
from shardq.lifecycle.traced import TracedProducer
from shardq.model import names
from shardq.records.folded import fold
from shardq.records.membership import member_name
from shardq.records.meter import Meter
from shardq.records.results import Results
from shardq.records.stats import StatsLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.records.keeper import Keeper
    from shardq.records.register import Register
    from shardq.stores.store import Store
    from shardq.tracing import Traces

_FOLD_AFTER_S = 1.0
_FOLDS_ONE_IN = 32
_TOGETHER = 8
"""How many queues are read at a time: enough to keep one core busy."""

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Home:
    """The store, clock and keeper of a connection, shared by all its queues.

    Attributes:
        store: The open store.
        clock: The clock, measured against the store.
        keeper: Stores counts every few seconds; None if no threads may run.
        chores: Calls longer tasks, which must not delay those of `keeper`; None if no threads may
            run.
        owner: The connection, which closes itself when nothing refers to it. Objects that users
            have refer to it; tasks of a keeper must not.
        open_all: Opens all queues of the store by one read of their records. Returns name -> the
            queue, or the error of a record that cannot be read. Takes a function of the name that
            returns False for queues that must not be opened: for these the result has the settings.
        open_one: Opens an existing queue by its name.
        logs: This process's counts of each queue, stored when the connection is closed.
        entered: Queue -> this process's counts of messages that died in another queue and entered
            it.
        traces: Makes the spans of puts and runs; None if nothing is traced.
        meter: Measures this process, if the meter is on.
    """

    store: Store
    clock: Clock
    keeper: Keeper | None = field(default=None, kw_only=True)
    chores: Keeper | None = field(default=None, kw_only=True)
    owner: object = field(default=None, kw_only=True)
    open_all: Callable[..., dict[str, Any]] = field(default=dict, kw_only=True)
    open_one: Callable[[str], Any] = field(default=lambda _name: None, kw_only=True)
    logs: list[StatsLog] = field(default_factory=list, kw_only=True)
    entered: dict[str, StatsLog] = field(default_factory=dict, kw_only=True)
    traces: Traces | None = field(default=None, kw_only=True)
    meter: Meter = field(default_factory=Meter, kw_only=True)

    def side_by_side(
        self, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """The results of reading each item, in the items' order.

        Several items are read at a time if the store is on other machines and threads may run.

        Args:
            work: Reads one item; called from several threads.
            items: The items, taken one by one as needed.
        """
        if self.keeper is None or self.store.is_local:
            yield from map(work, items)
            return
        # Imported late because most processes read one queue.
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(_TOGETHER, thread_name_prefix="shardq-look")
        flying: deque[Any] = deque()
        try:
            for item in items:
                flying.append(pool.submit(work, item))
                if len(flying) >= 2 * _TOGETHER:
                    yield flying.popleft().result()
            while flying:
                yield flying.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def of_queue(self, register: Register) -> QueueHome:
        """The home of a queue; its counts are stored when the connection is closed."""
        made = QueueHome(self, register)
        self.logs.append(made.stats)
        return made


class QueueHome(Home):
    """The home of a queue. A queue, each engine and each run of Spark has one, for all its parts.

    Args:
        home: The home of the connection, or of the queue itself.
        register: The queue's record.
        member: The member as which the parts settle and count; None makes up a name.
        is_timed: True if an engine stores the counts every few seconds; False if the keeper does.

    Attributes:
        register: The queue's record.
        member: The member as which the parts settle and count.
        stats: Counts the work of this process in the queue.
        settler: Moves and removes rows; has the planner, the ledger and the keys.
        listeners: Called with the dues of puts, epoch milliseconds; see `on_put`.
        lookers: Called with the position of a row of a group that this process settled or edited,
            and True if the row was deleted. A looker returns True if it owns the row's lane.
    """

    __slots__ = ("_producer", "listeners", "lookers", "member", "register", "settler", "stats")

    def __init__(
        self,
        home: Home,
        register: Register,
        member: str | None = None,
        *,
        is_timed: bool = False,
    ) -> None:
        store, clock = home.store, home.clock
        super().__init__(**{one.name: getattr(home, one.name) for one in fields(Home)})
        self.register: Register = register
        self.member: str = member or member_name()
        self.listeners: list[Callable[[int], None]] = []
        self.lookers: list[Callable[[Position, bool], bool]] = []
        key = register.totals_key
        # An engine's counts stay with its queue, even if the queue is dropped and made anew
        # meanwhile.
        self.stats: StatsLog = StatsLog(
            store,
            clock,
            register.layout,
            self.member,
            (lambda: key) if is_timed else (lambda: register.totals_key),
            keeper=None if is_timed else home.keeper,
            is_timed=is_timed,
            meter=home.meter,
        )
        self.settler: Settler = Settler(
            store,
            clock,
            register,
            self.member,
            self.stats.note_farthest,
            lookers=self.lookers,
        )
        self._producer: Producer | None = None

    @property
    def producer(self) -> Producer:
        """Puts messages. Made at its first use, because most engines put none."""
        if self._producer is None:
            parts = self.store, self.clock, self.register, self.settler, self.stats, self.on_put
            if self.traces is None:
                self._producer = Producer(*parts)
            else:
                queue = self.register.name
                self._producer = TracedProducer(*parts, queue=queue, traces=self.traces)
        return self._producer

    def target(self, name: str) -> QueueHome:
        """The home of another queue of the store, into which messages of this queue are moved.

        Raises:
            UnknownQueue: If there is no such queue.
        """
        home: QueueHome = self.open_one(name)._home
        self.register.know(home.register)
        return home

    def count_deaths(self, rows: Sequence[Row]) -> None:
        """Count messages that died in this queue.

        Args:
            rows: The messages' rows as dead messages. Rows that enter another queue count there
                too.
        """
        if rows:
            self.stats.add(buried=len(rows))
        own = (self.register.name, names.dead_queue(self.register.name))
        for queue, count in Counter(row.shard.queue for row in rows).items():
            if queue not in own:
                # Count without a read: the deaths are stored, and after an error they would be
                # counted again.
                if queue not in self.entered:
                    self.entered[queue] = self.of_queue(self.register.known(queue)).stats
                self.entered[queue].add(put=count)

    def of_member(self, member: str | None = None) -> QueueHome:
        """The home of an engine of the queue, which counts and settles as a member of its own."""
        return QueueHome(self, self.register, member, is_timed=True)

    @property
    def results(self) -> Results:
        """The results of the queue's messages."""
        return Results(self.store, self.clock, self.register.name)

    def close(self) -> None:
        """Store the counts, and now and then fold the totals of ended processes.

        Raises:
            StoreUnavailable, StoreTimeout: The counts are lost with this process.
        """
        self.stats.close()
        # A process that lives for one put never sees an hour end, so one in many such processes
        # folds here. A process that has only read writes nothing.
        is_one_of_them = crc32(self.stats.totals.member.encode()) % _FOLDS_ONE_IN == 0
        if self.keeper is not None and self.stats.has_rows and is_one_of_them:
            fold(self.store, self.clock, self.register)

    def fold_hourly(self) -> None:
        """Fold the totals of ended processes whenever an hour ends, if threads may run."""
        store, clock, register = self.store, self.clock, self.register

        def fold_all() -> None:
            fold(store, clock, register)

        def about() -> str:
            return f"totals of ended processes of queue {register.name}"

        if self.chores is not None:
            self.stats.on_hour = partial(self.chores.within, _FOLD_AFTER_S, fold_all, about)

    def on_put(self, due_ms: int) -> None:
        """Call the listeners with the due of a put; for many puts, with the first and last due."""
        for listener in self.listeners:
            listener(due_ms)
