"""The HTTP API: what is not a call, what is refused, and what describes it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from callers import Api, on_stage, play, played

from shardq.server.api.problem import explained
from shardq.server.api.table import ROUTES

if TYPE_CHECKING:
    from collections.abc import Iterator

PUT = "/v1/queues/mail/messages"
DEEP = 100_000


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "told"),
    [
        ("GET", "/v1/nothing", None, 404, "there is no path /v1/nothing"),
        ("GET", "/v1/queues/", None, 404, "there is no path"),
        ("POST", "/v1/queues", None, 405, "only GET, HEAD, OPTIONS"),
        ("GET", "/v1/queues/none", None, 404, "make it by PUT /v1/queues/none,"),
        ("GET", "/v1/queues/%20", None, 400, "queue name ' '"),
        ("GET", "/v1/queues?limit=0", None, 400, "Expected `int` >= 1, at `limit`"),
        ("GET", "/v1/queues?limit=x", None, 400, "Expected `int`, got `str`, at `limit`"),
        ("GET", "/v1/queues?limits=1", None, 400, "unknown field `limits`"),
        ("GET", "/v1/queues?limit=1&limit=2", None, 400, "'limit' is given twice"),
        ("GET", "/v1/queues?after=%FF", None, 400, "the query cannot be read"),
        ("GET", "/v1/queues/mail?x=1", None, 400, "takes no 'x' in the query"),
        ("POST", "/v1/queues/mail/pause", {"x": 1}, 400, "takes no body"),
        ("POST", PUT, {}, 400, "give body, body_base64 or json"),
        ("POST", PUT, [], 400, "length >= 1"),
        ("POST", PUT, {"body": "a", "json": 1}, 400, "one of them"),
        ("POST", PUT, {"body": 1}, 400, "Expected `str`, got `int`, at `body`"),
        ("POST", PUT, {"body": "a", "colour": 1}, 400, "unknown field `colour`"),
        ("POST", PUT, {"body_base64": "a"}, 400, "base64"),
        ("POST", PUT, {"body": "a" * (1 << 20) + "a"}, 413, "larger than 1,048,576"),
        ("POST", PUT, {"body": "a", "headers": {"a": "b" * (2 << 20)}}, 422, "larger than"),
        ("POST", PUT, {"body": "a", "due": "tomorrow"}, 400, "due 'tomorrow'"),
        ("POST", PUT, {"body": "a", "due": "2030-01-01T00:00:00"}, 400, "no time zone"),
        ("POST", PUT, {"body": "a", "delay": "-1s"}, 400, "delay"),
        ("POST", PUT, {"body": "a", "priority": 99}, 400, "priority must be 0 to 2"),
        ("POST", PUT, {"body": "a", "key": "k", "on_conflict": "win"}, 400, "'win'"),
        ("POST", "/v1/queues/mail/receive", {"max": 0}, 400, "at `max`"),
        ("POST", "/v1/queues/mail/receive", {"wait": "61s"}, 400, "at most 60s"),
        ("POST", "/v1/queues/mail/receive", {"visibility": "soon"}, 400, "visibility"),
        ("POST", "/v1/queues/mail/ack", {}, 400, "missing required field `receipts`"),
        ("POST", "/v1/queues/mail/ack", {"receipts": []}, 400, "at `receipts`"),
        ("POST", "/v1/queues/mail/redrive", {"limit": 0}, 400, "at `limit`"),
        ("GET", "/v1/queues/mail/history", None, 409, "history"),
        ("GET", "/v1/queues/mail/forecast?horizon=2d", None, 400, "horizon"),
        ("GET", "/v1/queues/mail/keys/none", None, 404, "no message has the key 'none'"),
        ("DELETE", "/v1/queues/mail/keys/none", None, 404, "there is no message 'none'"),
        ("PATCH", "/v1/queues/mail/keys/none", {}, 400, "give a body, headers, due or delay"),
        ("GET", "/v1/queues/mail/messages/none", None, 404, "nothing is known of message 'none'"),
        ("GET", "/v1/queues/mail/schedules/none", None, 404, "'none'"),
        ("DELETE", "/v1/queues/mail/schedules/none", None, 404, "no schedule 'none'"),
        ("PUT", "/v1/queues/mail/schedules/s", {"body": "a"}, 400, "give every or cron"),
        ("PUT", "/v1/queues/mail/schedules/s", {"body": "a", "cron": "x"}, 400, "cron"),
        ("PUT", "/v1/queues/mail", {"bands": 2}, 400, "fixed when a queue is created"),
        ("PUT", "/v1/queues/mail", {"attempts": 0}, 400, "attempts must be between 1 and 10000"),
        ("PATCH", "/v1/queues/mail", {}, 400, "give a setting to change"),
        ("POST", "/v1/queues/mail/jobs", {"args": {}}, 400, "missing required field `task`"),
        ("GET", "/v1/queues/mail/jobs/none?wait=1h", None, 400, "at most 60s"),
        ("GET", "/v1/queues/mail/stream?window=0", None, 400, "at `window`"),
        ("GET", "/v1/queues/mail/stream?visibility=x", None, 400, "visibility"),
    ],
)
@played()
async def test_what_cannot_be_done_is_a_problem_that_says_why(
    api: Api, method: str, path: str, body: Any, status: int, told: str
) -> None:
    await api.done("PUT", "/v1/queues/mail")
    got = await api.ask(method, path, body)
    assert (got.status, got.headers["content-type"]) == (status, "application/problem+json")
    problem = got.json
    assert problem["status"] == status
    assert told in problem["detail"]
    page = (await api.ask("GET", problem["type"].partition("#")[0])).body.decode()
    assert f"id='{problem['type'].partition('#')[2]}'" in page


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "give body"),
        (b"no", "is not JSON"),
        (b'{"body": "a"', "is not JSON"),
        (b'{"body": "a"} {}', "is not JSON"),
        (b'{"body": "\xff"}', "not UTF-8"),
        (b'{"json": "\xff"}', "not UTF-8"),
        (b'{"json": ' + b"[" * DEEP + b"]" * DEEP + b"}", "nested too deep"),
        (b"[" * DEEP + b"]" * DEEP, "got `array`"),
        (b'{"json": NaN}', "is not JSON"),
        (b'{"body": "a", "body": "b"}', "field 'body' is given twice"),
        (b'{"json": [{"a": 1, "a": 2}]}', "field 'a' is given twice"),
        (b'{"body": "a", "priority": ' + b"1" * 10_000 + b"}", "at `priority`"),
        (b'{"body": "\\ud800"}', "is not JSON"),
    ],
)
@played()
async def test_a_body_that_cannot_be_read_is_a_400_that_says_why(
    api: Api, body: bytes, told: str
) -> None:
    await api.done("PUT", "/v1/queues/mail")
    got = await api.ask("POST", PUT, body, {"content-type": "application/json"})
    assert got.status == 400
    assert told in got.json["detail"]
    assert await api.done("GET", PUT) == {"messages": []}


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
@played()
async def test_a_body_of_another_type_is_refused(api: Api, kind: str) -> None:
    await api.done("PUT", "/v1/queues/mail")
    got = await api.ask("POST", PUT, b'{"body": "a"}', {"content-type": kind})
    assert (got.status, "application/json" in got.json["detail"]) == (415, True)


@played()
async def test_each_path_tells_its_methods_and_answers_head(api: Api) -> None:
    await api.done("PUT", "/v1/queues/mail")
    got = await api.ask("OPTIONS", "/v1/queues/mail")
    assert got.status == 204
    assert got.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"
    got = await api.ask("HEAD", "/v1/queues/mail")
    assert (got.status, got.body) == (200, b"")
    got = await api.ask("HEAD", "/v1/queues/mail/stream")
    assert (got.status, got.body) == (200, b"")
    got = await api.ask("POST", "/v1/queues/mail")
    assert (got.status, got.headers["allow"]) == (405, "DELETE, GET, HEAD, OPTIONS, PATCH, PUT")


@played(root="/v1/my%20app")
async def test_below_a_prefix_everything_is_where_it_says(api: Api) -> None:
    await api.done("PUT", "/v1/queues/mail")
    await api.done("PUT", "/v1/queues/mail/keys/a%2Fb%20c", {"body": "k"})
    assert (await api.done("GET", "/v1/queues/mail/keys/a%2Fb%20c"))["key"] == "a/b c"
    got = await api.ask("GET", "/v1/queues/none")
    assert got.json["type"] == "/v1/my%20app/v1/reference#UnknownQueue"


@played()
async def test_the_description_has_every_route_and_every_type(api: Api) -> None:
    made = await api.done("GET", "/v1/openapi.json")
    assert {
        (method.upper(), path) for path, found in made["paths"].items() for method in found
    } == {(route.method, route.path) for route in ROUTES}
    operations = [one for found in made["paths"].values() for one in found.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    for one in operations:
        assert "default" in one["responses"]
        assert one["summary"]
    schemas = made["components"]["schemas"]
    for name in references(made):
        assert name in schemas
    for name, schema in schemas.items():
        assert schema["description"], name
        if name != "Settings":
            for field, one in schema["properties"].items():
                assert one.get("description"), f"{name}.{field}"


def references(value: Any) -> Iterator[str]:
    """The schemas that a document refers to."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"].removeprefix("#/components/schemas/")
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from references(one)


@played()
async def test_the_reference_has_every_route_and_every_problem_and_nothing_from_elsewhere(
    api: Api,
) -> None:
    got = await api.ask("GET", "/v1/reference")
    assert got.headers["content-type"] == "text/html; charset=utf-8"
    page = got.body.decode().replace("<wbr>", "")
    for route in ROUTES:
        assert f">{route.method} {route.path}<" in page
    for name, status, _ in explained():
        assert f"<tr id='{name}'><td>{status}<td>" in page
    assert not re.search(r"https?:|<script|<link|<img", page)
