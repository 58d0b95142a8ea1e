"""History by Spark: exact counts and percentiles, day by day in UTC, as of a moment."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import shardq
from shardq.errors import HistoryOff, UsageError

pytest.importorskip("pyspark")

from spark_frames import HISTORY, frame_of
from spark_stores import Bench, bench, url

from pyspark_shardq import connect
from pyspark_shardq.jobs import history

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

AT = datetime(2027, 1, 1, 23, tzinfo=UTC)


def told(
    n: int, fate: str | None, *, entered: datetime = AT, late_ms: float = 0, attempt: int = 1,
    due: bool = True, queue: str = "mail",
) -> tuple:  # fmt: skip
    """A line of the view `history`: a message that was due a minute after it entered."""
    at = entered + timedelta(minutes=1)
    ended = at + timedelta(milliseconds=late_ms) if fate else None
    name, id_ = b"%016d" % n, f"order-{n}"
    return queue, name, id_, entered, at if due else None, fate, ended, attempt, "me", None


def percentile(values: list[int], of: float) -> float:
    """Between the two nearest values, as far as it lies between them."""
    place = of * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return sorted(values)[low] * (low + 1 - place) + sorted(values)[high] * (place - low)


@pytest.fixture
def tokyo(spark: SparkSession) -> Iterator[None]:
    """A session of people whose day begins nine hours before that of UTC."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def ledger(spark: SparkSession) -> DataFrame:
    chance = random.Random(7)
    late = [round(10 ** chance.uniform(0, 5)) for _ in range(5_000)]
    lines = [told(n, "acked", late_ms=late_ms) for n, late_ms in enumerate(late)]
    lines += [
        told(9_000, "dead", late_ms=1e7, attempt=5),
        told(9_001, "cancelled", late_ms=-30_000, attempt=0),
        told(9_002, "purged"),
        told(9_003, "sold"),
        told(9_004, None),
        told(9_005, "acked", due=False),
        told(9_006, "acked", entered=AT + timedelta(hours=1), late_ms=7, attempt=200),
        told(9_007, None, queue="other"),
    ]
    return frame_of(spark, HISTORY, lines)


@pytest.mark.usefixtures("tokyo")
def test_each_queue_and_day_is_told_exactly_and_days_are_of_utc(ledger: DataFrame) -> None:
    first, second, other = (history.Day(**line.asDict()) for line in history.days(ledger).collect())
    chance = random.Random(7)
    late = [round(10 ** chance.uniform(0, 5)) for _ in range(5_000)]
    assert (first.queue, first.day, first.messages) == ("mail", date(2027, 1, 1), 5_006)
    assert first.fates == {
        "forwarded": 0, "expired": 0,
        "acked": 5_001, "dead": 1, "cancelled": 1, "purged": 1, "unknown": 1, "open": 1,
    }  # fmt: skip
    assert (first.unrecorded, first.attempts, first.attempts_max) == (1, 5_001 + 5 + 2, 5)
    for given, of in zip(first.late_ms, (0.5, 0.99, 0.999), strict=False):
        assert given == pytest.approx(percentile(late, of))
    assert first.late_ms_max == max(late)
    assert (second.day, second.messages, second.p50_ms) == (date(2027, 1, 2), 1, 7)
    assert (other.queue, other.fates["open"], other.p99_ms) == ("other", 1, None)
    assert other.line() == "2027-01-01 1 message: 1 open."


def test_how_late_and_after_how_many_deliveries_add_up_to_all_that_ended(
    ledger: DataFrame,
) -> None:
    late = {line["upto_ms"]: line["messages"] for line in history.lateness(ledger).collect()}
    assert sum(late.values()) == 5_001
    assert set(late) <= set(history.LATENESS_MS)
    tried = {line["attempts"]: line["messages"] for line in history.attempts(ledger).collect()}
    assert tried == {0: 1, 1: 5_003, 5: 1, 100: 1}
    hours = history.hours(ledger).groupBy("fate").sum("messages").collect()
    assert {line["fate"]: line["sum(messages)"] for line in hours} == {
        "acked": 5_002, "dead": 1, "cancelled": 1, "purged": 1, "sold": 1,
    }  # fmt: skip


def test_as_of_a_moment_nothing_later_has_entered_or_ended(spark: SparkSession) -> None:
    lines = [
        told(1, "acked", late_ms=0),
        told(2, "acked", late_ms=1),
        told(3, "acked", entered=AT + timedelta(minutes=1)),
    ]
    at_ms = round((AT + timedelta(minutes=1)).timestamp() * 1_000) + 1
    before = history.as_of(frame_of(spark, HISTORY, lines), at_ms - 1)
    [day] = history.days(before).collect()
    assert (day["messages"], day["open"], day["acked"], day["attempts"]) == (2, 2, 0, 0)
    [day] = history.days(history.as_of(frame_of(spark, HISTORY, lines), at_ms)).collect()
    assert (day["messages"], day["open"], day["acked"], day["attempts"]) == (3, 2, 1, 1)


def test_the_history_of_a_queue_is_what_the_queue_itself_tells(bench: Callable[..., Bench]) -> None:
    here = bench(history="7d")
    queue = here.queue
    assert here.spark.history().line().startswith(f"{queue.name}: nothing has entered from ")
    queue.put_many(f"{n}" for n in range(50))
    for message in queue.receive(max=20, wait="5s"):
        queue.ack(message)
    queue.cancel(queue.put("x", delay="1h"))
    report = here.spark.history()
    late = [
        round((one.ended - one.due).total_seconds() * 1_000)
        for one in queue.history()
        if one.fate == "acked" and one.ended and one.due
    ]
    total = {word: sum(day.fates[word] for day in report.days) for word in ("acked", "open")}
    assert total == {"acked": 20, "open": 30}
    assert (report.messages, len(late)) == (51, 20)
    assert max(day.late_ms_max or 0 for day in report.days) == max(late)
    told = report.to_json()
    assert sum(day["cancelled"] for day in told["days"]) == 1
    assert sum(hour["messages"] for hour in told["hours"]) == 21
    page = report.page()
    assert f"History of {queue.name}" in page
    assert page.count("data:image/png;base64,") == 2


def test_a_history_that_is_off_or_a_word_that_is_none_is_refused(
    bench: Callable[..., Bench],
) -> None:
    here = bench()
    with pytest.raises(HistoryOff, match=r"keeps no history .* alter\(history='7d'\)"):
        here.spark.history()
    with pytest.raises(UsageError, match=r"by must be one of entered, due, ended, not 'born'"):
        here.spark.history(by="born")  # type: ignore[arg-type]
