"""The client of simulated tables, a `Store` for a process; at each call other fibers may run.

The client decides the write time of each cell, in how many requests a call is sent, and repeats an
LWT until its outcome is certain. `network.py` decides the fate of a request.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from shardq.errors import StoreTimeout, StoreUnavailable, begun
from shardq.model.ids import birth_us
from shardq.model.shard import Shard
from shardq.stores import steps
from shardq.stores.store import NO_MARKS, NO_TIMES, LeaseState
from simulated.calls import Calls, Result
from simulated.network import DONE, LATE, REFUSED, TWICE, UNANSWERED

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.stores.store import Mark, RowMove, WriteOnce
    from shardq.stores.tables import Change, K, Partition, Refused, Table, V
    from simulated.network import Network
    from simulated.scheduler import Process

DELETED_AFTER_US = 1_000_000
ROW_BYTES = 100
_CHUNK = 5_000
_PAUSES_US = (50_000, 100_000, 200_000, 400_000, 800_000, 1_600_000)
_PARTS_MAX = 3

Key = TypeVar("Key")


class SimulatedStore(Calls):
    """A `shardq.stores.store.Store` as one process sees it.

    Args:
        network: The network between the store and the tables.
        process: The process that calls; None: no simulated process, calls are done at once.

    Attributes:
        is_local: False: nodes have the clock.
    """

    is_local = False

    def __init__(self, network: Network, process: Process | None = None) -> None:
        super().__init__(network, network.cells, process)
        self._cells = network.cells
        # The longest that a write may be late. After the timeout its caller does not know of it.
        weather = network.weather
        self.write_timeout_ms = max(weather.timeout_us, weather.late_us) // 1_000

    # Rows -----------------------------------------------------------------------------------------

    def insert(self, rows: Iterable[Row], once: WriteOnce | None = None) -> Mark | None:
        """Write rows at their births; with `once` only if its line does not exist."""
        if once is not None:
            return steps.insert(self, rows, once)
        for chunk in _chunks(rows):
            self._insert(chunk)
        return None

    def _insert(self, rows: list[Row]) -> None:
        write = self._cells.write
        self._write("insert", rows, _row_id, lambda row: write(row, self.written_us(row)))

    def delete(self, positions: Iterable[Position]) -> None:
        """Delete rows with tombstones a second later than their births."""
        self._delete(list(positions))

    def _delete(self, positions: list[Position]) -> None:
        at_us = self.deleted_us(positions)
        self._write(
            "delete", positions, _position_id, lambda one: self._cells.delete(one, at_us[one.shard])
        )

    def move(
        self,
        moves: Iterable[RowMove],
        marks: Mapping[Position, Sequence[Mark]] = NO_MARKS,
        kept_ms: Mapping[str, int] = NO_TIMES,
    ) -> set[Position]:
        """Write new rows and delete old ones: in one batch, or one by one if that is too large."""
        small: list[RowMove] = []
        large: list[RowMove] = []
        in_steps: list[RowMove] = []
        asked = list(moves)
        self._network.on_move(asked)
        for move in asked:
            is_large = len(move.new.body) + ROW_BYTES > self._network.weather.move_bytes
            is_in_steps = move.note is not None or move.old in marks
            (in_steps if is_in_steps else large if is_large else small).append(move)
        self._move(small)
        if in_steps:
            steps.move(self, in_steps, marks, kept_ms)
        if large:
            self._move_large(large)
        if self._process is not None:
            self._network.on_moved(self._process, asked)
        return set()

    def _move_large(self, moves: list[RowMove]) -> None:
        self._insert([move.new for move in moves])
        with begun("the new rows are written"):
            self._delete([move.old for move in moves])

    def _move(self, moves: list[RowMove]) -> None:
        at_us = self.deleted_us([move.old for move in moves])

        def carry_out(move: RowMove) -> None:
            self._cells.write(move.new, self.written_us(move.new))
            self._cells.delete(move.old, at_us[move.old.shard])

        self._write("move", moves, _moved_ids, carry_out)

    def edit(self, rows: Iterable[Row]) -> None:
        """Write the states of rows, each its serial in microseconds after the row's birth."""
        edit = self._cells.edit
        for chunk in _chunks(rows):
            self._write("edit", chunk, _row_id, lambda row: edit(row, self.edited_us(row)))

    @staticmethod
    def edited_us(row: Row) -> int:
        """The time at which a row is edited: after its birth and its edits of lower serials."""
        return birth_us(row.id) + row.serial

    @staticmethod
    def written_us(row: Row) -> int:
        """The time at which a row is written: its birth, however often it is repeated."""
        return birth_us(row.id)

    @staticmethod
    def deleted_us(positions: list[Position]) -> dict[Shard, int]:
        """The time of the tombstones of one statement: after the last birth of a shard's rows."""
        at_us: dict[Shard, int] = {}
        for shard, _, row_id in positions:
            at_us[shard] = max(at_us.get(shard, 0), birth_us(row_id) + DELETED_AFTER_US)
        return at_us

    def next_minute(self, *_: object) -> None:
        """None: this store has no index of minutes."""

    total = rows_in = seek = next_minute

    # Leases ---------------------------------------------------------------------------------------

    def take(
        self, seen: Mapping[Shard, str | None], *, lock: str, holder: str, window: int, ttl_ms: int
    ) -> dict[Shard, LeaseState]:
        """Lease shards that nobody holds and whose holder is the one seen."""
        ours = LeaseState(lock, holder, window)
        return self._decide(
            "take",
            {
                shard: partial(self._take, shard, before, ours, ttl_ms)
                for shard, before in sorted(seen.items(), key=_first)
            },
        )

    def _take(self, shard: Shard, before: str | None, ours: LeaseState, ttl_ms: int) -> LeaseState:
        state = self._cells.take(shard, before, ours, ttl_ms)
        if state is ours:
            is_unclean = before is not None and before != ours.holder
            self._tell("taken over" if is_unclean else "taken", shard, str(ours.lock))
        return state

    def renew(self, locks: Mapping[Shard, str], ttl_ms: int) -> set[Shard]:
        """Renew our leases for their full time."""
        answers = self._decide(
            "renew",
            {
                shard: partial(self._renew, shard, lock, ttl_ms)
                for shard, lock in sorted(locks.items())
            },
        )
        return {shard for shard, is_ours in answers.items() if is_ours}

    def _renew(self, shard: Shard, lock: str, ttl_ms: int) -> bool:
        is_ours = self._cells.renew(shard, lock, ttl_ms)
        if is_ours:
            self._tell("renewed", shard, lock)
        return is_ours

    def release(self, locks: Mapping[Shard, str]) -> None:
        """End our leases cleanly."""
        self._decide(
            "release",
            {shard: partial(self._release, shard, lock) for shard, lock in sorted(locks.items())},
        )

    def _release(self, shard: Shard, lock: str) -> None:
        if self._cells.release(shard, lock):
            self._tell("released", shard, lock)

    def locks(self, positions: Iterable[Position]) -> dict[Shard, LeaseState]:
        """The lease states of the shards of existing rows."""
        wanted = list(positions)
        if not wanted:
            return {}
        return self._read("locks", lambda: self._cells.locks(wanted))

    def list_minutes(
        self, lease: Shard, lock: str, listed: Mapping[int, int], erased: Collection[int] = ()
    ) -> bool:
        """List minutes of a lane and erase others if its lease is ours."""
        if not listed and not erased:
            return True
        work = partial(self._cells.list_minutes, lease, lock, listed, erased)
        return self._decide("list_minutes", {lease: work})[lease]

    # Registers ------------------------------------------------------------------------------------

    def note(
        self,
        table: Table[K, V],
        partition: Partition,
        values: Mapping[K, V],
        ttl_ms: int | None = None,
    ) -> None:
        """Write values under keys."""
        table.check_notes()
        self._tell_note(table, partition, values)
        # The driver sets the timestamp when the call is made; a late write keeps it.
        now_us = self._scheduler.now_us

        def write(one: tuple[K, V]) -> None:
            at_us = table.latest_of(one[1]) if table.latest else now_us
            self._cells.note(table, partition, *one, at_us, ttl_ms=ttl_ms)

        self._write(f"note {table.name}", list(values.items()), _none, write)

    def notes_of(
        self, table: Table[K, V], partitions: Sequence[Partition]
    ) -> dict[Partition, dict[K, V]]:
        """The values under all keys of several partitions."""
        return {one: self.notes(table, one) for one in partitions}

    def erase(self, table: Table[K, V], partition: Partition, keys: Iterable[K]) -> None:
        """Delete rows."""
        table.check_notes()
        at_us = self._scheduler.now_us
        self._write(
            f"erase {table.name}",
            list(keys),
            _none,
            lambda key: self._cells.note(table, partition, key, None, at_us),
        )

    def write_records(self, table: Table[K, V], changes: Sequence[Change]) -> Refused:
        """Change records, an LWT for each partition, then write the messages' rows."""
        table.check_records()
        by_partition: dict[object, list[Change]] = {}
        for change in changes:
            by_partition.setdefault((table.name, change.partition or change.key), []).append(change)
        work = {
            place: partial(self._change, table, some, object())
            for place, some in by_partition.items()
        }
        done: list[Change] = []
        refused: Refused = {}
        repeated: set[object] = set()
        decided = self._decide(f"write_records {table.name}", work, repeated)
        for of_partition, gone in decided.values():
            done += of_partition
            refused |= gone
        for place in repeated:
            if any(one.is_decisive and one.place in refused for one in by_partition[place]):
                raise StoreTimeout(f"{place}: maybe changed, and changed again since")
        steps.follow(self, done)
        return refused

    def _change(
        self, table: Table[K, V], changes: list[Change], nonce: object
    ) -> tuple[list[Change], Refused]:
        """Apply changes one by one; returns the applied ones, and why the others are refused."""
        done: list[Change] = []
        refused: Refused = {}
        for change in changes:
            present = self._cells.change(table, change, self._scheduler.now_us, nonce)
            if present is None:
                done.append(change)
            else:
                refused[change.place] = present
        return done, refused

    # The ledger -----------------------------------------------------------------------------------

    def record(self, marks: Iterable[Mark], ttl_ms: int) -> None:
        """Add marks."""
        write = self._cells.marks.write
        self._write("record", list(marks), _none, lambda mark: write(mark, _at_us(mark), ttl_ms))

    # Time and news --------------------------------------------------------------------------------

    def clocks(self) -> Mapping[str, Callable[[], int]]:
        """The clock of the one node."""
        return {"node": lambda: self._read("time of node", self._cells.machine_us)}

    def changed(self) -> None:
        """None: this store does not report changes."""

    # Details --------------------------------------------------------------------------------------

    def _found(self, purpose: str, found: list[Row]) -> list[Row]:
        counters = self.counters
        counters["reads:" + purpose] += 1
        if found:
            counters["rows_read"] += len(found)
            counters["rows_read:" + purpose] += len(found)
        return super()._found(purpose, found)

    def _read(self, verb: str, work: Callable[[], Result], about: object = None) -> Result:
        self.counters["reads"] += 1
        process = self._process
        if process is None:
            return work()
        network, chance = self._network, process.chance
        fate = self._fate(verb, chance)
        network.calls += 1
        network.on_call(process, verb, fate, about)
        if fate == REFUSED:
            self._refuse(process, verb)
        if fate not in (DONE, TWICE):
            self._time_out(process, verb)
        if chance.random() < 0.5:
            result = work()
            self._pass(process)
            return result
        self._pass(process)
        return work()

    def _write(
        self,
        verb: str,
        items: Sequence[Key],
        ids: Callable[[Key], Iterable[bytes]],
        work: Callable[[Key], object],
    ) -> None:
        if not items:
            return
        self.counters["batches"] += 1
        process = self._process
        if process is None:
            for item in items:
                work(item)
            return
        network = self._network
        network.calls += 1
        after: list[Callable[[], None]] = []
        fates = set()
        for part in self._parts(items, process.chance):
            fate = self._fate(verb, process.chance)
            fates.add(DONE if fate == TWICE else fate)
            about = [one_id for item in part for one_id in ids(item)]
            network.on_call(process, verb, fate, about)
            self._send(fate, _all_of(work, part), after, process.chance)
        is_unknown = max(fates) > REFUSED
        if is_unknown or len(fates) > 1:
            network.on_unknown(process, verb, [one_id for item in items for one_id in ids(item)])
        if not is_unknown:
            self._pass(process)
        for act in after:
            act()
        if is_unknown:
            self._time_out(process, verb)
        if REFUSED in fates:
            network.on_trouble(process, 0)
            if DONE in fates:
                raise StoreTimeout(f"{verb}: a part of it was refused")
            raise StoreUnavailable(f"{verb}: refused")

    def _send(
        self,
        fate: int,
        act: Callable[[], None],
        after: list[Callable[[], None]],
        chance: random.Random,
    ) -> None:
        """Let a request take effect now, at the end of the call, later or never, by its fate."""
        if fate in (DONE, UNANSWERED, TWICE):
            if chance.random() < 0.5:
                act()
            else:
                after.append(act)
        if fate in (LATE, TWICE):
            self._network.later(act, chance)

    def _decide(
        self,
        verb: str,
        work: Mapping[Key, Callable[[], Result]],
        repeated: set[Key] | None = None,
    ) -> dict[Key, Result]:
        """Repeat LWTs until each outcome is certain; adds to `repeated` those sent again."""
        if not work:
            return {}
        self.counters["lwt"] += len(work)
        process = self._process
        if process is None:
            return {key: act() for key, act in work.items()}
        network = self._network
        network.calls += 1
        decided: dict[Key, Result] = {}
        undecided = self._attempt(process, verb, work, decided)
        if repeated is not None:
            repeated.update(undecided)
        if REFUSED in undecided.values():
            self._refuse(process, verb)
        for pause_us in _PAUSES_US:
            if not undecided:
                break
            self._scheduler.park(pause_us)
            undecided = self._attempt(process, verb, {key: work[key] for key in undecided}, decided)
        if undecided:
            self._time_out(process, verb)
        for key in work:
            network.on_answer(process, verb, key, decided[key])
        return {key: decided[key] for key in work}

    def _attempt(
        self,
        process: Process,
        verb: str,
        work: Mapping[Key, Callable[[], Result]],
        decided: dict[Key, Result],
    ) -> dict[Key, int]:
        """Send LWTs once; returns the fates of those with unknown outcomes."""
        network, chance = self._network, process.chance
        undecided: dict[Key, int] = {}
        late = []
        for key, act in work.items():
            fate = self._fate(verb, chance)
            network.on_call(process, verb, fate, key)
            if fate in (DONE, TWICE):
                if chance.random() < 0.5:
                    decided[key] = self._lwt(key, act)
                else:
                    late.append((key, act))
                continue
            undecided[key] = fate
            if fate == UNANSWERED:
                self._lwt(key, act)
            elif fate == LATE:
                network.later(self._if_next(key, act), chance)
        self._pass(process, network.weather.slow_lwt)
        for key, act in late:
            decided[key] = self._lwt(key, act)
        if undecided and REFUSED not in undecided.values():
            self._scheduler.park(network.weather.timeout_us)
        return undecided

    def _lwt(self, key: Key, act: Callable[[], Result]) -> Result:
        lwts = self._network.lwts
        lwts[key] = lwts.get(key, 0) + 1
        return act()

    def _if_next(self, key: Key, act: Callable[[], Result]) -> Callable[[], None]:
        # The next LWT of a partition completes or voids the undecided one, as Paxos does.
        lwts = self._network.lwts
        seen = lwts.get(key, 0)

        def run() -> None:
            if lwts.get(key, 0) == seen:
                self._lwt(key, act)

        return run

    def _parts(self, items: Sequence[Key], chance: random.Random) -> list[list[Key]]:
        """The requests into which a call is divided."""
        if len(items) == 1 or chance.random() >= self._network.weather.parted:
            return [list(items)]
        parts: list[list[Key]] = [[] for _ in range(chance.randint(2, _PARTS_MAX))]
        for item in items:
            chance.choice(parts).append(item)
        parts = [part for part in parts if part]
        if len(parts) > 1:
            self._network.met.add("parted")
        return parts


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    if isinstance(rows, (list, tuple)) and len(rows) <= _CHUNK:
        yield list(rows)
        return
    iterator = iter(rows)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _all_of(work: Callable[[Key], object], items: list[Key]) -> Callable[[], None]:
    def act() -> None:
        deque(map(work, items), maxlen=0)

    return act


def _first(item: tuple[Shard, object]) -> Shard:
    return item[0]


def _row_id(row: Row) -> tuple[bytes]:
    return (row.id,)


def _position_id(position: Position) -> tuple[bytes]:
    return (position.id,)


def _moved_ids(move: RowMove) -> tuple[bytes, bytes]:
    return (move.old.id, move.new.id)


def _at_us(mark: Mark) -> int:
    born_us = birth_us(mark.entry.id)
    if mark.tries:
        _, ended, _ = mark.tries[0].split(":", 2)
        return int(ended) * 1_000
    return born_us if mark.fate is None else born_us - max(mark.ended_ms * 1_000 - born_us, 0)


def _none(_: object) -> tuple[bytes, ...]:
    return ()
