"""Middleware: an app's context managers around each put and run. `docs/tasks.md` shows two."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from shardq.tasks.context import Context


class Draft:
    """A job that is about to be put.

    Attributes:
        task: The name of its task.
        queue: The name of the queue that it goes to.
        args: The positional arguments of the function.
        kwargs: The named ones.
        headers: Names and texts that travel with the job; add to them.
    """

    __slots__ = ("args", "headers", "kwargs", "queue", "task")

    def __init__(
        self,
        task: str,
        queue: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        headers: dict[str, str],
    ) -> None:
        self.task: str = task
        self.queue: str = queue
        self.args: tuple[Any, ...] = args
        self.kwargs: Mapping[str, Any] = kwargs
        self.headers: dict[str, str] = headers


class Middleware(Protocol):
    """Two functions of an app, each of which returns a context manager.

    The first one of the app's list is outermost. It sees the error of a put or a run, and may raise
    another in its place.
    """

    def put(self, draft: Draft) -> AbstractContextManager[Any]:
        """Entered before a job is put, left once it is stored; with `put_many`, once it is read.

        Not entered for the puts of a schedule, which happen without the app. `run` is entered for
        them as for any job, and `context.firing` names the firing.
        """

    def run(self, context: Context) -> AbstractContextManager[Any]:
        """Entered before a job's function is called, left when it has ended, even by an error.

        For a coroutine it is entered in the worker's event loop, which it must not block; for a
        batch, once for each of its jobs.
        """


def entered_put(stack: ExitStack, all_of: Sequence[Middleware], draft: Draft) -> None:
    """Enter the put of each."""
    for one in all_of:
        stack.enter_context(one.put(draft))


def entered_run(stack: ExitStack, all_of: Sequence[Middleware], context: Context) -> None:
    """Enter the run of each."""
    for one in all_of:
        stack.enter_context(one.run(context))
