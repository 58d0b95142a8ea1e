"""Catch-up: reading lanes that are minutes behind."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from reading import reading, write

from shardq.testing import Stage


def test_catch_up_after_20_minutes_is_in_due_order_and_at_full_speed(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for minute in range(20):
        queue.put_many(f"{minute:02} {n}" for n in range(100))
        stage.clock.advance(60)
    consumer, seen = reading(stage, queue, prefetch=400)
    stage.drain(queue, consumer, within="5s")
    assert len(seen) == len(set(seen.texts)) == 2_000
    dues = [message.due_ms for message in seen.messages]
    assert dues == sorted(dues)
    assert stage._store.counters["rows_read:catch-up"] == 2_000


@pytest.mark.parametrize("places", [1, 10])
def test_rows_just_put_are_read_twice_only_if_their_groups_are_in_order(
    stage: Stage, places: int
) -> None:
    queue = stage.connect().queue("mail", groups={"places": places})
    queue.put_many({"body": "x", "group": f"g{n % 100}"} for n in range(5_000))
    stage.clock.advance(0.1)
    consumer, seen = reading(stage, queue)
    stage.drain(queue, consumer, within="5s")
    assert len(seen) == 5_000
    assert (stage._store.counters["rows_read:groups"] > 4_000) == (places == 1)


def test_groups_of_several_places_begin_before_their_lane_is_read_to_its_end(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, groups={"places": 10})
    queue.put_many({"body": "x", "group": f"g{n % 100}"} for n in range(5_000))
    for nth in range(1, 1_001):
        stage.faults.call("read", lambda: stage.clock.advance(0.1), nth=nth)
    assert len(queue.receive(10)) == 10
    assert stage._store.counters["rows_read:catch-up"] < 4_000


def test_rows_of_many_shards_that_are_leased_at_once_are_reread_by_one_read(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=8)
    consumer, seen = reading(stage, queue, prefetch=4_000)
    queue.put_many("x" for _ in range(1_000))
    stage.drain(queue, consumer)
    stage.clock.advance(120)
    queue.put_many("x" for _ in range(4_000))
    before = stage._store.counters["reads:leased"]
    stage.drain(queue, consumer, within="5s")
    assert len(seen) == 5_000
    assert stage._store.counters["reads:leased"] - before == 1


def test_a_slow_catch_up_lets_go_of_the_step_before_claims_lapse(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for minute in range(20):
        queue.put(str(minute))
        stage.clock.advance(60)
    consumer, seen = reading(stage, queue)
    for nth in range(1, 101):
        stage.faults.call("read", lambda: stage.clock.advance(0.1), nth=nth)
    slowest_s = 0.0
    for _ in range(20):
        begun_us = stage.clock.boot_us()
        consumer.step()
        slowest_s = max(slowest_s, (stage.clock.boot_us() - begun_us) / 1e6)
    assert len(seen) == 20
    assert slowest_s < 1


@pytest.mark.parametrize("prefetch", [100, 400, 4_000])
def test_catch_up_is_in_due_order_for_handlers_that_take_while_it_reads(
    stage: Stage, prefetch: int
) -> None:
    chance = random.Random(prefetch)
    queue = stage.connect().queue("mail", lanes=4, bands=1)
    start_ms = stage.clock.now_ms()
    for minute in range(20):
        # Lanes are never filled alike, and here each minute another one has most.
        weights = chance.choices([1, 3, 30], k=4)
        for lane in chance.choices(range(4), weights, k=150):
            write(stage, queue, start_ms + minute * 60_000 + chance.randrange(60_000), b"x", lane)
    stage.clock.advance(1_320)
    consumer, seen = reading(stage, queue, prefetch=prefetch)

    def take() -> None:
        while (one := consumer._engine.ready.take()) is not None:
            consumer._deliver(one)

    for nth in range(1, 1_000):
        stage.faults.call("read", take, nth=nth)
    stage.drain(queue, consumer, within="10s")
    assert len(seen) == 3_000
    dues = [message.due_ms for message in seen.messages]
    assert sum(after < before for before, after in pairwise(dues)) == 0


def test_lanes_that_lag_are_read_one_by_one_where_bodies_are_large(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=8)
    for lane in range(8):
        for _ in range(90):
            write(stage, queue, stage.clock.true_ms(), bytes(50_000), lane)
    stage.clock.advance(600)
    consumer, seen = reading(stage, queue)
    read: list[int] = [0]
    for nth in range(1, 9):
        stage.faults.call(
            "take", lambda: read.append(stage._store.counters["rows_read:catch-up"]), nth=nth
        )
    stage.drain(queue, consumer)
    assert len(seen) == 720
    assert len(set(read)) > 2
    assert max(after - before for before, after in pairwise(read)) * 50_000 < 5 << 20
