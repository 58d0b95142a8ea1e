"""What deliveries come to. How that is stored, `outbox.py` knows."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Fate(Enum):
    """How a delivery ended."""

    ACK = auto()
    RETRY = auto()
    SNOOZE = auto()
    BURY = auto()
    GIVE_UP = auto()
    """It was not handed out after all: its lease had lapsed."""
    LEAVE = auto()
    """It was not handed out after all: somebody else has settled it."""


class Outcome(NamedTuple):
    """How a delivery ended, and what it asks for.

    Attributes:
        fate: What to do.
        delay_ms: For a retry or snooze; None takes the queue's back-off.
        reason: Why it failed.
        traceback: The handler's, where it raised.
    """

    fate: Fate
    delay_ms: int | None = None
    reason: str = ""
    traceback: str = ""


ACKED = Outcome(Fate.ACK)
GIVEN_UP = Outcome(Fate.GIVE_UP)
LEFT = Outcome(Fate.LEAVE)
