"""A worker: one process that runs the jobs of all queues of an app."""

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
from shardq.tasks.limits import LimitWatch
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

    A new worker brings the store's schedules to those that the app declares.

    Args:
        app: The app.
        threads: How many jobs that are not coroutines run at once, of all queues, 1 to 512.
        coroutines: How many coroutines of all queues run at once, 1 to 10,000.
        queues: The names of the queues; if empty, those of the app's tasks.
        prefetch: As for `Consumer`, for each queue.
        deadline: How long a stop waits for running jobs. Jobs that still run then are delivered
            again elsewhere, and lose no attempt.
        report: Called with each run that has ended, in the thread of its end; must be quick.
        on_overrun: Called with a sentence when a function runs on after its limit, or blocks the
            event loop: this process should be replaced. It is logged anyway.
        on_dead: Called with each job that dies here, before the `on_dead` of its task or the app.
        on_stop: Called when `run` is to end, with the number of jobs that it waits for, if any.

    Raises:
        UsageError: If the app has no task, a number is out of bounds, or the store has a different
            schedule of the same name and revision.
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
        app._home.limit()
        self._app = app
        self._report = report
        self._on_overrun = on_overrun
        self._on_dead = on_dead
        self._on_stop = on_stop
        clock = app.connection._home.clock
        self._loop = Loop(coroutines, on_overrun=self._overrun, clock=clock)
        self._watch = LimitWatch(clock)
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

        A second signal ends the wait for running jobs.

        Args:
            until_empty: True to return as well once the queues are empty, near and far.

        Raises:
            UsageError: If it was run before.
            UnknownQueue: If a queue is dropped.
            ClockError: If the clock is too far off.
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

        Coroutines run to their end, batches take all due jobs, results are kept at once, and time
        limits are checked when a function has returned: all times are by the store's clock.

        Returns:
            Seconds until the next turn is needed.

        Raises:
            UsageError: If it was run, or closed.
            Exception: As `Consumer.step`; the queues after the queue that raised had no turn.
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
        """The consumers of its queues, which `step` steps in turn."""
        return self._consumers

    @property
    def loop_hung_us(self) -> int:
        """For how long the loop of coroutines has not turned, microseconds; 0: it turns."""
        return self._loop.hung_us

    def begin_to_step(self) -> None:
        """Prepare its consumers for steps. Idempotent; the first `step` does it.

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
        """Ask for a graceful end and return. Safe in a signal's handler."""
        for one in self._consumers:
            one.stop()

    def _begin(self) -> None:
        for hook in self._app._home.on_start:
            hooks.start(hook, self._loop)
            # Set this after each hook, so that `on_stop` is called even if the next hook fails.
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
    ) -> _TaskConsumer:
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
        return _TaskConsumer(
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


class _TaskConsumer(Consumer):
    """A consumer of jobs: deliveries may be held, and task policies decide after failures."""

    _is_traced_by_handler = True

    def __init__(self, queue: Queue, runner: Runner, crew: Crew | None, **settings: Any) -> None:
        self._shared_crew = crew
        super().__init__(queue, runner, **settings)
        self._runner = runner
        runner.hold, runner.is_stopping = self._hold, self._is_stopping

    def finish_by(self, finish: Callable[[], None]) -> None:
        """Set the function by which a stepped consumer ends the deliveries that wait for others."""
        self._engine.outbox.endings.finish = finish

    def _judge(self, message: Message, error: BaseException) -> Outcome:
        return self._runner.judge(message, error)
