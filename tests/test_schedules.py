"""Schedules of a queue: what fires when, and what commands come to, on both kinds of stores."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pytest
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from fired import Run, at, time_of
from own_triggers import Hanging
from stages import either_stage  # noqa: F401 - a fixture

from shardq import Consumer, errors
from shardq.model.key import bucket_of
from shardq.model.times import iso, moment_of
from shardq.schedules.firing.firer import Firer
from shardq.stores.tables import SCHEDULES, Change
from shardq.testing import Stage

if TYPE_CHECKING:
    from shardq import Queue, Schedule

NAMES = ("schedule", "schedule-time", "schedule-previous")


# What fires ---------------------------------------------------------------------------------------


def test_an_interval_puts_a_message_each_time_that_it_has_passed(
    stage: Stage, queue: Queue
) -> None:
    made = queue.every("10s", "sync", name="crm", headers={"kind": "sync"})
    assert (made.name, made.state, made.previous) == ("crm", "waiting", None)
    run = Run(stage, queue)
    assert run.drive(35) == ["08:00:10", "08:00:20", "08:00:30"]
    first, second, _ = run.messages
    assert (first.text, first.id) == ("sync", f"crm@{first.headers['schedule-time']}")
    assert first.headers.keys() == {"kind", "schedule", "schedule-time"}
    assert second.headers["schedule-previous"] == first.headers["schedule-time"]
    assert second.headers["schedule"] == "crm"
    assert max(run.late_ms) == 0
    now = queue.schedules["crm"]
    assert (now.fired, now.skipped) == (3, 0)
    assert now.next == now.previous + timedelta(seconds=10)  # type: ignore[operator]


def test_an_interval_that_fires_when_it_is_made_goes_on_from_there(
    stage: Stage, queue: Queue
) -> None:
    made = queue.every("10s", b"", name="crm", at_start=True)
    stage.clock.advance(3)
    run = Run(stage, queue)
    assert queue.every("10s", b"", name="crm", at_start=True).next == made.next
    assert run.drive(19) == ["08:00:00", "08:00:10", "08:00:20"]
    assert made.change(end=at(stage, 12)).next == moment_of(stage.clock.true_ms() + 8_000)
    with pytest.raises(errors.BadSetting, match="give start or at_start, one of them"):
        queue.every("10s", b"", start=at(stage, 1), at_start=True)


def test_a_cron_fires_at_the_times_of_its_zone(stage: Stage, queue: Queue) -> None:
    made = queue.cron("1 9 * * *", b"", tz="Europe/Berlin")
    assert made.next == datetime(2027, 1, 15, 8, 1, tzinfo=UTC)
    assert made.name == str(made.trigger)
    run = Run(stage, queue)
    assert run.drive(61) == ["08:01:00"]
    assert run.messages[0].due == made.next


def test_a_cron_of_each_hour_fires_in_both_of_two_same_hours_and_a_daily_one_in_the_first(
    queue: Queue,
) -> None:
    def fires(text: str, **given: Any) -> list[str]:
        name = f"{text} {given}"
        queue.cron(text, b"", tz="Europe/Berlin", name=name, **given)
        ahead = queue.schedules.preview(name, 50, "2027-10-30T23:59:00Z")
        return [one.time.isoformat()[11:] for one in ahead if one.time.day == 31][:4]

    summer, winter = ("02:00:00+02:00", "02:30:00+02:00"), ("02:00:00+01:00", "02:30:00+01:00")
    assert fires("*/30 * * * *") == [*summer, *winter]
    assert fires("*/30 * * * *", twice="last")[:2] == [*winter]
    assert fires("30 2 * * *") == ["02:30:00+02:00"]


def test_however_many_consumers_there_are_each_fire_time_is_put_once(
    stage: Stage, queue: Queue
) -> None:
    for number in range(10):
        queue.every("5s", b"", name=f"s{number}")
    runs = [Run(stage, stage.connect().queue("mail")) for _ in range(3)]
    stage.drive(*(run.consumer for run in runs), seconds=21)
    counts = Counter(one.id for run in runs for one in run.messages)
    assert set(counts.values()) == {1}
    assert len(counts) == 10 * 4


def test_a_schedule_ends_once_it_has_fired_as_often_as_it_may(stage: Stage, queue: Queue) -> None:
    queue.every("5s", b"", name="thrice", count=3)
    run = Run(stage, queue)
    assert len(run.drive(60)) == 3
    assert queue.schedules.get("thrice") is None
    assert list(queue.schedules) == []
    queue.every("5s", b"", name="thrice", count=1)
    assert len(run.drive(60)) == 1


def test_start_and_end_bound_a_schedule(stage: Stage, queue: Queue) -> None:
    queue.every("5s", b"", name="some", start=at(stage, 7), end=at(stage, 20))
    run = Run(stage, queue)
    assert run.drive(60) == ["08:00:07", "08:00:12", "08:00:17"]


def test_jitter_puts_off_each_firing_by_what_follows_from_its_time(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="jittered", jitter="9s")
    queue.every("10s", b"", name="spread", spread="9s")
    run = Run(stage, queue)
    run.drive(120)
    late = {
        name: [
            (one.due - datetime.fromisoformat(one.headers["schedule-time"])).total_seconds()
            for one in run.messages
            if one.headers["schedule"] == name
        ]
        for name in ("jittered", "spread")
    }
    assert len(set(late["jittered"])) > 5
    assert all(0 <= one < 9 for one in late["jittered"])
    assert len(set(late["spread"])) == 1
    previews = queue.schedules.preview("jittered", 5, at(stage, -120))
    asked = [(one.due - one.time).total_seconds() for one in previews]
    assert asked == late["jittered"][:5]


def test_what_a_process_fired_that_died_is_in_the_history_with_its_put(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="1d")
    queue.every("10s", b"", name="crm")
    run = Run(stage, queue)
    stage.faults.fail("move", applied=True, times=1_000)
    run.drive(10.5)
    stage.faults.heal()
    run.drop()
    Run(stage, stage.connect().queue("mail")).drive(30)
    assert {record.id for record in queue.history()} >= {"crm@2027-01-15T08:00:10.000Z"}
    assert queue.audit().is_even


def test_what_a_process_was_to_fire_that_died_is_not_lost(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="1d")
    queue.every("10s", b"", name="crm")
    run = Run(stage, queue)
    stage.faults.fail("move", times=1_000)
    run.drive(10.5)
    stage.faults.heal()
    run.drop()
    queue.schedules.remove("crm")
    Run(stage, stage.connect().queue("mail")).drive(90)
    assert queue.audit().is_even


def test_schedules_fire_for_callers_of_receive_as_well(stage: Stage, queue: Queue) -> None:
    queue.every("10s", b"x", name="crm")
    received = []
    for _ in range(3):
        (message,) = queue.receive(wait="11s")
        received.append(message.id[-13:-5])
        queue.ack(message)
    assert received == ["08:00:10", "08:00:20", "08:00:30"]


# Policies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"missed": "skip"}, []),
        ({"missed": "once"}, ["08:08:40"]),
        ({"missed": "all", "window": "3m"}, ["08:07:00", "08:07:30", "08:08:00", "08:08:30"]),
    ],
)
def test_what_nobody_was_there_for_is_passed_by_or_made_up_for(
    stage: Stage, queue: Queue, given: dict[str, Any], expected: list[str]
) -> None:
    step = "30s" if "window" in given else "20s"
    queue.every(step, b"", name="missed", **given)
    stage.clock.advance(590)
    run = Run(stage, queue)
    fired = sorted(run.drive(8))
    recent = [one for one in fired if one >= "08:08:50"]
    assert fired == [*expected, *recent]
    # A firing that is late by less than a minute is not missed.
    assert recent[0] == "08:09:00"
    now = queue.schedules["missed"]
    assert now.fired + now.skipped == (19 if step == "30s" else 29)


def test_a_month_of_missed_seconds_is_passed_by_in_one_turn(stage: Stage, queue: Queue) -> None:
    queue.every("1s", b"", name="dense", missed="skip")
    stage.clock.advance(30 * 86_400)
    run = Run(stage, queue)
    # A firing that is late by less than a minute is not missed.
    assert 60 <= len(run.drive(5)) <= 67
    assert "schedule-previous" not in run.messages[0].headers


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
@pytest.mark.parametrize("of", ["interval", "cron"])
def test_of_thousands_that_were_missed_each_is_counted(
    stage: Stage, queue: Queue, of: str, missed: Literal["skip", "once", "all"]
) -> None:
    if of == "interval":
        queue.every("1s", b"", name="dense", missed=missed, window="200s")
    else:
        queue.cron("* * * * * *", b"", name="dense", missed=missed, window="200s")
    begun_ms = stage.clock.true_ms()
    stage.clock.advance(2 * 3_600)
    run = Run(stage, queue)
    run.drive(5)
    now = queue.schedules["dense"]
    assert now.next is not None
    ahead_s = (now.next - moment_of(begun_ms)).total_seconds()
    assert now.fired + now.skipped == ahead_s - (of == "interval")
    assert len(run.messages) <= now.fired < 220


def test_a_fire_time_is_skipped_while_the_run_before_waits_for_a_retry(
    stage: Stage, queue: Queue
) -> None:
    queue.alter(backoff="25s", backoff_max="25s")
    queue.every("10s", b"", name="slow", overlap="skip")
    run = Run(stage, queue, fails=1)
    assert run.drive(52) == ["08:00:10", "08:00:10", "08:00:40", "08:00:50"]
    before = [time_of(one, "schedule-previous") for one in run.messages]
    assert before == ["", "", "08:00:10", "08:00:40"]
    now = queue.schedules["slow"]
    assert (now.fired, now.skipped) == (3, 2)


def test_cancel_takes_back_the_run_before_that_still_waits(stage: Stage, queue: Queue) -> None:
    queue.alter(backoff="15s", backoff_max="15s")
    queue.every("10s", b"", name="latest", overlap="cancel", count=3)
    fired = Run(stage, queue, fails=100).drive(50)
    assert fired == ["08:00:10", "08:00:20", "08:00:30", "08:00:30"]


def test_queued_runs_come_one_after_the_other(stage: Stage, queue: Queue) -> None:
    queue.alter(backoff="25s", backoff_max="25s")
    queue.every("10s", b"", name="queued", overlap="queue", count=3)
    fired = Run(stage, queue, fails=1).drive(60)
    assert fired == ["08:00:10", "08:00:10", "08:00:20", "08:00:30"]


def test_a_change_of_the_overlap_takes_its_group_along(queue: Queue) -> None:
    made = queue.every("10s", b"", name="crm", overlap="queue")
    assert made.group == "schedule crm"
    assert made.change(body="new").group == "schedule crm"
    assert made.change(overlap="allow").group is None
    assert made.change(overlap="queue").group == "schedule crm"
    # A group of the user's own stays.
    assert made.change(overlap="skip", group="schedule crm").group == "schedule crm"
    assert made.change(overlap="queue", group="imports").group == "imports"
    assert made.change(overlap="allow").group == "imports"


def test_more_queued_runs_than_one_firing_puts_come_in_order(stage: Stage, queue: Queue) -> None:
    queue.every("10s", b"", name="queued", missed="all", overlap="queue")
    stage.clock.advance(2_505)
    fired = Run(stage, queue).drive(60)
    assert fired == sorted(fired)
    assert len(set(fired)) == len(fired) == 256


def test_with_a_key_nothing_more_is_put_while_a_message_has_it(stage: Stage, queue: Queue) -> None:
    queue.put("by hand", key="crm", delay="25s")
    queue.every("10s", b"", name="crm", key="crm")
    run = Run(stage, queue)
    stage.drive(run.consumer, seconds=24)
    assert run.messages == []
    stage.drive(run.consumer, seconds=20)
    assert [one.text for one in run.messages] == ["by hand", "", ""]


# Commands -----------------------------------------------------------------------------------------


def test_a_change_replaces_the_next_firing(stage: Stage, queue: Queue) -> None:
    made = queue.every("10s", "old", name="crm")
    run = Run(stage, queue)
    assert run.drive(12) == ["08:00:10"]
    now = made.change(every="4s", body="new", headers={"a": "b"})
    assert now.next == moment_of(stage.clock.true_ms()) + timedelta(seconds=4)
    assert run.drive(9) == ["08:00:16", "08:00:20"]
    assert [one.text for one in run.messages] == ["old", "new", "new"]
    assert now.trigger != made.trigger
    # An option that is not given stays, and so does the next fire time.
    again = made.change(body="newest")
    assert again.next == now.next + timedelta(seconds=8)
    assert run.drive(4) == ["08:00:24"]
    assert run.messages[-1].headers["a"] == "b"


def test_a_change_of_the_times_leaves_zone_start_and_end(stage: Stage, queue: Queue) -> None:
    start, end = "2027-02-01T00:00Z", "2027-02-03T23:00Z"
    made = queue.cron("0 2 * * *", b"", tz="Europe/Berlin", name="crm", start=start, end=end)

    def ahead(changed: Schedule) -> list[str]:
        return [f"{one.time.astimezone(UTC):%m-%dT%H:%M}" for one in changed.preview()]

    assert ahead(made.change(cron="0 3 * * *")) == ["02-01T02:00", "02-02T02:00", "02-03T02:00"]
    assert ahead(made.change(tz="UTC")) == ["02-01T03:00", "02-02T03:00", "02-03T03:00"]
    assert ahead(made.change(start="2027-02-03T00:00Z")) == ["02-03T03:00"]
    assert ahead(made.change(every="1d")) == ["02-03T00:00"]
    assert ahead(made.change(cron="0 4 * * *", end="2027-02-04T23:00Z")) == [
        "02-03T04:00",
        "02-04T04:00",
    ]
    last = CronTrigger(day="last", timezone="Europe/Berlin")
    assert ahead(made.change(trigger=last, end="2027-02-28T23:00Z")) == ["02-27T23:00"]
    assert ahead(made.change(start=None)) == ["01-30T23:00", "02-27T23:00"]
    assert len(ahead(made.change(end=None))) == 10
    trigger = "cron day='last' hour='0' minute='0' second='0' Europe/Berlin"
    assert str(queue.schedules["crm"].trigger) == trigger


@pytest.mark.parametrize("options", [{}, {"start": None}], ids=["times alone", "no start"])
def test_a_change_that_is_made_again_does_not_begin_its_interval_anew(
    stage: Stage, queue: Queue, options: dict[str, Any]
) -> None:
    made = queue.every("10s", b"", name="crm")
    stage.clock.advance(3)
    changed = made.change(every="7s", **options)
    assert changed.next == moment_of(stage.clock.true_ms() + 7_000)
    stage.clock.advance(4)
    assert made.change(every="7s", **options).next == changed.next


def test_a_change_of_the_end_leaves_when_an_interval_began(stage: Stage, queue: Queue) -> None:
    made = queue.every("10s", b"", name="crm")
    stage.clock.advance(4)
    assert made.change(end=at(stage, 60)).next == made.next
    assert made.change(start=at(stage, 8)).next == moment_of(stage.clock.true_ms() + 8_000)
    # An interval that was given a start keeps it, another counts from the change.
    assert made.change(every="7s").next == moment_of(stage.clock.true_ms() + 8_000)
    assert made.change(start=None).next == moment_of(stage.clock.true_ms() + 7_000)
    with pytest.raises(
        errors.BadSetting, match=r"tz has no use with every 7s, until .*: it is the"
    ):
        made.change(tz="Europe/Berlin")


def test_what_is_paused_does_not_fire_until_it_is_resumed(stage: Stage, queue: Queue) -> None:
    made = queue.every("10s", b"", name="crm")
    run = Run(stage, queue)
    run.drive(12)
    paused = made.pause()
    assert (paused.state, paused.next) == ("paused", None)
    assert run.drive(100) == []
    resumed = made.resume()
    assert resumed.next == datetime(2027, 1, 15, 8, 2, tzinfo=UTC)
    assert run.drive(20) == ["08:02:00", "08:02:10"]
    assert resumed.skipped == 0


def test_what_was_removed_never_fires_again(stage: Stage, queue: Queue) -> None:
    made = queue.every("10s", b"", name="crm")
    run = Run(stage, queue)
    run.drive(12)
    assert made.remove()
    assert not made.remove()
    assert queue.schedules.get("crm") is None
    assert run.drive(120) == []
    with pytest.raises(errors.UsageError, match=r"queue 'mail' has no schedule 'crm'"):
        made.pause()


def test_a_run_by_hand_comes_beside_what_fires(stage: Stage, queue: Queue) -> None:
    made = queue.every("10s", "x", name="crm")
    sent = made.run()
    run = Run(stage, queue)
    assert run.drive(11) == ["08:00:00", "08:00:10"]
    assert run.messages[0].id == sent.id


def test_a_run_by_hand_takes_its_key_as_the_schedule_says(stage: Stage, queue: Queue) -> None:
    queue.put("before", key="crm", delay="1h")
    made = queue.every(
        "1d", "x", name="crm", key="crm", on_conflict="replace", unique_for=timedelta(minutes=5)
    )
    sent = made.run()
    run = Run(stage, queue)
    run.drive(2)
    assert [one.id for one in run.messages] == [sent.id]
    with pytest.raises(errors.KeyTaken, match="'crm' of queue 'mail' is held until"):
        made.run()
    stage.clock.advance(301)
    assert made.run().id != sent.id


def test_a_backfill_puts_each_fire_time_of_a_span(stage: Stage, queue: Queue) -> None:
    made = queue.cron("30 * * * *", "x", name="hourly")
    assert made.backfill("2027-01-14T00:00Z", "2027-01-15T00:00Z") == 24
    run = Run(stage, queue)
    fired = run.drive(2)
    assert sorted(fired) == [f"{hour:02}:30:00" for hour in range(24)]
    with pytest.raises(errors.BadTime, match=r"until, 2027-01-14.*, must be later than after, 2"):
        made.backfill("2027-01-15T00:00Z", "2027-01-14T00:00Z")


def test_a_backfill_puts_again_under_the_same_ids_and_with_a_key_one_at_a_time(
    queue: Queue,
) -> None:
    span = ("2027-01-14T00:00Z", "2027-01-14T02:00Z")
    made = queue.cron("30 * * * *", "x", name="hourly")
    assert [made.backfill(*span), made.backfill(*span)] == [2, 2]
    ids = sorted(one.id for one in queue.peek())
    assert ids[0] == ids[1] == "hourly@2027-01-14T00:30:00.000Z"
    assert len(set(ids)) == 2
    keyed = queue.cron("30 * * * *", "x", name="keyed", key="k")
    assert [keyed.backfill(*span), keyed.backfill(*span)] == [1, 0]


def test_the_very_same_schedule_is_made_once_and_another_of_its_name_is_refused(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"x", name="crm")
    stage.clock.advance(3)
    again = stage.connect().queue("mail").every("10s", b"x", name="crm")
    assert again.next == datetime(2027, 1, 15, 8, 0, 10, tzinfo=UTC)
    with pytest.raises(errors.KeyTaken, match="another schedule 'crm', every 10s; change that"):
        queue.every("11s", b"x", name="crm")
    assert [one.name for one in queue.schedules] == ["crm"]


def test_a_schedule_prints_in_a_line(queue: Queue) -> None:
    made = queue.cron("0 12 * * *", b"x" * 1_000, name="noon", tz="Europe/Berlin")
    assert (
        str(made)
        == repr(made)
        == (
            "<Schedule 'noon' of 'mail': cron 0 12 * * * Europe/Berlin, waiting, next "
            f"{iso(made.next or 0)}>"
        )
    )
    assert repr(made.pause()).endswith(", paused>")


def test_a_dropped_queue_takes_its_schedules_along(stage: Stage, queue: Queue) -> None:
    queue.every("10s", b"", name="crm")
    queue.drop()
    anew = stage.connect().queue("mail")
    assert list(anew.schedules) == []
    assert Run(stage, anew).drive(60) == []


def test_a_purge_takes_no_schedule_along(stage: Stage, queue: Queue) -> None:
    queue.every("10s", b"", name="crm")
    run = Run(stage, queue)
    run.drive(11)
    queue.purge()
    assert run.drive(20) == ["08:00:20", "08:00:30"]


# Half done ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("verb", ["note schedules", "write_records schedules"])
def test_a_schedule_whose_write_had_no_answer_may_be_made_again(
    stage: Stage, queue: Queue, verb: str, *, applied: bool
) -> None:
    start = moment_of(stage.clock.now_ms() + 10_000)
    stage.faults.fail(verb, applied=applied)
    with pytest.raises(errors.StoreError):
        queue.every("10s", b"", name="crm", start=start)
    queue.every("10s", b"", name="crm", start=start)
    assert len(Run(stage, queue).drive(45)) == 4


@pytest.mark.parametrize("applied", [False, True])
def test_a_removal_that_had_no_answer_may_be_repeated(
    stage: Stage, queue: Queue, *, applied: bool
) -> None:
    made = queue.every("10s", b"", name="crm")
    stage.faults.fail("write_records schedules", applied=applied)
    with pytest.raises(errors.StoreError):
        made.remove()
    assert made.remove() != applied
    assert Run(stage, queue).drive(60) == []
    assert queue.schedules.get("crm") is None


def test_a_damaged_schedule_is_logged_and_removed_and_others_fire(
    stage: Stage, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.every("10s", b"", name="crm")
    queue.every("10s", b"", name="other")
    partition = "mail", bucket_of("crm")
    before = queue._home.store.records(SCHEDULES, partition, ["crm"])["crm"]
    damaged = Change(partition, ("crm",), {"state": before.state}, {"state": "?"})
    assert not queue._home.store.write_records(SCHEDULES, [damaged])
    assert len(Run(stage, queue).drive(25)) == 2
    assert "schedule crm of queue mail: schedule 'crm' of queue 'mail' is damaged" in caplog.text
    with pytest.raises(errors.StoreCorrupt, match="remove the schedule, and make it again"):
        queue.schedules["crm"]
    assert queue.schedules.remove("crm")
    assert [one.name for one in queue.schedules] == ["other"]


# Ahead --------------------------------------------------------------------------------------------


def test_a_forecast_counts_firings_ahead_beside_what_waits(stage: Stage, queue: Queue) -> None:
    queue.put(b"", delay="90s")
    queue.every("20s", b"", name="crm")
    queue.every("30s", b"", name="twice", count=2)
    queue.every("5s", b"", name="still").pause()
    counts = [count for _, count in queue.forecast("2m")]
    # The last minute is counted to its end.
    assert counts == [2 + 1, 3 + 1 + 1, 3]
    run = Run(stage, queue)
    run.drive(25)
    assert [count for _, count in queue.forecast("90s")] == [1 + 1, 3 + 1 + 1]


# What cannot be -----------------------------------------------------------------------------------


def test_a_count_that_it_has_fired_by_now_is_refused_and_it_goes_on(
    stage: Stage, queue: Queue
) -> None:
    made = queue.every("10s", b"", name="s")
    run = Run(stage, queue)
    run.drive(35)
    with pytest.raises(errors.UsageError, match=r"has fired 3 times, so its count must be more"):
        made.change(count=3)
    assert made.change(count=4).count == 4
    run.drive(30)
    assert (len(run.messages), list(queue.schedules)) == (4, [])


def test_a_change_of_a_policy_leaves_fire_times_that_are_due(stage: Stage, queue: Queue) -> None:
    made = queue.every("10s", b"", name="s", missed="all")
    stage.clock.advance(35)
    assert made.change(missed="all", window="1h").next == made.next
    run = Run(stage, queue)
    assert run.drive(1) == ["08:00:10", "08:00:20", "08:00:30"]


class Heard(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.has_come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.has_come.set()


def test_a_trigger_that_does_not_return_is_told_of() -> None:
    heard = Heard("schedule s of queue mail: its trigger has not said for 10s when it fires next")
    log = logging.getLogger("shardq.schedules.firing.firer")
    log.addHandler(heard)
    with Stage(threaded=True) as busy:
        queue = busy.connect().queue("mail")
        queue.schedule(Hanging(moment_of(busy.clock.now_ms() + 15_000)), b"", name="s")
        consumer = Consumer(queue, lambda _: None, threads=1)
        consumer.start()
        with busy.ticking():
            is_told = heard.has_come.wait(60)
        Hanging.goes_on.set()
        consumer.stop()
        consumer.join()
    log.removeHandler(heard)
    assert is_told


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_that_ends_the_thread_of_schedules_is_logged_and_it_starts_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step, faults = Firer.step, [ZeroDivisionError("a fault")]

    def step_at_times(self: Firer) -> float:
        if faults:
            raise faults.pop()
        return step(self)

    monkeypatch.setattr(Firer, "step", step_at_times)
    with Stage(threaded=True) as busy:
        queue = busy.connect().queue("mail")
        queue.every("1s", b"", name="s")
        ran = threading.Event()
        consumer = Consumer(queue, lambda _: ran.set(), threads=1)
        consumer.start()
        with busy.ticking():
            assert ran.wait(60)
        consumer.stop()
        consumer.join()
    assert "their thread has ended by an error of its own" in caplog.text


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda q: q.every("10s", b"", jitter="11s"),
            "a jitter of 11s is longer than the 10s between",
        ),
        (
            lambda q: q.every("10s", b"", jitter="6s", spread="5s"),
            r"jitter and spread, together 11s, are longer than the 10s .* choose less",
        ),
        (lambda q: q.every("10s", b"", missed="never"), "missed must be one of skip, once, all"),
        (lambda q: q.every("10s", b"", mised="skip"), r"unknown option 'mised'; did you mean"),
        (lambda q: q.every("10s", b"", count=0), "count must be 1 or more"),
        (lambda q: q.every("10s", b"", priority=3), "priority must be below"),
        (lambda q: q.every("10s", b"", key="a", overlap="skip"), "contradict each other"),
        (lambda q: q.every("10s", b"", headers={"schedule": "x"}), "is the schedule's own"),
        (lambda q: q.every("10s", b"", headers={"a": "b" * 16_000}), "leave no room"),
        (lambda q: q.every("0s", b""), "1 s|interval"),
        (lambda q: q.cron("0 0 30 2 *", b""), "never"),
        (lambda q: q.cron("0 0 1 1 *", b"", tz="Europe/Berlim"), "Europe/Berlin"),
        (lambda q: q.every("10s", b"", name="x" * 201), "must be 1 to 200 printable characters"),
        (lambda q: q.every("10s", b"", twice="both"), "twice has no use with an interval"),
        (
            lambda q: q.schedule(IntervalTrigger(hours=1, end_date="2040-01-01"), b"", gap="skip"),
            "gap has no use with an interval",
        ),
        (
            lambda q: q.every("10s", b"", start="2028-01-01T00:00Z", end="2027-06-01T00:00Z"),
            "end|never",
        ),
        (lambda q: q.dead.every("10s", b""), "can have no schedules"),
        (lambda q: q.every("10s", bytes(40 * 1024 + 1)), "larger than the 40,960"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    queue: Queue, make: Any, text: str
) -> None:
    with pytest.raises(errors.UsageError, match=text):
        make(queue)
    assert list(queue.schedules) == []
    assert not queue.settings.schedules_used
