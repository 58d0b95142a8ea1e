"""Schedules that cannot be declared: each is refused where that is written, by what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from apps import with_task

from shardq import App
from shardq.errors import BadArguments, BadSetting, UsageError
from shardq.tasks import Worker
from shardq.testing import Sandbox, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def app() -> Iterator[App]:
    with Stage(local=True) as stage:
        yield App(stage.connect(), backoff="1s")


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda app, sync: app.cron("0 0 30 2 *", sync), "0 0 30 2"),
        (lambda app, sync: app.cron("0 25 * * *", sync), "25"),
        (lambda app, sync: app.cron("0 2 * * *", sync, tz="Europe/Berlim"), "Europe/Berlin"),
        (lambda app, sync: app.every("10ms", sync), "too short"),
        (
            lambda app, sync: app.every("1h", sync, start="2031-01-01T00Z", end="2030-01-01T00Z"),
            "is before its start",
        ),
        (lambda app, sync: app.every("1h", sync, start="2031-01-01T00:00"), "no time zone"),
        (lambda app, sync: app.every("1h", sync, jitter="2h"), "jitter"),
        (lambda app, sync: app.every("1h", sync, mised="all"), "did you mean 'missed'"),
        (lambda app, sync: app.every("1h", sync, missed="none"), "skip, once, all"),
        (lambda app, sync: app.every("1h", sync, count=0), "count must be 1 or more"),
        (lambda app, sync: app.every("1h", sync, revision=0), "revision must be 1 or more"),
        (lambda app, sync: app.every("1h", sync, name=""), "schedule name '' must be"),
        (lambda app, sync: app.every("1h", sync, name="x" * 201), "1 to 200"),
        (lambda app, sync: app.every("1h", sync, priority=1), r"using\(priority=\.\.\)"),
        (lambda app, sync: app.every("1h", sync, key="x"), r"using\(key=\.\.\)"),
        (lambda app, sync: app.schedule("0 3 * * *", sync), r"not '0 3 \* .* for app\.cron"),
        (lambda app, sync: app.every("1h", sync()), r"not None; a task with \(\) .* was called"),
        (lambda app, sync: app.schedule(None, sync), "when is it to fire"),
        (lambda app, sync: app.every("1h", lambda: None), "a schedule takes a task"),
        (lambda app, sync: app.every("1h", sync.of(7)), "argument region must be str, not int"),
        (lambda app, sync: app.every("1h", sync.of(town="x")), "has no argument town"),
        (lambda app, sync: app.every("1h", sync.of("a", "b")), "takes 1 argument by place"),
        (lambda app, sync: app.every("1h", with_task(App(), "x")), "of another app"),
        (lambda app, sync: app.every("1h", sync.using(delay="5m")), r"using\(delay=None\)"),
        (lambda app, sync: app.every("1h", sync.using(due="2031-01-01T00Z")), "leave it out"),
        (lambda app, sync: app.every("1h", sync.using(id="x")), "an id of its own"),
        (
            lambda app, sync: app.every("1h", sync.using(key="x", on_conflict="debounce")),
            "would put the same job off for ever",
        ),
        (
            lambda app, sync: app.every("1h", sync.using(key="x"), overlap="skip"),
            "key and overlap contradict each other",
        ),
        (
            lambda app, sync: app.every("1h", sync.using(headers={"schedule": "x"})),
            "is the schedule's own",
        ),
        (lambda app, sync: app.unschedule(""), "schedule name '' must be"),
        (lambda app, sync: app.unschedule("x", queue="a b"), "queue name"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_where_it_is_declared(
    app: App, declare: Callable[[App, Any], None], said: str
) -> None:
    sync = with_task(app)
    with pytest.raises(UsageError, match=said):
        declare(app, sync)
    app.reconcile()
    assert list(app.schedules) == []


def test_a_task_that_needs_an_argument_is_refused_without_it(app: App) -> None:
    @app.task(name="sync", key="sync-{region}")
    def sync(region: str) -> None: ...

    with pytest.raises(BadArguments, match="needs the argument region"):
        app.every("1h", sync)  # type: ignore[arg-type]
    app.every("1h", sync.of("eu"))
    app.reconcile()
    assert app.schedules["sync"].run().key == "sync-eu"


def test_two_schedules_of_one_name_are_refused_with_their_places(app: App) -> None:
    sync = with_task(app)
    app.every("1h", sync)
    with pytest.raises(UsageError) as raised:
        app.every("2h", sync.of("eu"))
    places = str(raised.value).partition("named 'sync': ")[2].partition("; give one")[0]
    one, another = places.split(" and ")
    assert one.startswith(f"{__file__}:")
    assert int(another.rpartition(":")[2]) == int(one.rpartition(":")[2]) + 2
    app.every("2h", sync.using(queue="other"))
    app.every("2h", sync.of("eu"), name="eu")


def test_a_schedule_is_declared_anew_where_its_task_is(app: App) -> None:
    app.every("1h", with_task(app))
    app._home._by_name.clear()
    app._home.definitions.clear()
    app.every("2h", with_task(app))
    app.reconcile()
    assert str(app.schedules["sync"].trigger) == "every 2h"


def test_a_cell_of_a_notebook_may_be_run_again(app: App) -> None:
    sync = with_task(app)
    for each in ("1h", "2h"):
        exec(
            compile("app.every(each, sync)", "<cell>", "exec"),
            {"app": app, "each": each, "sync": sync},
        )
    app.reconcile()
    assert str(app.schedules["sync"].trigger) == "every 2h"


def test_what_is_declared_and_removed_is_refused(app: App) -> None:
    sync = with_task(app)
    app.every("1h", sync)
    for queue in (None, "default"):
        with pytest.raises(UsageError, match="leave out one of them, or name the queue"):
            app.unschedule("sync", queue=queue)
    app.unschedule("sync", queue="old")
    app.unschedule("gone")
    with pytest.raises(UsageError, match="leave out one of them, or name the queue"):
        app.every("1h", sync, name="gone")


def test_what_its_queue_does_not_allow_ends_the_worker(app: App) -> None:
    sync = with_task(app)
    app.every("1h", sync.using(priority=7))
    with pytest.raises(UsageError, match="below the 3 bands of queue 'default', not 7"):
        Worker(app)
    other = App(app.connection)
    other.every("1h", with_task(other).using(attempts=99))
    with pytest.raises(UsageError, match="attempts=99 is more than the 5"):
        Worker(other)


def test_an_app_of_a_sandbox_that_cannot_begin_stays_where_it_was(app: App) -> None:
    before = app.connection
    app.every("1h", with_task(app).using(priority=7))
    with (
        pytest.raises(BadSetting, match="below the 3 bands of queue 'default', not 7"),
        Sandbox(app) as sandbox,
    ):
        sandbox.run_due()
    assert app.connection is before
