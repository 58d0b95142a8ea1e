"""Several consumers in one process, and one end for all of them; what a consumer is not for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

import shardq
from shardq import Consumer, Message
from shardq.errors import UnknownQueue, UsageError
from shardq.stores.tables import MEMBERS
from shardq.testing import Recorder, Stage

WAIT_S = 20


def nothing(_message: Message) -> None:
    pass


def test_consumers_that_run_until_empty_end_when_no_handler_puts_for_another(busy: Stage) -> None:
    db = busy.connect()
    ping, pong = db.queue("ping"), db.queue("pong")

    def hit(message: Message) -> None:
        left = int(message.text) - 1
        if left:
            # Longer than a consumer waits between two looks at its empty queue.
            busy.clock.sleep(3)
            (pong if message.queue == "ping" else ping).put(f"{left}", delay="2s")

    seen = Recorder(busy.clock, hit)
    ping.put("6")
    with busy.ticking(0.02):
        shardq.run(Consumer(ping, seen, threads=1), Consumer(pong, seen), until_empty=True)
    assert [(one.queue, one.text) for one in seen.messages] == [
        (queue, f"{left}")
        for queue, left in zip(["ping", "pong"] * 3, range(6, 0, -1), strict=True)
    ]


def test_one_signal_lets_the_handlers_of_all_consumers_finish(busy: Stage) -> None:
    db = busy.connect()
    both = threading.Barrier(2)

    def handle(_message: Message) -> None:
        if both.wait(WAIT_S) == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    seen = Recorder(busy.clock, handle)
    before = signal.getsignal(signal.SIGTERM)
    for name in ("mail", "sms"):
        db.queue(name).put("a")
    with busy.ticking(0.002):
        shardq.run(*(Consumer(db.queue(name), seen, threads=1) for name in ("mail", "sms")))
    assert [busy.is_empty(db.queue(name)) for name in ("mail", "sms")] == [True, True]
    assert (busy._store.notes(MEMBERS, ("mail",)), busy._store.notes(MEMBERS, ("sms",))) == ({}, {})
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_the_wait_of_all_consumers(busy: Stage) -> None:
    db = busy.connect()
    both, go = threading.Barrier(2), threading.Event()

    def handle(_message: Message) -> None:
        if both.wait(WAIT_S) == 0:
            os.kill(os.getpid(), signal.SIGINT)
            while not first._stopping:
                busy.clock.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
        go.wait(WAIT_S)

    for name in ("mail", "sms"):
        db.queue(name).put("a")
    first, other = (Consumer(db.queue(name), handle, deadline="1h") for name in ("mail", "sms"))
    with busy.ticking(0.002):
        shardq.run(first, other)
    assert not go.is_set()
    parked = [db.queue(name).peek()[0] for name in ("mail", "sms")]
    assert [one._row.claim for one in parked] == [first.member, other.member]
    go.set()


def test_the_first_signal_lets_handlers_finish_where_another_end_came_before(busy: Stage) -> None:
    db = busy.connect()

    def handle(_message: Message) -> None:
        sms.stop()
        while not mail._stopping:
            busy.clock.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        # Several turns of the thread that waits for the end.
        busy.clock.sleep(1)

    db.queue("mail").put("a")
    mail, sms = (Consumer(db.queue(name), handle) for name in ("mail", "sms"))
    with busy.ticking(0.002):
        shardq.run(mail, sms)
    assert not mail._hurried.is_set()
    assert busy.is_empty(db.queue("mail"))


def test_an_error_that_ends_one_consumer_ends_the_others_and_is_raised(busy: Stage) -> None:
    db = busy.connect()
    mail, sms = db.queue("mail"), db.queue("sms")
    mail.put("a")
    with busy.ticking(0.02), pytest.raises(UnknownQueue, match="'sms' has been dropped"):
        shardq.run(
            Consumer(mail, lambda _: busy.connect().queue("sms").drop()), Consumer(sms, nothing)
        )
    assert busy.is_empty(mail)
    assert busy._store.notes(MEMBERS, ("mail",)) == {}


def test_a_stop_of_one_consumer_ends_all_that_run_with_it(busy: Stage) -> None:
    db = busy.connect()
    db.queue("sms").put("a")
    mail = Consumer(db.queue("mail"), nothing)
    with busy.ticking(0.002):
        shardq.run(Consumer(db.queue("sms"), lambda _: mail.stop()), mail)
    assert busy.is_empty(db.queue("sms"))


def test_in_another_thread_signals_are_left_alone_and_a_stop_ends_all(busy: Stage) -> None:
    db = busy.connect()
    both = [Consumer(db.queue(name), nothing, threads=1) for name in ("mail", "sms")]
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=shardq.run, args=both, daemon=True)
    with busy.ticking(0.002):
        thread.start()
        while not busy._store.notes(MEMBERS, ("sms",)):
            busy.clock.sleep(0.1)
        assert signal.getsignal(signal.SIGTERM) is before
        both[1].stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_stop_before_the_start_ends_it_at_once(busy: Stage) -> None:
    consumer = Consumer(busy.connect().queue("mail"), nothing)
    consumer.stop()
    with busy.ticking(0.002):
        consumer.run()


def test_a_thread_that_cannot_start_is_what_a_run_raises(busy: Stage) -> None:
    db = busy.connect()
    consumers = [Consumer(db.queue(name), nothing) for name in ("mail", "sms")]
    # More than there are addresses.
    before = threading.stack_size(1 << 47)
    try:
        with pytest.raises(shardq.ShardqError, match="can't start new thread"):
            shardq.run(*consumers)
    finally:
        threading.stack_size(before)
    for one in consumers:
        assert one._engine.news.on_put not in one._queue._home.listeners


# Misuse -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "again", [Consumer.run, Consumer.start, shardq.run], ids=["run", "start", "shardq.run"]
)
@pytest.mark.parametrize("was", ["running", "ended", "stepped", "closed"])
def test_a_consumer_that_was_used_is_not_started_again(
    busy: Stage, was: str, again: Callable[[Consumer], None]
) -> None:
    consumer = Consumer(busy.connect().queue("mail"), nothing, threads=1)
    said = {"stepped": "is driven by step", "closed": "was closed"}.get(was, "was started before")
    with busy.ticking(0.002):
        if was in {"running", "ended"}:
            consumer.start()
        else:
            consumer.step()
        if was == "ended":
            consumer.stop()
            consumer.join()
        if was == "closed":
            consumer.close()
        with pytest.raises(UsageError, match=f"^this consumer of queue 'mail' {said}.*; make ano"):
            again(consumer)
        if was == "running":
            consumer.stop()
            consumer.join()


def test_what_steps_and_what_runs_by_itself_are_not_mixed(busy: Stage) -> None:
    def handle(_message: Message) -> None:
        for misuse in (consumer.join, consumer.step, consumer.close):
            with pytest.raises(UsageError, match=r"^(this consumer of queue|a handler of this)"):
                misuse()
        consumer.stop()

    queue = busy.connect().queue("mail")
    queue.put("a")
    consumer = Consumer(queue, handle, threads=1)
    with pytest.raises(UsageError, match="was not started; call start"):
        consumer.join()
    with busy.ticking(0.002):
        consumer.run()
    consumer.close()
    assert busy.is_empty(queue)


def test_a_closed_consumer_is_not_stepped(busy: Stage) -> None:
    consumer = Consumer(busy.connect().queue("mail"), nothing)
    consumer.step()
    consumer.close()
    consumer.close()
    with pytest.raises(UsageError, match="was closed; make another one"):
        consumer.step()


def test_what_cannot_be_run_together_starts_nothing(busy: Stage) -> None:
    db = busy.connect()
    mail, sms = (Consumer(db.queue(name), nothing) for name in ("mail", "sms"))
    for given, said in (
        ((), "run needs one consumer"),
        ((mail, sms, mail), "of queue 'mail' is given twice"),
        ((mail, db.queue("mail")), "run takes consumers, not <Queue 'mail'"),
    ):
        with pytest.raises(UsageError, match=said):
            shardq.run(*given)
    assert not mail._engine_thread.is_alive()
    assert not sms._engine_thread.is_alive()
