"""An event loop whose time is a clock's, for coroutines that run in the thread of a caller.

```
 nothing ready ── a timer, and nothing real awaited ──► the clock sleeps until then
              └── a file or a thread awaited ─────────► it waits for that, for as long at most
```

A coroutine that sleeps for an hour returns at once on a clock that is moved by hand.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from shardq.clock import Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_OWN_FILES = 1
"""The number of files that the loop itself watches: one, by which other threads wake the loop."""


class _Selector(selectors.DefaultSelector):
    """Waits for files, or moves the clock if there are none.

    Attributes:
        busy_threads: How many calls run in threads of the loop. The clock is not moved while any
            does.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.busy_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The files that are ready."""
        if timeout is None or timeout <= 0:
            return self._ready(timeout)
        until_us = self._clock.boot_us() + round(timeout * 1e6)
        is_real = self.busy_threads > 0 or len(self.get_map()) > _OWN_FILES
        ready = self._ready(timeout if is_real else 0)
        left_us = until_us - self._clock.boot_us()
        if not ready and left_us > 0:
            self._clock.sleep(left_us / 1e6)
        return ready

    def _ready(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return found


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock.

    Args:
        clock: Gives the loop its time, and waits for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits = _Selector(clock)
        super().__init__(self._waits)

    def time(self) -> float:
        """Seconds since boot."""
        return self._clock.boot_us() / 1e6

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a call as any loop does; the clock is not moved until the call has ended."""
        future = super().run_in_executor(executor, func, *args)
        self._waits.busy_threads += 1
        future.add_done_callback(self._forget)
        return future

    def _forget(self, _future: asyncio.Future[Any]) -> None:
        self._waits.busy_threads -= 1
