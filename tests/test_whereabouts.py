"""Where a message is, and why it does not run, on each store."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store

from shardq import Consumer, Found, Where
from shardq.errors import BadName, BadReceipt
from shardq.stores.tables import LANES, MEMBERS
from shardq.testing import Stage

if TYPE_CHECKING:
    from shardq import Message, Queue, State


@pytest.fixture
def queue(world: World) -> Queue:
    return world.connect().queue(world.queue_name(), history="off")


def state_of(queue: Queue, message: Message | str) -> State:
    state = queue.state_of(message)
    assert state is not None
    found = queue.find(message)
    if state.has_ended:
        assert found is None
    else:
        # A look-up by id reports the same for a message that is still to be delivered.
        assert (found.state.where, found.state.behind) == (state.where, state.behind)
    return state


def beat(queue: Queue, name: str = "mailer", **told: object) -> None:
    """Let a consumer tell of itself."""
    info = json.dumps({"threads": 1} | told)
    queue._home.store.note(MEMBERS, (queue._home.register.members_key,), {name: info}, 60_000)


def reads(queue: Queue) -> int:
    return queue._home.store.counters["reads"]


# Due later ----------------------------------------------------------------------------------------


@on_each_store
def test_one_that_waits_says_until_when(queue: Queue) -> None:
    sent = queue.put("a", delay="3h")
    for named in (sent, sent.id, sent.receipt):
        state = state_of(queue, named)
        assert (state.where, state.until, state.id) == (Where.WAITING, sent.due, sent.id)
    assert str(state).startswith(f"waiting: due {sent.due.isoformat()[:19]}")
    assert ", in 2h59m" in str(state) or ", in 3h" in str(state)


def test_one_that_failed_says_why_and_until_when(queue: Queue) -> None:
    sent = queue.put("a")
    [taken] = receive(queue)
    queue.retry(taken, "1h", reason="ValueError:\nno such user")
    state = state_of(queue, sent.id)
    assert state.where is Where.BACK_OFF
    assert (state.attempts, state.error) == (1, "ValueError:\nno such user")
    assert state.since is not None
    assert state.until is not None
    assert (state.until - state.since).total_seconds() == pytest.approx(3_600, abs=5)
    assert str(state).endswith('with "ValueError: no such user"')


def test_one_that_was_snoozed_after_it_failed_is_in_no_back_off(queue: Queue, world: World) -> None:
    sent = queue.put("a")
    [taken] = receive(queue)
    queue.retry(taken, "0s", reason="busy")
    world.pass_time(2)
    [taken] = receive(queue)
    queue.snooze(taken, "1h")
    state = state_of(queue, sent.id)
    assert (state.where, state.error) == (Where.SNOOZED, "busy")
    assert str(state).endswith('; its last error was "busy"')


@on_each_store
def test_one_that_was_received_says_by_whom_and_until_when(queue: Queue) -> None:
    sent = queue.put("a")
    [taken] = receive(queue)
    for named in (sent.id, sent.receipt, taken.receipt):
        state = state_of(queue, named)
        assert (state.where, state.until) == (Where.RUNNING, taken.due)
        assert state.member == taken._row.claim
    assert "if it is not settled by then, it is delivered again" in str(state)


def receive(queue: Queue) -> list[Message]:
    """One message, once its consumer has a lease; on a real store that takes a moment."""
    return queue.receive(1, "1m", wait="20s")


# Due ----------------------------------------------------------------------------------------------


def test_one_that_is_due_and_that_nobody_consumes_says_so(queue: Queue) -> None:
    sent = queue.put("a")
    state = state_of(queue, sent.id)
    assert (state.where, state.since) == (Where.NO_CONSUMER, sent.due)
    assert str(state).endswith(f"; nobody consumes queue {queue.name!r} now")


def test_one_of_a_paused_queue_says_so(queue: Queue) -> None:
    sent = queue.put("a")
    beat(queue)
    queue.pause()
    assert state_of(queue, sent.id).where is Where.PAUSED
    queue.resume()
    assert state_of(queue, sent.id).where is Where.READY


def test_one_that_runs_says_where_and_since_when(queue: Queue, world: World) -> None:
    sent = queue.put("a")
    begun_ms = world.clock.now_ms()
    beat(queue, runs=[[sent.id, begun_ms]], busy=1, running=1)
    state = state_of(queue, sent.id)
    assert (state.where, state.member, state.attempts) == (Where.RUNNING, "mailer", 1)
    assert state.since is not None
    assert round(state.since.timestamp() * 1_000) == begun_ms


def test_a_run_that_ended_before_its_retry_is_none_of_the_next_delivery(
    queue: Queue, world: World
) -> None:
    sent = queue.put("a")
    begun_ms = world.clock.now_ms() - 5_000
    beat(queue, runs=[[sent.id, begun_ms]], busy=1, running=1)
    assert state_of(queue, sent.id).where is Where.READY


def test_one_that_is_ready_says_how_many_go_first(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), bands=2)
    beat(queue)
    queue.put_many({"body": f"{n}", "priority": n % 2} for n in range(10))
    world.pass_time(0.01)
    middle = queue.put("a", priority=1)
    first = queue.put("b", priority=0)
    world.pass_time(0.01)
    queue.put("c", priority=1)
    states = [state_of(queue, sent.id) for sent in (first, middle)]
    assert [(state.where, state.ahead) for state in states] == [(Where.READY, 5), (Where.READY, 11)]
    assert str(states[1]).endswith("; 11 due before it go first")


def test_as_many_go_first_as_are_due_in_the_same_millisecond(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    beat(queue)
    *_, last = queue.put_many(["x"] * 1_200, ids=True)
    assert state_of(queue, last).ahead == 1_199


@on_each_store
def test_one_whose_shard_is_leased_says_by_whom_and_how_many_go_first(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), lanes=1)
    sent = [queue.put(f"{n}") for n in range(5)]
    seen: list[State] = []

    def handle(_: Message) -> None:
        seen.append(state_of(queue, sent[4].id))

    consumer = Consumer(queue, handle, threads=1)
    for _ in range(2_000):
        if seen:
            break
        world.pass_time(max(consumer.step(), 0.001))
    consumer.close()
    assert (seen[0].where, seen[0].member) == (Where.HELD, consumer._engine.home.member)
    assert seen[0].ahead in {3, 4}
    assert seen[0].threads == 1
    assert f"held by {seen[0].member} (" in str(seen[0])


def test_one_that_isolated_consumers_leave_alone_says_until_when(queue: Queue) -> None:
    sent = queue.put("a")
    beat(queue, isolated=True)
    state = state_of(queue, sent.id)
    assert (state.where, state.since) == (Where.ISOLATED, sent.due)
    assert state.until is not None
    assert 120 <= (state.until - sent.due).total_seconds() <= 180
    beat(queue, "another")
    assert state_of(queue, sent.id).where is Where.READY


def test_one_behind_a_seal_says_so(queue: Queue) -> None:
    sent = queue.put("a")
    beat(queue)
    shard = sent._row.shard
    queue._home.store.note(LANES, (queue.name,), {shard.lane: shard.minute})
    assert state_of(queue, sent.id).where is Where.PASSED


def test_a_consumer_whose_heartbeat_is_damaged_is_one_all_the_same(queue: Queue) -> None:
    sent = queue.put("a")
    key = queue._home.register.members_key
    queue._home.store.note(MEMBERS, (key,), {"mailer": '{"threads": "many"}'}, 60_000)
    assert state_of(queue, sent.id).where is Where.READY


# Groups -------------------------------------------------------------------------------------------


def test_one_behind_its_groups_head_says_which_and_where_that_is(queue: Queue) -> None:
    first, second, third = (queue.put(f"{n}", group="g", id=f"order-{n}") for n in range(3))
    assert state_of(queue, first.id).where is Where.NO_CONSUMER
    [taken] = receive(queue)
    for behind in (second, third):
        state = state_of(queue, behind.id)
        assert (state.where, state.behind) == (Where.BEHIND, "order-0")
        assert state.head is not None
        assert state.head.where is Where.RUNNING
    queue.retry(taken, "1h", reason="boom")
    assert state_of(queue, first.id).where is Where.BACK_OFF
    state = state_of(queue, third.id)
    assert (state.where, state.behind) == (Where.BEHIND, "order-0")
    assert "order-0: in back-off until" in str(state)
    assert queue.cancel(queue.find(first.id) or first)
    assert state_of(queue, second.id).where is not Where.BEHIND


def test_one_of_a_group_that_was_snoozed_for_longer_than_its_head_is_snoozed(queue: Queue) -> None:
    first, second, third = (queue.put(f"{n}", group="g") for n in range(3))
    [taken] = receive(queue)
    queue.retry(taken, "1h", reason="boom")
    found = queue.find(second.id)
    assert found is not None
    queue.snooze(found, "3h")
    assert state_of(queue, second.id).where is Where.SNOOZED
    assert state_of(queue, third.id).behind == first.id
    later = queue.put("later", group="g", delay="10m")
    assert state_of(queue, later.id).where is Where.WAITING


@on_each_store
@pytest.mark.parametrize("limits", [{"places": 3}, {"rate": "10/s"}, {"places": 3, "rate": "9/s"}])
def test_those_of_a_limited_group_say_behind_which_and_until_when(
    world: World, limits: dict[str, object]
) -> None:
    queue = world.connect().queue(world.queue_name(), groups=limits)
    first, *others = (queue.put(f"{n}", group="g", id=f"order-{n}") for n in range(5))
    beat(queue)
    [taken] = receive(queue)
    queue.snooze(taken, "1h", limited=True)
    beside = queue.put("x", group="h")
    for behind in others:
        state = state_of(queue, behind.id)
        assert (state.where, state.behind) == (Where.BEHIND, first.id)
        assert state.head is not None
        assert state.head.where is Where.SNOOZED
        assert f"{first.id}: put off (snoozed) until 20" in str(state)
    assert state_of(queue, beside.id).where is not Where.BEHIND


def test_one_before_the_head_that_holds_its_group_back_says_so(queue: Queue, world: World) -> None:
    queue.limit("g", places=2)
    first = queue.put("0", group="g", id="order-0")
    world.pass_time(70)
    second, third = (queue.put(f"{n}", group="g", id=f"order-{n}") for n in (1, 2))
    beat(queue)
    taken = queue.receive(2, "1s", wait="20s")
    queue.snooze(taken[1], "1h", limited=True)
    world.pass_time(1.1)
    for one in (first, third):
        state = state_of(queue, one.id)
        assert (state.where, state.behind) == (Where.BEHIND, second.id)


# What has ended -----------------------------------------------------------------------------------


def test_one_that_a_purge_has_reached_is_not_found_and_says_so(queue: Queue, world: World) -> None:
    sent = queue.put("a", delay="30m", id="order-7")
    soon = queue.put("a", delay="1s")
    world.pass_time(0.01)
    queue.purge()
    for named in (sent, sent.id, sent.receipt):
        state = state_of(queue, named)
        assert (state.where, state.until) == (Where.PURGED, sent.due)
        assert "is deleted when it comes due, " in str(state)
    world.pass_time(1.1)
    assert "is deleted when a consumer reads it; it was due " in str(state_of(queue, soon.receipt))
    again = queue.put("b", delay="5h", id="order-7")
    assert state_of(queue, "order-7").until == again.due


@on_each_store
def test_one_that_died_says_why(queue: Queue) -> None:
    sent = queue.put("a", id="order-7")
    queue.bury(sent, "no such user")
    state = state_of(queue, sent.id)
    assert (state.where, state.error, state.queue) == (Where.DEAD, "no such user", queue.name)
    dead = queue.dead.find(sent.id)
    assert dead.state.where is Where.DEAD
    queue.redrive()
    assert state_of(queue, sent.id).where is Where.NO_CONSUMER


def test_without_a_history_nothing_is_known_of_what_was_acked(queue: Queue) -> None:
    sent = queue.put("a")
    queue.ack(sent)
    assert queue.state_of(sent.id) is None
    assert queue.state_of(sent.receipt) is None


@on_each_store
@pytest.mark.parametrize("message_id", [None, "order-7"])
def test_a_history_says_how_a_message_ended(world: World, message_id: str | None) -> None:
    queue = world.connect().queue(world.queue_name(), history="7d")
    acked, cancelled, dead = (queue.put(f"{n}", id=message_id and f"{n}") for n in range(3))
    queue.ack(acked)
    queue.cancel(cancelled)
    queue.bury(dead, "boom")
    states = [state_of(queue, sent.id) for sent in (acked, cancelled, dead)]
    assert [state.where for state in states] == [Where.ACKED, Where.CANCELLED, Where.DEAD]
    member = queue._settler.ledger._member
    assert [state.member for state in states[:2]] == [member] * 2
    assert str(states[1]).endswith(f", by {member}")
    queue.dead.cancel(queue.dead.find(dead.id) or dead)
    gone = queue.state_of(dead.id)
    assert (gone.where, gone.error) == (Where.DEAD, None)


def test_what_was_in_a_dropped_queue_of_this_name_is_nowhere(queue: Queue, world: World) -> None:
    sent = [queue.put("a", id="order-7"), queue.put("b", delay="3h")]
    world.pass_time(0.01)
    queue.drop()
    again = world.connect().queue(queue.name, history="7d")
    for one in sent:
        assert again.find(one.id) is None
        assert again.state_of(one.id) is None
    new = again.put("c", id="order-7", delay="1h")
    assert state_of(again, "order-7").until == new.due


# Looking ------------------------------------------------------------------------------------------


def test_what_was_found_travels_and_settles_as_what_was_peeked_at(queue: Queue) -> None:
    sent = queue.put("a", delay="1h", headers={"kind": "b"})
    found = pickle.loads(pickle.dumps(queue.find(sent.id)))
    assert isinstance(found, Found)
    assert (found.text, found.headers, found.state.where) == ("a", {"kind": "b"}, Where.WAITING)
    assert queue.cancel(found)
    assert queue.find(sent.id) is None


@on_each_store
def test_by_its_receipt_a_message_costs_two_reads_however_far_it_is(queue: Queue) -> None:
    sent = [queue.put(f"{n}", delay=f"{n * 30}d") for n in range(1, 9)]
    for one in sent:
        assert queue.find(one.receipt) is not None
    before = reads(queue)
    assert queue.find(sent[-1].receipt) is not None
    assert reads(queue) - before <= 3


@on_each_store
def test_what_is_near_is_found_without_a_visit_to_what_is_far(queue: Queue) -> None:
    queue.put_many({"body": f"{n}", "delay": f"{2 + n}h"} for n in range(200))
    near = queue.put("a", delay="20m", id="order-7")
    before = reads(queue)
    assert queue.find(near.id, near=True) is not None
    assert reads(queue) - before < 40
    far = queue.put("b", delay="90d", id="order-8")
    # SQLite finds rows by their ids wherever they are.
    is_found = queue._home.store.is_local
    assert (queue.find(far.id, near=True) is not None) == is_found
    assert (queue.state_of(far.id, near=True) is not None) == is_found
    assert queue.find(far.id) is not None


def test_a_history_says_where_a_message_that_is_far_was_put(world: World) -> None:
    queue = world.connect().queue(world.queue_name(), history="7d")
    sent = queue.put("a", delay="90d")
    found = queue.find(sent.id, near=True)
    assert found.state.until == sent.due


def test_of_several_with_one_id_the_live_one_is_found(queue: Queue, world: World) -> None:
    queue.put("old", delay="10m", id="order-7")
    world.pass_time(0.01)
    queue.purge()
    queue.put("new", delay="2d", id="order-7")
    found = queue.find("order-7")
    assert found.text == "new"


def test_a_receipt_of_another_queue_is_refused() -> None:
    with Stage() as stage:
        db = stage.connect()
        sent = db.queue("other").put("a")
        mail = db.queue("mail")
        for named in (sent, sent.receipt):
            with pytest.raises(BadReceipt, match="mail"):
                mail.find(named)
            with pytest.raises(BadReceipt, match="mail"):
                mail.state_of(named)
        with pytest.raises(BadName, match="message id"):
            mail.state_of(7)  # type: ignore[arg-type]


def test_an_id_that_looks_like_the_begin_of_a_receipt_is_one() -> None:
    with Stage() as stage:
        queue = stage.connect().queue("mail")
        queue.put("a", id="AQUA-7")
        assert queue.find("AQUA-7") is not None


def test_damaged_headers_hide_no_state(queue: Queue) -> None:
    sent = queue.put("a", delay="1h")
    row = sent._row._replace(headers="{")
    queue._home.store.insert([row])
    state = queue.state_of(sent.id)
    assert state.where is Where.WAITING
