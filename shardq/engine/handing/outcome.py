"""What a handler raises to say what its delivery comes to.

What becomes of that is in `lifecycle/fate.py`; how it is stored, `outbox.py` knows.
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
"""Where the files of shardq are."""


ACKED = Outcome(Fate.ACK)
GIVEN_UP = Outcome(Fate.GIVE_UP)
LEFT = Outcome(Fate.LEAVE)
CANCELLED = Outcome(Fate.CANCEL)
DROPPED = Outcome(Fate.DROP)


class Request(Exception):
    """What a handler raises to say what is to become of its message."""

    def __reduce__(self) -> tuple[object, ...]:
        # Python would make a copy from the text, which is not what these are made from.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class Retry(Request):
    """Raised by a handler: deliver this again, as a failed attempt.

    Args:
        delay: How long to wait; None takes the queue's back-off.
        reason: Why, for the log and, in the end, the dead-letter queue.
    """

    def __init__(
        self, delay: Duration | None = None, reason: str = "the handler asked for it"
    ) -> None:
        super().__init__(reason)
        self.delay_ms: int | None = None if delay is None else duration_ms(delay, name="delay")


class Snooze(Request):
    """Raised by a handler: deliver this again later; spends no attempt.

    Args:
        delay: How long to wait.
        reason: Why, for the message's `last_error` and what `shardq show` says of it; none keeps
            the error of a failed attempt before. It is in no log.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(reason or f"snoozed for {delay}")
        self.delay_ms: int = duration_ms(delay, name="delay")
        self.reason: str = reason


class Bury(Request):
    """Raised by a handler: move this to the dead-letter queue now.

    `Bury("no such address")` keeps the reason in the header `shardq-reason`.
    """


class Discard(Request):
    """Raised by a handler: this is of no use any more; end it as one that was cancelled.

    `Discard("expired")`. It is no failure, and in no log.
    """


def outcome_of(error: BaseException) -> Outcome:
    """What a delivery comes to whose handler raised this."""
    if isinstance(error, Snooze):
        return Outcome(Fate.SNOOZE, _delay_of(error), _reason_of(error))
    if isinstance(error, Discard):
        return CANCELLED._replace(reason=_text_of(error))
    try:
        # The traceback module copes with most that cannot be printed, but not with all of it.
        lines = traceback.format_exception_only(error)
        # Of an error of syntax its place comes first; of any other its notes come last.
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
        # Raised by shardq for a command of the user's, it has no code of theirs to show.
        is_shown = frames is not None or has_cause
        return Outcome(Fate.RETRY, _delay_of(error), _text_of(error), told if is_shown else "")
    return Outcome(Fate.RETRY, None, reason, told)


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without what leads from shardq to the user's code: that comes first."""
    while frames is not None and is_own(frames.tb_frame):
        frames = frames.tb_next
    return frames


def is_own(frame: FrameType) -> bool:
    """Whether a frame is one of shardq's."""
    return frame.f_code.co_filename.startswith(_OWN)


def _delay_of(asked: Retry | Snooze) -> int | None:
    # A class of the user's own may have passed by what sets it.
    return getattr(asked, "delay_ms", None)


def _reason_of(asked: Snooze) -> str:
    # Likewise, and `reason` may be another thing there.
    reason: object = getattr(asked, "reason", "")
    return reason[:_TEXT_CHARS] if isinstance(reason, str) else ""


def _text_of(asked: Request) -> str:
    try:
        return str(asked)[:_TEXT_CHARS]
    except BaseException:  # noqa: BLE001 - likewise
        return f"{type(asked).__name__}, whose text cannot be read"
