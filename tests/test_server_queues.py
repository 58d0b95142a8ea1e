"""Queues, schedules and tasks over HTTP."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from callers import Api, on_stage, play, played, staged

from shardq import App
from shardq.model import settings
from shardq.tasks import Worker
from shardq.testing import Stage

if TYPE_CHECKING:
    from pathlib import Path

MAIL = "/v1/queues/mail"


@played()
async def test_a_queue_is_made_brought_to_its_settings_and_dropped(api: Api) -> None:
    given = {"attempts": 3, "lanes": 4, "history": "7d", "keyed": True}
    got = await api.ask("PUT", MAIL, given)
    assert got.status == 201
    assert got.json["settings"].keys() == settings.CHOICES.keys()
    assert got.json["settings"].items() >= given.items()
    got = await api.ask("PUT", MAIL, {"attempts": 4, "keyed": True, "history": "off"})
    assert (got.status, got.json["settings"]["attempts"]) == (200, 4)
    assert got.json["settings"]["history"] == "off"
    assert (await api.done("PATCH", MAIL, {"lanes": "auto"}))["settings"]["lanes"] == "auto"
    assert await api.done("GET", MAIL) == await api.done("PUT", MAIL)
    # The settings in an answer can be sent back.
    await api.done("PUT", MAIL, (await api.done("GET", MAIL))["settings"])
    await api.done("DELETE", MAIL)
    assert (await api.ask("GET", MAIL)).status == 404
    assert (await api.ask("PUT", MAIL)).status == 201


@on_stage()
async def test_settings_of_a_queue_that_several_make_at_once_are_not_lost(
    stage: Stage, api: Api
) -> None:
    other = stage.connect()
    # Between the look whether there is one and the making.
    act = partial(other.queue, "mail", attempts=7)
    stage.faults.call("write_records queues", act, after=False)
    got = await api.ask("PUT", MAIL, {"attempts": 3})
    assert (got.status, got.json["settings"]["attempts"]) == (200, 3)
    assert (await api.done("GET", MAIL))["settings"]["attempts"] == 3


@played()
async def test_queues_are_listed_by_prefix_a_page_at_a_time(api: Api) -> None:
    for name in ("shop.a", "shop.b", "shop.c", "post"):
        await api.done("PUT", f"/v1/queues/{name}")
    assert await api.done("GET", "/v1/queues") == {"queues": ["post", "shop.a", "shop.b", "shop.c"]}
    page = await api.done("GET", "/v1/queues?prefix=shop.&limit=2")
    assert page == {"queues": ["shop.a", "shop.b"], "next": "shop.b"}
    page = await api.done("GET", f"/v1/queues?prefix=shop.&limit=2&after={page['next']}")
    assert page == {"queues": ["shop.c"]}


@played()
async def test_a_queue_is_paused_resumed_and_purged(api: Api) -> None:
    await api.done("PUT", MAIL)
    assert (await api.done("POST", MAIL + "/pause"))["paused"]
    await api.done("POST", MAIL + "/messages", {"body": "a"})
    assert (await api.done("POST", MAIL + "/receive")) == {"messages": []}
    assert not (await api.done("POST", MAIL + "/resume"))["paused"]
    await api.done("POST", MAIL + "/purge")
    assert (await api.done("POST", MAIL + "/receive")) == {"messages": []}


@played()
async def test_tasks_and_keys_are_paused_and_resumed(api: Api) -> None:
    await api.done("PUT", MAIL)
    await api.done("POST", MAIL + "/pause?task=shop.*")
    held = await api.done("POST", MAIL + "/pause?key=order-7")
    assert json.loads(held["settings"]["limits"]) == {
        "paused": {"tasks": ["shop.*"], "keys": ["order-7"]}
    }
    await api.done("POST", MAIL + "/messages", {"body": "a", "key": "order-7"})
    assert (await api.done("POST", MAIL + "/receive")) == {"messages": []}
    await api.done("POST", MAIL + "/resume?task=shop.*")
    assert (await api.done("POST", MAIL + "/resume?key=order-7"))["settings"]["limits"] == "off"
    for path in ("/pause?key=*-7", "/pause?key=a&task=b", "/pause?pace=a", "/resume?task=a"):
        assert (await api.ask("POST", MAIL + path, None)).status in (400, 422), path


@played()
async def test_limits_of_groups_are_set_listed_and_removed(api: Api) -> None:
    await api.done("PUT", MAIL)
    vip = MAIL + "/limits/vip-*"
    asked = {"places": 10, "rate": ["10/s", "1000/h"], "burst": 3}
    rule = await api.done("PUT", vip, asked)
    assert (rule["rates"], rule["bursts"], rule["places"]) == (["10/s", "1000/h"], [3, 1_000], 10)
    await api.done("PUT", MAIL + "/limits/*", {"places": 2})
    held = await api.done("POST", MAIL + "/pause?group=eu-7")
    assert not held["paused"]
    listed = (await api.done("GET", MAIL + "/limits"))["rules"]
    held = [(one["groups"], one["places"], one["paused"]) for one in listed]
    assert held == [("*", 2, False), ("eu-7", 2, True), ("vip-*", 10, False)]
    await api.done("POST", MAIL + "/messages", {"body": "a", "group": "eu-7"})
    assert (await api.done("POST", MAIL + "/receive")) == {"messages": []}
    await api.done("POST", MAIL + "/resume?group=eu-7")
    assert (await api.ask("DELETE", vip)).status == 204
    assert json.loads(api.db.queue("mail").settings.group_limits) == {"places": 2}
    for method, path, body in (
        ("PUT", vip, {"rate": "often"}),
        ("PUT", vip, {}),
        ("PUT", vip, {"pace": 3}),
        ("PUT", MAIL + "/limits/a*b", {"places": 2}),
        ("POST", MAIL + "/resume?group=vip-*", None),
    ):
        assert (await api.ask(method, path, body)).status in (400, 422), (method, path, body)


@played()
async def test_statistics_forecast_and_history_say_what_has_happened_and_will(api: Api) -> None:
    await api.done("PUT", MAIL, {"history": "1d"})
    batch = [{"body": "a"}, {"body": "b"}, {"body": "c", "delay": "30m"}]
    put = await api.done("POST", MAIL + "/messages", batch)
    got = await api.done("POST", MAIL + "/receive", {"max": 1, "wait": "60s"})
    await api.done("POST", MAIL + "/ack", {"receipts": [got["messages"][0]["receipt"]]})
    counted = await api.done("GET", MAIL + "/statistics")
    wanted = {"put": 3, "acked": 1, "ready": 1, "waiting": 1, "in_flight": 0, "dead": 0}
    assert counted.items() >= wanted.items()
    ahead = (await api.done("GET", MAIL + "/forecast?horizon=45m"))["minutes"]
    assert sum(one["count"] for one in ahead[5:]) == 1
    assert len(ahead) == 46
    found = await api.done("GET", MAIL + "/history?limit=2")
    assert (len(found["records"]), found["more"]) == (2, True)
    [record] = (await api.done("GET", f"{MAIL}/history?message={put[0]['id']}"))["records"]
    assert (record["fate"], record["attempt"]) == ("acked", 1)


@played()
async def test_a_schedule_is_made_changed_previewed_paused_run_and_removed(api: Api) -> None:
    await api.done("PUT", MAIL)
    path = MAIL + "/schedules/every%20night"
    given = {
        "cron": "30 2 * * *",
        "tz": "Europe/Berlin",
        "json": {"kind": "report"},
        "headers": {"a": "b"},
        "missed": "skip",
        "count": 5,
    }
    made = await api.done("PUT", path, given)
    assert (made["name"], made["state"], made["count"]) == ("every night", "waiting", 5)
    assert (made["body"], made["headers"]) == ('{"kind": "report"}', {"a": "b"})
    assert await api.done("PUT", path, given) == made
    assert (await api.ask("PUT", path, {**given, "count": 6})).status == 409
    times = (await api.done("GET", path + "/preview?count=3&after=2030-06-01T00:00:00Z"))["times"]
    assert [one["time"] for one in times] == [f"2030-06-0{day}T02:30:00+02:00" for day in (1, 2, 3)]
    assert times[0]["due"] == "2030-06-01T00:30:00.000Z"
    changed = await api.done("PATCH", path, {"cron": "0 4 * * *", "body": "new"})
    assert (changed["body"], changed["count"]) == ("new", 5)
    assert (await api.done("POST", path + "/pause"))["state"] == "paused"
    assert (await api.done("GET", path))["state"] == "paused"
    assert (await api.done("POST", path + "/resume"))["state"] == "waiting"
    await api.done("POST", path + "/run")
    [found] = (await api.done("POST", MAIL + "/receive", {"wait": "60s"}))["messages"]
    assert (found["body"], found["headers"]["schedule"]) == ("new", "every night")
    await api.done("PUT", MAIL + "/schedules/a", {"every": "1h", "body": "a"})
    page = await api.done("GET", MAIL + "/schedules?limit=1")
    assert ([one["name"] for one in page["schedules"]], page["next"]) == (["a"], "a")
    page = await api.done("GET", MAIL + "/schedules?after=a")
    assert [one["name"] for one in page["schedules"]] == ["every night"]
    await api.done("DELETE", path)
    assert (await api.ask("GET", path)).status == 404


def test_a_task_that_was_put_by_name_runs_in_a_python_worker_and_its_result_is_read(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def story(api: Api) -> None:
        with App(url, queue="sums", backoff="10ms") as app:

            @app.task(name="add")
            def add(one: int, *, other: int = 1) -> dict[str, int]:
                return {"sum": one + other}

            @app.task(name="fail", attempts=3)
            def fail() -> None:
                raise ValueError("no")

            await api.done("PUT", "/v1/queues/sums")

            async def job(task: str, args: Any = None, **options: Any) -> str:
                given = {"task": task, "args": args or {}, "keep": "1h", **options}
                return str((await api.done("POST", "/v1/queues/sums/jobs", given))["id"])

            added = await job("add", {"one": 1, "other": 2}, headers={"a": "b"})
            failed = await job("fail", attempts=1)
            later = await job("add", {"one": 1}, delay="1h", key="k")
            waiting = asyncio.create_task(api.done("GET", f"/v1/queues/sums/jobs/{added}?wait=60s"))
            assert (await api.done("GET", f"/v1/queues/sums/jobs/{later}"))["state"] == "waiting"
            deleted = await api.done("DELETE", f"/v1/queues/sums/jobs/{later}")
            assert deleted == {"answer": "done"}
            await asyncio.to_thread(Worker(app).run, until_empty=True)
            got = await waiting
            assert (got["state"], got["result"], got["attempt"]) == ("done", {"sum": 3}, 1)
            got = await api.done("GET", f"/v1/queues/sums/jobs/{failed}?wait=60s")
            assert (got["state"], got["attempt"], got["error"]) == (
                "failed",
                1,
                "out of attempts: ValueError: no",
            )
            own = {"task": "add", "headers": {"task": "other"}}
            assert (await api.ask("POST", "/v1/queues/sums/jobs", own)).status == 400
            assert (await api.ask("GET", "/v1/queues/sums/jobs/none")).status == 404

    play(story, url)
