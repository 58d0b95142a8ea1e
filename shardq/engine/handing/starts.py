"""Begins deliveries of messages with a key: by LWT, so that a cancel by key is exact.

```
 thread takes a row ── begun in advance? ── yes: its handler runs, without another LWT
        └─ no: one waiting thread writes ─► the rows of all, and rows that slots take within 50 ms
                    └─ refused ─► cancelled, replaced by a command, or tried again later
 begun in advance ── not taken within 1 s, or not in memory any more ─► given back
```

Rows that are begun in advance stay in `ready`, and code that takes them out need not know that they
are begun. `records/keys.py` decides which message has a name.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq import locks
from shardq.engine.handing.delivery import END
from shardq.engine.handing.outcome import CANCELLED, DROPPED, GIVEN_UP, LEFT
from shardq.engine.members.part import Part
from shardq.errors import ShardqError, StoreCorrupt, StoreTimeout, StoreUnavailable
from shardq.lifecycle.fate import BEHIND_A_RUN, Fate, Outcome
from shardq.model import names
from shardq.records.keyrow import live_of
from shardq.records.keys import MessageKeys, RefusedStart
from shardq.records.ledger import End
from shardq.records.standing import StartRefusal

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
"""Rows that slots take within this time, at the present rate, are begun together."""
_AHEAD_MAX = 1_000
_LOW_PART = 3
_LOOKS_EACH = 4
_LOOKS_MORE = 100
"""How many rows of `ready` to look at: `_LOOKS_EACH` for each row to begin in advance, and
`_LOOKS_MORE` besides."""
_SPAN_US_MIN = 1_000
_GROWTH = 4
_KEPT_US = 1_000_000
"""How long a message that is begun in advance may wait for a slot."""
_ROUNDS = 3
_WAIT_S = 1.0
_PAUSE_S = 0.2
_LATER_US = 500_000
"""How soon a row is reread that a command by key is about to replace."""
_BEHIND_MS = 10_000
"""How long a message is postponed that must wait for the end of a running message."""
_DAMAGED_US = 60_000_000
_BACK_MAX = 10_000
_ASK_US = 250_000


@dataclass(slots=True, eq=False)
class Start:
    """A delivery that is to begin, and the decision whether it does.

    Attributes:
        one: The delivery that is to begin.
        change: The change of the key's row; None if none is needed.
        name: The message's name.
        is_over: True if it is decided whether the delivery begins.
        has_begun: True if the delivery has begun.
        outcome: The outcome if the delivery does not begin.
        after_us: How soon the row is released if the delivery does not begin; 0: the delivery ends
            at once, by `outcome`.
        until_us: If begun in advance: time since boot until which the delivery waits for a slot.
        damage: What is damaged in the message's row or in its key's row; empty if nothing is.
    """

    one: Delivery
    change: Change | None
    name: str = field(init=False)
    is_over: bool = field(init=False)
    has_begun: bool = field(init=False)
    outcome: Outcome = GIVEN_UP
    after_us: int = 0
    until_us: int = 0
    damage: str = ""

    def __post_init__(self) -> None:
        self.name = "" if self.change is None else self.change.key[0]
        self.is_over = self.has_begun = self.change is None

    def refuse(self, outcome: Outcome, after_us: int = 0) -> None:
        """Decide that the delivery does not begin."""
        self.is_over, self.has_begun = True, False
        self.outcome, self.after_us = outcome, after_us


class Starts(Part):
    """Begins the deliveries of one engine that have keys. From any thread.

    Args:
        outbox: Stores the outcomes of deliveries that may not begin.
    """

    def __init__(self, member: Member, outbox: Outbox) -> None:
        super().__init__(member)
        self._is_local = self._store.is_local
        self._outbox = outbox
        self._keys = self._settler.keys
        # Messages in a dead-letter queue had their names in the queue where they ended.
        self._has_keys = not names.is_dead_queue(self._register.name)
        self._lock = locks.new()
        self._changed = locks.condition(self._lock)
        self._asked: list[Start] = []
        self._ahead: dict[bytes, Start] = {}
        """Row id -> a start in advance, written or not yet. Only the writing thread adds
        entries."""
        self._is_writing = False
        self._wrote_us = 0
        self._taken = 0
        """Rows taken since the last write."""
        self._stock = 0
        """How many rows to begin in advance, at the present rate."""
        self._low = 0
        """More rows are begun in advance once fewer than this are left."""
        self._late: list[tuple[int, Start]] = []
        self._back: list[Change] = []

    # From handlers --------------------------------------------------------------------------------

    def begin(self, one: Delivery) -> Start | None:
        """Begin a delivery whose row has a key, in the thread that has taken it.

        Returns:
            The start; None if the delivery may not begin, and its outcome is on its way to the
            store.
        """
        if not self._has_keys:
            return Start(one, None)
        start = self._begun_ahead(one)
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
        """Begin many deliveries, for callers of `receive`; returns the starts that began."""
        starts = [self._start(one) if self._has_keys else Start(one, None) for one in deliveries]
        while left := [start for start in starts if not start.is_over]:
            self._decide(_by_name(left))
        for start in starts:
            if not start.has_begun:
                self._pass_on(start)
        return {start.one: start for start in starts if start.has_begun}

    def give_back(self, starts: Iterable[Start]) -> None:
        """Take back starts of deliveries that are not handed out; the next `keep` writes this."""
        with self._lock:
            self._back += [start.change for start in starts if start.change is not None]

    def has_begun(self, row: Row) -> bool:
        """True if a row has a key, and its delivery is begun in advance or about to be."""
        return row.key is not None and row.id in self._ahead

    def watch(self, row: Row) -> Callable[[], bool] | None:
        """The check by which a handler sees that its message must stop; None if it never must."""
        return CancelCheck(self._keys, self._clock, row) if self._has_keys else None

    # Called by the engine -------------------------------------------------------------------------

    def keep(self, *, is_leaving: bool = False) -> None:
        """Give back starts in advance that no thread used, and release rows whose pause is over.

        Args:
            is_leaving: True if no row is taken any more.
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
        """True if rows that may not begin yet wait to be reread a little later."""
        return bool(self._late)

    def _write_back(self) -> None:
        with self._lock:
            back, self._back = self._back, []
        if not back:
            return
        try:
            # A change is refused if its message was cancelled, or begun by another member.
            self._keys.write([self._keys.give_back(change) for change in back])
        except (StoreTimeout, StoreUnavailable) as error:
            # Without this write each message counts as running until it begins again.
            log.info("queue %s: given back later: %s", self._register.name, error)
            with self._lock:
                self._back = [*back, *self._back][:_BACK_MAX]

    # Writing --------------------------------------------------------------------------------------

    def _begun_ahead(self, one: Delivery) -> Start:
        """The start of a delivery: made in advance, or a new one that waits to be written."""
        with self._lock:
            self._taken += 1
            start = self._ahead.pop(one.row.id, None)
            if start is not None:
                if not start.is_over or self._clock.boot_us() < start.until_us:
                    # The row may have been reread since, into this delivery.
                    start.one = one
                    return start
                self._back += [] if start.change is None else [start.change]
        start = self._start(one)
        if not start.is_over:
            with self._lock:
                self._asked.append(start)
        return start

    def _start(self, one: Delivery) -> Start:
        """A start that is to be decided; a start whose row is damaged is refused at once."""
        start = Start(one, None)
        try:
            start = Start(one, self._keys.begin(one.row))
        except StoreCorrupt as error:
            start.refuse(GIVEN_UP, _DAMAGED_US)
            start.damage = str(error)
        return start

    def _is_low(self) -> bool:
        """True if threads will have taken all starts in advance before more are written.

        Always False for a store on this machine: the writer and the handlers share its processor.
        """
        return (
            len(self._ahead) < self._low
            and not (self._is_writing or self._is_local)
            and self._ready.is_threaded
            and self._ready.has_due()
        )

    def _is_to_write(self, start: Start) -> bool:
        """True if this thread must write the starts.

        False if another thread has decided this thread's delivery, unless too few rows are begun in
        advance.
        """
        with self._lock:
            while self._is_writing and not start.is_over:
                self._clock.wait(self._changed, _WAIT_S)
            if self._is_writing or (start.is_over and not self._is_low()):
                return False
            self._is_writing = True
            # Slots wait during a write, so the rate at which they take rows shows between writes.
            # Two slots that end together by chance are no rate, so the stock grows and falls step
            # by step.
            span_us = max(self._clock.boot_us() - self._wrote_us, _SPAN_US_MIN)
            stock = max(self._taken * _AHEAD_US // span_us, self._stock // 2)
            self._stock = min(stock, 4 * (self._stock + _GROWTH), _AHEAD_MAX)
        return True

    def _write(self) -> None:
        """Write the starts for which threads wait, and some in advance."""
        asked: list[Start] = []
        ahead: list[Start] = []
        try:
            ahead = self._choose_ahead()
            # Take them after the choice, during which more threads may have asked.
            asked = self._take_asked()
            self._decide(_by_name([*asked, *ahead]))
        finally:
            refused: dict[Delivery, Start] = {}
            taken = {start.one.row.id for start in asked}
            with self._lock:
                self._wrote_us, self._taken = self._clock.boot_us(), 0
                for start in ahead:
                    # If a thread has taken the row meanwhile, that thread ends the delivery.
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
        """Choose due rows that slots will take soon, but none of groups: their heads may change."""
        count = self._stock
        if not count:
            return []
        # `count` includes rows that are begun already, as rows before them may have been read
        # since.
        first = self._ready.first_due(
            count, _may_begin_ahead, looks=_LOOKS_EACH * count + _LOOKS_MORE
        )
        ahead = self._ahead
        chosen = [
            start
            for one in first
            if one.row.id not in ahead and not (start := self._start(one)).is_over
        ]
        with self._lock:
            ahead.update((start.one.row.id, start) for start in chosen)
            # A part of the rows found, not of the stock: with few rows, each row that is taken
            # would cause a search.
            self._low = len(first) // _LOW_PART
        return chosen

    def _decide(self, starts: Sequence[Start]) -> None:
        """Begin these starts, each of another name; release those that the store fails to write."""
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
                # Some starts may have been written: not given back, they would count as running
                # until they begin again.
                self.give_back(left)
            for start in left:
                start.refuse(GIVEN_UP)
            # Pause, as released rows are reread at once, and there may be many.
            self._clock.sleep(_PAUSE_S)

    def _judge(self, starts: list[Start]) -> list[Start]:
        """Find out why these starts were refused, and decide each; returns those to begin again."""
        if not starts:
            return []
        why: dict[StartRefusal, list[tuple[Start, RefusedStart]]] = {}
        for start, refused in self._refusals(starts):
            why.setdefault(refused.why, []).append((start, refused))
        self._place_anew(why.get(StartRefusal.STRANDED, ()))
        copies = [start for start, _ in why.get(StartRefusal.COPY, ())]
        if copies:
            self._settler.delete(start.one.row.position for start in copies)
        for start in copies:
            start.refuse(LEFT)
        for start, _ in why.get(StartRefusal.LATER, ()):
            start.refuse(GIVEN_UP, _LATER_US)
        over = [start for start, _ in why.get(StartRefusal.OVER, ())]
        there = self._settler.still_there(start.one.row.position for start in over) if over else ()
        for start in over:
            start.refuse(DROPPED if start.one.row.position in there else LEFT)
        for start, _ in why.get(StartRefusal.CANCELLED, ()):
            start.refuse(CANCELLED)
        for start, _ in why.get(StartRefusal.BEHIND, ()):
            self._put_off(start)
        return self._again(why.get(StartRefusal.AGAIN, ()))

    def _put_off(self, start: Start) -> None:
        """Postpone a message that follows a running one: in place, or by moves after `hold`.

        The row moves then, because a row that stays in place holds back the seal of its minute.
        """
        late_ms = self._clock.now_ms() - start.one.row.order[0]
        if late_ms < self._register.settings.hold_ms:
            start.refuse(GIVEN_UP, _LATER_US)
        else:
            start.refuse(Outcome(Fate.SNOOZE, _BEHIND_MS, BEHIND_A_RUN))

    def _again(self, refused: Sequence[tuple[Start, RefusedStart]]) -> list[Start]:
        """Prepare to begin refused starts again, each by its key's row as just read."""
        superseded = [found.superseded for _, found in refused if found.superseded is not None]
        if superseded:
            # End the superseded messages here: once the begin is written, no record shows that
            # their ends must be counted.
            self._settler.end(superseded, End.CANCELLED)
            self._stats.add(cancelled=len(superseded))
        for start, found in refused:
            own, key = start.one.row, found.key
            over = None if key.live == live_of(own) else key
            start.change = self._keys.begin(own, over)
        return [start for start, _ in refused]

    def _refusals(self, starts: list[Start]) -> list[tuple[Start, RefusedStart]]:
        """Find out why each start was refused; a damaged key's row delays only its own message."""
        try:
            found = self._keys.refusals([start.one.row for start in starts])
        except StoreCorrupt as error:
            if len(starts) > 1:
                return [one for start in starts for one in self._refusals([start])]
            starts[0].refuse(GIVEN_UP, _DAMAGED_US)
            starts[0].damage = str(error)
            return []
        return [(start, found[start.one.row.position]) for start in starts]

    def _place_anew(self, stranded: Sequence[tuple[Start, RefusedStart]]) -> None:
        commands = {
            start: self._keys.re_place(refused.key, start.one.row) for start, refused in stranded
        }
        changed = set().union(*self._settler.place(list(commands.values())))
        for start in commands:
            if start.name in changed:
                start.refuse(GIVEN_UP, _LATER_US)
            else:
                start.refuse(LEFT)

    def _pass_on(self, start: Start) -> None:
        """End a delivery that does not begin: by its outcome at once, or by a release later."""
        one = start.one
        if start.damage:
            log.error("%s", start.damage)
        if not start.after_us:
            self._outbox.finish(one, start.outcome)
            return
        # Mark the delivery as ended, so that nobody waits for its handler.
        if one.take(END):
            with self._lock:
                self._late.append((self._clock.boot_us() + start.after_us, start))


class CancelCheck:
    """Checks if a running message must stop; reads the row of its key every 0.25 s at most."""

    __slots__ = ("_asked_us", "_clock", "_is_cancelled", "_keys", "_row")

    def __init__(self, keys: MessageKeys, clock: Clock, row: Row) -> None:
        self._keys = keys
        self._clock = clock
        self._row = row
        self._asked_us: int | None = None
        self._is_cancelled = False

    def __call__(self) -> bool:
        """True if the message must stop, according to the last read that the store answered."""
        now_us = self._clock.boot_us()
        if self._is_cancelled or (self._asked_us is not None and now_us - self._asked_us < _ASK_US):
            return self._is_cancelled
        self._asked_us = now_us
        try:
            self._is_cancelled = self._keys.is_cancelled(self._row)
        except (StoreCorrupt, StoreTimeout, StoreUnavailable) as error:
            log.info("message %s runs on: %s", self._row.message_id, error)
        return self._is_cancelled


def _may_begin_ahead(one: Delivery) -> bool:
    row = one.row
    return row.key is not None and row.group is None and not one.doubtful


def _by_name(starts: Iterable[Start]) -> list[Start]:
    """The first start of each name: a write reports refusals by name."""
    firsts: dict[str, Start] = {}
    for start in starts:
        firsts.setdefault(start.name, start)
    return list(firsts.values())
