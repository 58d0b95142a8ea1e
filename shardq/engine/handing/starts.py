"""Lets deliveries of messages with a key begin: by LWT, so that a cancel by key is exact.

```
 thread takes a row ── begun in advance? ── yes: to its handler, and for long no LWT
        └─ no: one of those that wait writes ─► all that wait, and what slots take within 50 ms
                    └─ refused ─► cancelled, replaced by a command, or looked at again later
 begun in advance ── not taken within 1 s, or not in memory any more ─► given back
```

Rows that are begun in advance stay in `ready` meanwhile: whatever takes them out of there needs to
know nothing of this. Whose a name is, `records/keys.py` says.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.handing.delivery import END
from shardq.engine.handing.outcome import CANCELLED, DROPPED, GIVEN_UP, LEFT
from shardq.errors import ShardqError, StoreCorrupt, StoreTimeout, StoreUnavailable
from shardq.lifecycle.fate import BEHIND_A_RUN, Fate, Outcome
from shardq.model import names
from shardq.records.keyrow import live_of
from shardq.records.keys import Keys, Refused
from shardq.records.ledger import End
from shardq.records.standing import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.clock import Clock
    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.members.member import Member
    from shardq.engine.storing.outbox import Outbox
    from shardq.model.message import Row
    from shardq.stores.tables import Change

log = logging.getLogger(__name__)

_AHEAD_US = 50_000
"""What slots take within it at the present rate is begun together."""
_AHEAD_MAX = 1_000
_LOW_PART = 3
_LOOKS_EACH = 4
_LOOKS_MORE = 100
"""How many rows of `ready` are looked at for each that is to be begun in advance, and beside."""
_SPAN_US_MIN = 1_000
_GROWTH = 4
_KEPT_US = 1_000_000
"""A message that is begun in advance may wait this long for a slot."""
_ROUNDS = 3
_WAIT_S = 1.0
_PAUSE_S = 0.2
_LATER_US = 500_000
"""After so long a row is read again that a command by key is about to replace."""
_BEHIND_MS = 10_000
"""How long a message that follows a long run is postponed."""
_DAMAGED_US = 60_000_000
_BACK_MAX = 10_000
_ASK_US = 250_000


class Start:
    """The begin of one delivery.

    Attributes:
        one: The delivery.
        change: What is to be written; None where no name has to be asked for.
        name: The message's name.
        is_over: Whether it is decided.
        has_begun: Whether it has begun.
        outcome: What it comes to where it has not.
        after_us: How long after that it does.
        until_us: Of one in advance: time since boot until which it waits for a slot.
    """

    __slots__ = ("after_us", "change", "has_begun", "is_over", "name", "one", "outcome", "until_us")

    def __init__(self, one: Delivery, change: Change | None) -> None:
        self.one = one
        self.change = change
        self.name: str = "" if change is None else change.key[0]
        self.is_over = self.has_begun = change is None
        self.outcome: Outcome = GIVEN_UP
        self.after_us = 0
        self.until_us = 0

    def refuse(self, outcome: Outcome, after_us: int = 0) -> None:
        """It does not begin."""
        self.is_over, self.has_begun = True, False
        self.outcome, self.after_us = outcome, after_us


class Starts:
    """Lets keyed deliveries of one engine begin. From any thread.

    Args:
        outbox: Stores what those come to that may not begin.
    """

    def __init__(self, member: Member, outbox: Outbox) -> None:
        self._clock = member.clock
        self._register = member.register
        self._ready = member.ready
        self._is_local = member.store.is_local
        self._memory = member.memory
        self._outbox = outbox
        self._settler = member.settler
        self._stats = member.stats
        self._keys = member.settler.keys
        # Those of a dead-letter queue have ended where they had their names.
        self._has_keys = not names.is_dead_queue(member.register.name)
        self._lock = locks.new()
        self._changed = locks.condition(self._lock)
        self._asked: list[Start] = []
        self._ahead: dict[bytes, Start] = {}
        """Row id -> what is begun in advance, or about to be. Added to by who writes alone."""
        self._is_writing = False
        self._wrote_us = 0
        self._taken = 0
        """Since it was written last."""
        self._stock = 0
        """How many are to be begun in advance, at the present rate."""
        self._low = 0
        """At fewer of them more are begun."""
        self._late: list[tuple[int, Start]] = []
        self._back: list[Change] = []

    # From handlers --------------------------------------------------------------------------------

    def begin(self, one: Delivery) -> Start | None:
        """Let a delivery begin whose row has a key, in the thread that has taken it.

        Returns:
            None where it may not: what it comes to is on its way to the store.
        """
        if not self._has_keys:
            return Start(one, None)
        start = self._begun_ahead(one)
        if start is None:
            return None
        is_low = start.is_over and self._is_low()
        while is_low or not start.is_over:
            is_low = False
            if self._is_to_write(start):
                self._write()
        if start.has_begun:
            return start
        self._pass_on(start)
        return None

    def begin_all(self, deliveries: Iterable[Delivery]) -> dict[Delivery, Start]:
        """Begin many, as `begin` does, for callers of `receive`. Returns those that may begin."""
        starts = []
        for one in deliveries:
            start = self._start(one) if self._has_keys else Start(one, None)
            if start is not None:
                starts.append(start)
        while left := [start for start in starts if not start.is_over]:
            self._decide(_by_name(left))
        for start in starts:
            if not start.has_begun:
                self._pass_on(start)
        return {start.one: start for start in starts if start.has_begun}

    def give_back(self, starts: Iterable[Start]) -> None:
        """Deliveries have begun, and are not handed out after all. Written by the next `keep`."""
        with self._lock:
            self._back += [start.change for start in starts if start.change is not None]

    def has_begun(self, row: Row) -> bool:
        """Whether a row has a key, and is begun in advance or about to be."""
        return row.key is not None and row.id in self._ahead

    def watch(self, row: Row) -> Callable[[], bool] | None:
        """Tells a handler whether its message is to stop; None where nothing can."""
        return Watch(self._keys, self._clock, row) if self._has_keys else None

    # From the engine ------------------------------------------------------------------------------

    def keep(self, *, is_leaving: bool = False) -> None:
        """Give back what was begun in advance and not taken, and pass on what has had to wait.

        Args:
            is_leaving: Whether nothing is taken any more.
        """
        if not (self._ahead or self._back or self._late):
            return
        now_us = self._clock.boot_us()
        known = self._memory.known
        with self._lock:
            unused = [
                start
                for start in self._ahead.values()
                if start.is_over
                and (is_leaving or now_us >= start.until_us or start.one.row.id not in known)
            ]
            for start in unused:
                del self._ahead[start.one.row.id]
            due = [start for at_us, start in self._late if at_us <= now_us]
            self._late = [(at_us, start) for at_us, start in self._late if at_us > now_us]
        for start in due:
            self._outbox.give_up(start.one)
        self.give_back(unused)
        self._write_back()

    @property
    def has_late(self) -> bool:
        """Whether what may not begin yet is to be looked at again a little later."""
        return bool(self._late)

    def close(self) -> None:
        """Give back all that was begun in advance: nothing is taken any more."""
        self.keep(is_leaving=True)

    def _write_back(self) -> None:
        with self._lock:
            back, self._back = self._back, []
        if not back:
            return
        try:
            # Refused: it has been cancelled, or begun by another.
            self._keys.write([self._keys.give_back(change) for change in back])
        except (StoreTimeout, StoreUnavailable) as error:
            # Left, each would be taken to run until it is begun the next time.
            log.info("queue %s: given back later: %s", self._register.name, error)
            with self._lock:
                self._back = [*back, *self._back][:_BACK_MAX]

    # Writing --------------------------------------------------------------------------------------

    def _begun_ahead(self, one: Delivery) -> Start | None:
        """The start of a delivery: as it was written in advance, or one that asks to be."""
        with self._lock:
            self._taken += 1
            start = self._ahead.pop(one.row.id, None)
            if start is not None:
                if not start.is_over or self._clock.boot_us() < start.until_us:
                    # It may have been read anew since.
                    start.one = one
                    return start
                self._back += [] if start.change is None else [start.change]
        start = self._start(one)
        if start is not None:
            with self._lock:
                self._asked.append(start)
        return start

    def _start(self, one: Delivery) -> Start | None:
        try:
            return Start(one, self._keys.begin(one.row))
        except StoreCorrupt as error:
            log.error("%s", error)  # noqa: TRY400 - it says all that there is to say
            start = Start(one, None)
            start.refuse(GIVEN_UP, _DAMAGED_US)
            self._pass_on(start)
            return None

    def _is_low(self) -> bool:
        """Whether threads take what is begun in advance sooner than more of it can be written.

        On this machine nothing is gained: who writes, and who handles, need the same processor.
        """
        return (
            len(self._ahead) < self._low
            and not (self._is_writing or self._is_local)
            and self._ready.is_threaded
            and self._ready.has_due()
        )

    def _is_to_write(self, start: Start) -> bool:
        """Whether this thread is to write; not once its own delivery is decided by another."""
        with self._lock:
            while self._is_writing and not start.is_over:
                self._clock.wait(self._changed, _WAIT_S)
            if self._is_writing or (start.is_over and not self._is_low()):
                return False
            self._is_writing = True
            # While it is written, slots wait: how fast they take what has begun shows between. Two
            # that end together by chance are no rate, so it grows and falls by and by.
            span_us = max(self._clock.boot_us() - self._wrote_us, _SPAN_US_MIN)
            stock = max(self._taken * _AHEAD_US // span_us, self._stock // 2)
            self._stock = min(stock, 4 * (self._stock + _GROWTH), _AHEAD_MAX)
        return True

    def _write(self) -> None:
        """Write what is asked for, and some in advance."""
        asked: list[Start] = []
        ahead: list[Start] = []
        try:
            ahead = self._choose_ahead()
            # Only now: meanwhile others may have come.
            asked = self._take_asked()
            self._decide(_by_name([*asked, *ahead]))
        finally:
            refused: dict[Delivery, Start] = {}
            taken = {start.one.row.id for start in asked}
            with self._lock:
                self._wrote_us, self._taken = self._clock.boot_us(), 0
                for start in ahead:
                    # Of one that was taken meanwhile its thread asks.
                    row_id = start.one.row.id
                    if not start.has_begun and row_id in self._ahead:
                        del self._ahead[row_id]
                        if row_id not in taken:
                            refused[start.one] = start
                for start in (*asked, *ahead):
                    start.is_over = True
                self._is_writing = False
                self._changed.notify_all()
        if refused:
            for one in self._ready.remove(refused.__contains__):
                self._pass_on(refused[one])

    def _take_asked(self) -> list[Start]:
        with self._lock:
            asked = _by_name(self._asked)
            taken = set(asked)
            self._asked = [one for one in self._asked if one not in taken]
        return asked

    def _choose_ahead(self) -> list[Start]:
        """Due rows that slots will take soon; not of groups, whose rows may still change places."""
        count = self._stock
        if not count:
            return []
        # Those too that are begun already, before which others may have been read since.
        first = self._ready.first_due(
            count, _may_begin_ahead, looks=_LOOKS_EACH * count + _LOOKS_MORE
        )
        ahead = self._ahead
        chosen = [
            start
            for one in first
            if one.row.id not in ahead and (start := self._start_ahead(one)) is not None
        ]
        with self._lock:
            ahead.update((start.one.row.id, start) for start in chosen)
            # Of those there are: else they would be looked for with each row that is taken.
            self._low = len(first) // _LOW_PART
        return chosen

    def _start_ahead(self, one: Delivery) -> Start | None:
        try:
            return Start(one, self._keys.begin(one.row))
        except StoreCorrupt:
            # Who takes it says so.
            return None

    def _decide(self, starts: Sequence[Start]) -> None:
        """Let these begin, each of another name; where the store is in trouble, they are left."""
        left = list(starts)
        try:
            for _ in range(_ROUNDS):
                if not left:
                    return
                refused = self._keys.write([one.change for one in left if one.change is not None])
                until_us = self._clock.boot_us() + _KEPT_US
                for start in left:
                    if start.name not in refused:
                        start.until_us = until_us
                        start.is_over = start.has_begun = True
                left = self._judge([start for start in left if start.name in refused])
            for start in left:
                start.refuse(GIVEN_UP, _LATER_US)
        except ShardqError as error:
            left = [start for start in left if not start.is_over]
            log.warning(
                "queue %s: %d messages with keys wait: %s", self._register.name, len(left), error
            )
            if isinstance(error, StoreTimeout):
                # Maybe begun: then each would be taken to run until it is begun the next time.
                self.give_back(left)
            for start in left:
                start.refuse(GIVEN_UP)
            # What is given up is read again at once, and there may be many.
            self._clock.sleep(_PAUSE_S)

    def _judge(self, starts: list[Start]) -> list[Start]:
        """Find out why these were refused, and what they come to; returns those to begin again."""
        if not starts:
            return []
        why: dict[Refusal, list[tuple[Start, Refused]]] = {}
        for start, refused in self._refusals(starts):
            why.setdefault(refused.why, []).append((start, refused))
        self._place_anew(why.get(Refusal.STRANDED, ()))
        copies = [start for start, _ in why.get(Refusal.COPY, ())]
        if copies:
            self._settler.delete(start.one.row.position for start in copies)
        for start in copies:
            start.refuse(LEFT)
        for start, _ in why.get(Refusal.LATER, ()):
            start.refuse(GIVEN_UP, _LATER_US)
        over = [start for start, _ in why.get(Refusal.OVER, ())]
        there = self._settler.still_there(start.one.row.position for start in over) if over else ()
        for start in over:
            start.refuse(DROPPED if start.one.row.position in there else LEFT)
        for start, _ in why.get(Refusal.CANCELLED, ()):
            start.refuse(CANCELLED)
        for start, _ in why.get(Refusal.BEHIND, ()):
            self._put_off(start)
        return self._again(why.get(Refusal.AGAIN, ()))

    def _put_off(self, start: Start) -> None:
        """Postpone a message that follows a running one: in place, or by moves after a while.

        A row that stays in place holds back the seal of its minute.
        """
        late_ms = self._clock.now_ms() - start.one.row.order[0]
        if late_ms < self._register.settings.hold_ms:
            start.refuse(GIVEN_UP, _LATER_US)
        else:
            start.refuse(Outcome(Fate.SNOOZE, _BEHIND_MS, BEHIND_A_RUN))

    def _again(self, refused: Sequence[tuple[Start, Refused]]) -> list[Start]:
        """Prepare another begin of each, from its key's row as it was just read."""
        superseded = [found.superseded for _, found in refused if found.superseded is not None]
        if superseded:
            # End them here: after the begin, nothing records that their ends are to be counted.
            self._settler.end(superseded, End.CANCELLED)
            self._stats.add(cancelled=len(superseded))
        for start, found in refused:
            own, key = start.one.row, found.key
            over = None if key.live == live_of(own) else key
            start.change = self._keys.begin(own, over)
        return [start for start, _ in refused]

    def _refusals(self, starts: list[Start]) -> list[tuple[Start, Refused]]:
        """Why each was refused; a key's row that is damaged keeps its own message alone."""
        try:
            found = self._keys.refusals([start.one.row for start in starts])
        except StoreCorrupt as error:
            if len(starts) > 1:
                return [one for start in starts for one in self._refusals([start])]
            log.error("%s", error)  # noqa: TRY400 - likewise
            starts[0].refuse(GIVEN_UP, _DAMAGED_US)
            return []
        return [(start, found[start.one.row.position]) for start in starts]

    def _place_anew(self, stranded: Sequence[tuple[Start, Refused]]) -> None:
        commands = {
            start: self._keys.re_place(refused.key, start.one.row) for start, refused in stranded
        }
        changed = set().union(*self._settler.replace(list(commands.values())))
        for start in commands:
            if start.name in changed:
                start.refuse(GIVEN_UP, _LATER_US)
            else:
                start.refuse(LEFT)

    def _pass_on(self, start: Start) -> None:
        """Let what does not begin come to its outcome."""
        one = start.one
        if not start.after_us:
            self._outbox.finish(one, start.outcome)
            return
        # Nobody is to wait for its handler.
        if one.take(END):
            with self._lock:
                self._late.append((self._clock.boot_us() + start.after_us, start))


class Watch:
    """Tells whether a message that runs is to stop, by a read of its key every 0.25 s at most."""

    __slots__ = ("_asked_us", "_clock", "_is_cancelled", "_keys", "_row")

    def __init__(self, keys: Keys, clock: Clock, row: Row) -> None:
        self._keys = keys
        self._clock = clock
        self._row = row
        self._asked_us: int | None = None
        self._is_cancelled = False

    def __call__(self) -> bool:
        """Whether it is, as far as is known: a store in trouble says nothing new."""
        now_us = self._clock.boot_us()
        if self._is_cancelled or (self._asked_us is not None and now_us - self._asked_us < _ASK_US):
            return self._is_cancelled
        self._asked_us = now_us
        try:
            self._is_cancelled = self._keys.is_cancelled(self._row)
        except (StoreTimeout, StoreUnavailable) as error:
            log.info("message %s runs on: %s", self._row.message_id, error)
        return self._is_cancelled


def _may_begin_ahead(one: Delivery) -> bool:
    row = one.row
    return row.key is not None and row.group is None and not one.doubtful


def _by_name(starts: Iterable[Start]) -> list[Start]:
    """The first of each name: two of one name are not to be told apart in one answer."""
    firsts: dict[str, Start] = {}
    for start in starts:
        firsts.setdefault(start.name, start)
    return list(firsts.values())
