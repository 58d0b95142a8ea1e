"""A clock that was ahead has fired schedules in SQLite: what fires after it was set back."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from shardq import Consumer, Observer
from shardq.cli import states
from shardq.cli.states import Limits, Severity, StateName
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq import Message, Schedule
    from shardq.cli.states import Finding

YEAR = 365 * 86_400


class Ahead:
    """A queue with a schedule of an hour that a clock was ahead of for 6 s."""

    def __init__(self, stage: Stage, by: float, every: str = "1h", **options: Any) -> None:
        self.stage = stage
        self.queue = stage.connect().queue("mail")
        self.queue.every(every, b"x", name="crm", **options)
        self.messages: list[Message] = []
        self.consumer = Consumer(self.queue, self.messages.append)
        self.drive(5)
        stage.clock.set(by)
        self.drive(6)
        stage.clock.set(-by)
        self.fired = self.taken()

    @property
    def schedule(self) -> Schedule:
        return self.queue.schedules["crm"]

    def drive(self, seconds: float) -> None:
        self.stage.drive(self.consumer, seconds=seconds, stride=0.2)

    def taken(self) -> list[datetime]:
        """The fire times of what was delivered since."""
        times = [datetime.fromisoformat(one.headers["schedule-time"]) for one in self.messages]
        self.messages.clear()
        return times

    def found(self) -> list[Finding]:
        """What `shardq check` finds of the clock that was ahead."""
        [view] = Observer(self.stage.connect()).look()
        found = states.findings(view, Limits(), [*self.queue.schedules])
        return [one for one in found if one.state == StateName.CLOCK_OFF]


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(local=True) as made:
        yield made


GO_BY_THE_CLOCK: list[Callable[[Schedule], object]] = [
    lambda schedule: schedule.resume(),
    lambda schedule: schedule.change(body=b"y"),
    lambda schedule: schedule.pause().resume(),
]


@pytest.mark.parametrize("go", GO_BY_THE_CLOCK, ids=["resume", "change", "pause"])
def test_a_schedule_that_a_clock_ahead_has_fired_waits_until_a_command_lets_it_go_by_the_clock(
    stage: Stage, go: Callable[[Schedule], object]
) -> None:
    made = Ahead(stage, YEAR)
    assert {time.year for time in made.fired} == {2028}
    [found] = made.found()
    assert (found.level, found.what) == (Severity.WRONG, "schedule crm of queue mail")
    assert found.text == (
        "a clock that was ahead has fired it, so it does not fire until 2028-01-15T09:00:00.000Z."
    )
    assert "`shardq schedule resume mail crm`" in found.advice
    stage.drive(made.consumer, seconds=7_300, stride=10)
    assert made.taken() == []
    go(made.schedule)
    assert made.found() == []
    stage.drive(made.consumer, seconds=3_600, stride=10)
    assert [f"{time:%Y %H:%M}" for time in made.taken()] == ["2027 11:00"]


def test_a_clock_that_is_right_is_not_named(stage: Stage) -> None:
    made = Ahead(stage, 0, every="1s")
    assert len(made.fired) >= 10
    assert made.found() == []


@pytest.mark.parametrize("missed", ["once", "all", "skip"])
@pytest.mark.parametrize(("by", "every_s"), [(45, 10), (10_800, 60)])
def test_what_a_clock_ahead_has_fired_does_not_fire_again_when_the_clock_comes_there(
    stage: Stage, by: float, every_s: int, missed: str
) -> None:
    made = Ahead(stage, by, every=f"{every_s}s", missed=missed)
    # More fire times are missed than one firing puts.
    assert len(made.fired) == (5 if by == 45 else {"once": 2, "all": 180, "skip": 1}[missed])
    made.schedule.resume()
    stage.drive(made.consumer, seconds=by + 5 * every_s, stride=5)
    times = sorted([*made.fired, *made.taken()])
    assert {(after - before).total_seconds() for before, after in pairwise(times)} == {every_s}
