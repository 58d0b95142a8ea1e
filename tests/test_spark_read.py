"""Reading a queue's views from Spark."""

from __future__ import annotations

import operator
import random
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shardq
from shardq import Message, Queue
from shardq.errors import (
    BadSetting,
    BadTime,
    BadUrl,
    HistoryOff,
    SchemaMissing,
    ShardqError,
    StoreCorrupt,
    StoreTimeout,
    StoreUnavailable,
    UnknownQueue,
    UsageError,
)
from shardq.model.ids import birth_us, row_ids
from shardq.model.message import Row, note_of
from shardq.model.shard import Shard
from shardq.model.times import moment_of
from shardq.stores.store import Slice, Store, Tally

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType, _parse_datatype_string
from spark_stores import STORES, queue, url
from spark_views import read, reader_of, rows_by, schema_of

from pyspark_shardq import ShardqDataSource, columns, cuts, register, views
from pyspark_shardq.bounds import Bounds
from pyspark_shardq.options import Options, refuse_store
from pyspark_shardq.place import place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def reading(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def frame(spark: SparkSession, url: str, queue: Queue, **given: str) -> DataFrame:
    options = {"store": url, "queue": queue.name, **given}
    return spark.read.format("shardq").options(**options).load()


def fill(queue: Queue, count: int = 40) -> None:
    """Messages of each kind: named, of a group, with headers, retried, claimed."""
    start = datetime.now(UTC) + timedelta(hours=1)
    queue.put_many(
        {
            "body": f"body {n}",
            "due": start + timedelta(seconds=n * 10),
            "priority": n % 2,
            **({"id": f"order-{n}"} if n % 3 == 0 else {}),
            **({"group": f"customer-{n % 4}"} if n % 5 == 0 else {}),
            **({"headers": {"n": str(n), "größe": "ü"}} if n % 4 == 0 else {}),
        }
        for n in range(count)
    )
    queue.put("claimed")
    queue.put("retried")
    for message in queue.receive(2):
        if message.body == b"retried":
            queue.retry(message, delay="2h", reason="refused")
    off = queue.put("put off", group="customer-1", priority=1)._row
    store, far_ms = queue._home.store, off.due_ms + 7_200_000
    store.edit([off._replace(serial=1, attempt=1, not_before_ms=far_ms, claim="receipt")])
    store.insert([note_of(off.position, off.shard, off.due_ms + 1, row_ids.next(1))])


def stored(queue: Queue) -> list[Row]:
    return [row for page in queue._rows() for row in page]


def expected(queue: Queue, row: Row) -> dict[str, Any]:
    """What the view `messages` has of a row."""
    message = Message(row, 0, queue._home.register.signer)
    first_due = row.due_ms if row.origin_ms is None else row.origin_ms
    entered_us = birth_us(row.first or row.id)
    return {
        "queue": queue.name,
        "minute": row.shard.minute,
        "lane": row.shard.lane,
        "priority": message.priority,
        "due": moment_of(row.due_ms),
        "first_due": moment_of(first_due),
        "id": message.id,
        "row_id": row.id,
        "entry": row.first or row.id,
        "entered": moment_of(entered_us // 1_000) + timedelta(microseconds=entered_us % 1_000),
        "attempt": row.attempt,
        "group": row.group,
        "in_flight": row.claim is not None,
        "not_before": None if row.not_before_ms is None else moment_of(row.not_before_ms),
        "headers": list(message.headers.items()) or None,
        "last_error": message.last_error,
        "last_error_at": message.last_error_at,
        "body": row.body,
    }


# Views --------------------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_messages_have_what_the_queue_holds(url: str, queue: Queue) -> None:
    fill(queue)
    rows = {row.id: expected(queue, row) for row in stored(queue)}
    assert {one["row_id"]: one for one in read(url, queue.name)} == rows
    bare = read(url, queue.name, bodies="false")
    assert {tuple(one) for one in bare} == {tuple(views.MESSAGES[n].name for n in range(17))}
    assert {one["row_id"]: {**one, "body": rows[one["row_id"]]["body"]} for one in bare} == rows
    some = read(url, queue.name, columns="lane, id")
    assert sorted((one["lane"], one["id"]) for one in some) == sorted(
        (row["lane"], row["id"]) for row in rows.values()
    )


@pytest.mark.parametrize("url", STORES, indirect=True)
def test_shards_have_the_store_s_own_counts(url: str, queue: Queue) -> None:
    fill(queue)
    rows = Counter(row.shard for row in stored(queue))
    claims = Counter(row.shard for row in stored(queue) if row.claim is not None)
    layout = queue._home.register.layout
    found = read(url, queue.name, view="shards")
    assert {Shard(one["queue"], one["minute"], one["lane"]): one["rows"] for one in found} == rows
    for one in found:
        shard = Shard(one["queue"], one["minute"], one["lane"])
        assert one["in_flight"] == claims[shard]
        assert one["start"] == moment_of(layout.start_ms(shard.minute))
        is_of_groups = layout.is_of_groups(shard.lane)
        assert one["priority"] == (None if is_of_groups else layout.band_of(shard.lane))


@pytest.mark.gate
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_the_history_says_what_became_of_messages(url: str, queue: Queue) -> None:
    job = {"body": "a", "id": "order-1", "headers": {"task": "app.bill"}}
    queue.put_many([job, "b", "c", {"body": "later", "delay": "1h"}])
    first, second, third = queue.receive(3)
    queue.ack(first)
    queue.bury(second, "no such address")
    queue.retry(third, delay="1h")
    found = {one["id"]: one for one in read(url, queue.name, view="history")}
    told = {record.id: record for record in queue.history()}
    assert found.keys() == told.keys()
    for message_id, record in told.items():
        one = found[message_id]
        assert one["due"] == record.due
        assert one["fate"] == record.fate
        assert one["ended"] == record.ended
        assert one["attempt"] == record.attempt
        assert one["member"] == (record.member or None)
        assert one["task"] == record.task
        assert record.entered <= one["entered"] < record.entered + timedelta(milliseconds=1)
    entries = {one["entry"] for one in read(url, queue.name)}
    assert entries <= {one["row_id"] for one in found.values()}


def test_dead_messages_say_why_they_died(url: str, queue: Queue) -> None:
    queue.put("a", headers={"n": "1"}, id="order-1")
    assert read(url, queue.name, view="dead") == []
    queue.bury(queue.receive(1)[0], "no such address")
    [one] = read(url, queue.name, view="dead")
    assert (one["queue"], one["id"], one["body"]) == (f"{queue.name}.dead", "order-1", b"a")
    assert (one["reason"], one["attempts"], one["traceback"]) == ("no such address", 1, None)
    assert abs(one["died"] - datetime.now(UTC)) < timedelta(minutes=5)
    assert dict(one["headers"])["n"] == "1"


def test_what_a_purge_has_reached_is_left_out_unless_it_is_asked_for(
    url: str, queue: Queue
) -> None:
    queue.put_many([{"body": "before", "delay": "1h"}] * 3)
    queue.purge()
    queue.put("after", delay="1h")
    assert [one["body"] for one in read(url, queue.name)] == [b"after"]
    assert [one["rows"] for one in read(url, queue.name, view="shards")] == [1]
    every = read(url, queue.name, purged="true")
    assert sorted(one["body"] for one in every) == [b"after", *[b"before"] * 3]
    fates = Counter(one["fate"] for one in read(url, queue.name, view="history"))
    assert fates == {"purged": 3, None: 1}


def test_rows_of_a_dropped_queue_of_the_name_are_never_read(url: str, queue: Queue) -> None:
    queue.put("former", delay="1h")
    queue.drop()
    with shardq.connect(url) as db:
        db.queue(queue.name, minute="2m", history="1d", bands=2).put("new", delay="1h")
    assert [one["body"] for one in read(url, queue.name, purged="true")] == [b"new"]
    assert len(read(url, queue.name, view="history")) == 1


# Plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", STORES, indirect=True)
@pytest.mark.parametrize("spread_ms", [1, 50, 60_000])
def test_bins_are_even_however_much_is_due_at_once(url: str, queue: Queue, spread_ms: int) -> None:
    count = 8_000
    layout = queue._home.register.layout
    minute = layout.minute_of(2_000_000_000_000)
    start_ms = layout.start_ms(minute)
    hot = [
        Row(Shard(queue.name, minute, 0), start_ms + n * spread_ms // count, row_ids.next(n), b"x")
        for n in range(count * 8 // 10)
    ]
    rest = [
        Row(Shard(queue.name, minute + 1 + n % 50, n % 8), start_ms, row_ids.next(n), b"x")
        for n in range(count * 2 // 10)
    ]
    rest = [row._replace(due_ms=layout.start_ms(row.shard.minute) + 7) for row in rest]
    queue._home.store.insert([*hot, *rest])
    one = reader_of(url, queue.name, numPartitions="4", bodies="false")
    bins = [
        [row for batch in one.read(part) for row in batch.to_pylist()] for part in one.partitions()
    ]
    ids = [row["row_id"] for some in bins for row in some]
    assert sorted(ids) == sorted(row.id for row in [*hot, *rest])
    assert max(map(len, bins)) <= 1.1 * count / 4


class Slow:
    """A store that has no time to count more than `rows_max` rows at once."""

    def __init__(self, store: Store, rows_max: int) -> None:
        self.store = store
        self.rows_max = rows_max

    def count(self, wanted: Slice) -> dict[Shard, Tally]:
        found = self.store.count(wanted)
        if sum(tally.rows for tally in found.values()) > self.rows_max:
            raise StoreTimeout("no answer came in time")
        return found


def test_what_takes_too_long_to_count_is_counted_in_parts(url: str, queue: Queue) -> None:
    fill(queue, 400)
    queue.put_many({"body": "hot", "due": f"2040-01-01T00:00:00.{n}Z"} for n in range(100, 400))
    store, layout = queue._home.store, queue._home.register.layout
    wanted = cuts.shards(store, layout, Bounds())
    counted = cuts.tallies(store, layout, wanted, Bounds())
    assert sum(tally.rows for tally in counted.values()) == len(stored(queue)) == 703
    slow: Any = Slow(store, 20)
    assert cuts.tallies(slow, layout, wanted, Bounds()) == counted
    with pytest.raises(StoreTimeout):
        cuts.tallies(Slow(store, 0), layout, wanted, Bounds())  # type: ignore[arg-type]


@pytest.mark.parametrize("url", STORES, indirect=True)
def test_a_bounded_read_looks_up_its_minutes_and_no_others(url: str, queue: Queue) -> None:
    fill(queue)
    layout = queue._home.register.layout
    rows = stored(queue)
    start = datetime.now(UTC) + timedelta(hours=1)
    since, until = start + timedelta(seconds=65), start + timedelta(seconds=205)
    near = [row for row in rows if since <= moment_of(row.due_ms) < until]
    found = read(url, queue.name, since=since.isoformat(), until=until.isoformat())
    assert sorted(one["row_id"] for one in found) == sorted(row.id for row in near)
    assert 10 <= len(near) <= 14
    far = read(url, queue.name, until=until.isoformat())
    assert len(far) == sum(moment_of(row.due_ms) < until for row in rows)
    one = reader_of(url, queue.name, pushdown="true")
    lane = near[0].shard.lane
    filters = [
        GreaterThanOrEqual(("due",), since),
        LessThan(("due",), until),
        In(("lane",), (lane, None)),
        EqualTo(("queue",), queue.name),
        EqualTo(("body",), b"body 8"),
    ]
    # All are given back: Spark judges them again.
    assert one.pushFilters(filters) == filters
    before = place(url).store.counters.copy()
    kept = {row["row_id"] for row in rows_by(one)}
    assert {row.id for row in near if row.shard.lane == lane} <= kept
    pieces = [piece for part in one.partitions() for piece in part.value]
    assert {piece.lane for piece in pieces} == {lane}
    minutes = {layout.minute_of(row.due_ms) for row in near}
    assert {piece.minute for piece in pieces} <= minutes
    assert place(url).store.counters["reads"] - before["reads"] < 60


JUDGES: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda one, among: one in among,
}
FILTERED = {
    "messages": ("queue", "minute", "lane", "due", "entered", "attempt"),
    "dead": ("queue", "minute", "lane", "due", "entered"),
    "shards": ("queue", "minute", "lane", "rows"),
    "history": ("queue", "entered", "due", "fate"),
}


def passes(row: dict[str, Any], one: Filter) -> bool:
    """True if a row passes a filter, as Spark judges it."""
    if isinstance(one, Not):
        return not passes(row, one.child)
    assert hasattr(one, "attribute")
    assert hasattr(one, "value")
    held = row[one.attribute[0]]
    return held is not None and JUDGES[type(one)](held, one.value)


def any_filter(chosen: random.Random, rows: list[dict[str, Any]], column: str) -> Filter:
    """A random filter on a column: by a value that some row has, or a value just off it."""
    held = [row[column] for row in rows if row[column] is not None] or [0]
    value = chosen.choice(held)
    if isinstance(value, datetime):
        value += timedelta(microseconds=chosen.choice([-1_000_000, -1, 0, 0, 1, 999]))
    kind: Any = chosen.choice(list(JUDGES))
    made: Filter = kind((column,), (value, chosen.choice(held)) if kind is In else value)
    return Not(made) if chosen.random() < 0.1 else made


@pytest.mark.parametrize("view", FILTERED)
def test_a_filter_that_is_pushed_down_leaves_the_rows_that_it_lets_pass(
    url: str, queue: Queue, view: str
) -> None:
    fill(queue)
    for n in range(5):
        queue.bury(queue.put(f"dead {n}"))
    by_id = operator.itemgetter("minute", "lane") if view == "shards" else operator.itemgetter("id")
    whole = sorted(read(url, queue.name, view=view), key=by_id)
    seed = random.randrange(1 << 32)
    chosen = random.Random(seed)
    each = [[any_filter(chosen, whole, column)] for column in FILTERED[view] for _ in range(6)]
    some = [
        [any_filter(chosen, whole, column) for column in chosen.choices(FILTERED[view], k=3)]
        for _ in range(10)
    ]
    for filters in [*each, *some]:
        made = reader_of(url, queue.name, view=view, pushdown="true")
        made.pushFilters(filters)
        kept = [row for row in rows_by(made) if all(passes(row, one) for one in filters)]
        wanted = [row for row in whole if all(passes(row, one) for one in filters)]
        assert sorted(kept, key=by_id) == wanted, (seed, filters)


def test_a_page_ends_between_large_bodies(url: str, queue: Queue) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    queue.put_many({"body": bytes(400_000), "due": due, "priority": 0} for _ in range(60))
    one = reader_of(url, queue.name, numPartitions="1")
    batches = [batch for part in one.partitions() for batch in one.read(part)]
    assert sum(map(len, batches)) == 60
    assert len(batches) > 1


def test_a_damaged_row_is_named(url: str, queue: Queue, tmp_path: Path) -> None:
    import sqlite3

    queue.put("a", delay="1h", id="order-1")
    with sqlite3.connect(tmp_path / "jobs.db") as raw:
        raw.execute("UPDATE messages SET attempt = 'x'")
    with pytest.raises(StoreCorrupt, match="attempt of message order-1"):
        read(url, queue.name)


def test_a_file_that_was_made_anew_is_read_anew(url: str, queue: Queue, tmp_path: Path) -> None:
    queue.put("first", delay="1h")
    assert len(read(url, queue.name)) == 1
    for path in tmp_path.glob("jobs.db*"):
        path.unlink()
    with shardq.connect(url) as db:
        db.queue(queue.name).put_many([{"body": "second", "delay": "1h"}] * 2)
    assert [one["body"] for one in read(url, queue.name)] == [b"second"] * 2


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"queue": "none"}, UnknownQueue, "there is no queue 'none'"),
        ({"queue": "a b"}, UsageError, "queue name 'a b' must be"),
        ({"view": "mesages"}, UsageError, "there is no view 'mesages'; there are messages, dead"),
        ({"columns": "id,bdy"}, UsageError, "view 'messages' has no column 'bdy'"),
        ({"columns": "id,,body"}, BadSetting, "option columns must be names"),
        ({"limit": "3"}, BadSetting, "'limit' is no option of a read"),
        ({"path": "x"}, BadSetting, "'path' is no option of a read"),
        ({"bodies": "no"}, BadSetting, "option bodies must be true or false, not 'no'"),
        ({"numPartitions": "0"}, BadSetting, "option numPartitions must be a whole number"),
        ({"since": "2027-01-01T00:00:00"}, BadTime, "since .* has no time zone"),
        ({"since": "1h", "until": "2h"}, BadTime, "nothing lies between"),
        ({"store": "sqlite://"}, BadUrl, "is in the memory of one process"),
        ({"store": "env:SHARDQ_NOT_SET"}, BadUrl, "SHARDQ_NOT_SET names no store"),
        ({"store": "mysql://db/x"}, BadUrl, "names no store"),
        ({"store": "sqlite:////nowhere/jobs.db"}, UnknownQueue, "there is no file"),
        ({"store": "cassandra://127.0.0.1:1/x"}, StoreUnavailable, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_raised_before_a_task_starts(
    url: str, queue: Queue, given: dict[str, str], kind: type[ShardqError], text: str
) -> None:
    source = ShardqDataSource({"store": url, "queue": queue.name, **given})
    with pytest.raises(kind, match=text):
        source.schema()


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE people (name TEXT)")
    source = ShardqDataSource({"store": f"sqlite:///{tmp_path / 'other.db'}", "queue": "mail"})
    with pytest.raises(SchemaMissing):
        source.schema()


def test_a_keyspace_that_was_not_made_is_named(cassandra_url: str) -> None:
    url = cassandra_url.partition("?")[0].rpartition("/")[0] + "/not_made_at_all"
    with pytest.raises(SchemaMissing, match="not_made_at_all"):
        ShardqDataSource({"store": url, "queue": "mail"}).schema()


def test_a_queue_without_a_history_has_none_to_be_read(url: str, queue: Queue) -> None:
    queue.alter(history="off")
    with pytest.raises(HistoryOff, match="shardq queues alter"):
        ShardqDataSource({"store": url, "queue": queue.name, "view": "history"}).schema()


def test_what_only_a_stream_knows_is_refused(url: str, queue: Queue) -> None:
    with pytest.raises(UsageError, match="those of a stream"):
        reader_of(url, queue.name, view="history", reach="1h")


def test_a_store_may_be_named_by_a_variable(
    url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put("a", delay="1h")
    monkeypatch.setenv("SHARDQ_MAIL_STORE", url)
    assert len(read("env:SHARDQ_MAIL_STORE", queue.name)) == 1
    monkeypatch.setenv("SHARDQ_STORE", url)
    source = ShardqDataSource({"queue": queue.name, "columns": "lane"})
    assert source.schema() == "`lane` INT NOT NULL"
    # The options sent to other processes have the name of the variable, not its value.
    assert Options.of_reader({"queue": queue.name}).store == "env:SHARDQ_STORE"


def test_a_queue_has_to_be_named() -> None:
    with pytest.raises(UsageError, match="no queue was named"):
        ShardqDataSource({"store": "sqlite:///jobs.db"}).schema()


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://x", "local-cluster[2,1,9]"])
def test_sqlite_is_refused_on_a_cluster(url: str, queue: Queue, master: str) -> None:
    made = type("Source", (ShardqDataSource,), {"master": master})
    with pytest.raises(BadUrl, match="is a file of one machine, and Spark runs on a cluster"):
        made({"store": url, "queue": queue.name}).schema()
    refuse_store("cassandra://db/jobs", master)
    for local in ("local", "local[2]", "local[*]", None):
        refuse_store(url, local)


def test_a_schema_of_one_s_own_chooses_columns(url: str, queue: Queue) -> None:
    fill(queue)
    options = Options.of_reader({"store": url, "queue": queue.name})
    wrong = StructType([StructField("minute", IntegerType())])
    with pytest.raises(UsageError, match="view 'messages' has no column minute INT"):
        views.of_schema(options.view, wrong)
    some = StructType([StructField("lane", IntegerType())])
    assert views.of_schema("messages", some) == (
        columns.ViewColumn("lane", "INT", len, is_nullable=True),
    )


# In Spark -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", views.VIEWS)
def test_spark_s_schema_and_arrow_s_are_one(reading: SparkSession, view: str) -> None:
    wanted = views.VIEWS[view]
    parsed = _parse_datatype_string(columns.ddl(wanted))
    assert isinstance(parsed, StructType)
    assert to_arrow_schema(parsed, timezone="UTC") == columns.arrow_schema(wanted)
    assert views.of_schema(view, parsed) == wanted
    assert parsed == schema_of(Options("", "", view))


@pytest.mark.gate
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_spark_reads_what_the_queue_holds(reading: SparkSession, url: str, queue: Queue) -> None:
    fill(queue)
    rows = {row.id: expected(queue, row) for row in stored(queue)}
    made = frame(reading, url, queue)
    found = {}
    for one in made.collect():
        told = one.asDict()
        for name in ("due", "first_due", "entered", "last_error_at", "not_before"):
            told[name] = told[name] and told[name].replace(tzinfo=UTC)
        told |= {name: bytes(told[name]) for name in ("row_id", "entry", "body")}
        found[told["row_id"]] = {
            **told, "headers": list(told["headers"].items()) if told["headers"] else None
        }  # fmt: skip
    assert found == rows


@pytest.mark.gate
def test_filters_reach_the_store_where_they_may(
    reading: SparkSession, url: str, queue: Queue
) -> None:
    fill(queue)
    rows = stored(queue)
    until = datetime.now(UTC) + timedelta(hours=1, seconds=100)
    reading.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    made = frame(reading, url, queue, pushdown="true", bodies="false")
    some = made.where((F.col("due") < until) & (F.col("lane") % 2 == 1) & F.col("group").isNull())
    assert some.count() == sum(
        moment_of(row.due_ms) < until and row.shard.lane % 2 == 1 and row.group is None
        for row in rows
    )
    # A time that is equal, as SQL and Python may ask for it.
    due = moment_of(rows[0].due_ms)
    of_due = [row.id for row in rows if moment_of(row.due_ms) == due]
    for filtered in (
        made.where(F.col("due") == due),
        made.where(f"due = TIMESTAMP '{due.isoformat()}'"),
        made.where(f"due IN (TIMESTAMP '{due.isoformat()}', TIMESTAMP '2020-01-01T00:00:00Z')"),
    ):
        assert sorted(bytes(row.row_id) for row in filtered.collect()) == sorted(of_due)


def test_spark_finds_the_source_by_itself(spark: SparkSession, url: str, queue: Queue) -> None:
    # Each session has processes of its own, so what is planned for this one is no more than needed.
    found = frame(spark.newSession(), url, queue, columns="minute, lane")
    assert found.columns == ["minute", "lane"]


def test_finding_the_source_imports_next_to_nothing_and_never_fails() -> None:
    found = "import sys, pyspark_shardq; pyspark_shardq.DefaultSource; "
    light = "print(sorted({'cassandra', 'pyarrow', 'pandas', 'sqlite3'} & set(sys.modules)))"
    without = "import sys, pyspark_shardq as it; sys.modules['pyspark'] = None; "
    never = "print(hasattr(it, 'DefaultSource'))"
    for code, told in ((found + light, "[]"), (without + never, "False")):
        run = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        assert run.stdout.strip() == told, run.stderr
