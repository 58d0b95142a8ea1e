"""A producer of a stream: what it has read is stored at once, and when a signal ends it."""

from __future__ import annotations

import json
import os
import signal
import zlib
from typing import TYPE_CHECKING

import pytest
from forked import PIPE
from shell import TIMEOUT_S, Shell, shell

from shardq.cli import produce
from shardq.cli.exits import Exit
from shardq.cli.trace import Timed
from shardq.clock import SystemClock
from shardq.testing import Stage

if TYPE_CHECKING:
    from forked import Process

LINE = b'{"at":"2020-01-01T00:00:00Z"}\n'


def wait_for_one(shell: Shell) -> None:
    """Until a message is stored."""
    clock = SystemClock()
    for _ in range(TIMEOUT_S * 20):
        if shell.ok("peek", "mail", "--json").lines:
            return
        clock.sleep(0.05)
    raise AssertionError("nothing was stored")


def start(shell: Shell, *arguments: str) -> Process:
    shell.ok("queues", "create", "mail")
    return shell.fork("produce", "mail", *arguments, stdin=PIPE)


def ended(process: Process, number: int) -> tuple[int, str, str]:
    with process:
        process.send_signal(number)
        # Its stdin stays open: there is more to come.
        process.wait(TIMEOUT_S)
        assert process.stdout is not None
        assert process.stderr is not None
        return process.returncode, process.stdout.read().decode(), process.stderr.read().decode()


@pytest.mark.parametrize(
    ("source", "number", "code"),
    [("/dev/stdin", signal.SIGTERM, Exit.TERMINATED), ("-", signal.SIGINT, Exit.INTERRUPTED)],
)
def test_a_line_of_a_slow_stream_is_stored_at_once_and_a_signal_says_how_many(
    shell: Shell, source: str, number: signal.Signals, code: Exit
) -> None:
    process = start(shell, "--from", source)
    assert process.stdin is not None
    process.stdin.write(LINE)
    process.stdin.flush()
    wait_for_one(shell)
    told = f"shardq: ended by {number.name}, with every whole line stored that was read.\n"
    assert ended(process, number) == (code, "put 1 message into mail\n", told)


def test_a_line_of_a_slow_gzip_stream_is_stored_at_once(shell: Shell) -> None:
    process = start(shell, "--from", "-")
    assert process.stdin is not None
    packer = zlib.compressobj(wbits=31)
    process.stdin.write(packer.compress(LINE) + packer.flush(zlib.Z_SYNC_FLUSH))
    process.stdin.flush()
    wait_for_one(shell)
    assert ended(process, signal.SIGTERM)[0] == Exit.TERMINATED


def test_a_signal_stores_what_was_read_and_waits_for_its_lead(shell: Shell) -> None:
    process = start(shell, "--from", "-", "--lead", "1s")
    assert process.stdin is not None
    lines = [json.dumps({"at": f"20{year}-01-01T00:00:00Z"}) for year in (20, 21, 22)]
    process.stdin.write("\n".join([*lines, '{"at": "unfini']).encode())
    process.stdin.flush()
    wait_for_one(shell)
    assert ended(process, signal.SIGTERM)[1] == "put 3 messages into mail\n"
    assert [one["body"] for one in shell.ok("peek", "mail", "--json").lines] == lines


def test_a_producer_at_a_rate_says_how_many_it_has_put_when_a_signal_ends_it(shell: Shell) -> None:
    process = start(shell, "--rate", "1", "--delay", "1h")
    wait_for_one(shell)
    code, out, err = ended(process, signal.SIGTERM)
    assert (code, err) == (Exit.TERMINATED, "shardq: ended by SIGTERM.\n")
    stored = len(shell.ok("peek", "mail", "--json").lines)
    assert out.split()[:2] == ["put", str(stored)]


def test_lines_that_come_one_by_one_are_gathered_for_a_fifth_of_a_second() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        writer = produce._ChunkWriter(queue, stage.clock)
        writer.add(Timed(b"a", stage.clock.now_ms()))
        assert writer.gather() > 0
        assert writer.put == 1, "the first one is put at once"
        writer.add(Timed(b"b", stage.clock.now_ms()))
        wait_ms = writer.gather()
        assert 0 < wait_ms <= 200
        assert writer.put == 1
        stage.clock.advance(wait_ms / 1_000)
        writer.gather()
        assert writer.put == 2


def test_a_second_signal_does_what_it_does_elsewhere() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with produce._caught_signals() as caught:
        assert signal.getsignal(signal.SIGTERM) != before
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == before
    assert caught == [signal.SIGTERM]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with produce._caught_signals() as caught:
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught == []
