"""The three nodes, and what can be done to them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from faults import network
from shardq import node
from shardq.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNT = 3
FILLED = 3
"""The node whose commit log is on a disk of its own, which can be filled."""
_DISK_MB = 96
_SETTINGS = {"commitlog_total_space": "40MiB"}
_STORAGE_BEAN = "org.apache.cassandra.db:type=StorageService"
_TIMEOUTS = "org.apache.cassandra.metrics:type=ClientRequest,scope={},name=Timeouts"
_UP = re.compile(r"^UN ", re.MULTILINE)
_SETTLE_S = 60


@dataclass
class Nodes:
    """A context manager: starts the nodes, and ends them with all that they have stored.

    Nodes that run in the directory already are used, and left running.

    Args:
        directory: Where their files go.
    """

    directory: Path
    clock: SystemClock = field(default_factory=SystemClock)
    url: str = ""
    _were_there: bool = False

    def __enter__(self) -> Nodes:
        before = node.status(self.directory)
        self._were_there = before is not None and before.running
        if os.geteuid() == 0 and not self._disk.is_mount():
            self._disk.mkdir(parents=True, exist_ok=True)
            _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "shardq-faults", self._disk)
        try:
            self.start()
        except BaseException:
            self._unmount()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._were_there:
            return
        node.stop(self.directory, remove=True)
        self._unmount()

    @property
    def _disk(self) -> Path:
        return self.directory / f"node{FILLED}" / "data" / "commitlog"

    def _unmount(self) -> None:
        if self._disk.is_mount():
            _run("umount", self._disk)

    def start(self) -> None:
        """Start those that do not run, and wait until all know each other."""
        there = node.start(COUNT, self.directory, settings=_SETTINGS)
        self.url = there.url

    def kill(self, number: int) -> None:
        """End a node as `kill -9` does."""
        node.kill(number, self.directory)

    @contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """While this lasts a node stands still."""
        pid = self._set().nodes[number - 1].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def cut_off(self, *numbers: int) -> Iterator[None]:
        """While this lasts nothing from the other nodes reaches these."""
        there = self._set()
        with network.cut(
            *((there.nodes[number - 1].address, there.storage_port) for number in numbers)
        ):
            yield

    @contextmanager
    def unreachable(self, *numbers: int) -> Iterator[None]:
        """While this lasts nothing from clients reaches these nodes."""
        there = self._set()
        with network.cut(*((there.nodes[number - 1].address, there.port) for number in numbers)):
            yield

    @contextmanager
    def write_timeout(self, millis: int) -> Iterator[None]:
        """While this lasts every node waits so long for a write."""
        before = self.tool(1, "gettimeout", "write").split()[-2]
        self._each("settimeout", "write", str(millis))
        try:
            yield
        finally:
            self._each("settimeout", "write", before)

    @contextmanager
    def tombstone_limit(self, count: int) -> Iterator[None]:
        """While this lasts a read that meets more tombstones fails."""
        before = self._attribute("TombstoneFailureThreshold", "-mg").split()[-1]
        self._each_attribute("TombstoneFailureThreshold", str(count))
        try:
            yield
        finally:
            self._each_attribute("TombstoneFailureThreshold", before)

    @contextmanager
    def without_hints(self) -> Iterator[None]:
        """While this lasts nothing is kept for a node that is down."""
        self._each("disablehandoff")
        self._each("truncatehints")
        try:
            yield
        finally:
            self._each("enablehandoff")

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """While this lasts the commit log of node `FILLED` finds no room."""
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
        """Whether a node lives and answers clients."""
        there = node.status(self.directory)
        return there is not None and there.nodes[number - 1].state == "up"

    def logged(self, text: str) -> int:
        """How many lines of all nodes' logs have this text."""
        logs = (self.directory / f"node{n}" / "system.log" for n in range(1, COUNT + 1))
        return sum(
            text in line for log in logs for line in log.read_text(errors="replace").splitlines()
        )

    def timeouts(self) -> int:
        """How many writes and LWTs the nodes have told clients nothing certain about."""
        told = [
            self.tool(number, "sjk", "mx", "-b", _TIMEOUTS.format(kind), "-f", "Count", "-mg")
            for number in range(1, COUNT + 1)
            for kind in ("Write", "CASWrite")
        ]
        return sum(int(one.split()[-1]) for one in told)

    def tool(self, number: int, *arguments: str) -> str:
        """What a node's nodetool says."""
        return node.nodetool(*arguments, directory=self.directory, number=number)

    def settle(self) -> None:
        """Wait until every node sees all of them up."""
        deadline_us = self.clock.boot_us() + _SETTLE_S * 1_000_000
        while self.clock.boot_us() < deadline_us:
            seen = [self.tool(number, "status") for number in range(1, COUNT + 1)]
            if all(len(_UP.findall(one)) == COUNT for one in seen):
                return
        raise TimeoutError("the nodes do not see each other:\n" + "\n".join(seen))

    def _each(self, *arguments: str) -> None:
        for number in range(1, COUNT + 1):
            self.tool(number, *arguments)

    def _each_attribute(self, name: str, value: str) -> None:
        for number in range(1, COUNT + 1):
            self._attribute(name, "-ms", "-v", value, number=number)

    def _attribute(self, name: str, *how: str, number: int = 1) -> str:
        return self.tool(number, "sjk", "mx", "-b", _STORAGE_BEAN, "-f", name, *how)

    def _set(self) -> node.NodeSet:
        there = node.status(self.directory)
        assert there is not None
        return there.cluster


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)
