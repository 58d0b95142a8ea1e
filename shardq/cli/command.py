"""The program that `consume --exec` runs for each message.

```
 message ──► start ──┬─ exit code 0 ──────────────► ack
               │     ├─ any other ────────────────► a failed attempt, with the end of its stderr
               │     └─ ended by us, at a stop ───► released, no attempt
               ├─ not now: no process, no file ───► waits, in the handler
               └─ not at all: no such program ────► released, no attempt; the consumer stops
```
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import shardq
from shardq.child import ChildProcess
from shardq.cli import streams
from shardq.cli.tails import Tail
from shardq.errors import UsageError
from shardq.model.message import ERROR_CHARS_MAX
from shardq.model.times import iso

if TYPE_CHECKING:
    from shardq.model.message import Message

GRACE_S = 3.0
"""From SIGTERM to SIGKILL, for a command that still runs after the deadline of a stop."""
_HURRY_S = 0.5
"""The time from SIGTERM to SIGKILL after a second signal."""
_FOR_NOW = frozenset(
    {
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        # The program's file is just being written.
        errno.ETXTBSY,
    }
)
"""Temporary reasons why a command cannot be started."""
_AGAIN_S = 0.5
_TRIES = 20
"""How often in a row a start may fail while no command runs, before the failure is permanent."""
_OF_A_SHELL = {126: " (a shell: command not executable)", 127: " (a shell: command not found)"}
"""Meanings of a shell's exit codes. They fail the attempt like any others, because one message may
have caused them."""
_LEFT_MAX = 64
"""Ended commands may have left programs running that hold a pipe to our stderr. Above this number
of pipes, further commands write to our stderr themselves."""
_LAST_ERROR = "SHARDQ_LAST_ERROR"
_OWN_BYTES = 4_096 + 4 * ERROR_CHARS_MAX
"""Above this size the message's own variables may be why the environment is too large."""


class CommandError(shardq.Retry):
    """A command ended with another exit code than 0: its message is retried."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, reason)


class CannotStart(Exception):
    """A command cannot be started, and no message is to blame."""


class MessageProgram:
    """Runs a program for a message: the body on its stdin, the rest in its environment.

    Each program runs in a process group of its own, because the Ctrl-C that stops this consumer
    must not kill the program.

    Args:
        text: The program and its arguments, split as a shell would, but run without one.

    Attributes:
        ended: The ids of messages whose command was ended by a stop.

    Raises:
        UsageError: If it is empty, cannot be split, or names no program.
    """

    def __init__(self, text: str) -> None:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--exec {text!r} cannot be split: {error}.") from error
        if not words:
            raise UsageError("--exec needs a command.")
        program = shutil.which(words[0])
        if program is None:
            if os.path.isfile(words[0]):
                raise UsageError(f"--exec: {words[0]!r} is not executable; chmod +x makes it so.")
            raise UsageError(f"--exec: there is no program {words[0]!r}; give its path.")
        self.ended: list[str] = []
        self._words = [program, *words[1:]]
        self._left: set[Tail] = set()
        """The tails of ended commands that may have left a program running."""
        self._state = threading.Condition()
        self._running: dict[ChildProcess, Message] = {}
        self._cut: set[ChildProcess] = set()
        """The running commands that a stop has asked to end."""
        self._changes = 0
        """The number of starts and ends: while it changes, a command that cannot start waits."""
        self._has_said = False
        self._stopping = threading.Event()
        self._ending = False

    @property
    def running(self) -> list[str]:
        """The ids of messages whose command runs."""
        with self._state:
            return [message.id for message in self._running.values()]

    def __call__(self, message: Message) -> None:
        """Run the command.

        Raises:
            CommandError: If its exit code is not 0.
            CannotStart: If it cannot be started.
            Snooze: If a stop has ended it.
        """
        program, tail = self._start(message)
        try:
            program.process.communicate(message.body)
        finally:
            tail.ended()
            with self._state:
                self._left.add(tail)
                del self._running[program]
                self._changes += 1
                is_ended = program.code != 0 and program in self._cut
                if is_ended:
                    # Kill the rest of its process group too, before its message is released.
                    program.kill()
                    self.ended.append(message.id)
                self._state.notify_all()
        if is_ended:
            raise shardq.Snooze("0s")
        if code := program.code:
            why = f"exit code {code} of {self._words[0]}{_OF_A_SHELL.get(code, '')}"
            told = tail.end(ERROR_CHARS_MAX - len(why) - 2)
            raise CommandError(f"{why}: {told}" if told else why)

    def stop(self, deadline_s: float) -> None:
        """End the commands that still run after some seconds. Idempotent; returns at once."""
        with self._state:
            is_first = not self._stopping.is_set()
            self._stopping.set()
        if is_first:
            # Ignore the error if no thread can be started: `end` does the same later.
            with suppress(RuntimeError):
                threading.Thread(
                    target=self._stop, args=(deadline_s,), name="shardq-exec", daemon=True
                ).start()

    def _stop(self, deadline_s: float) -> None:
        with self._state:
            if not self._state.wait_for(self._is_idle, deadline_s):
                self._end(GRACE_S)

    def end(self) -> None:
        """End the commands that still run, for which the consumer has not waited."""
        with self._state:
            self._end(_HURRY_S)

    def _end(self, grace_s: float) -> None:
        """Send SIGTERM, then SIGKILL. Call this with the state held; its waits release it."""
        self._ending = True
        self._stopping.set()
        for program in self._running:
            self._tell_to_end(program)
        self._state.wait_for(self._is_idle, grace_s)
        for program in self._running:
            program.kill()
        self._state.wait_for(self._is_idle, grace_s)

    def _tell_to_end(self, program: ChildProcess) -> None:
        self._cut.add(program)
        program.signal_group(signal.SIGTERM)

    def _is_idle(self) -> bool:
        return not self._running

    def _start(self, message: Message) -> tuple[ChildProcess, Tail]:
        own = _environment(message)
        tries, changes = 0, self._changes
        while not self._ending:
            try:
                program, tail = self._open(own)
            except OSError as error:
                tries = 0 if self._running or changes != self._changes else tries + 1
                changes = self._changes
                self._refuse(error, own, is_lasting=tries == _TRIES)
            else:
                with self._state:
                    self._changes += 1
                    self._running[program] = message
                    if self._ending:
                        self._tell_to_end(program)
                return program, tail
            if self._stopping.wait(_AGAIN_S):
                break
        raise shardq.Snooze("0s")

    def _open(self, own: dict[bytes, bytes]) -> tuple[ChildProcess, Tail]:
        with self._state:
            self._left = {one for one in self._left if one.is_open}
            tail = Tail(has_pipe=len(self._left) < _LEFT_MAX)
        try:
            program = ChildProcess(
                self._words, stdin=subprocess.PIPE, stderr=tail.given, env=os.environb | own
            )
        finally:
            tail.begun()
        return program, tail

    def _refuse(self, error: OSError, own: dict[bytes, bytes], *, is_lasting: bool) -> None:
        """Return if the start is to be repeated; print a note the first time.

        Raises:
            CommandError: If the message itself is the reason.
            CannotStart: If it cannot be started, now or for too long.
        """
        why = f"{self._words[0]} cannot be started: {error.strerror}"
        if error.errno == errno.E2BIG and sum(map(len, own.values())) > _OWN_BYTES:
            raise CommandError(why) from error
        if error.errno == errno.ENOEXEC:
            why += "; a script has to begin with a line such as #!/bin/sh"
        if error.errno == errno.ENOENT and os.path.exists(self._words[0]):
            why += "; the interpreter that its first line names is missing"
        if error.errno not in _FOR_NOW or is_lasting:
            raise CannotStart(why) from error
        with self._state:
            is_first, self._has_said = not self._has_said, True
        if is_first:
            streams.note(f"--exec: {why}. It is tried again every 500ms.")


def _environment(message: Message) -> dict[bytes, bytes]:
    """The variables of a message for its command, as UTF-8 whatever the locale."""
    told = {
        "SHARDQ_QUEUE": message.queue,
        "SHARDQ_ID": message.id,
        "SHARDQ_DUE": iso(message.due_ms),
        "SHARDQ_ATTEMPT": str(message.attempt),
        "SHARDQ_PRIORITY": str(message.priority),
        "SHARDQ_GROUP": message.group or "",
        "SHARDQ_KEY": message.key or "",
        "SHARDQ_RECEIPT": message.receipt,
        "SHARDQ_HEADERS": json.dumps(message.headers),
        _LAST_ERROR: (message.last_error or "").replace("\0", "\ufffd"),
    }
    return {name.encode(): value.encode("utf-8", "surrogateescape") for name, value in told.items()}
