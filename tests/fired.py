"""What schedules have fired, as a consumer on a stage receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardq import Consumer
from shardq.model.times import iso

if TYPE_CHECKING:
    from shardq import Message, Queue
    from shardq.testing import Stage


class Run:
    """A consumer of a queue on a stage, and its deliveries.

    Args:
        stage: The stage.
        queue: The queue.
        fails: How many of the first deliveries fail.
        given: The consumer's options.
    """

    def __init__(self, stage: Stage, queue: Queue, *, fails: int = 0, **given: Any) -> None:
        self.stage = stage
        self.messages: list[Message] = []
        self.late_ms: list[int] = []
        self._fails = fails
        self.consumer = Consumer(queue, self._handle, **given)

    def _handle(self, message: Message) -> None:
        self.messages.append(message)
        self.late_ms.append(self.stage.clock.true_ms() - message.due_ms)
        if len(self.messages) <= self._fails:
            raise ValueError("no")

    def drive(self, seconds: float) -> list[str]:
        """Let time pass; the fire times of what was delivered in it."""
        before = len(self.messages)
        self.stage.drive(self.consumer, seconds=seconds)
        return [time_of(one) for one in self.messages[before:]]

    def drop(self) -> None:
        """Let its process end, as a crash does: it is not driven any more."""
        del self.consumer


def time_of(message: Message, header: str = "schedule-time") -> str:
    """The time of day of a firing, by a header of its message."""
    return message.headers.get(header, "")[11:19]


def at(stage: Stage, seconds: float) -> str:
    """A time of the stage, ISO 8601."""
    return iso(stage.clock.true_ms() + round(seconds * 1_000))
