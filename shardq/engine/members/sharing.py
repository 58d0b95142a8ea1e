"""Sharing surplus: due rows that no slot of ours begins soon go to members that have free ones.

```
 look ─► slots that wait, due rows, deliveries begun ─► free, surplus ── told in heartbeats
 share ─► free slots of others ── ours to offer? ──► first due rows ──► moved to a lane of theirs
             by a hash of slot and heartbeat, so that one member gives what all could
```

A row that was moved is never handed out here again, unless a read finds its old row. How rows move,
`outbox.py` knows; who reads which lane, `membership.py`.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shardq.engine.news import FREE_US
from shardq.model.ids import birth_us
from shardq.records.membership import Heartbeat, ranking, runs_told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardq.engine.handing.delivery import Delivery
    from shardq.engine.members.member import Member
    from shardq.engine.storing.outbox import Outbox
    from shardq.model.message import Row

log = logging.getLogger(__name__)

_STALLED_US = 100_000
"""While no slot has begun anything for so long, all that is due is surplus."""
_SOON_US = 100_000
"""What slots begin within it is theirs, at the rate of the last second."""
_QUICK_US = 5_000
"""At a mean run time below this, moving a message costs more than running it."""
_GIFT_US = 300_000
"""Run time of the messages that one slot is given at once."""
_GIFT_MAX = 64
_ROWS_MAX = 200
_BYTES_MAX = 4 << 20
"""Most rows that one step moves, and about how many bytes of bodies, but one row always."""
_TURN_US = 250_000
_TURN_LOCAL_US = 120_000
"""After so long without an answer, another member offers a slot."""
_ALIKE_MS = 500
"""A member whose rows have waited this much longer than those of others gives first."""
_STAY_US = 100_000
_STAY_PART, _STAY_PART_LEAVING = 10, 2
_STAY_MAX_US = 500_000
"""A row that was shared stays for a tenth of its lateness, within these bounds: so none goes round
among members that each believe others free, but is begun where it is the first by then. For half of
it where several leave at once: others may still read the lanes that it is given to."""
_IDLE_US = 1_000_000
_SHUNNED_US = 3_000_000
_SHUNNED_LONG_US = 30_000_000
"""A member that began nothing within a second of being given messages gets nothing for this
long, at first and later."""
_LOOK_MAX = 1_000
_WINDOW_US = 1_000_000
_SAMPLE_US = 50_000


class _Sample(NamedTuple):
    """At a time since boot: deliveries begun, and ended; how long slots have been taken."""

    at_us: int
    begun: int
    ended: int
    taken_us: int


class _Slot(NamedTuple):
    """A free slot of another member, and the lanes in which it finds what it is given."""

    member: str
    place: int
    lanes: dict[int, list[int]]
    """Band -> lanes."""


class _Seen:
    """What we know of another member beside its heartbeat.

    Attributes:
        number: Of its last heartbeat.
        after_us: When this was looked for before it was first seen: it was sent after that.
        looked_us: When it was looked for last.
        offered: Which of its slots we have given something since.
        given_us: When it was given what it has not begun yet; 0: never, or begun.
        begun: What it had begun by then.
        lanes: To which of its lanes that has gone.
        shunned_us: Until when it gets nothing.
        is_suspect: Whether it was shunned, and has begun nothing since.
        turn: How often its slots have gone from one giver to the next since its heartbeat.
        turn_us: When they did last.
    """

    __slots__ = (
        "_givers",
        "after_us",
        "begun",
        "given_us",
        "is_suspect",
        "lanes",
        "looked_us",
        "number",
        "offered",
        "shunned_us",
        "turn",
        "turn_us",
    )

    def __init__(self) -> None:
        self.number = -1
        self.after_us = self.looked_us = 0
        self.offered: set[int] = set()
        self.given_us = 0
        self.begun = 0
        self.lanes: set[int] = set()
        self.shunned_us = 0
        self.is_suspect = False
        self.turn = -1
        self.turn_us = 0
        self._givers: list[str] = []

    def begin_turn(self, name: str, givers: Mapping[str, int], now_us: int) -> None:
        """Let its slots be offered by these from now on, one slot by each.

        For a while, whatever they tell meanwhile: a slot that two of them give something keeps one
        of the rows waiting.

        Args:
            givers: Name -> from when the first of its surplus has waited. That goes first.
        """
        first_ms = min(givers.values())
        self._givers = ranking(f"{name}/{self.number}", givers)
        # Not by their very age: all slots would be offered by one, which may have one row.
        self._givers.sort(key=lambda giver: (givers[giver] - first_ms) // _ALIKE_MS)
        self.turn, self.turn_us = self.turn + 1, now_us

    def giver_of(self, place: int) -> str:
        """The member that offers a slot: after a turn without success the next one does."""
        return self._givers[(place + self.turn) % len(self._givers)]


class Sharing:
    """What one member has beyond what its slots begin soon, and whom it gives that.

    Args:
        has_begun: Whether a row is begun in advance, which no other may have.
        callers_since: When each caller of `receive` that waits began to, time since boot.

    Attributes:
        free: Slots that wait while nothing is due here.
        surplus: Due rows that others may have.
        oldest_ms: The due from which the first of them has waited, epoch milliseconds; 0: of none.
        is_leaving: Whether this member ends soon, and others get all that they may have.
    """

    def __init__(
        self,
        member: Member,
        outbox: Outbox,
        has_begun: Callable[[Row], bool],
        callers_since: Callable[[], Sequence[int]] | None,
    ) -> None:
        self._clock = member.clock
        self._register = member.register
        self._membership = member.membership
        self._memory = member.memory
        self._ready = member.ready
        self._outbox = outbox
        self._threads = member.threads
        self._isolated = member.isolated
        self._has_begun = has_begun
        self._callers_since = callers_since
        self._turn_us = _TURN_LOCAL_US if member.store.is_local else _TURN_US
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

    # What is told ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Reckon what is free and what is surplus; once a step, never for each message."""
        now_us = self._clock.boot_us()
        due, waiting = self._ready.due, self._waiting_since()
        self._sample(now_us, waiting)
        had = self.free
        self.free = 0 if due else sum(now_us - since_us >= FREE_US for since_us in waiting)
        if self.free > had:
            self._freed_us = now_us
        self._reckon(now_us, due, len(waiting))

    def told(self, lanes: tuple[int, ...], *, version: int, holder: str) -> Heartbeat:
        """What a heartbeat tells of what is held and what runs here.

        Args:
            lanes: Those that are read.
            version: Of the settings that are followed.
            holder: With what the locks of its leases begin.
        """
        outbox = self._outbox
        handed_out, run = outbox.handed_out(), outbox.at_work()
        now_ms, now_us = self._clock.now_ms(), self._clock.boot_us()
        longest_us = now_us - min(one.begun_us for one in run) if run else 0
        shortest_us = now_us - max(one.begun_us for one in run) if run else 0
        since_ms = [(one.row.message_id, now_ms - (now_us - one.begun_us) // 1_000) for one in run]
        return Heartbeat(
            threads=self._threads,
            # A parked row is a claim, which is counted where it lies.
            busy=sum(not one.is_claim for one in handed_out),
            # A caller of `receive` runs no handler.
            running=min(max(len(run) - outbox.endings.freed, 0), self._threads),
            longest_ms=longest_us // 1_000 if self._threads else 0,
            shortest_ms=shortest_us // 1_000 if self._threads else 0,
            ready=len(self._ready),
            lanes=lanes,
            isolated=self._isolated,
            runs=runs_told(since_ms) if self._threads else (),
            version=version,
            holder=holder,
        )

    def _look_again(self) -> None:
        """Reckon surplus anew, with what this step has read.

        Only beside handlers' threads: where a caller steps, it takes what was read after this.
        """
        if self._ready.is_threaded and not self.surplus and (due := self._ready.due):
            waiting = len(self._ready.waiting_since())
            self._reckon(self._clock.boot_us(), due, waiting)

    def _waiting_since(self) -> Sequence[int]:
        if self._callers_since is not None:
            return self._callers_since()
        if self._ready.is_threaded:
            return self._ready.waiting_since()
        # Whoever steps it delivers as well: what is due is what it has had no time for.
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
        """Work out how many of these due rows others may have."""
        self.surplus = self.oldest_ms = 0
        beyond = self._beyond(now_us, due, waiting) if due else 0
        if beyond > 0 and not self._membership.others:
            # Told all the same: others are looked for the sooner.
            self.surplus = beyond
        elif beyond > 0:
            may_go, oldest_ms = self._ready.find_due(self._may_go, _LOOK_MAX)
            self.surplus, self.oldest_ms = min(beyond, may_go), oldest_ms

    def _beyond(self, now_us: int, due: int, waiting: int) -> int:
        """How many due rows our own slots do not begin soon."""
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
        """When the last delivery began: to the microsecond where few are under way."""
        if self._outbox.running > 2 * self._threads:
            return self._begun_us
        return max((one.begun_us for one in self._outbox.handed_out()), default=self._begun_us)

    @property
    def mean_us(self) -> int | None:
        """How long a slot took for a delivery lately, or longer; None where nothing tells yet."""
        if not self._samples:
            return None
        first = self._samples[0]
        if self._looked_us - first.at_us < _SAMPLE_US and self._ended <= first.ended:
            return None
        return (self._taken_us - first.taken_us) // max(self._ended - first.ended, 1)

    def _gift(self) -> int:
        """How many rows a slot is given at once."""
        mean_us = self.mean_us
        if mean_us is None or self._ended <= self._samples[0].ended:
            return 1
        return min(max(_GIFT_US // max(mean_us, 1), 1), _GIFT_MAX)

    @property
    def is_awake(self) -> bool:
        """Whether to step at the busy pace: something is shared, or may be given to us soon."""
        if not self._membership.beats or self._isolated:
            return False
        if self.free:
            return self._clock.boot_us() - self._freed_us < _IDLE_US
        return self._ready.due > 0

    @property
    def is_barred(self) -> bool:
        """Whether others may have slots for what is due here, and it cannot be given to them."""
        if self._isolated:
            return True
        beats = self._membership.beats
        return not self.surplus and any(beats[one].free for one in self._membership.others)

    # Giving ---------------------------------------------------------------------------------------

    @property
    def _may_share(self) -> bool:
        return bool(self._membership.others) and not self._isolated

    def share(self) -> None:
        """Move surplus to free slots of others, where it is ours to offer them.

        The moves are stored with the next flush of the outbox.

        Raises:
            StoreUnavailable, StoreTimeout: The others could not be read; nothing was moved.
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
        """Move a row to one of these lanes, to each in its turn; gives which, where it may."""
        self._turn += 1
        lane = lanes[self._turn % len(lanes)]
        return lane if self._outbox.share(one, lane) else None

    def _rows_at_once(self) -> int:
        """How many rows one step moves at most: large ones take long, and leases go on ending."""
        body_bytes = self._memory.body_bytes // max(len(self._memory.known), 1)
        return min(_ROWS_MAX, max(_BYTES_MAX // max(body_bytes, 1), 1))

    def _share_all(self) -> None:
        """Give others what is due here or soon will be, for nothing of it begins here any more.

        What is known early keeps its due, so it is not late.
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
        """Band -> lanes of others, of those with free slots where there are any."""
        beats = self._membership.beats
        names = [name for name in self._membership.others if not beats[name].isolated]
        lanes: dict[int, list[int]] = {}
        readers = self._readers()
        for name in [name for name in names if beats[name].free] or names:
            for band, of_band in self._lanes_of(name, readers).items():
                lanes.setdefault(band, []).extend(of_band)
        return lanes

    def _suits(self, slot: _Slot, one: Delivery) -> bool:
        return one.band in slot.lanes and self._may_go(one)

    def _may_go(self, one: Delivery) -> bool:
        """Whether a row may be given to another member."""
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

    def _slots(self) -> Iterator[_Slot]:
        """Free slots of others that are ours to offer, each once a heartbeat of its member."""
        now_us = self._clock.boot_us()
        beats = self._membership.beats
        self._seen = {name: one for name, one in self._seen.items() if name in beats}
        me, told = self._membership.member, self._membership.told
        # As told, of ours too: so all that may give agree on who does.
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
            # Callers of `receive` have no threads to tell of.
            for place in range(min(beat.free, beat.threads or beat.free)):
                if place in seen.offered:
                    continue
                if seen.giver_of(place) == me:
                    yield _Slot(name, place, lanes)

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
            # Others have these by now, and what was given.
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

    def _note_given(self, slot: _Slot, lanes: set[int]) -> None:
        seen, beat = self._seen[slot.member], self._membership.beats[slot.member]
        seen.offered.add(slot.place)
        if not seen.given_us:
            seen.given_us, seen.begun = self._clock.boot_us(), beat.begun
            seen.lanes = set()
        seen.lanes |= lanes

    def _readers(self) -> dict[int, str]:
        """Polled lanes that we do not read, and who should read each."""
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
        """Band -> lanes in which a member finds what it is given.

        Those that it reads and is to keep, where others have come or gone since it told of them;
        else any that it reads.
        """
        layout = self._register.layout
        bands: dict[int, list[int]] = {}
        reads = [lane for lane in self._membership.beats[name].lanes if lane in readers]
        for lane in [lane for lane in reads if readers[lane] == name] or reads:
            bands.setdefault(layout.band_of(lane), []).append(lane)
        return bands
