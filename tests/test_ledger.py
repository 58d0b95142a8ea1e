"""The ledger: what is recorded when, and that no message whose end is recorded comes again."""

from __future__ import annotations

import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Bury, Consumer, Message, Queue, Snooze
from shardq.errors import StoreFull, StoreRefused, StoreTimeout, StoreUnavailable
from shardq.model.ids import RowIds, birth_us, row_ids
from shardq.model.message import Row, moved
from shardq.model.times import moment_of
from shardq.records.ledger import entry_of
from shardq.stores.store import Entry, Mark, RowMove
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from datetime import datetime


def marks_of(stage: Stage, queue: Queue) -> list[Mark]:
    """All that the ledger says of a queue."""
    minute = stage.clock.now_us() // 60_000_000
    return list(stage._store.history(queue.name, range(minute - 600, minute + 1)))


def fate_of(stage: Stage, queue: Queue, row: Row) -> tuple[str | None, int]:
    [mark] = stage._store.recorded([entry_of(row)])
    return mark.fate, mark.attempt


def rows_of(queue: Queue) -> list[Row]:
    return [row for page in queue._rows() for row in page]


# What is recorded ---------------------------------------------------------------------------------


def test_a_put_is_recorded_with_its_name_and_the_due_it_asked_for(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    named = queue.put("a", delay="1h", id="order-7")
    queue.put_many([{"body": "b", "due": "2020-01-01T00:00Z"}, "c"])
    told = {mark.entry.id: mark for mark in marks_of(stage, queue)}
    assert told.keys() == {row.id for row in rows_of(queue)}
    assert told[named._row.id] == Mark(entry_of(named._row), named.due_ms, "order-7")
    assert {mark.due_ms for mark in told.values()} == {row.order[0] for row in rows_of(queue)}


def test_a_put_of_a_job_is_recorded_with_its_task_here_and_among_the_dead(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("{}", headers={"task": "app.welcome", "kind": "a"})
    queue.put("{}", id="order-7", headers={"task": "x" * 300})
    queue.put("{}", headers={"kind": "task"})
    queue.put("{}", headers={"task": "half \ud800"})

    def die(_message: object) -> None:
        raise Bury("no")

    stage.drain(queue, Consumer(queue, die))
    tasks = sorted([record.task for record in queue.history()], key=str)
    assert tasks == [None, "app.welcome", r"half \ud800", "x" * 256]
    assert sorted([record.task for record in queue.dead.history()], key=str) == tasks
    queue.redrive()
    [*_, again] = sorted(queue.history("order-7"), key=lambda record: record.entered)
    assert (again.task, again.fate) == ("x" * 256, None)


def test_each_end_is_recorded_with_the_deliveries_until_then(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=2, backoff="1s")

    def handle(message: object) -> None:
        text = message.text
        if text == "failing" or (text == "twice" and message.attempt == 1):
            raise ValueError
        if text == "bad":
            raise Bury("no")
        if text == "later" and stage.clock.now_us() < later_us:
            raise Snooze("5s")

    later_us = stage.clock.now_us() + 3_000_000
    sent = {text: queue.put(text)._row for text in ("once", "twice", "failing", "bad", "later")}
    consumer = Consumer(queue, handle)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=1)
    told = {text: fate_of(stage, queue, row) for text, row in sent.items()}
    assert told == {
        "once": ("acked", 1),
        "twice": ("acked", 2),
        "failing": ("dead", 2),
        "bad": ("dead", 1),
        "later": ("acked", 1),
    }
    assert {mark.member for mark in marks_of(stage, queue)} == {consumer.member}
    assert all(mark.fate is None for mark in marks_of(stage, queue.dead))
    assert len(marks_of(stage, queue.dead)) == 2


def test_each_failed_attempt_is_recorded_with_its_begin_run_time_and_error(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", attempts=3, backoff="10s")
    begins: dict[str, list[datetime]] = defaultdict(list)

    def handle(message: Message) -> None:
        begins[message.text].append(moment_of(stage.clock.now_ms()))
        stage.clock.advance(0.25 * message.attempt)
        if message.text == "good" and message.attempt == 2:
            return
        if message.text == "later" and len(begins["later"]) == 1:
            raise Snooze("1s")
        if message.text == "bad":
            raise Bury("no such address")
        raise ConnectionError(f"refused, attempt {message.attempt} " + 2_000 * "x")

    for text in ("good", "bad", "later"):
        queue.put(text, id=text, group="g" if text == "later" else None)
    consumer = Consumer(queue, handle)
    for _ in range(60):
        stage.drive(consumer, seconds=1)
    failed = {text: next(queue.history(text)).failed for text in begins}
    assert [one.attempt for one in failed["good"]] == [1]
    assert [one.attempt for one in failed["later"]] == [1, 2, 3]
    assert [(one.attempt, one.error) for one in failed["bad"]] == [(1, "no such address")]
    # A run that was snoozed has not failed.
    begun = {"good": begins["good"][:1], "bad": begins["bad"], "later": begins["later"][1:]}
    assert {text: [one.began for one in of] for text, of in failed.items()} == begun
    for one in (one for of in failed.values() for one in of):
        assert one.run_ms == 250 * one.attempt
    for one in (*failed["good"], *failed["later"]):
        assert one.error.startswith(f"ConnectionError: refused, attempt {one.attempt} xxx")
        assert len(one.error) == 1_000


def test_an_attempt_whose_record_fails_is_recorded_once_with_its_retry(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=3, backoff="1s")
    queue.put("a", id="a")

    def fail(_message: Message) -> None:
        raise ConnectionError("refused")

    consumer = Consumer(queue, fail)
    stage.faults.fail("record", times=3)
    for _ in range(20):
        stage.drive(consumer, seconds=1)
    [record] = queue.history("a")
    assert [one.attempt for one in record.failed] == [1, 2, 3]
    assert (record.fate, record.attempt, queue.totals().retried) == ("dead", 3, 2)


def test_an_attempt_that_a_receipt_fails_is_recorded_without_its_begin(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=2, backoff="1s", dead="off")
    queue.put("a", id="a")
    for reason in ("no route", ""):
        [message] = queue.receive(visibility="30s")
        stage.clock.advance(5)
        queue.retry(message, reason=reason)
        stage.clock.advance(5)
    [record] = queue.history("a")
    assert [(one.attempt, one.began, one.run_ms, one.error) for one in record.failed] == [
        (1, None, None, "no route"),
        (2, None, None, "retried without a reason"),
    ]
    assert [one.ended for one in record.failed] < [record.ended] * 3


def test_ends_by_receipt_are_recorded(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    rows = [queue.put(f"{n}")._row for n in range(5)]
    acked, buried, failed, _unheard = queue.receive(max=4, visibility="5s", wait="1s")
    queue.ack(acked)
    queue.bury(buried.receipt)
    queue.retry(failed, reason="no")
    assert queue.cancel(next(m for m in queue.peek(9) if m._row.claim is None))
    stage.clock.advance(6)
    assert queue.receive(wait="1s") == []
    told = [fate_of(stage, queue, row) for row in rows]
    assert told == [("acked", 1), ("dead", 1), ("dead", 1), ("dead", 1), ("cancelled", 0)]
    assert stage.is_empty(queue)


@pytest.mark.parametrize("visited", [False, True])
def test_purged_messages_end_so_when_they_are_deleted(stage: Stage, visited: bool) -> None:
    queue = stage.connect().queue("mail")
    rows = [queue.put("a", delay=f"{n}s")._row for n in range(3)]
    stage.clock.advance(0.5)
    queue.purge()
    if visited:
        assert queue.check_all().purged == 3
    else:
        stage.drain(queue, Consumer(queue, Recorder(stage.clock)))
    assert [fate_of(stage, queue, row) for row in rows] == [("purged", 0)] * 3


def test_a_redrive_asks_the_history_of_what_it_chooses_and_of_nothing_else(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(5):
        queue.bury(queue.put(f"{n}"))
    asked = stage.faults.calls.get("recorded", 0)
    assert queue.redrive(where=lambda message: message.text == "none") == 0
    assert stage.faults.calls.get("recorded", 0) == asked
    assert queue.redrive(where=lambda message: message.text == "3") == 1
    assert stage.faults.calls["recorded"] > asked


@pytest.mark.usefixtures("in_steps")
def test_a_limited_redrive_passes_over_what_one_that_crashed_has_put_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(3):
        queue.bury(queue.put(f"{n}"))
        stage.clock.advance(1)
    stage.faults.fail("delete", times=100)
    with pytest.raises(StoreTimeout):
        queue.redrive(1)
    stage.faults.heal()
    assert queue.redrive(1) == 1
    assert sorted(row.body for row in rows_of(queue)) == [b"0", b"1"]
    assert [row.body for row in rows_of(queue.dead)] == [b"2"]


def test_a_queue_without_a_history_never_asks_for_the_ledger(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="off", attempts=1)
    queue.put_many([f"{n}" for n in range(20)])
    queue.cancel(queue.put("x", delay="1h"))

    def handle(message: object) -> None:
        if message.text == "7":
            raise ValueError

    stage.drain(queue, Consumer(queue, handle))
    queue.redrive()
    queue.purge()
    queue.check_all()
    assert not stage.faults.calls.keys() & {"record", "recorded", "history"}


def test_what_a_poll_reads_for_the_first_time_is_not_looked_up(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer = Consumer(queue, Recorder(stage.clock))
    queue.put_many([f"{n}" for n in range(300)])
    stage.drive(consumer, seconds=1)
    for n in range(300):
        queue.put(f"{n}", delay=f"{n * 10}ms")
    stage.drain(queue, consumer)
    assert "recorded" not in stage.faults.calls


def test_the_place_of_a_record_follows_from_its_first_row_alone(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    row = queue.put("a")._row
    copy = in_another_lane(row)
    assert entry_of(copy) == entry_of(row)
    # Any language can compute the partition so, by RFC 9562.
    known = uuid.UUID(bytes=row.id)
    born_us = (known.time - 0x01B21DD213814000) // 10
    part = (born_us // 50_000 + known.node) % 16
    assert entry_of(row).place == ("mail", born_us // 60_000_000, part)


def test_what_one_process_puts_at_once_is_recorded_in_few_places_and_in_all_over_a_second() -> None:
    made, other = RowIds(), RowIds()
    begin_us = 1_700_000_000_000_000
    places = [
        [Entry("mail", one.next(begin_us + n * 100)).place for n in range(10_000)]
        for one in (made, other)
    ]
    assert len(set(places[0][:500])) == 1
    assert len(set(places[0])) == 16
    apart = {a != b for a, b in zip(*places, strict=True)}
    assert len(apart) == 1


# A change of lanes --------------------------------------------------------------------------------


def in_another_lane(row: Row) -> Row:
    shard = row.shard._replace(lane=(row.shard.lane + 1) % 4)
    row_id = row_ids.next(birth_us(row.id) + 1)
    return moved(row, shard, row.due_ms, row_id, attempt=row.attempt, claim=None)


def move_to_another_lane(queue: Queue, message: Message) -> None:
    row = message._row
    queue._home.store.move([RowMove(row.position, in_another_lane(row))])


@on_each_store
def test_a_message_that_moves_to_another_lane_keeps_its_books(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), lanes=4, history="1d")
    # Late enough to be moved before they are due, on a busy machine too.
    stays, moves, waits = (queue.put(text, delay=text) for text in ("2s", "3s", "1h"))
    move_to_another_lane(queue, moves)
    move_to_another_lane(queue, waits)
    seen: list[str] = []
    consumer = Consumer(queue, lambda message: seen.append(message.text), threads=1)
    until_us = world.clock.now_us() + 60_000_000
    while len(seen) < 2 and world.clock.now_us() < until_us:
        world.pass_time(consumer.step())
    consumer.close()
    assert seen == ["2s", "3s"]
    audit = queue.audit()
    assert (audit.total.lost, audit.total.unrecorded, audit.misfits) == (0, 0, [])
    assert audit.line() == f"{queue.name} balances: 3 put = 2 acked + 1 waiting."
    assert {one.id: one.fate for one in queue.history()} == {
        stays.id: "acked",
        moves.id: "acked",
        waits.id: None,
    }
    [record] = queue.history(moves.id)
    assert (record.due, record.fate, record.attempt) == (moves.due, "acked", 1)
    # A replica that has missed the move and the ack.
    assert queue._settler.ledger.finished([moves._row]) == {moves._row.id}


def test_what_ended_in_another_lane_is_dropped_where_its_first_row_comes_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=4)
    message = queue.put("a", delay="1s")
    move_to_another_lane(queue, message)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=3)
    assert seen.texts == ["a"]
    stage._store.insert([message._row])
    stage.drive(consumer, seconds=40)
    assert seen.texts == ["a"]
    assert queue.totals().dropped == 1
    assert queue.audit().is_even


# Crashes in between -------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreTimeout("?"), StoreFull("full")])
def test_a_put_whose_record_fails_is_maybe_put_and_can_be_repeated(
    stage: Stage, error: Exception
) -> None:
    queue = stage.connect().queue("mail")
    # A put is repeated once.
    stage.faults.fail("record", times=2, error=error)
    with pytest.raises(StoreTimeout) as caught:
        queue.put("a")
    assert len(rows_of(queue)) == 1
    assert marks_of(stage, queue) == []
    queue.put(caught.value.messages[0])
    assert [mark.entry for mark in marks_of(stage, queue)] == [entry_of(rows_of(queue)[0])]
    stage.faults.fail("record", error=error)
    with pytest.raises(StoreTimeout) as caught:
        queue.put_many(["b", "c"])
    assert queue.put_many(caught.value.messages) == 2
    assert len(rows_of(queue)) == len(marks_of(stage, queue)) == 3


def test_a_put_whose_record_is_refused_says_that_its_message_is_stored(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.faults.fail("record", error=StoreRefused("no right to write"))
    with pytest.raises(StoreRefused) as caught:
        queue.put("a")
    assert caught.value.__notes__ == ["Done before it: the messages are stored."]
    assert len(rows_of(queue)) == 1


@pytest.mark.parametrize("unclean", [True, False])
def test_a_row_left_between_record_and_delete_is_dropped_not_delivered(
    stage: Stage, unclean: bool
) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many([f"{n}" for n in range(50)])
    seen, again = Recorder(stage.clock), Recorder(stage.clock)
    crashed = Consumer(queue, seen)
    stage.faults.fail("delete", times=1_000)
    stage.drive(crashed, seconds=2)
    assert len(seen) == 50
    assert {mark.fate for mark in marks_of(stage, queue)} == {"acked"}
    stage.faults.heal()
    assert not stage.is_empty(queue)
    if unclean:
        other = Consumer(stage.connect().queue("mail"), again)
        stage.drain(queue, other)
        stage.drive(other, seconds=2)
        assert queue.totals().dropped == 50
        other.close()
    else:
        stage.drain(queue, crashed)
    assert again.texts == []
    assert len(seen) == 50


@pytest.mark.parametrize("minutes", [0.01, 1, 6, 40])
def test_a_zombie_of_a_settled_message_is_dropped_wherever_it_is(
    stage: Stage, minutes: float
) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="2s")
    rows = [queue.put(f"{n}")._row for n in range(5)]
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=minutes)
    assert len(seen) == 5
    # A replica that has missed the deletes, and whose hints are lost.
    stage._store.insert(rows)
    stage.drive(consumer, seconds=400, until=lambda: stage.is_empty(queue))
    consumer.close()
    assert len(seen) == 5
    assert stage.is_empty(queue)
    assert queue.totals().dropped == 5
    assert queue.audit().is_even


def test_zombies_that_a_new_consumer_finds_in_its_backlog_are_dropped(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    rows = [queue.put(f"{n}")._row for n in range(5)]
    first = Consumer(queue, Recorder(stage.clock))
    stage.drain(queue, first)
    first.close()
    stage._store.insert(rows)
    queue.put("new", delay="1h")
    stage.clock.advance(3 * 3_600)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert seen.texts == ["new"]


def test_a_visit_drops_zombies_instead_of_moving_them(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    rows = [queue.put(f"{n}")._row for n in range(3)]
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=600, stride=0.5)
    stage._store.insert(rows)
    late = queue.put("late")
    stage._store.insert([late._row._replace(shard=rows[0].shard, due_ms=rows[0].due_ms)])
    stage._store.delete([late._row.position])
    found = queue.check_all()
    assert (found.dropped, found.moved) == (3, 1)
    assert [row.message_id for row in rows_of(queue)] == [late.id]


@pytest.mark.parametrize("verb", ["ack", "cancel"])
def test_an_end_whose_delete_fails_is_maybe_applied_and_stays_so(stage: Stage, verb: str) -> None:
    queue = stage.connect().queue("mail")
    queue.put("a")
    [message] = queue.receive(visibility="30s", wait="1s")
    stage.faults.fail("delete")
    with pytest.raises(StoreTimeout, match="as the ledger says"):
        getattr(queue, verb)(message)
    assert len(rows_of(queue)) == 1
    stage.clock.advance(31)
    assert queue.receive(wait="5s") == []
    assert stage.is_empty(queue)
    assert queue.audit().is_even


def test_what_a_crashed_consumer_acked_does_not_come_back_to_one_of_its_name(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(f"{n}" for n in range(5))
    first = Consumer(queue, Recorder(stage.clock), member="worker")
    stage.faults.fail("delete", times=100)
    stage.drive(first, seconds=3)
    assert [mark.fate for mark in marks_of(stage, queue)] == ["acked"] * 5
    stage.faults.heal()
    again = Recorder(stage.clock)
    # The first one is not closed, as after kill -9.
    stage.clock.advance(30)
    stage.drive(Consumer(stage.connect().queue("mail"), again, member="worker"), seconds=10)
    assert again.texts == []
    assert stage.is_empty(queue)


def test_an_end_whose_record_fails_is_not_applied(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("a")
    [message] = queue.receive(visibility="30s", wait="1s")
    stage.faults.fail("record")
    with pytest.raises(StoreUnavailable):
        queue.ack(message)
    assert len(rows_of(queue)) == 1
    queue.ack(message)
    assert stage.is_empty(queue)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("verb", ["insert", "record", "delete"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_burial_that_fails_between_its_steps_never_loses_the_message(
    stage: Stage, verb: str, nth: int, applied: bool
) -> None:
    queue = stage.connect().queue("mail", attempts=1)

    def handle(_message: object) -> None:
        raise ValueError

    message = queue.put("a")
    consumer = Consumer(queue, handle)
    stage.faults.fail(verb, nth=nth, applied=applied, times=1_000)
    stage.drive(consumer, seconds=2)
    stage.faults.heal()
    # The consumer has crashed; another takes over.
    other = Consumer(stage.connect().queue("mail"), handle)
    stage.drain(queue, other)
    stage.drive(other, seconds=1)
    assert {dead.id for dead in queue.dead.peek(10)} == {message.id}
    assert queue.audit().is_even
    assert queue.dead.audit().is_even


@pytest.mark.usefixtures("in_steps")
def test_a_burial_is_not_recorded_before_the_dead_letter_is_there(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    message = queue.put("a")
    stage.faults.fail("insert")
    with pytest.raises(StoreUnavailable):
        queue.bury(message)
    assert fate_of(stage, queue, message._row) == (None, 0)
    stage.faults.fail("delete")
    with pytest.raises(StoreTimeout):
        queue.bury(message)
    assert fate_of(stage, queue, message._row) == ("dead", 0)
    assert [dead.id for dead in queue.dead.peek()] == [message.id]


@pytest.mark.usefixtures("in_steps")
def test_a_redrive_that_crashed_is_repeated_without_a_second_copy(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(5):
        queue.bury(queue.put(f"{n}"))
    stage.faults.fail("delete", times=100)
    with pytest.raises(StoreTimeout):
        queue.redrive()
    stage.faults.heal()
    assert len(rows_of(queue)) == len(rows_of(queue.dead)) == 5
    assert not queue.dead.audit().is_even
    queue.bury(queue.put("another"))
    assert queue.redrive() == 1
    assert sorted(row.body for row in rows_of(queue)) == [b"0", b"1", b"2", b"3", b"4", b"another"]
    assert stage.is_empty(queue.dead)
    assert queue.dead.audit().line() == "mail.dead balances: 6 put = 6 forwarded."


# The setting --------------------------------------------------------------------------------------


def test_the_dead_letter_queue_keeps_its_history_as_long(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="3d")
    assert queue.dead.settings.history_ms == 3 * 86_400_000
    queue.alter(history="off")
    stage.clock.advance(6)
    assert stage.connect().queue("mail").dead.settings.history_ms == 0


def test_a_history_is_turned_on_and_off_while_the_queue_runs(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="off")
    consumer = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))
    before = queue.put("before", delay="30s")
    queue.alter(history="1d")
    stage.drive(consumer, seconds=10, stride=0.1)
    during = [queue.put("during", delay=delay) for delay in ("1s", "60s")]
    stage.drive(consumer, seconds=30, stride=0.1)
    assert fate_of(stage, queue, before._row)[0] == "acked"
    assert queue.audit().line() == "mail balances: 2 put = 1 acked + 1 waiting."
    queue.alter(history="off")
    stage.drive(consumer, seconds=60, stride=0.1)
    assert stage.is_empty(queue)
    assert fate_of(stage, queue, during[1]._row)[0] is None
    # Messages that ended while the history was off must not look lost once it is on again.
    queue.alter(history="2d")
    stage.drive(consumer, seconds=10, stride=0.1)
    queue.put("after")
    stage.drive(consumer, seconds=10, stride=0.1)
    assert queue.audit().line() == "mail balances: 1 put = 1 acked."


def test_a_retention_that_changes_never_makes_messages_look_lost(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="30d")
    consumer = Consumer(queue, Recorder(stage.clock))
    queue.put("a")
    queue.alter(history="1h")
    stage.drive(consumer, seconds=5)
    stage.clock.advance(7_200)
    queue.put("b", delay="1d")
    queue.alter(history="60d")
    # The record of the first put outlives that of its end.
    assert [mark.fate for mark in marks_of(stage, queue)].count(None) >= 1
    assert queue.audit().line() == "mail balances: 1 put = 1 waiting."


def test_a_span_within_a_minute_is_kept_to(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for name in ("one", "two", "three"):
        stage.clock.advance(2)
        queue.put(name, id=name, delay="1h")
    assert [one.id for one in queue.history(since="3s")] == ["two", "three"]
    assert [one.id for one in queue.history(until="1s")] == ["one", "two"]
    assert [one.id for one in queue.history("one", since="3s")] == []
    made = queue.put("found at once", delay="1h")
    stage.clock.advance(2)
    assert [one.id for one in queue.history(made.id, since="0s")] == [made.id]


def test_what_a_purge_has_reached_is_told_as_purged_before_its_row_is_deleted(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    far = queue.put("far", delay="1h")
    stage.clock.advance(1)
    queue.purge()
    stage.clock.advance(1)
    later = queue.put("later", delay="1h")
    told = {one.id: (one.fate, one.ended) for one in queue.history()}
    assert told == {far.id: ("purged", None), later.id: (None, None)}
    assert queue.audit().line() == "mail balances: 2 put = 1 purged + 1 waiting."
    stage.clock.advance(3_700)
    stage.drain(queue, Consumer(queue, lambda message: None))
    [record] = queue.history(far.id)
    assert record.fate == "purged"
    assert record.ended is not None


def test_a_message_s_record_is_found_by_its_id_and_by_when_it_entered(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    acked, named = queue.put("acked"), queue.put("failing", id="order-7")

    def handle(message: Message) -> None:
        if message.text == "failing":
            raise ValueError

    consumer = Consumer(queue, handle)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=3)
    [record] = queue.history(acked.id)
    assert (record.id, record.fate, record.attempt) == (acked.id, "acked", 1)
    assert (record.due, record.member) == (acked.due, consumer.member)
    assert record.entered <= record.ended
    [dead] = queue.history("order-7")
    assert (dead.fate, dead.due) == ("dead", named.due)
    # The message entered the dead-letter queue under its name.
    [there] = queue.dead.history("order-7")
    assert (there.fate, there.ended) == (None, None)
    assert [one.id for one in queue.history()] == [acked.id, "order-7"]
    assert list(queue.history(until="1h")) == []
    assert list(queue.history("00000000-0000-1000-8000-000000000000")) == []


def test_the_history_of_a_key_is_that_of_the_message_that_has_it_until_that_has_ended(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    former = queue.put("x", key="order-7")
    assert [record.id for record in queue.history("order-7")] == [former.id]
    queue.cancel(key="order-7")
    assert list(queue.history("order-7")) == []
    assert [record.fate for record in queue.history(former.id)] == ["cancelled"]
    sent = queue.put("x", key="order-7")
    queue.bury(*queue.receive(1, wait="1s"))
    assert [(one.id, one.fate) for one in queue.history("order-7")] == [(sent.id, "dead")]


def test_the_history_of_a_message_that_was_put_back_tells_both_its_lives(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    sent = queue.put("x")
    queue.bury(*queue.receive(1, wait="1s"))
    stage.clock.advance(90)
    queue.redrive()
    [again] = queue.receive(1, wait="1s")
    assert [record.fate for record in queue.history(sent.id)] == ["dead", None]
    queue.ack(again)
    assert [record.fate for record in queue.history(sent.id)] == ["dead", "acked"]
    assert {record.id for record in queue.history()} == {sent.id}


@pytest.mark.parametrize("history", ["7d", "off"])
@pytest.mark.parametrize("verb", ["insert", "move", "delete"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_redrive_goes_on_where_the_store_fails_and_makes_no_copy(
    stage: Stage, verb: str, history: str, *, applied: bool
) -> None:
    queue = stage.connect().queue("mail", history=history)
    queue.put_many(f"{n}" for n in range(3))
    for message in queue.receive(3, wait="1s"):
        queue.bury(message)
    stage.faults.fail(verb, applied=applied, times=2)
    assert queue.redrive() == 3
    assert sorted(row.body for row in rows_of(queue)) == [b"0", b"1", b"2"]
    assert rows_of(queue.dead) == []
    assert queue.redrive() == 0
