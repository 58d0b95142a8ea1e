"""Time travel: what a sandbox runs, when, and what of that its tests can see."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import shardq
from shardq import App, Consumer, Message
from shardq.clock import SystemClock, pause
from shardq.errors import BadSetting, BadTime, StoreUnavailable, UsageError
from shardq.model.ids import birth_us, row_ids
from shardq.tasks import current
from shardq.testing import Sandbox
from shardq.testing import sandbox as rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq import Queue

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(start=START) as made:
        yield made


class Seen:
    """A handler that keeps what it was given and when, and then acts."""

    def __init__(self, sandbox: Sandbox, act: Callable[[Message], object] | None = None) -> None:
        self._sandbox = sandbox
        self._act = act
        self.all: list[tuple[str, timedelta]] = []

    def __call__(self, message: Message) -> object:
        self.all.append((message.text, self._sandbox.now - START))
        return None if self._act is None else self._act(message)


def consumed(
    sandbox: Sandbox, act: Callable[[Message], object] | None = None, **settings: Any
) -> tuple[Queue, Seen]:
    """A queue of a sandbox, and what its consumer sees."""
    queue, seen = sandbox.queue("mail", **settings), Seen(sandbox, act)
    sandbox.add(Consumer(queue, seen))
    return queue, seen


# Time ---------------------------------------------------------------------------------------------


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
    with caplog.at_level(logging.INFO, logger="shardq.engine.lease"):
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
        ({"until": START - DAY}, UsageError),
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


def test_schedules_that_an_app_declares_fire_those_declared_later_too() -> None:
    app, seen = App(), []

    @app.task
    def sync(what: str) -> None:
        assert sandbox.now == current().due
        seen.append(what)

    app.every("15m", sync.of("often"))
    with Sandbox(app, start=START) as sandbox:
        assert sandbox.travel("1h") == 4
        app.every("1h", sync.of("hourly"), name="hourly")
        assert sandbox.travel("1h") == 5
        assert sandbox.assert_put(sync, what="hourly").due == START + timedelta(hours=2)


def test_a_schedule_is_paused_and_goes_on_in_a_journey(sandbox: Sandbox) -> None:
    queue, seen = consumed(sandbox)
    schedule = queue.every("1h", b"tick", name="hourly")
    sandbox.travel("2h")
    schedule.pause()
    assert sandbox.travel("30d") == 0
    schedule.resume()
    assert sandbox.travel("1h") >= 1
    assert len(seen.all) >= 3


# What is seen -------------------------------------------------------------------------------------


@pytest.fixture
def app() -> App:
    app = App()

    @app.task(key="remind-{user}")
    def remind(user: str, lang: str = "en", **more: int) -> None:
        """Nothing."""

    @app.task(queue="other")
    def other(n: int) -> None:
        """Nothing."""

    return app


def named(app: App, name: str) -> Any:
    return next(task for key, task in app.tasks.items() if key.endswith(name))


def test_a_job_that_was_put_is_found_by_its_arguments_and_defaults(app: App) -> None:
    remind = named(app, "remind")
    with Sandbox(app, start=START) as sandbox:
        remind.using(delay="3d").put("ada", lang="de")
        remind.put("bob", extra=1)
        put = sandbox.assert_put(remind, user="ada")
        assert put.arguments == {"user": "ada", "lang": "de", "more": {}}
        assert (put.due, put.put_at, put.key) == (START + 3 * DAY, START, "remind-ada")
        assert sandbox.assert_put(remind, "bob").arguments["lang"] == "en"
        assert sandbox.assert_put(remind, lang="en", extra=1).arguments["user"] == "bob"
        sandbox.assert_not_put(remind, user="eve")
        sandbox.assert_not_put(named(app, "other"))
        sandbox.run_due()
        assert [ran.put.arguments["user"] for ran in sandbox.runs(remind)] == ["bob"]
        assert [put.arguments["user"] for put in sandbox.waiting(remind)] == ["ada"]
        sandbox.assert_ran(remind, user="bob")


def test_an_assertion_that_fails_says_what_there_is_instead(app: App) -> None:
    remind, other = named(app, "remind"), named(app, "other")
    with Sandbox(app, start=START) as sandbox:
        with pytest.raises(AssertionError, match=r"remind\(user='ada'\) was not put: nothing was"):
            sandbox.assert_put(remind, user="ada")
        remind.put("bob")
        with pytest.raises(AssertionError, match=r"was not put:\n  .*remind\(user='bob'"):
            sandbox.assert_put(remind, user="ada")
        with pytest.raises(AssertionError, match=r"other\(\) was not put:\n  .*remind\("):
            sandbox.assert_put(other)
        with pytest.raises(AssertionError, match=r"was put:\n  .*due 2026-03-01 08:00:00, key"):
            sandbox.assert_not_put(remind)
        with pytest.raises(AssertionError, match="was not done"):
            sandbox.assert_ran(remind)
        remind.put("eve")
        with pytest.raises(AssertionError, match="was put 2 times, not once"):
            sandbox.assert_put(remind)


def test_a_name_that_no_task_takes_is_an_error_and_no_job_that_was_not_put(app: App) -> None:
    with Sandbox(app) as sandbox:
        with pytest.raises(UsageError, match="other is never put like this"):
            sandbox.assert_not_put(named(app, "other"), number=1)
        foreign = App().task(name="foreign")(lambda: None)
        with pytest.raises(UsageError, match="of no app in this sandbox"):
            sandbox.assert_not_put(foreign)


def test_messages_are_found_by_their_queue_body_and_more(sandbox: Sandbox) -> None:
    queue, _ = consumed(sandbox)
    queue.put("a", key="k", headers={"lang": "de"})
    queue.put("b", group="g", delay="1h")
    assert sandbox.assert_put(queue, "a").key == "k"
    assert sandbox.assert_put("mail", group="g").text == "b"
    assert sandbox.assert_put(queue, headers={"lang": "de"}).text == "a"
    sandbox.assert_not_put("mail", b"c")
    sandbox.drain()
    assert [ran.state for ran in sandbox.runs("mail")] == ["done", "done"]


def test_a_put_is_one_however_often_its_message_moves(sandbox: Sandbox) -> None:
    def act(message: Message) -> None:
        if message.attempt < 3:
            raise shardq.Retry("1h")

    queue, _ = consumed(sandbox, act)
    queue.put("x" * 100_000, group="g")
    queue.put("k", key="k", delay="1h")
    queue.move("k", delay="2h")
    queue.put("again", key="k", on_conflict="replace", delay="3h")
    sandbox.drain()
    assert [put.text[:5] for put in sandbox.puts()] == ["xxxxx", "k", "again"]
    assert [ran.attempt for ran in sandbox.runs()].count(3) == 2


def test_totals_and_the_history_of_a_queue_are_right_after_a_journey() -> None:
    with Sandbox(start=START, history="7d") as sandbox:
        queue, _ = consumed(sandbox)
        for hours in range(50):
            queue.put("a", delay=timedelta(hours=hours))
        sandbox.travel("30h")
        depth = queue.depth()
        assert (depth.ready, depth.total) == (0, 19)
        assert queue.audit().is_even


def test_a_sandbox_takes_apps_and_its_own_consumers_alone(sandbox: Sandbox) -> None:
    with shardq.connect("sqlite://") as db, pytest.raises(UsageError, match="of one of its queues"):
        sandbox.add(Consumer(db.queue("mail"), print))
    with pytest.raises(BadSetting, match="takes apps and consumers"):
        sandbox.add(print)  # type: ignore[arg-type]
    with pytest.raises(BadSetting, match="raises must be"):
        Sandbox(raises="always")  # type: ignore[arg-type]
