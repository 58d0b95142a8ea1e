"""A stream of messages over HTTP: its window, and what becomes of what is unsettled at its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from callers import Api, Events, on_stage, play, played, staged

import shardq
from shardq.clock import pause
from shardq.errors import StoreUnavailable
from shardq.server.site import SiteOptions
from shardq.testing import Stage

if TYPE_CHECKING:
    from pathlib import Path

MAIL = "/v1/queues/mail"


def streamed(api: Api, query: str = "") -> Events:
    return Events(api.begin("GET", f"{MAIL}/stream{query}"))


async def put(api: Api, *bodies: str) -> None:
    await api.done("POST", MAIL + "/messages", [{"body": body} for body in bodies])


async def acked(api: Api, *messages: Any) -> None:
    got = await api.done("POST", MAIL + "/ack", {"receipts": [one["receipt"] for one in messages]})
    assert all("problem" not in answer for answer in got["answers"])


@played()
async def test_messages_are_streamed_as_they_are_put_at_most_a_window_unsettled(api: Api) -> None:
    await api.done("PUT", MAIL)
    events = streamed(api, "?window=2")
    assert (await events.next()).startswith(":")
    await put(api, "0", "1", "2", "3")
    first, second = await events.message(), await events.message()
    assert (first["body"], second["body"], first["attempt"]) == ("0", "1", 1)
    assert (await events.next()).startswith(":"), "the window is full"
    await acked(api, first)
    third = await events.message()
    assert third["body"] == "2"
    await api.done("POST", MAIL + "/bury", {"receipts": [second["receipt"]]})
    assert (await events.message())["body"] == "3"
    await events.exchange.leave()


@played()
async def test_an_extended_delivery_counts_under_its_new_receipt(api: Api) -> None:
    await api.done("PUT", MAIL)
    events = streamed(api, "?window=1")
    await put(api, "0", "1")
    first = await events.message()
    got = await api.done("POST", MAIL + "/extend", {"receipts": [first["receipt"]]})
    assert (await events.next()).startswith(":")
    await acked(api, got["answers"][0])
    assert (await events.message())["body"] == "1"
    await events.exchange.leave()


def test_what_another_process_settles_makes_room_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def story(api: Api) -> None:
        await api.done("PUT", MAIL)
        events = streamed(api, "?window=1")
        await put(api, "0", "1")
        first = await events.message()
        with shardq.connect(url) as other:
            await asyncio.to_thread(other.queue("mail").ack, first["receipt"])
            assert (await events.message())["body"] == "1"
        await events.exchange.leave()

    play(story, url)


@played()
async def test_what_is_unsettled_when_the_client_leaves_is_released_uncounted(api: Api) -> None:
    await api.done("PUT", MAIL)
    events = streamed(api, "?visibility=1h")
    await put(api, "0", "1", "2")
    got = [await events.message() for _ in range(3)]
    await acked(api, got[1])
    await events.exchange.leave()
    again = (await api.done("POST", MAIL + "/receive", {"wait": "60s"}))["messages"]
    again += (await api.done("POST", MAIL + "/receive"))["messages"]
    assert sorted((one["body"], one["attempt"]) for one in again) == [("0", 1), ("2", 1)]


@played()
async def test_a_stream_ends_when_the_server_does_and_releases_what_is_unsettled(api: Api) -> None:
    await api.done("PUT", MAIL)
    full, waiting = streamed(api, "?window=1&visibility=1h"), streamed(api)
    await put(api, "0")
    taken = {full: asyncio.create_task(full.message())}
    taken[waiting] = asyncio.create_task(waiting.message())
    done, left = await asyncio.wait(taken.values(), return_when=asyncio.FIRST_COMPLETED)
    for one in left:
        one.cancel()
    assert len(done) == 1
    api.app.site.leave()
    for events in (full, waiting):
        while await events.next():
            pass
        assert events.is_ended
        await events.exchange.ended()
    found = await asyncio.to_thread(api.db.queue("mail").receive, 10, "30s", "60s")
    assert [one.attempt for one in found] == [1]


@played()
async def test_many_streams_share_a_queue(api: Api) -> None:
    await api.done("PUT", MAIL)
    streams = [streamed(api, "?window=1") for _ in range(20)]
    await put(api, *map(str, range(100)))
    found: set[str] = set()
    ended: set[str] = set()

    async def work(events: Events) -> None:
        while len(found) < 100:
            message = await events.message()
            assert message["body"] not in found
            found.add(message["body"])
            await acked(api, message)
            ended.add(message["body"])
            if len(ended) == 100:
                api.app.site.leave()

    results = await asyncio.gather(*map(work, streams), return_exceptions=True)
    assert len(ended) == 100
    others = [one for one in results if one is not None]
    assert all("the stream has ended" in str(one) for one in others)


@played()
async def test_a_stream_of_a_queue_that_is_dropped_ends(api: Api) -> None:
    await api.done("PUT", MAIL)
    events = streamed(api)
    assert (await events.next()).startswith(":")
    await api.done("DELETE", MAIL)
    assert await events.next() == ""
    assert events.is_ended
    await events.exchange.ended()


@on_stage()
async def test_a_stream_ends_when_its_store_fails_and_is_no_fault_of_the_server(
    stage: Stage, api: Api
) -> None:
    await api.done("PUT", MAIL)
    events = streamed(api, "?window=1")
    await put(api, "0")
    assert (await events.message())["body"] == "0"
    # Keys are reread every 3 s.
    for verb in ("notes accounts", "notes access"):
        stage.faults.fail(verb, times=1_000, error=StoreUnavailable("away"))
    stage.clock.advance(60)
    while await events.next():
        pass
    await events.exchange.ended()
    stage.faults.heal()


def test_a_stream_above_what_a_key_may_have_is_a_429() -> None:
    async def run() -> None:
        with shardq.connect("sqlite://") as db:
            api = Api(db, options=SiteOptions(polls_max=1))
            await api.done("PUT", MAIL)
            asked = api.begin("POST", f"{MAIL}/receive", {"wait": "60s"})
            while not api.app.site._polls:
                await pause(0)
            got = await api.ask("GET", f"{MAIL}/stream")
            assert (got.status, got.headers["retry-after"]) == (429, "1")
            api.app.site.leave()
            await asked.ended()
            await api.app.site.close()

    asyncio.run(run())
