"""The machine's clock is set, forward and back, under queues in SQLite.

What is put afterwards is delivered by the new clock, what was put before as early or as late as
the clock was set, and nothing before its due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from crashing import crash, run_until_crash
from reading import reading

from shardq import Consumer, Observer
from shardq.clock import BootTime
from shardq.connection import Connection
from shardq.records.folded import stored_totals
from shardq.stores.sqlite import SqliteStore
from shardq.stores.tables import LANES
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardq import Queue

DAY = 86_400
YEARS = 365 * DAY
LATE_MS_MAX = 5_000


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(local=True) as made:
        yield made


@pytest.fixture(params=["memory", "file"])
def connect(
    request: pytest.FixtureRequest, stage: Stage, tmp_path: Path
) -> Iterator[Callable[[], Connection]]:
    """Connects as another process of the machine does, to memory or to a file."""
    if request.param == "memory":
        yield stage.connect
        return
    made: list[Connection] = []

    def to_file() -> Connection:
        store = SqliteStore(
            tmp_path / "jobs.db",
            machine_us=stage.clock.true_us,
            boot_time=lambda: BootTime(stage.clock.boot_us(), "stage"),
        )
        store.open()
        made.append(Connection(store, stage.clock.shifted(0), background=False))
        return made[-1]

    yield to_file
    for connection in made:
        connection.close()


def worked(stage: Stage, connection: Connection) -> tuple[Queue, Consumer, Recorder]:
    """A queue whose consumer has been at work for 5 min, and has sealed minutes."""
    queue = connection.queue("mail")
    consumer, seen = reading(stage, queue, threads=1)
    for n in range(30):
        queue.put("work", delay=f"{10 * n}s")
    stage.drive(consumer, seconds=300, stride=0.5)
    assert len(seen) == 30
    assert min(connection._home.store.notes(LANES, ("mail",)).values()) > 0
    return queue, consumer, seen


def late_ms(seen: Recorder) -> dict[str, float]:
    return dict(zip(seen.texts, seen.late_ms, strict=True))


@pytest.mark.parametrize(
    ("connect", "by"),
    [
        *(("memory", by) for by in (-DAY, -600, -60, -0.4, 0.4, 60, 600, DAY)),
        ("file", -600),
        ("file", 60),
    ],
    indirect=["connect"],
)
def test_what_is_put_after_the_clock_was_set_is_delivered_on_time(
    stage: Stage, connect: Callable[[], Connection], by: float
) -> None:
    old, consumer, seen = worked(stage, connect())
    stage.clock.set(by)
    new = connect().queue("mail")
    for queue, name in ((old, "old"), (new, "new")):
        for delay in (0, 5, 100, 200):
            queue.put(f"{name} {delay}", delay=f"{delay}s")
    stage.drive(consumer, seconds=210, stride=0.25)
    late = late_ms(seen)
    assert {f"{name} {delay}" for name in ("old", "new") for delay in (0, 5, 100, 200)} < set(late)
    assert min(late.values()) >= 0
    assert max(late.values()) <= LATE_MS_MAX
    assert len(seen) == 38


def test_what_was_put_before_is_as_late_as_the_clock_was_set_back(stage: Stage) -> None:
    queue, consumer, seen = worked(stage, stage.connect())
    queue.put("before", delay="20s")
    stage.clock.set(-60)
    stage.drive(consumer, seconds=79.9, stride=0.25)
    assert "before" not in seen.texts
    stage.drive(consumer, seconds=0.2)
    assert late_ms(seen)["before"] == pytest.approx(0, abs=1)


def test_what_was_put_before_is_as_early_as_the_clock_was_set_forward(stage: Stage) -> None:
    queue, consumer, seen = worked(stage, stage.connect())
    queue.put("before", delay="10m")
    stage.clock.set(600)
    stage.drive(consumer, seconds=0.5)
    assert "before" in seen.texts


def test_what_a_read_finds_that_the_clock_was_set_back_in_keeps_its_due(stage: Stage) -> None:
    queue, other = (stage.connect().queue("mail", minute="1s", offset="1s") for _ in range(2))
    consumer, seen = reading(stage, queue, threads=1)
    queue._home.listeners.append(consumer._engine.news.on_put)
    stage.drive(consumer, seconds=100, stride=0.5)

    def set_back() -> None:
        stage.clock.set(-30)
        other.put("later", delay="10s")

    # The search for news rereads from the new time up to the old time.
    stage.faults.call("read", set_back)
    queue.put("news")
    stage.drive(consumer, seconds=9.9, stride=0.05)
    assert not seen
    stage.drive(consumer, seconds=0.2, stride=0.05)
    assert seen.texts == ["later"]


def test_news_that_come_as_the_clock_is_set_back_are_not_looked_for_in_all_the_time_between(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="1s")
    consumer, seen = reading(stage, queue, threads=1)
    queue._home.listeners.append(consumer._engine.news.on_put)
    stage.drive(consumer, seconds=30, stride=0.5)
    stage.faults.call("read", lambda: stage.clock.set(-DAY))
    queue.put("news")
    statements: list[str] = []
    connection = stage._sqlite._database._writer.connection
    connection.set_trace_callback(statements.append)
    stage.drive(consumer, seconds=0)
    assert 0 < len(statements) < 1_000
    assert not seen


def test_an_ack_is_stored_at_once_though_the_clock_was_set_back_meanwhile(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer, seen = reading(stage, queue, threads=1)
    queue.put("x")
    engine = consumer._engine
    engine.step()
    one = engine.ready.take()
    assert one is not None
    stage.clock.set(-600)
    engine.step()
    consumer._deliver(one)
    engine.step()
    assert seen.texts == ["x"]
    assert stage.is_empty(queue)


def test_a_reader_that_begins_later_finds_what_lies_behind_the_seals_of_the_old_clock(
    stage: Stage, connect: Callable[[], Connection]
) -> None:
    _, consumer, _ = worked(stage, connect())
    consumer.close()
    stage.clock.set(-600)
    queue = connect().queue("mail")
    queue.put("after")
    # Its minute is ended and its offset over by now: the register says that it is sealed.
    stage.clock.advance(300)
    later, seen = reading(stage, queue)
    stage.drive(later, seconds=1)
    assert seen.texts == ["after"]


def test_nothing_hides_before_the_minute_in_which_its_queue_was_made(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.clock.set(-DAY)
    queue.put("after")
    stage.clock.advance(2 * DAY)
    consumer, seen = reading(stage, stage.connect().queue("mail"))
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["after"]


def test_a_row_that_a_stopped_process_wrote_behind_a_seal_is_found_at_once(stage: Stage) -> None:
    queue, consumer, seen = worked(stage, stage.connect())
    other = stage.connect().queue("mail")
    # It has looked at the clock, was stopped for ten minutes, and died before it made that good.
    row = other.put("late", delay="1s")._row
    stage._store.delete([row.position])
    stage.drive(consumer, seconds=600, stride=0.5)
    stage._store.insert([row])
    stage.drive(consumer, seconds=0.5)
    assert seen.texts[30:] == ["late"]
    assert queue.depth(exact=True).total == 0


@pytest.mark.parametrize("connect", ["memory", "file"], indirect=True)
@pytest.mark.parametrize("dies", ["before", "after"])
def test_what_killed_its_process_by_the_old_clock_is_recorded_before_it_kills_the_next(
    stage: Stage, connect: Callable[[], Connection], dies: str
) -> None:
    """The consumer has the message until the clock is set back, or a while longer."""
    queue = connect().queue("mail", lanes=1, bands=1)
    queue.put("poison")
    if dies == "before":
        assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
        stage.clock.set(-40)
    else:
        late = reading(stage, queue, threads=1)[0]._engine
        late.step()
        assert late.ready.take() is not None
        stage.clock.set(-40)
        for _ in range(7):
            # It renews its leases, and then stands still for ever.
            stage.clock.advance(1)
            late.step()
    stage.clock.advance(12)
    # By the new clock the message is not due yet when its shard is taken.
    second = Consumer(connect().queue("mail"), crash)
    assert run_until_crash(stage, second, seconds=40)
    [message] = queue.peek()
    assert message.attempt == 1


# Years --------------------------------------------------------------------------------------------


def test_from_1970_to_now_is_a_leap_not_a_walk(
    stage: Stage, connect: Callable[[], Connection]
) -> None:
    now_s = stage.clock.true_us() / 1e6
    stage.clock.set(DAY - now_s)
    connection = connect()
    queue, consumer, seen = worked(stage, connection)
    for hours in range(3):
        queue.put("before", delay=f"{hours}h")
    stage.clock.set(now_s - DAY)
    connect().queue("mail").put("after")
    counters = connection._home.store.counters
    reads = counters["reads"]
    stage.drive(consumer, seconds=5)
    assert seen.texts[30:] == ["before"] * 3 + ["after"]
    assert counters["reads"] - reads < 1_000
    # Minutes are sealed as far as by any other clock, so that no reader walks there later.
    newest = queue._home.register.layout.newest_sealable(stage.clock.true_ms())
    assert set(connection._home.store.notes(LANES, ("mail",)).values()) == {newest}
    reads = counters["reads"]
    stage.drive(consumer, seconds=60, stride=0.25)
    assert counters["reads"] - reads < 2_000
    assert not any(name.startswith("reads:sweep sealed") for name in counters)


def test_a_queue_can_be_made_in_the_first_seconds_of_1970(stage: Stage) -> None:
    now_s = stage.clock.true_us() / 1e6
    stage.clock.set(1 - now_s)
    queue = stage.connect().queue("mail")
    consumer, seen = reading(stage, queue)
    queue.put("x")
    stage.drive(consumer, seconds=1)
    assert seen.texts == ["x"]
    assert queue.audit().total.acked == 1


def test_to_2100_and_back_costs_what_the_steps_cost(stage: Stage) -> None:
    queue, consumer, seen = worked(stage, stage.connect())
    stage.clock.set(73 * YEARS)
    queue.put("2100")
    stage.drive(consumer, seconds=5)
    stage.clock.set(-73 * YEARS)
    queue.put("back", delay="3s")
    stage.drive(consumer, seconds=5)
    assert seen.texts[30:] == ["2100", "back"]
    assert max(seen.late_ms[30:]) <= LATE_MS_MAX


# What goes by the clock beside deliveries ---------------------------------------------------------


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("items", [["one"], [b"many"], [{"body": "mapped"}]])
def test_what_is_put_after_a_purge_and_a_set_back_is_delivered(
    stage: Stage, is_old: bool, items: list[object]
) -> None:
    queue, consumer, seen = worked(stage, stage.connect())
    stage.connect().queue("mail").purge()
    stage.clock.set(-600)
    putting = queue if is_old else stage.connect().queue("mail")
    if items == ["one"]:
        putting.put("one")
    else:
        putting.put_many(items)
    stage.drive(consumer, seconds=10)
    assert len(seen) == 31


def test_a_purge_reaches_what_a_process_put_that_lived_through_the_set_back(stage: Stage) -> None:
    queue, consumer, seen = worked(stage, stage.connect())
    stage.clock.set(-600)
    queue.put("purged", delay="10s")
    stage.clock.advance(1)
    stage.connect().queue("mail").purge()
    stage.drive(consumer, seconds=20)
    assert "purged" not in seen.texts
    assert stage.is_empty(queue)


def test_an_iterable_under_which_the_clock_is_set_back_is_stored_as_it_comes(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stored: list[str] = []

    def bodies() -> Iterator[bytes]:
        yield b"first"
        stage.clock.set(-600)
        stage.clock.advance(1.1)
        yield b"second"
        assert len(stored) == 2
        yield b"third"

    assert queue._producer.put_many(bodies(), stored.append) == 3


def test_totals_of_an_earlier_hour_are_not_written_over(stage: Stage, queue: Queue) -> None:
    for by in (3_600, -3_600, -3_600, 0):
        queue.put("x")
        stage.clock.advance(10)
        # Stores what was counted, and turns to the row of the next hour where that has begun.
        queue._home.stats.store()
        stage.clock.set(by)
    assert stored_totals(stage._store, "mail").totals.put == 4


def test_what_is_due_is_counted_and_lags_whatever_the_seals_say(
    stage: Stage, connect: Callable[[], Connection]
) -> None:
    connection = connect()
    _, consumer, _ = worked(stage, connection)
    observer = Observer(connection, ["mail"])
    observer.look()
    consumer.close()
    stage.clock.set(-600)
    queue = connect().queue("mail")
    queue.put("after")
    for seconds in (10, 300):
        stage.clock.advance(seconds)
        assert queue.depth().ready == 1
        assert queue.depth(exact=True).ready == 1
        assert [message.text for message in queue.peek()] == ["after"]
        assert observer.look()[0].lag_ms >= seconds * 1_000


@pytest.mark.parametrize("minute", ["60s", "1s", "1h"])
def test_a_queue_that_was_made_again_is_read_at_its_own_minutes_alone(
    stage: Stage, minute: str
) -> None:
    queue, consumer, _ = worked(stage, stage.connect())
    queue.put_many({"body": "former", "delay": f"{n}m"} for n in range(7))
    consumer.close()
    stage.clock.advance(1)
    queue.drop()
    stage.clock.advance(600)
    again = stage.connect().queue("mail", minute=minute)
    assert again.depth().ready == 0
    consumer, seen = reading(stage, again)
    stage.drive(consumer, seconds=300, stride=0.5)
    stage.clock.set(-120)
    again.put("now")
    looks = stage.faults.calls.get("occupied", 0)
    stage.drive(consumer, seconds=10)
    assert seen.texts == ["now"]
    assert stage.faults.calls.get("occupied", 0) - looks < 20
