"""Rows between reader and handlers."""

from __future__ import annotations

import random
import threading

from hypothesis import given
from hypothesis import strategies as st

from shardq.engine.handing.delivery import Delivery
from shardq.engine.handing.ready import Ready
from shardq.engine.leases.lease import Lease
from shardq.model.ids import RowIds
from shardq.model.message import Row
from shardq.model.shard import Layout
from shardq.testing import ManualClock

LAYOUT = Layout("mail", bands=3)
WAIT_S = 60


class Rows:
    """Makes deliveries that are due some milliseconds after the clock's start."""

    def __init__(self, clock: ManualClock) -> None:
        self.ids = RowIds()
        self.start_ms = clock.now_ms()

    def one(
        self,
        at_ms: int = 0,
        *,
        band: int = 0,
        group: str | None = None,
        lane: int | None = None,
        first_ms: int | None = None,
        body: bytes = b"",
    ) -> Delivery:
        due_ms = self.start_ms + at_ms
        shard = LAYOUT.shard(due_ms, band if lane is None else lane)
        origin_ms = None if first_ms is None else self.start_ms + first_ms
        row = Row(shard, due_ms, self.ids.next(1), body, group=group, origin_ms=origin_ms)
        return Delivery(row, band, Lease(shard, "lock", 0, 10_000_000, 0))


def make(bands: int = 3) -> tuple[ManualClock, Ready, Rows]:
    clock = ManualClock()
    ready = Ready(clock, bands)
    return clock, ready, Rows(clock)


def taken(ready: Ready) -> list[Delivery]:
    found = []
    while (one := ready.take()) is not None:
        found.append(one)
    return found


@given(st.lists(st.integers(0, 5_000), max_size=60))
def test_nothing_is_taken_before_its_due_nor_out_of_order(dues: list[int]) -> None:
    clock, ready, rows = make()
    random.Random(7).shuffle(dues)
    ready.add([rows.one(at_ms) for at_ms in dues])
    out = []
    for _ in range(51):
        for one in taken(ready):
            assert one.row.due_ms <= clock.now_ms()
            out.append(one.row.due_ms)
        clock.advance(0.1)
    assert out == sorted(at_ms + rows.start_ms for at_ms in dues)


def test_a_row_is_ready_on_its_millisecond() -> None:
    clock, ready, rows = make()
    ready.add([rows.one(10)])
    clock.advance(0.009999)
    assert ready.take() is None
    clock.advance(0.000001)
    assert ready.take() is not None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100)), max_size=60))
def test_priorities_are_strict_between_bands(rows_given: list[tuple[int, int]]) -> None:
    clock, ready, rows = make()
    ready.add([rows.one(at_ms, band=band) for band, at_ms in rows_given])
    clock.advance(1)
    out = [(one.band, one.row.due_ms - rows.start_ms) for one in taken(ready)]
    assert out == sorted(rows_given)


def test_a_lane_that_lags_holds_its_band_and_all_later_ones_back() -> None:
    clock, ready, rows = make()
    ready.add([rows.one(50, band=1), rows.one(10, band=2), rows.one(20, band=0)])
    clock.advance(1)
    ready.set_horizon([None, rows.start_ms + 40, None])
    assert [one.band for one in taken(ready)] == [0]
    ready.set_horizon([None, rows.start_ms + 50, None])
    assert [one.band for one in taken(ready)] == [1]
    ready.set_horizon([None, None, None])
    assert [one.band for one in taken(ready)] == [2]


def test_a_band_that_has_more_to_be_read_holds_later_ones_back_even_when_it_is_empty() -> None:
    clock, ready, rows = make()
    ready.add([rows.one(10, band=1)])
    clock.advance(1)
    ready.set_horizon([rows.start_ms, None, None])
    assert taken(ready) == []
    ready.set_horizon([None, None, None])
    assert len(taken(ready)) == 1


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=30),
    st.lists(st.none() | st.integers(0, 50), min_size=3, max_size=3),
)
def test_as_many_rows_are_at_hand_as_can_be_taken(
    given_rows: list[tuple[int, int]], horizon: list[int | None]
) -> None:
    clock, ready, rows = make()
    ready.add([rows.one(at_ms, band=band) for band, at_ms in given_rows])
    clock.advance(1)
    ready.set_horizon([None if at is None else rows.start_ms + at for at in horizon])
    counts = [count for count in range(1, 32) if ready.has(count)]
    assert len(counts) == len(taken(ready))


def test_what_is_removed_is_not_taken() -> None:
    clock, ready, rows = make()
    first, second = rows.one(0), rows.one(1)
    ready.add([first, second, rows.one(5_000), rows.one(0)])
    clock.advance(1)
    assert ready.has_due()
    assert ready.remove(lambda one: one is first) == [first]
    assert len(ready) == 3
    out = taken(ready)
    assert second in out
    assert len(ready) == 1


def test_the_next_due_is_that_of_the_first_row() -> None:
    _clock, ready, rows = make()
    assert ready.next_due_ms() is None
    ready.add([rows.one(700), rows.one(300, band=2)])
    assert ready.next_due_ms() == rows.start_ms + 300


def test_the_next_due_is_not_that_of_a_row_that_waits_for_an_earlier_one() -> None:
    clock, ready, rows = make()
    ready.add([rows.one(0, band=1), rows.one(5_000)])
    clock.advance(1)
    ready.set_horizon([rows.start_ms, None, None])
    assert (ready.take(), ready.next_due_ms()) == (None, rows.start_ms + 5_000)
    ready.set_horizon([None, None, None])
    assert ready.next_due_ms() == rows.start_ms


def start(
    ready: Ready, count: int
) -> tuple[list[threading.Thread], list[Delivery], threading.Event]:
    """Threads that take until they are stopped; the event is set at each row they got."""
    got: list[Delivery] = []
    event = threading.Event()

    def work() -> None:
        while (found := ready.waiters.wait((ready,))) is not None:
            got.append(found[1])
            event.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, got, event


def stop(ready: Ready, threads: list[threading.Thread]) -> None:
    ready.stop()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_threads_that_wait_get_every_row_once_and_end_when_stopped() -> None:
    clock = ManualClock(threaded=True)
    ready, rows = Ready(clock, 3), Rows(clock)
    threads, got, event = start(ready, 4)
    ready.add([rows.one(n % 50, band=n % 3) for n in range(200)])
    clock.advance(1)
    while len(got) < 200:
        assert event.wait(WAIT_S)
        event.clear()
    stop(ready, threads)
    assert len({one.row.id for one in got}) == 200


def test_rows_are_not_counted_while_a_thread_takes_one() -> None:
    _clock, ready, _rows = make()
    counting = threading.Thread(target=len, args=(ready,), daemon=True)
    with ready.waiters.lock:
        counting.start()
        counting.join(0.1)
        assert counting.is_alive()
    counting.join(WAIT_S)
    assert not counting.is_alive()


def test_an_earlier_row_that_arrives_later_wakes_the_one_who_waits() -> None:
    clock = ManualClock(threaded=True)
    ready, rows = Ready(clock, 3), Rows(clock)
    threads, got, event = start(ready, 2)
    ready.add([rows.one(60_000)])
    ready.add([rows.one(5)])
    clock.advance(0.005)
    assert event.wait(WAIT_S)
    assert [one.row.due_ms for one in got] == [rows.start_ms + 5]
    stop(ready, threads)


def test_a_stopped_heap_hands_out_nothing_more() -> None:
    _clock, ready, rows = make()
    ready.add([rows.one(0)])
    ready.stop()
    assert ready.waiters.wait((ready,)) is None


def test_of_many_due_rows_none_is_found_where_nobody_wants_the_first_of_them() -> None:
    _, ready, rows = make()
    ready.add([rows.one(group=f"g{n}", lane=0) for n in range(30)])
    due_ms = rows.start_ms
    assert ready.due == 30
    assert ready.find_due(lambda one: one.row.group is None, 20) == (0, 0)
    assert ready.find_due(lambda one: one.row.group is not None, 20) == (30, due_ms)
    assert ready.find_due(lambda one: one.row.group in {"g3", "g8"}, 30) == (2, due_ms)


def test_the_first_due_are_those_that_are_taken_first_and_they_stay() -> None:
    clock, ready, rows = make()
    given = [rows.one(at_ms, band=at_ms % 2) for at_ms in range(40)] + [rows.one(9_000)]
    random.Random(7).shuffle(given)
    ready.add(given)
    clock.advance(1)
    first = ready.first_due(25, lambda one: one.row.due_ms % 3 != 0, looks=100)
    assert len(first) == 25
    assert ready.first_due(5, lambda _: False, looks=100) == []
    assert len(ready.first_due(50, lambda _: True, looks=7)) == 7
    wanted = [one for one in taken(ready) if one.row.due_ms % 3 != 0]
    assert wanted[:25] == first
    assert len(ready) == 1
