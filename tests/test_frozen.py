"""Tests that freeze or move time by freezegun or time-machine, in a sandbox and without one."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import time_machine
from freezegun import freeze_time

import shardq
from shardq import App, Consumer
from shardq.testing import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

FROZEN = datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC)
HOUR = timedelta(hours=1)


def by_time_machine(**settings: Any) -> AbstractContextManager[Any]:
    return time_machine.travel(FROZEN, **{"tick": False, **settings})


def by_freezegun(**settings: Any) -> AbstractContextManager[Any]:
    return freeze_time(FROZEN, **settings)


def shift(tool: Any, by: timedelta) -> None:
    """Move time as users of the tool do."""
    (tool.shift if hasattr(tool, "shift") else tool.tick)(by)


tools = pytest.mark.parametrize("freeze", [by_time_machine, by_freezegun])


def told() -> datetime:
    """What jobs of users see."""
    return datetime.now(UTC)


def clocked() -> tuple[App, Any, list[datetime]]:
    """An app with a task, and what time that has seen."""
    app, seen = App(), list[datetime]()

    @app.task
    def look() -> None:
        seen.append(told())

    return app, look, seen


@tools
def test_a_sandbox_begins_at_the_frozen_time_and_moves_it_along(
    freeze: Callable[..., AbstractContextManager[Any]],
) -> None:
    app, look, seen = clocked()
    with freeze(), Sandbox(app) as sandbox:
        look.put()
        look.using(delay="30 days").put()
        look.using(due=told() + HOUR).put()
        assert sandbox.travel("31 days") == 3
        assert seen == [FROZEN, FROZEN + HOUR, FROZEN + timedelta(days=30)]
        assert told() == sandbox.now == FROZEN + timedelta(days=31)
        assert date.today() == sandbox.now.date()  # noqa: DTZ011 - as users do
    assert told() < FROZEN


@tools
def test_a_sandbox_follows_a_time_that_the_test_freezes_later_and_moves(
    freeze: Callable[..., AbstractContextManager[Any]],
) -> None:
    app, look, seen = clocked()
    with Sandbox(app) as sandbox:
        with freeze() as tool:
            assert sandbox.now == FROZEN
            look.using(delay="1h").put()
            shift(tool, timedelta(minutes=59))
            assert sandbox.run_due() == 0
            shift(tool, timedelta(minutes=1))
            assert sandbox.run_due() == 1
            sandbox.clock.advance(60)
            assert told() == FROZEN + HOUR + timedelta(minutes=1)
            tool.move_to(FROZEN - timedelta(days=1_000))
            look.using(delay="1h").put()
            assert sandbox.travel("1h") == 1
        assert seen == [FROZEN + HOUR, FROZEN - timedelta(days=1_000) + HOUR]
        look.put()
        assert sandbox.run_due() == 1


@tools
def test_a_start_that_is_given_moves_the_frozen_time_there(
    freeze: Callable[..., AbstractContextManager[Any]],
) -> None:
    start = FROZEN - timedelta(days=100)
    with freeze(), Sandbox(start=start) as sandbox:
        assert sandbox.now == told() == start


@tools
def test_a_time_that_ticks_is_moved_along_too(
    freeze: Callable[..., AbstractContextManager[Any]],
) -> None:
    app, look, seen = clocked()
    with freeze(tick=True), Sandbox(app) as sandbox:
        look.using(delay="30d").put()
        assert sandbox.travel("31d") == 1
        assert timedelta(days=30) <= seen[0] - FROZEN < timedelta(days=30, hours=1)
        assert timedelta() <= sandbox.now - FROZEN - timedelta(days=31) < HOUR


def test_a_time_that_ticks_by_itself_at_each_look_is_not_looked_at() -> None:
    app, look, seen = clocked()
    with freeze_time(FROZEN, auto_tick_seconds=15), Sandbox(app) as sandbox:
        look.using(delay="1h").put()
        sandbox.travel("2h")
        # Each look at the clock adds 15 s. A sandbox that looked at it would add hours; other
        # threads of this process may look a few times.
        assert timedelta() <= seen[0] - FROZEN - HOUR < timedelta(minutes=5)


def test_the_local_time_zone_of_time_machine_stays() -> None:
    from zoneinfo import ZoneInfo

    app, look, _ = clocked()
    frozen = FROZEN.astimezone(ZoneInfo("America/Los_Angeles"))
    with time_machine.travel(frozen, tick=False), Sandbox(app) as sandbox:
        look.using(delay="1d").put()
        sandbox.travel("2d")
        assert os.environ["TZ"] == "America/Los_Angeles"
        local = (FROZEN + timedelta(days=2, hours=-8)).replace(tzinfo=None)
        assert datetime.now() == local  # noqa: DTZ005 - as users do


@tools
def test_a_queue_with_the_ordinary_clock_goes_by_the_frozen_time(
    freeze: Callable[..., AbstractContextManager[Any]],
) -> None:
    seen: list[tuple[str, datetime]] = []
    with freeze() as tool, shardq.connect("sqlite://") as db:
        queue = db.queue("mail", minute="1m")
        consumer = Consumer(queue, lambda message: seen.append((message.text, told())))
        now = queue.put("now")
        queue.put("in an hour", delay="1h")
        queue.put("by name", key="k", delay="2h")
        assert now.due == FROZEN
        for _ in range(3):
            for _ in range(3):
                consumer.step()
            shift(tool, HOUR)
        consumer.close()
    assert seen == [("now", FROZEN), ("in an hour", FROZEN + HOUR), ("by name", FROZEN + 2 * HOUR)]
