"""The stored state of a local cluster, `cluster.json` in its directory.

`cluster.py` finds out if the processes live.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardq.errors import NodeError
from shardq.node.runtime import CASSANDRA_VERSION, home_directory

DIRECTORY_VARIABLE = "SHARDQ_NODE_DIR"
KEYSPACE = "shardq"
STATE_FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a set.

    Attributes:
        number: Its number, from 1; its files are in `node<number>` below the set's directory.
        address: Its loopback address.
        jmx_port: The port for `nodetool`, on 127.0.0.1.
        pid: The id of its last process; None if it was stopped.
    """

    number: int
    address: str
    jmx_port: int
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class NodeSet:
    """A local cluster as `cluster.json` records it.

    Attributes:
        directory: The directory of all its files.
        java: The path of its Java.
        port: The CQL port of every node.
        storage_port: The port between nodes.
        nodes: Its nodes, by number.
        started: False if `start` found it running.
    """

    directory: Path
    java: Path
    port: int
    storage_port: int
    nodes: tuple[Node, ...]
    started: bool = True

    @property
    def url(self) -> str:
        """The store url of the cluster."""
        hosts = ",".join(node.address for node in self.nodes)
        return f"cassandra://{hosts}:{self.port}/{KEYSPACE}"

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes that were started, by node, without stopped ones."""
        return tuple(node.pid for node in self.nodes if node.pid is not None)

    def directory_of(self, node: Node) -> Path:
        """The directory of a node's files."""
        return self.directory / f"node{node.number}"


class _StoredCluster(msgspec.Struct):
    java: str
    port: int
    storage_port: int
    nodes: tuple[Node, ...]
    cassandra: str = CASSANDRA_VERSION


def home(directory: str | Path | None) -> Path:
    """A cluster's directory: the given one, else `SHARDQ_NODE_DIR`, else in the user's state."""
    if directory is None:
        directory = os.environ.get(DIRECTORY_VARIABLE)
    if directory:
        try:
            return Path(directory).expanduser().resolve()
        except RuntimeError as error:
            raise NodeError(f"directory {directory}: {error} Name it without a '~'.") from error
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else home_directory() / ".local" / "state") / "shardq" / "node"


def load(directory: Path) -> NodeSet | None:
    """The cluster of a directory; None if none was started there.

    Raises:
        NodeError: If the state cannot be read.
    """
    path = directory / STATE_FILE
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_StoredCluster)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise NodeError(
            f"{path} cannot be read ({error}); remove {directory} and start again."
        ) from error
    return NodeSet(
        directory, Path(stored.java), stored.port, stored.storage_port, nodes=stored.nodes
    )


def save(there: NodeSet) -> None:
    """Store a cluster's state; the old state is replaced completely or not at all."""
    stored = _StoredCluster(str(there.java), there.port, there.storage_port, there.nodes)
    path = there.directory / STATE_FILE
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n")
    fresh.replace(path)
