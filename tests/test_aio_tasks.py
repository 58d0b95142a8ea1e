"""Tasks, apps and jobs from asyncio."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from apscheduler.triggers.date import DateTrigger
from test_aio import pooled
from worlds import on_both_stores

from shardq import Answer, App, aio
from shardq.errors import BadArguments, JobFailed, JobTimeout, KeyTaken, NoResult, UsageError
from shardq.tasks import Call, JobState, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def app(url: str) -> Iterator[App]:
    with App(url, queue=f"aio-{uuid4().hex}", backoff="10ms", keep="1h") as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/jobs.db", backoff="10ms", keep="1h") as made:
        yield made


async def worked(app: App) -> None:
    """Run all jobs of an app."""
    await asyncio.to_thread(Worker(app).run, until_empty=True)


@on_both_stores
async def test_a_job_is_put_and_its_result_waited_for(app: App) -> None:
    @app.task
    def add(one: int, *, other: int = 1) -> int:
        return one + other

    @app.task(attempts=1)
    async def fail(why: str) -> None:
        raise OSError(why)

    job = await aio.task(add).put(1, other=2)
    failing = await aio.task(fail).put("no luck")
    assert (job.queue, job.task, job.key) == (app.queue_names[0], add.name, None)
    assert await job.state() is JobState.WAITING
    with pytest.raises(JobTimeout):
        await job.result(timeout="50ms")
    waiting = asyncio.gather(job.result(), failing.result(), return_exceptions=True)
    await worked(app)
    result, error = await waiting
    assert result == 3
    assert isinstance(error, JobFailed)
    assert await job.state() is JobState.DONE
    assert await failing.attempt() == 1
    assert "OSError: no luck" in (await failing.error() or "")
    assert "OSError: no luck" in (await failing.traceback() or "")
    assert await job.progress() is None
    again = await aio.App(app).job(job.id, task=add.name)
    assert await again.result() == 3
    await aio.App(app).close()


async def test_a_job_is_found_moved_and_cancelled_by_its_key(app: App) -> None:
    @app.task
    def remind(user: str) -> None: ...

    async with aio.App(app) as faced:
        later = aio.task(remind).using(delay="3d", key="remind-ada")
        job = await later.put("ada")
        assert job.key == "remind-ada"
        assert await faced.move("remind-ada", delay="1d") is Answer.DONE
        found = await faced.get("remind-ada")
        assert found.id == job.id
        with pytest.raises(KeyTaken):
            await later.using(on_conflict="reject").put("ada")
        assert await job.move(delay="2d") is Answer.DONE
        assert await faced.cancel("remind-ada") is Answer.DONE
        assert await faced.cancel("remind-ada") is Answer.NOT_THERE
        assert await faced.get("remind-ada") is None
        assert await job.state() is JobState.CANCELLED
        other = await aio.task(remind).using(delay="1h").put("bob")
        assert await other.cancel()


async def test_many_are_put_from_iterables_of_both_kinds(local: App) -> None:
    got: list[tuple[str, int]] = []

    @local.task
    def note(user: str, count: int = 0) -> None:
        got.append((user, count))

    @local.task(batch=50)
    def index(ids: list[int]) -> None:
        got.extend((str(one), 0) for one in ids)

    async def calls() -> AsyncIterator[Call[Any]]:
        for number in range(1_500):
            yield note.of("a", count=number)

    async def ids() -> AsyncIterator[int]:
        for number in range(20):
            yield number

    async def wrong() -> AsyncIterator[Any]:
        yield ("b",)
        yield (1,)

    faced = aio.task(note)
    assert await faced.put_many(calls()) == 1_500
    assert len(await faced.put_many([("b",), {"user": "c"}], ids=True)) == 2
    assert await aio.task(index).put_many(ids()) == 20
    with pytest.raises(BadArguments) as caught:
        await faced.put_many(wrong())
    assert caught.value.__notes__ == ["1 messages before it were put."]
    Worker(local).run(until_empty=True)
    expected = [("a", number) for number in range(1_500)] + [("b", 0), ("c", 0), ("b", 0)]
    assert sorted(got) == sorted(expected + [(str(number), 0) for number in range(20)])


async def test_any_number_of_results_is_waited_for_in_few_threads(local: App) -> None:
    @local.task
    def double(number: int) -> int:
        return 2 * number

    before = set(threading.enumerate())
    async with aio.App(local, threads=2) as faced:
        jobs = [await aio.task(double).put(number) for number in range(60)]
        waiting = asyncio.gather(*(job.result() for job in jobs))
        assert await faced.get("none") is None
        assert len(pooled(before)) <= 3
        await worked(local)
        assert await waiting == [2 * number for number in range(60)]


async def test_a_wrong_argument_or_option_is_refused_as_by_a_task(local: App) -> None:
    @local.task(keep=None)
    def note(user: str) -> None: ...

    faced = aio.task(note)
    assert faced.name == note.name
    with pytest.raises(BadArguments, match="argument user must be str, not int"):
        await faced.put(1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown option 'dely'"):
        faced.using(dely="1d")  # type: ignore[call-arg]
    job = await faced.put("ada")
    with pytest.raises(NoResult):
        await job.result()


def test_what_is_no_app_or_task_is_refused_in_a_sentence() -> None:
    make: Any = aio.App
    with pytest.raises(UsageError, match=r"^aio.App takes a shardq.App, .* not 'sqlite://'.$"):
        make("sqlite://")
    of: Any = aio.task
    with pytest.raises(UsageError, match=r"^aio.task takes what @app.task has made, not <.*>.$"):
        of(len)


def test_an_app_serves_one_loop_after_the_other(local: App) -> None:
    @local.task
    def note(user: str) -> None: ...

    async def main(closes: bool) -> None:
        await asyncio.gather(*(aio.task(note).put("ada") for _ in range(20)))
        if closes:
            await aio.App(local).close()

    for closes in (False, True, False):
        asyncio.run(main(closes))
    assert len(local.queue("default").peek(100)) == 60


async def test_schedules_of_tasks_are_reconciled_made_and_read(app: App) -> None:
    @app.task(name="sync")
    def sync(region: str = "all") -> None: ...

    app.every("1h", sync)

    schedules = aio.App(app).schedules
    assert [one.name async for one in schedules] == []
    assert (await aio.App(app).reconcile()).made == ["sync"]
    made = await schedules.every("1d", sync.of("eu"), name="eu", jitter="1h")
    await schedules.cron("0 6 * * 1", sync, tz="Asia/Tokyo", name="weekly")
    once = DateTrigger("2040-01-01", timezone="UTC")
    await schedules.schedule(once, sync, name="once")
    names = [one.name async for one in schedules]
    assert names == ["eu", "once", "sync", "weekly"]
    assert (await made.run()).text == '{"region":"eu"}'
    found = await schedules.get("sync")
    assert (found.revision, found.queue) == (1, app.queue_names[0])
    assert await schedules.get("gone") is None
