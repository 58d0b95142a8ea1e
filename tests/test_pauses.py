"""Pauses of tasks and of keys, through the face."""

from __future__ import annotations

import json

import pytest
from worlds import World, on_each_store

from shardq import Consumer, Queue, Where
from shardq.errors import BadSetting, UsageError
from shardq.model.message import TASK_HEADER
from shardq.tasks import App, Worker
from shardq.testing import Recorder, Stage


def put(queue: Queue, task: str, count: int, **options: object) -> None:
    queue.put_many(
        {"body": f"{task} {n}", "headers": {TASK_HEADER: task}, **options} for n in range(count)
    )


@on_each_store
def test_what_is_paused_waits_and_all_else_is_delivered(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.pause(task="shop.*")
    queue.pause(key="order-*")
    put(queue, "shop.mail", 3)
    put(queue, "mail", 2)
    queue.put("keyed", key="order-7")
    queue.put("other", key="bill-7")
    other = world.connect().queue(queue.name)
    got = other.receive(10, wait="1s") + other.receive(10)
    assert sorted(message.text for message in got) == ["mail 0", "mail 1", "other"]
    queue.resume(task="shop.*")
    queue.resume(key="order-*")
    world.pass_time(6)
    got = other.receive(10, wait="20s") + other.receive(10)
    expected = ["keyed", "shop.mail 0", "shop.mail 1", "shop.mail 2"]
    assert sorted(message.text for message in got) == expected
    assert {message.attempt for message in got} == {1}


def test_a_backlog_of_a_pause_neither_fills_the_memory_nor_delays_others(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.pause(task="slow")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "slow", 5_000)
    for minute in range(15):
        put(queue, f"quick{minute}", 5)
        stage.drive(consumer, seconds=60, stride=1)
    assert len(seen.texts) == 15 * 5
    assert len(consumer._engine.memory.known) < 200
    queue.resume(task="slow")
    stage.drive(consumer, seconds=610, stride=1)
    slow = [text for text in seen.texts if text.startswith("slow")]
    assert len({*slow}) == len(slow) == 5_000
    assert {message.attempt for message in seen.messages} == {1}
    assert queue.totals().snoozed == 0


@pytest.mark.parametrize(("minutes", "within"), [(5, 6), (30, 601)])
def test_a_few_that_waited_for_less_than_ten_minutes_are_delivered_at_once(
    stage: Stage, minutes: int, within: float
) -> None:
    queue = stage.connect().queue("mail", keyed=True)
    queue.pause(key="order-*")
    for number in range(50):
        queue.put(f"{number}", key=f"order-{number}")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=60 * minutes, stride=1)
    assert queue.cancel(key="order-0")
    assert not seen.texts
    queue.resume(key="order-*")
    stage.drive(consumer, seconds=within, stride=1)
    assert sorted(map(int, seen.texts)) == list(range(1, 50))


@pytest.mark.parametrize("places", [1, 2])
def test_a_group_is_delivered_once_its_paused_message_is_cancelled(
    stage: Stage, places: int
) -> None:
    queue = stage.connect().queue("mail", groups={"places": places})
    queue.pause(key="order-7")
    queue.put("paused", key="order-7", group="a")
    queue.put("next", group="a")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=5)
    assert seen.texts == []
    assert queue.cancel(key="order-7")
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["next"]


def test_messages_of_a_pause_stay_in_memory_whatever_many_groups_wait_for_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail")
    queue.pause(task="slow")
    headers = {TASK_HEADER: "slow"}
    queue.put_many({"body": f"{n}", "group": f"g{n}", "headers": headers} for n in range(150))
    put(queue, "slow", 50)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=30)
    assert not seen.texts
    queue.resume(task="slow")
    stage.drive(consumer, seconds=6)
    assert len(seen.texts) == 150 + 50


def test_minutes_are_sealed_while_messages_of_a_pause_wait(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.pause(task="slow")
    consumer = Consumer(queue, Recorder(stage.clock))
    put(queue, "slow", 3)
    stage.drive(consumer, seconds=2 * 3_600, stride=1)
    lanes = consumer._engine.memory.lanes.values()
    layout = queue._home.register.layout
    sealed = min(lane.sealed for lane in lanes if not lane.of_groups)
    assert layout.minute_of(stage.clock.now_ms()) - sealed < 20


def test_a_group_waits_behind_its_message_that_is_paused(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("first", group="a", key="order-7")
    queue.put("second", group="a")
    queue.put("other", group="b")
    queue.pause(key="order-7")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1_300, stride=1)
    assert seen.texts == ["other"]
    queue.resume(key="order-7")
    stage.drive(consumer, seconds=6)
    assert seen.texts == ["other", "first", "second"]


def test_a_message_waits_no_longer_for_a_pause_that_ended_while_its_group_was_paused(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", groups={"rate": "10/s"})
    queue.pause(key="order-7")
    queue.put("first", group="a", key="order-7")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=6)
    queue.pause(group="a")
    stage.drive(consumer, seconds=6)
    queue.resume(key="order-7")
    stage.drive(consumer, seconds=6)
    assert not seen.texts
    queue.resume(group="a")
    stage.drive(consumer, seconds=6)
    assert seen.texts == ["first"]


def test_a_task_with_limits_is_paused_while_its_jobs_run_and_keeps_its_limits(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", limits={"tasks": {"slow": {"rate": "10/s"}}})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "slow", 60)
    stage.drive(consumer, seconds=3)
    queue.pause(task="slow")
    stage.drive(consumer, seconds=6)
    begun = len(seen.texts)
    assert 20 <= begun < 60
    stage.drive(consumer, seconds=60)
    assert len(seen.texts) == begun
    queue.resume(task="slow")
    stage.drive(consumer, seconds=1.5)
    assert begun < len(seen.texts) <= begun + 16
    stage.drain(queue, consumer)
    assert json.loads(queue.settings.queue_limit) == {"tasks": {"slow": {"rate": "10/s"}}}


def test_a_worker_of_a_task_that_is_paused_leaves_the_pause_as_it_is(stage: Stage) -> None:
    app, ran = App(stage.connect()), list[int]()

    @app.task(name="shop.charge", queue="shop", rate="10/s")
    def charge(order: int) -> None:
        ran.append(order)

    queue = app.queue("shop")
    queue.pause(task="shop.charge")
    charge.put(7)
    worker = Worker(app)
    until_us = stage.clock.boot_us() + 5_000_000
    while stage.clock.boot_us() < until_us:
        stage.clock.advance(worker.step())
    worker.close()
    assert ran == []
    assert json.loads(queue.settings.queue_limit) == {
        "tasks": {"shop.charge": {"rate": "10/s"}},
        "paused": {"tasks": ["shop.charge"]},
    }


def test_pauses_are_part_of_the_limits_and_are_changed_by_name(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"running": 9, "paused": {"keys": ["b", "a*"]}})
    queue.pause(task="shop.*")
    queue.pause(task="shop.*")
    queue.resume(key="b")
    paused = {"tasks": ["shop.*"], "keys": ["a*"]}
    assert json.loads(queue.settings.queue_limit) == {"running": 9, "paused": paused}
    with pytest.raises(BadSetting, match=r"'b' is not paused; paused keys: a\*"):
        queue.resume(key="b")
    with pytest.raises(BadSetting, match=r"'a' is not paused; paused tasks: shop\.\*"):
        queue.resume(task="a")
    with pytest.raises(BadSetting, match="must be the name of a key"):
        queue.pause(key="*-7")
    with pytest.raises(UsageError, match="give group or task or key, one of them"):
        queue.pause("a", task="b")
    queue.resume(task="shop.*")
    queue.resume(key="a*")
    assert json.loads(queue.settings.queue_limit) == {"running": 9}


@pytest.mark.parametrize(
    "given",
    [["a"], {"groups": ["a"]}, {"keys": "a"}, {"keys": [7]}, {"keys": [["a"]]}, {"tasks": ["*a"]},
     {"keys": [f"{n}" for n in range(1_001)]}, {"until": {"a": "2027-01-01T00:00:00Z"}},
     {"tasks": ["a"], "until": ["a"]}, {"tasks": ["a"], "until": {"a": "soon"}},
     {"keys": ["a"], "until": {"a": "2027-01-01T00:00:00Z"}}],
    ids=lambda given: str(given)[:30],
)  # fmt: skip
def test_a_pause_that_makes_no_sense_is_refused(stage: Stage, given: object) -> None:
    queue = stage.connect().queue("mail")
    with pytest.raises(BadSetting):
        queue.alter(limits={"paused": given})
    assert queue.settings.queue_limit == ""


def test_show_names_the_pause_of_a_task_and_of_a_key(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    job = queue.put("x", headers={TASK_HEADER: "shop.mail"})
    keyed = queue.put("x", key="order-7", group="a")
    behind = queue.put("x", group="a")
    queue.pause(task="shop.*")
    queue.pause(key="order-7")
    stage.drive(Consumer(queue, Recorder(stage.clock)), seconds=1_200, stride=1)
    state = queue.state_of(job.id)
    assert state is not None
    assert (state.where, state.limit, state.limit_of) == (Where.PAUSED, "shop.*", "task")
    assert "20m ago; tasks 'shop.*' of its queue are paused" in str(state)
    assert "keys 'order-7' of its queue are paused" in str(queue.state_of(keyed.id))
    told = str(queue.state_of(behind.id))
    assert "waits behind" in told
    assert "keys 'order-7' of its queue are paused" in told
