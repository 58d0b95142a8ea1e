"""What running nodes hold, asked and set through one Java that stays.

Nodetool would do, but is a Java that starts for every question: while nodes and processes keep two
cores busy, that is ten seconds each.
"""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.node import runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCE = Path(__file__).with_name("Beans.java")
_FLAGS = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class BeanError(Exception):
    """A node did not answer, or refused."""


class Beans:
    """A context manager: one Java that asks all nodes.

    Args:
        directory: For what is compiled.
    """

    def __init__(self, directory: Path) -> None:
        found = runtime.find()
        runtime.compile_java(found, _SOURCE, directory)
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
        # At the end of its input it ends.
        self._process.communicate()

    def get(self, port: int, name: str, attribute: str) -> list[str]:
        """An attribute of all beans whose names fit."""
        return self._ask(port, "get", name, attribute)

    def set(self, port: int, name: str, attribute: str, value: object) -> None:
        """Set an attribute: a whole number, or true or false."""
        self._ask(port, "set", name, attribute, value)

    def call(self, port: int, name: str, operation: str) -> None:
        """Call an operation that takes nothing."""
        self._ask(port, "call", name, operation)

    def _ask(self, *fields: object) -> list[str]:
        with self._lock:
            requests, answers = self._process.stdin, self._process.stdout
            assert requests is not None
            assert answers is not None
            print(*fields, sep="\t", file=requests, flush=True)
            told = answers.readline()
        if not told or told.startswith("!"):
            raise BeanError(f"{_shown(fields)}: {told.strip() or 'Java has ended'}")
        return told.split()


def _shown(fields: Sequence[object]) -> str:
    return " ".join(str(field) for field in fields)
