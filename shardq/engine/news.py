"""Decides when an engine steps next: at its set time, or earlier if there is news.

```
 a put here or elsewhere, an outcome that cannot wait ─► news ─► wait ends ─► step
 the first outcome since a flush ─► 10 ms, to gather more ─► step that only stores outcomes
 a slot that has been free for 10 ms ─► step that reports it to the other members
```
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from shardq import locks
from shardq.engine.reading.lane import SOON_MS
from shardq.lifecycle.pauses import BackOff
from shardq.stores.store import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq.lifecycle.home import QueueHome
    from shardq.records.membership import Membership
    from shardq.stores.store import Slice

log = logging.getLogger(__name__)

FREE_US = 10_000
"""A slot counts as free after it has waited this long; a busy slot waits less between messages."""
NEWS_S = 0.013
"""Pause between two checks for writes of other processes, in a store that detects such writes."""
SPACING_US = 2_000
"""`wait` begins no step sooner than this after the begin of the last step."""
IDLE_US = 110_000
"""Pause between two polls at rest, if the store does not detect writes of other processes. On
Cassandra a pause of 100 ms takes 2.1 % of a core, and a put still reaches its handler in 55 ms."""
QUIET_IDLE_US = 250_000
QUIET_US = 60_000_000
"""The pause is `QUIET_IDLE_US` once no row was seen for `QUIET_US`."""
_PLENTY_ROWS = 1_000
"""Rows in memory that keep handlers busy until the next poll."""
_STORE_US = 10_000
"""How long the first outcome since a flush waits for more outcomes, to be stored with them."""


class Awaited(NamedTuple):
    """The places in the store where an engine's news appears while its queue is at rest.

    Attributes:
        rows: The rows that the engine would read.
        queue: The name of the queue's record.
        members: The name under which the heartbeats of the queue are stored.
    """

    rows: Slice
    queue: str
    members: str


class Near(NamedTuple):
    """Rows that were put and are due soon.

    Attributes:
        first_ms: The earliest due, epoch milliseconds.
        last_ms: The latest due.
        own_ms: The earliest due of the rows that this process has put; `NEVER` without such rows.
    """

    first_ms: int
    last_ms: int
    own_ms: int = NEVER


class News:
    """Decides when one engine takes its next step.

    Any thread may report news. Only the thread that steps the engine begins and awaits steps.

    Args:
        membership: The other members, to which a free slot is reported.
        on_wake: Called with the seconds until the next step is needed; None if `wait` is used.

    Attributes:
        is_leaving: True if the member is leaving, and so reports no free slots.
        is_watched: True if a write of another process is noticed without a poll.
        is_looked_at: True if reads for many queues look for this engine's news.
        is_regular: True if no news has caused this step, and nobody waits for the rows that it
            reads.
        seen_us: When this process last put or read a row of the queue, time since boot.
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
        self._is_rung = self.is_leaving = False
        self.is_watched: bool = False
        self.is_looked_at: bool = False
        self.is_regular: bool = False
        self._near: Near | None = None
        self._freed_us = self._first_us = self._rested_us = 0
        self._back_off = BackOff()
        self.stepped_us: int = 0
        self.seen_us: int = self._clock.boot_us()
        self._token: int | None = None

    # Wakes ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the next step begin at once."""
        with self._lock:
            self._is_rung = True
            self._changed.notify()
        if self._on_wake is not None:
            self._on_wake(0.0)

    def on_put(self, due_ms: int) -> None:
        """Called after a put of this process: wake the engine if the row is due soon."""
        if self.note_put(due_ms):
            self.wake()

    def note_put(self, due_ms: int) -> bool:
        """Let the next step look for a row put by this process; True if the row is due soon."""
        is_soon = due_ms <= self._clock.now_ms() + SOON_MS
        if is_soon:
            self._note(due_ms, due_ms, due_ms)
            self.seen_us = self._clock.boot_us()
        return is_soon

    def on_change(self) -> None:
        """Called after another process wrote to the store: rows of any due may be new."""
        self._note(0, NEVER)

    def _note(self, first_ms: int, last_ms: int, own_ms: int = NEVER) -> None:
        with self._lock:
            near = self._near or Near(first_ms, last_ms)
            self._near = Near(
                min(near.first_ms, first_ms),
                max(near.last_ms, last_ms),
                min(near.own_ms, own_ms),
            )

    def on_first(self) -> None:
        """Called at the first outcome since a flush: a step soon stores it, as a crash loses it."""
        with self._lock:
            self._first_us = self._clock.boot_us()
            self._changed.notify()
        if self._on_wake is not None and not self._back_off.fails:
            self._on_wake(_STORE_US / 1e6)

    def on_outcomes(self, rows: int) -> None:
        """Called when outcomes can be stored, or were stored: a step begins at once.

        Args:
            rows: How many rows are in memory. While there are many the step only stores outcomes: a
                poll after each batch would cost as much as the deliveries.
        """
        if rows < _PLENTY_ROWS:
            self.wake()
            return
        with self._lock:
            self._first_us = self._clock.boot_us() - _STORE_US
            self._changed.notify()
        if self._on_wake is not None:
            self._on_wake(0.0)

    def on_free(self) -> None:
        """Called when a slot begins to wait: let a step report it soon, if there are members."""
        membership = self._membership
        if membership.beats and not membership.last.free and not self._freed_us:
            with self._lock:
                self._freed_us = self._clock.boot_us()
                self._changed.notify()
            if self._on_wake is not None and not self.is_leaving:
                self._on_wake(FREE_US / 1e6)

    # Steps ----------------------------------------------------------------------------------------

    @property
    def is_there(self) -> bool:
        """True if the next step must begin at once."""
        return self._is_rung or self.is_near

    @property
    def is_near(self) -> bool:
        """True if a row was put that is due soon, and no step has looked for it yet."""
        return self._near is not None

    @property
    def is_of_others(self) -> bool:
        """True if another process may have put a row that no step has looked for yet."""
        near = self._near
        return near is not None and near.first_ms < near.own_ms

    @contextmanager
    def looking(self) -> Iterator[Near | None]:
        """The rows that a step looks for; if the step fails, the next one looks for any rows."""
        with self._lock:
            near, self._near = self._near, None
        try:
            yield near
        except BaseException:
            self.on_change()
            raise

    def begin_step(self) -> int:
        """Begin a step; returns 0, or for a step that only flushes the us until a full step."""
        now_us = self.stepped_us = self._clock.boot_us()
        if now_us < self._rested_us:
            return self._rested_us - now_us
        if now_us - self._freed_us >= FREE_US:
            # The slot counts as free, so this step reports it. Until then `_freed_us` stays set,
            # for a later step.
            self._freed_us = 0
        return 0

    @property
    def has_failed(self) -> bool:
        """True if the last step failed."""
        return self._back_off.fails > 0

    def end_step(self) -> None:
        """Note that a full step succeeded."""
        self._back_off.end()

    def take(
        self,
        *,
        is_watched: bool = False,
        is_looked_at: bool = False,
        is_regular: bool = False,
        due_us: int = 0,
    ) -> None:
        """Prepare a step that begins without `wait`.

        Args:
            is_watched: True if `on_change` is called after another process wrote.
            is_looked_at: True if reads for many queues look for this engine's news.
            is_regular: True if nobody waits for the rows that the step reads.
            due_us: When a full step is needed, time since boot; until then only outcomes need a
                step. 0 if a full step is needed now.
        """
        self.is_watched, self.is_looked_at = is_watched, is_looked_at
        self.is_regular = is_regular and not self._is_rung
        self._take(due_us)

    def wait(self, seconds: float) -> None:
        """Wait until the next step is due, or news arrives: on SQLite also from other processes."""
        clock = self._clock
        self.is_regular = False
        deadline_us = clock.boot_us() + round(seconds * 1e6)
        self.is_watched = watched = self._store.changed() is not None
        while (left_us := self._first_until_us(deadline_us) - clock.boot_us()) > 0:
            with self._lock:
                if self._is_rung:
                    break
                clock.wait(self._changed, min(left_us / 1e6, NEWS_S) if watched else left_us / 1e6)
            if watched and self._has_changed():
                self.on_change()
                break
        since_us = clock.boot_us() - self.stepped_us
        if since_us < SPACING_US:
            with self._lock:
                clock.wait(self._spacing, (SPACING_US - since_us) / 1e6)
        self._take(deadline_us)

    def back_off(self, error: Exception) -> float:
        """Return the seconds to wait after a failed step; they double each time.

        They are a quarter of the visibility at most: a step must postpone claims in their last
        half.
        """
        if self._back_off.fails in (0, 6):
            why = str(error).removesuffix(".")
            log.warning("queue %s: %s; trying again", self._register.name, why)
        most_s = self._register.settings.visibility_ms / 4_000
        return min(self._back_off.after_failure(), most_s)

    def _take(self, due_us: int) -> None:
        with self._lock:
            is_for_first = self._first_us and due_us and not self.is_there
            # An outcome needs only a flush: the full step begins when it would without the outcome.
            self._rested_us = self._until_us(due_us) if is_for_first else 0
            self._is_rung = False
            self._first_us = 0

    def _until_us(self, deadline_us: int) -> int:
        """When the wait ends: at the deadline, or earlier, once a freed slot counts as free."""
        freed_us = 0 if self.is_leaving else self._freed_us
        return min(deadline_us, freed_us + FREE_US) if freed_us else deadline_us

    def _first_until_us(self, deadline_us: int) -> int:
        """When the wait ends. An outcome to store ends it earlier, unless steps fail."""
        until_us = self._until_us(deadline_us)
        if self._first_us and not self._back_off.fails:
            return min(until_us, self._first_us + _STORE_US)
        return until_us

    def _has_changed(self) -> bool:
        token = self._store.changed()
        if token == self._token:
            return False
        self._token = token
        return True
