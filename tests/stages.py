"""Where most tests take place: fixtures, which `conftest.py` imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from worlds import World, world_of

from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A SQLite in memory, and a clock that the test moves."""
    with Stage() as made:
        yield made


@pytest.fixture
def queue(stage: Stage) -> Queue:
    """A queue of the stage, as it is unless settings are given."""
    return stage.connect().queue("mail")


@pytest.fixture
def busy() -> Iterator[Stage]:
    """A stage whose consumers run their threads."""
    with Stage(threaded=True) as made:
        yield made


@pytest.fixture(params=["memory", "file", pytest.param("cassandra", marks=pytest.mark.nightly)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A store of each kind; Cassandra by night, or where a test is `on_each_store`."""
    yield from world_of(request)
