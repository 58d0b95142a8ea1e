"""When schedules fire."""

from __future__ import annotations

import pytest

from shardq.errors import TriggerError
from shardq.model.times import due_ms, iso
from shardq.schedules.trigger import Trigger

NOW_MS = due_ms("2026-10-23T12:00:00Z")


@pytest.mark.parametrize(
    "trigger",
    [
        Trigger.every("15m", now_ms=NOW_MS),
        Trigger.every("15m", start="2027-01-01T00:00Z", end="2028-01-01T00:00Z", now_ms=NOW_MS),
        Trigger.cron("30 2 * * *", tz="Europe/Berlin"),
        Trigger.cron("0 0 1,15 * fri", tz="+02:00", end="2028-01-01T00:00Z"),
    ],
    ids=str,
)
def test_a_trigger_is_the_same_after_json(trigger: Trigger) -> None:
    made = Trigger.from_json(trigger.to_json())
    assert made == trigger
    assert hash(made) == hash(trigger)
    assert str(made) == str(trigger)


def test_a_local_hour_that_comes_twice_fires_as_it_is_told() -> None:
    nightly = Trigger.cron("30 2 * * *", tz="Europe/Berlin")
    until_ms = NOW_MS + 2 * 86_400_000

    def fires(twice: str) -> list[str]:
        found = nightly.fires(NOW_MS, until_ms, twice=twice)  # type: ignore[arg-type]
        return [f"{iso(fire.at_ms)[8:16]} {fire.why}".strip() for fire in found]

    first, second = (f"{word} of two 02:30, clocks go back" for word in ("first", "second"))
    assert fires("first") == ["24T00:30", f"25T00:30 {first}"]
    assert fires("last") == ["24T00:30", f"25T01:30 {second}"]
    assert fires("both") == ["24T00:30", f"25T00:30 {first}", f"25T01:30 {second}"]


def test_a_cron_that_no_day_fits_is_refused() -> None:
    with pytest.raises(TriggerError, match="would never fire: no time fits it"):
        Trigger.cron("0 0 30 2 *").check(NOW_MS)
