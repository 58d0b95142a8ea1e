"""The definition of a task without its puts: its function, its names, its options."""

from __future__ import annotations

import inspect
import string
from typing import TYPE_CHECKING, Any

from shardq.engine.handing.handler import check_function, is_any
from shardq.errors import BadArguments, BadSetting, shown
from shardq.tasks.options import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.model.message import Message
    from shardq.tasks.arguments import TaskSignature
    from shardq.tasks.options import ChosenOptions


class TaskDefinition:
    """The definition of a task, without its puts.

    Attributes:
        name: The name that its jobs carry.
        aliases: Other names under which jobs find it.
        shorter: Names under which it is found if no other task has them.
        function: The user's function.
        signature: The signature of the function.
        options: The options of all its puts.
        batch: How many jobs its function takes at once; None if it takes one.
        cancellable: True if a cancel by a job's key cancels its coroutine.
        on_dead: Called with each of its jobs that dies; None: the app's is called.
        is_async: True if a call of it returns a coroutine.
    """

    __slots__ = (
        "aliases", "batch", "cancellable", "function", "is_async", "name", "on_dead", "options",
        "shorter", "signature",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        signature: TaskSignature,
        options: ChosenOptions,
        *,
        name: str,
        aliases: tuple[str, ...],
        shorter: tuple[str, ...],
        batch: int | None,
        cancellable: bool = False,
        on_dead: Callable[[Message], object] | None = None,
    ) -> None:
        self.name: str = name
        self.aliases: tuple[str, ...] = aliases
        self.shorter: tuple[str, ...] = shorter
        self.function: Callable[..., Any] = function
        self.signature: TaskSignature = signature
        self.options: ChosenOptions = options
        self.batch: int | None = batch
        if on_dead is not None:
            check_function(on_dead, f"task {name}: on_dead")
        self.on_dead: Callable[[Message], object] | None = on_dead
        self.is_async: bool = is_any(inspect.iscoroutinefunction, function)
        self.cancellable: bool = cancellable
        if cancellable and (batch is not None or not self.is_async):
            raise BadSetting(
                f"task {name}: only an async function of one job is cancellable; let another one "
                f"ask current().is_cancelled now and then."
            )
        if batch is not None and not (type(batch) is int and 1 <= batch <= BATCH_MAX):
            raise BadSetting(f"task {name}: batch must be 1 to {BATCH_MAX:,}, not {shown(batch)}.")
        for option in ("key", "group"):
            if (template := options.putting.get(option)) is not None:
                self._check_template(option, template)

    @property
    def place(self) -> str:
        """The line of its function, for errors."""
        code = getattr(self.function, "__code__", None)
        return self.name if code is None else f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def decoder(self) -> TaskSignature | None:
        """The signature whose return hint reads results; None for a batch, which has none."""
        return self.signature if self.batch is None else None

    def encode_result(self, value: Any) -> bytes:
        """The result of a job as JSON; null for a job of a batch.

        Raises:
            BadResult: If it cannot be JSON.
        """
        return self.signature.encode_result(value) if self.batch is None else b"null"

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The body of a job; the only argument of a batch task is its item."""
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
