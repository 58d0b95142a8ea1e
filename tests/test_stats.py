"""Totals and the histogram of lateness."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq import Consumer, Snooze
from shardq.errors import StoreCorrupt
from shardq.records.folded import stored_totals
from shardq.records.stats import Lateness, StatsLog, StatsRow, Totals
from shardq.stores.tables import STATS
from shardq.testing import Stage

MICROS = st.integers(-10_000, 3_600_000_000)


@given(st.lists(MICROS, min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_right_to_within_a_bucket(late: list[int], fraction: float) -> None:
    histogram = Lateness()
    for micros in late:
        histogram.add(micros)
    rank = max(-(-len(late) * fraction // 1), 1)
    true_ms = max(sorted(late)[int(rank) - 1], 100) / 1_000
    told = histogram.quantile(fraction)
    assert told is not None
    # Bounds for a rank that floating point may put one off, at the edge of two buckets.
    assert told > true_ms * 0.999 or told >= max(sorted(late)[int(rank) - 2], 100) / 1_000
    assert told <= max(sorted(late)[min(int(rank), len(late) - 1)], 100) / 1_000 * 1.126


@given(st.lists(MICROS), st.lists(MICROS))
def test_merged_histograms_are_that_of_all_deliveries(one: list[int], other: list[int]) -> None:
    first, second, both = Lateness(), Lateness(), Lateness()
    for micros in one:
        first.add(micros)
        both.add(micros)
    for micros in other:
        second.add(micros)
        both.add(micros)
    first.merge(second)
    assert first.buckets == both.buckets
    assert first.count == len(one) + len(other)


def log_on(stage: Stage) -> StatsLog:
    layout = stage.connect().queue("mail")._home.register.layout
    return StatsLog(stage._store, stage.clock, layout, "me")


def stored(stage: Stage) -> Totals:
    total = Totals()
    for text in stage._store.notes(STATS, ("mail",)).values():
        total.merge(Totals.from_json(text, "mail"))
    return total


def test_totals_are_due_for_storing_after_5_s_and_only_where_changed() -> None:
    with Stage() as stage:
        log = log_on(stage)
        stage.clock.advance(10)
        assert not log.is_due()
        log.add(put=1)
        assert log.is_due()
        log.store()
        log.add(put=1)
        stage.clock.advance(4.9)
        assert not log.is_due()
        stage.clock.advance(0.1)
        assert log.is_due()


def test_threads_count_together() -> None:
    with Stage() as stage:
        log = log_on(stage)

        def count() -> None:
            for _ in range(1_000):
                log.add(put=1, acked=1)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (log.totals.put, log.totals.acked) == (4_000, 4_000)


def test_what_is_stored_by_two_at_once_is_the_newer_in_the_end() -> None:
    with Stage() as stage:
        log = log_on(stage)
        log.add(put=1)

        def count_and_store() -> None:
            log.add(put=1)
            log.store()

        other = threading.Thread(target=count_and_store)

        def overtake() -> None:
            other.start()
            # The other thread cannot end while it waits for this one.
            other.join(0.2)

        stage.faults.call("note stats", overtake, after=False)
        log.store()
        other.join()
        assert stored(stage).put == 2


@pytest.mark.parametrize(
    "text",
    [
        "{bad",
        '{"lateness":[{"512":1}]}',
        "5",
        "[]",
        '{"put":"2"}',
        '{"put":-1}',
        '{"lateness":5}',
        '{"lateness":[{"x":1}]}',
        None,
    ],
)
def test_damaged_totals_are_said_to_be_and_whose_they_are(text: object) -> None:
    with pytest.raises(
        StoreCorrupt,
        match=r"^totals of queue 'mail' are damaged: .*; run `shardq check --all mail`",
    ):
        Totals.from_json(text, "mail")


# When they are stored ----------------------------------------------------------------------------


def told(stage: Stage) -> list[StatsRow]:
    return list(stored_totals(stage._store, "mail").rows)


def consumer_rows(stage: Stage) -> list[StatsRow]:
    return [row for row in told(stage) if row.delivered]


def test_what_a_consumer_does_is_stored_at_once_and_closed_at_rest() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        consumer = Consumer(queue, lambda _: None)
        queue.put("x")
        stage.drive(consumer, seconds=0.2)
        [row] = consumer_rows(stage)
        assert (row.acked, row.is_open) == (1, True)
        stage.drive(consumer, seconds=3.5)
        assert [row.is_open for row in consumer_rows(stage)] == [True]
        stage.drive(consumer, seconds=1)
        assert [row.is_open for row in consumer_rows(stage)] == [False]


def test_a_consumer_that_crashed_is_told_apart_from_one_that_ended() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        for number in range(2):
            consumer = Consumer(queue, lambda _: None, member=f"c{number}")
            queue.put("x")
            stage.drive(consumer, seconds=0.2)
            if number == 0:
                consumer.close()
            else:
                # The consumer is not driven any more.
                queue.close()
        stage.clock.advance(6)
        gaps = stored_totals(stage._store, "mail").gaps(stage.clock.now_ms())
        assert [row.process for row in gaps] == ["c1"]


def test_receive_counts_how_late_it_delivers() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        for _ in range(3):
            queue.put("x")
        stage.clock.advance(2)
        assert len(queue.receive(3)) == 3
        queue.totals()
        late = stored_totals(stage._store, "mail").lateness(stage.clock.now_ms())
        assert late.count == 3
        assert late.quantile(0.5) == pytest.approx(2_000, rel=0.13)


def test_lateness_is_that_of_each_minute() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        consumer = Consumer(queue, lambda _: None)
        for late_s in (1, 30):
            queue.put("x")
            stage.clock.advance(late_s)
            stage.drive(consumer, seconds=5)
            stage.clock.advance(240)
        consumer.close()
        stored, now_ms = stored_totals(stage._store, "mail"), stage.clock.now_ms()
        assert stored.lateness(now_ms).count == 1
        assert stored.lateness(now_ms).quantile(1.0) == pytest.approx(30_000, rel=0.13)
        assert stored.lateness_of_day(now_ms, queue._home.register.layout).count == 2


# How far ahead rows were placed ------------------------------------------------------------------


def test_how_far_ahead_anything_was_placed_is_stored() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail", backoff_max="2h", backoff="2h")
        base_ms = stage.clock.now_ms()

        def ahead_s() -> int:
            queue.totals()
            return max(told_farthest(stage) - base_ms, 0) // 1_000

        queue.put("x")
        queue.put_many([b"x", {"body": "y", "delay": "4m"}])
        assert ahead_s() == 0
        queue.put("x", delay="10m")
        assert 600 <= ahead_s() <= 900
        queue.put_many([{"body": "y", "delay": "1h"}, b"z"])
        assert 3_600 <= ahead_s() <= 3_900
        # A retry, a snooze, a claim and a repeated put place rows as well.
        [message] = queue.receive(1, visibility="90m")
        assert 5_400 <= ahead_s() <= 5_700
        queue.retry(message)
        assert 7_200 <= ahead_s() <= 7_500
        [message] = queue.receive(1)
        queue.snooze(message, "3h")
        assert 10_800 <= ahead_s() <= 11_100
        # The consumer gets the message once the receiver holds no lanes any more.
        queue._receiver.close()
        consumer = Consumer(queue, lambda _: snoozed("4h"))
        stage.drive(consumer, seconds=2)
        consumer.close()
        assert 14_400 <= ahead_s() <= 14_800


def snoozed(delay: str) -> None:
    raise Snooze(delay)


def told_farthest(stage: Stage) -> int:
    return stored_totals(stage._store, "mail").totals.farthest_ms
