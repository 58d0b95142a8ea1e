"""What all tests share: one real Cassandra, started when the first test asks for it.

It is `SHARDQ_TEST_CASSANDRA` where set, else a container where a Docker engine answers, else
`shardq.node`. One that does not start fails its tests; it never skips them.

```
 pytest -n 2 ──► worker 0 ──┐ asks first, takes the lock, starts the node, writes its url down
     │      └──► worker 1 ──┤ asks meanwhile, waits for the lock, reads the url
     └─ at its end ─────────┴─ stops the node
```

Tests on it run at the same time: each has a queue, or a keyspace, whose name no other has.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import inspect
import json
import os
import shutil
import signal
import tempfile
import warnings
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples import EXAMPLES
from hypothesis import settings
from stages import busy, db, in_steps, queue, stage, url, world  # noqa: F401 - fixtures of all tests
from worlds import own_keyspace

from shardq import node
from shardq.model.ids import row_ids
from shardq.server.masterkey import FILE_VARIABLE, MASTER_VARIABLE
from shardq.stores import store_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession

CASSANDRA_VARIABLE = "SHARDQ_TEST_CASSANDRA"
SHARED_VARIABLE = "SHARDQ_TEST_SHARED"
"""Names the directory that the processes of one run share; set for them, not by people."""
IMAGE = "cassandra:5.0"
DOCKER_ANSWER_S = 2
_JAVA_FLAGS = ["-XX:TieredStopAtLevel=1"]
"""It starts twice as fast: what it would compile for later takes the cores from the tests."""

# Each run takes the same examples, so that a failure is due to the changed code. If a number of
# examples is asked for, as scripts/nightly does, each run takes other examples, and a failure
# prints the line that repeats it. No deadline: a starting Cassandra slows the machine down.
settings.register_profile(
    "shardq", deadline=None, derandomize=not EXAMPLES, database=None, print_blob=True
)
settings.load_profile("shardq")

HAS_SPARK = find_spec("pyspark") is not None
HAS_PLAYWRIGHT = find_spec("playwright") is not None
collect_ignore_glob = [
    *([] if HAS_SPARK else ["test_spark_*.py"]),
    *([] if HAS_PLAYWRIGHT else ["browser"]),
]
"""Without these their own tests cannot even be imported; scripts/test always installs them."""


def pytest_report_header() -> list[str]:
    installed = {"PySpark": HAS_SPARK, "playwright": HAS_PLAYWRIGHT}
    return [
        f"{name} is not installed: its tests are left out"
        for name in installed
        if not installed[name]
    ]


_TEST_S = 60
"""A test that is a coroutine may take this long."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), _TEST_S))
    return True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also the tests marked nightly")
    parser.addoption("--spark", action="store_true", help="also those on Spark not marked gate")
    parser.addoption("--pictures", help="where pictures of the pages are kept, a directory")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cassandra: needs a real Cassandra")
    config.addinivalue_line("markers", "spark: needs PySpark and a Java")
    config.addinivalue_line("markers", "browser: needs Chromium")
    config.addinivalue_line("markers", "gate: on Spark, and run before every change all the same")
    config.addinivalue_line(
        "markers", "nightly: too long for every change; scripts/nightly runs it"
    )
    for name in (MASTER_VARIABLE, FILE_VARIABLE):
        os.environ.pop(name, None)
    # A time limit sends a TERM; taken as a Ctrl-C, it lets pytest stop what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        made = tempfile.mkdtemp(prefix="shardq-tests-")
        # Workers inherit it.
        os.environ[SHARED_VARIABLE] = made
        config.add_cleanup(lambda: _end_shared(Path(made)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(item, "callspec", None)
        asks = "cassandra_url" in getattr(item, "fixturenames", ())
        if asks or (parameters and "cassandra" in parameters.params.values()):
            item.add_marker(pytest.mark.cassandra)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") and not HAS_SPARK:
            item.add_marker(pytest.mark.skip(reason="PySpark is not installed"))
    left_out = [item for item in items if _is_left_out(item, config)]
    items[:] = [item for item in items if not _is_left_out(item, config)]
    config.hook.pytest_deselected(items=left_out)
    # First: each process gets one part, so those on Spark are all in one of them, and have been run
    # when another, done with its own, takes what is at the end of the rest. Each session is a Java
    # of its own.
    # Next those in a browser, which share one likewise.
    items.sort(key=lambda item: (_is_not_on_spark(item), not item.get_closest_marker("browser")))


def _is_left_out(item: pytest.Item, config: pytest.Config) -> bool:
    """True if a test is too long for every change, or on Spark, where few changes can break it."""
    if config.option.nightly:
        return False
    names_spark = any("test_spark_" in word for word in config.invocation_params.args)
    is_asked_for = config.option.spark or names_spark or item.get_closest_marker("gate")
    is_on_spark = item.get_closest_marker("spark") is not None
    return item.get_closest_marker("nightly") is not None or (is_on_spark and not is_asked_for)


def _is_not_on_spark(item: pytest.Item) -> bool:
    return item.get_closest_marker("spark") is None


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A text with half of a surrogate pair cannot be sent: the whole run would end by it."""
    return _sendable((yield))


def _sendable(told: Any) -> Any:
    if isinstance(told, str):
        return told.encode(errors="backslashreplace").decode()
    if isinstance(told, dict):
        return {name: _sendable(value) for name, value in told.items()}
    if isinstance(told, (list, tuple)):
        return type(told)(_sendable(value) for value in told)
    return told


@pytest.fixture(autouse=True)
def _ids_of_now() -> None:
    """Row ids never go backwards, and the stages of other tests have taken them to their years."""
    row_ids._last_us = 0


# What the processes of a run share ----------------------------------------------------------------


@pytest.fixture(scope="session")
def shared() -> Path:
    """A directory of this run, the same in all of its processes."""
    return Path(os.environ[SHARED_VARIABLE])


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """While this lasts no other process of the run is in here."""
    with (directory / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _end_shared(directory: Path) -> None:
    """Stop what the processes of this run have started."""
    state = directory / "cassandra.json"
    container = json.loads(state.read_text()).get("container") if state.exists() else None
    if container is not None:
        import docker

        with suppress(docker.errors.DockerException):
            docker.from_env().containers.get(container).remove(force=True)
    node.stop(directory / "node", remove=True)
    shutil.rmtree(directory, ignore_errors=True)


# Spark --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark(shared: Path, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """The one Spark of a run: two tasks at a time, each tried four times."""
    from pyspark_shardq import session

    made = session(
        "shardq-tests",
        master="local[2,4]",
        **{
            "spark.sql.shuffle.partitions": 4,
            # The nightly tests measure Spark: only there is its code compiled for speed.
            "spark.driver.extraJavaOptions": ""
            if pytestconfig.option.nightly
            else " ".join(_JAVA_FLAGS),
            "spark.sql.warehouse.dir": str(shared / "warehouse"),
        },
    )
    yield made
    made.stop()


# Cassandra ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cassandra_url(shared: Path) -> str:
    """The url of a Cassandra that has shardq's tables."""
    with locked(shared):
        state = shared / "cassandra.json"
        if not state.exists():
            # First that it was tried, so that what cannot be started is tried once.
            state.write_text("{}")
            state.write_text(json.dumps(_started(shared)))
        told = json.loads(state.read_text())
    assert "url" in told, "Cassandra did not start, as the first test that asked for it says"
    return str(told["url"])


@pytest.fixture
def own_url(cassandra_url: str) -> Iterator[str]:
    """The url of a keyspace that does not exist yet; the test may make it."""
    with own_keyspace(cassandra_url) as made:
        yield made


def _started(shared: Path) -> dict[str, str]:
    """Start a Cassandra and make its tables; tells its url, and its container where it has one."""
    given = os.environ.get(CASSANDRA_VARIABLE)
    if given:
        told = {"url": given}
    elif _docker_answers():
        told = _in_a_container()
    else:
        told = {"url": node.start(1, shared / "node", java_flags=_JAVA_FLAGS).url}
    store = store_of(told["url"])
    try:
        store.open(create=True)
    finally:
        store.close()
    return told


def _docker_answers() -> bool:
    # Where a Cassandra is named, nobody needs it: it takes a third of a second to import.
    import docker

    with warnings.catch_warnings():
        # docker 7.2 leaves sockets open where nobody listens.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            # Asks the engine for its version.
            docker.from_env(timeout=DOCKER_ANSWER_S).close()
        except docker.errors.DockerException:
            return False
        finally:
            gc.collect()
    return True


def _in_a_container() -> dict[str, str]:
    from testcontainers.community.cassandra import CassandraContainer
    from testcontainers.core.config import testcontainers_config

    # Its own reaper would end the container with the process that has started it.
    testcontainers_config.ryuk_disabled = True
    container = CassandraContainer(IMAGE).start()
    [(host, port)] = container.get_contact_points()
    return {
        "url": f"cassandra://{host}:{port}/{node.KEYSPACE}",
        "container": container.get_wrapped_container().id,
    }
