"""The stores on which puts under keys are tested: fixtures, for `pytest_plugins`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from keyed import as_elsewhere
from worlds import store_on_cassandra

from shardq import Connection, Queue
from shardq.testing import Stage


@pytest.fixture
def apart() -> Iterator[Stage]:
    """A stage as of a store on other machines: of `stage` names and rows are written together."""
    with Stage() as made:
        as_elsewhere(made)
        yield made


@pytest.fixture(params=["stage", "apart"])
def either(request: pytest.FixtureRequest) -> Stage:
    made: Stage = request.getfixturevalue(request.param)
    return made


@pytest.fixture(params=["stage", "apart", "cassandra"])
def queue(request: pytest.FixtureRequest) -> Iterator[Queue]:
    name = f"q-{uuid.uuid4().hex[:12]}"
    if request.param == "cassandra":
        with Connection(store_on_cassandra(request.getfixturevalue("cassandra_url"))) as db:
            yield db.queue(name)
    else:
        stage: Stage = request.getfixturevalue(request.param)
        yield stage.connect().queue(name)
