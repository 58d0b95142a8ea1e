"""`check`, and that commands which look write nothing."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from shell import Shell, shell

import shardq
from shardq.cli import check as judged
from shardq.cli.exits import Exit
from shardq.model.formats import FORMAT
from shardq.stores.sqlite import database


def test_check_tells_of_store_clocks_and_queues(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    findings = {line["what"]: line for line in shell.ok("check", "--json").lines}
    assert findings["store"]["state"] == "ok"
    assert findings["correction"]["state"] == "ok"
    mail = findings["queue mail"]
    assert (mail["level"], mail["state"], mail["ready"]) == ("warning", "no consumers", 1)
    assert "`shardq consume mail`" in mail["advice"]
    assert "every partition visited" in shell.ok("check", "--all", "mail").out


def test_check_fails_where_due_messages_wait_for_longer_than_allowed(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    assert shell.ok("check", "mail").out.splitlines()[-1] == "1 warning."
    done = shell.run("check", "mail", "--max-lag", "0s")
    assert done.code == Exit.FAILED
    assert done.out.splitlines()[-1] == "1 wrong."
    shell.ok("queues", "pause", "mail")
    assert "paused: " in shell.ok("check", "mail", "--max-lag", "0s").out


def test_check_keeps_numbers_with_their_units_and_dims_no_advice(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    for columns in range(60, 80, 2):
        text = "\n".join(shell.on_terminal("check", "mail", columns=columns))
        of_queue = text.partition("queue mail")[2].splitlines()
        assert "Start a consumer" in text
        assert "\x1b[2m" not in text
        assert not [line for line in of_queue if re.search(r"\d\s*$", line)], text


def test_check_counts_the_dead_with_their_queue(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--attempts", "1")
    shell.ok("put", "mail", "x")
    shell.ok("consume", "mail", "--until-empty", "--exec", "false", code=Exit.DIED)
    findings = {line["what"]: line for line in shell.ok("check", "--json").lines}
    assert "queue mail.dead" not in findings
    mail = findings["queue mail"]
    assert (mail["level"], mail["state"], mail["dead"]) == ("warning", "dead letters", 1)
    assert "`shardq dead mail`" in mail["advice"]
    assert shell.run("check", "--max-dead", "1").code == Exit.OK
    assert shell.run("check", "--max-dead", "0").code == Exit.FAILED
    assert shell.run("check", "mail.dead", "--max-dead", "0").code == Exit.FAILED


def test_a_queue_that_needs_a_newer_release_is_named_and_hides_no_other(shell: Shell) -> None:
    for name in ("fax", "mail", "post"):
        shell.ok("queues", "create", name)
    shell.ok("queues", "drop", "fax", "--yes")
    with sqlite3.connect(shell.directory / "jobs.db") as other:
        needy = "json_set(settings, '$.needs', 99)"
        other.execute(f"UPDATE queues SET settings = {needy} WHERE name != 'mail'")
    other.close()
    text = (
        f"queue 'post' has settings that need a newer shardq (format 99, this one has {FORMAT}); "
        "upgrade shardq here."
    )
    done = shell.run("check", "--json")
    assert done.code == Exit.FAILED
    found = {line["what"]: line for line in done.lines if line["what"].startswith("queue ")}
    assert [(what, one["state"]) for what, one in found.items()] == [
        ("queue mail", "ok"), ("queue post", "too new"),
    ]  # fmt: skip
    assert (found["queue post"]["level"], found["queue post"]["text"]) == ("wrong", text)
    for command in (["queues"], ["observe", "--once"]):
        lines = shell.ok(*command).out.splitlines()
        assert any(line.startswith("mail ") for line in lines)
        [line] = [line for line in lines if line.startswith("post")]
        assert "needs a newer shardq" in line
        told = shell.ok(*command, "--json").lines
        assert [line["queue"] for line in told] == ["mail", "post"]
        assert told[1] == {"queue": "post", "error": text}
    assert text in shell.fails(Exit.SCHEMA_NEWER, "check", "post")


def write_stats(shell: Shell, *rows: tuple[str, int, str, str]) -> None:
    with sqlite3.connect(shell.directory / "jobs.db") as other:
        other.executemany("INSERT OR REPLACE INTO stats VALUES (?, ?, ?, ?)", rows)
    other.close()


def test_a_queue_whose_totals_are_damaged_is_named_hides_no_other_and_is_mended(
    shell: Shell,
) -> None:
    shell.ok("put", "mail", "x", "--delay", "3h")
    shell.ok("put", "post", "x")
    write_stats(shell, ("mail", 7, "web:1", "{"))
    done = shell.run("check", "--json")
    assert done.code == Exit.FAILED
    found = {line["what"]: line for line in done.lines if line["what"].startswith("queue ")}
    assert {what: one["state"] for what, one in found.items()} == {
        "queue mail": "damaged", "queue post": "no consumers",
    }  # fmt: skip
    text = found["queue mail"]["text"]
    assert "web:1" in text
    assert "`shardq check --all mail`" in text
    for command in (["queues"], ["observe", "--once"]):
        lines = shell.ok(*command).out.splitlines()
        assert any(line.startswith("post ") for line in lines)
        assert any(line.startswith("mail") and "damaged" in line for line in lines)
        assert {"queue": "mail", "error": text} in shell.ok(*command, "--json").lines
        done = shell.ok(*command)
        assert "`shardq check`" in done.out + done.err
    assert text in shell.fails(Exit.STORE_CORRUPT, "check", "mail")
    visited = shell.ok("check", "--all", "mail", "--json").lines[-1]
    assert (visited["state"], visited["level"]) == ("counts off", "warning")
    assert "1 row of its totals could not be read" in visited["text"]
    mail = [line for line in shell.ok("check", "mail", "--json").lines if "ready" in line]
    assert [(one["state"], one["waiting"]) for one in mail] == [("no consumers", 1)]


def test_what_a_process_did_before_it_was_killed_is_told_and_mended(shell: Shell) -> None:
    shell.ok("put", "mail", "x", "--delay", "3h")
    told = '{"put":4,"at_ms":1700000000000,"open":1}'
    write_stats(shell, ("mail", 7, "web:1", told))
    found = {line["state"]: line for line in shell.ok("check", "mail", "--json").lines}
    off = found["counts off"]
    assert off["level"] == "warning"
    assert off["text"].startswith("web:1 ended or was stopped at 2023-11-14T22:13:20Z, before")
    assert "`shardq check --all mail`" in off["advice"]
    visited = shell.ok("check", "--all", "mail").out
    assert "totals mended by -4" in visited
    assert "counts off" not in visited
    again = shell.ok("check", "--all", "mail").out
    assert "totals right" in again
    assert "counts off" not in again


def test_lateness_is_told_of_five_minutes_and_of_the_day(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    shell.ok("consume", "mail", "--until-empty", "--exec", "true")
    names = {"late_p50_ms", "late_p99_ms", "late_day_p50_ms", "late_day_p99_ms"}
    for command in (["queues"], ["observe", "--once"], ["check", "mail"]):
        [line] = [one for one in shell.ok(*command, "--json").lines if "ready" in one]
        assert all(line[name] > 0 for name in names)
        assert line["late_p50_ms"] <= line["late_p99_ms"]
    text = shell.ok("check", "mail").out
    assert re.search(r"late p50/p99: \d+ms/\d+ms in 5 min, \d+ms/\d+ms in the day", text)
    assert "in the day" in shell.ok("queues").out


def test_check_needs_no_driver_on_sqlite(shell: Shell) -> None:
    hidden = (
        "import sys, importlib.metadata as metadata\n"
        "sys.modules['cassandra'] = None\n"
        "found = metadata.Distribution.discover\n"
        "def discover(cls, *, context=None, **more):\n"
        "    is_driver = more.get('name') == 'cassandra-driver'\n"
        "    return iter([]) if is_driver else found(context=context, **more)\n"
        "metadata.Distribution.discover = classmethod(discover)\n"
        "from shardq.cli import main; main(['check'])\n"
    )
    shell.ok("put", "mail", "x", "--delay", "1h")
    done = subprocess.run(
        [sys.executable, "-c", hidden],
        cwd=shell.directory,
        env={**os.environ, "SHARDQ_STORE": shell.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "cassandra-driver" not in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["check"], ["check", "mail"], ["observe", "--once"], ["queues"], ["queues", "show", "mail"],
        ["peek", "mail"], ["dead", "mail"], ["dead", "post"], ["schedule", "list"],
        ["schedule", "show", "mail", "a"], ["schedule", "preview", "mail", "a"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_look_writes_nothing(shell: Shell, command: list[str]) -> None:
    shell.ok("queues", "create", "mail", "--attempts", "1", "--history", "7d")
    shell.ok("put", "mail", "dies")
    shell.ok("consume", "mail", "--until-empty", "--exec", "false", code=Exit.DIED)
    shell.ok("put", "mail", "waits", "--delay", "1h")
    shell.ok("queues", "create", "post")
    shell.ok("schedule", "add", "mail", "a", "go", "--every", "1h")
    with sqlite3.connect(shell.directory / "jobs.db") as other:
        before = other.execute("PRAGMA data_version").fetchone()
        shell.ok(*command)
        assert other.execute("PRAGMA data_version").fetchone() == before
    other.close()


def test_a_log_that_another_program_keeps_large_is_told_and_then_shortened(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOG_BYTES", 1 << 20)
    file = shell.directory / "jobs.db"
    with (
        shardq.connect(f"{shell.url}?synchronous=normal") as db,
        closing(sqlite3.connect(file, isolation_level=None)) as other,
    ):
        mail = db.queue("mail", lanes=1)
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM messages").fetchone()
        mail.put_many([bytes(1 << 20)] * 5)
        store = {line["what"]: line for line in shell.ok("check", "--json").lines}["store"]
        assert (store["level"], store["state"]) == ("warning", "log large")
        assert store["log_bytes"] > 5 << 20
        other.execute("COMMIT")
        mail.put_many(["checkpointed"] * 2)
        mail.put("written from the beginning of the log")
        store = {line["what"]: line for line in shell.ok("check", "--json").lines}["store"]
        assert (store["level"], store["state"]) == ("ok", "ok")
        assert store["log_bytes"] <= 1 << 20
