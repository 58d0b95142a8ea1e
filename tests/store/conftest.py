"""The stores of the contract: SQLite in memory and in a file, Cassandra, simulated tables.

On all but Cassandra a test moves the store's clock by hand. Cassandra keeps its own time, so there
the few tests of a time to live use a short one and ask the store, within a bound, until it has run
out. A fresh queue for each test keeps them apart.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from simulated.cells import Cells
from simulated.client import SimulatedStore
from simulated.network import Network, Weather
from simulated.scheduler import Scheduler

from shardq import clock
from shardq.stores import store_of
from shardq.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardq.stores.store import Store

from store.parts import (
    BASE_US,
    Hands,
    Lapse,
)

LAPSE_POLLS = 600
LAPSE_POLL_SECONDS = 0.1


@pytest.fixture(params=["memory", "file", "simulated", "cassandra"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture(scope="package")
def cassandra_store(cassandra_url: str) -> Iterator[Store]:
    store = store_of(cassandra_url)
    store.open(create=True)
    yield store
    store.close()


@pytest.fixture
def store(
    kind: str, hands: Hands, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Store]:
    if kind == "cassandra":
        yield request.getfixturevalue("cassandra_store")
        return
    if kind == "simulated":
        yield SimulatedStore(Network(Scheduler(BASE_US), Cells(hands), Weather()))
        return
    path = None if kind == "memory" else tmp_path / "jobs.db"
    embedded = SqliteStore(path, machine_us=hands, boot_time=hands.boot_time)
    embedded.open(create=True)
    yield embedded
    embedded.close()


@pytest.fixture
def queue() -> str:
    return f"q-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def lapse(kind: str, hands: Hands) -> Lapse:
    def by_hand(ttl_ms: int, gone: Callable[[], bool]) -> None:
        hands.us += ttl_ms * 1_000 - 1
        assert not gone(), "gone a microsecond before its time"
        hands.us += 1
        assert gone()

    def for_real(ttl_ms: int, gone: Callable[[], bool]) -> None:
        polls = LAPSE_POLLS + round(ttl_ms / 1_000 / LAPSE_POLL_SECONDS)
        for _ in range(polls):
            if gone():
                return
            clock.SystemClock(0).sleep(LAPSE_POLL_SECONDS)
        pytest.fail(f"still there after {polls * LAPSE_POLL_SECONDS:.0f} s")

    return for_real if kind == "cassandra" else by_hand
