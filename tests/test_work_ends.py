"""Functions that end in every way but by returning, under `shardq work --processes 2`.

Each has a clear outcome, and all other jobs run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import pytest
from shell import Done, Shell
from working import app_shell, finished, write_app

from shardq import connect
from shardq.cli.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

APP = """
import asyncio, os, signal, sys, time
from shardq import App

app = App(attempts=2, backoff="10ms")

class Own(BaseException):
    pass

@app.task(attempts=20)
def fine(n: int) -> None:
    with open("ran", "a") as file:
        file.write(f"{n}\\n")

@app.task(attempts=20)
async def also_fine(n: int) -> None:
    await asyncio.sleep(0.01)
    fine(n)

def runs(what: str) -> None:
    with open("ran", "a") as file:
        file.write(f"{what}\\n")

@app.task
def exits() -> None:
    runs("exits")
    sys.exit(3)

@app.task
async def exits_async() -> None:
    runs("exits_async")
    sys.exit(3)

@app.task
def raises() -> None:
    runs("raises")
    raise Own("own")

@app.task
async def raises_async() -> None:
    runs("raises_async")
    raise Own("own")

@app.task
def interrupts() -> None:
    runs("interrupts")
    raise KeyboardInterrupt

@app.task
async def interrupts_async() -> None:
    runs("interrupts_async")
    raise KeyboardInterrupt

@app.task(keep="1d")
def unfit() -> object:
    runs("unfit")
    return object()

@app.task
def wrong(n: int) -> None:
    runs("wrong")

@app.task
def dies() -> None:
    runs("dies")
    os._exit(0)

@app.task
def killed() -> None:
    runs("killed")
    os.kill(os.getpid(), signal.SIGKILL)

@app.task
async def killed_async() -> None:
    runs("killed_async")
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(timeout="200ms", attempts=1)
def hangs() -> None:
    runs("hangs")
    while True:
        time.sleep(0.01)

@app.task(timeout="200ms", attempts=1)
async def blocks() -> None:
    runs("blocks")
    while True:
        time.sleep(0.01)

@app.task(timeout="100ms", attempts=1)
async def sleeps() -> None:
    runs("sleeps")
    await asyncio.sleep(600)
"""
FINE = 20
QUEUE = "work-ends"
"""No other test has it, on Cassandra too."""


class Ends(NamedTuple):
    """How a worker has ended, and what became of the jobs that cannot be done.

    Attributes:
        done: It.
        dead: Each of these jobs that died: its task and why.
        ran: How often each has run, by the name of its task, and the fine ones by their numbers.
    """

    done: Done
    dead: dict[str, str]
    ran: dict[str, int]


def ends_of(shell: Shell, tasks: Sequence[str], *more: str, url: str | None = None) -> Ends:
    """Put a job of each of these tasks among others that can be done, and run all of them."""
    write_app(shell.directory, APP)
    with connect(url or shell.url) as db:
        # Jobs that still run at the deadline are delivered again after the visibility.
        queue = db.queue(QUEUE, lanes=2, attempts=20, visibility="2s")
        for n in range(FINE):
            task = "app.fine" if n % 2 else "app.also_fine"
            queue.put(f'{{"n":{n}}}', headers={"task": task})
        for task in tasks:
            queue.put("{}", headers={"task": f"app.{task}"})
    done = finished(
        shell, "app", "--queue", QUEUE, "--processes", "2", "--until-empty", *more, url=url
    )
    with connect(url or shell.url) as db:
        dead = {
            one.headers["task"]: one.last_error or "" for one in db.queue(f"{QUEUE}.dead").peek()
        }
    lines = (shell.directory / "ran").read_text().splitlines()
    return Ends(done, dead, {line: lines.count(line) for line in lines})


def check_others(ends: Ends) -> None:
    """All jobs that can be done were, and the worker has said that others died."""
    assert ends.done.code == Exit.DIED, ends.done
    assert {str(n) for n in range(FINE)} <= ends.ran.keys()
    # Tracebacks of jobs are below the jobs' lines, on stdout.
    assert "Traceback" not in ends.done.err


def test_whatever_a_function_raises_and_a_coroutine_s_limit_fails_its_job_alone(
    app_shell: Shell,
) -> None:
    twice = {
        "exits": "SystemExit: 3",
        "exits_async": "SystemExit: 3",
        "raises": "app.Own: own",
        "raises_async": "app.Own: own",
        "interrupts": "KeyboardInterrupt",
        "interrupts_async": "KeyboardInterrupt",
    }
    ends = ends_of(app_shell, [*twice, "unfit", "wrong", "sleeps"])
    check_others(ends)
    for task, error in twice.items():
        assert ends.dead[f"app.{task}"] == f"out of attempts: {error}"
        assert ends.ran[task] == 2
    assert "task app.unfit: its result cannot be JSON" in ends.dead["app.unfit"]
    assert ends.ran["unfit"] == 1
    assert "wrong" not in ends.ran
    assert "task app.wrong needs the argument n" in ends.dead["app.wrong"]
    assert "took longer than 100ms" in ends.dead["app.sleeps"]
    assert ends.ran["sleeps"] == 1
    # No process had to be replaced, and none of the others ran twice.
    assert "another takes its place" not in ends.done.err
    assert {ends.ran[str(n)] for n in range(FINE)} == {1}


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("killed", "was ended by SIGKILL"),
        pytest.param("dies", "exited with 0", marks=pytest.mark.nightly),
        pytest.param("killed_async", "was ended by SIGKILL", marks=pytest.mark.nightly),
    ],
)
def test_a_job_that_ends_its_process_is_tried_as_often_as_it_may_and_buried(
    app_shell: Shell, task: str, how: str
) -> None:
    ends = ends_of(app_shell, [task])
    check_others(ends)
    assert ends.dead == {f"app.{task}": "out of attempts: its consumer died, or its time ran out"}
    # Twice as an attempt that is counted; before the first death none needs to be.
    assert ends.ran[task] in (2, 3)
    told = re.findall(
        rf"^shardq: process \d+ {how}.*; another takes its place", ends.done.err, re.MULTILINE
    )
    assert len(told) == ends.ran[task]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("hangs", "task app.hangs of message .* runs for longer than its limit of 200ms, and cann"),
        ("blocks", "the event loop is blocked for .* by task app.blocks "),
    ],
)
def test_a_function_that_never_returns_is_over_at_its_limit_and_its_process_replaced(
    app_shell: Shell, task: str, told: str
) -> None:
    ends = ends_of(app_shell, [task], "--deadline", "200ms")
    check_others(ends)
    assert ends.dead[f"app.{task}"].startswith("out of attempts: ")
    assert "took longer than 200ms" in ends.dead[f"app.{task}"]
    assert ends.ran[task] == 1
    replaced = re.findall(
        rf"^shardq: process \d+: {told}.*; another takes its", ends.done.err, re.MULTILINE
    )
    assert len(replaced) == 1


@pytest.mark.nightly
@pytest.mark.cassandra
def test_on_cassandra_a_job_that_ends_its_process_loses_nothing(
    app_shell: Shell, cassandra_url: str
) -> None:
    ends = ends_of(app_shell, ["killed", "exits", "hangs"], url=cassandra_url)
    check_others(ends)
    assert ends.dead.keys() == {"app.killed", "app.exits", "app.hangs"}
