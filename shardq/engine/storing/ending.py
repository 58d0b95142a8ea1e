"""Ends of deliveries that are held: the return of a handler does not end them.

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
        begun_us: Time since boot at which its work began, if that waited for others or for a slot
            after its handler was called; 0: it did not.
        where: Returns the stack of the work that goes on after the handler's return, as Python
            prints one; None if no stack is to be had.
        has_returned: True if its handler has returned: no thread of the consumer runs it.
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

        It makes no call to the store: the engine's next step stores the outcome. A delivery that
        was parked at a shutdown is delivered again all the same.

        Returns:
            True if this is its end; False if it had ended before, and in a forked child.
        """
        if not self.take():
            return False
        self._conclude(self, error)
        return True

    @property
    def is_over(self) -> bool:
        """True if it has ended, or a thread is about to end it."""
        return not self._chance

    def wait(self) -> None:
        """Wait until it has ended; return at once in a forked child, where nothing ends it."""
        if self._endings.finish is not None:
            self._endings.finish()
        with self._endings.lock:
            over = self._over = self._over or threading.Event()
        # `conclude` sets `_is_concluded` before it looks for a waiter, so none is missed.
        if not (self._is_concluded or self._endings.are_parents):
            over.wait()

    # For the deliverer ----------------------------------------------------------------------------

    def take(self) -> bool:
        """Take the right to end it; True for the first caller alone, in whichever thread.

        `list.pop` is one step of C. A lock of ours would not do: it admits a signal's handler that
        has interrupted the thread that holds it.
        """
        if self._endings.are_parents:
            return False
        try:
            self._chance.pop()
        except IndexError:
            return False
        return True

    def conclude(self) -> None:
        """Note that its outcome is on its way to the store."""
        self._is_concluded = True
        if self._over is not None:
            self._over.set()
        if self.has_returned:
            self._endings.forget(self)

    def note_return(self) -> None:
        """Note that its handler has returned, or raised."""
        self.has_returned = True
        if self._is_concluded:
            self._endings.forget(self)


class Endings:
    """The ends of one consumer's held deliveries. From any thread.

    Attributes:
        held: Delivery -> its end, until it has ended and its handler has returned.
        lock: Guards the making of the event that waiters of an end share.
        finish: Ends the held deliveries that wait for others, in the thread that calls it; None if
            threads of their own do.
        on_end: Called with each delivery whose handler was called, held or not, its outcome, and
            the error that was raised; None: nobody listens.
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
        """Hold a delivery: its handler's return does not end it any more. Returns its end.

        Args:
            one: The delivery; held twice, it has one end.
            conclude: Called once, with this end and its error, in the thread that ends it.
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
        """Handlers that returned before the end, less handlers that run on after it.

        A member has this many fewer threads taken than deliveries that have not ended.
        """
        held = list(self.held.values())
        return sum(ending.has_returned for ending in held) - sum(
            ending.one.has_ended for ending in held
        )

    def _begin_child(self) -> None:
        self.are_parents = True
