"""The members that should read each lane: rendezvous hashing, of bounded load, over the open ones.

The hash says which member should read a lane; the lease decides which one does. Heartbeats are rows
with a TTL, and no promise depends on them.

```
 written   every 3 s, or 10 s at rest; at once when the member opens, closes or leaves, or another
           begins to leave; ten times a second at most while its free slots change, or it has
           surplus; and soon after it has none left
 read      every 3 s, at rest by `stepper.py` together with those of other queues; every 0.4 s
           beside others, or with surplus (0.25 s on one machine); every 50 ms (10 ms) while it has
           surplus beside others, or leaves; beside more than 16 of them more rarely
```

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates" (1998).
"""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import os
import secrets
import socket
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec.structs import replace

from shardq.errors import shown
from shardq.model.settings import AUTO_LANES_MIN
from shardq.stores.tables import MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from shardq.clock import Clock
    from shardq.records.together import Noted, Together
    from shardq.stores.store import Store

log = logging.getLogger(__name__)

BEAT_MS = 3_000
_HURRIED_MS = 500
"""Pause before a heartbeat that `hurry` asked for."""
_NEWS_MS = 100
"""Pause between two heartbeats if slots have become free, or there is surplus."""
_GONE_MS = 20
"""Pause before a heartbeat if all slots are taken, or all surplus is gone: other members act on the
last heartbeat."""
_BESIDE_MS = 400
"""Pause between two looks beside other members: a lane that a busy owner gives waits for the next
look."""
_BESIDE_LOCAL_MS = 250
_CLOSE_MS = 50
_CLOSE_LOCAL_MS = 10
"""Pause between two reads of the other members while this member has surplus, or leaves."""
_CLOSE_MEMBERS = 16
"""Beside twice as many members that pause is twice as long, and so on, as each member reads all."""
_OLDER_MS = 250
"""A change of `oldest_ms` by this much is reported: it decides which member gives first."""
FREE_MAX = 512
_RANKED_MAX = 4
"""How many rankings are kept: of lanes in use and of other lanes, whose numbers change now and
then."""
_PASSED_OVER_MAX = 1_000
_DEAD_MAX = 1_000
"""How many holders known to be dead are remembered, in case they turn out to live."""
_passed_over: set[tuple[str, str, str]] = set()
"""Queue, member and text of the unreadable heartbeats that this process has logged."""
_PARTED_MAX = 16
Count = Annotated[int, msgspec.Meta(ge=0)]
_TTL_MS = 10_000
_TTL_AT_REST_MS = 30_000
PASS_ON_MS = 1_000
"""If members outnumber lanes, a lane passes to its next member after this time."""
_RUNS_MAX = 32
_RUNS_CHARS_MAX = 3_072
"""The most characters of runs in a heartbeat: all heartbeats are read every 3 s."""


def member_name() -> str:
    """A name for one consumer: host, process id, and eight random characters."""
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())[:60]
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


def name_in_child(member: str) -> str:
    """The member's name in a forked child, which is a member of its own.

    >>> name_in_child("mailer") == f"mailer:{os.getpid()}"
    True
    """
    return f"{member}:{os.getpid()}"


def rankings(lanes: Sequence[int], members: Sequence[str]) -> dict[int, list[str]]:
    """Lane -> the members in the order in which they should read the lane; equal in all processes.

    No member is first for more than its share of the lanes, rounded up, nor for less than that,
    rounded down. With few lanes plain rendezvous hashing would leave some members without any, and
    nobody could share messages with these. The same holds for the first 8 lanes, 16, 32 and so on,
    so that a queue that doubles its lanes keeps the readers of the present ones.

    Args:
        lanes: The lanes.
        members: The members that read them, at least one.

    Source:
        Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads" (2016).
    """
    first = dict.fromkeys(members, 0)
    ranked = {}
    for place, lane in enumerate(lanes):
        # The number doubles from 8, as in a queue with `lanes="auto"` that grows.
        until = min(max(AUTO_LANES_MIN, 1 << place.bit_length()), len(lanes))
        most, least = -(-until // len(members)), until // len(members)
        owed = sum(max(least - count, 0) for count in first.values())
        # Once all lanes that are left are owed to members with too few, no other member gets a
        # lane.
        share = least if owed and owed >= until - place else most
        full = {member for member, count in first.items() if count >= share}
        order = ranking(lane, members)
        order.sort(key=full.__contains__)
        first[order[0]] += 1
        ranked[lane] = order
    return ranked


def ranking(lane: int | str, members: Iterable[str]) -> list[str]:
    """Members in the order of their rendezvous hash with a lane, or with another name."""
    return sorted(
        members, key=lambda m: hashlib.blake2b(f"{lane}/{m}".encode(), digest_size=8).digest()
    )


def reported_runs(runs: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The runs of handlers that a heartbeat has room for: 32 at most, the first begun first.

    Args:
        runs: For each run the message id, and when it began, epoch milliseconds.

    >>> reported_runs([("later", 2_000), ("first", 1_000)])
    (('first', 1000), ('later', 2000))
    """
    reported = []
    room = _RUNS_CHARS_MAX
    for run in heapq.nsmallest(_RUNS_MAX, runs, key=lambda run: run[1]):
        room -= len(json.dumps(run))
        if room < 0:
            break
        reported.append(run)
    return tuple(reported)


def reported_tasks(tasks: Iterable[str]) -> tuple[str, ...]:
    """The tasks of runs, in order; an empty text for a run without a task or without room.

    >>> reported_tasks(["shop.charge", "", ""]), reported_tasks(["", ""])
    (('shop.charge', '', ''), ())
    """
    reported, room = [], _RUNS_CHARS_MAX
    for task in tasks:
        room -= len(json.dumps(task))
        reported.append(task if room >= 0 else "")
    return tuple(reported) if any(reported) else ()


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The heartbeat of a member.

    Attributes:
        threads: Handlers that it can run at once.
        busy: Deliveries handed out that are neither settled nor parked.
        running: Handlers that run, `threads` at most.
        longest_ms: How long the handler that began first has run.
        shortest_ms: How long the handler that began last has run.
        ready: Messages that it holds for its handlers.
        lanes: Lanes that it reads.
        demand: True if it is open: neither paused, stuck, leaving, nor without callers for 2 s.
        isolated: True if it reads only minutes that ended at least the offset ago.
        runs: The runs of its handlers, parked ones too: (message id, begun at, epoch milliseconds),
            the first begun first, as many as `reported_runs` has room for.
        tasks: The task of each of these runs, in their order; empty text for a run of none.
        free: Slots that could begin a message now: handler threads, or callers of `receive`, that
            wait while nothing is due here.
        surplus: Due messages that it holds beyond those that its own slots begin soon.
        oldest_ms: The due from which the first surplus has waited, epoch milliseconds; 0 for none.
        begun: Deliveries begun since it started.
        number: The number of this heartbeat; counts up.
        version: The version of the settings that it follows.
        leaving: True if it is about to end.
        parted: Leaving members without which it has assigned the lanes, 16 at most.
        holder: The beginning of the locks of its leases.
        gave: Group lanes that it has given to others lately: (lane, member).
        limited: Limit -> how many due messages in its memory it holds back: `place` and `rate` of
            their groups, `queue`, `task`, `late`, and `pause` of tasks and keys.
    """

    threads: Count = 0
    busy: Count = 0
    running: Count = 0
    longest_ms: Count = 0
    shortest_ms: Count = 0
    ready: Count = 0
    lanes: tuple[Count, ...] = ()
    demand: bool = False
    isolated: bool = False
    runs: tuple[tuple[str, Count], ...] = ()
    tasks: tuple[str, ...] = ()
    free: Annotated[int, msgspec.Meta(ge=0, le=FREE_MAX)] = 0
    surplus: Count = 0
    oldest_ms: Count = 0
    begun: Count = 0
    number: Count = 0
    version: Count = 0
    leaving: bool = False
    parted: Annotated[tuple[str, ...], msgspec.Meta(max_length=_PARTED_MAX)] = ()
    holder: str = ""
    gave: tuple[tuple[Count, str], ...] = ()
    limited: dict[str, Count] = {}

    def to_json(self) -> str:
        """The stored form."""
        return _encoder.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Heartbeat:
        """A heartbeat from its stored form, without the fields that only a newer shardq knows.

        Raises:
            ValueError: If shardq never writes such a form.
        """
        try:
            return _decoder.decode(text)
        except (TypeError, ValueError, RecursionError, msgspec.DecodeError) as error:
            raise ValueError(f"no heartbeat: {shown(text)}") from error


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Heartbeat)


def heartbeats(store: Noted, queue: str) -> dict[str, Heartbeat]:
    """Member -> its heartbeat, for the members of a queue.

    An unreadable heartbeat is left out, with a warning: in seconds it expires, or is written anew.
    """
    beats = {}
    for name, text in store.notes(MEMBERS, (queue,)).items():
        try:
            beats[name] = Heartbeat.from_json(text)
        except ValueError as error:
            if (queue, name, text) not in _passed_over:
                # Warn only once of this heartbeat, though each read finds it.
                if len(_passed_over) >= _PASSED_OVER_MAX:
                    _passed_over.clear()
                _passed_over.add((queue, name, text))
                log.warning("member %s of queue %s is passed over: %s", shown(name), queue, error)
    return beats


class Membership:
    """The members of one queue, as this member last read them.

    Args:
        member: This member's name.

    Attributes:
        key: The name under which the heartbeats are stored.
        beats: The name of each other member, open or not -> its heartbeat.
        may_rest: True if this member's last heartbeat lasts until a next one in 10 s.
    """

    def __init__(self, store: Store, clock: Clock, queue: str, member: str) -> None:
        self.member = member
        self.beats: dict[str, Heartbeat] = {}
        self._store = store
        self._clock = clock
        self.key = queue
        self._others: list[str] = []
        self._ranked: tuple[list[str], dict[tuple[int, ...], dict[int, list[str]]]] = ([], {})
        """Members, and how they rank for lanes; replaced as a whole, because two threads use it."""
        self._dead: dict[str, None] = {}
        """The holders of members that are dead, the latest last."""
        self._returned: list[str] = []
        self._number = 0
        self._last = Heartbeat()
        self._parted: tuple[str, ...] = ()
        self._beat_us: int | None = None
        self._read_us = self._assigned_us = 0
        self._is_hurried = False
        self.may_rest: bool = False
        self._has_changed = False
        self._is_given = False

    @property
    def others(self) -> list[str]:
        """The other open members."""
        return self._others

    @property
    def last(self) -> Heartbeat:
        """This member's last heartbeat."""
        return self._last

    @property
    def version(self) -> int:
        """The newest version of the settings that another member follows."""
        return max((beat.version for beat in self.beats.values()), default=0)

    @property
    def is_awaited(self) -> bool:
        """True if a leaving member waits for a heartbeat that assigns the lanes without it."""
        return self._parted != self._last.parted

    def beat(
        self,
        report: Callable[[], Heartbeat],
        *,
        demand: bool,
        free: int = 0,
        surplus: int = 0,
        oldest_ms: int = 0,
        begun: int = 0,
        given_us: int = 0,
        leaving: bool = False,
        lanes: Collection[int] = (),
        at_rest: bool = False,
    ) -> bool:
        """Write a heartbeat, and read those of other members, each if it is due.

        After `hurry` a heartbeat is due within 0.5 s.

        Args:
            report: Returns the heartbeat's other fields.
            demand: True if this member is open.
            free: Slots that wait.
            surplus: Due messages beyond those that its slots begin soon.
            oldest_ms: The due from which the first surplus message has waited.
            begun: Deliveries begun since this member started.
            given_us: When another member last gave this member a row, time since boot.
            leaving: True if this member is about to end.
            lanes: The lanes that this member reads, as `report` returns them: while it has free
                slots, other members must know the lanes.
            at_rest: True if the next call may come 10 s later: a heartbeat then lasts 30 s.

        Returns:
            True if lanes must be assigned anew: members have changed, or 3 s have passed.
        """
        now = self._clock.boot_us()
        turned = (demand, leaving) != (self._last.demand, self._last.leaving)
        is_first = self._beat_us is None
        if is_first or turned or self._is_news(now, free, oldest_ms, begun, given_us, lanes):
            mine = replace(
                report(),
                demand=demand,
                free=min(free, FREE_MAX),
                surplus=surplus,
                oldest_ms=oldest_ms,
                begun=begun,
                number=self._number + 1,
                leaving=leaving,
                parted=self._parted,
            )
            ttl_ms = _TTL_AT_REST_MS if at_rest else _TTL_MS
            self._store.note(MEMBERS, (self.key,), {self.member: mine.to_json()}, ttl_ms)
            self._number += 1
            self.may_rest = at_rest
            if turned or is_first:
                # Adopt these two only after the read below succeeds: if it fails, the next call
                # does both again.
                mine = replace(mine, demand=self._last.demand, leaving=self._last.leaving)
            self._last, self._beat_us = mine, now
            self._is_hurried = False
        is_close = surplus > 0 or leaving
        is_fresh = now - self._read_us < self._read_every_us(is_close)
        if not is_fresh or is_first or turned or self._has_changed:
            self._read(now)
        self._last = replace(self._last, demand=demand, leaving=leaving)
        is_over = now - self._assigned_us >= BEAT_MS * 1_000
        if not (is_first or turned or is_over or self._has_changed):
            return False
        self._has_changed = False
        self._assigned_us = now
        return True

    def take_in(self, noted: Together) -> bool:
        """Take in the other members' heartbeats, just read; True if a step must follow."""
        if not noted.has(MEMBERS, (self.key,)):
            return True
        self._read(self._clock.boot_us(), noted)
        return self._has_changed

    def look(self) -> None:
        """Read the other members, unless just read; the next `beat` acts on the changes."""
        now = self._clock.boot_us()
        if now - self._read_us >= self._close_us:
            self._read(now)

    def _is_news(
        self,
        now_us: int,
        free: int,
        oldest_ms: int,
        begun: int,
        given_us: int,
        lanes: Collection[int],
    ) -> bool:
        """True if a heartbeat is due, by time or because these values have changed."""
        since_us = now_us - (self._beat_us or 0)
        if self.is_awaited or since_us >= BEAT_MS * 1_000:
            return True
        if since_us >= _HURRIED_MS * 1_000 and self._is_hurried:
            return True
        last = self._last
        if not self.beats or since_us < _GONE_MS * 1_000:
            return False
        if (last.free and not free) or (last.oldest_ms and not oldest_ms):
            return True
        has_changed = min(free, FREE_MAX) != last.free
        has_changed |= abs(oldest_ms - last.oldest_ms) >= _OLDER_MS
        has_changed |= free > 0 and {*lanes} != {*last.lanes}
        # A slot is free again, and no heartbeat has shown that it was taken. If a member gives its
        # surplus in the very step that read it, only the rows given to this member show that there
        # was surplus.
        is_given = self._is_given or 0 < (self._beat_us or 0) <= given_us
        has_changed |= free > 0 and begun != last.begun and is_given
        return has_changed and since_us >= _NEWS_MS * 1_000

    @property
    def _close_us(self) -> int:
        close_ms = _CLOSE_LOCAL_MS if self._store.is_local else _CLOSE_MS
        return close_ms * 1_000 * max(len(self.beats), _CLOSE_MEMBERS) // _CLOSE_MEMBERS

    def _read_every_us(self, is_close: bool) -> int:
        if not (self.beats or is_close):
            return BEAT_MS * 1_000
        if self.beats and is_close:
            return self._close_us
        return (_BESIDE_LOCAL_MS if self._store.is_local else _BESIDE_MS) * 1_000

    def _read(self, now_us: int, noted: Noted | None = None) -> None:
        before = self._others, self._parted
        beats = heartbeats(noted or self._store, self.key)
        beats.pop(self.member, None)
        if self._dead:
            # A buried member's heartbeat was erased once: if it exists, it was written since.
            back = [beat.holder for beat in beats.values() if beat.holder in self._dead]
            self._returned += back
            for holder in back:
                del self._dead[holder]
        self.beats = beats
        self._others = sorted(name for name, beat in self.beats.items() if beat.demand)
        parted = sorted(name for name, beat in self.beats.items() if beat.leaving)
        self._parted = tuple(parted[:_PARTED_MAX])
        self._read_us = now_us
        self._is_given = any(beat.surplus for beat in self.beats.values())
        self._has_changed |= before != (self._others, self._parted)

    def bury(self, names: Iterable[str]) -> None:
        """Remove members that are known to be dead, though their heartbeats have not expired.

        The caller then assigns the lanes anew. A new process with the same name is another member:
        if its first heartbeat is erased here, it writes another one.
        """
        gone = list(names)
        # Otherwise the runs of dead members would count as in flight until their heartbeats expire.
        self._store.erase(MEMBERS, (self.key,), gone)
        for name in gone:
            beat = self.beats.pop(name, None)
            if beat is not None:
                self._dead[beat.holder] = None
        for holder in list(self._dead)[:-_DEAD_MAX]:
            del self._dead[holder]
        self._others = [name for name in self._others if name in self.beats]

    def take_returned(self) -> list[str]:
        """Holders that were buried and have written heartbeats since, so live; each once."""
        returned, self._returned = self._returned, []
        return returned

    def hurry(self) -> None:
        """Let the next heartbeat be due early, because the last one is outdated."""
        self._is_hurried = True

    def ranks(
        self, lanes: Sequence[int], now_ms: int, *, bands: int = 1, filled: int | None = None
    ) -> dict[int, int]:
        """This member's place in line for each lane; the member at place 0 should read the lane.

        A member has all bands of an index, so that it has a lane of every band.

        Args:
            lanes: All lanes of the queue, in their order.
            now_ms: Epoch milliseconds.
            bands: The queue's bands.
            filled: How many lanes of a band producers fill; None for all. These lanes are shared
                among the members apart from the other lanes, which are quiet or not filled yet.
        """
        ranked = self._ranked_lanes(lanes, now_ms, bands, filled)
        return {lane: order.index(self.member) for lane, order in ranked.items()}

    def readers(
        self, lanes: Sequence[int], now_ms: int, *, bands: int = 1, filled: int | None = None
    ) -> dict[int, str]:
        """The member that should read each lane; for arguments see `ranks`."""
        ranked = self._ranked_lanes(lanes, now_ms, bands, filled)
        return {lane: order[0] for lane, order in ranked.items()}

    def _ranked_lanes(
        self, lanes: Sequence[int], now_ms: int, bands: int, filled: int | None
    ) -> dict[int, list[str]]:
        """Lane -> its members, beginning with the one whose turn it is."""
        members = [*self._others, self.member]
        stop = len(lanes) if filled is None else filled * bands
        ranked = {}
        for part in (lanes[:stop], lanes[stop:]):
            # The lane of the first band stands for all bands of an index.
            firsts = list(part[::bands])
            turn = now_ms // PASS_ON_MS % len(members) if len(members) > len(firsts) else 0
            for number, order in self._rankings(firsts, members).items():
                turned = order[turn:] + order[:turn]
                ranked.update(dict.fromkeys(range(number, number + bands), turned))
        return ranked

    def _rankings(self, lanes: list[int], members: list[str]) -> dict[int, list[str]]:
        # Keep the rankings: each look asks for them, they cost a hash for each lane and member, and
        # they stay the same until members change.
        of, ranked = self._ranked
        if of != members or len(ranked) > _RANKED_MAX:
            ranked = {}
            self._ranked = members, ranked
        asked = tuple(lanes)
        if asked not in ranked:
            ranked[asked] = rankings(lanes, members)
        return ranked[asked]

    def leave(self) -> None:
        """Erase this member's heartbeat."""
        if self._beat_us is not None:
            self._store.erase(MEMBERS, (self.key,), [self.member])
            self._beat_us = None


def member_of(lock: str) -> str:
    """The member that took a lock.

    >>> member_of("mailer/5b1c09aa/0011223344556677")
    'mailer'
    """
    return lock.rsplit("/", 2)[0]
