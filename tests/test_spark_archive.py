"""The archive: a day once, whatever runs again; compared, and refused where it differs."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardq
from shardq.errors import HistoryOff, StoreCorrupt, UsageError
from shardq.model import ids
from shardq.model.settings import Settings
from shardq.stores.store import Entry, Mark
from shardq.stores.tables import QUEUES, Change, QueueRecord

pytest.importorskip("pyspark")

from spark_frames import HISTORY, frame_of

from pyspark_shardq import connect
from pyspark_shardq.jobs import archive
from pyspark_shardq.jobs.archive import DayState, Sum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_shardq import QueueJobs

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000
KEPT_MS = 7 * DAY_MS


class Kept:
    """A queue that has kept a history for days.

    Attributes:
        queue: As Spark has it.
        today: The number of today, since 1970.
    """

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._file = directory / "queue.db"
        url = f"sqlite:///{self._file}"
        self._db = shardq.connect(url)
        made = self._db.queue("mail", history="7d")
        self.store = made._home.store
        self.today = made._home.clock.now_ms() // DAY_MS
        self.be_kept_from((self.today - 3) * DAY_MS)
        self.queue: QueueJobs = connect(spark, "mail", url)

    def be_kept_from(self, from_ms: int) -> None:
        record = self.store.records(QUEUES, (), ["mail"]).get("mail")
        settings = Settings.from_json(record.settings, "mail")
        text = replace(settings, history_from_ms=from_ms).to_json()
        later = QueueRecord(text, record.secret, record.version + 1)
        change = Change((), ("mail",), {"version": record.version}, later._asdict())
        assert self.store.write_records(QUEUES, [change]) == {}

    def entry(self, ago: int, number: int) -> Entry:
        """The entry of the message with this number that entered `ago` days ago."""
        at_us = (self.today - ago) * DAY_MS * 1_000 + number * 60_000_000
        return Entry("mail", ids.fixed(at_us, f"order-{number}"))

    def put(self, ago: int, numbers: range) -> None:
        entries = [(self.entry(ago, number), f"order-{number}") for number in numbers]
        due_ms = self.today * DAY_MS
        self.store.record([Mark(entry, due_ms, name) for entry, name in entries], KEPT_MS)

    def end(self, ago: int, numbers: range) -> None:
        ended = [self.entry(ago, number) for number in numbers]
        due_ms = self.today * DAY_MS
        self.store.record([Mark(entry, None, None, "acked", due_ms, 1) for entry in ended], KEPT_MS)

    def forget(self, entry: Entry) -> None:
        """Delete a record, as the store does after its retention."""
        with sqlite3.connect(self._file) as file:
            file.execute("DELETE FROM history WHERE id = ?", (ids.order_key(entry.id),))
        file.close()

    def day(self, ago: int) -> date:
        return date(1970, 1, 1) + timedelta(days=self.today - ago)

    def close(self) -> None:
        self._db.close()


@pytest.fixture
def kept(spark: SparkSession, tmp_path: Path) -> Iterator[Kept]:
    made = Kept(spark, tmp_path)
    yield made
    made.close()


def files_of(path: Path, day: date) -> set[str]:
    return {file.name for file in (path / f"day={day}").glob("*.parquet")}


def test_a_day_is_archived_once_and_again_only_where_it_differs_and_never_made_less(
    kept: Kept, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    first, second, third = kept.day(3), kept.day(2), kept.day(1)
    kept.put(3, range(30))
    kept.put(2, range(20))
    kept.put(1, range(10))
    # A message of today, which is not over.
    kept.put(0, range(1))
    kept.end(3, range(30))
    plan = archive.plan(kept.queue, str(path))
    assert [(day.day, day.state, day.messages, day.ended) for day in plan.days] == [
        (first, DayState.NEW, 30, 30),
        (second, DayState.NEW, 20, 0),
        (third, DayState.NEW, 10, 0),
    ]
    assert not plan.preview().is_whole
    assert not path.exists()
    report = plan.run()
    assert report.is_whole
    assert report.line() == (
        f"mail in {path}: 3 days, 3 new; wrote 3 with 60 messages, and read them back."
    )
    # Messages of one day end, and another is damaged: each of its messages is there twice.
    kept.end(2, range(5))
    [file] = (path / f"day={third}").glob("*.parquet")
    shutil.copy(file, file.with_name("copy.parquet"))
    before = {day: files_of(path, day) for day in (first, second)}
    report = kept.queue.archive(str(path))
    assert [(day.day, day.state, day.ended) for day in report.days] == [
        (first, DayState.SAME, 30),
        (second, DayState.CHANGED, 5),
        (third, DayState.CHANGED, 0),
    ]
    assert [day.day for day in report.written] == [second, third]
    assert files_of(path, first) == before[first]
    assert files_of(path, second) != before[second]
    assert [len(files_of(path, day)) for day in (first, second, third)] == [1, 1, 1]
    stored = kept.queue.spark.read.parquet(str(path))
    assert (stored.count(), stored.select("row_id").distinct().count()) == (60, 60)
    assert [day["messages"] for day in report.to_json()["written"]] == [20, 10]
    # A record past its retention is dropped from the history, and stays in the archive.
    kept.end(3, range(30, 31))
    kept.forget(kept.entry(3, 1))
    for number in range(10):
        kept.forget(kept.entry(1, number))
    before = {day: files_of(path, day) for day in (first, second, third)}
    report = kept.queue.archive(str(path))
    assert [day.state for day in report.days] == [DayState.REDUCED, DayState.SAME, DayState.REDUCED]
    assert (report.written, report.is_whole) == ((), False)
    assert {day: files_of(path, day) for day in before} == before


def test_checksums_are_those_of_the_values_and_not_of_their_order(spark: SparkSession) -> None:
    at = datetime(2027, 1, 1, 23, 59, tzinfo=UTC)
    lines = [("mail", b"%d" % n, f"{n}", at, at, None, None, 0, None, None) for n in range(3)]

    def sum_of(changed: list) -> Sum:
        [line] = archive.sums(frame_of(spark, HISTORY, changed)).collect()
        assert (line["queue"], line["day"]) == ("mail", date(2027, 1, 1))
        return Sum(line["messages"], line["ended"], line["checksum"])

    known = sum_of(lines)
    assert sum_of(lines[::-1]) == known
    # A word in the place of another, in another column, and a message that is there twice.
    ended = (*lines[2][:5], None, None, 0, "me", None)
    fated = (*lines[2][:5], "me", None, 0, None, None)
    others = [[*lines[:2], ended], [*lines[:2], fated], [*lines, lines[0]]]
    assert len({known, *map(sum_of, others)}) == 4
    archive.compare("there", date(2027, 1, 1), known, sum_of(lines[::-1]))
    with pytest.raises(StoreCorrupt, match=r"there is damaged: of 2027-01-01 it has 2 messages"):
        archive.compare("there", date(2027, 1, 1), known, sum_of(lines[:2]))


def test_what_cannot_be_an_archive_is_refused_before_anything_is_written(
    kept: Kept, tmp_path: Path
) -> None:
    kept.put(1, range(1))
    spark, file = kept.queue.spark, tmp_path / "file"
    file.write_text("x")
    foreign, other = tmp_path / "foreign", tmp_path / "other"
    spark.range(1).withColumnRenamed("id", "number").write.parquet(str(foreign))
    line = ("others", b"1", "1", datetime(2020, 1, 1, tzinfo=UTC), None, None, None, 0, None, None)
    frame = frame_of(spark, HISTORY, [line]).withColumn("day", archive.day_of("entered"))
    frame.write.partitionBy("day").parquet(str(other))
    for path, said in {
        str(file): r"the archive '.* cannot be read: .*",
        f"{file}/below": r"the archive '.* cannot be written: Parent path is not a directory",
        "/proc/nobody/writes": r"the archive '/proc/nobody/writes' cannot be written: ",
        "nowhere://host/x": r"cannot be read: No FileSystem for scheme \"nowhere\"; name a dir",
        "": r"the archive '' cannot be read: Can not create a Path from an empty string; ",
        str(foreign): r"foreign holds Parquet files that are no archive of a queue; name another",
        str(other): r"other is of queue 'others', not of 'mail'; give each queue a directory",
    }.items():
        with pytest.raises(UsageError, match=said):
            kept.queue.archive(path)
    assert file.read_text() == "x"


def test_only_days_that_are_over_and_whole_are_archived(kept: Kept) -> None:
    register, now_ms = kept.queue.register(), kept.today * DAY_MS + 1
    days = [kept.today - ago for ago in (3, 2, 1, 0)]
    # Yesterday is not over before the offset is.
    assert list(archive.days_over(register, now_ms, None, None)) == days[:2]
    later_ms = now_ms + register.layout.offset_ms
    assert list(archive.days_over(register, later_ms, None, None)) == days[:3]
    assert list(archive.days_over(register, later_ms, "36h", None)) == days[2:3]
    assert list(archive.days_over(register, later_ms, None, "36h")) == days[:1]
    # If the history was turned on during a day, the next day is the first whole one.
    kept.be_kept_from((kept.today - 2) * DAY_MS + 5)
    assert list(archive.days_over(kept.queue.register(), later_ms, None, None)) == days[1:3]
    kept.be_kept_from((kept.today - 20) * DAY_MS + 5)
    whole = archive.days_over(kept.queue.register(), later_ms, None, None)
    assert whole.start == kept.today - 6


def test_a_history_that_is_off_or_too_short_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with shardq.connect(url) as db:
        queue = db.queue("mail")
        there = connect(spark, "mail", url)
        with pytest.raises(HistoryOff, match=r"keeps no history .* alter\(history='7d'\)"):
            there.archive(str(tmp_path / "archive"))
        queue.alter(history="1d")
        with pytest.raises(UsageError, match=r"keeps its history for 1d, and what is archived are"):
            there.archive(str(tmp_path / "archive"))
