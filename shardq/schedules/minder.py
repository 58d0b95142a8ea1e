"""Sees that each schedule on the list has its tick: one process of a queue does, twice a minute."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq.errors import StoreCorrupt, TriggerError
from shardq.lifecycle.keyed import Keyed
from shardq.model.key import bucket_of
from shardq.model.times import moment_of
from shardq.schedules.listing import Listing
from shardq.schedules.tick import lead_of
from shardq.schedules.ticks import is_suspect, resumed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardq.engine.engine import Engine
    from shardq.lifecycle.home import QueueHome
    from shardq.records.keyrow import KeyRow

log = logging.getLogger(__name__)

_EVERY_US = 30_000_000
_FIRST_US = 5_000_000
_FEW = 250
"""Schedules that are looked at in one turn: it takes 20 ms on SQLite."""


class Minder:
    """Puts ticks again that are lost, and ends what a removal has begun.

    Args:
        home: The queue's.
        engine: The one of the ticks.
    """

    def __init__(self, home: QueueHome, engine: Engine) -> None:
        store, clock = home.store, home.clock
        self._clock = clock
        self._is_local = store.is_local
        self._register = home.register
        self._engine = engine
        self._first_lane = engine.home.register.layout.first_lane
        self._settler = engine.home.settler
        self._listing = Listing(store, clock, home.register.name)
        self._keyed = Keyed(engine.home)
        self._next_us = clock.boot_us() + _FIRST_US
        self._left: list[list[str]] = []
        """Names that are still to be looked at."""
        self._over: list[str] = []

    def look(self) -> None:
        """Look at some of the schedules, where it is time, and this process is the one that does.

        A few in each turn, so that no firing waits for it: a read of the list for all of them, and
        for each few three of their bucket of keys.
        """
        now_us = self._clock.boot_us()
        if now_us < self._next_us or self._first_lane not in self._engine.intake.lanes:
            return
        if not self._left:
            known, self._over = self._listing.known()
            self._left = list(_fews(known))
        if self._left:
            few = self._left.pop()
            try:
                self._look_at(few)
            except StoreCorrupt as error:
                if len(few) == 1:
                    log.warning("schedule %s of queue %s: %s", *few, self._register.name, error)
                else:
                    self._left += [[name] for name in few]
        if not self._left:
            self._listing.forget(self._over)
            self._next_us = now_us + _EVERY_US

    def _look_at(self, few: Sequence[str]) -> None:
        keys = self._settler.keys.look(few)
        listed = set(self._listing.names(few))
        self._end_removed(name for name in few if name not in listed and keys[name].first)
        now_ms = self._clock.now_ms()
        lost = [name for name in few if name in listed and is_suspect(keys[name], now_ms)]
        if not lost:
            return
        for name, found in self._settler.keys.seek(lost).items():
            if not found.state.is_absent:
                continue
            try:
                self._put_again(name, found.key)
            except (StoreCorrupt, TriggerError) as error:
                log.warning("schedule %s of queue %s: %s", name, self._register.name, error)

    def _end_removed(self, asked: Iterable[str]) -> None:
        """Remove ticks of schedules that are off the list, as who removed them was about to.

        The list is read after the rows: one that was made again meanwhile is on it, and stays.
        """
        found = self._settler.keys.seek(asked)
        listed = self._listing.read(found) if found else {}
        for name, one in listed.items():
            row = found[name].row
            if one.definition is None and row is not None:
                self._keyed.cancel(name, row)

    def _put_again(self, name: str, key: KeyRow) -> None:
        definition = self._listing.read([name])[name].definition
        if definition is None:
            return
        now_ms = self._clock.now_ms()
        tick = resumed(definition, key, now_ms, is_local=self._is_local)
        due_ms = tick.due_ms(now_ms, lead_of(definition, is_local=self._is_local))
        self._engine.home.producer.put(
            tick.due_at(due_ms).body(), due=moment_of(due_ms), id=name, key=name
        )
        log.warning(
            "schedule %s of queue %s had lost its tick, which is put again",
            name,
            self._register.name,
        )


def _fews(asked: Iterable[str]) -> Iterator[list[str]]:
    """Names by few, each few of one bucket of keys."""
    of_bucket: dict[int, list[str]] = {}
    for name in asked:
        of_bucket.setdefault(bucket_of(name), []).append(name)
    for some in of_bucket.values():
        for start in range(0, len(some), _FEW):
            yield some[start : start + _FEW]
