"""Functions that are not what they should be, and runs at a stop: each run ends as it should."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from apps import dead, states, worked, working
from supervised import wait_for

from shardq import Answer, App, Bury, Snooze
from shardq.clock import SystemClock
from shardq.errors import BadApp, BadSetting, JobCancelled, UsageError
from shardq.tasks import Backoff, Context, Draft, Ended, Worker, cancelling, current, executor
from shardq.tasks.options import Policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def local(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/jobs.db", backoff="10ms") as made:
        yield made


async def turned() -> None:
    """Let others run for a moment."""
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_later(0.001, later.set_result, None)
    await later


# What users' functions do -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (turned, "the coroutine turned, which nobody awaits"),
        (lambda: (n for n in [1]), "which has not run"),
        (lambda: Snooze("1s"), "Snooze and did not raise it"),
        (lambda: Bury, "Bury and did not raise it"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"keep": "1h"}, {"batch": 1}, {"timeout": "30s"}])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_returns_its_work_instead_of_doing_it_has_failed(
    local: App, returned: Any, said: str, options: dict[str, Any], is_async: bool
) -> None:
    def function(items: list[int]) -> Any:
        return returned()

    async def coroutine(items: list[int]) -> Any:
        return returned()

    lazy = local.task(attempts=1, **options)(coroutine if is_async else function)
    lazy.put(1 if "batch" in options else [1])
    [end] = worked(local)
    assert end.state == "failed"
    assert said in end.error


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("is_async", [False, True])
def test_what_one_job_sets_in_its_context_no_other_sees(local: App, *, is_async: bool) -> None:
    seen: list[str] = []

    def act(tenant: str) -> None:
        seen.append(TENANT.get())
        TENANT.set(tenant)

    async def act_async(tenant: str) -> None:
        act(tenant)
        await turned()
        assert TENANT.get() == tenant

    for name, function in (("first", act), ("second", act_async if is_async else act)):
        local.task(name=name)(function)
    for number in range(3):
        for name in ("first", "second"):
            local.tasks[name].put(f"{name} {number}")
    assert sorted(states(worked(local, threads=1))) == ["done"] * 6
    assert seen == ["nobody"] * 6


def test_a_future_that_a_function_returns_is_waited_for(local: App) -> None:
    with ThreadPoolExecutor(1) as pool:

        @local.task(attempts=1, keep="1h")
        def divide(by: int) -> Any:
            return pool.submit(lambda: 6 // by)

        good, bad = divide.put(2), divide.put(0)
        assert sorted(states(worked(local))) == ["done", "failed"]
    assert good.result("0s") == 3
    assert bad.error == ("out of attempts: ZeroDivisionError: integer division or modulo by zero")


def test_what_is_called_by_its_class_or_stands_in_for_a_function_runs_as_that(local: App) -> None:
    ran: list[str] = []

    class Sender:
        async def __call__(self, to: str) -> None:
            await turned()
            ran.append(to)

    async def send(how: str, to: str) -> None:
        ran.append(f"{how} {to}")

    class Lazy:
        def __call__(self) -> Iterator[int]:
            yield 1

    local.task(Sender()).put("ada")
    by_mail = local.task(partial(send, "mail"))
    by_mail.put("bob")
    local.task(name="static")(staticmethod(send)).put("post", "eve")
    assert by_mail.name.endswith(".send")
    assert states(worked(local)) == ["done"] * 3
    assert sorted(ran) == ["ada", "mail bob", "post eve"]
    with pytest.raises(BadSetting, match="has a yield"):
        local.task(Lazy())


def test_a_job_ends_though_its_end_cannot_be_reported(local: App) -> None:
    ran: list[str] = []

    @local.task
    def plain() -> None:
        ran.append("plain")

    @local.task
    async def coroutine() -> None:
        ran.append("coroutine")

    @local.task(keep="1h")
    def kept() -> None:
        ran.append("kept")

    @local.task(batch=2)
    def batch(items: list[int]) -> None:
        ran.append("batch")

    def refuse(_: Ended) -> None:
        raise OSError("no space left on device")

    plain.put()
    coroutine.put()
    batch.put(1)
    job = kept.put()
    Worker(local, report=refuse).run(until_empty=True)
    assert sorted(ran) == ["batch", "coroutine", "kept", "plain"]
    assert job.state == "done"


def test_middleware_that_passes_over_the_error_of_a_put_is_told_so(local: App) -> None:
    class Silent:
        def put(self, draft: Draft) -> Any:
            return suppress(ValueError)

        def run(self, context: Context) -> Any:
            return nullcontext()

    with App(local.connection, middleware=[Silent()]) as silent:
        task = silent.task(name="silent")(lambda: None)
        with pytest.raises(UsageError, match="nothing was put, and middleware keeps the error"):
            task.using(group="g" * 300).put()


# What other programs put --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        "nonsense",
        '{"attempts":"3"}',
        '{"attempts":0}',
        '{"timeout_ms":"1s"}',
        '{"keep_ms":1000000000000000}',
        '{"retry_on":"OSError"}',
        '{"backoff":[]}',
        '{"backoff":{"first":"2h","longest":"1h"}}',
    ],
)
def test_options_that_no_release_writes_are_refused_as_they_are_read(header: str) -> None:
    with pytest.raises(UsageError, match="'task-options' cannot be read"):
        Policy().changed(header)


def test_options_of_a_newer_release_are_passed_over() -> None:
    text = '{"colour":"red","attempts":7,"backoff":{"first":"2s","jitter":0,"wave":1}}'
    assert Policy().changed(text) == Policy(attempts=7, backoff=Backoff("2s", jitter=0))


def test_a_job_of_a_batch_may_choose_a_list_of_delays(local: App) -> None:
    @local.task(batch=2)
    def add(numbers: list[int]) -> None: ...

    add.using(backoff=["1ms", "2ms"]).put(1)
    assert states(worked(local)) == ["done"]


def test_a_job_of_an_unknown_task_that_was_put_to_be_due_long_ago_is_looked_at_soon(
    local: App,
) -> None:
    local.task(name="known")(lambda: None)
    queue = local.queue("default")
    queue.put(b"{}", headers={"task": "new"}, due="2020-01-01T00:00:00Z")
    ends: list[Ended] = []
    with working(local, report=ends.append):
        wait_for(lambda: bool(ends), "the job")
    assert ends[0].state == "unknown"
    assert (ends[0].delay_ms or 0) < 600_000


# What a worker has to do --------------------------------------------------------------------------


def test_a_job_goes_on_by_its_own_options_though_many_others_came_meanwhile(
    local: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.tasks.runner._PLANS_MAX", 1)
    others = threading.Event()

    @local.task(attempts=2, bury_on=LookupError)
    def first() -> None:
        assert others.wait(60)
        raise LookupError("of no use")

    @local.task
    def other() -> None:
        others.set()

    first.put()
    other.put()
    Worker(local, threads=2).run(until_empty=True)
    [message] = dead(local)
    assert message.last_error == "LookupError: of no use"


def test_a_deadline_counts_from_the_begin_of_a_run_not_from_its_wait(local: App) -> None:
    seen: list[tuple[datetime, datetime]] = []

    @local.task(timeout="1h")
    async def visit() -> None:
        deadline = current().deadline
        assert deadline is not None
        while worker._consumers[0]._engine.outbox.begun < 3:
            await turned()
        seen.append((deadline, datetime.now(UTC)))

    visit.put_many([()] * 3)
    worker = Worker(local, threads=3, coroutines=1)
    worker.run(until_empty=True)
    for (_, ended), (deadline, _) in pairwise(seen):
        assert deadline >= ended - timedelta(milliseconds=1) + timedelta(hours=1)


def test_all_of_a_batch_fail_where_no_thread_can_watch_it(
    local: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "shardq-limits":
            raise RuntimeError("can't start new thread")
        start(thread)

    @local.task(batch=10, timeout="1h", attempts=1)
    def add(numbers: list[int]) -> None: ...

    add.put_many(range(20))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert states(worked(local)) == ["failed"] * 20


def test_what_outlives_its_worker_is_not_said_to_be_done(local: App) -> None:
    release = threading.Event()
    threads: list[threading.Thread] = []

    @local.task(keep="1h")
    def slow() -> None:
        threads.append(threading.current_thread())
        assert release.wait(60)

    job = slow.put()
    with working(local, deadline="1ms"):
        wait_for(lambda: bool(threads), "the job")
    release.set()
    threads[0].join()
    for thread in threading.enumerate():
        if thread.name == "shardq-results":
            thread.join()
    assert job.state != "done"


@pytest.mark.parametrize("options", [{}, {"batch": 1}])
def test_a_coroutine_that_waits_for_others_does_not_begin_once_its_worker_is_to_stop(
    local: App, options: dict[str, Any]
) -> None:
    ran: list[Any] = []

    async def visit(items: list[int]) -> None:
        ran.append(items)
        while not worker._consumers[0]._stopping:
            await turned()

    task = local.task(**options)(visit)
    for n in range(3):
        task.using(id=f"job-{n}").put(n if options else [n])
    ends: list[Ended] = []
    worker = Worker(local, threads=3, coroutines=1, report=ends.append)
    thread = threading.Thread(target=worker.run)
    thread.start()
    outbox = worker._consumers[0]._engine.outbox
    wait_for(lambda: bool(ran) and outbox.begun == 3, "all")
    worker.stop()
    thread.join()
    assert len(ran) == 1
    assert [(one.attempt, one.last_error) for one in local.queue("default").peek(3)] == [
        (0, None),
        (0, None),
    ]
    assert sorted(states(ends)) in (["done"], ["done", "snoozed"], ["done", "snoozed", "snoozed"])


def test_a_worker_runs_once(local: App) -> None:
    local.task(name="known")(lambda: None)
    worker = Worker(local)
    worker.run(until_empty=True)
    with pytest.raises(UsageError, match="was run before"):
        worker.run()


def test_a_worker_is_not_given_the_letters_of_one_queue(local: App) -> None:
    local.task(name="known", queue="mail")(lambda: None)
    with pytest.raises(UsageError, match=r"queues must be a list of names, as \['mail'\], not"):
        Worker(local, queues="mail")
    assert local.connection.queues() == []


def test_middleware_that_is_not_in_a_list_is_told_so() -> None:
    with pytest.raises(UsageError, match=r"must be a list of objects, not <object .*> alone"):
        App("sqlite://", middleware=object())  # type: ignore[arg-type]


# Deaths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stepped", [False, True])
def test_a_job_that_dies_is_told_to_its_task_or_else_to_its_app(
    tmp_path: Path, *, is_stepped: bool
) -> None:
    told: list[tuple[str, str]] = []
    with App(
        f"sqlite:///{tmp_path}/jobs.db",
        attempts=1,
        on_dead=lambda dead: told.append(("app", dead.headers["task"])),
    ) as app:

        @app.task(name="a")
        def fails() -> None:
            raise ValueError

        @app.task(name="b", on_dead=lambda dead: told.append(("task", dead.headers["task"])))
        async def fails_too() -> None:
            raise ValueError

        @app.task(name="c", batch=2, on_dead=lambda dead: told.append(("batch", dead.text)))
        def all_fail(items: list[int]) -> None:
            raise ValueError(items)

        for task in (fails, fails_too):
            task.put()
        all_fail.put(7)
        app.queue("default").put("{}", headers={"task": "d", "task-options": "{}"})
        app.queue("default").put("[", headers={"task": "a"})
        if is_stepped:
            worker = Worker(app)
            while len(told) < 4:
                worker.step()
            worker.close()
        else:
            with working(app):
                wait_for(lambda: len(told) == 4, "four are told")
    assert sorted(told) == [("app", "a"), ("app", "a"), ("batch", '{"items":7}'), ("task", "b")]


def test_what_is_called_with_dead_jobs_is_a_plain_function(local: App) -> None:
    async def alert(_dead: object) -> None:
        pass

    with pytest.raises(BadSetting, match=r"on_dead .* is async"):
        App(on_dead=alert)
    with pytest.raises(BadSetting, match=r"task a: on_dead .* is async"):
        local.task(name="a", on_dead=alert)(print)


# Before and after ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stepped", [False, True])
def test_an_app_begins_and_ends_in_the_loop_of_its_coroutines(
    local: App, *, is_stepped: bool
) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    called: list[str] = []

    @local.on_start
    def first() -> None:
        called.append("first")

    @local.on_start
    async def second() -> None:
        await turned()
        called.append("second")
        loops.append(asyncio.get_running_loop())

    @local.on_stop
    def last() -> None:
        called.append("last")

    @local.on_stop
    async def before() -> None:
        await turned()
        called.append("before")
        loops.append(asyncio.get_running_loop())

    @local.task
    async def job() -> None:
        called.append("job")
        loops.append(asyncio.get_running_loop())

    job.put()
    worker = Worker(local)
    assert called == []
    if is_stepped:
        while "job" not in called:
            worker.step()
        worker.close()
        worker.close()
    else:
        worker.run(until_empty=True)
    assert called == ["first", "second", "job", "before", "last"]
    assert len(set(loops)) == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_does_not_start_where_its_app_cannot_and_ends_where_that_cannot(
    local: App, caplog: pytest.LogCaptureFixture, *, is_async: bool
) -> None:
    called: list[str] = []
    fails = [True, True]

    def fail(place: int) -> None:
        if fails[place]:
            raise OSError("no pool")

    async def begin() -> None:
        fail(0)

    async def end() -> None:
        fail(1)

    local.on_stop(lambda: called.append("stopped"))
    local.on_start(begin if is_async else partial(fail, 0))
    local.on_stop(end if is_async else partial(fail, 1))
    local.task(name="job")(lambda: called.append("job")).put()
    with pytest.raises(BadApp, match=r"^on_start .* of the app failed: OSError: no pool\.$"):
        Worker(local).run(until_empty=True)
    assert called == []
    fails[0] = False
    Worker(local).run(until_empty=True)
    assert called == ["job", "stopped"]
    assert "of the app failed" in caplog.text


@pytest.mark.parametrize("is_stepped", [False, True])
def test_what_has_begun_ends_where_the_rest_cannot_begin(local: App, *, is_stepped: bool) -> None:
    called: list[str] = []

    @local.on_start
    async def first() -> None:
        called.append("begun")

    @local.on_start
    def second() -> None:
        raise OSError("no pool")

    @local.on_stop
    async def end() -> None:
        called.append("ended")

    local.task(name="job")(lambda: called.append("job")).put()
    worker = Worker(local)
    with pytest.raises(BadApp, match=r"on_start .*second of the app failed: OSError"):
        worker.step() if is_stepped else worker.run(until_empty=True)
    if is_stepped:
        worker.close()
    assert called == ["begun", "ended"]


def test_an_app_ends_though_jobs_that_outlive_the_deadline_have_all_slots(local: App) -> None:
    began, called = threading.Event(), []

    @local.on_stop
    async def end() -> None:
        called.append("stopped")

    @local.task
    async def job() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    job.put()
    with working(local, coroutines=1, deadline="10ms"):
        assert began.wait(60)
    assert called == ["stopped"]


def test_what_cannot_begin_or_end_an_app_is_refused(local: App) -> None:
    def lazy() -> Iterator[None]:
        yield

    for wrong in (None, 3, int, lazy):
        said = "has a yield" if wrong is lazy else "must be a function, not "
        with pytest.raises(BadSetting, match=f"^on_start {said}"):
            local.on_start(wrong)  # type: ignore[arg-type]
        with pytest.raises(BadSetting, match=f"^on_stop {said}"):
            local.on_stop(wrong)  # type: ignore[arg-type]


# Cancels ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "is_reported"), [({}, False), ({"keep": "1h"}, True), ({"timeout": "1h"}, True)]
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_job_that_heeds_a_cancel_ends_as_cancelled(
    local: App, *, is_async: bool, options: dict[str, Any], is_reported: bool
) -> None:
    began, ended = threading.Event(), list[Ended]()
    clock = SystemClock()

    def heed() -> None:
        began.set()
        while not current().is_cancelled:
            clock.sleep(0.005)

    async def heed_too() -> None:
        began.set()
        while not current().is_cancelled:
            await turned()

    stops = local.task(key="stops", **options)(heed_too if is_async else heed)
    job = stops.put()
    worker = Worker(local, report=ended.append if is_reported else None)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(worker.run, until_empty=True)
        assert began.wait(60)
        assert local.cancel("stops") is Answer.RUNNING
        running.result()
    assert [one.state for one in ended] == ["cancelled"] * is_reported
    totals = local.queue("default").totals()
    assert (totals.cancelled, totals.acked) == (1, 0)
    if "keep" in options:
        assert job.state == "cancelled"
        with pytest.raises(JobCancelled, match="was cancelled while it ran"):
            job.result(timeout="1s")


def test_a_cancel_reaches_a_coroutine_that_is_cancellable(
    local: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "_ASK_EVERY_S", 0.01)
    began, told = threading.Event(), list[str]()

    @local.task(key="waits", cancellable=True, keep="1h")
    async def waits() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            told.extend(error.args)
            raise

    job = waits.put()
    with working(local):
        assert began.wait(60)
        assert local.cancel("waits") is Answer.RUNNING
        wait_for(lambda: job.state in ("cancelled", "done"), "the end")
    assert told == ["the job was cancelled by its key"]
    assert job.state == "cancelled"


def test_a_coroutine_that_returns_before_it_is_told_of_a_cancel_keeps_its_result(
    local: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_THREADS_MAX", 1)
    began, is_cancelled, is_read = threading.Event(), threading.Event(), threading.Event()

    @local.task(key="pays", cancellable=True, keep="1h")
    async def pays() -> str:
        began.set()
        assert is_cancelled.wait(60)
        loop = asyncio.get_running_loop()
        soon = loop.create_future()
        loop.call_soon(soon.set_result, None)
        await soon
        # In the one thread: after the worker has read there that the job is cancelled.
        loop.run_in_executor(None, is_read.set)
        assert is_read.wait(60)
        return "paid"

    job = pays.put()
    with working(local):
        assert began.wait(60)
        assert local.cancel("pays") is Answer.RUNNING
        is_cancelled.set()
        wait_for(lambda: job.state in ("cancelled", "done"), "the end")
    assert job.state == "done"
    assert job.result(timeout="1s") == "paid"


def test_what_cannot_be_cancelled_as_it_runs_is_refused_as_cancellable(local: App) -> None:
    async def many(items: list[int]) -> None:
        pass

    with pytest.raises(BadSetting, match="only an async function of one job is cancellable"):
        local.task(name="a", cancellable=True)(lambda: None)
    with pytest.raises(BadSetting, match="only an async function of one job is cancellable"):
        local.task(name="b", batch=2, cancellable=True)(many)  # type: ignore[call-overload]
