"""Tests of programs that use shardq, without waits: time travel, and a store that fails on request.

```python
with Sandbox(app) as sandbox:
    remind.put("ada")
    sandbox.travel("30 days")
```

For the effects of processes on each other, a crash say, there is a stage:

```
 Stage ── one ManualClock, one SQLite store in memory, its Faults
   ├─ connect()  a process of its own, with a right or a wrong clock
   └─ drive()    steps consumers in turn while the clock jumps from one's next step to another's
```

```python
with Stage() as stage:
    queue = stage.connect().queue("mail")
    queue.put(b"hello", delay="1h")
    stage.drain(queue, Consumer(queue, print), within="2h")
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "START_US",
    "Clock",
    "Faults",
    "ManualClock",
    "Put",
    "Ran",
    "Recorder",
    "Reference",
    "Sandbox",
    "SandboxClock",
    "Stage",
]

if TYPE_CHECKING:
    from shardq.clock import Clock, Reference
    from shardq.testing.clock import START_US, ManualClock, SandboxClock
    from shardq.testing.faults import Faults
    from shardq.testing.jobs import Put, Ran
    from shardq.testing.sandbox import Sandbox
    from shardq.testing.stage import Recorder, Stage
else:
    # Imported on first use, as in `shardq` itself: the pytest plugin is in here too.
    _ROOMS = {
        "shardq.clock": ("Clock", "Reference"),
        "shardq.testing.clock": ("START_US", "ManualClock", "SandboxClock"),
        "shardq.testing.faults": ("Faults",),
        "shardq.testing.jobs": ("Put", "Ran"),
        "shardq.testing.sandbox": ("Sandbox",),
        "shardq.testing.stage": ("Recorder", "Stage"),
    }
    _ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

    def __getattr__(name: str) -> object:
        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(room), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
