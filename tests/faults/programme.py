"""All plays of a run. Those that leave the nodes alone run side by side, the others in turn."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proofs.stage import Stage

from faults.play import Play
from faults.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from faults.faults import Fault
    from faults.nodes import Nodes
    from faults.size import Size
    from faults.table import Line
    from faults.turn import Patience

_PLAYS_MAX = 64
_log = logging.getLogger(__name__)


@dataclass
class Programme:
    """A context manager: plays faults, and at the end stops plays that still run.

    Args:
        nodes: The nodes of all plays.
        directory: Where the files of their processes go.
        size: The size of the plays.
        seed: The seed of random choices.
        clock: The clock on which all plays wait.

    Attributes:
        lines: The lines of plays that have begun, in order.
    """

    nodes: Nodes
    directory: Path
    size: Size
    seed: int
    clock: Patience
    lines: list[Line] = field(default_factory=list)
    _ends: dict[str, Future[None]] = field(default_factory=dict)
    _plays: dict[str, Play] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_PLAYS_MAX))

    def __enter__(self) -> Programme:
        return self

    def __exit__(self, *_: object) -> None:
        self.clock.abandon()
        self._pool.shutdown()

    def begin(self, faults: Sequence[Fault]) -> None:
        """Begin to play these faults, in an order that the programme chooses."""
        turns: list[Turn] = []
        aside = [one for one in faults if one.is_aside]
        for place, one in enumerate(aside):
            first = place - self.size.together
            turns.append(Turn(self.clock, turns[first : first + 1] if first >= 0 else ()))
            self._start(one, turns[-1])
        before = turns[-self.size.together :]
        for one in faults:
            if not one.is_aside:
                before = [Turn(self.clock, before)]
                self._start(one, before[0])

    def wait_for(self, fault: Fault) -> None:
        """Wait until a fault has been played; if it fails, log the ends of its consumers' logs.

        Raises:
            Exception: The error of the play.
        """
        end = self._ends[fault.name]
        if end.exception() is not None and fault.name in self._plays:
            # Logged apart from the error, which the long logs would hide.
            _log.error("%s", self._plays[fault.name].logged())
        end.result()

    def _start(self, fault: Fault, turn: Turn) -> None:
        self._ends[fault.name] = self._pool.submit(self._play, fault, turn)

    def _play(self, fault: Fault, turn: Turn) -> None:
        try:
            turn.wait_to_begin()
            begun_us = self.clock.boot_us()
            files = self.directory / fault.name
            with Stage(None, self.nodes.url, files, clock=self.clock) as stage:
                name = fault.name.replace("_", " ")
                play = Play(stage, self.nodes, name, self.size, turn, self.lines)
                self._plays[fault.name] = play
                try:
                    fault.act(play, self.nodes, self.seed)
                finally:
                    play.line.took_s = (self.clock.boot_us() - begun_us) / 1e6
        finally:
            turn.end()
