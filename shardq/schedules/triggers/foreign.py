"""Triggers of classes that users have written, for APScheduler.

Such a trigger is stored as its class's name and its state. It is made anew from them for each
question, because a question may change the trigger.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from shardq.errors import TriggerError, UsageError, shown
from shardq.model.times import LATEST_MS, ceil_ms, iso
from shardq.schedules.triggers.fire import Fire
from shardq.schedules.triggers.state import class_of, decoded, encoded
from shardq.schedules.triggers.zones import zone_name, zone_of

if TYPE_CHECKING:
    from datetime import tzinfo

    from shardq.schedules.triggers.fire import Gap, Twice

STATE_MAX = 32_768
"""The longest JSON of a state, in characters."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Foreign(Struct, frozen=True, tag="class"):
    """A trigger of a user's class.

    Attributes:
        kind: Its class, `module:Class`.
        state: The JSON of its state.
        zone: The zone of the times in its questions.
    """

    kind: str
    state: str
    zone: str

    def __post_init__(self) -> None:
        zone_of(self.zone)

    @classmethod
    def of(cls, trigger: Any, zone: tzinfo | None, now_ms: int) -> Foreign:
        """Make one from a trigger of a user.

        Args:
            trigger: A trigger of a subclass of APScheduler's `BaseTrigger`.
            zone: The zone of the times in its questions; None: its own `timezone`, or UTC.
            now_ms: Epoch milliseconds. Its next time after now must be the same once it is stored.

        Raises:
            TriggerError: If other processes cannot import its class, or JSON cannot hold its state.
        """
        kind = f"{type(trigger).__module__}:{type(trigger).__qualname__}"
        is_own = kind.startswith("__main__:") or "<locals>" in kind
        if is_own or class_of(kind) is not type(trigger):
            raise TriggerError(
                f"trigger {kind} cannot be imported by other processes; define its class at the "
                f"top level of a module."
            )
        state = _state_of(trigger, kind)
        own = zone_of(zone or getattr(trigger, "timezone", None) or UTC)
        made = cls(kind, state, zone_name(own))
        given, stored = made.asked(trigger, now_ms), made.after(now_ms, twice="first", gap="shift")
        if given != stored:
            raise TriggerError(
                f"trigger {kind} answers otherwise once it is stored: {_text(given)}, then "
                f"{_text(stored)}; its state must hold all that it answers by."
            )
        return made

    def after(self, after_ms: int, *, twice: Twice | None, gap: Gap) -> Fire | None:  # noqa: ARG002 - its own
        """The next fire time after an instant, by the trigger made anew from its state.

        Raises:
            TriggerError: If it cannot be made or fails, or returns anything but an aware datetime
                after that instant.
        """
        return self.asked(_revived(self.kind, self.state), after_ms)

    def asked(self, trigger: Any, after_ms: int) -> Fire | None:
        """The next time after an instant, by a trigger of this class.

        The trigger gets the instant as its last fire time, and a microsecond later as now. Triggers
        that count from their last time and triggers that look ahead from now both answer with a
        later time. A trigger that fires once knows no time after another: it is asked again as if
        it had not fired yet.

        Raises:
            TriggerError: As `after`.
        """
        last = (_EPOCH + timedelta(milliseconds=after_ms)).astimezone(zone_of(self.zone))
        now = last + _MICROSECOND
        at_ms = self._next(trigger, last, now)
        if at_ms is None:
            at_ms = self._next(trigger, None, now)
            # Refuse a time that depends on the time of the question: it would recur endlessly.
            if at_ms is None or at_ms <= after_ms or at_ms != self._next(trigger, None, last):
                return None
        if at_ms <= after_ms:
            raise TriggerError(
                f"trigger {self.kind} goes backwards: after {iso(after_ms)} it fires at "
                f"{iso(at_ms)}."
            )
        return Fire(at_ms) if at_ms <= LATEST_MS else None

    def _next(self, trigger: Any, last: datetime | None, now: datetime) -> int | None:
        try:
            found = trigger.get_next_fire_time(last, now)
        except Exception as error:
            raise TriggerError(
                f"trigger {self.kind} fails when it is asked what comes after {now.isoformat()}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if found is None:
            return None
        if not isinstance(found, datetime):
            raise TriggerError(f"trigger {self.kind} returns {shown(found)}, which is no datetime.")
        if found.utcoffset() is None:
            raise TriggerError(
                f"trigger {self.kind} returns {found.isoformat()}, which has no time zone."
            )
        return ceil_ms((found - _EPOCH) // _MICROSECOND)

    def __str__(self) -> str:
        return f"{self.kind} {self.zone}"


def _revived(kind: str, state: str) -> Any:
    """The trigger of a class and a state.

    Raises:
        TriggerError: If it cannot be made.
    """
    try:
        return decoded(json.loads(state), class_of(kind))
    except UsageError:
        raise
    except Exception as error:
        raise TriggerError(
            f"trigger {kind} cannot be made again of its state: {type(error).__name__}: {error}"
        ) from error


def _state_of(trigger: Any, kind: str) -> str:
    try:
        state = json.dumps(encoded(trigger), sort_keys=True)
    except UsageError as error:
        raise TriggerError(f"trigger {kind} cannot be stored: {error}") from error
    if len(state) > STATE_MAX:
        raise TriggerError(
            f"trigger {kind} cannot be stored: its state has {len(state):,} characters as JSON, "
            f"and may have {STATE_MAX:,}."
        )
    return state


def _text(fire: Fire | None) -> str:
    return "never" if fire is None else iso(fire.at_ms)
