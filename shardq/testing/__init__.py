"""Testing what uses shardq without waiting: time moved by hand, and a store that fails on request.

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

Whole worlds of processes that crash, freeze and lose answers, from one seed, are
`shardq.testing.simulation`'s; that needs greenlet, which the extra `simulation` installs.
"""

from __future__ import annotations

from shardq.clock import Clock, Reference
from shardq.testing.clock import START_US, ManualClock
from shardq.testing.faults import Faults
from shardq.testing.stage import Recorder, Stage

__all__ = ["START_US", "Clock", "Faults", "ManualClock", "Recorder", "Reference", "Stage"]
