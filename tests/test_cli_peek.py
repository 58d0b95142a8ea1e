"""`peek`, and the last error in all that shows messages."""

from __future__ import annotations

import json
import re

from shell import Shell, shell

from shardq import connect
from shardq.cli.exits import Exit
from shardq.stores.tables import MEMBERS


def with_an_error(shell: Shell) -> None:
    """Put order-7, which has failed once, and order-8, which has not."""
    shell.ok("put", "mail", "first", "--id", "order-7")
    with connect(shell.url) as db:
        queue = db.queue("mail")
        [message] = queue.receive()
        queue.retry(message, "1h", reason="ConnectionError: refused by \x1b[31mada\nat noon")
    shell.ok("put", "mail", "second", "--id", "order-8", "--delay", "2h")


def test_peek_shows_the_last_error_of_what_is_retried(shell: Shell) -> None:
    with_an_error(shell)
    heads, first, second = shell.ok("peek", "mail").out.splitlines()
    assert heads.split() == ["due", "attempts", "bytes", "id", "last", "error", "body"]
    assert re.search(r"order-7  ConnectionError: refused by +\[31mada \.\. +first$", first)
    assert re.search(r"order-8 +second$", second)
    failed, sound = shell.ok("peek", "mail", "--json").lines
    assert failed["last_error"] == "ConnectionError: refused by \x1b[31mada\nat noon"
    assert failed["last_error_at"] < failed["due"]
    assert failed["headers"] == {}
    assert (sound["last_error"], sound["last_error_at"]) == (None, None)
    whole = shell.ok("peek", "mail", "--id", "order-7").out
    assert "error     ConnectionError: refused by \\x1b[31mada\n          at noon\n" in whole
    assert f"failed    {failed['last_error_at']}\n" in whole
    assert "error" not in shell.ok("peek", "mail", "--id", "order-8").out


def test_peek_counts_the_delivery_that_is_under_way(shell: Shell) -> None:
    with connect(shell.url) as db:
        queue = db.queue("mail")
        home = queue._home
        for name in ("order-7", "order-8"):
            queue.put("x", id=name)
        told = {"threads": 1, "running": 1, "busy": 1, "runs": [["order-7", home.clock.now_ms()]]}
        home.store.note(MEMBERS, (home.register.members_key,), {"me": json.dumps(told)}, 60_000)
        found = {line["id"]: line for line in shell.ok("peek", "mail", "--json").lines}
        assert [found[name]["attempts"] for name in sorted(found)] == [1, 0]
        assert re.search(r"Z +1, runs +1  order-7", shell.ok("peek", "mail").out)


def test_peek_has_no_column_of_errors_where_nothing_has_failed(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    assert "error" not in shell.ok("peek", "mail").out


def test_dead_and_peek_tell_the_same_last_error(shell: Shell) -> None:
    with_an_error(shell)
    with connect(shell.url) as db:
        queue = db.queue("mail")
        queue.bury(queue.peek()[0], "no such address")
    [dead] = shell.ok("dead", "mail", "--json").lines
    assert shell.ok("peek", "mail.dead", "--json").lines == [dead]
    assert dead["last_error"] == dead["headers"]["shardq-reason"] == "no such address"
    assert dead["last_error_at"][:19] == dead["headers"]["shardq-died"][:19]
    assert "no such address" in shell.ok("peek", "mail.dead").out
    whole = shell.ok("dead", "mail", "order-7").out
    assert whole.count("no such address") == 1


def test_one_damaged_message_does_not_end_a_list(shell: Shell) -> None:
    with_an_error(shell)
    shell.ok("put", "mail", "x", "--id", "order-9", "--header", "a=b")
    with connect(shell.url) as db:
        queue = db.queue("mail")
        row = next(one._row for one in queue.peek() if one.text == "x")
        queue._home.store.edit([row._replace(serial=1, error="{bad")])
    assert "(it is damaged)" in shell.ok("peek", "mail").out
    assert "error of message" in shell.fails(Exit.STORE_CORRUPT, "peek", "mail", "--json")
