"""A run: one attempt of a job, from its begin to what it came to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq import locks
from shardq.tasks.context import Context

if TYPE_CHECKING:
    from shardq.engine.storing.ending import Ending
    from shardq.model.message import Message
    from shardq.tasks.definition import Definition
    from shardq.tasks.options import Policy


class Ended(NamedTuple):
    """A run that has ended, for the worker's log.

    Attributes:
        task: The name of its task, known here or not; empty where the message names none.
        id: The job's.
        queue: Its queue's name.
        attempt: Its number, from 1.
        seconds: How long it ran.
        state: `done`, `retrying`, `failed` (it is dead now), `snoozed`, `expired`, `cancelled` (it
            was, while it ran, and has heeded that) or `unknown`.
        error: Why, in a line; empty where it is done.
        delay_ms: After how long it comes again; None where it does not.
        traceback: Of the function's error, from its own code on; empty without one.
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


class Plan(NamedTuple):
    """What the headers of a job say.

    Attributes:
        task: Its task.
        policy: How it runs.
        is_plain: Whether it is called in the handler's thread, with nothing around it.
        is_held: Whether its delivery may end at another time than the call of its handler.
    """

    task: Definition
    policy: Policy
    is_plain: bool
    is_held: bool


class Run:
    """A job that runs.

    Attributes:
        message: Its delivery.
        plan: What its headers say.
        context: What its function sees.
        began_us: Time since boot.
        lock: Held while it is decided what it comes to.
        is_over: Whether that was decided: what its function still does counts no more.
        ending: By which it ends; None where its handler's return does.
        progress: How far it last said to be, and its note.
    """

    __slots__ = (
        "began_us", "context", "ending", "is_over", "lock", "message", "plan", "progress"
    )  # fmt: skip

    def __init__(self, message: Message, plan: Plan, now_ms: int, boot_us: int) -> None:
        self.message = message
        self.plan = plan
        self.context = Context(plan.task.name, message, plan.policy, now_ms)
        self.began_us = boot_us
        self.lock = locks.new()
        self.is_over = False
        self.ending: Ending | None = None
        self.progress: tuple[float | None, str] = (None, "")

    def begin(self, now_ms: int, boot_us: int) -> None:
        """Its function is called now, after it has waited for others, or for a slot."""
        self.began_us = boot_us
        if self.ending is not None:
            self.ending.begun_us = boot_us
        self.context.begin(now_ms)
