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
│   ├── TriggerError         never fires, or fails when it is asked when
│   └── UnknownSchedule      no schedule of this name
├── UnknownQueue             no such queue
├── UnknownAccount           no such account of a server, or no such key
├── QueueFull                it has as many messages as it may; nothing was written
├── KeyTaken                 another message has the key; nothing was written
├── JobError                 a job has given no result
│   ├── JobFailed            it has died: its last attempt failed
│   ├── JobCancelled         it was cancelled or purged
│   ├── JobExpired           it was of no use any more when it was to run
│   ├── JobTimeout           it has not ended yet
│   └── NoResult             none is kept, or not any more
├── ReceiptError
│   ├── BadReceipt           damaged, or of another queue
│   └── StaleReceipt         its delivery has ended
├── SchemaError
│   ├── SchemaMissing        no keyspace or tables of shardq, or of before 0.1.0
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
    """A value as an error quotes it: in one line, cut where it is long.

    >>> shown("a" * 100)[-5:]
    'aa...'
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # A number of more digits than Python prints (4,300), or lists nested too deep.
        return f"<{type(value).__name__} too large to be shown>"
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def not_pickled(what: str, instead: str) -> UsageError:
    """The error of who pickles what only this process can use.

    Args:
        what: What was to be pickled.
        instead: What to call in the other process.
    """
    return UsageError(
        f"{what} is this process's own and cannot be pickled; hand over the store's url, and call "
        f"{instead} in the other process."
    )


class ShardqError(Exception):
    """The root of everything that shardq raises on purpose."""


E = TypeVar("E", bound=ShardqError)


class UsageError(ShardqError, ValueError):
    """What the caller gave cannot be used. Nothing was written, unless the text says so."""


class BadName(UsageError):
    """A name outside its fixed alphabet or length."""


class BadTime(UsageError):
    """A due time, delay or duration that cannot be placed."""


class BadSetting(UsageError):
    """An unknown setting, or a value outside its bounds."""


class HistoryOff(UsageError):
    """A question to the history of a queue that keeps none."""


class BadApp(UsageError):
    """The name of an app that cannot be imported, or of something else."""


class BadBody(UsageError):
    """A body or headers of a wrong type or too large."""


class BadArguments(UsageError):
    """Arguments that a task's function does not take or JSON cannot hold, or such a function."""


class BadResult(UsageError):
    """A result that is not what a task's function says it returns, or that JSON cannot hold."""


class BadUrl(UsageError):
    """A store url that names no store."""


class TriggerError(UsageError):
    """A trigger that cannot be read or never fires, or that fails when it is asked when it does."""


class UnknownSchedule(UsageError, LookupError):
    """The queue has no schedule of that name, or not any more."""


class UnknownQueue(ShardqError, LookupError):
    """No queue of that name has been created."""


class UnknownAccount(ShardqError, LookupError):
    """No account of that name or id has been made, or no such key."""


class QueueFull(ShardqError):
    """The queue has as many messages as its `depth_max`, and takes no more; nothing was written."""


class KeyTaken(ShardqError):
    """Another message of the queue has the key, or it is held after one; nothing was written.

    Attributes:
        message: The `Message` that has it, as it was read; None where it has ended.
        put: How many other messages `put_many` has put; 0 of all else.
    """

    def __init__(self, text: str, message: Any = None) -> None:
        super().__init__(text)
        self.message = message
        self.put = 0


class JobError(ShardqError):
    """A job has given no result; which of these says why."""


class JobFailed(JobError):
    """The job has died: its last attempt failed, or its worker did.

    Attributes:
        error: Why, to 8,000 characters.
        traceback: The end of its traceback, likewise; empty where there is none.
    """

    def __init__(self, text: str, error: str = "", traceback: str = "") -> None:
        super().__init__(text)
        self.error = error
        self.traceback = traceback


class JobCancelled(JobError):
    """The job was cancelled, or its queue purged: it does not run any more."""


class JobExpired(JobError):
    """The job was of no use any more when it was to run, and was dropped."""


class JobTimeout(JobError, TimeoutError):
    """The job has not ended within the time that was to be waited for it."""


class NoResult(JobError, LookupError):
    """The job's result is not kept: its task keeps none, or its time is up."""


class ReceiptError(ShardqError):
    """A receipt that cannot settle a delivery."""


class BadReceipt(ReceiptError, ValueError):
    """A receipt that is damaged, or that another queue has signed."""


class StaleReceipt(ReceiptError):
    """The delivery of this receipt has ended: it was settled, or its time is up."""


class SchemaError(ShardqError):
    """The tables do not fit this version of shardq."""


class SchemaMissing(SchemaError):
    """The keyspace or its tables are not there, are not shardq's, or are of before 0.1.0."""


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
    """Not applied: the store could not be reached, or refused for now. Safe to do again later."""


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

    What was put or settled after that may be lost.
    """


class ClockError(ShardqError):
    """This machine's clock is too far from the store's to run."""


class MissingExtra(ShardqError, ImportError):
    """An optional part is not installed; the text names the extra."""


class NodeError(ShardqError):
    """The local Cassandra could not be started, stopped or found."""


def own_copy(error: E) -> E:
    """A copy of an error that several callers get: each adds to its own, and raises it."""
    mine = copy.copy(error)
    mine.__cause__ = error if error.__cause__ is None else error.__cause__
    return mine


@contextmanager
def begun(what: str) -> Iterator[None]:
    """What fails in here is maybe applied, for a part of it is.

    What is refused for good stays that error, and a note says which part.

    Args:
        what: What has been done already, for the error's text.
    """
    try:
        yield
    except (StoreUnavailable, StoreFull) as error:
        raise StoreTimeout(f"{what}, the rest is not: {error}", error.messages) from error
    except (StoreRefused, SchemaError) as error:
        error.add_note(f"Done before it: {what}.")
        raise
