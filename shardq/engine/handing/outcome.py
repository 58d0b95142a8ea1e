"""The exceptions by which a handler decides the outcome of its delivery.

`lifecycle/fate.py` completes outcomes, and `outbox.py` stores them.
"""

from __future__ import annotations

import copyreg
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.lifecycle.fate import Fate, Outcome
from shardq.model.times import Duration, duration_ms

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_REASON_CHARS = 1_000
_TEXT_CHARS = 8_000
"""Characters that a dead message keeps of an error's text."""
_OWN = os.path.join(Path(__file__).parents[2], "")
"""The folder of shardq's files."""


ACKED = Outcome(Fate.ACK)
GIVEN_UP = Outcome(Fate.GIVE_UP)
LEFT = Outcome(Fate.LEAVE)
CANCELLED = Outcome(Fate.CANCEL)
EXPIRED = Outcome(Fate.EXPIRE)
DROPPED = Outcome(Fate.DROP)


class HandlerDecision(Exception):
    """An exception by which a handler decides what happens to its message."""

    _is_failure = True
    """False if a run that raises this exception has not failed; the run's trace span reads this."""

    def __reduce__(self) -> tuple[object, ...]:
        # Python would copy the exception from its text, which is not the argument of these classes.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class Retry(HandlerDecision):
    """Raised by a handler: deliver the message again, as a failed attempt.

    Args:
        delay: How long to wait; None takes the queue's back-off.
        reason: The reason, for the log and, after the last attempt, for the dead-letter queue.
    """

    def __init__(
        self, delay: Duration | None = None, reason: str = "the handler asked for it"
    ) -> None:
        super().__init__(reason)
        self.delay_ms: int | None = None if delay is None else duration_ms(delay, name="delay")


class Snooze(HandlerDecision):
    """Raised by a handler: deliver the message again later, without the use of an attempt.

    Args:
        delay: How long to wait.
        reason: The reason, for the message's `last_error` and for `shardq show`; it is not logged.
            Without a reason, the error of an earlier failed attempt is kept.
    """

    _is_failure = False

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {delay}")
        self.delay_ms: int = duration_ms(delay, name="delay")
        self.reason: str = reason


class Limited(Snooze):
    """Raised by a handler: deliver nothing of the message's group for a while, and it first.

    It uses no attempt. Of a job without a group, no job of its task is delivered; a message without
    either is snoozed alone.

    Args:
        after: How long to wait: a duration, or a number of seconds as an HTTP answer has it in its
            header `Retry-After`, `120` or `"120"`.
        reason: As `Snooze` takes it.
    """

    def __init__(self, after: Duration | int, reason: str = "") -> None:
        if isinstance(after, int) or (isinstance(after, str) and after.isdecimal()):
            after = f"{after}s"
        super().__init__(after, reason)


class Bury(HandlerDecision):
    """Raised by a handler: move the message to the dead-letter queue now.

    `Bury("no such address")` keeps the reason in the header `shardq-reason`.
    """


class Discard(HandlerDecision):
    """Raised by a handler: the message is of no use any more; end it as if it were cancelled.

    For example `Discard("sold")`. It is not a failure, and is not logged.
    """

    _is_failure = False


class Expired(Discard):
    """Raised by a worker: the job is too old to be of use; its message ends as expired."""


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of a delivery whose handler raised this error."""
    if isinstance(error, Snooze):
        is_limit = isinstance(error, Limited)
        return Outcome(Fate.SNOOZE, _delay_of(error), _reason_of(error), is_limit=is_limit)
    if isinstance(error, Discard):
        ended = EXPIRED if isinstance(error, Expired) else CANCELLED
        return ended._replace(reason=_text_of(error))
    try:
        # The traceback module copes with most errors that cannot be printed, but not with all.
        lines = traceback.format_exception_only(error)
        # A syntax error prints its place first; other errors print their notes last.
        reason = lines[-1 if isinstance(error, SyntaxError) else 0].strip()[:_REASON_CHARS]
        frames = users_frames(error.__traceback__)
        told = "".join(traceback.format_exception(type(error), error, frames))[-_TEXT_CHARS:]
        has_cause = error.__cause__ is not None
    except BaseException:  # noqa: BLE001 - the user's class may raise anything
        reason, told, has_cause, frames = type(error).__name__, "", False, None
    if isinstance(error, Bury):
        text = _text_of(error) or "the handler buried it"
        return Outcome(Fate.BURY, None, text, told if has_cause else "")
    if isinstance(error, Retry):
        # A `Retry` that shardq raised for a user's command has no code of theirs to show.
        is_shown = frames is not None or has_cause
        return Outcome(Fate.RETRY, _delay_of(error), _text_of(error), told if is_shown else "")
    return Outcome(Fate.RETRY, None, reason, told)


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without its first frames, which lead through shardq to the user's code."""
    while frames is not None and is_own(frames.tb_frame):
        frames = frames.tb_next
    return frames


def is_own(frame: FrameType) -> bool:
    """True if a frame runs shardq's code."""
    return frame.f_code.co_filename.startswith(_OWN)


def _delay_of(asked: Retry | Snooze) -> int | None:
    # A subclass of the user's may not have called `__init__`, which sets the delay.
    return getattr(asked, "delay_ms", None)


def _reason_of(asked: Snooze) -> str:
    # Likewise the reason; and a subclass may use `reason` for another value.
    reason: object = getattr(asked, "reason", "")
    return reason[:_TEXT_CHARS] if isinstance(reason, str) else ""


def _text_of(asked: HandlerDecision) -> str:
    try:
        return str(asked)[:_TEXT_CHARS]
    except BaseException:  # noqa: BLE001 - likewise
        return f"{type(asked).__name__}, whose text cannot be read"
