"""The wall clocks of zones, and the instants at which they show a time.

A zone's time is cut into stretches in which its offset from UTC stays the same. At the start of a
stretch, clocks may have gone forward, so that some local times do not exist, or back, so that local
times before its start repeat:

```
            02:00          03:00                     02:00          03:00
 forward  ────┤╌╌╌╌ gap ╌╌╌╌├────   back  ─────────────┬──── first ────┤
              └── shifted ──►                          ├──── second ───┴────────
```

`cron` and `calendar` know the local times at which a schedule fires: the `Walls` here.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from shardq.model.times import LATEST_MS
from shardq.schedules.triggers.calendar import CalendarInterval
from shardq.schedules.triggers.cron import Cron
from shardq.schedules.triggers.fire import Fire, Gap, Twice
from shardq.schedules.triggers.zones import zone_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DAY_MS = 86_400_000
_CHUNK_MS = 365 * _DAY_MS
_MARGIN_MS = 2 * _DAY_MS
"""Chunks are searched for clock changes this far beyond their ends; no clock was ever set by more
than a day.

Since 1970 no clock was set twice within four days either (tzdata 2026).
"""
_CHUNKS_KEPT = 2_048
_STRETCHES_MAX = 1_000
"""The number of stretches that are searched for a fire time; they cover at least 200 years."""

Walls: TypeAlias = Cron | CalendarInterval
"""Local times at which a schedule fires, whatever the zone: a frozen value."""


class Local(Struct, frozen=True, tag="local"):
    """A rule of local times in a zone.

    Attributes:
        walls: The local times.
        zone: The name of the zone.
    """

    walls: Walls
    zone: str

    def __post_init__(self) -> None:
        zone_of(self.zone)

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:
        """The next fire time, by `next_fire`.

        Where `twice` is None, a rule with a wildcard in minutes or hours fires in both hours of a
        repeated hour, and any other rule in the first.
        """
        twice = self._twice(twice)
        return next_fire(self.walls, zone_of(self.zone), after_ms, twice=twice, gap=gap)

    def count(self, after_ms: int, until_ms: int, *, twice: Twice | None, gap: Gap) -> int:
        """The number of fire times after an instant, to another, inclusive."""
        zone, chosen = zone_of(self.zone), self._twice(twice)
        total, from_ms = 0, after_ms + 1
        while from_ms <= until_ms:
            stretch = stretch_of(zone, from_ms)
            end_ms = min(stretch.end_ms, until_ms + 1)
            window, *shifted = _windows(stretch, chosen, gap)
            for one in shifted:
                # A shifted time may coincide with another fire time; then both count as one.
                shifted_ms = min(one.end_ms, end_ms)
                while (fire := self.after(from_ms - 1, twice=twice, gap=gap)) is not None:
                    if fire.at_ms >= shifted_ms:
                        break
                    total, from_ms = total + 1, fire.at_ms + 1
                from_ms = max(from_ms, shifted_ms)
            start_ms, stop_ms = max(from_ms, window.start_ms), min(end_ms, window.end_ms)
            if start_ms < stop_ms:
                offset_ms = window.offset_ms
                total += self.walls.count(start_ms + offset_ms, stop_ms + offset_ms)
            from_ms = end_ms
        return total

    def _twice(self, twice: Twice | None) -> Twice:
        if twice is None:
            return "both" if self.walls.is_wild else "first"
        return twice

    def __str__(self) -> str:
        return f"{self.walls} {self.zone}"


class OffsetStretch(NamedTuple):
    """A span in which a zone's offset stays the same; its end is exclusive.

    Attributes:
        start_ms: Epoch milliseconds, UTC.
        end_ms: Epoch milliseconds, UTC.
        offset_ms: Local time less UTC.
        before_ms: The offset before the stretch.
        after_ms: The offset after the stretch.
    """

    start_ms: int
    end_ms: int
    offset_ms: int
    before_ms: int
    after_ms: int

    @property
    def repeats_ms(self) -> int:
        """The milliseconds at its start whose local times the stretch before had already."""
        return max(0, self.before_ms - self.offset_ms)

    @property
    def repeated_ms(self) -> int:
        """The milliseconds at its end whose local times the next stretch repeats."""
        return max(0, self.offset_ms - self.after_ms)

    @property
    def skipped_ms(self) -> int:
        """The milliseconds of local time that were skipped at its start."""
        return max(0, self.offset_ms - self.before_ms)


def stretch_of(zone: tzinfo, at_ms: int) -> OffsetStretch:
    """The stretch that contains an instant.

    Where no change is near, it may begin or end without one.
    """
    chunk = at_ms // _CHUNK_MS
    start_ms, end_ms = chunk * _CHUNK_MS - _MARGIN_MS, (chunk + 1) * _CHUNK_MS + _MARGIN_MS
    before_ms = after_ms = None
    for change_ms, old_ms, new_ms in _changes(zone, chunk):
        if change_ms > at_ms:
            end_ms, after_ms = change_ms, new_ms
            break
        start_ms, before_ms = change_ms, old_ms
    offset_ms = _offset_ms(zone, at_ms)
    return OffsetStretch(
        start_ms,
        end_ms,
        offset_ms,
        offset_ms if before_ms is None else before_ms,
        offset_ms if after_ms is None else after_ms,
    )


class ClockChange(NamedTuple):
    """An instant at which the clocks of a zone are changed.

    Attributes:
        at_ms: Epoch milliseconds, UTC.
        before_ms: Local time less UTC before the change.
        after_ms: Local time less UTC from then on: more if clocks go forward.
    """

    at_ms: int
    before_ms: int
    after_ms: int


def changes(zone: tzinfo, after_ms: int, until_ms: int) -> list[ClockChange]:
    """All changes of a zone's clocks after an instant, to another, inclusive."""
    found = {
        one
        for chunk in range(after_ms // _CHUNK_MS, until_ms // _CHUNK_MS + 1)
        for one in _changes(zone, chunk)
    }
    return sorted(one for one in found if after_ms < one.at_ms <= until_ms)


def next_fire(walls: Walls, zone: tzinfo, after_ms: int, *, twice: Twice, gap: Gap) -> Fire | None:
    """The first instant after another at which a zone's clock shows one of the local times.

    With `shift`, a local time that does not exist fires as long after the gap's start as if the
    clock had not been changed; if another local time fires at that instant anyway, both count as
    one.

    Args:
        walls: The local times.
        zone: The zone of the clock.
        after_ms: Epoch milliseconds, UTC.
        twice: The instants that fire if two show the same local time.
        gap: The policy for local times that do not exist.
    """
    from_ms = after_ms + 1
    for _ in range(_STRETCHES_MAX):
        if from_ms > LATEST_MS - _MARGIN_MS:
            return None
        stretch = stretch_of(zone, from_ms)
        found = []
        for window in _windows(stretch, twice, gap):
            start_ms = max(from_ms, window.start_ms)
            if start_ms >= window.end_ms:
                continue
            wall_ms = walls.first_from(start_ms + window.offset_ms)
            if wall_ms is not None and wall_ms - window.offset_ms < window.end_ms:
                at_ms = wall_ms - window.offset_ms
                found.append(Fire(at_ms, _why(stretch, window, at_ms)))
        if found:
            return min(found, key=lambda fire: fire.at_ms)
        # No fire time in these stretches: continue shortly before the next one, which may be years
        # away.
        least_ms = min(stretch.offset_ms, stretch.after_ms)
        wall_ms = walls.first_from(stretch.end_ms + least_ms)
        if wall_ms is None:
            return None
        from_ms = max(stretch.end_ms, wall_ms - _MARGIN_MS)
    return None


class _Window(NamedTuple):
    """Instants of a stretch whose local times follow from one offset; its end is exclusive."""

    start_ms: int
    end_ms: int
    offset_ms: int


def _windows(stretch: OffsetStretch, twice: Twice, gap: Gap) -> list[_Window]:
    start_ms, end_ms = stretch.start_ms, stretch.end_ms
    if twice == "first":
        start_ms += stretch.repeats_ms
    elif twice == "last":
        end_ms -= stretch.repeated_ms
    windows = [_Window(start_ms, end_ms, stretch.offset_ms)]
    if gap == "shift" and stretch.skipped_ms:
        shifted_to_ms = stretch.start_ms + stretch.skipped_ms
        windows.append(_Window(stretch.start_ms, shifted_to_ms, stretch.before_ms))
    return windows


def _why(stretch: OffsetStretch, window: _Window, at_ms: int) -> str:
    wall_ms = at_ms + stretch.offset_ms
    if window.offset_ms != stretch.offset_ms:
        missing_ms = at_ms + window.offset_ms
        has_date = missing_ms // _DAY_MS != wall_ms // _DAY_MS
        missing, moved = _wall_text(missing_ms, has_date), _wall_text(wall_ms, has_date)
        return f"{missing} does not exist, clocks go forward: moved to {moved}"
    if at_ms < stretch.start_ms + stretch.repeats_ms:
        return f"second of two {_wall_text(wall_ms)}, clocks go back"
    if at_ms >= stretch.end_ms - stretch.repeated_ms:
        return f"first of two {_wall_text(wall_ms)}, clocks go back"
    return ""


def _wall_text(wall_ms: int, has_date: bool = False) -> str:
    wall = _EPOCH + timedelta(milliseconds=wall_ms)
    text = f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"
    return f"{wall:%Y-%m-%d} {text}" if has_date else text


def _offset_ms(zone: tzinfo, at_ms: int) -> int:
    offset = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone).utcoffset()
    return 0 if offset is None else offset // _MILLISECOND


@lru_cache(maxsize=_CHUNKS_KEPT)
def _changes(zone: tzinfo, chunk: int) -> tuple[ClockChange, ...]:
    """The changes of a zone's clocks in a chunk and near it."""
    if isinstance(zone, timezone):
        return ()
    start_ms = max(0, chunk * _CHUNK_MS - _MARGIN_MS)
    end_ms = min(LATEST_MS - _DAY_MS, (chunk + 1) * _CHUNK_MS + _MARGIN_MS)
    found = []
    old_ms = _offset_ms(zone, start_ms)
    # Search day by day: no day has two changes.
    for day_ms in range(start_ms + _DAY_MS, end_ms + 1, _DAY_MS):
        new_ms = _offset_ms(zone, day_ms)
        if new_ms != old_ms:
            found.append(ClockChange(_change_ms(zone, day_ms - _DAY_MS, day_ms), old_ms, new_ms))
            old_ms = new_ms
    return tuple(found)


def _change_ms(zone: tzinfo, low_ms: int, high_ms: int) -> int:
    """The first instant with the later offset; zones change at whole seconds."""
    later_ms = _offset_ms(zone, high_ms)
    instants = range(low_ms, high_ms + 1, 1_000)
    return instants[bisect_left(instants, True, key=lambda ms: _offset_ms(zone, ms) == later_ms)]
