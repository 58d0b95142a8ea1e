"""The base of every job's outcome: a sentence, lines, and plain values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import date, datetime
from typing import Any, ClassVar

from shardq.model.times import iso


class JobOutcome:
    """The outcome of a job.

    Attributes:
        job: The job's name, in its JSON; empty where that has none.
        hidden: Attributes that its JSON lacks.
        also: Properties that its JSON has beside its attributes.
    """

    __slots__ = ()
    job: ClassVar[str] = ""
    hidden: ClassVar[tuple[str, ...]] = ()
    also: ClassVar[tuple[str, ...]] = ()

    @property
    def is_good(self) -> bool:
        """True if the outcome needs no attention."""
        return True

    def line(self) -> str:
        """The outcome in a sentence."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """The details above the sentence, a line each."""
        return []

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain values: its attributes."""
        job = {"job": self.job} if self.job else {}
        own = (one.name for one in fields(self) if one.name not in self.hidden)  # type: ignore[arg-type]
        return job | {name: plain(getattr(self, name)) for name in (*own, *self.also)}


def plain(value: Any) -> Any:
    """A value as JSON has it: times as texts, what has named fields as an object.

    >>> plain((date(2027, 1, 15), {"rate": 0.5}))
    ['2027-01-15', {'rate': 0.5}]
    """
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, datetime):
        return iso(value)
    return value.isoformat() if isinstance(value, date) else value
