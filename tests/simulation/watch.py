"""Records the history of a running world: calls, changes of tables, events of processes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from simulated import Simulation
from simulated.network import DONE, TWICE, Weather

from shardq.engine.handing.ready import Ready
from shardq.model.ids import RowIds
from shardq.model.limits import ORDERED, QueueLimit
from shardq.model.message import moved
from shardq.model.shard import Layout
from shardq.records.keyrow import KeyRow
from shardq.stores.tables import KEYS, LANES, MEMBERS, QUEUES
from simulation.case import DEAD, LOOK_US, QUEUE, STEWARD, token_of
from simulation.history import (
    LATE_WRITER,
    HandedOut,
    Heard,
    History,
    Recorded,
    Written,
    is_tried,
    own_limit,
)
from simulation.plan import bands_of
from simulation.runs import Runs, is_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from simulated.scheduler import Process

    from shardq.consumer import Consumer
    from shardq.engine.engine import Engine
    from shardq.engine.handing.delivery import Delivery as Handed
    from shardq.model.message import Row
    from shardq.model.shard import Shard
    from shardq.queue import Queue
    from shardq.stores.store import Mark, RowMove
    from shardq.stores.tables import Partition, QueueRecord, Table
    from simulation.parts import Event
    from simulation.plan import Plan

_TELLING = {"edit": "row edited in place"}
_HINDERED_US = 20_000_000
_CLOCKS_US = 200_000
"""How far a process's corrected clock may be behind."""
_BEATS_US = 11_000_000
"""How long a heartbeat counts at most: 10 s by the clock of a node, which may be off."""
_CALLS_MAX = 200_000
_ROWS_MAX = 50_000
"""The bounds of a world. The busiest ones make 20,000 calls (45,000 with a planted bug) and write
5,000 rows, but a world that makes copies of copies never ends."""


class Endless(Exception):
    """A world made more calls or rows than any world that ends."""


class Watch:
    """Records a run's history."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.history = History(plan)
        self.simulation = Simulation(plan.seed, Weather(**plan.weather), local=plan.is_local)
        self.stopping: dict[str, bool] = {}
        self.begun: dict[int, int] = {}
        specs = {one.spec.number: one.spec for one in plan.commands if one.spec is not None}
        self.runs = Runs(self.history, specs, bands_of(plan.settings))
        self.machines = {machine.name: machine for machine in plan.machines}
        self.trace: list[str] | None = None
        self._lines: list[str] = []
        if keep_trace:
            self.trace = self._lines
        self.ending = False
        self.consumers: dict[str, Consumer] = {}
        self.queues: dict[str, Queue] = {}
        self._scheduler = self.simulation.scheduler
        self._start_us = self.simulation.now_us
        self._locks: dict[str, str] = {}
        self._leases: dict[Shard, str] = {}
        self._sealed: dict[int, int] = {}
        # On one machine a put when the clock is before this time is behind the first seal.
        made_ms = self._start_us // 1_000 - int(plan.settings["offset"][:-2])
        minute_ms = int(plan.settings["minute"][:-2])
        self._sealed_first = made_ms // minute_ms - 1 if plan.is_local else -1
        self._beat_us: dict[str, int] = {}
        self._as_placed: dict[tuple[bytes, int], Row] = {}
        self._latest: dict[bytes, Row] = {}
        self._edit_ids = RowIds()
        self._lanes = (0, 0)
        self._rows: Counter[int] = Counter()

        self._surplus: set[bytes] = set()
        self._breaks: list[Event] = []
        """The faults planned for the next firings."""
        self.seen_us: dict[tuple[str, bytes], int] = {}
        """(process, claim) -> when the process last read the claim."""
        self._wire()

    def _wire(self) -> None:
        network, cells = self.simulation.network, self.simulation.cells
        network.on_call = self._on_call
        network.on_unknown = self._on_unknown
        network.on_lease = self._on_lease
        network.on_trouble = self._on_trouble
        network.on_found = self._on_found
        network.on_answer = self._on_answer
        network.on_note = self._on_asked
        network.on_move = self._on_move
        network.on_moved = self._on_moved
        network.on_told = self._on_told
        cells.on_write = self._on_write
        cells.on_delete = self._on_delete
        cells.on_edit = self._on_edit
        cells.on_note = self._on_note
        cells.marks.on_mark = self._on_mark

    def _on_call(self, process: Process, verb: str, fate: int, about: object) -> None:
        self._note(verb, process, (fate, about))
        if fate not in (DONE, TWICE):
            self.history.failed.setdefault(process.name, []).append(self.simulation.now_us)
        if verb == "notes members":
            self._look_for_ghosts()
        if verb == "insert" and isinstance(about, list):
            for row_id in about:
                at = self.simulation.now_us, process.name
                self.history.inserted.setdefault(row_id, []).append(at)
        if verb == "records schedules" and process.name[0] in "crj":
            self.on_firing(process)
        if verb == "edit" and isinstance(about, list):
            for row_id in about:
                asked = self.history.recording.setdefault((process.name, row_id), [])
                asked.append(self.simulation.now_us)
        if verb in _TELLING:
            self.history.reached.add(_TELLING[verb])
        if self.simulation.network.calls > _CALLS_MAX:
            self._cut_short(f"{_CALLS_MAX:,} calls were made")

    def _note(self, what: str, process: Process, about: object) -> None:
        self._lines.append(
            f"{self._scheduler.now_us - self._start_us} {process.name} {what} {about}"
        )

    def _digest(self) -> str:
        """A digest of all calls of a run, in order, which identifies the run."""
        return hashlib.blake2b("".join(self._lines).encode(), digest_size=16).hexdigest()

    def _on_unknown(self, process: Process, verb: str, ids: list[bytes]) -> None:
        if verb == "edit":
            verb, ids = "move", [self._latest[i].id for i in ids if i in self._latest]
        self.history.unknown.append((self.simulation.now_us, process.name, verb, ids))
        if verb == "move" and not self._surplus.isdisjoint(ids):
            self.history.reached.add("surplus moved, or not")

    def _on_trouble(self, process: Process, us: int) -> None:
        now_us = self.simulation.now_us
        self.history.troubles.setdefault(process.name, []).append(now_us)
        self.history.waits.setdefault(process.name, []).append((now_us, now_us + us))

    def _on_lease(self, process: Process, what: str, shard: Shard, lock: str) -> None:
        self.history.leases.append((self.simulation.now_us, process.name, what, shard, lock))
        if what == "released":
            self._leases.pop(shard, None)
        else:
            self._locks[lock] = process.name
            self._leases[shard] = lock
        if what == "taken over":
            self.history.reached.add("lease taken over unclean")

    def _on_found(self, process: Process, purpose: str, found: list[Row]) -> None:
        found = [row for row in found if not row.is_note]
        rows = [self.runs.told(row) for row in found]
        self.seen_us.update(
            ((process.name, self.as_placed(row).id), self.simulation.now_us)
            for row in rows
            if row.claim is not None
        )
        if purpose.startswith("sweep sealed"):
            self.history.reached |= {f"found by {purpose}"} if rows else set()
            now_us = self.simulation.now_us
            self.history.found += [
                (now_us, process.name, row)
                for row in rows
                if row.shard.minute not in self._listed(row.shard.lane)
            ]
        elif purpose == "guard":
            self.history.reached.add("lane left alone")

    def _on_answer(self, process: Process, verb: str, key: Any, answer: Any) -> None:
        """Note a breach if a process that has a lease is told by an LWT that it has not."""
        if verb not in ("take", "renew"):
            return
        lock = self.simulation.cells.lease(key).lock
        is_ours = lock is not None and self._locks.get(lock) == process.name
        told = answer.lock == lock if verb == "take" else answer
        if verb == "renew" and not told:
            self._on_refused(process, key)
        if is_ours and not told:
            self.history.notes.append(("misjudged", f"{verb} of {key} by {process.name}"))

    def _on_refused(self, process: Process, shard: Shard) -> None:
        """Record a refused renewal: the holder now knows that its fork released the lease."""
        for place, fork in enumerate(self.history.forks):
            if (fork.process, fork.shard) == (process.name, shard) and not fork.noticed_us:
                self.history.forks[place] = fork._replace(noticed_us=self.simulation.now_us)

    def _on_asked(
        self,
        process: Process,
        table: Table[Any, Any],
        partition: Partition,
        values: Mapping[Any, Any],
    ) -> None:
        if table is LANES and partition == (QUEUE,):
            self._on_seal(process, values)

    def _on_seal(self, process: Process, minutes: Mapping[int, int]) -> None:
        """Record seals; note a breach if one covers a row that its writer must have seen."""
        now_us = self.simulation.now_us
        hindered = self._was_hindered(process)
        for lane, minute in minutes.items():
            before = self._sealed.get(lane, self._sealed_first)
            self._sealed[lane] = max(before, minute)
            self.history.sealed_us.update(
                dict.fromkeys(((lane, n) for n in _new(before, minute)), now_us)
            )
            listed = self._listed(lane)
            for row in self.simulation.cells.rows(QUEUE):
                if row.is_note or row.shard.minute in listed:
                    continue
                written = self.history.written[row.id]
                is_sealed = row.shard.lane == lane and before < row.shard.minute <= minute
                if is_sealed and not hindered and written.at_us < now_us - LOOK_US:
                    self.history.notes.append(("sealed", f"{row.shard} over {row.body[:4]!r}"))

    def _on_told(
        self,
        process: Process,
        table: Table[Any, Any],
        _partition: Partition,
        values: Mapping[Any, Any],
    ) -> None:
        if table is QUEUES and (record := values.get(QUEUE)) is not None:
            self.history.heard.setdefault(process.name, []).append(self._heard(record))

    def _on_record(self, queue: str, record: QueueRecord) -> None:
        if queue == QUEUE:
            self.history.said.append(self._heard(record))
            settings = json.loads(record.settings)
            lanes = settings["lanes_written"], settings["lanes_read"]
            if lanes != self._lanes:
                self._lanes = lanes
                self.history.relaned.append(self.simulation.now_us)

    def _heard(self, record: QueueRecord) -> Heard:
        settings = json.loads(record.settings)
        return Heard(
            self.simulation.now_us,
            settings["paused"],
            settings["purged_before_us"],
            settings.get("group_limits", ""),
            settings.get("queue_limit", ""),
        )

    @contextmanager
    def hand_outs_told(self) -> Iterator[None]:
        """Write down what leaves `ready`, and by which limits, where there are any."""
        if "limits" not in self.plan.kinds:
            yield
            return
        pop = Ready._pop

        def told(ready: Ready) -> Handed | None:
            one = pop(ready)
            if one is not None:
                self._on_handed_out(ready, one)
            return one

        Ready._pop = told  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            Ready._pop = pop  # type: ignore[method-assign]

    def _on_handed_out(self, ready: Ready, one: Handed) -> None:
        name, group = self._here(), one.row.group
        engine = self._engine_of(name)
        if engine is None or engine.ready is not ready:
            return
        groups, gate = engine.groups._limits, ready.gate
        self.history.handed_out.append(
            HandedOut(
                self.simulation.now_us,
                name,
                token_of(one.row.body),
                ORDERED if group is None else groups.of(group),
                QueueLimit() if gate is None else own_limit(gate._limit),
                () if one.gate is None else one.gate._limit.rates,
            )
        )

    def _on_move(self, moves: Sequence[RowMove]) -> None:
        for move in moves:
            # The judge takes a row that was edited in place for another row, so this is its move.
            is_mail = move.new.shard.queue == QUEUE
            old = self._latest.get(move.old.id, move.old) if is_mail else move.old
            self.history.came_from[move.new.id] = old.id
        self._surplus.update(move.new.id for move in moves if move.new.since_ms is not None)

    def on_firing(self, process: Process) -> None:
        """A process reads the schedules that it is about to fire."""

    def _engine_of(self, process: str) -> Engine | None:
        consumer, queue = self.consumers.get(process), self.queues.get(process)
        if consumer is not None:
            return consumer._engine
        return queue._receiver._engine if queue is not None else None

    def _on_moved(self, process: Process, moves: Sequence[RowMove]) -> None:
        now_us = self.simulation.now_us
        minute_ms, offset_ms = (int(self.plan.settings[n][:-2]) for n in ("minute", "offset"))
        for move in moves:
            shard = move.new.shard
            until_ms = (shard.minute + 1) * minute_ms + offset_ms // 2
            wall_us = self._scheduler.wall_us()
            if shard.queue == QUEUE and wall_us > until_ms * 1_000 + _CLOCKS_US:
                self.history.reached.add("late move")
                self.history.moved_late.append((now_us, process.name, move.new.id))

    def _cut_short(self, why: str) -> None:
        """End the run between two turns, because shardq would handle an error raised in a call."""
        if not self.history.is_cut:
            self.history.is_cut = True
            self._scheduler.at(self.simulation.now_us, partial(_end, why))

    def _was_hindered(self, process: Process) -> bool:
        """True if the last look of a process may be old: it stood still, or the store was slow."""
        since_us = self.simulation.now_us - _HINDERED_US
        troubles = self.history.troubles.get(process.name, [0])
        return troubles[-1] >= since_us or any(
            end >= since_us and name == process.name for _, end, name in self.history.freezes
        )

    def _on_write(self, row: Row) -> None:
        if row.is_note:
            self.history.reached.add("note written")
            return
        if is_run(row):
            is_put_back = row.shard.queue == DEAD or self._sender() == STEWARD
            row = self.runs.written(
                row, self.simulation.now_us, self._sender(), is_put_back=is_put_back
            )
        self.history.written[row.id] = Written(
            row, self.simulation.now_us, self._here(), sender=self._sender()
        )
        self._rows[token_of(row.body)] += not is_tried(row)
        if row.since_ms is not None:
            self.history.reached.add(
                f"surplus moved{' late' if self._here() == LATE_WRITER else ''}"
            )
        if len(self.history.written) > _ROWS_MAX and not self.history.is_cut:
            token, there = self._rows.most_common(1)[0]
            self._cut_short(f"{_ROWS_MAX:,} rows were written, {there:,} of m{token} are there")
        if row.claim is not None and self._here()[0] in "cjz":
            self.history.reached.add("row parked")

    def _on_delete(self, row: Row) -> None:
        if row.is_note:
            return
        row = self._latest.pop(row.id, row)
        written = self.history.written[row.id]
        written.deleted_us, written.deleted_by = self.simulation.now_us, self._here()
        token = token_of(written.row.body)
        self._rows[token] -= not is_tried(row)
        if not self._rows[token] and not is_tried(row):
            self.history.gone.append((self.simulation.now_us, token, self._here()))

    def _on_edit(self, row: Row) -> None:
        """Record an edit as a move to another row, so that the checker treats both alike.

        An edit that only records an attempt, just before its delivery, is recorded as such.
        """
        now_us = self.simulation.now_us
        before = self._latest.get(row.id, row)
        last = self.history.written[before.id].row
        is_grouped = self._layout.is_of_groups(row.shard.lane)
        if not is_grouped or (row.not_before_ms is None and row.attempt > last.attempt):
            self.history.reached.add("attempt recorded with care")
            self._as_placed[row.id, row.serial] = last
            recorded = Recorded(now_us, self._sender(), last.id, row.attempt)
            self.history.recorded.append(recorded)
            return
        due_ms = row.ready_ms
        new = moved(
            last,
            self._layout.shard(due_ms, row.shard.lane),
            due_ms,
            self._edit_ids.next(now_us),
            attempt=row.attempt,
            claim=row.claim,
        )
        written = self.history.written[last.id]
        written.deleted_us, written.deleted_by = now_us, self._here()
        self.history.came_from[new.id] = last.id
        self.history.written[new.id] = Written(
            new, now_us, self._here(), sender=self._sender(), is_edit=True
        )
        self._as_placed[row.id, row.serial] = self._latest[row.id] = new
        if row.claim is not None and self._here()[0] in "cjz":
            self.history.reached.add("row parked")

    @property
    def _layout(self) -> Layout:
        minute_ms, offset_ms = (int(self.plan.settings[n][:-2]) for n in ("minute", "offset"))
        return Layout(QUEUE, minute_ms=minute_ms, offset_ms=offset_ms)

    def _listed(self, lane: int) -> Collection[int]:
        """The minutes in the list of a group lane."""
        return self.simulation.cells.waiting(QUEUE, [lane]).get(lane, ())

    def as_placed(self, row: Row) -> Row:
        """The row by which the history records a row: the one of its last edit."""
        return self._as_placed.get((row.id, row.serial), row)

    def _on_note(self, table: Table[Any, Any], partition: Partition, key: Any, values: Any) -> None:
        if table is QUEUES:
            self._on_record(key, values)
        elif table is KEYS and values is not None and partition[0] == QUEUE:
            self._on_key(key, *values)
        elif table is MEMBERS and partition == (QUEUE,):
            now_us = self.simulation.now_us
            self._beat_us[key] = now_us

    def _on_key(self, name: str, live: str | None, state: str | None) -> None:
        """Record which row a command by key replaces."""
        key = KeyRow.read(QUEUE, name, live, state)
        if key.place is not None and key.before is not None:
            self.history.came_from[key.place.id] = key.before.place.id

    def _look_for_ghosts(self) -> None:
        """Note a breach for each member that still counts long after its last heartbeat."""
        now_us = self.simulation.now_us
        for name in self.simulation.cells.notes(MEMBERS, (QUEUE,)):
            if now_us > self._beat_us[name] + _BEATS_US:
                self.history.notes.append(("ghost", f"{name} is taken for a member"))

    def _on_mark(self, mark: Mark) -> None:
        key = mark.entry.queue, mark.entry.id
        if mark.fate is None:
            self.history.entered.setdefault(key, self.simulation.now_us)
        else:
            self.history.ended.setdefault(key, []).append((self.simulation.now_us, mark.fate))

    def _here(self) -> str:
        fiber = self.simulation.scheduler.current
        return LATE_WRITER if fiber is None else fiber.process.name

    def _sender(self) -> str:
        late, here = self.simulation.network.sender, self._here()
        if late is not None:
            return late.name
        return here if here != LATE_WRITER else ""


def _end(why: str) -> None:
    raise Endless(why)


def _new(before: int, minute: int) -> range:
    """The minutes that a seal adds, the last thousand of them."""
    return range(max(before + 1, minute - 1_000), minute + 1)
