"""Ends of deliveries that are not the ends of their handlers' calls.

```
 handler ── hold ──► Ending ──┬─ end, by any thread ─► acked, or judged by its error
               │              └─ the handler raises before that ─► judged by what it raised
               ├─ returns first: its thread takes the next delivery, the work goes on elsewhere
               └─ is ended first: its message goes on by the rules, its thread once it returns
```

The first end decides. What becomes of the delivery then, `deliverer.py` knows.
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
    """The end of a delivery that its handler holds: it may outlive the handler, or come before.

    Made by `Endings.hold`.

    Attributes:
        one: The delivery.
        where: Tells where its work stands once its handler has returned, as Python prints a stack;
            None where nobody can.
        has_returned: Whether its handler has: no thread of the consumer runs it any more.
    """

    __slots__ = (
        "_chance",
        "_conclude",
        "_endings",
        "_is_concluded",
        "_over",
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
        self._endings = endings
        self._conclude = conclude
        self._chance: list[None] = [None]
        self._is_concluded = False
        self._over: threading.Event | None = None

    def end(self, error: BaseException | None) -> bool:
        """End the delivery: acked without an error, else as it is judged. From any thread.

        It makes no call to the store: what the delivery comes to is stored by the engine's next
        step. One that was parked at a shutdown comes again all the same.

        Returns:
            Whether this is its end; False where it had ended before, and in a forked child.
        """
        if not self.take():
            return False
        self._conclude(self, error)
        return True

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or somebody is about to end it."""
        return not self._chance

    def wait(self) -> None:
        """Wait until it has ended. In a forked child nothing ends it, and it returns at once."""
        if self._endings.finish is not None:
            self._endings.finish()
        with self._endings.lock:
            over = self._over = self._over or threading.Event()
        # Who ends it says so before it looks whether anybody waits.
        if not (self._is_concluded or self._endings.are_parents):
            over.wait()

    # For the deliverer ----------------------------------------------------------------------------

    def take(self) -> bool:
        """Whether the caller is to end it: the first that asks, whichever thread that is.

        One step of C decides it. A lock of ours would not: it lets in a signal's handler that has
        interrupted the thread which holds it.
        """
        if self._endings.are_parents:
            return False
        try:
            self._chance.pop()
        except IndexError:
            return False
        return True

    def conclude(self) -> None:
        """Its outcome is on its way to the store."""
        self._is_concluded = True
        if self._over is not None:
            self._over.set()
        if self.has_returned:
            self._endings.forget(self)

    def note_return(self) -> None:
        """Its handler has returned, or raised."""
        self.has_returned = True
        if self._is_concluded:
            self._endings.forget(self)


class Endings:
    """Those of one consumer's deliveries that are held. From any thread.

    Attributes:
        held: Delivery -> its end, until it has ended and its handler has returned.
        lock: Makes what waits.
        finish: Ends those that still wait for others, in the thread that calls it; None where
            threads of their own do.
        on_end: Told what each delivery comes to whose handler was called, held or not, and what
            was raised; None: nobody asks.
        are_parents: Whether this is a forked child: all of them are its parent's.
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
        """The end of a delivery, of which its handler's return is none any more.

        Args:
            one: The delivery; held twice, it has one end.
            conclude: Called with its first end, once, in the thread that ends it.
        """
        ending = self.held.get(one)
        if ending is None:
            ending = self.held[one] = Ending(one, self, conclude)
        return ending

    def forget(self, ending: Ending) -> None:
        """It has ended, and its handler has returned: both may say so."""
        self.held.pop(ending.one, None)

    @property
    def freed(self) -> int:
        """How many threads less are taken than there are deliveries that have not ended.

        Below 0: so many run handlers whose deliveries have ended.
        """
        held = list(self.held.values())
        return sum(ending.has_returned for ending in held) - sum(
            ending.one.has_ended for ending in held
        )

    def _begin_child(self) -> None:
        self.are_parents = True
