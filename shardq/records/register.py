"""A queue's record in the store: settings and secret, shared and reread every 3 s.

`settings.py` explains the settings.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shardq import locks
from shardq.errors import (
    BadSetting,
    StoreCorrupt,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
    shown,
)
from shardq.model import names, settings
from shardq.model.limits import queue_limit_of
from shardq.model.receipt import Signer
from shardq.model.settings import FIRST_LANE_MAX, GROUP_LANE_MAX, LANES_MAX, Settings
from shardq.stores.tables import QUEUES, Change, QueueRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shardq.clock import Clock
    from shardq.model.message import Row
    from shardq.model.shard import Layout, Shard
    from shardq.stores.store import Registers, Store

log = logging.getLogger(__name__)

REFRESH_US = 3_000_000
"""How often a queue's record is reread. A purge holds once every member has reread it: after 5 s at
most, with a slow read."""

_TRIES = 20

_warned: set[tuple[str, str]] = set()
"""Store and text of each warning that this process has logged."""

DEAD_SETTINGS = {"minute": "1h", "lanes": 1, "group_lanes": 1, "bands": 1, "attempts": 10_000}
"""The settings of a new dead-letter queue. Dead messages wait for people, so their shards are long:
those of a year are found by 9,000 probes."""


class Register:
    """The record of one queue, as this process last read it.

    Attributes:
        name: The queue's name.
        settings: The queue's settings.
        layout: Where the queue's rows live.
        signer: Makes and reads the queue's receipts.
        members_key: The name under which the queue's members are stored.
        totals_key: The name under which the queue's totals are stored. The totals of a dropped
            queue of the same name are stored under another one.
    """

    def __init__(self, store: Store, clock: Clock, name: str, record: QueueRecord) -> None:
        self.name = name
        self._store = store
        self._clock = clock
        self._lock = locks.new()
        self._others: dict[str, Register] = {}
        self._read_us = 0
        self._adopt(record)

    @classmethod
    def open(
        cls,
        store: Store,
        clock: Clock,
        name: str,
        given: Mapping[str, Any],
        *,
        create: bool,
        defaults: Mapping[str, Any] | None = None,
        is_clock_known: bool = False,
    ) -> Register:
        """The record of a queue, made if the queue does not exist.

        Args:
            given: Settings asked for; if the queue exists, its stored settings hold.
            create: True to make the queue if it does not exist.
            defaults: Settings of a new queue that are not in `given`.
            is_clock_known: True if this clock has been checked against the offset.

        Raises:
            BadName: If the name is outside its alphabet.
            BadSetting: If a setting is unknown, out of bounds, or fixed and not what the queue has.
            UnknownQueue: If the queue does not exist, and `create` is False.
            ClockError: If this clock is further off than the queue's offset.
        """
        names.queue_name(name)
        # Check these first: a bad setting is an error whatever the queue has.
        settings.read_choices(given)
        record = stored_record(store, name)
        held = settings_in(record, name)
        if held is None:
            if not create:
                raise _unknown(store, name)
            usual = DEAD_SETTINGS if names.is_dead_queue(name) else {}
            held = settings.create({**usual, **(defaults or {}), **given}, clock.now_ms())
            check_dead(store, name, held.dead)
        if not is_clock_known:
            # Check the clock before the queue is made, because its record holds this clock's time.
            clock.check(held.offset_ms)
        for _ in range(_TRIES):
            if record is not None and settings_in(record, name) is not None:
                register = cls(store, clock, name, record)
                register.check_same(given)
                return register
            record = cls._make(store, name, held, record)
        raise StoreUnavailable(
            f"queue {name!r} could not be made: other processes kept changing it."
        )

    @staticmethod
    def _make(
        store: Store, name: str, chosen: Settings, dropped: QueueRecord | None
    ) -> QueueRecord | None:
        if dropped is None:
            record = QueueRecord(chosen.to_json(), secrets.token_bytes(32), 1)
        else:
            record = _revived(name, chosen, dropped)
        return record if _write(store, name, record, dropped) else stored_record(store, name)

    @property
    def version(self) -> int:
        """How often the record had been stored when it was last read."""
        return self._record.version

    @property
    def age_us(self) -> int:
        """How long ago the record was read, microseconds."""
        return self._clock.boot_us() - self._read_us

    def refresh(self, *, force: bool = False) -> bool:
        """Reread the record if it is 3 s old; returns True if it has changed."""
        if not force and self.age_us < REFRESH_US:
            return False
        record = stored_record(self._store, self.name)
        with self._lock:
            if record is None:
                raise UnknownQueue(f"the record of queue {self.name!r} is gone from the store.")
            changed = record.version != self._record.version
            if record != self._record:
                self._adopt(record)
            self._read_us = self._clock.boot_us()
        return changed

    def take_in(self, record: QueueRecord) -> None:
        """Take in a record that was just read, together with the records of other queues.

        Raises:
            StoreCorrupt: If the record cannot be read.
        """
        with self._lock:
            if record != self._record:
                if type(record.version) is int and record.version <= self.version:
                    # A plain read may miss this process's own last change; `refresh` reads it.
                    return
                self._adopt(record)
            self._read_us = self._clock.boot_us()

    def change(self, step: Callable[[Settings], list[Settings]]) -> None:
        """Change the settings by compare-and-set, each try from the stored settings.

        Args:
            step: Given the stored settings, returns those to store, one after another; an empty
                list for no change.

        Raises:
            StoreUnavailable: If other processes keep changing the settings.
        """
        for _ in range(_TRIES):
            self.refresh(force=True)
            if all(
                self._write(wanted) for wanted in step(self.settings) if wanted != self.settings
            ):
                return
        raise StoreUnavailable(
            f"the settings of queue {self.name!r} could not be changed: other processes kept "
            f"changing them; try again."
        )

    def use_band(self, band: int) -> None:
        """Record that a row is about to be put into a band: consumers then poll the band.

        The first time costs a read and an LWT.
        """
        if band >= self.layout.bands_used:
            self.change(lambda now: settings.use_band(now, band))

    def use_groups(self) -> None:
        """Record that a message with a group is about to be put: consumers then poll group lanes.

        The first time costs a read and an LWT.
        """
        if not self.layout.groups_used:
            self.change(settings.use_groups)

    def use_keys(self) -> None:
        """Record that a message is about to be put under a key.

        The first time costs a read and an LWT; twice that if there is a dead-letter queue, as dead
        messages keep their keys.
        """
        if not self.settings.keys_used:
            # Record it in the dead-letter queue first: until this queue's record is stored, the
            # next put does both.
            dead = self.dead_if_made()
            if dead is not None and self.has_own_dead:
                dead.use_keys()
            self.change(settings.use_keys)

    @property
    def has_unused_lanes(self) -> bool:
        """True if bands or groups are unused so far, by the settings last read."""
        return self.layout.bands_used < self.layout.bands or not self.layout.groups_used

    def use_lanes_of(self, shards: Iterable[Shard]) -> None:
        """Begin to use the band and group lanes of rows that are about to be put."""
        if self.has_unused_lanes:
            layout = self.layout
            lanes = {shard.lane for shard in shards}
            ordinary = [lane for lane in lanes if not layout.is_of_groups(lane)]
            self.use_band(max(map(layout.band_of, ordinary), default=0))
            if len(ordinary) < len(lanes):
                self.use_groups()

    def made_minute(self, lane: int) -> int:
        """The first minute in which a lane can have rows of this queue.

        A seal of an earlier minute is of a dropped queue of the same name.
        """
        layout = self.layout
        index = 0 if layout.is_of_groups(lane) else layout.index_of(lane)
        made_ms = self.settings.lane_made_ms(index)
        return layout.minute_of(max(made_ms - layout.offset_ms, 0))

    def unsealed_minute(self, lane: int, sealed: Mapping[int, int]) -> int:
        """The oldest minute of a lane that may have rows, by the sealed minutes of all lanes."""
        made = self.made_minute(lane)
        return max(sealed.get(lane, made - 1) + 1, made)

    @property
    def first_minute(self) -> int:
        """The first minute in which readers look for rows, whatever clocks were set to.

        If a dropped queue of the same name had minutes of another length, its shards mean nothing
        now. If its minutes had the same length, its rows are found and purged.
        """
        return self.made_minute(self.layout.first_lane) if self.layout.first_lane else 0

    @property
    def life_minute(self) -> int:
        """The first minute whose rows are counted: earlier ones are of a dropped queue."""
        is_first = not self.settings.former_until_us
        return 0 if is_first else self.made_minute(self.layout.first_lane)

    def is_former(self, row: Row) -> bool:
        """True if a row is of a dropped queue of the same name."""
        return row.entered_us < self.settings.former_until_us

    def is_purged(self, row: Row) -> bool:
        """True if a row entered before the last purge, or is of a dropped queue of this name."""
        return row.entered_us < self.settings.purged_before_us

    @property
    def dead_name(self) -> str | None:
        """The name of this queue's dead-letter queue; None if its dead messages are not kept.

        A dead-letter queue has no such queue, because its messages do not die.
        """
        name = self.settings.dead
        if name == settings.OFF or names.is_dead_queue(self.name):
            return None
        return name or names.dead_queue(self.name)

    @property
    def has_own_dead(self) -> bool:
        """True if dead messages are in a queue of this queue's own, where they keep keys."""
        return self.dead_name == names.dead_queue(self.name)

    def dead(self) -> Register:
        """The record of this queue's dead-letter queue, which is made if it does not exist.

        Raises:
            UsageError: If the queue keeps no dead messages.
        """
        name = self._kept_dead()
        dead = self._others.get(name)
        if dead is not None:
            dead.refresh()
        if dead is None or dead.settings.dropped:
            dead = self._others[name] = self._open_dead(name, create=True)
            if self.settings.keys_used and self.has_own_dead:
                dead.use_keys()
        return dead

    def dead_if_made(self) -> Register | None:
        """The record of this queue's dead-letter queue; None if it does not exist."""
        name = self.dead_name
        if name is not None and name not in self._others:
            with suppress(UnknownQueue):
                self._others[name] = self._open_dead(name, create=False)
        return None if name is None else self._others.get(name)

    def known(self, queue: str) -> Register:
        """The record of this queue, or of one into which it moves messages. Costs no read."""
        return self if queue == self.name else self._others[queue]

    def know(self, other: Register) -> None:
        """Keep the record of another queue, into which messages of this queue are moved."""
        self._others[other.name] = other

    def _kept_dead(self) -> str:
        name = self.dead_name
        if name is None:
            why = "is one of dead letters" if names.is_dead_queue(self.name) else "has dead='off'"
            raise UsageError(f"queue {self.name!r} {why}, and keeps no dead messages.")
        return name

    def _open_dead(self, name: str, *, create: bool) -> Register:
        shared = settings.SHARED if self.has_own_dead else ()
        stored = {choice: settings.CHOICES[choice].stored for choice in shared}
        return Register.open(
            self._store,
            self._clock,
            name,
            {},
            create=create,
            defaults={
                choice: settings.said(place, getattr(self.settings, place))
                for choice, place in stored.items()
            },
            # The clock was checked when this queue was opened, which has the same offset as its own
            # dead letters.
            is_clock_known=self.has_own_dead,
        )

    def is_spent(self, attempts: int) -> bool:
        """True if a message has had all its deliveries. A dead message never has."""
        return attempts >= self.settings.attempts and not names.is_dead_queue(self.name)

    def layout_of(self, queue: str) -> Layout:
        """Where the rows of this queue live, or of a queue into which it moves messages."""
        return self.layout if queue == self.name else self._other(queue).layout

    def signer_of(self, queue: str) -> Signer:
        """The maker of receipts of this queue, or of a queue into which it moves messages."""
        return self.known(queue).signer

    def settings_of(self, queue: str) -> Settings:
        """The settings of this queue, or of a queue into which it moves messages."""
        if queue == self.name:
            return self.settings
        other = self._other(queue)
        if self.settings.history_ms or queue != names.dead_queue(self.name):
            # The queue's own dead letters have a history if this queue has one: without one,
            # burials save this read.
            other.refresh()
        return other.settings

    def _other(self, queue: str) -> Register:
        return self.dead() if queue == self.dead_name else self._others[queue]

    def _write(self, wanted: Settings) -> bool:
        record = QueueRecord(wanted.to_json(), self._record.secret, self._record.version + 1)
        written = _write(self._store, self.name, record, self._record)
        if written:
            with self._lock:
                self._adopt(record)
        return written

    def _adopt(self, record: QueueRecord) -> None:
        if type(record.secret) is not bytes or type(record.version) is not int:
            raise StoreCorrupt(
                f"the record of queue {self.name!r} is damaged: its version is "
                f"{shown(record.version)}, its secret {type(record.secret).__name__}; restore the "
                f"store from a copy."
            )
        read = Settings.from_json(record.settings, self.name)
        self.layout: Layout = settings.layout_of(read, self.name)
        # Set these last, so that a record that cannot be read is an error each time.
        self.settings: Settings = read
        self._record = record
        self._read_us = self._clock.boot_us()
        self.signer: Signer = Signer(self.name, record.secret, self.layout)
        first_lane, former_us = self.settings.first_lane, self.settings.former_until_us
        self.members_key: str = _key(self.name, first_lane)
        self.totals_key: str = _key(self.name, former_us)

    def check_same(self, given: Mapping[str, Any]) -> None:
        """Compare settings asked for with those of the queue; the queue's settings hold.

        If they differ, a warning is logged once. A difference is no error, because a deployment
        that changes a setting starts new processes while old processes run.

        Raises:
            BadSetting: If a setting is unknown, unreadable or out of bounds, or fixed at creation
                and different.
        """
        # Pauses that end by themselves come from handlers: nobody has chosen them.
        limits = queue_limit_of(self.settings.queue_limit).lasting.to_json()
        chosen = replace(self.settings, queue_limit=limits)
        asked = replace(chosen, **settings.read_choices(given))
        differing = []
        for name, choice in settings.CHOICES.items():
            present = settings.text_of(chosen, name)
            wanted = settings.text_of(asked, name)
            if present == wanted:
                continue
            values = f"{name} {present}, not {wanted}"
            if choice.stored in settings.FIXED:
                raise BadSetting(
                    f"queue {self.name!r} exists with {values}; that is fixed when a queue is "
                    f"created."
                )
            differing.append(values)
        if not differing:
            return
        text = (
            f"queue {self.name!r} exists, and keeps {'; '.join(differing)}; change it with "
            f"alter(), at a shell with `shardq queues alter`"
        )
        if (warning := (self._store.shown, text)) not in _warned:
            _warned.add(warning)
            log.warning("%s", text)


def check_dead(store: Registers, name: str, dead: str) -> None:
    """Refuse a dead-letter queue from which dead messages would come back to this queue.

    Args:
        name: The queue.
        dead: The queue's setting `dead`.

    Raises:
        BadSetting: If `dead` is the queue itself, or leads to it; or if `name` is a dead-letter
            queue.
    """
    if not dead:
        return
    if names.is_dead_queue(name):
        raise BadSetting(f"queue {name!r} keeps dead messages, which do not die: it has no dead.")
    chain = [name]
    while dead and dead != settings.OFF:
        if dead in chain:
            way = " -> ".join([*chain, dead])
            raise BadSetting(
                f"dead messages of queue {name!r} would go round in a circle: {way}; choose "
                f"another queue for dead, or {settings.OFF!r}."
            )
        chain.append(dead)
        held = settings_in(stored_record(store, dead), dead)
        dead = "" if held is None else held.dead


def stored_record(store: Registers, name: str) -> QueueRecord | None:
    """A queue's record, by a SERIAL read; None if the queue has none."""
    return store.records(QUEUES, (), [name]).get(name)


def _write(store: Registers, name: str, record: QueueRecord, seen: QueueRecord | None) -> bool:
    version = None if seen is None else seen.version
    change = Change((), (name,), {"version": version}, record._asdict())
    return not store.write_records(QUEUES, [change])


def settings_in(record: QueueRecord | None, name: str) -> Settings | None:
    """The settings of a queue that exists and is not dropped; else None."""
    found = None if record is None else _settings_of(record.settings, name)
    return None if found is None or found.dropped else found


@lru_cache(2_000)
def _settings_of(text: str, name: str) -> Settings:
    """Settings from their stored form. Cached, as looks at all queues read the same forms often."""
    return Settings.from_json(text, name)


def _key(name: str, life: int) -> str:
    # No queue's name may have a '#', so no two queues share a name in the store.
    return f"{name}#{life}" if life else name


def _unknown(store: Registers, name: str) -> UnknownQueue:
    served = names.served_queue(name)
    if served != name and settings_in(stored_record(store, served), served) is not None:
        return UnknownQueue(f"there is no queue {name!r}: nothing of {served!r} has died yet.")
    return UnknownQueue(
        f"there is no queue {served!r}; make it by putting a message, or check the name."
    )


def _revived(name: str, chosen: Settings, dropped: QueueRecord) -> QueueRecord:
    """The record of a dropped queue that is made anew; its former messages stay purged.

    If minutes have another length, the same lanes would mean other shards, and an old seal could
    hide every minute to come; so the queue gets new lanes. Otherwise the queue keeps its lanes and
    reads all of them. Then purged rows are deleted when they come due, and messages are delivered
    that a process puts because it has not read of the drop yet. Group lanes are new in any case.
    """
    before = Settings.from_json(dropped.settings, name)
    made_ms = chosen.lanes_made[0][1]
    former = settings.layout_of(before, name).lanes()
    lanes_read, first_lane = chosen.lanes_read, former.start
    bands_used = chosen.bands_used
    covering = max(lanes_read, -(-len(former) // chosen.bands))
    if chosen.minute_ms == before.minute_ms and covering <= settings.LANES_MAX:
        lanes_read = covering
        # For 5 s a process that has not read of the drop yet puts as before.
        is_same = chosen.bands == before.bands
        bands_used = max(chosen.bands_used, before.bands_used) if is_same else settings.BANDS_MAX
    else:
        first_lane = former.stop
    first_group_lane = before.first_group_lane + before.group_lanes
    if first_lane > FIRST_LANE_MAX or first_group_lane > GROUP_LANE_MAX - LANES_MAX:
        raise BadSetting(
            f"queue {name!r} has been dropped and made anew too often; take another name."
        )
    revived = replace(
        chosen,
        bands_used=bands_used,
        lanes_read=lanes_read,
        # The lanes count as made now: since the drop no row in them was to be delivered.
        lanes_made=((lanes_read, made_ms),),
        purged_before_us=before.purged_before_us,
        # The ledger may have only a part of the dropped queue's history.
        history_from_ms=made_ms,
        first_lane=first_lane,
        first_group_lane=first_group_lane,
        former_until_us=before.purged_before_us,
        # Rows and keys of the dropped queue may still exist.
        keys_used=chosen.keys_used or before.keys_used,
        needs=max(chosen.needs, before.needs),
        unknown=before.unknown,
    )
    return QueueRecord(revived.to_json(), dropped.secret, dropped.version + 1)
