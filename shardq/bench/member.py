"""Child processes of the benchmark: start, ask, kill and end them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from shardq.child import ChildProcess
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from shardq.bench.job import BenchJob
    from shardq.clock import Clock

_END_S = 30.0
_POLL_S = 0.02


class BenchChild(ChildProcess):
    """A module that runs as a program: it reads stdin until its end, and answers on stdout."""

    def __init__(self, *words: str) -> None:
        super().__init__(
            [sys.executable, "-m", *words],
            # The child finds modules in the same places as this program.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )


class MemberProcess(BenchChild):
    """A context manager around one child process.

    Args:
        job: Its work.
        clock: Measures and waits.
        module: The program of the child. It reads commands from stdin, and answers on stdout.

    Attributes:
        started_us: Time since boot at which it was started.
    """

    def __init__(self, job: BenchJob, clock: Clock, module: str = "shardq.bench.child") -> None:
        self._clock = clock
        self.started_us = clock.boot_us()
        super().__init__(module, job.to_json())

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.kill()
        else:
            self.end()

    def state(self) -> dict[str, Any]:
        """Ask the child for its state."""
        return self._ask("state")

    def report(self) -> dict[str, Any]:
        """Ask the child for its state and the times of all messages since the last `clear`."""
        return self._ask("report")

    def clear(self) -> dict[str, Any]:
        """Let the child forget the times so far; returns its state after that."""
        return self._ask("clear")

    def wait(self, done: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """Ask for the state until `done` accepts it, for some seconds at most; returns it."""
        deadline_us = self._clock.boot_us() + round(seconds * 1e6)
        while True:
            state = self.state()
            if done(state):
                return state
            if self._clock.boot_us() > deadline_us:
                raise ShardqError(
                    f"a consumer had not delivered what was put after {seconds:.0f} s; "
                    f"see what it logged."
                )
            self._clock.sleep(_POLL_S)

    def kill(self) -> None:
        """End the child as `kill -9` does."""
        super().kill()
        self.process.communicate()

    def end(self) -> None:
        """Let the child stop gracefully.

        Raises:
            ShardqError: If it fails, or does not end.
        """
        try:
            self.process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ShardqError(f"a consumer did not end within {_END_S:.0f} s.") from error
        if self.code not in (0, -signal.SIGKILL):
            raise ShardqError(f"a consumer {self.how_ended()}; see what it logged.")

    def _ask(self, command: str) -> dict[str, Any]:
        stdin, stdout = self.process.stdin, self.process.stdout
        answer = b""
        with suppress(BrokenPipeError):
            if stdin is not None and stdout is not None:
                stdin.write(f"{command}\n".encode())
                stdin.flush()
                answer = stdout.readline()
        if not answer:
            raise ShardqError("a consumer ended by itself; see what it logged.")
        report: dict[str, Any] = json.loads(answer)
        return report


@contextmanager
def sleeper() -> Iterator[list[int]]:
    """Let a process nap beside a measurement. At the end the list gets its naps' overshoots."""
    late_us: list[int] = []
    child = BenchChild("shardq.bench.sleeper")
    try:
        yield late_us
        told, _ = child.process.communicate(timeout=_END_S)
        late_us += json.loads(told)
    finally:
        child.kill()
        child.process.communicate()
