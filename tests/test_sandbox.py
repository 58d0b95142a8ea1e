"""Apps in a sandbox: where their jobs are, how they run, and what of their errors a test sees."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from travelled import START, consumed, sandbox

import shardq
from shardq import App, Message
from shardq.clock import pause
from shardq.errors import StoreUnavailable, UsageError
from shardq.tasks import current
from shardq.testing import Sandbox

# Errors -------------------------------------------------------------------------------------------


def test_what_a_message_dies_of_is_raised_in_the_test_and_time_stands_there(
    sandbox: Sandbox,
) -> None:
    def act(message: Message) -> None:
        raise ValueError(message.text)

    queue, seen = consumed(sandbox, act, attempts=3, backoff="1h", backoff_max="1h")
    queue.put("a", delay="1h")
    with pytest.raises(ValueError, match=r"^a$") as raised:
        sandbox.travel("30d")
    assert raised.traceback[-1].name == "act"
    assert len(seen.all) == 3
    assert timedelta(hours=3) <= sandbox.now - START < timedelta(hours=4)
    [dead] = queue.dead.peek()
    assert dead.text == "a"
    assert sandbox.travel("30d") == 0


@pytest.mark.parametrize(("raises", "runs"), [("failure", 1), ("death", 2), ("nothing", 2)])
def test_a_test_chooses_what_of_a_job_s_errors_is_raised(raises: Any, runs: int) -> None:
    def act(_: Message) -> None:
        raise ValueError

    with Sandbox(start=START, raises=raises) as sandbox:
        queue, seen = consumed(sandbox, act, attempts=2)
        queue.put("a")
        if raises == "nothing":
            sandbox.travel("1d")
        else:
            with pytest.raises(ValueError, match=r"^$"):
                sandbox.travel("1d")
        assert len(seen.all) == runs
        assert type(sandbox.runs()[-1].error) is ValueError


def test_a_retry_that_is_asked_for_is_no_failure(sandbox: Sandbox) -> None:
    def act(message: Message) -> None:
        if message.attempt == 1:
            raise shardq.Retry("1m")

    sandbox.raises = "failure"
    queue, _ = consumed(sandbox, act)
    queue.put("a")
    sandbox.travel("1h")
    assert [ran.state for ran in sandbox.runs()] == ["retrying", "done"]


def test_a_handler_that_leaves_its_work_undone_is_an_error_of_the_test(sandbox: Sandbox) -> None:
    async def later() -> None:
        """Nobody awaits it."""

    queue, _ = consumed(sandbox, lambda _: later(), attempts=1)
    queue.put("a")
    with pytest.raises(AssertionError, match="coroutine"):
        sandbox.run_due()


def test_a_store_in_trouble_is_waited_for_as_elsewhere(sandbox: Sandbox) -> None:
    queue, seen = consumed(sandbox)
    queue.put("a", delay="1h")
    sandbox.faults.fail("take", times=3)
    sandbox.travel("2h")
    [(_, since)] = seen.all
    assert timedelta(hours=1) < since < timedelta(hours=1, seconds=10)
    sandbox.faults.fail("insert")
    with pytest.raises(StoreUnavailable):
        queue.put("b")
    assert len(sandbox.puts()) == 1


# Puts inline --------------------------------------------------------------------------------------


def test_inline_a_put_that_is_due_has_run_when_it_returns_and_what_its_jobs_put_as_well() -> None:
    def act(message: Message) -> None:
        if message.text == "a":
            queue.put("b")
            assert seen.all == [("a", timedelta())]
            queue.put("later", delay="1h")

    with Sandbox(start=START, inline=True) as sandbox:
        queue, seen = consumed(sandbox, act)
        queue.put("a")
        assert seen.all == [("a", timedelta()), ("b", timedelta())]
        queue.put_many(["c", "d"])
        assert [text for text, _ in seen.all] == ["a", "b", "c", "d"]
        sandbox.travel("1h")
        assert seen.all[-1] == ("later", timedelta(hours=1))


def test_inline_a_put_raises_what_its_job_dies_of() -> None:
    app = App(attempts=1)

    @app.task
    def fail() -> None:
        raise ValueError("no")

    with Sandbox(app, inline=True), pytest.raises(ValueError, match="no"):
        fail.put()


# Apps ---------------------------------------------------------------------------------------------


def test_an_app_s_jobs_are_in_the_sandbox_and_after_it_where_they_were(tmp_path: Any) -> None:
    app = App(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    def job(n: int) -> None:
        assert n

    job.put(1)
    before = app.connection
    with Sandbox(app) as sandbox:
        job.put(2)
        assert app.connection is not before
        assert sandbox.run_due() == 1
        app.close()
        job.put(3)
        assert [put.arguments for put in sandbox.puts()] == [{"n": 2}, {"n": 3}]
    assert app.connection is before
    assert [message.text for message in app.queue("default").peek()] == ['{"n":1}']
    app.close()


def test_an_app_that_is_in_no_sandbox_cannot_use_its_store_while_one_is_open(tmp_path: Any) -> None:
    with (
        shardq.connect(f"sqlite:///{tmp_path / 'real.db'}") as real,
        shardq.connect("sqlite://") as memory,
        Sandbox() as sandbox,
    ):
        outside, beside, own = App(real), App(memory), App(sandbox.connect())
        for app in (outside, beside, own):
            app.task(name="job")(print)
        with pytest.raises(UsageError, match=r"task job is not in the sandbox .*real\.db; add it"):
            outside.tasks["job"].put()  # type: ignore[union-attr]
        with pytest.raises(UsageError, match="is not in the sandbox"):
            outside.get("key")
        for app in (beside, own):
            app.queue("default")
        with Sandbox(outside):
            outside.queue("default")
        with pytest.raises(UsageError, match="is not in the sandbox"):
            outside.queue("default")
        sandbox.close()
        assert outside.queue("default").peek() == []


def test_a_task_that_is_declared_later_runs_too() -> None:
    app, ran = App(), []
    with Sandbox(app) as sandbox:
        assert sandbox.travel("1h") == 0

        @app.task
        def first() -> None:
            ran.append("first")

        first.put()
        sandbox.run_due()

        @app.task(queue="other")
        def second() -> None:
            ran.append("second")

        second.put()
        sandbox.run_due()
    assert ran == ["first", "second"]


def test_a_coroutine_s_sleep_is_travelled_through() -> None:
    app = App()

    @app.task
    async def nap(hours: int) -> None:
        await pause(3_600 * hours)
        await asyncio.to_thread(int)
        await pause(1)

    with Sandbox(app, start=START) as sandbox:
        nap.put(5)
        assert sandbox.run_due() == 1
        assert sandbox.now - START == timedelta(hours=5, seconds=1)
        assert sandbox.assert_ran(nap, hours=5).at == sandbox.now


def test_coroutines_share_a_loop_and_run_inside_an_async_test_too() -> None:
    app, loops = App(), set[object]()

    @app.task
    async def job() -> None:
        await pause(0.1)
        loops.add(asyncio.get_running_loop())

    async def test() -> None:
        with Sandbox(app) as sandbox:
            job.put()
            sandbox.run_due()
            job.put()
            sandbox.run_due()
            assert len(sandbox.runs()) == 2
            assert asyncio.get_running_loop() not in loops

    asyncio.run(test())
    assert len(loops) == 1


def test_time_limits_are_of_the_sandbox_s_time() -> None:
    app, was_told = App(timeout="10s", attempts=1), []

    @app.task
    def slow(seconds: int) -> None:
        sandbox.clock.advance(seconds)
        was_told.append(current().is_cancelled)

    @app.task
    async def sleepy(seconds: int) -> None:
        await pause(seconds)

    with Sandbox(app, start=START, raises="nothing") as sandbox:
        for task in (slow, sleepy):
            task.put(9)
            task.put(11)
        sandbox.run_due()
        states = [(ran.put.task.rpartition(".")[2], ran.state) for ran in sandbox.runs()]
        assert states == [
            ("slow", "done"), ("slow", "failed"), ("sleepy", "done"), ("sleepy", "failed")
        ]  # fmt: skip
        assert [type(ran.error).__name__ for ran in sandbox.runs()][1::2] == ["TimeLimit"] * 2
        assert sandbox.now - START == timedelta(seconds=9 + 11 + 9 + 10)


def test_batches_take_what_is_due_and_run_when_nothing_more_is() -> None:
    app, batches = App(), []

    @app.task(batch=3)
    def index(pages: list[int]) -> None:
        batches.append(pages)

    with Sandbox(app) as sandbox:
        index.put_many(range(7))
        index.using(delay="1h").put(7)
        assert sandbox.run_due() == 7
        assert batches == [[0, 1, 2], [3, 4, 5], [6]]
        sandbox.assert_put(index, 7)
        sandbox.travel("1h")
    assert batches[-1] == [7]


def test_results_and_progress_are_kept_at_once() -> None:
    app = App(keep="1d")

    @app.task
    def double(n: int) -> int:
        current().progress(0.5, "half")
        progress.append(job.progress)
        return 2 * n

    progress: list[Any] = []
    with Sandbox(app) as sandbox:
        job = double.put(21)
        sandbox.run_due()
        assert job.result(timeout="0s") == 42
    assert progress[0].note == "half"


def test_who_waits_for_a_result_lets_time_pass() -> None:
    app = App(keep="1d", attempts=2, backoff="1h")

    @app.task
    def double(n: int) -> int:
        if current().attempt == 1:
            raise ValueError(n)
        return 2 * n

    @app.task(attempts=1)
    def fail() -> None:
        raise ValueError("no")

    with Sandbox(app, start=START) as sandbox:
        assert double.using(delay="10m").put(21).result() == 42
        assert sandbox.now - START > timedelta(minutes=70)
        with pytest.raises(shardq.errors.JobFailed):
            fail.put().result()


def test_a_job_that_is_of_no_use_any_more_is_seen_as_expired() -> None:
    app = App(expires="1h")

    @app.task
    def job() -> None:
        """Nothing."""

    with Sandbox(app) as sandbox:
        job.put()
        sandbox.clock.advance(7_200)
        sandbox.run_due()
        assert [ran.state for ran in sandbox.runs()] == ["expired"]


def test_a_worker_that_is_stepped_cannot_be_run_nor_one_that_runs_be_stepped() -> None:
    from shardq.tasks import Worker

    with Sandbox() as sandbox, App(sandbox.connect()) as app:
        app.task(print, name="print")  # type: ignore[call-overload]
        worker = Worker(app)
        worker.step()
        with pytest.raises(UsageError, match="step"):
            worker.run()
        worker.close()
        with pytest.raises(UsageError, match="closed"):
            worker.step()
