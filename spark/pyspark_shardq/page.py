"""A report as one HTML file that needs nothing else: pictures inside, no scripts, fit to print.

What a job found stands first, in a sentence; then what was asked, and the job's sections. All text
is escaped, and the file forbids itself to load anything.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from shardq.model.times import iso

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class PageTable:
    """Rows under columns.

    Attributes:
        columns: Their names; one that begins with `>` holds numbers, and is flush right.
        rows: The cells: numbers get thousands separators, those that are not whole one decimal;
            times are UTC, None is empty.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


def table(columns: str, rows: Iterable[Iterable[object]]) -> PageTable:
    """A table of columns; `PageTable` says what is in a name. Between names is a `|`."""
    return PageTable(tuple(columns.split("|")), tuple(map(tuple, rows)))


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot.

    Attributes:
        png: Its bytes.
        what: What it shows; stands below it, and in its place where it cannot be seen.
    """

    png: bytes
    what: str


Part: TypeAlias = str | PageTable | Picture
"""A part of a section: a paragraph, a table or a picture."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and the parts under it."""

    title: str
    parts: tuple[Part, ...]


def section(title: str, *parts: Part) -> Section:
    """A heading, and what stands under it."""
    return Section(title, parts)


def page(
    title: str,
    line: str,
    sections: Sequence[Section],
    *,
    at_ms: int,
    asked: Mapping[str, object],
) -> str:
    """The whole report.

    Args:
        title: What it is of, `Backlog of reminders`.
        line: The outcome in a sentence.
        sections: What stands below, in order.
        at_ms: When it was made, epoch milliseconds.
        asked: What was asked for, name -> value; those of None are left out.

    Returns:
        HTML, to be stored as UTF-8.
    """
    known = [(name, value) for name, value in asked.items() if value is not None]
    terms = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in known)
    body = "\n".join(_section(section) for section in sections)
    return (
        f"{_HEAD}<title>{_plain(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{_text(title)}</h1>\n<p class=line>{_text(line)}</p>\n"
        f"<dl>{terms}<dt>made</dt><dd>{iso(at_ms)}</dd></dl>\n</header>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = "\n".join(_part(part) for part in section.parts)
    return f"<section>\n<h2>{_text(section.title)}</h2>\n{parts}\n</section>"


def _part(part: Part) -> str:
    if isinstance(part, PageTable):
        return _table(part)
    if isinstance(part, Picture):
        data = b64encode(part.png).decode()
        return (
            f'<figure><img alt="{_plain(part.what)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{_text(part.what)}</figcaption></figure>"
        )
    return f"<p>{_text(part)}</p>"


def _table(table: PageTable) -> str:
    if not table.rows:
        return "<p class=none>None.</p>"
    classes = [" class=n" if column.startswith(">") else "" for column in table.columns]
    names = [_text(column.removeprefix(">")) for column in table.columns]
    head = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(classes, names, strict=True))
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_text(cell)}</td>" for kind, cell in zip(classes, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def _text(value: object) -> str:
    """A value in the text of the page."""
    return _TIME.sub(r"<time>\g<0></time>", _plain(value))


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return iso(value)
    shown = str(value)
    if type(value) is int:
        shown = f"{value:,}"
    elif type(value) is float:
        shown = f"{value:,.1f}"
    # Half a surrogate pair, in a name that a user gave, has no UTF-8.
    return escape(shown.encode("utf-8", "replace").decode())


_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?Z)?")
"""A line that ends within such a day or time is hard to read."""
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
"""

_STYLE = """
:root { color-scheme: light; }
body { background: #fff; color: #222; font: 15px/1.5 system-ui, sans-serif;
 margin: 2rem auto; max-width: 62rem; padding: 0 1.2rem; }
h1 { font-size: 1.5rem; font-weight: 600; margin: 0; }
h2 { border-top: 1px solid #ddd; font-size: 1.1rem; font-weight: 600; margin: 2rem 0 .6rem;
 padding-top: 1rem; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
time { white-space: nowrap; }
.line { font-size: 1.15rem; margin: .4rem 0 .8rem; }
.none, figcaption, dl { color: #666; }
dl { display: flex; flex-wrap: wrap; font-size: .85rem; gap: .2rem 1.4rem; margin: 0; }
dt, dd { margin: 0; }
dt::after { content: ":"; }
dt { margin-right: -1.1rem; }
dd { color: #222; overflow-wrap: anywhere; }
figure { margin: .8rem 0 1.2rem; }
section { overflow-x: auto; }
figcaption { font-size: .85rem; }
img { height: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
 margin: .6rem 0 1.2rem; }
th, td { overflow-wrap: anywhere; padding: .25rem 1.6rem .25rem 0; text-align: left;
 vertical-align: top; }
th { border-bottom: 1px solid #999; font-weight: 600; }
td { border-bottom: 1px solid #eee; }
.n { overflow-wrap: normal; text-align: right; white-space: nowrap; }
@media print {
 body { font-size: 10pt; margin: 0; max-width: none; padding: 0; }
 figure, tr, h2 { break-inside: avoid; }
 h2 { break-after: avoid; }
 thead { display: table-header-group; }
}
"""
