"""The limits of a queue, or of some messages of it, at one member, which begins within its shares.

```
 due rows ─► share of `running` left? ─► token of its share of the rate? ─► handed out
 each second, and sooner where rows wait: shares are taken, renewed, given back
```
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardq.model.limits import Bucket, queue_limit_of
from shardq.records.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock

    from shardq.lifecycle.home import QueueHome
    from shardq.model.limits import QueueLimit

_RENEW_US = 1_000_000
_EAGER_US = 100_000
"""A member with due rows and without a share looks for one so often."""
GATE_S = 0.5
"""Seconds from step to step while a queue has limits: shares are renewed in time."""
_KEPT_US = 3_000_000
"""An unused share is kept for this long."""
_TURN_MS = 3_000
_TURN_INTERVALS = 20
_MANY_TOKENS = 100


class Gate:
    """The limits of one queue at one member. `may_begin` and `begin`: under the lock of `ready`.

    Args:
        lock: The lock of `ready`.
        threads: Handler slots; 0 for callers of `receive`, whose deliveries do not count.
        running: Returns how many handlers run here; it may be set later.
        suffix: The end of the names of their shares; empty: the queue's own limits.
        limit_of: Returns these limits from those of the queue.
        is_closed: True if it is a pause: nothing begins.

    Attributes:
        due: For some messages of a queue: how many are due here and not taken.
        begun: How many deliveries began here.
    """

    def __init__(
        self,
        home: QueueHome,
        lock: RLock,
        threads: int,
        running: Callable[[], int] = lambda: 0,
        *,
        suffix: str = "",
        limit_of: Callable[[QueueLimit], QueueLimit] = lambda limit: limit,
        is_closed: bool = False,
    ) -> None:
        self._lock = lock
        self._clock = home.clock
        self._register = home.register
        self._threads = threads
        self.running = running
        self._limit_of = limit_of
        self.is_closed = is_closed
        store, member = home.store, home.member
        self._slots = Shares(store, home.clock, home.register, f"running{suffix}", member=member)
        self._tokens = Shares(store, home.clock, home.register, f"rate{suffix}", member=member)
        self._adopted: str | None = None
        """The limits of the queue and its tasks in the settings, as `keep` last read them."""
        self._limit = queue_limit_of("")
        self._bucket: Bucket | None = None
        self._units = 0
        self._looked_us = self._wanted_us = 0
        self.due = self.begun = 0

    @property
    def present(self) -> QueueLimit:
        """The limits, by the queue's settings."""
        return self._limit_of(queue_limit_of(self._register.settings.queue_limit))

    @property
    def is_on(self) -> bool:
        """True if there are limits."""
        return self.present.is_gate

    def opens_us(self) -> float:
        """When a delivery may begin, time since boot; infinite while it takes a share or an end."""
        if self.is_closed or self._register.settings.queue_limit != self._adopted:
            # Until `keep` has taken shares of the new limits, no delivery may begin.
            return math.inf
        now_us = self._clock.boot_us()
        limit = self._limit
        if limit.running and self._threads:
            granted = self._slots.granted
            if now_us >= granted.until_us or self.running() >= granted.units:
                return math.inf
        if not limit.rates:
            return 0
        granted = self._tokens.granted
        if self._bucket is None or granted.units != self._units or now_us >= granted.until_us:
            return math.inf
        return self._bucket.next_us()

    def may_begin(self) -> bool:
        """True if a delivery may begin now."""
        return self.opens_us() <= self._clock.boot_us()

    @property
    def holds_back(self) -> bool:
        """True if the limits, and not busy handlers, keep a delivery from its begin now."""
        has_free = not self._threads or self.running() < self._threads
        return has_free and not self.may_begin()

    def begin(self) -> None:
        """Count a delivery that begins."""
        now_us = self._clock.boot_us()
        self.begun += 1
        self.want(now_us)
        if self._bucket is not None:
            self._bucket.take(now_us)

    def want(self, until_us: int) -> None:
        """Keep shares until a time since boot, as deliveries may begin until then."""
        self._wanted_us = max(self._wanted_us, until_us)

    @property
    def is_idle(self) -> bool:
        """True if no delivery waits for these limits, and this process has no share of them."""
        now_us = self._clock.boot_us()
        shares = [shares.granted for shares in (self._slots, self._tokens)]
        has_share = any(share.units and share.until_us > now_us for share in shares)
        return not (has_share or self.due or now_us - self._wanted_us < _KEPT_US)

    @property
    def usual_us(self) -> float:
        """How long it is by the rates from one delivery to the next; 0: there is no rate.

        A rate of which many tokens are there makes nothing wait for now.
        """
        bucket, rates = self._bucket, self._limit.rates
        if bucket is None:
            return rates[0][0].interval_us if rates else 0
        there = bucket.tokens(self._clock.boot_us())
        scarce = [every_us for count, every_us in there if count < _MANY_TOKENS]
        return max(scarce, default=there[0][1])

    def keep(self, due: int) -> bool:
        """Take, renew or give back shares, if it is time. From the thread that steps the engine.

        Args:
            due: How many rows are due and wait for a handler.

        Returns:
            True if shares may have changed: threads that wait for a row are to look again.

        Raises:
            StoreTimeout, StoreUnavailable: Try again.
        """
        if self.is_closed:
            return False
        adopted, limit = self._register.settings.queue_limit, self.present
        now_us = self._clock.boot_us()
        if due:
            self.want(now_us)
        is_eager = bool(due) and self.opens_us() == math.inf
        every_us = _EAGER_US if is_eager else _RENEW_US
        if adopted == self._adopted and now_us - self._looked_us < every_us:
            return False
        self._looked_us = now_us
        with self._lock:
            self._adopted = adopted
            if limit.rates != self._limit.rates or now_us >= self._tokens.granted.until_us:
                self._empty()
            self._limit = limit
        is_wanted = now_us - self._wanted_us < _KEPT_US
        if limit.running and self._threads:
            running = self.running()
            self._take_slots(min(self._threads, running + due) if is_wanted else running)
        if limit.rates:
            self._take_tokens(limit.units if is_wanted else 0)
        return True

    def leave(self) -> None:
        """Give back the shares of a member that leaves; running handlers keep their part.

        Raises:
            StoreTimeout, StoreUnavailable: Others use them when they have ended.
        """
        now_us, limit = self._clock.boot_us(), self._limit
        if limit.running and self._slots.granted.until_us > now_us:
            self._take_slots(0)
        if limit.rates and self._tokens.granted.until_us > now_us:
            self._take_tokens(0)

    def _take_slots(self, wants: int) -> None:
        self._slots.take(self._limit.running, used=self.running, wants=wants, turn_ms=_TURN_MS)

    def _take_tokens(self, wants: int) -> None:
        limit, former_us = self._limit, self._tokens.granted.until_us
        slowest_us = max(rate.interval_us for rate, _ in limit.rates)
        self._tokens.take(
            limit.units,
            used=lambda: 0,
            wants=wants,
            turn_ms=max(_TURN_MS, round(_TURN_INTERVALS * slowest_us / 1e3)),
            rates=limit.rates,
            full_us=self._full_us,
        )
        with self._lock:
            if self._tokens.granted.since_us >= former_us:
                # Others may have used a share that was over, and its tokens.
                self._empty()
            self._fit(self._tokens.granted.units)

    def _empty(self) -> None:
        """Forget the tokens; note which were used."""
        if self._bucket is not None:
            self._tokens.note(self._limit.rates, self._bucket.full_us)
            self._bucket, self._units = None, 0

    def _full_us(self) -> tuple[float, ...]:
        with self._lock:
            return () if self._bucket is None else self._bucket.full_us

    def _fit(self, units: int) -> None:
        """Fit the bucket to a share of so many units.

        One that begins has the tokens that the record has for units of no member.
        """
        if units == self._units:
            return
        now_us, free_us = self._clock.boot_us(), self._tokens.granted.full_us
        if not units:
            self._empty()
        elif self._bucket is None:
            self._bucket = Bucket(self._limit.part_of(units), now_us)
            if free_us is not None:
                self._bucket.fill(free_us)
        else:
            mine_us = self._bucket.full_us
            self._bucket.change(self._limit.part_of(units), now_us)
            if free_us is not None and units > self._units:
                self._bucket.fill(map(max, mine_us, free_us))
        self._units = units
