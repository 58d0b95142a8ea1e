"""Options that jobs share, and what they open: a session, a queue, a file of rows."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shardq.cli import options
from shardq.errors import ShardqError, UsageError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from shardq.spark.connection import QueueJobs

_NICE = 10
_PACKED = (".gz", ".bz2", ".zst")
_SUFFIXES = ".parquet, .csv, .json and .jsonl, the last three also packed as .gz"

_C = TypeVar("_C", bound="Callable[..., Any]")

queue = click.option("--queue", metavar="NAME", required=True, help="The queue.")
master = click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[4], spark://host:7077, yarn, or sc://host:15002 for Spark "
    "Connect. Where it is not given, as spark-submit says, or on all cores of this machine.",
)
memory = click.option(
    "--memory",
    metavar="SIZE",
    default="1g",
    show_default=True,
    help="Memory of the Java that is started here.",
)
nice = click.option(
    "--nice",
    is_flag=True,
    help="Yield the processor to all else on this machine, to consumers above all.",
)
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
run = click.option(
    "--run",
    metavar="RUN",
    help="Resume this run: what it has done is not done again. Each run prints its name.",
)
as_of = click.option(
    "--as-of",
    metavar="TIME",
    help="The time of the run; now where it is not given. Two runs of one time and one input are "
    "one run.",
)
rate = options.whole("--rate", text="At most N messages a second, of all tasks together.", least=1)
report = click.option("--report", metavar="FILE", help="Write a page with tables and plots there.")
plot = click.option("--plot", metavar="FILE", help="Write a plot there, as PNG.")


@dataclass(frozen=True, slots=True)
class Where:
    """Where a job runs, and how it tells its outcome.

    Attributes:
        url: The store's url as the command was given it.
        master: Of Spark.
        memory: Of Spark's Java.
        is_nice: Whether others go first.
        as_json: Whether the outcome is JSON.
    """

    url: str | None
    master: str | None
    memory: str
    is_nice: bool
    as_json: bool

    def session(self) -> SparkSession:
        """The session of Spark.

        Raises:
            MissingExtra: If there is no Java.
            UsageError: If it does not start.
        """
        from shardq.spark.session import session

        if self.is_nice:
            # What is started from here on inherits it.
            os.nice(_NICE)
        asked = {"spark.log.level": "WARN"} if _is_verbose() else {}
        return session(master=self.master or "local[*]", memory=self.memory, **asked)

    def queue(self, name: str) -> QueueJobs:
        """A queue in the session.

        Raises:
            UsageError: If no store is given.
        """
        from shardq.spark.connection import connect

        # Before Java is started, which takes seconds: what is wrong is said at once.
        url = options.store_url(self.url)
        return connect(self.session(), name, url)


def _is_verbose() -> bool:
    return bool(click.get_current_context().find_root().params.get("verbose"))


def somewhere(command: _C) -> _C:
    """Give a command the options of a session, as one argument `where`."""

    @functools.wraps(command)
    def called(
        *,
        master: str | None,
        memory: str,
        nice: bool,
        as_json: bool,
        url: str | None = None,
        **given: Any,
    ) -> Any:
        return command(where=Where(url, master, memory, nice, as_json), **given)

    for option in (options.as_json, nice, memory, master):
        called = option(called)
    return called  # type: ignore[return-value]


def rows(command: _C) -> _C:
    """Give a command the options that say which rows are messages, and how they are made."""
    made = (
        rate,
        click.option(
            "--spread",
            metavar="DURATION",
            help="Postpone each due by up to this long: by a part that follows from its key.",
        ),
        click.option(
            "--headers",
            metavar="COLUMN",
            help="Headers: an object of texts in JSON, a map or a struct in Parquet.",
        ),
        click.option("--group", metavar="COLUMN", help="Messages of one group run one at a time."),
        click.option("--priority", metavar="COLUMN", help="Priority 0 comes first."),
        click.option(
            "--body",
            metavar="COLUMN",
            help="The body; the whole row as JSON where it is not given.",
        ),
        click.option(
            "--due",
            metavar="COLUMN",
            required=True,
            help="When each is due: a time with its offset, 2027-01-01T09:00:00+01:00 say.",
        ),
        click.option(
            "--key",
            metavar="COLUMN",
            required=True,
            help="What tells each from all others; it becomes the message's id.",
        ),
        click.option(
            "--input",
            "path",
            metavar="PATH",
            required=True,
            help=f"The rows: {_SUFFIXES}; a file, or a directory of a name like that.",
        ),
    )
    for option in made:
        command = option(command)
    return command


def frame_of(spark: SparkSession, path: str) -> DataFrame:
    """The rows of a file, or of a directory of files, by its suffix.

    CSV has the names of its columns in its first line, and all of its columns are texts. A line
    that cannot be read, or has more or fewer cells than that, keeps its text in a column `TORN`.

    Raises:
        UsageError: If its suffix is none that is known, or it cannot be read.
    """
    from shardq.spark.asked import TORN
    from shardq.spark.complaint import translated

    kind = kind_of(path)
    try:
        with translated():
            frame = _read(spark, path, kind)
    except ShardqError as error:
        raise UsageError(f"{shown(path)} cannot be read: {error}") from error
    if frame.columns == [TORN]:
        raise UsageError(f"no line of {shown(path)} is JSON; each has to be an object.")
    return frame


def _read(spark: SparkSession, path: str, kind: str) -> DataFrame:
    from shardq.spark.asked import TORN

    read = spark.read
    match kind:
        case "parquet":
            return read.parquet(path)
        case "csv":
            # Quotes within quotes are doubled, as everybody but Spark writes them.
            csv = read.options(header=True, inferSchema=False, escape='"', multiLine=True)
            schema = csv.csv(path).schema
            return (
                csv.schema(schema.add(TORN, "string")).csv(path) if schema.names else csv.csv(path)
            )
        case _:
            return read.json(path)


def priority_of(frame: DataFrame, path: str, name: str | None) -> str | Column | None:
    """The column of priorities: in a CSV a text, which is read as a number.

    Args:
        frame: The rows.
        path: Of their file.
        name: The column's name; None: none is asked for.
    """
    if name not in frame.columns or kind_of(path) != "csv":
        return name
    from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

    return F.col(f"`{name}`").try_cast("bigint")


def write(frame: DataFrame, path: str) -> None:
    """Write rows into a new directory, by its suffix.

    Raises:
        UsageError: If its suffix is none that is known, or it is there already.
    """
    from pyspark.errors import AnalysisException

    try:
        match kind_of(path):
            case "parquet":
                frame.write.parquet(path)
            case "csv":
                frame.write.csv(path, header=True, escape='"')
            case _:
                frame.write.json(path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        raise UsageError(
            f"{shown(path)} already exists, and nothing was put; give the bad rows another path."
        ) from error


def kind_of(path: str) -> str:
    """`parquet`, `csv` or `json`, by a path's suffix.

    Raises:
        UsageError: If it is none of these.
    """
    name = PurePath(path.rstrip("/")).name.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    kind = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json"}
    suffix = PurePath(name).suffix
    if suffix not in kind:
        raise UsageError(
            f"the kind of {shown(path)} is not known; its name must end with one of {_SUFFIXES}."
        )
    return kind[suffix]
