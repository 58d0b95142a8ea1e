"""Who may do what with a server: keys, signatures and signed urls, on both stores."""

from __future__ import annotations

import base64
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import pytest
from signing import request_of, signed_request
from worlds import World, on_each_store

import shardq
from shardq.errors import StoreCorrupt, StoreUnavailable, UsageError
from shardq.server import signed
from shardq.server.access import Access
from shardq.server.accounts import Accounts
from shardq.server.grants import Level
from shardq.server.masterkey import FILE_VARIABLE, MASTER_VARIABLE
from shardq.server.refusals import (
    AccessDenied,
    IncompleteSignature,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    Refusal,
    RequestExpired,
    RequestThrottled,
    SignatureDoesNotMatch,
)
from shardq.stores.tables import ACCESS, Change
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardq.connection import Connection
    from shardq.server.access import Caller
    from shardq.server.accounts import Account, IssuedKey
    from shardq.server.web import Request

UNKNOWN = "SQ" + "A" * 18
REREAD_S = 3.1


class Served:
    """A shell that changes accounts, and two server processes that share the store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shell = world.connect()
        self.accounts = Accounts(self.shell._home.store, self.shell._home.clock)
        self.account: Account = self.accounts.create(f"shop-{uuid.uuid4().hex}")
        self.servers = [Access(world.connect()) for _ in range(2)]

    def key(self, levels: str = "rp", **more: Any) -> IssuedKey:
        return self.accounts.add_key(self.account, levels=levels, **more)

    @property
    def now_s(self) -> float:
        return self.shell._home.clock.now_ms() / 1_000

    def signed(self, issued: IssuedKey, **more: Any) -> Request:
        at_s = more.pop("at_s", self.now_s)
        return signed_request(issued.key.id, issued.secret, at_s, **more)

    def url(self, issued: IssuedKey, levels: str, queue: str, *, life_s: float = 60) -> Request:
        now_ms = round(self.now_s * 1_000)
        draft = signed.drafted(
            issued.key.id,
            queue,
            levels,
            now_ms=now_ms,
            start_ms=0,
            end_ms=now_ms + round(life_s * 1_000),
        )
        key = self.accounts.key(issued.key.id)
        generation = key.grant.secrets[0].generation
        query = draft.query(self.accounts.master, key.account, generation)
        return request_of(f"http://127.0.0.1:9324/v1/queues/{queue}?{query}", method="GET")

    def admitted(self, request: Request) -> list[Caller]:
        return [one.caller_of(request) for one in self.servers]

    def refused(self, request: Request, kind: type[Refusal]) -> None:
        for one in self.servers:
            with pytest.raises(kind):
                one.caller_of(request)


@pytest.fixture
def served(world: World) -> Served:
    return Served(world)


def bearer(issued: IssuedKey) -> Request:
    return request_of(headers={"Authorization": f"Bearer {issued.token}"})


# Keys ---------------------------------------------------------------------------------------------


@on_each_store
def test_a_key_is_let_in_with_what_it_may_do(served: Served) -> None:
    issued = served.key("rag", queues=["orders", "shop.*"], label="worker", depth=9)
    for caller in served.admitted(bearer(issued)):
        assert (caller.account, caller.key_id) == (served.account.id, issued.key.id)
        assert (caller.levels, caller.via, caller.region) == ("rag", "bearer", "")
        assert (caller.queues, caller.depth) == (("orders", "shop.*"), 9)
        assert caller.who == f"{served.account.id}/{issued.key.id} (worker)"
        caller.check(Level.READ, "orders")
        caller.check(Level.ACK, "shop.mail")
        caller.check(Level.GET)
        for level, queue in [(Level.PUT, "orders"), (Level.READ, "orders.dead")]:
            with pytest.raises(AccessDenied, match=f"lacks the level {level.name.lower()}"):
                caller.check(level, queue)
        caller.check_gives("ra", ["shop.a*", "orders"])
        for levels, queues in [("rp", ["orders"]), ("r", ["*"])]:
            with pytest.raises(AccessDenied, match="give away"):
                caller.check_gives(levels, queues)


@on_each_store
def test_a_key_signs_and_is_a_bearer_key_too(served: Served) -> None:
    issued = served.key(is_derived=True)
    body = b'{"QueueName":"orders"}'
    headers = {"X-Amz-Target": "AmazonSQS.CreateQueue"}
    for request in (
        served.signed(issued, body=body, headers=headers),
        served.signed(issued, method="GET", params={"Action": "ListQueues"}, expires_s=60),
        served.signed(issued, token="of a session"),
    ):
        for caller in served.admitted(request):
            assert (caller.key_id, caller.via) == (issued.key.id, "sigv4")
            assert caller.region == "eu-west-1"
    assert [caller.via for caller in served.admitted(bearer(issued))] == ["bearer"] * 2


@on_each_store
def test_a_revoked_key_is_refused_by_every_process(served: Served) -> None:
    issued = served.key(is_derived=True)
    requests = [bearer(issued), served.signed(issued), served.url(issued, "r", "orders")]
    for request in requests:
        served.admitted(request)
    served.accounts.revoke(issued.key.id)
    served.accounts.revoke(issued.key.id)
    served.world.pass_time(REREAD_S)
    for request in requests:
        served.refused(request, InvalidClientTokenId)
    with pytest.raises(UsageError, match="is revoked"):
        served.accounts.rotate(issued.key.id, 0)


@pytest.mark.parametrize("is_derived", [False, True], ids=["hashed", "derived"])
@on_each_store
def test_a_rotated_key_has_two_secrets_for_a_while(served: Served, is_derived: bool) -> None:
    first = served.key(is_derived=is_derived)
    url = served.url(first, "r", "orders")
    second = served.accounts.rotate(first.key.id, keep_ms=4_000)
    assert second.key.id == first.key.id
    assert second.secret != first.secret
    both = [bearer(first), bearer(second), url]
    if is_derived:
        both += [served.signed(first), served.signed(second)]
    for request in both:
        served.admitted(request)
    served.world.pass_time(4.1)
    served.refused(bearer(first), InvalidClientTokenId)
    served.refused(url, SignatureDoesNotMatch)
    if is_derived:
        served.refused(served.signed(first), SignatureDoesNotMatch)
        served.admitted(served.signed(second))
    served.admitted(bearer(second))
    third = served.accounts.rotate(first.key.id, keep_ms=60_000)
    fourth = served.accounts.rotate(first.key.id, keep_ms=60_000)
    served.world.pass_time(REREAD_S)
    served.refused(bearer(second), InvalidClientTokenId)
    served.admitted(bearer(third))
    served.admitted(bearer(fourth))


@on_each_store
def test_a_key_that_has_ended_is_refused(served: Served) -> None:
    now_ms = round(served.now_s * 1_000)
    issued = served.key(is_derived=True, end_ms=now_ms + 2_000)
    served.admitted(bearer(issued))
    served.world.pass_time(2.1)
    for request in (bearer(issued), served.signed(issued)):
        served.refused(request, InvalidClientTokenId)


@on_each_store
def test_a_new_key_works_at_once_and_unknown_ones_cost_few_reads(served: Served) -> None:
    served.admitted(bearer(served.key()))
    served.admitted(bearer(served.key()))
    [server, _] = served.servers
    reads = server.accounts._store.counters["reads"]  # type: ignore[attr-defined]
    unknown = request_of(headers={"Authorization": f"Bearer sq_{UNKNOWN}_x"})
    for _ in range(50):
        served.refused(unknown, InvalidClientTokenId)
    if not served.world.is_real:
        with pytest.raises(InvalidClientTokenId):
            server.find(unknown)
        assert server.accounts._store.counters["reads"] - reads <= 20  # type: ignore[attr-defined]


def test_what_is_known_needs_no_read(served: Served) -> None:
    issued = served.key()
    [server, _] = served.servers
    assert server.find(bearer(issued)) is None
    server.caller_of(bearer(issued))
    found = server.find(bearer(issued))
    assert found.key_id == issued.key.id
    with pytest.raises(InvalidClientTokenId):
        server.find(request_of(headers={"Authorization": f"Bearer {issued.token}x"}))
    assert server.find(bearer(served.key())) is None
    served.world.pass_time(REREAD_S)
    assert server.find(bearer(issued)) is None


@on_each_store
def test_two_accounts_made_at_once_are_one_of_a_name_and_never_share_an_id(world: World) -> None:
    one, other = (
        Accounts(db._home.store, db._home.clock) for db in (world.connect(), world.connect())
    )
    names = [f"team-{uuid.uuid4().hex}" for _ in range(3)]
    made = [[accounts.create(name) for name in names] for accounts in (one, other)]
    assert made[0] == made[1]
    assert len({account.id for account in made[0]}) == len(names)
    assert one.account(names[1]) == one.account(made[0][1].id) == made[0][1]
    with pytest.raises(UsageError, match="has the id"):
        one.create("another", made[0][0].id)
    with pytest.raises(UsageError, match="exists and has the id"):
        one.create(names[0], "123456789012")


def test_the_first_account_has_the_queues_with_plain_names(stage: Stage) -> None:
    db = stage.connect()
    accounts = Accounts(db._home.store, db._home.clock)
    assert accounts.create("shop").id == "000000000000"
    assert accounts.create("other").id not in ("000000000000", "master")


# Refusals -----------------------------------------------------------------------------------------


@on_each_store
def test_a_request_that_is_not_as_it_was_signed_is_refused(served: Served) -> None:
    issued = served.key(is_derived=True)
    request = served.signed(issued, body=b"{}", headers={"X-Amz-Target": "AmazonSQS.ListQueues"})
    served.admitted(request)
    for changed in (
        replace(request, body=b"{ }"),
        replace(request, raw_path="/other"),
        replace(request, headers={**request.headers, "x-amz-target": "AmazonSQS.PurgeQueue"}),
    ):
        served.refused(changed, SignatureDoesNotMatch)
    wrong = signed_request(issued.key.id, "x" * 52, served.now_s)
    served.refused(wrong, SignatureDoesNotMatch)
    for off_s in (-360, 360):
        served.refused(served.signed(issued, at_s=served.now_s + off_s), RequestExpired)


def test_a_request_without_a_sound_key_is_refused_by_what_is_wrong(served: Served) -> None:
    issued = served.key()

    def authorized(text: str) -> Request:
        return request_of(headers={"Authorization": text})

    for request, kind in [
        (request_of(), MissingAuthenticationToken),
        (authorized("Basic YTpi"), MissingAuthenticationToken),
        (authorized("Bearer"), MissingAuthenticationToken),
        (authorized("Bearer "), InvalidClientTokenId),
        (authorized("Bearer abc"), InvalidClientTokenId),
        (authorized(f"Bearer sq_{issued.key.id}"), InvalidClientTokenId),
        (authorized(f"Bearer sq_{issued.key.id}_"), InvalidClientTokenId),
        (authorized(f"Bearer sq_{issued.key.id}_é{issued.secret}"), InvalidClientTokenId),
        (authorized(f"Bearer {issued.token}\u0660"), InvalidClientTokenId),
        (authorized(f"Bearer sq_{UNKNOWN}_{issued.secret}"), InvalidClientTokenId),
        (authorized("AWS4-HMAC-SHA256 Credential=x"), IncompleteSignature),
        (request_of("http://h/?X-Amz-Algorithm=x"), IncompleteSignature),
        (request_of("http://h/?sq-signature=x"), IncompleteSignature),
        # A key that is stored as a hash cannot sign.
        (served.signed(issued), InvalidClientTokenId),
    ]:
        served.refused(request, kind)


def test_a_server_with_another_master_key_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    issued = served.key(is_derived=True)
    monkeypatch.setenv(MASTER_VARIABLE, "another one, of 32 characters or more")
    other = Access(served.world.connect())
    with pytest.raises(SignatureDoesNotMatch, match="another master key"):
        other.caller_of(served.signed(issued))
    path = tmp_path / "master"
    path.write_text("one of a file, of 32 characters or more\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    shell = Accounts(served.shell._home.store, served.shell._home.clock)
    by_file = shell.add_key(served.account, levels="r", is_derived=True)
    Access(served.world.connect()).caller_of(served.signed(by_file))
    with pytest.raises(SignatureDoesNotMatch):
        other.caller_of(served.signed(by_file))
    for text, match in [("short", "32 characters"), (None, "cannot be read")]:
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(UsageError, match=match):
            shell.read_master()


def test_a_key_that_is_damaged_is_refused_and_no_other(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    db = stage.connect()
    accounts = Accounts(db._home.store, db._home.clock)
    account = accounts.create("shop")
    damaged, sound = (accounts.add_key(account, levels="r") for _ in range(2))
    change = Change((), (damaged.key.id,), {"version": 1}, {"info": '{"levels":7}', "version": 2})
    assert db._home.store.write_records(ACCESS, [change]) == {}
    access = Access(stage.connect())
    for _ in range(3):
        access.caller_of(bearer(sound))
        with pytest.raises(InvalidClientTokenId):
            access.caller_of(bearer(damaged))
        stage.clock.sleep(REREAD_S)
    said = f"the record of key {damaged.key.id} is damaged; restore the store from a copy."
    assert [one.message for one in caplog.records] == [said]
    with pytest.raises(StoreCorrupt, match=damaged.key.id):
        accounts.all_keys()


def test_a_store_that_fails_lets_nobody_in_once_keys_must_be_reread(stage: Stage) -> None:
    db = stage.connect()
    accounts = Accounts(db._home.store, db._home.clock)
    issued = accounts.add_key(accounts.create("shop"), levels="r")
    access = Access(stage.connect())
    access.caller_of(bearer(issued))
    stage.faults.fail("notes access")
    access.caller_of(bearer(issued))
    stage.clock.sleep(REREAD_S)
    with pytest.raises(StoreUnavailable):
        access.caller_of(bearer(issued))


# Signed urls --------------------------------------------------------------------------------------


@on_each_store
def test_a_signed_url_allows_what_it_says_until_its_end(served: Served) -> None:
    issued = served.key("rpg", queues=["shop.*"])
    request = served.url(issued, "rpd", "shop.mail", life_s=3)
    for caller in served.admitted(request):
        assert (caller.via, caller.key_id) == ("url", issued.key.id)
        # The url does not allow what its key may not do.
        assert (caller.levels, caller.queues) == ("rp", ("shop.mail",))
        with pytest.raises(AccessDenied):
            caller.check(Level.READ, "shop.post")
    for caller in served.admitted(served.url(issued, "r", "*")):
        assert caller.queues == ("shop.*",)
    for caller in served.admitted(served.url(issued, "r", "elsewhere")):
        assert not caller.allows(Level.READ, "elsewhere")
    served.world.pass_time(4.1)
    served.refused(request, RequestExpired)


def test_a_signed_url_that_was_changed_is_refused(served: Served) -> None:
    issued = served.key("rpg")
    request = served.url(issued, "r", "mail")
    served.admitted(request)
    served.admitted(replace(request, query=f"wait=5&{request.query}"))
    parts = dict(parse_qsl(request.query))
    for name, value in {
        "sq-levels": "rp",
        "sq-queue": "*",
        "sq-end": str(int(parts["sq-end"]) + 60),
        "sq-start": "1",
        "sq-signature": "A" * 43,
    }.items():
        changed = urlencode({**parts, name: value}, safe="*")
        served.refused(replace(request, query=changed), SignatureDoesNotMatch)
    twice = f"{request.query}&sq-levels=rpd"
    served.refused(replace(request, query=twice), IncompleteSignature)
    for name in parts:
        fewer = urlencode({one: parts[one] for one in parts if one != name})
        kind = MissingAuthenticationToken if name == "sq-signature" else IncompleteSignature
        served.refused(replace(request, query=fewer), kind)


def test_a_signed_url_is_not_valid_before_its_start(served: Served) -> None:
    issued = served.key()
    now_ms = round(served.now_s * 1_000)
    times = {"now_ms": now_ms, "start_ms": now_ms + 10_000, "end_ms": now_ms + 20_000}
    draft = signed.drafted(issued.key.id, "mail", "r", **times)
    query = draft.query(served.accounts.master, served.account.id, 1)
    request = request_of(f"http://127.0.0.1/?{query}")
    served.refused(request, RequestExpired)
    served.world.pass_time(10.1)
    served.admitted(request)
    for wrong in ({"end_ms": now_ms}, {"end_ms": now_ms + 400 * 86_400_000}):
        with pytest.raises(UsageError):
            signed.drafted(issued.key.id, "mail", "r", **{**times, **wrong})


# Quotas -------------------------------------------------------------------------------------------


def test_a_key_makes_so_many_requests_a_second(served: Served) -> None:
    issued, other = served.key(rate=5), served.key()
    for server in served.servers:
        for _ in range(5):
            server.caller_of(bearer(issued))
        with pytest.raises(RequestThrottled) as refused:
            server.caller_of(bearer(issued))
        assert refused.value.retry_after_s == 1
        server.caller_of(bearer(other))
    served.world.pass_time(0.45)
    for server in served.servers:
        for _ in range(2):
            server.caller_of(bearer(issued))
        with pytest.raises(RequestThrottled):
            server.caller_of(bearer(issued))
    # Requests with a wrong secret are nobody's.
    wrong = request_of(headers={"Authorization": f"Bearer {issued.token}x"})
    served.world.pass_time(1)
    for _ in range(9):
        served.refused(wrong, InvalidClientTokenId)
    served.admitted(bearer(issued))


@on_each_store
def test_a_key_fills_a_queue_to_so_many_messages(served: Served) -> None:
    [server, _] = served.servers
    queue = served.shell.queue(served.world.queue_name())
    caller = server.caller_of(bearer(served.key(depth=3)))
    free = server.caller_of(bearer(served.key()))
    server.check_depth(caller, queue, 2)
    queue.put_many(["a", "b"])
    with pytest.raises(RequestThrottled, match="holds 2 messages"):
        server.check_depth(caller, queue, 2)
    server.check_depth(caller, queue)
    queue.put("c")
    with pytest.raises(RequestThrottled):
        server.check_depth(caller, queue)
    server.check_depth(free, queue, 100)
    [message] = queue.receive(1)
    queue.ack(message)
    served.world.pass_time(1.1)
    server.check_depth(caller, queue)


# Open ---------------------------------------------------------------------------------------------


@pytest.fixture
def db(stage: Stage) -> Iterator[Connection]:
    with stage.connect() as made:
        yield made


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_a_server_without_an_account_is_open_on_loopback(db: Connection, host: str) -> None:
    access = Access.starting(db, [host])
    assert access.is_open
    assert access.warning.startswith("there is no account: every program of this machine may")
    caller = access.caller_of(request_of(client="127.0.0.1"))
    assert (caller.account, caller.via, caller.who) == (
        "000000000000",
        "open",
        "anybody at 127.0.0.1",
    )
    caller.check(Level.MANAGE, "mail")
    by_sdk = signed_request("test", "test", 0, region="us-east-2")
    assert access.caller_of(by_sdk).region == "us-east-2"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "db-1", "localhost.example.com", ""])
def test_a_server_without_an_account_does_not_start_elsewhere(db: Connection, host: str) -> None:
    with pytest.raises(UsageError, match=r"no account.*accounts create.*--insecure"):
        Access.starting(db, [host])
    access = Access.starting(db, ["127.0.0.1", host], insecure=True)
    assert access.warning.startswith("there is no account: whoever reaches this port may")
    assert access.caller_of(request_of("http://shop.example.com/")).via == "open"
    Accounts(db._home.store, db._home.clock).create("shop")
    assert Access.starting(db, [host]).warning == ""


def test_an_account_closes_an_open_server(stage: Stage, db: Connection) -> None:
    access = Access.starting(stage.connect(), ["127.0.0.1"])
    access.caller_of(request_of())
    accounts = Accounts(db._home.store, db._home.clock)
    account = accounts.create("shop")
    stage.clock.sleep(REREAD_S)
    assert not access.is_open
    with pytest.raises(MissingAuthenticationToken):
        access.caller_of(request_of())
    access.caller_of(bearer(accounts.add_key(account, levels="r")))


def test_an_application_within_another_is_never_open_unasked(db: Connection) -> None:
    with pytest.raises(MissingAuthenticationToken):
        Access(db).caller_of(request_of())


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1:9324/", {"Origin": "https://evil.example.com"}),
        ("http://127.0.0.1:9324/", {"Origin": "null"}),
        # A name of another site that leads to 127.0.0.1.
        ("http://evil.example.com:9324/?Action=PurgeQueue", {}),
        ("http://[oops/", {}),
    ],
)
def test_a_page_from_elsewhere_does_not_reach_an_open_server(
    db: Connection, url: str, headers: dict[str, str]
) -> None:
    access = Access.starting(db, ["127.0.0.1"])
    request = replace(request_of(headers=headers), host=url.split("/")[2])
    with pytest.raises(AccessDenied, match=r"under a name of loopback|the page of another site"):
        access.caller_of(request)
    if headers:
        everywhere = Access.starting(db, ["0.0.0.0"], insecure=True)
        with pytest.raises(AccessDenied, match="the page of another site"):
            everywhere.caller_of(request)
    for host in ("localhost:9324", "[::1]:9324", "sqs.eu-west-1.localhost.localstack.cloud:4566"):
        access.caller_of(replace(request_of(), host=host))


# In an event loop ---------------------------------------------------------------------------------


# Secrets ------------------------------------------------------------------------------------------


def test_no_secret_is_in_a_text_or_in_the_store(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with shardq.connect(f"sqlite:///{path}") as db:
        accounts = Accounts(db._home.store, db._home.clock)
        account = accounts.create("shop")
        issued = [accounts.add_key(account, levels="r", is_derived=one) for one in (True, False)]
        rotated = [accounts.rotate(one.key.id, 60_000) for one in issued]
        every = [*issued, *rotated]
        access = Access(db)
        texts = [repr([every, accounts.all_keys(), accounts.master, accounts.all_accounts()])]
        for one in every:
            texts += [repr(access.caller_of(bearer(one))), repr(bearer(one))]
            wrong = request_of(headers={"Authorization": f"Bearer {one.token}x"})
            with pytest.raises(Refusal) as refused:
                access.caller_of(wrong)
            texts.append(str(refused.value))
        hidden = [one.grant.secrets for one in accounts.all_keys()]
        hashes = [one.hash for some in hidden for one in some if one.hash]
    stored = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    assert len(hashes) == 2
    for one in every:
        assert one.secret.encode() not in stored
        assert base64.b64encode(one.secret.encode()) not in stored
        assert not [text for text in texts if one.secret in text]
    assert not [text for text in texts if any(repr(one)[2:-1] in text for one in hashes)]
