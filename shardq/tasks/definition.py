"""The definition of a task: its function, its names, its options. `task.py` has its puts."""

from __future__ import annotations

import inspect
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardq.engine.handing.handler import check_function, is_any
from shardq.errors import BadArguments, BadSetting, shown
from shardq.model.limits import QueueLimit
from shardq.tasks.options import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.model.message import Message
    from shardq.tasks.arguments import TaskSignature
    from shardq.tasks.options import ChosenOptions


@dataclass(slots=True, eq=False)
class TaskDefinition:
    """The definition of a task.

    Attributes:
        function: The user's function.
        signature: The signature of the function.
        options: The options of all its puts.
        name: The name that its jobs carry.
        aliases: Other names under which jobs find it.
        shorter: Shorter names, under which jobs find it if no other task has them.
        batch: How many jobs its function takes at once; None if it takes one.
        cancellable: True if a cancel by a job's key cancels its coroutine.
        on_dead: Called with each of its jobs that dies; None: the app's is called.
        limit: Its limits over all workers.
        is_async: True if a call of it returns a coroutine.
    """

    function: Callable[..., Any]
    signature: TaskSignature
    options: ChosenOptions
    name: str
    aliases: tuple[str, ...]
    shorter: tuple[str, ...]
    batch: int | None
    cancellable: bool = False
    on_dead: Callable[[Message], object] | None = None
    limit: QueueLimit = field(default_factory=QueueLimit)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_async = is_any(inspect.iscoroutinefunction, self.function)
        name, batch = self.name, self.batch
        if self.on_dead is not None:
            check_function(self.on_dead, f"task {name}: on_dead")
        if self.cancellable and (batch is not None or not self.is_async):
            raise BadSetting(
                f"task {name}: only an async function of one job is cancellable; let another one "
                f"ask current().is_cancelled now and then."
            )
        if batch is not None and not (type(batch) is int and 1 <= batch <= BATCH_MAX):
            raise BadSetting(f"task {name}: batch must be 1 to {BATCH_MAX:,}, not {shown(batch)}.")
        for option in ("key", "group"):
            if (template := self.options.putting.get(option)) is not None:
                self._check_template(option, template)

    @property
    def place(self) -> str:
        """The line of its function, for errors."""
        code = getattr(self.function, "__code__", None)
        return self.name if code is None else f"{code.co_filename}:{code.co_firstlineno}"

    @property
    def decoder(self) -> TaskSignature | None:
        """The signature whose return hint reads results; None for a batch, whose jobs have none."""
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
