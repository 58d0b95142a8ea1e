"""Whole worlds of processes in one thread, each decided by a seed.

```
 simulation  the world            scheduler  who runs, and what time it is
 client      the store, as a process reaches it         calls    how its calls fare
 local       SQLite, as the processes of one machine share it
 network     slow, lossy, late    cells, marks  the tables
```
"""

from simulated.simulation import Simulation

__all__ = ["Simulation"]
