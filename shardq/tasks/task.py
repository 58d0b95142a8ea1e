"""A task: a function that can be put, and the puts of it."""

from __future__ import annotations

import inspect
import string
from contextlib import ExitStack
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from shardq.errors import BadArguments, BadSetting, UsageError, shown
from shardq.model.message import JOB_HEADERS, Sealed, headers_json
from shardq.tasks.elsewhere import FromElsewhere
from shardq.tasks.job import Job
from shardq.tasks.middleware import Draft
from shardq.tasks.options import OPTIONS_HEADER, TASK_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardq.lifecycle.batch import Item
    from shardq.queue import Queue
    from shardq.schedules.options import JobOptions
    from shardq.tasks.definition import TaskDefinition
    from shardq.tasks.options import CallOptions, ChosenOptions
    from shardq.tasks.registry import Registry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")

_NOT_SCHEDULED = {
    "due": "the schedule's trigger says when its jobs are due; leave it out",
    "delay": "the schedule's trigger says when its jobs are due; give the task using(delay=None)",
    "id": "each job of a schedule has an id of its own; leave it out",
    "debounce": "a schedule would put the same job off for ever; give the task "
    "using(on_conflict='keep', max_wait=None)",
}
"""Options of a put that make no sense with a schedule; each with the reason and the remedy."""
_SWALLOWED = "nothing was put, and middleware keeps the error to itself; let its put(draft) raise."


class _Given(string.Formatter):
    """Fills in a template; None has no text."""

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The value of a field, and the argument that contains it.

        Raises:
            ValueError: If it is None.
        """
        value, argument = super().get_field(field_name, args, kwargs)
        if value is None:
            raise ValueError(f"{field_name} is None")
        return value, argument


_given = _Given()


class Call(Generic[P]):
    """The arguments of one job, and the options of its put. Made by `Bound.of`."""

    __slots__ = ("_args", "_bound", "_kwargs")

    def __init__(self, bound: Bound[P, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._bound = bound
        self._args = args
        self._kwargs = kwargs

    def _scheduled(self) -> ScheduledCall:
        """The job that a schedule puts each time it fires.

        Raises:
            BadArguments: If the function does not take the arguments.
            UsageError: If an option makes no sense with a schedule.
        """
        return self._bound._scheduled(self._args, self._kwargs)  # noqa: SLF001 - it is ours


class WithoutArguments(Protocol):
    """A task, with options or not, that can be put without arguments."""

    @property
    def name(self) -> str:
        """The task's name."""

    def put(self) -> Job[Any]:
        """Put a job."""


class ScheduledCall(NamedTuple):
    """The job that a schedule of a task puts each time it fires.

    Attributes:
        task: The task.
        registry: The app's tasks.
        queue: The name of the job's queue.
        attempts: How often each job may run.
        body: The arguments as JSON.
        options: The other options of `Queue.put`.
    """

    task: TaskDefinition
    registry: Registry
    queue: str
    attempts: int
    body: bytes
    options: JobOptions


class Bound(FromElsewhere, Generic[P, R]):
    """A task with options, ready to be put. Made by `Task.using`.

    Safe from any thread.
    """

    def __init__(
        self,
        registry: Registry,
        definition: TaskDefinition,
        options: ChosenOptions,
        literal: frozenset[str] = frozenset(),
    ) -> None:
        """Made by `Task` and `using`.

        Args:
            registry: The app's tasks.
            definition: The task.
            options: The options of its puts.
            literal: The options among key and group whose braces stay as they are.
        """
        self._registry = registry
        self._task = definition
        self._options = options
        self._literal = literal
        putting = options.putting
        self._templates = {
            name: putting[name]
            for name in ("key", "group")
            if name in putting and name not in literal
        }
        self._headers: dict[str, str] = {TASK_HEADER: definition.name, **options.headers}
        if changed := definition.options.policy.changes_json(options.policy):
            self._headers[OPTIONS_HEADER] = changed
        self._headers_json = headers_json(self._headers) or ""

    @property
    def name(self) -> str:
        """The task's name, by which jobs find it."""
        return self._task.name

    def check(self) -> None:
        """Resolve the type hints of the function, which otherwise the first put does.

        Raises:
            UsageError: If a hint cannot be resolved, or its values cannot be JSON.
        """
        self._task.signature.check(result=self._options.policy.keep_ms is not None)

    def put(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job: a worker calls the function with these arguments.

        Returns:
            The job; if another job has the key, the other job.

        Raises:
            BadArguments: If the function does not take them, by its signature and its type hints,
                or they cannot be JSON; nothing was written.
            UsageError: If an option cannot be used; nothing was written.
            KeyTaken, StoreTimeout, StoreUnavailable: As for `Queue.put`.
        """
        task, options, message = self._task, self._options, None
        body = task.encode(args, kwargs)
        queue = self._registry.queue(options.queue)
        self._check_attempts(queue)
        with ExitStack() as stack:
            headers = self._drafted(stack, args, kwargs)
            putting = self._filled(args, kwargs)
            message = queue.put(body, headers=headers, **putting)
        if message is None:
            raise UsageError(f"task {task.name}: {_SWALLOWED}")
        return Job(
            queue,
            message,
            signature=task.decoder,
            keep_ms=options.policy.keep_ms,
            task=task.name,
        )

    @overload
    def put_many(
        self,
        items: Iterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]],
        *,
        ids: Literal[False] = False,
    ) -> int: ...
    @overload
    def put_many(
        self, items: Iterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]], *, ids: Literal[True]
    ) -> list[str]: ...
    def put_many(
        self,
        items: Iterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]],
        *,
        ids: bool = False,
    ) -> int | list[str]:
        """Put a job for each item of an iterable, lazily, as fast as `Queue.put_many`.

        Args:
            items: The arguments of each call: `task.of(..)`, which a type checker checks and which
                may have options of its own; a tuple of arguments by position; or a mapping of them
                by name.
            ids: True to return the jobs' ids, for `App.job`.

        Returns:
            How many were put, or their ids in order.

        Raises:
            BadArguments: If the function does not take an item; the items before it are stored, and
                a note on the error has their number.
            KeyTaken, StoreTimeout, StoreUnavailable: As for `Queue.put_many`.
        """
        queue = self._registry.queue(self._options.queue)
        self._check_attempts(queue)
        return queue.put_many(self._messages(items), ids=ids)

    def of(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """Arguments for `put_many` and for schedules, in a form that type checkers check."""
        return Call(self, args, kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """The same task, put with other options.

        Args:
            options: Options that replace those of the task.

        Raises:
            UsageError: If one is unknown or cannot be used, or two contradict each other.
        """
        made = self._options.with_(options, f"task {self.name}", is_call=True)
        literal = self._literal | {name for name in ("key", "group") if name in options}
        return Bound(self._registry, self._task, made, literal)

    def _scheduled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScheduledCall:
        body = self._task.encode(args, kwargs)
        putting = self._filled(args, kwargs)
        for name in (*putting, str(putting.get("on_conflict"))):
            if (why := _NOT_SCHEDULED.get(name)) is not None:
                option = f"{name}={shown(putting[name])}" if name in putting else name
                raise BadSetting(f"task {self.name}: {option} has no use here: {why}.")
        return ScheduledCall(
            self._task,
            self._registry,
            self._options.queue,
            self._options.policy.attempts,
            body,
            cast("JobOptions", {**putting, "headers": self._headers}),
        )

    def _check_attempts(self, queue: Queue) -> None:
        check_attempts(self.name, self._options.policy.attempts, queue)

    def _drafted(
        self, stack: ExitStack, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, str]:
        """The headers of a put, after the app's middleware has seen it."""
        middleware = self._registry.middleware
        if not middleware:
            return self._headers
        draft = Draft(self.name, self._options.queue, args, kwargs, dict(self._options.headers))
        for one in middleware:
            stack.enter_context(one.put(draft))
        own = {name: self._headers[name] for name in JOB_HEADERS if name in self._headers}
        return draft.headers | own

    def _filled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of `Queue.put`, with key and group filled in."""
        if not self._templates:
            return self._options.putting
        bound = inspect.signature(self._task.function).bind(*args, **kwargs)
        bound.apply_defaults()
        filled = {}
        for name, template in self._templates.items():
            try:
                filled[name] = _given.vformat(template, (), bound.arguments)
            except (LookupError, AttributeError, ValueError, TypeError) as error:
                raise UsageError(
                    f"task {self.name}: {name} {shown(template)} cannot be filled in with its "
                    f"arguments: {type(error).__name__}: {error}."
                ) from error
        return {**self._options.putting, **filled}

    def _messages(self, items: Iterable[Any]) -> Iterator[Item]:
        task = self._task
        is_plain = not self._options.putting and not self._registry.middleware
        text, encode, is_batch = self._headers_json, task.encode, task.batch is not None
        args: tuple[Any, ...]
        kwargs: dict[str, Any]
        for item in items:
            kind = type(item)
            if kind is Call:
                yield item._bound._message_of(item._args, item._kwargs, whose=self)  # noqa: SLF001 - it is ours
                continue
            if is_batch:
                args, kwargs = (item,), {}
            elif kind is tuple:
                args, kwargs = item, {}
            elif kind is dict:
                args, kwargs = (), item
            else:
                args, kwargs = self._arguments_of(item)
            if is_plain:
                yield Sealed(encode(args, kwargs), text)
            else:
                yield self._message_of(args, kwargs, whose=self)

    def _message_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, whose: Bound[Any, Any]
    ) -> Item:
        if self._task is not whose._task or self._options.queue != whose._options.queue:
            raise UsageError(
                f"task {whose.name}: put_many into queue {whose._options.queue!r} was given a call "
                f"of task {self.name} for queue {self._options.queue!r}; put that by itself."
            )
        body = self._task.encode(args, kwargs)
        with ExitStack() as stack:
            headers = self._drafted(stack, args, kwargs)
            return {"body": body, "headers": headers, **self._filled(args, kwargs)}
        raise UsageError(f"task {self.name}: {_SWALLOWED}")

    def _arguments_of(self, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(item, tuple):
            return tuple(item), {}
        try:
            return (), {**item}
        except TypeError:
            raise BadArguments(
                f"task {self.name}: put_many takes tuples of arguments, mappings of them, or what "
                f"of(..) of the task makes, not {shown(item)}."
            ) from None


def check_attempts(task: str, attempts: int, queue: Queue) -> None:
    """Refuse more attempts than a queue allows.

    Raises:
        BadSetting: If there are more.
    """
    if attempts > queue.settings.attempts:
        raise BadSetting(
            f"task {task}: attempts={attempts:,} is more than the {queue.settings.attempts:,} that "
            f"queue {queue.name!r} allows; declare it with the task, or call `shardq queues alter "
            f"{queue.name} --attempts {attempts}`."
        )


class _Declared(Bound[P, R]):
    """The task that replaces its function in the module, with its own options."""

    def __init__(self, registry: Registry, definition: TaskDefinition) -> None:
        super().__init__(registry, definition, definition.options)
        function = definition.function
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__name__: str = getattr(function, "__name__", definition.name)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__wrapped__: Callable[..., Any] = function
        if inspect.isfunction(function):
            # With these attributes `inspect`, and frameworks that await async functions, accept a
            # task as a function.
            for name in ("__code__", "__defaults__", "__kwdefaults__", "__annotations__"):
                setattr(self, name, getattr(function, name))

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self._options.queue!r}>"

    def __reduce__(self) -> str:
        # A task is pickled like a function, by its name in the module.
        return self.__qualname__


class Task(_Declared[P, R], Generic[P, R, T]):
    """A function that can be put. Made by `App.task`.

    A call of it calls the function, here and now.
    """

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, here and now."""
        result: T = self._task.function(*args, **kwargs)
        return result


class BatchTask(_Declared[[A], None], Generic[A, T]):
    """A function of a list of items, put one item at a time. Made by `App.task(batch=..)`."""

    if TYPE_CHECKING:
        # `put` of a batch takes an item, not a tuple or mapping of arguments.
        @overload  # type: ignore[override]
        def put_many(
            self, items: Iterable[A | Call[[A]]], *, ids: Literal[False] = False
        ) -> int: ...
        @overload
        def put_many(self, items: Iterable[A | Call[[A]]], *, ids: Literal[True]) -> list[str]: ...
        def put_many(self, items: Iterable[Any], *, ids: bool = False) -> int | list[str]:
            """Put a job for each item of an iterable, as `Bound.put_many` does."""

    def __call__(self, items: list[A]) -> T:
        """Call the function, here and now."""
        result: T = self._task.function(items)
        return result
