"""The tools by which tests freeze or move the time of `datetime.now()`: freezegun and time-machine.

Neither is imported here: a test that uses one has imported it.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from shardq.clock import machine_us

if TYPE_CHECKING:
    from types import ModuleType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Tool(Protocol):
    """A tool that controls the time of this process."""

    def now_us(self) -> int:
        """The tool's time, epoch microseconds."""

    def move(self, by_us: int) -> None:
        """Move the tool's time forward by some microseconds."""


def active() -> Tool | None:
    """The tool that controls this process's time now; None if there is none."""
    # Imports nothing, because each look at a sandbox's clock calls this.
    modules = sys.modules
    if (found := modules.get("freezegun.api")) is not None and found.freeze_factories:
        return _Freezegun(found)
    if (found := modules.get("time_machine")) is not None and found.traveller_stack:
        return _TimeMachine(found)
    return None


class _Freezegun:
    """freezegun (1.5): the innermost `freeze_time`."""

    def __init__(self, module: ModuleType) -> None:
        self._factory: Any = module.freeze_factories[-1]
        self._is_ticking = isinstance(self._factory, module.TickingDateTimeFactory)

    def now_us(self) -> int:
        # A call would move the time of a factory with `auto_tick_seconds`.
        told = self._factory() if self._is_ticking else self._factory.time_to_freeze
        return int((told.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND)

    def move(self, by_us: int) -> None:
        self._factory.tick(timedelta(microseconds=by_us))


class _TimeMachine:
    """time-machine (3): the innermost `travel`."""

    def __init__(self, module: ModuleType) -> None:
        self._traveller: Any = module.traveller_stack[-1]

    def now_us(self) -> int:
        return machine_us()

    def move(self, by_us: int) -> None:
        # Unlike `move_to`, it leaves the local time zone alone.
        self._traveller.shift(timedelta(microseconds=by_us))
