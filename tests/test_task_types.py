"""Calls of tasks that a type checker refuses, and no others, and that shardq refuses as well.

Each is marked `# wrong: ` and why. mypy reads this file as it reads the package, and reports each
`type: ignore` that is not needed; `scripts/surface` lets pyright, which is told to take no heed of
these, report the lines that are marked, and only these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, assert_type

import pytest

import shardq
from shardq import aio
from shardq.tasks import App, Backoff, Job, JobState, Reconciled

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Order:
    id: int


app = App()


@app.task
def plain(user: str) -> int:
    return len(user)


@app.task(queue="mail", attempts=3, backoff=Backoff("1s"), timeout="30s", keep="1d")
def welcome(user: str, *, lang: str = "en") -> str:
    return f"{user} {lang}"


@app.task(retry_on=OSError, bury_on=[ValueError, KeyError], backoff=["1s", "5m"])
def ship(order: Order, copies: int | None = None) -> None: ...


@app.task(backoff=lambda attempt, _error: f"{attempt}s")
async def fetch(url: str, limit: int = 10) -> list[str]:
    return [url] * limit


@app.task
def log(event: str, *values: int, **labels: str) -> None: ...


@app.task(batch=100, timeout="1m")
def index(ids: list[int]) -> None: ...


@app.task(batch=10)
async def send(orders: list[Order]) -> None: ...


def nothing(days: int = 1) -> None: ...


def regions(names: list[str]) -> None: ...


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SHARDQ_STORE", f"sqlite:///{tmp_path}/jobs.db")
    yield
    app.close()


def refused() -> pytest.RaisesExc[shardq.UsageError]:
    return pytest.RaisesExc(shardq.UsageError)


def test_what_fits_is_put() -> None:
    assert_type(plain.put("ada"), Job[int])
    assert_type(plain("ada"), int)
    assert_type(welcome.put("ada", lang="de"), Job[str])
    assert_type(welcome.using(delay="3d", key="welcome-ada").put("ada"), Job[str])
    assert_type(ship.put(Order(1)), Job[None])
    ship.put(Order(1), copies=None)
    ship.put(order=Order(1), copies=2)
    assert_type(fetch.put("x"), Job[list[str]])
    log.put("start", 1, 2, by="ada")
    assert_type(index.put(7), Job[None])
    send.put(Order(1))
    assert plain.put_many([("ada",), {"user": "bob"}, plain.of("cy")]) == 3
    assert len(fetch.put_many((fetch.of(url, limit=1) for url in "ab"), ids=True)) == 2
    assert welcome.put_many([welcome.using(delay="1h").of("ada", lang="de")]) == 1
    assert index.put_many([1, 2, 3]) == 3
    assert index.put_many(index.of(one) for one in range(3)) == 3
    assert app.cancel("welcome-ada") is shardq.Answer.DONE


def test_a_wrong_argument_is_found() -> None:
    with refused():
        plain.put(1)  # type: ignore[arg-type]  # wrong: its type
    with refused():
        plain.put()  # type: ignore[call-arg]  # wrong: it is missing
    with refused():
        plain.put("ada", "bob")  # type: ignore[call-arg]  # wrong: one too many
    with refused():
        welcome.put("ada", "de")  # type: ignore[call-arg]  # wrong: by name alone
    with refused():
        welcome.put("ada", lang=1)  # type: ignore[arg-type]  # wrong: its type
    with refused():
        ship.put({"id": 1})  # type: ignore[arg-type]  # wrong: its type
    with refused():
        log.put("start", "1")  # type: ignore[arg-type]  # wrong: its type


def test_a_wrong_argument_of_a_coroutine_is_found() -> None:
    with refused():
        fetch.put(b"x")  # type: ignore[arg-type]  # wrong: its type
    with refused():
        fetch.put("x", limit="1")  # type: ignore[arg-type]  # wrong: its type


def test_a_wrong_option_of_a_put_is_found() -> None:
    with refused():
        welcome.using(dely="3d")  # type: ignore[call-arg]  # wrong: its name
    with refused():
        welcome.using(delay=3).put("ada")  # type: ignore[arg-type]  # wrong: its type
    with refused():
        welcome.using(on_conflict="drop", key="x")  # type: ignore[arg-type]  # wrong: its value
    with refused():
        welcome.using(delay="3d").put(1)  # type: ignore[arg-type]  # wrong: the argument's type


def test_a_wrong_option_of_a_task_is_found() -> None:
    def function(user: str) -> None: ...

    own = App()
    with refused():
        own.task(atempts=3)(function)  # type: ignore[call-overload]  # wrong: its name
    with refused():
        own.task(attempts="3")(function)  # type: ignore[call-overload]  # wrong: its type
    with refused():
        App(atempts=3)  # type: ignore[call-arg]  # wrong: its name
    with refused():
        own.task(batch=10)(function).check()  # type: ignore[arg-type]  # wrong: it takes no list


def test_a_wrong_item_is_found() -> None:
    with refused():
        plain.of(1)  # type: ignore[arg-type]  # wrong: its type
        plain.put_many([plain.of(1)])  # type: ignore[arg-type]  # wrong: its type
    with refused():
        welcome.put_many([plain.of("ada")])  # type: ignore[list-item]  # wrong: another task's
    with refused():
        plain.put_many(["ada"])  # type: ignore[list-item]  # wrong: neither tuple nor mapping
    with refused():
        index.put("7")  # type: ignore[arg-type]  # wrong: its type
    with refused():
        index.put_many(["7"])  # type: ignore[list-item]  # wrong: its type


def test_a_wrong_command_is_found() -> None:
    with refused():
        app.cancel(7)  # type: ignore[arg-type]  # wrong: its type
    with pytest.raises(TypeError):
        app.move("a", dely="1d")  # type: ignore[call-arg]  # wrong: its name


def test_what_fits_is_scheduled() -> None:
    own = App()
    sync = own.task(name="sync")(nothing)
    region = own.task(name="region", batch=5)(regions)
    own.every("15m", sync, jitter="1m", missed="all")
    own.every("15m", sync.using(key="crm"), name="crm", start="2040-01-01T00:00Z", count=3)
    own.cron("30 2 * * *", sync.of(days=2), tz="Europe/Berlin", name="two", overlap="skip")
    own.schedule(shardq.Trigger.cron("0 2 * * *"), region.of("eu"), gap="skip", twice="both")
    own.unschedule("gone", queue="old")
    assert_type(own.reconcile(), Reconciled)
    made = own.schedules.every("1d", sync.using(attempts=2).of(days=7), name="weekly")
    assert_type(made, shardq.Schedule)
    assert_type(made.next, datetime | None)
    assert_type(own.schedules.get("crm"), shardq.Schedule | None)
    assert_type(own.connection.queue("mail").every("1h", "hello"), shardq.Schedule)
    assert [one.name for one in own.schedules] == ["crm", "region", "sync", "two", "weekly"]
    own.close()


def test_a_wrong_schedule_is_found() -> None:
    with refused():
        app.every("1h", plain)  # type: ignore[arg-type]  # wrong: it needs an argument
    with refused():
        app.every("1h", nothing)  # type: ignore[arg-type]  # wrong: it is no task
    with refused():
        app.every("1h", plain.of("ada"), mised="all")  # type: ignore[call-arg]  # wrong: its name
    with refused():
        app.every("1h", plain.of("ada"), key="crm")  # type: ignore[call-arg]  # wrong: the job's
    with refused():
        app.every("1h", plain.of("ada"), tz="UTC")  # type: ignore[call-arg]  # wrong: it has none
    with refused():
        app.cron("0 2 * * *", plain.of("ada"), revision="2")  # type: ignore[arg-type]  # wrong: its type
    with refused():
        app.schedules.every("1h", plain)  # type: ignore[arg-type]  # wrong: it needs an argument
    with refused():
        app.schedules.every("1h", plain.of("a"), revision=2)  # type: ignore[call-arg]  # wrong: code's
    with refused():
        app.queue("mail").every("1h", "hello", prority=1)  # type: ignore[call-arg]  # wrong: its name
    assert list(app.schedules) == []


def results_are_typed() -> None:
    """Read by type checkers alone."""
    assert_type(plain.put("ada").result(), int)
    assert_type(fetch.put("x").result(timeout="5s"), list[str])
    assert_type(welcome.put("ada").state, JobState)
    plain(1)  # type: ignore[arg-type]  # wrong: the function's argument
    index([1])
    index(["1"])  # type: ignore[list-item]  # wrong: the function's argument
    _text: str = plain.put("ada").result()  # type: ignore[assignment]  # wrong: an int
    _one: str = fetch.put("x").result()  # type: ignore[assignment]  # wrong: a list
    _job: Job[str] = plain.put("ada")  # type: ignore[assignment]  # wrong: a Job[int]
    plain.put("ada").result(timeout=5)  # type: ignore[arg-type]  # wrong: its type
    plain.put("ada").resalt()  # type: ignore[attr-defined]  # wrong: its name


async def coroutines_are_typed() -> None:
    """Read by type checkers alone."""
    assert_type(await aio.task(plain).put("ada"), aio.Job[int])
    assert_type(await (await aio.task(fetch).using(delay="1s").put("x")).result(), list[str])
    assert_type(await aio.task(plain).put_many([("ada",), plain.of("bob")]), int)
    assert_type(await aio.task(index).put_many([index.of(2)], ids=True), list[str])
    await aio.task(send).put(Order(1))
    await aio.task(plain).put(1)  # type: ignore[arg-type]  # wrong: its type
    await aio.task(plain).put()  # type: ignore[call-arg]  # wrong: it is missing
    await aio.task(welcome).put("ada", langg="de")  # type: ignore[call-arg]  # wrong: its name
    await aio.task(index).put("7")  # type: ignore[arg-type]  # wrong: its type
    await aio.task(send).put(1)  # type: ignore[arg-type]  # wrong: its type
    await aio.task(plain).put_many(["7"])  # type: ignore[list-item]  # wrong: no tuple
    aio.task(welcome).using(dely="3d")  # type: ignore[call-arg]  # wrong: its name
    await aio.App(app).move("a", dely="1d")  # type: ignore[call-arg]  # wrong: its name
    assert_type(await aio.App(app).schedules.every("1h", plain.of("ada")), aio.Schedule)
    await aio.App(app).schedules.every("1h", plain)  # type: ignore[arg-type]  # wrong: an argument
    job = await aio.task(plain).put("ada")
    _text: str = await job.result()  # type: ignore[assignment]  # wrong: an int
    async with aio.connect("sqlite://") as db:
        await db.queue("mail").put(1)  # type: ignore[arg-type]  # wrong: its type
        await db.queue("mail").put("a", dely="3d")  # type: ignore[call-arg]  # wrong: its name
        db.queue("mail", atempts=3)  # type: ignore[call-arg]  # wrong: its name
        await db.queue("mail").receive(wait=20)  # type: ignore[arg-type]  # wrong: its type
        assert_type(await db.queue("mail").put_many(["a"]), int)
        async for record in db.queue("mail").history():
            assert_type(record, shardq.Record)
        mail = db.queue("mail")
        message = await mail.put("a", delay="3d", on_conflict="keep")
        assert_type(message, shardq.Message)
        await mail.put("a", on_conflict="kept")  # type: ignore[arg-type]  # wrong: no such word
        assert_type(await mail.every("1h", "a", name="hourly", count=3), aio.Schedule)
        assert_type(await mail.schedules.get("hourly"), aio.Schedule | None)
        await mail.every("1h", "a", nme="hourly")  # type: ignore[call-arg]  # wrong: its name
        await mail.alter(atempts=3)  # type: ignore[call-arg]  # wrong: its name
        assert_type(await mail.ack(message), None)
        assert_type(await mail.cancel(message), bool)
        assert_type(await mail.cancel(key="a"), shardq.Answer)
        assert_type(await mail.depth(exact=True), shardq.Depth)
        assert_type(await db.queues(), list[str])
    assert_type(await fetch("x"), list[str])
    await fetch(1)  # type: ignore[arg-type]  # wrong: the function's argument
    _one: str = await fetch("x")  # type: ignore[assignment]  # wrong: a list


def test_each_line_that_is_ignored_says_what_is_wrong() -> None:
    lines = Path(__file__).read_text().splitlines()
    ignored = [line for line in lines if re.search(r"  # type: ignore\[", line)]
    assert ignored == [line for line in lines if re.search(r"\]  # wrong: \w", line)]
    assert len(ignored) > 40
