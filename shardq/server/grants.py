"""The rights of a server's key: levels, and patterns of queues.

A pattern is a queue's name, or the beginning of names and a `*`. Other wildcards do not exist, so
that a pattern is matched in no time and can be compared with another one.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from shardq.errors import UsageError, shown
from shardq.model.names import is_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Level(StrEnum):
    """One kind of request that a key may make, with its letter."""

    READ = "r"
    """Receive, peek and show messages."""
    PUT = "p"
    UPDATE = "u"
    """Retry, snooze and extend a delivery; move and edit a message."""
    ACK = "a"
    """End a delivery or a message: ack, bury, cancel."""
    GET = "g"
    """Look at a queue: settings, statistics, history; list queues."""
    CREATE = "c"
    """Create a queue."""
    DELETE = "d"
    """Drop or purge a queue."""
    SCHEDULE = "s"
    """Look at schedules, make and change them."""
    MANAGE = "m"
    """Alter, pause and resume queues, redrive and forward; accounts, keys, signed urls, actions."""


ALL = "".join(Level)
"""Every level."""
ANY_QUEUE = "*"
QUEUES_MAX = 100
"""The most patterns of a key."""
_PATTERN = re.compile(r"[A-Za-z0-9._-]{0,120}\*?\Z", re.ASCII)
_WORDS = {level.name.lower(): level.value for level in Level}


def levels_of(text: str) -> str:
    """Levels as they are stored: letters, in one order.

    Args:
        text: Letters, or words with commas between them, or `all`.

    Raises:
        UsageError: If the text names no level, or a level that does not exist.

    >>> levels_of("ar"), levels_of("read,ack"), levels_of("all")
    ('ra', 'ra', 'rpuagcdsm')
    """
    wanted = text.lower()
    if wanted == "all":
        return ALL
    words = [word.strip() for word in wanted.split(",")]
    letters = {_WORDS[word] for word in words} if all(map(_WORDS.get, words)) else set(wanted)
    if not letters or not letters <= set(ALL):
        named = ", ".join(f"{letter} {word}" for word, letter in _WORDS.items())
        raise UsageError(
            f"levels {shown(text)} must be letters such as 'rpa', or words such as 'read,put,ack', "
            f"or 'all'. There are: {named}."
        )
    return "".join(letter for letter in ALL if letter in letters)


def patterns_of(given: Iterable[str]) -> tuple[str, ...]:
    """Patterns of queues, checked, each once.

    Raises:
        UsageError: If a text is no pattern, or there are no patterns or too many.
    """
    patterns = tuple(dict.fromkeys(given))
    for pattern in patterns:
        if not pattern or not _PATTERN.match(pattern):
            raise UsageError(
                f"{shown(pattern)} must be a queue's name, or its beginning and a *: 'orders', "
                f"'shop.*', '*'."
            )
    if not 0 < len(patterns) <= QUEUES_MAX:
        raise UsageError(f"a key has 1 to {QUEUES_MAX} patterns of queues, not {len(patterns)}.")
    return patterns


def matches(patterns: Sequence[str], queue: str) -> bool:
    """True if a queue matches one of these patterns.

    >>> matches(["orders", "shop.*"], "shop.mail"), matches(["orders"], "orders.dead")
    (True, False)
    """
    return any(is_within(queue, pattern) for pattern in patterns)


def within(some: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The patterns of the queues that match both lists: of each matching pair the narrower one.

    >>> within(["*"], ["shop.*"]), within(["shop.mail", "post"], ["shop.*"])
    (('shop.*',), ('shop.mail',))
    """
    found = [one for one in some if any(is_within(one, other) for other in others)]
    found += [other for other in others if any(is_within(other, one) for one in some)]
    return tuple(dict.fromkeys(found))


def covers(patterns: Sequence[str], others: Iterable[str]) -> bool:
    """True if every queue that matches one of the others matches one of these patterns.

    >>> covers(["shop.*"], ["shop.mail", "shop.a*"]), covers(["shop.*"], ["*"])
    (True, False)
    """
    return all(matches(patterns, other) for other in others)
