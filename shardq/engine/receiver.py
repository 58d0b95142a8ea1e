"""`receive` for callers elsewhere: rows are claimed durably before they are returned.

```
 receive ─► step the engine ─► take what is due ─► begin what has a key, together
                 │              ─► move each to now + visibility, a claim ─► return it
                 └─ leases on demand, kept by a thread, released half a TTL after the last caller
```
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from shardq import locks
from shardq.engine.engine import Engine
from shardq.errors import (
    BadTime,
    ShardqError,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    shown,
)
from shardq.model.message import Message
from shardq.model.times import duration_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardq.clock import Clock
    from shardq.engine.delivery import Delivery
    from shardq.engine.starts import Start
    from shardq.model.message import Row
    from shardq.model.shard import Position
    from shardq.model.times import Duration
    from shardq.records.register import Register
    from shardq.stores.store import Move, Store

_PREFETCH = 1_000
_VISIBILITY_MS_MIN = 2_000
_LINGER_US = 5_000_000
"""Leases are kept so long for the next caller; one that lapsed would be taken over with care."""
_KEEP_S = 0.5
_SHARE_S = 0.05
"""How often the keeper steps where rows wait that others may have."""

log = logging.getLogger(__name__)


class Stepped(Protocol):
    """What is stepped beside the engine while there are callers, and closed with it."""

    def step(self) -> float:
        """Do what is to be done now; returns seconds until the next step is needed."""

    def close(self) -> None:
        """Release what is held. Idempotent; it may be stepped again."""


class Receiver:
    """Receives messages of one queue for the callers of this process.

    Args:
        background: Whether a thread keeps and releases the leases between calls; without it `close`
            must be called.
        make_ticker: Makes what fires the queue's schedules, once it has some.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        register: Register,
        *,
        background: bool,
        make_ticker: Callable[[], Stepped],
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._background = background
        self._lock = locks.new()
        self._idle = locks.condition(locks.new())
        self._make_ticker = make_ticker
        self._ticker: Stepped | None = None
        self._engine: Engine | None = None
        self._was_interrupted = False
        self._has_rest = False
        """Whether a call has left due rows that others may have."""
        self._called_us = 0
        self._callers: dict[int, int] = {}
        locks.in_child(self, Receiver._begin_child)

    def receive(self, count: int, visibility_ms: int, wait_ms: int) -> list[Message]:
        """Up to `count` due messages, claimed for `visibility_ms`; waits for the first one."""
        callers = self._callers
        # By thread, since a dict, unlike a number, may be changed by many at once. Not under the
        # lock, which another's step may hold for long.
        me = threading.get_ident()
        callers[me] = self._clock.boot_us()
        try:
            return self._receive(count, visibility_ms, wait_ms)
        finally:
            callers.pop(me, None)

    def _receive(self, count: int, visibility_ms: int, wait_ms: int) -> list[Message]:
        deadline_us = self._clock.boot_us() + wait_ms * 1_000
        while True:
            locks.refuse_to_wait(self._lock)
            with self._lock:
                engine = self._wake_engine()
                try:
                    delay = min(self._tick(), engine.step())
                    messages = self._claim(engine, count, visibility_ms)
                except UnknownQueue:
                    self._discard(engine)
                    if self._register.settings.dropped:
                        raise
                    # Made anew since: what is received is that one's.
                    continue
                except ShardqError:
                    raise
                except BaseException:
                    # As by Ctrl-C. What was taken is nobody's: the next call makes another engine.
                    self._was_interrupted = True
                    raise
                finally:
                    # Claims may take seconds: the next call is expected from when they are made.
                    self._called_us = self._clock.boot_us()
                lagging = engine.reader.is_lagging()
            left_us = deadline_us - self._clock.boot_us()
            if messages or (left_us <= 0 and not lagging):
                self._look_after_rest(engine)
                return messages
            next_ms = engine.ready.next_due_ms()
            if next_ms is not None:
                delay = min(delay, max(0.0, next_ms / 1e3 - self._clock.now_us() / 1e6))
            if delay and left_us > 0:
                engine.wait(min(delay, left_us / 1e6))

    def on_put(self, due_ms: int) -> None:
        """This process has put something."""
        engine = self._engine
        if engine is not None:
            engine.on_put(due_ms)

    def looks_at(self, position: Position) -> bool:
        """Let the next call look at a row of a group that was settled or edited just now.

        Returns:
            Whether its lane is owned here; else its owner is to be told by a note.
        """
        engine = self._engine
        return engine is not None and engine.groups.look_at(position)

    def store_stats(self) -> None:
        """Store what was counted since the last turn.

        Raises:
            StoreUnavailable, StoreTimeout: It is stored with what is counted next.
        """
        engine = self._engine
        if engine is not None:
            engine.stats.store()

    def close(self) -> None:
        """Release the leases. Idempotent."""
        locks.refuse_within()
        with self._lock:
            engine, self._engine = self._engine, None
            if self._ticker is not None:
                self._ticker.close()
            if engine is not None:
                engine.close()

    def _tick(self) -> float:
        """Fire the queue's schedules, where it has any; returns seconds until they are next."""
        if self._ticker is None:
            if not self._register.settings.schedules_used:
                return _KEEP_S
            self._ticker = self._make_ticker()
        return self._ticker.step()

    def _discard(self, engine: Engine) -> None:
        """Close an engine of no more use: the next call makes another."""
        self._engine = None
        try:
            engine.close()
        except (StoreUnavailable, StoreTimeout) as error:
            log.warning("queue %s: leases are not released: %s", self._register.name, error)

    def _begin_child(self) -> None:
        """The engine of before a fork is the parent's, with its leases and its callers."""
        self._engine, self._callers, self._was_interrupted = None, {}, False
        self._ticker = None

    def _wake_engine(self) -> Engine:
        self._called_us = self._clock.boot_us()
        if self._engine is not None and self._was_interrupted:
            self._was_interrupted = False
            for one in self._engine.outbox.handed_out():
                if not one.ended:
                    # Parked, as a close would, it would wait for its visibility.
                    self._engine.outbox.give_up(one)
            self._discard(self._engine)
        if self._engine is None:
            self._engine = Engine(
                self._store,
                self._clock,
                self._register,
                prefetch=_PREFETCH,
                threads=0,
                caller_away_us=self._caller_away_us,
                callers_since=self._callers_since,
            )
            if self._background:
                self._start_keeper(self._engine)
        return self._engine

    def _start_keeper(self, engine: Engine) -> None:
        name = f"shardq-{self._register.name}-pull"
        keeper = threading.Thread(target=self._keep, args=(engine,), name=name, daemon=True)
        try:
            keeper.start()
        except RuntimeError as error:
            # Without it leases would run out between calls, unreleased. The next call tries again.
            self._engine = None
            raise ShardqError(
                f"queue {self._register.name!r} cannot be read: {error}; raise what limits this "
                f"process (ulimit -u, ulimit -v), and try again."
            ) from error

    def _caller_away_us(self) -> int:
        # At least 1: a call may have ended within this very microsecond.
        return 0 if self._callers else max(self._clock.boot_us() - self._called_us, 1)

    def _look_after_rest(self, engine: Engine) -> None:
        """Let the keeper share what a call has left, unless another call comes for it."""
        if engine.sharing.is_awake and not self._has_rest:
            with self._idle:
                self._has_rest = True
                self._idle.notify()

    def _callers_since(self) -> list[int]:
        return list(self._callers.values())

    def _keep(self, engine: Engine) -> None:
        """Renew the leases between calls, and release them when no caller has come for a while."""
        pause = _KEEP_S
        while self._engine is engine:
            with self._idle:
                if not self._has_rest:
                    self._clock.wait(self._idle, pause)
                if self._has_rest:
                    self._has_rest = False
                    self._clock.wait(self._idle, _SHARE_S)
            try:
                if self._clock.boot_us() - self._called_us > _LINGER_US:
                    self.close()
                    return
                with self._lock:
                    if self._engine is engine:
                        engine.step()
                        pause = min(self._tick(), _KEEP_S)
                if engine.sharing.is_awake:
                    pause = _SHARE_S
            except (StoreUnavailable, StoreTimeout) as error:
                pause = engine.back_off(error)
            except ShardqError as error:
                log.warning("queue %s: leases are no longer kept: %s", self._register.name, error)
                with self._lock:
                    if self._engine is not engine:
                        return
                    self._engine = None
                    if isinstance(error, UnknownQueue):
                        self._discard(engine)
                    else:
                        engine.let_go()
                return

    def _claim(self, engine: Engine, count: int, visibility_ms: int) -> list[Message]:
        taken, starts = self._take(engine, count)
        planned = {one: self._plan(engine, one, visibility_ms) for one in taken if not one.grouped}
        edits = {one: self._plan_edit(engine, one, visibility_ms) for one in taken if one.grouped}
        try:
            if not engine.outbox.is_empty:
                # What is buried is not to wait for the next call.
                engine.outbox.flush()
            # All this took its time, and another may have leased a shard since.
            lapsed = [one for one in taken if not engine.leases.is_valid(one.lease)]
            claims = [(one, move) for one, move in planned.items() if one not in lapsed]
            claimed = [(one, row) for one, row in edits.items() if one not in lapsed]
            gone, unknown, left = self._carry_out(engine, [move for _, move in claims])
            lost = self._edit(engine, claimed)
        except ShardqError:
            engine.starts.give_back(starts.values())
            for one in taken:
                engine.outbox.give_up(one)
            raise
        unclaimed = [*lapsed, *(one for one, move in claims if move.old in unknown)]
        engine.starts.give_back(starts[one] for one in unclaimed if one in starts)
        for one in lapsed:
            engine.outbox.give_up(one)
        for one, move in claims:
            if move.old in left:
                engine.outbox.leave_behind(one)
            elif move.old in unknown:
                engine.outbox.give_up(one)
            else:
                engine.outbox.hand_over(one)
        made = [
            (one.row.wanted_ms, move.new) for one, move in claims if move.old not in gone | unknown
        ]
        for one, row in claimed:
            if row.id in lost:
                engine.outbox.hand_over(one)
            else:
                made.append((max(one.row.wanted_ms, one.row.ready_ms), row))
                engine.outbox.hand_over_claimed(one, row)
        return self._returned(engine, made)

    def _edit(self, engine: Engine, claims: Sequence[tuple[Delivery, Row]]) -> set[bytes]:
        """Claim heads of groups in place; gives the ids of those that others have settled."""
        if not claims:
            return set()
        try:
            return engine.groups.edit(claims, looks_first=True)
        except StoreTimeout:
            try:
                # The very same once more, which tells what became of it.
                return engine.groups.edit(claims, looks_first=True)
            except StoreTimeout:
                engine.groups.unclaim(row for _, row in claims)
                raise

    def _take(self, engine: Engine, count: int) -> tuple[list[Delivery], Mapping[Delivery, Start]]:
        """What is due, to so many, and how those of them have begun that have keys."""
        due: list[Delivery] = []
        while len(due) < count and (one := engine.ready.take()) is not None:
            if not engine.leases.is_valid(one.lease):
                engine.outbox.give_up(one)
            else:
                due.append(one)
        keyed = [one for one in due if one.row.key is not None]
        starts = engine.starts.begin_all(keyed) if keyed else {}
        taken: list[Delivery] = []
        for one in due:
            if one.row.key is not None and one not in starts:
                # It may not begin: what becomes of it is on its way.
                continue
            if self._register.is_spent(one.row.attempt):
                engine.outbox.bury_spent(one)
            else:
                taken.append(one)
        return taken, starts

    def _returned(self, engine: Engine, claims: Sequence[tuple[int, Row]]) -> list[Message]:
        """What was claimed is the callers' from now on."""
        messages = []
        now_ms = self._clock.now_ms()
        lateness = engine.stats.lateness
        for wanted_ms, row in claims:
            lateness.add((now_ms - wanted_ms) * 1_000)
            if row.ready_ms <= now_ms:
                # No receipt of it would be taken any more, and another may have it by now.
                log.warning("claiming message %s outlasted its visibility", row.message_id)
            else:
                watch = None if row.key is None else engine.starts.watch(row)
                messages.append(Message(row, row.attempt, self._register.signer, watch))
        engine.stats.add(delivered=len(messages))
        return messages

    def _carry_out(
        self, engine: Engine, moves: Sequence[Move]
    ) -> tuple[set[Position], set[Position], set[Position]]:
        """Claim rows.

        Returns:
            Those that were gone; those of which it is not known; those that are there beside their
            claims: a large one's old row is deleted after that, and left, it comes as well.
        """
        settler = engine.settler
        try:
            # What came too late is due, and is not returned: so it does not matter where it is now.
            gone, _ = settler.carry_out(moves)
        except (StoreTimeout, StoreUnavailable):
            # What was claimed would hide until its visibility is over, and have cost an attempt.
            positions = [at for move in moves for at in (move.old, move.new.position)]
            there = settler.still_there(positions)
            made = {move.old for move in moves if move.new.position in there}
            if not made:
                raise
            return set(), {move.old for move in moves} - made, made & there
        return gone, set(), set()

    def _plan(self, engine: Engine, one: Delivery, visibility_ms: int) -> Move:
        return engine.settler.planner.claim(
            one.row, visibility_ms, one.attempt, holder=engine.member
        )

    def _plan_edit(self, engine: Engine, one: Delivery, visibility_ms: int) -> Row:
        row = engine.settler.planner.claimed(
            one.row, visibility_ms, one.attempt, holder=engine.member
        )
        return engine.groups.numbered(one, row)


def visibility_ms(visibility: Duration) -> int:
    """How long what is received is its caller's, milliseconds.

    Raises:
        BadTime: If it is shorter than 2 s.
    """
    asked_ms = duration_ms(visibility, name="visibility")
    if asked_ms < _VISIBILITY_MS_MIN:
        raise BadTime(f"visibility must be at least 2 s, not {shown(visibility)}.")
    return asked_ms
