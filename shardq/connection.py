"""Connecting to a store, and its queues.

Urls and their options are the stores' own (`shardq.stores`).
"""

from __future__ import annotations

import _thread
import atexit
import json
import logging
import os
import sys
import warnings
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Unpack
from weakref import WeakMethod, ref

from shardq import locks
from shardq.clock import SystemClock
from shardq.engine.stepper import Stepper
from shardq.errors import BadUrl, SchemaNewer, StoreCorrupt, StoreError, not_pickled
from shardq.lifecycle.home import Home
from shardq.model import names
from shardq.queue import Queue
from shardq.records.keeper import Keeper
from shardq.records.register import Register, settings_in
from shardq.stores import store_of
from shardq.stores.tables import QUEUES
from shardq.tracing.traces import check_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.util import Finalize
    from types import TracebackType

    from shardq.clock import Clock
    from shardq.model.settings import QueueOptions
    from shardq.stores.store import Store
    from shardq.stores.tables import QueueRecord
    from shardq.tracing import Traces

log = logging.getLogger(__name__)

STORE_VARIABLE = "SHARDQ_STORE"
_CHILD_PRIORITY = 10
"""The finalizer's priority. From 0 on, it runs before multiprocessing ends a child's children."""


def connect(
    url: str | None = None, *, clock: Clock | None = None, traces: Traces | None = None
) -> Connection:
    """Open a store.

    Args:
        url: `sqlite:///jobs.db`, `sqlite://` (memory) or
            `cassandra://host1,host2:9042/keyspace`; None: the environment variable `SHARDQ_STORE`.
        clock: A clock for tests, which move it; None: the system's. With a given clock, no thread
            works in the background: totals are stored with later puts, and at the close.
        traces: Makes a span of OpenTelemetry for each put within a span, each run and each firing
            of a schedule; None: nothing is traced.

    Returns:
        The connection. As a context manager, it closes itself.

    Raises:
        BadUrl: If the url names no store, or there is no url.
        SchemaMissing: If the Cassandra keyspace does not exist, which `shardq init` makes; or the
            store has a format from before 0.1.0.
        SchemaNewer: If a newer shardq made it.
        StoreUnavailable: If the store cannot be reached.
        BadSetting: If `traces` is something else.
    """
    store = store_of(store_url(url))
    try:
        store.open()
        return Connection(store, clock, background=clock is None, alone=True, traces=traces)
    except BaseException:
        # Once the store is open, the clock may still be refused.
        store.close()
        raise


def init(url: str | None = None) -> None:
    """Create a store's keyspace and tables, or the SQLite file. Idempotent.

    Args:
        url: As for `connect`.

    Raises:
        SchemaMissing: If keyspace or file holds tables of another program, or of a format from
            before 0.1.0; nothing is changed.
        SchemaNewer: If a newer shardq made it.
    """
    store = store_of(store_url(url))
    try:
        store.open(create=True)
    finally:
        store.close()


def store_url(url: str | None) -> str:
    """The given url, or the url in the environment variable `SHARDQ_STORE`.

    Raises:
        BadUrl: If there is neither.
    """
    chosen = url or os.environ.get(STORE_VARIABLE)
    if not chosen:
        raise BadUrl(
            f"no store was named; give a url such as sqlite:///jobs.db, or set {STORE_VARIABLE}."
        )
    return chosen


class Connection:
    """An open store and its queues. Made by `connect`.

    Every method may be called from any thread.
    """

    _is_alone = False
    """True if the store is open, and nobody else closes it."""

    def __init__(
        self,
        store: Store,
        clock: Clock | None = None,
        *,
        background: bool = True,
        alone: bool = False,
        defaults: Mapping[str, Any] | None = None,
        traces: Traces | None = None,
    ) -> None:
        """Make a connection to an open store, as `connect` does.

        Args:
            store: An open store.
            clock: The clock; None: the system's.
            background: True if threads may renew the leases of `receive`, and store the totals in
                time; False in tests that step the clock.
            alone: True if nobody else closes the store. The store is then closed, with a warning,
                once its user has dropped the connection and all its queues.
            defaults: Values for the settings that a caller leaves out when a queue is made.
            traces: As for `connect`.
        """
        check_traces(traces)
        clock = clock or SystemClock()
        # Weak references here and at exit, so that a connection that its user dropped is collected.
        on_start = partial(_call, WeakMethod(self._close_with_child))
        keeper = Keeper(clock, on_start) if background else None
        chores = Keeper(clock) if background else None
        self._home = Home(
            store,
            clock,
            keeper=keeper,
            chores=chores,
            owner=self,
            open_all=self._open_all,
            open_one=partial(self.queue, create=False),
            traces=traces,
        )
        self._home.clock.measure(store)
        self._stepper = Stepper(store, clock, "shardq-receive") if background else None
        self._defaults = defaults or {}
        self._queues: dict[str, Queue] = {}
        self._lock = locks.new()
        self._unclean_level = logging.WARNING
        self._finalizer: Finalize | None = None
        self._rest = _Rest(self._home)
        self._at_exit = partial(_close_at_exit, ref(self), self._rest)
        atexit.register(self._at_exit)
        self._is_alone = alone

    def __reduce__(self) -> NoReturn:
        raise not_pickled(f"the connection to {self.url_shown}", "shardq.connect(url)")

    def __del__(self) -> None:
        if not self._is_alone:
            return
        try:
            warnings.warn(
                f"the connection to {self.url_shown} was not closed; use `with`, or call close().",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            # Closed in a thread of its own: the garbage collector may have interrupted a call that
            # holds locks, and a close takes them.
            with suppress(RuntimeError):
                _thread.start_new_thread(_end, (self._rest, self._at_exit))

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if isinstance(error, StoreError):
            # The error is raised, and explains the failures of the close, which follow from it.
            self._unclean_level = logging.INFO
        self.close()

    @property
    def url_shown(self) -> str:
        """The url of the store for people, without passwords."""
        return self._home.store.shown

    def queue(self, name: str, *, create: bool = True, **settings: Unpack[QueueOptions]) -> Queue:
        """A queue, made if it does not exist.

        Args:
            name: 1 to 100 of `A-Z a-z 0-9 . _ -`.
            create: True to make it if it does not exist.
            settings: As `QueueOptions` describes them. A queue that exists keeps its own, with one
                warning that names both; `Queue.alter` changes them.

        Raises:
            BadName: If the name cannot be used.
            BadSetting: If a setting cannot be used, or the queue has another `minute`, `bands`,
                `group_lanes` or `keyed`, which are fixed when it is made.
            SchemaNewer: If its settings need a newer release of shardq.
            UnknownQueue: If it does not exist and `create` is False.
            ClockError: If this machine's clock is further off than the queue's offset.
        """
        names.queue_name(name)
        locks.refuse_to_wait(self._lock)
        with self._lock:
            queue = self._queues.get(name)
            if queue is not None:
                queue._home.register.refresh()
                if not queue.settings.dropped:
                    queue._home.register.check_same(settings)
                    return queue
            store, clock = self._home.store, self._home.clock
            register = Register.open(
                store, clock, name, settings, create=create, defaults=self._defaults
            )
            queue = Queue(self._home, register, stepper=self._stepper)
            self._queues[name] = queue
            return queue

    def queues(self) -> list[str]:
        """The names of all queues, sorted, without dropped ones: one read.

        Queues whose settings need a newer release of shardq are included, but `queue` refuses them.
        """
        return list(self._records())

    def _records(self) -> dict[str, QueueRecord]:
        """The records of all queues by name, without dropped ones."""
        found = self._home.store.notes(QUEUES, ())
        return {name: found[name] for name in sorted(found) if _is_made(found[name], name)}

    def _open_all(self, is_opened: Callable[[str], bool] | None = None) -> dict[str, Any]:
        """All queues by name; in place of a queue whose record cannot be read, the error.

        Args:
            is_opened: Returns False for queues not to open: the result has their settings instead.
        """
        found: dict[str, Any] = {}
        for name, record in self._records().items():
            try:
                if is_opened is None or is_opened(name):
                    found[name] = self._opened(name, record)
                else:
                    found[name] = settings_in(record, name)
            except (SchemaNewer, StoreCorrupt) as error:
                found[name] = error
        return found

    def _opened(self, name: str, record: QueueRecord) -> Queue:
        """The queue of a record that was read just now."""
        locks.refuse_to_wait(self._lock)
        with self._lock:
            queue = self._queues.get(name)
            if queue is not None:
                queue._home.register.take_in(record)
                return queue
            register = Register(self._home.store, self._home.clock, name, record)
            self._home.clock.check(register.settings.offset_ms)
            queue = self._queues[name] = Queue(self._home, register, stepper=self._stepper)
            return queue

    def close(self) -> None:
        """Store the totals, release messages and leases, and disconnect. Idempotent.

        A store that fails now costs no message: totals of the last seconds are missing, and leases
        expire. In a forked child it ends the child's own work, and nothing of its parent's.

        Raises:
            UsageError: If a signal's handler calls it in the middle of another call; close
                afterwards.
        """
        locks.refuse_within()
        atexit.unregister(self._at_exit)
        self._is_alone = False
        if self._finalizer is not None:
            self._finalizer.cancel()
        with self._lock:
            queues, self._queues = list(self._queues.values()), {}
        for keeper in (self._home.chores, self._home.keeper):
            if keeper is not None:
                keeper.close()
        for queue in queues:
            try:
                queue.close()
            except StoreError as error:
                log.log(
                    self._unclean_level, "queue %s was not closed cleanly: %s", queue.name, error
                )
        for name, log_of in self._home.entered.items():
            try:
                log_of.close()
            except StoreError as error:
                log.log(self._unclean_level, "counts of queue %s are not stored: %s", name, error)
        if self._stepper is not None:
            self._stepper.close()
        self._home.store.close()

    def _close_with_child(self) -> None:
        """Have a child of multiprocessing that has totals close the connection at its end.

        A forked child ends without the functions that `atexit` registered.
        """
        multiprocessing = sys.modules.get("multiprocessing")
        if multiprocessing is not None and multiprocessing.parent_process() is not None:
            self._finalizer = multiprocessing.util.Finalize(
                None, self._at_exit, exitpriority=_CHILD_PRIORITY
            )


class _Rest:
    """The parts to close of a connection that its user has dropped.

    Its queues are not among the parts: they are collected with the connection. A receiver refers to
    its queue until its leases are released, so no lease is held then.
    """

    def __init__(self, home: Home) -> None:
        self._store = home.store
        self._keepers = [one for one in (home.chores, home.keeper) if one is not None]
        self._logs = home.logs
        self._lock = locks.new()

    def close(self) -> None:
        """Store the totals, and disconnect. Idempotent, from any thread."""
        with self._lock:
            for keeper in self._keepers:
                keeper.close()
            while self._logs:
                try:
                    self._logs.pop().close()
                except StoreError as error:
                    log.info("what was counted is not stored: %s", error)
            self._store.close()


def _end(rest: _Rest, at_exit: Callable[[], None]) -> None:
    rest.close()
    atexit.unregister(at_exit)


def _close_at_exit(found: ref[Connection], rest: _Rest) -> None:
    connection = found()
    if connection is not None:
        connection.close()
    else:
        # Another thread may be closing the parts: wait for its end.
        rest.close()


def _call(found: WeakMethod[Callable[[], None]]) -> None:
    method = found()
    if method is not None:
        method()


def _is_made(record: QueueRecord, name: str) -> bool:
    try:
        return settings_in(record, name) is not None
    except SchemaNewer:
        # Read only this setting of a newer release. The text is JSON, or the error would differ.
        return json.loads(record.settings).get("dropped") is not True
