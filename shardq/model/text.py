"""Numbers in sentences."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """A number with its noun.

    >>> plural(37892, "message"), plural(1, "queue"), plural(2, "delivery")
    ('37,892 messages', '1 queue', '2 deliveries')
    """
    many = noun.removesuffix("y") + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else many}"
