"""A group goes on after its head, and only then; whatever becomes of that."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from reading import groups_in, retrying

from shardq import Consumer, Message, Queue, Retry
from shardq.engine.delivery import Delivery
from shardq.engine.lease import Lease
from shardq.engine.outcome import ACKED, Fate, Outcome
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.lifecycle.settle import Settler
from shardq.model.ids import order_key
from shardq.model.message import Row
from shardq.stores.tables import BLOCKED
from shardq.testing import Recorder, Stage


def in_hand(stage: Stage, consumer: Consumer, queue: Queue) -> dict[str, Delivery]:
    """A head and its next, due in two minutes of the queue, both read and due, none handed out."""
    stage.drive(consumer, seconds=3)
    gap_ms = 1_200
    head_ms = (stage.clock.true_ms() // 1_000 + 4) * 1_000 + 500
    for text, due_ms in (("head", head_ms), ("next", head_ms + gap_ms)):
        queue.put(text, due=datetime.fromtimestamp(due_ms / 1e3, UTC), group="g")
    while stage.clock.true_ms() < head_ms + gap_ms + 100:
        # Its handlers are busy: the engine alone goes on.
        stage.clock.advance(max(consumer._engine.step(), 0.001))
    return {one.row.body.decode(): one for one in consumer._engine.intake.known.values()}


def test_the_next_of_a_group_does_not_go_before_a_head_whose_lease_is_over(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="5s", lanes=1, group_lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    ones = in_hand(stage, consumer, queue)
    # The engine waits for the store's answer until the first of the two leases is over.
    first, second = (ones[text].lease for text in ("head", "next"))
    stage.clock.advance((first.deadline_us - stage.clock.boot_us()) / 1e6 + 0.01)
    assert consumer._engine.leases.is_valid(second)
    head = consumer._engine.ready.take()
    assert head is ones["head"]
    consumer._deliver(head)
    consumer._engine.outbox.flush()
    assert consumer._engine.ready.take() is None
    stage.drive(consumer, seconds=8)
    assert seen.texts == ["head", "next"]


def test_the_next_of_a_group_does_not_go_before_a_head_whose_lease_is_lost(stage: Stage) -> None:
    queue = stage.connect().queue("mail", minute="1s", offset="5s", lanes=1, group_lanes=1)
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    engine = consumer._engine
    lease = in_hand(stage, consumer, queue)["head"].lease
    # It ran out in the store while a renewal had no answer.
    stage._store.release({lease.shard: lease.lock})
    lease.renewed_us = 0
    engine._renew()
    engine.intake.give_up(lambda one: one.lease is lease)
    assert engine.ready.take() is None
    stage.drive(consumer, seconds=8)
    assert seen.texts == ["head", "next"]


def test_a_head_whose_holder_died_goes_first_when_everybody_stood_still_for_hours(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", minute="10s", lanes=1)
    queue.put("head", group="g")
    queue.put("next", group="g", delay="15s")
    [message] = queue.receive(visibility="30s")
    assert message.text == "head"
    stage.clock.advance(4 * 3_600)
    seen = Recorder(stage.clock)
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=3)
    assert seen.texts == ["head", "next"]


def test_a_head_whose_retry_is_stored_after_its_time_is_waited_for(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("head", group="g")

    def fail(_message: Message) -> None:
        if len(seen) == 1:
            raise Retry("500ms")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    queue.put("next", group="g", delay="1s")
    stage.faults.fail("move", times=6)
    stage.drain(queue, consumer)
    assert seen.texts == ["head", "head", "next"]


def test_a_group_does_not_wait_for_the_retry_of_a_head_that_was_cancelled_while_it_ran(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    head = queue.put("head", group="g")
    other = stage.connect().queue("mail")

    def fail(message: Message) -> None:
        if message.text == "head":
            assert other.cancel(head)
            raise Retry("1h")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    queue.put("next", group="g")
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["head", "next"]


def test_what_is_read_while_a_head_s_retry_is_not_stored_yet_waits_for_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", group_lanes=1)
    queue.put("head", group="g")

    def fail(_message: Message) -> None:
        if len(seen) == 1:
            raise Retry("2s")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    stage.faults.fail("move", times=6)
    stage.drive(consumer, seconds=1.6)
    # Due before the head is again, and read only when both are, for the store is left alone.
    queue.put("next", group="g", delay="200ms")
    stage.drain(queue, consumer)
    assert seen.texts == ["head", "head", "next"]


def test_who_had_no_room_for_a_group_does_not_free_it_from_a_head_that_another_put_off(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1, group_lanes=1)
    frozen = Consumer(queue, Recorder(stage.clock), prefetch=4)
    frozen._engine.reader.grouped_max = 4
    stage.drive(frozen, seconds=1)
    for text in ("head", *"12345"):
        queue.put(text, group="g")
        stage.clock.advance(0.001)
    for _ in range(20):
        # Its handlers are busy: the engine alone goes on.
        stage.clock.advance(0.05)
        frozen._engine.step()
    assert len(frozen._engine.ready) < 4
    stage.clock.advance(15)

    def put_off(message: Message) -> None:
        if message.text == "head":
            raise Retry("10m")

    seen = Recorder(stage.clock, put_off)
    other = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(other, seconds=5)
    assert seen.texts == ["head"]
    frozen._engine.step()
    stage.drive(other, seconds=60)
    assert seen.texts == ["head"]


def taken_head(stage: Stage, queue: Queue, *, claimed: bool) -> tuple[Consumer, Recorder, Delivery]:
    """A consumer that has handed out the head of a group with a next, just now or long ago."""
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    engine = consumer._engine
    stage.drive(consumer, seconds=1)
    for text in ("head", "next"):
        queue.put(text, group="g")
    while (one := engine.ready.take()) is None:
        stage.clock.advance(max(engine.step(), 0.001))
    while claimed and not one.claimed:
        stage.clock.advance(max(engine.step(), 0.001))
    return consumer, seen, one


@pytest.mark.parametrize("fate", [Fate.ACK, Fate.RETRY, Fate.BURY])
@pytest.mark.parametrize("claimed", [False, True])
def test_who_wakes_past_its_lease_does_not_free_a_group_whose_head_another_has_put_off(
    stage: Stage, fate: Fate, *, claimed: bool
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="30s", visibility="60s")
    frozen, _, one = taken_head(stage, queue, claimed=claimed)
    stage.clock.advance(70 if claimed else 15)

    def put_off(message: Message) -> None:
        if message.text == "head":
            raise Retry("10m")

    seen = Recorder(stage.clock, put_off)
    other = Consumer(stage.connect().queue("mail"), seen)
    stage.drive(other, seconds=8)
    assert seen.texts == ["head"]
    frozen._engine.outbox.finish(one, Outcome(fate, 3_000))
    frozen._engine.outbox.flush()
    stage.drive(frozen, other, seconds=20, stride=0.05)
    assert seen.texts == ["head"]
    assert frozen._engine.outbox.is_empty
    assert {found.text for found in queue.peek()} == {"head", "next"}
    assert queue.dead.peek() == []


@pytest.mark.parametrize("claimed", [False, True])
def test_a_group_is_freed_by_an_ack_whose_answer_was_lost_until_its_lease_was_over(
    stage: Stage, *, claimed: bool
) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="30s", visibility="60s")
    consumer, seen, one = taken_head(stage, queue, claimed=claimed)
    now_ms = stage.clock.now_ms()
    if not claimed:
        # As what waited longer behind another has left it.
        consumer._engine.outbox.heads.block_behind(one, now_ms + 600_000)
        stage.drive(consumer, seconds=0.5)
    stage.faults.fail("delete", applied=True)
    consumer._engine.outbox.finish(one, ACKED)
    with pytest.raises(StoreTimeout):
        consumer._engine.outbox.flush(everything=True)
    one.lease.deadline_us = 0
    consumer._engine.outbox.flush(everything=True)
    assert stage.faults.calls["delete"] == 1
    stage.drive(consumer, seconds=7)
    assert seen.texts == ["next"]


@pytest.mark.parametrize("applied", [False, True])
def test_a_group_is_freed_by_a_burial_whose_answer_was_lost(stage: Stage, *, applied: bool) -> None:
    queue = stage.connect().queue("mail", group_lanes=1, hold="30s", visibility="60s")
    consumer, seen, one = taken_head(stage, queue, claimed=True)
    stage.faults.fail("move", applied=applied)
    consumer._engine.outbox.finish(one, Outcome(Fate.BURY, reason="why"))
    with pytest.raises((StoreTimeout, StoreUnavailable)):
        consumer._engine.outbox.flush()
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["next"]
    assert len(queue.dead.peek()) == 1


def test_what_is_put_after_a_purge_does_not_wait_for_a_head_that_was_purged(stage: Stage) -> None:
    queue = stage.connect().queue("mail")

    def put_off(message: Message) -> None:
        if message.text in {"head", "other head"}:
            raise Retry("10m")

    seen = Recorder(stage.clock, put_off)
    consumer = Consumer(queue, seen)
    queue.put("head", group="g")
    stage.drive(consumer, seconds=5)
    queue.purge()
    stage.drive(consumer, seconds=5)
    queue.put("after it", group="g")
    queue.put("other head", group="other")
    stage.drive(consumer, seconds=1)
    queue.put("waits", group="other")
    stage.drive(consumer, seconds=5)
    assert sorted(seen.texts) == ["after it", "head", "other head"]


@pytest.mark.parametrize("name", [None, "order-1"])
def test_a_reader_that_comes_after_a_purge_frees_what_waits_behind_heads_it_has_reached(
    stage: Stage, name: str | None
) -> None:
    queue = stage.connect().queue("mail")

    def put_off(_message: Message) -> None:
        raise Retry("10m")

    consumer = Consumer(queue, put_off)
    queue.put("head", group="g", id=name)
    stage.drive(consumer, seconds=5)
    consumer.close()
    queue.purge()
    queue.put("after it", group="g")
    seen = Recorder(stage.clock)
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=5)
    assert seen.texts == ["after it"]


def test_what_waits_for_a_head_goes_on_where_its_lane_is_another_s_when_it_ends(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    head = queue.put("head", delay="3s", group="g")
    # As where those behind it had been put off for longer than it was itself.
    until_ms = stage.clock.now_ms() + 600_000
    stage._store.note(BLOCKED, ("mail", head._row.shard.lane), {"g": (until_ms, head.id)}, 900_000)
    queue.put("next", delay="400ms", group="g")

    def pass_on(_message: Message) -> None:
        consumer._engine.intake.keep([], dict)

    consumer = Consumer(queue, pass_on)
    stage.drive(consumer, seconds=4)
    consumer.close()
    seen = Recorder(stage.clock)
    stage.drive(Consumer(stage.connect().queue("mail"), seen), seconds=5)
    assert seen.texts == ["next"]


def test_what_waits_for_a_head_that_a_caller_has_is_the_caller_s_to_free_after_a_purge_too(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail")
    queue.put("head", group="g")
    [head] = queue.receive(visibility="10m")
    seen = Recorder(stage.clock)
    consumer = Consumer(stage.connect().queue("mail"), seen)
    # Until the leases of the caller's process are over.
    stage.clock.advance(11)
    queue.purge()
    queue.put("next", group="g")
    stage.drive(consumer, seconds=5)
    lane = head._row.shard.lane
    # Deleted and not yet unblocked, it is still the caller's.
    stage.faults.call("delete", lambda: groups_in(queue).unblock_purged(lane))
    moves = stage.faults.calls["move"]
    assert seen.texts == []
    queue.ack(head)
    assert stage.faults.calls["move"] == moves + 1
    stage.drain(queue, consumer)
    assert seen.texts == ["next"]


def test_what_comes_back_from_the_dead_holds_its_group_though_its_id_is_older_than_a_purge(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", attempts=1)

    def fail(message: Message) -> None:
        if message.text == "head":
            outcomes = {1: ValueError(), 2: Retry("10m")}
            if len(seen) in outcomes:
                raise outcomes[len(seen)]

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    queue.put("head", group="g")
    stage.drive(consumer, seconds=5)
    queue.purge()
    queue.alter(attempts=5)
    stage.clock.advance(1)
    queue.redrive()
    stage.drive(consumer, seconds=5)
    assert seen.texts == ["head", "head"]
    queue.put("next", group="g")
    other = Consumer(stage.connect().queue("mail"), seen)
    consumer.close()
    stage.drive(other, seconds=60)
    assert seen.texts == ["head", "head"]
    stage.drain(queue, other)
    assert seen.texts == ["head", "head", "head", "next"]


def test_nothing_says_for_long_that_a_group_waits_once_its_head_is_over(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    consumer = retrying(stage, queue)
    stage.drive(consumer, seconds=8)
    assert queue.totals().acked == 5
    stage.clock.advance(30)
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {}


def test_a_group_does_not_wait_for_a_head_cancelled_before_its_retry_was_stored(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    head = queue.put("head", group="g")
    queue.put("next", group="g")

    def fail(message: Message) -> None:
        if message.text == "head":
            raise Retry("1h")

    seen = Recorder(stage.clock, fail)
    consumer = Consumer(queue, seen)
    engine = consumer._engine
    engine.step()
    one = engine.ready.take()
    assert one is not None
    consumer._deliver(one)
    stage.faults.fail("move")
    with pytest.raises(StoreUnavailable):
        engine.outbox.flush()
    assert stage.connect().queue("mail").cancel(head)
    # By now it is known here that nothing waits for it.
    stage.clock.advance(0.6)
    queue.put("late", group="g")
    stage.drive(consumer, seconds=10)
    assert seen.texts == ["head", "next", "late"]


def test_what_is_put_after_a_purge_does_not_wait_for_a_head_that_a_check_has_deleted(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    queue.put("head", group="g")
    [message] = queue.receive()
    queue.snooze(message, "1h")
    queue.close()
    queue = stage.connect().queue("mail")
    stage.clock.advance(1)
    queue.purge()
    queue.check_all()
    queue.put("next", group="g")
    seen = Recorder(stage.clock)
    stage.drive(Consumer(queue, seen), seconds=10)
    assert seen.texts == ["next"]


def test_what_waits_behind_a_head_is_put_off_in_the_order_of_its_group(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)

    def fail(message: Message) -> None:
        if message.text == "head":
            raise Retry("60s")

    head_ms = stage.clock.true_ms() + 1_500
    for number in (5, 0, 3, 1, 4, 2):
        due = datetime.fromtimestamp((head_ms + number) / 1e3, UTC)
        queue.put(str(number) if number else "head", due=due, group="g")
    # All are in hand before the head is due.
    stage.drive(Consumer(queue, Recorder(stage.clock, fail)), seconds=3)
    behind = [found._row for found in queue.peek() if found.text != "head"]
    assert len({row.due_ms for row in behind}) == 1
    # Where there is room for some of them only, these are the first.
    behind.sort(key=lambda row: order_key(row.id))
    assert [row.body for row in behind] == [b"1", b"2", b"3", b"4", b"5"]


def test_the_first_of_a_group_do_not_stay_where_others_to_be_read_may_come_before_them(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    rows = [queue.put(str(number), group="g")._row for number in range(3)]
    until_ms = stage.clock.now_ms() + 100
    stage._store.note(BLOCKED, ("mail", 0), {"g": (until_ms, "head")}, 60_000)
    stage.clock.advance(0.6)
    engine = Consumer(queue, Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    engine.intake.lanes[0].blocked = stage._store.notes(BLOCKED, ("mail", 0))
    assert engine.intake.accept(rows) == {}
    assert engine.ready.take() is None
    lane = engine.intake.lanes[0]
    lane.crowded = True
    engine.outbox.heads.relieve(1)
    engine.outbox.flush()
    assert [found._row for found in queue.peek()] == rows
    # Once it is read so far, they are the first.
    lane.advance(until_ms)
    engine.outbox.heads.relieve(1)
    engine.outbox.flush()
    assert [found._row for found in queue.peek()][:1] == rows[:1]
    assert stage._store.notes(BLOCKED, ("mail", 0))["g"][1] == rows[0].message_id


@pytest.mark.parametrize("by", ["the next head", "the rest of its lane"])
def test_what_was_put_off_behind_a_settled_head_does_not_wait_for_what_its_group_waits_for_next(
    stage: Stage, by: str
) -> None:
    # It was stored there when its head had been settled.
    queue = stage.connect().queue("mail", lanes=1)
    settler = Settler(queue._home.store, queue._home.clock, queue._home.register)
    groups = groups_in(queue)
    engine = Consumer(queue, print)._engine
    engine.intake.keep([0], dict)
    lane = engine.intake.lanes[0]
    heads = engine.outbox.heads
    first = queue.put("first", group="g")._row
    waits = queue.put("waits", group="g")._row
    now_ms = stage.clock.now_ms()
    groups.block(0, "g", now_ms + 11_000, first.message_id)
    move = settler.planner.move(waits, now_ms + 10_000, attempt=0)
    settler.carry_out([move])
    heads.put_off([move.new])
    heads.flush()
    # As the first one's end does: of what waits for it, it finds nothing.
    groups.unblock(0, "g", first.message_id)
    assert {message._row.due_ms for message in queue.peek() if message.text == "waits"} == (
        {now_ms + 10_000}
    )
    lease = Lease(first.shard, "lock", 0, 10_000_000, 0)
    ones = [Delivery(row, 0, lease) for row in (first, queue.put("next", group="g")._row)]
    if by == "the next head":
        heads.block_behind(ones[0], now_ms + 12_000)
    else:
        lane.crowded = True
        lane.cursor_ms = now_ms
        engine.intake.set_reach()
        engine.ready.add(ones)
        assert [engine.ready.take(), engine.ready.take()] == [ones[0], None]
        heads.relieve(0)
    assert groups.blocks.block_of(0, "g")[0] > stage.clock.now_ms()
    [again] = [message for message in queue.peek() if message.text == "waits"]
    assert again._row.due_ms <= stage.clock.now_ms()


def test_what_comes_late_behind_a_head_that_was_put_off_twice_follows_it(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = Settler(queue._home.store, queue._home.clock, queue._home.register)
    engine = Consumer(queue, print)._engine
    engine.intake.keep([0], dict)
    heads = engine.outbox.heads
    first, waits = (queue.put(text, group="g")._row for text in ("first", "waits"))
    one = Delivery(first, 0, Lease(first.shard, "lock", 0, 10_000_000, 0))
    now_ms = stage.clock.now_ms()
    heads.block_behind(one, now_ms + 10_000)
    # The head is not parked there, and then for longer, while this was still to be put off.
    heads.block_behind(one, now_ms + 11_000)
    move = settler.planner.move(waits, now_ms + 10_000, attempt=0)
    settler.carry_out([move])
    heads.put_off([move.new])
    heads.flush()
    assert [found.due_ms for found in queue.peek() if found.text == "waits"] == [now_ms + 11_000]


@pytest.mark.parametrize("slow", ["move", "look"])
def test_what_was_put_off_by_a_slow_store_is_waited_for_though_its_head_was_settled_meanwhile(
    stage: Stage, slow: str
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    settler = Settler(queue._home.store, queue._home.clock, queue._home.register)
    groups = groups_in(queue)
    engine = Consumer(queue, print)._engine
    engine.intake.keep([0], dict)
    heads = engine.outbox.heads
    row = queue.put("waits", group="g")._row
    until_ms = stage.clock.now_ms() + 4_000
    groups.block(0, "g", until_ms, "head")
    engine.intake.lanes[0].blocked = stage._store.notes(BLOCKED, ("mail", 0))
    heads.cover({(0, "g"): until_ms})
    stage.clock.advance(2 if slow == "move" else 0)
    now_ms = stage.clock.now_ms()
    stage._store.note(BLOCKED, ("mail", 0), {"g": (now_ms, "head")}, 10_000)
    move = settler.planner.move(row, until_ms, attempt=0)
    settler.carry_out([move])
    heads.put_off([move.new])
    stage.clock.advance(2 if slow == "look" else 0)
    heads.flush()
    assert stage._store.notes(BLOCKED, ("mail", 0))["g"][0] == until_ms


def test_what_was_read_ahead_does_not_pass_those_of_its_group_that_are_moved_on_for_want_of_room(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    rows = put_apart(stage, queue, 3)
    rows.append(queue.put("ahead", group="g", delay="500ms")._row)
    engine = Consumer(queue, Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    lane = engine.intake.lanes[0]
    lane.advance(stage.clock.now_ms())
    assert engine.intake.accept(rows) == {}
    engine.intake.set_reach()
    taken = engine.ready.take()
    assert taken is not None
    lane.crowded = True
    engine.outbox.heads.relieve(1)
    engine.outbox.flush()
    dues_ms = {found.text: found.due_ms for found in queue.peek()}
    assert [dues_ms["0"], dues_ms["1"]] == [row.due_ms for row in rows[:2]]
    assert dues_ms["2"] == dues_ms["ahead"] > rows[3].due_ms


def test_no_head_is_named_of_a_group_of_which_earlier_ones_may_still_be_read(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    rows = put_apart(stage, queue, 4)
    engine = Consumer(queue, Recorder(stage.clock))._engine
    engine.intake.keep([0], dict)
    lane = engine.intake.lanes[0]
    # As where an older shard was refused: these were read, and the cursor stays behind.
    lane.advance(rows[0].due_ms)
    assert engine.intake.accept(rows[1:]) == {}
    lane.crowded = True
    engine.ready.has_due()
    engine.outbox.heads.relieve(1)
    assert stage._store.notes(BLOCKED, ("mail", 0)) == {}


def put_apart(stage: Stage, queue: Queue, count: int) -> list[Row]:
    """Put messages of a group, each due at a time of its own."""
    rows = []
    for number in range(count):
        rows.append(queue.put(str(number), group="g")._row)
        stage.clock.advance(0.001)
    return rows
