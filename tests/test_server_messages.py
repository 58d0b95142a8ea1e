"""Messages over HTTP: put, received, settled and looked at."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from callers import Api, Events, on_stage, play, played

import shardq

if TYPE_CHECKING:
    from pathlib import Path

MAIL = "/v1/queues/mail"


def receipts(got: Any) -> list[str]:
    return [one["receipt"] for one in got["messages"]]


@played()
async def test_a_message_is_put_received_and_acked(api: Api) -> None:
    await api.done("PUT", MAIL)
    put = await api.done(
        "POST", MAIL + "/messages", {"body": "welcome, ada", "headers": {"lang": "de"}}
    )
    [found] = (await api.done("POST", MAIL + "/receive", {"wait": "60s"}))["messages"]
    assert (found["id"], found["body"], found["attempt"]) == (put["id"], "welcome, ada", 1)
    assert found["headers"] == {"lang": "de"}
    assert found["first_due"] == put["due"]
    answers = await api.done("POST", MAIL + "/ack", {"receipts": [found["receipt"]]})
    assert answers == {"answers": [{"receipt": found["receipt"]}]}
    assert (await api.done("POST", MAIL + "/receive")) == {"messages": []}
    [answer] = (await api.done("POST", MAIL + "/ack", {"receipts": [found["receipt"]]}))["answers"]
    assert (answer["problem"]["status"], answer["problem"]["title"]) == (409, "StaleReceipt")


@played()
async def test_half_of_a_surrogate_pair_in_a_header_is_listed_received_and_streamed(
    api: Api,
) -> None:
    headers = {"a": "\ud800", "b": "plain"}
    api.db.queue("mail", history="1d").put("x", id="m", headers=headers)
    for path in ("/messages", "/messages/m"):
        got = await api.done("GET", MAIL + path)
        [found] = got["messages"] if "messages" in got else [got["message"]]
        assert found["headers"] == headers
    [found] = (await api.done("POST", MAIL + "/receive", {"wait": "60s"}))["messages"]
    assert found["headers"] == headers
    await api.done("POST", MAIL + "/retry", {"receipts": [found["receipt"]], "delay": "0s"})
    events = Events(api.begin("GET", MAIL + "/stream"))
    assert (await events.message())["headers"] == headers
    await events.exchange.leave()


@played()
async def test_a_full_queue_is_a_problem_of_the_put_and_none_of_the_server(api: Api) -> None:
    await api.done("PUT", MAIL, {"depth_max": 2})
    [one, other, more] = await api.done("POST", MAIL + "/messages", [{"body": "a"}] * 3)
    assert (one.keys(), other.keys()) == ({"id", "receipt", "due"},) * 2
    assert (more["problem"]["status"], more["problem"]["title"]) == (429, "QueueFull")
    got = await api.ask("POST", MAIL + "/messages", {"body": "a"})
    assert (got.status, got.headers["retry-after"]) == (429, "1")
    assert "depth_max is 2" in got.json["detail"]


@pytest.mark.parametrize(
    ("given", "stored", "shown"),
    [
        ({"body": "grüße 🎉"}, "grüße 🎉".encode(), {"body": "grüße 🎉"}),
        ({"body": ""}, b"", {"body": ""}),
        ({"body_base64": "/w=="}, b"\xff", {"body_base64": "/w=="}),
        (
            {"body_base64": base64.b64encode(b"text").decode()},
            b"text",
            {"body": "text"},
        ),
        ({"json": {"b": [1.0, None], "a": "é"}}, None, None),
    ],
)
@played()
async def test_a_body_is_text_bytes_or_json(
    api: Api, given: Any, stored: bytes | None, shown: dict[str, str] | None
) -> None:
    await api.done("PUT", MAIL)
    await api.done("POST", MAIL + "/messages", given)
    [peeked] = (await api.done("GET", MAIL + "/messages"))["messages"]
    [message] = api.db.queue("mail").peek()
    if stored is None:
        # The body is as the client wrote it.
        assert peeked["body"] == message.text == '{"b": [1.0, null], "a": "\\u00e9"}'
    else:
        assert message.body == stored
        assert {name: peeked[name] for name in peeked if name.startswith("body")} == shown


@played()
async def test_each_message_of_a_batch_has_its_own_answer(api: Api) -> None:
    await api.done("PUT", MAIL)
    answers = await api.done(
        "POST",
        MAIL + "/messages",
        [
            {"body": "1", "priority": 1},
            {"body": "2", "priority": 7},
            {"body": "3", "delay": "1h"},
            {},
            {"body": "5", "key": "k"},
            {"body": "6", "key": "k"},
            {"body": "7", "key": "k", "on_conflict": "reject"},
            {"body": "x" * (1 << 20) + "x"},
        ],
    )
    statuses = [answer.get("problem", {}).get("status") for answer in answers]
    assert statuses == [None, 400, None, 400, None, None, 409, 413]
    assert answers[4]["id"] == answers[5]["id"] == answers[6]["problem"]["id"]
    bodies = [one.text for one in api.db.queue("mail").peek()]
    assert sorted(bodies) == ["1", "3", "5"]


@played()
async def test_an_idempotency_key_puts_nothing_twice_not_even_after_the_end(api: Api) -> None:
    await api.done("PUT", MAIL)
    named = {"idempotency-key": "order 7"}
    path, given = MAIL + "/messages", {"body": "a"}
    first = (await api.ask("POST", path, given, named)).json
    again = (await api.ask("POST", path, given, named)).json
    assert again["id"] == first["id"]
    other = await api.ask("POST", path, {"body": "b"}, named)
    assert (other.status, "another body" in other.json["detail"]) == (422, True)
    got = await api.done("POST", MAIL + "/receive", {"wait": "60s"})
    assert [one["body"] for one in got["messages"]] == ["a"]
    await api.done("POST", MAIL + "/ack", {"receipts": receipts(got)})
    ended = await api.ask("POST", path, given, named)
    assert (ended.status, ended.json) == (200, {"id": first["id"]})
    assert (await api.done("POST", MAIL + "/receive")) == {"messages": []}
    another = (await api.ask("POST", path, given, {"idempotency-key": "order 8"})).json
    assert another["id"] != first["id"]


@played()
async def test_an_idempotency_key_holds_for_each_message_of_a_batch(api: Api) -> None:
    await api.done("PUT", MAIL)
    batch = [{"body": "a"}, {"body": "b", "priority": 9}, {"body": "c"}]
    for _ in range(2):
        got = await api.ask("POST", MAIL + "/messages", batch, {"idempotency-key": "n"})
        assert ["problem" in one for one in got.json] == [False, True, False]
    batch[1] = {"body": "b"}
    await api.ask("POST", MAIL + "/messages", batch, {"idempotency-key": "n"})
    assert sorted(one.text for one in api.db.queue("mail").peek()) == ["a", "b", "c"]
    keyed = [{"body": "a", "key": "k"}]
    got = await api.ask("POST", MAIL + "/messages", keyed, {"idempotency-key": "m"})
    assert "leave them out" in got.json[0]["problem"]["detail"]


@played()
async def test_deliveries_are_retried_snoozed_extended_and_buried(api: Api) -> None:
    await api.done("PUT", MAIL, {"attempts": 2})
    await api.done("POST", MAIL + "/messages", [{"body": str(n)} for n in range(4)])
    got = await api.done("POST", MAIL + "/receive", {"max": 4, "wait": "60s"})
    by_body = {one["body"]: one["receipt"] for one in got["messages"]}
    asked = {"receipts": [by_body["0"], "damaged"], "delay": "0s", "reason": "busy"}
    for verb, fields in (
        ("retry", asked),
        ("snooze", {"receipts": [by_body["1"]], "delay": "0s"}),
        ("extend", {"receipts": [by_body["2"]], "visibility": "5m"}),
        ("bury", {"receipts": [by_body["3"]], "reason": "no such user"}),
    ):
        answers = (await api.done("POST", f"{MAIL}/{verb}", fields))["answers"]
        assert len(answers) == len(fields["receipts"])
        assert "problem" not in answers[0]
        assert all("problem" in answer for answer in answers[1:])
        by_body[verb] = answers[0]["receipt"]
    assert by_body["extend"] != by_body["2"]
    got = await api.done("POST", MAIL + "/receive", {"max": 4, "wait": "60s"})
    again = {one["body"]: one for one in got["messages"]}
    assert {body: one["attempt"] for body, one in again.items()} == {"0": 2, "1": 1}
    assert again["0"]["error"] == "busy"
    await api.done("POST", MAIL + "/ack", {"receipts": [by_body["extend"]]})
    [dead] = (await api.done("GET", MAIL + "/dead"))["messages"]
    assert (dead["body"], dead["error"]) == ("3", "no such user")
    assert await api.done("POST", MAIL + "/redrive", {"ids": ["none"]}) == {"count": 0}
    assert await api.done("POST", MAIL + "/redrive", {"ids": [dead["id"]]}) == {"count": 1}
    [back] = (await api.done("POST", MAIL + "/receive", {"wait": "60s"}))["messages"]
    assert (back["id"], back["attempt"]) == (dead["id"], 1)


@played()
async def test_messages_are_forwarded_by_receipt_id_and_in_bulk(api: Api) -> None:
    forward = MAIL + "/forward"
    for queue in (MAIL, "/v1/queues/review"):
        await api.done("PUT", queue)
    puts = [{"body": str(n), "headers": {"kind": "big" if n > 2 else "small"}} for n in range(6)]
    await api.done("POST", MAIL + "/messages", puts)
    later = {"body": "later", "id": "later", "delay": "1h"}
    await api.done("POST", MAIL + "/messages", [later, {**later, "id": "last"}])
    got = await api.done("POST", MAIL + "/receive", {"max": 1, "wait": "60s"})
    [receipt] = receipts(got)
    for moved, answer in (
        ({"receipts": [receipt, "damaged"]}, [{"receipt": receipt}, {"receipt": "damaged"}]),
        ({"ids": ["later", "none"]}, [{"id": "later"}, {"id": "none"}]),
        ({"ids": ["last", ""]}, [{"id": "last"}, {"id": ""}]),
    ):
        made = await api.done("POST", forward, {"to": "review", **moved})
        assert made["count"] == 1
        assert made["answers"][1].pop("problem")["status"] in {400, 404}
        assert made["answers"] == answer
    big = {"to": "review", "limit": 100, "headers": {"kind": "big"}}
    assert await api.done("POST", forward, big) == {"count": 3, "answers": []}
    assert await api.done("POST", forward, big) == {"count": 0, "answers": []}
    [answer] = (await api.done("POST", forward, {"to": "review", "receipts": [receipt]}))["answers"]
    assert answer["problem"]["title"] == "StaleReceipt"
    got = await api.done("POST", "/v1/queues/review/receive", {"max": 9, "wait": "60s"})
    assert {one["body"] for one in got["messages"]} == {"0", "3", "4", "5"}
    left = await api.done("GET", MAIL + "/messages")
    assert {one["body"] for one in left["messages"]} == {"1", "2"}
    for wrong, status in (
        ({"to": "mail", "limit": 1}, 400),
        ({"to": "nowhere", "limit": 1}, 404),
        ({"to": "review"}, 400),
        ({"to": "review", "ids": ["a"], "limit": 1}, 400),
        ({"to": "review", "ids": ["a"], "group": "g"}, 400),
    ):
        assert (await api.ask("POST", forward, wrong)).status == status
    done = (await api.done("GET", "/v1/actions"))["actions"]
    told = {(one["what"], one["object"], one["outcome"]) for one in done}
    assert ("forward", "mail to review", "done") in told


@played()
async def test_a_lasting_receipt_extends_and_ends_a_message_that_was_delivered_again(
    api: Api,
) -> None:
    await api.done("PUT", MAIL)
    await api.done("POST", MAIL + "/messages", {"body": "a"})
    asked = {"wait": "60s", "visibility": "0s", "lasting": True}
    [first] = receipts(await api.done("POST", MAIL + "/receive", asked))
    await api.done("POST", MAIL + "/receive", {"wait": "60s", "lasting": True})
    for verb in ("extend", "ack"):
        [answer] = (await api.done("POST", f"{MAIL}/{verb}", {"receipts": [first]}))["answers"]
        assert answer["problem"]["title"] == "StaleReceipt"
        again = {"receipts": [first], "redelivered": True}
        [answer] = (await api.done("POST", f"{MAIL}/{verb}", again))["answers"]
        assert "problem" not in answer
    assert (await api.done("GET", MAIL + "/messages")) == {"messages": []}


@played()
async def test_dead_messages_are_removed_one_by_one_or_all(api: Api) -> None:
    await api.done("PUT", MAIL)
    await api.done("POST", MAIL + "/messages", [{"body": str(n)} for n in range(3)])
    got = await api.done("POST", MAIL + "/receive", {"wait": "60s"})
    await api.done("POST", MAIL + "/bury", {"receipts": receipts(got)})
    one = got["messages"][0]["id"]
    assert await api.done("DELETE", f"{MAIL}/dead/{one}") == {"answer": "done"}
    assert (await api.ask("DELETE", f"{MAIL}/dead/{one}")).status == 404
    assert len((await api.done("GET", MAIL + "/dead"))["messages"]) == 2
    await api.done("DELETE", MAIL + "/dead")
    assert (await api.done("GET", MAIL + "/dead")) == {"messages": []}


@played()
async def test_a_call_that_waits_is_answered_by_the_first_put_and_by_the_server_s_end(
    api: Api,
) -> None:
    await api.done("PUT", MAIL)
    waiting = asyncio.create_task(api.done("POST", MAIL + "/receive", {"wait": "60s"}))
    await api.done("POST", MAIL + "/messages", {"body": "a"})
    assert [one["body"] for one in (await waiting)["messages"]] == ["a"]
    waiting = asyncio.create_task(api.done("POST", MAIL + "/receive", {"wait": "60s"}))
    await api.done("GET", MAIL)
    api.app.site.leave()
    assert await waiting == {"messages": []}


@played()
async def test_what_a_client_has_not_read_that_left_is_delivered_again_uncounted(api: Api) -> None:
    await api.done("PUT", MAIL)
    waiting = api.begin("POST", MAIL + "/receive", {"wait": "60s"})
    await api.done("GET", MAIL)
    await waiting.leave()
    await api.done("POST", MAIL + "/messages", {"body": "a"})
    leaving = api.begin("POST", MAIL + "/receive", {"wait": "60s"})
    await leaving.leave()
    [found] = (await api.done("POST", MAIL + "/receive", {"wait": "60s"}))["messages"]
    assert (found["body"], found["attempt"]) == ("a", 1)


@played()
async def test_several_of_a_group_are_received_in_order_where_asked_for(api: Api) -> None:
    await api.done("PUT", MAIL)
    await api.done("POST", MAIL + "/messages", [{"body": str(n), "group": "g"} for n in range(3)])
    got = await api.done("POST", MAIL + "/receive", {"per_group": 2, "wait": "60s"})
    assert [one["body"] for one in got["messages"]] == ["0", "1"]
    assert {one["group"] for one in got["messages"]} == {"g"}


@played()
async def test_a_message_tells_where_it_is_and_is_moved_and_cancelled(api: Api) -> None:
    await api.done("PUT", MAIL, {"history": "1d"})
    put = await api.done("POST", MAIL + "/messages", {"body": "a", "delay": "1h"})
    path = f"{MAIL}/messages/{put['id']}"
    state = await api.done("GET", path)
    assert (state["where"], state["until"]) == ("waiting", put["due"])
    assert state["text"].startswith("waiting: due ")
    assert state["message"]["body"] == "a"
    due = "2100-01-01T00:00:00.000Z"
    assert await api.done("PATCH", path, {"due": due}) == {"answer": "done"}
    until = (await api.done("GET", path))["until"]
    assert due <= until < "2100-01-01T00:01"
    assert await api.done("DELETE", path) == {"answer": "done"}
    state = await api.done("GET", path)
    assert (state["where"], state["ended"], "message" in state) == ("cancelled", True, False)
    assert (await api.ask("DELETE", path)).status == 404


@played()
async def test_a_key_has_one_message_which_is_looked_up_moved_edited_and_cancelled(
    api: Api,
) -> None:
    await api.done("PUT", MAIL)
    path = MAIL + "/keys/order%2F7"
    put = await api.done("PUT", path, {"body": "a", "delay": "1h"})
    assert (await api.done("PUT", path, {"body": "b"}))["id"] == put["id"]
    taken = await api.ask("PUT", path, {"body": "b", "on_conflict": "reject"})
    assert (taken.status, taken.json["id"]) == (409, put["id"])
    await api.done("PUT", path, {"body": "c", "delay": "2h", "on_conflict": "replace"})
    found = await api.done("GET", path)
    assert (found["key"], found["state"], found["body"]) == ("order/7", "waiting", "c")
    edit = {"body": "d", "headers": {"a": "b"}, "delay": "0s"}
    assert await api.done("PATCH", path, edit) == {"answer": "done"}
    by_key = await api.done("GET", MAIL + "/messages?key=order%2F7")
    assert [one["body"] for one in by_key["messages"]] == ["d"]
    [got] = (await api.done("POST", MAIL + "/receive", {"wait": "60s"}))["messages"]
    assert (got["body"], got["headers"], got["key"]) == ("d", {"a": "b"}, "order/7")
    assert (await api.ask("PATCH", path, {"body": "e"})).status == 409
    assert await api.done("DELETE", path) == {"answer": "running"}
    await api.done("POST", MAIL + "/retry", {"receipts": [got["receipt"]], "delay": "0s"})
    assert (await api.done("POST", MAIL + "/receive")) == {"messages": []}
    assert (await api.done("GET", MAIL + "/messages?key=order%2F7")) == {"messages": []}


@pytest.mark.parametrize("due", [{"due": "soon"}, {"due": "2030-01-01T00:00Z", "delay": "1s"}])
@played()
async def test_an_edit_with_a_due_that_cannot_be_used_changes_nothing(
    api: Api, due: dict[str, str]
) -> None:
    await api.done("PUT", MAIL)
    path = MAIL + "/keys/order-7"
    await api.done("PUT", path, {"body": "a", "delay": "1h"})
    got = await api.ask("PATCH", path, {"body": "b", **due})
    assert (got.status, got.json["title"]) == (400, "BadTime")
    assert (await api.done("GET", path))["body"] == "a"


def test_a_store_that_cannot_be_written_is_a_503_to_be_asked_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?busy=50ms"

    async def story(api: Api) -> None:
        await api.done("PUT", MAIL)
        with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            got = await api.ask("POST", MAIL + "/messages", {"body": "a"})
            other.execute("ROLLBACK")
        assert (got.status, got.headers["retry-after"]) == (503, "1")
        assert got.json["type"].endswith("#StoreUnavailable")
        await api.done("POST", MAIL + "/messages", {"body": "a"})

    play(story, url)


def test_python_consumers_share_a_queue_with_callers(tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        await api.done("PUT", MAIL)
        await api.done("POST", MAIL + "/messages", {"json": {"user": "ada"}})
        with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as other:
            [message] = await asyncio.to_thread(other.queue("mail").receive, 1, "30s", "60s")
            assert message.text == '{"user": "ada"}'
            await asyncio.to_thread(other.queue("mail").put, "from python")
            await asyncio.to_thread(other.queue("mail").ack, message)
            got = await api.done("POST", MAIL + "/receive", {"wait": "60s"})
            assert [one["body"] for one in got["messages"]] == ["from python"]

    play(story, f"sqlite:///{tmp_path}/jobs.db")


@played()
async def test_a_message_that_a_limit_or_a_pause_holds_back_says_which(api: Api) -> None:
    queue = api.db.queue("mail", groups={"vip-*": {"rate": "4/h"}})
    queue.put_many({"body": "x", "id": f"m{number}", "group": "vip-7"} for number in range(3))
    assert (await api.done("GET", MAIL + "/messages/m2"))["where"] == "behind"
    await api.done("POST", MAIL + "/receive")
    state = await api.done("GET", MAIL + "/messages/m2")
    assert (state["where"], state["limit"], state["limit_of"]) == (
        "limited",
        "1 place, 4/h",
        "group",
    )
    assert state["ahead"] == 2
    queue.pause(group="vip-*")
    state = await api.done("GET", MAIL + "/envelopes/m2")
    assert (state["where"], state["limit"], state["limit_of"]) == ("paused", "vip-*", "group")


@played()
async def test_a_snooze_may_hold_the_whole_group_back(api: Api) -> None:
    queue = api.db.queue("mail", groups={"places": 2})
    queue.put_many({"body": f"{number}", "group": "a"} for number in range(4))
    first, second = receipts(
        await api.done("POST", MAIL + "/receive", {"wait": "9s", "per_group": 2})
    )
    given = {"receipts": [first], "delay": "20m", "limited": True}
    await api.done("POST", MAIL + "/snooze", given)
    await api.done("POST", MAIL + "/ack", {"receipts": [second]})
    assert await api.done("POST", MAIL + "/receive", {"wait": "5s"}) == {"messages": []}
