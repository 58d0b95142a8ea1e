"""Fire times, and the policies that decide them around clock changes."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Twice: TypeAlias = Literal["first", "last", "both"]
"""The instants at which a repeated local time fires."""
Gap: TypeAlias = Literal["shift", "skip"]
"""The fate of a local time that does not exist: it fires later, or not at all."""


class Fire(NamedTuple):
    """A fire time.

    Attributes:
        at_ms: Epoch milliseconds, UTC.
        why: The reason if the time is unusual, in a short phrase; else empty.
    """

    at_ms: int
    why: str = ""
