"""Triggers of classes that users have written, for APScheduler.

Such a trigger is stored as its class's name and its state, and made anew from them in each process.
"""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from shardq.errors import TriggerError, UsageError, shown
from shardq.model.times import LATEST_MS, ceil_ms, iso
from shardq.schedules.rules import Fire
from shardq.schedules.zones import zone_name, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardq.schedules.rules import Gap, Twice

STATE_MAX = 32_768
"""Characters of a state's JSON, at most."""
_DEPTH_MAX = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MARK = "$"
"""What the name of a value's kind begins with, in JSON that has no such kind."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A trigger of a user's class.

    Attributes:
        kind: Its class, `module:Class`.
        state: The JSON of its state.
        zone: In which it is told the time.
    """

    kind: str
    state: str
    zone: str
    _made: list[Any] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, trigger: Any, zone: tzinfo | None) -> Foreign:
        """Of a trigger as a user has made it.

        Args:
            trigger: Of a subclass of APScheduler's `BaseTrigger`.
            zone: In which it is told the time; without, its own `timezone`, or UTC.

        Raises:
            TriggerError: If its class cannot be imported, or JSON cannot hold its state.
        """
        kind = f"{type(trigger).__module__}:{type(trigger).__qualname__}"
        if _class_of(kind) is not type(trigger):
            raise TriggerError(
                f"trigger {kind} cannot be imported by that name, so no worker could make it; "
                f"define its class at the top level of a module."
            )
        own = zone_of(zone or getattr(trigger, "timezone", None) or UTC)
        state = _state_of(trigger, kind)
        _revived(kind, state)
        return cls(kind, state, zone_name(own))

    @classmethod
    def of_json(cls, kind: str, state: object, zone: str) -> Foreign:
        """As it was stored; its class is looked for when it is first asked."""
        return cls(str(kind), json.dumps(state, sort_keys=True), zone)

    def after(self, after_ms: int, *, twice: Twice, gap: Gap) -> Fire | None:  # noqa: ARG002 - its own
        """What the trigger says comes next after an instant.

        It is told that it fired last at that instant, and that it is a microsecond later now. A
        trigger that fires but once knows no time after another: it is then told that it has not
        fired yet.

        Raises:
            TriggerError: If it fails, or what it returns is no aware datetime after that instant.
        """
        if not self._made:
            self._made.append(_revived(self.kind, self.state))
        trigger = self._made[0]
        last = (_EPOCH + timedelta(milliseconds=after_ms)).astimezone(zone_of(self.zone))
        now = last + _MICROSECOND
        at_ms = self._asked(trigger, last, now)
        if at_ms is None:
            return self._first(trigger, now, after_ms)
        if at_ms <= after_ms:
            raise TriggerError(
                f"trigger {self.kind} goes backwards: after {iso(after_ms)} it fires at "
                f"{iso(at_ms)}."
            )
        return Fire(at_ms) if at_ms <= LATEST_MS else None

    def _first(self, trigger: Any, now: datetime, after_ms: int) -> Fire | None:
        """Its first fire time, where that is to come and does not depend on when it is asked."""
        at_ms = self._asked(trigger, None, now)
        if at_ms is None or not after_ms < at_ms <= LATEST_MS:
            return None
        return Fire(at_ms) if self._asked(trigger, None, now - timedelta(1)) == at_ms else None

    def _asked(self, trigger: Any, last: datetime | None, now: datetime) -> int | None:
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
            raise TriggerError(f"trigger {self.kind} returns {shown(found)}, no datetime.")
        if found.utcoffset() is None:
            raise TriggerError(
                f"trigger {self.kind} returns {found.isoformat()}, which has no time zone."
            )
        return ceil_ms((found - _EPOCH) // _MICROSECOND)

    def to_json(self) -> dict[str, Any]:
        """`class`, `state` and `tz`."""
        return {"class": self.kind, "state": json.loads(self.state), "tz": self.zone}

    def __str__(self) -> str:
        return f"{self.kind} {self.zone}"


def _class_of(kind: str) -> Any:
    """The class of triggers that has a name.

    Raises:
        TriggerError: If it cannot be imported, or is none.
    """
    # Here, because it takes longer to import than all of shardq.
    from apscheduler.triggers.base import BaseTrigger

    module, _, path = kind.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise TriggerError(
            f"trigger {shown(kind)} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseTrigger)):
        raise TriggerError(f"{kind} is no class of triggers: it must inherit from BaseTrigger.")
    return found


def _revived(kind: str, state: str) -> Any:
    """The trigger of a class and a state.

    Raises:
        TriggerError: If it cannot be made.
    """
    made = _class_of(kind)
    try:
        trigger = made.__new__(made)
        held = _decoded(json.loads(state))
        if hasattr(trigger, "__setstate__"):
            trigger.__setstate__(held)
        else:
            trigger.__dict__.update(held)
    except UsageError:
        raise
    except Exception as error:
        raise TriggerError(
            f"trigger {kind} cannot be made again of its state: {type(error).__name__}: {error}"
        ) from error
    return trigger


def _state_of(trigger: Any, kind: str) -> str:
    # From Python 3.11 on every object has a __getstate__; with slots it returns a pair.
    held = trigger.__getstate__()
    if isinstance(held, tuple):
        raise TriggerError(
            f"trigger {kind} has slots; give it __getstate__ and __setstate__, so that it can be "
            f"stored."
        )
    state = json.dumps(_encoded(held or {}, kind, 0), sort_keys=True)
    if len(state) > STATE_MAX:
        raise TriggerError(
            f"the state of trigger {kind} has {len(state):,} characters as JSON; it may have "
            f"{STATE_MAX:,}."
        )
    return state


def _encoded(value: Any, kind: str, depth: int) -> Any:
    """A value as JSON holds it, what JSON has no kind for as `{"$kind": ..}`."""
    if depth > _DEPTH_MAX:
        raise TriggerError(f"the state of trigger {kind} is nested too deep to be stored.")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [_encoded(one, kind, depth + 1) for one in value]
    if type(value) is dict and all(type(key) is str and key[:1] != _MARK for key in value):
        return {key: _encoded(one, kind, depth + 1) for key, one in value.items()}
    for name, (type_, encode, _) in _KINDS.items():
        if isinstance(value, type_):
            return {_MARK + name: _encoded(encode(value), kind, depth + 1)}
    raise TriggerError(
        f"the state of trigger {kind} has {shown(value)}, a {type(value).__name__}, which JSON "
        f"cannot hold; give the trigger a __getstate__ that returns what it can."
    )


def _decoded(held: Any) -> Any:
    if isinstance(held, list):
        return [_decoded(one) for one in held]
    if not isinstance(held, dict):
        return held
    if len(held) == 1:
        [(key, value)] = held.items()
        if key[:1] == _MARK and key[1:] in _KINDS:
            return _KINDS[key[1:]][2](_decoded(value))
    return {key: _decoded(value) for key, value in held.items()}


def _moment(held: Any) -> datetime:
    text, zone = held
    moment = datetime.fromisoformat(text)
    return moment if zone is None else moment.replace(tzinfo=zone_of(zone))


def _moment_parts(moment: datetime) -> list[Any]:
    """Its local time, and its zone's name: an offset alone would forget the zone's changes."""
    zone = moment.tzinfo
    return [
        moment.replace(tzinfo=None).isoformat(),
        None if zone is None else zone_name(zone_of(zone)),
    ]


def _sorted(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=repr)


# A datetime is a date too, so it comes first.
_KINDS: dict[str, tuple[Any, Any, Any]] = {
    "datetime": (datetime, _moment_parts, _moment),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "microseconds": (
        timedelta,
        lambda span: span // _MICROSECOND,
        lambda n: timedelta(microseconds=n),
    ),
    "tz": (tzinfo, lambda zone: zone_name(zone_of(zone)), zone_of),
    "tuple": (tuple, list, tuple),
    "set": (set, _sorted, set),
    "frozenset": (frozenset, _sorted, frozenset),
}
