"""The views: the columns of each, and what of a row, a mark of the ledger or a shard they hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_shardq.batches import names_of, times
from pyspark_shardq.columns import TIMESTAMP, Columns, ViewColumn, ddl
from shardq.errors import UsageError, shown
from shardq.model.message import priority_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_shardq.options import Options
    from shardq.model.shard import Layout


def _queues(held: Any) -> pa.Array:
    return _repeated(held.layout.queue, len(held.shards))


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _minutes(held: Any) -> list[int]:
    return [shard[1] for shard in held.shards]


def _lanes(held: Any) -> list[int]:
    return [shard[2] for shard in held.shards]


def _band_of(layout: Layout, lane: int) -> int | None:
    """The band of a lane; None for a lane of groups."""
    return None if layout.is_of_groups(lane) else layout.band_of(lane)


def _moment_or_none(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None


def _count_or_none(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


BODY = ViewColumn("body", "BINARY", lambda rows: rows.bodies)

MESSAGES: Columns = (
    ViewColumn("queue", "STRING", _queues),
    ViewColumn("minute", "BIGINT", _minutes),
    ViewColumn("lane", "INT", _lanes),
    ViewColumn(
        "priority", "INT", lambda rows: [priority_of(row, rows.layout) for row in rows.rows]
    ),
    ViewColumn("due", "TIMESTAMP", lambda rows: times(rows.dues_ms)),
    ViewColumn("first_due", "TIMESTAMP", lambda rows: times(rows.first_dues_ms)),
    ViewColumn("id", "STRING", lambda rows: names_of(rows.names, rows.entries)),
    ViewColumn("row_id", "BINARY", lambda rows: rows.ids),
    ViewColumn("entry", "BINARY", lambda rows: rows.entries),
    ViewColumn("entered", "TIMESTAMP", lambda rows: rows.entered_us.view(TIMESTAMP)),
    ViewColumn("attempt", "INT", lambda rows: rows.attempts),
    ViewColumn("group", "STRING", lambda rows: rows.groups, is_nullable=True),
    ViewColumn("in_flight", "BOOLEAN", lambda rows: [claim is not None for claim in rows.claims]),
    ViewColumn(
        "not_before",
        "TIMESTAMP",
        lambda rows: times([row.not_before_ms for row in rows.rows]),
        is_nullable=True,
    ),
    ViewColumn("headers", "MAP<STRING, STRING>", lambda rows: rows.header_maps(), is_nullable=True),
    ViewColumn(
        "last_error", "STRING", lambda rows: [one for one, _ in rows.errors], is_nullable=True
    ),
    ViewColumn(
        "last_error_at", "TIMESTAMP", lambda rows: [at for _, at in rows.errors], is_nullable=True
    ),
    BODY,
)
"""`due` is when the row next needs attention, `first_due` what was first asked for; `id` is the
message's, `row_id` that of its row, which every move changes, `entry` that of its first row, by
which the history knows it; `in_flight`: it is a claim; `not_before`: when a message of a group that
was postponed in place may be handed out."""

DEAD: Columns = (
    *MESSAGES,
    ViewColumn("reason", "STRING", lambda rows: rows.header("shardq-reason"), is_nullable=True),
    ViewColumn(
        "died",
        "TIMESTAMP",
        lambda rows: [_moment_or_none(text) for text in rows.header("shardq-died")],
        is_nullable=True,
    ),
    ViewColumn(
        "attempts",
        "INT",
        lambda rows: [_count_or_none(text) for text in rows.header("shardq-attempts")],
        is_nullable=True,
    ),
    ViewColumn(
        "traceback", "STRING", lambda rows: rows.header("shardq-traceback"), is_nullable=True
    ),
)
"""A message that was put into the dead-letter queue by hand has none of the last four."""

HISTORY: Columns = (
    ViewColumn("queue", "STRING", lambda marks: _repeated(marks.queue, len(marks.entries))),
    ViewColumn("id", "STRING", lambda marks: names_of(marks.names, marks.entries)),
    ViewColumn("row_id", "BINARY", lambda marks: marks.entries),
    ViewColumn("entered", "TIMESTAMP", lambda marks: marks.entered_us.view(TIMESTAMP)),
    ViewColumn("due", "TIMESTAMP", lambda marks: times(marks.dues_ms), is_nullable=True),
    ViewColumn("fate", "STRING", lambda marks: marks.all_fates(), is_nullable=True),
    ViewColumn(
        "ended", "TIMESTAMP", lambda marks: times(marks.of_ended("ended_ms")), is_nullable=True
    ),
    ViewColumn("attempt", "INT", lambda marks: marks.attempts),
    ViewColumn("member", "STRING", lambda marks: marks.of_ended("members"), is_nullable=True),
    ViewColumn("task", "STRING", lambda marks: marks.tasks, is_nullable=True),
)
"""`row_id` is that of the message's first row, the `entry` of messages; `due` null: the put is not
recorded; `fate` null: it has not ended; `ended` null: no end is recorded."""

SHARDS: Columns = (
    ViewColumn("queue", "STRING", _queues),
    ViewColumn("minute", "BIGINT", _minutes),
    ViewColumn(
        "start",
        "TIMESTAMP",
        lambda held: times([held.layout.start_ms(minute) for minute in _minutes(held)]),
    ),
    ViewColumn("lane", "INT", _lanes),
    ViewColumn(
        "priority",
        "INT",
        lambda held: [_band_of(held.layout, lane) for lane in _lanes(held)],
        is_nullable=True,
    ),
    ViewColumn("rows", "BIGINT", lambda held: [tally.rows for tally in held.tallies]),
    ViewColumn("in_flight", "BIGINT", lambda held: [tally.claims for tally in held.tallies]),
)
"""`priority` null: a lane for groups, whose messages have priorities of their own."""

VIEWS: dict[str, Columns] = {
    "messages": MESSAGES,
    "dead": DEAD,
    "history": HISTORY,
    "shards": SHARDS,
}


def of_view(options: Options) -> Columns:
    """The columns that are asked for.

    Raises:
        UsageError: If there is no such view or column.
    """
    every = VIEWS.get(options.view)
    if every is None:
        raise UsageError(
            f"there is no view {shown(options.view)}; there are {', '.join(VIEWS)}: give one, as "
            f"in .option('view', 'dead')."
        )
    if options.columns is None:
        return tuple(one for one in every if options.bodies or one is not BODY)
    known = {one.name: one for one in every}
    for name in options.columns:
        if name.lower() not in known:
            raise UsageError(
                f"view {options.view!r} has no column {shown(name)}; it has {', '.join(known)}."
            )
    return tuple(known[name.lower()] for name in options.columns)


def of_schema(view: str, schema: StructType) -> Columns:
    """The columns that Spark expects: those of the view, or what the user has given for them.

    Raises:
        UsageError: If a schema was given that the view cannot fill.
    """
    known = {one.name: one for one in VIEWS[view]}
    wanted: list[ViewColumn] = []
    for field in schema.fields:
        column = known.get(field.name)
        type_name = field.dataType.simpleString().upper()
        if column is None or type_name != column.type.replace(", ", ",").upper():
            raise UsageError(
                f"view {view!r} has no column {field.name} {type_name}; leave the schema out, or "
                f"choose from {ddl(VIEWS[view])}."
            )
        wanted.append(replace(column, is_nullable=field.nullable))
    return tuple(wanted)
