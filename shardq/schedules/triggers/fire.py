"""Fire times, and the policies that decide them where clocks are set."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Twice: TypeAlias = Literal["first", "last", "both"]
"""The instants at which a local time fires that comes twice."""
Gap: TypeAlias = Literal["shift", "skip"]
"""The fate of a local time that does not exist: it fires later, or not at all."""


class Fire(NamedTuple):
    """A fire time.

    Attributes:
        at_ms: Epoch milliseconds, UTC.
        why: What is unusual about it, in a short phrase; empty where nothing is.
    """

    at_ms: int
    why: str = ""
