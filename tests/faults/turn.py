"""Whose turn it is: a play may begin while one before it ends, but their troubles never meet.

```
 one  ── load ── trouble ──┬─ drain ── audit ──┐
                        healed               over
 next                      └─ processes, load ─┴─ trouble ──┬─ drain ..
```
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence


class Abandoned(Exception):
    """The plays are over before their end."""


class Patience(SystemClock):
    """A clock on which nobody waits any longer once the plays are abandoned."""

    def __init__(self) -> None:
        super().__init__()
        self._abandoned = threading.Event()

    def abandon(self) -> None:
        """End all waiting."""
        self._abandoned.set()

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self._abandoned.is_set():
            raise Abandoned


@dataclass
class Turn:
    """One play's.

    Args:
        clock: Waits.
        before: The turns that come before it.

    Attributes:
        healed: Its trouble is behind it.
        over: It has ended.
    """

    clock: Patience
    before: Sequence[Turn] = ()
    healed: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def wait_to_begin(self) -> None:
        """Until those before have their troubles behind them."""
        self._wait_for([one.healed for one in self.before])

    def wait_for_trouble(self) -> None:
        """Until those before have ended: what is done to the nodes is then done to this one."""
        self._wait_for([one.over for one in self.before])

    def end(self) -> None:
        """It is over, however it went."""
        self.healed.set()
        self.over.set()

    def _wait_for(self, events: Sequence[threading.Event]) -> None:
        while not all(event.is_set() for event in events):
            self.clock.sleep(0.05)
