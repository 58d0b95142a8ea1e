"""When an engine steps next: in its time, or at once on news.

```
 a put here or elsewhere, a handler that has ended ─► news ─► wait ends ─► step
 the first outcome since a flush ─► 10 ms, in which others come along ─► step that stores alone
 a slot that waits for 10 ms ─► step that tells the others
```
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.reading.lane import READ_AHEAD_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq.lifecycle.home import QueueHome
    from shardq.records.membership import Membership

log = logging.getLogger(__name__)

FREE_US = 10_000
"""A slot is reported as free once it has waited this long: between many messages none has."""
NEWS_S = 0.013
"""How often a store that tells is asked whether another process has written."""
SPACING_US = 2_000
"""Two steps that are woken are at least so far apart."""
IDLE_US = 110_000
"""From poll to poll at rest, where the store does not tell. On Cassandra 100 ms cost 2.1 % of a
core, and a put still comes to its handler in 55 ms."""
QUIET_IDLE_US = 250_000
QUIET_US = 60_000_000
"""From poll to poll where nothing was seen for so long."""
_STORE_US = 10_000
"""How long the first outcome since a flush waits for others that are stored along with it."""
_BACK_OFF_S = (0.1, 5.0)


class News:
    """What lets the next step of one engine come. From any thread, but for `wait` and what follows.

    Args:
        membership: The other members, to which a free slot is told.
        on_wake: Called with the seconds in which the next step is to come; None: `wait` is called.

    Attributes:
        is_near: True if something was put that is due soon, and not looked for yet.
        is_leaving: True if the member has no free slots to tell.
        is_watched: True if the store tells when another process has written.
        is_looked_at: True if a read for many queues has just looked for the rows awaited here.
        seen_us: When something was last put or read here, time since boot.
        stepped_us: When the last step began, time since boot.
    """

    def __init__(
        self, home: QueueHome, membership: Membership, on_wake: Callable[[float], None] | None
    ) -> None:
        self._store = home.store
        self._clock = home.clock
        self._register = home.register
        self._membership = membership
        self._on_wake = on_wake
        self._lock = locks.new()
        self._changed = locks.condition(self._lock)
        self._spacing = locks.condition(self._lock)
        self._is_rung = self.is_near = self.is_leaving = self.is_watched = False
        self.is_looked_at = False
        self._freed_us = self._first_us = self._rested_us = self._fails = self.stepped_us = 0
        self.seen_us = self._clock.boot_us()
        self._token: int | None = None

    # Wakes ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the next step come at once."""
        with self._lock:
            self._is_rung = True
            self._changed.notify()
        if self._on_wake is not None:
            self._on_wake(0.0)

    def on_put(self, due_ms: int) -> None:
        """This process has put something: look for it at once where it is due soon."""
        if self.note_put(due_ms):
            self.wake()

    def note_put(self, due_ms: int) -> bool:
        """This process has put something: the next step looks for it. True if it is due soon."""
        is_soon = due_ms <= self._clock.now_ms() + READ_AHEAD_MS
        if is_soon:
            self.is_near = True
            self.seen_us = self._clock.boot_us()
        return is_soon

    def on_change(self) -> None:
        """Another process has written into the store."""
        self.is_near = True

    def on_first(self) -> None:
        """A handler has ended: its work comes again if this process dies before that is stored."""
        with self._lock:
            self._first_us = self._clock.boot_us()
            self._changed.notify()
        if self._on_wake is not None and not self._fails:
            self._on_wake(_STORE_US / 1e6)

    def on_free(self) -> None:
        """A handler has begun to wait: where others may have work for it, they are told soon."""
        membership = self._membership
        if membership.beats and not membership.told.free and not self._freed_us:
            with self._lock:
                self._freed_us = self._clock.boot_us()
                self._changed.notify()
            if self._on_wake is not None and not self.is_leaving:
                self._on_wake(FREE_US / 1e6)

    # Steps ----------------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """True if the next step is to come at once."""
        return self._is_rung or self.is_near

    def begin_step(self) -> int:
        """A step begins; gives for how many microseconds it is to store outcomes alone."""
        now_us = self.stepped_us = self._clock.boot_us()
        if now_us < self._rested_us:
            return self._rested_us - now_us
        if now_us - self._freed_us >= FREE_US:
            # A slot that counts as free is told by this step; else another comes when it does.
            self._freed_us = 0
        return 0

    @property
    def has_failed(self) -> bool:
        """True if the last step has failed."""
        return self._fails > 0

    def end_step(self) -> None:
        """A step has done all that was to be done."""
        self._fails = 0

    def take(self, *, is_watched: bool, due_us: int = 0) -> None:
        """A step follows, which nobody has waited for by `wait`.

        Args:
            is_watched: True if `on_change` is called when another process has written: on a store
                that does not tell, if the awaited rows were just looked for.
            due_us: Time since boot until which nothing but an outcome needs a step; 0: it is over.
        """
        self.is_looked_at = is_watched and self._store.changed() is None
        self.is_watched = is_watched and not self.is_looked_at
        self._take(due_us)

    def wait(self, seconds: float) -> None:
        """Wait for the next step, or for news: from this process or, on SQLite, from another."""
        clock = self._clock
        deadline_us = clock.boot_us() + round(seconds * 1e6)
        self.is_watched = watched = self._store.changed() is not None
        while (left_us := self._first_until_us(deadline_us) - clock.boot_us()) > 0:
            with self._lock:
                if self._is_rung:
                    break
                clock.wait(self._changed, min(left_us / 1e6, NEWS_S) if watched else left_us / 1e6)
            if watched and self._has_changed():
                self.is_near = True
                break
        since_us = clock.boot_us() - self.stepped_us
        if since_us < SPACING_US:
            with self._lock:
                clock.wait(self._spacing, (SPACING_US - since_us) / 1e6)
        self._take(deadline_us)

    def back_off(self, error: Exception) -> float:
        """Seconds to wait after a failed step: doubling, to leave a store in trouble alone.

        But for no longer than a claim of ours can wait: it is to be moved on in its last half.
        """
        least, most = _BACK_OFF_S
        most = min(most, self._register.settings.visibility_ms / 4_000)
        seconds = min(least * (1 << self._fails), most)
        if self._fails in (0, 6):
            why = str(error).removesuffix(".")
            log.warning("queue %s: %s; trying again", self._register.name, why)
        self._fails = min(self._fails + 1, 10)
        return seconds

    def _take(self, due_us: int) -> None:
        with self._lock:
            is_for_first = self._first_us and due_us and not self.is_there
            # All but the flush may wait for as long as it would have without.
            self._rested_us = self._until_us(due_us) if is_for_first else 0
            self._is_rung = False
            self._first_us = 0

    def _until_us(self, deadline_us: int) -> int:
        """Until when to wait: a slot that was just freed is told as soon as it counts as free."""
        freed_us = 0 if self.is_leaving else self._freed_us
        return min(deadline_us, freed_us + FREE_US) if freed_us else deadline_us

    def _first_until_us(self, deadline_us: int) -> int:
        """Until when to wait, where what has ended is to be stored before; not while that fails."""
        until_us = self._until_us(deadline_us)
        if self._first_us and not self._fails:
            return min(until_us, self._first_us + _STORE_US)
        return until_us

    def _has_changed(self) -> bool:
        token = self._store.changed()
        if token == self._token:
            return False
        self._token = token
        return True
