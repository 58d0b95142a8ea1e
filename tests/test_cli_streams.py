"""Streams that are closed, full, or do not block: every byte is written, or nothing is acked."""

from __future__ import annotations

import json
import os
import select
import sqlite3
import threading
from typing import TYPE_CHECKING

import pytest
from forked import CLOSED
from shell import TIMEOUT_S, Done, Shell, shell

from shardq.cli import streams
from shardq.cli.exits import Exit

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from forked import Process

BODY = "x" * 1_000


def ended(process: subprocess.Popen[bytes] | Process) -> Done:
    with process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    return Done(process.returncode, (out or b"").decode(), err.decode())


def fill(shell: Shell, count: int) -> None:
    shell.ok("produce", "mail", "--rate", "1e6", "--count", str(count), "--body", BODY)


def left(shell: Shell) -> list[int]:
    """The attempts of each message that is there."""
    return [one["attempts"] for one in shell.ok("peek", "mail", "-n", "10000", "--json").lines]


@pytest.fixture
def pipe() -> tuple[int, int]:
    """A pipe of which neither end blocks."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def test_a_write_to_a_pipe_that_does_not_block_is_whole(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    given = os.urandom(1 << 20)
    with (
        streams.BlockingFile(reader, "rb", "it") as source,
        streams.BlockingFile(writer, "wb", "it") as target,
    ):
        taken: list[bytes] = []
        thread = threading.Thread(target=lambda: taken.append(source.read()))
        thread.start()
        assert target.write(given) == len(given)
        target.close()
        thread.join(TIMEOUT_S)
    assert taken == [given]


def test_bodies_on_a_pipe_that_does_not_block_are_all_written(
    shell: Shell, pipe: tuple[int, int]
) -> None:
    fill(shell, 200)
    reader, writer = pipe
    os.set_blocking(reader, True)
    process = shell.start("consume", "mail", "--until-empty", unbuffered=True, stdout=writer)
    # Nothing is read until no more can be written.
    room = select.poll()
    room.register(writer, select.POLLOUT)
    while room.poll(0) and process.poll() is None:
        select.select([], [], [], 0.01)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        lines = source.read().splitlines()
    assert ended(process).code == Exit.OK
    assert lines == [BODY.encode()] * 200
    assert left(shell) == []


def test_a_peek_on_a_pipe_that_does_not_block_is_all_written(
    shell: Shell, pipe: tuple[int, int]
) -> None:
    fill(shell, 200)
    reader, writer = pipe
    os.set_blocking(reader, True)
    process = shell.fork("peek", "mail", "-n", "200", "--json", unbuffered=True, stdout=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        source.peek(1)
        lines = source.read().splitlines()
    assert ended(process).code == Exit.OK
    assert len(lines) == 200


def test_a_body_from_a_pipe_that_does_not_block_is_read_to_its_end(
    shell: Shell, pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    process = shell.fork("put", "mail", stdin=reader)
    os.close(reader)
    with streams.BlockingFile(writer, "wb", "it") as target:
        target.write(BODY.encode() * 200)
    assert ended(process).code == Exit.OK
    [stored] = shell.ok("peek", "mail", "--json").lines
    assert stored["body"] == BODY * 200


@pytest.mark.parametrize("arguments", [[], ["--out", "-"], ["--out", "out"]])
def test_what_a_full_disk_does_not_take_is_not_acked(shell: Shell, arguments: list[str]) -> None:
    fill(shell, 20)
    # The largest size of a file, as on a nearly full disk: only a part of the last line fits.
    largest = 4 << 20
    with open(shell.directory / "out", "wb") as out:
        out.truncate(largest - 5_530)
        limited = (
            f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest}, {largest}))"
        )
        out.seek(0, os.SEEK_END)
        command = ["consume", "mail", "--until-empty", *arguments]
        done = ended(shell.fork(*command, unbuffered=True, before=limited, stdout=out))
    whole = (shell.directory / "out").read_bytes().lstrip(b"\0").count(b"\n")
    assert done.code == Exit.FILE
    assert done.err.startswith(f"shardq: {'out' if 'out' in arguments else 'stdout'}: File too")
    assert done.err.count("\n") == 1
    assert 20 - whole <= len(left(shell)) <= 20
    assert set(left(shell)) == {0}
    assert f"Handled before that: {20 - len(left(shell))} message" in done.err
    assert shell.ok("dead", "mail", "--json").lines == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_put_whose_id_cannot_be_printed_says_on_stderr_that_it_is_stored(shell: Shell) -> None:
    done = ended(shell.start("put", "mail", "x", redirected="> /dev/full"))
    [stored] = shell.ok("peek", "mail", "--json").lines
    assert done.code == Exit.FILE
    assert done.err == (
        f"shardq: stdout: No space left on device. The message is stored, as {stored['id']}.\n"
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_what_cannot_be_said_on_stderr_changes_nothing(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    with open("/dev/full", "wb") as full:
        done = ended(shell.fork("consume", "mail", "--until-empty", stderr=full))
    assert (done.code, done.out) == (Exit.OK, "x\n")


def test_a_consumer_whose_reader_goes_ends_in_silence_and_buries_nothing(shell: Shell) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    shell.ok("queues", "create", "mail", "--attempts", "1")
    shell.ok("put", "mail", "x")
    process = shell.fork("consume", "mail", "--until-empty", stdout=writer)
    os.close(writer)
    assert ended(process) == Done(Exit.PIPE_CLOSED, "", "")
    assert left(shell) == [0]


def test_a_help_whose_reader_has_gone_is_no_error(shell: Shell) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = shell.start("--help", stdout=writer)
    os.close(writer)
    assert ended(process) == Done(Exit.PIPE_CLOSED, "", "")


# Closed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        (["put", "mail", "hello"], ["stdout"]),
        (["put", "mail", "hello"], ["stderr"]),
        (["put", "mail", "hello"], ["stdin", "stdout", "stderr"]),
        (["peek", "mail"], ["stdout"]),
        (["queues"], ["stdout", "stderr"]),
    ],
)
def test_a_command_without_streams_does_its_work(
    shell: Shell, arguments: list[str], closed: list[str]
) -> None:
    shell.ok("put", "mail", "first")
    if len(closed) == 3:
        # A new Python starts without the three descriptors, and must cope with that too.
        done = ended(shell.start(*arguments, redirected="<&- >&- 2>&-"))
    else:
        done = ended(shell.fork(*arguments, **dict.fromkeys(closed, CLOSED)))
    assert (done.code, done.err) == (Exit.OK, "")
    stored = [one["body"] for one in shell.ok("peek", "mail", "--json").lines]
    assert stored == ["first", *arguments[2:]]
    # The database was not opened in the place of a stream, and printed into.
    with sqlite3.connect(shell.directory / "jobs.db") as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    file.close()


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--out", "-"], ["--out", "/dev/stdout"]])
def test_a_consumer_whose_stdout_is_closed_ends_with_one_line(
    shell: Shell, arguments: list[str]
) -> None:
    shell.ok("queues", "create", "mail", "--attempts", "1")
    shell.ok("put", "mail", "x")
    done = ended(shell.fork("consume", "mail", "--until-empty", *arguments, stdout=CLOSED))
    assert done.code == Exit.USAGE
    assert done.err.startswith("shardq: stdout is closed, so ")
    assert done.err.count("\n") == 1
    assert left(shell) == [0]


def test_a_consumer_that_runs_a_command_needs_no_stdout(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    command = ["--until-empty", "--exec", "echo told", "--out", "out"]
    done = ended(shell.fork("consume", "mail", *command, stdin=CLOSED, stdout=CLOSED))
    assert (done.code, done.err) == (Exit.OK, "shardq: handled 1 message of mail\n")
    [line] = (shell.directory / "out").read_text().splitlines()
    assert json.loads(line)["body"] == "x"


@pytest.mark.parametrize(
    "arguments", [["put", "mail"], ["produce", "mail", "--from", "-"], ["queues", "purge", "mail"]]
)
def test_a_command_that_reads_from_a_closed_stdin_ends_with_one_line(
    shell: Shell, arguments: list[str]
) -> None:
    shell.ok("queues", "create", "mail")
    done = ended(shell.fork(*arguments, stdin=CLOSED))
    assert done.code == Exit.USAGE
    assert done.err.startswith("shardq: ")
    assert done.err.count("\n") == 1
