"""Time travel: what a sandbox runs, and when."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from travelled import DAY, START, Seen, consumed, sandbox

import shardq
from shardq import App, Consumer, Message
from shardq.clock import SystemClock
from shardq.errors import BadTime, UsageError
from shardq.model.ids import birth_us, row_ids
from shardq.tasks import current
from shardq.testing import Sandbox
from shardq.testing import sandbox as rooms

# Time ---------------------------------------------------------------------------------------------

BEGIN = datetime(2027, 1, 1, 8, tzinfo=UTC)
FIRED = [(n, 2 + 5 * (n - 1)) for n in range(1, 9)]
"""Half minutes of fire times, and quarters at which jobs of 75 s begin that wait for each other."""


def test_each_message_runs_at_its_due_in_order_and_time_ends_where_it_was_to(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    queue, seen = consumed(sandbox)
    for days in (30, 1, 7, 365, 0):
        queue.put(f"{days}", delay=timedelta(days=days))
    with caplog.at_level(logging.WARNING):
        assert sandbox.travel("30 days") == 4
    assert seen.all == [(f"{days}", days * DAY) for days in (0, 1, 7, 30)]
    assert sandbox.now == START + 30 * DAY
    assert sandbox.travel(until=START + 365 * DAY) == 1
    assert (caplog.records, sandbox.waiting()) == ([], [])


def test_a_week_with_delays_retries_a_key_and_a_group_takes_few_calls_of_the_store(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    def act(message: Message) -> None:
        if message.text == "flaky" and message.attempt < 3:
            raise shardq.Retry(reason="not yet")
        if message.text == "later" and sandbox.now < START + 3 * DAY:
            raise shardq.Snooze("1d")

    queue, seen = consumed(sandbox, act, backoff="6h", backoff_max="6h")
    queue.put("week", delay="7d")
    queue.put("flaky", delay="1d")
    queue.put("later", delay="2d")
    for text in ("first", "second", "third"):
        queue.put(text, group="ada", delay="4d")
    queue.put("moved", key="k", delay="6d")
    queue.move("k", delay="5d")
    queue.put("cancelled", key="c", delay="5d")
    queue.cancel(key="c")
    queue.put("now")
    before = sum(sandbox.faults.calls.values())
    with caplog.at_level(logging.INFO, logger="shardq.engine.leases.lease"):
        assert sandbox.travel("7 days") == 11
    hours = [(text, since // timedelta(hours=1)) for text, since in seen.all]
    assert hours == [
        ("now", 0),
        *(("flaky", hour) for hour in (24, 30, 36)),
        ("later", 48),
        ("later", 72),
        ("first", 96),
        ("second", 96),
        ("third", 96),
        ("moved", 120),
        ("week", 168),
    ]
    # A stage makes 3 million of them.
    assert sum(sandbox.faults.calls.values()) - before < 500
    assert not [one for one in caplog.messages if "lost" in one or "unclean" in one]


def test_what_is_due_now_runs_with_all_that_it_puts_for_now_and_time_stands(
    sandbox: Sandbox,
) -> None:
    def act(message: Message) -> None:
        if message.text != "0":
            queue.put(str(int(message.text) - 1))
            queue.put("later", delay="1ms")

    queue, seen = consumed(sandbox, act)
    queue.put("3")
    assert sandbox.run_due() == 4
    assert seen.all == [(text, timedelta()) for text in "3210"]
    assert sandbox.now == START
    assert len(sandbox.waiting()) == 3


def test_what_fails_or_is_snoozed_for_no_time_runs_again_at_once(sandbox: Sandbox) -> None:
    def act(message: Message) -> None:
        if len(seen.all) == 1:
            raise shardq.Retry("0s")
        if len(seen.all) == 2:
            raise shardq.Snooze("0s")

    queue, seen = consumed(sandbox, act)
    queue.put("a")
    assert sandbox.run_due() == 3
    assert seen.all == 3 * [("a", timedelta())]


def test_a_queue_is_drained_however_far_its_messages_are(sandbox: Sandbox) -> None:
    def act(message: Message) -> None:
        if message.text == "far":
            other.put("farther", delay=timedelta(days=20_000))

    other, far = sandbox.queue("other"), Seen(sandbox)
    sandbox.add(Consumer(other, far))
    queue, _ = consumed(sandbox, act)
    queue.put("far", delay=timedelta(days=10_000))
    assert sandbox.drain() == 2
    assert far.all == [("farther", 30_000 * DAY)]
    assert sandbox.drain() == 0
    assert sandbox.now == START + 30_000 * DAY


def test_what_a_paused_queue_holds_does_not_run_and_a_drain_names_it(sandbox: Sandbox) -> None:
    queue, seen = consumed(sandbox)
    queue.put("a", delay="1h")
    queue.pause()
    assert sandbox.travel("1d") == 0
    with pytest.raises(AssertionError, match=r"queue mail:\n  b'a' in queue mail, due 2026-03-01"):
        sandbox.drain()
    queue.resume()
    assert sandbox.run_due() == 1
    assert seen.all == [("a", DAY)]


def test_a_job_may_pause_and_resume_a_queue_on_the_way(sandbox: Sandbox) -> None:
    other, seen = sandbox.queue("other"), Seen(sandbox)
    sandbox.add(Consumer(other, seen))
    queue, _ = consumed(sandbox, lambda message: getattr(other, message.text)())
    queue.put("pause", delay="1h")
    queue.put("resume", delay="5h")
    other.put("a", delay="2h")
    sandbox.travel("1d")
    assert seen.all == [("a", timedelta(hours=5))]


def test_what_puts_itself_again_for_ever_is_stopped_with_a_sentence(sandbox: Sandbox) -> None:
    queue, _ = consumed(sandbox, lambda _: queue.put("again"))
    queue.put("again")
    with pytest.raises(UsageError, match=r"again and again.* the last is b'again' in"):
        sandbox.run_due()


def test_a_drain_that_has_no_end_is_stopped_too(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "_MOMENTS_MAX", 10)
    queue, _ = consumed(sandbox, lambda _: queue.put("again", delay="1d"))
    queue.put("again")
    with pytest.raises(UsageError, match="again and again"):
        sandbox.drain()
    assert sandbox.now - START == 11 * DAY


def test_a_message_that_is_put_each_hour_does_not_keep_a_journey_from_its_end(
    sandbox: Sandbox,
) -> None:
    queue, seen = consumed(sandbox, lambda _: queue.put("again", delay="1h"))
    queue.put("again")
    assert sandbox.travel("10h") == 11
    assert [since for _, since in seen.all] == [timedelta(hours=hour) for hour in range(11)]


def test_consumers_of_one_queue_share_it_and_callers_of_receive_take_their_part(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    queue, seen = consumed(sandbox)
    other = Seen(sandbox)
    sandbox.add(Consumer(sandbox.connect().queue("mail"), other))
    for minutes in range(1, 11):
        queue.put(f"{minutes}", delay=timedelta(minutes=minutes))
    with caplog.at_level(logging.WARNING):
        sandbox.travel("5m")
        [sixth] = queue.receive(wait="1m")
        queue.ack(sixth)
        assert sandbox.drain() == 4
    assert sixth.text == "6"
    assert sorted(int(text) for text, _ in seen.all + other.all) == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert [ran.attempt for ran in sandbox.runs()] == [1] * 9
    assert caplog.records == []


def test_what_is_received_and_not_settled_is_delivered_when_its_time_is_up(
    sandbox: Sandbox,
) -> None:
    queue, seen = consumed(sandbox)
    queue.put("a")
    assert queue.receive(visibility="10m")
    assert sandbox.travel("1h") == 1
    assert seen.all == [("a", timedelta(minutes=10))]


def test_a_consumer_of_ended_minutes_gets_them_when_they_have_ended(sandbox: Sandbox) -> None:
    queue, seen = sandbox.queue("mail", offset="2m"), Seen(sandbox)
    sandbox.add(Consumer(queue, seen, isolated=True))
    queue.put("a", delay="1h")
    assert sandbox.travel("2h") == 1
    [(_, since)] = seen.all
    assert timedelta(minutes=63) <= since < timedelta(minutes=64)


def test_a_put_of_a_priority_that_was_not_used_before_runs_at_once(sandbox: Sandbox) -> None:
    queue, seen = consumed(sandbox, None, bands=3)
    queue.put("first")
    sandbox.travel("1h")
    queue.put("last", priority=2)
    queue.put("next", priority=1)
    sandbox.run_due()
    assert [text for text, _ in seen.all] == ["first", "next", "last"]


def test_time_that_a_job_takes_passes_for_all_and_nothing_is_lost(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    queue, seen = consumed(sandbox, lambda _: sandbox.clock.advance(60))
    for text in "abc":
        queue.put(text)
    assert sandbox.run_due() == 3
    assert seen.all == [
        ("a", timedelta()),
        ("b", timedelta(minutes=1)),
        ("c", timedelta(minutes=2)),
    ]
    assert [ran.attempt for ran in sandbox.runs()] == [1, 1, 1]
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("seed", [5, 7, 13])
def test_two_consumers_of_a_queue_rest_as_soon_as_nothing_waits_for_either(
    sandbox: Sandbox, seed: int
) -> None:
    chance, runs = random.Random(seed), dict.fromkeys(map(str, range(60)), 0)

    def act(message: Message) -> None:
        runs[message.text] += 1
        if chance.random() < 0.2:
            raise shardq.Snooze("33s")
        if chance.random() < 0.1:
            sandbox.clock.sleep(40)

    queue = sandbox.queue("mail", lanes=4)
    sandbox.add(Consumer(queue, act), Consumer(queue, act))
    for text in runs:
        group = chance.choice([None, None, "a", "b"])
        queue.put(text, delay=f"{chance.choice([0, 1, 30, 60, 3600])}s", group=group)
    before = sum(sandbox.faults.calls.values())
    sandbox.drain()
    assert all(runs.values())
    # There would be over 30,000 calls if each kept its own pace.
    assert sum(sandbox.faults.calls.values()) - before < 4_000


def test_the_test_may_move_the_clock_itself(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    queue, seen = consumed(sandbox)
    queue.put("a")
    sandbox.run_due()
    queue.put("b", delay="1h")
    sandbox.clock.advance(7_200)
    assert sandbox.run_due() == 1
    assert seen.all == [("a", timedelta()), ("b", timedelta(hours=2))]
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_a_machine_s_clock_that_is_set_back_keeps_what_waits_until_its_due(
    sandbox: Sandbox,
) -> None:
    queue, seen = consumed(sandbox)
    queue.put("a", delay="1h")
    sandbox.travel("30m")
    sandbox.clock.set(-7_200)
    sandbox.travel("2h")
    assert seen.all == []
    sandbox.travel("1h")
    assert seen.all == [("a", timedelta(hours=1))]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, UsageError),
        ({"duration": "1h", "until": START + DAY}, UsageError),
        ({"until": START - DAY}, BadTime),
        ({"until": datetime(2027, 1, 1)}, BadTime),  # noqa: DTZ001 - without a zone
        ({"duration": "soon"}, BadTime),
    ],
)
def test_a_journey_that_makes_no_sense_is_refused(
    sandbox: Sandbox, given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        sandbox.travel(**given)
    assert sandbox.now == START


def test_a_job_cannot_travel(sandbox: Sandbox) -> None:
    queue, _ = consumed(sandbox, lambda _: sandbox.travel("1h"))
    queue.put("a")
    sandbox.raises = "failure"
    with pytest.raises(UsageError, match="a job runs"):
        sandbox.run_due()


def test_row_ids_go_on_from_a_sandbox_s_time_and_after_it_from_this_machine_s() -> None:
    now_us = SystemClock().now_us()
    with Sandbox(start=datetime(2090, 1, 1, tzinfo=UTC)) as sandbox:
        future = sandbox.queue("mail").put("a")
    with Sandbox(start=datetime(1999, 1, 1, tzinfo=UTC)) as sandbox:
        past = sandbox.queue("mail").put("a")
    assert future._row.entered_us > now_us > past._row.entered_us
    assert 0 <= birth_us(row_ids.next(now_us)) - now_us < 3_600_000_000


# Schedules ----------------------------------------------------------------------------------------


def test_schedules_fire_on_the_way_across_a_clock_change_and_a_drain_waits_for_none(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    queue, seen = consumed(sandbox)
    sandbox.travel(until=datetime(2026, 3, 28, tzinfo=UTC))
    queue.cron("30 2 * * *", b"night", tz="Europe/Berlin", name="night")
    queue.every("8h", b"shift", name="shift")
    queue.put("far", delay="73h")
    with caplog.at_level(logging.WARNING):
        assert sandbox.travel("2d") == 2 + 6
    # On the 29th there is no 02:30: it is 03:30, which is 01:30 UTC.
    nights = [START + since for text, since in seen.all if text == "night"]
    assert nights == [datetime(2026, 3, day, 1, 30, tzinfo=UTC) for day in (28, 29)]
    assert [put.text for put in sandbox.puts(queue)].count("shift") == 6
    assert [put.text for put in sandbox.waiting()] == ["far"]
    sandbox.drain()
    assert seen.all[-1][0] == "far"
    assert sandbox.drain() == 0
    assert caplog.records == []


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        ("skip", [("00:30", "00:30"), ("02:00", "02:00"), ("03:30", "03:30")]),
        (
            "cancel",
            [("00:30", "00:30"), ("01:30", "01:45"), ("03:00", "03:00"), ("04:00", "04:15")],
        ),
        ("allow", [(f"0{n // 2}:{n % 2 * 3}0", f"0{m // 4}:{m % 4 * 15:02}") for n, m in FIRED]),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_schedules_fire_while_a_job_takes_time_as_those_of_a_worker_do(
    overlap: Literal["skip", "cancel", "allow"], expected: list[tuple[str, str]], is_async: bool
) -> None:
    app, ran = App(), []

    def note() -> None:
        firing = current().firing
        ran.append((f"{firing.time:%M:%S}", f"{sandbox.now:%M:%S}"))

    @app.task
    def job() -> None:
        note()
        sandbox.clock.advance(75)

    @app.task
    async def coroutine() -> None:
        note()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 75)

    app.every("30s", coroutine if is_async else job, overlap=overlap, name="s")
    with Sandbox(app, start="2027-01-01T08:00Z") as sandbox:
        sandbox.travel("4m")
        assert ran == expected
        made = app.schedules["s"]
        # All fire times until the end of the last job are counted.
        assert made.fired + made.skipped == (sandbox.now - BEGIN).total_seconds() // 30
        sandbox.travel("1s")
        assert app.schedules["s"].skipped == made.skipped


def test_schedules_that_an_app_declares_fire_those_declared_later_too() -> None:
    app = App()
    seen: list[str] = []

    @app.task
    def sync(what: str) -> None:
        assert made.now == current().due
        seen.append(what)

    app.every("15m", sync.of("often"))
    with Sandbox(app, start=START) as made:
        assert made.travel("1h") == 4
        app.every("1h", sync.of("hourly"), name="hourly")
        assert made.travel("1h") == 5
        assert made.assert_put(sync, what="hourly").due == START + timedelta(hours=2)
