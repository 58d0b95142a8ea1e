"""The audit by Spark: it names what was planted, no more and no less, as `Queue.audit` does."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import product
from time import perf_counter
from typing import TYPE_CHECKING

import pytest

import shardq
from shardq.errors import HistoryOff, UsageError
from shardq.inspection import audit as books
from shardq.inspection.audit import MisfitKind, kind_of
from shardq.model.ids import row_ids
from shardq.records.ledger import entry_of
from shardq.stores.store import Mark

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as all who write for Spark call it
from spark_frames import LEDGER, ROWS, frame_of
from spark_stores import STORES, Bench, bench, url

from pyspark_shardq.jobs import audit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LOST, DOUBLE, UNKNOWN = 38, 11, 5


def planted(spark: SparkSession, messages: int) -> tuple[DataFrame, DataFrame]:
    """A ledger and rows of messages: 7 in 10 acked, nearly all others present, a few misfits."""
    step = messages // 100
    number = F.col("number")
    # One of each hundredth of the numbers is planted; those at 0 are acked, those at 7 are there.
    acked, there = step * (number / step).cast("long"), step * (number / step).cast("long") + 7
    place = (number / step).cast("long")
    base = spark.range(messages, numPartitions=4).select(
        F.col("id").alias("number"),
        F.unhex(F.md5(F.col("id").cast("string"))).alias("entry"),
        F.concat(F.lit("order-"), "id").alias("name"),
        F.timestamp_millis(F.lit(1_700_000_000_000) + F.col("id") * 3).alias("entered"),
    )
    is_lost = (number == there) & (place < LOST)
    is_twice = (number == there) & (place >= LOST) & (place < LOST + 5)
    is_back = (number == acked) & (place < DOUBLE - 5)
    is_unknown = (number == acked) & (place >= 50) & (place < 50 + UNKNOWN)
    is_acked = number % 10 < 7
    ledger = base.select(
        F.col("entry").alias("row_id"),
        F.col("name").alias("id"),
        "entered",
        F.col("entered").alias("due"),
        F.when(is_unknown, "eaten").when(is_acked, "acked").alias("fate"),
        F.when(is_acked, F.col("entered")).alias("ended"),
    )
    row = ("entry", F.sha1(F.col("name")).cast("binary").alias("row_id"), F.col("name").alias("id"))
    rows = base.where(~is_acked & ~is_lost | is_back)
    first = rows.select(*row, "entered", F.lit(False).alias("in_flight"))
    second = base.where(is_twice).select("entry", "entry", F.col("name"), "entered", F.lit(False))
    return ledger, first.union(second)


def check_planted(ledger: DataFrame, rows: DataFrame, messages: int) -> None:
    judged = audit.balance(ledger, rows)
    step = messages // 100
    misfits = {
        (line["kind"], int(line["id"].removeprefix("order-")))
        for line in judged.where("kind is not null").select("kind", "id").collect()
    }
    assert misfits == {
        *(("lost", step * place + 7) for place in range(LOST)),
        *(("resurrected", step * place) for place in range(DOUBLE - 5)),
        *(("doubled", step * place + 7) for place in range(LOST, LOST + 5)),
        *(("unknown", step * place) for place in range(50, 50 + UNKNOWN)),
    }


def test_what_was_planted_in_many_messages_is_named_and_nothing_else(spark: SparkSession) -> None:
    ledger, rows = planted(spark, 20_000)
    check_planted(ledger, rows, 20_000)


@pytest.mark.nightly
def test_what_was_planted_in_two_million_is_named_at_200_000_joined_rows_a_second(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = 2_000_000
    ledger, rows = planted(spark, messages)
    ledger.write.parquet(str(tmp_path / "ledger"))
    rows.write.parquet(str(tmp_path / "rows"))
    stored = [spark.read.parquet(str(tmp_path / name)) for name in ("ledger", "rows")]
    begin = perf_counter()
    check_planted(*stored, messages)
    seconds = perf_counter() - begin
    with capsys.disabled():
        sys.stdout.write(f"{messages / seconds:,.0f} joined rows/s, {seconds:.1f} s in all\n")
    assert messages / seconds >= 200_000


# The rules ----------------------------------------------------------------------------------------

AT = datetime(2027, 1, 1, tzinfo=UTC)
ENTRY = b"entry of 16 byte"


def told(entry: bytes, name: str, *, is_put: bool = True, fate: str | None = None) -> tuple:
    """A line of the view `history`."""
    return entry, name, AT, AT if is_put else None, fate, AT if fate else None


def row(entry: bytes, name: str, row_id: bytes | None = None, *, is_claim: bool = False) -> tuple:
    """A line of the view `messages`."""
    return entry, row_id or entry, name, AT, is_claim


def test_columns_judge_each_case_as_the_audit_of_a_queue_does(spark: SparkSession) -> None:
    cases = list(product((True, False), (None, "acked", "dead", "purged", "sold"), (True, False)))
    known = [
        told(b"%016d" % number, str(number), is_put=is_put, fate=fate)
        for number, (is_put, fate, _) in enumerate(cases)
        if is_put or fate
    ]
    there = [
        row(b"%016d" % number, str(number))
        for number, (_, _, is_there) in enumerate(cases)
        if is_there
    ]
    judged = audit.balance(frame_of(spark, LEDGER, known), frame_of(spark, ROWS, there))
    kinds = {int(line["id"]): line["kind"] for line in judged.collect()}
    assert kinds == {
        number: kind_of(is_put=is_put, fate=fate, is_there=is_there)
        for number, (is_put, fate, is_there) in enumerate(cases)
        if is_put or fate or is_there
    }
    assert set(kinds.values()) == {*MisfitKind, None} - {MisfitKind.DOUBLED}


def test_each_expected_id_is_delivered_once_whatever_else_was_done_to_it(
    spark: SparkSession,
) -> None:
    ledger = [
        told(b"a", "redriven", fate="dead"),
        told(b"b", "redriven", fate="acked"),
        told(b"c", "put back", fate="dead"),
        told(b"d", "put back"),
        told(b"e", "scheduled again", fate="cancelled"),
        told(b"f", "scheduled again"),
        told(b"g", "delivered twice", fate="acked"),
        told(b"h", "delivered twice", fate="acked"),
        told(b"i", "to be delivered again", fate="acked"),
        told(b"j", "to be delivered again"),
        told(b"k", "resurrected", fate="acked"),
        told(b"l", "sold", fate="sold"),
        told(b"m", "nobody's", fate="acked"),
        told(b"n", "ended well", fate="acked"),
        told(b"o", "lost"),
        told(b"t", "nobody's and lost"),
        told(b"p", "died", fate="dead"),
    ]
    rows = [
        row(b"d", "put back"),
        row(b"f", "scheduled again", is_claim=True),
        row(b"j", "to be delivered again"),
        row(b"k", "resurrected"),
        row(b"q", "not recorded"),
        row(b"r", "nobody's either"),
        row(b"s", "copied", b"1"),
        row(b"s", "copied", b"2"),
        row(b"s", "copied", b"2"),
    ]
    names = {line[1] for line in ledger} | {"not recorded", "copied", "never put"}
    # `lost` is expected twice.
    expected = [(name,) for name in [*names - {"nobody's", "nobody's and lost"}, "lost"]]
    judged = audit.balance_expected(
        frame_of(spark, LEDGER, ledger),
        frame_of(spark, ROWS, rows),
        frame_of(spark, {"order": pa.string()}, expected),
        key="order",
    )
    lines = {line["id"]: line for line in judged.collect()}
    assert {name: line["kind"] for name, line in lines.items() if line["kind"]} == {
        "delivered twice": "doubled",
        "to be delivered again": "doubled",
        "copied": "doubled",
        "resurrected": "resurrected",
        "sold": "unknown",
        "nobody's": "unknown",
        "nobody's either": "unknown",
        "lost": "lost",
        "never put": "lost",
    }
    total, doubled = audit.counted(audit.counts(judged).collect(), is_expected=True)
    assert (total.put, doubled) == (len(names) - 2, 3)
    assert (total.acked, total.dead, total.waiting, total.in_flight) == (4, 1, 4, 1)
    assert (total.lost, total.unknown, total.resurrected) == (2, 3, 1)


# On a store ---------------------------------------------------------------------------------------


def end_of(message: shardq.Message, fate: str) -> Mark:
    entry = entry_of(message._row)
    return Mark(entry, None, None, fate, message._row.due_ms, 1, "test")


def plant(queue: shardq.Queue) -> dict[str, str]:
    """Put messages, of which each kind of misfit is one; tells kinds by id."""
    store = queue._home.store
    queue.put_many({"body": "purged", "delay": "1h"} for _ in range(3))
    queue.purge()
    queue.put_many({"body": "x", "delay": "1h"} for _ in range(20))
    queue.cancel(queue.put("cancelled", delay="1h"))
    queue.put("acked")
    queue.ack(queue.receive(wait="5s")[0])
    queue.put("claimed")
    assert len(queue.receive(wait="5s")) == 1
    names = ("lost", "resurrected", "unknown", "doubled", "unrecorded")
    one = {name: queue.put(name, delay="1h", id=name) for name in names}
    store.record([end_of(one["resurrected"], "acked"), end_of(one["unknown"], "sold")], 3_600_000)
    store.delete([one["lost"]._row.position, one["unknown"]._row.position])
    copied, template = one["doubled"]._row, one["unrecorded"]._row
    store.insert([copied._replace(id=row_ids.next(copied.entered_us), first=copied.id)])
    # A message that its producer has stored and not recorded.
    store.insert([template._replace(id=row_ids.next(template.entered_us), name="stored")])
    return {name: name for name in names[:-1]} | {"stored": "unrecorded"}


@pytest.mark.gate
@pytest.mark.parametrize("url", STORES, indirect=True)
def test_it_agrees_with_the_audit_of_the_queue_itself(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No row moves meanwhile, so no pause is needed.
    monkeypatch.setattr(audit, "PAUSE_S", 0)
    monkeypatch.setattr(books, "PAUSE_S", 0)
    here = bench(history="7d")
    planted_kinds = plant(here.queue)
    report = here.spark.audit()
    known = here.queue.audit()
    assert {one.id: one.kind for one in report.named()} == planted_kinds
    assert [one for one in report.named() if one.kind != "doubled"] == known.misfits
    assert report.audit.total == known.total
    assert [line for line in report.minutes() if line[1].put] == known.minutes
    assert not report.is_even
    assert report.doubled == 1
    assert report.line() == f"{known.line()[:-1]}; 1 there twice."
    told = report.to_json()
    assert (told["balances"], told["put"], told["lost"], told["doubled"]) == (False, 31, 1, 1)


@pytest.mark.parametrize(
    ("url", "is_expected"),
    [
        ("sqlite", False),
        pytest.param("sqlite", True, marks=pytest.mark.nightly),
        pytest.param("cassandra", False, marks=pytest.mark.nightly),
    ],
    indirect=["url"],
)
def test_it_is_exact_while_consumers_run(
    spark: SparkSession, bench: Callable[..., Bench], *, is_expected: bool
) -> None:
    snoozed = set()

    def handle(message: shardq.Message) -> None:
        if message.text.endswith("7") and message.id not in snoozed:
            snoozed.add(message.id)
            raise shardq.Snooze("300ms")

    here = bench(history="7d")
    names = [f"order-{n}" for n in range(3_000)]
    here.queue.put_many(
        {"body": name, "delay": f"{n * 10}ms", "id": name} for n, name in enumerate(names)
    )
    far = here.queue.put("x", delay="1d", id="lost")
    here.queue._home.store.delete([far._row.position])
    expected = frame_of(spark, {"id": pa.string()}, [(name,) for name in names])
    consumer = shardq.Consumer(here.queue, handle, threads=4)
    consumer.start()
    report = here.spark.audit(expected=expected if is_expected else None)
    consumer.stop()
    consumer.join()
    # Nobody expects the one that is lost, and nothing is left of it.
    lost = [] if is_expected else [("lost", "lost")]
    assert [(one.kind, one.id) for one in report.named()] == lost
    assert report.audit.total.put == 3_000 + len(lost)
    assert report.is_even == is_expected
    said = "balances: 3,000 expected = " if is_expected else "does not balance: 3,001 put = "
    assert report.line().startswith(f"{here.queue.name} {said}")


def test_what_cannot_be_audited_is_refused_before_anything_is_read(
    spark: SparkSession, bench: Callable[..., Bench]
) -> None:
    here = bench()
    with pytest.raises(HistoryOff, match=r"queue 'mail-\w+' keeps no history .* alter\(history="):
        here.spark.audit()
    expected = spark.range(3).withColumnRenamed("id", "number")
    with pytest.raises(UsageError, match="no column 'order'; there is number"):
        here.spark.audit(expected=expected, key="order")
