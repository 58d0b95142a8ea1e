"""Faults of a store, on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.testing.forwarding import CALLS, Forwarding

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.errors import StoreError
    from shardq.stores.store import Store


class Faults:
    """The planned faults of a store.

    A verb is a method of the store: `insert`, `move`, `delete`, `find`, `read` and so on. A verb on
    notes or records includes the name of its table: `note members` is a heartbeat.

    Attributes:
        calls: How often each verb was called.
    """

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self._plans: dict[str, list[_Plan]] = {}

    def fail(
        self,
        verb: str,
        *,
        nth: int = 1,
        times: int = 1,
        applied: bool = False,
        error: StoreError | None = None,
    ) -> None:
        """Let calls of a verb raise an error.

        Args:
            verb: The verb, `move` or `note members` say.
            nth: The first call to fail, counted from now; 1 is the next.
            times: How many calls fail, one after another.
            applied: True if the call takes effect before it fails.
            error: The error that the calls raise; None: `StoreTimeout` if applied, else
                `StoreUnavailable`.
        """
        if error is None:
            failed = "the answer was lost" if applied else "the store is away"
            error = (StoreTimeout if applied else StoreUnavailable)(failed)
        self._plan(verb, nth, times, before=not applied, act=_raising(error))

    def call(
        self, verb: str, act: Callable[[], object], *, nth: int = 1, after: bool = True
    ) -> None:
        """Run a function just after or before a call of a verb takes effect: move the clock, say.

        Args:
            verb: The verb, `insert` say.
            act: The function.
            nth: Which call, counted from now.
            after: False to run it before.
        """
        self._plan(verb, nth, 1, before=not after, act=act)

    def heal(self) -> None:
        """Forget all planned faults."""
        self._plans.clear()

    def _plan(
        self, verb: str, nth: int, times: int, *, before: bool, act: Callable[[], object]
    ) -> None:
        if verb not in CALLS:
            raise ValueError(f"a store has no verb {verb!r}; it has {', '.join(sorted(CALLS))}.")
        first = self.calls.get(verb, 0) + nth
        self._plans.setdefault(verb, []).append(_Plan(first, first + times, before, act))

    def run(self, verb: str, work: Callable[[], Any]) -> Any:
        """Do a call's work, with the faults planned for it."""
        number = self.calls[verb] = self.calls.get(verb, 0) + 1
        if verb not in self._plans:
            return work()
        plans = [p for p in self._plans[verb] if p.first <= number < p.stop]
        for plan in plans:
            if plan.before:
                plan.act()
        result = work()
        for plan in plans:
            if not plan.before:
                plan.act()
        return result


def faulty(store: Store, faults: Faults) -> Store:
    """The same store, with these faults."""
    return cast("Store", _FaultyStore(store, faults))


class _Plan:
    """A function to run at some calls of a verb."""

    def __init__(self, first: int, stop: int, before: bool, act: Callable[[], object]) -> None:
        self.first = first
        self.stop = stop
        self.before = before
        self.act = act


def _raising(error: StoreError) -> Callable[[], object]:
    def act() -> object:
        # A new error each time: an error that is raised twice keeps its first traceback.
        raise type(error)(str(error), error.messages)

    return act


class _FaultyStore(Forwarding):
    def __init__(self, store: Store, faults: Faults) -> None:
        super().__init__(store)
        self._faults = faults

    def close(self) -> None:
        """Do nothing: one of several processes that share the store has ended."""

    def _gate(self, call: str, work: Callable[[], Any]) -> Any:
        return self._faults.run(call, work)
