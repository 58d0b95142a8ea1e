"""What limits hold back is explained: of a message, of a group, of a queue."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from supervised import wait_for

from shardq import Consumer, Message, Where
from shardq.model.message import TASK_HEADER
from shardq.records.membership import Heartbeat, heartbeats
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue, State

WAIT_S = 60


def state_of(queue: Queue, message: Message) -> State:
    state = queue.state_of(message)
    assert state is not None
    return state


def beat_of(queue: Queue) -> Heartbeat:
    """The heartbeat of a queue's only member; an empty one before it is there."""
    beats = heartbeats(queue._home.store, queue._home.register.members_key)
    return next(iter(beats.values()), Heartbeat())


# Of a message -------------------------------------------------------------------------------------


def test_a_message_that_waits_for_the_rate_of_its_queue_says_so(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"rate": "6/m"})
    messages = [queue.put(f"{number}") for number in range(22)]
    grouped = queue.put("grouped", group="a")
    stage.drive(Consumer(queue, Recorder(stage.clock), threads=4), seconds=8)
    state = state_of(queue, messages[-1])
    assert (state.where, state.limit, state.limit_of) == (Where.LIMITED, "6/m", "queue")
    assert state.ahead == 20
    assert state.until is not None
    assert (state.until - state.at).total_seconds() == 200
    assert "waits for the limit of its queue, 6/m, behind 20 of its queue" in str(state)
    assert state_of(queue, grouped).limit_of == "queue"
    assert beat_of(queue).limited == {"queue": 22}


def test_a_job_that_waits_for_the_rate_of_its_task_says_so(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"tasks": {"shop.*": {"rate": "6/m"}}})
    headers = {TASK_HEADER: "shop.charge"}
    jobs = [queue.put(f"{number}", headers=headers) for number in range(32)]
    queue.put("other", headers={TASK_HEADER: "shop.mail"})
    others = [queue.put(f"other {number}") for number in range(5)]
    seen = Recorder(stage.clock)
    stage.drive(Consumer(queue, seen, threads=4), seconds=8)
    assert {message.text for message in seen.messages} >= {message.text for message in others}
    for number in (2, 30):
        # One has begun at once; the first of these two waits in memory, the last was moved.
        job = jobs[number + 1]
        state = state_of(queue, queue.find(job.id) or job)
        assert (state.where, state.limit, state.limit_of) == (Where.LIMITED, "6/m", "task")
        assert state.ahead == number
        assert state.until is not None
        assert (state.until - state.at).total_seconds() == 10 * number
    assert "waits for the limit of its task, 6/m, behind 30 of its task, until about" in str(state)
    assert set(beat_of(queue).limited) == {"task"}


def test_a_late_message_that_waits_for_its_turn_says_so(stage: Stage) -> None:
    queue = stage.connect().queue("mail", limits={"catch_up": "6/m"})
    late = [queue.put(f"{number}") for number in range(32)]
    queue.put("paused", key="order-7")
    queue.pause(key="order-7")
    stage.clock.advance(60)
    queue.put("on time")
    stage.drive(Consumer(queue, Recorder(stage.clock), threads=4), seconds=8)
    state = state_of(queue, queue.find(late[31].id) or late[31])
    assert (state.where, state.limit_of, state.ahead) == (Where.LIMITED, "queue", 30)
    assert "waits for the limit of its queue, 6/m for late messages, behind 30" in str(state)
    assert set(beat_of(queue).limited) == {"late", "pause"}


def test_a_message_that_waits_for_handlers_that_run_says_so(busy: Stage) -> None:
    queue = busy.connect().queue("mail", limits={"running": 1})
    messages = [queue.put(f"{number}") for number in range(5)]

    def is_limited() -> bool:
        return state_of(queue, messages[-1]).where is Where.LIMITED

    with handling(busy, queue, threads=4) as begun:
        wait_for(is_limited, "the last message is limited")
        assert state_of(queue, messages[-1]).limit == "1 running"
        assert len(begun) == 1
        queue.alter(limits="off")
        wait_for(lambda: not is_limited(), "the last message is not limited")


def test_no_limit_is_blamed_while_all_handlers_are_busy(busy: Stage) -> None:
    queue = busy.connect().queue("mail", limits={"running": 50})
    messages = [queue.put(f"{number}") for number in range(5)]
    with handling(busy, queue, threads=1) as begun:
        wait_for(lambda: bool(begun), "a handler runs")
        wait_for(lambda: beat_of(queue).running == 1, "its consumer reports it")
        assert beat_of(queue).limited == {}
        assert state_of(queue, messages[-1]).where is Where.HELD


def test_a_member_reports_what_limits_of_groups_hold_back(busy: Stage) -> None:
    queue = busy.connect().queue(
        "mail", groups={"a": {"rate": "1/h", "places": 9}, "b": {"places": 2}}
    )
    queue.put_many({"body": "x", "group": group} for group in "abc" for _ in range(10))
    with handling(busy, queue, threads=5):
        wait_for(
            lambda: beat_of(queue).limited == {"rate": 9, "place": 8 + 9},
            "its consumer reports what waits",
        )


@contextmanager
def handling(busy: Stage, queue: Queue, *, threads: int) -> Iterator[list[Message]]:
    """Run a consumer whose handlers run until the end; yields the messages that have begun."""
    go, begun = threading.Event(), list[Message]()

    def handle(message: Message) -> None:
        begun.append(message)
        go.wait(WAIT_S)

    consumer = Consumer(queue, handle, threads=threads)
    consumer.start()
    try:
        with busy.ticking():
            yield begun
    finally:
        go.set()
        with busy.ticking():
            consumer.stop()
            consumer.join(WAIT_S)
