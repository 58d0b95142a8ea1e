"""The three nodes, and the faults that can be made to them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from cassandra.cluster import Cluster

from faults import network
from faults.beans import Beans
from shardq import node
from shardq.node import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from faults.turn import Patience

COUNT = 3
FILLED = 3
"""The node whose commit log is on a disk of its own, which can be filled."""
_DISK_MB = 96
_WRITE_TIMEOUT_MS = 2_000
_TOMBSTONES = 100_000
_SETTINGS = {
    "commitlog_total_space": "40MiB",
    # A killed node keeps all that it acknowledged. By default it would lose its last 100 ms.
    "commitlog_sync": "group",
    "commitlog_sync_period": "0ms",
    "commitlog_sync_group_window": "10ms",
    "write_request_timeout": f"{_WRITE_TIMEOUT_MS}ms",
    "tombstone_failure_threshold": _TOMBSTONES,
}
_JAVA_FLAGS = (
    # Nodes start twice as fast. They start a dozen times, and the second compiler would take the
    # cores from everything else for minutes.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
_ALL = range(1, COUNT + 1)
_STORAGE = "org.apache.cassandra.db:type=StorageService"
_PROXY = "org.apache.cassandra.db:type=StorageProxy"
_HINTS = "org.apache.cassandra.hints:type=HintsService"
_TIMEOUTS = "org.apache.cassandra.metrics:type=ClientRequest,scope=*Write,name=Timeouts"
_SETTLE_S = 60


@dataclass
class Nodes:
    """A context manager: starts the nodes, and at the end stops them and deletes their data.

    If nodes run in the directory already, it uses them and leaves them running.

    Args:
        directory: Where their files go.
        clock: The clock that waits.
    """

    directory: Path
    clock: Patience
    url: str = ""
    _were_there: bool = False
    _undo: ExitStack = field(init=False)

    def __enter__(self) -> Nodes:
        before = node.status(self.directory)
        self._were_there = before is not None and before.running
        if os.geteuid() == 0 and not self._disk.is_mount():
            self._disk.mkdir(parents=True, exist_ok=True)
            _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "shardq-faults", self._disk)
        with ExitStack() as undo:
            if not self._were_there:
                undo.callback(self._unmount)
                undo.callback(node.stop, self.directory, remove=True)
            self.start()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @cached_property
    def _beans(self) -> Beans:
        return self._undo.enter_context(Beans(self.directory.with_name("beans")))

    @property
    def _disk(self) -> Path:
        return self.directory / f"node{FILLED}" / "data" / "commitlog"

    def _unmount(self) -> None:
        if self._disk.is_mount():
            _run("umount", self._disk)

    def start(self) -> None:
        """Start the nodes that do not run, and wait until all see each other."""
        there = node.start(
            COUNT, self.directory, settings=_SETTINGS, java_flags=_JAVA_FLAGS, clock=self.clock
        )
        self.url = there.url

    def kill(self, number: int) -> None:
        """End a node as `kill -9` does."""
        node.kill(number, self.directory, clock=self.clock)

    @contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """While this lasts, a node stands still."""
        pid = self._set().nodes[number - 1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def cut_off(self, *numbers: int) -> Iterator[Callable[[], int]]:
        """While this lasts, no packet of other nodes reaches these; yields a counter of drops."""
        there = self._set()
        with network.cut(
            *((there.nodes[number - 1].address, there.storage_port) for number in numbers)
        ) as dropped:
            yield dropped

    @contextmanager
    def unreachable(self, *numbers: int) -> Iterator[Callable[[], int]]:
        """While this lasts, no packet of clients reaches these nodes; yields a counter of drops."""
        there = self._set()
        with network.cut(
            *((there.nodes[number - 1].address, there.port) for number in numbers)
        ) as dropped:
            yield dropped

    @contextmanager
    def write_timeout(self, millis: int) -> Iterator[None]:
        """While this lasts, every node waits `millis` for a write."""
        try:
            self._set_each(_PROXY, "WriteRpcTimeout", millis)
            yield
        finally:
            self._set_each(_PROXY, "WriteRpcTimeout", _WRITE_TIMEOUT_MS)

    @contextmanager
    def tombstone_limit(self, count: int) -> Iterator[None]:
        """While this lasts, a read of more than `count` tombstones fails."""
        try:
            self._set_each(_STORAGE, "TombstoneFailureThreshold", count)
            yield
        finally:
            self._set_each(_STORAGE, "TombstoneFailureThreshold", _TOMBSTONES)

    @contextmanager
    def without_hints(self, number: int) -> Iterator[None]:
        """While this lasts, no hints are kept for this node while it is down."""
        others = [other for other in _ALL if other != number]
        try:
            self._set_each(_PROXY, "HintedHandoffEnabled", "false", numbers=others)
            for port in self._jmx_ports(others):
                self._beans.call(port, _HINTS, "deleteAllHints")
            yield
        finally:
            self._set_each(_PROXY, "HintedHandoffEnabled", "true", numbers=others)

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """While this lasts, the commit log of node `FILLED` has no room."""
        if not self._disk.is_mount():
            raise OSError(f"{self._disk} is not a disk of its own, which takes root to mount")
        filler = self._disk / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * (1 << 20)):
                    continue
            except OSError:
                pass
        try:
            yield
        finally:
            filler.unlink()

    def is_up(self, number: int) -> bool:
        """True if a node runs and answers clients."""
        there = node.status(self.directory)
        return there is not None and there.nodes[number - 1].state == "up"

    def logged(self, text: str) -> int:
        """How many lines of the nodes' logs contain a text."""
        logs = (self.directory / f"node{n}" / "system.log" for n in range(1, COUNT + 1))
        return sum(
            text in line for log in logs for line in log.read_text(errors="replace").splitlines()
        )

    def timeouts(self) -> int:
        """How many writes and LWTs of clients timed out at the nodes."""
        ports = self._jmx_ports(_ALL)
        return sum(int(n) for port in ports for n in self._beans.get(port, _TIMEOUTS, "Count"))

    def alter_messages(self, **options: int) -> None:
        """Change options of the table of messages."""
        there = self._set()
        with Cluster([there.nodes[0].address], port=there.port) as cluster:
            session = cluster.connect(node.KEYSPACE)
            for name, value in options.items():
                session.execute(f"ALTER TABLE messages WITH {name} = {value}")

    def settle(self) -> None:
        """Wait until every node sees all nodes up, and gets answers from all."""
        there = self._set()
        deadline_us = self.clock.boot_us() + _SETTLE_S * 1_000_000
        while self.clock.boot_us() < deadline_us:
            if all(wire.reaches(one.address, there.port, COUNT) for one in there.nodes):
                return
            self.clock.sleep(0.2)
        raise TimeoutError(f"the nodes do not see each other after {_SETTLE_S} s")

    def _set_each(
        self, bean: str, attribute: str, value: object, *, numbers: Sequence[int] = _ALL
    ) -> None:
        for port in self._jmx_ports(numbers):
            self._beans.set(port, bean, attribute, value)

    def _jmx_ports(self, numbers: Sequence[int]) -> list[int]:
        nodes = self._set().nodes
        return [nodes[number - 1].jmx_port for number in numbers]

    def _set(self) -> node.NodeSet:
        there = node.status(self.directory)
        assert there is not None
        return there.cluster


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)
