"""Handlers that run for long: in the log, and in what their consumer tells."""

from __future__ import annotations

import threading

import pytest
from crashing import crash, run_until_crash

from shardq import Consumer, Message, Queue
from shardq.engine.handing.hanging import SHOWN_MAX
from shardq.records.membership import Heartbeat, heartbeats
from shardq.testing import Stage

WAIT_S = 60


def hang_for(stage: Stage, consumer: Consumer, seconds: int) -> None:
    """Let time pass in a handler, while the consumer's engine goes on."""
    for _ in range(seconds):
        stage.clock.advance(1)
        consumer._engine.step()


def told_of(stage: Stage, queue: Queue) -> Heartbeat:
    [told] = heartbeats(stage._store, queue.name).values()
    return told


def test_a_handler_that_hangs_is_in_the_log_once_at_each_doubling_and_when_it_ends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = stage.connect().queue("mail", hold="10s")
    sent = queue.put("a")
    consumer = Consumer(queue, lambda _: hang_for(stage, consumer, 95))
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=2)
    named = [
        text for text in caplog.messages if text.startswith(f"message {sent.id} of queue mail")
    ]
    spans = [text.split(" has run for ")[1].split(",")[0] for text in named[:-1]]
    assert spans == ["11s", "21s", "41s", "1m21s"]
    assert all("longer than 10s" in text for text in named[:-1])
    assert named[-1].endswith("its handler has ended after all, after 1m36s")


def test_what_the_log_says_of_a_handler_that_hangs_names_its_thread_and_place(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = busy.connect().queue("mail", hold="10s")
    queue.put("a")
    begun, over = threading.Event(), threading.Event()

    def wait_for_an_answer() -> None:
        begun.set()
        assert over.wait(WAIT_S)

    def handle(_message: Message) -> None:
        wait_for_an_answer()

    consumer = Consumer(queue, handle, threads=1)
    consumer.start()
    assert begun.wait(WAIT_S)
    with busy.ticking(0.05):
        while "it stands at" not in caplog.text:
            assert not over.wait(0.01)
        over.set()
        consumer.stop()
        consumer.join(WAIT_S)
    [text] = [text for text in caplog.messages if "it stands at" in text][:1]
    assert " in thread shardq-mail-0; it stands at:" in text
    first, *_ = text.partition("it stands at:\n")[2].splitlines()
    assert first.startswith(f'  File "{__file__}"')
    assert first.endswith(", in handle")
    assert ", in wait_for_an_answer" in text
    # It has ended within the deadline, and its end is told by the end of the consumer.
    assert "has ended after all" in caplog.text


@pytest.mark.parametrize("hold", ["100ms", "10s"])
def test_a_short_handler_is_not_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture, hold: str
) -> None:
    queue = stage.connect().queue("mail", hold=hold)
    queue.put("a")
    consumer = Consumer(queue, lambda _: hang_for(stage, consumer, 9))
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=2)
    assert caplog.messages == []


def test_many_handlers_that_hang_are_a_few_lines_and_a_count(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    threads = SHOWN_MAX + 6
    queue = busy.connect().queue("mail", lanes=1, hold="10s")
    queue.put_many(["a"] * threads)
    all_run, over = threading.Barrier(threads + 1), threading.Event()

    def hang(_message: Message) -> None:
        all_run.wait(WAIT_S)
        assert over.wait(WAIT_S)

    consumer = Consumer(queue, hang, threads=threads)
    consumer.start()
    all_run.wait(WAIT_S)
    # In one go, so that all of them are found by one look.
    busy.clock.advance(15)
    with busy.ticking():
        while "more handlers" not in caplog.text:
            assert not over.wait(0.01)
    looked = [text for text in caplog.messages if "has run for" in text]
    [more] = [text for text in caplog.messages if "more handlers" in text]
    with busy.ticking():
        over.set()
        consumer.stop()
        consumer.join(WAIT_S)
    assert len(looked) == SHOWN_MAX
    assert more == "queue mail: 6 more handlers have run for longer than 10s"


def test_what_waits_for_its_attempt_to_be_recorded_is_not_told_as_run(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    sent = queue.put("a")
    assert run_until_crash(stage, Consumer(queue, crash), seconds=1)
    stage.clock.advance(11)
    told: list[Heartbeat] = []

    def tell() -> None:
        stage.clock.advance(1)
        told.append(consumer._engine._told())

    consumer = Consumer(queue, lambda _: tell())
    stage.faults.call("edit", tell)
    stage.drain(queue, consumer)
    waiting, running = told
    assert (waiting.busy, waiting.running, waiting.runs) == (1, 0, ())
    assert (running.running, [message_id for message_id, _ in running.runs]) == (1, [sent.id])
    # The time since the run began, not since it was recorded, a second later.
    assert (running.longest_ms, running.shortest_ms) == (1_000, 1_000)


def test_what_a_consumer_parks_it_tells_at_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, hold="10s")
    queue.put("a")
    told: list[tuple[int, int | None]] = []

    def handle(_message: Message) -> None:
        stage.clock.advance(9)
        # A heartbeat has just been sent when it is parked.
        consumer._engine.step()
        told.append((told_of(stage, queue).busy, told_of(stage, queue).running))
        stage.clock.advance(1)
        consumer._engine.step()
        stage.clock.advance(0.1)
        consumer._engine.step()
        told.append((told_of(stage, queue).busy, told_of(stage, queue).running))

    consumer = Consumer(queue, handle)
    stage.drain(queue, consumer)
    assert told == [(1, 1), (0, 1)]


def test_heartbeats_that_parks_hurry_are_no_storm(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, hold="10s")
    queue.put("a")
    beats: list[int] = []

    def handle(_message: Message) -> None:
        before = stage.faults.calls["note members"]
        for _ in range(100):
            stage.clock.advance(0.02)
            consumer._engine.membership.hurry()
            consumer._engine.step()
        beats.append(stage.faults.calls["note members"] - before)

    consumer = Consumer(queue, handle)
    stage.drain(queue, consumer)
    assert beats[0] <= 4


def test_a_handler_whose_message_another_has_settled_still_takes_its_slot(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1, hold="10s")
    sent = queue.put("a")
    told: list[Heartbeat] = []
    slots: list[int] = []

    def handle(message: Message) -> None:
        queue.cancel(message)
        hang_for(stage, consumer, 20)
        told.append(told_of(stage, queue))
        slots.append(consumer._engine.outbox.slots_taken)

    consumer = Consumer(queue, handle, threads=1)
    stage.drain(queue, consumer)
    [beat] = told
    assert (beat.busy, beat.running, slots) == (0, 1, [1])
    assert beat.longest_ms >= beat.shortest_ms > 15_000
    assert [message for message, _ in beat.runs] == [sent.id]
    stage.drive(consumer, seconds=5)
    assert told_of(stage, queue).runs == ()
    assert consumer._engine.outbox.slots_taken == 0
