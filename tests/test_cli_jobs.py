"""Jobs at a shell: put by their task, and shown as the calls that they are; an app's tasks."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from shell import Shell, shell
from working import APP, app_shell, write_app

from shardq import App
from shardq.cli import jobs
from shardq.cli.exits import Exit
from shardq.cli.jobs import call_text
from shardq.tasks.options import TASK_HEADER

if TYPE_CHECKING:
    from collections.abc import Sequence


def stored(shell: Shell, queue: str) -> list[dict[str, Any]]:
    return shell.ok("peek", queue, "--json").lines


def put(shell: Shell, task: str, arguments: Sequence[Any] | dict[str, Any], *more: str) -> None:
    shell.ok("put", "--app", "app", "--task", task, "--args", json.dumps(arguments), *more)


# With the app -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "arguments", "queue", "body"),
    [
        ("app.welcome", {"user": "ada"}, "mail", {"user": "ada"}),
        ("app.welcome", ["ada"], "mail", {"user": "ada"}),
        ("old.welcome", {"user": "a", "lang": "de"}, "mail", {"user": "a", "lang": "de"}),
        ("app.nap", {}, "default", {}),
        ("app.index", ["2026-01-31"], "default", {"pages": "2026-01-31"}),
        ("many", [1, 2, 3], "default", {"first": 1, "*": [2, 3]}),
        ("many", {"first": 1, "**": {"a": 2}}, "default", {"first": 1, "**": {"a": 2}}),
    ],
)
def test_a_job_is_put_as_its_task_is_declared(
    app_shell: Shell, task: str, arguments: Any, queue: str, body: Any
) -> None:
    put(app_shell, task, arguments)
    [line] = stored(app_shell, queue)
    assert json.loads(line["body"]) == body
    assert line["headers"] == {"task": task.replace("old.", "app.")}
    assert line["priority"] == (1 if queue == "mail" else 0)


def test_a_put_chooses_other_options_than_its_task_has(app_shell: Shell) -> None:
    chosen = ["--priority", "0", "--key", "w", "--header", "a=b", "--due", "2090-01-01T00:00:00Z"]
    put(app_shell, "app.welcome", ["ada"], "letters", *chosen)
    [line] = stored(app_shell, "letters")
    assert (line["priority"], line["key"], line["due"][:4]) == (0, "w", "2090")
    assert line["headers"] == {"task": "app.welcome", "a": "b"}


@pytest.mark.parametrize(
    ("task", "arguments", "said"),
    [
        ("app.welcome", '{"usr": "a"}', "task app.welcome has no argument usr; it takes "),
        ("app.welcome", "{}", "task app.welcome "),
        ("app.welcome", '{"user": 1}', "task app.welcome: argument user must be str, not int"),
        (
            "app.welcome",
            '["a", "b"]',
            "task app.welcome takes 1 argument by position, (user: str, *, lang: str = 'en'), not "
            "2.",
        ),
        ("app.index", '["x"]', "task app.index: argument pages "),
        ("app.zzzz", "{}", "the app has no task 'app.zzzz'; it has app.welcome, app.nap, "),
        ("welcome", "{}", "the app has no task 'welcome'; did you mean 'app.welcome'?"),
        ("app.welcome", "{", "--args '{' is not JSON: "),
        ("app.welcome", '{"user": NaN}', "--args '{\"user\": NaN}' is not JSON: NaN is no number"),
        ("app.welcome", "3", "--args must be an object of arguments by name, or a list by positi"),
        ("app.welcome", '{"user": "\\ud800"}', "--args has half a surrogate pair, which no text"),
    ],
)
def test_wrong_arguments_are_told_at_the_put_and_nothing_is_stored(
    app_shell: Shell, task: str, arguments: str, said: str
) -> None:
    told = app_shell.fails(Exit.USAGE, "put", "--app", "app", "--task", task, "--args", arguments)
    assert told.startswith(f"shardq: {said}")
    assert not (app_shell.directory / "jobs.db").exists()


def test_an_app_that_names_its_own_store_is_not_put_into_another(app_shell: Shell) -> None:
    own = app_shell.url.replace("jobs.db", "own.db")
    write_app(app_shell.directory, f"from shardq import App\napp = App({own!r})\n")
    told = app_shell.fails(
        Exit.USAGE, "put", "--app", "app", "--task", "a", "--store", app_shell.url
    )
    assert "app app has a store of its own, " in told
    assert "own.db; leave --store out, or the store of App(..)." in told


# Without it ---------------------------------------------------------------------------------------


def test_without_its_app_a_job_is_put_as_it_is_given(app_shell: Shell) -> None:
    app_shell.ok(
        "put", "mail", "--task", "elsewhere.f", "--args", '{"a": [1, "é"]}', "--header", "x=y"
    )
    [line] = stored(app_shell, "mail")
    assert line["body"] == '{"a":[1,"é"]}'
    assert line["headers"] == {"task": "elsewhere.f", "x": "y"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mail", "--task", "f", "--args", "[1]"], "--args by position need the names of the"),
        (["mail", "body", "--task", "f"], "a job of --task has --args for a body; leave BODY out."),
        (["--task", "f"], "Missing argument 'QUEUE', or --app."),
        ([], "Missing argument 'QUEUE'."),
        (["mail", "x", "--args", "{}"], "--args and --app belong to --task; name the task as well"),
        (["mail", "x", "--app", "app"], "--args and --app belong to --task; name the task as well"),
    ],
)
def test_what_does_not_go_together_is_told(
    app_shell: Shell, arguments: list[str], said: str
) -> None:
    assert said in app_shell.fails(Exit.USAGE, "put", *arguments)


# As they are shown --------------------------------------------------------------------------------


def test_a_job_is_shown_as_the_call_that_it_is(app_shell: Shell) -> None:
    put(app_shell, "app.welcome", {"user": "ada", "lang": "de"}, "--id", "j")
    call = 'app.welcome(user="ada", lang="de")'
    assert app_shell.ok("peek", "mail").out.splitlines()[1].endswith(f"  {call}")
    for command in (["peek", "mail", "--id", "j"], ["show", "mail", "j"]):
        assert re.search(rf"^job +{re.escape(call)}$", app_shell.ok(*command).out, re.MULTILINE)
    assert app_shell.ok("show", "mail", "j", "--json").lines[0]["job"] == call


def test_show_says_how_often_a_job_may_run_and_not_what_its_queue_allows(shell: Shell) -> None:
    app = App(shell.url)

    @app.task(attempts=2)
    def send() -> None: ...

    with app:
        app.connection.queue("default", attempts=9)
        for options, allowed in (
            ({}, "at most 9, as its task says"),
            ({"attempts": 3}, "3"),
            ({"timeout": "1m"}, "at most 9, as its task says"),
        ):
            job = send.using(delay="1h", **options).put()  # type: ignore[misc]
            assert f"\nattempts  0 of {allowed}\n" in shell.ok("show", "default", job.id).out


def test_a_message_that_is_no_job_is_shown_as_before(app_shell: Shell) -> None:
    app_shell.ok("put", "mail", "hello", "--id", "m")
    assert "job" not in app_shell.ok("show", "mail", "m").out
    assert app_shell.ok("show", "mail", "m", "--json").lines[0]["job"] is None


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"first":1,"*":[2,"x"],"**":{"a":null}}', 'f(2, "x", first=1, a=null)'),
        (b"{}", "f()"),
        (b"[1]", None),
        (b"{", None),
        (b"\xff", None),
        (b'{"*":1}', None),
        (b'{"**":1}', None),
        (b'{"a":"' + b"x" * 300 + b'"}', f'f(a="{"x" * 199}..)'),
    ],
)
def test_a_call_is_read_from_a_body_that_may_be_anything(body: bytes, said: str | None) -> None:
    assert call_text({"task": "f"}, body) == said
    assert call_text({}, body) is None


# What an app has ----------------------------------------------------------------------------------


def test_the_tasks_of_an_app_are_listed_with_their_options_and_arguments(app_shell: Shell) -> None:
    lines = app_shell.ok("tasks", "app").out.splitlines()
    assert lines[0].split() == ["task", "queue", "arguments"]
    tasks = [line for line in lines[1:] if not line.startswith(" ")]
    assert [line.split()[:2] for line in tasks] == [
        ["app.welcome", "mail"],
        ["app.nap", "default"],
        ["app.flaky", "default"],
        ["app.index", "default"],
        ["many", "default"],
    ]
    assert lines[1].endswith("  (user: str, *, lang: str = 'en')")
    assert lines[2] == "    attempts 2, backoff 10ms, priority 1, also old.welcome"
    assert lines[3].endswith("  (n: int = 0)")
    assert lines[4] == "    async, attempts 2, backoff 10ms"


WIDE = """
from shardq import App
from shardq.tasks import Backoff
app = App()
@app.task(queue="index", backoff=Backoff("1s", longest="10m"), keep="1d", expires="8h30m",
          key="index-{doc}", on_conflict="debounce", delay="30s", max_wait="5m", unique_for="2d")
def index(doc: int, *, language: str = "en", rank: int = 0, fields: list[str] | None = None): ...
@app.task(backoff=["1s", "1m", "1h"], retry_on=(OSError, LookupError), bury_on=KeyError)
def sync(region: str = "all"): ...
@app.task(backoff="10s")
def other(): ...
app.every("15m", sync, overlap="skip")
app.cron("30 2 * * *", sync.of("eu"), tz="Europe/Berlin", name="nightly")
"""


def test_a_list_of_tasks_is_no_wider_than_a_page_and_has_backoffs_and_schedules(
    app_shell: Shell,
) -> None:
    write_app(app_shell.directory, WIDE)
    listed = app_shell.ok("tasks", "app").out
    assert max(map(len, listed.splitlines())) <= 120
    assert "attempts 5, backoff 1s x2 to 10m, expires 8h30m, keep 1d, delay 30s" in listed
    assert listed.endswith("""\
app.sync   default  (region: str = 'all')
    attempts 5, backoff 1s 1m 1h, retry_on OSError LookupError, bury_on KeyError
    schedule app.sync: every 15m
    schedule nightly: cron 30 2 * * * Europe/Berlin
app.other  default  ()
    attempts 5, backoff 10s
""")
    lines = app_shell.ok("tasks", "app", "--json").lines
    assert lines[1]["schedules"] == {
        "app.sync": "every 15m",
        "nightly": "cron 30 2 * * * Europe/Berlin",
    }
    assert lines[2]["options"] == {"attempts": 5, "backoff": "10s"}


def test_the_tasks_of_an_app_are_listed_for_programs(app_shell: Shell) -> None:
    lines = app_shell.ok("tasks", "app:app", "--json").lines
    assert lines[0] == {
        "name": "app.welcome",
        "aliases": ["old.welcome"],
        "queue": "mail",
        "arguments": "(user: str, *, lang: str = 'en')",
        "async": False,
        "options": {"attempts": 2, "backoff": "10ms", "priority": "1"},
        "headers": {},
        "schedules": {},
    }
    assert lines[3]["options"] == {"attempts": 2, "backoff": "10ms", "batch": 10}
    assert lines[4]["options"] == {"attempts": 2, "backoff": "10ms", "timeout": "30s"}


def test_an_app_without_tasks_is_told_how_to_declare_one(app_shell: Shell) -> None:
    write_app(app_shell.directory, "from shardq import App\napp = App()\n")
    assert app_shell.ok("tasks", "app").out == (
        "app has no tasks; declare them with @app.task, and import the modules that do so where "
        "the app is.\n"
    )


@pytest.mark.parametrize("command", [["tasks"], ["work"], ["put", "--task", "f", "--app"]])
def test_an_app_that_cannot_be_imported_is_one_line(app_shell: Shell, command: list[str]) -> None:
    write_app(app_shell.directory, "1 / 0")
    assert app_shell.fails(Exit.USAGE, *command, "app") == (
        "shardq: module app cannot be imported: ZeroDivisionError: division by zero (app.py, line "
        "1).\n"
    )
    assert "there is no module none" in app_shell.fails(Exit.USAGE, *command, "none:app")


# Without a worker ---------------------------------------------------------------------------------

WORKER = "These are jobs of tasks: start a worker, `shardq work MODULE:app`."


def test_who_looks_at_jobs_is_sent_to_a_worker_not_to_a_consumer(app_shell: Shell) -> None:
    put(app_shell, "app.nap", [1])
    [job] = stored(app_shell, "default")
    assert app_shell.ok("show", "default", job["id"]).out.splitlines()[-1] == WORKER
    found = {line["what"]: line for line in app_shell.ok("check", "--json").lines}
    assert found["queue default"]["advice"] == WORKER


def test_schedules_of_a_task_are_fired_by_a_worker(app_shell: Shell) -> None:
    app_shell.ok("schedule", "add", "sync", "--every", "1h", "--app", "app", "--task", "app.nap")
    found = {line["what"]: line for line in app_shell.ok("check", "--json").lines}
    assert found["queue default"]["advice"] == WORKER


def test_what_an_app_with_a_store_of_its_own_is_given_says_where_it_is(app_shell: Shell) -> None:
    add = ["schedule", "add", "sync", "--every", "1h", "--app", "app", "--task", "app.nap"]
    done = app_shell.ok(*add)
    assert done.out.startswith(f"sync: in queue default of {app_shell.url}; next ")
    assert done.err == ""
    own = f"sqlite:///{app_shell.directory}/own.db"
    write_app(app_shell.directory, APP.replace("App(", f"App({own!r}, "))
    done = app_shell.ok(*add)
    assert done.out.startswith(f"sync: in queue default of {own}; next ")
    put_done = app_shell.ok("put", "--app", "app", "--task", "app.nap", "--args", "[1]")
    assert [put_done.err, done.err] == 2 * [
        f"shardq: the app has a store of its own, {own}; SHARDQ_STORE, which names another, is not "
        f"used.\n"
    ]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_consumer_that_only_prints_leaves_a_job_where_it_is(
    app_shell: Shell, form: Sequence[str]
) -> None:
    app_shell.ok("put", "default", "--task", "app.nap", "--id", "nap-1")
    told = app_shell.fails(Exit.USAGE, "consume", "default", "--until-empty", *form)
    assert told.startswith(
        "shardq: message 'nap-1' of queue default is a job of task 'app.nap', which would be gone "
        "without having run: run it with `shardq work MODULE:app`, or add --tasks to print and ack "
        "jobs."
    )
    [job] = stored(app_shell, "default")
    assert (job["id"], job["attempts"]) == ("nap-1", 0)


@pytest.mark.parametrize("how", [("--tasks",), ("--exec", "true"), ("--out", "-")])
def test_a_consumer_that_was_told_what_to_do_with_jobs_takes_them(
    app_shell: Shell, how: Sequence[str]
) -> None:
    app_shell.ok("put", "default", "--task", "app.nap")
    app_shell.ok("consume", "default", "--until-empty", *how)
    assert stored(app_shell, "default") == []
