"""Messages by their keys at a shell: `cancel`, `move`, `edit` and `show` with --key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from keyed_steps import begin
from shell import Shell, shell

from shardq import connect
from shardq.cli.exits import Exit

if TYPE_CHECKING:
    from shell import Done


def keyed(shell: Shell, *, runs: bool = False, is_dead: bool = False) -> str:
    """Put a message with a key; returns its id."""
    with connect(shell.url) as db:
        queue = db.queue("mail")
        message = queue.put("to ada", key="order-7", delay="1h", headers={"a": "1"})
        if runs:
            begin(queue, "order-7")
        if is_dead:
            queue.bury(message, "no such address")
        return message.id


def test_a_message_is_moved_edited_shown_and_cancelled_by_its_key(shell: Shell) -> None:
    message_id = keyed(shell)
    moved = shell.ok("move", "mail", "--key", "order-7", "--delay", "3h").out
    assert re.fullmatch(r"moved: due 20\S+Z\n", moved)
    assert shell.ok("edit", "mail", "--key", "order-7", "--body", "to bob").out == "edited\n"
    assert shell.ok("edit", "mail", "--key", "order-7", "--header", "b=2").out == "edited\n"
    lines = shell.ok("show", "mail", "--key", "order-7").out.splitlines()
    assert lines[0] == f"id        {message_id}"
    assert lines[1].startswith("state     waiting: due ")
    assert lines[-1] == "key       order-7"
    [line] = shell.ok("show", "mail", "--key", "order-7", "--json").lines
    assert (line["id"], line["state"], line["key"]) == (message_id, "waiting", "order-7")
    assert f"moved: due {line['due']}\n" == moved
    [line] = shell.ok("peek", "mail", "--json").lines
    assert (line["key"], line["body"], line["headers"]) == ("order-7", "to bob", {"b": "2"})
    assert shell.ok("cancel", "mail", "--key", "order-7").out == "cancelled\n"
    assert shell.ok("peek", "mail").out == "mail is empty.\n"


def test_a_new_body_is_read_from_stdin_where_none_is_given(shell: Shell) -> None:
    keyed(shell)
    for given in ([], ["--body", "-", "--header", "b=2"]):
        shell.ok("edit", "mail", "--key", "order-7", *given, stdin=b"to eve\n")
        [line] = shell.ok("peek", "mail", "--json").lines
        assert line["body"] == "to eve\n"
        shell.ok("edit", "mail", "--key", "order-7", "--body", "")


def test_an_empty_stdin_empties_no_body_unless_it_is_asked_for(shell: Shell) -> None:
    keyed(shell)
    done = shell.run("edit", "mail", "--key", "order-7", stdin=b"")
    assert (done.code, "give --body or --header, for stdin is empty." in done.err) == (2, True)
    assert shell.ok("peek", "mail", "--json").lines[0]["body"] == "to ada"
    shell.ok("edit", "mail", "--key", "order-7", "--body", "-", stdin=b"")
    assert shell.ok("peek", "mail", "--json").lines[0]["body"] == ""


def test_a_message_is_shown_whole_by_its_key(shell: Shell) -> None:
    message_id = keyed(shell)
    [line] = shell.ok("peek", "mail", "--key", "order-7", "--json").lines
    shown = (line["id"], line["state"], line["body"], line["headers"])
    assert shown == (message_id, "waiting", "to ada", {"a": "1"})
    lines = shell.ok("peek", "mail", "--key", "order-7").out.splitlines()
    assert {"key       order-7", "header    a=1", "body      to ada"} <= set(lines)
    assert "no message with key 'x'" in shell.fails(Exit.FAILED, "peek", "mail", "--key", "x")
    shell.fails(Exit.USAGE, "peek", "mail", "--key", "x", "--id", "y")


def test_what_is_dead_is_shown_whole_by_another_command(shell: Shell) -> None:
    message_id = keyed(shell, is_dead=True)
    told = shell.fails(Exit.FAILED, "peek", "mail", "--key", "order-7")
    assert f"key 'order-7' is dead: see `shardq dead mail {message_id}`." in told


def test_lists_show_keys_where_there_are_some(shell: Shell) -> None:
    shell.ok("put", "mail", "plain", "--delay", "1h")
    assert " key " not in shell.ok("peek", "mail").out
    keyed(shell)
    heads, *rows = (line.split() for line in shell.ok("peek", "mail").out.splitlines())
    assert heads[-2:] == ["key", "body"]
    assert {row[4] for row in rows} == {"-", "order-7"}
    with connect(shell.url) as db:
        queue = db.queue("mail")
        found = queue.find(key="order-7")
        assert found is not None
        queue.bury(found, "gone")
    [heads, row] = (line.split() for line in shell.ok("dead", "mail").out.splitlines()[:2])
    assert (heads[3], row[3]) == ("key", "order-7")


def test_who_gives_a_key_for_an_id_is_told(shell: Shell) -> None:
    keyed(shell)
    told = shell.fails(Exit.FAILED, "show", "mail", "order-7")
    assert "but one of that key: see `shardq show mail --key order-7`." in told


def test_a_key_that_is_held_is_said_to_be(shell: Shell) -> None:
    with connect(shell.url) as db:
        queue = db.queue("mail")
        queue.put("once", key="order-7", unique_for="1h")
        queue.ack(*queue.receive())
    for command in COMMANDS.values():
        assert "; the key is held until 20" in shell.run(*command).out
    told = shell.fails(Exit.FAILED, "show", "mail", "--key", "order-7")
    assert "no message with key 'order-7'; the key is held until 20" in told


def test_a_delivery_is_written_down_with_its_key(shell: Shell) -> None:
    shell.ok("put", "mail", "a", "--key", "order-7")
    shell.ok("put", "mail", "b")
    lines = shell.ok("consume", "mail", "--until-empty", "--out", "-").lines
    assert {line["body"]: line.get("key") for line in lines} == {"a": "order-7", "b": None}


def test_what_is_moved_tells_programs_its_due(shell: Shell) -> None:
    keyed(shell)
    due = "2099-01-01T00:00:00.000Z"
    [line] = shell.ok("move", "mail", "--key", "order-7", "--due", due, "--json").lines
    assert (line["answer"], line["due"]) == ("done", due)


COMMANDS = {
    "cancel": ["cancel", "mail", "--key", "order-7"],
    "move": ["move", "mail", "--key", "order-7", "--delay", "3h"],
    "edit": ["edit", "mail", "--key", "order-7", "--body", "to bob"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_not_there_is_said_with_a_code_of_its_own(shell: Shell, command: str) -> None:
    shell.ok("queues", "create", "mail")
    done = shell.run(*COMMANDS[command])
    assert done.code == Exit.NOT_THERE
    word = {"cancel": "cancelled", "move": "moved", "edit": "edited"}[command]
    assert done.out == f"not {word}: mail has no message with key order-7\n"
    assert answer(shell.run(*COMMANDS[command], "--json")) == "not there"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_runs_now_is_said_with_a_code_of_its_own(shell: Shell, command: str) -> None:
    keyed(shell, runs=True)
    done = shell.run(*COMMANDS[command])
    assert done.code == Exit.RUNNING
    assert (
        done.out
        == {
            "cancel": "it runs now: its handler is asked to stop, and it is not delivered again\n",
            "move": "not moved: it runs now\n",
            "edit": "not edited: it runs now\n",
        }[command]
    )
    assert answer(shell.run(*COMMANDS[command], "--json")) == "running"


def answer(done: Done) -> str:
    [line] = done.lines
    assert (line["queue"], line["key"]) == ("mail", "order-7")
    return str(line["answer"])


def test_what_was_done_is_told_to_programs(shell: Shell) -> None:
    keyed(shell)
    for command in ("edit", "move", "cancel"):
        assert answer(shell.ok(*COMMANDS[command], "--json")) == "done"
    made = shell.ok("put", "mail", "x", "--delay", "1h", "--json").lines[0]
    told = {"queue": "mail", "id": made["receipt"], "key": None}
    for code, word in ((Exit.OK, "done"), (Exit.RECEIPT_STALE, "not there")):
        done = shell.run("cancel", "mail", "--json", made["receipt"])
        assert (done.code, done.lines) == (code, [told | {"answer": word}])


def test_a_dead_message_is_cancelled_by_its_key_and_told_how_to_be_put_back(shell: Shell) -> None:
    message_id = keyed(shell, is_dead=True)
    done = shell.run(*COMMANDS["move"])
    assert done.code == Exit.NOT_THERE
    said = re.fullmatch(r"not moved: it is dead; `shardq (.*)` puts it back\n", done.out)
    assert said is not None
    assert said[1].split()[:3] == ["dead", "mail", message_id]
    lines = shell.ok("show", "mail", "--key", "order-7").out.splitlines()
    assert "no such address" in lines[1]
    assert shell.ok(*COMMANDS["cancel"]).out == "cancelled\n"
    assert shell.fails(Exit.FAILED, "show", "mail", "--key", "order-7") == (
        "shardq: mail has no message with key 'order-7': it has ended, or was never put. What has "
        "ended is looked up by its id.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["move", "mail", "--delay", "1h"], "give IDs, RECEIPTs, --key or --failed"),
        (["move", "mail", "--key", "a"], "give --due or --delay, one of them."),
        (["move", "mail", "--key", "a", "--due", "x", "--delay", "1h"], "one of them."),
        (["move", "mail", "--key", "a", "--due", "tomorrow"], "is not an ISO 8601 time"),
        (["edit", "mail", "--body", "x"], "give --key"),
        (["edit", "mail", "--key", "a", "--header", "b"], "must be NAME=VALUE"),
        (["cancel", "mail", "b", "--key", "a"], "give IDs, RECEIPTs or --key"),
        (["cancel", "mail", "--key", "a\nb"], "key 'a\\nb' must be 1 to 256 printable"),
        (["cancel", "mail.dead", "--key", "a"], "keeps the dead of 'mail'"),
        (["show", "mail"], "give an ID, a RECEIPT or --key, one of them."),
        (["show", "mail", "b", "--key", "a"], "give an ID, a RECEIPT or --key, one of them."),
    ],
)
def test_wrong_use_is_one_line(shell: Shell, arguments: list[str], told: str) -> None:
    keyed(shell, is_dead=True)
    assert told in shell.fails(Exit.USAGE, *arguments)


def test_an_unknown_queue_is_told(shell: Shell) -> None:
    shell.ok("queues", "create", "mail")
    for command in COMMANDS.values():
        shell.fails(Exit.UNKNOWN_QUEUE, command[0], "mial", *command[2:])


def test_a_command_for_each_message_learns_its_key(shell: Shell) -> None:
    with connect(shell.url) as db:
        db.queue("mail").put("to ada", key="order-7")
        db.queue("mail").put("to bob")
    shell.ok("consume", "mail", "--until-empty", "--exec", "sh -c 'echo \"<$SHARDQ_KEY>\" >> ran'")
    assert sorted((shell.directory / "ran").read_text().split()) == ["<>", "<order-7>"]
