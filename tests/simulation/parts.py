"""The parts of a plan: processes, messages, acts of their handlers, and faults."""

from __future__ import annotations

from dataclasses import dataclass

from shardq.model.message import TASK_HEADER


@dataclass(frozen=True)
class Act:
    """A handler's work on one delivery: it runs for `seconds`, then ends with `kind`."""

    kind: str
    seconds: float = 0.0
    delay_ms: int | None = None


@dataclass(frozen=True)
class Letter:
    """A message to put."""

    number: int
    producer: str
    at_s: float
    delay_ms: int = 0
    exact: bool = False
    group: str | None = None
    priority: int = 0
    size: int = 10
    name: str | None = None
    key: str | None = None
    task: str | None = None
    batch: int = 0
    cancel_s: float | None = None
    acts: tuple[Act, ...] = ()

    @property
    def title(self) -> str:
        return f"m{self.number}"

    @property
    def headers(self) -> dict[str, str]:
        number = {"number": str(self.number)} if self.number % 7 == 0 else {}
        return number | ({} if self.task is None else {TASK_HEADER: self.task})


@dataclass(frozen=True)
class Machine:
    """A process: `role` is producer, consumer, stepper or caller."""

    name: str
    role: str
    start_s: float = 0.0
    rate: float = 1.0
    shift_s: float = 0.0
    threads: int = 2
    prefetch: int = 100
    isolated: bool = False
    deadline_s: float = 1.0
    visibility_s: float = 3.0
    count: int = 5


@dataclass(frozen=True)
class Event:
    """Something that happens to a process or the queue."""

    number: int
    at_s: float
    kind: str
    target: str = ""
    seconds: float = 0.0
    value: float = 0.0
    verb: str = ""

    @property
    def title(self) -> str:
        return f"e{self.number}"
