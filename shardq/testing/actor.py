"""A consumer that is stepped only when it has something to do."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardq.errors import StoreTimeout, StoreUnavailable

if TYPE_CHECKING:
    from shardq.consumer import Consumer
    from shardq.testing.clock import SandboxClock
    from shardq.testing.memory import MemoryStore

NEVER = 1 << 62
_AT_ONCE = 5
"""The most steps in a row that begin no delivery before time passes. One step is too few: settings,
for example, are read before lanes."""
_AT_PACE = 500
"""While a due message waits for another, the pause between steps doubles after so many steps."""
_PACE_US_MAX = 3_600_000_000
_STEP_US = 1_000


class Actor:
    """A consumer of a sandbox.

    Attributes:
        consumer: The consumer.
        store: The store of its queue.
        queue: The name of its queue.
        wake_us: When to step it next, epoch microseconds; `NEVER` until somebody puts a message.
        is_firing: True while it fires schedules.
    """

    def __init__(self, consumer: Consumer, store: MemoryStore, clock: SandboxClock) -> None:
        self.consumer = consumer
        self.store = store
        self._engine = consumer._engine
        self.queue = self._engine.home.register.name
        self._clock = clock
        self._fruitless = 0
        self.wake_us = 0
        self.is_firing = False
        # A firing that waits must not begin another.
        self._step_firer, consumer._fire = consumer._fire, self._fire  # noqa: SLF001 - it is ours
        self._engine.rest.is_alone = True

    def note(self, due_ms: int) -> None:
        """Note that a row was placed in its queue, due at `due_ms`, epoch milliseconds."""
        self.wake_us = min(self.wake_us, due_ms * 1_000)
        self._engine.rest.note(due_ms)

    def hurry(self) -> None:
        """Let the next step be now, and read everything."""
        self.wake_us = min(self.wake_us, self._clock.true_us())
        self._engine.rest.hurry()

    def step(self) -> None:
        """Do the work that is due now."""
        engine, clock = self._engine, self._clock
        begun = engine.outbox.begun
        try:
            delay = self.consumer.step()
            # Release leases that a slow job has outlasted.
            engine.rest.begin(clock.now_ms())
            until_ms = engine.rest.until_ms()
        except (StoreUnavailable, StoreTimeout) as error:
            self.wake_us = clock.true_us() + round(engine.news.back_off(error) * 1e6)
            return
        now_us = clock.true_us()
        if until_ms is None or until_ms * 1_000 > now_us:
            self._fruitless = 0
            self.wake_us = NEVER if until_ms is None else until_ms * 1_000
            return
        self._fruitless = 0 if engine.outbox.begun > begun else self._fruitless + 1
        self.wake_us = now_us + self._pause_us(delay)

    def _pause_us(self, delay: float) -> int:
        """How long due messages wait for another member, or for an answer of the store."""
        if self._fruitless <= _AT_ONCE:
            return 0
        pace_us = max(round(delay * 1e6), _STEP_US)
        return min(pace_us << (self._fruitless // _AT_PACE), _PACE_US_MAX)

    @property
    def fires_us(self) -> int:
        """When a schedule of its queue fires next, epoch microseconds; `NEVER` if none does."""
        along = self._engine.rest.along
        next_ms = None if along is None else along.next_ms()
        return NEVER if next_ms is None else next_ms * 1_000

    def fire(self, at_us: int) -> None:
        """Let time pass until `at_us`, epoch microseconds, and fire the schedules of its queue."""
        self._clock.advance_to(at_us)
        self._fire()

    def _fire(self) -> float:
        self.is_firing = True
        try:
            return self._step_firer()
        finally:
            self.is_firing = False

    def pass_to(self, until_us: int) -> None:
        """Prepare for the time until `until_us`, epoch microseconds, to pass."""
        with suppress(StoreUnavailable, StoreTimeout):
            self._engine.rest.pass_to(until_us // 1_000)

    def rest(self) -> None:
        """Prepare for a pause of any length, in which anything may happen."""
        # Errors of the store are ignored, because leases that are not released expire.
        with suppress(StoreUnavailable, StoreTimeout):
            self._engine.rest.begin(NEVER // 1_000)
