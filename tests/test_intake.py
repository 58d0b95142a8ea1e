"""Taking rows in: what is another's, what was settled meanwhile, whose turn it is."""

from __future__ import annotations

import pytest
from reading import groups_in, write

from shardq import Consumer, Message, Queue, Retry
from shardq.engine.lane import Rung
from shardq.engine.lease import TTL_MS, Leases
from shardq.errors import StoreUnavailable
from shardq.lifecycle.settle import Settler
from shardq.model.message import Row
from shardq.model.times import moment_of
from shardq.stores.tables import BLOCKED
from shardq.testing import Recorder, Stage


def test_what_is_settled_between_a_read_and_the_lease_is_not_handed_out_again(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen, again = Recorder(stage.clock), Recorder(stage.clock)
    first = Consumer(queue, seen)
    second = Consumer(stage.connect().queue("mail"), again)
    queue.put("x")
    stage.clock.advance(0.01)
    while (running := first._engine.ready.take()) is None:
        first._engine.step()

    def hand_over() -> None:
        first._deliver(running)
        first._engine.close()

    # The second has read the row by now, and gets its lease from the first in good order.
    stage.faults.call("take", hand_over, after=False)
    stage.drive(second, seconds=10)
    assert seen.texts == ["x"]
    assert again.texts == []
    assert stage.is_empty(queue)


def test_no_lane_is_left_where_it_fails_to_ask_for_those_that_are_new(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    consumer = Consumer(queue, Recorder(stage.clock))
    stage.drive(consumer, seconds=1)
    intake = consumer._engine.intake
    first, *others = intake.lanes
    intake.keep(others, dict)

    def fail() -> dict[int, int]:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        intake.keep([first], fail)
    assert {lane.number for lane in intake.polled} <= intake.lanes.keys()
    stage.drive(consumer, seconds=1)


def test_who_gets_a_shard_s_lease_looks_whether_a_head_was_parked_until_just_now(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    holder = Consumer(queue, Recorder(stage.clock))
    queue.put("x", group="g")
    while not holder._engine.leases.held():
        stage.clock.advance(0.01)
        holder._engine.step()
    [lease] = holder._engine.leases.held()
    seen = Recorder(stage.clock)
    other = Consumer(stage.connect().queue("mail"), seen)
    other._engine.intake.keep([0], dict)
    rows = [found._row for found in queue.peek()]
    assert other._engine.intake.accept(rows) != {}
    stage.clock.advance(0.3)
    until_ms = stage.clock.now_ms() + 60_000
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 120_000)
    stage._store.release({lease.shard: lease.lock})
    assert other._engine.intake.accept(rows) == {}
    other._engine.intake.lanes[0].groups_to = None
    other._engine.intake.close_groups()
    other._engine.ready.set_reach({0: until_ms})
    assert other._engine.ready.take() is None
    other._engine.outbox.flush()
    assert [found.due_ms for found in queue.peek()] == [until_ms]


def test_what_is_read_once_a_lane_has_opened_waits_for_a_head_parked_while_it_was_closed(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer = Consumer(queue, Recorder(stage.clock))
    engine = consumer._engine
    engine.intake.keep([0], dict)
    engine.intake.accept([queue.put("x")._row])
    lane = engine.intake.lanes[0]
    # Another has an older shard of the lane, and parks a head.
    lane.groups_to = -1
    stage.clock.advance(0.2)
    until_ms = stage.clock.now_ms() + 60_000
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 120_000)
    engine.intake.close_groups()
    assert lane.groups_to is None
    behind = queue.put("behind", group="g")._row
    assert engine.intake.accept([behind]) == {}
    engine.outbox.flush()
    assert {found.text: found.due_ms for found in queue.peek()}["behind"] == until_ms


def test_what_was_refused_is_read_where_the_lease_came_by_a_call_that_failed_otherwise(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    engine = Consumer(queue, Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    first, second = (queue.put(text, group="g")._row for text in "ab")
    other = Leases(queue._home.store, stage.clock, "other", window=1)
    assert not other.take([first.shard])
    assert engine.intake.accept([first]) == {0: first.due_ms}
    other.release([first.shard])
    assert not engine.leases.take([first.shard])
    stage.clock.advance(1)
    late = queue.put("c", group="g")._row
    assert late.due_ms > second.due_ms
    assert engine.intake.accept([late]) == {0: first.due_ms}


def test_of_a_lane_that_is_new_it_is_asked_at_once_whether_its_groups_may_go_on(
    stage: Stage,
) -> None:
    intake = Consumer(stage.connect().queue("mail", lanes=2), Recorder(stage.clock))._engine.intake
    intake.keep([0], dict)
    intake.close_groups()
    stage.clock.advance(0.01)
    intake.keep([0, 1], dict)
    intake.close_groups()
    assert [lane.groups_to for lane in intake.lanes.values()] == [None, None]


def test_what_was_read_ahead_waits_for_a_head_that_another_has_put_off_since(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    later = queue.put("later", delay="1s", group="g")._row
    stage.drive(consumer, seconds=0.6)
    assert later.id in consumer._engine.intake.known
    until_ms = stage.clock.now_ms() + 60_000
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 120_000)
    stage.drive(consumer, seconds=5)
    assert seen.texts == []
    assert [found.due_ms for found in queue.peek()] == [until_ms]


def test_what_was_read_ahead_goes_once_what_is_pulled_before_it_has_been_read(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    first = queue.put("first", group="g")._row
    put_off = settler.planner.move(first, stage.clock.now_ms() + 60_000, attempt=0)
    settler.carry_out([put_off])
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    later = queue.put("later", delay="1600ms", group="g")._row
    stage.drive(consumer, seconds=0.4)
    pulled = settler.planner.move(put_off.new, 0, attempt=0)

    def pull() -> None:
        # Stored long after it was planned, when polls had passed it; then its block says so.
        settler.carry_out([pulled])
        until_ms = pulled.new.due_ms
        stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 9_000)

    stage.drive(consumer, seconds=1.1)
    assert later.id in consumer._engine.intake.known
    stage.clock.advance((later.due_ms - stage.clock.now_ms()) / 1e3 + 0.01)
    stage.faults.call("notes blocked", pull, after=False)
    consumer.step()
    assert seen.texts == []
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["first", "later"]


def test_what_is_in_hand_waits_where_one_that_comes_before_it_is_found_and_put_off(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    earlier = settler.planner.move(queue.put("earlier", group="g")._row, 0, attempt=0)
    later = queue.put("later", group="g")._row
    stage.clock.advance(1)
    put_off = settler.planner.move(earlier.new, stage.clock.now_ms(), attempt=0)
    settler.carry_out([earlier])
    settler.carry_out([put_off])
    until_ms = put_off.new.due_ms
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 120_000)
    stage.clock.advance(1)
    engine = Consumer(queue, Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    engine.intake.lanes[0].blocked = stage._store.notes(BLOCKED, ("mail", 0))
    assert engine.intake.accept([later]) == {}
    # Its head is put off anew, and what waits behind it is read.
    until_ms = stage.clock.now_ms() + 60_000
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 120_000)
    assert engine.intake.accept([put_off.new]) == {}
    engine.intake.lanes[0].advance(stage.clock.now_ms())
    engine.intake.set_reach()
    assert engine.ready.take() is None
    engine.outbox.flush()
    assert [(found.text, found.due_ms) for found in queue.peek()] == [
        ("earlier", until_ms),
        ("later", until_ms),
    ]


def settler_of(queue: Queue) -> Settler:
    return Settler(queue._home.store, queue._home.clock, queue._home.register)


def over_block(stage: Stage) -> tuple[Consumer, Recorder, Row, int]:
    """A consumer of a group that has waited until just now, and a row of it that came before."""
    queue = stage.connect().queue("mail", lanes=1)
    first = queue.put("first", group="g")._row
    last = queue.put("last", delay="50ms", group="g")._row
    until_ms = stage.clock.now_ms() + 100
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 60_000)
    settler = settler_of(queue)
    settler.carry_out([settler.planner.move(first, until_ms, attempt=0)])
    stage.clock.advance(0.6)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    know_blocks(consumer)
    consumer._engine.intake.lanes[0].advance(until_ms - 60)
    return consumer, seen, last, until_ms


def know_blocks(consumer: Consumer) -> None:
    """Read lane 0 from now on, and know of its groups what their blocks say."""
    consumer._engine.intake.keep([0], dict)
    consumer._engine.intake.lanes[0].blocked = consumer._queue._home.store.notes(
        BLOCKED, ("mail", 0)
    )


def test_what_waited_behind_a_head_goes_before_what_is_read_first(stage: Stage) -> None:
    consumer, seen, last, until_ms = over_block(stage)
    engine, queue = consumer._engine, consumer._queue
    assert engine.intake.accept([last]) == {}
    engine.intake.lanes[0].groups_to = None
    engine.intake.close_groups()
    engine.ready.set_reach({0: until_ms - 1})
    assert engine.ready.take() is None
    engine.outbox.flush()
    assert last in [found._row for found in queue.peek()]
    stage.drain(queue, consumer)
    assert seen.texts == ["first", "last"]


def test_what_comes_after_what_another_may_hold_is_put_to_now(stage: Stage) -> None:
    consumer, _, last, until_ms = over_block(stage)
    engine, queue = consumer._engine, consumer._queue
    assert engine.intake.accept([last]) == {}
    # What waited until then turns out to be in a shard that is another's.
    [lease] = engine.leases.held()
    minute = lease.shard.minute + 1
    other = last._replace(shard=lease.shard._replace(minute=minute), id=b"x" * 16, due_ms=until_ms)
    stage._store.take({other.shard: None}, lock="l", holder="h", window=1, ttl_ms=9_000)
    assert engine.intake.accept([other]) != {}
    engine.outbox.flush()
    now_ms = stage.clock.now_ms()
    assert {found.text: found.due_ms for found in queue.peek()} == {
        "first": until_ms,
        "last": now_ms,
    }
    # What is read next, due before that and after what was put there, waits with it.
    assert stage._store.notes(BLOCKED, ("mail", 0))["g"] == (now_ms, "head")
    lane = engine.intake.lanes[0]
    between = last._replace(id=b"y" * 16, due_ms=now_ms - 10)
    lane.retry_ms, lane.groups_to = 0, None
    # It may have been read while what the block speaks of was on its way: so it is read again.
    assert engine.intake.accept([between], {0: between.due_ms}) == {0: between.due_ms}
    assert engine.intake.accept([between], {0: between.due_ms}) == {}
    engine.ready.set_reach({0: between.due_ms})
    assert engine.ready.take() is None


def test_a_lane_without_room_is_read_on_to_a_parked_head_that_nobody_came_back_for(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    head = queue.put("head", group="g")._row
    for number in range(9):
        # The last of them did not have to wait.
        queue.put(str(number), delay=f"{number + (1 if number < 6 else 200)}ms", group="g")
    until_ms = stage.clock.now_ms() + 100
    settler = settler_of(queue)
    groups = groups_in(queue)
    groups.block(0, "g", until_ms, head.message_id)
    settler.carry_out([settler.planner.move(head, until_ms, attempt=0, claim="gone")])
    stage.clock.advance(0.6)
    seen = Recorder(stage.clock)
    stage.drain(queue, Consumer(queue, seen, prefetch=4))
    # What is put off for want of room is put in order, once the lane is read so far.
    assert seen.texts == ["head", *"012345678"]


def test_what_is_read_after_all_that_waited_behind_a_head_stays_where_it_is(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    row = queue.put("last", group="g")._row
    until_ms = stage.clock.now_ms() + 100
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 60_000)
    stage.clock.advance(0.6)
    consumer = Consumer(queue, Recorder(stage.clock))
    know_blocks(consumer)
    consumer._engine.intake.lanes[0].advance(until_ms)
    assert consumer._engine.intake.accept([row]) == {}
    consumer._engine.outbox.flush()
    assert [found._row for found in queue.peek()] == [row]


def test_who_waits_for_another_s_shard_reads_from_its_first_row_not_what_was_settled_before(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    holder = Consumer(queue, Recorder(stage.clock))
    stage.clock.advance(3)
    queue.put("waits")
    while not holder._engine.leases.held():
        stage.clock.advance(0.01)
        holder._engine.step()
    [row] = [found._row for found in queue.peek()]
    other = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))._engine
    other.intake.keep([0], dict)
    other.reader.poll()
    assert (other.intake.known, other.intake.lanes[0].cursor_ms) == ({}, row.due_ms - 1)
    # And it is read as soon as the shard is free.
    holder._engine.retire()
    holder._engine.release_idle()
    stage.clock.advance(0.3)
    other.reader.poll()
    assert list(other.intake.known) == [row.id]


def test_what_is_found_behind_the_cursor_in_another_s_shard_goes_first_once_that_is_ours(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    holder = Consumer(queue, Recorder(stage.clock))
    stage.clock.advance(3)
    queue.put("keeps the shard")
    while not holder._engine.leases.held():
        stage.clock.advance(0.01)
        holder._engine.step()
    other = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))._engine
    other.intake.keep([0], dict)
    other.intake.lanes[0].advance(stage.clock.now_ms())
    write(stage, queue, stage.clock.now_ms() - 100, b"1", group="g")
    other.reader.poll(back_ms=500)
    assert not other.intake.known
    holder._engine.retire()
    holder._engine.release_idle()
    # Read on from there by longer than any poll looks back.
    stage.clock.advance(6)
    other.reader.poll()
    write(stage, queue, stage.clock.now_ms() + 10, b"2", group="g")
    taken = []
    for _ in range(20):
        other.reader.poll()
        taken += [one.row.body for one in iter(other.ready.take, None)]
        stage.clock.advance(0.1)
    assert (b"1" in taken, b"2" in taken) == (True, False)


def test_what_is_found_behind_the_cursor_in_another_s_shard_holds_up_nothing_else(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    holder = Consumer(queue, Recorder(stage.clock))._engine
    stage.clock.advance(600)
    other = Consumer(stage.connect().queue("mail"), Recorder(stage.clock))._engine
    other.intake.keep([0], dict)
    lane = other.intake.lanes[0]
    for _ in range(40):
        other.reader.poll()
    late_ms = stage.clock.now_ms() - 90_000
    holder.leases.take([queue._home.register.layout.shard(late_ms, 0)])
    write(stage, queue, late_ms, b"late", group="g")
    other.sweeper.sweep(Rung(120_000, 30_000, "sweep 60 s"))
    assert lane.refused
    assert lane.cursor_ms == stage.clock.now_ms()
    stage.clock.advance(0.3)
    holder.leases.renew()
    queue.put("new")
    other.reader.poll()
    assert [one.row.body for one in iter(other.ready.take, None)] == [b"new"]


def test_a_group_waits_for_its_lane_to_be_read_also_while_a_shard_of_it_is_another_s(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    row = queue.put("later", delay="1500ms", group="g")._row
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    engine = consumer._engine
    assert stage.drive(consumer, seconds=1, until=lambda: row.id in engine.intake.known)
    lane = engine.intake.lanes[0]
    # Refused its next shard, the lane is passed over for a while; what is read ahead comes due.
    lane.retry_ms = row.due_ms + 100
    queue.put("first", due=moment_of(row.due_ms - 10), group="g")
    stage.clock.advance((row.due_ms - stage.clock.now_ms()) / 1e3)
    consumer.step()
    assert seen.texts == []
    stage.drain(queue, consumer)
    assert seen.texts == ["first", "later"]


def test_what_is_left_as_its_lease_runs_out_while_it_is_read_is_read_again(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer = Consumer(queue, Recorder(stage.clock))
    engine = consumer._engine
    stage.drive(consumer, seconds=1)
    # Keeps the lease, under which the next is read.
    queue.put("first", group="other")
    while not engine.intake.known:
        stage.clock.advance(0.01)
        engine.step()
    until_ms = stage.clock.now_ms() + 60_000
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 120_000)
    lane = engine.intake.lanes[0]
    stage.clock.advance(0.001)
    row = queue.put("x", group="g")._row
    stage.clock.advance(0.001)
    stage.faults.call("notes blocked", lambda: stage.clock.advance(9))
    engine.reader.poll()
    assert row.id not in engine.intake.known
    assert lane.cursor_ms < row.due_ms
    # Its lease is renewed by the next poll, and it is put off as it should have been.
    engine.reader.poll()
    engine.outbox.flush()
    assert {found.text: found.due_ms for found in queue.peek()}["x"] == until_ms


def test_what_is_read_again_after_older_rows_were_found_still_goes_in_order(stage: Stage) -> None:
    consumer, seen, _, until_ms = over_block(stage)
    engine = consumer._engine
    while len(engine.ready) < 2:
        engine.step()
    engine.intake._missed[0] = until_ms - 1
    engine.intake.go_back()
    assert engine.ready.take() is None
    stage.drain(consumer._queue, consumer)
    assert seen.texts == ["first", "last"]


def test_what_is_in_hand_is_kept_while_its_lane_is_read_on_to_where_its_group_may_go(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="1s", lanes=1)
    for number in range(50):
        queue.put(str(number), delay=f"{number}s", group="g")
    until_ms = stage.clock.now_ms() + 45_000
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 600_000)
    stage.clock.advance(60)
    seen = Recorder(stage.clock)
    # By each step it is time to look for what is nobody's: the shards that come next are.
    stage.drain(queue, Consumer(queue, seen), within="2m", stride=0.6)
    assert seen.texts == [str(number) for number in range(50)]


def test_a_row_read_ahead_waits_for_what_its_lane_has_no_room_to_read(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    late = queue.put("late", delay="1s", group="g")._row
    consumer = Consumer(queue, Recorder(stage.clock), prefetch=1)
    engine = consumer._engine
    engine.intake.keep([0], dict)
    lane = engine.intake.lanes[0]
    lane.advance(stage.clock.now_ms())
    assert engine.intake.accept([late]) == {}
    stage.clock.advance(0.9)
    early = queue.put("early", group="g")._row
    stage.clock.advance(0.2)
    # Its row fills the lane, which cannot be read on to the other.
    lane.crowded = True
    engine.intake.set_reach()
    assert engine.ready.take() is None
    # One poll makes room, the next reads.
    engine.reader.poll()
    engine.reader.poll()
    taken = engine.ready.take()
    assert taken is not None
    assert taken.row == early


def test_a_head_does_not_go_along_with_what_is_put_off_behind_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    head, other = (queue.put(text, group="g")._row for text in ("head", "other"))
    engine = Consumer(queue, Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    until_ms = stage.clock.now_ms() + 30_000
    groups_in(queue).block(0, "g", until_ms, head.message_id)
    assert engine.intake.accept([other]) == {}
    assert engine.intake.accept([head]) == {}
    engine.outbox.flush()
    dues_ms = {found.text: found.due_ms for found in queue.peek()}
    assert dues_ms == {"head": head.due_ms, "other": until_ms}


@pytest.mark.parametrize("knows", ["nothing", "an older block", "its block"])
def test_what_is_read_while_its_group_is_pulled_forward_does_not_pass_the_rest(
    stage: Stage, knows: str
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    rows = [queue.put(text, group="g")._row for text in ("first", "second")]
    settler = settler_of(queue)
    groups = groups_in(queue)
    until_ms = stage.clock.now_ms() + 30_000
    groups.block(0, "g", until_ms, "head")
    settler.carry_out([settler.planner.move(row, until_ms, attempt=0) for row in rows])
    engine = Consumer(queue, Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    lane = engine.intake.lanes[0]
    if knows == "its block":
        lane.blocked = stage._store.notes(BLOCKED, ("mail", 0))
    elif knows == "an older block":
        lane.blocked = {"g": (stage.clock.now_ms(), "before")}
    stage.clock.advance(0.1)
    lane.advance(stage.clock.now_ms() - 1)
    groups.unblock(0, "g", "head")
    stage.clock.advance(0.1)
    now_ms = stage.clock.now_ms()
    if knows != "an older block":
        # It is found by a sweep.
        lane.advance(now_ms)
    # The first was not stored there yet when the poll came by, and is by now.
    [first, second] = sorted((found._row for found in queue.peek()), key=lambda row: row.order)
    assert first.due_ms == second.due_ms < now_ms
    assert engine.intake.accept([second], {0: now_ms}) == {0: second.due_ms}
    assert engine.ready.take() is None
    engine.reader.poll()
    taken = engine.ready.take()
    assert taken is not None
    assert taken.row == first


def test_nothing_of_a_group_goes_while_what_comes_before_it_is_being_put_off(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put("head", group="g")
    caller = stage.connect()
    assert caller.queue("mail").receive(visibility="3s")
    caller.close()
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    queue.put("second", group="g")
    queue.put("third", group="g", delay="3300ms")
    # "third" is read ahead and comes due while the store does not take what "second" waits for.
    stage.faults.fail("move", times=14)
    stage.drain(queue, consumer)
    assert seen.texts == ["head", "second", "third"]


def test_who_takes_a_lane_over_knows_how_far_to_read_before_its_group_goes_on(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)

    def fail_once(message: Message) -> None:
        if message.attempt == 1:
            raise Retry("1s")

    seen = Recorder(stage.clock, fail_once)
    consumer = Consumer(queue, seen)
    queue.put("x", group="g")
    assert stage.drive(consumer, seconds=5, until=lambda: len(seen) == 2)
    stage.drive(consumer, seconds=0.2)
    # Its reader has died, and its lease runs out before another may read on.
    stage.clock.advance(TTL_MS / 1e3 + 5)
    assert "g" in stage._store.notes(BLOCKED, ("mail", 0))


def test_what_was_put_off_to_the_due_of_another_goes_before_it_though_a_page_ends_between(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = settler_of(queue)
    groups = groups_in(queue)
    row = queue.put("first", group="g")._row
    due_ms = queue.put("later", group="g", delay="10s")._row.due_ms
    groups.block(0, "g", due_ms, row.message_id)
    settler.carry_out([settler.planner.move(row, due_ms, attempt=0)])
    consumer = Consumer(queue, Recorder(stage.clock))
    engine = consumer._engine
    know_blocks(consumer)
    stage.clock.advance(10)
    engine.intake.lanes[0].advance(due_ms - 1)
    engine.reader.page_rows = 1
    engine.reader.poll()
    assert [one.row.body for one in engine.intake.known.values()] == [b"later"]
    assert engine.ready.take() is None
    engine.reader.poll()
    taken = engine.ready.take()
    assert taken is not None
    assert taken.row.body == b"first"
