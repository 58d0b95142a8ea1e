"""Whole worlds of processes in one thread. A seed decides everything, so each run repeats.

```
 Simulation ── Scheduler (turns and time) ── Processes, each with its own clocks
     └─ Network (slow, lossy, late) ── Cells (the tables), or LocalTables (SQLite on one machine)
```

```python
with Simulation(seed=7) as world:
    one = world.process("one")
    world.spawn(one, lambda: shardq.Connection(world.store(one)).queue("mail").put("hello"))
    world.run(seconds=10)
```

shardq itself runs unchanged. While a simulation is entered, shardq's threads are fibers, and its
clock and random numbers are those of the simulation.
"""

from __future__ import annotations

import logging
import queue
import random
import secrets
import sys
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from shardq import clock, connection, locks
from shardq.engine.handing import call
from shardq.lifecycle import producer
from shardq.model.ids import row_ids
from shardq.records import keeper, membership
from shardq.testing.clock import START_US
from simulated.cells import Cells
from simulated.client import SimulatedStore
from simulated.local import LocalStore, LocalTables
from simulated.network import Network, Weather
from simulated.scheduler import (
    Killed,
    Process,
    Scheduler,
    SimpleQueue,
    Threading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from shardq.stores.store import Store
    from simulated.scheduler import Fiber

_OWN_THREADS = ("shardq.testing", "shardq.stores", "shardq.model.ids", "shardq.bench", "shardq.cli")


class Simulation:
    """A world: a context manager, of which one may be entered at a time.

    Args:
        seed: Decides everything that is not given.
        weather: The behaviour of the network.
        local: True if all processes run on one machine and share its clock and a SQLite database.

    Attributes:
        cells: The tables.
        chance: The world's random numbers.
        processes: Name -> process, ended ones too.
    """

    def __init__(self, seed: int, weather: Weather | None = None, *, local: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.scheduler = Scheduler(START_US)
        self.threading = Threading(self.scheduler)
        cells = Cells(lambda: self.scheduler.now_us)
        self._local = LocalTables(self.scheduler) if local else None
        self.cells: Cells | LocalTables = self._local or cells
        self.network = Network(self.scheduler, cells, weather or Weather())
        if local:
            self.scheduler.machine_born_us = self.scheduler.now_us
        self.processes: dict[str, Process] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Simulation:
        self._stack.enter_context(self._in_place())
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            self.scheduler.kill(process)
        self._stack.close()
        if self._local is not None:
            self._local.close()

    @property
    def now_us(self) -> int:
        """True time, epoch microseconds."""
        return self.scheduler.now_us

    def process(self, name: str, *, rate: float = 1.0, shift_us: int = 0) -> Process:
        """A new process.

        Args:
            name: Its unique name; its random numbers follow from the name and the seed.
            rate: Seconds by its clock in a true second.
            shift_us: How far its wall clock is ahead.
        """
        chance = random.Random(f"{self.seed}/{name}")
        process = Process(self.scheduler, name, chance, rate=rate, shift_us=shift_us)
        self.processes[name] = process
        return process

    def store(self, process: Process | None) -> Store:
        """The store by which a process reaches the tables."""
        if self._local is not None:
            return cast("Store", LocalStore(self.network, self._local, process))
        return cast("Store", SimulatedStore(self.network, process))

    def spawn(self, process: Process, work: Callable[[], object], name: str = "main") -> Fiber:
        """Start a fiber of a process, which does some work."""
        return self.scheduler.spawn(process, work, name)

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass; returns True if `until` held before its end."""
        return self.scheduler.run(self.now_us + round(seconds * 1e6), until)

    def sleep(self, seconds: float) -> None:
        """Let the calling process wait, in true time."""
        self.scheduler.park(round(seconds * 1e6))

    def crash(self, process: Process) -> None:
        """End a process as `kill -9` does."""
        self.scheduler.kill(process)

    def step(self, seconds: float) -> None:
        """Set the one machine's clock, forward or back."""
        self.scheduler.stepped_us += round(seconds * 1e3) * 1_000

    def freeze(self, process: Process, seconds: float) -> None:
        """Stop a process for a while as `kill -STOP` does."""
        until_us = self.now_us + round(seconds * 1e6)
        process.frozen_until_us = max(process.frozen_until_us, until_us)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Replace the threads, clocks and random numbers of shardq by simulated ones."""
        scheduler = self.scheduler
        before: list[tuple[Any, str, Any]] = []

        def put(owner: Any, name: str, value: Any) -> None:
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)

        for name, module in sorted(sys.modules.items()):
            is_ours = name.startswith("shardq.") and not name.startswith(_OWN_THREADS)
            if is_ours and getattr(module, "threading", None) is threading:
                put(module, "threading", self.threading)
            if is_ours and getattr(module, "SimpleQueue", None) is queue.SimpleQueue:
                put(module, "SimpleQueue", lambda: SimpleQueue(scheduler))
        put(call, "ENDS_PROCESS", (Killed,))
        put(locks, "new", self.threading.Lock)
        put(locks, "condition", self.threading.Condition)
        put(locks, "refuse_within", _ignore)
        put(locks, "refuse_to_wait", _ignore)
        put(keeper, "_thread", SimpleNamespace(start_new_thread=self._start_thread))
        put(clock, "_boot_us", lambda: scheduler.boot_us)
        put(clock, "machine_us", lambda: scheduler.here().wall_us())
        put(clock, "time", SimpleNamespace(sleep=self.sleep))
        put(secrets, "token_hex", lambda size: self._randbytes(size).hex())
        put(secrets, "token_bytes", self._randbytes)
        put(secrets, "randbits", self._randbits)
        put(producer, "random", SimpleNamespace(randrange=self._randrange))
        put(membership, "socket", SimpleNamespace(gethostname=lambda: "simulated"))
        put(membership, "os", SimpleNamespace(getpid=lambda: 1))
        put(connection, "atexit", SimpleNamespace(register=_ignore, unregister=_ignore))
        put(connection.Connection, "_close_with_child", _ignore)
        put(row_ids, "_last_us", 0)
        put(row_ids, "_tail", row_ids._tail)
        log = logging.getLogger("shardq")
        level = log.level
        log.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            log.setLevel(level)
            for owner, name, value in reversed(before):
                setattr(owner, name, value)

    def _start_thread(self, work: Callable[[], object], _args: tuple[()]) -> None:
        self.threading.Thread(work, name="keeper").start()

    def _randbytes(self, size: int) -> bytes:
        return self.scheduler.here().chance.randbytes(size)

    def _randbits(self, bits: int) -> int:
        return self.scheduler.here().chance.getrandbits(bits)

    def _randrange(self, *bounds: int) -> int:
        return self.scheduler.here().chance.randrange(*bounds)


def _ignore(*_given: object) -> None:
    pass
