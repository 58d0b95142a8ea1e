"""The core's arithmetic of messages, as column expressions that Spark's own JVM evaluates.

```
 due ──► due_ms ──► minute           TIMESTAMP, or text with an offset
 key ──► spread, lane                crc32 of UTF-8, as `model/shard.py`
 text ─► is_label                    `model/names.py`'s rule
```

Each gives what its twin in `model/` gives: tests compare them on random keys.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from shardq.model.names import TEXT_MAX, is_printable

if TYPE_CHECKING:
    from pyspark.sql import Column

    from shardq.model.shard import Layout

_OFFSET = r"(?i)^(\d{4}-\d\d-\d\d)[t ](\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)(z|[+-]\d\d(?::?\d\d)?)\z"
"""A time with an offset, as Spark reads one: its regions and short years are left out."""
_NAIVE = r"(?i)^\d{4}-\d\d-\d\d(?:[t ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)?\z"


def due_ms(moment: Column) -> Column:
    """Epoch milliseconds of a TIMESTAMP, rounded up, as `times.due_ms`."""
    rest = F.pmod(F.unix_micros(moment), F.lit(1_000))
    return F.unix_millis(moment) + F.when(rest > 0, 1).otherwise(0)


def moment_of(text: Column) -> Column:
    """The TIMESTAMP of a text with an offset; null where it cannot be read or has none."""
    date, clock, offset = (F.regexp_extract(text, _OFFSET, group) for group in (1, 2, 3))
    # Spark reads no time without seconds, and no offset without a colon.
    clock = F.when(F.char_length(clock) == 5, F.concat(clock, F.lit(":00"))).otherwise(clock)
    offset = F.regexp_replace(F.upper(offset), r"^([+-]\d\d):?(\d\d)$", "$1:$2")
    offset = F.regexp_replace(offset, r"^([+-]\d\d)$", "$1:00")
    return F.try_to_timestamp(F.concat(date, F.lit("T"), clock, offset))


def is_naive(text: Column) -> Column:
    """True if a text is a time that lacks nothing but its offset."""
    return F.rlike(text, F.lit(_NAIVE))


def minute(at_ms: Column, layout: Layout) -> Column:
    """The minute of a due, as `Layout.minute_of`."""
    return F.floor(at_ms / F.lit(layout.minute_ms)).cast("long")


def spread(key: Column, spread_ms: int) -> Column:
    """The delay of a message in milliseconds: equal keys have equal delays."""
    return F.crc32(key.cast("binary")) % F.lit(max(spread_ms, 1))


def lane(key: Column, band: Column, layout: Layout, group: Column | None = None) -> Column:
    """The lane of a message, as `Layout.named_lane` and, with a group, `Layout.group_lane`."""
    seed = F.lit(layout.queue.encode() + b"\0")
    index = F.crc32(F.concat(seed, key.cast("binary"))) % layout.lanes_written
    named = F.lit(layout.first_lane) + band + index * layout.bands
    if group is not None:
        grouped = F.crc32(F.concat(seed, group.cast("binary"))) % layout.group_lanes
        named = F.when(group.isNull(), named).otherwise(grouped + layout.first_group_lane)
    return named.cast("int")


def name_text(key: str, at_ms: int, band: int = 0, group: str | None = None) -> str:
    r"""The text that fixes a message's row id: its key and due, and what else decides on its lane.

    Otherwise messages of one key and due in two lanes would share a row id.

    >>> name_text("anna", 90_000), name_text("anna", 90_000, 1)
    ('anna\x0090000', 'anna\x0090000\x001\x00')
    """
    plain = f"{key}\0{at_ms}"
    return f"{plain}\0{band}\0{group or ''}" if band or group else plain


def is_label(text: Column) -> Column:
    """True if a text may be a message's id, its group or a header's name, as `names.label`."""
    hidden, joiners = _classes()
    length = F.char_length(text)
    seen = ~F.rlike(text, F.lit(f"[{hidden}]")) & F.rlike(text, F.lit(f"[^{joiners}]"))
    is_plain = F.rlike(text, F.lit(r"\A[ -~]+\z"))
    return F.is_valid_utf8(text) & (length >= 1) & (length <= TEXT_MAX) & (is_plain | seen)


@cache
def _classes() -> tuple[str, str]:
    """Characters that no label may have, and characters that no label may consist of.

    Texts for Java's patterns. Python decides for each character, because Java's tables are of
    another release of Unicode.
    """
    unseen = [code for code in range(sys.maxunicode + 1) if not chr(code).isprintable()]
    # Test each beside a letter: some unprintable characters are allowed as joiners of others.
    hidden = [code for code in unseen if not is_printable("x" + chr(code))]
    joiners = [code for code in unseen if not is_printable(chr(code))]
    joiners = sorted(set(joiners) - set(hidden))
    return _class(hidden), _class(joiners)


def _class(codes: list[int]) -> str:
    """A character class of sorted code points, as Java writes one."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)
