"""Sharing: due rows that no slot of this member begins soon move to members with free slots.

```
 look ─► waiting slots, due rows, deliveries begun ─► free, surplus ── reported in heartbeats
 share ─► free slots of others ── ours to offer? ──► first due rows ──► moved to a lane of theirs
             by a hash of slot and heartbeat, so that one member gives rows that all could give
```

This member never hands a moved row out again, unless a read finds the row at its old place.
`outbox.py` moves rows; `membership.py` decides which member reads which lane.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shardq.engine.members.part import Part
from shardq.engine.news import FREE_US
from shardq.model.ids import birth_us
from shardq.model.message import task_of
from shardq.records.membership import Heartbeat, ranking, reported_runs, reported_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.members.member import Member
    from shardq.engine.storing.outbox import Outbox
    from shardq.model.message import Row

log = logging.getLogger(__name__)

_STALLED_US = 100_000
"""If no slot has begun a delivery for this long, all due rows are surplus."""
_SOON_US = 100_000
"""Rows that slots begin within this time, at the rate of the last second, are no surplus."""
_QUICK_US = 5_000
"""At a mean run time below this, moving a message costs more than running it."""
_GIFT_US = 300_000
"""Run time of the messages that one slot is given at once."""
_GIFT_MAX = 64
_ROWS_MAX = 200
_BYTES_MAX = 4 << 20
"""The most rows that one step moves, and about the most bytes; one row may always move."""
_TURN_US = 250_000
_TURN_LOCAL_US = 120_000
"""If a slot was offered for this long without an answer, another member offers rows to it."""
_ALIKE_MS = 500
"""A member whose rows have waited for this much longer than other members' rows gives first."""
_STAY_US = 100_000
_STAY_PART, _STAY_PART_LEAVING = 10, 2
_STAY_MAX_US = 500_000
"""A shared row stays in its lane for a tenth of its lateness, within these bounds. Otherwise it
could circle among members that each believe other members free; so it begins wherever it is the
first by then. If several members leave at once, the row stays for half of its lateness: other
members may still read the lanes that it is given to."""
_IDLE_US = 1_000_000
_SHUNNED_US = 3_000_000
_SHUNNED_LONG_US = 30_000_000
"""How long a member gets no rows after it has begun none of them within 1 s of a gift: the first
time, and later times."""
_LOOK_MAX = 1_000
_WINDOW_US = 1_000_000
_SAMPLE_US = 50_000


class _Sample(NamedTuple):
    """Totals at a time since boot: deliveries begun, deliveries ended, time of taken slots."""

    at_us: int
    begun: int
    ended: int
    taken_us: int


class _MemberSlot(NamedTuple):
    """A free slot of another member, and the lanes to which rows are moved for the slot."""

    member: str
    place: int
    lanes: dict[int, list[int]]
    """Band -> lanes."""


@dataclass(slots=True)
class _Seen:
    """The facts about another member that its heartbeat does not hold. Times are since boot.

    Attributes:
        number: The number of the member's last heartbeat.
        after_us: When this member last looked before it saw that heartbeat, which was sent after
            this time.
        looked_us: When this member last looked for a heartbeat.
        offered: The slots to which this member has given rows since that heartbeat.
        given_us: When the member was given rows of which it has begun none yet; 0 without such
            rows.
        begun: How many begun deliveries the member had reported when it was given those rows.
        lanes: The lanes to which those rows were moved.
        shunned_us: Until when the member gets no rows.
        is_suspect: True if the member was shunned, and has begun no delivery since.
        turn: How often the member's slots have passed from one giver to the next since that
            heartbeat.
        turn_us: When the slots last passed to the next giver.
    """

    number: int = -1
    after_us: int = 0
    looked_us: int = 0
    offered: set[int] = field(default_factory=set)
    given_us: int = 0
    begun: int = 0
    lanes: set[int] = field(default_factory=set)
    shunned_us: int = 0
    is_suspect: bool = False
    turn: int = -1
    turn_us: int = 0
    _givers: list[str] = field(default_factory=list)

    def begin_turn(self, name: str, givers: Mapping[str, int], now_us: int) -> None:
        """Choose the members that give to this member's slots during a turn, one for each slot.

        The choice stays for the turn, whatever heartbeats report meanwhile: if two members gave
        rows to one slot, one of the rows would wait.

        Args:
            givers: Giving member -> the due since which its first surplus row has waited.
        """
        first_ms = min(givers.values())
        self._givers = ranking(f"{name}/{self.number}", givers)
        # Sort by coarse age: by exact age the same giver would come first for all slots, and that
        # giver may have one row.
        self._givers.sort(key=lambda giver: (givers[giver] - first_ms) // _ALIKE_MS)
        self.turn, self.turn_us = self.turn + 1, now_us

    def giver_of(self, place: int) -> str:
        """The member that gives to a slot; after a turn without success, the next member."""
        return self._givers[(place + self.turn) % len(self._givers)]


class Sharing(Part):
    """The surplus of one member, and the members to which it gives rows.

    Args:
        has_begun: Returns True if a row is begun in advance, so that no other member may have it.
        callers_since: Returns when each waiting caller of `receive` began to wait, time since boot;
            None if handlers take the rows.

    Attributes:
        free: How many slots wait while no row of this member is due.
        surplus: How many due rows other members may have.
        oldest_ms: The due since which the first surplus row has waited, epoch milliseconds; 0
            without such a row.
        is_leaving: True if this member ends soon, and other members get all rows that they may
            have.
    """

    def __init__(
        self,
        member: Member,
        outbox: Outbox,
        has_begun: Callable[[Row], bool],
        callers_since: Callable[[], Sequence[int]] | None,
    ) -> None:
        super().__init__(member)
        self._outbox = outbox
        self._has_begun = has_begun
        self._callers_since = callers_since
        self._turn_us = _TURN_LOCAL_US if self._store.is_local else _TURN_US
        self._samples: deque[_Sample] = deque()
        self._looked_us = self._clock.boot_us()
        self._taken_us = self._ended = 0
        self._begun = 0
        self._begun_us = self._looked_us
        self._freed_us = 0
        self._seen: dict[str, _Seen] = {}
        self._turn = 0
        self.free = 0
        self.surplus = self.oldest_ms = 0
        self.is_leaving = False

    # Reports --------------------------------------------------------------------------------------

    def look(self) -> None:
        """Count free slots and surplus. Called once a step, never for each message."""
        now_us = self._clock.boot_us()
        due, waiting = self._ready.due, self._waiting_since()
        self._sample(now_us, waiting)
        had = self.free
        self.free = 0 if due else sum(now_us - since_us >= FREE_US for since_us in waiting)
        if self.free > had:
            self._freed_us = now_us
        self._reckon(now_us, due, len(waiting))

    def told(
        self,
        lanes: tuple[int, ...],
        *,
        gave: tuple[tuple[int, str], ...],
        version: int,
        holder: str,
        limited: dict[str, int],
    ) -> Heartbeat:
        """A heartbeat's fields about the rows and the running handlers of this member.

        Args:
            lanes: The lanes that this member reads.
            gave: The group lanes that this member gave away lately, each with its new owner.
            version: The version of the settings that this member follows.
            holder: The beginning of the locks of this member's leases.
            limited: How many due rows limits hold back, by the kind of limit.
        """
        outbox = self._outbox
        handed_out, run = outbox.handed_out(), outbox.at_work()
        now_ms, now_us = self._clock.now_ms(), self._clock.boot_us()
        longest_us = now_us - min(one.begun_us for one in run) if run else 0
        shortest_us = now_us - max(one.begun_us for one in run) if run else 0
        since_ms = [(one.row.message_id, now_ms - (now_us - one.begun_us) // 1_000) for one in run]
        runs = reported_runs(since_ms) if self._threads else ()
        rows = {one.row.message_id: one.row for one in run}
        return Heartbeat(
            threads=self._threads,
            # A parked row is a claim, which is counted among the rows in its shard.
            busy=sum(not one.is_claim for one in handed_out),
            # A caller of `receive` runs no handler.
            running=min(max(len(run) - outbox.endings.freed, 0), self._threads),
            longest_ms=longest_us // 1_000 if self._threads else 0,
            shortest_ms=shortest_us // 1_000 if self._threads else 0,
            ready=len(self._ready),
            lanes=lanes,
            isolated=self._isolated,
            runs=runs,
            tasks=reported_tasks(task_of(rows[message_id]) or "" for message_id, _ in runs),
            version=version,
            holder=holder,
            gave=gave,
            limited=limited,
        )

    def _look_again(self) -> None:
        """Count surplus anew, with the rows that this step has read.

        Nothing is counted if a caller steps the engine: the caller takes those rows after this.
        """
        if self._ready.is_threaded and not self.surplus and (due := self._ready.due):
            waiting = len(self._ready.waiting_since())
            self._reckon(self._clock.boot_us(), due, waiting)

    def _waiting_since(self) -> Sequence[int]:
        if self._callers_since is not None:
            return self._callers_since()
        if self._ready.is_threaded:
            return self._ready.waiting_since()
        # The thread that steps the engine also delivers: it has had no time for rows that are due.
        return () if self._ready.due else (0,)

    def _sample(self, now_us: int, waiting: Sequence[int]) -> None:
        slots = self._threads if self._ready.is_threaded else 1
        taken = max(slots - len(waiting), 0)
        self._taken_us += taken * (now_us - self._looked_us)
        self._looked_us = now_us
        begun = self._outbox.begun
        self._ended = begun - taken
        if begun != self._begun:
            self._begun, self._begun_us = begun, now_us
        samples = self._samples
        if not samples or now_us - samples[-1].at_us >= _SAMPLE_US:
            samples.append(_Sample(now_us, begun, self._ended, self._taken_us))
            while len(samples) > 1 and now_us - samples[1].at_us >= _WINDOW_US:
                samples.popleft()

    def _reckon(self, now_us: int, due: int, waiting: int) -> None:
        """Calculate how many of the due rows other members may have."""
        self.surplus = self.oldest_ms = 0
        beyond = self._beyond(now_us, due, waiting) if due else 0
        if beyond > 0 and not self._membership.others:
            # Set the surplus without members too: with surplus, heartbeats of others are read more
            # often.
            self.surplus = beyond
        elif beyond > 0:
            may_go, oldest_ms = self._ready.find_due(self._may_go, _LOOK_MAX)
            self.surplus, self.oldest_ms = min(beyond, may_go), oldest_ms

    def _beyond(self, now_us: int, due: int, waiting: int) -> int:
        """How many due rows this member's own slots do not begin soon."""
        if self._isolated or (waiting and self._callers_since is None):
            return 0
        if now_us - self._last_begun_us() >= _STALLED_US:
            own = 0
        elif (mean_us := self.mean_us) is None or mean_us < _QUICK_US:
            return 0
        else:
            first = self._samples[0]
            span_us = max(now_us - first.at_us, 1)
            own = (self._outbox.begun - first.begun) * _SOON_US // span_us
        return due - waiting - own

    def _last_begun_us(self) -> int:
        """When the last delivery began; exact if few are under way, else as of the last look."""
        if self._outbox.running > 2 * self._threads:
            return self._begun_us
        return max((one.begun_us for one in self._outbox.handed_out()), default=self._begun_us)

    @property
    def mean_us(self) -> int | None:
        """The time that slots were taken lately, per ended delivery; None if not known yet."""
        if not self._samples:
            return None
        first = self._samples[0]
        if self._looked_us - first.at_us < _SAMPLE_US and self._ended <= first.ended:
            return None
        return (self._taken_us - first.taken_us) // max(self._ended - first.ended, 1)

    def _gift(self) -> int:
        """How many rows a slot gets at once."""
        mean_us = self.mean_us
        if mean_us is None or self._ended <= self._samples[0].ended:
            return 1
        return min(max(_GIFT_US // max(mean_us, 1), 1), _GIFT_MAX)

    @property
    def is_awake(self) -> bool:
        """True to step at the busy pace: rows wait to be shared, or may be given to this member."""
        if not self._membership.beats or self._isolated:
            return False
        if self.free:
            return self._clock.boot_us() - self._freed_us < _IDLE_US
        return self._ready.due > 0

    @property
    def is_barred(self) -> bool:
        """True if other members may have free slots, but cannot be given the due rows."""
        if self._isolated:
            return True
        beats = self._membership.beats
        return not self.surplus and any(beats[one].free for one in self._membership.others)

    # Giving ---------------------------------------------------------------------------------------

    @property
    def _may_share(self) -> bool:
        return bool(self._membership.others) and not self._isolated

    def share(self) -> None:
        """Move surplus rows to those free slots of other members to which this member is to give.

        The next flush of the outbox stores the moves.

        Raises:
            StoreUnavailable, StoreTimeout: The heartbeats could not be read; no row was moved.
        """
        if not self._may_share:
            return
        if self.is_leaving:
            self._share_all()
            return
        self._look_again()
        if not self.surplus:
            return
        self._membership.look()
        if not self._may_share:
            return
        slots = list(self._slots())
        if not slots:
            return
        each = min(self._gift(), -(-self.surplus // len(slots)))
        left = min(self.surplus, self._rows_at_once())
        moved = 0
        for slot in slots:
            if left <= 0:
                break
            rows = self._ready.relinquish(min(each, left), partial(self._suits, slot))
            if not rows:
                continue
            left -= len(rows)
            moved += len(rows)
            gifts = [self._give(one, slot.lanes[one.band]) for one in rows]
            if given := {lane for lane in gifts if lane is not None}:
                self._note_given(slot, given)
        self.surplus -= moved
        if moved:
            log.debug("queue %s: shared %d rows", self._register.name, moved)

    def _give(self, one: Delivery, lanes: Sequence[int]) -> int | None:
        """Move a row to the next of these lanes; returns the lane, or None if the row stays."""
        self._turn += 1
        lane = lanes[self._turn % len(lanes)]
        return lane if self._outbox.share(one, lane) else None

    def _rows_at_once(self) -> int:
        """The most rows that one step moves; large rows take long, and leases end meanwhile."""
        body_bytes = self._memory.body_bytes // max(len(self._memory.known), 1)
        return min(_ROWS_MAX, max(_BYTES_MAX // max(body_bytes, 1), 1))

    def _share_all(self) -> None:
        """Give other members all rows that are due or soon due; none begins here any more.

        A row that is not due yet keeps its due, and is so not delivered late.
        """
        self._membership.look()
        lanes = self._lanes_of_others()
        rows = self._ready.relinquish(
            self._rows_at_once(),
            lambda one: one.band in lanes and self._may_go(one),
            is_early=True,
        )
        for one in rows:
            self._give(one, lanes[one.band])

    def _lanes_of_others(self) -> dict[int, list[int]]:
        """Band -> lanes of members with free slots or, without any, of all other members."""
        beats = self._membership.beats
        names = [name for name in self._membership.others if not beats[name].isolated]
        lanes: dict[int, list[int]] = {}
        readers = self._readers()
        for name in [name for name in names if beats[name].free] or names:
            for band, of_band in self._lanes_of(name, readers).items():
                lanes.setdefault(band, []).extend(of_band)
        return lanes

    def _suits(self, slot: _MemberSlot, one: Delivery) -> bool:
        return one.band in slot.lanes and self._may_go(one)

    def _may_go(self, one: Delivery) -> bool:
        """True if a row may be given to another member."""
        row = one.row
        if row.group is not None or one.doubtful or self._has_begun(row):
            return False
        lane = self._memory.lanes.get(row.shard.lane)
        if lane is None or row.shard.minute <= lane.sealed:
            return False
        if row.since_ms is None:
            return True
        now_us = self._clock.now_us()
        late_us = now_us - row.since_ms * 1_000
        beats = self._membership.beats.values()
        is_crossed = self.is_leaving and any(beat.leaving for beat in beats)
        part = _STAY_PART_LEAVING if is_crossed else _STAY_PART
        stays_us = min(max(_STAY_US, late_us // part), _STAY_MAX_US)
        return now_us - birth_us(row.id) >= stays_us

    def _slots(self) -> Iterator[_MemberSlot]:
        """Free slots to which this member is to give rows, each once for each heartbeat."""
        now_us = self._clock.boot_us()
        beats = self._membership.beats
        self._seen = {name: one for name, one in self._seen.items() if name in beats}
        me, told = self._membership.member, self._membership.last
        # Decide by the last heartbeats, our own too: so all givers agree on which of them gives.
        givers = {name: beat.oldest_ms for name, beat in beats.items() if beat.surplus}
        givers[me] = told.oldest_ms or self.oldest_ms
        readers = self._readers()
        for name in self._membership.others:
            beat = beats[name]
            seen = self._seen.setdefault(name, _Seen())
            self._judge(name, seen, beat, now_us)
            if beat.isolated or not beat.free or seen.shunned_us > now_us:
                continue
            lanes = self._lanes_of(name, readers)
            if not lanes:
                continue
            if seen.turn < 0 or now_us - seen.turn_us >= self._turn_us:
                seen.begin_turn(name, givers, now_us)
            # A member for callers of `receive` has no threads.
            for place in range(min(beat.free, beat.threads or beat.free)):
                if place in seen.offered:
                    continue
                if seen.giver_of(place) == me:
                    yield _MemberSlot(name, place, lanes)

    def _judge(self, name: str, seen: _Seen, beat: Heartbeat, now_us: int) -> None:
        if beat.number != seen.number:
            seen.number, seen.after_us = beat.number, seen.looked_us
            seen.offered = set()
            seen.turn = -1
        seen.looked_us = now_us
        if not seen.given_us:
            return
        if beat.begun > seen.begun:
            seen.given_us, seen.is_suspect = 0, False
        elif not seen.lanes <= set(beat.lanes):
            # Other members read these lanes by now, and have the given rows.
            seen.given_us = 0
        elif seen.after_us - seen.given_us >= _IDLE_US:
            shunned_us = _SHUNNED_LONG_US if seen.is_suspect else _SHUNNED_US
            seen.given_us, seen.shunned_us, seen.is_suspect = 0, now_us + shunned_us, True
            log.info(
                "queue %s: member %s has free slots, and begins nothing; it is given nothing more "
                "for %d s",
                self._register.name,
                name,
                shunned_us // 1_000_000,
            )

    def _note_given(self, slot: _MemberSlot, lanes: set[int]) -> None:
        seen, beat = self._seen[slot.member], self._membership.beats[slot.member]
        seen.offered.add(slot.place)
        if not seen.given_us:
            seen.given_us, seen.begun = self._clock.boot_us(), beat.begun
            seen.lanes = set()
        seen.lanes |= lanes

    def _readers(self) -> dict[int, str]:
        """Lane that is polled by another member -> the member that should read it."""
        register, ours, now_ms = self._register, self._memory.lanes, self._clock.now_ms()
        layout, settings = register.layout, register.settings
        polled = settings.lanes_polled(now_ms)
        readers = self._membership.readers(
            layout.lanes(), now_ms, bands=layout.bands, filled=settings.lanes_written
        )
        return {
            lane: name
            for lane, name in readers.items()
            if lane not in ours and layout.index_of(lane) < polled
        }

    def _lanes_of(self, name: str, readers: Mapping[int, str]) -> dict[int, list[int]]:
        """Band -> lanes to which rows for a member are moved.

        These are the lanes that the member has reported and should still read, as members may have
        joined or left since. If there are none, they are all lanes that it has reported.
        """
        layout = self._register.layout
        bands: dict[int, list[int]] = {}
        reads = [lane for lane in self._membership.beats[name].lanes if lane in readers]
        for lane in [lane for lane in reads if readers[lane] == name] or reads:
            bands.setdefault(layout.band_of(lane), []).append(lane)
        return bands
