"""Reads and sets attributes of running nodes through one Java process that stays.

nodetool could do it, but starts a Java for each call. That takes ten seconds while nodes and
processes keep two cores busy.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from nodetool import compile_java

from shardq.node import runtime

_SOURCE = Path(__file__).with_name("Beans.java")
_ANSWER_S = 30
_FLAGS = (
    *("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    f"-Dsun.rmi.transport.tcp.responseTimeout={_ANSWER_S * 1_000}",
    f"-Dsun.rmi.transport.tcp.handshakeTimeout={_ANSWER_S * 1_000}",
)


class BeanError(Exception):
    """A node did not answer, or refused a call."""


class Beans:
    """A context manager: one Java process that calls all nodes.

    Args:
        directory: Where the compiled Java program goes.
    """

    def __init__(self, directory: Path) -> None:
        found = runtime.find()
        compile_java(found, _SOURCE, directory)
        self._process = subprocess.Popen(
            [str(found.java), *_FLAGS, "-cp", str(directory), "shardq.faults.Beans"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lock = threading.Lock()

    def __enter__(self) -> Beans:
        return self

    def __exit__(self, *_: object) -> None:
        # The Java process ends at the end of its input.
        try:
            self._process.communicate(timeout=_ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def get(self, port: int, name: str, attribute: str) -> list[str]:
        """The values of an attribute of all beans whose names match."""
        return self._ask(port, "get", name, attribute)

    def set(self, port: int, name: str, attribute: str, value: object) -> None:
        """Set an attribute: a whole number, or true or false."""
        self._ask(port, "set", name, attribute, value)

    def call(self, port: int, name: str, operation: str) -> None:
        """Call an operation without arguments."""
        self._ask(port, "call", name, operation)

    def _ask(self, *fields: object) -> list[str]:
        with self._lock:
            requests, answers = self._process.stdin, self._process.stdout
            assert requests is not None
            assert answers is not None
            try:
                print(*fields, sep="\t", file=requests, flush=True)
            except BrokenPipeError as error:
                raise BeanError("the Java that asks has ended") from error
            line = answers.readline()
        if not line:
            raise BeanError("the Java that asks has ended")
        told = line.rstrip("\n")
        if told.startswith("!"):
            raise BeanError(f"{' '.join(str(field) for field in fields)}: {told[1:]}")
        return told.split("\t")
