"""Runs a plan: processes with shardq's own producers, consumers and callers, and their faults.

The phases of a run: faults for a while; then all faults end; then the queue drains.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from simulated.network import LATE, LOST, REFUSED, UNANSWERED

import shardq
from shardq.clock import SystemClock
from shardq.engine.reading.lane import SEALED_RUNGS
from shardq.errors import BadSetting, ClockError, KeyTaken, StoreError, UnknownQueue
from shardq.model.ids import birth_us, row_ids
from shardq.model.limits import AWAY_MS
from shardq.model.message import Row
from shardq.stores.tables import MEMBERS
from simulation.case import DEAD, FAULT, HEALER_PREFETCH, QUEUE, STEWARD
from simulation.history import Delivery, Fork, Look, Purge, Put
from simulation.parts import Act, Event, Letter, Machine
from simulation.plan import (
    ISOLATED_MS_MAX,
    STRUCK,
    WITHIN,
    Plan,
    length_ms,
    machine_of,
)
from simulation.registrar import Registrar
from simulation.roles import body_of
from simulation.seals import Seals
from simulation.strangers import EVERY_S, STRANGERS, TTL_MS, Stranger, heartbeat_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from simulated.scheduler import Process

    from simulation.history import History

_SETTLE_S = 6.5
_DRAIN_S = 90.0
_POISON_S = 60.0
_STEERED = {"lanes", "lease", "purge", "pause", "redrive", "audit", "drop",
            "groups", "limits", "hold"}  # fmt: skip
_ALTERED = {
    "lease": "leases changed",
    "groups": "limits of groups changed",
    "limits": "limits of the queue changed",
}
_LEFT_S = 60.0
_BEHIND_US = 1_000_000
_GOES_ON_US = 30_000_000
_DRAINS = 3
_CUT_US = 4_000
_LATE_MS = 3_000
_LATE_TOKEN = 1_000_001
_DROPPED_TOKEN = 1_000_002


class World(Registrar):
    """One run of a plan."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        super().__init__(plan, keep_trace=keep_trace)
        self._queue: Any = None
        self._lives: dict[str, int] = {}
        self._is_redriving = False
        self._seals = Seals(plan, self.simulation, self.history)

    def run(self) -> History:
        """Play the plan to its end."""
        plan, simulation, history = self.plan, self.simulation, self.history
        with simulation, self.hand_outs_told():
            self._steward = simulation.process(STEWARD)
            simulation.spawn(self._steward, self._make_queue)
            for machine in plan.machines:
                at_us = self._start_us + round(machine.start_s * 1e6)
                simulation.scheduler.at(at_us, partial(self.start, machine))
            for event in plan.events:
                at_us = self._start_us + round(event.at_s * 1e6)
                befall = self.of_firings.get(event.kind, self._befall)
                simulation.scheduler.at(at_us, partial(befall, event))
            try:
                simulation.run(plan.active_s)
                self._heal()
                self._be_absent()
                self.rest()
                history.drained = self._drain() and self._go_on()
                self._end()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told
                history.notes.append((FAULT, f"{type(error).__name__}: {error}"))
            history.ended_us = simulation.now_us
            cells = simulation.cells
            history.dead = list(map(self.runs.told, cells.rows(DEAD)))
            history.left = list(map(self.runs.told, cells.rows(QUEUE)))
        reached = {
            "late write beaten by its tombstone": cells.beaten,
            "dead letter": history.dead,
            "put back": [
                w
                for w in history.written.values()
                if w.process == STEWARD and w.row.name is not None and w.row.first is None
            ],
            "kept a history": history.audits,
            "purged": [p for p in history.purges if p.before_us],
            "cancelled": [c for c in history.cancels.values() if c.outcome == "cancelled"],
            "stale receipt": [d for d in history.deliveries if d.outcome == "stale"],
            "woke past its lease": [f for f in history.freezes if f[1] - f[0] > 10_000_000],
            "crashed": history.crashes,
            "unknown write": history.unknown,
        }
        history.reached |= {name for name, found in reached.items() if found}
        history.reached |= {f"call {name}" for name in simulation.network.met}
        history.reached |= {f"with {kind}" for kind in plan.kinds & WITHIN}
        history.risen, history.survivors = (
            [self.runs.told(row) for row in rows] for rows in (cells.risen, cells.survivors)
        )
        for process in simulation.processes.values():
            # The most that its clock runs ahead: it is measured each minute, once in vain.
            ahead = max(process.rate - 1.0, 0.0)
            history.slack_us[process.name] = round(ahead * 200e6)
        history.calls = simulation.network.calls
        history.trace = self._digest()
        return history

    # Phases ---------------------------------------------------------------------------------------

    def _heal(self) -> None:
        simulation = self.simulation
        self.history.healed_us = simulation.now_us
        self.ending = True
        simulation.network.heal()
        for process in simulation.processes.values():
            process.frozen_until_us = min(process.frozen_until_us, simulation.now_us)
            process.trouble_until_us = 0
            process.strikes.clear()
        simulation.spawn(self._steward, self._resume, "resume")
        # Messages put while the clock was far ahead come due only by a clock as far ahead.
        ahead_us = max((ahead_us for _, ahead_us in self.history.sets), default=0)
        self._set((max(ahead_us, 0) - self._scheduler.stepped_us) / 1e6)
        if self._seals.is_short:
            # Their looks are made while late writes still arrive, so they do not delay the drain.
            simulation.scheduler.at(simulation.now_us + _BEHIND_US, self._write_behind)
        # From now on two readers run, whatever happened before.
        for n in range(2):
            reader = Machine(f"z{n}", "consumer", threads=3, prefetch=HEALER_PREFETCH)
            self.machines[reader.name] = reader
            self.start(reader)

    def _be_absent(self) -> None:
        """Stop all processes for a while, so that fire times are missed."""
        if self.plan.absent_s:
            self._send_home(())
            self.simulation.run(self.plan.absent_s)
            self.history.came_us = self.simulation.now_us
            reader = Machine("x0", "consumer", threads=3, prefetch=HEALER_PREFETCH)
            self.machines[reader.name] = reader
            self.start(reader)

    def _drain(self) -> bool:
        simulation = self.simulation
        # Late writes arrive, and postponed messages come due.
        simulation.run(_SETTLE_S)
        if length_ms(self.plan.settings) > ISOLATED_MS_MAX:
            simulation.spawn(self._steward, self._write_late, "late")
        longest = max((letter.delay_ms for letter in self.plan.letters), default=0) / 1e3
        # A message that a pause or a rate holds back may be moved so far.
        longest += AWAY_MS / 1e3 if self.plan.ending else 0.0
        poisons = sum(letter.acts[:1] == (Act("crash"),) for letter in self.plan.letters)
        poisons *= 1 + sum(event.kind == "redrive" for event in self.plan.events)
        if simulation.run(_DRAIN_S + longest + poisons * _POISON_S, self._is_over):
            return self._is_drained() or self._is_found_by_check()
        # Slow handlers with few threads, whose members take turns at lanes, need more time.
        for _ in range(_DRAINS):
            if self._goes_on() and simulation.run(_DRAIN_S, self._is_drained):
                return True
        return self._is_found_by_check()

    def _is_found_by_check(self) -> bool:
        """True if the queue is drained after `check --all`, which finds rows behind looks."""
        if self.plan.is_local:
            # Rows that a stopped process wrote while the clock was set are found at their seal.
            seconds = length_ms(self.plan.settings) / 1e3 + _SETTLE_S if self.history.sets else 0.0
            return self.simulation.run(seconds, self._is_drained) or self._is_drained()
        notes = self._seals.overlooked(self._queue._home.register.layout)
        self.history.notes += [("unswept", text) for text in notes]
        self.history.reached.add("found by check --all")
        self.simulation.spawn(self._steward, self._check_all, "check")
        return self.simulation.run(_DRAIN_S, self._is_drained)

    def _go_on(self) -> bool:
        """Let minutes pass with one reader or none, until sealed minutes are looked at again."""
        simulation, seals = self.simulation, self._seals
        layout = self._queue._home.register.layout
        late_us = simulation.network.late_until_us - simulation.now_us
        if not (seals.lasts or seals.absence or late_us > 0):
            return True
        # After an absence the reader is a new one.
        staying = {"x0" if self.plan.absent_s else "z0"} if seals.stays else set()
        self._send_home(staying)
        if seals.absence:
            # The looks at these rows come due during the absence.
            seals.write(
                self._queue._home.register, SEALED_RUNGS[:2], ahead=seals.absent_minutes // 2
            )
            seals.be_absent(seals.absent_minutes * layout.minute_ms / 1e3, layout)
        if seals.stays:
            simulation.run(seals.lasting_s(layout))
        elif seals.lasts:
            seals.be_absent(seals.lasting_s(layout), layout)
        late_us = simulation.network.late_until_us - simulation.now_us
        if late_us > 0:
            # No reader sees these writes arrive; the next one, or a later look, must find them.
            self.history.reached.add("late by minutes")
            staying = set()
            self._send_home(staying)
            seals.be_absent((late_us + 1) / 1e6, layout)
        if seals.is_short:
            seals.write(self._queue._home.register, SEALED_RUNGS)
        if not staying:
            reader = Machine("y0", "consumer", threads=3, prefetch=HEALER_PREFETCH)
            self.machines[reader.name] = reader
            self.history.came_us = simulation.now_us
            self.start(reader)
        simulation.run(_DRAIN_S + seals.patience_us / 1e6, self._is_over)
        return self._is_drained() or self._is_found_by_check()

    def _write_behind(self) -> None:
        if self._queue is not None:
            self._seals.write(self._queue._home.register, SEALED_RUNGS[:2])

    def _send_home(self, staying: Collection[str]) -> None:
        """Stop all processes but those of some machines, and wait until they have ended."""
        leaving = [name for name in self.stopping if machine_of(name) not in staying]
        for name in leaving:
            self.stopping[name] = True
        if not (staying or self.history.left_us):
            self.history.left_us = self.simulation.now_us
        processes = self.simulation.processes
        self.simulation.run(_LEFT_S, lambda: all(processes[name].dead for name in leaving))

    def _goes_on(self) -> bool:
        """True if a message was handed out lately."""
        last = self.history.deliveries[-1:]
        return any(one.begun_us > self.simulation.now_us - _GOES_ON_US for one in last)

    def _is_drained(self) -> bool:
        puts_on = any(
            not process.dead
            for name, process in self.simulation.processes.items()
            if self._role_of(name) == "producer"
        )
        return not (puts_on or self.simulation.cells.rows(QUEUE)) and not any(
            one.outcome == "running" for one in self.history.deliveries if self._is_alive(one)
        )

    def _is_over(self) -> bool:
        """True if the queue is drained, or no look at the remaining rows is near."""
        if self._is_drained():
            return True
        is_left = bool(self.simulation.cells.rows(QUEUE)) and not self.plan.is_local
        return is_left and self._seals.is_hopeless(self._queue._home.register.layout)

    def _role_of(self, process: str) -> str:
        machine = self.machines.get(machine_of(process))
        return machine.role if machine is not None else ""

    def _is_alive(self, one: Delivery) -> bool:
        return not self.simulation.processes[one.process].dead

    def _end(self) -> None:
        if "history" in self.plan.settings:
            self.simulation.spawn(self._steward, self._audit, "audit")
            self.simulation.run(_DRAIN_S, lambda: len(self.history.audits) > 1)
        for name in list(self.stopping):
            self.stopping[name] = True
        self.simulation.run(8.0)

    # Processes ------------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        """Start a process of a machine, the first one or one after a restart."""
        life = self._lives[machine.name] = self._lives.get(machine.name, 0) + 1
        name = machine.name if life == 1 else f"{machine.name}.{life}"
        process = self.simulation.process(
            name, rate=machine.rate, shift_us=round(machine.shift_s * 1e6)
        )
        self.stopping[name] = False
        role = {
            "producer": self._produce,
            "consumer": self._consume,
            "stepper": self._step,
            "caller": self._call,
        }[machine.role]
        self.simulation.spawn(process, partial(self._live, process, machine, role))

    def _live(
        self,
        process: Process,
        machine: Machine,
        role: Callable[[Process, Machine, shardq.Queue], None],
    ) -> None:
        opened = self._open(process)
        if opened is not None:
            db, queue = opened
            if machine.start_s:
                self.history.reached.add("joined")
            role(process, machine, queue)
            if self.stopping[process.name] and not self.ending:
                self.history.reached.add(f"{machine.role} left")
            self._repeat(db.close)
        process.dead = True
        self.simulation.scheduler.kill(process)

    def _open(self, process: Process) -> tuple[shardq.Connection, shardq.Queue] | None:
        """Connect as a program does: repeat until it succeeds; None if its clock is refused."""
        store = self.simulation.store(process)
        while True:
            try:
                db = shardq.Connection(store, SystemClock(0, corrected=True))
                return db, db.queue(QUEUE, create=False)
            except ClockError:
                self.history.reached.add("clock refused")
                return None
            except (StoreError, UnknownQueue):
                if self.stopping.get(process.name):
                    return None
                self.simulation.sleep(0.5)

    def _make_queue(self) -> None:
        store = self.simulation.store(self._steward)
        while True:
            try:
                db = shardq.Connection(store, SystemClock(0, corrected=True))
                self._queue = db.queue(QUEUE, **self.plan.settings)
            except StoreError:
                self.simulation.sleep(0.3)
            else:
                return

    def _await_queue(self) -> None:
        """Wait until the steward has opened the queue; its calls may be slow, too."""
        while self._queue is None:
            self.simulation.sleep(0.2)

    # What goes wrong ------------------------------------------------------------------------------

    def _befall(self, event: Event) -> None:
        if self.ending:
            return
        names = [n for n in self.stopping if machine_of(n) == event.target]
        process = self.simulation.processes[names[-1]] if names else None
        now_us = self.simulation.now_us
        if event.kind == "set":
            self._set(event.value)
        elif event.kind in _STEERED:
            self.simulation.spawn(self._steward, partial(self._steer, event), event.kind)
        elif event.kind in STRANGERS:
            stranger = self.simulation.process(f"{event.kind}{event.number}")
            self.simulation.spawn(stranger, partial(self._beat, stranger, event), event.kind)
        elif process is None or process.dead:
            return
        elif event.kind == "crash":
            self._crash(process)
        elif event.kind == "freeze":
            self.history.reached.add("frozen")
            self.simulation.freeze(process, event.seconds)
            self.history.freezes.append((now_us, process.frozen_until_us, process.name))
        elif event.kind == "steps":
            process.shift_us += round(event.value * 1e6)
            self.history.reached.add("clock stepped")
        elif event.kind == "outage":
            process.trouble_until_us = now_us + round(event.seconds * 1e6)
            self.history.reached.add("store out of reach")
        elif event.kind == "leave":
            self.stopping[process.name] = True
            machine = self.machines[event.target]
            after_us = round((event.seconds or machine.deadline_s + 1.0) * 1e6)
            self.simulation.scheduler.at(now_us + after_us, partial(self._return, machine))
        elif event.kind == "fork":
            self._fork(process, event)
        else:
            self._prepare(process, event)

    def _prepare(self, process: Process, event: Event) -> None:
        """Plan a fault for the next call of a verb."""
        if event.kind == "drag":
            process.strikes[event.verb] = partial(self._drag, process, event)
        elif event.kind == "mend":
            process.strikes.pop(event.verb, None)
        elif event.kind in STRUCK:
            process.strikes[event.verb] = partial(self._strike, process, event, count(1))

    def _set(self, seconds: float) -> None:
        """Set the one machine's clock."""
        if seconds:
            self.simulation.step(seconds)
            self.history.sets.append((self.simulation.now_us, self._scheduler.stepped_us))
            self.history.reached.add(f"clock set {'forward' if seconds > 0 else 'back'}")

    def _fork(self, process: Process, event: Event) -> None:
        """Let a fork release leases of a process, and its membership, as if they were its own."""
        chance = random.Random(f"fork/{self.plan.seed}/{event.number}")
        cells, now_us, name = self.simulation.cells, self.simulation.now_us, process.name
        held = [shard for shard, lock in self._leases.items() if self._locks[lock] == name]
        for shard in sorted(shard for shard in held if chance.random() < event.value):
            lock = self._leases.pop(shard)
            if cells.release(shard, lock):
                self.history.leases.append((now_us, f"fork of {name}", "released", shard, lock))
                self.history.forks.append(Fork(now_us, name, shard))
                self.history.reached.add("lease released by a fork")
        engine = self._engine_of(name)
        if engine is not None:
            cells.note(MEMBERS, (QUEUE,), engine.home.member, None, now_us)

    def _beat(self, stranger: Process, event: Event) -> None:
        """Write heartbeats of a member that does not work."""
        self._await_queue()
        store, key = self.simulation.store(stranger), self._queue._home.register.members_key
        begun_us = self.simulation.now_us
        for turn in range(round(event.seconds / EVERY_S)):
            if self.ending:
                break
            with suppress(StoreError):
                store.note(MEMBERS, (key,), {stranger.name: heartbeat_of(event, turn)}, TTL_MS)
            self.simulation.sleep(EVERY_S)
        until_us = self.simulation.now_us
        self.history.strangers.append(Stranger(stranger.name, event.kind, begun_us, until_us))
        self.history.reached.add(f"heartbeat: {event.kind}")

    def _return(self, machine: Machine) -> None:
        if not self.ending:
            self.start(machine)

    def _strike(self, process: Process, event: Event, calls: Iterator[int]) -> int | None:
        """Carry out a planned fault at a call; returns how the call fails, None if it does not."""
        self.history.reached.add(f"struck: {event.kind}")
        if next(calls) >= (event.value if event.kind == "fail" else 1):
            del process.strikes[event.verb]
        if event.kind == "fail":
            return REFUSED
        if event.kind == "lose":
            return process.chance.choice((LOST, UNANSWERED, LATE))
        now_us = self.simulation.now_us
        if event.kind == "stall":
            self.simulation.freeze(process, event.seconds)
            self.history.freezes.append((now_us, process.frozen_until_us, process.name))
        else:
            # The call may take effect before the crash.
            after_us = process.chance.randrange(_CUT_US)
            self.simulation.scheduler.at(now_us + after_us, partial(self._cut, process))
        return None

    def _drag(self, process: Process, event: Event) -> None:
        """Delay a call and its answer, while its process goes on."""
        del process.strikes[event.verb]
        self.history.reached.add(f"dragged: {event.verb}")
        self.simulation.network.on_trouble(process, round(event.seconds * 1e6))
        self.simulation.sleep(event.seconds)
        self.simulation.network.on_trouble(process, 0)

    def _cut(self, process: Process) -> None:
        if not (self.ending or process.dead):
            self._crash(process)

    def _steer(self, event: Event) -> None:
        self._await_queue()
        if event.kind == "lanes":
            before = self._queue.settings.lanes_written
            if self._repeat(partial(self._alter, int(event.value))):
                after = self._queue.settings.lanes_written
                self.history.reached |= {"more lanes"} if after > before else set()
                self.history.reached |= {"fewer lanes"} if after < before else set()
        elif event.kind in _ALTERED:
            self._follow(event)
        elif event.kind == "purge":
            purge = Purge(self.simulation.now_us, 0)
            self.history.purges.append(purge)
            self._repeat(self._queue.purge)
            purge.ended_us = self.simulation.now_us
            purge.before_us = self._queue.settings.purged_before_us
        elif event.kind == "redrive":
            self._redrive()
        elif event.kind == "audit":
            if self._repeat(partial(self._look, self._queue)):
                self.history.reached.add("audited meanwhile")
        elif event.kind == "drop":
            self._drop()
        else:
            self._hold(event)

    def _follow(self, event: Event) -> None:
        """Let leases, or limits, be others."""
        to = f"{round(event.value)}ms" if event.kind == "lease" else json.loads(event.verb)
        if self._repeat(partial(self._queue.alter, **{event.kind: to})):
            self.history.reached.add(_ALTERED[event.kind])

    def _hold(self, event: Event) -> None:
        """Pause the queue, or a part of it, for a while."""
        part = {event.verb: event.target} if event.verb else {}
        if self._repeat(partial(self._queue.pause, **part)):
            self.history.reached.add(f"{event.verb} paused".strip())
        self.simulation.sleep(event.seconds)
        # A call that has set other limits meanwhile has ended the pause.
        with suppress(BadSetting):
            self._repeat(partial(self._queue.resume, **part))

    def _redrive(self) -> None:
        """Redrive, unless a redrive is under way: redrives are to run one at a time."""
        if self._is_redriving:
            return
        self._is_redriving = True
        try:
            self._repeat(self._queue.redrive)
        except KeyTaken:
            self.history.reached.add("left dead, for its name is taken")
        self._is_redriving = False

    def _alter(self, lanes: int) -> None:
        self._queue.alter(lanes=lanes or "auto")

    def _resume(self) -> None:
        self._await_queue()
        self._repeat(self._queue.resume)
        if self.plan.ending:
            self._repeat(partial(self._queue.alter, **self.plan.ending))

    def _write_late(self) -> None:
        """Write a row seconds late, as if its writer had died; only a sweep finds it."""
        self._await_queue()
        now_us = self._scheduler.wall_us()
        due_ms = now_us // 1_000 - _LATE_MS
        layout = self._queue._home.register.layout
        letter = Letter(_LATE_TOKEN, STEWARD, now_us / 1e6)
        begun_us = self.simulation.now_us
        put = Put(letter, STEWARD, begun_us, due_ms * 1_000, body=body_of(letter))
        self.history.puts[_LATE_TOKEN] = put
        row = Row(layout.shard(due_ms, 0), due_ms, row_ids.next(now_us), put.body)
        self.simulation.cells.write(row, birth_us(row.id))

    def _audit(self) -> None:
        for queue in (self._queue, self._queue.dead):
            if self._repeat(partial(self._look, queue)):
                self.history.audits.append(self.history.looks[-1].audit)

    def _look(self, queue: shardq.Queue) -> None:
        begun_us = self.simulation.now_us
        audit = queue.audit()
        self.history.looks.append(Look(begun_us, self.simulation.now_us, audit))

    def _drop(self) -> None:
        """Put a message that is due far ahead, and delete its row without the queue's knowledge."""
        what: Any = body_of(Letter(_DROPPED_TOKEN, STEWARD, 0.0))
        arguments = {"delay": "1h"}
        while True:
            try:
                row = self._queue.put(what, **arguments)._row
            except StoreError as error:
                if error.messages:
                    what, arguments = error.messages[0], {}
                self.simulation.sleep(0.3)
            else:
                break
        self.simulation.cells.drop(row.position)
        now_us = self.simulation.now_us
        written = self.history.written[row.id]
        written.deleted_us, written.deleted_by = now_us, STEWARD
        self.history.dropped[row.id] = now_us
        self.history.reached.add("row lost behind its queue's back")

    def _check_all(self) -> None:
        self._repeat(self._queue.check_all)
