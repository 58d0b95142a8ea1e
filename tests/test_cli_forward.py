"""`shardq forward`, and settings of a queue that say what becomes of its messages."""

from __future__ import annotations

from shell import Shell, shell

from shardq.cli.exits import Exit


def test_messages_are_forwarded_in_bulk_and_by_their_ids(shell: Shell) -> None:
    shell.ok("queues", "create", "to")
    for n in range(5):
        shell.ok("put", "mail", f"{n}", "--id", f"id-{n}")
    assert shell.ok("forward", "mail", "id-0", "--to", "to").out == "moved\n"
    assert (
        shell.ok("forward", "mail", "--to", "to", "--limit", "2").out == "moved 2 messages to to\n"
    )
    told = shell.ok("forward", "mail", "--to", "to", "--rate", "1000").out
    assert told == "moved 2 messages to to\n"
    assert len(shell.ok("peek", "to", "--json").lines) == 5
    done = shell.run("forward", "mail", "none", "--to", "to")
    assert (done.code, done.out) == (Exit.NOT_THERE, "not moved: mail has no message none\n")
    assert "cannot be forwarded to itself" in shell.fails(
        Exit.USAGE, "forward", "mail", "--to", "mail"
    )
    assert "no queue 'nowhere'" in shell.fails(
        Exit.UNKNOWN_QUEUE, "forward", "mail", "--to", "nowhere"
    )
    assert "IDs go with --to alone" in shell.fails(Exit.USAGE, "forward", "mail", "id-1")


def test_dead_letters_of_a_shared_queue_are_listed_and_put_back_by_their_own(shell: Shell) -> None:
    shell.ok("queues", "create", "one", "--dead", "dlq", "--attempts", "1")
    shell.ok("queues", "create", "two", "--dead", "dlq", "--attempts", "1")
    for queue in ("one", "two"):
        shell.ok("put", queue, f"of {queue}", "--id", queue)
        assert shell.run("consume", queue, "--exec", "false", "--until-empty").code == Exit.DIED
    assert [line["id"] for line in shell.ok("dead", "one", "--json").lines] == ["one"]
    assert "not in a queue of its own: dead is 'dlq'" in shell.fails(
        Exit.USAGE, "dead", "one", "--purge", "--yes"
    )
    assert shell.ok("dead", "one", "--redrive").out == "put 1 message back into one\n"
    assert shell.ok("forward", "dlq").out == "moved 1 message back\n"


def test_settings_of_a_queue_s_end_are_shown_and_changed(shell: Shell) -> None:
    given = {"dead": "off", "retention": "4d", "delay": "10s", "depth-max": "100"}
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    shell.ok("queues", "create", "mail", *options)
    shown = shell.ok("queues", "show", "mail", "--json").lines[0]["settings"]
    assert {name: shown[name.replace("-", "_")]["value"] for name in given} == {
        **given,
        "depth-max": 100,
    }
    assert shown["dead"]["default"] == "QUEUE.dead"
    shell.ok("queues", "alter", "mail", "--depth-max", "off", "--retention", "off")
    shown = shell.ok("queues", "show", "mail", "--json").lines[0]["settings"]
    assert (shown["depth_max"]["value"], shown["retention"]["value"]) == ("off", "off")
    assert "circle" in shell.fails(Exit.USAGE, "queues", "alter", "mail", "--dead", "mail")
    shell.ok("queues", "alter", "mail", "--depth-max", "1", "--delay", "0s")
    shell.ok("put", "mail", "x", "--expires", "1h")
    assert "is full" in shell.fails(Exit.QUEUE_FULL, "put", "mail", "y")
