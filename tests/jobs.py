"""The programs of a page's blocks, and the jobs of `python -m pyspark_shardq` as tests call them.

A block need not start a Python for each of its commands, nor a Java:

```
 this process ── bash ── shardq, python or pytest (a program of ours, first on PATH)
      ▲                    │ arguments, directory, environment, streams
      └── socket ◄─────────┘ a job runs here, in the one Spark; all else in a forked process
```
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest
from shell import Shell, kept_loggers, own_environment

from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_WAIT_S = 0.2
_NUMBER_BYTES = 8
_PROGRAM = f"""\
#!{sys.executable} -IS
import array, json, os, signal, socket, sys
words, name = sys.argv[1:], os.path.basename(sys.argv[0])
if name != "python":
    words = ["-m", name, *words]
passed_on = [signal.SIGTERM, signal.SIGINT]
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(os.path.join(os.path.dirname(sys.argv[0]), "jobs"))
    told = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(asked, [len(told).to_bytes(8, "big")], [0, 1, 2])
    asked.sendall(told)
    number = int.from_bytes(asked.recv(8, socket.MSG_WAITALL), "big")
    for one in passed_on:
        signal.signal(one, lambda which, _: os.kill(number, which))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    code = int.from_bytes(asked.recv(8, socket.MSG_WAITALL), "big", signed=True)
sys.exit(code if code >= 0 else 128 - code)
"""
_PROGRAMS = ("python", "shardq", "pytest")


class Jobs(Shell):
    """Runs jobs against one store."""

    def called(self, arguments: list[str]) -> int:
        from pyspark_shardq.cli import run

        return run(arguments)


@pytest.fixture
def jobs(spark: SparkSession, tmp_path: Path) -> Iterator[Jobs]:
    with at_home(spark, tmp_path):
        yield Jobs(tmp_path)


@contextlib.contextmanager
def at_home(spark: SparkSession, directory: Path) -> Iterator[None]:
    """While this lasts, Java takes relative paths from a directory, as it would had it begun there.

    Those of SQLite are made absolute by shardq itself.
    """
    java: Any = spark
    configuration = java._jsc.hadoopConfiguration()
    hadoop = java._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(configuration)
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(directory)))
    try:
        yield
    finally:
        files.setWorkingDirectory(before)


def bash(script: str, environment: dict[str, str], timeout_s: float) -> tuple[int, str]:
    """Run a script, whose programs run here; returns its exit code and all that it has printed."""
    deadline = SystemClock().boot_us() + timeout_s * 1e6
    with (
        tempfile.TemporaryDirectory(prefix="jobs-") as room,
        tempfile.TemporaryFile("w+", encoding="utf-8") as printed,
        socket.socket(socket.AF_UNIX) as door,
    ):
        for name in _PROGRAMS:
            program = Path(room) / name
            program.write_text(_PROGRAM)
            program.chmod(0o755)
        door.bind(str(Path(room) / "jobs"))
        door.listen()
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment | {"PATH": f"{room}:{environment['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        ) as process:
            while process.poll() is None:
                if select.select([door], [], [], _WAIT_S)[0]:
                    _answer(door)
                elif SystemClock().boot_us() > deadline:
                    process.kill()
        printed.seek(0)
        return process.returncode, printed.read()


def _answer(door: socket.socket) -> None:
    asked, _ = door.accept()
    with asked:
        length, descriptors, _, _ = socket.recv_fds(asked, _NUMBER_BYTES, 3)
        told = asked.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
        words, directory, environment = json.loads(told)
        # A program of its own finds those of the environment.
        environment["PATH"] = environment["PATH"].partition(":")[2]
        try:
            if words[:2] == ["-m", "pyspark_shardq"]:
                code = _job(words[2:], directory, environment, descriptors)
                # The job takes no signals while it runs, so its pid is sent as 0.
                asked.sendall(bytes(_NUMBER_BYTES) + code.to_bytes(_NUMBER_BYTES, "big"))
            else:
                forked.start(words, directory, environment, descriptors, asked)
        finally:
            for one in descriptors:
                os.close(one)


def _job(
    arguments: list[str], directory: str, environment: dict[str, str], descriptors: list[int]
) -> int:
    """Run a job here."""
    from pyspark_shardq.cli import run

    with (
        open(descriptors[1], "w", closefd=False) as out,
        open(descriptors[2], "w", closefd=False) as err,
        contextlib.chdir(directory),
        kept_loggers(),
        own_environment(environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        return run(arguments)
