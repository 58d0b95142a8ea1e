"""A queue at rest among many: its steps are rare, for reads for all of them find its news."""

from __future__ import annotations

import pytest
from reading import reading, write

from shardq import Consumer, Queue
from shardq.records.together import Together
from shardq.stores.tables import MEMBERS, QUEUES
from shardq.testing import Stage


def rest(stage: Stage, consumer: Consumer, seconds: float, *, is_watched: bool = False) -> int:
    """Step a consumer as a stepper of many queues does; returns the number of its steps."""
    engine, clock = consumer._engine, stage.clock
    begun_us = due_us = clock.boot_us()
    end_us, steps = begun_us + round(seconds * 1e6), 0
    while clock.boot_us() < end_us:
        awaited = engine.awaited()
        has_news = awaited is not None and bool(stage._store.occupied_queues([awaited.rows]))
        if awaited is not None and engine.take_in(read(stage, consumer)):
            has_news = True
        if has_news:
            engine.news.wake()
        now_us = clock.boot_us()
        if has_news or now_us >= due_us:
            is_looked_at = awaited is not None and not has_news and not is_watched
            engine.news.take(is_watched=is_watched, is_looked_at=is_looked_at, is_regular=True)
            due_us = now_us + round(engine.step() * 1e6)
            while (one := engine.ready.take()) is not None:
                consumer._deliver(one)
            engine.flush()
            steps += 1
        due_ms = engine.ready.next_due_ms()
        if due_ms is not None:
            due_us = min(due_us, clock.boot_us() + due_ms * 1_000 - clock.now_us())
        clock.advance(max(min(due_us - clock.boot_us(), 1_000_000), 1_000) / 1e6)
    return steps


def read(stage: Stage, consumer: Consumer) -> Together:
    """The record and heartbeats of its queue."""
    register = consumer._engine.home.register
    members = {MEMBERS: [(register.members_key,)]}
    return Together(stage._store, members, keys={QUEUES: [register.name]})


def test_a_queue_at_rest_is_stepped_every_10_s_and_its_heartbeat_never_lapses(
    stage: Stage,
    queue: Queue,
) -> None:
    consumer, _ = reading(stage, queue)
    rest(stage, consumer, 200)
    reads, beats = stage._store.counters["reads"], stage._store.counters["batches"]
    lapsed = []
    for _ in range(60):
        assert rest(stage, consumer, 10) <= 2
        lapsed.append(not stage._store.notes(MEMBERS, (queue._home.register.members_key,)))
    assert not any(lapsed)
    assert stage._store.counters["batches"] - beats <= 60 * 2
    # 25 reads a minute: its lanes twice, searches, sweeps of sealed minutes. `own` are the test's.
    own = 60 * 10 * 3
    assert stage._store.counters["reads"] - reads - own <= 10 * 25


def test_what_is_put_at_rest_is_delivered_once_a_read_for_many_has_found_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer, seen = reading(stage, queue)
    elsewhere = stage.connect().queue("mail")
    for number in range(20):
        rest(stage, consumer, 45 + number)
        putter = (queue, elsewhere)[number % 2]
        putter.put(f"now {number}")
        putter.put(f"soon {number}", delay="7s")
        rest(stage, consumer, 12)
    assert sorted(seen.texts) == sorted(f"{w} {n}" for w in ("now", "soon") for n in range(20))
    assert max(seen.late_ms) <= 1_200


def test_a_row_that_no_read_for_many_finds_is_delivered_within_45_s(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer, seen = reading(stage, queue)
    rest(stage, consumer, 200)
    # The write took longer than the reads for many queues look back.
    write(stage, queue, stage.clock.now_ms() - 5_000, b"late")
    rest(stage, consumer, 45)
    assert seen.texts == ["late"]


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_step_for_a_new_caller_reads_at_rest_too(stage: Stage, is_awaited: bool) -> None:
    queue = stage.connect().queue("mail")
    consumer, _ = reading(stage, queue)
    rest(stage, consumer, 200)
    stage.connect().queue("mail").put("a")
    stage.clock.advance(0.01)
    engine = consumer._engine
    engine.news.take(is_watched=False, is_looked_at=True, is_regular=not is_awaited)
    engine.step()
    assert engine.ready.has(1) == is_awaited


def test_a_far_timer_in_a_lane_that_is_not_polled_fires_on_time(stage: Stage, queue: Queue) -> None:
    consumer, seen = reading(stage, queue)
    rest(stage, consumer, 100)
    # Into a priority that nobody is known to use, as a producer might that was away for long.
    dues = [stage.clock.now_ms() + ms for ms in (61_000, 185_500, 240_007)]
    for place, due_ms in enumerate(dues):
        write(stage, queue, due_ms, f"{place}".encode(), lane=2)
        rest(stage, consumer, 1)
    rest(stage, consumer, 260)
    assert seen.texts == ["0", "1", "2"]
    assert max(seen.late_ms) < 60


def test_new_settings_and_members_bring_about_a_step(stage: Stage, queue: Queue) -> None:
    consumer, seen = reading(stage, queue)
    engine = consumer._engine
    rest(stage, consumer, 200)
    assert not engine.take_in(read(stage, consumer))
    elsewhere = stage.connect().queue("mail")
    elsewhere.pause()
    assert engine.take_in(read(stage, consumer))
    rest(stage, consumer, 1)
    elsewhere.put("paused")
    rest(stage, consumer, 30)
    assert seen.texts == []
    elsewhere.resume()
    rest(stage, consumer, 10)
    assert seen.texts == ["paused"]
    rest(stage, consumer, 100)
    other, _ = reading(stage, elsewhere)
    stage.drive(other, seconds=1)
    assert engine.take_in(read(stage, consumer))


def test_a_record_that_cannot_be_read_is_reported_by_a_step(stage: Stage, queue: Queue) -> None:
    consumer, _ = reading(stage, queue)
    rest(stage, consumer, 200)
    record = stage._store.notes(QUEUES, (), ["mail"])["mail"]
    noted = read(stage, consumer)
    noted._found[QUEUES, ()] = {"mail": record._replace(settings="{", version=99)}
    assert consumer._engine.take_in(noted)
    noted._found[QUEUES, ()] = {}
    assert consumer._engine.take_in(noted)


def test_what_is_cancelled_over_2_s_before_its_due_is_never_delivered_at_rest(
    stage: Stage, queue: Queue
) -> None:
    consumer, seen = reading(stage, queue)
    rest(stage, consumer, 30, is_watched=True)
    cancelled = queue.put("cancelled", delay="5s")
    late = [queue.put(f"{ms} ms", delay=f"{ms}ms") for ms in (1_500, 2_100, 4_000, 5_900, 6_100)]
    rest(stage, consumer, 2.5, is_watched=True)
    assert queue.cancel(cancelled)
    rest(stage, consumer, 10, is_watched=True)
    assert [one.id for one in seen.messages] == [one.id for one in late]
    assert max(seen.late_ms) <= 1
