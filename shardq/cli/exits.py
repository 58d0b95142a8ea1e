"""Exit codes: one for each family of errors, so that a script can distinguish them."""

from __future__ import annotations

from enum import IntEnum

from shardq import errors


class Exit(IntEnum):
    """The exit codes of the command line."""

    OK = 0
    FAILED = 1
    """`check` found trouble, or the requested message does not exist."""
    USAGE = 2
    """A wrong option, name, time, setting, body or store url; nothing was written."""
    UNKNOWN_QUEUE = 3
    RECEIPT_BAD = 4
    RECEIPT_STALE = 5
    SCHEMA_MISSING = 6
    SCHEMA_NEWER = 7
    CLOCK = 8
    MISSING_EXTRA = 9
    STORE_UNAVAILABLE = 10
    """The store is not available, and nothing was changed; safe to repeat."""
    STORE_TIMEOUT = 11
    """The store did not answer in time; the change may have been made."""
    STORE_REFUSED = 12
    STORE_FULL = 13
    STORE_CORRUPT = 14
    NODE = 15
    FILE = 16
    """A file of the user's could not be read or written."""
    ERROR = 17
    """Any other error of shardq itself."""
    HISTORY_OFF = 18
    """An audit of a queue that keeps no history: the result is unknown."""
    UNBALANCED = 19
    """An audit does not balance: a message is lost, or exists although it has ended."""
    COMMAND = 20
    """The command of `consume --exec` cannot be started; no message was affected."""
    NOT_THERE = 21
    """A command by key: no message has the key, or none that it can change; or there is no such
    schedule, account or access key."""
    RUNNING = 22
    """A command by key: the message runs now."""
    KEY_TAKEN = 23
    """A put or redrive under a key that another message has; or a schedule's name is taken."""
    DIED = 24
    """`consume` or `work` with --until-empty: the queues are empty, and messages have died."""
    QUEUE_FULL = 25
    """A put into a queue that has as many messages as its `depth_max`."""
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    """The reader of our output has gone."""
    TERMINATED = 143
    """Ended by SIGTERM before all was done."""


MEANINGS = {
    Exit.OK: "done",
    Exit.FAILED: "a check failed, or no such message",
    Exit.USAGE: "wrong usage, nothing was done",
    Exit.UNKNOWN_QUEUE: "unknown queue",
    Exit.RECEIPT_BAD: "bad receipt",
    Exit.RECEIPT_STALE: "stale receipt, or nothing to cancel",
    Exit.SCHEMA_MISSING: "schema missing, run shardq init",
    Exit.SCHEMA_NEWER: "schema of a newer shardq",
    Exit.CLOCK: "clock is too far off",
    Exit.MISSING_EXTRA: "an extra is not installed",
    Exit.STORE_UNAVAILABLE: "store unavailable, not applied",
    Exit.STORE_TIMEOUT: "store timeout, maybe applied",
    Exit.STORE_REFUSED: "store refused",
    Exit.STORE_FULL: "disk full",
    Exit.STORE_CORRUPT: "store damaged, or no database",
    Exit.NODE: "the local Cassandra node",
    Exit.FILE: "a file could not be used",
    Exit.ERROR: "any other error",
    Exit.HISTORY_OFF: "the queue keeps no history",
    Exit.UNBALANCED: "an audit does not balance",
    Exit.COMMAND: "--exec cannot be started",
    Exit.NOT_THERE: "no such key, schedule or account",
    Exit.RUNNING: "the message runs now",
    Exit.KEY_TAKEN: "the key or name is taken",
    Exit.DIED: "messages have died",
    Exit.QUEUE_FULL: "the queue is full",
    Exit.INTERRUPTED: "interrupted",
    Exit.PIPE_CLOSED: "the reader of the output is gone",
    Exit.TERMINATED: "ended by SIGTERM",
}
"""The meaning of each code, for the help."""


def exit_codes() -> list[str]:
    """The codes and their meanings in two columns, as lines."""
    cells = [f"{code.value:3} {meaning}" for code, meaning in MEANINGS.items()]
    half = -(-len(cells) // 2)
    width = max(map(len, cells[:half]))
    # Fill up the right column, which has one cell less if the number is odd.
    right = [*cells[half:], ""]
    return [f"{a:{width}}  {b}".rstrip() for a, b in zip(cells[:half], right, strict=False)]


_EXITS: dict[type[errors.ShardqError], Exit] = {
    errors.UsageError: Exit.USAGE,
    errors.HistoryOff: Exit.HISTORY_OFF,
    errors.UnknownSchedule: Exit.NOT_THERE,
    errors.UnknownQueue: Exit.UNKNOWN_QUEUE,
    errors.UnknownAccount: Exit.NOT_THERE,
    errors.QueueFull: Exit.QUEUE_FULL,
    errors.KeyTaken: Exit.KEY_TAKEN,
    errors.ReceiptError: Exit.RECEIPT_BAD,
    errors.StaleReceipt: Exit.RECEIPT_STALE,
    errors.SchemaError: Exit.SCHEMA_MISSING,
    errors.SchemaNewer: Exit.SCHEMA_NEWER,
    errors.ClockError: Exit.CLOCK,
    errors.MissingExtra: Exit.MISSING_EXTRA,
    errors.StoreError: Exit.STORE_UNAVAILABLE,
    errors.StoreTimeout: Exit.STORE_TIMEOUT,
    errors.StoreRefused: Exit.STORE_REFUSED,
    errors.StoreFull: Exit.STORE_FULL,
    errors.StoreCorrupt: Exit.STORE_CORRUPT,
    errors.NodeError: Exit.NODE,
    errors.ShardqError: Exit.ERROR,
}


def exit_of(error: errors.ShardqError) -> Exit:
    """The exit code of an error: that of the nearest family in its tree.

    >>> exit_of(errors.BadTime("no zone"))
    <Exit.USAGE: 2>
    """
    return next(_EXITS[kind] for kind in type(error).__mro__ if kind in _EXITS)


def text_of(error: Exception, text: str | None = None) -> str:
    """The text of an error, or a given one, with notes of the work done before it."""
    return " ".join([str(error) if text is None else text, *getattr(error, "__notes__", ())])
