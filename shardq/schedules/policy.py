"""The policies of a schedule for missed fire times, long runs and changes of clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args
from zlib import crc32

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from shardq.errors import BadSetting, shown
from shardq.model import names
from shardq.model.times import duration_ms, duration_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.model.times import Duration

Missed: TypeAlias = Literal["skip", "once", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue", "cancel"]
Twice: TypeAlias = Literal["first", "last", "both"]
Gap: TypeAlias = Literal["shift", "skip"]

MISSED_MS = 60_000
"""A firing that is later than this is missed; a worker that dies is replaced sooner than this."""
_CHOICES: dict[str, tuple[str, ...]] = {
    "missed": get_args(Missed),
    "overlap": get_args(Overlap),
    "twice": get_args(Twice),
    "gap": get_args(Gap),
}
_SPANS = ("window", "jitter", "spread")


class PolicyOptions(TypedDict, total=False):
    """The options of a schedule besides its trigger and its job.

    Attributes:
        missed: The action for fire times that no worker fired within a minute: `skip` fires none of
            them, `once` only the last, `all` each of them; `once` unless given.
        window: Missed fire times longer ago than this are not fired; None: no limit.
        overlap: While the run before has not ended: `allow` a second run beside it, `skip` the fire
            time, `queue` the new run behind the earlier one, or `cancel` the earlier run; `allow`
            unless given.
        twice: If a local time happens twice, the schedule fires at the `first`, the `last` or
            `both`. Unless given, a cron whose minutes or hours begin with `*` fires both times, any
            other trigger the first time.
        gap: If a local time does not exist: `shift` it by the gap, or `skip` it. An interval has no
            local times, so it takes neither `twice` nor `gap`.
        jitter: Each firing is up to this long late, by a number that follows from schedule and fire
            time.
        spread: All firings are up to this long late, by a number that follows from the schedule.
    """

    missed: Missed
    window: Duration | None
    overlap: Overlap
    twice: Twice | None
    gap: Gap
    jitter: Duration | None
    spread: Duration | None


class Policies(Struct, frozen=True, omit_defaults=True):
    """Checked policies; `PolicyOptions` describes them.

    Attributes:
        window_ms: None: no limit.
        jitter_ms: 0: none.
        spread_ms: 0: none.
    """

    missed: Missed = "once"
    window_ms: int | None = None
    overlap: Overlap = "allow"
    twice: Twice | None = None
    gap: Gap = "shift"
    jitter_ms: int = 0
    spread_ms: int = 0

    def with_(self, given: Mapping[str, Any], whose: str) -> Policies:
        """These policies, with some replaced.

        Args:
            given: The new policies, by their names in `PolicyOptions`.
            whose: The schedule, for errors.

        Raises:
            BadSetting: If one is unknown, or cannot be used.
        """
        changed: dict[str, Any] = {}
        for name, value in given.items():
            if name in _SPANS:
                span_ms = None if value is None else duration_ms(value, name=f"{whose}: {name}")
                changed[f"{name}_ms"] = span_ms if name == "window" else span_ms or 0
            elif name not in _CHOICES:
                known = [*_CHOICES, *_SPANS]
                hint = names.hint(name, known, f"there are {', '.join(known)}.")
                raise BadSetting(f"{whose}: unknown option {name!r}; {hint}")
            elif value not in _CHOICES[name] and not (name == "twice" and value is None):
                raise BadSetting(
                    f"{whose}: {name} must be one of {', '.join(_CHOICES[name])}, not "
                    f"{shown(value)}."
                )
            else:
                changed[name] = value
        return replace(self, **changed)

    @property
    def latest_ms(self) -> int:
        """The most milliseconds by which a firing is later than its fire time."""
        return max(self.jitter_ms - 1, 0) + max(self.spread_ms - 1, 0)

    @property
    def of_hours(self) -> tuple[Twice | None, Gap]:
        """The two policies that decide the fire times around clock changes."""
        return self.twice, self.gap

    def late_ms(self, name: str, time_ms: int) -> int:
        """The milliseconds by which a schedule fires later than its fire time, always the same.

        >>> Policies(spread_ms=60_000).late_ms("report", 0)
        25124
        """
        late_ms = 0
        if self.spread_ms:
            late_ms = crc32(name.encode()) % self.spread_ms
        if self.jitter_ms:
            late_ms += crc32(f"{name}@{time_ms}".encode()) % self.jitter_ms
        return late_ms

    def said(self) -> dict[str, str]:
        """The options that differ from the usual ones, as `PolicyOptions` takes them."""
        return {
            name.removesuffix("_ms"): duration_text(value) if name.endswith("_ms") else value
            for name, value in to_builtins(self).items()
        }
