"""Callers who try for more than they may, and requests that are made to break a server."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from callers import OTHER, Api, Got, bearer, closed, on_stage, play, played, staged, target
from served import Server, head, serving
from shell import Shell, shell
from signing import signed_request

import shardq
from shardq.aio.threads import THREADS
from shardq.clock import SystemClock, pause
from shardq.errors import StoreUnavailable
from shardq.server import application, client
from shardq.server.access import Access
from shardq.server.accounts import Accounts, IssuedKey
from shardq.server.masterkey import FILE_VARIABLE, MASTER_VARIABLE
from shardq.server.signed import UnverifiedUrl
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from served import Got as ServedGot

MAIL = "/v1/queues/mail"
REVOKED_S = 5
DEEP = 100_000


def kind_of(got: Got) -> tuple[int, str]:
    return got.status, got.json["__type"].partition("#")[2]


# In each process ----------------------------------------------------------------------------------


@dataclass
class Pair:
    """Two servers of one store, and keys of an account."""

    servers: tuple[Server, Server]
    accounts: Accounts
    strong: IssuedKey
    weak: IssuedKey
    answers: list[ServedGot]

    @property
    def now_s(self) -> float:
        return SystemClock().now_ms() / 1_000

    def sign(self, body: bytes, *, key: IssuedKey | None = None) -> Any:
        """Headers of a signed request to receive by SQS."""
        by = key or self.strong
        found = signed_request(
            by.key.id,
            by.secret,
            self.now_s,
            url="http://localhost/",
            headers=target("ReceiveMessage"),
            body=body,
            region="us-east-1",
        )
        return {name: value for name, value in found.headers.items() if name != "host"}

    def url(
        self, path: str, life_s: int, *, levels: str = "r", key: IssuedKey | None = None
    ) -> str:
        """A path with the query of a signed url."""
        issued, now_s = key or self.strong, int(self.now_s)
        made = UnverifiedUrl(issued.key.id, "mail", levels, now_s - 100, now_s + life_s)
        generation = issued.key.grant.secrets[0].generation
        query = made.query(self.accounts.master, issued.key.account, generation)
        return f"{path}{'&' if '?' in path else '?'}{query}"

    def ask(self, server: Server, method: str, path: str, body: bytes = b"", **more: str) -> int:
        if path.startswith("/v1"):
            more.setdefault("content-type", "application/json")
        got = server.ask(method, path, body, **more)
        self.answers.append(got)
        return got.status


@pytest.fixture
def pair(shell: Shell) -> Iterator[Pair]:
    with shardq.connect(shell.url) as db:
        accounts = Accounts(db._home.store, db._home.clock)
        account = accounts.create("shop")
        strong = accounts.add_key(account, levels="all", is_derived=True)
        weak = accounts.add_key(account, levels="p", queues=["mail"], is_derived=True)
        db.queue("mail")
        with serving(shell) as one, serving(shell) as other:
            yield Pair((one, other), accounts, strong, weak, [])


RECEIVE = json.dumps({"QueueUrl": "mail"}).encode()
QUERY = "/?Action=ReceiveMessage&QueueUrl=mail"


def test_each_process_refuses_by_each_api_what_a_key_does_not_allow(pair: Pair) -> None:
    for server in pair.servers:
        ask = partial(pair.ask, server)
        strong, weak = bearer(pair.strong.token), bearer(pair.weak.token)
        receive = f"{MAIL}/receive"
        # Allowed calls.
        assert ask("POST", "/", RECEIVE, **pair.sign(RECEIVE)) == 200
        assert ask("POST", receive, b"{}", **strong) == 200
        assert ask("POST", pair.url(receive, 100), b"{}") == 200
        assert ask("GET", pair.url(QUERY, 100)) == 200
        # No key; a level short; another queue.
        assert ask("POST", "/", RECEIVE, **target("ReceiveMessage")) == 403
        assert ask("POST", receive, b"{}") == 401
        assert ask("POST", "/", RECEIVE, **pair.sign(RECEIVE, key=pair.weak)) == 403
        assert ask("POST", receive, b"{}", **weak) == 403
        assert ask("POST", "/v1/queues/post/messages", b'{"body": "a"}', **weak) == 403
        assert ask("POST", pair.url("/v1/queues/post/receive", 100), b"{}") == 403
        assert ask("GET", pair.url(QUERY.replace("mail", "post"), 100)) in {400, 403}
        assert ask("POST", pair.url(f"{MAIL}/messages", 100), b'{"body": "a"}') == 403
        # A url past its end, and one that says more than was signed.
        assert ask("POST", pair.url(receive, -1), b"{}") == 401
        assert ask("GET", pair.url(QUERY, -1)) == 403
        assert ask("POST", pair.url(receive, 1).replace("sq-end=", "sq-end=9"), b"{}") == 401
        # A body changed after it was signed.
        other = RECEIVE.replace(b"mail", b"post")
        assert ask("POST", "/", other, **pair.sign(RECEIVE)) == 403


def test_a_revoked_key_is_refused_in_each_process_within_5_s_and_no_secret_is_shown(
    pair: Pair,
) -> None:
    urls = pair.url(f"{MAIL}/receive", 1_000), pair.url(QUERY, 1_000)

    def refused(server: Server) -> list[bool]:
        return [
            pair.ask(server, "POST", "/", RECEIVE, **pair.sign(RECEIVE)) == 403,
            pair.ask(server, "POST", f"{MAIL}/receive", b"{}", **bearer(pair.strong.token)) == 401,
            pair.ask(server, "POST", urls[0], b"{}") == 401,
            pair.ask(server, "GET", urls[1]) == 403,
        ]

    for server in pair.servers:
        assert refused(server) == [False] * 4
    pair.accounts.revoke(pair.strong.key.id)
    until_s = pair.now_s + REVOKED_S
    for server in pair.servers:
        while not all(refused(server)):
            assert pair.now_s < until_s
    for server in pair.servers:
        assert server.stop() == 0
    shown = "\n".join(line for server in pair.servers for line in server.lines)
    shown += "".join(str(one) for one in pair.answers)
    for issued in (pair.strong, pair.weak):
        assert issued.secret not in shown
    assert "sq-signature" not in shown


def test_a_poll_and_a_stream_end_with_their_key(pair: Pair) -> None:
    key = bearer(pair.strong.token) | {"content-type": "application/json"}
    with pair.servers[0].connected() as polls, pair.servers[1].connected() as streams:
        assert polls.ask("POST", f"{MAIL}/receive", b"{}", **key).status == 200
        streams.send(head("GET", f"{MAIL}/stream", key | {"connection": "close"}))
        assert not streams.is_closed()
        body = b'{"wait": "60s"}'
        polls.send(head("POST", f"{MAIL}/receive", key | {"content-length": str(len(body))}) + body)
        pair.accounts.revoke(pair.strong.key.id)
        until_s = pair.now_s + REVOKED_S
        got = polls.answer()
        assert (got.status, got.json) == (200, {"messages": []})
        while not streams.is_closed():
            pass
        assert pair.now_s < until_s


# An open server -----------------------------------------------------------------------------------

PAGES: list[dict[str, str]] = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://[oops"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.parametrize(
    "headers",
    [*PAGES, {"host": "evil.example"}, {"x-forwarded-for": "192.0.2.7"}, {"forwarded": "for=x"}],
)
@played()
async def test_the_page_of_another_site_reaches_nothing_of_an_open_server(
    api: Api, headers: dict[str, str]
) -> None:
    api.db.queue("mail").put("kept")
    for method, path, body in (
        ("GET", "/?Action=PurgeQueue&QueueUrl=mail", b""),
        ("POST", "/", b"Action=PurgeQueue&QueueUrl=mail"),
        ("POST", f"{MAIL}/purge", b""),
        ("GET", f"{MAIL}/stream", b""),
        ("GET", f"{MAIL}/messages", b""),
    ):
        got = await api.ask(method, path, body, headers)
        assert (got.status, b"kept" in got.body) == (403, False)
    got = await api.ask("POST", "/", b'{"QueueUrl": "mail"}', headers | target("PurgeQueue"))
    assert got.status == 403
    assert api.db.queue("mail").depth().ready == 1


@played()
async def test_an_application_lets_programs_of_its_machine_in_and_nobody_once_it_has_an_account(
    api: Api,
) -> None:
    for host, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.1", 403), ("", 403)):
        for path in ("/?Action=ListQueues", "/v1/queues"):
            got = await api.ask("GET", path, client=(host, 1))
            assert got.status == status
    api.accounts.create("shop")
    later = Api(api.db)
    assert (await later.ask("GET", "/?Action=ListQueues")).status == 403
    assert (await later.ask("GET", "/v1/queues")).status == 401
    await later.app.site.close()


# A level short ------------------------------------------------------------------------------------


@played(access=closed)
async def test_a_put_by_sqs_cancels_and_moves_nothing_without_the_levels_for_that(api: Api) -> None:
    mail = api.db.queue("mail")
    mail.put("a", key="k", delay="1h")
    for command, level in (("move", "u"), ("cancel", "a")):
        texts = {"key": "k", "command": command, "delay": "2h"}
        fields = {
            "QueueUrl": "mail",
            "MessageBody": "x",
            "MessageAttributes": {
                f"x-shardq-{name}": {"DataType": "String", "StringValue": text}
                for name, text in texts.items()
            },
        }
        got = await api.sqs("SendMessage", api.token("prg"), **fields)
        assert kind_of(got) == (403, "AccessDeniedException")
        assert mail.get("k") is not None
        got = await api.sqs("SendMessage", api.token("p" + level), **fields)
        assert got.status == 200
    assert mail.get("k") is None


@played(access=closed)
async def test_a_queue_s_dead_go_where_its_maker_may_put_and_show_nothing_of_others(
    api: Api,
) -> None:
    lost, theirs = api.db.queue("lost"), f"sqs.{OTHER}.us-east-1.mail"
    lost.put("of others")
    for token, name in (
        (api.token("all", account="other"), theirs),
        (api.token("all", "mail"), "mail"),
    ):
        path, key = f"/v1/queues/{name}", bearer(token)
        got = await api.ask("PUT", path, {"dead": "lost"}, key)
        assert got.status == 403
        await api.done("PUT", path, {"dead": f"{name}.dead"}, key)
        assert (await api.ask("PUT", path, {"dead": "lost"}, key)).status == 403
        assert (await api.ask("PATCH", path, {"dead": "lost"}, key)).status == 403
        # A user of another key may have set this.
        api.db.queue(name).alter(dead="lost")
        for method, more in (("GET", ""), ("DELETE", ""), ("DELETE", "/" + "a" * 32)):
            assert (await api.ask(method, f"{path}/dead{more}", headers=key)).status == 403
        assert await api.done("POST", f"{path}/redrive", {}, key) == {"count": 0}
    policy = json.dumps({"deadLetterTargetArn": arn("lost"), "maxReceiveCount": 1})
    asked = {"QueueName": "mine", "Attributes": {"RedrivePolicy": policy}}
    got = await api.sqs("CreateQueue", api.token("all", "mine"), **asked)
    assert kind_of(got) == (403, "AccessDeniedException")
    got = await api.sqs("CreateQueue", api.token("all", account="other"), **asked)
    assert kind_of(got) == (400, "InvalidParameterValueException")
    assert lost.depth().total == 1
    assert (await api.sqs("CreateQueue", api.token("all"), **asked)).status == 200
    # The dead messages go back into a queue that the key may not use.
    token = api.token("all", "lost")
    got = await api.sqs("StartMessageMoveTask", token, SourceArn=arn("lost"))
    assert kind_of(got) == (403, "AccessDeniedException")
    token = api.token("all", "lost", "mine")
    for to in (arn("mail"), arn("mail", OTHER)):
        fields = {"SourceArn": arn("lost"), "DestinationArn": to}
        got = await api.sqs("StartMessageMoveTask", token, **fields)
        assert got.status in {403, 404}
    assert lost.depth().total == 1


@played(access=closed)
async def test_a_bulk_action_takes_no_dead_of_a_queue_of_others(api: Api) -> None:
    for name in ("mail", "other"):
        queue = api.db.queue(name, attempts=1)
        queue.put(name)
        queue.bury(*queue.receive())
    other = api.db.queue("other")
    api.db.queue("mail").alter(dead="other.dead")
    key = bearer(api.token("all", "mail"))
    for path in ("/v1/dead/redrive", "/v1/dead/delete"):
        got = await api.ask("POST", path, {"queue": "mail"}, key)
        assert (got.status, "other.dead" in got.json["detail"]) == (403, True)
    assert other.dead.depth().total == 1


def arn(name: str, account: str = "000000000000") -> str:
    return f"arn:aws:sqs:us-east-1:{account}:{name}"


def url_of(name: str, account: str = "000000000000") -> str:
    return f"http://localhost/{account}/{name}"


@played(access=closed)
async def test_a_policy_gives_no_more_than_a_key_of_the_other_account_has(api: Api) -> None:
    owner = api.token("all")
    await api.sqs("CreateQueue", owner, QueueName="mail")
    one = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}
    denied = {"Effect": "Deny", "Principal": "*", "Action": "sqs:DeleteMessage"}
    text = json.dumps({"Version": "2012-10-17", "Statement": [one, denied]})
    got = await api.sqs("SetQueueAttributes", owner, QueueUrl="mail", Attributes={"Policy": text})
    assert got.status == 200
    mail = url_of("mail")
    reader, strong = (api.token(some, account="other") for some in ("r", "all"))
    entry = {"Id": "a", "MessageBody": "x"}
    got = await api.sqs("SendMessageBatch", reader, QueueUrl=mail, Entries=[entry])
    assert kind_of(got) == (403, "AccessDeniedException")
    assert (await api.sqs("ReceiveMessage", reader, QueueUrl=mail)).status == 200
    got = await api.sqs("SendMessageBatch", strong, QueueUrl=mail, Entries=[entry])
    assert got.status == 200
    # Calls that only the queue's own account may make, and batches of denied calls.
    dropped = {"Id": "a", "ReceiptHandle": "x"}
    for action, fields in (
        ("DeleteQueue", {}),
        ("SetQueueAttributes", {"Attributes": {"Policy": ""}}),
        ("TagQueue", {"Tags": {"a": "b"}}),
        ("DeleteMessageBatch", {"Entries": [dropped]}),
    ):
        got = await api.sqs(action, strong, QueueUrl=mail, **fields)
        assert kind_of(got) == (403, "AccessDeniedException"), action
    got = await api.sqs("DeleteMessageBatch", owner, QueueUrl=mail, Entries=[dropped])
    assert kind_of(got) == (403, "AccessDeniedException")


@played(access=closed)
async def test_queues_of_another_account_are_reached_by_no_name(api: Api) -> None:
    await api.sqs("CreateQueue", api.token("all"), QueueName="mail")
    theirs = api.token("all", account="other")
    for action in ("SendMessage", "PurgeQueue", "DeleteQueue", "GetQueueAttributes"):
        fields = {"MessageBody": "x"} if action == "SendMessage" else {}
        got = await api.sqs(action, theirs, QueueUrl=url_of("mail"), **fields)
        assert kind_of(got) == (403, "AccessDeniedException")
    got = await api.sqs("GetQueueUrl", theirs, QueueName="mail", QueueOwnerAWSAccountId="0" * 12)
    assert got.status == 403
    assert (await api.sqs("ListQueues", theirs)).json == {}
    for path in ("/jobs/x", "/keys/x", "/messages/x", "/schedules", "/statistics", "/dead"):
        assert (await api.ask("GET", MAIL + path, headers=bearer(theirs))).status == 403
    job = {"task": "add"}
    assert (await api.ask("POST", f"{MAIL}/jobs", job, bearer(theirs))).status == 403
    assert api.db.queue("mail").depth().total == 0


@played(access=closed)
async def test_a_caller_without_rights_does_not_learn_whether_a_queue_exists(api: Api) -> None:
    await api.sqs("CreateQueue", api.token("all"), QueueName="mail")
    policy = json.dumps({"deadLetterTargetArn": arn("mail"), "maxReceiveCount": 1})
    owner = "0" * 12
    for token in (
        api.token("all", account="other"),
        api.token("all", "mine"),
        api.token("s"),
    ):
        for action, fields in (
            ("GetQueueUrl", {"QueueName": "mail", "QueueOwnerAWSAccountId": owner}),
            ("GetQueueAttributes", {"QueueUrl": url_of("mail")}),
            ("SendMessage", {"QueueUrl": url_of("mail"), "MessageBody": "x"}),
            ("DeleteQueue", {"QueueUrl": url_of("mail")}),
            ("ListMessageMoveTasks", {"SourceArn": arn("mail")}),
            ("StartMessageMoveTask", {"SourceArn": arn("mail")}),
            ("CreateQueue", {"QueueName": "mine", "Attributes": {"RedrivePolicy": policy}}),
        ):
            found = await api.sqs(action, token, **fields)
            text = json.dumps(fields).replace("mail", "away")
            missing = await api.sqs(action, token, **json.loads(text))
            assert missing.status == found.status, action
            assert missing.body == found.body.replace(b"mail", b"away")
            for own in ("x-amzn-requestid", "x-request-id"):
                del missing.headers[own], found.headers[own]
            assert missing.headers == found.headers
    mine = api.token("all")
    for action, fields in (
        ("GetQueueUrl", {"QueueName": "away"}),
        ("GetQueueAttributes", {"QueueUrl": url_of("away")}),
    ):
        assert kind_of(await api.sqs(action, mine, **fields)) == (400, "QueueDoesNotExist")
    got = await api.sqs("StartMessageMoveTask", mine, SourceArn=arn("away"))
    assert kind_of(got) == (404, "ResourceNotFoundException")


@played(access=closed)
async def test_a_key_gets_no_more_by_rotation_revocation_or_a_url(api: Api) -> None:
    home = api.accounts
    admin = home.add_key(home.account("shop"), levels="all")
    keys = "/v1/accounts/shop/keys"
    weak = bearer(api.token("mr", "mail*"))
    path = f"{keys}/{admin.key.id}"
    assert (await api.ask("POST", f"{path}/rotate", {}, weak)).status == 403
    assert (await api.ask("DELETE", path, headers=weak)).status == 403
    assert (await api.ask("PUT", "/v1/accounts/new", {}, weak)).status == 403
    assert (await api.ask("GET", "/v1/actions", headers=weak)).status == 403
    made = {"levels": "r", "queues": ["mail"]}
    assert (await api.ask("POST", keys, made, weak)).status == 201
    assert (await api.ask("POST", "/v1/accounts/other/keys", made, weak)).status == 403
    asked = {"queue": "*", "levels": "all", "life": "1h"}
    url = await api.done("POST", "/v1/sign", asked, bearer(admin.token))
    for method, place, body in (
        ("POST", keys, made),
        ("POST", f"{path}/rotate", {}),
        ("DELETE", path, None),
        ("POST", "/v1/sign", asked | {"life": "2h"}),
        ("GET", "/v1/actions", None),
    ):
        assert (await api.ask(method, f"{place}?{url['query']}", body)).status == 403


@played(access=closed)
async def test_a_key_with_an_end_or_quotas_makes_none_without(api: Api) -> None:
    now_ms = api.db._home.clock.now_ms()
    bounds = {"end_ms": now_ms + 3_600_000, "rate": 1_000, "depth": 50}
    key = bearer(api.token("mr", **bounds))
    free = api.accounts.add_key(api.accounts.account("shop"), levels="r").key
    keys = "/v1/accounts/shop/keys"
    bounded = {"levels": "r", "life": "30m", "rate": 1_000, "depth": 50}
    wider = [{"life": "2h"}, {"rate": 0}, {"rate": 1_001}, {"depth": 0}, {"depth": 51}]
    for change in ({}, *wider):
        got = await api.ask("POST", keys, bounded | change, key)
        assert got.status == (403 if change else 201), got
    del bounded["life"]
    got = await api.ask("POST", keys, bounded, key)
    assert (got.status, "end by" in got.json["detail"]) == (403, True)
    assert (await api.ask("POST", f"{keys}/{free.id}/rotate", {}, key)).status == 403
    asked = {"queue": "mail", "levels": "r", "life": "2h"}
    assert (await api.ask("POST", "/v1/sign", asked | {"key": free.id}, key)).status == 403
    # A url of its own ends with it.
    assert (await api.ask("POST", "/v1/sign", asked, key)).status == 201


@played(access=closed)
async def test_an_idempotency_key_is_its_caller_s_own(api: Api) -> None:
    api.db.queue("mail")
    ids = set()
    for token in (api.token("p"), api.token("p")):
        named = bearer(token) | {"idempotency-key": "order 7"}
        for _ in range(2):
            made = await api.done("POST", f"{MAIL}/messages", {"body": token}, named)
            ids.add(made["id"])
    assert len(ids) == 2
    assert api.db.queue("mail").depth().total == 2


@played(access=closed)
async def test_no_call_fills_a_queue_beyond_the_depth_of_its_key(api: Api) -> None:
    mail, full = api.db.queue("mail", attempts=1), api.db.queue("full")
    mail.every("1d", "c", name="daily")
    full.put_many(["a", "b"])
    for body in ("d", "e"):
        mail.put(body)
        mail.bury(*mail.receive())
    mail.put("f")
    token = api.token("all", depth=2)
    policy = json.dumps({"deadLetterTargetArn": arn("lost"), "maxReceiveCount": 1})
    for name, given in (("lost", {}), ("full", {"RedrivePolicy": policy})):
        await api.sqs("CreateQueue", token, QueueName=name)
        fields = {"QueueUrl": name, "Attributes": given}
        assert not given or (await api.sqs("SetQueueAttributes", token, **fields)).status == 200
    api.db.queue("lost").put("g")
    for more in ({}, {"DestinationArn": arn("full")}):
        got = await api.sqs("StartMessageMoveTask", token, SourceArn=arn("lost"), **more)
        assert kind_of(got)[1] == "RequestThrottled"
    [other] = mail.peek()
    for path, body in (
        (f"{MAIL}/forward", {"to": "full", "ids": [other.id]}),
        (f"{MAIL}/forward", {"to": "full", "limit": 1}),
        (f"{MAIL}/redrive", {}),
        ("/v1/queues/full/messages", {"body": "a"}),
    ):
        got = await api.ask("POST", path, body, bearer(token))
        assert got.status == 429, (path, got)
    assert (await api.ask("POST", f"{MAIL}/redrive", {"limit": 1}, bearer(token))).status == 200
    got = await api.ask("POST", f"{MAIL}/schedules/daily/run", headers=bearer(token))
    assert got.status == 429
    assert (full.depth().total, mail.depth().total) == (2, 2)


def test_a_signed_url_is_in_no_text_of_a_request() -> None:
    request = signed_request("SQX", "secret", 0, url="http://localhost/?a=1", expires_s=60)
    assert "X-Amz-Signature" in request.query
    assert "X-Amz-Signature" not in repr(request)


# Bad input ----------------------------------------------------------------------------------------


def deep(opening: str = "[") -> str:
    return '{"x":' + opening * DEEP


@pytest.mark.parametrize("opening", ["[", '{"x":'])
@played()
async def test_json_that_is_nested_deep_is_refused(api: Api, opening: str) -> None:
    text = deep(opening)
    await api.done("PUT", MAIL)
    handle = base64.b64encode(text.encode()).decode()
    attributes = {"Policy": text, "RedrivePolicy": text, "RedriveAllowPolicy": text}
    for name, value in attributes.items():
        fields = {"QueueUrl": "mail", "Attributes": {name: value}}
        assert (await api.sqs("SetQueueAttributes", **fields)).status == 400
    assert (await api.sqs("CancelMessageMoveTask", TaskHandle=handle)).status == 400
    for action in ("SendMessage", "ReceiveMessage", "Unknown"):
        got = await api.ask("POST", "/", text.encode(), target(action))
        assert got.status == 400
    json_type = {"content-type": "application/json"}
    for path in (f"{MAIL}/messages", f"{MAIL}/receive", f"{MAIL}/jobs"):
        got = await api.ask("POST", path, text.encode(), json_type)
        assert got.status == 400


@played()
async def test_headers_of_other_producers_break_no_receive_of_sqs(api: Api) -> None:
    mail = api.db.queue("mail")
    wrong = [
        deep()[:50_000],
        "[]",
        "\x00",
        '{"attributes": {"a": ["Binary", "###"]}}',
        '{"attributes": {"<b>&": ["String", "]]>"]}, "group": "<c>"}',
    ]
    for text in wrong:
        mail.put(f"<&{text[:5]}", headers={"sqs": text, "<d>": "]]>"})
    got = await api.ask(
        "GET",
        "/?Action=ReceiveMessage&QueueUrl=mail&MaxNumberOfMessages=10&VisibilityTimeout=0"
        "&AttributeName.1=All&MessageAttributeName.1=All",
    )
    assert got.status == 200
    found = ElementTree.fromstring(got.body)
    assert len([one for one in found.iter() if one.tag.endswith("}Message")]) == len(wrong)
    for text in (b"<d>", b"<b>", b"<c>", b"]]>"):
        assert text not in got.body


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/", b"Action=SendMessage&QueueUrl=mail&MessageBody=x", target("SendMessage"), 400),
        ("/", b'{"QueueUrl": "mail"}', {"content-type": "application/json"}, 400),
        ("/", b'{"QueueUrl": "mail"}', {}, 400),
        ("/", b"Action=SendMessage&" + b"a." * 1_000_000 + b"a=1", {}, 400),
        ("/", b"Action=%ff", {}, 400),
        ("/?Action=%3Cb%3E", b"", {}, 400),
        ("/", b"[]", target("ListQueues"), 400),
        ("/", b"\xff", target("ListQueues"), 400),
        ("/", b'"\\ud800"', target("ListQueues"), 400),
        (f"{MAIL}/messages", b'{"json": 1e999}', {}, 0),
        (f"{MAIL}/messages", b'{"json": ' + b"9" * 10_000 + b"}", {}, 400),
        (f"{MAIL}/receive", b'{"max": true}', {}, 400),
        ("/v1/queues/" + "x" * 300 + "/purge", b"", {}, 400),
        ("/v1/queues/%00/purge", b"", {}, 400),
        ("/v1/queues/%ff/purge", b"", {}, 400),
    ],
)
@played()
async def test_a_damaged_request_has_a_clear_answer(
    api: Api, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    await api.done("PUT", MAIL)
    sent = {"content-type": "application/json"} if path.startswith("/v1") else {}
    got = await api.ask("POST", path, body, sent | headers)
    assert got.status == status or (not status and got.status < 500), got
    assert b"<b>" not in got.body


@played()
async def test_receipts_that_are_none_are_refused(api: Api) -> None:
    mail, post = api.db.queue("mail"), api.db.queue("post")
    mail.put("a")
    [ours] = mail.receive()
    post.put("b")
    [theirs] = post.receive()
    for receipt in (theirs.receipt, "x", "A" * DEEP, ours.receipt[:-1], "\u0000", "é"):
        for action, more in (
            ("DeleteMessage", {}),
            ("ChangeMessageVisibility", {"VisibilityTimeout": 1}),
        ):
            got = await api.sqs(action, QueueUrl="mail", ReceiptHandle=receipt, **more)
            assert kind_of(got) == (400, "ReceiptHandleIsInvalid")
        for verb, more in (
            ("ack", {}),
            ("retry", {}),
            ("extend", {}),
            ("bury", {}),
            ("snooze", {"delay": "1s"}),
        ):
            got = await api.ask("POST", f"{MAIL}/{verb}", {"receipts": [receipt], **more})
            assert got.json["answers"][0]["problem"]["status"] == 400
    depths = [queue.depth().in_flight for queue in (mail, post)]
    assert depths == [1, 1]


@played()
async def test_dead_messages_go_round_in_no_circle(api: Api) -> None:
    for name in ("one", "two"):
        await api.sqs("CreateQueue", QueueName=name)
    for name, to, status in (("one", "one", 400), ("one", "two", 200), ("two", "one", 400)):
        policy = json.dumps({"deadLetterTargetArn": arn(to), "maxReceiveCount": 1})
        fields = {"QueueUrl": name, "Attributes": {"RedrivePolicy": policy}}
        assert (await api.sqs("SetQueueAttributes", **fields)).status == status
    assert (await api.ask("PATCH", "/v1/queues/two", {"dead": "one"})).status == 400
    fields = {"SourceArn": arn("two"), "DestinationArn": arn("two")}
    assert (await api.sqs("StartMessageMoveTask", **fields)).status == 400


@played()
async def test_a_field_that_is_given_twice_is_found_among_many(api: Api) -> None:
    await api.done("PUT", MAIL)
    names = ", ".join(f'"{number}": 0' for number in range(200_000))
    text = f'{{"json": {{{names}, "199999": 1}}}}'.encode()
    json_type = {"content-type": "application/json"}
    got = await api.ask("POST", f"{MAIL}/messages", text, json_type)
    assert (got.status, got.json["field"]) == (400, "199999")


@played()
async def test_large_bodies_that_arrive_are_held_within_a_bound(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "BODIES_BYTES_MAX", 150_000)
    large, small = b'{"body": "%s"}' % (b"x" * 100_000), b'{"body": "a"}'
    sent = {"content-type": "application/json"}
    await api.done("PUT", MAIL)
    slow = api.begin("POST", f"{MAIL}/messages", large[:-1], sent, has_more=True)
    await slow.taken()
    got = await api.ask("POST", f"{MAIL}/messages", large, sent)
    assert (got.status, got.headers["retry-after"]) == (503, "1")
    assert (await api.ask("POST", f"{MAIL}/messages", small, sent)).status == 200
    slow.send(large[-1:])
    assert (await slow.next())["status"] == 200
    await slow.ended()
    assert (await api.ask("POST", f"{MAIL}/messages", large, sent)).status == 200
    gone = api.begin("POST", f"{MAIL}/messages", large[:-1], sent, has_more=True)
    await gone.leave()
    assert (await api.ask("POST", f"{MAIL}/messages", large, sent)).status == 200


@on_stage()
async def test_forecasts_hold_up_nobody_else(stage: Stage, api: Api) -> None:
    api.db.queue("mail").put("counted", delay="10m")
    goes_on, count = Event(), 3 * THREADS
    for nth in range(1, count + 1):
        stage.faults.call("count", goes_on.wait, nth=nth, after=False)
    forecasts = [api.begin("GET", f"{MAIL}/forecast?horizon=30m") for _ in range(count)]
    try:
        while not stage.faults.calls.get("count"):
            await pause(0)
        for _ in range(THREADS):
            await api.done("POST", f"{MAIL}/messages", {"body": "x"})
        assert not any(one.is_answered for one in forecasts)
    finally:
        goes_on.set()
    for one in forecasts:
        assert (await one.next())["status"] == 200
        await one.ended()


@played()
async def test_no_answer_has_more_than_a_few_mib_of_messages(api: Api) -> None:
    await api.done("PUT", MAIL)
    mail, large = api.db.queue("mail"), "x" * 1_000_000
    mail.put_many([large] * 20)
    for method, path, body in (
        ("GET", f"{MAIL}/messages?limit=1000", None),
        ("POST", f"{MAIL}/receive", {"max": 1_000, "wait": "60s"}),
    ):
        got = await api.ask(method, path, body)
        assert got.json["messages"]
        assert len(got.body) < 12 << 20
    while found := mail.receive(20, wait="1s"):
        assert not any(mail.bury(found, partial=True))
    got = await api.ask("GET", f"{MAIL}/dead?limit=1000")
    assert got.json["messages"]
    assert len(got.body) < 12 << 20


# Callers who leave, and queues that others drop ---------------------------------------------------


@pytest.mark.parametrize("path", ["/", f"{MAIL}/purge"])
def test_a_command_whose_caller_leaves_is_carried_out_and_recorded(
    path: str, tmp_path: Path
) -> None:
    async def story(api: Api) -> None:
        mail = api.db.queue("mail")
        mail.put("a")
        await api.sqs("GetQueueAttributes", QueueUrl="mail")
        writer = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        with closing(writer):
            # No other connection can write until this transaction ends.
            writer.execute("begin immediate")
            body = b'{"QueueUrl": "mail"}' if path == "/" else b""
            asked = api.begin("POST", path, body, target("PurgeQueue") if path == "/" else {})
            await asked.leave()
            assert len(mail.peek()) == 1
            writer.execute("rollback")
        while not (made := (await api.done("GET", "/v1/actions"))["actions"]):
            pass
        assert [(one["what"], one["outcome"]) for one in made] == [("purge", "done")]
        assert mail.depth().total == 0

    play(story, f"sqlite:///{tmp_path}/jobs.db")


def test_a_queue_whose_maker_leaves_is_recorded(tmp_path: Path) -> None:
    async def story(api: Api) -> None:
        await api.done("PUT", "/v1/queues/other")
        writer = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
        with closing(writer):
            writer.execute("begin immediate")
            asked = api.begin("PUT", MAIL, {"attempts": 3})
            await asked.leave()
            writer.execute("rollback")
        while "mail" not in (await api.done("GET", "/v1/queues"))["queues"]:
            pass
        await api.done("PUT", MAIL, {"attempts": 4})
        await api.done("PUT", MAIL)
        while len(made := (await api.done("GET", "/v1/actions"))["actions"]) < 3:
            pass
        about = [(one["what"], one["object"], one["outcome"]) for one in made]
        assert sorted(about[:2]) == [("alter", "mail", "done"), ("create", "mail", "done")]
        assert about[2:] == [("create", "other", "done")]

    play(story, f"sqlite:///{tmp_path}/jobs.db")


@on_stage()
async def test_a_purge_that_fails_may_be_repeated_at_once(stage: Stage, api: Api) -> None:
    await api.sqs("CreateQueue", QueueName="mail")
    for table in ("queues", "endpoints"):
        await api.sqs("SendMessage", QueueUrl="mail", MessageBody="x")
        stage.clock.advance(1)
        stage.faults.fail(f"write_records {table}")
        assert (await api.sqs("PurgeQueue", QueueUrl="mail")).status == 503
    assert (await api.sqs("PurgeQueue", QueueUrl="mail")).status == 200
    assert stage.connect().queue("mail").depth().total == 0
    got = await api.sqs("PurgeQueue", QueueUrl="mail")
    assert kind_of(got) == (403, "PurgeQueueInProgress")


@on_stage()
async def test_a_queue_that_another_process_has_dropped_is_a_404_and_made_anew_it_is_another(
    stage: Stage, api: Api
) -> None:
    other = stage.connect()
    await api.done("PUT", MAIL)
    calls = [
        ("GET", MAIL, None),
        ("POST", f"{MAIL}/messages", {"body": "a"}),
        ("POST", f"{MAIL}/receive", {}),
        ("GET", f"{MAIL}/statistics", None),
    ]
    for method, path, body in calls:
        await api.done(method, path, body)
    stage.clock.advance(1)
    other.queue("mail").drop()
    stage.clock.advance(6)
    for method, path, body in calls * 2:
        got = await api.ask(method, path, body)
        assert got.status == 404, path
    other.queue("mail")
    for method, path, body in calls:
        await api.done(method, path, body)
    assert other.queue("mail").depth().total == 1


@on_stage()
async def test_a_store_that_stops_in_a_batch_is_a_503_and_nothing_is_lost(
    stage: Stage, api: Api
) -> None:
    entries = [{"Id": str(one), "MessageBody": "x"} for one in range(10)]
    await api.sqs("CreateQueue", QueueName="mail")
    stage.faults.fail("insert", times=1_000, error=StoreUnavailable("away"))
    got = await api.sqs("SendMessageBatch", QueueUrl="mail", Entries=entries)
    assert kind_of(got) == (503, "ServiceUnavailable")
    assert got.headers["retry-after"] == "1"
    got = await api.ask("POST", f"{MAIL}/messages", [{"body": "x"}] * 3)
    assert (got.status, got.headers["retry-after"]) == (503, "1")
    stage.faults.heal()
    assert stage.connect().queue("mail").depth().total == 0
    got = await api.sqs("SendMessageBatch", QueueUrl="mail", Entries=entries)
    assert len(got.json["Successful"]) == 10
    assert stage.connect().queue("mail").depth().total == 10


@on_stage()
async def test_a_store_that_stops_in_a_forward_of_several_ids_does_not_hide_what_was_moved(
    stage: Stage, api: Api
) -> None:
    ids = [f"m{one}" for one in range(4)]
    await api.done("PUT", MAIL)
    await api.done("PUT", "/v1/queues/other")
    items = [{"body": "x", "id": one, "delay": "1h"} for one in ids]
    await api.done("POST", f"{MAIL}/messages", items)
    asked = {"to": "other", "ids": [*ids, "m0"]}
    stage.faults.fail("move", times=1_000, error=StoreUnavailable("away"))
    assert (await api.ask("POST", f"{MAIL}/forward", asked)).status == 503
    stage.faults.heal()
    stage.faults.fail("move", nth=3, times=1_000, error=StoreUnavailable("away"))
    made = await api.done("POST", f"{MAIL}/forward", asked)
    assert (made["count"], [one["id"] for one in made["answers"]]) == (2, asked["ids"])
    problems = [one.get("problem", {}).get("status") for one in made["answers"]]
    assert problems == [None, None, 503, 503, None]
    stage.faults.heal()
    assert stage.connect().queue("other").depth().total == 2
    made = await api.done("POST", f"{MAIL}/forward", {"to": "other", "ids": ids[2:]})
    assert made["count"] == 2


@on_stage()
async def test_a_put_whose_outcome_is_unknown_is_repeated_by_the_server_and_is_one_message(
    stage: Stage, api: Api
) -> None:
    await api.sqs("CreateQueue", QueueName="mail")
    stage.faults.fail("insert", applied=True)
    got = await api.sqs("SendMessage", QueueUrl="mail", MessageBody="x")
    assert got.status == 200
    stage.faults.fail("insert", applied=True)
    got = await api.ask("POST", f"{MAIL}/messages", [{"body": "x"}] * 2)
    assert got.status == 200
    assert all("problem" not in one for one in got.json)
    assert stage.connect().queue("mail").depth().total == 3
    stage.faults.fail("insert", applied=True)
    stage.faults.fail("insert", nth=2)
    got = await api.ask("POST", f"{MAIL}/messages", {"body": "x"})
    assert (got.status, got.json["maybe"]) == (503, True)
    assert stage.connect().queue("mail").depth().total == 4
