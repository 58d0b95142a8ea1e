"""Reading lanes: polls, the look ahead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from reading import reading, write

from shardq import Consumer, Queue
from shardq.errors import StoreUnavailable
from shardq.model.message import Row
from shardq.testing import Recorder, Stage


def test_messages_are_delivered_on_their_millisecond_once_and_never_early(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    sent = [queue.put(f"{n}", delay=f"{n * 137}ms") for n in range(500)]
    consumer, seen = reading(stage, queue)
    stage.drain(queue, consumer)
    assert sorted(seen.texts) == sorted(message.text for message in sent)
    assert min(seen.late_ms) >= 0
    assert sorted(seen.late_ms)[-20] < 2


def test_a_due_time_between_two_milliseconds_is_not_rounded_to_early(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.clock.advance(0.0004)
    queue.put("a")
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=0.0005)
    assert seen.texts == []
    stage.drive(consumer, seconds=0.2)
    assert min(seen.late_ms) >= 0


def test_a_message_put_while_it_is_idle_is_found_within_a_poll(stage: Stage, queue: Queue) -> None:
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=5)
    stage.clock.advance(0.0123)
    queue.put("now")
    stage.drive(consumer, seconds=0.11)
    assert seen.texts == ["now"]


def test_a_page_that_is_cut_inside_a_millisecond_is_read_on_from_there(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    due_ms = stage.clock.now_ms() + 500
    for n in range(2_500):
        write(stage, queue, due_ms, b"%d" % n)
    consumer, seen = reading(stage, queue, prefetch=300)
    stage.drain(queue, consumer, within="5s")
    assert len(seen) == len(set(seen.texts)) == 2_500


@pytest.mark.parametrize("late_ms", [1, 100, 400])
def test_a_group_s_message_that_a_poll_has_missed_still_goes_before_the_next_one(
    stage: Stage, late_ms: int
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, seen = reading(stage, queue)
    queue.put("0", group="g")
    stage.drive(consumer, seconds=2)
    # Stored after the poll that passed its due; who puts the second may have waited for that.
    write(stage, queue, stage.clock.now_ms() - late_ms, b"1", group="g")
    stage.clock.advance(0.001)
    write(stage, queue, stage.clock.now_ms(), b"2", group="g")
    stage.drive(consumer, seconds=2)
    assert seen.texts == ["0", "1", "2"]


def test_a_group_s_message_that_a_poll_has_missed_goes_before_one_seen_ahead(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, seen = reading(stage, queue)
    queue.put("0", group="g")
    stage.drive(consumer, seconds=2)
    write(stage, queue, stage.clock.now_ms() - 100, b"1", group="g")
    write(stage, queue, stage.clock.now_ms() + 1, b"2", group="g")
    consumer._engine.reader.look_ahead(at_once=True)
    stage.drive(consumer, seconds=2)
    assert seen.texts == ["0", "1", "2"]


@pytest.mark.parametrize(("late_ms", "page_rows"), [(100, 100), (240, 100), (240, 1)])
def test_a_group_s_message_that_a_poll_has_missed_goes_before_one_read_ahead_long_since(
    stage: Stage, late_ms: int, page_rows: int
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, seen = reading(stage, queue)
    queue.put("2", delay="10s", group="g")
    stage.drive(consumer, seconds=9.9)
    # Stored after the poll that passed its due, and before any sweep.
    write(stage, queue, stage.clock.now_ms() - late_ms, b"1", group="g")
    consumer._engine.pages.page_rows = page_rows
    stage.clock.advance(0.1)
    stage.drive(consumer, seconds=2)
    assert seen.texts == ["1", "2"]


def test_a_group_s_message_is_missed_by_no_number_of_slow_polls(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, seen = reading(stage, queue)
    engine = consumer._engine
    queue.put("0", group="g")
    stage.drive(consumer, seconds=2)
    engine.reader.poll()
    # Stored after the poll that passed its due; no sweep comes in between.
    write(stage, queue, stage.clock.now_ms() - 240, b"1", group="g")
    for _ in range(3):
        stage.clock.advance(0.4)
        engine.reader.poll()
    stage.clock.advance(0.001)
    write(stage, queue, stage.clock.now_ms(), b"2", group="g")
    engine.reader.poll()
    first = engine.ready.take()
    assert first.row.body == b"1"
    consumer._deliver(first)
    stage.drain(queue, consumer)
    assert seen.texts == ["0", "1", "2"]


def test_a_group_s_message_is_missed_by_no_page_that_is_too_short_for_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    queue.put("0", group="g")
    stage.drive(consumer, seconds=2)
    for n in (300, 290):
        write(stage, queue, stage.clock.now_ms() - n, b"in hand", group="g")
    engine.reader.poll(back_ms=400)
    write(stage, queue, stage.clock.now_ms() - 240, b"missed", group="g")
    stage.clock.advance(0.001)
    write(stage, queue, stage.clock.now_ms(), b"next", group="g")
    # Failed reads make pages this short.
    engine.pages.page_rows = 1
    engine.reader.poll()
    assert {one.row.body for one in engine.memory.known.values()} == {
        b"in hand",
        b"missed",
        b"next",
    }


def test_a_group_s_message_that_was_missed_is_not_again_where_taking_it_in_fails(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    queue.put("2", delay="10s", group="g")
    stage.drive(consumer, seconds=9.95)
    write(stage, queue, stage.clock.now_ms() - 240, b"1", group="g")
    write(stage, queue, stage.clock.now_ms(), b"other", group="h")
    stage.clock.advance(0.1)
    # More than a page: the lane is read on from there.
    queue.put_many(f"{n}" for n in range(150))
    stage.faults.fail("take")
    with pytest.raises(StoreUnavailable):
        engine.reader.poll()
    engine.reader.poll()
    taken = iter(engine.ready.take, None)
    assert next(one.row.body for one in taken if one.row.group == "g") == b"1"


def test_a_group_s_message_that_a_sweep_has_found_is_not_missed_where_looking_for_more_fails(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue._home.register.use_groups()
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    stage.drive(consumer, seconds=2)
    write(stage, queue, stage.clock.now_ms() - 20, b"1", group="g")
    stage.clock.advance(0.1)
    write(stage, queue, stage.clock.now_ms(), b"2", group="g")
    # A full page: the lane is read on from there, without looking back.
    engine.pages.page_rows = 2
    engine.reader.wakes_all = True
    stage.faults.fail("read", nth=3)
    with pytest.raises(StoreUnavailable):
        engine.reader.poll(back_ms=500)
    engine.reader.wakes_all = True
    engine.reader.poll()
    assert engine.ready.take().row.body == b"1"


def test_a_group_s_message_is_missed_by_no_page_that_ends_in_an_older_minute(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, minute="1s", offset="5s")
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    queue.put("0", group="g")
    stage.drive(consumer, seconds=2)
    stage.clock.advance((1_200 - stage.clock.now_ms() % 1_000) / 1e3)
    minute_ms = stage.clock.now_ms() - 200
    for due_ms in (minute_ms - 100, minute_ms - 90, minute_ms + 10):
        write(stage, queue, due_ms, b"in hand", group="g")
    engine.reader.poll(back_ms=400)
    write(stage, queue, minute_ms - 50, b"missed", group="g")
    stage.clock.advance(0.001)
    write(stage, queue, stage.clock.now_ms(), b"next", group="g")
    # Failed reads make pages this short.
    engine.pages.page_rows = 1
    engine.reader.poll()
    assert {one.row.body for one in engine.memory.known.values()} == {
        b"in hand",
        b"missed",
        b"next",
    }


@pytest.mark.parametrize("between", [False, True])
def test_a_group_s_message_that_the_last_poll_has_missed_goes_first_after_a_long_pause(
    stage: Stage, between: bool
) -> None:
    queue = stage.connect().queue("mail", lanes=1, minute="10s")
    queue._home.register.use_groups()
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    stage.drive(consumer, seconds=2)
    engine.reader.poll()
    write(stage, queue, stage.clock.now_ms() - 240, b"missed", group="g")
    stage.clock.advance(0.02)
    if between:
        # A page without one of a group: the next page looks back from its own minute.
        write(stage, queue, stage.clock.now_ms() + 500, b"plain", group="h")
    write(stage, queue, stage.clock.now_ms() + (20_000 if between else 0), b"next", group="g")
    stage.clock.advance(25)
    engine.reader.poll()
    first = engine.ready.take()
    assert first.row.body == b"missed"


def test_what_is_read_ahead_leaves_room_for_what_comes_due_before_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen, prefetch=4)
    queue.put_many({"body": f"ahead {n}", "delay": "1500ms"} for n in range(8))
    stage.drive(consumer, seconds=0.3)
    queue.put("now")
    stage.drive(consumer, seconds=0.3)
    assert seen.texts == ["now"]
    stage.drain(queue, consumer)
    assert len(seen) == 9


def test_a_group_s_backlog_over_many_shards_goes_on_while_it_is_still_being_read(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, minute="1s", offset="60s")
    sent = []
    for n in range(60):
        sent.append(queue.put(f"{n:02}", group=f"g{n}").text)
        stage.clock.advance(0.5)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen, prefetch=8)
    stage.drain(queue, consumer, within="20s")
    assert seen.texts == sent
    assert (seen.at_us[-1] - seen.at_us[0]) / 1e6 < 5


def test_a_lane_that_was_not_polled_is_not_looked_ahead_in(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=2)
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=2)
    engine = consumer._engine
    now_ms = stage.clock.now_ms()
    # Refused until the very moment between a poll and the look ahead that follows it.
    engine.memory.lanes[0].retry_ms = now_ms + 2
    stage.clock.advance(0.001)
    write(stage, queue, now_ms + 1, b"first")
    write(stage, queue, now_ms + 500, b"second")
    stage.faults.call("read", lambda: stage.clock.advance(0.002))
    engine.reader._ahead_next_ms = 0
    engine.step()
    assert [one.row.body for one in engine.memory.known.values()] in ([], [b"first"])
    stage.drain(queue, consumer)
    assert seen.texts == ["first", "second"]


@pytest.mark.parametrize("shift", [-60.0, 60.0])
def test_nothing_put_by_a_clock_a_minute_wrong_is_lost(stage: Stage, shift: float) -> None:
    queue = stage.connect().queue("mail")
    wrong = stage.connect(shift=shift, corrected=False).queue("mail")
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=130, stride=0.5)
    sent = []
    for n in range(40):
        sent.append(wrong.put(f"{n}").text)
        stage.drive(consumer, seconds=1, stride=0.2)
    stage.drain(queue, consumer, stride=0.2)
    assert sorted(seen.texts) == sorted(sent)


@pytest.mark.parametrize("shift", [-60.0, 60.0])
def test_a_wrong_clock_that_is_corrected_costs_no_lateness(stage: Stage, shift: float) -> None:
    queue = stage.connect(shift=-shift).queue("mail")
    wrong = stage.connect(shift=shift).queue("mail")
    consumer, seen = reading(stage, queue)
    for n in range(20):
        wrong.put(f"{n}", delay="1s")
        stage.drive(consumer, seconds=1)
    stage.drain(queue, consumer)
    assert len(seen) == 20
    assert min(seen.late_ms) >= 0
    assert max(seen.late_ms) < 150


def test_isolated_reading_stays_out_of_minutes_that_may_still_be_written(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s")
    for n in range(10):
        queue.put(f"{n}", delay=f"{n}s")
    consumer, seen = reading(stage, queue, isolated=True)
    layout = queue._home.register.layout

    def check() -> bool:
        now_ms = stage.clock.now_ms()
        for lease in consumer._engine.leases.held():
            assert layout.may_seal(lease.shard.minute, now_ms)
        return stage.is_empty(queue)

    assert stage.drive(consumer, seconds=60, until=check, stride=0.1)
    assert len(seen) == 10
    assert min(seen.late_ms) >= 2_000


def test_far_timers_cost_no_memory(stage: Stage, queue: Queue) -> None:
    queue.put_many({"body": "x", "delay": f"{3_600 + n}s"} for n in range(20_000))
    consumer, seen = reading(stage, queue)
    memory = consumer._engine.memory
    assert not stage.drive(consumer, seconds=30, until=lambda: bool(memory.known))
    assert len(consumer._engine.ready) == 0
    assert not seen.texts


def test_what_is_known_stays_within_the_prefetch(stage: Stage, queue: Queue) -> None:
    queue.put_many("x" for _ in range(4_000))
    stage.clock.advance(1)
    consumer, _ = reading(stage, queue, prefetch=200)
    memory = consumer._engine.memory
    for _ in range(20):
        consumer._engine.step()
        stage.clock.advance(0.05)
        assert len(memory.known) <= 200
    stage.drain(queue, consumer, within="1m")


@pytest.mark.parametrize("lagging", [False, True])
def test_of_groups_nothing_is_taken_in_that_comes_after_where_a_page_was_cut(
    stage: Stage, lagging: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, minute="1h")
    queue._home.register.use_groups()
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=1)
    engine = consumer._engine
    engine.reader.poll()
    for n in range(9):
        stage.clock.advance(0.01)
        queue.put(f"{n}", group=f"g{n}")
    accept, taken = engine.intake.accept, []

    def note(rows: Sequence[Row]) -> dict[int, int]:
        taken.append({row.body for row in rows})
        return accept(rows)

    monkeypatch.setattr(engine.intake, "accept", note)
    engine.pages.page_rows = 3
    engine.reader.wakes_all = True
    engine.memory.lanes[queue._home.register.layout.group_lane("g0")].full = lagging
    engine.reader.poll()
    assert next(filter(None, taken)) == {b"0", b"1", b"2"}
    stage.drive(consumer, seconds=1)
    assert sorted(seen.texts) == [str(n) for n in range(9)]


def test_a_page_of_large_bodies_is_made_smaller(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(bytes(500_000) for _ in range(60))
    stage.clock.advance(1)
    consumer, seen = reading(stage, queue)
    stage.drain(queue, consumer, within="1m")
    assert len(seen) == 60
    assert consumer._engine.pages.page_rows * 500_000 <= 4 << 20


@pytest.mark.parametrize("verb", ["read", "occupied", "take", "notes lanes", "waiting"])
def test_a_read_that_fails_now_and_then_loses_and_repeats_nothing(stage: Stage, verb: str) -> None:
    queue = stage.connect().queue("mail", minute="2s", offset="2s")
    sent = [queue.put(f"{n}", delay=f"{n * 50}ms", group="g").text for n in range(100)]
    stage.clock.advance(2.5)
    consumer, seen = reading(stage, queue)
    for nth in (1, 2, 5, 9):
        stage.faults.fail(verb, nth=nth)
    stage.drain(queue, consumer)
    assert seen.texts == sent


def test_a_purge_deletes_what_entered_before_it_and_nothing_else(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(100):
        queue.put(f"old {n}", delay=f"{n}s")
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=20)
    delivered = len(seen)
    stage.connect().queue("mail").purge()
    sent = [queue.put(f"new {n}", delay=f"{n}s").text for n in range(50)]
    stage.drive(consumer, seconds=5)
    assert len([text for text in seen.texts if text.startswith("old")]) <= delivered + 5
    after = len(seen)
    stage.drain(queue, consumer)
    assert not [text for text in seen.texts[after:] if text.startswith("old")]
    assert [text for text in seen.texts if text.startswith("new")] == sent


def test_a_lane_that_rows_read_ahead_have_filled_goes_on(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen, prefetch=20)
    stage.drive(consumer, seconds=3)
    for n in range(15):
        queue.put(f"ahead {n}", delay="1500ms")
    stage.drive(consumer, seconds=1.2)
    for n in range(30):
        queue.put(f"now {n}", delay="100ms")
    stage.clock.advance(2)
    stage.drive(consumer, seconds=30)
    assert len(seen) == 45
    assert stage.is_empty(queue)


def test_a_lane_that_is_read_on_page_by_page_passes_nothing_that_was_stored_in_time(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, seen = reading(stage, queue, prefetch=4)
    stage.drive(consumer, seconds=2)
    lane = consumer._engine.memory.lanes[0]
    consumer._engine.reader.poll()
    now_ms = stage.clock.now_ms()
    write(stage, queue, now_ms - 100, b"first", group="g")
    write(stage, queue, now_ms + 50, b"second", group="g")
    stage.clock.advance(0.1)
    lane.full = True
    consumer._engine.reader.poll()
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["first", "second"]
