"""`receive`: durable claims, shared by several servers, settled by receipt."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
from worlds import World, on_each_store

import shardq
from shardq import Consumer, Message, Queue
from shardq.engine.engine import Engine
from shardq.engine.handing.caller import ReceiveCall
from shardq.errors import (
    BadReceipt,
    BadSetting,
    BadTime,
    ShardqError,
    StaleReceipt,
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
)
from shardq.model.shard import Position
from shardq.stores.store import RowMove
from shardq.stores.tables import MEMBERS
from shardq.testing import Recorder, Stage


def receive(stage: Stage, queue: Queue, seconds: float = 1.0, count: int = 10) -> list[Message]:
    return queue.receive(count, wait=f"{round(seconds * 1_000)}ms")


def test_a_received_message_is_claimed_before_it_is_returned(stage: Stage, queue: Queue) -> None:
    sent = queue.put("a")
    [message] = receive(stage, queue)
    [row] = [found._row for found in queue.peek()]
    assert message._row == row
    assert (row.claim is not None, row.attempt, row.message_id) == (True, 1, sent.id)
    assert row.due_ms == stage.clock.now_ms() + 30_000
    assert receive(stage, queue) == []


def test_a_message_whose_write_took_long_is_received_at_once(stage: Stage, queue: Queue) -> None:
    queue.put("first")
    [first] = queue.receive()

    def pass_by() -> None:
        # A poll passes the message's due before its row is there.
        stage.clock.advance(0.3)
        assert queue.receive() == []

    stage.faults.call("insert", pass_by, after=False)
    queue.put("slow")
    assert [message.text for message in queue.receive()] == ["slow"]
    queue.ack(first)


@pytest.mark.parametrize("read_ms", [0, 0.7, 30])
def test_what_was_put_within_this_millisecond_is_received_without_a_wait(
    stage: Stage, queue: Queue, read_ms: float
) -> None:
    queue.receive()
    stage.clock.advance(0.0004)
    queue.put("a")
    # The message may come due between two reads of a step.
    stage.faults.call("read", partial(stage.clock.advance, read_ms / 1e3))
    assert [message.text for message in queue.receive()] == ["a"]


@on_each_store
def test_what_is_put_is_received_at_once_without_a_wait(world: World) -> None:
    queue = world.connect().queue(world.queue_name())
    for number in range(100):
        queue.put(f"{number}")
        [message] = queue.receive()
        assert message.text == f"{number}"
        queue.ack(message)


def test_a_first_receive_without_a_wait_finds_all_groups_though_a_lease_takes_long(
    stage: Stage,
    queue: Queue,
) -> None:
    texts = [f"of {number}" for number in range(40)]
    queue.put_many({"body": text, "group": text} for text in texts)
    # A step reads no more lanes after 250 ms, and the first lanes with messages are leased by then.
    stage.faults.call("take", partial(stage.clock.advance, 0.3))
    assert sorted(message.text for message in queue.receive(40)) == sorted(texts)


def test_a_claim_can_be_acked_until_its_end_and_retried_until_1_s_before(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(["a", "b", "c", "d"])
    first, second, third, fourth = receive(stage, queue)
    stage.clock.advance(28.9)
    queue.retry(first, "1h")
    stage.clock.advance(0.2)
    for settle in (queue.retry, queue.extend, queue.bury):
        with pytest.raises(StaleReceipt):
            settle(second)
    queue.ack(second)
    stage.clock.advance(0.8)
    queue.ack(third)
    stage.clock.advance(0.2)
    with pytest.raises(StaleReceipt):
        queue.ack(fourth)


def test_what_is_received_for_no_time_is_returned_and_delivered_again_at_once(
    stage: Stage,
    queue: Queue,
) -> None:
    queue.put("a")
    [first] = queue.receive(visibility="0s", wait="1s")
    stage.clock.advance(0.01)
    [again] = receive(stage, queue)
    assert (first.attempt, again.attempt, again.id) == (1, 2, first.id)
    with pytest.raises(StaleReceipt):
        queue.ack(first)
    queue.ack(again)
    assert stage.is_empty(queue)


def test_extending_gives_a_new_receipt_and_the_old_one_is_stale(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    [message] = queue.receive(visibility="5s", wait="1s")
    stage.clock.advance(3)
    receipt = queue.extend(message, "60s")
    with pytest.raises(StaleReceipt):
        queue.ack(message)
    assert receive(stage, queue, seconds=50) == []
    queue.ack(receipt)
    assert stage.is_empty(queue)


def test_a_claim_that_its_holder_moves_on_in_the_last_moment_is_handed_to_nobody(
    stage: Stage,
    queue: Queue,
) -> None:
    queue.put("a")
    [message] = queue.receive(visibility="6s", wait="1s")
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    queue.close()
    # So shortly before the due a reader has read the claim ahead.
    stage.drive(consumer, seconds=4.8)
    receipt = queue.extend(message, "30s")
    stage.drive(consumer, seconds=20)
    assert seen.texts == []
    queue.ack(receipt)
    assert stage.is_empty(queue)


def test_two_servers_share_a_queue_and_none_gets_what_the_other_has(stage: Stage) -> None:
    queues = [stage.connect().queue("mail") for _ in range(2)]
    got: list[list[str]] = [[], []]
    for n in range(400):
        if n < 300:
            queues[n % 2].put(f"{n}")
        for mine, queue in zip(got, queues, strict=True):
            messages = queue.receive(5)
            mine += [message.text for message in messages]
            if messages:
                queue.ack(*messages)
        # Not a multiple of the 50 ms after which a producer takes the next lane.
        stage.clock.advance(0.07)
    assert sorted(got[0] + got[1], key=int) == [f"{n}" for n in range(300)]
    assert all(got)


def test_received_messages_come_in_order_of_priority_and_due(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=2)
    for n in range(10):
        queue.put(f"{1 - n % 2} {n}", priority=1 - n % 2)
        stage.clock.advance(0.01)
    texts = [message.text for message in receive(stage, queue, count=20)]
    assert texts == sorted(texts)


def test_an_ack_that_was_stored_is_no_failure_where_its_group_cannot_be_pulled(
    stage: Stage,
    queue: Queue,
) -> None:
    for text in ("head", "next"):
        queue.put(text, group="g")
    [head] = queue.receive(1, visibility="10s", wait="1s")
    stage.faults.fail("insert")
    queue.ack(head)
    [after] = receive(stage, queue, seconds=20)
    assert after.text == "next"


def test_waiting_ends_with_the_first_message_or_with_its_time(stage: Stage, queue: Queue) -> None:
    at_us = stage.clock.now_us()
    assert queue.receive(wait="7s") == []
    assert stage.clock.now_us() - at_us == pytest.approx(7e6, abs=2e5)
    queue.put("soon", delay="2s")
    at_us = stage.clock.now_us()
    [message] = queue.receive(wait="1h")
    assert 2e6 <= stage.clock.now_us() - at_us < 2.01e6
    assert message.text == "soon"


@pytest.mark.parametrize("verb", ["move", "find", "read", "take", "edit"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_call_that_fails_loses_nothing(stage: Stage, verb: str, applied: bool) -> None:
    queue = stage.connect().queue("mail", attempts=20)
    for n in range(10):
        queue.put(f"{n}", group="g" if n % 2 else None)
        stage.clock.advance(0.01)
    got = set()
    for round_ in range(60):
        if round_ % 3 == 0:
            stage.faults.fail(verb, nth=1 + round_ % 4, applied=applied)
        try:
            messages = queue.receive(4, visibility="3s", wait="4s")
            got.update(message.text for message in messages)
            queue.ack(*messages)
        except (StoreTimeout, StoreUnavailable, StaleReceipt):
            stage.clock.advance(1)
        if stage.is_empty(queue):
            break
    assert stage.is_empty(queue)
    assert queue.dead.peek() == []
    if not applied:
        assert got == {f"{n}" for n in range(10)}


def test_leases_are_released_when_the_last_caller_has_gone(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    [message] = receive(stage, queue)
    queue.put("b")
    queue.close()
    seen = Recorder(stage.clock)
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=1)
    assert seen.texts == ["b"]
    assert "edit" not in stage.faults.calls
    queue.ack(message)


def test_a_thread_keeps_the_leases_between_calls_and_releases_them_in_the_end() -> None:
    with Stage(threaded=True) as stage:
        from shardq import Connection

        db = Connection(stage._store, stage.clock)
        queue = db.queue("mail")
        shard = queue.put("a")._row.shard
        with stage.ticking(0.02):
            called_us = stage.clock.boot_us()
            [message] = queue.receive(wait="5s")
            queue.ack(message)
            for _ in range(1_000):
                if queue._receiver._engine is None:
                    break
                stage.clock.sleep(0.1)
            assert queue._receiver._engine is None
            assert stage.clock.boot_us() - called_us >= 4_500_000
            for _ in range(1_000):
                # The engine is gone before its lease is, and the member's note goes last.
                if stage._store.notes(MEMBERS, ("mail",)) == {}:
                    break
                stage.clock.sleep(0.1)
            assert stage._store.notes(MEMBERS, ("mail",)) == {}
            assert stage._store.lease_states([shard])[shard].holder is None
        assert not [t for t in threading.enumerate() if t.name == "shardq-receive"]
        db.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max": 0}, BadSetting),
        ({"max": 1_001}, BadSetting),
        ({"max": True}, BadSetting),
        ({"visibility": "-1s"}, BadTime),
        ({"visibility": 30}, BadTime),
        ({"wait": "2h"}, BadTime),
        ({"per_group": 0}, BadSetting),
        ({"per_group": 1_001}, BadSetting),
        ({"per_group": True}, BadSetting),
    ],
)
def test_bad_input_is_refused(stage: Stage, options: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        stage.connect().queue("mail").receive(**options)


def engine_of_callers(stage: Stage, queue: Queue, away_us: list[int]) -> Engine:
    """An engine whose last caller left `away_us[0]` ago."""
    return Engine(
        queue._home.of_member(),
        prefetch=1_000,
        threads=0,
        caller_away_us=lambda: away_us[0],
    )


def test_who_receives_seldom_leaves_the_rest_to_those_who_wait_for_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for number in range(20):
        queue.put(str(number))
    away_us = [0]
    seldom = engine_of_callers(stage, queue, away_us)
    seldom.step()
    taken = seldom.ready.take()
    assert taken.run(taken.begun_us)
    assert len(seldom.ready) == 19
    handed = Recorder(stage.clock)
    idle = Consumer(stage.connect().queue("mail"), handed)
    stage.drive(idle, seconds=1)
    assert handed.messages == []
    away_us[0] = 2_000_000
    for _ in range(10):
        seldom.step()
        stage.drive(idle, seconds=0.5)
    assert len(handed) >= 19
    seldom.close()


def test_between_two_calls_no_lane_is_taken_that_another_could_read(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=6, bands=1)
    away_us = [0]
    engine = engine_of_callers(stage, queue, away_us)
    others = [Consumer(stage.connect().queue("mail"), Recorder(stage.clock)) for _ in range(2)]
    for _ in range(8):
        engine.step()
        stage.drive(*others, seconds=1)
    kept = set(engine.memory.lanes)
    assert len(kept) == 2
    away_us[0] = 500_000
    others.pop().close()
    for _ in range(8):
        engine.step()
        stage.drive(*others, seconds=1)
    assert set(engine.memory.lanes) <= kept
    # The next caller finds them taken at once.
    away_us[0] = 0
    engine.step()
    assert len(engine.memory.lanes) == 3
    engine.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_call_that_took_long_is_followed_by_another_and_keeps_its_lanes(
    stage: Stage, queue: Queue, *, is_there: bool
) -> None:
    queue.put_many(f"{n}" for n in range(100))
    receive(stage, queue, count=1)
    waiting = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))
    waiting.step()
    engine = queue._receiver._engine
    assert engine is not None
    stage.faults.call("move", lambda: stage.clock.advance(3), after=False)
    if not is_there:
        stage.faults.fail("move")
    with nullcontext() if is_there else pytest.raises(StoreUnavailable):
        receive(stage, queue, count=1)
    # The receiver's thread does this between two calls.
    engine.step()
    assert engine.memory.lanes


def test_a_group_does_not_wait_for_a_head_that_was_cancelled_in_hand(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put("other")
    head = queue.put("head", group="g")
    queue.put("next", group="g")
    assert [m.text for m in receive(stage, queue, count=1)] == ["other"]
    assert stage.connect().queue("mail").cancel(head)
    begun_ms = stage.clock.now_ms()
    assert [m.text for m in receive(stage, queue, seconds=20)] == ["next"]
    assert stage.clock.now_ms() < begun_ms + 5_000


def test_of_claims_whose_answer_was_lost_those_that_were_made_are_returned(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(f"{n}" for n in range(5))
    stage.faults.fail("move", applied=True)
    messages = queue.receive(5, visibility="30s", wait="1s")
    assert sorted(message.text for message in messages) == [f"{n}" for n in range(5)]
    queue.ack(*messages)
    assert stage.is_empty(queue)


def test_claims_that_were_not_made_are_tried_again(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    lost = StoreTimeout("the answer was lost")
    stage.faults.fail("move", error=lost)
    with pytest.raises(StoreTimeout):
        queue.receive(wait="1s")
    [message] = queue.receive(wait="1s")
    assert (message.text, message.attempt) == ("a", 1)


def test_a_claim_that_took_longer_than_it_lasts_is_not_returned(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    stage.faults.call("move", lambda: stage.clock.advance(6))
    assert queue.receive(visibility="5s", wait="1s") == []
    [message] = queue.receive(visibility="5s", wait="1s")
    # A claim whose time was over at once counts as a delivery that nobody settled.
    assert (message.text, message.attempt) == ("a", 2)
    queue.ack(message)
    assert stage.is_empty(queue)


@pytest.mark.parametrize("error", [StoreTimeout("no answer"), StoreUnavailable("away")])
@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_large_claim_whose_old_row_was_not_deleted_leaves_no_copy(
    stage: Stage, error: StoreError, fails: int
) -> None:
    queue = stage.connect().queue("mail", history="1h")
    store = queue._home.store

    def insert_and_delete(moves: Iterable[RowMove], *_marks: object) -> set[Position]:
        # Cassandra takes these two steps if a message is too large for a batch of two partitions.
        made = list(moves)
        store.insert([move.new for move in made])
        store.delete([move.old for move in made])
        return set()

    store.move = insert_and_delete  # type: ignore[method-assign]
    queue.put_many(["a", "b"])
    stage.faults.fail("delete", times=fails, error=error)
    messages = queue.receive(5, visibility="30s", wait="1s")
    assert sorted(message.text for message in messages) == ["a", "b"]
    for _ in range(fails):
        with suppress(StoreError):
            assert queue.receive(5, visibility="30s", wait="1s") == []
    queue.ack(*messages)
    assert stage.is_empty(queue)


@pytest.mark.usefixtures("in_steps")
@pytest.mark.parametrize("fails", [1, 2, 3])
def test_a_burial_whose_end_was_not_recorded_is_completed_and_leaves_no_copy(
    stage: Stage, fails: int
) -> None:
    queue = stage.connect().queue("mail", history="1h", attempts=1)
    queue.put("a")
    queue.receive(visibility="2s", wait="1s")
    queue.put("b")
    stage.clock.advance(3)
    stage.faults.fail("record", times=fails, error=StoreUnavailable("away"))
    messages: list[Message] = []
    while not messages:
        with suppress(StoreTimeout):
            messages = queue.receive(5, visibility="30s", wait="1s")
    [message] = messages
    assert message.text == "b"
    queue.ack(message)
    assert stage.is_empty(queue)
    assert [message.text for message in queue.dead.peek()] == ["a"]
    stage.clock.advance(1)
    assert queue.audit().is_even


def test_a_queue_is_not_read_without_the_thread_that_renews_its_leases() -> None:
    with shardq.connect("sqlite://") as db:
        queue = db.queue("mail")
        queue.put("hello")
        size = threading.stack_size(1 << 50)
        try:
            for _ in range(2):
                with pytest.raises(ShardqError, match="cannot be read: can't start new thread"):
                    queue.receive()
        finally:
            threading.stack_size(size)
        [message] = queue.receive()
        assert message.text == "hello"


def test_a_partial_ack_ends_what_it_can_and_answers_for_each(stage: Stage) -> None:
    db = stage.connect()
    queue, other = db.queue("mail"), db.queue("sms")
    queue.put_many(["a", "b", "c"])
    first, second, third = receive(stage, queue)
    other.put("d")
    [alien] = other.receive(wait="1s")
    queue.ack(second)
    answers = queue.ack(first, second, alien, third.receipt, third, "no receipt", partial=True)
    assert [type(answer) for answer in answers] == [
        type(None),
        StaleReceipt,
        BadReceipt,
        type(None),
        type(None),
        BadReceipt,
    ]
    assert stage.is_empty(queue)
    assert queue.totals().acked == 3
    assert queue.ack(partial=True) == []


@pytest.mark.parametrize("group", [None, "g"])
def test_a_partial_settlement_answers_for_each_of_several(stage: Stage, group: str | None) -> None:
    queue = stage.connect().queue("mail")
    for n in range(5):
        queue.put(f"{n}", group=None if group is None else f"{group}{n}")
    extended = queue.extend(receive(stage, queue), "1m", partial=True)
    assert all(isinstance(receipt, str) for receipt in extended)
    queue.ack(str(extended[0]))
    other = stage.connect().queue("other").put("x")
    answers = queue.retry([*extended[:3], "damaged", other], "5s", partial=True)
    assert [type(answer) for answer in answers] == [
        StaleReceipt, type(None), type(None), BadReceipt, BadReceipt,
    ]  # fmt: skip
    assert queue.snooze(str(extended[3]), "5s") is None
    stale, buried = queue.bury(extended[3:], "of no use", partial=True)
    assert (type(stale), buried) == (StaleReceipt, None)
    assert type(queue.extend([extended[4]], partial=True)[0]) is StaleReceipt
    totals = queue.totals()
    assert (totals.acked, totals.retried, totals.snoozed, totals.buried) == (1, 2, 1, 1)
    again = receive(stage, queue, seconds=6)
    assert sorted(message.attempt for message in again) == [1, 2, 2]
    assert len(queue.dead.peek()) == 1
    for settle in (queue.retry, queue.extend, queue.bury):
        with pytest.raises(BadReceipt, match="several only with partial=True"):
            settle(again)


def test_of_many_acks_in_one_call_a_stale_one_keeps_all_from_ending(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put_many(["a", "b"])
    first, second = receive(stage, queue)
    queue.ack(second)
    with pytest.raises(StaleReceipt):
        queue.ack(first, second)
    queue.ack(first, first.receipt)
    assert queue.totals().acked == 2


# Many callers -------------------------------------------------------------------------------------


def test_one_read_finds_what_arrives_in_many_queues_at_rest() -> None:
    with Stage(threaded=True) as stage:
        from shardq import Connection

        db = Connection(stage._store, stage.clock)
        queues = [db.queue(f"mail-{n}") for n in range(4)]
        found: list[bytes] = []

        def wait(queue: Queue) -> None:
            for message in queue.receive(wait="10m"):
                found.append(message.body)
                queue.ack(message)

        with stage.ticking(0.01):
            waiting = begun([partial(wait, queue) for queue in queues])
            stage.clock.sleep(10)
            calls = Counter(stage.faults.calls)
            stage.clock.sleep(30)
            calls = Counter(stage.faults.calls) - calls
            # Polled by their own, each would be read over a hundred times.
            assert calls["occupied_queues"] > 30
            assert calls["read"] < 30 * len(queues)
            other = Connection(stage._store, stage.clock, background=False)
            for n, queue in enumerate(queues):
                put_us = stage.clock.boot_us()
                other.queue(queue.name).put(f"{n}")
                waiting[n].join(60)
                assert not waiting[n].is_alive()
                assert stage.clock.boot_us() - put_us < 1_400_000
            assert sorted(found) == [b"0", b"1", b"2", b"3"]
            db.close()


def test_queues_at_rest_are_polled_where_the_shared_read_fails() -> None:
    with Stage(threaded=True) as stage:
        from shardq import Connection

        db = Connection(stage._store, stage.clock)
        queues = [db.queue(f"mail-{n}") for n in range(2)]
        stage.faults.fail("occupied_queues", times=1_000)
        with stage.ticking(0.01):
            waiting = begun([partial(queue.receive, wait="10m") for queue in queues])
            stage.clock.sleep(10)
            Connection(stage._store, stage.clock, background=False).queue("mail-0").put("a")
            waiting[0].join(60)
            assert not waiting[0].is_alive()
            db.close()


def together(works: Iterable[Callable[[], None]]) -> None:
    """Do each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@contextmanager
def held(stage: Stage, verb: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The next call of a verb waits in the store; events: it is there, and it may go on."""
    arrived, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        may_go_on.wait(60)

    stage.faults.call(verb, hold, after=False)
    try:
        yield arrived, may_go_on
    finally:
        may_go_on.set()


def begun(works: Sequence[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def in_line(hub: object, count: int) -> None:
    """Wait until `count` callers are in a hub's line."""
    while len(hub._line) < count:  # type: ignore[attr-defined]
        threading.Event().wait(0.001)


def test_what_many_threads_put_while_a_put_is_under_way_is_one_write(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    hub = queue._producer._puts.of(queue.put("first")._row.shard)
    before = stage.faults.calls["insert"]
    with held(stage, "insert") as (arrived, may_go_on):
        threads = begun([lambda n=n: queue.put(f"{n}") for n in range(20)])  # type: ignore[misc]
        arrived.wait(60)
        in_line(hub, 20)
        may_go_on.set()
        for thread in threads:
            thread.join(60)
    assert stage.faults.calls["insert"] - before == 2
    texts = sorted(message.text for message in queue.peek(100))
    assert texts == sorted(["first", *(f"{n}" for n in range(20))])
    assert queue.totals().put == 21


def test_of_puts_of_many_the_one_that_is_refused_fails_alone(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    hub = queue._producer._puts.of(queue.put("first")._row.shard)
    failures: list[ShardqError] = []

    def put(text: str) -> None:
        try:
            queue.put(text)
        except ShardqError as error:
            failures.append(error)

    with held(stage, "insert") as (arrived, may_go_on):
        threads = begun([partial(put, f"{n}") for n in range(4)])
        arrived.wait(60)
        in_line(hub, 4)
        # Fail the insert of the three together, and then that of the second alone.
        stage.faults.fail("insert", nth=1, error=StoreRefused("too large"))
        stage.faults.fail("insert", nth=3, error=StoreRefused("too large"))
        may_go_on.set()
        for thread in threads:
            thread.join(60)
    [failure] = failures
    assert isinstance(failure, StoreRefused)
    [message] = failure.messages
    texts = {one.text for one in queue.peek(100)}
    assert texts == {"first", *(f"{n}" for n in range(4))} - {message.text}


def test_a_put_whose_outcome_is_unknown_is_repeated_once_before_anyone_is_told(
    stage: Stage,
    queue: Queue,
) -> None:
    stage.faults.fail("insert", applied=True)
    sent = queue.put("a")
    assert [message.id for message in queue.peek()] == [sent.id]
    stage.faults.fail("insert", times=2, applied=True)
    with pytest.raises(StoreTimeout) as caught:
        queue.put("b")
    [message] = caught.value.messages
    queue.put(message)
    assert sorted(one.text for one in queue.peek()) == ["a", "b"]


def test_of_many_that_ack_the_same_delivery_at_once_one_has_ended_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(["a", "b"])
    first, second = receive(stage, queue)
    hub = queue._receipts._ends.of(first._row.shard)
    stale: list[StaleReceipt] = []

    def ack(message: Message) -> None:
        try:
            queue.ack(message)
        except StaleReceipt as error:
            stale.append(error)

    with held(stage, "find") as (arrived, may_go_on):
        threads = begun([partial(ack, message) for message in (first, second, second, second)])
        arrived.wait(60)
        in_line(hub, 4)
        may_go_on.set()
        for thread in threads:
            thread.join(60)
    assert len(stale) == 2
    assert stage.is_empty(queue)
    assert queue.totals().acked == 2


def test_of_many_that_ack_a_message_by_all_its_receipts_at_once_one_has_ended_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(["a", "b"])
    first, other = queue.receive(visibility="5s", wait="1s", lasting=True)
    again, _ = receive(stage, queue, seconds=20)
    assert again.id == first.id
    assert again._row.shard == first._row.shard
    hub = queue._receipts._ends.of(first._row.shard)
    with held(stage, "find") as (arrived, may_go_on):
        threads = begun([partial(queue.ack, other, redelivered=True)])
        arrived.wait(60)
        # These acks are one batch.
        threads += begun([partial(queue.ack, one, redelivered=True) for one in (first, again) * 3])
        in_line(hub, 7)
        may_go_on.set()
        for thread in threads:
            thread.join(60)
    assert stage.is_empty(queue)
    assert queue.totals().acked == 2


def test_many_callers_get_each_message_once(tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        queue = db.queue("mail")
        got: list[str] = []

        def work(number: int) -> None:
            for n in range(25):
                queue.put(f"{number} {n}")
                [message] = queue.receive(1, wait="60s")
                queue.ack(message)
                got.append(message.text)

        together([partial(work, number) for number in range(16)])
        assert sorted(got) == sorted(f"{number} {n}" for number in range(16) for n in range(25))
        assert queue.depth(exact=True).total == 0
        totals = queue.totals()
        assert (totals.put, totals.delivered, totals.acked) == (400, 400, 400)


def test_callers_that_wait_are_served_in_their_order(tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        queue = db.queue("mail", lanes=1)
        got: dict[int, list[str]] = {}

        def call(number: int) -> None:
            got[number] = [message.text for message in queue.receive(2, wait="60s")]

        threads = []
        for number in range(3):
            threads += begun([partial(call, number)])
            in_line(queue._receiver, number + 1)
        queue.put_many(["a", "b", "c", "d", "e"])
        for thread in threads:
            thread.join(60)
        assert [len(got[number]) for number in range(3)] == [2, 2, 1]


def test_a_close_answers_those_that_wait(tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        queue = db.queue("mail")
        got: list[list[Message]] = []
        threads = begun([lambda: got.append(queue.receive(wait="1h"))] * 3)
        in_line(queue._receiver, 3)
        queue.close()
        for thread in threads:
            thread.join(60)
        assert got == [[], [], []]


def test_a_caller_that_arrives_as_leases_are_released_is_served() -> None:
    with Stage(threaded=True) as stage:
        db = shardq.Connection(stage._store, stage.clock)
        queue = db.queue("mail")
        queue.put("a")
        queue.ack(*queue.receive())
        with held(stage, "release") as (arrived, may_go_on), stage.ticking(0.02):
            assert arrived.wait(60)
            over = threading.Event()
            late = ReceiveCall(1, 3_600_000, stage.clock.boot_us(), on_over=over.set)
            queue._receiver.ask(late)
            queue.put("b")
            may_go_on.set()
            assert over.wait(60)
            assert [message.text for message in late.answer()] == ["b"]
        db.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_in_a_step_fails_those_that_wait_and_the_next_call_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        queue = db.queue("mail")
        failures: list[ShardqError] = []

        def call() -> None:
            try:
                queue.receive(wait="1h")
            except ShardqError as error:
                failures.append(error)

        threads = begun([call] * 3)
        in_line(queue._receiver, 3)
        while not all(caller.is_looked for caller in list(queue._receiver._line)):
            threading.Event().wait(0.001)

        def fail(_engine: Engine) -> float:
            raise ZeroDivisionError("a fault")

        with monkeypatch.context() as patched:
            patched.setattr(Engine, "step", fail)
            for thread in threads:
                thread.join(60)
        assert len(failures) == 3
        assert all("ended by a fault of its own, ZeroDivision" in str(one) for one in failures)
        queue.put("a")
        [message] = queue.receive(wait="50s")
        queue.ack(message)


def test_what_was_claimed_for_a_caller_that_has_gone_is_the_next_one_s(tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        queue = db.queue("mail")
        queue.receive()
        gone = ReceiveCall(1, 3_600_000, 0)
        queue._receiver.ask(gone)
        queue.put("a")
        while not gone.is_over:
            threading.Event().wait(0.001)
        queue._receiver.abandon(gone)
        [message] = queue.receive(1, wait="60s")
        assert (message.text, message.attempt) == ("a", 1)


@on_each_store
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("visibility_ms", [900, 400])
def test_what_was_claimed_for_a_caller_that_has_gone_costs_no_attempt_shortly_before_its_time_is_up(
    world: World, visibility_ms: int, group: str | None
) -> None:
    queue = world.connect().queue(world.queue_name(), lanes=1, group_lanes=1)
    queue.receive()
    queue.put("a", group=group)
    world.pass_time(0.01)
    gone = ReceiveCall(1, visibility_ms, 0)
    queue._receiver.ask(gone)
    # Without a stepper this call serves all callers in line.
    assert queue.receive(1, "1h") == []
    assert gone.is_over
    queue._receiver.abandon(gone)
    [message] = queue.receive(1, "1h", "5s")
    assert (message.text, message.attempt) == ("a", 1)


def test_what_is_claimed_one_by_one_comes_again_where_one_of_them_meets_an_outage() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        receiver = queue._receiver
        assert queue.receive() == []
        queue.put_many(["a", "b"])
        stage.clock.advance(0.05)
        callers = [ReceiveCall(1, 30_000, stage.clock.boot_us()) for _ in range(2)]
        receiver._line.update(dict.fromkeys(callers))
        stage.faults.fail("move", nth=1, error=StoreRefused("too large"))
        stage.faults.fail("move", nth=2, error=StoreUnavailable("away"))
        for _ in range(20):
            stage.clock.advance(0.2)
            with suppress(StoreUnavailable):
                receiver._serve()
        assert all(caller.is_over for caller in callers)
        received: list[str] = []
        for _ in range(20):
            stage.clock.advance(0.5)
            received += [message.text for message in queue.receive(10)]
        assert sorted(received) == ["a", "b"]


def test_of_two_receipts_of_a_message_in_a_group_the_later_one_ends_it() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        queue.put("a", group="g")
        stage.clock.advance(0.05)
        [old] = queue.receive(visibility="2s")
        stage.clock.advance(3)
        [new] = queue.receive(visibility="60s")
        assert queue.ack(new, old, partial=True)[0] is None
        assert queue.peek() == []
