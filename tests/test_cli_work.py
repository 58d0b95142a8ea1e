"""`shardq work`: jobs that run in one process or several, the lines of them, and its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from shell import TIMEOUT_S, Shell, shell
from working import APP, Works, app_shell, finished, wait_for, write_app

from shardq import connect
from shardq.cli import joblines
from shardq.cli.exits import Exit
from shardq.cli.joblines import JobLines
from shardq.clock import SystemClock
from shardq.tasks import Ended

MARKS = """
import os, time
from shardq import App
app = App()
@app.task
def mark(n: int) -> None:
    with open("ran", "a") as file:
        file.write(f"{n} {os.getpid()}\\n")
@app.task
def wait() -> None:
    with open("began", "w") as file:
        file.write(f"{os.getpid()}\\n")
    while not os.path.exists("go"):
        time.sleep(0.01)
    mark(0)
"""

IN_THREADS = f"""{MARKS}
import asyncio
from concurrent.futures import ThreadPoolExecutor
@app.task
async def wait_in_thread() -> None:
    await asyncio.to_thread(wait)
@app.task
def wait_in_own_thread() -> None:
    ThreadPoolExecutor().submit(wait).result()
"""

IMPORTED_SLOWLY = """
import os, pathlib, signal, time
from shardq import App
app = App(os.environ["SHARDQ_STORE"])
@app.task
def mark() -> None:
    pathlib.Path("ran").touch()
mark.put()
heed = signal.getsignal(signal.SIGTERM)
def note(number, frame):
    heed(number, frame)
    pathlib.Path("told").write_text("once\\n")
signal.signal(signal.SIGTERM, note)
pathlib.Path("importing").write_text(f"{os.getpid()}\\n")
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""

TOLD_EARLY = """
import os, signal
from shardq import App

class Told(App):
    def reconcile(self) -> None:
        tell("reconcile")
        super().reconcile()

def tell(place: str) -> None:
    if place == "PLACE":
        print("told", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

app = Told(os.environ["SHARDQ_STORE"])
app.on_start(lambda: tell("on_start"))
app.on_stop(lambda: print("closed", flush=True))

@app.task(queue="mail")
def mark() -> None:
    pass
"""


def put(shell: Shell, task: str, arguments: str = "{}", count: int = 1) -> None:
    for _ in range(count):
        shell.ok("put", "--app", "app", "--task", task, "--args", arguments)


# Lines --------------------------------------------------------------------------------------------


def test_each_run_that_ends_has_one_line_and_all_are_aligned(app_shell: Shell) -> None:
    put(app_shell, "app.welcome", '{"user": "ada"}')
    put(app_shell, "app.nap")
    put(app_shell, "app.flaky", "[3]")
    code, out, err = finished(app_shell, "app", "--until-empty")
    assert "shardq: runs 5 tasks of default, mail of sqlite:///" in err
    when = r"\d{4}-\d\d-\d\dT[\d:.]{12}Z"
    runs = [line for line in out.splitlines() if re.match(when, line)]
    states = sorted(re.sub(f"^{when}  ", "", line) for line in runs)
    failed = [line for line in states if "app.flaky" in line]
    number = "[0-9a-f-]{36}"
    assert len(states) == 5
    assert re.fullmatch(rf"done       app.nap      +\d+ms  {number}", states[0])
    assert re.fullmatch(rf"done       app.welcome  +\d+ms  {number}", states[1])
    assert re.fullmatch(
        rf"failed     app.flaky    +\d+ms  {number}  attempt 3: out of attempts: ValueError: no 3",
        failed[0],
    )
    ends = {line.partition("  attempt ")[2] for line in failed[1:]}
    assert ends == {f"{attempt}, again in 10ms: ValueError: no 3" for attempt in (1, 2)}
    assert len({line.index("ms") for line in states}) == 1
    assert code == Exit.DIED
    assert err.endswith("shardq: ended after 5 runs: 2 done, 2 retrying, 1 failed.\n")


def test_lines_for_programs_say_when_a_job_runs_again(app_shell: Shell) -> None:
    put(app_shell, "app.flaky", "[3]")
    done = finished(app_shell, "app", "--until-empty", "--log", "json")
    first, second, last = done.lines
    assert list(first) == [
        "at", "state", "task", "id", "queue", "attempt", "seconds", "error", "traceback", "again",
        "process",
    ]  # fmt: skip
    assert first["traceback"].endswith('raise ValueError(f"no {n}")\nValueError: no 3\n')
    assert (first["state"], first["attempt"], first["error"]) == ("retrying", 1, "ValueError: no 3")
    assert first["at"] < first["again"] <= second["at"]
    assert (last["state"], last["again"]) == ("failed", None)


@pytest.mark.parametrize("form", ["lines", "json", "none"])
def test_a_run_that_fails_is_told_once_with_its_traceback(app_shell: Shell, form: str) -> None:
    put(app_shell, "app.flaky", "[3]")
    _, out, err = finished(app_shell, "app", "--until-empty", "--log", form)
    told = out + err
    assert told.count("Traceback (most recent call last):") == 3
    assert told.count("again in") == (0 if form == "json" else 2)
    assert ("WARNING" in err) is (form == "none")
    assert (out == "") is (form == "none")


def test_failures_are_in_the_log_once_their_lines_cannot_be_written(app_shell: Shell) -> None:
    put(app_shell, "app.flaky", "[3]")
    reader, writer = os.pipe()
    os.close(reader)
    process = app_shell.fork("work", "app", "--until-empty", stdout=writer)
    os.close(writer)
    with process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert err.count(b"shardq: stdout: Broken pipe; jobs have no more lines, and are run all") == 1
    assert b"failed, attempt 3 of 3, buried: out of attempts: ValueError: no 3" in err


def test_a_handler_of_the_app_has_each_failure_though_it_has_a_line(app_shell: Shell) -> None:
    logged = """
import logging
logging.getLogger("shardq").addHandler(logging.FileHandler("app.log"))
"""
    write_app(app_shell.directory, APP + logged)
    # Without --app, which would import it here, and give this process its handler.
    app_shell.ok("put", "default", "--task", "app.flaky", "--args", '{"n": 3}')
    assert "WARNING" not in finished(app_shell, "app", "--until-empty").err
    text = (app_shell.directory / "app.log").read_text()
    assert text.count("of queue default failed, attempt") == 3


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_has_colours_and_the_time_of_day(
    app_shell: Shell, monkeypatch: pytest.MonkeyPatch, no_colour: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_colour)
    put(app_shell, "app.nap")
    [line] = app_shell.on_terminal("work", "app", "--until-empty")
    done = "done     " if no_colour else "\x1b[32mdone     \x1b[0m"
    assert re.fullmatch(rf"\d\d:\d\d:\d\d  {re.escape(done)}  app.nap .*", line)


RUN = Ended("app.nap", "i" * 36, "default", 1, 0.1, "done")


def test_runs_never_wait_for_who_reads_their_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joblines, "_WAITING_MAX", 10)
    reader, writer = os.pipe()
    with open(reader, "rb") as read:
        with open(writer, "w") as stdout, contextlib.redirect_stdout(stdout):
            lines = JobLines(SystemClock(), ["app.nap"], as_json=False)
            # Much more than a pipe takes.
            for _ in range(10_000):
                lines.tell(RUN)
            assert lines.total == "10,000 runs: 10,000 done"
            written: list[bytes] = []
            thread = threading.Thread(target=lambda: written.extend(read))
            thread.start()
            lines.close()
        thread.join(TIMEOUT_S)
    told = re.findall(r"shardq: ([\d,]+) lines? left out: stdout was", capsys.readouterr().err)
    left_out = sum(int(count.replace(",", "")) for count in told)
    assert left_out > 0
    assert len(written) + left_out == 10_000


# Its end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "number"),
    [([], signal.SIGTERM), ([], signal.SIGHUP), (["--processes", "2"], signal.SIGTERM)],
)
def test_a_stop_lets_jobs_that_run_end_and_leaves_the_others(
    app_shell: Shell, processes: list[str], number: int
) -> None:
    write_app(app_shell.directory, MARKS)
    put(app_shell, "app.wait")
    works = Works(app_shell, "app", "--threads", "1", *processes)
    wait_for(app_shell.directory / "began")
    works.process.send_signal(number)
    (app_shell.directory / "go").touch()
    done = works.ended()
    assert done.code == Exit.OK
    assert wait_for(app_shell.directory / "ran").startswith("0 ")
    assert app_shell.ok("peek", "default", "--json").lines == []


@pytest.mark.parametrize("task", ["app.wait", "app.wait_in_thread"])
@pytest.mark.parametrize("processes", [[], ["--processes", "1"]])
def test_a_job_that_outlives_the_deadline_runs_again_and_spends_no_attempt(
    app_shell: Shell, processes: list[str], task: str
) -> None:
    write_app(app_shell.directory, IN_THREADS)
    put(app_shell, task)
    works = Works(app_shell, "app", "--deadline", "100ms", *processes)
    wait_for(app_shell.directory / "began")
    done = works.stop()
    assert done.code == Exit.OK
    hint = "" if processes else "; a second Ctrl-C ends the wait"
    assert f"waits for 1 job to end, up to 100ms{hint}.\n" in done.err
    assert "1 of its deliveries still run: they are delivered again in 1m, without an " in done.err
    [left] = app_shell.ok("peek", "default", "--json").lines
    assert left["attempts"] == 0


@pytest.mark.nightly
def test_threads_of_a_job_s_own_keep_no_process_5_s_after_the_deadline(app_shell: Shell) -> None:
    write_app(app_shell.directory, IN_THREADS)
    put(app_shell, "app.wait_in_own_thread")
    works = Works(app_shell, "app", "--deadline", "100ms")
    wait_for(app_shell.directory / "began")
    done = works.stop()
    assert done.code == Exit.TERMINATED
    assert "ends, though threads or processes that its jobs have started still work.\n" in done.err


def test_several_processes_run_each_job_once_and_end_when_none_is_left(app_shell: Shell) -> None:
    write_app(app_shell.directory, MARKS)
    for n in range(1, 41):
        app_shell.ok("put", "default", "--task", "app.mark", "--args", f'{{"n": {n}}}')
    done = finished(app_shell, "app", "--processes", "2", "--until-empty", "--log", "json")
    assert done.code == Exit.OK
    ran = (app_shell.directory / "ran").read_text().split("\n")[:-1]
    assert sorted(int(line.split()[0]) for line in ran) == [*range(1, 41)]
    assert len(done.lines) == 40
    assert (
        len(re.findall(r"^shardq: process \d+ runs 2 tasks of default of ", done.err, re.MULTILINE))
        == 2
    )
    assert (
        len(re.findall(r"^shardq: process \d+ ended after \d+ runs", done.err, re.MULTILINE)) == 2
    )


def test_a_process_that_has_run_as_many_jobs_as_it_may_is_replaced(app_shell: Shell) -> None:
    write_app(app_shell.directory, MARKS)
    with connect(app_shell.url) as db:
        db.queue("default").put_many(
            [{"body": f'{{"n": {n}}}', "headers": {"task": "app.mark"}} for n in range(30)]
        )
    done = Works(
        app_shell, "app", "--max-jobs", "10", "--threads", "1", "--until-empty", "--log", "none"
    ).ended()
    assert done.code == Exit.OK
    ran = [line.split() for line in (app_shell.directory / "ran").read_text().splitlines()]
    assert sorted(int(n) for n, _ in ran) == [*range(30)]
    told = re.findall(
        r"^shardq: process (\d+): it has run 10 jobs; another takes its place\.$",
        done.err,
        re.MULTILINE,
    )
    assert told
    assert {process for _, process in ran} >= {*told}


def test_a_worker_serves_the_queues_that_are_named(app_shell: Shell) -> None:
    put(app_shell, "app.welcome", '["a"]')
    put(app_shell, "app.nap")
    done = finished(app_shell, "app", "--queue", "default", "--until-empty")
    assert "of default of" in done.err
    assert len(app_shell.ok("peek", "mail", "--json").lines) == 1
    assert app_shell.ok("peek", "default", "--json").lines == []


# What is given ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["5", "x", "1KB", "500", "-1MB"])
def test_a_size_is_told_how_to_be_written(app_shell: Shell, size: str) -> None:
    told = app_shell.fails(Exit.USAGE, "work", "app", "--memory", size)
    assert f"'{size}' is no size of 1MB or more, such as 500MB." in told


HINT = """
from shardq import App
app = App()
@app.task
def f(x: "Unknown") -> None: ...
"""


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (HINT, Exit.USAGE, "task app.f: the type hint of argument x, "),
        ("raise KeyboardInterrupt", Exit.INTERRUPTED, "interrupted while app was imported."),
    ],
)
def test_an_app_that_cannot_be_imported_ends_several_processes_with_one_line(
    app_shell: Shell, source: str, code: Exit, said: str
) -> None:
    write_app(app_shell.directory, source)
    done = finished(app_shell, "app", "--processes", "3")
    assert done.code == code
    assert done.err.startswith(f"shardq: {said}")
    assert done.err.count("\n") == 1


SCHEDULED = """
from shardq import App
app = App()
@app.task(name="sync")
def sync(region: str = "all") -> None: ...
app.every("{every}", sync, revision={revision})
"""


def test_several_processes_make_a_schedule_once_and_do_not_start_where_it_is_declared_otherwise(
    app_shell: Shell,
) -> None:
    declared = {"every": "1h", "revision": 1}
    for changed in ({}, {"every": "5m", "revision": 2}):
        declared |= changed
        write_app(app_shell.directory, SCHEDULED.format(**declared))
        done = finished(app_shell, "app", "--processes", "2", "--until-empty")
        assert (done.code, done.err.count("runs 1 task of default")) == (0, 2)
        [made] = app_shell.ok("schedule", "list", "--json").lines
        assert (made["name"], made["revision"]) == ("sync", declared["revision"])
    write_app(app_shell.directory, SCHEDULED.format(every="1m", revision=2))
    done = finished(app_shell, "app", "--processes", "2")
    assert done.code == Exit.USAGE
    assert re.fullmatch(
        r"shardq: schedule 'sync' of queue 'default' is declared at \S*app\.py:6, every 1m of "
        r"revision 2, and the store has another, every 5m of revision 2, of which these differ: "
        r"trigger; raise the revision of the one that is to hold, or give one of them another "
        r"name\.\n",
        done.err,
    )


def test_an_app_that_ends_its_process_as_it_is_imported_is_tried_three_times(
    app_shell: Shell,
) -> None:
    write_app(app_shell.directory, "import os; os._exit(0)")
    code, _, err = finished(app_shell, "app", "--processes", "1")
    assert code == Exit.ERROR
    *tries, last = err.splitlines()
    assert len(tries) == 2
    assert re.fullmatch(
        r"shardq: no process can begin: process \d+ exited with 0 before it was ready, as others "
        r"did\.",
        last,
    )


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]])
def test_a_store_that_cannot_be_opened_ends_it_with_one_line(
    app_shell: Shell, processes: list[str]
) -> None:
    url = f"sqlite:///{app_shell.directory}/none/jobs.db"
    done = finished(app_shell, "app", *processes, url=url)
    assert done.code == Exit.STORE_UNAVAILABLE
    assert done.err.count("\n") == 1


def test_an_app_without_tasks_has_nothing_to_run(app_shell: Shell) -> None:
    write_app(app_shell.directory, "from shardq import App\napp = App()\n")
    told = app_shell.fails(Exit.USAGE, "work", "app")
    assert told == (
        "shardq: the app has no tasks; declare them with @app.task, and import the modules that do "
        "so where the app is.\n"
    )


def test_a_queue_of_no_task_is_named(app_shell: Shell) -> None:
    done = finished(app_shell, "app", "--queue", "mail", "--queue", "mial", "--until-empty")
    assert done.code == Exit.OK
    assert "shardq: no task of the app has queue mial: check its name.\n" in done.err


@pytest.mark.parametrize(
    "words", [["work", "app", "--until-empty"], ["put", "mail", "hello"], ["queues"]]
)
@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_store_that_no_other_process_sees_is_told(
    app_shell: Shell, words: list[str], url: str
) -> None:
    code, _, err = app_shell.run(*words, url=url)
    assert code == Exit.OK
    assert "shardq: store sqlite:// is in the memory of this process: no other can put" in err


def test_the_store_is_that_of_the_option_where_the_app_names_none(app_shell: Shell) -> None:
    put(app_shell, "app.nap")
    done = finished(app_shell, "app", "--store", app_shell.url, "--until-empty", url="")
    assert done.code == Exit.OK
    assert "1 done" in done.err


# Processes that are replaced ----------------------------------------------------------------------


def test_a_changed_app_runs_the_jobs_that_come_after(app_shell: Shell) -> None:
    write_app(app_shell.directory, MARKS)
    works = Works(app_shell, "app", "--reload", "--processes", "1")
    works.expect("runs 2 tasks")
    write_app(app_shell.directory, MARKS.replace("{n} ", "new {n} "))
    works.expect("shardq: app.py changed; the processes are replaced.")
    works.expect("runs 2 tasks")
    put(app_shell, "app.mark", "[7]")
    assert wait_for(app_shell.directory / "ran").startswith("new 7 ")
    write_app(app_shell.directory, MARKS + "\n1 / 0\n")
    works.expect("shardq: module app cannot be imported: ZeroDivisionError: division by zero ")
    assert works.stop().code == Exit.OK


def test_a_worker_without_its_supervisor_ends_gracefully(app_shell: Shell) -> None:
    write_app(app_shell.directory, MARKS)
    put(app_shell, "app.wait")
    works = Works(app_shell, "app", "--processes", "1", "--threads", "1")
    wait_for(app_shell.directory / "began")
    works.process.send_signal(signal.SIGKILL)
    (app_shell.directory / "go").touch()
    works.expect("ended after 1 run: 1 done")
    works.ended()
    assert wait_for(app_shell.directory / "ran").startswith("0 ")


# What the app logs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "set_up",
    [
        "",
        "logging.basicConfig()",
        "logging.basicConfig(stream=sys.stdout, level='DEBUG')",
        "logging.basicConfig(filename='app.log')",
        "logging.basicConfig(); logging.getLogger().handlers[0].setLevel('CRITICAL')",
        "logging.config.dictConfig({'version': 1})",
        "logging.config.dictConfig({'version': 1, 'root': {'handlers': ['c']}, "
        "'handlers': {'c': {'class': 'logging.StreamHandler'}}})",
        "logging.getLogger().addHandler(rich.logging.RichHandler())",
        "class Sent(logging.Handler): emit = lambda *_: None\n        "
        "logging.getLogger().addHandler(Sent())",
    ],
)
def test_a_failure_is_shown_once_however_the_app_sets_logging_up(
    app_shell: Shell, set_up: str
) -> None:
    write_app(
        app_shell.directory,
        f"""
        import logging, logging.config, rich.logging, sys
        from shardq import App
        app = App(attempts=1)
        {set_up}
        @app.task
        def fail() -> None:
            raise ValueError("no luck")
        """,
    )
    put(app_shell, "app.fail")
    with app_shell.fork("work", "app", "--until-empty", "--log", "none") as process:
        out, err = (text.decode() for text in process.communicate(timeout=TIMEOUT_S))
    assert (out + err).count("Traceback (most recent call last)") == 1, out + err
    assert "runs 1 task of default" in err


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root makes spaces")
@pytest.mark.parametrize("signals", [1, 2])
def test_process_1_ends_by_a_signal_that_came_while_its_app_was_imported(
    app_shell: Shell, signals: int
) -> None:
    write_app(app_shell.directory, IMPORTED_SLOWLY)
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "shardq"]
    environment = {**os.environ, "SHARDQ_STORE": app_shell.url}
    with subprocess.Popen(
        [*words, "work", "app"], cwd=app_shell.directory, env=environment, stderr=subprocess.PIPE
    ) as process:
        try:
            assert wait_for(app_shell.directory / "importing") == "1"
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            os.kill(int(children), signal.SIGTERM)
            assert wait_for(app_shell.directory / "told") == "once"
            if signals == 1:
                (app_shell.directory / "go").touch()
            else:
                os.kill(int(children), signal.SIGTERM)
            _, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == Exit.TERMINATED
    assert (b"told to end while app was imported" in err) == (signals == 1)
    assert not (app_shell.directory / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root makes spaces")
@pytest.mark.parametrize("place", ["reconcile", "on_start"])
def test_process_1_ends_by_a_signal_that_comes_before_it_runs_jobs(
    app_shell: Shell, place: str
) -> None:
    write_app(app_shell.directory, TOLD_EARLY.replace("PLACE", place))
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "shardq"]
    done = subprocess.run(
        [*words, "work", "app", "--queue", "mail"],
        cwd=app_shell.directory,
        env={**os.environ, "SHARDQ_STORE": app_shell.url},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == Exit.OK, done.stderr
    assert done.stdout == b"told\nclosed\n"
