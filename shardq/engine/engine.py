"""The loop of one member of a queue: which lanes are its own, read them, settle, seal, let go.

```
 step ─► settings, clock ─► heartbeat, ranks ─► renew ─► poll, ahead, sweep
   │                            release ◄─ seal ◄─ park, flush ◄───┘
   └─ returns how long nothing needs it
```

One thread steps it; handlers work beside it through `ready` and `outbox`. In-process consumers
(`consumer.py`) and callers of `receive` (`receiver.py`) share it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.courier import Courier
from shardq.engine.delivery import STORED
from shardq.engine.failures import Failures
from shardq.engine.groups.gifts import Gifts
from shardq.engine.groups.room import GroupLanes
from shardq.engine.hanging import Hanging
from shardq.engine.intake import READ_AHEAD_MS, Intake
from shardq.engine.lane import RUNGS
from shardq.engine.lanes import Lanes
from shardq.engine.lease import Lease, Leases
from shardq.engine.outbox import Outbox
from shardq.engine.reader import Reader
from shardq.engine.ready import Ready
from shardq.engine.rest import Rest
from shardq.engine.sharing import FREE_US, Sharing
from shardq.engine.starts import Starts
from shardq.engine.sweeper import Sweeper
from shardq.errors import ShardqError, UnknownQueue, UsageError
from shardq.lifecycle.settle import Settler
from shardq.model.ids import row_ids
from shardq.records.membership import Membership, member_name
from shardq.records.presence import Presence
from shardq.records.stats import StatsLog
from shardq.stores.tables import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.clock import Clock
    from shardq.engine.waiters import Waiters
    from shardq.model.message import Row
    from shardq.model.settings import Settings
    from shardq.records.membership import Heartbeat
    from shardq.records.register import Register
    from shardq.stores.store import Store

log = logging.getLogger(__name__)

_BUSY_S = 0.05
_IDLE_S = 0.11
"""On Cassandra 0.1 s cost 2.1 % of a core, and a put still comes to its handler in 55 ms."""
_QUIET_S = 0.25
_QUIET_US = 60_000_000
"""A queue in which nothing was seen for so long is polled more seldom."""
_IDLE_WATCHED_S = 0.5
"""Where the store tells of news, a poll that nobody has asked for finds next to nothing."""
_SHARE_MS = 20
_SHARE_LOCAL_MS = 5
"""Longer than a move takes: found by the next poll of who it goes to, not by a sweep."""
_NEWS_S = 0.013
_STORE_US = 10_000
"""How long the first outcome since a flush waits for others that are stored along with it."""
_NEWS_SPACING_US = 2_000
_STUCK_US = 5_000_000
_STUCK_LONG_US = 30_000_000
_SEAL_US = 1_000_000
_LINGER_MS = 5_000
_KEPT_MS = 60_000
"""How long a group lane's lease is kept after the last row: the next may come soon."""
_BACK_OFF_S = (0.1, 5.0)
_ARRIVE_US = 500_000
_EXPECTED_US = 2_000_000
"""For this long after a caller another one is expected; then other members may have the lanes."""


class Engine:
    """One member's work on one queue.

    Args:
        prefetch: The most rows read and not settled, but for those of groups.
        threads: Handler slots; 0 for callers of `receive`.
        isolated: Read only minutes that ended at least the offset ago.
        member: This member's name; made up where None.
        caller_away_us: For callers of `receive`: how long ago the last one was there; 0: one waits.
        callers_since: When each of those that wait began to, time since boot.
        on_wake: Called with the seconds in which the next step is to come; None: `wait` is called.
        waiters: The handlers' threads, where they wait for rows of other queues too.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        *,
        prefetch: int,
        threads: int,
        isolated: bool = False,
        member: str | None = None,
        caller_away_us: Callable[[], int] | None = None,
        callers_since: Callable[[], Sequence[int]] | None = None,
        on_wake: Callable[[float], None] | None = None,
        waiters: Waiters | None = None,
    ) -> None:
        self.member = member or member_name()
        self._store = store
        self._clock = clock
        self._register = register
        self._threads = threads
        self._caller_away_us = caller_away_us
        self._isolated = isolated
        self._turn = locks.new()
        self._is_parents = False
        locks.in_child(self, Engine._begin_child)
        self._lock = locks.new()
        self._news = locks.condition(self._lock)
        self._pace = locks.condition(self._lock)
        self._has_news = self._has_near_news = False
        self._on_wake = on_wake
        self.ready = Ready(clock, register.layout.bands, waiters)
        self.leases = Leases(
            store, clock, self.member, window=prefetch, ttl_ms=register.settings.lease_ms
        )
        self._presence = Presence(store.beside, self.leases.holder, clock)
        self.leases.is_dead = self._presence.is_dead
        self._former_us = register.settings.former_until_us
        key = register.totals_key
        # Of one queue: what it still settles after that was dropped is no other's of the name.
        self.stats = StatsLog(
            store, clock, register.layout, self.member, lambda: key, is_timed=True
        )
        self.settler = Settler(store, clock, register, self.member, self.stats.note_farthest)
        self.courier = Courier(f"shardq-{register.name}-acks", on_return=self.wake)
        self.failures = Failures(clock, register)
        self.groups = GroupLanes(
            store,
            clock,
            register,
            self.leases,
            self.ready,
            self.settler,
            on_purged=self._on_purged,
            on_news=self.wake,
        )
        self.outbox = Outbox(
            clock,
            register,
            self.settler,
            self.groups,
            self.leases,
            self.stats,
            self.courier,
            self.failures,
            member=self.member,
            batch=max(prefetch // 8, 1),
            share_ms=_SHARE_LOCAL_MS if store.is_local else _SHARE_MS,
            isolated=isolated,
            on_news=self.wake,
            on_first=self._on_first,
        )
        self.intake = Intake(
            store,
            clock,
            register,
            self.leases,
            self.ready,
            self.settler.ledger,
            self.groups,
            on_purged=self.outbox.discards.purge,
            on_ended=self.outbox.discards.drop,
            on_put_off=self.outbox.defer,
        )
        self.starts = Starts(
            store, clock, register, self.ready, self.intake, self.outbox, self.settler, self.stats
        )
        self._hanging = Hanging(clock, register, self.outbox)
        self.outbox.intake = self.groups.intake = self.intake
        self.ready.on_take = self.outbox.begin
        self.reader = Reader(
            store,
            clock,
            register,
            self.intake,
            self.ready,
            self.groups,
            prefetch=prefetch,
            isolated=isolated,
            before_read=self._renew,
        )
        self._membership = Membership(store, clock, register.members_key, self.member)
        self.lanes = Lanes(
            store,
            clock,
            register,
            self.intake,
            self._membership,
            self.groups,
            self.reader,
            isolated=isolated,
        )
        self._gifts = Gifts(
            clock, self._membership, self.groups, self.lanes, self.outbox, threads=threads
        )
        self._begin_in_time()
        self.sharing = Sharing(
            clock,
            register,
            self._membership,
            self.intake,
            self.ready,
            self.outbox,
            threads=threads,
            isolated=isolated,
            is_local=store.is_local,
            has_begun=self.starts.has_begun,
            callers_since=callers_since,
        )
        self.ready.on_wait = self._on_free
        self._arrived_us: int | None = None
        self._is_arriving = self._is_leaving = self._is_stuck = self._is_watched = False
        self._reread_for = self._freed_us = self._first_us = self._rested_us = 0
        self.outbox.on_park = self._membership.hurry
        self._settings = register.settings
        self._seen_us = clock.boot_us()
        self._progress = (0, self._seen_us)
        self._fails = self._sealed_us = self._stepped_us = 0
        self._lost: list[Lease] = []
        self._changed_token: int | None = None
        self.rest = Rest(
            store,
            clock,
            register,
            self.starts,
            self.outbox,
            self.leases,
            self._membership,
            self.groups,
            has_news=lambda: self._has_near_news,
            on_news=self.on_put,
            on_swept=lambda at_ms: self.sweeper.was_swept(RUNGS[-1], at_ms),
        )

    # Loop -----------------------------------------------------------------------------------------

    def step(self) -> float:
        """Do all that is to be done now.

        Returns:
            Seconds until the next step is needed.

        Raises:
            StoreUnavailable, StoreTimeout: Nothing is lost; step again after `back_off()`.
            UnknownQueue: If the queue has been dropped.
            ClockError: If the clock is too far off.
            UsageError: If it is the parent's of a forked child.
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
        now_us = self._stepped_us = self._clock.boot_us()
        if now_us < self._rested_us:
            self.outbox.flush()
            rest_s = (self._rested_us - now_us) / 1e6
            # What is left waits for a poll.
            return rest_s if self.outbox.is_empty else min(rest_s, _BUSY_S)
        self._forget_freed()
        # First: a store in trouble keeps nothing from the log.
        self.watch()
        self._follow_clock()
        if self.rest.is_brief():
            new = self._work(self._read_briefly) if self.rest.is_over() else 0
            self.release_idle()
            return self._delay(new, is_open=True)
        self.lanes.follow(has_news=self._has_near_news)
        settings = self._follow_settings()
        self._watch_progress()
        is_open = not (settings.paused or self._is_stuck)
        away_us = self._caller_away_us() if self._caller_away_us is not None else 0
        is_wanted = is_open and away_us < _EXPECTED_US
        # What it took now would wait for its next caller; what it has, one is likely to come for.
        self.lanes.only_keeps = away_us > 0 and bool(self._membership.others)
        self._presence.keep()
        is_anew = self._beat(demand=is_wanted and not (self._is_new() or self._is_leaving))
        if self._bury_dead() or is_anew or self.lanes.turn_has_changed():
            # Who has no use for them now leaves its lanes to those who have.
            self.lanes.assign(is_reading=is_wanted or (is_open and not self._membership.others))
        if self._register.settings is not self._settings:
            # Read with the heartbeats. A step that catches up is long: begin it by what they say.
            return 0.0
        new = self._work(self._read if is_open else None)
        if is_open:
            self._seal()
        self.release_idle()
        if self.stats.is_due():
            self.stats.keep()
        self._fails = 0
        return self._delay(new, is_open=is_open)

    def _follow_settings(self) -> Settings:
        """The queue's settings, which hold from this step on.

        Raises:
            UnknownQueue: If it has been dropped.
        """
        self._register.refresh()
        settings = self._register.settings
        # Whoever shares the register may have read them first.
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

    def _begin_in_time(self) -> None:
        """Make anew what remembers times of the wall clock."""
        clock, register = self._clock, self._register
        self._clock_steps = clock.steps
        self.sweeper = Sweeper(
            clock, register, self.intake, self.reader, self.groups, isolated=self._isolated
        )
        self.lanes.begin_in_time()

    def _follow_clock(self) -> None:
        """Look at the clock; where it was set, release all rows that have not begun, and all lanes.

        This step takes lanes anew, and reads them from the new now less the offset, or from where
        their seals end, if that is earlier.
        """
        self._clock.measure(self._store)
        if self._clock.steps == self._clock_steps:
            return
        row_ids.turn_back(self._clock.now_us())
        # A purge of the time before must be known before anything is born that is older.
        self._register.refresh(force=True)
        self.intake.keep([], dict)
        self._begin_in_time()

    def _renew(self) -> None:
        """Renew the leases whose time has come; what is lost is given up by the next step."""
        self._lost += self.leases.renew()

    def _work(self, read: Callable[[], int] | None) -> int:
        """Read, where lanes are to be read, and store what is done; gives how much is new."""
        try:
            self._renew()
            if self._lost:
                self.intake.give_up(lambda one: one.lease in self._lost)
                self._lost.clear()
            return 0 if read is None else read()
        finally:
            # What cannot be read must not keep what is done from being stored.
            self.starts.keep(is_leaving=self._is_leaving)
            self.outbox.park_overdue()
            self.outbox.flush()

    def _read_briefly(self) -> int:
        self.reader.wakes_all |= self._has_near_news
        new = self.reader.poll()
        self._has_near_news = False
        self.groups.serve()
        if self.rest.take_behind():
            self.sweeper.look_back()
        return new

    def _read(self) -> int:
        self.lanes.look()
        self.sweeper.look_behind_seals()
        rung = self.sweeper.rung_due()
        self.reader.wakes_all |= self._has_near_news
        if self.intake.known:
            new = self.reader.poll()
        else:
            # At rest one read does for poll, first rung and look ahead: a read costs 2 ms of CPU.
            # Polls are rarer then: this rung comes later by as much as one, and reaches further.
            now_ms = self._clock.now_ms()
            if rung is not None and rung.depth_ms < RUNGS[1].depth_ms:
                new = self.reader.poll(rung.depth_ms + round(self._idle_s * 1e3), at_rest=True)
                self.sweeper.was_swept(rung, now_ms)
                rung = None
            else:
                new = self.reader.poll(at_rest=True)
        has_news, self._has_near_news = self._has_near_news, False
        self.reader.look_ahead(at_once=has_news)
        if self.rest.take_behind() or has_news:
            self.sweeper.look_back()
        self.sweeper.sweep(rung)
        self.groups.serve()
        self.lanes.guard()
        self._gifts.step()
        self.sharing.share()
        return new

    def watch(self) -> None:
        """Log what handlers did not log themselves: which hang, and how many failures more."""
        self.failures.flush()
        self._hanging.look()

    def back_off(self, error: Exception) -> float:
        """Seconds to wait after a failed step: doubling, to leave a store in trouble alone.

        But for no longer than a claim of ours can wait: it is to be moved on in its last half.
        """
        least, most = _BACK_OFF_S
        most = min(most, self._settings.visibility_ms / 4_000)
        seconds = min(least * (1 << self._fails), most)
        if self._fails in (0, 6):
            why = str(error).removesuffix(".")
            log.warning("queue %s: %s; trying again", self._register.name, why)
        self._fails = min(self._fails + 1, 10)
        return seconds

    def wait(self, seconds: float) -> None:
        """Wait for the next step, or for news: from this process or, on SQLite, from another."""
        clock = self._clock
        deadline_us = clock.boot_us() + round(seconds * 1e6)
        self._is_watched = watched = self._store.changed() is not None
        while (left_us := self._first_until_us(deadline_us) - clock.boot_us()) > 0:
            with self._lock:
                if self._has_news:
                    break
                clock.wait(self._news, min(left_us / 1e6, _NEWS_S) if watched else left_us / 1e6)
            if watched and self._has_changed():
                self._has_near_news = True
                break
        since_us = clock.boot_us() - self._stepped_us
        if since_us < _NEWS_SPACING_US:
            with self._lock:
                clock.wait(self._pace, (_NEWS_SPACING_US - since_us) / 1e6)
        with self._lock:
            is_for_first = self._first_us and not (self._has_news or self._has_near_news)
            # All but the flush may wait for as long as it would have without.
            self._rested_us = self._until_us(deadline_us) if is_for_first else 0
            self._has_news = False
            self._first_us = 0

    def wake(self) -> None:
        """Let the next step come at once. From any thread."""
        with self._lock:
            self._has_news = True
            self._news.notify()
        if self._on_wake is not None:
            self._on_wake(0.0)

    @property
    def has_news(self) -> bool:
        """True if the next step is to come at once."""
        return self._has_news or self._has_near_news

    def take_news(self, *, is_watched: bool, due_us: int = 0) -> None:
        """A step follows, which nobody has waited for by `wait`.

        Args:
            is_watched: True if `on_change` is called when another process has written.
            due_us: Time since boot until which nothing but an outcome needs a step; 0: it is over.
        """
        with self._lock:
            is_for_first = self._first_us and not self.has_news
            self._rested_us = self._until_us(due_us) if is_for_first and due_us else 0
            self._has_news = False
            self._first_us = 0
            self._is_watched = is_watched

    def on_change(self) -> None:
        """Another process has written into the store."""
        self._has_near_news = True

    def on_put(self, due_ms: int) -> None:
        """This process has put something: look for it at once where it is due soon."""
        if self.note_put(due_ms):
            self.wake()

    def note_put(self, due_ms: int) -> bool:
        """This process has put something: the next step looks for it. True if it is due soon."""
        is_soon = due_ms <= self._clock.now_ms() + READ_AHEAD_MS
        if is_soon:
            self._has_near_news = True
            self._seen_us = self._clock.boot_us()
        return is_soon

    def _on_purged(self, rows: list[Row]) -> None:
        """Heads that waited were reached by a purge."""
        self.outbox.discards.purge(rows)

    def _on_first(self) -> None:
        """A handler has ended: its work comes again if this process dies before that is stored."""
        with self._lock:
            self._first_us = self._clock.boot_us()
            self._news.notify()
        if self._on_wake is not None and not self._fails:
            self._on_wake(_STORE_US / 1e6)

    def _on_free(self) -> None:
        """A handler has begun to wait: where others may have work for it, they are told soon."""
        membership = self._membership
        if membership.beats and not membership.told.free and not self._freed_us:
            with self._lock:
                self._freed_us = self._clock.boot_us()
                self._news.notify()
            if self._on_wake is not None and not self._is_leaving:
                self._on_wake(FREE_US / 1e6)

    def _forget_freed(self) -> None:
        """A slot that counts as free is told by this step; else another step comes when it does."""
        if self._stepped_us - self._freed_us >= FREE_US:
            self._freed_us = 0

    def _until_us(self, deadline_us: int) -> int:
        """Until when to wait: a slot that was just freed is told as soon as it counts as free.

        Who leaves has none to tell.
        """
        freed_us = 0 if self._is_leaving else self._freed_us
        return min(deadline_us, freed_us + FREE_US) if freed_us else deadline_us

    def _first_until_us(self, deadline_us: int) -> int:
        """Until when to wait, where what has ended is to be stored before; not while that fails."""
        until_us = self._until_us(deadline_us)
        if self._first_us and not self._fails:
            return min(until_us, self._first_us + _STORE_US)
        return until_us

    def is_quiet(self) -> bool:
        """Whether all that is due in this member's lanes has been read and settled."""
        return self.reader.is_caught_up() and self.outbox.is_empty

    def begin_to_leave(self) -> None:
        """Tell the others, by the next step: from then on they get what comes due here.

        Steps read lanes on, but hand nothing out: so a message waits for none of them.
        """
        self._is_leaving = self.lanes.is_leaving = self.sharing.is_leaving = True

    @property
    def is_relied_on(self) -> bool:
        """Whether an open member does not know yet that this one leaves, and so waits for it."""
        beats = self._membership.beats
        told = (beats[name] for name in self._membership.others)
        return any(self.member not in one.parted for one in told)

    def retire(self) -> None:
        """Leave what has not begun to others, while what runs is waited for."""
        self.begin_to_leave()
        self.intake.give_up(lambda _: True)
        self.intake.keep([], dict)
        try:
            self.starts.close()
            # They may be trying each 50 ms: first what needs no park.
            self.release_idle()
            self._membership.leave()
        except ShardqError as error:
            log.info("queue %s: others take over a little later: %s", self._register.name, error)

    def close(self) -> None:
        """Settle what has ended, park what has not, uncounted, and let everything go.

        In a forked child it does nothing: all of it is the parent's.

        Raises:
            StoreUnavailable, StoreTimeout: What was not settled is delivered again when the leases
                have run out.
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
        self.outbox.flush(everything=True)
        for lease in self.leases.held():
            # What is just about to begin, with care, is given up before it is written to.
            lease.deadline_us = 0
        self.outbox.withdraw()
        self.outbox.park_all(counted=False)
        self.intake.keep([], dict)
        self.starts.close()
        # Once more: what ended while the rest was parked, and groups whose lanes are others' now.
        self.outbox.flush(everything=True)
        self.leases.release([lease.shard for lease in self.leases.held()])
        self._membership.leave()
        self._presence.leave()
        self.stats.close()
        self.log_rest()

    def log_rest(self) -> None:
        """Log what `watch` would log later. It may be called anew."""
        self.failures.flush(everything=True)
        self._hanging.look(everything=True)

    def let_go(self) -> int:
        """After an error for good, release all on which nothing runs, as far as the store takes it.

        Returns:
            How many deliveries have begun here whose outcomes are not stored.
        """
        held = self.leases.held()
        for lease in held:
            # As `close` does, and why.
            lease.deadline_us = 0
        begun = self.outbox.handed_out()
        running = {one.lease.shard for one in begun if not (one.has_ended or one.is_claim)}
        idle = [lease.shard for lease in held if lease.shard not in running]
        try:
            self.leases.release(idle)
            self._membership.leave()
        except ShardqError as error:
            log.info("queue %s: others take over later: %s", self._register.name, error)
        return sum(one.stage is not STORED for one in begun)

    # Members --------------------------------------------------------------------------------------

    def _beat(self, *, demand: bool) -> bool:
        """Heartbeat, and look who else is there; whether lanes are to be assigned anew."""
        sharing, membership = self.sharing, self._membership
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
        )
        if membership.version > max(self._register.version, self._reread_for):
            # Once for each, for a heartbeat may lie. The next step follows them.
            self._reread_for = membership.version
            self._register.refresh(force=True)
        return has_changed

    def _is_new(self) -> bool:
        """Whether this member is not open yet, for it has not read what will be its lanes.

        While it does, which may take long, those who have them read on. For half a second at most.
        """
        now_us = self._clock.boot_us()
        if self._arrived_us is None:
            self._membership.look()
            self._arrived_us, self._is_arriving = now_us, bool(self._membership.others)
        elif self._is_arriving:
            polled = self.intake.polled
            has_read = all(lane.retry_ms or self.reader.is_current(lane) for lane in polled)
            self._is_arriving = not has_read and now_us - self._arrived_us < _ARRIVE_US
        return self._is_arriving

    def _told(self) -> Heartbeat:
        told = self.sharing.told(
            self.lanes.told, version=self._register.version, holder=self.leases.holder
        )
        return replace(told, gave=self.lanes.given)

    def _bury_dead(self) -> bool:
        """Count the dead of this machine as members no more; whether there were any."""
        members = self._membership
        for holder in members.take_returned():
            self._presence.doubt(holder)
        dead = self._presence.dead_of({name: beat.holder for name, beat in members.beats.items()})
        members.bury(dead)
        return bool(dead)

    def _on_settings(self) -> None:
        settings = self._register.settings
        self._clock.check(settings.offset_ms)
        self.leases.ttl_ms = settings.lease_ms
        self.lanes.assign_anew()
        if settings.paused:
            # Here and now: the heartbeat, before lanes are left, may not come through for long.
            self.intake.give_up(lambda _: True)
        if settings.purged_before_us:
            self.intake.give_up(lambda one: one.row.entered_us < settings.purged_before_us)
            self.groups.wake()

    def _watch_progress(self) -> None:
        """A member with due rows and no slot lets others have its lanes, until it has a slot.

        After 5 s where another has a slot and what is due cannot be shared; else after 30 s.
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
            and self._membership.others
            and self.ready.has_due()
        ):
            log.info(
                "queue %s: no free handler for %d s; leaving its rows",
                self._register.name,
                stuck_us // 1_000_000,
            )
            self._is_stuck = True
            self.outbox.flush()
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

    def release_idle(self) -> None:
        """Release leases of which no row is known, once nothing more is expected there."""
        layout, intake = self._register.layout, self.intake
        now_ms = self._clock.now_ms()
        over_ms, kept_ms = now_ms - _LINGER_MS, now_ms - _KEPT_MS
        idle = []
        for lease in self.leases.held():
            shard = lease.shard
            if shard in intake.leased_rows:
                continue
            lane = intake.lanes.get(shard.lane)
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
            self._seen_us = self._stepped_us
        if is_open and self._membership.is_awaited:
            return 0.0
        is_busy = (
            new
            or not self.outbox.is_empty
            or self.sharing.is_awake
            or self._is_leaving
            or self.intake.is_eager()
        )
        seconds = _BUSY_S if is_busy else self._idle_s
        if is_open and self._is_watched:
            # What was moved on to be due in a second was read by no look so far: by the next it is.
            seconds = min(seconds, self.reader.ahead_s)
        if is_open:
            until_head_ms = self.groups.next_ms() - self._clock.now_ms()
            seconds = max(min(seconds, until_head_ms / 1e3), 0.001)
        if not (is_open and self.intake.known):
            return seconds
        until_sweep = (self.sweeper.next_sweep_ms() - self._clock.now_ms()) / 1e3
        return max(min(seconds, until_sweep), 0.001)

    @property
    def _idle_s(self) -> float:
        """Seconds from poll to poll at rest."""
        if self._is_watched:
            return _IDLE_WATCHED_S
        return _QUIET_S if self._stepped_us - self._seen_us >= _QUIET_US else _IDLE_S

    def _has_changed(self) -> bool:
        token = self._store.changed()
        if token == self._changed_token:
            return False
        self._changed_token = token
        return True
