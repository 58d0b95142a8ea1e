"""Clocks that are moved by hand. `SandboxClock` moves together with freezegun or time-machine."""

from __future__ import annotations

import statistics
import threading
from typing import TYPE_CHECKING

from shardq.clock import MEASURE_EVERY_US, SET_US
from shardq.errors import ClockError
from shardq.model.ids import birth_us, row_ids
from shardq.model.times import offset
from shardq.testing import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.clock import Reference

START_US = 1_800_000_000_000_000
"""15 January 2027, 08:00 UTC: the first moment of the first stage."""

_HOUR_US = 3_600_000_000
_GLANCE_S = 0.02
"""How long a thread really waits before it checks the hands again, in case it misses a notice."""


class _Hands:
    """The time that all clocks of a stage show, and the threads that wait for it to move."""

    def __init__(self, start_us: int, *, threaded: bool) -> None:
        self.start_us = self.us = start_us
        self.set_us = 0
        self.threaded = threaded
        self.lock = threading.Lock()
        self.waiting: list[threading.Condition] = []

    def advance(self, by_us: int, set_us: int = 0) -> None:
        with self.lock:
            self.us += by_us
            self.set_us += set_us
            waiting = list(self.waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()


class ManualClock:
    """A `shardq.clock.Clock` that stands still until it is moved.

    Args:
        start_us: The first time that it shows, epoch microseconds; None: `START_US`, or the next
            hour after all row ids of this process, which never go backwards.
        threaded: False: a wait or sleep moves the hands itself, for programs of one thread. True:
            it lasts until another thread has moved them.

    Attributes:
        steps: The last steps of now: when `measure` noticed it, time since boot, and how far
            forward, microseconds.
        shift_us: The error of this process's wall clock.
        slept: The seconds of each sleep and wait; None for an endless one.
    """

    def __init__(self, start_us: int | None = None, *, threaded: bool = False) -> None:
        if start_us is None:
            start_us = max(START_US, (birth_us(row_ids.next(0)) // _HOUR_US + 1) * _HOUR_US)
        self._hands = _Hands(start_us, threaded=threaded)
        self._corrected = True
        self._correction_us = 0
        self._deviation_us = 0
        self._measured_us: int | None = None
        self._seen_us: int | None = None
        self.steps: tuple[tuple[int, int], ...] = ()
        self.shift_us = 0
        self.slept: list[float | None] = []

    def shifted(self, seconds: float, *, corrected: bool = True) -> ManualClock:
        """The clock of another process of the same world, wrong by this many seconds.

        Args:
            seconds: Positive is ahead.
            corrected: True if it measures its error and corrects it.
        """
        other = ManualClock(0)
        other._hands = self._hands
        other._corrected = corrected
        other.shift_us = round(seconds * 1e6)
        return other

    def advance(self, seconds: float) -> None:
        """Let time pass on all clocks of this world, and wake the threads that wait for it."""
        self._hands.advance(round(seconds * 1e6))

    def set(self, seconds: float) -> None:
        """Set the clock of the machine forward, or back if below 0, as people and NTP do.

        Time since boot continues. All clocks of this world show the new time at once; those on a
        local store (`Stage(local=True)`) react to it.
        """
        self._hands.advance(0, round(seconds * 1e6))

    def true_us(self) -> int:
        """The time that a right clock shows, epoch microseconds."""
        return self._hands.us + self._hands.set_us

    def true_ms(self) -> int:
        """The time that a right clock shows, epoch milliseconds."""
        return self.true_us() // 1_000

    @property
    def deviation_us(self) -> int:
        """Wall clock less reference at the last measurement."""
        return self._deviation_us

    def now_us(self) -> int:
        """Corrected epoch microseconds."""
        return self.true_us() + self.shift_us - self._correction_us

    def now_ms(self) -> int:
        """Corrected epoch milliseconds, rounded down."""
        return self.now_us() // 1_000

    def boot_us(self) -> int:
        """Microseconds since a boot that was 1,000 s before the start."""
        return self._hands.us - self._hands.start_us + 1_000_000_000

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on a held condition: by moving the hands, or until another thread has moved them."""
        hands = self._hands
        if not hands.threaded:
            self.sleep(seconds or 0.0)
            return
        with hands.lock:
            hands.waiting.append(condition)
        try:
            condition.wait(_GLANCE_S)
        finally:
            with hands.lock:
                hands.waiting.remove(condition)

    def sleep(self, seconds: float) -> None:
        """Sleep: by moving the hands, or until another thread has moved them this far."""
        # Read before `slept` lists the caller: from then on other threads may move the hands.
        until_us = self._hands.us + round(seconds * 1e6)
        self.slept.append(seconds)
        if not self._hands.threaded:
            self.advance(seconds)
            return
        condition = threading.Condition()
        with condition:
            while self._hands.us < until_us:
                self.wait(condition, None)

    def measure(self, reference: Reference) -> None:
        """Measure the error against the median of the nodes, if a minute has passed.

        On a local store the machine's clock is right. Note it if now was stepped.
        """
        boot = self.boot_us()
        if reference.is_local:
            self._deviation_us = self.shift_us
        elif self._measured_us is None or boot - self._measured_us >= MEASURE_EVERY_US:
            self._measured_us = boot
            true_us = statistics.median(ask_us() for ask_us in reference.clocks().values())
            self._deviation_us = round(self.true_us() + self.shift_us - true_us)
        self._correction_us = self._deviation_us if self._corrected else 0
        ahead_us = self._hands.set_us + self.shift_us - self._correction_us
        if self._seen_us is None:
            self._seen_us = ahead_us
        elif abs(by_us := ahead_us - self._seen_us) > SET_US:
            self._seen_us = ahead_us
            self.steps = (*self.steps, (boot, by_us))

    def check(self, offset_ms: int) -> None:
        """Raise `ClockError` if the wall clock is wrong by more than a queue's offset."""
        if abs(self._deviation_us) > offset_ms * 1_000:
            raise ClockError(f"this process's clock is {offset(self._deviation_us / 1_000)} off.")


class SandboxClock(ManualClock):
    """The clock of a sandbox. While freezegun or time-machine freezes time, it shows their time.

    Args:
        start_us: The first time that it shows, epoch microseconds.
        on_sleep: Called with the seconds of a sleep outside of jobs; returns True if it let them
            pass.
        on_pass: Called before time passes, with its end, epoch microseconds; it may let a part of
            the time pass itself.
    """

    def __init__(
        self,
        start_us: int,
        *,
        on_sleep: Callable[[float], bool],
        on_pass: Callable[[int], None],
    ) -> None:
        super().__init__(start_us)
        self._on_sleep = on_sleep
        self._on_pass = on_pass

    def begin(self, start_us: int) -> None:
        """Show the time `start_us`, epoch microseconds, as if no time had passed."""
        hands = self._hands
        hands.start_us = hands.us = start_us
        hands.set_us = 0

    def true_us(self) -> int:
        """The time, epoch microseconds."""
        if (tool := frozen.active()) is not None:
            self._follow(tool)
        hands = self._hands
        return hands.us + hands.set_us

    def now_us(self) -> int:
        """The time, epoch microseconds: no process's clock is wrong here."""
        return self.true_us()

    def now_ms(self) -> int:
        """The time, epoch milliseconds, rounded down."""
        return self.true_us() // 1_000

    def boot_us(self) -> int:
        """Microseconds since a boot that was 1,000 s before the start."""
        if (tool := frozen.active()) is not None:
            self._follow(tool)
        return super().boot_us()

    def advance(self, seconds: float) -> None:
        """Let time pass, here and for an active tool."""
        until_us = self.true_us() + round(seconds * 1e6)
        self._on_pass(until_us)
        self.advance_to(until_us)

    def advance_to(self, at_us: int) -> None:
        """Let time pass until `at_us`, epoch microseconds, unless it is later already."""
        self._move(max(at_us - self.true_us(), 0))

    def set(self, seconds: float) -> None:
        """Set the clock of the machine, and the time of an active tool."""
        super().set(seconds)
        tool = frozen.active()
        if tool is not None:
            tool.move(round(seconds * 1e6))

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:  # noqa: ARG002
        """Wait on a held condition by moving the hands: nothing else happens meanwhile."""
        self._move(round((seconds or 0.0) * 1e6))

    def sleep(self, seconds: float) -> None:
        """Let some seconds pass; outside of jobs, run the messages due on the way."""
        self.slept.append(seconds)
        if not self._on_sleep(seconds):
            self.advance(seconds)

    def _move(self, by_us: int) -> None:
        if (tool := frozen.active()) is not None:
            self._follow(tool)
            tool.move(by_us)
        self._hands.advance(by_us)

    def _follow(self, tool: frozen.Tool) -> None:
        """Show the tool's time, which the test may have moved."""
        hands = self._hands
        by_us = tool.now_us() - hands.us - hands.set_us
        if by_us > 0:
            hands.advance(by_us)
        elif by_us < 0:
            # Time does not go back: the test has set a clock.
            hands.advance(0, by_us)
