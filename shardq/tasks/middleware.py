"""Middleware: what an app does around each put and each run. `docs/tasks.md` shows two of them."""

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
        args: What it is called with, by position.
        kwargs: And by name.
        headers: Names and texts that travel with it; to be added to.
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
    """Two functions of an app's own, each giving a context manager.

    The first one given is outermost. It sees the error that a put or a run raises, and may raise
    another in its place.
    """

    def put(self, draft: Draft) -> AbstractContextManager[Any]:
        """Entered before a job is put, left once it is stored; of `put_many` once it is read.

        Not for what a schedule puts: no app has a part in that. `run` is entered for it as for any
        job, and sees which firing it is of, `context.firing`.
        """

    def run(self, context: Context) -> AbstractContextManager[Any]:
        """Entered before a job's function is called, left when it has ended, by an error too.

        Of a coroutine it is entered in the worker's event loop, which it must not block; of a batch
        once for each of its jobs.
        """


def entered_put(stack: ExitStack, all_of: Sequence[Middleware], draft: Draft) -> None:
    """Enter all of them around a put."""
    for one in all_of:
        stack.enter_context(one.put(draft))


def entered_run(stack: ExitStack, all_of: Sequence[Middleware], context: Context) -> None:
    """Enter all of them around a run."""
    for one in all_of:
        stack.enter_context(one.run(context))
