"""What may be a handler, and deliveries of handlers that did not do their work."""

from __future__ import annotations

import asyncio
import decimal
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from decimal import Decimal
from functools import partial, wraps
from multiprocessing.pool import ThreadPool
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from shardq import Bury, Consumer, Message, Queue, Retry, Snooze
from shardq.engine.handing.handler import check_function, undone
from shardq.errors import BadSetting
from shardq.testing import Recorder, Stage


async def handle(message: Message) -> None:
    raise AssertionError("nothing awaits it")


def lazily(message: Message) -> Iterator[str]:
    yield message.text


async def lazily_async(message: Message):
    yield message.text


def unseen(function: Callable[[Message], object]) -> Callable[[Message], object]:
    """A function of which nobody can tell what it returns."""
    return lambda message: function(message)  # noqa: PLW0108


@wraps(lazily)
def wrapped(message: Message) -> Iterator[str]:
    return lazily(message)


class Letters:
    """Handles messages, if one of it is made."""

    def __call__(self, message: Message) -> None:
        """Do it."""

    async def later(self, message: Message) -> None:
        """Do it later."""


class AsyncLetters:
    async def __call__(self, message: Message) -> None:
        """Do it later."""


# What is seen at once -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (handle, "is async, of which a call by itself runs nothing; give `lambda message: async"),
        (partial(partial(handle)), "is async"),
        (AsyncLetters(), "is async"),
        (partial(AsyncLetters()), "is async"),
        (Letters().later, "is async"),
        (AsyncMock(), "is async"),
        (lazily, "is a generator"),
        (partial(lazily), "is a generator"),
        (lazily_async, "is an async generator"),
        (Letters, "not the class Letters"),
        (partial(Letters), "not the class Letters"),
    ],
)
def test_a_handler_that_would_not_run_is_refused_at_once(
    stage: Stage, queue: Queue, handler: Callable[[Message], object], said: str
) -> None:
    with pytest.raises(BadSetting, match=rf"^handler .*{said}"):
        Consumer(queue, handler)
    with pytest.raises(BadSetting, match=rf"^act .*{said}"):
        Recorder(stage.clock, handler)
    with pytest.raises(BadSetting, match=rf"^where .*{said}"):
        queue.redrive(where=handler)


@pytest.mark.parametrize(
    "handler",
    [
        print,
        [].append,
        Letters(),
        partial(Letters()),
        wrapped,
        Mock(),
        MagicMock(),
        lambda message: asyncio.run(handle(message)),
        wraps(handle)(lambda message: asyncio.run(handle(message))),
    ],
)
def test_whatever_may_run_is_taken(handler: Callable[[Message], object]) -> None:
    check_function(handler, "handler")


# What is seen by what it returns ------------------------------------------------------------------


class Promise:
    def __await__(self) -> Iterator[None]:
        raise AssertionError("nothing awaits it")


def pending(_message: Message) -> asyncio.Future[None]:
    loop = asyncio.new_event_loop()
    loop.close()
    return loop.create_future()


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (unseen(handle), "the coroutine handle, which nobody awaits"),
        (wrapped, "the generator lazily, which has not run"),
        (unseen(lazily_async), "the async_generator lazily_async"),
        (lambda message: map(print, message.text), "the map, which has not run"),
        (lambda message: filter(print, message.text), "the filter, which has not run"),
        (lambda _: Promise(), "the Promise, which nobody awaits"),
        (pending, "the Future, which nobody awaits"),
        (lambda _: Retry("10m"), "Retry and did not raise it"),
        (lambda _: Snooze("10m"), "Snooze and did not raise it"),
        (lambda _: Bury("why"), "Bury and did not raise it"),
        (lambda _: Retry, "Retry and did not raise it"),
    ],
)
def test_a_handler_that_returns_what_has_not_run_fails_its_delivery_loudly(
    stage: Stage,
    caplog: pytest.LogCaptureFixture,
    handler: Callable[[Message], object],
    said: str,
) -> None:
    queue = stage.connect().queue("mail", attempts=2)
    sent = queue.put("a")
    seen = Recorder(stage.clock, handler)
    stage.drain(queue, Consumer(queue, seen))
    assert [message.attempt for message in seen.messages] == [1, 2]
    [dead] = queue.dead.peek()
    assert f"the handler returned {said}" in dead.headers["shardq-reason"]
    loud = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert len(loud) == 2
    assert all(sent.id in line and said in line for line in loud)
    assert [record.fate for record in queue.history()] == ["dead"]


@pytest.mark.parametrize(
    "returned",
    [None, 0, "text", [1], iter([1]), Mock(), MagicMock(), Letters(), ValueError("found")],
    ids=lambda returned: type(returned).__name__,
)
def test_what_a_handler_returns_is_its_own_affair_else(returned: object) -> None:
    assert undone(returned) == ""


def test_what_was_run_to_its_end_and_is_returned_has_run() -> None:
    async def nothing() -> None:
        pass

    coroutine, generator = nothing(), (n for n in range(3))
    asyncio.run(coroutine)
    assert undone(coroutine) == ""
    assert next(generator) == 0
    assert "has not run" in undone(generator)
    generator = (n for n in range(3))
    assert list(generator) == [0, 1, 2]
    assert undone(generator) == ""


def test_a_choice_that_cannot_be_known_redrives_nothing(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("a")
    stage.drain(queue, Consumer(queue, Recorder(stage.clock, lambda _: 1 // 0)))
    with pytest.raises(BadSetting, match="where returned the coroutine handle"):
        queue.redrive(where=unseen(handle))
    assert len(queue.dead.peek()) == 1


# Futures ------------------------------------------------------------------------------------------


def fails_first(message: Message) -> str:
    if message.attempt == 1:
        raise OSError("no route")
    return message.text


def test_the_future_that_a_handler_returns_is_waited_for_and_may_fail(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.put("a")
    with ThreadPoolExecutor(1) as pool:
        seen = Recorder(stage.clock, lambda message: pool.submit(fails_first, message))
        stage.drain(queue, Consumer(queue, seen))
    assert [message.attempt for message in seen.messages] == [1, 2]
    assert [record.fate for record in queue.history()] == ["acked"]


def test_so_is_the_result_of_a_multiprocessing_pool(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    with ThreadPool(1) as pool:
        seen = Recorder(stage.clock, lambda message: pool.apply_async(fails_first, (message,)))
        stage.drain(queue, Consumer(queue, seen))
    assert [message.attempt for message in seen.messages] == [1, 2]


def test_a_future_of_what_has_not_run_fails_as_that_does(stage: Stage) -> None:
    queue = stage.connect().queue("mail", attempts=1)
    queue.put("a")
    with ThreadPoolExecutor(1) as pool:
        stage.drain(queue, Consumer(queue, lambda message: pool.submit(handle, message)))
    [dead] = queue.dead.peek()
    assert "the coroutine handle" in dead.headers["shardq-reason"]


def test_a_snooze_within_a_future_spends_no_attempt(stage: Stage, queue: Queue) -> None:
    queue.put("a")
    snoozed: Future[None] = Future()
    snoozed.set_exception(Snooze("5s"))
    answers: list[Future[None] | None] = [None, snoozed]
    seen = Recorder(stage.clock, lambda _: answers.pop())
    stage.drain(queue, Consumer(queue, seen))
    assert [message.attempt for message in seen.messages] == [1, 1]


def test_a_task_that_asyncio_has_done_is_done() -> None:
    async def run() -> object:
        future = asyncio.get_running_loop().create_future()
        future.set_result("done")
        return future

    with Stage() as stage:
        queue = stage.connect().queue("mail")
        queue.put("a")
        stage.drain(queue, Consumer(queue, lambda _: asyncio.run(run())))
        assert [record.fate for record in queue.history()] == ["acked"]


# Contexts -----------------------------------------------------------------------------------------


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("threaded", [True, False])
def test_what_one_handler_sets_in_its_context_no_other_sees(threaded: bool) -> None:
    precision = decimal.getcontext().prec
    seen: list[tuple[str, int, Decimal]] = []

    def handle(message: Message) -> None:
        seen.append((TENANT.get(), decimal.getcontext().prec, Decimal(1) / 3))
        TENANT.set(message.text)
        decimal.getcontext().prec = 3

    with Stage(threaded=threaded) as stage:
        queue = stage.connect().queue("mail")
        queue.put_many(["ada", "bob", "eve"])
        consumer = Consumer(queue, handle, threads=1)
        if threaded:
            with stage.ticking():
                consumer.run(until_empty=True)
        else:
            stage.drive(consumer, seconds=1)
    assert seen == [("nobody", precision, Decimal(1) / 3)] * 3
    assert (TENANT.get(), decimal.getcontext().prec) == ("nobody", precision)


def test_a_handler_that_its_caller_steps_sees_the_context_of_the_caller(stage: Stage) -> None:
    seen: list[str] = []
    queue = stage.connect().queue("mail")
    queue.put("x")
    token = TENANT.set("caller")
    try:
        stage.drive(Consumer(queue, lambda _: seen.append(TENANT.get())), seconds=1)
    finally:
        TENANT.reset(token)
    assert seen == ["caller"]
