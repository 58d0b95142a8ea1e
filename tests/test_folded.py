"""The sum of a queue's totals, and the row that holds those of ended processes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from shardq.errors import StoreCorrupt
from shardq.records.folded import (
    MEMBER,
    MINUTE,
    Folded,
    drop_damaged,
    fold,
    stored_totals,
    write_folded,
)
from shardq.records.register import Register
from shardq.records.stats import StatsLog
from shardq.stores import store_of
from shardq.stores.sqlite import SqliteStore
from shardq.stores.tables import STATS, Change
from shardq.testing import Faults, ManualClock
from shardq.testing.faults import faulty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.records.folded import Stored
    from shardq.stores.store import Store


class World:
    """A queue in a store, a clock that is moved by hand, and processes that count."""

    def __init__(self, store: Store, clock: ManualClock, queue: str) -> None:
        self.faults = Faults()
        self.store = faulty(store, self.faults)
        self.clock = clock
        self.queue = queue
        self.register = Register.open(self.store, clock, queue, {}, create=True, defaults={})
        self.logs = 0

    def process(self, clock: ManualClock | None = None) -> StatsLog:
        self.logs += 1
        layout, name = self.register.layout, f"web:{self.logs}"
        return StatsLog(self.store, clock or self.clock, layout, name, is_timed=True)

    def ended(self, **counts: int) -> StatsLog:
        log = self.process()
        log.add(**counts)
        log.close()
        return log

    def crashed(self, **counts: int) -> StatsLog:
        """A process that stores its counts, and crashes before it stores that they are complete."""
        log = self.process()
        log.add(**counts)
        log.keep()
        return log

    def fold(self) -> int:
        return fold(self.store, self.clock, self.register)

    def mend(self, by: int = 0) -> None:
        stored, now_ms = self.stored(), self.clock.now_ms()
        folded = stored.settled(self.register.layout, now_ms)
        folded.mended += by
        folded.mended_ms = now_ms
        assert write_folded(self.store, stored, folded, now_ms)

    def stored(self) -> Stored:
        return stored_totals(self.store, self.queue)

    @property
    def put(self) -> int:
        return self.stored().totals.put

    @property
    def rows(self) -> list[str]:
        return [member for _, member in sorted(self.store.notes(STATS, (self.queue,)))]

    def gaps(self) -> list[str]:
        return [row.process for row in self.stored().gaps(self.clock.now_ms())]


@pytest.fixture(params=["memory", pytest.param("cassandra", marks=pytest.mark.cassandra)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    clock = ManualClock()
    queue = f"q-{uuid.uuid4().hex[:16]}"
    if request.param == "memory":
        store: Store = SqliteStore(machine_us=clock.true_us)
    else:
        store = store_of(request.getfixturevalue("cassandra_url"))
    store.open()
    yield World(store, clock, queue)
    store.close()


@pytest.fixture
def here() -> Iterator[World]:
    """One on SQLite, where the store does not matter."""
    clock = ManualClock()
    store = SqliteStore(machine_us=clock.true_us)
    store.open()
    yield World(store, clock, "mail")
    store.close()


# Folding ------------------------------------------------------------------------------------------


def test_the_totals_of_200_ended_processes_are_one_row_after_an_hour(world: World) -> None:
    for _ in range(200):
        world.ended(put=3, acked=1)
        world.clock.advance(3)
    living = world.process()
    world.clock.advance(3_600)
    living.add(put=5)
    living.keep()
    assert world.fold() == 200
    assert sorted(world.rows) == [MEMBER, "web:201"]
    totals = world.stored().totals
    assert (totals.put, totals.acked, totals.present) == (605, 200, 405)
    assert world.fold() == 0


def test_folds_leave_each_count_as_it_is_whatever_they_meet(world: World) -> None:
    for count in range(1, 6):
        world.ended(put=count)
    world.clock.advance(3_600)
    for verb, applied in (
        ("write_records stats", True),
        ("erase stats", False),
        ("write_records stats", False),
    ):
        world.faults.fail(verb, applied=applied)
        with pytest.raises(Exception, match=r"away|lost"):
            world.fold()
        assert world.put == 15
        world.ended(put=0)
        world.clock.advance(3_600)
    world.fold()
    assert world.put == 15
    assert world.rows == [MEMBER]


def test_two_that_fold_at_once_count_no_row_twice(world: World) -> None:
    for _ in range(10):
        world.ended(put=1)
    world.clock.advance(3_600)
    folded: list[int] = []

    def overtake() -> None:
        # Fold what the other fold has read too. A moment later, because two folds of one moment
        # would write the same row.
        world.clock.advance(1)
        folded.append(world.fold())

    world.faults.call("write_records stats", overtake, after=False)
    folded.append(world.fold())
    assert sorted(folded) == [0, 10]
    assert (world.put, world.rows) == (10, [MEMBER])


def test_who_reads_in_the_middle_of_a_fold_counts_each_row_once(world: World) -> None:
    for _ in range(10):
        world.ended(put=1)
    world.clock.advance(3_600)
    seen: list[int] = []
    for verb in ("write_records stats", "erase stats"):
        for after in (False, True):
            world.faults.call(verb, lambda: seen.append(world.put), nth=2 if verb > "f" else 1)
            world.faults.call(verb, lambda: seen.append(world.put), after=after)
    world.fold()
    assert len(seen) >= 4
    assert set(seen) == {10}


def test_a_row_is_folded_once_its_process_has_rested_for_10_minutes(here: World) -> None:
    here.ended(put=1)
    here.clock.advance(599)
    assert here.fold() == 0
    here.clock.advance(1)
    assert here.fold() == 1


def test_who_goes_on_after_a_rest_counts_in_another_row(here: World) -> None:
    log = here.ended(put=1)
    here.clock.advance(290)
    log.add(put=1)
    log.close()
    assert here.rows == ["web:1"]
    here.clock.advance(310)
    log.add(put=1)
    log.close()
    assert here.rows == ["web:1", "web:1~1"]
    assert {row.process for row in here.stored().rows} == {"web:1"}
    here.clock.advance(600)
    assert here.fold() == 2
    log.add(put=1)
    log.close()
    assert here.put == 4


def test_each_hour_of_a_process_that_never_rests_is_folded(here: World) -> None:
    log = here.process()
    for _ in range(3_600 * 3):
        log.add(put=1)
        if log.is_due():
            log.keep()
        here.clock.advance(1)
    log.store()
    here.fold()
    assert len(here.rows) <= 3
    assert here.put == 3_600 * 3


def test_a_crashed_process_is_folded_only_when_a_full_count_has_settled_it(here: World) -> None:
    here.crashed(put=4)
    here.clock.advance(4)
    assert here.gaps() == []
    here.clock.advance(2)
    assert here.gaps() == ["web:1"]
    here.clock.advance(3_600)
    assert here.fold() == 0
    here.mend(by=2)
    assert here.gaps() == []
    assert here.fold() == 1
    totals = here.stored().totals
    assert (totals.put, totals.mended, totals.present) == (4, 2, 6)
    assert here.rows == [MEMBER]


def test_a_stopped_process_that_comes_back_is_not_counted_twice(here: World) -> None:
    log = here.crashed(put=4)
    log.add(put=3)
    # It stands there, with 3 counted and not stored. A full count finds them.
    here.clock.advance(3_600)
    here.mend(by=3)
    assert here.fold() == 1
    log.keep()
    assert here.stored().totals.present == 7
    assert here.gaps() == ["web:1"]
    log.add(put=1)
    log.close()
    assert here.stored().totals.present == 8
    here.clock.advance(700)
    here.mend()
    here.fold()
    assert here.rows == [MEMBER]
    assert here.stored().totals.present == 8


def test_a_process_that_was_stopped_with_nothing_to_store_goes_on_in_another_row(
    here: World,
) -> None:
    log = here.crashed(put=4)
    here.clock.advance(3_600)
    assert here.gaps() == ["web:1"]
    here.mend()
    assert here.fold() == 1
    log.add(put=1)
    log.keep()
    assert here.put == 5
    log.add(put=1)
    log.close()
    assert here.gaps() == []
    here.clock.advance(700)
    here.fold()
    assert (here.put, here.rows) == (6, [MEMBER])


def test_more_ended_processes_than_one_row_names_are_folded_all_the_same(here: World) -> None:
    for _ in range(1_000):
        here.crashed(put=1)
    here.clock.advance(3_600)
    here.mend()
    assert here.fold() == 1_000
    assert (here.put, here.rows) == (1_000, [MEMBER])
    [text] = here.store.notes(STATS, ("mail",)).values()
    assert len(text) < 16_384


def test_the_lateness_of_folded_rows_is_that_of_their_day(here: World) -> None:
    layout = here.register.layout
    log = here.process()
    log.lateness.add(9_000)
    log.add(delivered=1)
    log.close()
    here.clock.advance(3_600)
    here.fold()
    now_ms = here.clock.now_ms()
    assert here.stored().lateness(now_ms).count == 0
    assert here.stored().lateness_of_day(now_ms, layout).count == 1
    here.clock.advance(29 * 3_600)
    here.ended(put=1)
    here.clock.advance(3_600)
    here.fold()
    assert here.stored().lateness_of_day(here.clock.now_ms(), layout).count == 0
    assert here.stored().totals.put == 1


def test_what_was_put_this_hour_is_told_when_its_rows_are_folded(here: World) -> None:
    layout = here.register.layout
    here.clock.advance(60)
    hour = layout.hour_of(here.clock.now_ms())
    here.ended(put=5, acked=2)
    here.clock.advance(700)
    before = here.stored().since(hour)
    assert here.fold() == 1
    assert here.stored().since(hour) == before == (5, 2)
    here.clock.advance(3_600)
    here.ended(put=1)
    assert here.stored().since(layout.hour_of(here.clock.now_ms())) == (1, 0)
    assert here.stored().since(hour) == (6, 2)


# The clock ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [1, -1, 24 * 365, -24 * 365])
def test_a_clock_that_is_set_loses_and_doubles_no_count(here: World, hours: int) -> None:
    living, resting = here.crashed(put=10), here.ended(put=5)
    here.clock.advance(1)
    here.clock.set(hours * 3_600)
    here.fold()
    for log in (living, resting):
        log.add(put=1)
    here.clock.advance(2)
    living.keep()
    resting.close()
    here.clock.advance(3_600)
    here.fold()
    here.fold()
    assert here.put == 17
    living.add(put=1)
    living.close()
    here.clock.advance(3_600)
    here.mend()
    here.fold()
    here.fold()
    assert (here.put, here.rows) == (18, [MEMBER])


@pytest.mark.parametrize("hours", [1, -1])
def test_a_crash_before_the_clock_was_set_is_mended_once(here: World, hours: int) -> None:
    here.crashed(put=10)
    here.clock.set(hours * 3_600)
    assert here.gaps() == ["web:1"]
    here.mend(by=1)
    assert here.gaps() == []
    assert here.stored().totals.present == 11
    here.clock.advance(7_300)
    here.fold()
    assert here.gaps() == []
    assert (here.stored().totals.present, here.rows) == (11, [MEMBER])


def test_a_crash_is_found_though_the_last_count_was_of_a_time_to_come(here: World) -> None:
    here.ended(put=1)
    here.clock.advance(60)
    here.mend()
    here.clock.set(-3_600)
    here.crashed(put=1)
    here.clock.advance(60)
    assert here.gaps() == ["web:2"]
    here.mend()
    assert here.gaps() == []


# Damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{bad", '{"put":-1}', '{"recent":{"x":{}}}', '{"at_ms":"now"}'])
def test_damaged_totals_are_named_by_their_row_and_can_be_dropped(world: World, text: str) -> None:
    world.ended(put=2)
    world.store.note(STATS, (world.queue,), {(7, "web:9"): text})
    said = (
        rf"^totals of queue '{world.queue}' are damaged in the row of minute 7 and member 'web:9'"
    )
    with pytest.raises(StoreCorrupt, match=said):
        world.stored()
    assert len(drop_damaged(world.store, world.queue, world.clock.now_ms())) == 1
    assert (world.put, world.rows) == (2, ["web:1"])
    assert drop_damaged(world.store, world.queue, world.clock.now_ms()) == []


def test_a_damaged_folded_row_is_replaced_by_an_empty_one(world: World) -> None:
    world.ended(put=2)
    for text in ("{bad", '{"digests":[]}', '{"hours":{"1":[2]}}', "5"):
        folded = MINUTE, MEMBER
        before = world.store.notes(STATS, (world.queue,)).get(folded)
        seen, new = {"totals": before}, {"totals": text}
        world.store.write_records(STATS, [Change((world.queue,), folded, seen, new)])
        with pytest.raises(StoreCorrupt, match="minute 0 and member '#'"):
            world.stored()
        assert len(drop_damaged(world.store, world.queue, world.clock.now_ms())) == 1
        assert world.put == 2
        assert replace(world.stored().folded, at_ms=0) == Folded()


# What rows tell -----------------------------------------------------------------------------------


def test_the_lateness_of_the_last_five_minutes_is_that_of_all_processes(here: World) -> None:
    first, second = here.process(), here.process()
    for minute in range(7):
        for log in (first, second):
            log.lateness.add(1_000 * (minute + 1))
            log.add(delivered=1)
            log.store()
        here.clock.advance(60)
    now_ms = here.clock.now_ms()
    # This minute, of which there is none yet, and the four before it.
    assert here.stored().lateness(now_ms).count == 8
    assert here.stored().lateness_of_day(now_ms, here.register.layout).count == 14
    assert here.stored().totals.lateness.count == 14
    here.clock.advance(300)
    assert here.stored().lateness(here.clock.now_ms()).count == 0


def test_an_hour_s_end_tells_no_lateness_twice(here: World) -> None:
    log = here.process()
    here.clock.advance(3_600 - 90)
    for _ in range(180):
        log.lateness.add(1_000)
        log.add(delivered=1)
        log.keep() if log.is_due() else None
        here.clock.advance(1)
    log.close()
    stored = here.stored()
    assert len(stored.rows) == 2
    assert stored.lateness(here.clock.now_ms()).count == 180
    assert stored.totals.lateness.count == stored.totals.delivered == 180
