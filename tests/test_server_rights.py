"""Keys and accounts over HTTP: what each key may do, and who made what."""

from __future__ import annotations

from typing import Any

import pytest
from callers import Api, Got, bearer, closed, on_stage, play, played

import shardq
from shardq.server.access import Access
from shardq.server.accounts import Accounts
from shardq.server.api.table import ROUTES
from shardq.server.grants import Level
from shardq.server.masterkey import FILE_VARIABLE, MASTER_VARIABLE
from shardq.server.site import SiteOptions

MAIL = "/v1/queues/mail"
JOB = {"task": "add", "args": {}}
BODIES: dict[str, Any] = {
    "put_messages": {"body": "a"},
    "put_key": {"body": "a"},
    "change_key": {"body": "b"},
    "move_message": {"delay": "1h"},
    "put_job": JOB,
    "put_schedule": {"every": "1h", "body": "a"},
    "change_schedule": {"body": "b"},
    "change_queue": {"attempts": 3},
    "put_limits": {"places": 2},
    "add_key": {"levels": "m"},
    "sign_url": {"queue": "mail", "levels": "m", "life": "1h"},
    "snooze_messages": {"receipts": ["x"], "delay": "1s"},
    "cancel_messages": {"ids": ["x"]},
    "move_messages": {"ids": ["x"], "delay": "1s"},
    **{f"{verb}_messages": {"receipts": ["x"]} for verb in ("ack", "retry", "extend", "bury")},
}


@played(access=closed)
async def test_a_call_without_a_key_is_a_401_that_says_how(api: Api) -> None:
    for headers in ({}, {"authorization": "Bearer sq_X_y"}, {"authorization": "Basic x"}):
        got = await api.ask("GET", "/v1/queues", headers=headers)
        assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer")
        assert got.headers["content-type"] == "application/problem+json"
    assert (await api.ask("GET", "/v1/openapi.json")).status == 200
    assert (await api.ask("GET", "/v1/reference")).status == 200


@pytest.mark.parametrize("level", list(Level))
@played(access=closed)
async def test_a_key_may_do_what_its_levels_say_and_nothing_else(api: Api, level: Level) -> None:
    api.db.queue("mail", history="1d")
    key = bearer(api.token(level.value))
    for route in ROUTES:
        if route.level is None or route.name == "stream_messages":
            continue
        path = route.path.format(
            queue="mail",
            message="m",
            key="k",
            schedule="s",
            job="j",
            search="0",
            account="shop",
            groups="g",
        )
        got = await api.ask(route.method, path, BODIES.get(route.name), key)
        assert (got.status == 403) == (route.level is not level), (route.name, got)
        assert got.status < 500
        if route.name == "drop_queue" and level is Level.DELETE:
            api.db.queue("mail", history="1d")


@played(access=closed)
async def test_a_key_may_use_its_queues_alone_and_sees_no_others(api: Api) -> None:
    for name in ("mail", "mail.in", "post", "sqs.000000000001.eu-west-1.mail"):
        api.db.queue(name)
    key = bearer(api.token("all", "mail*"))
    assert await api.done("GET", "/v1/queues", headers=key) == {"queues": ["mail", "mail.in"]}
    assert (await api.ask("GET", "/v1/queues/post", headers=key)).status == 403
    key = bearer(api.token("all"))
    listed = (await api.done("GET", "/v1/queues", headers=key))["queues"]
    assert listed == ["mail", "mail.in", "post"]
    of_other = "/v1/queues/sqs.000000000001.eu-west-1.mail"
    assert (await api.ask("GET", of_other, headers=key)).status == 403
    other = bearer(api.token("all", account="other"))
    assert (await api.ask("GET", of_other, headers=other)).status == 200
    assert (await api.ask("GET", "/v1/queues/post", headers=other)).status == 403
    assert (await api.ask("GET", "/v1/accounts/shop/keys", headers=other)).status == 403
    assert (await api.ask("GET", "/v1/accounts/other/keys", headers=other)).status == 200
    assert (await api.ask("GET", "/v1/actions", headers=other)).status == 403


@played(access=closed)
async def test_a_key_is_made_rotated_and_revoked_and_its_secret_is_shown_once(api: Api) -> None:
    admin = bearer(api.token("all"))
    keys = "/v1/accounts/shop/keys"
    asked = {"levels": "put,read", "queues": ["mail"], "label": "web", "life": "1d"}
    got = await api.ask("POST", keys, asked, admin)
    assert (got.status, got.headers["cache-control"]) == (201, "no-store")
    key, token = got.json["key"], got.json["token"]
    assert (key["levels"], key["queues"], key["label"]) == ("rp", ["mail"], "web")
    await api.done("PUT", MAIL, headers=admin)
    own = {"authorization": f"Bearer {token}"}
    await api.done("POST", MAIL + "/messages", {"body": "a"}, own)
    listed = await api.ask("GET", keys, headers=admin)
    assert key in listed.json["keys"]
    assert got.json["secret"] not in listed.body.decode()
    again = await api.done("POST", f"{keys}/{key['id']}/rotate", {"keep": "0s"}, admin)
    assert again["token"] != token
    revoked = await api.done("DELETE", f"{keys}/{key['id']}", headers=admin)
    assert revoked["state"] == "revoked"
    weak = bearer(api.token("m"))
    got = await api.ask("POST", keys, {"levels": "r"}, weak)
    assert (got.status, "more than it has" in got.json["detail"]) == (403, True)
    done = (await api.done("GET", "/v1/actions", headers=admin))["actions"]
    # Records of one millisecond have no order.
    assert sorted((one["what"], one["outcome"]) for one in done) == [
        ("create", "done"),
        ("key add", "AccessDenied"),
        ("key add", "done"),
        ("key revoke", "done"),
        ("key rotate", "done"),
    ]
    assert all(one["via"] == "http" for one in done)
    assert any(one["object"].endswith(key["id"]) for one in done if one["what"] == "key add")


@played(access=closed)
async def test_a_signed_url_needs_no_key_and_allows_what_it_says(api: Api) -> None:
    admin = bearer(api.token("all"))
    await api.done("PUT", MAIL, headers=admin)
    asked = {"queue": "mail", "levels": "put", "life": "1h"}
    url = await api.done("POST", "/v1/sign", asked, admin)
    put = f"{MAIL}/messages?{url['query']}"
    await api.done("POST", put, {"body": "a"})
    assert (await api.ask("GET", put)).status == 403
    assert (await api.ask("POST", put.replace("mail/", "post/"), {"body": "a"})).status == 403
    changed = put.replace("sq-levels=p", "sq-levels=r")
    assert (await api.ask("GET", changed)).status == 401
    for more in ({"levels": "d"}, {"queue": "*"}):
        got = await api.ask("POST", "/v1/sign", {**asked, **more}, bearer(api.token("mp", "mail")))
        assert (got.status, "more than it has" in got.json["detail"]) == (403, True)


@played(access=closed)
async def test_a_key_that_may_make_queues_may_not_change_them(api: Api) -> None:
    key = bearer(api.token("c"))
    for _ in range(2):
        await api.done("PUT", MAIL, {}, key)
    assert (await api.ask("PUT", MAIL, {"attempts": 3}, key)).status == 403
    await api.done("PUT", MAIL, {"attempts": 3}, bearer(api.token("cm")))


@played()
async def test_the_admin_part_is_answered_on_its_own_port_alone(api: Api) -> None:
    for port, status in ((9324, 404), (9325, 200)):
        apart = Api(api.db, options=SiteOptions(admin_port=9325), port=port)
        assert (await apart.ask("GET", "/v1/queues")).status == 200
        for path in ("/v1/accounts", "/v1/actions"):
            assert (await apart.ask("GET", path)).status == status
        await apart.app.site.close()


@played(access=closed)
async def test_a_key_over_its_quota_is_a_429_that_says_when_to_ask_again(api: Api) -> None:
    await api.done("PUT", MAIL, headers=bearer(api.token("all")))
    key = bearer(api.token("all", rate=1))
    found: list[Got] = []
    while not found or found[-1].status != 429:
        found.append(await api.ask("GET", MAIL, headers=key))
    assert int(found[-1].headers["retry-after"]) >= 1
    full = bearer(api.token("all", depth=2))
    got = await api.ask("POST", MAIL + "/messages", [{"body": "a"}] * 3, full)
    assert got.status == 429


@played()
async def test_what_changes_or_removes_something_is_recorded_without_bodies(api: Api) -> None:
    await api.done("PUT", MAIL)
    await api.done("PUT", MAIL + "/keys/k", {"body": "secret body", "delay": "1h"})
    await api.done("PATCH", MAIL + "/keys/k", {"body": "secret body 2"})
    await api.done("DELETE", MAIL + "/keys/k")
    await api.ask("DELETE", MAIL + "/keys/k")
    await api.done("PATCH", MAIL, {"attempts": 3})
    await api.done("POST", MAIL + "/purge")
    await api.done("DELETE", MAIL)
    got = await api.ask("GET", "/v1/actions")
    # Records of one millisecond have no order.
    assert sorted((one["what"], one["object"], one["outcome"]) for one in got.json["actions"]) == [
        ("alter", "mail", "done"),
        ("cancel", "mail k", "Refused"),
        ("cancel", "mail k", "done"),
        ("create", "mail", "done"),
        ("drop", "mail", "done"),
        ("edit", "mail k", "done"),
        ("purge", "mail", "done"),
    ]
    assert b"secret" not in got.body
