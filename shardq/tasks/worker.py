"""A worker: one process that runs the jobs of an app, those of all its queues."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from shardq import consumer
from shardq.consumer import Consumer
from shardq.engine.handing.crew import Crew
from shardq.engine.stepper import Stepper
from shardq.errors import BadSetting, UsageError, shown
from shardq.model import names
from shardq.model.times import duration_ms
from shardq.tasks import hooks
from shardq.tasks.batches import Batches
from shardq.tasks.keeping import Keeping
from shardq.tasks.limits import Watch
from shardq.tasks.loop import Loop
from shardq.tasks.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.lifecycle.fate import Outcome
    from shardq.model.message import Message
    from shardq.model.times import Duration
    from shardq.queue import Queue
    from shardq.tasks.app import App
    from shardq.tasks.run import Ended

log = logging.getLogger(__name__)

COROUTINES = 1_000
COROUTINES_MAX = 10_000
HOW_TO_DECLARE = "declare them with @app.task, and import the modules that do so where the app is"


class Worker:
    """Runs the jobs of an app in this process.

    When it is made, it brings the store's schedules to what the app declares.

    Args:
        app: Whose tasks it runs.
        threads: How many jobs of all queues run at once that are no coroutines, 1 to 512.
        coroutines: How many coroutines of all queues run at once, 1 to 10,000.
        queues: The names of the queues; where none is named, those of the app's tasks.
        prefetch: As for `Consumer`, of each queue.
        deadline: How long a stop waits for jobs that run; those left are run elsewhere, and spend
            no attempt.
        report: Told each run that has ended, in the thread that it ended in; it is not to wait.
        on_overrun: Told, in a sentence, of a function that still runs though its time is over, or
            that blocks the event loop: this process is to be replaced. It is logged anyway.
        on_dead: Called with each job that dies here, before what the app has for that.
        on_stop: Told, when `run` is to end, how many jobs run that it waits for, if there are any.

    Raises:
        UsageError: If the app has no task, a number is out of bounds, or a schedule that the app
            declares is there otherwise with the same revision.
    """

    def __init__(
        self,
        app: App,
        *,
        threads: int = consumer.THREADS,
        coroutines: int = COROUTINES,
        queues: Sequence[str] = (),
        prefetch: int = consumer.PREFETCH,
        deadline: Duration = consumer.DEADLINE,
        report: Callable[[Ended], object] | None = None,
        on_overrun: Callable[[str], object] | None = None,
        on_dead: Callable[[Message], object] | None = None,
        on_stop: Callable[[int], object] | None = None,
    ) -> None:
        if type(coroutines) is not int or not 1 <= coroutines <= COROUTINES_MAX:
            raise BadSetting(
                f"coroutines must be 1 to {COROUTINES_MAX:,}, not {shown(coroutines)}."
            )
        chosen = names.several(queues, what="queues")
        if not app.tasks:
            raise UsageError(f"the app has no tasks; {HOW_TO_DECLARE}.")
        for task in app.tasks.values():
            task.check()
        app.reconcile()
        self._app = app
        self._report = report
        self._on_overrun = on_overrun
        self._on_dead = on_dead
        self._on_stop = on_stop
        clock = app.connection._home.clock
        self._loop = Loop(coroutines, on_overrun=self._overrun, clock=clock)
        self._watch = Watch(clock)
        self._deadline_s = duration_ms(deadline, name="deadline") / 1_000
        self._has_run = self._is_stepped = self._is_closed = self._is_begun = False
        self._keepings: list[Keeping] = []
        self._batches: list[Batches] = []
        queue_names = list(dict.fromkeys(chosen or app.queue_names))
        crew = None
        if len(queue_names) > 1:
            consumer.check_threads(threads)
            stepper = Stepper(app.connection._home.store, clock, "shardq-stepper")
            crew = Crew(clock, threads, "shardq-jobs", stepper)
        self._consumers = [
            self._consumer(
                app._home.queue(names.queue_name(name)), threads, prefetch, deadline, crew
            )
            for name in queue_names
        ]

    def run(self, *, until_empty: bool = False) -> None:
        """Run jobs until SIGTERM, SIGINT or `stop()`.

        A second signal ends the wait for those that run.

        Args:
            until_empty: Return as well once the queues hold nothing, near or far.

        Raises:
            UsageError: If it was run before.
            UnknownQueue: If a queue is dropped.
            ClockError: If the clock turns out to be too far off.
            BadApp: If an `on_start` of the app fails.
        """
        if self._has_run:
            raise UsageError("this worker was run before; make another one to run again.")
        if self._is_stepped or self._is_closed:
            raise UsageError("this worker is driven by step(); make another one to run.")
        self._has_run = True
        try:
            self._begin()
            consumer.run_company(self._consumers, until_empty=until_empty, on_stop=self._on_stop)
        finally:
            self._end()

    def step(self) -> float:
        """Run one turn of each queue in the calling thread, as `Consumer.step` does.

        Coroutines run to their end, batches take what is due, results are kept at once, and time
        limits are looked at when a function has returned: all of it by the store's clock.

        Returns:
            Seconds until the next turn is needed.

        Raises:
            UsageError: If it was run, or closed.
            Exception: As `Consumer.step`; the queues after that whose turn raised have had none.
        """
        self.begin_to_step()
        return min(one.step() for one in self._consumers)

    def close(self) -> None:
        """End a worker that was driven by `step`. Idempotent.

        Raises:
            UsageError: If it runs.
        """
        if self._has_run:
            raise UsageError("this worker has threads of its own; end it by stop().")
        self._is_closed = True
        try:
            for one in self._consumers:
                one.close()
        finally:
            self._end()

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Those of its queues, which `step` steps in turn."""
        return self._consumers

    @property
    def loop_hung_us(self) -> int:
        """For how long the loop of coroutines has not turned, microseconds; 0: it turns."""
        return self._loop.hung_us

    def begin_to_step(self) -> None:
        """Let its consumers be stepped, one by one. Idempotent; the first `step` does it.

        Raises:
            UsageError: If it was run, or closed.
            BadApp: If an `on_start` of the app fails.
        """
        if self._has_run:
            raise UsageError("this worker has threads of its own, which step it.")
        if self._is_closed:
            raise UsageError("this worker was closed; make another one.")
        if self._is_stepped:
            return
        self._is_stepped = True
        self._loop.is_threaded = self._watch.is_threaded = False
        parts = zip(self._consumers, self._keepings, self._batches, strict=True)
        for one, keeping, batches in parts:
            keeping.is_threaded = batches.is_threaded = False
            one.finish_by(batches.finish)
        self._begin()

    def stop(self) -> None:
        """Ask for a graceful end and return. A signal's handler may do so."""
        for one in self._consumers:
            one.stop()

    def _begin(self) -> None:
        for hook in self._app._home.on_start:
            hooks.start(hook, self._loop)
            # What it has made is closed, though the next one fails.
            self._is_begun = True
        self._is_begun = True

    def _end(self) -> None:
        if self._is_begun:
            self._is_begun = False
            hooks.stop(self._app._home.on_stop, self._loop, self._deadline_s)
        self._loop.stop()
        self._watch.stop()
        for keeping in self._keepings:
            keeping.close()

    def _consumer(
        self,
        queue: Queue,
        threads: int,
        prefetch: int,
        deadline: Duration,
        crew: Crew | None,
    ) -> _Consumer:
        home = queue._home
        keeping = Keeping(home.clock, home.results)
        self._keepings.append(keeping)
        batches = Batches()
        self._batches.append(batches)
        runner = Runner(
            self._app._home,
            home.clock,
            loop=self._loop,
            watch=self._watch,
            keeping=keeping,
            batches=batches,
            on_end=self._report,
            on_overrun=self._overrun,
        )
        hears = self._on_dead is not None or self._app._home.hears_of_dead
        return _Consumer(
            queue,
            runner,
            crew,
            threads=threads,
            prefetch=prefetch,
            deadline=deadline,
            on_dead=self._dead if hears else None,
        )

    def _dead(self, message: Message) -> object:
        if self._on_dead is not None:
            self._on_dead(message)
        return self._app._home.on_dead(message)

    def _overrun(self, said: str) -> None:
        log.warning("%s", said)
        if self._on_overrun is not None:
            self._on_overrun(said)


class _Consumer(Consumer):
    """A consumer whose deliveries may be held, and are judged by the policies of tasks."""

    _is_traced_by_handler = True

    def __init__(self, queue: Queue, runner: Runner, crew: Crew | None, **settings: Any) -> None:
        self._shared_crew = crew
        super().__init__(queue, runner, **settings)
        self._runner = runner
        runner.hold, runner.is_stopping = self._hold, self._is_stopping

    def finish_by(self, finish: Callable[[], None]) -> None:
        """Where it is stepped: end by this what is held and waits for others."""
        self._engine.outbox.endings.finish = finish

    def _judge(self, message: Message, error: BaseException) -> Outcome:
        return self._runner.judge(message, error)
