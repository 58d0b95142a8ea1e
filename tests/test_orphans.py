"""Names and notes of messages that are not there any more are removed by `check --all`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from keyed import TIMEOUT_MS, as_elsewhere, standing, texts

from shardq import Queue
from shardq.errors import StoreOverread, StoreTimeout
from shardq.model.key import BUCKETS
from shardq.records.ledger import End
from shardq.records.standing import Is
from shardq.stores.tables import KEYS, PLACES
from shardq.testing import Stage


@pytest.fixture(params=["known", "apart"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with Stage() as made:
        if request.param == "apart":
            as_elsewhere(made)
        yield made


def notes(queue: Queue) -> int:
    store = queue._home.store
    return sum(len(store.notes(PLACES, (queue.name, bucket))) for bucket in range(BUCKETS))


def names(queue: Queue) -> int:
    store = queue._home.store
    return sum(len(store.records(KEYS, (queue.name, bucket))) for bucket in range(BUCKETS))


def test_names_of_messages_that_are_not_there_are_freed_and_all_others_kept(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many({"body": str(n), "key": f"k-{n}", "delay": "1h"} for n in range(1_200))
    queue.put("taken", key="running")
    [running] = queue.receive()
    queue.put("dead", key="dead")
    queue.bury(queue.receive()[0])
    lost = [message._row.position for message in queue.peek(1_100) if message.key != "running"]
    stage._store.delete(lost)
    stage.clock.advance(2 * TIMEOUT_MS / 1e3 + 1)
    check = queue.check_all()
    assert (check.freed, check.moved, names(queue)) == (len(lost), 0, 1_202 - len(lost))
    assert standing(queue, "running").row == running._row
    assert standing(queue, "dead").state is Is.DEAD
    assert queue.check_all().freed == 0
    assert queue.dead.check_all().freed == 0


def test_a_name_whose_row_is_about_to_be_written_is_kept(stage: Stage, queue: Queue) -> None:
    message = queue.put("x", key="k", delay="1h")
    stage._store.delete([message._row.position])
    is_over_at_once = not stage._store.write_timeout_ms
    assert queue.check_all().freed == is_over_at_once
    stage.clock.advance(2 * TIMEOUT_MS / 1e3 + 1)
    assert queue.check_all().freed == (not is_over_at_once)


def test_notes_that_nothing_leads_to_are_erased_and_all_others_kept(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for key in ("ended", "moved", "dead"):
        queue.put(key, key=key)
    for taken in queue.receive():
        (queue.bury if taken.text == "dead" else queue.retry)(taken)
    assert notes(queue) == 3
    row = standing(queue, "ended").row
    assert row is not None
    stage.faults.fail("erase places")
    with pytest.raises(StoreTimeout):
        queue._settler.finish([row], End.CANCELLED)
    queue._settler.delete([row.position])
    assert notes(queue) == 3
    queue.check_all()
    assert notes(queue) == 2
    assert texts(queue) == ["moved"]
    for key, is_there in (("moved", Is.WAITING), ("dead", Is.DEAD), ("ended", Is.FREE)):
        assert standing(queue, key).state is is_there


def test_a_message_that_ends_leaves_neither_name_nor_note(queue: Queue) -> None:
    queue.put("x", key="k")
    for _ in range(3):
        [taken] = queue.receive()
        queue.retry(taken, "0s")
    queue.ack(queue.receive()[0])
    queue.put("y", key="k")
    queue.bury(queue.receive()[0])
    queue.redrive()
    queue.ack(queue.receive()[0])
    assert (names(queue), notes(queue)) == (0, 0)


def test_a_bucket_that_cannot_be_read_is_left_for_another_time(stage: Stage, queue: Queue) -> None:
    for n in range(100):
        message = queue.put("x", key=f"k-{n}", delay="1h")
        stage._store.delete([message._row.position])
    stage.clock.advance(2 * TIMEOUT_MS / 1e3 + 1)
    stage.faults.fail("notes keys", error=StoreOverread("too many deleted rows"))
    freed = queue.check_all().freed
    assert 0 < freed < 100
    assert queue.check_all().freed == 100 - freed
