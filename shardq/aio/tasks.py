"""Apps, tasks and jobs, from asyncio."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)
from weakref import WeakKeyDictionary

from shardq import tasks
from shardq.aio.feed import fed
from shardq.aio.schedules import AppSchedules
from shardq.aio.threaded import Face, or_none, threaded
from shardq.aio.threads import THREADS, Threads
from shardq.clock import pause
from shardq.errors import BadSetting, shown
from shardq.tasks.elsewhere import FromElsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from datetime import datetime

    from shardq.aio.feed import AnyIterable
    from shardq.model.times import Duration
    from shardq.tasks import Call, CallOptions, JobState, Progress
    from shardq.tasks.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_threads: WeakKeyDictionary[Registry, Threads] = WeakKeyDictionary()
"""Where the calls of each app run, by what its tasks share."""


def _threads_of(registry: Registry, count: int = THREADS) -> Threads:
    found = _threads.get(registry)
    if found is None or found.is_closed:
        found = _threads[registry] = Threads(count)
    return found


def _job_face(job: tasks.Job[R], threads: Threads) -> Job[R]:
    return Job(job, threads)


class App:
    """An app, from asyncio: `aio.App(app)`.

    Its threads are those of its tasks as well, however many of these are made of one app.

    Args:
        app: The app.
        threads: In how many threads calls run, 1 to 1,000, unless the app has some already; in half
            as many others what puts many.

    Raises:
        BadSetting: If it is no app.
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

    @threaded(tasks.App.get, face=or_none(_job_face))
    def get(self) -> None:
        """The live job that has a key, as `shardq.App.get`."""

    @threaded(tasks.App.cancel)
    def cancel(self) -> None:
        """Cancel the job that has a key, as `shardq.App.cancel`."""

    @threaded(tasks.App.move)
    def move(self) -> None:
        """Let the job that has a key run at another time, as `shardq.App.move`."""

    @threaded(tasks.App.job, face=_job_face)
    def job(self) -> None:
        """A job by its id, as `shardq.App.job`."""

    @property
    def schedules(self) -> AppSchedules:
        """The schedules that are in the store, declared or made at run time."""
        return AppSchedules(lambda: self._app.schedules, self._threads)

    @threaded(tasks.App.reconcile)
    def reconcile(self) -> None:
        """Bring the store's schedules to what is declared, as `shardq.App.reconcile`."""

    async def close(self) -> None:
        """Let calls end, and close the store, as `shardq.App.close`; a put opens it anew."""
        await self._threads.close(self._app.close)

    @property
    def _threads(self) -> Threads:
        return _threads_of(self._app._home)

    async def _call(self, call: Callable[[tasks.App], T], *, is_long: bool = False) -> T:
        return await self._threads.call(lambda: call(self._app), is_long=is_long)


def task(task: tasks.Bound[P, R]) -> Task[P, R]:
    """A task, from asyncio: `await aio.task(welcome).put("ada")`.

    Args:
        task: What `App.task` has made, or `using` of that.

    Raises:
        BadSetting: If it is none.
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

        An async iterable is read by the task of asyncio that calls this, any other in a thread.
        Of a task of batches, type checkers know items by `of` alone.
        """

        def put(items: Iterable[Any]) -> int | list[str]:
            return self._task.put_many(items, ids=True) if ids else self._task.put_many(items)

        threads = _threads_of(self._registry)
        db = await threads.call(lambda: self._registry.connection)
        return await fed(items, put, threads, db._home.clock)

    def of(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """Arguments for `put_many`, which a type checker can check."""
        return self._task.of(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Task[P, R]:
        """The same task, put with other options, as `shardq.tasks.Bound.using`."""
        return Task(self._task.using(**options))


class Job(Face[tasks.Job[R]], Generic[R]):
    """A job that was put, from asyncio. Made by its task, and by `App.job` of an id.

    Attributes:
        id: Its id.
        queue: The name of its queue.
        task: The name of its task; empty where that is not known.
        key: The name that it was put under, if any.
        due: When it was put to be due, UTC; None of an id alone.
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
        """How it stands, as `shardq.tasks.Job.state`."""
        return await self._call(lambda job: job.state)

    async def progress(self) -> Progress | None:
        """How far it last said to be, as `shardq.tasks.Job.progress`."""
        return await self._call(lambda job: job.progress)

    async def error(self) -> str | None:
        """Why its last failed attempt failed, as `shardq.tasks.Job.error`."""
        return await self._call(lambda job: job.error)

    async def traceback(self) -> str | None:
        """The end of that one's traceback, as `shardq.tasks.Job.traceback`."""
        return await self._call(lambda job: job.traceback)

    async def attempt(self) -> int:
        """The number of its last attempt, as `shardq.tasks.Job.attempt`."""
        return await self._call(lambda job: job.attempt)

    async def result(self, timeout: Duration | None = None) -> R:
        """What it returns, waited for as by `shardq.tasks.Job.result`.

        Between its looks no thread waits, so that any number of results can be waited for.
        """
        pauses = self._job._pauses(timeout)  # noqa: SLF001 - it is shardq's own
        while True:
            looked = await self._threads.call(lambda: _look(pauses))
            if not isinstance(looked, float):
                return looked.value
            await pause(looked)

    @threaded(tasks.Job.cancel)
    def cancel(self) -> None:
        """Remove it, unless it has ended, as `shardq.tasks.Job.cancel`."""

    @threaded(tasks.Job.move)
    def move(self) -> None:
        """Let it be due at another time, as `shardq.tasks.Job.move`."""


class _JobEnd(NamedTuple, Generic[R]):
    """The end of a job that was waited for.

    Attributes:
        value: What it has returned.
    """

    value: R


def _look(pauses: Generator[float, None, R]) -> float | _JobEnd[R]:
    """How a job looks by now: in how many seconds to look again, or its end."""
    try:
        return next(pauses)
    except StopIteration as end:
        return _JobEnd(end.value)
