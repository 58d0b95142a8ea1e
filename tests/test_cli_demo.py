"""The demo: what it proves, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess

from shell import TIMEOUT_S, Shell, shell

from shardq.cli.exits import Exit


def test_the_demo_proves_a_short_trace(shell: Shell) -> None:
    done = shell.ok(
        "demo", "--limit", "200", "--speed", "1e6", "--producers", "1", "--consumers", "2"
    )
    *_, verdict = done.out.splitlines()
    assert verdict == "All 200 messages were delivered once, none early."
    assert "delivered   200 of 200\nlost        0\n" in done.out
    assert max(map(len, done.out.splitlines()[3:])) <= 80


def test_a_demo_that_is_terminated_leaves_no_process_running(shell: Shell) -> None:
    keep = str(shell.directory / "kept")
    try:
        with shell.start("demo", "--limit", "200", "--consumers", "1", "--keep", keep) as process:
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
