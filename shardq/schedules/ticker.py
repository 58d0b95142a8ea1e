"""Fires the schedules of one queue: one in each process that has a consumer of the queue.

```
 step ─► engine of <queue>.schedules ─► ticks that are due begin, all by few LWTs
      ─► planned: jobs with fixed ids, and where each tick goes on ─► both in one move
      └─ a tick that is late ─► has a firing of it been written? ─┬─ yes, or maybe ─► written again
                                                                 └─ no ─► placed anew, due now
```

Leases decide which process fires a tick, as for any message. What a firing comes to, `tick.py`
says.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.engine import Engine
from shardq.engine.handing.hanging import span_text
from shardq.engine.handing.outcome import ACKED, GIVEN_UP, LEFT
from shardq.errors import (
    KeyTaken,
    ShardqError,
    StoreCorrupt,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
)
from shardq.lifecycle.fate import Fate, Outcome, Step
from shardq.lifecycle.home import QueueHome
from shardq.lifecycle.keyed import Keyed
from shardq.model import ids, names
from shardq.model.message import AS_NEW, Row, placed, write_headers
from shardq.model.times import moment_of
from shardq.records.keyrow import own_key
from shardq.records.register import Register
from shardq.schedules.listing import Listing
from shardq.schedules.minder import Minder
from shardq.schedules.policy import MISSED_MS
from shardq.schedules.tick import Tick, headers_of, id_of, is_plain, lead_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.rest import Rest
    from shardq.lifecycle.settle import Settler
    from shardq.model.shard import Position
    from shardq.schedules.tick import PlannedFiring

log = logging.getLogger(__name__)

PREFETCH = 2_000
_OPEN_S = 1.0
"""How often it is looked whether the queue has schedules by now; the settings are in memory."""
_AGAIN_US = 5_000_000
"""After how long a thread that could not be started is tried again."""
_HANGS_US = 10_000_000
"""A trigger that takes longer than this is reported as hanging."""
_TURN_MAX = 500
"""Ticks that are fired between two looks at the leases."""
_SWEPT_MS = 400
"""A row that is no later is found by the next sweep of the last half second."""
_BORN_US = 1_000_000
_HELD = "1h"
"""How long the key of a run is held after its end: longer than a firing can be repeated."""


class _Plan:
    """What a tick that is due comes to.

    Attributes:
        one: Its delivery.
        tick: It; None where it is damaged.
        aim_ms: As of when it is fired, epoch milliseconds.
        firings: The fire times of which jobs are put.
        after: The tick after that; None where it does not fire.
        step: Its next row, and the jobs that are written with it; None likewise.
        outcome: What its delivery comes to; None while that is not decided.
    """

    __slots__ = ("after", "aim_ms", "firings", "one", "outcome", "step", "tick")

    def __init__(self, one: Delivery) -> None:
        self.one = one
        self.tick: Tick | None = None
        self.aim_ms = one.row.due_ms
        self.firings: list[PlannedFiring] = []
        self.after: Tick | None = None
        self.step: Step | None = None
        self.outcome: Outcome | None = None

    @property
    def places(self) -> list[Position]:
        """Where the rows are that its firing writes."""
        return [row.position for row in (self.step.new, *self.step.beside)] if self.step else []


class Ticker:
    """Fires the schedules of one queue.

    Args:
        home: The queue's.
        on_put: Called with the first and the last due, epoch milliseconds, of what was put.
    """

    def __init__(self, home: QueueHome, on_put: Callable[[int], object]) -> None:
        self._home = home
        self._on_put = on_put
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._engine: Engine | None = None
        self._minder: Minder | None = None
        self._layout = home.register.layout
        self._own_layout = home.register.layout
        self._listing = Listing(home.store, home.clock, home.register.name)
        self._settler = home.settler
        self._keyed = Keyed(home)
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._again_us = 0
        self._asked: tuple[str, int] | None = None
        """The schedule whose trigger is asked right now, and since when."""
        self._told: tuple[str, int] | None = None
        self._idle = locks.condition(locks.new())

    # Its thread -----------------------------------------------------------------------------------

    def follow(self) -> None:
        """Step in a thread of its own until `stop`, once the queue has schedules: most have none.

        To be called with each turn of the consumer. A thread that cannot be started, or that a
        fault has ended, is tried again.
        """
        if self._is_stopping or not self._register.settings.schedules_used:
            return
        self._tell_of_hanging()
        if self._thread is not None and not self._thread.is_alive():
            self._thread, self._again_us = None, self._clock.boot_us() + _AGAIN_US
            log.error(
                "schedules of queue %s: their thread has ended by an error of its own, and is "
                "started again in %s.",
                self._register.name,
                span_text(_AGAIN_US),
            )
        if self._thread is not None or self._clock.boot_us() < self._again_us:
            return
        name = f"shardq-{self._register.name}-schedules"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._again_us = self._clock.boot_us() + _AGAIN_US
            log.error(  # noqa: TRY400 - it says all that there is to say
                "schedules of queue %s do not fire in this process: %s; lower `threads`, or raise "
                "what limits it (ulimit -u, ulimit -v).",
                self._register.name,
                error,
            )
        else:
            self._thread = thread

    def _tell_of_hanging(self) -> None:
        """Log a trigger that does not return, once."""
        if (asked := self._asked) is None or asked is self._told:
            return
        name, since_us = asked
        if self._clock.boot_us() - since_us >= _HANGS_US:
            self._told = asked
            log.warning(
                "schedule %s of queue %s: its trigger has not said for %s when it fires next, and "
                "the others of this queue wait for that; mend it, or remove the schedule and start "
                "this process again.",
                name,
                self._register.name,
                span_text(_HANGS_US),
            )

    def stop(self) -> None:
        """Ask for an end. A signal's handler may do so."""
        self._is_stopping = True
        if self._engine is not None:
            self._engine.news.wake()

    def join(self, seconds: float) -> None:
        """Wait for the end of its thread, which releases what it holds.

        Args:
            seconds: At most so long: a user's trigger may never return.
        """
        thread = self._thread
        if thread is not None and thread.ident is not None:
            with self._idle:
                self._idle.notify()
            thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                delay = self.step()
                engine = self._engine
                if engine is not None:
                    engine.news.wait(delay)
                    continue
                with self._idle:
                    if not self._is_stopping:
                        self._clock.wait(self._idle, delay)
        finally:
            self.close()

    # Turns ----------------------------------------------------------------------------------------

    def rest(self) -> Rest | None:
        """The rest of its engine; None where it has none, for the queue has no schedules."""
        return None if self._engine is None else self._engine.rest

    def step(self) -> float:
        """Fire what is due.

        Returns:
            Seconds until the next turn is needed.
        """
        engine = None
        try:
            if (engine := self._opened()) is None:
                return _OPEN_S
            return self._step(engine)
        except UnknownQueue as error:
            log.info("schedules of queue %s: %s", self._register.name, error)
            self.close()
        except (StoreUnavailable, StoreTimeout) as error:
            return _OPEN_S if engine is None else engine.news.back_off(error)
        except ShardqError as error:
            log.warning("schedules of queue %s do not fire: %s", self._register.name, error)
            self.close()
        return _OPEN_S

    def close(self) -> None:
        """Release what is held. Idempotent."""
        engine, self._engine, self._minder = self._engine, None, None
        if engine is not None:
            try:
                engine.close()
            except ShardqError as error:
                log.info("schedules of queue %s: released later: %s", self._register.name, error)

    def _opened(self) -> Engine | None:
        """The engine of the ticks, where the queue has schedules."""
        if self._engine is None and self._register.settings.schedules_used:
            store, clock, name = self._store, self._clock, self._register.name
            register = Register.open(store, clock, names.schedules_queue(name), {}, create=False)
            ticks = QueueHome(
                self._home,
                register,
                is_timed=True,
                on_beside=self._enter,
                on_found_beside=self._settler.ledger.enter,
            )
            engine = Engine(ticks, prefetch=PREFETCH, threads=1)
            ticks.listeners.append(engine.news.on_put)
            self._minder = Minder(self._home, engine)
            agreed = register.settings.lanes_agreed
            self._own_layout = replace(register.layout, lanes_written=agreed)
            self._engine = engine
        return self._engine

    def _step(self, engine: Engine) -> float:
        delay = engine.step()
        if self._minder is not None and not engine.rest.was_brief:
            self._minder.look()
        due = self._take(engine)
        if due:
            self._fire(engine, due)
            delay = 0.0 if len(due) == _TURN_MAX else delay
        due_ms = engine.ready.next_due_ms()
        if due_ms is None:
            return delay
        return max(0.0, min(delay, (due_ms * 1_000 - self._clock.now_us()) / 1e6))

    def _take(self, engine: Engine) -> list[Delivery]:
        """The ticks that are due and may begin."""
        taken: list[Delivery] = []
        while len(taken) < _TURN_MAX and (one := engine.ready.take()) is not None:
            if engine.leases.is_valid(one.lease):
                taken.append(one)
            else:
                engine.outbox.give_up(one)
        if not taken:
            return taken
        try:
            starts = engine.starts.begin_all([one for one in taken if one.row.key is not None])
        except ShardqError:
            for one in taken:
                engine.outbox.give_up(one)
            raise
        due = []
        for one in taken:
            if one in starts:
                one.run(one.begun_us)
                due.append(one)
            elif one.row.key is None:
                # None of ours: whoever put it here sees it among the dead.
                engine.outbox.finish(one, Outcome(Fate.BURY, reason="no tick of a schedule"))
        return due

    # Firing ---------------------------------------------------------------------------------------

    def _fire(self, engine: Engine, due: Sequence[Delivery]) -> None:
        """Fire ticks that have begun."""
        settings = self._register.settings
        self._layout = replace(self._register.layout, lanes_written=settings.lanes_agreed)
        plans = [_Plan(one) for one in due]
        for plan in plans:
            self._guarded(plan, self._draft)
        if late := [plan for plan in plans if self._is_late(plan)]:
            try:
                self._place_anew(engine, late)
            except (StoreCorrupt, StoreTimeout, StoreUnavailable) as error:
                log.info("schedules of queue %s: read again: %s", self._register.name, error)
                for plan in late:
                    plan.outcome = GIVEN_UP
        for plan in plans:
            if plan.outcome is None:
                self._guarded(plan, self._conclude)
            engine.outbox.finish(plan.one, plan.outcome or LEFT)
        engine.flush()
        if not self._store.is_local:
            steps = [plan.outcome.step for plan in plans if plan.outcome is not None]
            self._to_now(engine.home.settler, [step.new for step in steps if step is not None])

    def _guarded(self, plan: _Plan, work: Callable[[_Plan], None]) -> None:
        """Do something to a tick; where that fails, it is tried again, and says why."""
        try:
            work(plan)
        except UnknownQueue:
            raise
        except ShardqError as error:
            name = own_key(plan.one.row).name
            log.warning("schedule %s of queue %s: %s", name, self._register.name, error)
            plan.outcome = Outcome(Fate.RETRY, None, str(error))

    def _draft(self, plan: _Plan) -> None:
        """What a tick is to fire, and as what it goes on."""
        row = plan.one.row
        name = own_key(row).name
        tick = Tick.read(row.body, f"schedule {name!r} of queue {self._register.name!r}")
        if tick.is_again:
            listed = self._as_listed(tick)
            if listed is None:
                plan.outcome = ACKED
                return
            tick = listed
        plan.tick = tick
        if tick.next_ms is None or tick.definition.paused:
            plan.outcome = self._end(tick, row)
            return
        aim_ms = row.due_ms if tick.aim_ms is None else tick.aim_ms
        if self._store.is_local:
            # A firing is one transaction there: that this tick is here says that it has none.
            aim_ms = max(aim_ms, self._clock.now_ms())
        plan.aim_ms = aim_ms
        lead = lead_of(tick.definition, is_local=self._store.is_local)
        self._asked = (name, self._clock.boot_us())
        try:
            firings, after = tick.fire(aim_ms, lead)
        finally:
            self._asked = None
        plan.firings, plan.after = firings, after
        plan.step = self._step_of(after, row, after.due_ms(aim_ms, lead), aim_ms)
        if is_plain(tick.definition):
            beside = tuple(self._job(tick, firing, aim_ms) for firing in firings)
            plan.step = plan.step._replace(beside=beside)

    def _as_listed(self, tick: Tick) -> Tick | None:
        """A tick that was put again, as the list has it by now; None of one that was removed."""
        definition = tick.definition
        listed = self._listing.read([definition.name]).get(definition.name)
        if listed is None or listed.definition is None:
            return None
        if listed.definition.version == definition.version:
            return tick
        # From when it was listed on; what was before its next one, it has fired.
        listed_ms = listed.definition.version // 1_000
        return tick.of(listed.definition).aimed(max(listed_ms, (tick.next_ms or 0) - 1))

    def _conclude(self, plan: _Plan) -> None:
        """Put what has to be put by key, and let the tick go on."""
        step, tick = plan.step, plan.tick
        if step is None or tick is None:
            return
        if plan.firings and not is_plain(tick.definition):
            if written := list(self._store.find([step.new.position])):
                # A process has died as it fired this: what it has skipped stays so.
                plan.outcome = Outcome(Fate.SNOOZE, step=Step(written[0]))
                return
            after = self._put_all(tick, plan)
            lead = lead_of(tick.definition, is_local=self._store.is_local)
            due_ms = after.due_ms(plan.aim_ms, lead)
            step = self._step_of(after, plan.one.row, due_ms, plan.aim_ms)
        plan.outcome = Outcome(Fate.SNOOZE, step=step)

    def _is_late(self, plan: _Plan) -> bool:
        late_ms = self._clock.now_ms() - plan.aim_ms
        return late_ms > MISSED_MS and plan.step is not None and not self._store.is_local

    def _end(self, tick: Tick, row: Row) -> Outcome:
        """A schedule that never fires again is taken off the list; one that is paused waits on."""
        if tick.definition.paused and tick.next_ms is not None:
            lead = lead_of(tick.definition, is_local=self._store.is_local)
            due_ms = tick.due_ms(self._clock.now_ms(), lead)
            return Outcome(Fate.SNOOZE, step=self._step_of(tick, row, due_ms, row.due_ms))
        self._listing.end(tick.definition)
        return ACKED

    def _job(self, tick: Tick, firing: PlannedFiring, aim_ms: int) -> Row:
        """The row of a firing's job; all of it but a trace follows from the tick's row."""
        definition, layout = tick.definition, self._layout
        name = id_of(definition.name, firing.time_ms)
        group, priority = definition.job.group, definition.job.priority
        lane = layout.named_lane(name, priority) if group is None else layout.group_lane(group)
        since_ms = tick.at_ms(firing.time_ms)
        is_later = since_ms != firing.at_ms and not firing.is_missed
        born_us, purged_us = aim_ms * 1_000 - _BORN_US, self._register.settings.purged_before_us
        if firing.is_missed or firing.at_ms * 1_000 > purged_us:
            # A purge before its time takes none; a later one does, whoever puts it once more.
            born_us = max(born_us, purged_us)
        return Row(
            layout.shard(firing.at_ms, lane),
            firing.at_ms,
            ids.fixed(born_us, f"{self._register.name}/{definition.version}/{name}"),
            definition.job.body,
            write_headers(self._headers(tick, firing, name)),
            name=name,
            group=group,
            since_ms=since_ms if is_later else None,
            priority=0 if group is None else priority,
        )

    def _headers(self, tick: Tick, firing: PlannedFiring, name: str) -> dict[str, str]:
        """The headers of a firing's job, named `name`; its trace is all that a repeat has anew."""
        headers, traces = headers_of(tick, firing), self._home.traces
        return headers if traces is None else traces.created(self._register.name, name, headers)

    def _step_of(self, tick: Tick, row: Row, due_ms: int, aim_ms: int) -> Step:
        """The step of a tick that goes on; its place and id follow from the row that it has."""
        name = tick.definition.name
        made_for = f"{row.shard.queue}/{name}/{tick.next_ms}"
        new = placed(
            row,
            # By its name, so that copies of it, which may be in two lanes, become one.
            self._own_layout.shard(due_ms, self._own_layout.named_lane(name, 0)),
            due_ms,
            ids.fixed_after(row.id, aim_ms * 1_000 - _BORN_US, made_for),
            body=tick.due_at(due_ms)._replace(is_again=False).body(),
            origin_ms=None,
            **AS_NEW | {"first": row.first or row.id},
        )
        return Step(new)

    def _put_all(self, tick: Tick, plan: _Plan) -> Tick:
        """Put what a tick fires, each where what is still there does not forbid it.

        Returns:
            The tick after that.
        """
        after = plan.after or tick
        fired, last_key, previous_ms = tick.fired, tick.last_key, tick.previous_ms
        for firing in plan.firings:
            key = id_of(tick.definition.name, firing.time_ms)
            if self._is_in_the_way(tick, last_key, key):
                continue
            self._put(tick, firing._replace(previous_ms=previous_ms), key)
            last_key = key if tick.definition.job.key is None else None
            fired, previous_ms = fired + 1, firing.time_ms
        after = after._replace(
            fired=fired,
            skipped=after.skipped + after.fired - fired,
            last_key=last_key,
            previous_ms=previous_ms,
        )
        # It was to be the last one, and was not put.
        is_cut = after.next_ms is None and not after.is_spent
        return after.aimed(plan.firings[-1].time_ms) if is_cut else after

    def _is_in_the_way(self, tick: Tick, last_key: str | None, key: str) -> bool:
        """Whether a fire time is skipped for the last run, which is there; or that is cancelled.

        Not where a try before has put its own run.
        """
        overlap = tick.definition.policies.overlap
        if last_key in (None, key) or overlap not in ("skip", "cancel"):
            return False
        last = self._keyed.get(str(last_key))
        if last is None or last.state == "dead":
            return False
        if overlap == "cancel":
            self._keyed.cancel(str(last_key))
            return False
        return self._keyed.get(key) is None

    def _put(self, tick: Tick, firing: PlannedFiring, name: str) -> None:
        """Put the job of a firing under a key, where what it does depends on others.

        Repeated, it meets its own message, or the hold that this has left. Of a message that is
        dead by now the key is free: so it is looked at before.
        """
        job = tick.definition.job
        if job.key is None and self._keyed.get(name) is not None:
            return
        unique_for = _HELD if job.key is None else job.unique_for_ms and f"{job.unique_for_ms}ms"
        with suppress(KeyTaken):
            self._home.producer.put(
                job.body,
                due=moment_of(firing.at_ms),
                priority=job.priority,
                group=job.group,
                headers=self._headers(tick, firing, name),
                id=name,
                key=job.key or name,
                on_conflict=job.on_conflict,  # type: ignore[arg-type] # checked when it was chosen
                unique_for=unique_for or None,
            )

    def _place_anew(self, engine: Engine, plans: Sequence[_Plan]) -> None:
        """Place late ticks anew, due now, under their keys' next generations.

        Not where a process that has died since may have written a firing: that is written again,
        the very same, and what of it is there and late goes to now.
        """
        keys, settler, now_ms = engine.home.settler.keys, engine.home.settler, self._clock.now_ms()
        found = keys.look({own_key(plan.one.row).name for plan in plans})
        places = {plan.one.row.id: plan.places for plan in plans}
        there = settler.still_there({place for some in places.values() for place in some})
        commands, placed = [], []
        for plan in plans:
            row = plan.one.row
            key = found[own_key(row).name]
            has_gone_on = key.at is not None and ids.birth_us(key.at.id) > ids.birth_us(row.id)
            if plan.tick and not (has_gone_on or there.intersection(places[row.id])):
                body = plan.tick.due_at(now_ms).body()
                commands.append(keys.re_place(key, row._replace(body=body)))
                placed.append(plan)
        refused = settler.replace(commands).refused
        # Who has begun the old one, and has stood still since, writes none of it any more.
        settler.delete(
            place
            for plan in placed
            if own_key(plan.one.row).name not in refused
            for place in places[plan.one.row.id]
        )
        for plan in placed:
            plan.outcome = LEFT

    def _enter(self, rows: Sequence[Row]) -> None:
        """What follows a firing: jobs are counted, and those that are late go to now.

        They are recorded only now: a firing that is never written has put none. In the place of a
        process that dies before that, who ends them does so.
        """
        home = self._home
        self._settler.ledger.enter(rows)
        home.stats.add(put=len(rows))
        self._to_now(self._settler, rows)
        dues_ms = [row.due_ms for row in rows]
        for due_ms in {min(dues_ms), max(dues_ms)}:
            home.on_put(due_ms)
            self._on_put(due_ms)

    def _to_now(self, settler: Settler, rows: Sequence[Row]) -> None:
        """Let the next poll find what was written for a time that is past.

        A row of a group keeps its place, and a note leads to it.
        """
        now_ms = self._clock.now_ms()
        # Two copies of a tick that are fired together put the very same: each goes there once.
        late = {row.id: row for row in rows if row.due_ms < now_ms - _SWEPT_MS}.values()
        settler.tell([row for row in late if row.group is not None])
        share = settler.planner.share
        settler.carry_out(
            [share(row, row.shard.lane, after_ms=0) for row in late if row.group is None]
        )
