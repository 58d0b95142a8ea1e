"""Every error that shardq raises, in one tree.

```
ShardqError
├── UsageError                 what the caller gave cannot be used; nothing was written
│   ├── BadName                a queue, group, id or header name outside its alphabet
│   ├── BadTime                a time or duration that is naive, negative, endless or unreadable
│   ├── BadSetting             an unknown setting, or a value outside its bounds
│   ├── HistoryOff             a question to the history of a queue that keeps none
│   ├── BadBody                a body or headers of a wrong type or too large
│   └── BadUrl                 a store url that names no store
├── UnknownQueue               no queue of that name has been created
├── ReceiptError
│   ├── BadReceipt             damaged, or signed for another queue
│   └── StaleReceipt           its delivery is over: somebody else settled it
├── SchemaError
│   ├── SchemaMissing          the keyspace or tables are not there, or are not shardq's
│   └── SchemaNewer            made by a newer shardq than this one
├── StoreError
│   ├── StoreUnavailable       not applied; safe to do again later
│   │   └── StoreOverread      a read met more deleted rows than the store reads through at once
│   ├── StoreTimeout           maybe applied; putting its messages again repeats the same writes
│   ├── StoreRefused           refused for good; never repeated unchanged
│   ├── StoreFull              the disk is full; not applied
│   └── StoreCorrupt           the file is not a database
├── ClockError                 this machine's clock is too far from the store's
├── MissingExtra               an optional part is not installed
└── NodeError                  the local Cassandra could not be started
```
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "BadBody",
    "BadName",
    "BadReceipt",
    "BadSetting",
    "BadTime",
    "BadUrl",
    "ClockError",
    "HistoryOff",
    "MissingExtra",
    "NodeError",
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
    "UnknownQueue",
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


class ShardqError(Exception):
    """The root of everything that shardq raises on purpose."""


class UsageError(ShardqError, ValueError):
    """What the caller gave cannot be used; nothing was written."""


class BadName(UsageError):
    """A name outside its fixed alphabet or length."""


class BadTime(UsageError):
    """A due time, delay or duration that cannot be placed."""


class BadSetting(UsageError):
    """An unknown setting, or a value outside its bounds."""


class HistoryOff(UsageError):
    """A question to the history of a queue that keeps none."""


class BadBody(UsageError):
    """A body or headers of a wrong type or too large."""


class BadUrl(UsageError):
    """A store url that names no store."""


class UnknownQueue(ShardqError, LookupError):
    """No queue of that name has been created."""


class ReceiptError(ShardqError):
    """A receipt that settles nothing."""


class BadReceipt(ReceiptError, ValueError):
    """Damaged, or signed for another queue."""


class StaleReceipt(ReceiptError):
    """The delivery that this receipt stands for is over."""


class SchemaError(ShardqError):
    """The tables do not fit this version of shardq."""


class SchemaMissing(SchemaError):
    """The keyspace or its tables are not there, or are not shardq's."""


class SchemaNewer(SchemaError):
    """The tables were made by a newer shardq."""


class StoreError(ShardqError):
    """The store could not do what was asked.

    Attributes:
        messages: The `Message`s that were being put; to put them again repeats the very same
            writes.
    """

    def __init__(self, text: str, messages: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.messages: tuple[Any, ...] = tuple(messages)


class StoreUnavailable(StoreError):
    """Not applied: the store could not be reached, or refused for now."""


class StoreOverread(StoreUnavailable):
    """A read met more deleted rows than the store reads through at once; ask for less."""


class StoreTimeout(StoreError):
    """Maybe applied: the answer did not come."""


class StoreRefused(StoreError):
    """Refused for good: the same write will never be taken."""


class StoreFull(StoreError):
    """Not applied: the disk under the store is full."""


class StoreCorrupt(StoreError):
    """The file is not a database, or is damaged."""


class ClockError(ShardqError):
    """This machine's clock is too far from the store's to run."""


class MissingExtra(ShardqError, ImportError):
    """An optional part is not installed; the text names the extra."""


class NodeError(ShardqError):
    """The local Cassandra could not be started, stopped or found."""


@contextmanager
def begun(what: str) -> Iterator[None]:
    """What fails in here is maybe applied, for a part of it is.

    Args:
        what: What has been done already, for the error's text.
    """
    try:
        yield
    except (StoreUnavailable, StoreFull) as error:
        raise StoreTimeout(f"{what}, the rest is not: {error}", error.messages) from error
