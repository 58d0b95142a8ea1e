"""What Spark computes of a message is what the core computes: lanes, dues, labels, bins."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it

from pyspark_shardq import bins
from pyspark_shardq import expressions as x
from shardq.errors import BadName, BadTime
from shardq.model import names, times
from shardq.model.shard import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LAYOUT = Layout("mail", bands=3, lanes_written=5, lanes_read=8, group_lanes=7, first_lane=12)
_SCRIPTS = [(0x20, 0x7E), (0xA0, 0x24F), (0x400, 0x4FF), (0x4E00, 0x9FFF), (0x1F300, 0x1FAFF)]


def random_keys(count: int) -> list[str]:
    """Texts of many scripts, planes 1 to 16 and lengths, the empty one too; none of them twice."""
    chance = random.Random(17)
    keys = {"", "a", "\0", "é", "e\u0301", "\U0010ffff", "👩\u200d🚀", "k" * 5_000}
    while len(keys) < count:
        low, high = chance.choice([*_SCRIPTS, (0x10000, 0x10FFFF), (0x80, 0xD7FF)])
        length = min(int(chance.expovariate(0.1)) + 1, 300)
        keys.add("".join(chr(chance.randint(low, high)) for _ in range(length)))
    return sorted(keys)


@pytest.fixture(scope="module")
def keys(spark: SparkSession) -> tuple[list[str], DataFrame]:
    made = random_keys(10_000)
    frame = spark.createDataFrame(
        [
            (number, key, number % 3, key[:9] if number % 2 else None)
            for number, key in enumerate(made)
        ],
        "number int, key string, band int, team string",
    )
    return made, frame


def test_lanes_are_those_of_python(keys: tuple[list[str], DataFrame]) -> None:
    _, frame = keys
    key, band, team = F.col("key"), F.col("band"), F.col("team")
    due = F.col("number") * 60_007 + F.lit(1_800_000_000_000)
    found = frame.select(
        "key", "band", "team", x.lane(key, band, LAYOUT), x.lane(key, band, LAYOUT, team),
        x.spread(key, 3_600_000), due, x.minute(due, LAYOUT),
    ).collect()  # fmt: skip

    assert len(found) == 10_000
    for text, priority, group, alone, grouped, later, due_ms, minute in found:
        by_name = LAYOUT.named_lane(text, priority)
        assert alone == by_name
        assert grouped == (by_name if group is None else LAYOUT.group_lane(group))
        assert later == zlib.crc32(text.encode()) % 3_600_000
        assert minute == LAYOUT.minute_of(due_ms)


def test_a_label_is_what_python_takes_for_one(keys: tuple[list[str], DataFrame]) -> None:
    made, frame = keys
    found = dict(frame.select("key", x.is_label(F.col("key"))).collect())
    for key in made:
        try:
            names.label(key, what="key")
        except BadName:
            assert not found[key], ascii(key)
        else:
            assert found[key], ascii(key)
    assert 1_000 < sum(found.values()) < 9_000


def test_every_character_is_judged_as_python_judges_it(spark: SparkSession) -> None:
    codes = [*range(0x3000), *range(0x3000, 0xD800, 9), *range(0xE000, 0x30000, 9)]
    codes += range(0xE0000, 0xE0200)
    frame = spark.createDataFrame([(chr(code),) for code in codes], "key string")
    alone = frame.select("key", x.is_label(F.col("key")), x.is_label(F.concat("key", F.lit("x"))))
    wrong = [
        ascii(key)
        for key, is_label, is_beside in alone.collect()
        if is_label != names.is_printable(key) or is_beside != names.is_printable(key + "x")
    ]
    assert wrong == []


MOMENTS = [
    "2027-01-01T09:00:00Z", "2027-01-01 09:00:00.0001z", "2027-01-01T09:00+01:00",
    "2027-01-01T09:00:00.123456+0530", "2027-01-01t09:00:00-08", "1970-01-01T00:00:00.0005Z",
    "9999-12-31T23:59:59.999Z", "2028-02-29T00:00:00Z",
    "2027-01-01T09:00:00.1234567Z",
]  # fmt: skip
UNREADABLE = [
    "", "soon", "now", "09:00Z", "2027-02-29T00:00:00Z", "2027-01-01T25:00:00Z", "1767258000",
    "2027-01-01T09:00:00+99:00", "2027-01-01T09:00:00Z\n", "2027-01-01T09:00:00 Europe/Berlin",
]  # fmt: skip
NAIVE = ["2027-01-01", "2027-01-01T09:00:00", "2027-01-01 09:00"]


def test_a_due_of_text_is_read_as_python_reads_it(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(one,) for one in MOMENTS + UNREADABLE + NAIVE], "due string")
    due = F.col("due")
    found = {
        text: (at_ms, naive)
        for text, at_ms, naive in frame.select(
            due, x.due_ms(x.moment_of(due)), x.is_naive(due)
        ).collect()
    }
    for text in MOMENTS:
        assert found[text] == (times.due_ms(text), False), text
    for text in UNREADABLE:
        assert found[text] == (None, False), text
    for text in NAIVE:
        assert found[text] == (None, True), text
        with pytest.raises(BadTime):
            times.due_ms(text)


def test_a_bin_is_no_fuller_than_the_others_where_most_rows_are_in_one_minute(
    spark: SparkSession,
) -> None:
    # 80 % of the rows in one minute of four lanes, the rest over a day.
    frame = (
        spark.range(100_000)
        .select(
            F.when(F.col("id") % 5 > 0, 700).otherwise(F.col("id") % 1_440).alias("minute"),
            (F.col("id") % 4).cast("int").alias("lane"),
            F.sha1(F.col("id").cast("string")).alias("name"),
        )
        .withColumn("due_ms", F.col("minute") * 60_000)
    )
    slot = bins.slot_of(F.col("minute"))
    counted = dict(frame.groupBy(slot).count().collect())
    chosen = bins.bins_of([counted.get(number, 0) for number in range(bins.SLOTS)], 8)
    binned = frame.withColumn("bin", bins.bin_of(slot, F.col("name"), chosen))
    placed = bins.laid_out(binned, 8, Layout("mail"))
    found = placed.select(F.spark_partition_id(), "bin", "due_ms", "lane", "name").collect()
    sizes = Counter(row[1] for row in found)

    assert len(found) == 100_000
    assert all(row[0] == row[1] for row in found)
    assert len(sizes) == 8
    assert max(sizes.values()) <= 1.1 * 100_000 / 8
    for one in range(8):
        keys = [(row[2] // 60_000, *tuple(row)[3:]) for row in found if row[1] == one]
        assert keys == sorted(keys)


@pytest.mark.parametrize("count", [0, 1, 5, 1_000])
def test_all_that_is_packed_is_in_one_bin_each(count: int) -> None:
    counts = {number: (number * 7_919) % 100 for number in range(count)}
    packed = bins.pack(counts, 7)

    assert len(packed) == 7
    assert sorted(one for some in packed for one in some) == list(range(count))
