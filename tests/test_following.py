"""A debounce while its message runs: one message follows it, and begins when that run has ended."""

from __future__ import annotations

import os
import textwrap
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import Process
from keyed import TIMEOUT_MS, standing, texts
from keyed_rows import Names
from sqlite_file import CHILD_SECONDS_MAX
from worlds import on_both_stores

import shardq
from shardq import Answer, Consumer, Message, Queue
from shardq.errors import KeyTaken, StoreRefused, StoreTimeout
from shardq.records.standing import Is, Standing, StartRefusal, View, refusal_of
from shardq.testing import Recorder, Stage

pytest_plugins = ["keyed_stages"]
PATIENCE_S = 2 * TIMEOUT_MS / 1e3
LATE_S = 16
"""No longer than this it waits for the end of a run, once that has ended."""


def debounce(queue: Queue, text: str, delay: str = "0s", **given: Any) -> Message:
    return queue.put(text, key="doc-1", delay=delay, on_conflict="debounce", **given)


def runs(queue: Queue, text: str = "first", **given: Any) -> Message:
    """A message that has the key, and runs at a caller of `receive`."""
    queue.put(text, key="doc-1")
    [taken] = queue.receive(wait="10s", visibility=given.pop("visibility", "1h"))
    return taken


def received(stage: Stage, queue: Queue, seconds: float = LATE_S) -> list[str]:
    """The texts of what is received within a time, and kept."""
    found = []
    for _ in range(round(seconds * 2)):
        found += [message.text for message in queue.receive(10, visibility="1h")]
        stage.clock.advance(0.5)
    return found


@pytest.mark.parametrize("puts", [1, 2, 20])
def test_puts_while_a_message_runs_come_to_one_that_follows_it_with_the_last_of_them(
    queue: Queue, puts: int
) -> None:
    taken = runs(queue)
    made = [debounce(queue, str(number), "1h") for number in range(puts)]
    last = made[-1]
    assert {message.id for message in made} == {last.id} != {taken.id}
    assert texts(queue) == sorted(["first", last.text])
    found = queue.get("doc-1")
    assert (found.id, found.state, found.due) == (last.id, "waiting", last.due)
    assert queue.totals().put == 2
    queue.ack(taken)
    assert queue.move("doc-1", delay="0s") is Answer.DONE
    [second] = queue.receive(wait="10s")
    assert (second.text, second.attempt, second.is_cancelled) == (last.text, 1, False)
    queue.ack(second)
    assert (texts(queue), standing(queue, "doc-1").state) == ([], Is.FREE)


ENDS: dict[str, Callable[[Queue, Message], object]] = {
    "acked": Queue.ack,
    "retried": lambda queue, taken: queue.retry(taken, delay="1h"),
    "snoozed": lambda queue, taken: queue.snooze(taken, "1h"),
    "buried": Queue.bury,
    "cancelled by its receiver": Queue.cancel,
    "extended, then acked": lambda queue, taken: queue.ack(queue.extend(taken, "2h")),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("group", [None, "other"])
def test_it_begins_when_the_run_before_has_ended_and_that_message_never_runs_again(
    either: Stage, end: str, group: str | None
) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    debounce(queue, "second", group=group)
    for _ in range(30):
        assert queue.receive(10) == []
        either.clock.advance(2)
    ENDS[end](queue, taken)
    assert received(either, queue) == ["second"]
    either.clock.advance(3_700)
    assert received(either, queue, 5) == ["second"]
    totals = queue.totals()
    cancelled = end in ("retried", "snoozed", "cancelled by its receiver")
    assert (totals.put, totals.cancelled, totals.buried) == (2, cancelled, end == "buried")
    records = [record.fate for record in queue.history(taken.id)]
    assert records == ["cancelled" if cancelled else "dead" if end == "buried" else "acked"]


def test_in_the_group_of_one_that_failed_it_begins_when_that_would_be_tried_again(
    either: Stage,
) -> None:
    queue = either.connect().queue("mail")
    queue.put("first", key="doc-1", group="doc-1")
    [taken] = queue.receive(wait="10s", visibility="1h")
    debounce(queue, "second", group="doc-1")
    queue.retry(taken, delay="60s")
    assert received(either, queue, 59) == []
    assert received(either, queue) == ["second"]
    assert (texts(queue), queue.totals().cancelled) == (["second"], 1)


def test_it_begins_when_the_time_of_one_is_up_who_died_with_the_message(either: Stage) -> None:
    queue = either.connect().queue("mail")
    runs(queue, visibility="40s")
    debounce(queue, "second")
    assert received(either, queue, 38) == []
    assert received(either, queue) == ["second"]
    assert received(either, queue, 5) == []
    assert queue.totals().cancelled == 1


def test_it_is_due_as_it_was_put_and_no_sooner(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    debounce(queue, "second", "30s")
    queue.ack(taken)
    assert received(either, queue, 29.5) == []
    assert received(either, queue, 1) == ["second"]


def test_what_runs_in_a_consumer_is_followed_too_however_long_and_is_not_asked_to_stop(
    either: Stage,
) -> None:
    queue, other = (either.connect().queue("mail") for _ in range(2))
    seen: list[tuple[str, list[str], bool]] = []

    def handle(message: Message) -> None:
        if message.text == "first":
            debounce(other, "second")
            debounce(other, "third")
        found = received(either, other, 5)
        either.clock.advance(60)
        seen.append((message.text, found, message.is_cancelled))

    queue.put("first", key="doc-1")
    consumer = Consumer(queue, handle)
    either.drive(consumer, seconds=200)
    consumer.close()
    assert seen == [("first", [], False), ("third", [], False)]
    assert texts(queue) == []


def test_what_fails_in_a_consumer_is_not_tried_again_beside_what_follows_it(either: Stage) -> None:
    queue = either.connect().queue("mail", backoff="1s", backoff_max="1s")
    seen = Recorder(either.clock)

    def handle(message: Message) -> None:
        seen(message)
        if message.text == "first":
            debounce(queue, "second", "30s")
            raise OSError

    queue.put("first", key="doc-1")
    consumer = Consumer(queue, handle)
    either.drive(consumer, seconds=60)
    consumer.close()
    assert seen.texts == ["first", "second"]
    assert (texts(queue), queue.totals().cancelled, queue.totals().acked) == ([], 1, 1)


# Commands -----------------------------------------------------------------------------------------


def test_a_cancel_by_key_ends_what_follows_and_asks_what_runs_to_stop(either: Stage) -> None:
    queue, other = (either.connect().queue("mail") for _ in range(2))
    taken = runs(queue)
    debounce(other, "second")
    assert not taken.is_cancelled
    assert queue.cancel(key="doc-1") is Answer.RUNNING
    either.clock.advance(1)
    assert taken.is_cancelled
    assert texts(queue) == ["first"]
    with pytest.raises(KeyTaken):
        queue.put("third", key="doc-1", on_conflict="reject")
    queue.retry(taken, delay="0s")
    assert received(either, queue) == []
    assert (texts(queue), queue.totals().cancelled) == ([], 2)
    assert standing(queue, "doc-1").state.is_absent


def test_a_cancel_by_receipt_or_id_says_whether_what_follows_was_cancelled(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    assert queue.cancel(debounce(queue, "second"))
    assert queue.cancel(ids=[debounce(queue, "third").id]) != {}
    assert texts(queue) == ["first"]
    queue.ack(taken)
    assert standing(queue, "doc-1").state.is_absent


def test_a_cancel_of_what_follows_alone_lets_what_runs_be_tried_again(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    second = debounce(queue, "second")
    assert queue.cancel(ids=[second.id]) == {second.id: Answer.DONE}
    either.clock.advance(1)
    assert not taken.is_cancelled
    found = queue.get("doc-1")
    assert (found.id, found.state) == (taken.id, "running")
    queue.retry(taken, delay="0s")
    assert received(either, queue) == ["first"]
    assert (texts(queue), queue.totals().cancelled) == (["first"], 1)


def test_what_follows_waits_where_nothing_is_known_of_the_run_before_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    runs(queue)
    names = Names(queue)
    [row] = follow(names, is_written=True).insert
    key = names.keys.look(["doc-1"])["doc-1"]
    view = View(stage.clock.now_us())
    unknown = Standing(key, None, Is.PENDING)
    assert refusal_of(row, unknown, view) is StartRefusal.BEHIND


def test_a_move_by_key_or_id_an_edit_and_a_replace_are_of_what_follows(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    second = debounce(queue, "second", "1h")
    assert queue.move(ids=[taken.id], delay="0s") == {taken.id: Answer.RUNNING}
    assert queue.move("doc-1", delay="10s") is Answer.DONE
    assert queue.edit("doc-1", body="edited") is Answer.DONE
    assert queue.put("x", key="doc-1").text == "edited"
    assert received(either, queue, 20) == []
    made = queue.put("replaced", key="doc-1", on_conflict="replace")
    assert (made.id, texts(queue)) == (second.id, ["first", "replaced"])
    assert received(either, queue, 20) == []
    queue.ack(taken)
    assert received(either, queue) == ["replaced"]


def test_a_replace_of_what_runs_is_refused(queue: Queue) -> None:
    taken = runs(queue)
    with pytest.raises(KeyTaken, match="which runs now") as error:
        queue.put("second", key="doc-1", delay="1h", on_conflict="replace")
    assert error.value.message.id == taken.id
    assert queue.put("second", key="doc-1").id == taken.id
    assert texts(queue) == ["first"]


def test_what_runs_and_was_cancelled_is_followed_too_and_is_told_so(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    assert queue.cancel(key="doc-1") is Answer.RUNNING
    debounce(queue, "second")
    assert taken.is_cancelled
    queue.retry(taken, delay="1h")
    assert received(either, queue) == ["second"]
    assert queue.totals().cancelled == 1


def test_of_a_batch_too_the_last_follows_what_runs(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    given = {"key": "doc-1", "delay": "0s", "on_conflict": "debounce", "max_wait": "1h"}
    queue.put_many([{"body": f"{n}", **given} for n in range(5)])
    assert texts(queue) == ["4", "first"]
    queue.ack(taken)
    assert received(either, queue) == ["4"]


def test_the_dead_that_was_followed_comes_back_only_under_a_free_name(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    debounce(queue, "second", "30s")
    queue.bury(taken)
    with pytest.raises(KeyTaken):
        queue.redrive()
    assert queue.cancel(key="doc-1") is Answer.DONE
    assert queue.redrive() == 1
    assert received(either, queue, 5) == ["first"]


def test_a_message_says_for_what_it_waits(stage: Stage, queue: Queue) -> None:
    runs(queue)
    debounce(queue, "second")
    assert received(stage, queue, 40) == []
    assert "the message that had its key before still runs" in str(queue.state_of(key="doc-1"))


# Crashes ------------------------------------------------------------------------------------------


def follow(names: Names, *, is_written: bool) -> Any:
    """What follows the message that runs, of which maybe only the name is written."""
    change = names.keys.put(names.row("doc-1", body=b"second"), names.of("doc-1"))
    assert names.keys.write([change if is_written else change._replace(insert=())]) == {}
    return change


def test_a_put_that_crashed_before_its_row_leaves_the_name_to_the_message_that_ran(
    apart: Stage,
) -> None:
    queue = apart.connect().queue("mail")
    taken = runs(queue)
    follow(Names(queue), is_written=False)
    assert standing(queue, "doc-1").state is Is.PENDING
    queue.retry(taken, delay="0s")
    assert received(apart, queue, 3.5) == []
    assert received(apart, queue, 3) == ["first"]
    assert standing(queue, "doc-1").state is Is.RUNNING


def test_a_late_row_of_such_a_put_never_begins_and_its_putter_is_told(apart: Stage) -> None:
    queue = apart.connect().queue("mail")
    taken = runs(queue)
    names = Names(queue)
    slow = follow(names, is_written=False)
    queue.retry(taken, delay="0s")
    assert received(apart, queue, 8) == ["first"]
    names.store.insert(slow.insert)
    assert names.keys.displaced([slow]).keys() == {"doc-1"}
    assert received(apart, queue, 90) == []
    assert texts(queue) == ["first"]


def test_a_put_whose_answer_was_lost_is_repeated_as_it_was(either: Stage) -> None:
    queue = either.connect().queue("mail")
    taken = runs(queue)
    either.faults.fail("write_records keys", nth=2, applied=True)
    with pytest.raises(StoreTimeout) as error:
        debounce(queue, "second", "1h")
    [message] = error.value.messages
    again = queue.put(message)
    assert (again.text, texts(queue)) == ("second", ["first", "second"])
    queue.ack(taken)
    assert queue.get("doc-1").id == again.id  # type: ignore[union-attr]


def test_a_row_that_is_refused_for_good_gives_the_name_back_to_what_runs(apart: Stage) -> None:
    queue = apart.connect().queue("mail")
    taken = runs(queue)
    apart.faults.fail("insert", error=StoreRefused("too large"))
    with pytest.raises(StoreRefused):
        debounce(queue, "second")
    found = standing(queue, "doc-1")
    assert (found.state, found.row.message_id) == (Is.RUNNING, taken.id)  # type: ignore[union-attr]
    queue.retry(taken, delay="0s")
    assert received(apart, queue, 3) == ["first"]


def test_a_move_of_what_follows_that_crashed_half_way_lets_nothing_run_beside(
    apart: Stage,
) -> None:
    queue = apart.connect().queue("mail")
    taken = runs(queue)
    names = Names(queue)
    follow(names, is_written=True)
    names.take(names.move("doc-1", delay_ms=0))
    assert received(apart, queue, 20) == []
    queue.retry(taken, delay="0s")
    assert received(apart, queue) == ["second"]


def test_check_frees_no_name_behind_what_runs(apart: Stage) -> None:
    queue = apart.connect().queue("mail")
    taken = runs(queue)
    queue.extend(taken, "2h")
    debounce(queue, "second", "30s")
    queue.check_all()
    assert received(apart, queue, 60) == []


# Processes ----------------------------------------------------------------------------------------

PUTTER = """
    import sys
    import shardq

    url, name, puts = sys.argv[1:]
    with shardq.connect(url) as db:
        queue = db.queue(name)
        ids = {
            queue.put(f"{n}", key="doc-1", delay="1h", on_conflict="debounce").id
            for n in range(int(puts))
        }
        print(*ids)
"""


@on_both_stores
def test_puts_of_two_processes_come_to_one_message_that_follows(url: str, tmp_path: Path) -> None:
    name = f"q-{uuid.uuid4().hex[:12]}"
    with shardq.connect(url) as db:
        queue = db.queue(name)
        taken = runs(queue)
        putters = [
            Process(["-c", textwrap.dedent(PUTTER), url, name, "20"], cwd=tmp_path, env=os.environ)
            for _ in range(2)
        ]
        ids: set[str] = set()
        for putter in putters:
            with putter:
                out, err = putter.communicate(timeout=CHILD_SECONDS_MAX)
            assert putter.returncode == 0, err.decode()
            ids |= set(out.decode().split())
        assert len(ids) == 1
        assert texts(queue) == ["19", "first"]
        queue.ack(taken)
        assert queue.get("doc-1").id in ids  # type: ignore[union-attr]
