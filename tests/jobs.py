"""The jobs of `python -m shardq.spark` as tests call them: in this process, in its one Spark.

A shell's commands come here too, so that a page's blocks need not start a Java each:

```
 this process ── bash ── python (a program of ours, first on PATH)
      ▲                    │ arguments, directory, environment
      └── socket ◄─────────┘ runs the job, answers with its exit code; output goes where bash says
```
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shell import Shell, kept_loggers, own_environment

from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_WAIT_S = 0.2
_MESSAGE_BYTES = 1 << 20
_PYTHON = f"""\
#!{sys.executable}
import array, json, os, socket, sys
if sys.argv[1:3] != ["-m", "shardq.spark"]:
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as asked:
    asked.connect(os.path.join(os.path.dirname(__file__), "jobs"))
    told = json.dumps([sys.argv[3:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(asked, [told], [1, 2])
    sys.exit(int(asked.recv(16)))
"""


class Jobs(Shell):
    """Runs jobs against one store."""

    def called(self, arguments: list[str]) -> int:
        from shardq.spark.__main__ import run

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
    """Run a script, whose jobs run here; returns its exit code and all that it has printed."""
    deadline = SystemClock().boot_us() + timeout_s * 1e6
    with (
        tempfile.TemporaryDirectory(prefix="jobs-") as room,
        tempfile.TemporaryFile("w+", encoding="utf-8") as printed,
        socket.socket(socket.AF_UNIX) as door,
    ):
        python = Path(room) / "python"
        python.write_text(_PYTHON)
        python.chmod(0o755)
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
    from shardq.spark.__main__ import run

    asked, _ = door.accept()
    with asked:
        told, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 2)
        arguments, directory, environment = json.loads(told)
        with (
            open(descriptors[0], "w") as out,
            open(descriptors[1], "w") as err,
            contextlib.chdir(directory),
            kept_loggers(),
            own_environment(environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run(arguments)
        asked.send(str(code).encode())
