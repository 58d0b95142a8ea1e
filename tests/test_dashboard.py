"""The screen of `observe` in terminals of several sizes, on a SQLite in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from shardq.cli.dashboard import Dashboard
from shardq.observer import Observer, QueueView
from shardq.records.membership import Heartbeat
from shardq.stores.tables import MEMBERS
from shardq.testing import Stage

if TYPE_CHECKING:
    import shardq


SIZES = [(80, 24), (140, 40), (60, 12), (200, 60)]


def drawn(what: RenderableType, width: int, height: int = 25) -> list[str]:
    to = Console(width=width, height=height, color_system=None, force_terminal=True)
    with to.capture() as captured:
        to.print(what, highlight=False)
    return captured.get().splitlines()


def screen(views: list[QueueView], width: int, height: int) -> list[str]:
    return drawn(Dashboard("sqlite:///jobs.db").fitted(views, width, height), width, height)


def beat(db: shardq.Connection, queue: str, number: int, **told: int) -> None:
    lanes = tuple(range(40))
    heartbeat = Heartbeat(threads=8, busy=38, running=told.get("running", 8), lanes=lanes)
    db._home.store.note(
        MEMBERS,
        (queue,),
        {f"mailer.example:{1_000 + number}:5b1c09aa": heartbeat.to_json()},
        60_000,
    )


def crowd(db: shardq.Connection, queues: int) -> list[QueueView]:
    for number in range(queues):
        name = f"{'a-queue-of-a-long-name-' * 3}{number}" if number % 3 else f"mail-{number}"
        queue = db.queue(name, lanes=40, bands=1)
        queue.put_many([{"body": "x", "delay": f"{n}s"} for n in range(20)])
        for member in range(number % 4):
            beat(db, name, member)
    return Observer(db).look()


@pytest.mark.parametrize("queues", [1, 2, 5, 60])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_screen_is_filled_and_never_overflows(
    db: shardq.Connection, queues: int, width: int, height: int
) -> None:
    lines = screen(crowd(db, queues), width, height)
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    assert lines[0].startswith("shardq observe  sqlite:///jobs.db")
    assert lines[0].endswith("Z")
    assert lines[-1].startswith("Ctrl-C ends.")


def test_a_small_terminal_shows_state_and_consumers(stage: Stage, db: shardq.Connection) -> None:
    db.queue("mail", lanes=40, bands=1).put_many([{"body": "x"}] * 50)
    db.queue("post").put("x")
    paused = db.queue("paper")
    paused.put("x")
    paused.pause()
    beat(db, "mail", 1)
    beat(db, "mail", 2, running=0)
    stage.clock.advance(5)
    text = "\n".join(screen(Observer(db).look(), 80, 24))
    assert "mail: 2 consumers, 8 of 16 handlers busy" in text
    assert "mailer.example:1001:5b1c09aa  8 of 8" in text
    assert "mailer.example:1002:5b1c09aa  0 of 8" in text
    assert "0-39" in text
    assert "no consumers: post\n" in text
    assert "shardq consume post" in text
    assert "paused" in text


def test_what_is_paused_of_a_queue_is_named_with_and_without_consumers(
    stage: Stage, db: shardq.Connection
) -> None:
    until = {"shop.charge": "2099-01-01T00:00:00Z", "shop.send": "2020-01-01T00:00:00Z"}
    paused = {"tasks": [*until], "until": until, "keys": ["order-7"]}
    for name in ("mail", "post"):
        db.queue(name, groups={"paused": ["vip-*"]}, limits={"paused": paused})
    db.queue("mail").pause(key="order-8")
    beat(db, "mail", 1)
    text = "\n".join(screen(Observer(db).look(), 200, 24))
    charge = "task shop.charge until 2099-01-01T00:00:00.000Z"
    mail = "  paused: group vip-*, key order-7, key order-8, and 1 more"
    assert re.search(rf"^{re.escape(mail)} *$", text, re.MULTILINE)
    post = f"post: paused: group vip-*, key order-7, {charge}"
    assert re.search(rf"^{re.escape(post)} *$", text, re.MULTILINE)


def test_who_puts_is_named_with_and_without_consumers(stage: Stage, db: shardq.Connection) -> None:
    for count, name in enumerate(["mail", "mail", "mail", "mail", "mail", "post"], 1):
        queue = stage.connect().queue(name)
        queue.put_many([{"body": "x"}] * count)
        queue.close()
    beat(db, "mail", 1)
    text = "\n".join(screen(Observer(db).look(), 200, 24))
    [mail] = re.findall(r"^  put by (.*)$", text, re.MULTILINE)
    assert re.fullmatch(r"\S+ \(5\), \S+ \(4\), \S+ \(3\), and 2 more \(3\)", mail.strip())
    assert re.search(r"^post: put by \S+ \(6\)", text, re.MULTILINE)


def test_the_tasks_that_run_are_counted(db: shardq.Connection) -> None:
    db.queue("mail")
    now_ms = db._home.clock.now_ms()
    for number, tasks in enumerate([("shop.charge", "shop.index"), ("shop.charge", "")]):
        runs = tuple((f"job-{n}", now_ms - 1_000 * (number + 1)) for n in range(2))
        told = Heartbeat(threads=2, running=2, runs=runs, tasks=tasks).to_json()
        db._home.store.note(MEMBERS, ("mail",), {f"worker-{number}": told}, 60_000)
    text = "\n".join(screen(Observer(db).look(), 100, 24))
    assert "  runs shop.charge 2 (longest 2s), shop.index 1 (longest 1s)" in text


def test_the_dead_are_a_column_of_their_queue(db: shardq.Connection) -> None:
    queue = db.queue("mail")
    queue.bury(queue.put("x"))
    lines = screen(Observer(db).look(), 80, 24)
    assert not any("mail.dead" in line for line in lines)
    assert next(line for line in lines if line.startswith("mail ")).endswith(" 1")
    alone = screen(Observer(db, ["mail.dead"]).look(), 80, 24)
    assert any(line.startswith("mail.dead  dead letters") for line in alone)


def test_an_owner_that_sends_no_heartbeat_is_named(db: shardq.Connection) -> None:
    queue = db.queue("mail", lanes=1)
    shard = queue.put("x")._row.shard
    beat(db, "mail", 1)
    db._home.store.take({shard: None}, lock="gone/1/2", holder="gone/1", window=1, ttl_ms=10_000)
    text = "\n".join(screen(Observer(db).look(), 80, 24))
    assert "gone holds lanes, but is silent" in text


def test_lanes_of_bands_are_counted_apart(db: shardq.Connection) -> None:
    db.queue("mail", lanes=4, bands=3)
    heartbeat = Heartbeat(threads=8, lanes=(0, 1, 2, 3, 4, 5, 9))
    db._home.store.note(MEMBERS, ("mail",), {"reader": heartbeat.to_json()}, 60_000)
    text = "\n".join(screen(Observer(db).look(), 80, 24))
    assert "4 lanes of 3 bands, 7 of 12 being read" in text
    assert "band 0: 0-1 3; band 1: 0-1; band 2: 0-1" in text


def test_whole_cuts_no_name(db: shardq.Connection) -> None:
    name = "a" * 100
    db.queue(name).put("x")
    beat(db, name, 1)
    lines = drawn(Dashboard("sqlite:///jobs.db").whole(Observer(db).look(), 2_000), 2_000)
    assert any(line.startswith(f"{name}  ok") for line in lines)
    assert max(map(len, lines)) < 300


def test_bars_are_ascii_where_the_terminal_is(db: shardq.Connection) -> None:
    db.queue("mail", lanes=40, bands=1).put_many(
        [{"body": "x", "delay": f"{n}s"} for n in range(300)]
    )
    beat(db, "mail", 1)
    views = Observer(db).look()
    ascii_only = Dashboard("sqlite:///jobs.db", ascii_only=True)
    assert "".join(drawn(ascii_only.fitted(views, 80, 24), 80, 24)).isascii()


def test_no_queues_say_of_which_store_and_how_to_begin() -> None:
    line = drawn(Dashboard("sqlite:///jobs.db").fitted([], 80, 24), 80)[0]
    assert line.startswith("sqlite:///jobs.db has no queues")
    assert "shardq put" in line


@pytest.mark.parametrize("queues", [6, 30])
def test_consumers_that_are_left_out_are_counted_and_each_queue_tells_of_its_own(
    db: shardq.Connection, queues: int
) -> None:
    for number in range(queues):
        name = f"mail-{number:02}"
        db.queue(name).put("x", delay="1m")
        if number:
            beat(db, name, 1, running=2)
    lines = screen(Observer(db).look(), 80, 24)
    assert lines[2].split()[:3] == ["queue", "state", "busy"]
    assert next(line for line in lines if line.startswith("mail-00 ")).split()[3] == "-"
    assert " 2 of 8 " in next(line for line in lines if line.startswith("mail-01 "))
    shown = sum("1 consumer, 2 of 8 handlers busy" in line for line in lines)
    [told] = [line for line in lines if line.endswith(": shardq observe QUEUE")]
    more = "more " if shown else ""
    assert told == f"consumers of {queues - 1 - shown} {more}queues: shardq observe QUEUE"


def test_it_says_which_queues_it_shows_and_how_many_are_to_come(db: shardq.Connection) -> None:
    views = crowd(db, 40)
    dashboard = Dashboard("sqlite:///jobs.db")
    lines = drawn(dashboard.fitted(views, 100, 24, unseen=7), 100, 24)
    assert any("7 more queues to look at" in line for line in lines)
    assert 2 < len(dashboard.shown) < 24
    names = {view.name for view in views}
    assert set(dashboard.shown) <= names
    dashboard.fitted(views[:3], 100, 24)
    assert dashboard.shown == [view.name for view in views[:3]]
