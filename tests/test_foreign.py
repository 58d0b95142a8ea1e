"""Triggers of users' own classes."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import own_triggers as own
import pytest
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from shardq.errors import TriggerError
from shardq.model.times import due_ms, moment_of
from shardq.schedules.triggers.foreign import STATE_MAX
from shardq.schedules.triggers.state import TRIGGERS_VARIABLE, decoded, encoded
from shardq.schedules.triggers.trigger import Trigger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = datetime(2027, 3, 27, 12, 0, 30, tzinfo=UTC)
NOW_MS = due_ms(NOW)
BERLIN = ZoneInfo("Europe/Berlin")


def stored(trigger: Any, **options: Any) -> Trigger:
    """A trigger as another process reads it."""
    made = Trigger.of(trigger, now_ms=NOW_MS, **options)
    read = Trigger.from_json(json.loads(json.dumps(made.to_json(), sort_keys=True)))
    assert read == made
    assert hash(read) == hash(made)
    return read


def revived(kind: str, state: object) -> Trigger:
    """A stored trigger of a class and a state."""
    given = {"type": "class", "kind": kind, "state": json.dumps(state), "zone": "UTC"}
    return Trigger.from_json(given)


def next_of(trigger: Trigger, after: datetime = NOW) -> datetime | None:
    fire = trigger.after(due_ms(after))
    return None if fire is None else moment_of(fire.at_ms)


def refused(trigger: Any, **options: Any) -> str:
    with pytest.raises(TriggerError) as caught:
        Trigger.of(trigger, now_ms=NOW_MS, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("trigger", "first", "second"),
    [
        (own.FromLast(timedelta(minutes=90)), NOW + timedelta(hours=1.5), NOW + timedelta(hours=3)),
        (own.FromNow(), NOW + timedelta(seconds=30), NOW + timedelta(seconds=90)),
        (own.Slotted(own.HOUR), NOW + own.HOUR, NOW + 2 * own.HOUR),
        (own.Frozen((own.HOUR, own.HOUR)), NOW + 2 * own.HOUR, NOW + 4 * own.HOUR),
        (
            own.Evenings("Europe/Berlin"),
            datetime(2027, 3, 27, 17, 30, tzinfo=UTC),
            datetime(2027, 3, 28, 16, 30, tzinfo=UTC),
        ),
        (
            own.Workdays(CronTrigger(hour=9, minute=0, timezone=BERLIN), {date(2027, 3, 29)}),
            datetime(2027, 3, 28, 7, 0, tzinfo=UTC),
            datetime(2027, 3, 30, 7, 0, tzinfo=UTC),
        ),
        (own.Single(NOW + own.HOUR), NOW + own.HOUR, None),
        (own.Single(NOW), None, None),
        (own.AtOnce(), None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseTrigger) else "",
)
def test_a_trigger_fires_by_what_its_class_says(
    trigger: BaseTrigger, first: datetime | None, second: datetime | None
) -> None:
    read = stored(trigger)
    assert next_of(read) == first
    assert (first and next_of(read, first)) == second


def test_the_time_after_an_instant_is_the_same_however_often_and_in_whatever_order() -> None:
    for trigger in (own.FromNow(), own.Counting(), own.Evenings(BERLIN)):
        read = stored(trigger)
        asked = [NOW + timedelta(hours=hours) for hours in range(30)]
        forwards = [next_of(read, at) for at in asked]
        assert [next_of(read, at) for at in reversed(asked)] == forwards[::-1]


def test_a_trigger_is_told_the_time_in_its_zone() -> None:
    assert stored(own.Evenings(BERLIN)).zone == "Europe/Berlin"
    assert stored(own.FromNow()).zone == "UTC"
    assert stored(own.FromNow(), tz="Asia/Tokyo").zone == "Asia/Tokyo"
    assert str(stored(own.FromNow())) == "own_triggers:FromNow UTC"


@pytest.mark.parametrize("start", ["2027-03-28T00:00Z", "2027-10-31T00:00Z"])
def test_a_wrapped_cron_goes_on_across_a_clock_change(start: str) -> None:
    read = stored(own.Workdays(CronTrigger(minute="*/30", timezone=BERLIN), set()))
    after_ms = due_ms(start)
    times = [fire.at_ms for fire in read.fires(after_ms, after_ms + 5 * 3_600_000)]
    assert times[-1] == after_ms + 5 * 3_600_000
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    "held",
    [
        None,
        [True, 1, 1.5, "text", [], {}, {"a": {"b": [None]}}],
        (1, (2, 3)),
        {1, 2, 3},
        frozenset({"a"}),
        datetime(2027, 10, 31, 2, 30, 1, 5, tzinfo=BERLIN, fold=1),
        datetime(2027, 10, 31, 2, 30),  # noqa: DTZ001 - a state may hold such
        datetime(2027, 1, 1, tzinfo=timezone(timedelta(hours=5.5))),
        date(2027, 1, 1),
        time(2, 30, tzinfo=UTC),
        timedelta(days=-1, microseconds=7),
        BERLIN,
        UTC,
    ],
    ids=repr,
)
def test_a_state_is_the_same_after_json(held: Any) -> None:
    state = json.dumps(encoded(own.Unstorable(held)))
    again = decoded(json.loads(state), own.Unstorable).held
    assert (type(again), again) == (type(held), held)
    assert getattr(again, "fold", 0) == getattr(held, "fold", 0)
    assert getattr(again, "tzinfo", None) == getattr(held, "tzinfo", None)


def local() -> BaseTrigger:
    class Local(own.FromNow):
        pass

    return Local()


def in_main() -> BaseTrigger:
    kind = type("Script", (own.FromNow,), {"__module__": "__main__"})
    made: BaseTrigger = kind()
    return made


def other_of_that_name() -> BaseTrigger:
    kind = type("FromNow", (own.FromNow,), {"__module__": "own_triggers"})
    made: BaseTrigger = kind()
    return made


def jittered() -> BaseTrigger:
    return own.Workdays(CronTrigger(hour=1, timezone=UTC, jitter=5), set())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (local, "trigger test_foreign:local.<locals>.Local cannot be imported by other processes"),
        (in_main, "trigger __main__:Script cannot be imported by other processes"),
        (other_of_that_name, "trigger own_triggers:FromNow cannot be imported by other processes"),
        (lambda: own.Unstorable(object()), "JSON cannot hold <object object at "),
        (lambda: own.Unstorable(b"x"), "JSON cannot hold b'x', a bytes, of its state; give its "),
        (lambda: own.Unstorable(float("nan")), "JSON cannot hold nan, a float, of its state"),
        (lambda: own.Unstorable({1: 2}), "JSON cannot hold {1: 2}, a dict, of its state"),
        (lambda: own.Unstorable({"$date": 2}), "JSON cannot hold {'$date': 2}, a dict, of its"),
        (lambda: own.Unstorable("x" * STATE_MAX), "its state has 32,780 characters as JSON, and"),
        (jittered, "its jitter differs each time; give the schedule a jitter instead"),
        (lambda: own.Forgetful(2 * own.HOUR), "answers otherwise once it is stored: 2027-03-27T14"),
        (lambda: own.Failing(NOW), "fails when it is asked what comes after 2027-03-27T12:00:30"),
        (lambda: own.Returning("soon"), "returns 'soon', which is no datetime"),
        (lambda: own.Returning(NOW.replace(tzinfo=None)), "12:00:30, which has no time zone"),
        (lambda: own.Returning(NOW), "goes backwards: after 2027-03-27T12:00:30.000Z it fires at "),
        (own.NoTrigger, "a trigger must be one of APScheduler's, not <own_triggers.NoTrigger"),
    ],
)
def test_a_trigger_that_cannot_be_stored_or_asked_is_refused(
    make: Callable[[], BaseTrigger], said: str
) -> None:
    assert said in refused(make())


def nested(depth: int) -> Any:
    held: Any = []
    for _ in range(depth):
        held = [held]
    return held


def test_a_state_that_is_nested_too_deep_is_refused() -> None:
    assert "nested too deep" in refused(own.Unstorable(nested(10_000)))


def test_a_part_of_several_triggers_may_be_a_user_s_own() -> None:
    read = stored(OrTrigger([own.FromLast(), CronTrigger(minute="15", timezone=UTC)]))
    assert next_of(read) == datetime(2027, 3, 27, 12, 15, tzinfo=UTC)


def test_a_trigger_that_fails_later_says_so_when_it_is_asked() -> None:
    read = stored(own.Failing(NOW + 5 * own.HOUR))
    said = "trigger own_triggers:Failing fails when .*: LookupError: no ephemeris for this year"
    with pytest.raises(TriggerError, match=said):
        next_of(read, NOW + 5 * own.HOUR)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("own_triggers:Gone", "trigger 'own_triggers:Gone' is none of a module that is imported"),
        ("gone_since:Gone", "trigger 'gone_since:Gone' is none of a module that is imported here"),
        ("apscheduler.triggers.gone:Gone", "is none of a module that is imported here"),
        ("own_triggers", "trigger 'own_triggers' is none of a module that is imported here"),
        (":Gone", "trigger ':Gone' is none of a module that is imported here"),
        ("", "trigger '' is none of a module that is imported here"),
        ("own_triggers:NoTrigger", "own_triggers:NoTrigger is no class of triggers"),
        ("own_triggers:HOUR", "own_triggers:HOUR is no class of triggers"),
        ("own_triggers:Frozen", "cannot be made again of its state: "),
    ],
)
def test_a_trigger_whose_class_is_gone_says_so_when_it_is_asked(kind: str, said: str) -> None:
    read = revived(kind, {"$gone": 1})
    with pytest.raises(TriggerError) as caught:
        next_of(read)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "held",
    [
        {"$trigger": ["tempfile:_TemporaryFileCloser", {"name": "FILE", "delete": True}]},
        {"$trigger": ["tempfile:_TemporaryFileCloser", {}]},
        {"$trigger": [":Gone", {}]},
        {"deep": [{"$tuple": [{"$trigger": ["subprocess:Popen", {}]}]}]},
        {"$field": ["import_module", "antigravity"]},
        {"$field": ["monthrange", 2027, 1]},
    ],
    ids=str,
)
def test_a_state_makes_triggers_and_their_fields_and_nothing_else(held: Any) -> None:
    state = {"inner": held, "holidays": []}
    read = revived("own_triggers:Workdays", state)
    with pytest.raises(TriggerError, match=r"is no class of|is none of|no attribute 'import_mod"):
        next_of(read)


def test_a_part_whose_class_is_no_text_cannot_be_made() -> None:
    state = {"inner": {"$trigger": [5, {}]}, "holidays": []}
    read = revived("own_triggers:Workdays", state)
    with pytest.raises(TriggerError, match="cannot be made again of its state: AttributeError"):
        next_of(read)


@pytest.mark.parametrize(
    "allowed", ["late_triggers,broken_triggers", " broken_triggers , late_triggers,,"]
)
def test_modules_that_may_be_imported_are_parted_by_commas_and_blanks(
    allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_triggers.py").write_text("from own_triggers import FromNow\n")
    (tmp_path / "broken_triggers.py").write_text("1 +\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(TRIGGERS_VARIABLE, allowed)
    monkeypatch.delitem(sys.modules, "late_triggers", raising=False)
    assert next_of(revived("late_triggers:FromNow", {})) == NOW + timedelta(seconds=30)
    with pytest.raises(TriggerError, match="cannot be made again of its state: SyntaxError"):
        next_of(revived("broken_triggers:FromNow", {}))


def test_a_state_imports_nothing() -> None:
    assert "antigravity" not in sys.modules
    for held in ({"$trigger": ["antigravity:fly", {}]}, {"$field": ["antigravity"]}):
        state: Any = {"inner": held, "holidays": []}
        with pytest.raises(TriggerError):
            next_of(revived("own_triggers:Workdays", state))
    with pytest.raises(TriggerError, match="or name its module in SHARDQ_TRIGGERS"):
        next_of(revived("antigravity:Fly", {}))
    assert "antigravity" not in sys.modules
