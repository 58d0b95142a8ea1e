"""A run: one attempt of a job, from its beginning to its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq import locks
from shardq.tasks.context import Context

if TYPE_CHECKING:
    from shardq.engine.storing.ending import Ending
    from shardq.model.message import Message
    from shardq.tasks.definition import TaskDefinition
    from shardq.tasks.options import Policy


class Ended(NamedTuple):
    """A run that has ended, for the worker's log.

    Attributes:
        task: The name of its task, known here or not; empty if the message names none.
        id: The job's id.
        queue: Its queue's name.
        attempt: Its number, from 1.
        seconds: How long it ran.
        state: `done`, `retrying`, `failed` (it is dead now), `snoozed`, `expired`, `cancelled`
            (while it ran, and it has stopped) or `unknown`.
        error: The reason, in a line; empty if it is done.
        delay_ms: The delay until it is delivered again; None if it is not.
        traceback: The traceback of the function's error, from its own code on; empty without one.
    """

    task: str
    id: str
    queue: str
    attempt: int
    seconds: float
    state: str
    error: str = ""
    delay_ms: int | None = None
    traceback: str = ""


class RunPlan(NamedTuple):
    """The decision for a job's headers.

    Attributes:
        task: Its task.
        policy: How it runs.
        is_plain: True if it is called in the handler's thread, with nothing around it.
        is_held: True if its delivery may end at another time than the call of its handler.
    """

    task: TaskDefinition
    policy: Policy
    is_plain: bool
    is_held: bool


class JobRun:
    """A job that runs.

    Attributes:
        message: The delivery.
        plan: The plan for its headers.
        context: The context that its function sees.
        began_us: Time since boot at which it began.
        lock: Held while its outcome is decided.
        is_over: True if its outcome was decided: the function's later actions do not count.
        ending: Ends the delivery; None if its handler's return does.
        progress: The last reported progress, and its note.
    """

    __slots__ = (
        "began_us", "context", "ending", "is_over", "lock", "message", "plan", "progress"
    )  # fmt: skip

    def __init__(self, message: Message, plan: RunPlan, now_ms: int, boot_us: int) -> None:
        self.message = message
        self.plan = plan
        self.context = Context(plan.task.name, message, plan.policy, now_ms)
        self.began_us = boot_us
        self.lock = locks.new()
        self.is_over = False
        self.ending: Ending | None = None
        self.progress: tuple[float | None, str] = (None, "")

    def begin(self, now_ms: int, boot_us: int) -> None:
        """Note that its function is called now, after a wait for a batch or a slot."""
        self.began_us = boot_us
        if self.ending is not None:
            self.ending.begun_us = boot_us
        self.context.begin(now_ms)
