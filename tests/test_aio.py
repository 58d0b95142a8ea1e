"""Queues from asyncio: the same calls, for which no loop waits."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pydoc
import re
import sqlite3
import threading
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from apscheduler.triggers.date import DateTrigger
from worlds import on_both_stores

import shardq
from shardq import aio, tasks
from shardq.errors import BadName, BadSetting, BadTime, UnknownQueue, UsageError
from shardq.schedules.face import Scheduled
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

A_MINUTE = 60.0


@pytest.fixture
def local(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[aio.Queue]:
    """A queue of its own."""
    async with aio.connect(url, **settings) as db:
        yield db.queue(f"aio-{uuid4().hex}", history="1d")


async def turns(count: int = 10) -> None:
    """Let the loop turn."""
    for _ in range(count):
        turned = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turned.set_result, None)
        await turned


async def until(is_so: Callable[[], object]) -> None:
    """Let the loop turn, and others work, until something is so."""
    while not is_so():
        await asyncio.to_thread(threading.Event().wait, 0.001)


def pooled(before: set[threading.Thread]) -> list[threading.Thread]:
    """The threads of pools that were started since."""
    started = set(threading.enumerate()) - before
    return [one for one in started if re.match("shardq-aio-(quick|long|waiting)_", one.name)]


# The two faces ------------------------------------------------------------------------------------

NOT_OF_QUEUE = {"name", "dead"}
NOT_OF_TASK = {"name", "check", "of", "using"}
NOT_OF_APP = {"on_start", "on_stop",
    "task", "tasks", "find", "queue_names", "connection", "queue", "middleware",
    "every", "cron", "schedule", "unschedule", "schedules",
}  # fmt: skip
READ = {one.name for one in fields(shardq.Schedule)}
FACES = [
    (shardq.Queue, aio.Queue, NOT_OF_QUEUE),
    (Scheduled, aio.Queue, {"schedules"}),
    (shardq.Schedules, aio.Schedules, set()),
    (shardq.Schedule, aio.Schedule, READ),
    (tasks.AppSchedules, aio.AppSchedules, set()),
    (shardq.Connection, aio.Connection, {"queue", "url_shown"}),
    (tasks.Bound, aio.Task, NOT_OF_TASK),
    (tasks.App, aio.App, NOT_OF_APP),
    (tasks.Job, aio.Job, {"id", "queue", "task", "key", "due", "message"}),
]
CALLS = [
    (sync, face, name)
    for sync, face, others in FACES
    for name in sorted(vars(sync).keys() - others)
    if not name.startswith("_")
]


@pytest.mark.parametrize(
    ("sync", "face", "name"), CALLS, ids=[f"{face.__name__}.{name}" for _, face, name in CALLS]
)
def test_each_call_that_may_wait_is_a_coroutine_of_the_same_signature_and_help(
    sync: type, face: type, name: str
) -> None:
    original, call = vars(sync)[name], vars(face)[name]
    if isinstance(original, property):
        original = original.fget
    assert inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
    taken, given = inspect.signature(original), inspect.signature(call)
    own = {"Iterator[Record]": "AsyncIterator[Record]", "Job[Any] | None": "Job[Any] | None"}
    assert given.return_annotation == own.get(taken.return_annotation, taken.return_annotation)
    if name == "put_many":
        # It takes async iterables as well.
        taken, given = (
            one.replace(
                parameters=[
                    made.replace(annotation="") if made.name == "items" else made
                    for made in one.parameters.values()
                ]
            )
            for one in (taken, given)
        )
    assert given.parameters == taken.parameters
    shown = pydoc.render_doc(face, renderer=pydoc.plaintext)
    assert (call.__module__, call.__qualname__) == (face.__module__, f"{face.__name__}.{name}")
    assert f"async {name}{inspect.signature(call)}\n" in shown
    assert call.__doc__ == original.__doc__ or f"{name}`" in call.__doc__ or name == "close"


@pytest.mark.parametrize("sync", [sync for sync, _, _ in FACES])
def test_what_is_no_call_is_there_as_well(sync: type) -> None:
    [(face, others)] = [(face, others) for one, face, others in FACES if one is sync]
    missing = [name for name in others - NOT_OF_APP - {"check"} if not hasattr(face, name)]
    made = {"name", "id", "queue", "task", "key", "due", "message", *READ}
    assert set(missing) <= made


# Queues -------------------------------------------------------------------------------------------


@on_both_stores
async def test_what_is_put_is_received_and_acked(url: str) -> None:
    async with opened(url) as queue:
        put = await queue.put("hello", headers={"a": "b"})
        later = await queue.put("later", delay="1h", key="later")
        [message] = await queue.receive(wait="20s")
        assert (message.id, message.text, message.headers) == (put.id, "hello", {"a": "b"})
        await queue.ack(message)
        assert await queue.cancel(key="later") is shardq.Answer.DONE
        assert not await queue.cancel(later)
        assert [record.id async for record in queue.history(put.id)] == [put.id]
        assert (await queue.totals()).acked == 1
        assert (await queue.settings()).history_ms == 86_400_000
        assert await queue.dead.peek() == []


async def test_a_queue_is_opened_by_its_first_call(local: str) -> None:
    async with aio.connect(local) as db:
        with pytest.raises(BadName):
            db.queue("no name")
        queue = db.queue("mail", create=False)
        assert await db.queues() == []
        with pytest.raises(UnknownQueue):
            await queue.put("a")
        await db.queue("mail", attempts=7).put("a")
        assert (await queue.settings()).attempts == 7
        assert await db.queues() == ["mail"]


async def test_a_connection_that_was_given_stays_open(local: str) -> None:
    with shardq.connect(local) as db:
        async with aio.connect(db) as shared:
            assert shared.url_shown == db.url_shown
            await shared.queue("mail").put("a")
        assert [message.text for message in db.queue("mail").peek()] == ["a"]


async def test_a_connection_may_be_awaited_and_closed(local: str) -> None:
    unopened = aio.connect(local)
    with pytest.raises(UsageError, match="is not open; `async with` it, or await it, first"):
        await unopened.queue("mail").put("a")
    db = await aio.connect(local)
    queue = db.queue("mail")
    await queue.put("a")
    await db.close()
    await db.close()
    with pytest.raises(UsageError, match="this connection is closed; open another"):
        await queue.put("b")


@pytest.mark.parametrize("threads", [0, 1_001, "8", True])
def test_a_count_of_threads_that_cannot_be_is_refused(threads: Any) -> None:
    with pytest.raises(BadSetting, match="threads must be 1 to 1,000"):
        aio.connect("sqlite://", threads=threads)


async def test_the_loop_turns_while_the_store_does_not_answer(local: str, tmp_path: Path) -> None:
    async with opened(local) as queue:
        await queue.put("a")
        blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        putting = asyncio.create_task(queue.put("b"))
        await turns(1_000)
        assert not putting.done()
        blocker.execute("ROLLBACK")
        blocker.close()
        assert (await putting).body == b"b"


async def test_what_runs_in_a_thread_sees_the_context_of_its_caller(local: str) -> None:
    def items() -> Iterator[str]:
        yield where.get()

    where: ContextVar[str] = ContextVar("where")
    async with opened(local) as queue:
        where.set("here")
        await queue.put_many(items())
        assert [message.text for message in await queue.peek()] == ["here"]


async def test_a_queue_forwards_to_one_of_its_own_connection_alone(url: str) -> None:
    async with aio.connect(url) as db, opened(url) as other:
        queue, to = db.queue(f"aio-{uuid4().hex}"), db.queue(f"aio-{uuid4().hex}")
        sent = await queue.put("a")
        [message] = await queue.receive(wait="20s")
        with pytest.raises(UsageError, match="of another connection; give its name"):
            await queue.forward(message, to=other)
        await queue.forward(message, to=to)
        [message] = await to.receive(wait="20s")
        assert message.id == sent.id


async def test_a_wrong_argument_is_refused_as_by_a_queue(local: str) -> None:
    async with opened(local) as queue:
        for call in (queue.depth, queue.forward, queue.peek):
            with pytest.raises(TypeError, match=rf"Queue\.{call.__name__}\(\) got an unexpected"):
                await call(exat=True)


# Putting many -------------------------------------------------------------------------------------


async def counted(count: int, error: Exception | None = None) -> AsyncIterator[str]:
    for number in range(count):
        yield str(number)
        if number % 700 == 0:
            await turns(1)
    if error is not None:
        raise error


async def test_many_are_put_from_iterables_of_both_kinds(url: str) -> None:
    async with opened(url) as queue:
        assert await queue.put_many(counted(2_500)) == 2_500
        assert await queue.put_many(str(number) for number in range(10)) == 10
        ids = await queue.put_many(counted(3), ids=True)
        assert len(set(ids)) == 3
        assert await queue.put_many(counted(0)) == 0
        depth = await queue.depth(exact=True)
        assert depth.ready + depth.waiting == 2_513


async def test_what_an_async_iterable_raises_is_raised_once_all_before_it_is_stored(
    local: str,
) -> None:
    async with opened(local) as queue:
        with pytest.raises(KeyError) as caught:
            await queue.put_many(counted(1_500, KeyError("none")))
        assert caught.value.__notes__ == ["1,500 messages before it were put."]
        depth = await queue.depth(exact=True)
        assert depth.ready + depth.waiting == 1_500


async def test_an_item_that_cannot_be_put_ends_an_async_iterable(local: str) -> None:
    async def items() -> AsyncIterator[Any]:
        yield "a"
        yield 7
        for number in itertools.count():
            yield str(number)

    async with opened(local) as queue:
        with pytest.raises(UsageError, match="not int") as caught:
            await queue.put_many(items())
        assert caught.value.__notes__ == ["1 messages before it were put."]


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"body": "a"}, 7])
async def test_what_is_no_iterable_of_messages_is_refused(local: str, wrong: Any) -> None:
    async with opened(local) as queue:
        with pytest.raises(UsageError, match="put_many takes an iterable"):
            await queue.put_many(wrong)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_put_of_many_that_is_cancelled_reads_no_further(local: str, is_async: bool) -> None:
    def items() -> Iterator[str]:
        for number in range(2_000_000):
            read.append(number)
            yield str(number)

    async def async_items() -> AsyncIterator[str]:
        for item in items():
            yield item
            await turns(1)

    read: list[int] = []
    async with opened(local) as queue:
        putting = asyncio.create_task(queue.put_many(async_items() if is_async else items()))
        await until(lambda: len(read) > 5_000)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
    assert len(read) < 2_000_000


# Receiving ----------------------------------------------------------------------------------------


async def test_a_receive_waits_for_what_is_put_and_no_longer_than_it_was_told(url: str) -> None:
    async with opened(url) as queue:
        waits = [asyncio.create_task(queue.receive(wait="0.3s")) for _ in range(3)]
        assert await asyncio.gather(*waits) == [[], [], []]
        waiting = asyncio.create_task(queue.receive(wait="50s"))
        await turns()
        await queue.put("a")
        [message] = await waiting
        assert message.text == "a"
        await queue.ack(message)


async def test_a_receive_that_cannot_be_is_refused_as_by_a_queue(local: str) -> None:
    async with opened(local) as queue:
        for wrong in ("61m", "-1s", "soon"):
            with pytest.raises(BadTime):
                await queue.receive(wait=wrong)
        with pytest.raises(BadSetting):
            await queue.receive(0, wait="10s")


async def test_a_receive_waits_no_longer_for_a_store_that_does_not_answer() -> None:
    with Stage(threaded=True) as stage:
        may_answer = threading.Event()
        db = shardq.Connection(stage._store, stage.clock)
        stage.faults.call("read", lambda: may_answer.wait(A_MINUTE), after=False)
        async with aio.connect(db) as shared:
            assert await shared.queue("mail").receive(wait="0.1s") == []
            may_answer.set()
        db.close()


async def test_many_that_wait_take_one_thread_and_get_one_message_each(url: str) -> None:
    before = set(threading.enumerate())
    async with opened(url, threads=2) as queue:
        waiting = [asyncio.create_task(queue.receive(1, wait="55s")) for _ in range(100)]
        await turns()
        assert await queue.receive() == [], "each of them has looked once"
        await queue.put_many(str(number) for number in range(100))
        got = [message for messages in await asyncio.gather(*waiting) for message in messages]
        assert sorted(int(message.text) for message in got) == list(range(100))
        assert len(pooled(before)) <= 4
        await queue.ack(*got)
    assert pooled(before) == []


async def test_a_receive_that_is_cancelled_ends_at_once(local: str) -> None:
    async with opened(local) as queue:
        waiting = [asyncio.create_task(queue.receive(wait="55s")) for _ in range(20)]
        await turns()
        await queue.peek()
        for one in waiting:
            one.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in ended] == [asyncio.CancelledError] * 20
        await queue.put("a")
        [message] = await queue.receive(wait="50s")
        assert message.attempt == 1


async def test_what_a_cancelled_receive_has_taken_is_released_and_costs_no_attempt(
    url: str,
) -> None:
    async with opened(url) as queue:
        put = await queue.put("a")
        waiting = asyncio.create_task(queue.receive(visibility="1h", wait="55s"))
        await turns(3)
        # Until a thread has taken it, while the loop stands still and cannot give it to anyone.
        with shardq.connect(url) as other:
            looked = other.queue(queue.name)
            while (found := looked.find(put.id)) is None or not found.attempt:
                threading.Event().wait(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        [message] = await queue.receive(wait="50s")
        assert (message.id, message.attempt) == (put.id, 1)


async def test_whenever_a_receive_is_cancelled_its_message_is_received_by_another(
    local: str,
) -> None:
    async with opened(local) as queue:
        for number in range(30):
            waiting = asyncio.create_task(queue.receive(visibility="1h", wait="55s"))
            await queue.put(str(number))
            await turns(7 * number)
            waiting.cancel()
            [ended] = await asyncio.gather(waiting, return_exceptions=True)
            got = ended if isinstance(ended, list) else await queue.receive(wait="50s")
            [message] = got
            assert (message.text, message.attempt) == (str(number), 1)
            await queue.ack(message)


@on_both_stores
async def test_schedules_are_made_read_and_changed(url: str) -> None:
    async with opened(url) as queue:
        hourly = await queue.every("1h", "hello", name="hourly", missed="all")
        nightly = await queue.cron("30 2 * * *", "night", tz="Europe/Berlin", name="nightly")
        once = DateTrigger("2040-01-01", timezone="UTC")
        assert (await queue.schedule(once, "once", name="once")).next == datetime(
            2040, 1, 1, tzinfo=UTC
        )
        assert [one.name async for one in queue.schedules] == ["hourly", "nightly", "once"]
        assert (await hourly.pause()).state == "paused"
        assert (await hourly.resume()).state == "waiting"
        changed = await hourly.change(every="5m", body="hi")
        assert (str(changed.trigger), changed.policies.missed) == ("every 5m", "all")
        assert (await changed.run()).text == "hi"
        day = ("2027-03-28T00:00Z", "2027-03-29T00:00Z")
        assert await nightly.backfill(*day) == 1
        [gap, _] = await nightly.preview(2, day[0])
        assert gap == (await queue.schedules.preview("nightly", 1, day[0]))[0]
        assert "clocks go forward" in gap.why
        assert await nightly.remove()
        assert await queue.schedules.get("nightly") is None
        assert await queue.schedules.remove("once")
        assert not await queue.schedules.remove("once")
        found = await queue.schedules.get("hourly")
        assert found is not None
        assert {name: getattr(found, name) for name in READ - {"_of"}} == {
            name: getattr(changed, name) for name in READ - {"_of"}
        }
        await asyncio.gather(*[one.remove() async for one in queue.schedules])


async def test_a_close_lets_calls_end(local: str) -> None:
    db = await aio.connect(local)
    queue = db.queue("mail")
    await queue.peek()
    calls = [asyncio.create_task(queue.put(str(number))) for number in range(50)]
    waiting = asyncio.create_task(queue.receive(100, visibility="1h", wait="55s"))
    await turns(2)
    await db.close()
    await asyncio.gather(*calls)
    got = (await asyncio.gather(waiting, return_exceptions=True))[0]
    received = len(got) if isinstance(got, list) else 0
    with shardq.connect(local) as other:
        depth = other.queue("mail").depth(exact=True)
    assert depth.ready + depth.waiting + received == 50
