"""Connecting, and finding queues."""

from __future__ import annotations

import gc
import os
import traceback
from pathlib import Path
from typing import Any

import pytest

import shardq
from shardq import App, Consumer
from shardq.clock import SystemClock
from shardq.errors import BadName, BadSetting, BadUrl, ClockError, UnknownQueue
from shardq.stores.tables import MEMBERS
from shardq.testing import Stage


def test_the_ten_lines_of_the_readme_work(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    seen = []
    with shardq.connect(url) as db:
        db.queue("mail").put(b"hello")
    with shardq.connect(url) as db:
        Consumer(db.queue("mail"), seen.append, threads=1).run(until_empty=True)
    assert [message.text for message in seen] == ["hello"]


def test_the_environment_names_the_store_where_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDQ_STORE", f"sqlite:///{tmp_path / 'jobs.db'}")
    shardq.init()
    with shardq.connect() as db:
        assert db.url_shown.endswith("jobs.db")
        assert db.queues() == []


@pytest.mark.parametrize("url", [None, "", "redis://x", "jobs.db", "sqlite://host/x", "://", "["])
def test_a_url_that_names_no_store_is_refused(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARDQ_STORE", raising=False)
    for door in (shardq.connect, shardq.init):
        with pytest.raises(BadUrl):
            door(url)


def test_a_queue_is_made_once_and_found_by_all(stage: Stage) -> None:
    one, other = stage.connect(), stage.connect()
    assert one.queue("mail", lanes=3).settings == other.queue("mail").settings
    assert one.queue("mail") is one.queue("mail")
    assert other.queues() == ["mail"]


def test_of_two_that_make_a_queue_at_once_both_have_the_same(stage: Stage) -> None:
    one, other = stage.connect(), stage.connect()
    made = []
    stage.faults.call(
        "write_records queues",
        lambda: made.append(other.queue("mail")),
        nth=1,
        after=False,
    )
    queue = one.queue("mail")
    assert queue.settings == made[0].settings
    queue.ack(made[0].put("x").receipt)


def test_queues_are_listed_in_order_without_dropped_ones(stage: Stage) -> None:
    db = stage.connect()
    for name in ("sms", "mail", "fax"):
        db.queue(name)
    db.queue("fax").drop()
    assert db.queues() == ["mail", "sms"]


def test_all_queues_are_listed_and_opened_by_one_read(stage: Stage) -> None:
    maker, db = stage.connect(), stage.connect()
    for number in range(20):
        maker.queue(f"q-{number}", lanes=2)
    before = dict(stage.faults.calls)
    assert len(db.queues()) == 20
    opened = db._home.open_all()
    assert sorted(opened) == db.queues()
    assert all(queue.settings.lanes_written == 2 for queue in opened.values())
    assert stage.faults.calls["notes queues"] == before.get("notes queues", 0) + 3
    assert stage.faults.calls.get("records queues") == before.get("records queues")
    assert opened["q-7"] is db.queue("q-7")
    maker.queue("q-7").alter(lanes=5)
    assert db._home.open_all()["q-7"] is opened["q-7"]
    assert opened["q-7"].settings.lanes_written == 5


def test_a_queue_that_must_be_there_is_not_made(stage: Stage) -> None:
    db = stage.connect()
    with pytest.raises(UnknownQueue, match="mail"):
        db.queue("mail", create=False)
    assert db.queues() == []


def test_other_settings_than_the_queue_has_change_nothing(stage: Stage) -> None:
    stage.connect().queue("mail", lanes=3)
    db = stage.connect()
    assert db.queue("mail", lanes=4).settings.lanes_written == 3
    assert db.queue("mail", lanes=3).settings.lanes_written == 3


def test_a_connection_that_its_user_drops_is_closed_with_a_warning(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    dropped_are_closed(url, tmp_path)


@pytest.mark.cassandra
@pytest.mark.nightly
def test_a_connection_to_cassandra_that_its_user_drops_is_closed(cassandra_url: str) -> None:
    shardq.init(cassandra_url)
    dropped_are_closed(cassandra_url, None)


def dropped_are_closed(url: str, directory: Path | None) -> None:
    def drop() -> None:
        shardq.connect(url).queue("dropped").put("by its queue")
        app = App(url)
        app.task(drop).put()
        schedules = shardq.connect(url).queue("dropped").schedules
        gc.collect()
        assert list(schedules) == []
        shardq.Observer(shardq.connect(url)).look()
        app = schedules = None
        clock = SystemClock(0, corrected=False)
        until_us = clock.boot_us() + 60_000_000
        while (open_files(directory), threads()) > before and clock.boot_us() < until_us:
            gc.collect()
            clock.sleep(0.01)

    with shardq.connect(url) as db:
        # By now the driver has made what it keeps for all its connections.
        put = db.queue("dropped").totals().put
    gc.collect()
    before = open_files(directory), threads()
    with pytest.warns(ResourceWarning, match="was not closed; use `with`") as told:
        drop()
    assert (open_files(directory), threads()) <= before
    assert len(told) == 4
    with shardq.connect(url) as db:
        assert db.queue("dropped").totals().put == put + 1


def open_files(directory: Path | None) -> int:
    count = 0
    for number in os.listdir("/dev/fd"):
        try:
            target = os.readlink(f"/dev/fd/{number}")
        except OSError:
            continue
        count += directory is None or str(directory) in target
    return count


def threads() -> int:
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0


@pytest.mark.parametrize("name", ["", "a b", "x" * 101, "é", None, 5])
def test_a_bad_name_is_refused_before_any_io(stage: Stage, name: object) -> None:
    db = stage.connect()
    before = dict(stage.faults.calls)
    with pytest.raises(BadName):
        db.queue(name)
    assert stage.faults.calls == before


def test_a_bad_setting_is_refused_and_makes_no_queue(stage: Stage) -> None:
    db = stage.connect()
    with pytest.raises(BadSetting):
        db.queue("mail", lanes=0)
    assert db.queues() == []


def test_a_process_whose_clock_is_beyond_the_offset_is_refused(stage: Stage) -> None:
    stage.connect(shift=100).queue("mail")
    for shift in (-121.0, 121.0):
        with pytest.raises(ClockError):
            stage.connect(shift=shift).queue("mail")


@pytest.mark.parametrize("name", ["mail", "mail.dead"])
@pytest.mark.parametrize("corrected", [True, False])
def test_a_process_whose_clock_is_beyond_the_offset_makes_no_queue(
    stage: Stage, name: str, *, corrected: bool
) -> None:
    for shift in (-1e10, -121.0, 121.0, 1e12):
        with pytest.raises(ClockError):
            stage.connect(shift=shift, corrected=corrected).queue(name)
    assert stage.connect().queues() == []


def test_what_a_clock_within_a_long_offset_has_buried_is_seen_by_a_right_one(stage: Stage) -> None:
    ahead = stage.connect(shift=80_000, corrected=False).queue("mail", offset="1d")
    ahead.bury(ahead.put("ahead"))
    right = stage.connect().queue("mail")
    right.bury(right.put("right"))
    stage.clock.advance(100_000)
    assert {right.dead.receive(1)[0].text for _ in range(2)} == {"ahead", "right"}


def test_an_altered_offset_is_also_that_of_the_dead(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue.bury(queue.put("a"))
    queue.alter(offset="5m")
    assert stage.connect().queue("mail.dead").settings.offset_ms == 300_000


def test_closing_releases_what_receive_holds_and_stores_the_totals(stage: Stage) -> None:
    db = stage.connect()
    queue = db.queue("mail")
    shard = queue.put("a")._row.shard
    queue.ack(*queue.receive(wait="1s"))
    db.close()
    db.close()
    assert stage._store.lease_states([shard])[shard].holder is None
    assert stage._store.notes(MEMBERS, ("mail",)) == {}
    totals = stage.connect().queue("mail").totals()
    assert (totals.put, totals.delivered, totals.acked) == (1, 1, 1)


def test_producers_and_consumers_of_two_connections_meet_in_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with shardq.connect(url) as one, shardq.connect(url) as other:
        one.queue("mail").put_many(f"{n}" for n in range(100))
        seen: list[str] = []
        consumer = Consumer(
            other.queue("mail"),
            lambda m: seen.append(m.text),
            threads=2,
        )
        consumer.run(until_empty=True)
    assert sorted(seen, key=int) == [f"{n}" for n in range(100)]


def test_closing_on_a_failing_store_says_so_and_raises_nothing(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    db = stage.connect()
    db.queue("mail").put("a")
    stage.faults.fail("note stats")
    db.close()
    assert "mail was not closed cleanly" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "casandra://me:hunter2@db/jobs",
        "sqlite://me:hunter2@db/jobs",
        "me:hunter2@db",
        "cassandra://me:hunter2/x@db/jobs",
        "cassandra://me:1/hunter2@db/jobs",
        "cassandra://me:hunter2?x@db/jobs",
        "cassandra://me:x?hunter2=@db/jobs",
        "cassandra://me:hunter2#x@db/jobs",
        "cassandra://db/jobs?user=me&password=x&hunter2",
        "cassandra://db/jobs?user=me&password=x#hunter2",
        "cassandra://me:hunter2\u2100@db/jobs",
        "cassandra://me:hunter2\n@db/jobs",
        "redis://db/jobs?password=hunter2",
    ],
)
def test_a_password_in_a_url_is_in_no_error_nor_its_causes(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        shardq.connect(url)
    assert "hunter2" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", [5, b"sqlite://", "sqlite:///a\nb", "sqlite:///\ud800"])
def test_what_is_no_printable_text_is_no_url(url: Any) -> None:
    with pytest.raises(BadUrl):
        shardq.connect(url)


@pytest.mark.parametrize(
    "url",
    [
        f"cassandra://db:{'9' * 5_000}/jobs",
        f"cassandra://db/jobs?replication={'9' * 5_000}",
        f"cassandra://{'a' * 70}/jobs",
        "cassandra://a..b/jobs",
    ],
)
def test_numbers_and_hosts_beyond_all_bounds_are_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        shardq.connect(url)


def test_a_name_of_an_unusable_type_is_refused(stage: Stage) -> None:
    with pytest.raises(BadName):
        stage.connect().queue([])  # type: ignore[arg-type]
