"""The job that runs, as its function sees it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from shardq.errors import BadSetting, shown
from shardq.model.message import JOB_HEADERS
from shardq.model.times import moment_of
from shardq.schedules.origin import HEADERS, Firing

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from shardq.model.message import Message
    from shardq.tasks.options import Policy

_NOTE_CHARS_MAX = 1_000


class Context:
    """A running job. Made by the worker; `current()` returns it.

    If the function is called directly, without a job, `id` and `queue` are empty, `attempt` is 1,
    the times are None, and progress is dropped.

    Attributes:
        task: The task's name.
        on_progress: Called with the job's progress; None if no progress is kept. Set by the worker.
        is_stopped: True if the function has learned that the job was cancelled by its key. Read by
            the worker.
    """

    __slots__ = (
        "_began_ms", "_is_over", "_message", "_policy", "is_stopped", "on_progress", "task"
    )  # fmt: skip

    def __init__(
        self,
        task: str,
        message: Message | None = None,
        policy: Policy | None = None,
        began_ms: int = 0,
    ) -> None:
        """Made by the worker.

        Args:
            task: The task's name.
            message: The delivery.
            policy: The policy of the job.
            began_ms: When this run began, epoch milliseconds.
        """
        self.task: str = task
        self._message = message
        self._policy = policy
        self._began_ms = began_ms
        self.on_progress: Callable[[float, str], None] | None = None
        self._is_over = False
        self.is_stopped: bool = False

    def __repr__(self) -> str:
        return f"<Context {self.task} {self.id}, attempt {self.attempt}>"

    @property
    def id(self) -> str:
        """The job's stable id; the same in each attempt."""
        return "" if self._message is None else self._message.id

    @property
    def queue(self) -> str:
        """The name of the job's queue."""
        return "" if self._message is None else self._message.queue

    @property
    def key(self) -> str | None:
        """The job's key; None if it has none."""
        return None if self._message is None else self._message.key

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return 1 if self._message is None else self._message.attempt

    @property
    def attempts(self) -> int:
        """How many attempts the job may have."""
        return 1 if self._policy is None else self._policy.attempts

    @property
    def due(self) -> datetime | None:
        """When this attempt was due, UTC."""
        return None if self._message is None else self._message.due

    @property
    def first_due(self) -> datetime | None:
        """When the job was first due, UTC."""
        return None if self._message is None else self._message.first_due

    @property
    def deadline(self) -> datetime | None:
        """When this run has to have ended, UTC; None without a time limit."""
        if self._policy is None or self._policy.timeout_ms is None:
            return None
        return moment_of(self._began_ms + self._policy.timeout_ms)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the job was put with, without those of its task and its schedule."""
        if self._message is None:
            return {}
        own = (*JOB_HEADERS, *HEADERS)
        return {name: text for name, text in self._message.headers.items() if name not in own}

    @property
    def firing(self) -> Firing | None:
        """The firing of the schedule that put the job; None if no schedule did."""
        return None if self._message is None else Firing.of(self._message)

    @property
    def is_cancelled(self) -> bool:
        """True if a cancel by key asks the job to stop, or the run's time limit is exceeded.

        A function that runs long may ask this now and then, and may stop as it likes. After True
        because of a cancel, the job ends as cancelled once the function returns, not as done. Reads
        the key, at most every 0.25 s.
        """
        if self.is_asked_to_stop():
            self.is_stopped = True
        return self._is_over or self.is_stopped

    def is_asked_to_stop(self) -> bool:
        """True if a cancel by its key asks the running job to stop."""
        return not self._is_over and self._message is not None and self._message.is_cancelled

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far the job is, for `Job.progress`; does nothing if the job keeps no result.

        Call this as often as you like: progress is stored at most five times a second.

        Args:
            fraction: From 0 to 1.
            note: The current step, up to 1,000 characters.

        Raises:
            BadSetting: If the fraction is out of bounds.
        """
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise BadSetting(f"progress must be a number from 0 to 1, not {shown(fraction)}.")
        if self.on_progress is not None and not self._is_over:
            self.on_progress(float(fraction), str(note)[:_NOTE_CHARS_MAX])

    def begin(self, now_ms: int) -> None:
        """Note that the function is called now, epoch milliseconds. Called by the worker."""
        self._began_ms = now_ms

    def end(self) -> None:
        """Note that the run has ended, whatever the function still does. Called by the worker."""
        self._is_over = True


running: ContextVar[Context | None] = ContextVar("shardq_job", default=None)
_NONE = Context("")


def current() -> Context:
    """The context of the job that runs here; one without a message if no job runs.

    Works in coroutines too. A thread that the function starts has no job, unless it gets the
    context.
    """
    return running.get() or _NONE
