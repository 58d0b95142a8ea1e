"""Times, numbers and bodies as people read them on pages."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from shardq.model.times import iso, span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BODY_CHARS_MAX = 64 << 10
"""How much of a body is shown."""
_HIDDEN = "(hidden)"
_NOTHING = Markup("-")
_TIME = Markup(
    '<time datetime="{}"><span class="about">{}</span> <span class="exact">{}</span></time>'
)
_EXACT = Markup('<time datetime="{}"><span class="exact">{}</span></time>')
_DEEP = 50
_TIMES = 8
"""An unprintable character is shown up to so many times; if it is repeated more, with a number."""


def count(number: int | float | None) -> str:
    """A number with separated thousands; a dash for None.

    >>> count(12_345), count(None)
    ('12,345', '-')
    """
    return "-" if number is None else f"{number:,}"


def rate(per_second: float) -> str:
    """A rate.

    >>> rate(0.0), rate(0.02), rate(0.42), rate(12_345.6)
    ('0/s', '<0.1/s', '0.4/s', '12,346/s')
    """
    if 0 < per_second < 0.05:
        return "<0.1/s"
    return f"{per_second:.1f}/s" if 0 < per_second < 10 else f"{per_second:,.0f}/s"


def moment(when: str | int | None, now_ms: int) -> Markup:
    """A time: its distance from now, and the exact time in UTC.

    Args:
        when: ISO 8601, or epoch milliseconds; None: a dash.
        now_ms: Epoch milliseconds.
    """
    if when is None or when == 0:
        return _NOTHING
    text = iso(when) if isinstance(when, int) else when
    at_ms = when if isinstance(when, int) else round(datetime.fromisoformat(when).timestamp() * 1e3)
    far = span(abs(at_ms - now_ms))
    about = f"in {far}" if at_ms > now_ms else f"{far} ago"
    exact = text.replace("T", " ").replace("+00:00", "Z")
    return _TIME.format(text, about, exact)


def exact(when: str | int | None) -> Markup:
    """The exact time, to the second, which does not change while somebody looks at the page.

    Args:
        when: ISO 8601, or epoch milliseconds; None: a dash.
    """
    if when is None:
        return _NOTHING
    text = iso(when) if isinstance(when, int) else iso(datetime.fromisoformat(when))
    return _EXACT.format(text, f"{text[:10]} {text[11:19]}Z")


def shown_body(message: Mapping[str, Any], hidden: Sequence[str]) -> tuple[str, str]:
    """A message's body as text to show, and its kind: `JSON`, `text` or `bytes, in base64`.

    Args:
        message: The message, as `/v1` has it.
        hidden: Patterns of names whose values are hidden.
    """
    if (content := message.get("body_base64")) is not None:
        return _cut(content), "bytes, in base64"
    text = message.get("body") or ""
    if text[:1] in ("{", "["):
        try:
            made = json.loads(text)
        except (ValueError, RecursionError):
            return _cut(text), "text"
        return _cut(json.dumps(without(made, hidden), indent=2, ensure_ascii=False)), "JSON"
    return _cut(text), "text"


def size_of(message: Mapping[str, Any]) -> int:
    """The bytes of a message's body."""
    if (content := message.get("body_base64")) is not None:
        return len(base64.b64decode(content))
    return len((message.get("body") or "").encode("utf-8", "surrogatepass"))


def without(value: Any, hidden: Sequence[str], depth: int = 0) -> Any:
    """A JSON value, without the values of hidden names."""
    if not hidden or depth > _DEEP:
        return value
    if isinstance(value, dict):
        return {
            name: _HIDDEN if is_hidden(name, hidden) else without(one, hidden, depth + 1)
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [without(one, hidden, depth + 1) for one in value]
    return value


def is_hidden(name: str, hidden: Sequence[str]) -> bool:
    """True if the values of a name are hidden.

    >>> is_hidden("Password", ["*password*"])
    True
    """
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in hidden)


def printable(text: object) -> Markup:
    r"""A text of any source, with unprintable characters shown as their codes.

    >>> str(printable("a\u202eb"))
    'a<i class="code">U+202E</i>b'
    >>> str(printable("\0" * 65_536))
    '<i class="code">U+0000, 65,536 times</i>'
    """
    parts: list[str] = []
    for is_shown, run in groupby(str(text), _is_shown):
        if is_shown:
            parts.append(str(escape("".join(run))))
            continue
        for character, same in groupby(run):
            times = sum(1 for _ in same)
            many = f", {times:,} times" if times > _TIMES else ""
            code = f'<i class="code">U+{ord(character):04X}{many}</i>'
            parts.append(code if many else code * times)
    return Markup("".join(parts))  # noqa: S704 - all texts in it are escaped


def _is_shown(character: str) -> bool:
    return character in "\n\t" or character.isprintable()


def _cut(text: str) -> str:
    left = len(text) - BODY_CHARS_MAX
    return text if left <= 0 else f"{text[:BODY_CHARS_MAX]}\n… and {left:,} characters more"
