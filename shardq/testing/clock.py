"""Clocks that are moved by hand, one of them along with what a test's tool tells."""

from __future__ import annotations

import statistics
import threading
from typing import TYPE_CHECKING

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
_MEASURE_EVERY_US = 60_000_000
_SET_US = 500_000
"""The values of `shardq.clock`."""
_GLANCE_S = 0.02
"""How long a thread really waits before it looks at the hands again, should a notice be missed."""


class _Hands:
    """What all clocks of a stage show, and who waits for it to move."""

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
        start_us: Epoch microseconds that it shows first; where None, `START_US`, or the next hour
            after all row ids of this process, which never go backwards.
        threaded: False: a wait or sleep moves the hands itself, for programs of one thread. True:
            it lasts until another thread has moved them.

    Attributes:
        shift_us: How wrong this process's wall clock is.
        slept: Seconds of each sleep and wait that was asked for; None for an endless one.
    """

    def __init__(self, start_us: int | None = None, *, threaded: bool = False) -> None:
        if start_us is None:
            start_us = max(START_US, (birth_us(row_ids.next(0)) // _HOUR_US + 1) * _HOUR_US)
        self._hands = _Hands(start_us, threaded=threaded)
        self._corrected = True
        self._correction_us = 0
        self._deviation_us = 0
        self._measured_us: int | None = None
        self._seen_set_us: int | None = None
        self._steps = 0
        self.shift_us = 0
        self.slept: list[float | None] = []

    def shifted(self, seconds: float, *, corrected: bool = True) -> ManualClock:
        """The clock of another process of the same world, wrong by so many seconds.

        Args:
            seconds: Positive is ahead.
            corrected: Whether it measures its error and makes it good.
        """
        other = ManualClock(0)
        other._hands = self._hands
        other._corrected = corrected
        other.shift_us = round(seconds * 1e6)
        return other

    def advance(self, seconds: float) -> None:
        """Move now and boot, of all clocks of this world, and wake who waits for it."""
        self._hands.advance(round(seconds * 1e6))

    def set(self, seconds: float) -> None:
        """Set the clock of the machine forward, or back by less than 0, as people and NTP do.

        Time since boot goes on. All clocks of this world show it at once; those on a local store
        (`Stage(local=True)`) count it as a step.
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

    @property
    def steps(self) -> int:
        """How often the machine's clock was set by over 0.5 s, as `measure` has noticed."""
        return self._steps

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
        """Sleep: by moving the hands, or until another thread has moved them so far."""
        # Before it is told: whoever sees that it sleeps may move the hands.
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
        """Measure the error against the median of the nodes, where a minute has passed.

        On a local store the machine's clock is right: compare it with time since boot.
        """
        boot = self.boot_us()
        if reference.is_local:
            set_us, seen_us = self._hands.set_us, self._seen_set_us
            if seen_us is None or abs(set_us - seen_us) > _SET_US:
                self._seen_set_us = set_us
                self._steps += seen_us is not None
            self._deviation_us = self.shift_us
            self._correction_us = self.shift_us if self._corrected else 0
            return
        if self._measured_us is not None and boot - self._measured_us < _MEASURE_EVERY_US:
            return
        self._measured_us = boot
        true_us = statistics.median(ask_us() for ask_us in reference.clocks().values())
        self._deviation_us = round(self.true_us() + self.shift_us - true_us)
        if self._corrected:
            self._correction_us = self._deviation_us

    def check(self, offset_ms: int) -> None:
        """Raise `ClockError` where the wall clock is wrong by more than a queue's offset."""
        if abs(self._deviation_us) > offset_ms * 1_000:
            raise ClockError(f"this process's clock is {offset(self._deviation_us / 1_000)} off.")


class SandboxClock(ManualClock):
    """The clock of a sandbox. While freezegun or time-machine has the time, it is theirs.

    Args:
        start_us: Epoch microseconds that it shows first.
        on_sleep: Told for how many seconds something outside of jobs sleeps; returns whether it has
            let them pass.
        on_pass: Told until when time is about to pass, epoch microseconds; it may let a part of it
            pass by itself.
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
        """Show this, epoch microseconds, without that any time has passed."""
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
        """Likewise: no other process's clock is wrong here."""
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
        """Let time pass, here and for the tool that has it."""
        until_us = self.true_us() + round(seconds * 1e6)
        self._on_pass(until_us)
        self.advance_to(until_us)

    def advance_to(self, at_us: int) -> None:
        """Let time pass until then, epoch microseconds, where it is not later already."""
        self._move(max(at_us - self.true_us(), 0))

    def set(self, seconds: float) -> None:
        """Set the clock of the machine; that of the tool too."""
        super().set(seconds)
        tool = frozen.active()
        if tool is not None:
            tool.move(round(seconds * 1e6))

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:  # noqa: ARG002
        """Wait on a held condition, by moving the hands: nothing else happens meanwhile."""
        self._move(round((seconds or 0.0) * 1e6))

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass; outside of jobs, what is due on the way is run."""
        self.slept.append(seconds)
        if not self._on_sleep(seconds):
            self.advance(seconds)

    def _move(self, by_us: int) -> None:
        if (tool := frozen.active()) is not None:
            self._follow(tool)
            tool.move(by_us)
        self._hands.advance(by_us)

    def _follow(self, tool: frozen.Tool) -> None:
        """Show what the tool tells, which the test may have moved."""
        hands = self._hands
        by_us = tool.now_us() - hands.us - hands.set_us
        if by_us > 0:
            hands.advance(by_us)
        elif by_us < 0:
            # Time does not go back: somebody has set a clock.
            hands.advance(0, by_us)
