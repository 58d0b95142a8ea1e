"""The firing and the schedule that have put a message, by its headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardq.errors import BadTime
from shardq.model.times import due_ms, moment_of

if TYPE_CHECKING:
    from datetime import datetime

    from shardq.model.message import Message

NAME_HEADER = "schedule"
TIME_HEADER = "schedule-time"
PREVIOUS_HEADER = "schedule-previous"
HEADERS = (NAME_HEADER, TIME_HEADER, PREVIOUS_HEADER)


class Firing(NamedTuple):
    """The firing of a schedule that has put a message.

    Attributes:
        schedule: The schedule's name.
        time: The fire time, UTC, by the trigger, without jitter and spread; for a message of
            `Schedule.run` the time of the call.
        previous: The last earlier fire time for which the schedule has put a message, UTC; None for
            the first.
    """

    schedule: str
    time: datetime
    previous: datetime | None

    @classmethod
    def of(cls, message: Message) -> Firing | None:
        """The firing that has put a message; None if no schedule has."""
        headers = message.headers
        try:
            return cls(
                headers[NAME_HEADER],
                moment_of(due_ms(headers[TIME_HEADER])),
                moment_of(due_ms(headers[PREVIOUS_HEADER])) if PREVIOUS_HEADER in headers else None,
            )
        except (KeyError, BadTime):
            # A producer may have set headers of these names itself.
            return None
