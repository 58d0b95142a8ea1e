"""What can be handed to another process, and what only says how to do without."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import is_dataclass
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pooled import busy_at_first

import shardq
from shardq import (
    Bury,
    Consumer,
    Message,
    Observer,
    Policies,
    Queue,
    Retry,
    Schedule,
    Snooze,
    Totals,
    errors,
)
from shardq.errors import BadReceipt, StaleReceipt, StoreTimeout, UsageError
from shardq.testing import Recorder, Stage


def copies(value: object) -> Iterator[object]:
    """Each way to copy a value."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(value, protocol))
    yield copy.copy(value)
    yield copy.deepcopy(value)


# Exceptions ---------------------------------------------------------------------------------------


class Busy(Snooze):
    """A request of a user's own, made in its own way."""

    def __init__(self, *, host: str) -> None:
        super().__init__("30s")
        self.host = host


delays = st.one_of(st.none(), st.integers(0, 1 << 40).map(lambda ms: timedelta(milliseconds=ms)))
some = delays.filter(lambda delay: delay is not None)
requests = st.one_of(
    st.builds(Retry, delays, st.text()),
    st.builds(Snooze, some),
    st.builds(Bury, st.text()),
    st.builds(Busy, host=st.text()),
)
raised = st.one_of(
    requests,
    *(
        st.builds(kind, st.text(), st.lists(st.text()))
        if issubclass(kind, errors.StoreError)
        else st.builds(kind, st.text())
        for kind in (getattr(errors, name) for name in errors.__all__)
    ),
)


@given(raised, st.lists(st.text(), max_size=2))
def test_an_exception_of_shardq_is_the_same_in_another_process(
    error: Exception, notes: list[str]
) -> None:
    for note in notes:
        error.add_note(note)
    for other in copies(error):
        assert type(other) is type(error)
        assert (repr(other), str(other)) == (repr(error), str(error))
        assert other.args == error.args
        assert vars(other) == vars(error)


def test_a_timeout_carries_its_messages_to_another_process(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.faults.fail("insert", times=2, applied=True)
    with pytest.raises(StoreTimeout) as caught:
        queue.put("a")
    [message] = pickle.loads(pickle.dumps(caught.value)).messages
    queue.put(message)
    assert [one.id for one in queue.peek()] == [message.id]


def test_what_a_pool_s_function_raises_is_what_the_handler_raises(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    sent = queue.put("a")
    receipts: list[str] = []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        seen = Recorder(
            stage.clock, lambda one: receipts.append(pool.submit(busy_at_first, one).result())
        )
        stage.drain(queue, Consumer(queue, seen), within="2m")
    assert [message.attempt for message in seen.messages] == [1, 1]
    assert seen.messages[1].due - sent.due >= timedelta(seconds=20)
    assert receipts == [seen.messages[1].receipt]


# Messages -----------------------------------------------------------------------------------------

READ = ("id", "queue", "body", "text", "headers", "attempt", "due", "due_ms", "first_due", "group")


def test_a_message_is_the_same_in_another_process_and_holds_no_secret(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=3)
    put = queue.put("hello", headers={"to": "ada"}, priority=2, group="g", id="letter-7")
    stage.clock.advance(1)
    [got] = queue.receive()
    secret = queue._home.register._record.secret
    for message in (put, got):
        assert all(secret not in pickle.dumps(message, n) for n in range(2, 6))
        for other in copies(message):
            assert type(other) is Message
            for name in (*READ, "priority", "receipt"):
                assert getattr(other, name) == getattr(message, name)
            assert repr(other) == repr(message)


def test_a_message_from_another_process_is_settled_as_one_of_this(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(["a", "b", "c"])
    stage.clock.advance(1)
    first, second, third = (pickle.loads(pickle.dumps(one)) for one in queue.receive())
    queue.ack(first)
    queue.snooze(second.receipt, "1m")
    with pytest.raises(StaleReceipt):
        queue.ack(first)
    with pytest.raises(BadReceipt):
        stage.connect().queue("sms").ack(third)
    queue.bury(third, "no such address")
    assert [one.id for one in queue.dead.peek()] == [third.id]
    assert [one.id for one in queue.peek()] == [second.id]


# Values -------------------------------------------------------------------------------------------


def test_what_a_queue_tells_of_itself_is_the_same_in_another_process(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    queue.put("a", delay="1s")
    # Totals are stored every few seconds.
    stage.drive(Consumer(queue, Recorder(stage.clock)), seconds=10, stride=0.1)
    audit, totals = queue.audit(), queue.totals()
    queue.put("c", delay="1h", key="order-7")
    queue.put("d")
    [taken] = queue.receive(wait="1s")
    queue.retry(taken, "1h", reason="no route to host")
    told = [
        queue.settings,
        totals,
        queue.depth(exact=True),
        audit,
        audit.total,
        queue.check_all(),
        queue.state_of(queue.put("b")),
        queue.get("order-7"),
        queue.every("1h", "again", jitter="1m").policies,
        *(records := list(queue.history())),
        *(one for record in records for one in record.failed),
        *(view := Observer(db).look()),
        *(lane for one in view for lane in one.lanes),
        *(member for one in view for member in one.members),
    ]
    public = {getattr(shardq, name) for name in shardq.__all__}
    assert {type(one) for one in told} == {
        Totals,
        Policies,
        *(one for one in public if is_dataclass(one) and one is not Schedule),
    }
    assert totals.lateness.count == 1
    for one in told:
        for other in copies(one):
            assert repr(other) == repr(one)


# What stays ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "held",
    [
        lambda queue: queue,
        lambda queue: queue.dead,
        lambda queue: queue.put,
        lambda queue: Consumer(queue, print),
        lambda queue: queue.every("1h", "again"),
    ],
)
def test_a_queue_says_that_the_other_process_has_to_connect(
    stage: Stage, held: Callable[[Queue], object]
) -> None:
    queue = stage.connect().queue("mail")
    with pytest.raises(
        UsageError, match=r"shardq.connect\(url\).queue\('mail(.dead)?'\)(\.schedules.+)? in the"
    ):
        pickle.dumps(held(queue))


def test_a_connection_says_so_without_its_password(stage: Stage, tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        for held in (db, Observer(db)):
            with pytest.raises(
                UsageError, match=r"hand over the store's url, and call shardq.connect"
            ):
                pickle.dumps(held)
