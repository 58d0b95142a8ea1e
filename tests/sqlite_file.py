"""One SQLite file and who else has it open: what the tests of the SQLite store share."""

from __future__ import annotations

import os
import sqlite3
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from forked import Process

from shardq.model.ids import row_ids
from shardq.model.message import Row
from shardq.model.shard import Shard
from shardq.stores.sqlite import SqliteStore
from shardq.stores.store import Slice

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARD = Shard("mail", 1, 0)
ALL = Slice("mail", [1], [0], -1, 1 << 48, 1_000_000)
CHILD_SECONDS_MAX = 300


def make_row(due_ms: int = 60_000, body: bytes = b"body") -> Row:
    return Row(SHARD, due_ms, row_ids.next(1), body)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, busy_ms=20)
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def other(store: SqliteStore, path: Path) -> Iterator[SqliteStore]:
    """A second store on the same file, as another process has."""
    opened = SqliteStore(path)
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def stranger(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """A bare connection to the same file."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    yield connection
    connection.close()


def run_child(script: str, *arguments: object) -> str:
    """The output of a Python process that runs a script; it fails where the script does."""
    code = f"import warnings; warnings.simplefilter('error')\n{textwrap.dedent(script)}"
    words = ["-c", code, *map(str, arguments)]
    with Process(words, cwd=Path.cwd(), env=os.environ) as process:
        out, err = process.communicate(timeout=CHILD_SECONDS_MAX)
    assert process.returncode == 0, err.decode()
    return out.decode()
