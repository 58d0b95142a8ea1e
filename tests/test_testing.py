"""What shardq offers for tests of one's own."""

from __future__ import annotations

import threading

import pytest

from shardq import Consumer, connect
from shardq.errors import ClockError, StoreRefused, StoreTimeout, StoreUnavailable
from shardq.stores.tables import MEMBERS, QUEUES
from shardq.testing import ManualClock, Recorder, Stage

WAIT_S = 60


def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    now_us, boot_us = clock.now_us(), clock.boot_us()
    assert (clock.now_us(), clock.boot_us()) == (now_us, boot_us)
    clock.advance(1.5)
    assert (clock.now_us() - now_us, clock.boot_us() - boot_us) == (1_500_000, 1_500_000)


def test_sleeps_and_waits_of_one_thread_move_time_and_are_recorded() -> None:
    clock = ManualClock()
    now_us = clock.now_us()
    clock.sleep(2)
    condition = threading.Condition()
    with condition:
        clock.wait(condition, 0.5)
    assert clock.now_us() - now_us == 2_500_000
    assert clock.slept == [2, 0.5]


def test_a_connection_that_is_given_a_clock_moves_it_by_no_thread_of_its_own() -> None:
    clock = ManualClock()
    begun_us = clock.true_us()
    with connect("sqlite://", clock=clock) as db:
        mail = db.queue("mail")
        mail.put("in an hour", delay="1h")
        # Each would wait, and so move the hands, beside the test.
        assert (db._home.keeper, db._home.chores) == (None, None)
        clock.advance(3_601)
        assert mail.depth().ready == 1
        assert clock.true_us() - begun_us == 3_601_000_000
    assert clock.slept == []


def test_a_shifted_clock_moves_along_and_is_put_right_by_a_measurement() -> None:
    with Stage() as stage:
        wrong = stage.clock.shifted(60)
        assert wrong.now_us() - stage.clock.now_us() == 60_000_000
        stage.clock.advance(5)
        assert wrong.now_us() - stage.clock.now_us() == 60_000_000
        assert wrong.boot_us() == stage.clock.boot_us()
        wrong.measure(stage._store)
        assert wrong.now_us() == stage.clock.now_us()
        assert wrong.deviation_us == 60_000_000
        wrong.check(60_000)
        with pytest.raises(ClockError):
            wrong.check(59_999)


def test_a_shifted_clock_that_is_not_corrected_stays_wrong() -> None:
    with Stage() as stage:
        wrong = stage.clock.shifted(-60, corrected=False)
        wrong.measure(stage._store)
        assert wrong.now_us() - stage.clock.now_us() == -60_000_000


def test_the_times_to_live_of_the_store_follow_the_same_hands() -> None:
    with Stage() as stage:
        stage._store.note(MEMBERS, ("mail",), {"me": "{}"}, 10_000)
        stage.clock.advance(9.9)
        assert "me" in stage._store.notes(MEMBERS, ("mail",))
        stage.clock.advance(0.2)
        assert stage._store.notes(MEMBERS, ("mail",)) == {}


def test_a_threaded_sleep_lasts_until_another_thread_has_moved_time() -> None:
    clock = ManualClock(threaded=True)
    woke = threading.Event()

    def sleep() -> None:
        clock.sleep(10)
        woke.set()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    while thread.is_alive() and not clock.slept:
        woke.wait(0.001)
    clock.advance(9.9)
    assert not woke.wait(0.05)
    clock.advance(0.2)
    assert woke.wait(WAIT_S)
    thread.join()


def test_the_clock_of_a_local_stage_is_set_for_all_and_time_since_boot_goes_on() -> None:
    with Stage(local=True) as stage:
        clocks = [stage.connect(shift=shift)._home.clock for shift in (0, 60)]
        begun_us, boot_us = stage.clock.true_us(), stage.clock.boot_us()
        stage.clock.set(-600)
        stage.clock.advance(1)
        for clock in clocks:
            clock.measure(stage._store)
            clock.measure(stage._store)
            assert clock.now_us() == stage.clock.true_us() == begun_us - 599_000_000
            assert clock.boot_us() == boot_us + 1_000_000
            assert [by for _, by in clock.steps] == [-600_000_000]


def test_a_later_stage_begins_after_all_row_ids_of_earlier_ones() -> None:
    with Stage() as first:
        first.clock.advance(1_000_000)
        message = first.connect().queue("mail").put("x")
    with Stage() as second:
        later = second.connect().queue("mail").put("x")
        assert later._row.entered_us > message._row.entered_us
        assert later._row.entered_us - second.clock.now_us() < 1_000


@pytest.mark.parametrize("applied", [False, True])
def test_the_call_that_was_chosen_fails_before_or_after_it_takes_effect(applied: bool) -> None:
    with Stage() as stage:
        stage.faults.fail("note members", nth=2, applied=applied)
        stage._store.note(MEMBERS, ("mail",), {"one": "{}"}, 10_000)
        with pytest.raises(StoreTimeout if applied else StoreUnavailable):
            stage._store.note(MEMBERS, ("mail",), {"two": "{}"}, 10_000)
        stage._store.note(MEMBERS, ("mail",), {"three": "{}"}, 10_000)
        assert ("two" in stage._store.notes(MEMBERS, ("mail",))) == applied
        assert stage.faults.calls["note members"] == 3


def test_faults_can_last_be_of_any_kind_and_be_healed() -> None:
    with Stage() as stage:
        stage.faults.fail("notes queues", times=3, error=StoreRefused("no"))
        for _ in range(2):
            with pytest.raises(StoreRefused):
                stage._store.notes(QUEUES, ())
        stage.faults.heal()
        assert stage._store.notes(QUEUES, ()) == {}


def test_driving_stops_where_it_is_told_to_and_time_has_passed_so_far() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        queue.put("a", delay="5s")
        seen = Recorder(stage.clock)
        start_us = stage.clock.boot_us()
        assert stage.drive(Consumer(queue, seen), seconds=60, until=lambda: len(seen) == 1)
        assert (stage.clock.boot_us() - start_us) / 1e6 == pytest.approx(5, abs=0.05)
        assert not stage.drive(seconds=7)
        assert (stage.clock.boot_us() - start_us) / 1e6 == pytest.approx(12, abs=0.05)


def test_draining_says_what_is_left_when_its_time_is_over() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        queue.put("a", delay="5m")
        with pytest.raises(AssertionError, match="mail"):
            stage.drain(queue, Consumer(queue, print), within="1m", stride=0.5)
