"""Starts, stops and watches the processes of a local Cassandra.

```
 stopped ── start ──► starting ── answers CQL, sees the others ──► up ── stop ──► stopped
    ▲                     │ dies, or is too slow: its last log lines  │
    └─────────────────────┴───────── killed: seen by its pid ─────────┘
```

A pid is signalled only if its command line names our directory, because process ids are reused. A
node's programs are in `runtime.py`, its settings in `config.py`.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.child import ChildProcess, ProcessById, end
from shardq.clock import SystemClock
from shardq.errors import BadSetting, NodeError
from shardq.model.times import span
from shardq.node import config, runtime, state, wire
from shardq.node.state import Node, NodeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardq.clock import Clock

log = logging.getLogger(__name__)

_READY_S = 120
_READY_MORE_S = 60
"""Seconds that are added for each further node, because starting nodes share the machine's
cores."""
_STOP_S = 30
_KILL_S = 10
_POLL_S = 0.2
_LOG_TAIL_BYTES = 16_384
_LOG_TAIL_LINES = 25
_DAEMON = "org.apache.cassandra.service.CassandraDaemon"

_children: dict[tuple[Path, int], ChildProcess] = {}
"""Nodes that this process has started. It must reap them, because zombies would stay otherwise."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node: `up` (answers CQL), `starting` (lives but does not answer) or `down`."""

    node: Node
    state: str


@dataclass(frozen=True, slots=True)
class Status:
    """A local cluster and the state of its nodes."""

    cluster: NodeSet
    nodes: tuple[NodeState, ...]

    @property
    def running(self) -> bool:
        """True if any node has a living process."""
        return any(node.state != "down" for node in self.nodes)


def start(
    nodes: int = 1,
    directory: str | Path | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    java_flags: Sequence[str] = (),
    report: Callable[[str], None] = log.info,
    clock: Clock | None = None,
) -> NodeSet:
    """Start a local Cassandra, and wait until it answers; if it runs already, it stays as it is.

    The node processes outlive this process: end them with `stop`. Data that an earlier set left in
    the directory is used again. The first start of a version fetches its jars.

    Args:
        nodes: How many nodes, 1 to 5.
        directory: The directory of its files; None: `SHARDQ_NODE_DIR`, else in the user's state.
        settings: Directives of `cassandra.yaml` that replace or join the usual ones.
        java_flags: More flags of Java, after the usual ones.
        report: Called with a sentence before a step that takes long.
        clock: Waits.

    Returns:
        The set, every node up and aware of the others; `started` is False if the set ran already.

    Raises:
        BadSetting: If `nodes` is out of bounds.
        MissingExtra: If installing `shardq[node]` would help.
        NodeError: If Java is missing, the directory holds a set of another size, or a node does not
            start; then with the last lines of its log.
    """
    if not 1 <= nodes <= config.NODES_MAX:
        raise BadSetting(f"nodes must be between 1 and {config.NODES_MAX}, not {nodes}.")
    home = state.home(directory)
    _make(home)
    with runtime.file_lock(home / "lock"):
        before = state.load(home)
        if before is not None and len(before.nodes) != nodes:
            raise NodeError(
                f"{home} holds a cluster of {len(before.nodes)}, not of {nodes}; remove it first "
                f"(shardq node stop --remove) or choose another directory by "
                f"{state.DIRECTORY_VARIABLE}."
            )
        if before is not None and all(_lives(before, node) for node in before.nodes):
            return replace(before, started=False)
        chosen = _prepare(before or _plan(home, nodes), settings or {}, java_flags, report)
        return _bring_up(
            chosen,
            [node for node in chosen.nodes if not _lives(chosen, node)],
            report=report,
            clock=clock or SystemClock(),
        )


def kill(
    number: int, directory: str | Path | None = None, *, clock: Clock | None = None
) -> int | None:
    """Kill a node of a set, as a crash would; `start` brings it back.

    Args:
        number: The number of the node, from 1.
        directory: As for `start`.
        clock: Waits.

    Returns:
        The id of the process that has ended; None if none ran.

    Raises:
        NodeError: If there is no such node.
    """
    with _locked_set(state.home(directory)) as there:
        ended = _end(there, [_node(there, number)], hard=True, clock=clock or SystemClock())
        return ended[0] if ended else None


def stop(
    directory: str | Path | None = None, *, remove: bool = False, clock: Clock | None = None
) -> tuple[int, ...]:
    """Stop a local Cassandra. Idempotent.

    Its processes are asked to end; processes that still run after 30 s are killed.

    Args:
        directory: As for `start`.
        remove: Also remove its data; then the processes are killed at once.
        clock: Waits.

    Returns:
        The ids of the processes that ran and have ended; empty if none ran.

    Raises:
        NodeError: If a process does not even end when killed.
    """
    home = state.home(directory)
    if not (home / state.STATE_FILE).exists():
        return ()
    with _locked_set(home) as there:
        ended = _end(there, there.nodes, hard=remove, clock=clock or SystemClock())
        state.save(replace(there, nodes=tuple(replace(node, pid=None) for node in there.nodes)))
        if remove:
            _remove(there)
    return ended


def status(directory: str | Path | None = None) -> Status | None:
    """The state of a local Cassandra; None if none was started in the directory.

    Raises:
        NodeError: If the directory's state cannot be read.
    """
    there = state.load(state.home(directory))
    if there is None:
        return None
    return Status(there, tuple(NodeState(node, _state_of(there, node)) for node in there.nodes))


# Starting ----------------------------------------------------------------------------------------


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NodeError(f"{directory} cannot be made: {error.strerror}.") from error


def _plan(home: Path, nodes: int) -> NodeSet:
    hosts = config.addresses(nodes)
    ports = config.choose_ports(hosts)
    return NodeSet(
        directory=home,
        java=Path(),
        port=ports.native,
        storage_port=ports.storage,
        nodes=tuple(
            Node(number, address, jmx_port)
            for number, (address, jmx_port) in enumerate(zip(hosts, ports.jmx, strict=True), 1)
        ),
    )


def _prepare(
    there: NodeSet,
    settings: Mapping[str, object],
    java_flags: Sequence[str],
    report: Callable[[str], None],
) -> NodeSet:
    """Write the files that each node needs to start."""
    found = runtime.find(report)
    there = replace(there, java=found.java, started=True)
    hosts = [node.address for node in there.nodes]
    ports = config.Ports(there.port, there.storage_port, tuple(n.jmx_port for n in there.nodes))
    for node, token in zip(there.nodes, config.tokens(len(hosts)), strict=True):
        directory = there.directory_of(node)
        (directory / "tmp").mkdir(parents=True, exist_ok=True)
        yaml = config.cassandra_yaml(
            address=node.address, token=token, seeds=hosts, ports=ports, settings=settings
        )
        flags = config.node_flags(found, directory, nodes=len(hosts), jmx_port=node.jmx_port)
        files = {
            "cassandra.yaml": yaml,
            "logback.xml": config.LOGBACK,
            "node.args": config.argument_file([*flags, *java_flags]),
        }
        for name, text in files.items():
            (directory / name).write_text(text)
    return there


def _bring_up(
    there: NodeSet, nodes: Sequence[Node], *, report: Callable[[str], None], clock: Clock
) -> NodeSet:
    report(f"starting {len(nodes)} Cassandra node{'s' if len(nodes) > 1 else ''} on {there.url}")
    begun_us = clock.boot_us()
    with contextlib.ExitStack() as undo:
        for node in nodes:
            pid = _spawn(there, node)
            started = replace(node, pid=pid)
            undo.callback(_end, there, [started], hard=True, clock=clock)
            others = (started if n.number == node.number else n for n in there.nodes)
            there = replace(there, nodes=tuple(others))
            # Save the state after every start, so that `stop` finds all nodes even if this process
            # is killed now.
            state.save(there)
        _wait_ready(there, [node.number for node in nodes], clock)
        undo.pop_all()
    report(f"ready after {span((clock.boot_us() - begun_us) / 1_000)}")
    return there


def _spawn(there: NodeSet, node: Node) -> int:
    directory = there.directory_of(node)
    with (directory / "stdout.log").open("wb") as output:
        try:
            child = ChildProcess(
                [str(there.java), *_words_of(directory)],
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise NodeError(f"{there.java} could not be run: {error}.") from error
    _children[directory, child.pid] = child
    return child.pid


def _words_of(directory: Path) -> tuple[str, str]:
    """The words of a node's command, by which its process is recognized."""
    return f"@{directory / 'node.args'}", _DAEMON


def _wait_ready(there: NodeSet, numbers: Sequence[int], clock: Clock) -> None:
    bound_s = _READY_S + _READY_MORE_S * (len(numbers) - 1)
    deadline_us = clock.boot_us() + bound_s * 1_000_000
    nodes = [node for node in there.nodes if node.number in numbers]
    while True:
        for node in nodes:
            if not _lives(there, node):
                raise NodeError(f"Cassandra ended as it started. {_last_lines(there, node)}")
        silent = [node for node in nodes if not _answers(there, node)]
        if not silent and _agree(there):
            return
        if clock.boot_us() > deadline_us:
            late = (silent or nodes)[0]
            raise NodeError(
                f"Cassandra was not ready within {bound_s} s. {_last_lines(there, late)}"
            )
        clock.sleep(_POLL_S)


def _agree(there: NodeSet) -> bool:
    """True if each node that answers reaches the others that answer.

    A node that answers CQL may still not reach the others. In a set of more than three, some of
    which are down, this proves only that the ring's rows have a quorum.
    """
    up = [node for node in there.nodes if _answers(there, node)]
    # Each node that is down may take a replica away.
    replicas = min(len(there.nodes), wire.REPLICAS) - (len(there.nodes) - len(up))
    return all(wire.reaches(node.address, there.port, max(replicas, 1)) for node in up)


def _last_lines(there: NodeSet, node: Node) -> str:
    directory = there.directory_of(node)
    for name in ("system.log", "stdout.log"):
        path = directory / name
        if path.exists() and (size := path.stat().st_size):
            with path.open("rb") as file:
                file.seek(max(0, size - _LOG_TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
            shown = "\n".join(lines[-_LOG_TAIL_LINES:])
            return f"The last lines of {path}:\n{shown}"
    return f"It wrote nothing in {directory}."


# Watching and stopping ---------------------------------------------------------------------------


def _state_of(there: NodeSet, node: Node) -> str:
    if not _lives(there, node):
        return "down"
    return "up" if _answers(there, node) else "starting"


def _answers(there: NodeSet, node: Node) -> bool:
    return wire.answers(node.address, there.port)


def _lives(there: NodeSet, node: Node) -> bool:
    """True if a node's process runs and is really that node."""
    return node.pid is not None and not _process_of(there, node).has_ended()


def _process_of(there: NodeSet, node: Node) -> ProcessById:
    directory, pid = there.directory_of(node), node.pid or 0
    # Ask a child itself: Linux shows an empty command line for a moment as a process starts or
    # ends.
    own = _children.get((directory, pid))
    return own or ProcessById(pid, " ".join(_words_of(directory)))


def _end(there: NodeSet, nodes: Sequence[Node], *, hard: bool, clock: Clock) -> tuple[int, ...]:
    """End nodes, all at once; returns the pids of those that ran."""
    running = [_process_of(there, node) for node in nodes if _lives(there, node)]
    late = running if hard else end(running, _STOP_S, clock)
    if late := end(late, _KILL_S, clock, hard=True):
        raise NodeError(
            f"process {late[0].pid} of a node in {there.directory} does not end, though it was "
            f"killed; look at it by hand."
        )
    return tuple(one.pid for one in running)


# The directory -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked_set(home: Path) -> Iterator[NodeSet]:
    if not (home / state.STATE_FILE).exists():
        raise NodeError(f"no Cassandra was started in {home}; start one (shardq node start).")
    with runtime.file_lock(home / "lock"):
        there = state.load(home)
        if there is None:
            raise NodeError(f"the Cassandra in {home} was just removed.")
        yield there


def _node(there: NodeSet, number: int) -> Node:
    if 1 <= number <= len(there.nodes):
        return there.nodes[number - 1]
    raise NodeError(f"there is no node {number}; {there.directory} has 1 to {len(there.nodes)}.")


def _remove(there: NodeSet) -> None:
    """Remove the files of a set, and its directory if nothing else is in it."""
    for node in there.nodes:
        shutil.rmtree(there.directory_of(node), ignore_errors=True)
    for name in (state.STATE_FILE, "lock"):
        (there.directory / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        there.directory.rmdir()
