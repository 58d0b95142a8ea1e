"""Schedules that are changed, removed and made while they fire, or where a process has died."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from keyed import as_elsewhere
from keyed_steps import row_of

from shardq import Consumer, Message, errors
from shardq.model import ids
from shardq.model.key import bucket_of
from shardq.model.times import iso
from shardq.schedules import declaring
from shardq.schedules import options as options_of
from shardq.stores.tables import KEYS, Change
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue
    from shardq.stores.store import Move


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        as_elsewhere(made)
        yield made


@pytest.fixture
def queue(stage: Stage) -> Queue:
    return stage.connect().queue("mail")


class Runs:
    """A consumer of a queue on a stage, and the runs that it was given."""

    def __init__(self, stage: Stage, queue: Queue) -> None:
        self._stage = stage
        self.messages: list[Message] = []
        self.consumer = Consumer(queue, self.messages.append)

    def drive(self, seconds: float) -> list[str]:
        """Let time pass; the fire times of what was delivered in it."""
        before = len(self.messages)
        self._stage.drive(self.consumer, seconds=seconds)
        return [time_of(one) for one in self.messages[before:]]


def time_of(message: Message, header: str = "schedule-time") -> str:
    return message.headers.get(header, "")[11:19]


def at(stage: Stage, seconds: float) -> str:
    """A time of the stage, ISO 8601."""
    return iso(stage.clock.true_ms() + round(seconds * 1_000))


def lose_tick(stage: Stage, queue: Queue) -> None:
    ticks = stage.connect().queue("mail.schedules")
    queue._home.store.delete([one._row.position for one in ticks.peek()])


# Made again ---------------------------------------------------------------------------------------


def test_a_schedule_that_is_removed_while_it_fires_is_not_taken_for_there(
    stage: Stage, queue: Queue
) -> None:
    start = at(stage, 10)
    queue.every("10s", b"", name="crm", start=start)
    other, runs = stage.connect().queue("mail"), Runs(stage, queue)

    def make_again() -> None:
        assert other.schedules.remove("crm")
        with pytest.raises(errors.StoreUnavailable, match="fired"):
            # Time passes here alone: who fires it does not come to its end.
            other.every("10s", b"", name="crm", start=start)

    stage.faults.call("move", make_again, after=False)
    runs.drive(10.5)
    other.every("10s", b"", name="crm", start=start)
    assert runs.drive(30) == ["08:00:20", "08:00:30", "08:00:40"]


def test_a_schedule_whose_removal_has_begun_may_be_made_again(stage: Stage, queue: Queue) -> None:
    start = at(stage, 10)
    made = queue.every("10s", b"", name="crm", start=start)
    stage.faults.fail("write_records keys", times=100)
    with pytest.raises(errors.StoreUnavailable):
        made.remove()
    stage.faults.heal()
    queue.every("10s", b"", name="crm", start=start)
    runs = Runs(stage, queue)
    assert len(runs.drive(95)) == 9
    assert queue.schedules.get("crm") is not None


@pytest.mark.parametrize(
    ("verb", "nth"), [("notes schedules", 1), ("records keys", 1), ("records keys", 2)]
)
def test_what_is_made_as_a_removal_finds_none_is_removed_or_stays(
    stage: Stage, queue: Queue, verb: str, nth: int
) -> None:
    other, runs = stage.connect().queue("mail"), Runs(stage, queue)
    queue.every("10s", b"", name="crm").remove()
    stage.faults.call(verb, lambda: other.every("10s", b"", name="crm"), nth=nth)
    is_removed = queue.schedules.remove("crm")
    stage.faults.heal()
    assert len(runs.drive(85)) == (0 if is_removed else 8)
    assert [one.name for one in queue.schedules] == ([] if is_removed else ["crm"])


def test_a_schedule_may_be_made_again_as_it_ends(stage: Stage, queue: Queue) -> None:
    queue.every("10s", b"", name="crm", count=1)
    other, runs = stage.connect().queue("mail"), Runs(stage, queue)
    made = []

    def make_again() -> None:
        with pytest.raises(errors.StoreTimeout):
            other.every("10s", b"", name="crm", count=2)
        made.append(True)

    # As its last tick is about to be taken off the list.
    stage.faults.call("note schedules", make_again, nth=1, after=False)
    runs.drive(15)
    assert made
    other.every("10s", b"", name="crm", count=2)
    assert len(runs.drive(40)) == 2


def test_a_schedule_that_was_listed_again_for_another_ends(stage: Stage, queue: Queue) -> None:
    other, runs = stage.connect().queue("mail"), Runs(stage, queue)
    make = partial(other.every, "10s", b"", name="crm", count=1)
    stage.faults.call("note schedules", make, after=False)
    with pytest.raises(errors.KeyTaken):
        queue.every("5s", b"", name="crm")
    assert len(runs.drive(20)) == 1
    # From there its tick would be put again.
    assert len(queue.schedules) == 0


def test_a_schedule_that_is_paused_as_it_ends_leaves_its_name(stage: Stage, queue: Queue) -> None:
    made, runs = queue.every("10s", b"", name="crm", count=1), Runs(stage, queue)

    def fire() -> None:
        # But it cannot be taken off the list.
        stage.faults.fail("note schedules", times=1_000)
        assert len(runs.drive(10.5)) == 1
        stage.faults.heal()

    stage.faults.call("note schedules", fire)
    with pytest.raises(errors.UnknownSchedule):
        made.pause()
    runs.drive(60)
    queue.every("10s", b"", name="crm")
    assert len(runs.drive(60)) == 6


# Under way ----------------------------------------------------------------------------------------


def test_a_schedule_is_there_while_a_command_on_it_is_under_way(stage: Stage, queue: Queue) -> None:
    made = queue.every("10s", b"", name="crm")
    stage.faults.fail("insert")
    with pytest.raises(errors.StoreError):
        made.change(every="20s", start=at(stage, 20))
    assert queue.schedules.get("crm") is not None
    made.change(every="30s", start=at(stage, 30))
    runs = Runs(stage, queue)
    assert len(runs.drive(65)) == 2


# A chain that is broken ---------------------------------------------------------------------------


def test_a_removed_schedule_is_not_put_again_by_who_has_read_the_list_before(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="crm")
    lose_tick(stage, queue)
    other, runs = stage.connect().queue("mail"), Runs(stage, queue)
    stage.clock.advance(60)
    stage.faults.call("notes schedules", lambda: other.schedules.remove("crm"))
    assert runs.drive(30) == []
    assert queue.schedules.get("crm") is None


def test_a_schedule_that_is_made_again_is_not_removed_by_who_has_read_the_list_before(
    stage: Stage, queue: Queue
) -> None:
    made = queue.every("10s", b"", name="crm")
    stage.faults.fail("write_records keys", times=100)
    with pytest.raises(errors.StoreUnavailable):
        made.remove()
    stage.faults.heal()
    other, runs = stage.connect().queue("mail"), Runs(stage, queue)
    stage.faults.call("notes schedules", lambda: other.every("7s", b"", name="crm") and None)
    assert len(runs.drive(30)) >= 3


def declare(queue: Queue, revision: int, **options: Any) -> str:
    book, make = queue.schedules._home, options_of.chosen(every="10s")
    assert make is not None
    return declaring.declare(book, make, b"", name="crm", revision=revision, **options).answer


def test_a_lost_tick_hides_no_newer_declaration_from_older_code_nor_a_pause(
    stage: Stage, queue: Queue
) -> None:
    assert declare(queue, 2, headers={"by": "2"}) == "made"
    queue.schedules["crm"].pause()
    lose_tick(stage, queue)
    assert declare(queue, 1, headers={"by": "1"}) == "older"
    assert declare(queue, 2, headers={"by": "2"}) == "made"
    now = queue.schedules["crm"]
    assert (now.revision, now.state, now.headers) == (2, "paused", {"by": "2"})


def test_a_lost_tick_keeps_no_schedule_from_being_changed_or_removed_by_code(
    stage: Stage, queue: Queue
) -> None:
    declare(queue, 1)
    lose_tick(stage, queue)
    stage.clock.advance(60)
    queue.schedules.get("crm")
    assert declaring.undeclare(queue.schedules._home, "crm") == "removed"
    assert Runs(stage, queue).drive(70) == []
    assert queue.schedules.get("crm") is None


def test_what_another_has_listed_after_a_tick_was_made_does_not_outlive_a_removal_by_code(
    stage: Stage, queue: Queue
) -> None:
    declare(queue, 1)
    book = queue.schedules._home
    there = book.found(["crm"])["crm"].tick.definition
    book.listing.write(replace(there, version=there.version + 1_000_000))
    assert declaring.undeclare(book, "crm") == "removed"
    assert Runs(stage, queue).drive(70) == []
    assert declare(queue, 1) == "removed"


def test_a_damaged_key_keeps_no_other_tick_from_being_put_again(
    stage: Stage, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = bucket_of("crm")
    other = next(name for n in count() if bucket_of(name := f"other {n}") == bucket)
    queue.every("10s", b"", name="crm")
    queue.every("10s", b"", name=other)
    lose_tick(stage, queue)
    store, partition = queue._home.store, ("mail.schedules", bucket)
    live, _ = store.records(KEYS, partition, ["crm"])["crm"]
    damaged = Change(partition, ("crm",), {"live": live}, {"live": live, "state": "?"})
    assert not any(store.write_records(KEYS, [damaged]))
    runs = Runs(stage, queue)
    runs.drive(70)
    assert {one.headers["schedule"] for one in runs.messages} == {other}
    assert "schedule crm of queue mail: " in caplog.text


def test_a_schedule_that_is_made_again_as_a_change_finds_it_removed_stays(
    stage: Stage, queue: Queue
) -> None:
    made, other = queue.every("10s", b"", name="crm"), stage.connect().queue("mail")
    stage.faults.call("note schedules", lambda: other.schedules.remove("crm"))
    # The change has read the list once, and the removal twice.
    make_again = partial(other.every, "7s", b"", name="crm")
    stage.faults.call("notes schedules", make_again, nth=4, after=False)
    with pytest.raises(errors.UnknownSchedule):
        made.change(every="20s")
    assert other.schedules.get("crm") is not None
    assert len(Runs(stage, queue).drive(60)) == 8


def test_a_schedule_whose_tick_another_has_put_for_its_maker_fires_all_that_comes_due(
    stage: Stage, queue: Queue
) -> None:
    other = stage.connect().queue("mail")

    def make_another() -> None:
        with pytest.raises(errors.KeyTaken, match="crm"):
            other.every("7s", b"", name="crm")

    stage.faults.call("note schedules", make_another)
    queue.every("10s", b"", name="crm", start=at(stage, 10))
    stage.clock.advance(25)
    assert Runs(stage, queue).drive(10) == ["08:00:10", "08:00:20", "08:00:30"]


def test_a_schedule_whose_tick_is_lost_while_it_is_changed_comes_back_as_changed(
    stage: Stage, queue: Queue
) -> None:
    made = queue.every("10s", b"", name="crm")
    stage.clock.advance(5)
    stage.faults.call("note schedules", lambda: lose_tick(stage, queue))
    with pytest.raises(errors.StoreUnavailable, match="lost its tick"):
        made.change(every="7s")
    runs = Runs(stage, queue)
    runs.drive(60)
    assert len(runs.drive(70)) == 10


# Copies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late_s", [0, 20])
def test_two_copies_of_a_tick_put_the_very_same_runs(
    stage: Stage, queue: Queue, late_s: int
) -> None:
    queue.every("10s", b"", name="crm")
    ticks = stage.connect().queue("mail.schedules")
    row = row_of(ticks, "crm")
    copy = row._replace(
        id=ids.after(row.id, ids.birth_us(row.id)),
        due_ms=row.due_ms + 700,
        shard=row.shard._replace(lane=ticks._home.register.layout.next_lane(row.shard.lane)),
        first=row.id,
    )
    queue._home.store.insert([copy])
    runs = Runs(stage, queue)
    stage.clock.advance(late_s)
    times = runs.drive(45 - late_s)
    assert sorted(times) == sorted(set(times))
    assert len(times) == 4
    assert len(ticks.peek()) == 1


def test_who_wakes_when_a_tick_was_placed_anew_puts_nothing_of_it(
    stage: Stage, queue: Queue
) -> None:
    queue.every("10s", b"", name="crm", missed="all")
    asleep, awake = Runs(stage, queue), Runs(stage, stage.connect().queue("mail"))
    written: list[Move] = []
    sqlite, move = stage._sqlite, stage._sqlite.move

    def stand_still(moves: Any) -> None:
        written.extend(moves)
        raise errors.StoreUnavailable("it stands still")

    sqlite.move = stand_still  # type: ignore[method-assign]
    asleep.drive(10)
    assert any(one.beside for one in written)
    sqlite.move = move  # type: ignore[method-assign]
    stage.clock.advance(100)
    times = awake.drive(20)
    sqlite.insert(row for one in written for row in one.beside)
    times += awake.drive(60)
    assert len(times) == len(set(times)) > 8


# What a run says ----------------------------------------------------------------------------------


def test_a_run_names_the_one_before_that_was_put(stage: Stage, queue: Queue) -> None:
    tries: list[tuple[str, str]] = []

    def fail_once(message: Message) -> None:
        tries.append((time_of(message), time_of(message, "schedule-previous")))
        if len(tries) == 1:
            raise ValueError("no")

    queue.alter(backoff="25s", backoff_max="25s")
    queue.every("10s", b"", name="slow", overlap="skip", count=3)
    stage.drive(Consumer(queue, fail_once), seconds=65)
    first, again, *later = tries
    assert first == again == ("08:00:10", "")
    assert later == [("08:00:40", "08:00:10"), ("08:00:50", "08:00:40")]


def test_a_fire_time_that_is_skipped_counts_for_none(stage: Stage, queue: Queue) -> None:
    tries: list[str] = []

    def fail_once(message: Message) -> None:
        tries.append(time_of(message))
        if len(tries) == 1:
            raise ValueError("no")

    queue.alter(backoff="15s", backoff_max="15s")
    queue.every("10s", b"", name="slow", overlap="skip", count=2)
    stage.drive(Consumer(queue, fail_once), seconds=65)
    assert tries == ["08:00:10", "08:00:10", "08:00:30"]
