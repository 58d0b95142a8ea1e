"""The ticks of one queue's schedules: messages with keys in the queue `<queue>.schedules`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import KeyTaken, StoreCorrupt, StoreUnavailable, UnknownQueue, UsageError
from shardq.lifecycle.keyed import Answer, Keyed
from shardq.lifecycle.pauses import Pauses
from shardq.model import names, settings
from shardq.model.message import last_error
from shardq.model.times import moment_of
from shardq.records.register import Register
from shardq.records.standing import Is
from shardq.schedules.tick import Tick, lead_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardq.lifecycle.home import QueueHome
    from shardq.model.message import Row
    from shardq.records.keyrow import KeyRow
    from shardq.records.keys import Keys
    from shardq.records.standing import Standing
    from shardq.schedules.definition import Definition

ATTEMPTS = 10_000
"""A tick whose trigger fails is tried again for as long as its user may take to notice."""
_OVERDUE_MS = 15_000
"""A tick that should have moved on so long ago is looked for; a lease runs out sooner."""
_TRIES = 200
_SLACK_US = 1_000_000
"""How much longer a row that is about to be written is waited for than three of them take."""


class Found(NamedTuple):
    """A tick as it was read.

    Attributes:
        tick: It.
        is_firing: Whether a process is firing it.
        error: Why it failed last; None where it has not.
    """

    tick: Tick
    is_firing: bool
    error: str | None


class Ticks:
    """The ticks of one queue's schedules, as commands see them.

    Args:
        home: The queue's.
        register: Of the queue of the ticks.

    Attributes:
        register: Likewise.
        keys: By which they are found.
    """

    def __init__(self, home: QueueHome, register: Register) -> None:
        self.register = register
        self._clock = home.clock
        self._is_local = home.store.is_local
        self._queue = home.register.name
        self._own = home.of_queue(register)
        self._settler = self._own.settler
        self._producer = self._own.producer
        self._keyed = Keyed(self._own)
        self.keys: Keys = self._settler.keys

    @classmethod
    def made(cls, home: QueueHome) -> Ticks:
        """Those of a queue that is to have schedules; from now on its consumers fire them.

        Raises:
            UsageError: If the name of their queue is another's.
        """
        register = home.register
        own, name = register.settings, names.schedules_queue(register.name)
        made = Register.open(
            home.store,
            home.clock,
            name,
            {},
            create=True,
            defaults={
                "attempts": ATTEMPTS,
                "minute": settings.said("minute_ms", own.minute_ms),
                "offset": settings.said("offset_ms", own.offset_ms),
                "lease": settings.said("lease_ms", own.lease_ms),
            },
            is_clock_known=True,
        )
        if made.settings.attempts != ATTEMPTS:
            raise UsageError(
                f"queue {register.name!r} can have no schedules while there is a queue {name!r} of "
                f"other messages, as that is where they would be; use another queue for them, and "
                f"drop that one."
            )
        if not own.schedules_used:
            register.change(settings.use_schedules)
        return cls(home, made)

    @classmethod
    def found(cls, home: QueueHome) -> Ticks | None:
        """Those of a queue, where it has ever had schedules; None once it is dropped."""
        # Another process may have made the first one just now.
        home.register.refresh(force=not home.register.settings.schedules_used)
        if not home.register.settings.schedules_used:
            return None
        name = names.schedules_queue(home.register.name)
        try:
            return cls(home, Register.open(home.store, home.clock, name, {}, create=False))
        except UnknownQueue:
            return None

    def read(self, asked: Iterable[str], damaged: dict[str, str] | None = None) -> dict[str, Found]:
        """Those of these names that have a tick: a few reads, however many they are.

        Args:
            asked: The names.
            damaged: Takes a sentence of each that is damaged; None: that is an error.

        Raises:
            StoreCorrupt: If one is damaged.
        """
        found = {}
        for name, standing in self._seek(asked).items():
            row = standing.row
            if row is not None and _is_there(standing):
                try:
                    tick = self._tick(row)
                except StoreCorrupt as error:
                    if damaged is None:
                        raise
                    damaged[name] = str(error)
                else:
                    found[name] = Found(tick, standing.state is Is.RUNNING, last_error(row)[0])
        return found

    def _seek(self, asked: Iterable[str]) -> dict[str, Standing]:
        """What names stand for, once no row of them is about to be written any more.

        A command takes its name first: between that and its row it is neither there nor gone.
        """
        standings = self.keys.seek(asked)
        for name, one in standings.items():
            if one.state is Is.PENDING:
                within_us = _SLACK_US + 3_000 * self.keys.patience_ms
                found = self.keys.await_row(name, within_us)
                if found is None:
                    raise self._outrun(name)
                standings[name] = found
        return standings

    def put(self, tick: Tick) -> None:
        """Put the tick of a schedule that has none; one that is about to end is waited for.

        Raises:
            KeyTaken: If it has one.
            StoreUnavailable: If that does not end.
        """
        name, due_ms = tick.definition.name, self._due_ms(tick)
        pauses = Pauses(self._clock)
        for _ in range(_TRIES):
            try:
                self._producer.put(
                    tick.due_at(due_ms).body(),
                    due=moment_of(due_ms),
                    id=name,
                    key=name,
                    on_conflict="reject",
                )
            except KeyTaken:
                if not self._is_ending(name):
                    raise
                pauses.wait()
            else:
                return
        raise self._outrun(name)

    def put_again(self, definition: Definition) -> None:
        """Put the tick again of a schedule that has lost it for sure: it goes on where that was.

        Raises:
            KeyTaken: If it has one.
        """
        key, now_ms = self._seek([definition.name])[definition.name].key, self._clock.now_ms()
        if not is_suspect(key, now_ms):
            return
        self.put(resumed(definition, key, now_ms, is_local=self._is_local))

    def _is_ending(self, name: str) -> bool:
        """Whether a tick was removed while it fires, or never fires again, and is still there."""
        standing = self._seek([name])[name]
        is_over = standing.row is not None and self._tick(standing.row).next_ms is None
        return standing.key.is_doomed or is_over

    def change(self, name: str, change: Callable[[Tick], Tick]) -> Tick | None:
        """Replace a tick by what becomes of it; whatever fires meanwhile, that is heeded.

        One that is firing is waited for: it takes milliseconds, and where its process has died, as
        long as a lease.

        Args:
            name: The schedule's.
            change: Given the tick as it is; called anew where that has changed.

        Returns:
            The tick as it is now; None where there is none.

        Raises:
            StoreUnavailable: If it goes on firing.
        """
        made: list[Tick] = []

        def plan(row: Row) -> Row:
            tick = change(self._tick(row))
            due_ms = self._due_ms(tick)
            made[:] = [tick.due_at(due_ms)]
            new = self._settler.planner.asked(row, due_ms)
            return new._replace(body=made[0].body(), error=None, attempt=0)

        pauses = Pauses(self._clock)
        for _ in range(_TRIES):
            answer = self._keyed.replace(name, plan)
            if answer is Answer.DONE:
                return made[0]
            if answer is Answer.NOT_THERE:
                return None
            pauses.wait()
        raise self._outrun(name)

    def find(self, name: str) -> Row | None:
        """The row of a tick, by which `cancel` knows it again; None where there is none."""
        standing = self.keys.seek([name])[name]
        return standing.row if standing.state in (Is.WAITING, Is.RUNNING) else None

    def has(self, name: str) -> bool:
        """Whether a name stands for a tick, be it one that is lost, or is still to be written."""
        return self.keys.look([name])[name].first is not None

    def is_lost(self, name: str) -> bool:
        """Whether a tick that nobody has removed is not to be found."""
        standing = self.keys.seek([name])[name]
        has_one = standing.key.first is not None and not standing.key.is_doomed
        return has_one and standing.state is Is.ENDED

    def cancel(self, name: str, of: Row | None = None) -> bool:
        """Remove a tick; what it is firing, it still puts.

        Args:
            name: The schedule's.
            of: A row of the tick that is meant; None: whichever there is.

        Returns:
            Whether there was one.
        """
        return self._keyed.cancel(name, of) is not Answer.NOT_THERE

    def drop(self) -> None:
        """Take their queue off the list."""
        before_us = self._clock.now_us()
        self.register.change(lambda now: settings.drop(now, before_us))

    def close(self) -> None:
        """Store what is counted."""
        self._own.close()

    def _outrun(self, name: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"schedule {name!r} of queue {self._queue!r} could not be changed: it is being fired "
            f"or changed all the time; try again."
        )

    def _tick(self, row: Row) -> Tick:
        return Tick.read(row.body, f"schedule {row.message_id!r} of queue {self._queue!r}")

    def _due_ms(self, tick: Tick) -> int:
        lead = lead_of(tick.definition, is_local=self._is_local)
        return tick.due_ms(self._clock.now_ms(), lead)


def is_suspect(key: KeyRow, now_ms: int) -> bool:
    """Whether a tick may be lost: between a firing and its note each looks like that."""
    place = key.at or key.place
    return place is None or place.due_ms < now_ms - _OVERDUE_MS


def resumed(definition: Definition, key: KeyRow, now_ms: int, *, is_local: bool) -> Tick:
    """The tick of a schedule that has lost it, from where its key says that it was."""
    place = key.at or key.place
    place_ms = None if place is None else place.due_ms
    tick = Tick.resumed(definition, place_ms, now_ms, lead_of(definition, is_local=is_local))
    return tick._replace(is_again=True)


def _is_there(standing: Standing) -> bool:
    """Whether a name stands for a tick that was not removed."""
    is_one = standing.state in (Is.WAITING, Is.RUNNING, Is.DEAD)
    return is_one and not standing.key.is_doomed
