"""The pytest plugin, in test runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from itertools import product

import pytest
from forked import Process
from shell import TIMEOUT_S

pytest_plugins = ["pytester"]

APP = """
import shardq

app = shardq.App("sqlite:///never.db", attempts=2, backoff="1m")
ran = []

@app.task
def remind(user: str) -> None:
    ran.append(user)

@app.task
def fail() -> None:
    raise ValueError("no")
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project with an app, in which the plugin is loaded as where shardq is installed."""
    pytester.makepyfile(jobs=APP)
    pytester.makeini("[pytest]\nshardq_apps = jobs:app\n")
    monkeypatch.chdir(pytester.path)
    return pytester


def forked(run: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run the tests of a project in a forked process, with no plugin but ours."""
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "shardq.testing.plugin"}
    words = ["-m", "pytest", "-p", "no:cacheprovider", *arguments]
    with Process(words, cwd=run.path, env=os.environ | own) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    lines = [one.decode().splitlines() for one in (out, err)]
    return pytest.RunResult(process.wait(), *lines, duration=0)


def test_pytest_finds_the_plugin_by_itself() -> None:
    [found] = [one for one in entry_points(group="pytest11") if one.name == "shardq"]
    assert found.value == "shardq.testing.plugin"


FIRST = """
import jobs

def test_one(shardq_sandbox):
    jobs.remind.using(delay="3d").put("ada")
    shardq_sandbox.assert_put(jobs.remind, user="ada")
    assert shardq_sandbox.travel("30 days") == 1
    assert jobs.ran == ["ada"]

def test_another_begins_with_nothing(shardq_sandbox):
    assert shardq_sandbox.puts() == []

def test_without_it_the_app_has_its_own_store():
    assert jobs.app.connection.url_shown.endswith("never.db")
    jobs.app.close()
"""
MARKED = """
import pytest, shardq, jobs

other = shardq.App()

@other.task(name="greet")
def greet() -> None:
    jobs.ran.append("greeted")

@pytest.mark.shardq(other, start="2026-03-01T08:00:00Z", inline=True)
def test_marked(shardq_sandbox):
    assert f"{shardq_sandbox.now:%Y-%m-%d %H}" == "2026-03-01 08"
    jobs.remind.put("ada")
    greet.put()
    assert jobs.ran == ["ada", "greeted"]
"""
FROZEN = """
import datetime, freezegun, pytest, time_machine, jobs

def frozen(tool, at):
    return tool(f"{at}+00:00", tick=False)

def at_that_time(sandbox):
    jobs.remind.using(delay="1d").put("ada")
    sandbox.travel("1d")
    assert jobs.ran == ["ada"]
    assert datetime.date.today() == datetime.date(2031, 2, 4)

@frozen(freezegun.freeze_time, "2031-02-03 04:05:06")
def test_freezegun(shardq_sandbox):
    at_that_time(shardq_sandbox)

@frozen(time_machine.travel, "2031-02-03 04:05:06")
def test_time_machine(shardq_sandbox):
    at_that_time(shardq_sandbox)
"""


def test_the_apps_of_a_project_are_in_the_sandbox_for_a_test_and_then_back(
    run: pytest.Pytester,
) -> None:
    # Also as a marker says, and where a decorator freezes the time.
    run.makeconftest(
        """
        import jobs, pytest

        @pytest.fixture(autouse=True)
        def anew():
            jobs.ran.clear()
        """
    )
    run.makepyfile(test_first=FIRST, test_marked=MARKED, test_frozen=FROZEN)
    forked(run, "--strict-markers", "-W", "error").assert_outcomes(passed=6)


def test_a_job_that_dies_fails_its_test_by_its_own_error(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import jobs

        def test_it(shardq_sandbox):
            jobs.fail.put()
            shardq_sandbox.drain()
        """
    )
    result = forked(run)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*def fail() -> None:*", "E * ValueError: no"])


def test_schedules_are_made_at_the_time_that_a_decorator_freezes(run: pytest.Pytester) -> None:
    tests = [
        f"""
        @{tool}("{year}-02-03 12:00:00+00:00", tick=False)
        def test_it_fires_each_night_{place}(shardq_sandbox):
            assert shardq_sandbox.travel("7d") == 7

        @{tool}("{year}-02-03 12:00:00+00:00", tick=False)
        def test_an_app_begins_the_sandbox_as_well_{place}(shardq_sandbox):
            assert jobs.app.schedules["jobs.remind"].next.day == 4

        @pytest.mark.shardq(start="2031-01-01T00:00Z")
        @{tool}("{year}-02-03 12:00:00+00:00", tick=False)
        def test_a_start_moves_the_frozen_time_{place}(shardq_sandbox):
            assert shardq_sandbox.now.year == datetime.date.today().year == 2031
            assert shardq_sandbox.travel("7d") == 7
        """
        for place, (tool, year) in enumerate(
            product(["freezegun.freeze_time", "time_machine.travel"], [2020, 2060])
        )
    ]
    run.makepyfile(
        """
        import datetime, freezegun, pytest, time_machine, jobs

        jobs.app.cron("0 3 * * *", jobs.remind.of("ada"))

        @pytest.fixture(autouse=True)
        def everywhere(shardq_sandbox):
            return shardq_sandbox
        """
        + "".join(tests)
    )
    forked(run).assert_outcomes(passed=12)


def test_an_app_that_is_not_in_the_sandbox_puts_nothing_into_its_own_store(
    run: pytest.Pytester,
) -> None:
    run.makeini("[pytest]")
    run.makepyfile(
        """
        import jobs, pytest

        def test_put(shardq_sandbox):
            jobs.remind.put("ada")

        def test_assert_put(shardq_sandbox):
            shardq_sandbox.assert_put(jobs.remind)
        """
    )
    result = forked(run)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "E *UsageError: the app of task jobs.remind is not in the sandbox that is open, so its "
            "jobs would be in its own store, *never.db*; add it, Sandbox(app, ..), or by "
            "shardq_apps = MODULE:app in pytest.ini.",
            "E *task jobs.remind is of no app in this sandbox; add it, *shardq_apps*",
        ]
    )
    assert not list(run.path.glob("never.db*"))


def test_an_app_that_is_not_there_is_named(run: pytest.Pytester) -> None:
    run.makeini("[pytest]\nshardq_apps = nowhere:app\n")
    run.makepyfile("def test_it(shardq_sandbox): pass")
    result = forked(run)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*BadApp: *nowhere*"])


def test_a_run_that_asks_for_no_sandbox_imports_next_to_nothing(run: pytest.Pytester) -> None:
    run.makepyfile(
        """
        import sys

        def test_it():
            own = {name for name in sys.modules if name.partition(".")[0] == "shardq"}
            assert own == {"shardq", "shardq.errors", "shardq.testing", "shardq.testing.plugin"}
            assert not {"asyncio", "pendulum", "sqlite3"} & sys.modules.keys()
        """
    )
    run.runpytest_subprocess("-p", "no:asyncio", "-p", "no:anyio").assert_outcomes(passed=1)


def test_what_tests_use_is_imported_without_pytest() -> None:
    program = "import shardq.testing, sys; shardq.testing.Sandbox; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"False"]
