"""Schedules of tasks: declared by code, brought to the store by workers, known to what they run."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from apps import with_task
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger
from freezegun import freeze_time
from worlds import on_both_stores

from shardq import App, Consumer, Firing, Retry
from shardq.errors import KeyTaken, UnknownSchedule, UsageError
from shardq.model.times import moment_of
from shardq.schedules.declaring import declare
from shardq.schedules.options import chosen
from shardq.tasks import Worker, current
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardq import Schedule

BEGIN = datetime(2027, 1, 15, 8, tzinfo=UTC)
"""When a stage begins."""
Opened = Callable[[], App]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(local=True) as made:
        yield made


@pytest.fixture
def app(stage: Stage) -> App:
    return App(stage.connect(), backoff="1s")


@pytest.fixture
def opened(url: str) -> Iterator[Opened]:
    """Opens apps of one store and queue, each as a process of its own."""
    queue = f"schedules-{uuid4().hex}"
    made: list[App] = []

    def another() -> App:
        made.append(App(url, queue=queue))
        return made[-1]

    yield another
    for one in made:
        one.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "shardq.tasks")
    return caplog


def run(stage: Stage, app: App, **until: float) -> None:
    """Let a worker run the jobs of an app for some time."""
    worker = Worker(app)
    stage.drive(*worker._consumers, seconds=timedelta(**until).total_seconds(), stride=0.5)
    for one in worker._consumers:
        one.close()


def the(app: App, name: str = "sync") -> Schedule:
    """A schedule that is there."""
    return app.schedules[name]


# Firing -------------------------------------------------------------------------------------------


def test_a_task_runs_at_each_fire_time_and_knows_it_and_the_one_before(
    stage: Stage, app: App
) -> None:
    got: list[Any] = []

    @app.task(name="sync", headers={"team": "crm"})
    def sync(region: str = "all") -> None:
        got.append((region, current().key, current().headers, current().firing))

    app.every("1m", sync.using(key="crm"))
    app.cron("3 9 * * *", sync.of(region="eu"), tz="Europe/Berlin", name="nightly")
    run(stage, app, minutes=3.1)
    times = [BEGIN + timedelta(minutes=number) for number in (1, 2, 3)]
    assert [one for one in got if one[0] == "all"] == [
        ("all", "crm", {"team": "crm"}, Firing("sync", time, before))
        for time, before in zip(times, [None, *times], strict=False)
    ]
    assert [one for one in got if one[0] == "eu"] == [
        ("eu", None, {"team": "crm"}, Firing("nightly", times[2], None))
    ]


def test_a_run_that_fails_knows_its_firing_when_it_runs_again(stage: Stage, app: App) -> None:
    got: list[Any] = []

    @app.task(name="sync")
    def sync() -> None:
        got.append((current().attempt, current().firing))
        if current().attempt == 1:
            raise Retry

    app.every("1m", sync, count=1)
    run(stage, app, minutes=2)
    firing = Firing("sync", BEGIN + timedelta(minutes=1), None)
    assert got == [(1, firing), (2, firing)]
    assert Firing.of(app.queue("default").put("x")) is None


def test_a_plain_consumer_is_told_the_firing_of_a_message(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.every("1m", "hello", name="greeting")
    queue.put("by hand", headers={"schedule": "greeting", "schedule-time": "noon"})
    recorder = Recorder(stage.clock)
    stage.drive(Consumer(queue, recorder), seconds=130, stride=0.5)
    times = [BEGIN + timedelta(minutes=1), BEGIN + timedelta(minutes=2)]
    assert [Firing.of(message) for message in recorder.messages] == [
        None,
        Firing("greeting", times[0], None),
        Firing("greeting", times[1], times[0]),
    ]


def test_a_job_that_was_put_by_hand_has_no_firing(stage: Stage, app: App) -> None:
    got: list[Any] = []

    @app.task
    def sync() -> None:
        got.append(current().firing)

    sync()
    sync.put()
    run(stage, app, seconds=1)
    assert got == [None, None]


def test_coroutines_and_items_of_batches_are_put_by_schedules_as_well(
    stage: Stage, app: App
) -> None:
    @app.task(name="fetch")
    async def fetch(url: str) -> None: ...

    @app.task(name="index", batch=10)
    def index(pages: list[date]) -> None: ...

    app.every("1m", fetch.of("x"))
    app.every("1m", index.of(date(2027, 1, 1)))
    app.reconcile()
    recorder = Recorder(stage.clock)
    stage.drive(Consumer(app.queue("default"), recorder), seconds=61, stride=0.5)
    put = {message.headers["task"]: message.text for message in recorder.messages}
    assert put == {"fetch": '{"url":"x"}', "index": '{"pages":"2027-01-01"}'}


# Reconciling --------------------------------------------------------------------------------------


def test_nothing_is_written_until_a_worker_starts(opened: Opened) -> None:
    app = opened()
    app.every("1h", with_task(app))
    assert list(app.schedules) == []
    Worker(app)
    assert [one.name for one in app.schedules] == ["sync"]


@on_both_stores
def test_a_schedule_is_made_by_one_worker_and_found_by_the_others(opened: Opened) -> None:
    apps = [opened(), opened()]
    for app in apps:
        sync = with_task(app)
        app.every("1h", sync.using(key="crm"), missed="all", jitter="5m")
        app.cron("30 2 * * *", sync.of("eu"), tz="Europe/Berlin", name="nightly")
        Worker(app)
    first, second = ([*app.schedules] for app in apps)
    assert first == second
    assert [(one.name, one.revision) for one in first] == [("nightly", 1), ("sync", 1)]
    assert (first[1].policies.missed, first[1].policies.jitter_ms) == ("all", 300_000)
    assert first[0].trigger.zone == "Europe/Berlin"


@on_both_stores
def test_a_declaration_holds_once_its_revision_is_higher(opened: Opened) -> None:
    old, new = opened(), opened()
    old.every("1h", with_task(old))
    Worker(old)
    the(old).pause()
    new.every("5m", with_task(new).of("eu"), revision=2, overlap="skip")
    Worker(new)
    changed = the(old)
    assert (str(changed.trigger), changed.revision) == ("every 5m", 2)
    assert changed.policies.overlap == "skip"
    assert changed.state == "paused"
    assert changed.resume().run().text == '{"region":"eu"}'


def test_a_rolling_deploy_does_not_change_a_schedule_back(
    opened: Opened, log: pytest.LogCaptureFixture
) -> None:
    old, new, again = opened(), opened(), opened()
    old.every("1h", with_task(old))
    Worker(old)
    new.every("5m", with_task(new), revision=2)
    Worker(new)
    before = the(new)
    again.every("1h", with_task(again))
    log.clear()
    Worker(again)
    Worker(new)
    assert the(new) == before
    assert str(before.trigger) == "every 5m"
    [said] = log.messages
    assert said.endswith("declared with revision 1, is left as it is: of revision 2, of newer code")


def test_whoever_reads_a_schedule_before_newer_code_changes_it_does_not_change_it_back(
    stage: Stage,
) -> None:
    oldest, old, new = (App(stage.connect()) for _ in range(3))
    for app, revision in ((oldest, 1), (new, 3)):
        app.every("1h", with_task(app), revision=revision)
    book = old.queue("default").schedules._home
    Worker(oldest)
    found = book.found(["sync"])["sync"]
    Worker(new)
    make = chosen(every="5m")
    assert make is not None
    declare(book, make, "old", name="sync", revision=2, found=found)
    assert (str(the(new).trigger), the(new).revision) == ("every 1h", 3)


def test_an_interval_that_stays_goes_on_as_it_was_begun(stage: Stage) -> None:
    old, new = App(stage.connect()), App(stage.connect())
    old.every("1h", with_task(old))
    Worker(old)
    stage.clock.advance(1_000)
    new.every("1h", with_task(new), revision=2, missed="skip")
    Worker(new)
    assert the(new).policies.missed == "skip"
    assert the(new).next == BEGIN + timedelta(hours=1)


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        (lambda app, sync: app.every("5m", sync), "trigger"),
        (lambda app, sync: app.every("1h", sync.of("eu")), "arguments"),
        (lambda app, sync: app.every("1h", sync.using(key="x")), "key"),
        (lambda app, sync: app.every("1h", sync.using(attempts=2)), "headers"),
        (lambda app, sync: app.every("1h", sync, jitter="5m", count=3), "count, jitter"),
        (lambda app, sync: app.every("1h", sync, end="2040-01-01T00:00Z"), "trigger"),
    ],
)
def test_another_declaration_of_the_same_revision_ends_the_worker_and_both_are_named(
    stage: Stage, changed: Callable[[App, Any], None], differing: str
) -> None:
    one, another = App(stage.connect()), App(stage.connect())
    one.every("1h", with_task(one))
    Worker(one)
    before = the(one)
    changed(another, with_task(another))
    with pytest.raises(UsageError) as raised:
        Worker(another)
    said = str(raised.value)
    assert f"schedule 'sync' of queue 'default' is declared at {__file__}:" in said
    assert "the store has another, every 1h of revision 1" in said
    assert f"of which these differ: {differing}; raise the revision" in said
    assert the(one) == before


def test_a_start_that_moves_is_refused_with_what_to_take_instead(stage: Stage) -> None:
    for hint in (False, True):
        app = App(stage.connect())
        app.every("1h", with_task(app), start=moment_of(stage.clock.true_ms()))
        app.every("1h", with_task(app, "other"), at_start=True)
        if hint:
            with pytest.raises(UsageError, match=r"in each run .*: give a fixed one, or at_start="):
                Worker(app)
        else:
            Worker(app)
            assert the(app).next == the(app, "other").next == moment_of(stage.clock.true_ms())
        stage.clock.advance(60)


def test_all_declarations_that_the_store_has_otherwise_are_in_one_error(stage: Stage) -> None:
    one, another = App(stage.connect()), App(stage.connect())
    for app, interval in ((one, "1h"), (another, "2h")):
        sync = with_task(app)
        for name in ("a", "b"):
            app.every(interval, sync, name=name)
        app.every("1h", with_task(app, "else"), name="same")
    one.schedules.every("1h", one.tasks["sync"], name="by-hand")  # type: ignore[arg-type]
    another.every("1h", sync, name="by-hand")
    another.every("1h", sync, name="z")
    one.reconcile()
    with pytest.raises(UsageError) as raised:
        another.reconcile()
    said = str(raised.value)
    assert [said.count(f"schedule {name!r} of queue") for name in ("a", "b", "by-hand")] == [1] * 3
    assert "another, every 1h, made at run time; remove that one, or give this another name" in said
    assert said.endswith(
        "differ: trigger; raise the revision of the one that is to hold, or give one of them "
        "another name."
    )
    assert {str(the(another, name).trigger) for name in ("a", "b", "z")} == {"every 1h"}


def test_reconcile_tells_what_it_has_made_changed_and_removed(stage: Stage) -> None:
    old, new = App(stage.connect()), App(stage.connect())
    for app, revision in ((old, 1), (new, 2)):
        sync = with_task(app)
        app.every("1h", sync)
        app.every("1h", sync, name="stepped", revision=revision)
    old.every("1h", with_task(old, "gone"))
    new.unschedule("gone")
    new.every("1h", sync, name="new")
    assert old.reconcile() == (["sync", "stepped", "gone"], [], [])
    done = new.reconcile()
    assert (done.made, done.changed, done.removed) == (["new"], ["stepped"], ["gone"])
    assert new.reconcile() == ([], [], [])


def test_what_was_changed_at_run_time_stays_until_the_revision_is_higher(stage: Stage) -> None:
    for app in (apps := [App(stage.connect()) for _ in range(3)]):
        app.every("1h", with_task(app), revision=2 if app is apps[2] else 1)
    Worker(apps[0])
    changed = the(apps[0]).change(every="5m").change(jitter="1m")
    Worker(apps[1])
    assert the(apps[0]) == changed
    Worker(apps[2])
    assert (str(the(apps[0]).trigger), the(apps[0]).policies.jitter_ms) == ("every 1h", 0)


def test_what_code_removes_old_code_does_not_make_again_and_newer_code_does(
    opened: Opened, log: pytest.LogCaptureFixture
) -> None:
    old, new, newer = opened(), opened(), opened()
    with_task(new)
    old.every("1h", with_task(old))
    Worker(old)
    new.unschedule("sync")
    assert [one.name for one in new.schedules] == ["sync"]
    Worker(new)
    Worker(old)
    Worker(new)
    assert list(old.schedules) == []
    assert "code has removed it" in log.text
    newer.every("1h", with_task(newer), revision=2)
    Worker(newer)
    assert the(old).revision == 2


def test_a_queue_that_is_made_anew_gets_its_schedules_again(stage: Stage) -> None:
    app = App(stage.connect())
    app.every("1m", with_task(app), count=1)
    run(stage, app, minutes=2)
    assert list(app.schedules) == []
    app.queue("default").drop()
    stage.clock.advance(10)
    Worker(app)
    assert the(app).fired == 0


def test_a_removal_is_of_one_queue_that_may_have_no_task_any_more(stage: Stage) -> None:
    old, new = App(stage.connect(), queue="old"), App(stage.connect(), queue="new")
    for app in (old, new):
        app.every("1h", with_task(app))
    Worker(old)
    new.unschedule("sync", queue="old")
    new.unschedule("sync", queue="never-there")
    Worker(new)
    assert [one.queue for one in old.schedules] == []
    assert [one.queue for one in new.schedules] == ["new"]
    assert "never-there" not in stage.connect().queues()


def test_one_that_was_made_at_run_time_is_left_alone_by_code(
    stage: Stage, log: pytest.LogCaptureFixture
) -> None:
    removing, declaring = App(stage.connect()), App(stage.connect())
    made = removing.schedules.every("1h", with_task(removing))
    removing.unschedule("sync")
    Worker(removing)
    assert the(removing) == made
    assert "was made at run time" in log.text
    declaring.every("1h", with_task(declaring), revision=9)
    with pytest.raises(UsageError, match="every 1h, made at run time; remove that one, or give"):
        Worker(declaring)
    assert the(removing) == made


def test_one_that_has_ended_is_not_made_again(stage: Stage, log: pytest.LogCaptureFixture) -> None:
    apps = [App(stage.connect()) for _ in range(3)]
    for app in apps:
        sync = with_task(app)
        app.every("1m", sync, count=2)
        app.every("1m", sync, name="until", end=BEGIN + timedelta(minutes=3))
        app.cron("0 12 1 1 *", sync, name="was", end="2027-01-02T00:00Z")
    run(stage, apps[0], minutes=5)
    done = apps[0].queue("default").totals().acked
    assert done == 5
    assert "schedule was of queue default, declared with revision 1, is not made" in log.text
    log.clear()
    stage.clock.advance(2 * 86_400)
    run(stage, apps[1], minutes=5)
    Worker(apps[2])
    assert list(apps[0].schedules) == []
    assert apps[0].queue("default").totals().acked == done
    assert [one.levelno for one in log.records if "it has ended" in one.getMessage()] == (
        [logging.INFO] * 4
    )


def test_one_that_is_about_to_end_is_not_made_again_but_by_newer_code(stage: Stage) -> None:
    apps = [App(stage.connect()) for _ in range(3)]
    for app, revision in zip(apps, (1, 1, 2), strict=True):
        app.every("1m", with_task(app), count=1, revision=revision)
    worker = Worker(apps[0])
    queue = apps[0].queue("default")
    assert stage.drive(*worker._consumers, seconds=120, until=lambda: bool(queue.peek()))
    Worker(apps[1])
    assert list(apps[1].schedules) == []
    Worker(apps[2])
    assert (the(apps[2]).fired, the(apps[2]).revision) == (0, 2)
    assert the(apps[2]).next == BEGIN + timedelta(minutes=2, milliseconds=-100)


def test_a_damaged_schedule_holds_up_no_other(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    with App(f"sqlite:///{tmp_path}/jobs.db") as app:
        sync = with_task(app)
        for name in ("bad", "good"):
            app.every("1h", sync, name=name)
        app.reconcile()
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as other, other:
            other.execute("UPDATE schedules SET definition = '{' WHERE name = 'bad'")
            other.execute("UPDATE messages SET body = X'7b' WHERE name = 'bad'")
        app.every("1h", sync, name="new")
        Worker(app)
        assert "schedule 'bad' of queue 'default' is damaged" in log.text
        for name in ("good", "new"):
            assert app.schedules.get(name) is not None


def test_a_schedule_of_a_task_that_is_gone_is_told_of_and_its_jobs_wait_for_who_has_it(
    stage: Stage, log: pytest.LogCaptureFixture
) -> None:
    got: list[str] = []
    old, new = App(stage.connect()), App(stage.connect())

    @old.task(name="sync")
    def sync(region: str) -> None:
        got.append(region)

    old.every("1m", sync.of("eu"), count=1)
    for customer in range(7):
        old.schedules.every("10d", sync.of("x"), name=f"customer-{customer}")
    Worker(old)
    with_task(new, "other")
    log.clear()
    run(stage, new, minutes=2)
    [said] = [record for record in log.records if record.levelno == logging.WARNING]
    assert said.getMessage() == (
        "queue default has schedules of task sync, which this app does not have; their jobs wait "
        "for a worker that has it: customer-0, customer-1, customer-2, customer-3, customer-4 and "
        "3 more; if it was renamed, declare it by its old name, @app.task(name='sync'), or let "
        "app.unschedule(..) remove them and @app.task(aliases=['sync']) run what waits"
    )
    assert got == []
    [waiting] = new.queue("default").peek()
    assert (
        "this worker's app has no task sync; let it import the module that declares it, or, if it "
        "was renamed, declare it with aliases=['sync']; app.unschedule('sync') ends the schedule "
        "that puts it"
    ) in str(new.queue("default").state_of(waiting.id))
    run(stage, old, minutes=5)
    assert got == ["eu"]


def test_a_schedule_that_is_not_declared_any_more_is_told_of(
    stage: Stage, log: pytest.LogCaptureFixture
) -> None:
    old, new = App(stage.connect()), App(stage.connect())
    sync = with_task(old)
    old.every("1h", sync)
    old.schedules.every("1h", sync, name="by-hand")
    Worker(old)
    assert [one for one in log.records if one.levelno == logging.WARNING] == []
    with_task(new)
    Worker(new)
    assert log.messages[-1].endswith("until app.unschedule(name) removes them: sync")


@pytest.mark.parametrize(
    "trigger",
    [
        lambda: IntervalTrigger(hours=1),
        lambda: CalendarIntervalTrigger(days=2, hour=3, timezone="Europe/Berlin"),
        lambda: OrTrigger([IntervalTrigger(hours=1), CronTrigger(hour=5, timezone="UTC")]),
        lambda: IntervalTrigger(hours=1, start_date="2027-02-01", timezone="Asia/Tokyo"),
        lambda: CalendarIntervalTrigger(days=2, start_date="2027-01-16", timezone="UTC"),
    ],
)
def test_a_trigger_of_apscheduler_is_the_same_in_each_process(
    stage: Stage, trigger: Callable[[], Any]
) -> None:
    seen = []
    for app in (App(stage.connect()), App(stage.connect())):
        with freeze_time(datetime.fromtimestamp(stage.clock.now_us() / 1e6 + 0.12, UTC)):
            app.schedule(trigger(), with_task(app))
            app.reconcile()
        seen.append(the(app))
        stage.clock.advance(86_400)
    assert seen[0] == seen[1]


def test_a_start_that_was_given_to_a_trigger_holds_though_it_is_near(
    stage: Stage, app: App
) -> None:
    start = BEGIN + timedelta(hours=1, seconds=15)
    with freeze_time(BEGIN + timedelta(seconds=30)):
        app.schedule(IntervalTrigger(hours=1, start_date=start), with_task(app))
    app.reconcile()
    assert the(app).next == start


# At run time --------------------------------------------------------------------------------------


def test_a_change_of_its_headers_leaves_the_task_of_a_schedule(stage: Stage, app: App) -> None:
    ran: list[str] = []

    @app.task(name="crm.sync")
    def sync() -> None:
        ran.append(current().headers["a"])

    app.schedules.every("10s", sync.using(headers={"a": "b"}), name="sync")
    the(app).change(headers={"a": "c"})
    run(stage, app, seconds=12)
    assert ran == ["c"]


def test_schedules_are_made_at_run_time_beside_those_that_code_declares(opened: Opened) -> None:
    app = opened()
    sync = with_task(app)
    app.every("1h", sync)
    Worker(app)
    made = [
        app.schedules.every("1d", sync.using(key=f"of-{name}").of(name), name=f"customer-{name}")
        for name in ("ada", "bob")
    ]
    cron = app.schedules.cron("0 6 * * 1", sync.of("eu"), tz="Asia/Tokyo", name="weekly")
    app.schedules.schedule(CronTrigger(hour=1, timezone="UTC"), sync, name="daily", missed="all")
    assert (
        app.schedules.every("1d", sync.using(key="of-ada").of("ada"), name=made[0].name)
        == (made[0])
    )
    with pytest.raises(KeyTaken, match="another schedule 'customer-ada'"):
        app.schedules.every("1d", sync, name="customer-ada")
    Worker(app)
    names = ["customer-ada", "customer-bob", "daily", "sync", "weekly"]
    assert [one.name for one in app.schedules] == names
    assert (cron.revision, cron.trigger.zone) == (0, "Asia/Tokyo")
    put = made[1].run()
    assert (put.key, put.text) == ("of-bob", '{"region":"bob"}')
    assert app.schedules.get("weekly", queue=app.queue_names[0]) == cron
    with pytest.raises(UnknownSchedule, match=r"'weekl' in schedules-.*; did you mean 'weekly'"):
        app.schedules["weekl"]
    assert cron.remove()
    assert app.schedules.get("weekly") is None
    with pytest.raises(UnknownSchedule, match="there is no schedule 'weekly' in schedules-"):
        app.schedules["weekly"]
    with pytest.raises(UnknownSchedule, match=r"did you mean 'daily'\?"):
        app.schedules["shop.daily"]
