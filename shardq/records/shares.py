"""Shares of a limit that holds for a queue over all its members.

```
 limit of 20 ─► record: a has 8 until 12:00:05, b has 12 until 12:00:04 ─► each begins so many
                  └── compare and set, once a second and member: never more than the limit
```

A member may begin deliveries until its share ends. Others use the share of a member that died a
second after that end. What a member needs is divided equally; a member that needs less leaves the
rest to the others. Where there is less than one for each, the members take turns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from shardq.errors import shown
from shardq.records.exchange import exchange
from shardq.stores.tables import LIMITS, Change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardq.clock import Clock
    from shardq.records.register import Register
    from shardq.stores.store import Store
    from shardq.stores.tables import Place

log = logging.getLogger(__name__)

SHARE_MS: Final = 5_000
"""How long a share lasts without renewal."""
_SKEW_MS: Final = 1_000
"""A share is used by others this long after its end: clocks may differ by this."""
_TRIES = 5
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The share of one member.

    Attributes:
        units: How much of the limit it has: what it may use, or what it still uses.
        until_ms: When it ends, epoch milliseconds.
        wants: How much it could use.
    """

    units: _Count
    until_ms: _Count
    wants: _Count


class GrantedShare(NamedTuple):
    """A share as its member may use it.

    Attributes:
        units: How much of the limit.
        until_us: Nothing begins after this time since boot.
        since_us: When it was asked for, time since boot.
    """

    units: int = 0
    until_us: int = 0
    since_us: int = 0


_decoder = msgspec.json.Decoder(dict[str, Share])


def divided(total: int, wants: Mapping[str, int], turn: int) -> dict[str, int]:
    """Divide a limit among members: equally, and no member gets more than it wants.

    Args:
        total: The limit.
        wants: Member -> how much it could use.
        turn: The number of the turn: it decides which members get what is left over.

    >>> divided(10, {"a": 2, "b": 20, "c": 20}, 0)
    {'a': 2, 'b': 4, 'c': 4}
    """
    found = dict.fromkeys(wants, 0)
    left, open_ = total, {name for name, most in wants.items() if most}
    while left >= len(open_) > 0:
        each = left // len(open_)
        for name in sorted(open_):
            more = min(each, wants[name] - found[name])
            found[name] += more
            left -= more
        open_ = {name for name in open_ if found[name] < wants[name]}
    names = sorted(open_)
    for n in range(left if names else 0):
        found[names[(turn * left + n) % len(names)]] += 1
    return found


class Shares:
    """The shares of one limit of one queue, as one member takes its own.

    Args:
        name: The limit's name.
        member: This member.

    Attributes:
        granted: This member's share.
    """

    def __init__(
        self, store: Store, clock: Clock, register: Register, name: str, *, member: str
    ) -> None:
        self._store = store
        self._clock = clock
        self._register = register
        self._name = name
        self._member = member
        self._damaged_us: int | None = None
        self._clock_steps = clock.steps
        self._doubtful_us: dict[tuple[str, Share], int] = {}
        """Member and share, from before a clock was set -> when it was noted, time since boot."""
        self._asked_us = 0
        self._part: int | None = None
        """The share that the write under way asks for."""
        self.granted = GrantedShare()

    def take(self, total: int, *, used: Callable[[], int], wants: int, turn_ms: int) -> None:
        """Take a share, or renew it: as much as is wanted, free, and this member's by division.

        One read; one write, unless the share stays and half of its time is left, or another member
        has written meanwhile. After an error the share may be smaller than before, and is never
        larger.

        Args:
            total: The limit.
            used: Returns how much of it is in use here: others get no part of it. It is called once
                nothing begins here any more beyond the share's new part.
            wants: How much could be used here, with what is used.
            turn_ms: How long a turn lasts, if there is less than one unit for each member.

        Raises:
            StoreTimeout, StoreUnavailable: Try again.
        """
        partition = (self._register.totals_key,)

        def plan(place: Place, values: Mapping[str, Any]) -> Change | None:
            seen = values["shares"]
            self._asked_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
            self._part = None
            present = self._read(seen)
            if present is None:
                return None
            self._note_doubtful(present, now_ms)
            others = {
                name: share
                for name, share in present.items()
                if name != self._member and self._may_be_used(name, share, now_ms)
            }
            free = max(total - sum(share.units for share in others.values()), 0)
            wanted = {name: share.wants for name, share in others.items()} | {self._member: wants}
            part = min(divided(total, wanted, now_ms // turn_ms)[self._member], free)
            # A smaller share holds from now on: the write may be applied though it fails.
            self.granted = self.granted._replace(units=min(self.granted.units, part))
            has_part = self.granted.units == part
            # Keep units that are in use, even beyond the part, until their deliveries end. No new
            # delivery begins meanwhile.
            mine = Share(max(used(), part), now_ms + SHARE_MS, wants)
            before = present.get(self._member)
            if before is not None and has_part and self._lasts(before, mine, now_ms):
                return None
            new = others | ({self._member: mine} if mine.units or mine.wants else {})
            if before is None and new == others:
                return None
            self._part = part
            text = msgspec.json.encode(new, order="deterministic").decode()
            return Change(*place, {"shares": seen}, {"shares": text})

        seen = self._store.notes(LIMITS, partition, [self._name]).get(self._name)
        present = {(partition, (self._name,)): {"shares": seen}}
        is_done = exchange(self._store, LIMITS, present, plan, tries=_TRIES)
        if is_done and self._part is not None:
            until_us = self._asked_us + 1_000 * SHARE_MS
            self.granted = GrantedShare(self._part, until_us, self._asked_us)

    def _lasts(self, before: Share, mine: Share, now_ms: int) -> bool:
        """True if a share need not be written again yet."""
        is_same = (before.units, before.wants) == (mine.units, mine.wants)
        # One that would last longer than a new one was written before the clock was set back.
        return is_same and SHARE_MS // 2 < before.until_ms - now_ms <= SHARE_MS

    def _note_doubtful(self, present: Mapping[str, Share], now_ms: int) -> None:
        """Note since when shares are known whose ends were written before a clock was set."""
        now_us, latest_ms = self._clock.boot_us(), now_ms + SHARE_MS + _SKEW_MS
        is_set, self._clock_steps = self._clock.steps != self._clock_steps, self._clock.steps
        self._doubtful_us = {
            one: self._doubtful_us.get(one, now_us)
            for one in present.items()
            if is_set or one in self._doubtful_us or one[1].until_ms > latest_ms
        }

    def _may_be_used(self, name: str, share: Share, now_ms: int) -> bool:
        """True if another member may still begin deliveries by its share."""
        noted_us = self._doubtful_us.get((name, share))
        if noted_us is None:
            return share.until_ms + _SKEW_MS > now_ms
        # It ends by the time since boot of its member, whatever the clock shows.
        return self._clock.boot_us() - noted_us <= 1_000 * (SHARE_MS + _SKEW_MS)

    def _read(self, text: str | None) -> dict[str, Share] | None:
        """The present shares; None if the record is damaged, and shares of it may not be over."""
        try:
            shares = {} if text is None else _decoder.decode(text)
        except msgspec.DecodeError:
            now_us = self._clock.boot_us()
            if self._damaged_us is None:
                self._damaged_us = now_us
                log.warning(
                    "queue %s: the shares of its limit %s are damaged: %s; members take shares "
                    "anew when the former ones have ended",
                    self._register.name,
                    self._name,
                    shown(text),
                )
            return {} if now_us - self._damaged_us > 1_000 * (SHARE_MS + _SKEW_MS) else None
        self._damaged_us = None
        return shares
