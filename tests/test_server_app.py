"""The server as an ASGI application: requests, their bounds, and where it is mounted."""

from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_network
from typing import TYPE_CHECKING

import pytest
from callers import Api, on_stage, play, played

import shardq
from shardq.server import application
from shardq.server.proxies import seen_through

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shardq.server.app import Application


@played()
async def test_each_answer_has_an_id_and_that_of_sqs_its_name_there(api: Api) -> None:
    one, other = await api.ask("POST", "/"), await api.ask("GET", "/v1/nowhere")
    assert one.headers["x-amzn-requestid"] == one.headers["x-request-id"]
    assert "x-amzn-requestid" not in other.headers
    assert one.headers["x-request-id"] != other.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/queues/livez", "/livez"])
@played()
async def test_it_is_mounted_into_another_application_that_tells_it_nothing(
    api: Api, path: str
) -> None:
    # Servers and frameworks differ: in some the path begins with the prefix.
    got = await api.ask("GET", path, root_path="/queues")
    assert (got.status, got.body) == (200, b"ok\n")


@played()
async def test_a_body_comes_in_parts_and_a_client_that_leaves_before_its_end_gets_nothing(
    api: Api,
) -> None:
    whole = api.begin("POST", "/v1/nowhere", b"{", has_more=True)
    whole.send(b"", has_more=True)
    whole.send(b"}")
    assert (await whole.next())["status"] == 404
    await whole.ended()
    left = api.begin("POST", "/v1/nowhere", b"{", has_more=True)
    await left.leave()
    assert not left.is_answered


@played()
async def test_an_error_that_nobody_foresaw_is_a_500_with_its_id_and_logged_once(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    # No thread takes calls any more.
    await api.app.site.threads.close(lambda: None)
    got = await api.ask("GET", "/readyz")
    assert got.status == 500
    [record] = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert got.headers["x-request-id"] in record.getMessage()
    assert record.exc_info


TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "told", "client", "scheme", "host"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7", "https", "queues.example.org"),
        ("10.0.0.1", "6.6.6.6, 192.0.2.7, 10.0.0.2", "192.0.2.7", "https", "queues.example.org"),
        ("fd00::1", "2001:db8::7", "2001:db8::7", "https", "queues.example.org"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.3", "https", "queues.example.org"),
        ("192.0.2.1", "192.0.2.7", "192.0.2.1", "http", "inside:9324"),
        ("", "192.0.2.7", "", "http", "inside:9324"),
    ],
)
def test_what_a_trusted_proxy_tells_is_believed(
    peer: str, told: str, client: str, scheme: str, host: str
) -> None:
    headers = {
        "host": "inside:9324",
        "x-forwarded-for": told,
        "x-forwarded-proto": "https",
        "x-forwarded-host": "queues.example.org",
    }
    assert seen_through(TRUSTED, headers, peer, "http") == (client, scheme, host)
    assert seen_through((), headers, peer, "http") == (peer, "http", "inside:9324")
