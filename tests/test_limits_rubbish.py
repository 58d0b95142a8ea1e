"""Limits that make no sense, are damaged, or change under messages: one clear outcome each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from worlds import on_each_store

from shardq import Consumer, Message
from shardq.errors import BadSetting
from shardq.records.shares import Shares
from shardq.stores.tables import LIMITS, Change
from shardq.testing import ManualClock, Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worlds import World

    from shardq import Queue

NONSENSE = [
    "0/s", "-1/s", "10/0s", "10/-1s", "nan/s", "NaN", "inf/s", "1e3/s", "1.5/s", "10", "/s", "10/",
    "9999999/s", "1/400d", "1/99999999999999999999d", "10/s/s", "10/fortnight", "", " ",
    0, -1, 10, 1.5, float("nan"), float("inf"), None, True, b"10/s", {}, [], ["10/s"] * 2,
    ["10/s", "0/s"], ["1/s", "60/m"], ["1/s", "2/s"], ["1/s", "1/m", "1/h", "1/d", "1/2d"],
]  # fmt: skip
SHARES = [
    "", "nonsense", "[]", "7", '{"a": 1}', '{"a": [1]}', '{"a": [-1, 0, 0]}', "[" * 10_000,
    '{"a": [1.5, 1e400, "x"]}', '{"a": [1, 99999999999999999999, 1]}',
]  # fmt: skip


def most_within(times_us: Sequence[int], span_us: int) -> int:
    return max(sum(at <= other < at + span_us for other in times_us) for at in times_us)


def put(queue: Queue, group: str | None, count: int) -> None:
    named = {} if group is None else {"group": group}
    queue.put_many({"body": f"{group}{number}", **named} for number in range(count))


@on_each_store
def test_a_rate_that_makes_no_sense_is_refused_by_group_queue_and_task(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), groups={"rate": "5/s"})
    rates: list[Any] = NONSENSE
    for rate in rates:
        with pytest.raises(BadSetting):
            queue.limit("vip", rate=rate)
        with pytest.raises(BadSetting):
            queue.limit(task="shop.*", rate=rate)
        with pytest.raises(BadSetting):
            queue.alter(limits={"rate": rate})
    for wrong in (0, -1, 1.0, float("nan"), "2", None, True, 10**30):
        with pytest.raises(BadSetting):
            queue.limit("vip", places=wrong)  # type: ignore[arg-type]
    assert queue.settings.group_limits == '{"rate":"5/s"}'
    assert not queue.settings.queue_limit


def test_a_group_of_one_place_and_a_burst_begins_that_many_one_after_the_other(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", groups={"places": 1, "rate": "1/s", "burst": 5})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "a", 1)
    stage.drive(consumer, seconds=20)
    put(queue, "a", 20)
    stage.drive(consumer, seconds=3.5)
    assert 6 <= len(seen.texts) <= 1 + 5 + 4
    assert len(queue.receive(10)) <= 1


def test_a_group_with_a_rate_that_was_paused_begins_no_more_than_its_burst(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "1/s", "burst": 3, "places": 10})
    put(queue, "a", 30)
    queue.pause(group="a")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=600)
    assert not seen.texts
    queue.resume(group="a")
    stage.drive(consumer, seconds=15)
    assert most_within(seen.at_us, 5_000_000) <= 5 + 3
    assert len(seen.texts) >= 10


def test_a_message_that_gets_another_group_counts_for_that_one_alone(stage: Stage) -> None:
    queue = stage.connect().queue("mail", groups={"slow": {"rate": "1/h"}})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    queue.put("first", group="slow")
    stage.drive(consumer, seconds=1)
    for number in range(3):
        queue.put(f"{number}", key=f"{number}", group="slow")
    stage.drive(consumer, seconds=10)
    for number in range(2):
        queue.put(f"{number} anew", key=f"{number}", group="quick", on_conflict="replace")
    stage.drive(consumer, seconds=10)
    assert seen.texts == ["first", "0 anew", "1 anew"]
    queue.put("3", key="3", group="quick", delay="20s")
    queue.put("3 anew", key="3", group="slow", on_conflict="replace")
    stage.drive(consumer, seconds=60)
    assert len(seen.texts) == 3
    stage.drive(consumer, seconds=2 * 3_600, until=lambda: len(seen.texts) == 5)
    assert sorted(seen.texts[3:]) == ["2", "3 anew"]


@pytest.mark.parametrize("by", [3_600, -3_600])
@pytest.mark.parametrize(
    "limits",
    [
        {"groups": {"rate": "2/s", "burst": 2, "places": 4}},
        {"limits": {"rate": "2/s", "burst": 2}},
        {"groups": {"places": 2}},
        {"limits": {"running": 2}},
    ],
    ids=str,
)
def test_a_clock_that_is_set_by_an_hour_lets_no_more_begin_and_loses_nothing(
    limits: dict[str, dict[str, object]], by: int
) -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", **limits)  # type: ignore[arg-type]
        put(queue, "a", 60)
        begun_us: list[int] = []
        done: Counter[str] = Counter()

        def note(message: Message) -> None:
            begun_us.append(stage.clock.boot_us())
            done[message.text] += 1

        consumer = Consumer(queue, note, threads=4)
        stage.drive(consumer, seconds=8)
        stage.clock.set(by)
        stage.drive(consumer, seconds=8)
        stage.clock.set(-by)
        stage.drive(consumer, seconds=120, until=lambda: stage.is_empty(queue))
        assert len(done) == 60
        if "rate" in next(iter(limits.values())):
            assert most_within(begun_us, 10_000_000) <= 20 + 2


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "elsewhere"])
def test_a_member_takes_no_token_of_a_slow_rate_twice_when_the_clock_is_set_forward(
    *, is_local: bool
) -> None:
    with Stage(local=is_local) as stage:
        queue = stage.connect().queue("mail", groups={"rate": "1/m"})
        put(queue, "a", 20)
        begun_us: list[int] = []
        first = Consumer(queue, lambda _: begun_us.append(stage.clock.boot_us()))
        other = Consumer(
            stage.connect().queue("mail"), lambda _: begun_us.append(stage.clock.boot_us())
        )
        stage.drive(other, seconds=10)
        stage.drive(first, other, seconds=10)
        for by in (600, 7_200):
            stage.clock.set(by)
            stage.drive(first, other, seconds=10)
        other.close()
        stage.drive(first, seconds=130)
        assert 3 <= len(begun_us) <= 4
        assert most_within(begun_us, 60_000_000) == 1


def test_a_receiver_after_rest_takes_no_token_twice_when_the_clock_was_set_forward() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", groups={"rate": "1/h"})
        put(queue, "a", 5)
        queue.ack(*queue.receive(wait="1s"))
        stage.clock.set(1_800)
        for seconds in (2_700, 880):
            assert queue.receive(wait="1s") == []
            queue.close()
            stage.clock.advance(seconds)
        assert len(queue.receive(wait="90s")) == 1


def test_a_group_waits_for_a_full_bucket_at_most_after_the_clock_was_set_forward() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", groups={"rate": "6/m"})
        put(queue, "a", 20)
        seen = Recorder(stage.clock)
        consumer = Consumer(queue, seen)
        stage.clock.set(7_200)
        stage.drive(consumer, seconds=25)
        count = len(seen.texts)
        assert count
        stage.faults.fail("write_records limits", applied=True)
        stage.drive(consumer, seconds=100)
        assert len(seen.texts) > count


def test_after_a_rest_the_burst_is_there_though_the_clock_was_set_once() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", limits={"rate": "3/h", "burst": 3})
        stage.clock.set(600)
        assert queue.receive(wait="1s") == []
        queue.close()
        stage.clock.advance(86_400)
        put(queue, None, 5)
        assert len(queue.receive(5, wait="5s")) == 3


def test_a_share_is_in_use_though_its_member_finds_later_that_the_nodes_were_set_forward(
    stage: Stage,
) -> None:
    behind = stage.connect(shift=-60, corrected=False).queue("mail")._home
    here = stage.connect(shift=-60, corrected=False).queue("mail")._home
    late, mine = (
        Shares(one.store, one.clock, one.register, "running", member=name)
        for one, name in ((behind, "a"), (here, "b"))
    )
    late.take(1, used=lambda: 1, wants=1, turn_ms=3_000)
    assert isinstance(here.clock, ManualClock)
    here.clock.shift_us = 0
    for _ in range(30):
        late.take(1, used=lambda: 1, wants=1, turn_ms=3_000)
        mine.take(1, used=lambda: 0, wants=1, turn_ms=3_000)
        assert mine.granted.units == 0
        stage.clock.advance(1)
    stage.clock.advance(6)
    for _ in range(8):
        mine.take(1, used=lambda: 0, wants=1, turn_ms=3_000)
        stage.clock.advance(1)
    assert mine.granted.units == 1


def test_what_is_put_after_the_clocks_of_nodes_were_set_back_stays_behind_earlier_ones(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail")
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=1)
    first = queue.put("first", delay="1h")
    stage.clock.set(-600)
    stage.drive(consumer, seconds=70)
    assert queue.put("second", delay="1h").id > first.id


@pytest.mark.parametrize("by", [3_600, -3_600])
def test_members_keep_a_rate_together_when_the_clock_is_set(by: int) -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", limits={"rate": "50/s", "burst": 2})
        at_us: list[int] = []
        consumers = [
            Consumer(stage.connect().queue("mail"), lambda _: at_us.append(stage.clock.boot_us()))
            for _ in range(3)
        ]
        put(queue, None, 300)
        stage.drive(*consumers, seconds=4)
        stage.clock.set(by)
        put(queue, None, 300)
        stage.drive(*consumers, seconds=20)
        for span_us in (200_000, 1_000_000, 5_000_000):
            assert most_within(at_us, span_us) <= span_us / 20_000 + 2
        assert len(at_us) >= 450


def test_a_share_of_a_member_that_died_before_the_clock_was_set_back_is_used_again() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail", limits={"rate": "10/s"})
        put(queue, None, 200)
        seen = Recorder(stage.clock)
        first = Consumer(stage.connect().queue("mail"), seen)
        stage.drive(first, seconds=5)
        count = len(seen.texts)
        assert count
        stage.clock.set(-3_600)
        put(queue, "a", 200)
        other = Consumer(queue, seen)
        stage.drive(other, seconds=60)
        assert len(seen.texts) >= count + 100


@pytest.mark.parametrize("shares", SHARES, ids=lambda text: text[:20])
def test_damaged_shares_let_no_more_begin_and_are_made_anew(stage: Stage, shares: str) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "20/s", "burst": 2})
    put(queue, None, 400)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=2)
    key, store = (queue._home.register.totals_key,), queue._home.store
    present = store.records(LIMITS, key, ["rate"])["rate"]
    damage = Change(key, ("rate",), {"shares": present}, {"shares": shares})
    assert not store.write_records(LIMITS, [damage])
    count = len(seen.texts)
    stage.drive(consumer, seconds=12)
    assert most_within(seen.at_us, 1_000_000) <= 22
    assert len(seen.texts) >= count + 40
