"""Every error that shardq raises, in one tree.

```
ShardqError
├── UsageError               cannot be used as given; nothing was written
│   ├── BadName              a name outside its alphabet
│   ├── BadTime              naive, negative, endless or unreadable
│   ├── BadSetting           unknown, or a value out of bounds
│   ├── HistoryOff           the queue keeps no history
│   ├── BadApp               no app of this name can be imported
│   ├── BadBody              of a wrong type, or too large
│   ├── BadArguments         not what a task's function takes
│   ├── BadResult            not what a task's function says it returns
│   ├── BadUrl               names no store
│   ├── TriggerError         a trigger never fires, or names no next time
│   └── UnknownSchedule      no schedule of this name
├── UnknownQueue             no such queue
├── UnknownAccount           no such account of a server, or no such key
├── QueueFull                the queue has as many messages as it may; nothing was written
├── KeyTaken                 another message has the key; nothing was written
├── JobError                 a job has given no result
│   ├── JobFailed            the job has died: its last attempt failed
│   ├── JobCancelled         the job was cancelled or purged
│   ├── JobExpired           the job was too old when it was to run
│   ├── JobTimeout           the job has not ended yet
│   └── NoResult             the result is not kept, or not any more
├── ReceiptError
│   ├── BadReceipt           damaged, or of another queue
│   └── StaleReceipt         its delivery has ended
├── SchemaError
│   ├── SchemaMissing        no keyspace or tables of shardq, or from before 0.1.0
│   └── SchemaNewer          made by a newer shardq
├── StoreError
│   ├── StoreUnavailable     not applied; safe to do again later
│   │   └── StoreOverread    too many deleted rows for one read
│   ├── StoreTimeout         maybe applied; put its messages again
│   ├── StoreRefused         not applied, and never will be
│   ├── StoreFull            not applied: the disk is full
│   └── StoreCorrupt         damaged, no database, or not the file that was opened
├── ClockError               this machine's clock is too far off
├── MissingExtra             an optional part is not installed
└── NodeError                the local Cassandra does not start
```
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "BadApp",
    "BadArguments",
    "BadBody",
    "BadName",
    "BadReceipt",
    "BadResult",
    "BadSetting",
    "BadTime",
    "BadUrl",
    "ClockError",
    "HistoryOff",
    "JobCancelled",
    "JobError",
    "JobExpired",
    "JobFailed",
    "JobTimeout",
    "KeyTaken",
    "MissingExtra",
    "NoResult",
    "NodeError",
    "QueueFull",
    "ReceiptError",
    "SchemaError",
    "SchemaMissing",
    "SchemaNewer",
    "ShardqError",
    "StaleReceipt",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreOverread",
    "StoreRefused",
    "StoreTimeout",
    "StoreUnavailable",
    "TriggerError",
    "UnknownAccount",
    "UnknownQueue",
    "UnknownSchedule",
    "UsageError",
]

_SHOWN_MAX = 80


def shown(value: object) -> str:
    """A value as an error quotes it: in one line, cut if it is long.

    >>> shown("a" * 100)[-5:]
    'aa...'
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # The number has more digits than Python prints (4,300), or lists are nested too deep.
        return f"<{type(value).__name__} too large to be shown>"
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def not_pickled(what: str, instead: str) -> UsageError:
    """The error for an attempt to pickle an object that only this process can use.

    Args:
        what: The object, in words.
        instead: The call that makes such an object in the other process.
    """
    return UsageError(
        f"{what} is this process's own and cannot be pickled; hand over the store's url, and call "
        f"{instead} in the other process."
    )


class ShardqError(Exception):
    """The root of everything that shardq raises on purpose."""


E = TypeVar("E", bound=ShardqError)


class UsageError(ShardqError, ValueError):
    """An argument or option cannot be used. Nothing was written, unless the text says so."""


class BadName(UsageError):
    """A name outside its fixed alphabet or length."""


class BadTime(UsageError):
    """A due time, delay or duration that cannot be placed."""


class BadSetting(UsageError):
    """An unknown setting, or a value outside its bounds."""


class HistoryOff(UsageError):
    """A call needs the history of a queue that keeps no history."""


class BadApp(UsageError):
    """The name of an app that cannot be imported, or a name of something that is no app."""


class BadBody(UsageError):
    """A body or headers of a wrong type or too large."""


class BadArguments(UsageError):
    """Arguments that a function does not take, or values or parameters that JSON cannot hold."""


class BadResult(UsageError):
    """A result that is not what a task's function says it returns, or that JSON cannot hold."""


class BadUrl(UsageError):
    """A store url that names no store."""


class TriggerError(UsageError):
    """A trigger that cannot be read, never fires, or fails when asked for its next fire time."""


class UnknownSchedule(UsageError, LookupError):
    """The queue has no schedule of that name, or not any more."""


class UnknownQueue(ShardqError, LookupError):
    """No queue of that name has been created."""


class UnknownAccount(ShardqError, LookupError):
    """No account of that name or id has been made, or no such key."""


class QueueFull(ShardqError):
    """The queue has as many messages as its `depth_max`, and takes no more; nothing was written."""


class KeyTaken(ShardqError):
    """Another message has the key, or the key is held after a message's end; nothing was written.

    Attributes:
        message: The `Message` that has the key, as it was read; None if it has ended.
        put: How many other messages `put_many` has put; 0 for any other call.
    """

    def __init__(self, text: str, message: Any = None) -> None:
        super().__init__(text)
        self.message = message
        self.put = 0


class JobError(ShardqError):
    """A job has given no result; the subclass says why."""


class JobFailed(JobError):
    """The job has died: its last attempt failed, or its worker did.

    Attributes:
        error: The reason, to 8,000 characters.
        traceback: The end of the traceback, to 8,000 characters; empty without one.
    """

    def __init__(self, text: str, error: str = "", traceback: str = "") -> None:
        super().__init__(text)
        self.error = error
        self.traceback = traceback


class JobCancelled(JobError):
    """The job was cancelled, or its queue purged: it does not run any more."""


class JobExpired(JobError):
    """The job was too old when it was to run, and was dropped."""


class JobTimeout(JobError, TimeoutError):
    """The job did not end within the time for which the caller waits."""


class NoResult(JobError, LookupError):
    """The job's result is not kept: its task keeps none, or the time to keep it is over."""


class ReceiptError(ShardqError):
    """A receipt that cannot settle a delivery."""


class BadReceipt(ReceiptError, ValueError):
    """A receipt that is damaged, or that another queue has signed."""


class StaleReceipt(ReceiptError):
    """The delivery of this receipt has ended: it was settled, or its time is up."""


class SchemaError(ShardqError):
    """The tables do not fit this version of shardq."""


class SchemaMissing(SchemaError):
    """The keyspace or its tables do not exist, are not shardq's, or are from before 0.1.0."""


class SchemaNewer(SchemaError):
    """The tables were made by a newer shardq."""


class StoreError(ShardqError):
    """The store could not do what was asked.

    Attributes:
        messages: The `Message`s that were being put, if any. Putting them again repeats the very
            same writes, so that nothing is stored twice.
    """

    def __init__(self, text: str, messages: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.messages: tuple[Any, ...] = tuple(messages)


class StoreUnavailable(StoreError):
    """Not applied: the store could not be reached, or refused for now. Safe to repeat later."""


class StoreOverread(StoreUnavailable):
    """A read met more deleted rows than the store reads through at once; ask for less."""


class StoreTimeout(StoreError):
    """Maybe applied: no answer came in time. Put `messages` again to be sure."""


class StoreRefused(StoreError):
    """Refused for good: the same write will never be taken."""


class StoreFull(StoreError):
    """Not applied: the disk under the store is full."""


class StoreCorrupt(StoreError):
    """The file is not a database, is damaged, or was removed or replaced while it was open.

    Messages that were put or settled after that may be lost.
    """


class ClockError(ShardqError):
    """This machine's clock is too far from the store's to run."""


class MissingExtra(ShardqError, ImportError):
    """An optional part is not installed; the text names the extra."""


class NodeError(ShardqError):
    """The local Cassandra could not be started, stopped or found."""


def own_copy(error: E) -> E:
    """A copy of an error that several callers raise, so that each adds notes to its own copy."""
    mine = copy.copy(error)
    mine.__cause__ = error if error.__cause__ is None else error.__cause__
    return mine


@contextmanager
def begun(what: str) -> Iterator[None]:
    """Raise `StoreTimeout` if the rest of some work fails, because a part of it is applied.

    An error that refuses the rest for good stays as it is, and a note names the applied part.

    Args:
        what: The part that is applied, for the error's text.
    """
    try:
        yield
    except (StoreUnavailable, StoreFull) as error:
        raise StoreTimeout(f"{what}, the rest is not: {error}", error.messages) from error
    except (StoreRefused, SchemaError) as error:
        error.add_note(f"Done before it: {what}.")
        raise
