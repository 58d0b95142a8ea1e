"""What tests of pools let other processes do; little to import, for each begins with that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import Snooze

if TYPE_CHECKING:
    from shardq import Message


def busy_at_first(message: Message) -> str:
    """The message's receipt, 20 s after it was first asked for."""
    if message.due == message.first_due:
        raise Snooze("20s")
    return message.receipt
