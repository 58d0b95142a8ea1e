"""A task: a function that can be put, and the puts of it."""

from __future__ import annotations

import inspect
import string
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from shardq.errors import BadArguments, BadSetting, UsageError, shown
from shardq.model.message import Sealed, headers_json
from shardq.tasks.job import Job
from shardq.tasks.middleware import Draft, entered_put
from shardq.tasks.options import BATCH_MAX, OPTIONS_HEADER, TASK_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shardq.lifecycle.producer import Item
    from shardq.queue import Queue
    from shardq.tasks.app import App
    from shardq.tasks.arguments import Signature
    from shardq.tasks.options import CallOptions, Options

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")


class Definition:
    """What a task is, apart from how it is put.

    Attributes:
        app: Its app.
        name: By which jobs name it.
        aliases: Other names under which jobs find it.
        function: The user's.
        signature: Of the function.
        options: Of all its puts.
        batch: How many jobs its function takes at once; None where it takes one.
        is_async: Whether a call of it gives a coroutine.
    """

    __slots__ = (
        "aliases", "app", "batch", "function", "is_async", "name", "options", "signature"
    )  # fmt: skip

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        signature: Signature,
        options: Options,
        *,
        name: str,
        aliases: tuple[str, ...],
        batch: int | None,
    ) -> None:
        self.app: App = app
        self.name: str = name
        self.aliases: tuple[str, ...] = aliases
        self.function: Callable[..., Any] = function
        self.signature: Signature = signature
        self.options: Options = options
        self.batch: int | None = batch
        self.is_async: bool = inspect.iscoroutinefunction(function)
        if batch is not None and not (type(batch) is int and 1 <= batch <= BATCH_MAX):
            raise BadSetting(f"task {name}: batch must be 1 to {BATCH_MAX:,}, not {shown(batch)}.")
        for option in ("key", "group"):
            if (template := options.putting.get(option)) is not None:
                self._check_template(option, template)

    @property
    def decoder(self) -> Signature | None:
        """By whose return hint results are read; of a batch, which has none for each job, None."""
        return self.signature if self.batch is None else None

    def encode_result(self, value: Any) -> bytes:
        """What a job has returned, as JSON; of a batch that is null.

        Raises:
            BadResult: If it cannot be.
        """
        return self.signature.encode_result(value) if self.batch is None else b"null"

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The body of a job; of a batch task the only argument is its item."""
        if self.batch is None:
            return self.signature.encode(args, kwargs)
        if len(args) != 1 or kwargs:
            raise BadArguments(
                f"task {self.name}: a task of batches is put one item at a time, put(item)."
            )
        return self.signature.encode_item(args[0])

    def _check_template(self, option: str, template: str) -> None:
        try:
            named = {
                field.partition(".")[0].partition("[")[0]
                for _, field, _, _ in string.Formatter().parse(template)
                if field is not None
            }
        except (ValueError, TypeError) as error:
            raise BadSetting(
                f"task {self.name}: {option} {shown(template)} cannot be filled in: {error}."
            ) from error
        if named and self.batch is not None:
            raise BadSetting(
                f"task {self.name}: {option} cannot name arguments of a task of batches; "
                f"give it with each put, using({option}=..)."
            )
        if unknown := named - set(inspect.signature(self.function).parameters):
            raise BadSetting(
                f"task {self.name}: {option} {shown(template)} names "
                f"{', '.join(repr(one) for one in sorted(unknown))}, which is no argument of it."
            )


class Call(Generic[P]):
    """The arguments of one job, and the options that it is put with. `Bound.of` makes it."""

    __slots__ = ("_args", "_bound", "_kwargs")

    def __init__(self, bound: Bound[P, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._bound = bound
        self._args = args
        self._kwargs = kwargs


class Bound(Generic[P, R]):
    """A task with options, ready to be put. `Task.using` makes it.

    From any thread.
    """

    def __init__(self, definition: Definition, options: Options, literal: frozenset[str]) -> None:
        """Made by `Task` and `using`.

        Args:
            definition: The task.
            options: How it is put.
            literal: Of key and group those that are taken as they are.
        """
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
        """Resolve the type hints of the function, which a put does otherwise.

        Raises:
            UsageError: If one cannot be resolved, or no JSON be made of it.
        """
        self._task.signature.check(result=self._options.policy.keep_ms is not None)

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Put a job: the function is to be called with these arguments.

        Returns:
            The job. With a key that another job has, that one.

        Raises:
            BadArguments: If the function does not take them, by its signature and its type hints,
                or they cannot be JSON; nothing was written.
            UsageError: If an option cannot be used; nothing was written.
            KeyTaken, StoreTimeout, StoreUnavailable: As for `Queue.put`.
        """
        task, options = self._task, self._options
        body = task.encode(args, kwargs)
        queue = task.app.queue(options.queue)
        self._check_attempts(queue)
        with ExitStack() as stack:
            headers = self._drafted(stack, args, kwargs)
            putting = self._filled(args, kwargs)
            message = queue.put(body, headers=headers, **putting)
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
            items: What the function is to be called with: `task.of(..)`, which a type checker
                checks and which may have options of its own; a tuple of arguments by position; or
                a mapping of them by name.
            ids: Whether to return the jobs' ids, for `App.job`.

        Returns:
            How many were put, or their ids in order.

        Raises:
            BadArguments: If the function does not take an item; those before it are stored, and a
                note says how many.
            KeyTaken, StoreTimeout, StoreUnavailable: As for `Queue.put_many`.
        """
        queue = self._task.app.queue(self._options.queue)
        self._check_attempts(queue)
        return queue.put_many(self._messages(items), ids=ids)

    def of(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """Arguments for `put_many`, which a type checker can check."""
        return Call(self, args, kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Bound[P, R]:
        """The same task, put with other options.

        Args:
            options: In the place of those that it has.

        Raises:
            UsageError: If one is unknown or cannot be used, or two contradict each other.
        """
        made = self._options.with_(options, f"task {self.name}", is_call=True)
        literal = self._literal | {name for name in ("key", "group") if name in options}
        return Bound(self._task, made, literal)

    def _check_attempts(self, queue: Queue) -> None:
        attempts = self._options.policy.attempts
        if attempts > queue.settings.attempts:
            raise BadSetting(
                f"task {self.name}: attempts={attempts:,} is more than the "
                f"{queue.settings.attempts:,} that queue {queue.name!r} allows; declare it with "
                f"the task, or call `shardq queues alter {queue.name} --attempts {attempts}`."
            )

    def _drafted(
        self, stack: ExitStack, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> dict[str, str]:
        """The headers of a put, once the app's middleware has seen it."""
        middleware = self._task.app.middleware
        if not middleware:
            return self._headers
        draft = Draft(self.name, self._options.queue, args, kwargs, dict(self._options.headers))
        entered_put(stack, middleware, draft)
        own = {
            name: self._headers[name]
            for name in (TASK_HEADER, OPTIONS_HEADER)
            if name in self._headers
        }
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
                filled[name] = template.format(**bound.arguments)
            except (LookupError, AttributeError, ValueError, TypeError) as error:
                raise UsageError(
                    f"task {self.name}: {name} {shown(template)} cannot be filled in with its "
                    f"arguments: {type(error).__name__}: {error}."
                ) from error
        return {**self._options.putting, **filled}

    def _messages(self, items: Iterable[Any]) -> Iterator[Item]:
        task = self._task
        is_plain = not self._options.putting and not task.app.middleware
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


class _Declared(Bound[P, R]):
    """What a declaration makes: the task with its own options, in the place of its function."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition, definition.options, frozenset())
        function = definition.function
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__name__: str = getattr(function, "__name__", definition.name)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__wrapped__: Callable[..., Any] = function

    def __repr__(self) -> str:
        return f"<task {self.name} of queue {self._options.queue!r}>"

    def __reduce__(self) -> str:
        # As functions are pickled: by the name that their module has for them.
        return self.__qualname__


class Task(_Declared[P, R], Generic[P, R, T]):
    """A function that can be put. `App.task` makes it.

    Called, it is the function itself, here and now.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function, here and now."""
        result: T = self._task.function(*args, **kwargs)
        return result


class BatchTask(_Declared[[A], None], Generic[A, T]):
    """A function of a list of items, put one item at a time. `App.task(batch=..)` makes it."""

    if TYPE_CHECKING:
        # Of a batch an item is what `put` takes, and no tuple or mapping of arguments.
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
