"""What `depth()` promises, on a store whose index tells where rows are, and on one without."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from reading import write
from stages import either_stage  # noqa: F401 - a fixture

from shardq import Consumer, Depth
from shardq.records.membership import Heartbeat
from shardq.stores.tables import MEMBERS
from shardq.testing import Stage

if TYPE_CHECKING:
    from shardq import Message, Queue


def both(queue: Queue) -> Depth:
    """The depth, which is the same when every row is counted."""
    depth = queue.depth()
    assert dataclasses.replace(depth, exact=True) == queue.depth(exact=True)
    return depth


def test_what_a_process_has_put_and_never_counted_is_there(stage: Stage) -> None:
    crashed, queue = stage.connect().queue("mail"), stage.connect().queue("mail")
    crashed.put_many(["now"] * 2 + [{"body": "soon", "delay": "50m"}] * 4)
    assert both(queue) == Depth(2, 4, 0, exact=False)


def test_what_another_has_ended_and_never_counted_is_gone(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    messages = [queue.put("x", delay="30m") for _ in range(6)]
    queue.totals()
    other = stage.connect().queue("mail")
    for message in messages[:4]:
        other.cancel(message)
    assert both(stage.connect().queue("mail")) == Depth(0, 2, 0, exact=False)


def test_a_drain_does_not_make_waiting_climb(stage: Stage) -> None:
    queue, watched = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.put_many(["x"] * 24 + [{"body": "soon", "delay": "10m"}] * 3)
    queue.totals()
    depths = []

    def handle(_message: Message) -> None:
        stage.clock.advance(0.2)
        depths.append(watched.depth())

    consumer = Consumer(stage.connect().queue("mail"), handle)
    stage.drive(consumer, seconds=60, until=lambda: len(depths) == 24)
    depths.append(watched.depth())
    assert {depth.waiting for depth in depths} == {3}
    totals = [depth.total for depth in depths]
    assert totals == sorted(totals, reverse=True)


def test_a_drain_does_not_make_waiting_climb_where_messages_wait_for_hours(stage: Stage) -> None:
    queue, watched = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.put_many(["x"] * 24 + [{"body": "far", "delay": "3h"}] * 3)
    queue.totals()
    depths = [watched.depth()]
    consumer = Consumer(stage.connect().queue("mail"), lambda _: depths.append(watched.depth()))
    stage.drive(consumer, seconds=60, until=lambda: len(depths) == 25)
    depths.append(watched.depth())
    assert {depth.waiting for depth in depths} == {3}
    queue.put_many([{"body": "far", "delay": "3h"}] * 2)
    queue.totals()
    assert watched.depth().waiting == 5


def test_what_is_parked_counts_once_while_its_consumer_has_not_told_so(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="10s")
    queue.put_many(["x"] * 3)
    stage.clock.advance(0.01)
    assert len(queue.receive(3, wait="1s")) == 3
    told = Heartbeat(threads=3, busy=2, running=3).to_json()
    queue._home.store.note(MEMBERS, ("mail",), {"reader": told}, 10_000)
    assert both(queue) == Depth(0, 0, 3, exact=False)


def test_what_a_consumer_parks_counts_once_beside_what_is_ready(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, hold="10s")
    queue.put_many(["x"] * 3)
    depths = []

    def handle(_message: Message) -> None:
        if not depths:
            for seconds in (4, 4, 2.1, 0.6):
                stage.clock.advance(seconds)
                consumer._engine.step()
            depths.append(both(queue))

    consumer = Consumer(queue, handle)
    stage.drive(consumer, seconds=60, until=lambda: bool(depths))
    assert depths == [Depth(2, 0, 1, exact=False)]


def test_what_lies_beyond_an_hour_counts_as_waiting(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for delay in ("0s", "59m", "3h", "20d", "400d"):
        queue.put(delay, delay=delay)
    stage.clock.advance(0.01)
    assert both(queue) == Depth(1, 4, 0, exact=False)


def test_what_waits_for_long_is_counted_with_a_claim_of_many_days(stage: Stage) -> None:
    queue = stage.connect().queue("mail", visibility="1d")
    queue.put_many(["x"] * 2)
    stage.clock.advance(0.01)
    queue.receive(1, visibility="20h", wait="1s")
    assert both(queue) == Depth(1, 0, 1, exact=False)


def test_counting_asks_no_more_of_a_queue_of_many_lanes(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=64, bands=10)
    queue.put("x", delay="3h")
    assert both(queue) == Depth(0, 1, 0, exact=False)


def test_what_waits_is_looked_for_only_in_bands_that_were_put_to(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    # No producer does, before it has recorded the band.
    write(stage, queue, stage.clock.now_ms() + 600_000, b"unknown", lane=4)
    assert queue.depth().waiting == sum(count for _, count in queue.forecast("20m")) == 0
    assert queue.depth(exact=True).waiting == 1
    stage.connect().queue("mail").put("known", delay="5m", priority=1)
    assert sum(count for _, count in queue.forecast("20m")) == 2
    assert both(queue).waiting == 2


def test_an_index_spares_counting_what_lies_between_far_messages() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail")
        queue.put_many({"body": "x", "delay": f"{day}d"} for day in range(1, 366))
        reads = queue._home.store.counters["reads"]
        assert queue.depth().waiting == 365
        assert queue._home.store.counters["reads"] - reads < 400


def test_what_a_purge_has_reached_is_not_counted(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(
        [{"body": "x", "delay": delay} for delay in ("0s", "1m", "40m", "5h", "9d") for _ in "ab"]
    )
    stage.clock.advance(1)
    queue.purge()
    assert both(queue) == Depth(0, 0, 0, exact=False)
    stage.clock.advance(1)
    queue.put_many([{"body": "x", "delay": delay} for delay in ("0s", "40m", "5h")])
    stage.clock.advance(0.01)
    for seconds in (0, 70, 3_600, 10 * 3_600):
        stage.clock.advance(seconds)
        both(queue)
    assert both(queue) == Depth(3, 0, 0, exact=False)


def test_a_head_of_a_group_whose_time_has_come_is_ready_before_it_is_handed_out(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many({"body": "x", "group": "g"} for _ in range(2))
    [first] = queue.receive()
    queue.retry(first, "10s")
    depth = queue.depth()
    assert (depth.ready, depth.waiting, depth.in_flight) == (1, 1, 0)
    stage.clock.advance(10.1)
    depth = queue.depth()
    assert (depth.ready, depth.waiting, depth.in_flight) == (2, 0, 0)
