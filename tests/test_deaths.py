"""`on_dead`: called with each message that dies, once, beside the engine and never in it."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from crashing import crash, run_until_crash

from shardq import Bury, Consumer, Message
from shardq.engine.storing import deaths
from shardq.errors import BadSetting, StoreUnavailable, UsageError
from shardq.testing import Stage

WAIT_S = 60


def bury(_message: Message) -> None:
    raise Bury("no such address")


def fail(_message: Message) -> None:
    raise ValueError("bad")


def test_on_dead_is_called_with_the_message_as_it_is_in_the_dead_letter_queue(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", attempts=2)
    sent = queue.put("a", headers={"to": "b"})
    dead: list[Message] = []
    stored: list[list[Message]] = []

    def on_dead(message: Message) -> None:
        dead.append(message)
        stored.append(queue.dead.peek())

    stage.drain(queue, Consumer(queue, fail, on_dead=on_dead))
    [message], [[kept]] = dead, stored
    assert (message.id, message.body, message.attempt) == (sent.id, b"a", 2)
    assert message.headers == kept.headers
    assert message.headers["to"] == "b"
    assert message.headers["shardq-reason"] == "out of attempts: ValueError: bad"
    assert message.queue == "mail.dead"
    # Its receipt is of that queue, too.
    queue.dead.cancel(message)
    assert queue.dead.peek() == []


def test_on_dead_is_called_in_whatever_way_a_message_dies(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put("crashes")
    for _ in range(2):
        assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
        stage.clock.advance(11)
    queue.put("fails")
    queue.put("buries")
    dead: list[Message] = []

    def handle(message: Message) -> None:
        (fail if message.text == "fails" else bury)(message)

    stage.drain(queue, Consumer(queue, handle, on_dead=dead.append))
    assert {message.text: message.headers["shardq-reason"][:26] for message in dead} == {
        "crashes": "out of attempts: its consu",
        "fails": "out of attempts: ValueErro",
        "buries": "no such address",
    }


def test_on_dead_is_called_once_where_the_store_s_answer_is_lost(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put_many(["a", "b", "c"])
    stage.faults.fail("move", times=2, applied=True)
    dead: list[str] = []
    consumer = Consumer(queue, fail, on_dead=lambda message: dead.append(message.text))
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=10)
    assert sorted(dead) == ["a", "b", "c"]


def test_a_store_that_fails_once_a_burial_is_known_leaves_nothing_in_flight(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put("a")
    dead: list[str] = []
    consumer = Consumer(queue, fail, on_dead=lambda message: dead.append(message.text))

    def lose_time() -> None:
        # After this the dead-letter queue's settings are stale, and cannot be read.
        stage.clock.advance(4)
        stage.faults.fail("records queues")

    # Repeated, it is looked whether its old row is there, and then its new one.
    stage.faults.call("move", lambda: stage.faults.call("find", lose_time, nth=2), after=False)
    stage.faults.fail("move", applied=True)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=5)
    assert dead == ["a"]
    assert consumer._engine.outbox.running == 0


def test_on_dead_is_not_called_for_what_somebody_else_has_settled(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put("a")
    dead: list[Message] = []

    def handle(message: Message) -> None:
        queue.cancel(message)
        fail(message)

    consumer = Consumer(queue, handle, on_dead=dead.append)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=5)
    assert dead == []
    assert queue.dead.peek() == []


def test_what_on_dead_raises_is_logged_and_the_next_is_called(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    sent = [queue.put("a"), queue.put("b")]
    seen: list[str] = []

    def on_dead(message: Message) -> None:
        seen.append(message.text)
        raise OSError("the pager is away")

    stage.drain(queue, Consumer(queue, bury, on_dead=on_dead))
    assert sorted(seen) == ["a", "b"]
    told = [one for one in caplog.records if "on_dead" in one.getMessage()]
    assert len(told) == 2
    assert all("OSError: the pager is away" in one.getMessage() for one in told)
    assert all(one.exc_info is not None for one in told)
    assert {one.getMessage().split()[1] for one in told} == {one.id for one in sent}


@pytest.mark.parametrize("given", [7, "f", Message])
def test_an_on_dead_that_is_no_function_is_refused(stage: Stage, given: object) -> None:
    with pytest.raises(BadSetting, match="on_dead"):
        Consumer(stage.connect().queue("mail"), bury, on_dead=given)  # type: ignore[arg-type]


def test_an_on_dead_that_is_async_is_refused_and_one_that_runs_nothing_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", attempts=1)

    async def alert(_message: Message) -> None:
        pass

    def unseen(message: Message) -> object:
        return alert(message)

    with pytest.raises(BadSetting, match="async"):
        Consumer(queue, bury, on_dead=alert)
    queue.put("a")
    stage.drain(queue, Consumer(queue, bury, on_dead=unseen))
    assert "on_dead returned the coroutine" in caplog.text


def test_a_slow_on_dead_keeps_neither_engine_nor_handlers(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1, attempts=1)
    queue.put_many(["a", "b"])
    begun, over, done = threading.Event(), threading.Event(), threading.Event()
    threads: list[str] = []

    def on_dead(_message: Message) -> None:
        threads.append(threading.current_thread().name)
        begun.set()
        assert over.wait(WAIT_S)

    def handle(message: Message) -> None:
        if message.text == "last":
            done.set()
        else:
            fail(message)

    consumer = Consumer(queue, handle, threads=1, on_dead=on_dead)
    consumer.start()
    with busy.ticking():
        assert begun.wait(WAIT_S)
        queue.put("last", delay="15s")
        # Leases last 10 s: what is delivered later is delivered under renewed ones.
        assert done.wait(WAIT_S)
        over.set()
        consumer.stop()
        consumer.join(WAIT_S)
    assert threads == ["shardq-mail-dead"] * 2
    assert queue.depth(exact=True).total == 0


def test_a_call_of_on_dead_that_hangs_is_in_the_log_with_its_place(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = busy.connect().queue("mail", attempts=1, hold="10s")
    queue.put_many(["a", "b", "c"])
    over = threading.Event()

    def stand_here(_message: Message) -> None:
        assert over.wait(WAIT_S)

    def named() -> list[str]:
        return [text for text in caplog.messages if "a call of on_dead has run for" in text]

    consumer = Consumer(queue, fail, threads=1, on_dead=stand_here)
    consumer.start()
    with busy.ticking():
        while len(named()) < 2:
            consumer._engine_thread.join(0.01)
        over.set()
        consumer.stop()
        consumer.join(WAIT_S)
    first, second = named()[:2]
    assert first.partition(" has run for ")[2] != second.partition(" has run for ")[2]
    assert "more wait for its end; it stands at:\n  File" in first
    assert "in stand_here" in first


def test_the_end_of_a_consumer_waits_for_on_dead(busy: Stage) -> None:
    queue = busy.connect().queue("mail", attempts=1)
    queue.put_many(["a", "b", "c"])
    dead: list[str] = []
    begun, over = threading.Event(), threading.Event()

    def on_dead(message: Message) -> None:
        begun.set()
        assert over.wait(WAIT_S)
        dead.append(message.text)

    consumer = Consumer(queue, fail, on_dead=on_dead, deadline="10h")
    consumer.start()
    with busy.ticking():
        assert begun.wait(WAIT_S)
        consumer.stop()
        consumer._engine_thread.join(0.05)
        assert consumer._engine_thread.is_alive()
        over.set()
        consumer.join(WAIT_S)
    assert sorted(dead) == ["a", "b", "c"]


def test_the_end_of_a_consumer_waits_no_longer_than_its_deadline(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = busy.connect().queue("mail", attempts=1)
    queue.put_many(["a", "b", "c"])
    begun, over = threading.Event(), threading.Event()

    def on_dead(_message: Message) -> None:
        begun.set()
        assert over.wait(WAIT_S)

    consumer = Consumer(queue, fail, threads=1, on_dead=on_dead, deadline="5s")
    consumer.start()
    with busy.ticking():
        assert begun.wait(WAIT_S)
        while queue.dead.depth(exact=True).total < 3:
            pass
        consumer.stop()
        consumer.join(WAIT_S)
    assert not consumer._engine_thread.is_alive()
    over.set()
    assert "on_dead was not called for 2 dead messages" in caplog.text
    assert "a call of on_dead still runs" in caplog.text


def test_a_consumer_that_is_stepped_calls_on_dead_where_it_is_stepped_and_when_it_is_closed(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put("a")
    dead: list[tuple[str, int]] = []

    def on_dead(message: Message) -> None:
        dead.append((message.text, threading.get_ident()))

    consumer = Consumer(queue, fail, on_dead=on_dead)
    stage.drain(queue, consumer)
    assert dead == [("a", threading.get_ident())]
    queue.put("b")
    moves = stage.faults.calls["move"]
    stage.faults.fail("move")
    while stage.faults.calls["move"] == moves:
        with suppress(StoreUnavailable):
            stage.clock.advance(max(consumer.step(), 0.01))
    assert len(dead) == 1
    consumer.close()
    assert [text for text, _ in dead] == ["a", "b"]


def test_a_slow_on_dead_costs_a_consumer_that_is_stepped_no_lease(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put_many([f"{n}" for n in range(30)])
    queue.put("last", delay="5s")
    calls_us: list[int] = []
    consumer = Consumer(queue, fail, on_dead=lambda _: stage.clock.advance(0.6))
    while not stage.is_empty(queue):
        before_us = stage.clock.boot_us()
        delay = consumer.step()
        calls_us.append(stage.clock.boot_us() - before_us)
        stage.clock.advance(delay)
    assert max(calls_us) <= 2_000_000
    assert queue.dead.depth().ready == 31


def test_a_close_that_the_store_fails_calls_on_dead_all_the_same(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, attempts=1)
    queue.put_many(["a", "b", "c"])
    dead: list[str] = []

    def on_dead(message: Message) -> None:
        dead.append(message.text)
        stage.clock.advance(2)

    consumer = Consumer(queue, fail, on_dead=on_dead)
    while not dead:
        stage.clock.advance(consumer.step())
    stage.faults.fail("release")
    with pytest.raises(StoreUnavailable):
        consumer.close()
    assert sorted(dead) == ["a", "b", "c"]


def test_on_dead_cannot_wait_for_the_end_of_its_consumer(busy: Stage) -> None:
    queue = busy.connect().queue("mail", attempts=1)
    queue.put("a")
    refused: list[str] = []

    def on_dead(_message: Message) -> None:
        consumer.stop()
        with pytest.raises(UsageError) as caught:
            consumer.join()
        refused.append(str(caught.value))

    consumer = Consumer(queue, fail, threads=1, on_dead=on_dead, deadline="10h")
    consumer.start()
    with busy.ticking():
        consumer.join(WAIT_S)
    assert not consumer._engine_thread.is_alive()
    [text] = refused
    assert text.startswith("on_dead of this consumer of queue 'mail' cannot wait for its end")


def test_what_on_dead_puts_is_delivered_before_a_run_until_empty_returns(busy: Stage) -> None:
    queue = busy.connect().queue("mail", attempts=1)
    queue.put("a")
    delivered: list[str] = []
    slow = threading.Event()

    def handle(message: Message) -> None:
        delivered.append(message.text)
        if message.text == "a":
            fail(message)

    def on_dead(_message: Message) -> None:
        # Time enough for the consumer to find its queue empty.
        slow.wait(0.5)
        queue.put("what now")

    with busy.ticking(0.02):
        Consumer(queue, handle, threads=1, on_dead=on_dead).run(until_empty=True)
    assert delivered == ["a", "what now"]


def test_more_deaths_than_memory_is_for_are_counted_and_none_is_lost(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deaths, "_WAITING_MAX", 5)
    queue = stage.connect().queue("mail", attempts=1)
    queue.put_many(["a"] * 20)
    dead: list[Message] = []
    consumer = Consumer(queue, fail, on_dead=dead.append)
    stage.drain(queue, consumer)
    consumer.close()
    left_out = [text for text in caplog.messages if "on_dead was not called" in text]
    counted = sum(int(text.split("for ")[1].split()[0]) for text in left_out)
    assert (len(dead), counted, queue.dead.depth().ready) == (5, 15, 20)
    # Said when it begins, too: an on_dead that hangs would keep what is counted to itself.
    assert sum("too many dead messages wait for on_dead" in text for text in caplog.messages) == 1
