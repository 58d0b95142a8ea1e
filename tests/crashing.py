"""What tests of crashes begin with: a handler that dies, and what is left of its consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardq import Consumer, Message
    from shardq.testing import Recorder, Stage


class Crash(KeyboardInterrupt):
    """The end of a process in the middle of a handler: nothing after it is run.

    Of a kind that passes through a turn in the main thread, as Ctrl-C does.
    """


def crash(_message: Message) -> None:
    """A handler in which its process dies."""
    raise Crash


def run_until_crash(stage: Stage, consumer: Consumer, seconds: float) -> bool:
    """Let a consumer run for `seconds`; True if it died meanwhile."""
    try:
        stage.drive(consumer, seconds=seconds)
    except Crash:
        return True
    return False


def attempts_of(recorder: Recorder) -> list[int]:
    """The attempts that a handler was told, in order."""
    return [message.attempt for message in recorder.messages]
