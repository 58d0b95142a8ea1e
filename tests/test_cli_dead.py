"""Dead messages at the command line: shown, put back, deleted."""

from __future__ import annotations

import pytest
from rich.text import Text
from shell import Shell, shell

import shardq
from shardq.cli import listing
from shardq.cli.exits import Exit
from shardq.inspection.dead import last
from shardq.testing import Stage


@pytest.fixture
def deaths(shell: Shell) -> Shell:
    """A queue `mail` of which three messages have died, of two reasons."""
    shell.ok("queues", "create", "mail", "--attempts", "1")
    for name, body in (("order-7", "1"), ("order-8", "2"), ("order-9", "2")):
        shell.ok("put", "mail", body, "--id", name)
    script = "read n; exit $n"
    shell.ok("consume", "mail", "--until-empty", "--exec", f"sh -c '{script}'", code=Exit.DIED)
    return shell


def dead_ids(shell: Shell, *options: str) -> set[str]:
    return {line["id"] for line in shell.ok("dead", "mail", "--json", *options).lines}


def test_dead_are_redriven_by_id_or_reason_and_nothing_else(deaths: Shell) -> None:
    assert dead_ids(deaths, "--reason", "EXIT CODE 2") == {"order-8", "order-9"}
    assert dead_ids(deaths, "order-7", "order-9") == {"order-7", "order-9"}
    assert "put 1 message back" in deaths.ok("dead", "mail", "--redrive", "order-8").out
    assert dead_ids(deaths) == {"order-7", "order-9"}
    assert "put 1 message back" in deaths.ok("dead", "mail", "--redrive", "--reason", "code 2").out
    assert dead_ids(deaths) == {"order-7"}
    done = deaths.run("dead", "mail", "--redrive", "order-7", "order-77")
    assert (done.code, done.out) == (Exit.FAILED, "put 1 message back into mail\n")
    assert done.err == "shardq: mail has no dead message 'order-77'.\n"
    assert {line["id"] for line in deaths.ok("peek", "mail", "--json").lines} == {
        "order-7", "order-8", "order-9",
    }  # fmt: skip


def test_dead_are_deleted_by_id_or_reason_and_nothing_else(deaths: Shell) -> None:
    assert "--purge" in deaths.fails(Exit.USAGE, "dead", "mail", "--delete")
    assert "--delete" in deaths.fails(Exit.USAGE, "dead", "mail", "--purge", "order-7")
    assert "deleted 1 dead message" in deaths.ok("dead", "mail", "--delete", "order-7").out
    by_reason = ("dead", "mail", "--delete", "--reason", "code 2")
    assert "--yes" in deaths.fails(Exit.USAGE, *by_reason)
    assert "deleted 1 dead message" in deaths.ok(*by_reason, "-n", "1", "--yes").out
    assert len(dead_ids(deaths)) == 1
    assert deaths.run("dead", "mail", "--delete", "order-7").code == Exit.FAILED
    assert len(dead_ids(deaths)) == 1
    assert deaths.ok("peek", "mail").out == "mail is empty.\n"


def test_one_dead_message_is_shown_whole(deaths: Shell) -> None:
    shown = deaths.ok("dead", "mail", "order-8").out
    names = [line.split()[0] for line in shown.splitlines()]
    assert names[:3] == ["id", "reason", "died"]
    assert "id        order-8\n" in shown
    assert "attempts  1\n" in shown
    assert "reason    out of attempts: " in shown
    assert "header    shardq-reason=" not in shown
    assert "body      2\n" in shown


def test_a_list_of_the_dead_tells_reasons_and_what_to_do_with_them(deaths: Shell) -> None:
    whole, part = deaths.ok("dead", "mail"), deaths.ok("dead", "mail", "-n", "2")
    assert "exit code 2" in whole.out
    assert "out of attempts" not in whole.out
    how = "`shardq dead mail ID` shows one whole, `--redrive` puts back.\n"
    assert whole.err == how
    assert part.err == f"1 more not shown; -n N shows N.\n{how}"
    some = deaths.ok("dead", "mail", "--reason", "code 2", "-n", "1")
    assert some.err == f"There are more; -n N shows N.\n{how}"


def test_a_column_of_a_list_has_what_the_others_leave() -> None:
    reason = "a reason of 37 letters, which is long"
    rows = [[Text("order-7"), Text(reason), Text("one")]]
    for width in (60, 52):
        made = listing.lines(["id", "reason", "body"], rows, free=2, width=width)
        assert any(reason in line.plain for line in made)
        assert max(len(line.plain) for line in made) <= width


def test_a_message_that_is_not_there_is_looked_up_among_the_dead_of_the_longest_name(
    shell: Shell,
) -> None:
    name = "q" * 100
    shell.ok("queues", "create", name, "--attempts", "1")
    shell.ok("put", name, "x", "--id", "order-7")
    shell.ok("consume", name, "--until-empty", "--exec", "false", code=Exit.DIED)
    done = shell.run("peek", f"{name}.dead", "--id", "order-8")
    assert done.code == Exit.FAILED, done
    assert done.err.startswith(f"shardq: {name}.dead has no message 'order-8'")


def test_those_that_died_last_are_shown_and_what_is_left_out_is_said(shell: Shell) -> None:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail")
        for n in range(24):
            queue.bury(queue.put("x", id=f"job-{n}"), "odd" if n % 2 else "even")
    for words in ["dead", "mail"], ["dead", "mail", "--json"]:
        done = shell.ok(*words)
        assert "job-23" in done.out.splitlines()["--json" not in words]
        assert "job-3" not in done.out
        assert "4 more not shown; -n N shows N." in done.err
    found = shell.ok("dead", "mail", "--reason", "even", "-n", "2", "--json")
    assert [line["id"] for line in found.lines] == ["job-22", "job-20"]
    assert "There are more; -n N shows N." in found.err
    assert len(shell.ok("dead", "mail", "--json", "-n", "24").lines) == 24


def test_without_a_queue_the_dead_of_all_are_counted_by_their_reasons(deaths: Shell) -> None:
    assert deaths.run("dead", "--redrive").code == Exit.USAGE
    with shardq.connect(deaths.url) as db:
        post = db.queue("post")
        post.bury(post.put("x"), "no such address")
    heads, *lines = deaths.ok("dead").out.splitlines()
    assert heads.split() == ["queue", "dead", "last", "died", "reason"]
    assert [line.split()[:2] for line in lines] == [["mail", "2"], ["mail", "1"], ["post", "1"]]
    found = deaths.ok("dead", "--json").lines
    assert [(one["queue"], one["dead"]) for one in found] == [("mail", 2), ("mail", 1), ("post", 1)]
    assert found[2]["reason"] == "no such address"
    deaths.ok("dead", "mail", "--purge", "--yes")
    deaths.ok("dead", "post", "--purge", "--yes")
    assert deaths.ok("dead").out == "No queue has dead messages.\n"


def test_those_that_died_last_are_found_hours_back(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for n in range(4):
        queue.bury(queue.put(f"{n}"))
        stage.clock.advance(5_000)
    found = last(queue.dead._home, 3, lambda _: True)
    assert [row.body for row in found] == [b"3", b"2", b"1"]
