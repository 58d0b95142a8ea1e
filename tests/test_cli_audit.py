"""`shardq audit` and `shardq history`, through the real entry point."""

from __future__ import annotations

import re
import sqlite3

import pytest
from shell import Shell, shell

from shardq.cli import screen
from shardq.cli.exits import Exit


def test_an_audit_that_balances_says_so_in_a_sentence(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    shell.ok("produce", "mail", "--rate", "1e6", "--count", "1200", "--delay", "1h")
    window, line = shell.ok("audit", "mail").out.splitlines()
    assert re.fullmatch(r"What entered from \S+Z to \S+Z:", window)
    assert line == "mail balances: 1,200 put = 1,200 waiting."
    receipt = shell.ok("put", "mail", "x", "--delay", "1h", "--json").lines[0]["receipt"]
    shell.ok("cancel", "mail", receipt)
    told = shell.ok("audit", "mail", "--since", "1h", "--json").lines
    assert told[-1]["balances"] is True
    assert (told[-1]["put"], told[-1]["cancelled"], told[-1]["waiting"]) == (1_201, 1, 1_200)
    assert sum(line["put"] for line in told if "minute" in line) == 1_201
    assert "waiting" in shell.ok("audit", "mail", "--minutes").out


def test_an_audit_that_does_not_balance_ends_with_2_and_names_the_messages(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    for n in range(5):
        shell.ok("put", "mail", "x", "--delay", "1h", "--id", f"order-{n}")
    damage(shell, "DELETE FROM messages WHERE name IN ('order-1', 'order-3')")
    done = shell.run("audit", "mail")
    assert (done.code, done.err) == (Exit.UNBALANCED, "")
    *named, _, line, why = done.out.splitlines()
    assert [text.split(",")[0] for text in named] == ["lost: order-1", "lost: order-3"]
    assert line == "mail does not balance: 5 put = 3 waiting + 2 lost."
    assert "`shardq history`" in why
    told = shell.run("audit", "mail", "--json")
    assert told.code == Exit.UNBALANCED
    assert [one["id"] for one in told.lines if "misfit" in one] == ["order-1", "order-3"]
    assert told.lines[-1]["lost"] == 2


def test_a_history_names_the_tasks_of_jobs(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    job = shell.ok("put", "mail", "--task", "app.welcome", "--delay", "1h").out.strip()
    other = shell.ok("put", "mail", "x", "--delay", "1h").out.strip()
    lines = sorted(shell.ok("history", "mail").out.splitlines(), key=len)
    assert lines[0].startswith(f"{other}: entered ")
    assert lines[1].startswith(f"{job}: app.welcome, entered ")
    told = {line["id"]: line["task"] for line in shell.ok("history", "mail", "--json").lines}
    assert told == {job: "app.welcome", other: None}


def test_one_audit_is_of_a_queue_and_of_its_dead_letters(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d", "--attempts", "1")
    *_, line = shell.ok("audit", "mail", "--dead").out.splitlines()
    assert line == "mail.dead: nothing had died by then."
    assert [told["queue"] for told in shell.ok("audit", "mail", "--dead", "--json").lines] == [
        "mail"
    ]
    shell.ok("put", "mail", "x", "--id", "order-1")
    shell.ok("consume", "mail", "--until-empty", "--exec", "false", code=Exit.DIED)
    hint = "Its dead letters are audited as well by `shardq audit mail --dead`.\n"
    assert shell.ok("audit", "mail").out.endswith(hint)
    lines = shell.ok("audit", "mail", "--dead").out.splitlines()
    assert lines[1::2] == [
        "mail balances: 1 put = 1 dead.",
        "mail.dead balances: 1 put = 1 waiting.",
    ]
    damage(shell, "DELETE FROM messages WHERE queue = 'mail.dead'")
    assert shell.ok("audit", "mail").out
    done = shell.run("audit", "mail", "--dead")
    assert (done.code, done.err) == (Exit.UNBALANCED, "")
    assert "lost: order-1, " in done.out
    assert "\nmail.dead does not balance: 1 put = 0 + 1 lost.\n" in done.out
    told = shell.run("audit", "mail", "--dead", "--json")
    assert told.code == Exit.UNBALANCED
    assert [one["queue"] for one in told.lines if "misfit" in one] == ["mail.dead"]
    assert [one["balances"] for one in told.lines if "balances" in one] == [True, False]
    assert "name the queue it serves" in shell.fails(Exit.USAGE, "audit", "mail.dead", "--dead")


def test_an_end_that_is_not_known_ends_with_2_and_other_damage_in_a_line(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    made = shell.ok("put", "mail", "x", "--delay", "1h", "--id", "order-7", "--json").lines[0]
    shell.ok("cancel", "mail", made["receipt"])
    damage(shell, "UPDATE history SET fate = 'bo\ngus'")
    done = shell.run("audit", "mail")
    assert (done.code, done.err) == (Exit.UNBALANCED, "")
    first, _, line, why = done.out.splitlines()
    assert first.startswith("unknown: order-7, entered ")
    assert first.endswith("Z, bo gus")
    assert line == "mail does not balance: 1 put = 0 + 1 of an unknown end."
    assert "a newer shardq" in why
    assert ", bo gus 20" in shell.ok("history", "mail", "order-7").out
    damage(shell, "UPDATE history SET ended = 'x'")
    for command in ("audit", "history"):
        told = shell.fails(Exit.STORE_CORRUPT, command, "mail")
        assert told.startswith("shardq: the history of queue 'mail' is damaged: ended of message ")
        assert told.endswith("is 'x'; delete that row, or restore the store from a copy.\n")


def damage(shell: Shell, statement: str) -> None:
    connection = sqlite3.connect(f"{shell.directory}/jobs.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_the_history_says_what_became_of_a_message(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    shell.ok("put", "mail", "x", "--delay", "1h", "--id", "order-7")
    made = shell.ok("put", "mail", "y", "--delay", "1h", "--json").lines[0]
    shell.ok("cancel", "mail", made["receipt"])
    line = shell.ok("history", "mail", made["id"]).out
    assert line.startswith(f"{made['id']}: entered ")
    assert ", cancelled " in line
    assert "after 0 deliveries" in line
    [told] = shell.ok("history", "mail", "order-7", "--since", "1h", "--json").lines
    assert (told["id"], told["fate"], told["ended"]) == ("order-7", None, None)
    assert told["due"] > told["entered"]
    assert re.search(r", waiting: due \S+Z, in \S.*\n$", shell.ok("history", "mail", "order-7").out)
    # A list of a span looks no message up.
    assert shell.ok("history", "mail").out.splitlines()[0].endswith(", not ended")
    assert len(shell.ok("history", "mail", "--json").lines) == 2
    nobody = shell.run("history", "mail", "order-8")
    assert (nobody.code, nobody.out, nobody.err) == (
        Exit.FAILED,
        "",
        "shardq: mail has recorded nothing of message 'order-8'; a message that had this for a key "
        "and has ended is found by its id.\n",
    )
    shell.ok("queues", "create", "other")
    how = "`shardq queues alter other --history 7d`"
    assert how in shell.fails(Exit.HISTORY_OFF, "history", "other")


def test_the_history_of_a_key_is_that_of_the_message_that_has_it(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    made = shell.ok("put", "mail", "x", "--key", "order-7", "--delay", "1h").out.strip()
    assert shell.ok("history", "mail", "order-7").out.startswith(f"{made}: entered ")


def test_the_history_breaks_no_time_and_no_name_in_a_terminal_of_80_columns(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    made = shell.ok("put", "mail", "x").out.strip()
    shell.ok("consume", "mail", "--until-empty")
    lines = shell.on_terminal("history", "mail")
    assert re.fullmatch(rf"{made}: entered \S+Z,", lines[0])
    assert re.fullmatch(r"    due \S+Z, acked \S+Z", lines[1])
    assert re.fullmatch(r"    after 1 delivery by \S+", lines[2])
    assert max(map(len, lines)) <= 80
    assert shell.ok("history", "mail").out == " ".join(line.strip() for line in lines) + "\n"


def test_the_longest_id_is_told_whole(shell: Shell) -> None:
    longest = "\N{FIRE}" * 256
    shell.ok("queues", "create", "mail", "--history", "7d")
    shell.ok("put", "mail", "x", "--delay", "1h", "--id", longest)
    assert shell.ok("history", "mail").out.startswith(f"{longest}: entered ")
    damage(shell, "DELETE FROM messages")
    assert f"lost: {longest}, entered " in shell.run("audit", "mail").out


def test_the_balance_of_each_minute_fits_a_terminal_of_80_columns(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "WIDE", 80)
    shell.ok("queues", "create", "mail", "--history", "7d")
    shell.ok("put", "mail", "x")
    made = shell.ok("put", "mail", "y", "--delay", "1h", "--json").lines[0]
    shell.ok("cancel", "mail", made["receipt"])
    shell.ok("consume", "mail", "--until-empty")
    shell.ok("put", "mail", "z", "--delay", "1h")
    head, *minutes = shell.ok("audit", "mail", "--minutes").out.splitlines()
    assert head.split() == ["minute", "put", "acked", "cancelled", "waiting"]
    counts = [line.split() for line in minutes if re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ ", line)]
    assert [sum(int(row[n]) for row in counts) for n in range(1, 5)] == [3, 1, 1, 1]


def test_a_history_that_has_gone_balances_nothing(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    shell.ok("put", "mail", "x", "--delay", "1h")
    damage(shell, "DELETE FROM history")
    _, line, why = shell.ok("audit", "mail").out.splitlines()[-3:]
    assert line == (
        "mail: 1 without a record of the put, and none with one; "
        "there is nothing that could be audited."
    )
    assert "may have been lost" in why
    told = shell.ok("audit", "mail", "--json").lines[-1]
    assert (told["empty"], told["unrecorded"]) == (True, 1)


def test_the_history_says_what_a_purge_has_reached(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--history", "7d")
    shell.ok("put", "mail", "x", "--delay", "1h")
    shell.ok("queues", "purge", "mail", "--yes")
    assert shell.ok("history", "mail").out.endswith(", purged: is deleted when it comes due\n")


def test_an_audit_without_a_history_is_told_how_to_keep_one(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    told = shell.fails(Exit.HISTORY_OFF, "audit", "mail")
    # The command that the error names works.
    altered = shell.ok(*told.split("`")[1].split()[1:]).out
    assert re.search(r"its history is whole for what enters from \S+Z on\n$", altered)
    *_, line = shell.ok("audit", "mail").out.splitlines()
    assert line.startswith("mail: its history is whole only for what enters from 20")
    assert line.endswith("Z on; there is nothing that could be audited.")
    [told] = shell.ok("audit", "mail", "--json").lines
    assert (told["put"], told["balances"], told["empty"]) == (0, True, True)
    assert "nothing of 'mail' has died" in shell.fails(Exit.UNKNOWN_QUEUE, "audit", "mail.dead")
    for command in ("audit", "history"):
        empty = (command, "mail", "--since", "1h", "--until", "2h")
        assert "nothing lies between" in shell.fails(Exit.USAGE, *empty)
        told = shell.fails(Exit.USAGE, command, "mail", "--since", "yesterday")
        assert told.startswith("shardq: since 'yesterday' is not")
        assert "'1h'" in told
    shell.ok("queues", "alter", "mail", "--history", "off")
    shell.fails(Exit.HISTORY_OFF, "audit", "mail")
    shell.fails(Exit.UNKNOWN_QUEUE, "audit", "nobody")
