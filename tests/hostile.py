"""What a stranger may hand to shardq, and what an error has to be."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from shardq.errors import ShardqError
from shardq.model.names import is_printable

if TYPE_CHECKING:
    from collections.abc import Iterator

INJECTIONS = [
    "'",
    '"',
    "''; DROP TABLE messages; --",
    "x'); DELETE FROM messages; --",
    'Robert"); DROP TABLE queues;--',
    "mail' OR '1'='1",
    "{}",
    "{0.__class__}",
    "%s%s%n",
    "%(queue)s",
    "/* x */ -- x",
    "$$; ?1 :name",
    "[red]x[/red]",
    "../../etc/passwd",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "\udcff",
    "ü" * 256,
    "ü" * 257,
    "",
]
"""Names that would break a statement, a format, a terminal or a path, if spliced into one."""

hostile_text = st.one_of(
    st.sampled_from([*INJECTIONS, "\ud83d\ude00"]),
    st.text(st.characters(), max_size=60),
    st.text(max_size=300),
)
"""Unicode of all kinds, surrogate pairs and halves of them among it."""

_NESTED: list[Any] = []
for _ in range(5_000):
    _NESTED = [_NESTED]

_EXTREMES: dict[str, Any] = {
    "a number of 5,001 digits": 10**5_000,
    "a negative number of 5,001 digits": -(10**5_000),
    "a number of 65 bits": 1 << 64,
    "a negative number": -1,
    "zero": 0,
    "a list 5,000 deep": _NESTED,
}
"""Name -> value. Hypothesis prints the names, because some values cannot be printed."""

hostile_value = st.one_of(
    hostile_text,
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(list(_EXTREMES)).map(lambda name: _EXTREMES[name]),
    st.floats(),
    st.binary(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.builds(object),
)
"""Whatever a program may pass by mistake."""


def is_sayable(name: str) -> bool:
    """True if a text can be the name of something."""
    return 0 < len(name) <= 256 and is_printable(name)


def is_clear(text: str) -> bool:
    """True if an error is a sentence: printable, in one line, not endless, with its stop."""
    return text.isprintable() and 10 < len(text) < 700 and text.endswith(".")


@contextmanager
def refusals() -> Iterator[None]:
    """Lets an error of shardq's pass that is one clear sentence, and no other."""
    try:
        yield
    except ShardqError as error:
        if not is_clear(str(error)):
            raise AssertionError(f"{type(error).__name__}: {error!s:.300}") from error
