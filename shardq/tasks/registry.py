"""The shared state of an app's tasks: their names, and the store with their jobs."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardq import locks
from shardq.clock import SystemClock
from shardq.connection import STORE_VARIABLE, Connection, connect
from shardq.errors import UnknownQueue, UsageError
from shardq.model import names
from shardq.model.limits import queue_limit_of
from shardq.stores.url import anchored
from shardq.tasks.options import ATTEMPTS, TASK_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardq.clock import Clock
    from shardq.model.message import Message
    from shardq.queue import Queue
    from shardq.tasks.definition import TaskDefinition
    from shardq.tasks.middleware import Middleware
    from shardq.tracing import Traces

log = logging.getLogger(__name__)

DEFAULT_STORE = "sqlite:///shardq.db"
_warned: set[str] = set()
"""Warnings of this process, each of which is logged once."""
_guards: list[Callable[[Registry], object]] = []
"""Called before an app uses its store. A sandbox uses this to refuse apps that are not in it."""


class Registry:
    """The tasks of one app by name, and its store. Safe from any thread.

    Args:
        store: A url, or a connection; None: `SHARDQ_STORE`, or a default.
        middleware: Context managers around each put and run.
        on_dead: Called with each dead job whose task has no `on_dead` of its own.
        traces: As for `shardq.connect`, if the store is a url.

    Attributes:
        middleware: The app's middleware.
        definitions: The tasks, by their own names.
        on_start: Functions that a worker calls before jobs run.
        on_stop: Functions that a worker calls after its jobs have ended, the last first.
    """

    def __init__(
        self,
        store: str | Connection | None,
        middleware: Sequence[Middleware],
        on_dead: Callable[[Message], object] | None = None,
        traces: Traces | None = None,
    ) -> None:
        self._traces = traces
        self.middleware: tuple[Middleware, ...] = tuple(middleware)
        self._on_dead = on_dead
        self.on_start: list[Callable[[], Any]] = []
        self.on_stop: list[Callable[[], Any]] = []
        self.definitions: dict[str, TaskDefinition] = {}
        self._by_name: dict[str, TaskDefinition] = {}
        self._store = store
        # Note the directory now, because a program may change it before its first put.
        self._directory: Path | None = None
        with suppress(FileNotFoundError):
            self._directory = Path.cwd()
        self._connection = store if isinstance(store, Connection) else None
        self._queues: dict[str, Queue] = {}
        self._lock = locks.new()

    def add(self, definition: TaskDefinition) -> None:
        """Add a task; replaces the task that an earlier run of the same lines has declared.

        Raises:
            UsageError: If another task has one of its names.
        """
        names = (definition.name, *definition.aliases)
        before = self.definitions.get(definition.name)
        if before is not None and not _is_run_anew(before, definition):
            before = None
        for name in names:
            if (other := self._by_name.get(name)) not in (None, before):
                raise UsageError(
                    f"two tasks are named {name!r}: {other.place} and {definition.place}; give one "
                    f"of them another, @app.task(name=..)."
                )
        if before is not None:
            for name in (before.name, *before.aliases):
                del self._by_name[name]
        self.definitions[definition.name] = definition
        self._by_name |= dict.fromkeys(names, definition)
        # The new task may ask for more attempts than its queue has allowed so far.
        self._queues.pop(definition.options.queue, None)

    def find(self, name: str) -> TaskDefinition | None:
        """The task with a name or alias; else the only task with that shorter name; else None."""
        found = self._by_name.get(name)
        if found is None:
            shorter = [one for one in self.definitions.values() if name in one.shorter]
            found = shorter[0] if len(shorter) == 1 else None
        return found

    def meant(self, name: str) -> str:
        """The name of a task that resembles an unknown one; empty if none does."""
        return names.nearest(name, self.definitions) or ""

    def known(self, name: str) -> str:
        """A sentence on the existing tasks, for the error of an unknown name."""
        every = ", ".join(self.definitions) or "none"
        return names.hint(name, self.definitions, f"it has {every}.")

    @property
    def hears_of_dead(self) -> bool:
        """True if a function is to be called with dead jobs."""
        return self._on_dead is not None or any(one.on_dead for one in self.definitions.values())

    def on_dead(self, message: Message) -> object:
        """Call the `on_dead` of a dead job's task, or else the app's; returns its result."""
        task = self.find(message.headers.get(TASK_HEADER, ""))
        call = self._on_dead if task is None or task.on_dead is None else task.on_dead
        return None if call is None else call(message)

    @property
    def queue_names(self) -> list[str]:
        """The queues of the tasks, sorted."""
        return sorted({one.options.queue for one in self.definitions.values()})

    @property
    def connection(self) -> Connection:
        """The store, opened on first use.

        Raises:
            BadUrl, SchemaMissing, StoreUnavailable: As for `shardq.connect`.
        """
        for guard in _guards:
            guard(self)
        if self._connection is None:
            locks.refuse_to_wait(self._lock)
            with self._lock:
                if self._connection is None:
                    store = self.store
                    if not isinstance(store, Connection):
                        store = connect(store, traces=self._traces)
                    self._connection = store
        return self._connection

    @property
    def clock(self) -> Clock:
        """The store's clock; the machine's if the store was not opened yet."""
        connection = self._connection
        return SystemClock() if connection is None else connection._home.clock

    def queue(self, name: str) -> Queue:
        """A queue of the app, made if it does not exist.

        It allows as many deliveries of a message as the tasks that are put into it ask for.
        """
        for guard in _guards:
            guard(self)
        queue = self._queues.get(name)
        if queue is not None and not queue.settings.dropped:
            return queue
        db = self.connection
        asked = [
            one.options.policy.attempts
            for one in self.definitions.values()
            if one.options.queue == name
        ]
        attempts = max(asked, default=ATTEMPTS)
        try:
            queue = db.queue(name, create=False)
        except UnknownQueue:
            queue = db.queue(name, attempts=max(attempts, ATTEMPTS))
        if queue.settings.attempts < attempts:
            queue.alter(attempts=attempts)
        with self._lock:
            # Keep no queue of a store that was closed meanwhile.
            if self._connection is db:
                self._queues[name] = queue
        return queue

    def limit(self) -> None:
        """Store the limits of tasks in the settings of their queues, as each worker does first.

        Limits that are there hold, with one warning for each task whose own differ.

        Raises:
            StoreTimeout, StoreUnavailable: As those of a put.
        """
        for one in self.definitions.values():
            if one.limit.is_gate:
                self._limit(one)

    def _limit(self, task: TaskDefinition) -> None:
        queue = self.queue(task.options.queue)
        present = queue_limit_of(queue.settings.queue_limit)
        rule = present.rule_of(task.name)
        if rule is None:
            queue.limit(task=task.name, **task.limit.to_options())
        elif (stored := present.of_task(task.name)) != task.limit:
            text = (
                f"queue {queue.name!r} limits task {task.name!r} to {stored}, by {rule!r}, not to "
                f"{task.limit} as the task is declared; change that with "
                f"limit(task={rule!r}, ..), at a shell with `shardq limits {queue.name} --task "
                f"{shlex.quote(rule)} --rate RATE`"
            )
            if text not in _warned:
                _warned.add(text)
                log.warning("%s", text)

    @property
    def store(self) -> str | Connection:
        """The app's connection, or else the url of the store that it opens."""
        store = self._store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
        if isinstance(store, Connection) or self._directory is None:
            return store
        return anchored(store, self._directory)

    @contextmanager
    def on(self, connection: Connection) -> Iterator[None]:
        """Keep jobs in another store while this lasts; afterwards in the same one as before.

        Args:
            connection: The connection to the other store; the caller closes it.
        """
        with self._lock:
            before = self._store, self._connection, self._queues
            self._store = self._connection = connection
            self._queues = {}
        try:
            yield
        finally:
            with self._lock:
                self._store, self._connection, self._queues = before

    def close(self) -> None:
        """Close the store, unless it was given as a connection; a put reopens it."""
        with self._lock:
            connection = self._connection
            self._queues = {}
            if connection is None or isinstance(self._store, Connection):
                return
            self._connection = None
        connection.close()


@contextmanager
def guarded(guard: Callable[[Registry], object]) -> Iterator[None]:
    """While this lasts, call a guard before an app uses its store; its error refuses the store."""
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)


def _is_run_anew(before: TaskDefinition, definition: TaskDefinition) -> bool:
    """True if the lines that declared a task run again: in a notebook's cell, or a reload."""
    old, new = before.function, definition.function
    if getattr(new, "__module__", None) != getattr(old, "__module__", None):
        return False
    name = getattr(new, "__qualname__", "<locals>")
    if name != getattr(old, "__qualname__", "") or "<" in name:
        return False
    module = sys.modules.get(new.__module__)
    if new.__module__ == "__main__":
        return not hasattr(module, "__file__")
    # A first import runs all lines once: a second function of a name is another task.
    spec = getattr(module, "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)
