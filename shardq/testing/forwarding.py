"""The verbs of a store that are forwarded to another object, each through one gate."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from shardq.stores.store import Leases, Logs, Registers, Rows, Store
from shardq.stores.tables import TABLES, Table

if TYPE_CHECKING:
    from collections.abc import Callable


def _verbs(*parts: type) -> set[str]:
    """The names of the methods of some parts of the port."""
    return {
        name
        for part in parts
        for name, verb in vars(part).items()
        if inspect.isfunction(verb) and name[0] != "_"
    }


_OF_TABLES = _verbs(Registers)
_PORT = _verbs(Rows, Leases, Registers, Logs, Store)
CALLS = (_PORT - _OF_TABLES) | {f"{verb} {one.name}" for verb in _OF_TABLES for one in TABLES}
"""The names of all calls: a verb, with the name of its table if it has one."""


class Forwarding:
    """The verbs of a store that a subclass does not write by hand.

    Args:
        store: A store, or an object that has the forwarded verbs.
    """

    def __init__(self, store: object) -> None:
        self._store: Any = store

    def _gate(self, call: str, work: Callable[[], Any]) -> Any:
        """Do the work of a call, which is one of `CALLS`, and return its result."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _PORT:
            return found

        def run(*args: Any, **named: Any) -> Any:
            is_of_table = bool(args) and isinstance(args[0], Table)
            call = f"{name} {args[0].name}" if is_of_table else name
            return self._gate(call, partial(found, *args, **named))

        # Kept, so that the next access finds the function at once.
        setattr(self, name, run)
        return run
