"""What handlers and callers do with a message: its body alone decides.

```
 body ── crc32 ──► course ──► at each delivery a deed: work, then ack, fail, snooze or bury
```

So whoever gets it, in whatever process, does the same with it, and the judge knows what had to come
of it.
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
"""Of a queue whose messages go their courses."""
WORK_MS = 1.0
LONG_MS = 2_000.0
"""Past `hold`: the delivery is parked, or its claim extended."""
RETRY_MS = 1_000
SNOOZE_MS = 800
_SNOOZED_FOR_MS = 1_500
_SHARES_OF = 256


class Course(Enum):
    """What one message goes through."""

    PLAIN = auto()
    """Acked at once."""
    FAILS = auto()
    """Its first attempt asks for another."""
    SNOOZES = auto()
    """Put off while it is little later than it was first due."""
    LASTS = auto()
    """Worked at for longer than `hold`."""
    BURIED = auto()
    """Buried at once."""
    POISON = auto()
    """Raises until it is out of attempts."""

    @property
    def is_deadly(self) -> bool:
        """Whether it ends in the dead-letter queue."""
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
    """What a delivery comes to, as its handler or caller asks."""

    ACKED = "acked"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    BURIED = "buried"

    @property
    def asks(self) -> bool:
        """Whether the message is to come again."""
        return self in {Outcome.RETRIED, Outcome.SNOOZED}


class Deed(NamedTuple):
    """What is done at one delivery.

    Attributes:
        outcome: What it comes to.
        delay_ms: How long it is to stay away at least, where it is to come again.
        work_ms: How long it takes.
        backs_off: Whether the queue's own back-off says how long it stays away.
    """

    outcome: Outcome = Outcome.ACKED
    delay_ms: int = 0
    work_ms: float = WORK_MS
    backs_off: bool = False


def course_of(body: str) -> Course:
    """The course that a body stands for; the same ever."""
    place = crc32(body.encode()) % _SHARES_OF
    return _COURSES[place] if place < len(_COURSES) else Course.PLAIN


def deed_for(message: Message, now_ms: int) -> Deed:
    """What is to be done with a message that has been delivered now."""
    late_ms = now_ms - round(message.first_due.timestamp() * 1_000)
    return deed_of(course_of(message.text), message.attempt, late_ms)


def deed_of(course: Course, attempt: int, late_ms: int) -> Deed:
    """What is done at a delivery.

    Args:
        course: The message's.
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
