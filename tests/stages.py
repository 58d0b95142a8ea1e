"""Where most tests take place: fixtures, which `conftest.py` imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, world_of

from shardq.stores import steps
from shardq.stores.store import NO_MARKS, NO_TIMES
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardq import Connection, Queue
    from shardq.model.shard import Position
    from shardq.stores.store import Mark, RowMove


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A SQLite in memory, and a clock that the test moves."""
    with Stage() as made:
        yield made


@pytest.fixture(name="stage", params=[True, False], ids=["local", "elsewhere"])
def either_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """On a store that has an index of minutes, and on one without; to be imported."""
    with Stage(local=request.param) as made:
        yield made


@pytest.fixture
def queue(stage: Stage) -> Queue:
    """A queue of the stage, as it is unless settings are given."""
    return stage.connect().queue("mail")


@pytest.fixture
def db(stage: Stage) -> Connection:
    return stage.connect()


@pytest.fixture
def in_steps(stage: Stage) -> None:
    """Moves with marks or notes go step by step, as on Cassandra, and meet each verb's faults."""
    whole = stage._sqlite.move

    def move(
        moves: Iterable[RowMove],
        marks: Mapping[Position, Sequence[Mark]] = NO_MARKS,
        kept_ms: Mapping[str, int] = NO_TIMES,
    ) -> set[Position]:
        made = list(moves)
        if not marks and all(move.note is None for move in made):
            return whole(made)
        steps.move(stage._store, made, marks, kept_ms)
        return set()

    stage._sqlite.move = move  # type: ignore[method-assign]


@pytest.fixture
def busy() -> Iterator[Stage]:
    """A stage whose consumers run their threads."""
    with Stage(threaded=True) as made:
        yield made


@pytest.fixture(params=["sqlite", pytest.param("cassandra", marks=pytest.mark.nightly)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A real store, in a real time; Cassandra by night, or where a test is `on_both_stores`."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("cassandra_url"))


@pytest.fixture(params=["memory", "file", pytest.param("cassandra", marks=pytest.mark.nightly)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A store of each kind; Cassandra by night, or where a test is `on_each_store`."""
    yield from world_of(request)
