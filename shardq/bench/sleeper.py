"""A process that only sleeps, and reports how late it woke: the machine's own lateness.

Without this process, lateness of a busy machine would look like the queue's fault.
"""

from __future__ import annotations

import json
import sys
import threading
from array import array

from shardq.clock import SystemClock

_NAP_S = 0.02


def main() -> None:
    """Sleep in short naps until stdin ends, then print each nap's overshoot in microseconds."""
    clock = SystemClock()
    late_us = array("q")
    over = threading.Event()

    def nap() -> None:
        while not (late_us and over.is_set()):
            due_us = clock.boot_us() + round(_NAP_S * 1e6)
            clock.sleep(_NAP_S)
            late_us.append(clock.boot_us() - due_us)

    napper = threading.Thread(target=nap)
    napper.start()
    sys.stdin.read()
    over.set()
    napper.join()
    sys.stdout.write(json.dumps(list(late_us)))


if __name__ == "__main__":
    main()
