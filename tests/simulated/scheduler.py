"""Many processes in one thread: greenlets, one of which runs while simulated time stands still.

```
 heap of (time, fiber) ──► the next one runs until it waits: for a store's answer, a lock, a clock
        ▲                                   │
        └───────────── park ◄───────────────┘
```

Only `park` lets time pass or another fiber run, so a seed decides every interleaving.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING, Any

from greenlet import greenlet

from shardq.clock import BootTime
from shardq.model.ids import row_ids

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable

BOOT_US = 1_000_000_000
"""The time since boot that a process's clock shows when it starts."""

_LEAST_US = 1
_ASK_EVERY_US = 250_000
_NEVER_US = 1 << 62
_THAW_US = 3_000
_SECOND_US = 1_000_000
_TURNS_MAX = 200_000
"""The most turns of fibers in one simulated second; a busy world has a few thousand."""


class Stuck(Exception):
    """Fibers take turn after turn while time hardly passes: one of them spins."""


class Killed(BaseException):
    """Raised in the fibers of a crashed process, to unwind them without further effect."""


class Process:
    """One simulated operating system process, with clocks of its own.

    Args:
        chance: Its random numbers.
        rate: Seconds by its clock in a true second.
        shift_us: How far its wall clock is ahead; may be changed at any moment.

    Attributes:
        dead: True if it has crashed or ended.
        frozen_until_us: Until when none of its fibers runs.
        fibers: Its fibers, ended ones left out.
        trouble_until_us: Until when the store refuses its calls.
        strikes: Verb -> called at the next call of the verb; returns the call's fate, or None.
    """

    def __init__(
        self, scheduler: Scheduler, name: str, chance: random.Random, *, rate: float, shift_us: int
    ) -> None:
        self.scheduler = scheduler
        self.name = name
        self.chance = chance
        self.rate = rate
        self.shift_us = shift_us
        self.born_us = scheduler.machine_born_us or scheduler.now_us
        self.dead = False
        self.frozen_until_us = 0
        self.trouble_until_us = 0
        self.strikes: dict[str, Callable[[], int | None]] = {}
        self.fibers: dict[int, Fiber] = {}
        tail = (chance.getrandbits(14) | 0x8000).to_bytes(2, "big")
        self.ids: tuple[int, bytes] = (0, tail + chance.randbytes(6))

    def boot_us(self) -> int:
        """The time since boot by its clock, microseconds."""
        return BOOT_US + int((self.scheduler.now_us - self.born_us) * self.rate)

    def wall_us(self) -> int:
        """The time by its operating system's clock, epoch microseconds."""
        return self.scheduler.wall_us() + self.shift_us


class Fiber:
    """One simulated thread.

    Attributes:
        number: The number that `get_ident` returns in it.
    """

    __slots__ = ("generation", "greenlet", "name", "number", "process", "timed_out", "waiters")

    def __init__(self, process: Process, name: str, number: int) -> None:
        self.process = process
        self.name = name
        self.number = number
        self.generation = 0
        self.timed_out = False
        self.waiters: list[Fiber] = []
        self.greenlet: Any = None


class Scheduler:
    """Decides which fiber runs next, and what time it is.

    Args:
        start_us: Epoch microseconds, true time.

    Attributes:
        now_us: True time.
        stepped_us: How far the clock of the one machine is ahead of true time now.
        machine_born_us: When the one machine booted on which all processes run; 0: each process
            has its own machine.
        boot_us: Time since boot of the process that runs or ran last; does not pass while it runs.
        current: The fiber that runs; None between two turns.
    """

    def __init__(self, start_us: int) -> None:
        self.now_us = start_us
        self.boot_us = BOOT_US
        self.stepped_us = 0
        self.machine_born_us = 0
        self.current: Fiber | None = None
        self._heap: list[tuple[int, int, Any, int]] = []
        self._sequence = 0
        self._fibers = 0
        self._hub: Any = greenlet.getcurrent()
        self._last: Process | None = None
        self._until_us = start_us
        self._ask_us = _NEVER_US
        self._turns = 0

    # From outside ---------------------------------------------------------------------------------

    def spawn(self, process: Process, work: Callable[[], object], name: str) -> Fiber:
        """Start a fiber of a process, which does some work."""
        self._fibers += 1
        fiber = Fiber(process, name, self._fibers)
        fiber.greenlet = greenlet(lambda: self._run(fiber, work), self._hub)
        process.fibers[fiber.number] = fiber
        self._push(self.now_us, fiber, 0)
        return fiber

    def at(self, us: int, act: Callable[[], object]) -> None:
        """Call a function at a time, between two turns of fibers."""
        self._push(us, act, 0)

    def run(self, until_us: int, until: Callable[[], bool] | None = None) -> bool:
        """Run until a time, or until a condition holds, checked every quarter of a second.

        Returns:
            True if the condition held.

        Raises:
            Stuck: If fibers take turns while no time passes.
        """
        heap = self._heap
        counted_us = self.now_us
        self._until_us = until_us
        self._ask_us = _NEVER_US if until is None else self.now_us + _ASK_EVERY_US
        self._turns = 0
        while heap and heap[0][0] <= until_us:
            us, _, target, generation = heapq.heappop(heap)
            self.now_us = max(self.now_us, us)
            self._turns += 1
            if self._turns >= _TURNS_MAX:
                if self.now_us - counted_us < _SECOND_US:
                    name = target.name if type(target) is Fiber else "nobody"
                    raise Stuck(f"{self._turns:,} turns within a second, the last one of {name}")
                self._turns, counted_us = 0, self.now_us
            if type(target) is Fiber:
                self._resume(target, generation)
            else:
                target()
            if until is not None and self.now_us >= self._ask_us:
                self._ask_us = self.now_us + _ASK_EVERY_US
                if until():
                    return True
        self.now_us = max(self.now_us, until_us)
        return until is not None and until()

    def kill(self, process: Process) -> None:
        """Crash a process: none of its fibers does anything any more."""
        process.dead = True
        for fiber in list(process.fibers.values()):
            if fiber is not self.current:
                self._end(fiber)

    def end(self) -> None:
        """Unwind all remaining fibers."""
        for _, _, target, _ in list(self._heap):
            if type(target) is Fiber:
                self.kill(target.process)
        self._heap.clear()

    # From a fiber ---------------------------------------------------------------------------------

    def park(self, us: int | None) -> bool:
        """Let other fibers run until `wake` is called for this one, or for `us` microseconds.

        Returns:
            True if it was woken.
        """
        fiber = self.current
        if fiber is None:
            raise RuntimeError("only a simulated process can wait")
        process = fiber.process
        if process.dead:
            raise Killed
        fiber.generation += 1
        fiber.timed_out = True
        if us is not None:
            at_us = self.now_us + (max(_LEAST_US, us))
            heap = self._heap
            # Most often the next turn is its own: then it goes on without a switch, which is slow.
            # These are all conditions that `run` checks between two turns.
            if (
                (not heap or at_us < heap[0][0])
                and at_us <= self._until_us
                and self.now_us < self._ask_us
                and self._turns < _TURNS_MAX - 1
                and at_us >= process.frozen_until_us
            ):
                self._turns += 1
                self.now_us = at_us
                self.boot_us = process.boot_us()
                return False
            self._push(at_us, fiber, fiber.generation)
        self._hub.switch()
        if process.dead:
            raise Killed
        return not fiber.timed_out

    def wake(self, fiber: Fiber) -> None:
        """Let a parked fiber run next, at the present time."""
        fiber.generation += 1
        fiber.timed_out = False
        self._push(self.now_us, fiber, fiber.generation)

    def wall_us(self) -> int:
        """The time by the one machine's clock, epoch microseconds."""
        return self.now_us + self.stepped_us

    def boot_time(self) -> BootTime:
        """The one machine's time since boot."""
        return BootTime(BOOT_US + self.now_us - self.machine_born_us, "simulated")

    def here(self) -> Process:
        """The process that runs."""
        if self.current is None:
            raise RuntimeError("no simulated process runs")
        return self.current.process

    # Details --------------------------------------------------------------------------------------

    def _push(self, us: int, target: object, generation: int) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (us, self._sequence, target, generation))

    def _resume(self, fiber: Fiber, generation: int) -> None:
        process = fiber.process
        if generation != fiber.generation or process.dead or fiber.number not in process.fibers:
            return
        if process.frozen_until_us > self.now_us:
            late_us = process.chance.randrange(_THAW_US)
            self._push(process.frozen_until_us + late_us, fiber, generation)
            return
        if process is not self._last:
            # Row ids of one process never go backwards, so each process has its own last id.
            if self._last is not None:
                self._last.ids = (row_ids._last_us, row_ids._tail)
            row_ids._last_us, row_ids._tail = process.ids
            self._last = process
        self.current = fiber
        self.boot_us = process.boot_us()
        fiber.greenlet.switch()
        self.current = None

    def _end(self, fiber: Fiber) -> None:
        fiber.process.fibers.pop(fiber.number, None)
        if fiber.greenlet.dead or not fiber.greenlet:
            return
        fiber.greenlet.parent = greenlet.getcurrent()
        before, self.current = self.current, fiber
        boot_us, self.boot_us = self.boot_us, fiber.process.boot_us()
        fiber.greenlet.throw(Killed)
        self.current, self.boot_us = before, boot_us

    def _run(self, fiber: Fiber, work: Callable[[], object]) -> None:
        try:
            work()
        except Killed:
            pass
        finally:
            # Any other exception of the fiber is raised by `run`.
            fiber.process.fibers.pop(fiber.number, None)
            for waiter in fiber.waiters:
                self.wake(waiter)


class Threading:
    """The part of the module `threading` that shardq uses, for simulated threads."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._outside = object()

    def Lock(self) -> Lock:  # noqa: N802 - threading's name
        """A lock."""
        return Lock(self._scheduler)

    def Condition(self, lock: Any = None) -> Condition:  # noqa: N802
        """A condition."""
        return Condition(self._scheduler, lock or Lock(self._scheduler))

    def Event(self) -> Event:  # noqa: N802
        """An event."""
        return Event(self._scheduler)

    def Thread(  # noqa: N802
        self,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = False,
    ) -> Thread:
        """A thread of the process that runs."""
        return Thread(self._scheduler, lambda: target(*args), name)

    def get_ident(self) -> int:
        """The number of the fiber that runs."""
        return self._scheduler.current.number if self._scheduler.current else 0

    def enumerate(self) -> list[threading.Thread]:
        """Nothing: fibers are no threads, so there are no stacks to show."""
        return []

    def current_thread(self) -> object:
        """The fiber that runs."""
        return self._scheduler.current or self._outside

    def main_thread(self) -> object:
        """No thread, so that shardq installs no signal handler."""
        return self._outside


class Lock:
    """A lock among the fibers of a process; the fiber that holds it may take it again."""

    __slots__ = ("_again", "_held", "_holder", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._holder: Fiber | None = None
        self._again = 0
        self._waiting: deque[Fiber] = deque()

    def acquire(self) -> bool:
        """Wait until it is free."""
        current = self._scheduler.current
        if self._held and current is not None and self._holder is current:
            self._again += 1
            return True
        while self._held:
            if self._scheduler.current is not None:
                self._waiting.append(self._scheduler.current)
            self._scheduler.park(None)
        self._held, self._holder = True, self._scheduler.current
        return True

    def release(self) -> None:
        """Let the next one have it."""
        if self._again:
            self._again -= 1
            return
        self._held = False
        if self._waiting:
            self._scheduler.wake(self._waiting.popleft())

    def __enter__(self) -> bool:
        if self._held:
            return self.acquire()
        self._held, self._holder = True, self._scheduler.current
        return True

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        self.release()


class Condition:
    """A condition among the fibers of a process."""

    __slots__ = ("_lock", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler, lock: Lock) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self._waiting: list[Fiber] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified."""
        fiber = self._scheduler.current
        if fiber is None:
            raise RuntimeError("only a simulated process can wait")
        self._waiting.append(fiber)
        self._lock.release()
        try:
            return self._scheduler.park(None if timeout is None else round(timeout * 1e6))
        finally:
            if fiber in self._waiting:
                self._waiting.remove(fiber)
            if not fiber.process.dead:
                self._lock.acquire()

    def notify(self, n: int = 1) -> None:
        """Wake `n` fibers that wait."""
        for fiber in self._waiting[:n]:
            self._scheduler.wake(fiber)
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Wake all fibers that wait."""
        self.notify(len(self._waiting))


class Event:
    """An event among the fibers of a process."""

    __slots__ = ("_is_set", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiting: list[Fiber] = []

    def is_set(self) -> bool:
        """True if the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event, and wake all fibers that wait."""
        self._is_set = True
        for fiber in self._waiting:
            self._scheduler.wake(fiber)
        self._waiting.clear()

    def clear(self) -> None:
        """Unset the event."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set."""
        fiber = self._scheduler.current
        if not self._is_set and fiber is not None:
            self._waiting.append(fiber)
            try:
                self._scheduler.park(None if timeout is None else round(timeout * 1e6))
            finally:
                if fiber in self._waiting:
                    self._waiting.remove(fiber)
        return self._is_set


class SimpleQueue:
    """A `queue.SimpleQueue` among the fibers of a process."""

    __slots__ = ("_items", "_scheduler", "_waiting")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._waiting: deque[Fiber] = deque()

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)
        if self._waiting:
            self._scheduler.wake(self._waiting.popleft())

    def get(self) -> Any:
        """Wait for the next item."""
        while not self._items:
            if self._scheduler.current is not None:
                self._waiting.append(self._scheduler.current)
            self._scheduler.park(None)
        return self._items.popleft()

    def empty(self) -> bool:
        """True if the queue has no item."""
        return not self._items


class Thread:
    """A fiber, as `threading` shows it."""

    def __init__(self, scheduler: Scheduler, work: Callable[[], object], name: str) -> None:
        self._scheduler = scheduler
        self._work = work
        self.name = name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        """Start the fiber."""
        self._fiber = self._scheduler.spawn(self._scheduler.here(), self._work, self.name)

    @property
    def ident(self) -> int | None:
        """The number of its fiber; None before its start."""
        return None if self._fiber is None else self._fiber.number

    def is_alive(self) -> bool:
        """True if the fiber was started and has not ended."""
        fiber = self._fiber
        return fiber is not None and fiber.number in fiber.process.fibers

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the fiber."""
        if self.is_alive() and self._fiber is not None and self._scheduler.current is not None:
            self._fiber.waiters.append(self._scheduler.current)
            self._scheduler.park(None if timeout is None else round(timeout * 1e6))
