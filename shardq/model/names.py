"""The alphabets of names, checked before any I/O.

Nothing that a user types is ever spliced into CQL or SQL; these bounds keep names printable and
short.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from shardq.errors import BadName, shown

DEAD_SUFFIX = ".dead"

# There is room for the suffix, so that a queue with the longest name can have dead messages.
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(?:\.dead)?\Z", re.ASCII)
_KEYSPACE = re.compile(r"[a-z][a-z0-9_]{0,47}\Z", re.ASCII)
TEXT_MAX = 256
"""Characters of a label, at most."""
_JOINERS = re.compile("[\u200c\u200d\U000e0020-\U000e007f]")
"""Invisible characters that join visible ones: emoji, letters of some scripts, tags of flags."""
_EMOJI = re.compile("[\U0001f000-\U0001fbff]")
"""Emoji, because a Python knows only the emoji of its release; other processes may be newer."""


def is_queue_name(value: str) -> bool:
    """True if a text can be a queue's name."""
    return _QUEUE.match(value) is not None


def queue_name(value: object) -> str:
    """A queue's name: 1 to 100 of `A-Z a-z 0-9 . _ -`, the first a letter or digit."""
    if isinstance(value, str) and is_queue_name(value):
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


def label(value: object, *, what: str, most: int = TEXT_MAX) -> str:
    """A group, message id or header name: 1 to 256 printable characters of any script, emoji too.

    Characters are Unicode's: a joined emoji has several.

    Args:
        value: The text.
        what: Its name in errors.
        most: The most characters that it may have.
    """
    if isinstance(value, str) and 0 < len(value) <= most and is_printable(value):
        return value
    if not isinstance(value, str):
        kind = "" if value is None else f"{type(value).__name__} "
        raise BadName(f"{what} must be text, not {kind}{shown(value)}.")
    raise BadName(f"{what} {shown(value)} must be 1 to {most} printable characters.")


def several(value: object, *, what: str) -> tuple[Any, ...]:
    """A list of names. A single text is refused, because each letter would be taken for a name.

    Args:
        value: The names, which are not checked themselves.
        what: Their name in errors.
    """
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(value)
    raise BadName(f"{what} must be a list of names, as [{shown(value)}], not {shown(value)} alone.")


def is_within(narrow: str, wide: str) -> bool:
    """True if a name, or all names of a pattern, match a wider pattern. Names have no `*`.

    A pattern is a name, or the beginning of names and a `*`.

    >>> is_within("shop.mail", "shop.*"), is_within("shop.a*", "shop.*"), is_within("*", "shop.*")
    (True, True, False)
    """
    return narrow == wide or (wide.endswith("*") and narrow.startswith(wide[:-1]))


def is_printable(text: str) -> bool:
    r"""True if a text is visible, in one line, and has no character that controls a terminal.

    >>> is_printable("👩\u200d🚀 é"), is_printable("\u200d"), is_printable("a\u202eb")
    (True, False, False)
    """
    if text.isprintable():
        return True
    seen = _EMOJI.sub("x", _JOINERS.sub("", text))
    return seen != "" and seen.isprintable()


def dead_queue(queue: str) -> str:
    """The name of the queue that keeps the dead messages of `queue`."""
    return queue + DEAD_SUFFIX


def served_queue(queue: str) -> str:
    """The queue whose dead messages `queue` keeps; `queue` itself if it is no such queue.

    >>> served_queue("mail.dead"), served_queue("mail")
    ('mail', 'mail')
    """
    return queue.removesuffix(DEAD_SUFFIX)


def is_dead_queue(queue: str) -> bool:
    """True if a queue keeps the dead messages of another."""
    return queue.endswith(DEAD_SUFFIX)


def nearest(asked: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a given one, as a whole or by the part after its last dot.

    >>> nearest("nigthly", ["shop.jobs.nightly", "hourly"])
    'shop.jobs.nightly'
    """
    # Imported here, because only a wrong name needs it.
    from difflib import get_close_matches

    meant: dict[str, str] = {}
    for name in known:
        meant.setdefault(name.rpartition(".")[2].casefold(), name)
        meant[name.casefold()] = name
    found = get_close_matches(asked.casefold(), meant, 1)
    return meant[found[0]] if found else None


def hint(asked: str, known: Iterable[str], otherwise: str) -> str:
    """The end of an error about an unknown name: a similar name, or else another text.

    >>> hint("qeue", ["queue", "body"], "there are queue, body.")
    "did you mean 'queue'?"
    """
    near = nearest(asked, known)
    return otherwise if near is None else f"did you mean {near!r}?"
