"""Commands by key, and what others do between their steps: crashes, slow writes, begins, shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from keyed import as_elsewhere
from keyed_steps import begin, keys_of, left, may_begin, refusal, row_of, step
from test_keyed_commands import COMMANDS

from shardq import Answer, Consumer, errors
from shardq.records.standing import StartRefusal
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardq import Queue
    from shardq.model.message import Row


def test_a_message_that_begins_as_it_is_looked_at_is_not_cancelled_moved_or_edited(
    stage: Stage,
    queue: Queue,
) -> None:
    for number, command in enumerate(COMMANDS):
        queue.put(f"{number}", key="order-7", delay="1h")
        # After its key is looked up: the rows are read next.
        stage.faults.call("find", lambda: begin_once(queue))
        assert command(queue) is Answer.RUNNING
        stage._store.delete([row_of(queue, "order-7").position])
        queue._keyed._keys.end([])
        keys_of(queue).write([keys_of(queue).clear(keys_of(queue).look(["order-7"])["order-7"])])


def begin_once(queue: Queue) -> None:
    begin(queue, "order-7")


def test_one_that_is_shared_or_retried_as_it_is_moved_goes_to_its_new_place_alone(
    stage: Stage,
    queue: Queue,
) -> None:
    sent = queue.put("x", key="order-7", delay="1h")
    stage.faults.call("find", lambda: step(queue, sent._row, 5_000))
    assert queue.move("order-7", delay="2h")
    new = row_of(queue, "order-7")
    [copy] = [row for row in left(queue) if row != new]
    assert refusal(queue, copy) is StartRefusal.COPY
    assert may_begin(queue, new)


def test_of_two_moves_at_once_the_later_one_stands(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.put("a", key="order-7", delay="1h")
    stage.faults.call("find", lambda: other.edit("order-7", body="b"))
    assert queue.move("order-7", delay="2h")
    [row] = left(queue)
    assert row.body == b"b"
    assert row == row_of(queue, "order-7")
    assert may_begin(queue, row)


def test_one_that_is_cancelled_as_it_is_moved_is_not_there(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    stage.faults.call("find", lambda: other.cancel(key="order-7"))
    assert queue.move("order-7", delay="2h") is Answer.NOT_THERE
    assert left(queue) == []


def test_a_command_that_others_outrun_each_time_says_so(stage: Stage) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")

    def outrun() -> None:
        keys = keys_of(other)
        keys.write([keys.renew(keys.look(["order-7"])["order-7"])])

    for nth in range(1, 60):
        stage.faults.call("find", outrun, nth=nth)
    with pytest.raises(errors.StoreUnavailable, match="kept changing it; try again"):
        queue.move("order-7", delay="2h")
    assert row_of(queue, "order-7").due_ms == left(queue)[0].due_ms


def replaced(queue: Queue) -> bool:
    """True if a put that takes the place of another is done."""
    return queue.put("y", key="order-7", on_conflict="replace").text == "y"


@pytest.mark.parametrize("call", [*COMMANDS, replaced])
def test_who_is_outrun_for_half_a_second_by_many_is_let_through(
    stage: Stage, call: Callable[[Queue], object]
) -> None:
    queue, other = stage.connect().queue("mail"), stage.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    until_us = stage.clock.boot_us() + 500_000

    def outrun() -> None:
        stage.clock.advance(0.01)
        if stage.clock.boot_us() < until_us:
            keys = keys_of(other)
            keys.write([keys.renew(keys.look(["order-7"])["order-7"])])

    for nth in range(1, 60):
        stage.faults.call("find", outrun, nth=nth)
    assert call(queue)


def crashed_move(queue: Queue, key: str) -> tuple[Row, Row]:
    """A move that has taken the key, and crashed before it has written the row: old, new."""
    keys = keys_of(queue)
    found = keys.seek([key])[key]
    assert found.row is not None
    new = queue._settler.planner.asked(found.row, found.row.due_ms + 5_000)
    command = keys.command(found.key, found.row, new._replace(body=b"never"))
    assert not keys.write([command.change._replace(insert=(), delete=())])
    return found.row, command.change.insert[0]


@pytest.fixture
def slow(stage: Stage) -> Stage:
    """A stage whose store may take 2 s for a write, and writes rows once their keys are taken."""
    as_elsewhere(stage)
    return stage


def test_a_move_that_crashed_between_key_and_row_counts_as_not_done(slow: Stage) -> None:
    queue = slow.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    old, _ = crashed_move(queue, "order-7")
    found = queue.get("order-7")
    assert (found.state, found.text) == ("waiting", "x")
    before_us = slow.clock.true_us()
    # The move waits until the crashed process can no longer write its row.
    assert queue.move("order-7", delay="2h") is Answer.DONE
    assert slow.clock.true_us() - before_us > 2_000_000
    [row] = left(queue)
    assert (row.body, row) == (b"x", row_of(queue, "order-7"))
    assert refusal(queue, old) is StartRefusal.COPY


@pytest.mark.parametrize("command", COMMANDS[:-1])
def test_a_command_whose_row_cannot_be_written_is_maybe_done_and_can_be_repeated(
    slow: Stage, command: Callable[[Queue], Answer]
) -> None:
    queue = slow.connect().queue("mail")
    sent = queue.put("x", key="order-7", delay="1h")
    slow.faults.fail("insert")
    with pytest.raises(errors.StoreTimeout):
        command(queue)
    assert left(queue) == [sent._row]
    assert command(queue) is Answer.DONE
    [row] = left(queue)
    assert row != sent._row
    assert may_begin(queue, row)


def test_a_move_whose_old_row_cannot_be_deleted_leaves_a_copy_that_never_begins(
    slow: Stage,
) -> None:
    queue = slow.connect().queue("mail")
    sent = queue.put("x", key="order-7", delay="1h")
    slow.faults.fail("delete")
    with pytest.raises(errors.StoreTimeout, match="some of the keys are taken"):
        queue.move("order-7", delay="2h")
    assert len(left(queue)) == 2
    assert refusal(queue, sent._row) is StartRefusal.COPY
    assert may_begin(queue, row_of(queue, "order-7"))


@pytest.mark.parametrize("call", [*COMMANDS, replaced])
def test_what_a_move_has_left_is_removed_by_the_next_command(
    slow: Stage, call: Callable[[Queue], object]
) -> None:
    queue = slow.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    slow.faults.fail("delete")
    with pytest.raises(errors.StoreTimeout):
        queue.move("order-7", delay="2h")
    assert call(queue)
    is_cancelled = queue.get("order-7") is None
    assert len(left(queue)) + is_cancelled == 1


def test_each_move_that_is_under_way_is_given_its_time(slow: Stage) -> None:
    queue = slow.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    crashed_move(queue, "order-7")
    row = row_of(queue, "order-7")

    def again() -> None:
        slow.clock.advance(3.5)
        keys = keys_of(queue)
        found = keys.look(["order-7"])["order-7"]
        command = keys.command(found, row, queue._settler.planner.asked(row, row.due_ms))
        assert not keys.write([command.change._replace(insert=(), delete=())])

    before_us = slow.clock.true_us()
    slow.faults.call("find", again, nth=5)
    assert queue.move("order-7", delay="2h") is Answer.DONE
    assert slow.clock.true_us() - before_us > 7_000_000


def test_one_whose_move_is_under_way_is_cancelled_at_once(slow: Stage) -> None:
    queue = slow.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    old, new = crashed_move(queue, "order-7")
    before_us = slow.clock.true_us()
    assert queue.cancel(key="order-7") is Answer.DONE
    assert slow.clock.true_us() == before_us
    slow._store.insert([new])
    assert refusal(queue, new) is StartRefusal.OVER
    assert refusal(queue, old) is StartRefusal.OVER
    assert queue.totals().cancelled == 1


def test_one_whose_put_is_under_way_is_not_there_yet_but_can_be_cancelled(slow: Stage) -> None:
    queue = slow.connect().queue("mail")
    sent = queue.put("x", key="order-7", delay="1h")
    slow._store.delete([sent._row.position])
    assert queue.get("order-7") is None
    assert queue.cancel(key="order-7") is Answer.DONE
    assert refusal(queue, sent._row) is StartRefusal.OVER


def test_a_move_waits_for_the_row_of_a_put_that_is_under_way(slow: Stage) -> None:
    queue = slow.connect().queue("mail")
    queue._home.register.use_keys()
    row = queue.put("x", key="order-7", delay="1h")._row
    late = queue.put("y", key="order-8", delay="1h")._row
    # Now it looks as if the row had not been written yet.
    slow._store.delete([late.position])
    anew = late._replace(id=queue._settler.planner.kept(row).id)
    keys = keys_of(queue)
    keys.write([keys.clear(keys.look(["order-8"])["order-8"])])
    assert not keys.write([keys.put(anew)._replace(insert=())])
    slow.faults.call("find", lambda: slow._store.insert([anew]), nth=10)
    assert queue.move("order-8", delay="2h") is Answer.DONE
    assert row_of(queue, "order-8").body == b"y"


@pytest.mark.parametrize("call", [COMMANDS[0], replaced], ids=["edit", "replace"])
def test_a_slow_command_does_not_undo_a_later_one(
    slow: Stage, call: Callable[[Queue], object]
) -> None:
    queue, other = slow.connect().queue("mail"), slow.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")

    def replace_later() -> None:
        slow.clock.advance(3)
        other.put("later", key="order-7", on_conflict="replace", delay="1h")

    slow.faults.call("insert", replace_later)
    call(queue)
    [row] = left(queue)
    assert row.body == b"later"
    assert may_begin(queue, row)


def test_a_slow_move_that_was_given_up_says_what_stands(slow: Stage) -> None:
    queue, other = slow.connect().queue("mail"), slow.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")

    def meanwhile() -> None:
        # The put is so slow that the other process gives up its row before it is written.
        slow._store.delete([row_of(queue, "order-7").position])
        slow.clock.advance(10)
        assert other.edit("order-7", body="other") is Answer.DONE

    slow.faults.call("write_records keys", meanwhile)
    assert queue.move("order-7", delay="2h") is Answer.DONE
    row = row_of(queue, "order-7")
    assert row.body == b"other"
    assert may_begin(queue, row)


def test_a_cancel_is_done_though_its_row_cannot_be_deleted(stage: Stage, queue: Queue) -> None:
    sent = queue.put("x", key="order-7", delay="1h")
    stage.faults.fail("delete")
    assert queue.cancel(key="order-7") is Answer.DONE
    assert left(queue) == [sent._row]
    assert refusal(queue, sent._row) is StartRefusal.OVER
    assert queue.totals().cancelled == 1


def dead(stage: Stage, history: str) -> Queue:
    queue = stage.connect().queue("mail", history=history)
    queue.bury(queue.put("x", key="order-7", delay="1h"))
    assert queue.dead.peek()
    return queue


@pytest.mark.parametrize("history", ["off", "7d"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_dead_message_that_is_put_back_as_it_is_cancelled_does_not_run(
    stage: Stage, history: str, nth: int
) -> None:
    queue, other = dead(stage, history), stage.connect().queue("mail")
    stage.faults.call(("find", "delete")[nth - 1], other.redrive, after=False, nth=nth)
    assert queue.cancel(key="order-7") is Answer.DONE
    assert left(queue) == []
    assert left(queue.dead) == []
    assert queue.get("order-7") is None


def test_a_message_that_takes_the_name_of_a_dead_one_as_it_is_cancelled_stays(
    stage: Stage,
) -> None:
    queue, other = dead(stage, "7d"), stage.connect().queue("mail")
    stage.faults.call("delete", lambda: other.put("y", key="order-7", delay="1h"))
    assert queue.cancel(key="order-7") is Answer.DONE
    assert left(queue.dead) == []
    found = queue.get("order-7")
    assert found.text == "y"


def test_a_cancel_that_has_removed_a_dead_message_and_fails_then_is_maybe_done(
    stage: Stage,
) -> None:
    queue = dead(stage, "off")
    stage.faults.call("delete", lambda: stage.faults.fail("records keys"))
    with pytest.raises(errors.StoreTimeout, match="the dead message is removed"):
        queue.cancel(key="order-7")
    assert left(queue.dead) == []


def test_a_cancel_that_the_store_may_have_applied_says_so(stage: Stage, queue: Queue) -> None:
    queue.put("x", key="order-7", delay="1h")
    stage.faults.fail("write_records keys", applied=True)
    with pytest.raises(errors.StoreTimeout):
        queue.cancel(key="order-7")
    queue.put("x", key="order-7", delay="1h")
    stage.faults.fail("write_records keys")
    with pytest.raises(errors.StoreUnavailable):
        queue.cancel(key="order-7")
    assert queue.cancel(key="order-7") is Answer.DONE


def test_what_a_consumer_has_read_ahead_is_cancelled_moved_and_edited_all_the_same(
    stage: Stage,
    queue: Queue,
) -> None:
    for n in range(30):
        queue.put(f"{n}", key=f"order-{n}", delay="1500ms")
    recorder = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), recorder)
    stage.drive(consumer, seconds=1)
    for n in range(0, 30, 3):
        assert queue.cancel(key=f"order-{n}") is Answer.DONE
        assert queue.move(f"order-{n + 1}", delay="10s") is Answer.DONE
        assert queue.edit(f"order-{n + 2}", body=f"edited {n + 2}") is Answer.DONE
    stage.drive(consumer, seconds=5)
    assert sorted(recorder.texts) == sorted(f"edited {n}" for n in range(2, 30, 3))
    stage.drive(consumer, seconds=10)
    assert sorted(recorder.texts[10:]) == sorted(f"{n}" for n in range(1, 30, 3))
    assert stage.is_empty(queue)
    totals = queue.totals()
    assert (totals.put, totals.acked, totals.cancelled) == (30, 20, 10)
    consumer.close()


@pytest.mark.parametrize("verb", ["erase places", "delete"])
def test_an_ack_that_has_freed_its_name_and_fails_then_is_maybe_done(
    stage: Stage, verb: str
) -> None:
    queue = stage.connect().queue("mail", history="off")
    queue.put("x", key="order-7")
    [message] = queue.receive()
    stage.faults.fail(verb)
    with pytest.raises(errors.StoreTimeout, match="the names are free"):
        queue.ack(message)
    # The row never begins again.
    stage.clock.advance(600)
    assert queue.receive() == []


def test_an_ack_that_fails_before_its_name_is_free_is_not_done(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="off")
    queue.put("x", key="order-7")
    [message] = queue.receive()
    stage.faults.fail("write_records keys")
    with pytest.raises(errors.StoreUnavailable):
        queue.ack(message)
    queue.ack(message)
