"""Several processes of one store, of which one takes a step at a time: a seed says which.

Between two calls of the store a process may crash, or stand still for longer than a write takes.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

from shardq.stores.tables import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Store
    from shardq.stores.tables import Change
    from shardq.testing.clock import ManualClock

STEP_S = (0.0001, 0.001, 0.005)
FREEZE_S = (0.5, 3.0, 5.0, 20.0)
CRASH = 0.01
FREEZE = 0.03
UNKNOWN = 0.08


class Crash(BaseException):
    """A process is no more."""


class Turns:
    """Who takes the next step.

    Attributes:
        steps: How many were taken.
    """

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.steps = 0
        self.errors: list[BaseException] = []
        self._turn: str | None = None
        self._until_us: dict[str, int] = {}
        self._crashing: set[str] = set()
        self._changed = threading.Condition()

    def add(self, name: str, work: Callable[[], object]) -> None:
        """Add a process; it begins when `run` is called."""
        self._until_us[name] = 0
        threading.Thread(target=self._live, args=(name, work), name=name, daemon=True).start()

    def run(self, *, is_calm: bool = False) -> None:
        """Let all go on until they have ended.

        Args:
            is_calm: Whether nobody crashes or stands still.
        """
        while self._until_us:
            now_us = self.clock.now_us()
            ready = sorted(name for name, until_us in self._until_us.items() if until_us <= now_us)
            if not ready:
                self.clock.advance((min(self._until_us.values()) - now_us) / 1e6)
                continue
            name = self.random.choice(ready)
            if not is_calm and self.random.random() < FREEZE:
                self.rest(self.random.choice(FREEZE_S), name)
                continue
            if not is_calm and self.random.random() < CRASH:
                self._crashing.add(name)
            self.clock.advance(self.random.choice(STEP_S))
            self.steps += 1
            with self._changed:
                self._turn = name
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._turn is None)

    def step(self) -> None:
        """Wait for the next turn of the process that calls this; others pass."""
        name = threading.current_thread().name
        if name in self._until_us:
            with self._changed:
                self._turn = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._turn == name)
            if name in self._crashing:
                raise Crash

    def rest(self, seconds: float, name: str | None = None) -> None:
        """Give a process, or the one that calls this, no turn for so long."""
        name = name or threading.current_thread().name
        self._until_us[name] = self.clock.now_us() + round(seconds * 1e6)

    def _live(self, name: str, work: Callable[[], object]) -> None:
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._turn == name)
            work()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.errors.append(error)
        with self._changed:
            del self._until_us[name]
            self._turn = None
            self._changed.notify_all()


class Stepped:
    """A store whose calls are steps, and whose conditional writes are as many as on Cassandra.

    Now and then the outcome of one is unknown, and it is repeated later.

    Attributes:
        rows: All that were ever written. What was deleted stays so.
        freed: `live` of the messages that were cancelled, whether or not who did so learned of it.
    """

    write_timeout_ms = 2_000

    def __init__(self, store: Store, turns: Turns) -> None:
        self._store = store
        self._turns = turns
        self.rows: dict[Position, Row] = {}
        self.freed: set[str] = set()
        self._deleted: set[Position] = set()

    def __getattr__(self, name: str) -> Any:
        self._turns.step()
        return getattr(self._store, name)

    def insert(self, rows: Iterable[Row]) -> None:
        """Write rows, unless they have been deleted."""
        self._turns.step()
        written = {row.position: row for row in rows}
        self.rows |= written
        self._store.insert([row for at, row in written.items() if at not in self._deleted])

    def delete(self, positions: Iterable[Position]) -> None:
        """Delete rows for good."""
        self._turns.step()
        gone = list(positions)
        self._deleted.update(gone)
        self._store.delete(gone)

    def write_records(self, table: Any, changes: Sequence[Change]) -> Any:
        """Each change, then its inserts, then its deletes."""
        assert table is KEYS
        refused: dict[Any, Any] = {}
        for change in changes:
            bare = change._replace(insert=(), delete=())
            self._turns.step()
            answer = self._store.write_records(table, [bare])
            live, seen = (change.new or {"live": ""})["live"], str(change.seen["live"])
            is_unfollowed = seen.endswith("+") and live is not None and live[:32] != seen[:32]
            if not answer and (live is None or live.endswith("!") or is_unfollowed):
                self.freed.add(seen)
            if self._turns.random.random() < UNKNOWN:
                self._turns.rest(self._turns.random.choice(FREEZE_S[:2]))
                self._turns.step()
                answer = _proved(bare, self._store.write_records(table, [bare]))
            refused |= answer
            if not answer and change.insert:
                self.insert(change.insert)
            if not answer and change.delete:
                self.delete(change.delete)
        return refused


def _proved(change: Change, answer: dict[Any, Any]) -> dict[Any, Any]:
    """What the repeat of a change tells of it, when its first outcome is not known."""
    for present in answer.values():
        new = change.new or {}
        is_own = all(value == new.get(column) for column, value in present.items())
        return {} if is_own else answer
    return answer
