"""The alphabets of names, checked before any I/O.

Nothing that a user types is ever spliced into CQL or SQL; these bounds keep names printable and
short.
"""

from __future__ import annotations

import re

from shardq.errors import BadName, shown

DEAD_SUFFIX = ".dead"

# Room for the suffix, or a queue of the longest name could not bury its dead.
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(?:\.dead)?\Z", re.ASCII)
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}\Z", re.ASCII)
_TEXT_MAX = 256


def queue_name(value: object) -> str:
    """A queue's name: 1 to 100 of `A-Z a-z 0-9 . _ -`, the first a letter or digit."""
    if isinstance(value, str) and _QUEUE.match(value):
        return value
    raise BadName(
        f"queue name {shown(value)} must be 1 to 100 of the characters A-Z a-z 0-9 . _ - "
        f"and begin with a letter or digit."
    )


def keyspace_name(value: object) -> str:
    """A keyspace's name: 1 to 48 of `a-z 0-9 _`, the first a letter."""
    if isinstance(value, str) and _KEYSPACE.match(value):
        return value
    raise BadName(
        f"keyspace {shown(value)} must be 1 to 48 of the characters a-z 0-9 _ "
        f"and begin with a letter."
    )


def label(value: object, *, what: str) -> str:
    """A group, message id or header name: 1 to 256 printable characters of any script."""
    if isinstance(value, str) and 0 < len(value) <= _TEXT_MAX and value.isprintable():
        return value
    raise BadName(f"{what} {shown(value)} must be 1 to {_TEXT_MAX} printable characters.")


def dead_queue(queue: str) -> str:
    """The name of the queue that keeps the dead messages of `queue`."""
    return queue + DEAD_SUFFIX


def served_queue(queue: str) -> str:
    """The queue whose dead messages `queue` keeps; itself, where it keeps none.

    >>> served_queue("mail.dead"), served_queue("mail")
    ('mail', 'mail')
    """
    return queue.removesuffix(DEAD_SUFFIX)


def is_dead_queue(queue: str) -> bool:
    """Whether a queue keeps the dead messages of another."""
    return queue.endswith(DEAD_SUFFIX)
