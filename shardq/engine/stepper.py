"""One thread that steps many parts of a process, each when its turn is due or it has news.

```
 part ── add ──► due at once ──► turn() ──► due again after a pause ─► ...       None: no more
                     ▲
 wake: a put, an end ┤
 store has changed ──┤  one check for all parts, if the store reports changes
 news at rest ───────┘  one read for all parts at rest: of rows once a second, or more often;
                        of records and heartbeats every 2 s
```

The thread lives while there are parts to step. A forked child has neither the thread nor the parts.
An unforeseen error of a turn ends the thread; a new thread steps the other parts.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from shardq import locks
from shardq.engine.news import IDLE_US, NEWS_S, QUIET_IDLE_US, QUIET_US, SPACING_US
from shardq.errors import StoreError
from shardq.records.together import Together
from shardq.stores.tables import MEMBERS, QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardq.clock import Clock
    from shardq.engine.news import Awaited, News
    from shardq.stores.store import Store

_BLIND_US = 1_000_000
"""How long the store is not asked for changes after an error."""
_LOOK_US_MAX = 1_000_000
_NOTES_US = 2_000_000
"""Pause between two reads of records and heartbeats: shorter than an engine's own."""
_LOOK_SHARE, _LOOK_SHARE_TOLD = 8, 2
"""The pause after a look is this many times as long as the look, a second at most. The second
number holds for a store that reports changes: looks are rare there, and news must not wait."""
_LOOK_PART = 32
"""A look reads for this many parts at once: for hundreds a read takes a second, and turns cannot
wait. If the store reports changes, one quick read looks for all parts."""
_LOOKED_AT_MIN = 2
"""The fewest parts for which looks are made: a single part polls as cheaply by its own turns, and
hands its rows out one read sooner."""


class Stepped(Protocol):
    """A part of the process that takes turns in the stepper's thread."""

    def turn(self) -> float | None:
        """Do the work that is due; returns seconds until the next turn, None for no more turns."""

    def on_change(self) -> bool:
        """Note that another process may have written for the part; True if a turn must follow."""

    def awaited(self) -> Awaited | None:
        """The place of the part's news while it is at rest; None if only a turn finds its news."""

    def take_in(self, noted: Together) -> bool:
        """Take in the part's record and heartbeats, just read; True if a turn must follow."""

    def wake(self) -> None:
        """Let a turn follow at once, because a look has found news of the part."""


class Stepper:
    """Steps the parts that are added to it, in one thread. Call it from any thread.

    Args:
        store: The store, which may report that another process has written.
        name: The thread's name.
    """

    def __init__(self, store: Store, clock: Clock, name: str) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._lock = locks.new()
        self._news = locks.condition(self._lock)
        self._due_us: dict[Stepped, int] = {}
        self._asked_us: dict[Stepped, int] = {}
        """Part -> the earliest time for which a turn was asked since its last turn began."""
        self._turned_us: dict[Stepped, int] = {}
        self._first_us: int | None = None
        """When the next turn is due; None if that must be found out."""
        self._token: int | None = None
        self._looked_at: set[Stepped] = set()
        """The parts at rest for which the last look found no row."""
        self._unlooked: dict[Stepped, Awaited] = {}
        """The parts that the look under way has not reached yet."""
        self._look_us = self._again_us = self._blind_us = self._spent_us = self._noted_us = 0
        self._reads_notes = False
        """True if the look that is under way also reads records and heartbeats."""
        self._has_news = False
        """True if the store has changed since the last look."""
        self._is_asked = False
        """True if the last turn was chosen because somebody had asked for it."""
        self._seen_us = clock.boot_us()
        self._is_running = False
        locks.in_child(self, Stepper._begin_child)

    def is_looked_at(self, one: Stepped) -> bool:
        """True if the reads for all parts at rest look for the news of this part."""
        return one in self._looked_at

    def prepare(self, one: Stepped, news: News, *, is_regular: bool, due_us: int = 0) -> None:
        """Prepare a step of a part; for the last arguments see `News.take`."""
        is_told, is_looked_at = self._is_told, self.is_looked_at(one)
        news.take(
            is_watched=is_told, is_looked_at=is_looked_at, is_regular=is_regular, due_us=due_us
        )

    def add(self, one: Stepped, seconds: float = 0.0) -> None:
        """Step a part from now on, unless it is stepped already.

        Args:
            one: The part.
            seconds: Seconds until its next turn, at the latest.

        Raises:
            RuntimeError: If no thread can be started; then the part is not stepped.
        """
        with self._lock:
            self._start()
            # This holds even in a turn of the part after which it would have been removed.
            self._within(one, seconds)

    def wake(self, one: Stepped) -> None:
        """Let the next turn of a part begin at once, if the part is stepped."""
        self.within(one, 0.0)

    def within(self, one: Stepped, seconds: float) -> None:
        """Let the next turn of a part begin within some seconds, if the part is stepped."""
        with self._lock:
            if one in self._due_us:
                self._within(one, seconds)

    def remove(self, one: Stepped) -> None:
        """Stop stepping a part; a turn that is under way continues."""
        with self._lock:
            self._due_us.pop(one, None)
            self._first_us = None
            self._asked_us.pop(one, None)
            self._turned_us.pop(one, None)
            self._news.notify()

    def close(self) -> None:
        """Stop stepping all parts. Idempotent; a part that is added later is stepped."""
        with self._lock:
            self._due_us.clear()
            self._asked_us.clear()
            self._turned_us.clear()
            self._news.notify()

    def _within(self, one: Stepped, seconds: float) -> None:
        at_us = self._clock.boot_us() + round(seconds * 1e6)
        at_us = max(at_us, self._turned_us.get(one, 0) + SPACING_US)
        due_us = self._due_us.get(one)
        if due_us is None or at_us < due_us:
            self._due_us[one] = at_us
            self._first_us = None
            self._news.notify()
        # A turn that is under way returns a time for the next one: the earlier of both counts.
        self._asked_us[one] = min(at_us, self._asked_us.get(one, at_us))

    def _start(self) -> None:
        if not self._is_running:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._is_running = True

    def _run(self) -> None:
        one: Stepped | None = None
        try:
            while (one := self._next()) is not None:
                self._step(one)
                one = None
        except BaseException:
            # Python prints why this thread ends; another thread steps the other parts.
            self._go_on_without(one)
            raise

    def _go_on_without(self, one: Stepped | None) -> None:
        """Step the other parts in another thread; None if no turn was under way."""
        with self._lock:
            self._is_running = False
            if one is not None:
                self._turned(one, None)
            # An error between turns must not end one new thread after another.
            self._blind_us = self._clock.boot_us() + _BLIND_US
            if self._due_us:
                # If no thread can be started, the next `add` tries to start one.
                self._start()

    def _step(self, one: Stepped) -> None:
        with self._lock:
            self._asked_us.pop(one, None)
            self._turned_us[one] = self._clock.boot_us()
        delay = one.turn()
        with self._lock:
            self._turned(one, delay)

    def _turned(self, one: Stepped, delay: float | None) -> None:
        """End a turn; the next is due in `delay` seconds, or if None only if it was asked for."""
        if one not in self._due_us:
            return
        self._first_us = None
        asked_us = self._asked_us.get(one)
        if delay is not None:
            at_us = self._clock.boot_us() + round(delay * 1e6)
            self._due_us[one] = at_us if asked_us is None else min(at_us, asked_us)
        elif asked_us is not None:
            self._due_us[one] = asked_us
        else:
            del self._due_us[one]
            self._turned_us.pop(one, None)

    def _next(self) -> Stepped | None:
        """Wait until a turn is due; returns the part to step, None if no part is left."""
        while True:
            self._has_news |= self._has_changed()
            self._look()
            with self._lock:
                if not self._due_us:
                    self._is_running = False
                    return None
                if self._first_us is None:
                    self._first_us = min(self._due_us.values())
                left_us = self._first_us - self._clock.boot_us()
                if left_us <= 0:
                    return self._first()
                if len(self._due_us) >= _LOOKED_AT_MIN or self._looked_at or self._has_news:
                    look_us = self._next_look_us - self._clock.boot_us()
                    left_us = min(left_us, max(look_us, 1))
                seconds = left_us / 1e6
                self._clock.wait(self._news, min(seconds, NEWS_S) if self._is_told else seconds)

    @property
    def _is_told(self) -> bool:
        """True if the store reports changes."""
        return self._token is not None

    @property
    def _next_look_us(self) -> int:
        """When the next look is due. If the store reports changes: on news, or after a second."""
        is_early = self._has_news or not self._is_told
        return self._look_us if is_early else max(self._look_us, self._again_us)

    def _look(self) -> None:
        """Look for news of the parts at rest; let parts with news take turns."""
        now_us = self._clock.boot_us()
        is_told = self._is_told
        if now_us < self._next_look_us:
            return
        # Set these before the read: if an error of the read ends this thread, the next thread takes
        # turns first.
        self._look_us = self._again_us = now_us + _LOOK_US_MAX
        stepped: list[Stepped] = []
        if is_told or not self._unlooked:
            stepped = self._begin_look(now_us)
        part = dict(islice(self._unlooked.items(), None if is_told else _LOOK_PART))
        self._looked_at -= part.keys()
        for one in part:
            del self._unlooked[one]
        try:
            found = self._store.occupied_queues([one.rows for one in part.values()]) if part else ()
        except StoreError:
            # Turns meet the same error, and report it.
            self._look_us = self._clock.boot_us() + _BLIND_US
            self._see_to(part, _BLIND_US / 1e6)
            return
        arrived = [one for one, awaited in part.items() if awaited.rows.queue in found]
        self._spent_us += self._clock.boot_us() - now_us if part else 0
        pause_us = (_LOOK_SHARE_TOLD if is_told else _LOOK_SHARE) * self._spent_us
        self._looked_at |= part.keys() - arrived
        if is_told:
            others = [one for one in stepped if one not in part] if self._has_news else []
            self._has_news = False
            self._tell([*arrived, *others])
        else:
            if arrived:
                self._seen_us = now_us
            is_quiet = now_us - self._seen_us >= QUIET_US
            pause_us = max(QUIET_IDLE_US if is_quiet else IDLE_US, pause_us)
            for one in arrived:
                one.wake()
        self._look_us = now_us if self._unlooked else now_us + min(pause_us, _LOOK_US_MAX)
        if part and self._reads_notes:
            self._note(part)

    def _note(self, part: Mapping[Stepped, Awaited]) -> None:
        """Read records and heartbeats for parts; let parts with news take turns."""
        try:
            noted = Together(
                self._store,
                {MEMBERS: [(one.members,) for one in part.values()]},
                keys={QUEUES: [one.queue for one in part.values()]},
            )
        except StoreError:
            # The next turn of each part reads its own.
            return
        for one in part:
            if one in self._due_us and one.take_in(noted):
                one.wake()

    def _see_to(self, ones: Iterable[Stepped], seconds: float = 0.0) -> None:
        """Let parts that no look covers any more take turns soon: their next may be far off."""
        for one in ones:
            self.within(one, seconds)

    def _begin_look(self, now_us: int) -> list[Stepped]:
        """Find out for which parts to look; returns all parts that are stepped."""
        with self._lock:
            stepped = list(self._due_us)
        wanted: dict[Stepped, Awaited] = {}
        if len(stepped) >= _LOOKED_AT_MIN:
            wanted = {one: awaited for one in stepped if (awaited := one.awaited()) is not None}
        if len(wanted) < len(stepped):
            self._seen_us = now_us
        self._see_to(self._looked_at - wanted.keys())
        self._looked_at &= wanted.keys()
        self._unlooked, self._spent_us = wanted, 0
        self._reads_notes = now_us - self._noted_us >= _NOTES_US
        if self._reads_notes:
            self._noted_us = now_us
        return stepped

    def _first(self) -> Stepped:
        """The part whose turn is next: alternately a turn that was asked for, and one that is due.

        The turns of many parts take longer than their pauses: news must not wait for all of them.
        """
        first = min(self._due_us, key=self._due_us.__getitem__)
        now_us = self._clock.boot_us()
        asked = [one for one, at_us in self._asked_us.items() if at_us <= now_us]
        self._is_asked = bool(asked) and not self._is_asked
        if self._is_asked:
            # The turn begins no sooner after the part's last turn than it may.
            wanted = min(asked, key=self._due_us.__getitem__)
            return wanted if self._due_us[wanted] <= now_us else first
        return first

    def _tell(self, changed: Iterable[Stepped]) -> None:
        """Let parts take turns for which another process may have written."""
        with self._lock:
            now_us = self._clock.boot_us()
            for one in changed:
                if one in self._due_us and one.on_change():
                    at_us = max(now_us, self._turned_us.get(one, 0) + SPACING_US)
                    self._due_us[one] = min(self._due_us[one], at_us)
                    self._first_us = None

    def _has_changed(self) -> bool:
        """True if another process has written to the store since the last call."""
        if self._clock.boot_us() < self._blind_us:
            return False
        try:
            token = self._store.changed()
        except StoreError:
            # Turns meet the same error, and report it.
            self._blind_us = self._clock.boot_us() + _BLIND_US
            return False
        has_changed = token != self._token
        self._token = token
        return has_changed

    def _begin_child(self) -> None:
        self._due_us.clear()
        self._asked_us.clear()
        self._turned_us.clear()
        self._token = None
        self._looked_at, self._unlooked = set(), {}
        self._is_running = False
