"""The puts and runs of a sandbox, in the form that tests read."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardq.errors import UsageError, shown
from shardq.model.message import JOB_HEADERS, TASK_HEADER, key_of, read_headers
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from shardq.model.message import Row
    from shardq.tasks.definition import TaskDefinition

_CHARS_MAX = 60


@dataclass(frozen=True)
class Put:
    """A put job or message.

    Attributes:
        id: Its id.
        queue: The name of its queue.
        task: The name of its task; empty for a message without a task.
        arguments: The arguments of its function by parameter name, including defaults; for a batch
            task the item. Empty for a message.
        body: The stored bytes.
        headers: The headers of its put.
        due: Its due, as it was put; in `Sandbox.waiting` its present due. UTC.
        put_at: The time of the put. UTC.
        key: Its key; None without one.
        group: Its group; None without one.
        attempt: How many of its attempts have begun.
    """

    id: str
    queue: str
    task: str
    arguments: Mapping[str, Any]
    body: bytes
    headers: Mapping[str, str]
    due: datetime
    put_at: datetime
    key: str | None = None
    group: str | None = None
    attempt: int = 0

    def __str__(self) -> str:
        what = f"{self.task}({_named(self.arguments)})" if self.task else f"{self._short!r}"
        key = "" if self.key is None else f", key {self.key!r}"
        return f"{what} in queue {self.queue}, due {self.due:%Y-%m-%d %H:%M:%S}{key}"

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def _short(self) -> bytes:
        return self.body[:_CHARS_MAX]


@dataclass(frozen=True)
class Ran:
    """A run of a job, or a delivery of a message, that has ended.

    Attributes:
        put: The job or message.
        at: The time of its end. UTC.
        attempt: The number of the attempt, from 1.
        state: `done`, `retrying`, `failed` (it is dead now), `snoozed` or `expired`.
        error: The error that it raised; None if it returned.
    """

    put: Put
    at: datetime
    attempt: int
    state: str
    error: BaseException | None = field(default=None, compare=False)

    def __str__(self) -> str:
        why = "" if self.error is None else f": {type(self.error).__name__}: {self.error}"
        return f"{self.put}, attempt {self.attempt}, {self.state} {self.at:%Y-%m-%d %H:%M:%S}{why}"


def put_of(row: Row, at_ms: int, definition: TaskDefinition | None, task: str) -> Put:
    """A row in the form that tests read.

    Args:
        row: The row.
        at_ms: The time of the put, epoch milliseconds.
        definition: The row's task; None if no app here has it.
        task: The name of the task.
    """
    key = key_of(row)
    headers = {name: text for name, text in read_headers(row).items() if name not in JOB_HEADERS}
    return Put(
        row.message_id,
        row.shard.queue,
        task if definition is None else definition.name,
        {} if definition is None else arguments_of(definition, row.body),
        row.body,
        headers,
        moment_of(row.due_ms),
        moment_of(at_ms),
        None if key is None else key.name,
        row.group,
        row.attempt,
    )


def task_of(row: Row) -> str:
    """The name of a row's task; empty without a task."""
    return read_headers(row).get(TASK_HEADER, "")


def arguments_of(definition: TaskDefinition, body: bytes) -> dict[str, Any]:
    """The arguments of a task's function for a body, by name.

    Raises:
        BadArguments: If the function does not take them.
    """
    args, kwargs = definition.signature.decode(body)
    if definition.batch is not None:
        return dict(kwargs)
    bound = inspect.signature(definition.function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def wanted_of(
    definition: TaskDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a test's call of `puts`, by the names of the task's parameters.

    Raises:
        UsageError: If the function has no such parameter, or fewer parameters.
    """
    if definition.batch is not None:
        if len(args) > 1 or kwargs:
            raise UsageError(f"task {definition.name} is put one item at a time: give the item.")
        [name] = inspect.signature(definition.function).parameters
        return dict.fromkeys([name], args[0]) if args else {}
    try:
        bound = inspect.signature(definition.function).bind_partial(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"task {definition.name} is never put like this: {error}.") from error
    return dict(bound.arguments)


def _named(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())
