"""The one reader of time and the one sleeper.

```
 reference (the store's nodes, median) ──measured every minute──┐
                                                                ▼
 corrected now = reference at the measurement + time since boot elapsed since, slewed
 wall clock ── read at a measurement only, to tell how wrong it is

 local store: now = wall clock ── compared with time since boot at every step and put
                                  └─ over 0.5 s apart: the clock was set, `steps` records it
```

With a local store the machine's clock is the only time: a person or a time service that sets it
sets it for all processes at once. Leases are measured in time since boot, due times in corrected
now. `times.py` reads times as people write them.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from shardq import locks
from shardq.errors import BadSetting, ClockError, StoreTimeout, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardq.errors import StoreError

log = logging.getLogger(__name__)

OFFSET_VARIABLE = "SHARDQ_CLOCK_OFFSET"
CORRECTION_VARIABLE = "SHARDQ_CLOCK_CORRECTION"

MEASURE_EVERY_US: Final = 60_000_000
_ROUND_TRIPS = 8
_STEP_US = 1_000_000
"""A larger error is corrected at once, a smaller one evenly over `_SLEW_US`."""
_SLEW_US = 10_000_000
SET_US: Final = 500_000
"""A local clock that has left time since boot by more than this was set; less does no harm."""
_STEPS_MAX = 100
_PROMPT_US = 50_000
"""Readings that took longer than this cannot be compared: the process stood still between them."""


class Reference(Protocol):
    """A source of the true time: the store.

    Attributes:
        is_local: True if its time is this machine's own clock, so that no node is asked.
    """

    @property
    def is_local(self) -> bool:
        """True if its time is this machine's own clock, so that no node is asked."""

    def clocks(self) -> Mapping[str, Callable[[], int]]:
        """Name of each live node -> a function that asks the node for its epoch microseconds."""


class Clock(Protocol):
    """Time, waits and sleeps, for all other modules."""

    def now_us(self) -> int:
        """Corrected epoch microseconds, UTC."""

    def now_ms(self) -> int:
        """Corrected epoch milliseconds, UTC, rounded down."""

    def boot_us(self) -> int:
        """Microseconds since boot; never set, never backwards, counts a suspended machine."""

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on a held condition until it is notified, or for `seconds`; None: without an end."""

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""

    def measure(self, reference: Reference) -> None:
        """Measure the error against the reference, if the last measurement is a minute old.

        With a local reference: compare the machine's clock with time since boot, at every call.
        """

    def check(self, offset_ms: int) -> None:
        """Raise `ClockError` if the wall clock is wrong by more than a queue's offset."""

    @property
    def deviation_us(self) -> int:
        """Wall clock less reference at the last measurement."""

    @property
    def steps(self) -> Sequence[tuple[int, int]]:
        """The last steps of now, oldest first: when `measure` noticed it, and how far forward.

        Time since boot and microseconds; below 0 it went back. The clock of the machine was set by
        over 0.5 s; or that of the nodes, if they are asked.
        """


def forward_us(clock: Clock, within_us: float) -> int:
    """The most by which now was stepped forward since any time in the last `within_us`.

    Steps of a minute before count too: other processes notice a step of the nodes that much later.
    """
    since_us = clock.boot_us() - within_us - MEASURE_EVERY_US
    return max(accumulate((by for at, by in reversed(clock.steps) if at > since_us), initial=0))


def machine_us() -> int:
    """The operating system's clock as epoch microseconds, whatever shift this process has."""
    return time.time_ns() // 1_000


class BootTime(NamedTuple):
    """A reading of time since boot.

    Attributes:
        us: Microseconds since boot.
        space: The name of the clock: readings with the same name can be compared. None: the name
            is not known.
    """

    us: int
    space: str | None


def boot_time() -> BootTime:
    """Time since boot, in a form that the processes of this machine can compare; 4 us."""
    return BootTime(_boot_us(), _boot_space())


def _boot_us() -> int:
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000


# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts a suspended machine already.
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _boot_space() -> str | None:
    """The name of this process's time since boot, which all processes with the same clock share.

    The id of the boot would not do: LXC and systemd-nspawn give each container another id, on one
    kernel. The id is used only if Linux names no time namespace, before 5.6 or in gVisor.
    """
    if not sys.platform.startswith("linux"):
        return sys.platform
    try:
        # Read at each call, because a forked child may be in another namespace.
        return os.readlink("/proc/self/ns/time")
    except OSError:
        return _boot_id()


@functools.cache
def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return None


class _Line(NamedTuple):
    """Corrected now: time since boot + base, plus the part of the slew that is done by now."""

    base_us: int
    slew_us: int = 0
    from_us: int = 0

    def base_at(self, boot_us: int) -> int:
        if not self.slew_us:
            return self.base_us
        return self.base_us + self.slew_us * min(boot_us - self.from_us, _SLEW_US) // _SLEW_US


class SystemClock:
    """The real clock of this process, corrected by a reference.

    Args:
        shift_us: Added to the wall clock, to simulate a wrong one; `SHARDQ_CLOCK_OFFSET` seconds by
            default.
        corrected: False takes the wall clock as it is; `SHARDQ_CLOCK_CORRECTION=off` by default.

    Attributes:
        steps: The last steps of now, as `Clock.steps`.
    """

    def __init__(self, shift_us: int | None = None, *, corrected: bool | None = None) -> None:
        self._shift_us = _shift_from_environment() if shift_us is None else shift_us
        self._corrected = (
            os.environ.get(CORRECTION_VARIABLE, "on") != "off" if corrected is None else corrected
        )
        self._lock = locks.new()
        self._deviation_us = 0
        self._measured_us: int | None = None
        self._line = _Line(self._wall_us() - _boot_us())
        self._local_us: int | None = None
        """How far a local store's now is ahead of the machine's clock; None: nodes are asked."""
        self._machine_base_us = 0
        self.steps: tuple[tuple[int, int], ...] = ()

    @property
    def deviation_us(self) -> int:
        """Wall clock less reference at the last measurement."""
        return self._deviation_us

    def now_us(self) -> int:
        """Corrected epoch microseconds, UTC."""
        if self._local_us is not None:
            return machine_us() + self._local_us
        boot = _boot_us()
        # One read of `_line`, because another thread may replace it meanwhile.
        return boot + self._line.base_at(boot)

    def now_ms(self) -> int:
        """Corrected epoch milliseconds, UTC, rounded down."""
        # Called a dozen times in each step of an engine, so `now_us` is repeated here.
        if self._local_us is not None:
            return (machine_us() + self._local_us) // 1_000
        boot = _boot_us()
        return (boot + self._line.base_at(boot)) // 1_000

    def boot_us(self) -> int:
        """Microseconds since boot."""
        return _boot_us()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait on a held condition."""
        condition.wait(seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        time.sleep(seconds)

    def measure(self, reference: Reference) -> None:
        """Measure the error against the median of the nodes, if a minute has passed.

        With a local store: compare the machine's clock with time since boot; 0.4 us.

        Raises:
            StoreUnavailable, StoreTimeout: If no node tells its time.
        """
        if reference.is_local:
            self._compare()
            return
        with self._lock:
            last = self._measured_us
            if last is not None and _boot_us() - last < MEASURE_EVERY_US:
                return
            self._measured_us = _boot_us()
        bases = self._bases(reference)
        boot = _boot_us()
        wall_base = self._wall_us() - boot
        # Imported here, because it would take a third of the time of shardq's whole import.
        from statistics import median

        true_base = round(median(bases)) if bases else wall_base
        self._deviation_us = wall_base - true_base
        self._turn_to(true_base if self._corrected else wall_base, boot, first=last is None)

    def check(self, offset_ms: int) -> None:
        """Raise `ClockError` if the wall clock is wrong by over `offset_ms`; warn from half on."""
        error_ms = abs(self._deviation_us) // 1_000
        if error_ms > offset_ms:
            raise ClockError(
                f"this machine's clock is {self._deviation_us / 1e6:+.1f}s from the store's, more "
                f"than the queue's offset of {offset_ms / 1e3:.0f}s; set the clock and "
                f"start again."
            )
        if error_ms * 2 > offset_ms:
            log.warning(
                "this machine's clock is %+.1fs from the store's; beyond %.0fs shardq stops",
                self._deviation_us / 1e6,
                offset_ms / 1e3,
            )

    def _compare(self) -> None:
        """Notice if the machine's clock was set since the last comparison."""
        base = machine_us() - _boot_us()
        if self._local_us is not None and abs(base - self._machine_base_us) <= SET_US:
            return
        # No lock is taken, because a signal's handler that puts would wait for it. If two threads
        # notice a step, both may record it, and callers react to it twice.
        before = _boot_us()
        base = machine_us() - before
        by_us = base - self._machine_base_us
        if self._local_us is None:
            self._machine_base_us, self._deviation_us = base, self._shift_us
            self._local_us = 0 if self._corrected else self._shift_us
        elif _boot_us() - before <= _PROMPT_US and abs(by_us) > SET_US:
            # Else the process stood still between the readings, and the next call compares again.
            self._machine_base_us = base
            self._note(before, by_us)
            log.warning(
                "this machine's clock was set %s by %.1fs",
                "back" if by_us < 0 else "forward",
                abs(by_us) / 1e6,
            )

    def _note(self, at_us: int, by_us: int) -> None:
        self.steps = (*self.steps, (at_us, by_us))[-_STEPS_MAX:]

    def _wall_us(self) -> int:
        return machine_us() + self._shift_us

    def _turn_to(self, base_us: int, boot: int, *, first: bool) -> None:
        with self._lock:
            current = self._line.base_at(boot)
            error = base_us - current
            if first or abs(error) > _STEP_US:
                if not first:
                    log.warning("the clock was stepped by %+.3f s", error / 1e6)
                    self._note(boot, error)
                self._line = _Line(base_us)
            else:
                self._line = _Line(current, error, boot)

    def _bases(self, reference: Reference) -> list[int]:
        """The base by each node's time; nodes without an answer are left out, unless all are."""
        bases: list[int] = []
        failure: StoreError | None = None
        for node, ask_us in reference.clocks().items():
            try:
                bases.append(self._base_of(ask_us))
            except (StoreUnavailable, StoreTimeout) as error:
                log.info("node %s does not tell its time: %s", node, error)
                failure = error
        if failure is not None and not bases:
            raise failure
        return bases

    @staticmethod
    def _base_of(ask_us: Callable[[], int]) -> int:
        # A node's time is old when it arrives, so each answer less the time of its arrival is a
        # lower bound, and the largest is the best. Half a round trip more would be nearer on
        # average, but a clock ahead of the node's would deliver messages early.
        return max(ask_us() - _boot_us() for _ in range(_ROUND_TRIPS))


async def pause(seconds: float) -> None:
    """Let a coroutine sleep for `seconds`."""
    # Imported here, because its import takes longer than shardq's, and most programs need none.
    import asyncio

    await asyncio.sleep(seconds)


def _shift_from_environment() -> int:
    text = os.environ.get(OFFSET_VARIABLE, "0")
    try:
        return round(float(text) * 1e6)
    except (ValueError, OverflowError) as error:
        raise BadSetting(f"{OFFSET_VARIABLE} must be seconds such as -60, not {text!r}.") from error
