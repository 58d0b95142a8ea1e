"""The calls of a process to either simulated store: their duration, failures and counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.testing.forwarding import Forwarding
from simulated.network import DONE, LOST, REFUSED, TWICE

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from shardq.model.message import Row
    from shardq.model.shard import Position, Shard
    from shardq.stores.store import Slice
    from shardq.stores.tables import K, Partition, Table, V
    from simulated.network import Network
    from simulated.scheduler import Process

Result = TypeVar("Result")

_FATES = ("refused", "lost", "unanswered", "late")
"""The fates from `REFUSED` on, in order, by the names of their shares in `Weather`."""
_SLOW_US = 1_000_000


class Calls(Forwarding):
    """The part that both simulated stores have in common.

    Reading verbs are forwarded to the tables. Subclasses define the writing verbs.

    Args:
        network: The network between the store and the tables.
        tables: The tables, which have the reading verbs.
        process: The process that calls; None: no simulated process, calls are done at once.

    Attributes:
        beside: None: there is no file beside the store.
        shown: The store's name in messages, which says that it is simulated.
    """

    beside: Path | None = None
    shown = "simulated"

    def __init__(self, network: Network, tables: object, process: Process | None) -> None:
        super().__init__(tables)
        self.counters: Counter[str] = Counter()
        self._network = network
        self._process = process
        self._scheduler = network.scheduler

    def open(self, *, create: bool = False) -> None:
        """Do nothing: the tables exist."""

    def close(self) -> None:
        """Do nothing: the tables stay."""

    def mend_index(self, there: Iterable[Shard] = (), gone: Iterable[Shard] = ()) -> None:
        """Do nothing: the index is always complete."""

    def find(self, positions: Iterable[Position]) -> list[Row]:
        """The rows, of these positions, that exist."""
        wanted = list(positions)
        if not wanted:
            return []
        return self._found(
            "find", self._read("find", lambda: self._store.find(wanted), len(wanted))
        )

    def read(self, *wanted: Slice) -> list[Row]:
        """Rows of slices, in order."""
        purpose = wanted[0].purpose if wanted else ""
        return self._found(purpose, self._read("read", lambda: self._store.read(*wanted), purpose))

    def records(
        self, table: Table[K, V], partition: Partition, keys: Iterable[K] | None = None
    ) -> dict[K, V]:
        """The records under these keys of a partition, or under all, as LWTs last decided them."""
        found: dict[K, V] = self._read(
            f"records {table.name}", lambda: self._store.records(table, partition, keys)
        )
        if found and self._process is not None:
            self._network.on_told(self._process, table, partition, found)
        return found

    def _gate(self, call: str, work: Callable[[], Any]) -> Any:
        return self._read(call, work)

    def _read(self, call: str, work: Callable[[], Result], about: object = None) -> Result:
        raise NotImplementedError

    def _found(self, purpose: str, found: list[Row]) -> list[Row]:
        if found and self._process is not None:
            self._network.on_found(self._process, purpose, found)
        return found

    def _tell(self, what: str, shard: Shard, lock: str) -> None:
        if self._process is not None:
            self._network.on_lease(self._process, what, shard, lock)

    def _tell_note(self, table: Table[K, V], partition: Partition, values: Mapping[K, V]) -> None:
        if self._process is not None:
            self._network.on_note(self._process, table, partition, values)

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
        """Let the time pass that a call takes."""
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
