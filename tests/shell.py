"""The command line as tests call it: `python -m shardq` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from shardq.cli.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 60


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands against one store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory}/jobs.db"

    def start(
        self, *arguments: str, url: str | None = None, **more: Any
    ) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHARDQ_")}
        environment["SHARDQ_STORE"] = self.url if url is None else url
        if not environment["SHARDQ_STORE"]:
            del environment["SHARDQ_STORE"]
        environment.pop("COLUMNS", None)
        return subprocess.Popen(
            [sys.executable, "-m", "shardq", *arguments],
            cwd=self.directory,
            env=environment,
            stdin=more.pop("stdin", subprocess.DEVNULL),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    def run(self, *arguments: str, url: str | None = None, stdin: bytes = b"") -> Done:
        with self.start(*arguments, url=url, stdin=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(stdin, TIMEOUT_S)
            finally:
                process.kill()
        return Done(process.returncode, out.decode(), err.decode())

    def ok(self, *arguments: str, stdin: bytes = b"") -> Done:
        done = self.run(*arguments, stdin=stdin)
        assert done.code == 0, done
        return done

    def fails(self, code: Exit, *arguments: str, url: str | None = None) -> str:
        done = self.run(*arguments, url=url)
        assert done.code == code, done
        assert "Traceback" not in done.err
        assert done.err.startswith("shardq: ")
        assert done.err.count("\n") == 1
        return done.err


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
