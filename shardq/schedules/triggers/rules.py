"""What repeats on the time line itself, and what is put together of other rules.

What a wall clock decides is in `cron` and `calendar`, by way of `zones`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from shardq.errors import TriggerError
from shardq.model.times import LATEST_MS, duration_text, iso

if TYPE_CHECKING:
    from collections.abc import Iterable

Twice: TypeAlias = Literal["first", "last", "both"]
"""When a local time that comes twice fires."""
Gap: TypeAlias = Literal["shift", "skip"]
"""What becomes of a local time that does not exist: it fires later, or not at all."""

INTERVAL_MS_MIN = 1_000
"""The shortest interval, one second: as often as a cron can fire."""
PARTS_MAX = 100
"""How many triggers may be put together into one."""
_MEETINGS_MAX = 2_000
"""In how many steps the parts of an `AllOf` must have met; an interval's may never."""


class Fire(NamedTuple):
    """A fire time.

    Attributes:
        at_ms: Epoch milliseconds, UTC.
        why: What is unusual about it, in a short phrase; empty where nothing is.
    """

    at_ms: int
    why: str = ""


class Rule(Protocol):
    """What a trigger is made of: a frozen value that has the next fire time of any instant."""

    @property
    def zone(self) -> str:
        """Whose wall clock decides, `UTC` where none does."""

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:
        """The first fire time after an instant; None where there is none any more."""

    def to_json(self) -> dict[str, Any]:
        """The rule, as JSON can hold it."""


@dataclass(frozen=True, slots=True)
class Every:
    """Each time that so much time has passed; no clock change touches it.

    Attributes:
        every_ms: At least `INTERVAL_MS_MIN`.
        first_ms: The first fire time, epoch milliseconds.
    """

    every_ms: int
    first_ms: int

    def __post_init__(self) -> None:
        if self.every_ms < INTERVAL_MS_MIN:
            raise TriggerError(
                f"a schedule fires once a second at most; {duration_text(max(0, self.every_ms))} "
                f"is too short an interval."
            )

    @property
    def zone(self) -> str:
        """Always UTC."""
        return "UTC"

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:  # noqa: ARG002 - no wall clock
        """The first fire time after an instant."""
        rounds = max(0, (after_ms - self.first_ms) // self.every_ms + 1)
        at_ms = self.first_ms + rounds * self.every_ms
        return Fire(at_ms) if at_ms <= LATEST_MS else None

    def count(self, after_ms: int, until_ms: int) -> int:
        """How many fire times there are after an instant, to another, which is included."""
        before, by = (
            (at_ms - self.first_ms) // self.every_ms + 1 for at_ms in (after_ms, until_ms)
        )
        return max(0, by) - max(0, before)

    def to_json(self) -> dict[str, Any]:
        """`every_ms` and `first_ms`."""
        return {"every_ms": self.every_ms, "first_ms": self.first_ms}

    def __str__(self) -> str:
        return f"every {duration_text(self.every_ms)}"


@dataclass(frozen=True, slots=True)
class Once:
    """At one time, epoch milliseconds."""

    at_ms: int

    @property
    def zone(self) -> str:
        """Always UTC."""
        return "UTC"

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:  # noqa: ARG002 - no wall clock
        """That time, where it is after the instant."""
        return Fire(self.at_ms) if self.at_ms > after_ms else None

    def to_json(self) -> dict[str, Any]:
        """`at_ms`."""
        return {"at_ms": self.at_ms}

    def __str__(self) -> str:
        return f"at {iso(self.at_ms)}"


@dataclass(frozen=True, slots=True)
class Bounded:
    """A rule that fires within bounds alone, both included; at least one of them is set."""

    rule: Rule
    start_ms: int | None
    end_ms: int | None

    @property
    def zone(self) -> str:
        """That of the rule."""
        return self.rule.zone

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:
        """The rule's next fire time within the bounds."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        if self.end_ms is not None and after_ms >= self.end_ms:
            return None
        fire = self.rule.after(after_ms, twice=twice, gap=gap)
        if fire is None or (self.end_ms is not None and fire.at_ms > self.end_ms):
            return None
        return fire

    def to_json(self) -> dict[str, Any]:
        """The rule's, with `start_ms` and `end_ms` beside it."""
        bounds = {"start_ms": self.start_ms, "end_ms": self.end_ms}
        return self.rule.to_json() | {name: at for name, at in bounds.items() if at is not None}

    def __str__(self) -> str:
        start = "" if self.start_ms is None else f", from {iso(self.start_ms)}"
        end = "" if self.end_ms is None else f", until {iso(self.end_ms)}"
        return f"{self.rule}{start}{end}"


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Fires whenever one of its parts does; once where several do."""

    parts: tuple[Rule, ...]

    @property
    def zone(self) -> str:
        """That of its parts, `UTC` where they have several."""
        return _shared_zone(self.parts)

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:
        """The earliest of the parts' next fire times."""
        fires = (part.after(after_ms, twice=twice, gap=gap) for part in self.parts)
        return min((fire for fire in fires if fire), key=lambda fire: fire.at_ms, default=None)

    def to_json(self) -> dict[str, Any]:
        """`any_of`, a list of its parts."""
        return {"any_of": [part.to_json() for part in self.parts]}

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


@dataclass(frozen=True, slots=True)
class AllOf:
    """Fires when all of its parts do, in the same millisecond."""

    parts: tuple[Rule, ...]

    @property
    def zone(self) -> str:
        """That of its parts, `UTC` where they have several."""
        return _shared_zone(self.parts)

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:
        """The first fire time that the parts share.

        Raises:
            TriggerError: If they have not met within `_MEETINGS_MAX` steps.
        """
        begin_ms = after_ms
        for _ in range(_MEETINGS_MAX):
            fires = [part.after(after_ms, twice=twice, gap=gap) for part in self.parts]
            there = [fire for fire in fires if fire is not None]
            if len(there) < len(fires):
                return None
            latest = max(there, key=lambda fire: fire.at_ms)
            if latest.at_ms == min(there, key=lambda fire: fire.at_ms).at_ms:
                return latest
            after_ms = latest.at_ms - 1
        raise TriggerError(
            f"no time was found at which the triggers of {self} all fire: it was looked for from "
            f"{iso(begin_ms)} to {iso(after_ms)}; combine others, or let any of them fire (or)."
        )

    def to_json(self) -> dict[str, Any]:
        """`all_of`, a list of its parts."""
        return {"all_of": [part.to_json() for part in self.parts]}

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts))


def _shared_zone(parts: Iterable[Rule]) -> str:
    zones = {part.zone for part in parts}
    return zones.pop() if len(zones) == 1 else "UTC"
