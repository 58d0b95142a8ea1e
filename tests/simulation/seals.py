"""Rows that arrive behind a seal, and when readers of the lane must look there again.

```
 minute   its end + offset        + 4             + 32                        + 256 minutes
 ───────┬─────── sealed ───────── looked at ───── looked at ───────────────── looked at
        └ a row that arrives ──► is found here at the latest, by a reader then, or the next one
```
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from shardq.engine.reading.lane import SEALED_RUNGS
from shardq.model.ids import birth_us, row_ids
from shardq.model.message import Row
from simulation.case import QUEUE, STEWARD
from simulation.history import Put
from simulation.parts import Letter
from simulation.roles import body_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulated import Simulation

    from shardq.model.shard import Layout, Shard
    from shardq.records.register import Register
    from simulation.history import History
    from simulation.plan import Plan

SHORT_MS_MAX = 2_000
"""The longest minute of which the looks at a sealed shard are within a run, milliseconds."""
_SHORTEST_MS = 500
_FIRST_TOKEN = 1_000_007
_TOKENS = 7
"""The step between two tokens. Messages with a number that it divides have headers."""
_SOON = 2
"""How many minutes before its look a row is written."""
_UNSWEPT_US = 60_000_000
_MARGIN_US = 1_000_000
"""How long before a look a row must be stored for the look to find it: clocks differ."""
_LEARNT_US = 12_000_000
_HOPED_US = 20_000_000
"""How long a run waits for a look to be made, and then for the rows that it finds."""
_AT_ONCE = 4
"""The minutes of which a reader makes up for late looks in a second."""


class Seals:
    """Writes rows behind the seals of one world, and judges which were overlooked.

    Attributes:
        absence: True if at the end all readers leave, and others start some minutes later.
        lasts: True if the world goes on for 256 minutes.
        stays: True if a reader runs all that time.
        patience_us: How late a look may be made.
    """

    def __init__(self, plan: Plan, simulation: Simulation, history: History) -> None:
        self._simulation = simulation
        self._history = history
        self._settings = plan.settings
        self._start_us = simulation.now_us
        self._token = _FIRST_TOKEN + 1
        # From a random source of their own: no other part of any run depends on them.
        self._chance = chance = random.Random(f"seals/{plan.seed}")
        minute_ms = int(plan.settings["minute"][:-2])
        # On one machine a row behind a seal is found at once.
        self.is_short = minute_ms <= SHORT_MS_MAX and not plan.is_local
        self.lasts = chance.random() < 0.3 and minute_ms == _SHORTEST_MS and self.is_short
        self.stays = chance.random() < 0.4 and self.lasts
        self.absence = chance.random() < 0.3 and self.is_short and not self.stays
        self._back_us = 0
        self.patience_us = _HOPED_US
        self.absent_minutes = chance.randint(5, 40)

    def write(self, register: Register, rungs: Sequence[int], ahead: int = _SOON) -> None:
        """Write a row behind the seal for each of these looks, which are `ahead` minutes away."""
        now_us, layout = self._simulation.now_us, register.layout
        newest = layout.newest_sealable(now_us // 1_000)
        for rung in rungs:
            minute = newest - rung + ahead
            lane = self._chance.choice(layout.lanes())
            is_sealed = (lane, minute) in self._history.sealed_us
            made_ms = register.settings.lane_made_ms(layout.index_of(lane))
            # No row can be late for a minute before the lane was made.
            if is_sealed and layout.start_ms(minute) >= made_ms:
                due_ms = layout.start_ms(minute) + self._chance.randrange(layout.minute_ms)
                if self._is_put_to(layout.band_of(lane)):
                    self._write(Row(layout.shard(due_ms, lane), due_ms, row_ids.next(now_us), b""))

    def _is_put_to(self, band: int) -> bool:
        """True if a priority is read. Without the setting `bands` it is read from its first put on.

        A producer stores the use of a priority before it puts, so no row of an unread one is late.
        """
        return "bands" in self._settings or any(
            put.letter.priority >= band and put.outcome == "acked"
            for put in self._history.puts.values()
        )

    def _write(self, row: Row) -> None:
        self._token += _TOKENS
        letter = Letter(self._token, STEWARD, 0.0)
        put = Put(
            letter, STEWARD, self._simulation.now_us, row.due_ms * 1_000, body=body_of(letter)
        )
        self._history.puts[letter.number] = put
        self._simulation.cells.write(row._replace(body=put.body), birth_us(row.id))

    def lasting_s(self, layout: Layout) -> float:
        """The seconds until the last look at the first minutes is near."""
        minutes = SEALED_RUNGS[-1] + 2
        end_us = self._start_us + (minutes * layout.minute_ms + layout.offset_ms) * 1_000
        return max(end_us - self._simulation.now_us, 0) / 1e6

    def overlooked(self, layout: Layout) -> Iterator[str]:
        """The rows that still exist though a look since their arrival should have found them."""
        now_us = self._simulation.now_us
        for row in self._simulation.cells.rows(QUEUE):
            written_us = self._history.written[row.id].at_us
            sealed_us = self._history.sealed_us.get((row.shard.lane, row.shard.minute))
            is_old = row.due_ms * 1_000 < now_us - _UNSWEPT_US
            if is_old and (sealed_us is None or written_us < sealed_us):
                yield f"{row.shard} {row.body[:4]!r}"
                continue
            # While members learn who reads a lane, a reader may not know the looks before.
            after_us = max(written_us + _MARGIN_US, self._history.healed_us + _LEARNT_US)
            until_us = now_us - self.patience_us
            looks_us = self._looks_us(layout, row.shard, after_us)
            if any(us <= until_us for us in looks_us):
                yield f"{row.shard} {row.body[:8]!r}, behind its seal"

    def is_hopeless(self, layout: Layout) -> bool:
        """True if all rows left are behind seals, and no look at them is near."""
        return all(
            self._is_behind(row) and not self._is_looked_for(row, layout)
            for row in self._simulation.cells.rows(QUEUE)
        )

    def _is_behind(self, row: Row) -> bool:
        """True if a row arrived after its shard was sealed."""
        sealed_us = self._history.sealed_us.get((row.shard.lane, row.shard.minute))
        return sealed_us is not None and self._history.written[row.id].at_us > sealed_us

    def _is_looked_for(self, row: Row, layout: Layout) -> bool:
        """True if a look at the row's minute is near, or a late one may still be made."""
        now_us = self._simulation.now_us
        looks_us = self._looks_us(layout, row.shard, self._history.written[row.id].at_us)
        return any(now_us - self.patience_us < us < now_us + _HOPED_US for us in looks_us)

    def be_absent(self, seconds: float, layout: Layout) -> None:
        """Let time pass without readers. The next one makes up for it minute by minute."""
        self._simulation.run(seconds)
        self._back_us = self._simulation.now_us
        # The absence began when the readers began to leave.
        absent_us = self._back_us - self._history.left_us
        self.patience_us = _HOPED_US + absent_us * 1_000 // layout.minute_ms // _AT_ONCE

    def _looks_us(self, layout: Layout, shard: Shard, after_us: int) -> Iterator[int]:
        """When readers look at a sealed shard again after a time, at the latest.

        A new reader starts from its lane's seal. The seal stays back while a message kills each of
        its consumers, so the reader has to make up for the minutes since, one by one.
        """
        for rung in SEALED_RUNGS:
            us = (layout.end_ms(shard.minute + rung) + layout.offset_ms) * 1_000
            if us > after_us:
                late = self._unsealed(shard.lane, shard.minute + rung, us)
                yield max(us, self._back_us) + late * 1_000_000 // _AT_ONCE

    def _unsealed(self, lane: int, minute: int, us: int) -> int:
        """How many minutes up to this one were unsealed at a time, 256 at most."""
        sealed_us = self._history.sealed_us
        return next(
            (n for n in range(SEALED_RUNGS[-1]) if sealed_us.get((lane, minute - n), us) < us),
            SEALED_RUNGS[-1],
        )
