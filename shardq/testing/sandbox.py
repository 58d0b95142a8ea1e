"""A sandbox: an application on a clock of its own, in one thread, with a store in memory.

```
 puts ──► store ──► until when is there nothing to do? ──► the clock jumps there
            ▲                                                │
            └── consumers and workers run the due messages ◄─┘
```

Engines, leases and policies are the real ones. Only parts that wait for real time are left out:
threads, idle polls, heartbeats.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardq.clock import SystemClock
from shardq.connection import Connection
from shardq.consumer import Consumer
from shardq.errors import BadSetting, BadTime, UsageError, shown
from shardq.lifecycle.fate import Fate, decided
from shardq.model.ids import row_ids
from shardq.model.message import read_headers
from shardq.model.times import due_ms, duration_ms, moment_of
from shardq.schedules.origin import NAME_HEADER
from shardq.stores.url import shown as shown_url
from shardq.tasks.app import App
from shardq.tasks.registry import guarded
from shardq.tasks.worker import Worker
from shardq.testing import frozen
from shardq.testing.actor import NEVER, Actor
from shardq.testing.clock import SandboxClock
from shardq.testing.faults import Faults, faulty
from shardq.testing.journal import FAILED, HOW_TO_ADD, Journal, is_failure, lines, said
from shardq.testing.memory import MemoryConnection, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Unpack

    from shardq.engine.handing.delivery import Delivery
    from shardq.lifecycle.fate import Outcome
    from shardq.model.message import Row
    from shardq.model.settings import QueueOptions
    from shardq.model.times import Due, Duration
    from shardq.queue import Queue
    from shardq.records.register import Register
    from shardq.tasks import Bound
    from shardq.tasks.definition import TaskDefinition
    from shardq.tasks.registry import Registry
    from shardq.testing.jobs import Put, Ran

_STEPS_MAX = 1_000
"""Most steps at one moment: each runs all that is due by then."""
_FIRED_MAX = 10_000
"""Most firings of schedules while one job takes time."""
_MOMENTS_MAX = 10_000
"""Most moments at which a drain lets jobs put other jobs."""
_IN_MEMORY = "sqlite://"


class Sandbox:
    """An application on a clock of its own, in one thread, with a store in memory.

    A sandbox begins at its first use, by a test or by an app that takes part. It then has the time
    to which a decorator has frozen the clock, and the schedules that code declares. Until it is
    closed, other apps cannot use their stores, except for those in memory.

    Args:
        actors: Apps and consumers, as `add` takes them.
        start: The time at which it begins, to which an active freezegun or time-machine is moved;
            None: the time of that tool, else of this machine.
        inline: True to run jobs that are due now before their put returns, unless a job puts them.
        raises: The errors of jobs that are raised in the test, by the call that has run the job:
            for a `death`, when a job has no attempt left or is not retried; for each `failure`; or
            for `nothing`. A job follows its policy in any case.
        history: How long queues made here keep their history, for `Queue.audit`.

    Attributes:
        inline: As given; may be set.
        raises: As given; may be set.

    Raises:
        BadTime: If the start cannot be read.
        BadSetting: If `raises` is none of these.
    """

    def __init__(
        self,
        *actors: App | Consumer,
        start: Due | None = None,
        inline: bool = False,
        raises: Literal["death", "failure", "nothing"] = "death",
        history: Duration = "off",
    ) -> None:
        if raises not in FAILED:
            raise BadSetting(f"raises must be death, failure or nothing, not {shown(raises)}.")
        self.inline: bool = inline
        self.raises: Literal["death", "failure", "nothing"] = raises
        self._faults = Faults()
        self._start_us = None if start is None else due_ms(start, name="start") * 1_000
        self._clock = SandboxClock(_now_us(), on_sleep=self._sleep, on_pass=self._fire_until)
        self._is_begun = False
        self._stores: list[MemoryStore] = []
        self._defaults = {"history": history, "lanes": 1}
        self._connections: list[MemoryConnection] = []
        self._patched = ExitStack()
        self._apps: dict[App, _Cast] = {}
        self._consumers: list[Actor] = []
        self._by_queue: dict[_QueuePlace, list[Actor]] = {}
        self._journal = Journal(self._definition)
        self._errors: list[BaseException] = []
        self._is_running = False
        self._home = self._connect(self._open())
        self._homes: dict[object, MemoryConnection] = {}
        """Connections by an app's store, or by the app; the first one serves everything else."""
        self._patched.enter_context(guarded(_refuse))
        try:
            self._add(actors)
        except BaseException:
            # The caller gets no object to close, so apps would stay here for good.
            self.close()
            raise

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    # Members --------------------------------------------------------------------------------------

    def add(self, *actors: App | Consumer) -> None:
        """Let apps and consumers take part.

        An app's jobs are in this sandbox until it is closed, and then in their former store. Apps
        that share a store elsewhere share one here.

        Args:
            actors: Apps, and consumers of queues of this sandbox that were not used before.

        Raises:
            UsageError: If one cannot take part.
        """
        self._begin()
        self._add(actors)
        self._cast()

    def _add(self, actors: Sequence[App | Consumer]) -> None:
        for one in actors:
            if isinstance(one, App):
                if one not in self._apps:
                    home = self._home_of(one)
                    self._patched.enter_context(one._home.on(home))
                    self._apps[one] = _Cast(home.memory)
            elif isinstance(one, Consumer):
                homes = [home for home in self._connections if home.has(one)]
                if not homes:
                    raise UsageError(
                        "a consumer in a sandbox is of one of its queues: sandbox.queue(name)."
                    )
                self._consumers.append(self._actor(one, homes[0].memory))
            else:
                raise BadSetting(f"a sandbox takes apps and consumers, not {shown(one)}.")

    def connect(self) -> Connection:
        """A connection to the sandbox's store, like that of `shardq.connect`."""
        return self._connect(self._home.memory)

    def queue(self, name: str, **settings: Unpack[QueueOptions]) -> Queue:
        """A queue of the sandbox's store, made if it does not exist; see `Connection.queue`."""
        return self._home.queue(name, **settings)

    @property
    def clock(self) -> SandboxClock:
        """The sandbox's clock."""
        self._begin()
        return self._clock

    @property
    def faults(self) -> Faults:
        """The faults of the store."""
        self._begin()
        return self._faults

    @property
    def now(self) -> datetime:
        """The time of the sandbox's clock, UTC."""
        return moment_of(self.clock.now_ms())

    def close(self) -> None:
        """End the sandbox: its apps use their former stores again. Idempotent."""
        self._faults.heal()
        self._patched.close()
        actors, self._consumers = self._consumers, []
        casts, self._apps = list(self._apps.values()), {}
        for cast in casts:
            if cast.worker is not None:
                cast.worker.close()
        for actor in actors:
            actor.consumer.close()
        for connection in self._connections:
            connection.close()
        self._connections = []
        for store in self._stores:
            store.close()
        row_ids.turn_back(SystemClock().now_us())

    # Time -----------------------------------------------------------------------------------------

    def travel(self, duration: Duration | None = None, *, until: Due | None = None) -> int:
        """Let time pass, and run each job that comes due on the way, at its time.

        Args:
            duration: How long, as `30 days`, `90s`, `1h30m` or a timedelta.
            until: Instead of a duration: the end, an aware datetime or ISO 8601 text with a zone.

        Returns:
            How many runs have ended.

        Raises:
            BadTime: If the time cannot be read, or is before now.
            UsageError: If both are given, or none; or if a job calls this method.
            Exception: An error of a job, by `raises`. Time stops at its end.
        """
        if (duration is None) == (until is None):
            raise UsageError("travel takes either how long, or until=.. a moment.")
        if until is not None:
            at_us = due_ms(until, name="until") * 1_000
            if at_us < self.clock.true_us():
                raise BadTime(f"until {shown(until)} is before now, {self.now:%Y-%m-%d %X}.")
        elif duration is not None:
            at_us = self.clock.true_us() + duration_ms(duration) * 1_000
        return self._run(at_us)

    def run_due(self) -> int:
        """Run the jobs due now, and jobs due now that they put; time does not pass.

        Returns:
            How many runs have ended.

        Raises:
            Exception: As `travel`.
        """
        now_us = self.clock.true_us()
        # A message put now is due at the next whole millisecond.
        return self._run(-(-now_us // 1_000) * 1_000)

    def drain(self) -> int:
        """Travel until nothing waits in any consumed queue, however far that is.

        Schedules go on for ever; their next firings are not waited for.

        Returns:
            How many runs have ended.

        Raises:
            AssertionError: If a message waits that nothing will run, in a paused queue say.
            UsageError: If jobs put others endlessly.
            Exception: As `travel`.
        """
        count = self._run(None)
        if left := [queue for store, queue in self._by_queue if not store.is_empty(queue)]:
            waiting = [one for one in self.waiting() if one.queue in left]
            raise AssertionError(
                f"nothing here will run what waits in queue {', '.join(left)}:{lines(waiting)}"
            )
        return count

    # Puts and runs --------------------------------------------------------------------------------

    def puts(
        self, what: Bound[..., Any] | Queue | str | None = None, /, *args: Any, **kwargs: Any
    ) -> list[Put]:
        """All puts so far, in order.

        Args:
            what: A task, or a queue or its name; None: all.
            args: For a task, arguments that its jobs must have, by position; for a queue, the body.
            kwargs: Arguments by name; for a queue, attributes of `Put`. Others do not matter.

        Raises:
            UsageError: If the task takes no such argument, or its app is not in this sandbox.
        """
        is_wanted = self._journal.wanted(what, args, kwargs)
        return [put for put in self._journal.puts() if is_wanted(put)]

    def waiting(
        self, what: Bound[..., Any] | Queue | str | None = None, /, *args: Any, **kwargs: Any
    ) -> list[Put]:
        """The waiting puts, the first due first; for arguments see `puts`."""
        is_wanted = self._journal.wanted(what, args, kwargs)
        rows = ((store, row) for store in self._stores for row in store.rows_waiting())
        return [put for put in self._journal.waiting(rows) if is_wanted(put)]

    def runs(
        self, what: Bound[..., Any] | Queue | str | None = None, /, *args: Any, **kwargs: Any
    ) -> list[Ran]:
        """The ended runs, each attempt by itself, in order; for arguments see `puts`."""
        is_wanted = self._journal.wanted(what, args, kwargs)
        return [ran for ran in self._journal.runs() if is_wanted(ran.put)]

    def assert_put(self, what: Bound[..., Any] | Queue | str, /, *args: Any, **kwargs: Any) -> Put:
        """Assert that a job was put, once; for arguments see `puts`.

        Returns:
            The put, to look at its due, key and so on.

        Raises:
            AssertionError: If there is none, or several; it lists all puts.
        """
        found = self.puts(what, *args, **kwargs)
        if len(found) == 1:
            return found[0]
        count = f"was put {len(found)} times, not once" if found else "was not put"
        there = self.puts(what) or self.puts()
        raise AssertionError(f"{said(what, args, kwargs)} {count}:{lines(there)}")

    def assert_not_put(
        self, what: Bound[..., Any] | Queue | str, /, *args: Any, **kwargs: Any
    ) -> None:
        """Assert that no such job was put; for arguments see `puts`."""
        if found := self.puts(what, *args, **kwargs):
            raise AssertionError(f"{said(what, args, kwargs)} was put:{lines(found)}")

    def assert_ran(self, what: Bound[..., Any] | Queue | str, /, *args: Any, **kwargs: Any) -> Ran:
        """Assert that a job has run to its end, once; for arguments see `puts`.

        Returns:
            The run.

        Raises:
            AssertionError: If none has, or several have; it lists all runs.
        """
        found = [ran for ran in self.runs(what, *args, **kwargs) if ran.state == "done"]
        if len(found) == 1:
            return found[0]
        count = f"was done {len(found)} times, not once" if found else "was not done"
        there = self.runs(what) or self.runs()
        raise AssertionError(f"{said(what, args, kwargs)} {count}:{lines(there)}")

    # Running --------------------------------------------------------------------------------------

    def _run(self, until_us: int | None) -> int:
        """Run all that is due up to `until_us`, and move time there; None: until nothing waits."""
        before, bounds = self._journal.run_count, _Bounds()
        with self._running():
            while (actor := self._next()) is not None:
                at_us, now_us = actor.wake_us, self._clock.true_us()
                if at_us > now_us:
                    if self._is_there(at_us, until_us):
                        break
                    bounds.note_moment(self._journal.put_count)
                    self._let_pass(at_us)
                elif until_us is not None and now_us > until_us and not self._is_owed(until_us):
                    break
                actor.step()
                self._raise_errors()
                if not bounds.note_step(is_draining=until_us is None):
                    raise UsageError(
                        f"jobs put others again and again, and it would not end: the last is "
                        f"{self.puts()[-1]}; travel for a while instead."
                    )
            if until_us is not None:
                self._let_pass(until_us)
        return self._journal.run_count - before

    def _is_there(self, next_us: int, until_us: int | None) -> bool:
        """True if all queues are empty, or the next work is after `until_us`."""
        if until_us is None:
            return all(store.is_empty(queue) for store, queue in self._by_queue)
        return next_us > until_us

    def _is_owed(self, until_us: int) -> bool:
        """True if more is to run although a job has taken longer than the journey.

        Firings of schedules after the journey's end are left to the next journey.
        """
        now_us = self._clock.true_us()
        queues = {place.queue for place in self._by_queue}
        waiting = (row for store in self._stores for row in store.rows_waiting())
        return any(
            row.due_ms * 1_000 <= now_us
            and row.shard.queue in queues
            and (row.due_ms * 1_000 <= until_us or NAME_HEADER not in read_headers(row))
            for row in waiting
        )

    @contextmanager
    def _running(self) -> Iterator[None]:
        if self._is_running:
            raise UsageError("a job runs: it cannot run others, nor let time pass until they do.")
        self._begin()
        self._is_running = True
        try:
            for connection in self._connections:
                connection.end_receiving()
            self._cast()
            self._wake_all()
            yield
        finally:
            self._is_running = False
            # Between two calls the test may move the clock as far as it likes.
            for actor in self._actors():
                actor.rest()

    def _next(self) -> Actor | None:
        """The actor to step next; None if no actor ever has work."""
        first = min(self._actors(), key=_wake_of, default=None)
        return None if first is None or first.wake_us >= NEVER else first

    def _let_pass(self, until_us: int) -> None:
        if until_us > self._clock.true_us():
            for actor in self._actors():
                actor.pass_to(until_us)
            self._clock.advance_to(until_us)

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def _sleep(self, seconds: float) -> bool:
        """Run due messages during a sleep outside of jobs, as in a wait for a result."""
        if self._is_running:
            return False
        at_us, first = self._clock.true_us() + round(seconds * 1e6), self._next()
        if first is None or first.wake_us > at_us:
            # A wait for a result looks twice a second.
            return False
        raises, self.raises = self.raises, "nothing"
        try:
            self._run(at_us)
        finally:
            self.raises = raises
        return True

    def _fire_until(self, until_us: int) -> None:
        """Fire schedules while a job takes time, each at its fire time, as a worker does.

        Args:
            until_us: When the job continues, epoch microseconds.
        """
        actors = self._actors()
        if not self._is_running or any(one.is_firing for one in actors):
            return
        for _ in range(_FIRED_MAX):
            at_us, actor = min(((one.fires_us, one) for one in actors), key=itemgetter(0))
            if at_us > until_us:
                break
            actor.fire(at_us)

    # Beginning ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin now, unless the sandbox has begun.

        It does not begin when it is made, because a decorator may freeze time after a fixture.
        """
        if self._is_begun:
            return
        # Set first, because the calls below use the sandbox.
        self._is_begun = True
        try:
            start_us = _begun_us(self._start_us)
            self._clock.begin(start_us)
            row_ids.turn_back(start_us)
            self._cast()
        except BaseException:
            self._is_begun = False
            raise

    # Actors ---------------------------------------------------------------------------------------

    def _actors(self) -> list[Actor]:
        return [*self._consumers, *(actor for cast in self._apps.values() for actor in cast.actors)]

    def _cast(self) -> None:
        """Give each app a worker with all its tasks and schedules."""
        for app, cast in self._apps.items():
            declared = (*app.tasks.values(), len(app._declarations))  # noqa: SLF001 - and its own
            if declared == cast.declared or not app.tasks:
                continue
            if cast.worker is not None:
                cast.worker.close()
            cast.declared, cast.worker = declared, Worker(app, threads=1)
            cast.worker.begin_to_step()
            cast.actors = [self._actor(one, cast.store) for one in cast.worker.consumers]
        self._by_queue = {}
        for actor in self._actors():
            self._by_queue.setdefault(_QueuePlace(actor.store, actor.queue), []).append(actor)

    def _actor(self, consumer: Consumer, store: MemoryStore) -> Actor:
        engine = consumer._engine
        engine.outbox.endings.on_end = partial(self._note_end, store, engine.home.register)
        return Actor(consumer, store, self._clock)

    def _home_of(self, app: App) -> MemoryConnection:
        """The connection to the store that an app has here."""
        store = app._home.store
        # Each connection to SQLite in memory is a store of its own.
        place: object = app if store == _IN_MEMORY else store
        if place not in self._homes:
            self._homes[place] = self._connect(self._open()) if self._homes else self._home
        return self._homes[place]

    def _open(self) -> MemoryStore:
        store = MemoryStore(self._clock, on_rows=self._note_rows, on_settings=self._wake_all)
        store.open()
        self._stores.append(store)
        return store

    def _connect(self, store: MemoryStore) -> MemoryConnection:
        made = MemoryConnection(
            faulty(store, self._faults), self._clock, background=False, defaults=self._defaults
        )
        made.memory, made.on_use, made.on_put = store, self._begin, self._note_put
        self._connections.append(made)
        return made

    def _wake_all(self) -> None:
        for actor in self._actors():
            actor.hurry()

    # Events ---------------------------------------------------------------------------------------

    def _note_rows(self, store: MemoryStore, rows: Sequence[Row], *, is_move: bool) -> None:
        now_ms = self._clock.now_ms()
        for row in rows:
            self._journal.note_row(store, row, now_ms, is_move=is_move)
            for actor in self._by_queue.get(_QueuePlace(store, row.shard.queue), ()):
                actor.note(row.due_ms)

    def _note_put(self) -> None:
        if self.inline and not self._is_running:
            self.run_due()

    def _note_end(
        self,
        store: MemoryStore,
        register: Register,
        one: Delivery,
        outcome: Outcome,
        error: BaseException | None,
    ) -> None:
        if outcome.fate is not Fate.ACK:
            outcome = decided(outcome, one.attempt, register)
        now_ms = self._clock.now_ms()
        self._journal.note_end(store, one.row, now_ms, one.attempt, outcome, error)
        if is_failure(self.raises, outcome, error):
            # Without a note: `pytest.raises(match=..)` would see it. The log names the job.
            self._errors.append(AssertionError(outcome.reason) if error is None else error)

    def _definition(self, name: str) -> TaskDefinition | None:
        for app in self._apps:
            if (found := app._home.find(name)) is not None:
                return found
        return None


class _QueuePlace(NamedTuple):
    """A queue of a store."""

    store: MemoryStore
    queue: str


class _Bounds:
    """Recognizes jobs that put others for ever."""

    def __init__(self) -> None:
        self._steps = self._moments = self._puts = 0

    def note_moment(self, puts: int) -> None:
        """Note that time passes, after this many puts in total."""
        self._steps = 0
        self._moments += puts > self._puts
        self._puts = puts

    def note_step(self, *, is_draining: bool) -> bool:
        """Note a step; True if the steps are within bounds."""
        self._steps += 1
        return self._steps < _STEPS_MAX and not (is_draining and self._moments > _MOMENTS_MAX)


class _Cast:
    """The worker of an app, made anew when the app declares more."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.declared: tuple[object, ...] = ()
        self.worker: Worker | None = None
        self.actors: list[Actor] = []


def _wake_of(actor: Actor) -> int:
    return actor.wake_us


def _refuse(registry: Registry) -> None:
    """Refuse an app whose jobs would go to a permanent store.

    Raises:
        UsageError: If it is such an app.
    """
    store = registry.store
    if isinstance(store, MemoryConnection):
        return
    place = shown_url(store) if isinstance(store, str) else store.url_shown
    if _IN_MEMORY in (store, place):
        return
    named = next(iter(registry.definitions), None)
    raise UsageError(
        f"the app {'without tasks' if named is None else f'of task {named}'} is not in the sandbox "
        f"that is open, so its jobs would be in its own store, {place}; {HOW_TO_ADD}."
    )


def _begun_us(start_us: int | None) -> int:
    """The time at which a sandbox begins: `start_us` if given, else now.

    If freezegun or time-machine is active, its time is moved to `start_us` too.
    """
    if start_us is None:
        return _now_us()
    if (tool := frozen.active()) is not None:
        tool.move(start_us - tool.now_us())
    return start_us


def _now_us() -> int:
    tool = frozen.active()
    now_us = SystemClock().now_us() if tool is None else tool.now_us()
    return -(-now_us // 1_000) * 1_000
