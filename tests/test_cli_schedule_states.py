"""Queues with schedules, as `queues`, `check` and `observe` show them and `drop` removes them."""

from __future__ import annotations

import importlib
import re
import sqlite3
import sys
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from apscheduler.triggers.base import BaseTrigger
from shell import Shell, shell

import shardq
from shardq.cli import states
from shardq.cli.exits import Exit
from shardq.cli.states import Limits, Severity, StateName
from shardq.clock import SystemClock
from shardq.observer import MemberView, Observer, QueueView
from shardq.schedules.triggers.state import TRIGGERS_VARIABLE
from shardq.testing import Stage

if TYPE_CHECKING:
    from datetime import datetime

WAIT_S = 60


class Brittle(BaseTrigger):  # type: ignore[misc] # APScheduler has no types
    """Each second, until it is broken."""

    is_broken: ClassVar[bool] = False

    def get_next_fire_time(self, last: datetime | None, now: datetime) -> datetime:
        if self.is_broken:
            raise RuntimeError("no calendar")
        return (last or now) + timedelta(seconds=1)


EACH_SECOND = """
from datetime import timedelta
from apscheduler.triggers.base import BaseTrigger

class EachSecond(BaseTrigger):
    def get_next_fire_time(self, last, now):
        return (last or now) + timedelta(seconds=1)
"""


def add(shell: Shell, name: str, queue: str = "mail", every: str = "1h") -> None:
    shell.ok("schedule", "add", queue, name, "go", "--every", every)


def found(shell: Shell, *options: str) -> dict[str, dict[str, Any]]:
    """What `check` finds of queues and schedules, by state."""
    lines = shell.run("check", *options, "--json").lines
    return {one["state"]: one for one in lines if one["what"].startswith(("queue ", "schedule "))}


# queues -------------------------------------------------------------------------------------------


def test_a_queue_tells_of_its_schedules(shell: Shell) -> None:
    for name in ("a", "b"):
        add(shell, name)
    shell.ok("queues", "create", "post")
    shell.ok("queues", "pause", "mail")
    lines = shell.ok("queues").out.splitlines()
    assert [line.split()[0] for line in lines] == ["queue", "mail", "post"]
    assert lines[1].endswith("  paused, 2 schedules")
    told = shell.ok("queues", "--json").lines
    assert [(one["queue"], one["schedules"]) for one in told] == [("mail", 2), ("post", 0)]
    text = shell.ok("queues", "show", "mail").out
    assert "\n  has 2 schedules: see `shardq schedule list mail`\n" in text
    assert "schedule" not in shell.ok("queues", "show", "post").out


def test_a_dropped_queue_s_schedules_go_with_it_and_that_is_said(shell: Shell) -> None:
    add(shell, "a")
    told = shell.fails(Exit.USAGE, "queues", "drop", "mail")
    assert "to drop mail with all its messages and its 1 schedule without being asked" in told
    assert shell.ok("queues", "drop", "mail", "--yes").out == "mail: dropped, with 1 schedule\n"
    assert shell.ok("queues", "--json").lines == []
    shell.ok("queues", "create", "mail")
    assert shell.ok("schedule", "list", "mail", "--json").lines == []
    add(shell, "b")
    assert [one["name"] for one in shell.ok("schedule", "list", "--json").lines] == ["b"]


def test_a_purged_queue_keeps_its_schedules_and_that_is_said(shell: Shell) -> None:
    add(shell, "a")
    assert "mail: 1 schedule as before; see" in shell.ok("queues", "purge", "mail", "--yes").out
    assert shell.ok("queues", "--json").lines[0]["schedules"] == 1


def test_a_queue_may_be_named_like_the_schedules_of_another(shell: Shell) -> None:
    add(shell, "a")
    shell.ok("put", "mail.schedules", "x")
    told = shell.ok("queues", "--json").lines
    assert [(one["queue"], one["schedules"]) for one in told] == [
        ("mail", 1),
        ("mail.schedules", 0),
    ]
    assert shell.ok("consume", "mail.schedules", "--until-empty").out == "x\n"
    shell.ok("queues", "drop", "mail.schedules", "--yes")
    assert [one["name"] for one in shell.ok("schedule", "list", "--json").lines] == ["a"]


# check --------------------------------------------------------------------------------------------


def test_schedules_that_nobody_fires_are_told_of_their_queue(shell: Shell) -> None:
    add(shell, "a")
    for options in ((), ("mail",)):
        told = found(shell, *options)
        assert [*told] == ["no consumers"]
        one = told["no consumers"]
        assert (one["what"], one["level"], one["schedules"]) == ("queue mail", "warning", 1)
        assert one["text"] == "1 schedule, and no consumer that fires them; none is due."
        assert "`shardq consume mail`." in one["advice"]


def test_a_trigger_that_fails_is_told_as_its_schedule_s(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brittle, "is_broken", False)
    clock = SystemClock()
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail")
        queue.schedule(Brittle(), b"x", name="my calendar")
        consumer = shardq.Consumer(queue, lambda message: None)
        monkeypatch.setattr(Brittle, "is_broken", True)
        until_us = clock.boot_us() + WAIT_S * 1_000_000
        while queue.schedules["my calendar"].error is None:
            assert clock.boot_us() < until_us
            consumer.step()
        consumer.close()
    one = found(shell)["failing"]
    assert (one["what"], one["level"]) == ("schedule my calendar of queue mail", "wrong")
    assert "Brittle fails when it is asked what comes after " in one["text"]
    assert one["text"].endswith(": RuntimeError: no calendar")
    assert "`shardq schedule change mail 'my calendar'`" in one["advice"]
    assert shell.run("check").code == Exit.FAILED
    done = shell.ok("schedule", "list", "mail")
    assert " failing " in done.out
    assert done.err == "What is wrong, and what to do, says `shardq check`.\n"
    assert "\nerror     trigger " in shell.ok("schedule", "show", "mail", "my calendar").out


@pytest.fixture
def own(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Where a queue has a schedule of a trigger that is in the directory, and nowhere else."""
    (shell.directory / "own_seconds.py").write_text(EACH_SECOND)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(shell.directory)
        trigger = importlib.import_module("own_seconds").EachSecond()
        with shardq.connect(shell.url) as db:
            queue = db.queue("mail")
            queue.schedule(trigger, b"fired", name="own")
            queue.put("last", delay="3s")
    monkeypatch.delitem(sys.modules, "own_seconds")
    monkeypatch.setenv(TRIGGERS_VARIABLE, "own_seconds")
    # It is given back, without what a command adds.
    monkeypatch.setattr(sys, "path", list(sys.path))
    return shell


def test_a_trigger_of_the_directory_is_not_imported_unless_it_is_named(
    own: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TRIGGERS_VARIABLE)
    told = own.run("schedule", "preview", "mail", "own").err
    assert "import its class in the app, or name its module in SHARDQ_TRIGGERS" in told
    assert "own_seconds" not in sys.modules


def test_a_trigger_of_the_directory_is_counted_by_the_calendar(own: Shell) -> None:
    [told] = own.ok("calendar", "mail", "--json").lines
    assert told["firings"] > 3_000


def test_a_trigger_of_the_directory_is_counted_by_who_observes(own: Shell) -> None:
    [told] = own.ok("observe", "mail", "--once", "--json").lines
    assert sum(count for _, count in told["forecast"]) > 500


def test_a_trigger_of_the_directory_fires_where_its_queue_is_consumed(own: Shell) -> None:
    assert "fired" in own.ok("consume", "mail", "--until-empty").out.split()


def test_a_damaged_schedule_is_wrong_and_hides_no_other(shell: Shell) -> None:
    for name in ("bad", "good"):
        add(shell, name)
    with sqlite3.connect(shell.directory / "jobs.db") as other:
        other.execute("UPDATE schedules SET state = '{' WHERE name = 'bad'")
    other.close()
    told = found(shell)
    assert "schedule 'bad' of queue 'mail' is damaged" in told["damaged"]["text"]
    assert told["no consumers"]["text"].startswith("1 schedule,")


def test_a_schedule_that_a_clock_ahead_has_fired_is_named_and_resumed(shell: Shell) -> None:
    add(shell, "a")
    with sqlite3.connect(shell.directory / "jobs.db") as other:
        year_ms = 365 * 86_400_000
        other.execute(
            "UPDATE schedules SET state = json_set(state, '$.previous', next + ?), next = next + ? "
            "WHERE name = 'a'",
            (year_ms, year_ms + 3_600_000),
        )
    other.close()
    one = found(shell)["clock off"]
    assert (one["what"], one["level"]) == ("schedule a of queue mail", "wrong")
    assert one["text"].startswith("a clock that was ahead has fired it, so it does not fire until")
    assert shell.run("check").code == Exit.FAILED
    assert shell.ok("schedule", "resume", "mail", "a").out.startswith(
        "a: goes by the clock again; next "
    )
    assert "clock off" not in found(shell)


def looked(stage: Stage) -> dict[str, QueueView]:
    return {view.name: view for view in Observer(stage.connect()).look()}


def member(threads: int = 8) -> MemberView:
    return MemberView("a", threads, 0, 0, 0, 0, (), isolated=False)


def test_a_schedule_that_consumers_do_not_fire_is_overdue_and_named() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        for name, every in (("slow", "3m"), ("fast", "1m")):
            queue.every(every, b"x", name=name)
        stage.clock.advance(240)
        views = looked(stage)
        schedules, view = [*queue.schedules], views["mail"]
        [one] = states.findings(view, Limits(), schedules)
        assert (one.level, one.state) == (Severity.WRONG, StateName.NO_CONSUMERS)
        served = replace(view, members=(member(),))
        [one] = states.findings(served, Limits(), schedules)
        assert (one.level, one.state, one.what) == (Severity.WRONG, StateName.OVERDUE, "queue mail")
        assert re.match(
            r"2 schedules; schedule fast should have fired 3m ago, and 1 other schedule since",
            one.text,
        )
        [one] = states.findings(served, Limits())
        assert re.match(r"2 schedules; the first should have fired 3m(\ds)? ago\.", one.text)
        [one] = states.findings(served, Limits(lag_ms=240_000), schedules)
        assert (one.state, one.text.endswith("1 consumer; 2 schedules")) == (StateName.OK, True)


def test_many_schedules_that_fail_have_five_findings() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        for number in range(7):
            queue.every("1h", b"x", name=f"{number}")
        views = looked(stage)
        failing = [replace(one, error="no") for one in queue.schedules]
        found = states.findings(views["mail"], Limits(), failing)
        told = [one for one in found if one.state == StateName.FAILING]
        assert [one.text for one in told] == ["no"] * 4 + ["no (And 2 more fail.)"]


# observe ------------------------------------------------------------------------------------------


def test_observe_shows_schedules_at_their_queue(shell: Shell) -> None:
    add(shell, "a", every="5m")
    for options in ((), ("mail",)):
        text = shell.ok("observe", *options, "--once").out
        assert re.search(r"^mail +no consumers ", text, re.MULTILINE)
        assert "start one with: shardq consume mail" in text
    with shardq.connect(shell.url) as db:
        consumer = shardq.Consumer(db.queue("mail"), lambda message: None)
        consumer.step()
        text = shell.ok("observe", "--once").out
        consumer.close()
    assert re.search(r"^mail +ok ", text, re.MULTILINE)
    assert "  1 schedule; 1 to fire in the next 11 minutes\n" in text
    [told] = shell.ok("observe", "--once", "--json").lines
    assert (told["queue"], told["schedules"], told["schedules_lag_ms"]) == ("mail", 1, 0)


def test_the_calendar_counts_firings_at_their_queue_alone(shell: Shell) -> None:
    add(shell, "a", every="5m")
    told = shell.ok("calendar", "--json").lines
    assert [one["queue"] for one in told] == ["mail"]


# Beneath ------------------------------------------------------------------------------------------


def test_a_preview_has_no_more_fire_times_than_a_schedule_has_left() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail")
        queue.every("10s", b"x", name="a", count=3)
        stage.drive(shardq.Consumer(queue, lambda message: None), seconds=12)
        one = queue.schedules["a"]
        assert (one.fired, len(one.preview())) == (1, 2)


def test_a_queue_may_be_dropped_twice() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        queue.every("1h", b"x", name="a")
        for _ in range(2):
            queue.drop()
        assert stage.connect().queues() == []
