"""`shardq serve` with clients of SQS: polls, clients that leave, queues from a file."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from callers import Api, on_stage, play, played, target
from served import head, serving
from shell import Shell, shell

import shardq
from shardq.aio.threads import THREADS
from shardq.server import application
from shardq.server.site import SiteOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from served import Client, Got

    from shardq.server.app import Application


def poll(client: Client, queue: str = "mail") -> None:
    """Ask for a message, and do not wait for the answer."""
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    length = {"content-length": str(len(body))}
    client.send(head("POST", "/", target("ReceiveMessage") | length) + body)


def call(client: Client, action: str, **fields: Any) -> dict[str, Any]:
    got = client.ask("POST", "/", json.dumps(fields).encode(), **target(action))
    assert got.status == 200, got
    found: dict[str, Any] = json.loads(got.body or b"{}")
    return found


def messages(got: Got) -> list[str]:
    return [one["Body"] for one in json.loads(got.body or b"{}").get("Messages", [])]


def test_a_poll_is_answered_by_a_put_of_another_client(shell: Shell) -> None:
    with serving(shell) as server, server.connected() as one, server.connected() as other:
        call(one, "CreateQueue", QueueName="mail")
        poll(one)
        call(other, "SendMessage", QueueUrl="mail", MessageBody="hello")
        assert messages(one.answer()) == ["hello"]


def test_a_client_that_leaves_its_poll_takes_no_message_along(shell: Shell) -> None:
    with serving(shell) as server, server.connected() as stays:
        call(stays, "CreateQueue", QueueName="mail")
        with ExitStack() as stack:
            for _ in range(20):
                poll(stack.enter_context(server.connected()))
        call(stays, "SendMessage", QueueUrl="mail", MessageBody="hello")
        fields = {"QueueUrl": "mail", "WaitTimeSeconds": 20, "AttributeNames": ["All"]}
        [got] = call(stays, "ReceiveMessage", **fields)["Messages"]
        assert got["Attributes"]["ApproximateReceiveCount"] == "1"
        assert server.stop() == 0


def test_a_server_that_ends_answers_open_polls_with_nothing(shell: Shell) -> None:
    with serving(shell) as server, server.connected() as one, ExitStack() as stack:
        call(one, "CreateQueue", QueueName="mail")
        polling = [stack.enter_context(server.connected()) for _ in range(20)]
        for client in polling:
            poll(client)
        assert one.ask("GET", "/livez").status == 200
        server.signal(signal.SIGTERM)
        for client in polling:
            got = client.answer()
            assert (got.status, messages(got)) == (200, [])
            assert client.is_closed()
        assert server.end() == 0


def test_a_body_behind_an_offer_of_http_2_arrives(shell: Shell) -> None:
    # Java's HttpClient sends this offer.
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "A"}
    with serving(shell) as server, server.connected() as client:
        body = b'{"QueueName": "mail"}'
        for _ in range(2):
            got = client.ask("POST", "/", body, **target("CreateQueue"), **offer)
            assert got.json["QueueUrl"] == "http://localhost/000000000000/mail"


def test_queues_of_a_file_are_made_and_keep_what_they_have(shell: Shell) -> None:
    path = shell.directory / "queues.toml"
    path.write_text("""
        [queues.mail]
        [queues.lost]
        tags = {team = "shop"}
        [queues."orders.fifo"]
        FifoQueue = true
        VisibilityTimeout = 60
    """)
    words = ("--queues", str(path))
    with serving(shell, *words) as server, server.connected() as client:
        urls = call(client, "ListQueues")["QueueUrls"]
        assert [url.rpartition("/")[2] for url in urls] == ["lost", "mail", "orders.fifo"]
        assert call(client, "ListQueueTags", QueueUrl="lost")["Tags"] == {"team": "shop"}
        asked = {"QueueUrl": "orders.fifo", "AttributeNames": ["VisibilityTimeout"]}
        assert call(client, "GetQueueAttributes", **asked)["Attributes"] == {
            "VisibilityTimeout": "60"
        }
        assert server.stop() == 0
    path.write_text(path.read_text().replace("= 60", "= 50"))
    with serving(shell, *words) as server, server.connected() as client:
        assert "orders.fifo keeps its attributes" in server.lines[0]
        found = call(client, "GetQueueAttributes", **asked)["Attributes"]
        assert found == {"VisibilityTimeout": "60"}
    path.write_text("[queues.mine]\nVisibilityTimeout = 1000000")
    assert "'mine' cannot be made" in shell.fails(2, "serve", "--port", "0", *words)
    path.write_text("mine = 1")
    assert "must hold tables" in shell.fails(2, "serve", "--port", "0", *words)
    path.write_text("mine")
    assert "is no TOML" in shell.fails(2, "serve", "--port", "0", *words)


@pytest.mark.cassandra
def test_a_server_on_cassandra_keeps_what_was_sent_over_a_restart(
    shell: Shell, own_url: str
) -> None:
    # A keyspace of its own: others have accounts, and a server for them is not open.
    shell.url = own_url
    shardq.init(shell.url)
    name = "mail"
    with serving(shell) as server, server.connected() as client:
        call(client, "CreateQueue", QueueName=name)
        call(client, "SendMessage", QueueUrl=name, MessageBody="hello")
        assert server.stop() == 0
    with serving(shell) as server, server.connected() as client:
        poll(client, name)
        got = client.answer()
        assert messages(got) == ["hello"]
        [message] = json.loads(got.body)["Messages"]
        call(client, "DeleteMessage", QueueUrl=name, ReceiptHandle=message["ReceiptHandle"])
        assert server.stop() == 0


# Without a server ---------------------------------------------------------------------------------


@played()
async def test_what_was_claimed_for_a_client_that_is_gone_is_released_uncounted(api: Api) -> None:
    await api.sqs_done("CreateQueue", QueueName="mail")
    await api.sqs_done("SendMessage", QueueUrl="mail", MessageBody="hello")
    for _ in range(3):
        left = api.begin_sqs("ReceiveMessage", QueueUrl="mail")
        await left.leave()
        assert not left.is_answered
    fields = {"QueueUrl": "mail", "WaitTimeSeconds": 20, "AttributeNames": ["All"]}
    [got] = (await api.sqs_done("ReceiveMessage", **fields))["Messages"]
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"


@played()
async def test_large_messages_are_written_in_a_thread_and_released_if_the_client_leaves_then(
    api: Api,
) -> None:
    await api.sqs_done("CreateQueue", QueueName="mail")
    for _ in range(2):
        await api.sqs_done("SendMessage", QueueUrl="mail", MessageBody="x" * 100_000)
    # The first receive of a queue needs a thread before it claims.
    [got] = (await api.sqs_done("ReceiveMessage", QueueUrl="mail"))["Messages"]
    await api.sqs_done("DeleteMessage", QueueUrl="mail", ReceiptHandle=got["ReceiptHandle"])
    with ExitStack() as held:
        busy = Event()
        held.callback(busy.set)
        for _ in range(THREADS):
            api.app.site.threads.begin(busy.wait)
        left = api.begin_sqs("ReceiveMessage", QueueUrl="mail", MaxNumberOfMessages=10)
        # Answered after the one before it in line has got the message.
        assert await api.sqs_done("ReceiveMessage", QueueUrl="mail") == {}
        assert not left.is_answered
        left.depart()
    await left.ended()
    assert not left.is_answered
    fields = {"QueueUrl": "mail", "AttributeNames": ["All"], "MaxNumberOfMessages": 10}
    got = (await api.sqs_done("ReceiveMessage", **fields))["Messages"]
    assert [one["Attributes"]["ApproximateReceiveCount"] for one in got] == ["1"]


@played(options=SiteOptions(polls_max=2))
async def test_no_more_polls_of_a_key_wait_than_may(api: Api) -> None:
    await api.sqs_done("CreateQueue", QueueName="mail")
    fields = {"QueueUrl": "mail", "WaitTimeSeconds": 20}
    polls = [asyncio.create_task(api.sqs("ReceiveMessage", **fields)) for _ in range(3)]
    [refused], _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().status in {400, 429}
    assert b"RequestThrottled" in refused.result().body
    api.app.site.leave()
    statuses = sorted([(await one).status for one in polls])
    assert statuses == [200, 200, refused.result().status]
