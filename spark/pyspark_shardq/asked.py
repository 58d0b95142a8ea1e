"""Makes messages of the columns of a frame, and finds the rows that cannot be messages.

```
 key, due, body, priority, group, headers ──► their types, before anything is read
                                          ──► each row: due_ms and lane, or a reason
```

All of it is columns that Spark's JVM evaluates; `expressions.py` has the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Required, TypeAlias, TypedDict

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq import expressions as x
from pyspark_shardq.columns import columns_in
from pyspark_shardq.complaint import translated
from shardq.errors import BadSetting, UsageError, shown
from shardq.model.message import BODY_BYTES_MAX, MESSAGE_BYTES_MAX, RESERVED_HEADER
from shardq.model.times import DELAY_MAX_MS, duration_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_shardq.runs import SparkRun
    from shardq.model.shard import Layout
    from shardq.model.times import Duration

Named: TypeAlias = "str | Column"
"""A column, or its name."""


class ColumnNames(TypedDict, total=False):
    """The columns of a frame that make messages, as `QueueJobs.schedule` is given them."""

    key: Required[Named]
    due: Required[Named]
    body: Named | None
    priority: Named | int | None
    group: Named | None
    headers: Named | None
    spread: Duration | None


ROW = "row"
"""The column that holds a row of the frame as it came."""
REASON = "reason"
TORN = "_corrupt_record"
"""The column in which Spark keeps a line that it cannot read; null where it can."""
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NESTED = ("struct<", "map<", "array<")
_HEADERS = "map<string,string>"


@dataclass(frozen=True)
class FrameColumns:
    """The columns of a frame that make messages.

    Attributes:
        key: Its id, as text.
        due: Its due, as it is: a TIMESTAMP, or a text with an offset.
        is_text: True if the due is a text.
        body: Its body, as bytes.
        priority: Its priority, a whole number.
        has_one_band: True if it is 0 for all.
        group: Its group; None: of none.
        headers: Its headers; None: of none.
        spread_ms: Over how long equal dues are spread, milliseconds.
        torn: The text of a line that could not be read.
    """

    key: Column
    due: Column
    is_text: bool
    body: Column
    priority: Column
    has_one_band: bool = True
    group: Column | None = None
    headers: Column | None = None
    spread_ms: int = 0
    torn: Column | None = None

    @classmethod
    def of(
        cls,
        frame: DataFrame,
        *,
        key: Named,
        due: Named,
        body: Named | None = None,
        priority: Named | int | None = None,
        group: Named | None = None,
        headers: Named | None = None,
        spread: Duration | None = None,
    ) -> FrameColumns:
        """The columns of this frame that make messages; their types are checked.

        The arguments are those of `QueueJobs.schedule`.

        Raises:
            UsageError: If a column is not there, or of a wrong type.
        """
        due_type = _type(frame, due, "due")
        _expect(due_type, "due", ("timestamp", "string"))
        _expect(_type(frame, key, "key"), "key", ("string", *_WHOLE))
        if isinstance(priority, (str, Column)):
            _expect(_type(frame, priority, "priority"), "priority", _WHOLE)
            band = _column(frame, priority)
        elif priority is None or type(priority) is int:
            band = F.lit(priority or 0)
        else:
            raise BadSetting(f"priority must be a column or a number, not {shown(priority)}.")
        if group is not None:
            _expect(_type(frame, group, "group"), "group", ("string", *_WHOLE))
        return cls(
            key=_column(frame, key).cast("string"),
            due=_column(frame, due),
            is_text=due_type == "string",
            body=_body(frame, body),
            priority=band.cast("bigint"),
            has_one_band=not isinstance(priority, (str, Column)) and not priority,
            group=None if group is None else _column(frame, group).cast("string"),
            headers=None if headers is None else _headers(frame, headers),
            spread_ms=0 if spread is None else duration_ms(spread, name="spread"),
            torn=F.col(TORN) if TORN in frame.columns else None,
        )

    def judged(self, frame: DataFrame, run: SparkRun, layout: Layout) -> DataFrame:
        """Each row of a frame as it came, and the message that it makes, or why it makes none.

        Returns:
            Columns `row`, `reason`, `name`, `minute`, `lane`, `due_ms` and `body`, and `band`,
            `group` and `headers` where rows differ in them.
        """
        reasoned = self._read(frame).withColumn(REASON, self._reason(run, layout))
        # A wrong value may not fit the arithmetic below.
        is_good = F.col(REASON).isNull()
        band = F.when(is_good, F.col("priority")).otherwise(0)
        due_ms = F.when(is_good, x.due_ms(F.col("moment")))
        return self._placed(reasoned, band, due_ms, layout).select(ROW, REASON, *self._columns)

    def good(self, frame: DataFrame, run: SparkRun, layout: Layout) -> DataFrame:
        """The messages alone that the rows of a frame make.

        Spark asks a filter before it computes what follows: each row is judged once.

        Returns:
            The columns of `judged` but for `row` and `reason`.
        """
        read = self._read(frame).where(self._reason(run, layout).isNull())
        due_ms = x.due_ms(F.col("moment"))
        return self._placed(read, F.col("priority"), due_ms, layout).select(*self._columns)

    @property
    def _columns(self) -> list[str]:
        columns = ["name", "minute", "lane", "due_ms", "body"]
        columns += [] if self.has_one_band else ["band"]
        columns += [] if self.group is None else ["group"]
        return columns + ([] if self.headers is None else ["headers"])

    def _read(self, frame: DataFrame) -> DataFrame:
        """The raw values of each row."""
        moment = x.moment_of(self.due) if self.is_text else self.due
        return frame.select(
            F.struct("*").alias(ROW),
            self.key.alias("name"),
            self.due.alias("due"),
            moment.alias("moment"),
            self.body.alias("body"),
            self.priority.alias("priority"),
            *([] if self.group is None else [self.group.alias("group")]),
            *([] if self.headers is None else [F.to_json(self.headers).alias("headers")]),
            *([] if self.headers is None else [self.headers.alias("given")]),
            *([] if self.torn is None else [self.torn.alias("torn")]),
        )

    def _placed(self, read: DataFrame, band: Column, due_ms: Column, layout: Layout) -> DataFrame:
        """The rows with the due, the minute and the lane of each message."""
        name = F.col("name")
        group = None if self.group is None else F.col("group")
        if self.spread_ms:
            due_ms += x.spread(name, self.spread_ms)
        return (
            read.withColumn("due_ms", due_ms)
            .withColumn("band", band)
            .withColumn("minute", x.minute(F.col("due_ms"), layout))
            .withColumn("lane", x.lane(name, F.col("band"), layout, group))
        )

    def _reason(self, run: SparkRun, layout: Layout) -> Column:
        """Why a row makes no message; null where it makes one."""
        name, due, moment, body = F.col("name"), F.col("due"), F.col("moment"), F.col("body")
        last_ms = run.as_of_us // 1_000 + DELAY_MAX_MS
        wrong: list[tuple[Column, str]] = []
        if self.torn is not None:
            wrong.append((F.col("torn").isNotNull(), "the line cannot be read"))
        wrong += [
            (name.isNull(), "key is null"),
            (~x.is_label(name), "key is not 1 to 256 printable characters"),
            (due.isNull(), "due is null"),
        ]
        if self.is_text:
            wrong += [
                (moment.isNull() & x.is_naive(due), "due has no offset from UTC"),
                (moment.isNull(), "due is no ISO 8601 time"),
            ]
        wrong += [
            (F.unix_micros(moment) < run.as_of_us, "due is past"),
            (F.unix_millis(moment) > last_ms, "due is more than 100 years away"),
            (body.isNull(), "body is null"),
            (
                F.octet_length(body) > BODY_BYTES_MAX,
                f"body is larger than {BODY_BYTES_MAX:,} bytes",
            ),
            (
                ~F.coalesce(F.col("priority").between(0, layout.bands - 1), F.lit(False)),
                f"priority is not 0 to {layout.bands - 1}",
            ),
        ]
        if self.group is not None:
            bad_group = F.col("group").isNotNull() & ~x.is_label(F.col("group"))
            wrong.append((bad_group, "group is not 1 to 256 printable characters"))
        if self.headers is not None:
            wrong += _bad_headers(F.col("given"), F.col("headers"), body)
        return F.coalesce(*(F.when(is_wrong, F.lit(reason)) for is_wrong, reason in wrong))


def _bad_headers(given: Column, text: Column, body: Column) -> list[tuple[Column, str]]:
    keys, values = F.map_keys(given), F.map_values(given)
    return [
        (F.exists(values, F.isnull), "a header is null"),
        (
            F.exists(keys, lambda key: ~x.is_label(key)),
            "a header's name is not 1 to 256 printable characters",
        ),
        (
            F.exists(keys, lambda key: key.startswith(RESERVED_HEADER)),
            f"a header's name begins with {RESERVED_HEADER}",
        ),
        (
            F.octet_length(text) + F.octet_length(body) > MESSAGE_BYTES_MAX,
            f"body and headers are larger than {MESSAGE_BYTES_MAX:,} bytes",
        ),
    ]


def _column(frame: DataFrame, named: Named) -> Column:
    if isinstance(named, Column):
        return named
    # A name may have dots, and is then no field of a column.
    return F.col(f"`{named}`" if named.lower() in columns_in(frame) else named)


def _body(frame: DataFrame, body: Named | None) -> Column:
    """A body as bytes: text as UTF-8, what is nested, and without a column the row, as JSON."""
    if body is None:
        return F.to_json(F.struct("*")).cast("binary")
    type_name = _type(frame, body, "body")
    if type_name.startswith(_NESTED):
        return F.to_json(_column(frame, body)).cast("binary")
    _expect(type_name, "body", ("binary", "string", "struct", "map", "array"))
    return _column(frame, body).cast("binary")


def _headers(frame: DataFrame, headers: Named) -> Column:
    """Headers as a map; an object of JSON is a struct to Spark, whose nulls are what it lacks."""
    type_name = _type(frame, headers, "headers")
    if type_name.startswith("struct<"):
        return F.from_json(F.to_json(_column(frame, headers)), _HEADERS)
    _expect(type_name, "headers", (_HEADERS, "struct"))
    return _column(frame, headers)


def _type(frame: DataFrame, named: Named, what: str) -> str:
    if not isinstance(named, (str, Column)):
        raise BadSetting(f"{what} must be a column or the name of one, not {shown(named)}.")
    if isinstance(named, str) and not (
        {named.lower(), named.lower().partition(".")[0]} & columns_in(frame)
    ):
        raise UsageError(
            f"the frame has no column {shown(named)} for {what}; it has "
            f"{', '.join(frame.columns) or 'none at all'}."
        )
    with translated():
        return frame.select(_column(frame, named)).schema[0].dataType.simpleString()


def _expect(type_name: str, what: str, types: tuple[str, ...]) -> None:
    if type_name == "timestamp_ntz" or (type_name == "date" and what == "due"):
        raise UsageError(
            f"{what} is {type_name}, a time without a zone; cast it to timestamp, which takes it "
            f"for one of the session's zone, or give it an offset."
        )
    if type_name not in types:
        raise UsageError(f"{what} is {type_name}; it must be {' or '.join(types)}.")
