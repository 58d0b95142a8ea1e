"""What people see of a queue: on a SQLite in memory, with its own rows, leases and totals."""

from __future__ import annotations

import json

import pytest

import shardq
from shardq import Queue
from shardq.errors import UnknownQueue
from shardq.model.times import iso
from shardq.observer import Observer, open_shards
from shardq.records.folded import stored_totals
from shardq.records.membership import Heartbeat
from shardq.records.stats import Totals
from shardq.stores.tables import MEMBERS, STATS
from shardq.testing import ManualClock, Stage

MINUTE_MS = 60_000


@pytest.fixture
def clock(stage: Stage) -> ManualClock:
    return stage.clock


def test_a_queue_is_seen_with_its_depth_and_what_is_to_come(db: shardq.Connection) -> None:
    queue = db.queue("mail")
    queue.put("now")
    queue.put_many([{"body": "soon", "delay": "90s"}] * 3)
    view = Observer(db).look()[0]
    assert (view.name, view.depth.ready, view.depth.waiting) == ("mail", 1, 3)
    assert sum(count for _, count in view.forecast) == 3
    assert len(view.lanes) == 8
    assert view.late_ms is None


def test_lag_is_the_age_of_the_oldest_message_that_is_due(
    db: shardq.Connection, clock: ManualClock
) -> None:
    queue = db.queue("mail", lanes=1)
    first = queue.put("first")
    clock.advance(5)
    second = queue.put("second")
    observer = Observer(db)
    clock.advance(2)
    assert observer.look()[0].lag_ms == 7_000
    queue.cancel(first.receipt)
    assert observer.look()[0].lag_ms == 2_000
    queue.cancel(second.receipt)
    assert observer.look()[0].lag_ms == 0
    queue.put("third", delay="10s")
    assert observer.look()[0].lag_ms == 0
    clock.advance(11)
    assert observer.look()[0].lag_ms == 1_000


def test_what_runs_is_no_lag_and_what_waits_behind_it_is(
    stage: Stage, db: shardq.Connection
) -> None:
    queue = db.queue("mail", lanes=1, hold="1m")
    first = queue.put("runs for long")
    views = []

    def handle(message: shardq.Message) -> None:
        if message.id == first.id:
            stage.clock.advance(20)
            queue.put("waits")
            stage.clock.advance(9)
            consumer._engine.step()
            views.append(Observer(db).look()[0])

    consumer = shardq.Consumer(queue, handle, threads=1)
    stage.drain(queue, consumer)
    [view] = views
    assert view.depth.in_flight == view.depth.ready == 1
    assert 9_000 <= view.lag_ms < 10_000
    assert view.oldest != first.id
    assert (Observer(db).look()[0].lag_ms, Observer(db).look()[0].oldest) == (0, None)


def test_runs_that_a_heartbeat_does_not_name_are_no_lag(
    db: shardq.Connection, clock: ManualClock
) -> None:
    queue = db.queue("mail", lanes=2, bands=1)
    for _ in range(40):
        queue.put("runs")
        clock.advance(1)
    waits = queue.put("waits")
    told = Heartbeat(threads=40, busy=40, running=40, lanes=(0, 1))
    db._home.store.note(MEMBERS, ("mail",), {"reader": told.to_json()}, 100_000)
    clock.advance(5)
    view = Observer(db).look()[0]
    assert (view.lag_ms, view.oldest) == (5_000, waits.id)


def test_a_group_lags_by_what_waits_behind_its_head_that_runs(
    db: shardq.Connection, clock: ManualClock
) -> None:
    queue = db.queue("mail")
    queue.put("head", group="ada")
    clock.advance(10)
    queue.put("next", group="ada")
    [head] = queue.receive(1, visibility="5m")
    clock.advance(20)
    assert Observer(db).look()[0].lag_ms == 20_000
    queue.retry(head, "10m")
    clock.advance(5)
    assert Observer(db).look()[0].lag_ms == 25_000


def test_lag_is_found_days_back(db: shardq.Connection, clock: ManualClock) -> None:
    db.queue("mail", lanes=2).put("x")
    clock.advance(20 * 3_600)
    assert Observer(db).look()[0].lag_ms == 20 * 3_600_000


def test_a_late_write_behind_the_observers_place_is_found_within_a_minute(
    db: shardq.Connection, clock: ManualClock
) -> None:
    queue = db.queue("mail", lanes=1)
    queue.put("x")
    clock.advance(30)
    observer = Observer(db)
    assert observer.look()[0].lag_ms == 30_000
    row = next(iter(queue.peek()))._row
    # A writer whose clock is behind, or a hint that is applied late.
    late_ms = row.due_ms - 20_000
    shard = queue._home.register.layout.shard(late_ms, 0)
    db._home.store.insert([row._replace(shard=shard, due_ms=late_ms)])
    clock.advance(61)
    assert observer.look()[0].lag_ms == 111_000


def test_rates_are_over_ten_seconds_at_least(db: shardq.Connection, clock: ManualClock) -> None:
    queue = db.queue("mail")
    observer = Observer(db, ["mail"])
    observer.look()
    queue.put_many([b"x"] * 100)
    clock.advance(4)
    observer.look()
    clock.advance(6)
    view = observer.look()[0]
    assert (view.put_rate, view.rate_s) == (pytest.approx(10), 10)
    clock.advance(20)
    view = observer.look()[0]
    assert (view.put_rate, view.rate_s) == (pytest.approx(0), 20)


def test_the_first_look_tells_the_rates_since_the_last_minute_began(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    stage.clock.advance(180 - stage.clock.now_ms() / 1_000 % 60)
    queue.put_many([b"x"] * 60)
    queue.close()
    stage.clock.advance(20)
    consumer = shardq.Consumer(queue, lambda _: None)
    stage.drain(queue, consumer)
    consumer.close()
    stage.clock.advance(70 - stage.clock.now_ms() / 1_000 % 60)
    [view] = Observer(stage.connect()).look()
    assert view.rate_s == pytest.approx(70, abs=0.1)
    assert view.put_rate == view.delivered_rate == pytest.approx(60 / 70, rel=0.01)
    stage.clock.advance(60)
    [view] = Observer(stage.connect()).look()
    assert view.put_rate == view.delivered_rate == 0


def test_the_first_look_at_a_young_queue_tells_the_rates_since_it_was_made(
    stage: Stage,
    queue: Queue,
) -> None:
    queue.put_many([b"x"] * 60)
    queue.close()
    stage.clock.advance(5)
    [view] = Observer(stage.connect()).look()
    assert view.rate_s == pytest.approx(5, abs=0.5)
    assert view.put_rate == pytest.approx(12, rel=0.1)


def test_who_puts_is_listed_by_how_much_until_it_has_rested_for_five_minutes(
    stage: Stage,
) -> None:
    few, many, none = (stage.connect().queue("mail") for _ in range(3))
    few.put("x")
    many.put_many([b"x"] * 3)
    none.peek()
    [message] = none.receive(1)
    none.ack(message)
    for queue in (few, many, none):
        queue.close()
    [view] = Observer(stage.connect(), ["mail"]).look()
    names = [name for name, _ in view.producers]
    assert [count for _, count in view.producers] == [3, 1]
    assert len({*names}) == 2
    assert view.to_json()["producers"] == [
        {"member": names[0], "put": 3}, {"member": names[1], "put": 1}
    ]  # fmt: skip
    stage.clock.advance(300)
    [view] = Observer(stage.connect(), ["mail"]).look()
    assert view.producers == ()


def test_owners_are_those_who_hold_the_lease_else_those_who_say_they_read(
    db: shardq.Connection,
) -> None:
    queue = db.queue("mail", lanes=3, bands=1)
    told = Heartbeat(threads=8, busy=38, running=2, ready=5, lanes=(0, 1), demand=True)
    db._home.store.note(MEMBERS, ("mail",), {"reader": told.to_json()}, 10_000)
    puts = [queue.put("x")._row.shard for _ in range(12)]
    shard = next(shard for shard in puts if shard.lane == 1)
    db._home.store.take(
        {shard: None}, lock="holder/1/2", holder="holder/1", window=1, ttl_ms=10_000
    )
    view = Observer(db).look()[0]
    assert [lane.owner for lane in view.lanes] == ["reader", "holder", None]
    member = view.members[0]
    assert (member.name, member.threads, member.busy, member.ready) == ("reader", 8, 2, 5)
    assert member.unsettled == 38
    assert member.lanes == ((0, 0), (1, 0))


def test_lanes_count_within_their_bands(db: shardq.Connection) -> None:
    db.queue("mail", lanes=2, bands=3)
    told = Heartbeat(threads=8, lanes=(0, 1, 2, 3))
    db._home.store.note(MEMBERS, ("mail",), {"reader": told.to_json()}, 10_000)
    view = Observer(db).look()[0]
    assert [(lane.lane, lane.band) for lane in view.lanes] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    assert view.members[0].lanes == ((0, 0), (0, 1), (0, 2), (1, 0))


def test_the_dead_are_those_that_are_dead_now(stage: Stage, db: shardq.Connection) -> None:
    queue = db.queue("mail")
    assert Observer(db).look()[0].dead == 0
    assert db.queues() == ["mail"]
    for _ in range(3):
        queue.bury(queue.put("x"))
    assert Observer(db, ["mail"]).look()[0].dead == 3
    queue.redrive(limit=1)
    assert Observer(db, ["mail"]).look()[0].dead == 2
    stage.clock.advance(0.1)
    queue.dead.purge()
    assert Observer(db, ["mail"]).look()[0].dead == 0


def test_the_dead_are_counted_anew_at_each_look(stage: Stage, db: shardq.Connection) -> None:
    queue, observer = db.queue("mail"), Observer(db)
    assert observer.look()[0].dead == 0
    queue.bury(queue.put("x"))
    assert observer.look()[0].dead == 1
    queue.redrive()
    assert observer.look()[0].dead == 0
    queue.bury(*queue.peek(1))
    queue.redrive()
    assert observer.look()[0].dead == 0
    queue.dead.put("x")
    stage.clock.advance(10)
    assert observer.look()[0].dead == 1


def test_a_consumer_is_busy_with_what_its_handlers_run(stage: Stage, db: shardq.Connection) -> None:
    queue = db.queue("mail", lanes=1)
    queue.put_many([b"x"] * 40)
    views = []

    def handle(_message: shardq.Message) -> None:
        told.append(consumer._engine._told())
        if len(told) == 20:
            stage.clock.advance(5)
            consumer._engine.step()
            views.append(Observer(db).look()[0])

    told: list[Heartbeat] = []
    consumer = shardq.Consumer(queue, handle, threads=8)
    stage.drain(queue, consumer)
    assert max(beat.busy for beat in told) > 8
    assert {beat.running for beat in told} == {1}
    member = views[0].members[0]
    assert (member.busy, member.threads) == (1, 8)
    assert 5_000 <= member.longest_ms < 6_000


def test_what_a_consumer_runs_is_in_the_view_and_stays_there_when_it_is_parked(
    stage: Stage, db: shardq.Connection
) -> None:
    queue = db.queue("mail", lanes=1, hold="10s")
    sent = queue.put("slow", headers={"task": "shop.charge"})
    views = []

    def handle(_message: shardq.Message) -> None:
        for _ in range(5):
            stage.clock.advance(4)
            consumer._engine.step()
        views.append(Observer(db).look()[0])

    consumer = shardq.Consumer(queue, handle, threads=8)
    stage.drain(queue, consumer)
    [run] = views[0].members[0].runs
    assert (run.message, run.task) == (sent.id, "shop.charge")
    assert 20_000 <= run.run_ms < 21_000
    told = {"message": sent.id, "run_ms": run.run_ms, "task": "shop.charge"}
    assert views[0].to_json()["members"][0]["runs"] == [told]
    stage.clock.advance(5)
    consumer.step()
    assert Observer(db).look()[0].members[0].runs == ()


def test_a_parked_delivery_is_in_flight_once(stage: Stage, db: shardq.Connection) -> None:
    queue = db.queue("mail", lanes=1, hold="10s")
    queue.put_many([b"x"] * 3)
    depths = []

    def handle(_message: shardq.Message) -> None:
        if not depths:
            for _ in range(5):
                stage.clock.advance(4)
                consumer._engine.step()
            depths.append(queue.depth())

    consumer = shardq.Consumer(queue, handle, threads=8)
    stage.drain(queue, consumer)
    assert (depths[0].in_flight, depths[0].ready) == (1, 2)


def test_a_consumers_deliveries_are_in_the_view(db: shardq.Connection, clock: ManualClock) -> None:
    queue = db.queue("mail", lanes=1)
    queue.put_many([b"x"] * 10)
    consumer = shardq.Consumer(queue, lambda _message: None, threads=1)
    for _ in range(20):
        consumer.step()
        clock.advance(0.5)
    consumer.close()
    view = Observer(db).look()[0]
    assert (view.totals.delivered, view.totals.acked, view.depth.total) == (10, 10, 0)
    assert view.late_ms is not None
    assert view.late_ms[0] <= view.late_ms[1]
    assert view.late_day_ms == view.late_ms
    clock.advance(360)
    view = Observer(db).look()[0]
    assert view.late_ms is None
    assert view.late_day_ms is not None
    clock.advance(30 * 3_600)
    assert Observer(db).look()[0].late_day_ms is None


def test_queues_come_and_go_while_it_looks(db: shardq.Connection) -> None:
    observer = Observer(db)
    assert observer.look() == []
    db.queue("mail")
    db.queue("post")
    assert [view.name for view in observer.look()] == ["mail", "post"]
    db.queue("mail").drop()
    assert [view.name for view in observer.look()] == ["post"]


def test_a_queue_that_is_not_there_is_an_error(db: shardq.Connection) -> None:
    with pytest.raises(UnknownQueue, match="mial"):
        Observer(db, ["mial"]).look()


def test_a_view_is_json_for_programs(db: shardq.Connection) -> None:
    db.queue("mail").put("x")
    view = json.loads(json.dumps(Observer(db).look()[0].to_json()))
    assert (view["queue"], view["ready"], len(view["lanes"])) == ("mail", 1, 8)
    assert view["at"] == iso(db._home.clock.now_ms())


def test_the_lag_is_that_of_the_oldest_message_that_no_purge_has_reached(
    db: shardq.Connection, clock: ManualClock
) -> None:
    queue = db.queue("mail", lanes=1)
    queue.put_many([{"body": "x", "delay": f"{minute}m"} for minute in range(10)])
    clock.advance(1)
    queue.purge()
    clock.advance(540)
    queue.put("new")
    clock.advance(60)
    assert Observer(db).look()[0].lag_ms == 60_000


def test_open_shards_count_what_is_due_and_what_is_there(
    db: shardq.Connection, clock: ManualClock
) -> None:
    queue = db.queue("mail", lanes=1)
    queue.put_many([{"body": "x", "delay": f"{10 * n}s"} for n in range(12)])
    clock.advance(15)
    shards = open_shards(queue)
    # The queue's offset of two minutes keeps the two before the current one open; one more is next.
    current = clock.now_ms() // MINUTE_MS
    assert list(shards) == [current - 2, current - 1, current, current + 1]
    assert sum(due for lanes in shards.values() for due, _ in lanes) == 2
    assert sum(rows for lanes in shards.values() for _, rows in lanes) == 12


def test_open_shards_are_those_of_bands_that_were_put_to(db: shardq.Connection) -> None:
    queue, other = db.queue("mail"), db.queue("mail")
    queue.put("x")
    lanes = len(open_shards(queue).popitem()[1])
    other.put("x", priority=1)
    assert [len(some) for some in open_shards(queue).values()] == [2 * lanes] * 4
    assert sum(rows for some in open_shards(queue).values() for _, rows in some) == 2


def test_totals_of_all_members_are_summed(stage: Stage) -> None:
    one, two = Totals(put=3, delivered=1), Totals(put=4)
    one.lateness.add(2_000)
    stage._store.note(STATS, ("mail",), {(7, "one"): one.to_json()})
    stage._store.note(STATS, ("mail",), {(7, "two"): two.to_json()})
    total = stored_totals(stage._store, "mail").totals
    assert (total.put, total.delivered, total.lateness.count) == (7, 1, 1)


def test_looking_far_ahead_takes_a_small_part_of_the_time(
    db: shardq.Connection, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.queue("mail").every("1h", "x")
    asked = []

    def slow(_after_ms: int, _until_ms: int) -> list[tuple[int, int]]:
        asked.append(clock.boot_us())
        clock.advance(3)
        return []

    observer = Observer(db, ["mail"])
    observer.look()
    monkeypatch.setattr(observer.queues["mail"].schedules._home, "firings", slow)
    for _ in range(80):
        clock.advance(2)
        observer.look()
    assert len(asked) == 3


def test_a_look_ends_in_time_and_the_next_goes_on_with_what_it_has_not_reached(
    db: shardq.Connection, stage: Stage
) -> None:
    for number in range(6):
        db.queue(f"q-{number}").put("x")
    observer = Observer(db)
    stage.faults.call("count", lambda: stage.clock.advance(1))
    looked = [[view.name for view in observer.look(seconds=1.0)]]
    assert observer.unseen == 5
    looked.append([view.name for view in observer.look()])
    assert looked == [["q-0"], [f"q-{number}" for number in range(6)]]
    assert observer.unseen == 0


def test_what_is_on_the_screen_is_looked_at_first(db: shardq.Connection, stage: Stage) -> None:
    for number in range(6):
        db.queue(f"q-{number}").put("x")
    observer = Observer(db)
    observer.look()
    db.queue("q-4").put("y")
    stage.clock.advance(10)
    stage.faults.call("count", lambda: stage.clock.advance(1))
    views = {view.name: view for view in observer.look(seconds=1.0, first=["q-4"])}
    assert {name for name, view in views.items() if view.depth.ready == 2} == {"q-4"}
    assert len({view.at_ms for view in views.values()}) == 2
    assert len(views) == 6


def test_a_look_tells_how_many_queues_it_has_reached(db: shardq.Connection) -> None:
    for number in range(3):
        db.queue(f"q-{number}")
    told = []
    Observer(db).look(on_progress=lambda *step: told.append(step))
    assert told == [("queues", 1, 3), ("queues", 2, 3), ("queues", 3, 3)]
