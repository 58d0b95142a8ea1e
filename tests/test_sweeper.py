"""What lies behind the cursors: sweeps, and the seals that come of them."""

from __future__ import annotations

import pytest
from reading import reading, write

from shardq import Consumer, Message, Queue, Retry
from shardq.engine.leases.lease import MemberLeases
from shardq.engine.reading.lane import RUNGS, SEALED_RUNGS
from shardq.errors import StoreUnavailable
from shardq.model.message import Row
from shardq.stores.store import Slice
from shardq.stores.tables import LANES
from shardq.testing import Recorder, Stage


def test_catch_up_seals_what_it_has_drained(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    for _ in range(20):
        queue.put("x")
        stage.clock.advance(60)
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=5)
    newest = queue._home.register.layout.newest_sealable(stage.clock.now_ms())
    assert stage._store.notes(LANES, ("mail",)) == dict.fromkeys(range(12), newest)


def test_a_million_minutes_without_messages_are_not_visited_one_by_one(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="1s")
    queue.put("x", delay="100000s")
    stage.clock.advance(100_001)
    consumer, seen = reading(stage, queue)
    before = stage._store.counters["reads"]
    stage.drain(queue, consumer, within="5s")
    assert seen.texts == ["x"]
    assert stage._store.counters["reads"] - before < 2_000


def test_a_machine_that_slept_for_a_month_does_not_sweep_it(stage: Stage, queue: Queue) -> None:
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=5)
    stage.clock.advance(30 * 86_400)
    stage.drive(consumer, seconds=5)
    counters = stage._store.counters
    assert sum(counters[f"reads:{rung.purpose}"] for rung in RUNGS) < 1_000
    queue.put("x")
    assert stage.drive(consumer, seconds=1, until=lambda: stage.is_empty(queue))


def test_a_sweep_passes_over_minutes_in_which_nothing_is_where_the_store_tells_of_them() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", minute="500ms", offset="3s")
        consumer, seen = reading(stage, queue)
        stage.drive(consumer, seconds=5)
        write(stage, queue, stage.clock.now_ms() - 100, b"late")
        stage.clock.advance(600)
        stage.drive(consumer, seconds=2)
        counters = stage._store.counters
        assert sum(counters[f"reads:{rung.purpose}"] for rung in RUNGS) < 100
        assert seen.texts == ["late"]


def test_what_was_stored_behind_the_cursor_as_a_machine_slept_is_found_in_a_minute_of_a_day(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1d")
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=40, stride=0.5)
    write(stage, queue, stage.clock.now_ms() - 100, b"late")
    stage.clock.advance(3 * 3_600)
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["late"]


def test_a_seal_never_passes_a_shard_that_is_not_empty(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="1s", lanes=2)
    first = queue._home.register.layout.minute_of(stage.clock.now_ms())
    stuck = True

    def handle(_message: object) -> None:
        if stuck:
            stage.faults.fail("delete", times=1)

    recorder = Recorder(stage.clock, handle)
    consumer = Consumer(queue, recorder)
    lane = queue.put("a")._row.shard.lane
    for _ in range(300):
        stage.drive(consumer, seconds=0.1)
        sealed = stage._store.notes(LANES, ("mail",))
        occupied = [s for s in stage._store.shards("mail") if s.lane == lane]
        for shard in occupied:
            assert sealed.get(lane, -1) < shard.minute
    stuck = False
    stage.faults.heal()
    stage.drive(consumer, seconds=10)
    assert stage._store.notes(LANES, ("mail",))[lane] > first


def test_a_shard_whose_row_is_still_running_is_not_sealed(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="1s", hold="1h", lanes=1)
    shard = queue.put("slow")._row.shard

    def handle(_message: object) -> None:
        for _ in range(200):
            stage.clock.advance(0.1)
            consumer._engine.step()
        assert stage._store.notes(LANES, ("mail",))[0] == shard.minute - 1
        assert stage._store.lease_states([shard])[shard].lock is not None

    recorder = Recorder(stage.clock, handle)
    consumer = Consumer(queue, recorder)
    stage.drain(queue, consumer, within="1m")
    assert [message.attempt for message in recorder.messages] == [1]
    stage.drive(consumer, seconds=5)
    assert stage._store.notes(LANES, ("mail",))[0] > shard.minute


def test_a_register_from_a_clock_that_ran_ahead_hides_nothing(stage: Stage, queue: Queue) -> None:
    ahead = queue._home.register.layout.minute_of(stage.clock.now_ms()) + 100
    stage._store.note(LANES, ("mail",), dict.fromkeys(range(4), ahead))
    sent = [queue.put(f"{n}", delay=f"{n}s").text for n in range(150)]
    consumer, seen = reading(stage, queue)
    stage.drain(queue, consumer, within="3m")
    assert sorted(seen.texts) == sorted(sent)
    assert max(seen.late_ms) < 1_000


@pytest.mark.parametrize("late_s", [0.1, 0.2, 2, 20, 100, 170])
def test_a_row_that_appears_behind_the_cursor_is_found_by_a_sweep(
    stage: Stage, queue: Queue, late_s: float
) -> None:
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=200, stride=0.5)
    write(stage, queue, stage.clock.now_ms() - round(late_s * 1_000), b"late")
    # A rung finds what is late by its depth less its pause; the seal finds the rest.
    if late_s <= 2:
        stage.drive(consumer, seconds=0.35 if late_s <= 0.2 else 3)
    else:
        stage.drive(consumer, seconds=240, stride=0.9)
    assert seen.texts == ["late"]
    assert stage.is_empty(queue)


@pytest.mark.parametrize("rung", SEALED_RUNGS[:2])
def test_what_comes_behind_a_seal_while_nobody_reads_is_found_by_the_rung_that_was_missed(
    stage: Stage, rung: int
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s")
    first, _ = reading(stage, queue)
    stage.drive(first, seconds=50, stride=0.1)
    first.close()
    layout = queue._home.register.layout
    minute = layout.newest_sealable(stage.clock.now_ms()) - rung + 2
    stage.clock.advance(20)
    write(stage, queue, layout.start_ms(minute), b"late", lane=0)
    second, seen = reading(stage, queue)
    stage.drive(second, seconds=12, stride=0.1)
    assert seen.texts == ["late"]


def test_a_step_does_not_go_on_with_ended_minutes_for_as_long_as_the_store_is_slow(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s", lanes=1)
    consumer, _ = reading(stage, queue)
    # Drive until there are minutes for each rung.
    stage.drive(consumer, seconds=300, stride=0.9)
    queue.put_many({"body": f"{n}", "delay": f"{n}s"} for n in range(10))
    stage.drive(consumer, seconds=8)
    read = queue._home.store.read

    def slow(*wanted: Slice) -> list[Row]:
        stage.clock.advance(0.02)
        return read(*wanted)

    queue._home.store.read = slow  # type: ignore[method-assign]
    lane = consumer._engine.memory.lanes[0]
    swept, longest_us = dict(lane.swept), 0
    for _ in range(80):
        stage.clock.advance(0.3)
        since_us = stage.clock.boot_us()
        consumer.step()
        longest_us = max(longest_us, stage.clock.boot_us() - since_us)
    assert longest_us < 2_000_000
    assert all(lane.swept[rung] > minute + 10 for rung, minute in swept.items())


def test_a_lane_that_a_sweep_passed_over_is_swept_as_far_back_later(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=200, stride=0.5)
    now_ms = stage.clock.now_ms()
    write(stage, queue, now_ms - 30_000, b"late", lane=0)
    # Another member holds the lane for longer than the deepest sweep pauses.
    for lane in consumer._engine.memory.lanes.values():
        lane.retry_ms = now_ms + 35_000
    stage.drive(consumer, seconds=34, stride=0.1)
    assert seen.texts == []
    stage.drive(consumer, seconds=7, stride=0.1)
    assert seen.texts == ["late"]


def test_a_sweep_that_leaves_a_gap_is_no_look_at_a_group_s_message_in_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue._home.register.use_groups()
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    stage.drive(consumer, seconds=6)
    engine.reader.poll(back_ms=500)
    write(stage, queue, stage.clock.now_ms() - 10, b"missed", group="g")
    stage.clock.advance(1)
    engine.reader.poll(back_ms=500)
    stage.clock.advance(0.001)
    write(stage, queue, stage.clock.now_ms(), b"next", group="g")
    engine.reader.poll()
    first = engine.ready.take()
    assert first.row.body == b"missed"


def test_a_sweep_that_was_cut_short_is_no_look_at_a_group_s_message_behind_that(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue._home.register.use_groups()
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    stage.drive(consumer, seconds=6)
    engine.reader.poll(back_ms=500)
    write(stage, queue, stage.clock.now_ms() - 20, b"first", group="g")
    write(stage, queue, stage.clock.now_ms() - 10, b"missed", group="g")
    stage.clock.advance(0.25)
    # Failed reads make pages this short.
    engine.pages.page_rows = 1
    engine.reader.poll(back_ms=500)
    engine.pages.page_rows = 100
    for _ in range(2):
        stage.clock.advance(0.25)
        engine.reader.poll(back_ms=300)
    stage.clock.advance(0.001)
    write(stage, queue, stage.clock.now_ms(), b"next", group="g")
    engine.reader.poll()
    assert {one.row.body for one in engine.memory.known.values()} == {b"first", b"missed", b"next"}


def test_a_lane_that_lagged_is_not_taken_for_one_that_was_read_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, bands=1)
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    stage.drive(consumer, seconds=6)
    [lane] = engine.memory.lanes.values()
    again_ms, lane.full = lane.again_ms, True
    # The first rung is due, and the poll stands for it.
    stage.clock.advance(0.3)
    rung = engine.sweeper.rung_due()
    assert rung.purpose == "sweep 0.5 s"
    engine.step()
    assert engine.reader.is_current(lane)
    assert lane.cursor_ms == stage.clock.now_ms()
    assert lane.again_ms == again_ms


@pytest.mark.parametrize("busy", [True, False])
def test_a_lane_that_is_swept_is_not_read_again_from_further_back(stage: Stage, busy: bool) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, _ = reading(stage, queue)
    for n in range(300):
        queue.put(f"{n}", delay=f"{n * 20}ms" if busy else "1h")
    stage.drive(consumer, seconds=5)
    assert stage.clock.now_ms() - consumer._engine.memory.lanes[0].again_ms < 500


def test_a_lane_beyond_the_end_of_a_sweep_was_not_read_again_up_to_now(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=2, bands=1)
    consumer, _ = reading(stage, queue)
    engine = consumer._engine
    stage.drive(consumer, seconds=10)
    one, other = engine.memory.lanes.values()
    other.cursor_ms -= 3_000
    again_ms = one.again_ms
    stage.clock.advance(2.5)
    rung = engine.sweeper.rung_due()
    assert rung is not None
    engine.sweeper.sweep(rung)
    assert one.again_ms == again_ms
    assert other.again_ms == stage.clock.now_ms()


@pytest.mark.parametrize("ago_minutes", [5, 40, 150])
def test_a_row_written_into_a_sealed_shard_is_found_by_a_sealed_rung(
    stage: Stage, ago_minutes: int
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="1s")
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=170, stride=0.9)
    due_ms = stage.clock.now_ms() - ago_minutes * 1_000
    assert stage._store.notes(LANES, ("mail",))[3] >= queue._home.register.layout.minute_of(due_ms)
    write(stage, queue, due_ms, b"zombie", lane=3)
    stage.drive(consumer, seconds=260, stride=0.9, until=lambda: bool(seen.texts))
    assert seen.texts == ["zombie"]
    stage.drive(consumer, seconds=1)
    assert stage.is_empty(queue)


def test_a_lane_that_cannot_be_read_on_is_looked_at_behind_its_seal_all_the_same(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s", lanes=1)
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=20, stride=0.1)
    layout = queue._home.register.layout
    sealed = stage._store.notes(LANES, ("mail",))[0]
    # Another member keeps the lease of this shard, so the lane cannot be read on.
    queue.put("held")
    shard = layout.shard(stage.clock.now_ms(), 0)
    other = MemberLeases(queue._home.store, stage.clock, "other", window=1)
    assert not other.take([shard])
    write(stage, queue, layout.start_ms(sealed - 1), b"late", lane=0)
    for _ in range(12):
        stage.drive(consumer, seconds=1, stride=0.1)
        other.renew()
    assert seen.texts == ["late"]
    assert consumer._engine.memory.lanes[0].cursor_ms < layout.end_ms(shard.minute)


def test_what_another_had_behind_a_seal_as_it_was_looked_at_is_looked_at_again(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s", lanes=1)
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=20, stride=0.1)
    layout, sealed = queue._home.register.layout, stage._store.notes(LANES, ("mail",))[0]
    late_ms = layout.start_ms(sealed - 1)
    write(stage, queue, late_ms, b"late", lane=0)
    other = MemberLeases(queue._home.store, stage.clock, "other", window=1)
    assert not other.take([layout.shard(late_ms, 0)])
    for _ in range(8):
        stage.drive(consumer, seconds=1, stride=0.1)
        other.renew()
    assert seen.texts == []
    other.release([layout.shard(late_ms, 0)])
    # The row is found before the next rung sweeps its minute.
    stage.drive(consumer, seconds=12, stride=0.1)
    assert seen.texts == ["late"]


def test_what_is_found_behind_the_seal_of_a_lane_that_lags_holds_up_nothing(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=600, stride=0.5)
    consumer.close()
    sealed = stage._store.notes(LANES, ("mail",))[0]
    for minute in range(30):
        queue.put_many(f"{minute}" for _ in range(100))
        if minute == 20:
            queue.put("twenty", group="g")
        stage.clock.advance(60)
    write(stage, queue, queue._home.register.layout.start_ms(sealed - 1), b"late")
    seen = Recorder(stage.clock, lambda _: stage.clock.advance(0.01))
    stage.drain(queue, Consumer(queue, seen, prefetch=100), within="60s")
    texts = seen.texts
    assert texts.index("late") < texts.index("9")
    assert texts.index("19") < texts.index("twenty") < texts.index("22")


def test_what_is_found_behind_the_seal_of_one_who_died_is_handed_out_with_care(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s", lanes=1)
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=20, stride=0.1)
    late_ms = queue._home.register.layout.start_ms(stage._store.notes(LANES, ("mail",))[0] - 1)
    late = write(stage, queue, late_ms, b"late")
    dead = MemberLeases(queue._home.store, stage.clock, "dead", window=1, ttl_ms=1_000)
    assert not dead.take([late.shard])
    while (one := consumer._engine.ready.take()) is None:
        stage.clock.advance(0.1)
        consumer._engine.step()
    assert one.careful
    assert one.row == late


def test_a_shard_refused_behind_the_seal_keeps_no_other_lane_from_being_looked_at(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s", lanes=2)
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=20, stride=0.1)
    late_ms = queue._home.register.layout.start_ms(stage._store.notes(LANES, ("mail",))[0] - 1)
    late = write(stage, queue, late_ms, b"late", lane=0)
    other = MemberLeases(queue._home.store, stage.clock, "other", window=1)
    assert not other.take([late.shard])
    stage.drive(consumer, seconds=9, stride=0.1)
    swept = {n: lane.swept[SEALED_RUNGS[0]] for n, lane in consumer._engine.memory.lanes.items()}
    assert swept[0] == late.shard.minute - 1
    assert swept[1] > late.shard.minute


def test_a_seal_waits_for_the_looks_behind_it_that_the_next_reader_takes_for_made(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s", lanes=1)
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=60, stride=0.1)
    engine, layout = consumer._engine, queue._home.register.layout
    sealed = stage._store.notes(LANES, ("mail",))[0]
    write(stage, queue, layout.start_ms(sealed - 20), b"late", lane=0)
    stage.clock.advance(60)
    # It reads on and seals, and leaves before it has looked back as far as that.
    engine.step()
    engine.close()
    assert stage._store.notes(LANES, ("mail",))[0] < sealed + 20
    other, seen = reading(stage, queue)
    stage.drive(other, seconds=30, stride=0.1)
    assert seen.texts == ["late"]


def test_what_a_look_behind_a_seal_has_found_is_not_forgotten_with_its_lane(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="1s")
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=170, stride=0.9)
    write(stage, queue, stage.clock.now_ms() - 5_000, b"zombie", lane=3)
    engine = consumer._engine
    # All its handlers are busy: the lane is another's before the row's turn has come.
    for _ in range(30):
        stage.clock.advance(0.3)
        engine.step()
    assert len(engine.memory.known) == 1
    engine.close()
    other, seen = reading(stage, queue)
    stage.drive(other, seconds=2)
    assert seen.texts == ["zombie"]


def test_a_row_stored_behind_the_cursor_as_an_outage_began_is_found_when_it_is_over(
    stage: Stage,
    queue: Queue,
) -> None:
    consumer, seen = reading(stage, queue)
    stage.drive(consumer, seconds=29.9)
    write(stage, queue, stage.clock.now_ms() - 200, b"x")
    # All reads fail, those of every rung of the ladder among them.
    stage.faults.fail("read", times=1_000_000)
    stage.drive(consumer, seconds=55)
    assert not seen.texts
    stage.faults.heal()
    stage.drive(consumer, seconds=6)
    assert seen.texts == ["x"]


def test_a_sweep_never_hands_out_what_was_just_acked(stage: Stage, queue: Queue) -> None:
    consumer, seen = reading(stage, queue)
    for n in range(150):
        queue.put(f"{n}")
        stage.drive(consumer, seconds=0.21)
    stage.drive(consumer, seconds=200, stride=0.5)
    assert len(seen) == len(set(seen.texts)) == 150


def test_a_sweep_that_fails_asks_for_less_later_and_keeps_nothing_else_from_being_done(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=40)
    engine = consumer._engine
    lengths: list[int] = []
    read = engine.pages.read

    def narrow(*wanted: Slice) -> list[Row]:
        if wanted[0].purpose == "sweep 60 s":
            lengths.append(wanted[0].until_ms - wanted[0].after_ms)
            if lengths[-1] > 2_000:
                raise StoreUnavailable("too slow")
        return read(*wanted)

    engine.pages.read = narrow  # type: ignore[method-assign]
    tried = 0
    for _ in range(40):
        stage.clock.advance(0.5)
        queue.put("x")
        tries = len(lengths)
        try:
            engine.step()
            stage.drive(consumer, seconds=0.1)
        except StoreUnavailable:
            tried += 1
            assert len(lengths) == tries + 1
    assert tried == 2
    assert lengths[:3] == [5_000, 2_500, 1_250]
    assert len(seen) >= 38


def test_a_sweep_that_has_failed_often_is_no_longer_than_a_step_may_take(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=40)
    engine = consumer._engine
    asked = 0
    read = engine.pages.read

    def refuse(*wanted: Slice) -> list[Row]:
        nonlocal asked
        if wanted[0].purpose == "sweep 60 s":
            asked += 1
            if asked <= 12:
                raise StoreUnavailable("away")
        return read(*wanted)

    engine.pages.read = refuse  # type: ignore[method-assign]
    stage.drive(consumer, seconds=100)
    assert 12 < asked <= 12 + 3 * 66


def test_what_comes_due_during_a_long_sweep_does_not_wait_for_its_end(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)
    queue.pause(group="held")
    queue.put_many({"body": "x", "group": "held"} for _ in range(20_000))
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=25)
    engine = consumer._engine
    read, due = engine.pages.read, list[int]()

    def slowly(*wanted: Slice) -> list[Row]:
        rows = read(*wanted)
        if wanted[0].purpose == "sweep 60 s" and rows:
            if not due:
                queue.put("plain", delay="500ms")
                queue.put("of a group", delay="500ms", group="other")
            due.append(engine.ready.due)
            stage.clock.advance(1)
        return rows

    engine.pages.read = slowly  # type: ignore[method-assign]
    assert stage.drive(consumer, seconds=30, until=lambda: len(due) > 3)
    assert due[:4] == [0, 2, 2, 2]


def test_what_news_of_a_put_finds_does_not_go_before_what_was_passed_in_its_group(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue._home.register.use_groups()
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=1)
    engine = consumer._engine
    engine.step()
    engine.reader.wakes_all = True
    # Both are stored just after a poll has passed their due; of the first nothing is told.
    write(stage, queue, stage.clock.now_ms(), b"first", group="g")
    stage.clock.advance(0.12)
    engine.reader.wakes_all = True
    engine.reader.poll()
    write(stage, queue, stage.clock.now_ms(), b"second", group="g")
    engine.sweeper.look_back()
    one = engine.ready.take()
    assert one.row.body == b"first"


def test_a_second_page_of_what_news_finds_does_not_go_before_what_a_lapse_gave_back(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)

    def fail(message: Message) -> None:
        if len(seen) == 1:
            raise Retry("5s")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    queue.put("head", group="g")
    stage.drive(consumer, seconds=1)
    for number in range(150):
        write(stage, queue, stage.clock.now_ms() - 20, f"{number}".encode(), group="g")
    # The first page takes long, and its lane is taken again for it.
    stage.faults.call("read", lambda: stage.clock.advance(30))
    consumer._engine.sweeper.look_back()
    assert consumer._engine.ready.take() is None
    stage.drain(queue, consumer)
    assert seen.texts == ["head", "head", *(f"{number}" for number in range(150))]


def test_a_lane_that_nobody_has_read_for_days_is_sealed_before_its_looks_are_made_up_for(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, bands=1)
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=300, stride=0.5)
    consumer._engine.close()
    stage.clock.advance(3 * 86_400)
    consumer, _ = reading(stage, queue)
    stage.drive(consumer, seconds=15, stride=0.1)
    [lane] = consumer._engine.memory.lanes.values()
    newest = queue._home.register.layout.newest_sealable(stage.clock.now_ms())
    assert stage._store.notes(LANES, ("mail",))[0] == lane.sealed == newest
    # The looks that the former reader has left go on.
    swept = dict(lane.swept)
    stage.drive(consumer, seconds=15, stride=0.1)
    assert all(lane.swept[rung] > minute for rung, minute in swept.items())
