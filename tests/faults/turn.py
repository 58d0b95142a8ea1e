"""Turns of plays: a play may begin while the one before ends, but their troubles never meet.

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
    """Raised in a play that is abandoned before its end."""


class Patience(SystemClock):
    """A clock whose waits end at once when the plays are abandoned."""

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
    """The turn of one play.

    Args:
        clock: The clock that waits.
        before: The turns before this one.

    Attributes:
        healed: Set once the play's trouble has ended.
        over: Set once the play has ended.
    """

    clock: Patience
    before: Sequence[Turn] = ()
    healed: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def wait_to_begin(self) -> None:
        """Wait until the troubles of the plays before have ended."""
        self._wait_for([one.healed for one in self.before])

    def wait_for_trouble(self) -> None:
        """Wait until the plays before have ended, so that the trouble hits this one alone."""
        self._wait_for([one.over for one in self.before])

    def end(self) -> None:
        """End the turn, however the play went."""
        self.healed.set()
        self.over.set()

    def _wait_for(self, events: Sequence[threading.Event]) -> None:
        while not all(event.is_set() for event in events):
            self.clock.sleep(0.05)
