"""Limits of groups: places, rates, tiers, and turns among groups, through the face."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from worlds import on_each_store

from shardq import Consumer, Limited, Message, Retry
from shardq.consumer import THREADS
from shardq.engine.handing.outcome import ACKED
from shardq.errors import BadSetting, StoreCorrupt
from shardq.model.limits import Bucket, read_groups, read_rate, read_rates
from shardq.model.message import TASK_HEADER
from shardq.model.settings import Settings
from shardq.model.times import due_ms, moment_of
from shardq.records.shares import Shares, divided
from shardq.stores.tables import LIMITS, Change
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worlds import World

    from shardq import Queue
    from shardq.engine.storing.ending import Ending


def put(queue: Queue, group: str, count: int, *, first: int = 0) -> None:
    queue.put_many({"body": f"{group}{n}", "group": group} for n in range(first, first + count))


def holding(
    stage: Stage, queue: Queue, threads: int = THREADS
) -> tuple[Consumer, Recorder, list[Ending]]:
    """Return a consumer whose deliveries run until the test ends them, and what it records."""
    held: list[Ending] = []
    seen = Recorder(stage.clock, lambda _: held.append(consumer._hold()))
    consumer = Consumer(queue, seen, threads=threads)
    consumer._deliverer._endings.finish = lambda: None
    return consumer, seen, held


def _shares(stage: Stage, member: str) -> Shares:
    home = stage.connect().queue("mail")._home
    return Shares(home.store, home.clock, home.register, "running", member=member)


def most_within(times_us: Sequence[int], span_us: int) -> int:
    return max(sum(at <= other < at + span_us for other in times_us) for at in times_us)


def short_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory have room for 20 rows of groups, and pages have 10 rows."""
    for name in ("groups.room.HEADS_MAX", "groups.room.ROWS_MAX", "groups.left._PAGE"):
        monkeypatch.setattr(f"shardq.engine.{name}", 10)
    monkeypatch.setattr("shardq.engine.reading.pages._PAGE_ROWS_MAX", 10)


# Places -------------------------------------------------------------------------------------------


def test_a_group_has_as_many_deliveries_at_once_as_it_has_places(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 3})
    put(queue, "a", 10)
    put(queue, "b", 2)
    first = queue.receive(10)
    assert Counter(message.group for message in first) == {"a": 3, "b": 2}
    assert queue.receive(10) == []
    queue.ack(next(message for message in first if message.group == "a"))
    assert [message.group for message in queue.receive(10)] == ["a"]


def test_a_retried_message_gives_its_place_back_and_is_delivered_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2})
    put(queue, "a", 5)

    def fail(message: Message) -> None:
        if message.attempt == 1 and message.text in ("a0", "a1"):
            raise Retry("10s")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["a0", "a1", "a2", "a3", "a4"]
    stage.drain(queue, consumer)
    assert sorted(seen.texts[5:]) == ["a0", "a1"]


def test_a_received_message_is_retried_and_snoozed_before_its_time_is_up(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2})
    put(queue, "a", 4)
    first, second = queue.receive(10, "1h", wait="1s")
    queue.retry(first, "10s")
    queue.snooze(second, "20s")
    others = queue.receive(10, wait="1s")
    assert [message.text for message in others] == ["a2", "a3"]
    queue.ack(*others)
    assert queue.receive(10, wait="8s") == []
    for text in ("a0", "a1"):
        assert [message.text for message in queue.receive(10, wait="12s")] == [text]


def test_a_place_is_free_again_when_the_time_of_a_claim_is_up(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2})
    put(queue, "a", 3)
    assert len(queue.receive(10, visibility="30s")) == 2
    stage.clock.advance(29)
    assert queue.receive(10) == []
    stage.clock.advance(2)
    assert {message.text for message in queue.receive(10)} == {"a0", "a1"}


def test_a_member_that_takes_a_lane_over_counts_the_claims_of_the_former_one(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2})
    put(queue, "a", 20)
    held = queue.receive(10, visibility="10m")
    stage.clock.advance(60)
    other = stage.connect().queue("mail")
    assert other.receive(10, wait="30s") == []
    queue.ack(held[0])
    assert len(other.receive(10, wait="30s")) == 1


def test_one_receive_gets_no_more_of_a_group_than_its_places(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2})
    put(queue, "a", 20)
    assert len(queue.receive(10, per_group=10)) == 2


# Rates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [1, 4])
@pytest.mark.parametrize(("rate", "burst"), [("10/s", 1), ("10/s", 5), ("3/2s", 2)])
def test_a_group_begins_no_more_than_its_rate_and_burst_allow(
    stage: Stage, rate: str, burst: int, places: int
) -> None:
    limits = {"rate": rate, "burst": burst, "places": places}
    queue = stage.connect().queue("mail", groups=limits)
    put(queue, "a", 300)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=20)
    every_us = read_rate(rate).interval_us
    for span_us in (every_us, 5 * every_us, 20 * every_us):
        assert most_within(seen.at_us, int(span_us)) <= span_us / every_us + burst
    assert len(seen.at_us) >= 0.95 * (seen.at_us[-1] - seen.at_us[0]) / every_us


def test_callers_of_receive_keep_the_rate_together(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "2/s", "places": 100})
    put(queue, "a", 100)
    at_us: list[int] = []
    until_us = stage.clock.boot_us() + 20_000_000
    while stage.clock.boot_us() < until_us:
        at_us += [stage.clock.boot_us()] * len(queue.receive(10, wait="1s"))
    assert most_within(at_us, 10_000_000) <= 21
    assert len(at_us) >= 36


@pytest.mark.parametrize(
    "options", [{"groups": {"rate": "1/s", "burst": 3}}, {"limits": {"rate": "1/s", "burst": 3}}]
)
def test_rows_received_along_with_the_first_of_their_group_keep_the_rate(
    stage: Stage, options: dict[str, Any]
) -> None:
    queue = stage.connect().queue("mail", **options)
    put(queue, "a", 50)
    count = 0
    until_us = stage.clock.boot_us() + 20_000_000
    while stage.clock.boot_us() < until_us:
        got = queue.receive(10, wait="1s", per_group=10)
        for message in got:
            queue.ack(message)
        count += len(got)
    assert 15 <= count <= 20 + 3


def test_after_a_rest_a_burst_begins_at_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "1/s", "burst": 5})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "a", 1)
    stage.drive(consumer, seconds=60)
    put(queue, "a", 10)
    stage.drive(consumer, seconds=0.5)
    assert len(seen.texts) == 1 + 5


def test_the_tokens_of_a_group_without_messages_are_remembered(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "1/m", "burst": 2})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1)
    for minute in range(1, 6):
        put(queue, "a", 10, first=10 * minute)
        stage.drive(consumer, seconds=60)
        for message in queue.receive(100):
            queue.ack(message)
    assert most_within(seen.at_us, 60_000_000) <= 3


def test_the_tokens_of_many_groups_are_forgotten_once_all_are_there_again(stage: Stage) -> None:
    limits = {"rate": "10/m", "paused*": {"rate": "1/h"}}
    queue = stage.connect().queue("mail", group_lanes=1, groups=limits)
    queue.pause(group="paused*")
    queue.put_many({"body": "x", "group": f"{number}"} for number in range(500))
    put(queue, "paused", 1)
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=7)
    (lane,) = consumer._engine.groups._lanes.values()
    assert len(lane.buckets) >= 500
    stage.drive(consumer, seconds=10)
    assert len(lane.buckets) <= 1


def test_several_rates_hold_at_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": ["10/s", "20/m"]})
    put(queue, "a", 300)
    seen = Recorder(stage.clock)
    stage.drive(Consumer(queue, seen), seconds=180)
    assert most_within(seen.at_us, 1_000_000) <= 11
    assert most_within(seen.at_us, 60_000_000) <= 40
    assert len(seen.at_us) >= 55


def test_a_new_owner_of_a_lane_begins_with_no_tokens(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "1/s", "burst": 9})
    put(queue, "a", 100)
    seen = Recorder(stage.clock)
    for _ in range(4):
        with stage.connect() as db:
            consumer = Consumer(db.queue("mail"), seen)
            stage.drive(consumer, seconds=8)
            consumer.close()
    assert most_within(seen.at_us, 10_000_000) <= 19
    assert len(seen.at_us) <= 33


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_a_group_with_a_rate_over_a_long_time_begins_at_once_whoever_owns_it(
    stage: Stage, *, is_closed: bool
) -> None:
    queue = stage.connect().queue("mail", groups={"rate": ["10/s", "200/h"]})
    put(queue, "a", 300)
    seen = Recorder(stage.clock)
    for _ in range(10):
        with stage.connect() as db:
            consumer = Consumer(db.queue("mail"), seen)
            stage.drive(consumer, seconds=4)
            if is_closed:
                consumer.close()
            else:
                stage.clock.advance(30)
    assert most_within(seen.at_us, 1_000_000) <= 11
    assert most_within(seen.at_us, 3_600_000_000) <= 200 + 400 // 18
    # An owner loses at most a tenth of the burst, and the time until it is found to be gone.
    assert len(seen.at_us) >= (150 if is_closed else 100)


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize("of", ["queue", "task"])
def test_a_queue_or_a_task_with_a_rate_over_a_long_time_begins_at_once_at_each_consumer(
    stage: Stage, of: str, burst: int
) -> None:
    rates = {"rate": ["10/s", "200/h"], "burst": burst}
    limits = rates if of == "queue" else {"tasks": {"a": rates}}
    queue = stage.connect().queue("mail", limits=limits)
    seen = Recorder(stage.clock)
    consumers = [Consumer(stage.connect().queue("mail"), seen) for _ in range(3)]
    stage.drive(*consumers, seconds=5)
    queue.put_many({"body": f"a{n}", "headers": {TASK_HEADER: "a"}} for n in range(400))
    stage.drive(*consumers, seconds=12)
    assert len(seen.at_us) >= 80
    consumers.pop().close()
    stage.drive(*consumers, seconds=20)
    # Jobs of a task that were moved to about their turns return a little late.
    assert (190 if of == "queue" else 110) <= len(seen.at_us) <= 203
    assert most_within(seen.at_us, 1_000_000) <= 10 + burst
    stage.drive(*consumers, seconds=1_800)
    assert (280 if of == "queue" else 240) <= len(seen.at_us) <= 302


def test_a_consumer_closes_after_its_limits_were_removed(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "10/s", "running": 3})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    queue.put_many({"body": f"{n}"} for n in range(50))
    stage.drive(consumer, seconds=1)
    queue.alter(limits={"running": 5})
    stage.drive(consumer, seconds=2)
    consumer.close()
    assert len(seen.texts) == 50


def test_a_rate_over_a_long_time_that_is_added_holds_nothing_back_at_first(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "10/s"}, limits={"rate": "10/s"})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "a", 200)
    stage.drive(consumer, seconds=5)
    before = len(seen.at_us)
    queue.alter(groups={"rate": ["10/s", "60/h"]}, limits={"rate": ["10/s", "50/h"]})
    stage.drive(consumer, seconds=20)
    assert 49 <= len(seen.at_us) - before <= 51


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("rate", ["5/h", ["10/s", "5/h"]], ids=str)
def test_new_owners_go_on_with_a_slow_rate_where_the_former_ones_were(
    stage: Stage, rate: str | list[str], *, is_closed: bool
) -> None:
    queue = stage.connect().queue("mail", groups={"rate": rate})
    put(queue, "a", 100)
    seen = Recorder(stage.clock)
    for _ in range(40):
        with stage.connect() as db:
            consumer = Consumer(db.queue("mail"), seen)
            stage.drive(consumer, seconds=15)
            if is_closed:
                consumer.close()
            stage.clock.advance(285)
    burst = 1 if rate == "5/h" else 5
    for hours in (0.1, 0.5, 1, 2):
        assert most_within(seen.at_us, int(3_600_000_000 * hours)) <= 5 * hours + burst
    # Each is begun by the first owner after its token was there: 15 s of each 300 s.
    assert len(seen.at_us) >= 12


@on_each_store
def test_the_tokens_of_a_slow_rate_are_there_for_a_new_group_and_not_again_for_a_new_owner(
    world: World,
) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, groups={"rate": "5/d", "burst": 2, "places": 5})
    put(queue, "a", 5)
    got = [one for _ in range(3) for one in queue.receive(5, wait="1s")]
    assert len(got) == 2
    queue.ack(*got)
    queue.close()
    other = world.connect().queue(name)
    assert other.receive(5, wait="1s") == []
    put(other, "b", 5)
    assert {one.group for one in other.receive(5, wait="2s")} == {"b"}


def test_groups_that_wait_for_tokens_of_slow_rates_are_not_looked_at_until_then(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, groups={"rate": "6/m"})
    queue.put_many({"body": "x", "group": f"{n}"} for n in range(200) for _ in range(3))
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    for round_ in range(1, 4):
        stage.drive(consumer, seconds=5)
        (lane,) = consumer._engine.groups._lanes.values()
        assert (len(seen.texts), len(lane.slow)) == (200 * round_, 0)
        stage.drive(consumer, seconds=5.5)
    assert most_within(seen.at_us, 9_000_000) <= 200


def test_a_group_that_waits_for_its_rate_delays_no_other(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, groups={"slow*": {"rate": "1/h"}})
    put(queue, "slow", 2_000)
    put(queue, "quick", 50)
    queue.put("plain")
    seen = Recorder(stage.clock)
    stage.drive(Consumer(queue, seen), seconds=3)
    assert len([text for text in seen.texts if text.startswith("quick")]) == 50
    assert "plain" in seen.texts
    assert len(seen.texts) == 52


# Turns --------------------------------------------------------------------------------------------


def test_a_flood_of_one_group_delays_itself(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 10})
    put(queue, "a", 500)
    stage.clock.advance(1)
    put(queue, "b", 10)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    turns = [text[0] for text in seen.texts]
    assert turns.count("b") == 10
    last = max(place for place, name in enumerate(turns) if name == "b")
    assert last - turns.index("b") <= 20


@pytest.mark.parametrize("places", [1, 2])
def test_groups_without_room_in_memory_get_as_many_turns_as_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    monkeypatch.setattr("shardq.engine.groups.room.ROWS_MAX", 40)
    queue = stage.connect().queue("mail", groups={"places": places}, group_lanes=4)
    queue.put_many({"body": "x", "group": f"g{n % 20}"} for n in range(1_000))
    engine = Consumer(queue, Recorder(stage.clock))._engine
    taken: Counter[str | None] = Counter()
    while taken.total() < 400:
        stage.clock.advance(max(engine.step(), 0.001))
        for _ in range(5):
            one = engine.ready.take()
            assert one is not None
            taken[one.row.group] += 1
            engine.outbox.finish(one, ACKED)
    assert max(taken.values()) - min(taken.values()) <= 2, taken


def test_groups_share_by_their_tiers(stage: Stage) -> None:
    limits = {"places": 10, "vip": {"places": 10, "tier": 3}}
    queue = stage.connect().queue("mail", groups=limits)
    put(queue, "vip", 400)
    put(queue, "norm", 400)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    names = [text.rstrip("0123456789") for text in seen.texts]
    first = Counter(names[20:420])
    assert first["vip"] == pytest.approx(300, rel=0.05)


def test_priority_decides_among_the_heads_of_a_group_without_order(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 50})
    put(queue, "a", 20)
    queue.put("first", group="a", priority=0)
    for number in range(20):
        queue.put(f"late{number}", group="a", priority=2)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen))
    late = [place for place, text in enumerate(seen.texts) if text.startswith("late")]
    assert min(late) >= 20


@pytest.mark.parametrize("grouped", [False, True])
def test_weighted_priorities_starve_none(stage: Stage, grouped: bool) -> None:
    queue = stage.connect().queue("mail", priorities="weighted")
    for priority in range(3):
        queue.put_many(
            {"body": f"{priority}", "priority": priority}
            | ({"group": f"{priority} {number}"} if grouped else {})
            for number in range(400)
        )
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    first = Counter(seen.texts[:350])
    assert [first[name] for name in "012"] == pytest.approx([200, 100, 50], abs=3)
    assert len(seen.texts) == 1_200


def test_priorities_are_strict_again_when_they_are_set_so(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=3, priorities="weighted")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1)
    queue.alter(priorities="strict")
    stage.drive(consumer, seconds=6)
    for priority in (2, 1, 0):
        queue.put_many({"body": f"{priority}", "priority": priority} for _ in range(50))
    stage.drain(queue, consumer)
    assert seen.texts == ["0"] * 50 + ["1"] * 50 + ["2"] * 50


# Changes ------------------------------------------------------------------------------------------


def test_limits_are_followed_while_consumers_run(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "1/h"})
    put(queue, "a", 100)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=10)
    assert len(seen.texts) == 1
    queue.alter(groups={"rate": "10/s"})
    stage.drive(consumer, seconds=10)
    assert 40 <= len(seen.texts) <= 101
    queue.alter(groups="off")
    stage.drain(queue, consumer)
    assert seen.texts == [f"a{number}" for number in range(100)]


@on_each_store
def test_a_rate_that_is_lowered_begins_without_tokens(world: World) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, groups={"rate": "10/s", "burst": 5, "places": 50})
    put(queue, "a", 60)
    assert queue.receive(5, wait="2s")
    queue.alter(groups={"rate": "1/h", "burst": 5, "places": 50})
    world.pass_time(6)
    assert queue.receive(10, wait="1s") == []


def test_a_change_of_another_limit_takes_no_tokens(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"slow": {"rate": "1/m"}})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "slow", 10)
    stage.drive(consumer, seconds=90)
    assert len(seen.texts) == 2
    queue.limit("other", places=3)
    stage.drive(consumer, seconds=40)
    assert len(seen.texts) == 3


def test_fewer_places_hold_as_soon_as_deliveries_have_ended(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 4})
    put(queue, "a", 20)
    held = queue.receive(10)
    queue.alter(groups={"places": 2})
    stage.clock.advance(6)
    for message in held[:2]:
        queue.ack(message)
    assert queue.receive(10) == []
    queue.ack(held[2])
    assert len(queue.receive(10)) == 1


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["same owner", "next owner"])
def test_what_runs_out_by_fewer_places_waits_for_what_still_runs(
    stage: Stage, *, is_taken_over: bool
) -> None:
    queue = reader = stage.connect().queue("mail", groups={"places": 2})
    put(queue, "a", 4)
    first, second = queue.receive(10, visibility="20s")
    receipt = queue.extend(second, "10m")
    queue.alter(groups={})
    if is_taken_over:
        queue.close()
        reader = stage.connect().queue("mail")
    for _ in range(10):
        stage.clock.advance(3)
        assert reader.receive(10) == []
    reader.ack(receipt)
    assert [message.text for message in reader.receive(10, wait="1s")] == [first.text]


def test_two_that_are_retried_at_once_by_fewer_places_are_delivered_one_after_the_other(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2})
    put(queue, "a", 4)
    consumer, seen, held = holding(stage, queue, threads=2)
    stage.drive(consumer, seconds=1)
    queue.alter(groups={})
    stage.drive(consumer, seconds=6)
    for one in held:
        one.end(Retry("1s"))
    for count in range(3, 7):
        stage.drive(consumer, seconds=3)
        assert len(seen.texts) == count
        held[-1].end(None)
    stage.drive(consumer, seconds=3)
    assert seen.texts == ["a0", "a1", "a0", "a1", "a2", "a3"]


@on_each_store
def test_a_new_owner_counts_all_claims_of_a_group_before_it_begins_any_of_it(world: World) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, groups={"places": 300})
    put(queue, "a", 600)
    assert len(queue.receive(100, visibility="4s", wait="2s")) == 100
    lasting = [one for _ in range(2) for one in queue.receive(100, visibility="10m", wait="2s")]
    assert len(lasting) == 200
    queue.alter(groups={"places": 150})
    queue.close()
    world.pass_time(5)
    other = world.connect().queue(name)
    assert other.receive(100, wait="2s") == []
    queue.ack(*lasting[:60])
    assert len(other.receive(100, wait="2s")) == 10


@on_each_store
def test_a_new_owner_without_room_in_memory_counts_all_claims_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, group_lanes=1, groups={"places": 150})
    put(queue, "a", 300)
    assert len(queue.receive(100, visibility="4s", wait="2s")) == 100
    lasting = queue.receive(50, visibility="10m", wait="2s")
    assert len(lasting) == 50
    queue.alter(groups={"places": 50})
    queue.close()
    world.pass_time(5)
    for most in ("HEADS_MAX", "ROWS_MAX"):
        monkeypatch.setattr(f"shardq.engine.groups.room.{most}", 10)
    other = world.connect().queue(name)
    assert other.receive(100, wait="2s") == []
    queue.ack(*lasting[:20])
    assert len(other.receive(20, wait="2s")) == 20


@pytest.mark.parametrize("places", [1, 2])
def test_a_lane_with_more_groups_than_memory_has_room_for_fills_no_memory_after_a_crash(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, groups={"places": places})
    queue.put_many({"body": f"{n}", "group": f"g{n % 400}"} for n in range(420))
    assert len(queue.receive(10, visibility="1m")) == 10
    stage.clock.advance(90)
    short_of_room(monkeypatch)
    consumer = Consumer(stage.connect().queue("mail"), lambda _: counts.append(len(known)))
    counts: list[int] = []
    known = consumer._engine.memory.known
    stage.drain(queue, consumer)
    assert len(counts) == 420
    assert max(counts) <= 40


@pytest.mark.parametrize("places", [1, 2])
def test_more_groups_than_memory_has_room_for_fill_no_memory_when_they_are_resumed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, places: int
) -> None:
    short_of_room(monkeypatch)
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1, groups={"places": places})
    queue.pause(group="g*")
    queue.put_many({"body": f"{n}", "group": f"g{n % 400}"} for n in range(420))
    consumer = Consumer(queue, lambda _: counts.append(len(known)))
    counts: list[int] = []
    known = consumer._engine.memory.known
    stage.drive(consumer, seconds=3)
    assert not counts
    queue.resume(group="g*")
    stage.drain(queue, consumer)
    assert len(counts) == 420
    assert max(counts) <= 40


@pytest.mark.parametrize("far_max", [5_000, 0], ids=["in memory", "in the store"])
def test_more_places_hold_at_once_for_what_is_behind_a_head_at_a_caller(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, far_max: int
) -> None:
    monkeypatch.setattr("shardq.engine.groups.heads.FAR_MAX", far_max)
    queue = stage.connect().queue("mail")
    put(queue, "a", 4)
    assert len(queue.receive(10, visibility="10m")) == 1
    assert queue.receive(10, wait="3s") == []
    queue.alter(groups={"places": 3})
    assert len(queue.receive(10, visibility="10m", wait="6s")) == 2


def test_a_name_comes_before_the_longest_pattern_and_a_pattern_before_each() -> None:
    limits = read_groups(
        {"places": 2, "eu-*": {"places": 3}, "eu-7*": {"places": 4}, "eu-77": {"places": 5}}
    )
    found = {name: limits.of(name).places for name in ("us", "eu-1", "eu-71", "eu-77")}
    assert found == {"us": 2, "eu-1": 3, "eu-71": 4, "eu-77": 5}


@pytest.mark.parametrize(
    "given",
    [
        {"places": 0},
        {"places": True},
        {"places": 1_001},
        {"rate": "0/s"},
        {"rate": "-1/s"},
        {"rate": "ten a second"},
        {"rate": "1/0s"},
        {"rate": []},
        {"rate": ["10/s", "20/s"]},
        {"rate": ["10/s", "600/m"]},
        {"burst": 3},
        {"rate": "1/s", "burst": 0},
        {"tier": 101},
        {"pace": 3},
        {"a*b": {"places": 2}},
        {"vip": {"places": 2, "more": 1}},
        {"": {"places": 2}},
        {f"g{number}": {"places": 2} for number in range(1_001)},
        "places=3",
        3,
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_limit_that_makes_no_sense_is_refused_and_the_former_one_holds(
    stage: Stage, given: object
) -> None:
    queue = stage.connect().queue("mail", groups={"places": 3})
    with pytest.raises(BadSetting):
        queue.alter(groups=given)  # type: ignore[arg-type]
    assert queue.settings.group_limits == '{"places":3}'


@pytest.mark.parametrize(
    "stored", ['{"places":0}', "[]", "nonsense", '{"places": 3}', "[" * 10_000]
)
def test_damaged_limits_are_an_error_of_the_queue(stored: str) -> None:
    text = Settings(group_limits='{"places":3}').to_json()
    damaged = text.replace('"{\\"places\\":3}"', json.dumps(stored))
    assert damaged != text
    with pytest.raises(StoreCorrupt, match="settings of queue 'mail' are damaged"):
        Settings.from_json(damaged, "mail")


def test_rates_are_read_as_people_write_them() -> None:
    texts = ["10/s", "1,000/min", "5/90s", "1_000 / h", "1/d"]
    assert [str(rate) for text in texts for rate in read_rates(text)] == [
        "10/s", "1000/m", "5/90s", "1000/h", "1/d",
    ]  # fmt: skip


def test_a_bucket_never_gives_more_than_its_rates_in_any_window() -> None:
    rates = ((read_rate("10/s"), 3), (read_rate("100/m"), 100))
    bucket = Bucket(rates, 0)
    taken = [at_us for at_us in range(0, 200_000_000, 7_001) if bucket.take(at_us)]
    assert most_within(taken, 1_000_000) <= 13
    assert most_within(taken, 60_000_000) <= 200
    assert len(taken) >= 100 + 100 * 2


# Held back ----------------------------------------------------------------------------------------


def test_a_paused_group_is_held_back_and_no_other_until_it_is_resumed(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    put(queue, "a", 5)
    put(queue, "b", 5)
    queue.pause(group="a*")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=300)
    assert seen.texts == [f"b{number}" for number in range(5)]
    queue.resume(group="a*")
    stage.drain(queue, consumer)
    assert seen.texts[5:] == [f"a{number}" for number in range(5)]


def test_sweeps_look_for_nothing_behind_the_rows_of_a_group_that_is_held_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    put(queue, "a", 3_000)
    queue.pause(group="a")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=5)
    before = stage._store.counters["reads:groups"]
    stage.drive(consumer, seconds=90)
    assert stage._store.counters["reads:groups"] == before
    put(queue, "b", 1)
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["b0"]
    queue.resume(group="a")
    stage.drain(queue, consumer)
    assert seen.texts[1:] == [f"a{number}" for number in range(3_000)]


def test_a_group_that_is_paused_while_it_is_delivered_stops(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "10/s"})
    put(queue, "a", 200)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=2)
    queue.pause(group="a")
    stage.drive(consumer, seconds=6)
    count = len(seen.texts)
    assert count < 100
    stage.drive(consumer, seconds=60)
    assert len(seen.texts) == count


def test_a_parked_message_is_retried_when_its_handler_says_after_its_lane_was_left(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2}, hold="1s", visibility="10s")
    put(queue, "a", 1)
    consumer, seen, held = holding(stage, queue)
    stage.drive(consumer, seconds=5)
    queue.pause()
    stage.drive(consumer, seconds=6)
    assert not consumer._engine.leases.held()
    held[0].end(Retry("10m"))
    queue.resume()
    stage.drive(consumer, seconds=500)
    assert len(seen.texts) == 1
    stage.drive(consumer, seconds=120)
    assert len(seen.texts) == 2


@pytest.mark.parametrize("places", [1, 2])
def test_a_message_that_is_retried_while_its_group_is_paused_waits_for_its_end(
    stage: Stage, places: int
) -> None:
    queue = stage.connect().queue("mail", groups={"places": places})
    put(queue, "a", 3)
    held = queue.receive(3, visibility="20s")
    assert len(held) == places
    queue.pause(group="a")
    stage.clock.advance(6)
    assert queue.receive(3) == []
    queue.retry(held[0], "1s")
    stage.clock.advance(30)
    assert queue.receive(3) == []
    stage.clock.advance(30)
    assert queue.receive(3, wait="1s") == []
    queue.resume(group="a")
    stage.clock.advance(6)
    assert len(queue.receive(3, wait="1s")) == places


def test_what_is_retried_waits_until_enough_have_ended_by_fewer_places(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 3})
    put(queue, "a", 3)
    consumer, seen, ended = holding(stage, queue, threads=3)
    stage.drive(consumer, seconds=1)
    assert len(ended) == 3
    queue.alter(groups={})
    stage.drive(consumer, seconds=6)
    ended[0].end(Retry("1s"))
    stage.drive(consumer, seconds=20)
    assert len(seen.texts) == 3
    for one in ended[1:]:
        one.end(None)
    stage.drive(consumer, seconds=20)
    assert len(seen.texts) == 4
    ended[3].end(None)
    stage.drive(consumer, seconds=1)


def test_what_is_not_paused_cannot_be_resumed(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.pause(group="a*")
    with pytest.raises(BadSetting, match=r"'b' is not paused; paused groups: a\*"):
        queue.resume(group="b")


@pytest.mark.parametrize("places", [1, 5])
@pytest.mark.parametrize("after", ["30s", 30, "30"])
def test_a_limited_group_waits_as_a_whole_and_no_attempt_is_used(
    stage: Stage, after: str | int, places: int
) -> None:
    queue = stage.connect().queue("mail", groups={"places": places})
    put(queue, "a", 40)
    put(queue, "b", 5)

    def refuse(message: Message) -> None:
        if message.text == "a9" and seen.texts.count("a9") == 1:
            raise Limited(after, "429 Too Many Requests")

    seen = Recorder(stage.clock, refuse)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=20)
    assert Counter(text[0] for text in seen.texts)["b"] == 5
    assert 10 <= Counter(text[0] for text in seen.texts)["a"] < 10 + places
    begun_us = seen.at_us[seen.texts.index("a9")]
    stage.drain(queue, consumer)
    later = [at_us for at_us in seen.at_us if at_us > begun_us + 1_000_000]
    assert min(later) >= begun_us + 30_000_000
    assert [message.attempt for message in seen.messages if message.text == "a9"] == [1, 1]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("limits", [{"places": 3}, {"places": 3, "rate": "10/s", "burst": 3}, {}])
def test_a_caller_holds_the_group_of_a_delivery_back_as_a_handler_does(
    stage: Stage, limits: dict[str, object], *, elsewhere: bool
) -> None:
    queue = stage.connect().queue("mail", groups=limits)
    put(queue, "a", 10)
    put(queue, "b", 1)
    held = [one for _ in range(5) for one in queue.receive(10, "1h", wait="1s")]
    first = next(message for message in held if message.group == "a")
    (stage.connect().queue("mail") if elsewhere else queue).snooze(first, "60s", limited=True)
    # The owner reads the note of another process.
    assert queue.receive(10, wait="2s") == []
    for message in held:
        if message is not first:
            queue.ack(message)
    put(queue, "b", 1, first=1)
    begun_us = stage.clock.boot_us()
    assert [message.text for message in queue.receive(10, "1h", wait="20s")] == ["b1"]
    assert queue.receive(10, wait="30s") == []
    found = queue.receive(10, wait="60s")
    assert {message.group for message in found} == {"a"}
    assert stage.clock.boot_us() >= begun_us + 50_000_000
    assert {message.attempt for message in found} == {1}


def test_a_new_owner_of_a_lane_keeps_a_limited_group_waiting(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 3})
    put(queue, "a", 10)

    def refuse(message: Message) -> None:
        raise Limited("10m")

    stage.drive(Consumer(queue, Recorder(stage.clock, refuse)), seconds=2)
    stage.clock.advance(60)
    seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(other, seconds=500)
    assert len(seen.texts) == 0
    stage.drain(queue, other)
    assert len(seen.texts) == 10


GROUPS: list[dict[str, object]] = [
    {},
    {"rate": "10/s"},
    {"places": 3},
    {"places": 3, "rate": "10/s", "burst": 3},
    {"places": 3, "rate": "6/min", "burst": 3, "tier": 2},
]
"""Limits of groups: one place and several, without a rate, with a fast and with a slow one."""


def limited(stage: Stage, queue: Queue, **times: str) -> tuple[Consumer, Recorder]:
    """Return a consumer whose first deliveries of some texts are limited, and what it records."""

    def refuse(message: Message) -> None:
        if (after := times.pop(message.text, None)) is not None:
            raise Limited(after)

    seen = Recorder(stage.clock, refuse)
    return Consumer(queue, seen), seen


@pytest.mark.parametrize(
    ("by", "owner"),
    [
        ("move", "elsewhere"),
        ("key", "here"),
        ("cancel", "elsewhere"),
        ("cancel", "later"),
        ("resume", "here"),
        ("resume", "later"),
    ],
)
@pytest.mark.parametrize("limits", GROUPS)
def test_a_limited_group_is_delivered_again_at_once_when_its_limit_is_ended(
    stage: Stage, limits: dict[str, object], owner: str, by: str
) -> None:
    queue = stage.connect().queue("mail", groups=limits)
    first = queue.put("a0", group="a", key="first" if by == "key" else None)
    put(queue, "a", 9, first=1)
    consumer, seen = limited(stage, queue, a0="1d")
    stage.drive(consumer, seconds=5)
    if owner == "later":
        consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=30)
    assert seen.texts == ["a0"]
    other = queue if owner == "here" else stage.connect().queue("mail")
    if by == "move":
        other.move(ids=[first.id], delay="0s")
    elif by == "key":
        other.move("first", delay="0s")
    elif by == "cancel":
        other.cancel(ids=[first.id])
    else:
        other.resume(group="a")
    stage.drive(consumer, seconds=1)
    assert len(seen) > 1
    stage.drain(queue, consumer)
    rest = [f"a{n}" for n in range(by == "cancel", 10)]
    assert sorted(seen.texts) == sorted(["a0", *rest])
    assert {message.attempt for message in seen.messages} == {1}
    if by in ("move", "resume") and limits.get("places", 1) == 1:
        assert seen.texts == ["a0", *rest]


@pytest.mark.parametrize("limits", GROUPS[2:])
@pytest.mark.parametrize("ended", ["shorter", "longer"])
def test_the_end_of_one_limit_ends_no_other_of_its_group(
    stage: Stage, limits: dict[str, object], ended: str
) -> None:
    queue = stage.connect().queue("mail", groups=limits)
    put(queue, "a", 10)
    shorter, longer, third = (queue.receive(1, "1h", wait="10s")[0] for _ in range(3))
    queue.snooze(longer, "1d", limited=True)
    queue.snooze(shorter, "5m", limited=True)
    queue.ack(third)
    assert queue.receive(10, wait="1m") == []
    queue.cancel(ids=[shorter.id if ended == "shorter" else longer.id])
    assert queue.receive(10, wait="3m") == []
    if ended == "shorter":
        assert queue.receive(10, wait="10m") == []
        queue.move(ids=[longer.id], delay="0s")
    assert queue.receive(10, wait="2m") != []


@pytest.mark.parametrize("limits", GROUPS)
def test_a_purge_ends_the_limit_of_a_group(stage: Stage, limits: dict[str, object]) -> None:
    queue = stage.connect().queue("mail", groups=limits)
    put(queue, "a", 10)
    consumer, seen = limited(stage, queue, a0="1d")
    stage.drive(consumer, seconds=60)
    queue.purge()
    put(queue, "a", 1, first=10)
    stage.drive(consumer, seconds=7)
    assert seen.texts == ["a0", "a10"]


@on_each_store
@pytest.mark.parametrize("limits", GROUPS[:4])
def test_callers_get_messages_of_a_limited_group_again_once_its_limit_is_ended(
    world: World, limits: dict[str, object]
) -> None:
    name = world.queue_name()
    queue = world.connect().queue(name, groups=limits)
    put(queue, "a", 10)
    first, *others = queue.receive(3, wait="10s")
    queue.snooze(first, "1d", limited=True)
    queue.ack(*others)
    assert queue.receive(10, wait="3s") == []
    other = world.connect().queue(name)
    other.resume(group="a")
    [first] = queue.receive(1, wait="5s")
    queue.snooze(first, "1d", limited=True)
    assert queue.receive(10, wait="3s") == []
    other.cancel(ids=[first.id])
    assert queue.receive(10, wait="5s") != []


def test_only_a_group_that_is_held_back_is_resumed_and_by_its_name_alone(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 3})
    put(queue, "a1", 4)
    put(queue, "b", 4)
    consumer, seen = limited(stage, queue, a10="1d", b0="1d")
    stage.drive(consumer, seconds=5)
    for name in ("a*", "a", "c", ""):
        with pytest.raises(BadSetting):
            queue.resume(group=name)
    queue.pause(group="b")
    queue.resume(group="b")
    stage.drive(consumer, seconds=10)
    assert seen.texts == ["a10", "b0"]
    queue.resume(group="b")
    stage.drive(consumer, seconds=2)
    assert Counter(text[0] for text in seen.texts) == {"a": 1, "b": 5}
    for name in ("b", "a1*"):
        with pytest.raises(BadSetting, match="is not paused"):
            queue.resume(group=name)


def test_limits_change_while_callers_of_a_former_owner_hold_messages_of_a_group(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", groups={"places": 4})
    put(queue, "a", 5)
    first = queue.receive(3, visibility="1h")
    assert [message.text for message in first] == ["a0", "a1", "a2"]
    queue.close()
    other = stage.connect().queue("mail")
    consumer, seen, held = holding(stage, other)
    stage.drive(consumer, seconds=2)
    # The handler has one of four places, the callers have the others, then wait behind it.
    for places in (2, 1, 3):
        other.limit("*", places=places)
        stage.drive(consumer, seconds=8)
        assert seen.texts == ["a3"]
    held[0].end(None)
    stage.drive(consumer, seconds=2)
    assert seen.texts == ["a3"]
    other.ack(first[0])
    stage.drive(consumer, seconds=2)
    assert seen.texts == ["a3", "a4"]


# Changed by rules ---------------------------------------------------------------------------------


def test_a_rule_is_set_replaced_and_removed(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2})
    queue.limit("vip-*", places=5, tier=3)
    queue.limit("vip-*", places=6)
    queue.limit("*", rate="5/s")
    assert json.loads(queue.settings.group_limits) == {"rate": "5/s", "vip-*": {"places": 6}}
    queue.limit("vip-*")
    queue.limit("*")
    assert queue.settings.group_limits == ""


def test_show_names_the_limit_for_which_a_message_waits(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"places": 2, "rate": "10/m"})
    put(queue, "a", 10)
    queue.receive(10)
    last = queue.peek(20)[-1]
    told = str(queue.state_of(last))
    assert "waits for the limit of its group, 2 places, 10/m, behind 9 of its group" in told
    queue.pause(group="a")
    assert "groups 'a' of its queue are paused" in str(queue.state_of(last))


# Limits of a queue --------------------------------------------------------------------------------


@pytest.mark.parametrize("burst", [1, 6])
def test_a_queue_begins_no_more_than_its_rate_and_burst_over_all_its_consumers(
    stage: Stage, burst: int
) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "10/s", "burst": burst})
    put(queue, "a", 200)
    queue.put_many({"body": f"{number}"} for number in range(400))
    seen = Recorder(stage.clock)
    consumers = [Consumer(stage.connect().queue("mail"), seen) for _ in range(3)]
    stage.drive(*consumers, seconds=30)
    for span_us in (100_000, 1_000_000, 10_000_000):
        assert most_within(seen.at_us, span_us) <= span_us / 100_000 + burst
    assert len(seen.at_us) >= 0.9 * 10 * 28


@pytest.mark.parametrize(
    "limits",
    [{"rate": ["1/s", "30/m"], "burst": 3}, {"tasks": {"mail": {"rate": "1/s", "burst": 3}}}],
    ids=["queue", "task"],
)
def test_after_a_rest_the_burst_of_a_queue_or_task_begins_at_once(
    stage: Stage, limits: dict[str, Any]
) -> None:
    queue = stage.connect().queue("mail", limits=limits)
    seen = Recorder(stage.clock)
    consumers = [Consumer(stage.connect().queue("mail"), seen) for _ in range(2)]
    for round_ in range(1, 4):
        queue.put_many({"body": "", "headers": {"task": "mail"}} for _ in range(8))
        stage.drive(*consumers, seconds=0.5)
        assert len(seen.at_us) == 8 * (round_ - 1) + 3
        stage.drive(*consumers, seconds=60)
        assert len(seen.at_us) == 8 * round_
    assert most_within(seen.at_us, 1_000_000) <= 4


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_begins_no_more_than_its_rate_through_rests_kills_and_pauses(
    stage: Stage, seed: int
) -> None:
    chance = random.Random(seed)
    queue = stage.connect().queue("mail", limits={"rate": "12/m", "burst": 3})
    seen = Recorder(stage.clock)
    consumers: list[Consumer] = []
    for _ in range(40):
        queue.put_many({"body": ""} for _ in range(chance.choice((0, 1, 5))))
        if len(consumers) < 3:
            consumers.append(Consumer(stage.connect().queue("mail"), seen))
        # A consumer that is not driven stands still; one that is never driven again was killed.
        driven = chance.sample(consumers, chance.randint(1, len(consumers)))
        stage.drive(*driven, seconds=chance.choice((0.3, 1, 3, 8)))
        if chance.random() < 0.3:
            consumers.remove(chance.choice(consumers))
        elif chance.random() < 0.4:
            stage.clock.advance(chance.choice((1, 4, 7, 30)))
    for seconds in (1, 5, 15, 60, 200):
        assert most_within(seen.at_us, 1_000_000 * seconds) <= seconds / 5 + 3
    assert len(seen.at_us) > 10


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stood still"])
def test_a_share_that_was_not_given_back_counts_as_used_up_at_its_end(
    stage: Stage, *, is_killed: bool
) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "6/m", "burst": 3})
    queue.put_many({"body": f"{number}"} for number in range(9))
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=0.5)
    assert len(seen.texts) == 3
    stage.clock.advance(12)
    if is_killed:
        consumer = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(consumer, seconds=1)
    assert len(seen.texts) == (3 if is_killed else 4)
    stage.drive(consumer, seconds=60)
    assert len(seen.texts) == 9


def test_the_limit_of_a_queue_is_set_and_removed_while_it_runs(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "1/m"})
    queue.put_many({"body": f"{number}"} for number in range(100))
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=10)
    assert len(seen.texts) == 1
    queue.alter(limits="off")
    stage.drain(queue, consumer)
    assert len(seen.texts) == 100


def test_damaged_shares_are_taken_anew_when_the_former_ones_have_ended(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "10/s"})
    queue.put_many({"body": f"{number}"} for number in range(300))
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=5)
    key = queue._home.register.totals_key
    store = queue._home.store
    present = store.records(LIMITS, (key,), ["rate"])["rate"]
    change = Change((key,), ("rate",), {"shares": present}, {"shares": "nonsense"})
    assert not store.write_records(LIMITS, [change])
    stage.drive(consumer, seconds=20)
    assert most_within(seen.at_us, 1_000_000) <= 11
    assert len(seen.at_us) >= 100


@pytest.mark.parametrize("given", [{"running": 0}, {"rate": "0/s"}, {"burst": 2}, {"pace": 1}, 7])
def test_a_limit_of_a_queue_that_makes_no_sense_is_refused(stage: Stage, given: object) -> None:
    with pytest.raises(BadSetting):
        stage.connect().queue("mail", limits=given)  # type: ignore[arg-type]


def test_a_busy_member_leaves_a_part_to_one_that_comes_and_the_sum_stays(stage: Stage) -> None:
    shares = [_shares(stage, name) for name in "ab"]
    first, second = shares
    used = {first: 0, second: 0}
    for _ in range(12):
        for one in shares if used[first] else [first]:
            one.take(10, used=partial(used.__getitem__, one), wants=20, turn_ms=3_000)
            # A busy member begins another delivery whenever one ends.
            used[one] = max(used[one] - 1, one.granted.units)
            assert used[first] + used[second] <= 10
        stage.clock.advance(1)
    assert (used[first], used[second]) == (5, 5)


def test_what_runs_by_a_higher_limit_is_counted_until_it_ends(stage: Stage) -> None:
    first, second = (_shares(stage, name) for name in "ab")
    for _ in range(8):
        for one in (first, second):
            one.take(10, used=partial(getattr, one.granted, "units"), wants=10, turn_ms=3_000)
        stage.clock.advance(1)
    assert (first.granted.units, second.granted.units) == (5, 5)
    for _ in range(20):
        first.take(4, used=lambda: 5, wants=10, turn_ms=3_000)
        second.take(4, used=lambda: 0, wants=10, turn_ms=3_000)
        assert second.granted.units == 0
        stage.clock.advance(1)


def test_no_share_is_taken_twice_when_the_clock_is_set_between_two_steps() -> None:
    with Stage(local=True) as stage:
        first, second = (_shares(stage, name) for name in "ab")
        first.take(1, used=lambda: 1, wants=1, turn_ms=3_000)
        assert first.granted.units == 1
        stage.clock.set(3_600)
        second.take(1, used=lambda: 0, wants=1, turn_ms=3_000)
        assert second.granted.units == 0
        stage.clock.advance(7)
        second.take(1, used=lambda: 0, wants=1, turn_ms=3_000)
        assert second.granted.units == 1


def test_while_a_queue_waits_for_its_rate_no_thread_looks_for_rows_all_the_time(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "1/h"})
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=3)
    queue.put("plain", delay="1s")
    stage.drive(consumer, seconds=0.8)
    ready = consumer._engine.ready
    assert len(ready) == 1
    stage.clock.advance(1)
    assert ready.take() is None
    assert ready.seconds_to_next() > 1


def test_a_limit_is_divided_equally_and_nobody_gets_more_than_it_wants() -> None:
    assert divided(20, {"a": 3, "b": 30, "c": 30}, 0) == {"a": 3, "b": 9, "c": 8}
    turns = [divided(1, {"a": 1, "b": 1, "c": 1}, turn) for turn in range(60)]
    assert all(sum(turn.values()) == 1 for turn in turns)
    assert min(sum(turn[name] for turn in turns) for name in "abc") >= 10


# Budgets ------------------------------------------------------------------------------------------


def test_a_burst_is_spread_over_its_tolerance_by_the_budget_of_its_queue(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"budget": "60/m"})
    other = stage.connect().queue("mail")
    due = moment_of(stage.clock.now_ms() + 3_600_000 - stage.clock.now_ms() % 60_000)
    items = ({"body": f"{n}", "due": due, "spread": "10m"} for n in range(150))
    queue.put_many(items)
    for number in range(150):
        other.put(f"other {number}", due=due, spread="10m")
    first_ms = due_ms(due)
    dues_ms = sorted(message._row.due_ms - first_ms for message in queue.peek(500))
    assert len(dues_ms) == 300
    assert min(dues_ms) == 0
    assert max(dues_ms) < 420_000
    minutes = Counter(at_ms // 60_000 for at_ms in dues_ms)
    assert max(minutes.values()) <= 60
    assert most_within([1_000 * at_ms for at_ms in dues_ms], 2_000_000) <= 6


def test_a_budget_whose_time_is_changed_takes_no_slots_of_the_former_one(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"budget": "5/h"})
    now_ms = stage.clock.now_ms()
    hour_ms = now_ms - now_ms % 3_600_000 + 3_600_000
    queue.put_many({"body": "", "due": moment_of(hour_ms), "spread": "30m"} for _ in range(5))
    queue.alter(limits={"budget": "5/2h"})
    # The stretch of two hours has the number that a stretch of one hour had.
    message = queue.put("", due=moment_of(2 * hour_ms), spread="30m")
    assert message._row.due_ms == 2 * hour_ms


def test_what_finds_no_room_in_its_tolerance_is_due_at_its_end(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"budget": "10/m"})
    due = moment_of(stage.clock.now_ms() + 600_000 - stage.clock.now_ms() % 60_000)
    queue.put_many({"body": f"{n}", "due": due, "spread": "90s"} for n in range(40))
    late_ms = Counter(message._row.due_ms - due_ms(due) for message in queue.peek(100))
    assert late_ms[90_000] >= 20
    assert max(late_ms) == 90_000


@on_each_store
def test_a_budget_holds_for_dues_of_a_far_year(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), limits={"budget": "10/m"})
    items = ({"body": "x", "due": "2099-01-01T09:00:00Z", "spread": "2m"} for _ in range(25))
    queue.put_many(items)
    minutes = Counter(f"{message.due:%Y %H:%M}" for message in queue.peek(30))
    assert minutes == {"2099 09:00": 10, "2099 09:01": 10, "2099 09:02": 5}


@on_each_store
def test_producers_that_put_at_once_share_one_budget(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), limits={"budget": "10/m"})
    producers = [world.connect().queue(queue.name) for _ in range(4)]
    together = threading.Barrier(len(producers))

    def put(producer: Queue) -> None:
        for hour in range(10):
            together.wait(30)
            due = f"2099-01-01T{hour:02}:00:00Z"
            producer.put_many({"body": "x", "due": due, "spread": "10m"} for _ in range(10))

    with ThreadPoolExecutor(len(producers)) as pool:
        assert not any(pool.map(put, producers))
    minutes = Counter(f"{message.due:%H:%M}" for message in queue.peek(500))
    assert minutes.total() == 400
    assert max(minutes.values()) == 10


def test_without_a_budget_a_spread_is_at_random(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    due = moment_of(stage.clock.now_ms() + 600_000)
    queue.put_many({"body": f"{n}", "due": due, "spread": "100s"} for n in range(200))
    late_ms = [message._row.due_ms - due_ms(due) for message in queue.peek(300)]
    assert 0 <= min(late_ms) < 20_000
    assert 80_000 < max(late_ms) <= 100_000
