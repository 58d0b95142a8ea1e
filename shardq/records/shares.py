"""Shares of a limit that holds for a queue over all its members.

```
 limit of 20 ─► record: a has 8 until 12:00:05, b has 12 until 12:00:04 ─► each begins so many
                  └── compare and set, once a second and member: never more than the limit
```

A member may begin deliveries until its share ends. Others use the share of a member that died a
second after that end. What a member needs is divided equally; a member that needs less leaves the
rest to the others. Where there is less than one for each, the members take turns.

The record of a rate also has the time at which the tokens that no member has are all there again,
by what members had used when they gave their shares back. Of a share that ended otherwise all
tokens count as used that its member could use since its last write.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from shardq.clock import forward_us
from shardq.errors import shown
from shardq.model.limits import rate_name
from shardq.records.exchange import exchange
from shardq.stores.tables import LIMITS, Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardq.clock import Clock
    from shardq.model.limits import BeginRate
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
    """The share of one member; or, under the name of a rate, until when its tokens were used.

    Attributes:
        units: How much of the limit it has: what it may use, or what it still uses.
        until_ms: When it ends, epoch milliseconds. Of a rate: when all its tokens are there again.
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
        full_us: When the tokens of each rate are all there again of the part of the limit that no
            member had, time since boot. None: there may be none.
    """

    units: int = 0
    until_us: int = 0
    since_us: int = 0
    full_us: tuple[int, ...] | None = None


_Rates: TypeAlias = "tuple[tuple[BeginRate, int], ...]"
_RATE = "rate "
"""Prefix of the entries that belong to rates, not to members."""


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
        self._doubtful_us: dict[tuple[str, Share], int] = {}
        """Member and share, from before a clock was set -> when it was noted, time since boot."""
        self._has_looked = False
        self._used_us: dict[str, float] = {}
        """Name of a rate -> when its bucket is full again after its use here, time since boot.
        Only rates whose bucket was not full when a share ended."""
        self.granted = GrantedShare()

    def take(
        self,
        total: int,
        *,
        used: Callable[[], int],
        wants: int,
        turn_ms: int,
        rates: _Rates = (),
        full_us: Callable[[], Sequence[float]] = tuple,
    ) -> None:
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
            rates: The rates that are shared out, each with its burst.
            full_us: Returns when the tokens of each rate are all there again by what was used here,
                time since boot; nothing if none was. It is called as `used` is.

        Raises:
            StoreTimeout, StoreUnavailable: Try again.
        """
        partition = (self._register.totals_key,)
        planned: GrantedShare | None = None

        def plan(place: Place, values: Mapping[str, Any]) -> Change | None:
            nonlocal planned
            seen, planned = values["shares"], None
            # The clock may have been set since this step of the engine began.
            self._clock.measure(self._store)
            asked_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
            present = self._read(seen)
            if present is None:
                return None
            shares = {name: one for name, one in present.items() if not name.startswith(_RATE)}
            before = shares.pop(self._member, None)
            self._note_doubtful(shares, now_ms)
            others = {
                name: share
                for name, share in shares.items()
                if self._may_be_used(name, share, now_ms)
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
            is_over = not (mine.units or mine.wants)
            names = [_RATE + rate_name(*rate) for rate in rates]
            has_part = has_part and all(name in present for name in names)
            lasts = before is not None and has_part and self._lasts(before, mine, now_ms)
            if lasts or (before is None and is_over):
                return None
            over_ms = [
                one.until_ms for name, one in shares.items() if name not in others and one.units
            ]
            if before is not None and before.units and not self._has_looked:
                # It was not given back before this member forgot the limit.
                ends_us = asked_us + 1_000 * (before.until_ms - now_ms)
                self.note(rates, [ends_us + burst * rate.interval_us for rate, burst in rates])
            self._has_looked = True
            self.note(rates, full_us())
            full = self._full(None if seen is None else present, rates, over_ms)
            proved_us = tuple(self._proved_us(full, rates))
            planned = GrantedShare(part, asked_us + 1_000 * SHARE_MS, asked_us, proved_us)
            new = others | {name: Share(0, max(at_ms, 0), 0) for name, at_ms in full.items()}
            if not is_over:
                new[self._member] = mine
            text = msgspec.json.encode(new, order="deterministic").decode()
            return Change(*place, {"shares": seen}, {"shares": text})

        seen = self._store.notes(LIMITS, partition, [self._name]).get(self._name)
        present = {(partition, (self._name,)): {"shares": seen}}
        is_done = exchange(self._store, LIMITS, present, plan, tries=_TRIES)
        if is_done and planned is not None:
            self.granted = planned

    def note(self, rates: _Rates, full_us: Sequence[float]) -> None:
        """Note which tokens were used here; the times that the last share proved hold no more.

        Args:
            rates: The rates, each with its burst.
            full_us: When each rate's bucket is full again, time since boot; or empty.
        """
        self.granted = self.granted._replace(full_us=None)
        now_us = self._clock.boot_us()
        self._used_us = {name: at_us for name, at_us in self._used_us.items() if at_us > now_us}
        for (rate, burst), at_us in zip(rates, full_us, strict=False):
            name = _RATE + rate_name(rate, burst)
            self._used_us[name] = max(at_us, self._used_us.get(name, 0))

    def _full(
        self, present: Mapping[str, Share] | None, rates: _Rates, over_ms: Sequence[int]
    ) -> dict[str, int]:
        """When the tokens of each rate are all there again, by its name, epoch milliseconds.

        Args:
            present: The record; None if there never was one.
            over_ms: When shares ended that were not given back.
        """
        full: dict[str, int] = {}
        now_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
        begun = min(
            (burst + SHARE_MS * 1_000 / rate.interval_us for rate, burst in rates), default=0
        )
        for n, (rate, burst) in enumerate(rates):
            name = _RATE + rate_name(rate, burst)
            fill_ms = math.ceil(burst * rate.interval_us / 1_000)
            # Beside a rate over a shorter time, a new rate begins with all tokens.
            used = Share(0, 0, 0) if present is None or n else None
            used = (present or {}).get(name, used)
            known_ms = now_ms + fill_ms if used is None else used.until_ms
            here_ms = now_ms + math.ceil((self._used_us.get(name, 0) - now_us) / 1_000)
            used_ms = max(known_ms, here_ms)
            for at_ms in over_ms:
                most_ms = math.ceil(begun * rate.interval_us / 1_000)
                used_ms = min(max(used_ms, at_ms) + most_ms, max(used_ms, at_ms + fill_ms))
            full[name] = min(used_ms, now_ms + fill_ms)
        return full

    def _proved_us(self, full: Mapping[str, int], rates: _Rates) -> Iterator[int]:
        """When the tokens of each rate are all there for this member, time since boot."""
        now_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
        for at_ms, (rate, burst) in zip(full.values(), rates, strict=True):
            fill_us = math.ceil(burst * rate.interval_us)
            # The time may be by the clock before it was set forward.
            left_us = 1_000 * (at_ms - now_ms) + forward_us(self._clock, fill_us)
            yield now_us + min(left_us, fill_us) + 1_000 * _SKEW_MS

    def _lasts(self, before: Share, mine: Share, now_ms: int) -> bool:
        """True if a share need not be written again yet."""
        is_same = (before.units, before.wants) == (mine.units, mine.wants)
        # One that would last longer than a new one was written before the clock was set back.
        return is_same and SHARE_MS // 2 < before.until_ms - now_ms <= SHARE_MS

    def _note_doubtful(self, present: Mapping[str, Share], now_ms: int) -> None:
        """Note since when shares are known whose ends were written before a clock was set."""
        now_us, latest_ms = self._clock.boot_us(), now_ms + SHARE_MS + _SKEW_MS
        is_set = forward_us(self._clock, 1_000 * (SHARE_MS + _SKEW_MS)) > 0
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
