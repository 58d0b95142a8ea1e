"""A caller of `receive`: it is in line until it is answered or has gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import locks
from shardq.errors import own_copy

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.errors import ShardqError
    from shardq.model.message import Message


class ReceiveCall:
    """One call of `receive`.

    Args:
        on_over: Called after the answer, in the thread that answers; None: the caller uses `wait`.
        is_brief: True to answer with no messages as soon as a look finds none.

    Attributes:
        count: The most messages.
        is_lasting: True if the receipts of the messages last.
        per_group: The most messages of one group.
        visibility_ms: How long the messages are the caller's.
        since_us: When the call began, time since boot.
        is_over: True if it was answered.
        is_gone: True if nobody waits for its answer any more.
        is_looked: True if a look that began after the call has found nothing for it, or if the
            caller has time to wait for the next look.
    """

    __slots__ = (
        "_error",
        "_lock",
        "_messages",
        "_news",
        "_on_over",
        "count",
        "is_brief",
        "is_gone",
        "is_lasting",
        "is_looked",
        "is_over",
        "per_group",
        "since_us",
        "visibility_ms",
    )

    def __init__(
        self,
        count: int,
        visibility_ms: int,
        since_us: int,
        *,
        per_group: int = 1,
        is_lasting: bool = False,
        on_over: Callable[[], object] | None = None,
        is_brief: bool = False,
    ) -> None:
        self.count = count
        self.per_group = per_group
        self.is_lasting = is_lasting
        self.visibility_ms = visibility_ms
        self.since_us = since_us
        self.is_brief = is_brief
        self.is_over = self.is_looked = self.is_gone = False
        self._on_over = on_over
        self._messages: list[Message] = []
        self._error: ShardqError | None = None
        self._lock = locks.new()
        self._news: threading.Condition | None = None

    def answer(self) -> list[Message]:
        """The messages; none before the answer.

        Raises:
            ShardqError: The error that is the answer instead.
        """
        if self._error is not None:
            raise self._error
        return self._messages

    def wait(self, clock: Clock, seconds: float | None) -> None:
        """Wait for the answer, at most `seconds`; None: until it is given."""
        news = self._news
        if news is None:
            news = self._news = locks.condition(self._lock)
        with self._lock:
            while not self.is_over:
                clock.wait(news, seconds)
                if seconds is not None:
                    return

    def give(self, messages: list[Message]) -> list[Message]:
        """Answer with these messages; returns them if the caller has gone, else none."""
        with self._lock:
            if self.is_gone:
                self.is_over = True
                return messages
            self._messages = messages
            self._end()
        self._tell()
        return []

    def fail(self, error: ShardqError) -> None:
        """Answer with a copy of an error."""
        with self._lock:
            self._error = own_copy(error)
            self._end()
        self._tell()

    def abandon(self) -> list[Message]:
        """Record that the caller has gone; returns the messages that it was given."""
        with self._lock:
            self.is_gone = True
            messages, self._messages = self._messages, []
        return messages

    def _end(self) -> None:
        self.is_over = True
        if self._news is not None:
            self._news.notify_all()

    def _tell(self) -> None:
        if self._on_over is not None:
            self._on_over()
