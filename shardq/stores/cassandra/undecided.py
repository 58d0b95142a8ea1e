"""LWTs of unknown outcome, repeated until the cluster has decided.

Every conditional statement of shardq may be repeated: once applied, its condition fails, and the
refusal shows the nonce that it wrote. A repeat also finishes a round that Paxos has begun, as a
SERIAL read would. A repeat must follow within seconds, because Paxos forgets undecided rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from shardq.clock import SystemClock
from shardq.errors import StoreError, StoreTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.stores.cassandra.session import Session

PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds before each repeat: a lost connection is back within the first half second."""

Key = TypeVar("Key")


Answer: TypeAlias = "list[dict[str, Any]]"
"""The rows of an answer, at least one; each with `[applied]` and, if refused, the cells of the
conditions on a row of the table. Rows that do not exist are left out."""


def decide(
    session: Session, make: Mapping[Key, Callable[[], Any]], repeated: set[Key] | None = None
) -> dict[Key, Answer]:
    """Send conditional statements until each has a certain answer.

    Args:
        session: The connection.
        make: Key -> a function that makes the statement.
        repeated: Filled with the keys of statements that were sent more than once.

    Returns:
        Key -> the answer.

    Raises:
        StoreUnavailable: If a first attempt was not sent: that statement is not applied.
        StoreTimeout: If an outcome stays unknown after every repeat.
    """
    decided, undecided = _ask(session, make)
    for error in undecided.values():
        if not isinstance(error, StoreTimeout):
            raise error
    if repeated is not None:
        repeated.update(undecided)
    for pause in PAUSES:
        if not undecided:
            return decided
        SystemClock(0, corrected=False).sleep(pause)
        more, undecided = _ask(session, {key: make[key] for key in undecided}, again=True)
        decided.update(more)
    if undecided:
        error = next(iter(undecided.values()))
        raise StoreTimeout(
            f"the outcome of {len(undecided)} conditional writes stays unknown: {error}"
        ) from error
    return decided


def _ask(
    session: Session, make: Mapping[Key, Callable[[], Any]], *, again: bool = False
) -> tuple[dict[Key, Answer], dict[Key, StoreError]]:
    decided = {}
    undecided = {}
    answers = session.conditional([statement() for statement in make.values()], again=again)
    for key, answer in zip(make, answers, strict=True):
        if isinstance(answer, StoreError):
            undecided[key] = answer
        else:
            decided[key] = answer
    return decided, undecided
