"""The loop of one member of a queue: choose lanes, read them, settle, seal, release.

```
 step ─► settings, clock ─► heartbeat, ranks ─► renew ─► poll, ahead, sweep
   │                            release ◄─ seal ◄─ park, flush ◄───┘
   └─ returns seconds until the next step
```

One thread steps the engine; handlers run in other threads, and use `ready` and `outbox`. An engine
serves the handlers of an in-process consumer (`consumer.py`), or callers of `receive`
(`receiver.py`).
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.groups.gifts import Gifts
from shardq.engine.groups.room import GroupLanes
from shardq.engine.handing.delivery import STORED
from shardq.engine.handing.gate import GATE_S, Gate
from shardq.engine.handing.hanging import Hanging
from shardq.engine.handing.runs import Runs
from shardq.engine.handing.starts import Starts
from shardq.engine.handing.tasks import TaskLines
from shardq.engine.members.member import Member
from shardq.engine.members.part import Part
from shardq.engine.members.sharing import Sharing
from shardq.engine.news import IDLE_US, QUIET_IDLE_US, QUIET_US, Awaited
from shardq.engine.reading.intake import Intake
from shardq.engine.reading.lane import READ_AHEAD_MS, REST_AHEAD_MS, RUNGS
from shardq.engine.reading.lanes import Lanes
from shardq.engine.reading.pages import Pages
from shardq.engine.reading.reader import Reader
from shardq.engine.reading.sweeper import Sweeper
from shardq.engine.rest import Along, Rest
from shardq.engine.storing.outbox import Outbox
from shardq.errors import SchemaNewer, ShardqError, StoreCorrupt, UnknownQueue, UsageError
from shardq.model.ids import row_ids
from shardq.model.settings import WEIGHTED
from shardq.stores.store import NEVER
from shardq.stores.tables import LANES, QUEUES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.engine.handing.waiters import Waiters
    from shardq.engine.reading.lane import Rung
    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.model.settings import Settings
    from shardq.records.membership import Heartbeat
    from shardq.records.together import Together

log = logging.getLogger(__name__)

_BUSY_S = 0.05
_FRESH_US = 500_000
"""How long a member polls at short intervals after a row arrived in a queue with groups."""
_REST_US = 1_000_000
"""A queue rests if no new row was seen for this long: reads then meet no tombstones."""
_IDLE_TOLD_S, _IDLE_BESIDE_S, _IDLE_REST_S = 3.0, 1.5, 10.0
"""Seconds between polls if the store reports changes, or reads for many queues find new rows.

The first applies to a lone member; settings and heartbeats are due as often. The second applies
beside other members: a member that leaves waits for the heartbeats of the others. The third applies
at rest, when the reads for many queues find new settings and members as well.
"""
_BACK_MS, _BACK_US = 2_000, 7_000_000
"""A queue at rest awaits rows due up to `_BACK_MS` before its last poll, and further back if it saw
no row for `_BACK_US`."""
_BARREN_US = 80_000_000
"""If no row was seen for this long, one read reaches as far back as the deepest rung of the ladder:
there are no tombstones to pass."""
_STUCK_US = 5_000_000
_STUCK_LONG_US = 30_000_000
_SEAL_US = 1_000_000
_LINGER_MS = 5_000
_KEPT_MS = 60_000
"""How long a group lane's lease is kept after its last row: the next row may arrive soon."""
_ARRIVE_US = 500_000
_EXPECTED_US = 2_000_000
"""How long after a caller of `receive` the next one is expected. After that, other members may take
the lanes."""


class Engine(Part):
    """One member's work on one queue.

    Args:
        home: The queue's home, of this member alone.
        prefetch: The most rows, without those of groups, that are read and not settled.
        threads: Handler slots; 0 for callers of `receive`.
        isolated: True to read only minutes that ended at least the queue's offset ago.
        caller_away_us: For callers of `receive`: returns for how long no caller has waited; 0 if
            one waits.
        callers_since: Returns when each waiting caller began to wait, time since boot.
        on_wake: Called with the seconds until the next step is needed; None if `News.wait` is used.
        on_dead: Called with each row that this engine's burials write to the dead-letter queue.
        put_rate: Returns how many messages are put a second.
        along: Fires the queue's schedules in each step of the engine; None if nothing fires them.
        waiters: The handlers' threads, if they wait for rows of other queues too.
    """

    def __init__(
        self,
        home: QueueHome,
        *,
        prefetch: int,
        threads: int,
        isolated: bool = False,
        caller_away_us: Callable[[], int] | None = None,
        callers_since: Callable[[], Sequence[int]] | None = None,
        on_wake: Callable[[float], None] | None = None,
        on_dead: Callable[[Row], object] | None = None,
        put_rate: Callable[[], float] = lambda: 0.0,
        along: Along | None = None,
        waiters: Waiters | None = None,
    ) -> None:
        self.home = home
        self._caller_away_us = caller_away_us
        self._on_dead = on_dead
        self._turn = locks.new()
        self._is_parents = False
        locks.in_child(self, Engine._begin_child)
        member = Member(
            home,
            prefetch=prefetch,
            threads=threads,
            isolated=isolated,
            on_wake=on_wake,
            waiters=waiters,
        )
        super().__init__(member)
        self.membership, self._presence = member.membership, member.presence
        self.news, self.memory, self.ready = member.news, member.memory, member.ready
        self.leases, self.courier, self.failures = member.leases, member.courier, member.failures
        # Each part uses parts that are made before it.
        self.groups = GroupLanes(member)
        self.outbox = Outbox(member, self.groups)
        self.intake = Intake(member, self.groups)
        self._gate = Gate(home, self.ready.waiters.lock, threads, self.outbox.count_at_handlers)
        self.starts = Starts(member, self.outbox)
        self._tasks = TaskLines(member, self.outbox, self.starts.has_begun)
        self._apply_limits()
        self._hanging = Hanging(member, self.outbox)
        self.pages = Pages(member)
        self.reader = Reader(member, self.intake, self.outbox, self.groups, self.pages)
        self.sweeper = Sweeper(member, self.intake, self.reader, self.groups, self.pages)
        self.lanes = Lanes(member, self.intake, self.groups, self.reader, self.pages, put_rate)
        self._gifts = Gifts(member, self.groups, self.lanes, self.outbox)
        self.sharing = Sharing(member, self.outbox, self.starts.has_begun, callers_since)
        self.rest = Rest(
            member, self.intake, self.starts, self.outbox, self.groups, self.sweeper, along
        )
        self._arrived_us: int | None = None
        self._is_arriving = self._is_leaving = self._is_stuck = False
        self._reread_for = self._sealed_us = 0
        self._clock_steps = self._clock.steps
        self._runs: Runs | None = None
        self._settings = home.register.settings
        self._former_us = self._settings.former_until_us
        self._progress = (0, self._clock.boot_us())

    # Loop -----------------------------------------------------------------------------------------

    def step(self) -> float:
        """Do all work that is due now.

        Returns:
            Seconds until the next step is needed.

        Raises:
            StoreUnavailable, StoreTimeout: Nothing is lost; step again after `back_off()`.
            UnknownQueue: If the queue has been dropped.
            ClockError: If the clock is too far off.
            UsageError: In a forked child: the engine is the parent's.
        """
        locks.refuse_within(self._turn)
        with self._turn:
            return self._step()

    def _step(self) -> float:
        if self._is_parents:
            raise UsageError(
                f"what reads queue {self._register.name!r} here is of the process that this one "
                f"was forked from; make another one."
            )
        if self.home.meter.is_on:
            # Begin to measure before this step hands out any row.
            self._measure()
        if rest_us := self.news.begin_step():
            self.flush()
            # The flush took a part of the time. Else the next poll would be later by each flush.
            rest_us -= self._clock.boot_us() - self.news.stepped_us
            rest_s = max(rest_us / 1e6, 0.0)
            # The outcomes that a flush leaves are acks that wait for a poll.
            return rest_s if self.outbox.is_empty else min(rest_s, _BUSY_S)
        # Watch the handlers first: if the store fails later in this step, the log still names those
        # that hang.
        self.watch()
        self._follow_clock()
        if self.rest.is_brief():
            new = self._work(self._read_briefly) if self.rest.is_over() else 0
            self.release_idle()
            return self._delay(new, is_open=True)
        self.lanes.quiet.follow(has_news=self.news.is_of_others)
        settings = self._follow_settings()
        self._watch_progress()
        is_open = not (settings.paused or self._is_stuck)
        away_us = self._caller_away_us() if self._caller_away_us is not None else 0
        is_wanted = is_open and away_us < _EXPECTED_US
        # Without a caller take no more lanes, as their rows would wait. Keep those that are held,
        # as the next caller is likely to come soon.
        self.lanes.only_keeps = away_us > 0 and bool(self.membership.others)
        self._presence.keep()
        is_anew = self._beat(demand=is_wanted and not (self._is_new() or self._is_leaving))
        if self._bury_dead() or is_anew or self.lanes.turn_has_changed():
            # A member without demand gives its lanes to members with demand.
            self.lanes.assign(is_reading=is_wanted or (is_open and not self.membership.others))
            self._release_group_lanes()
        if self._register.settings is not self._settings:
            # The heartbeats led to newer settings. End this step, as its rest may take long, and
            # apply the settings in the next one.
            return 0.0
        new = self._work(self._read if is_open else None)
        if is_open:
            self._seal()
        self.release_idle()
        if self.home.stats.is_due():
            self.home.stats.keep()
        self.news.end_step()
        return self._delay(new, is_open=is_open)

    def _follow_settings(self) -> Settings:
        """Read the queue's settings, if it is time, and apply them from this step on.

        Raises:
            UnknownQueue: If the queue has been dropped.
        """
        self._register.refresh()
        settings = self._register.settings
        # Another user of the register may have read them first.
        if settings is not self._settings:
            has_changed, self._settings = settings != self._settings, settings
            if has_changed:
                self._on_settings()
        if settings.dropped:
            raise UnknownQueue(f"queue {self._register.name!r} has been dropped.")
        if settings.former_until_us != self._former_us:
            raise UnknownQueue(
                f"queue {self._register.name!r} has been dropped, and made anew since; start again "
                f"to work on that one."
            )
        return settings

    def _follow_clock(self) -> None:
        """Check the clock; if somebody has set it, release all lanes, and all rows not yet begun.

        This step then takes lanes anew. It reads them from the new now less the queue's offset, or
        from the ends of their seals if these are earlier.
        """
        self._clock.measure(self._store)
        if not self._store.is_local or self._clock.steps == self._clock_steps:
            return
        row_ids.turn_back(self._clock.now_us())
        # Read the settings before any row is made by the new clock: if it was set back, the row may
        # be older than a purge.
        self._register.refresh(force=True)
        self.intake.keep([], dict)
        self._clock_steps = self._clock.steps
        self.sweeper.begin_in_time()
        self.lanes.begin_in_time()

    def _work(self, read: Callable[[], int] | None) -> int:
        """Call `read`, unless it is None, and store outcomes; returns how many new rows it read."""
        try:
            self.pages.renew()
            if lost := self.pages.lost:
                self.groups.reread_lost(lost)
                self.intake.give_up(lambda one: one.lease in lost)
                lost.clear()
            new = 0 if read is None else read()
            if self.ready.gate is not None or self._tasks.is_busy:
                self._keep_limits()
            return new
        finally:
            # Outcomes are stored even if a read fails.
            self.starts.keep(is_leaving=self._is_leaving)
            self.outbox.park_overdue()
            self.flush()

    def _keep_limits(self) -> None:
        """Take shares of limits, and move the jobs that wait for long."""
        # The tasks first: a pause that they store closes the gate until it has read the settings.
        has_changed = self._tasks.keep()
        if self.ready.gate is not None:
            has_changed = self._gate.keep(self.ready.due) or has_changed
        if has_changed:
            self.ready.reopen()
        self._tasks.postpone()

    def _leave_limits(self) -> None:
        """Give shares of limits back, as no more deliveries begin here."""
        self._gate.leave()
        self._tasks.leave()

    def _read_briefly(self) -> int:
        with self.news.looking() as near:
            self.reader.wakes_all |= near is not None
            new = self.reader.poll()
        self.groups.serve(self.intake.accept)
        if self.rest.take_behind():
            self.sweeper.look_back(near)
        return new

    def _read(self) -> int:
        self.lanes.quiet.look(rests=self._rests)
        self.sweeper.look_behind_seals()
        new = 0
        if self._rests and self._needs_no_read():
            self.sweeper.sweep(None)
        else:
            new = self._read_lanes(self.sweeper.rung_due())
        self.groups.serve(self.intake.accept)
        self.lanes.guard()
        self._gifts.step()
        self.sharing.share()
        return new

    def _read_lanes(self, rung: Rung | None) -> int:
        """Read rows that have come due, look ahead, and sweep; returns how many rows are new."""
        with self.news.looking() as near:
            self.reader.wakes_all |= near is not None
            read_ms, now_ms = self.reader.read_ms, self._clock.now_ms()
            if self.memory.known:
                new = self.reader.poll()
            else:
                # At rest one read serves as poll, first rung of the sweep, and look ahead: a read
                # costs 2 ms of CPU. Polls are rarer then: the rung may be late by one poll, so its
                # read reaches further back by that time. The read serves the second rung too if no
                # lane could then be passed over.
                longer_ms = (RUNGS[1] if self.awaited() is None else RUNGS[2]).depth_ms
                if self._rests and self._clock.boot_us() - self.news.seen_us >= _BARREN_US:
                    longer_ms = NEVER
                is_watched = self.news.is_watched and not self.news.is_looked_at
                ahead_ms = REST_AHEAD_MS if is_watched else READ_AHEAD_MS
                if rung is not None and rung.depth_ms < longer_ms:
                    back_ms = rung.depth_ms + round(self._idle_s * 1e3)
                    new = self.reader.poll(back_ms, ahead_ms=ahead_ms)
                    self.sweeper.ladder.swept(rung, now_ms)
                    rung = None
                else:
                    new = self.reader.poll(ahead_ms=ahead_ms)
            # `is_behind`: the poll already finds rows that this process has put with a due after
            # the last poll, up to now.
            is_ahead = near is not None and near.last_ms > now_ms
            is_behind = near is not None and near.first_ms <= read_ms
            self.reader.look_ahead(at_once=is_ahead)
            if self.rest.take_behind() or is_behind:
                self.sweeper.look_back(near)
        self.sweeper.sweep(rung)
        return new

    def _needs_no_read(self) -> bool:
        """True if a step at rest need not read, because reads for many queues find new rows.

        Cursors then stay where they are: the step that follows a new row reads on from there.
        """
        since_ms = self._clock.now_ms() - self.reader.since_ms
        is_over = not 0 <= since_ms < min(self._register.layout.minute_ms // 2, RUNGS[-1].every_ms)
        return self.news.is_regular and not (self.news.is_near or is_over)

    def flush(self, *, everything: bool = False) -> None:
        """Store outcomes by `Outbox.flush`; report the dead to `on_dead`, take in moved rows."""
        if self.home.meter.is_on:
            self._measure()
        happened = self.outbox.flush(everything=everything)
        if happened.has_parked:
            self.membership.hurry()
        if self._on_dead is not None:
            for row in happened.dead:
                self._on_dead(row)
        if happened.moved and not (self._isolated or self._register.settings.paused):
            # Take moved rows in before any read. The next flush may settle a row that a read finds,
            # and the row would then be taken in a second time.
            self.intake.accept_moved(happened.moved)

    def _measure(self) -> None:
        """Count how long handlers have run; the first call begins the count."""
        endings = self.outbox.endings
        if endings.on_end is None:
            self._runs = Runs(self.home, endings)
            endings.on_end = self._runs.note
        if self._runs is not None:
            self._runs.count()

    def watch(self) -> None:
        """Log which handlers hang, and how many failures the log had no room for."""
        self.failures.flush()
        self._hanging.look()

    def take_in(self, noted: Together) -> bool:
        """Take in the queue's record and heartbeats, read just now; True if a step must follow."""
        register = self._register
        record = noted.notes(QUEUES, (), [register.name]).get(register.name)
        if record is None:
            return True
        try:
            register.take_in(record)
        except (SchemaNewer, StoreCorrupt):
            # The step meets the same error, and reports it.
            return True
        return self.membership.take_in(noted) or register.settings is not self._settings

    def awaited(self) -> Awaited | None:
        """The place where the next new rows of a queue at rest will appear.

        None if only a step can find new rows: a row was seen lately, work is to be done, another
        member has a lane, or a lane is a group lane, of which there may be many.
        """
        news = self.news
        rests = self._clock.boot_us() - news.seen_us >= _REST_US and not (
            news.has_failed or news.is_leaving or news.is_there
        )
        if not (rests and self.is_quiet()):
            return None
        # Do not read again and again past the tombstones of rows that were settled just now.
        is_long = self._clock.boot_us() - news.seen_us >= _BACK_US
        rows = self.reader.awaited(RUNGS[1].depth_ms if is_long else _BACK_MS)
        if rows is None:
            return None
        return Awaited(rows, self._register.name, self.membership.key)

    def is_quiet(self) -> bool:
        """True if all rows that are due in this member's lanes have been read and settled."""
        return self.reader.is_caught_up() and self.outbox.is_empty

    def begin_to_leave(self) -> None:
        """Let the next step report that this member leaves: other members then get its due rows.

        Later steps still read its lanes, to give their rows away, so that no message waits until a
        lane has its next reader.
        """
        self._is_leaving = self.lanes.is_leaving = self.sharing.is_leaving = True
        self.news.is_leaving = True

    @property
    def is_relied_on(self) -> bool:
        """True until every open member has assigned the lanes without this member, which leaves."""
        beats = self.membership.beats
        told = (beats[name] for name in self.membership.others)
        return any(self.home.member not in one.parted for one in told)

    def retire(self) -> None:
        """Release rows that have not begun to other members, while handlers still run."""
        self.begin_to_leave()
        self.intake.give_up(lambda _: True)
        self.intake.keep([], dict)
        try:
            self._leave_limits()
            self.starts.keep(is_leaving=True)
            # Other members may try to lease every 50 ms: first release the leases that need no
            # park.
            self.release_idle()
            self.membership.leave()
        except ShardqError as error:
            log.info("queue %s: others take over a little later: %s", self._register.name, error)

    def close(self) -> None:
        """Settle deliveries that have ended, park the others uncounted, and release all leases.

        In a forked child it does nothing: deliveries and leases are the parent's.

        Raises:
            StoreUnavailable, StoreTimeout: Messages that were not settled are delivered again when
                the leases have expired.
        """
        locks.refuse_within(self._turn)
        if self._is_parents:
            return
        with self._turn:
            self._close()

    def _begin_child(self) -> None:
        self._is_parents = True

    def _close(self) -> None:
        self.ready.stop()
        self.intake.give_up(lambda _: True)
        self.flush(everything=True)
        for lease in self.leases.held():
            # With the lease over, a careful delivery that is about to begin is given up before its
            # attempt is recorded.
            lease.deadline_us = 0
        self.outbox.withdraw()
        self.outbox.park_all(counted=False)
        self.intake.keep([], dict)
        self._leave_limits()
        self.starts.keep(is_leaving=True)
        # Flush once more: deliveries may have ended during the parks, and the next owners of group
        # lanes need notes.
        self.flush(everything=True)
        self.leases.release([lease.shard for lease in self.leases.held()])
        self.membership.leave()
        self._presence.leave()
        self.home.stats.close()
        self.log_rest()

    def log_rest(self) -> None:
        """Log now what `watch` would log later. It may be called again."""
        self.failures.flush(everything=True)
        self._hanging.look(everything=True)

    def let_go(self) -> int:
        """After a permanent error, try to release the leases under which no handler runs.

        Returns:
            How many deliveries have begun here whose outcomes are not stored.
        """
        held = self.leases.held()
        for lease in held:
            # As in `close`: a careful delivery is given up before its attempt is recorded.
            lease.deadline_us = 0
        begun = self.outbox.handed_out()
        running = {one.lease.shard for one in begun if not (one.has_ended or one.is_claim)}
        idle = [lease.shard for lease in held if lease.shard not in running]
        self.groups.drop(shard.lane for shard in idle)
        try:
            self.leases.release(idle)
            self.membership.leave()
        except ShardqError as error:
            log.info("queue %s: others take over later: %s", self._register.name, error)
        return sum(one.stage is not STORED for one in begun)

    # Members --------------------------------------------------------------------------------------

    def _beat(self, *, demand: bool) -> bool:
        """Write a heartbeat and read the others; True if lanes must be assigned anew."""
        sharing, membership = self.sharing, self.membership
        sharing.look()
        has_changed = membership.beat(
            self._told,
            demand=demand,
            free=0 if self._is_leaving else sharing.free,
            surplus=sharing.surplus,
            oldest_ms=sharing.oldest_ms,
            begun=self.outbox.begun,
            given_us=self.ready.given_us,
            lanes=self.lanes.told,
            leaving=self._is_leaving,
            at_rest=self._rests and not membership.others,
        )
        if membership.version > max(self._register.version, self._reread_for):
            # Reread the settings once for each version that heartbeats report, as a heartbeat may
            # be wrong. The next step applies the settings.
            self._reread_for = membership.version
            self._register.refresh(force=True)
        return has_changed

    def _is_new(self) -> bool:
        """True if this member is not open yet, because it has not yet read its future lanes.

        The present readers of these lanes read on meanwhile, for half a second at most.
        """
        now_us = self._clock.boot_us()
        if self._arrived_us is None:
            self.membership.look()
            self._arrived_us, self._is_arriving = now_us, bool(self.membership.others)
        elif self._is_arriving:
            polled = self.memory.polled
            has_read = all(lane.retry_ms or self.reader.is_current(lane) for lane in polled)
            self._is_arriving = not has_read and now_us - self._arrived_us < _ARRIVE_US
        return self._is_arriving

    def _told(self) -> Heartbeat:
        return self.sharing.told(
            self.lanes.told,
            gave=self.lanes.given,
            version=self._register.version,
            holder=self.leases.holder,
            limited=self._limited(),
        )

    def _limited(self) -> dict[str, int]:
        held_back = self.ready.held_back
        limited = self.groups.held_back() | self._tasks.held_back()
        return limited | ({"queue": held_back} if held_back else {})

    def _bury_dead(self) -> bool:
        """Remove members of this machine that are dead; True if any was removed."""
        members = self.membership
        for holder in members.take_returned():
            self._presence.doubt(holder)
        dead = self._presence.dead_of({name: beat.holder for name, beat in members.beats.items()})
        if dead:
            members.bury(dead)
        return bool(dead)

    def _apply_limits(self) -> None:
        gate = self._gate if self._gate.is_on else None
        if gate is not self.ready.gate:
            self.ready.gate = gate
            self.ready.reopen()
        self._tasks.follow()
        self.ready.is_weighted = self._register.settings.priorities == WEIGHTED

    def _on_settings(self) -> None:
        settings = self._register.settings
        self._apply_limits()
        if self.groups.has_new_limits:
            self.groups.limit_anew()
        self._clock.check(settings.offset_ms)
        self.leases.ttl_ms = settings.lease_ms
        self.lanes.assign_anew()
        if settings.paused:
            # Give the rows up at once: lanes are left only after a heartbeat, which the store may
            # refuse for long.
            self.intake.give_up(lambda _: True)
        if settings.purged_before_us:
            self.intake.give_up(lambda one: one.row.entered_us < settings.purged_before_us)
            self.groups.wake()

    def _watch_progress(self) -> None:
        """While rows are due and no handler slot is free, release the lanes.

        They are released after 5 s if another member has a free slot and the due rows cannot be
        shared, else after 30 s.
        """
        begun = self.outbox.begun
        now_us = self._clock.boot_us()
        moving = begun != self._progress[0] or self.outbox.slots_taken < self._threads
        if moving or not self._threads:
            self._progress = (begun, now_us)
            self._is_stuck = False
            return
        stuck_us = now_us - self._progress[1]
        if (
            not self._is_stuck
            and stuck_us >= _STUCK_US
            and (stuck_us >= _STUCK_LONG_US or self.sharing.is_barred)
            and self.membership.others
            and self.ready.has_due()
        ):
            log.info(
                "queue %s: no free handler for %d s; leaving its rows",
                self._register.name,
                stuck_us // 1_000_000,
            )
            self._is_stuck = True
            self.flush()
            self.outbox.park_all(counted=True)

    # Shards ---------------------------------------------------------------------------------------

    def _seal(self) -> None:
        now_us = self._clock.boot_us()
        if now_us - self._sealed_us < _SEAL_US:
            return
        self._sealed_us = now_us
        sealed = self.sweeper.sealable()
        if sealed:
            self._store.note(LANES, (self._register.name,), sealed)

    def _release_group_lanes(self) -> None:
        """Release group lanes that other members read now: the rest of a step may take long."""
        lanes, rows = self.memory.lanes, self.memory.leased_rows
        is_of_groups = self._register.layout.is_of_groups
        held = [lease.shard for lease in self.leases.held() if is_of_groups(lease.shard.lane)]
        self.leases.release(
            [shard for shard in held if shard.lane not in lanes and shard not in rows]
        )

    def release_idle(self) -> None:
        """Release leases of shards without rows in memory, if no more rows are expected in them."""
        layout, memory = self._register.layout, self.memory
        now_ms = self._clock.now_ms()
        over_ms, kept_ms = now_ms - _LINGER_MS, now_ms - _KEPT_MS
        idle = []
        for lease in self.leases.held():
            shard = lease.shard
            if shard in memory.leased_rows:
                continue
            lane = memory.lanes.get(shard.lane)
            if layout.is_of_groups(shard.lane):
                if lane is None or not (
                    self.groups.is_needed(lane.number) or lane.seen_ms > kept_ms
                ):
                    idle.append(shard)
                continue
            end_ms = layout.end_ms(shard.minute)
            if lane is None or lane.quiet or (end_ms <= over_ms and lane.cursor_ms >= end_ms - 1):
                idle.append(shard)
        self.leases.release(idle)

    def _delay(self, new: int, *, is_open: bool) -> float:
        if is_open and self.reader.is_lagging():
            return 0.0
        if new:
            self.news.seen_us = self.news.stepped_us
        if is_open and self.membership.is_awaited:
            return 0.0
        is_busy = (
            new
            or self._is_fresh
            or not self.outbox.is_empty
            or self.sharing.is_awake
            or self._is_leaving
            or self.memory.is_eager()
        )
        seconds = _BUSY_S if is_busy else self._idle_s
        if self.ready.gate is not None or self._tasks.is_busy:
            seconds = min(seconds, GATE_S)
        if is_open and self.news.is_watched and not self._rests:
            # The last look ahead missed a row that was moved since to be due within a second: the
            # next look must not be late.
            seconds = min(seconds, self.reader.ahead_s)
        if is_open:
            until_head_ms = self.groups.next_ms() - self._clock.now_ms()
            seconds = max(min(seconds, until_head_ms / 1e3), 0.001)
        if not (is_open and self.memory.known):
            return seconds
        until_sweep = (self.sweeper.next_sweep_ms() - self._clock.now_ms()) / 1e3
        return max(min(seconds, until_sweep), 0.001)

    @property
    def _is_fresh(self) -> bool:
        """True if rows of groups arrived lately, and the store does not report changes.

        Another process is likely to settle a claimed head soon; the head's group waits for the note
        of that.
        """
        news = self.news
        is_late = news.is_watched or news.stepped_us - news.seen_us >= _FRESH_US
        return not is_late and self.groups.is_owner

    @property
    def _rests(self) -> bool:
        """True if the queue rests, and reads for many queues find its new rows."""
        return self.news.is_looked_at and self.awaited() is not None

    @property
    def _idle_s(self) -> float:
        """Seconds from poll to poll at rest."""
        settings = self._settings
        # Steps renew leases and claims: several steps must fit into the life of a lease or claim.
        renew_s = settings.lease_ms / 6_000 if self.leases.held() else math.inf
        if self._threads:
            renew_s = min(renew_s, settings.visibility_ms / 6_000)
        rests = self._rests
        if self.news.is_watched or rests:
            idle_s = _IDLE_BESIDE_S if self.membership.others else _IDLE_TOLD_S
            may_rest = self.membership.may_rest and not self.membership.others
            if rests and may_rest and not self.lanes.auto.may_fall:
                # Steps search quiet lanes, and lanes are awaited for a minute at most.
                half_s = self._register.layout.minute_ms / 2_000
                idle_s = min(_IDLE_REST_S, self.lanes.quiet.search_s or idle_s, half_s)
            return min(idle_s, renew_s)
        is_quiet = self.news.stepped_us - self.news.seen_us >= QUIET_US
        return (QUIET_IDLE_US if is_quiet else IDLE_US) / 1e6
