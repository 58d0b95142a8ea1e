"""The demo: what it proves, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from proofs.demo import demo
from shell import TIMEOUT_S, Shell

from shardq import cli
from shardq.cli.exits import Exit

SCRIPTS = Path(__file__).parent.parent / "scripts"


class Demo(Shell):
    """`scripts/demo`, in this process."""

    def called(self, arguments: list[str]) -> int:
        return cli.run(arguments, command=demo, name="scripts/demo")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    return Demo(tmp_path)


def test_the_demo_proves_a_short_trace(shell: Shell) -> None:
    done = shell.ok("--limit", "200", "--speed", "1e6", "--producers", "1", "--consumers", "2")
    *_, verdict = done.out.splitlines()
    assert verdict == "All 200 messages were delivered once, none early."
    assert "delivered   200 of 200\nlost        0\n" in done.out
    assert max(map(len, done.out.splitlines()[3:])) <= 80


@pytest.mark.parametrize(
    ("told", "arguments"),
    [
        ("a whole number of 1 or more", ["--limit", "x"]),
        ("one consumer more", ["--kill", "--consumers", "1"]),
        ("--clock-offsets", ["--clock-offsets", "x"]),
    ],
)
def test_wrong_usage_is_one_line(shell: Shell, told: str, arguments: list[str]) -> None:
    assert told in shell.fails(Exit.USAGE, *arguments)


def test_a_demo_that_is_terminated_leaves_no_process_running(tmp_path: Path) -> None:
    keep = str(tmp_path / "kept")
    try:
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "proofs.demo",
                *("--limit", "200", "--consumers", "1"),
                "--keep",
                keep,
            ],
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(SCRIPTS.parent), str(SCRIPTS)))},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            assert any(b" of 200 delivered" in line for line in process.stdout)
            assert len(processes_of(keep)) > 1
            process.terminate()
            assert process.wait(TIMEOUT_S) == Exit.INTERRUPTED
        assert processes_of(keep) == []
    finally:
        for pid in processes_of(keep):
            os.kill(pid, signal.SIGKILL)


def processes_of(argument: str) -> list[int]:
    """The processes that have this in their command line."""
    told = subprocess.run(["ps", "-A", "-ww", "-o", "pid=,args="], capture_output=True, check=True)
    lines = [line.decode(errors="replace") for line in told.stdout.splitlines()]
    return [int(line.split()[0]) for line in lines if argument in line]
