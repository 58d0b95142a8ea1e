"""An app: the tasks of a program, and the store that their jobs are in."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, overload

from shardq.connection import Connection
from shardq.engine.handing.handler import check_function, is_any
from shardq.errors import BadSetting, UsageError, shown
from shardq.lifecycle.keyed import Answer
from shardq.model import names
from shardq.model.limits import TaskLimitOptions, read_task
from shardq.schedules.options import chosen
from shardq.tasks.arguments import TaskSignature
from shardq.tasks.declared import Declarations
from shardq.tasks.definition import TaskDefinition
from shardq.tasks.job import Job
from shardq.tasks.naming import name_of, shorter_names
from shardq.tasks.options import TASK_HEADER, ChosenOptions, Policy
from shardq.tasks.parameters import is_dispatching, is_method
from shardq.tasks.registry import Registry
from shardq.tasks.schedules import AppSchedules
from shardq.tasks.task import BatchTask, Bound, Task
from shardq.tracing.traces import check_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import tzinfo
    from types import TracebackType

    from apscheduler.triggers.base import BaseTrigger

    from shardq.lifecycle.keyed import Snapshot
    from shardq.model.message import Message
    from shardq.model.times import Due, Duration
    from shardq.queue import Queue
    from shardq.schedules.policy import PolicyOptions
    from shardq.schedules.triggers.trigger import Trigger
    from shardq.tasks.declared import Reconciled
    from shardq.tasks.middleware import Middleware
    from shardq.tasks.options import DeclaredOptions, TaskOptions
    from shardq.tasks.task import Call, WithoutArguments
    from shardq.tracing import Traces

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

DEFAULT_QUEUE = "default"
_OWN = ("name", "aliases", "batch", "cancellable", "on_dead", *TaskLimitOptions.__annotations__)
"""The options of `App.task` that a put does not have."""


class Declare(Protocol):
    """The decorator that `App.task(..)` returns."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Make a function a task."""


class DeclareBatch(Protocol):
    """The decorator that `App.task(batch=..)` returns, for a function of a list."""

    def __call__(self, function: Callable[[list[A]], R], /) -> BatchTask[A, R]:
        """Make a function a task."""


class App:
    """The tasks of a program, and the store that their jobs are in.

    The first put opens the store. Safe from any thread; a forked child opens its own.

    Args:
        store: A url as `shardq.connect` takes it, or a connection; None: the environment variable
            `SHARDQ_STORE`, else `sqlite:///shardq.db`, a file in the current directory.
        middleware: Context managers around each put and run, the outermost first.
        on_dead: Called by workers with each job that dies, like the `on_dead` of a `Consumer`.
        traces: Makes spans of OpenTelemetry, as for `shardq.connect`; a connection brings its own
            `traces`.
        options: Options for all tasks of the app; a task's own options replace them. The queue is
            `default` unless given.

    Raises:
        UsageError: If an option is unknown or cannot be used, or two contradict each other.
    """

    def __init__(
        self,
        store: str | Connection | None = None,
        *,
        middleware: Sequence[Middleware] = (),
        on_dead: Callable[[Message], object] | None = None,
        traces: Traces | None = None,
        **options: Unpack[TaskOptions],
    ) -> None:
        if store is not None and not isinstance(store, (str, Connection)):
            raise BadSetting(f"store must be a url or a connection, not {shown(store)}.")
        check_traces(traces)
        if traces is not None and isinstance(store, Connection):
            raise BadSetting(
                "an app on a connection has its traces; give them to shardq.connect(.., traces=..)."
            )
        if not isinstance(middleware, Iterable):
            told = shown(middleware)
            raise BadSetting(f"middleware must be a list of objects, not {told} alone.")
        for one in middleware:
            for function in ("put", "run"):
                if not callable(getattr(one, function, None)):
                    raise BadSetting(
                        f"middleware must be objects with put(draft) and run(context), each giving "
                        f"a context manager; {shown(one)} has no {function}."
                    )
        usual = ChosenOptions(DEFAULT_QUEUE, {}, {}, Policy())
        self._options = usual.with_(options, "App", is_call=False)
        self._tasks: dict[str, Task[..., Any, Any] | BatchTask[Any, Any]] = {}
        if on_dead is not None:
            check_function(on_dead, "on_dead")
        self._home = Registry(store, middleware, on_dead, traces)
        self._declarations = Declarations(self._home)

    def __repr__(self) -> str:
        return f"<App of {len(self._tasks)} tasks>"

    def __enter__(self) -> App:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    # Tasks ----------------------------------------------------------------------------------------

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        cancellable: bool = False,
        on_dead: Callable[[Message], object] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> Declare: ...
    @overload
    def task(
        self,
        *,
        batch: int,
        name: str | None = None,
        aliases: Sequence[str] = (),
        on_dead: Callable[[Message], object] | None = None,
        **options: Unpack[DeclaredOptions],
    ) -> DeclareBatch: ...
    def task(  # type: ignore[misc] # mypy (2.4) does not see that `options` takes a TypedDict's keys
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        batch: int | None = None,
        name: str | None = None,
        aliases: Sequence[str] = (),
        cancellable: bool = False,
        on_dead: Callable[[Message], object] | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue="mail", attempts=3)`.

        Args:
            function: The function, plain or `async`. Its arguments and result become JSON by their
                type hints.
            batch: The most jobs that one call of the function takes, as a list, 1 to 1,000. The
                call succeeds or fails for all of them. If it returns a list with an error among the
                items, each item is the outcome of one job.
            name: The task's name, which its jobs carry; the function's module and name unless
                given.
            aliases: Other names, for jobs that were put before a rename.
            cancellable: Let a cancel by its job's key reach a coroutine that runs, as
                `asyncio.CancelledError`, within some 1 s. One read of the key a second.
            on_dead: Called with each of its jobs that dies, instead of the app's.
            options: As `DeclaredOptions` names them.

        Raises:
            UsageError: If the function cannot be a task, its name is another's, or an option is
                unknown or cannot be used, or two contradict each other.
        """

        def declare(function: Callable[..., Any]) -> Task[..., Any, Any] | BatchTask[Any, Any]:
            return self._declare(
                function, batch, name, former, options, cancellable=cancellable, on_dead=on_dead
            )

        if isinstance(function, str):
            raise BadSetting(
                f"@app.task takes its options by name, as queue={function!r} or name={function!r}."
            )
        former = names.several(aliases, what="aliases")
        return declare if function is None else declare(function)

    def on_start(self, function: Callable[[], A], /) -> Callable[[], A]:
        """Let each worker call a function before it runs jobs: `@app.on_start`.

        The functions are called in the order of declaration. A coroutine runs in the worker's loop:
        make a client there if other coroutines share it. A worker does not start if one of the
        functions fails; it then calls the functions of `on_stop`, if an earlier function had
        returned.

        Args:
            function: Takes no arguments, plain or `async`.

        Raises:
            BadSetting: If it is no function, or has a `yield`.
        """
        _check_function(function, "on_start")
        self._home.on_start.append(function)
        return function

    def on_stop(self, function: Callable[[], A], /) -> Callable[[], A]:
        """Let each worker call a function once its jobs have ended: `@app.on_stop`.

        The functions are called in reverse order of declaration. Coroutines run in the worker's
        loop, each no longer than the worker's deadline. Failures are logged. A killed worker calls
        none of them.

        Args:
            function: As for `on_start`.

        Raises:
            BadSetting: If it is no function, or has a `yield`.
        """
        _check_function(function, "on_stop")
        self._home.on_stop.append(function)
        return function

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any] | BatchTask[Any, Any]]:
        """The tasks, by name."""
        return MappingProxyType(self._tasks)

    @property
    def queue_names(self) -> list[str]:
        """The queues of the tasks, sorted. A worker serves them."""
        return self._home.queue_names

    # Jobs -----------------------------------------------------------------------------------------

    def get(self, key: str, *, queue: str | None = None) -> Job[Any] | None:
        """The live job that has a key; None if there is none.

        Args:
            key: Its key.
            queue: The name of its queue; None: any queue of the tasks.
        """
        for one in self._searched(queue):
            found = one.get(key)
            if found is not None:
                return self._job(one, found)
        return None

    def cancel(self, key: str, *, queue: str | None = None) -> Answer:
        """Cancel the job that has a key. After `done` it never runs, whatever crashes.

        Args:
            key: Its key.
            queue: The name of its queue; None: each queue of the tasks.

        Returns:
            The outcome. A running job is asked to stop, and does not run again.
        """
        return self._by_key(queue, lambda one: one.cancel(key=key))

    def move(
        self,
        key: str,
        *,
        due: Due | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
    ) -> Answer:
        """Let the waiting job that has a key run at another time.

        Args:
            key: Its key.
            due: The new due, as for `Queue.put`.
            delay: Instead of `due`: how long from now.
            queue: The name of its queue; None: each queue of the tasks.
        """
        return self._by_key(queue, lambda one: one.move(key, due=due, delay=delay))

    def job(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> Job[Any]:
        """A job by its id, for a job that another process has put; reads nothing yet.

        Args:
            job_id: Its id.
            queue: The name of its queue; None: the queue of its task, or the only one of all tasks.
            task: The name of its task, whose type hints read the result; None: the result is plain
                JSON.

        Raises:
            UsageError: If the tasks have several queues and none is named, or if there is no such
                task.
        """
        names.label(job_id, what="job id")
        definition = None
        if task is not None:
            definition = self._home.find(task)
            if definition is None:
                raise UsageError(f"there is no task {task!r} in this app; {self._home.known(task)}")
        if queue is None and definition is not None:
            queue = definition.options.queue
        if queue is None:
            if len(self.queue_names) != 1:
                raise UsageError(
                    f"job {job_id} may be in any of {', '.join(self.queue_names) or 'no queue'}; "
                    f"name its queue: job({job_id!r}, queue=..)."
                )
            queue = self.queue_names[0]
        return Job(
            self.queue(queue),
            job_id,
            signature=None if definition is None else definition.decoder,
            keep_ms=None,
            task=task or "",
        )

    # Schedules ------------------------------------------------------------------------------------

    def every(
        self,
        interval: Duration,
        call: Call[Any] | WithoutArguments,
        *,
        name: str | None = None,
        revision: int = 1,
        start: Due | None = None,
        end: Due | None = None,
        at_start: bool = False,
        count: int | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> None:
        """Declare that a task is put repeatedly, each time after an interval.

        Nothing is read or written until a worker starts or `reconcile` is called, which makes the
        schedule. An existing schedule is changed only if its revision is lower: raise the revision
        with each change of the declaration.

        Args:
            interval: The time between two fire times, 1 s or more. Clock changes do not affect it.
            call: The task, or `task.of(..)` with its arguments. The job takes its options from the
                task: `every("15m", sync.using(key="crm"))`.
            name: The schedule's, unique in the task's queue; the task's name unless given.
            revision: 1 or more. If two programs declare schedules of one name, the higher revision
                wins.
            start: The first fire time, which must be the same in each run of the program; None: one
                interval after the schedule was made.
            end: The schedule fires no later than this.
            at_start: True to fire as soon as the schedule is made; instead of `start`.
            count: How often the schedule fires; None: without end.
            policies: Policies, by their names in `PolicyOptions`.

        Raises:
            UsageError: If something cannot be used, the function does not take the arguments, or
                the app declares another schedule of the name.
        """
        made = chosen(every=interval, start=start, end=end, at_start=at_start)
        self._declarations.add(made, call, name, revision, {"count": count, **policies})

    def cron(
        self,
        text: str,
        call: Call[Any] | WithoutArguments,
        *,
        tz: str | tzinfo = "UTC",
        name: str | None = None,
        revision: int = 1,
        start: Due | None = None,
        end: Due | None = None,
        count: int | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> None:
        """Declare that a task is put at times of the wall clock, as cron does.

        Args:
            text: Five fields as cron reads them, `30 2 * * 1-5`; six, with the seconds first; or
                `@daily` and the like.
            call: As for `every`.
            tz: The zone of that wall clock, by its IANA name.
            name: As for `every`.
            revision: As for `every`.
            start: The schedule fires no sooner than this.
            end: The schedule fires no later than this.
            count: How often the schedule fires; None: without end.
            policies: Policies, by their names in `PolicyOptions`.

        Raises:
            UsageError: As `every`.
        """
        made = chosen(cron=text, tz=tz, start=start, end=end)
        self._declarations.add(made, call, name, revision, {"count": count, **policies})

    def schedule(
        self,
        trigger: BaseTrigger | Trigger,
        call: Call[Any] | WithoutArguments,
        *,
        name: str | None = None,
        revision: int = 1,
        count: int | None = None,
        **policies: Unpack[PolicyOptions],
    ) -> None:
        """Declare that a task is put whenever a trigger of APScheduler fires.

        Args:
            trigger: An interval, cron, date or calendar interval, or several combined by
                `AndTrigger` or `OrTrigger`.
            call: As for `every`.
            name: As for `every`.
            revision: As for `every`.
            count: How often the schedule fires; None: without end.
            policies: Policies, by their names in `PolicyOptions`.

        Raises:
            UsageError: As `every`.
        """
        self._declarations.add(chosen(trigger), call, name, revision, {"count": count, **policies})

    def unschedule(self, name: str, *, queue: str | None = None) -> None:
        """Declare the removal of a schedule that code has declared before.

        Nothing is read or written until a worker starts or `reconcile` is called. Code of the same
        revision, started later, does not make it again. A schedule made at run time stays.

        Args:
            name: The schedule's.
            queue: The name of its queue; None: each queue of the tasks.

        Raises:
            UsageError: If the app declares it as well.
        """
        self._declarations.remove(name, queue)

    def reconcile(self) -> Reconciled:
        """Bring the store's schedules to the declared ones, as each worker does at its start.

        Idempotent.

        Returns:
            The names of the schedules that were made, changed and removed.

        Raises:
            UsageError: If the store has different schedules with the same revision, or a schedule
                cannot be used with its queue.
            StoreTimeout, StoreUnavailable: As for a put.
        """
        return self._declarations.reconcile()

    @property
    def schedules(self) -> AppSchedules:
        """The schedules in the store, declared or made at run time."""
        return AppSchedules(self._home)

    # The store ------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The store, opened on first use.

        Raises:
            BadUrl, SchemaMissing, StoreUnavailable: As for `shardq.connect`.
        """
        return self._home.connection

    def queue(self, name: str) -> Queue:
        """A queue of the app, made if it does not exist.

        A queue allows as many deliveries of a message as the tasks that are put into it ask for.
        """
        return self._home.queue(name)

    def close(self) -> None:
        """Close the store, unless it was given as a connection. A put reopens it. Idempotent."""
        self._home.close()

    # Details --------------------------------------------------------------------------------------

    def _declare(
        self,
        function: Callable[..., Any],
        batch: int | None,
        name: str | None,
        aliases: tuple[str, ...],
        given: Mapping[str, Any],
        *,
        cancellable: bool,
        on_dead: Callable[[Message], object] | None,
    ) -> Task[..., Any, Any] | BatchTask[Any, Any]:
        if isinstance(function, Bound):
            raise UsageError(
                f"{shown(function)} is a task already; declare its function, {function.name}."
            )
        is_named = name is not None
        name = names.label(name or name_of(function), what="task name")
        if is_method(function):
            raise BadSetting(
                f"task {name} is a method, and a worker has no object to call it on; make it a "
                f"function that takes what it needs, or, outside of the class, a task of one "
                f"object's, app.task(Shop().send)."
            )
        if is_dispatching(function):
            raise BadSetting(
                f"task {name} is chosen by the type of its first argument, by position, and a "
                f"worker gives it all by name; declare a function that calls it."
            )
        _check_function(function, f"task {name}")
        for one in aliases:
            names.label(one, what=f"alias of task {name}")
        limits = {one: given[one] for one in TaskLimitOptions.__annotations__ if one in given}
        others = {one: value for one, value in given.items() if one not in limits}
        options = self._options.with_(others, f"task {name}", is_call=False, others=_OWN)
        definition = TaskDefinition(
            function,
            TaskSignature(function, name=name, batch=batch is not None),
            options,
            name=name,
            aliases=aliases,
            shorter=() if is_named else tuple(shorter_names(function)),
            batch=batch,
            cancellable=cancellable,
            on_dead=on_dead,
            limit=read_task(limits),
        )
        self._home.add(definition)
        made: Task[..., Any, Any] | BatchTask[Any, Any]
        made = (Task if batch is None else BatchTask)(self._home, definition)
        self._tasks[name] = made
        return made

    def _searched(self, queue: str | None) -> list[Queue]:
        searched = self.queue_names if queue is None else [queue]
        return [self.queue(name) for name in searched]

    def _by_key(self, queue: str | None, command: Callable[[Queue], Answer]) -> Answer:
        """Give a command to each queue that may have the key; returns the best answer."""
        answers = [command(one) for one in self._searched(queue)]
        for best in (Answer.DONE, Answer.RUNNING):
            if best in answers:
                return best
        return Answer.NOT_THERE

    def _job(self, queue: Queue, found: Snapshot) -> Job[Any]:
        headers = found.headers
        definition = self._home.find(headers.get(TASK_HEADER, ""))
        policy = Policy() if definition is None else definition.options.policy
        return Job(
            queue,
            found.id,
            signature=None if definition is None else definition.decoder,
            keep_ms=policy.of_job(headers).keep_ms,
            task=headers.get(TASK_HEADER, ""),
            key=found.key,
        )


def _check_function(function: object, what: str) -> None:
    """Refuse a callable whose call neither does its work nor returns a coroutine that does.

    Raises:
        BadSetting: If it cannot be called, is a class, or has a `yield`.
    """
    if not callable(function) or isinstance(function, type):
        raise BadSetting(f"{what} must be a function, not {shown(function)}.")
    lazy = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_any(one, function) for one in lazy):
        raise BadSetting(
            f"{what} has a yield, so a call of it runs nothing; let it run to its end."
        )
