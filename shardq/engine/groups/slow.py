"""Slow rates of groups: tokens are taken by a record before their deliveries begin.

```
 head due, token there ─► record read once ─► used until, written ─► token granted ─► handed out
                                                └── refused: another owner wrote ─► its time holds
```

A bucket in memory is empty when its lane gets another owner. At one delivery in an hour that would
cost an hour, so the record keeps the time at which all tokens are there again. A write takes one
token, or several of a large burst: a thousand in an hour cost ten writes. The time is of the wall
clock. After the clock was set forward, a record is read as if written before, so its tokens
come later by that much.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from shardq.clock import forward_us
from shardq.engine.members.part import Part
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.times import KEPT_MS_MIN, kept_ms
from shardq.records.exchange import exchange
from shardq.stores.store import NEVER
from shardq.stores.tables import LIMITS, Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shardq.engine.groups.lane import Group, GroupLane
    from shardq.engine.members.member import Member
    from shardq.model.limits import SlowBucket
    from shardq.stores.tables import Place

_AT_ONCE: Final = 100
_TRIES = 2
_SKEW_US: Final = 1_000_000
"""A token of the record is taken this much later: the clock of its writer may differ by this."""
_GRANT_PART = 10
"""A granted token is to be taken within this part of the time to the next one."""
_GRANT_US_MAX: Final = 60_000_000
_decoder = msgspec.json.Decoder(dict[str, int])


class _Awaiting(NamedTuple):
    """A group whose head waits for a token."""

    name: str
    bucket: SlowBucket
    group: Group


class SlowRates(Part):
    """Grants the tokens of slow rates to the groups of one member."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self.next_ms = NEVER
        """When the next token of a waiting head is there, epoch milliseconds."""

    def waiting(self, lanes: Iterable[GroupLane]) -> list[_Awaiting]:
        """Return the groups whose heads wait for a token that is not granted, and may be there."""
        now_us = self._clock.boot_us()
        mine = [one for one in lanes if self._leases.is_valid(one.lease)]
        found = [
            _Awaiting(name, bucket, group)
            for one in mine
            for name, bucket in one.with_tokens(now_us).items()
            if (group := one.groups.get(name)) is not None and self._waits(group, bucket)
        ]
        first_us = min((one.later[0][0] for one in mine if one.later), default=None)
        self.next_ms = NEVER if first_us is None else self._at_ms(first_us)
        return found

    def grant(self, waiting: Sequence[_Awaiting]) -> None:
        """Take the next tokens of groups, of 100 at most, as far as they are there.

        One read for groups that are new here; one conditional write for each group.

        Raises:
            StoreTimeout, StoreUnavailable: Try again.
        """
        if unread := {name: bucket for name, bucket, _ in waiting if not bucket.is_read}:
            names = list(map(_name_of, list(unread)[:_AT_ONCE]))
            texts = self._store.notes(LIMITS, (self._register.totals_key,), names)
            for name in list(unread)[:_AT_ONCE]:
                self._adopt(unread[name], texts.get(_name_of(name)))
        now_us = self._clock.boot_us()
        wanted: dict[Place, _Awaiting] = {}
        for one in waiting:
            name, bucket, _ = one
            if not bucket.is_read or (bucket.next_us() <= now_us and len(wanted) >= _AT_ONCE):
                self.next_ms = 0
            elif bucket.next_us() <= now_us:
                wanted[(self._register.totals_key,), (_name_of(name),)] = one
            else:
                self.next_ms = min(self.next_ms, self._at_ms(bucket.next_us()))
        if wanted:
            self._take(wanted)

    def _take(self, wanted: Mapping[Place, _Awaiting]) -> None:
        taken: dict[Place, tuple[str, int, float]] = {}

        def plan(place: Place, values: Mapping[str, Any]) -> Change | None:
            bucket, seen = wanted[place].bucket, values["shares"]
            if seen != bucket.record:
                self._adopt(bucket, seen)
            now_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
            taken.pop(place, None)
            if bucket.next_us() > now_us:
                return None
            count = bucket.grantable(now_us)
            until_us = now_us + min(count * bucket.slowest_us / _GRANT_PART, _GRANT_US_MAX)
            full_ms = {
                name: now_ms + math.ceil((at_us - now_us) / 1_000)
                for name, at_us in bucket.full_after(until_us, count).items()
            }
            text = msgspec.json.encode(full_ms, order="deterministic").decode()
            taken[place] = text, count, until_us
            ttl_ms = kept_ms(max(full_ms.values()) - now_ms)
            return Change(*place, {"shares": seen}, {"shares": text}, ttl_ms=ttl_ms)

        present = {place: {"shares": one.bucket.record} for place, one in wanted.items()}
        try:
            is_done = exchange(self._store, LIMITS, present, plan, tries=_TRIES)
        except (StoreTimeout, StoreUnavailable):
            for one in wanted.values():
                one.bucket.is_read = False
            raise
        for place, (text, count, until_us) in taken.items() if is_done else ():
            _, bucket, group = wanted[place]
            bucket.record, bucket.granted, bucket.granted_us = text, count, until_us
            if group.line is not None:
                self._ready.release(group.line)

    def _adopt(self, bucket: SlowBucket, text: str | None) -> None:
        """Let tokens be there by a record.

        A rate that it does not know begins without tokens; beside a shorter one with all.
        """
        # The clock may have been set since this step of the engine began.
        self._clock.measure(self._store)
        now_us, now_ms = self._clock.boot_us(), self._clock.now_ms()
        most_us = bucket.filling_us + _GRANT_US_MAX + _SKEW_US
        late_us = _SKEW_US + forward_us(self._clock, most_us)
        try:
            known = {} if text is None else _decoder.decode(text)
        except msgspec.DecodeError:
            known = {}
        full_us = {
            name: now_us + min(1_000 * (at_ms - now_ms) + late_us, most_us)
            for name, at_ms in known.items()
        }
        # A record expires an hour after its bucket is full; a jump of an hour or more may have
        # expired it too early.
        is_none = text is None and late_us < 1_000 * KEPT_MS_MIN
        bucket.adopt(None if is_none else full_us)
        bucket.record = text

    def _at_ms(self, us: float) -> int:
        """A time since boot as epoch milliseconds."""
        return self._clock.now_ms() + math.ceil((us - self._clock.boot_us()) / 1_000)

    def _waits(self, group: Group, bucket: SlowBucket) -> bool:
        """True if a head of a group waits for a token that was not granted."""
        line, now_us = group.line, self._clock.boot_us()
        if line is None or line.bucket is not bucket or bucket.is_granted(now_us):
            return False
        return self._ready.awaits_grant(line)


def _name_of(group: str) -> str:
    return f"group {group}"
