"""How the calls of a process fare, whichever store they are made to: time, refusals, counters."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardq.errors import StoreTimeout, StoreUnavailable
from simulated.network import DONE, LOST, REFUSED, TWICE

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.stores.tables import K, Partition, Table, V
    from simulated.network import Network
    from simulated.scheduler import Process

_FATES = ("refused", "lost", "unanswered", "late")
"""Fates from `REFUSED` on, by the names of their shares."""
_SLOW_US = 1_000_000


class Calls:
    """What all simulated stores of a process have in common.

    Args:
        network: What is between it and the tables.
        process: Whose calls these are; None: of nobody simulated, done at once.
    """

    def __init__(self, network: Network, process: Process | None) -> None:
        self.counters: Counter[str] = Counter()
        self._network = network
        self._process = process
        self._scheduler = network.scheduler

    def _count(self, purpose: str, found: Sequence[Row]) -> None:
        counters = self.counters
        counters["reads:" + purpose] += 1
        if found:
            counters["rows_read"] += len(found)
            counters["rows_read:" + purpose] += len(found)

    def _tell(self, what: str, shard: Shard, lock: str) -> None:
        if self._process is not None:
            self._network.on_lease(self._process, what, shard, lock)

    def _tell_note(self, table: Table[K, V], partition: Partition, values: Mapping[K, V]) -> None:
        if self._process is not None:
            self._network.on_note(self._process, table, partition, values)

    def _told(self, table: Table[K, V], partition: Partition, found: dict[K, V]) -> dict[K, V]:
        if found and self._process is not None:
            self._network.on_told(self._process, table, partition, found)
        return found

    def _fate(self, verb: str, chance: random.Random) -> int:
        process, weather = self._process, self._network.weather
        if process is not None and verb in process.strikes:
            fate = process.strikes[verb]()
            if fate is not None:
                return fate
        if process is not None and process.trouble_until_us > self._scheduler.now_us:
            return REFUSED if chance.random() < 0.5 else LOST
        draw = chance.random()
        if draw >= weather.faulty:
            return DONE
        met = self._network.met
        for fate, name in enumerate(_FATES, REFUSED):
            share = getattr(weather, name)
            if draw < share:
                met.add(name)
                return fate
            draw -= share
        met.add("twice")
        return TWICE

    def _pass(self, process: Process, slow: float = 0.0) -> None:
        """The time that a call takes."""
        weather, chance = self._network.weather, process.chance
        draw = chance.random()
        us = weather.least_us + int(weather.spread_us * draw * draw * draw)
        slow = max(slow, weather.slow)
        if not (slow and chance.random() < slow):
            self._scheduler.park(us)
            return
        us += chance.randrange(weather.slow_us)
        self._network.met.add("slow" if slow == weather.slow else "slow_lwt")
        is_trouble = us >= _SLOW_US
        if is_trouble:
            self._network.on_trouble(process, us)
        self._scheduler.park(us)
        if is_trouble:
            self._network.on_trouble(process, 0)

    def _refuse(self, process: Process, verb: str) -> None:
        self._network.on_trouble(process, 0)
        self._pass(process)
        raise StoreUnavailable(f"{verb}: refused")

    def _time_out(self, process: Process, verb: str) -> None:
        self._network.on_trouble(process, self._network.weather.timeout_us)
        self._scheduler.park(self._network.weather.timeout_us)
        raise StoreTimeout(f"{verb}: no answer")
