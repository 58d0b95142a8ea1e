"""What is told of messages of groups that stay where they are: their minutes are on a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stages import either_stage  # noqa: F401 - a fixture

from shardq import Consumer
from shardq.inspection import scan
from shardq.inspection.calendar import CalendarCounter
from shardq.inspection.state import Where
from shardq.stores.tables import LANES
from shardq.testing import Recorder, Stage

if TYPE_CHECKING:
    from shardq import Queue
    from shardq.model.message import Message, Row


def passed_by(stage: Stage, queue: Queue) -> None:
    """Seal all lanes, and list their minutes with rows of groups."""
    layout = queue._home.register.layout
    for row in (row for page in queue._rows() for row in page):
        lease = layout.lane_lease(row.shard.lane)
        stage._store.take({lease: None}, lock="l", holder="m", window=1, ttl_ms=600_000)
        assert stage._store.list_minutes(lease, "l", {row.shard.minute: row.due_ms})
    newest = layout.newest_sealable(stage.clock.now_ms())
    stage._store.note(LANES, ("mail",), dict.fromkeys(layout.all_lanes(), newest))


def put_off(stage: Stage, message: Message, **state: object) -> Row:
    row = message._row._replace(serial=1, **state)
    stage._store.edit([row])
    return row


def test_listed_minutes_are_looked_into_before_those_after_the_seals(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    for text in ("first", "second"):
        queue.put(text, group="g")
    stage.clock.advance(600)
    queue.put("third", group="g")
    stage.clock.advance(3_600)
    passed_by(stage, queue)
    home, now_ms = queue._home, stage.clock.now_ms()
    end = home.register.layout.minute_of(now_ms) + 1
    minutes = {shard.minute for shard in scan.open_shards(stage._store, home.register, end, now_ms)}
    assert {row.shard.minute for page in queue._rows() for row in page} <= minutes
    assert len(minutes) < 10
    assert [message.text for message in queue.peek()] == ["first", "second", "third"]
    assert (queue.depth().ready, queue.depth(exact=True).ready) == (3, 3)


def test_what_is_put_off_or_claimed_in_place_counts_by_its_time(stage: Stage, queue: Queue) -> None:
    head, claimed, over, ready = (queue.put(text, group=text) for text in "abcd")
    far_ms = stage.clock.now_ms() + 3_600_000
    put_off(stage, head, attempt=1, not_before_ms=far_ms, error=f"{far_ms}:f:refused")
    put_off(stage, claimed, attempt=1, not_before_ms=far_ms, claim="receipt")
    stage.clock.advance(600)
    put_off(stage, over, attempt=1, not_before_ms=stage.clock.now_ms() - 1)
    passed_by(stage, queue)
    exact = queue.depth(exact=True)
    assert (exact.ready, exact.waiting, exact.in_flight) == (2, 1, 1)
    # Without a read a claim whose time has come counts as in flight.
    assert (queue.depth().in_flight, queue.depth().total) == (1, 4)
    forecast = [(at.timestamp() * 1e3, count) for at, count in queue.forecast("2h") if count]
    assert [(far_ms - 60_000 < at_ms <= far_ms, count) for at_ms, count in forecast] == [(True, 2)]
    now_ms, home = stage.clock.now_ms(), queue._home
    counter = CalendarCounter(home)
    [(start_ms, load)] = counter.count(now_ms, now_ms + 7_200_000).minutes.items()
    assert (start_ms, load.rows) == (far_ms - far_ms % 60_000, 1)
    told = [message.text for message in queue.peek()]
    assert sorted(told[:2]) == ["c", "d"]
    assert sorted(told[2:]) == ["a", "b"]
    assert ready.group == "d"


def test_where_a_message_of_a_group_is_says_what_it_waits_for(stage: Stage, queue: Queue) -> None:
    head = queue.put("head", group="g", priority=2)
    queue.put("of another", group="h")
    queue.put("between", group="g", priority=1)
    last = queue.put("last", group="g")
    stage.clock.advance(600)
    passed_by(stage, queue)

    def state_of(message: Message) -> tuple[Where, str | None]:
        state = queue.state_of(message.id)
        assert state is not None
        return state.where, str(state)

    where, told = state_of(last)
    assert (where, queue.state_of(last.id).ahead) == (Where.BEHIND, 2)  # type: ignore[union-attr]
    assert f"waits behind {head.id}, the head of its group, and 1 other; " in str(told)
    assert state_of(head)[0] is Where.NO_CONSUMER
    now_ms = stage.clock.now_ms()
    row = put_off(
        stage, head, attempt=1, not_before_ms=now_ms + 60_000, error=f"{now_ms}:f:refused"
    )
    where, told = state_of(head)
    assert where is Where.BACK_OFF
    assert "in back-off until" in str(told)
    assert 'with "refused"' in str(told)
    state = queue.state_of(last.id)
    assert state.head is not None
    assert (state.where, state.head.where) == (Where.BEHIND, Where.BACK_OFF)
    stage._store.edit([row._replace(serial=2, claim="receipt")])
    where, told = state_of(head)
    assert (where, str(told)[:35]) == (Where.RUNNING, "taken by a caller of receive(), unt")
    stage._store.edit([row._replace(serial=3, error=f"{now_ms}:s:busy")])
    assert state_of(head)[0] is Where.SNOOZED
    # Not on the list, it came late, and nobody polls it.
    lease = queue._home.register.layout.lane_lease(last._row.shard.lane)
    assert stage._store.list_minutes(lease, "l", {}, [last._row.shard.minute])
    stage._store.delete([head._row.position])
    assert state_of(last)[0] is Where.PASSED


def test_a_check_leaves_what_waits_in_listed_minutes_where_it_is(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    sent = queue.put("waits", group="g")
    stage.clock.advance(600)
    passed_by(stage, queue)
    lane = sent._row.shard.lane
    assert queue.check_all().moved == 0
    assert queue.peek()[0]._row.position == sent._row.position
    lease = queue._home.register.layout.lane_lease(lane)
    assert stage._store.list_minutes(lease, "l", {}, [sent._row.shard.minute])
    assert queue.check_all().moved == 1
    # It keeps its place, and its lane's owner is told of it.
    shard = queue._home.register.layout.shard(stage.clock.now_ms(), lane)
    [note] = stage._store.read(scan.whole(queue._home.register.layout, shard, 9, "test"))
    assert note.noted == sent._row.position
    assert stage._store.find([sent._row.position]) == [sent._row]
    seen = Recorder(stage.clock)
    consumer = Consumer(queue, seen)
    stage.clock.advance(700)
    stage.drain(queue, consumer)
    assert seen.texts == ["waits"]
