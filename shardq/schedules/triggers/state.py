"""The state of a trigger to JSON and back.

A value without a JSON type is an object with one name that begins with `$`: `{"$date":
"2027-01-31"}`. A trigger within a trigger, in one that leaves out holidays say, is such an object
too.

Any program that can write to the store can write a state. So a state makes triggers and the fields
of APScheduler's cron trigger, and nothing else, at every depth. No module is imported because a
state names it, except those of APScheduler's triggers and those that `SHARDQ_TRIGGERS` allows.
"""

from __future__ import annotations

import math
import os
import sys
from datetime import date, datetime, time, timedelta, tzinfo
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from shardq.errors import TriggerError, shown
from shardq.schedules.triggers.zones import zone_name, zone_of

if TYPE_CHECKING:
    from collections.abc import Callable

TRIGGERS_VARIABLE = "SHARDQ_TRIGGERS"
"""The modules, separated by commas, whose triggers may be imported when they are asked."""
_DEPTH_MAX = 20
_MARK = "$"
_TRIGGERS = "apscheduler.triggers."
_FIELDS = "apscheduler.triggers.cron.fields"
_MICROSECOND = timedelta(microseconds=1)


def encoded(trigger: Any) -> Any:
    """The state of a trigger, by `__getstate__`, as JSON.

    Raises:
        TriggerError: If JSON cannot hold it.
    """
    return _encoded(_state_of(trigger), 0)


def decoded(held: Any, kind: Any) -> Any:
    """A trigger of a class, with the state that was encoded."""
    return _made(kind, _decoded(held))


def class_of(kind: str) -> Any:
    """The class of triggers that a name stands for, `module:Class`.

    Raises:
        TriggerError: If its module is not imported here, or it has no such class.
    """
    # Import here, because this takes longer than the import of all of shardq.
    from apscheduler.triggers.base import BaseTrigger

    module, _, path = kind.partition(":")
    try:
        allowed = {name.strip() for name in os.environ.get(TRIGGERS_VARIABLE, "").split(",")}
        may_import = module.startswith(_TRIGGERS) or module in allowed - {""}
        found: Any = import_module(module) if may_import else sys.modules[module]
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, KeyError, AttributeError) as error:
        raise TriggerError(
            f"trigger {shown(kind)} is none of a module that is imported here; import its class in "
            f"the app, or name its module in {TRIGGERS_VARIABLE}."
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseTrigger)):
        raise TriggerError(f"{kind} is no class of triggers: it must inherit from BaseTrigger.")
    return found


def _made(kind: Any, state: Any) -> Any:
    trigger = kind.__new__(kind)
    if hasattr(trigger, "__setstate__"):
        trigger.__setstate__(state)
    else:
        for name, value in state.items():
            if name.startswith("__"):
                raise TriggerError(f"its state has {shown(name)}, which no attribute is named.")
            setattr(trigger, name, value)
    return trigger


def _state_of(trigger: Any) -> Any:
    """Without a `__getstate__` of its own, a trigger's state is its attributes."""
    if getattr(trigger, "jitter", None):
        raise TriggerError("its jitter differs each time; give the schedule a jitter instead.")
    state = trigger.__getstate__()
    if hasattr(type(trigger), "__setstate__"):
        return state
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    return {**(attributes or {}), **(slots or {})}


class _Kind(NamedTuple):
    """A type of value that JSON does not have.

    Attributes:
        type_: Its class.
        encode: Makes values of known types from such a value.
        decode: Makes the value from them again.
    """

    type_: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@cache
def _kinds() -> dict[str, _Kind]:
    """The types by name; datetime stands before date, because a datetime is a date too."""
    # Import here, because these take longer than the import of all of shardq.
    from apscheduler.triggers.base import BaseTrigger
    from apscheduler.triggers.cron.fields import BaseField

    return {
        "datetime": _Kind(datetime, _moment_parts, _moment),
        "date": _Kind(date, date.isoformat, date.fromisoformat),
        "time": _Kind(time, _clock_parts, _clock),
        "microseconds": _Kind(
            timedelta, lambda span: span // _MICROSECOND, lambda n: timedelta(microseconds=n)
        ),
        "tz": _Kind(tzinfo, lambda zone: zone_name(zone_of(zone)), zone_of),
        "tuple": _Kind(tuple, list, tuple),
        "set": _Kind(set, _sorted, set),
        "frozenset": _Kind(frozenset, _sorted, frozenset),
        "field": _Kind(BaseField, _field_parts, _field),
        "trigger": _Kind(BaseTrigger, _trigger_parts, _trigger),
    }


def _encoded(value: Any, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise TriggerError("its state is nested too deep.")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [_encoded(one, depth + 1) for one in value]
    if type(value) is dict and all(type(key) is str and key[:1] != _MARK for key in value):
        return {key: _encoded(one, depth + 1) for key, one in value.items()}
    for name, kind in _kinds().items():
        if isinstance(value, kind.type_):
            return {_MARK + name: _encoded(kind.encode(value), depth + 1)}
    raise TriggerError(
        f"JSON cannot hold {shown(value)}, a {type(value).__name__}, of its state; give its class "
        f"__getstate__ and __setstate__ that do without."
    )


def _decoded(held: Any) -> Any:
    if isinstance(held, list):
        return [_decoded(one) for one in held]
    if not isinstance(held, dict):
        return held
    if len(held) == 1:
        [(name, value)] = held.items()
        if name[:1] == _MARK:
            return _kinds()[name[1:]].decode(_decoded(value))
    return {name: _decoded(value) for name, value in held.items()}


def _moment_parts(moment: datetime) -> list[Any]:
    """The local time, zone and fold; an offset would lose the zone's clock changes."""
    return [moment.replace(tzinfo=None).isoformat(), moment.tzinfo, moment.fold]


def _moment(parts: list[Any]) -> datetime:
    text, zone, fold = parts
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _clock_parts(clock: time) -> list[Any]:
    return [clock.replace(tzinfo=None).isoformat(), clock.tzinfo]


def _clock(parts: list[Any]) -> time:
    text, zone = parts
    return time.fromisoformat(text).replace(tzinfo=zone)


def _sorted(values: set[Any] | frozenset[Any]) -> list[Any]:
    return sorted(values, key=repr)


def _field_parts(field: Any) -> list[Any]:
    """A field of APScheduler's cron trigger."""
    return [type(field).__name__, field.name, str(field), field.is_default]


def _field(parts: list[Any]) -> Any:
    from apscheduler.triggers.cron.fields import BaseField

    name, *arguments = parts
    kind = getattr(import_module(_FIELDS), name)
    if not (isinstance(kind, type) and issubclass(kind, BaseField)):
        raise TriggerError(f"{shown(name)} is no class of fields.")
    return kind(*arguments)


def _trigger_parts(trigger: Any) -> list[Any]:
    kind = f"{type(trigger).__module__}:{type(trigger).__qualname__}"
    return [kind, _state_of(trigger)]


def _trigger(parts: list[Any]) -> Any:
    kind, state = parts
    return _made(class_of(kind), state)
