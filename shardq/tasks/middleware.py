"""Middleware: an app's context managers around each put and run. `docs/tasks.md` shows two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from shardq.tasks.context import Context


@dataclass(slots=True, eq=False)
class Draft:
    """A job that is about to be put.

    Attributes:
        task: The name of its task.
        queue: The name of the queue that it goes to.
        args: The positional arguments of the function.
        kwargs: The named ones.
        headers: Names and texts that travel with the job; add to them.
    """

    task: str
    queue: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    headers: dict[str, str]


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
