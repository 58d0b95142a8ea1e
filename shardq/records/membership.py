"""Who should read which lane: rendezvous hashing, of bounded load, over the members with demand.

The hash says who should; the lease says who does. Heartbeats are rows with a TTL; nothing here is
ever decisive.

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
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from shardq.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from shardq.clock import Clock
    from shardq.stores.store import Store

log = logging.getLogger(__name__)

BEAT_MS = 3_000
_HURRIED_MS = 500
"""How soon after another a heartbeat comes early."""
_TTL_MS = 10_000
PASS_ON_MS = 1_000
"""Where members outnumber lanes, a lane goes to the next of them after so long."""
_RUNS_MAX = 32
_RUNS_CHARS_MAX = 3_072
"""Of what a member runs, as much as it tells: all members' heartbeats are read every 3 s."""


def member_name() -> str:
    """A name for one consumer: host, process id, and eight random characters."""
    host = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname())[:60]
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


def name_in_child(member: str) -> str:
    """What a member is called in a forked child, which is one of its own.

    >>> name_in_child("mailer") == f"mailer:{os.getpid()}"
    True
    """
    return f"{member}:{os.getpid()}"


def rankings(lanes: Sequence[int], members: Sequence[str]) -> dict[int, list[str]]:
    """For each lane the members in the order in which they should read it.

    The same in every process. No member comes first for more than its share of the lanes, rounded
    up: with few lanes plain rendezvous hashing leaves some members without any.

    Source:
        Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads" (2016).
    """
    share = -(-len(lanes) // len(members))
    first = dict.fromkeys(members, 0)
    ranked = {}
    for lane in lanes:
        order = ranking(lane, members)
        order.sort(key=lambda member: first[member] >= share)
        first[order[0]] += 1
        ranked[lane] = order
    return ranked


def ranking(lane: int, members: Iterable[str]) -> list[str]:
    """Members in the order of their rendezvous hash with a lane."""
    return sorted(
        members, key=lambda m: hashlib.blake2b(f"{lane}/{m}".encode(), digest_size=8).digest()
    )


def runs_told(runs: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Of what handlers run, what a heartbeat has room for: 32 at most, the first begun first.

    Args:
        runs: (message id, begun at, epoch milliseconds) of each.

    >>> runs_told([("later", 2_000), ("first", 1_000)])
    (('first', 1000), ('later', 2000))
    """
    told = []
    room = _RUNS_CHARS_MAX
    for run in heapq.nsmallest(_RUNS_MAX, runs, key=lambda run: run[1]):
        room -= len(json.dumps(run))
        if room < 0:
            break
        told.append(run)
    return tuple(told)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a member tells of itself.

    Attributes:
        threads: Handlers that it can run at once.
        busy: Deliveries handed out whose rows are where they were: neither settled nor parked.
        running: Handlers that run, `threads` at most; None where an older shardq does not tell.
        longest_ms: How long the one that began first has run.
        shortest_ms: How long the one that began last has run.
        ready: Messages that it holds for its handlers.
        lanes: Lanes that it reads.
        demand: Whether a handler slot is free or a caller waits.
        isolated: Whether it reads only minutes that ended at least the offset ago.
        runs: What its handlers run, parked ones too: (message id, begun at, epoch milliseconds),
            the first begun first, as many as `runs_told` has room for; empty where an older shardq
            does not tell.
    """

    threads: int = 0
    busy: int = 0
    running: int | None = None
    longest_ms: int = 0
    shortest_ms: int = 0
    ready: int = 0
    lanes: tuple[int, ...] = ()
    demand: bool = False
    isolated: bool = False
    runs: tuple[tuple[str, int], ...] = ()

    def to_json(self) -> str:
        """The stored form."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Heartbeat:
        """A heartbeat from its stored form; what a newer shardq tells besides is passed over.

        Raises:
            ValueError: If it is no such form.
        """
        try:
            told = json.loads(text)
            known = {name: value for name, value in told.items() if name in _TOLD}
            lanes = tuple(known.pop("lanes", ()))
            runs = tuple((message_id, begun_ms) for message_id, begun_ms in known.pop("runs", ()))
        except (TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"no heartbeat: {shown(text)}") from error
        beat = cls(**known, lanes=lanes, runs=runs)
        counts = [beat.threads, beat.busy, beat.longest_ms, beat.shortest_ms, beat.ready, *lanes]
        counts += [begun_ms for _, begun_ms in runs]
        if beat.running is not None:
            counts.append(beat.running)
        claims = beat.demand, beat.isolated
        if (
            any(type(claim) is not bool for claim in claims)
            or any(type(n) is not int or n < 0 for n in counts)
            or any(type(message_id) is not str for message_id, _ in runs)
        ):
            raise ValueError(f"no heartbeat: {shown(text)}")
        return beat


_TOLD = tuple(one.name for one in fields(Heartbeat))


def heartbeats(store: Store, queue: str) -> dict[str, Heartbeat]:
    """What the members of a queue tell of themselves, by name.

    One that cannot be read is left out, with a warning: it lapses, or is written anew, in seconds.
    """
    beats = {}
    for name, text in store.members(queue).items():
        try:
            beats[name] = Heartbeat.from_json(text)
        except ValueError as error:
            log.warning("member %s of queue %s is passed over: %s", shown(name), queue, error)
    return beats


class Membership:
    """The members of one queue as this one knows them.

    Args:
        member: This member's name.
    """

    def __init__(self, store: Store, clock: Clock, queue: str, member: str) -> None:
        self.member = member
        self._store = store
        self._clock = clock
        self._queue = queue
        self._others: list[str] = []
        self._ranked: tuple[list[int], list[str], dict[int, list[str]]] = ([], [], {})
        self._demand = False
        self._beat_us: int | None = None
        self._is_hurried = False

    @property
    def others(self) -> list[str]:
        """The other members with demand."""
        return self._others

    def beat(self, told: Callable[[], Heartbeat], *, demand: bool) -> bool:
        """Heartbeat and look who else is there: every 3 s, and early where there is news.

        At once where demand has changed, and within 0.5 s after `hurry`.

        Args:
            told: Gives what to tell.
            demand: Whether a handler slot is free or a caller waits.

        Returns:
            Whether the members were read anew.
        """
        now = self._clock.boot_us()
        every_ms = _HURRIED_MS if self._is_hurried else BEAT_MS
        fresh = self._beat_us is not None and now - self._beat_us < every_ms * 1_000
        if fresh and demand == self._demand:
            return False
        mine = replace(told(), demand=demand)
        self._store.beat(self._queue, self.member, mine.to_json(), _TTL_MS)
        self._others = sorted(
            name
            for name, other in heartbeats(self._store, self._queue).items()
            if name != self.member and other.demand
        )
        # Only now: who asks learns of it from what is returned here.
        self._beat_us, self._demand = now, demand
        self._is_hurried = False
        return True

    def hurry(self) -> None:
        """Let the next heartbeat come early: what the last one told has changed."""
        self._is_hurried = True

    def ranks(self, lanes: Sequence[int], now_ms: int) -> dict[int, int]:
        """This member's place in line for each lane; 0 is the one that should read it."""
        members = [*self._others, self.member]
        turn = now_ms // PASS_ON_MS if len(members) > len(lanes) else 0
        count = len(members)
        ranked = self._rankings(list(lanes), members)
        return {lane: (ranked[lane].index(self.member) - turn) % count for lane in lanes}

    def _rankings(self, lanes: list[int], members: list[str]) -> dict[int, list[str]]:
        # Asked every second, and the same until members come or go: a hash for each lane of each.
        if self._ranked[:2] != (lanes, members):
            self._ranked = (lanes, members, rankings(lanes, members))
        return self._ranked[2]

    def leave(self) -> None:
        """Take this member off."""
        if self._beat_us is not None:
            self._store.leave(self._queue, self.member)
            self._beat_us = None


def member_of(lock: str) -> str:
    """The member that took a lock.

    >>> member_of("mailer/5b1c09aa/0011223344556677")
    'mailer'
    """
    return lock.rsplit("/", 2)[0]
