"""The locks of this process, and the work that a forked child does anew.

```
 fork ──► child: each lock that another thread held is free, each owner begins for itself
 signal ──► handler, in a thread that is inside: small parts are entered again, others refuse
```

A fork copies all locks as they are, but only the thread that forks: a lock that another thread held
would stay held for ever. A signal's handler interrupts its thread anywhere, inside a lock too, and
would wait for itself. So would a function that the garbage collector calls.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from itertools import compress
from operator import methodcaller
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from shardq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

_locks: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""All locks and doors, by `id`. A dictionary, because a copy of a set is not atomic."""
_owners: WeakValueDictionary[tuple[int, Callable[[Any], None]], Any] = WeakValueDictionary()
"""Objects that begin anew in a child, by `id` and method, in the order in which they were made."""


def new() -> threading.RLock:
    """A lock that is free in a child.

    The thread that holds the lock may take it again. So the guarded objects are consistent at each
    call that is made under the lock, or the caller calls `refuse_within` first.
    """
    lock = threading.RLock()
    _locks[id(lock)] = lock
    return lock


def condition(lock: threading.RLock) -> threading.Condition:
    """A condition on a lock made by `new`; in a child no thread waits for it.

    Take the lock itself by `with`. A condition's own `with` is written in Python: inside it a
    signal's handler may raise while the lock is held, and nothing would release the lock.
    """
    made = threading.Condition(lock)
    _locks[id(made)] = made
    return made


class Door:
    """Makes calls that take locks of other libraries, from any thread, one a thread at a time."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        _locks[id(self)] = self
        in_child(self, Door._at_fork_reinit)

    def through(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and return its result.

        Raises:
            UsageError: If this thread is inside already.
        """
        me = threading.get_ident()
        if me in self._inside:
            raise _refusal()
        try:
            self._inside.add(me)
            return call(*args, **kwargs)
        finally:
            self._inside.discard(me)

    def _is_owned(self) -> bool:
        return threading.get_ident() in self._inside

    def _at_fork_reinit(self) -> None:
        # A new thread of the child may get the number of a thread that only the parent has.
        self._inside &= {threading.get_ident()}


def refuse_within(*locks: Any) -> None:
    """Refuse to begin a call that cannot be begun twice in one thread.

    Args:
        locks: The locks that this thread must not hold; without any, all locks.

    Raises:
        UsageError: If this thread holds one: a signal's handler, or a function that the garbage
            collector calls, has interrupted a call that holds it.
    """
    for lock in locks or [ref() for ref in _locks.valuerefs()]:
        if lock is not None and lock._is_owned():  # noqa: SLF001 - RLock has no other name for it
            raise _refusal()


def refuse_to_wait(lock: threading.RLock) -> None:
    """Refuse to wait for a lock under which others are taken, if this thread holds any lock.

    The thread that has the lock may be waiting for one that this thread holds.

    Raises:
        UsageError: As for `refuse_within`.
    """
    if lock._is_owned() or not is_free(lock):  # type: ignore[attr-defined]  # noqa: SLF001
        refuse_within()


def is_free(lock: threading.RLock) -> bool:
    """True if no other thread holds a lock just now.

    The lock is taken and released within one call of C. Between two calls of Python a signal's
    handler may raise, and the lock would stay held.
    """
    return bool([*map(_RELEASE, compress((lock,), map(_TRY, (lock,))))])


_TRY = methodcaller("acquire", blocking=False)
_RELEASE = methodcaller("release")


def in_child(owner: T, renew: Callable[[T], None]) -> None:
    """Call a function in each forked child, by which an owner begins anew there.

    Args:
        owner: The owner; it is forgotten when nothing else refers to it.
        renew: Called with the owner, in the child; it makes no call to a store.
    """
    _owners[id(owner), renew] = owner


def _refusal() -> UsageError:
    return UsageError(
        "this thread is in the middle of another call of shardq, which a signal's handler, or what "
        "the garbage collector called, has interrupted; nothing was done: let the handler set a "
        "flag, and call shardq afterwards or in another thread."
    )


def _begin_child() -> None:
    for ref in _locks.valuerefs():
        lock = ref()
        # The thread that forks is the child's only one, and releases the locks that it holds.
        if lock is not None and not lock._is_owned():  # noqa: SLF001 - as `threading` itself does
            lock._at_fork_reinit()  # noqa: SLF001
    # All owners, even if one raises: an owner that is not renewed would wait for parent's threads.
    with ExitStack() as stack:
        for (_, renew), owner in reversed(list(_owners.items())):
            stack.callback(renew, owner)


os.register_at_fork(after_in_child=_begin_child)
