"""The locks of this process, and what a forked child does anew.

```
 fork ──► child: each lock that another thread held is free, each owner begins for itself
 signal ──► handler, in a thread that is inside: small parts are entered again, others refuse
```

A fork copies locks as they are, and of the threads the one that forks alone: what another held is
held for ever. A signal's handler interrupts its thread anywhere, inside a lock too, and would wait
for itself. So would what the garbage collector calls.
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
"""All locks and doors, by their `id`: of this dictionary, unlike of a set, a copy is one step."""
_owners: WeakValueDictionary[tuple[int, Callable[[Any], None]], Any] = WeakValueDictionary()
"""Objects that begin anew in a child, by `id` and method, in the order in which they were made."""


def new() -> threading.RLock:
    """A lock that is free in a child.

    The thread that holds it may take it again: what it guards is whole between any two calls that
    are made under it, or `refuse_within` comes first.
    """
    lock = threading.RLock()
    _locks[id(lock)] = lock
    return lock


def condition(lock: threading.RLock) -> threading.Condition:
    """A condition on such a lock, for which nobody waits in a child.

    Take the lock itself by `with`: that of a condition is of Python, where a signal's handler may
    raise when the lock is held and nothing would release it.
    """
    made = threading.Condition(lock)
    _locks[id(made)] = made
    return made


class Door:
    """Where calls go through that take locks which are not ours; from any thread, in each once."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        _locks[id(self)] = self
        in_child(self, Door._at_fork_reinit)

    def through(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call it.

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
        # The number of a thread that is not in the child may soon be another's.
        self._inside &= {threading.get_ident()}


def refuse_within(*locks: Any) -> None:
    """Refuse to begin what cannot be begun twice in one thread.

    Args:
        locks: Which of them this thread must not hold; none: none at all.

    Raises:
        UsageError: If this thread holds one: a signal's handler, or what the garbage collector
            calls, has interrupted what holds it.
    """
    for lock in locks or [ref() for ref in _locks.valuerefs()]:
        if lock is not None and lock._is_owned():  # noqa: SLF001 - RLock has no other name for it
            raise _refusal()


def refuse_to_wait(lock: threading.RLock) -> None:
    """Refuse to wait for a lock under which others are taken, where this thread holds any.

    Who has it may be waiting for that one.

    Raises:
        UsageError: As for `refuse_within`.
    """
    if lock._is_owned() or not is_free(lock):  # type: ignore[attr-defined]  # noqa: SLF001
        refuse_within()


def is_free(lock: threading.RLock) -> bool:
    """Whether no other thread holds a lock, just now.

    It is taken and released within one call of C: between two of Python a signal's handler may
    raise, and it would stay held.
    """
    return bool([*map(_RELEASE, compress((lock,), map(_TRY, (lock,))))])


_TRY = methodcaller("acquire", blocking=False)
_RELEASE = methodcaller("release")


def in_child(owner: T, renew: Callable[[T], None]) -> None:
    """Let an owner begin for itself in each child.

    Args:
        owner: Forgotten when nobody else has it.
        renew: Called with it, in the child; it makes no call to a store.
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
        # What the thread that forks holds, it also releases: it is the child's only one.
        if lock is not None and not lock._is_owned():  # noqa: SLF001 - as `threading` itself does
            lock._at_fork_reinit()  # noqa: SLF001
    # All of them, whatever one raises: who is not renewed would wait for threads of its parent's.
    with ExitStack() as stack:
        for (_, renew), owner in reversed(list(_owners.items())):
            stack.callback(renew, owner)


os.register_at_fork(after_in_child=_begin_child)
