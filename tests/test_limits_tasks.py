"""Limits of tasks over all workers, through the face."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import pytest

import shardq
from shardq import Consumer, Limited, Message
from shardq.errors import BadSetting
from shardq.inspection.state import Where
from shardq.lifecycle.fate import Fate, Outcome
from shardq.model.limits import queue_limit_of
from shardq.model.message import TASK_HEADER
from shardq.model.times import due_ms
from shardq.tasks import App, Worker
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardq import Queue


def put(queue: Queue, task: str, count: int, **options: object) -> None:
    queue.put_many(
        {"body": f"{task}{n}", "headers": {TASK_HEADER: task}, **options} for n in range(count)
    )


def most_within(times_us: Sequence[int], span_us: int) -> int:
    return max(sum(at <= other < at + span_us for other in times_us) for at in times_us)


def of_task(seen: Recorder, task: str) -> list[int]:
    return [at for at, text in zip(seen.at_us, seen.texts, strict=True) if text.startswith(task)]


@pytest.mark.parametrize("groups", [None, {"places": 1}, {"places": 3, "tier": 2}])
def test_a_task_begins_no_more_than_its_rate_and_delays_no_other(
    stage: Stage, groups: dict[str, int] | None
) -> None:
    queue = stage.connect().queue(
        "mail", groups=groups or "off", limits={"tasks": {"slow": {"rate": "10/s", "burst": 2}}}
    )
    grouped = {} if groups is None else {"group": "a"}
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "slow", 200, **grouped)
    put(queue, "quick", 50)
    stage.drive(consumer, seconds=2)
    assert len(of_task(seen, "quick")) == 50
    stage.drive(consumer, seconds=10)
    slow = of_task(seen, "slow")
    assert most_within(slow, 1_000_000) <= 12
    assert len(slow) >= 100


def test_a_flood_of_one_task_neither_fills_the_memory_nor_delays_others(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"tasks": {"slow": {"rate": "10/s"}}})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "slow", 20_000)
    for second in range(30):
        put(queue, f"quick{second}-", 10)
        stage.drive(consumer, seconds=1)
        assert len(of_task(seen, f"quick{second}-")) == 10
    memory = consumer._engine.memory
    assert len(memory.known) < 300
    slow = [text for text in seen.texts if text.startswith("slow")]
    assert slow == [f"slow{n}" for n in range(len(slow))]
    assert 290 <= len(slow) <= 302
    assert queue.totals().snoozed == 0


def test_postponed_jobs_return_at_about_their_turns_and_none_is_lost(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"tasks": {"slow": {"rate": "2/s"}}})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "slow", 3_000)
    stage.drive(consumer, seconds=1_400)
    begun = len(seen.texts)
    assert 0.95 * 2_800 <= begun <= 2_802
    assert most_within(seen.at_us, 10_000_000) <= 21
    stage.drive(consumer, seconds=1_600)
    assert len({*seen.texts}) == len(seen.texts) == 3_000


def test_a_slow_rate_lets_its_minutes_be_sealed_and_every_job_run(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"tasks": {"rare": {"rate": "1/h"}}})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    put(queue, "rare", 3)
    stage.drive(consumer, seconds=3 * 3_600 + 60)
    assert len(seen.texts) == 3
    assert most_within(seen.at_us, 3_599_000_000) == 1


def test_jobs_of_a_task_run_no_more_at_once_than_it_allows_over_all_consumers(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    limits = {"tasks": {"slow": {"running": 3}}}
    lock, running, most, done = threading.Lock(), Counter[str](), Counter[str](), threading.Event()
    seen: list[str] = []
    pause = threading.Event()

    def handle(message: Message) -> None:
        task = message.headers[TASK_HEADER]
        with lock:
            running[task] += 1
            most[task] = max(most[task], running[task])
        pause.wait(0.01)
        with lock:
            running[task] -= 1
            seen.append(message.text)
            if len(seen) == 90:
                done.set()

    with shardq.connect(url) as db, shardq.connect(url) as other:
        queue = db.queue("mail", limits=limits)
        put(queue, "slow", 60)
        put(queue, "quick", 30)
        consumers = [Consumer(one.queue("mail"), handle, threads=4) for one in (db, other)]
        threads = [threading.Thread(target=one.run, daemon=True) for one in consumers]
        for thread in threads:
            thread.start()
        assert done.wait(60)
        for one in consumers:
            one.stop()
        for thread in threads:
            thread.join(60)
    assert most["slow"] <= 3
    assert len({*seen}) == 90


def test_a_backlog_of_short_jobs_runs_as_fast_as_a_task_may_run_them(tmp_path: Path) -> None:
    pause, done = threading.Event(), threading.Event()
    seen: list[str] = []

    def handle(message: Message) -> None:
        pause.wait(0.005)
        seen.append(message.text)
        if len(seen) == 400:
            done.set()

    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        queue = db.queue("mail", limits={"tasks": {"slow": {"running": 2}}})
        put(queue, "slow", 400)
        consumer = Consumer(queue, handle, threads=4)
        thread = threading.Thread(target=consumer.run, daemon=True)
        thread.start()
        is_done = done.wait(40)
        consumer.stop()
        thread.join(60)
    assert is_done
    assert len({*seen}) == 400


def test_limits_of_tasks_are_changed_while_their_jobs_wait(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    queue.limit(task="shop.*", rate="1/s")
    put(queue, "shop.slow", 500)
    put(queue, "shop.slow", 20, group="a")
    stage.drive(consumer, seconds=20)
    before = len(seen.texts)
    assert 15 <= before <= 21
    queue.limit(task="shop.slow", rate="10/s")
    stage.drive(consumer, seconds=5)
    # The jobs that were not moved yet have run; the others return within 10 minutes.
    assert 35 <= len(seen.texts) - before <= 51
    queue.limit(task="shop.slow")
    queue.limit(task="shop.*")
    stage.drive(consumer, seconds=610)
    assert len(seen.texts) == 500 + 20
    assert queue.settings.queue_limit == ""


def test_jobs_that_wait_for_a_share_are_delivered_after_limits_of_groups_change(
    stage: Stage,
) -> None:
    limits = {"tasks": {"slow": {"rate": "1/s"}}}
    queues = [stage.connect().queue("mail", limits=limits) for _ in range(2)]
    seen = Recorder(stage.clock)
    consumers = [Consumer(queue, seen) for queue in queues]
    queues[0].put_many(
        {"body": f"{n}", "headers": {TASK_HEADER: "slow"}, "group": f"g{n}"} for n in range(60)
    )
    for tier in range(2, 8):
        queues[0].limit("vip-*", tier=tier)
        stage.drive(*consumers, seconds=6)
    stage.drive(*consumers, seconds=60)
    assert len(seen.texts) == 60


def test_a_name_comes_before_the_longest_pattern(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"running": 9, "tasks": {"a.*": {"running": 1}}})
    queue.limit(task="a.b*", running=2)
    queue.limit(task="a.bc", rate="1/s", burst=2)
    limit = queue_limit_of(queue.settings.queue_limit)
    found = [str(limit.of_task(task)) for task in ("a.a", "a.bb", "a.bc", "b")]
    assert found == ["1 running", "2 running", "1/s, burst 2", ""]
    assert limit.running == 9


def test_a_limit_of_nothing_is_refused_with_advice_that_fits_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    with pytest.raises(
        BadSetting, match=r"catch_up must be .*; leave it out for no limit, or give"
    ):
        queue.alter(limits={"catch_up": "0/s"})
    with pytest.raises(BadSetting, match=r"budget must be .*; leave it out for no limit\.$"):
        queue.alter(limits={"budget": "0/m"})
    with pytest.raises(BadSetting, match="to deliver nothing, pause the group, the task or the q"):
        queue.limit(task="shop", rate="0/s")


@pytest.mark.parametrize(
    "given",
    [{"tier": 2}, {"places": 1}, {"running": 0}, {"burst": 2}, {"rate": "10"}, {"budget": "1/s"}],
)
def test_a_limit_of_a_task_that_makes_no_sense_is_refused(
    stage: Stage, given: dict[str, object]
) -> None:
    queue = stage.connect().queue("mail")
    with pytest.raises(BadSetting):
        queue.limit(task="shop", **given)  # type: ignore[call-overload]
    with pytest.raises(BadSetting):
        queue.alter(limits={"tasks": {"shop": given}})
    with pytest.raises(BadSetting):
        queue.alter(limits={"tasks": {"*.shop": {"running": 1}}})
    assert queue.settings.queue_limit == ""


def test_the_limits_of_a_task_without_jobs_cost_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"tasks": {"*": {"rate": "10/s", "running": 2}}})
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    for task in ("a", "b"):
        put(queue, task, 20)
    stage.drive(consumer, seconds=5)
    assert len(seen.texts) == 40
    stage.drive(consumer, seconds=10)
    assert not consumer._engine._tasks.is_busy


# Declared -----------------------------------------------------------------------------------------


def test_a_worker_stores_the_limits_of_its_tasks_and_keeps_those_that_are_there(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    db = stage.connect()
    app = App(db)

    @app.task(name="shop.charge", queue="shop", rate="10/s", burst=3, running=5)
    def charge(order: int) -> None: ...

    @app.task(name="mail.send", queue="shop")
    def send(to: str) -> None: ...

    queue = db.queue("shop", limits={"running": 20})
    Worker(app).close()
    declared = '"shop.charge":{"burst":3,"rate":"10/s","running":5}'
    assert queue.settings.queue_limit == '{"running":20,"tasks":{' + declared + "}}"
    queue.limit(task="shop.charge", rate="1/s")
    caplog.clear()
    for _ in range(2):
        Worker(app).close()
    assert str(queue_limit_of(queue.settings.queue_limit).of_task("shop.charge")) == "1/s"
    (warning,) = [one.message for one in caplog.records if one.levelname == "WARNING"]
    assert "limits task 'shop.charge' to 1/s" in warning
    assert "not to 10/s, burst 3, 5 running" in warning
    assert "`shardq limits shop --task shop.charge --rate RATE`" in warning
    queue.limit(task="shop.charge")
    queue.limit(task="shop.*", running=1)
    Worker(app).close()
    assert queue.settings.queue_limit == '{"running":20,"tasks":{"shop.*":{"running":1}}}'


def test_jobs_of_an_app_keep_the_rate_of_their_task(stage: Stage) -> None:
    app, began, sent = App(stage.connect()), list[int](), list[str]()

    @app.task(rate="2/s")
    def charge(order: int) -> None:
        began.append(stage.clock.boot_us())

    @app.task
    def send(to: str) -> None:
        sent.append(to)

    for number in range(30):
        charge.put(number)
    send.put("ada")
    worker = Worker(app)
    until_us = stage.clock.boot_us() + 10_000_000
    while stage.clock.boot_us() < until_us:
        stage.clock.advance(worker.step())
    worker.close()
    assert sent == ["ada"]
    assert 18 <= len(began) <= 21
    assert most_within(began, 5_000_000) <= 11


@pytest.mark.parametrize("limits", ["off", {"tasks": {"charge*": {"rate": "100/s", "burst": 9}}}])
def test_a_job_that_is_limited_holds_all_jobs_of_its_task_back_everywhere(
    stage: Stage, limits: dict[str, Any] | Literal["off"]
) -> None:
    queue = stage.connect().queue("mail", limits=limits)
    refused: list[int] = []

    def refuse(message: Message) -> None:
        if message.text.startswith("charge") and not refused:
            refused.append(stage.clock.boot_us())
            raise Limited("60s", "429 Too Many Requests")

    seen, others = Recorder(stage.clock, refuse), Recorder(stage.clock)
    put(queue, "charge", 1)
    stage.drive(Consumer(queue, seen), seconds=2)
    other = Consumer(stage.connect().queue("mail"), others)
    put(queue, "charge", 300)
    put(queue, "send", 20)
    stage.drive(other, seconds=50)
    assert {text[:4] for text in others.texts} == {"send"}
    put(queue, "charge-again", 10)
    state = queue.state_of(queue.peek(1)[0])
    assert state is not None
    assert (state.where, state.limit, state.limit_of) == (Where.PAUSED, "charge", "task")
    assert state.until is not None
    [pause] = queue_limit_of(queue.settings.queue_limit).paused
    assert pause.names == "charge"
    assert pause.until_ms == due_ms(state.until)
    stage.drive(other, seconds=15)
    assert Counter(text.rstrip("0123456789") for text in others.texts) == {
        "charge": 301,
        "charge-again": 10,
        "send": 20,
    }
    assert min(of_task(others, "charge")) >= refused[0] + 60_000_000
    put(queue, "charge", 5)
    stage.drive(other, seconds=2)
    assert len(others.texts) == 336


def test_a_job_that_is_limited_briefly_holds_its_task_back_where_it_ran(stage: Stage) -> None:
    queue = stage.connect().queue("mail")

    def refuse(message: Message) -> None:
        if message.text == "charge0" and message.text not in seen.texts[:-1]:
            raise Limited(2)

    seen = Recorder(stage.clock, refuse)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=1)
    put(queue, "charge", 20)
    put(queue, "send", 20)
    stage.drive(consumer, seconds=6)
    charged = of_task(seen, "charge")
    assert len(charged) == 21
    assert sum(at < charged[0] + 2_000_000 for at in charged) == 1
    assert max(of_task(seen, "send")) < charged[1]
    assert not queue.settings.queue_limit


def test_a_hold_that_a_job_makes_somewhat_longer_lasts_as_long(tmp_path: Path) -> None:
    pause, both, done = threading.Event(), threading.Barrier(2), threading.Event()
    begun: list[tuple[str, int]] = []

    def handle(message: Message) -> None:
        texts = {text for text, _ in begun}
        begun.append((message.text, time.monotonic_ns()))
        if message.text in {*texts, *"cdef"}:
            if len(begun) == 9:
                done.set()
            return
        both.wait(30)
        if message.text == "a":
            raise Limited("600ms", "429")
        while not any(one.last_error == "429" for one in queue.peek()):
            pause.wait(0.005)
        begun.append(("refused", time.monotonic_ns()))
        raise Limited("1500ms")

    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        queue = db.queue("mail")
        queue.put_many({"body": text, "headers": {TASK_HEADER: "t"}} for text in "abcdef")
        consumer = Consumer(queue, handle, threads=2)
        thread = threading.Thread(target=consumer.run, daemon=True)
        thread.start()
        assert done.wait(30)
        consumer.stop()
        thread.join(60)
    refused_ns = next(at_ns for text, at_ns in begun if text == "refused")
    held = [at_ns - refused_ns for text, at_ns in begun if at_ns > refused_ns]
    assert min(held) >= 1_490_000_000


def test_jobs_of_a_task_that_is_held_back_for_long_follow_its_end_by_hand(stage: Stage) -> None:
    queue = stage.connect().queue("mail")

    def refuse(message: Message) -> None:
        if len(seen.texts) == 1:
            raise Limited("400d")

    seen = Recorder(stage.clock, refuse)
    consumer = Consumer(queue, seen)
    put(queue, "charge", 1)
    stage.drive(consumer, seconds=2)
    put(queue, "charge", 50)
    stage.drive(consumer, seconds=30)
    assert len(seen.texts) == 1
    queue.resume(task="charge")
    stage.drive(consumer, seconds=7)
    assert len(seen.texts) == 51


def test_pauses_that_are_over_make_room_for_others(stage: Stage) -> None:
    tasks = [f"t{number}" for number in range(1_000)]
    until = dict.fromkeys(tasks, "2020-01-01T00:00:00Z")
    queue = stage.connect().queue("mail", limits={"paused": {"tasks": tasks, "until": until}})
    queue.pause(task="charge")
    [pause] = queue_limit_of(queue.settings.queue_limit).paused
    assert pause.names == "charge"


def test_a_task_that_is_held_back_is_resumed_by_hand(stage: Stage) -> None:
    queue = stage.connect().queue("mail")

    def refuse(message: Message) -> None:
        if len(seen.texts) == 1:
            raise Limited("1h")

    seen = Recorder(stage.clock, refuse)
    consumer = Consumer(queue, seen)
    put(queue, "charge", 1)
    stage.drive(consumer, seconds=2)
    put(queue, "charge", 5)
    stage.drive(consumer, seconds=60)
    assert len(seen.texts) == 1
    queue.resume(task="charge")
    stage.drive(consumer, seconds=600)
    assert len(seen.texts) == 6


def test_a_pause_is_seldom_stored_while_jobs_that_run_are_limited_one_by_one(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    put(queue, "charge", 60)
    engine = Consumer(queue, print)._engine
    engine.step()
    taken = [engine.ready.take() for _ in range(50)]
    version = queue._home.register.version
    for one in taken:
        assert one is not None
        engine.outbox.finish(one, Outcome(Fate.SNOOZE, 10_000, is_limit=True))
        engine.step()
        stage.clock.advance(0.1)
    queue._home.register.refresh(force=True)
    assert queue._home.register.version - version <= 3
    seen = Recorder(stage.clock)
    limited_us = stage.clock.boot_us() + 9_900_000
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=30)
    assert len(seen.texts) == 60
    assert min(seen.at_us) >= limited_us


def test_a_pause_that_is_stored_closes_the_limits_of_its_queue_for_no_other_task(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", limits={"running": 5})
    put(queue, "charge", 1)
    put(queue, "send", 1)
    engine = Consumer(queue, print)._engine
    engine.step()
    charge = engine.ready.take()
    assert charge is not None
    engine.outbox.finish(charge, Outcome(Fate.SNOOZE, 10_000, is_limit=True))
    engine.step()
    assert queue_limit_of(engine.home.register.settings.queue_limit).paused
    assert engine.ready.take() is not None


def test_a_task_that_is_held_back_is_no_difference_to_the_limits_that_a_program_asks_for(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", limits={"running": 5})

    def refuse(_message: Message) -> None:
        raise Limited("1h")

    put(queue, "charge", 1)
    stage.drive(Consumer(queue, refuse), seconds=2)
    assert queue_limit_of(queue.settings.queue_limit).paused
    caplog.clear()
    stage.connect().queue("mail", limits={"running": 5})
    assert not caplog.records
    stage.connect().queue("mail", limits={"running": 6})
    assert 'not {"running":6}' in caplog.text


def test_limits_are_of_a_task_and_not_of_a_put(stage: Stage) -> None:
    app = App(stage.connect())

    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(BadSetting, match="unknown option 'rate'"):
        send.using(rate="1/s")  # type: ignore[call-arg]
    with pytest.raises(BadSetting, match="say rate="):
        app.task(rate_limit="1/s")(charge)  # type: ignore[call-overload]
    with pytest.raises(BadSetting, match="a rate must be"):
        app.task(rate="often")(charge)
    with pytest.raises(BadSetting, match=r"there are queue, .* on_dead, rate, burst, running"):
        app.task(colour="red")(charge)  # type: ignore[call-overload]
    for declare in (app.task, send.using):
        with pytest.raises(BadSetting, match=r"app\.queue\('shop'\)\.limit\('\*', places=\.\.\)"):
            declare(places=2, queue="shop")(charge)


def charge(order: int) -> None: ...
