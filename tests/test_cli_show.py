"""`shardq show`, and what `peek --id` and `history` say of where a message is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from shell import Shell, shell

from shardq import connect
from shardq.cli.exits import Exit

if TYPE_CHECKING:
    from shardq import Message


def told(shell: Shell, *arguments: str) -> str:
    """The sentence about a message, in one line."""
    lines = shell.ok("show", *arguments).out.splitlines()
    [state] = [line for line in lines if line.startswith("state ")]
    return state.removeprefix("state").strip()


def put(shell: Shell, *arguments: str) -> dict[str, str]:
    made: dict[str, str] = shell.ok("put", "mail", "x", *arguments, "--json").lines[0]
    return made


def received(shell: Shell, count: int = 1) -> list[Message]:
    with connect(shell.url) as db:
        return db.queue("mail").receive(count, "1h", wait="20s")


def test_show_says_where_a_message_is_and_what_is_known_of_it(shell: Shell) -> None:
    made = put(shell, "--delay", "3h", "--id", "order-7", "--group", "g")
    for named in ("order-7", made["receipt"]):
        lines = shell.ok("show", "mail", named).out.splitlines()
        assert lines[0] == "id        order-7"
        assert re.fullmatch(rf"state     waiting: due {made['due']}, in \d+h(\d+m)?", lines[1])
        assert lines[4:] == [
            f"due       {made['due']}",
            "attempts  0 of 5",
            "priority  0",
            "group     g",
        ]
    [line] = shell.ok("show", "mail", "order-7", "--json").lines
    assert (line["id"], line["state"], line["until"]) == ("order-7", "waiting", made["due"])
    assert line["told"].startswith(f"waiting: due {made['due']}")


def test_show_says_what_to_do_where_nobody_delivers(shell: Shell) -> None:
    made = put(shell)
    lines = shell.ok("show", "mail", made["id"]).out.splitlines()
    assert lines[1].endswith("; nobody consumes queue 'mail' now")
    assert lines[-1] == "Start a consumer, such as `shardq consume mail`."
    shell.ok("queues", "pause", "mail")
    lines = shell.ok("show", "mail", made["id"]).out.splitlines()
    # The command that the last line names works.
    shell.ok(*lines[-1].split("`")[1].split()[1:])
    assert "is paused" not in told(shell, "mail", made["id"])


def test_the_history_of_a_message_that_has_not_ended_says_where_it_is(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d", "--lanes", "1")
    names = ["waiting", "failed", "snoozed", "taken", "behind", "due"]
    for name in names:
        group = ["--group", "g"] if name in {"taken", "behind"} else []
        put(shell, "--id", name, *(["--delay", "20d"] if name == "waiting" else []), *group)
    for one in received(shell, 3):
        with connect(shell.url) as db:
            queue = db.queue("mail")
            if one.id == "failed":
                queue.retry(one, "2d", reason="no route to host")
            elif one.id == "snoozed":
                queue.snooze(one, "40m")
    ends = {name: shell.ok("history", "mail", name).out.rpartition("Z, ")[0] for name in names}
    lines = {name: shell.ok("history", "mail", name, "--json").lines for name in names}
    states = {name: line["state"] for name, [line] in lines.items()}
    assert states == {
        "waiting": "waiting",
        "failed": "back-off",
        "snoozed": "snoozed",
        "taken": "running",
        "behind": "behind",
        "due": "no consumer",
    }
    assert ", waiting: due " in ends["waiting"]
    assert told(shell, "mail", "failed").endswith('with "no route to host"')
    record, failed = shell.ok("history", "mail", "failed").out.splitlines()
    assert record.endswith(', with "no route to host"')
    assert re.fullmatch(r"    attempt 1 failed \S+: no route to host", failed)
    # A list of a span looks no message up.
    assert {line.get("state") for line in shell.ok("history", "mail", "--json").lines} == {None}


def test_show_says_how_a_message_ended_where_a_history_is_kept(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d", "--attempts", "1")
    acked, cancelled, dead = (put(shell, "--delay", "1h")["id"] for _ in range(3))
    with connect(shell.url) as db:
        queue = db.queue("mail")
        for name, end in ((acked, queue.ack), (cancelled, queue.cancel), (dead, queue.bury)):
            found = queue.find(name)
            assert found is not None
            end(found)
    assert told(shell, "mail", acked).startswith("acked 20")
    assert told(shell, "mail", cancelled).startswith("cancelled 20")
    assert re.fullmatch(r"dead since .*, after 0 deliveries: \"buried\"", told(shell, "mail", dead))
    assert "acked 20" in shell.fails(Exit.FAILED, "peek", "mail", "--id", acked)


@pytest.mark.parametrize("history", ["off", "7d"])
def test_an_id_that_is_not_there_is_told_what_was_searched_and_what_to_do(
    shell: Shell, history: str
) -> None:
    shell.ok("queues", "create", "mail", "--history", history)
    line = shell.fails(Exit.FAILED, "show", "mail", "order-8")
    assert line.startswith(
        "shardq: mail has no message 'order-8' (searched: all partitions, the dead"
    )
    assert ("--history 7d`" in line) == (history == "off")
    assert ("check the id" in line) == (history == "7d")
    put(shell, "--id", "order-8", "--delay", "9d")
    shell.ok("show", "mail", "order-8", "--near")


def test_a_receipt_that_cannot_be_used_is_told_why(shell: Shell) -> None:
    receipt = put(shell)["receipt"]
    shell.ok("put", "other", "x")
    line = shell.fails(Exit.RECEIPT_BAD, "show", "other", receipt)
    assert "not one of queue 'other'" in line
    line = shell.fails(Exit.FAILED, "show", "mail", receipt[:-1])
    assert "damaged" in line
    shell.ok("cancel", "mail", receipt)
    line = shell.fails(Exit.FAILED, "show", "mail", receipt)
    assert "it was settled, or it has moved: look it up by its id" in line


def test_where_a_message_is_fits_a_terminal_of_80_columns(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    put(shell, "--id", "order-1", "--group", "g")
    put(shell, "--id", "order-2", "--group", "g")
    [taken] = received(shell)
    with connect(shell.url) as db:
        db.queue("mail").retry(taken, "1h", reason="ValueError: no such user. " * 40)
    for command in (["show"], ["history"]):
        lines = shell.on_terminal(*command, "mail", "order-2")
        assert max(map(len, lines)) <= 80
        assert "order-1" in " ".join(lines)
