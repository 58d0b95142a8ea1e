"""The actions of handlers and callers: a message's body alone decides.

```
 body ── crc32 ──► course ──► at each delivery a deed: work, then ack, fail, snooze or bury
```

So every process does the same with a message, and the judge knows the right outcome.
"""

from __future__ import annotations

from binascii import crc32
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shardq.model.message import Message

ATTEMPTS = 5
BACKOFF_MS = 250
HOLD_MS = 1_000
VISIBILITY_MS = 10_000
SETTINGS = {
    "attempts": ATTEMPTS,
    "backoff": f"{BACKOFF_MS}ms",
    "hold": f"{HOLD_MS}ms",
    "visibility": f"{VISIBILITY_MS}ms",
}
"""The settings of a queue whose messages have courses."""
WORK_MS = 1.0
LONG_MS = 2_000.0
"""Longer than `hold`, so that the delivery is parked, or its claim extended."""
RETRY_MS = 1_000
SNOOZE_MS = 800
_SNOOZED_FOR_MS = 1_500
_SHARES_OF = 256


class Course(Enum):
    """The kinds of lives of a message."""

    PLAIN = auto()
    """Acked at its first delivery."""
    FAILS = auto()
    """Its first attempt fails, and the second is acked."""
    SNOOZES = auto()
    """Snoozed for some time after its first due, then acked."""
    LASTS = auto()
    """Handled for longer than `hold`."""
    BURIED = auto()
    """Buried at once."""
    POISON = auto()
    """Raises until it is out of attempts."""

    @property
    def is_deadly(self) -> bool:
        """True if the message ends in the dead-letter queue."""
        return self in {Course.BURIED, Course.POISON}


_SHARES = {
    Course.FAILS: 8,
    Course.SNOOZES: 8,
    Course.LASTS: 2,
    Course.BURIED: 3,
    Course.POISON: 3,
}
_COURSES = [course for course, share in _SHARES.items() for _ in range(share)]


class Outcome(StrEnum):
    """The outcome of a delivery, as its handler or caller asks."""

    ACKED = "acked"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    BURIED = "buried"

    @property
    def asks(self) -> bool:
        """True if the message is to be delivered again."""
        return self in {Outcome.RETRIED, Outcome.SNOOZED}


class Deed(NamedTuple):
    """The action at one delivery.

    Attributes:
        outcome: The outcome.
        delay_ms: The least time until the next delivery, if there is to be one.
        work_ms: How long the handler works.
        backs_off: True if the queue's back-off decides the time until the next delivery.
    """

    outcome: Outcome = Outcome.ACKED
    delay_ms: int = 0
    work_ms: float = WORK_MS
    backs_off: bool = False


def course_of(body: str) -> Course:
    """The course of a body, always the same."""
    place = crc32(body.encode()) % _SHARES_OF
    return _COURSES[place] if place < len(_COURSES) else Course.PLAIN


def deed_for(message: Message, now_ms: int) -> Deed:
    """The action for a message that is delivered now."""
    late_ms = now_ms - round(message.first_due.timestamp() * 1_000)
    return deed_of(course_of(message.text), message.attempt, late_ms)


def deed_of(course: Course, attempt: int, late_ms: int) -> Deed:
    """The action at a delivery.

    Args:
        course: The message's course.
        attempt: The number of the delivery, from 1.
        late_ms: How long ago the message was first due, milliseconds.
    """
    if course is Course.FAILS and attempt == 1:
        return Deed(Outcome.RETRIED, RETRY_MS)
    if course is Course.SNOOZES and late_ms < _SNOOZED_FOR_MS:
        return Deed(Outcome.SNOOZED, SNOOZE_MS)
    if course is Course.LASTS:
        return Deed(work_ms=LONG_MS)
    if course is Course.BURIED:
        return Deed(Outcome.BURIED)
    if course is Course.POISON:
        return Deed(Outcome.RETRIED, BACKOFF_MS << (attempt - 1), backs_off=True)
    return Deed()
