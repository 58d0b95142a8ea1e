"""Gathers the calls of many threads: calls that arrive during a batch are the next batch.

```
 callers ──► line ──► the first that gets the turn carries out all calls in line
                 └──► the others wait for the turn, and find their calls answered
```

There is no timer and no thread: a single call is carried out at once, in its caller's thread. The
hub's owner defines what is done with a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from shardq import locks
from shardq.errors import (
    ShardqError,
    StoreFull,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    own_copy,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Hashable, Sequence

BATCH_ROWS = 1_000
BATCH_BYTES = 1 << 20
_PLACES_MAX = 256


class HubCall:
    """One call that waits for its turn.

    Attributes:
        rows: How many rows the call is about.
        bytes: The size of the rows' bodies.
        is_over: True if the call was answered.
        error: The error by which the call failed; None if it was carried out.
    """

    __slots__ = ("bytes", "error", "is_over", "rows")

    def __init__(self, rows: int = 1, size_bytes: int = 0) -> None:
        self.rows = rows
        self.bytes = size_bytes
        self.is_over = False
        self.error: ShardqError | None = None

    def fail(self, error: ShardqError) -> None:
        """Answer the call with an error."""
        self.error = error
        self.is_over = True


C = TypeVar("C", bound=HubCall)


class Hub(Generic[C]):
    """Carries out calls in batches, one batch at a time. From any thread.

    A caller that is interrupted while it waits leaves the line. If a caller is interrupted while it
    carries out a batch, the calls without an answer stay in line, and the next caller that gets the
    turn carries them out again.

    Args:
        carry_out: Carries out the calls of a batch, maybe the same calls again, or raises the error
            by which all have failed. It answers a call that alone has failed by `HubCall.fail`.
        repeats: True to repeat a batch of unknown outcome once before its callers get the error.
        is_whole: True if a batch that is not applied has changed nothing; False if a part may be
            applied.
        turn: Held while a batch is under way; hubs that share this lock take turns.
    """

    def __init__(
        self,
        carry_out: Callable[[Sequence[C]], None],
        *,
        repeats: bool = False,
        is_whole: bool = True,
        turn: threading.RLock | None = None,
    ) -> None:
        self._carry_out = carry_out
        self._repeats = repeats
        self._is_whole = is_whole
        self._turn = turn or locks.new()
        self._line: dict[C, None] = {}
        locks.in_child(self, Hub._begin_child)

    def do(self, call: C) -> None:
        """Put a call in line, and return when it is answered.

        Raises:
            ShardqError: The error by which the call failed.
            UsageError: If a signal's handler has interrupted a batch in this thread.
        """
        turn, line = self._turn, self._line
        locks.refuse_within(turn)
        line[call] = None
        try:
            with turn:
                while not call.is_over:
                    # A fork while the call waited has cleared the line.
                    line.setdefault(call)
                    self._do_batch()
        finally:
            line.pop(call, None)
        if call.error is not None:
            raise call.error

    def _do_batch(self) -> None:
        batch = self._first()
        try:
            self._answer(batch)
        finally:
            for one in batch:
                if one.is_over:
                    self._line.pop(one, None)

    def _first(self) -> list[C]:
        """The first calls in line, as many as fit in a batch."""
        batch: list[C] = []
        rows = size_bytes = 0
        for one in list(self._line):
            rows += one.rows
            size_bytes += one.bytes
            if batch and (rows > BATCH_ROWS or size_bytes > BATCH_BYTES):
                break
            batch.append(one)
        return batch

    def _answer(self, batch: Sequence[C], *, is_again: bool = False) -> None:
        """Answer the calls of a batch.

        Args:
            batch: The calls.
            is_again: True if the calls have been tried before.
        """
        try:
            self._try(batch, is_again=is_again)
            for one in batch:
                one.is_over = True
        except StoreRefused as error:
            if len(batch) == 1:
                batch[0].fail(error)
                return
            # One call may be the reason of the refusal; tried one by one, the others succeed.
            for one in batch:
                if not one.is_over:
                    self._answer([one], is_again=True)
        except ShardqError as error:
            for one in batch:
                if not one.is_over:
                    one.fail(error if len(batch) == 1 else own_copy(error))

    def _try(self, batch: Sequence[C], *, is_again: bool) -> None:
        try:
            try:
                self._carry_out(batch)
            except StoreTimeout:
                if not self._repeats:
                    raise
                is_again = True
                self._carry_out(batch)
        except (StoreUnavailable, StoreFull) as error:
            if not is_again and (self._is_whole or len(batch) == 1):
                raise
            text = f"maybe applied by a try whose answer is not known: {error}"
            raise StoreTimeout(text, error.messages) from error

    def _begin_child(self) -> None:
        # All calls in line are the parent's, except a call of the thread that forks.
        self._line.clear()


class Hubs(Generic[C]):
    """Hubs by place: calls for different places do not wait for each other.

    Args:
        make: Makes a hub.
    """

    def __init__(self, make: Callable[[], Hub[C]]) -> None:
        self._make = make
        self._hubs: dict[Hashable, Hub[C]] = {}

    def of(self, place: Hashable) -> Hub[C]:
        """The hub of a place."""
        hub = self._hubs.get(place)
        if hub is None:
            if len(self._hubs) >= _PLACES_MAX:
                # Calls under way keep the hubs that they use.
                self._hubs.clear()
            hub = self._hubs.setdefault(place, self._make())
        return hub
