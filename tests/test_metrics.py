"""Metrics: what a scrape says of a store and of a process, on a SQLite in memory."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import panels
import pytest
import yaml
from prometheus_client import CollectorRegistry

import shardq
from shardq import App
from shardq.errors import MissingExtra
from shardq.metrics import Collector, reading
from shardq.metrics.named import METRICS, scraped
from shardq.records import meter
from shardq.records.membership import Heartbeat
from shardq.records.meter import Meter, merged
from shardq.stores.tables import MEMBERS, STATS
from shardq.tasks import Worker
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator


class Scraped:
    """A registry with one collector."""

    def __init__(self, collector: Collector) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(collector)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def names(self) -> set[str]:
        return {sample.name for family in self.registry.collect() for sample in family.samples}

    def total(self, name: str) -> float:
        """The sum over all labels."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name
        )


@pytest.fixture
def scrape(db: shardq.Connection) -> Scraped:
    return Scraped(Collector(db))


def test_depth_ages_and_totals_are_those_of_each_queue(
    stage: Stage, db: shardq.Connection, scrape: Scraped
) -> None:
    mail, post = db.queue("mail", attempts=1), db.queue("post")
    mail.put_many(["a", "b", "c"])
    mail.put("later", delay="50m")
    post.put("x")
    stage.clock.advance(7)
    assert scrape.value("shardq_messages", queue="mail", state="ready") == 3
    assert scrape.value("shardq_messages", queue="mail", state="waiting") == 1
    assert scrape.value("shardq_messages", queue="post", state="ready") == 1
    assert scrape.value("shardq_oldest_due_seconds", queue="mail") == 7
    assert scrape.value("shardq_due_next_hour", queue="mail") == 1
    assert scrape.value("shardq_workers", queue="mail") == 0
    assert scrape.value("shardq_put_total", queue="mail") == 4
    consumer = shardq.Consumer(mail, lambda m: 1 / 0 if m.text == "b" else None, threads=3)
    stage.drive(consumer, seconds=5)
    stage.clock.advance(5)
    assert scrape.value("shardq_workers", queue="mail") == 1
    assert scrape.value("shardq_threads", queue="mail", state="idle") == 3
    assert scrape.value("shardq_acked_total", queue="mail") == 2
    assert scrape.value("shardq_buried_total", queue="mail") == 1
    assert scrape.value("shardq_messages", queue="mail", state="dead") == 1
    assert scrape.value("shardq_oldest_due_seconds", queue="mail") == 0
    assert scrape.value("shardq_messages", queue="mail.dead", state="ready") is None
    consumer.close()


def test_what_limits_hold_back_is_shown_by_limit_and_never_by_group(
    db: shardq.Connection, scrape: Scraped
) -> None:
    queue = db.queue("mail")
    for member, held in (("a", {"rate": 3, "queue": 2}), ("b", {"rate": 4, "task": 5})):
        told = Heartbeat(threads=1, limited=held).to_json()
        db._home.store.note(MEMBERS, ("mail",), {member: told}, 60_000)
    queue.pause(group="eu-*")
    assert scrape.value("shardq_limited_messages", queue="mail", limit="rate") == 7
    assert scrape.value("shardq_limited_messages", queue="mail", limit="queue") == 2
    assert scrape.value("shardq_limited_messages", queue="mail", limit="place") == 0
    assert scrape.value("shardq_limited_messages", queue="mail", limit="task") == 5
    assert scrape.value("shardq_paused_names", queue="mail", of="group") == 1


def test_runs_are_counted_by_queue_task_and_outcome_with_their_time(
    stage: Stage, db: shardq.Connection, scrape: Scraped
) -> None:
    app = App(db, attempts=1)

    @app.task(name="slow")
    def slow(seconds: float) -> None:
        stage.clock.advance(seconds)

    @app.task(name="bad")
    async def bad() -> None:
        raise ValueError

    for _ in range(4):
        slow.put(2.0)
    bad.put()
    stage.clock.advance(1)
    worker = Worker(app)
    worker.begin_to_step()
    stage.drive(*worker.consumers, seconds=30)
    of_slow = {"queue": "default", "task": "slow", "outcome": "acked"}
    assert scrape.value("shardq_run_seconds_count", **of_slow) == 4
    assert scrape.value("shardq_run_seconds_sum", **of_slow) == pytest.approx(8, abs=0.1)
    assert scrape.value("shardq_run_seconds_bucket", le="1.0", **of_slow) == 0
    assert scrape.value("shardq_run_seconds_bucket", le="2.5", **of_slow) == 4
    of_bad = {"queue": "default", "task": "bad", "outcome": "buried"}
    assert scrape.value("shardq_run_seconds_count", **of_bad) == 1
    assert scrape.value("shardq_lateness_seconds_count", queue="default") == 5
    assert (scrape.value("shardq_lateness_seconds_sum", queue="default") or 0) >= 5
    worker.close()


def test_deliveries_by_receive_have_their_lateness(
    stage: Stage, db: shardq.Connection, scrape: Scraped
) -> None:
    mail = db.queue("mail")
    mail.put("x")
    stage.clock.advance(3)
    mail.ack(*mail.receive(1))
    late = scrape.value("shardq_lateness_seconds_sum", queue="mail")
    assert late == pytest.approx(3, abs=0.1)


def test_totals_survive_a_restart(stage: Stage, db: shardq.Connection) -> None:
    mail = db.queue("mail")
    mail.put_many(["x"] * 5)
    mail.close()
    after = Scraped(Collector(stage.connect()))
    assert after.value("shardq_put_total", queue="mail") == 5


def test_totals_are_of_now_and_a_look_is_taken_once_in_five_seconds(
    stage: Stage, db: shardq.Connection, scrape: Scraped
) -> None:
    ready = {"queue": "mail", "state": "ready"}
    db.queue("mail").put("x")
    assert scrape.value("shardq_messages", **ready) == 1
    db.queue("mail").put("y")
    assert scrape.value("shardq_put_total", queue="mail") == 2
    assert scrape.value("shardq_messages", **ready) == 1
    stage.clock.advance(5)
    assert scrape.value("shardq_messages", **ready) == 2


def test_a_look_that_takes_long_holds_up_the_first_scrape_alone(
    stage: Stage, db: shardq.Connection, scrape: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BRIEF_S", 0.01)
    ready = {"queue": "mail", "state": "ready"}
    db.queue("mail").put("x")
    assert scrape.value("shardq_messages", **ready) == 1
    db.queue("mail").put("y")
    stage.clock.advance(5)
    goes_on = threading.Event()
    stage.faults.call("count", lambda: goes_on.wait(60), after=False)
    assert scrape.value("shardq_messages", **ready) == 1
    assert scrape.value("shardq_put_total", queue="mail") == 2
    stage.clock.advance(60)
    monkeypatch.setattr(reading, "LOOK_S", 0.01)
    assert scrape.value("shardq_messages", **ready) is None
    assert scrape.value("shardq_store_up") == 1
    goes_on.set()
    monkeypatch.setattr(reading, "LOOK_S", 60)
    assert scrape.value("shardq_messages", **ready) == 2


def test_a_damaged_queue_is_left_out_and_the_others_are_scraped(
    db: shardq.Connection, scrape: Scraped
) -> None:
    db.queue("bad").put("x")
    db.queue("mail").put("x")
    store = db._home.store
    store.note(STATS, ("bad",), {(db.queue("bad")._home.stats.totals.minute, "x"): "no JSON"})
    assert scrape.value("shardq_put_total", queue="mail") == 1
    assert scrape.value("shardq_put_total", queue="bad") is None
    assert scrape.value("shardq_queues_unread") == 1
    assert scrape.value("shardq_store_up") == 1


def test_a_queue_that_is_dropped_leaves_those_that_were_asked_for(db: shardq.Connection) -> None:
    db.queue("mail").put("x")
    scrape = Scraped(Collector(db, ["mail", "nowhere"]))
    assert scrape.value("shardq_put_total", queue="mail") == 1
    assert scrape.value("shardq_queues_unread") == 1


def test_a_store_that_is_away_leaves_what_the_process_knows(
    stage: Stage, db: shardq.Connection, scrape: Scraped
) -> None:
    db.queue("mail").put("x")
    consumer = shardq.Consumer(db.queue("mail"), lambda _: None)
    stage.drive(consumer, seconds=1)
    stage.faults.fail("notes queues", times=1_000)
    assert scrape.value("shardq_store_up") == 0
    assert scrape.value("shardq_run_seconds_count", queue="mail", task="", outcome="acked") == 1
    assert scrape.value("shardq_store_errors_total", kind="StoreUnavailable")
    assert scrape.value("shardq_messages", queue="mail", state="ready") is None
    stage.faults.heal()
    assert scrape.value("shardq_store_up") == 1
    consumer.close()


def test_a_store_that_does_not_answer_holds_up_no_scrape(
    stage: Stage, db: shardq.Connection, scrape: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ANSWER_S", 0.05)
    answers = threading.Event()
    stage.faults.call("notes queues", lambda: answers.wait(60), after=False)
    try:
        assert scrape.value("shardq_store_up") == 0
        assert scrape.value("shardq_store_up") == 0
    finally:
        answers.set()
    monkeypatch.setattr(reading, "ANSWER_S", 60)
    assert scrape.value("shardq_store_up") == 1


def test_the_times_of_schedules_are_told(
    stage: Stage, db: shardq.Connection, scrape: Scraped
) -> None:
    made = db.queue("mail").every("20s", "x", name="digest")
    assert made.next is not None
    labels = {"queue": "mail", "schedule": "digest"}
    next_at = scrape.value("shardq_schedule_next_timestamp_seconds", **labels)
    assert next_at == made.next.timestamp()
    assert scrape.value("shardq_schedule_last_fired_timestamp_seconds", **labels) is None
    consumer = shardq.Consumer(db.queue("mail"), lambda _: None)
    stage.drive(consumer, seconds=21)
    stage.clock.advance(61)
    last = scrape.value("shardq_schedule_last_fired_timestamp_seconds", **labels)
    assert last == next_at
    consumer.close()


def test_queues_beyond_the_first_500_are_counted_together(
    db: shardq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "NAMES_MAX", 4)
    for number in range(7):
        db.queue(f"q{number}").put("x")
    scrape = Scraped(Collector(db))
    assert scrape.value("shardq_put_total", queue="q3") == 1
    assert scrape.value("shardq_put_total", queue="q4") is None
    assert scrape.value("shardq_put_total", queue="other") == 3
    assert scrape.value("shardq_messages", queue="other", state="ready") == 3
    assert scrape.value("shardq_clock_offset_max_seconds", queue="other") == 120


def test_tasks_beyond_the_first_500_are_counted_together() -> None:
    tasks = Meter().tasks
    names = {tasks.name(f"task{number}") for number in range(550)}
    assert len(names) == 501
    assert (tasks.name("task0"), tasks.name("task549")) == ("task0", "other")


def test_what_processes_have_counted_is_added_up() -> None:
    one, two = Meter(), Meter()
    one.observe("run", ("mail", "", "acked"), [400, 2_000_000])
    two.observe("run", ("mail", "", "acked"), [400])
    two.add("errors", ("StoreTimeout",))
    sums = merged(one.counted(), two.counted())
    [(labels, counts)] = sums["run"]
    assert (labels, counts[0], sum(counts[:-1]), counts[-1]) == (
        ["mail", "", "acked"],
        2,
        3,
        2_000_800,
    )
    assert sums["errors"] == [(["StoreTimeout"], [1])]


def test_a_registry_knows_each_metric_without_a_look_at_the_store(
    stage: Stage, db: shardq.Connection
) -> None:
    collector = Collector(db)
    before = dict(stage.faults.calls)
    assert {family.name for family in collector.describe()} == set(METRICS)
    CollectorRegistry().register(collector)
    assert stage.faults.calls == before


def test_every_series_of_a_scrape_is_named(db: shardq.Connection, scrape: Scraped) -> None:
    db.queue("mail").put("x")
    named = {series for name in METRICS for series in scraped(name)}
    assert scrape.names() <= named


@pytest.fixture
def _without_prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [one for one in sys.modules if one.partition(".")[0] == "prometheus_client"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [one for one in sys.modules if one.startswith("shardq.metrics")]:
        monkeypatch.delitem(sys.modules, name)
    before = shardq.__dict__.get("metrics")
    yield
    monkeypatch.undo()
    if before is not None:
        shardq.metrics = before  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_without_prometheus")
def test_without_prometheus_client_an_error_names_the_extra() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'shardq\[metrics\]'"):
        importlib.import_module("shardq.metrics")


# What is shipped ----------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
SERIES = {series for name in METRICS for series in scraped(name)}


def series_in(text: str) -> set[str]:
    return set(re.findall(r"\bshardq_\w+", text))


def alerts() -> dict[str, str]:
    """Alert -> its expression."""
    rules = yaml.safe_load((ROOT / "data" / "alerts.yml").read_text())
    return {one["alert"]: one["expr"] for group in rules["groups"] for one in group["rules"]}


def test_each_series_of_an_alert_is_one_that_is_scraped() -> None:
    assert len(alerts()) == 10
    for name, expression in alerts().items():
        assert series_in(expression) <= SERIES, name
        assert series_in(expression), name


def test_each_label_of_an_alert_is_one_of_its_series() -> None:
    for expression in alerts().values():
        for name, given in re.findall(r"\b(shardq_\w+)\{(.*?)\}", expression):
            labels = set(re.findall(r"(\w+)=", given))
            [metric] = [one for one in METRICS if name in scraped(one)]
            assert labels <= set(METRICS[metric].labels)


def test_the_dashboard_is_what_its_script_makes_of_series_that_are_scraped() -> None:
    written = (ROOT / "data" / "grafana.json").read_text()
    assert written == panels.text(), "scripts/grafana makes it anew"
    expressions = [target for panel in panels.PANELS for target in panel.targets.values()]
    assert len(panels.PANELS) == 12
    for expression in expressions:
        assert series_in(expression), expression
        assert series_in(expression) <= SERIES, expression


def test_the_page_of_metrics_has_each_of_them_with_its_labels_and_each_alert() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    written = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(shardq_\w+)` \| (.*?) \|", page, re.MULTILINE)
    }
    assert written == {
        f"{name}_total" if one.kind == "counter" else name: set(one.labels)
        for name, one in METRICS.items()
    }
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == set(alerts())
