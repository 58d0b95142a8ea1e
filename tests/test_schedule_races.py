"""Schedules that are changed, removed and made while they fire, or where a process has died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fired import Run, at, time_of
from keyed import as_elsewhere

from shardq import errors
from shardq.schedules import declaring
from shardq.schedules import options as options_of
from shardq.schedules.firing.firing import ScheduleFiring
from shardq.stores import steps
from shardq.stores.store import NO_MARKS, NO_TIMES
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardq import Queue
    from shardq.model.shard import Position
    from shardq.stores.store import RowMove


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        as_elsewhere(made)
        yield made


# Between the steps of a firing --------------------------------------------------------------------

STEPS = ["records schedules", "insert", "write_records schedules"]
COMMANDS: dict[str, Callable[[Queue], object]] = {
    "pause and resume": lambda queue: queue.schedules["crm"].pause().resume(),
    "change": lambda queue: queue.schedules["crm"].change(body="other"),
    "fire": lambda queue: ScheduleFiring(queue._home).fire(["crm"]),
    "read": lambda queue: queue.schedules["crm"],
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_fire_time_has_one_run_whatever_comes_between_the_steps_of_a_firing(
    stage: Stage, queue: Queue, command: str, step: str, *, after: bool
) -> None:
    queue.every("10s", b"", name="crm", start=at(stage, 10))
    other, runs = stage.connect().queue("mail"), Run(stage, queue)
    assert runs.drive(8) == []
    begun: list[str] = []

    def act() -> None:
        begun.append(command)
        COMMANDS[command](other)

    stage.faults.call(step, act, after=after)
    assert runs.drive(35) == ["08:00:10", "08:00:20", "08:00:30", "08:00:40"]
    assert begun


def test_a_fire_time_that_two_members_of_a_file_fire_at_once_has_one_run() -> None:
    with Stage(local=True) as stage:
        queue = stage.connect().queue("mail")
        queue.every("10s", b"", name="crm", start=at(stage, 10))
        other, runs = ScheduleFiring(stage.connect().queue("mail")._home), Run(stage, queue)
        assert runs.drive(8) == []

        def fire_slowly() -> None:
            other.fire(["crm"], ahead_ms=5_000)
            stage.clock.advance(3)

        stage.faults.call("records schedules", fire_slowly)
        assert runs.drive(25) == ["08:00:10", "08:00:20", "08:00:30"]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_each_fire_time_has_one_run_though_a_step_of_its_firing_had_no_answer(
    stage: Stage, queue: Queue, step: str, *, applied: bool
) -> None:
    queue.every("10s", b"", name="crm", start=at(stage, 10))
    runs = Run(stage, queue)
    assert runs.drive(8) == []
    stage.faults.fail(step, applied=applied)
    assert runs.drive(35) == ["08:00:10", "08:00:20", "08:00:30", "08:00:40"]


@pytest.mark.parametrize("step", STEPS)
def test_a_schedule_that_is_removed_and_made_again_as_it_fires_fires_as_the_new_one(
    stage: Stage, queue: Queue, step: str
) -> None:
    queue.every("10s", b"", name="crm", start=at(stage, 10))
    other, runs = stage.connect().queue("mail"), Run(stage, queue)
    assert runs.drive(8) == []

    def make_again() -> None:
        assert other.schedules.remove("crm")
        other.every("10s", b"new", name="crm", start=at(stage, 20))

    stage.faults.call(step, make_again, after=False)
    runs.drive(35)
    news = [one for one in runs.messages if one.body == b"new"]
    assert len(news) == len({time_of(one) for one in news}) >= 2


def test_a_member_that_stands_still_as_it_fires_puts_no_job_of_what_was_removed_meanwhile(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="crm", start=at(stage, 10))
    firing = ScheduleFiring(stage.connect().queue("mail")._home)

    def remove() -> None:
        queue.schedules.remove("crm")
        stage.clock.advance(1)

    stage.faults.call("records schedules", remove)
    firing.fire(["crm"], ahead_ms=10_000)
    assert queue.peek() == []


def test_a_run_that_was_written_by_a_member_that_died_is_not_made_up_for(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="crm", start=at(stage, 10), missed="all")
    stage.faults.fail("write_records schedules")
    with pytest.raises(errors.StoreUnavailable):
        ScheduleFiring(queue._home).fire(["crm"], ahead_ms=10_000)
    assert len(queue.peek()) == 1
    stage.clock.advance(100)
    times = Run(stage, queue).drive(20)
    assert sorted(times) == [
        f"08:0{second // 60}:{second % 60:02}" for second in range(10, 121, 10)
    ]


def test_a_schedule_that_is_resumed_again_fires_no_time_anew_that_a_member_wrote_as_it_died(
    stage: Stage, queue: Queue
) -> None:
    schedule = queue.every("10s", b"", name="crm", start=at(stage, 10)).pause().resume()
    stage.faults.fail("write_records schedules")
    with pytest.raises(errors.StoreUnavailable):
        ScheduleFiring(queue._home).fire(["crm"], ahead_ms=10_000)
    schedule.resume()
    assert Run(stage, queue).drive(25) == ["08:00:10", "08:00:20"]


@pytest.fixture
def in_steps(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Cassandra, a move writes its new row whether or not the old row still exists."""

    def move(moves: Iterable[RowMove], *_: object) -> set[Position]:
        steps.move(stage._store, list(moves), NO_MARKS, NO_TIMES)
        return set()

    monkeypatch.setattr(stage._sqlite, "move", move)


# Shorter and longer than a minute is open to writes.
@pytest.mark.parametrize("seconds", [3, 300])
@pytest.mark.parametrize("step", ["find", "move", "write_records schedules"])
@pytest.mark.usefixtures("in_steps")
def test_a_run_that_two_members_find_written_late_is_one(
    stage: Stage, queue: Queue, step: str, seconds: int
) -> None:
    queue.every("1h", b"", name="crm", start=at(stage, 10))
    one, other = (ScheduleFiring(stage.connect().queue("mail")._home) for _ in range(2))
    stage.faults.call("insert", lambda: stage.clock.advance(300), after=False)

    def fire_too() -> None:
        stage.clock.advance(seconds)
        other.fire(["crm"])

    stage.faults.call(step, fire_too, after=False)
    one.fire(["crm"], ahead_ms=10_000)
    assert Run(stage, queue).drive(10) == ["08:00:10"]
    assert queue.schedules["crm"].fired == 1


@pytest.mark.usefixtures("in_steps")
def test_runs_that_members_of_different_settings_find_written_late_are_one_each(
    stage: Stage,
) -> None:
    queue, names = stage.connect().queue("mail", lanes=8), [f"crm {n}" for n in range(16)]
    for name in names:
        queue.every("1h", b"", name=name, start=at(stage, 10))
    one = ScheduleFiring(stage.connect().queue("mail")._home)
    stage.faults.call("insert", lambda: stage.clock.advance(300), after=False)

    def fire_too() -> None:
        queue.alter(lanes=4)
        ScheduleFiring(stage.connect().queue("mail")._home).fire(names)

    stage.faults.call("move", fire_too, after=False)
    one.fire(names, ahead_ms=10_000)
    stage.clock.advance(5)
    assert len(queue.peek(100)) == len(names)


@pytest.mark.usefixtures("in_steps")
def test_a_run_that_was_written_late_is_cancelled_if_its_schedule_changes_as_it_is_moved(
    stage: Stage, queue: Queue
) -> None:
    queue.alter(history="off")
    queue.every("1h", b"", name="crm", start=at(stage, 10))
    firing = ScheduleFiring(stage.connect().queue("mail")._home)
    stage.faults.call("insert", lambda: stage.clock.advance(300), after=False)
    stage.faults.call("move", lambda: COMMANDS["change"](queue))
    firing.fire(["crm"], ahead_ms=10_000)
    runs = Run(stage, queue)
    assert runs.drive(10) == ["08:00:10"]
    assert [one.body for one in runs.messages] == [b"other"]


def test_a_run_that_is_moved_too_late_is_moved_again_as_the_firing_is_repeated(
    stage: Stage, queue: Queue
) -> None:
    queue.every("1h", b"", name="crm", start=at(stage, 10))
    firing = ScheduleFiring(stage.connect().queue("mail")._home)
    stage.faults.call("insert", lambda: stage.clock.advance(300), after=False)
    stage.faults.call("move", lambda: stage.clock.advance(300), after=False)
    firing.fire(["crm"], ahead_ms=10_000)
    firing.fire(["crm"])
    [run] = queue.peek()
    minute, now_ms = run._row.shard.minute, stage.clock.true_ms()
    assert not queue._home.register.layout.is_late(minute, now_ms)
    assert queue.schedules["crm"].fired == 1


def test_of_runs_that_are_written_late_only_those_of_an_ended_minute_are_moved(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="crm", start=at(stage, 10), missed="all")
    stage.clock.advance(119.999)
    firing = ScheduleFiring(stage.connect().queue("mail")._home)
    # This writes the time as of which the missed runs are put.
    firing.fire(["crm"])
    written: dict[str, Position] = {}

    def places() -> dict[str, Position]:
        return {time_of(one): one._row.position for one in queue.peek(100)}

    def stand_still() -> None:
        written.update(places())
        stage.clock.advance(90)

    stage.faults.call("insert", stand_still)
    firing.fire(["crm"])
    moved = [time for time, place in places().items() if place != written[time]]
    assert len(written) > 1
    assert moved == ["08:00:10"]


def test_a_run_of_a_group_that_is_written_again_keeps_its_place(stage: Stage, queue: Queue) -> None:
    queue.every("10s", b"", name="crm", start=at(stage, 10), overlap="queue")
    stage.faults.fail("write_records schedules")
    with pytest.raises(errors.StoreUnavailable):
        ScheduleFiring(queue._home).fire(["crm"], ahead_ms=10_000)
    [first] = queue.peek()
    # Its minute ends before another member fires it.
    stage.clock.advance(300)
    ScheduleFiring(queue._home).fire(["crm"])
    assert [one.due for one in queue.peek() if one.id == first.id] == [first.due]
    assert Run(stage, queue).drive(20)[0] == "08:00:10"


def test_a_run_of_a_group_that_is_written_late_is_found_by_the_owner_of_its_lane(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.every("1h", b"", name="crm", start=at(stage, 10), overlap="queue")
    reader = stage.connect().queue("mail")

    def read_on() -> None:
        # The reader cannot fire the schedule itself.
        stage.faults.fail("records schedules", times=1_000)
        for _ in range(240):
            # A lane in which rows are seen is read beyond the due.
            reader.put("other", group="g")
            stage.clock.advance(1)
            reader.ack(*reader.receive(10))

    stage.faults.call("insert", read_on, after=False)
    ScheduleFiring(queue._home).fire(["crm"], ahead_ms=10_000)
    [run] = reader.receive(10, wait="2s")
    assert run.headers["schedule"] == "crm"


def test_a_schedule_that_two_make_at_once_is_one(stage: Stage, queue: Queue) -> None:
    other = stage.connect().queue("mail")
    start = at(stage, 10)

    def make_another() -> None:
        other.every("10s", b"", name="crm", start=start)

    stage.faults.call("write_records schedules", make_another, after=False)
    queue.every("10s", b"", name="crm", start=start)
    assert Run(stage, queue).drive(35) == ["08:00:10", "08:00:20", "08:00:30"]


def test_a_change_that_meets_a_removal_finds_no_schedule(stage: Stage, queue: Queue) -> None:
    made, other = queue.every("10s", b"", name="crm"), stage.connect().queue("mail")
    stage.faults.call("note schedules", lambda: other.schedules.remove("crm"))
    with pytest.raises(errors.UnknownSchedule):
        made.change(every="20s")
    assert Run(stage, queue).drive(30) == []


def test_a_schedule_that_is_paused_as_it_ends_leaves_its_name(stage: Stage, queue: Queue) -> None:
    made, runs = queue.every("10s", b"", name="crm", count=1), Run(stage, queue)
    stage.faults.call("note schedules", lambda: runs.drive(10.5))
    with pytest.raises(errors.UnknownSchedule):
        made.pause()
    assert len(runs.messages) == 1
    queue.every("10s", b"", name="crm")
    assert len(runs.drive(60)) == 6


def declare(queue: Queue, revision: int, **options: Any) -> str:
    book, make = queue.schedules._home, options_of.chosen(every="10s")
    assert make is not None
    return declaring.declare(book, make, b"", name="crm", revision=revision, **options).answer


def test_a_schedule_that_code_removes_while_another_changes_it_stays_removed(
    stage: Stage, queue: Queue
) -> None:
    assert declare(queue, 1) == "made"
    other = stage.connect().queue("mail")
    stage.faults.call("records schedules", lambda: other.schedules["crm"].change(body="x"))
    assert declaring.undeclare(queue.schedules._home, "crm") == "removed"
    assert Run(stage, queue).drive(70) == []
    assert declare(queue, 1) == "removed"
    assert declare(queue, 2) == "made"


def test_the_next_member_fires_what_the_first_leaves(stage: Stage, queue: Queue) -> None:
    for number in range(20):
        queue.every("10s", b"", name=f"crm {number}", start=at(stage, 10))
    asleep, awake = Run(stage, queue), Run(stage, stage.connect().queue("mail"))
    for _ in range(50):
        asleep.drive(0.1)
        awake.drive(0.1)
    # It is a member, but fires nothing, as one without the data of a zone.
    asleep.consumer._fire = lambda: 1.0
    for _ in range(40):
        asleep.drive(0.1)
        awake.drive(0.1)
    runs = [*asleep.messages, *awake.messages]
    assert sorted(one.headers["schedule"] for one in runs) == sorted(
        f"crm {number}" for number in range(20)
    )


# What a run says ----------------------------------------------------------------------------------


def test_a_fire_time_that_is_skipped_counts_for_none(stage: Stage, queue: Queue) -> None:
    queue.alter(backoff="15s", backoff_max="15s")
    queue.every("10s", b"", name="slow", overlap="skip", count=2)
    fired = Run(stage, queue, fails=1).drive(65)
    assert fired == ["08:00:10", "08:00:10", "08:00:30"]


def test_members_that_fire_at_once_agree_whether_the_last_run_has_ended(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="slow", overlap="skip")
    one, other = (ScheduleFiring(stage.connect().queue("mail")._home) for _ in range(2))
    stage.clock.advance(10)
    one.fire(["slow"])
    [last] = queue.receive()
    stage.clock.advance(10)

    def end_and_fire() -> None:
        queue.ack(last)
        stage.faults.call("insert", lambda: stage.faults.fail("write_records schedules"))
        with pytest.raises(errors.StoreUnavailable):
            other.fire(["slow"])

    # One finds the last run, and the other fires before that is written.
    stage.faults.call("write_records schedules", end_and_fire, after=False)
    one.fire(["slow"])
    assert len(queue.peek()) + queue.schedules["slow"].skipped == 1


def test_a_run_that_died_while_another_member_was_putting_it_does_not_run_again(
    stage: Stage, queue: Queue
) -> None:
    queue.every("1h", b"", name="slow", overlap="skip", start=at(stage, 10))
    one, other = (ScheduleFiring(stage.connect().queue("mail")._home) for _ in range(2))
    stage.clock.advance(10)

    def fire_and_bury() -> None:
        stage.clock.advance(20)
        other.fire(["slow"])
        [run] = queue.receive()
        queue.bury(run)

    # One has taken the name of the run, and stands still before it writes the row.
    stage.faults.call("insert", fire_and_bury, nth=2, after=False)
    one.fire(["slow"])
    assert queue.receive() == []
    assert len(queue.dead.peek()) == 1


def test_a_schedule_that_is_paused_while_others_are_put_keeps_its_last_run(
    stage: Stage, queue: Queue
) -> None:
    for name in ("a", "b"):
        queue.every("10s", b"", name=name, overlap="cancel")
    firing = ScheduleFiring(stage.connect().queue("mail")._home)
    stage.clock.advance(10)
    firing.fire(["a", "b"])
    before = {message.id for message in queue.peek()}
    assert len(before) == 2
    stage.clock.advance(10)
    stage.faults.call("insert", queue.schedules["b"].pause)
    firing.fire(["a", "b"])
    after = {message.id for message in queue.peek()}
    assert len(after) == 2
    assert {one for one in after if one.startswith("b@")} <= before


def test_a_header_of_a_schedule_may_hold_half_of_a_surrogate_pair(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="crm", headers={"a": "\ud800"})
    assert queue.schedules["crm"].headers == {"a": "\ud800"}
    assert Run(stage, queue).drive(15) == ["08:00:10"]
