"""Whole worlds of processes in one thread, each decided by a seed.

```
 simulation  the world            scheduler  which fiber runs, and what time it is
 client      the store, as a process reaches it         calls    fates of calls
 local       SQLite, as the processes of one machine share it
 network     slow, lossy, late    cells, marks  the tables
```
"""

from simulated.simulation import Simulation

__all__ = ["Simulation"]
