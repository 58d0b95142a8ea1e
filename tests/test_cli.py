"""The command line, through its real entry point: `python -m shardq` in a process of its own."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click
import pytest
from proofs.verdict import read_deliveries
from shell import TIMEOUT_S, Done, Shell, shell

import shardq
from shardq import consumer, errors
from shardq.cli import consume, deliveries, options, produce, trace
from shardq.cli.exits import Exit, exit_of
from shardq.cli.screen import span
from shardq.clock import SystemClock
from shardq.model.settings import CHOICES
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that is bound and does not listen: connections to it are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


# Messages ------------------------------------------------------------------


def test_a_body_from_stdin_keeps_its_bytes(shell: Shell) -> None:
    shell.ok("put", "mail", stdin=b"\x00\xff\n")
    shell.ok("put", "mail", "-", "--delay", "1h", stdin=b"later")
    now, later = shell.ok("peek", "mail", "--json").lines
    assert (now["body"], now["encoding"]) == ("AP8K", "base64")
    assert later["body"] == "later"


def test_put_takes_due_headers_group_and_id(shell: Shell) -> None:
    told = shell.ok(
        "put", "mail", "x", "--due", "2099-01-01T09:00:00+01:00", "--header", "kind=a=b",
        "--group", "g", "--id", "order-7", "--json",
    ).lines[0]  # fmt: skip
    assert len(told.pop("receipt")) > 60
    assert told == {
        "id": "order-7",
        "queue": "mail",
        "due": "2099-01-01T08:00:00.000Z",
        "priority": 0,
        "group": "g",
        "key": None,
        "headers": {"kind": "a=b"},
    }


def test_a_message_is_looked_up_and_cancelled_by_its_id(shell: Shell) -> None:
    shell.ok("put", "mail", "hello\nworld", "--delay", "1h", "--id", "order-7", "--header", "a=b")
    shell.ok("put", "mail", "y", "--delay", "1h")
    shown = shell.ok("peek", "mail", "--id", "order-7").out
    assert "header    a=b\n" in shown
    assert "state     waiting: due " in shown
    assert "body      hello\n          world\n" in shown
    found = shell.ok("peek", "mail", "--id", "order-7", "--json").lines[0]
    assert found["body"] == "hello\nworld"
    assert "one of them" in shell.fails(Exit.USAGE, "cancel", "mail")
    assert shell.ok("cancel", "mail", "order-7").out == "cancelled\n"
    assert shell.run("cancel", "mail", "order-7").code == Exit.RECEIPT_STALE
    assert "order-7" in shell.fails(Exit.FAILED, "peek", "mail", "--id", "order-7")
    assert len(shell.ok("peek", "mail", "--json").lines) == 1


def test_ids_are_never_cut_and_bodies_are(shell: Shell) -> None:
    name = "order-" * 40
    shell.ok("put", "mail", "x" * 500, "--id", name, "--delay", "1h")
    line = shell.ok("peek", "mail").out.splitlines()[1]
    assert f" {name} " in line
    assert line.endswith("…")


def test_numbers_for_people_have_thousands_separators(shell: Shell) -> None:
    done = shell.ok("produce", "mail", "--rate", "1e6", "--count", "1200", "--delay", "1h")
    assert "put 1,200 messages" in done.out
    assert "1,200" in shell.ok("queues").out


# Produce ------------------------------------------------------------------


def test_a_trace_is_replayed_with_its_gaps_divided(shell: Shell) -> None:
    times = ["2026-01-01T00:00:00+01:00", "2026-01-01T01:00:00+01:00", "2026-01-01T03:00:00+01:00"]
    lines = [json.dumps({"when": at, "n": n}) for n, at in enumerate(times)]
    (shell.directory / "t.jsonl").write_text("\n".join(lines))
    shell.ok(
        "produce", "mail", "--from", "t.jsonl", "--due-field", "when", "--speed", "3600",
        "--start", "2099-01-01T00:00:00Z",
    )  # fmt: skip
    peeked = shell.ok("peek", "mail", "--json").lines
    assert [line["body"] for line in peeked] == lines
    assert [line["due"][11:] for line in peeked] == [
        "00:00:00.000Z",
        "00:00:01.000Z",
        "00:00:03.000Z",
    ]


def test_parts_share_a_trace_without_overlap(shell: Shell) -> None:
    lines = [json.dumps({"at": f"2026-01-01T00:00:0{n}Z"}) for n in range(5)]
    (shell.directory / "t.jsonl").write_text("\n".join(lines))
    for part in ("1/2", "2/2"):
        produced = ["produce", "mail", "--from", "t.jsonl", "--start", "2099-01-01T00:00:00Z"]
        shell.ok(*produced, "--part", part)
    assert [line["body"] for line in shell.ok("peek", "mail", "--json").lines] == lines


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_from_stdin_is_replayed_as_from_a_file(
    shell: Shell, pack: Callable[[bytes], bytes]
) -> None:
    line = '{"at":"2026-01-01T00:00:00Z"}'
    arguments = ["produce", "mail", "--from", "-", "--start", "2099-01-01T00:00:00Z"]
    shell.ok("queues", "create", "mail", "--bands", "2")
    shell.ok(
        *arguments, "--priority", "1", "--group", "g", "--header", "a=b",
        stdin=pack(line.encode() + b"\r\n  \n"),
    )  # fmt: skip
    [put] = shell.ok("peek", "mail", "--json").lines
    assert (put["body"], put["due"]) == (line, "2099-01-01T00:00:00.000Z")
    assert (put["priority"], put["group"], put["headers"]) == (1, "g", {"a": "b"})


def test_the_lines_before_a_bad_one_are_put_and_counted(shell: Shell) -> None:
    lines = [json.dumps({"at": f"2099-01-01T00:00:0{n}Z"}) for n in range(3)]
    (shell.directory / "t.jsonl").write_text("\n".join([*lines, "{}", lines[0]]))
    told = shell.fails(Exit.USAGE, "produce", "mail", "--from", "t.jsonl")
    assert "line 4 has no field 'at'" in told
    assert "Stored before that: 3 messages." in told
    assert [one["body"] for one in shell.ok("peek", "mail", "--json").lines] == lines


def test_a_lead_tells_of_lines_that_are_out_of_order(shell: Shell) -> None:
    times = ["00:00:00", "01:00:00", "00:59:59", "00:30:00", "00:00:00"]
    lines = [json.dumps({"at": f"2026-01-01T{at}Z"}) for at in times]
    (shell.directory / "t.jsonl").write_text("\n".join(lines))
    done = shell.ok(
        "produce", "mail", "--from", "t.jsonl", "--start", "2026-01-01T00:00:00Z", "--lead", "1s",
        "--json",
    )  # fmt: skip
    assert (done.lines[0]["put"], done.lines[0]["put_late"]) == (5, 2)
    assert done.err.startswith("shardq: 2 lines came after a line that is due later by more than")
    assert "up to 59m59s late" in done.err


# Consume ------------------------------------------------------------------


def test_several_queues_are_consumed_by_one_process(shell: Shell) -> None:
    for queue, body in (("mail", "a"), ("post", "b"), ("mail", "c")):
        shell.ok("put", queue, body)
    done = shell.ok("consume", "mail", "post", "--until-empty", "--json")
    found = sorted((line["queue"], line["body"]) for line in done.lines)
    assert found == [("mail", "a"), ("mail", "c"), ("post", "b")]
    assert done.err == "shardq: handled 2 messages of mail, 1 message of post\n"


def test_one_signal_ends_the_consumers_of_all_queues(shell: Shell) -> None:
    shell.ok("put", "post", "now")
    with shell.fork("consume", "mail", "post") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert err.decode().splitlines() == [
        "shardq: queue mail did not exist and was created.",
        "shardq: handled 0 messages of mail, 1 message of post",
    ]


def test_a_consumer_of_a_paused_queue_says_what_it_waits_for(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    shell.ok("queues", "pause", "mail")
    with shell.fork("consume", "mail", "--until-empty") as process:
        assert process.stderr is not None
        told = process.stderr.readline().decode()
        assert "queue mail is paused: its messages wait for `shardq queues resume mail`" in told
        shell.ok("queues", "resume", "mail")
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert (out, err) == (b"x\n", b"shardq: handled 1 message of mail\n")


def test_the_command_line_and_the_api_take_the_same_numbers() -> None:
    bounds = {one.name: one for one in consume.consume.params}
    for name, most in (("threads", consumer.THREADS_MAX), ("prefetch", consumer.PREFETCH_MAX)):
        kind = bounds[name].type
        assert isinstance(kind, options.WholeNumber)
        assert (kind.least, kind.most) == (1, most)
    taken = inspect.signature(consumer.Consumer).parameters
    for name in ("threads", "prefetch", "deadline"):
        assert bounds[name].default == taken[name].default


@pytest.mark.parametrize("out", ["-", "/dev/null", "pipe"])
def test_out_may_be_stdout_a_device_or_a_pipe(shell: Shell, out: str) -> None:
    shell.ok("put", "mail", "x")
    os.mkfifo(shell.directory / "pipe")
    reader = os.open(shell.directory / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = shell.ok("consume", "mail", "--until-empty", "--out", out)
        written = done.out or os.read(reader, 10_000).decode()
    finally:
        os.close(reader)
    assert (trace.TraceLine.from_json(written).body == b"x") if out != "/dev/null" else not written
    assert shell.ok("peek", "mail", "--json").lines == []


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("pipe", "pipe: nobody reads this pipe; start its reader first."),
        ("none/out.jsonl", "none/out.jsonl: No such file or directory."),
        ("/dev/full", "/dev/full: No space left on device."),
    ],
)
def test_an_out_that_cannot_be_written_is_a_file_error_and_spends_no_attempt(
    shell: Shell, out: str, said: str
) -> None:
    shell.ok("put", "mail", "x")
    os.mkfifo(shell.directory / "pipe")
    assert said in shell.fails(Exit.FILE, "consume", "mail", "--until-empty", "--out", out)
    left = shell.ok("peek", "mail", "--json").lines
    assert [(line["body"], line["attempts"]) for line in left] == [("x", 0)]


def test_out_holds_each_delivery_and_ends_a_torn_line(shell: Shell) -> None:
    out = shell.directory / "out.jsonl"
    out.write_text('{"torn')
    shell.ok("put", "mail", "message 0")
    shell.ok("produce", "mail", "--rate", "1e6", "--count", "300")
    shell.ok("consume", "mail", "--until-empty", "--out", "out.jsonl")
    found, torn = read_deliveries(out)
    assert torn == 1
    assert {one.body for one in found} == {b"message 0"} | {str(n).encode() for n in range(1, 301)}
    assert len(found) == 301
    assert all(one.delivered_ms >= one.due_ms for one in found)
    assert all(one.at_us >= one.due_ms * 1_000 for one in found)


@pytest.mark.parametrize("name", ["👩\u200d🚀-7", "❤\ufe0f", "e\u0301", "🏴\U000e0067\U000e007f"])
def test_an_id_of_emoji_is_printed_as_it_was_given_and_cancelled(shell: Shell, name: str) -> None:
    put = shell.ok("put", "mail", name, "--id", name, "--group", name, "--delay", "1h", "--json")
    assert put.lines[0]["id"] == name
    assert [(m["id"], m["group"]) for m in shell.ok("peek", "mail", "--json").lines] == [
        (name, name)
    ]
    assert shell.ok("peek", "mail").out.count(name) == 2
    assert shell.ok("cancel", "mail", put.lines[0]["receipt"]).out == "cancelled\n"


def test_exec_acks_on_0_and_retries_and_buries_on_anything_else(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--attempts", "2", "--backoff", "100ms")
    shell.ok("put", "mail", "good", "--header", "kind=a")
    shell.ok("put", "mail", "bad")
    script = (
        'read body; echo "$body $SHARDQ_ATTEMPT $SHARDQ_QUEUE $SHARDQ_HEADERS" >> ran; '
        'test "$body" = good'
    )
    command = f"sh -c '{script}'"
    done = shell.ok("consume", "mail", "--until-empty", "--exec", command, code=Exit.DIED)
    assert done.err.endswith("shardq: handled 1 message of mail (1 died: shardq dead mail)\n")
    ran = sorted((shell.directory / "ran").read_text().splitlines())
    assert ran == ["bad 1 mail {}", "bad 2 mail {}", 'good 1 mail {"kind": "a"}']
    dead = shell.ok("dead", "mail", "--json").lines
    assert [(line["body"], line["attempts"]) for line in dead] == [("bad", 2)]
    assert "exit code 1" in dead[0]["headers"]["shardq-reason"]
    assert dead[0]["last_error"] == dead[0]["headers"]["shardq-reason"]
    assert re.search(r"2  \S+ +exit code 1 of \S+sh +bad\n", shell.ok("dead", "mail").out)


def test_exec_is_not_a_shell(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    shell.ok("consume", "mail", "--until-empty", "--exec", "touch $(id) ;echo")
    assert (shell.directory / "$(id)").exists()


def test_sigterm_ends_a_consumer_cleanly(shell: Shell) -> None:
    shell.ok("put", "mail", "now")
    shell.ok("put", "mail", "later", "--delay", "1h")
    with shell.start("consume", "mail") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert err.decode() == "shardq: handled 1 message of mail\n"
    assert [line["attempts"] for line in shell.ok("peek", "mail", "--json").lines] == [0]


# Queues ------------------------------------------------------------------


def test_a_queue_is_created_altered_paused_resumed_and_dropped(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--lanes", "2", "--bands", "3")
    shell.ok("queues", "alter", "mail", "--lanes", "8", "--attempts", "9")
    shell.ok("queues", "pause", "mail")
    told = shell.ok("queues", "--json").lines[0]
    values = [told["settings"][name]["value"] for name in ("lanes", "attempts")]
    assert (values, told["paused"]) == ([8, 9], True)
    shell.ok("queues", "resume", "mail")
    assert shell.ok("queues", "--json").lines[0]["paused"] is False
    for named in (["--group", "a*"], ["--task", "shop.*"], ["--key", "order-7"]):
        shell.ok("queues", "pause", "mail", *named)
    facts = shell.ok("queues", "show", "mail").out
    assert "not paused\n  paused: group a*, key order-7, task shop.*\n" in facts
    assert shell.run("queues", "pause", "mail", "--key", "a", "--task", "b").code == Exit.USAGE
    assert shell.ok("queues", "resume", "mail", "--task", "shop.*").out == (
        "mail: resumed task shop.*\n"
    )
    shell.ok("queues", "drop", "mail", "--yes")
    assert shell.ok("queues", "--json").lines == []


def test_a_list_and_a_look_at_one_queue_name_the_same_things(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--hold", "90s", "--history", "7d")
    shell.ok("put", "mail", "x")
    [listed] = shell.ok("queues", "--json").lines
    [shown] = shell.ok("queues", "show", "mail", "--json").lines
    late = dict.fromkeys(("late_p50_ms", "late_p99_ms", "late_day_p50_ms", "late_day_p99_ms"))
    assert listed == {**shown, "ready": 1, "waiting": 0, "in_flight": 0, "schedules": 0, **late}


def test_show_has_every_setting_with_its_default(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--lanes", "8", "--bands", "3", "--hold", "90s")
    shown = shell.ok("queues", "show", "mail", "--json").lines[0]
    assert {name.replace("-", "_") for name in shown["settings"]} == set(CHOICES)
    assert shown["settings"]["lanes"] == {"value": 8, "default": "auto", "fixed": False}
    assert shown["settings"]["bands"] == {"value": 3, "default": 3, "fixed": True}
    assert shown["settings"]["hold"] == {"value": "1m30s", "default": "30s", "fixed": False}
    assert (shown["paused"], shown["purged_before"], shown["history_from"]) == (False, None, None)
    shell.ok("queues", "pause", "mail")
    told = shell.ok("queues", "show", "mail").out
    assert "paused" in told
    for option in ("group-lanes", "backoff-max", "visibility"):
        assert f"\n{option} " in told
    assert "fixed" in told


def test_a_purge_asks_and_deletes_what_was_put_before(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    assert "--yes" in shell.fails(Exit.USAGE, "queues", "purge", "mail")
    shell.ok("queues", "purge", "mail", "--yes")
    assert shell.ok("consume", "mail", "--until-empty", "--json").lines == []


# Store ------------------------------------------------------------------


def test_init_may_be_repeated(shell: Shell) -> None:
    assert shell.ok("init").out == shell.ok("init").out


@pytest.mark.parametrize("kind", ["sqlite", "cassandra"])
def test_schema_connects_to_nothing(shell: Shell, kind: str) -> None:
    done = shell.run("schema", kind, url="")
    assert done.code == 0
    assert "CREATE TABLE" in done.out
    assert not list(shell.directory.iterdir())


def test_observe_once_shows_queues_and_json_is_for_programs(shell: Shell) -> None:
    shell.ok("produce", "mail", "--rate", "1e6", "--count", "1500", "--delay", "2m")
    assert "1,500" in shell.ok("observe", "--once").out
    view = shell.ok("observe", "mail", "--once", "--json").lines[0]
    assert (view["queue"], view["waiting"], view["lag_ms"]) == ("mail", 1500, 0)
    assert sum(count for _, count in view["forecast"]) == 1500


def test_observe_prints_json_at_every_look_where_the_output_is_no_terminal(shell: Shell) -> None:
    shell.ok("queues", "create", "mail")
    with shell.fork("observe", "--json", "--every", "100ms") as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline())["queue"] for _ in range(3)]
        process.send_signal(signal.SIGINT)
    assert looks == ["mail"] * 3


def test_a_store_without_queues_is_named(shell: Shell) -> None:
    shell.ok("init")
    for command in (["queues"], ["observe", "--once"]):
        out = shell.ok(*command).out
        assert "jobs.db has no queues yet" in out
        assert out.count("\n") == 1


def test_the_store_may_be_given_before_or_after_the_command(shell: Shell) -> None:
    url = f"sqlite:///{shell.directory}/other.db"
    assert shell.run("--store", url, "put", "mail", "x", url="").code == 0
    assert shell.run("queues", "--store", url, url="").out.count("mail") == 1
    assert shell.run("queues", "create", "post", "--store", url, url="").code == 0
    assert shell.run("--store", url, "queues", "pause", "post", url="").code == 0


# Bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "arguments"),
    [
        ("time zone", ["put", "mail", "x", "--due", "2027-01-01T09:00:00"]),
        ("ISO 8601", ["put", "mail", "x", "--due", "tomorrow"]),
        ("1970", ["put", "mail", "x", "--due", "1969-12-31T00:00:00Z"]),
        ("delay", ["put", "mail", "x", "--delay=-5s"]),
        ("100 years", ["put", "mail", "x", "--delay", "99999999999w"]),
        ("delay", ["put", "mail", "x", "--delay", "inf"]),
        ("not both", ["put", "mail", "x", "--delay", "5s", "--due", "2027-01-01T09:00:00Z"]),
        ("A-Z a-z", ["put", "bad name", "x"]),
        ("A-Z a-z", ["put", "", "x"]),
        ("A-Z a-z", ["put", "q" * 101, "x"]),
        ("A-Z a-z", ["consume", "mail'; DROP TABLE messages; --"]),
        ("printable", ["put", "mail", "x", "--id", "a\nb"]),
        ("printable", ["put", "mail", "x", "--group", ""]),
        ("NAME=VALUE", ["put", "mail", "x", "--header", "kind"]),
        ("shardq-", ["put", "mail", "x", "--header", "shardq-reason=x"]),
        ("priority", ["put", "mail", "x", "--priority", "3"]),
        ("lanes", ["queues", "create", "mail", "--lanes", "0"]),
        ("bands", ["queues", "create", "mail", "--bands", "17"]),
        ("give at least one", ["queues", "alter", "mail"]),
        ("No such command 'puts'; did you mean 'shardq put'?", ["puts"]),
        ("did you mean 'shardq queues'?", ["quues"]),
        ("did you mean 'shardq work'?", ["worker"]),
        ("did you mean 'shardq queues purge'?", ["purge", "mail"]),
        ("did you mean 'shardq queues purge'?", ["queues", "purg", "mail"]),
        ("did you mean 'shardq dead QUEUE --redrive'?", ["redrive", "mail"]),
        ("No such command 'xyzzy'. See", ["xyzzy"]),
        ("No such option", ["put", "mail", "x", "--dely", "5s"]),
        ("argument (order-7). See '", ["edit", "mail", "order-7", "--body", "x"]),
        ("Missing argument", ["put"]),
        ("does not exist", ["produce", "mail", "--from", "none.jsonl"]),
        ("one of them", ["produce", "mail"]),
        ("more than 0", ["produce", "mail", "--rate", "0"]),
        ("more than 0", ["produce", "mail", "--rate", "nan"]),
        ("--part", ["produce", "mail", "--from", "/dev/null", "--part", "3/2"]),
        ("--lead goes with --from", ["produce", "mail", "--rate", "1", "--lead", "1s"]),
        ("--delay goes with --rate", ["produce", "mail", "--from", "-", "--delay", "1s"]),
        ("given twice", ["consume", "mail", "post", "mail"]),
        ("is a directory", ["consume", "mail", "--out", "."]),
        ("is a directory", ["produce", "mail", "--from", "."]),
        ("no program", ["consume", "mail", "--exec", "no-such-program-anywhere"]),
        ("cannot be split", ["consume", "mail", "--exec", "echo 'x"]),
        ("--all needs", ["check", "--all"]),
        ("a whole number of 1 to 512", ["consume", "mail", "--threads", "0"]),
        ("bands=3, which is fixed", ["put", "mail", "x", "--priority", "3"]),
        ("not both", ["dead", "mail", "--purge", "--redrive"]),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(
    shell: Shell, told: str, arguments: list[str]
) -> None:
    assert told in shell.fails(Exit.USAGE, *arguments)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://localhost",
        "jobs.db",
        "http://[",
        "cassandra://127.0.0.1/Bad-Name",
        "cassandra://",
    ],
)
def test_a_url_that_names_no_store_is_wrong_usage(shell: Shell, url: str) -> None:
    told = shell.fails(Exit.USAGE, "put", "mail", "x", url=url)
    assert any(word in told for word in ("sqlite", "keyspace", "host", "store url"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["peek", "mial"], ["observe", "mial", "--once"], ["dead", "mial"],
        ["cancel", "mial", "x"], ["check", "mial"], ["queues", "alter", "mial", "--lanes", "2"],
        ["queues", "pause", "mial"], ["queues", "purge", "mial", "--yes"],
        ["queues", "drop", "mial", "--yes"],
    ],
)  # fmt: skip
def test_an_unknown_queue_has_an_exit_code_of_its_own(shell: Shell, arguments: list[str]) -> None:
    shell.ok("init")
    assert "mial" in shell.fails(Exit.UNKNOWN_QUEUE, *arguments)


@pytest.mark.parametrize("command", ["check", "queues", "peek mail", "observe", "queues drop mail"])
def test_a_store_that_is_not_there_is_not_made_by_who_looks(shell: Shell, command: str) -> None:
    told = shell.fails(Exit.STORE_UNAVAILABLE, *command.split())
    assert "there is no file" in told
    assert "shardq init" in told
    assert list(shell.directory.iterdir()) == []


def test_many_messages_are_cancelled_at_once_by_ids_and_receipts(shell: Shell) -> None:
    receipt = shell.ok("put", "mail", "x", "--delay", "1h", "--json").lines[0]["receipt"]
    for name in ("a", "b"):
        shell.ok("put", "mail", "x", "--delay", "1h", "--id", name)
    damaged = receipt[:-1] + ("A" if receipt[-1] != "A" else "B")
    done = shell.run("cancel", "mail", "a", "nobody", receipt, damaged, "b")
    assert done.code == Exit.RECEIPT_STALE
    assert done.err.startswith(f"{damaged}: ")
    assert done.out.splitlines() == [
        "a: cancelled",
        "nobody: nothing to cancel: it has ended, is being delivered, or was never there",
        f"{receipt}: cancelled",
        "b: cancelled",
    ]
    assert shell.ok("peek", "mail", "--json").lines == []


def test_a_message_in_back_off_is_let_run_now_and_keeps_its_error(shell: Shell) -> None:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail")
        for n in range(2):
            queue.put("x", id=f"job-{n}")
        for message in queue.receive(2):
            queue.retry(message, delay="1h", reason="refused")
        queue.put("x", id="later", delay="1h")
        done = shell.run("move", "mail", "job-0", "nobody", "job-1", "--delay", "0s")
        assert done.code == Exit.NOT_THERE
        told = [line.split(" due ")[0] for line in done.out.splitlines()]
        assert told == [
            "job-0: moved:", "nobody: not moved: mail has no message nobody", "job-1: moved:"
        ]  # fmt: skip
        got = queue.receive(3, wait="1s")
        assert sorted((one.id, one.last_error, one.attempt) for one in got) == [
            ("job-0", "refused", 2), ("job-1", "refused", 2)
        ]  # fmt: skip
        assert shell.run("move", "mail", "job-0", "--delay", "0s").code == Exit.RUNNING


def test_all_that_wait_for_their_next_attempt_run_now_or_those_of_a_task_alone(
    shell: Shell,
) -> None:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail", bands=1)
        for n, task in enumerate(["a", "a", "b"]):
            queue.put("{}", id=f"job-{n}", key="k" if n == 1 else None, headers={"task": task})
        for message in queue.receive(3):
            queue.retry(message, delay="1h", reason="refused")
        queue.put("x", id="waits", delay="1h")
        queue.put("x", id="snoozed")
        [message] = queue.receive(1)
        queue.snooze(message, "1h")
        done = shell.ok("move", "mail", "--failed", "--task", "a", "--delay", "0s", "--json")
        told = sorted((line["id"], line["answer"]) for line in done.lines)
        assert told == [("job-0", "done"), ("job-1", "done")]
        assert sorted(one.id for one in queue.receive(5, wait="1s")) == ["job-0", "job-1"]
        done = shell.ok("move", "mail", "--failed", "--delay", "5m")
        assert [line.split(": due")[0] for line in done.out.splitlines()] == ["job-2: moved"]
        # To later, where it still waits: it is moved once alone.
        done = shell.ok("move", "mail", "--failed", "--delay", "2h")
        assert len(done.out.splitlines()) == 1
        done = shell.ok("move", "mail", "--failed", "--task", "c", "--delay", "0s")
        assert done.err == "shardq: no message of mail waits for its next attempt.\n"
        with_ids = shell.fails(Exit.USAGE, "move", "mail", "job-2", "--failed", "--delay", "0s")
        assert "give IDs, RECEIPTs, --key or --failed, one of them." in with_ids
        assert "--task needs --failed" in shell.fails(
            Exit.USAGE, "move", "mail", "job-2", "--task", "a", "--delay", "0s"
        )


def test_a_cassandra_that_is_down_is_unavailable(shell: Shell, free_port: int) -> None:
    url = f"cassandra://127.0.0.1:{free_port}/jobs"
    for command in (["put", "mail", "x"], ["init"], ["check"]):
        assert "127.0.0.1" in shell.fails(Exit.STORE_UNAVAILABLE, *command, url=url)


def test_no_command_shows_the_help(shell: Shell) -> None:
    done = shell.run()
    assert done.code == Exit.USAGE
    assert "consume" in done.err


def test_a_closed_pipe_is_no_error_text(shell: Shell) -> None:
    shell.ok("produce", "mail", "--rate", "1e6", "--count", "2000", "--delay", "1h")
    with shell.fork("peek", "mail", "-n", "2000", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(TIMEOUT_S) == Exit.PIPE_CLOSED
    assert err == b""


# Without a process ------------------------------------------------------------------


def test_every_error_has_an_exit_code() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
    assert {exit_of(kind("x")) for kind in kinds} == set(Exit) - {
        Exit.OK, Exit.FAILED, Exit.FILE, Exit.UNBALANCED, Exit.COMMAND,
        Exit.RUNNING, Exit.INTERRUPTED, Exit.PIPE_CLOSED, Exit.TERMINATED, Exit.DIED,
    }  # fmt: skip


@pytest.mark.parametrize("applied", [True, False])
def test_an_interrupted_write_is_repeated_as_it_was(*, applied: bool) -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        writer = produce._ChunkWriter(queue, stage.clock)
        stage.faults.fail("insert", times=3, applied=applied)
        writer.write({"body": str(number)} for number in range(10))
        assert (writer.put, writer.repeats) == (10, 3)
        assert sorted(one.text for one in queue.peek(limit=100)) == [str(n) for n in range(10)]


def test_a_store_that_stays_away_ends_a_producer_and_it_says_how_far_it_came() -> None:
    with Stage() as stage:
        writer = produce._ChunkWriter(stage.connect().queue("mail"), stage.clock)
        writer.write([{"body": "x"}])
        stage.faults.fail("insert", times=1_000)
        with pytest.raises(errors.StoreUnavailable) as caught:
            writer.write([{"body": "y"}])
        assert caught.value.__notes__ == ["Stored before that: 1 message."]


def test_a_bad_item_in_a_chunk_does_not_uncount_those_before_it() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        writer = produce._ChunkWriter(queue, stage.clock)
        writer.write([{"body": "a"}])
        with pytest.raises(errors.BadBody) as caught:
            writer.write([{"body": "b"}, {"body": "c"}, {"body": 7}, {"body": "d"}])
        writer.tell(caught.value)
        assert caught.value.__notes__ == ["Stored before that: 3 messages."]
        assert sorted(one.text for one in queue.peek()) == ["a", "b", "c"]


def test_a_closed_stdin_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(errors.UsageError, match="stdin is closed"):
        options.stdin("the body")


def test_lines_of_many_threads_are_all_written(tmp_path: Path) -> None:
    out = deliveries.OutFile(tmp_path / "out")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(out.write, [str(n).encode() for n in range(500)]))
    out.close()
    assert sorted((tmp_path / "out").read_text().split(), key=int) == [str(n) for n in range(500)]


def test_a_pipe_whose_reader_has_gone_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    out = deliveries.OutFile(tmp_path / "pipe")
    out.write(b"read")
    os.close(reader)
    with pytest.raises(OSError, match="nobody reads this pipe") as caught:
        out.write(b"unread")
    assert caught.value.filename == str(tmp_path / "pipe")
    assert not isinstance(caught.value, BrokenPipeError), "which would be taken for stdout's"
    out.close()


def test_delivered_is_the_corrected_clock_and_at_the_machines(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    before_us = SystemClock().now_us() - 1_000
    line = shell.ok("consume", "mail", "--until-empty", "--json").out
    one = trace.TraceLine.from_json(line)
    assert before_us < one.at_us < SystemClock().now_us() + 1_000
    assert abs(one.delivered_ms - one.at_us / 1_000) < 1_000


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (59_999, "1m"),
        (3_600_000, "1h"),
        (86_400_000, "1d"),
    ],
)
def test_spans_are_short(milliseconds: int, shown: str) -> None:
    assert span(milliseconds) == shown


@pytest.mark.parametrize("kind", [(), ("cassandra",)])
def test_the_printed_schema_is_that_of_the_url(shell: Shell, kind: tuple[str, ...]) -> None:
    url = "cassandra://db1,db2/jobs?dc=west&replication=5"
    first, use, *_ = shell.run("schema", *kind, url=url).out.split("\n\n")
    assert first == (
        "CREATE KEYSPACE IF NOT EXISTS jobs WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'west': 5};"
    )
    assert use == "USE jobs;"
    assert shell.run("schema", "sqlite", url=url).out == shell.ok("schema").out
    assert "EXISTS shardq WITH" in shell.ok("schema", "cassandra").out
