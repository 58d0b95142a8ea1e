"""Commands on waiting messages: move them, edit one by its key, and report the results."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shardq.cli import options, screen, streams
from shardq.cli.exits import Exit, exit_of
from shardq.errors import BadReceipt
from shardq.inspection.whereabouts import Whereabouts
from shardq.lifecycle.keyed import Answer
from shardq.model.message import TASK_HEADER, Message
from shardq.model.times import asked_ms, ceil_ms, iso, moment_of
from shardq.records.standing import Is

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardq.lifecycle.keyed import Snapshot
    from shardq.queue import Queue

_EXITS = {Answer.DONE: Exit.OK, Answer.NOT_THERE: Exit.NOT_THERE, Answer.RUNNING: Exit.RUNNING}
_DONE = {"cancel": "cancelled", "move": "moved", "edit": "edited", "forward": "moved"}
"""The past participle of each command, for its result."""


@options.command(
    "shardq move mail --key order-7 --delay 30m",
    "shardq move mail --key order-7 --due 2027-01-01T09:00:00+01:00",
    "shardq move mail 2f6b8e1c 0b1d77aa --delay 0s",
    "shardq move mail --failed --task app.welcome --delay 0s",
)
@options.queue
@options.ids
@options.keys
@options.option(
    "--failed",
    "All messages of QUEUE that have failed and wait for their next attempt.",
    name="of_failed",
)
@options.option("--task NAME", "Of --failed, the jobs of this task alone.")
@options.due
@options.delay
def move(
    queue: str,
    ids: tuple[str, ...],
    keys: tuple[str, ...],
    of_failed: bool,
    task: str | None,
    due: str | None,
    delay: str | None,
) -> Exit:
    """Let messages of QUEUE be due at another time; with --delay 0s, now.

    A message that waits for its due, for a retry or for a consumer is moved, and keeps its attempts
    and its last error. With --key the message never runs at its old time, whatever crashes. Without
    a key, name it by its ID, which takes a search, or by its RECEIPT: best effort, because a
    consumer may hold the message already. Ends with 21 if the message does not exist, with 22 if it
    runs now; both change nothing.

    Each of several messages is tried. A code other than 0 is that of the first failure. With
    --failed the command ends with 0, even if messages end or run meanwhile.
    """
    check_named(ids, keys, of_failed=of_failed)
    if task is not None and not of_failed:
        raise click.UsageError("--task needs --failed.")
    if (due is None) == (delay is None):
        raise click.UsageError("give --due or --delay, one of them.")
    source = options.queue_of(queue)
    wanted_ms = asked_ms(ceil_ms(source._home.clock.now_us()), due, delay)
    wanted, until = moment_of(wanted_ms), iso(wanted_ms)
    told = Telling(source, "move", is_one=len(ids) + len(keys) == 1)
    for key in keys:
        told.of_key(key, source.move(key, due=wanted))
    for name in ids:
        with told.damaged(name):
            told.of_id(name, source.move(ids=[name], due=wanted)[name], until)
    if not of_failed:
        return told.ended
    is_any = False
    for message in _failed(source, task):
        is_any, receipt = True, message.receipt
        told.of_id(message.id, source.move(ids=[receipt], due=wanted)[receipt], until)
    if not is_any:
        streams.note(f"no message of {queue} waits for its next attempt.")
    return Exit.OK


def _failed(source: Queue, task: str | None) -> Iterator[Message]:
    """The messages that wait for their next attempt; with a task, only its jobs."""
    for row in Whereabouts(source._home).in_back_off():
        message = Message(row, 0, source._home.register.signer)
        if task is None or message.headers.get(TASK_HEADER) == task:
            yield message


@options.command(
    'shardq edit mail --key order-7 --body "your order has been sent"',
    "shardq edit mail --key order-7 < letter.txt",
    "shardq edit mail --key order-7 --header kind=reminder --header lang=de",
)
@options.queue
@options.key
@options.option(
    "--body TEXT",
    "The new body. `-` reads it from stdin, as where neither it nor --header is given; there "
    "an empty stdin is an error.",
)
@options.headers
def edit(queue: str, key: str | None, body: str | None, headers: tuple[str, ...]) -> Exit:
    """Change the message of QUEUE that has a key; its due and its id stay.

    The message may wait for its due, for a retry or for a consumer: it never runs as it was before.
    Given headers replace all headers; a part that is not given stays. Ends with 21 if no waiting
    message has the key, with 22 if the message runs now; both change nothing.
    """
    if key is None:
        raise click.UsageError("give --key: the key of the message.")
    given = options.headers_of(headers)
    content = None if body is None and given is not None else options.content(body)
    if content == b"" and body is None:
        # Refuse empty stdin: in a cron job, a forgotten option would empty the message.
        raise click.UsageError("give --body or --header, for stdin is empty.")
    source = options.queue_of(queue)
    answer = source.edit(key, body=content, headers=given)
    told = Telling(source, "edit")
    told.of_key(key, answer)
    return told.ended


def check_named(ids: Sequence[str], keys: Sequence[str], *, of_failed: bool | None = None) -> None:
    """Raise unless messages were named in exactly one way.

    Args:
        ids: Their ids or receipts.
        keys: Their keys.
        of_failed: True for all that have failed; None if the command does not allow that.
    """
    if sum(map(bool, (ids, keys, of_failed))) != 1:
        more = "RECEIPTs or --key" if of_failed is None else "RECEIPTs, --key or --failed"
        raise click.UsageError(f"give IDs, {more}, one of them.")


class Telling:
    """Prints the results of a command, message by message.

    Args:
        source: The queue.
        command: `cancel`, `move`, `forward` or `edit`.
        as_json: True to print for programs.
        is_one: True for a single message, which is not named then.

    Attributes:
        ended: The exit code of the process: the first one that is not 0.
    """

    def __init__(self, source: Queue, command: str, *, is_one: bool = True) -> None:
        self.ended = Exit.OK
        self._source = source
        self._command = command
        self._as_json = options.is_json()
        self._is_one = is_one

    def of_key(self, key: str, answer: Answer) -> None:
        """Print the result for a message that was named by its key."""
        source, command = self._source, self._command
        now = None if command == "cancel" or answer is Answer.RUNNING else source.get(key)
        due = iso(now.due) if command == "move" and answer and now is not None else None
        why = ""
        if answer is Answer.NOT_THERE:
            why = f"not {_DONE[command]}: {_missing(source, key, now)}"
        self._tell({"key": key}, key, answer, due, why)
        self._end(_EXITS[answer])

    def of_id(self, name: str, answer: Answer, due: str | None = None) -> None:
        """Print the result for a message that was named by its id or receipt."""
        is_cancel = self._command == "cancel"
        why = ""
        if answer is Answer.NOT_THERE and is_cancel:
            why = "nothing to cancel: it has ended, is being delivered, or was never there"
        elif answer is Answer.NOT_THERE:
            shown = streams.escaped(name)
            why = f"not {_DONE[self._command]}: {self._source.name} has no message {shown}"
        due = due if answer else None
        self._tell({"id": name, "key": None}, name, answer, due, why)
        is_stale = is_cancel and answer is Answer.NOT_THERE
        self._end(Exit.RECEIPT_STALE if is_stale else _EXITS[answer])

    @contextmanager
    def damaged(self, name: str) -> Iterator[None]:
        """Report that one of several receipts is damaged, and continue with the next."""
        try:
            yield
        except BadReceipt as error:
            if self._is_one:
                raise
            click.echo(f"{streams.escaped(name)}: {error}", err=True)
            self._end(exit_of(error))

    def _tell(
        self, named: Mapping[str, str | None], name: str, answer: Answer, due: str | None, why: str
    ) -> None:
        done = _DONE[self._command]
        if self._as_json:
            told = {"queue": self._source.name, **named, "answer": answer.value}
            screen.print_json(told if due is None else told | {"due": due})
            return
        if answer:
            text = done if due is None else f"{done}: due {due}"
        elif answer is Answer.NOT_THERE:
            text = why
        elif self._command == "cancel":
            text = "it runs now: its handler is asked to stop, and it is not delivered again"
        else:
            text = f"not {done}: it runs now"
        click.echo(text if self._is_one else f"{streams.escaped(name)}: {text}")

    def _end(self, code: Exit) -> None:
        if self.ended is Exit.OK:
            self.ended = code


def _missing(source: Queue, key: str, now: Snapshot | None) -> str:
    """Why a command has found no message."""
    if now is not None and now.state == "dead":
        named = streams.escaped(shlex.quote(now.id))
        return f"it is dead; `shardq dead {source.name} {named} --redrive` puts it back"
    return f"{source.name} has no message with key {streams.escaped(key)}{held(source, key)}"


def held(source: Queue, key: str) -> str:
    """A note if a key is still held after its message ended; else empty."""
    found = source._home.settler.keys.seek([key])[key]
    is_held = found.state is Is.HELD
    return f"; the key is held until {iso(found.key.until_ms or 0)}" if is_held else ""
