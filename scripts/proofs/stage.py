"""The stage of a proof: a store, a directory, and its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import shardq
from proofs import caller, consumer, judge, producer
from shardq.child import ChildProcess, end
from shardq.clock import OFFSET_VARIABLE, SystemClock, machine_us
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shardq.bench.place import BenchPlace

_TICK_S = 0.05
_QUIET_S = 45.0
"""Longer than lease, park and retry: a message that was not delivered this long after the last
delivery is lost."""
_STOP_S = 120.0
"""The most that a process may take to end. A consumer's deadline is 20 s; a busy machine takes
longer."""


@dataclass(slots=True)
class Process:
    """A producer or consumer, and its files.

    Attributes:
        name: Its name.
        out: The file of its puts or deliveries.
        log: The file of its messages.
        process: The process of the system.
        started_us: When it was started, by the machine's clock, epoch microseconds.
    """

    name: str
    out: Path
    log: Path
    process: ChildProcess
    started_us: int

    def life(self) -> dict[str, int]:
        """The counts that a consumer has written at its graceful end."""
        told: dict[str, int] = json.loads(self.out.with_name(f"{self.out.name}.life").read_text())
        return told


@dataclass(slots=True)
class Stage:
    """One proof's stage. A context manager that ends what it has started.

    Args:
        place: The place of the store.
        url: The store's.
        directory: For the processes' files; made.
        long: True to run for longer.
    """

    place: BenchPlace | None
    url: str
    directory: Path
    long: bool = False
    clock: SystemClock = field(default_factory=SystemClock)
    consumers: list[Process] = field(default_factory=list)
    producers: list[Process] = field(default_factory=list)
    _read: dict[Path, int] = field(default_factory=dict)
    _bodies: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)

    def __enter__(self) -> Stage:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        end(
            (one.process for one in (*self.producers, *self.consumers)),
            _STOP_S,
            self.clock,
            hard=True,
        )

    # Processes ------------------------------------------------------------------------------------

    def produce(self, queue: str, *, shift_s: float = 0, **job: Any) -> Process:
        """Start a producer; `job` has fields of `proofs.producer.Job`.

        Args:
            shift_s: Seconds by which its wall clock is ahead.
        """
        name = f"producer-{len(self.producers) + 1}"
        out = self.file(f"{name}.jsonl")
        told = producer.Job(self.url, queue, str(out), name=name, **job).to_json()
        self.producers.append(self._play(name, "proofs.producer", told, out, shift_s))
        return self.producers[-1]

    def consume(self, queue: str, *, shift_s: float = 0, **job: Any) -> Process:
        """Start a consumer; `job` has fields of `proofs.consumer.Job`.

        Args:
            shift_s: Seconds by which its wall clock is ahead.
        """
        name = f"consumer-{len(self.consumers) + 1}"
        out = self.file(f"{name}.jsonl")
        told = consumer.Job(self.url, queue, str(out), **job).to_json()
        self.consumers.append(self._play(name, "proofs.consumer", told, out, shift_s))
        return self.consumers[-1]

    def call(self, queue: str, **job: Any) -> Process:
        """Start a caller, which receives and settles by receipt; it is one of the consumers."""
        name = f"caller-{len(self.consumers) + 1}"
        out = self.file(f"{name}.jsonl")
        told = caller.Job(self.url, queue, str(out), **job).to_json()
        self.consumers.append(self._play(name, "proofs.caller", told, out, 0))
        return self.consumers[-1]

    def kill(self, one: Process) -> int:
        """Kill a process as `kill -9` does; returns when it was dead, machine's clock, epoch us."""
        end([one.process], _STOP_S, self.clock, hard=True)
        return machine_us()

    def freeze(self, one: Process) -> int:
        """Freeze a process; returns when, by the machine's clock, epoch microseconds."""
        at_us = machine_us()
        one.process.signal(signal.SIGSTOP)
        return at_us

    def thaw(self, one: Process) -> int:
        """Let a frozen process continue; returns when, as `freeze`."""
        at_us = machine_us()
        one.process.signal(signal.SIGCONT)
        return at_us

    def stop(self, *these: Process) -> None:
        """Let processes end gracefully, all at once.

        Raises:
            ShardqError: If one does not.
        """
        late = end((one.process for one in these), _STOP_S, self.clock)
        for one in these:
            if one.process in late:
                raise ShardqError(f"{one.name} did not stop within {_STOP_S:.0f} s.")
            self.check(one)

    def _play(self, name: str, module: str, job: str, out: Path, shift_s: float) -> Process:
        return self.spawn(name, [module, job], out, {OFFSET_VARIABLE: str(shift_s)})

    def spawn(
        self, name: str, words: Sequence[str], out: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start a process, `python -m` with these words.

        Args:
            name: Its name.
            words: The module and its arguments.
            out: The file that it writes.
            environment: Variables that it gets in addition to ours.
        """
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            started_us = machine_us()
            process = ChildProcess(
                [sys.executable, "-m", *words],
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Process(name, out, log, process, started_us)

    def file(self, name: str) -> Path:
        """The path of a new file of the stage."""
        path = self.directory / name
        path.unlink(missing_ok=True)
        return path

    def check(self, one: Process) -> None:
        """Raise `ShardqError` if a process ended with an error, other than by our kill."""
        code = one.process.code
        # A process that is told to stop while it starts is ended by the signal.
        had_begun = one.out.exists() and one.out.stat().st_size > 0
        if code not in (None, 0, -signal.SIGKILL) and (had_begun or code != -signal.SIGTERM):
            last = one.log.read_text(errors="replace").strip().splitlines()
            raise ShardqError(f"{one.name} ended: {last[-1] if last else 'without a word'}")

    # Waiting --------------------------------------------------------------------------------------

    def sleep(self, seconds: float) -> None:
        """Wait, and raise if a process fails."""
        deadline_us = self.clock.boot_us() + round(seconds * 1e6)
        while (left_us := deadline_us - self.clock.boot_us()) > 0:
            for one in (*self.producers, *self.consumers):
                self.check(one)
            self.clock.sleep(min(left_us / 1e6, 0.5))

    def wait(self, done: Callable[[], bool], *, quiet_s: float = _QUIET_S) -> bool:
        """Wait until `done`, or until nothing was delivered for `quiet_s`; True if done."""
        count, news_us = len(self.handed_out()), self.clock.boot_us()
        while not done():
            self.sleep(_TICK_S)
            if len(self.handed_out()) > count:
                count, news_us = len(self._bodies), self.clock.boot_us()
            if self.clock.boot_us() - news_us > quiet_s * 1e6:
                return False
        return True

    def wait_for_producers(self) -> list[judge.Put]:
        """Wait until the producers have ended by themselves; returns their puts."""
        while not all(one.process.has_ended() for one in self.producers):
            self.sleep(_TICK_S)
        for one in self.producers:
            self.check(one)
        return judge.read_puts([one.out for one in self.producers])

    def wait_until_empty(self, queue: shardq.Queue, *, dead: int = 0) -> bool:
        """Wait until a queue is empty and its last acks are stored; True if it was in time.

        Args:
            dead: How many messages are to be dead by then. A message that is being moved may be
                missing for seconds, after the store has deleted its old row and before it has
                written the new one.
        """
        deadline_us = self.clock.boot_us() + round(_STOP_S * 1e6)
        while queue.depth(exact=True).total or (dead and queue.dead.depth(exact=True).total < dead):
            if self.clock.boot_us() > deadline_us:
                return False
            self.sleep(_TICK_S * 5)
        return True

    def finish(self, queue: shardq.Queue | None = None) -> list[judge.HandOut]:
        """Stop the consumers; returns all hand-outs.

        Args:
            queue: Wait first until this is empty.
        """
        if queue is not None:
            self.wait_until_empty(queue)
        self.stop(*(one for one in self.consumers if one.process.code is None))
        return self.hand_outs()

    # Files ----------------------------------------------------------------------------------------

    def put_count(self) -> int:
        """The number of puts that producers have recorded."""
        return sum(one.out.read_bytes().count(b"\n") for one in self.producers if one.out.exists())

    def hand_outs(self) -> list[judge.HandOut]:
        """All hand-outs so far."""
        return judge.read_hand_outs([one.out for one in self.consumers if one.out.exists()])

    def handed_out(self) -> set[str]:
        """The bodies of all hand-outs so far; each call reads only the new lines."""
        self._read_on()
        return self._bodies

    def ended(self) -> set[str]:
        """The bodies of hand-outs that asked for no other delivery."""
        self._read_on()
        return self._ended

    def _read_on(self) -> None:
        for one in self.consumers:
            for line in self.news(one):
                hand_out = judge.HandOut.from_json(line, "")
                self._bodies.add(hand_out.body)
                if not hand_out.asks:
                    self._ended.add(hand_out.body)

    def news(self, one: Process) -> list[bytes]:
        """The complete lines that a process has written since the last call."""
        if not one.out.exists():
            return []
        with one.out.open("rb") as file:
            file.seek(self._read.get(one.out, 0))
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read[one.out] = self._read.get(one.out, 0) + len(data)
        return data.splitlines()
