"""What tests see of what was put into a sandbox and has run there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from travelled import DAY, START, consumed, sandbox

import shardq
from shardq import App, Consumer, Message
from shardq.errors import BadSetting, UsageError
from shardq.testing import Sandbox


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


def test_what_is_put_back_from_the_dead_was_put_once(sandbox: Sandbox) -> None:
    broken = [True]

    def act(message: Message) -> None:
        if broken:
            raise ValueError

    sandbox.raises = "nothing"
    queue, _ = consumed(sandbox, act, attempts=1)
    queue.put("a")
    queue.put("b", key="k")
    sandbox.run_due()
    broken.clear()
    assert queue.redrive() == 2
    sandbox.run_due()
    assert [put.text for put in sandbox.puts()] == ["a", "b"]
    assert sorted(f"{ran.put.text} {ran.state}" for ran in sandbox.runs()) == [
        "a done", "a failed", "b done", "b failed"
    ]  # fmt: skip


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
