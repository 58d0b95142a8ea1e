"""Ends of deliveries that are held, and so not ended by the return of their handlers.

```
 handler ── hold ──► Ending ──┬─ end, by any thread ─► acked, or judged by its error
               │              └─ the handler raises before that ─► judged by what it raised
               ├─ returns first: its thread takes the next delivery, the work goes on elsewhere
               └─ is ended first: the outcome is stored, and its thread is free once it returns
```

The first end decides. `deliverer.py` turns it into an outcome.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from shardq import locks

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.engine.handing.delivery import Delivery
    from shardq.lifecycle.fate import Outcome


class Ending:
    """The end of a delivery that its handler holds: before or after the handler's return.

    Made by `Endings.hold`.

    Attributes:
        one: The delivery.
        begun_us: Time since boot at which the work began, if it waited for other deliveries or a
            slot after the handler was called; 0 if it did not wait.
        where: Returns the stack of the work that continues after the handler's return, as Python
            prints stacks; None if no stack is available.
        has_returned: True if the handler has returned, so that no thread of the consumer runs it.
    """

    __slots__ = (
        "_chance",
        "_conclude",
        "_endings",
        "_is_concluded",
        "_over",
        "begun_us",
        "has_returned",
        "one",
        "where",
    )

    def __init__(
        self,
        one: Delivery,
        endings: Endings,
        conclude: Callable[[Ending, BaseException | None], None],
    ) -> None:
        self.one = one
        self.where: Callable[[], str] | None = None
        self.has_returned = False
        self.begun_us = 0
        self._endings = endings
        self._conclude = conclude
        self._chance: list[None] = [None]
        self._is_concluded = False
        self._over: threading.Event | None = None

    def end(self, error: BaseException | None) -> bool:
        """End the delivery, from any thread: ack it, or settle it as its error is judged.

        No call of the store is made: the engine's next step stores the outcome. A delivery that was
        parked at a shutdown is delivered again all the same.

        Returns:
            True if this call ended the delivery; False if it had ended before, and in a forked
            child.
        """
        if not self.take():
            return False
        self._conclude(self, error)
        return True

    @property
    def is_over(self) -> bool:
        """True if the delivery has ended, or a thread is about to end it."""
        return not self._chance

    def wait(self) -> None:
        """Wait until the delivery has ended. In a forked child, where nothing ends it, return."""
        if self._endings.finish is not None:
            self._endings.finish()
        with self._endings.lock:
            over = self._over = self._over or threading.Event()
        # `conclude` sets `_is_concluded` before it looks for a waiter, so it misses no waiter.
        if not (self._is_concluded or self._endings.are_parents):
            over.wait()

    # For the deliverer ----------------------------------------------------------------------------

    def take(self) -> bool:
        """Take the right to end the delivery; True for the first caller alone, in any thread.

        `list.pop` is one step of C. A lock of ours would not do: a signal's handler that interrupts
        the thread which holds the lock gets it too.
        """
        if self._endings.are_parents:
            return False
        try:
            self._chance.pop()
        except IndexError:
            return False
        return True

    def conclude(self) -> None:
        """Note that the delivery's outcome is on its way to the store."""
        self._is_concluded = True
        if self._over is not None:
            self._over.set()
        if self.has_returned:
            self._endings.forget(self)

    def note_return(self) -> None:
        """Note that the delivery's handler has returned, or raised."""
        self.has_returned = True
        if self._is_concluded:
            self._endings.forget(self)


class Endings:
    """The ends of one consumer's held deliveries. From any thread.

    Attributes:
        held: Delivery -> its end, kept until the delivery has ended and its handler has returned.
        lock: Held while the event is made that all waiters for an end share.
        finish: Ends held deliveries that wait for others, in the calling thread; None if other
            threads end them.
        on_end: Called with each delivery whose handler was called, held or not, its outcome, and
            the error that was raised; None if nobody listens.
        are_parents: True in a forked child: all deliveries are the parent's.
    """

    def __init__(self) -> None:
        self.held: dict[Delivery, Ending] = {}
        self.lock = locks.new()
        self.finish: Callable[[], None] | None = None
        self.on_end: Callable[[Delivery, Outcome, BaseException | None], object] | None = None
        self.are_parents = False
        locks.in_child(self, Endings._begin_child)

    def hold(
        self, one: Delivery, conclude: Callable[[Ending, BaseException | None], None]
    ) -> Ending:
        """Hold a delivery, so that its handler's return does not end it; returns its end.

        Args:
            one: The delivery. If it is held twice, both calls return the same end.
            conclude: Called once, with this end and its error, in the thread that ends the
                delivery.
        """
        ending = self.held.get(one)
        if ending is None:
            ending = self.held[one] = Ending(one, self, conclude)
        return ending

    def forget(self, ending: Ending) -> None:
        """Forget the end of a delivery that ended and whose handler has returned. Idempotent."""
        self.held.pop(ending.one, None)

    @property
    def freed(self) -> int:
        """Handlers that returned before their delivery's end, less handlers that run on after it.

        The member has this many fewer threads taken than deliveries that have not ended.
        """
        held = list(self.held.values())
        return sum(ending.has_returned for ending in held) - sum(
            ending.one.has_ended for ending in held
        )

    def _begin_child(self) -> None:
        self.are_parents = True
