"""A key: the name that a user gave one live message of a queue, as the message's row keeps it.

The table `keys` records the message that a name stands for now.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from shardq.errors import StoreCorrupt, shown
from shardq.model import names

BUCKETS = 16
"""Partitions over which the names of a queue are spread."""
NEVER = 10**17
"""A generation that no message reaches: a row of this generation never runs."""
_TEXT = re.compile(r"([1-9][0-9]{0,17}):([1-9][0-9]{0,17})?:(.+)", re.DOTALL)

_USUAL = "1::"
_USUAL_CHARS = len(_USUAL)
"""The beginning of a stored key of generation 1 whose name is not held after the end."""


class MessageKey(NamedTuple):
    """The name of a message, its generation, and how long the name is held.

    Attributes:
        name: The name that the user gave: 1 to 256 printable characters.
        generation: 1 for the first put; each command by key that replaces the row adds one. A row
            of an older generation never runs.
        unique_ms: The time for which the name is held after the message's end, milliseconds; None:
            the name is free at once.
    """

    name: str
    generation: int = 1
    unique_ms: int | None = None

    def text(self) -> str:
        """The stored form: `generation:unique_ms:name`.

        >>> MessageKey("order-7").text(), MessageKey("a:b", 2, 3_600_000).text()
        ('1::order-7', '2:3600000:a:b')
        """
        return f"{self.generation}:{self.unique_ms or ''}:{self.name}"

    @classmethod
    def read(cls, text: object) -> MessageKey:
        """A key from its stored form.

        Raises:
            StoreCorrupt: If the text is no key.
        """
        key = parsed(text) if isinstance(text, str) else None
        if key is None:
            raise StoreCorrupt(
                f"the key of a row is damaged: {shown(text)}; delete that row, or restore the "
                f"store from a copy."
            )
        return key


@lru_cache(maxsize=8192)
def parsed(text: str) -> MessageKey | None:
    """The key in a stored text; None if damaged. Cached, because each step reads the key again."""
    if text.startswith(_USUAL) and _USUAL_CHARS < len(text) <= _USUAL_CHARS + names.TEXT_MAX:
        # The most frequent form, read in a third of the time.
        return MessageKey(text[_USUAL_CHARS:])
    found = _TEXT.fullmatch(text)
    if found is None or len(found[3]) > names.TEXT_MAX:
        return None
    generation, held, name = found.groups()
    return MessageKey(name, int(generation), int(held) if held else None)


def bucket_of(name: str) -> int:
    """The bucket of a name, 0 to `BUCKETS` - 1, the same in every process and language.

    >>> bucket_of("order-7")
    10
    """
    return crc32(name.encode()) % BUCKETS
