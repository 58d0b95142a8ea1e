"""The rules that repeat on the time line itself, and rules that combine others.

Rules of a wall clock are in `cron` and `calendar`, by way of `clocks`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta, Struct

from shardq.errors import TriggerError
from shardq.model.times import LATEST_MS, duration_text, iso
from shardq.schedules.triggers.clocks import Local
from shardq.schedules.triggers.fire import Fire, Gap, Twice
from shardq.schedules.triggers.foreign import Foreign

EpochMs: TypeAlias = Annotated[int, Meta(ge=0, le=LATEST_MS)]
"""A time, or a span, that can be stored."""

INTERVAL_MS_MIN = 1_000
"""The shortest interval, one second: as often as a cron can fire."""
PARTS_MAX = 100
"""The most triggers that may be combined into one."""
DEPTH_MAX = 10
"""The depth to which triggers may be combined."""
_MEETINGS_MAX = 2_000
"""Most steps to the next time that all parts of an `AllOf` share; intervals may never share one."""


class Every(Struct, frozen=True, tag="every"):
    """Fires each time an interval has passed; no clock change touches it.

    Attributes:
        every_ms: At least `INTERVAL_MS_MIN`.
        first_ms: The first fire time, epoch milliseconds.
    """

    zone: ClassVar[str] = "UTC"
    every_ms: EpochMs
    first_ms: EpochMs

    def __post_init__(self) -> None:
        if self.every_ms < INTERVAL_MS_MIN:
            raise TriggerError(
                f"a schedule fires once a second at most; {duration_text(max(0, self.every_ms))} "
                f"is too short an interval."
            )

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:  # noqa: ARG002 - no wall clock
        """The first fire time after an instant."""
        rounds = max(0, (after_ms - self.first_ms) // self.every_ms + 1)
        at_ms = self.first_ms + rounds * self.every_ms
        return Fire(at_ms) if at_ms <= LATEST_MS else None

    def count(self, after_ms: int, until_ms: int) -> int:
        """The number of fire times later than `after_ms`, and at `until_ms` at the latest."""
        before, by = (
            (at_ms - self.first_ms) // self.every_ms + 1 for at_ms in (after_ms, until_ms)
        )
        return max(0, by) - max(0, before)

    def __str__(self) -> str:
        return f"every {duration_text(self.every_ms)}"


class Once(Struct, frozen=True, tag="once"):
    """Fires at one time, epoch milliseconds."""

    zone: ClassVar[str] = "UTC"
    at_ms: EpochMs

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:  # noqa: ARG002 - no wall clock
        """The time, if it is after the instant."""
        return Fire(self.at_ms) if self.at_ms > after_ms else None

    def __str__(self) -> str:
        return f"at {iso(self.at_ms)}"


class Bounded(Struct, frozen=True, tag="bounded", omit_defaults=True):
    """A rule that fires only within bounds, both inclusive; at least one of them is set."""

    rule: Rule
    start_ms: EpochMs | None = None
    end_ms: EpochMs | None = None

    @property
    def zone(self) -> str:
        """The zone of the rule."""
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

    def __str__(self) -> str:
        start = "" if self.start_ms is None else f", from {iso(self.start_ms)}"
        end = "" if self.end_ms is None else f", until {iso(self.end_ms)}"
        return f"{self.rule}{start}{end}"


class Combined(Struct, frozen=True):
    """Several rules in one: `AnyOf` or `AllOf`."""

    parts: tuple[Rule, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= PARTS_MAX:
            raise TriggerError(
                f"1 to {PARTS_MAX} triggers may be put together, not {len(self.parts)}."
            )
        if _depth(self) > DEPTH_MAX:
            raise TriggerError(f"triggers may be put together {DEPTH_MAX} deep at most.")

    @property
    def zone(self) -> str:
        """The zone of its parts, `UTC` if they have several."""
        zones = {part.zone for part in self.parts}
        return zones.pop() if len(zones) == 1 else "UTC"


def _depth(rule: Rule | Combined) -> int:
    if isinstance(rule, Bounded):
        rule = rule.rule
    return 1 + max(map(_depth, rule.parts)) if isinstance(rule, Combined) else 0


class AnyOf(Combined, frozen=True, tag="any"):
    """Fires whenever one of its parts does; once if several do."""

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:
        """The earliest of the parts' next fire times."""
        fires = (part.after(after_ms, twice=twice, gap=gap) for part in self.parts)
        return min((fire for fire in fires if fire), key=lambda fire: fire.at_ms, default=None)

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


class AllOf(Combined, frozen=True, tag="all"):
    """Fires when all of its parts do, in the same millisecond."""

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:
        """The first fire time that the parts share.

        Raises:
            TriggerError: If none is found within `_MEETINGS_MAX` steps.
        """
        begin_ms = after_ms
        for _ in range(_MEETINGS_MAX):
            fires = [part.after(after_ms, twice=twice, gap=gap) for part in self.parts]
            there = [fire for fire in fires if fire is not None]
            if len(there) < len(fires):
                return None
            there.sort(key=lambda fire: fire.at_ms)
            latest = there[-1]
            if latest.at_ms == there[0].at_ms:
                return latest
            after_ms = latest.at_ms - 1
        raise TriggerError(
            f"no time was found at which the triggers of {self} all fire: it was looked for from "
            f"{iso(begin_ms)} to {iso(after_ms)}; combine others, or let any of them fire (or)."
        )

    def __str__(self) -> str:
        return " and ".join(map(str, self.parts))


Rule: TypeAlias = Every | Once | Bounded | AnyOf | AllOf | Local | Foreign
"""The value of a trigger: frozen, stored as JSON. It has a `zone`, and `after` returns the next
fire time after any instant."""
