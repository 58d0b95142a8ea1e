"""`shardq accounts` and `shardq actions`, run as a user runs them."""

from __future__ import annotations

import re
import sqlite3
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from shell import Shell, shell
from signing import request_of, signed_request
from test_cli_help import commands
from working import app_shell

import shardq
from shardq.cli import recorded, shardq_command
from shardq.cli.exits import Exit
from shardq.server.access import Access
from shardq.server.masterkey import FILE_VARIABLE, MASTER_VARIABLE
from shardq.server.refusals import InvalidClientTokenId, Refusal

if TYPE_CHECKING:
    from shardq.server.access import Caller
    from shardq.server.web import Request

SECRET = re.compile(r"[a-z2-7]{52}")


def added(shell: Shell, *options: str, account: str = "shop") -> dict[str, Any]:
    [told] = shell.ok("accounts", "key", "add", account, *options, "--json").lines
    assert isinstance(told, dict)
    return told


def caller(shell: Shell, request: Request) -> Caller:
    with shardq.connect(shell.url) as db:
        return Access(db).caller_of(request)


def bearer(token: str) -> Request:
    return request_of(headers={"Authorization": f"Bearer {token}"})


def recorded_by(shell: Shell, *options: str) -> list[tuple[str, str, str]]:
    """What, object and outcome of each command, the first one first."""
    lines = shell.ok("actions", "--json", "-n", "1000", *options).lines
    return [(one["what"], one["object"], one["outcome"]) for one in reversed(lines)]


@pytest.fixture(params=["file", "cassandra"])
def each_shell(request: pytest.FixtureRequest, shell: Shell) -> Shell:
    """A shell on each store."""
    if request.param == "cassandra":
        shell.url = request.getfixturevalue("cassandra_url")
    return shell


def test_what_a_key_may_do_follows_what_the_shell_says_on_each_store(each_shell: Shell) -> None:
    name = f"shop-{uuid.uuid4().hex}"
    [made] = each_shell.ok("accounts", "create", name, "--json").lines
    assert [made] == each_shell.ok("accounts", "create", name, "--json").lines
    key = added(each_shell, "--sigv4", "--levels", "rp", "--queue", f"{name}*", account=name)
    assert key["account"] == made["account"]
    found = caller(each_shell, bearer(key["token"]))
    assert (found.account, found.levels, found.queues) == (made["account"], "rp", (f"{name}*",))
    [rotated] = each_shell.ok("accounts", "key", "rotate", key["key"], "--json").lines
    for token in (key["token"], rotated["token"]):
        assert caller(each_shell, bearer(token)).key_id == key["key"]
    [listed] = each_shell.ok("accounts", "key", "list", name, "--json").lines
    assert (listed["key"], listed["secrets"]) == (key["key"], 2)
    each_shell.ok("put", name, "hello")
    each_shell.ok("queues", "drop", name, "--yes")
    each_shell.ok("accounts", "key", "revoke", key["key"])
    for token in (key["token"], rotated["token"]):
        with pytest.raises(InvalidClientTokenId, match="is revoked"):
            caller(each_shell, bearer(token))
    assert recorded_by(each_shell, "--about", key["key"]) == [
        ("key add", f"{made['account']} {key['key']}", "done"),
        ("key rotate", key["key"], "done"),
        ("key revoke", key["key"], "done"),
    ]
    assert ("drop", name, "done") in recorded_by(each_shell, "--about", name)


def test_an_account_and_its_keys_are_made_listed_rotated_and_revoked(shell: Shell) -> None:
    assert shell.ok("accounts", "create", "shop").out == "shop: account 000000000000\n"
    assert shell.ok("accounts", "create", "shop").out == "shop: account 000000000000\n"
    shell.ok("accounts", "create", "tests", "--id", "123456789012")
    told = shell.ok("accounts", "key", "add", "shop", "--sigv4", "--label", "worker")
    [key_id, secret, token] = re.findall(r"=(\w+)$", told.out, re.MULTILINE)
    assert told.out == (
        f"AWS_ACCESS_KEY_ID={key_id}\nAWS_SECRET_ACCESS_KEY={secret}\nSHARDQ_KEY={token}\n"
    )
    assert told.err == "This is shown once: keep it now.\n"
    assert token == f"sq_{key_id}_{secret}"
    found = caller(shell, bearer(token))
    assert (found.account, found.levels, found.queues) == ("000000000000", "rpuag", ("*",))
    other = added(
        shell, "--levels", "read,put", "--queue", "a", "--queue", "b*", "--for", "30d", "--rate",
        "7", "--depth", "9", account="123456789012",
    )  # fmt: skip
    assert other["account"] == "123456789012"
    heads, *lines = shell.ok("accounts", "list").out.splitlines()
    assert heads.split() == ["account", "name", "keys", "made"]
    assert [line.split()[:3] for line in lines] == [
        ["000000000000", "shop", "1"],
        ["123456789012", "tests", "1"],
    ]
    [first, second] = shell.ok("accounts", "key", "list", "--json").lines
    assert (first["key"], first["label"], first["sigv4"]) == (key_id, "worker", True)
    assert (second["levels"], second["queues"]) == ("rp", ["a", "b*"])
    assert (second["rate"], second["depth"], second["secrets"]) == (7, 9, 1)
    assert second["end"] is not None
    line = shell.ok("accounts", "key", "list", "tests").out.splitlines()[1]
    assert re.match(rf"{other['key']}  123456789012  rp +a, b\* +7/s, 9 deep  \S+Z  valid$", line)

    rotated = shell.ok("accounts", "key", "rotate", key_id, "--keep", "1h")
    [_, _, newer] = re.findall(r"=(\w+)$", rotated.out, re.MULTILINE)
    assert newer != token
    assert " two secrets " in shell.ok("accounts", "key", "list", "shop").out
    assert caller(shell, bearer(token)).key_id == caller(shell, bearer(newer)).key_id == key_id
    shell.ok("accounts", "key", "rotate", key_id, "--keep", "0s")
    for old in (token, newer):
        with pytest.raises(InvalidClientTokenId):
            caller(shell, bearer(old))

    told = shell.ok("accounts", "key", "revoke", key_id)
    assert told.out == f"{key_id}: revoked; every server refuses it within 5s\n"
    assert [one["key"] for one in shell.ok("accounts", "key", "list", "--json").lines] == [
        other["key"]
    ]
    assert " revoked " in shell.ok("accounts", "key", "list", "--all").out
    listed = shell.ok("accounts", "key", "list", "--all", "--json")
    assert SECRET.search(listed.out + shell.ok("actions", "--json").out) is None


def test_an_sdk_signs_with_what_the_shell_has_printed(shell: Shell) -> None:
    shell.ok("accounts", "create", "shop")
    made = added(shell, "--sigv4", "--levels", "all")
    with shardq.connect(shell.url) as db:
        now_s = db._home.clock.now_ms() / 1_000
    found = caller(shell, signed_request(made["key"], made["secret"], now_s, body=b"{}"))
    assert (found.via, found.levels) == ("sigv4", "rpuagcdsm")


def test_a_url_is_signed_at_the_shell(shell: Shell) -> None:
    shell.ok("accounts", "create", "shop")
    made = added(shell, "--levels", "rp")
    base = "https://queues.example.com/v1/queues/uploads/messages?wait=5"
    asked = ("accounts", "sign", made["key"], "uploads", "--levels", "p", "--for", "1h")
    url = shell.ok(*asked, "--url", base).out.strip()
    assert url.startswith(f"{base}&sq-key={made['key']}&sq-queue=uploads&sq-levels=p&")
    assert made["secret"] not in url
    found = caller(shell, request_of(url))
    assert (found.via, found.levels, found.queues) == ("url", "p", ("uploads",))
    query = shell.ok(*asked).out.strip()
    assert caller(shell, request_of(f"http://h/?{query}")).via == "url"
    [told] = shell.ok(*asked, "--json").lines
    assert urlsplit(f"?{told['url']}").query == told["url"]
    shell.ok("accounts", "key", "revoke", made["key"])
    with pytest.raises(Refusal):
        caller(shell, request_of(url))
    assert "is revoked" in shell.fails(Exit.USAGE, *asked)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "a\nb"), "printable"),
        (("create", "b", "--id", "12"), "12 digits"),
        (("create", "b", "--id", "000000000000"), "account 'shop' has the id"),
        (("create", "shop", "--id", "123456789012"), "exists and has the id 000000000000"),
        (("key", "add", "shop", "--levels", "rx"), "letters such as 'rpa'"),
        (("key", "add", "shop", "--levels", ""), "letters such as 'rpa'"),
        (("key", "add", "shop", "--queue", "a*b"), "its beginning and a *"),
        (("key", "add", "shop", "--queue", ""), "its beginning and a *"),
        (("key", "add", "shop", "--rate", "-1"), "whole number"),
        (("key", "add", "shop", "--until", "2020-01-01T00:00:00Z"), "later than now"),
        (("key", "add", "shop", "--for", "1d", "--until", "2030-01-01T00:00:00Z"), "not both"),
        (("key", "add", "shop", "--label", "x" * 101), "1 to 100"),
        (("sign", "K", "q", "--levels", "r"), "give --for or --until"),
        (("sign", "K", "q", "--levels", "r", "--for", "1h", "--url", "http://h/#a"), "fragment"),
    ],
)
def test_what_cannot_be_used_is_refused_and_not_recorded(
    shell: Shell, arguments: tuple[str, ...], said: str
) -> None:
    shell.ok("accounts", "create", "shop")
    before = recorded_by(shell)
    assert said in shell.fails(Exit.USAGE, "accounts", *arguments)
    assert recorded_by(shell) == before


def test_what_is_not_there_is_said(shell: Shell) -> None:
    shell.ok("init")
    assert "make one: shardq accounts create" in shell.ok("accounts", "list").out
    assert "no such key" in shell.ok("accounts", "key", "list").out
    assert "No such command is recorded" in shell.ok("actions").out
    for arguments in (
        ("key", "add", "nobody"),
        ("key", "list", "nobody"),
        ("key", "rotate", "nobody"),
        ("key", "revoke", "nobody"),
        ("sign", "nobody", "q", "--levels", "r", "--for", "1h"),
    ):
        assert "there is no" in shell.fails(Exit.NOT_THERE, "accounts", *arguments)


def test_the_master_key_is_one_that_is_given_or_is_in_the_store(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (MASTER_VARIABLE, FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    shell.ok("accounts", "create", "shop")
    made = added(shell, "--sigv4")
    caller(shell, bearer(made["token"]))
    monkeypatch.setenv(MASTER_VARIABLE, "another one, of 32 characters or more")
    with pytest.raises(InvalidClientTokenId):
        caller(shell, bearer(made["token"]))


UNRECORDED = {
    "init", "put", "produce", "consume", "work", "tasks", "serve", "observe", "calendar", "peek",
    "show", "running", "failures", "schema", "check", "audit", "history", "actions",
    "bench", "node",
    "queues show", "schedule list", "schedule show", "schedule preview",
    "accounts list", "accounts key list",
}  # fmt: skip
"""Commands that look, or that put or handle messages."""


def test_each_command_is_recorded_or_changes_nothing_that_was_there() -> None:
    made = {
        path
        for path in commands(shardq_command)
        if not any(
            other[: len(path)] == path for other in commands(shardq_command) if other != path
        )
    }
    left = {
        path for path in made - recorded.COMMANDS.keys() if path[:1] not in {("node",), ("bench",)}
    }
    assert {" ".join(path) for path in left} <= UNRECORDED, "give it a row in recorded.COMMANDS"
    assert set(recorded.COMMANDS) - made <= {("forward",)}


# Actions ------------------------------------------------------------------------------------------


def test_each_command_that_changes_something_is_recorded_with_its_outcome(shell: Shell) -> None:
    shell.ok("put", "mail", "secret body", "--key", "order-7", "--delay", "1h")
    [put] = shell.ok("put", "mail", "another", "--delay", "1h", "--json").lines
    shell.ok("queues", "create", "post")
    shell.ok("queues", "alter", "mail", "--attempts", "7")
    shell.ok("queues", "pause", "mail")
    shell.ok("queues", "resume", "mail")
    shell.ok("queues", "pause", "mail", "--key", "order-9")
    shell.ok("move", "mail", "--key", "order-7", "--delay", "2h")
    shell.ok("edit", "mail", "--key", "order-7", "--body", "secret too")
    shell.ok("cancel", "mail", "--key", "order-8", code=Exit.NOT_THERE)
    shell.ok("cancel", "mail", put["receipt"])
    shell.ok("schedule", "add", "mail", "hourly", "secret three", "--every", "1h")
    shell.ok("schedule", "pause", "mail", "hourly")
    shell.ok("schedule", "remove", "mail", "hourly")
    shell.ok("dead", "mail", "--redrive", "--reason", "timeout")
    shell.ok("dead", "mail")
    shell.ok("queues", "purge", "mail", "--yes")
    shell.fails(Exit.USAGE, "queues", "drop", "mail")
    shell.ok("queues", "drop", "mail", "--yes")
    shell.fails(Exit.UNKNOWN_QUEUE, "queues", "drop", "mail", "--yes")
    assert recorded_by(shell) == [
        ("create", "post", "done"),
        ("alter", "mail", "done"),
        ("pause", "mail", "done"),
        ("resume", "mail", "done"),
        ("pause", "mail key order-9", "done"),
        ("move", "mail key order-7", "done"),
        ("edit", "mail key order-7", "done"),
        ("cancel", "mail key order-8", "no such key, schedule or account"),
        ("cancel", "mail a receipt", "done"),
        ("schedule add", "mail hourly", "done"),
        ("schedule pause", "mail hourly", "done"),
        ("schedule remove", "mail hourly", "done"),
        ("redrive", "mail with reason timeout", "done"),
        ("purge", "mail", "done"),
        ("drop", "mail", "done"),
        ("drop", "mail", "UnknownQueue"),
    ]
    lines = shell.ok("actions", "--json").lines
    assert {(one["who"], one["via"]) for one in lines} == {(recorded.user(), "shell")}
    assert recorded_by(shell, "--what", "schedule", "--about", "hourly", "--since", "1h")[1:] == [
        ("schedule pause", "mail hourly", "done"),
        ("schedule remove", "mail hourly", "done"),
    ]
    assert recorded_by(shell, "--who", "nobody") == []
    shown = shell.ok("actions", "-n", "1").out.splitlines()
    assert re.match(r"\S+Z  \S+@\S+ +shell  drop +mail +UnknownQueue$", shown[1])
    everything = shell.ok("actions", "-n", "1000").out
    assert put["receipt"] not in everything
    assert "secret" not in everything


def test_a_schedule_of_an_app_is_recorded_in_the_app_s_store(app_shell: Shell) -> None:
    words = ("hello", "--every", "1h", "--app", "app", "--task", "old.welcome")
    app_shell.ok("schedule", "add", *words, "--args", '{"user": "bob"}')
    assert recorded_by(app_shell) == [("schedule add", "hello", "done")]


def test_a_command_that_cannot_be_recorded_does_what_it_is_told(shell: Shell) -> None:
    shell.ok("put", "mail", "hello")
    connection = sqlite3.connect(shell.directory / "jobs.db")
    connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON actions BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    connection.close()
    done = shell.run("queues", "pause", "mail")
    assert (done.code, done.out) == (0, "mail: paused\n")
    assert "pause of mail by" in done.err
    assert "is not recorded" in done.err
