"""Apps, tasks and jobs, from asyncio."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from weakref import WeakKeyDictionary

from shardq import tasks
from shardq.aio.feed import fed
from shardq.aio.schedules import AppSchedules
from shardq.aio.threaded import Face, declared, faced, or_none, threaded
from shardq.aio.threads import THREADS, Threads
from shardq.clock import pause
from shardq.errors import BadSetting, shown
from shardq.tasks.elsewhere import FromElsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from shardq.aio.feed import AnyIterable
    from shardq.model.times import Duration
    from shardq.tasks import Call, CallOptions, JobState, Progress
    from shardq.tasks.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_threads: WeakKeyDictionary[Registry, Threads] = WeakKeyDictionary()
"""The threads of each app, by its registry of tasks."""


def _threads_of(registry: Registry, count: int = THREADS) -> Threads:
    found = _threads.get(registry)
    if found is None or found.is_closed:
        found = _threads[registry] = Threads(count)
    return found


def _job_face(job: tasks.Job[R], threads: Threads) -> Job[R]:
    return Job(job, threads)


class App:
    """An app, from asyncio: `aio.App(app)`.

    All faces of one app and of its tasks share the same threads.

    Args:
        app: The app.
        threads: How many threads run calls, 1 to 1,000, unless the app has threads already. Long
            calls run in half as many further threads.

    Raises:
        BadSetting: If `app` is no app.
    """

    def __init__(self, app: tasks.App, *, threads: int = THREADS) -> None:
        if not isinstance(app, tasks.App):
            raise BadSetting(f"aio.App takes a shardq.App, App(url) say, not {shown(app)}.")
        self._app = app
        _threads_of(app._home, threads)

    def __repr__(self) -> str:
        return f"<aio.App of {self._app!r}>"

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @declared(faced(tasks.App.get, or_none(_job_face)))
    def get(self) -> None:
        """The live job that has a key, as `shardq.App.get`."""

    @declared(threaded(tasks.App.cancel))
    def cancel(self) -> None:
        """Cancel the job that has a key, as `shardq.App.cancel`."""

    @declared(threaded(tasks.App.move))
    def move(self) -> None:
        """Give the job that has a key another due, as `shardq.App.move`."""

    @declared(faced(tasks.App.job, _job_face))
    def job(self) -> None:
        """A job by its id, as `shardq.App.job`."""

    @property
    def schedules(self) -> AppSchedules:
        """The schedules in the store, declared or made at run time."""
        return AppSchedules(lambda: self._app.schedules, self._threads)

    @declared(threaded(tasks.App.reconcile))
    def reconcile(self) -> None:
        """Bring the store's schedules to the declared ones, as `shardq.App.reconcile`."""

    async def close(self) -> None:
        """Wait for the calls, and close the store, as `shardq.App.close`; a put reopens it."""
        await self._threads.close(self._app.close)

    @property
    def _threads(self) -> Threads:
        return _threads_of(self._app._home)

    async def _call(self, call: Callable[[tasks.App], T], *, is_long: bool = False) -> T:
        return await self._threads.call(lambda: call(self._app), is_long=is_long)


def task(task: tasks.Bound[P, R]) -> Task[P, R]:
    """A task, from asyncio: `await aio.task(welcome).put("ada")`.

    Args:
        task: A task of `App.task`, or the result of its `using`.

    Raises:
        BadSetting: If `task` is no task.
    """
    if not isinstance(task, tasks.Bound):
        raise BadSetting(f"aio.task takes what @app.task has made, not {shown(task)}.")
    return Task(task)


class Task(FromElsewhere, Generic[P, R]):
    """A task, from asyncio. Made by `task`."""

    def __init__(self, task: tasks.Bound[P, R]) -> None:
        """Made by `task`."""
        self._task = task
        self._registry = task._registry  # noqa: SLF001 - it is shardq's own

    def __repr__(self) -> str:
        return f"<aio.Task of {self._task!r}>"

    @property
    def name(self) -> str:
        """The task's name, by which jobs find it."""
        return self._task.name

    async def put(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job, as `shardq.tasks.Bound.put`; when this returns, the store has it."""
        threads = _threads_of(self._registry)
        return Job(await threads.call(lambda: self._task.put(*args, **kwargs)), threads)

    @overload
    async def put_many(
        self,
        items: AnyIterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]],
        *,
        ids: Literal[False] = False,
    ) -> int: ...
    @overload
    async def put_many(
        self,
        items: AnyIterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]],
        *,
        ids: Literal[True],
    ) -> list[str]: ...
    async def put_many(self, items: AnyIterable[Any], *, ids: bool = False) -> int | list[str]:
        """Put a job for each item, as `shardq.tasks.Bound.put_many`.

        An async iterable is read by the asyncio task that calls this, any other in a thread. For a
        task of batches, type checkers accept only items made by `of`.
        """

        def put(items: Iterable[Any]) -> int | list[str]:
            return self._task.put_many(items, ids=True) if ids else self._task.put_many(items)

        threads = _threads_of(self._registry)
        db = await threads.call(lambda: self._registry.connection)
        return await fed(items, put, threads, db._home.clock)

    def of(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """Arguments for `put_many`, in a form that type checkers check."""
        return self._task.of(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Task[P, R]:
        """The same task, put with other options, as `shardq.tasks.Bound.using`."""
        return Task(self._task.using(**options))


class Job(Face[tasks.Job[R]], Generic[R]):
    """A job that was put, from asyncio. Made by its task, and by `App.job`.

    Attributes:
        id: Its id.
        queue: The name of its queue.
        task: The name of its task; empty if it is not known.
        key: Its key; None if it has none.
        due: The due that it was put with, UTC; None if only the id is known.
    """

    def __init__(self, job: tasks.Job[R], threads: Threads) -> None:
        """Made by its task, and by `App.job`."""
        super().__init__(lambda: job, threads)
        self._job = job
        self.id: str = job.id
        self.queue: str = job.queue
        self.task: str = job.task
        self.key: str | None = job.key
        self.due: datetime | None = job.due

    def __repr__(self) -> str:
        return f"<aio.Job of {self._job!r}>"

    async def state(self) -> JobState:
        """Its state, as `shardq.tasks.Job.state`."""
        return await self._call(lambda job: job.state)

    async def progress(self) -> Progress | None:
        """Its last reported progress, as `shardq.tasks.Job.progress`."""
        return await self._call(lambda job: job.progress)

    async def error(self) -> str | None:
        """The error of its last failed attempt, as `shardq.tasks.Job.error`."""
        return await self._call(lambda job: job.error)

    async def traceback(self) -> str | None:
        """The end of the last error's traceback, as `shardq.tasks.Job.traceback`."""
        return await self._call(lambda job: job.traceback)

    async def attempt(self) -> int:
        """The number of its last attempt, as `shardq.tasks.Job.attempt`."""
        return await self._call(lambda job: job.attempt)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for its result, as `shardq.tasks.Job.result`.

        A wait uses a thread only for its reads, so any number of tasks may wait for results.
        """
        pauses = self._job._pauses(timeout)  # noqa: SLF001 - it is shardq's own

        def look() -> tuple[float, R | None]:
            try:
                return next(pauses), None
            except StopIteration as end:
                return 0, end.value

        while True:
            seconds, result = await self._threads.call(look)
            if not seconds:
                return cast("R", result)
            await pause(seconds)

    @declared(threaded(tasks.Job.cancel))
    def cancel(self) -> None:
        """Cancel the job, unless it has ended, as `shardq.tasks.Job.cancel`."""

    @declared(threaded(tasks.Job.move))
    def move(self) -> None:
        """Give the job another due, as `shardq.tasks.Job.move`."""
