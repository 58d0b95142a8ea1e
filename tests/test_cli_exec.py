"""Commands of `consume --exec`: those that cannot be started, and those that outlive a stop."""

from __future__ import annotations

import gc
import os
import resource
import select
import shlex
import shutil
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from shell import TIMEOUT_S, Shell, shell

import shardq
from shardq.cli import command, tails
from shardq.cli.command import CannotStart, CommandError, MessageProgram
from shardq.cli.exits import Exit
from shardq.clock import SystemClock
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forked import Process

    from shardq.model.message import Message


@pytest.fixture
def message() -> Iterator[Message]:
    with Stage() as stage:
        yield stage.connect().queue("mail").put("x")


def script(directory: Path, text: str) -> str:
    path = directory / "work.sh"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def wait_for(path: Path) -> int:
    """The number that a command writes into a file once it runs."""
    clock = SystemClock()
    for _ in range(TIMEOUT_S * 100):
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return int(text)
        clock.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


# A command that cannot start ----------------------------------------------------------------------


def test_a_command_that_is_removed_meanwhile_ends_the_consumer_and_spends_no_attempt(
    shell: Shell,
) -> None:
    shell.ok("queues", "create", "mail", "--attempts", "1")
    for _ in range(4):
        shell.ok("put", "mail", "x")
    script(shell.directory, '#!/bin/sh\nrm "$0"\n')
    told = shell.fails(
        Exit.COMMAND, "consume", "mail", "--until-empty", "--threads", "1", "--exec", "./work.sh"
    )
    assert "./work.sh cannot be started: No such file or directory" in told
    assert "Handled before that: 1 message of mail; the others are delivered again." in told
    left = shell.ok("peek", "mail", "--json").lines
    assert [one["attempts"] for one in left] == [0] * 3
    assert shell.ok("dead", "mail", "--json").lines == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cat > ran\n", "Exec format error; a script has to begin with a line such as #!/bin/sh"),
        ("#!/no/such/shell\n", "the interpreter that its first line names is missing"),
    ],
)
def test_a_script_that_nothing_can_run_is_no_message_s_failure(
    tmp_path: Path, message: Message, text: str, told: str
) -> None:
    with pytest.raises(CannotStart, match=told):
        MessageProgram(script(tmp_path, text))(message)


def test_a_file_that_is_not_executable_is_told_from_one_that_is_not_there(shell: Shell) -> None:
    (shell.directory / "work.sh").write_text("#!/bin/sh\n")
    told = shell.fails(Exit.USAGE, "consume", "mail", "--exec", "./work.sh")
    assert "'./work.sh' is not executable" in told


def lowest_free() -> int:
    """The next descriptor of this process: with a limit of one more a pipe, which is two, fails."""
    # Close now what an earlier test has left, so that no descriptor becomes free meanwhile.
    gc.collect()
    lowest = os.dup(0)
    os.close(lowest)
    return lowest


def test_a_command_waits_until_there_are_files_to_start_it_with(
    shell: Shell, message: Message, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = MessageProgram("true")
    failures: list[Exception] = []

    def run() -> None:
        try:
            ran(message)
        except (CannotStart, CommandError) as error:
            failures.append(error)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    thread = threading.Thread(target=run)
    lowest = lowest_free()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        thread.start()
        while not ran._has_said and thread.is_alive():
            thread.join(0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    thread.join(TIMEOUT_S)
    assert failures == []
    assert "Too many open files. It is tried again" in capsys.readouterr().err


def test_a_command_that_never_starts_is_not_waited_for_forever(
    message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_AGAIN_S", 0.001)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = lowest_free()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, hard))
    try:
        with pytest.raises(CannotStart, match="Too many open files"):
            MessageProgram("true")(message)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux alone")
def test_a_consumer_that_may_not_start_all_its_threads_ends_with_one_line(shell: Shell) -> None:
    shell.ok("put", "mail", "hello")
    # Some of the threads have room, 256 MB each, and not all. With less for each a thread could be
    # made that has no memory left to begin with, and Python waits for its beginning forever.
    limited = (
        "import resource, threading; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30));"
        "threading.stack_size(256 << 20)"
    )
    arguments = ["consume", "mail", "--threads", "512", "--exec", "true"]
    with shell.fork(*arguments, before=limited) as process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == Exit.ERROR
    assert err.count(b"\n") == 1
    assert b"cannot start its 512 threads: can't start new thread; lower" in err
    assert shell.ok("dead", "mail", "--json").lines == []


def test_an_environment_too_large_is_a_message_s_failure_only_by_its_own_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More than any system takes.
    monkeypatch.setenv("LARGE", "x" * (1 << 21))
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        small, large = queue.put("x"), queue.put("x", headers={"a": "b" * 10_000})
    with pytest.raises(CannotStart, match="Argument list too long"):
        MessageProgram("true")(small)
    with pytest.raises(CommandError, match="Argument list too long"):
        MessageProgram("true")(large)


def test_a_shell_s_own_failure_to_find_a_command_is_named_in_the_reason(message: Message) -> None:
    with pytest.raises(CommandError, match=r"exit code 127 of .*sh \(a shell: command not found\)"):
        MessageProgram("sh -c './none 2>&-'")(message)


# What a command says of its failure ---------------------------------------------------------------


def why(text: str, message: Message) -> str:
    """The reason of a command that fails: a script for `sh -c`."""
    ran = MessageProgram(shlex.join(["sh", "-c", text]))
    with pytest.raises(CommandError) as caught:
        ran(message)
    ran.end()
    return str(caught.value)


def wait_for_no_reader() -> None:
    """Wait until no thread reads what commands write to stderr."""
    clock = SystemClock()
    for _ in range(TIMEOUT_S * 100):
        if not any(one.name == "shardq-exec-stderr" for one in threading.enumerate()):
            return
        clock.sleep(0.01)
    raise AssertionError("a thread still reads stderr")


def test_a_failed_attempt_says_what_its_command_wrote_last_and_it_is_passed_on(
    message: Message, capfd: pytest.CaptureFixture[str]
) -> None:
    told = why("echo sending >&2; echo connection refused >&2; exit 3", message)
    last = "connection refused"
    assert told == f"exit code 3 of {shutil.which('sh')}: {last}\nsending\n{last}"
    assert capfd.readouterr().err == "sending\nconnection refused\n"
    wait_for_no_reader()


def test_what_a_command_writes_is_passed_on_while_it_runs(
    tmp_path: Path, message: Message, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "go")
    go = os.open(tmp_path / "go", os.O_RDWR)
    ran = MessageProgram(
        shlex.join(["sh", "-c", f"exec 3< {tmp_path}/go; echo sending >&2; read x <&3"])
    )
    thread = threading.Thread(target=ran, args=(message,))
    thread.start()
    clock, err = SystemClock(), ""
    while not err and thread.is_alive():
        clock.sleep(0.01)
        err += capfd.readouterr().err
    assert err == "sending\n"
    assert ran.running == [message.id]
    os.write(go, b"end\n")
    thread.join(TIMEOUT_S)
    wait_for_no_reader()
    os.close(go)


def test_much_on_stderr_is_passed_on_whole_and_its_end_is_the_reason(
    message: Message, capfd: pytest.CaptureFixture[str]
) -> None:
    told = why("seq 200000 >&2; exit 1", message)
    assert len(told) <= 1_000
    assert ": 200000\n" in told
    assert told.endswith("\n199999\n200000")
    assert len(told.splitlines()) > 100
    assert capfd.readouterr().err.splitlines() == [str(n) for n in range(1, 200_001)]


def test_a_command_that_fails_in_silence_has_its_exit_code_alone(message: Message) -> None:
    assert why("exit 3", message) == f"exit code 3 of {shutil.which('sh')}"
    assert why("exec 2>&-; exit 3", message) == f"exit code 3 of {shutil.which('sh')}"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"caf\xe9 \x00\x01\n", "caf\ufffd"),
        (b"10 %\r20 %\r\x1b[1;31mrefused\x1b[0m\r\n\n", "refused"),
        (b"\x1b]0;title\x07one\n\n  two\n", "one\n\n  two"),
        (b"x" * 50 + b"\nend", "end"),
        (b"begin" + b"y" * 30, "y" * 30),
        (b"\n\x00\n", ""),
    ],
)
def test_noise_on_stderr_is_no_part_of_the_reason(written: bytes, told: str) -> None:
    assert tails.last_lines(written, 30) == told


def test_a_program_that_a_command_leaves_is_not_waited_for_and_may_still_write(
    tmp_path: Path, message: Message, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "go")
    go = os.open(tmp_path / "go", os.O_RDWR)
    left = f"exec 3< {tmp_path}/go; (read line <&3; echo $line >&2) &"
    told = why(f"{left} echo refused >&2; exit 3", message)
    assert told.endswith(": refused")
    assert capfd.readouterr().err == "refused\n"
    os.write(go, b"later\n")
    wait_for_no_reader()
    assert capfd.readouterr().err == "later\n"
    os.close(go)


def test_too_many_programs_left_leave_the_next_command_our_own_stderr(
    tmp_path: Path,
    message: Message,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "_LEFT_MAX", 2)
    os.mkfifo(tmp_path / "go")
    go = os.open(tmp_path / "go", os.O_RDWR)
    text = f"exec 3< {tmp_path}/go; cat <&3 & echo refused >&2; exit 3"
    ran = MessageProgram(shlex.join(["sh", "-c", text]))
    told = []
    for _ in range(3):
        with pytest.raises(CommandError) as caught:
            ran(message)
        told.append(str(caught.value).partition(": ")[2])
    assert told == ["refused", "refused", ""]
    assert capfd.readouterr().err == "refused\n" * 3
    os.close(go)
    wait_for_no_reader()


def test_what_has_room_for_one_line_shows_the_last_line_of_stderr_once(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--attempts", "1")
    shell.ok("put", "mail", "x", "--id", "seven")
    text = "echo sending >&2; echo refused >&2; exit 3"
    done = shell.ok(
        "consume", "mail", "--until-empty", "--exec", shlex.join(["sh", "-c", text]), code=Exit.DIED
    )
    [log] = [line for line in done.err.splitlines() if "message seven" in line]
    assert log.endswith("sh: refused ..")
    assert shell.ok("dead", "mail").out.count("refused") == 1
    # The view of one message shows all lines, and once: a command has no traceback.
    assert shell.ok("dead", "mail", "seven").out.count("refused") == 2
    with shardq.connect(shell.url) as db:
        queue = db.queue("slow")
        queue.put("y", id="eight")
        [message] = queue.receive(1, wait="10s")
        queue.retry(message, delay="1h", reason="refused\nsending\nrefused")
    for shown in (["peek", "slow"], ["show", "slow", "eight"]):
        assert shell.ok(*shown).out.count("refused ..") == 1
    assert "          sending\n" in shell.ok("peek", "slow", "--id", "eight").out


def test_the_next_attempt_is_told_the_last_error_in_its_environment(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--attempts", "2", "--backoff", "100ms")
    shell.ok("put", "mail", "x")
    text = 'echo "$SHARDQ_ATTEMPT <$SHARDQ_LAST_ERROR> $SHARDQ_HEADERS" >> ran; echo no >&2; exit 4'
    shell.ok(
        "consume", "mail", "--until-empty", "--exec", shlex.join(["sh", "-c", text]), code=Exit.DIED
    )
    first, second = (shell.directory / "ran").read_text().splitlines()
    told = f"exit code 4 of {shutil.which('sh')}: no"
    assert (first, second) == ("1 <> {}", f"2 <{told}> {{}}")
    [dead] = shell.ok("dead", "mail", "--json").lines
    assert dead["last_error"] == f"out of attempts: {told}"


def test_an_error_with_a_zero_in_it_keeps_no_command_from_its_message() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        queue.put("x")
        [message] = queue.receive()
        queue.retry(message, "0s", reason="a\0b")
        stage.clock.advance(1)
        [message] = queue.receive()
        MessageProgram(shlex.join(["sh", "-c", 'test "$SHARDQ_LAST_ERROR" = "a\ufffdb"']))(message)


# A command that outlives a stop -------------------------------------------------------------------


def stopped(process: Process, *, twice: bool = False) -> tuple[int, str]:
    """How a consumer ends on a signal, or on two."""
    with process:
        process.send_signal(signal.SIGTERM)
        if twice:
            # The system may merge two pending signals of one kind.
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, err.decode()


@pytest.mark.parametrize(("deadline", "twice"), [("100ms", False), ("10m", True)])
def test_a_command_that_outlives_a_stop_is_ended_and_named(
    shell: Shell, deadline: str, *, twice: bool
) -> None:
    put = shell.ok("put", "mail", "x").out.strip()
    script(shell.directory, "#!/bin/sh\necho $$ > began\nexec sleep 600\n")
    process = shell.fork("consume", "mail", "--exec", "./work.sh", "--deadline", deadline)
    child = wait_for(shell.directory / "began")
    code, err = stopped(process, twice=twice)
    assert not is_alive(child)
    assert code == Exit.OK
    # The log may say, too, that it still runs: it is ended as the consumer is.
    assert [line for line in err.splitlines() if line.startswith("shardq: ")] == [
        f"shardq: the command of {put} was not done within --deadline and was ended; its message "
        "is delivered again, and spends no attempt.",
        "shardq: handled 0 messages of mail",
    ]
    [left] = shell.ok("peek", "mail", "--json").lines
    assert (left["id"], left["attempts"]) == (put, 0)


def test_a_command_that_is_done_when_it_is_told_to_end_is_acked_and_not_named(
    shell: Shell,
) -> None:
    shell.ok("put", "mail", "x")
    script(
        shell.directory,
        "#!/bin/sh\nexec 2>&-\ntrap 'exit 0' TERM\necho $$ > began\n"
        "while true; do sleep 0.05; done\n",
    )
    process = shell.fork("consume", "mail", "--exec", "./work.sh", "--deadline", "100ms")
    wait_for(shell.directory / "began")
    assert stopped(process) == (Exit.OK, "shardq: handled 1 message of mail\n")
    assert shell.ok("peek", "mail", "--json").lines == []


def test_a_command_within_the_deadline_is_left_alone(shell: Shell) -> None:
    shell.ok("put", "mail", "x")
    script(
        shell.directory,
        "#!/bin/sh\necho $$ > began\nwhile test ! -e over; do sleep 0.05; done\n",
    )
    process = shell.fork("consume", "mail", "--exec", "./work.sh", "--deadline", "10m")
    wait_for(shell.directory / "began")
    process.send_signal(signal.SIGTERM)
    (shell.directory / "over").touch()
    with process:
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert err == b"shardq: handled 1 message of mail\n"


def test_what_ignores_sigterm_is_killed_with_all_in_its_group(
    tmp_path: Path, message: Message
) -> None:
    # Open for writing while any of them lives.
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    began = tmp_path / "began"
    within = f"sh -c 'echo $$ > {began}; sleep 600'"
    text = f"#!/bin/sh\ntrap '' TERM\nexec > {tmp_path}/alive\n{within}\nexit 1\n"
    ran = MessageProgram(script(tmp_path, text))
    outcomes: list[Exception] = []

    def run() -> None:
        try:
            ran(message)
        except (shardq.Snooze, CommandError) as error:
            outcomes.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(began)
    ran.end()
    thread.join(TIMEOUT_S)
    assert [type(one) for one in outcomes] == [shardq.Snooze]
    assert (ran.ended, ran.running) == ([message.id], [])
    assert select.select([alive], [], [], TIMEOUT_S)[0] == [alive]
    assert os.read(alive, 1) == b""
    os.close(alive)


def test_no_command_begins_once_those_that_run_are_told_to_end(
    tmp_path: Path, message: Message
) -> None:
    ran = MessageProgram(f"touch {tmp_path / 'began'}")
    ran.end()
    with pytest.raises(shardq.Snooze):
        ran(message)
    assert not (tmp_path / "began").exists()
