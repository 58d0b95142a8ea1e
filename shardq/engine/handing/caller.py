"""A caller of `receive`: in line, until it is answered or has gone."""

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


class Caller:
    """One call of `receive`.

    Args:
        on_over: Called once it is answered, in the thread that does so; None: it waits by `wait`.
        is_brief: True if it is answered by nothing where a look finds nothing.

    Attributes:
        count: How many messages it takes at most.
        per_group: How many of one group.
        visibility_ms: How long they are its own.
        since_us: When it came, time since boot.
        is_over: True if it was answered.
        is_gone: True if nobody waits for its answer any more.
        is_looked: True if a look that began after it came has found nothing for it.
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
        on_over: Callable[[], object] | None = None,
        is_brief: bool = False,
    ) -> None:
        self.count = count
        self.per_group = per_group
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
        """The messages; none if it was not answered.

        Raises:
            ShardqError: What it was answered by instead.
        """
        if self._error is not None:
            raise self._error
        return self._messages

    def wait(self, clock: Clock, seconds: float | None) -> None:
        """Wait for the answer, for so many seconds; None: until it comes."""
        news = self._news
        if news is None:
            news = self._news = locks.condition(self._lock)
        with self._lock:
            while not self.is_over:
                clock.wait(news, seconds)
                if seconds is not None:
                    return

    def give(self, messages: list[Message]) -> list[Message]:
        """Answer it; returns what it does not want, for it has gone."""
        with self._lock:
            if self.is_gone:
                self.is_over = True
                return messages
            self._messages = messages
            self._end()
        self._tell()
        return []

    def fail(self, error: ShardqError) -> None:
        """Answer it by an error, of which it gets a copy of its own."""
        with self._lock:
            self._error = own_copy(error)
            self._end()
        self._tell()

    def abandon(self) -> list[Message]:
        """It has gone; returns what it was given."""
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
