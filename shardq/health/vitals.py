"""The vital signs of a worker or a consumer: its loops turn, and its store answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shardq.errors import SchemaError, StoreError, StoreTimeout, StoreUnavailable
from shardq.model.settings import Settings
from shardq.model.times import offset, span
from shardq.stores.tables import QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.connection import Connection
    from shardq.consumer import Consumer
    from shardq.queue import Queue

TURN_US = 10_000_000
"""A loop that has not turned for this long hangs: at rest it turns every 5 s at least."""
_ANSWER_S = 1.0
"""A store that takes longer to read one row counts as away."""


class Sign(NamedTuple):
    """One answer of a probe.

    Attributes:
        is_well: True if all is well.
        text: `ok`, or the fault in a few words.
    """

    is_well: bool = True
    text: str = "ok"


class Vitals(Protocol):
    """The vital signs of a process; any thread may ask for them."""

    def live(self) -> Sign:
        """Report whether the process's loops turn; makes no call to the store."""

    def ready(self) -> Sign:
        """Report whether the process can take work, within about a second."""

    def is_leaving(self) -> bool:
        """True if the process is about to end."""


class Readiness:
    """Checks a store by a read of one row, in a thread, because the read may block for long.

    The tables' format is checked only at `open`, once for each connection.

    Args:
        db: The connection.
        queues: The queues that this process works on; empty: any.
    """

    def __init__(self, db: Connection, queues: Sequence[Queue] = ()) -> None:
        self._store = db._home.store
        self._clock = db._home.clock
        self._queues = queues
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._over.set()
        self._failure = ""

    def sign(self) -> Sign:
        """Report whether the store answers within a second, and the clock is right."""
        with self._lock:
            if self._over.is_set():
                self._over = threading.Event()
                args = (self._over,)
                threading.Thread(
                    target=self._ask, args=args, name="shardq-ready", daemon=True
                ).start()
            over = self._over
        if not over.wait(_ANSWER_S):
            return Sign(is_well=False, text="the store does not answer")
        wrong = self._failure or self._clock_wrong()
        return Sign(not wrong, wrong or "ok")

    def _clock_wrong(self) -> str:
        """The reason for which the clock is too wrong for a put; empty if it is right."""
        offsets_ms = [one.settings.offset_ms for one in self._queues] or [Settings().offset_ms]
        off_ms, most_ms = self._clock.deviation_us / 1e3, min(offsets_ms)
        if abs(off_ms) <= most_ms:
            return ""
        return (
            f"the clock is {offset(off_ms)} from the store's, more than the {span(most_ms)} that a "
            f"put allows"
        )

    def _ask(self, over: threading.Event) -> None:
        self._failure = "the store failed"
        try:
            self._store.open()
            # One key, so that the read is small. No queue need have this name.
            self._store.notes(QUEUES, (), ["ready"])
            self._failure = ""
        except (StoreTimeout, StoreUnavailable) as error:
            self._failure = f"the store does not answer: {error}"
        except (SchemaError, StoreError) as error:
            self._failure = f"the store cannot be used: {error}"
        finally:
            over.set()


class ConsumerVitals:
    """The vital signs of consumers that run in this process.

    Args:
        db: The store.
        consumers: The consumers.
        loop_hung_us: Returns the time since the coroutines' loop last turned, microseconds.
    """

    def __init__(
        self,
        db: Connection,
        consumers: Sequence[Consumer],
        loop_hung_us: Callable[[], int] = lambda: 0,
    ) -> None:
        # The times of calls distinguish a step that waits for the store from a step that hangs.
        db._home.meter.time_store(db._home.store, db._home.clock)
        self._consumers = consumers
        self._loop_hung_us = loop_hung_us
        self._readiness = Readiness(db, [one._queue for one in consumers])  # noqa: SLF001 - likewise

    def live(self) -> Sign:
        """Report whether all loops have turned in the last 10 s."""
        if (hung_us := self._loop_hung_us()) >= TURN_US:
            return Sign(False, f"the event loop has not turned for {hung_us // 1_000_000} s")
        for one in self._consumers:
            if (hung_us := one._hung_us()) >= TURN_US:  # noqa: SLF001 - its own sign
                name = one._queue.name  # noqa: SLF001
                return Sign(False, f"queue {name} has not been read for {hung_us // 1_000_000} s")
        return Sign()

    def ready(self) -> Sign:
        """Report whether store and clock are right, and no consumer is about to end."""
        return Sign(False, "leaving") if self.is_leaving() else self._readiness.sign()

    def is_leaving(self) -> bool:
        """True if a consumer is about to end, because all of them end together."""
        return any(one._is_stopping() for one in self._consumers)  # noqa: SLF001
