"""Commands by key: what they answer, on each store.

What others do between their steps, `test_keyed_races.py` has.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from keyed_steps import begin, keys_of, may_begin, row_of, step
from worlds import World, on_each_store

from shardq import Answer, errors
from shardq.model.key import bucket_of
from shardq.model.times import moment_of
from shardq.records.keys import note_of
from shardq.stores.store import RowMove
from shardq.stores.tables import PLACES
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardq import Queue


# What they answer ---------------------------------------------------------------------------------


def test_a_message_is_looked_up_by_its_key_from_another_process(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), bands=1)
    sent = queue.put("to ada", key="order-7", delay="1h", group="g", headers={"kind": "reminder"})
    elsewhere = world.connect().queue(queue.name)
    found = elsewhere.get("order-7")
    assert (found.key, found.id, found.state) == ("order-7", sent.id, "waiting")
    assert (found.due, found.first_due, found.attempt) == (sent.due, sent.due, 0)
    assert (found.text, found.headers) == ("to ada", {"kind": "reminder"})
    assert (found.group, found.priority) == ("g", 0)
    assert elsewhere.get("order-8") is None


@on_each_store
def test_what_was_cancelled_by_its_key_is_gone_and_never_begins(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("x", key="order-7", delay="1h")
    elsewhere = world.connect().queue(queue.name)
    assert elsewhere.cancel(key="order-7") is Answer.DONE
    assert queue.get("order-7") is None
    assert not may_begin(queue, sent._row)
    assert queue._home.store.find([sent._row.position]) == []
    assert queue.cancel(key="order-7") is Answer.NOT_THERE
    assert queue.totals().cancelled + elsewhere.totals().cancelled >= 1
    queue.put("x", key="order-7", delay="1h")


@on_each_store
def test_many_are_cancelled_and_moved_in_one_call_with_an_answer_for_each(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    for n in range(4):
        queue.put(f"{n}", key=f"key-{n}", delay="1h")
    plain = [queue.put(f"plain {n}", delay="1h") for n in range(3)]
    assert queue.move(keys=["key-0", "nobody", "key-0"], delay="2h") == {
        "key-0": Answer.DONE, "nobody": Answer.NOT_THERE
    }  # fmt: skip
    found = queue.get("key-0")
    assert found is not None
    asked = [plain[0].id, plain[1].receipt, queue.put("x", key="k", delay="1h").id, "nobody"]
    assert queue.move(ids=asked, due=found.due) == dict.fromkeys(asked[:3], Answer.DONE) | {
        "nobody": Answer.NOT_THERE
    }
    dues = {one.text: one.due for one in queue.peek(100)}
    assert dues["x"] == dues["0"] == found.due
    for name in ("plain 0", "plain 1"):
        # Without a key it is moved by how far that is, as a snooze is: by a clock that may be set.
        assert abs(dues[name] - found.due) < timedelta(seconds=1)
    assert dues["plain 2"] < found.due
    assert queue.cancel(keys=(f"key-{n}" for n in range(5))) == {
        **{f"key-{n}": Answer.DONE for n in range(4)}, "key-4": Answer.NOT_THERE
    }  # fmt: skip
    # It has moved since, so its receipt is stale; its id finds it.
    ids = [plain[0].id, plain[2].receipt, asked[2]]
    assert queue.cancel(ids=ids) == dict.fromkeys(ids, Answer.DONE)
    assert [one.text for one in queue.peek(100)] == ["plain 1"]
    assert queue.cancel(ids=[]) == {}


def test_a_message_without_a_key_is_moved_to_the_very_due_within_a_millisecond_too(
    stage: Stage,
    queue: Queue,
) -> None:
    put = queue.put("x", delay="1h")
    stage.clock.advance(0.000_4)
    due = put.due + timedelta(hours=1)
    assert queue.move(ids=[put.id], due=due) == {put.id: Answer.DONE}
    assert [one.due for one in queue.peek()] == [due]


def test_of_many_those_that_run_are_left_and_a_wrong_call_changes_nothing(queue: Queue) -> None:
    sent = [queue.put("x", id=f"id-{n}", key="k" if n else None) for n in range(2)]
    queue.receive(2)
    ids = [one.id for one in sent]
    assert queue.move(ids=ids, delay="1h") == dict.fromkeys(ids, Answer.RUNNING)
    assert queue.cancel(ids=["id-1"]) == {"id-1": Answer.RUNNING}
    for call in (
        lambda: queue.cancel(keys=["k"], ids=["id-0"]),
        lambda: queue.cancel(keys="k"),
        lambda: queue.move(ids=["id-0"], keys=[], delay="0s"),
        lambda: queue.move(ids=["id-0"]),
        lambda: queue.move(delay="0s"),
    ):
        with pytest.raises(errors.UsageError, match="give "):
            call()


def test_of_many_a_store_that_fails_half_way_says_how_many_were_done(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(3):
        queue.put("x", key=f"key-{n}", delay="1h")
    stage.faults.fail("write_records keys", nth=2, times=9)
    with pytest.raises(errors.StoreTimeout, match="1 of the messages are answered for"):
        queue.cancel(keys=[f"key-{n}" for n in range(3)])


@on_each_store
def test_one_that_runs_is_asked_to_stop_and_never_begins_again(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("a", key="order-7", delay="1h")
    row = begin(queue, "order-7")
    found = queue.get("order-7")
    assert found.state == "running"
    assert queue.move("order-7", delay="2h") is Answer.RUNNING
    assert queue.edit("order-7", body="b") is Answer.RUNNING
    assert row_of(queue, "order-7") == row
    assert not keys_of(queue).is_cancelled(row)
    assert queue.cancel(key="order-7") is Answer.RUNNING
    state = keys_of(queue).look(["order-7"])["order-7"].state
    assert queue.cancel(key="order-7") is Answer.RUNNING
    assert keys_of(queue).look(["order-7"])["order-7"].state == state
    assert keys_of(queue).is_cancelled(row)
    assert not may_begin(queue, step(queue, row, 0))
    # The message only waits to be dropped.
    assert queue.get("order-7") is None
    assert queue.cancel(key="order-7") is Answer.NOT_THERE
    assert queue.move("order-7", delay="2h") is Answer.NOT_THERE


def test_a_claim_runs_until_its_time_is_up(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x", key="order-7", delay="1h")
    claim = step(queue, begin(queue, "order-7"), 200, claim="receipt")
    found = queue.get("order-7")
    assert (found.state, found.due) == ("running", moment_of(claim.due_ms))
    assert queue.move("order-7", delay="2h") is Answer.RUNNING
    world.pass_time(0.3)
    found = queue.get("order-7")
    assert (found.state, found.attempt) == ("waiting", 1)
    assert queue.move("order-7", delay="2h")
    assert queue.cancel(key="order-7")


@on_each_store
def test_a_message_that_waits_is_moved_and_does_not_begin_at_its_old_place(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("to ada", key="order-7", delay="1h")
    elsewhere = world.connect().queue(queue.name)
    for delay_ms, delay in ((7_200_000, "2h"), (60_000, "1m"), (0, "0s")):
        old = row_of(queue, "order-7")
        before_ms = queue._home.clock.now_ms()
        assert elsewhere.move("order-7", delay=delay) is Answer.DONE
        found = queue.get("order-7")
        late = found.due - moment_of(before_ms + delay_ms)
        assert timedelta(0) <= late < timedelta(seconds=30)
        assert (found.id, found.text) == (sent.id, "to ada")
        # The due is at least the one asked for; later, if now was later when it was written.
        assert moment_of(before_ms + delay_ms) <= found.first_due <= found.due
        assert not may_begin(queue, old)
        assert queue._home.store.find([old.position]) == []
    assert may_begin(queue, row_of(queue, "order-7"))


def test_a_move_by_a_delay_is_never_due_a_part_of_a_millisecond_early(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    stage.clock.advance(0.0001)
    assert queue.move("order-7", delay="2h")
    assert row_of(queue, "order-7").due_ms * 1_000 >= stage.clock.true_us() + 7_200_000_000


def test_a_message_that_is_moved_into_the_past_is_due_now(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x", key="order-7", delay="1h")
    assert queue.move("order-7", due="2001-01-01T00:00:00Z")
    found = queue.get("order-7")
    assert abs(found.due - moment_of(queue._home.clock.now_ms())) < timedelta(seconds=30)
    assert found.first_due.year == 2001


@on_each_store
def test_an_edit_changes_what_it_names_and_keeps_the_rest(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), bands=2)
    sent = queue.put("to ada", key="order-7", delay="1h", group="g", headers={"a": "1", "b": "2"})
    old = row_of(queue, "order-7")
    assert queue.edit("order-7", body=b"to bob") is Answer.DONE
    assert not may_begin(queue, old)
    assert queue.edit("order-7", headers={"c": "3"}) is Answer.DONE
    found = queue.get("order-7")
    assert (found.text, found.headers) == ("to bob", {"c": "3"})
    assert (found.id, found.due, found.first_due) == (sent.id, sent.due, sent.due)
    assert (found.group, found.priority, found.attempt) == ("g", 0, 0)
    assert queue.edit("order-7", body="", headers={})
    found = queue.get("order-7")
    assert (found.body, found.headers) == (b"", {})


def test_an_edit_of_a_retried_message_keeps_its_attempts_and_its_last_error(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    message = queue.put("x", key="order-7", delay="1h", headers={"a": "1"})
    row = begin(queue, "order-7")
    failed = queue._settler.planner.move(row, row.due_ms, attempt=1, error="no route to host").new
    queue._home.store.move([RowMove(row.position, failed, note_of(failed))])
    assert queue.edit("order-7", body="y", headers={"b": "2"})
    found = queue.find(key="order-7")
    assert (found.id, found.text, found.attempt) == (message.id, "y", 1)
    assert (found.headers, found.last_error) == ({"b": "2"}, "no route to host")


def test_an_edit_of_what_is_overdue_makes_it_due_now_and_no_less_late(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("x", key="order-7", delay="0s")
    queue.pause()
    world.pass_time(0.05)
    assert queue.edit("order-7", body="y")
    new = row_of(queue, "order-7")
    assert new.due_ms > sent.due_ms
    assert (new.wanted_ms, new.order) == (sent.due_ms, sent._row.order)


@on_each_store
def test_a_dead_message_can_be_cancelled_by_its_key_and_neither_moved_nor_edited(
    world: World,
) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("to ada", key="order-7", delay="1h")
    bury(queue, "order-7")
    found = queue.get("order-7")
    assert (found.id, found.state, found.attempt) == (sent.id, "dead", 2)
    assert found.headers["shardq-reason"] == "no such address"
    assert queue.move("order-7", delay="2h") is Answer.NOT_THERE
    assert queue.edit("order-7", body="y") is Answer.NOT_THERE
    assert [message.id for message in queue.dead.peek()] == [sent.id]
    assert queue.cancel(key="order-7") is Answer.DONE
    assert queue.dead.peek() == []
    assert queue.cancel(key="order-7") is Answer.NOT_THERE
    assert queue.dead.totals().cancelled == 1
    queue.put("x", key="order-7", delay="1h")


@on_each_store
def test_a_purge_leaves_nothing_that_a_command_finds(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x", key="order-7", delay="1h")
    world.pass_time(0.01)
    queue.purge()
    assert queue.get("order-7") is None
    for answer in commands(queue):
        assert answer is Answer.NOT_THERE


def test_a_paused_queue_is_commanded_as_any_other(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x", key="order-7", delay="0s")
    queue.pause()
    for answer in commands(queue):
        assert answer is Answer.DONE


def test_a_dropped_queue_refuses_commands(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x", key="order-7", delay="1h")
    queue.drop()
    for command in (*COMMANDS, Queue_get):
        with pytest.raises(errors.UnknownQueue, match="dropped"):
            command(queue)


@on_each_store
def test_a_message_of_a_dropped_queue_is_not_that_of_the_queue_made_anew(world: World) -> None:
    db = world.connect()
    queue = db.queue(world.queue_name())
    queue.put("x", key="order-7", delay="1h")
    world.pass_time(0.01)
    queue.drop()
    anew = db.queue(queue.name)
    assert anew.get("order-7") is None
    for answer in commands(anew):
        assert answer is Answer.NOT_THERE


def Queue_get(queue: Queue) -> object:  # noqa: N802 - beside COMMANDS
    return queue.get("order-7")


COMMANDS: list[Callable[[Queue], Answer]] = [
    lambda queue: queue.edit("order-7", body="y"),
    lambda queue: queue.move("order-7", delay="3h"),
    lambda queue: queue.cancel(key="order-7"),
]


def commands(queue: Queue) -> Iterator[Answer]:
    return (command(queue) for command in COMMANDS)


# By message and receipt, by id --------------------------------------------------------------------


@on_each_store
def test_a_message_with_a_key_is_cancelled_exactly_wherever_it_has_moved(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("x", key="order-7", delay="1h")
    step(queue, row_of(queue, "order-7"), 60_000)
    assert queue.move("order-7", delay="2h")
    # A receipt is of a place, a message is itself.
    assert not queue.cancel(sent.receipt)
    assert queue.cancel(sent)
    assert queue.get("order-7") is None
    assert not queue.cancel(sent)
    sent = queue.put("x", key="order-7", delay="1h")
    assert queue.cancel(sent.receipt)
    assert queue.get("order-7") is None


def test_a_receipt_of_a_message_that_runs_cancels_nothing_and_asks_it_to_stop(
    world: World,
) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("x", key="order-7", delay="1h")
    row = begin(queue, "order-7")
    assert not queue.cancel(sent.receipt)
    assert keys_of(queue).is_cancelled(row)


def test_who_has_received_a_message_can_end_it_as_cancelled(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    for by_receipt in (False, True):
        queue.put("x", key="order-7")
        [taken] = queue.receive(1, "30s", wait="10s")
        named = taken.receipt if by_receipt else taken
        assert queue.cancel(named)
        assert queue.get("order-7") is None
        assert not queue.cancel(named)


def test_another_message_of_the_same_key_is_not_cancelled_by_message(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    first = queue.put("x", key="order-7", delay="1h")
    assert queue.cancel(key="order-7")
    second = queue.put("x", key="order-7", delay="1h")
    assert not queue.cancel(first)
    found = queue.get("order-7")
    assert found.id == second.id


@on_each_store
def test_a_message_is_found_by_its_key_however_many_there_are_and_however_far(
    world: World,
) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put_many([{"body": "x", "delay": f"{n}m"} for n in range(500)])
    sent = queue.put("x", key="order-7", delay="90d")
    found = queue.find(key="order-7")
    assert (found.id, found.text, str(found.state)[:8]) == (sent.id, "x", "waiting:")
    state = queue.state_of(key="order-7")
    assert state.until == sent.due
    assert queue.cancel(found)
    assert queue.find(key="order-7") is None
    assert queue.state_of(key="order-7") is None


def test_find_by_key_visits_no_partition_and_no_index(stage: Stage) -> None:
    queue = stage.connect().queue("mail", keyed=True)
    queue.put("x", key="order-7", delay="90d", id="order-7")
    before = dict(stage.faults.calls)
    for found in (queue.find(key="order-7"), queue.find("order-7")):
        assert found.id == "order-7"
    for verb in ("occupied", "indexed", "shards", "read", "next_minute", "recorded"):
        assert stage.faults.calls.get(verb, 0) == before.get(verb, 0), verb


def bury(queue: Queue, key: str) -> None:
    """Bury the message of a key, as a consumer does after the last attempt."""
    row = begin(queue, key)
    queue._settler.carry_out([queue._settler.planner.burial(row, "no such address", attempt=2)])


def test_a_message_that_has_died_since_is_cancelled_by_its_key_alone(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    sent = queue.put("x", key="order-7", delay="1h")
    bury(queue, "order-7")
    assert not queue.cancel(sent)
    assert queue.find(key="order-7") is None
    state = queue.state_of(key="order-7")
    assert (state.id, state.where) == (sent.id, "dead")
    assert queue.cancel(key="order-7")
    assert queue.state_of(key="order-7") is None


def test_a_key_that_is_no_id_is_not_taken_for_one(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), keyed=True)
    queue.put("x", key="order-7", delay="1h")
    assert queue.find("order-7") is None
    assert queue.find(key="order-7") is not None


@on_each_store
def test_what_has_ended_leaves_no_note_of_where_it_was(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    for end in (COMMANDS[-1], lambda queue: queue.move("order-7", delay="1h")):
        queue.put("x", key="order-7", delay="1h")
        step(queue, row_of(queue, "order-7"), 60_000)
        partition = (queue.name, bucket_of("order-7"))
        assert queue._home.store.notes(PLACES, partition, None)
        assert end(queue)
        assert queue._home.store.notes(PLACES, partition, None) == {}


def test_a_consumer_in_this_process_learns_of_what_comes_due_sooner(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    told: list[int] = []
    queue._home.listeners.append(told.append)
    queue.move("order-7", delay="0s")
    assert told == [stage.clock.now_ms()]


def test_where_every_message_is_keyed_its_id_is_its_key(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), keyed=True)
    sent = queue.put("x", delay="90d")
    assert queue.move(sent.id, delay="80d")
    found = queue.get(sent.id)
    assert (found.id, found.key) == (sent.id, sent.id)
    assert found.due < sent.due
    assert queue.cancel(key=sent.id)
    assert queue.get(sent.id) is None


def test_a_command_changes_a_key_by_one_transaction(stage: Stage) -> None:
    queue = stage.connect().queue("mail", history="off")
    queue.put("x", key="order-7", delay="1h")

    def asked(command: Callable[[Queue], object]) -> dict[str, int]:
        before = dict(stage.faults.calls)
        command(queue)
        calls = stage.faults.calls
        return {verb: n - before.get(verb, 0) for verb, n in calls.items() if n != before.get(verb)}

    looked = {"records keys": 1, "notes places": 1, "find": 1}
    assert asked(lambda queue: queue.get("order-7")) == looked
    for command in COMMANDS[:-1]:
        assert asked(command) == looked | {"write_records keys": 1}
    assert asked(COMMANDS[-1]) == looked | {"write_records keys": 1, "delete": 1}


def test_a_move_that_is_written_too_late_for_its_minute_is_repaired(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("x", key="order-7", delay="1h")
    stage.faults.call("write_records keys", lambda: stage.clock.advance(600), after=False)
    assert queue.move("order-7", delay="10s")
    found = queue.get("order-7")
    assert found.due == moment_of(stage.clock.now_ms())
    assert may_begin(queue, row_of(queue, "order-7"))


@on_each_store
def test_a_name_that_is_held_stays_so_after_a_cancel_and_names_nothing(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    queue.put("x", key="order-7", delay="1h", unique_for="1h")
    assert queue.cancel(key="order-7")
    with pytest.raises(errors.KeyTaken):
        queue.put("y", key="order-7")
    assert queue.get("order-7") is None
    for answer in commands(queue):
        assert answer is Answer.NOT_THERE


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "a\nb", 7, "x" * 257, b"order-7"])
def test_what_can_be_no_key_is_refused(queue: Queue, key: str) -> None:
    for command in (
        lambda: queue.get(key),
        lambda: queue.cancel(key=key),
        lambda: queue.move(key, delay="1h"),
        lambda: queue.edit(key, body="x"),
        lambda: queue.find(key=key),
        lambda: queue.state_of(key=key),
    ):
        with pytest.raises(errors.BadName, match="key"):
            command()


def test_what_says_too_much_or_too_little_is_refused_before_anything_is_written(
    queue: Queue,
) -> None:
    sent = queue.put("x", key="order-7", delay="1h")
    refused: list[Callable[[], object]] = [
        lambda: queue.move("order-7"),
        lambda: queue.move("order-7", due="2030-01-01T00:00:00Z", delay="1h"),
        lambda: queue.move("order-7", due="2030-01-01T00:00:00"),
        lambda: queue.move("order-7", delay="a day"),
        lambda: queue.edit("order-7"),
        lambda: queue.edit("order-7", body=7),  # type: ignore[arg-type]
        lambda: queue.edit("order-7", body="x" * (1 << 20 | 1)),
        lambda: queue.edit("order-7", headers={"shardq-error": "x"}),
        lambda: queue.cancel(None),  # type: ignore[call-overload]
        lambda: queue.cancel(sent, key="order-7"),  # type: ignore[call-overload]
        lambda: queue.find(sent, key="order-7"),
        lambda: queue.dead.get("order-7"),
        lambda: queue.dead.cancel(key="order-7"),
        lambda: queue.dead.find(key="order-7"),
    ]
    for command in refused:
        with pytest.raises(errors.UsageError):
            command()
    assert row_of(queue, "order-7") == sent._row


def test_an_answer_is_true_where_it_was_done() -> None:
    assert [bool(answer) for answer in Answer] == [True, False, False]
    assert [str(answer) for answer in Answer] == ["done", "not there", "running"]


# Groups, totals, history --------------------------------------------------------------------------


def behind_a_head(stage: Stage, queue: Queue) -> None:
    """Put a head of a group, which is retried in an hour, and two messages that wait for it."""
    for name in ("head", "second", "third"):
        queue.put(name, key=name, delay="0s", group="g")
        # Among messages due in one millisecond an edited one is the last, so wait for the next.
        stage.clock.advance(0.001)
    [message] = queue.receive(10, "30s", wait="1s")
    assert message.text == "head"
    # A consumer would have done the same. The retry of a `receive` writes its note.
    queue.retry(message, "1h")
    stage.clock.advance(1)


@pytest.mark.parametrize(
    "end", [lambda q: q.cancel(key="head"), lambda q: q.move("head", delay="2h")]
)
def test_a_head_that_is_cancelled_or_moved_lets_its_group_go_on(
    stage: Stage, queue: Queue, end: Callable[[Queue], Answer]
) -> None:
    behind_a_head(stage, queue)
    assert queue.receive(10, "30s") == []
    assert end(queue) is Answer.DONE
    [message] = queue.receive(10, "30s", wait="1s")
    assert message.text == "second"
    queue.ack(message)
    [message] = queue.receive(10, "30s", wait="1s")
    assert message.text == "third"


def test_a_head_that_is_edited_keeps_its_group_waiting(stage: Stage, queue: Queue) -> None:
    behind_a_head(stage, queue)
    assert queue.edit("head", body="changed")
    assert queue.edit("second", body="second too")
    assert queue.receive(10, "30s", wait="1s") == []
    stage.clock.advance(3_600)
    told = []
    for _ in range(3):
        [message] = queue.receive(10, "30s", wait="1s")
        told.append(message.text)
        queue.ack(message)
    assert told == ["changed", "second too", "third"]


def test_one_of_a_group_that_is_moved_is_delivered_in_the_order_of_its_new_due(
    stage: Stage,
    queue: Queue,
) -> None:
    for number, key in enumerate("abc"):
        queue.put(key, key=key, delay=f"{number + 1}m", group="g")
    assert queue.move("a", delay="150s")
    stage.clock.advance(200)
    told = []
    for _ in range(3):
        [message] = queue.receive(10, "30s", wait="1s")
        told.append(message.text)
        queue.ack(message)
    assert told == ["b", "a", "c"]


def test_totals_and_history_count_a_cancel_once(stage: Stage, queue: Queue) -> None:
    sent = [queue.put("x", key=f"order-{number}", delay="1h") for number in range(4)]
    assert queue.cancel(key="order-0")
    assert queue.cancel(key="order-0") is Answer.NOT_THERE
    assert queue.cancel(sent[1])
    assert queue.move("order-2", delay="2h")
    assert queue.cancel(key="order-2")
    assert queue.edit("order-3", body="y")
    totals = queue.totals()
    assert (totals.put, totals.cancelled) == (4, 3)
    stage.clock.advance(60)
    audit = queue.audit()
    assert audit.is_even
    assert (audit.total.cancelled, audit.total.waiting) == (3, 1)
    fates = [record.fate for message in sent for record in queue.history(message.id)]
    assert fates == ["cancelled", "cancelled", "cancelled", None]


@pytest.mark.parametrize("by", ["move", "edit", "replace"])
def test_the_history_has_the_put_of_a_message_that_was_changed_as_it_was_first_due(
    stage: Stage, queue: Queue, by: str
) -> None:
    whole = queue.put("a", key="whole", delay="1h")
    # The process crashes before it has recorded the put.
    stage.faults.fail("record")
    with pytest.raises(errors.StoreTimeout):
        queue.put("a", key="half", delay="1h")
    assert queue.audit().total.unrecorded == 1
    for key in ("whole", "half"):
        if by == "move":
            assert queue.move(key, delay="2h")
        elif by == "edit":
            assert queue.edit(key, body="b")
        else:
            queue.put("b", key=key, delay="2h", on_conflict="replace")
    assert (queue.audit().total.unrecorded, queue.audit().total.put) == (0, 2)
    [record] = queue.history(whole.id)
    assert record.due == whole.due
