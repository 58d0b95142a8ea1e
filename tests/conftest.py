"""What all tests share: a real Cassandra, started once where a selected test asks for one.

It is `SHARDQ_TEST_CASSANDRA` where set, else a container where a Docker engine answers, else
`shardq.node`. One that does not start fails its tests; it never skips them.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import warnings
from typing import TYPE_CHECKING

import docker
import pytest
from docker.errors import DockerException
from hypothesis import settings

from shardq import node
from shardq.stores import store_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CASSANDRA_VARIABLE = "SHARDQ_TEST_CASSANDRA"
IMAGE = "cassandra:5.0"
DOCKER_ANSWER_S = 2

# Other examples in each run, and of a failure the line that repeats it. All of it is named, for
# where CI is set hypothesis takes the same examples each time. No deadline: a machine shared with a
# starting Cassandra is slow now and then.
settings.register_profile(
    "shardq", deadline=None, derandomize=False, database=None, print_blob=True
)
settings.load_profile("shardq")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cassandra: needs a real Cassandra")
    # A time limit sends a TERM; taken as a Ctrl-C, it lets the fixtures stop what they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(item, "callspec", None)
        asks = "cassandra_url" in getattr(item, "fixturenames", ())
        if asks or (parameters and "cassandra" in parameters.params.values()):
            item.add_marker(pytest.mark.cassandra)


@pytest.fixture(scope="session")
def cassandra_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of a Cassandra that has shardq's tables."""
    given = os.environ.get(CASSANDRA_VARIABLE)
    if given:
        yield _with_tables(given)
    elif _docker_answers():
        yield from _in_a_container()
    else:
        yield from _on_loopback(tmp_path_factory.mktemp("cassandra"))


def _with_tables(url: str) -> str:
    store = store_of(url)
    try:
        store.init()
    finally:
        store.close()
    return url


def _docker_answers() -> bool:
    with warnings.catch_warnings():
        # docker 7.2 leaves sockets open where nobody listens.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            # Asks the engine for its version.
            docker.from_env(timeout=DOCKER_ANSWER_S).close()
        except DockerException:
            return False
        finally:
            gc.collect()
    return True


def _in_a_container() -> Iterator[str]:
    from testcontainers.community.cassandra import CassandraContainer

    with CassandraContainer(IMAGE) as container:
        [(host, port)] = container.get_contact_points()
        yield _with_tables(f"cassandra://{host}:{port}/{node.KEYSPACE}")


def _on_loopback(directory: Path) -> Iterator[str]:
    def stop() -> None:
        node.stop(directory, remove=True)

    # Also where pytest ends before its fixtures do.
    atexit.register(stop)
    try:
        yield _with_tables(node.start(1, directory).url)
    finally:
        stop()
        atexit.unregister(stop)
