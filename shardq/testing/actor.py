"""A consumer that is stepped when it has something to do, and not before."""

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
"""Steps without time passing, though nothing begins, at most: settings are read, say, before lanes
are."""
_AT_PACE = 500
"""Steps at its own pace while a due message waits for another; then it is stepped more rarely."""
_PACE_US_MAX = 3_600_000_000
_STEP_US = 1_000


class Actor:
    """A consumer of a sandbox.

    Attributes:
        consumer: It.
        store: Where its queue is.
        queue: The name of that.
        wake_us: When it is to be stepped next, epoch microseconds; `NEVER` if nobody puts anything.
        is_firing: Whether it fires schedules right now.
    """

    def __init__(self, consumer: Consumer, store: MemoryStore, clock: SandboxClock) -> None:
        self.consumer = consumer
        self.store = store
        self._engine = consumer._engine
        self.queue = self._engine.rest.register.name
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
        """Let it be stepped now, and look at all there is."""
        self.wake_us = min(self.wake_us, self._clock.true_us())
        self._engine.rest.hurry()

    def step(self) -> None:
        """Do what is to be done now."""
        engine, clock = self._engine, self._clock
        begun = engine.rest.begun
        try:
            delay = self.consumer.step()
            # What a slow job has outlasted: it is taken anew.
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
        self._fruitless = 0 if engine.rest.begun > begun else self._fruitless + 1
        self.wake_us = now_us + self._pause_us(delay)

    def _pause_us(self, delay: float) -> int:
        """How long what is due waits for another member, or for an answer of the store."""
        if self._fruitless <= _AT_ONCE:
            return 0
        pace_us = max(round(delay * 1e6), _STEP_US)
        return min(pace_us << (self._fruitless // _AT_PACE), _PACE_US_MAX)

    @property
    def fires_us(self) -> int:
        """When a schedule of its queue fires next, epoch microseconds; `NEVER` without any."""
        along = self._engine.rest.along()
        next_ms = None if along is None else along.next_ms()
        return NEVER if next_ms is None else next_ms * 1_000

    def fire(self, at_us: int) -> None:
        """Let time pass until then, epoch microseconds, and fire the schedules of its queue."""
        self._clock.advance_to(at_us)
        self._fire()

    def _fire(self) -> float:
        self.is_firing = True
        try:
            return self._step_firer()
        finally:
            self.is_firing = False

    def pass_to(self, until_us: int) -> None:
        """Be ready for time that passes until then, epoch microseconds."""
        with suppress(StoreUnavailable, StoreTimeout):
            self._engine.rest.pass_to(until_us // 1_000)

    def rest(self) -> None:
        """Be ready for a pause of any length, in which anything may happen."""
        # Leases that the store does not take back end by themselves.
        with suppress(StoreUnavailable, StoreTimeout):
            self._engine.rest.begin(NEVER // 1_000)
