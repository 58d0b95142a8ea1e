"""What tests of a sandbox share: one that begins at a known time, and what its consumer sees."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from shardq import Consumer, Message
from shardq.testing import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq import Queue

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(start=START) as made:
        yield made


class Seen:
    """A handler that keeps what it was given and when, and then acts."""

    def __init__(self, sandbox: Sandbox, act: Callable[[Message], object] | None = None) -> None:
        self._sandbox = sandbox
        self._act = act
        self.all: list[tuple[str, timedelta]] = []

    def __call__(self, message: Message) -> object:
        self.all.append((message.text, self._sandbox.now - START))
        return None if self._act is None else self._act(message)


def consumed(
    sandbox: Sandbox, act: Callable[[Message], object] | None = None, **settings: Any
) -> tuple[Queue, Seen]:
    """A queue of a sandbox, and what its consumer sees."""
    queue, seen = sandbox.queue("mail", **settings), Seen(sandbox, act)
    sandbox.add(Consumer(queue, seen))
    return queue, seen
