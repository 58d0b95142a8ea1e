"""Consumers: what becomes of a delivery, and how a consumer ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from crashing import Crash, attempts_of, crash, run_until_crash

from shardq import Bury, Consumer, Message, Queue, Retry, Snooze
from shardq.errors import BadSetting, BadTime, StoreUnavailable
from shardq.testing import Recorder, Stage


def fail(message: Message) -> None:
    raise ValueError(f"no {message.text}")


# Outcomes -----------------------------------------------------------------------------------------


def test_a_handler_that_raises_gets_it_again_after_a_back_off_that_doubles(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=6, backoff="2s", backoff_max="10s")
    queue.put("a")
    seen = Recorder(stage.clock, fail)
    stage.drain(queue, Consumer(queue, seen))
    gaps = [(after - before) / 1e6 for before, after in pairwise(seen.at_us)]
    assert gaps == pytest.approx([2, 4, 8, 10, 10], abs=0.2)
    assert min(seen.late_ms) >= 0
    assert attempts_of(seen) == [1, 2, 3, 4, 5, 6]


def test_out_of_attempts_it_lies_in_the_dead_letter_queue_with_reason_and_traceback(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", attempts=2, backoff="1s", bands=3)
    sent = queue.put("a", headers={"kind": "x"}, priority=1)
    stage.drain(queue, Consumer(queue, fail))
    [dead] = queue.dead.peek()
    assert (dead.id, dead.text, dead.queue) == (sent.id, "a", "mail.dead")
    assert dead.headers["kind"] == "x"
    assert dead.headers["shardq-queue"] == "mail"
    assert "ValueError: no a" in dead.headers["shardq-reason"]
    assert "out of attempts" in dead.headers["shardq-reason"]
    assert "in fail" in dead.headers["shardq-traceback"]
    assert dead.headers["shardq-attempts"] == "2"


def test_the_reason_is_the_error_and_its_notes_are_in_the_traceback(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("noted")
    queue.put("syntax")

    def handle(message: Message) -> None:
        if message.text == "syntax":
            compile("1 +", "given.py", "exec")
        error = ValueError("no such address")
        error.add_note("ask ada")
        raise error

    stage.drain(queue, Consumer(queue, handle))
    noted, syntax = (one.headers for one in queue.dead.peek())
    assert noted["shardq-reason"] == "out of attempts: ValueError: no such address"
    assert "ask ada" in noted["shardq-traceback"]
    assert "SyntaxError: invalid syntax" in syntax["shardq-reason"]


def test_what_is_redriven_comes_with_all_its_attempts_its_id_and_priority(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=2, backoff="1s", bands=3)
    sent = queue.put("a", headers={"kind": "x"}, priority=2, group="g")
    stage.drain(queue, Consumer(queue, fail))
    assert queue.redrive() == 1
    assert queue.dead.peek() == []
    seen = Recorder(stage.clock, fail)
    stage.drain(queue, Consumer(queue, seen))
    assert attempts_of(seen) == [1, 2]
    first = seen.messages[0]
    assert (first.id, first.priority, first.group) == (sent.id, 2, "g")
    assert first.headers == {"kind": "x"}


def test_a_dead_letter_queue_keeps_what_its_own_handler_fails_on(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("a")
    stage.drain(queue, Consumer(queue, fail))
    seen = Recorder(stage.clock, fail)
    stage.drive(Consumer(queue.dead, seen), seconds=600, stride=0.5)
    assert len(seen) > 5
    assert [message.text for message in queue.dead.peek()] == ["a"]


def test_a_handler_can_choose_the_delay_of_a_retry(stage: Stage) -> None:
    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise Retry("7s")

    queue = stage.connect().queue("mail")
    queue.put("a")
    seen = Recorder(stage.clock, handle)
    stage.drain(queue, Consumer(queue, seen))
    assert attempts_of(seen) == [1, 2]
    assert (seen.at_us[1] - seen.at_us[0]) / 1e6 == pytest.approx(7, abs=0.2)


@pytest.mark.parametrize("asked", [Retry("0s"), Snooze("50ms")])
def test_what_comes_again_at_once_waits_for_no_sweep(stage: Stage, asked: Retry | Snooze) -> None:
    def handle(message: Message) -> None:
        if len(seen) == 1:
            raise asked

    queue = stage.connect().queue("mail")
    seen = Recorder(stage.clock, handle)
    consumer = Consumer(queue, seen)
    stage.drive(consumer, seconds=2.03)
    queue.put("a")
    stage.drive(consumer, seconds=1, until=lambda: len(seen) == 2)
    assert (seen.at_us[1] - seen.at_us[0]) / 1e3 < (asked.delay_ms or 0) + 110


def test_a_handler_can_bury_at_once_and_say_why(stage: Stage) -> None:
    def handle(_message: Message) -> None:
        raise Bury("no such customer")

    queue = stage.connect().queue("mail")
    queue.put("a")
    seen = Recorder(stage.clock, handle)
    stage.drain(queue, Consumer(queue, seen))
    assert len(seen) == 1
    [dead] = queue.dead.peek()
    assert dead.headers["shardq-reason"] == "no such customer"


def test_ctrl_c_in_a_turn_reaches_its_caller_and_the_message_comes_again_uncounted(
    stage: Stage,
    queue: Queue,
) -> None:
    queue.put("a")
    interrupts = [KeyboardInterrupt()]

    def handle(_message: Message) -> None:
        while interrupts:
            raise interrupts.pop()

    seen = Recorder(stage.clock, handle)
    consumer = Consumer(queue, seen)
    with pytest.raises(KeyboardInterrupt):
        stage.drive(consumer, seconds=5)
    # The same consumer gets the message at once; so does one that takes over from a closed one.
    assert stage.drive(consumer, seconds=1, until=lambda: len(seen) == 2)
    assert attempts_of(seen) == [1, 1]
    consumer.close()
    assert stage.is_empty(queue)


def test_a_turn_that_ctrl_c_ended_leaves_its_message_to_others(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    interrupted = Consumer(queue, crash)
    assert run_until_crash(stage, interrupted, seconds=5)
    interrupted.close()
    seen = Recorder(stage.clock)
    assert stage.drive(Consumer(queue, seen), seconds=2, until=lambda: len(seen) == 1)
    assert attempts_of(seen) == [1]


def test_a_delay_that_cannot_be_used_fails_where_the_handler_asks_for_it() -> None:
    with pytest.raises(BadTime):
        Retry("-5s")
    with pytest.raises(BadTime):
        Snooze("soon")


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"threads": 513}, {"prefetch": 0}, {"prefetch": 100_001}]
)
def test_numbers_out_of_bounds_are_refused(stage: Stage, options: dict) -> None:
    with pytest.raises(BadSetting):
        Consumer(stage.connect().queue("mail"), print, **options)


def test_a_handler_that_nobody_can_call_is_refused_at_once(stage: Stage) -> None:
    for handler in (None, "print"):
        with pytest.raises(BadSetting, match="handler must be a function of a message, not"):
            Consumer(stage.connect().queue("mail"), handler)


def test_a_name_is_no_queue_to_consume() -> None:
    with pytest.raises(BadSetting, match=r"queue must be what db.queue\(name\) returns"):
        Consumer("mail", print)


# Crashes ------------------------------------------------------------------------------------------


def test_a_crash_loses_nothing_and_delivers_again_what_was_in_hand(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    sent = [queue.put(f"{n}", delay=f"{n * 20}ms").text for n in range(200)]
    first, second = Recorder(stage.clock), Recorder(stage.clock)
    killed = Consumer(queue, first)
    stage.drive(killed, seconds=2)
    other = stage.connect().queue("mail")
    stage.drain(queue, Consumer(other, second))
    assert sorted(set(first.texts + second.texts)) == sorted(sent)
    assert min(first.late_ms + second.late_ms) >= 0
    assert max(second.late_ms) <= 15_000


def test_a_killer_in_a_group_is_buried_and_its_group_goes_on(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=2)
    for text in ("bad", "good", "better"):
        queue.put(text, group="g")
        stage.clock.advance(0.01)
    seen = Recorder(stage.clock, lambda m: crash(m) if m.text == "bad" else None)
    for _ in range(6):
        if run_until_crash(stage, Consumer(stage.connect().queue("mail"), seen), seconds=40):
            stage.clock.advance(1)
    assert stage.is_empty(queue)
    assert seen.texts[-2:] == ["good", "better"]
    assert queue.totals().buried == 1


def test_a_consumer_frozen_past_its_lease_hands_out_nothing_under_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    for n in range(40):
        queue.put(f"{n}")
    other_seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), other_seen)

    def handle(message: Message) -> None:
        # The fifth delivery takes a minute in which nothing else of this process runs.
        if len(seen) == 5:
            stage.drive(other, seconds=60, stride=0.05)
            seen_at_thaw.append(len(seen))

    seen_at_thaw: list[int] = []
    seen = Recorder(stage.clock, handle)
    frozen = Consumer(queue, seen)
    stage.drain(queue, frozen, other)
    assert seen_at_thaw == [5]
    assert sorted(set(seen.texts + other_seen.texts), key=int) == [f"{n}" for n in range(40)]
    assert len(seen.texts) == 5
    # Messages of the first five that had not been acked were delivered again.
    assert 35 <= len(other_seen) <= 40


# Holding ------------------------------------------------------------------------------------------


def working(stage: Stage, consumer: Consumer, seconds: float) -> None:
    """Time passes in a handler while the engine goes on beside it."""
    for _ in range(round(seconds / 0.25)):
        stage.clock.advance(0.25)
        consumer._engine.step()


def test_a_delivery_that_outlives_hold_is_parked_and_its_late_ack_counts(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="5s", visibility="20s")
    sent = queue.put("slow")
    states = []

    def handle(_message: Message) -> None:
        working(stage, consumer, 4)
        states.append([m._row.claim is not None for m in queue.peek()])
        working(stage, consumer, 2)
        [claim] = queue.peek()
        states.append([claim._row.claim is not None])
        assert claim.id == sent.id
        assert claim._row.attempt == 1

    seen = Recorder(stage.clock, handle)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    stage.drive(consumer, seconds=60, stride=0.25)
    assert states == [[False], [True]]
    assert len(seen) == 1


def test_a_parked_delivery_is_moved_on_by_its_heartbeat_and_nobody_else_gets_it(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", hold="5s", visibility="20s")
    queue.put("slow")
    other_seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), other_seen)

    def handle(_message: Message) -> None:
        for _ in range(480):
            stage.drive(other, seconds=0.25, stride=0.25)
            consumer._engine.step()

    seen = Recorder(stage.clock, handle)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer, other)
    stage.drive(consumer, other, seconds=30, stride=0.25)
    assert len(seen) == 1
    assert len(other_seen) == 0


def test_a_claim_that_came_due_before_it_was_moved_on_is_left_to_who_has_it_now(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", hold="5s", visibility="20s")
    queue.put("slow")
    claims = []

    def take_over(_message: Message) -> None:
        claims.extend(queue.peek())
        # It goes on now, and finds its claim where it was.
        consumer._engine.step()
        claims.extend(queue.peek())

    other_seen = Recorder(stage.clock, take_over)
    other = Consumer(stage.connect().queue("mail"), other_seen)

    def handle(_message: Message) -> None:
        working(stage, consumer, 6)
        stage.drive(other, seconds=30, stride=0.25)

    seen = Recorder(stage.clock, handle)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer, other)
    stage.drive(consumer, other, seconds=60, stride=0.25)
    assert (len(seen), len(other_seen)) == (1, 1)
    before, after = (claim._row for claim in claims)
    assert before == after


def test_a_parked_delivery_whose_consumer_dies_comes_again_counted(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="5s", visibility="20s")
    queue.put("slow")

    def handle(message: Message) -> None:
        working(stage, consumer, 12)
        raise Crash

    consumer = Consumer(queue, handle)
    assert run_until_crash(stage, consumer, seconds=1)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(stage.connect().queue("mail"), seen))
    assert attempts_of(seen) == [2]


def test_a_delivery_that_was_parked_can_fail_and_be_retried(stage: Stage) -> None:
    queue = stage.connect().queue("mail", hold="5s", visibility="20s", attempts=2, backoff="1s")
    queue.put("slow")

    def handle(_message: Message) -> None:
        working(stage, consumer, 8)
        raise ValueError("at last")

    seen = Recorder(stage.clock, handle)
    consumer = Consumer(queue, seen)
    stage.drain(queue, consumer)
    assert attempts_of(seen) == [1, 2]
    assert len(queue.dead.peek()) == 1


# Priorities ---------------------------------------------------------------------------------------


def test_priorities_are_strict_while_there_is_a_backlog(stage: Stage) -> None:
    queue = stage.connect().queue("mail", bands=3, lanes=2)
    queue.put_many({"body": f"{n % 3}", "priority": n % 3} for n in range(600))
    stage.clock.advance(1)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen, prefetch=60), within="1m")
    assert seen.texts == sorted(seen.texts)


# Threads ------------------------------------------------------------------------------------------


def test_a_turn_of_slow_handlers_stores_what_it_acked_and_keeps_its_leases(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many(f"{n}" for n in range(100))
    seen = Recorder(stage.clock, lambda _: stage.clock.advance(0.2))
    consumer = Consumer(queue, seen)
    while len(seen) < 100:
        before = len(seen)
        assert consumer.step() == 0 or len(seen) == 100
        assert before < len(seen) <= before + 6
        assert queue.depth(exact=True).total == 100 - len(seen)
        assert all(map(consumer._engine.leases.is_valid, consumer._engine.leases.held()))
    assert seen.texts == [f"{n}" for n in range(100)]


def test_a_turn_that_cannot_read_delivers_what_was_read_before(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put_many({"body": f"{n}", "delay": "1s"} for n in range(3))
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    consumer.step()
    stage.clock.advance(1)
    stage.faults.fail("read")
    with pytest.raises(StoreUnavailable):
        consumer.step()
    assert seen.texts == ["0", "1", "2"]
    consumer.step()
    assert queue.depth(exact=True).total == 0
