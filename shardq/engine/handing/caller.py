"""A caller of `receive`: it waits in line until it gets an answer or has gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardq import locks
from shardq.errors import own_copy

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from shardq.clock import Clock
    from shardq.errors import ShardqError
    from shardq.model.message import Message


@dataclass(slots=True, eq=False)
class ReceiveCall:
    """One call of `receive`.

    Attributes:
        count: The most messages.
        visibility_ms: How long the messages are the caller's.
        since_us: When the call began, time since boot.
        per_group: The most messages of one group.
        is_lasting: True if the receipts of the messages last.
        on_over: Called after the answer, in the thread that answers; None: the caller uses `wait`.
        is_brief: True to answer with no messages as soon as a look finds none.
        is_over: True if the call was answered.
        is_gone: True if nobody waits for the answer any more.
        is_looked: True if a look for rows that began after the call has found none for it, or if
            the caller has time to wait for the next look.
    """

    count: int
    visibility_ms: int
    since_us: int
    per_group: int = field(default=1, kw_only=True)
    is_lasting: bool = field(default=False, kw_only=True)
    on_over: Callable[[], object] | None = field(default=None, kw_only=True)
    is_brief: bool = field(default=False, kw_only=True)
    is_over: bool = field(default=False, init=False)
    is_gone: bool = field(default=False, init=False)
    is_looked: bool = field(default=False, init=False)
    _messages: list[Message] = field(default_factory=list, init=False)
    _error: ShardqError | None = field(default=None, init=False)
    _lock: threading.RLock = field(init=False)
    _news: threading.Condition | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._lock = locks.new()

    def answer(self) -> list[Message]:
        """The messages; none before the answer.

        Raises:
            ShardqError: The error that is the answer instead.
        """
        if self._error is not None:
            raise self._error
        return self._messages

    def wait(self, clock: Clock, seconds: float | None) -> None:
        """Wait for the answer, at most `seconds`; if None, until the answer is given."""
        news = self._news
        if news is None:
            news = self._news = locks.condition(self._lock)
        with self._lock:
            while not self.is_over:
                clock.wait(news, seconds)
                if seconds is not None:
                    return

    def give(self, messages: list[Message]) -> list[Message]:
        """Answer with these messages; returns them if the caller has gone, else an empty list."""
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
        """Record that the caller has gone; returns the messages that the caller was given."""
        with self._lock:
            self.is_gone = True
            messages, self._messages = self._messages, []
        return messages

    def _end(self) -> None:
        self.is_over = True
        if self._news is not None:
            self._news.notify_all()

    def _tell(self) -> None:
        if self.on_over is not None:
            self.on_over()
