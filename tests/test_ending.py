"""Deliveries that outlive their handlers, or are given up while these still run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from crashing import crash, run_until_crash
from reading import write
from sqlite_file import run_child

from shardq import Bury, Consumer, Message, Queue, Retry, Snooze
from shardq.engine.handing.outcome import outcome_of
from shardq.engine.storing.ending import Ending
from shardq.errors import UsageError
from shardq.lifecycle.fate import Fate, Outcome
from shardq.testing import Stage

if TYPE_CHECKING:
    from pathlib import Path


WAIT_S = 60


class Holding(Consumer):
    """A consumer whose handler holds each delivery, and then does what it is told.

    Attributes:
        endings: Of all deliveries, in the order in which they began.
        messages: Likewise.
    """

    def __init__(
        self,
        queue: Queue,
        act: Callable[[Ending, Message], object] | None = None,
        *,
        threads: int = 1,
        deadline: str = "1h",
    ) -> None:
        self.endings: list[Ending] = []
        self.messages: list[Message] = []
        self._act = act
        self._news = threading.Condition()
        super().__init__(queue, self._handle, threads=threads, deadline=deadline)

    def _handle(self, message: Message) -> None:
        ending = self._hold()
        with self._news:
            self.messages.append(message)
            self.endings.append(ending)
            self._news.notify_all()
        if self._act is not None:
            self._act(ending, message)

    def wait_for(self, count: int) -> list[Ending]:
        """The ends of the first `count` deliveries, once these have begun."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.endings) >= count, WAIT_S)
        return self.endings[:count]

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert self._engine_thread.is_alive()
            self._clock.sleep(0.001)

    def end(self) -> None:
        self.stop()
        self.join(WAIT_S)
        assert not self._engine_thread.is_alive()


def test_a_thread_takes_the_next_delivery_while_what_it_held_goes_on(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1)
    queue.put_many(f"{n}" for n in range(50))
    consumer = Holding(queue)
    with busy.ticking():
        consumer.start()
        endings = consumer.wait_for(50)
        assert len(queue.peek(100)) == 50
        assert [ending.end(None) for ending in endings] == [True] * 50
        consumer.wait_until(lambda: busy.is_empty(queue))
        consumer.end()
    totals = queue.totals()
    assert (totals.delivered, totals.acked, totals.parked) == (50, 50, 0)
    assert consumer._engine.outbox.endings.held == {}


def test_what_is_held_takes_no_slot_once_its_handler_has_returned(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1)
    consumer = Holding(queue, threads=2)
    outbox, ready = consumer._engine.outbox, consumer._engine.ready
    with busy.ticking(0.001):
        consumer.start()
        queue.put_many(["x"] * 5)
        endings = consumer.wait_for(5)
        consumer.wait_until(lambda: len(ready.waiting_since()) == 2)
        told = consumer._engine._told()
        assert (told.busy, told.running, len(told.runs)) == (5, 0, 5)
        assert outbox.slots_taken == 0
        assert outbox.unended
        for ending in endings:
            ending.end(None)
        consumer.end()


def test_a_thread_whose_delivery_was_given_up_takes_a_slot_until_its_handler_returns(
    busy: Stage,
) -> None:
    queue = busy.connect().queue("mail", lanes=1, backoff="1h")
    go = threading.Event()
    consumer = Holding(queue, lambda *_: go.wait(WAIT_S))
    outbox = consumer._engine.outbox
    with busy.ticking(0.001):
        consumer.start()
        queue.put("x")
        [ending] = consumer.wait_for(1)
        assert ending.end(TimeoutError("too long"))
        consumer.wait_until(lambda: not outbox.running)
        assert outbox.slots_taken == 1
        assert consumer._engine._told().running == 1
        go.set()
        consumer.wait_until(lambda: outbox.slots_taken == 0)
        consumer.end()
    assert outbox.endings.held == {}


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (None, "acked"),
        (ValueError("no"), "retried"),
        (Retry("5s"), "retried"),
        (Snooze("5s"), "snoozed"),
        (Bury("no"), "buried"),
        (SystemExit(1), "retried"),
    ],
    ids=repr,
)
def test_an_end_by_another_thread_comes_to_what_a_handler_s_would(
    busy: Stage, error: BaseException | None, fate: str
) -> None:
    queue = busy.connect().queue("mail", lanes=1, backoff="1h")
    queue.put("x")
    consumer = Holding(queue)
    with busy.ticking():
        consumer.start()
        [ending] = consumer.wait_for(1)
        assert not ending.is_over
        assert ending.end(error)
        assert ending.is_over
        consumer.wait_until(lambda: not consumer._engine.outbox.running)
        consumer.end()
    totals = queue.totals()
    counted = {what: getattr(totals, what) for what in ("acked", "retried", "snoozed", "buried")}
    assert counted == dict.fromkeys(counted, 0) | {fate: 1}


@pytest.mark.parametrize("first", [None, ValueError("no")], ids=repr)
@pytest.mark.parametrize("second", [None, ValueError("late")], ids=repr)
def test_the_first_end_decides(
    stage: Stage, first: BaseException | None, second: BaseException | None
) -> None:
    queue = stage.connect().queue("mail", backoff="1h")
    queue.put("x")
    ended: list[bool] = []
    consumer = Holding(queue, lambda ending, _: ended.extend(map(ending.end, (first, second))))
    stage.drive(consumer, seconds=1)
    assert ended == [True, False]
    assert (queue.totals().acked, queue.totals().retried) == ((1, 0) if first is None else (0, 1))
    if first is not None:
        [left] = queue.peek()
        assert left.last_error == "ValueError: no"


def test_what_a_handler_raises_before_the_first_end_is_the_end(stage: Stage) -> None:
    queue = stage.connect().queue("mail", backoff="1h")
    queue.put("x")

    def fail(_ending: Ending, _message: Message) -> None:
        raise LookupError("nobody")

    consumer = Holding(queue, fail)
    stage.drive(consumer, seconds=1)
    [ending] = consumer.endings
    assert ending.is_over
    assert not ending.end(None)
    stage.drive(consumer, seconds=1)
    [left] = queue.peek()
    assert (left.last_error, left.attempt) == ("LookupError: nobody", 1)
    assert (queue.totals().retried, queue.totals().acked) == (1, 0)


def test_what_a_handler_raises_after_the_end_is_passed_over_and_said_once(
    stage: Stage, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put("x")

    def fail(ending: Ending, _message: Message) -> None:
        assert ending.end(None)
        raise LookupError("nobody")

    with caplog.at_level(logging.INFO, logger="shardq"):
        stage.drive(Holding(queue, fail), seconds=2)
    assert (queue.totals().retried, queue.totals().acked) == (0, 1)
    [text] = [text for text in caplog.messages if "raised" in text]
    assert text.endswith("had ended when its handler raised LookupError")


def test_one_that_is_given_up_runs_again_while_its_first_handler_still_does(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1, backoff="100ms")
    sent = queue.put("x")
    go = threading.Event()

    def act(ending: Ending, message: Message) -> None:
        if message.attempt == 1:
            assert go.wait(WAIT_S)
            # It has come too late: the message is another delivery's.
            assert not ending.end(None)
        else:
            assert ending.end(None)

    consumer = Holding(queue, act, threads=2)
    with busy.ticking():
        consumer.start()
        [ending] = consumer.wait_for(1)
        assert ending.end(TimeoutError("over its limit"))
        consumer.wait_for(2)
        consumer.wait_until(lambda: busy.is_empty(queue))
        go.set()
        consumer.end()
    assert [(one.id, one.attempt) for one in consumer.messages] == [(sent.id, 1), (sent.id, 2)]
    assert consumer.messages[1].last_error == "TimeoutError: over its limit"
    assert (queue.totals().acked, queue.totals().retried) == (1, 1)


def test_of_ends_that_race_each_other_and_the_handler_s_own_one_decides(busy: Stage) -> None:
    count, racers = 100, 4
    queue = busy.connect().queue("mail", lanes=1, attempts=1)
    start, done = threading.Barrier(racers + 1), threading.Barrier(racers + 1)
    endings: list[Ending] = []
    won: list[bool] = []

    def race() -> None:
        for n in range(count):
            start.wait(WAIT_S)
            won.append(endings[n].end(None))
            done.wait(WAIT_S)

    def act(ending: Ending, _message: Message) -> None:
        endings.append(ending)
        start.wait(WAIT_S)
        raise ValueError("at the same time")

    for _ in range(racers):
        threading.Thread(target=race, daemon=True).start()
    queue.put_many(["x"] * count)
    consumer = Holding(queue, act)
    with busy.ticking():
        consumer.start()
        for _ in range(count):
            done.wait(WAIT_S)
        consumer.wait_until(lambda: busy.is_empty(queue))
        consumer.end()
    totals = queue.totals()
    assert totals.acked == sum(won)
    assert totals.acked + totals.buried == count
    assert len(won) == racers * count


def test_a_step_waits_for_the_end_of_what_it_has_handed_out(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(["a", "b"])
    begun: list[str] = []
    has_second = threading.Event()

    def act(ending: Ending, message: Message) -> None:
        begun.append(message.text)
        if message.text == "b":
            has_second.set()

        def end() -> None:
            if message.text == "a":
                has_second.wait(0.05)
            begun.append("end")
            ending.end(None)

        threading.Thread(target=end).start()

    stage.drain(queue, Holding(queue, act))
    assert begun == ["a", "end", "b", "end"]


def test_ctrl_c_in_a_handler_that_holds_its_delivery_ends_it_and_spends_no_attempt(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("x")

    def act(ending: Ending, message: Message) -> None:
        if len(consumer.messages) == 1:
            crash(message)
        ending.end(None)

    consumer = Holding(queue, act)
    assert run_until_crash(stage, consumer, seconds=1)
    assert consumer.endings[0].is_over
    assert not consumer.endings[0].end(None)
    stage.drain(queue, consumer)
    assert [message.attempt for message in consumer.messages] == [1, 1]
    assert consumer._engine.outbox.endings.held == {}


def test_after_another_s_crash_a_thread_waits_for_the_end_and_its_ack_before_the_next(
    busy: Stage,
) -> None:
    queue = busy.connect().queue("mail", lanes=1)
    queue.put_many(f"{n}" for n in range(6))
    # A member that has died in a handler: its lease lapses unreleased.
    dead = Holding(queue, deadline="0s")
    with busy.ticking(0.001):
        dead.start()
        dead.wait_for(1)
    dead._engine.leases.release = lambda _: None  # type: ignore[method-assign,assignment]
    dead._engine.outbox.park_all = lambda **_: None  # type: ignore[method-assign]
    with busy.ticking(0.001):
        dead.end()
    consumer = Holding(busy.connect().queue("mail"))
    left: list[int] = []
    with busy.ticking(0.02):
        consumer.start()
        for n in range(6):
            *_, ending = consumer.wait_for(n + 1)
            assert ending.one.careful
            assert len(consumer.endings) == n + 1
            left.append(len(queue.peek(10)))
            ending.end(None)
        consumer.end()
    assert left == [6, 5, 4, 3, 2, 1]
    assert busy.is_empty(queue)


def test_a_stop_waits_for_what_is_held_and_stores_its_end(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1, hold="1s", visibility="10s")
    queue.put_many(["a", "b", "c"])
    consumer = Holding(queue)
    with busy.ticking(0.05):
        consumer.start()
        endings = consumer.wait_for(3)
        consumer.stop()
        # Wait until the deliveries are parked, and their claims are extended.
        until_us = busy.clock.boot_us() + 30_000_000
        consumer.wait_until(lambda: busy.clock.boot_us() > until_us)
        for ending in endings:
            assert ending.end(None)
        consumer.join(WAIT_S)
    assert busy.is_empty(queue)
    assert (queue.totals().acked, queue.totals().parked) == (3, 3)


def test_at_the_deadline_what_is_held_is_parked_uncounted_and_its_end_comes_too_late(
    busy: Stage,
) -> None:
    queue = busy.connect().queue("mail", lanes=1, attempts=1, visibility="10s")
    sent = queue.put("x")
    consumer = Holding(queue, deadline="2s")
    with busy.ticking():
        consumer.start()
        [ending] = consumer.wait_for(1)
        consumer.end()
        [left] = queue.peek()
        assert (left._row.attempt, left._row.claim) == (0, consumer.member)
        assert ending.end(None)
        again = Holding(busy.connect().queue("mail"))
        again.start()
        [ending] = again.wait_for(1)
        ending.end(None)
        again.end()
    assert [(one.id, one.attempt) for one in again.messages] == [(sent.id, 1)]


def test_what_was_stored_late_waits_for_one_of_its_group_that_was_parked_at_the_deadline(
    busy: Stage,
) -> None:
    queue = busy.connect().queue("mail", minute="1s", offset="1s", visibility="10s")
    busy.clock.advance(10)
    late_ms = busy.clock.now_ms()
    busy.clock.advance(1)
    queue.put("runs", group="g")
    consumer = Holding(queue, deadline="2s")
    with busy.ticking():
        consumer.start()
        consumer.wait_for(1)
        consumer.end()
        write(busy, queue, late_ms, b"late", group="g")
        again = Holding(busy.connect().queue("mail"))
        again.start()
        until_us = busy.clock.boot_us() + 4_000_000
        again.wait_until(lambda: busy.clock.boot_us() > until_us)
        assert again.messages == []
        for count in (1, 2):
            again.wait_for(count)[-1].end(None)
        again.end()
    assert [one.text for one in again.messages] == ["late", "runs"]


def test_a_message_of_a_group_waits_until_the_one_before_it_has_ended(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1)
    queue.put_many({"body": f"{n}", "group": "g"} for n in range(3))
    consumer = Holding(queue, threads=3)
    with busy.ticking():
        consumer.start()
        for n in range(3):
            *_, ending = consumer.wait_for(n + 1)
            until_us = busy.clock.boot_us() + 2_000_000
            consumer.wait_until(lambda until_us=until_us: busy.clock.boot_us() > until_us)  # type: ignore[misc]
            assert len(consumer.endings) == n + 1
            ending.end(None)
        consumer.end()
    assert [message.text for message in consumer.messages] == ["0", "1", "2"]
    assert busy.is_empty(queue)


def test_a_cancel_by_key_reaches_what_is_held_and_its_failure_is_no_retry(busy: Stage) -> None:
    queue = busy.connect().queue("mail", lanes=1, backoff="1s")
    queue.put("x", key="order-7")
    consumer = Holding(queue)
    with busy.ticking():
        consumer.start()
        [ending] = consumer.wait_for(1)
        queue.cancel(key="order-7")
        consumer.wait_until(lambda: consumer.messages[0].is_cancelled)
        ending.end(ValueError("stopped in the middle"))
        consumer.wait_until(lambda: busy.is_empty(queue))
        consumer.end()
    assert len(consumer.messages) == 1
    assert queue.totals().cancelled == 1


class Judging(Holding):
    """A consumer that decides by the message what follows an error."""

    def _judge(self, message: Message, error: BaseException) -> Outcome:
        if message.text == "broken":
            raise ArithmeticError("the judge failed")
        if message.text == "bury":
            return Outcome(Fate.BURY, None, f"{message.attempt}: {error}", attempts=1)
        if message.text == "ack":
            return Outcome(Fate.ACK)
        return outcome_of(error)._replace(delay_ms=5_000)


@pytest.mark.parametrize("by_handler", [True, False])
def test_what_an_error_comes_to_is_judged_by_the_consumer_s_own_rule(
    stage: Stage, caplog: pytest.LogCaptureFixture, by_handler: bool
) -> None:
    queue = stage.connect().queue("mail", backoff="1h")
    queue.put_many(["bury", "ack", "retry", "broken"])

    def act(ending: Ending, _message: Message) -> None:
        if by_handler:
            raise ValueError("no")
        ending.end(ValueError("no"))

    stage.drive(Judging(queue, act), seconds=1)
    errors = {message.text: (message.last_error, message.due_ms) for message in queue.peek(10)}
    [dead] = queue.dead.peek()
    assert (dead.text, dead.last_error) == ("bury", "1: no")
    assert errors.keys() == {"retry", "broken"}
    assert errors["retry"][0] == "ValueError: no"
    assert errors["retry"][1] - stage.clock.now_ms() < 5_000
    # Its own failure is a failed attempt too, and the log has both.
    assert errors["broken"][0] == "ArithmeticError: the judge failed"
    assert "ValueError: no" in caplog.text
    told = [text.partition(" failed, ")[2] for text in caplog.messages if " failed, " in text]
    # The log has the number of attempts that the consumer's rule gives, or the queue's.
    assert sorted(text.partition(",")[0] for text in told) == [
        "attempt 1 of 1",
        "attempt 1 of 5",
        "attempt 1 of 5",
    ]


def test_a_delivery_is_held_by_its_handler_alone(stage: Stage, queue: Queue) -> None:
    queue.put("x")
    same: list[bool] = []

    def act(ending: Ending, _message: Message) -> None:
        same.append(consumer._hold() is ending)
        ending.end(None)

    consumer = Holding(queue, act)
    with pytest.raises(UsageError, match="by its handler"):
        consumer._hold()
    stage.drain(queue, consumer)
    assert same == [True]
    with pytest.raises(UsageError, match="by its handler"):
        consumer._hold()


def test_what_hangs_while_it_is_held_is_named_by_where_it_says_and_by_no_thread(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = busy.connect().queue("mail", lanes=1, hold="10s")
    told, untold = queue.put("told"), queue.put("untold")
    place = '  File "work.py", line 7, in fetch'
    consumer = Holding(queue)
    with busy.ticking(0.05):
        consumer.start()
        endings = consumer.wait_for(2)
        endings[0].where = lambda: place
        consumer.wait_until(lambda: caplog.text.count("longer than 10s") >= 2)
        for ending in endings:
            ending.end(None)
        consumer.end()
    lines = {text.split()[1]: text for text in caplog.messages if "longer than" in text}
    assert lines[told.id].endswith(f"longer than 10s; it stands at:\n{place}")
    assert lines[untold.id].endswith("longer than 10s")
    assert "in thread" not in caplog.text
    assert "its handler has ended after all" in caplog.text


def test_of_one_that_was_given_up_the_log_says_that_its_handler_runs_on(
    busy: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = busy.connect().queue("mail", lanes=1, hold="10s", backoff="1h")
    queue.put("x")
    go = threading.Event()
    consumer = Holding(queue, lambda *_: go.wait(WAIT_S))
    with busy.ticking(0.05):
        consumer.start()
        [ending] = consumer.wait_for(1)
        consumer.wait_until(lambda: ", in thread shardq-mail-0; it stands at:" in caplog.text)
        ending.end(TimeoutError("over its limit"))
        consumer.wait_until(lambda: "its delivery has ended and its handler runs on" in caplog.text)
        go.set()
        consumer.end()


FORK = """
import os, sys, threading
import shardq
db = shardq.connect(sys.argv[1])
queue = db.queue("mail")
queue.put("x")

class Holding(shardq.Consumer):
    def handle(self, message):
        self.ending = ending = self._hold()
        child = os.fork()
        if child == 0:
            ending.wait()
            os._exit(10 + ending.end(None) + 2 * ending.is_over)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), queue.totals().acked)
        threading.Thread(target=ending.end, args=(None,)).start()

consumer = Holding(queue, lambda message: consumer.handle(message), threads=1)
consumer.run(until_empty=True)
print(queue.totals().acked, queue.totals().delivered)
"""


def test_in_a_forked_child_nothing_ends_what_its_parent_holds(tmp_path: Path) -> None:
    said = run_child(FORK, f"sqlite:///{tmp_path}/jobs.db")
    assert said.splitlines() == ["10 0", "1 1"]
